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


# --------------------------------------------------------------------------------------------------- what travels along


def dressed(folder: Path, model: Model, mark: str, tokens: list[str], **config: Any) -> Path:
    files = {
        "tokenizer_config.json": json.dumps({"mark": mark}),
        "chat_template.jinja": f"{{# {mark} #}}",
        "generation_config.json": json.dumps({"mark": mark}),
        "special_tokens_map.json": "{}",
        "README.md": mark,
        "training_args.bin": mark,
        "trainer_state.json": "{}",
        "modeling_x.py": f"# {mark}",
    }
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


# ------------------------------------------------------------------------------------------------------------- adapters


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


# --------------------------------------------------------------------------------------------------------- transformers


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
    loaded, stated = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(stated.values()), stated
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
        loaded, stated = AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
        assert not any(stated.values()) and loaded.config.tie_word_embeddings is (policy == "tie")
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
        [tmp_path / "chat"],
        tmp_path / "out",
        method="wise_ft",
        base=tmp_path / "base",
        tokenizer="model 1",
        policies=Policies(vocabulary="keep"),
        sync=False,
    )
    loaded, stated = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert (
        not any(stated.values())
        and loaded.config.vocab_size == len(chat) + 6 == loaded.model.embed_tokens.weight.shape[0]
    )
    again = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert again.chat_template == "{{ messages }}" and again.convert_tokens_to_ids(
        "<|im_end|>"
    ) == chat.convert_tokens_to_ids("<|im_end|>")
    row = chat.convert_tokens_to_ids("<|im_end|>")
    assert torch.equal(loaded.model.embed_tokens.weight[row], model.model.embed_tokens.weight[row])
