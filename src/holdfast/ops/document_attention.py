"""Causal attention of packed documents, each over itself alone: what a window of several documents
needs, and less work than the whole window.

A packed batch is one row of T tokens in which documents of lengths l_1, l_2, ... lie one after the
other. A token attends to the tokens of its own document that are not after it:

    out_t = sum_{s in document(t), s <= t} softmax_s(scale * q_t . k_s) v_s

A dense mask says that, at the price of T^2 products and of a `[T, T]` mask. Here every document is
an attention of its own, sum l_i^2 products with the kernels of `scaled_dot_product_attention` that
need no mask; on a GPU in half precision one call of torch's variable-length kernel. Source:
"Balancing Continuous Pre-Training" (section 3.1.1) packs whole documents to 4096 tokens with
attention confined to each.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

IMPLEMENTATION = "sdpa_documents"
"""What the implementation is called among transformers' (`training.document_attention`); without
bounds it is `sdpa`."""
HALF = (torch.float16, torch.bfloat16)


def document_lengths(cu_seq_lens: Tensor) -> list[int]:
    """Lengths of documents from their cumulative bounds.

    The list is kept with the tensor, so that of a model's layers only the first reads it back from
    the device.

    Args:
        cu_seq_lens: `[documents + 1]` int32, from 0 to T.
    """
    known: list[int] | None = getattr(cu_seq_lens, "_document_lengths", None)
    if known is None:
        known = cu_seq_lens.diff().tolist()
        cu_seq_lens._document_lengths = known  # type: ignore[attr-defined]
    return known


def document_attention(
    query_BHTD: Tensor,
    key_BGTD: Tensor,
    value_BGTE: Tensor,
    cu_seq_lens: Tensor,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    window: int | None = None,
    longest: int | None = None,
) -> Tensor:
    """Causal attention within documents.

    Args:
        query_BHTD: `[1, H, T, D]`, floating.
        key_BGTD: `[1, G, T, D]`; H is a multiple of G (grouped-query attention).
        value_BGTE: `[1, G, T, E]`.
        cu_seq_lens: `[documents + 1]` int32, cumulative lengths from 0 to T.
        scale: factor on the products; None: D^-0.5.
        dropout: probability of leaving out a weight.
        window: a token sees itself and the `window - 1` tokens before it at most (sliding-window
            attention); None: its whole document.
        longest: tokens of the longest document where the caller knows it; spares a look at the
            device.

    Returns:
        `[1, H, T, E]` in the query's dtype.

    Raises:
        ValueError: more than one row, or bounds that do not end at T.
    """
    if query_BHTD.shape[0] != 1:
        raise ValueError(f"expected one row of packed documents, got {query_BHTD.shape[0]}")
    longest = longest if longest is not None else max(document_lengths(cu_seq_lens))
    slides = window is not None and window < longest
    grouped = query_BHTD.shape[1] != key_BGTD.shape[1]
    width = query_BHTD.shape[-1]
    if (
        query_BHTD.is_cuda
        and query_BHTD.dtype in HALF
        and not dropout
        and width == value_BGTE.shape[-1] <= 256
        and width % 8 == 0
    ):
        return _varlen(
            query_BHTD,
            key_BGTD,
            value_BGTE,
            cu_seq_lens,
            longest,
            scale,
            window if slides else None,
            grouped,
        )
    lengths = document_lengths(cu_seq_lens)
    if sum(lengths) != query_BHTD.shape[2]:
        raise ValueError(
            f"expected documents of {query_BHTD.shape[2]} tokens together, got {sum(lengths)}"
        )
    if len(lengths) == 1 and not slides:
        return functional.scaled_dot_product_attention(
            query_BHTD,
            key_BGTD,
            value_BGTE,
            is_causal=True,
            dropout_p=dropout,
            scale=scale,
            enable_gqa=grouped,
        )
    # Split, not slices: a slice's backward writes zeros over all T, once a document.
    parts = []
    pieces = (tensor.split(lengths, dim=2) for tensor in (query_BHTD, key_BGTD, value_BGTE))
    for length, query, key, value in zip(lengths, *pieces, strict=True):
        band = (
            _band(length, window, query.device) if window is not None and window < length else None
        )
        parts.append(
            functional.scaled_dot_product_attention(
                query,
                key,
                value,
                attn_mask=band,
                is_causal=band is None,
                dropout_p=dropout,
                scale=scale,
                enable_gqa=grouped,
            )
        )
    return torch.cat(parts, dim=2)


def _varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_lens: Tensor,
    longest: int,
    scale: float | None,
    window: int | None,
    grouped: bool,
) -> Tensor:
    """torch's kernel for documents of any lengths; `[T, H, D]` there. Fused, without a look at the
    device."""
    from torch.nn.attention.varlen import varlen_attn

    rows = [tensor[0].transpose(0, 1) for tensor in (query, key, value)]
    bounds = (window - 1, 0) if window is not None else (-1, 0)  # (-1, 0) is causal
    out: Tensor = varlen_attn(
        *rows,
        cu_seq_lens,
        cu_seq_lens,
        longest,
        longest,
        scale=scale,
        window_size=bounds,
        enable_gqa=grouped,
    )  # type: ignore[assignment]
    return out.transpose(0, 1)[None]


def _band(length: int, window: int, device: torch.device) -> Tensor:
    """`[length, length]` bool: causal, and at most `window` tokens with the token itself."""
    position = torch.arange(length, device=device)
    back = position[:, None] - position[None, :]
    return (back >= 0) & (back < window)


def reference_document_attention(
    query_BHTD: Tensor,
    key_BGTD: Tensor,
    value_BGTE: Tensor,
    cu_seq_lens: Tensor,
    *,
    scale: float | None = None,
    window: int | None = None,
) -> Tensor:
    """The same by one dense mask in float64: what the fast path is held against. Shapes as of
    `document_attention`; float64 out."""
    query, key, value = (tensor.double() for tensor in (query_BHTD, key_BGTD, value_BGTE))
    repeats = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
    position = torch.arange(query.shape[2], device=query.device)
    document = torch.bucketize(position, cu_seq_lens[1:].to(position), right=True)
    back = position[:, None] - position[None, :]
    visible = (document[:, None] == document[None, :]) & (back >= 0)
    if window is not None:
        visible &= back < window
    products = (
        query @ key.transpose(-1, -2) * (scale if scale is not None else query.shape[-1] ** -0.5)
    )
    return products.masked_fill(~visible, -torch.inf).softmax(-1) @ value
