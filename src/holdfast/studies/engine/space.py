"""What a study varies: from the sections `arms:` and `vary:` to trials.

```yaml
arms:                                             # each is one way to retain what was known
  - label_annealing: {weight: {log: [0.1, 10], points: 5}, temperature: [1, 2]}
  - l2: {coefficient: [0.001, 0.01]}
  - [{replay: {data: old.jsonl, fraction: 0.1}}, {label_annealing: {weight: [0.3, 1]}}]     # a combination
  - [{replay: {data: new.jsonl}}, {label: unseen text}]         # what tells arms of the same methods apart
  - train: {learning_rate: [5.0e-6, 2.0e-5]}                    # settings of one arm: here of direct fine-tuning
vary:
  learning_rate: [1.0e-5, 3.0e-5]                 # any key of a training config
```

A list is tried value by value. `{log: [low, high]}` and `{linear: [low, high]}` are ranges: a
sampler draws from them, a grid needs `points: n`. Parameters of a method belong to its arm, so a
grid has no senseless combinations. No torch, no Optuna.
"""

from __future__ import annotations

import copy
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from holdfast.config.declare import Meta, settings_of
from holdfast.config.decode import decode
from holdfast.config.schema import setting_schema
from holdfast.config.synonyms import did_you_mean_key
from holdfast.errors import ConfigError, Problem
from holdfast.retention.presets import PRESETS
from holdfast.retention.registry import METHODS, NONE, declared, method_class, method_schema, title

METHOD = "method"
"""The parameter that says which arm a trial is, where there are several."""
DIRECT = "direct"
"""The arm without a method."""
DIRECT_TITLE = "direct fine-tuning"
TRAIN, TEXT = "train", "label"
"""Items of an arm beside its methods: settings of its own, and what it is called."""
HOW_FAR = frozenset(
    {
        *(
            "learning_rate",
            "lr_scheduler_type",
            "lr_scheduler_kwargs",
            "warmup_steps",
            "warmup_ratio",
        ),
        *("num_train_epochs", "max_steps"),
    }
)
"""Settings that say how fast and how far direct fine-tuning goes; with another one (an adapter, a
loss) it is another way of tuning."""
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Values tried one by one. Lists and mappings among them are written as JSON where a storage
    wants plain values."""

    values: tuple[Any, ...]

    def tried(self) -> list[Any]:
        """What a grid tries, as a storage keeps it."""
        return [_plain(v) for v in self.values]

    def ends(self) -> list[Any]:
        """The values among which every mistake shows."""
        return self.tried()

    @property
    def varies(self) -> bool:
        """Whether there is more than one value."""
        return len(self.values) > 1

    def middle(self) -> Any:
        """The first value."""
        return self.values[0]

    def value(self, stored: Any) -> Any:
        """A setting's value from what a storage holds."""
        for value in self.values:
            plain = _plain(value)
            if plain == stored and type(plain) is type(stored):
                return value
        return stored

    def suggest(self, trial: Any, name: str) -> Any:
        """One of the values, as an Optuna trial draws it."""
        return trial.suggest_categorical(name, self.tried()) if self.varies else self.tried()[0]


