"""An overtraining study as the engine runs it: every checkpoint is probed and fine-tuned in every
way."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.errors import HoldfastError, NotFinite, TrainingDiverged
from holdfast.papers.overtraining.plan import (
    ALIGN,
    CHECKPOINT,
    KIND,
    LINE,
    MODEL,
    PROBE,
    TEXTS,
    TUNE,
    OvertrainingConfig,
    Part,
)
from holdfast.papers.overtraining.record import RECORD_FILE, OvertrainingRecord
from holdfast.records.probe import ProbedModel, Sharpness
from holdfast.records.run import RunFolder
from holdfast.studies.engine.base import ConfiguredStudy
from holdfast.studies.engine.models import train_model
from holdfast.studies.engine.states import COMPLETE
from holdfast.studies.engine.study import JobState, StudyState, Writer
from holdfast.support.progress import ProgressDisplay
from holdfast.support.resources import release_memory

if TYPE_CHECKING:
    from holdfast.evaluation.entries import Entry
    from holdfast.runs.probed_checkpoint import Probe, ProbedCheckpoint
    from holdfast.studies.engine.worker import Task

MOST_SHARE = 1e-4
"""Of the probability on text that the token of pictures may take without a note: as many nats."""


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """What came of a job, or of one seed of it."""

    seconds: float = 0.0
    model: ProbedModel | None = None
    """Of what was probed."""
    sharpness: Sharpness | None = None
    parameters: int = 0
    """Of the checkpoint that was fine-tuned, without a tower."""
    tokens: int = 0
    """That the fine-tuning read."""
    epochs: float = 0.0
    distance: float | None = None
    """L2 of the fine-tuned weights to the checkpoint's."""
    diverged: str = ""
    """What was not finite."""
    notes: list[str] = field(default_factory=list)


