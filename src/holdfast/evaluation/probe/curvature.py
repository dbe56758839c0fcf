"""The curvature of a model's loss on a few documents: how far its second derivative explains what
noise and steps cost.

With the loss L (nats a scored token over all of them) and its Hessian H at the model's weights
theta,

    L(theta + a d) = L(theta) + a g.d + a^2 / 2 d.Hd + ...            along a direction d
    E L(theta + gamma std z) = L(theta) + gamma^2 / 2 Tr(S H) + ...   noise, S = diag(std^2)

(Overtrained Language Models, appendix D). Nothing but products H v is formed, by differentiating
g.v once more; traces are Hutchinson's estimate `v.Hv` over random signs v (times std for S).
Eigenvalues are curvlinops' business, whose Hessians are scipy's linear operators.

Needs float32: a product of half-precision gradients is noise. Attention is computed by torch's
plain kernel, since the fused ones have no second derivative, and logits as the model has them: 4 to
6 times a training step's time a product, and the graph of one row of documents in memory.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.errors import ModelError, NotFinite
from holdfast.evaluation.eval_mode import evaluation_mode
from holdfast.evaluation.text.documents import EncodedDocument
from holdfast.evaluation.text.perplexity import (
    Piece,
    cut,
    documents_stay_apart,
    pack,
    resolve_window,
    score_row,
)
from holdfast.ops.heads import describe_head

Report = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Along:
    """The loss along a direction d, to second order, in nats a token."""

    slope: float
    """g.d"""
    curvature: float
    """d.Hd"""
    norm: float
    """|d|"""


class Curvature:
    """Products with the Hessian of a model's loss on documents.

    Args:
        model: a Hugging Face causal LM in float32, on any device; left as it came.
        documents: the encoded documents, at least one scored token among them.

    Raises:
        ModelError: the model is not in float32, or its attention has no second derivative.
    """

    def __init__(
        self, model: Any, documents: Sequence[EncodedDocument], *, batch_tokens: int | None = None
    ) -> None:
        self.model = model
        self.parameters: list[nn.Parameter] = [
            p for p in model.parameters() if p.is_floating_point()
        ]
        wrong = {
            str(p.dtype).removeprefix("torch.") for p in self.parameters if p.dtype != torch.float32
        }
        if wrong:
            raise ModelError(
                "Expected a model in float32, whose gradients can be differentiated again, got "
                f"{', '.join(wrong)}. Load it with --dtype float32."
            )
        attention = str(getattr(model.config, "_attn_implementation", "eager"))
        if attention not in ("eager", "sdpa"):
            raise ModelError(
                f"Expected attention with a second derivative (eager, sdpa), got {attention}. Load "
                "the model without attn_implementation."
            )
        window, stride = resolve_window(model)
        pieces = cut(documents, window=window, stride=stride)
        self.tokens = sum(len(piece.targets) for piece in pieces)
        """Scored tokens."""
        rows = pack(
            pieces, batch_tokens=batch_tokens or (512 if self.device.type == "cpu" else 4096)
        )
        with self._ready():
            shared = [row for row in rows if len(row) > 1]
            with torch.no_grad():
                apart = not shared or documents_stay_apart(
                    model, describe_head(model), *shared[0][:2]
                )
        self.rows: list[list[Piece]] = rows if apart else [[piece] for piece in pieces]

    @property
    def device(self) -> torch.device:
        return self.parameters[0].device

    @property
    def size(self) -> int:
        """Parameters."""
        return sum(p.numel() for p in self.parameters)

    def product(
        self, vector: Sequence[Tensor], report: Report | None = None
    ) -> tuple[float, list[Tensor], list[Tensor]]:
        """Loss, gradient g and H v.

        Args:
            vector: v, one tensor a parameter of the same shape, float32.
            report: called with (rows done, rows in all).

        Returns:
            Nats a token, and two lists of tensors as `vector`.

        Raises:
            NotFinite: one of them is not finite.
        """
        loss = 0.0
        gradient = [torch.zeros_like(p) for p in self.parameters]
        products = [torch.zeros_like(p) for p in self.parameters]
        with self._ready():
            head = describe_head(self.model)
            for number, row in enumerate(self.rows, 1):
                value = score_row(self.model, head, row).sum() / self.tokens
                g = torch.autograd.grad(
                    value, self.parameters, create_graph=True, materialize_grads=True
                )
                along = torch.stack([(a * v).sum() for a, v in zip(g, vector, strict=True)]).sum()
                h = torch.autograd.grad(along, self.parameters, materialize_grads=True)
                torch._foreach_add_(gradient, [a.detach() for a in g])
                torch._foreach_add_(products, list(h))
                loss += float(value.detach())
                if report is not None:
                    report(number, len(self.rows))
        if not all(
            bool(torch.isfinite(t).all()) for t in (*gradient, *products)
        ) or not math.isfinite(loss):
            raise NotFinite(
                "Expected a finite loss with finite derivatives, got NaN or infinity. Check the "
                "model's weights ('holdfast inspect --verify')."
            )
        return loss, gradient, products

    def along(self, vector: Sequence[Tensor], report: Report | None = None) -> Along:
        """The loss along a direction, to second order."""
        _, gradient, products = self.product(vector, report)
        return Along(
            slope=inner(gradient, vector),
            curvature=inner(products, vector),
            norm=math.sqrt(inner(vector, vector)),
        )

    def signs(self, seed: int, stds: Mapping[str, float] | None = None) -> list[Tensor]:
        """Random signs, one an element; times the standard deviations by parameter name where
        given."""
        generator = torch.Generator().manual_seed(seed)
        names = {id(p): n for n, p in self.model.named_parameters()}
        vector = []
        for p in self.parameters:
            signs = (
                torch.randint(0, 2, p.shape, generator=generator, dtype=torch.float32)
                .mul_(2)
                .sub_(1)
            )
            vector.append((signs if stds is None else signs * stds[names[id(p)]]).to(p.device))
        return vector

    @contextlib.contextmanager
    def _ready(self) -> Iterator[None]:
        """Evaluation mode, every parameter with gradients, attention by the plain kernel."""
        from torch.nn.attention import SDPBackend, sdpa_kernel

        frozen = [p for p in self.parameters if not p.requires_grad]
        for p in frozen:
            p.requires_grad_(True)
        try:
            with evaluation_mode(self.model), torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
                yield
        finally:
            for p in frozen:
                p.requires_grad_(False)


def inner(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """The inner product of two vectors in pieces, summed in float64."""
    products = []
    for a, b in zip(one, other, strict=True):
        products.append(float((a * b).sum(dtype=torch.float64)))
    return math.fsum(products)
