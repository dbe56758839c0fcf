"""The gate's benchmark: what its candidates for a test are, and that they are told apart."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def gate(script):
    return script("gate")


def test_the_quick_form_prints_every_candidate_on_every_difference(gate, monkeypatch, capsys):
    monkeypatch.setattr(gate, "DRAWS", {name: gate.DRAWS[name] for name in ("log-normal", "2 % of samples +-1")})
    assert gate.main(["--tests", "--quick"]) == 0
    title, head, *lines = capsys.readouterr().out.splitlines()
    assert title == "false alarms on the worse side, 2.5 % asked" and head.split()[2:] == list(gate.CANDIDATES)
    assert len(lines) == 3 * 3 and all(line.count(" %") >= len(gate.CANDIDATES) for line in lines)


def test_skewed_differences_tell_the_candidates_apart(gate):
    """Student's t and the percentiles raise an alarm too often, what removes skewness does not; the same each time."""
    found = gate.candidates(gate.log_normal, 200, 1000)
    assert found == gate.candidates(gate.log_normal, 200, 1000)
    assert min(found["t"], found["percentile"]) > 0.04 > max(found["ours"], found["Hall"], found["bootstrap-t"])
    nothing = gate.candidates(lambda rng, trials, n: (np.zeros((trials, n)), None), 50, 250)
    assert set(nothing.values()) == {0.0}


def test_resamples_are_those_of_the_rows(gate):
    """Against the figures of samples that were really drawn again."""
    rng = np.random.default_rng(0)
    tokens = rng.exponential(size=(3, 20)) + 1
    values, places = rng.normal(size=(3, 20)) * tokens, rng.integers(0, 20, 20)
    counts = np.bincount(places, minlength=20)[:, None].astype(float)
    figure, error, _ = gate.ratio(values, tokens, counts)
    for row in range(3):
        again, whole = values[row, places], tokens[row, places]
        mean = again.sum() / whole.sum()
        influence = (again - mean * whole) / whole.sum()
        assert figure[row, 0] == pytest.approx(mean)
        assert error[row, 0] == pytest.approx(np.sqrt((influence**2).sum() * 20 / 19))