class OvertrainingStudy(ConfiguredStudy[OvertrainingConfig]):
    """The overtraining study."""

    config_class: ClassVar[type[OvertrainingConfig]] = OvertrainingConfig
    noun: ClassVar[str] = "job"
    one_in_process: ClassVar[bool] = True  # a single one then shows how far it is itself
    markers: ClassVar[tuple[str, ...]] = (
        RECORD_FILE,
        "study.db",
        "logs",
        "data",
        "probed",
        "aligned",
        "runs",
    )

    def seeds_of(self, attributes: Mapping[str, Any]) -> Sequence[int]:
        """Only trainings are repeated."""
        return self.seeds if attributes[KIND] in (ALIGN, TUNE) else self.seeds[:1]

    # ----------------------------------------------------------------------------------------- jobs

    def make(self, task: Task) -> JobResult:
        """A look at the texts, a checkpoint's changes, or one training.

        Raises:
            CannotJudge: training data holds what is measured on.
            HoldfastError: the job failed.
        """
        began = time.monotonic()
        makers = {
            TEXTS: self._texts,
            PROBE: self._probe,
            ALIGN: self._align,
            TUNE: self._tune,
            LINE: self._along,
        }
        result = makers[task.attributes[KIND]](task)
        return dataclasses.replace(result, seconds=round(time.monotonic() - began, 3))

    def _texts(self, task: Task) -> JobResult:
        from holdfast.studies.engine.held_out import HeldOut

        config, what = self.settings, "the training data"
        held_out = HeldOut(self._entries())
        overlaps: list[str] = []
        for name in config.request.tasks:
            parts = config.trained_on(name)
            sentences = held_out.stands_in(
                _texts_of(parts), what=what, pictures=_pictures_of(parts)
            )
            overlaps += [f"tasks.{name}: {sentence}" for sentence in sentences]
        return JobResult(notes=held_out.judged(overlaps, overlap=config.request.overlap, what=what))

    def _entries(self) -> Iterator[Entry]:
        """Everything that is measured, each thing once."""
        known: list[Any] = []
        for name in self.settings.request.tasks:
            for entry in self.settings.plan(name).entries:
                deciding = {**entry.deciding(), "data": getattr(entry, "data", "")}
                if deciding not in known:
                    known.append(deciding)
                    yield entry

    def _measured(self, task: Task, probe: Probe) -> ProbedCheckpoint:
        """A checkpoint, measured as it is and under the changes of a probe."""
        from holdfast.runs.probed_checkpoint import ProbedCheckpoint

        config, label = self.settings, str(task.attributes[CHECKPOINT])
        [request] = [request for request in config.requests() if request.label == label]
        checkpoint = ProbedCheckpoint(
            request,
            plan=config.plan(None),
            probe=probe,
            out=config.probed,
            loading=config.loading,
            display=ProgressDisplay(console=task.console),
        )
        for evaluation in checkpoint.measured(None):
            if evaluation.failed is not None:
                problem = f"{evaluation.suite}/{evaluation.name}: {evaluation.failed}"
                raise NotFinite(
                    f"{label}: expected finite scores of the unmodified checkpoint, got {problem}"
                )
        for change in probe.changes:
            task.check()
            checkpoint.measured(change)
        return checkpoint

    def _probe(self, task: Task) -> JobResult:
        config = self.settings
        checkpoint = self._measured(task, config.probe)
        sharpness = checkpoint.sharpness() if config.request.curvature else None
        model = checkpoint.described(config.rungs[str(task.attributes[CHECKPOINT])].budget, ())
        result = JobResult(model=model, sharpness=sharpness, notes=list(checkpoint.notes))
        del checkpoint
        release_memory()
        return result

    def _along(self, task: Task) -> JobResult:
        config, label = self.settings, str(task.attributes[CHECKPOINT])
        folder = config.run_folder(label, str(task.attributes[MODEL]), self.seeds[0])
        if not any(folder.glob("*.safetensors")):
            return JobResult(
                notes=[
                    f"{label}: there is no direction to follow, because the weights of this "
                    "fine-tuning are missing."
                ]
            )
        checkpoint = self._measured(task, config.probe_along(label))
        result = JobResult(sharpness=checkpoint.sharpness(), notes=list(checkpoint.notes))
        del checkpoint
        release_memory()
        return result

    def _align(self, task: Task) -> JobResult:
        import shutil

        from holdfast.runs.wrapping import wrap_language_model

        config, label, name = (
            self.settings,
            str(task.attributes[CHECKPOINT]),
            str(task.attributes[MODEL]),
        )
        settings, way = config.aligning(label, name, task.seed), config.ways_to_see[name]
        start, tower = Path(settings["model_name_or_path"]), config.with_paths(way.tower)
        notes = []
        if not start.is_dir():
            trusted = bool(settings.get("trust_remote_code"))
            wrapped = wrap_language_model(
                config.model(label),
                tower,
                start,
                layer=way.layer,
                seed=task.seed,
                trust_remote_code=trusted,
            )
            if wrapped.share > MOST_SHARE:
                notes.append(
                    f"{label}: on text, the image token gets {wrapped.share:.2g} of the "
                    "probability, so the model is already worse on text before fine-tuning. "
                    "Use a model that was trained longer."
                )
        trained = train_model(settings, (), 0, cache=config.output_dir / "evaluations", task=task)
        shutil.rmtree(start, ignore_errors=True)
        return JobResult(tokens=trained.tokens, notes=notes)

    def _tune(self, task: Task) -> JobResult:
        from holdfast.checkpoints.distance import distance
        from holdfast.checkpoints.locate import open_source

        config, label, name = (
            self.settings,
            str(task.attributes[CHECKPOINT]),
            str(task.attributes[MODEL]),
        )
        settings = config.training(label, name, task.seed)
        start = config.start(label, config.tunings[name].task, task.seed)
        if config.way_to_see(config.tunings[name].task) and not any(
            Path(start).glob("*.safetensors")
        ):
            why = f"stage 1 of {label} with seed {task.seed} failed."
            if RunFolder(start).exists() and RunFolder(start).read().status == "finished":
                why = (
                    "stage 1 finished there, but its weights were removed afterwards. Use "
                    "another output_dir."
                )
            raise HoldfastError(
                f"Expected a vision-language model in {start}, found no weights: {why}"
            )
        run = RunFolder(settings["output_dir"])
        try:
            trained = train_model(
                settings, (), 0, cache=config.output_dir / "evaluations", task=task
            )
        except (TrainingDiverged, NotFinite) as error:
            for evaluation in run.evaluated("start").all():
                if evaluation.failed is not None:
                    raise HoldfastError(
                        f"{label}: the score on {evaluation.suite}/{evaluation.name} is not "
                        f"finite before fine-tuning: {evaluation.failed} Leave out the "
                        "checkpoint or this entry."
                    ) from error
            return JobResult(diverged=str(error).strip().split("\n")[0][:300])
        checkpoint = open_source(config.model(label))
        return JobResult(
            parameters=sum(entry.size for entry in checkpoint.entries.values()),
            tokens=trained.tokens,
            epochs=round(float(run.read().training.get("epochs") or 0.0), 3),
            distance=distance(start, run.path).total.l2,
        )

    def running(self, job: JobState) -> Mapping[str, Any] | None:
        """See `ConfiguredStudy`."""
        if job.attributes[KIND] != TUNE:
            return None
        seed = self.seeds[len(self.results(job.attributes))]
        return self.settings.training(job.attributes[CHECKPOINT], job.attributes[MODEL], seed)

    def clean(self, state: StudyState) -> None:
        """Deletes what resuming needed, and the weights unless they are kept or a job that is open
        needs them."""
        from holdfast.studies.engine.worker import remove_checkpoints, remove_weights

        config = self.settings
        needed: set[Path] = set()
        complete: list[Path] = []
        for job in state.latest:
            kind = job.attributes[KIND]
            if kind not in (ALIGN, TUNE, LINE):
                continue
            label, model = job.attributes[CHECKPOINT], job.attributes[MODEL]
            for seed in self.seeds:
                folder = (
                    config.aligned(label, model, seed)
                    if kind == ALIGN
                    else config.run_folder(label, model, seed)
                )
                if job.state == COMPLETE and kind != LINE:
                    complete.append(folder)
                elif job.state != COMPLETE and kind == LINE:
                    needed.add(folder)
                elif job.state != COMPLETE and kind == TUNE:
                    needed.add(Path(config.start(label, config.tunings[model].task, seed)))
        for folder in complete:
            remove_checkpoints(folder)
            if config.request.keep_weights != "all" and folder not in needed:
                remove_weights(folder)

    # -------------------------------------------------------------------------------------- outcome

    def outcome(self, state: StudyState) -> OvertrainingRecord:
        """The study as in overtraining.json, without what is computed from samples."""
        from holdfast.papers.overtraining.outcome import overtraining_record

        return overtraining_record(state, self.settings, self.results_by_job(state))

    def complete(self, record: OvertrainingRecord) -> OvertrainingRecord:
        """With figures and verdicts."""
        from holdfast.papers.overtraining.outcome import add_figures

        return add_figures(record, self.settings)

    def show(self, record: Any, console: Any) -> None:
        """See `Study.show`."""
        from holdfast.papers.overtraining.page import print_overtraining

        print_overtraining(record, self.settings.output_dir, console)

    def page(self, record: OvertrainingRecord) -> Writer:
        """The page."""
        from holdfast.papers.overtraining.page import overtraining_page
        from holdfast.reports.html import write_page

        return lambda path: write_page(overtraining_page(record), path)


def _texts_of(parts: Sequence[Part]) -> Iterator[str]:
    """The texts of data, a row each."""
    from holdfast.data.overlap import texts_of
    from holdfast.data.sources import load_rows
    from holdfast.data.vision import undecoded

    for name, split, config in parts:
        for row in undecoded(load_rows(name, split=split, config=config)):
            yield "\n".join(texts_of(row))


def _pictures_of(parts: Sequence[Part]) -> Iterator[str]:
    """The hashes of the pictures of data."""
    from holdfast.studies.engine.held_out import pictures_in

    for name, split, config in parts:
        for hashes in pictures_in(name, split=split, config=config):
            yield from hashes
