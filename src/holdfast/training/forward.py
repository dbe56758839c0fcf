"""The loss inside the model's own forward: how backbone, head and loss op run where parallel
wrappers can see them.

DDP, FSDP and ZeRO act in hooks around the wrapped module's forward, so the loss has to be computed
inside it, from hidden states, without logits. `install_forward` lets
`model(..., holdfast=Sealed(request))` do that; without the keyword the forward is what it was.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from holdfast.checkpoints import counter, counter_torch
from holdfast.errors import ConfigError
from holdfast.ops.annealing import AnnealedLoss, Weighting, annealed_loss, describe_backend
from holdfast.ops.heads import Head, backbone_of, describe_head, run_backbone
from holdfast.retention.protocol import TokenLoss
from holdfast.retention.services import LossBatch

Held = TypeVar("Held")


class Sealed(Generic[Held]):
    """A value that goes into or out of a wrapped module's forward as it is; `value` opens it.

    FSDP's mixed precision casts every floating tensor on its way into and out of a forward, and it
    looks for them inside tuples, dicts and dataclasses. A request's scales, its teacher's states
    and head, and the loss and the sums of a result would become bfloat16, which is the rounding
    that the op computes in float32 to avoid. It does not look inside an object of another kind; so
    this must never become a dataclass, a named tuple or a dict. What the hooks have to find, the
    loss with its graph, stands outside.
    """

    def __init__(self, value: Held) -> None:
        self.value = value


@dataclass(frozen=True)
class LossRequest:
    """What the redirected forward needs beside the model's inputs."""

    labels_BT: Tensor
    ce_scale: float | Tensor
    kl_scale: float | Tensor = 0.0
    kl_mask_BS: Tensor | None = None
    """`[B, T-1]` bool: positions whose prediction counts in the KL."""
    kl_weights_BS: Tensor | None = None
    """`[B, T-1]` float32: factor of the KL at each position; None: 1."""
    teacher_hidden_BTK: Tensor | None = None
    teacher_head: Head | None = None
    token_loss: TokenLoss | None = None
    ce_weights_BS: Tensor | None = None
    """`[B, T-1]` float32: factor of the cross-entropy at each position; None: 1."""
    losses: Sequence[Callable[[LossBatch], Tensor | None]] = ()
    """The methods' `loss` hooks; empty outside of training."""
    step: int = 0
    """Number of the current optimizer step, from 1."""
    router_scale: float = 0.0
    """Factor of a mixture-of-experts model's load-balancing loss; 0 for dense models."""
    kl_only: bool = False
    """Leave the cross-entropy out of the loss: the host computes its own loss from the model's
    outputs, which are returned as `outputs`."""


