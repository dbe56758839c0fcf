"""The printed figures of Balancing Continuous Pre-Training: whole, in agreement with the paper's own averages, and
found for the models they are of."""

from __future__ import annotations

import statistics

import pytest

from holdfast.papers.residual.printed_figures import (
    AVERAGES,
    MILLION,
    columns,
    find_column,
    printed,
    recognise,
    rows,
)


def test_every_column_is_whole_and_two_tables_agree() -> None:
    assert {table: sum(c.table == table for c in columns()) for table in (2, 3, 4)} == {2: 11, 3: 12, 4: 3}
    assert all(len(c.values) == len(rows()) == 16 and all(1 < v < 100 for v in c.values) for c in columns())
    assert all(len(c.averages) == (1 if c.table == 4 else 3) for c in columns())
    for start in ("L3b", "L3i"):
        first, second = (c for c in columns() if (c.start, c.tokens, c.residual) == (start, 0, None))
        assert (first.table, second.table) == (2, 3) and first.values == second.values


def test_recomputed_averages_agree_with_print_but_for_one() -> None:
    """A mean of figures rounded to two decimals is off by at most 0.005, and its own rounding adds as much."""
    off = []
    for column in columns():
        for name, printed_value in column.averages.items():
            mean = statistics.fmean(column.values[AVERAGES[name]])
            if abs(printed_value - mean) > 0.01 + 1e-9:
                off.append((column.start, column.residual, name, printed_value, round(mean, 4)))
    assert off == [("Q2b", "Q2.5i", "sub_average_2", 65.48, 65.4386)]


@pytest.mark.parametrize(
    ("start", "millions", "residual", "average"),
    [
        ("L3b", 0, None, 51.64),
        ("L3i", 0, None, 62.94),
        ("L3i", 100, None, 60.28),
        ("L3i", 1000, None, 58.00),
        ("L3b", 100.4, "L3i", 63.07),
        ("L3b", 500, "L3i", 63.34),
        ("L3b", 0, "L3.1i", 64.25),
        ("L3.1b", 0, "L3i", 62.01),
        ("DocChat", 0, "L3.1i", 63.80),
        ("Q2b", 0, "Q2.5i", 48.54),
        ("Q2.5b", 0, "Q2i", 51.35),
        ("L3b", 120, "L3i", None),
        ("Q2b", 100, None, None),
        (None, 0, None, None),
    ],
)
def test_columns_are_found_for_what_was_made_alike_and_for_nothing_else(start, millions, residual, average) -> None:
    """100.4: whole documents come to a little more than the budget."""
    found = find_column(start, int(millions * MILLION), residual)
    assert (found.averages["average"] if found is not None else None) == average


def test_what_the_paper_says_of_its_tables() -> None:
    def average(*made) -> float:
        return find_column(*made).averages["average"]

    loss = average("L3i", 0, None) - average("L3i", 1000 * MILLION, None)
    gain = average("L3b", 0, "L3.1i") - average("L3i", 0, None)
    for text, figure in zip(printed()["against_its_text"], (loss, gain), strict=False):
        assert f"{figure:.2f}" in text


@pytest.mark.parametrize(
    ("name", "key"),
    [
        *((hub, key) for key, hubs in printed()["models"].items() for hub in hubs),
        ("models/Qwen2.5-1.5B/", "Q2.5b"),
        ("hub/models--Qwen--Qwen2-1.5B-Instruct/snapshots/ba1cf1846d7df0a0591d6c00649f57e798519da8", "Q2i"),
        ("META-LLAMA/meta-llama-3-8b", "L3b"),
        *((name, None) for name in ("Qwen/Qwen2.5-0.5B", "meta-llama/Meta-Llama-3-70B", "")),
    ],
)
def test_models_are_known_by_their_name(name: str, key: str | None) -> None:
    assert recognise(name) == key
