"""The page of a leaderboard: what leads, how far that can be trusted, what cannot be told, what was cut."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console

from claim_studies import annealing, l2, study, trial
from holdfast.records.leaderboard import LeaderboardRecord
from holdfast.reports.blocks import words
from holdfast.reports.html import write_page
from holdfast.reports.leaderboard_report import (
    avoided_chart,
    curves_chart,
    lead,
    leaderboard_markdown,
    leaderboard_page,
    print_leaderboard,
)
from holdfast.studies.leaderboard.figures import leaderboard_record


def made(direct: float = -1.0):
    grids = ((l2(0.01), 0.9, -0.5), (l2(1.0), 0.3, -0.1), (annealing(3.0), 0.8, -0.1), (annealing(30.0), 0.4, 0.0))
    trials = [trial(0, [], 1.0, direct), *(trial(n, m, t, s) for n, (m, t, s) in enumerate(grids, 1))]
    failed = dataclasses.replace(trials[2], number=9, state="failed", reason="diverged <b>", runs=[])
    return study([*trials, failed])


@pytest.fixture
def record() -> LeaderboardRecord:
    studies = {"code": ("code", made()), "warm": ("warm", made(direct=0.2)), "later": ("later", None)}
    return leaderboard_record(studies, name="board", created="2026-01-02")


def test_the_first_lines_say_who_leads_and_that_it_is_the_best_of_many(record):
    text = lead(record)
    assert text.startswith("Label annealing has the best mean rank, 1 over 1 track. Where it has 80 % of direct")
    assert "it avoids of the loss 89.9 % [" in text
    assert "is the best of many on the same seeds, so its figure is optimistic" in text
    assert "% on code (best of 3) on the seed left out" in text and text.endswith("Not finished: later.")


def test_the_first_lines_name_few_of_many_that_are_as_good(record):
    first = record.standing[0]
    many = [dataclasses.replace(first, way=f"way {n}") for n in range(9)]
    text = lead(dataclasses.replace(record, standing=[first, *many]))
    assert "Not told from the best somewhere: way 0, way 1, way 2, way 3, way 4 and 4 others." in text
    assert "way 8 " not in text and "others" not in lead(dataclasses.replace(record, standing=[first, *many[:6]]))


def test_without_a_ranked_track_nobody_leads(record):
    alone = dataclasses.replace(record, tracks=record.tracks[1:], against=[])
    assert lead(alone).startswith("No track can be ranked: nothing can be told on warm and later.")


def test_page_terminal_and_markdown_say_the_same(record, tmp_path):
    page = write_page(leaderboard_page(record), tmp_path / "report.html").read_text()
    out = io.StringIO()
    print_leaderboard(record, tmp_path, Console(file=out, width=400))
    markdown = leaderboard_markdown(record)
    for text in (page, out.getvalue(), markdown):
        assert "56.7 %" in text and "cannot tell" in text and "direct fine-tuning loses nothing of the source" in text
    assert "diverged &lt;b&gt;" in page and "diverged <b>" not in page.split("<script")[0]
    assert markdown.count("\n## ") >= 6 and "## Beside PEFT" in markdown and "diverged &lt;b&gt;" in markdown


def test_the_charts_have_every_trial_and_every_way(record):
    track = record.tracks[0]
    drawn = curves_chart(track, record.levels)
    assert drawn is not None and len(drawn.rows) == 7, "both lines begin at direct fine-tuning, which is drawn thrice"
    assert [rule.y for rule in drawn.rules] == pytest.approx([0.5, 0.8, 0.95])
    dots = avoided_chart(track, record)
    assert dots is not None and [words(r["way"]) for r in dots.rows] == ["label annealing", "L2", "direct fine-tuning"]
    assert curves_chart(record.tracks[1], record.levels) is not None, "what was measured is drawn all the same"
    assert avoided_chart(record.tracks[1], record) is None and curves_chart(record.tracks[2], record.levels) is None


def test_a_record_reads_like_its_page(record):
    from holdfast.reports.displays import Displays

    shown = Displays().text(record)
    assert "Label annealing has the best mean rank" in shown and "Better than direct on" in shown


def test_what_is_noted_of_several_ways_is_said_once(record):
    track = record.tracks[0]
    rows = [dataclasses.replace(row, notes=["its grid ends too early."]) for row in track.rows]
    text = leaderboard_markdown(dataclasses.replace(record, tracks=[dataclasses.replace(track, rows=rows)]))
    assert len(rows) > 2 and text.count("its grid ends too early.") == 1
    [line] = [line for line in text.splitlines() if "its grid ends too early." in line]
    assert all(row.way in line for row in rows)
