"""Parameters that several merge methods have: one weight a model, one number a model, whose
semantics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from holdfast.checkpoints.methods.protocol import MergeMethod
from holdfast.config.declare import Meta
from holdfast.errors import Problem

Semantics = Literal["original", "mergekit"]
"""As the paper's authors do it, or as mergekit 0.1.5 does."""
Each = float | tuple[float, ...]
"""A number for all models, or one a model."""


def of_each(value: Each, models: int) -> tuple[float, ...]:
    """A parameter's value for each model."""
    return value if isinstance(value, tuple) else (value,) * models


def each_problems(name: str, value: Each | None, models: int | None) -> list[Problem]:
    """A sentence where a parameter has a value for each of another number of models."""
    if models is None or not isinstance(value, tuple) or len(value) == models:
        return []
    return [
        Problem(
            name, f"expected one number, or one for each of the {models} models, got {len(value)}"
        )
    ]


def read_weights(value: Any) -> tuple[float, ...]:
    """Weights as a YAML or a command line has them: numbers, one number, or text such as "0.5,
    1e-1".

    Raises:
        ValueError: something that is no number, or nothing.
    """
    words: list[Any] = []
    for item in value if isinstance(value, (list, tuple)) else [value]:
        words += item.replace(",", " ").split() if isinstance(item, str) else [item]
    if not words or any(isinstance(word, bool) for word in words):
        raise ValueError
    return tuple(float(word) for word in words)


def weights_schema() -> dict[str, Any]:
    """JSON Schema of weights."""
    return {"type": ["array", "string", "number", "null"], "items": {"type": ["number", "string"]}}


@dataclass(frozen=True, kw_only=True)
class WeightedMethod(MergeMethod):
    """A method with one weight a model."""

    mean: ClassVar[bool] = False
    """Whether the weights are those of a mean: each 0 or more, and not all 0."""

    weights: Annotated[
        tuple[float, ...] | None,
        Meta(
            parse=read_weights,
            expected="numbers, one per model (on a command line in the order of the models)",
            metavar="W",
            repeatable=True,
            json_schema=weights_schema,
        ),
    ] = None
    """One weight per model, in the order of the models; default: equal weights."""

    def problems(self, models: int | None = None) -> list[Problem]:
        return super().problems(models) + _weight_problems(self.weights, models, mean=self.mean)

    def weights_of(self, models: int) -> tuple[float, ...]:
        """The weights as given, or 1 each."""
        return (1.0,) * models if self.weights is None else tuple(self.weights)


def _weight_problems(
    weights: Sequence[float] | None, models: int | None, *, mean: bool
) -> list[Problem]:
    """Sentences on weights: one a model, finite, and for a `mean` 0 or more with a sum above 0."""
    if weights is None:
        return []
    listed = ", ".join(f"{weight:g}" for weight in weights)
    texts = []
    if models is not None and len(weights) != models:
        texts.append(
            f"expected one weight for each of the {models} models, got {len(weights)} ({listed})"
        )
    if not all(math.isfinite(weight) for weight in weights):
        texts.append(f"expected finite numbers, got {listed}")
    elif mean and any(weight < 0 for weight in weights):
        texts.append(
            f"expected 0 or more for a mean, got {listed}. To subtract models, use task_arithmetic"
        )
    elif mean and not sum(weights) > 0:
        texts.append(f"expected a sum above 0, got {listed}")
    return [Problem("weights", text) for text in texts]
