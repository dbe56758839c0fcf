"""Adapters out of two checkpoints: what PEFT makes of them, what is kept, and what is said of the rest."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from holdfast.checkpoints.adapters import AdaptedSource
from holdfast.checkpoints.dtypes import decode
from holdfast.checkpoints.extract_lora import extract_lora
from holdfast.checkpoints.lora_settings import LoraSettings
from holdfast.checkpoints.low_rank import distance_squared, low_rank
from holdfast.checkpoints.merge import merge
from holdfast.checkpoints.reader import CheckpointReader
from holdfast.cli.extract_lora import show
from holdfast.cli.main import main
from holdfast.errors import ConfigError, HoldfastError, ModelError, ShapeError
from tiny import build_model, build_tokenizer


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=40, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    )


def causal_lm(kind: str, **settings: Any) -> Any:
    """A tiny model of a class of configuration, with random weights."""
    import transformers

    plain = {"vocab_size": 40, "hidden_size": 16, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**{**plain, **settings})
    return transformers.AutoModelForCausalLM.from_config(config)


ONE_LAYER = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24, "max_position_embeddings": 32}
SMALL = {**ONE_LAYER, "num_key_value_heads": 1}
MOE = {
    "mixtral": lambda: causal_lm("Mixtral", **SMALL, num_local_experts=2),
    "qwen3 moe": lambda: causal_lm(
        "Qwen3Moe", **SMALL, head_dim=8, num_experts=2, num_experts_per_tok=2, moe_intermediate_size=8
    ),
    "olmoe": lambda: causal_lm("Olmoe", **SMALL, num_experts=2, num_experts_per_tok=2),
}


def tuned_pair(
    folder: Path, model: Any, *, also: tuple[str, ...] = (), spare: tuple[str, ...] = ()
) -> tuple[Path, Path]:
    """Saves a model and a fine-tune of it, in which every matrix changed, and tensors with one of these words."""
    model.save_pretrained(folder / "base")
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            chosen = parameter.ndim == 2 and "wpe" not in name and not any(word in name for word in spare)
            if chosen or any(word in name for word in also):
                parameter.add_(0.05 * torch.randn_like(parameter))
    model.save_pretrained(folder / "tuned")
    return folder / "base", folder / "tuned"


def values(folder: Path | Any) -> dict[str, np.ndarray]:
    source = CheckpointReader(folder) if isinstance(folder, Path) else folder
    found = {}
    for name, entry in source.entries.items():
        raw, dtype = source.read(name, 0, entry.size, np.empty(entry.size * 8, np.uint8))
        found[name] = decode(raw, dtype).reshape(entry.shape).astype(np.float64)
    return found


def peft_model(base: Path, adapter: Path) -> Any:
    import warnings

    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter)
    assert not [w for w in told if "missing" in str(w.message).lower()], [str(w.message) for w in told]
    return model.eval()


MODELS = {
    "llama": lambda: build_model(40, tie=False, width=16),
    "llama, tied": lambda: build_model(40, tie=True, width=16),
    "llama, biases": lambda: build_model(40, tie=False, width=16, attention_bias=True),
    "gpt2": gpt2,
}


@pytest.mark.parametrize("case", MODELS)
def test_at_full_rank_it_is_the_tuned_model(case: str, tmp_path: Path) -> None:
    """Running, merged by PEFT and merged by the engine: norms, biases and positions whole."""
    from transformers import AutoModelForCausalLM

    also = ("norm", "ln_", "bias", "wpe") if case != "gpt2" else ("ln_", "wpe")
    base, tuned = tuned_pair(tmp_path, MODELS[case](), also=also)
    settings = LoraSettings(rank=1000, others="save")
    found = extract_lora(tuned, base, tmp_path / "adapter", settings=settings, sync=False)
    assert found.kept > 1 - 1e-12 and {p.how for p in found.parts} == {"lora", "whole"}
    expected = values(tuned)
    for name, got in values(AdaptedSource(CheckpointReader(base), tmp_path / "adapter")).items():
        np.testing.assert_allclose(got, expected[name], rtol=0, atol=3e-7, err_msg=name)
    ids, whole = torch.arange(12)[None], AutoModelForCausalLM.from_pretrained(tuned).eval()
    adapted = peft_model(base, tmp_path / "adapter")
    with torch.no_grad():
        torch.testing.assert_close(adapted(ids).logits, whole(ids).logits, rtol=1e-4, atol=1e-5)
        before = AutoModelForCausalLM.from_pretrained(base)(ids).logits
        assert (before - whole(ids).logits).abs().max() > 0.01
    merged = adapted.merge_and_unload().state_dict()
    for name, wanted in expected.items():
        np.testing.assert_allclose(merged[name].double().numpy(), wanted, rtol=0, atol=3e-7, err_msg=name)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(torch.arange(12)[None]).logits


ALL, NOTHING = ("",), ("",)
"""Words that are in the name of every tensor: `also` and `spare` of `tuned_pair`."""
WHOLE = LoraSettings(rank=1000, others="save")
KEPT = {
    "gpt-neox, whose file calls the head embed_out": (lambda: causal_lm("GPTNeoX", **ONE_LAYER), {"also": ALL}, WHOLE),
    "gpt-neox, its head saved": (
        lambda: causal_lm("GPTNeoX", **ONE_LAYER),
        {"also": ALL},
        LoraSettings(rank=1000, others="save", embeddings="save"),
    ),
    "falcon, of a subclass of Linear": (
        lambda: causal_lm("Falcon", num_hidden_layers=1, num_attention_heads=2),
        {},
        LoraSettings(rank=1000),
    ),
    "llama 4, with a router of a subclass of Linear": (
        lambda: causal_lm("Llama4Text", **SMALL, head_dim=8, intermediate_size_mlp=24, num_local_experts=2),
        {"also": ALL},
        WHOLE,
    ),
    "mamba, whose out_proj PEFT refuses": (
        lambda: causal_lm("Mamba", num_hidden_layers=1, state_size=4),
        {"spare": ("A_log",)},
        WHOLE,
    ),
    "norms alone": (
        lambda: build_model(40, tie=False, width=16),
        {"spare": NOTHING, "also": ("norm",)},
        WHOLE,
    ),
    "tied embeddings alone": (
        lambda: build_model(40, tie=True, width=16),
        {"spare": ("layers",)},
        LoraSettings(),
    ),
    "tied embeddings that are not called embed_tokens": (
        lambda: causal_lm("Bloom", n_layer=1, n_head=2),
        {"also": ALL},
        WHOLE,
    ),
    "a module inside another": (
        lambda: causal_lm("Mamba2", num_hidden_layers=1, state_size=4, num_heads=4, head_dim=8, n_groups=1),
        {"spare": NOTHING, "also": ("dt_bias", "conv1d")},
        WHOLE,
    ),
}


@pytest.mark.parametrize("case", KEPT)
def test_where_all_is_kept_peft_gives_the_tuned_model(case: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    make, changed, settings = KEPT[case]
    model = make()
    before = logits(model)
    base, tuned = tuned_pair(tmp_path, model, **changed)
    found = extract_lora(tuned, base, tmp_path / "adapter", settings=settings, sync=False)
    assert found.kept > 1 - 1e-12 and not {"left out", "out of reach"} & {p.how for p in found.parts}
    wanted = logits(AutoModelForCausalLM.from_pretrained(tuned))
    torch.testing.assert_close(logits(peft_model(base, tmp_path / "adapter")), wanted, rtol=1e-4, atol=1e-5)
    assert (before - wanted).abs().max() > 1e-3
    merge([tmp_path / "adapter"], tmp_path / "merged", sync=False)
    merged = logits(AutoModelForCausalLM.from_pretrained(tmp_path / "merged"))
    torch.testing.assert_close(merged, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", MOE)
def test_experts_that_are_stacked_in_memory_are_left_out_by_name(case: str, tmp_path: Path) -> None:
    """What is kept is right all the same: it is the tuned model with the base's experts."""
    from safetensors.numpy import save_file
    from transformers import AutoModelForCausalLM

    base, tuned = tuned_pair(tmp_path, MOE[case](), also=ALL)
    found = extract_lora(tuned, base, tmp_path / "adapter", settings=WHOLE, sync=False)
    left = {p.name: p.squares for p in found.parts if p.how == "out of reach"}
    show(found, Console(file=(printed := io.StringIO()), width=300))
    assert f"{len(left)} changed tensors are not in the adapter; transformers renames or stacks" in printed.getvalue()
    assert "--others" not in printed.getvalue()
    assert "left out" not in {p.how for p in found.parts}
    assert len([name for name in left if ".experts." in name]) == 6
    assert found.kept == pytest.approx(1 - sum(left.values()) / sum(p.squares for p in found.parts), abs=1e-12)
    before, after = values(base), values(tuned)
    shutil.copytree(tuned, tmp_path / "kept")
    mixed = {name: (before if name in left else after)[name].astype(np.float32) for name in after}
    save_file(mixed, tmp_path / "kept/model.safetensors", metadata={"format": "pt"})
    wanted = logits(AutoModelForCausalLM.from_pretrained(tmp_path / "kept"))
    torch.testing.assert_close(logits(peft_model(base, tmp_path / "adapter")), wanted, rtol=1e-4, atol=1e-5)
    assert (wanted - logits(AutoModelForCausalLM.from_pretrained(tuned))).abs().max() > 0.01


