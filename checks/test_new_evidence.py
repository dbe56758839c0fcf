"""`benchmarks/kl_predictor.py` and `benchmarks/replay_shares.py`: their figures, and what their rules say."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from holdfast.records.figure import Figure


@pytest.mark.parametrize(
    ("intervals", "said"),
    [
        ([(0.2, 0.1, 0.3), (0.2, 0.01, 0.3)], "tracks better"),
        ([(0.2, 0.1, 0.3), (0.2, -0.01, 0.3)], "cannot tell"),
        ([(0.2, 0.1, 0.3), (-0.2, -0.3, -0.1)], "does not"),
        ([(0.0, -0.05, 0.05), (0.01, -0.02, 0.09)], "does not"),
    ],
    ids=["both", "one", "below", "alike"],
)
def test_a_predictor_is_judged_on_both_tracks(script: Any, intervals: list[Any], said: str) -> None:
    assert script("kl_predictor").verdict(intervals) == said


def test_correlations_are_of_ranks_and_bootstrapped_over_runs(script: Any) -> None:
    """Forgetting that follows the KL exactly and the rate roughly; all moments of a run are drawn together."""
    bench = script("kl_predictor")
    points = []
    for number in range(12):
        for moment in (0.5, 1.0):
            forgetting = (number * 7 % 12) + moment
            figures = dict.fromkeys(bench.PREDICTORS, 0.0) | {"forward KL": math.exp(forgetting), "log rate": number}
            points.append({"method": "m", "rate": number, "seed": 0, "forgetting": forgetting, **figures})
            points[-1] |= {"reverse KL": -forgetting, "learnt": number % 3, "distance": number}
    assert bench.tracking(points, "forward KL") == pytest.approx(1.0)
    compared = bench.differences(points)
    value, low, high = compared["forward KL"]
    assert low <= value <= high and low > 0
    assert compared["log rate"] == (0.0, 0.0, 0.0) and compared["reverse KL"][2] < 0


def test_divergence_and_loss_are_those_of_the_tokens_that_are_scored(script: Any) -> None:
    bench = script("kl_predictor")
    logs = torch.tensor([[0.5, 0.5], [0.9, 0.1]]).log()
    other = torch.tensor([[0.25, 0.75], [0.9, 0.1]]).log()
    expected = (0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)) / 2
    assert bench.divergence([logs], [other]) == pytest.approx(expected, rel=1e-6)
    assert bench.loss([([1, 0, 1], 1)], [logs]) == pytest.approx(-(math.log(0.5) + math.log(0.1)) / 2, rel=1e-6)


def shares(at_one: tuple[float, float], spread: float = 0.02) -> dict[str, dict[float, Figure]]:
    figures = {}
    for kind, value in zip(("format", "skill"), at_one, strict=True):
        by_seed = {seed: value + spread * (seed - 1) for seed in range(3)}
        figures[kind] = {
            0.01: Figure.over_seeds(by_seed),
            0.1: Figure.over_seeds({s: v + 0.3 for s, v in by_seed.items()}),
        }
    return figures


@pytest.mark.parametrize(
    ("at_one", "said"),
    [((0.8, 0.3), "format cheap"), ((0.3, 0.8), "the reverse"), ((0.5, 0.45), "alike"), ((0.5, 0.3), "cannot tell")],
)
def test_replay_of_a_format_and_of_a_skill(script: Any, at_one: tuple[float, float], said: str) -> None:
    bench = script("replay_shares")
    figures = shares(at_one)
    for number, seed in enumerate((0, 1, 2)):  # the skill's seeds vary the other way, so that the pairs have a spread
        skill = figures["skill"][0.01]
        figures["skill"][0.01] = Figure.over_seeds({**skill.by_seed, seed: skill.by_seed[seed] + 0.01 * number})
    assert bench.verdict(figures) == said


def test_what_is_enough(script: Any) -> None:
    bench = script("replay_shares")
    assert bench.enough(shares((0.9, 0.6))["format"]) == 0.01
    assert bench.enough(shares((0.9, 0.6))["skill"]) == 0.1
    assert bench.enough(shares((0.9, 0.1))["skill"]) is None
