"""What a study varies: from the `vary:` section to trials.

```yaml
vary:
  retention:                                      # alternatives: each is one way of keeping what was known
    - label_annealing: {weight: {log: [0.1, 10], points: 5}, temperature: [1, 2]}
    - l2: {coefficient: [0.001, 0.01]}
    - [{replay: {data: old.jsonl, fraction: 0.1}}, {label_annealing: {weight: [0.3, 1]}}]     # a combination
  learning_rate: [1.0e-5, 3.0e-5]                 # any key of a training config
  label_annealing.temperature: [1, 2]             # a parameter of a method that `train:` names, where retention does not vary
```

A list is tried value by value. `{log: [low, high]}` and `{linear: [low, high]}` are ranges: a sampler draws from them,
a grid needs `points: n` (or `step:` for a linear one). Parameters of a method belong to its alternative, so a grid has
no senseless combinations. No torch, no Optuna.
"""

from __future__ import annotations

import copy
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import did_you_mean

METHOD = "method"
"""The parameter that says which alternative a trial is, where there are several."""
_RANGES = ("log", "linear")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Values tried one by one. Lists and mappings among them are written as JSON where a storage wants plain values."""

    values: tuple[Any, ...]

    def points(self) -> list[Any]:
        """What a grid tries."""
        return [_plain(v) for v in self.values]

    @property
    def varies(self) -> bool:
        """Whether there is more than one value."""
        return len(self.values) > 1

    def middle(self) -> Any:
        """The first value."""
        return self.points()[0]

    def value(self, stored: Any) -> Any:
        """A setting's value from what a storage holds."""
        return next((v for v in self.values if _plain(v) == stored and type(_plain(v)) is type(stored)), stored)


@dataclass(frozen=True, kw_only=True)
class Range:
    """Numbers between two ends."""

    low: float
    high: float
    log: bool
    step: float | None = None
    count: int | None = None
    """Points of a grid."""

    @property
    def whole(self) -> bool:
        """Whether its numbers are whole: both ends and the step are."""
        return not self.log and isinstance(self.low, int) and isinstance(self.high, int) and isinstance(self.step, int)

    @property
    def varies(self) -> bool:
        """Whether there is more than one value."""
        return self.high > self.low

    def points(self) -> list[Any]:
        """What a grid tries, both ends among them."""
        if self.step is not None:
            count = math.floor((self.high - self.low) / self.step + 1e-9) + 1
            return [self.low + i * self.step for i in range(count)]
        count = self.count or 1
        if count == 1:
            return [self.middle()]
        shares = [i / (count - 1) for i in range(count)]
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            inside = [
                float(f"{math.exp(low + s * (high - low)):.6g}") for s in shares
            ]  # 0.316228 reads better than sixteen digits
        else:
            inside = [float(f"{self.low + s * (self.high - self.low):.10g}") for s in shares]
        return [self.low, *inside[1:-1], self.high]

    def middle(self) -> Any:
        """The middle; on a logarithmic range the geometric one."""
        if self.whole:
            return (int(self.low) + int(self.high)) // 2
        return float(f"{math.sqrt(self.low * self.high) if self.log else (self.low + self.high) / 2:.6g}")

    def value(self, stored: Any) -> Any:
        """A setting's value from what a storage holds."""
        return stored


Values = Choices | Range


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """One way of keeping what was known: methods with constants, and which of their parameters vary."""

    name: str
    """The methods' names joined by "+", "direct" for none; numbered where several alternatives have the same."""
    retention: list[dict[str, dict[str, Any]]]
    """As a training config has it, without what varies."""
    vary: dict[str, tuple[tuple[int, tuple[str, ...]], Values]] = field(default_factory=dict)
    """Parameter: where it belongs (which method, and the keys down to it), and its values."""


