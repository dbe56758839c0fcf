"""Where a causal language model's hidden states end and its vocabulary product begins.

The losses and measures of this project never ask a model for logits (`[tokens, vocabulary]` would
not fit); they ask for the last hidden states and multiply by the head themselves, a slice of rows
at a time:

    logits_NV = softcap(scale * (hidden_NH @ weight_VH^T + bias_V))        softcap(z) = c tanh(z / c)

`describe_head` reads weight, bias, scale and cap from any Hugging Face causal LM, `run_backbone`
gives the hidden states, and `check_head` proves on a few tokens that the two together are the
model's own logits, so that an architecture with a detail we do not know is refused instead of
trained wrongly. Works on plain and PEFT-wrapped models; nothing here imports transformers.

Sharded models (FSDP2, `torch.distributed.fsdp.fully_shard`). The op needs the whole head at once
and calls neither the head module nor its hooks:

- head in a group that is unsharded while the backbone runs (the root's; final norm and head
  together): the live whole parameter, nothing to do;
- head an FSDP module of its own: it is unsharded by FSDP's own means, one gather a forward. FSDP
  then averages and scatters its gradient at the end of the backward like every other one (its
  dtypes, its divide factor, its accumulation) and shards it again. Without grad: a copy;
- any other DTensor head (tensor parallelism): gathered whole; its gradient is averaged over the
  mesh, which is right both for ranks that saw different tokens and for ranks that computed the
  same.

Backbone and head have to run inside the root's forward there: `run_outside` is `run_backbone` for
callers who are not. Under a mixed precision policy the head has the policy's `param_dtype`, and its
gradient is rounded to it before it is reduced, as FSDP does with every weight.

Shapes: N tokens, H hidden width, V vocabulary, B batch, T positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.errors import ModelError

HALF_ROUNDING = 2.0**-6
"""By what share of the largest logit a forward in half precision may be off: bfloat16 rounds by
2^-9 at each of its layers, and a model that is sure of itself has large logits. A scale or a cap
that is not known is off by far more."""


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
        return Head(
            weight_VH=self.weight_VH.detach(),
            bias_V=bias,
            logit_scale=self.logit_scale,
            softcap=self.softcap,
        )


def causal_lm(model: nn.Module) -> nn.Module:
    """The causal LM itself, out of PEFT wrapping; parallel wrappers (DDP) must be taken off
    before."""
    get_base_model = getattr(model, "get_base_model", None)
    return get_base_model() if callable(get_base_model) else model


def backbone_of(model: nn.Module) -> nn.Module:
    """The module that yields hidden states; of a vision-language model the one that merges images
    into the text.

    Raises:
        ModelError: the model has no separate backbone, so it is no Hugging Face causal LM.
    """
    lm = causal_lm(model)
    backbone = getattr(lm, "base_model", None)
    if backbone is None or backbone is lm:
        raise ModelError(
            "Expected a causal language model with a backbone and an output head, got "
            f"{type(lm).__name__}, which has no separate backbone."
        )
    return backbone


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The modules of the backbone's longest `nn.ModuleList` that lies in no other (a layer's
    experts are no layers), each once.

    Raises:
        ModelError: there is none.
    """
    backbone = backbone_of(model)
    lists = list(_outermost_lists(backbone))
    if not lists:
        raise ModelError(
            f"Expected a model with its layers in an nn.ModuleList, got {type(backbone).__name__}, "
            "which has none."
        )
    longest: nn.ModuleList = max(lists, key=len)
    return list(dict.fromkeys(longest))


def _outermost_lists(module: nn.Module) -> Iterator[nn.ModuleList]:
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            if len(child):
                yield child
        else:
            yield from _outermost_lists(child)


def describe_head(model: nn.Module) -> Head:
    """Returns the weight, bias, scale and soft-cap of the model's output head, as live tensors.

    Raises:
        ModelError: the model has no output embeddings, or its head is not one linear map.
    """
    lm = causal_lm(model)
    module = lm.get_output_embeddings() if hasattr(lm, "get_output_embeddings") else None
    weight = getattr(module, "weight", None)
    if module is None or weight is None:
        raise ModelError(
            f"Expected a causal language model with an output head, got {type(lm).__name__}, which "
            "has none. Pass a model that AutoModelForCausalLM or, for images, "
            "AutoModelForImageTextToText loads."
        )
    config = lm.config.get_text_config() if hasattr(lm.config, "get_text_config") else lm.config
    weight, bias = _whole(module)
    return Head(
        weight_VH=weight,
        bias_V=bias,
        logit_scale=_logit_scale(config),
        softcap=getattr(config, "final_logit_softcapping", None),
    )


def run_backbone(model: nn.Module, *args: Any, **inputs: Any) -> Tensor:
    """Last hidden states `[B, T, H]` of the backbone for the model's own inputs (`input_ids`,
    `attention_mask`, `position_ids`, ...)."""
    inputs = {k: v for k, v in inputs.items() if k not in ("labels", "use_cache")}
    return backbone_of(model)(*args, **inputs, use_cache=False).last_hidden_state


def run_outside(model: nn.Module, **inputs: Any) -> Tensor:
    """`run_backbone` for callers outside the model's own forward (a teacher's pass): `[B, T, H]`.

    Under FSDP the embeddings and the final norm are whole only between the hooks around the root's
    forward, so there the root is called, with the causal LM's forward exchanged for its backbone
    meanwhile.
    """
    if not is_sharded(model):
        return run_backbone(model, **inputs)
    lm = causal_lm(model)

    def states_only(*args: Any, **kwargs: Any) -> Tensor:
        # PEFT hands `labels=None` and output flags through.
        kwargs = {
            k: v
            for k, v in kwargs.items()
            if v is not None
            and k not in ("return_dict", "output_attentions", "output_hidden_states")
        }
        return run_backbone(lm, *args, **kwargs)

    installed = lm.__dict__.get("forward")
    lm.forward = states_only  # type: ignore[method-assign]
    try:
        return model(**inputs)
    finally:
        if installed is None:
            del lm.forward
        else:
            lm.forward = installed  # type: ignore[method-assign]


