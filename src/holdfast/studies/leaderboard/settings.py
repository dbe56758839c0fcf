"""What a leaderboard was asked for: its YAML, checked as a whole before anything runs.

```yaml
name: small
tracks:                                   # each a study of 'holdfast sweep' without `vary`: a file, or its keys
  code:
    small: code
    train: {...}
    objectives: {target: functions, source: [prose, facts]}
    rates: [1.0e-4, 2.0e-4, 4.0e-4]       # in place of the leaderboard's
  gsm8k: {file: tracks/gsm8k.yaml, names: {replay: old.jsonl}}
  real: {record: runs/real/study.json}    # finished elsewhere: read, never computed
methods:                                  # as under `vary.retention` of a sweep, each with the grid of its strength
  - label_annealing: {weight: [0.1, 1, 10]}
  - replay: {data: "${replay}", fraction: [0.05, 0.1, 0.3]}
  - [{train: {use_peft: true, learning_rate: [3.0e-4, 1.0e-3]}}, {label: LoRA}]
rates: [1.0e-5, 3.0e-5]                   # of direct fine-tuning, and of every method that has no rates of its own
seeds: [0, 1, 2]
```

The study of a track varies `direct: {learning_rate: RATES}` and every method with the rates beside it; its grids grow
until figures at equal target can be had. Methods are known by the registry alone.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from holdfast.config.declare import MAX_SEED, Meta, settings_of
from holdfast.config.decode import Given, decode
from holdfast.config.schema import json_schema, object_schema
from holdfast.config.values import Mistake
from holdfast.config.yaml_file import read_yaml
from holdfast.errors import ConfigError, DataError
from holdfast.records.leaderboard import ASKED_FILE
from holdfast.records.study import STUDY_FILE
from holdfast.retention.registry import declared
from holdfast.studies.engine import small as small_settings
from holdfast.studies.engine.keys import ALLOWED, NAME, StudyKeys
from holdfast.studies.engine.space import DIRECT, TRAIN, Alternative, vary_schema
from holdfast.studies.tradeoff.study import Objectives, StudyConfig, study_config
from holdfast.support.files import read_object, to_jsonable
from holdfast.support.paths import expanded

LEAST_SEEDS = 3
"""With fewer, an interval over seeds says next to nothing, and ranks are chance."""
_PLACEHOLDER = re.compile(r"\$\{(\w+)\}")
Rates = Annotated[tuple[float, ...], Meta(gt=0, expected="learning rates, such as [1.0e-5, 3.0e-5]")]
Methods = Annotated[
    list[Any],
    Meta(
        expected="a list of alternatives, such as '- label_annealing: {weight: [0.3, 1, 3]}'",
        json_schema=lambda: {"$ref": "#/$defs/methods"},
    ),
]


@dataclass(frozen=True, kw_only=True)
class TrackSettings:
    """Keys of a track."""

    file: str | None = None
    """A YAML file with the other keys."""
    record: str | None = None
    """The study.json of a finished trade-off study, or its folder: it is read, and nothing is run."""
    train: Annotated[
        dict[str, Any] | str | None,
        Meta(json_schema=lambda: {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/train"}]}),
    ] = None
    """A training configuration, as a mapping or a YAML file."""
    small: Annotated[str | None, Meta(json_schema=small_settings.settings_schema)] = None
    """A small base and data made offline."""
    objectives: Objectives = field(default_factory=Objectives)
    """{target: entries, source: entries, validation: entries}, as of a sweep."""
    teacher: str | None = None
    """As of a sweep."""
    rates: Rates = ()
    """Learning rates in place of the leaderboard's."""
    methods: Methods = field(default_factory=list)
    """Methods in place of the leaderboard's."""
    names: dict[str, str] = field(default_factory=dict)
    """What ${name} stands for in methods on this track; of a small setting its own names."""


def _tracks_schema() -> dict[str, Any]:
    track = {"anyOf": [{"type": "string"}, object_schema(settings_of(TrackSettings))]}
    return {"type": "object", "minProperties": 1, "additionalProperties": track}


