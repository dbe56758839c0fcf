"""The terminal shows the figures of the pages and stays readable at 80 columns."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from synthetic_evaluations import ACCURACY, GATES, TEXT, Pair, multiple_choice
from synthetic_evaluations import text as documents
from synthetic_runs import comparison, shown
from synthetic_studies import large
from test_every_page import PAGES, every

from holdfast.records.evaluation import Evaluation
from holdfast.reports.blocks import Table, plain_text
from holdfast.reports.charts import Chart
from holdfast.reports.compared import lost_and_gained
from holdfast.reports.comparison_text import comparison_blocks
from holdfast.reports.evaluation_text import result_blocks
from holdfast.reports.probe_report import probe_blocks
from holdfast.reports.run_figures import read_run
from holdfast.reports.run_report import print_run_summary
from holdfast.reports.sweep_text import print_sweep
from holdfast.reports.terminal import Printer, plain_table
from holdfast.statistics.selection import select_all
from holdfast.support.files import read_as
from recorded import probe


def flat(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("width", [80, 120])
def test_the_summary_has_every_figure_of_the_page(make_run, width) -> None:
    folder = make_run()
    text = shown(lambda out: print_run_summary(folder, out), width)
    run = read_run(folder)
    assert run.verdict in flat(text)
    for r in run.rows:
        for figure in (
            r.before,
            r.after,
            r.difference,
            r.interval,
            r.p,
            r.n,
            r.verdict,
            lost_and_gained(r),
        ):
            assert figure in text, figure
    for note in run.record.notes:
        assert note in flat(text)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "…" not in text  # nothing was cut


def broken_words(blocks: Iterable[Any], width: int) -> list[str]:
    """Titles of columns, words and intervals of cells that no line of a terminal shows whole."""
    missing = []
    for block in every(blocks):
        table = block.table if isinstance(block, Chart) else block
        if not isinstance(table, Table):
            continue
        text = shown(lambda out, table=table: Printer(out).show([table]), width)
        titles = [line for column in table.columns for line in plain_text(column.title).split("\n")]
        figures = [
            cell for row in table.rows for cell, column in zip(row, table.columns, strict=True) if column.numeric
        ]
        cells = [plain_text(cell) for row in table.rows for cell in row]
        whole = [title for title in titles if len(title) <= width - 24]
        whole += [line for figure in figures for line in plain_text(figure).split("\n")]
        whole += [word for cell in cells for word in cell.split()]
        missing += [part for part in whole if part not in text]
    return missing


@pytest.mark.parametrize("name", PAGES)
def test_eighty_columns_break_no_title_no_word_and_no_figure(name: str, tmp_path: Path) -> None:
    assert broken_words(PAGES[name](tmp_path, "prose_of_physics").blocks, 80) == []


def test_eighty_columns_break_nothing_of_the_summaries(make_run, tmp_path: Path, monkeypatch) -> None:
    blocks: list[Any] = []
    pair = Pair(tmp_path).add("knowledge", "arc", "task", multiple_choice("arc", 60, 0.8, 0.3), ACCURACY)
    pair.add("keep", "prose", "perplexity", documents("p", 40, 2.9, 0.03), TEXT)
    result = pair.result(gates=GATES)
    evaluations = [read_as(path, Evaluation) for path in pair.before.files()]
    study, selections = large(12), select_all(large(12))
    blocks += comparison_blocks(result)
    blocks += result_blocks({"base": evaluations, "tuned": evaluations}, {"tuned": pair.comparisons})
    blocks += probe_blocks(probe())
    with monkeypatch.context() as patched:
        patched.setattr(Printer, "show", lambda _, found: blocks.extend(found))
        print_run_summary(make_run())
        print_sweep(study, selections, Console(force_terminal=True))
    assert broken_words(blocks, 80) == []


def test_user_text_is_not_read_as_markup(make_run) -> None:
    folder = make_run(
        name="[bold]x[/bold] [red]", comparisons=[comparison(name="[/nope]")], status="failed", error="[link=x]broken"
    )
    text = shown(lambda out: print_run_summary(folder, out))
    assert all(part in text for part in ("[bold]x[/bold] [red]", "[/nope]", "[link=x]broken"))


def test_a_table_of_many_columns_becomes_several() -> None:
    """Each as wide as the terminal allows, with the names of the rows, and no figure broken or lost."""
    from rich.console import Console

    from holdfast.reports.blocks import Table, columns, figure
    from holdfast.reports.terminal import Printer

    console = Console(width=100, force_terminal=True, record=True, color_system=None)
    months = [f"month_{n:02}" for n in range(12)]
    rows = [
        [arm, *(figure(f"{10 * n + k}.5 %", "[12.3, 45.6]") for n in range(12))] for k, arm in enumerate(("one", "two"))
    ]
    Printer(console).show([Table(columns=columns("Arm", *months), rows=rows, title="scores")])
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 100 and text.count("scores") == 1
    assert all(text.count(month) == 1 for month in months) and text.count("[12.3, 45.6]") == 24
    assert all(f"{10 * n + k}.5 %" in text for n in range(12) for k in range(2))
    assert text.count("one") == text.count("Arm") == text.count("two") > 1


def test_without_a_terminal_a_row_is_one_line_and_so_are_the_titles() -> None:
    assert plain_table([("Task", False), ("p\nadjusted", True)], [["prose", "0.1\n0.2"]]) == [
        "Task   p adjusted",
        "prose     0.1 0.2",
    ]
