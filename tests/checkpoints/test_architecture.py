"""What configurations say of what weights mean: differences are named, whatever the key, and what only says how a model
was saved or is run is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from checkpoint_folders import llama_shapes, random_model, write_folder
from holdfast.checkpoints.architecture import anchor_differences, config_differences
from holdfast.checkpoints.merge import prepare_merge
from holdfast.checkpoints.plan import Policies
from holdfast.checkpoints.residual import prepare_extract, prepare_transfer
from holdfast.errors import ShapeError
from holdfast.retention.anchor import meaning_problems
from holdfast.retention.methods.l2 import L2
from holdfast.retention.methods.wise_ft import WiseFT

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 500000.0,
}


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({"rope_theta": 1e6}, ["rope_theta"]),
        ({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, ["rope_type", "factor"]),
        ({"num_attention_heads": 2}, ["num_attention_heads", "head_dim"]),
        ({"num_key_value_heads": 4}, ["num_key_value_heads"]),
        ({"head_dim": 6}, ["head_dim"]),
        ({"rms_norm_eps": 1e-6}, ["rms_norm_eps"]),
        ({"hidden_act": "gelu"}, ["hidden_act"]),
        ({"model_type": "mistral", "sliding_window": 16}, ["model_type", "sliding_window"]),
    ],
)
def test_what_decides_the_computation_is_a_difference(changes: dict[str, Any], keys: list[str]) -> None:
    found = config_differences([LLAMA, LLAMA | changes])
    assert set(keys) <= {key.rpartition(".")[2] for key in found}


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "bfloat16", "transformers_version": "4.40", "use_cache": False, "_name_or_path": "elsewhere"},
        {"vocab_size": 99, "pad_token_id": 3, "eos_token_id": [1, 2], "max_position_embeddings": 9000},
        {"attention_dropout": 0.1, "initializer_range": 0.5, "architectures": ["LlamaForCausalLM"]},
        {"head_dim": 3, "attention_bias": False, "rope_scaling": None},  # defaults, spelt out
        {"rope_theta": None, "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}},
        {"unsloth_fixed": True},  # no key of the model's
    ],
)
def test_how_a_model_was_saved_is_no_difference(changes: dict[str, Any]) -> None:
    assert config_differences([LLAMA, {k: v for k, v in (LLAMA | changes).items() if v is not None}]) == {}


def test_parts_are_compared_and_so_are_models_of_their_own_code() -> None:
    parts = {"model_type": "own", "text_config": {"rope_theta": 1.0}, "vision_config": {"num_heads": 2}}
    other = {"model_type": "own", "text_config": {"rope_theta": 2.0}, "vision_config": {"num_heads": 2}}
    assert config_differences([parts, other]) == {"text_config.rope_theta": [1.0, 2.0]}


def folders(tmp_path: Path, *configs: dict[str, Any]) -> list[Path]:
    model = random_model(0, shapes=llama_shapes(head=True))
    return [write_folder(tmp_path / f"m{i}", model, config=LLAMA | config) for i, config in enumerate(configs)]


def test_merging_and_residuals_stop_with_the_keys_and_go_on_when_asked_to(tmp_path: Path) -> None:
    one, other, third = folders(tmp_path, {}, {"rope_theta": 1e6}, {"num_key_value_heads": 4})
    texts = []
    for prepare in (
        lambda **more: prepare_merge("linear", [one, other, third], **more),
        lambda **more: prepare_extract(other, one, **more),
        lambda **more: prepare_transfer(one, one, other, **more),
        lambda **more: prepare_merge("wise_ft", [other], base=one, alpha=0.5, **more),
    ):
        with pytest.raises(ShapeError, match=r"rope_theta: .*--architecture keep") as caught:
            prepare()
        texts.append(str(caught.value))
        notes = prepare(policies=Policies(architecture="keep")).plan.notes
        assert any("rope_theta" in note and "architecture: keep" in note for note in notes)
    assert "rope_theta: 500000.0 (model 1, model 3), 1000000.0 (model 2)" in texts[0]
    assert "num_key_value_heads: 2 (model 1, model 2), 4 (model 3)" in texts[0]


def test_an_anchor_of_another_meaning_is_refused(tmp_path: Path) -> None:
    one, other = folders(tmp_path, {}, {"rms_norm_eps": 1e-6})
    assert anchor_differences(one, LLAMA | {"use_cache": False, "tie_word_embeddings": True}) == ""
    assert meaning_problems([L2(coefficient=1.0, reference=str(one)), WiseFT()], LLAMA) == []
    [problem] = meaning_problems([WiseFT(reference=str(other))], LLAMA)
    assert "wise_ft.reference" in problem and "rms_norm_eps: 1e-06 (there), 1e-05 (here)" in problem


def test_a_model_that_also_sees_is_an_anchor_by_its_text_part(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llava", "text_config": LLAMA}))
    assert anchor_differences(tmp_path, LLAMA) == ""
