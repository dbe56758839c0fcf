"""The record of a probe reads what was written before its trends had figures."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.records.figure import Figure
from holdfast.records.probe import Trend
from holdfast.support.files import record_from, to_jsonable


@pytest.mark.parametrize("interval", [(0.01, 0.03), None])
def test_a_trend_of_before_has_its_interval_in_the_difference(interval: tuple[float, float] | None) -> None:
    about: dict[str, Any] = {"kind": "noise", "label": "", "size": 0.1, "entry": "keep/web", "unit": "nats/token"}
    about |= {"first": 0.01, "last": 0.03}
    trend = Trend(**about, difference=Figure(value=0.02, over_samples=interval))
    assert record_from(Trend, {**about, "difference": 0.02, "interval": interval}) == trend
    assert record_from(Trend, to_jsonable(trend)) == trend
    assert trend.verdict == ("cannot tell" if interval is None else "grows")
