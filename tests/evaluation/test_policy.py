"""A policy: what may be lost on which entry, what follows, and losses that somebody accepted."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluated_folders import TEXT, answers, texts, write
from holdfast.errors import ConfigError
from holdfast.evaluation.compare.policy import Policy, model_of, read_policy
from holdfast.evaluation.compare.request import CompareSettings, Side
from holdfast.evaluation.compare.result import Result, compare_sides
from holdfast.records.evaluation import EvaluationFolder
from holdfast.records.margins import StatedMargins
from holdfast.reports.decision_text import reason_in_words, verdict_in_words

RNG = np.random.default_rng(0)
HARD = RNG.random(2000)
NOISE = RNG.normal(0.0, 0.02, 200)


def model(folder: Path, *, quiz: float = 0.6, prose: float = 3.0, riddles: float | None = 0.5) -> EvaluationFolder:
    """A quiz of 2,000 questions and riddles of 40, of which a share is right, and prose."""
    write(folder, "keep", "quiz", answers((quiz > HARD).astype(float)))
    if riddles is not None:
        write(folder, "keep", "riddles", answers((HARD[:40] < riddles).astype(float)))
    nats = 50 * (prose + NOISE * (prose != 3.0))
    return write(folder, "learn", "prose", texts(nats), metrics=TEXT, kind="perplexity")


def compared(tmp_path: Path, text: str, *, weights: str = "base", **after: Any) -> Result:
    policy = tmp_path / "gate.yaml"
    policy.write_text(text)
    before = model(tmp_path / weights)
    sides = [Side(folder=before, label="base"), Side(folder=model(tmp_path / "after", **after), label="tuned")]
    return compare_sides(sides, [], CompareSettings(policy=policy), read_policy(policy))


def outcomes(result: Result) -> dict[str, str]:
    return {f"{gate.suite}/{gate.name}".strip("/"): gate.outcome for gate in result.gates}


def word(result: Result) -> str:
    assert result.verdict is not None
    return result.verdict.word


QUIZ = "entries: {keep/quiz: {margin: 2pt}}\n"


@pytest.mark.parametrize(("quiz", "expected"), [(0.6, "SHIP"), (0.59, "SHIP"), (0.52, "HOLD"), (0.582, "CANNOT TELL")])
def test_a_critical_entry_ships_only_where_it_is_shown_to_have_kept_enough(tmp_path, quiz, expected):
    result = compared(tmp_path, QUIZ, quiz=quiz)
    assert word(result) == expected
    assert result.failed == (expected == "HOLD")
    assert verdict_in_words(result.verdict).startswith(f"{expected}: ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("entries: {keep/quiz: {margin: 2pt, tier: advisory}}", "SHIP"),
        ("entries: {keep/quiz: {margin: 2pt, tier: supporting}}", "HOLD"),
        ("entries: {keep/quiz: {margin: 2pt, tier: supporting}}\nsupporting_losses: 2", "SHIP"),
        ("entries: {keep/quiz: 2pt, any: {tier: advisory}}", "HOLD"),
        ("entries: {keep/quiz: 20pt}", "SHIP"),
        ("entries: {keep: 20pt, quiz: 2pt}", "HOLD"),
        ("entries: {quiz: 20%}", "SHIP"),
        ("entries: {quiz: 5%}", "HOLD"),
        ("entries: {any: [20pt, 5%]}\nfail_if: ['quiz drop > 2pt']", "HOLD"),
        ("entries: {riddles: {margin: 20pt, alpha: 0.2}}", "SHIP"),
        ("entries: {prose: '0.01 nats/token'}", "SHIP"),
        ("entries: {'prose': {margin: 1%, metric: perplexity}}", "SHIP"),
    ],
)
def test_tiers_and_margins_decide_what_follows_from_eight_points(tmp_path, text, expected):
    assert word(compared(tmp_path, text, quiz=0.52)) == expected


def test_the_name_that_is_closest_decides(tmp_path):
    result = compared(tmp_path, "entries: {any: 50%, keep: 30pt, quiz: 3pt, keep/riddles: {tier: advisory}}")
    found = {gate.name: (gate.threshold, gate.unit, gate.tier) for gate in result.gates}
    assert found == {
        "quiz": (3.0, "pt", "critical"),
        "riddles": (1.0, "pt", "advisory"),
        "prose": (50.0, "%", "critical"),
    }


@pytest.mark.parametrize(
    ("words", "threshold"),
    [
        (["1pt", "5%"], (1.0, "pt")),
        (["5%"], (5.0, "%")),
        (["0.02 accuracy", "1pt"], (0.02, "accuracy")),
        (["0"], (0.0, "")),
        (["0.02 nats/token"], None),
    ],
)
def test_a_stated_margin_is_the_one_that_fits_or_none(words, threshold):
    assert StatedMargins(tuple(words)).threshold("accuracy", "acc", 0.5, 0.4) == threshold


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("entries: {riddles: 20pt}", "HOLD"),
        ("entries: {keep: 20pt}", "HOLD"),
        ("entries: {riddles: {margin: 20pt, required: false}, quiz: 2pt}", "SHIP"),
        ("entries: {riddles: {margin: 20pt, tier: advisory}, quiz: 2pt}", "SHIP"),
        ("entries: {riddles: {margin: 20pt, tier: advisory, required: true}, quiz: 2pt}", "HOLD"),
        ("entries: {keep/mmlu: 1pt, quiz: 2pt}", "HOLD"),
    ],
)
def test_what_is_required_and_was_not_measured_holds(tmp_path, text, expected):
    result = compared(tmp_path, text, riddles=None)
    assert word(result) == expected
    if expected == "HOLD":
        assert "An entry that was not measured does not pass" in verdict_in_words(result.verdict)


def test_nan_in_a_required_entry_holds(tmp_path):
    result = compared(tmp_path, "entries: {prose: 2%, quiz: 2pt}", prose=float("nan"))
    assert word(result) == "HOLD" and outcomes(result) == {"learn/prose": "not finite", "keep/quiz": "passed"}
    result = compared(tmp_path, "entries: {prose: {margin: 2%, required: false}, quiz: 2pt}", prose=float("nan"))
    assert word(result) == "SHIP" and not result.broken


def test_what_the_policy_does_not_name_is_said_and_nan_there_fails(tmp_path):
    result = compared(tmp_path, QUIZ)
    assert word(result) == "SHIP" and not result.failed
    assert "Not in the policy, and not judged: keep/riddles, learn/prose." in result.notes
    result = compared(tmp_path, QUIZ, prose=float("nan"))
    assert word(result) == "SHIP" and result.failed and "learn/prose" in result.broken[0]


def test_entries_that_were_measured_otherwise_hold(tmp_path):
    policy = tmp_path / "gate.yaml"
    policy.write_text(QUIZ)
    before = write(tmp_path / "a", "keep", "quiz", answers([1, 0, 1]), num_fewshot=0)
    after = write(tmp_path / "b", "keep", "quiz", answers([1, 0, 1]), num_fewshot=5)
    for folder in (before, after):
        write(folder.path, "keep", "riddles", answers([1, 0, 1]))
    sides = [Side(folder=before, label="a"), Side(folder=after, label="b")]
    result = compare_sides(sides, [], CompareSettings(policy=policy), read_policy(policy))
    assert word(result) == "HOLD" and "num_fewshot: 0 and 5" in verdict_in_words(result.verdict)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("entries: {quizz: {margin: 1pt, required: false}}", ["no entry or suite 'quizz'. Did you mean 'quiz'?"]),
        ("entries: {any: 1pt}", ["no margin fits learn/prose nats_per_token. Expected one in nats/token, in %, or 0"]),
        ("entries: {quiz: {margin: 1pt, metric: acc_norm}}", ["keep/quiz has no metric 'acc_norm'"]),
        ("entries: {quiz: {margin: much}}", ["line 1: entries.quiz.margin", "expected 0, NUMBERpt"]),
        ("entries: {quiz: {teir: critical}}", ["entries.quiz: unknown key 'teir'. Did you mean 'tier'?"]),
        ("entries: {quiz: {tier: vital}}", ["expected one of critical, supporting, advisory, got 'vital'"]),
        ("entries: {}", ["entries: expected entries by name"]),
        ("fail_if: ['any drop > 1%']", ["entries: is missing"]),
        ("entries: {quiz: 1pt}\nfail_if: ['quiz drops > 1pt']", ["got 'drops'. Did you mean 'drop'?"]),
        ("entries: {quiz: {alpha: 0.7}}", ["expected a number above 0 and below 0.5"]),
    ],
)
def test_mistakes_in_a_policy_are_named(tmp_path, text, parts):
    with pytest.raises(ConfigError) as caught:
        compared(tmp_path, text)
    for part in parts:
        assert part in str(caught.value)


def test_undecided_says_how_many_samples_would_decide(tmp_path):
    result = compared(tmp_path, QUIZ, quiz=0.582)
    [gate] = result.gates
    assert gate.outcome == "undecided" and gate.needed is not None and gate.needed > 2000
    assert re.search(r"if the change stays as it is, about [\d,]+ samples would decide\.$", reason_in_words(gate))


# ------------------------------------------------------------------------------------------------------ accepted losses


def accepted(tmp_path: Path, result: Result) -> Policy:
    result.accept(["quiz"], by="Ada", why="a smaller model, as agreed")
    return read_policy(tmp_path / "gate.yaml")


def test_an_accepted_loss_is_shown_as_accepted_from_then_on(tmp_path):
    lost = compared(tmp_path, QUIZ, quiz=0.52)
    policy = accepted(tmp_path, lost)
    assert policy.accepted == tmp_path / "accepted.json"
    again = compared(tmp_path, QUIZ, quiz=0.52)
    assert word(again) == "SHIP" and outcomes(again) == {"keep/quiz": "accepted"}
    assert "by Ada on 20" in reason_in_words(again.gates[0]) and "as agreed" in reason_in_words(again.gates[0])
    worse = compared(tmp_path, QUIZ, quiz=0.4)
    assert word(worse) == "HOLD" and "more than the accepted loss" in verdict_in_words(worse.verdict)
    better = compared(tmp_path, QUIZ, quiz=0.6)
    assert outcomes(better) == {"keep/quiz": "passed"}


def test_an_accepted_loss_is_of_one_model_before(tmp_path):
    accepted(tmp_path, compared(tmp_path, QUIZ, quiz=0.52))
    other = compared(tmp_path, QUIZ, quiz=0.52, weights="other")
    assert word(other) == "HOLD" and any("against another initial model" in note for note in other.notes)


def test_only_a_loss_can_be_accepted(tmp_path):
    result = compared(tmp_path, QUIZ, quiz=0.7)
    with pytest.raises(ConfigError, match="keep/quiz has no loss"):
        result.accept(["keep/quiz"], by="Ada", why="so it is")
    with pytest.raises(ConfigError, match=r"'quizz' is not an entry that the policy judges\. Did you mean"):
        result.accept(["quizz"], by="Ada", why="so it is")
    assert not (tmp_path / "accepted.json").exists()


def test_accepting_again_replaces_what_was_accepted(tmp_path):
    for share in (0.55, 0.5):
        result = compared(tmp_path, QUIZ, quiz=share)
        result.accept(["quiz"], by="Ada", why=f"at {share}")
    from holdfast.records.comparison import AcceptedLosses
    from holdfast.support.files import read_as

    [loss] = read_as(tmp_path / "accepted.json", AcceptedLosses).losses
    assert loss.why == "at 0.5"


def test_a_metric_that_does_not_lead_is_accepted_as_itself(tmp_path):
    text = "entries: {prose: {margin: 0.1%, metric: perplexity}}"
    lost = compared(tmp_path, text, prose=3.3)
    assert word(lost) == "HOLD"
    lost.accept(["prose"], by="Ada", why="so agreed")
    assert outcomes(compared(tmp_path, text, prose=3.3)) == {"learn/prose": "accepted"}
    other = compared(tmp_path, "entries: {prose: 0.1%}", prose=3.3)
    assert outcomes(other) == {"learn/prose": "failed"}, "another metric was accepted"


def test_models_whose_weights_nobody_knows_are_told_by_name(tmp_path):
    known = compared(tmp_path, QUIZ, quiz=0.52)
    [pair] = [folder for folder in known.sides[0].folder.all() if folder.name == "quiz"]
    assert model_of(replace(pair, model={"name": "served"})) == "named served"
    with pytest.raises(ConfigError, match="records neither the model's weights nor its name"):
        model_of(replace(pair, model={}))
