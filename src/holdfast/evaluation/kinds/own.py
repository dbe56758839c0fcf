"""An entry of a user's own class (`holdfast.evaluation.entries.OwnMeasure`).

Figures are means over its samples, with the intervals and the paired comparisons that all entries
have. Samples are joined on `doc` in comparisons; without one they are joined by their number.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.errors import DataError
from holdfast.evaluation.entries import Entry, OwnMeasure
from holdfast.evaluation.eval_mode import evaluation_mode
from holdfast.evaluation.measures import Outcome, Subject


@dataclass(frozen=True, kw_only=True)
class OwnEntry(Entry):
    """An entry of the user's own class."""

    kind = "own"
    written = False
    batched = True
    served = False

    own: OwnMeasure
    """Instance of the user's class: a dataclass of settings."""
    file: str
    """The Python file of the class."""

    def local_files(self) -> list[Path]:
        """The Python file, and what the settings name by a `Path`."""
        files = [Path(self.file)]
        for value in vars(self.own).values():
            if isinstance(value, Path) and value.exists():
                files.append(value)
        return files

    def deciding(self) -> dict[str, Any]:
        """The class's name and its settings."""
        return {"own": type(self.own).__name__, "settings": self.own, "kind": self.kind}

    def requests(self, tokenizer: Any, processor: Any = None) -> None:
        """None: what a model is asked is the class's affair, which is only checked."""
        self.own.check(tokenizer)

    def count(self, requests: None) -> int:
        """Only measuring tells."""
        return 0

    def scores(self, requests: None, on: Subject) -> Outcome:
        """See `Entry.scores`.

        Raises:
            DataError: no sample came, or one without a number for a declared metric.
        """
        from holdfast.statistics.estimates import Ratio

        def samples() -> list[dict[str, Any]]:
            return [dict(row) for row in self.own.measure(on.model, on.tokenizer)]

        with evaluation_mode(on.model):  # what the class does is its own: one process asks it
            rows = on.processes.broadcast(samples)
        if not rows:
            raise DataError("expected at least one sample, got none.")
        figures = {}
        for name, higher_is_better in self.own.metrics.items():
            figures[name] = Ratio(numerator=name, unit=name, higher_is_better=higher_is_better)
        for number, row in enumerate(rows):
            row.setdefault("doc", str(number))
            for name in figures:
                if not isinstance(row.get(name), (int, float)):
                    raise DataError(
                        f"sample {number}: expected a finite number for '{name}', got "
                        f"{row.get(name)!r}."
                    )
        return Outcome(rows=rows, figures=figures)
