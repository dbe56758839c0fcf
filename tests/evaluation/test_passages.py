"""Nats a token of batches of short texts: equal to a float64 reference, whatever shares the batch, in any dtype."""

from __future__ import annotations

import pytest
import torch

from holdfast.errors import ModelError
from holdfast.evaluation.text.documents import Document, encode_document
from holdfast.evaluation.text.passages import passage_scorer
from holdfast.evaluation.text.perplexity import score_documents
from tiny import SENTENCES, build_model, build_tokenizer


def reference(model, ids: list[int]) -> float:
    """Mean of -log p in float64, token by token out of the whole logits."""
    with torch.no_grad():
        logits = model.double()(input_ids=torch.tensor([ids])).logits[0]
    model.float()
    return float(-logits[:-1].log_softmax(-1)[torch.arange(len(ids) - 1), torch.tensor(ids[1:])].mean())


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize("tie", [False, True])
def test_equals_a_reference_in_double_precision(bos, tie):
    tokenizer = build_tokenizer(**({"bos_token": "<|endoftext|>"} if bos else {}))
    model = build_model(tie=tie).train()
    rows = [tokenizer(text * n)["input_ids"] for n, text in enumerate(SENTENCES, 1)]
    found = passage_scorer(model, tokenizer)(rows)
    front = [tokenizer.bos_token_id] if bos else []
    assert found == pytest.approx([reference(model, [*front, *row]) for row in rows], abs=2e-6)
    assert model.training and all(p.grad is None for p in model.parameters())


def test_agrees_with_perplexity_and_does_not_depend_on_the_batch():
    tokenizer, model = build_tokenizer(), build_model()
    documents: list[Document] = [*SENTENCES]
    rows = [list(encode_document(text, tokenizer).ids) for text in documents]
    score = passage_scorer(model, tokenizer)
    together = score(rows)
    assert together == pytest.approx([score([row])[0] for row in rows], abs=1e-6)
    other = score_documents(model, tokenizer, documents)
    assert together == pytest.approx([row["nats"] / row["tokens"] for row in other], abs=1e-5)


def test_logits_are_sliced_without_a_change(monkeypatch):
    from holdfast.evaluation.text import passages

    tokenizer, model = build_tokenizer(), build_model()
    rows = [tokenizer(text * 2)["input_ids"] for text in SENTENCES]
    whole = passage_scorer(model, tokenizer)(rows)
    monkeypatch.setattr(passages, "_CPU_CELLS", 0)
    assert passage_scorer(model, tokenizer)(rows) == pytest.approx(whole, abs=1e-6)


def test_half_precision_has_the_logits_of_the_models_own_forward():
    tokenizer, model = build_tokenizer(), build_model().to(torch.bfloat16)
    row = tokenizer(SENTENCES[0] * 3)["input_ids"]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([row])).logits[0].float()
    own = -logits[:-1].log_softmax(-1)[torch.arange(len(row) - 1), torch.tensor(row[1:])].mean()
    assert passage_scorer(model, tokenizer)([row])[0] == pytest.approx(float(own), abs=1e-3)


def test_a_tokenizer_of_another_model_is_refused():
    with pytest.raises(ModelError, match="token id 319, but the model has embeddings for 300"):
        passage_scorer(build_model(300), build_tokenizer())([[2, 319]])
