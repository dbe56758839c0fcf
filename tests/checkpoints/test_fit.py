"""Whether weights are those of their config.json: what transformers would make up or leave out is found before, and
what it does on purpose (tied heads, stacked experts, renamed keys) is no fault."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from holdfast.checkpoints.fit import Fit, fit_of, loading_problem, refuse_suspicious, suspicions
from holdfast.checkpoints.locate import open_source
from holdfast.checkpoints.reader import CheckpointReader
from holdfast.checkpoints.summary import inspect_checkpoint
from holdfast.errors import ModelError
from tiny import build_model

SMALL: dict[str, Any] = {
    "vocab_size": 48,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
}
DOWN = "model.layers.1.mlp.down_proj.weight"
EMBED = "model.embed_tokens.weight"


def models() -> dict[str, nn.Module]:
    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
        GPTNeoXConfig,
        GPTNeoXForCausalLM,
        LlamaConfig,
        LlamaForCausalLM,
        MixtralConfig,
        MixtralForCausalLM,
        OPTConfig,
        OPTForCausalLM,
        Qwen3Config,
        Qwen3ForCausalLM,
    )

    def gpt2() -> GPT2Config:
        return GPT2Config(vocab_size=48, n_embd=16, n_layer=2, n_head=2, n_positions=32)

    def opt() -> OPTConfig:
        small = SMALL | {"ffn_dim": 24, "word_embed_proj_dim": 16}
        return OPTConfig(**small)

    return {
        "llama": LlamaForCausalLM(LlamaConfig(**SMALL)),
        "llama, tied": LlamaForCausalLM(LlamaConfig(**SMALL, tie_word_embeddings=True)),
        "gpt2": GPT2LMHeadModel(gpt2()),
        "gpt-neox": GPTNeoXForCausalLM(GPTNeoXConfig(**SMALL)),
        "opt": OPTForCausalLM(opt()),
        "qwen3": Qwen3ForCausalLM(Qwen3Config(**SMALL, head_dim=8)),
        "mixtral": MixtralForCausalLM(MixtralConfig(**SMALL, num_local_experts=3)),
    }


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """A whole model."""
    folder = tmp_path / "model"
    shutil.rmtree(folder, ignore_errors=True)
    models()["llama"].save_pretrained(folder)
    return folder


def reshape(folder: Path, change: Any) -> None:
    """Rewrites the tensors as `change` leaves them."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def set_config(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize("name", models())
