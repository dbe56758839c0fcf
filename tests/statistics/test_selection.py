"""Rules of selection: what each takes and leaves, with intervals against values known otherwise, and how firm a choice
is."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import statistics

import numpy as np
import pytest

from holdfast.errors import ConfigError
from holdfast.records.study import StudyRecord
from holdfast.statistics.gains import BOTH, NOTHING, SAMPLES, SEEDS, incomplete, mean_gain
from holdfast.statistics.percentage_points import allowance
from holdfast.statistics.rules import Rule, rule_from_config
from holdfast.statistics.selection import select
from holdfast.statistics.shares import shares
from reports.synthetic_studies import (
    compared,
    frontier,
    large,
    objective,
    one_seed,
    points_study,
    seed_run,
    trial,
)


def changed(record: StudyRecord, number: int, **fields) -> StudyRecord:
    return dataclasses.replace(
        record, trials=[dataclasses.replace(t, **fields) if t.number == number else t for t in record.trials]
    )


# -------------------------------------------------------------------------------------------------------------- gains


def test_an_interval_is_that_of_seeds_and_samples():
    gains, halves = [0.10, 0.14, 0.09], [(0.02, 0.04), (0.03, 0.04), (0.01, 0.04)]
    runs = [
        seed_run(s, [compared("prose", g + 0.02, a), compared("code", g - 0.02, b)])
        for s, (g, (a, b)) in enumerate(zip(gains, halves, strict=True))
    ]
    found = mean_gain(trial(1, "l2", "x", {}, runs), objective("keep", "prose", "code"))
    assert found.value == pytest.approx(0.11)
    assert found.by_seed == pytest.approx({0: 0.10, 1: 0.14, 2: 0.09})
    assert found.covers == BOTH
    samples = math.sqrt(0.02**2 + 0.04**2) / 2  # means over the seeds, in quadrature, over two entries
    seeds = 4.302652729749464 * statistics.stdev(gains) / math.sqrt(3)
    assert found.samples_half == pytest.approx(samples)
    assert found.half == pytest.approx(math.hypot(seeds, samples))
    assert found.samples == 800
    assert found.before == pytest.approx((2.9013 + 1.8422) / 2)
    assert found.after == pytest.approx(found.before - 0.11)  # lower is better
    assert found.interval_after == pytest.approx((found.after - found.half, found.after + found.half))


def over(*rows, seeds=None, entries=("prose",)):
    """The mean gain of one trial, a row a seed."""
    runs = [seed_run(seed, [row]) for seed, row in enumerate(rows)]
    return mean_gain(trial(1, "l2", "x", {}, runs), objective("keep", *entries), seeds=seeds)


def test_an_interval_says_which_parts_it_holds():
    def covers(*rows):
        found = over(*rows)
        return found.covers, found.interval

    nothing = {"interval": (math.nan, math.nan)}
    assert covers(compared("prose", 0.1, 0.02)) == (SAMPLES, pytest.approx((0.08, 0.12)))
    assert covers(compared("prose", 0.1, 0.02), compared("prose", 0.1, 0.02))[0] == BOTH
    assert covers(compared("prose", 0.1, **nothing), compared("prose", 0.2, **nothing))[0] == SEEDS
    assert covers(compared("prose", 0.1, **nothing)) == (NOTHING, None)


def test_intervals_at_another_confidence_are_brought_to_the_same():
    found = over(compared("prose", 0.1, 2.5758293 * 0.01, confidence=0.99))
    assert found.half == pytest.approx(1.959964 * 0.01)


def test_what_is_missing_gives_no_gain():
    row = compared("prose", 0.1)
    assert over(row) is not None
    missing = [over(row, seeds=[0, 1]), over(row, entries=("prose", "code")), over(), over(compared("prose", math.nan))]
    assert missing == [None] * 4


# --------------------------------------------------------------------------------------------------------------- rules


def test_paper_takes_the_best_source_of_those_that_improve():
    study = one_seed([(0.5, -0.3), (0.4, -0.1), (0.0, 0.2), (-0.1, 0.3), (0.2, -0.05), (0.3, -0.05)], direct=0)
    found = select(study, "paper")
    assert found.chosen == 5  # as good a source as trial 4, and the better target
    assert {d.number: d.reason for d in found.dropped} == {
        2: "learn does not improve over the initial model: gain 0 nats/token",
        3: "learn does not improve over the initial model: gain -0.1 nats/token",
    }
    assert found.candidates == [0, 1, 2, 3, 4, 5]
    assert "of 6 complete trials, 4 improve" in found.reason


@pytest.mark.parametrize(
    ("points", "how", "chosen"),
    [
        ([(0.5, 0.1), (0.4, -0.1)], {"rule": "paper"}, 0),
        ([(0.5, -0.3), (0.02, 0.1), (0.2, -0.1)], {"rule": "paper"}, 1),
        ([(0.5, -0.3), (0.02, 0.1), (0.2, -0.1)], {"rule": "paper", "strict": True}, 2),
        ([(0.5, -0.3), (0.4, -0.1), (0.3, -0.05), (0.4, -0.09), (0.2, 0.1)], {"points": 0.1}, 3),
        ([(0.5, -0.3), (0.4, -0.1), (0.3, -0.05), (0.4, -0.09), (0.2, 0.1)], {"points": 0.06}, 2),
        ([(0.5, -0.3), (0.4, -0.1), (0.3, -0.05), (0.4, -0.09), (0.2, 0.1)], {"points": 0}, 4),
        ([(0.5, -0.3), (0.4, -0.09), (0.3, -0.04)], {"points": 0.1}, 1),
        ([(0.5, -0.3), (0.4, -0.09), (0.3, -0.04)], {"points": 0.1, "strict": True}, 2),
    ],
)
def test_what_a_rule_takes(points, how, chosen):
    found = select(one_seed(points, halves=0.05, direct=0), **{"rule": "keep_within", **how})
    assert (found.chosen, found.strict) == (chosen, how.get("strict", False))


@pytest.mark.parametrize(
    ("points", "how", "reason"),
    [
        (
            [(-0.3, 0.1), (-0.1, 0.0)],
            {"rule": "paper"},
            "no trial improves learn over the initial model: "
            "trial 1 comes closest, with a learn gain of -0.1 nats/token",
        ),
        (
            [(-0.5, -0.1), (0.0, -0.2)],
            {"rule": "knee"},
            "no trial is on the Pareto frontier: "
            "the initial model is at least as good as each trial on both learn and keep",
        ),
    ],
)
def test_a_rule_says_when_there_is_nothing_to_take(points, how, reason):
    found = select(one_seed(points), **how)
    assert (found.chosen, found.reason) == (None, reason)
    assert (found.learn, found.keep, found.kept, found.avoided, found.label) == (None, None, None, None, None)
    assert [d.number for d in found.dropped] == [0, 1]


def test_without_points_a_tenth_of_what_direct_loses_is_allowed():
    within = select(one_seed([(0.5, -0.3), (0.3, -0.05), (0.2, 0.1)], direct=0), "keep_within")
    assert (within.points, within.chosen) == (pytest.approx(0.03), 2)
    assert "a tenth of direct fine-tuning's loss" in within.text


def test_a_loss_of_exactly_the_allowance_is_within_it():
    """.49 - .50 is not -0.01 in floating point."""
    row = compared("arc_easy", 0.49 - 0.50)
    assert row.gain < -0.01
    study = points_study([[(0.5, 0.0)]], keep=objective("keep", "arc_easy"))
    study = changed(study, 0, runs=[seed_run(0, [compared("answers", 0.5), row])])
    assert select(study, "keep_within", points="1pt").chosen == 0
    assert select(study, "keep_within", points="0.9pt").chosen is None


def test_ties_do_not_hang_on_the_last_bit():
    study = points_study([[(0.1, 0.1), (0.1, 0.2), (0.1, 0.3)], [(0.2, 0.3), (0.2, 0.1), (0.2, 0.2)]])
    assert select(study, "paper").chosen == 1  # equal sources, whatever the order of adding


def test_knee_takes_what_stands_out_and_never_the_start():
    study = one_seed([(1.0, -1.0), (0.75, -0.25), (0.5, -0.5), (0.2, -0.1)], direct=0)
    found = select(study, "knee")
    assert found.chosen == 1
    assert {d.number: d.reason for d in found.dropped} == {2: "trial 1 is at least as good on both learn and keep"}
    assert "farthest above the line between the frontier's end points (distance 0.35; the largest" in found.reason


@pytest.mark.parametrize(
    ("points", "chosen", "reason"),
    [
        ([(0.5, 0.1), (0.4, 0.05)], 0, "of 2 complete trials, only the chosen trial is on the Pareto frontier"),
        ([(0.5, -0.1)], 0, ""),  # the start is its other end
        ([(0.5, 0.1), (0.4, 0.2)], 1, "none lies above the line"),  # both are better than the start: no third point
        ([(1.0, -1.0), (0.3, -0.9)], 0, ""),  # worse than going back and forth between start and trial 0
    ],
)
def test_knee_of_one_and_of_two(points, chosen, reason):
    found = select(one_seed(points), "knee")
    assert found.chosen == chosen and reason in found.reason


def test_only_whole_trials_count():
    study = frontier()
    found = select(study, "paper")
    reasons = {d.number: d.reason for d in found.dropped}
    assert reasons == {
        18: "pruned: at half of seed 0 no better than the start",
        19: "failed: the loss became NaN at step 12",
        20: "its worker died; continued as trial 21",
        22: "is still running",
        23: "has not begun",
    }
    assert set(found.candidates) | set(reasons) == set(range(24))


def test_a_trial_without_a_seed_or_a_measure_is_left_out():
    study = points_study([[(0.5, -0.3)] * 2, [(0.4, 0.0)] * 2, [(0.3, 0.1)] * 2])
    whole = study.trials[2]
    first, second = whole.runs
    lacking = dataclasses.replace(second, comparisons=second.comparisons[:1])
    wrong = dataclasses.replace(second, comparisons=[second.comparisons[0], compared("prose", math.nan)])
    for changes, reason in (
        ({}, None),
        ({"runs": [first]}, "seed 1 not finished"),
        ({"runs": []}, "seeds 0, 1 not finished"),
        ({"runs": [first, lacking]}, "seed 1 has no keep/prose/nats_per_token"),
        ({"state": "failed", "reason": "no memory", "continued_by": 7}, "failed: no memory; continued as trial 7"),
        ({"runs": [first, wrong]}, "seed 1: keep/prose/nats_per_token is not finite"),
    ):
        assert incomplete(dataclasses.replace(whole, **changes), study) == reason
    assert select(changed(study, 2, runs=[first, wrong]), "paper").chosen == 1


# ------------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"rule": "papr"}, "select.rule: expected one of paper, keep_within, knee, got 'papr'"),
        ({"pionts": 1}, "select: unknown key 'pionts'. Did you mean 'points'?"),
        ({"rule": "paper", "points": 1}, "applies only to the rule 'keep_within'"),
        ({"rule": "keep_within", "points": -1}, "Write a loss without a minus sign"),
        ({"rule": "keep_within", "points": "much"}, "got 'much'"),
        ({"rule": "keep_within", "points": math.nan}, "got nan"),
        ({"rule": "keep_within", "points": "1.2.3pt"}, "got '1.2.3pt'"),
    ],
)
def test_a_mistake_of_a_rule(value, problem):
    with pytest.raises(ConfigError, match=re.escape(problem)):
        rule_from_config(value)


def test_rules_that_are_right():
    whole = {"rule": "keep_within", "points": "1pt", "strict": True}
    assert (rule_from_config({}), rule_from_config(whole)) == (Rule(), Rule(**whole))


def test_points_in_the_unit_of_the_source():
    accuracy, nats = objective("keep", "arc_easy"), objective("keep", "prose")
    assert {allowance(loss, accuracy) for loss in ("1pt", "1 point", 0.01, "0.01")} == {0.01}
    assert allowance(2, nats) == 2.0
    with pytest.raises(ConfigError, match="in percentage points, but prose is in nats/token"):
        allowance("1pt", nats)
    with pytest.raises(ConfigError, match="write '1pt'"):
        allowance(1.0, accuracy)
    assert allowance(1.0, accuracy, [55.0, 61.2]) == 1.0  # an accuracy in percent is no share
    with pytest.raises(ConfigError, match="write '1pt'"):
        select(points_study([[(0.1, 0.1)]], keep=accuracy), "keep_within", points=1.0)


# ---------------------------------------------------------------------------------------------------- trust in a choice


@pytest.mark.parametrize(
    ("rule", "strict"),
    [("paper", False), ("paper", True), ("keep_within", False), ("keep_within", True), ("knee", False)],
)
def test_stability_is_that_of_all_draws_one_by_one(rule, strict):
    rng = np.random.default_rng(2)
    points = [[(0.5, -0.3)] * 3] + [
        [(0.3 + rng.normal(0, 0.2), -0.1 + rng.normal(0, 0.1)) for _ in range(3)] for _ in range(6)
    ]
    study = points_study(points, halves=0.01, direct=0)
    points_given = None if rule != "keep_within" else 0.1
    found = select(study, rule, points=points_given, strict=strict)
    chosen: dict[int | None, int] = {}
    for draw in itertools.product(range(3), repeat=3):
        drawn = points_study([[gains[i] for i in draw] for gains in points], halves=0.01, direct=0)
        number = select(drawn, rule, points=points_given, strict=strict).chosen
        chosen[number] = chosen.get(number, 0) + 1
    assert found.stability == pytest.approx({k: v / 27 for k, v in chosen.items() if k is not None})
    assert found.stability_none == pytest.approx(chosen.get(None, 0) / 27)
    assert found.draws == 27
    assert list(found.stability.values()) == sorted(found.stability.values(), reverse=True)


@pytest.mark.parametrize(("seeds", "draws"), [(5, 5**5), (7, 2000)])
def test_seeds_are_enumerated_or_drawn_the_same_each_time(seeds, draws):
    study = large(12, seeds=range(seeds))
    found = select(study, "paper")
    assert found == select(study, "paper")
    assert found.draws == draws
    assert sum(found.stability.values()) + (found.stability_none or 0) == pytest.approx(1)


def test_a_rule_is_scored_on_the_seed_left_out():
    points = [[(0.5, -0.3)] * 3, [(0.4, 0.00), (0.4, -0.2), (0.4, -0.1)], [(0.3, -0.12), (0.3, -0.05), (0.3, -0.12)]]
    found = select(points_study(points, direct=0), "paper")
    assert found.left_out == {0: 2, 1: 1, 2: 2}
    assert found.rule_keep.by_seed == pytest.approx({0: -0.12, 1: -0.2, 2: -0.12})
    assert found.rule_learn.by_seed == pytest.approx({0: 0.3, 1: 0.4, 2: 0.3})
    half = 4.302652729749464 * statistics.stdev([-0.12, -0.2, -0.12]) / math.sqrt(3)
    assert found.rule_keep.value == pytest.approx(-0.44 / 3)
    assert found.rule_keep.interval == pytest.approx((-0.44 / 3 - half, -0.44 / 3 + half))


def by_quiz(points, **changes):
    """A study of these (target, source, quiz) gains, the same for each seed: as it is, and chosen by `quiz`."""
    study = points_study([[(t, k)] * 3 for t, k, _ in points], **changes)
    for trial_, (_, _, quiz) in zip(study.trials, points, strict=True):
        for run in trial_.runs:
            run.comparisons.append(compared("quiz", quiz))
    return study, dataclasses.replace(study, validation=objective("validation", "quiz"))


@pytest.mark.parametrize(
    ("rule", "by_target", "by_validation"),
    [
        ({"rule": "paper"}, 3, 2),  # 3 improves the target alone, 2 the validation alone
        ({"rule": "keep_within", "points": 0.15}, 1, 2),
        ({"rule": "knee"}, 1, 2),
    ],
)
def test_validation_chooses_and_the_target_reports(rule, by_target, by_validation):
    """The figures of what was chosen, of the rule on seeds left out and of its shares are the target's own."""
    points = [(0.5, -0.3, 0.2), (0.4, -0.12, 0.05), (-0.01, -0.1, 0.3), (0.1, -0.02, -0.1)]
    own, held_out = (select(study, **rule) for study in by_quiz(points, direct=0))
    assert (own.chosen, own.validation) == (by_target, None)
    assert (held_out.chosen, held_out.validation) == (by_validation, "quiz")
    target, source, _ = points[by_validation]
    assert held_out.learn is not None and held_out.keep is not None and held_out.rule_learn is not None
    assert (held_out.learn.value, held_out.keep.value) == pytest.approx((target, source))
    assert held_out.rule_learn.by_seed == pytest.approx(dict.fromkeys(range(3), target))
    assert held_out.left_out == dict.fromkeys(range(3), by_validation)
    assert held_out.kept is not None and held_out.kept.value == pytest.approx(target / 0.5)
    if rule["rule"] == "paper":
        assert "3 improve validation over the initial model" in held_out.reason
        assert held_out.dropped[0].reason == "validation does not improve over the initial model: gain -0.1 nats/token"


