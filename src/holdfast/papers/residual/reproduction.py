"""The paper Balancing Continuous Pre-Training in small: its study on the embedded world, and its claims held against
what came out."""

from __future__ import annotations

from holdfast.papers.claims.reproduction import Twin, Twins, size_changes
from holdfast.papers.residual.claims import READING, RECIPE, check_claims
from holdfast.papers.residual.paper import PAPER
from holdfast.papers.residual.plan import study_config
from holdfast.papers.residual.study import run_residual_study
from holdfast.records.residual import read_update

TWINS = Twins(
    paper=PAPER,
    studies={RECIPE: Twin(file="residual/tiny.yaml", sizes=size_changes()[RECIPE])},
    config=study_config,
    run=run_residual_study,
    read=read_update,
    check=check_claims,
    reading=READING,
)
reproduce, judge = TWINS.reproduce, TWINS.judge
