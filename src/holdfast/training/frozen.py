"""Training some of a model's parameters: those whose names a pattern matches; the others stay as
they are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from torch import nn

from holdfast.checkpoints.sources import listing
from holdfast.errors import ConfigError, Problem

KEY = "train_only"


def matched(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """The names that a pattern is found in.

    Raises:
        ConfigError: a pattern matches none; all of them.
    """
    names = list(names)
    matching: set[str] = set()
    problems = []
    for pattern in patterns:
        of_pattern = [name for name in names if re.search(pattern, name)]
        matching.update(of_pattern)
        if not of_pattern:
            text = (
                f"'{pattern}' matches no parameter. Expected a part of a name such as "
                f"{listing(names)}."
            )
            problems.append(Problem(KEY, text))
    if problems:
        raise ConfigError(problems)
    return [name for name in names if name in matching]


def train_only(model: nn.Module, patterns: Sequence[str]) -> None:
    """Freezes what no pattern matches; nothing without patterns.

    Raises:
        ConfigError: see `matched`.
    """
    if not patterns:
        return
    parameters = dict(model.named_parameters())
    trained = {*matched(parameters, patterns)}
    for name, parameter in parameters.items():
        parameter.requires_grad_(name in trained)