@dataclass(frozen=True, kw_only=True)
class Range:
    """Numbers between two ends."""

    log: Annotated[tuple[float, float] | None, Meta(gt=0)] = None
    """The two ends of a logarithmic range, the smaller one first."""
    linear: tuple[float, float] | None = None
    """The two ends of a linear range, the smaller one first."""
    points: Annotated[int | None, Meta(ge=2)] = None
    """How many values of the range a grid tries."""

    def problems(self) -> list[str]:
        """What does not go together."""
        if (self.log is None) == (self.linear is None):
            return ["expected a list of values, {log: [low, high]} or {linear: [low, high]}."]
        if self.low < self.high:
            return []
        kind = "log" if self.log else "linear"
        return [
            Problem(kind, f"expected two numbers, the smaller first, got {[self.low, self.high]}.")
        ]

    @property
    def low(self) -> float:
        """The lower end."""
        return (self.log or self.linear or (0.0, 0.0))[0]

    @property
    def high(self) -> float:
        """The upper end."""
        return (self.log or self.linear or (0.0, 0.0))[1]

    @property
    def varies(self) -> bool:
        """True: the ends differ."""
        return True

    def tried(self) -> list[Any]:
        """What a grid tries, both ends among them."""
        count = self.points or 2
        numbers = [self.low]
        for index in range(1, count - 1):
            share = index / (count - 1)
            if self.log:  # 0.316228 reads better than sixteen digits
                low, high = math.log(self.low), math.log(self.high)
                text = f"{math.exp(low + share * (high - low)):.6g}"
            else:
                text = f"{self.low + share * (self.high - self.low):.10g}"
            numbers.append(float(text))
        return [*numbers, self.high]

    def ends(self) -> list[Any]:
        """The values among which every mistake shows."""
        return [self.low, self.high]

    def middle(self) -> Any:
        """The middle; on a logarithmic range the geometric one."""
        return float(
            f"{math.sqrt(self.low * self.high) if self.log else (self.low + self.high) / 2:.6g}"
        )

    def value(self, stored: Any) -> Any:
        """A setting's value from what a storage holds."""
        return stored

    def suggest(self, trial: Any, name: str) -> Any:
        """A number of the range, as an Optuna trial draws it."""
        return trial.suggest_float(name, self.low, self.high, log=self.log is not None)


Values = Choices | Range
Axis = tuple[tuple[str | int, ...], Values]
"""Where a varied setting stands in a training configuration, key by key, and its values."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way to retain what was known: methods with constants, and which of their parameters
    vary."""

    name: str
    """The methods' names joined by "+", "direct" for none; numbered where several arms have the
    same."""
    retention: list[dict[str, dict[str, Any]]]
    """As a training config has it, without what varies."""
    vary: dict[str, Axis] = field(default_factory=dict)
    """By parameter."""
    train: dict[str, Any] = field(default_factory=dict)
    """Settings of the training configuration that hold under it alone, without what varies."""
    text: str = ""
    """What tells it from others with the same methods; empty: its number."""

    @property
    def kind(self) -> str:
        """The name without its number."""
        return self.name.partition(" #")[0]


