"""The paper Pattern Shifting or Knowledge Losing in small: its study in several worlds, with models
of two sizes, and its claims held against what came out."""

from __future__ import annotations

from holdfast.papers.claims.reproduction import Twin, Twins, size_changes
from holdfast.papers.stages.claims import NARROW, READING, WIDE, check_claims
from holdfast.papers.stages.paper import PAPER
from holdfast.records.stages import read_stages
from holdfast.studies.engine.session import execute_study
from holdfast.studies.stages.plan import StagesConfig
from holdfast.studies.stages.study import StagesStudy

TOY = {WIDE: "stages", NARROW: "stages_narrow"}
"""Small settings by what a study's name begins with; the rest of the name is the world."""


def _twin(name: str) -> Twin:
    kind = next(k for k in TOY if name.startswith(k))
    own = {"toy": TOY[kind], "seed": int(name.removeprefix(kind))}
    return Twin(file="stages/tiny.yaml", own=own, sizes=size_changes().get(name, {"medium": {}}))


TWINS = Twins(
    paper=PAPER,
    studies={name: _twin(name) for name in PAPER.recipes},
    config=StagesConfig.read,
    run=lambda config, **session: execute_study(StagesStudy(config), **session),
    read=read_stages,
    check=check_claims,
    reading=READING,
)
reproduce, judge = TWINS.reproduce, TWINS.judge
