"""The page of a ladder says what its rungs learnt, how fast, and what failed."""

from __future__ import annotations

from pathlib import Path

from holdfast.papers.ladder.page import (
    figure_chart,
    ladder_page,
    print_ladder,
    rung_table,
    summary,
)
from holdfast.papers.ladder.record import read_ladder
from holdfast.reports.html import write_page
from recorded import ladder


def test_the_lead_says_what_longer_pretraining_brought() -> None:
    told = summary(ladder())
    assert "1M: web from 3.000 to 2.400 nats/token between 1,000,000 and 4 M tokens." in told or "1M: web from" in told
    assert "3.000 to 2.400" in told and "3.000 to 2.700" in told and "5 of 6 models are complete." in told


def test_charts_and_table_hold_the_figures() -> None:
    chart = figure_chart(ladder(), "keep/web")
    assert chart is not None and [row["y"].value for row in chart.rows if row["line"] == "1M"] == [3.0, 2.7, 2.4]
    assert [row["x"] for row in chart.rows if row["line"] == "3M"] == [10**6, 2 * 10**6], "what failed has none"
    rows = rung_table(ladder(), ["keep/web"]).rows
    assert len(rows) == 6 and any("a loss was not finite" in str(cell) for cell in rows[-1])
    shown = " ".join(str(cell) for cell in rows[0])
    assert "9,000" in shown, "tokens a second"


def test_page_terminal_and_file(tmp_path: Path, capsys: object) -> None:
    record = ladder()
    assert read_ladder(record.write(tmp_path).parent) == record
    assert "a loss was not finite" in write_page(ladder_page(record), tmp_path / "report.html").read_text()
    assert ladder_page(record).status == ("failed", "bad")
    assert "0.93 to 3.7 tokens per parameter" in str(ladder_page(record).details), "20 is Chinchilla's"
    (tmp_path / "1M.yaml").write_text("ladder: []\n")
    print_ladder(record, tmp_path)
    told = capsys.readouterr().out  # type: ignore[attr-defined]
    assert "holdfast probe --ladder" in told and "3M.yaml" not in told
