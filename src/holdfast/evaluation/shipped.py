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
from holdfast.evaluation.former_names import current_section
from holdfast.evaluation.kinds import KINDS
from holdfast.evaluation.kinds.task import TaskEntry
from holdfast.support.own_code import is_reference
from holdfast.support.paths import expanded, real

Finder = Callable[[str], tuple[str | None, str]]
"""From a file's name to its place, None where there is none, and to what is said then."""


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
    of_paper = [path for stem, path in shipped.items() if stem.startswith(f"{name}-")]
    if of_paper:
        return of_paper
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
            files = [(path, read_yaml(path, option="suite")) for path in suite_files(name)]
        except ConfigError as error:
            problems += error.problems
            continue
        for path, file in files:
            problems += [f"{path}: {sentence}" for sentence in file.sentences(file.mistakes)]
            # a training config has its suites below `evaluation:`
            suite = file.values.get("evaluation", file.values)
            if not isinstance(suite, Mapping):
                problems.append(f"{path}: expected suites such as `keep:` with a list of entries, got {show(suite)}.")
                continue
            for title, first, advice in _join(merged, current_section(suite), path, sources):
                if advice is not _ONE_VALUE or title not in decided:
                    clashes.setdefault((first.stem, path.stem, advice), []).append(title)
    for (first_name, second_name, advice), titles in clashes.items():
        problems.append(
            f"{first_name} and {second_name} have {', '.join(dict.fromkeys(titles))} with different settings. Measure "
            f"the two suites one after the other, each into an --output_dir of its own, or {advice}."
        )
    return merged, problems


_OWN_NAMES = "write one YAML that gives each a `name:`"
_ONE_VALUE = "say which one holds for both, by the option of that name or beside `suites:` in a configuration"


def _join(
    merged: dict[str, Any], suite: Mapping[Any, Any], path: Path, sources: dict[tuple[str, str], Path]
) -> Iterator[tuple[str, Path, str]]:
    """Puts a suite's entries, averages and settings to those of the suites before it.

    Args:
        merged: what is added to.
        suite: what is added.
        path: its file.
        sources: the file of each entry, average and setting, by key and name; added to.

    Returns:
        What both have under one name with different settings, the file that had it first, and what to do.
    """
    for key, value in suite.items():
        key = str(key)
        present = merged.get(key)
        if value is None and isinstance(present, (list, Mapping)):  # all its entries are commented out
            continue
        first = sources.setdefault((key, ""), path)
        if present is None and isinstance(value, (list, Mapping)):
            present = merged[key] = [] if isinstance(value, list) else {}
        if isinstance(value, list) and isinstance(present, list):
            for entry in value:
                entry = _beside(entry, path)
                name = _name_in(entry)
                first = sources.setdefault((key, name), path)
                if entry in present:
                    continue
                if first != path and name:
                    yield name, first, _OWN_NAMES
                else:
                    present.append(entry)
        elif isinstance(value, Mapping) and isinstance(present, dict):
            for title, item in value.items():
                item = _beside_text(item, path) if key in _FILES else item
                first = sources.setdefault((key, str(title)), path)
                if present.setdefault(title, item) != item:
                    yield f"the average {title}" if key == "averages" else f"{key} for {title}", first, _OWN_NAMES
        elif key != "description" and merged.setdefault(key, value) != value:
            yield key, first, _ONE_VALUE


def _name_in(entry: Any) -> str:
    """The name that an entry of a suite has, or will get; empty where it is not known."""
    if not isinstance(entry, Mapping):
        return str(entry)
    if entry.get("name"):
        return str(entry["name"])
    for key, value in entry.items():
        if is_reference(key):
            return str(key)
        if key in KINDS:
            return str(value) if key in ("task", "perplexity") else f"{key} {value}"
    return ""


_FILES = ("data", "fewshot_data", "reference")


def _beside(entry: Any, suite: Path) -> Any:
    """An entry with its relative paths taken from the suite's own folder, where there is such a file."""
    if not isinstance(entry, Mapping):
        return _beside_text(entry, suite)
    values = {}
    for key, value in entry.items():
        names_file = key in KINDS or key in _FILES
        values[_beside_text(key, suite)] = _beside_text(value, suite) if names_file else value
    return values


