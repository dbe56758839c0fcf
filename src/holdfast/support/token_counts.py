"""Numbers of tokens as people write them."""

from __future__ import annotations

import math
import re
from typing import Any

_SUFFIX = {"": 1, "k": 1_000, "m": 1_000_000, "b": 1_000_000_000, "t": 1_000_000_000_000}


def shown_tokens(count: int) -> str:
    """A number of tokens as people write it: 100M, 1B, 1.5M, 700."""
    for suffix, unit in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= unit and count * 100 % unit == 0:
            return f"{count / unit:g}{suffix}"
    return str(count)


def read_tokens(value: Any) -> int:
    """A number of tokens: 100M, 1B, 500k, 1.5e6, 700.

    Raises:
        ValueError: no such number, or not a positive whole one.
    """
    match = re.fullmatch(
        r"\s*([\d_.]+(?:[eE]\+?\d+)?)\s*([kKmMbBtT]?)(?:\s*tokens)?\s*", str(value)
    )
    if isinstance(value, bool) or match is None:
        raise ValueError(f"expected a number of tokens such as 100M or 250_000, got {value!r}")
    number = float(match[1].replace("_", "")) * _SUFFIX[match[2].lower()]
    if not math.isfinite(number) or number < 1 or abs(number - round(number)) > 1e-6:
        raise ValueError(f"expected a whole number of tokens of at least 1, got {value!r}")
    return round(number)
