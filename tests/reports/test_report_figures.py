"""Formatting, the verdict sentence, and reading folders in any state."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path

import pytest
from synthetic_runs import SOURCE_LOST, SOURCE_NOISE, comparison, metric_lines, record
from test_every_page import PAGES, texts

from holdfast.errors import DataError
from holdfast.records import measure
from holdfast.records.figure import Figure
from holdfast.records.run import RunFolder
from holdfast.reports import format as figures
from holdfast.reports.charts import Value
from holdfast.reports.compared import ComparisonRow, summary
from holdfast.reports.methods import method_text
from holdfast.reports.run_figures import read_run, verdict_sentence


@pytest.mark.parametrize(
    ("value", "decimals", "sign", "text"),
    [
        (1.23456, 3, False, "1.235"),
        (-0.5, 2, False, "−0.50"),
        (0.5, 2, True, "+0.50"),
        (-0.00001, 3, True, "0.000"),
        (math.nan, 3, True, "n/a"),
        (None, 3, False, "n/a"),
        (-math.inf, 2, False, "−∞"),
    ],
)
def test_numbers(value: float | None, decimals: int, sign: bool, text: str) -> None:
    assert measure.number(value, decimals, sign=sign) == text


def test_counts_durations_and_p_values() -> None:
    assert [figures.count(v) for v in (950, 12_345, 494_032_768, 7.62e9, None)] == [
        "950",
        "12,345",
        "494 M",
        "7.62 B",
        "n/a",
    ]
    assert [figures.duration(v) for v in (0.84, 45, 744, 3600, 12_000, 187_200, None)] == [
        "0.8 s",
        "45 s",
        "12 min 24 s",
        "1 h",
        "3 h 20 min",
        "2 d 4 h",
        "n/a",
    ]
    assert [figures.p_value(v) for v in (0.00049, 0.0123, 1.0, math.nan)] == ["<0.001", "0.012", "1.000", "n/a"]
    assert figures.significant(1e-5) == "1e-5"
    assert figures.plural(1, "loss") == "1 loss"
    assert figures.plural(2, "loss") == "2 losses"


@pytest.mark.parametrize(
    ("interval", "decimals"),
    [
        ((-0.44, -0.38), 3),
        ((0.0791, 0.0935), 4),
        ((0.00010, 0.00014), 6),
        ((-5.0, 7.0), 3),
        ((1.0, 1.0), 4),
        ((math.nan, math.nan), 4),
        (None, 4),
    ],
)
def test_the_interval_decides_the_decimals(interval: tuple[float, float] | None, decimals: int) -> None:
    assert measure.decimals_for(interval) == decimals


STUDIES = ["study", "sequence", "ladder", "overtraining", "residual study", "update", "claims"]


@pytest.mark.parametrize("name", ["run", "run, unfinished", "comparison", "evaluation", "probe of a ladder", *STUDIES])
def test_one_constant_decides_what_intervals_look_like(name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(measure, "INTERVAL", "<{} to {}>")
    page = PAGES[name](tmp_path, "prose")
    text = " ".join(texts([block for block in page.blocks if block is not None]))
    assert re.search(r"<[−+]?[\d.]+ to ", text)
    assert not re.search(r"\[[−+]?\d", text)


def test_a_share_is_drawn_in_percent_and_ends_where_its_text_does() -> None:
    share = measure.Measure(share=True)
    drawn = Value.of(Figure(value=0.99, over_samples=(0.97, 1.02)), share)
    assert (drawn.value, drawn.low, drawn.high, drawn.interval) == (99.0, 97.0, 100.0, "[97.0, 100.0]")
    change = Value.of(Figure(value=0.01, over_samples=(-0.01, 0.03)), share, sign=True)
    assert (change.text, change.low, change.high) == ("+1.0 pt", -1.0, 3.0)
    alone = Value.of(Figure(value=2.5))
    assert (alone.low, alone.high, alone.reach(), alone.interval) == (None, None, (0.0, 0.0), "no interval")


def test_a_row_turns_the_sign_where_lower_is_better() -> None:
    lower, higher = ComparisonRow(comparison()), ComparisonRow(comparison(**SOURCE_NOISE))
    assert lower.difference == "−0.412"
    assert lower.gain_interval == (0.3857, 0.4391)
    assert (lower.verdict, lower.tone) == ("gained", "good")
    assert higher.gain_interval == (-0.021, 0.0105)
    assert (higher.tone, higher.flips) == ("flat", "21 lost, 18 gained")


def test_one_line_says_what_became_of_everything() -> None:
    prose = comparison(**SOURCE_LOST)
    guessed = comparison(**SOURCE_NOISE | {"name": "piqa", "chance": 0.5, "at_chance": ("before", "after")})
    found = [comparison(), prose, comparison(**SOURCE_NOISE), guessed]
    assert summary(found) == (
        "Worse on 1 of 4: prose, by 3 %. Better on 1: answers, by 13 %. Both models are at chance level on 1: piqa. "
        "Undecided on 1: arc_easy."
    )
    assert summary([comparison()]).startswith("Worse on none of 1. Better on 1: answers, by 13 %.")
    lost = [comparison(**SOURCE_LOST | {"name": f"p{number}"}) for number in range(5)]
    assert summary(lost).endswith("p2, by 3 % and 2 more.")
    assert summary([]) == "Nothing was compared."
    assert ComparisonRow(guessed).power == "both models are at chance level (50 %): more samples do not help"


LOST, NOISE = comparison(**SOURCE_LOST), comparison(**SOURCE_NOISE)
GAIN = "answers −0.412 nats/token [−0.439, −0.386] (gained)"
LOSS = "prose +0.0863 nats/token [+0.0791, +0.0935] (lost)"


def measures(suite: str, *differences: float) -> list:
    """One measure a difference, of a suite, in nats."""
    return [comparison(suite=suite, name=f"m{n}", difference=d, interval=(d - 0.01, d + 0.01))
            for n, d in enumerate(differences)]  # fmt: skip


@pytest.mark.parametrize(
    ("comparisons", "sentence"),
    [
        (
            [comparison(), LOST, NOISE],
            f"Learn: {GAIN}; keep: {LOSS.replace(' nats/token', '')}, arc_easy −0.5 pt [−2.1, +1.1] (not shown).",
        ),
        ([LOST], f"Keep: {LOSS}."),
        (
            [*measures("learn", -0.1, -0.4, 0.0), *measures("keep", 0.1, 0.3, 0.2, -0.2)],
            "Learn: 2 gained, 1 kept of 3 measures (most: m1 −0.400 nats/token [−0.410, −0.390]); "
            "keep: 3 lost, 1 gained of 4 measures (most: m1 +0.300 [+0.290, +0.310]).",
        ),
        ([comparison(failed="nan of 3")], "Learn: answers (not finite)."),
    ],
)
def test_verdict_sentence(comparisons: list, sentence: str) -> None:
    assert verdict_sentence(record(), [ComparisonRow(c) for c in comparisons]) == sentence


def test_a_folder_without_a_run_is_refused(tmp_path) -> None:
    with pytest.raises(DataError, match=r"no run\.json"):
        read_run(RunFolder(tmp_path))


def test_unreadable_files_are_reported_and_the_rest_is_read(make_run) -> None:
    folder = make_run()
    (folder.evaluations / "comparisons.json").write_text("{broken")
    folder.metrics_file.write_text('{"step": 1\n{"step": 2}\n')
    run = read_run(folder)
    assert run.rows == []
    assert run.metrics == []
    assert len(run.problems) == 2
    assert "comparisons.json" in " ".join(run.problems)


def test_the_log_stands_in_for_what_an_unfinished_run_did_not_write(make_run) -> None:
    lines = metric_lines(10)
    run = read_run(make_run(metrics=lines, training={}, status="interrupted", finished=None))
    last = [line for line in lines if "tokens" in line][-1]
    facts = dict(run.facts)
    assert facts["Steps"] == str(last["step"])
    assert facts["Tokens trained on"] == figures.count(last["tokens"])
    assert facts["Finished"] == "no (interrupted)"
    assert dataclasses.replace(run, metrics=lines).trained["seconds"] == last["seconds"]


def test_paths_are_shown_by_their_last_part():
    text = method_text([{"method": "replay", "data": "/somebody/else/old.jsonl", "fraction": 0.1}])
    assert "old.jsonl" in text
    assert "somebody" not in text
