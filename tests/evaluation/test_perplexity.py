"""Scores agree with full logits one document at a time, whatever the packing and windowing."""

from __future__ import annotations

import random

import pytest
import torch

from evaluation.conftest import SENTENCES, make_model, make_tokenizer
from holdfast.errors import DataError, ModelError
from holdfast.evaluation.text.documents import encode_document
from holdfast.evaluation.text.perplexity import Windows, cut, pack, resolve_window, score_documents


def reference(model, ids: list[int], positions: list[int]) -> float:
    """Nats of the given positions from the model's own full logits."""
    with torch.no_grad():
        log_p = model(input_ids=torch.tensor([ids])).logits[0].double().log_softmax(-1)
    return -sum(float(log_p[t - 1, ids[t]]) for t in positions)


def short_documents(n: int = 25) -> list[str]:
    rng = random.Random(0)
    return [" ".join(rng.sample(SENTENCES[i % 5].split(), k=rng.randint(1, 8))) for i in range(n)]


@pytest.mark.parametrize("bos", [True, False])
def test_packed_rows_score_as_documents_alone(tiny_model, bos):
    tokenizer = make_tokenizer(bos=bos)
    documents = short_documents()
    rows = score_documents(tiny_model, tokenizer, documents, windows=Windows(batch_tokens=100))
    assert (
        len(pack(cut([encode_document(d, tokenizer) for d in documents], window=64, stride=32), batch_tokens=100))
        < len(documents) / 2
    )
    for document, row in zip(documents, rows, strict=True):
        ids = tokenizer(document)["input_ids"]
        ids = [tokenizer.bos_token_id, *ids] if bos else ids
        assert row["tokens"] == len(ids) - 1
        assert row["nats"] == pytest.approx(reference(tiny_model, ids, list(range(1, len(ids)))), abs=1e-4)
        unscored = 0 if bos else len(tokenizer.decode(ids[:1]).encode())
        assert row["bytes"] == len(document.encode()) - unscored


def test_batch_size_changes_nothing(tiny_model, tiny_tokenizer):
    documents = [*short_documents(9), "word " * 200]
    narrow, wide = Windows(batch_tokens=1), Windows(batch_tokens=500)
    one, many = (score_documents(tiny_model, tiny_tokenizer, documents, windows=w) for w in (narrow, wide))
    assert [r["nats"] for r in one] == pytest.approx([r["nats"] for r in many], rel=1e-5)


@pytest.mark.parametrize(("window", "stride"), [(16, 8), (16, 15), (7, 1), (64, 32)])
def test_windows_score_every_token_once_with_enough_context(tiny_model, tiny_tokenizer, window, stride):
    document = " ".join(SENTENCES)
    ids = encode_document(document, tiny_tokenizer).ids
    [row] = score_documents(tiny_model, tiny_tokenizer, [document], windows=Windows(window=window, stride=stride))
    assert row["tokens"] == len(ids) - 1
    expected, end = 0.0, min(window, len(ids))
    scored = list(range(1, end))
    expected += reference(tiny_model, ids[:end], scored)
    while end < len(ids):
        new_end = min(end + stride, len(ids))
        begin = new_end - window
        expected += reference(tiny_model, ids[begin:new_end], [t - begin for t in range(end, new_end)])
        end = new_end
    assert row["nats"] == pytest.approx(expected, abs=1e-3)


def test_window_beyond_the_model_and_stride_without_context_are_refused(tiny_model):
    with pytest.raises(ModelError, match=r"at most 64 tokens.*got 100"):
        resolve_window(tiny_model, 100)
    with pytest.raises(DataError, match="stride below the window"):
        resolve_window(tiny_model, 16, 16)


def test_only_the_completion_is_scored(tiny_model, tiny_tokenizer):
    prompt, completion = "Question: what colour is the sky? Answer:", " blue."
    [row] = score_documents(tiny_model, tiny_tokenizer, [(prompt, completion)])
    start = len(tiny_tokenizer(prompt)["input_ids"]) + 1
    ids = [tiny_tokenizer.bos_token_id, *tiny_tokenizer(prompt + completion)["input_ids"]]
    assert row["nats"] == pytest.approx(reference(tiny_model, ids, list(range(start, len(ids)))), abs=1e-4)
    assert (row["tokens"], row["bytes"]) == (len(ids) - start, len(completion))


def test_token_across_the_border_is_scored(tiny_tokenizer):
    whole, prefix = (tiny_tokenizer(text)["input_ids"] for text in ("teacher", "teach"))
    assert whole[: len(prefix)] != prefix, "the last token of the prompt must merge across the border"
    encoded = encode_document(("teach", "er"), tiny_tokenizer)
    assert encoded.ids == [0, *whole]
    prompt = [0, *tiny_tokenizer("teach")["input_ids"]]
    shared = next(i for i in range(len(prompt) + 1) if i == len(prompt) or prompt[i] != encoded.ids[i])
    assert encoded.spans == [(shared, len(encoded.ids))]


