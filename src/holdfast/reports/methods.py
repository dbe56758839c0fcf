"""Retention methods in words, from what a run's record says of them; titles are the methods'
own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.records.study import TrialRecord
from holdfast.reports.format import last_part, setting

DIRECT = "direct fine-tuning"
ABOUT = ("method", "from", "sha256", "title", "strength")
"""Keys of a recorded method that are no parameters of it."""


def method_name(method: Mapping[str, Any]) -> str:
    """The title of a recorded method."""
    from holdfast.retention.registry import title

    return str(method.get("title") or title(str(method.get("method", "unnamed method"))))


def method_text(retention: Sequence[Mapping[str, Any]]) -> str:
    """`label annealing (weight 1) + replay (fraction 0.05)`; "direct fine-tuning" for none. Of the
    settings those that were set to something, and how strongly the method holds on; files by their
    last part."""
    texts = []
    for method in retention:
        defaults = _defaults(method)
        settings = []
        for key, value in method.items():
            if key not in ABOUT and value not in (None, "") and (key, value) not in defaults:
                text = setting(last_part(value) if isinstance(value, str) else value)
                settings.append(f"{key.replace('_', ' ')} {text}")
        texts.append(method_name(method) + (f" ({', '.join(settings)})" if settings else ""))
    return " + ".join(texts) or DIRECT


def _defaults(method: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Settings at their default, but for the strength; none of a method that is not holdfast's, of
    which nothing is known."""
    from holdfast.config.declare import settings_of
    from holdfast.retention.registry import METHODS

    cls = METHODS.get(str(method.get("method")))
    if cls is None or method.get("from"):
        return []
    return [(s.name, s.default) for s in settings_of(cls) if s.name not in cls.strength]


def kind_title(trial: TrialRecord) -> str:
    """A trial's kind for people: "direct fine-tuning", "replay + label annealing"."""
    from holdfast.retention.registry import title

    names = trial.kind.split("+")
    return (
        DIRECT
        if trial.kind == "direct"
        else " + ".join(trial.titles.get(n) or title(n) for n in names)
    )
