"""Weights on the tokens' cross-entropies: what is learnt hard is learnt less, or not at all.

    loss = sum_n w_n CE_n / tokens of the step       w_n a constant of the derivative
    w_n  = 1 - c + c v_n                       c the coefficient, 1 as published, 0 for direct fine-tuning

| kind | v_n | from |
|---|---|---|
| `eaft` | `(H20 / 3)^alpha`, H20 the entropy (nats) of the 20 largest logits' own softmax | EAFT, section 3.3 |
| `dft` | `p`, the model's probability of the token | DFT |
| `talr` | `max(p^(1 / tau), floor)`, tau the median over sequences of their mean CE | TALR |
| `stm` | 1 where the start model's CE is at most log threshold, else 0 | selective token masking |
| `flow` | `exp(-l / T)` of a document, l its mean CE under the start model, T the median of all l | FLOW |

The divisor is the number of trained tokens of the whole step, over accumulation and ranks, as without weights; here
none of the five divides by the weights' sum. So a mean weight below 1 is a smaller learning rate as well: at the median
FLOW's published form trains at exp(-1) = 0.37 of it. `normalise` divides the weights of `flow` or `stm` by their mean
over the trained tokens of the data, once and for all, which leaves the rate as it is. Cross-entropy, entropy and
accuracy are logged as the model's, without weights, and beside them the mean weight (`ce_weight`); the loss is what is
trained on. Weights act in training alone: an evaluation's loss is the plain one.

Departures from what is published:

- TALR's tau is of the step's batch. A micro-batch's own median would make accumulation and ranks change the result, and
the step's is known only after it; so tau is that of the step before, over all its documents, which a checkpoint keeps.
The first step has none and is plain cross-entropy.
- Selective token masking sets the labels of masked tokens to -100, so that its loss is the mean over those that are
kept, of each batch. Here it is divided by all trained tokens; `normalise` makes the mean weight over the data 1.
- It also masks end-of-text tokens that surprise the start model, and a model that never sees one never stops. They are
kept here; `mask_end` masks them as published.
- FLOW's published command line has T = 1 by default, its paper the median, as here.

`stm` and `flow` look at all training data once with the start model, before the first step (`Host.start_losses`): a
float32 a token, kept on disk under the tokens of its document, where later runs from the same start find it.

Cost: `eaft`, `dft`, `talr` ride on the pass that computes the loss. `stm`, `flow`: one forward pass over the training
data, once, and reading it back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from holdfast.config.declare import Meta
from holdfast.errors import DataError
from holdfast.retention.method import (
    ActiveMethod,
    Host,
    NamedParams,
    Passive,
    RetentionMethod,
    StartLosses,
    StepInfo,
    TokenWeights,
)

if TYPE_CHECKING:
    from torch import Tensor

    from holdfast.retention.anchor import Anchors

_BELONGS = {
    "alpha": ("eaft",),
    "floor": ("talr",),
    "threshold": ("stm",),
    "mask_end": ("stm",),
    "temperature": ("flow",),
    "normalise": ("stm", "flow"),
    "cache_dir": ("stm", "flow"),
}
"""Parameter: the kinds it says something about."""
LEAST_TAU = 1e-3
"""Nats; below, p^(1 / tau) is 0 or 1 anyway."""


@dataclass(frozen=True, kw_only=True)
class TokenWeighting(RetentionMethod):
    """Weighs each token's cross-entropy by how the model takes it; memory kept in the loss, without old data.

    References: EAFT (arXiv:2601.02151), section 3.3; DFT (arXiv:2508.05629); TALR (arXiv:2509.20758); selective token
    masking (arXiv:2501.14315); FLOW (arXiv:2502.02797).
    """

    name: ClassVar[str] = "token_weighting"
    title: ClassVar[str] = "token weighting"
    strength: ClassVar[tuple[str, ...]] = ("coefficient",)
    place: ClassVar[str] = "loss"
    weighs_tokens: ClassVar[bool] = True
    summary: ClassVar[str] = "each token's cross-entropy weighed by entropy, probability or the start model's surprise"
    source: ClassVar[str] = (
        "arXiv:2601.02151, section 3.3 (EAFT); 2508.05629 (DFT); 2509.20758 (TALR); 2501.14315 (STM); 2502.02797 (FLOW)"
    )

    kind: Literal["eaft", "dft", "talr", "stm", "flow"] = "eaft"
    """What decides the weight: eaft: the entropy of the prediction; dft: the token's probability; talr: its probability
    to the power of 1 / tau; stm: 0 where the token surprises the start model; flow: documents that the start model
    finds easy count more."""
    coefficient: Annotated[float, Meta(ge=0, le=1)] = 1.0
    """How much of it: weights are 1 - c + c v. 1 is as published, 0 direct fine-tuning."""
    alpha: Annotated[float, Meta(gt=0)] = 1.0
    """With kind eaft: the power of the entropy's share."""
    floor: Annotated[float, Meta(ge=0, le=1)] = 0.01
    """With kind talr: the least weight."""
    threshold: Annotated[float, Meta(gt=1)] = 2.5
    """With kind stm: the perplexity of a token under the start model, exp(CE), above which it is masked; 2.5 keeps
    what it gives a probability of 0.4 or more."""
    mask_end: bool = False
    """With kind stm: mask end-of-text tokens, too, as the published code does; a model may then not learn to stop."""
    temperature: Annotated[float | None, Meta(gt=0)] = None
    """With kind flow: T of exp(-l / T), nats; empty: the median of the documents' mean CE."""
    normalise: bool = False
    """With kind stm or flow: divide the weights by their mean over the trained tokens of the data, so that the learning
    rate means what it means without. flow as published does not, and trains the median document at 0.37 of it; stm as
    published takes the mean over the tokens that it keeps."""
    cache_dir: Annotated[str | None, Meta(decides=False)] = None
    """With kind stm or flow: folder of the start model's losses, shared between runs; empty: start_losses in
    $HOLDFAST_CACHE or the user's cache."""

    @property
    def off(self) -> bool:
        return self.coefficient == 0

    @property
    def by_document(self) -> bool:
        return self.kind in ("talr", "flow")

    def problems(self) -> list[str]:
        defaults = {name: field.default for name, field in type(self).__dataclass_fields__.items()}
        return [
            f"token_weighting.{key}: says something with kind: {' or '.join(kinds)} only, got kind {self.kind!r}"
            for key, kinds in _BELONGS.items()
            if getattr(self, key) != defaults[key] and self.kind not in kinds
        ]

    def passes_before(self) -> int:
        return 1 if self.kind in ("stm", "flow") else 0

    def start(self, anchors: Anchors) -> ActiveMethod:
        return {"talr": _TALR, "stm": _STM, "flow": _FLOW}.get(self.kind, _FusedWeights)(self)