@dataclass(frozen=True, kw_only=True)
class Space:
    """All that varies."""

    alternatives: list[Alternative]
    """One with the base's own methods where `vary:` does not name retention."""
    shared: dict[str, Values]
    """Settings of the training configuration that vary under every alternative."""

    def parameters(self, alternative: Alternative) -> dict[str, Values]:
        """What varies under an alternative, by parameter name."""
        return {**{name: values for name, (_, values) in alternative.vary.items()}, **self.shared}

    def grid(self) -> list[dict[str, Any]]:
        """Every combination as `{parameter: value}`, alternatives in the order given."""
        found = []
        for alternative in self.alternatives:
            parameters = self.parameters(alternative)
            first = {METHOD: alternative.name} if len(self.alternatives) > 1 else {}
            for combination in itertools.product(*(v.points() for v in parameters.values())):
                found.append({**first, **dict(zip(parameters, combination, strict=True))})
        return found

    def middle(self) -> dict[str, Any]:
        """Shared settings at their first value, or in the middle of their range: for the reference, where the base
        leaves them open."""
        return {name: values.middle() for name, values in self.shared.items()}

    def corners(self) -> Iterator[dict[str, Any]]:
        """Few combinations that show whether every value is legal: each value of each parameter once, with the first of
        the others."""
        for alternative in self.alternatives:
            parameters = self.parameters(alternative)
            first = {METHOD: alternative.name} if len(self.alternatives) > 1 else {}
            ends = {n: v.points() if isinstance(v, Choices) else [v.low, v.high] for n, v in parameters.items()}
            base = {**first, **{n: e[0] for n, e in ends.items()}}
            yield base
            for name, values in ends.items():
                for value in values[1:]:
                    yield {**base, name: value}

    def suggest(self, trial: Any, *, everything: bool = False) -> dict[str, Any]:
        """Asks an Optuna trial for a value of each parameter of the alternative that it chooses.

        Args:
            trial: an `optuna.Trial`.
            everything: asks for the parameters of the other alternatives too and leaves them unused, for samplers that
                cross trials parameter by parameter and know only what all trials have.
        """
        params: dict[str, Any] = {}
        chosen = self.alternatives[0]
        if len(self.alternatives) > 1:
            params[METHOD] = trial.suggest_categorical(METHOD, [a.name for a in self.alternatives])
            chosen = self.alternative(params)
        for name, values in self.parameters(chosen).items():
            params[name] = _ask(trial, name, values)
        for other in self.alternatives if everything else ():
            for name, values in self.parameters(other).items():
                if name not in params:
                    _ask(trial, name, values)
        return params

    def alternative(self, params: Mapping[str, Any]) -> Alternative:
        """The alternative that a combination belongs to."""
        name = params.get(METHOD)
        return next((a for a in self.alternatives if a.name == name), self.alternatives[0])

    def settings(self, base: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
        """The training configuration of a combination.

        Args:
            base: the study's `train:` section.
            params: as `grid` or `suggest` gave it.
        """
        alternative = self.alternative(params)
        retention = copy.deepcopy(alternative.retention)
        for name, ((place, keys), values) in alternative.vary.items():
            if name in params:
                inner: Any = next(iter(retention[place].values()))
                for key in keys[:-1]:
                    inner = inner[key]
                inner[keys[-1]] = values.value(params[name])
        settings = {**copy.deepcopy(dict(base)), "retention": retention}
        for name, values in self.shared.items():
            if name in params:
                settings[name] = values.value(params[name])
        return settings

    def label(self, params: Mapping[str, Any]) -> str:
        """What tables and plots call a combination: the method, and what varies."""
        alternative = self.alternative(params)
        methods = [_key(next(iter(m))) for m in alternative.retention]
        name, _, number = alternative.name.partition(" #")
        words = [" + ".join(_title(m) for m in name.split("+")) + (f" ({number})" if number else "")]
        for name, values in self.parameters(alternative).items():
            if values.varies and name in params:
                words.append(f"{_short(name, methods)} {_number(params[name])}")
        return ", ".join(words)


# -------------------------------------------------------------------------------------------------------------- reading


def read_space(vary: Any, base_retention: Any, *, grid: bool, known: Sequence[str], problems: list[str]) -> Space:
    """The `vary:` section as a `Space`; mistakes are added to `problems`.

    Args:
        vary: the section as YAML gave it.
        base_retention: `train.retention`, which an alternative replaces.
        grid: whether ranges need points.
        known: keys of a training configuration that may vary.
        problems: gets one sentence a mistake.
    """
    from holdfast.retention.registry import METHODS

    if vary is not None and not isinstance(vary, Mapping):
        problems.append(
            f"vary: expected keys with what is tried, such as 'learning_rate: [1.0e-5, 3.0e-5]', got {vary!r}"
        )
    section = dict(vary) if isinstance(vary, Mapping) else {}
    base = _methods_of(base_retention, "train.retention", problems)
    alternatives: list[Alternative] = []
    if "retention" in section:
        given = section.pop("retention")
        if not isinstance(given, list) or not given:
            got = "an empty list" if given == [] else repr(given)
            problems.append(
                f"vary.retention: expected a list of alternatives, such as '- label_annealing: {{weight: [0.3, 1, "
                f"3]}}', got {got}"
            )
        else:
            alternatives = _alternatives(given, grid=grid, problems=problems)
    shared: dict[str, Values] = {}
    own: dict[str, tuple[tuple[int, tuple[str, ...]], Values]] = {}
    for key, value in section.items():
        method, dot, parameter = str(key).partition(".")
        where = f"vary.{key}"
        if dot and (method in METHODS or method in map(_key, itertools.chain.from_iterable(base))):
            places = [i for i, m in enumerate(base) if _key(next(iter(m))) == method]
            if alternatives:
                problems.append(
                    f"{where}: retention varies too, so write the values into its alternative: '{method}: "
                    f"{{{parameter}: ...}}'"
                )
            elif not places:
                problems.append(
                    f"{where}: train.retention does not name {method}. Add it there, or write it as an alternative "
                    f"under vary.retention."
                )
            elif (values := read_values(value, where, grid=grid, problems=problems)) is not None:
                own[str(key)] = ((places[0], (parameter,)), values)
        elif key in ("seed", "data_seed"):
            problems.append(f"{where}: seeds are repetitions of every trial, not trials. Write 'seeds: [0, 1, 2]'.")
        elif key in ("output_dir", "evaluation", "env"):
            problems.append(f"{where}: cannot vary; every trial has a folder of its own and is measured alike.")
        elif key not in known:
            problems.append(
                f"{where}: no such key in a training "
                f"configuration.{did_you_mean(str(key), [*known, 'retention', *METHODS])}"
            )
        elif (values := read_values(value, where, grid=grid, problems=problems)) is not None:
            shared[str(key)] = values
    if not alternatives:
        for (place, keys), _ in own.values():
            next(iter(base[place].values())).pop(keys[0], None)
        alternatives = [Alternative(name=_name(base), retention=base, vary=own)]
    return Space(alternatives=alternatives, shared=shared)


def _alternatives(given: Sequence[Any], *, grid: bool, problems: list[str]) -> list[Alternative]:
    found: list[Alternative] = []
    for number, item in enumerate(given):
        where = f"vary.retention[{number}]"
        retention = _methods_of(item, where, problems)
        name = _name(retention)
        same = sum(a.name == name or a.name.startswith(f"{name} #") for a in found)
        unique = f"{name} #{same + 1}" if same else name
        prefix = f"{unique}." if same or len(retention) > 1 else ""
        vary: dict[str, tuple[tuple[int, tuple[str, ...]], Values]] = {}
        for place, method in enumerate(retention):
            (method_name, parameters), *_ = method.items()
            for keys, value in list(_leaves(parameters)):
                dotted = ".".join((_key(method_name), *keys))
                values = read_values(value, f"{where}.{dotted}", grid=grid, problems=problems)
                inner: Any = parameters
                for key in keys[:-1]:
                    inner = inner[key]
                if values is None or not values.varies:
                    inner[keys[-1]] = values.points()[0] if values is not None else None
                else:
                    del inner[keys[-1]]
                    vary[f"{prefix}{dotted}"] = ((place, keys), values)
        found.append(Alternative(name=unique, retention=retention, vary=vary))
    return found


def _leaves(parameters: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The parameters that vary: lists and ranges, wherever they stand."""
    for key, value in parameters.items():
        if isinstance(value, list) or (isinstance(value, Mapping) and any(r in value for r in _RANGES)):
            yield (*above, str(key)), value
        elif isinstance(value, Mapping):
            yield from _leaves(value, (*above, str(key)))


def _ask(trial: Any, name: str, values: Values) -> Any:
    if isinstance(values, Choices):
        return trial.suggest_categorical(name, values.points()) if values.varies else values.points()[0]
    if values.whole:
        return trial.suggest_int(name, int(values.low), int(values.high), step=int(values.step or 1))
    return trial.suggest_float(name, values.low, values.high, log=values.log, step=values.step)


def _methods_of(value: Any, where: str, problems: list[str]) -> list[dict[str, dict[str, Any]]]:
    """One alternative as a list of `{method: parameters}`; what the methods themselves say of it comes later, with
    values in it."""
    from holdfast.errors import ConfigError
    from holdfast.retention.registry import NONE, method_class

    items = value if isinstance(value, list) else [] if value is None else [value]
    found: list[dict[str, dict[str, Any]]] = []
    for item in items:
        if isinstance(item, str) and item.lower() in NONE:
            continue
        name, parameters = (
            (item, {})
            if isinstance(item, str)
            else next(iter(item.items()))
            if isinstance(item, Mapping) and len(item) == 1
            else ("", 0)
        )
        if not isinstance(parameters, (Mapping, type(None))) or not name:
            problems.append(
                f"{where}: expected methods such as 'label_annealing: {{weight: [0.3, 1, 3]}}' or 'none', got {item!r}"
            )
        else:
            try:
                cls = method_class(str(name), also=("none",))
            except ConfigError as error:
                problems.extend(f"{where}: {problem}" for problem in error.problems)
                continue
            source = {} if cls.origin is None else {"sha256": cls.origin.sha256}  # an edited method is another study
            found.append({str(name): copy.deepcopy(dict(parameters or {})) | source})
    return found


def read_values(value: Any, where: str, *, grid: bool, problems: list[str]) -> Values | None:
    """What a key is tried with; None with a problem noted where it makes no sense.

    Args:
        value: a list, a range as a mapping, or a single value.
        where: the key, for messages.
        grid: whether ranges need points.
        problems: gets one sentence a mistake.
    """
    if isinstance(value, list):
        if not value:
            problems.append(f"{where}: expected at least one value to try, got an empty list")
            return None
        if len({json.dumps(_plain(v)) for v in value}) < len(value):
            problems.append(f"{where}: expected different values, got {value}")
        return Choices(values=tuple(_as_number(v) for v in value))
    if not isinstance(value, Mapping):
        return Choices(values=(_as_number(value),))
    kinds = [r for r in _RANGES if r in value]
    if len(kinds) != 1:
        problems.append(
            f"{where}: expected a list of values, {{log: [low, high]}} or {{linear: [low, high]}}, got {dict(value)}"
        )
        return None
    unknown = [str(k) for k in value if k not in (*_RANGES, "points", "step")]
    if unknown:
        problems.append(
            f"{where}: unknown key '{unknown[0]}' in a range.{did_you_mean(unknown[0], ('points', 'step'))} Known: "
            f"points, step."
        )
        return None
    return _read_range(value, kinds[0], where, grid=grid, problems=problems)


def _read_range(value: Mapping[str, Any], kind: str, where: str, *, grid: bool, problems: list[str]) -> Range | None:
    def refuse(expected: str, got: Any) -> None:
        problems.append(f"{where}: expected {expected}, got {got!r}")

    ends = value[kind]
    ends = [_as_number(e) for e in ends] if isinstance(ends, list) else ends
    if not isinstance(ends, list) or len(ends) != 2 or not all(_is_number(e) for e in ends) or not ends[0] < ends[1]:
        refuse(f"two numbers, the smaller first, as in {{{kind}: [0.1, 10]}}", value[kind])
        return None
    low, high = ends
    log, step, count = kind == "log", _as_number(value.get("step")), value.get("points")
    if log and low <= 0:
        refuse("numbers above 0 for a logarithmic range", ends)
        return None
    if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 2):
        refuse("a whole number of at least 2 for points", count)
        return None
    if step is not None and (log or not _is_number(step) or not 0 < step <= high - low):
        refuse("a step above 0 that fits into the range, of a linear range", step)
        return None
    if step is not None and count is not None:
        refuse("points or step, one of them", {"points": count, "step": step})
        return None
    if grid and count is None and step is None:
        problems.append(
            f"{where}: a grid needs to know how many points of the range to try. Add 'points: 5', or search with "
            f"random, tpe or nsga2."
        )
        return None
    return Range(low=low, high=high, log=log, step=step, count=count)


# -------------------------------------------------------------------------------------------------------------- helpers


def _name(retention: Sequence[Mapping[str, Any]]) -> str:
    return "+".join(_key(next(iter(m))) for m in retention) or "direct"


def _key(name: str) -> str:
    """The method's own name, which keys of parameters and kinds of trials have in place of where the method is."""
    from holdfast.retention.registry import declared

    cls = declared(name)
    return name if cls is None else cls.name


def _title(name: str) -> str:
    from holdfast.retention.registry import title

    return "direct fine-tuning" if name == "direct" else title(name)


def _plain(value: Any) -> Any:
    """A value as a storage keeps it: numbers, text, booleans and nothing as they are, all else as JSON."""
    return value if value is None or isinstance(value, (bool, int, float, str)) else json.dumps(value, sort_keys=True)


def _as_number(value: Any) -> Any:
    """YAML 1.1 reads 1e-4 as text; numbers that are text are numbers here."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return int(value) if value.lstrip("+-").isdigit() else float(value)
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _short(name: str, methods: Sequence[str]) -> str:
    """A parameter without its alternative and, where one method is all there is, without the method."""
    parts = name.split(".")
    shown = name
    for place, part in enumerate(parts):
        if part in methods:
            parameter = ".".join(parts[place + 1 :])
            shown = parameter if len(methods) == 1 else f"{part} {parameter}"
            break
    return shown.replace("_", " ")


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
