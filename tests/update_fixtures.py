"""A base, an instruct model that was tuned from it, and some dated news, small enough for every test."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from data_files import jsonl, text_rows
from tiny import SENTENCES, build_model

WORDS = [
    "river",
    "stone",
    "garden",
    "winter",
    "letter",
    "music",
    "table",
    "window",
    "morning",
    "paper",
    "silver",
    "forest",
    "harbour",
    "signal",
    "copper",
    "market",
]


def write_news(path: Path, count: int = 60, *, start: int = 0) -> Path:
    """Documents that differ, dated from January 2024 on."""
    rows = []
    for number in range(start, start + count):
        words = [WORDS[(number * k + k * k) % len(WORDS)] for k in range(1, 12)]
        text = f"News {number}. The {' '.join(words)}. {SENTENCES[number % len(SENTENCES)]}"
        rows.append(
            {"text": text, "date": f"2024-{1 + number % 12:02d}-{1 + number % 28:02d}", "title": f"News {number}"}
        )
    jsonl(path, rows)
    return path


@pytest.fixture(scope="session")
def pair(tmp_path_factory, tokenizer) -> tuple[Path, Path]:
    """(base, instruct): the second is the first with every weight moved a little."""
    root = tmp_path_factory.mktemp("pair")
    base, instruct = root / "base", root / "instruct"
    build_model().save_pretrained(base)
    build_model().save_pretrained(instruct)
    weights = load_file(instruct / "model.safetensors")
    generator = torch.Generator().manual_seed(1)
    moved = {name: w + 0.002 * torch.randn(w.shape, generator=generator) for name, w in weights.items()}
    save_file(moved, instruct / "model.safetensors", metadata={"format": "pt"})
    for folder in (base, instruct):
        tokenizer.save_pretrained(folder)
    config = json.loads((instruct / "tokenizer_config.json").read_text())
    config["chat_template"] = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    (instruct / "tokenizer_config.json").write_text(json.dumps(config))
    return base, instruct


@pytest.fixture(scope="session")
def news(tmp_path_factory) -> Path:
    return write_news(tmp_path_factory.mktemp("news") / "news.jsonl")


@pytest.fixture(scope="session")
def training():
    """Keys of a training of seconds."""
    return {
        "learning_rate": 1e-3,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 1,
        "bf16": False,
        "use_cpu": True,
        "save_strategy": "no",
        "gradient_checkpointing": False,
        "logging_steps": 1,
    }


@pytest.fixture
def request_of(pair, news, training, tmp_path):
    """The keys of a small update; `changes` over them."""

    def make(**changes):
        held_out = tmp_path / "old.jsonl"
        if not held_out.is_file():
            text_rows(held_out, SENTENCES)
        given = {
            "base": str(pair[0]),
            "instruct": str(pair[1]),
            "corpus": str(news),
            "held_out": 0.2,
            "window": 64,
            "train": training,
            "evaluation": {"keep": [{"perplexity": str(held_out), "name": "old", "window": 64}]},
            "output_dir": str(tmp_path / "out"),
        }
        return {k: v for k, v in {**given, **changes}.items() if v is not None}

    return make