def test_chat_scores_what_the_assistant_says():
    model = make_model(positions=256)
    tokenizer = make_tokenizer(chat=True)
    messages = [
        {"role": "user", "content": "What colour is the sky?"},
        {"role": "assistant", "content": "blue."},
        {"role": "user", "content": "And the dog?"},
        {"role": "assistant", "content": "brown."},
    ]
    encoded = encode_document(messages, tokenizer)
    texts = [tokenizer.decode(encoded.ids[a:b]) for a, b in encoded.spans]
    assert texts == ["blue.<|end|>", "brown.<|end|>"]
    assert encoded.bytes == sum(len(t) for t in texts)
    pair = encode_document((messages[:3], messages[3:]), tokenizer)
    assert pair.spans == encoded.spans[1:]
    [row] = score_documents(model, tokenizer, [messages])
    assert row["nats"] == pytest.approx(
        reference(model, encoded.ids, [t for a, b in encoded.spans for t in range(a, b)]), abs=1e-3
    )


def test_chat_without_template_says_so(tiny_tokenizer):
    with pytest.raises(ModelError, match="no chat template"):
        encode_document([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}], tiny_tokenizer)


def test_bos_is_added_once_even_where_the_tokenizer_adds_it():
    from tokenizers.processors import TemplateProcessing

    tokenizer = make_tokenizer()
    plain = encode_document("The quick fox", tokenizer).ids
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", 0)]
    )
    assert tokenizer("The quick fox")["input_ids"][0] == 0, "the tokenizer now adds it itself"
    assert encode_document("The quick fox", tokenizer).ids == plain
    assert plain.count(0) == 1


def test_leaking_attention_is_found_out_and_scored_one_by_one(tiny_tokenizer, monkeypatch):
    """A model that ignores the restarts of the positions, as recurrent ones do."""
    model = make_model()
    forward = model.model.forward
    honest = score_documents(model, tiny_tokenizer, short_documents())

    def leaking(input_ids=None, position_ids=None, **kwargs):
        return forward(input_ids=input_ids, **kwargs)

    monkeypatch.setattr(model.model, "forward", leaking)
    notes: list[str] = []
    rows = score_documents(model, tiny_tokenizer, short_documents(), notes=notes)
    assert "one by one" in notes[0]
    assert [r["nats"] for r in rows] == pytest.approx([r["nats"] for r in honest], abs=1e-4)


def test_weights_that_are_no_numbers_say_nothing_about_documents(tiny_tokenizer):
    model = make_model()
    with torch.no_grad():
        model.model.norm.weight[0] = float("nan")
    notes: list[str] = []
    score_documents(model, tiny_tokenizer, short_documents(), notes=notes)
    assert notes == []


def test_soft_capped_scaled_heads_agree_with_the_models_own_logits(tiny_tokenizer):
    from transformers import CohereConfig, CohereForCausalLM, Gemma2Config, Gemma2ForCausalLM

    shape = {
        "vocab_size": 300,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    }
    torch.manual_seed(0)
    gemma = Gemma2ForCausalLM(
        Gemma2Config(**shape, head_dim=16, final_logit_softcapping=2.0, sliding_window=8, initializer_range=0.3)
    ).eval()
    cohere = CohereForCausalLM(CohereConfig(**shape, logit_scale=0.25, initializer_range=0.3, pad_token_id=1)).eval()
    for model in (gemma, cohere):
        notes: list[str] = []
        rows = score_documents(model, tiny_tokenizer, SENTENCES, notes=notes)
        for text, row in zip(SENTENCES, rows, strict=True):
            ids = encode_document(text, tiny_tokenizer).ids
            assert row["nats"] == pytest.approx(reference(model, ids, list(range(1, len(ids)))), abs=1e-3)
        assert not notes, f"{type(model).__name__} should isolate packed documents"


def test_peft_model_is_scored_with_its_adapter(tiny_tokenizer):
    from peft import LoraConfig, get_peft_model

    model = make_model()
    bare = score_documents(model, tiny_tokenizer, SENTENCES)
    peft = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    assert score_documents(peft, tiny_tokenizer, SENTENCES) == bare, "a fresh adapter is the identity"
    torch.manual_seed(1)
    for name, parameter in peft.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    rows = score_documents(peft, tiny_tokenizer, SENTENCES)
    ids = encode_document(SENTENCES[0], tiny_tokenizer).ids
    assert rows[0]["nats"] == pytest.approx(reference(peft.eval(), ids, list(range(1, len(ids)))), abs=1e-3)
    assert rows != bare


def test_model_is_given_back_as_it_was(tiny_tokenizer):
    model = make_model()
    model.train()
    model.model.layers[1].eval()
    flags = {name: module.training for name, module in model.named_modules()}
    score_documents(model, tiny_tokenizer, SENTENCES)
    assert {name: module.training for name, module in model.named_modules()} == flags
    assert all(p.grad is None for p in model.parameters())
    assert torch.is_grad_enabled()


def test_nothing_to_score_and_foreign_tokenizers_are_refused(tiny_tokenizer, tiny_model):
    with pytest.raises(DataError, match="none of the 1 documents"):
        score_documents(tiny_model, tiny_tokenizer, [""])
    small = make_model()
    small.resize_token_embeddings(100)
    with pytest.raises(ModelError, match="embeddings for 100 tokens"):
        score_documents(small, tiny_tokenizer, SENTENCES)
    with pytest.raises(DataError, match=r"pair or a list of chat messages.*got"):
        score_documents(tiny_model, tiny_tokenizer, [{"text": "no"}])
