"""Suites by name: those that come with holdfast (`suites/*.yaml`), files of the user's, and what the command line
changes in them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.data.readers import kind_of
from holdfast.errors import ConfigError, did_you_mean
from holdfast.evaluation.entries import Average, Entry, EvaluationPlan, TaskEntry


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
    path = Path(name).expanduser()
    if path.suffix in (".yaml", ".yml"):
        if path.is_file():
            return [path]
        raise ConfigError(f"no such suite file: {name}")
    raise ConfigError(
        f"unknown suite '{name}'.{did_you_mean(name, shipped)} Known: {', '.join(shipped)}, or a YAML file."
    )


def description_of(path: Path) -> str:
    """The line that says what a suite measures; empty where it has none."""
    import yaml

    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    return str(found.get("description", "")) if isinstance(found, Mapping) else ""


def read_suites(names: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Several suites as one `evaluation:` mapping; entries that two suites share are there once.

    Returns:
        The mapping, and a sentence a problem.
    """
    import yaml

    merged: dict[str, Any] = {}
    problems: list[str] = []
    sources: dict[tuple[str, str], Path] = {}
    clashes: dict[tuple[str, str], list[str]] = {}
    for name in names:
        try:
            files = suite_files(name)
        except ConfigError as error:
            problems.append(f"--suite: {error}")
            continue
        for path in files:
            try:
                found = yaml.safe_load(path.read_text(encoding="utf-8"))
            except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
                problems.append(f"--suite: {path} is no YAML: {' '.join(str(error).split())}")
                continue
            # a training config has its suites below `evaluation:`
            found = found.get("evaluation", found) if isinstance(found, Mapping) else found
            if not isinstance(found, Mapping):
                problems.append(f"--suite: expected suites such as `source:` with a list of entries in {path}.")
                continue
            for title, first in _join(merged, found, path, sources):
                clashes.setdefault((first.stem, path.stem), []).append(title)
    for (one, other), called in clashes.items():
        problems.append(
            f"--suite: {one} and {other} have {', '.join(dict.fromkeys(called))} with different settings. Measure the "
            f"two suites one after the "
            "other, each into an --output_dir of its own, or write one YAML that gives each a `name:`."
        )
    return merged, problems


def _join(
    merged: dict[str, Any], found: Mapping[Any, Any], path: Path, sources: dict[tuple[str, str], Path]
) -> Iterator[tuple[str, Path]]:
    """Puts a suite's entries, averages and settings to those of the suites before it.

    Args:
        merged: what is added to.
        found: the suite.
        path: its file.
        sources: the file of each entry and average, by list and name; added to.

    Returns:
        What both have under one name with different settings, and the file that had it first.
    """
    for key, value in found.items():
        if isinstance(value, list):
            entries = merged.setdefault(str(key), [])
            for entry in (_placed(entry, path) for entry in value):
                called = _called(entry)
                first = sources.setdefault((str(key), called), path)
                if first != path and called and entry not in entries:
                    yield called, first
                elif entry not in entries:
                    entries.append(entry)
        elif isinstance(value, Mapping):
            titled = merged.setdefault(str(key), {})
            for title, said in value.items():
                said = _placed(said, path) if key in _FILE_KEYS else said
                first = sources.setdefault((str(key), str(title)), path)
                if titled.setdefault(title, said) != said:
                    yield f"the average {title}" if key == "averages" else f"{key} for {title}", first
        elif key != "description":
            merged[str(key)] = value


def _called(entry: Any) -> str:
    """The name that an entry of a suite has, or will get; empty where it cannot be told."""
    if isinstance(entry, Mapping):
        if entry.get("name"):
            return str(entry["name"])
        kind = next((kind for kind in (*_FILE_KINDS, "task", "answers") if kind in entry), None)
        return (
            "" if kind is None else f"{kind} {entry[kind]}" if kind not in ("task", "perplexity") else str(entry[kind])
        )
    return str(entry)


_FILE_KINDS = ("perplexity", "memorisation", "classes", "choices", "instructions")
"""Kinds of entries that are called after their data file."""
_FILE_KEYS = (*_FILE_KINDS, "data", "fewshot_data", "task", "answers")


def _placed(entry: Any, suite: Path) -> Any:
    """An entry with its relative paths taken from the suite's own folder, where there is such a file."""

    def place(value: Any) -> Any:
        beside = suite.parent / value if isinstance(value, str) and not Path(value).is_absolute() else None
        is_file = (
            beside is not None
            and (kind_of(Path(value)) is not None or value.endswith((".yaml", ".yml")))
            and beside.exists()
        )
        return str(beside.resolve()) if is_file and beside is not None else value

    if isinstance(entry, Mapping):
        return {key: place(value) if key in _FILE_KEYS else value for key, value in entry.items()}
    return place(entry)


def changed(
    plan: EvaluationPlan,
    *,
    data: Mapping[str, str] | None = None,
    fewshot_data: Mapping[str, str] | None = None,
    skip: Sequence[str] = (),
    **settings: Any,
) -> tuple[EvaluationPlan, list[str]]:
    """A plan with local files for its tasks, without some entries, and with settings for all tasks.

    Args:
        plan: what is changed.
        data: file by task or entry name, see `TaskEntry.data`.
        fewshot_data: likewise, see `TaskEntry.fewshot_data`; needs `data` for the same task.
        skip: entries that are left out, by task or entry name; averages that need them go, too.
        settings: of `TaskEntry`, such as `limit` or `num_fewshot`; None leaves what is there.

    Returns:
        The plan, and a sentence a problem.
    """
    problems: list[str] = []
    names = sorted({name for entry in plan.entries for name in _names(entry)})
    given = {k: v for k, v in settings.items() if v is not None}
    for option, keys in (("data", data or {}), ("fewshot_data", fewshot_data or {}), ("skip", skip)):
        for key in keys:
            if key not in names:
                known = f"{did_you_mean(key, names)} There are: {', '.join(names)}."
                problems.append(f"--{option}: no entry or task '{key}' in what is to be measured.{known}")
    for option, places in (("data", data or {}), ("fewshot_data", fewshot_data or {})):
        for key, file in places.items():
            if not Path(file).expanduser().exists():
                problems.append(f"--{option} {key}: no such file: {file}")
    entries: list[Entry] = []
    for entry in plan.entries:
        if any(name in skip for name in _names(entry)):
            continue
        if isinstance(entry, TaskEntry):
            files: dict[str, Any] = {}
            for field, found in (("data", data or {}), ("fewshot_data", fewshot_data or {})):
                place = next((found[name] for name in _names(entry) if name in found), None)
                if place is not None:
                    files[field] = str(Path(place).expanduser().resolve())
            entry = dataclasses.replace(entry, **files, **given)
            if entry.fewshot_data is not None and entry.data is None:
                problems.append(f"--fewshot_data {entry.task}: only used together with --data {entry.task}=FILE.")
        elif "limit" in given:
            entry = dataclasses.replace(entry, max_documents=given["limit"])
        entries.append(entry)
    left = {(e.suite, e.name) for e in entries}
    averages: list[Average] = [a for a in plan.averages if all((suite, name) in left for suite, name, _ in a.members)]
    return dataclasses.replace(plan, entries=tuple(entries), averages=tuple(averages)), problems


def _names(entry: Entry) -> list[str]:
    task = [entry.task] if isinstance(entry, TaskEntry) else []
    return list(dict.fromkeys([entry.name, f"{entry.suite}/{entry.name}", *task]))
