"""WiSE-FT: start and result are interpolated once, after the last step.

    theta <- alpha theta + (1 - alpha) theta_o

alpha is the weight on the NEW model, as the authors write it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from holdfast.config.declare import Meta
from holdfast.errors import Problem
from holdfast.retention.anchor import START, Anchors, KeepAuto, anchor_problems, kept_anchor
from holdfast.retention.averages import Average, factored_problems
from holdfast.retention.protocol import (
    LAST_STEP,
    ActiveMethod,
    NamedParams,
    RetentionMethod,
    WeightCopy,
)


@dataclass(frozen=True, kw_only=True)
class WiseFT(RetentionMethod):
    """Interpolates the reference (by default the initial model) and the result once, at the end of
    the run. This method works on the weights.

    References: Wortsman et al. 2021, Robust fine-tuning of zero-shot models (arXiv:2109.01903), Eq.
    1; Soup to Go, sections 2, 3 and 6.4 (SFA with p = 1).
    """

    name: ClassVar[str] = "wise_ft"
    title: ClassVar[str] = "WiSE-FT"
    needs: ClassVar[frozenset[str]] = frozenset({LAST_STEP})
    strength: ClassVar[tuple[str, ...]] = ("alpha",)
    place: ClassVar[str] = "weights"
    hook_order: ClassVar[int] = 3
    summary: ClassVar[str] = "interpolates initial and tuned weights once, at the end"
    source: ClassVar[str] = (
        "Robust fine-tuning of zero-shot models, Eq. 1; Soup to Go, sections 2, 3 and 6.4 (SFA "
        "with p = 1)"
    )

    alpha: Annotated[float, Meta(ge=0, le=1)] = 0.5
    """Weight of the fine-tuned model; 1 is direct fine-tuning, 0 the initial model."""
    reference: Annotated[str, Meta(former=("anchor",))] = START
    """Model to interpolate with: 'start' (the initial model), or the folder of an earlier
    checkpoint."""
    reference_device: KeepAuto = "auto"
    """Where to keep the old weights: device (the model's device), cpu (host memory), disk (a file
    that is read when needed). auto: disk for a folder, device for the initial model."""

    @property
    def off(self) -> bool:
        return self.alpha == 1

    def problems(self) -> list[Problem]:
        return anchor_problems("reference", self.reference)

    def check_weights(self, named: NamedParams) -> list[Problem]:
        return factored_problems("wise_ft", named) + anchor_problems(
            "reference", self.reference, named
        )

    def copies(self) -> tuple[WeightCopy, ...]:
        return (kept_anchor(self.reference, self.reference_device),)

    def start(self, anchors: Anchors) -> ActiveMethod:
        anchor = anchors.keep(self.reference, self.reference_device)
        return Average(
            anchor, 1 - self.alpha, lambda step, total: step == total, figure="wise_ft_averages"
        )
