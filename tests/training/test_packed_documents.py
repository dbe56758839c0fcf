"""Packed documents in training: logits as if each stood alone, whatever computes the attention, and the same loss and
gradients."""

from __future__ import annotations

import pytest
import torch
from cases import history, make_trainer
from datasets import Dataset

from holdfast.ops.document_attention import IMPLEMENTATION
from holdfast.training.document_attention import use_document_attention
from tiny import DECODER, SENTENCES, build_model


def batch(lengths, *, vocabulary=320, seed=0):
    ids = torch.randint(5, vocabulary, (sum(lengths),), generator=torch.Generator().manual_seed(seed))
    places = torch.cat([torch.arange(n) for n in lengths])
    bounds = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32)
    packed = {"input_ids": ids[None], "position_ids": places[None]}
    return packed, {
        **packed,
        "cu_seq_lens_q": bounds,
        "cu_seq_lens_k": bounds,
        "max_length_q": max(lengths),
        "max_length_k": max(lengths),
    }


def architectures():
    from transformers import (
        Gemma3ForCausalLM,
        Gemma3TextConfig,
        LlamaConfig,
        LlamaForCausalLM,
        MistralConfig,
        MistralForCausalLM,
        Qwen2Config,
        Qwen2ForCausalLM,
        Qwen3Config,
        Qwen3ForCausalLM,
    )

    return {
        "llama": (LlamaForCausalLM, LlamaConfig(**DECODER)),
        "mistral, sliding window": (MistralForCausalLM, MistralConfig(**DECODER, sliding_window=8)),
        "qwen2": (Qwen2ForCausalLM, Qwen2Config(**DECODER)),
        "qwen3": (Qwen3ForCausalLM, Qwen3Config(**DECODER, head_dim=8)),
        "gemma3": (Gemma3ForCausalLM, Gemma3TextConfig(**DECODER, head_dim=8, sliding_window=8)),
    }


@pytest.mark.parametrize("name", ["llama", "mistral, sliding window", "qwen2", "qwen3", "gemma3"])
@pytest.mark.parametrize("attention", ["sdpa", "eager", IMPLEMENTATION])
def test_packed_logits_are_those_of_each_document_alone(name, attention):
    make, config = architectures()[name]
    torch.manual_seed(0)
    model = make(config).eval()
    model.set_attn_implementation("eager" if attention == "eager" else "sdpa")
    if attention == IMPLEMENTATION:
        assert use_document_attention(model)
    lengths = [11, 3, 25, 2]
    packed, bounded = batch(lengths)
    with torch.no_grad():
        together = model(**(bounded if attention == IMPLEMENTATION else packed), use_cache=False).logits[0]
        alone = [model(input_ids=ids[None], use_cache=False).logits[0] for ids in packed["input_ids"][0].split(lengths)]
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-5, rtol=0)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_are_those_of_the_mask(checkpointing):
    packed, bounded = batch([9, 30, 4])
    grads = []
    for ours in (False, True):
        model = build_model()
        if ours:
            assert use_document_attention(model)
        if checkpointing:
            model.gradient_checkpointing_enable()
        model.train()
        model(**(bounded if ours else packed), use_cache=False).logits.square().mean().backward()
        grads.append({n: p.grad for n, p in model.named_parameters()})
    for name, grad in grads[0].items():
        torch.testing.assert_close(grads[1][name], grad, atol=1e-7, rtol=1e-4)


def test_everything_else_is_sdpa_as_before(tokenizer):
    plain, ours = build_model().eval(), build_model().eval()
    assert use_document_attention(ours)
    rows = tokenizer(SENTENCES[:3], return_tensors="pt", padding=True, padding_side="left", return_token_type_ids=False)
    with torch.no_grad():
        assert torch.equal(ours(**rows).logits, plain(**rows).logits)
        assert torch.equal(ours(input_ids=rows["input_ids"]).logits, plain(input_ids=rows["input_ids"]).logits)
    packed, _ = batch([9, 30, 4])
    with torch.no_grad():  # bounds are not there: transformers' mask is
        assert torch.equal(ours(**packed, use_cache=False).logits, plain(**packed, use_cache=False).logits)


def test_it_is_not_in_what_is_saved(tmp_path):
    model = build_model()
    assert use_document_attention(model) and use_document_attention(model), "twice is once"
    model.save_pretrained(tmp_path)
    assert IMPLEMENTATION not in (tmp_path / "config.json").read_text()


def test_models_that_it_does_not_suit_keep_what_they_have():
    from transformers import AutoModelForCausalLM, MambaConfig

    eager = build_model()
    eager.set_attn_implementation("eager")
    assert not use_document_attention(eager) and eager.config._attn_implementation == "eager"
    mamba = AutoModelForCausalLM.from_config(
        MambaConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1, state_size=4)
    )
    assert not use_document_attention(mamba)


def test_an_architecture_that_swallows_the_bounds_is_found_out():
    model = build_model()
    for layer in model.model.layers:
        forward = layer.self_attn.forward
        layer.self_attn.forward = lambda *args, forward=forward, **kwargs: forward(
            *args, **{k: v for k, v in kwargs.items() if not k.startswith("cu_seq")}
        )
    assert not use_document_attention(model)
    assert model.config._attn_implementation == "sdpa"
    assert not model.model._forward_pre_hooks and not model.model._forward_hooks


def trainer_of(folder, *, attention=None, retain=(), texts=None, **changes):
    model = build_model()
    if attention:
        model.set_attn_implementation(attention)
    settings = {"packing": True, "packing_strategy": "bfd_split", "max_steps": 3, "per_device_train_batch_size": 2}
    data = Dataset.from_dict({"text": texts if texts is not None else SENTENCES * 6})
    return make_trainer(folder, retain, model=model, data=data, **settings, **changes)


def test_a_trainer_confines_attention_and_trains_as_with_the_mask(tmp_path):
    ours, dense = trainer_of(tmp_path / "a"), trainer_of(tmp_path / "b", attention="eager")
    assert ours.model.config._attn_implementation == IMPLEMENTATION
    assert any("dense mask over the whole batch" in note for note in dense.data_notes)
    assert not any("mask" in note for note in ours.data_notes)
    for trainer in (ours, dense):
        trainer.train()
    losses = [history(t, "loss") for t in (ours, dense)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    for (name, one), other in zip(ours.model.named_parameters(), dense.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-3, msg=name)


def test_a_teacher_sees_the_same_documents(tmp_path):
    from holdfast.retention.methods.label_annealing import LabelAnnealing

    trainer = trainer_of(tmp_path, retain=[LabelAnnealing(weight=1.0)], learning_rate=0.0)
    trainer.train()
    kls = history(trainer, "kl")
    assert kls and max(map(abs, kls)) < 1e-6, "a student that has not moved is its teacher, document by document"
