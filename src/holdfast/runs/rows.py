"""What the reader of a run has to know of its rows before it begins: what of them is not read, and
what the chat template makes of them, and whether they fill a batch."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError, Problem
from holdfast.retention.protocol import changes_data

if TYPE_CHECKING:
    from holdfast.data.unread import Counts
    from holdfast.runs.config import TrainConfig

_LOOKED = 500
"""Conversations that are written by the chat template at most."""


def check_batches(config: TrainConfig, rows: Any) -> None:
    """Looks whether the rows fill a batch, where one that is not full is left out: a run would end
    without a step. Rows of a stream, packed rows and those that a method mixes others into are
    counted later.

    Raises:
        ConfigError: they do not.
    """
    args = config.training
    mixes = any(changes_data(method) for method in config.retention if not method.off)
    if not hasattr(rows, "__len__") or getattr(args, "packing", False) or mixes:
        return
    needed, why = 1, "Every step needs rows"
    if config.holdfast.trainer == "grpo":
        needed = args.generation_batch_size // args.num_generations
        why = (
            f"GRPO samples {args.num_generations} answers (num_generations) to each prompt, has "
            f"{args.generation_batch_size} answers in a batch, and leaves out a batch that is not "
            "full"
        )
    elif args.dataloader_drop_last:
        needed = args.per_device_train_batch_size * config.processes
        why = "dataloader_drop_last leaves out a batch that is not full"
    if len(rows) < needed:
        raise ConfigError(
            Problem(
                "per_device_train_batch_size",
                f"expected at least {needed:,} training rows (one batch), got {len(rows):,}. "
                f"{why}, so no step would be taken. Lower the batch size, or give more rows.",
            )
        )


def remarks_on_rows(config: TrainConfig, processing: Any, rows: Any, not_read: Counts) -> list[str]:
    """Sentences on the training rows, on those that replay mixes in, and on held-out ones of
    `eval_strategy`.

    Args:
        config: of the run.
        processing: the model's tokenizer or processor, as `loading` gives it.
        rows: the training rows as `loading.load_training_data` gives them.
        not_read: what of them is not read.
    """
    from holdfast.data import chat_templates, unread
    from holdfast.data.formats import rows_by_name
    from holdfast.runs.loading import load_eval_data

    remarks = [unread.sentence(not_read)] if not_read else []
    read = rows_by_name(processing, say=remarks.append)
    for method in config.retention:
        for name in method.named_data() if method.name == "replay" and not method.off else ():
            old, _ = read(name)
            remarks += [
                f"{name}: {remark}" for remark in chat_templates.remarks(_sample(old), processing)
            ]
    held_out: Counts = {}
    load_eval_data(config, processing, held_out)
    remarks += [unread.sentence(held_out, "the held-out rows")] if held_out else []
    sample = _sample(rows)
    if any(
        isinstance(value, list) and value and isinstance(value[0], dict)
        for value in sample[0].values()
    ):
        remarks += chat_templates.remarks(sample, processing)
        ends = _ends_of_replies(config, getattr(processing, "tokenizer", processing))
        if remark := chat_templates.remark_on_end(processing, ends):
            remarks.append(remark)
    return remarks


def remarks_on_held_out_rows(config: TrainConfig, tokenizer: Any, rows: Any) -> list[str]:
    """Sentences on held-out rows that are rows of the training data, or of data that replay mixes
    in.

    Args:
        config: of the run.
        tokenizer: of the model.
        rows: the training rows; those with images and those that are tokenised already are not
            looked at.
    """
    from holdfast.data.formats import rows_by_name
    from holdfast.data.sources import is_path
    from holdfast.evaluation.training_rows import remarks_on_training_rows

    columns = getattr(rows, "column_names", None) or ()
    if "images" in columns or not {"text", "prompt", "messages", "chosen"} & set(columns):
        return []
    training = {"training rows": rows}
    for method in config.retention:
        for name in method.named_data() if not method.off and method.name == "replay" else ():
            if is_path(name):
                training[f"rows of the replay data {Path(name).name}"] = rows_by_name(tokenizer)(
                    name
                )[0]
    return remarks_on_training_rows(config.evaluation.entries, tokenizer, training)


def remarks_on_all_rows(config: TrainConfig, processing: Any, rows: Any) -> list[str]:
    """Sentences on training rows that are copies of others, and on held-out rows of `eval_strategy`
    that are trained on. Every row is read; those of streams and those with images are not.

    Args:
        config: of the run.
        processing: the model's tokenizer or processor.
        rows: the training rows.
    """
    from holdfast.data.overlap import content_of, contents_of
    from holdfast.runs.loading import load_eval_data

    if not hasattr(rows, "select") or "images" in rows.column_names:
        return []
    remarks = []
    distinct: set[int] = set()
    for row in rows:
        distinct.add(hash(repr(row)))
    if copies := len(rows) - len(distinct):
        remarks.append(
            f"{copies:,} of {len(rows):,} training rows are duplicates of others, so they count "
            "several times. Remove them, unless that is intended."
        )
    held_out = load_eval_data(config, processing)
    if held_out is not None:
        known = contents_of(rows)
        trained = sum(content_of(row) in known for row in held_out)
        if trained:
            remarks.append(
                f"{trained:,} of {len(held_out):,} held-out rows (eval_strategy) are also "
                "training rows, so they measure memorisation. Remove them from one side."
            )
    return remarks


def _sample(rows: Any) -> list[dict[str, Any]]:
    """Some rows, evenly over all of them; of a stream the first."""
    if not hasattr(rows, "select"):
        return list(itertools.islice(rows, _LOOKED))
    rows = rows.select_columns([column for column in rows.column_names if column != "images"])
    if len(rows) > _LOOKED:
        rows = rows.select([number * len(rows) // _LOOKED for number in range(_LOOKED)])
    return list(rows)


def _ends_of_replies(config: TrainConfig, tokenizer: Any) -> set[int]:
    """Token ids that end a reply of the trained model: those of its generation config, and the
    tokenizer's, which training adds to them."""
    from transformers import AutoConfig, GenerationConfig

    from holdfast.checkpoints.named import located

    model, trusted = config.model, config.training.trust_remote_code
    source = located(str(model.model_name_or_path))
    try:
        end_tokens: Any = GenerationConfig.from_pretrained(
            source, revision=model.model_revision
        ).eos_token_id
    except OSError:  # there is no such file, and the model's own configuration says it
        shape = AutoConfig.from_pretrained(
            source, revision=model.model_revision, trust_remote_code=trusted
        )
        end_tokens = getattr(shape.get_text_config(), "eos_token_id", None)
    ends = {tokenizer.eos_token_id, *(end_tokens if isinstance(end_tokens, list) else [end_tokens])}
    return {token for token in ends if token is not None}