def test_at_a_low_rank_it_is_the_base_and_the_best_product(tmp_path: Path) -> None:
    base, tuned = tuned_pair(tmp_path, build_model(40, tie=False, width=16))
    found = extract_lora(tuned, base, tmp_path / "adapter", settings=LoraSettings(rank=3), sync=False)
    config = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    assert config["r"] == config["lora_alpha"] == 3 and config["rank_pattern"] == {}
    assert "q_proj" in config["target_modules"] and len(config["target_modules"]) == 9
    before, after = values(base), values(tuned)
    merged = peft_model(base, tmp_path / "adapter").merge_and_unload().state_dict()
    for part in found.parts:
        difference = after[part.name] - before[part.name]
        u, s, vt = np.linalg.svd(difference, full_matrices=False)
        best = before[part.name] + (u[:, :3] * s[:3]) @ vt[:3]
        np.testing.assert_allclose(merged[part.name].double().numpy(), best, rtol=0, atol=2e-7)
        assert part.kept == pytest.approx(np.sum(s[:3] ** 2) / np.sum(s**2), abs=1e-6)
        assert (part.how, part.rank) == ("lora", 3)
    record = json.loads((tmp_path / "adapter/provenance.json").read_text())
    assert record["command"] == "extract-lora" and [p["role"] for p in record["parents"]] == ["base", "tuned"]
    assert record["parents"][0]["fingerprint"] != record["parents"][1]["fingerprint"]
    assert main(["inspect", str(tmp_path / "adapter"), "--verify"]) == 0, "the content is as recorded"


