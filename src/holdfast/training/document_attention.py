"""Packed documents do not see each other: tried before anything is trained, and without a dense
mask where attention is torch's own (`sdpa`), by `holdfast.ops.document_attention` in its place.

TRL's padding-free batches are one row of documents with `position_ids` that begin at 0 in each and
their bounds as `cu_seq_lens_q`. Flash attention takes the bounds; for `sdpa` and `eager`
transformers makes a dense mask out of the positions, T^2 of it and of products.
`use_document_attention` registers an implementation of our own through transformers' interface for
that (`AttentionInterface`), which reads the bounds. Whatever comes without bounds (evaluation,
generation, padded batches) is `sdpa` as before.

An architecture that hands on neither positions nor bounds lets documents see each other without a
word (Falcon, Bloom, OPT, GPT-OSS, state-space models). So every model is tried first: three short
documents packed have to give the states that each gives alone. The trial is of a tiny copy in
float32 (`checkpoints.tiny_copy`), so that a dry run can make it and no weight decides it; where an
architecture cannot be made tiny it is of the model itself.
"""

from __future__ import annotations

import functools
import inspect
import logging
import re
import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.checkpoints.tiny_copy import tiny_copy
from holdfast.errors import ModelError, first_line
from holdfast.ops.document_attention import IMPLEMENTATION, document_attention
from holdfast.ops.heads import backbone_of, causal_lm, run_backbone

logger = logging.getLogger(__name__)

LEAK = "lets documents in one row attend to each other"
_LAYERS = {"full_attention", "sliding_attention"}
"""Kinds of layers whose attention is confined by bounds and a window only."""
_BOUNDS = "document_bounds"
"""The same implementation in place of flash attention in a trial: a name with "sdpa" is for models
that have that."""
_LENGTHS = (7, 11, 5)
"""Tokens of the documents of a trial."""
_KERNELS = re.compile(r'use_kernel_func_from_hub_with_fallback\(\s*"\w+",\s*"(\w+)"')
"""How transformers marks a function that needs a package for packed documents."""
_packed: ContextVar[bool] = ContextVar("holdfast_packed", default=False)
"""Whether the forward that runs brings bounds, so that no mask is made."""
_trying: ContextVar[bool] = ContextVar("holdfast_trying", default=False)
"""Whether what comes to an attention beside bounds is left out: both sides of a trial lack it."""
_tried: dict[tuple[Any, ...], str | None] = {}
"""What came of trials of this process."""


def packing_problem(
    config: Any, make: Callable[[Any], Any], *, attention: str | None, own: bool = True
) -> str | None:
    """Why packed documents do not stay apart in models of a configuration, found on a tiny copy.

    Args:
        config: of transformers.
        make: builds a model of a configuration, with the attention that is asked for where it is
            torch's.
        attention: `attn_implementation` as it is asked for. Of flash attention and kernels of the
            hub it is tried whether layers get the bounds.
        own: whether `use_document_attention` takes the place of `sdpa`.

    Returns:
        A clause; "" where they stay apart, None where no tiny copy can be made.
    """
    key = (config.to_json_string(use_diff=False), attention, own)
    if key not in _tried:
        try:
            copy = tiny_copy(config, make)
        except ValueError as error:
            logger.info(
                "Packed documents were not tested on a tiny copy: %s (%s)", error, error.__cause__
            )
            _tried[key] = None
        else:
            _tried[key] = _problem(copy, attention, own=own)
    return _tried[key]


def is_leak(problem: str) -> bool:
    """Whether a problem of `packing_problem` is that documents see each other, so that they can be
    run one by one."""
    return LEAK in problem


def packing_refusal(key: str, problem: str) -> str:
    """The sentence that refuses packed documents.

    Args:
        key: the setting that asks for them.
        problem: as of `packing_problem`.
    """
    return (
        f"{key}: expected false, because {problem}. Set {key}: false, so that each document gets "
        "its own row."
    )


