"""Studies whose runs are stood in for: a function of settings and seed in place of a fine-tuning."""

from __future__ import annotations

import dataclasses
import io
from typing import Any

from rich.console import Console

from holdfast.records.comparison import Comparison
from holdfast.records.study import SeedRun
from holdfast.studies.engine.storage import Storage
from holdfast.studies.engine.worker import work
from holdfast.studies.sweep.record import study_record
from holdfast.studies.sweep.session import SweepStudy


def comparison(
    suite: str, name: str, difference: float, *, metric="nats_per_token", primary=True, higher=False
) -> Comparison:
    return Comparison(
        suite=suite,
        name=name,
        metric=metric,
        unit="nats/token",
        higher_is_better=higher,
        n=10,
        before=5.0,
        after=5.0 + difference,
        difference=difference,
        interval=(difference - 0.1, difference + 0.1),
        p_value=0.01,
        test="paired bootstrap",
        primary=primary,
    )


def a_run(seed: int, target: float, source: float) -> SeedRun:
    """`target` and `source` are gains."""
    pairs = [comparison("keep", "prose", -source), comparison("learn", "code", -target)]
    return SeedRun(
        seed=seed, folder=f"runs/x/seed-{seed}", host="h", seconds=1.0, training_seconds=0.5, comparisons=pairs
    )


@dataclasses.dataclass
class Ran:
    """A study whose runs are stood in for, and what it did."""

    storage: Storage
    study: Any
    config: Any
    calls: list[tuple[str, int]]
    """(retention, seed) of every run."""
    text: str = ""

    @property
    def record(self):
        return study_record(self.storage.state(self.study), self.config)

    @property
    def states(self) -> list[str]:
        return [t.state for t in self.record.trials]

    def work(self) -> int:
        out = io.StringIO()
        try:
            return work(self.storage, self.study, SweepStudy(self.config), console=Console(file=out, width=200))
        finally:
            self.text = out.getvalue()


def weight_of(settings) -> float:
    return next((p.get("weight", 0) + p.get("coefficient", 0) for m in settings["retention"] for p in m.values()), 0.0)
