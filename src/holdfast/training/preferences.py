"""Retention methods beside losses of their own: TRL's preference optimisation, its reinforcement
learning, and distillation on the model's own text.

`DPORetentionTrainer` is TRL's `DPOTrainer` with every `loss_type` it has:

    loss = mean over pairs of the preference loss + weight * mean over completion tokens of KL(start
    || model)

Methods of the gradient and of the weights act as they do beside the cross-entropy. Label annealing
takes the KL at the tokens of both completions, the chosen and the rejected, from the same forward
pass that gives their log-probabilities. The preference loss holds the policy near its reference by
one number for each completion, the log-ratio of the whole; the KL holds the distribution at every
token. Reference and teacher are the same frozen weights, kept once.

`KTORetentionTrainer` is TRL's `KTOTrainer` in the same way: rows are single completions that were
judged good or bad.

`GRPORetentionTrainer` is TRL's `GRPOTrainer` with methods of the gradient and of the weights. Its
own `beta` is the coefficient of a KL to the start, so label annealing is refused there.

`OnPolicyTrainer` takes prompts alone. The model samples its answers, as TRL's `DistillationTrainer`
has it, and the KL term of label annealing at their tokens is the whole loss:

    loss = weight * mean over sampled tokens of D(teacher || model),   D forward, reverse or jsd

With the model of before as the teacher it brings back what training has lost, where the model
itself goes: its mistakes are corrected where it makes them, and nobody has to have written answers.

TRL averages the preference loss over the pairs of a micro-batch and then over micro-batches; here
it is divided by the pairs of the whole step, over accumulation and processes, like every other
term. What TRL computes over a micro-batch as a whole stays so: `sft` is a mean over its tokens,
`aot` and `aot_unpaired` sort its pairs. All that this file knows of TRL's internals:
`compute_loss(model, ...)` calls `model` for the policy alone, with `fused_lm_head=True`, and gets
the reference's log-probabilities elsewhere; that KTO's estimates its KL in `_compute_kl_logps`; and
the columns of the batches.

References: Rafailov et al. 2023, Direct Preference Optimization; Ethayarajh et al. 2024, KTO; Shao
et al. 2024, DeepSeekMath (GRPO); Memory Retaining Finetuning, Eq. 2 (the KL term); Agarwal et al.
2024, On-Policy Distillation of Language Models, section 3.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import TrainingArguments
from trl import DistillationTrainer, DPOConfig, DPOTrainer, GRPOTrainer, KTOConfig, KTOTrainer

from holdfast.data.pairs import check_judged, check_pairs
from holdfast.errors import ConfigError, DataError
from holdfast.ops.annealing import IGNORE, AnnealedLoss, NonFiniteLogits
from holdfast.retention.methods.budget import Budget
from holdfast.retention.protocol import RetentionMethod, TeacherSettings
from holdfast.retention.teacher.teacher import freeze_copy
from holdfast.training.arguments import add_defaults
from holdfast.training.forward import LossRequest, Sealed, successor_mask
from holdfast.training.method_checks import token_losses, with_token_loss
from holdfast.training.mixin import RetentionMixin
from holdfast.training.processes import shards

_NOT_THE_MODELS = (
    "completion_mask",
    "ref_chosen_logps",
    "ref_rejected_logps",
    "label",
    "ref_logps",
    "ref_KL_logps",
    "KL_input_ids",
    "KL_attention_mask",
    "KL_completion_mask",
)
"""Columns of a batch of preferences that the model does not take."""
_ANSWER_IDS = ("chosen_ids", "rejected_ids", "completion_ids")
"""Columns of tokenised rows with the tokens of answers."""


class OwnLoss(RetentionMixin):
    """What hosts with a loss of their own have in common."""

    own_loss = True
    loss_is_scaled_for_ga = True

    def _send_telemetry(self) -> None:
        """Sent only when the user has turned it on by HF_HUB_DISABLE_TELEMETRY=0."""
        if os.environ.get("HF_HUB_DISABLE_TELEMETRY", "1").lower() in ("0", "false"):
            super()._send_telemetry()  # type: ignore[misc]

    def prediction_step(
        self,
        model: nn.Module,
        inputs: Any,
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> Any:
        """As TRL's."""
        host: Any = super(RetentionMixin, self)
        return host.prediction_step(model, inputs, prediction_loss_only, ignore_keys)


