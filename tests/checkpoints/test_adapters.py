"""Adapters merged while reading: against PEFT's own merge, against the running adapter where PEFT's merge changes
more than was trained, and in pieces."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from elements import whole
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from holdfast.checkpoints.adapter_settings import base_of, is_adapter, lacking
from holdfast.checkpoints.adapters import AdaptedSource
from holdfast.checkpoints.dtypes import decode
from holdfast.checkpoints.reader import CheckpointReader, checkpoint_hash
from holdfast.errors import ModelError
from holdfast.models import origin_of
from tiny import build_model

TOKENS = 40


def llama(**changes):
    return build_model(TOKENS, **{"tie": False, "width": 16, **changes})


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(vocab_size=TOKENS, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    )


def adapt(model, folder: Path, *, rows: int | None = None, dtype=None, **config):
    """Saves a model and an adapter with random weights for it; gives both folders and the adapted model."""
    import torch
    from peft import LoraConfig, get_peft_model

    base = folder / "base"
    model.save_pretrained(base)
    model.name_or_path = model.config._name_or_path = str(base)
    if rows:
        model.resize_token_embeddings(rows, mean_resizing=False)
    adapted = get_peft_model(model, LoraConfig(**{"r": 4, "lora_alpha": 6, **config}))
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    adapted.save_pretrained(folder / "adapter")
    return base, folder / "adapter", adapted.eval()


def logits(model):
    import torch

    with torch.no_grad():
        return model(torch.arange(12)[None] % TOKENS).logits.numpy()


def as_model(source, kind):
    """The model that the source's tensors and configuration make."""
    import torch
    from transformers import AutoConfig

    config = AutoConfig.for_model(**source.config)
    model = kind(config)
    model.tie_weights()
    missing, unexpected = model.load_state_dict(
        {n: torch.from_numpy(whole(source, n).copy()) for n in source.entries}, strict=False
    )
    assert unexpected == []
    assert set(missing) <= {"lm_head.weight"} and (not missing or config.tie_word_embeddings)
    return model.eval()


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


