"""The page of the overtraining theory: its figures are those of the record, its words follow the verdicts."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console
from test_report_pages import Cells, figures_of, words_of
from test_theory_report import curves

from holdfast.reports.html import render, write_page
from holdfast.reports.overtraining_theory_report import (
    along_chart,
    cost_chart,
    inflection_chart,
    lead,
    longer_chart,
    overtraining_page,
    print_overtraining,
    sensitivity_chart,
    time_chart,
)
from holdfast.support.files import read_json, write_json
from holdfast.theory.overtraining_settings import OvertrainingSettings
from holdfast.theory.overtraining_study import OvertrainingStudy, run_overtraining


@pytest.fixture(scope="module")
def study() -> OvertrainingStudy:
    return run_overtraining(
        OvertrainingSettings(dimension=4, ratio=0.5, tau=120, seeds=3, gammas=(0.1, 0.3), lambdas=(0.5, 2.0))
    )


@pytest.fixture(scope="module")
def page(study) -> str:
    return render(overtraining_page(study))


def test_figures_are_those_of_the_record(study) -> None:
    for noise, sign, every in ((True, "γ", study.noise), (False, "λ", study.tuning)):
        lines, felt = curves(along_chart(study, noise=noise)), curves(sensitivity_chart(study, noise=noise))
        assert lines["base"]["y"] == pytest.approx([i.value for i in study.base], rel=1e-5)
        for along in every:
            name = f"{sign} {along.strength:g}"
            assert lines[name]["y"] == pytest.approx([i.value for i in along.loss], rel=1e-5)
            assert felt[name]["y"] == pytest.approx([i.value for i in along.sensitivity], rel=1e-5, abs=1e-9)
        rows = inflection_chart(study, noise=noise).rows
        assert [r["y"].value for r in rows] == [a.inflection.value for a in every]
        marks = time_chart(study, noise=noise).rows
        assert [r["x"] for r in marks] == study.first.checkpoints and len(marks) == 4
    costs = curves(cost_chart(study))
    assert costs["new task's loss"]["y"] == pytest.approx([a.task[-1].value for a in study.tuning], rel=1e-5)
    assert list(curves(longer_chart(study))) == [f"× {k}" for k in study.first.longer]


def test_tables_are_those_of_the_record(page, study) -> None:
    rows = {r["Statement"]: r for r in Cells(page).rows if "Verdict" in r}
    assert {name: r["Verdict"] for name, r in rows.items()} == {s.name: s.verdict for s in study.statements}
    checks = {r["Closed form"]: r["Holds"] for r in Cells(page).rows if "Allowed" in r}
    assert checks == {c.name: "holds" for c in study.checks}
    assert len(figures_of(page)) == 11


def test_the_page_comes_again_from_the_json(page, study, tmp_path) -> None:
    again = OvertrainingStudy.from_json(read_json(write_json(tmp_path / "a.json", study)))
    assert write_page(overtraining_page(again), tmp_path / "a.html").read_text(encoding="utf-8") == page
    assert "(f + λs)/(1 + λ)" in words_of(page)


def test_a_failed_check_cannot_be_overlooked(study) -> None:
    broken = [dataclasses.replace(study.checks[0], passed=False, note="why"), *study.checks[1:]]
    failed = dataclasses.replace(study, checks=broken, notes=["a note"])
    assert lead(failed).startswith("12 of 13 closed forms hold. ")
    assert "1 of the closed forms failed" in words_of(render(overtraining_page(failed)))
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    print_overtraining(failed, console)
    printed = console.file.getvalue()
    assert "fails" in printed and "why" in printed and "note: a note" in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_the_smallest_study_has_a_page() -> None:
    """One seed, two features, one modification of each kind."""
    tiny = run_overtraining(OvertrainingSettings(dimension=2, tau=20, seeds=1, gammas=(0.1,), lambdas=(1.0,)))
    page = render(overtraining_page(tiny))
    assert "One seed" in words_of(page) and len(figures_of(page)) == 11
    assert all("nan" not in cell.lower() for row in Cells(page).rows for cell in row.values())
