"""What a trainer refuses before the first step: methods that do not fit together, the model, or the
way it is trained."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from holdfast.errors import ConfigError, Problem
from holdfast.ops.heads import check_head
from holdfast.retention.anchor import meaning_problems
from holdfast.retention.protocol import (
    ADAMW,
    ADAMW_NAMES,
    LOSS_TERM,
    TOKEN_WEIGHTS,
    RetentionMethod,
    TokenLoss,
    changes_data,
    problems_below,
)
from holdfast.support.environment import loads_on_one_process_only
from holdfast.training.image_batches import of_the_model, reading_images
from holdfast.training.learning_rates import KEY
from holdfast.training.zero import engine_dtype, problems

if TYPE_CHECKING:
    from holdfast.training.mixin import RetentionMixin


_OWN_BASE = ("auto", "adapter_off")
"""Kinds of teachers that a model with an adapter is itself, with the adapter switched off."""


def token_losses(methods: Sequence[RetentionMethod]) -> list[TokenLoss]:
    """What the methods that are on add to the token loss."""
    terms = []
    for method in methods:
        term = None if method.off else method.token_loss()
        if term is not None:
            terms.append(term)
    return terms


def with_token_loss(methods: Sequence[RetentionMethod]) -> list[str]:
    """The names of the methods that are on and add to the token loss."""
    return [m.name for m in methods if not m.off and m.token_loss() is not None]


def refuse_combinations(methods: Sequence[RetentionMethod], host: type[RetentionMixin]) -> None:
    """
    Raises:
        ConfigError: methods that a run cannot have together, or that a trainer of this class cannot
            have.
    """
    if sum(method.token_loss() is not None for method in methods) > 1:
        raise ConfigError(
            "retention: expected one method that adds a term to the token loss, got several. Give "
            "label_annealing once."
        )
    changing = [method.name for method in methods if changes_data(method)]
    if changing and not host.prepares_data:
        raise ConfigError(
            f"retention: {', '.join(changing)} changes the training data, which {host.__name__} "
            "cannot do. Use SFTRetentionTrainer, or mix the data first with "
            "holdfast.data.mixing.mix_replay."
        )
    weighing = [method.name for method in methods if TOKEN_WEIGHTS in method.needs]
    if len(weighing) > 1:
        raise ConfigError(
            f"retention: expected one method that weights tokens, got {' and '.join(weighing)} "
            "(loss_type: dft is token_weighting of kind dft). Leave one out."
        )
    acting = [method.name for method in methods if method.needs & {TOKEN_WEIGHTS, LOSS_TERM}]
    if acting and host.own_loss:
        raise ConfigError(
            f"retention: {acting[0]} acts on the cross-entropy of tokens, but the loss of "
            f"{host.__name__} does not use it. Leave the method out."
        )


def refuse_unsupported(trainer: RetentionMixin) -> None:
    """
    Raises:
        ConfigError: how the model is trained does not go with the methods, or with a loss that
            holdfast computes; all of it.
    """
    args = trainer.args
    unsupported: list[str] = []
    if trainer.is_deepspeed_enabled:
        unsupported += problems(
            trainer.zero_stage(), trainer.retain, trainer.model, engine_dtype(args)
        )
        if trainer.learning_rate_multipliers:
            unsupported.append(
                f"{KEY}: expected no entries under DeepSpeed, which supports one learning rate for "
                "all parameters. Use FSDP2 or DDP."
            )
    for method in trainer.retain:
        if (
            ADAMW in method.needs
            and trainer.optimizer is None
            and args.optim.value not in ADAMW_NAMES
        ):
            unsupported.append(
                f"optim: expected {' or '.join(ADAMW_NAMES)} with {method.name}, got "
                f"{args.optim.value}. Change optim, or leave {method.name} out."
            )
    if trainer.is_fsdp_enabled and loads_on_one_process_only() and _needs_initial_weights(trainer):
        unsupported.append(
            "fsdp_cpu_ram_efficient_loading: expected false with methods that keep a copy of the "
            "initial weights, got true. If it is true, only one process per machine has these "
            "weights. 'holdfast train' sets it to false. In your own script set "
            "FSDP_CPU_RAM_EFFICIENT_LOADING=false before the model is loaded."
        )
    if not trainer.own_loss and getattr(args, "loss_type", "nll") not in trainer.loss_types:
        unsupported.append(
            "loss_type: expected nll or chunked_nll (or dft, which only SFTRetentionTrainer "
            f"supports), got {args.loss_type!r}. holdfast computes the loss itself."
        )
    if args.label_smoothing_factor:
        unsupported.append(
            f"label_smoothing_factor: expected 0, got {args.label_smoothing_factor}. "
            "label_annealing smooths the labels with the initial model's predictions."
        )
    if unsupported:
        raise ConfigError(unsupported)


def refuse_misfits(trainer: RetentionMixin, named: Mapping[str, Tensor]) -> None:
    """Before anything is copied or computed.

    Raises:
        ConfigError: files of other models, and periods longer than the run; all of them.
    """
    misfits = weights_problems(trainer.retain, named)
    if not misfits:
        misfits = meaning_problems(trainer.retain, trainer.model.config.to_dict())
    misfits += length_problems(trainer.retain, total_steps(trainer))
    if misfits:
        raise ConfigError(misfits)


def weights_problems(
    methods: Iterable[RetentionMethod], named: Mapping[str, Tensor]
) -> list[Problem]:
    """What methods hold on to that does not fit the parameters, by name."""
    problems = []
    for method in methods:
        problems += problems_below(method, method.check_weights(named))
    return problems


def length_problems(methods: Sequence[RetentionMethod], total: int | None) -> list[Problem]:
    """What does not fit a run of `total` optimizer steps."""
    problems = []
    for method in methods:
        problems += problems_below(method, method.check_run(total_steps=total))
    return problems


def total_steps(trainer: Any) -> int | None:
    """Optimizer steps of the run as Trainer will count them, None where the data has no length."""
    args = trainer.args
    if args.max_steps > 0:
        return int(args.max_steps)
    if not hasattr(trainer.train_dataset, "__len__") or args.accelerator_config.split_batches:
        return None
    samples, batch, drops_last = (
        len(trainer.train_dataset),
        args.train_batch_size,
        args.dataloader_drop_last,
    )
    batches = samples // batch if drops_last else -(-samples // batch)
    mine = batches // args.world_size if drops_last else -(-batches // args.world_size)
    return math.ceil(args.num_train_epochs * max(1, -(-mine // args.gradient_accumulation_steps)))


def check_first_batch(trainer: RetentionMixin, inputs: Any, checked: set[bool]) -> None:
    """Computes the first batch, and the first one with images, in both ways: as the model does, and
    by backbone and head.

    Args:
        trainer: whose model is whole; sharded ones are passed over.
        inputs: of the model.
        checked: whether images were in batches that were computed so; gets this one's.

    Raises:
        ModelError: they differ.
    """
    ids = inputs.get("input_ids") if isinstance(inputs, Mapping) else None
    if ids is None or trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        return
    sees = "pixel_values" in inputs
    if sees in checked:
        return
    checked.add(sees)
    device = trainer.args.device
    images: dict[str, Any] = {}
    if sees:
        for name, value in of_the_model(inputs).items():
            if name not in ("input_ids", "labels"):
                images[name] = value.to(device) if isinstance(value, Tensor) else value
    half = trainer.accelerator.mixed_precision != "no"
    with trainer.accelerator.autocast(), reading_images(inputs):
        check_head(trainer.model, ids.to(device), half=half, **images)


def _needs_initial_weights(trainer: RetentionMixin) -> bool:
    """Whether a method copies or uses the weights as they were loaded, before FSDP hands those of
    the first process around."""
    model: nn.Module = trainer.model
    for method in trainer.retain:
        if method.place in ("gradient", "weights"):
            return True
        term = method.token_loss()
        own_base = (
            hasattr(model, "disable_adapter")
            and term is not None
            and term.teacher.kind in _OWN_BASE
        )
        if term is not None and not own_base:
            return True
    return False