def test_each_matrix_gets_the_rank_that_a_share_needs(tmp_path: Path) -> None:
    base, tuned = tuned_pair(tmp_path, build_model(40, tie=False, width=16))
    found = extract_lora(tuned, base, tmp_path / "adapter", settings=LoraSettings(energy=0.8), sync=False)
    assert len({p.rank for p in found.parts}) > 1
    for part in found.parts:
        s = np.linalg.svd(values(tuned)[part.name] - values(base)[part.name], compute_uv=False) ** 2
        assert part.kept >= 0.8 - 1e-6 and s[: part.rank - 1].sum() < 0.8 * s.sum()
    after = values(AdaptedSource(CheckpointReader(base), tmp_path / "adapter"))
    merged = peft_model(base, tmp_path / "adapter").merge_and_unload().state_dict()
    for name, got in after.items():  # ranks and scalings by module are read as PEFT reads them
        np.testing.assert_allclose(got, merged[name].double().numpy(), rtol=0, atol=2e-7)


def test_what_has_no_factors_is_named_and_what_did_not_change_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, tuned = tuned_pair(
        tmp_path,
        build_model(40, tie=False, width=16),
        also=("input_layernorm",),
        spare=("lm_head", "layers.1", "k_proj"),
    )
    words = ["extract-lora", str(tuned), "--base", str(base), "--no_sync"]
    assert main([*words, "--rank", "2", "--embeddings", "leave", "--output_dir", str(tmp_path / "one")]) == 0
    printed = capsys.readouterr().out
    assert "3 changed tensors are not in the adapter" in printed and "input_layernorm.weight" in printed
    config = json.loads((tmp_path / "one/adapter_config.json").read_text())
    assert config["target_modules"] == [
        f"model.layers.0.{m}"
        for m in ("mlp.down_proj", "mlp.gate_proj", "mlp.up_proj", *(f"self_attn.{x}_proj" for x in "oqv"))
    ]
    held = values(AdaptedSource(CheckpointReader(base), tmp_path / "one"))
    same = [n for n, v in values(base).items() if np.array_equal(v, held[n])]
    assert any("embed_tokens" in n for n in same) and any("layers.0.input_layernorm" in n for n in same)
    assert (
        main([*words, "--embeddings", "save", "--others", "save", "--json", "--output_dir", str(tmp_path / "two")]) == 0
    )
    told = json.loads(capsys.readouterr().out)
    assert {p["name"]: p["how"] for p in told["parts"]}["model.embed_tokens.weight"] == "whole"
    config = json.loads((tmp_path / "two/adapter_config.json").read_text())
    assert config["modules_to_save"] == [
        "model.embed_tokens", "model.layers.0.input_layernorm", "model.layers.1.input_layernorm"
    ]  # fmt: skip
    merged = peft_model(base, tmp_path / "two").merge_and_unload().state_dict()
    assert np.array_equal(merged["model.embed_tokens.weight"].numpy(), values(tuned)["model.embed_tokens.weight"])