def is_sharded(model: nn.Module) -> bool:
    """Whether FSDP2 (`fully_shard`) holds parts of the model."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return False
    from torch.distributed.fsdp import FSDPModule

    return any(isinstance(module, FSDPModule) for module in model.modules())


def is_distributed_tensor(tensor: Tensor | None) -> bool:
    """Whether the tensor is a DTensor, of which this process may hold a part only."""
    return tensor is not None and hasattr(tensor, "full_tensor")


def project(hidden_NH: Tensor, head: Head, *, as_stored: bool = False) -> Tensor:
    """Logits `[N, V]` in float32 (float64 for float64 inputs). For few rows only; losses use
    `ops.annealing`.

    Args:
        hidden_NH: hidden states, any floating dtype.
        head: of the model.
        as_stored: multiply in the dtype that the states have, as the model's own forward does, and
            widen the product: in half precision several times as fast, and as coarse as that
            forward.
    """
    wide = torch.float64 if hidden_NH.dtype == torch.float64 else torch.float32
    dtype = hidden_NH.dtype if as_stored else wide
    with torch.autocast(hidden_NH.device.type, enabled=False):
        logits = (hidden_NH.to(dtype) @ head.weight_VH.to(dtype).T).to(wide)
        if head.bias_V is not None:
            logits = logits + head.bias_V.to(wide)
        logits = logits * head.logit_scale if head.logit_scale != 1.0 else logits
        return (
            head.softcap * torch.tanh(logits / head.softcap) if head.softcap is not None else logits
        )


@torch.no_grad()
def check_head(
    model: nn.Module, input_ids_BT: Tensor, *, rows: int = 8, half: bool = False, **images: Any
) -> float:
    """Compares backbone + head with the model's own logits on a few positions.

    Args:
        input_ids_BT: `[B, T]` int64, a real sample; its first `rows` positions are used.
        rows: positions to compare.
        half: the model's forward runs in half precision although its weights do not (autocast), so
            a larger difference is rounding.
        images: what belongs to images in a batch (`pixel_values`, ...), with its `attention_mask`.
            The whole batch goes through the model then, and the last `rows` positions are compared:
            they have seen the images.

    Returns:
        The largest absolute difference of log-probabilities, nats.

    Raises:
        ModelError: they differ by more than the dtype explains.
    """
    was_training = model.training
    model.eval()
    try:
        ids = input_ids_BT if images else input_ids_BT[:1, :rows]
        more = {"logits_to_keep": rows} if images else {}
        log_probs = (
            causal_lm(model)(input_ids=ids, use_cache=False, **images, **more)
            .logits.float()
            .log_softmax(-1)
        )
        log_probs = log_probs.flatten(0, 1)
        states = (
            run_backbone(model, input_ids=ids, **images)[:, -rows:]
            if images
            else run_backbone(model, input_ids=ids)
        )
        logits = project(states.flatten(0, 1), describe_head(model))
    finally:
        model.train(was_training)
    ours = logits.log_softmax(-1)
    vocabulary = min(log_probs.shape[-1], ours.shape[-1])
    difference = float((log_probs[:, :vocabulary] - ours[:, :vocabulary]).abs().max())
    dtype = next(model.parameters()).dtype
    exact = dtype in (torch.float32, torch.float64) and not half
    tolerance = 1e-3 if exact else max(0.25, HALF_ROUNDING * float(logits.abs().max()))
    if not difference <= tolerance:
        raise ModelError(
            f"{type(causal_lm(model)).__name__} computes its logits in an unknown way: the "
            f"log-probabilities of backbone and head differ by {difference:.3g} nats from the "
            f"model's own (tolerance {tolerance:.3g}). Training on them would be wrong. Please "
            "report the architecture."
        )
    return difference


def _logit_scale(config: Any) -> float:
    """The multiplier before soft-capping, under the names architectures give it (Granite and
    MiniCPM divide, the others multiply)."""
    for name in ("logit_scale", "output_multiplier", "lm_head_multiplier"):
        value = getattr(config, name, None)
        if value is not None:
            return float(value)
    scaling = getattr(config, "logits_scaling", None)
    if scaling is not None:
        return (
            float(scaling)
            if getattr(config, "model_type", "") == "hyperclovax"
            else 1.0 / float(scaling)
        )
    return 1.0


def _whole(module: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Weight `[V, H]` and bias `[V]` of the head, gathered where they are sharded (see the module's
    docstring)."""
    unshard, reshard = getattr(module, "unshard", None), getattr(module, "reshard", None)
    if not is_distributed_tensor(module.weight) or unshard is None or reshard is None:
        return _full(module.weight), _full(getattr(module, "bias", None))
    unshard()
    weight, bias = _full(module.weight), _full(getattr(module, "bias", None))
    if not torch.is_grad_enabled():
        # No backward will shard it again, and sharding frees the storage.
        weight, bias = weight.clone(), None if bias is None else bias.clone()
        reshard()
    return weight, bias


def _full(tensor: Any) -> Any:
    """A DTensor gathered whole, its gradient averaged over the mesh; plain tensors, and None, as
    they are."""
    if not is_distributed_tensor(tensor):
        return tensor
    from torch.distributed.tensor import Partial

    return tensor.full_tensor(grad_placements=[Partial("avg")] * tensor.device_mesh.ndim)