CASES = {
    "attention": (llama, {"target_modules": ["q_proj", "v_proj"]}),
    "rank-stabilised": (llama, {"target_modules": ["q_proj", "down_proj"], "use_rslora": True}),
    "patterns": (
        llama,
        {
            "target_modules": ["q_proj", "k_proj", "up_proj"],
            "rank_pattern": {"k_proj": 2, r"layers\.1\.mlp\.up_proj": 3},
            "alpha_pattern": {"^model.layers.0.self_attn.k_proj": 11, "up_proj": 5},
        },
    ),
    "DoRA": (llama, {"target_modules": ["q_proj", "down_proj"], "use_dora": True}),
    "head": (llama, {"target_modules": ["lm_head"]}),
    "trained embeddings": (llama, {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]}),
    "biases of the layers": (
        lambda: llama(attention_bias=True),
        {"target_modules": ["q_proj", "o_proj"], "bias": "lora_only"},
    ),
    "all biases": (lambda: llama(attention_bias=True), {"target_modules": ["q_proj"], "bias": "all"}),
    "fewer tokens": (llama, {"target_modules": ["q_proj"], "rows": 31}),
    "more tokens": (llama, {"target_modules": ["q_proj"], "rows": 44}),
    "trained tokens, tied": (
        lambda: llama(tie=True),
        {"target_modules": ["q_proj"], "trainable_token_indices": {"embed_tokens": [0, 39]}},
    ),
    "trained together, tied": (
        lambda: llama(tie=True),
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_merge_is_pefts(case, tmp_path):
    build, config = CASES[case]
    base, folder, adapted = adapt(build(), tmp_path, **config)
    source = AdaptedSource(CheckpointReader(base), folder)
    merged = adapted.merge_and_unload()
    expected = {n: t.numpy() for n, t in merged.state_dict().items() if n in source.entries}
    assert set(source.entries) == set(expected)
    for name, values in expected.items():
        assert source.entries[name].shape == values.shape
        np.testing.assert_allclose(whole(source, name), values, rtol=2e-6, atol=5e-7, err_msg=name)
    embedding = "model.embed_tokens.weight"
    assert source.config["vocab_size"] == len(expected[embedding])
    tied = source.config.get("tie_word_embeddings", True)
    assert tied == merged.config.tie_word_embeddings == ("lm_head.weight" not in source.entries)
    if tied:
        np.testing.assert_array_equal(merged.state_dict()["lm_head.weight"].numpy(), expected[embedding])


@pytest.mark.parametrize(
    "config",
    [
        {"target_modules": ["lm_head"]},
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
    ],
    ids=str,
)
def test_tied_models_do_what_the_adapter_did(config, tmp_path):
    """Where PEFT's merge would change the other end of tied weights too, the running adapter is the measure."""
    base, folder, adapted = adapt(llama(tie=True), tmp_path, **config)
    source = AdaptedSource(CheckpointReader(base), folder)
    together = config.get("ensure_weight_tying", False)
    assert ("lm_head.weight" in source.entries) == (not together) == (source.config["tie_word_embeddings"] is False)
    assert any("separate head" in note for note in source.notes) == (not together)
    from transformers import LlamaForCausalLM

    np.testing.assert_allclose(logits(as_model(source, LlamaForCausalLM)), logits(adapted), rtol=1e-4, atol=1e-5)


def test_a_model_without_a_head_gets_none(tmp_path):
    base, folder, _ = adapt(llama(tie=True).model, tmp_path, target_modules=["q_proj"])
    source = AdaptedSource(CheckpointReader(base), folder)
    assert set(source.entries) == set(CheckpointReader(base).entries) and source.config_changes == {}


def test_names_may_differ_in_outer_words(tmp_path):
    """An adapter of the inner model on a file of the whole one, and the other way round."""
    from peft import PeftModel

    (tmp_path / "inner").mkdir()
    (tmp_path / "outer").mkdir()
    inner, of_inner, _ = adapt(llama().model, tmp_path / "inner", target_modules=["q_proj"], modules_to_save=["norm"])
    outer, of_outer, _ = adapt(llama(), tmp_path / "outer", target_modules=["q_proj"], modules_to_save=["norm"])
    for base, folder, model, prefix in ((outer, of_inner, llama().model, "model."), (inner, of_outer, llama(), "")):
        merged = {
            n.removeprefix("model."): t
            for n, t in PeftModel.from_pretrained(model, folder).merge_and_unload().state_dict().items()
        }
        source = AdaptedSource(CheckpointReader(base), folder)
        for name in source.entries:
            if name != "lm_head.weight":
                expected = merged[name.removeprefix(prefix)].numpy()
                np.testing.assert_allclose(whole(source, name), expected, rtol=2e-6, atol=5e-7)


def test_words_in_another_order(tmp_path):
    """Models that also see are stored as language_model.model.layers and loaded as model.language_model.layers."""
    rng = np.random.default_rng(0)
    name = "language_model.model.layers.0.self_attn.q_proj.weight"
    other = "vision_tower.model.layers.0.self_attn.q_proj.weight"
    weights = {n: rng.standard_normal((6, 4), np.float32) for n in (name, other)}
    factors = {"A": rng.standard_normal((2, 4), np.float32), "B": rng.standard_normal((6, 2), np.float32)}
    base, folder = by_hand(
        tmp_path,
        weights,
        {f"model.language_model.layers.0.self_attn.q_proj.lora_{x}.weight": v for x, v in factors.items()},
    )
    source = AdaptedSource(CheckpointReader(base), folder)
    np.testing.assert_allclose(whole(source, name), weights[name] + 3 * (factors["B"] @ factors["A"]), rtol=1e-5)
    np.testing.assert_array_equal(whole(source, other), weights[other])


def by_hand(folder: Path, weights: dict, adapter: dict, config: dict | None = None, **changes) -> tuple[Path, Path]:
    """A base and an adapter of rank 2 with scaling 3, written without PEFT."""
    for part in ("base", "adapter"):
        (folder / part).mkdir(exist_ok=True)
    save_file(weights, folder / "base" / "model.safetensors")
    (folder / "base" / "config.json").write_text(
        json.dumps(config or {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": False})
    )
    save_file(
        {f"base_model.model.{n}": v for n, v in adapter.items()}, folder / "adapter" / "adapter_model.safetensors"
    )
    stated = {"peft_type": "LORA", "r": 2, "lora_alpha": 6, "base_model_name_or_path": "somewhere/base", **changes}
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps(stated))
    return folder / "base", folder / "adapter"


def factors(rng, module: str, rows: int, columns: int, rank: int = 2, dtype=np.float32) -> dict:
    shapes = {"A": (rank, columns), "B": (rows, rank)}
    return {f"{module}.lora_{x}.weight": rng.standard_normal(shape).astype(dtype) for x, shape in shapes.items()}


# --------------------------------------------------------------------------------------------------------------- pieces


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    """Every kind of change, at ragged shapes, with each tensor read whole once."""
    rng = np.random.default_rng(3)
    tensors = {
        "model.embed_tokens.weight": (29, 7),
        "layers.0.plain.weight": (19, 5),
        "layers.0.wide.weight": (3, 23),
        "layers.0.dora.weight": (17, 6),
        "layers.0.bias.bias": (8,),
        "layers.0.none.weight": (0, 5),
        "lm_head.weight": (29, 7),
        "norm.weight": (7,),
    }
    weights = {n: rng.standard_normal(s, np.float32) for n, s in tensors.items()}
    adapter: dict = {}
    for module, rows, columns in (
        ("plain", 19, 5),
        ("wide", 3, 23),
        ("dora", 17, 6),
        ("none", 0, 5),
    ):
        adapter |= factors(rng, f"layers.0.{module}", rows, columns)
    adapter["layers.0.dora.lora_magnitude_vector"] = rng.random(17, np.float32)
    adapter["layers.0.bias.bias"] = rng.standard_normal(8, np.float32)
    adapter["model.embed_tokens.weight"] = rng.standard_normal((29, 7), np.float32)
    adapter["lm_head.token_adapter.trainable_tokens_delta"] = rng.standard_normal((2, 7), np.float32)
    adapter["norm.weight"] = rng.standard_normal(7).astype(np.float16)
    base, folder = by_hand(
        tmp_path_factory.mktemp("pieces"), weights, adapter, trainable_token_indices={"lm_head": [4, 28]}
    )
    source = AdaptedSource(CheckpointReader(base), folder)
    return source, {name: whole(source, name).reshape(-1) for name in source.entries}


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_any_stretch_has_the_bits_of_the_whole(pieces, data):
    source, read = pieces
    name = data.draw(st.sampled_from(sorted(read)))
    start = data.draw(st.integers(0, len(read[name])))
    stop = data.draw(st.integers(start, len(read[name])))
    got = source.read(name, start, stop, np.empty((stop - start) * source.entries[name].dtype.itemsize, np.uint8))
    assert decode(*got).tobytes() == read[name][start:stop].tobytes()


# --------------------------------------------------------------------------------------------------------------- dtypes


def test_a_bfloat16_base_keeps_its_dtype_and_is_rounded_once(tmp_path):
    """What is computed comes out in float32, for the merge to round; what was trained whole, as it is stored."""
    import torch

    base, folder, adapted = adapt(
        llama().to(torch.bfloat16), tmp_path, target_modules=["q_proj"], modules_to_save=["lm_head"]
    )
    source = AdaptedSource(CheckpointReader(base), folder)
    assert {e.dtype.name for e in source.entries.values()} == {"BF16"}
    name = "model.layers.0.self_attn.q_proj.weight"
    layer = adapted.base_model.model.model.layers[0].self_attn.q_proj
    product = layer.lora_B["default"].weight.float() @ layer.lora_A["default"].weight.float() * 1.5
    got = source.read(name, 0, 256, np.empty(512, np.uint8))
    assert got.dtype.name == "F32"
    expected = whole(CheckpointReader(base), name) + product.detach().numpy()
    np.testing.assert_allclose(got.raw, expected.reshape(-1), rtol=1e-6, atol=1e-7)
    assert source.read("lm_head.weight", 3, 9, np.empty(12, np.uint8)).dtype.name == "BF16"


def test_adapters_can_be_stacked(tmp_path):
    rng = np.random.default_rng(0)
    weights = {"layers.0.q.weight": rng.standard_normal((9, 4), np.float32)}
    base, first = by_hand(tmp_path, weights, one := factors(rng, "layers.0.q", 9, 4))
    (tmp_path / "second").mkdir()
    _, second = by_hand(tmp_path / "second", weights, two := factors(rng, "layers.0.q", 9, 4))
    source = AdaptedSource(AdaptedSource(CheckpointReader(base), first), second)
    expected = weights["layers.0.q.weight"] + sum(
        3 * (f["layers.0.q.lora_B.weight"] @ f["layers.0.q.lora_A.weight"]) for f in (one, two)
    )
    np.testing.assert_allclose(whole(source, "layers.0.q.weight"), expected, rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "changes",
    [{"peft_type": "IA3"}, {"use_bdlora": {"nblocks": 2}}, {"init_lora_weights": "pissa_niter_4"}],
    ids=str,
)
def test_other_adapters_are_refused_by_name(changes, tmp_path):
    rng = np.random.default_rng(0)
    weights = {"layers.0.q.weight": np.zeros((9, 4), np.float32)}
    base, folder = by_hand(tmp_path, weights, factors(rng, "layers.0.q", 9, 4), **changes)
    with pytest.raises(ModelError, match="merge_and_unload") as error:
        AdaptedSource(CheckpointReader(base), folder)
    assert all(key in str(error.value) for key in changes)


@pytest.mark.parametrize(
    ("build", "config", "reason"),
    [
        (gpt2, {"target_modules": ["c_attn"]}, "GPT-2's Conv1D"),
        (llama, {"target_modules": ["embed_tokens", "q_proj"]}, "LoRA on embeddings"),
        (lambda: llama(attention_bias=True), {"target_modules": ["q_proj"], "lora_bias": True}, "factors with a bias"),
    ],
    ids=["Conv1D", "embeddings", "bias"],
)
def test_layers_that_are_not_linear_are_refused_with_pefts_command(build, config, reason, tmp_path):
    base, folder, _ = adapt(build(), tmp_path, **config)
    with pytest.raises(ModelError, match="merge_and_unload") as error:
        AdaptedSource(CheckpointReader(base), folder)
    assert reason in str(error.value)


def test_everything_that_does_not_fit_is_listed(tmp_path):
    rng = np.random.default_rng(0)
    weights = {f"layers.0.{m}.weight": np.zeros((9, 4), np.float32) for m in ("q", "k", "v", "o", "i", "d")}
    weights["layers.0.i.weight"] = np.zeros((9, 4), np.int8)
    adapter = {
        **factors(rng, "layers.7.q", 9, 4),
        **factors(rng, "layers.0.q", 9, 5),
        **factors(rng, "layers.0.k", 9, 4, rank=3),
        **factors(rng, "layers.0.i", 9, 4),
        "layers.0.v.lora_A.weight": np.zeros((2, 4), np.float32),
        "layers.0.o.weight": np.zeros((9, 5), np.float32),
        "layers.0.d.lora_magnitude_vector": np.zeros(4, np.float32),
    }
    base, folder = by_hand(tmp_path, weights, adapter)
    with pytest.raises(ModelError, match="'somewhere/base'") as error:
        AdaptedSource(CheckpointReader(base), folder)
    text = str(error.value)
    wrong = ("layers.7.q.lora_A", "layers.0.q.lora_A", "expected rank 2", "quantised", "both factors")
    for words in (*wrong, "layers.0.o.weight", "magnitude"):
        assert words in text, words


def test_pickled_adapters_are_refused(tmp_path):
    base, folder = by_hand(tmp_path, {"q.weight": np.zeros((2, 2), np.float32)}, {})
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(ModelError, match="AutoPeftModelForCausalLM"):
        AdaptedSource(CheckpointReader(base), folder)


def test_what_is_an_adapter_and_which_base_it_names(tmp_path):
    base, folder = by_hand(tmp_path, {"q.weight": np.zeros((2, 2), np.float32)}, {}, revision="v2")
    assert is_adapter(folder) and not is_adapter(base)
    assert base_of(folder) == "somewhere/base@v2"
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match="base_model_name_or_path"):
        base_of(folder)
    (folder / "model.safetensors").touch()
    assert not is_adapter(folder)


# ------------------------------------------------------------------------------------------------------------ its run


def test_an_adapter_says_what_of_its_run_its_base_is_not(tmp_path: Path) -> None:
    """The base of equal shapes that lies there now, and the four bits in which it was trained."""
    base, adapter, _ = adapt(llama(), tmp_path, target_modules=["q_proj"])
    (adapter / "run.json").write_text(json.dumps({"config": {}, "model": {"hash": checkpoint_hash(base)}}))
    assert AdaptedSource(CheckpointReader(base), adapter).notes == []
    (adapter / "run.json").write_text(
        json.dumps({"config": {"load_in_4bit": True}, "model": {"hash": checkpoint_hash(base)}})
    )
    [bits] = AdaptedSource(CheckpointReader(base), adapter).notes
    assert "in 4 bits" in bits
    llama(seed=1).save_pretrained(base)
    said = AdaptedSource(CheckpointReader(base), adapter).notes
    assert said[0] == bits and "whose weights differ from those of base now" in said[1]
    assert "whose weights differ from those of base now" in origin_of(str(adapter))
    (adapter / "run.json").unlink()
    assert AdaptedSource(CheckpointReader(base), adapter).notes == []


@pytest.mark.parametrize("stored", [True, False])
def test_embeddings_of_an_adapter_are_weights_of_their_module(stored: bool) -> None:
    settings = {"peft_type": "LORA", "target_modules": ["q_proj", "embed_tokens"]}
    names = [f"base_model.model.model.layers.0.self_attn.q_proj.lora_{factor}.weight" for factor in "AB"]
    if stored:
        names += [f"base_model.model.model.embed_tokens.lora_embedding_{factor}" for factor in "AB"]
    base = ["model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight"]
    found = lacking(settings, names, base)
    assert [problem.partition(":")[0] for problem in found] == ([] if stored else ["model.embed_tokens"])
