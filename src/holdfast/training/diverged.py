"""The message when a loss, a gradient or a weight is not finite: at which step, on which samples,
and where to go on from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.errors import TrainingDiverged
from holdfast.training.checkpoint_folders import checkpoints_in, step_of
from holdfast.training.image_batches import ROW, named_rows

SEARCHED_ROWS = 200_000
"""Rows of the training data that are searched for a sample; in larger data one further back stays
without its number."""


def diverged(
    what: str, samples: list[str], *, step: int, updated: bool, folder: Path
) -> TrainingDiverged:
    """The error that stops training.

    Args:
        what: what was not finite.
        samples: the batch, as `describe_samples` tells it; empty: none is to blame.
        step: the optimiser step that was taken or was going to be.
        updated: whether the weights were updated with it.
        folder: where the run's checkpoints are.
    """
    # later ones were passed over when this run went on from an earlier one
    checkpoints = checkpoints_in(folder, before=step)
    lines = [
        f"Training stopped at step {step}: {what}."
        + (
            " The weights were not saved."
            if updated
            else " The weights were not updated in this step."
        )
    ]
    if samples:
        lines += ["Samples of this step:", *(f"  - {s}" for s in samples)]
    lines.append(
        f"The last good checkpoint is {checkpoints[-1]}."
        if checkpoints
        else "No checkpoint had been written yet."
    )
    if len(checkpoints) > 1 and (step_of(checkpoints[-1]) or 0) >= step - 1:
        # Its weights are finite, but no step has shown yet that they give a finite loss.
        lines.append(
            "This checkpoint was written just before the step. If its weights are already wrong, "
            f"use the previous checkpoint, {checkpoints[-2].name}."
        )
    lines.append(
        "Usual causes: a learning rate too high, fp16 where bf16 is needed, a broken sample."
    )
    lines.append(
        "Lower learning_rate or correct the sample, then run again (in a new output_dir if a "
        "setting changes)."
    )
    return TrainingDiverged(*lines)


def describe_samples(
    inputs: dict[str, Any], rows: list[int] | None, *, data: Any, tokenizer: Any, limit: int
) -> list[str]:
    """The beginnings of a batch's samples, with their row in the training data where it can be
    found.

    Args:
        inputs: one micro-batch as the collator made it: `input_ids [B, T]`, and `attention_mask` or
            `position_ids`.
        rows: rows of the flattened, shifted `[B * (T-1)]` positions to blame; None: all of the
            batch.
        data: the prepared training data, rows with `input_ids`.
        tokenizer: shows the tokens as text; None: they are shown as numbers.
        limit: how many samples are shown at most.
    """
    ids, numbers = inputs["input_ids"].cpu(), inputs.get(ROW)
    span = max(ids.shape[1] - 1, 1)
    if rows:
        positions = [divmod(row, span) for row in rows]
    else:
        positions = [(b, 0) for b in range(ids.shape[0])]
    starts = _document_starts(inputs, ids.shape)
    documents = set()
    for b, position in positions:
        documents.add((b, max(start for start in starts[b] if start <= position)))
    descriptions = []
    for b, start in sorted(documents)[:limit]:
        end = min([s for s in starts[b] if s > start], default=ids.shape[1])
        tokens = ids[b, start:end]
        if "attention_mask" in inputs:
            tokens = tokens[inputs["attention_mask"][b].cpu()[start:end].bool()]
        index = int(numbers[b]) if numbers is not None else _find_row(data, tokens.tolist())
        decode = getattr(tokenizer, "decode", None)
        if numbers is not None:
            tokens = tokens.unique_consecutive()
        text = decode(tokens[:60].tolist()) if callable(decode) else str(tokens[:20].tolist())
        where = f"row {index} of the prepared training data: " if index is not None else ""
        if (
            numbers is not None
        ):  # rows with images: known by their numbers, and most of their tokens are an image's
            where = f"{named_rows([int(numbers[b])])}: "
        descriptions.append(where + repr(text))
    if len(documents) > limit:
        descriptions.append(f"... and {len(documents) - limit} more")
    return descriptions


def _find_row(data: Any, tokens: list[int]) -> int | None:
    try:
        for index in range(min(len(data), SEARCHED_ROWS)):
            ids = data[index]["input_ids"]
            if list(ids[: len(tokens)]) == tokens or _contains(list(ids), tokens):
                return index
    except (TypeError, KeyError):
        return None
    return None


def _document_starts(inputs: dict[str, Any], shape: Any) -> list[list[int]]:
    position_ids = inputs.get("position_ids")
    if position_ids is None:
        return [[0] for _ in range(shape[0])]
    starts = []
    for row in position_ids.cpu():
        zeros = (row == 0).nonzero().flatten().tolist()
        starts.append(sorted({0, *zeros}))
    return starts


def _contains(row: list[int], tokens: list[int]) -> bool:
    """Whether `tokens` stand one after the other in a row (a document inside a packed row)."""
    if not tokens or len(tokens) > len(row):
        return False
    for start in range(len(row) - len(tokens) + 1):
        if row[start] == tokens[0] and row[start : start + len(tokens)] == tokens:
            return True
    return False
