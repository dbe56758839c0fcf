"""The sequence study as the engine runs it: a model is a job, and waits for the one that it begins with."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.errors import HoldfastError
from holdfast.records.evaluation import EvaluationFolder
from holdfast.records.sequence import RECORD_FILE, RESIDUAL, SequenceRecord, write_sequence
from holdfast.studies.engine import session as engine
from holdfast.studies.engine.asked import StudyAsked
from holdfast.studies.engine.models import measure_model, measuring_processes, train_model
from holdfast.studies.engine.progress import share_of_run
from holdfast.studies.engine.storage import GRACE_SECONDS
from holdfast.studies.engine.study import COMPLETE, RUNNING, JobState, StudyState, Writer
from holdfast.studies.sequence.plan import MODEL, SEED, Model, SequenceConfig
from holdfast.studies.sequence.settings import SAMPLES
from holdfast.support.environment import say, wait_for_lock
from holdfast.training.checkpoint_folders import remove_folder

if TYPE_CHECKING:
    from holdfast.studies.engine.worker import Task

FISHER = "fisher"
"""Folder of a run in which EWC keeps its Fisher diagonal."""
FISHER_SAMPLES = 64
MEASURED = "evaluations"
"""Beside a merged model: what was measured of it."""


@dataclass(frozen=True, kw_only=True)
class ModelResult:
    """One model with one seed, trained or merged, and measured."""

    folder: str
    """Relative to the study's."""
    evaluations: str
    """What was measured of it, relative to the study's folder."""
    seconds: float
    tokens: int = 0
    distance: float | None = None
    curves: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    score: float = 0.0
    """Mean over the tasks of the figure that leads each, signed so that more is better."""


def run_sequence(
    config: SequenceConfig, *, console: Any = None, workers: int | None = None, grace: float = GRACE_SECONDS
) -> SequenceRecord:
    """Runs a study to its end, or continues it.

    Args:
        config: see `plan.sequence_config`.
        console: a `rich.console.Console` for progress; None: a new one on standard output.
        workers: models at a time on this machine; None: as the study says, else one a GPU, or two on two and more
            cores. 0 starts none and waits for those started elsewhere.
        grace: seconds without a sign of life after which another machine's model is taken over.

    Returns:
        The record as in sequence.json.

    Raises:
        ConfigError: the configuration, or the storage holds another study of this name (what differs).
        StorageError: the storage does not answer.
        RunFolderError: the folder is another's.
        Interrupted: Ctrl-C; the same command continues.
        HoldfastError: models failed (which), after the others were made and the page was written.
    """
    record: SequenceRecord = engine.execute_study(SequenceStudy(config), console=console, workers=workers, grace=grace)
    return record


