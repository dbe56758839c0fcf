"""How much worse a model may be before it matters: the margins of verdicts, by unit, declared here
once.

A change that is shown and is smaller than this is no loss that anybody would act on; a measurement
that leaves room for no more has shown that the model kept what it knew (non-inferiority: Piaggio et
al. 2012, CONSORT extension). One point of accuracy is about what leaderboards print and users of a
model notice; 0.01 nats a token is one percent of perplexity, and 0.004 bits a byte is the same for
text of 3.6 bytes a token; of anything else it is one percent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from holdfast.records.metrics import is_share

EXPECTED = "expected 0, NUMBERpt, NUMBER% or NUMBER UNIT, such as 0.5pt, 2% or '0.02 nats/token'"
_POINTS = ("pt", "pts", "point", "points")
_WORD = re.compile(r"\s*(\d*\.?\d+(?:[eE][-+]?\d+)?)\s*(.*?)\s*")


@dataclass(frozen=True, kw_only=True)
class Margins:
    """Losses that do not matter."""

    share: float = 0.01
    """Of a share in [0, 1], such as an accuracy."""
    units: Mapping[str, float] = field(
        default_factory=lambda: {"nats/token": 0.01, "bits/byte": 0.004}
    )
    """Of these units."""
    relative: float = 0.01
    """Of everything else, in the value before."""

    def of(self, unit: str, metric: str, before: float, after: float) -> float:
        """The margin of a metric in its own unit, 0 or more."""
        if unit in self.units:
            return self.units[unit]
        if is_share(unit, metric, (before, after)):
            return self.share
        return self.relative * abs(before) if math.isfinite(before) else 0.0

    def threshold(
        self, unit: str, metric: str, before: float, after: float
    ) -> tuple[float, str] | None:
        """The margin of a metric with the unit that it is said in: "pt" of shares, else its own."""
        margin = self.of(unit, metric, before, after)
        return (100 * margin, "pt") if is_share(unit, metric, (before, after)) else (margin, unit)


@dataclass(frozen=True)
class StatedMargins:
    """Margins that were stated for an entry, and no others: what none of them fits has none."""

    words: tuple[str, ...]
    """As of `parse_margins`."""

    def threshold(
        self, unit: str, metric: str, before: float, after: float
    ) -> tuple[float, str] | None:
        """The margin that fits a metric closest with its unit: its own unit, "pt" of shares, "%" of
        the value before, 0; None where none fits."""
        stated: dict[str, float] = {}
        for word in self.words:
            number, of_word = _parsed(word)
            stated[of_word] = number
        fitting = [unit, "%", ""]
        if is_share(unit, metric, (before, after)):
            fitting.insert(1, "pt")
        for candidate in fitting:
            if candidate in stated:
                return stated[candidate], candidate
        return None


def margin_words(value: object) -> tuple[str, ...]:
    """Margins as a file or a command line gives them, one or several.

    Raises:
        ValueError: as `parse_margins`.
    """
    values = value if isinstance(value, (list, tuple)) else (value,)
    words = tuple(map(str, values))
    parse_margins(words)
    return words


def _parsed(word: str) -> tuple[float, str]:
    """A number and "pt", "%", a metric's unit, or nothing for 0.

    Raises:
        ValueError: it is none of these.
    """
    match = _WORD.fullmatch(word)
    number = float(match[1]) if match else math.nan
    unit = match[2] if match else ""
    if not math.isfinite(number) or (not unit and number != 0.0):
        raise ValueError(f"{EXPECTED}, got {word!r}")
    return number, "pt" if unit.lower() in _POINTS else unit


def parse_margins(words: Iterable[str]) -> Margins:
    """Margins as `--margin` gives them: `0` for none at all, `2pt` of shares, `1%` of the value
    before for all that is no share, `0.02 nats/token` of that unit; later words win, and what no
    word speaks of keeps its default.

    Raises:
        ValueError: what is none of these.
    """
    margins = Margins()
    for word in words:
        number, unit = _parsed(word)
        if not unit:
            margins = Margins(share=0.0, units={}, relative=0.0)
        elif unit == "pt":
            margins = replace(margins, share=number / 100)
        elif unit == "%":
            margins = replace(margins, relative=number / 100, units={})
        else:
            margins = replace(margins, units={**margins.units, unit: number})
    return margins
