"""The trainers that host retention methods.

`SFTRetentionTrainer` takes TRL's data preparation (chat templates, prompt-completion masks,
assistant masks, packing) and nothing else of it: the loss, the step and the checkpoints are the
mixin's; `loss_type: dft` is token weighting of that kind. `RetentionTrainer` is plain
`transformers.Trainer` for tokenised data.

All that this project knows of TRL's internals is in this file: `_prepare_dataset`, its
`completion_only_loss` attribute, the vision collator, and the model card hook.
"""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from datasets import Dataset, IterableDataset
from torch import nn
from transformers import Trainer
from trl import SFTTrainer
from trl.trainer.sft_trainer import DataCollatorForVisionLanguageModeling

from holdfast.data.formats import rows_by_name
from holdfast.data.mixing import NEW, ORIGIN, marked, token_lengths
from holdfast.data.packing import pack_dataset
from holdfast.errors import ConfigError, DataError
from holdfast.ops.heads import causal_lm
from holdfast.retention.methods.token_weighting import TokenWeighting
from holdfast.retention.protocol import (
    INITIAL_MODEL,
    PACKED_WHOLE,
    RetentionMethod,
    changes_data,
    packing_problem,
    stacked,
)
from holdfast.support.environment import quiet_datasets
from holdfast.training.data_services import StartModel, TrainerDataServices
from holdfast.training.document_attention import (
    is_leak,
    model_problem,
    packing_refusal,
    use_document_attention,
)
from holdfast.training.documents_alone import alone_note, may_run_alone, run_documents_alone
from holdfast.training.image_batches import COLUMNS, ImageCollator
from holdfast.training.mixin import RetentionMixin
from holdfast.training.origins import OriginCollator

logger = logging.getLogger(__name__)


LoadRows = Callable[[str], tuple[Dataset, str]]
"""Loads a data file or hub id as one of the standard column layouts, with its format's name."""


class RetentionTrainer(RetentionMixin, Trainer):
    """`transformers.Trainer` with retention methods, for tokenised data (`input_ids`, `labels`)."""


