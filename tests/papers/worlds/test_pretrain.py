"""Small bases: packed rows, the cache, and continuing an interrupted pre-training."""

from __future__ import annotations

import pytest
import torch

from holdfast.errors import DataError
from holdfast.papers.worlds.pretrain import BaseRecipe, cached_base, pack_rows, pretrain
from tiny import SENTENCES, build_tokenizer

RECIPE = BaseRecipe(
    layers=1, width=16, heads=2, mlp=32, vocab_size=300, context=16, batch_size=4, steps=8, warmup_steps=1
)
TEXTS = [f"{number}: {sentence}" for number in range(12) for sentence in SENTENCES]


def test_rows_are_the_documents_in_order_with_ends_between():
    tokenizer = build_tokenizer()
    rows = pack_rows(SENTENCES, tokenizer, 8)
    assert all(len(row) == 8 for row in rows)
    stream = [i for text in SENTENCES for i in [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]]
    assert [i for row in rows for i in row] == stream[: len(stream) // 8 * 8]


def test_a_base_is_trained_once_and_loads(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = cached_base(TEXTS, RECIPE, cache=tmp_path)
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert cached_base(TEXTS, RECIPE, cache=tmp_path) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert model.config.vocab_size == len(tokenizer) <= 300
    assert not list(folder.glob("checkpoint-*"))


def test_what_decides_the_weights_decides_the_folder(tmp_path):
    import dataclasses

    first = cached_base(TEXTS, RECIPE, cache=tmp_path)
    assert cached_base(TEXTS, dataclasses.replace(RECIPE, seed=1), cache=tmp_path) != first
    assert cached_base(TEXTS[:-1], RECIPE, cache=tmp_path) != first


def test_an_interrupted_base_ends_with_the_same_weights(tmp_path, monkeypatch):
    from safetensors.torch import load_file

    from holdfast.training.trainers import RetentionTrainer

    whole = pretrain(TEXTS, RECIPE, tmp_path / "whole")
    original = RetentionTrainer.training_step

    def dies(self, *args, **kwargs):
        if self.state.global_step == 5:
            raise KeyboardInterrupt
        return original(self, *args, **kwargs)

    monkeypatch.setattr(RetentionTrainer, "training_step", dies)
    with pytest.raises(KeyboardInterrupt):
        pretrain(TEXTS, RECIPE, tmp_path / "cut")
    monkeypatch.setattr(RetentionTrainer, "training_step", original)
    cut = pretrain(TEXTS, RECIPE, tmp_path / "cut")
    a, b = load_file(whole / "model.safetensors"), load_file(cut / "model.safetensors")
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_too_little_text_is_refused(tmp_path):
    with pytest.raises(DataError, match="at least 4 rows of 16 tokens"):
        pretrain(["short"], RECIPE, tmp_path)