def _beside_text(value: Any, suite: Path) -> Any:
    if not isinstance(value, str):
        return value
    name, colon, rest = value.rpartition(":") if is_reference(value) else (value, "", "")
    known = kind_of(Path(name)) is not None or name.endswith((*TASK_SUFFIXES, ".py"))
    file = suite.parent / name
    return f"{file.resolve()}{colon}{rest}" if known and not Path(name).is_absolute() and file.exists() else value


def changed(
    plan: EvaluationPlan,
    *,
    data: Mapping[str, str] | None = None,
    fewshot_data: Mapping[str, str] | None = None,
    skip: Sequence[str] = (),
    find: Finder | None = None,
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
    files = {}
    for option, paths in (("data", data or {}), ("fewshot_data", fewshot_data or {})):
        files[option] = _located(option, paths, plan, find or _in_the_working_directory, mistakes)
    for key in skip:
        mistakes += _unknown("skip", key, plan)
    values = {name: value for name, value in settings.items() if value is not None}
    entries: list[Entry] = []
    for entry in plan.entries:
        if any(name in skip for name in _names(entry)):
            continue
        if isinstance(entry, TaskEntry):
            entry = dataclasses.replace(entry, **_files_of(entry, files))
            if entry.fewshot_data is not None and entry.data is None:
                text = "only used together with `data` for the same task."
                mistakes.append(Mistake(path=("fewshot_data", entry.task), text=text))
        read = {field.name for field in dataclasses.fields(entry)} - set(entry.unread)
        changes = {name: value for name, value in values.items() if name in read}
        if "limit" in values and isinstance(entry, DataEntry):
            changes["max_documents"] = values["limit"]
        entries.append(dataclasses.replace(entry, **changes))
    left = {(entry.suite, entry.name) for entry in entries}
    averages: list[Average] = []
    for average in plan.averages:
        if all((suite, name) in left for suite, name, _ in average.members):
            averages.append(average)
    return dataclasses.replace(plan, entries=tuple(entries), averages=tuple(averages)), mistakes


def _unknown(option: str, key: str, plan: EvaluationPlan) -> list[Mistake]:
    """What is said where no entry or task is called so."""
    names: set[str] = set()
    for entry in plan.entries:
        names.update(_names(entry))
    if key in names:
        return []
    known = sorted(names)
    text = f"no entry or task '{key}' in what is to be measured.{did_you_mean(key, known)} There are: "
    return [Mistake(path=(option,), text=f"{text}{', '.join(known)}.")]


def _located(
    option: str, files: Mapping[str, str], plan: EvaluationPlan, find: Finder, mistakes: list[Mistake]
) -> dict[str, str]:
    """The places of files by task or entry."""
    located = {}
    for key, file in files.items():
        mistakes += _unknown(option, key, plan)
        if problem := _refusal(option, [entry for entry in plan.entries if key in _names(entry)]):
            mistakes.append(Mistake(path=(option, key), text=problem))
        path, missing = find(file)
        if path is None:
            mistakes.append(Mistake(path=(option, key), text=missing))
        else:
            located[key] = path
    return located


def _files_of(entry: TaskEntry, files: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """Its files by setting, as they are named for it or its task."""
    changes = {}
    for option, paths in files.items():
        for name in reversed(_names(entry)):
            if name in paths:
                changes[option] = paths[name]
    return changes


def _refusal(option: str, entries: Sequence[Entry]) -> str:
    """Why none of the entries that a file is given for takes it; empty where one does, or there are none."""
    tasks = [entry for entry in entries if isinstance(entry, TaskEntry)]
    if not entries or any(option not in task.unread for task in tasks):
        return ""
    first = entries[0]
    if isinstance(first, TaskEntry):
        return f"{first.task} shows no examples. Leave it out."
    return f"only tasks take another file, and this is a {first.kind} entry. Name the file in the entry itself."


def _in_the_working_directory(file: str) -> tuple[str | None, str]:
    path = expanded(file)
    return (str(real(path)) if path.exists() else None), f"no such file: {file}."


def _names(entry: Entry) -> list[str]:
    task = [entry.task] if isinstance(entry, TaskEntry) else []
    return list(dict.fromkeys([entry.name, entry.path, *task]))
