"""Batches with images: TRL's vision collator, and what it leaves open.

The processor writes placeholders for an image's patches and the model puts the tower's states in
their places; nobody can predict them, so they are never trained (TRL trains them where the whole
conversation is). Rows of several layouts may stand in one batch, those that replay mixes in among
them: each layout is collated by itself, tokenised rows without the processor. What the processor
refuses is an error that names the rows.

Shapes: B rows, T positions.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from holdfast.data import vision
from holdfast.data.mixing import NEW, ORIGIN
from holdfast.data.vision import is_of_tokens
from holdfast.errors import DataError, first_line
from holdfast.ops.annealing import IGNORE

ROW = "row"
"""Column with a row's number in the training data, from 0, and of a batch `[B]` int64 with -1 for
rows of other data; for messages."""
COLUMNS = ("messages", "prompt", "completion", "text", "images", "input_ids", "labels", ROW)
"""What the collator reads."""
_WRITTEN = re.compile(
    r"<row_\d+_col_\d+>|<\|?(?:image|video|vision|img)[\w-]*\|?>|<global-img>|<fake_token_around_image>"
)
"""Tokens that stand for an image, or mark one, in the vocabularies of the models that are trained
here."""


def placeholders(processor: Any) -> frozenset[int]:
    """Ids of the tokens that a processor writes for images.

    Args:
        processor: a `ProcessorMixin`.
    """
    tokenizer = processor.tokenizer
    texts = []
    for name in ("image_token", "video_token", "fake_image_token"):
        token = getattr(processor, name, None)
        if token is not None:
            texts.append(str(getattr(token, "content", token)))
    texts += [token for token in tokenizer.get_added_vocab() if _WRITTEN.fullmatch(token)]
    vocabulary = tokenizer.get_vocab()
    in_vocabulary = [text for text in texts if text in vocabulary]
    return frozenset(map(tokenizer.convert_tokens_to_ids, in_vocabulary))


class ImageCollator:
    """Makes a batch of rows with `images`, of tokenised rows, or of both.

    Args:
        collate: TRL's `DataCollatorForVisionLanguageModeling`.
        completion_only: TRL's `completion_only_loss`; None: where a row has prompt and completion.

    Raises (when called):
        DataError: images and their places do not match, or an image lies beyond `max_length`; the
            rows are named.
    """

    def __init__(self, collate: Any, *, completion_only: bool | None) -> None:
        self.max_length = collate.max_length
        # cut here: TRL would cut images in two
        self.collate = dataclasses.replace(collate, max_length=None)
        self.completion_only = completion_only
        self.placeholders = torch.tensor(sorted(placeholders(collate.processor)))
        self.padding = collate.processor.tokenizer.pad_token_id

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        for row in rows:
            present = {name: value for name, value in row.items() if value is not None}
            layout = []
            for name, value in sorted(present.items()):
                if name not in (ROW, ORIGIN, "images"):
                    layout.append((name, type(value).__name__))
            groups.setdefault(tuple(layout), []).append(present)
        return _joined([self._batch(group) for group in groups.values()], self.padding)

    def _batch(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        row_numbers = [row.pop(ROW, None) for row in rows]
        origins = [row.pop(ORIGIN, None) for row in rows]
        numbers = []
        for number, origin in zip(row_numbers, origins, strict=True):
            is_new = origin is None or origin[0] == NEW
            numbers.append(number if is_new and number is not None else -1)
        if "input_ids" in rows[0]:
            batch = _tokenised(rows, self.padding)
        else:
            pair = "completion" in rows[0]
            only = pair if self.completion_only is None else self.completion_only and pair
            collate = dataclasses.replace(self.collate, completion_only_loss=only)
            try:
                batch = dict(collate([{"images": [], **row} for row in rows]))
            except (ValueError, IndexError, KeyError, TypeError, OSError) as error:
                raise DataError(
                    f"{named_rows(numbers)}: the processor "
                    f"({type(self.collate.processor).__name__}) cannot make a batch of it: "
                    f"{first_line(error).rstrip('.')}"
                ) from error
        places = torch.isin(batch["input_ids"], self.placeholders)
        if self.max_length is not None and batch["input_ids"].shape[1] > self.max_length:
            beyond = places[:, self.max_length :].any(1).tolist()
            if any(beyond):
                cut = [n for n, is_beyond in zip(numbers, beyond, strict=True) if is_beyond]
                raise DataError(
                    f"{named_rows(cut)}: max_length={self.max_length} tokens would cut an image "
                    "in two. Raise max_length, or configure the processor for smaller images."
                )
            uncut_shape, places = batch["input_ids"].shape, places[:, : self.max_length]
            for name, value in batch.items():
                if is_of_tokens(name, value, uncut_shape):
                    batch[name] = value[:, : self.max_length]
        batch["labels"] = batch["labels"].masked_fill(places, IGNORE)
        if any(origin is not None for origin in origins):  # a row is one document
            of_rows = torch.tensor([NEW if origin is None else origin[0] for origin in origins])
            batch[ORIGIN] = of_rows[:, None].expand_as(batch["input_ids"]).clone()
        batch[ROW] = torch.tensor(numbers)
        return batch


def reading_images(batch: Mapping[str, Any]) -> contextlib.AbstractContextManager[None]:
    """What a model has against a batch's images, with its rows (`data.vision.reading_images`);
    nothing of a batch without."""
    if "pixel_values" not in batch:
        return contextlib.nullcontext()
    return vision.reading_images(lambda: named_rows(batch[ROW].tolist() if ROW in batch else []))


def of_the_model(batch: Mapping[str, Any]) -> dict[str, Any]:
    """A batch without what says where its rows are from."""
    return {name: value for name, value in batch.items() if name not in (ORIGIN, ROW)}


def named_rows(numbers: Sequence[int]) -> str:
    """Rows for the beginning of a message, counted from 1.

    Args:
        numbers: from 0; negative: of other data, which replay or another method mixes in.
    """
    known = [number + 1 for number in numbers if number >= 0]
    if not known:
        return "a row of the mixed-in data" if numbers else "a row of the training data"
    listed = ", ".join(map(str, known[:5])) + (", ..." if len(known) > 5 else "")
    return (
        f"row{'s' if len(known) > 1 else ''} {listed} of the training "
        f"data{' (one of them)' if len(known) > 1 else ''}"
    )


def _tokenised(rows: Sequence[Mapping[str, Any]], padding: int) -> dict[str, Tensor]:
    from torch.nn.utils.rnn import pad_sequence

    ids = [torch.as_tensor(row["input_ids"], dtype=torch.long) for row in rows]
    labels = [torch.as_tensor(row["labels"], dtype=torch.long) for row in rows]
    return {
        "input_ids": pad_sequence(ids, batch_first=True, padding_value=padding),
        "attention_mask": pad_sequence([torch.ones_like(row) for row in ids], batch_first=True),
        "labels": pad_sequence(labels, batch_first=True, padding_value=IGNORE),
    }


def _joined(batches: Sequence[Mapping[str, Any]], padding: int) -> dict[str, Any]:
    """Batches below one another: what has a value for each token is padded on the right, what
    belongs to images is padded with zeros, which the models that pad images take for none."""
    if len(batches) == 1:
        return dict(batches[0])
    fills = {"input_ids": padding, "labels": IGNORE}
    joined: dict[str, Any] = {}
    for name in dict.fromkeys(itertools.chain(*batches)):
        having = [batch for batch in batches if name in batch]
        of_tokens = all(
            is_of_tokens(name, batch[name], batch["input_ids"].shape) for batch in having
        )
        values = []
        for batch in batches:
            if name in batch:
                values.append(batch[name])
            elif of_tokens:  # token types of plain text: 0
                values.append(torch.zeros_like(batch["input_ids"]))
        width = []
        for axis in range(1, values[0].ndim):
            width.append(max(value.shape[axis] for value in values))
        joined[name] = torch.cat([_widened(value, width, fills.get(name, 0)) for value in values])
    return joined


def _widened(value: Tensor, width: Sequence[int], fill: int) -> Tensor:
    if list(value.shape[1:]) == list(width):
        return value
    wide = value.new_full((value.shape[0], *width), fill)
    wide[tuple(slice(size) for size in value.shape)] = value
    return wide