@dataclass(frozen=True, kw_only=True)
class LeaderboardSettings(StudyKeys):
    """Keys of a leaderboard."""

    name: str = "leaderboard"
    tracks: Annotated[
        dict[str, Any],
        Meta(
            expected="tracks by name, such as 'code: {small: code, train: {...}}'",
            json_schema=_tracks_schema,
        ),
    ] = field(default_factory=dict)
    """What is learnt and what is to be kept, by name: keys of a track, or a YAML file with them."""
    methods: Methods = field(default_factory=list)
    """Ways of fine-tuning, as under vary.retention of a sweep, each with the values of its strength."""
    added: Methods = field(default_factory=list)
    """What 'holdfast leaderboard add' has put beside them, on every track."""
    rates: Rates = ()
    """Learning rates of direct fine-tuning, and of every method that has none of its own."""
    seeds: Annotated[tuple[int, ...], Meta(ge=0, le=MAX_SEED, least=1)] = (0, 1, 2)
    """Repetitions of every run, at least three."""
    extend: Annotated[int, Meta(ge=0)] = 2
    """Values by which a grid may grow at each end of a method's strength until it reaches far enough."""

    def problems(self) -> list[Mistake | str]:
        """Names, seeds, and whether there is anything to run."""
        found = super().problems()

        def add(key: str, text: str) -> None:
            found.append(Mistake(path=(key,), text=text))

        if len(set(self.seeds)) < max(LEAST_SEEDS, len(self.seeds)):
            text = "so that intervals and ranks mean something"
            add("seeds", f"expected at least {LEAST_SEEDS} different ones, {text}, got {list(self.seeds)}.")
        if not self.tracks:
            add("tracks", "is missing; expected at least one track, such as 'code: {small: code, train: {...}}'.")
        folded: dict[str, str] = {}
        for name in self.tracks:
            other = folded.setdefault(name.casefold(), name)
            if other != name:
                add("tracks", f"{other} and {name} are one name to some file systems. Rename one of them.")
            if not NAME.fullmatch(name):
                add("tracks", f"{name!r}: expected {ALLOWED}.")
        return found


@dataclass(frozen=True, kw_only=True)
class TrackConfig:
    """A track, checked."""

    name: str
    study: StudyConfig | None
    """None where it is read from a record."""
    record: Path | None
    """The record that is read."""

    @property
    def file(self) -> Path:
        """The record of its study, there or not."""
        return self.record or Path(self.study.output_dir if self.study else ".") / STUDY_FILE


@dataclass(frozen=True, kw_only=True)
class LeaderboardConfig:
    """A leaderboard, checked."""

    name: str
    tracks: list[TrackConfig]
    output_dir: Path
    workers: int | None
    resolved: dict[str, Any]
    """As plain JSON; itself a valid configuration, but for a storage, which may hold a password."""


def load_leaderboard(
    path: str | os.PathLike[str], overrides: Mapping[str, Any] | None = None, *, add: Sequence[Any] = ()
) -> LeaderboardConfig:
    """The leaderboard in a YAML file; see `leaderboard_config`."""
    place = expanded(path)
    given = read_yaml(place)
    changed = {k: v for k, v in (overrides or {}).items() if v is not None}
    given.values = {"name": place.stem, **given.values, **changed}
    given.from_line |= set(changed)
    return leaderboard_config(given, beside=place.parent, add=add)


def leaderboard_config(
    values: Mapping[str, Any] | Given, *, beside: Path | None = None, add: Sequence[Any] = ()
) -> LeaderboardConfig:
    """A leaderboard from keys as in the YAML. What was added to the one in its folder stays in it.

    Args:
        values: keys of `LeaderboardSettings`.
        beside: folder that files are looked up in, before the working directory.
        add: methods more, for all tracks.

    Raises:
        ConfigError: with every mistake at once.
    """
    given = values if isinstance(values, Given) else Given(values=dict(values))
    keys = given.set_here(LeaderboardSettings)
    asked, mistakes = decode(LeaderboardSettings, keys)
    given.check(mistakes)
    assert asked is not None
    out = asked.folder
    added: list[Any] = []
    for entry in map(to_jsonable, [*_added(out), *asked.added, *add]):
        added += [] if entry in added else [entry]
    problems: list[str] = []
    tracks = [_track(name, value, asked, out, added, beside, problems) for name, value in asked.tracks.items()]
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)), source=given.file)
    resolved = {k: v for k, v in to_jsonable(asked).items() if k != "storage" and (k, v) != ("workers", None)}
    resolved["tracks"] = {name: _whole(value, beside) for name, value in asked.tracks.items()}
    return LeaderboardConfig(
        name=asked.name,
        tracks=tracks,
        output_dir=out,
        workers=asked.workers,
        resolved={**resolved, "output_dir": str(out), "added": added},
    )


def leaderboard_schema(train: Mapping[str, Any], known: Sequence[str]) -> dict[str, Any]:
    """JSON Schema of a leaderboard's file.

    Args:
        train: the schema of a training configuration.
        known: its keys that may vary.
    """
    text = "The file of 'holdfast leaderboard run --config'."
    schema = json_schema(LeaderboardSettings, title="holdfast leaderboard", description=text)
    from holdfast.studies.engine.space import Range

    run = {k: v for k, v in train.items() if k not in ("$schema", "title", "$defs")}
    parts = {"train": run, "methods": vary_schema(known)["properties"]["retention"]}
    return {**schema, "$defs": {**train["$defs"], **parts, "range": object_schema(settings_of(Range))}}


# -------------------------------------------------------------------------------------------------------------- tracks


