"""The sequence study as the engine runs it: a model is a job, and waits for the one that it begins with."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.errors import ConfigError, HoldfastError
from holdfast.records.evaluation import EvaluationFolder
from holdfast.records.run import RunFolder
from holdfast.records.sequence import RECORD_FILE, SequenceRecord, write_sequence
from holdfast.studies.engine import session as engine
from holdfast.studies.engine.progress import share_of_run
from holdfast.studies.engine.small import existing_files, make_files
from holdfast.studies.engine.storage import GRACE_SECONDS
from holdfast.studies.engine.study import COMPLETE, RUNNING, JobState, Study, StudyState, Writer
from holdfast.studies.engine.watching import CheckEveryStep
from holdfast.studies.sequence.plan import MODEL, SEED, Model, SequenceConfig, check_models, sequence_config
from holdfast.studies.sequence.settings import SAMPLES

if TYPE_CHECKING:
    from holdfast.evaluation.entries import Entry, EvaluationPlan
    from holdfast.runs.measuring import Point
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


class SequenceStudy(Study[SequenceConfig]):
    """The sequence study."""

    noun: ClassVar[str] = "model"
    markers: ClassVar[tuple[str, ...]] = (RECORD_FILE, "study.db", "logs", "data")

    @classmethod
    def load(cls, resolved: Mapping[str, Any], *, storage: str, output_dir: Path) -> SequenceStudy:
        """See `Study.load`."""
        config = sequence_config(resolved, source=f"study '{resolved['name']}'", check=False)
        names = existing_files(output_dir / "data") if config.small else {}
        return cls(dataclasses.replace(config, storage=storage, output_dir=output_dir, names=names))

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
            check_model(name, trust_remote_code=bool(self.settings.train.get("trust_remote_code")))

    def prepare(self, console: Any) -> SequenceStudy:
        """The study with what `small:` makes; every model's training is checked then.

        Raises:
            ConfigError: with every mistake at once.
        """
        config = self.settings
        if config.small is None:
            return self
        names = make_files(config.small, config.output_dir / "data", source=config.name, console=console)
        filled = dataclasses.replace(config, names=names)
        problems = check_models(filled)
        if problems:
            raise ConfigError(problems, source=config.name)
        return SequenceStudy(filled)

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
        missing = [n for n in model.needs if not _whole(config.folder(n, task.seed))]
        if missing:
            labels = ", ".join(config.models[n].label for n in missing)
            raise HoldfastError(f"depends on {labels}, which {'was' if len(missing) == 1 else 'were'} not made")
        began = time.monotonic()
        made = self._merge(model, task) if model.merge else self._train(model, task)
        folder = config.folder(model.name, task.seed)
        reference = config.folder(model.reference, task.seed) if model.reference else config.base
        return dataclasses.replace(
            made,
            folder=folder.relative_to(out).as_posix(),
            seconds=round(time.monotonic() - began, 3),
            distance=_distance(reference, folder),
            score=_mean_score(EvaluationFolder(out / made.evaluations), config.leading),
        )

    def _train(self, model: Model, task: Task) -> ModelResult:
        from holdfast.runs.config import train_config
        from holdfast.runs.launched import train_in_processes
        from holdfast.runs.run import train

        config, out = self.settings, self.settings.output_dir
        start = str(config.folder(model.start, task.seed) if model.start else config.base)
        place = config.folder(model.before, task.seed) / FISHER if model.before else None
        fisher = str(place) if place is not None and place.is_dir() else ""
        wanted = train_config(config.training(model, task.seed, start=start, fisher=fisher))
        run = RunFolder(config.folder(model.name, task.seed))
        curves: dict[str, list[tuple[float, float]]] = {}
        if wanted.processes > 1:
            train_in_processes(wanted, run.path, evaluations=out / "evaluations")
        else:
            watched = _losses(wanted.evaluation, model.trained[:-1] or tuple(config.tasks))
            callbacks = [CheckEveryStep(task.check), *self._measuring(wanted, run, watched, task)]
            train(wanted, console=task.console, evaluation_cache=out / "evaluations", callbacks=callbacks)
            curves = _curves(run, watched) if config.curve else {}
        record = run.read()
        return ModelResult(
            folder="",
            evaluations=run.evaluated("result").path.relative_to(out).as_posix(),
            seconds=0.0,
            tokens=int(record.training.get("tokens") or 0),
            curves=curves,
        )

    def _measuring(self, wanted: Any, run: RunFolder, plan: EvaluationPlan, task: Task) -> list[Any]:
        """Measures held-out losses on the way."""
        from holdfast.runs.measuring import MeasureAt

        points = self.settings.curve
        if not points or not plan.entries:
            return []
        return [
            MeasureAt(
                shares=[i / points for i in range(1, points)],
                plan=plan,
                folder=run.path / CURVES,
                key=f"{wanted.key}-{task.seed}",
                reached=_measure,
                start=run.evaluated("start"),
            )
        ]

    def _merge(self, model: Model, task: Task) -> ModelResult:
        from holdfast.checkpoints.merge import merge
        from holdfast.checkpoints.methods.registry import find_method
        from holdfast.evaluation.session import ModelRequest, evaluate_models

        config, out = self.settings, self.settings.output_dir
        folder, parameters = config.folder(model.name, task.seed), dict(model.merge)
        method = str(parameters.pop("method"))
        if not _whole(folder):
            parts = [config.folder(n, task.seed) for n in model.parts]
            if find_method(method).needs_base:
                parameters["base"] = config.base
            if find_method(method).extras is not None:
                samples = int(parameters.pop(SAMPLES, FISHER_SAMPLES))
                data = [str(config.filled(config.tasks[t].train["dataset_name"])) for t in model.trained]
                parameters["fisher"] = [_fisher(*one, samples) for one in zip(parts, data, strict=True)]
            merge(parts, folder, method=method, overwrite=True, **parameters)
        place = folder.with_name(f"{folder.name}.{MEASURED}")
        evaluate_models(
            [ModelRequest(name=str(folder), label=MODEL)],
            config.measured,
            place,
            cache=str(out / "evaluations"),
            console=task.console,
            say=lambda line: None,
        )
        return ModelResult(folder="", evaluations=(place / MODEL).relative_to(out).as_posix(), seconds=0.0)

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
        from holdfast.studies.engine.worker import remove_checkpoints

        config = self.settings
        ended = {(j.attributes[MODEL], int(j.attributes[SEED])) for j in state.latest if j.state == COMPLETE}
        open_ = [config.models[j.attributes[MODEL]] for j in state.latest if j.state != COMPLETE]
        needed = {n for model in open_ for n in model.needs}
        final = {chain.models[-1] for chain in config.chains}
        for name, seed in ended:
            folder = config.folder(name, seed)
            remove_checkpoints(folder)
            kept = config.keep == "all" or (config.keep == "final" and name in final)
            if not kept and name not in needed:
                for file in folder.glob("*.safetensors"):
                    with contextlib.suppress(FileNotFoundError):
                        file.unlink()

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
        """The page with the plane of the tasks."""
        from holdfast.reports.sequence_report import write_sequence_report

        return lambda path: write_sequence_report(path, record)


CURVES = "along"
"""Folder of a run with what was measured on the way."""


def _measure(point: Point) -> None:
    point.measure()


def _losses(plan: EvaluationPlan, tasks: Sequence[str]) -> EvaluationPlan:
    """What is measured on the way: the first held-out text of each of these tasks."""
    chosen: dict[str, Entry] = {}
    for entry in plan.entries:
        if entry.suite in tasks and entry.kind == "perplexity":
            chosen.setdefault(entry.suite, entry)
    return dataclasses.replace(plan, entries=tuple(chosen.values()), averages=())


def _curves(run: RunFolder, plan: EvaluationPlan) -> dict[str, list[tuple[float, float]]]:
    """By task: (share of the steps, nats a token), the start and the end among them."""
    total = int(run.read().training.get("steps") or 0)
    places = [(0, run.evaluated("start")), (total, run.evaluated("result"))]
    for folder in (run.path / CURVES).glob("step-*"):
        places.append((int(folder.name.partition("-")[2]), EvaluationFolder(folder)))
    found: dict[str, list[tuple[float, float]]] = {}
    for step, measured in sorted(places, key=lambda p: p[0]):
        for entry in plan.entries:
            one = measured.find(entry.suite, entry.name)
            if one is not None and total:
                found.setdefault(entry.suite, []).append((step / total, one.metrics[one.primary].value))
    return found


def _fisher(model: Path, data: str, samples: int) -> Path:
    """The Fisher diagonal of a single-task model on its task's data, computed once and kept beside the model."""
    from holdfast.runs.fisher import compute_fisher

    place = model.with_name(f"{model.name}.{FISHER}")
    return compute_fisher(model, data, samples=samples, output_dir=place, overwrite=True).folder


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