def test_tied_embeddings_with_factors_stay_tied(tmp_path: Path) -> None:
    """Running: PEFT's merge adds the factors of both ends to the tensor that they share."""
    base, tuned = tuned_pair(tmp_path, build_model(40, tie=True, width=16))
    settings = LoraSettings(rank=1000, embeddings="lora")
    extract_lora(tuned, base, tmp_path / "adapter", settings=settings, sync=False)
    source = AdaptedSource(CheckpointReader(base), tmp_path / "adapter")
    assert "lm_head.weight" not in source.entries and source.config["tie_word_embeddings"]
    np.testing.assert_allclose(
        values(source)["model.embed_tokens.weight"], values(tuned)["model.embed_tokens.weight"], rtol=0, atol=3e-7
    )
    ids = torch.arange(12)[None]
    from transformers import AutoModelForCausalLM

    with torch.no_grad():
        wanted = AutoModelForCausalLM.from_pretrained(tuned)(ids).logits
        torch.testing.assert_close(peft_model(base, tmp_path / "adapter")(ids).logits, wanted, rtol=1e-4, atol=1e-5)


def test_16_bits_and_a_model_that_transformers_does_not_know(tmp_path: Path) -> None:
    from checkpoint_folders import random_model, write_folder

    base = random_model(0, "BF16")
    write_folder(tmp_path / "base", base, shards=2)
    write_folder(tmp_path / "tuned", random_model(1, "BF16", near=base, spread=0.1))
    found = extract_lora(
        tmp_path / "tuned",
        tmp_path / "base",
        tmp_path / "adapter",
        settings=LoraSettings(rank=12, embeddings="lora"),
        dtype="bfloat16",
    )
    with CheckpointReader(tmp_path / "adapter") as adapter:
        assert {e.dtype.name for e in adapter.entries.values()} == {"BF16"}
    parts = {p.name: p for p in found.parts}
    assert 0.9999 < parts["model.embed_tokens.weight"].kept < 1
    expected = values(tmp_path / "tuned")
    for name, got in values(AdaptedSource(CheckpointReader(tmp_path / "base"), tmp_path / "adapter")).items():
        if parts[name].how == "lora":
            assert np.abs(got - expected[name]).max() < 0.01


