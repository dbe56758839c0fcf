"""Self-distillation fine-tuning (SDFT) beside retention methods: a model learns answers as it would
give them itself.

    loss = mean over answers of the mean over sampled tokens of D(p0(. | prompt, demonstration) ||
    p(. | prompt))

The model p answers a prompt; p0, the model as it was at the start, reads a demonstration behind the
same prompt, the answer that the data has, and the model is held to what p0 then says at the sampled
tokens. So what is learnt is the demonstration in the model's own words, and what it could is moved
less than by training on the demonstration itself. TRL's experimental `SDFTTrainer` computes it: one
sampled answer a prompt, the divergence over the whole vocabulary, and the teacher frozen, the very
weights that training starts from.

The divergence is at temperature 1 however answers are sampled; TRL divides the logits of both by
the temperature of sampling. It still does with its `distillation_mode: sampled_token`, an estimate
that holds for the distribution that the tokens were drawn from.

TRL averages over the tokens of each answer, then over the answers of a micro-batch, then over
micro-batches: every answer counts alike, whatever its length.

References: Shenfeld et al. 2026, Self-Distillation Enables Continual Learning (arXiv 2601.19897),
sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from datasets import Dataset
from torch import nn
from transformers import TrainingArguments
from trl.experimental.sdft import SDFTConfig, SDFTTrainer

from holdfast.data.prompts import BEHIND, DEMONSTRATION
from holdfast.errors import ConfigError, DataError
from holdfast.retention.protocol import RetentionMethod
from holdfast.retention.teacher.teacher import freeze_copy
from holdfast.training.method_checks import with_token_loss
from holdfast.training.preferences import OnSamples, add_settings
from holdfast.training.processes import shards

Direction = Literal["forward", "reverse", "jsd"]
ALPHA: dict[Direction, float] = {"forward": 0.0, "jsd": 0.5, "reverse": 1.0}


class SelfDistillationTrainer(OnSamples, SDFTTrainer):
    """TRL's `SDFTTrainer` with retention methods of the gradient and of the weights.

    Args:
        model: the loaded model to train.
        args: the result of `sampling_arguments`, or a `trl.experimental.sdft.SDFTConfig`.
        retain: the retention methods. Methods of the data and of the loss are refused.
        train_dataset: rows with `prompt` (text or messages) and `privileged_context` (the
            demonstration, text).
        **kwargs: the arguments of `SDFTTrainer`, and of `RetentionMixin`.

    Raises:
        ConfigError: the methods do not fit.
        DataError: rows lack a prompt or a demonstration.
    """

    def __init__(
        self, model: nn.Module, *, retain: Sequence[RetentionMethod] = (), **kwargs: Any
    ) -> None:
        data = kwargs.get("train_dataset")
        if (
            not isinstance(data, Dataset)
            or not {"prompt", DEMONSTRATION} <= set(data.column_names)
            or not len(data)
        ):
            columns = ", ".join(getattr(data, "column_names", None) or ()) or "no columns"
            raise DataError(
                f"Self-distillation: expected rows with prompt and {DEMONSTRATION}, got {columns}."
            )
        annealing = with_token_loss(retain)
        if annealing:
            raise ConfigError(
                f"retention: {', '.join(annealing)} has its own teacher, and in "
                "self-distillation the initial model is the teacher. Leave one of the two out."
            )
        super().__init__(model=model, retain=retain, **kwargs)
        if self.args.distillation_mode != "sampled_token":
            self.temperature = (
                1.0  # of the logits that are compared; the sampler has its own by now
            )
        self.data_info: dict[str, Any] = {"examples": len(data), "packed": False}
        """What a run records of its data."""
        self.data_notes: list[str] = []

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Writes nothing; the run writes the card, as with `SFTRetentionTrainer`."""

    def _setup_teacher_model(self) -> None:
        """A frozen copy of the model at hand: TRL would load it again from where it came from,
        which need not be there, or be as it was. Under LoRA it is the model without its adapter,
        and sharded weights are TRL's to copy."""
        can_copy = not hasattr(self.model, "disable_adapter") and not shards(vars(self.args))
        if self.args.teacher_model_kind == "base" and can_copy:
            self.teacher_model = freeze_copy(self.model).requires_grad_(False).eval()
        else:
            super()._setup_teacher_model()


def sampling_arguments(
    args: TrainingArguments, direction: Direction, **sampling: Any
) -> TrainingArguments:
    """Adds to training arguments of another kind (`SFTConfig`) what `SDFTTrainer` reads of its own,
    in place: one answer a prompt and the divergence over the whole vocabulary.

    Args:
        args: of a run.
        direction: of the divergence; forward: KL(teacher || model); reverse: KL(model || teacher);
            jsd: between them.
        sampling: values of `SDFTConfig`, by its names.
    """
    steps = args.gradient_accumulation_steps
    return add_settings(
        args,
        SDFTConfig,
        distillation_mode="full_logits",
        distillation_alpha=ALPHA[direction],
        num_generations=1,
        steps_per_generation=steps,
        generation_batch_size=args.per_device_train_batch_size * args.world_size * steps,
        max_prompt_length=None,
        teacher_prompt_template=BEHIND,
        **sampling,
    )
