"""A stages study with nothing left open: what is chosen, trained, restored and measured, step by
step.

base                        measured, since nothing can be forgotten where it does no better than
chance
texts                       what is restored on and probed with, chosen by the base's perplexity
tune ARM                    the fine-tuning, a checkpoint an epoch (where the study does it)
restore base, ARM k         the control and every checkpoint: measured before and after
texts 4x, restore ... 4x    the same at a larger dose, from the easiest text of so many budgets
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.config.decode import decode
from holdfast.data.select.request import LEDGER, RESTORING
from holdfast.data.select.request import PROBING as PROBED
from holdfast.errors import ConfigError, Problem, did_you_mean
from holdfast.records.stages import PROBING
from holdfast.studies.engine.base import StudyConfigBase
from holdfast.studies.stages.settings import (
    GENERATED_PROBING,
    OF_PARTS,
    PROBING_PASSAGES,
    RESTORE,
    StagesSettings,
)

if TYPE_CHECKING:
    from holdfast.evaluation.entries import EvaluationPlan
    from holdfast.runs.selecting import Selection
    from holdfast.studies.engine.study import Job

STEP = "step"
"""Attribute of a job."""
MEASURE, TEXTS, TUNE, RESTORE_STEP = "measure", "texts", "tune", "restore"
BASE_MEASURED = "base-measured"
"""The step before all others."""
BASE_RESTORED = "base-restored"
"""The step of the control."""
GIVEN, PLAIN, REMEDY = "tuned", "direct", "remedy"
"""Arms: given checkpoints, the fine-tuning, and the same with a retention method."""
OF_SELECTION = {
    "model": "`base`",
    "input": "`corpus`",
    "output": "`output_dir`",
    "tokens": "`tokens`",
}
"""What the study sets of `Selection` itself, and by which of its own settings."""
JUDGED = "knowledge"
"""Suite of the entries that the study itself lists."""
NOT_JUDGED = ("perplexity", "memorisation", "answer_distribution")
"""Kinds of entries that are drawn, and are no question that can be right or wrong."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One job."""

    name: str
    kind: str
    """"measure", "texts", "tune" or "restore"."""
    arm: str = ""
    """"" of the control."""
    place: int = 0
    """Of the checkpoint in its arm, from 1; 0 of the control."""
    dose: int = 1
    """Of restoring, and of the text for it."""
    needs: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """For people."""
        labels = {
            MEASURE: "measuring the base",
            TEXTS: "choosing the text to restore on",
            TUNE: f"fine-tuning: {self.arm}",
        }
        restoring = (
            f"restoring {self.arm}, checkpoint {self.place}"
            if self.arm
            else "restoring the base (control)"
        )
        at_dose = f", {self.dose} times the dose" if self.dose > 1 else ""
        return f"{labels.get(self.kind, restoring)}{at_dose}"


def at_dose(name: str, dose: int) -> str:
    """The name of a step or a folder at a dose; that of one budget has no number."""
    return f"{name}-{dose}x" if dose > 1 else name