def test_more_tokens_are_refused_with_what_to_do_and_that_works(tmp_path: Path) -> None:
    model = build_model(320, tie=False, width=16)
    tokenizer = build_tokenizer(320)
    base, tuned = tuned_pair(tmp_path, model)
    tokenizer.save_pretrained(base)
    tokenizer.add_tokens(["<|new|>"], special_tokens=True)
    model.resize_token_embeddings(321, mean_resizing=False)
    model.save_pretrained(tuned)
    tokenizer.save_pretrained(tuned)
    with pytest.raises(ShapeError, match="--weights 1 0 --tokenizer union --output_dir base-with-tokens"):
        extract_lora(tuned, base, tmp_path / "adapter")
    assert not (tmp_path / "adapter").exists()
    merge([base, tuned], tmp_path / "wide", weights=[1.0, 0.0], tokenizer="union", sync=False)
    extract_lora(tuned, tmp_path / "wide", tmp_path / "adapter", settings=LoraSettings(rank=1000), sync=False)
    expected = values(tuned)
    for name, got in values(AdaptedSource(CheckpointReader(tmp_path / "wide"), tmp_path / "adapter")).items():
        np.testing.assert_allclose(got, expected[name], rtol=0, atol=3e-7)


def test_requests_that_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, tuned = tuned_pair(
        tmp_path, build_model(40, tie=False, width=16), spare=("proj", "embed", "head"), also=("norm",)
    )
    for settings, said in (
        (LoraSettings(rank=2, energy=0.5), "one of rank and energy"),
        (LoraSettings(energy=0.5, svd="randomized"), "needs all singular values"),
    ):
        with pytest.raises(ConfigError, match=said):
            extract_lora(tuned, base, tmp_path / "adapter", settings=settings)
    with pytest.raises(ModelError, match=r"differs from .* in nothing that an adapter would hold\. others: save"):
        extract_lora(tuned, base, tmp_path / "adapter")
    with pytest.raises(ModelError, match=r"in nothing that an adapter would hold\.$"):
        extract_lora(base, base, tmp_path / "adapter")
    gpt2().save_pretrained(tmp_path / "gpt2")
    with pytest.raises(ConfigError, match="tied embeddings beside Conv1D"):
        extract_lora(tmp_path / "gpt2", tmp_path / "gpt2", tmp_path / "a", settings=LoraSettings(embeddings="lora"))
    bloom = causal_lm("Bloom", n_layer=1, n_head=2)
    bloom.save_pretrained(tmp_path / "bloom")
    with pytest.raises(ConfigError, match=r"tied embeddings called word_embeddings .*expected save or leave, got lora"):
        extract_lora(tmp_path / "bloom", tmp_path / "bloom", tmp_path / "a", settings=LoraSettings(embeddings="lora"))
    biases = tuned_pair(tmp_path / "biases", bloom, spare=("",), also=("bias",))
    with pytest.raises(
        ModelError, match=r"expected a matrix that LoRA has factors for.*modules that would be saved whole"
    ):
        extract_lora(*biases[::-1], tmp_path / "adapter", settings=LoraSettings(others="save"))
    experts = tuned_pair(tmp_path / "experts", MOE["mixtral"](), spare=("",), also=("experts",))
    with pytest.raises(ModelError, match=r"beyond an adapter's reach: .*experts\.0\.w1\.weight"):
        extract_lora(*experts[::-1], tmp_path / "adapter", settings=LoraSettings(others="save"))
    with pytest.raises(HoldfastError, match="lies in the input"):
        extract_lora(tuned, base, base / "adapter")
    shutil.copytree(base, tmp_path / "tied")
    build_model(40, tie=True, width=16).save_pretrained(tmp_path / "tied")
    with pytest.raises(ShapeError, match=r"a head of its own .*--tied_heads untie"):
        extract_lora(base, tmp_path / "tied", tmp_path / "adapter")
    assert main(["extract-lora", "nowhere/at/all", "--base", str(base), "--output_dir", "x", "--rank", "0"]) == 2
    told = capsys.readouterr().err
    assert "--rank" in told and "nowhere/at/all" in told
    assert not (tmp_path / "adapter").exists() and not list(tmp_path.glob(".*partial*"))


