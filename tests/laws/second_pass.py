"""A method with a second forward pass, in a file of its own: what the `loss` hook is for.

    loss = CE + weight * (KL(clean || dropped) + KL(dropped || clean)) / 2

`clean` is the pass whose cross-entropy is trained on; in the other one dropout falls on the input embeddings. After
R-Drop (Liang et al. 2021, arXiv:2106.14448), Eq. 3, whose two passes both have the model's own dropout; here the masks
are drawn by seed, step and row, so that they are the same on one process and on eight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from holdfast.config.declare import Meta
from holdfast.retention.protocol import LOSS_TERM, Passive, RetentionMethod


@dataclass(frozen=True, kw_only=True)
class SecondPass(RetentionMethod):
    """Divergence between two passes of one model, with dropout in one. References: R-Drop (Liang et al. 2021)."""

    name: ClassVar[str] = "second_pass"
    title: ClassVar[str] = "consistency under dropout"
    place: ClassVar[str] = "loss"
    strength: ClassVar[tuple[str, ...]] = ("weight",)
    needs: ClassVar[frozenset[str]] = frozenset({LOSS_TERM})
    summary: ClassVar[str] = "KL between a pass with dropout on the embeddings and one without"
    source: ClassVar[str] = "R-Drop, Liang et al. 2021, Eq. 3"

    weight: Annotated[float, Meta(ge=0)] = 1.0
    """Factor of the divergence, nats per trained token; 0 is direct fine-tuning."""
    rate: Annotated[float, Meta(gt=0, lt=1)] = 0.3
    """Share of each embedding's elements that is dropped."""
    seed: int = 0
    """Of the masks."""

    @property
    def off(self):
        return self.weight == 0

    def start(self, anchors):
        return Consistency(self)


class Consistency(Passive):
    def __init__(self, method):
        self.method = method

    def loss(self, batch):
        keep = 1 - self.method.rate

        def dropout(embeddings_BTH):
            draws_BTH = batch.uniform(embeddings_BTH.shape[-1], seed=self.method.seed, name="second_pass")
            return embeddings_BTH * (draws_BTH < keep) / keep

        dropped_BTH = batch.second_pass(dropout)
        divergence = batch.kl(dropped_BTH, batch.hidden_BTH) + batch.kl(batch.hidden_BTH, dropped_BTH)
        return self.method.weight * divergence / 2
