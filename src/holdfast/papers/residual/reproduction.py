"""The paper Balancing Continuous Pre-Training in small: its study on the embedded world, and its claims held against
what came out."""

from __future__ import annotations

from typing import Any

from holdfast.papers.claims.reproduction import Twin, Twins, size_changes, study_facts
from holdfast.papers.residual.claims import READING, RECIPE, check_claims
from holdfast.papers.residual.paper import PAPER
from holdfast.papers.residual.plan import study_config
from holdfast.papers.residual.study import run_residual_study
from holdfast.records.residual import ResidualRecord, read_update


def _summary(record: ResidualRecord | None) -> dict[str, Any]:
    models = [] if record is None else record.models
    seeds = sorted({model.seed for model in models})
    return study_facts(seeds, models, learn="instructions followed, held-out new text", keep="old knowledge, prose")


TWINS = Twins(
    paper=PAPER,
    studies={RECIPE: Twin(file="residual/tiny.yaml", sizes=size_changes()[RECIPE])},
    config=study_config,
    run=run_residual_study,
    read=read_update,
    summary=_summary,
    check=check_claims,
    reading=READING,
)
reproduce, judge = TWINS.reproduce, TWINS.judge
