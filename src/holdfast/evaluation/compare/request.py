"""What `holdfast compare` is asked: how to compare, and which evaluated models the words of a
command line name."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from holdfast.checkpoints.locate import is_hub_id
from holdfast.checkpoints.named import made_folder
from holdfast.config.declare import Meta, Seed
from holdfast.config.yaml_file import nearest_sibling
from holdfast.errors import ConfigError, HoldfastError, did_you_mean
from holdfast.records.comparison import FamilyWise
from holdfast.records.evaluation import EvaluationFolder, EvaluationRecord
from holdfast.records.margins import margin_words
from holdfast.records.run import RunFolder
from holdfast.support.files import read_as
from holdfast.support.paths import expanded

if TYPE_CHECKING:
    from holdfast.evaluation.foreign.registry import Reader


@dataclass(frozen=True, kw_only=True)
class CompareSettings:
    """How models are compared."""

    models: Annotated[tuple[str, ...], Meta(positional=True, metavar="A B")] = ()
    """Runs, evaluated models, logs of other tools, or models to measure (see above)."""
    suite: Annotated[tuple[str, ...], Meta(repeatable=True, metavar="NAME", section="models")] = ()
    """Suites for models that are not measured yet: shipped suites or YAML files, as in 'holdfast
    evaluate'."""
    measured_dir: Annotated[Path, Meta(metavar="FOLDER", section="models")] = Path("evaluated")
    """Folder for these measurements. Answers to prompts go to FOLDER_prompts beside it. Finished
    work is not repeated."""
    prompts: Annotated[Path | None, Meta(metavar="FILE")] = None
    """Your prompts, answered by both models. Rows have prompt or messages. The answers are shown
    side by side on the page and in JSON; they are not judged."""
    max_new_tokens: Annotated[int, Meta(ge=1, section="models")] = 256
    """Maximum number of tokens of an answer; decoding is greedy."""
    fail_if: Annotated[tuple[str, ...], Meta(repeatable=True, one_word=True, metavar="RULE")] = ()
    """Rule for a failure: exit code 3 if shown to be true. You can give several rules."""
    policy: Annotated[Path | None, Meta(metavar="GATE.yaml")] = None
    """Policy file: the largest loss allowed for each entry. The verdict is SHIP, HOLD or CANNOT
    TELL."""
    strict: bool = False
    """Count undecided rules as failed."""
    metrics: Literal["primary", "all"] = "primary"
    """Metric to compare, or all."""
    confidence: Annotated[float, Meta(gt=0, lt=1, metavar="LEVEL", section="statistics")] = 0.95
    """Confidence level of all intervals. At 0.95, the chance that any of the tests gives a false
    alarm is 0.025 (one-sided)."""
    margin: Annotated[
        tuple[str, ...],
        Meta(repeatable=True, one_word=True, metavar="0|2pt|1%|'0.02 UNIT'", parse=margin_words),
    ] = ()
    """Largest loss that does not matter: for shares, points (default 1pt); for other metrics, % of
    the value before; for metrics in a unit, a number with that unit; for all, 0."""
    allow_unpaired: Annotated[float, Meta(ge=0, le=1, metavar="SHARE", section="statistics")] = 0.01
    """Largest share of an entry's samples that may be unpaired (measured on one model only).
    Unpaired samples are named and left out. A larger share is an error."""
    family_wise: Annotated[FamilyWise, Meta(section="statistics")] = "holm"
    """How p-values are adjusted for the number of tests."""
    resamples: Annotated[int, Meta(ge=100, section="statistics")] = 4000
    """Number of resampling draws if `family_wise` is max_t."""
    seed: Seed = 0
    """Random seed of the draws."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One evaluated model."""

    folder: EvaluationFolder
    label: str
    notes: tuple[str, ...] = ()
    """What a reader should know of it, such as an evaluation that was interrupted."""
    log: Path | None = None
    """Where it was read, of another tool's log, whose `folder` is a temporary one."""
    model: str = ""
    """What it is loaded by: a folder, or a hub id; empty where that is not known."""
    run: RunFolder | None = None
    """That made it."""

    @property
    def path(self) -> Path:
        """Where its evaluations come from."""
        return self.folder.path if self.log is None else self.log


def unmeasured_models(words: Sequence[str], *, measures: bool) -> list[str]:
    """The words that name models and nothing that was measured; where models are measured, hub ids
    among them."""
    models = []
    for word in words:
        is_on_hub = measures and is_hub_id(word) and not expanded(word).exists()
        if is_on_hub or is_unmeasured_model(word):
            models.append(word)
    return models


