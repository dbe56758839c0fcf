"""Packing: whole documents into windows of one length, so that next to nothing of a window is left
empty.

Best-fit decreasing: documents from long to short, each into the window that it fills best.
Documents longer than a window are cut into full windows and a rest. The classical rule looks at one
document after the other; here all documents of one length are placed at once, because only the
space left in a window decides: L different lengths take some L steps over arrays, not one step a
document (a million documents: below a second).

TRL's own rule takes another window among those with the same space, and keeps pieces of one token,
which nothing predicts; it looks at a thousand documents at a time unless told otherwise. Windows
come out in the order of an own shuffle, as their documents are sorted by size.

Source: "Balancing Continuous Pre-Training" (section 3.1.1): windows of 4096 tokens, documents of
156 to 6981 tokens, 650 on average.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.errors import DataError

if TYPE_CHECKING:
    import datasets
    import numpy as np
    import pyarrow as pa

_RULES = 1
"""Raised when the same documents are packed otherwise, so that cached windows are not taken for
them."""
_TABLE_TOKENS = 4_000_000
"""Tokens that are in memory at a time while windows are written."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackInfo:
    """What came of packing."""

    documents: int
    """Documents with at least two tokens; a single token is predicted from nothing."""
    tokens: int
    """In the windows."""
    windows: int
    window: int
    """Tokens that a window holds."""
    split: int
    """Documents that were longer than a window, and cut."""
    cut_tokens: int = 0
    """Tokens beyond the window that were left out, where documents are cut off rather than
    split."""
    skipped: int = 0
    """Documents of fewer than two tokens."""

    @property
    def wasted(self) -> float:
        """Share of the windows' places that hold no token."""
        return 1.0 - self.tokens / max(1, self.windows * self.window)


@dataclasses.dataclass(frozen=True)
class Packing:
    """Which piece of which document lies where. Arrays over pieces, window by window.

    Attributes:
        document: `[pieces]` int64, index of the document.
        begin: `[pieces]` int64, first token of it.
        length: `[pieces]` int64, tokens.
        bounds: `[windows + 1]` int64, the pieces of window w are `bounds[w]:bounds[w + 1]`.
        info: figures.
    """

    document: np.ndarray
    begin: np.ndarray
    length: np.ndarray
    bounds: np.ndarray
    info: PackInfo


