"""What `theory.regression` draws and `theory.regression_study` computes, declared once; loads no numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from holdfast.config.declare import MAX_SEED, Meta

WEIGHTS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Lambdas unless others are asked for."""


@dataclass(frozen=True, kw_only=True)
class ProblemSettings:
    """What `random_problem` draws from, the seed aside."""

    settings_group: ClassVar[str] = "the random problems"

    dimension: Annotated[int, Meta(ge=2)] = 200
    """Parameters."""
    pretrain_rows: int = 120
    """Rows of the old data, fewer than parameters."""
    finetune_rows: int = 40
    """Rows of the new data, fewer than parameters."""
    overlap: Annotated[float, Meta(ge=0, le=1)] = 0.5
    """Share of the new inputs' squared length that lies in the span of the old rows: 0 is orthogonal to all of them."""
    decay: Annotated[float, Meta(ge=0)] = 0.0
    """The j-th feature's variance is proportional to j^-X, in both tasks; 0: all alike."""
    shift: Annotated[float, Meta(ge=0)] = 1.0
    """How far apart the parameters of the two tasks are, over the size of the old ones, both as the standard deviation
    of predictions."""
    noise: Annotated[float, Meta(ge=0)] = 0.1
    """Standard deviation of the noise in the targets, where that of the old signal is 1."""

    def problems(self) -> list[str]:
        """What cannot be, beyond each setting's own bounds; a sentence each."""
        most = self.dimension - 1
        found = [
            f"{name}: expected 1 to {most}, fewer than the dimension ({self.dimension}), got {rows}."
            for name, rows in (("pretrain_rows", self.pretrain_rows), ("finetune_rows", self.finetune_rows))
            if not 0 < rows <= most
        ]
        room = {0.0: self.dimension - self.pretrain_rows, 1.0: self.pretrain_rows}.get(self.overlap, self.dimension)
        if not found and self.finetune_rows > room:
            where = "outside" if self.overlap == 0 else "inside"
            found.append(
                f"overlap: {self.overlap:g} puts all fine-tuning rows {where} the span of the pre-training rows, which "
                f"has room for {room}, got finetune_rows {self.finetune_rows}. Give at most {room} rows, or another "
                "overlap."
            )
        return found


@dataclass(frozen=True, kw_only=True)
class ComputedSettings(ProblemSettings):
    """What `run_regression` computes, the weights of the penalties aside."""

    seeds: Annotated[int, Meta(ge=1, group=ProblemSettings.settings_group)] = 20
    """Problems drawn; intervals are over them."""
    seed: Annotated[int, Meta(ge=0, le=MAX_SEED, group=ProblemSettings.settings_group)] = 0
    """Seed of the first problem; the others follow."""
    tolerance: Annotated[float, Meta(gt=0, lt=1, group="what is computed")] = 1e-10
    """How near gradient descent must come to the closed form, relative to its norm."""
    most_steps: Annotated[int, Meta(ge=1, group="what is computed")] = 50_000
    """Gradient descent stops there at the latest; where the spectrum asks for more, its path so far is checked."""


Weights = Annotated[tuple[float, ...], Meta(gt=0, least=1, group="what is computed", metavar="X", repeatable=True)]


@dataclass(frozen=True, kw_only=True)
class RegressionSettings(ComputedSettings):
    """What `run_regression` computes."""

    weights: Weights = WEIGHTS
    """Lambdas of label annealing, rising; L2's are these times the mean squared singular value."""
    confidence: Annotated[float, Meta(gt=0, lt=1)] = 0.95
    """Level of the intervals."""
