"""How widely each tensor of a model is spread when the model is freshly initialised, without ever
building a fresh model.

"Overtrained Language Models" scales the noise on a tensor by the standard deviation of its
INITIALISATION distribution, so that one gamma means the same for every tensor and at every
pre-training budget. A fresh model of the same config (and, of muP's, of the same base width)
supplies them; only its numbers are wanted, though, so here

1. the model is built on the meta device, where tensors have shapes and no values, and its own `_init_weights` runs over
it in transformers' order
   while every write is noted: which modules initialise which tensor (GPT-2's attention initialises
   the projection below it a second time), and how;
2. tensors that are only ever filled with constants (norms, biases) have std 0; the others are given memory, those of
one module at a time, the
   modules that write them run once more in the same order, the spread is measured, and the memory
   is dropped.

A large tensor is drawn once, and its elements' spread about their mean is the std. One that is
copied from computed values might be random or not (Mamba's A is a fixed ramp, its step sizes are
drawn), so it is drawn twice, and a small one more often: the std is then that of an element between
draws, 0 for what does not depend on the seed. Tied tensors have the std of the one that
transformers keeps.

Memory: the largest module's own weights in float32. The process's random state is not touched.
"""

from __future__ import annotations

import contextlib
import copy
import math
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from holdfast.errors import ModelError, first_line
from holdfast.support.environment import quiet_transformers
from holdfast.training.mup import BASE_WIDTH, mup_factors

_BLOCK = 1 << 16
_SAMPLES = 2048
"""Values that a std is measured on, at least, where `_DRAWS` draws yield them: a relative error of
1.6 %."""
_DRAWS = 64


def init_stds(
    model: Any, *, seed: int = 0, stored: bool = False, trust_remote_code: bool = False
) -> dict[str, float]:
    """Returns the standard deviation of each tensor's initialisation distribution, by parameter
    name.

    The deviations are measured on the values of a fresh model. Each has a relative sampling error
    of about 1 / sqrt(2 elements), at most 1.6 % for tensors of 32 elements or more. Rows that are
    zeroed (an embedding's padding) count.

    Args:
        model: a loaded model, a config, a checkpoint folder, or a hub id. If PEFT wraps the model,
            its base model is used.
        seed: random seed of the draws; equal seeds give equal results.
        stored: name the tensors as in checkpoint folders, for `holdfast probe --write`. The names
            differ if transformers lays tensors out differently in memory (experts).
        trust_remote_code: passed to transformers with a folder or an id.

    Raises:
        ModelError: there is no causal language model, it cannot be built from its config, or it is
            inside another model that muP initialised.
    """
    fresh = _on_meta(model, trust_remote_code)
    inner = fresh.config.get_text_config()
    if inner is not fresh.config and getattr(inner, BASE_WIDTH, None) is not None:
        raise ModelError(
            f"Expected a plain language model, got {type(fresh).__name__}, which contains a model "
            "that is initialised with muP. The standard deviations measured on it would hold only "
            "for muP's base width."
        )
    parameters = dict(fresh.named_parameters())
    writes = _writes(fresh, parameters)
    stds: dict[str, float] = {}
    with _own_random_state():
        for number, group in enumerate(_groups(fresh, parameters)):
            stds |= _measure(fresh, group, parameters, writes, seed * 1_000_003 + number)
    untouched = [name for name in parameters if not writes[name].steps]
    if untouched:  # set by a constructor only, as in some models outside transformers: only a whole fresh model tells
        with _own_random_state(), quiet_transformers():
            torch.default_generator.manual_seed(seed)
            whole_model = dict(_build(type(fresh), fresh.config).named_parameters())
        for name in untouched:
            stds[name] = _spread([whole_model[name].detach()])
    if (base_width := getattr(fresh.config, BASE_WIDTH, None)) is not None:
        for name, factor in mup_factors(fresh, int(base_width)).items():
            stds[name] *= factor
    for tied, source in getattr(fresh, "all_tied_weights_keys", {}).items():
        if source in stds:
            stds[tied] = stds[source]
    ordered = {name: stds[name] for name in parameters}
    return _stored_names(fresh, ordered) if stored else ordered


