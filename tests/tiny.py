"""The model and tokenizer of `holdfast.training.tiny`, under the name that tests and their worker processes use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.training.tiny import SENTENCES, build_model, build_tokenizer

__all__ = ["DECODER", "SENTENCES", "build_decoder", "build_model", "build_tokenizer", "random_fisher"]

DECODER: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
"""Sizes of a tiny decoder, as configurations of most architectures name them."""


def build_decoder(kind: str, **sizes: Any) -> Any:
    """A decoder of an architecture, of the sizes of `DECODER` unless told otherwise."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**DECODER, **sizes}))


def random_fisher(folder: Path, model: Any, *, seed: int = 0) -> tuple[str, dict[str, Any]]:
    """A saved Fisher diagonal of a model, with values of any kind."""
    import torch

    from holdfast.retention.fisher import fingerprints, save_fisher

    generator = torch.Generator().manual_seed(seed)
    named = dict(model.named_parameters())
    values = {n: torch.rand(p.shape, generator=generator) for n, p in named.items()}
    save_fisher(
        folder,
        values,
        {"samples": 1, "tokens": 1, "data": {"name": "x"}, "model": {"name": "m", "weights": fingerprints(named)}},
    )
    return str(folder), values