class OnSamples(OwnLoss):
    """Hosts that sample what they train on, whose loss is TRL's unless they say otherwise."""

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """As TRL's."""
        host: Any = super(RetentionMixin, self)
        loss = host.compute_loss(model, inputs, return_outputs, num_items_in_batch)
        self.sums.add(
            self.mode, None, inputs["prompt_mask"].sum() + inputs["completion_mask"].sum()
        )
        return loss

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Any:
        """None: what is counted is sampled later."""
        return None

    def describe_samples(
        self, inputs: Any, rows: list[int] | None = None, *, limit: int = 4
    ) -> list[str]:
        """The prompts of a batch."""
        if not isinstance(inputs, list):
            return []
        prompts = [str(row.get("prompt"))[:200] for row in inputs]
        return [repr(prompt) for prompt in dict.fromkeys(prompts)][:limit]


class OnAnswers(OwnLoss):
    """Base of trainers with one of TRL's preference losses on given completions. Label annealing
    adds its KL at their tokens.

    Args:
        model: the loaded initial model.
        ref_model: the reference model of TRL's loss; None: the initial model in memory, as in TRL.
        args: the settings of TRL's trainer.
        retain: the retention methods. Methods of the data, a cached teacher, and label annealing
            with weights by origin are refused.
        **kwargs: the arguments of TRL's trainer, and of `RetentionMixin`.

    Raises:
        ConfigError: the methods do not fit preference data.
        DataError: `check` refuses the training data.
    """

    trl: ClassVar[Any]
    """TRL's trainer."""
    settings: ClassVar[type[TrainingArguments]]
    """The class of `args`."""
    completions: ClassVar[int]
    """Of an example, each a row of a batch."""
    check: ClassVar[Callable[[Dataset], None]]
    """Looks at every row."""

    def __init__(
        self,
        model: nn.Module,
        ref_model: nn.Module | None = None,
        args: Any = None,
        *,
        retain: Sequence[RetentionMethod] = (),
        **kwargs: Any,
    ) -> None:
        data = kwargs.get("train_dataset")
        if isinstance(data, Dataset):  # of a stream TRL meets the rows one by one
            type(self).check(data)
        _refuse_terms(retain, "with preference data", "here the reference model is the teacher")
        arguments = self.settings(output_dir=self.settings.__name__) if args is None else args
        wrapped = kwargs.get("peft_config") is not None or hasattr(model, "disable_adapter")
        self._shared: nn.Module | None = None
        self._shards = shards(vars(arguments))
        if ref_model is None and not wrapped and not arguments.precompute_ref_log_probs:
            # TRL would load it again from where the model came from, which need not be there, or be
            # as it was
            ref_model = self._shared = freeze_copy(model).requires_grad_(False).eval()
        super().__init__(model=model, ref_model=ref_model, args=arguments, retain=retain, **kwargs)
        self.data_info: dict[str, Any] = {
            "examples": len(data) if isinstance(data, Dataset) else None,
            "packed": False,
        }
        """What a run records of its data."""
        self.data_notes: list[str] = []
        if isinstance(data, Dataset) and arguments.max_length is not None:
            self.data_notes += self._notes_on_lengths(len(data), arguments.max_length)

    def _notes_on_lengths(self, rows: int, longest: int) -> list[str]:
        """How many of the training rows TRL left out, and how many it cuts.

        Raises:
            DataError: it left out all of them.
        """
        dataset: Any = self.train_dataset
        if not len(dataset):
            raise DataError(
                f"No training row is left after truncation to max_length={longest}: every prompt "
                "alone fills the window. Raise max_length or shorten the prompts."
            )
        notes = []
        if left_out := rows - len(dataset):
            notes.append(
                f"{left_out} of {rows} training rows are left out: their prompt alone fills "
                f"max_length={longest} tokens. Raise max_length."
            )
        answers = [name for name in _ANSWER_IDS if name in dataset.column_names]
        cut = 0
        for row in dataset.select_columns(["prompt_ids", *answers]):
            lengths = [len(row[name]) for name in answers]
            cut += len(row["prompt_ids"]) + max(lengths) > longest
        if cut:
            notes.append(
                f"{cut} of {rows} training rows are longer than max_length={longest} tokens and "
                "are cut there. Raise max_length."
            )
        return notes

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Left to the run, as `SFTRetentionTrainer` does."""

    def _frozen_copy(
        self, model: nn.Module, asked: TeacherSettings, cast: torch.dtype | None
    ) -> nn.Module:
        """The reference, where it is this very model and stays whole in this process."""
        plain = asked == dataclasses.replace(TeacherSettings(), kind=asked.kind) and cast is None
        if self._shared is not None and plain and not self._shards:
            return self._shared
        return super()._frozen_copy(model, asked, cast)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """The preference loss of the examples (+ weight * KL), each divided by its own global count
        of the step."""
        policy: Any = model
        if self._token_loss is not None:
            labels = inputs["input_ids"].masked_fill(inputs["completion_mask"] == 0, IGNORE)
            tokens = {name: value for name, value in inputs.items() if name not in _NOT_THE_MODELS}
            request = self._request(tokens, labels, num_items_in_batch)
            policy = _Annealed(model, dataclasses.replace(request, kl_only=True))
        try:
            computed = self.trl.compute_loss(self, policy, inputs, return_outputs)
        except NonFiniteLogits as error:
            raise self._diverged(
                f"the model's logits are not finite ({error})", inputs, error.rows
            ) from error
        loss, outputs = computed if return_outputs else (computed, None)
        if num_items_in_batch is not None:
            loss = loss * (self._examples(inputs) / num_items_in_batch)
        annealed = None
        if self._token_loss is not None:
            annealed = policy.result
            loss = loss + annealed.loss
        self.sums.add(self.mode, annealed, inputs["attention_mask"].sum())
        if num_items_in_batch is not None and self.args.average_tokens_across_devices:
            # DDP averages gradients; the count was global already
            loss = loss * self.accelerator.num_processes
        return (loss, outputs) if return_outputs else loss

    def _examples(self, batch: Mapping[str, Tensor]) -> int:
        return len(batch["input_ids"]) // self.completions

    def _get_num_items_in_batch(
        self, batch_samples: list[dict[str, Any]], device: torch.device
    ) -> Any:
        """The examples of the whole step, and beside them the tokens of the KL."""
        self._kl_items = None
        if not batch_samples:
            return None
        masks = (
            [self._kl_places(batch) for batch in batch_samples]
            if self._token_loss is not None
            else []
        )
        examples = sum(map(self._examples, batch_samples))
        counts = torch.tensor([examples, sum(int(mask.sum()) for mask in masks)], device=device)
        if self.args.average_tokens_across_devices and self.args.world_size > 1:
            counts = self.accelerator.gather(counts[None]).sum(0)
        if masks:
            self._kl_items = counts[1].clamp(min=1)
        return counts[0]

    def _kl_places(self, batch: Mapping[str, Tensor]) -> Tensor:
        assert self._token_loss is not None
        return (
            batch["completion_mask"][:, 1:]
            if self._token_loss.tokens == "trained"
            else successor_mask(dict(batch))
        )


class DPORetentionTrainer(OnAnswers, DPOTrainer):
    """`trl.DPOTrainer` with retention methods. Every loss, precomputed references, LoRA, DDP and
    FSDP2 work as in TRL. Arguments and errors are those of `OnAnswers`; rows are pairs
    (`holdfast.data.pairs`)."""

    trl, settings, completions, check = DPOTrainer, DPOConfig, 2, check_pairs


class KTORetentionTrainer(OnAnswers, KTOTrainer):
    """`trl.KTOTrainer` with retention methods. Arguments and errors are those of `OnAnswers`; rows
    are single answers with a label, good or bad (`holdfast.data.pairs`).

    TRL estimates a KL of its own over each micro-batch, one number that it compares all answers of
    the micro-batch with. holdfast does not change that.
    """

    trl, settings, completions, check = KTOTrainer, KTOConfig, 1, check_judged

    def _compute_kl_logps(self, model: Any, batch: Any) -> Any:
        """TRL's estimate, from the policy as it is: its answers are those of other prompts, not the
        batch's."""
        return super()._compute_kl_logps(
            model.model if isinstance(model, _Annealed) else model, batch
        )


