"""The terminal shows the figures of the pages and stays readable at 80 columns."""

from __future__ import annotations

import pytest
from synthetic_runs import comparison, shown

from holdfast.reports.run_report import print_run_summary, read_run


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
            r.relative,
            f"p {r.p}",
            f"n {r.n}",
            r.raw.test,
            r.verdict,
            r.flips,
        ):
            assert figure in text, figure
    for note in run.record.notes:
        assert note in flat(text)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "…" not in text  # nothing was cut


def test_an_ascii_terminal_gets_ascii(make_run) -> None:
    text = shown(lambda out: print_run_summary(make_run(), out), ascii_only=True)
    assert text.isascii()
    assert "-0.412" in text
    assert "[-0.439, -0.386]" in text


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


@pytest.mark.parametrize("width", [80, 200])
def test_a_wide_table_keeps_names_and_digits_in_a_narrow_terminal(width: int) -> None:
    from rich.console import Console

    from holdfast.reports.blocks import Table, columns, figure
    from holdfast.reports.terminal import Printer

    console = Console(width=width, force_terminal=True, record=True, color_system=None)
    heads = columns("Arm", *(f"{task}, better than sequential by" for task in "abcd"))
    cells = ["sequential fine-tuning, p 0.25", *[figure("−0.2128 nats/token", "[−0.2220, −0.2035]")] * 4]
    Printer(console).show([Table(columns=heads, rows=[cells], title="scores")])
    words = console.export_text().split()
    for word in ("−0.2128", "[−0.2220,", "−0.2035]"):
        assert words.count(word) == 4, words
    assert words.count("fine-tuning,") == words.count("Arm") == (2 if width == 80 else 1)