def test_nan_is_named(tmp_path: Path) -> None:
    model = build_model(40, tie=False, width=16)
    base, _ = tuned_pair(tmp_path, model)
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[3, 4] = float("nan")
    model.save_pretrained(tmp_path / "broken")
    with pytest.raises(ModelError, match=r"up_proj.weight .*\(tuned model\) holds 1 NaN .* at \[3, 4\]"):
        extract_lora(tmp_path / "broken", base, tmp_path / "adapter")


# ---------------------------------------------------------------------------------------------------------------- maths


@pytest.mark.parametrize("shape", [(30, 50), (50, 30), (1, 7), (9, 9)])
@pytest.mark.parametrize("rank", [1, 4, 100])
def test_low_rank_is_the_truncated_svd(shape: tuple[int, int], rank: int) -> None:
    matrix = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    u, s, vt = np.linalg.svd(matrix.astype(np.float64), full_matrices=False)
    left, right = low_rank(matrix, rank=rank)
    kept = min(rank, *shape)
    assert left.shape == (shape[0], kept) and right.shape == (kept, shape[1])
    np.testing.assert_allclose(left @ right, (u[:, :kept] * s[:kept]) @ vt[:kept], rtol=0, atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(left, axis=0), np.sqrt(s[:kept]), rtol=1e-10)
    assert distance_squared(matrix, left, right) == pytest.approx(np.sum(s[kept:] ** 2), rel=1e-12, abs=1e-20)


def test_low_rank_of_few_directions_and_of_wide_ranges() -> None:
    rng = np.random.default_rng(0)
    few = rng.normal(size=(40, 3)) @ rng.normal(size=(3, 60)) * 1e-12
    for svd in ("exact", "randomized"):
        left, right = low_rank(few, rank=8, svd=svd)  # type: ignore[arg-type]
        assert np.isfinite(left).all() and np.isfinite(right).all()
        np.testing.assert_allclose(left @ right, few, rtol=0, atol=1e-24)
    assert len(low_rank(few, energy=1.0).right) == 3
    assert len(low_rank(np.eye(5), energy=0.41).right) == 3


def test_a_randomized_search_is_nearly_as_good() -> None:
    rng = np.random.default_rng(0)
    scales = np.arange(1, 201) ** -0.5  # falls off slowly, as a fine-tune's change does
    matrix = np.linalg.qr(rng.normal(size=(200, 200)))[0] * scales @ np.linalg.qr(rng.normal(size=(200, 200)))[0]
    exact, random, again = (
        low_rank(matrix, rank=16, svd=svd, seed=seed)  # type: ignore[arg-type]
        for svd, seed in (("exact", 0), ("randomized", 0), ("randomized", 0))
    )
    kept = [1 - distance_squared(matrix, *found) / np.square(matrix).sum() for found in (exact, random)]
    assert kept[0] * 0.99 < kept[1] <= kept[0]
    np.testing.assert_array_equal(random.left, again.left)
