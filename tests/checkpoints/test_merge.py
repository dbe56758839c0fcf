"""Merges through the whole engine: every method against a ten-line float64 reference, in every dtype, with what travels along."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from checkpoint_folders import (
    Model,
    assert_rounded,
    llama_shapes,
    random_model,
    read_folder,
    stored,
    weights,
    write_folder,
    write_tokenizer,
)
from holdfast.checkpoints.counter import stream_key, uniform
from holdfast.checkpoints.merge import merge, prepare_merge
from holdfast.checkpoints.methods.registry import METHODS
from holdfast.checkpoints.policies import Policies
from holdfast.errors import ConfigError, ShapeError

Values = dict[str, np.ndarray]


# ------------------------------------------------------------------------------------------------------------------ references


def delta(model: np.ndarray, base: np.ndarray, single: bool) -> np.ndarray:
    """In the compute dtype, which thresholds are defined on; as float64."""
    return (model.astype(np.float32) - base.astype(np.float32)).astype(np.float64) if single else model - base


def kth_largest(values: np.ndarray, k: int) -> float:
    return float(np.sort(np.abs(values.astype(np.float32)).ravel())[::-1][k - 1])


def elected(deltas: Sequence[np.ndarray]) -> np.ndarray:
    sign = np.sign(sum(deltas))
    agree = [np.sign(d) == sign for d in deltas]
    return sum(np.where(a, d, 0) for a, d in zip(agree, deltas, strict=True)) / np.maximum(
        1, sum(a & (sign != 0) for a in agree)
    )


def ref_linear(base: Values, models: list[Values], extra: list[Values], single: bool) -> Values:
    return {n: (2 * models[0][n] + 1 * models[1][n] + 0.5 * models[2][n]) / 3.5 for n in base}


def ref_wise_ft(base: Values, models: list[Values], extra: list[Values], single: bool) -> Values:
    return {n: 0.7 * base[n] + 0.3 * models[0][n] for n in base}


def ref_slerp(base: Values, models: list[Values], extra: list[Values], single: bool) -> Values:
    found = {}
    for name in base:
        a, b = models[0][name], models[1][name]
        norms = np.linalg.norm(a) * np.linalg.norm(b)
        cosine = float((a * b).sum() / norms) if norms else 1.0
        omega = np.arccos(np.clip(cosine, -1, 1))
        left, right = (
            (0.7, 0.3)
            if abs(cosine) > 0.9995
            else (np.sin(0.7 * omega) / np.sin(omega), np.sin(0.3 * omega) / np.sin(omega))
        )
        found[name] = left * a + right * b
    return found


def ref_task_arithmetic(base: Values, models: list[Values], extra: list[Values], single: bool) -> Values:
    return {
        n: base[n]
        + 0.6 * (0.5 * (models[0][n] - base[n]) - 0.25 * (models[1][n] - base[n]) + 1.0 * (models[2][n] - base[n]))
        for n in base
    }


def ref_ties(base: Values, models: list[Values], extra: list[Values], single: bool) -> Values:
    deltas = [{n: delta(m[n], base[n], single) for n in base} for m in models[:2]]
    least = [kth_largest(flat := np.concatenate([d[n].ravel() for n in base]), int(0.3 * flat.size)) for d in deltas]
    trimmed = [
        {n: np.where(np.abs(d[n].astype(np.float32)) >= t, d[n], 0) for n in base}
        for d, t in zip(deltas, least, strict=True)
    ]
    return {n: base[n] + 0.8 * elected([t[n] for t in trimmed]) for n in base}


def ref_dare(base: Values, models: list[Values], extra: list[Values], single: bool) -> Values:
    found = {}
    for name in base:
        masks = [
            uniform(stream_key(7, name, "dare", str(i)), 0, base[name].size).reshape(base[name].shape) >= 0.8
            for i in range(2)
        ]
        found[name] = base[name] + sum(
            w * 5 * m * (t[name] - base[name]) for w, m, t in zip((1.0, 0.5), masks, models[:2], strict=True)
        )
    return found


def ref_dare_ties(base: Values, models: list[Values], extra: list[Values], single: bool) -> Values:
    found = {}
    for name in base:
        masks = [
            uniform(stream_key(3, name, "dare", str(i)), 0, base[name].size).reshape(base[name].shape) >= 0.5
            for i in range(2)
        ]
        found[name] = base[name] + elected(
            [2 * m * delta(t[name], base[name], single) for m, t in zip(masks, models[:2], strict=True)]
        )
    return found


def ref_breadcrumbs(base: Values, models: list[Values], extra: list[Values], single: bool) -> Values:
    found = {}
    for name in base:
        size, total = base[name].size, np.zeros(base[name].shape)
        keep, outliers = int(0.5 * size), int(0.1 * size)
        for model in models[:2]:
            change = delta(model[name], base[name], single)
            if keep:
                least, most = kth_largest(change, min(size, outliers + keep)), kth_largest(change, outliers + 1)
                magnitude = np.abs(change.astype(np.float32))
                total = total + np.where((magnitude >= least) & (magnitude <= most), change, 0)
        found[name] = base[name] + 0.5 * total
    return found


def ref_fisher(base: Values, models: list[Values], extra: list[Values], single: bool) -> Values:
    found = {}
    for name in base:
        importance = [f[name] for f in extra]
        total = sum(importance)
        weighted = sum(i * m[name] for i, m in zip(importance, models[:2], strict=True))
        found[name] = np.where(
            total > 0, weighted / np.where(total > 0, total, 1), (models[0][name] + models[1][name]) / 2
        )
    return found


REFERENCES: dict[str, tuple[Callable[..., Values], int, dict[str, Any]]] = {
    "linear": (ref_linear, 3, {"weights": [2, 1, 0.5]}),
    "wise_ft": (ref_wise_ft, 1, {"alpha": 0.3}),
    "slerp": (ref_slerp, 2, {"t": 0.3}),
    "task_arithmetic": (ref_task_arithmetic, 3, {"weights": [0.5, -0.25, 1.0], "scale": 0.6}),
    "ties": (ref_ties, 2, {"density": 0.3, "scale": 0.8}),
    "dare": (ref_dare, 2, {"p": 0.8, "weights": [1.0, 0.5], "seed": 7}),
    "dare_ties": (ref_dare_ties, 2, {"density": 0.5, "seed": 3}),
    "breadcrumbs": (ref_breadcrumbs, 2, {"density": 0.5, "gamma": 0.1, "scale": 0.5}),
    "fisher": (ref_fisher, 2, {}),
}
"""Method: reference, models beside the base, parameters."""

STORAGE = {
    "bf16": (["BF16"] * 4, None),
    "fp16": (["F16"] * 4, None),
    "fp32": (["F32"] * 4, None),
    "fp64": (["F64"] * 4, None),
    "fp8_e4m3": (["F8_E4M3"] * 4, None),
    "fp8_e5m2": (["F8_E5M2"] * 4, None),
    "mixed": (["BF16", "F32", "F16", "F8_E4M3"], None),
    "mixed_to_fp32": (["F16", "BF16", "F8_E5M2", "F64"], "float32"),
    "fp32_to_bf16": (["F32"] * 4, "bfloat16"),
}
"""Dtypes of base and three models, dtype of the output."""

SHAPES = llama_shapes() | {"model.scalar": (), "model.empty": (0, 7), "model.exact": (64,), "model.over": (13, 5)}


def request_for(method: str, folders: Sequence[Path], fisher: Sequence[Path]) -> tuple[list[Path], dict[str, Any]]:
    _, count, parameters = REFERENCES[method]
    request = dict(parameters)
    if METHODS[method].needs_base:
        request["base"] = folders[0]
    if method == "fisher":
        request["fisher"] = list(fisher)
    return list(folders[1 : 1 + count]), request


@pytest.mark.parametrize("storage", STORAGE)
@pytest.mark.parametrize("method", REFERENCES)
def test_methods_against_float64(method: str, storage: str, small_units: int, tmp_path: Path) -> None:
    dtypes, wanted = STORAGE[storage]
    shards = 1 + len(storage) % 3
    base = random_model(1, dtypes[0], SHAPES)
    models = [random_model(i, d, SHAPES, near=base, spread=0.4) for i, d in enumerate(dtypes[1:], 2)]
    importance = [
        {n: stored(np.maximum(t.values - 0.3, 0), "F32") for n, t in random_model(i, "F32", SHAPES).items()}
        for i in (10, 11)
    ]
    folders = [write_folder(tmp_path / f"m{i}", m, shards=shards) for i, m in enumerate([base, *models])]
    fisher = [write_folder(tmp_path / f"f{i}", m) for i, m in enumerate(importance)]
    reference, count, _ = REFERENCES[method]
    inputs, request = request_for(method, folders, fisher)
    merge(inputs, tmp_path / "out", method=method, dtype=wanted, sync=False, **request)

    layout = base if METHODS[method].needs_base else models[0]
    values = [{n: t.values for n, t in m.items()} for m in (base, *models, *importance)]
    used = dtypes[: 1 + count] if METHODS[method].needs_base else dtypes[1 : 1 + count]
    single = "F64" not in used and layout["model.scalar"].dtype != "F64"
    expected = reference(values[0], values[1:4], values[4:], single)
    found = read_folder(tmp_path / "out")
    assert found.keys() == layout.keys()
    for name, tensor in found.items():
        assert tensor.dtype == ("F32" if wanted == "float32" else "BF16" if wanted else layout[name].dtype)
        sizes = sum((np.abs(v[name]) for v in values[:4]), np.zeros(SHAPES[name]))
        assert_rounded(tensor, expected[name], terms=6 * sizes, steps=4)


# ------------------------------------------------------------------------------------------------------------------ exact laws


def with_oddities(model: Model) -> Model:
    """Zeros of both signs, the smallest and the largest numbers, in a tensor of each float dtype."""
    found = dict(model)
    for name in ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"):
        numbers = torch.tensor([0.0, -0.0, 1.0, -1.0], dtype=torch.float64)
        smallest = {
            "F64": 5e-324,
            "F32": 1e-45,
            "F16": 6e-8,
            "BF16": 9.2e-41,
            "F8_E4M3": 0.001953125,
            "F8_E5M2": 1.52587890625e-05,
        }[name]
        largest = {
            "F64": 1.7976931348623157e308,
            "F32": 3.4028234663852886e38,
            "F16": 65504,
            "BF16": 3.3895313892515355e38,
            "F8_E4M3": 448,
        }
        extremes = torch.tensor(
            [smallest, -smallest, largest.get(name, 57344), -largest.get(name, 57344)], dtype=torch.float64
        )
        found[f"odd.{name}"] = stored(torch.cat([numbers, extremes]).numpy(), name)
    return found


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
    if METHODS[method].needs_base:
        count = 1 if method == "wise_ft" else 2
        merge(folders[1 : 1 + count], tmp_path / "out", method=method, base=folders[0], sync=False, **parameters)
    else:
        merge(folders[1:], tmp_path / "out", method=method, sync=False, **parameters)
    assert read_folder(tmp_path / "out") == models[parent]


@pytest.mark.parametrize("method", REFERENCES)
def test_equal_models_stay_what_they_are(method: str, small_units: int, tmp_path: Path) -> None:
    """Frozen layers must not move, whatever the weights."""
    model = random_model(0, "F32")
    folders = [write_folder(tmp_path / f"m{i}", model) for i in range(4)]
    fisher = [
        write_folder(tmp_path / f"f{i}", {n: stored(np.abs(t.values), "F32") for n, t in random_model(i).items()})
        for i in range(2)
    ]
    inputs, request = request_for(method, folders, fisher)
    merge(inputs, tmp_path / "out", method=method, sync=False, **request)
    found = read_folder(tmp_path / "out")
    if method == "slerp":  # of parallel tensors it is linear
        assert all(np.allclose(found[n].values, model[n].values, rtol=3e-7, atol=0) for n in model)
    else:
        assert found == model


# ------------------------------------------------------------------------------------------------------------------ requests


def test_a_request_is_checked_whole_before_anything_is_opened(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        prepare_merge(
            "ties", [tmp_path / "a"], fisher=[tmp_path / "f"], layout="nobody", density=0.5, weights=[1.0, 2.0]
        )
    assert len(caught.value.problems) == 4
    for wanted in (
        "expected one weight for each of the 1 models",
        "ties needs a base",
        "takes no Fisher information",
        "layout: expected one of",
    ):
        assert wanted in str(caught.value)
    with pytest.raises(ConfigError, match=r"linear takes no base; name it among the models"):
        prepare_merge("linear", [tmp_path / "a"], base=tmp_path / "b")
    with pytest.raises(
        ConfigError, match=r"fisher needs Fisher information for each model: expected 2 checkpoints, got 1"
    ):
        prepare_merge("fisher", [tmp_path / "a", tmp_path / "b"], fisher=[tmp_path / "f"])
    with pytest.raises(ConfigError, match=r"Did you mean 'ties'"):
        prepare_merge("tise", [tmp_path / "a"])


# ------------------------------------------------------------------------------------------------------------------ what travels along


def dressed(folder: Path, model: Model, mark: str, tokens: list[str], **config: Any) -> Path:
    files = {
        "tokenizer_config.json": json.dumps({"mark": mark}), "chat_template.jinja": f"{{# {mark} #}}", "generation_config.json": json.dumps({"mark": mark}),
        "special_tokens_map.json": "{}", "README.md": mark, "training_args.bin": mark, "trainer_state.json": "{}", "modeling_x.py": f"# {mark}",
    }  # fmt: skip
    return write_folder(
        folder, model, tokens=tokens, files=files, config={"mark": mark, "torch_dtype": "bfloat16", **config}
    )


def test_tokenizer_template_and_generation_settings_are_those_of_the_named_parent(tmp_path: Path) -> None:
    tokens = [f"t{i}" for i in range(40)]
    folders = [dressed(tmp_path / name, random_model(i), name, tokens) for i, name in enumerate(["base", "chat"])]
    merge([folders[1]], tmp_path / "plain", method="wise_ft", base=folders[0], sync=False, dtype="float16")
    merge([folders[1]], tmp_path / "named", method="wise_ft", base=folders[0], sync=False, tokenizer="model 1")
    for output, mark in (("plain", "base"), ("named", "chat")):
        out = tmp_path / output
        assert json.loads((out / "generation_config.json").read_text()) == {"mark": mark}
        assert (
            json.loads((out / "tokenizer_config.json").read_text()) == {"mark": mark}
            and mark in (out / "chat_template.jinja").read_text()
        )
        assert not any((out / name).exists() for name in ("README.md", "training_args.bin", "trainer_state.json"))
        config = json.loads((out / "config.json").read_text())
        assert config["mark"] == "base" and config["torch_dtype"] == ("float16" if output == "plain" else "bfloat16")
    assert (tmp_path / "plain" / "tokenizer.json").read_bytes() == (folders[0] / "tokenizer.json").read_bytes()


# ------------------------------------------------------------------------------------------------------------------ vocabularies


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


def test_permuted_tokens_are_matched_by_token_and_need_no_policy(small_units: int, tmp_path: Path) -> None:
    order = list(np.random.default_rng(5).permutation(40))
    base, tuned, theta, other = vocabulary_case(tmp_path, [BASE_TOKENS[i] for i in order], 40)
    merge([tuned], tmp_path / "out", method="task_arithmetic", base=base, scale=0.5, sync=False)
    found = read_folder(tmp_path / "out")
    rows = np.argsort(order)
    for name in (EMBEDDING, "lm_head.weight"):
        moved = single(single(other[name])[rows] - single(theta[name]))
        assert np.array_equal(found[name].values, single(single(theta[name]) + single(moved * np.float32(0.5))))
    assert found["model.norm.weight"].values == pytest.approx(
        (theta["model.norm.weight"] + other["model.norm.weight"]) / 2, abs=1e-6
    )


def test_added_tokens_are_an_error_that_names_them_and_the_policies(tmp_path: Path) -> None:
    base, tuned, _, _ = vocabulary_case(tmp_path, [*BASE_TOKENS, "<|im_start|>", "<|im_end|>"], 42)
    with pytest.raises(ShapeError, match=r"<\|im_start\|>(?s:.*)--vocabulary keep(?s:.*)--vocabulary zero"):
        merge([tuned], tmp_path / "out", method="task_arithmetic", base=base)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("policy", ["keep", "zero"])
def test_added_tokens_in_the_layouts_vocabulary_or_beyond_it(policy: str, small_units: int, tmp_path: Path) -> None:
    base, tuned, theta, other = vocabulary_case(tmp_path, [*BASE_TOKENS[:20], "new", *BASE_TOKENS[20:]], 41)
    policies = Policies(vocabulary=policy)
    merge([tuned], tmp_path / "as_base", method="task_arithmetic", base=base, policies=policies, sync=False)
    merge(
        [tuned],
        tmp_path / "as_tuned",
        method="task_arithmetic",
        base=base,
        policies=policies,
        tokenizer="model 1",
        sync=False,
    )
    common = np.delete(np.arange(41), 20)
    for name in (EMBEDDING, "lm_head.weight"):
        merged = single(single(theta[name]) + single(single(other[name])[common] - single(theta[name])))
        assert np.array_equal(read_folder(tmp_path / "as_base")[name].values, merged)
        found = read_folder(tmp_path / "as_tuned")[name].values
        assert np.array_equal(found[common], merged)
        assert np.array_equal(found[20], other[name][20])  # nobody else has an opinion on the new row
    config = json.loads((tmp_path / "as_tuned" / "config.json").read_text())
    assert (
        config["vocab_size"] == 41
        and json.loads((tmp_path / "as_base" / "config.json").read_text())["vocab_size"] == 40
    )
    assert (tmp_path / "as_tuned" / "tokenizer.json").read_bytes() == (tuned / "tokenizer.json").read_bytes()


def test_padded_rows_need_no_policy_and_the_layouts_number_of_rows_stays(small_units: int, tmp_path: Path) -> None:
    base, tuned, _, other = vocabulary_case(tmp_path, BASE_TOKENS, 48)
    merge([tuned], tmp_path / "out", method="wise_ft", base=base, alpha=1.0, sync=False)
    merge([tuned], tmp_path / "wide", method="wise_ft", base=base, alpha=1.0, layout="model 1", sync=False)
    assert np.array_equal(read_folder(tmp_path / "out")[EMBEDDING].values, other[EMBEDDING][:40])
    wide = read_folder(tmp_path / "wide")[EMBEDDING].values
    assert np.array_equal(wide[:40], other[EMBEDDING][:40]) and wide.shape == (48, 12)
    assert prepare_merge("wise_ft", [tuned], base=base).plan.notes[0].count("48") == 1


def test_models_that_have_different_new_tokens(small_units: int, tmp_path: Path) -> None:
    base = write_folder(tmp_path / "base", first := random_model(0, "F32"), tokens=BASE_TOKENS)
    chat = write_folder(tmp_path / "chat", random_model(1, "F32", llama_shapes(41)), tokens=[*BASE_TOKENS, "<chat>"])
    code = write_folder(tmp_path / "code", random_model(2, "F32", llama_shapes(41)), tokens=[*BASE_TOKENS, "<code>"])
    out = merge(
        [chat, code],
        tmp_path / "out",
        method="task_arithmetic",
        base=base,
        policies=Policies(vocabulary="keep"),
        sync=False,
    )
    assert read_folder(out.folder)[EMBEDDING].shape == first[EMBEDDING].shape
    notes = " ".join(
        prepare_merge("task_arithmetic", [chat, code], base=base, policies=Policies(vocabulary="keep")).plan.notes
    )
    assert "<chat>" in notes and "<code>" in notes


def test_a_tokenizer_that_differs_without_rows_that_do(tmp_path: Path) -> None:
    base, tuned, _, _ = vocabulary_case(tmp_path, [*BASE_TOKENS[:-1], "<tool>"], 40)
    with pytest.raises(ShapeError, match=r"<tool>"):
        prepare_merge("wise_ft", [tuned], base=base)
    write_tokenizer(tuned, BASE_TOKENS)
    assert prepare_merge("wise_ft", [tuned], base=base).plan.notes == ()


# ------------------------------------------------------------------------------------------------------------------ adapters


@pytest.mark.slow
def test_adapters_are_models_too(small_units: int, tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    from tiny import build_model

    build_model().save_pretrained(tmp_path / "base")
    tuned, merged = [], []
    for i in range(2):
        model = get_peft_model(
            build_model(), LoraConfig(r=3, lora_alpha=6, target_modules=["q_proj", "down_proj"], use_rslora=i == 1)
        )
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora" in name:
                    parameter.copy_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(i)))
        model.peft_config["default"].base_model_name_or_path = str(tmp_path / "base")
        model.save_pretrained(tmp_path / f"adapter{i}")
        tuned.append(tmp_path / f"adapter{i}")
        model.merge_and_unload().save_pretrained(tmp_path / f"merged{i}")
        merged.append(tmp_path / f"merged{i}")
    for method, request in (
        ("ties", {"density": 0.4, "base": tmp_path / "base"}),
        ("linear", {}),
        ("slerp", {"t": 0.4}),
    ):
        merge(tuned, tmp_path / f"{method}-a", method=method, sync=False, **request)
        merge(merged, tmp_path / f"{method}-m", method=method, sync=False, **request)
        ours, theirs = read_folder(tmp_path / f"{method}-a"), read_folder(tmp_path / f"{method}-m")
        assert ours.keys() == theirs.keys()
        far = sum(int((np.abs(ours[n].values - theirs[n].values) > 1e-6).sum()) for n in ours)
        assert far <= 2, method  # an element at a threshold may fall on either side of it
        assert (tmp_path / f"{method}-a" / "config.json").is_file() and not list(
            (tmp_path / f"{method}-a").glob("adapter*")
        )


# ------------------------------------------------------------------------------------------------------------------ transformers


@pytest.mark.parametrize(("tie", "dtype"), [(True, "bfloat16"), (False, None), (True, "float16")])
def test_transformers_loads_what_was_merged(tie: bool, dtype: str | None, tokenizer: Any, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from tiny import build_model

    states = []
    for i, size in enumerate(["20KB", "5GB"]):
        model = build_model(seed=i, tie=tie)
        model.save_pretrained(tmp_path / f"m{i}", max_shard_size=size)
        tokenizer.save_pretrained(tmp_path / f"m{i}")
        states.append(model.state_dict())
    merge([tmp_path / "m0", tmp_path / "m1"], tmp_path / "out", dtype=dtype, sync=False)
    loaded, said = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(said.values()), said
    assert loaded.dtype == getattr(torch, dtype or "float32") and loaded.config.tie_word_embeddings is tie
    assert (loaded.lm_head.weight.data_ptr() == loaded.model.embed_tokens.weight.data_ptr()) is tie
    for name, value in loaded.state_dict().items():
        torch.testing.assert_close(
            value,
            ((states[0][name] + states[1][name]) / 2).to(value.dtype),
            rtol=2e-7 if dtype is None else 0.008,
            atol=1e-8,
        )
    assert len(weights(tmp_path / "out")) == len(weights(tmp_path / "m0")) > 1
    assert (
        AutoTokenizer.from_pretrained(tmp_path / "out")("def add(a, b):").input_ids
        == tokenizer("def add(a, b):").input_ids
    )


@pytest.mark.parametrize("policy", ["untie", "tie"])
def test_transformers_loads_models_whose_heads_were_brought_in_line(policy: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    from tiny import build_model

    build_model(seed=0, tie=True).save_pretrained(tmp_path / "tied")
    build_model(seed=1, tie=False).save_pretrained(tmp_path / "separate")
    for first, second in (("tied", "separate"), ("separate", "tied")):
        out = tmp_path / f"{first}-out"
        merge([tmp_path / first, tmp_path / second], out, policies=Policies(tied_heads=policy), sync=False)
        loaded, said = AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
        assert not any(said.values()) and loaded.config.tie_word_embeddings is (policy == "tie")
        head, embedding = (read_folder(out).get(n) for n in ("lm_head.weight", EMBEDDING))
        assert (head is None) is (policy == "tie")
        assert head is None or np.array_equal(loaded.lm_head.weight.detach().numpy(), head.values)
        assert embedding is not None and np.array_equal(
            loaded.model.embed_tokens.weight.detach().numpy(), embedding.values
        )


def test_transformers_loads_a_merge_with_a_larger_vocabulary(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from tiny import build_model, build_tokenizer

    plain, chat = build_tokenizer(), build_tokenizer()
    chat.add_tokens(["<|im_start|>", "<|im_end|>"], special_tokens=True)
    chat.chat_template = "{{ messages }}"
    build_model(320, seed=0).save_pretrained(tmp_path / "base")
    plain.save_pretrained(tmp_path / "base")
    model = build_model(320, seed=1)
    model.resize_token_embeddings(len(chat) + 6)
    model.save_pretrained(tmp_path / "chat")
    chat.save_pretrained(tmp_path / "chat")
    merge(
        [tmp_path / "chat"], tmp_path / "out", method="wise_ft", base=tmp_path / "base", tokenizer="model 1", policies=Policies(vocabulary="keep"),
        sync=False,
    )  # fmt: skip
    loaded, said = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert (
        not any(said.values())
        and loaded.config.vocab_size == len(chat) + 6 == loaded.model.embed_tokens.weight.shape[0]
    )
    again = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert again.chat_template == "{{ messages }}" and again.convert_tokens_to_ids(
        "<|im_end|>"
    ) == chat.convert_tokens_to_ids("<|im_end|>")
    row = chat.convert_tokens_to_ids("<|im_end|>")
    assert torch.equal(loaded.model.embed_tokens.weight[row], model.model.embed_tokens.weight[row])


# ------------------------------------------------------------------------------------------------------------------ mergekit


@pytest.mark.parametrize(
    ("method", "ours", "theirs"),
    [
        ("linear", {"weights": [1.0, 3.0]}, {"merge_method": "linear", "weights": [1.0, 3.0]}),
        ("slerp", {"t": 0.3}, {"merge_method": "slerp", "parameters": {"t": 0.3}}),
        ("task_arithmetic", {"weights": [0.7, 0.4]}, {"merge_method": "task_arithmetic", "weights": [0.7, 0.4]}),
        (
            "ties",
            {"density": 0.4, "semantics": "mergekit", "weights": [1.0, 0.5]},
            {"merge_method": "ties", "weights": [1.0, 0.5], "density": 0.4},
        ),
    ],
)
def test_against_mergekit(method: str, ours: dict[str, Any], theirs: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("mergekit")
    from mergekit.config import MergeConfiguration
    from mergekit.merge import run_merge
    from mergekit.options import MergeOptions

    from tiny import build_model

    for i, name in enumerate(["base", "math", "code"]):
        build_model(seed=i, tie=False).save_pretrained(tmp_path / name)
    weights_of = theirs.pop("weights", [1.0, 1.0])
    density = {"density": theirs.pop("density")} if "density" in theirs else {}
    tuned = [
        {"model": str(tmp_path / n), "parameters": {"weight": w, **density}}
        for n, w in zip(("math", "code"), weights_of, strict=True)
    ]
    config = {"models": tuned, "dtype": "float32", **theirs}
    needs_base = METHODS[method].needs_base
    if needs_base or method == "slerp":
        config["base_model"] = str(tmp_path / ("base" if needs_base else "math"))
    run_merge(
        MergeConfiguration.model_validate(config),
        str(tmp_path / "theirs"),
        MergeOptions(copy_tokenizer=False, quiet=True, write_model_card=False),
    )
    merge(
        [tmp_path / "math", tmp_path / "code"],
        tmp_path / "ours",
        method=method,
        sync=False,
        **ours,
        **({"base": tmp_path / "base"} if needs_base else {}),
    )
    mine, peer = read_folder(tmp_path / "ours"), read_folder(tmp_path / "theirs")
    assert mine.keys() == peer.keys()
    for name in mine:
        np.testing.assert_allclose(mine[name].values, peer[name].values, rtol=2e-5, atol=2e-7, err_msg=name)
