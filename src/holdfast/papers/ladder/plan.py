"""A ladder with nothing left open: which runs there are, and what each trains.

All runs of a size and seed begin with the same weights and read the same windows in the same order,
each as far as its budget goes; a run's schedule is its own, so that its rate ends at zero
(Overtrained Language Models: no checkpoint is taken from the middle of a longer run).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.errors import ConfigError, Problem
from holdfast.papers.ladder.settings import OWN, TRAIN, LadderSettings, SizeSettings
from holdfast.studies.engine.base import StudyConfigBase
from holdfast.studies.engine.held_out import overlap_may_change
from holdfast.studies.engine.models import training_problems
from holdfast.support.token_counts import shown_tokens

if TYPE_CHECKING:
    from holdfast.evaluation.entries import EvaluationPlan
    from holdfast.studies.engine.study import Job
    from holdfast.training.fresh_model import Decoder

RUNG = "rung"
"""Attribute of a job: the name of its rung, or `TEXT`."""
TEXT = "text"
SUITE = "keep"
"""Suite of what every rung is measured on."""


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One budget of one size."""

    size: str
    budget: int
    steps: int
    """The whole number of steps nearest to the budget."""
    tokens: int
    """Number of tokens that the run reads in these steps."""
    work: float
    """Relative cost of training. The runs with the highest cost begin last."""

    @property
    def name(self) -> str:
        """Of its folder; says the budget, as checkpoints of ladders do."""
        return f"{self.size}-tokens{shown_tokens(self.budget)}"


