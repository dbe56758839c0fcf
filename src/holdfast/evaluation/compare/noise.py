"""The noise of the instrument beside a comparison: what `holdfast evaluate --repeat` left
(`evaluation.repeats`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.records.comparison import Comparison
from holdfast.records.evaluation import EvaluationFolder
from holdfast.support.files import read_as, record_from

FILE = "repeats.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Repeats:
    """What was measured of one model more than once."""

    times: int
    figures: dict[str, dict[str, list[float]]]
    """By suite/name and metric, the first one first."""
    keys: dict[str, str]
    """By suite/name the key of the evaluation that was repeated: another one has another."""

    def spread(self, entry: str, metric: str) -> float | None:
        """Largest minus smallest figure; None where it was not repeated."""
        values = self.figures.get(entry, {}).get(metric)
        return max(values) - min(values) if values else None

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Repeats:
        return record_from(Repeats, value)


def remarks_on_repeats(
    comparisons: Sequence[Comparison], folders: Sequence[EvaluationFolder]
) -> list[str]:
    """Differences that are no larger than what the figure of one of the models moved by itself, a
    sentence each.

    Args:
        comparisons: of the two models.
        folders: theirs.
    """
    repeats = []
    for folder in folders:
        if (folder.path / FILE).is_file():
            repeats.append((folder, read_as(folder.path / FILE, Repeats)))
    remarks = []
    for c in comparisons:
        known = []
        for folder, repeated in repeats:
            evaluation = folder.find(c.suite, c.name)
            entry = f"{c.suite}/{c.name}"
            if evaluation is not None and repeated.keys.get(entry) == evaluation.key:
                spread = repeated.spread(entry, c.metric)
                known += [] if spread is None else [spread]
        if known and 0.0 < abs(c.difference) <= max(known):
            remarks.append(
                f"{c.suite}/{c.name}: the difference in {c.metric} ({abs(c.difference):.3g}) is "
                "no larger than the difference between repeated measurements of one model "
                f"({max(known):.3g})."
            )
    return remarks
