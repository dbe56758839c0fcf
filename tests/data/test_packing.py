"""Whole documents into windows: nothing lost, nothing twice, next to nothing empty."""

from __future__ import annotations

import time

import numpy as np
import pytest
from datasets import Dataset

from holdfast.data.packing import pack, pack_dataset
from holdfast.errors import DataError


def news_lengths(count, seed=0):
    """The paper's distribution (section 3.1.1): 156 to 6981 tokens, 650 on average."""
    rng = np.random.default_rng(seed)
    return np.clip(rng.lognormal(np.log(650) - 0.55**2 / 2, 0.55, count), 156, 6981).astype(int)


def pieces_of(packing):
    return list(zip(packing.document.tolist(), packing.begin.tolist(), packing.length.tolist(), strict=True))


@pytest.mark.parametrize("seed", [None, 0, 1])
@pytest.mark.parametrize("window", [64, 1000, 4096])
def test_every_token_is_in_one_window(window, seed):
    lengths = news_lengths(500)
    packing = pack(lengths, window, seed=seed)
    covered = [np.zeros(n, int) for n in lengths]
    for document, begin, length in pieces_of(packing):
        covered[document][begin : begin + length] += 1
    left = np.array([(c == 0).sum() for c in covered])
    assert max(c.max() for c in covered) == 1
    assert set(np.flatnonzero(left)) <= set(np.flatnonzero(lengths % window == 1)), (
        "only a last token that stands alone is left out"
    )
    sizes = np.add.reduceat(packing.length, packing.bounds[:-1])
    assert sizes.max() <= window
    assert packing.info.tokens == sizes.sum() == lengths.sum() - left.sum()
    assert packing.info.windows == len(sizes) == len(packing.bounds) - 1
    assert packing.info.cut_tokens == left.sum()
    parts = np.bincount(packing.document, minlength=len(lengths))
    assert (parts[lengths <= window] == 1).all(), "documents that fit are whole"
    assert packing.info.split == (lengths > window).sum()


def test_it_is_as_good_as_one_document_after_the_other():
    """The classical rule, which looks at every window for each document."""
    lengths = np.random.default_rng(3).integers(2, 200, 400)
    free: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [i for i, space in enumerate(free) if space >= length]
        best = min(fitting, key=lambda i: free[i], default=None)
        if best is None:
            free.append(256 - length)
        else:
            free[best] -= length
    assert pack(lengths, 256).info.windows <= len(free)


@pytest.mark.parametrize("count", [1000, 20_000, 1_000_000])
def test_less_than_one_percent_of_the_windows_is_empty_on_the_papers_lengths(count):
    lengths = news_lengths(count)
    assert 600 < lengths.mean() < 700
    began = time.process_time()
    assert pack(lengths, 4096, seed=0).info.wasted < 0.01
    assert time.process_time() - began < 15, "some seconds on a busy machine; minutes would mean a loop over documents"


def test_without_splitting_ends_are_cut():
    packing = pack(np.array([10, 300, 64]), 64, split=False)
    assert sorted(pieces_of(packing)) == [(0, 0, 10), (1, 0, 64), (2, 0, 64)]
    assert packing.info.cut_tokens == 236 and packing.info.split == 0


@pytest.mark.parametrize(("length", "pieces"), [(64, 1), (65, 1), (66, 2), (128, 2), (129, 2), (130, 3)])
def test_a_last_token_alone_is_left_out(length, pieces):
    """Nothing in its window predicts it; two tokens are a piece of their own."""
    packing = pack(np.array([length, 2]), 64)
    mine = packing.length[packing.document == 0]
    assert len(mine) == pieces and packing.length.min() >= 2
    assert packing.info.cut_tokens == length - mine.sum() == (length % 64 == 1)


def test_a_seed_shuffles_whole_windows():
    lengths = news_lengths(300)
    one, other, same = (pack(lengths, 4096, seed=s) for s in (0, 1, 0))
    windows = [
        {tuple(p.document[a:b].tolist()) for a, b in zip(p.bounds[:-1], p.bounds[1:], strict=True)}
        for p in (one, other)
    ]
    assert windows[0] == windows[1]
    assert not np.array_equal(one.document, other.document)
    assert np.array_equal(one.document, same.document)


def test_documents_of_one_token_are_skipped_and_counted():
    info = pack(np.array([1, 0, 5, 1]), 8).info
    assert (info.documents, info.skipped, info.tokens) == (1, 3, 5)
    with pytest.raises(DataError, match="at least two tokens"):
        pack(np.array([1, 0]), 8)
    with pytest.raises(DataError, match="windows of at least two"):
        pack(np.array([4]), 1)


def test_rows_of_a_data_set(monkeypatch):
    monkeypatch.setattr("holdfast.data.packing._TABLE_TOKENS", 100)  # several tables
    rng = np.random.default_rng(0)
    documents = [rng.integers(0, 1000, n).tolist() for n in (5, 90, 33, 64, 150, 2, 1, 40)]
    labels = [[-100, *d[1:]] for d in documents]
    rows = Dataset.from_dict({"input_ids": documents, "labels": labels, "text": ["x"] * len(documents)})
    packed, info = pack_dataset(rows, 64, seed=0)
    assert len(packed) == info.windows and sum(map(len, packed["input_ids"])) == info.tokens
    whole = {tuple(d) for d in documents if 2 <= len(d) <= 64}
    seen = []
    for row in packed:
        assert sum(row["seq_lengths"]) == len(row["input_ids"]) == len(row["labels"]) <= 64
        start = 0
        for length in row["seq_lengths"]:
            seen.append((tuple(row["input_ids"][start : start + length]), tuple(row["labels"][start : start + length])))
            start += length
    assert whole <= {ids for ids, _ in seen}
    assert all((-100, *ids[1:]) == label for ids, label in seen if ids in whole)
    assert {ids for ids, _ in seen if ids not in whole} == {
        *(tuple(documents[1][i : i + 64]) for i in (0, 64)),
        *(tuple(documents[4][i : i + 64]) for i in (0, 64, 128)),
    }
    again, _ = pack_dataset(rows, 64, seed=0)
    assert again._fingerprint == packed._fingerprint, "kept in the cache"