class SequenceStudy(StudyAsked[SequenceConfig]):
    """The sequence study."""

    config_class: ClassVar[type[SequenceConfig]] = SequenceConfig
    noun: ClassVar[str] = "model"
    begins: ClassVar[str] = "holdfast sequence --config study.yaml"
    markers: ClassVar[tuple[str, ...]] = (RECORD_FILE, "study.db", "logs", "data")

    def open_folder(self, console: Any) -> None:
        """Looks at the base's files before anything is trained.

        Raises:
            ModelError: the base is not whole.
        """
        import os

        from holdfast.checkpoints.named import located
        from holdfast.models import check_model

        name = self.settings.base
        if os.path.isdir(located(name)) and not (self.settings.output_dir / RECORD_FILE).is_file():
            check_model(name, trust_remote_code=bool(self.settings.asked.train.get("trust_remote_code")))

    def cells(self, attributes: Mapping[str, Any]) -> list[tuple[str, int]]:
        """A job has one seed."""
        return [("", int(attributes[SEED]))]

    # ---------------------------------------------------------------------------------------------------------- models

    def make(self, task: Task) -> ModelResult:
        """One model, made and measured.

        Raises:
            HoldfastError: a model that it needs is not there, or training failed.
        """
        config, out = self.settings, self.settings.output_dir
        model = config.models[task.attributes[MODEL]]
        for name in model.needs:
            self._make_again(name, task)
        missing = [n for n in model.needs if not _whole(config.folder(n, task.seed))]
        if missing:
            labels = ", ".join(config.models[n].label for n in missing)
            raise HoldfastError(f"depends on {labels}, which {'was' if len(missing) == 1 else 'were'} not made")
        began = time.monotonic()
        made = self._made(model, task)
        folder = config.folder(model.name, task.seed)
        reference = config.folder(model.reference, task.seed) if model.reference else config.base
        return dataclasses.replace(
            made,
            folder=folder.relative_to(out).as_posix(),
            seconds=round(time.monotonic() - began, 3),
            distance=_distance(reference, folder),
            score=_mean_score(EvaluationFolder(out / made.evaluations), config.leading),
        )

    def _made(self, model: Model, task: Task) -> ModelResult:
        return self._merge(model, task) if model.merge else self._train(model, task)

    def _make_again(self, name: str, task: Task) -> None:
        """A model that was made and measured, and whose weights were removed since: an arm that came later needs them,
        and the same seed and data give the same weights."""
        folder, model = self.settings.folder(name, task.seed), self.settings.models[name]
        jobs = [a for a in task.others() if a.get(MODEL) == name and a.get(SEED) == task.seed]
        if _whole(folder) or not any(self.results(attributes) for attributes in jobs):
            return
        with wait_for_lock(folder.with_name(f"{folder.name}.again")):
            if _whole(folder):  # another worker was first
                return
            for needed in model.needs:
                self._make_again(needed, task)
            say(task.console, f"{model.label}: made again, since its weights were not kept")
            remove_folder(folder)
            self._made(model, task)

    def _train(self, model: Model, task: Task) -> ModelResult:
        config, out = self.settings, self.settings.output_dir
        start = str(
            config.folder(model.start, task.seed) if model.start else config.filled(model.origin) or config.base
        )
        place = config.folder(model.before, task.seed) / FISHER if model.before else None
        fisher = str(place) if place is not None and place.is_dir() else ""
        settings = config.training(model, task.seed, start=start, fisher=fisher)
        watched = model.trained[:-1] or tuple(config.asked.tasks)
        made = train_model(settings, watched, config.asked.curve, cache=out / "evaluations", task=task)
        return ModelResult(
            folder="",
            evaluations=made.measured.path.relative_to(out).as_posix(),
            seconds=0.0,
            tokens=made.tokens,
            curves=made.curves,
        )

    def _merge(self, model: Model, task: Task) -> ModelResult:
        from holdfast.checkpoints.merge import merge
        from holdfast.checkpoints.methods.registry import find_method
        from holdfast.runs.fisher import compute_fisher

        config, out = self.settings, self.settings.output_dir
        folder, parameters = config.folder(model.name, task.seed), dict(model.merge)
        method = str(parameters.pop("method"))
        if method == RESIDUAL:
            self._add_residual(config.folder(model.parts[0], task.seed), folder, **parameters)
        elif not _whole(folder):
            parts = [config.folder(n, task.seed) for n in model.parts]
            if find_method(method).needs_base:
                parameters["base"] = config.base
            if find_method(method).extras is not None:
                samples = int(parameters.pop(SAMPLES, FISHER_SAMPLES))
                trains = [config.filled({**config.asked.train, **config.asked.tasks[t].train}) for t in model.trained]
                parameters["fisher"] = [
                    compute_fisher(
                        part,
                        train["dataset_name"],
                        samples=samples,
                        output_dir=part.with_name(f"{part.name}.{FISHER}"),
                        overwrite=True,
                    ).folder
                    for part, train in zip(parts, trains, strict=True)
                ]
            merge(parts, folder, method=method, overwrite=True, **parameters)
        place = folder.with_name(f"{folder.name}.{MEASURED}")
        processes = measuring_processes(config.asked.train, config.measured)
        found = measure_model(folder, config.measured, place, cache=out / "evaluations", task=task, processes=processes)
        return ModelResult(folder="", evaluations=found.path.relative_to(out).as_posix(), seconds=0.0)

    def _add_residual(self, continued: Path, folder: Path, *, base: str, scale: float) -> None:
        from holdfast.checkpoints.residual import transfer_residual

        if not _whole(folder):
            old = self.settings.filled(base)
            transfer_residual(self.settings.base, old, continued, folder, scale=scale, overwrite=True)

    def values(self, task: Task) -> Sequence[float]:
        """The mean score."""
        return [float(task.results[0]["score"])]

    def share(self, job: JobState) -> float:
        """How much of a running model is done, read from what its run has written."""
        share = super().share(job)
        if job.state == RUNNING and share < 1:
            model, seed = self.settings.models[job.attributes[MODEL]], int(job.attributes[SEED])
            if not model.merge:
                share = share_of_run({**model.settings, "output_dir": self.settings.folder(model.name, seed)})
        return share

    def clean(self, state: StudyState) -> None:
        """Deletes checkpoints of runs that ended, and weights that nobody needs any more and that are not kept."""
        from holdfast.studies.engine.worker import remove_checkpoints, remove_weights

        config = self.settings
        ended = {(j.attributes[MODEL], int(j.attributes[SEED])) for j in state.latest if j.state == COMPLETE}
        open_ = [config.models[j.attributes[MODEL]] for j in state.latest if j.state != COMPLETE]
        needed = {n for model in open_ for n in model.needs}
        for name in list(config.models)[::-1]:  # those that others need come first
            if name in needed and not any(_whole(config.folder(name, seed)) for seed in config.asked.seeds):
                needed.update(config.models[name].needs)  # it is made, or made again, from them
        final = {chain.models[-1] for chain in config.chains}
        for name, seed in ended:
            folder = config.folder(name, seed)
            remove_checkpoints(folder)
            kept = config.asked.keep == "all" or (config.asked.keep == "final" and name in final)
            if not kept and name not in needed:
                remove_weights(folder)

    # --------------------------------------------------------------------------------------------------------- outcome

    def outcome(self, state: StudyState) -> SequenceRecord:
        """The study as in sequence.json, without what is computed from samples."""
        from holdfast.studies.sequence.outcome import sequence_record

        return sequence_record(state, self.settings, {j.number: self.results(j.attributes) for j in state.latest})

    def complete(self, record: SequenceRecord) -> SequenceRecord:
        """With every arm's figures."""
        from holdfast.studies.sequence.outcome import with_figures

        return with_figures(record, self.settings)

    def write(self, record: SequenceRecord) -> None:
        """Writes sequence.json."""
        write_sequence(self.settings.output_dir, record)

    def page(self, record: SequenceRecord) -> Writer:
        """The page on what is there."""
        from holdfast.reports.html import write_page
        from holdfast.reports.sequence_report import sequence_page

        return lambda path: write_page(sequence_page(record), path)


def _whole(folder: Path) -> bool:
    return any(folder.glob("*.safetensors"))


def _distance(before: str | Path, after: Path) -> float:
    from holdfast.checkpoints.distance import distance

    return distance(before, after).total.l2


def _mean_score(measured: EvaluationFolder, leading: Mapping[str, tuple[str, str]]) -> float:
    figures = []
    for suite, name in leading.values():
        one = measured.find(suite, name)
        if one is None:
            raise HoldfastError(f"{suite}/{name} was not measured")
        metric = one.metrics[one.primary]
        figures.append(metric.value if metric.higher_is_better else -metric.value)
    return sum(figures) / len(figures)
