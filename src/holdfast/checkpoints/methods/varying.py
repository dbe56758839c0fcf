"""Parameters of a merge that differ from layer to layer, from tensor to tensor, or from model to model.

```yaml
method: slerp
models: [a, b]
vary:
  t:
    - {filter: self_attn, value: [0, 0.5, 0.3, 0.7, 1]}   # by name; numbers go from the first layer to the last
    - {filter: mlp, layers: [0, 8], value: 0.2}           # of layers 0 to 7
    - {part: behind, value: 1}                            # norm and head; before: embeddings; layers: the rest
    - {value: 0.5}                                        # all else
```

The first entry that applies to a tensor gives the value; where none does, the method's own parameter holds. Numbers in
a list are interpolated: n of them stand at equal distances from the first layer to the last (of `layers`, where that is
given). What lies before the layers (embeddings) takes the first of them, what lies behind (norm, head) the last.
`{1: VALUE, 2: VALUE}` gives the models values of their own, in parameters that each model may have (weights, density).

The rules are mergekit's (0.1.5, `evaluate_setting`), whose `parameters` are translated to this, but for one: there norm
and head take the first of the numbers, too.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from holdfast.checkpoints.methods.protocol import Block, MergeMethod
from holdfast.config.declare import settings_of
from holdfast.config.values import show
from holdfast.errors import did_you_mean

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block|layer)\.(\d+)\.")
_BEFORE = re.compile(r"embed(?!_out)|(?:^|\.)(?:wte|wpe|shared)\.")
_KEYS = ("filter", "layers", "part", "value")
_PARTS = ("before", "layers", "behind")


def layer_of(name: str) -> int | None:
    """The number of the layer that a tensor belongs to; None: to none."""
    found = _LAYER.search(name)
    return int(found[1]) if found else None


def layers_in(names: Iterable[str]) -> int:
    """How many layers tensors of these names make."""
    return 1 + max((layer for name in names if (layer := layer_of(name)) is not None), default=-1)


@dataclass(frozen=True)
class Place:
    """Where a tensor stands in its model."""

    name: str
    layer: int
    """From 0; -1 before all layers, and their number behind them."""
    layers: int
    """Of the model."""

    @property
    def part(self) -> str:
        """Before the layers, in them, or behind them."""
        return _PARTS[0 if self.layer < 0 else 2 if self.layer >= self.layers else 1]

    def along(self, first: int, last: int) -> float:
        """How far it is on the way through layers first to last - 1: 0 to 1."""
        if self.layer < first:
            return 0.0
        return 1.0 if self.layer >= last - 1 else (self.layer - first) / (last - 1 - first)

    def within(self, first: int, last: int) -> bool:
        """Whether it belongs to these layers; what lies before the first of all layers belongs to it, what lies behind
        the last to that."""
        return first <= min(max(self.layer, 0), self.layers - 1) < last


def place_of(name: str, layers: int) -> Place:
    """Where the tensor of a name stands in a model of so many layers."""
    layer = layer_of(name)
    return Place(name, layer if layer is not None else -1 if _BEFORE.search(name) else layers, layers)


def value_at(value: Any, place: Place, span: tuple[int, int] | None = None) -> Any:
    """What a varying value is for a tensor; None where no entry applies.

    Args:
        value: a plain one, a list of numbers, an entry, or a list of entries; sound (`value_problems`).
        place: the tensor's.
        span: layers that a list of numbers goes over; None: all.
    """
    first, last = span or (0, place.layers)
    if isinstance(value, Mapping):
        value = [value]
    if not isinstance(value, (list, tuple)):
        return value
    if not any(isinstance(one, Mapping) for one in value):
        scaled = place.along(first, last) * (len(value) - 1)
        low = int(scaled)
        high, share = min(len(value) - 1, low + 1), scaled - low
        return (1 - share) * value[low] + share * value[high]
    for entry in value:
        own = tuple(entry["layers"]) if entry.get("layers") is not None else (first, last)
        if entry.get("filter") not in (None, "*") and str(entry["filter"]) not in place.name:
            continue
        if entry.get("part") not in (None, place.part):
            continue
        if place.within(*own) and (found := value_at(entry["value"], place, own)) is not None:
            return found
    return None


def by_model(value: Any) -> Mapping[int, Any] | None:
    """The values of the models by number, where they have some of their own."""
    if isinstance(value, Mapping) and value and all(str(key).isdigit() for key in value):
        return {int(key): one for key, one in value.items()}
    return None


@dataclass(frozen=True, kw_only=True)
class Varying(MergeMethod):
    """A method with other parameters for other tensors."""

    name: ClassVar[str] = "varying"
    needs_base: ClassVar[bool] = False
    models: ClassVar[tuple[int, int | None]] = (1, None)

    method: MergeMethod
    """What holds where nothing varies."""
    vary: Mapping[str, Any]
    """By parameter."""
    tensors: Mapping[str, MergeMethod]
    """The method of each tensor."""

    @property
    def scope(self) -> str:
        scopes = {method.scope for method in self.tensors.values()}
        return "tensor" if "tensor" in scopes else "none"

    def rounds(self) -> int:
        return max((method.rounds() for method in self.tensors.values()), default=0)

    def for_tensor(self, name: str) -> MergeMethod:
        """The method of a tensor; engines ask for it before everything else."""
        return self.tensors.get(name, self.method)

    def combine(self, block: Block, state: Any, out: Any) -> Any:
        return self.for_tensor(block.name).combine(block, state, out)

    def weights_of(self, models: int) -> tuple[float, ...]:
        return self.method.weights_of(models)

    def among(self, owners: Sequence[int], models: int) -> MergeMethod:
        return self.method.among(owners, models)

    def problems(self, models: int | None = None) -> list[str]:
        return self.method.problems(models)

    def identity(self) -> dict[str, Any]:
        """The method's, and what varies as it was given."""
        return {**self.method.identity(), "vary": dict(self.vary)}


