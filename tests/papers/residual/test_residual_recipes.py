"""What the recipes at the paper's size train in, and from what text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

FOLDER = Path(__file__).resolve().parents[3] / "configs" / "residual"
FULL = sorted(path.stem for path in FOLDER.glob("*.yaml") if "toy" not in yaml.safe_load(path.read_text()))


def read(name: str) -> tuple[str, dict[str, Any]]:
    text = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    return text, yaml.safe_load(text)


@pytest.mark.parametrize("name", FULL)
def test_weights_are_trained_in_float32(name: str) -> None:
    """In bfloat16 most steps of 1e-5 are rounded away; FSDP2 casts what it trains."""
    text, settings = read(name)
    train = settings.get("train", {})
    if settings.get("budgets"):
        sharded = train.get("accelerate_config") == "fsdp2"
        assert train["dtype"] == ("bfloat16" if sharded else "float32") and not train.get("use_peft")
        assert " GB" in text and "16 bytes a parameter" in text, "the memory is said"


def test_the_news_are_the_papers() -> None:
    text, settings = read("llama3-budgets")
    assert "of all publishers" in text and "--publishers" not in text
    assert settings["minimum_characters"] / 4.5 == pytest.approx(156, rel=0.01), "the paper's shortest article"
    assert "2403.08763" in text and "replay" in text and "re-warming" in text, "the continual pre-training of S2"
    assert "retuned: {dataset_name:" in text


def test_the_small_worlds_keep_the_papers_proportions() -> None:
    text, settings = read("tiny")
    from holdfast.support.token_counts import read_tokens

    budgets = [read_tokens(budget) for budget in settings["budgets"]]
    assert [budget / budgets[0] for budget in budgets] == [1, 5, 10]
    assert len(settings["seeds"]) >= 6 and min(settings["seeds"]) > 2, "worlds 0 to 2 chose the rate"
    assert settings["retuned"] and 1 in settings["scales"] and len(settings["widths"]) >= 3
    assert "residual_rate.py" in text and "Differs from the paper" in text
