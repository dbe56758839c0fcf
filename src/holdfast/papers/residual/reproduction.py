"""The paper Balancing Continuous Pre-Training in small: its study on the embedded world, and its
claims held against what came out."""

from __future__ import annotations

from holdfast.papers.claims.reproduction import Twin, Twins, size_changes
from holdfast.papers.residual.claims import READING, RECIPE, check_claims
from holdfast.papers.residual.paper import PAPER
from holdfast.papers.residual.plan import StudyConfig
from holdfast.papers.residual.study import ResidualStudy
from holdfast.records.residual import read_update
from holdfast.studies.engine.session import execute_study

SIZES = size_changes("residual")
TWINS = Twins(
    paper=PAPER,
    studies={RECIPE: Twin(file="residual/tiny.yaml", sizes=SIZES[RECIPE])},
    config=StudyConfig.read,
    run=lambda config, **session: execute_study(ResidualStudy(config), **session),
    read=read_update,
    check=check_claims,
    reading=READING,
)
reproduce, judge = TWINS.reproduce, TWINS.judge
