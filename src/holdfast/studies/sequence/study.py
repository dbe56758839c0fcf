"""The sequence study as the engine runs it: a model is a job, and waits for the one that it begins
with."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.errors import HoldfastError
from holdfast.records.sequence import RECORD_FILE, SequenceRecord
from holdfast.studies.engine.base import ConfiguredStudy
from holdfast.studies.engine.models import MadeModel, check_local_model, measuring_processes
from holdfast.studies.engine.recipes import has_weights, make
from holdfast.studies.engine.states import COMPLETE
from holdfast.studies.engine.study import JobState, StudyState, Writer
from holdfast.studies.sequence.plan import MODEL, SEED, Model, SequenceConfig
from holdfast.support.environment import say, wait_for_lock
from holdfast.training.checkpoint_folders import remove_folder

if TYPE_CHECKING:
    from holdfast.studies.engine.worker import Task


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


class SequenceStudy(ConfiguredStudy[SequenceConfig]):
    """The sequence study."""

    config_class: ClassVar[type[SequenceConfig]] = SequenceConfig
    noun: ClassVar[str] = "model"
    markers: ClassVar[tuple[str, ...]] = (RECORD_FILE, "study.db", "logs", "data")

    def open_folder(self, console: Any) -> None:
        """Looks at the base's files before anything is trained.

        Raises:
            ModelError: the base is not whole.
        """
        if not (self.settings.output_dir / RECORD_FILE).is_file():
            check_local_model(self.settings.base, self.settings.request.train)

    def seeds_of(self, attributes: Mapping[str, Any]) -> Sequence[int]:
        """A job has one seed."""
        return [int(attributes[SEED])]

    # --------------------------------------------------------------------------------------- models

    def make(self, task: Task) -> ModelResult:
        """One model, made and measured.

        Raises:
            HoldfastError: a model that it needs is not there, or training failed.
        """
        from holdfast.checkpoints.distance import distance

        config, out = self.settings, self.settings.output_dir
        model = config.models[task.attributes[MODEL]]
        for name in model.needs:
            self._make_again(name, task)
        missing = [name for name in model.needs if not has_weights(config.folder(name, task.seed))]
        if missing:
            labels = ", ".join(config.models[name].label for name in missing)
            raise HoldfastError(
                f"depends on {labels}, which {'was' if len(missing) == 1 else 'were'} not made"
            )
        began = time.monotonic()
        result = self._make_model(model, task)
        folder = config.folder(model.name, task.seed)
        reference = config.folder(model.reference, task.seed) if model.reference else config.base
        return ModelResult(
            folder=folder.relative_to(out).as_posix(),
            evaluations=result.measured.path.relative_to(out).as_posix(),
            seconds=round(time.monotonic() - began, 3),
            tokens=result.tokens,
            distance=distance(reference, folder).total.l2,
            curves=result.curves,
        )

    def _make_model(self, model: Model, task: Task) -> MadeModel:
        config = self.settings
        recipe = config.recipe(model, task.seed)
        processes = measuring_processes(config.request.train)
        return make(
            recipe,
            config.measured,
            cache=config.output_dir / "evaluations",
            task=task,
            processes=processes,
        )

    def _make_again(self, name: str, task: Task) -> None:
        """A model that was made and measured, and whose weights were removed since: an arm that
        came later needs them, and the same seed and data give the same weights."""
        folder, model = self.settings.folder(name, task.seed), self.settings.models[name]
        if has_weights(folder) or not self._was_made(name, task):
            return
        with wait_for_lock(folder.with_name(f"{folder.name}.again")):
            if has_weights(folder):  # another worker was first
                return
            for needed in model.needs:
                self._make_again(needed, task)
            say(task.console, f"{model.label}: made again, because its weights were not kept")
            remove_folder(folder)
            self._make_model(model, task)

    def _was_made(self, name: str, task: Task) -> bool:
        for attributes in task.others():
            if (
                attributes.get(MODEL) == name
                and attributes.get(SEED) == task.seed
                and self.results(attributes)
            ):
                return True
        return False

    def running(self, job: JobState) -> Mapping[str, Any] | None:
        """See `ConfiguredStudy`."""
        model, seed = self.settings.models[job.attributes[MODEL]], int(job.attributes[SEED])
        if model.merge:
            return None
        return {**model.settings, "output_dir": self.settings.folder(model.name, seed)}

    def clean(self, state: StudyState) -> None:
        """Deletes checkpoints of runs that ended, and weights that nobody needs any more and that
        are not kept."""
        from holdfast.studies.engine.worker import remove_checkpoints, remove_weights

        config, ended, needed = self.settings, dict[Path, str](), set[str]()
        for job in state.latest:
            name = job.attributes[MODEL]
            if job.state == COMPLETE:
                ended[config.folder(name, int(job.attributes[SEED]))] = name
            else:
                needed.update(config.models[name].needs)
        for name in list(config.models)[::-1]:  # those that others need come first
            if name in needed and not any(
                has_weights(config.folder(name, seed)) for seed in config.request.seeds
            ):
                needed.update(config.models[name].needs)  # it is made, or made again, from them
        if config.request.keep_weights == "final":
            needed.update(chain.models[-1] for chain in config.chains)
        for folder, name in ended.items():
            remove_checkpoints(folder)
            if config.request.keep_weights != "all" and name not in needed:
                remove_weights(folder)

    # -------------------------------------------------------------------------------------- outcome

    def outcome(self, state: StudyState) -> SequenceRecord:
        """The study as in sequence.json, without what is computed from samples."""
        from holdfast.studies.sequence.outcome import sequence_record

        return sequence_record(state, self.settings, self.results_by_job(state))

    def complete(self, record: SequenceRecord) -> SequenceRecord:
        """With every arm's figures."""
        from holdfast.studies.sequence.outcome import add_figures

        return add_figures(record, self.settings)

    def show(self, record: Any, console: Any) -> None:
        """See `Study.show`."""
        from holdfast.reports.sequence_report import print_sequence

        print_sequence(record, self.settings.output_dir, console)

    def page(self, record: SequenceRecord) -> Writer:
        """The page on what is there."""
        from holdfast.reports.html import write_page
        from holdfast.reports.sequence_report import sequence_page

        return lambda path: write_page(sequence_page(record), path)
