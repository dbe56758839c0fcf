"""Which of a model's parameters are what."""

from __future__ import annotations

from typing import Any

from torch import nn


def hidden_matrices(model: nn.Module) -> list[tuple[nn.Parameter, bool]]:
    """Parameters of two or more dimensions that are no embeddings and no head, each once, and
    whether their rows lie along the first dimension (`Conv1D` of GPT-2)."""
    head: Any = getattr(model, "get_output_embeddings", lambda: None)()
    aside = {
        id(p)
        for module in model.modules()
        if isinstance(module, nn.Embedding)
        for p in module.parameters()
    }
    aside |= {id(p) for p in head.parameters()} if head is not None else set()
    matrices: dict[int, tuple[nn.Parameter, bool]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if parameter.ndim > 1 and id(parameter) not in aside:
                matrices.setdefault(id(parameter), (parameter, type(module).__name__ == "Conv1D"))
    return list(matrices.values())
