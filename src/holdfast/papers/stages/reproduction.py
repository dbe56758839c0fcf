"""The paper Pattern Shifting or Knowledge Losing in small: its study in several worlds, with models
of two sizes, and its claims held against what came out."""

from __future__ import annotations

from typing import Any

from holdfast.papers.claims.reproduction import Twin, Twins
from holdfast.papers.stages.cases import NARROW, OTHER, WIDE
from holdfast.papers.stages.claims import READING, check_claims
from holdfast.papers.stages.paper import PAPER, WORLDS
from holdfast.records.stages import read_stages
from holdfast.studies.engine.session import execute_study
from holdfast.studies.stages.plan import StagesConfig
from holdfast.studies.stages.study import StagesStudy

FILE = "stages/tiny.yaml"
TOY = {WIDE: "stages", NARROW: "stages_narrow", OTHER: "stages_other"}
"""Small settings by what a study's name begins with; the rest of the name is the world."""
QUICK: dict[str, Any] = {
    "train": {"num_train_epochs": 2},
    "along": {"steps": [1, 2], "entries": ["old_lettered"]},
    "tokens": 1000,
    "doses": [1, 4],
    "probing_passages": 8,
    "curve": 2,
    "even_at_chance": True,  # a base of seconds knows nothing
}
"""What a check of minutes changes of the file."""


def _twin(name: str) -> Twin:
    group = next(group for group in TOY if name.startswith(group))
    world = int(name.removeprefix(group))
    settings = {"toy": TOY[group], "seed": world}
    if world not in WORLDS:  # the world that the regime was chosen on decides nothing
        return Twin(file=FILE, own=settings, sizes={"quick": QUICK})
    sizes: dict[str, dict[str, Any]] = {"medium": {}}
    if name == f"{WIDE}{WORLDS[0]}":
        sizes["small"] = {}
    return Twin(file=FILE, own=settings, sizes=sizes)


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
