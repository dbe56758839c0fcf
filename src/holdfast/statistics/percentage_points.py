"""Points: hundredths of a share (`records.metrics` knows what is one). What an allowance such as
"1pt" is in its unit."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

from holdfast.errors import ConfigError
from holdfast.records.metrics import is_share
from holdfast.records.study import Objective


def parse_points(value: Any) -> tuple[float, bool] | str:
    """(number, whether in hundredths) of an allowed loss, or a sentence that says what is wrong
    with it."""
    expected = (
        "expected the largest allowed loss on keep, 0 or more, such as 0.02 or '1pt', got "
        f"{value!r}."
    )
    number, hundredths = value, False
    if isinstance(value, str):
        match = re.fullmatch(
            r"\s*([+-]?[\d.]+(?:[eE][-+]?\d+)?)\s*(pt|pts|point|points)?\s*", value
        )
        if match is None:
            return expected
        hundredths = match[2] is not None
        try:
            number = float(match[1])
        except ValueError:
            return expected
    if (
        isinstance(number, bool)
        or not isinstance(number, (int, float))
        or not math.isfinite(number)
    ):
        return expected
    if number < 0:
        return f"{expected} Write a loss without a minus sign."
    return (number / 100 if hundredths else float(number)), hundredths


def allowance(points: float | str, objective: Objective, values: Iterable[float] = ()) -> float:
    """`points` in the unit of what is kept.

    Args:
        points: a number in the metric's unit, or hundredths of a share such as "1pt".
        objective: what is kept.
        values: known figures of it; a metric with figures beyond [0, 1] is not a share.

    Raises:
        ConfigError: not a loss of 0 or more; "pt" of a metric that is no share; a number of 1 or
            more of one that is, which would allow any loss.
    """
    read = parse_points(points)
    if isinstance(read, str):
        raise ConfigError(f"select.points: {read}")
    number, hundredths = read
    share = is_share(objective.unit, values=values, unknown=True)
    if hundredths and not share:
        unit = objective.unit
        raise ConfigError(
            f"select.points: {points!r} is in percentage points, but {objective.label} is in "
            f"{unit}. Give a number in that unit."
        )
    if share and number >= 1:
        raise ConfigError(
            f"select.points: {points!r} is read in the metric's unit. {objective.label} "
            f"({objective.unit}) is a share from 0 to 1, so no change could exceed this limit. For "
            f"{number:g} percentage points write '{number:g}pt'."
        )
    return number
