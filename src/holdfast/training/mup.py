"""Maximal update parametrisation (muP): initialisation and learning rates with which models of all
widths train alike, so that a learning rate tuned at a small width serves a large one.

For Adam, with m = width / base width (Yang et al. 2022, "Tensor Programs V", table 3; sigma and the
rate are those of the base width):

    parameters            initial standard deviation   learning rate
    hidden matrices       sigma / sqrt(m)              rate / m
    the head              sigma / m                    rate / m
    all others            as the model has them        rate               (embeddings, norms, biases)

A model of the base width is as transformers initialises it, but for its draws. Attention keeps its
scale 1 / sqrt(d): heads of one size at all widths make that a constant (table 3 has 1 / d, which
differs only where d grows). The width of the feed-forward layers has to grow with the model's.

Not for tied embeddings, whose matrix would have to be embedding and head at once.
"""

from __future__ import annotations

import math
import re
from typing import Any

import torch

from holdfast.errors import ConfigError
from holdfast.ops.weights import hidden_matrices

BASE_WIDTH = "mup_base_width"
"""Key of a model's configuration: the width that it was initialised for by muP."""


def mup_factors(model: Any, base_width: int) -> dict[str, float]:
    """What muP multiplies the spread of each parameter's initialisation by, by name; those that it
    leaves are left out.

    Args:
        model: of transformers, as `mup_` takes it; on any device.
        base_width: see `mup_`.
    """
    m = model.config.hidden_size / base_width
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    factors = {}
    for matrix, _ in hidden_matrices(model):
        factors[names[id(matrix)]] = 1 / math.sqrt(m)
    factors[names[id(model.get_output_embeddings().weight)]] = 1 / m
    return factors


@torch.no_grad()
def mup_(model: Any, *, base_width: int, seed: int = 0) -> dict[str, float]:
    """Initialises a causal language model anew, in place, as muP has it for its width.

    Args:
        model: of transformers, freshly made; `config.initializer_range` is sigma.
        base_width: the hidden size that learning rates are tuned at.
        seed: of the draws.

    Returns:
        Factors for `learning_rate_multipliers`, by pattern; empty at the base width.

    Raises:
        ConfigError: tied embeddings, heads whose matrix is not known, or a configuration without a
            width.
    """
    config, head = model.config, model.get_output_embeddings()
    width, sigma = getattr(config, "hidden_size", None), getattr(config, "initializer_range", None)
    if width is None or sigma is None or head is None:
        raise ConfigError(
            "mup: expected a decoder with hidden_size, initializer_range and a head, got "
            f"{config.model_type}."
        )
    if head.weight is model.get_input_embeddings().weight:
        raise ConfigError(
            "mup: expected separate input and output embeddings, got tied ones: one matrix "
            "cannot have two learning rates. Set tie_word_embeddings: false."
        )
    factors, parameters = mup_factors(model, base_width), dict(model.named_parameters())
    generator = torch.Generator().manual_seed(seed)
    drawn = []
    for name, factor in factors.items():
        drawn.append((parameters[name], sigma * factor))
    drawn.append((model.get_input_embeddings().weight, sigma))
    for weight, std in drawn:
        weight.copy_(torch.randn(weight.shape, generator=generator) * std)
    return {} if width == base_width else {_pattern(list(factors)): base_width / width}


def _pattern(names: list[str]) -> str:
    """A pattern that matches these names: their ends, once each, without the numbers of the
    layers."""
    ends = dict.fromkeys(re.sub(r"^.*\.\d+\.", "", name) for name in names)
    return rf"(^|\.)({'|'.join(map(re.escape, ends))})$"
