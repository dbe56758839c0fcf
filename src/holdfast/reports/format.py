"""Numbers, intervals and settings as text, for every page, terminal and Markdown alike: formatted once, here.

Number of decimals: the interval decides. With half-width h, `1 - floor(log10(h))` decimals show two significant digits
of it (never fewer than 3 nor more than 6), so that a figure and its interval carry the same number and a reader can
subtract. A share of which people speak in percent has two decimals fewer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.records.comparison import VERDICTS
from holdfast.records.evaluation import Metric
from holdfast.records.metrics import is_share

MINUS = "\u2212"


def number(value: float | None, decimals: int = 4, *, sign: bool = False) -> str:
    """`value` with `decimals` decimals and a typographic minus; `sign` shows a plus too. None and NaN read "n/a",
    infinities "∞"."""
    if value is None or math.isnan(value):
        return "n/a"
    if math.isinf(value):
        return f"{MINUS if value < 0 else '+' if sign else ''}∞"
    text = f"{abs(value):.{decimals}f}"
    zero = not float(text)
    return f"{MINUS if value < 0 and not zero else '+' if sign and not zero else ''}{text}"


def percent(value: float | None, *, sign: bool = True) -> str:
    """A percentage: two decimals below 1 %, one below 100 %, else none; "n/a" where it does not exist."""
    if value is None or not math.isfinite(value):
        return "n/a"
    decimals = 2 if abs(value) < 1 else 1 if abs(value) < 100 else 0
    return f"{number(value, decimals, sign=sign)} %"


def significant(value: Any) -> str:
    """A setting or a logged figure in as few characters as say it: `1e-05`, `0.05`, `1,234`; other types as text."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        if not math.isfinite(value):
            return number(value)
        return f"{value:.4g}".replace("e-0", "e-").replace("e+0", "e")
    return str(value)


def count(value: float | None) -> str:
    """A count for people: `950`, `12,345`, `1.23 M`, `7.62 B`."""
    if value is None or not math.isfinite(value):
        return "n/a"
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if abs(value) >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:,.0f}"


def duration(seconds: float | None) -> str:
    """`0.8 s`, `45 s`, `12 min 3 s`, `3 h 20 min`, `2 d 4 h`."""
    if seconds is None or not math.isfinite(seconds):
        return "n/a"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, name, small, small_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = (whole % size) // small
            return f"{whole // size} {name}" + (f" {rest} {small_name}" if rest else "")
    return f"{whole} s"


def flops_text(value: float) -> str:
    """ "4.92e22 FLOPs"; "none" for 0."""
    return f"{value:.3g}".replace("e+0", "e").replace("e+", "e") + " FLOPs" if value else "none"


def p_value(value: float) -> str:
    """A p value to three decimals, "<0.001" below that."""
    if math.isnan(value):
        return "n/a"
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def plural(n: int, word: str) -> str:
    """`1 measure`, `2 measures`, `0 losses`."""
    return f"{n:,} {word}{'' if n == 1 else 'es' if word.endswith('s') else 's'}"


def ascii_only(text: str) -> str:
    """The same text for terminals that cannot show more than ASCII."""
    for fancy, plain in (
        (MINUS, "-"),
        ("∞", "inf"),
        ("→", "->"),
        ("·", "-"),
        ("…", "..."),
        ("–", "-"),
        ("—", "-"),
        ("×", "x"),
        ("↓", "v"),
        ("↑", "^"),
    ):
        text = text.replace(fancy, plain)
    return text.encode("ascii", "replace").decode()


def decimals_for(interval: tuple[float, float] | None) -> int:
    """Decimals that show two significant digits of the interval's half-width; between 3 and 6, and 4 where there is no
    interval."""
    if interval is None or not all(math.isfinite(v) for v in interval):
        return 4
    half = abs(interval[1] - interval[0]) / 2
    return 4 if half == 0 else max(3, min(6, 1 - math.floor(math.log10(half))))


def interval_text(interval: tuple[float, float] | None, decimals: int, *, sign: bool = False) -> str:
    """`[low, high]`, or "no interval"."""
    if interval is None or any(math.isnan(v) for v in interval):
        return "no interval"
    return f"[{number(interval[0], decimals, sign=sign)}, {number(interval[1], decimals, sign=sign)}]"


# ----------------------------------------------------------------------------------------------------- shares, metrics


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
    value: float, interval: tuple[float, float] | None, *, share: bool = False, sign: bool = False, unit: str = ""
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
    return f"{number(value, digits, sign=sign)} {unit}".rstrip(), interval_text(interval, digits, sign=sign)


def metric_texts(metric: Metric) -> tuple[str, str]:
    """(figure, interval) of a metric: shares in percent, the rest as it is, without its unit."""
    return with_interval(metric.value, metric.interval, share=is_share(metric.unit, values=[metric.value]))


def direction(higher_is_better: bool) -> str:
    return "higher is better" if higher_is_better else "lower is better"


# ------------------------------------------------------------------------------------------------------ text, settings


def shorten(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"


def squeeze(text: str, length: int) -> str:
    """At most `length` characters, the middle left out: names of one family often differ at their end only."""
    if len(text) <= length:
        return text
    tail = (length - 1) * 2 // 5
    return f"{text[: length - 1 - tail].rstrip()}…{text[-tail:].lstrip()}" if tail else text[:length]


def last_part(name: Any) -> str:
    """A name, of a folder its last part: a page is shown to others, and whose folder it was says nothing."""
    text = str(name or "")
    return text.rstrip("/").rsplit("/", 1)[-1] if text.startswith(("/", "~", ".")) else text


def tally(verdicts: Sequence[str], words: Sequence[str] = VERDICTS) -> str:
    """`2 lost, 1 not shown`."""
    return ", ".join(f"{verdicts.count(w)} {w}" for w in words if w in verdicts)


def listed(parts: Sequence[str]) -> str:
    """`a, b and c`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def setting(value: Any) -> str:
    """One value of a configuration as text."""
    if isinstance(value, (list, tuple)):
        return ", ".join(setting(v) for v in value) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{k}: {setting(v)}" for k, v in value.items()) or "none"
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return significant(value)


def flatten(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """A nested configuration as (dotted key, text) rows in the order of the file."""
    rows: list[tuple[str, str]] = []
    for key, item in value.items():
        if isinstance(item, Mapping) and item:
            rows += flatten(item, f"{prefix}{key}.")
        else:
            rows.append((f"{prefix}{key}", setting(item)))
    return rows


def hardware_text(hardware: Mapping[str, Any]) -> str:
    """The hardware in one line, in the order it was recorded."""
    return ", ".join(f"{k.replace('_', ' ')}: {setting(v)}" for k, v in hardware.items() if v not in (None, "", [], {}))


def joined(*parts: Any) -> str:
    return " · ".join(str(p) for p in parts if p)


def hardware_rows(hardware: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The same one by one."""
    return [(k.replace("_", " "), setting(v) if v not in (None, "", [], {}) else "none") for k, v in hardware.items()]
