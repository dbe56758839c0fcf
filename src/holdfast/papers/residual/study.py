"""The residual study: every model of a grid (budgets, residuals, siblings, derived models, scales,
seeds), made and measured once.

A job is one model. Two that need the same continued model wait for each other at its folder; who
comes second finds it there. Source: Balancing Continuous Pre-Training, tables 2 to 4, figure 1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

from holdfast.papers.residual.plan import StudyConfig
from holdfast.records.residual import ResidualRecord, StudiedModel
from holdfast.studies.engine.base import ConfiguredStudy
from holdfast.studies.engine.states import COMPLETE
from holdfast.studies.engine.study import Writer
from holdfast.studies.engine.worker import Task
from holdfast.studies.update.model_builder import ModelBuilder
from holdfast.studies.update.study import UpdateStudy, with_pairs


class ResidualStudy(UpdateStudy[StudyConfig]):
    """The residual study as the engine runs it."""

    config_class: ClassVar[type[StudyConfig]] = StudyConfig

    def dry_run(self) -> list[str]:
        """The models; a small world's are not there to be looked at."""
        return ConfiguredStudy.dry_run(self)

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
        builder = self.builders[model.place]
        if builder.config.request.toy is None:
            return tuned_once_more(model, builder, task)
        from holdfast.papers.residual.toy_world import tuned

        return tuned(model, builder, task)

    def compared(self, record: ResidualRecord) -> ResidualRecord:
        """The record with the pairs of the models that are there."""
        complete = [model for model in record.models if model.state == COMPLETE]
        return with_pairs(record, complete, self.settings.output_dir, 0.95)

    def keeps(self, model: StudiedModel, record: ResidualRecord) -> bool:
        """All weights, or none."""
        return self.settings.request.keep_weights != "none"

    def show(self, record: Any, console: Any) -> None:
        """See `Study.show`."""
        from holdfast.papers.residual.page import print_study

        print_study(record, self.settings.output_dir, console)

    def page(self, record: ResidualRecord) -> Writer:
        """The page with the paper's tables."""
        from holdfast.papers.residual.page import write_study_report

        return lambda path: write_study_report(path.parent, record)


def tuned_once_more(model: StudiedModel, builder: ModelBuilder, task: Task) -> StudiedModel:
    """The continued base, tuned on the user's conversations.

    Args:
        model: what it becomes.
        builder: makes and trains.
        task: what the worker does.
    """
    config = builder.config
    assert isinstance(config, StudyConfig)
    started = builder.continued(model, task)
    folder = builder.out / "runs" / model.name
    onto = str(builder.out / started.path)
    settings = config.retuning(onto, model.family, folder, seed=model.seed)
    record = builder.trained(settings, task, f"{model.label}: tuning on conversations")
    tokens = int(record.training.get("tokens") or 0)
    return dataclasses.replace(
        started,
        path=folder.relative_to(builder.out).as_posix(),
        seconds=started.seconds + float(record.training.get("seconds") or 0.0),
        flops=started.flops + 6.0 * started.parameters * tokens,
    )
