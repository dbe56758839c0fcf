"""Rules: how they are read, what they speak of, and that they judge the interval and not the point."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluated_folders import TEXT, answers, both, texts, write
from holdfast.errors import ConfigError, DataError
from holdfast.evaluation.compare.decision import Adjustment
from holdfast.evaluation.compare.folders import (
    Compared,
    EntryPair,
    Matching,
    compare_entries,
    match_entries,
    read_evaluations,
)
from holdfast.evaluation.compare.gate import (
    bind_rules,
    by_rule,
    judge,
    outcome_of,
    parse_rules,
    to_record,
    verdict_of,
)
from holdfast.evaluation.compare.samples import compare_samples
from holdfast.records.comparison import Comparison, GateOutcome, Shown
from holdfast.records.evaluation import Evaluation, Metric
from holdfast.reports.decision_text import decision_in_words, reason_in_words

NAN = math.nan


def is_failed(outcomes: list[GateOutcome], *, strict: bool = False) -> bool:
    return verdict_of(outcomes, strict=strict).word == "HOLD"


def rule(text: str) -> Any:
    [found] = parse_rules([text])
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mmlu drop > 1pt", ("mmlu", "drop", ">", 1.0, "pt")),
        ("any drop>2%", ("any", "drop", ">", 2.0, "%")),
        ("keep drop > 0.5 points", ("keep", "drop", ">", 0.5, "pt")),
        ("gsm8k/exact_match,strict-match drop > 0", ("gsm8k/exact_match,strict-match", "drop", ">", 0.0, "")),
        ("prose FALL <= -1e-3 nats/token", ("prose", "fall", "<=", -1e-3, "nats/token")),
        ("my own text drop >= .5", ("my own text", "drop", ">=", 0.5, "")),
    ],
)
def test_rules_are_read(text, expected):
    found = rule(text)
    assert (found.what, found.direction, found.operator, found.threshold, found.unit) == expected
    assert found.text == text


def test_malformed_rules_are_named_all_at_once():
    wrong = ["mmlu", "mmlu drops > 1pt", "mmlu drop > much", "drop > 1pt", "mmlu drop > inf", "mmlu drop = 1pt", ""]
    with pytest.raises(ConfigError) as caught:
        parse_rules(["mmlu drop > 1pt", *wrong])
    assert len(caught.value.problems) == len(wrong)
    text = str(caught.value)
    assert "got 'drops'. Did you mean 'drop'?" in text
    assert "expected a number after '>', such as 1pt or 2%, got 'much'" in text
    assert "expected an entry, a suite or 'any' first" in text
    assert "such as 'mmlu drop > 1pt'" in text
    assert [r.text for r in parse_rules(["any drop > 1%", "any drop > 1%"])] == ["any drop > 1%"]


# ------------------------------------------------------------------------------------------------------------- binding


def evaluation(
    suite: str, name: str, *metrics: tuple[str, str, bool, float], settings: dict | None = None
) -> Evaluation:
    made = {m: Metric(value=value, n=9, unit=unit, higher_is_better=higher) for m, unit, higher, value in metrics}
    return Evaluation(
        suite=suite,
        name=name,
        kind="task",
        primary=metrics[0][0],
        metrics=made,
        settings=settings or {},
        model={},
        key="k",
    )


ACC = ("acc", "accuracy", True, 0.5)
STRICT, FLEXIBLE = (
    ("exact_match,strict-match", "exact_match", True, 0.4),
    ("exact_match,flexible-extract", "exact_match", True, 0.5),
)
NATS, PERPLEXITY = ("nats_per_token", "nats/token", False, 2.0), ("perplexity", "perplexity", False, 7.4)
COMMON = [
    evaluation("keep", "mmlu", ACC, ("acc_norm", "accuracy", True, 0.6)),
    evaluation("keep", "prose", NATS, PERPLEXITY),
    evaluation("learn", "gsm8k", STRICT, FLEXIBLE),
    evaluation("other", "two words", FLEXIBLE, STRICT, ACC),
    evaluation("other", "f1 in percent", ("f1", "f1", True, 61.5)),
]


def matching(before: list[Evaluation] = COMMON, after: list[Evaluation] | None = None) -> Matching:
    return match_entries(before, COMMON if after is None else after)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "any drop > 2%",
            {
                ("keep", "mmlu"): None,
                ("keep", "prose"): None,
                ("learn", "gsm8k"): None,
                ("other", "two words"): None,
                ("other", "f1 in percent"): None,
            },
        ),
        ("keep drop > 2%", {("keep", "mmlu"): None, ("keep", "prose"): None}),
        ("keep/mmlu drop > 1pt", {("keep", "mmlu"): None}),
        ("source/mmlu drop > 1pt", {("keep", "mmlu"): None}),
        ("target drop > 2%", {("learn", "gsm8k"): None}),
        ("mmlu acc_norm drop > 1pt", {("keep", "mmlu"): "acc_norm"}),
        ("keep/mmlu/acc_norm drop > 1pt", {("keep", "mmlu"): "acc_norm"}),
        ("any acc drop > 1pt", {("keep", "mmlu"): "acc", ("other", "two words"): "acc"}),
        ("gsm8k/exact_match,flexible-extract drop > 0", {("learn", "gsm8k"): "exact_match,flexible-extract"}),
        ("gsm8k exact_match drop > 0", {("learn", "gsm8k"): "exact_match,strict-match"}),
        ("two words drop > 1pt", {("other", "two words"): None}),
        ("two words acc drop > 1pt", {("other", "two words"): "acc"}),
        ("f1 in percent drop > 1", {("other", "f1 in percent"): None}),
    ],
)
def test_subjects_and_metrics_are_found(text, expected):
    [aim] = bind_rules([rule(text)], matching())
    assert list(aim.metrics) == list(expected)
    assert {k: aim.metrics[k] for k in list(aim.metrics)} == expected


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("mmlo drop > 1pt", ["no entry or suite 'mmlo'. Did you mean 'mmlu'?"]),
        ("zzz drop > 1%", ["There are: keep/mmlu, keep/prose", "or 'any'"]),
        (
            "mmlu acc_nrm drop > 1pt",
            ["'mmlu' has no metric 'acc_nrm'. Did you mean 'acc_norm'?", "It has: acc, acc_norm"],
        ),
        (
            "prose drop > 1pt",
            ["points (pt) apply to shares between 0 and 1, but keep/prose nats_per_token is in nats/token"],
        ),
        ("any drop > 1pt", ["keep/prose", "f1 in percent f1 is in f1"]),
        (
            "mmlu drop > 1 nats/token",
            ["expected pt, %, or the metric's own unit, got 'nats/token', but keep/mmlu acc is in accuracy"],
        ),
    ],
)
def test_rules_that_do_not_fit_are_refused_before_the_work(text, parts):
    with pytest.raises(ConfigError) as caught:
        bind_rules([rule(text)], matching())
    for part in parts:
        assert part in str(caught.value)


def test_all_misfits_at_once():
    with pytest.raises(ConfigError) as caught:
        bind_rules(parse_rules(["mmlo drop > 1pt", "mmlu drop > 1pt", "prose drop > 1pt"]), matching())
    assert [p.split(":")[0] for p in caught.value.problems] == ["rule 'mmlo drop > 1pt'", "rule 'prose drop > 1pt'"]


def test_a_metric_of_which_several_filters_exist_has_to_be_named():
    entry = evaluation("learn", "gsm8k", ACC, STRICT, FLEXIBLE)
    with pytest.raises(
        ConfigError, match="'exact_match' may mean any of exact_match,strict-match, exact_match,flexible-extract"
    ):
        bind_rules([rule("gsm8k exact_match drop > 0")], matching([entry], [entry]))


def test_entries_of_one_side_and_refused_ones():
    shots = [evaluation("keep", "quiz", ACC, settings={"num_fewshot": n}) for n in (0, 5)]
    sides = [
        [*COMMON, shots[0], evaluation("keep", "lost", ACC)],
        [*COMMON, shots[1], evaluation("learn", "new", ACC)],
    ]
    found = matching(*sides)
    for text, part in (
        ("quiz drop > 1pt", "num_fewshot: 0 and 5"),
        ("any drop > 1%", "num_fewshot: 0 and 5"),
    ):
        with pytest.raises(ConfigError, match=part):
            bind_rules([rule(text)], found)
    [aim] = bind_rules([rule("learn drop > 1%")], found)
    assert list(aim.metrics) == [("learn", "gsm8k")] and aim.missing == [("learn", "new")]


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("text", ["keep drop > 1%", "any acc drop > 1%", "lost drop > 1%", "keep/lost acc drop > 1%"])
def test_an_entry_that_only_one_of_the_two_has_fails_the_gate(text, side):
    held = [evaluation("keep", "lost", ACC), evaluation("other", "no accuracy", NATS)]
    sides = ([*COMMON, *held], COMMON)
    found = matching(*(sides if side == "before" else sides[::-1]))
    [aim] = bind_rules([rule(text)], found)
    assert aim.missing == [("keep", "lost")]
    changes = [change("mmlu"), change("prose", metric="nats_per_token"), change("two words", suite="other")]
    outcomes, decision = judge([aim], Compared(comparisons=changes, unmatched=found.unmatched, notes=[]))
    assert {o.outcome for o in outcomes[:-1]} <= {"passed"}
    assert (outcomes[-1].name, outcomes[-1].outcome) == ("lost", "not measured")
    assert outcomes[-1].why == f"only {side}" and f"measured only {side}" in reason_in_words(outcomes[-1])
    assert outcome_of(outcomes) == "not measured" and is_failed(outcomes)
    assert decision is None or not decision.shown


@pytest.mark.parametrize("text", ["keep drop < 1%", "any drop <= 2pt", "learn gain > 2pt", "mmlu gain >= 0"])
def test_a_rule_that_says_what_is_acceptable_is_refused(text):
    right = text.translate(str.maketrans("<>", "><"))
    with pytest.raises(ConfigError, match=f"this rule would fail a model for improving. Write '{right}'"):
        parse_rules([text])
    assert rule(right).text == right


# ------------------------------------------------------------------------------------------------------------- judging


def change(name: str = "mmlu", **fields: Any) -> Comparison:
    """An accuracy that did not change much, unless fields say otherwise."""
    known = {
        "suite": "keep",
        "name": name,
        "metric": "acc",
        "unit": "accuracy",
        "higher_is_better": True,
        "n": 500,
        "before": 0.5,
        "after": 0.5,
        "difference": 0.0,
        "interval": (-0.001, 0.001),
        "p_value": 1.0,
        "test": "McNemar (exact)",
    }
    return Comparison(**{**known, **fields})


def judged(text: str, comparison: Comparison) -> GateOutcome:
    values = [
        Metric(value=v, n=comparison.n, unit=comparison.unit, higher_is_better=comparison.higher_is_better)
        for v in (comparison.before,) * 2
    ]
    sides = [
        Evaluation(
            suite=comparison.suite,
            name=comparison.name,
            kind="task",
            primary=comparison.metric,
            metrics={comparison.metric: v},
            settings={},
            model={},
            key="k",
        )
        for v in values
    ]
    found = Matching(pairs=[EntryPair(before=sides[0], after=sides[1])], unmatched=[], notes=[])
    [outcome], _ = judge(bind_rules([rule(text)], found), Compared(comparisons=[comparison], unmatched=[], notes=[]))
    return outcome


def moved(low: float, high: float, **fields: Any) -> Comparison:
    """A normal difference with this interval."""
    error = (high - low) / 2 / 1.959963984540054
    return change(difference=(low + high) / 2, interval=(low, high), standard_error=error, test="normal", **fields)


@pytest.mark.parametrize(
    ("text", "interval", "outcome"),
    [
        ("mmlu drop > 1pt", (-0.03, -0.011), "failed"),
        ("mmlu drop > 1pt", (-0.03, -0.009), "undecided"),
        ("mmlu drop > 1pt", (-0.009, 0.02), "passed"),
        ("mmlu drop > 1pt", (0.02, 0.05), "passed"),
        ("mmlu drop > 0", (0.0, 0.0), "passed"),
        ("mmlu drop >= 0", (0.0, 0.0), "failed"),
        ("mmlu gain < 2pt", (0.0, 0.0), "failed"),
        ("mmlu gain < 2pt", (0.021, 0.05), "passed"),
        ("mmlu gain <= 25pt", (0.25, 0.3), "undecided"),
        ("mmlu gain < 25pt", (0.25, 0.3), "passed"),
        ("mmlu drop > 2%", (-0.02, -0.0101), "failed"),
        ("mmlu rise > 1pt", (0.02, 0.03), "failed"),
        ("mmlu fall > 1pt", (-0.03, -0.02), "failed"),
        ("mmlu drop > 0.01 accuracy", (-0.03, -0.02), "failed"),
    ],
)
def test_the_whole_interval_decides(text, interval, outcome):
    assert judged(text, moved(*interval)).outcome == outcome


def test_value_and_interval_are_in_the_rule_s_unit_and_direction():
    found = judged("mmlu drop > 1pt", moved(-0.03, -0.01))
    assert (found.value, found.interval, found.threshold, found.unit) == (
        pytest.approx(2.0),
        pytest.approx((1.0, 3.0)),
        1.0,
        "pt",
    )
    assert reason_in_words(found) == (
        "drop 2 pt [1, 3]: 1 pt is inside the interval; if the change stays as it is, about 1,100 samples would decide."
    )
    found = judged("mmlu gain < 2%", moved(-0.03, -0.01))
    assert (found.value, found.interval, found.unit) == (pytest.approx(-4.0), pytest.approx((-6.0, -2.0)), "%")
    assert (found.suite, found.name, found.metric, found.rule) == ("keep", "mmlu", "acc", "mmlu gain < 2%")
    assert math.copysign(1, judged("mmlu drop > 1pt", moved(0.0, 0.0)).value) == 1, "no minus before a zero"


def test_drop_is_worse_and_rise_is_more_whatever_is_better():
    text = {"metric": "perplexity", "unit": "perplexity", "higher_is_better": False, "before": 10.0, "after": 10.5}
    worse = moved(0.4, 0.6, name="prose", **text)
    assert [judged(f"prose {d} > 3%", worse).outcome for d in ("drop", "rise", "fall")] == [
        "failed",
        "failed",
        "passed",
    ]
    assert judged("prose gain < -3%", worse).outcome == "failed"
    assert judged("prose drop > 3%", worse).interval == pytest.approx((4.0, 6.0))
    negative = moved(-0.6, -0.4, metric="loglikelihood", unit="nats", before=-10.0, after=-10.5)
    assert judged("mmlu drop > 3%", negative).interval == pytest.approx((4.0, 6.0)), "relative to its size"


def test_without_an_interval_nothing_is_decided():
    found = judged("mmlu drop > 1pt", change(difference=-0.9, interval=(NAN, NAN), n=1))
    assert found.outcome == "undecided" and "one sample has no interval" in reason_in_words(found)
    found = judged("mmlu drop > 1%", change(before=0.0, difference=0.5, interval=(0.4, 0.6)))
    assert found.outcome == "undecided" and "a change relative to 0 is undefined" in reason_in_words(found)


def test_what_turns_out_not_to_be_comparable_stops_the_gate(tmp_path: Path):
    for folder in ("before", "after"):
        write(tmp_path / folder, "keep", "fine", answers([1, 0, 1]))
        write(tmp_path / folder, "keep", "samples", answers([1] * len(folder)))
        tokens = len(folder)
        write(tmp_path / folder, "learn", "prose", texts([30, 31, 32], tokens=tokens), metrics=TEXT, kind="perplexity")
    sides = both(tmp_path)
    found = match_entries(*(read_evaluations(f) for f in sides))
    done = compare_entries(*sides, found)
    with pytest.raises(
        DataError, match=r"rule 'any drop > 1%': keep/samples: the two evaluations did not answer the same samples"
    ):
        judge(bind_rules([rule("any drop > 1%")], found), done)
    [outcome], _ = judge(bind_rules([rule("prose drop > 200%")], found), done)
    assert (outcome.metric, outcome.outcome) == ("bits_per_byte", "passed")


def test_a_gate_is_closed_by_one_failure():
    failed, passed, undecided = (judged("mmlu drop > 1pt", moved(*i)) for i in ((-0.3, -0.2), (0.1, 0.2), (-0.1, 0.1)))
    assert (
        is_failed([passed, failed])
        and not is_failed([passed, undecided])
        and is_failed([passed, undecided], strict=True)
        and not is_failed([])
    )
    assert [outcome_of(o) for o in ([passed, failed, undecided], [passed, undecided], [passed])] == [
        "failed",
        "undecided",
        "passed",
    ]
    assert list(by_rule([failed, passed])) == ["mmlu drop > 1pt"]
    assert to_record([passed, undecided], verdict_of([passed, undecided], strict=True)) == [
        {"rule": "mmlu drop > 1pt", "outcome": "undecided", "failed": True}
    ]


# ------------------------------------------------------------------------------------------------------- one decision


def many(*intervals: tuple[float, float], rules: tuple[str, ...] = ("any drop > 1pt",), **options: Any) -> Any:
    comparisons = [moved(*interval, name=f"task{i}") for i, interval in enumerate(intervals)]
    sides = [evaluation("keep", c.name, ACC) for c in comparisons]
    found = Matching(pairs=[EntryPair(before=e, after=e) for e in sides], unmatched=[], notes=[])
    compared = Compared(comparisons=comparisons, unmatched=[], notes=[], adjustment=Adjustment(**options))
    return judge(bind_rules(parse_rules(rules), found), compared)


def test_one_of_many_that_fails_on_its_own_is_undecided_together():
    """2.25 standard errors of 0.01 beyond the threshold, one-sided p 0.0122: below 2.5 % alone and of two, not of
    twelve."""
    low, high = -0.0325 - 0.0196, -0.0325 + 0.0196
    fine = [(-0.005, 0.005)] * 11
    for others, outcome in (([], "failed"), (fine[:1], "failed"), (fine, "undecided")):
        outcomes, decision = many((low, high), *others)
        assert outcomes[0].outcome == outcome
        assert outcomes[0].p_value < 0.025
        assert outcomes[0].p_adjusted == pytest.approx(outcomes[0].p_value * (1 + len(others)))
        assert is_failed(outcomes) == (outcome == "failed") == bool(decision.shown)
        assert all(o.outcome == "passed" for o in outcomes[1:]), "what passes is not adjusted"
    assert "with 12 tests this may be chance" in reason_in_words(outcomes[0])
    assert decision_in_words(decision).startswith("No rule is shown to be broken (smallest adjusted p of 12 tests: 0.")
    assert "Holm, one-sided; at most 2.5 % of such comparisons give a false alarm" in decision_in_words(decision)
    outcomes, decision = many((low, high), *fine, family_wise="none")
    assert outcomes[0].outcome == "failed" and outcomes[0].p_adjusted == outcomes[0].p_value
    assert "without adjustment" in decision_in_words(decision)
    assert decision.shown == [Shown(suite="keep", name="task0", metric="acc", rule="any drop > 1pt")]


def test_a_rule_that_forbids_too_little_gain_is_tested_from_below():
    [found], _ = many((-0.03, -0.02), rules=("any gain < 2pt",))
    assert found.outcome == "failed" and found.p_value < 1e-3
    [found], _ = many((0.03, 0.04), rules=("any gain < 2pt",))
    assert found.outcome == "passed" and found.p_value > 0.999


@pytest.mark.slow
def test_right_at_the_threshold_a_rule_fails_as_rarely_as_it_says():
    """A true drop of exactly the threshold: each wrong certainty (failed, passed) has a chance of about 2.5 %."""
    rng = np.random.default_rng(0)
    counts = {"failed": 0, "passed": 0, "undecided": 0}
    trials, n = 400, 300
    one = evaluation("keep", "mmlu", ACC)
    for _ in range(trials):
        before = rng.random(n) < 0.6
        flips = rng.random(n)
        after = np.where(before, flips >= 0.15, flips < 0.1)  # 0.6 * 0.15 - 0.4 * 0.1 = 0.05 lost
        pair = [answers(side.astype(float)) for side in (before, after)]
        [c] = compare_samples(*pair, one, one)[:1]
        counts[judged("mmlu drop > 5pt", c).outcome] += 1
    assert counts["failed"] <= 0.05 * trials and counts["passed"] <= 0.05 * trials
    assert counts["failed"] + counts["passed"] >= 0.015 * trials, "so cautious that it is no test"
