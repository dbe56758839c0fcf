"""How figures read: decimals, percent and points of shares, units, direction. The only code that
writes an interval.

Number of decimals: the interval decides. With half-width h, `1 - floor(log10(h))` decimals show two
significant digits of it (never fewer than 3 nor more than 6), so that a figure and its interval
carry the same number and a reader can subtract. A share of which people speak in percent has two
decimals fewer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.records.figure import Interval
from holdfast.records.metrics import is_share

MINUS = "\u2212"
INTERVAL = "[{}, {}]"
"""What an interval looks like, everywhere."""


class HasInterval(Protocol):
    """A `Figure`, or the `Metric` of an evaluation."""

    @property
    def value(self) -> float: ...

    @property
    def interval(self) -> Interval | None: ...


def number(value: float | None, decimals: int = 4, *, sign: bool = False) -> str:
    """`value` with `decimals` decimals and a with_minus_signs minus; `sign` shows a plus too. None
    and NaN read "n/a", infinities "∞"."""
    if value is None or math.isnan(value):
        return "n/a"
    if math.isinf(value):
        return f"{MINUS if value < 0 else '+' if sign else ''}∞"
    text = f"{abs(value):.{decimals}f}"
    zero = not float(text)
    return f"{MINUS if value < 0 and not zero else '+' if sign and not zero else ''}{text}"


def decimals_for(interval: tuple[float, float] | None) -> int:
    """Decimals that show two significant digits of the interval's half-width; between 3 and 6, and
    4 where there is no interval."""
    if interval is None or not all(math.isfinite(v) for v in interval):
        return 4
    half = abs(interval[1] - interval[0]) / 2
    return 4 if half == 0 else max(3, min(6, 1 - math.floor(math.log10(half))))


def interval_text(
    interval: tuple[float, float] | None, decimals: int, *, sign: bool = False
) -> str:
    """`[low, high]`, or "no interval"."""
    if interval is None or any(map(math.isnan, interval)):
        return "no interval"
    return between(*(number(end, decimals, sign=sign) for end in interval))


def between(low: str, high: str) -> str:
    """An interval by the texts of its ends."""
    return INTERVAL.format(low, high)


def points(value: float, digits: int = 2) -> str:
    """A difference of shares in points, signed."""
    return f"{number(100 * value, digits, sign=True)} pt"


def point_digits(interval: tuple[float, float] | None) -> int:
    """Decimals for points and percent: two fewer than for the share itself."""
    return max(1, decimals_for(interval) - 2)


def in_percent(interval: tuple[float, float] | None) -> tuple[float, float] | None:
    """The interval of a share in hundredths."""
    return None if interval is None else (100 * interval[0], 100 * interval[1])


def with_interval(
    value: float,
    interval: tuple[float, float] | None,
    *,
    share: bool = False,
    sign: bool = False,
    unit: str = "",
) -> tuple[str, str]:
    """(figure, interval) as text with the decimals that the interval allows.

    Args:
        value: the figure.
        interval: around it, None where there is none.
        share: shown in percent, or in points where it is signed.
        sign: for differences and gains.
        unit: put after the figure of what is no share.
    """
    if share:
        digits = point_digits(interval)
        text = points(value, digits) if sign else f"{number(100 * value, digits)} %"
        return text, interval_text(in_percent(interval), digits, sign=sign)
    digits = decimals_for(interval)
    return f"{number(value, digits, sign=sign)} {unit}".rstrip(), interval_text(
        interval, digits, sign=sign
    )


@dataclass(frozen=True, kw_only=True)
class Measure:
    """What a figure is of, and how it reads."""

    name: str = ""
    unit: str = ""
    share: bool = False
    """A number between 0 and 1, shown in percent, its differences in points."""
    bounded: bool = True
    """Whether the interval of a share ends at 0 and 1; that of a ratio, such as a part of what was
    lost, does not."""
    higher_is_better: bool = True

    @classmethod
    def of(cls, about: Any, *values: float) -> Measure:
        """Of a record's entry or comparison: `name`, `metric`, `unit`, `higher_is_better`.

        Args:
            about: the entry.
            values: known figures of it; any beyond [0, 1] means that it is no share.
        """
        share = is_share(about.unit, about.metric, values)
        return cls(
            name=about.name, unit=about.unit, share=share, higher_is_better=about.higher_is_better
        )

    @property
    def axis(self) -> str:
        """Title of an axis: name, unit and direction."""
        unit = "%" if self.share else self.unit
        direction = "" if self.higher_is_better else ", lower is better"
        return f"{self.name} ({unit}{direction})"

    @property
    def factor(self) -> float:
        """What charts multiply by: 100 for shares, which they draw in percent."""
        return 100.0 if self.share else 1.0

    def ends(self, figure: HasInterval, *, sign: bool = False) -> Interval | None:
        """The interval as it is shown: that of a share ends at 0 and 1, that of a difference or a
        ratio nowhere."""
        if figure.interval is None or sign or not (self.share and self.bounded):
            return figure.interval
        return (max(0.0, figure.interval[0]), min(1.0, figure.interval[1]))

    def texts(self, figure: HasInterval, *, sign: bool = False) -> tuple[str, str]:
        """(figure, interval) as text.

        Args:
            figure: with its interval.
            sign: for differences and gains.
        """
        unit = "" if self.share else self.unit
        return with_interval(
            figure.value, self.ends(figure, sign=sign), share=self.share, sign=sign, unit=unit
        )

    def text(self, figure: HasInterval, *, sign: bool = False) -> str:
        """Figure and interval in a sentence."""
        return " ".join(self.texts(figure, sign=sign))
