"""The paper Memory Retaining Finetuning in small: its recipes as studies on the small base, and its
claims held against what came out."""

from __future__ import annotations

from holdfast.papers.claims.reproduction import Twin, Twins, size_changes
from holdfast.papers.label_annealing.claims import RECIPES, check_claims
from holdfast.papers.label_annealing.paper import PAPER
from holdfast.records.study import read_study
from holdfast.studies.sweep.session import run_study
from holdfast.studies.sweep.study import StudyConfig


def _twin(recipe: str) -> Twin:
    name = f"{recipe}-tiny"
    return Twin(file=f"{name}.yaml", own={"name": name}, sizes=size_changes()[recipe])


TWINS = Twins(
    paper=PAPER,
    studies={recipe: _twin(recipe) for recipe in RECIPES},
    config=StudyConfig.read,
    run=run_study,
    read=read_study,
    check=check_claims,
)
reproduce, judge = TWINS.reproduce, TWINS.judge
