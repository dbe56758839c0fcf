"""What a study was asked to do: its YAML, checked as a whole before anything runs.

```yaml
name: code
train: run.yaml                       # a training configuration: a file, or the keys themselves
vary:                                 # see `space`
  retention:
    - label_annealing: {weight: [0.3, 1, 3]}
    - l2: {coefficient: [0.001, 0.01]}
objectives:                           # names of evaluation entries; several: their mean. Default: all of the suite of that name
  target: humaneval
  source: [gsm8k, mmlu]
seeds: [0, 1, 2]                      # every trial is repeated with each
search: {sampler: grid}               # grid, random, tpe, nsga2; these three with trials: 30 and seed: 0
pruning: {at: [0.5], margin: 0.1}     # stop trials that fall behind; left out: none is stopped
select: {rule: paper}                 # paper, target_within (points: 1), knee
output_dir: runs/code
```

Direct fine-tuning with the base's own settings is always the first trial: it is what the others are held against.
Imports neither torch nor Optuna until a study is read; the training configurations are checked by the code that will
read them.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError, did_you_mean
from holdfast.studies.tradeoff.space import Space, read_space
from holdfast.support.files import fingerprint

if TYPE_CHECKING:
    from holdfast.studies.engine.study import Job

SAMPLERS = ("grid", "random", "tpe", "nsga2")
KEEP = ("all", "frontier", "none")
KEYS = {
    "name": "of the study in its storage and on its page; default: the file's name",
    "train": "a training configuration, as a mapping or a YAML file",
    "small": "build a small base and data offline, for a study of minutes: code, math, alignment_tax, niche_knowledge",
    "vary": "what is tried",
    "objectives": "{target: entries, source: entries}",
    "seeds": "repetitions of every trial",
    "search": "{sampler, trials, seed}",
    "pruning": "{at, margin, wait_for}: which trials are stopped early",
    "select": "{rule, points, strict}: which trial is taken",
    "keep": "whose weights stay on disk: all, frontier, none",
    "teacher": "auto or cached: label annealing's teacher runs once for all trials; online: in each",
    "workers": "trials at a time on this machine",
    "output_dir": "folder of the study; default: runs/NAME",
    "storage": "a database that several machines share; default: a file in the folder",
}
"""Keys of a study, with what each is."""
_NAME = re.compile(r"[\w.-]+")
_PLACEHOLDER = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True, kw_only=True)
class Search:
    """How combinations are chosen."""

    sampler: str = "grid"
    trials: int | None = None
    """Beside direct fine-tuning; None for a grid, whose size is its own."""
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Pruning:
    """When a trial is stopped: at a share of the steps, or after a seed, where it is worse than another trial was
    there, on both sides.

    "Worse" is by more than `margin` of the range that the trials span at that point. A trial is only stopped after
    `wait_for` others passed.
    """

    at: tuple[float, ...] = ()
    """Shares of the first seed's steps at which both objectives are measured."""
    margin: float = 0.1
    wait_for: int = 4


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """One objective as asked for."""

    entries: tuple[tuple[str, str, str | None], ...]
    """(suite, name, metric); metric None: the one that leads."""

    @property
    def label(self) -> str:
        names = [f"{name} ({metric})" if metric else name for _, name, metric in self.entries]
        return names[0] if len(names) == 1 else f"mean of {', '.join(names)}"


