"""`holdfast update`: the whole job, from new text to a model that is current and still follows
instructions.

1. models and requests are checked: same architecture and vocabulary, and that the instruct model
looks like a child of the base; 2. the new text is read, a part held out, budgets counted
(`new_text`); 3. the base is continued on it, and with `continued_instruct` the instruct model too,
to see what that costs (`model_builder`); 4. the residual is added in one pass over the three
checkpoints; 5. base, instruct, continued models and result are measured alike, held against each
other in pairs, and reported.

A job is one model. Every step leaves its outcome in the folder: the same command goes on where it
stopped and does nothing twice. Source: Balancing Continuous Pre-Training.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from holdfast.config.declare import settings_of
from holdfast.errors import ConfigError, HoldfastError, RunFolderError
from holdfast.records.residual import RECORD_FILE, ResidualRecord, StudiedModel, read_update
from holdfast.studies.engine.base import ConfiguredStudy
from holdfast.studies.engine.states import FAILED
from holdfast.studies.engine.storage import REASON
from holdfast.studies.engine.study import StudyState, Writer
from holdfast.studies.engine.worker import Task
from holdfast.studies.update.checks import check_measuring, check_models, whole_plan
from holdfast.studies.update.model_builder import ModelBuilder, drop_weights
from holdfast.studies.update.new_text import NewText, corpus_request, new_text
from holdfast.studies.update.outcome import pairs_of
from holdfast.studies.update.plan import MODEL, UpdateConfig
from holdfast.support.environment import say
from holdfast.support.files import from_jsonable
from holdfast.support.inputs import FILE as INPUTS
from holdfast.support.token_counts import shown_tokens

MADE = "made"
"""Attribute of a job: the `StudiedModel` that came of it."""
FOLDERS = ("runs", "models", "evaluations")
"""Those that hold what was computed from the inputs."""
C = TypeVar("C", bound=UpdateConfig)


class UpdateStudy(ConfiguredStudy[C]):
    """An update as the engine runs it.

    Args:
        settings: what was asked for.
        builders: by place (`StudiedModel.place`), once it is prepared.
    """

    config_class: ClassVar[type[UpdateConfig]] = UpdateConfig
    noun: ClassVar[str] = "model"
    markers: ClassVar[tuple[str, ...]] = (RECORD_FILE, "study.db", INPUTS)
    one_in_process: ClassVar[bool] = True

    def __init__(
        self, settings: C, builders: Mapping[tuple[int, int | None], ModelBuilder] | None = None
    ) -> None:
        super().__init__(settings)
        self.builders = builders or {}

    @classmethod
    def load(
        cls, resolved: Mapping[str, Any], *, storage: str, output_dir: Path
    ) -> ConfiguredStudy[C]:
        """See `Study.load`; an update has no name among its settings."""
        keys = {setting.name for setting in settings_of(cls.config_class.settings_class)}
        current = cls.config_class.current_keys(resolved)
        values = {key: value for key, value in current.items() if key in keys}
        return super().load(values, storage=storage, output_dir=output_dir)

    def dry_run(self) -> list[str]:
        """What would be done, in lines, once models, corpus and tasks are seen to be sound."""
        config = self.settings
        notes, _ = check_models(config)
        check_measuring(config)
        corpus_request(config, config.output_dir / "corpus" / "all.jsonl")
        budget = config.request.budgets[0]
        amount = "all of it" if budget is None else f"{shown_tokens(budget)} tokens"
        text = [f"New text: {', '.join(config.request.corpus)} ({amount})"]
        for number, model in enumerate(config.models(), 1):
            text.append(f"{number}. {model.label}" + ("" if model.continued else "  (as it is)"))
        if config.request.evaluation:
            entries = ", ".join(
                f"{entry.suite}/{entry.name}" for entry in whole_plan(config).entries
            )
            text.append(f"Measured on each: the held-out new text, {entries}")
        else:
            text.append(
                "Measured on each: only the held-out new text. To see what was kept, add "
                "evaluation:, such as --evaluation instruction_residual."
            )
        return [*text, *(f"Note: {note}" for note in notes)]

    def open_folder(self, console: Any) -> None:
        """Compares the request with the one that the folder was begun with.

        Raises:
            RunFolderError: they differ (in what), and something was made.
        """
        out = self.settings.output_dir
        if not (out / RECORD_FILE).is_file() or not any(
            (out / folder).exists() for folder in FOLDERS
        ):
            return
        differences = self.settings.differences(read_update(out).config)
        if differences:
            raise RunFolderError(
                f"The update in {out} was begun with another configuration:",
                *(f"  - {d}" for d in differences),
                "To continue the update, restore the old values. Else choose another output_dir.",
            )

    def parts(self, console: Any) -> Sequence[C]:
        """What is prepared on its own."""
        return [self.settings]

    def prepare(self, console: Any) -> UpdateStudy[C]:
        """The study with the new text read and everything checked."""
        builders: dict[tuple[int, int | None], ModelBuilder] = {}
        for config in self.parts(console):
            builders[config.models()[0].place] = open_builder(config, console)
        return type(self)(self.settings, builders)

    def seeds_of(self, attributes: Mapping[str, Any]) -> Sequence[int]:
        """A model has its own seed."""
        return [self.models[attributes[MODEL]].seed]

    # --------------------------------------------------------------------------------------- models

    @functools.cached_property
    def models(self) -> dict[str, StudiedModel]:
        """Every model by name, none of them made."""
        configs = [builder.config for builder in self.builders.values()] or [self.settings]
        models: dict[str, StudiedModel] = {}
        for config in configs:
            models |= {model.name: model for model in config.models()}
        return models

    def make(self, task: Task) -> StudiedModel:
        """One model, made and measured.

        Raises:
            HoldfastError: the continued model that it is made of failed, or it failed itself.
        """
        model = self.models[task.attributes[MODEL]]
        builder = self.builders[model.place]
        continued = builder.config.run_name(model)
        if model.continued and model.name != continued and has_failed(continued, task):
            raise HoldfastError(f"needs {self.models[continued].label}, which was not made")
        return builder.measure(self.build(model, task), task)

    def build(self, model: StudiedModel, task: Task) -> StudiedModel:
        """One model with its weights; see `ModelBuilder.make`."""
        return self.builders[model.place].make(model, task)

    def stored(self, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """See `Study.stored`."""
        return {MADE: results[0]}

    def results(self, attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
        """See `Study.results`."""
        return [from_jsonable(attributes[MADE])] if MADE in attributes else []

    # -------------------------------------------------------------------------------------- outcome

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
        corpus, ancestry, notes = self._inputs()
        return ResidualRecord(
            **state.record_fields(self.settings.resolved, notes),
            kind=self.settings.kind,
            families=list(self.settings.request.families),
            models=list(models.values()),
            corpus=corpus,
            ancestry=ancestry,
        )

    def _inputs(self) -> tuple[dict[str, Any], list[dict[str, Any]], list[str]]:
        """Facts of the new text, evidence and notes on the models: of the first part, and all
        notes; where nothing is prepared, as they stand in the folder."""
        builders = list(self.builders.values())
        if builders:
            notes = [note for builder in builders for note in builder.notes]
            return builders[0].corpus, builders[0].ancestry, notes
        folder = self.settings.output_dir
        if not (folder / RECORD_FILE).is_file():
            return {}, [], []
        record = read_update(folder)
        return record.corpus, record.ancestry, record.notes

    def complete(self, record: ResidualRecord) -> ResidualRecord:
        """The record with its result and its pairs; weights that are not kept are deleted once
        every model is there."""
        record = self.compared(record)
        for model in record.models if record.status == "finished" else ():
            if not model.given and not self.keeps(model, record):
                drop_weights(self.settings.output_dir, model)
        return record

    def compared(self, record: ResidualRecord) -> ResidualRecord:
        """The record of a finished update with its result and its pairs."""
        if record.status != "finished":
            return record
        out, confidence = (
            self.settings.output_dir,
            next(iter(self.builders.values())).plan.confidence,
        )
        result = next(
            model for model in record.models if model.continued and model.residual is not None
        )
        return dataclasses.replace(
            with_pairs(record, record.models, out, confidence), result=result.name
        )

    def keeps(self, model: StudiedModel, record: ResidualRecord) -> bool:
        """Whether the weights of a model that was made stay on disk."""
        keep = self.settings.request.keep_weights
        return keep == "all" or (keep == "result" and model.name == record.result)

    def show(self, record: Any, console: Any) -> None:
        """See `Study.show`."""
        from holdfast.reports.update_report import print_update

        print_update(record, self.settings.output_dir, console)

    def page(self, record: ResidualRecord) -> Writer:
        """The page on what is there."""
        from holdfast.reports.update_report import write_update_report

        return lambda path: write_update_report(path.parent, record)


def has_failed(name: str, task: Task) -> bool:
    """Whether the last attempt at a model failed."""
    failed = False
    for job in task.others():
        if job.get(MODEL) == name:
            failed = REASON in job
    return failed


def with_pairs(
    record: ResidualRecord, models: Sequence[StudiedModel], out: Path, confidence: float
) -> ResidualRecord:
    """The record with the pairs of these models, and notes on entries that were not compared."""
    pairs, left_out = pairs_of(models, out, confidence=confidence)
    return dataclasses.replace(
        record, pairs=pairs, notes=list(dict.fromkeys([*record.notes, *left_out]))
    )


def open_builder(config: UpdateConfig, console: Any) -> ModelBuilder:
    """Everything that is needed to make models: checked, the new text read, the plan complete.

    Raises:
        ConfigError, ModelError, ShapeError, DataError: what has to change.
    """
    notes, ancestry = check_models(config)
    for line in notes:  # at once: what comes next may take hours, or fail
        say(console, line)
    check_measuring(config)
    text: NewText | None = None
    if config.request.continued:
        from holdfast.models import load_tokenizer

        base = str(config.request.families[config.request.continued[0]].base)
        text = new_text(config, load_tokenizer(base), config.folder / "corpus")
        amount = f"{text.facts['documents']:,} documents, {text.facts['tokens']:,} tokens"
        say(console, f"New text: {amount}; {text.facts['held_out']:,} documents held out.")
        for line in text.notes:
            say(console, line)
    plan = whole_plan(config, text.held_out if text is not None else None)
    if not plan.entries:
        raise ConfigError(
            "evaluation: expected entries or held-out text to measure, got none. Hold out some of "
            "the new text (held_out: 0.01), or add entries."
        )
    return ModelBuilder(
        config=config,
        texts=text.files if text else {},
        plan=plan,
        corpus=text.facts if text else {},
        ancestry=ancestry,
        notes=[*notes, *(text.notes if text else ())],
    )
