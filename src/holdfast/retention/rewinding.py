"""WiSE-FT whose alpha is found after the last step: the end is stepped back towards the start until what was lost on
held-out data is within a limit.

    theta(alpha) = (1 - alpha) theta_o + alpha theta            alpha as large as the limit allows

Each try sets the weights and measures once: alpha 1 first, and where that is beyond the limit, halves of what lies
between the largest alpha found within it and the smallest found beyond. `n` tries leave an interval of 2^(1 - n). That
loss rises with alpha is a guess, not a condition: what is returned was measured, and was within the limit. Alpha 0 is
the anchor, which is within the limit by definition where it is the start; a named one is measured before training, and
refused where it is not.

The tries are one `after_step`, so a run that is interrupted in the middle takes the last steps again and comes to the
same alpha. All ranks measure the same figures and so take the same way.

Cost: an evaluation of the held-out data at the start and one a try, and during the tries a copy of the end of training,
on the device or in host memory (where `keep` says disk, too). See "Rewinding" in PEFT-Arena (arXiv:2605.28819), which
goes through alphas in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.errors import ConfigError, TrainingDiverged
from holdfast.retention.anchor import START, aligned
from holdfast.retention.held_out import check_questions, paired_drop
from holdfast.retention.protocol import NamedParams, Passive, StepInfo
from holdfast.retention.services import Host

if TYPE_CHECKING:
    import torch
    from datasets import Dataset

    from holdfast.retention.anchor import Kept


class Try(NamedTuple):
    """One alpha, measured."""

    alpha: float
    lost: float
    """In the limit's unit."""


def step_back(lost: Callable[[float], float], *, limit: float, tries: int) -> tuple[float, list[Try]]:
    """The largest alpha of those tried whose loss is within the limit, 0 where none is; and all that were tried.

    Args:
        lost: what is lost at an alpha, at most `limit` at 0; called once a try.
        limit: in the same unit.
        tries: at most so many, at least 1.
    """
    within, beyond, alpha = 0.0, 1.0, 1.0
    tried: list[Try] = []
    for _ in range(tries):
        tried.append(Try(alpha, lost(alpha)))
        if tried[-1].lost <= limit:
            within = alpha
        else:
            beyond = alpha
        if within == beyond:
            break
        alpha = (within + beyond) / 2
    return within, tried