class SFTRetentionTrainer(RetentionMixin, SFTTrainer):
    """`trl.SFTTrainer` with retention methods: TRL prepares the data, holdfast computes the loss.

    Args:
        load_rows: reads the replay data that a method names; None: the reader of `holdfast train`.
        say: called with a line when a method makes data, on the first process.
        *args, **kwargs: the arguments of `SFTTrainer`, and `retain`.
    """

    prepares_data = True
    loss_types = ("nll", "chunked_nll", "dft")

    def __init__(
        self,
        *args: Any,
        load_rows: LoadRows | None = None,
        retain: Any = (),
        say: Callable[[str], None] = logger.info,
        **kwargs: Any,
    ) -> None:
        self._load_rows, self._say = load_rows, say
        arguments = kwargs.get("args", args[1] if len(args) > 1 else None)
        if getattr(arguments, "loss_type", "nll") == "dft":
            retain = [*retain, TokenWeighting(kind="dft")]
        datasets = [kwargs.get("train_dataset"), kwargs.get("eval_dataset")]
        columns = [
            getattr(rows, "column_names", None) or () for rows in datasets if rows is not None
        ]
        if arguments is not None and columns and all("labels" in names for names in columns):
            arguments.assistant_only_loss = False  # TRL would ask the template for its marks
        self._data_methods: tuple[RetentionMethod, ...] = tuple(m for m in retain if not m.off)
        self.data_info: dict[str, Any] = {}
        self.data_notes: list[str] = []
        model = kwargs.get("model", args[0] if args else None)
        self._start: StartModel | None = None
        if any(
            INITIAL_MODEL in m.needs for m in self._data_methods
        ):  # before anything is put into it
            first = arguments is None or arguments.process_index == 0
            self._start = StartModel(model, adapter=kwargs.get("peft_config"), first=first)
        self._confine_attention(model, arguments)  # before a teacher is copied from the model
        super().__init__(*args, retain=retain, **kwargs)

    def _complete_data(self) -> None:
        """Rows with images are made into tokens batch by batch: methods mix them as they are."""
        if not self._is_vision_dataset:
            if self.marks_origins:
                marking: Any = OriginCollator(self.data_collator)  # type: ignore[has-type]
                self.data_collator = marking
            return
        if self._token_loss is not None and self._token_loss.teacher.kind == "cached":
            raise ConfigError(
                "label_annealing.teacher: expected 'online' or 'adapter_off' for rows with images, "
                "got 'cached', which looks up states by a row's tokens and ignores its images."
            )
        collate: Any = self.data_collator  # type: ignore[has-type]
        if isinstance(collate, DataCollatorForVisionLanguageModeling):
            self.data_collator = ImageCollator(
                collate, completion_only=self.args.completion_only_loss
            )
        rows: Any = self.train_dataset  # type: ignore[has-type]
        if not isinstance(rows, Dataset):
            return
        self.data_info.update(examples=len(rows), packed=False)
        self.train_dataset = self._with_methods(rows, self.processing_class, self.args)

    def _set_signature_columns_if_needed(self) -> None:
        if self._signature_columns is None and self._is_vision_dataset:  # type: ignore[has-type]
            self._signature_columns = [*COLUMNS, "image"]
        super()._set_signature_columns_if_needed()
        if self.marks_origins and ORIGIN not in self._signature_columns:
            self._signature_columns = [*self._signature_columns, ORIGIN]

    def _confine_attention(self, model: Any, args: Any) -> None:
        """Packed documents attend within themselves, as TRL has it; here also without a dense mask
        where attention is torch's own.

        Raises:
            ConfigError: they do not stay apart in this model.
        """
        packed = (
            getattr(args, "packing", False)
            and getattr(args, "packing_strategy", "bfd") in PACKED_WHOLE
        )
        if not isinstance(model, nn.Module) or not (packed or getattr(args, "padding_free", False)):
            return
        uncompiled = not getattr(args, "torch_compile", False)
        if uncompiled and use_document_attention(model):
            return
        problem = model_problem(model, own=uncompiled)
        if is_leak(problem) and may_run_alone(vars(args)):
            run_documents_alone(model)
            self.data_notes.append(f"{alone_note(type(causal_lm(model)).__name__)}.")
            return
        if problem:
            raise ConfigError([packing_refusal("packing" if packed else "padding_free", problem)])
        used = str(getattr(causal_lm(model).config.get_text_config(), "_attn_implementation", ""))
        if used in ("sdpa", "eager"):
            self.data_notes.append(
                f"With attn_implementation: {used}, attention within packed documents uses a dense "
                "mask over the whole batch. Losses are correct, but time and memory grow with the "
                "square of the tokens in a batch. Use attn_implementation: "
                f"{'sdpa or ' if used == 'eager' else ''}flash_attention_2, or a smaller "
                "per_device_train_batch_size with accumulation."
            )

    def _prepare_dataset(
        self,
        dataset: Any,
        processing_class: Any,
        args: Any,
        packing: bool,
        formatting_func: Any,
        dataset_name: str,
    ) -> Any:
        if dataset_name == "train" and isinstance(dataset, IterableDataset):
            return self._prepare_stream(dataset, processing_class, args, packing, formatting_func)
        if dataset_name != "train" or not isinstance(dataset, Dataset) or self._is_vision_dataset:
            return super()._prepare_dataset(
                dataset, processing_class, args, packing, formatting_func, dataset_name
            )
        tokenised = self._tokenise(dataset, processing_class, args, formatting_func)
        tokenised = self._with_methods(tokenised, processing_class, args)
        self._note_lengths(tokenised, args, packing)
        if packing and args.max_length is not None and args.packing_strategy in PACKED_WHOLE:
            return self._pack(tokenised, args)
        if (
            not packing
            and not getattr(args, "shuffle_dataset", False)
            and _is_ready(tokenised, args.max_length)
        ):
            return tokenised  # TRL would rewrite every row, to leave it as it is
        prepared = super()._prepare_dataset(
            tokenised, processing_class, args, packing, None, dataset_name
        )
        if len(prepared) == 0:
            raise DataError(
                f"No training example is left after truncation to max_length={args.max_length}: "
                "every prompt alone fills the window. Raise max_length or shorten the prompts."
            )
        return prepared

    def _with_methods(self, rows: Dataset, processing_class: Any, args: Any) -> Dataset:
        """The rows with what methods mix in."""
        services = TrainerDataServices(
            self._start,
            processing_class=processing_class,
            args=args,
            prepare=lambda name: self._prepare_other(name, processing_class, args),
            new_rows=rows,
            say=self._say,
        )
        if getattr(args, "packing", False) and (
            problems := packing_problem(self.retain, args.packing_strategy)
        ):
            raise ConfigError(problems)
        if self.marks_origins:
            rows = marked(rows, NEW)
        for method in stacked(self._data_methods):
            rows, info = method.training_data(rows, services)
            if info:
                self.data_info.setdefault("mixed", []).append({"method": method.name, **info})
        return rows

    def _prepare_stream(
        self,
        dataset: IterableDataset,
        processing_class: Any,
        args: Any,
        packing: bool,
        formatting_func: Any,
    ) -> IterableDataset:
        """Rows that are read, tokenised and packed (a thousand at a time) while they are trained
        on, again and again.

        Without an end: at one, Trainer would begin another epoch with the steps that are left of
        it, and a run that is continued behind it would skip as many rows as were read in all, and
        begin at another place.

        Raises:
            ConfigError: a method that mixes rows.
            DataError: no row is left.
        """
        if mixing := [m.name for m in self._data_methods if changes_data(m)]:
            raise ConfigError(
                f"retention: {', '.join(mixing)} needs the number of rows to mix in, but the data "
                "is streamed. Turn streaming off, or leave the method out."
            )
        once = super()._prepare_dataset(
            dataset, processing_class, args, packing, formatting_func, "train"
        )
        if next(iter(once), None) is None:  # or looking for one would never end
            raise DataError(
                f"No training example is left after truncation to max_length={args.max_length}: "
                "every prompt alone fills the window. Raise max_length or shorten the prompts."
            )
        self.data_info.update(streamed=True, packed=bool(packing))
        return once.repeat(None)

    def _pack(self, tokenised: Dataset, args: Any) -> Dataset:
        """Windows of whole documents. TRL packs a thousand documents at a time; all together leave
        less of the windows empty."""
        split = args.packing_strategy == "bfd_split"
        with quiet_datasets(len(tokenised)):
            packed, info = pack_dataset(tokenised, args.max_length, split=split, seed=args.seed)
        self.data_info.update(
            windows=info.windows, window=info.window, wasted=info.wasted, split=info.split
        )
        if trained_tokens(packed) == 0:
            raise DataError(
                f"No training example is left after truncation to max_length={args.max_length}: "
                "every prompt alone fills the window. Raise max_length or shorten the prompts."
            )
        if info.skipped:
            self.data_notes.append(
                f"{info.skipped} training examples of fewer than two tokens are left out."
            )
        if info.wasted > 0.01 and info.windows > 1:
            self.data_notes.append(
                f"Packing leaves {info.wasted:.1%} of the token positions empty in the "
                f"{info.windows} windows of {info.window} tokens, because the {info.documents} "
                "documents do not fill the windows exactly."
            )
        return packed

    def _tokenise(
        self, dataset: Dataset, processing_class: Any, args: Any, formatting_func: Any
    ) -> Dataset:
        """TRL's tokenisation and label masks, without truncation or packing: methods mix whole
        examples."""
        uncut = copy.copy(args)
        uncut.max_length, uncut.shuffle_dataset = None, False
        tokenised = super()._prepare_dataset(
            dataset, processing_class, uncut, False, formatting_func, "train"
        )
        return tokenised.select_columns(["input_ids", "labels"])

    def _prepare_other(self, name: str, processing_class: Any, args: Any) -> Dataset:
        """Other data (replay), tokenised by its own format: TRL decides completion-only loss from
        the first training sample. Rows with images stay as they are."""
        rows, _ = (self._load_rows or rows_by_name(processing_class))(name)
        if "images" in rows.column_names:
            if not self._is_vision_dataset:  # type: ignore[has-type]
                raise DataError(
                    f"{name}: these rows have images, but the training rows do not. Use rows "
                    "without images, or add rows with images to the training data."
                )
            return rows
        before: bool = self.completion_only_loss  # type: ignore[has-type]
        if args.completion_only_loss is None:
            self.completion_only_loss = (
                "prompt" in rows.column_names and "completion" in rows.column_names
            )
        try:
            return self._tokenise(rows, processing_class, args, None)
        finally:
            self.completion_only_loss = before

    def _note_lengths(self, tokenised: Dataset, args: Any, packing: bool) -> None:
        """Counts what is trained on: examples are cut to `max_length` (without packing by TRL,
        which then leaves out those of which nothing is trained any more)."""
        lengths = token_lengths(tokenised)
        splits = packing and args.packing_strategy in ("bfd_split", "wrapped")
        limit = None if splits else args.max_length
        trained = trained_by_row(
            tokenised, limit, end=not packing and args.truncation_mode == "keep_end"
        )
        left_out = np.zeros(len(lengths), bool) if packing or limit is None else trained == 0
        cut_lengths = lengths if limit is None else np.minimum(lengths, limit)
        self.data_info.update(
            examples=int((~left_out).sum()),
            untrained_examples=int((trained == 0).sum()),
            tokens=int(cut_lengths[~left_out].sum()),
            trained_tokens=int(trained.sum()),
            packed=bool(packing),
        )
        if untrained := self.data_info["untrained_examples"]:
            self.data_notes.append(
                f"{untrained} of {len(lengths)} training examples have no trained tokens. All their "
                "tokens are cut off (max_length) or masked (labels, assistant_only_loss, "
                "completion_only_loss)."
            )
        if twice := _rows_with_two_bos(tokenised, self._tokenizer.bos_token_id):
            self.data_notes.append(
                f"{twice} of {len(lengths)} training examples begin with two "
                f"{self._tokenizer.bos_token}: their text has one, and the tokenizer adds "
                "another. Remove it from the data or from the chat template."
            )
        if others := _rows_with_other_labels(tokenised):
            self.data_notes.append(
                f"{others} of {len(lengths)} training examples have labels that differ from "
                "their tokens. A label has to be the token itself (the trainer shifts labels) "
                "or -100."
            )
        if args.max_length is not None:
            longer = int((lengths > args.max_length).sum())
            if longer and not splits:
                self.data_notes.append(
                    f"{longer} of {len(lengths)} training examples are longer than "
                    f"max_length={args.max_length} tokens (longest: {int(lengths.max())}) and are "
                    "cut there. Raise max_length, or use packing with packing_strategy: bfd_split "
                    "to keep their ends."
                )

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Writes nothing. The run writes the card at its end, with the retention method and the
        figures."""

    def _send_telemetry(self) -> None:
        """Sent only when the user has turned it on by HF_HUB_DISABLE_TELEMETRY=0."""
        if os.environ.get("HF_HUB_DISABLE_TELEMETRY", "1").lower() in ("0", "false"):
            super()._send_telemetry()


def trained_tokens(tokenised: Dataset) -> int:
    """Labels that are not -100, counted in Arrow batches so that a large data set never becomes
    Python lists."""
    count = 0
    for labels, _ in _labels(tokenised):
        count += int(np.count_nonzero(labels != -100))
    return count


def _rows_with_other_labels(tokenised: Dataset) -> int:
    """Rows with a label that is neither its token nor -100."""
    count = 0
    for table in (
        tokenised.select_columns(["input_ids", "labels"])
        .with_format("arrow")
        .iter(batch_size=10_000)
    ):
        ids = table.column("input_ids").combine_chunks()
        labels = table.column("labels").combine_chunks()
        tokens = ids.flatten().to_numpy(zero_copy_only=False)
        trained = labels.flatten().to_numpy(zero_copy_only=False)
        other = np.flatnonzero((trained != -100) & (trained != tokens))
        ends = np.cumsum(labels.value_lengths().to_numpy(zero_copy_only=False))
        count += len(np.unique(np.searchsorted(ends, other, side="right")))
    return count


def _rows_with_two_bos(tokenised: Dataset, bos: int | None) -> int:
    """Rows that begin with the same token twice, that of the beginning."""
    count = 0
    for table in (
        tokenised.select_columns(["input_ids"]).with_format("arrow").iter(batch_size=10_000)
    ):
        for chunk in table.column(0).chunks:
            lengths = chunk.value_lengths().to_numpy(zero_copy_only=False)
            ids = chunk.flatten().to_numpy(zero_copy_only=False)
            starts = (np.cumsum(lengths) - lengths)[lengths > 1]
            count += (
                int(np.count_nonzero((ids[starts] == bos) & (ids[starts + 1] == bos)))
                if bos is not None
                else 0
            )
    return count


def trained_by_row(tokenised: Dataset, limit: int | None, *, end: bool = False) -> np.ndarray:
    """Labels of each row that are not -100, shape [rows], int64.

    Args:
        tokenised: with `labels`.
        limit: tokens that a row is cut to; None: it is not.
        end: whether the last ones are kept.
    """
    parts = [np.zeros(0, np.int64)]
    for labels, lengths in _labels(tokenised):
        sums = np.concatenate([[0], np.cumsum(labels != -100)])
        stops = np.cumsum(lengths)
        cut_lengths = lengths if limit is None else np.minimum(lengths, limit)
        starts = stops - cut_lengths if end else stops - lengths
        parts.append(sums[starts + cut_lengths] - sums[starts])
    return np.concatenate(parts)


def _is_ready(tokenised: Dataset, max_length: int | None) -> bool:
    """Whether no row is longer than a window, and none has nothing to train on."""
    if max_length is not None and int(token_lengths(tokenised).max()) > max_length:
        return False
    for labels, lengths in _labels(tokenised):
        if not len(lengths) or not lengths.all():
            return False
        trained = np.add.reduceat(labels != -100, np.cumsum(lengths) - lengths)
        if not trained.all():
            return False
    return True


def _labels(tokenised: Dataset) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The labels of some rows after one another, and how many each row has."""
    for table in tokenised.select_columns(["labels"]).with_format("arrow").iter(batch_size=10_000):
        for chunk in table.column(0).chunks:
            flat = chunk.flatten().to_numpy(zero_copy_only=False)
            yield flat, chunk.value_lengths().to_numpy(zero_copy_only=False)
