"""The page of the regression theory: its figures are those of the record, its words follow the verdicts."""

from __future__ import annotations

import dataclasses
import io
import math
import subprocess
import sys
from typing import Any

import pytest
from rich.console import Console
from test_report_pages import Cells, figures_of, value, words_of

from holdfast.reports.blocks import words
from holdfast.reports.charts import Chart, plotly_figure
from holdfast.reports.format import number
from holdfast.reports.html import render, write_page
from holdfast.reports.theory_charts import (
    against_lambda,
    convergence,
    fresh_frontier,
    frontier,
    in_words,
    picture_from_above,
    picture_from_the_side,
    scientific,
    seen_by_pretraining,
)
from holdfast.reports.theory_report import finding, lead, print_regression, regression_page
from holdfast.support.files import read_json, write_json
from holdfast.theory.findings import Interval
from holdfast.theory.regression_study import RegressionSettings, RegressionStudy, run_regression

PLOTS = 12


@pytest.fixture(scope="module")
def study() -> RegressionStudy:
    return run_regression(
        RegressionSettings(dimension=20, pretrain_rows=12, finetune_rows=5, seeds=4, weights=(0.1, 1.0, 10.0))
    )


@pytest.fixture(scope="module")
def page(study) -> str:
    return render(regression_page(study))


def curves(chart: Chart | None) -> dict[str, Any]:
    """What a chart draws, by the names of its legend."""
    assert chart is not None
    return {d["name"]: d for d in plotly_figure(chart)["data"] if d.get("name")}


def test_figures_are_those_of_the_record(study) -> None:
    methods = {"label_annealing": "label annealing", "l2": "L2"}
    for kind in ("pretraining", "finetuning"):
        chart = against_lambda(study, pretraining=kind == "pretraining")
        for method, name in methods.items():
            drawn = curves(chart)[name]
            assert drawn["x"] == [0.1, 1.0, 10.0]
            assert drawn["y"] == pytest.approx([getattr(p.figures, kind).value for p in study.curves[method]], rel=1e-5)
        bands = [d["y"][1] for d in plotly_figure(chart)["data"] if d.get("fill") == "tonexty"]
        assert bands == [getattr(study.curves[m][1].figures, kind).high for m in methods]
    front = curves(frontier(study))["L2"]
    assert front["y"][1:-1] == pytest.approx([e.pretraining["l2"].value for e in study.equal_errors], rel=1e-5)
    assert (front["y"][0], front["x"][0]) == (pytest.approx(study.direct.pretraining.value, rel=1e-5), 0.0)
    felt = curves(seen_by_pretraining(study))["directions"]
    assert felt["x"] == pytest.approx(study.directions.squares, rel=1e-5)
    assert felt["y"] == pytest.approx(study.directions.sensitivities, rel=1e-5)
    for first in (True, False):
        drawn = curves(convergence(study, pretraining=first))
        run = next(d for d in study.descents if (d.method == "pretraining") == first)
        assert drawn[("pre-training" if first else "direct fine-tuning")]["y"] == run.distances
        assert "predicted from the spectrum" in drawn


def test_tables_are_those_of_the_record(page, study) -> None:
    rows = {r["Fine-tuning error left"]: r for r in Cells(page).rows if "Verdict" in r and "Label annealing" in r}
    for e in study.equal_errors:
        row = rows[f"{100 * e.share:g} %"]
        assert value(row["L2"]) == pytest.approx(e.pretraining["l2"].value, abs=5e-5)
        assert value(row["L2 / label annealing"]) == pytest.approx(e.ratio.value, abs=5e-4)
        assert row["Verdict"] == e.verdict
    checks = {r["Statement"]: r for r in Cells(page).rows if "Allowed" in r}
    assert {name: r["Holds"] for name, r in checks.items()} == {c.name: "holds" for c in study.checks}
    geometries = [r for r in Cells(page).rows if "Overlap" in r and "Slope" in r]
    assert [r["Verdict"] for r in geometries] == [g.verdict for g in study.geometries]


def test_the_page_says_what_the_paper_means_and_comes_again_from_the_json(page, study, tmp_path) -> None:
    for text in (
        "(XX)⁻¹",
        "(XXᵀ)⁻¹ is meant",
        "(I − P)θ0 + λ/(1+λ)·Pθ0 + 1/(1+λ)·m",
        "does not follow from this theory",
    ):
        assert text in words_of(page)
    assert len(figures_of(page)) == PLOTS
    again = RegressionStudy.from_json(read_json(write_json(tmp_path / "r.json", study)))
    assert write_page(regression_page(again), tmp_path / "r.html").read_text(encoding="utf-8") == page


