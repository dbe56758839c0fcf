"""One decision over many entries: how often equal models fail, and what is said where nothing is shown."""

from __future__ import annotations

import numpy as np
import pytest

from evaluated_folders import TEXT, answers, both, texts, write, write_average
from holdfast.evaluation.compare.decision import Adjustment, with_decision
from holdfast.evaluation.compare.folders import compare_entries, compare_folders, match_entries, read_evaluations
from holdfast.evaluation.compare.gate import bind_rules, judge, parse_rules
from holdfast.evaluation.compare.samples import ComparisonOptions, compare_samples
from holdfast.records.comparison import Comparison
from holdfast.records.evaluation import Evaluation, Metric
from holdfast.reports.decision_text import decision_in_words


def entry(place: int, rng: np.random.Generator, *, loss: float = 0.0, mixed: bool = False, n: int = 200) -> Comparison:
    """Two noisy copies of a model on one benchmark: right / wrong answers, or scores where `mixed`."""
    skill = rng.normal(size=n)
    sides = [skill + rng.normal(size=n) - shift for shift in (0.0, loss)]
    score = mixed and place % 2
    values = [1 / (1 + np.exp(-s)) if score else (s > 0).astype(float) for s in sides]
    metric, unit = ("f1", "f1") if score else ("acc", "accuracy")
    rows = [[{"doc": str(i), metric: float(v)} for i, v in enumerate(side)] for side in values]
    known = {metric: Metric(value=0.5, n=n, unit=unit, higher_is_better=True)}
    side = Evaluation(
        suite="s", name=f"e{place}", kind="task", primary=metric, metrics=known, settings={}, model={}, key="k"
    )
    [found] = compare_samples(*rows, side, side)
    return found


def test_a_loss_among_eleven_that_kept_is_named():
    rng = np.random.default_rng(0)
    found, decision = with_decision([entry(i, rng, loss=1.0 if i == 3 else 0.0) for i in range(12)], Adjustment())
    assert decision is not None and [loss.name for loss in decision.shown] == ["e3"]
    assert decision_in_words(decision).startswith(
        "A loss is shown on 1 of 12 entries: s/e3 (smallest adjusted p of 12 tests: below"
    )
    assert found[3].p_adjusted is not None and found[3].p_adjusted < 0.025 <= min(
        c.p_adjusted or 0.0 for i, c in enumerate(found) if i != 3
    )


def test_what_is_not_shown_says_what_would_have_been():
    rng = np.random.default_rng(0)
    alone, _ = with_decision([entry(0, rng)], Adjustment())
    many, _ = with_decision([entry(i, np.random.default_rng(0)) for i in range(12)], Adjustment())
    one, of_many = alone[0], many[0]
    assert one.verdict == of_many.verdict == "not shown" and one.interval == of_many.interval
    assert one.detectable is not None and of_many.detectable is not None and one.needed is not None
    # (1.96 + 0.84) sqrt(psi / n) for one test, (2.86 + 0.84) sqrt(psi / n) at 2.5 % / 12
    psi = ((one.flips_lost or 0) + (one.flips_gained or 0) + 0.5) / 201
    assert one.detectable == pytest.approx(2.80 * (psi / 200) ** 0.5, rel=0.03)
    assert of_many.detectable == pytest.approx(3.71 * (psi / 200) ** 0.5, rel=0.03)
    assert one.needed == pytest.approx(2.80**2 * psi / 0.01**2, rel=0.01)
    assert (of_many.needed or 0) > one.needed
    kept = [c for c in many if c.verdict != "not shown"]
    assert all(c.detectable is None and c.needed is None for c in kept)


@pytest.mark.parametrize("method", ["holm", "max_t", "none"])
def test_folders_are_one_family_and_rules_another(tmp_path, method):
    rng = np.random.default_rng(0)
    for folder, shift in (("before", 0.0), ("after", 0.4)):
        for name in ("one", "two"):
            acc = (rng.random(300) < 0.7).astype(float)
            write(tmp_path / folder, "keep", name, answers(acc))
        write(tmp_path / folder, "keep", "prose", texts(30 + shift + rng.normal(0, 1, 40)), metrics=TEXT)
        write_average(tmp_path / folder, [("keep", "one", "acc"), ("keep", "two", "acc")])
    sides = both(tmp_path)
    matching = match_entries(*(read_evaluations(f) for f in sides))
    options = ComparisonOptions(family_wise=method, resamples=500)
    found = compare_entries(*sides, matching, options)
    leading = [c for c in found.comparisons if c.primary]
    assert found.decision is not None and found.decision.tests == len(leading) == 4
    assert all((c.p_adjusted is not None) == c.primary for c in found.comparisons)
    gates, decision = judge(bind_rules(parse_rules(["any drop > 50%", "one drop > 1pt"]), matching), found)
    assert decision is not None and decision.tests == len(gates) == 5 and decision.about == "rules"
    assert compare_folders(*sides, options)[0] == leading
