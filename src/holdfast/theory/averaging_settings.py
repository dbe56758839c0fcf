"""What `theory.averaging` draws and `theory.averaging_study` computes, declared once; loads no numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from holdfast.config.declare import MAX_SEED, Meta
from holdfast.theory.regression_settings import WEIGHTS, Weights

Periods = Annotated[tuple[float, ...], Meta(gt=0, lt=1, least=1, metavar="P", repeatable=True)]


@dataclass(frozen=True, kw_only=True)
class QuadraticsSettings:
    """What `random_quadratics` draws from, the seed aside."""

    settings_group: ClassVar[str] = "the random problems"

    dimension: Annotated[int, Meta(ge=2, le=1000)] = 40
    """Parameters."""
    decay: Annotated[float, Meta(ge=0, le=4)] = 1.0
    """The j-th curvature is j^-X, in both tasks; 0: all alike."""
    alignment: Annotated[float, Meta(ge=0, le=1)] = 0.5
    """How far both tasks feel the same directions: 1: the same ones equally much; 0: directions drawn on their own."""
    rotation: Annotated[float, Meta(ge=0, le=1)] = 1.0
    """How far the old task's directions are from single parameters: 0: each is one, so that a diagonal Fisher
    information holds all; 1: drawn at random."""


@dataclass(frozen=True, kw_only=True)
class AveragingSettings(QuadraticsSettings):
    """What `run_averaging` computes."""

    settings_group: ClassVar[str] = "what is computed"

    steps: Annotated[int, Meta(ge=1, le=10_000)] = 200
    """Steps of gradient descent on the new task, each as long as its largest curvature suggests (1 over it)."""
    p: Periods = (0.75, 0.5, 0.25, 0.17, 0.1)
    """Shares of the run between averages; 1, once at the end, and every step are always computed. Statements are about
    the smallest."""
    beta: Annotated[float, Meta(gt=0, lt=1)] = 0.5
    """Weight on the old model along p."""
    lambdas: Weights = WEIGHTS
    """Coefficients of L2 and EWC, times the mean curvature as each penalty measures it."""
    confidence: Annotated[float, Meta(gt=0, lt=1)] = 0.95
    """Level of the intervals."""
    seeds: Annotated[int, Meta(ge=1, group=QuadraticsSettings.settings_group)] = 20
    """Problems drawn; intervals are over them."""
    seed: Annotated[int, Meta(ge=0, le=MAX_SEED, group=QuadraticsSettings.settings_group)] = 0
    """Seed of the first problem; the others follow."""
