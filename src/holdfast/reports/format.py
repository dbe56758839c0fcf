"""Counts, times, settings and words as text, for every page, terminal and Markdown alike. Figures
with an interval are formatted in `records.measure`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.records.comparison import VERDICTS
from holdfast.records.evaluation import Metric
from holdfast.records.measure import MINUS, Measure, number
from holdfast.records.metrics import is_share

UNITS_OF_TIME = ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))
"""(seconds, name) of a unit, and of the one that stands beside it."""
_ASCII = str.maketrans(
    {
        MINUS: "-",
        "∞": "inf",
        "→": "->",
        "·": "-",
        "…": "...",
        "–": "-",
        "—": "-",
        "×": "x",
        "↓": "v",
        "↑": "^",
    }
)


def percent(value: float | None, *, sign: bool = True) -> str:
    """A percentage: two decimals below 1 %, one below 100 %, else none; "n/a" where it does not
    exist."""
    if value is None or not math.isfinite(value):
        return "n/a"
    decimals = 2 if abs(value) < 1 else 1 if abs(value) < 100 else 0
    return f"{number(value, decimals, sign=sign)} %"


def significant(value: Any) -> str:
    """A setting or a logged figure in as few characters as say it: `1e-05`, `0.05`, `1,234`; other
    types as text."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        if not math.isfinite(value):
            return number(value)
        return f"{value:.4g}".replace("e-0", "e-").replace("e+0", "e")
    return str(value)


def moved(relative: float) -> str:
    """A relative distance in percent with three significant digits: moves of a millionth are as
    common as moves of a tenth."""
    return (
        f"{significant(float(f'{100 * relative:.3g}'))} %"
        if math.isfinite(relative)
        else number(relative)
    )


def signs_kept(share: float) -> str:
    """A share of parameters in percent, two decimals."""
    return f"{number(100 * share, 2)} %" if math.isfinite(share) else number(share)


def count(value: float | None) -> str:
    """A count for people: `950`, `12,345`, `1.23 M`, `7.62 B`."""
    if value is None or not math.isfinite(value):
        return "n/a"
    for size, letter in {1e12: "T", 1e9: "B", 1e6: "M"}.items():
        if abs(value) >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:,.0f}"


def duration(seconds: float | None) -> str:
    """`0.8 s`, `45 s`, `12 min 3 s`, `3 h 20 min`, `2 d 4 h`."""
    if seconds is None or not math.isfinite(seconds):
        return "n/a"
    if seconds < 10:
        return f"{seconds:.1f} s"
    total = round(seconds)
    for size, name, small, small_name in UNITS_OF_TIME:
        if total >= size:
            rest = (total % size) // small
            return f"{total // size} {name}" + (f" {rest} {small_name}" if rest else "")
    return f"{total} s"


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
    return text.translate(_ASCII).encode("ascii", "replace").decode()


# ---------------------------------------------------------------------------------- shares, metrics


def metric_texts(metric: Metric) -> tuple[str, str]:
    """(figure, interval) of a metric: shares in percent, the rest as it is, without its unit."""
    return Measure(share=is_share(metric.unit, values=[metric.value])).texts(metric)


def direction(higher_is_better: bool) -> str:
    return "higher is better" if higher_is_better else "lower is better"


# ----------------------------------------------------------------------------------- text, settings


def shorten(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"


def ellipsize_middle(text: str, length: int) -> str:
    """At most `length` characters, the middle left out: names of one family often differ at their
    end only."""
    if len(text) <= length:
        return text
    tail = (length - 1) * 2 // 5
    if not tail:
        return text[:length]
    head = text[: length - 1 - tail].rstrip()
    return f"{head}…{text[-tail:].lstrip()}"


def last_part(name: Any) -> str:
    """A name, of a folder its last part: a page is shown to others, and whose folder it was says
    nothing."""
    text = str(name or "")
    return text.rstrip("/").rsplit("/", 1)[-1] if text.startswith(("/", "~", ".")) else text


def tally(verdicts: Sequence[str], words: Sequence[str] = VERDICTS) -> str:
    """`2 lost, 1 not shown`."""
    return ", ".join(f"{verdicts.count(word)} {word}" for word in words if word in verdicts)


def join_and(parts: Sequence[str]) -> str:
    """`a, b and c`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def setting(value: Any) -> str:
    """One value of a configuration as text."""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(setting, value)) or "none"
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
    return ", ".join(f"{name}: {text}" for name, text in hardware_rows(hardware) if text != "none")


def joined(*parts: Any) -> str:
    return " · ".join(map(str, filter(None, parts)))


def hardware_rows(hardware: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The same one by one."""
    rows = []
    for key, value in hardware.items():
        rows.append((key.replace("_", " "), setting(value) or "none"))
    return rows