def find_sides(words: Sequence[str], *, measures: bool = False) -> tuple[list[Side], list[str]]:
    """The two models that the words of a command line name, with labels that tell them apart, and a
    sentence for everything that is wrong with the words.

    Args:
        words: of the command line.
        measures: whether models that were not measured will be; they have no side yet then.
    """
    sides: list[Side] = []
    problems: list[str] = []
    models = unmeasured_models(words, measures=measures)
    if models and not measures:
        verb = "is a model that was" if len(models) == 1 else "are models that were"
        base = ["BASE"] if len(words) == 1 else []
        problems.append(
            f"{' and '.join(models)} {verb} not measured. To measure and compare, add a suite "
            f"(shipped or your own): 'holdfast compare {' '.join([*base, *words])} --suite "
            "knowledge'"
        )
    for word in words:
        if word in models:
            continue
        try:
            sides += find_models(word, only=len(words) == 1)
        except HoldfastError as error:
            problems.append(str(error))
    if not problems and len(sides) + len(models) != 2:
        problems += _wrong_number(sides, words)
    if len({side.label for side in sides}) < len(sides) == len(words):
        sides = [
            replace(side, label=word.rstrip("/")) for side, word in zip(sides, words, strict=True)
        ]
    return sides, problems


def _wrong_number(sides: Sequence[Side], words: Sequence[str]) -> list[str]:
    """What is said of more or fewer models than are compared."""
    labels = [side.label for side in sides]
    got = f"got {len(sides)}: {', '.join(labels)}" if sides else "got 0"
    if len(sides) == 2:
        return []
    if len(sides) < 2:
        return [f"expected two models, {got}, as in 'holdfast compare A B'"]
    listed = (
        ": " + ", ".join([f"{words[0]}:{label}" for label in labels]) if len(words) == 1 else ""
    )
    return [f"expected two models, {got}. Name two{listed}"]


def is_unmeasured_model(word: str) -> bool:
    """Whether a word names a model (a folder, an adapter's, one of `holdfast models`) and nothing
    that was measured."""
    path = expanded(word)
    if not path.is_dir():
        return made_folder(word) is not None
    return is_model(word) and not _is_evaluated(path) and _reader_of(path) is None


def is_model(name: str) -> bool:
    """Whether a name is that of a model which can be loaded: a folder, one of `holdfast models`, a
    hub id."""
    path = expanded(name)
    if path.is_dir():
        return (path / "config.json").is_file() or (path / "adapter_config.json").is_file()
    return made_folder(name) is not None or (is_hub_id(name) and not path.exists())


def find_models(word: str, *, only: bool) -> list[Side]:
    """The evaluated models that a word of the command line names.

    Args:
        word: see `holdfast compare --help`.
        only: whether it is the only word: a run is its start and its result then, and an output
            folder all its models.

    Raises:
        ConfigError: there is nothing of the kind; the message lists what is there.
        DataError: a record that cannot be read.
    """
    path, label = expanded(word), ""
    if not path.exists() and ":" in word:
        before, _, label = word.rpartition(":")
        path = expanded(before)
    if path.name in ("run.json", "evaluate.json"):
        path = path.parent
    if not path.is_dir():
        if path.exists():
            reader = _reader_of(path)
            if reader is None:
                expected = "expected a folder, or a log of another tool"
                raise ConfigError(f"{expected}, got the file {path}. {_readable()}")
            return _of_log(path, reader, only=only)
        hub = (
            f" If it is a model of the hub, measure it first: 'holdfast evaluate {word}'."
            if is_hub_id(word)
            else ""
        )
        raise ConfigError(
            f"no such file or folder: {word}.{nearest_sibling(path, accept=Path.is_dir)}{hub}"
        )
    if RunFolder(path).exists():
        return _of_run(path, label, only=only)
    if (path / "evaluate.json").is_file():
        return _of_output(path, label, only=only)
    if not label and (reader := _reader_of(path)) is not None:
        return _of_log(path, reader, only=only)
    folder = EvaluationFolder(path)
    if label or not folder.files():
        folders = filter(Path.is_dir, path.iterdir())
        inside = sorted(map(str, filter(_is_evaluated, folders)))
        listed = f" Inside are: {', '.join(inside[:10])}." if inside else ""
        expected = (
            "expected a run (run.json), or an output folder of 'holdfast evaluate' (evaluate.json)"
        )
        raise ConfigError(f"{path}: {expected}, found neither.{listed} {_readable()}")
    return [Side(folder=folder, label=path.name)]


