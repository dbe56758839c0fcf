"""The model and tokenizer of `holdfast.training.tiny`, under the name that tests and their worker processes use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.training.tiny import SENTENCES, build_model, build_tokenizer

__all__ = ["DECODER", "SENTENCES", "build_decoder", "build_model", "build_tokenizer", "random_fisher", "save_ladder"]

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


def save_ladder(model: Any, tokenizer: Any, texts: Sequence[str], budgets: Mapping[str, int]) -> None:
    """Trains a model on texts, one a step in turn, and saves it with its tokenizer as it is after so many steps.

    Args:
        model: a causal language model; trained in place by AdamW at a rate of 3e-3.
        texts: what it learns.
        budgets: steps by folder.
    """
    import torch

    ids = [torch.tensor([tokenizer(text)["input_ids"]]) for text in texts]
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(1, max(budgets.values()) + 1):
        batch = ids[step % len(ids)]
        model(input_ids=batch, labels=batch).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        for folder, steps in budgets.items():
            if step == steps:
                model.save_pretrained(folder)
                tokenizer.save_pretrained(folder)
