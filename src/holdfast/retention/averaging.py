"""Averages of weights: SFA (Soup to Go), WiSE-FT, and an exponential moving average.

**Sequential fine-tuning with averaging, SFA.** Every so often, go back part of the way. After optimiser step t of T, if
`t mod round(p T) == 0` or `t == T`:

    theta <- (1 - beta) theta + beta theta_o

and training goes on from the average. theta_o is the checkpoint at the end of the previous task: by default the start
model, or a named folder. beta is the weight on the OLD model (Eq. 5 and Fig. 1; the paper's algorithm box is garbled).
There is at most one average a step, also where the period divides T. p = 1 averages once, at the end, which is WiSE-FT
with weight beta on the old model.

The optimiser's moments are kept by default, as the paper is silent; `reset_optimizer` clears them after each average.

**WiSE-FT.** The same once, after the last step, with `alpha` the weight on the NEW model, as its authors write it; or
with the alpha that a limit on held-out data allows (see `rewinding`).

**EMA.** An average m of the weights that begins at the start and follows them, m <- decay m + (1 - decay) theta; after
the last step the weights become m. Training itself is not changed.

Under LoRA the weights that are averaged are the merged ones: where theta_o's product B A is 0 because one factor is, as
at the start, the average is (1 - beta) times the product, so that factor is scaled and the other left as it is.
Otherwise the average has a higher rank than the adapter, and each factor is averaged on its own.

DoRA (W' = m (W + B A) / |W + B A|) is refused by SFA and WiSE-FT: averages of m, B and A are not those of W'. EMA is
of the trained parameters, whatever they are.

Cost of SFA and WiSE-FT: one pass over the trainable parameters per average; no second model in the forward pass. The
start is kept as a copy of the trainable parameters (`keep`: on the device, in host memory, or in a file). A named
folder is read anew at each average, tensor by tensor, each rank its own part, and nothing is kept. Of EMA: a float32
copy, and a pass a step.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from holdfast.config.declare import Meta
from holdfast.retention.anchor import (
    START,
    Anchors,
    KeepAuto,
    aligned,
    anchor_problems,
    kept_anchor,
)
from holdfast.retention.held_out import DROP, points
from holdfast.retention.method import ActiveMethod, NamedParams, Passive, RetentionMethod, StepInfo, WeightCopy
from holdfast.retention.paths import data_problems
from holdfast.retention.rewinding import Rewinding

if TYPE_CHECKING:
    import torch

    from holdfast.retention.anchor import Kept


@dataclass(frozen=True, kw_only=True)
class SequentialAveraging(RetentionMethod):
    """Averages the weights with the old model's at a fixed period; memory kept in the weights.

    References: Soup to Go, Algorithm 1 and Eq. 5.
    """

    name: ClassVar[str] = "sfa"
    title: ClassVar[str] = "SFA"
    at_last_step: ClassVar[bool] = True
    strength: ClassVar[tuple[str, ...]] = ("beta", "p")
    place: ClassVar[str] = "weights"
    turn: ClassVar[int] = 1
    summary: ClassVar[str] = "average the weights with the start's every p of the run and train on from there"
    source: ClassVar[str] = (
        "Soup to Go: Mitigating Forgetting During Continual Learning with Model Averaging, Algorithm 1 and Eq. 5"
    )

    p: Annotated[float | None, Meta(gt=0, le=1)] = None
    """Fraction of the run between averages; 0.25 when `every` is not given. 1 averages once, at the end, which is
    WiSE-FT."""
    every: Annotated[int | None, Meta(ge=1)] = None
    """Optimiser steps between averages, instead of p."""
    beta: Annotated[float, Meta(ge=0, le=1)] = 0.5
    """Weight on the OLD model in each average; 0 is direct fine-tuning."""
    previous: str = START
    """The old model: 'start', or the folder of the previous task's checkpoint."""
    reset_optimizer: bool = False
    """Clear the optimiser's moments after each average."""
    keep: KeepAuto = "auto"
    """Where the old weights are kept: device (a copy beside the weights), cpu (host memory), disk (a file that is
    read when needed); auto: disk for a folder, device for the start."""

    @property
    def off(self) -> bool:
        return self.beta == 0

    def problems(self) -> list[str]:
        found = []
        if self.p is not None and self.every is not None:
            found.append(f"sfa: expected one of p and every, got p={self.p} and every={self.every}")
        return found + anchor_problems("sfa.previous", self.previous)

    def check_run(self, *, total_steps: int | None) -> list[str]:
        if self.every is not None and total_steps is not None and self.every > total_steps:
            return [f"sfa.every: expected at most the run's {total_steps} steps, got {self.every}"]
        return []

    def period(self, total_steps: int) -> int:
        """Steps between averages, at least 1."""
        if self.every is not None:
            return self.every
        return max(1, round((0.25 if self.p is None else self.p) * total_steps))

    def averages_at(self, step: int, total_steps: int) -> bool:
        """Whether optimiser step `step` (from 1) of `total_steps` is followed by an average."""
        return step % self.period(total_steps) == 0 or step == total_steps

    def check_weights(self, named: NamedParams) -> list[str]:
        return factored_problems("sfa", named) + anchor_problems("sfa.previous", self.previous, named)

    def copies(self) -> tuple[WeightCopy, ...]:
        return (kept_anchor(self.previous, self.keep),)

    def start(self, anchors: Anchors) -> ActiveMethod:
        return _Average(
            anchors.keep(self.previous, self.keep), self.beta, self.averages_at, reset_optimizer=self.reset_optimizer
        )


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
        return _Average(anchor, 1 - self.alpha, lambda step, total: step == total, figure="wise_ft_averages")


