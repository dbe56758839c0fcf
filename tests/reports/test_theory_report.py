"""The page of the regression theory: its figures are those of the record, its words follow the verdicts, it draws, it fits a phone."""

from __future__ import annotations

import dataclasses
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
from synthetic_runs import browse, chromium
from test_report_browser import console_of, look_on_phone
from test_report_pages import Cells, figures_of, value, words_of

from holdfast.reports.format import number
from holdfast.reports.theory_charts import picture_from_above, picture_from_the_side, scientific, with_interval
from holdfast.reports.theory_report import finding, lead, write_regression_report
from holdfast.support.files import read_json, write_json
from holdfast.theory.regression_study import Interval, RegressionSettings, RegressionStudy, run_study

PLOTS = 12
needs_chromium = pytest.mark.skipif(chromium() is None, reason="needs Chromium (Debian: apt-get install chromium)")


@pytest.fixture(scope="module")
def study() -> RegressionStudy:
    return run_study(
        RegressionSettings(dimension=20, pretrain_rows=12, finetune_rows=5, seeds=4, weights=(0.1, 1.0, 10.0))
    )


@pytest.fixture(scope="module")
def profile(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("chromium")


@pytest.fixture(scope="module")
def page(study, tmp_path_factory) -> str:
    return write_regression_report(tmp_path_factory.mktemp("page") / "r.html", study).read_text(encoding="utf-8")


def trace(page: str, figure: str, name: str) -> dict:
    """One curve of the figure whose y axis or x axis says `figure`."""
    for f in figures_of(page):
        titles = [f["layout"][a]["title"]["text"] for a in ("xaxis", "yaxis")]
        if figure in titles:
            return next(d for d in f["data"] if d.get("name") == name and d.get("showlegend") is not False)
    raise AssertionError(figure)


def test_figures_are_those_of_the_record(page, study) -> None:
    curves = [f for f in figures_of(page) if f["layout"]["xaxis"]["title"]["text"] == "λ"]
    assert len(curves) == 2
    for figure, kind in zip(curves, ("pretraining", "finetuning"), strict=True):
        for method, name in (("label_annealing", "label annealing"), ("l2", "L2")):
            drawn = next(d for d in figure["data"] if d.get("name") == name)
            assert drawn["x"] == [0.1, 1.0, 10.0]
            assert drawn["y"] == [getattr(p.figures, kind).value for p in study.curves[method]]
        bands = [d for d in figure["data"] if d.get("fill") == "tonexty"]
        assert [b["y"][1] for b in bands] == [
            getattr(study.curves[m][1].figures, kind).high for m in ("label_annealing", "l2")
        ]
    front = trace(page, "pre-training error", "L2")
    assert front["y"][1:-1] == [e.pretraining["l2"].value for e in study.equal_errors]
    assert (front["y"][0], front["x"][0]) == (study.direct.pretraining.value, 0.0)
    felt = trace(page, "felt by pre-training", "directions")
    assert (felt["x"], felt["y"]) == (study.directions.squares, study.directions.sensitivities)
    run = next(d for d in study.descents if d.method == "pretraining")
    drawn = trace(page, "distance to the closed form / its norm", "pre-training")
    assert (drawn["x"], drawn["y"]) == (run.at, run.distances)


def test_tables_are_those_of_the_record(page, study) -> None:
    rows = {r["Fine-tuning error left"]: r for r in Cells(page).rows if "Forgotten, L2" in r}
    assert len(rows) == len(study.equal_errors)
    for e in study.equal_errors:
        row = rows[f"{100 * e.share:g} %"]
        assert value(row["Forgotten, L2"]) == pytest.approx(e.pretraining["l2"].value, abs=5e-4)
        assert value(row["L2 / label annealing"]) == pytest.approx(e.ratio.value, abs=5e-4)
        assert row["Verdict"] == e.verdict
    checks = {r["Statement"]: r for r in Cells(page).rows if "Allowed" in r}
    assert {name: r["Holds"] for name, r in checks.items()} == {c.name: "holds" for c in study.checks}
    geometries = [r for r in Cells(page).rows if "Overlap" in r and "Slope" in r]
    assert [r["Verdict"] for r in geometries] == [g.verdict for g in study.geometries]


def test_the_page_says_what_the_paper_means(page) -> None:
    words = words_of(page)
    for text in (
        "(XX)⁻¹",
        "(XXᵀ)⁻¹ is meant",
        "(I − P)θ0 + λ/(1+λ)·Pθ0 + 1/(1+λ)·m",
        "does not follow from this theory",
        "paper 000",
    ):
        assert text in words
    assert len(figures_of(page)) == PLOTS
    assert len(page) < 3_000_000


def test_the_same_page_from_the_json(study, tmp_path) -> None:
    again = RegressionStudy.from_json(read_json(write_json(tmp_path / "r.json", study)))
    one, two = (
        write_regression_report(tmp_path / name, s).read_text(encoding="utf-8")
        for name, s in (("a.html", study), ("b.html", again))
    )
    assert one == two


@pytest.mark.parametrize(
    ("ratio", "verdict", "parts"),
    [
        (
            Interval(value=0.8, low=0.7, high=0.9, n=4),
            "L2 forgets less",
            ["L2 forgets 20 % less than label annealing", "0.800 [0.700, 0.900]"],
        ),
        (
            Interval(value=1.25, low=1.1, high=1.4, n=4),
            "label annealing forgets less",
            ["label annealing forgets 20 % less than L2"],
        ),
        (
            Interval(value=1.0, low=0.9, high=1.1, n=4),
            "no difference beyond noise",
            ["no difference between L2 and label annealing can be told here (ratio 1.000 [0.900, 1.100])"],
        ),
        (
            Interval(value=0.5, low=None, high=None, n=1),
            "one seed, no verdict",
            ["no verdict", "0.500 of label annealing's"],
        ),
        (None, "neither forgets", ["neither L2 nor label annealing forgets anything"]),
    ],
)
def test_the_finding_follows_the_verdict(study, ratio, verdict, parts) -> None:
    equal = [dataclasses.replace(e, ratio=ratio, verdict=verdict) for e in study.equal_errors]
    verdicts = [
        "L2 forgets less",
        "label annealing forgets less",
        "label annealing forgets less",
        "no difference beyond noise",
    ]
    shapes = [dataclasses.replace(g, verdict=v) for g, v in zip(study.geometries, verdicts, strict=False)]
    said = finding(dataclasses.replace(study, equal_errors=equal, geometries=shapes))
    assert all(part in said for part in parts), said
    if ratio is not None:
        assert said.endswith("of 4 geometries tried, 2 favour label annealing, 1 L2, 1 neither.")


def test_a_failed_statement_cannot_be_overlooked(study, tmp_path) -> None:
    broken = [dataclasses.replace(study.checks[0], passed=False, note="<b>note</b>"), *study.checks[1:]]
    failed = dataclasses.replace(study, checks=broken, notes=["<i>said</i>"])
    assert lead(failed).startswith("13 of 14 statements of the theory hold. ")
    page = words_of(write_regression_report(tmp_path / "r.html", failed).read_text(encoding="utf-8"))
    assert "1 statement failed" in page and ">fails<" in page
    assert "&lt;b&gt;note" in page and "<b>note" not in page and "<i>said" not in page


def test_the_smallest_study_has_a_page(tmp_path) -> None:
    """One seed, one direction, nothing forgotten: gaps are named, not drawn."""
    tiny = run_study(
        RegressionSettings(dimension=2, pretrain_rows=1, finetune_rows=1, seeds=1, overlap=0.0, weights=(1.0,))
    )
    page = write_regression_report(tmp_path / "r.html", tiny).read_text(encoding="utf-8")
    assert len(figures_of(page)) == PLOTS - 2  # no slope of one direction
    assert "nothing is forgotten" in page and "nan" not in words_of(page).rpartition("<script>")[0].lower().replace(
        "tenance", ""
    )


def test_pictures_are_drawn_to_scale() -> None:
    for alike in (True, False):
        figure = picture_from_above(alike=alike).figure
        lines = {d["name"]: d for d in figure["data"] if d["mode"] == "lines" and d.get("showlegend") is not False}
        annealed, ridge = lines["label annealing"], lines["L2"]
        (x0, x1), (y0, y1) = (annealed["x"][0], annealed["x"][-1]), (annealed["y"][0], annealed["y"][-1])
        away = lambda d: max(
            abs((x - x0) * (y1 - y0) - (y - y0) * (x1 - x0)) for x, y in zip(d["x"], d["y"], strict=True)
        )
        assert away(annealed) < 1e-12 and away(ridge) > 0.1
        assert (ridge["x"][0], ridge["y"][-1]) == (pytest.approx(x0), pytest.approx(y1))  # the same ends
        assert figure["layout"]["yaxis"]["scaleanchor"] == "x"
    heights = {d["name"]: d["y"][0] for d in picture_from_the_side().figure["data"] if d["mode"] == "markers+text"}
    assert heights.pop("m alone") == pytest.approx(0, abs=1e-12)
    assert len({round(h, 12) for h in heights.values()}) == 1 and min(heights.values()) > 0.1


def test_numbers_as_text() -> None:
    assert [scientific(v) for v in (0.0, 1.234e-11, 5e-5, math.nan, None)] == ["0", "1.2e-11", "5.0e-5", "n/a", "n/a"]
    assert with_interval(None) == "none"
    assert with_interval(Interval(value=-1.0, low=None, high=None, n=1), 1) == number(-1.0, 1)


def test_the_report_loads_no_torch() -> None:
    code = "import sys, holdfast.reports.theory_report; print(*({'torch', 'rich', 'plotly'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"


@pytest.mark.slow
@needs_chromium
def test_the_page_draws_every_figure_without_a_message(study, tmp_path, profile) -> None:
    done = browse(write_regression_report(tmp_path / "r.html", study), profile, "--dump-dom")
    assert console_of(done.stderr) == []
    plots = re.findall(r'<div class="[^"]*plot[^"]*" data-figure="\d+"', done.stdout)
    assert len(plots) == PLOTS and all("js-plotly-plot" in p for p in plots)


@pytest.mark.slow
@needs_chromium
def test_the_page_fits_a_phone(study, tmp_path, profile) -> None:
    assert look_on_phone(write_regression_report(tmp_path / "r.html", study), profile, 360) == {
        "scroll": 360,
        "outside": [],
        "drawn": PLOTS,
        "wide": 0,
    }
