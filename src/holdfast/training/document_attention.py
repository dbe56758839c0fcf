"""Packed documents in any transformers model whose attention is torch's own (`sdpa`): `holdfast.ops.document_attention`
in its place.

TRL's padding-free batches are one row of documents with `position_ids` that begin at 0 in each and their bounds as
`cu_seq_lens_q`. Flash attention takes the bounds; `sdpa` gets a dense mask from transformers, T^2 of it and of
products. `use_document_attention` registers an implementation of our own through transformers' interface for that
(`AttentionInterface`), which reads the bounds. Whatever comes without bounds (evaluation, generation, padded batches)
is `sdpa` as before.

An architecture that does not hand the bounds on to its layers would see other documents without a word. So a model is
tried first: two short documents packed have to give what `sdpa` gives with its mask, or the model keeps that.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.ops.document_attention import IMPLEMENTATION, document_attention
from holdfast.ops.heads import backbone_of, causal_lm, run_backbone

logger = logging.getLogger(__name__)

_LAYERS = {"full_attention", "sliding_attention"}
"""Kinds of layers whose attention is confined by bounds and a window only."""
_packed: ContextVar[bool] = ContextVar("holdfast_packed", default=False)
"""Whether the forward that runs brings bounds, so that no mask is made."""


def use_document_attention(model: nn.Module) -> bool:
    """Lets a model attend within packed documents without a dense mask.

    Args:
        model: a causal LM, also with an adapter; on any device. Only models on `sdpa` are changed, and only those that
            pass the trial.

    Returns:
        Whether it was done. False: flash attention and eager are left as they are, and so are architectures with layers
            of other kinds.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    lm = causal_lm(model)
    config = getattr(lm, "config", None)
    if config is None:
        return False
    text = config.get_text_config()
    if getattr(text, "_attn_implementation", None) == IMPLEMENTATION:
        backbone = backbone_of(lm)
        if _begins not in backbone._forward_pre_hooks.values():  # another model had this configuration before
            _hook(backbone)
        return True
    kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
    if (
        getattr(text, "_attn_implementation", None) != "sdpa"
        or not kinds <= _LAYERS
        or getattr(lm, "_is_stateful", False)
        or any(p.is_meta for p in lm.parameters())
    ):
        return False
    AttentionInterface.register(IMPLEMENTATION, _attention)
    AttentionMaskInterface.register(IMPLEMENTATION, _mask)
    expected = _trial(lm)
    _set(lm, IMPLEMENTATION)
    handles = _hook(backbone_of(lm))
    try:
        found = _trial(lm)
    except Exception as error:  # whatever an architecture makes of it, it keeps what it had
        logger.info("Packed documents keep transformers' masks: %s", error)
        found = None
    if expected is None or found is None or not _alike(expected, found, next(lm.parameters()).dtype):
        for handle in handles:
            handle.remove()
        _set(lm, "sdpa")
        return False
    return True


def _hook(backbone: nn.Module) -> list[Any]:
    return [
        backbone.register_forward_pre_hook(_begins, with_kwargs=True),
        backbone.register_forward_hook(_ends, with_kwargs=True, always_call=True),
    ]


def _set(lm: Any, name: str) -> None:
    lm.set_attn_implementation(name)


def _trial(lm: nn.Module) -> Tensor | None:
    """Hidden states `[T, H]` of two packed documents, None where the model cannot run here."""
    vocabulary = lm.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
    device = next(lm.parameters()).device
    lengths = [5, 7]
    ids = (torch.arange(sum(lengths)) * 7 + 3) % vocabulary
    places = torch.cat([torch.arange(n) for n in lengths])
    bounds = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32)
    inputs: dict[str, Any] = {
        "input_ids": ids[None],
        "position_ids": places[None],
        "cu_seq_lens_q": bounds,
        "cu_seq_lens_k": bounds,
    }
    was = lm.training
    lm.eval()
    try:
        with torch.no_grad():
            moved = {k: v.to(device) for k, v in inputs.items()}
            hidden: Tensor = run_backbone(
                lm, **moved, max_length_q=max(lengths), max_length_k=max(lengths), use_cache=False
            )
    except TypeError:  # an older architecture that takes no such keywords
        return None
    finally:
        lm.train(was)
    return hidden[0].float()


def _alike(expected: Tensor, found: Tensor, dtype: torch.dtype) -> bool:
    tolerance = 2e-2 if dtype in (torch.float16, torch.bfloat16) else 1e-4
    return bool(torch.isfinite(found).all()) and float((expected - found).norm()) <= tolerance * float(expected.norm())


def _begins(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
    _packed.set(_has_bounds(kwargs))


def _ends(module: nn.Module, args: Any, kwargs: dict[str, Any], outputs: Any) -> None:
    _packed.set(False)


def _has_bounds(kwargs: dict[str, Any]) -> bool:
    return kwargs.get("cu_seq_lens_q") is not None and kwargs.get("attention_mask") is None


def _mask(*args: Any, attention_mask: Tensor | None = None, **kwargs: Any) -> Tensor | None:
    """transformers' mask for `sdpa`; none where the layers get bounds."""
    from transformers.masking_utils import sdpa_mask

    if _packed.get() and attention_mask is None:
        return None
    return sdpa_mask(*args, attention_mask=attention_mask, **kwargs)  # type: ignore[no-any-return]


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """An attention of transformers' interface: `[B, H, T, D]` in, `[B, T, H, D]` out."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if cu_seq_lens_q is None or attention_mask is not None or query.shape[2] != key.shape[2] or query.shape[0] != 1:
        if _packed.get() and attention_mask is None:
            raise RuntimeError("packed documents came to an attention layer without their bounds")
        return sdpa_attention_forward(  # type: ignore[no-any-return]
            module,
            query,
            key,
            value,
            attention_mask,
            dropout=dropout,
            scaling=scaling,
            sliding_window=sliding_window,
            **kwargs,
        )
    unknown = [name for name in ("softcap", "s_aux", "position_bias") if kwargs.get(name) is not None]
    if unknown or kwargs.get("is_causal") is False or not getattr(module, "is_causal", True):
        raise RuntimeError(
            f"attention within documents knows no {', '.join(unknown) or 'attention to what comes after'}"
        )
    out = document_attention(
        query, key, value, cu_seq_lens_q, scale=scaling, dropout=dropout, window=sliding_window, longest=max_length_q
    )
    return out.transpose(1, 2).contiguous(), None
