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


def values(start: str, millions: int = 0, residual: str | None = None) -> dict[tuple[str, str], float]:
    """A column's figures by benchmark and metric."""
    column = find_column(start, millions * MILLION, residual)
    return {(row.benchmark, row.metric): value for row, value in zip(rows(), column.values, strict=True)}


def average(start: str, millions: int = 0, residual: str | None = None, name: str = "average") -> float:
    return find_column(start, millions * MILLION, residual).averages[name]


def written(*figures: float) -> list[str]:
    return [f"{figure:.2f}" for figure in figures]


def lower(start: str, residual: str) -> list[str]:
    """Benchmarks on which a residual leaves a model below what it was."""
    before, after = values(start), values(start, 0, residual)
    return [name for name, _ in before if after[name, _] < before[name, _]]


def errata() -> list[tuple[str, list[str]]]:
    """What of each sentence can be recomputed, by a word of the sentence."""
    strict = ("GSM8K", "strict-EM")
    falls = {}
    for millions in (100, 1000):
        old, new = values("L3i"), values("L3i", millions)
        falls[millions] = {key: round(old[key] - new[key], 2) for key in old}
        assert max(falls[millions], key=falls[millions].get) == strict, "GSM8K strict falls most"
    ifeval = [[fall for (name, _), fall in of.items() if name == "IFEval"] for of in falls.values()]
    sub = [average("L3i", m, name="sub_average_1") for m in (0, 100, 1000)]
    qwen = [
        values(*made)["IFEval", metric]
        for metric in ("ILL_acc", "ILS_acc")
        for made in (["Q2.5b"], ["Q2.5b", 0, "Q2i"])
    ]
    samples, continued = 25 * 8192, 100
    return [
        ("average loss", written(average("L3i") - average("L3i", 1000))),
        ("maximum drop", written(sub[0] - sub[1], sub[0] - sub[2])),
        ("maximum drop", written(*(end(of) for of in ifeval for end in (min, max)))),
        ("maximum drop", written(*(of[strict] for of in falls.values()))),
        ("maximum drop", written(*(-of["MMLU", "acc"] for of in falls.values()))),
        ("minimal quality", written(*(values("L3b", m)[strict] for m in (0, 100, 500, 1000)))),
        ("about 11 points", written(average("L3b", 0, "L3.1i") - average("L3i"))),
        ("about 11 points", written(average("L3b", 0, "L3.1i") - average("L3b"))),
        ("always better", written(*qwen)),
        ("25M samples", [f"{samples // continued} times", f"{10 * 8192 / continued:.0f} times"]),
    ]


def test_sentences_that_the_tables_contradict_are_recomputed() -> None:
    sentences = printed()["against_its_text"]
    assert len(sentences) == 11
    for words, figures in errata():
        [sentence] = [one for one in sentences if words in one]
        missing = [figure for figure in figures if figure not in sentence]
        assert not missing, (words, missing)


def test_residuals_lower_some_data_sets_in_the_papers_own_tables() -> None:
    llama = ["WinoGrande", "HellaSwag", "HellaSwag", "PIQA", "PIQA"]
    assert lower("L3b", "L3.1i") == lower("L3.1b", "L3i") == llama
    assert [len(lower("DocChat", residual)) for residual in ("L3i", "L3.1i")] == [8, 7]
    pairs = [
        ("L3b", "L3.1i"),
        ("L3.1b", "L3i"),
        ("Q2b", "Q2.5i"),
        ("Q2.5b", "Q2i"),
        ("DocChat", "L3i"),
        ("DocChat", "L3.1i"),
    ]
    assert all(average(start, 0, residual) > average(start) for start, residual in pairs), "by averages it is better"


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
