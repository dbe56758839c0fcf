"""Packed documents one after the other, for architectures in which documents that share a row see
each other.

The backbone runs once a document, and its states are put together again: the states that each
document gets alone, whatever the architecture does with positions and bounds. Memory is that of the
packed row; of packing's speed nothing is left. Not for FSDP and DeepSpeed, whose ranks would run
other numbers of passes, and not for compiled models.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.ops.heads import backbone_of
from holdfast.training.document_attention import LEAK
from holdfast.training.processes import shards

_OF_ROWS = (
    "cu_seq_lens_q",
    "cu_seq_lens_k",
    "max_length_q",
    "max_length_k",
    "seq_idx",
    "position_ids",
)
"""What a packed row is described by, and no document needs."""
_ALONG_TOKENS = {"last_hidden_state": 1, "hidden_states": 1, "router_logits": 0}
"""Of the backbone's outputs, the dimension of tokens; router logits are `[B * T, experts]`."""


def may_run_alone(settings: Mapping[str, Any]) -> bool:
    """Whether documents can be run one after the other in training with these settings."""
    return not settings.get("torch_compile") and not shards(settings)


def alone_note(name: str) -> str:
    """What a user is told of a model of that class."""
    return (
        f"{name} {LEAK}, so each document passes through the model separately. Losses are correct, "
        "but packing saves no time"
    )


def run_documents_alone(model: nn.Module) -> None:
    """Lets a model run each document of a packed row by itself.

    Rows come with `cu_seq_lens_q`, the documents' bounds; whatever comes without is run as before.

    Args:
        model: a causal LM, also with an adapter.
    """
    backbone = backbone_of(model)

    @functools.wraps(type(backbone).forward)
    def forward(
        self: nn.Module, *args: Any, cu_seq_lens_q: Tensor | None = None, **kwargs: Any
    ) -> Any:
        if cu_seq_lens_q is None or kwargs.get("attention_mask") is not None:
            bounds = {} if cu_seq_lens_q is None else {"cu_seq_lens_q": cu_seq_lens_q}
            return type(self).forward(self, *args, **bounds, **kwargs)
        if args:
            kwargs["input_ids"], args = args[0], args[1:]
        lengths = cu_seq_lens_q.diff().tolist()
        inputs = {name: value for name, value in kwargs.items() if name not in _OF_ROWS}
        per_token = {}
        for name, value in inputs.items():
            if isinstance(value, Tensor) and value.shape[:2] == (1, sum(lengths)):
                per_token[name] = value.split(lengths, 1)
        outputs = []
        for number in range(len(lengths)):
            document = {name: parts[number] for name, parts in per_token.items()}
            outputs.append(type(self).forward(self, *args, **{**inputs, **document}))
        return _joined(outputs)

    backbone.forward = types.MethodType(forward, backbone)  # type: ignore[method-assign]


def _joined(outputs: Sequence[Any]) -> Any:
    """The outputs of documents as that of the row that holds them."""
    row: dict[str, Any] = {}
    for name, dimension in _ALONG_TOKENS.items():
        parts = [getattr(output, name, None) for output in outputs]
        if isinstance(parts[0], Tensor):
            row[name] = torch.cat(parts, dimension)
        elif parts[0] is not None:
            by_layer = zip(*parts, strict=True)
            row[name] = tuple(torch.cat(layer, dimension) for layer in by_layer)
    return type(outputs[0])(**row)
