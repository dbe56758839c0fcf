"""Packed documents in training: logits as if each stood alone, whatever computes the attention, and the same loss and
gradients."""

from __future__ import annotations

import functools

import pytest
import torch
from cases import history, make_trainer
from datasets import Dataset

from holdfast.checkpoints.tiny_copy import tiny_copy
from holdfast.errors import ConfigError
from holdfast.ops.document_attention import IMPLEMENTATION
from holdfast.ops.heads import backbone_of
from holdfast.training import document_attention as document_attention_module
from holdfast.training.document_attention import (
    model_problem,
    packing_problem,
    use_document_attention,
)
from holdfast.training.documents_alone import may_run_alone, run_documents_alone
from tiny import SENTENCES, build_decoder, build_model


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


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("llama", {}),
        ("mistral", {"sliding_window": 8}),
        ("qwen2", {}),
        ("qwen3", {"head_dim": 8}),
        ("gemma3_text", {"head_dim": 8, "sliding_window": 8}),
    ],
)
@pytest.mark.parametrize("attention", ["sdpa", "eager", IMPLEMENTATION])
def test_packed_logits_are_those_of_each_document_alone(kind, more, attention):
    model = build_decoder(kind, **more).eval()
    model.set_attn_implementation("eager" if attention == "eager" else "sdpa")
    if attention == IMPLEMENTATION:
        assert use_document_attention(model)
    lengths = [11, 3, 25, 2]
    packed, bounded = batch(lengths)
    with torch.no_grad():
        together = model(**(bounded if attention == IMPLEMENTATION else packed), use_cache=False).logits[0]
        alone = [model(input_ids=ids[None], use_cache=False).logits[0] for ids in packed["input_ids"][0].split(lengths)]
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-5, rtol=0)


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


@pytest.fixture
def swallowing(monkeypatch):
    """Llama as an architecture that hands on neither bounds nor a mask by positions, when it is told to."""
    from transformers.models.llama import modeling_llama

    forward = modeling_llama.LlamaAttention.forward

    def swallow(self, *args, **kwargs):
        kwargs = {k: v for k, v in kwargs.items() if not k.startswith("cu_seq")}
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(document_attention_module, "_tried", {})
    monkeypatch.setattr(modeling_llama.LlamaAttention, "forward", swallow)


def test_an_architecture_that_swallows_the_bounds_keeps_the_mask(swallowing):
    model = build_model()
    assert not use_document_attention(model)
    assert model.config._attn_implementation == "sdpa"
    assert not model.model._forward_pre_hooks and not model.model._forward_hooks
    assert model_problem(model, own=True) == "", "transformers' mask keeps documents apart"


@pytest.mark.parametrize(
    ("kind", "attention"),
    [
        ("falcon", "sdpa"),
        *[(kind, "eager") for kind in ("falcon", "opt", "bloom", "mpt", "gpt_oss")],
        *[(kind, None) for kind in ("mamba", "rwkv", "recurrent_gemma")],
    ],
)
def test_documents_that_see_each_other_are_refused(kind, attention):
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    config = CONFIG_MAPPING[kind]()
    make = functools.partial(AutoModelForCausalLM.from_config, attn_implementation=attention)
    problem = packing_problem(config, make, attention=attention)
    assert "attend to each other" in problem and f"attn_implementation: {attention or ''}" in problem
    assert type(tiny_copy(config, make)).__name__ in problem


def test_sharded_and_compiled_models_cannot_run_documents_alone(monkeypatch):
    assert may_run_alone({"packing": True, "fsdp": [], "deepspeed": None, "torch_compile": False})
    for settings in ({"fsdp": ["full_shard"]}, {"deepspeed": "ds.json"}, {"torch_compile": True}):
        assert not may_run_alone(settings)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    assert not may_run_alone({})


def test_a_model_in_memory_is_refused_where_its_documents_cannot_be_run_alone(tmp_path, monkeypatch):
    model = small("bloom")
    monkeypatch.setattr("holdfast.training.trainers.may_run_alone", lambda settings: False)
    for setting in ("packing", "padding_free"):
        with pytest.raises(
            ConfigError, match=f"{setting}: expected false, because BloomForCausalLM .* attend to each other"
        ):
            make_trainer(tmp_path, model=model, data=Dataset.from_dict({"text": SENTENCES}), **{setting: True})
    make_trainer(tmp_path, model=model, data=Dataset.from_dict({"text": SENTENCES}))


def small(kind):
    """A model of two narrow layers whose documents attend to each other in one row."""
    experts = {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2}
    return build_decoder(kind, **(experts if kind == "gpt_oss" else {}))


