"""The paper Balancing Continuous Pre-Training in small: its study on the embedded world, and its claims held against
what came out."""

from __future__ import annotations

from typing import Any

from holdfast.papers.claims.reproduction import Twin, Twins
from holdfast.papers.residual.claims import READING, RECIPE, check_claims
from holdfast.papers.residual.paper import PAPER
from holdfast.papers.residual.plan import study_config
from holdfast.papers.residual.study import run_residual_study
from holdfast.records.residual import ResidualRecord, read_update

QUICK: dict[str, Any] = {
    "world": {
        "quick": True,
        "word_problems": 20,
        "new_people": 4,
        "articles": 24,
        "tellings": 10,
        "list_rounds": 1,
        "vocab_size": 384,
        "steps": 10,
        "tuning_steps": 5,
    },
    "budgets": [300, 600],
    "seeds": [0, 1],
    "widths": [32, 16],
    "scales": [1],
    "held_out": 0.2,
    "window": 64,
    "epochs": 1,
}
"""A study of a minute that only shows that everything works."""
SIZES: dict[str, dict[str, Any]] = {
    "quick": QUICK,
    "look": {"seeds": [0], "widths": [128], "scales": [1]},
    "thorough": {},
}
"""By size: what differs from the study file."""


def _summary(record: ResidualRecord | None) -> dict[str, Any]:
    return {
        "seeds": [] if record is None else sorted({m.seed for m in record.models}),
        "trials": 0 if record is None else sum(m.state == "complete" for m in record.models),
        "target": "instructions followed, held-out new text",
        "source": "old knowledge, prose",
    }


TWINS = Twins(
    paper=PAPER,
    studies={RECIPE: Twin(file="residual/tiny.yaml", sizes=SIZES)},
    config=study_config,
    run=run_residual_study,
    read=read_update,
    summary=_summary,
    check=lambda records: check_claims(records[RECIPE]),
    reading=READING,
)
reproduce = TWINS.reproduce
