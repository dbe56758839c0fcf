"""Learning rates by parameter: the run's rate, times a factor for the parameters whose names a
pattern matches.

    learning_rate_multipliers: {"embed_tokens": 0.1, "lm_head|\\.norm": 2.0}

Patterns are regular expressions that are searched in parameters' names. A parameter that none
matches has the factor 1; with 0 it stays as it is. The schedule multiplies all rates alike.
`training.mup` makes such factors from a width.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from holdfast.checkpoints.sources import listing
from holdfast.errors import ConfigError
from holdfast.retention.services import trainable_parameters

KEY = "learning_rate_multipliers"


def factors_of(names: Iterable[str], multipliers: Mapping[str, float]) -> dict[str, float]:
    """The factor of every parameter.

    Args:
        names: of the trained parameters.
        multipliers: by pattern.

    Raises:
        ConfigError: a pattern matches nothing, or two of them one parameter; all of it.
    """
    names = list(names)
    patterns: dict[str, list[str]] = {}
    for name in names:
        patterns[name] = [pattern for pattern in multipliers if re.search(pattern, name)]
    used = set(itertools.chain(*patterns.values()))
    problems = []
    for pattern in multipliers:
        if pattern not in used:
            problems.append(
                f"{KEY}: '{pattern}' matches no trained parameter. Expected a part of a name such "
                f"as {listing(names)}."
            )
    several = {name: matching for name, matching in patterns.items() if len(matching) > 1}
    if several:
        name, matching = next(iter(several.items()))
        problems.append(
            f"{KEY}: expected one pattern for each parameter, got '{matching[0]}' and "
            f"'{matching[1]}' for {name} ({len(several)} parameters in all). Make one of them "
            f"more specific, such as '{matching[0]}$'."
        )
    if problems:
        raise ConfigError(problems)
    factors = {}
    for name, matching in patterns.items():
        factors[name] = multipliers[matching[0]] if matching else 1.0
    return factors


def scale_rates(optimizer: Any, model: nn.Module, multipliers: Mapping[str, float]) -> None:
    """Gives an optimiser's parameters their own rates: its groups are divided by factor. The first
    group, whose rate is the one that is logged, has the factor 1 where any has.

    Args:
        optimizer: a `torch.optim.Optimizer` whose groups have the run's rate; nothing schedules it
            yet.
        model: its parameters' names.
        multipliers: by pattern, see `factors_of`.

    Raises:
        ConfigError: see `factors_of`; or an optimiser that does not hold all trained parameters
            itself.
    """
    trained = trainable_parameters(model)
    factors = {}
    for name, factor in factors_of(trained, multipliers).items():
        factors[id(trained[name])] = factor
    in_groups: set[int] = set()
    for group in optimizer.param_groups:
        in_groups.update(map(id, group["params"]))
    if in_groups != factors.keys():
        raise ConfigError(
            f"{KEY}: the groups of the optimiser {type(optimizer).__name__} do not hold the trained "
            "parameters, so these cannot get their own learning rates. Use optim: adamw_torch."
        )
    divided: list[tuple[float, dict[str, Any]]] = []
    for group in optimizer.param_groups:
        for factor in sorted({factors[id(p)] for p in group["params"]}):
            parameters = [p for p in group["params"] if factors[id(p)] == factor]
            divided.append((factor, {**group, "params": parameters, "lr": group["lr"] * factor}))
    # a stable sort: groups of one factor keep their order, which a checkpoint of the optimiser
    # relies on
    divided.sort(key=lambda item: item[0] != 1.0)
    optimizer.param_groups[:] = [group for _, group in divided]
