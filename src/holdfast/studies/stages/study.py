"""The stages study as the engine runs it: text is chosen, the fine-tuning done, every checkpoint
restored."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.checkpoints.architecture import shape_differences
from holdfast.checkpoints.sources import listing
from holdfast.errors import ConfigError, HoldfastError, ModelError, UserError
from holdfast.evaluation.averages import SUITE as AVERAGES
from holdfast.evaluation.loading import ModelLoading
from holdfast.records.evaluation import EvaluationFolder
from holdfast.records.run import RunFolder
from holdfast.records.stages import PROBING, RECORD_FILE, StagesRecord
from holdfast.studies.engine.base import ConfiguredStudy
from holdfast.studies.engine.models import MEASURED, check_local_model, measuring_processes
from holdfast.studies.engine.recipes import Given, Trained, has_weights, make
from holdfast.studies.engine.states import COMPLETE
from holdfast.studies.engine.study import JobState, StudyState, Writer
from holdfast.studies.stages.plan import (
    BASE_MEASURED,
    MEASURE,
    STEP,
    TEXTS,
    TUNE,
    StagesConfig,
    Step,
)
from holdfast.support.files import read_object, write_jsonl

if TYPE_CHECKING:
    from holdfast.checkpoints.build import Prepared
    from holdfast.studies.engine.worker import Task

MERGED = "merged"
"""Folder of checkpoints that are adapters, merged into the base for as long as they are
restored."""


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What came of a step."""

    folder: str
    """Relative to the study's."""
    seconds: float
    tokens: int = 0
    curve: list[tuple[float, float]] = field(default_factory=list)
    """Along restoring: (share of the steps, probing text in nats per token)."""