def varying(method: MergeMethod, vary: Mapping[str, Any], names: Sequence[str], models: int) -> Varying:
    """A method whose parameters vary, tensor by tensor.

    Args:
        method: with the parameters that hold elsewhere.
        vary: sound (`vary_problems`).
        names: of all tensors.
        models: beside the base.

    Raises:
        ValueError: a value that does not fit the method, with the tensor that it is for.
    """
    layers, made = layers_in(names), dict[tuple[Any, ...], MergeMethod]()
    found = {}
    for name in names:
        values = {key: _for_tensor(method, key, value, place_of(name, layers), models) for key, value in vary.items()}
        given = {key: value for key, value in values.items() if value is not None}
        key = tuple(given.items())
        if key not in made:
            own = dataclasses.replace(method, **given)
            if problems := own.problems(models):
                raise ValueError(f"{name}: {problems[0]}")
            made[key] = own
        found[name] = made[key]
    return Varying(method=method, vary=vary, tensors=found)


def _for_tensor(method: MergeMethod, key: str, value: Any, place: Place, models: int) -> Any:
    """A parameter's value for a tensor; None: the method's own."""
    own = by_model(value)
    if own is None:
        found = value_at(value, place)
        if found is None or key != "weights":
            return found
        return (float(found),) * models
    held = method.weights_of(models) if key == "weights" else getattr(method, key)
    others = held if isinstance(held, tuple) else (held,) * models
    each = [value_at(own[i + 1], place) if i + 1 in own else None for i in range(models)]
    if any(one is None and other is None for one, other in zip(each, others, strict=True)):
        raise ValueError(f"{key}: expected the method's own {key}, too, for the models that have none here")
    return tuple(float(other if one is None else one) for one, other in zip(each, others, strict=True))


# ------------------------------------------------------------------------------------------------------------- checking


def vary_problems(vary: Any, cls: type[MergeMethod], models: int | None) -> list[str]:
    """What is wrong with `vary`, a sentence each that begins with the key.

    Args:
        vary: as in the YAML.
        cls: the method.
        models: beside the base; None: not yet known.
    """
    if not isinstance(vary, Mapping) or not vary:
        return [f"vary: expected values by parameter, such as {{t: [0, 0.5, 1]}}, got {show(vary)}"]
    known = {s.name: s for s in settings_of(cls)}
    numbers = [name for name, setting in known.items() if float in setting.types or name == "weights"]
    found = []
    for key, value in vary.items():
        place = f"vary.{key}"
        if key not in numbers:
            near = did_you_mean(str(key), numbers)
            what = "none of its parameters" if key not in known else "no number"
            listed = ", ".join(numbers) or "none"
            found.append(f"{place}: is {what} of {cls.name}; what may vary: {listed}.{near}")
            continue
        own = by_model(value)
        if own is None:
            found += value_problems(value, place)
            continue
        if not known[key].takes_many and not known[key].meta.repeatable:
            found.append(f"{place}: {cls.name} has one for all models; give one value instead of one a model")
        if models is not None and (strange := [number for number in own if not 1 <= number <= models]):
            found.append(f"{place}: expected numbers of models, 1 to {models}, got {strange[0]}")
        for number, one in own.items():
            found += value_problems(one, f"{place}.{number}")
    return found


def value_problems(value: Any, place: str) -> list[str]:
    """What is wrong with a value that varies; see `value_at`.

    Args:
        value: as in the YAML.
        place: where it stands, for the message.
    """
    if _is_number(value):
        return []
    if isinstance(value, Mapping):
        value = [value]
    if not isinstance(value, (list, tuple)) or not value:
        return [f"{place}: expected a number, numbers from the first layer to the last, or entries, got {show(value)}"]
    if all(map(_is_number, value)):
        return []
    found = []
    for number, entry in enumerate(value):
        where = f"{place}[{number}]"
        if not isinstance(entry, Mapping) or "value" not in entry:
            found.append(f"{where}: expected {{filter: TEXT, value: NUMBER}}, got {show(entry)}")
            continue
        found += [f"{where}: unknown key '{key}'.{did_you_mean(str(key), _KEYS)}" for key in entry if key not in _KEYS]
        span = entry.get("layers")
        if span is not None and not _is_span(span):
            found.append(f"{where}.layers: expected the first layer and the one behind the last, got {show(span)}")
        if entry.get("part") is not None and entry["part"] not in _PARTS:
            near = did_you_mean(str(entry["part"]), _PARTS)
            found.append(f"{where}.part: expected one of {', '.join(_PARTS)}, got {show(entry['part'])}.{near}")
        if entry.get("filter") is not None and not isinstance(entry["filter"], str):
            found.append(f"{where}.filter: expected a part of tensors' names, got {show(entry['filter'])}")
        found += value_problems(entry["value"], f"{where}.value")
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_span(value: Any) -> bool:
    return (
        isinstance(value, (list, tuple))
        and len(value) == 2
        and all(isinstance(one, int) and not isinstance(one, bool) for one in value)
        and 0 <= value[0] < value[1]
    )
