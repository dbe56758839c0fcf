"""A look at everything that a run would read, down to the last byte, and at what it would do;
nothing is trained, downloaded or written."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.checkpoints.named import located
from holdfast.errors import ConfigError, ModelError, did_you_mean, first_line
from holdfast.runs.trainers import TRAINERS
from holdfast.support.paths import expanded
from holdfast.support.progress import progress

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.data.unread import Counts
    from holdfast.runs.config import TrainConfig
    from holdfast.runs.cost import Cost
    from holdfast.runs.preview import Preview


ROUNDED = {"bfloat16": 400, "float16": 3000}
"""About which part of a weight the least change is that is not rounded away: 1/400, 1/3000."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """What was seen."""

    preview: Preview | None = None
    """Rows as they are trained on; None where model or data are not here."""
    tokenizer: Any = None
    cost: Cost | None = None
    """None where there is too little to tell it from."""
    notes: tuple[str, ...] = field(default=())
    here: bool = True
    """False: model or data are not on this machine, and were not looked at."""

    @property
    def tokens(self) -> float:
        """Of one epoch, before packing; an estimate where only a part of the rows was prepared."""
        assert self.preview is not None
        return self.preview.tokens / self.preview.looked * self.preview.of


def look(config: TrainConfig) -> Look:
    """Looks at model, data and what is measured, as far as they are on this machine.

    Raises:
        ModelError, DataError, ConfigError: what keeps the run from starting.
    """
    from holdfast.models import check_causal_lm
    from holdfast.runs.loading import (
        check_files,
        data_is_here,
        load_processor,
        load_tokenizer,
        load_training_data,
    )
    from holdfast.runs.on_policy import check_lengths, completion_length
    from holdfast.runs.packing import packing_notes
    from holdfast.runs.preview import pair_notes, preview
    from holdfast.runs.rows import (
        check_batches,
        remarks_on_all_rows,
        remarks_on_held_out_rows,
        remarks_on_rows,
    )

    notes = check_files(config)
    notes += packing_notes({**vars(config.training), **vars(config.model)})
    name = str(config.model.model_name_or_path)
    if not os.path.isdir(located(name)):
        return Look(notes=tuple(notes), here=False)
    read_weights(name)
    shape = check_causal_lm(name, trust_remote_code=config.training.trust_remote_code)
    check_fit(config)
    limit = getattr(shape.get_text_config(), "max_position_embeddings", None)
    # GRPO cuts no rows
    window = None if config.holdfast.trainer == "grpo" else config.training.max_length
    if limit and window is not None and window > limit:
        notes.append(f"max_length {window} is more than the model's context; {limit} is used")
    if not data_is_here(config):
        return Look(notes=tuple(notes), here=False)
    tokenizer, processor = load_tokenizer(config), load_processor(config)
    not_read: Counts = {}
    rows, _ = load_training_data(config, processor or tokenizer, not_read)
    check_batches(config, rows)
    notes += remarks_on_rows(config, processor or tokenizer, rows, not_read)
    notes += remarks_on_held_out_rows(config, tokenizer, rows)
    notes += remarks_on_all_rows(config, processor or tokenizer, rows)
    notes += remarks_on_rounding(config)
    if config.script.dataset_streaming or config.mixture.streaming:
        notes.append(
            "rows are streamed: only the first rows were checked, and the number of tokens is "
            "unknown"
        )
        return Look(tokenizer=tokenizer, notes=tuple(notes))
    if TRAINERS[config.holdfast.trainer].reader:
        layout = TRAINERS[config.holdfast.trainer].layout
        good = f", {sum(rows['label']):,} of them good" if "label" in rows.column_names else ""
        notes += pair_notes(config, tokenizer, rows)
        notes.append(f"{len(rows):,} {layout}{good}; memory and time are not estimated")
        return Look(tokenizer=tokenizer, notes=tuple(notes))
    if config.holdfast.on_policy is not None or config.holdfast.trainer == "grpo":
        longest, room = check_lengths(config, rows, tokenizer, limit), completion_length(config)
        notes.append(
            f"{len(rows):,} prompts of up to {longest} tokens; answers of up to {room} tokens are "
            "sampled during training. Tokens and time are not estimated"
        )
        return Look(tokenizer=tokenizer, notes=tuple(notes))
    vocabulary = getattr(shape.get_text_config(), "vocab_size", None)
    data_preview = preview(config, processor or tokenizer, rows, vocabulary=vocabulary)
    if processor is not None:
        notes.append(
            "memory and time of a vision-language model are not estimated; tokens, including "
            "those of images, are counted"
        )
    sample = "" if data_preview.noted == data_preview.of else f"by {data_preview.noted:,} rows: "
    notes += [f"{sample}{note}" for note in data_preview.notes]
    return Look(
        preview=data_preview,
        tokenizer=tokenizer,
        cost=_cost(config, data_preview),
        notes=tuple(notes),
    )


def check_fit(config: TrainConfig) -> None:
    """Holds the settings that speak of the model's parts against the model, built without weights.

    Raises:
        ModelError, ConfigError: an adapter that finds no layer, a pattern that finds no parameter,
            a schedule that lacks its arguments, an attention that there is not.
    """
    import torch
    from transformers import get_scheduler
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    from holdfast.training.adapters import adapter_config
    from holdfast.training.frozen import matched
    from holdfast.training.learning_rates import factors_of
    from holdfast.training.skeleton import build_skeleton

    args, problems = config.training, list[str]()
    attention, known = (
        config.model.attn_implementation,
        ["eager", *ALL_ATTENTION_FUNCTIONS.valid_keys()],
    )
    if attention is not None and "/" not in attention and attention not in known:
        problems.append(
            f"attn_implementation: expected one of {', '.join(known)}, or a kernel of the hub, got "
            f"{attention!r}.{did_you_mean(attention, known)}"
        )
    try:
        optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-3)
        kwargs = args.lr_scheduler_kwargs or {}
        if str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)) != "greedy":
            get_scheduler(
                args.lr_scheduler_type,
                optimiser,
                num_warmup_steps=1,
                num_training_steps=10,
                scheduler_specific_kwargs=dict(kwargs) if isinstance(kwargs, dict) else None,
            )
    except (ValueError, TypeError) as error:
        problems.append(f"lr_scheduler_type: {first_line(error)}")
    try:
        adapter = (
            None
            if config.adapter.peft_method == "osf"
            else adapter_config(config.model, config.adapter)
        )
        model = build_skeleton(
            str(config.model.model_name_or_path),
            revision=config.model.model_revision,
            trust_remote_code=args.trust_remote_code,
            adapter=adapter,
        )
        names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        if config.holdfast.train_only:
            names = matched(names, config.holdfast.train_only)
        if config.holdfast.learning_rate_multipliers:
            factors_of(names, config.holdfast.learning_rate_multipliers)
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(problems)


def remarks_on_rounding(config: TrainConfig, folder: Path | None = None) -> list[str]:
    """A sentence where a step of Adam, which is as large as the learning rate, is rounded away at
    most weights: those in half precision keep two or three digits.

    Args:
        config: what is trained.
        folder: where its model lies; None: where its name says.
    """
    from holdfast.checkpoints.reader import CheckpointReader
    from holdfast.models import saved_dtype
    from holdfast.runs.cost import keeps_float32

    args, model = config.training, config.model
    name = str(folder or model.model_name_or_path)
    dtype = str(saved_dtype(name) if model.dtype in (None, "auto") else model.dtype)
    is_adam = str(getattr(args.optim, "value", args.optim)).startswith("adam")
    if dtype not in ROUNDED or model.use_peft or not is_adam or keeps_float32(config):
        return []
    above = total = 0
    with CheckpointReader(expanded(located(name))) as reader:
        matrices = [tensor for tensor in reader.names() if len(reader.shape(tensor)) == 2]
        for tensor in matrices[:: max(1, len(matrices) // 16)]:
            sizes = reader.tensor(tensor)[:64].float().abs()
            above += int((sizes > args.learning_rate * ROUNDED[dtype]).sum())
            total += sizes.numel()
    if above <= 0.5 * total:
        return []
    return [
        f"About {above / total:.0%} of the weights will not change. One step changes a weight by "
        f"about the learning rate, {args.learning_rate:g}, and {dtype} rounds away changes below "
        f"about 1/{ROUNDED[dtype]} of the weight. Train with dtype: float32 (with bf16: true, "
        "computation stays in bfloat16), or at a higher learning_rate."
    ]


def _cost(config: TrainConfig, found: Preview) -> Cost | None:
    """None for what is not counted: images, OSF, DoRA, and rows of which nothing is trained."""
    from holdfast.models import takes_images
    from holdfast.runs.cost import estimate

    name, model = str(config.model.model_name_or_path), config.model
    beyond_lora = model.use_peft and (config.adapter.peft_method == "osf" or model.use_dora)
    trust = bool(config.training.trust_remote_code)
    if not found.rows or beyond_lora or takes_images(name, trust_remote_code=trust):
        return None
    lengths = [max(1, len(row.ids)) for row in found.rows]
    tokens = sum(lengths) / found.looked * found.of
    try:
        return estimate(config, tokens=tokens, lengths=lengths)
    except ModelError:
        return None  # a model without an output head


def read_weights(name: str) -> None:
    """Reads all weights of a model.

    Args:
        name: a folder, or a model of `holdfast models get`.

    Raises:
        ModelError: a file ends early or cannot be read, or holds NaN or infinities.
    """
    from holdfast.checkpoints.dtypes import count_nonfinite
    from holdfast.checkpoints.engine import (
        Job,
        Reader,
        Scratch,
        job_of,
        map_blocks,
        nonfinite_error,
    )
    from holdfast.checkpoints.reader import CheckpointReader

    with CheckpointReader(expanded(located(name))) as reader:
        jobs = [job_of(entry) for entry in reader.entries.values()]
        read = Reader([reader])

        def look_at(job: Job, start: int, stop: int, scratch: Scratch) -> None:
            operand = read.read(0, job.name, start, stop, scratch)
            if operand.dtype.kind == "float" and count_nonfinite(operand.raw, operand.dtype):
                raise nonfinite_error(reader, job.name)

        total = sum(job.size * job.dtype.itemsize for job in jobs)
        with progress(f"Reading {name}", total=total, unit="bytes") as advance:
            map_blocks(jobs, look_at, sources=1, advance=advance)
