"""Which rates an overtraining study leaves out: those at which one way to fine-tune loses too much at some budget."""

from __future__ import annotations

import dataclasses
import math

import pytest

from holdfast.papers.overtraining.outcome import _without_high_rates
from holdfast.papers.overtraining.record import LeftOut
from recorded import overtraining


def left_out(nats: float) -> list[LeftOut]:
    return _without_high_rates(overtraining(), math.exp(nats)).left_out


def test_a_rate_is_left_out_of_the_way_that_loses_at_it() -> None:
    """At one budget is enough, and what another way keeps at that rate stays; what diverged is beyond any bound."""
    held = LeftOut(task="reviews", arm="held", rate=1e-4)
    assert left_out(3.59) == [LeftOut(task="reviews", arm="direct", rate=1e-4), held], "3.6 nats at the largest budget"
    assert left_out(3.61) == [held]
    assert [item.rate for item in left_out(2.99)] == [1e-5, 1e-4, 1e-5, 1e-4]
    record = _without_high_rates(overtraining(), math.exp(3.59))
    assert record.rates_left_out("reviews", "direct") == [1e-4] and record.rates_left_out("more", "direct") == []


def test_what_is_no_text_has_no_perplexity() -> None:
    plain = overtraining()
    kept = dataclasses.replace(plain.scored["reviews"][0], unit="accuracy")
    record = dataclasses.replace(plain, scored={"reviews": [kept, *plain.scored["reviews"][1:]]})
    found = _without_high_rates(record, 2.0)
    assert found.left_out == [] and "max_perplexity has no effect" in found.notes[-1]


@pytest.mark.parametrize("bound", [2.99, 3.0])
def test_a_bound_in_perplexity(bound: float) -> None:
    """The figure is then held against the bound as it is."""
    plain = overtraining()
    kept = dataclasses.replace(plain.scored["reviews"][0], unit="perplexity")
    record = dataclasses.replace(plain, scored={"reviews": [kept, *plain.scored["reviews"][1:]]})
    assert (1e-5 in _without_high_rates(record, bound).rates_left_out("reviews", "direct")) == (bound < 3.0)
