"""Folders side by side: what is joined, what is refused and why, and averages with their joint bootstrap."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluated_folders import TEXT, answers, both, right_or_wrong, texts, write, write_average
from holdfast.errors import DataError
from holdfast.evaluation.compare.folders import compare_entries, compare_folders, match_entries, read_evaluations
from holdfast.evaluation.compare.samples import ComparisonOptions, compare_samples
from holdfast.records.comparison import Comparison
from holdfast.records.evaluation import EvaluationFolder


def compared(tmp_path: Path, metrics: Any = "primary", **options: Any) -> tuple[list[Comparison], list[str]]:
    return compare_folders(*both(tmp_path), ComparisonOptions(**options), metrics=metrics)


def alone(comparisons: list[Comparison]) -> list[Comparison]:
    """Without what follows from the other entries."""
    return [dataclasses.replace(c, p_adjusted=None, detectable=None, needed=None) for c in comparisons]


# ------------------------------------------------------------------------------------------------------------- joining


def test_every_pair_is_compared_as_compare_samples_does(tmp_path):
    before, after = both(tmp_path)
    for folder, seed in ((before, 1), (after, 2)):
        write(folder.path, "keep", "quiz", answers(right_or_wrong(seed)))
        write(
            folder.path,
            "learn",
            "prose",
            texts(np.random.default_rng(seed).gamma(5, 4, 30)),
            metrics=TEXT,
            kind="perplexity",
        )
    found, unmatched = compared(tmp_path, metrics="all")
    expected = []
    for suite, name in (("keep", "quiz"), ("learn", "prose")):
        one, other = before.find(suite, name), after.find(suite, name)
        expected += compare_samples(before.samples(suite, name), after.samples(suite, name), one, other)
    assert alone(found) == expected
    assert [c.metric for c in found] == ["acc", *TEXT]
    assert unmatched == []
    assert alone(compared(tmp_path)[0]) == [c for c in expected if c.primary]


def test_entries_are_joined_by_suite_and_name_else_by_name_where_that_is_clear(tmp_path):
    before, after = tmp_path / "before", tmp_path / "after"
    rows = answers(right_or_wrong(1))
    for suite, name in (("keep", "quiz"), ("old", "moved"), ("keep", "twice"), ("extra", "twice")):
        write(before, suite, name, rows)
    for suite, name in (("keep", "quiz"), ("new", "moved"), ("other", "twice"), ("keep", "fresh")):
        write(after, suite, name, rows)
    found, unmatched = compared(tmp_path)
    assert {(c.suite, c.name) for c in found} == {("keep", "quiz"), ("old", "moved")}
    assert sorted(unmatched) == [
        "extra/twice: measured only before (which of other/twice after is meant is not clear; use the same "
        "suites for both).",
        "keep/fresh: measured only after.",
        "keep/twice: measured only before (which of other/twice after is meant is not clear; use the same "
        "suites for both).",
        "other/twice: measured only after (which of extra/twice, keep/twice before is meant is not clear; "
        "use the same suites for both).",
    ]
    matching = match_entries(read_evaluations(EvaluationFolder(before)), read_evaluations(EvaluationFolder(after)))
    assert "old/moved is compared with new/moved, because both entries have the same name." in matching.notes


@pytest.mark.parametrize(
    ("one", "other", "named"),
    [
        ({"num_fewshot": 0}, {"num_fewshot": 5}, "num_fewshot: 0 and 5"),
        ({"window": 512, "stride": 256}, {"window": 1024, "stride": 512}, "stride: 256 and 512, window: 512 and 1024"),
        ({}, {"apply_chat_template": True}, "apply_chat_template: none and True"),
    ],
)
def test_other_settings_are_refused_and_named(tmp_path, one, other, named):
    write(tmp_path / "before", "keep", "quiz", answers([1, 0, 1]), **one)
    write(tmp_path / "after", "keep", "quiz", answers([1, 1, 1]), **other)
    found, unmatched = compared(tmp_path)
    assert found == []
    assert unmatched == [
        f"keep/quiz: measured with different settings before and after ({named}), so it is not compared. "
        f"Evaluate both in the same way."
    ]


def test_settings_that_change_no_answer_do_not_matter(tmp_path):
    same = {"num_fewshot": 5}
    mine = {"confidence": 0.9, "seed": 1, "data": "a.jsonl", "notes": ["x"], "dtype": "float32", "tokens": 30}
    other = {"confidence": 0.95, "seed": 2, "data": "b.jsonl", "newer_key": None, "tokens": 31}
    write(tmp_path / "before", "keep", "quiz", answers([1, 0, 1]), **same, **mine, subtasks=[], longest=512)
    write(tmp_path / "after", "keep", "quiz", answers([1, 1, 1]), **same, **other)
    found, unmatched = compared(tmp_path)
    assert [c.name for c in found] == ["quiz"] and unmatched == []


def test_other_samples_and_prompts_are_refused_all_of_them_and_the_rest_compared(tmp_path):
    for folder, shift in (("before", 0), ("after", 1)):
        write(tmp_path / folder, "keep", "fine", answers([1, 0, 1]))
        write(tmp_path / folder, "keep", "limited", answers([1] * (4 - shift)), limit=4 - shift)
        write(
            tmp_path / folder, "keep", "reworded", [{**r, "prompt": f"{r['prompt']}{shift}"} for r in answers([1, 1])]
        )
    found, unmatched = compared(tmp_path)
    assert [c.name for c in found] == ["fine"]
    limited, reworded = unmatched
    assert "1 of 4 occur only before, and 0 of 3 only after" in limited and "They differ in limit: 4 and 3." in limited
    assert limited.count("keep/limited") == 1
    assert "2 of 2 samples changed between the evaluations (now with another prompt)" in reworded


def test_rows_that_are_missing_or_malformed_are_said(tmp_path):
    for folder in ("before", "after"):
        for name in ("gone", "strange", "empty", "changed", "torn"):
            rows = {"empty": [], "strange": [{"acc": 1.0}]}.get(name, answers([1, 0]))
            write(tmp_path / folder, "keep", name, rows)
    (tmp_path / "after" / "keep.gone.samples.jsonl").unlink()
    changed, torn = (tmp_path / "before" / f"keep.{name}.samples.jsonl" for name in ("changed", "torn"))
    changed.write_text(changed.read_text().replace("0", "1", 1))
    torn.write_text(torn.read_text().splitlines()[0])
    found, unmatched = compared(tmp_path)
    assert found == []
    for file in (changed, torn):
        name = file.name.removesuffix(".samples.jsonl")
        assert f"{file} holds other rows than were written with {name}.json" in "\n".join(unmatched)
    assert "keep/gone: the per-sample rows keep.gone.samples.jsonl are missing in" in "\n".join(unmatched)
    assert "keep/strange: samples are paired by 'doc'" in "\n".join(unmatched)
    assert "keep/empty: no samples" in "\n".join(unmatched)


def test_evaluations_that_cannot_be_read_are_named_together(tmp_path):
    write(tmp_path / "before", "keep", "fine", answers([1]))
    (tmp_path / "before" / "keep.torn.json").write_text('{"suite": ')
    (tmp_path / "before" / "keep.foreign.json").write_text("[1]")
    with pytest.raises(DataError) as caught:
        read_evaluations(EvaluationFolder(tmp_path / "before"))
    assert "keep.torn.json" in str(caught.value) and "keep.foreign.json" in str(caught.value)
    with pytest.raises(DataError, match="found none"):
        compare_folders(EvaluationFolder(tmp_path / "nothing"), EvaluationFolder(tmp_path / "before"))


# ------------------------------------------------------------------------------------------------------------- figures


def test_other_tokenizers_leave_bits_per_byte(tmp_path):
    write(tmp_path / "before", "keep", "prose", texts([30, 31, 32], tokens=10), metrics=TEXT, kind="perplexity")
    write(tmp_path / "after", "keep", "prose", texts([33, 34, 35], tokens=12), metrics=TEXT, kind="perplexity")
    sides = both(tmp_path)
    found = compare_entries(*sides, match_entries(*(read_evaluations(f) for f in sides)))
    [c] = found.comparisons
    assert (c.metric, c.primary) == ("bits_per_byte", True)
    assert c.difference == pytest.approx(9 / 120 / math.log(2))
    assert any("divides by tokens, which the two tokenizers count differently" in n for n in found.notes)


def test_a_leading_metric_without_pairs_is_refused(tmp_path):
    for folder in ("before", "after"):
        write(tmp_path / folder, "keep", "translate", answers([1, 0]), metrics=["bleu", "acc"], values={"bleu": 30.0})
    comparisons, [refused] = compared(tmp_path, metrics="all")
    assert comparisons == []
    assert (
        refused == "keep/translate: bleu is not a mean over samples, so it cannot be paired. Make it comparable, or "
        "put another metric first."
    )


# ------------------------------------------------------------------------------------------------------------ averages


def write_members(tmp_path: Path, n: int = 500) -> None:
    """Two quizzes whose answers differ between the sides, one of them with a second metric equal to the first."""
    for folder, seed in (("before", 0), ("after", 10)):
        for number, name in enumerate(("one", "two")):
            rows = answers(right_or_wrong(seed + number, n, 0.6), acc_norm=float)
            write(tmp_path / folder, "keep", name, rows, metrics=["acc", "acc_norm"])


def half_width(c: Comparison) -> float:
    return (c.interval[1] - c.interval[0]) / 2


def test_an_average_is_the_mean_of_its_members_differences(tmp_path):
    write_members(tmp_path)
    for folder in ("before", "after"):
        write_average(tmp_path / folder, [("keep", "one", "acc"), ("keep", "two", "acc")])
    found, unmatched = compared(tmp_path)
    mean, one, two = sorted(found, key=lambda c: c.name != "mean")
    assert unmatched == []
    assert mean.difference == pytest.approx((one.difference + two.difference) / 2)
    assert (mean.before, mean.after) == pytest.approx(((one.before + two.before) / 2, (one.after + two.after) / 2))
    assert (mean.n, mean.test, mean.primary, mean.flips_lost, mean.unit) == (
        1000,
        "paired t, skewness removed",
        True,
        None,
        "accuracy",
    )
    independent = math.sqrt(half_width(one) ** 2 + half_width(two) ** 2) / 2
    assert half_width(mean) == pytest.approx(independent, rel=0.08), "different entries are independent"


def test_members_of_one_entry_share_its_samples(tmp_path):
    """Two metrics that say the same leave the average as uncertain as each of them."""
    write_members(tmp_path)
    for folder in ("before", "after"):
        write_average(tmp_path / folder, [("keep", "one", "acc"), ("keep", "one", "acc_norm")])
    found, _ = compared(tmp_path)
    mean, one = (next(c for c in found if c.name == name) for name in ("mean", "one"))
    assert half_width(mean) == pytest.approx(half_width(one), rel=0.08)
    assert mean.n == 500


def test_averages_that_cannot_be_compared_say_why(tmp_path):
    for folder in ("before", "after"):
        write(tmp_path / folder, "keep", "fine", answers([1, 0, 1], brier=float), metrics=["acc", "brier"])
        write(tmp_path / folder, "keep", "shots", answers([1, 0, 1]), num_fewshot=len(folder))
        write(tmp_path / folder, "keep", "samples", answers([1] * len(folder)))
        write_average(tmp_path / folder, [("keep", "fine", "acc"), ("keep", "shots", "acc")], name="a")
        write_average(tmp_path / folder, [("keep", "fine", "acc"), ("keep", "samples", "acc")], name="b")
        write_average(tmp_path / folder, [("keep", "fine", "acc" if folder == "before" else "brier")], name="c")
    found, unmatched = compared(tmp_path)
    assert [c.name for c in found] == ["fine"]
    reasons = {u.split(":")[0]: u for u in unmatched}
    assert "its member keep/shots cannot be compared" in reasons["keep/a"]
    assert "keep/samples: the two evaluations did not answer the same samples" in reasons["keep/b"]
    assert "the average has different members before and after" in reasons["keep/c"]


# -------------------------------------------------------------------------------------------------------------- chance


@pytest.mark.parametrize(
    ("shares", "guessing"),
    [((0.27, 0.24), ("before", "after")), ((0.5, 0.26), ("after",)), ((0.5, 0.45), ())],
)
def test_models_that_are_not_shown_to_beat_guessing_are_named(tmp_path, shares, guessing):
    hard = np.random.default_rng(0).random(400)
    for folder, share in zip(both(tmp_path), shares, strict=True):
        write(folder.path, "keep", "quiz", answers((hard < share).astype(float)))
        found = folder.find("keep", "quiz")
        reach = 1.96 * np.sqrt(share * (1 - share) / 400)
        metric = dataclasses.replace(found.metrics["acc"], interval=(share - reach, share + reach))
        rows = folder.samples("keep", "quiz")
        references = {"acc": {"chance": 0.25}}
        folder.write(dataclasses.replace(found, metrics={"acc": metric}, references=references), rows)
    [c], _ = compared(tmp_path)
    assert (c.chance, c.at_chance) == (0.25, guessing)