def test_validation_chooses_direct_fine_tunings_rate():
    own, held_out = by_quiz([(0.5, -0.3, 0.1), (0.4, -0.2, 0.2), (0.3, -0.1, 0.3)])
    directs = [*(dataclasses.replace(t, kind="direct") for t in own.trials[:2]), own.trials[2]]
    own, held_out = (dataclasses.replace(s, trials=directs) for s in (own, held_out))
    assert own.direct is directs[0] and held_out.direct is directs[1]
    assert [shares(directs[2], s)[0].value for s in (own, held_out)] == pytest.approx([0.3 / 0.5, 0.3 / 0.4])
    for run in directs[1].runs[:1]:
        run.comparisons.pop()
    assert held_out.direct is directs[0], "a rate that was not measured by it is not chosen by it"
    assert incomplete(directs[1], held_out) == "seed 0 has no learn/quiz/acc" and incomplete(directs[1], own) is None


def test_one_seed_gives_no_stability_and_says_why():
    found = select(one_seed([(0.5, -0.3), (0.4, -0.1)], direct=0, halves=0.01), "paper")
    assert (found.stability, found.stability_none, found.rule_learn, found.rule_keep) == (None,) * 4
    reason = "the study has one seed, so the effect of another seed on the choice is unknown"
    assert (found.left_out, found.seeds_reason) == ({}, reason)
    assert found.learn.covers == SAMPLES
