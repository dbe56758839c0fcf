"""Folders with a config.json and no weights, and estimates of runs on them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_configs import config_of


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    """Writes config.json alone and gives the folder."""

    def make(family: str = "llama", **changes: Any) -> Path:
        place = tmp_path / f"{family}-{len(list(tmp_path.iterdir()))}"
        config_of(family, **changes).save_pretrained(place)
        return place

    return make


@pytest.fixture
def estimate_of(folder: Callable[..., Path]) -> Callable[..., Any]:
    """An estimate of a run on a small model; keys of `estimate` go to it, all others are training settings."""
    from holdfast.runs.cost.estimate import estimate
    from holdfast.runs.cost.request import planned_config

    own = ("tokens", "mean_length", "lengths", "gpus", "utilisation", "device")

    def make(family: str = "llama", *, model: Path | None = None, **settings: Any) -> Any:
        given = {k: settings.pop(k) for k in own if k in settings}
        if "lengths" not in given and "tokens" not in given and "max_steps" not in settings:
            given["tokens"] = 1e6
        place = model or folder(family)
        planned = planned_config({"model_name_or_path": str(place), "max_length": 128, **settings}, data_needed=False)
        return estimate(planned.config, model=planned.model, autocast=planned.autocast, tf32=planned.tf32, **given)

    return make