@dataclass
class _Writes:
    """How one tensor comes to its values."""

    steps: list[int] = field(default_factory=list)
    """Which of the modules' initialisations write it, in order."""
    drawn: bool = False
    """By a random operation."""
    copied: bool = False
    """From another tensor."""


class _Watch(TorchDispatchMode):
    """Notes which operations write to which storages."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, bool, bool]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value, argument in zip(args, func._schema.arguments, strict=False):
            if (
                isinstance(value, Tensor)
                and argument.alias_info is not None
                and argument.alias_info.is_write
            ):
                others = any(isinstance(other, Tensor) and other is not value for other in args)
                self.seen.append(
                    (
                        value.untyped_storage()._cdata,
                        torch.Tag.nondeterministic_seeded in func.tags,
                        others,
                    )
                )
        return func(*args, **(kwargs or {}))


def _on_meta(model: Any, trust_remote_code: bool) -> Any:
    """The same model without values, its tied tensors apart."""
    from transformers import AutoModelForCausalLM
    from transformers.initialization import meta_device_safe_creation_ops, no_tie_weights

    from holdfast.models import check_causal_lm

    if isinstance(model, (str, os.PathLike)):
        model = check_causal_lm(os.fspath(model), trust_remote_code=trust_remote_code)
    if hasattr(model, "get_base_model"):
        model = model.get_base_model()
    kind: Any = AutoModelForCausalLM
    if isinstance(model, nn.Module):
        kind = _model_class(model)
        if kind is None:
            raise ModelError(
                "Expected a transformers model, its config or its folder, got "
                f"{type(model).__name__}."
            )
        model = model.config
    try:
        with (
            torch.device("meta"),
            no_tie_weights(),
            meta_device_safe_creation_ops(),
            _own_random_state(),
            quiet_transformers(),
        ):
            return _build(kind, model, trust_remote_code=trust_remote_code)
    except Exception as error:  # whatever the code of a model raises, its own or one from elsewhere
        raise ModelError(
            "Expected a causal language model that can be built from its config, but: "
            f"{first_line(error)}"
        ) from error


def _model_class(model: nn.Module) -> type | None:
    """The class of transformers that a model is of. FSDP2 gives a sharded model a class of its own,
    made of the model's."""
    from transformers import PreTrainedModel

    for kind in type(model).__mro__:
        sharded = any(base.__name__ == "FSDPModule" for base in kind.__mro__)
        if issubclass(kind, PreTrainedModel) and not sharded:
            return kind
    return None


def _build(kind: Any, config: Any, **kwargs: Any) -> Any:
    config = copy.deepcopy(config)
    nested = [getattr(config, key, None) for key in getattr(config, "sub_configs", {})]
    for configuration in (config, *nested):
        if hasattr(configuration, "quantization_config"):
            del configuration.quantization_config
    make, kwargs = (
        (kind.from_config, kwargs) if hasattr(kind, "from_config") else (kind._from_config, {})
    )
    return make(config, dtype=torch.float32, attn_implementation="eager", **kwargs)


def _steps(model: Any) -> Iterator[tuple[nn.Module, Any]]:
    """The modules in the order in which transformers initialises them, each with the model whose
    `_init_weights` does it."""
    from transformers import PreTrainedModel

    def below(module: nn.Module, owner: Any) -> Iterator[tuple[nn.Module, Any]]:
        for child in module.children():
            yield from below(child, child if isinstance(child, PreTrainedModel) else owner)
        yield module, owner

    return below(model, model)


def _writes(model: Any, parameters: dict[str, Tensor]) -> dict[str, _Writes]:
    """A dry run of the whole initialisation."""
    writes_of = {name: _Writes() for name in parameters}
    names = {p.untyped_storage()._cdata: name for name, p in parameters.items()}
    with torch.no_grad(), _own_random_state():
        for step, (module, owner) in enumerate(_steps(model)):
            with _Watch() as watch:
                owner._init_weights(module)
            for storage, drawn, copied in watch.seen:
                if storage in names:
                    writes = writes_of[names[storage]]
                    writes.steps += [step] if step not in writes.steps else []
                    writes.drawn |= drawn
                    writes.copied |= copied
    return writes_of


