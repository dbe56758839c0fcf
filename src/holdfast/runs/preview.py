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
from holdfast.runs.trainers import TRAINERS

if TYPE_CHECKING:
    from holdfast.runs.config import TrainConfig

SAMPLE = 200
"""Rows that are shown and counted at most."""
MOST = 20_000
"""Rows that are prepared at most, and looked at for what is cut, dropped or doubled."""
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
    noted: int = 0
    """Rows that the notes are about."""
    notes: tuple[str, ...] = ()
    """What the trainer says of them: how many are cut, or not trained at all."""

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


def preview(
    config: TrainConfig, tokenizer: Any, rows: Any, *, vocabulary: int | None = None
) -> Preview:
    """Prepares the training rows as the run would, `MOST` of them, and shows a sample.

    Args:
        config: the run's.
        tokenizer: as `loading.load_tokenizer` gives it, or the processor of
            `loading.load_processor`.
        rows: as `loading.load_training_data` gives them.
        vocabulary: rows of the model's embedding; None: not known.

    Raises:
        DataError: the trainer cannot prepare them (a chat template that says not what the
            assistant's words are, ...), or they hold tokens that the embedding has not.
    """
    from jinja2.exceptions import TemplateError

    from holdfast.support.environment import forgotten_datasets, quiet_datasets, quiet_libraries

    count = len(rows)
    with (
        tempfile.TemporaryDirectory() as folder,
        quiet_libraries(),
        quiet_datasets(min(count, MOST)),
        forgotten_datasets(),
    ):
        try:
            trainer = _trainer(config, tokenizer, _evenly(rows, MOST), folder)
            sample = trainer
            if count > SAMPLE:
                sample = _trainer(config, tokenizer, _evenly(rows, SAMPLE), folder)
            prepared = tuple(_prepared(sample.data_collator([row])) for row in sample.train_dataset)
        except (ValueError, RuntimeError, KeyError, TypeError, TemplateError) as error:
            raise DataError(f"The training rows cannot be prepared: {first_line(error)}") from error
    if vocabulary is not None:
        _refuse_beyond(trainer.train_dataset, tokenizer, vocabulary)
    return Preview(
        rows=prepared,
        looked=min(count, SAMPLE),
        of=count,
        noted=min(count, MOST),
        notes=tuple(trainer.data_notes),
    )


def pair_notes(config: TrainConfig, tokenizer: Any, rows: Any) -> list[str]:
    """What TRL's trainer of pairs or judged answers cuts and leaves out, of `MOST` rows.

    Args:
        config, tokenizer, rows: as of `preview`.

    Raises:
        DataError: it cannot prepare them, or leaves none.
    """
    from jinja2.exceptions import TemplateError

    from holdfast.support.environment import forgotten_datasets, quiet_datasets, quiet_libraries

    sample = _evenly(rows, MOST)
    with (
        tempfile.TemporaryDirectory() as folder,
        quiet_libraries(),
        quiet_datasets(len(sample)),
        forgotten_datasets(),
    ):
        try:
            notes = _trainer(config, tokenizer, sample, folder).data_notes
        except (ValueError, RuntimeError, KeyError, TypeError, TemplateError) as error:
            raise DataError(f"The training rows cannot be prepared: {first_line(error)}") from error
    before = "" if len(sample) == len(rows) else f"by {len(sample):,} rows: "
    return [f"{before}{note}" for note in notes]


def _evenly(rows: Any, most: int) -> Any:
    """Rows evenly over all of them."""
    count = len(rows)
    return rows.select([index * count // most for index in range(most)]) if count > most else rows


def _trainer(config: TrainConfig, tokenizer: Any, rows: Any, folder: str) -> Any:
    """The run's trainer with these rows, on a stand-in for the model.

    Args:
        folder: that it may write to.
    """
    from holdfast.training import preferences
    from holdfast.training.tiny import build_model
    from holdfast.training.trainers import SFTRetentionTrainer

    kind = TRAINERS[config.holdfast.trainer]
    host = getattr(preferences, kind.host) if kind.host else SFTRetentionTrainer
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
        "save_strategy": "no",
        "load_best_model_at_end": False,
        "report_to": [],
        "push_to_hub": False,
        "deepspeed": None,
        "fsdp": [],
        "fsdp_config": {},
        "optim": "adamw_torch",
        "train_sampling_strategy": "sequential",
        "precompute_ref_log_probs": False,
        "sync_ref_model": False,
        "dataset_num_proc": None,
    }
    if not kind.host:
        plain["loss_type"] = "nll"
    for name, value in {**plain, "output_dir": folder}.items():
        if hasattr(args, name):
            setattr(args, name, value)
    if getattr(config.training, "packing", False) and config.training.packing_strategy in (
        "bfd_split",
        "wrapped",
    ):
        args.max_length = None  # which cut nothing away
    return host(
        model=build_model(max(len(getattr(tokenizer, "tokenizer", tokenizer)), 320)),
        args=args,
        train_dataset=rows,
        processing_class=copy.deepcopy(tokenizer),
        retain=[],
    )


def _refuse_beyond(rows: Any, tokenizer: Any, vocabulary: int) -> None:
    """
    Raises:
        DataError: tokens of the rows have no row in the embedding.
    """
    if "input_ids" not in rows.column_names:
        return
    beyond: set[int] = set()
    for table in rows.select_columns("input_ids").with_format("arrow").iter(batch_size=10_000):
        ids = table.column(0).combine_chunks().flatten().to_numpy(zero_copy_only=False)
        beyond.update(ids[ids >= vocabulary].tolist())
    if beyond:
        words = getattr(tokenizer, "tokenizer", tokenizer)
        tokens = ", ".join(repr(words.decode([token])) for token in sorted(beyond)[:8])
        raise DataError(
            f"The training rows have tokens beyond the {vocabulary:,} rows of the model's "
            f"embedding: {tokens}. Use the model's own tokenizer, or resize the model "
            "(resize_token_embeddings) and save it."
        )


def _prepared(batch: Any) -> PreparedRow:
    ids, labels = batch["input_ids"][0].tolist(), batch["labels"][0].tolist()
    mask = batch["attention_mask"][0].tolist() if "attention_mask" in batch else [1] * len(ids)
    unmasked: Sequence[int] = [i for i, is_token in enumerate(mask) if is_token]
    return PreparedRow(
        ids=tuple(ids[i] for i in unmasked), trained=tuple(labels[i] != _IGNORED for i in unmasked)
    )
