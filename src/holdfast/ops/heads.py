"""Where a causal language model's hidden states end and its vocabulary product begins.

The losses and measures of this project never ask a model for logits (`[tokens, vocabulary]` would not fit); they ask for the last hidden
states and multiply by the head themselves, a slice of rows at a time:

    logits_NV = softcap(scale * (hidden_NH @ weight_VH^T + bias_V))        softcap(z) = c tanh(z / c)

`describe_head` reads weight, bias, scale and cap from any Hugging Face causal LM, `run_backbone` gives the hidden states, and
`check_head` proves on a few tokens that the two together are the model's own logits, so that an architecture with a detail we do not
know is refused instead of trained wrongly. Works on plain and PEFT-wrapped models; nothing here imports transformers.

Shapes: N tokens, H hidden width, V vocabulary, B batch, T positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.errors import ModelError


@dataclass(frozen=True, kw_only=True)
class Head:
    """The vocabulary product of one model.

    The tensors are the model's own (not copies), so gradients reach them.
    """

    weight_VH: Tensor
    """`[V, H]`, any floating dtype."""
    bias_V: Tensor | None = None
    """`[V]` or None."""
    logit_scale: float = 1.0
    """Logits are multiplied by it before soft-capping (Cohere, Granite, Falcon-H1)."""
    softcap: float | None = None
    """Final soft-capping c, `z -> c tanh(z / c)` (Gemma 2); None: no cap."""

    @property
    def vocabulary(self) -> int:
        return int(self.weight_VH.shape[0])

    def detached(self) -> Head:
        """The same head cut from the graph: a frozen teacher's."""
        bias = None if self.bias_V is None else self.bias_V.detach()
        return Head(weight_VH=self.weight_VH.detach(), bias_V=bias, logit_scale=self.logit_scale, softcap=self.softcap)


def causal_lm(model: nn.Module) -> nn.Module:
    """The causal LM itself, out of PEFT wrapping; parallel wrappers (DDP) must be taken off before."""
    get_base_model = getattr(model, "get_base_model", None)
    return get_base_model() if callable(get_base_model) else model


def backbone_of(model: nn.Module) -> nn.Module:
    """The module that yields hidden states.

    Raises:
        ModelError: the model has no separate backbone, so it is no Hugging Face causal LM.
    """
    lm = causal_lm(model)
    backbone = getattr(lm, "base_model", None)
    if backbone is None or backbone is lm:
        raise ModelError(
            f"Expected a causal language model with a backbone and an output head, got {type(lm).__name__}, which has no separate backbone."
        )
    return backbone


def describe_head(model: nn.Module) -> Head:
    """Weight, bias, scale and cap of the model's output head, as live tensors.

    Raises:
        ModelError: no output embeddings, or a head that is not one linear map.
    """
    lm = causal_lm(model)
    module = lm.get_output_embeddings() if hasattr(lm, "get_output_embeddings") else None
    weight = getattr(module, "weight", None)
    if module is None or weight is None:
        raise ModelError(
            f"Expected a causal language model with an output head, got {type(lm).__name__}, which has none. "
            "Pass a model that AutoModelForCausalLM loads."
        )
    config = lm.config.get_text_config() if hasattr(lm.config, "get_text_config") else lm.config
    return Head(
        weight_VH=_full(weight),
        bias_V=_full(getattr(module, "bias", None)),
        logit_scale=_logit_scale(config),
        softcap=getattr(config, "final_logit_softcapping", None),
    )


def run_backbone(model: nn.Module, *args: Any, **inputs: Any) -> Tensor:
    """Last hidden states `[B, T, H]` of the backbone for the model's own inputs (`input_ids`, `attention_mask`, `position_ids`, ...)."""
    inputs = {k: v for k, v in inputs.items() if k not in ("labels", "use_cache")}
    return backbone_of(model)(*args, **inputs, use_cache=False).last_hidden_state


def project(hidden_NH: Tensor, head: Head) -> Tensor:
    """Logits `[N, V]` in float32 (float64 for float64 inputs). For few rows only; losses use `ops.annealing`."""
    dtype = torch.float64 if hidden_NH.dtype == torch.float64 else torch.float32
    with torch.autocast(hidden_NH.device.type, enabled=False):
        logits = hidden_NH.to(dtype) @ head.weight_VH.to(dtype).T
        if head.bias_V is not None:
            logits = logits + head.bias_V.to(dtype)
        logits = logits * head.logit_scale if head.logit_scale != 1.0 else logits
        return head.softcap * torch.tanh(logits / head.softcap) if head.softcap is not None else logits


@torch.no_grad()
def check_head(model: nn.Module, input_ids_BT: Tensor, *, rows: int = 8, half: bool = False) -> float:
    """Compares backbone + head with the model's own logits on a few positions.

    Args:
        input_ids_BT: `[B, T]` int64, a real sample; its first `rows` positions are used.
        rows: positions to compare.
        half: the model's forward runs in half precision although its weights do not (autocast), so a larger difference is rounding.

    Returns:
        The largest absolute difference of log-probabilities, nats.

    Raises:
        ModelError: they differ by more than the dtype explains.
    """
    was_training = model.training
    model.eval()
    try:
        ids = input_ids_BT[:1, :rows]
        own = causal_lm(model)(input_ids=ids, use_cache=False).logits[0].float().log_softmax(-1)
        ours = project(run_backbone(model, input_ids=ids)[0], describe_head(model)).log_softmax(-1)
    finally:
        model.train(was_training)
    vocabulary = min(own.shape[-1], ours.shape[-1])
    difference = float((own[:, :vocabulary] - ours[:, :vocabulary]).abs().max())
    dtype = next(model.parameters()).dtype
    tolerance = 1e-3 if dtype in (torch.float32, torch.float64) and not half else 0.25
    if not difference <= tolerance:
        raise ModelError(
            f"{type(causal_lm(model)).__name__} computes its logits in a way holdfast does not know: backbone and head give log-probabilities "
            f"that differ by {difference:.3g} nats from the model's own (tolerance {tolerance}). Training on them would be wrong, so it is refused. "
            "Please report the architecture."
        )
    return difference


def _logit_scale(config: Any) -> float:
    """The multiplier before soft-capping, under the names architectures give it (Granite and MiniCPM divide, the others multiply)."""
    for name in ("logit_scale", "output_multiplier", "lm_head_multiplier"):
        value = getattr(config, name, None)
        if value is not None:
            return float(value)
    scaling = getattr(config, "logits_scaling", None)
    if scaling is not None:
        return float(scaling) if getattr(config, "model_type", "") == "hyperclovax" else 1.0 / float(scaling)
    return 1.0


def _full(tensor: Tensor | None) -> Tensor | None:
    """A sharded (DTensor) head gathered whole, once; plain tensors as they are."""
    return tensor.full_tensor() if tensor is not None and hasattr(tensor, "full_tensor") else tensor
