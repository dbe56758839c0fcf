"""Shared prefixes change how often a token is computed, and nothing else: against one text a forward, for every
architecture of the list."""

from __future__ import annotations

import numpy as np
import pytest

from evaluation.evaluation_models import ARCHITECTURES, architecture
from holdfast.errors import DataError
from holdfast.evaluation.text import shared_prefix
from holdfast.evaluation.text.shared_prefix import Path, branches_stay_apart, paths_of, rows_of, scorer_for


def in_a_row_of_its_own(model, path: Path) -> tuple[float, bool]:
    """The reference: one text, whole logits, float64 sums."""
    import torch

    with torch.no_grad():
        logits = model(torch.tensor([path.ids])).logits[0].double().log_softmax(-1)[-len(path.targets) :]
    gold = torch.tensor(path.targets)
    return float(logits[torch.arange(len(gold)), gold].sum()), bool((logits.argmax(-1) == gold).all())


def questions(seed: int = 0, *, count: int = 12, vocabulary: int = 97, examples: int = 0):
    """Contexts with four options of 1 to 5 tokens; `examples` tokens that all contexts begin with."""
    rng = np.random.default_rng(seed)
    before = rng.integers(0, vocabulary, examples).tolist()
    requests = []
    for _ in range(count):
        context = before + rng.integers(0, vocabulary, rng.integers(1, 12)).tolist()
        requests += [(context, rng.integers(0, vocabulary, rng.integers(1, 6)).tolist()) for _ in range(4)]
    return requests


@pytest.mark.parametrize(
    ("name", "examples"),
    [
        pytest.param(name, examples, marks=[] if name == "llama" or examples else pytest.mark.slow)
        for name, shares in ARCHITECTURES.items()
        for examples in (0, 20)
        if shares
    ],
)
def test_equal_to_one_text_a_forward(name, examples):
    model = architecture(name)
    paths = paths_of(questions(examples=examples), length=64)
    scorer = scorer_for(model, paths)
    assert scorer.shares
    import torch

    with torch.no_grad():
        found = scorer.answers(paths, name="text")
    for path, (nats, best) in zip(paths, found, strict=True):
        expected, greedy = in_a_row_of_its_own(model, path)
        assert nats == pytest.approx(expected, abs=1e-4)
        assert best == greedy


@pytest.mark.parametrize("name", [n for n, shares in ARCHITECTURES.items() if not shares])
def test_models_that_read_a_row_as_one_text_are_found_out(name):
    assert not scorer_for(architecture(name), paths_of(questions(), length=64)).shares


def test_the_head_of_a_model_that_cannot_share_is_not_copied(monkeypatch):
    """The harness scores such a model itself, and a copy in float32 takes gigabytes of a large vocabulary."""
    monkeypatch.setattr("holdfast.ops.heads.describe_head", lambda model: pytest.fail("described"))
    model = architecture("llama")
    model.config._attn_implementation = "flash_attention_2"
    assert not scorer_for(model, paths_of(questions(), length=64)).shares


def test_a_model_that_ignores_the_mask_is_found_out(monkeypatch):
    model = architecture("llama")
    paths = paths_of(questions(), length=64)
    original = shared_prefix.Scorer.states

    def leaky(self, row):
        states = original(self, row)
        return states + states.cumsum(0) * 1e-3

    monkeypatch.setattr(shared_prefix.Scorer, "states", leaky)
    assert not scorer_for(model, paths).shares


def test_positions_that_do_not_restart_are_found_out(monkeypatch):
    import dataclasses

    model = architecture("llama")
    paths = paths_of(questions(), length=64)
    original = shared_prefix.Scorer.states
    monkeypatch.setattr(
        shared_prefix.Scorer,
        "states",
        lambda self, row: original(self, dataclasses.replace(row, depths=np.arange(len(row.ids)))),
        raising=True,
    )
    assert not scorer_for(model, paths).shares


def test_long_contexts_lose_their_beginning():
    model = architecture("llama")
    long = list(np.random.default_rng(1).integers(0, 97, 90))
    requests = [([int(t) for t in long], [3, 4]), ([int(t) for t in long], [5])]
    paths = paths_of(requests, length=64)
    assert [len(p.ids) for p in paths] == [64, 64]
    assert paths[0].ids[-1] == 3 and paths[1].ids[-1] == long[-1]
    import torch

    scorer = scorer_for(model, paths)
    with torch.no_grad():
        assert scorer.answers(paths, name="text")[0][0] == pytest.approx(
            in_a_row_of_its_own(model, paths[0])[0], abs=1e-4
        )


def test_a_sliding_window_keeps_longer_texts_in_a_row_of_its_own():
    model = architecture("mistral sliding 8")
    requests = questions(3, examples=4)
    paths = paths_of(requests, length=64)
    scorer = scorer_for(model, paths)
    assert scorer.shares and scorer.window == 8
    assert all(len(row.paths) == 1 for row in scorer.rows(paths) if max(row.depths) >= 8)
    import torch

    with torch.no_grad():
        found = scorer.answers(paths, name="text")
    assert [nats for nats, _ in found] == pytest.approx(
        [in_a_row_of_its_own(model, path)[0] for path in paths], abs=1e-4
    )


def test_every_token_of_a_shared_beginning_is_computed_once():
    requests = questions(5, count=30, examples=40)
    paths = paths_of(requests, length=64)
    rows = list(rows_of(paths, hidden=64, least=512, most=4096))
    assert sorted(p.index for row in rows for p in row.paths) == list(range(len(paths)))
    whole = sum(len(p.ids) for p in paths)
    assert sum(len(row.ids) for row in rows) < 0.25 * whole
    for row in rows:
        for path, where in zip(row.paths, row.where, strict=True):
            # what a token sees is its own text: ancestors are the tokens before it whose part of the tree has not ended
            last = where[-1]
            seen = [int(j) for j in range(last + 1) if row.ends[j] > last]
            assert tuple(row.ids[seen]) == path.ids
            assert list(row.depths[seen]) == list(range(len(path.ids)))


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (([1, 2], []), "at least one token"),
        (([], [1]), "at least one token"),
        (([1], list(range(70))), "70 tokens, more than the model's context of 64"),
    ],
)
def test_requests_that_cannot_be_scored(request_, words):
    with pytest.raises(DataError, match=words):
        paths_of([([1], [2]), request_], length=64)


def test_branches_are_tried_in_half_precision_too():
    import torch

    model = architecture("llama").to(torch.bfloat16)
    scorer = scorer_for(model)
    one, two = paths_of([([1, 2, 3, 4], [5, 6, 7]), ([1, 2, 3, 4], [8, 9, 10])], length=64)
    with torch.no_grad():
        assert branches_stay_apart(scorer, one, two)
