"""What the figures of an overtraining study say."""

from __future__ import annotations

import pytest

from holdfast.papers.overtraining.record import Arm, TunedRate
from holdfast.papers.overtraining.verdicts import rate_verdict

ARM = Arm(label="a", kind="direct", rates=[1e-3, 1e-2, 1e-1])


def tuned_rates(*intervals: tuple[float, float]) -> list[TunedRate]:
    """Rates that halve when the budget doubles."""
    about = {"task": "t", "arm": "a", "edge": ""}
    return [
        TunedRate(**about, checkpoint=str(n), tokens=2.0**n, rate=1e-2 / 2**n, interval=interval)
        for n, interval in enumerate(intervals)
    ]


def test_a_rate_that_would_do_at_every_budget_is_no_trend() -> None:
    """Seeds that agree on a coarse grid have an interval of no width, which is not how well a rate is known."""

    wide = (1e-3, 1e-2)
    exponent = (-0.25, -0.25)
    why = "one rate lies in the interval of every budget"
    assert rate_verdict(ARM, tuned_rates(wide, wide, wide), exponent, None) == ("cannot tell", why)
    assert rate_verdict(ARM, tuned_rates((1e-2, 1e-1), wide, (1e-3, 3e-3)), exponent, None) == ("falls", "")


@pytest.mark.parametrize(
    ("interval", "kept", "verdict"),
    [
        ((-0.6, -0.2), "turns", "falls slowly"),
        ((-0.6, -0.2), "does not turn", "falls quickly"),
        ((-0.6, -0.2), "cannot tell", "falls"),
        ((0.2, 0.6), "turns", "rises"),
        ((-0.1, 0.1), "turns", "constant"),
        ((-9.0, 9.0), "turns", "cannot tell"),
        (None, "turns", "cannot tell"),
    ],
)
def test_the_class_of_a_rate(interval: tuple[float, float] | None, kept: str, verdict: str) -> None:
    rates = tuned_rates((1e-2, 1e-1), (1e-3, 1e-2), (1e-3, 3e-3))
    assert rate_verdict(ARM, rates, interval, kept)[0] == verdict
    assert rate_verdict(ARM, rates[:2], interval, kept) == ("cannot tell", "2 budgets")