class Rewinding(Passive):
    """What WiSE-FT with `alpha: auto` holds during a run.

    Args:
        named: the trained parameters, at the start.
        anchor: theta_o.
        name: of the anchor, "start" or a folder.
        left_alone: parameters, by the names that checkpoints have, that are not interpolated.
        limit: of what may be lost, nats per token on `data`, or points of `task`.
        data: held-out text; empty where a task is measured.
        task: a task that the run can score; empty where text is measured.
        tries: see `step_back`.
        on_device: whether the end of training is kept beside the parameters during the tries, else in host memory.
    """

    def __init__(
        self,
        named: NamedParams,
        anchor: Kept,
        *,
        name: str,
        left_alone: frozenset[str],
        limit: float,
        data: str,
        task: str,
        tries: int,
        on_device: bool,
    ) -> None:
        self._named, self._anchor, self._name, self._left_alone = named, anchor, name, left_alone
        self._limit, self._data, self._task, self._tries, self._on_device = limit, data, task, tries, on_device
        self._unit = "points" if task else "nats per token"
        self._host: Host | None = None
        self._rows: Dataset | None = None
        self._start_ce = 0.0
        self._start_scores: list[float] = []
        self._alpha: float | None = None
        self._tried: list[Try] = []

    def prepare(self, host: Host) -> None:
        """Measures the start, and an anchor that is another model.

        Raises:
            ConfigError: the anchor itself has lost more than the limit, or the limit is less than one question.
        """
        self._host = host
        if self._task:
            self._start_scores = list(host.scores(self._task))
            check_questions("wise_ft.metric_drop", self._limit, len(self._start_scores), task=self._task)
        else:
            self._rows = host.rows(self._data)
            self._start_ce = host.mean_loss(self._rows).ce
        if self._name != START:
            end = self._copied(self._named)
            self._go_to(self._named, end, 0.0)
            try:
                lost = self._lost()
            finally:
                self._go_to(self._named, end, 1.0)
            if lost > self._limit:
                raise ConfigError(
                    f"wise_ft.{'metric_drop' if self._task else 'limit'}: expected an anchor that keeps it, got one "
                    f"that has lost {lost:.4g} {self._unit} itself ({self._name}), {self._limit:g} are allowed; no "
                    f"alpha is sure to do. Allow more, or step back to the start (leave anchor out)."
                )
        where = self._data or f"{len(self._start_scores)} questions of {self._task}"
        host.say(f"wise_ft: alpha is found after the last step: at most {self._limit:g} {self._unit} lost on {where}.")
        self._named = {}

    def after_step(self, named: NamedParams, step: StepInfo) -> None:
        if step.step != step.total_steps:
            return
        if isinstance(self._anchor, dict):
            self._anchor = aligned(self._anchor, named)
        end = self._copied(named)

        def lost(alpha: float) -> float:
            self._go_to(named, end, alpha)
            return self._lost()

        self._alpha, self._tried = step_back(lost, limit=self._limit, tries=self._tries)
        if self._alpha != self._tried[-1].alpha:
            self._go_to(named, end, self._alpha)
        assert self._host is not None  # prepared
        self._host.say(f"wise_ft: {self._summary()}")

    def metrics(self, named: NamedParams) -> dict[str, float]:
        if self._alpha is None:
            return {}
        known = {t.alpha: t.lost for t in self._tried}
        return {
            "wise_ft_alpha": self._alpha,
            **({"wise_ft_lost": known[self._alpha]} if self._alpha in known else {}),
        }

    def outcome(self) -> dict[str, Any]:
        if self._alpha is None:
            return {}
        return {
            "alpha": self._alpha,
            "limit": self._limit,
            "unit": self._unit,
            "tries": [t._asdict() for t in self._tried],
            **({"note": f"WiSE-FT: {self._summary()}"} if self._alpha == 0 else {}),
        }

    def state_dict(self) -> dict[str, Any]:
        return {"alpha": self._alpha, "tried": [list(t) for t in self._tried]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._alpha, self._tried = state["alpha"], [Try(*t) for t in state["tried"]]

    def _summary(self) -> str:
        found = {t.alpha: t.lost for t in self._tried}
        count = f"{len(self._tried)} {'try' if len(self._tried) == 1 else 'tries'}"
        if self._alpha in found:
            at_end = "" if self._alpha == 1 else f"; {found[1.0]:.4g} at alpha 1"
            lost = f"{found[self._alpha]:.4g} of {self._limit:.4g} {self._unit} lost"
            return f"alpha {self._alpha:.4g} after {count}: {lost}{at_end}."
        alpha, lost_there = self._tried[-1]
        back = "the start" if self._name == START else self._name
        return (
            f"none of {count} was within the limit: {lost_there:.4g} of {self._limit:.4g} {self._unit} are lost at "
            f"alpha {alpha:.4g} still. The result is {back} (alpha 0), and nothing of the training is left in it. "
            f"Allow more, give more tries, or train with a method that keeps more on the way, such as label_annealing."
        )

    def _copied(self, named: NamedParams) -> dict[str, torch.Tensor]:
        """This rank's parts of the parameters, copied."""
        from holdfast.checkpoints.live_tensors import LiveTensor

        parts = {name: LiveTensor(name, p, ()).local() for name, p in named.items()}
        return {n: p.to(p.device if self._on_device else "cpu", copy=True) for n, p in parts.items()}

    def _go_to(self, named: NamedParams, end: Mapping[str, torch.Tensor], alpha: float) -> None:
        """Sets the weights between the anchor (0) and `end` (1): the bits of `alpha` given as a number."""
        from holdfast.checkpoints.live import lerp_
        from holdfast.checkpoints.live_tensors import LiveTensor, checkpoint_names

        for name, parameter in named.items():
            LiveTensor(name, parameter, ()).local().copy_(end[name])
        moving = {n: p for n, p in named.items() if checkpoint_names(n)[0] not in self._left_alone}
        lerp_(moving, self._anchor, 1 - alpha)

    def _lost(self) -> float:
        """What the weights as they are have lost; the same on all ranks, all of which have to call it.

        Raises:
            TrainingDiverged: it is not finite.
        """
        assert self._host is not None  # prepared
        if self._rows is None:
            value, _ = paired_drop(self._start_scores, self._host.scores(self._task), task=self._task)
        else:
            value = self._host.mean_loss(self._rows).ce - self._start_ce
        if not math.isfinite(value):
            raise TrainingDiverged(
                f"wise_ft: expected a finite loss on held-out data, got {value:g}. Lower the learning rate, or check "
                f"the data that alpha is found on."
            )
        return value
