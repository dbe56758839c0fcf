"""bitsandbytes's 8 and 4 bits: a frozen copy quantised from the weights in memory; 4-bit layers kept fit for training.

    8 bits   LLM.int8(): int8 weights with one scale a row, int8 products, activations beyond 6.0 in half precision;
             about 1.0 byte a weight
    4 bits   NF4 with doubly quantised scales a block of 64 weights, products in the model's own dtype;
             about 0.52 bytes a weight

Sources: Dettmers et al., LLM.int8(), NeurIPS 2022; Dettmers et al., QLoRA, NeurIPS 2023. Only `nn.Linear` modules of
the backbone change: never the output head (the loss op multiplies by it itself, and its error would enter every logit),
embeddings, norms or weights shared with them.

**A quantised teacher is not the start model.** The KL between teacher and student is no longer 0 when training starts,
and its first gradient pulls the student towards the rounding of the teacher. How large that is depends on the model:
measure it (`annealed_loss` of the start model against the quantised teacher gives the KL), and prefer a teacher in
bfloat16 where it fits, which the op compares without loss.

Weights are quantised when the module moves to its device, one after another, so the device never holds the whole model
unquantised. Not here: quantising students (transformers does that when it loads them), and loading of checkpoints that
were quantised before.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any

import torch
from torch import nn

from holdfast.errors import ModelError
from holdfast.ops.heads import backbone_of, causal_lm

INT8_THRESHOLD = 6.0
"""Activations beyond it are multiplied in half precision (LLM.int8(), section 3.2)."""


def quantize_linears(model: nn.Module, bits: int) -> list[str]:
    """Replaces the backbone's `nn.Linear` modules in place; their weights are quantised by the next `.to(device)`.

    Args:
        model: a frozen causal LM in float32, bfloat16 or float16.
        bits: 8 or 4.

    Returns:
        The names of the replaced modules, within the backbone.

    Raises:
        ModelError: other bits, no bitsandbytes, or nothing to quantise.
    """
    if bits not in (8, 4):
        raise ModelError(f"teacher: expected 8 or 4 bits, got {bits!r}. Leave them out for a teacher in its own dtype.")
    library = _bitsandbytes()
    kept = {id(p) for module in _ends(model) for p in module.parameters()}
    backbone = backbone_of(model)
    found = [
        (name, module)
        for name, module in backbone.named_modules(remove_duplicate=False)
        if type(module) is nn.Linear
        and id(module.weight) not in kept
        and module.weight.dtype in (torch.float32, torch.bfloat16, torch.float16)
    ]
    if not found:
        raise ModelError(
            f"Expected linear layers to quantise (nn.Linear in float32, bfloat16 or float16), got "
            f"{type(backbone).__name__}, which has none. "
            "Use a teacher in its own dtype."
        )
    replaced: dict[int, nn.Module] = {}
    for name, module in found:
        parent, _, last = name.rpartition(".")
        new = replaced.setdefault(id(module), _replacement(library, module, bits))
        setattr(backbone.get_submodule(parent), last, new)
    return [name for name, _ in found]


def _replacement(library: Any, module: nn.Linear, bits: int) -> nn.Module:
    shape = (module.in_features, module.out_features)
    weight = module.weight.detach().cpu()  # bitsandbytes quantises int8 weights on their way from the CPU to the device
    bias = module.bias is not None
    if bits == 8:
        new = library.nn.Linear8bitLt(
            *shape, bias=bias, has_fp16_weights=False, threshold=INT8_THRESHOLD, device="meta"
        )
        new.weight = library.nn.Int8Params(weight, requires_grad=False, has_fp16_weights=False)
    else:
        new = library.nn.Linear4bit(
            *shape, bias=bias, compute_dtype=weight.dtype, compress_statistics=True, quant_type="nf4", device="meta"
        )
        new.weight = library.nn.Params4bit(
            weight, requires_grad=False, compress_statistics=True, quant_type="nf4", module=new
        )
    new.bias = module.bias
    return new.train(module.training)


def _ends(model: nn.Module) -> list[nn.Module]:
    """Input embeddings and output head."""
    lm = causal_lm(model)
    ends = [getattr(lm, name)() for name in ("get_input_embeddings", "get_output_embeddings") if hasattr(lm, name)]
    return [module for module in ends if module is not None]


def _bitsandbytes() -> Any:
    try:
        library = importlib.import_module("bitsandbytes")
    except ImportError as error:
        raise ModelError(
            f"A teacher in 8 or 4 bits needs bitsandbytes, which cannot be imported ({error}). Install it with: pip "
            f"install 'holdfast[gpu]'"
        ) from error
    # It says at every product of every step that LLM.int8() works in half precision, which is what was asked for.
    logger = logging.getLogger("bitsandbytes.autograd._functions")
    if not any(isinstance(f, _NoCastNotice) for f in logger.filters):
        logger.addFilter(_NoCastNotice())
    return library


class _NoCastNotice(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return "inputs will be cast from" not in record.getMessage()
