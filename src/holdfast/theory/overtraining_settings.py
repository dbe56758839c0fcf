"""What `theory.deep_linear` draws and `theory.overtraining_study` computes, declared once; loads no numpy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from holdfast.config.declare import MAX_SEED, Meta

GAP = 0.25
"""The logarithm of a ratio of neighbouring singular values is drawn within this share of the logarithm of `ratio`."""

SMALLEST = 0.002
"""The last singular value, where the first is 1."""

Noises = Annotated[tuple[float, ...], Meta(gt=0, le=10, least=1, metavar="X", repeatable=True)]
Pulls = Annotated[tuple[float, ...], Meta(gt=0, le=100, least=1, metavar="X", repeatable=True)]


@dataclass(frozen=True, kw_only=True)
class TasksSettings:
    """What `random_tasks` draws from, the seed aside."""

    settings_group: ClassVar[str] = "the random problems"

    dimension: Annotated[int, Meta(ge=2, le=32)] = 8
    """Inputs, hidden units and outputs; so many features there are to learn."""
    ratio: Annotated[float, Meta(gt=0, lt=1)] = 0.65
    """Each singular value of the pre-training task over the one before, about; the first is 1."""
    flatness: Annotated[float, Meta(ge=0, le=1)] = 0.5
    """How evenly the fine-tuning task weighs the features: its singular values are about those of pre-training to the
    power of 1 - X. 0: like pre-training; 1: all alike."""
    spread: Annotated[float, Meta(ge=0, le=1)] = 0.3
    """Standard deviation of the logarithms of the fine-tuning task's singular values about that."""

    def problems(self) -> list[str]:
        """What cannot be, beyond each setting's own bounds; a sentence each."""
        if self.flatness == 0 and self.spread == 0:
            return [
                "flatness, spread: with both 0 fine-tuning is pre-training over again and changes nothing. Give one."
            ]
        return []


@dataclass(frozen=True, kw_only=True)
class OvertrainingSettings(TasksSettings):
    """What `run_overtraining` computes."""

    settings_group: ClassVar[str] = "what is computed"

    gammas: Noises = (0.05, 0.075, 0.1, 0.15, 0.2)
    """Standard deviations of the noise on every entry of both factors."""
    lambdas: Pulls = (0.25, 0.5, 1.0, 2.0, 4.0)
    """Weights of the pull to the start in fine-tuning; 0 is always computed."""
    tau: Annotated[float, Meta(gt=0, le=300)] = 200.0
    """Both factors start pre-training at e^-X: the larger, the more cleanly features are learnt one after another."""
    finetune_time: Annotated[float, Meta(gt=0, le=100)] = 8.0
    """Steps of fine-tuning times their learning rate. Too short, and what was learnt has not moved to the new task; too
    long, and what was not learnt is learnt from the new task."""
    confidence: Annotated[float, Meta(gt=0, lt=1)] = 0.95
    """Level of the intervals."""
    seeds: Annotated[int, Meta(ge=1, group=TasksSettings.settings_group)] = 20
    """Problems drawn; intervals are over them."""
    seed: Annotated[int, Meta(ge=0, le=MAX_SEED, group=TasksSettings.settings_group)] = 0
    """Seed of the first problem; the others follow."""

    def problems(self) -> list[str]:
        """The same, and a smallest singular value that the start hides or that takes too long to learn."""
        found, log = super().problems(), (1 + GAP) * (self.dimension - 1) * math.log(self.ratio)
        if log < math.log(SMALLEST):
            found.append(
                f"dimension, ratio: the last singular value may be {math.exp(log):.1g}, and the last feature takes as "
                f"long as it is small; expected at least {SMALLEST:g}. Give fewer features or a larger ratio."
            )
        elif self.tau < 2 - log / 2:
            found.append(
                f"tau: expected at least {2 - log / 2:.3g}, so that e^(-2 tau) is small beside the last singular value "
                f"(down to {math.exp(log):.2g}), got {self.tau:g}. Give more, fewer features or a larger ratio."
            )
        return found