def _problem(lm: Any, attention: str | None, *, own: bool) -> str:
    if attention not in (None, "sdpa", "eager", "flex_attention"):
        return _problem_with_bounds(lm, unknown=True)
    if own and _eligible(lm) and not _problem_with_bounds(lm):
        return ""
    return _reason(lm)


def _problem_with_bounds(lm: Any, *, unknown: bool = False) -> str:
    """The trial of a model with attention by bounds; it is left as it was."""
    used = lm.config.get_text_config()._attn_implementation
    handles = _switch_on(lm, _BOUNDS if unknown else IMPLEMENTATION)
    trying = _trying.set(unknown)
    try:
        return _reason(lm)
    finally:
        _trying.reset(trying)
        for handle in handles:
            handle.remove()
        lm.set_attn_implementation(used)


def _reason(lm: Any) -> str:
    name = type(lm).__name__
    try:
        distance = packed_distance(lm)
    except ModelError:  # no causal LM that is trained here; said where it is trained
        return ""
    except Exception as error:  # whatever an architecture makes of a packed batch
        if packages := _missing_packages(lm):
            return (
                f"transformers separates packed documents in {name} only if "
                f"{' and '.join(packages)} is installed"
            )
        return f"{name} does not support packed documents: {first_line(error)}"
    dtype = next(lm.parameters()).dtype
    if distance > (2e-2 if dtype in (torch.float16, torch.bfloat16) else 1e-3):
        used = getattr(lm.config.get_text_config(), "_attn_implementation", None)
        return (
            f"{name} with attn_implementation: {used} {LEAK}: when packed, the hidden states of "
            f"three short documents differ by {distance:.0%} from those of each document alone"
        )
    return ""  # NaN, too, which says nothing about documents


def _missing_packages(lm: Any) -> list[str]:
    """Distributions that transformers names for kernels of this architecture and that are not
    here."""
    from importlib.util import find_spec

    from transformers.integrations import hub_kernels

    source = inspect.getsource(sys.modules[type(lm).__module__])
    known = getattr(hub_kernels, "_PACKAGE_TO_DISTRIBUTION", {})
    missing = []
    for name in dict.fromkeys(_KERNELS.findall(source)):
        if find_spec(name) is None:
            missing.append(known.get(name, name).replace("_", "-"))
    return missing


def packed_distance(lm: Any) -> float:
    """How far the hidden states of packed documents are from those of each alone, as a share of
    their norm; that of the worst document. As in training, without dropout: where two passes of one
    document differ, in evaluation mode.

    Args:
        lm: a causal LM on any device; left in the state it came in.

    Raises:
        Exception: whatever it raises for packed documents.
    """
    device = next(lm.parameters()).device
    most = min(lm.get_input_embeddings().weight.shape[0], 512)
    ids = (torch.arange(sum(_LENGTHS), device=device) * 7 + 3) % (most - 16) + 16
    bounds = torch.tensor([0, *torch.tensor(_LENGTHS).cumsum(0)], dtype=torch.int32, device=device)
    places = torch.cat([torch.arange(n, device=device) for n in _LENGTHS])
    numbers = torch.repeat_interleave(
        torch.arange(len(_LENGTHS), dtype=torch.int32), torch.tensor(_LENGTHS)
    )
    batch: dict[str, Any] = {
        "input_ids": ids[None],
        "position_ids": places[None],
        "cu_seq_lens_q": bounds,
        "cu_seq_lens_k": bounds,
        "max_length_q": max(_LENGTHS),
        "max_length_k": max(_LENGTHS),
        "seq_idx": numbers[None].to(device),
    }
    was = lm.training
    try:
        with torch.no_grad():
            lm.train()
            first = ids[None, : _LENGTHS[0]]
            lm.train(
                bool(
                    torch.equal(
                        run_backbone(lm, input_ids=first), run_backbone(lm, input_ids=first)
                    )
                )
            )
            alone = []
            for document in ids.split(_LENGTHS):
                alone.append(run_backbone(lm, input_ids=document[None])[0].float())
            packed = run_backbone(lm, **batch)[0].float().split(_LENGTHS)
    finally:
        lm.train(was)
    distances = []
    for a, b in zip(alone, packed, strict=True):
        distances.append(float((a - b).norm() / a.norm()))
    return max(distances)