class GRPORetentionTrainer(OnSamples, GRPOTrainer):
    """`trl.GRPOTrainer` with retention methods of the gradient and of the weights.

    Args:
        *args, **kwargs: the arguments of `GRPOTrainer`, and of `RetentionMixin`.
        retain: the retention methods. Methods of the data and of the loss are refused.

    Raises:
        ConfigError: the methods do not fit.
    """

    def __init__(self, *args: Any, retain: Sequence[RetentionMethod] = (), **kwargs: Any) -> None:
        annealing = with_token_loss(retain)
        if annealing:
            raise ConfigError(
                f"retention: {', '.join(annealing)} is not computed on sampled completions. GRPO "
                "has its own KL to the initial model: set beta in GRPOConfig."
            )
        super().__init__(*args, retain=retain, **kwargs)
        data = kwargs.get("train_dataset")
        self.data_info: dict[str, Any] = {
            "examples": len(data) if isinstance(data, Dataset) else None,
            "packed": False,
        }
        """What a run records of its data."""
        self.data_notes: list[str] = []

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Writes nothing; the run writes the card, as with `SFTRetentionTrainer`."""


class OnPolicyTrainer(OnSamples, DistillationTrainer):
    """Trainer for on-policy distillation. The loss is label annealing on the model's own samples,
    without labels.

    Args:
        model: the loaded model to train.
        args: `trl.DistillationConfig`: sampling, lengths and the usual settings. Its `beta` and
            teacher keys have no effect, because label annealing sets divergence and teacher.
        retain: the retention methods. One must be `label_annealing` with a weight above 0. Its
            `reference` is the teacher: an earlier model, or "start" for the model as it is now.
            Methods of the gradient and of the weights may be added.
        train_dataset: rows with `prompt`, text or messages.
        **kwargs: the arguments of `DistillationTrainer`, and of `RetentionMixin`.

    Raises:
        ConfigError: label annealing is missing, covers all tokens, has weights by origin or has a
            cached teacher; or there is a budget or a method of the data.
        DataError: rows have no prompt.
    """

    def __init__(
        self, model: nn.Module, *, retain: Sequence[RetentionMethod] = (), **kwargs: Any
    ) -> None:
        data = kwargs.get("train_dataset")
        if isinstance(data, Dataset) and ("prompt" not in data.column_names or not len(data)):
            raise DataError(
                f"On-policy distillation: expected rows with a prompt, got {len(data)} rows with "
                f"{', '.join(data.column_names) or 'no columns'}."
            )
        terms = token_losses(retain)
        if any(term.tokens == "all" for term in terms):
            raise ConfigError(
                "label_annealing.tokens: on-policy distillation needs tokens: trained, got all. Its "
                "loss is the mean over the tokens that the model wrote, without the prompts."
            )
        if any(term.mask_target for term in terms):
            raise ConfigError(
                "label_annealing.mask_target: expected false in on-policy distillation, got "
                "true. The divergence is the only loss here, and mask_target would leave each "
                "sampled token out of it."
            )
        if not terms:
            raise ConfigError(
                "retention: on-policy distillation needs label_annealing with a weight above 0, got "
                "none. The divergence from the teacher is its only loss."
            )
        if any(isinstance(method, Budget) and not method.off for method in retain):
            raise ConfigError(
                "retention: expected no budget in on-policy distillation, got one: budget adapts "
                "the weight of label_annealing against another loss, but here label_annealing is "
                "the only loss. Leave budget out."
            )
        _refuse_terms(retain, "on sampled text", "sampled text changes in every step")
        super().__init__(model=model, retain=retain, **kwargs)
        self.data_info: dict[str, Any] = {
            "examples": len(data) if isinstance(data, Dataset) else None,
            "packed": False,
        }
        """What a run records of its data."""
        self.data_notes: list[str] = []

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Writes nothing; the run writes the card, as with `SFTRetentionTrainer`."""

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Returns weight * the mean divergence over the sampled tokens of the whole step, over
        accumulation and processes."""
        ids, mask, sampled = _padded_right(inputs)
        tokens = {"input_ids": ids, "attention_mask": mask}
        labels = ids.masked_fill(sampled == 0, IGNORE)
        items = inputs.get("num_items_in_batch") if self.model.training else None
        self._kl_items = None if items is None else items.clamp(min=1)
        request = dataclasses.replace(self._request(tokens, labels, self._kl_items), ce_scale=0.0)
        try:
            outputs = model(**tokens, use_cache=False, holdfast=Sealed(request))
        except NonFiniteLogits as error:
            raise self._diverged(
                f"the model's logits are not finite ({error})", inputs, None
            ) from error
        result: AnnealedLoss = outputs["result"].value
        self.sums.add(self.mode, result, mask.sum())
        loss = result.loss
        if items is not None:
            # DDP averages gradients; the count was global already
            loss = loss * self.accelerator.num_processes
        return (loss, None) if return_outputs else loss


def add_settings(args: TrainingArguments, config: type, **values: Any) -> TrainingArguments:
    """Adds to training arguments of another kind (`SFTConfig`) what a trainer that samples reads of
    its own, in place.

    Args:
        args: of a run.
        config: the trainer's own class of arguments, such as `DistillationConfig`.
        values: other than its defaults, by its names.
    """
    add_defaults(args, config)
    for name, value in values.items():
        setattr(args, name, value)
    args.remove_unused_columns = False  # the prompts are rows that no model takes
    return args


class _Annealed:
    """The policy, whose forward also computes the KL; everything else goes to the model as it is.

    Args:
        model: as the trainer calls it, in its parallel wrappers.
        request: of the KL.
    """

    def __init__(self, model: nn.Module, request: LossRequest) -> None:
        self.model, self.request = model, request
        self.result: AnnealedLoss | None = None

    def __call__(self, **inputs: Any) -> Any:
        if not inputs.get("fused_lm_head"):
            return self.model(**inputs)
        outputs = self.model(**inputs, holdfast=Sealed(self.request))
        self.result = outputs["result"].value
        return outputs["outputs"]


def _padded_right(inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Prompts, which TRL pads on the left, and completions as rows without a gap, `[B, T]`: token
    ids, 1 at tokens, 1 at sampled ones. So positions are those that the samples were drawn at,
    whatever a model makes of padding."""
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
    sampled = torch.cat([torch.zeros_like(inputs["prompt_mask"]), inputs["completion_mask"]], dim=1)
    order = mask.argsort(dim=1, descending=True, stable=True)[:, : int(mask.sum(1).max())]
    return ids.gather(1, order), mask.gather(1, order), sampled.gather(1, order)


def _refuse_terms(retain: Sequence[RetentionMethod], where: str, why: str) -> None:
    """What label annealing has beside rows of text.

    Raises:
        ConfigError: a cached teacher, or weights by origin, although nothing is mixed in here.
    """
    for method in retain:
        term = None if method.off else method.token_loss()
        if term is not None and term.teacher.kind == "cached":
            raise ConfigError(
                f"label_annealing.teacher: expected 'online' or 'adapter_off' {where}, got "
                f"'cached'. A cached teacher stores the states of fixed rows of text, but {why}."
            )
        if term is not None and term.by_origin:
            raise ConfigError(
                f"label_annealing: expected one weight for all tokens {where}, got separate weights "
                f"for {' and '.join(term.by_origin)} tokens. Here, no rows are replayed or "
                "generated, so all tokens have the same origin. Set only `weight`."
            )
