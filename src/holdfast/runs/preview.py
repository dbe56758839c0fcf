"""What a run would train on, row by row: the tokens as the trainer will have them, and which of
them count.

The rows go through the trainer's own preparation and collator, on a stand-in of a few thousand
weights, so that chat templates, tool calls, cutting and masks are what they will be. The model is
not loaded.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.errors import DataError, first_line

if TYPE_CHECKING:
    from holdfast.runs.config import TrainConfig

SAMPLE = 200
"""Rows that are prepared at most."""
_IGNORED = -100


@dataclass(frozen=True, kw_only=True)
class PreparedRow:
    """A row as it is trained on."""

    ids: tuple[int, ...]
    trained: tuple[bool, ...]
    """Which of them the loss counts."""

    def pieces(self, tokenizer: Any) -> list[tuple[str, bool]]:
        """Its text in stretches that are all trained, or all only read."""
        stretches: list[tuple[list[int], bool]] = []
        for token, trained in zip(self.ids, self.trained, strict=True):
            if stretches and stretches[-1][1] == trained:
                stretches[-1][0].append(token)
            else:
                stretches.append(([token], trained))
        return [
            (tokenizer.decode(ids, skip_special_tokens=False), trained)
            for ids, trained in stretches
        ]


@dataclass(frozen=True, kw_only=True)
class Preview:
    """A sample of the rows."""

    rows: tuple[PreparedRow, ...]
    """Those that the trainer keeps."""
    looked: int
    """Rows that were looked at."""
    of: int
    """Rows there are."""
    notes: tuple[str, ...] = ()
    """What the trainer says of the rows that were looked at: how many are cut, or not trained at
    all."""

    @property
    def tokens(self) -> int:
        """Of the sample."""
        return sum(len(row.ids) for row in self.rows)

    @property
    def share(self) -> float:
        """Of the tokens that are trained."""
        return sum(sum(row.trained) for row in self.rows) / max(1, self.tokens)

    @property
    def untrained(self) -> int:
        """Rows that were looked at of which nothing is trained."""
        return self.looked - sum(any(row.trained) for row in self.rows)


def preview(config: TrainConfig, tokenizer: Any, rows: Any, *, sample: int = SAMPLE) -> Preview:
    """Prepares a sample of the training rows as the run would.

    Args:
        config: the run's.
        tokenizer: as `loading.load_tokenizer` gives it, or the processor of
            `loading.load_processor`.
        rows: as `loading.load_training_data` gives them.
        sample: rows at most, evenly over all.

    Raises:
        DataError: the trainer cannot prepare them (a chat template that says not what the
            assistant's words are, ...).
    """
    from jinja2.exceptions import TemplateError

    from holdfast.support.environment import quiet_datasets, quiet_libraries
    from holdfast.training.tiny import build_model
    from holdfast.training.trainers import SFTRetentionTrainer

    count = len(rows)
    places = list(range(count)) if count <= sample else [i * count // sample for i in range(sample)]
    args = copy.copy(config.training)
    plain: dict[str, Any] = {
        "packing": False,
        "padding_free": False,
        "use_liger_kernel": False,
        "gradient_checkpointing": False,
        "activation_offloading": False,
        "bf16": False,
        "fp16": False,
        "tf32": None,
        "torch_compile": False,
        "eval_strategy": "no",
        "load_best_model_at_end": False,
        "report_to": [],
        "push_to_hub": False,
        "deepspeed": None,
        "fsdp": [],
        "fsdp_config": {},
        "optim": "adamw_torch",
        "train_sampling_strategy": "sequential",
        "loss_type": "nll",
        "dataset_num_proc": None,
    }
    with tempfile.TemporaryDirectory() as folder, quiet_libraries(), quiet_datasets(len(places)):
        for name, value in {**plain, "output_dir": folder}.items():
            if hasattr(args, name):
                setattr(args, name, value)
        if config.training.packing and config.training.packing_strategy in ("bfd_split", "wrapped"):
            args.max_length = None  # which cut nothing away
        try:
            trainer = SFTRetentionTrainer(
                model=build_model(max(len(getattr(tokenizer, "tokenizer", tokenizer)), 320)),
                args=args,
                train_dataset=rows.select(places),
                processing_class=copy.deepcopy(tokenizer),
                retain=[],
            )
            prepared = tuple(
                _prepared(trainer.data_collator([row])) for row in trainer.train_dataset
            )
        except (ValueError, RuntimeError, KeyError, TypeError, TemplateError) as error:
            raise DataError(f"The training rows cannot be prepared: {first_line(error)}") from error
    return Preview(rows=prepared, looked=len(places), of=count, notes=tuple(trainer.data_notes))


def _prepared(batch: Any) -> PreparedRow:
    ids, labels = batch["input_ids"][0].tolist(), batch["labels"][0].tolist()
    mask = batch["attention_mask"][0].tolist() if "attention_mask" in batch else [1] * len(ids)
    unmasked: Sequence[int] = [i for i, is_token in enumerate(mask) if is_token]
    return PreparedRow(
        ids=tuple(ids[i] for i in unmasked), trained=tuple(labels[i] != _IGNORED for i in unmasked)
    )