def _reader_of(path: Path) -> Reader | None:
    """Who reads another tool's log; imported where one is met: `--help` does without NumPy."""
    from holdfast.evaluation.foreign.registry import reader_of

    return reader_of(path)


def _readable() -> str:
    """Which logs of other tools are read."""
    from holdfast.evaluation.foreign.registry import READERS

    forms = [f"{reader.tool}: {reader.expects}" for reader in READERS]
    return f"These logs of other tools can be read: {'; '.join(forms)}."


def _of_log(path: Path, reader: Reader, *, only: bool) -> list[Side]:
    """The models of another tool's log."""
    from holdfast.evaluation.foreign.log import as_folder

    logs = reader.logs(path)
    if len(logs) != 1 and not (only and len(logs) == 2):
        listed = ", ".join([str(log.path) for log in logs])
        raise ConfigError(
            f"{path} has logs of {len(logs)} models. Name the one to compare: {listed}"
        )
    sides = []
    for log in logs:
        notes = tuple([f"{log.model}: {note}" for note in log.notes])
        sides.append(Side(folder=as_folder(log), label=log.model, notes=notes, log=log.path))
    return sides


def _is_evaluated(path: Path) -> bool:
    return (
        RunFolder(path).exists()
        or (path / "evaluate.json").is_file()
        or bool(EvaluationFolder(path).files())
    )


def _of_run(path: Path, label: str, *, only: bool) -> list[Side]:
    run = RunFolder(path)
    if label not in ("", "start", "result"):
        raise ConfigError(
            f"{path} is a run: expected {path}:start or {path}:result, got ':{label}'"
        )
    record = run.read()
    names = ("start", "result") if only and not label else (label or "result",)
    folders = {}
    for name in names:
        of_start = "start" if len(names) == 2 else f"{record.name}:start"
        is_start = name == "start"
        model = str(record.config.get("model_name_or_path") or "") if is_start else str(path)
        folders[name] = Side(
            folder=run.evaluated(name),
            label=of_start if is_start else record.name,
            model=model if is_model(model) else "",
            run=None if is_start else run,
        )
    empty = (
        "the run's {} model. Train with `evaluation:` entries. With `before: false`, the initial "
        "model (start) is not measured."
    )
    return _sides(path, "run", record.status, folders, empty)


def _of_output(path: Path, label: str, *, only: bool) -> list[Side]:
    record = read_as(path / "evaluate.json", EvaluationRecord)
    labels = [str(model.get("label")) for model in record.models]
    listed = ", ".join([f"{path}:{name}" for name in labels])
    if label and label not in labels:
        near = did_you_mean(label, labels)
        raise ConfigError(f"{path} has no model '{label}'.{near} It has: {listed or 'none'}")
    if not label and not only and len(labels) != 1:
        names = listed or "once there is one"
        raise ConfigError(f"{path} has {len(labels)} models. Name the one to compare: {names}")
    empty = f"{{}} (the evaluation is {record.status}). Run the same command to continue."
    models = {str(model.get("label")): _model_of(path, model) for model in record.models}
    folders = {}
    for name in [label] if label else labels:
        folders[name] = Side(folder=EvaluationFolder(path / name), label=name, model=models[name])
    return _sides(path, "evaluation", record.status, folders, empty)


def _model_of(path: Path, model: Mapping[str, Any]) -> str:
    """What a model of `evaluate.json` is loaded by, as of `Side.model`."""
    if "folder" in model:
        folder = os.path.normpath(path / str(model["folder"]))
        return folder if os.path.isdir(folder) and is_model(folder) else ""
    name = str(model.get("name") or "")
    return name if is_model(name) else ""


def _sides(path: Path, kind: str, status: str, sides: Mapping[str, Side], empty: str) -> list[Side]:
    """The models of one folder, by name; `empty` ends the message where one was not measured."""
    missing = [name for name, side in sides.items() if not side.folder.files()]
    if missing:
        raise ConfigError(f"{path} has no measurements of {empty.format(' and '.join(missing))}")
    notes = () if status == "finished" else (f"{path}: the {kind} is {status}, not finished.",)
    both = list(sides.values())
    return [replace(side, notes=notes) for side in both[:1]] + both[1:]