class StagesStudy(ConfiguredStudy[StagesConfig]):
    """The stages study."""

    config_class: ClassVar[type[StagesConfig]] = StagesConfig
    noun: ClassVar[str] = "step"
    markers: ClassVar[tuple[str, ...]] = (RECORD_FILE, "study.db", "logs", "data", "texts")

    def open_folder(self, console: Any) -> None:
        """Looks at the base, the checkpoints and what is asked before anything is done: the first
        question comes after the fine-tuning.

        Raises:
            ModelError: a checkpoint is not whole, or of another architecture than the base.
            ConfigError: an unknown task, or a file of questions that cannot be read.
        """
        config = self.settings
        if config.request.toy is None and not (config.output_dir / RECORD_FILE).is_file():
            for name in (config.base, *config.request.tuned):
                check_local_model(name, config.request.restore)
            _check_same_architecture(config.base, config.request.tuned)
            is_terminal = console is not None and console.is_terminal
            with (
                console.status("Reading the questions") if is_terminal else contextlib.nullcontext()
            ):
                problems = _evaluation_problems(config)
            if problems:
                raise ConfigError(problems, source="evaluation")

    # ---------------------------------------------------------------------------------------- steps

    def make(self, task: Task) -> StepResult:
        """One step.

        Raises:
            HoldfastError: a step that it needs was not made, or it failed itself.
        """
        config, out = self.settings, self.settings.output_dir
        step, began = config.steps[task.attributes[STEP]], time.monotonic()
        if step.kind != MEASURE and self._nothing_to_forget():
            raise HoldfastError("needs a base that is better than chance")
        folder, tokens, curve = config.run_folder(step.name), 0, list[tuple[float, float]]()
        if step.kind == MEASURE:
            folder = out / BASE_MEASURED
            self._measure_base(task)
        elif step.kind == TEXTS:
            folder = config.texts_at(step.dose)[0].parent
            tokens = self._choose_texts(step.dose)
        else:
            is_tuning = step.kind == TUNE
            recipe = (
                Trained(settings=config.tuning(step.arm)) if is_tuning else self._restoring(step)
            )
            result = make(recipe, config.plan, cache=out / "evaluations", task=task)
            tokens, curve = result.tokens, result.curves.get(PROBING, [])
        path = folder.relative_to(out).as_posix() if folder.is_relative_to(out) else str(folder)
        return StepResult(
            folder=path, seconds=round(time.monotonic() - began, 3), tokens=tokens, curve=curve
        )

    def _restoring(self, step: Step) -> Trained:
        """The control, or a checkpoint, on text of the base's own kind.

        Raises:
            HoldfastError: the text, or the checkpoint, was not made.
        """
        config = self.settings
        model = config.checkpoint(step.arm, step.place) if step.arm else config.base
        if not config.texts_at(step.dose)[0].is_file():
            raise HoldfastError("needs the text to restore on, which was not selected")
        settings = config.restoring(step.name, self.whole_model(step.name, model), step.dose)
        return Trained(settings=settings, watched=(PROBING,), points=config.request.curve)

    def _measure_base(self, task: Task) -> None:
        """Measures the base on what is judged, before anything is chosen, fine-tuned or restored.

        Raises:
            UserError: it does no better than chance on all of it.
        """
        config, restore = self.settings, self.settings.with_paths(self.settings.request.restore)
        if restore.get("chat_template_path") is not None:
            return  # the base is measured with that template once it is restored
        averages = [a for a in config.plan.averages if (AVERAGES, a.name) in config.judged]
        keys = set(config.judged)
        for average in averages:
            keys |= {(suite, name) for suite, name, _ in average.members}
        entries = tuple(e for e in config.plan.entries if (e.suite, e.name) in keys)
        plan = dataclasses.replace(config.plan, entries=entries, averages=tuple(averages))
        base = Given(
            model=config.base,
            folder=config.output_dir / BASE_MEASURED,
            loading=ModelLoading(
                device="cpu" if restore.get("use_cpu") else None,
                trust_remote_code=bool(restore.get("trust_remote_code")),
            ),
        )
        processes = measuring_processes(config.request.train)
        make(base, plan, cache=config.output_dir / "evaluations", task=task, processes=processes)
        at_chance = self._at_chance()
        text = f"The base is not shown to be better than chance on {listing(at_chance)}"
        if self._nothing_to_forget():
            raise UserError(
                f"{text[0].lower()}{text[1:]}, so there is nothing to forget, and nothing was "
                "fine-tuned or restored. Use questions that the base can answer in its format, or "
                "more questions. Or set even_at_chance: true to look only for gains"
            )
        if at_chance:
            task.note(f"{text}: for these entries only a gain can be shown.")

    def _at_chance(self) -> list[str]:
        """What is judged and the base was measured on, and does no better than chance, as
        "suite/name"."""
        from holdfast.studies.stages.outcome import is_above_chance

        folder = EvaluationFolder(self.settings.output_dir / BASE_MEASURED / MEASURED)
        entries = []
        for key in self.settings.judged:
            evaluation = folder.find(*key)
            if evaluation is not None and not is_above_chance(folder, evaluation):
                entries.append("/".join(key))
        return entries

    def _nothing_to_forget(self) -> bool:
        return not self.settings.request.even_at_chance and len(self._at_chance()) == len(
            self.settings.judged
        )

    def whole_model(self, name: str, model: str) -> str:
        """The model of a step, or the folder where an adapter is merged into the base.

        Raises:
            HoldfastError: the adapter does not fit the base.
        """
        from holdfast.checkpoints.adapter_settings import is_adapter
        from holdfast.checkpoints.named import located

        if not is_adapter(located(model)):
            return model
        folder = self.settings.output_dir / MERGED / name
        if not has_weights(folder):
            _merging(model, self.settings.base).write(folder, overwrite=True)
        return str(folder)

    def _choose_texts(self, dose: int) -> int:
        """Chooses the text to restore on with a dose, which the base writes first where it is to;
        returns its tokens."""
        from holdfast.models import load
        from holdfast.runs.generated_text import write_generated
        from holdfast.runs.selecting import select

        config, request = self.settings, self.settings.request
        if request.generates and not config.generated.is_file():
            write_jsonl(config.generated, [])  # takes its place, so that the rest can be checked
        selection, problems = config.selection(request.tokens or self._tokens_of_an_epoch(), dose)
        if selection is None:
            raise ConfigError(problems)
        loaded = None
        if request.generates:
            loaded = load(
                selection.model,
                dtype=selection.dtype,
                device=selection.device,
                trust_remote_code=selection.trust_remote_code,
            )
            write_generated(selection, loaded, config.generated)
        counts = select(selection, loaded=loaded).record["counts"]
        return int(counts["restoring"]["tokens"])

    def _tokens_of_an_epoch(self) -> int:
        """Of the fine-tuning data."""
        run = RunFolder(self.settings.run_folder(f"{TUNE}-{next(iter(self.settings.arms))}"))
        if not (run.path / "run.json").is_file():
            raise HoldfastError("needs the number of tokens of the fine-tuning, but none was run")
        return max(1, round(int(run.read().training["tokens"]) / self.settings.epochs))

    def running(self, job: JobState) -> Mapping[str, Any] | None:
        """See `ConfiguredStudy`."""
        config, step = self.settings, self.settings.steps[job.attributes[STEP]]
        if step.kind in (MEASURE, TEXTS):
            return None
        if step.kind == TUNE:
            return config.tuning(step.arm)
        return config.restoring(step.name, "", step.dose)

    def clean(self, state: StudyState) -> None:
        """Deletes what restoring left, and the checkpoints of the fine-tuning once all are
        restored, unless all is kept."""
        from holdfast.studies.engine.worker import remove_checkpoints, remove_weights

        config = self.settings
        keeps = config.request.keep_weights != "none"
        for job in state.latest:
            step = config.steps[job.attributes[STEP]]
            folder = config.run_folder(step.name)
            if job.state != COMPLETE or step.kind in (MEASURE, TEXTS):
                continue
            if step.kind == TUNE and (
                keeps or not state.ended
            ):  # its checkpoints are still restored
                continue
            remove_checkpoints(folder)
            shutil.rmtree(config.output_dir / MERGED / step.name, ignore_errors=True)
            if not keeps:
                remove_weights(folder)
        if state.ended:
            shutil.rmtree(config.output_dir / MERGED, ignore_errors=True)

    # -------------------------------------------------------------------------------------- outcome

    def outcome(self, state: StudyState) -> StagesRecord:
        """The study as in stages.json, without verdicts."""
        from holdfast.studies.stages.outcome import stages_record

        return stages_record(state, self.settings, self.results_by_job(state))

    def complete(self, record: StagesRecord) -> StagesRecord:
        """With figures and verdicts."""
        from holdfast.studies.stages.outcome import add_verdicts

        return add_verdicts(record, self.settings)

    def show(self, record: Any, console: Any) -> None:
        """See `Study.show`."""
        from holdfast.reports.stages_report import print_stages

        print_stages(record, self.settings.output_dir, console)

    def page(self, record: StagesRecord) -> Writer:
        """The page on what is there."""
        from holdfast.reports.html import write_page
        from holdfast.reports.stages_report import stages_page

        return lambda path: write_page(stages_page(record), path)


