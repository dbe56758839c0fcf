"""How many tokens of a text are the model's most likely ones: counts and entropies against whole float64 logits."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from data_files import text_rows
from evaluation.conftest import SENTENCES, make_model, make_tokenizer, measured
from holdfast.evaluation.kinds.perplexity import MemorisationEntry
from holdfast.evaluation.text.perplexity import score_documents


@pytest.fixture(scope="module")
def echo():
    """A model whose most likely token is often the one it has just read: some of a text with repetitions is memorised,
    and not all."""
    model = make_model(tie_word_embeddings=True, seed=3)
    with torch.no_grad():
        model.model.embed_tokens.weight *= 12
    return model


def reference(model, ids: list[int], scored: range) -> tuple[float, int, float]:
    """(nats, most likely ones, summed entropy) of the scored positions; one text, whole logits."""
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].double()
    logp = logits.log_softmax(-1)
    nats = -sum(float(logp[t - 1, ids[t]]) for t in scored)
    exact = sum(int(logits[t - 1].argmax()) == ids[t] for t in scored)
    entropy = sum(-float((logp[t - 1].exp() * logp[t - 1]).sum()) for t in scored)
    return nats, exact, entropy


TEXTS = [*SENTENCES, "zzzzzzzz yyyyyy", "x", "The the the the", "vvvvvvvvvvvv"]


@pytest.mark.parametrize("bos", [True, False])
def test_counts_and_entropies_of_whole_texts(echo, bos: bool) -> None:
    tokenizer = make_tokenizer(bos=bos)
    texts = TEXTS if bos else [text for text in TEXTS if text != "x"]
    rows = score_documents(echo, tokenizer, texts, memorisation=True)
    for text, row in zip(texts, rows, strict=True):
        ids = ([tokenizer.bos_token_id] if bos else []) + tokenizer(text, add_special_tokens=False)["input_ids"]
        nats, exact, entropy = reference(echo, ids, range(1, len(ids)))
        assert row["tokens"] == len(ids) - 1
        assert row["exact"] == exact
        assert row["nats"] == pytest.approx(nats, abs=1e-3)
        assert row["entropy"] == pytest.approx(entropy, abs=1e-3)
    assert 0 < sum(row["exact"] for row in rows) < sum(row["tokens"] for row in rows)


def test_of_equal_logits_the_lowest_index_is_the_most_likely_one(tiny_tokenizer) -> None:
    model = make_model()
    with torch.no_grad():
        model.lm_head.weight.zero_()
    [row] = score_documents(model, tiny_tokenizer, ["xyz"], memorisation=True)
    assert (row["exact"], row["tokens"]) == (0, 3), "token 0 is BOS, and no text has it"


def test_the_figures_are_shares_of_all_tokens(echo, tiny_tokenizer, tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    text_rows(file, TEXTS)
    entry = MemorisationEntry(suite="keep", name="texts-memorisation", data=str(file))
    found = measured(echo, tiny_tokenizer, entry)
    rows, metrics = found.rows, found.metrics
    tokens = sum(row["tokens"] for row in rows)
    assert found.primary == "exact_memorisation"
    assert metrics["exact_memorisation"].value == pytest.approx(sum(row["exact"] for row in rows) / tokens)
    for metric in metrics.values():
        assert metric.interval is not None
        assert metric.interval[0] <= metric.value <= metric.interval[1]
        assert metric.n == len(TEXTS)


def test_a_certain_model_has_no_entropy_and_no_nan(tiny_tokenizer) -> None:
    """Logits so far apart that all probabilities but one are 0 in float32."""
    model = make_model(tie_word_embeddings=True, seed=3)
    with torch.no_grad():
        model.model.embed_tokens.weight *= 1e4
    [row] = score_documents(model, tiny_tokenizer, ["zzzzzzzz"], memorisation=True)
    assert row["entropy"] == pytest.approx(0.0, abs=1e-6)
    assert math.isfinite(row["nats"])
