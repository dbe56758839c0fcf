"""The residual study: every model of a grid (budgets, residuals, siblings, derived models, scales, seeds), made and
measured once.

A job is one model. Two that need the same continued model wait for each other at its folder; who comes second finds it
there. Source: paper 004, tables 2 to 4, figure 1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from holdfast.records.residual import RECORD_FILE, ResidualRecord, StudiedModel, read_update, write_update
from holdfast.studies.engine import session as engine
from holdfast.studies.engine.storage import GRACE_SECONDS, REASON
from holdfast.studies.engine.study import COMPLETE, FAILED, WAITING, Study, StudyState, Writer
from holdfast.studies.engine.worker import Task
from holdfast.studies.residual.making import Workshop, drop_weights
from holdfast.studies.residual.outcome import pairs_of
from holdfast.studies.residual.plan import MODEL, NEW_TEXT, ResidualConfig, is_continued, study_config
from holdfast.studies.residual.session import finished, open_record, open_workshop
from holdfast.support.environment import now
from holdfast.support.files import from_jsonable

MADE = "made"
"""Attribute of a job: the `StudiedModel` that came of it."""


def run_study(
    config: ResidualConfig, *, console: Any = None, workers: int | None = None, grace: float = GRACE_SECONDS
) -> ResidualRecord:
    """Runs a study to its end, or continues it.

    Args:
        config: see `plan.study_config`.
        console: a `rich.console.Console` for progress; None: a new one on standard output.
        workers: models at a time on this machine; None: as the study says, else one a GPU, or two on two and more
            cores.
        grace: seconds without a sign of life after which another machine's model is taken over.

    Returns:
        The record as in update.json.

    Raises:
        ConfigError, ModelError, ShapeError, DataError: what has to change, before anything is trained.
        RunFolderError: the folder is another's, or the study was begun with another configuration.
        StorageError: the storage does not answer.
        Interrupted: Ctrl-C; the same command continues.
        HoldfastError: models failed (which), after the others were made and the page was written.
    """
    record: ResidualRecord = engine.run_study(ResidualStudy(config), console=console, workers=workers, grace=grace)
    return record


class ResidualStudy(Study[ResidualConfig]):
    """The residual study as the engine runs it.

    Args:
        settings: the study.
        record: what is known of it beside its models; None: as it stands in the folder.
        workshop: once it is prepared.
    """

    noun: ClassVar[str] = "model"
    markers: ClassVar[tuple[str, ...]] = (RECORD_FILE,)
    one_in_process: ClassVar[bool] = True

    def __init__(
        self, settings: ResidualConfig, record: ResidualRecord | None = None, workshop: Workshop | None = None
    ) -> None:
        super().__init__(settings)
        self.known, self.workshop = record, workshop

    @classmethod
    def load(cls, resolved: Mapping[str, Any], *, storage: str, output_dir: Path) -> ResidualStudy:
        """See `Study.load`."""
        config = study_config(resolved, source=f"study '{resolved['name']}'")
        found = read_update(output_dir) if (output_dir / RECORD_FILE).is_file() else None
        return cls(dataclasses.replace(config, storage=storage, output_dir=output_dir), found)

    def open_folder(self, console: Any) -> None:
        """Continues the record in the folder, or begins one."""
        self.known = open_record(self.settings, self.settings.output_dir)
        self.write(self.known)

    def prepare(self, console: Any) -> ResidualStudy:
        """The study with the models and files of its small world, the new text read and everything checked."""
        config = self.settings
        if config.small is not None:
            from holdfast.studies.residual.small_world import fill_in

            config = fill_in(config, config.output_dir / "data", console=console)
        record = self._record()
        workshop = open_workshop(config, record, config.output_dir, console)
        record.families = [f.name for f in config.families]
        return ResidualStudy(config, record, workshop)

    def cells(self, attributes: Mapping[str, Any]) -> list[tuple[str, int]]:
        """A model has its own seed."""
        return [("", self._model(attributes).seed)]

    # ---------------------------------------------------------------------------------------------------------- models

    def make(self, task: Task) -> StudiedModel:
        """One model, made and measured."""
        assert self.workshop is not None, "the engine prepares a study first"
        return finished(self.workshop, self._model(task.attributes))

    def values(self, task: Task) -> Sequence[float]:
        """One number for a dashboard: the mean of what leads every entry but the new text, signed so that more is
        better."""
        found = []
        for evaluation in StudiedModel(**task.results[0]).measured(self.settings.output_dir).all():
            metric = evaluation.metrics[evaluation.primary]
            if evaluation.suite != NEW_TEXT and evaluation.kind != "average":
                found.append(metric.value if metric.higher_is_better else -metric.value)
        return [sum(found) / len(found) if found else 0.0]

    def stored(self, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """See `Study.stored`."""
        return {MADE: results[0]}

    def results(self, attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
        """See `Study.results`."""
        return [from_jsonable(attributes[MADE])] if MADE in attributes else []

    def _model(self, attributes: Mapping[str, Any]) -> StudiedModel:
        return next(m for m in self.settings.models() if m.name == attributes[MODEL])

    # --------------------------------------------------------------------------------------------------------- outcome

    def outcome(self, state: StudyState) -> ResidualRecord:
        """The record with every model as the storage knows it."""
        latest = {j.attributes[MODEL]: j for j in state.latest if MODEL in j.attributes}
        models = []
        for model in self.settings.models():
            job = latest.get(model.name)
            made = self.results(job.attributes) if job is not None else []
            if made:
                models.append(StudiedModel(**made[0]))
                continue
            there = job.state if job is not None else WAITING
            reason = job.attributes.get(REASON) if job is not None and there == FAILED else None
            models.append(dataclasses.replace(model, state=there, reason=reason))
        record = self._record()
        over = all(m.state in (COMPLETE, FAILED) for m in models)
        return dataclasses.replace(
            record, models=models, status=state.status, finished=(record.finished or now()) if over else None
        )

    def complete(self, record: ResidualRecord) -> ResidualRecord:
        """The record with its pairs; weights that are not kept are deleted once every model is there."""
        out = self.settings.output_dir
        whole = [m for m in record.models if m.state == COMPLETE]
        if record.finished is not None and self.settings.keep == "none":
            for model in whole:
                if is_continued(model) or model.residual is not None:
                    drop_weights(out, model)
        return dataclasses.replace(record, pairs=pairs_of(whole, out, confidence=0.95))

    def write(self, record: ResidualRecord) -> None:
        """Writes update.json."""
        write_update(self.settings.output_dir, record)

    def page(self, record: ResidualRecord) -> Writer:
        """The page with the paper's tables."""
        from holdfast.reports.residual_report import write_residual_report

        return lambda path: write_residual_report(path.parent, record)

    def _record(self) -> ResidualRecord:
        if self.known is None:
            self.known = ResidualRecord(
                name=self.settings.name, kind="study", created=now(), config=self.settings.resolved
            )
        return self.known
