"""What lies in one model's evaluation folder, read as far as it goes, and how a model and its
settings are called."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import DataError
from holdfast.records.evaluation import Evaluation, EvaluationFolder, why_not_finite
from holdfast.reports.format import last_part, setting, shorten
from holdfast.support.files import read_as

Key = tuple[str, str]
"""Suite and name of an entry."""


class Measured:
    """What lies in one model's folder, read as far as it goes: `problems` names the files that
    could not be read.

    Args:
        folder: of one model.
        label: its name for readers.
    """

    def __init__(self, folder: EvaluationFolder, label: str) -> None:
        self.folder = folder
        self.label = label
        self.problems: list[str] = []
        self.evaluations: dict[Key, Evaluation] = {}
        self._files: dict[Key, Path] = {}
        for path in folder.files():
            try:
                evaluation = read_as(path, Evaluation)
            except DataError as error:
                reason = str(error).replace(str(path), path.name)
                self.problems.append(
                    f"{label}: {path.name} could not be read, so it is left out: {reason}"
                )
                continue
            self.evaluations[evaluation.suite, evaluation.name] = evaluation
            self._files[evaluation.suite, evaluation.name] = path

    def find(self, suite: str, name: str) -> Evaluation | None:
        """The evaluation of an entry; by its name alone where no suite has both and one entry is
        called so."""
        if (suite, name) in self.evaluations:
            return self.evaluations[suite, name]
        namesakes = [
            evaluation for (_, other), evaluation in self.evaluations.items() if other == name
        ]
        return namesakes[0] if len(namesakes) == 1 else None

    def samples_file(self, evaluation: Evaluation) -> str:
        """Name of the file with the evaluation's rows."""
        return (
            self._files[evaluation.suite, evaluation.name].name.removesuffix(".json")
            + ".samples.jsonl"
        )

    def rows(self, evaluation: Evaluation) -> list[dict[str, Any]] | None:
        """The evaluation's rows; None where they cannot be read, which `problems` then names."""
        name = self.samples_file(evaluation)
        try:
            rows = self.folder.samples(evaluation.suite, evaluation.name)
        except DataError as error:
            folder = str(self.folder.path)
            reason = str(error).replace(folder + os.sep, "").replace(folder, self.folder.path.name)
            self.problems.append(f"{self.label}: {name} could not be read: {reason}")
            return None
        if (broken := why_not_finite({}, rows)) is not None:
            self.problems.append(f"{self.label}: {name} could not be used: {broken}")
            return None
        return rows


def settings_of(evaluations: Iterable[Evaluation]) -> list[tuple[str, str]]:
    """The settings of every entry once, by the first that has it."""
    settings: dict[str, str] = {}
    for e in evaluations:
        settings.setdefault(f"{e.suite}/{e.name}", settings_text(e.settings))
    return list(settings.items())


def names_of(keys: Sequence[Key]) -> list[str]:
    """Entries by their names, with the suite where two share one."""
    names = [name for _, name in keys]
    return [name if names.count(name) == 1 else f"{suite}/{name}" for suite, name in keys]


def subject_names(tasks: Sequence[str]) -> list[str]:
    """Subtasks without what all their names begin with (`mmlu_anatomy` -> `anatomy`), underscores
    as spaces."""
    first, last = (
        min(tasks, default=""),
        max(tasks, default=""),
    )  # what these two share, all between them share
    shared = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    cut = "".join(letter for letter, _ in shared).rfind("_") + 1 if first != last else 0
    return [task[cut:].replace("_", " ") or task for task in tasks]


def settings_text(settings: Mapping[str, Any]) -> str:
    """An entry's settings in one line; files by their last part."""
    parts = []
    for key, value in settings.items():
        if value not in (None, "", [], {}):
            text = setting(last_part(value) if isinstance(value, str) else value)
            parts.append(f"{key.replace('_', ' ')}: {shorten(text, 120)}")
    return "; ".join(parts) or "none"