@dataclass(frozen=True, kw_only=True)
class Space:
    """All that varies."""

    arms: list[Arm]
    """One with the base's own methods where none are listed."""
    shared: dict[str, Values]
    """Settings of the training configuration that vary under every arm."""

    def axes(self, arm: Arm) -> dict[str, Axis]:
        """What varies under an arm, by parameter: what it sets itself does not."""
        taken = {path for path, _ in arm.vary.values()} | {(name,) for name in arm.train}
        axes = dict(arm.vary)
        for name, values in self.shared.items():
            if (name,) not in taken:
                axes[name] = ((name,), values)
        return axes

    def parameters(self, arm: Arm) -> dict[str, Values]:
        """The values under an arm, by parameter."""
        return {name: values for name, (_, values) in self.axes(arm).items()}

    def _each(self) -> Iterator[tuple[dict[str, Any], dict[str, Values]]]:
        """Every arm, as the parameter that chooses it, and its parameters."""
        for arm in self.arms:
            chosen = {METHOD: arm.name} if len(self.arms) > 1 else {}
            yield chosen, self.parameters(arm)

    def grid(self) -> list[dict[str, Any]]:
        """Every combination as `{parameter: value}`, arms in the order given."""
        combinations = []
        for chosen, parameters in self._each():
            for values in itertools.product(
                *(parameter.tried() for parameter in parameters.values())
            ):
                combinations.append({**chosen, **dict(zip(parameters, values, strict=True))})
        return combinations

    def middle(self) -> dict[str, Any]:
        """Shared settings at their first value, or in the middle of their range: for the reference,
        where the base leaves them open."""
        return {name: values.middle() for name, values in self.shared.items()}

    def corners(self) -> Iterator[dict[str, Any]]:
        """Few combinations that show whether every value is legal: each value of each parameter
        once, with the first of the others."""
        for chosen, parameters in self._each():
            ends = {name: values.ends() for name, values in parameters.items()}
            base = {**chosen, **{name: values[0] for name, values in ends.items()}}
            yield base
            for name, values in ends.items():
                for value in values[1:]:
                    yield {**base, name: value}

    def suggest(self, trial: Any, *, everything: bool = False) -> dict[str, Any]:
        """Asks an Optuna trial for a value of each parameter of the arm that it chooses.

        Args:
            trial: an `optuna.Trial`.
            everything: asks for the parameters of the other arms too and leaves them unused, for
                samplers that cross trials parameter by parameter and know only what all trials
                have.
        """
        params: dict[str, Any] = {}
        if len(self.arms) > 1:
            params[METHOD] = trial.suggest_categorical(METHOD, [a.name for a in self.arms])
        for name, values in self.parameters(self.arm(params)).items():
            params[name] = values.suggest(trial, name)
        for other in self.arms if everything else ():
            for name, values in self.parameters(other).items():
                if name not in params:
                    values.suggest(trial, name)
        return params

    def arm(self, params: Mapping[str, Any]) -> Arm:
        """The arm that a combination belongs to."""
        name = params.get(METHOD)
        return next((a for a in self.arms if a.name == name), self.arms[0])

    def kind(self, params: Mapping[str, Any]) -> str:
        """What tables and plots put a combination with: the names of its methods; "direct" for
        direct fine-tuning, at whichever rate; and where no method but other settings tell it from
        that, what it is called, else these."""
        arm = self.arm(params)
        keys = [*arm.train, *(str(path[0]) for path, _ in arm.vary.values())]
        if arm.retention or not set(keys) - HOW_FAR:
            return arm.kind
        return re.sub(r"[+#\s]+", " ", arm.text or ", ".join(keys)).strip()

    def settings(self, base: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
        """The training configuration of a combination.

        Args:
            base: the study's `train:` section.
            params: as `grid` or `suggest` gave it.
        """
        arm = self.arm(params)
        settings = copy.deepcopy({**base, **arm.train, "retention": arm.retention})
        for name, (path, values) in self.axes(arm).items():
            if name in params:
                _inside(settings, path)[path[-1]] = values.value(params[name])
        return settings

    def arm_label(self, params: Mapping[str, Any]) -> str:
        """The arm of a combination for people: its methods and what tells it from others with the
        same; direct fine-tuning is one way at whichever rate."""
        arm, kind = self.arm(params), self.kind(params)
        if arm.retention:
            return _titled(arm)
        return DIRECT_TITLE if kind == DIRECT else kind

    def label(self, params: Mapping[str, Any]) -> str:
        """What tables and plots call a combination: the method, and what varies."""
        arm = self.arm(params)
        methods = [_key(next(iter(m))) for m in arm.retention] or [DIRECT]
        words = [_titled(arm)]
        for name, values in self.parameters(arm).items():
            if values.varies and name in params:
                value = params[name]
                text = f"{value:g}" if isinstance(value, float) else str(value)
                words.append(f"{_short(name, methods)} {text}")
        return ", ".join(words)


# ------------------------------------------------------------------------------------------ reading


@dataclass(kw_only=True)
class _Reader:
    """Reads the values of a `vary:` section."""

    grid: bool
    """Whether ranges need points."""
    problems: list[str]
    """Gets one sentence a mistake."""
    known: Sequence[str] = ()
    """Keys of a training configuration that may vary."""

    def values(self, value: Any, where: str) -> Values | None:
        """What a key is tried with; None with a problem noted where it makes no sense."""
        if isinstance(value, Mapping):
            return self._range(value, where)
        values = value if isinstance(value, list) else [value]
        if not values:
            self.problems.append(f"{where}: expected at least one value to try, got an empty list")
            return None
        if len(set(map(json.dumps, map(_plain, values)))) < len(values):
            self.problems.append(f"{where}: expected different values, got {value}")
        return Choices(values=tuple(map(_as_number, values)))

    def _range(self, value: Mapping[str, Any], where: str) -> Range | None:
        tried, problems = decode(Range, value)
        self._note(problems, where)
        if tried is not None and self.grid and tried.points is None:
            self.problems.append(
                f"{where}: a grid needs the number of points of this range. Add 'points: 5', or "
                "search with random, tpe or nsga2."
            )
        return tried

    def _note(self, problems: Iterable[Problem], where: str) -> None:
        for problem in problems:
            self.problems.append(f"{where}{'.' if problem.path else ': '}{problem}")

    def methods(self, value: Any, where: str) -> list[dict[str, dict[str, Any]]]:
        """One arm as a list of `{method: parameters}`; what the methods themselves refuse is seen
        later, with values in it."""
        methods: list[dict[str, dict[str, Any]]] = []
        for item in value if isinstance(value, list) else [] if value is None else [value]:
            if isinstance(item, str) and item.lower() in NONE:
                continue
            pairs = list(item.items()) if isinstance(item, Mapping) else [(item, None)]
            name, parameters = pairs[0] if len(pairs) == 1 else (None, None)
            if not isinstance(name, str) or not isinstance(parameters, (Mapping, type(None))):
                self.problems.append(
                    f"{where}: expected methods such as 'label_annealing: {{weight: [0.3, 1, 3]}}' "
                    f"or 'none', got {item!r}"
                )
                continue
            if (preset := PRESETS.get(name)) is not None:
                self._check_preset(name, preset, parameters or {}, where)
                methods += copy.deepcopy(preset.entries(parameters or {}))
                continue
            try:
                cls = method_class(name, also=("none",))
            except ConfigError as error:
                self.problems.extend(f"{where}: {problem}" for problem in error.problems)
                continue
            # an edited method is another study
            source = {} if cls.origin is None else {"sha256": cls.origin.sha256}
            methods.append({name: copy.deepcopy(dict(parameters or {})) | source})
        return methods

    def _check_preset(
        self, name: str, preset: Any, parameters: Mapping[str, Any], where: str
    ) -> None:
        """Its own bounds, value by value: its methods may allow more."""
        for key, value in parameters.items():
            if not isinstance(value, Mapping):  # a range is checked as one
                for tried in value if isinstance(value, list) else [value]:
                    _, problems = decode(preset, {key: _as_number(tried)})
                    self._note(problems, f"{where}.{name}")

    def arms(self, section: Any) -> list[Arm]:
        """The arms under `arms:`."""
        if not isinstance(section, list) or not section:
            got = "an empty list" if section == [] else repr(section)
            self.problems.append(
                "arms: expected a list of ways to train, such as '- label_annealing: {weight: "
                f"[0.3, 1, 3]}}', got {got}"
            )
            return []
        arms: list[Arm] = []
        for number, item in enumerate(section):
            where = f"arms[{number}]"
            item, train, text = self._beside(item, where)
            retention = self.methods(item, where)
            name = _name(retention)
            same = sum(a.kind == name for a in arms)
            unique = f"{name} #{same + 1}" if same else name
            if not text and (preset := _preset_of(item)):
                text = f"{preset} #{same + 1}" if same else preset
            prefix = f"{unique}." if same or len(retention) > 1 else ""
            vary: dict[str, Axis] = {}
            for index, method in enumerate(retention):
                (method_name, parameters), *_ = method.items()
                key = _key(method_name)
                axes = self._varying(
                    parameters,
                    ("retention", index, method_name),
                    f"{where}.{key}",
                    f"{prefix}{key}.",
                )
                vary |= axes
            vary |= self._varying(train, (), f"{where}.{TRAIN}", prefix)
            arms.append(Arm(name=unique, retention=retention, vary=vary, train=train, text=text))
        return arms

    def _varying(
        self, settings: dict[str, Any], place: tuple[str | int, ...], where: str, prefix: str
    ) -> dict[str, Axis]:
        """What varies of settings, which is taken out of them; a list of one value becomes that
        value."""
        vary: dict[str, Axis] = {}
        for keys, value in list(_leaves(settings)):
            dotted = ".".join(keys)
            values = self.values(value, f"{where}.{dotted}")
            inner = _inside(settings, keys)
            if values is not None and values.varies:
                del inner[keys[-1]]
                vary[f"{prefix}{dotted}"] = ((*place, *keys), values)
            elif values is None:
                inner[keys[-1]] = None  # a problem was noted
            elif place or isinstance(values.middle(), (int, float)):
                # one of words may be a training's own setting, as train_only
                inner[keys[-1]] = values.middle()
        return vary

    def _beside(self, item: Any, where: str) -> tuple[Any, dict[str, Any], str]:
        """An arm's methods, its own settings and its label."""
        train: dict[str, Any] = {}
        text, methods = "", []
        for entry in item if isinstance(item, list) else [item]:
            key = next(iter(entry)) if isinstance(entry, Mapping) and len(entry) == 1 else None
            if key == TEXT and isinstance(entry[key], str) and entry[key].strip():
                text = entry[key].strip()
            elif key == TRAIN and isinstance(entry[key], Mapping):
                train = {}
                for setting, value in entry[key].items():
                    name = str(setting)
                    if name in FIXED or name not in self.known:
                        self.problems.append(
                            f"{where}.{TRAIN}.{name}: {_why_not(name, self.known)}"
                        )
                    else:
                        train[name] = copy.deepcopy(value)
            else:
                methods.append(entry)
        return (methods if isinstance(item, list) else methods[0] if methods else []), train, text


def _preset_of(item: Any) -> str | None:
    """The preset that an arm is, beside its own settings."""
    methods = item if isinstance(item, list) else [item]
    if len(methods) != 1:
        return None
    name = next(iter(methods[0]), None) if isinstance(methods[0], Mapping) else methods[0]
    return name if isinstance(name, str) and name in PRESETS else None


def read_space(
    arms: Sequence[Any] | None,
    vary: Mapping[str, Any],
    base_retention: Any,
    *,
    grid: bool,
    known: Sequence[str],
    problems: list[str],
) -> Space:
    """The sections `arms:` and `vary:` as a `Space`; mistakes are added to `problems`.

    Args:
        arms: the section as YAML gave it; None: the base's own methods are the only arm.
        vary: likewise.
        base_retention: `train.retention`, which an arm replaces.
        grid: whether ranges need points.
        known: keys of a training configuration that may vary.
        problems: gets one sentence a mistake.
    """
    reader = _Reader(grid=grid, problems=problems, known=known)
    base = reader.methods(base_retention, "train.retention")
    read_arms = [] if arms is None else reader.arms(arms)
    shared: dict[str, Values] = {}
    for setting, value in vary.items():
        key = str(setting)
        where = f"vary.{key}"
        if key.partition(".")[0] in METHODS:
            problems.append(
                f"{where}: list the values of a method's parameter under arms, as in 'l2: "
                "{{coefficient: [0.01, 0.1]}}'"
            )
        elif key in FIXED or key not in known:
            problems.append(f"{where}: {_why_not(key, known)}")
        elif (values := reader.values(value, where)) is not None:
            shared[key] = values
    return Space(arms=read_arms or [Arm(name=_name(base), retention=base)], shared=shared)


FIXED: dict[str, str] = {
    **dict.fromkeys(
        ("seed", "data_seed"),
        "seeds repeat every trial and cannot vary. Write 'seeds: [0, 1, 2]' in the study.",
    ),
    **dict.fromkeys(
        ("output_dir", "evaluation", "env"),
        "cannot vary: every trial has its own folder and is measured in the same way.",
    ),
}
"""Keys of a training configuration that trials do not differ in, and why."""


def _why_not(key: str, known: Sequence[str]) -> str:
    return (
        FIXED.get(key) or f"no such key in a training configuration.{did_you_mean_key(key, known)}"
    )


def arms_schema() -> dict[str, Any]:
    """JSON Schema of the `arms:` section; what an arm may set of its own is `#/$defs/tried`, from
    `tried_schema`."""
    method = method_schema(
        lambda cls: {
            "type": "object",
            "properties": {s.name: _tried_schema(setting_schema(s)) for s in settings_of(cls)},
            "additionalProperties": False,
        },
        {**METHODS, **PRESETS},
    )
    own_settings = {"$ref": "#/$defs/tried"}
    extras = []
    for key, schema in ((TRAIN, own_settings), (TEXT, {"type": "string"})):
        properties = {key: schema}
        extras.append(
            {
                "type": "object",
                "properties": properties,
                "required": [key],
                "additionalProperties": False,
            }
        )
    beside = {"anyOf": [*method["anyOf"], *extras]}
    return {
        "description": "Ways to train. Each value in a list is tried. "
        "A list within the list combines methods.",
        "type": "array",
        "minItems": 1,
        "items": {"anyOf": [*method["anyOf"], extras[0], {"type": "array", "items": beside}]},
    }


def vary_schema(known: Iterable[str]) -> dict[str, Any]:
    """JSON Schema of the `vary:` section; its keys are those of `#/$defs/tried`, from
    `tried_schema`.

    Args:
        known: keys of a training configuration that may vary.
    """
    return {
        "type": "object",
        "properties": {name: {"$ref": f"#/$defs/tried/properties/{name}"} for name in known},
        "additionalProperties": False,
    }


def tried_schema(known: Iterable[str]) -> dict[str, Any]:
    """JSON Schema of keys of a training configuration with what is tried of each; the argument is
    that of `vary_schema`."""
    settings = {name: _tried_schema({"$ref": f"#/$defs/train/properties/{name}"}) for name in known}
    return {"type": "object", "properties": settings, "additionalProperties": False}


def _tried_schema(value: dict[str, Any]) -> dict[str, Any]:
    """Schema of a setting's value, of a list of its values, and of a range."""
    about = {"description": value.pop("description")} if "description" in value else {}
    if value.get("type") == "object":
        value = {}  # a parameter inside it may vary
    return {
        **about,
        "anyOf": [
            value,
            {"type": "array", "items": value, "minItems": 1},
            {"$ref": "#/$defs/range"},
        ],
    }


# ------------------------------------------------------------------------------------------ helpers


def _titled(arm: Arm) -> str:
    names = []
    for method in arm.kind.split("+"):
        names.append(DIRECT_TITLE if method == DIRECT else title(method))
    text = arm.text or arm.name.partition(" #")[2]
    return " + ".join(names) + (f" ({text})" if text else "")


def _leaves(
    parameters: Mapping[str, Any], above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The parameters that vary: lists and ranges, wherever they stand."""
    for key, value in parameters.items():
        if isinstance(value, list) or (
            isinstance(value, Mapping) and ("log" in value or "linear" in value)
        ):
            yield (*above, str(key)), value
        elif isinstance(value, Mapping):
            yield from _leaves(value, (*above, str(key)))


def _inside(value: Any, path: Sequence[str | int]) -> Any:
    """What holds the last key of a place."""
    for key in path[:-1]:
        value = value[key]
    return value


def _name(retention: Sequence[Mapping[str, Any]]) -> str:
    return "+".join(_key(next(iter(m))) for m in retention) or DIRECT


def _key(name: str) -> str:
    """The method's own name, which keys of parameters and kinds of trials have in place of where
    the method is."""
    cls = declared(name)
    return name if cls is None else cls.name


def _plain(value: Any) -> Any:
    """A value as a storage keeps it: numbers, text, booleans and nothing as they are, all else as
    JSON."""
    return (
        value
        if value is None or isinstance(value, (bool, int, float, str))
        else json.dumps(value, sort_keys=True)
    )


def _as_number(value: Any) -> Any:
    """YAML 1.1 reads 1e-4 as text; numbers that are text are numbers here."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return int(value) if value.lstrip("+-").isdigit() else float(value)
    return value


def _short(name: str, methods: Sequence[str]) -> str:
    """A parameter without its arm and, where one method is all there is, without the method."""
    parts = name.split(".")
    for index, word in enumerate(parts):
        if word in methods:
            name = ".".join(parts[index + 1 :])
            name = name if len(methods) == 1 else f"{word} {name}"
            break
    return name.replace("_", " ")
