"""What noise on a tensor is scaled by: the setting `std`.

"Overtrained Language Models" (equation 1) takes each tensor's standard deviation when the model was
initialised. The configuration of a public checkpoint states one number for all tensors
(`initializer_range`), which need not be what its authors drew: OLMo-1B's is 0.02, and its residual
projections began at 0.002 to 0.015. Where an initialisation is known otherwise, `std` names it:

    init                   as transformers initialises a model of this configuration (`fresh_init`)
    tensor                 each tensor as it is
    MODEL                  the model before it was trained, such as a revision of step 0
    FILE.yaml, {...: 0.1}  a table: standard deviations by pattern, one pattern for each tensor
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.config.values import Refused
from holdfast.config.yaml_file import read_yaml
from holdfast.errors import ConfigError, Problem

INIT, TENSOR = "init", "tensor"
EXPECTED = (
    "init, tensor, the model before training, or a standard deviation for each pattern of tensor "
    "names"
)


def read_std(value: Any) -> str | dict[str, float]:
    """The setting `std`: a word, a model's name, or a table, also of a YAML file that has one as
    `std:`.

    Raises:
        ValueError: none of these.
        Refused: no such file, or a number that is none.
    """
    if isinstance(value, (str, Path)) and Path(value).suffix in (".yaml", ".yml"):
        needs = "'std:' with a standard deviation for each pattern of tensor names"
        try:
            value = read_yaml(value, option="std", needs=needs).values.get("std")
        except ConfigError as error:
            raise Refused(*(Problem((), f"{text}") for text in error.problems)) from None
    if isinstance(value, str) and value:
        return value
    if not isinstance(value, Mapping) or not value:
        raise ValueError
    table = {}
    for pattern, std in value.items():
        is_number = isinstance(std, (int, float)) and not isinstance(std, bool)
        if not is_number or not 0 <= std < math.inf:
            text = f"expected a standard deviation of 0 or more for {pattern}, got {std!r}."
            raise Refused(Problem((), text))
        table[str(pattern)] = float(std)
    return table


def std_problems(std: str | Mapping[str, float], source: Any) -> list[str]:
    """Why noise on a model cannot be scaled so.

    Args:
        std: as `read_std` gives it.
        source: the model's weights, open.
    """
    from holdfast.checkpoints.sources import listing

    if isinstance(std, str):
        return [] if std in (INIT, TENSOR) else _unlike(std, source)
    names = list(source.entries)
    problems = []
    for pattern in std:
        if not any(re.search(pattern, name) for name in names):
            text = f"'{pattern}' matches no tensor of {source.label}, which has {listing(names)}."
            problems.append(f"std: {text}")
    for name in names:
        matching = [pattern for pattern in std if re.search(pattern, name)]
        if len(matching) != 1:
            patterns = " and ".join(matching) or "none"
            text = f"expected exactly one pattern that matches {name}, got {patterns}."
            return [*problems, f"std: {text} A standard deviation of 0 leaves a tensor as it is."]
    return problems


def _unlike(initial: str, source: Any) -> list[str]:
    """Tensors that the model before its training does not have."""
    from holdfast.checkpoints.locate import open_source

    shapes = {name: entry.shape for name, entry in open_source(initial).entries.items()}
    differ = sorted(n for n, entry in source.entries.items() if shapes.get(n) != entry.shape)
    if not differ:
        return []
    return [
        f"std: expected {source.label} as it was before training, got {initial}, in which "
        f"{len(differ)} tensors are missing or have other shapes ({', '.join(differ[:3])}). Name "
        "the model before training, such as a revision of step 0."
    ]


def noise_stds(std: str | Mapping[str, float], source: Any) -> dict[str, float]:
    """The standard deviation that noise on each tensor is scaled by, by its name in the checkpoint;
    not for "init", which `training.fresh_init` finds.

    Args:
        std: as `read_std` gives it.
        source: the model's weights, open.

    Raises:
        ConfigError: see `std_problems`.
        ModelError: weights that are not finite.
    """
    from holdfast.checkpoints.locate import open_source
    from holdfast.checkpoints.perturb import own_stds

    if problems := std_problems(std, source):
        raise ConfigError(problems)
    if isinstance(std, str):
        return own_stds(source if std == TENSOR else open_source(std))
    stds = {}
    for name in source.entries:
        stds[name] = next(value for pattern, value in std.items() if re.search(pattern, name))
    return stds
