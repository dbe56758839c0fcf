"""Replay: old data among the new, so that a set share of what the model sees is old.

All of the new data is kept, in its own order. Replay rows are drawn without replacement until they
make up the fraction f of the mixture,

    replay / (train + replay) = f    <=>    replay = train * f / (1 - f),

counted in tokens or in examples, and are put at places drawn uniformly among the train rows, so
that every stretch of training sees about the same share. The rehearsal line of the
sequential-averaging paper, Soup to Go, is f = 0.1. Should the replay data not suffice, it is gone
through again in a new order, and `MixInfo.repeated` says how many rows that made.

Mixing happens on tokenised rows, before packing: only there do all rows have one format whatever
the two data sets looked like, and only there are tokens known. Rows with images are mixed as they
are, by numbers of examples. Nothing is copied: the mixture is a view with an index array. It
carries no column that tells the sources apart, unless the train rows have `ORIGIN`: then every row
says whether it is new, replayed or generated, which packing and collation keep.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, get_args

from holdfast.errors import ConfigError, DataError, did_you_mean
from holdfast.support.environment import quiet_datasets

if TYPE_CHECKING:
    import datasets
    import numpy as np

Unit = Literal["tokens", "examples"]

COLUMNS = ("input_ids", "labels")
ORIGIN = "origin"
"""Column with one number for each document of a row, from `NEW`, `REPLAYED` and `GENERATED`."""
NEW, REPLAYED, GENERATED = 0, 1, 2
"""Where a row is from: the run's own data, old data, the start model."""
IMAGES = "images"
"""Column of rows that are tokenised only when a batch is made."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MixInfo:
    """What a mixture is made of."""

    train_examples: int
    """Rows of new data; all there were."""
    replay_examples: int
    """Rows of replay data, repeats included."""
    train_tokens: int | None
    """Sum of the lengths of `input_ids` over the train rows; None where rows hold images."""
    replay_tokens: int | None
    """The same over the replay rows, repeats included."""
    repeated: int
    """How many of `replay_examples` are a second or later use of a row; 0 where the replay data
    sufficed."""


def mix_replay(
    train: datasets.Dataset,
    replay: datasets.Dataset,
    *,
    fraction: float,
    seed: int,
    unit: Unit = "tokens",
    origin: int = REPLAYED,
    longest: int | None = None,
) -> tuple[datasets.Dataset, MixInfo]:
    """Puts replay rows among the train rows until they make up `fraction` of the mixture.

    Args:
        train: the new data; columns `input_ids` and `labels` (lists of int, one length a row), or
            rows with `images`.
        replay: the old data; the same columns. Others are dropped, from both, unless one of them
            holds images.
        fraction: replay's share of the mixture, 0 <= fraction < 1, met within half a row; a
            positive one takes at least one row.
        seed: decides the rows drawn and their places; equal seeds give equal mixtures.
        unit: whether the share counts tokens or examples.
        origin: what the rows are marked as where the train rows are marked.
        longest: tokens that rows will be cut to, beyond which they do not count; None: they are
            trained on whole.

    Returns:
        (the mixture, what it is made of). With fraction 0 the mixture is `train`, the very same
        object.

    Raises:
        ConfigError: `fraction` outside [0, 1), an unknown `unit`, or tokens of rows with images.
        DataError: an empty data set, a missing column, or rows that were packed before mixing.
    """
    import numpy as np

    if not 0.0 <= fraction < 1.0:
        raise ConfigError(
            "replay fraction: expected a number of at least 0 and below 1 (0.1 is 10 % of the "
            f"mixture), got {fraction!r}."
        )
    if unit not in get_args(Unit):
        raise ConfigError(
            "replay unit: expected 'tokens' or 'examples', got "
            f"{unit!r}.{did_you_mean(str(unit), get_args(Unit))}"
        )
    _check(train, "train")
    if fraction == 0.0:
        return _mixture(train, None, None, None)
    _check(replay, "replay")
    rng = np.random.default_rng(seed)
    if _holds_images(train, replay):
        if unit == "tokens":
            raise ConfigError(
                "replay.unit: expected examples for rows with images, got tokens: the number of "
                "image tokens is known only when a batch is made. Set unit: examples. Then the "
                "fraction counts rows."
            )
        weights, new = np.ones(len(replay), np.int64), len(train)
    else:
        lengths = token_lengths(replay, longest)
        if not lengths.any():
            raise DataError(
                f"Expected replay data with text, got {len(replay)} rows without tokens. Give "
                "data with text."
            )
        tokens = unit == "tokens"
        weights = lengths if tokens else np.ones_like(lengths)
        new = total_tokens(train, longest) if tokens else len(train)
    drawn = draw(weights, new * fraction / (1.0 - fraction), rng)
    return _mixture(train, replay, drawn, rng, origin=origin, longest=longest)


def mix_tasks(
    train: datasets.Dataset,
    other: datasets.Dataset,
    *,
    share: float,
    seed: int,
    longest: int | None = None,
) -> tuple[datasets.Dataset, MixInfo]:
    """All of the train rows and a share of another task's among them, in one sequence: multitask
    training.

    Args:
        train, other: as in `mix_replay`.
        share: of the other rows that are used, 0 <= share <= 1; a positive one takes at least one
            row. They are drawn without replacement.
        seed: decides the rows drawn and their places.
        longest: as in `mix_replay`.

    Returns:
        (the mixture, what it is made of; the other task's rows count as replay's). With share 0 the
        mixture is `train`, the very same object.

    Raises:
        ConfigError: `share` outside [0, 1].
        DataError: as `mix_replay`.
    """
    import numpy as np

    if not 0.0 <= share <= 1.0:
        raise ConfigError(
            "multitask share: expected a number from 0 to 1 (1 is all data of the other task), "
            f"got {share!r}."
        )
    _check(train, "train")
    if share == 0.0:
        return _mixture(train, None, None, None)
    _check(other, "multitask")
    rng = np.random.default_rng(seed)
    drawn = rng.permutation(len(other))[: max(1, round(share * len(other)))]
    # a task to be learnt, as the train rows are
    return _mixture(train, other, drawn, rng, origin=NEW, longest=longest)


def _mixture(
    train: datasets.Dataset,
    other: datasets.Dataset | None,
    drawn: np.ndarray | None,
    rng: np.random.Generator | None,
    *,
    origin: int = NEW,
    longest: int | None = None,
) -> tuple[datasets.Dataset, MixInfo]:
    """The train rows in their order with the drawn rows of `other` among them, and what that is
    made of; `train` itself where nothing was drawn."""
    import numpy as np

    counted = not _holds_images(train, other)
    info = MixInfo(
        train_examples=len(train),
        train_tokens=total_tokens(train, longest) if counted else None,
        replay_examples=0,
        replay_tokens=0,
        repeated=0,
    )
    if other is None or drawn is None or rng is None:
        return train, info
    info = dataclasses.replace(
        info,
        replay_examples=len(drawn),
        replay_tokens=int(token_lengths(other, longest)[drawn].sum()) if counted else None,
        repeated=max(0, len(drawn) - len(other)),
    )
    if ORIGIN in train.column_names:
        other = marked(other, origin)
    order = interleave([np.arange(len(train)), drawn + len(train)], rng)
    return _joined(train, other, order), info


def marked(rows: datasets.Dataset, origin: int) -> datasets.Dataset:
    """The rows, each a document, with their `ORIGIN`; rows that are marked keep their marks."""
    import pyarrow as pa

    if ORIGIN in rows.column_names:
        return rows
    column = pa.array([[origin]] * len(rows), pa.list_(pa.int64()))
    name = hashlib.sha256(repr((rows._fingerprint, ORIGIN, origin)).encode()).hexdigest()[:32]
    with quiet_datasets():
        return rows.add_column(ORIGIN, column, new_fingerprint=name)


def tokenised_rows(rows: Sequence[Sequence[int]], prompts: Sequence[int]) -> datasets.Dataset:
    """Rows of token ids, with labels behind the first `prompts[i]` tokens of row i."""
    import datasets

    labels = []
    for ids, length in zip(rows, prompts, strict=True):
        labels.append([-100] * length + list(ids[length:]))
    return datasets.Dataset.from_dict({"input_ids": list(map(list, rows)), "labels": labels})


def total_tokens(rows: datasets.Dataset, longest: int | None = None) -> int:
    """Tokens of all rows together; of each at most `longest`."""
    return int(token_lengths(rows, longest).sum())


def prompts_of(rows: datasets.Dataset) -> tuple[list[list[int]], int]:
    """Of tokenised rows, the tokens before the first that is trained, where there are any; and how
    many rows have none."""
    from holdfast.data.prompts import prefix

    prompts = [
        prefix(row["input_ids"], row["labels"]) for row in rows.select_columns(list(COLUMNS))
    ]
    return list(filter(None, prompts)), prompts.count([])


def token_lengths(dataset: datasets.Dataset, longest: int | None = None) -> np.ndarray:
    """Tokens of each row, at most `longest`, shape [rows], int64. Reads the offsets of `input_ids`
    only, never the tokens."""
    import numpy as np
    import pyarrow.compute as pc

    lengths = np.zeros(0, np.int64)
    for table in (
        dataset.select_columns(["input_ids"]).with_format("arrow").iter(batch_size=100_000)
    ):
        of_table = pc.fill_null(pc.list_value_length(table.column(0)), 0)
        lengths = np.concatenate([lengths, of_table.to_numpy()])
    return lengths if longest is None else np.minimum(lengths, longest)


def draw(weights: np.ndarray, target: float, rng: np.random.Generator) -> np.ndarray:
    """Row indices in random order whose weights sum to `target` within half of the last row, at
    least one row.

    No row comes twice before every row has come once (and so on for each further round).

    Args:
        weights: shape [rows], not negative, with a positive sum.
        target: the sum wanted, > 0.
        rng: draws one permutation for each round that is needed.
    """
    import numpy as np

    total, rows = int(weights.sum()), len(weights)
    rounds = int(target // total)
    permutations = [rng.permutation(rows) for _ in range(rounds + 1)]
    last = permutations.pop()
    sums = np.concatenate([[0], np.cumsum(weights[last])])
    rest = target - rounds * total
    count = int(np.searchsorted(sums, rest, side="left"))  # the fewest rows that reach the target
    if count > 0 and rest - sums[count - 1] <= sums[min(count, rows)] - rest:
        count -= 1
    count = min(max(count, 0 if rounds else 1), rows)
    return np.concatenate([*permutations, last[:count]])


def interleave(sources: Sequence[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """One sequence of all sources' elements: each source keeps its order, every way of merging them
    is equally likely.

    Args:
        sources: any number of arrays of shape [n_i]; replay has two, a mixture of several tasks one
            for each.
        rng: draws which source comes at which place.

    Returns:
        shape [sum of n_i].
    """
    import numpy as np

    turns = rng.permutation(np.repeat(np.arange(len(sources)), list(map(len, sources))))
    merged = np.empty(len(turns), dtype=np.int64)
    for number, source in enumerate(sources):
        merged[turns == number] = source
    return merged


def _joined(
    train: datasets.Dataset, other: datasets.Dataset, order: np.ndarray
) -> datasets.Dataset:
    """The rows of both, the train rows first, in the given order: a view with an index array."""
    import datasets

    digest = hashlib.sha256(repr([train._fingerprint, other._fingerprint]).encode())
    digest.update(order.tobytes())
    if not _holds_images(train, other):
        columns = [*COLUMNS, ORIGIN] if ORIGIN in train.column_names else list(COLUMNS)
        train, other = train.select_columns(columns), other.select_columns(columns)
    # columns that both have get one type (int32 and int64 ids meet here); concatenation fills the
    # others with nulls
    features = datasets.Features(
        {name: train.features.get(name, kind) for name, kind in other.features.items()}
    )
    with quiet_datasets():  # a cast rewrites the rows
        other = other if other.features == features else other.cast(features)
    joined = datasets.concatenate_datasets([train, other])
    return joined.select(order, new_fingerprint=digest.hexdigest()[:32])


def _holds_images(*data: datasets.Dataset | None) -> bool:
    return any(rows is not None and IMAGES in rows.column_names for rows in data)


def _check(dataset: datasets.Dataset, name: str) -> None:
    missing = not _holds_images(dataset) and not set(COLUMNS) <= set(dataset.column_names)
    if missing:
        raise DataError(
            f"Expected tokenised {name} data with the columns input_ids and labels, got "
            f"{', '.join(dataset.column_names)}. Tokenise both data sets the same way before "
            "mixing."
        )
    if "seq_lengths" in dataset.column_names:
        raise DataError(
            f"The {name} data is already packed (it has seq_lengths), and mixing would lose the "
            "boundaries of its documents. Mix first, then pack."
        )
    if not len(dataset):
        raise DataError(f"Expected at least one row in the {name} data, got none.")