def model_problem(model: nn.Module, *, own: bool) -> str:
    """The same of a model that is there: of a tiny copy of it, or of itself where none can be made.

    Args:
        model: a causal LM, also with an adapter.
        own: as of `packing_problem`.
    """
    lm: Any = causal_lm(model)
    used = getattr(lm.config.get_text_config(), "_attn_implementation", None)
    if used == IMPLEMENTATION:
        return ""
    here = used if used in ("sdpa", "eager", "flex_attention") else "eager"
    make = functools.partial(type(lm)._from_config, attn_implementation=here)
    problem = packing_problem(lm.config, make, attention=used, own=own)
    if problem is None and not any(p.is_meta for p in lm.parameters()):
        return _problem(lm, used, own=own)
    return problem or ""


def use_document_attention(model: nn.Module) -> bool:
    """Lets a model attend within packed documents without a dense mask.

    Args:
        model: a causal LM, also with an adapter; on any device. Only models on `sdpa` are changed,
            and only those that pass the trial.

    Returns:
        Whether it was done. False: flash attention and eager are left as they are, and so are
            architectures with layers of other kinds.
    """
    lm: Any = causal_lm(model)
    config = getattr(lm, "config", None)
    if config is None:
        return False
    if getattr(config.get_text_config(), "_attn_implementation", None) == IMPLEMENTATION:
        backbone = backbone_of(lm)
        if (
            _begins not in backbone._forward_pre_hooks.values()
        ):  # another model had this configuration before
            _hook(backbone)
        return True
    if not _eligible(lm) or any(p.is_meta for p in lm.parameters()):
        return False
    key = (type(lm), config.to_json_string(use_diff=False))
    if key not in _tried:
        try:
            make = functools.partial(type(lm)._from_config, attn_implementation="sdpa")
            subject = tiny_copy(config, make)
        except ValueError:
            subject = lm
        _tried[key] = _problem_with_bounds(subject)
    if _tried[key]:
        logger.info(
            "Packed documents are separated by transformers' masks, not by holdfast's: %s",
            _tried[key],
        )
        return False
    _switch_on(lm)
    return True


def _eligible(lm: Any) -> bool:
    """Whether a model's attention is `sdpa` in layers that bounds can confine."""
    text = lm.config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
    stateful = getattr(lm, "_is_stateful", False)
    return (
        getattr(text, "_attn_implementation", None) == "sdpa" and kinds <= _LAYERS and not stateful
    )


def _switch_on(lm: Any, name: str = IMPLEMENTATION) -> list[Any]:
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(name, _attention)
    AttentionMaskInterface.register(name, _mask)
    lm.set_attn_implementation(name)
    return _hook(backbone_of(lm))


def _hook(backbone: nn.Module) -> list[Any]:
    return [
        backbone.register_forward_pre_hook(_begins, with_kwargs=True),
        backbone.register_forward_hook(_ends, with_kwargs=True, always_call=True),
    ]


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


def _attention(  # noqa: PLR0913 (transformers' interface)
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

    if (
        cu_seq_lens_q is None
        or attention_mask is not None
        or query.shape[2] != key.shape[2]
        or query.shape[0] != 1
    ):
        if _packed.get() and attention_mask is None:
            raise RuntimeError("an attention layer got packed documents without their boundaries")
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
    unknown = [
        name for name in ("softcap", "s_aux", "position_bias") if kwargs.get(name) is not None
    ]
    if (
        (unknown and not _trying.get())
        or kwargs.get("is_causal") is False
        or not getattr(module, "is_causal", True)
    ):
        raise RuntimeError(
            "attention within packed documents does not support "
            f"{', '.join(unknown) or 'attention to later tokens'}"
        )
    out = document_attention(
        query,
        key,
        value,
        cu_seq_lens_q,
        scale=scaling,
        dropout=dropout,
        window=sliding_window,
        longest=max_length_q,
    )
    return out.transpose(1, 2).contiguous(), None
