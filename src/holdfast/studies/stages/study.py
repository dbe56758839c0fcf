"""The stages study as the engine runs it: text is chosen, the fine-tuning done, every checkpoint restored."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.checkpoints.sources import listing
from holdfast.errors import ConfigError, HoldfastError, ModelError, UserError
from holdfast.records.evaluation import EvaluationFolder
from holdfast.records.run import RunFolder
from holdfast.records.stages import PROBING, RECORD_FILE, StagesRecord, write_stages
from holdfast.studies.engine import session as engine
from holdfast.studies.engine.asked import StudyAsked
from holdfast.studies.engine.models import MEASURED, measure_model, measuring_processes, train_model
from holdfast.studies.engine.progress import share_of_run
from holdfast.studies.engine.storage import GRACE_SECONDS
from holdfast.studies.engine.study import COMPLETE, RUNNING, JobState, StudyState, Writer
from holdfast.studies.stages.plan import BASE_MEASURED, MEASURE, STEP, TEXTS, TUNE, StagesConfig
from holdfast.support.files import read_object

if TYPE_CHECKING:
    from holdfast.checkpoints.build import Prepared
    from holdfast.studies.engine.worker import Task

MERGED = "merged"
"""Folder of checkpoints that are adapters, merged into the base for as long as they are restored."""
SAME = ("model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
"""Of config.json: what a model and what was tuned from it have in common. The vocabulary may have grown."""


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What came of a step."""

    folder: str
    """Relative to the study's."""
    seconds: float
    tokens: int = 0
    curve: list[tuple[float, float]] = field(default_factory=list)
    """Along restoring: (share of the steps, probing text in nats per token)."""


def run_stages(
    config: StagesConfig, *, console: Any = None, workers: int | None = None, grace: float = GRACE_SECONDS
) -> StagesRecord:
    """Runs a study to its end, or continues it.

    Args:
        config: see `plan.stages_config`.
        console: a `rich.console.Console` for progress; None: a new one on standard output.
        workers: models at a time on this machine; None: as the study says, else one a GPU, or two on two and more
            cores. 0 starts none and waits for those started elsewhere.
        grace: seconds without a sign of life after which another machine's step is taken over.

    Returns:
        The record as in stages.json.

    Raises:
        ConfigError: the configuration, or the storage holds another study of this name (what differs).
        ModelError: a checkpoint is not whole, or of another architecture than the base.
        DataError: the corpus is smaller than the budget, or holds nothing to choose.
        Interrupted: Ctrl-C; the same command continues.
        HoldfastError: steps failed (which), after the others were made and the page was written.
    """
    record: StagesRecord = engine.execute_study(StagesStudy(config), console=console, workers=workers, grace=grace)
    return record