def _groups(model: Any, parameters: dict[str, Tensor]) -> list[dict[str, tuple[nn.Module, str]]]:
    """The parameters that one module owns, by name: module and attribute."""
    names = {id(p): name for name, p in parameters.items()}
    owned: dict[str, dict[str, tuple[nn.Module, str]]] = defaultdict(dict)
    for prefix, module in model.named_modules():
        for attribute, p in module.named_parameters(recurse=False):
            owned[prefix].setdefault(names[id(p)], (module, attribute))
    return list(owned.values())


@torch.no_grad()
def _measure(
    model: Any,
    group: dict[str, tuple[nn.Module, str]],
    parameters: dict[str, Any],
    writes: dict[str, _Writes],
    seed: int,
) -> dict[str, float]:
    """Initialises one module's tensors for real and measures them."""
    stds = {}
    random = {}
    numbers: set[int] = set()
    for name, owned in group.items():
        if writes[name].steps:
            stds[name] = 0.0
        if writes[name].drawn or writes[name].copied:
            random[name] = owned
            numbers.update(writes[name].steps)
    if not random:
        return stds
    steps = [step for number, step in enumerate(_steps(model)) if number in numbers]
    needed = {}
    for name in random:
        draws_for_samples = -(-_SAMPLES // max(parameters[name].numel(), 1))
        needed[name] = max(2 if writes[name].copied else 1, min(_DRAWS, draws_for_samples))
    draws: dict[str, list[Tensor]] = {name: [] for name in random}
    try:
        for draw in range(max(needed.values())):
            drawn = {name: owner for name, owner in random.items() if draw < needed[name]}
            torch.default_generator.manual_seed(_DRAWS * seed + draw)
            for name, (module, attribute) in drawn.items():
                module._parameters[attribute] = nn.Parameter(
                    torch.full_like(parameters[name], math.nan, device="cpu"), requires_grad=False
                )
            for module, owner in steps:
                owner._init_weights(module)
            for name, (module, attribute) in drawn.items():
                draws[name].append(module._parameters[attribute].detach())
                module._parameters[attribute] = parameters[name]
    finally:
        for name, (module, attribute) in random.items():
            module._parameters[attribute] = parameters[name]
    measured = {name: _spread(draws_of_tensor) for name, draws_of_tensor in draws.items()}
    incomplete = [name for name, std in measured.items() if math.isnan(std)]
    if incomplete:
        raise ModelError(
            f"{type(model).__name__} does not initialise all of {', '.join(incomplete)}, so the "
            "standard deviation of their initial values is unknown."
        )
    return stds | measured


def _spread(draws: list[Tensor]) -> float:
    """The standard deviation of one draw's elements about their mean, or of an element between
    several draws, over all elements; NaN if one is."""
    flat = [draw.reshape(-1) for draw in draws]
    count, mean, squares = len(flat[0]), 0.0, 0.0
    for start in range(0, count, _BLOCK):
        values = [elements[start : start + _BLOCK] for elements in flat]
        if len(values) > 1:
            squares += float(torch.stack(values).double().var(dim=0).sum())
        else:
            mean += float(values[0].sum()) / count
            # float32 within a block, with errors far below that of sampling
            squares += float(values[0].dot(values[0]))
    variance = squares / count - mean**2 if count else 0.0
    return math.sqrt(variance) if not variance < 0 else 0.0


def _stored_names(model: Any, stds: dict[str, float]) -> dict[str, float]:
    from transformers.core_model_loading import revert_weight_conversion

    by_stored_name: dict[str, float] = {}
    for name, parameter in model.named_parameters():
        by_stored_name |= dict.fromkeys(
            revert_weight_conversion(model, {name: parameter.detach()}), stds[name]
        )
    return by_stored_name


@contextlib.contextmanager
def _own_random_state() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        yield
