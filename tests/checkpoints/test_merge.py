"""Merges through the whole engine: their exact ends, requests, what travels along, vocabularies, and what
transformers loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from merge_references import CASES

from checkpoint_folders import (
    Model,
    fisher_diagonal,
    llama_shapes,
    merge_inputs,
    random_model,
    read_folder,
    stored,
    weights,
    write_folder,
)
from holdfast.checkpoints.merge import merge, prepare_merge
from holdfast.checkpoints.policies import Policies
from holdfast.errors import ConfigError

Values = dict[str, np.ndarray]


# ----------------------------------------------------------------------------------------------------------- exact laws


def with_oddities(model: Model) -> Model:
    """Zeros of both signs, the smallest and the largest numbers, in tensors of four float dtypes."""
    result = dict(model)
    for name, dtype in (("F32", torch.float32), ("F16", torch.float16), ("BF16", torch.bfloat16)):
        info = torch.finfo(dtype)
        odd = np.array([0.0, -0.0, 1.0, -1.0, info.smallest_normal / 4, -info.tiny, info.max, info.min])
        result[f"odd.{name}"] = stored(odd, name)
    result["odd.F8_E4M3"] = stored(np.array([0.0, -0.0, 2.0**-9, 448.0]), "F8_E4M3")
    return result


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F8_E4M3"])
@pytest.mark.parametrize(
    ("method", "parameters", "parent"),
    [
        ("wise_ft", {"alpha": 0.0}, 0),
        ("wise_ft", {"alpha": 1.0}, 1),
        ("slerp", {"t": 0.0}, 1),
        ("slerp", {"t": 1.0}, 2),
        ("task_arithmetic", {"scale": 0.0}, 0),
        ("task_arithmetic", {"weights": [0.0, 0.0]}, 0),
        ("linear", {"weights": [1.0, 0.0]}, 1),
        ("linear", {"weights": [0.0, 3.0]}, 2),
        ("linear", {"weights": [1.0, 0.0], "normalize": False}, 1),
        ("fisher", {"weights": [1.0, 0.0]}, 1),
    ],
)
def test_the_ends_are_the_parents_bit_for_bit(
    method: str, parameters: dict[str, Any], parent: int, dtype: str, small_units: int, tmp_path: Path
) -> None:
    models = [with_oddities(random_model(i, dtype)) for i in range(3)]
    for i, model in enumerate(models):  # other numbers of the same odd kinds at the same places
        for name in [n for n in model if n.startswith("odd.")]:
            model[name] = stored(np.roll(model[name].values, i), model[name].dtype)
    folders = [write_folder(tmp_path / f"m{i}", m, shards=1 + i) for i, m in enumerate(models)]
    diagonals = [
        {n: s._replace(dtype="F32", content=np.ones(s.shape, np.float32).tobytes()) for n, s in models[0].items()}
    ] * 2
    fisher = [write_folder(tmp_path / f"f{i}", m) for i, m in enumerate(diagonals)]
    inputs, request = merge_inputs(method, 1 if method == "wise_ft" else 2, folders, fisher)
    merge(inputs, tmp_path / "out", method=method, sync=False, **parameters, **request)
    assert read_folder(tmp_path / "out") == models[parent]


@pytest.mark.parametrize("case", CASES)
def test_equal_models_stay_what_they_are(case: str, small_units: int, tmp_path: Path) -> None:
    """Frozen layers must not move, whatever the weights."""
    name, parameters, count, _ = CASES[case]
    model = random_model(0, "F32")
    folders = [write_folder(tmp_path / f"m{i}", model) for i in range(4)]
    inputs, request = merge_inputs(
        name, count, folders, [write_folder(tmp_path / f"f{i}", fisher_diagonal(i)) for i in range(2)]
    )
    merge(inputs, tmp_path / "out", method=name, sync=False, **parameters, **request)
    found = read_folder(tmp_path / "out")
    if case == "slerp":  # of parallel tensors it is linear
        assert all(np.allclose(found[n].values, model[n].values, rtol=3e-7, atol=0) for n in model)
    else:
        assert (found == model) == (case != "sum")


# ------------------------------------------------------------------------------------------------------------- requests


def test_a_request_is_checked_whole_before_anything_is_opened(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        prepare_merge(
            "ties", [tmp_path / "a"], fisher=[tmp_path / "f"], layout="nobody", density=0.5, weights=[1.0, 2.0]
        )
    assert len(caught.value.problems) == 4
    for wanted in (
        "expected one weight for each of the 1 models",
        "ties needs a base",
        "uses no Fisher information",
        "layout: expected one of",
    ):
        assert wanted in str(caught.value)
    with pytest.raises(ConfigError, match=r"linear uses no base. To merge the base, list it among the models"):
        prepare_merge("linear", [tmp_path / "a"], base=tmp_path / "b")
    with pytest.raises(
        ConfigError, match=r"fisher needs Fisher information for each model: expected 2 checkpoints, got 1"
    ):
        prepare_merge("fisher", [tmp_path / "a", tmp_path / "b"], fisher=[tmp_path / "f"])
    with pytest.raises(ConfigError, match=r"Did you mean 'ties'"):
        prepare_merge("tise", [tmp_path / "a"])


# --------------------------------------------------------------------------------------------------- what travels along


def dressed(folder: Path, model: Model, mark: str, tokens: list[str]) -> Path:
    files = {
        "tokenizer_config.json": json.dumps({"mark": mark}),
        "chat_template.jinja": f"{{# {mark} #}}",
        "generation_config.json": json.dumps({"mark": mark}),
        "README.md": mark,
        "training_args.bin": mark,
    }
    return write_folder(folder, model, tokens=tokens, files=files, config={"mark": mark, "torch_dtype": "bfloat16"})


def test_tokenizer_template_and_generation_settings_are_those_of_the_named_parent(tmp_path: Path) -> None:
    tokens = [f"t{i}" for i in range(40)]
    base, chat = (dressed(tmp_path / name, random_model(i), name, tokens) for i, name in enumerate(["base", "chat"]))
    merge([chat], tmp_path / "plain", method="wise_ft", base=base, sync=False, dtype="float16")
    merge([chat], tmp_path / "named", method="wise_ft", base=base, sync=False, tokenizer="model 1")
    for output, mark in (("plain", "base"), ("named", "chat")):
        out = tmp_path / output
        for name in ("generation_config.json", "tokenizer_config.json"):
            assert json.loads((out / name).read_text()) == {"mark": mark}
        assert mark in (out / "chat_template.jinja").read_text()
        assert not (out / "README.md").exists() and not (out / "training_args.bin").exists()
        config = json.loads((out / "config.json").read_text())
        assert config["mark"] == "base" and config["torch_dtype"] == ("float16" if output == "plain" else "bfloat16")


# --------------------------------------------------------------------------------------------------------- vocabularies


BASE_TOKENS = [f"t{i}" for i in range(40)]
EMBEDDING = "model.embed_tokens.weight"


def vocabulary_case(
    tmp_path: Path, tokens: list[str], rows: int, *, head: bool = True, dtype: str = "F32"
) -> tuple[Path, Path, Values, Values]:
    """A base with 40 tokens in 40 rows and a model with these tokens in so many rows."""
    models = [
        random_model(0, dtype, llama_shapes(40, head=head)),
        random_model(1, dtype, llama_shapes(rows, head=head)),
    ]
    folders = [
        write_folder(tmp_path / n, m, tokens=t)
        for n, m, t in zip(("base", "tuned"), models, (BASE_TOKENS, tokens), strict=True)
    ]
    return (*folders, *({n: t.values for n, t in m.items()} for m in models))  # type: ignore[return-value]


def single(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32)


@pytest.mark.parametrize("policy", ["keep", "zero"])
def test_added_tokens_in_the_layouts_vocabulary_or_beyond_it(policy: str, small_units: int, tmp_path: Path) -> None:
    tokens = [*BASE_TOKENS[:20], "new", *BASE_TOKENS[20:]]
    base, tuned, theta, other = vocabulary_case(tmp_path, tokens, 41)
    request: dict[str, Any] = {"method": "task_arithmetic", "base": base, "policies": Policies(vocabulary=policy)}
    merge([tuned], tmp_path / "as_base", sync=False, **request)
    merge([tuned], tmp_path / "as_tuned", tokenizer="model 1", sync=False, **request)
    as_base, as_tuned = read_folder(tmp_path / "as_base"), read_folder(tmp_path / "as_tuned")
    common = np.delete(np.arange(41), 20)
    for name in (EMBEDDING, "lm_head.weight"):
        merged = single(single(theta[name]) + single(single(other[name])[common] - single(theta[name])))
        assert np.array_equal(as_base[name].values, merged)
        assert np.array_equal(as_tuned[name].values[common], merged)
        assert np.array_equal(as_tuned[name].values[20], other[name][20])  # nobody else has an opinion on the new row
    for output, rows, parent in (("as_base", 40, base), ("as_tuned", 41, tuned)):
        assert json.loads((tmp_path / output / "config.json").read_text())["vocab_size"] == rows
        assert (tmp_path / output / "tokenizer.json").read_bytes() == (parent / "tokenizer.json").read_bytes()


# --------------------------------------------------------------------------------------------------------- transformers


@pytest.mark.parametrize(("tie", "dtype"), [(True, "bfloat16"), (False, None)])
def test_transformers_loads_what_was_merged(tie: bool, dtype: str | None, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    from tiny import build_model

    states = []
    for i, size in enumerate(["20KB", "5GB"]):
        model = build_model(seed=i, tie=tie)
        model.save_pretrained(tmp_path / f"m{i}", max_shard_size=size)
        states.append(model.state_dict())
    merge([tmp_path / "m0", tmp_path / "m1"], tmp_path / "out", dtype=dtype, sync=False)
    loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info.values()), info
    assert loaded.dtype == getattr(torch, dtype or "float32") and loaded.config.tie_word_embeddings is tie
    for name, value in loaded.state_dict().items():
        mean = ((states[0][name] + states[1][name]) / 2).to(value.dtype)
        torch.testing.assert_close(value, mean, rtol=0.008 if dtype else 2e-7, atol=1e-8)
    assert len(weights(tmp_path / "out")) == len(weights(tmp_path / "m0")) > 1
