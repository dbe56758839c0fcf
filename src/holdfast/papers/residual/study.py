"""The residual study: every model of a grid (budgets, residuals, siblings, derived models, scales, seeds), made and
measured once.

A job is one model. Two that need the same continued model wait for each other at its folder; who comes second finds it
there. Source: Balancing Continuous Pre-Training, tables 2 to 4, figure 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from holdfast.papers.residual.plan import StudyConfig
from holdfast.records.residual import ResidualRecord, StudiedModel
from holdfast.studies.engine import session as engine
from holdfast.studies.engine.states import COMPLETE
from holdfast.studies.engine.storage import GRACE_SECONDS
from holdfast.studies.engine.study import Writer
from holdfast.studies.engine.worker import Task
from holdfast.studies.update.study import UpdateStudy, with_pairs


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


class ResidualStudy(UpdateStudy[StudyConfig]):
    """The residual study as the engine runs it."""

    config_class: ClassVar[type[StudyConfig]] = StudyConfig
    begins: ClassVar[str] = "holdfast study run study.yaml"

    def parts(self, console: Any) -> Sequence[StudyConfig]:
        """Its small worlds with their models and files; itself outside of one."""
        if self.settings.request.toy is None:
            return [self.settings]
        from holdfast.papers.residual.toy_world import fill_in

        return fill_in(self.settings.parts(), console=console)

    def build(self, model: StudiedModel, task: Task) -> StudiedModel:
        """One model with its weights, also of those that are tuned once more."""
        if not model.tuned:
            return super().build(model, task)
        from holdfast.papers.residual.toy_world import tuned

        return tuned(model, self.builders[model.place], task)

    def compared(self, record: ResidualRecord) -> ResidualRecord:
        """The record with the pairs of the models that are there."""
        complete = [model for model in record.models if model.state == COMPLETE]
        return with_pairs(record, complete, self.settings.output_dir, 0.95)

    def keeps(self, model: StudiedModel, record: ResidualRecord) -> bool:
        """All weights, or none."""
        return self.settings.request.keep_weights != "none"

    def page(self, record: ResidualRecord) -> Writer:
        """The page with the paper's tables."""
        from holdfast.papers.residual.page import write_study_report

        return lambda path: write_study_report(path.parent, record)