def pack(
    lengths: np.ndarray, window: int, *, split: bool = True, seed: int | None = None
) -> Packing:
    """Places documents in windows by best-fit decreasing.

    Args:
        lengths: `[documents]` integers, tokens of each.
        window: tokens that a window holds, at least 2.
        split: whether documents longer than a window are cut into several pieces; else what lies
            beyond the window is left out.
        seed: of the windows' order; None: from the fullest documents on.

    Raises:
        DataError: no document has two tokens.
    """
    import numpy as np

    lengths = np.asarray(lengths, np.int64)
    documents = np.flatnonzero(lengths >= 2)
    if not len(documents):
        raise DataError(
            f"Expected documents of at least two tokens to pack, got {len(lengths)} with fewer."
        )
    if window < 2:
        raise DataError(f"Expected windows of at least two tokens, got {window}.")
    long = lengths[documents] > window
    if split:
        counts = np.maximum(1, -(-lengths[documents] // window))
        document = np.repeat(documents, counts)
        first = np.repeat(np.cumsum(counts) - counts, counts)
        begin = (np.arange(len(document)) - first) * window
        length = np.minimum(window, lengths[document] - begin)
        stump = length < 2  # the last token of a document cannot be predicted from nothing
        document, begin, length = document[~stump], begin[~stump], length[~stump]
    else:
        document, begin = documents, np.zeros_like(documents)
        length = np.minimum(lengths[documents], window)
    home = _best_fit(length, window)
    windows = int(home.max()) + 1
    if seed is not None:
        home = np.random.default_rng(seed).permutation(windows)[home]
    order = np.argsort(home, kind="stable")
    info = PackInfo(
        documents=len(documents),
        tokens=int(length.sum()),
        windows=windows,
        window=window,
        split=int(long.sum()) if split else 0,
        cut_tokens=int(lengths[documents].sum() - length.sum()),
        skipped=len(lengths) - len(documents),
    )
    bounds = np.concatenate([[0], np.cumsum(np.bincount(home, minlength=windows))])
    return Packing(document[order], begin[order], length[order], bounds, info)


def _best_fit(lengths: np.ndarray, window: int) -> np.ndarray:
    """The window of each piece, shape `[pieces]`. Pieces of one length are placed together: they
    are alike to the rule."""
    import numpy as np

    home = np.empty(len(lengths), np.int64)
    order = np.argsort(-lengths, kind="stable")
    edges = np.flatnonzero(np.diff(lengths[order], prepend=-1, append=-1))
    free: dict[int, list[np.ndarray]] = {}
    """Windows by the space that is left in them."""
    spaces = np.zeros(window + 1, np.int64)
    """How many windows have so much space left."""
    opened = 0
    for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        pieces, size = order[start:stop], int(lengths[order[start]])
        while len(pieces):
            fitting = np.flatnonzero(spaces[size:])
            if not len(fitting):
                each = window // size  # of new windows, every one takes as many as it holds
                count = -(-len(pieces) // each)
                home[pieces] = opened + np.arange(len(pieces)) // each
                taken = np.full(count, each)
                taken[-1] = len(pieces) - each * (count - 1)
                fresh = opened + np.arange(count)
                for amount in {each, int(taken[-1])}:
                    _put(free, spaces, window - size * amount, fresh[taken == amount])
                opened += count
                break
            space = int(fitting[0]) + size
            windows = free[space].pop()
            used = windows[: len(pieces)]
            home[pieces[: len(used)]] = used
            pieces = pieces[len(used) :]
            spaces[space] -= len(used)
            if len(used) < len(windows):
                free[space].append(windows[len(used) :])
            _put(free, spaces, space - size, used)
    return home


def _put(
    free: dict[int, list[np.ndarray]], spaces: np.ndarray, space: int, windows: np.ndarray
) -> None:
    if space > 0 and len(windows):
        free.setdefault(space, []).append(windows)
        spaces[space] += len(windows)


def pack_dataset(
    tokenised: datasets.Dataset, window: int, *, split: bool = True, seed: int | None = None
) -> tuple[datasets.Dataset, PackInfo]:
    """The windows of a tokenised data set, kept in the datasets cache.

    Args:
        tokenised: columns `input_ids` and `labels`, a document a row.
        window, split, seed: as of `pack`.

    Returns:
        Rows with `input_ids`, `labels` and `seq_lengths` (the documents' lengths in the window, in
        order), and figures; with `mixing.ORIGIN` of each document where the rows have it.

    Raises:
        DataError: no document has two tokens.
        StorageError: the cache cannot be written.
    """
    from holdfast.data.arrow_cache import cached_dataset
    from holdfast.data.mixing import COLUMNS, ORIGIN, token_lengths

    rows = tokenised.select_columns(
        [*COLUMNS, *([ORIGIN] if ORIGIN in tokenised.column_names else [])]
    )
    packing = pack(token_lengths(rows), window, split=split, seed=seed)
    key = hashlib.sha256(
        repr((_RULES, rows._fingerprint, window, split, seed)).encode()
    ).hexdigest()
    return cached_dataset(key, _windows(rows, packing)), packing.info


def _windows(rows: datasets.Dataset, packing: Packing) -> Iterator[pa.Table]:
    """Tables of windows, some million tokens each."""
    import numpy as np
    import pyarrow as pa

    from holdfast.data.mixing import ORIGIN

    arrow = rows.with_format("arrow")
    ends = np.concatenate([[0], np.cumsum(packing.length)])[
        packing.bounds
    ]  # tokens before each window
    start = 0
    while start < packing.info.windows:
        stop = max(
            start + 1, int(np.searchsorted(ends, ends[start] + _TABLE_TOKENS, side="right")) - 1
        )
        first, last = int(packing.bounds[start]), int(packing.bounds[stop])
        pieces = slice(first, last)
        documents, row = np.unique(packing.document[pieces], return_inverse=True)
        table = arrow[documents] if len(documents) < len(rows) else arrow[:]
        offsets = pa.array(ends[start : stop + 1] - ends[start], pa.int32())
        columns = {}
        for name in ("input_ids", "labels"):
            lists = table.column(name).combine_chunks()
            values = lists.flatten().to_numpy(zero_copy_only=False)
            begins = np.concatenate(
                [[0], np.cumsum(lists.value_lengths().to_numpy(zero_copy_only=False))]
            )[:-1]
            places = _places(begins[row] + packing.begin[pieces], packing.length[pieces])
            columns[name] = pa.ListArray.from_arrays(offsets, pa.array(values[places]))
        inner = pa.array(packing.bounds[start : stop + 1] - first, pa.int32())
        columns["seq_lengths"] = pa.ListArray.from_arrays(inner, pa.array(packing.length[pieces]))
        if ORIGIN in rows.column_names:
            origin = table.column(ORIGIN).combine_chunks().flatten().to_numpy(zero_copy_only=False)
            columns[ORIGIN] = pa.ListArray.from_arrays(inner, pa.array(origin[row]))
        yield pa.table(columns)
        start = stop


def _places(begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Indices of all tokens of stretches, one stretch after the other: `[sum of lengths]`."""
    import numpy as np

    ends = np.cumsum(lengths)
    shifted = np.repeat(begins - (ends - lengths), lengths)
    return shifted + np.arange(int(ends[-1]) if len(ends) else 0)
