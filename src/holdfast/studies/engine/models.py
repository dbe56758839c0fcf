"""A language model as the job of a study: trained and measured, or measured alone."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError, Problem
from holdfast.evaluation.loading import ModelLoading
from holdfast.records.evaluation import EvaluationFolder
from holdfast.records.run import RunFolder
from holdfast.support.files import fingerprint
from holdfast.support.progress import ProgressDisplay

if TYPE_CHECKING:
    from holdfast.evaluation.entries import Entry, EvaluationPlan
    from holdfast.studies.engine.worker import Task

MEASURED = "model"
"""Name of the one model that `measure_model` evaluates, and of its folder."""


@dataclass(frozen=True, kw_only=True)
class MadeModel:
    """A model of a study, made and measured."""

    measured: EvaluationFolder
    tokens: int = 0
    """Seen in training."""
    curves: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """By suite: (share of the steps, held-out loss)."""


def folder_name(parts: Sequence[str], deciding: Any) -> str:
    """Of a model's folder: words for people, and a hash of what decides the model."""
    text = re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(parts)).strip("-.").lower()
    return f"{text[:60].rstrip('-.')}-{fingerprint(deciding, length=8)}"


def check_local_model(name: Any, train: Mapping[str, Any]) -> None:
    """Finds out from a model's files whether it can be loaded; not where it lies on the hub, or is
    made when the study runs.

    Args:
        name: of the model.
        train: keys of `holdfast train` that it is loaded with.

    Raises:
        ModelError: it cannot.
    """
    from holdfast.checkpoints.named import located
    from holdfast.models import check_model

    if isinstance(name, str) and os.path.isdir(located(name)):
        check_model(name, trust_remote_code=bool(train.get("trust_remote_code")))


def training_problems(settings: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with a training configuration; what reading it sets in the environment is taken
    back.

    Args:
        settings: keys of `holdfast train --config`.
    """
    from holdfast.runs.config import train_config

    try:
        with unchanged_environment():
            train_config(settings)
    except ConfigError as error:
        return error.problems
    return []


def rounding_notes(settings: Mapping[str, Any]) -> list[str]:
    """A sentence where a training would round most of its steps away
    (`runs.dry_run.remarks_on_rounding`); what reading it sets in the environment is taken back.

    Args:
        settings: keys of `holdfast train --config`, with a model that is here.
    """
    from holdfast.runs.config import train_config
    from holdfast.runs.dry_run import remarks_on_rounding

    with unchanged_environment():
        return remarks_on_rounding(train_config(settings))


@contextlib.contextmanager
def unchanged_environment() -> Iterator[None]:
    """Takes back what is done to the environment's variables."""
    environment = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(environment)


def train_model(
    settings: Mapping[str, Any],
    suites: Sequence[str],
    points: int,
    *,
    cache: Path | None,
    task: Task,
) -> MadeModel:
    """Trains and measures a model, or finds it trained.

    Args:
        settings: the training configuration, with `output_dir`.
        suites: whose first held-out text is also measured on the way.
        points: how often, in equal parts of the steps; 0: not at all.
        cache: for evaluations; None: they are shared with nobody.
        task: what the worker does.
    """
    from holdfast.evaluation.entries import Along
    from holdfast.runs.config import train_config
    from holdfast.runs.launched import train_in_processes
    from holdfast.runs.run import train
    from holdfast.studies.engine.watching import CheckEveryStep

    training = train_config(settings)
    run = RunFolder(settings["output_dir"])
    watched = _losses(training.evaluation, suites) if points else []
    shares = [number / points for number in range(1, points)] if watched else []
    entries = [f"{entry.suite}/{entry.name}" for entry in watched]
    if training.processes > 1:
        if shares:
            along = {"shares": shares, "entries": entries}
            evaluation = {**settings["evaluation"], "along": along}
            training = train_config({**settings, "evaluation": evaluation})
        train_in_processes(training, run.path, evaluations=cache)
    else:
        if shares:
            when = Along(shares=tuple(shares), entries=tuple(entries))
            training = replace(training, evaluation=replace(training.evaluation, along=when))
        train(
            training,
            console=task.console,
            evaluation_cache=cache,
            callbacks=[CheckEveryStep(task.check)],
            alone=False,
        )
    curves = _curves(run, watched)
    note_entries(run, task)
    tokens = int(run.read().training.get("tokens") or 0)
    return MadeModel(measured=run.evaluated("result"), tokens=tokens, curves=curves)


def note_entries(run: RunFolder, task: Task) -> None:
    """Hands a study what its run says of the entries that it measured: copies, few samples,
    training rows. Nothing where there is no run."""
    if not run.exists():
        return
    names = []
    for evaluation in run.evaluated("result").all():
        names.append(f"{evaluation.suite}/{evaluation.name}: ")
    for text in run.read().notes:
        if text.startswith(tuple(names)):
            task.note(text)


def measuring_processes(train: Mapping[str, Any]) -> int:
    """How many processes measure a model on disk: as many as train one.

    Args:
        train: a study's keys of `holdfast train`.
    """
    return int(train.get("num_processes") or 1)


def measure_model(
    model: str | Path,
    plan: EvaluationPlan,
    place: Path,
    *,
    cache: Path | None,
    task: Task,
    label: str = MEASURED,
    loading: ModelLoading = ModelLoading(),
    processes: int = 1,
) -> EvaluationFolder:
    """Measures a model that no job trained, or finds it measured.

    Args:
        model: name or folder.
        plan: what is measured.
        place: gets the folder `label`.
        cache: for evaluations; None: they are shared with nobody.
        task: what the worker does.
        label: of the model.
        loading: as of `evaluate_models`.
        processes: that share the questions.
    """
    from holdfast.evaluation.session import ModelRequest, evaluate_models

    request = ModelRequest(name=str(model), label=label)
    display = ProgressDisplay(console=task.console)
    evaluate_models(
        [request], plan, place, cache=cache, loading=loading, processes=processes, display=display
    )
    return EvaluationFolder(place / label)


def _losses(plan: EvaluationPlan, suites: Sequence[str]) -> list[Entry]:
    """What is measured on the way: the first held-out text of each of these suites."""
    chosen: dict[str, Entry] = {}
    for entry in plan.entries:
        if entry.suite in suites and entry.kind == "perplexity":
            chosen.setdefault(entry.suite, entry)
    return list(chosen.values())


def _curves(run: RunFolder, watched: Sequence[Entry]) -> dict[str, list[tuple[float, float]]]:
    """By suite: (share of the steps, nats a token), the start and the end among them."""
    steps = int(run.read().training.get("steps") or 0)
    curves: dict[str, list[tuple[float, float]]] = {}
    for step, measured in run.trajectory():
        for entry in watched:
            evaluation = measured.find(entry.suite, entry.name)
            if evaluation is not None and steps:
                curves.setdefault(entry.suite, []).append((step / steps, evaluation.leading.value))
    return curves
