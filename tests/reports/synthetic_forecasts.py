"""Predictors that were fitted on nothing, for pages."""

from __future__ import annotations

from typing import Any

import numpy as np

from holdfast.records.forecast import Predictor
from holdfast.statistics.forecast import Example, fit, held_out


def predictor(*, entry: str = "kept", value: str = "", **changes: Any) -> Predictor:
    """Of losses in both units that early signs tell all but some noise of."""
    rng = np.random.default_rng(0)
    fits, tests, predicted = [], [], []
    for unit, resolution in (("nats/token", 0.02), ("points", 1.0)):
        examples = []
        for number in range(40):
            x = rng.standard_normal(2)
            loss = float(resolution * np.sinh(2 + x[0] + 0.2 * rng.standard_normal()))
            axes = {"data": f"{value}{number % 3}", "method": f"m{number}"}
            features = {"log10 KL on the text": float(x[0]), "log10 distance": float(x[1])}
            examples.append(
                Example(run=f"run {number}", entry=entry, unit=unit, features=features, loss=loss, axes=axes)
            )
        fits.append(fit(examples, resolution=resolution, level=0.9))
        found = held_out(examples, "data", resolution=resolution, level=0.9)
        assert found is not None
        tests.append(found[0])
        predicted += found[1]
    asked: dict[str, Any] = {
        "about": "made-up runs",
        "level": 0.9,
        "parameters": (1000, 2000),
        "methods": ["direct fine-tuning"],
        "runs": 40,
    }
    return Predictor(**{**asked, "fits": fits, "held_out": tests, "predicted": predicted, **changes})