class _FusedWeights(Passive):
    """EAFT and DFT: the loss op computes the weights."""

    def __init__(self, method: TokenWeighting) -> None:
        self.method = method

    def token_weights(self, inputs: dict[str, Any], labels_BT: Tensor) -> TokenWeights:
        from holdfast.ops.annealing import Weighting

        eaft = self.method.kind == "eaft"
        return TokenWeights(
            weighting=Weighting(
                gate="entropy" if eaft else "probability",
                power=self.method.alpha if eaft else 1.0,
                strength=self.method.coefficient,
            )
        )


class _TALR(Passive):
    """Remembers the documents' mean CE of a step for the next."""

    def __init__(self, method: TokenWeighting) -> None:
        self.method = method
        self.tau: float | None = None
        self._means: list[Tensor] = []
        self._host: Host | None = None

    def prepare(self, host: Host) -> None:
        self._host = host

    def token_weights(self, inputs: dict[str, Any], labels_BT: Tensor) -> TokenWeights:
        from holdfast.ops.annealing import Weighting

        if self.tau is None:
            return TokenWeights()
        weighting = Weighting(
            gate="probability",
            power=1.0 / max(self.tau, LEAST_TAU),
            floor=self.method.floor,
            strength=self.method.coefficient,
        )
        return TokenWeights(weighting=weighting)

    def saw_losses(self, inputs: dict[str, Any], labels_BT: Tensor, ce_BS: Tensor) -> None:
        means_D, counts_D, _ = document_means(inputs, labels_BT, ce_BS)
        self._means.append(means_D[counts_D > 0])

    def after_step(self, named: NamedParams, step: StepInfo) -> None:
        import torch

        if not self._means or self._host is None:
            return
        seen, self._means = self._host.gathered(torch.cat(self._means)), []
        if len(seen):
            self.tau = float(seen.double().quantile(0.5))

    def metrics(self, named: NamedParams) -> dict[str, float]:
        return {} if self.tau is None else {"tau": self.tau}

    def state_dict(self) -> dict[str, Any]:
        return {"tau": self.tau}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.tau = state["tau"]


class _StartLossWeights(Passive):
    """Base of the kinds that weigh by the start model's losses."""

    def __init__(self, method: TokenWeighting) -> None:
        self.method = method
        self.losses: StartLosses | None = None
        self._mean = 1.0
        """What the weights are divided by."""

    def prepare(self, host: Host) -> None:
        self.losses = host.start_losses(f"token_weighting.kind: {self.method.kind}", cache_dir=self.method.cache_dir)

    def _interpolated(self, weights_BS: Tensor) -> TokenWeights:
        c = self.method.coefficient
        return TokenWeights(given_BS=1.0 - c + c * weights_BS)

    def _of(self, inputs: dict[str, Any]) -> Tensor:
        assert self.losses is not None, "prepare comes first"
        return self.losses.of(inputs)


