"""Papers that `holdfast reproduce` knows. A study that reproduces one registers itself by a file
`paper.py` beside it, which declares `PAPER`; it is read without loading the study."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

SIZES: dict[str, str] = {
    "quick": "a check that everything works, in a minute or two; its verdicts mean nothing",
    "small": "small models, with fewer seeds, arms and steps than in the study files; the verdicts "
    "say what is likely",
    "medium": "small models, with all seeds, arms and steps of the study files",
}
"""How much of a paper is run, smallest first. "small" is what a reproduction does where it is not
told."""
SMALL = "small"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Paper:
    """A paper whose studies can be run, and whose claims can be checked."""

    name: str
    """As the command line takes it."""
    title: str
    short: str
    """The beginning of the title, by which pages, docs and messages cite it."""
    about: str
    """What is studied, in a line."""
    recipes: Mapping[str, str]
    """Its studies: name to title."""
    durations: Mapping[str, str]
    """By size, how long the small twins take on two idle cores: of each of `SIZES`."""
    function: str
    """`module:function` that reproduces it."""
    rules: int = 0
    """Grows with every change of a rule of this paper alone; see `claims.RULES`."""

    def load(self) -> Callable[..., Any]:
        """The function that reproduces it."""
        module, _, name = self.function.partition(":")
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
        return function

    def load_judge(self) -> Callable[..., Any]:
        """The function `judge` beside it, which holds its claims against studies that were run."""
        judge: Callable[..., Any] = importlib.import_module(self.function.partition(":")[0]).judge
        return judge


@cache
def papers() -> dict[str, Paper]:
    """All papers by name."""
    root = Path(__file__).resolve().parents[1]
    rooms = sorted(path.parent.name for path in root.glob("*/paper.py"))
    declared = [importlib.import_module(f"holdfast.papers.{room}.paper").PAPER for room in rooms]
    return {paper.name: paper for paper in sorted(declared, key=lambda paper: paper.name)}