@pytest.mark.parametrize("kind", ["bloom", "falcon", "mamba", "gpt_oss"])
def test_documents_that_see_each_other_are_run_alone(kind):
    """Outputs and gradients of a packed row are those of its documents, each by itself."""
    model = small(kind).train()
    ids = torch.arange(23)[None] * 7 % 300 + 3
    bounds = torch.tensor([0, 7, 18, 23], dtype=torch.int32)
    places = torch.cat([torch.arange(n) for n in (7, 11, 5)])[None]
    more = {"output_router_logits": True} if kind == "gpt_oss" else {}
    backbone = backbone_of(model)
    alone = [backbone(input_ids=document, use_cache=False, **more) for document in ids.split([7, 11, 5], 1)]
    wanted = torch.cat([output.last_hidden_state for output in alone], 1)
    gradients = torch.autograd.grad(wanted.square().mean(), list(backbone.parameters()))
    run_documents_alone(model)
    row = {"input_ids": ids, "position_ids": places, "cu_seq_lens_q": bounds, "max_length_q": 11}
    found = backbone(**row, use_cache=False, **more)
    assert torch.equal(found.last_hidden_state, wanted)
    again = torch.autograd.grad(found.last_hidden_state.square().mean(), list(backbone.parameters()))
    assert all(torch.equal(one, other) for one, other in zip(gradients, again, strict=True))
    if more:
        routed = torch.cat([output.router_logits[0] for output in alone])
        assert torch.equal(found.router_logits[0], routed)
    whole = backbone(input_ids=ids, use_cache=False).last_hidden_state
    assert whole.shape == wanted.shape and not torch.allclose(whole, wanted), "without bounds as before"


@pytest.mark.parametrize("setting", ["packing", "padding_free"])
def test_a_run_that_packs_them_learns_what_it_learns_without(tmp_path, setting):
    losses = []
    for number, packed in enumerate((False, True)):
        trainer = make_trainer(
            tmp_path / str(number),
            model=small("bloom"),
            data=Dataset.from_dict({"text": SENTENCES[:6]}),
            per_device_train_batch_size=1 if setting == "packing" and packed else 6,
            max_length=512 if setting == "packing" else None,
            max_steps=2,
            **({setting: True} if packed else {}),
        )
        assert any("passes through the model separately" in note for note in trainer.data_notes) == packed
        trainer.train()
        losses.append(history(trainer, "loss"))
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


@pytest.mark.parametrize("kind", ["mamba2", "qwen3_next"])
def test_missing_kernels_are_named(kind):
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    config = CONFIG_MAPPING[kind]()
    problem = packing_problem(config, AutoModelForCausalLM.from_config, attention=None)
    assert type(config).__name__.removesuffix("Config") in problem
    assert "causal-conv1d" in problem and problem.endswith("installed")
    assert ("mamba-ssm" if kind == "mamba2" else "flash-linear-attention") in problem


@pytest.mark.parametrize("kind", ["llama", "gpt_oss", "mpt"])
def test_flash_attention_is_tried_by_whether_layers_get_the_bounds(kind):
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    problem = packing_problem(CONFIG_MAPPING[kind](), AutoModelForCausalLM.from_config, attention="flash_attention_2")
    assert bool(problem) == (kind == "mpt")


def trainer_of(folder, *, model=None, retain=(), **changes):
    settings = {"packing": True, "packing_strategy": "bfd_split", "max_steps": 3, "per_device_train_batch_size": 2}
    data = Dataset.from_dict({"text": SENTENCES * 6})
    return make_trainer(folder, retain, model=model or build_model(), data=data, **settings, **changes)


def test_a_trainer_confines_attention_and_trains_as_with_the_mask(tmp_path):
    eager = build_model()
    eager.set_attn_implementation("eager")
    ours, dense = trainer_of(tmp_path / "a"), trainer_of(tmp_path / "b", model=eager)
    assert ours.model.config._attn_implementation == IMPLEMENTATION
    assert any("dense mask over the whole batch" in note for note in dense.data_notes)
    assert not any("mask" in note for note in ours.data_notes)
    for trainer in (ours, dense):
        trainer.train()
    losses = [history(t, "loss") for t in (ours, dense)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    for (name, one), other in zip(ours.model.named_parameters(), dense.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-3, msg=name)


def test_the_dry_run_says_that_documents_are_run_alone(tmp_path):
    from holdfast.runs.packing import check_packing, packing_notes

    small("bloom").save_pretrained(tmp_path / "bloom")
    build_model().save_pretrained(tmp_path / "llama")
    asked = {"packing": True, "model_name_or_path": str(tmp_path / "bloom")}
    (note,) = packing_notes(asked)
    assert note.startswith(
        "BloomForCausalLM lets documents in one row attend to each other, so each document passes through"
    )
    assert check_packing(asked) == []
    refused = {**asked, "fsdp": "full_shard"}
    assert packing_notes(refused) == [] and "expected false" in check_packing(refused)[0]
    for other in ({"model_name_or_path": str(tmp_path / "llama")}, {"packing": False}):
        assert packing_notes({**asked, **other}) == [] == check_packing({**asked, **other})


@pytest.mark.parametrize("alone", [False, True], ids=["bounds", "alone"])
def test_a_teacher_sees_the_same_documents(alone, tmp_path):
    from holdfast.retention.methods.label_annealing import LabelAnnealing

    model = small("bloom") if alone else build_model()
    trainer = trainer_of(tmp_path, model=model, retain=[LabelAnnealing(weight=1.0)], learning_rate=0.0)
    trainer.train()
    kls = history(trainer, "kl")
    assert kls and max(map(abs, kls)) < 1e-6, "a student that has not moved is its teacher, document by document"
