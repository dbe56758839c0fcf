"""The paper Memory Retaining Finetuning in small: its recipes as studies on the small base, and its
claims held against what came out."""

from __future__ import annotations

from holdfast.papers.claims.reproduction import Twin, Twins, size_changes
from holdfast.papers.label_annealing.claims import check_claims
from holdfast.papers.label_annealing.paper import PAPER
from holdfast.records.study import read_study
from holdfast.studies.sweep.session import run_study
from holdfast.studies.sweep.study import StudyConfig


def _twins() -> dict[str, Twin]:
    """The studies by recipe, with what `sizes.yaml` changes of them."""
    sizes = size_changes("label_annealing")
    twins = {}
    for recipe in PAPER.recipes:
        name = f"{recipe}-tiny"
        twins[recipe] = Twin(file=f"{name}.yaml", own={"name": name}, sizes=sizes[recipe])
    return twins


TWINS = Twins(
    paper=PAPER,
    studies=_twins(),
    config=StudyConfig.read,
    run=run_study,
    read=read_study,
    check=check_claims,
)
reproduce, judge = TWINS.reproduce, TWINS.judge
