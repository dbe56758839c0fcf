"""The residual study: every model of a grid (budgets, residuals, siblings, derived models, scales, seeds), made and
measured once.

A job is one model. Two that need the same continued model wait for each other at its folder; who comes second finds it
there. Source: Balancing Continuous Pre-Training, tables 2 to 4, figure 1.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from holdfast.papers.residual.plan import MODEL, StudyConfig, study_config
from holdfast.records.residual import RECORD_FILE, ResidualRecord, StudiedModel, read_update
from holdfast.studies.engine import session as engine
from holdfast.studies.engine.states import COMPLETE, FAILED
from holdfast.studies.engine.storage import GRACE_SECONDS, REASON
from holdfast.studies.engine.study import Study, StudyState, Writer
from holdfast.studies.engine.worker import Task
from holdfast.studies.update.making import Workshop, drop_weights
from holdfast.studies.update.outcome import pairs_of
from holdfast.studies.update.plan import NEW_TEXT
from holdfast.studies.update.session import open_record, open_workshop
from holdfast.support.environment import now
from holdfast.support.files import from_jsonable

MADE = "made"
"""Attribute of a job: the `StudiedModel` that came of it."""


def run_residual_study(
    config: StudyConfig, *, console: Any = None, workers: int | None = None, grace: float = GRACE_SECONDS
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
    record: ResidualRecord = engine.execute_study(ResidualStudy(config), console=console, workers=workers, grace=grace)
    return record


class ResidualStudy(Study[StudyConfig]):
    """The residual study as the engine runs it.

    Args:
        settings: the study.
        record: what is known of it beside its models; None: as it stands in the folder.
        workshops: by place (`StudiedModel.place`), once it is prepared.
    """

    noun: ClassVar[str] = "model"
    begins: ClassVar[str] = "holdfast study run study.yaml"
    markers: ClassVar[tuple[str, ...]] = (RECORD_FILE,)
    one_in_process: ClassVar[bool] = True

    def __init__(
        self,
        settings: StudyConfig,
        record: ResidualRecord | None = None,
        workshops: Mapping[tuple[int, int | None], Workshop] | None = None,
    ) -> None:
        super().__init__(settings)
        self.known, self.workshops = record, workshops or {}

    @classmethod
    def load(cls, resolved: Mapping[str, Any], *, storage: str, output_dir: Path) -> ResidualStudy:
        """See `Study.load`."""
        config = study_config(resolved, source=f"study '{resolved['name']}'")
        record = read_update(output_dir) if (output_dir / RECORD_FILE).is_file() else None
        return cls(dataclasses.replace(config, storage=storage, output_dir=output_dir), record)

    def open_folder(self, console: Any) -> None:
        """Continues the record in the folder, or begins one."""
        self.known = open_record(self.settings)
        self.write(self.known)

    def prepare(self, console: Any) -> ResidualStudy:
        """The study with the models and files of its small worlds, the new text read and everything checked."""
        record, workshops = self._record(), {}
        parts = self.settings.parts()
        if self.settings.small is not None:
            from holdfast.papers.residual.small_world import fill_in

            parts = fill_in(parts, console=console)
        ancestry = list(record.ancestry)
        for config in parts:
            workshops[config.models()[0].place] = open_workshop(config, record, console)
            if config.is_part:  # the evidence is of the first world
                record.ancestry = ancestry = ancestry or record.ancestry
        return ResidualStudy(self.settings, record, workshops)

    def cells(self, attributes: Mapping[str, Any]) -> list[tuple[str, int]]:
        """A model has its own seed."""
        return [("", self.models[attributes[MODEL]].seed)]

    # ---------------------------------------------------------------------------------------------------------- models

    @functools.cached_property
    def models(self) -> dict[str, StudiedModel]:
        """Every model by name, none of them made."""
        parts = [workshop.config for workshop in self.workshops.values()] or self.settings.parts()
        return {m.name: m for config in parts for m in config.models()}

    def make(self, task: Task) -> StudiedModel:
        """One model, made and measured."""
        model = self.models[task.attributes[MODEL]]
        workshop = self.workshops[model.place]
        if model.tuned:
            from holdfast.papers.residual.small_world import tuned

            return workshop.measure(tuned(model, workshop))
        return workshop.measure(workshop.make(model))

    def values(self, task: Task) -> Sequence[float]:
        """One number for a dashboard: the mean of what leads every entry but the new text, signed so that more is
        better."""
        measured = StudiedModel(**task.results[0]).measured(self.settings.output_dir).all()
        leading = [e.metrics[e.primary] for e in measured if e.suite != NEW_TEXT and e.kind != "average"]
        signed = [m.value if m.higher_is_better else -m.value for m in leading]
        return [sum(signed) / max(1, len(signed))]

    def stored(self, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """See `Study.stored`."""
        return {MADE: results[0]}

    def results(self, attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
        """See `Study.results`."""
        return [from_jsonable(attributes[MADE])] if MADE in attributes else []

    # --------------------------------------------------------------------------------------------------------- outcome

    def outcome(self, state: StudyState) -> ResidualRecord:
        """The record with every model as the storage knows it."""
        models = dict(self.models)
        for job in state.latest:
            name = job.attributes.get(MODEL)
            if name not in models:
                continue
            reason = job.attributes.get(REASON) if job.state == FAILED else None
            models[name] = dataclasses.replace(models[name], state=job.state, reason=reason)
            for result in self.results(job.attributes):
                models[name] = StudiedModel(**result)
        record = self._record()
        has_ended = all(model.state in (COMPLETE, FAILED) for model in models.values())
        finished = (record.finished or now()) if has_ended else None
        return dataclasses.replace(record, models=list(models.values()), status=state.status, finished=finished)

    def complete(self, record: ResidualRecord) -> ResidualRecord:
        """The record with its pairs; weights that are not kept are deleted once every model is there."""
        out = self.settings.output_dir
        models = [m for m in record.models if m.state == COMPLETE]
        if record.finished is not None and self.settings.keep == "none":
            for model in (m for m in models if not m.given):
                drop_weights(out, model)
        pairs, left_out = pairs_of(models, out, confidence=0.95)
        return dataclasses.replace(record, pairs=pairs, notes=list(dict.fromkeys([*record.notes, *left_out])))

    def page(self, record: ResidualRecord) -> Writer:
        """The page with the paper's tables."""
        from holdfast.papers.residual.page import write_study_report

        return lambda path: write_study_report(path.parent, record)

    def _record(self) -> ResidualRecord:
        """The record of the folder, or a new one for a worker that sees none."""
        if self.known is None:
            self.known = ResidualRecord(
                name=self.settings.name, kind="study", created=now(), config=self.settings.resolved
            )
        return self.known