@dataclass(frozen=True, kw_only=True)
class StudyConfig:
    """A study, checked. Made by `load_study` and `study_config`."""

    name: str
    train: dict[str, Any]
    """The base's training configuration, without seed and output folder. With `small`, names such as ${base} are still
    in it."""
    space: Space
    target: Wanted
    source: Wanted
    seeds: tuple[int, ...]
    search: Search
    pruning: Pruning | None
    select: dict[str, Any]
    keep: str
    teacher: str
    workers: int | None
    """None: as many as the machine is good for."""
    output_dir: Path
    storage: str
    """Address of the storage; may hold a password, so it is never shown: see `storage.shown`."""
    small: str | None
    resolved: dict[str, Any]
    """The YAML with the training configuration inside, without what may be secret: what the storage keeps for other
    workers."""
    notes: list[str] = field(default_factory=list)

    def trials(self) -> list[dict[str, Any]]:
        """What is put in the queue: every combination of a grid; else as many empty ones as trials are wanted. The
        reference comes first."""
        if self.search.sampler != "grid":
            return [{} for _ in range(self.search.trials or 0)]
        seen = {fingerprint(self.reference())}
        found = []
        for params in self.space.grid():
            key = fingerprint(self.settings(params))
            if key not in seen:  # a weight of 0 is direct fine-tuning too, but said otherwise, and stays
                seen.add(key)
                found.append(params)
        return found

    @property
    def measures(self) -> tuple[str, ...]:
        """What a trial reports."""
        return ("target gain", "source gain")

    def jobs(self) -> list[Job]:
        """Direct fine-tuning, then every trial, as the storage queues them."""
        from holdfast.studies.engine.study import LABEL, Job

        named = [
            Job(params=dict(p), attributes={"direct": False, **({LABEL: self.space.label(p)} if p else {})})
            for p in self.trials()
        ]
        return [Job(attributes={"direct": True}), *named]

    def settings(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The training configuration of a combination."""
        return self.space.settings(self.train, params)

    def reference(self) -> dict[str, Any]:
        """The training configuration of direct fine-tuning: the base's own values, and the middle of what it leaves
        open."""
        return {
            **copy.deepcopy(self.train),
            **{k: v for k, v in self.space.middle().items() if k not in self.train},
            "retention": [],
        }

    def differences(self, old: Mapping[str, Any]) -> list[str]:
        """What keeps the study whose `resolved` is `old` from being this one, a line a key. Selection, pruning and more
        trials may change."""
        before, now = deciding(old), deciding(self.resolved)
        changed = [key for key in dict.fromkeys([*before, *now]) if before.get(key) != now.get(key)]
        found = [f"{key}: {_brief(before.get(key))} there, {_brief(now.get(key))} now" for key in changed]
        trials = (old.get("search") or {}).get("trials")
        if trials and self.search.trials and self.search.trials < trials:
            found.append(
                f"search.trials: {trials} there, {self.search.trials} now; trials can be added, not taken back"
            )
        return found


def deciding(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """What two studies must share to be one, flat: `{"vary.learning_rate": ..., "train.max_steps": ...}`."""
    found: dict[str, Any] = {}
    for key in ("small", "train", "vary", "objectives", "seeds", "teacher"):
        value = resolved.get(key)
        if isinstance(value, Mapping) and key in ("train", "vary", "objectives"):
            found.update({f"{key}.{k}": v for k, v in value.items()})
        else:
            found[key] = value
    search = resolved.get("search") or {}
    found["search.sampler"] = search.get("sampler", "grid")
    if search.get("sampler", "grid") != "grid":
        found["search.seed"] = search.get("seed", 0)
    return found


def _brief(value: Any) -> str:
    text = "not set" if value is None else str(value)
    return text if len(text) <= 100 else text[:97] + "..."


# -------------------------------------------------------------------------------------------------------------- loading


def load_study(
    path: str | os.PathLike[str], overrides: Mapping[str, Any] | None = None, *, prepared: bool = False
) -> StudyConfig:
    """The study in a YAML file.

    Args:
        path: the file.
        overrides: keys that win over the file's, as the command line gives them.
        prepared: see `study_config`.

    Raises:
        ConfigError: with every mistake at once.
    """
    from holdfast.config.yaml_file import read_yaml

    path = Path(path).expanduser()
    given = read_yaml(path)
    values = {**given.values, **{k: v for k, v in (overrides or {}).items() if v is not None}}
    values.setdefault("name", path.stem)
    return study_config(
        values, problems=given.sentences(given.mistakes), beside=path.parent, source=str(path), prepared=prepared
    )


def study_config(
    values: Mapping[str, Any],
    *,
    problems: Sequence[str] = (),
    beside: Path | None = None,
    source: str | None = None,
    prepared: bool = False,
) -> StudyConfig:
    """A study from keys as in the YAML, everything checked that can be before anything runs.

    Args:
        values: the keys.
        problems: what is known to be wrong already.
        beside: folder that `train: file.yaml` is looked up in, before the working directory.
        source: where the keys came from, for the message.
        prepared: leaves the training configurations unchecked: their files are not there yet (`small:`), or were
            checked by who made the study.

    Raises:
        ConfigError: with every mistake at once.
    """
    from holdfast.runs.settings import known_settings

    found = list(problems)
    found += [
        f"unknown key '{k}'.{did_you_mean(str(k), KEYS) or ' Known: ' + ', '.join(KEYS) + '.'}"
        for k in values
        if k not in KEYS
    ]
    notes: list[str] = []
    name = str(values.get("name") or "study")
    if not _NAME.fullmatch(name):
        found.append(f"name: expected letters, digits, '.', '_' and '-', got {name!r}")
    train = _train(values.get("train"), beside, found, notes)
    search = _search(values.get("search"), found)
    space = read_space(
        values.get("vary"),
        train.get("retention"),
        grid=search.sampler == "grid",
        known=list(known_settings()),
        problems=found,
    )
    if not values.get("vary") and "vary" not in _named(found):
        found.append(
            "vary: is missing; expected what is tried, such as 'retention: [{label_annealing: {weight: [0.3, 1, 3]}}]'"
        )
    if (
        search.sampler != "grid"
        and not any(space.parameters(a) for a in space.alternatives)
        and len(space.alternatives) < 2
        and not found
    ):
        found.append(f"vary: nothing varies, so there is nothing for {search.sampler} to search")
    seeds = _seeds(values.get("seeds", [0]), found)
    small = _small(values.get("small"), found)
    wanted = _resolved_objectives(values.get("objectives")) if prepared else None
    wanted = wanted or _objectives(values.get("objectives"), train.get("evaluation"), small, found)
    pruning = _pruning(values.get("pruning"), found)
    select = _select(values.get("select"), found)
    keep = _choice(values, "keep", KEEP, "all", found)
    teacher = _choice(values, "teacher", ("auto", "cached", "online"), "auto", found)
    workers = values.get("workers")
    if workers is not None and (not isinstance(workers, int) or isinstance(workers, bool) or workers < 0):
        found.append(
            f"workers: expected a whole number of at least 0 (0: only those started by 'holdfast sweep worker'), got "
            f"{workers!r}"
        )
    folder = Path(str(values.get("output_dir") or f"runs/{name}"))
    resolved = {
        "name": name,
        "small": small,
        "train": _without_secrets(train),
        "vary": values.get("vary"),
        "objectives": {
            side: [list(e) for e in w.entries] for side, w in zip(("target", "source"), wanted, strict=True)
        },
        "seeds": list(seeds),
        "search": {"sampler": search.sampler, "trials": search.trials, "seed": search.seed},
        "pruning": None
        if pruning is None
        else {"at": list(pruning.at), "margin": pruning.margin, "wait_for": pruning.wait_for},
        "select": select,
        "keep": keep,
        "teacher": teacher,
        "output_dir": str(folder),
    }
    config = StudyConfig(
        name=name,
        train=train,
        space=space,
        target=wanted[0],
        source=wanted[1],
        seeds=seeds,
        search=search,
        pruning=pruning,
        select=select,
        keep=keep,
        teacher=teacher,
        workers=workers,
        output_dir=folder,
        storage=str(values.get("storage") or f"sqlite:///{folder}/study.db"),
        small=small,
        resolved=resolved,
        notes=notes,
    )
    if not prepared and small is None and train:
        found += check_trials(config, config.train, base_only=bool(found))
    if found:
        raise ConfigError(list(dict.fromkeys(found)), source=source)
    return config


def check_trials(config: StudyConfig, train: Mapping[str, Any], *, base_only: bool = False) -> list[str]:
    """Builds the training configuration of the reference, and one for every value that is tried; what is wrong with
    them, each thing once.

    Args:
        config: the study.
        train: its training configuration with nothing left open.
        base_only: the reference alone, where what varies is known to be wrong.
    """
    from holdfast.runs.config import train_config

    def problems_of(settings: Mapping[str, Any]) -> list[str]:
        environment = dict(os.environ)
        try:
            train_config({**settings, "output_dir": str(config.output_dir / "runs" / "trial"), "seed": config.seeds[0]})
        except ConfigError as error:
            return error.problems
        finally:
            os.environ.clear()
            os.environ.update(environment)
        return []

    middle = {k: v for k, v in config.space.middle().items() if k not in train}
    base = problems_of({**train, **middle, "retention": []})
    found = [f"train: {p}" for p in base]
    for params in () if base_only else config.space.corners():
        for problem in problems_of(config.space.settings(train, params)):
            if problem not in base:
                base.append(problem)
                found.append(f"vary: {config.space.label(params)}: {problem}")
    return found


# ------------------------------------------------------------------------------------------------------------- the keys


def _train(value: Any, beside: Path | None, problems: list[str], notes: list[str]) -> dict[str, Any]:
    from holdfast.config.yaml_file import read_yaml

    if isinstance(value, str):
        places = [p for p in ((beside / value) if beside else None, Path(value)) if p is not None]
        path = next((p for p in places if p.is_file()), places[-1])
        try:
            given = read_yaml(path)
        except ConfigError as error:
            problems += [p.replace("--config", "train:", 1) for p in error.problems]
            return {}
        problems += [f"{path}: {p}" for p in given.sentences(given.mistakes)]
        value = given.values
    if not isinstance(value, Mapping):
        problems.append(
            f"train: expected a training configuration, as keys or as a YAML file, got "
            f"{'nothing' if value is None else repr(value)}"
        )
        return {}
    train = {str(k): v for k, v in value.items()}
    for key, instead in (
        ("output_dir", "every trial has a folder of its own"),
        ("seed", "'seeds:' of the study repeats every trial"),
    ):
        if train.pop(key, None) is not None:
            notes.append(f"train.{key} has no effect: {instead}.")
    return train


def _without_secrets(train: Mapping[str, Any]) -> dict[str, Any]:
    from holdfast.runs.identity import SECRET, SECRET_NAME

    kept = {k: v for k, v in train.items() if k not in SECRET}
    if isinstance(kept.get("env"), Mapping):
        kept["env"] = {k: v for k, v in kept["env"].items() if not SECRET_NAME.search(str(k)) and "@" not in str(v)}
    return kept


def _search(value: Any, problems: list[str]) -> Search:
    value = {"sampler": value} if isinstance(value, str) else value or {}
    if not _mapping(value, "search", ("sampler", "trials", "seed"), problems):
        return Search()
    sampler = value.get("sampler", "random" if value.get("trials") else "grid")
    if sampler not in SAMPLERS:
        problems.append(
            f"search.sampler: expected one of {', '.join(SAMPLERS)}, got "
            f"{sampler!r}.{did_you_mean(str(sampler), SAMPLERS)}"
        )
        return Search(sampler="random", trials=1)
    trials, seed = value.get("trials"), value.get("seed", 0)
    if sampler == "grid" and trials is not None:
        problems.append(
            f"search.trials: a grid has as many trials as combinations, got {trials!r}. Leave it out, or search with "
            f"random, tpe or nsga2."
        )
    elif sampler != "grid" and (not isinstance(trials, int) or isinstance(trials, bool) or trials < 1):
        problems.append(
            f"search.trials: expected how many combinations {sampler} tries, a whole number of at least 1, got "
            f"{trials!r}"
        )
        trials = 1
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        problems.append(f"search.seed: expected a whole number of at least 0, got {seed!r}")
        seed = 0
    return Search(sampler=sampler, trials=trials, seed=seed)


def _seeds(value: Any, problems: list[str]) -> tuple[int, ...]:
    items = value if isinstance(value, list) else [value]
    if (
        not items
        or any(not isinstance(s, int) or isinstance(s, bool) or s < 0 for s in items)
        or len(set(items)) < len(items)
    ):
        problems.append(f"seeds: expected different whole numbers such as [0, 1, 2], got {value!r}")
        return (0,)
    return tuple(items)


def _pruning(value: Any, problems: list[str]) -> Pruning | None:
    if value is None or value is False:
        return None
    value = {} if value is True else value
    if not _mapping(value, "pruning", ("at", "margin", "wait_for"), problems):
        return None
    at = value.get("at", [])
    at = at if isinstance(at, list) else [at]
    if any(not isinstance(a, (int, float)) or isinstance(a, bool) or not 0 < a < 1 for a in at):
        problems.append(f"pruning.at: expected shares of the steps between 0 and 1, such as [0.33, 0.67], got {at!r}")
        at = []
    margin, wait = value.get("margin", 0.1), value.get("wait_for", 4)
    if not isinstance(margin, (int, float)) or isinstance(margin, bool) or not 0 <= margin < 1:
        problems.append(f"pruning.margin: expected a share between 0 and 1, got {margin!r}")
        margin = 0.1
    if not isinstance(wait, int) or isinstance(wait, bool) or wait < 1:
        problems.append(f"pruning.wait_for: expected a whole number of at least 1, got {wait!r}")
        wait = 4
    return Pruning(at=tuple(sorted(float(a) for a in at)), margin=float(margin), wait_for=wait)


def _select(value: Any, problems: list[str]) -> dict[str, Any]:
    from holdfast.statistics.rules import rule_from_config

    value = {"rule": value} if isinstance(value, str) else value or {"rule": "paper"}
    if not isinstance(value, Mapping):
        problems.append(
            f"select: expected a rule such as 'paper' or '{{rule: target_within, points: 1pt}}', got {value!r}"
        )
        return {"rule": "paper"}
    try:
        rule_from_config(value)
    except ConfigError as error:
        problems += error.problems
    return {"rule": "paper", **value}


def _small(value: Any, problems: list[str]) -> str | None:
    if value is None:
        return None
    from holdfast.worlds.small_settings import SETTINGS

    if value not in SETTINGS:
        problems.append(
            f"small: expected one of {', '.join(SETTINGS)}, got {value!r}.{did_you_mean(str(value), SETTINGS)}"
        )
        return None
    return str(value)


def _resolved_objectives(value: Any) -> tuple[Wanted, Wanted] | None:
    """Objectives as `resolved` has them; their files need not be on this machine."""
    if not isinstance(value, Mapping) or not all(
        isinstance(e, (list, tuple)) and len(e) == 3 for s in ("target", "source") for e in value.get(s, [0])
    ):
        return None
    target, source = (
        Wanted(entries=tuple((str(s), str(n), m) for s, n, m in value[side])) for side in ("target", "source")
    )
    return target, source


def _objectives(value: Any, evaluation: Any, small: str | None, problems: list[str]) -> tuple[Wanted, Wanted]:
    """Both objectives, their entries looked up in the evaluation section."""
    import tempfile

    from holdfast.evaluation.averages import SUITE
    from holdfast.evaluation.suite import parse_evaluation

    with tempfile.TemporaryDirectory() as place:
        if small is not None:  # its files are not there yet; only names and kinds matter here
            from holdfast.worlds.small_settings import SETTINGS

            names = {name: f"{place}/{name}.jsonl" for name in SETTINGS[small].placeholders}
            for file in names.values():
                Path(file).touch()
            try:
                evaluation = fill(evaluation, names)
            except ConfigError as error:
                problems += error.problems
                return Wanted(entries=()), Wanted(entries=())
        plan, wrong = parse_evaluation(evaluation)
    nothing = Wanted(entries=())
    if wrong:
        problems += [f"train: {p}" for p in wrong]
        return nothing, nothing
    kinds = {(e.suite, e.name): e.kind for e in plan.entries} | {(SUITE, a.name): "average" for a in plan.averages}
    if value is not None and not _mapping(value, "objectives", ("target", "source"), problems):
        return nothing, nothing
    if not plan.before:
        problems.append(
            "train.evaluation.before: false leaves the start unmeasured, which every trial is compared with. Leave it "
            "out."
        )
    made = []
    for side in ("target", "source"):
        asked = (value or {}).get(side)
        if asked is None:
            entries: list[tuple[str, str, str | None]] = [(suite, name, None) for suite, name in kinds if suite == side]
            if not entries:
                problems.append(
                    f"objectives.{side}: is missing, and train.evaluation measures nothing as {side}."
                    f"{' Entries: ' + ', '.join(n for _, n in kinds) + '.' if kinds else ' Add an evaluation section with source and target.'}"
                )
        else:
            entries = [
                e
                for item in (asked if isinstance(asked, list) else [asked])
                if (e := _entry(item, side, kinds, problems)) is not None
            ]
        text = [n for s, n, _ in entries if kinds.get((s, n)) in ("perplexity", "memorisation")]
        if text and len(text) < len(entries):
            problems.append(
                f"objectives.{side}: nats and shares have no mean. Expected entries of one unit, got text "
                f"({', '.join(text)}) beside tasks."
            )
        made.append(Wanted(entries=tuple(entries)))
    both = {(s, n) for s, n, _ in made[0].entries} & {(s, n) for s, n, _ in made[1].entries}
    if both:
        problems.append(
            f"objectives: {', '.join(n for _, n in sorted(both))} cannot be learnt and kept at once; name it on one "
            f"side"
        )
    return made[0], made[1]


def _entry(
    item: Any, side: str, kinds: Mapping[tuple[str, str], str], problems: list[str]
) -> tuple[str, str, str | None] | None:
    """One entry of an objective: its name, `name/metric`, or (suite, name, metric) as a resolved study has it."""
    if isinstance(item, (list, tuple)) and len(item) == 3:
        suite, name, metric = item
    elif isinstance(item, str):
        suite, (name, _, metric) = None, item.partition("/")
    else:
        problems.append(f"objectives.{side}: expected the name of an evaluation entry, got {item!r}")
        return None
    found = [key for key in kinds if key[1] == name and suite in (None, key[0])]
    found = [key for key in found if key[0] == side] or found
    if not found:
        names = [n for _, n in kinds]
        problems.append(
            f"objectives.{side}: '{name}' is not among the evaluation entries.{did_you_mean(str(name), names)} "
            f"Entries: {', '.join(names) or 'none'}."
        )
        return None
    return (*found[0], metric or None)


def _choice(values: Mapping[str, Any], key: str, known: Sequence[str], default: str, problems: list[str]) -> str:
    value = values.get(key, default)
    if value not in known:
        problems.append(f"{key}: expected one of {', '.join(known)}, got {value!r}.{did_you_mean(str(value), known)}")
        return default
    return str(value)


def _mapping(value: Any, name: str, known: Sequence[str], problems: list[str]) -> bool:
    if not isinstance(value, Mapping):
        problems.append(f"{name}: expected a mapping with {', '.join(known)}, got {value!r}")
        return False
    problems += [
        f"{name}.{k}: unknown key.{did_you_mean(str(k), known)} Known: {', '.join(known)}."
        for k in value
        if k not in known
    ]
    return True


def _named(problems: Sequence[str]) -> set[str]:
    return {p.partition(":")[0].partition(".")[0] for p in problems}


# ------------------------------------------------------------------------------------------------------ small studies


def fill(value: Any, names: Mapping[str, str]) -> Any:
    """`value` with ${name} replaced, at any depth.

    Raises:
        ConfigError: a name that there is not.
    """
    if isinstance(value, str):
        unknown = [n for n in _PLACEHOLDER.findall(value) if n not in names]
        if unknown:
            raise ConfigError(
                f"${{{unknown[0]}}}: no such name.{did_you_mean(unknown[0], names)} The small setting makes: "
                f"{', '.join(names)}."
            )
        return _PLACEHOLDER.sub(lambda match: names[match.group(1)], value)
    if isinstance(value, Mapping):
        return {k: fill(v, names) for k, v in value.items()}
    if isinstance(value, list):
        return [fill(v, names) for v in value]
    return value
