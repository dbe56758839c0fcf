"""WiSE-FT: start and result are interpolated once, after the last step.

    theta <- alpha theta + (1 - alpha) theta_o

alpha is the weight on the NEW model, as the authors write it; or the alpha that a limit on held-out data allows (see
`rewinding`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from holdfast.config.declare import Meta
from holdfast.retention.anchor import START, Anchors, KeepAuto, anchor_problems, kept_anchor
from holdfast.retention.averages import Average, factored_problems, partners_of_zero
from holdfast.retention.held_out import DROP, points
from holdfast.retention.paths import data_problems
from holdfast.retention.protocol import ActiveMethod, NamedParams, RetentionMethod, WeightCopy
from holdfast.retention.rewinding import Rewinding

AUTO = ("limit", "metric_drop", "data", "task", "tries")
"""Parameters of WiSE-FT that belong to `alpha: auto`."""


@dataclass(frozen=True, kw_only=True)
class WiseFT(RetentionMethod):
    """Interpolates start and result once, at the end of the run; memory kept in the weights.

    References: Wortsman et al. 2021, Robust fine-tuning of zero-shot models (arXiv:2109.01903), Eq. 1; Soup to Go,
    section 4 (SFA with p = 1).
    """

    name: ClassVar[str] = "wise_ft"
    title: ClassVar[str] = "WiSE-FT"
    at_last_step: ClassVar[bool] = True
    strength: ClassVar[tuple[str, ...]] = ("alpha",)
    place: ClassVar[str] = "weights"
    turn: ClassVar[int] = 3  # the last that moves weights: `alpha: auto` measures what is returned
    summary: ClassVar[str] = "interpolate start and result once, at the end"
    source: ClassVar[str] = "Robust fine-tuning of zero-shot models, Eq. 1; Soup to Go, section 4 (SFA with p = 1)"

    alpha: Annotated[float, Meta(ge=0, le=1, expected="a number from 0 to 1, or auto")] | Literal["auto"] = 0.5
    """Weight on the fine-tuned weights; 1 is direct fine-tuning, 0 the start; auto: as large as `limit` (or
    `metric_drop`) allows, found after the last step."""
    limit: Annotated[float | None, Meta(ge=0)] = None
    """With alpha auto: how much the loss on `data` may have risen over the start's, nats per token."""
    metric_drop: Annotated[str | None, DROP] = None
    """With alpha auto, in place of limit: how much a task's metric may have dropped, in points (hundredths), such as
    '1 point'."""
    data: str = ""
    """With limit: the held-out text that is measured: file, folder or hub id."""
    task: str = ""
    """With metric_drop: the task that is measured, one of those under `evaluation:`, by its name."""
    tries: Annotated[int, Meta(ge=1)] = 8
    """With alpha auto: how many alphas are measured at most; 8 leave an interval of 1/128."""
    anchor: str = START
    """What to interpolate with: 'start', or the folder of an earlier checkpoint."""
    keep: KeepAuto = "auto"
    """Where the old weights are kept: device (a copy beside the weights), cpu (host memory), disk (a file that is
    read when needed); auto: disk for a folder, device for the start."""

    @property
    def off(self) -> bool:
        return self.alpha == 1

    def problems(self) -> list[str]:
        return self._auto_problems() + anchor_problems("wise_ft.anchor", self.anchor)

    def describe(self) -> dict[str, Any]:
        return self._without_auto(super().describe())

    def identity(self) -> dict[str, Any]:
        return self._without_auto(super().identity())

    def _without_auto(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """A given alpha is the same run whether or not alphas can also be found."""
        return parameters if self.alpha == "auto" else {k: v for k, v in parameters.items() if k not in AUTO}

    def _auto_problems(self) -> list[str]:
        """What `alpha: auto` needs, and what belongs to it alone."""
        given = [k for k in AUTO if k != "tries" and getattr(self, k) not in (None, "")]
        if self.alpha != "auto":
            return [f"wise_ft.{key}: belongs to alpha: auto, got alpha={self.alpha:g}" for key in given]
        found = data_problems("wise_ft.data", self.data)
        if (self.limit is None) == (self.metric_drop is None):
            found.append(
                f"wise_ft: alpha: auto expects one of limit and metric_drop, got "
                f"{'none' if self.limit is None else 'both'}; write for example wise_ft: {{alpha: auto, limit: 0.02, "
                f"data: old.jsonl}}"
            )
        for key, needs, what in (("limit", "data", "held-out text"), ("metric_drop", "task", "task")):
            if (getattr(self, key) is None) != (getattr(self, needs) == ""):
                missing = (
                    f"{needs}: expected the {what} of {key}" if needs not in given else f"{needs}: belongs to {key}"
                )
                found.append(f"wise_ft.{missing}, got {'nothing' if needs not in given else f'no {key}'}")
        return found

    def check_weights(self, named: NamedParams) -> list[str]:
        return factored_problems("wise_ft", named) + anchor_problems("wise_ft.anchor", self.anchor, named)

    def copies(self) -> tuple[WeightCopy, ...]:
        kept = kept_anchor(self.anchor, self.keep)
        if self.alpha != "auto":
            return (kept,)
        return kept, WeightCopy(what="end of training", place="device" if kept.place == "device" else "cpu")

    def start(self, anchors: Anchors) -> ActiveMethod:
        anchor = anchors.keep(self.anchor, self.keep)
        if self.alpha == "auto":
            return Rewinding(
                anchors.named,
                anchor,
                name=self.anchor,
                left_alone=partners_of_zero(anchor),
                limit=points(self.metric_drop) or 0.0 if self.limit is None else self.limit,
                data=self.data,
                task=self.task,
                tries=self.tries,
                on_device=kept_anchor(self.anchor, self.keep).place == "device",
            )
        return Average(anchor, 1 - self.alpha, lambda step, total: step == total, figure="wise_ft_averages")
