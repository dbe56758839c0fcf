"""Weights on the tokens' cross-entropies: what is learnt hard is learnt less, or not at all.

    loss = sum_n w_n CE_n / tokens of the step       w_n a constant of the derivative
    w_n  = 1 - c + c v_n                       c the coefficient, 1 as published, 0 for direct fine-tuning

| kind | v_n | from |
|---|---|---|
| `eaft` | `(H20 / 3)^alpha`, H20 the entropy (nats) of the 20 largest logits' own softmax | EAFT, section 3.3 |
| `dft` | `p`, the model's probability of the token | DFT |
| `talr` | `max(p^(1 / tau), floor)`, tau the median over sequences of their mean CE | TALR |

The divisor is the number of trained tokens of the whole step, over accumulation and ranks, as
without weights; here none of the three divides by the weights' sum. So a mean weight below 1 is a
smaller learning rate as well. Cross-entropy, entropy and accuracy are logged as the model's,
without weights, and beside them the mean weight (`ce_weight`); the loss is what is trained on.
Weights act in training alone: an evaluation's loss is the plain one.

Departure from what is published: TALR's tau is of the step's batch. A micro-batch's own median
would make accumulation and ranks change the result, and the step's is known only after it; so tau
is that of the step before, over all its documents, which a checkpoint keeps. The first step has
none and is plain cross-entropy.

Cost: none. The weights are computed in the pass that computes the loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from holdfast.config.declare import Meta
from holdfast.errors import Problem
from holdfast.retention.protocol import (
    TOKEN_WEIGHTS,
    WHOLE_DOCUMENTS,
    ActiveMethod,
    NamedParams,
    Passive,
    RetentionMethod,
    StepInfo,
)
from holdfast.retention.services import LossBatch, Services

if TYPE_CHECKING:
    from torch import Tensor

    from holdfast.retention.anchor import Anchors

_BELONGS = {"alpha": "eaft", "floor": "talr"}
"""Parameter: the kind it applies to."""
LEAST_TAU = 1e-3
"""Nats; below, p^(1 / tau) is 0 or 1 anyway."""


@dataclass(frozen=True, kw_only=True)
class TokenWeighting(RetentionMethod):
    """Weights each token's cross-entropy by the model's own prediction at that token. This method
    works on the loss and needs no old data.

    References: EAFT (arXiv:2601.02151), section 3.3; DFT (arXiv:2508.05629); TALR
    (arXiv:2509.20758).
    """

    name: ClassVar[str] = "token_weighting"
    title: ClassVar[str] = "token weighting"
    strength: ClassVar[tuple[str, ...]] = ("coefficient",)
    place: ClassVar[str] = "loss"
    summary: ClassVar[str] = "weights each token's loss by its entropy or probability"
    source: ClassVar[str] = (
        "arXiv:2601.02151, section 3.3 (EAFT); 2508.05629 (DFT); 2509.20758 (TALR)"
    )

    kind: Literal["eaft", "dft", "talr"] = "eaft"
    """What the weight depends on. eaft: the entropy of the prediction; dft: the token's
    probability; talr: its probability to the power of 1 / tau."""
    coefficient: Annotated[float, Meta(ge=0, le=1)] = 1.0
    """Strength c of the weighting: a token's weight is 1 - c + c v, where v is the weight of the
    published method. 1 is that method, 0 direct fine-tuning."""
    alpha: Annotated[float, Meta(gt=0)] = 1.0
    """Exponent of the normalised entropy; only with kind: eaft."""
    floor: Annotated[float, Meta(ge=0, le=1)] = 0.01
    """Smallest weight of a token; only with kind: talr."""

    @property
    def off(self) -> bool:
        return self.coefficient == 0

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset(
            {TOKEN_WEIGHTS, WHOLE_DOCUMENTS} if self.kind == "talr" else {TOKEN_WEIGHTS}
        )

    def problems(self) -> list[Problem]:
        defaults = {name: field.default for name, field in type(self).__dataclass_fields__.items()}
        problems = []
        for key, kind in _BELONGS.items():
            if getattr(self, key) != defaults[key] and self.kind != kind:
                problems.append(
                    Problem(key, f"applies only with kind: {kind}, got kind {self.kind!r}")
                )
        return problems

    def start(self, anchors: Anchors) -> ActiveMethod:
        return _TALR(self) if self.kind == "talr" else _FusedWeights(self)


class _FusedWeights(Passive):
    """EAFT and DFT: the loss op computes the weights."""

    def __init__(self, method: TokenWeighting) -> None:
        self.method = method

    def loss(self, batch: LossBatch) -> None:
        from holdfast.ops.annealing import Weighting

        eaft = self.method.kind == "eaft"
        weighting = Weighting(
            gate="entropy" if eaft else "probability",
            power=self.method.alpha if eaft else 1.0,
            strength=self.method.coefficient,
        )
        batch.weigh(weighting=weighting)


class _TALR(Passive):
    """Remembers the documents' mean CE of a step for the next."""

    def __init__(self, method: TokenWeighting) -> None:
        self.method = method
        self.tau: float | None = None
        self._means: list[Tensor] = []
        self._services: Services | None = None

    def prepare(self, services: Services) -> None:
        self._services = services

    def loss(self, batch: LossBatch) -> None:
        from holdfast.ops.annealing import Weighting

        if self.tau is None:
            return
        weighting = Weighting(
            gate="probability",
            power=1.0 / max(self.tau, LEAST_TAU),
            floor=self.method.floor,
            strength=self.method.coefficient,
        )
        batch.weigh(weighting=weighting)

    def after_loss(self, inputs: Mapping[str, Any], labels_BT: Tensor, ce_BS: Tensor) -> None:
        means_D, counts_D = document_means(inputs, labels_BT, ce_BS)
        self._means.append(means_D[counts_D > 0])

    def weights(self, named: NamedParams, step: StepInfo) -> None:
        import torch

        if not self._means or self._services is None:
            return
        means, self._means = self._services.gathered(torch.cat(self._means)), []
        if len(means):
            self.tau = float(means.double().quantile(0.5))

    def metrics(self, named: NamedParams) -> dict[str, float]:
        return {} if self.tau is None else {"tau": self.tau}

    def state_dict(self) -> dict[str, Any]:
        return {"tau": self.tau}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.tau = state["tau"]


def document_means(
    inputs: Mapping[str, Any], labels_BT: Tensor, ce_BS: Tensor
) -> tuple[Tensor, Tensor]:
    """The mean over each document's trained tokens.

    Args:
        inputs: `position_ids` that restart at 0 with each document (packing), or none: a row is a
            document.
        labels_BT: `[B, T]`, -100 for tokens that are not trained.
        ce_BS: `[B, T-1]`, of the token at t + 1.

    Returns:
        `[D]` float64 means, 0 without trained tokens; `[D]` their numbers of trained tokens.
    """
    import torch

    begins_BT = torch.zeros_like(labels_BT, dtype=torch.bool)
    begins_BT[:, 0] = True
    position_ids = inputs.get("position_ids")
    if position_ids is not None:
        begins_BT |= position_ids == 0
    document_BS = begins_BT.flatten().cumsum(0).view(labels_BT.shape)[:, 1:] - 1
    trained_BS = labels_BT[:, 1:] != -100
    sums = torch.zeros(int(begins_BT.sum()), dtype=torch.float64, device=labels_BT.device)
    counts = sums.clone()
    places = document_BS[trained_BS]
    sums.index_add_(0, places, ce_BS[trained_BS].double())
    counts.index_add_(0, places, torch.ones_like(places, dtype=torch.float64))
    return sums / counts.clamp(min=1), counts
