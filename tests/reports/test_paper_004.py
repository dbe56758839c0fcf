"""The printed figures of paper 004: whole, in agreement with the paper's own averages, and found for the models they are of."""

from __future__ import annotations

import pytest

from holdfast.reports.paper_004 import (
    AGAINST_ITS_TEXT,
    CONTINUED_FLOPS,
    INSTRUCTION_TUNING_FLOPS,
    MODELS,
    ROWS,
    columns,
    disagreements,
    find_column,
    recognise,
)

ROUNDING = 0.005
"""Of a figure with two decimals."""


def column(start: str, tokens: int = 0, residual: str | None = None):
    found = find_column(start, tokens, residual)
    assert found is not None
    return found


def test_every_column_has_sixteen_figures_and_its_averages() -> None:
    counts = {table: sum(c.table == table for c in columns()) for table in (2, 3, 4)}
    assert counts == {2: 11, 3: 12, 4: 3}
    for c in columns():
        assert len(c.values) == len(ROWS) == 16
        assert all(1 < v < 100 for v in c.values)
        assert (c.sub_average_1 is None) == (c.table == 4)


def test_the_averages_that_the_spec_names() -> None:
    base = column("L3b")
    assert (base.sub_average_1, base.sub_average_2, base.average) == (31.43, 75.85, 51.64)
    assert base.recomputed() == pytest.approx((31.425, 75.85, 51.643125))
    printed = {
        ("L3i", 0, None): 62.94, ("L3i", 100, None): 60.28, ("L3i", 500, None): 59.36, ("L3i", 1000, None): 58.00,
        ("L3b", 100, "L3i"): 63.07, ("L3b", 500, "L3i"): 63.34, ("L3b", 1000, "L3i"): 63.12, ("L3b", 0, "L3.1i"): 64.25,
        ("L3.1b", 0, "L3i"): 62.01, ("L3.1i", 0, None): 64.42, ("DocChat", 0, None): 57.47, ("DocChat", 0, "L3i"): 62.14,
        ("DocChat", 0, "L3.1i"): 63.80, ("Q2b", 0, "Q2.5i"): 48.54, ("Q2b", 0, None): 48.07, ("Q2i", 0, None): 49.69,
        ("Q2.5b", 0, "Q2i"): 51.35, ("Q2.5b", 0, None): 51.24, ("Q2.5i", 0, None): 53.65,
    }  # fmt: skip
    for (start, millions, residual), average in printed.items():
        assert column(start, millions * 1_000_000, residual).average == average


def test_recomputed_averages_agree_with_print_but_for_one() -> None:
    """A mean of figures rounded to two decimals is off by at most 0.005, and its own rounding adds as much."""
    off = []
    for c in columns():
        for printed, mean in zip((c.sub_average_1, c.sub_average_2, c.average), c.recomputed(), strict=True):
            if printed is not None and abs(printed - mean) > 2 * ROUNDING + 1e-9:
                off.append((c.name, printed, round(mean, 2)))
    assert off == [("Q2b + Q2.5i residual", 65.48, 65.44)]
    [found] = disagreements()
    assert (found.table, found.column, found.what, found.printed, found.recomputed) == (
        3,
        "Q2b + Q2.5i residual",
        "sub-average 2",
        65.48,
        65.4386,
    )


def test_a_wrong_digit_would_be_seen() -> None:
    """One figure that is off by 0.2 moves its sub-average by more than rounding can."""
    c = column("L3i", 500_000_000)
    values = list(c.values)
    values[6] += 0.2
    assert c.sub_average_1 is not None
    assert abs(sum(values[:8]) / 8 - c.sub_average_1) > 2 * ROUNDING


def test_the_models_that_two_tables_print_are_the_same_in_both() -> None:
    for start in ("L3b", "L3i"):
        twice = [c for c in columns() if (c.start, c.tokens, c.residual) == (start, 0, None)]
        assert [c.table for c in twice] == [2, 3]
        assert twice[0].values == twice[1].values


def test_sentences_of_the_paper_that_its_tables_do_not_bear_out() -> None:
    loss = column("L3i").average - column("L3i", 1_000_000_000).average
    assert round(loss, 2) == 4.94
    assert "4.94" in AGAINST_ITS_TEXT[0]
    gain = column("L3b", 0, "L3.1i").average - column("L3i").average
    assert round(gain, 2) == 1.31
    assert "1.31" in AGAINST_ITS_TEXT[1]


def test_the_papers_ratio_of_costs() -> None:
    assert pytest.approx(2048) == INSTRUCTION_TUNING_FLOPS / CONTINUED_FLOPS


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("meta-llama/Meta-Llama-3-8B", "L3b"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "L3i"),
        ("meta-llama/Llama-3.1-8B-Instruct", "L3.1i"),
        ("models/Qwen2.5-1.5B/", "Q2.5b"),
        ("hub/models--Qwen--Qwen2-1.5B-Instruct/snapshots/ba1cf1846d7df0a0591d6c00649f57e798519da8", "Q2i"),
        ("cerebras/Llama3-DocChat-1.0-8B", "DocChat"),
        ("META-LLAMA/meta-llama-3-8b", "L3b"),
        ("Qwen/Qwen2.5-0.5B", None),
        ("meta-llama/Meta-Llama-3-70B", None),
        ("", None),
    ],
)
def test_models_are_known_by_their_name(name: str, key: str | None) -> None:
    assert recognise(name) == key


def test_every_name_leads_to_its_own_model() -> None:
    for key, names in MODELS.items():
        assert {recognise(n) for n in names} == {key}


def test_columns_are_found_for_what_was_made_alike_and_for_nothing_else() -> None:
    assert column("L3b", 100_400_000, "L3i").tokens == 100_000_000  # whole documents: a little more than the budget
    assert find_column("L3b", 120_000_000, "L3i") is None
    assert find_column("L3b", 1, None) is None
    assert find_column("Q2b", 100_000_000, None) is None
    assert find_column(None, 0, None) is None
    assert column("L3b", 1_000_000_000, "L3i").name == "L3b +1B + L3i residual"