def test_whole_models_fit(name: str, tmp_path: Path) -> None:
    models()[name].save_pretrained(tmp_path)
    reader = CheckpointReader(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert fit_of(tmp_path) == Fit()
    assert suspicions(config, reader.entries) == []


def test_a_stored_head_beside_tied_embeddings_fits(tmp_path: Path) -> None:
    models()["llama, tied"].save_pretrained(tmp_path)
    reshape(tmp_path, lambda t: t.update({"lm_head.weight": t[EMBED].clone()}))
    assert fit_of(tmp_path) == Fit()


MISSING = {
    "a projection": lambda t: t.pop(DOWN),
    "the embeddings, renamed": lambda t: t.update({"model.embeddings.weight": t.pop(EMBED)}),
    "the last norm": lambda t: t.pop("model.norm.weight"),
    "the head": lambda t: t.pop("lm_head.weight"),
    "a layer": lambda t: [t.pop(n) for n in list(t) if n.startswith("model.layers.2.")],
    "everything": lambda t: t.clear(),
    "one too many": lambda t: t.update({"model.layers.0.mlp.extra_proj.weight": torch.ones(2, 2)}),
    "another shape": lambda t: t.update({DOWN: torch.ones(16, 20)}),
    "transposed": lambda t: t.update({DOWN: t[DOWN].t().contiguous()}),
}
NAMED = {
    "a projection": f"1 tensor is missing: {DOWN}",
    "the embeddings, renamed": f"1 tensor is missing: {EMBED}; 1 tensor is not part of the model: model.embeddings",
    "the last norm": "1 tensor is missing: model.norm.weight",
    "the head": "1 tensor is missing: lm_head.weight",
    "everything": "30 tensors are missing: lm_head.weight, ",
    "a layer": "9 tensors are missing: model.layers.2.input_layernorm.weight, ",
    "one too many": "1 tensor is not part of the model: model.layers.0.mlp.extra_proj.weight",
    "another shape": f"1 tensor is of another shape: {DOWN} is [16, 20] and should be [16, 24]",
    "transposed": f"1 tensor is of another shape: {DOWN} is [24, 16] and should be [16, 24]",
}


@pytest.mark.parametrize("damage", MISSING)
def test_what_does_not_fit_is_named_at_either_depth(damage: str, llama: Path) -> None:
    reshape(llama, MISSING[damage])
    assert fit_of(llama).problem.startswith(NAMED[damage])
    with pytest.raises(ModelError, match=r"are not those of its config\.json: .* Copy or download") as refused:
        open_source(llama)
    assert NAMED[damage] in str(refused.value)
    for verify in (False, True):
        failed = [
            c.detail for c in inspect_checkpoint(llama, verify=verify).checks if c.name == "weights fit config.json"
        ]
        assert failed[0].startswith(NAMED[damage])


CONFIGS: dict[str, dict[str, Any]] = {
    "fewer layers": {"num_hidden_layers": 2},
    "more layers": {"num_hidden_layers": 4},
    "no layers": {"num_hidden_layers": 0},
    "layers below zero": {"num_hidden_layers": -1},
    "a billion layers": {"num_hidden_layers": 10**9},
    "layers in words": {"num_hidden_layers": "three"},
    "a width below zero": {"hidden_size": -1},
    "a width in words": {"hidden_size": "many"},
    "another width": {"hidden_size": 32},
    "a width that no head divides": {"hidden_size": 17},
    "a fraction": {"hidden_size": 16.5},
    "other tokens": {"vocab_size": 50},
    "no tokens": {"vocab_size": 0},
    "an unknown activation": {"hidden_act": "loud"},
    "another architecture": {"model_type": "gpt2"},
}


@pytest.mark.parametrize("change", CONFIGS)
def test_a_configuration_that_disagrees(change: str, llama: Path) -> None:
    set_config(llama, **CONFIGS[change])
    assert fit_of(llama).problem
    checks = [c for c in inspect_checkpoint(llama, verify=True).checks if c.name == "weights fit config.json"]
    assert checks[0].passed is False
    if change not in ("an unknown activation", "another architecture"):  # of which names and shapes tell nothing
        with pytest.raises(ModelError, match=r"not those of its config\.json"):
            open_source(llama)


def test_what_layers_lack_on_purpose_is_left_to_transformers(tmp_path: Path) -> None:
    """Suspicious and yet whole: a layer beyond those of the configuration, which this architecture ignores."""
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    config = DeepseekV3Config(
        **SMALL,
        n_routed_experts=2,
        n_group=1,
        topk_group=1,
        num_experts_per_tok=1,
        moe_intermediate_size=8,
        kv_lora_rank=4,
        q_lora_rank=4,
        qk_rope_head_dim=4,
        qk_nope_head_dim=4,
        v_head_dim=8,
        first_k_dense_replace=1,
    )
    DeepseekV3ForCausalLM(config).save_pretrained(tmp_path)
    ignored = DeepseekV3ForCausalLM._keys_to_ignore_on_load_unexpected
    assert ignored == [r"model\.layers\.61.*"]
    reshape(tmp_path, lambda t: t.update({"model.layers.61.eh_proj.weight": torch.ones(2, 2)}))
    reader = CheckpointReader(tmp_path)
    assert suspicions(json.loads((tmp_path / "config.json").read_text()), reader.entries)
    assert fit_of(tmp_path) == Fit()
    refuse_suspicious(reader)


@pytest.mark.parametrize("family", ["gpt2", "gpt-neo", "gptj", "gpt-neox", "llama"])
def test_what_older_versions_stored_of_what_a_model_computes_is_no_fault(family: str, tmp_path: Path) -> None:
    """The masks, positions and frequencies that lie in well-known checkpoints of these families."""
    from transformers import GPTJConfig, GPTJForCausalLM, GPTNeoConfig, GPTNeoForCausalLM

    neo = GPTNeoConfig(
        vocab_size=48, hidden_size=16, num_layers=2, num_heads=2, attention_types=[[["global"], 2]], window_size=8
    )
    others = {
        "gpt-neo": lambda: GPTNeoForCausalLM(neo),
        "gptj": lambda: GPTJForCausalLM(GPTJConfig(vocab_size=48, n_embd=16, n_layer=2, n_head=2, rotary_dim=4)),
    }
    leftovers = {
        "gpt2": ["transformer.h.{}.attn.bias", "transformer.h.{}.attn.masked_bias"],
        "gpt-neo": ["transformer.h.{}.attn.attention.bias", "transformer.h.{}.attn.attention.masked_bias"],
        "gptj": ["transformer.h.{}.attn.bias", "transformer.h.{}.attn.masked_bias"],
        "gpt-neox": ["gpt_neox.layers.{}.attention.bias", "gpt_neox.layers.{}.attention.rotary_emb.inv_freq"],
        "llama": ["model.layers.{}.self_attn.rotary_emb.inv_freq"],
    }
    model = others[family]() if family in others else models()[family]
    model.save_pretrained(tmp_path)
    names = [name.format(layer) for name in leftovers[family] for layer in range(2)]
    reshape(tmp_path, lambda t: t.update({name: torch.ones(1) for name in names}))
    assert fit_of(tmp_path) == Fit()
    reshape(tmp_path, lambda t: t.update({"transformer.h.0.attn.extra.bias": torch.ones(1)}))
    assert "attn.extra.bias" in fit_of(tmp_path).problem


def test_an_expert_that_is_gone(tmp_path: Path) -> None:
    models()["mixtral"].save_pretrained(tmp_path)
    one = "model.layers.1.block_sparse_moe.experts.1.w1.weight"
    reshape(tmp_path, lambda t: t.pop(one))
    assert f"{one} is missing" in fit_of(tmp_path).problem


def test_what_cannot_be_told_says_why(llama: Path) -> None:
    set_config(llama, model_type="unheard_of")
    assert "knows no causal language model of type 'unheard_of'" in fit_of(llama).unknown
    check = next(c for c in inspect_checkpoint(llama, verify=True).checks if c.name == "weights fit config.json")
    assert check.passed is None and check.detail.startswith("cannot tell: transformers knows no")
    set_config(llama, model_type="llama", quantization_config={"quant_method": "bitsandbytes"})
    assert "quantised" in fit_of(llama).unknown
    (llama / "config.json").unlink()
    assert "no config.json" in fit_of(llama).unknown


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory"), ImportError("no such package")]
)
def test_what_the_machine_lacks_is_no_fault_of_the_model(
    error: Exception, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_config", fail)
    assert fit_of(llama).problem == "" and "cannot be built here" in fit_of(llama).unknown


def test_a_folder_that_changes_is_looked_at_again(llama: Path) -> None:
    assert fit_of(llama) == Fit()
    reshape(llama, MISSING["a projection"])
    assert fit_of(llama).problem


def test_nothing_is_read_but_headers(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CheckpointReader, "read", lambda *_: pytest.fail("a tensor was read"))
    monkeypatch.setattr("safetensors.safe_open", lambda *_, **__: pytest.fail("a file was opened"))
    assert fit_of(llama) == Fit()


def test_random_numbers_are_not_drawn(llama: Path) -> None:
    before = torch.random.get_rng_state()
    fit_of(llama)
    assert torch.equal(before, torch.random.get_rng_state())


def test_libraries_stay_quiet(llama: Path, capfd: pytest.CaptureFixture[str]) -> None:
    reshape(llama, MISSING["a projection"])
    fit_of(llama)
    assert capfd.readouterr() == ("", "")


def test_what_the_loader_tells() -> None:
    assert loading_problem({"missing_keys": set(), "unexpected_keys": set(), "mismatched_keys": set()}) == ""
    many = {"missing_keys": {f"t{n}" for n in range(9)}}
    assert loading_problem(many) == "9 tensors are missing: t0, t1, t2, t3, t4, t5 and 3 more"


def test_the_tiny_model_of_the_tests_fits(model_folder: Path) -> None:
    assert build_model() is not None
    assert fit_of(model_folder) == Fit()