@dataclass(frozen=True, kw_only=True)
class StagesConfig(StudyConfigBase[StagesSettings]):
    """A stages study."""

    settings_class: ClassVar[type[Any]] = StagesSettings

    @staticmethod
    def normalised(request: StagesSettings) -> StagesSettings:
        """See `StudyConfigBase`: how many passages to probe with."""
        if request.probing_passages is not None:
            return request
        count = GENERATED_PROBING if request.generates else PROBING_PASSAGES
        return dataclasses.replace(request, probing_passages=count)

    @staticmethod
    def training_parts(
        request: StagesSettings,
    ) -> dict[str, tuple[Mapping[str, Any], Collection[str]]]:
        """See `StudyConfigBase`."""
        return {
            "train": (request.train, OF_PARTS["train"]),
            "restore": (request.restore, OF_PARTS["restore"]),
        }

    def part_problems(self) -> Sequence[str]:
        """See `check_parts`."""
        return check_parts(self)

    @contextlib.contextmanager
    def chosen_texts(self) -> Iterator[dict[str, str]]:
        """Text that is chosen when the study runs, by a file that stands in for it."""
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as stand_in:
            stand_in.write('{"text": "a"}\n')
            stand_in.flush()
            files = [path for dose in self.request.doses for path in self.texts_at(dose)]
            yield {str(path): stand_in.name for path in files}

    def runs(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """A restoring of the base, and the fine-tunings."""
        checked = {"output_dir": str(self.run_folder("checked"))}
        with self.chosen_texts() as texts:
            yield "restore", {**_replaced(self.restoring("checked", self.base), texts), **checked}
            for arm in self.arms if self.request.train else ():
                yield "train", {**_replaced(self.tuning(arm), texts), **checked}

    @classmethod
    def current_keys(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """See `StudyConfigBase.current_keys`. A list under `evaluation` says what is kept, and
        `measuring` what all measuring shares, as before."""
        current = super().current_keys(values)
        if isinstance(current.get("evaluation"), list) and "keep" not in current:
            current["keep"] = current.pop("evaluation")
        if "measuring" in current and "evaluation" not in current:
            current["evaluation"] = current.pop("measuring")
        return current

    def resumable_changes(self, old: Mapping[str, Any]) -> set[str]:
        """What is judged anew from what was measured. Larger doses may come later, and a remedy:
        their steps are the last ones."""
        judged = {
            "keep_weights",
            "margin",
            "tolerance",
            "control_tolerance",
            "even_at_chance",
            "judge",
        }
        if old.get("with_retention") is None:
            judged.add("with_retention")
            doses = list(old.get("doses", [1]))
            if list(self.request.doses[: len(doses)]) == doses:
                judged.add("doses")
        return judged

    # ---------------------------------------------------------------------------------------- steps

    @property
    def epochs(self) -> int:
        """Of the fine-tuning."""
        return int(self.request.train.get("num_train_epochs", 10))

    @property
    def arms(self) -> dict[str, int]:
        """Checkpoints by arm; the first arm is what is diagnosed."""
        if self.request.tuned:
            return {GIVEN: len(self.request.tuned)}
        return {
            PLAIN: self.epochs,
            **({REMEDY: self.epochs} if self.request.with_retention is not None else {}),
        }

    @functools.cached_property
    def steps(self) -> dict[str, Step]:
        """By name, in the order in which they are begun: those of larger doses after the first, and
        those of a remedy after all else."""
        request, steps = self.request, dict[str, Step]()

        def add(name: str, kind: str, *needs: str, **about: Any) -> None:
            steps.setdefault(name, Step(name=name, kind=kind, needs=needs, **about))

        add(BASE_MEASURED, MEASURE)
        if request.tokens is not None:  # too small a corpus is seen before hours of fine-tuning
            add(TEXTS, TEXTS, BASE_MEASURED)
        for arm, count in self.arms.items():
            tuning = f"{TUNE}-{arm}"
            if request.train:
                add(tuning, TUNE, BASE_MEASURED, arm=arm)
            for dose in request.doses:
                texts = at_dose(TEXTS, dose)
                # the fine-tuning's tokens are the budget; the scores of one choice serve the next
                before = (BASE_MEASURED, tuning) if dose == 1 else (TEXTS,)
                add(texts, TEXTS, *before, dose=dose)
                add(at_dose(BASE_RESTORED, dose), RESTORE_STEP, texts, dose=dose)
                needs = (texts, tuning) if request.train else (texts,)
                for number in range(1, count + 1):
                    name = at_dose(f"{arm}-{number}-restored", dose)
                    add(name, RESTORE_STEP, *needs, arm=arm, place=number, dose=dose)
        return steps

    def jobs(self) -> list[Job]:
        """One a step; it waits for those that it needs."""
        from holdfast.studies.engine.study import LABEL, Job

        numbers = {name: number for number, name in enumerate(self.steps)}
        jobs = []
        for step in self.steps.values():
            after = tuple(numbers[name] for name in step.needs)
            jobs.append(Job(attributes={LABEL: step.label, STEP: step.name}, after=after))
        return jobs

    # -------------------------------------------------------------------------------------- folders

    @property
    def texts(self) -> tuple[Path, Path]:
        """Files of the text to restore on and to probe with."""
        return self.texts_at(1)

    def texts_at(self, dose: int) -> tuple[Path, Path]:
        """The same for a dose; the text to probe with is the same for all."""
        folder = self.output_dir / "texts"
        if dose > 1:
            folder = folder / f"{dose}x"
        return folder / RESTORING, folder / PROBED

    @property
    def generated(self) -> Path:
        """File of the text that the base writes, where it does."""
        return self.texts[0].with_name("generated.jsonl")

    @property
    def base(self) -> str:
        """The model that was fine-tuned."""
        return str(self.with_paths(self.request.base))

    def run_folder(self, name: str) -> Path:
        """Where a step trains."""
        return self.output_dir / "runs" / name

    def checkpoint(self, arm: str, place: int) -> str:
        """A fine-tuned model.

        Raises:
            ConfigError: the fine-tuning left another number of checkpoints than it has epochs.
        """
        from holdfast.training.checkpoint_folders import checkpoints_in

        if arm == GIVEN:
            return str(self.with_paths(self.request.tuned[place - 1]))
        folder = self.run_folder(f"{TUNE}-{arm}")
        checkpoints = checkpoints_in(folder)
        if len(checkpoints) != self.epochs:
            raise ConfigError(
                f"{folder}: expected a checkpoint after each of {self.epochs} epochs, found "
                f"{len(checkpoints)}. Start the fine-tuning again in another output_dir."
            )
        return str(checkpoints[place - 1])

    # ------------------------------------------------------------------------------------ measuring

    @property
    def questions(self) -> dict[str, Any]:
        """What is asked of every model, the probing text aside."""
        questions: dict[str, Any] = {}
        if self.request.keep:
            questions[JUDGED] = self.request.keep
        if self.request.suite:
            questions["suites"] = [self.request.suite]
        return {**questions, **self.request.evaluation}

    @property
    def evaluation(self) -> dict[str, Any]:
        """What is measured of every model."""
        probing = {"perplexity": str(self.texts[1]), "name": PROBING}
        return {**self.with_paths(self.questions), PROBING: [probing]}

    @functools.cached_property
    def plan(self) -> EvaluationPlan:
        """The same as the code that measures takes it."""
        from holdfast.evaluation.suite import parse_evaluation

        return parse_evaluation(self.evaluation)[0]

    @property
    def judged(self) -> list[tuple[str, str]]:
        """(suite, name) of the entries and averages that are judged."""
        from holdfast.evaluation.averages import SUITE

        answered = [(e.suite, e.name) for e in self.plan.entries if e.kind not in NOT_JUDGED]
        if not self.request.judge:
            return answered
        keys = [*answered, *((SUITE, average.name) for average in self.plan.averages)]
        judged = []
        for name in self.request.judge:
            judged += [key for key in keys if name in (key[1], "/".join(key))][:1]
        return judged

    @property
    def question_files(self) -> list[Path]:
        """Files of what is judged, which the text to restore on should not contain."""
        return list(
            dict.fromkeys(path for files in self._files_by_entry.values() for path in files)
        )

    def selection(self, tokens: int, dose: int = 1) -> tuple[Selection | None, list[Problem]]:
        """How the text to restore on is chosen, of so many tokens for one dose; None where there is
        a mistake, and every mistake."""
        from holdfast.runs.selecting import Selection

        request, options = self.request, self.with_paths(self.request.select)
        questions = [str(path) for path in self.question_files]
        corpus = [self.with_paths(name) for name in request.corpus]
        if request.generates:
            corpus = [str(self.generated)]
        ledger = {} if dose == 1 else {"scores": str(self.texts[0].with_name(LEDGER))}
        settings = {
            "probing": request.probing_passages,
            "seed": request.seed,
            "questions": questions,
            **ledger,
            **options,
            "model": self.base,
            "input": corpus,
            "output": str(self.texts_at(dose)[0].parent),
            "tokens": dose * tokens,
        }
        selection, mistakes = decode(Selection, settings)
        problems = []
        for key, reason in OF_SELECTION.items():
            if key in options:
                problems.append(Problem(("select", key), f"is set by the study: {reason}."))
        for mistake in mistakes:
            path = ("corpus",) if mistake.path == ("input",) else ("select", *mistake.path)
            problems.append(Problem(path, mistake.text))
        return selection, problems

    @property
    def not_looked_for(self) -> list[str]:
        """What is judged and has no file here that could be looked for in the corpus, such as a
        task from the hub; none where files of questions are named."""
        if self.request.select.get("questions"):
            return []
        return [name for name, files in self._files_by_entry.items() if not files]

    @functools.cached_property
    def _files_by_entry(self) -> dict[str, list[Path]]:
        from holdfast.data.readers import kind_of

        files: dict[str, list[Path]] = {}
        for entry in self.plan.entries:
            if entry.kind not in NOT_JUDGED:
                readable = files[f"{entry.suite}/{entry.name}"] = []
                for path in entry.local_files():
                    if path.is_file() and kind_of(path) is not None:
                        readable.append(path)
        return files

    def tuning(self, arm: str) -> dict[str, Any]:
        """The configuration of a fine-tuning, as `holdfast train --config` takes it. The probing
        text is not measured along it, since it may be chosen afterwards."""
        retention = [self.request.with_retention] if arm == REMEDY else "none"
        settings = {
            "num_train_epochs": self.epochs,
            **self.request.train,
            "model_name_or_path": self.base,
            "retention": retention,
            "seed": self.request.seed,
            "save_strategy": "epoch",
            "output_dir": str(self.run_folder(f"{TUNE}-{arm}")),
        }
        if self.request.along:
            settings["evaluation"] = {**self.questions, "along": self.request.along}
        return dict(self.with_paths(settings))

    def restoring(self, name: str, model: str, dose: int = 1) -> dict[str, Any]:
        """The configuration of a restoring."""
        settings = {
            **RESTORE,
            **self.request.restore,
            "model_name_or_path": model,
            "dataset_name": str(self.texts_at(dose)[0]),
            "retention": "none",
            "seed": self.request.seed,
            "evaluation": self.evaluation,
            "output_dir": str(self.run_folder(name)),
        }
        return dict(self.with_paths(settings))


def check_parts(config: StagesConfig) -> Sequence[str]:
    """What is wrong with what is measured, or else with the files, the checkpoints, the fine-tuning
    and the restoring.

    Args:
        config: with nothing left open.
    """
    from holdfast.evaluation.suite import parse_evaluation

    with config.chosen_texts() as texts:
        plan, problems = parse_evaluation(_replaced(config.evaluation, texts))
    if not problems and not [e for e in plan.entries if e.kind not in NOT_JUDGED]:
        kinds = sorted({entry.kind for entry in plan.entries if entry.suite != PROBING})
        problems.append(
            Problem(
                "keep",
                "expected at least one entry with right and wrong answers, such as a task "
                f"or `multiple_choice: FILE`, got {', '.join(kinds) or 'nothing'}. Verdicts need "
                "such answers.",
            )
        )
    if not problems:
        known = [e.name for e in plan.entries if e.kind not in NOT_JUDGED]
        known += [average.name for average in plan.averages]
        paths = [e.path for e in plan.entries if e.kind not in NOT_JUDGED]
        for name in config.request.judge:
            if name not in (*known, *paths):
                text = (
                    f"expected some of {', '.join(known)}, got {name}.{did_you_mean(name, known)}"
                )
                problems.append(Problem("judge", text))
    return [*problems, *_of_files(config), *config.run_problems(problems)]


def _of_files(config: StagesConfig) -> Sequence[str]:
    """What is wrong with the checkpoints and with the files of the corpus."""
    import os

    from holdfast.checkpoints.named import located

    problems: list[str] = []
    for name in config.request.tuned:
        if not os.path.isdir(located(config.with_paths(name))):
            problems.append(
                Problem("tuned", f"expected the folder of a checkpoint at {name}, found none.")
            )
    for problem in config.selection(config.request.tokens or 1)[1]:
        if problem.path != ("corpus",) or not config.request.generates:  # which is not there yet
            problems.append(problem)
    return problems


def _replaced(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {k: _replaced(v, names) for k, v in value.items()}
    if isinstance(value, list):
        return [_replaced(v, names) for v in value]
    return names.get(value, value) if isinstance(value, str) else value
