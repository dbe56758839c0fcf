"""Suites by name: those that come with holdfast (`suites/*.yaml`), files of the user's, and what
the command line changes in them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.config.values import show
from holdfast.config.yaml_file import read_yaml
from holdfast.data.readers import kind_of
from holdfast.errors import ConfigError, Problem, did_you_mean
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


def shipped_suites() -> dict[str, Path]:
    """Name -> YAML file."""
    return {path.stem: path for path in sorted((Path(__file__).parent / "suites").glob("*.yaml"))}


def suite_files(name: str) -> list[Path]:
    """The YAML files behind a name: a shipped suite, all shipped suites of a paper
    ("label_annealing" has four), or a file.

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
        f"unknown suite '{name}'.{did_you_mean(name, shipped)} Known: {', '.join(shipped)}, or a "
        "YAML file."
    )


def description_of(path: Path) -> str:
    """The line that says what a suite measures; empty where it has none."""
    return str(read_yaml(path, option="suite").values.get("description", ""))


def read_suites(
    names: Sequence[str], section: Mapping[str, Any] | None = None, *, decided: Collection[str] = ()
) -> tuple[dict[str, Any], list[str]]:
    """Several suites as one `evaluation:` mapping; entries that two suites share are there once.
    Entries of one name with different settings are both there, and refused by whoever reads the
    mapping.

    Args:
        names: shipped suites and files.
        section: what they are added to; its own settings win.
        decided: settings that the caller has values for, so that suites need not agree on them.

    Returns:
        The mapping, and a sentence a problem.
    """
    merged = dict(section or {})
    problems: list[str] = []
    sources: dict[str, str] = {}
    for name in names:
        try:
            files = [(path, read_yaml(path, option="suite")) for path in suite_files(name)]
        except ConfigError as error:
            problems += error.problems
            continue
        for path, file in files:
            problems += [f"{path}: {sentence}" for sentence in file.sentences(file.problems)]
            # a training config has its suites below `evaluation:`
            suite = file.values.get("evaluation", file.values)
            if not isinstance(suite, Mapping):
                problems.append(
                    f"{path}: expected suites such as `keep:` with a list of entries, got "
                    f"{show(suite)}."
                )
                continue
            for title in _join(merged, current_section(suite), path):
                first = sources.setdefault(title, path.stem)
                if first != path.stem and title not in decided:
                    problems.append(
                        f"{first} and {path.stem} have different settings for {title}. Set one "
                        "value for both suites, by the command-line option for it, or by a "
                        "key next to `suites:` in a configuration. You can also measure the two "
                        "suites separately, each with its own --output_dir."
                    )
    return merged, problems


def _join(merged: dict[str, Any], suite: Mapping[str, Any], path: Path) -> Iterator[str]:
    """Puts a suite's entries, averages and settings to those of the suites before it.

    Args:
        merged: what is added to.
        suite: what is added.
        path: its file.

    Returns:
        What it sets, beside entries: for the first time, or to another value than before.
    """
    for key, value in suite.items():
        present = merged.get(key)
        if isinstance(value, list) and isinstance(present, list | None):
            entries = merged[key] = list(present or ())
            for entry in value:
                entry = _beside(entry, path)
                if entry not in entries:
                    entries.append(entry)
        elif isinstance(value, Mapping) and isinstance(present, Mapping | None):
            items = merged[key] = dict(present or {})
            for title, item in value.items():
                item = _beside_text(item, path) if key in _FILES else item
                if items.get(title) != item:
                    items.setdefault(title, item)
                    yield f"{key}.{title}"
        elif (
            value is not None and key != "description" and present != value
        ):  # None: all entries are commented out
            merged.setdefault(key, value)
            yield key


_FILES = ("data", "fewshot_data", "reference")


def _beside(entry: Any, suite: Path) -> Any:
    """An entry with its relative paths taken from the suite's own folder, where there is such a
    file."""
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
    return (
        f"{file.resolve()}{colon}{rest}"
        if known and not Path(name).is_absolute() and file.exists()
        else value
    )