class _STM(_StartLossWeights):
    """Masks what surprises the start model."""

    def __init__(self, method: TokenWeighting) -> None:
        super().__init__(method)
        self._ends: tuple[int, ...] = ()

    def prepare(self, host: Host) -> None:
        super().prepare(host)
        self._ends = () if self.method.mask_end else host.end_tokens()
        trained, count, masked, least = self._looked_at()
        if not count:
            return
        tokens = f"{count:,} trained tokens{' other than ends of texts' if self._ends else ''}"
        # What the trainer says of steps without weight never comes where ends are kept.
        if masked == count and (self.method.coefficient == 1 or self.method.normalise):
            raise DataError(
                f"token_weighting.threshold: expected a perplexity that some trained tokens do not exceed under the "
                f"start model, got {self.method.threshold:g}, which masks all {tokens} (100 %); the lowest is "
                f"{least.exp():.4g} (a probability of {(-least).exp():.3g}). Raise threshold above it, set a "
                f"coefficient below 1 without normalise, or choose another kind."
            )
        if self.method.normalise:
            self._mean = 1 - masked / trained
        host.say(f"Selective token masking: {masked / count:.1%} of {tokens} are masked.")

    def _looked_at(self) -> tuple[int, int, int, Tensor]:
        """How many trained tokens there are; and of those that may be masked: how many there are, how many are, and
        `[]` the least loss, nats."""
        import torch

        assert self.losses is not None
        trained, count, masked, least = 0, 0, 0, torch.tensor(math.inf, dtype=torch.float64)
        for ids, losses in self.losses.trained():
            trained += len(losses)
            losses = losses[~torch.isin(ids, ids.new_tensor(self._ends))]
            if len(losses):
                count, masked = count + len(losses), masked + int((~self._within(losses)).sum())
                least = torch.minimum(least, losses.min().double())
        return trained, count, masked, least

    def _within(self, losses: Tensor) -> Tensor:
        return losses <= math.log(self.method.threshold)

    def token_weights(self, inputs: dict[str, Any], labels_BT: Tensor) -> TokenWeights:
        import torch

        kept_BS = self._within(self._of(inputs))
        if self._ends:
            kept_BS |= torch.isin(labels_BT[:, 1:], labels_BT.new_tensor(self._ends))
        return self._interpolated(kept_BS.float() / self._mean)


class _FLOW(_StartLossWeights):
    """Weighs documents by how easy the start model finds them."""

    def __init__(self, method: TokenWeighting) -> None:
        super().__init__(method)
        self.temperature: float = 0.0
        """T, nats; known once prepared."""

    def prepare(self, host: Host) -> None:
        super().prepare(host)
        assert self.losses is not None
        means_D, counts_D = self.losses.means()
        median = float(means_D.quantile(0.5)) if len(means_D) else 0.0
        self.temperature = self.method.temperature or median
        if not self.temperature > 0:
            raise DataError(
                f"token_weighting.kind: flow divides by the median loss of the start model, expected it above 0, got "
                f"{median:g} nats over {len(means_D)} documents with trained tokens. State temperature."
            )
        if self.method.normalise:
            weights_D = (-means_D / self.temperature).exp()
            self._mean = float((weights_D * counts_D).sum() / counts_D.sum())
        host.say(f"FLOW: T = {self.temperature:.4g} nats, over {len(means_D)} documents.")

    def token_weights(self, inputs: dict[str, Any], labels_BT: Tensor) -> TokenWeights:
        means_D, _, document_BS = document_means(inputs, labels_BT, self._of(inputs))
        weights_D = (-means_D / self.temperature).exp() / self._mean
        return self._interpolated(weights_D[document_BS].float())

    def metrics(self, named: NamedParams) -> dict[str, float]:
        return {"flow_temperature": self.temperature}


def document_means(inputs: dict[str, Any], labels_BT: Tensor, ce_BS: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The mean over each document's trained tokens.

    Args:
        inputs: `position_ids` that restart at 0 with each document (packing), or none: a row is a document.
        labels_BT: `[B, T]`, -100 for tokens that are not trained.
        ce_BS: `[B, T-1]`, of the token at t + 1.

    Returns:
        `[D]` float64 means, 0 without trained tokens; `[D]` their numbers of trained tokens; `[B, T-1]` int64, the
        document of the token at t + 1.
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
    return sums / counts.clamp(min=1), counts, document_BS