@pytest.mark.parametrize(
    ("ratio", "verdict", "parts"),
    [
        ((0.8, 0.7, 0.9), "L2 forgets less", ["L2 forgets 20 % less than label annealing", "0.800 [0.700, 0.900]"]),
        ((1.25, 1.1, 1.4), "label annealing forgets less", ["label annealing forgets 20 % less than L2"]),
        (
            (1.0, 0.9, 1.1),
            "no difference beyond noise",
            ["no difference between L2 and label annealing is established here (ratio 1.000 [0.900, 1.100])"],
        ),
        ((0.5, None, None), "one seed, no verdict", ["no verdict", "0.500 of label annealing's"]),
        (None, "neither forgets", ["neither L2 nor label annealing forgets anything"]),
    ],
)
def test_the_finding_follows_the_verdict(study, ratio, verdict, parts) -> None:
    interval = None if ratio is None else Interval(value=ratio[0], low=ratio[1], high=ratio[2], n=4)
    equal = [dataclasses.replace(e, ratio=interval, verdict=verdict) for e in study.equal_errors]
    verdicts = ["L2 forgets less", *["label annealing forgets less"] * 2, "no difference beyond noise"]
    shapes = [dataclasses.replace(g, verdict=v) for g, v in zip(study.geometries, verdicts, strict=False)]
    text = finding(dataclasses.replace(study, equal_errors=equal, geometries=shapes))
    assert all(part in text for part in parts), text
    if ratio is not None:
        assert text.endswith("of 4 geometries tried, 2 favour label annealing, 1 L2, 1 neither.")


def test_a_failed_statement_cannot_be_overlooked(study) -> None:
    broken = [dataclasses.replace(study.checks[0], passed=False, note="why"), *study.checks[1:]]
    failed = dataclasses.replace(study, checks=broken, notes=["a note"])
    assert lead(failed).startswith("13 of 14 statements of the theory hold. ")
    shown = words_of(render(regression_page(failed)))
    assert "1 statement failed" in shown and ">fails<" in shown
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    print_regression(failed, console)
    printed = console.file.getvalue()
    assert "fails" in printed and "why" in printed and "note: a note" in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_eighty_columns_break_no_word_of_a_verdict(study) -> None:
    some = Interval(value=0.1425, low=0.0399, high=0.2450, n=4)
    figures = {"pretraining": dict.fromkeys(study.equal_errors[0].pretraining, some), "ratio": some}
    verdict = "no difference beyond noise"
    equal = [dataclasses.replace(e, verdict=verdict, **figures) for e in study.equal_errors]
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    print_regression(dataclasses.replace(study, equal_errors=equal), console)
    table = console.file.getvalue().rpartition("L2 / label")[2].split()
    assert table.count("difference") == table.count("beyond") == len(equal) and "[0.0399," in table


def test_the_smallest_study_has_a_page() -> None:
    """One seed, one direction, nothing forgotten: gaps are named, not drawn."""
    tiny = run_regression(
        RegressionSettings(dimension=2, pretrain_rows=1, finetune_rows=1, seeds=1, overlap=0.0, weights=(1.0,))
    )
    found = regression_page(tiny)
    shown = words_of(render(found))
    assert len(figures_of(shown)) == PLOTS - 2  # no slope of one direction
    assert "nothing is forgotten" in shown
    cells = [words(c).lower() for chart in (frontier(tiny),) for row in chart.table.rows for c in row]
    assert "none" in cells and not any("nan" in c for c in cells)


def test_the_fresh_frontier_says_where_fitting_all_rows_hurts(study) -> None:
    joint, direct = (f.fresh_pretraining for f in (study.joint, study.direct))
    assert ("the triangle is worse" in fresh_frontier(study).caption) == (joint.value > direct.value)
    swapped = dataclasses.replace(study, joint=study.direct, direct=study.joint)
    assert ("the triangle is worse" in fresh_frontier(swapped).caption) == (direct.value > joint.value)


def test_pictures_are_drawn_to_scale() -> None:
    for alike in (True, False):
        chart = picture_from_above(alike=alike)
        lines = curves(chart)
        annealed, ridge = lines["label annealing"], lines["L2"]
        (x0, x1), (y0, y1) = (annealed["x"][0], annealed["x"][-1]), (annealed["y"][0], annealed["y"][-1])

        def away(d: dict[str, Any]) -> float:
            pairs = zip(d["x"], d["y"], strict=True)
            return max(abs((x - x0) * (y1 - y0) - (y - y0) * (x1 - x0)) for x, y in pairs)

        assert away(annealed) < 1e-5 and away(ridge) > 0.1
        assert (ridge["x"][0], ridge["y"][-1]) == (pytest.approx(x0), pytest.approx(y1))  # the same ends
        assert plotly_figure(chart)["layout"]["yaxis"]["scaleanchor"] == "x"
        (left, right), (low, high) = chart.x.range, chart.y.range
        assert all(left < r["x"] < right and low < r["y"] < high for r in chart.rows)
    heights = {r["name"]: r["y"] for r in picture_from_the_side().rows}
    assert heights.pop("m alone") == pytest.approx(0, abs=1e-12)
    assert len({round(h, 12) for h in heights.values()}) == 1 and min(heights.values()) > 0.1


def test_numbers_as_text() -> None:
    assert [scientific(v) for v in (0.0, 1.234e-11, 5e-5, math.nan, None)] == ["0", "1.2e-11", "5.0e-5", "n/a", "n/a"]
    assert in_words(None) == "none"
    assert in_words(Interval(value=-1.0, low=None, high=None, n=1), 1) == number(-1.0, 1)


def test_the_report_loads_no_torch() -> None:
    code = "import sys, holdfast.reports.theory_report; print(*({'torch', 'rich', 'plotly'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"