class StagesStudy(StudyAsked[StagesConfig]):
    """The stages study."""

    config_class: ClassVar[type[StagesConfig]] = StagesConfig
    noun: ClassVar[str] = "step"
    begins: ClassVar[str] = "holdfast diagnose --config study.yaml"
    markers: ClassVar[tuple[str, ...]] = (RECORD_FILE, "study.db", "logs", "data", "texts")

    def open_folder(self, console: Any) -> None:
        """Looks at the base, the checkpoints and what is asked before anything is done: the first question comes after
        the fine-tuning.

        Raises:
            ModelError: a checkpoint is not whole, or of another architecture than the base.
            ConfigError: an unknown task, or a file of questions that cannot be read.
        """
        from holdfast.checkpoints.named import located
        from holdfast.models import check_model

        config = self.settings
        if config.asked.small is None and not (config.output_dir / RECORD_FILE).is_file():
            for name in (config.base, *config.asked.tuned):
                if Path(located(name)).is_dir():
                    check_model(name, trust_remote_code=bool(config.asked.restore.get("trust_remote_code")))
            _check_same_architecture(config.base, config.asked.tuned)
            shown = console is not None and console.is_terminal
            with console.status("Reading the questions") if shown else contextlib.nullcontext():
                problems = _evaluation_problems(config)
            if problems:
                raise ConfigError(problems, source="evaluation")

    # ----------------------------------------------------------------------------------------------------------- steps

    def make(self, task: Task) -> StepResult:
        """One step.

        Raises:
            HoldfastError: a step that it needs was not made, or it failed itself.
        """
        config, out = self.settings, self.settings.output_dir
        step, began = config.steps[task.attributes[STEP]], time.monotonic()
        if step.kind != MEASURE and self._nothing_to_forget():
            raise HoldfastError("depends on a base that does better than chance")
        if step.kind == MEASURE:
            self._measure_base(task)
            made = StepResult(folder="", seconds=0.0)
        elif step.kind == TEXTS:
            made = StepResult(folder="", seconds=0.0, tokens=self._choose(task))
        elif step.kind == TUNE:
            trained = train_model(config.tuning(step.arm), (), 0, cache=out / "evaluations", task=task)
            made = StepResult(folder="", seconds=0.0, tokens=trained.tokens)
        else:
            model = config.checkpoint(step.arm, step.place) if step.arm else config.base
            if not config.texts[0].is_file():
                raise HoldfastError("depends on the text to restore on, which was not chosen")
            settings = config.restoring(step.name, self._whole(step.name, model))
            trained = train_model(settings, (PROBING,), config.asked.curve, cache=out / "evaluations", task=task)
            curve = trained.curves.get(PROBING, [])
            made = StepResult(folder="", seconds=0.0, tokens=trained.tokens, curve=curve)
        folder = config.texts[0].parent if step.kind == TEXTS else config.run_folder(step.name)
        if step.kind == MEASURE:
            folder = out / BASE_MEASURED
        shown = folder.relative_to(out).as_posix() if folder.is_relative_to(out) else str(folder)
        return dataclasses.replace(made, folder=shown, seconds=round(time.monotonic() - began, 3))

    def _measure_base(self, task: Task) -> None:
        """Measures the base on what is judged, before anything is chosen, fine-tuned or restored.

        Raises:
            UserError: it does no better than chance on all of it.
        """
        config, restore = self.settings, self.settings.filled(self.settings.asked.restore)
        if restore.get("chat_template_path") is not None:
            return  # the base is measured with that template once it is restored
        entries = tuple(entry for entry in config.plan.entries if (entry.suite, entry.name) in config.judged)
        plan = dataclasses.replace(config.plan, entries=entries, averages=())
        measure_model(
            config.base,
            plan,
            config.output_dir / BASE_MEASURED,
            cache=config.output_dir / "evaluations",
            task=task,
            processes=measuring_processes(config.asked.train, plan),
            device="cpu" if restore.get("use_cpu") else None,
            trust_remote_code=bool(restore.get("trust_remote_code")),
        )
        names = self._at_chance()
        shown = listing([f"{suite}/{name}" for suite, name in names])
        if self._nothing_to_forget():
            raise UserError(
                f"the base is not shown to do better than chance on {shown}, so that there is nothing to forget and "
                "nothing was fine-tuned or restored. Ask what the base knows, in its own format, or more questions; or "
                "set even_at_chance: true, to look for gains alone"
            )
        if names:
            task.note(f"The base is not shown to do better than chance on {shown}: only a gain can be shown there.")

    def _at_chance(self) -> list[tuple[str, str]]:
        """(suite, name) of what is judged and the base was measured on, and does no better than chance."""
        from holdfast.studies.stages.outcome import is_above_chance

        folder = EvaluationFolder(self.settings.output_dir / BASE_MEASURED / MEASURED)
        measured = [found for key in self.settings.judged if (found := folder.find(*key)) is not None]
        return [(found.suite, found.name) for found in measured if not is_above_chance(found)]

    def _nothing_to_forget(self) -> bool:
        return not self.settings.asked.even_at_chance and len(self._at_chance()) == len(self.settings.judged)

    def _whole(self, name: str, model: str) -> str:
        """The model of a step, or the folder where an adapter is merged into the base.

        Raises:
            HoldfastError: the adapter does not fit the base.
        """
        from holdfast.checkpoints.adapters import is_adapter
        from holdfast.checkpoints.named import located

        if not is_adapter(located(model)):
            return model
        folder = self.settings.output_dir / MERGED / name
        if not any(folder.glob("*.safetensors")):  # it appears whole
            _merging(model, self.settings.base).write(folder, overwrite=True)
        return str(folder)

    def _choose(self, task: Task) -> int:
        """Chooses the text to restore on; returns its tokens, 0 where it was given."""
        from holdfast.runs.selecting import select

        asked = self.settings.asked
        if asked.restoring:
            return 0
        request, problems = self.settings.selection(asked.tokens or self._tokens_of_an_epoch())
        if request is None:
            raise ConfigError(problems)
        found = select(request)
        return int(found.record["counts"]["restoring"]["tokens"])

    def _tokens_of_an_epoch(self) -> int:
        """Of the fine-tuning data."""
        run = RunFolder(self.settings.run_folder(f"{TUNE}-{next(iter(self.settings.arms))}"))
        if not (run.path / "run.json").is_file():
            raise HoldfastError("depends on the fine-tuning, whose tokens are the budget, and it was not made")
        return max(1, round(int(run.read().training["tokens"]) / self.settings.epochs))

    def values(self, task: Task) -> Sequence[float]:
        """That it is done."""
        return [1.0]

    def share(self, job: JobState) -> float:
        """How much of a running step is done, read from what its run has written."""
        share = super().share(job)
        step = self.settings.steps[job.attributes[STEP]]
        if job.state == RUNNING and share < 1 and step.kind not in (MEASURE, TEXTS):
            config = self.settings
            settings = config.tuning(step.arm) if step.kind == TUNE else config.restoring(step.name, "")
            share = share_of_run(settings)
        return share

    def clean(self, state: StudyState) -> None:
        """Deletes what restoring left, and the checkpoints of the fine-tuning once all are restored, unless all is
        kept."""
        from holdfast.studies.engine.worker import remove_checkpoints, remove_weights

        config = self.settings
        ended = [config.steps[j.attributes[STEP]] for j in state.latest if j.state == COMPLETE]
        for step in (s for s in ended if s.kind not in (MEASURE, TEXTS, TUNE)):
            folder = config.run_folder(step.name)
            remove_checkpoints(folder)
            shutil.rmtree(config.output_dir / MERGED / step.name, ignore_errors=True)
            if config.asked.keep == "none":
                remove_weights(folder)
        if state.ended:
            shutil.rmtree(config.output_dir / MERGED, ignore_errors=True)
        if config.asked.keep == "none" and state.ended:
            for step in (s for s in ended if s.kind == TUNE):
                remove_checkpoints(config.run_folder(step.name))
                remove_weights(config.run_folder(step.name))

    # --------------------------------------------------------------------------------------------------------- outcome

    def outcome(self, state: StudyState) -> StagesRecord:
        """The study as in stages.json, without verdicts."""
        from holdfast.studies.stages.outcome import stages_record

        return stages_record(state, self.settings, {j.number: self.results(j.attributes) for j in state.latest})

    def complete(self, record: StagesRecord) -> StagesRecord:
        """With figures and verdicts."""
        from holdfast.studies.stages.outcome import with_verdicts

        return with_verdicts(record, self.settings)

    def write(self, record: StagesRecord) -> None:
        """Writes stages.json."""
        write_stages(self.settings.output_dir, record)

    def page(self, record: StagesRecord) -> Writer:
        """The page on what is there."""
        from holdfast.reports.html import write_page
        from holdfast.reports.stages_report import stages_page

        return lambda path: write_page(stages_page(record), path)


def _evaluation_problems(config: StagesConfig) -> list[str]:
    """Of the questions, with the tokenizer that the restored models will have; the probing text is not chosen yet.

    Raises:
        ModelError: no tokenizer, or no such template.
    """
    from holdfast.evaluation.runner import check_plan
    from holdfast.models import load_tokenizer
    from holdfast.runs.loading import load_chat_template

    restore = config.filled(config.asked.restore)
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
    from holdfast.checkpoints.adapters import is_adapter
    from holdfast.checkpoints.named import located

    if not (file := Path(located(base)) / "config.json").is_file():
        return
    wanted = read_object(file)
    for name in tuned:
        place = Path(located(name))
        if is_adapter(place):
            _merging(name, base)
        if not (place / "config.json").is_file():
            continue
        found = read_object(place / "config.json")
        different = [f"{k} {wanted.get(k)} and {found.get(k)}" for k in SAME if wanted.get(k) != found.get(k)]
        if different:
            raise ModelError(
                f"{name} is of another architecture than the base {base}: {', '.join(different)}. Name the base that "
                "it was fine-tuned from."
            )
