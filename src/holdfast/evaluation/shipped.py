"""Suites by name: those that come with holdfast (`suites/*.yaml`), files of the user's, and what the command line
changes in them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.config.values import Mistake, show
from holdfast.config.yaml_file import read_yaml
from holdfast.data.readers import kind_of
from holdfast.errors import ConfigError, did_you_mean
from holdfast.evaluation.entries import (
    TASK_SUFFIXES,
    Average,
    DataEntry,
    Entry,
    EvaluationPlan,
)
from holdfast.evaluation.kinds import KINDS
from holdfast.evaluation.kinds.task import TaskEntry
from holdfast.support.own_code import is_reference
from holdfast.support.paths import expanded, real


def shipped_suites() -> dict[str, Path]:
    """Name -> YAML file."""
    return {path.stem: path for path in sorted((Path(__file__).parent / "suites").glob("*.yaml"))}


def suite_files(name: str) -> list[Path]:
    """The YAML files behind a name: a shipped suite, all shipped suites of a paper ("label_annealing" has four), or a
    file.

    Raises:
        ConfigError: nothing of that name.
    """
    shipped = shipped_suites()
    if name in shipped:
        return [shipped[name]]
    family = [path for stem, path in shipped.items() if stem.startswith(f"{name}-")]
    if family:
        return family
    path = expanded(name)
    if path.suffix in TASK_SUFFIXES:
        if path.is_file():
            return [path]
        raise ConfigError(f"no such suite file: {name}")
    raise ConfigError(
        f"unknown suite '{name}'.{did_you_mean(name, shipped)} Known: {', '.join(shipped)}, or a YAML file."
    )


def description_of(path: Path) -> str:
    """The line that says what a suite measures; empty where it has none."""
    return str(read_yaml(path, option="suite").values.get("description", ""))


def read_suites(names: Sequence[str], *, decided: Collection[str] = ()) -> tuple[dict[str, Any], list[str]]:
    """Several suites as one `evaluation:` mapping; entries that two suites share are there once.

    Args:
        names: shipped suites and files.
        decided: settings that the caller has values for, so that suites need not agree on them.

    Returns:
        The mapping, and a sentence a problem.
    """
    merged: dict[str, Any] = {}
    problems: list[str] = []
    sources: dict[tuple[str, str], Path] = {}
    clashes: dict[tuple[str, str, str], list[str]] = {}
    for name in names:
        try:
            files = suite_files(name)
            read = [(path, read_yaml(path, option="suite")) for path in files]
        except ConfigError as error:
            problems += error.problems
            continue
        for path, given in read:
            problems += [f"{path}: {sentence}" for sentence in given.sentences(given.mistakes)]
            # a training config has its suites below `evaluation:`
            found = given.values.get("evaluation", given.values)
            if not isinstance(found, Mapping):
                problems.append(f"{path}: expected suites such as `source:` with a list of entries, got {show(found)}.")
                continue
            for title, first, advice in _join(merged, found, path, sources):
                if advice is not _ONE_VALUE or title not in decided:
                    clashes.setdefault((first.stem, path.stem, advice), []).append(title)
    for (one, other, advice), called in clashes.items():
        problems.append(
            f"{one} and {other} have {', '.join(dict.fromkeys(called))} with different settings. Measure the two "
            f"suites one after the other, each into an --output_dir of its own, or {advice}."
        )
    return merged, problems


_OWN_NAMES = "write one YAML that gives each a `name:`"
_ONE_VALUE = "say which one holds for both, by the option of that name or beside `suites:` in a configuration"


def _join(
    merged: dict[str, Any], found: Mapping[Any, Any], path: Path, sources: dict[tuple[str, str], Path]
) -> Iterator[tuple[str, Path, str]]:
    """Puts a suite's entries, averages and settings to those of the suites before it.

    Args:
        merged: what is added to.
        found: the suite.
        path: its file.
        sources: the file of each entry, average and setting, by key and name; added to.

    Returns:
        What both have under one name with different settings, the file that had it first, and what to do.
    """
    for key, value in ((str(k), v) for k, v in found.items()):
        present = merged.get(key)
        if value is None and isinstance(present, (list, Mapping)):  # all its entries are commented out
            continue
        first = sources.setdefault((key, ""), path)
        if present is None and isinstance(value, (list, Mapping)):
            present = merged[key] = [] if isinstance(value, list) else {}
        if isinstance(value, list) and isinstance(present, list):
            for entry in (_placed(entry, path) for entry in value):
                name = _name_in(entry)
                first = sources.setdefault((key, name), path)
                if first != path and name and entry not in present:
                    yield name, first, _OWN_NAMES
                elif entry not in present:
                    present.append(entry)
        elif isinstance(value, Mapping) and isinstance(present, dict):
            for title, one in value.items():
                one = _place(one, path) if key in _FILES else one
                first = sources.setdefault((key, str(title)), path)
                if present.setdefault(title, one) != one:
                    yield f"the average {title}" if key == "averages" else f"{key} for {title}", first, _OWN_NAMES
        elif key != "description" and merged.setdefault(key, value) != value:
            yield key, first, _ONE_VALUE


def _name_in(entry: Any) -> str:
    """The name that an entry of a suite has, or will get; empty where it is not known."""
    if not isinstance(entry, Mapping):
        return str(entry)
    if entry.get("name"):
        return str(entry["name"])
    kind = next((key for key in entry if key in KINDS or is_reference(key)), None)
    if kind is None or is_reference(kind):
        return kind or ""
    return str(entry[kind]) if kind in ("task", "perplexity") else f"{kind} {entry[kind]}"


_FILES = ("data", "fewshot_data", "reference")


def _placed(entry: Any, suite: Path) -> Any:
    """An entry with its relative paths taken from the suite's own folder, where there is such a file."""
    if not isinstance(entry, Mapping):
        return _place(entry, suite)
    return {
        _place(key, suite): _place(value, suite) if key in KINDS or key in _FILES else value
        for key, value in entry.items()
    }