def _added(out: Path) -> list[Any]:
    """The methods that were added to the leaderboard of a folder before."""
    try:
        from holdfast.config.yaml_file import parse_yaml

        found = parse_yaml((expanded(out) / ASKED_FILE).read_text(encoding="utf-8"))
    except OSError:
        return []
    return list(found.values.get("added") or []) if isinstance(found, Given) else []


def _beside(name: str, beside: Path | None) -> Path:
    places = [p for p in ((beside / name) if beside else None, expanded(name)) if p is not None]
    return next((p for p in places if p.exists()), places[-1])


def _whole(value: Any, beside: Path | None) -> Any:
    """A track's keys with its file's among them, and with paths that hold from the working directory."""
    value = {"file": value} if isinstance(value, str) else dict(value)
    if value.get("file"):
        path = _beside(str(value.pop("file")), beside)
        value = {**read_yaml(path, option="tracks:").values, **value}
        beside = path.parent
    for key in ("record", "train"):
        if isinstance(value.get(key), str):
            value[key] = str(_beside(value[key], beside))
    return value


def _track(
    name: str,
    value: Any,
    board: LeaderboardSettings,
    out: Path,
    added: Sequence[Any],
    beside: Path | None,
    problems: list[str],
) -> TrackConfig:
    """One track; its mistakes are added to `problems`."""
    where = f"tracks.{name}"
    nothing = TrackConfig(name=name, study=None, record=None)
    if not isinstance(value, (str, Mapping)):
        problems.append(f"{where}: expected the keys of a track, or a YAML file with them, got {value!r}.")
        return nothing
    try:
        asked, mistakes = decode(TrackSettings, _whole(value, beside))
    except ConfigError as error:
        problems += [f"{where}: {p}" for p in error.problems]
        return nothing
    problems += [f"{where}.{m.sentence()}" for m in mistakes]
    if asked is None:
        return nothing
    if asked.record is not None:
        return _recorded(name, asked, problems)
    before = len(problems)
    rates = list(asked.rates or board.rates)
    alternatives = [*([{DIRECT: {"learning_rate": rates}}] if rates else [])]
    own = [*(asked.methods or board.methods), *added]
    alternatives += [_with_rates(entry, rates) for entry in _named(own, asked, where, problems)]
    if len(problems) > before:
        return nothing
    folder = out / name
    alternatives = _in_order(alternatives, folder, where, problems)
    given = {
        "name": f"{board.name}-{name}",
        "small": asked.small,
        "train": _train(asked.train, rates),
        "objectives": {k: list(v) for k, v in vars(asked.objectives).items() if v},
        "teacher": asked.teacher,
        "vary": {"retention": alternatives},
        "seeds": list(board.seeds),
        "search": {"sampler": "grid", "extend": board.extend, "until": "equal_target"} if board.extend else "grid",
        "select": {"rule": "knee"},
        "keep": "none",
        "workers": board.workers,
        "output_dir": str(folder),
        "storage": board.storage,
    }
    if len(problems) > before or not own:
        if not own:
            problems.append("methods: is missing; expected what is held against direct fine-tuning.")
        return nothing
    try:
        study = study_config({k: v for k, v in given.items() if v is not None})
    except ConfigError as error:
        problems += [_from_track(p, where, len(alternatives) - len(own)) for p in error.problems]
        return nothing
    problems += [f"{where}: {p}" for p in _space_problems(study)]
    return TrackConfig(name=name, study=study, record=None)


def _recorded(name: str, asked: TrackSettings, problems: list[str]) -> TrackConfig:
    place = Path(str(asked.record))
    place = place / STUDY_FILE if place.is_dir() else place
    if asked != TrackSettings(record=asked.record):
        problems.append(f"tracks.{name}: what is read from a record has no other keys.")
    if not place.is_file():
        problems.append(f"tracks.{name}.record: expected the study.json of a trade-off study, found no {place}.")
    return TrackConfig(name=name, study=None, record=place)


def _train(train: Any, rates: Sequence[float]) -> Any:
    """The training configuration, at one of the rates where it names none."""
    if isinstance(train, Mapping) and rates and "learning_rate" not in train:
        return {**train, "learning_rate": rates[0]}
    return train


def _named(methods: Sequence[Any], track: TrackSettings, where: str, problems: list[str]) -> list[Any]:
    """The methods with ${name} as the track has it; those of a small setting stay until it is made."""
    there = dict.fromkeys(small_settings.stand_ins(track.small, "")) if track.small else track.names
    if track.small and track.names:
        problems.append(f"{where}.names: a small setting has names of its own: {', '.join(there)}. Leave it out.")
    wanted = list(dict.fromkeys(name for text in _texts(list(methods)) for name in _PLACEHOLDER.findall(text)))
    lacking = [name for name in wanted if name not in there]
    for name in lacking:
        have = f"the small setting makes {', '.join(there)}" if track.small else f"{where}.names has no {name}"
        problems.append(f"{where}: methods speak of ${{{name}}}, and {have}.")
    if lacking or track.small:
        return [copy.deepcopy(m) for m in methods]
    return [small_settings.fill(copy.deepcopy(m), track.names) for m in methods]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list)):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(one)


