"""Weighted sums of weights: linear (a model soup), WiSE-FT and task arithmetic.

    linear            sum_i w_i theta_i / sum_i w_i            [soup: Wortsman et al. 2022, Section 2]
    WiSE-FT           (1 - alpha) theta_0 + alpha theta_1      [Wortsman et al. 2021, Eq. 1]
    task arithmetic   theta_0 + lambda sum_i w_i delta_i,  delta_i = theta_i - theta_0
                      [Ilharco et al. 2022, Section 2]

A mean is computed from its heaviest model h as `theta_h + sum_i w_i (theta_i - theta_h)`. This is
the same number with two properties that the sum of products lacks in float32: where all models
agree (frozen layers) the value is kept, and a model with the whole weight is copied bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from holdfast.checkpoints.element_types import DType
from holdfast.checkpoints.methods.parameters import WeightedMethod
from holdfast.checkpoints.methods.protocol import MergeMethod, Sum
from holdfast.config.declare import Meta


def mean_shares(weights: Sequence[float]) -> tuple[int, list[float]]:
    """The heaviest model (the first of equals) and each model's share, `w_i / sum w`."""
    total = sum(weights)
    shares = [weight / total for weight in weights]
    return shares.index(max(shares)), shares


def mean_as_sum(weights: Sequence[float], operands: Sequence[int]) -> Sum:
    """The mean of operands at the given indices."""
    heaviest, shares = mean_shares(weights)
    anchor = operands[heaviest]
    terms = [
        (share, index, anchor)
        for share, index in zip(shares, operands, strict=True)
        if index != anchor
    ]
    return Sum(anchor, terms)


@dataclass(frozen=True, kw_only=True)
class Linear(WeightedMethod):
    """Weighted mean of models: a model soup.

    References: Wortsman et al., Model soups: averaging weights of multiple fine-tuned models
    improves accuracy without increasing inference time.
    """

    name: ClassVar[str] = "linear"
    summary: ClassVar[str] = "weighted mean of the models (a model soup)"
    source: ClassVar[str] = "Model soups (arXiv:2203.05482), Section 2"
    needs_base: ClassVar[bool] = False
    models: ClassVar[tuple[int, int | None]] = (1, None)

    normalize: bool = True
    """Divide by the sum of the weights; false gives the plain weighted sum."""

    @property
    def mean(self) -> bool:  # type: ignore[override]
        return self.normalize

    def as_sum(self, models: Sequence[DType], statistics: Any) -> Sum:
        weights, operands = self.weights_of(len(models)), range(1, 1 + len(models))
        if self.normalize:
            return mean_as_sum(weights, operands)
        return Sum(None, [(w, index, None) for w, index in zip(weights, operands, strict=True)])


def method_among(method: MergeMethod, owners: Sequence[int], models: int) -> MergeMethod:
    """What a tensor is made with that only some of the models have; see `MergeMethod.among`."""
    other = method.among(owners, models)
    if other is not None:
        return other
    weights = method.weights_of(models)
    return Linear(weights=tuple(weights[i] for i in owners))


@dataclass(frozen=True, kw_only=True)
class WiseFT(MergeMethod):
    """Interpolation between the base and one fine-tuned model.

    References: Wortsman et al., Robust fine-tuning of zero-shot models, Eq. 1.
    """

    name: ClassVar[str] = "wise_ft"
    summary: ClassVar[str] = "interpolate base and model: (1 - alpha) base + alpha model"
    source: ClassVar[str] = "Robust fine-tuning of zero-shot models (arXiv:2109.01903), Eq. 1"
    needs_base: ClassVar[bool] = True
    models: ClassVar[tuple[int, int | None]] = (1, 1)

    alpha: Annotated[float, Meta(ge=0, le=1)] = 0.5
    """Weight of the fine-tuned model: 0 is the base, 1 the model."""

    def weights_of(self, models: int) -> tuple[float, ...]:
        return (self.alpha,)

    def as_sum(self, models: Sequence[DType], statistics: Any) -> Sum:
        return mean_as_sum((1.0 - self.alpha, self.alpha), (0, 1))


@dataclass(frozen=True, kw_only=True)
class TaskArithmetic(WeightedMethod):
    """The base plus the scaled sum of what each model changed.

    References: Ilharco et al., Editing models with task arithmetic, Section 2.
    """

    name: ClassVar[str] = "task_arithmetic"
    summary: ClassVar[str] = "base + scale * weighted sum of (model - base)"
    source: ClassVar[str] = "Editing models with task arithmetic (arXiv:2212.04089), Section 2"
    needs_base: ClassVar[bool] = True
    models: ClassVar[tuple[int, int | None]] = (1, None)

    scale: float = 1.0
    """Factor on the sum of the changes (lambda). A negative factor subtracts them."""

    def as_sum(self, models: Sequence[DType], statistics: Any) -> Sum:
        terms = []
        for index, weight in enumerate(self.weights_of(len(models)), start=1):
            terms.append((self.scale * weight, index, 0))
        return Sum(0, terms)
