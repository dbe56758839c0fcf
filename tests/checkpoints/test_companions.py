"""What travels beside the weights, and how config.json changes on the way."""

from __future__ import annotations

import json

import pytest

from holdfast.checkpoints.companions import (
    changed_config,
    companions,
    copy_companions,
    write_config,
)
from holdfast.errors import ModelError

TRAVEL = [
    "LICENSE.txt",
    "USE_POLICY.md",
    "additional_chat_templates/rag.jinja",
    "chat_template.jinja",
    "custom_generate/generate.py",
    "generation_config.json",
    "merges.txt",
    "modeling_own.py",
    "preprocessor_config.json",
    "qwen.tiktoken",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model.v3",
    "tokenizer_config.json",
    "vocab.json",
]
STAY = [
    "README.md",
    "adapter_config.json",
    "adapter_model.safetensors",
    "config.json",
    "model-00001-of-00002.safetensors",
    "model.safetensors.index.json",
    "optimizer.pt",
    "provenance.json",
    "pytorch_model.bin",
    "rng_state.pth",
    "trainer_state.json",
    "training_args.bin",
    "runs/events.json",
    "runs/own.py",
    "additional_chat_templates/model.safetensors",
]


def fill(folder, names, text="x"):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{text} {name}")
    return folder


def texts_in(folder):
    """The text of every file below a folder."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


def test_what_travels_and_what_stays(tmp_path):
    source = fill(tmp_path / "from", TRAVEL + STAY)
    assert [p.as_posix() for p in companions(source)] == TRAVEL
    assert copy_companions(source, tmp_path / "to") == TRAVEL
    assert texts_in(tmp_path / "to") == {name: f"x {name}" for name in TRAVEL}


def test_a_tokenizer_replaces_another_as_a_whole(tmp_path):
    base = fill(tmp_path / "base", [*TRAVEL, "chat_template.json"])
    own = fill(tmp_path / "adapter", ["tokenizer.json", "tokenizer_config.json", "adapter_config.json"], "new")
    copy_companions(base, tmp_path / "to")
    copy_companions(own, tmp_path / "to")
    kept = [
        "LICENSE.txt",
        "USE_POLICY.md",
        "custom_generate/generate.py",
        "generation_config.json",
        "modeling_own.py",
        "preprocessor_config.json",
    ]
    assert texts_in(tmp_path / "to") == {n: f"x {n}" for n in kept} | {
        n: f"new {n}" for n in ("tokenizer.json", "tokenizer_config.json")
    }


# ---------------------------------------------------------------------------------------------------------- config.json


@pytest.mark.parametrize(
    ("config", "changes", "expected"),
    [
        ({"x": 1}, {"dtype": "F32"}, {"x": 1, "dtype": "float32"}),
        (
            {"dtype": "float32", "text_config": {"dtype": "float32"}, "vision_config": {"torch_dtype": "float32"}},
            {"dtype": "BF16"},
            {"dtype": "bfloat16", "text_config": {"dtype": "bfloat16"}, "vision_config": {"torch_dtype": "bfloat16"}},
        ),
        (
            {"text_config": {"vocab_size": 3}, "vision_config": {"vocab_size": 9}},
            {"vocab_size": 5},
            {"text_config": {"vocab_size": 5}, "vision_config": {"vocab_size": 9}},
        ),
        (
            {"tie_word_embeddings": True, "text_config": {"tie_word_embeddings": True}},
            {"tie_word_embeddings": False},
            {"tie_word_embeddings": False, "text_config": {"tie_word_embeddings": False}},
        ),
    ],
    ids=str,
)
def test_keys_change_where_they_live(config, changes, expected):
    before = json.dumps(config)
    assert changed_config(config, changes) == expected
    assert json.dumps(config) == before, "the original is left as it is"


def test_an_unchanged_file_is_copied_byte_for_byte(tmp_path):
    (tmp_path / "from").mkdir()
    text = '{"b": 1,\n   "a": "\\u00e9", "dtype": "bfloat16"}'
    (tmp_path / "from" / "config.json").write_text(text)
    assert write_config(tmp_path / "from", tmp_path / "to", changes={"dtype": "BF16"}) == json.loads(text)
    assert (tmp_path / "to" / "config.json").read_bytes() == text.encode()
    write_config(tmp_path / "from", tmp_path / "to", changes={"vocab_size": 7})
    assert list(json.loads((tmp_path / "to" / "config.json").read_text())) == ["b", "a", "dtype", "vocab_size"]


def test_faults_are_named(tmp_path):
    (tmp_path / "from").mkdir()
    with pytest.raises(ModelError, match=r"config\.json"):
        write_config(tmp_path / "from", tmp_path / "to", changes={})