def _place(value: Any, suite: Path) -> Any:
    if not isinstance(value, str):
        return value
    name, colon, rest = value.rpartition(":") if is_reference(value) else (value, "", "")
    known = kind_of(Path(name)) is not None or name.endswith((*TASK_SUFFIXES, ".py"))
    beside = suite.parent / name
    return f"{beside.resolve()}{colon}{rest}" if known and not Path(name).is_absolute() and beside.exists() else value


def changed(
    plan: EvaluationPlan,
    *,
    data: Mapping[str, str] | None = None,
    fewshot_data: Mapping[str, str] | None = None,
    skip: Sequence[str] = (),
    find: Callable[[str], tuple[str | None, str]] | None = None,
    **settings: Any,
) -> tuple[EvaluationPlan, list[Mistake]]:
    """A plan with local files for its tasks, without some entries, and with settings for all entries.

    Args:
        plan: what is changed.
        data: file by task or entry name, see `TaskEntry.data`.
        fewshot_data: likewise, see `TaskEntry.fewshot_data`; needs `data` for the same task.
        skip: entries that are left out, by task or entry name; averages that need them go, too.
        find: (the file's place, what to say where there is none); None: in the working directory.
        settings: fields of entries, such as `limit` (of texts: `max_documents`) or `apply_chat_template`, for every
            entry that has them and reads them; None leaves what is there.

    Returns:
        The plan, and the mistakes, with paths that start with the argument.
    """
    mistakes: list[Mistake] = []
    names = sorted({name for entry in plan.entries for name in _names(entry)})
    given = {k: v for k, v in settings.items() if v is not None}
    files: dict[str, dict[str, str]] = {"data": {}, "fewshot_data": {}}
    asked = {"data": data or {}, "fewshot_data": fewshot_data or {}, "skip": dict.fromkeys(skip, "")}
    for option, keys in asked.items():
        for key, file in keys.items():
            if key not in names:
                text = f"no entry or task '{key}' in what is to be measured.{did_you_mean(key, names)} There are: "
                mistakes.append(Mistake(path=(option,), text=f"{text}{', '.join(names)}."))
            if option not in files:
                continue
            if wrong := _without(option, [entry for entry in plan.entries if key in _names(entry)]):
                mistakes.append(Mistake(path=(option, key), text=wrong))
            place, missing = (find or _in_the_working_directory)(file)
            if place is None:
                mistakes.append(Mistake(path=(option, key), text=missing))
            else:
                files[option][key] = place
    entries: list[Entry] = []
    for entry in plan.entries:
        if any(name in skip for name in _names(entry)):
            continue
        if isinstance(entry, TaskEntry):
            found: dict[str, Any] = {
                option: place
                for option, places in files.items()
                if (place := next((places[name] for name in _names(entry) if name in places), None)) is not None
            }
            entry = dataclasses.replace(entry, **found)
            if entry.fewshot_data is not None and entry.data is None:
                text = "only used together with `data` for the same task."
                mistakes.append(Mistake(path=("fewshot_data", entry.task), text=text))
        known = {f.name for f in dataclasses.fields(entry)} - set(entry.unread)
        taken = {key: value for key, value in given.items() if key in known}
        if "limit" in given and isinstance(entry, DataEntry):
            taken["max_documents"] = given["limit"]
        entries.append(dataclasses.replace(entry, **taken))
    left = {(e.suite, e.name) for e in entries}
    averages: list[Average] = [a for a in plan.averages if all((suite, name) in left for suite, name, _ in a.members)]
    return dataclasses.replace(plan, entries=tuple(entries), averages=tuple(averages)), mistakes


def _without(option: str, entries: Sequence[Entry]) -> str:
    """Why none of the entries that a file is given for takes it; empty where one does, or there are none."""
    if not entries or any(isinstance(entry, TaskEntry) and option not in entry.unread for entry in entries):
        return ""
    [first, *_] = entries
    if isinstance(first, TaskEntry):
        return f"{first.task} shows no examples. Leave it out."
    return f"only tasks take another file, and this is a {first.kind} entry. Name the file in the entry itself."


def _in_the_working_directory(file: str) -> tuple[str | None, str]:
    path = expanded(file)
    return (str(real(path)) if path.exists() else None), f"no such file: {file}."


def _names(entry: Entry) -> list[str]:
    task = [entry.task] if isinstance(entry, TaskEntry) else []
    return list(dict.fromkeys([entry.name, f"{entry.suite}/{entry.name}", *task]))
