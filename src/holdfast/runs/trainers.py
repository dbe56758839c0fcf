"""Which trainer a run has: `trainer:` in a training configuration.

```yaml
model_name_or_path: Qwen/Qwen3-0.6B
dataset_name: pairs.jsonl                 # prompt, chosen, rejected
trainer: dpo
beta: 0.1                                 # TRL's own keys, here of DPOConfig
retention:
  - label_annealing: {weight: 1.0}
```
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from holdfast.errors import Problem
from holdfast.retention.protocol import LOSS_TERM, TOKEN_WEIGHTS, RetentionMethod, changes_data

if TYPE_CHECKING:
    from holdfast.runs.settings import RunSettings

TrainerName = Literal["sft", "dpo", "kto", "grpo", "on_policy"]
SFT: TrainerName = "sft"


@dataclass(frozen=True, kw_only=True)
class TrainerKind:
    """One row of `TRAINERS`."""

    settings: str
    """The class of TRL's whose fields are the run's keys."""
    script: str = "trl:ScriptArguments"
    """Module and class of TRL's further keys: data, and what the trainer is given beside it."""
    rows: str
    """What a row of its data is, in a few words."""
    layout: str = ""
    """What a run's record calls such rows; empty: the layout that was recognised."""
    columns: str = ""
    """What of a row it reads, where that is TRL's own layout and no other; empty: every layout that
    holdfast knows."""
    reader: str = ""
    """The function of `holdfast.data.pairs` that looks at every row and leaves what is read; empty:
    it is another."""
    host: str = ""
    """The class of `holdfast.training.preferences` that trains on what it reads."""


TRAINERS: dict[str, TrainerKind] = {
    "sft": TrainerKind(settings="SFTConfig", rows="examples"),
    "dpo": TrainerKind(
        settings="DPOConfig",
        rows="pairs of a chosen and a rejected completion",
        layout="pairs",
        columns="the columns prompt, chosen and rejected",
        reader="read_pairs",
        host="DPORetentionTrainer",
    ),
    "kto": TrainerKind(
        settings="KTOConfig",
        rows="answers that were judged good or bad",
        layout="judged answers",
        columns="the columns prompt, completion and label",
        reader="read_judged",
        host="KTORetentionTrainer",
    ),
    "grpo": TrainerKind(
        settings="GRPOConfig",
        script="trl.scripts.grpo:GRPOScriptArguments",
        rows="prompts, with a reward that scores the answers",
        layout="prompts",
        columns="the column prompt, and the columns that rewards read",
    ),
    "on_policy": TrainerKind(settings="SFTConfig", rows="prompts"),
}


def _kto_problems(values: Mapping[str, Any]) -> Iterator[Problem]:
    """What TRL's `KTOTrainer` refuses once everything is loaded."""
    if (values.get("loss_type") or "kto") != "kto":
        return
    if values.get("per_device_train_batch_size") == 1:
        text = (
            "expected at least 2 with trainer: kto, got 1. The loss of this trainer compares the "
            "answers of a batch."
        )
        yield Problem("per_device_train_batch_size", text)
    if (values.get("train_sampling_strategy") or "sequential") != "sequential":
        text = (
            "expected 'sequential' with `trainer: kto`. This trainer pairs neighbouring rows before "
            "training."
        )
        yield Problem("train_sampling_strategy", text)


def trainer_named(values: Mapping[str, Any]) -> str:
    """The trainer that a configuration names; the default one where it names none of `TRAINERS`,
    which is a mistake of its own."""
    name = values.get("trainer")
    return str(name) if isinstance(name, str) and name in TRAINERS else SFT


def problems(
    holdfast: RunSettings, methods: Sequence[RetentionMethod], values: Mapping[str, Any]
) -> Iterator[Problem]:
    """What does not go with a trainer.

    Args:
        holdfast: the run's settings of holdfast, the trainer's name among them.
        methods: the run's.
        values: the run's settings of TRL.
    """
    trainer: str = holdfast.trainer
    if holdfast.on_policy is not None and trainer not in (SFT, "on_policy"):
        yield Problem(
            "on_policy",
            f"selects the trainer on_policy, but trainer is {trainer}. Leave one of them out.",
        )
    kind = TRAINERS[trainer]
    if not kind.columns:
        return
    if holdfast.data is not None:
        yield Problem(
            "data",
            f"has no effect with trainer: {trainer}, which reads {kind.columns}. Leave it out.",
        )
    if values.get("dataset_streaming") or values.get("streaming"):
        yield Problem(
            "dataset_streaming",
            (
                f"expected false with trainer: {trainer}, got true. This trainer needs all rows "
                "before training, to check them."
            ),
        )
    if trainer == "kto":
        yield from _kto_problems(values)
    if trainer == "grpo" and not (
        values.get("reward_funcs") or values.get("reward_model_name_or_path")
    ):
        yield Problem(
            "reward_funcs",
            "expected a reward function (or reward_model_name_or_path), got nothing.",
        )
    for method in methods:
        if not method.off:
            yield from _method_problems(method, trainer)


def _method_problems(method: RetentionMethod, trainer: str) -> Iterator[Problem]:
    """What does not go with a trainer that has columns of its own."""
    kind = TRAINERS[trainer]
    term = method.token_loss()
    if changes_data(method):
        yield (
            Problem(
                ("retention", method.name),
                f"mixes rows of text into the data, but trainer: {trainer} trains on {kind.rows}. "
                "Leave one out.",
            )
        )
    if method.needs & {TOKEN_WEIGHTS, LOSS_TERM}:
        yield (
            Problem(
                ("retention", method.name),
                f"acts on the cross-entropy of tokens, but the loss of trainer: {trainer} does "
                "not use it. Leave the method out, or choose another trainer.",
            )
        )
    if term is not None and trainer == "grpo":
        yield (
            Problem(
                ("retention", method.name),
                "is not computed on sampled answers. GRPO has its own KL to the initial model; "
                "set beta.",
            )
        )
    elif term is not None and term.teacher.kind == "cached":
        yield (
            Problem(
                ("retention", "label_annealing", "teacher"),
                "expected 'online' or 'adapter_off' with preference data, got 'cached'. The "
                "trainer's own reference model is the teacher, so a cache has no use.",
            )
        )
