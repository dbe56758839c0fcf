"""A vision tower that is put to a language model leaves what the model says on text as it was."""

from __future__ import annotations

import argparse
import inspect
import json
import logging
from pathlib import Path

import pytest
import torch

from holdfast.errors import ModelError
from holdfast.models import Loaded, load
from holdfast.papers.worlds.quickstart_base import quickstart_base
from holdfast.runs.wrapping import wrap_language_model
from tiny import build_decoder, build_tokenizer

TEXTS = [inspect.getdoc(thing) or "" for thing in (argparse, json, logging, Path, argparse.ArgumentParser)]
"""Prose of the kind that the shipped base was pre-trained on."""


@pytest.fixture(scope="module")
def tower(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CLIP vision model that was never trained, with its image processor."""
    from transformers import CLIPVisionConfig, CLIPVisionModel
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    folder = tmp_path_factory.mktemp("tower")
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1, "num_hidden_layers": 1}
    CLIPVisionModel(CLIPVisionConfig(**shape, image_size=8, patch_size=4)).save_pretrained(folder)
    CLIPImageProcessorPil().save_pretrained(folder)
    return folder


def logits_of(loaded: Loaded, text: str) -> torch.Tensor:
    ids = torch.tensor([loaded.tokenizer(text)["input_ids"][:128]])
    with torch.no_grad():
        return loaded.model(input_ids=ids).logits[0].double()


def test_a_model_with_a_tower_is_the_language_model_on_text(tower: Path, tmp_path: Path) -> None:
    """The law: equal logits of the tokens that there were, and no share of the probability for the new one."""
    from transformers import AutoModelForCausalLM

    base = str(quickstart_base())
    AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).save_pretrained(tmp_path / "base")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "base" / name).write_bytes((Path(base) / name).read_bytes())
    language = load(str(tmp_path / "base"))
    written = wrap_language_model(tmp_path / "base", tower, tmp_path / "whole", layer=-1)
    whole = load(str(written.folder))
    assert len(whole.tokenizer) == len(language.tokenizer) + 1
    new = whole.tokenizer.convert_tokens_to_ids("<image>")
    for text in TEXTS:
        before, after = logits_of(language, text), logits_of(whole, text)
        assert torch.equal(after[:, : before.shape[1]], before)
        assert float(after.softmax(-1)[:, new].max()) < 1e-6
        lost = after.logsumexp(-1) - before.logsumexp(-1)
        assert float(lost.mean()) < 1e-7, "nats a token, rounding of float32"
    assert written.share < 1e-7


def test_a_row_that_is_there_already_is_taken(tower: Path, tmp_path: Path) -> None:
    """A head with spare rows, as OLMo's, needs no new one."""
    tokenizer = build_tokenizer()
    model = build_decoder("llama", vocab_size=len(tokenizer) + 5)
    model.save_pretrained(tmp_path / "spare")
    tokenizer.save_pretrained(tmp_path / "spare")
    written = wrap_language_model(tmp_path / "spare", tower, tmp_path / "whole", layer=-1)
    head = load(str(written.folder)).model.get_output_embeddings().weight
    assert torch.equal(head, model.get_output_embeddings().weight) and written.share == 0.0


def test_a_model_that_does_more_than_its_head_is_refused(tower: Path, tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    build_decoder("granite", vocab_size=len(tokenizer), logits_scaling=8.0).save_pretrained(tmp_path / "scaled")
    tokenizer.save_pretrained(tmp_path / "scaled")
    with pytest.raises(ModelError, match="LLaVA would change its output on text"):
        wrap_language_model(tmp_path / "scaled", tower, tmp_path / "never", layer=-1)
    assert not (tmp_path / "never").exists()
