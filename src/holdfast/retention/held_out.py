"""How much a model has lost, as methods measure it during a run: the rise of a held-out text's cross-entropy, or the
drop of a task's metric over the same questions.

    rise = CE(now) - CE(start)                                            nats per token
    drop = mean score(start) - mean score(now), in points (hundredths)    with the standard error over the pairs
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from holdfast.config.declare import Meta
from holdfast.errors import ConfigError


def points(value: str | None) -> float | None:
    """ "1 point", "0.5 points", "1pt" and "inf" as numbers; None where it is something else, a bare number too: 0.01
    could be meant either way."""
    if value is None:
        return None
    text = value.strip().lower()
    if text == "inf":
        return math.inf
    unit = next((u for u in ("points", "point", "pts", "pt") if text.endswith(u)), None)
    try:
        return None if unit is None else float(text.removesuffix(unit))
    except ValueError:
        return None


def _drop(value: Any) -> str:
    """A value of `metric_drop`, checked."""
    if not isinstance(value, str) or not (points(value) or 0) > 0:
        raise ValueError
    return value


DROP = Meta(parse=_drop, expected="points above 0 with their unit, such as '1 point' or '0.5 points'")
"""Of a setting `metric_drop`."""


def paired_drop(before: Sequence[float], now: Sequence[float], *, task: str) -> tuple[float, float]:
    """Mean and standard error of a metric's drop, in points, over the pairs of a question's scores; no standard error
    is below one question's share, since pairs without a difference do not show that there is none.

    Raises:
        ConfigError: another number of scores than before.
    """
    if len(now) != len(before):
        raise ConfigError(f"task {task}: expected {len(before)} scores as from the start model, got {len(now)}.")
    drops = [100 * (b - n) for b, n in zip(before, now, strict=True)]
    mean = math.fsum(drops) / len(drops)
    variance = math.fsum((d - mean) ** 2 for d in drops) / max(len(drops) - 1, 1)
    return mean, max(math.sqrt(variance / len(drops)), 100 / len(drops))


def check_questions(key: str, limit: float, count: int, *, task: str) -> None:
    """A drop smaller than one question cannot be told from none.

    Args:
        key: the setting, for example "budget.metric_drop".
        limit: in points.
        count: questions that the task asks.

    Raises:
        ConfigError: the limit is smaller than one of the questions.
    """
    if limit < (smallest := 100 / count):
        raise ConfigError(
            f"{key}: expected at least {smallest:.3g} points, one of the {count} questions of {task}, got {limit:g}. "
            f"Ask more questions (its limit), or allow more."
        )
