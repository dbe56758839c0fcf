"""A tiny copy of a model: its architecture and settings, with few, narrow layers and random
weights, so that a question about the architecture is answered in a second, whatever the model's
size, before its weights are read.

The number of attention heads is divided by g, and every width with it: heads stay as wide as they
are, so that what an architecture derives from both stays whole. Layers are cut to the first that
hold every kind. What says how a layer works (positions, biases, kinds of layers) stays; windows are
of a few tokens, dropout and noise are 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

VOCABULARY = 512
MOST = 60_000_000
"""Parameters beyond which a copy is not tiny."""
_LAYERS = re.compile(
    r"(?:num|n)_(?:hidden_|decoder_|encoder_)?layers?|(?:en|de)coder_layers|num_blocks"
)
_HEADS = re.compile(
    r"n_head|(?:\w+_)?(?:n|num|attention)_(?:\w+_)?heads(?:_per_layer)?|n_groups|\w*ngroups|num_query_groups"
)
_MAIN_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_WIDTHS = re.compile(
    r"\w*(?:hidden|intermediate|ffn|inner|embd|embed|embedding|model|proj|lru|emb|ff|mlp|ssm)"
    r"(?:_(?:size|dim|width|hidden_size|size_mlp))?"
)
_MAIN_WIDTHS = ("hidden_size", "d_model", "n_embd", "embedding_dim")
_VOCABULARIES = re.compile(r"\w*vocab\w*")
_LIMITS = (
    (re.compile(r"\w*(?:experts_per_tok(?:en)?|moe_(?:topk|top_k|k))"), 2),
    (re.compile(r"\w*experts"), 8),
    (re.compile(r"n_group|topk_group|num_expert_group"), 1),
    (re.compile(r"num_kv_shared_layers"), 0),
    (re.compile(r"\w*(?:sliding_window(?:_size)?|chunk_size|window_size|local_attention)"), 8),
)
"""Names of counts, and what they are cut to; the first that fits counts."""
_OFF = re.compile(r"\w*(?:dropout|pdrop|layerdrop|jitter\w*)")
_PERIODS = re.compile(
    r"\w*(?:period|interval|pattern|every_n_layers|sparse_step|group_size|first_k_dense_replace)"
)
_PERIOD = 8
"""A longer period than this is not looked for."""


@dataclass(frozen=True, kw_only=True)
class _Scale:
    """How settings are made small."""

    heads: int
    """Attention heads that are left; 0: as many as there are, and widths as they are."""
    step: int
    """Widths are multiples of it."""
    of_each: int
    """Layers of each kind."""
    depth: int = 0
    """Layers that there were."""
    kept: int = 2
    """Layers that are left."""
    factor: int = 1
    """What heads and widths are divided by."""
    narrow: int = 1
    """What widths are divided by beyond that; heads keep theirs where it is a setting."""
    vocabulary: int = VOCABULARY
    """Tokens at most."""


_SCALES = (
    _Scale(heads=2, step=16, of_each=1),
    _Scale(heads=4, step=1, of_each=2),
    _Scale(heads=0, step=1, of_each=1),
)
"""Tried in this order: some architectures want a number of heads, or two layers of a kind."""
_WHOLE = 1 << 40
_SHALLOW = (
    _Scale(heads=0, step=1, of_each=1, vocabulary=_WHOLE),
    _Scale(heads=4, step=1, of_each=1, vocabulary=_WHOLE),
    _Scale(heads=1, step=1, of_each=1, vocabulary=_WHOLE),
    _Scale(heads=1, step=16, of_each=1, vocabulary=_WHOLE, narrow=2),
    _Scale(heads=1, step=16, of_each=1, vocabulary=_WHOLE, narrow=4),
    _Scale(heads=1, step=16, of_each=1, vocabulary=_WHOLE, narrow=8),
)
"""Tried in this order: a model stays as wide as it may."""


def tiny_copy(config: Any, make: Callable[[Any], Any]) -> Any:
    """A float32 model like the one of a configuration, of at most `MOST` parameters, on the CPU.

    Args:
        config: of transformers; left as it is.
        make: builds a model of a configuration, such as `AutoModelForCausalLM.from_config`.

    Raises:
        ValueError: no way of making it small gives a model; what refused the first one is the
            cause.
    """
    return _first_that_fits(config, make, _SCALES, MOST)


def shallow_copy(config: Any, make: Callable[[Any], Any], *, most: int) -> Any:
    """A copy with the whole vocabulary and few layers, that is narrowed only where it would have
    more than `most` parameters; otherwise as of `tiny_copy`."""
    return _first_that_fits(config, make, _SHALLOW, most)


def _first_that_fits(
    config: Any, make: Callable[[Any], Any], scales: Sequence[_Scale], most: int
) -> Any:
    import torch

    failures: list[Exception] = []
    for scale in scales:
        try:
            small = type(config).from_dict(_small_settings(config.to_dict(), scale))
            small.dtype = torch.float32
            with torch.device("meta"):
                size = sum(parameter.numel() for parameter in make(small).parameters())
            if size > most:
                raise ValueError(f"{size:,} parameters are not tiny")
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(0)
                model = make(small).float()
                for parameter in model.parameters():
                    if parameter.ndim > 1:  # as models begin, attention would be next to nothing
                        torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
            model(input_ids=torch.arange(16, 24)[None], use_cache=False)
        except Exception as error:  # what sizes make of a model's code has no common base
            failures.append(error)
        else:
            return model
    raise ValueError(f"{config.model_type} cannot be made small") from failures[0]


def _small_settings(settings: Mapping[Any, Any], scale: _Scale) -> dict[Any, Any]:
    """Settings of a configuration, and of those in it, made small."""
    depths = [
        value for key, value in settings.items() if _LAYERS.fullmatch(str(key)) and _is_size(value)
    ]
    if depths:
        count = _layers_kept(settings, max(depths), scale.of_each)
        scale = replace(scale, depth=max(depths), kept=count)
    heads = next((settings[key] for key in _MAIN_HEADS if _is_size(settings.get(key))), 0)
    width = next((settings[key] for key in _MAIN_WIDTHS if _is_size(settings.get(key))), 0)
    if scale.heads and (heads or width):
        factor = _factor(heads, scale.heads) if heads else max(1, width // 64)
        scale = replace(scale, factor=factor)
    small = {}
    for key, value in settings.items():
        if str(key).isdigit() and int(key) >= scale.kept:  # of a layer that is not there
            continue
        small[key] = _small(str(key), value, scale)
    return small


def _small(key: str, value: Any, scale: _Scale) -> Any:
    if isinstance(value, Mapping):
        return value if "label" in key or "rope" in key else _small_settings(value, scale)
    if isinstance(value, list):
        if _are_layers(value, scale.depth):
            return [layer for layer in value if layer < scale.kept] or [scale.kept - 1]
        first = value[: scale.kept] if len(value) == scale.depth else value
        return [_small(key, item, scale) for item in first]
    if _OFF.fullmatch(key) and isinstance(value, float):
        return 0.0
    if key.endswith("token_id") and isinstance(value, int):
        return value % scale.vocabulary
    if not _is_size(value):
        return value
    if _LAYERS.fullmatch(key):
        return min(value, scale.kept)
    limits = ((_VOCABULARIES, scale.vocabulary), *_LIMITS)
    limit = next((limit for names, limit in limits if names.fullmatch(key)), None)
    if limit is not None:
        return min(value, limit)
    if _HEADS.fullmatch(key):
        return max(1, value // scale.factor)
    if _WIDTHS.fullmatch(key) and scale.factor * scale.narrow > 1:
        return -(-value // (scale.factor * scale.narrow) // scale.step) * scale.step
    return value


def _layers_kept(settings: Mapping[Any, Any], depth: int, of_each: int) -> int:
    """How many of the first layers hold each kind `of_each` times, two at least."""
    count = 2
    for key, value in settings.items():
        if isinstance(value, list) and len(value) == depth and not _are_layers(value, depth):
            kinds = [str(kind) for kind in value]
            for kind in set(kinds):
                indices = [index for index, other in enumerate(kinds) if other == kind]
                count = max(count, indices[:of_each][-1] + 1)
        elif _PERIODS.fullmatch(str(key)) and _is_size(value):
            count = max(count, min(value, _PERIOD) * of_each + 1)
    return min(count, depth)


def _are_layers(value: list[Any], depth: int) -> bool:
    """Whether a list names layers by their numbers."""
    numbers = bool(value) and all(
        isinstance(number, int) and not isinstance(number, bool) for number in value
    )
    return numbers and value == sorted(set(value)) and value[-1] < depth and value[0] >= 0


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _factor(heads: int, wanted: int) -> int:
    """What to divide heads by, so that `wanted` or a few more are left, or one."""
    for left in range(wanted, 2 * wanted + 2):
        if heads % left == 0:
            return heads // left
    return heads