def _with_rates(entry: Any, rates: Sequence[float]) -> Any:
    """An alternative with learning rates, where it has none of its own."""
    if not rates:
        return entry
    parts = list(entry) if isinstance(entry, list) else [entry]
    own = [p for p in parts if isinstance(p, Mapping) and set(p) == {TRAIN} and isinstance(p[TRAIN], Mapping)]
    train = {key: value for part in own for key, value in part[TRAIN].items()}
    mine = train.get("learning_rate", list(rates))
    rest = [p for p in parts if p not in own]
    return [*rest, {TRAIN: {**train, "learning_rate": mine[0] if isinstance(mine, list) and len(mine) == 1 else mine}}]


def _in_order(alternatives: Sequence[Any], folder: Path, where: str, problems: list[str]) -> list[Any]:
    """The alternatives behind those that the track was begun with, which keep their places."""
    try:
        there = read_object(folder / STUDY_FILE)["config"]["vary"]["retention"]
    except (DataError, OSError, KeyError, TypeError):
        return list(alternatives)
    now = [to_jsonable(a) for a in alternatives]
    for gone in (a for a in there if a not in now):
        problems.append(
            f"{where}: was begun with {gone}, which is not asked for now. Rows can be added, not changed or taken "
            f"back: put it back, or choose another output_dir."
        )
    return [*there, *(a for a in now if a not in there)]


def _from_track(problem: str, where: str, ahead: int) -> str:
    """A study's sentence in the words of the leaderboard's file."""
    told = re.sub(r"vary\.retention\[(\d+)\]", lambda m: f"methods[{int(m[1]) - ahead}]", problem)
    return told if told.startswith("methods[") else f"{where}: {told}"


def _space_problems(study: StudyConfig) -> Iterator[str]:
    """Grids of one value, and ways that nothing tells apart."""
    seen: dict[str, str] = {}
    for alternative in study.space.alternatives:
        params = {"method": alternative.name}
        way = study.space.way(params)
        if _has_strength(alternative) and not study.space.strengths(alternative):
            names = [f"{n}.{cls.strength[0]}" for n, cls in _methods(alternative) if cls.strength]
            yield (
                f"{way}: expected at least two values above 0 of its strength ({' or '.join(names)}), since it is "
                f"judged between them, got one. Write a list, such as [0.1, 1, 10]."
            )
        if seen.setdefault(way, alternative.name) != alternative.name and study.space.kind(params) != DIRECT:
            yield f"{way}: two methods are called so. Give them names: '- [{{...}}, {{label: NAME}}]'."


def _methods(alternative: Alternative) -> Iterator[tuple[str, Any]]:
    for entry in alternative.retention:
        for name in entry:
            if (cls := declared(name)) is not None:
                yield cls.name, cls


def _has_strength(alternative: Alternative) -> bool:
    return any(cls.strength for _, cls in _methods(alternative))


def with_default_grid(entry: Any) -> Any:
    """A method, by its name or with parameters, as a row: where no values of its strength are given, with a tenth and
    ten times the default; of a share, which ten times may not be, in odds (0.5: 0.0909, 0.5, 0.909).

    Raises:
        ConfigError: no such method.
    """
    from holdfast.retention.presets import PRESETS
    from holdfast.retention.registry import NONE, method_class

    name, given = next(iter(entry.items())) if isinstance(entry, Mapping) and len(entry) == 1 else (entry, None)
    if not isinstance(name, str) or name.lower() in NONE or not isinstance(given, (Mapping, type(None))):
        return entry
    cls, found = PRESETS.get(name) or method_class(name), dict(given or {})
    defaults = {s.name: s.default for s in settings_of(cls)}
    if cls.strength and not any(isinstance(found.get(p), (list, Mapping)) for p in cls.strength):
        leading = next((p for p in cls.strength if p in found), cls.strength[0])
        middle = found.get(leading, defaults[leading])
        if isinstance(middle, (int, float)) and not isinstance(middle, bool) and middle > 0:
            values = [float(f"{factor * middle:.6g}") for factor in (0.1, 1, 10)]
            if decode(cls, {**found, leading: values[-1]})[1] and middle < 1:
                odds = [factor * middle / (1 - middle) for factor in (0.1, 1, 10)]
                values = [float(f"{one / (1 + one):.6g}") for one in odds]
            found[leading] = [v for v in values if not decode(cls, {**found, leading: v})[1]]
    return {name: found}