def _evaluation_problems(config: StagesConfig) -> Sequence[str]:
    """Of the questions, with the tokenizer that the restored models will have; the probing text is
    not chosen yet.

    Raises:
        ModelError: no tokenizer, or no such template.
    """
    from holdfast.evaluation.runner import check_plan
    from holdfast.models import load_tokenizer
    from holdfast.runs.loading import load_chat_template

    restore = config.with_paths(config.request.restore)
    trusted, template = bool(restore.get("trust_remote_code")), restore.get("chat_template_path")
    tokenizer = load_tokenizer(config.base, trust_remote_code=trusted)
    if template is not None:
        tokenizer.chat_template = load_chat_template(template)
    entries = tuple(entry for entry in config.plan.entries if entry.suite != PROBING)
    return check_plan(dataclasses.replace(config.plan, entries=entries), tokenizer)


def _merging(adapter: str, base: str) -> Prepared:
    """An adapter, to be merged into the base that the study names, whatever it names itself.

    Raises:
        HoldfastError: it does not fit.
    """
    from holdfast.checkpoints.merge import prepare_merge

    return prepare_merge("linear", [adapter], adapter_base=base)


def _check_same_architecture(base: str, tuned: Sequence[str]) -> None:
    """Questions to two architectures are no pairs of one model's. Adapters have to fit the base."""
    from holdfast.checkpoints.adapter_settings import is_adapter
    from holdfast.checkpoints.named import located

    if not (file := Path(located(base)) / "config.json").is_file():
        return
    expected = read_object(file)
    for name in tuned:
        folder = Path(located(name))
        if is_adapter(folder):
            _merging(name, base)
        if not (folder / "config.json").is_file():
            continue
        different = shape_differences(expected, read_object(folder / "config.json"))
        if different:
            raise ModelError(
                f"{name} is of another architecture than the base {base}: {', '.join(different)}. "
                "Name the base that it was fine-tuned from."
            )