class TrainedBatch:
    """See `retention.services.LossBatch`.

    Args:
        lm: the causal LM whose forward runs.
        args, kwargs: of that forward, without the request.
        hidden_BTH: its hidden states.
        head: its head.
        request: of the micro-batch.
    """

    def __init__(
        self,
        lm: nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        hidden_BTH: Tensor,
        head: Head,
        request: LossRequest,
    ) -> None:
        self._lm, self._args = lm, args
        self.inputs, self.labels_BT, self.step = kwargs, request.labels_BT, request.step
        self.hidden_BTH, self.head = hidden_BTH, head
        self.weights_BS = request.ce_weights_BS
        self.weighting: Weighting | None = None
        self._weighed = False

    def second_pass(self, change: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """See `LossBatch.second_pass`."""
        with _changed_embeddings(self._lm, change):
            return run_backbone(self._lm, *self._args, **self.inputs)

    def kl(self, hidden_BTH: Tensor, reference_BTH: Tensor) -> Tensor:
        """See `LossBatch.kl`."""
        result = annealed_loss(
            hidden_BTH[:, :-1].flatten(0, 1),
            self.head,
            self.labels_BT[:, 1:].flatten(),
            teacher_hidden_NK=reference_BTH[:, :-1].detach().flatten(0, 1),
            teacher_head=self.head.detached(),
            ce_scale=0.0,
            kl_scale=1.0,
        )
        return result.loss

    def weigh(self, weights_BS: Tensor | None = None, weighting: Weighting | None = None) -> None:
        """See `LossBatch.weigh`."""
        if self._weighed:
            raise ConfigError(
                "retention: expected one method that weighs tokens, got several. Leave one out."
            )
        self._weighed = True
        self.weighting = weighting
        if weights_BS is not None:
            self.weights_BS = (
                weights_BS if self.weights_BS is None else self.weights_BS * weights_BS
            )

    def uniform(self, width: int, *, seed: int, name: str) -> Tensor:
        """See `LossBatch.uniform`."""
        ids_BT: Tensor = self.inputs["input_ids"]
        mask_BT = self.inputs.get("attention_mask")
        there_BT = torch.ones_like(ids_BT, dtype=torch.bool) if mask_BT is None else mask_BT != 0
        draws = torch.zeros(*ids_BT.shape, width, device=ids_BT.device)
        for row, (ids_T, there_T) in enumerate(zip(ids_BT, there_BT, strict=True)):
            tokens = ids_T[there_T]
            key = counter.stream_key(seed, name, str(self.step), str(tokens.tolist()))
            numbers = counter_torch.uniform(key, 0, len(tokens) * width, ids_BT.device)
            draws[row, there_T] = numbers.view(-1, width).float()
        return draws


@contextmanager
def _changed_embeddings(lm: nn.Module, change: Callable[[Tensor], Tensor] | None) -> Iterator[None]:
    if change is None:
        yield
        return
    hook = lm.get_input_embeddings().register_forward_hook(
        lambda module, inputs, output: change(output)
    )
    try:
        yield
    finally:
        hook.remove()


def successor_mask(inputs: dict[str, Any]) -> Tensor:
    """`[B, T-1]` bool: positions followed by another token of the same document.

    Args:
        inputs: `input_ids [B, T]` and either `position_ids` that restart at 0 (packing) or
            `attention_mask` (padding);
    """
    position_ids, attention_mask = inputs.get("position_ids"), inputs.get("attention_mask")
    if position_ids is not None:
        return position_ids[:, 1:] != 0
    if attention_mask is not None:
        return (attention_mask[:, 1:] != 0) & (attention_mask[:, :-1] != 0)
    return torch.ones_like(inputs["input_ids"][:, 1:], dtype=torch.bool)


_FLAGS = ("return_dict", "output_attentions", "output_hidden_states")
"""Keywords of a forward pass that say what it returns."""


def install_forward(lm: nn.Module) -> None:
    """Lets `lm(..., holdfast=Sealed(request))` return the loss of a `LossRequest`, computed inside
    the module's own forward.

    Everything that wraps the module (autocast, DDP, FSDP, PEFT, `torch.compile`) then sees an
    ordinary forward call. Without the keyword the forward is what it was.

    With it the module returns a dict. `result` is a `Sealed[AnnealedLoss]`: take the loss from
    there. `loss` is the same tensor for the hooks of parallel wrappers, which may have cast it.
    After the first call in training mode `lm.loss_backend` says in one line how the loss is
    computed (see `ops.annealing.describe_backend`); before it is None.
    """
    original = lm.forward
    lm.loss_backend = None  # type: ignore[assignment]

    @functools.wraps(type(lm).forward)
    def forward(
        self: nn.Module, *args: Any, holdfast: Sealed[LossRequest] | None = None, **kwargs: Any
    ) -> Any:
        if holdfast is None:
            return original(*args, **kwargs)
        request = holdfast.value
        # PEFT may hand `labels=None` and output flags through.
        kwargs = {
            name: value
            for name, value in kwargs.items()
            if value is not None and name not in _FLAGS
        }
        router_loss = outputs = None
        if request.kl_only:
            hidden_BTH, outputs = with_hidden(self, original, args, kwargs)
        elif request.router_scale:
            hidden_BTH, router_loss = _run_experts(self, *args, **kwargs)
        else:
            hidden_BTH = run_backbone(self, *args, **kwargs)
        head = describe_head(self)
        batch = TrainedBatch(self, args, kwargs, hidden_BTH, head, request)
        terms = []
        for loss in request.losses:
            term = loss(batch)
            if term is not None:
                terms.append(term)
        r, t = request, request.token_loss
        teacher, weights_BS = r.teacher_hidden_BTK, batch.weights_BS
        result: AnnealedLoss = annealed_loss(
            hidden_BTH[:, :-1].flatten(0, 1),
            head,
            r.labels_BT[:, 1:].flatten(),
            teacher_hidden_NK=None if teacher is None else teacher[:, :-1].flatten(0, 1),
            teacher_head=r.teacher_head,
            ce_scale=0.0 if r.kl_only else r.ce_scale,
            kl_scale=r.kl_scale,
            kl_mask_N=None if r.kl_mask_BS is None else r.kl_mask_BS.flatten(),
            ce_weights_N=None if weights_BS is None else weights_BS.flatten(),
            kl_weights_N=None if r.kl_weights_BS is None else r.kl_weights_BS.flatten(),
            weighting=batch.weighting,
            temperature=t.temperature if t else 1.0,
            direction=t.direction if t else "forward",  # type: ignore[arg-type]
            beta=t.beta if t else 0.5,
            mask_target=t.mask_target if t else False,
        )
        _note_backend(self, hidden_BTH, head)
        if terms:
            result = replace(result, loss=result.loss + r.ce_scale * torch.stack(terms).sum())
        if router_loss is not None:
            result = replace(result, loss=result.loss + r.router_scale * router_loss)
        returned = {"loss": result.loss, "result": Sealed(result)}
        return returned if outputs is None else {**returned, "outputs": outputs}

    lm.forward = types.MethodType(forward, lm)  # type: ignore[method-assign]


@torch.compiler.disable  # a graph compiled with the attribute still None would be compiled again in the second step
def _note_backend(lm: nn.Module, hidden_BTH: Tensor, head: Head) -> None:
    if lm.training and lm.loss_backend is None:
        lm.loss_backend = describe_backend(hidden_BTH, head)  # type: ignore[assignment]


def with_hidden(
    lm: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor, Any]:
    """The backbone's hidden states `[B, T, H]` of a forward pass, and what it returns."""
    states: list[Tensor] = []
    hook = backbone_of(lm).register_forward_hook(
        lambda module, inputs, output: states.append(output.last_hidden_state)
    )
    try:
        outputs = forward(*args, **kwargs)
    finally:
        hook.remove()
    return states[-1], outputs


def _run_experts(lm: nn.Module, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """Hidden states of a mixture-of-experts backbone and its load-balancing loss (Switch
    Transformer, as transformers computes it)."""
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    config = lm.config.get_text_config()
    kwargs = {k: v for k, v in kwargs.items() if k not in ("output_router_logits", "use_cache")}
    outputs = backbone_of(lm)(*args, **kwargs, output_router_logits=True, use_cache=False)
    experts = getattr(config, "num_experts", None) or config.num_local_experts
    return outputs.last_hidden_state, load_balancing_loss_func(
        outputs.router_logits, experts, config.num_experts_per_tok, kwargs.get("attention_mask")
    )