_FACTOR = re.compile(r"\.lora_(?:embedding_)?([AB])(?=\.|$)")


def factored_problems(method: str, named: NamedParams) -> list[str]:
    """A sentence where the trained parameters are DoRA's or OSF's, whose averages are not those of the weights."""
    if any(".osf_svd_params." in name for name in named):
        return [
            f"{method}: the average of OSF's factors is not that of the weights. Train without {method} and average "
            f"the merged weights: 'holdfast merge'"
        ]
    if not any(".lora_magnitude_vector." in name for name in named):
        return []
    return [
        f"{method}: the average of a DoRA adapter's magnitudes and factors is not that of the weights. Leave out "
        f"use_dora, or train without {method} and average the merged weights: 'holdfast merge'"
    ]


def partners_of_zero(anchor: Kept) -> frozenset[str]:
    """The LoRA factors of an anchor whose partner is 0 everywhere: averaging the partner alone averages the product.

    Returns:
        Names as checkpoints have them.
    """
    import numpy as np

    from holdfast.checkpoints.live_tensors import checkpoint_names

    def is_zero(name: str) -> bool:
        if isinstance(anchor, Mapping):
            return not bool(anchor[name].any())
        entry = anchor.entries[name]  # read, not mapped: a streamed anchor's file may have no name any more
        elements = math.prod(entry.shape)
        return (
            not anchor.read(name, 0, elements, np.empty(elements * entry.dtype.itemsize, np.uint8))
            .raw.view(np.uint8)
            .any()
        )

    factors = {
        checkpoint_names(n)[0]: n
        for n in (anchor if isinstance(anchor, Mapping) else anchor.names())
        if _FACTOR.search(n)
    }
    zero = {plain for plain, name in factors.items() if is_zero(name)}

    def partner(name: str) -> str:
        return _FACTOR.sub(lambda m: m.group(0)[:-1] + ("A" if m.group(1) == "B" else "B"), name)

    return frozenset(name for name in factors if name not in zero and partner(name) in zero)


