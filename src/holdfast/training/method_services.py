"""The trainer as a `retention.services.Services`: what methods may ask of a run beside its
parameters."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from holdfast.data.mixing import token_lengths
from holdfast.errors import ConfigError
from holdfast.ops.annealing import IGNORE
from holdfast.retention.protocol import ActiveMethod
from holdfast.retention.services import StepFigures, trainable_parameters
from holdfast.training.forward import LossRequest, Sealed
from holdfast.training.image_batches import of_the_model
from holdfast.training.zero import is_partitioned

if TYPE_CHECKING:
    from datasets import Dataset

    from holdfast.training.mixin import RetentionMixin

EVALUATED = {"cpu": 4096, "cuda": 32768}
"""Tokens of one batch of held-out rows, padding included, by kind of device."""


class TrainerServices:
    """See `retention.services.Services`.

    Args:
        trainer: complete; its model is the start model.
        say: gets one line at a time, on the first process.
    """

    def __init__(self, trainer: RetentionMixin, say: Callable[[str], None]) -> None:
        self._trainer, self._say = trainer, say

    def method(self, name: str) -> ActiveMethod | None:
        """The first of that name, as `Services.method`; methods that are off are not in the run."""
        for method, active in zip(self._trainer.retain, self._trainer.active, strict=True):
            if method.name == name:
                return active
        return None

    def say(self, text: str) -> None:
        """See `Services.say`; any process may call it."""
        if self._trainer.is_world_process_zero():
            self._say(text)

    def folder(self) -> Path | None:
        """`output_dir`, which need not exist yet."""
        return Path(self._trainer.args.output_dir) if self._trainer.args.output_dir else None

    def first(self) -> bool:
        """True in process 0 of the whole run, and in a run of one process."""
        return bool(self._trainer.is_world_process_zero())

    def rows(self, data: str) -> Dataset:
        """See `Services.rows`.

        Raises:
            ConfigError: the trainer takes tokenised data only and cannot read any.
            DataError: the data cannot be read, or holds no rows.
        """
        prepare = getattr(self._trainer, "_prepare_other", None)
        if prepare is None:
            raise ConfigError(
                f"{data}: {type(self._trainer).__name__} cannot read additional data. Use "
                "SFTRetentionTrainer. Fisher information can be computed beforehand ('holdfast "
                "fisher')."
            )
        rows, window = (
            prepare(data, self._trainer.processing_class, self._trainer.args),
            self._window(),
        )
        if "images" in rows.column_names or int(token_lengths(rows).max(initial=0)) <= window:
            return rows
        return rows.map(lambda row: {name: row[name][:window] for name in ("input_ids", "labels")})

    @torch.no_grad()
    def mean_loss(self, rows: Dataset) -> StepFigures:
        """See `Services.mean_loss`."""
        trainer = self._trainer
        trainer._prepare_more(rows)
        trainer.publish_weights()
        model, total = (
            trainer.model,
            torch.zeros(8, dtype=torch.float64, device=trainer.args.device),
        )
        training = model.training
        model.eval()
        try:
            for inputs, counts in self._batches(rows):
                labels = inputs.pop("labels")
                with trainer.accelerator.autocast():
                    outputs = model(
                        **inputs,
                        use_cache=False,
                        holdfast=Sealed(trainer._request(inputs, labels, None)),
                    )
                result = outputs["result"].value
                if counts:
                    total[:4] += torch.stack(
                        [result.ce_sum, result.kl_sum, result.ce_count, result.kl_count]
                    ).double()
        finally:
            model.train(training)
            _reshard(model)
        return trainer.figures_of(trainer.sums.totals(total))

    def sample_gradients(
        self, rows: Dataset, *, sampled: bool, seed: int
    ) -> Iterator[tuple[int, Mapping[str, Tensor]]]:
        """See `Services.sample_gradients`.

        Raises:
            ConfigError: the model is to be sharded, so that no process can hold it whole.
        """
        trainer = self._trainer
        if trainer.is_fsdp_enabled or is_partitioned(trainer.model):
            raise ConfigError(
                "Gradients of single samples need the whole model in one process, but this run "
                "shards the model. Compute the Fisher information beforehand ('holdfast fisher')."
            )
        yield from sample_gradients(
            trainer.model, self._single_rows(rows), sampled=sampled, seed=seed
        )

    def sum_(self, tensors: Mapping[str, Tensor]) -> None:
        """Sums tensors over all ranks, in place; all ranks have to call it."""
        if self._trainer.args.world_size > 1:
            for tensor in tensors.values():
                tensor.copy_(self._trainer.accelerator.reduce(tensor, "sum"))

    def gathered(self, values: Tensor) -> Tensor:
        """See `Services.gathered`."""
        if self._trainer.args.world_size == 1:
            return values
        of_ranks: list[Any] = [None] * self._trainer.args.world_size
        torch.distributed.all_gather_object(of_ranks, values.tolist())
        return values.new_tensor(list(itertools.chain(*of_ranks)))

    def _single_rows(self, rows: Dataset) -> Iterator[tuple[int, dict[str, Tensor]]]:
        args = self._trainer.args
        for index in range(args.process_index, len(rows), args.world_size):
            yield index, self._batch(rows, [index])

    def _batches(self, rows: Dataset) -> Iterator[tuple[dict[str, Tensor], bool]]:
        """Batches, and whether they count. The same number on every rank: a forward of a sharded
        model takes part in collectives, so a rank without rows left gets one that does not
        count."""
        args = self._trainer.args
        if "images" in rows.column_names:
            size = args.per_device_eval_batch_size
        else:
            longest = min(int(token_lengths(rows).max(initial=1)), self._window())
            size = max(1, EVALUATED.get(args.device.type, 32768) // max(longest, 1))
        for start in range(0, len(rows), size * args.world_size):
            mine = list(
                range(
                    start + args.process_index,
                    min(start + size * args.world_size, len(rows)),
                    args.world_size,
                )
            )
            yield self._batch(rows, mine or [0]), bool(mine)

    def _batch(self, rows: Dataset, places: Sequence[int]) -> dict[str, Tensor]:
        """Some of the rows as a batch; those with images as the trainer makes one."""
        device = self._trainer.args.device
        if "images" not in rows.column_names:
            return padded([rows[i] for i in places], self._window(), device)
        batch = self._trainer.data_collator([rows[i] for i in places])
        batch = of_the_model(batch)  # what a method asks about counts once
        for name, value in batch.items():
            if isinstance(value, Tensor):
                batch[name] = value.to(device)
        return batch

    def _window(self) -> int:
        return int(getattr(self._trainer.args, "max_length", None) or 1 << 30)


def padded(rows: list[dict[str, Any]], window: int, device: torch.device) -> dict[str, Tensor]:
    """Tokenised rows as a batch `[B, T]` of `input_ids`, `attention_mask` and `labels`, padded on
    the right and cut to `window` tokens."""
    shape = len(rows), max(min(len(row["input_ids"]), window) for row in rows)
    ids = torch.zeros(shape, dtype=torch.long)
    labels = torch.full(shape, IGNORE, dtype=torch.long)
    mask = torch.zeros(shape, dtype=torch.long)
    for number, row in enumerate(rows):
        length = min(len(row["input_ids"]), window)
        ids[number, :length] = torch.as_tensor(row["input_ids"][:length])
        labels[number, :length] = torch.as_tensor(row["labels"][:length])
        mask[number, :length] = 1
    return {
        "input_ids": ids.to(device),
        "attention_mask": mask.to(device),
        "labels": labels.to(device),
    }


def sample_gradients(
    model: nn.Module, batches: Iterator[tuple[int, dict[str, Tensor]]], *, sampled: bool, seed: int
) -> Iterator[tuple[int, Mapping[str, Tensor]]]:
    """Gradients of the summed negative log-likelihood of one sample after the other, without
    dropout.

    Args:
        model: a causal language model with `install_forward`, whole, outside any parallel wrapper.
        batches: each row's number, and the batch that `padded` makes of it.
        sampled: labels drawn from the model's own distribution at each trained place, instead of
            the given ones.
        seed: of the draws, together with the row's number, so that they do not depend on how rows
            are dealt out.

    Yields:
        The row's number of trained tokens, and the gradients of the trainable parameters by name;
        valid until the next row, gone from `p.grad` after.
    """
    parameters = trainable_parameters(model)
    gradients_before = {name: p.grad for name, p in parameters.items()}
    training, generator = model.training, torch.Generator()
    model.eval()
    try:
        for number, inputs in batches:
            labels = inputs.pop("labels")
            if sampled:
                generator.manual_seed(Random(f"{seed} {number}").getrandbits(63))
                labels = _drawn(model, inputs, labels, generator)
            for parameter in parameters.values():
                parameter.grad = None
            with torch.enable_grad():
                outputs = model(
                    **inputs,
                    use_cache=False,
                    holdfast=Sealed(LossRequest(labels_BT=labels, ce_scale=1.0)),
                )
                result = outputs["result"].value
                result.loss.backward()
            yield (
                int(result.ce_count),
                {name: p.grad for name, p in parameters.items() if p.grad is not None},
            )
    finally:
        for name, parameter in parameters.items():
            parameter.grad = gradients_before[name]
        model.train(training)


@torch.no_grad()
def _drawn(
    model: nn.Module, inputs: dict[str, Tensor], labels: Tensor, generator: torch.Generator
) -> Tensor:
    """Labels from the model's own distribution, at the places that have one."""
    logits = model(**inputs, use_cache=False).logits[:, :-1]
    places = labels[:, 1:] != IGNORE
    drawn = labels.clone()
    probabilities = logits[places].float().softmax(-1).cpu()
    if len(probabilities):
        drawn[:, 1:][places] = torch.multinomial(probabilities, 1, generator=generator)[:, 0].to(
            labels.device
        )
    return drawn


def _reshard(model: nn.Module) -> None:
    """A forward without a backward leaves gathered copies in the place of FSDP2's shards; changes
    to those would be lost."""
    for module in model.modules():
        if any(base.__name__ == "FSDPModule" for base in type(module).__mro__):
            module.reshard()  # type: ignore[operator]