def locate(value: str) -> str | None:
    """The absolute path of a file or folder, from the working directory; None where there is
    none."""
    path = expanded(value)
    return str(real(path)) if path.exists() else None


def looks_like_path(value: str) -> bool:
    """Whether a name is a file's: by its ending or its beginning."""
    return kind_of(Path(value)) is not None or value.startswith((".", "~", "/"))


def no_such_file(value: str) -> str:
    """What is said where there is no such file or folder, with the nearest name."""
    path = expanded(value)
    folder = path.parent
    near = (
        did_you_mean(path.name, (path.name for path in folder.iterdir())) if folder.is_dir() else ""
    )
    hub = (
        ""
        if looks_like_path(value) or value.endswith(TASK_SUFFIXES)
        else " A hub data set has the form owner/name."
    )
    return f"no such file or folder '{value}' (looked for {path.absolute()}).{near}{hub}"


def changed(
    plan: EvaluationPlan,
    *,
    data: Mapping[str, str] | None = None,
    fewshot_data: Mapping[str, str] | None = None,
    skip: Sequence[str] = (),
    **settings: Any,
) -> tuple[EvaluationPlan, list[Problem]]:
    """A plan with local files for its tasks, without some entries, and with settings for all
    entries.

    Args:
        plan: what is changed.
        data: file by task or entry name, see `TaskEntry.data`.
        fewshot_data: likewise, see `TaskEntry.fewshot_data`; needs `data` for the same task.
        skip: entries that are left out, by task or entry name; averages that need them go, too.
        settings: fields of entries, such as `limit` (of texts: `max_documents`) or
            `apply_chat_template`, for every entry that has them and reads them; None leaves what is
            there.

    Returns:
        The plan, and the mistakes, with paths that start with the argument.
    """
    problems: list[Problem] = []
    files = {}
    for option, paths in (("data", data or {}), ("fewshot_data", fewshot_data or {})):
        files[option] = _located(option, paths, plan, problems)
    for key in skip:
        problems += _unknown("skip", key, plan)
    values = {name: value for name, value in settings.items() if value is not None}
    entries: list[Entry] = []
    for entry in plan.entries:
        if any(name in skip for name in _names(entry)):
            continue
        if isinstance(entry, TaskEntry):
            entry = dataclasses.replace(entry, **_files_of(entry, files))
            if entry.fewshot_data is not None and entry.data is None:
                text = "needs `data` for the same task."
                problems.append(Problem(("fewshot_data", entry.task), text))
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
    return dataclasses.replace(plan, entries=tuple(entries), averages=tuple(averages)), problems


def _unknown(option: str, key: str, plan: EvaluationPlan) -> list[Problem]:
    """What is said where no entry or task is called so."""
    names: set[str] = set()
    for entry in plan.entries:
        names.update(_names(entry))
    if key in names:
        return []
    known = sorted(names)
    text = f"no entry or task '{key}' in the plan.{did_you_mean(key, known)} There are: "
    return [Problem(option, f"{text}{', '.join(known)}.")]


def _located(
    option: str, files: Mapping[str, str], plan: EvaluationPlan, problems: list[Problem]
) -> dict[str, str]:
    """The places of files by task or entry."""
    located = {}
    for key, file in files.items():
        problems += _unknown(option, key, plan)
        if problem := _refusal(option, [entry for entry in plan.entries if key in _names(entry)]):
            problems.append(Problem((option, key), problem))
        path = locate(file)
        if path is None:
            problems.append(Problem((option, key), no_such_file(file)))
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
    """Why none of the entries that a file is given for takes it; empty where one does, or there are
    none."""
    tasks = [entry for entry in entries if isinstance(entry, TaskEntry)]
    if not entries or any(option not in task.unread for task in tasks):
        return ""
    first = entries[0]
    if isinstance(first, TaskEntry):
        return f"{first.task} uses no few-shot examples. Leave the file out."
    return (
        f"only the data files of tasks can be replaced, and this is a {first.kind} entry. Name the "
        "file in the entry itself."
    )


def _names(entry: Entry) -> list[str]:
    task = [entry.task] if isinstance(entry, TaskEntry) else []
    return list(dict.fromkeys([entry.name, entry.path, *task]))