class _Average(Passive):
    def __init__(
        self,
        anchor: Kept,
        beta: float,
        averages_at: Callable[[int, int], bool],
        *,
        reset_optimizer: bool = False,
        figure: str = "sfa_averages",
    ) -> None:
        self.left_alone = partners_of_zero(anchor)
        self.anchor, self.beta, self.averages_at, self.reset_optimizer, self.figure = (
            anchor,
            beta,
            averages_at,
            reset_optimizer,
            figure,
        )
        self.count = 0

    def after_step(self, named: NamedParams, step: StepInfo) -> None:
        from holdfast.checkpoints.live import lerp_
        from holdfast.checkpoints.live_tensors import checkpoint_names

        if not self.averages_at(step.step, step.total_steps):
            return
        if isinstance(self.anchor, dict):
            self.anchor = aligned(self.anchor, named)
        lerp_({n: p for n, p in named.items() if checkpoint_names(n)[0] not in self.left_alone}, self.anchor, self.beta)
        self.count += 1
        if self.reset_optimizer and step.reset_optimizer is not None:
            step.reset_optimizer()

    def metrics(self, named: NamedParams) -> dict[str, float]:
        return {self.figure: float(self.count)}

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = int(state["count"])


@dataclass(frozen=True, kw_only=True)
class ExponentialAverage(RetentionMethod):
    """The run's result is an exponential moving average of its weights that begins at the start; memory kept in the
    weights.

    References: Polyak and Juditsky 1992, Acceleration of stochastic approximation by averaging (its exponential form,
    as usual in deep learning).
    """

    name: ClassVar[str] = "ema"
    title: ClassVar[str] = "EMA"
    at_last_step: ClassVar[bool] = True
    strength: ClassVar[tuple[str, ...]] = ("decay",)
    place: ClassVar[str] = "weights"
    turn: ClassVar[int] = 2
    summary: ClassVar[str] = "end with an exponential moving average of the weights that began at the start"
    source: ClassVar[str] = "Polyak and Juditsky 1992, Acceleration of stochastic approximation by averaging"

    decay: Annotated[float, Meta(ge=0, le=1)] = 0.999
    """Share of the average that an update keeps; 0 is direct fine-tuning."""
    every: Annotated[int, Meta(ge=1)] = 1
    """Optimiser steps between updates of the average."""

    @property
    def off(self) -> bool:
        return self.decay == 0

    def check_run(self, *, total_steps: int | None) -> list[str]:
        if total_steps is not None and self.every > total_steps:
            return [f"ema.every: expected at most the run's {total_steps} steps, got {self.every}"]
        return []

    def copies(self) -> tuple[WeightCopy, ...]:
        return (WeightCopy(what="average", dtype="float32"),)

    def start(self, anchors: Anchors) -> ActiveMethod:
        return _Shadow(
            self, {name: p.detach().to(_at_least_single(p.dtype), copy=True) for name, p in anchors.named.items()}
        )


class _Shadow(Passive):
    """The average is kept in float32 at least: at decay 0.999 an update is smaller than half a unit in the last place
    of a bfloat16 weight."""

    def __init__(self, method: ExponentialAverage, shadow: dict[str, torch.Tensor]) -> None:
        self.method, self.shadow = method, shadow

    def after_step(self, named: NamedParams, step: StepInfo) -> None:
        from holdfast.checkpoints.live import lerp_

        self.shadow = aligned(self.shadow, named)
        last = step.step == step.total_steps
        if step.step % self.method.every == 0 or last:
            lerp_(self.shadow, named, 1 - self.method.decay)
        if last:
            lerp_(named, self.shadow, 1.0)

    def metrics(self, named: NamedParams) -> dict[str, float]:
        from holdfast.checkpoints.live import Pieces

        self.shadow = aligned(self.shadow, named)
        pieces = Pieces(named, [self.shadow], ["The average"])
        return {
            "ema_distance": math.sqrt(
                pieces.total(lambda piece: (piece.weight.double() - piece.others[0].double()).square().sum())
            )
        }

    def state_dict(self) -> dict[str, Any]:
        return dict(self.shadow)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        from holdfast.retention.anchor import like

        missing = sorted(self.shadow.keys() - state.keys())
        if missing:
            raise ValueError(
                f"ema: the checkpoint lacks the average of {len(missing)} parameters: {', '.join(missing[:5])}"
            )
        self.shadow = {name: like(state[name], tensor) for name, tensor in self.shadow.items()}


def _at_least_single(dtype: torch.dtype) -> torch.dtype:
    import torch

    return dtype if dtype == torch.float64 else torch.float32
