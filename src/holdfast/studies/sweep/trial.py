"""One trial: a fine-tuning a seed, and what each learnt and forgot.

A run's folder is named by what decides it, so a trial that was taken over, tried again or drawn
twice finds what is there and goes on. Start and teacher are shared through the caches of
`runs.run`: the start is measured once in a study, and label annealing's teacher is computed once.
"""

from __future__ import annotations

import contextlib
import copy
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.records.evaluation import Evaluation
from holdfast.records.run import RunFolder
from holdfast.records.study import SeedRun
from holdfast.runs.launched import train_in_processes
from holdfast.studies.engine.study import CannotJudge
from holdfast.studies.engine.watching import CheckEveryStep
from holdfast.studies.sweep.names import run_folder_name
from holdfast.studies.sweep.record import metric_problems, select_problems, validation_problems
from holdfast.studies.sweep.study import StudyConfig


def run_seed(
    config: StudyConfig,
    settings: Mapping[str, Any],
    seed: int,
    *,
    kind: str,
    out: Path,
    console: Any,
    check: Callable[[], None],
) -> SeedRun:
    """One fine-tuning, from start to comparison; or what is left of it.

    Args:
        config: the study.
        settings: the trial's training configuration, complete.
        seed: of this repetition.
        kind: the trial's methods.
        out: the study's folder on this machine.
        console: where the run reports to.
        check: raises where the worker has to stop; called at every step.

    Raises:
        LeaseLost, Interrupted: from `check` or a signal.
        HoldfastError: the run failed.
    """
    from holdfast.runs.config import train_config
    from holdfast.runs.run import train

    folder = out / "runs" / run_folder_name(settings, kind) / f"seed-{seed}"
    began = time.monotonic()
    training = train_config({**settings, "output_dir": str(folder), "seed": seed})
    run = RunFolder(folder)
    if training.processes > 1:
        train_in_processes(training, folder, evaluations=out / "evaluations")
    else:
        callbacks = [_Check(config, run, check)]
        train(
            training,
            console=console,
            evaluation_cache=out / "evaluations",
            callbacks=callbacks,
            alone=False,
        )
    record = run.read()
    with contextlib.suppress(ValueError):
        folder = folder.relative_to(out)
    return SeedRun(
        seed=seed,
        folder=folder.as_posix(),
        host=socket.gethostname(),
        seconds=round(time.monotonic() - began, 3),
        training_seconds=float(record.training.get("seconds", 0.0)),
        comparisons=run.comparisons(),
        references=references_of(run.evaluated("start").all()),
        steps=record.training.get("steps"),
    )


def references_of(evaluations: Sequence[Evaluation]) -> dict[str, dict[str, float]]:
    """`SeedRun.references` of the start's evaluations."""
    references = {}
    for evaluation in evaluations:
        for metric, levels in evaluation.references.items():
            references[f"{evaluation.suite}/{evaluation.name}/{metric}"] = dict(levels)
    return references


class _Check(CheckEveryStep):
    """Before the first step also: are the objectives what was measured?"""

    def __init__(self, config: StudyConfig, run: RunFolder, check: Callable[[], None]) -> None:
        super().__init__(check)
        self.config, self.run = config, run

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_train_begin(args, state, control)
        measured = {}
        for evaluation in self.run.evaluated("start").all():
            measured[evaluation.suite, evaluation.name] = (evaluation.metrics, evaluation.primary)
        config = self.config
        problems: list[str] = []
        for side, objective in config.objectives.items():
            problems += metric_problems(objective, side, measured)
        if config.validation is not None and not problems:
            problems += validation_problems(config.validation, config.learn, measured)
        problems += select_problems(config.select, config.keep, measured)
        if problems:
            raise CannotJudge(problems)


# -------------------------------------------------------------------------------------- one teacher


def with_shared_teacher(
    settings: Mapping[str, Any], teacher: str
) -> tuple[dict[str, Any], str | None]:
    """The settings with label annealing's teacher read from the cache that all trials share, where
    that is possible and the user left it open.

    Args:
        settings: of a trial, complete.
        teacher: "auto", "cached" or "online", as the study says.

    Returns:
        The settings, and what is worth knowing: why each trial runs the teacher itself.
    """
    methods = settings.get("retention") or []
    annealings = [method["label_annealing"] for method in methods if "label_annealing" in method]
    if all("teacher" in parameters for parameters in annealings) or teacher == "online":
        return dict(settings), None
    reason = None if teacher == "cached" else _no_cache(settings)
    if reason is not None:
        return (
            dict(settings),
            f"Label annealing's teacher runs in every trial: {reason}. To compute its predictions "
            "only once, set 'teacher: cached' in the study.",
        )
    completed = copy.deepcopy(dict(settings))
    for method in completed["retention"]:
        if "label_annealing" in method:
            method["label_annealing"].setdefault("teacher", "cached")
    return completed, None


def _no_cache(settings: Mapping[str, Any]) -> str | None:
    """Why the teacher's states are not stored unasked; None where they are. The cache itself
    refuses what the disk has no room for."""
    data = settings.get("dataset_name")
    if settings.get("streaming"):
        return "the data is streamed"
    if settings.get("num_processes") or settings.get("accelerate_config"):
        return "training uses several processes"
    if not isinstance(data, str) or not os.path.exists(data):
        return "the amount of data is unknown before it is read"
    return None