@dataclass(frozen=True, kw_only=True)
class LadderConfig(StudyConfigBase[LadderSettings]):
    """A ladder."""

    settings_class: ClassVar[type[Any]] = LadderSettings

    @staticmethod
    def training_parts(
        request: LadderSettings,
    ) -> dict[str, tuple[Mapping[str, Any], Collection[str]]]:
        """See `StudyConfigBase`."""
        return {"train": (request.train, OWN)}

    def validate_without_files(self) -> Sequence[str]:
        """Sizes that cannot be built too."""
        return [*_of_models(self), *super().validate_without_files()]

    def part_problems(self) -> Sequence[str]:
        """See `check_parts`."""
        return check_parts(self)

    def run_problems(
        self, known: Sequence[str] = (), *, without: Collection[str] = ()
    ) -> Sequence[str]:
        """Of the first rung: the others differ in how long they are."""
        import json
        import tempfile

        with (
            tempfile.TemporaryDirectory() as folder
        ):  # stands in for a model and tokens that are not there yet
            Path(folder, "config.json").write_text(
                json.dumps({"model_type": self.request.architecture})
            )
            Path(folder, "model.safetensors").write_bytes(b"")
            Path(folder, "rows.jsonl").write_text('{"input_ids": [0], "labels": [0]}\n')
            settings = self.training(next(iter(self.rungs.values())), self.request.seeds[0], {})
            stood_in = {"model_name_or_path": folder, "dataset_name": f"{folder}/rows.jsonl"}
            looked_at = {k: v for k, v in {**settings, **stood_in}.items() if k not in without}
            problems: list[str] = [
                p.replace(folder, "the model") for p in training_problems(looked_at)
            ]
            return [p for p in problems if not any(p in sentence for sentence in known)]

    def resumable_changes(self, old: Mapping[str, Any]) -> Collection[str]:
        """Whether to go on past a refusal, and budgets and sizes, where there have only come
        more."""
        resumable_changes = {"max_passes", *overlap_may_change(old)}
        begun = self.from_recorded(old)
        if begun is None or not self.has_jobs_of(begun):
            return resumable_changes
        sizes = {name: replace(size, budgets=()) for name, size in self.request.sizes.items()}
        alike = all(
            sizes.get(name) == replace(size, budgets=())
            for name, size in begun.request.sizes.items()
        )
        return resumable_changes | {"budgets", "sizes"} if alike else resumable_changes

    # ---------------------------------------------------------------------------------------- rungs

    def rows(self, size: SizeSettings) -> int:
        """Windows a step."""
        return size.batch_size or self.request.batch_size

    @functools.cached_property
    def rungs(self) -> dict[str, Rung]:
        """By name: sizes as listed, budgets rising."""
        rungs = []
        for name, size in self.request.sizes.items():
            step = self.rows(size) * self.request.context
            for budget in size.budgets or self.request.budgets:
                steps = max(1, round(budget / step))
                tokens = steps * step
                work = float(tokens) * size.layers * size.width**2
                rungs.append(Rung(size=name, budget=budget, steps=steps, tokens=tokens, work=work))
        return {rung.name: rung for rung in rungs}

    def jobs(self) -> list[Job]:
        """The text, then the runs, the shortest first: what is wrong shows before days are
        spent."""
        from holdfast.studies.engine.study import LABEL, Job

        jobs = [Job(attributes={LABEL: "tokenising the text", RUNG: TEXT})]
        for rung in sorted(self.rungs.values(), key=lambda rung: rung.work):
            label = f"{rung.size}, {shown_tokens(rung.budget)} tokens"
            jobs.append(Job(attributes={LABEL: label, RUNG: rung.name}, after=(0,)))
        return jobs

    def decoder(self, name: str) -> Decoder:
        """What the model of a size looks like."""
        from holdfast.training.fresh_model import Decoder

        size = self.request.sizes[name]
        return Decoder(
            architecture=self.request.architecture,
            layers=size.layers,
            width=size.width,
            heads=size.heads,
            mlp=size.mlp or 4 * size.width,
            context=self.request.context,
            more=self.request.model,
        )

    # -------------------------------------------------------------------------------------- folders

    @property
    def tokens(self) -> Path:
        """The text as token windows."""
        return self.output_dir / "tokens"

    @property
    def tokenizer(self) -> str:
        """The tokenizer, given or trained."""
        if self.request.tokenizer:
            return str(self.with_paths(self.request.tokenizer))
        return str(self.output_dir / "tokenizer")

    def fresh(self, size: str, seed: int) -> Path:
        """A model before its first step."""
        return self.output_dir / "fresh" / f"{size}-seed{seed}"

    def run_folder(self, rung: Rung, seed: int) -> Path:
        """Where a rung trains; its checkpoint is there at the end."""
        more = f"-seed{seed}" if len(self.request.seeds) > 1 else ""
        return self.output_dir / f"{rung.name}{more}"

    # ------------------------------------------------------------------------------------- training

    @property
    def evaluation(self) -> dict[str, Any]:
        """What every rung is measured on; a model that has read nothing is not."""
        return (
            {SUITE: self.with_paths(self.request.evaluation), "before": False}
            if self.request.evaluation
            else {}
        )

    @functools.cached_property
    def plan(self) -> EvaluationPlan:
        """The same as the code that measures takes it."""
        from holdfast.evaluation.suite import parse_evaluation

        return parse_evaluation(self.evaluation)[0]

    def batches(self, size: SizeSettings) -> tuple[int, int]:
        """(windows a device, accumulation).

        Raises:
            ConfigError: windows that cannot be shared out like that.
        """
        rows, processes = self.rows(size), int(self.request.train.get("num_processes") or 1)
        per_device = self.request.per_device or max(1, rows // processes)
        if rows % (per_device * processes):
            raise ConfigError(
                f"batch_size: expected a multiple of {per_device} windows per device times "
                f"{processes} process{'es' if processes > 1 else ''}, got {rows}."
            )
        return per_device, rows // (per_device * processes)

    def training(self, rung: Rung, seed: int, multipliers: Mapping[str, float]) -> dict[str, Any]:
        """The configuration of a run, as `holdfast train --config` takes it."""
        request = self.request
        per_device, accumulation = self.batches(request.sizes[rung.size])
        return {
            **TRAIN,
            "logging_steps": max(1, rung.steps // 100),
            "save_steps": max(1, rung.steps // 10),
            **self.with_paths(request.train),
            "model_name_or_path": str(self.fresh(rung.size, seed)),
            "dataset_name": str(self.tokens),
            "max_length": request.context,
            "max_steps": rung.steps,
            "per_device_train_batch_size": per_device,
            "gradient_accumulation_steps": accumulation,
            "learning_rate": request.learning_rate,
            "learning_rate_multipliers": dict(multipliers),
            "seed": seed,
            "retention": "none",
            "evaluation": self.evaluation,
            "output_dir": str(self.run_folder(rung, seed)),
        }


def _of_models(config: LadderConfig) -> Sequence[str]:
    from holdfast.training.fresh_model import decoder_config

    problems: list[str] = []
    for name, size in config.request.sizes.items():
        try:
            decoder_config(config.decoder(name))
            config.batches(size)
        except ConfigError as error:
            problems += error.problems
    base = config.request.base_width
    if base is not None and config.request.model.get("tie_word_embeddings"):
        problems.append(
            Problem(
                "base_width",
                "muP needs separate embeddings and head. Leave out tie_word_embeddings.",
            )
        )
    return list(dict.fromkeys(problems))


def check_parts(config: LadderConfig) -> Sequence[str]:
    """What is wrong with the text's files, the models, and a run's configuration.

    Args:
        config: with nothing left open.
    """
    from holdfast.data.sources import data_files, is_path
    from holdfast.errors import UserError
    from holdfast.papers.ladder.token_windows import INFO_FILE
    from holdfast.support.files import read_object

    problems = [*_of_models(config)]
    for name in map(str, config.with_paths(list(config.request.text))):
        if is_path(name):
            try:
                data_files(name)
            except UserError as error:
                problems.append(Problem("text", f"{error}"))
    if (config.tokens / INFO_FILE).is_file():  # budgets that come later
        try:
            refuse_little_text(config, int(read_object(config.tokens / INFO_FILE)["tokens"]))
        except ConfigError as error:
            problems += error.problems
    if problems:
        return problems
    return config.run_problems()


def refuse_little_text(config: LadderConfig, tokens: int) -> None:
    """Refuses budgets that would read the text more often than was allowed.

    Args:
        config: the ladder.
        tokens: of the text.

    Raises:
        ConfigError: which budgets, and what to do.
    """
    allowed, most = (
        config.request.max_passes * tokens,
        max(config.rungs.values(), key=lambda rung: rung.tokens),
    )
    if most.tokens > allowed:
        needed = math.ceil(100 * most.tokens / tokens) / 100
        raise ConfigError(
            f"budgets: expected at most {shown_tokens(int(allowed))} tokens, which is "
            f"{config.request.max_passes:g} "
            f"pass{'es' if config.request.max_passes != 1 else ''} over the text ({tokens} "
            f"tokens), got {shown_tokens(most.budget)}. Give more text, or set max_passes: "
            f"{needed:g}. Repeated text makes it a different experiment."
        )
