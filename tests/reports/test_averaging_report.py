"""The page of the averaging theory: its figures are those of the record, its words follow the verdicts."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console
from test_report_pages import Cells, figures_of, words_of
from test_theory_report import curves

from holdfast.reports.averaging_report import (
    along_p,
    averaging_page,
    frontier,
    lead,
    learnt_by_direction,
    print_averaging,
)
from holdfast.reports.html import render, write_page
from holdfast.support.files import read_json, write_json
from holdfast.theory.averaging_settings import AveragingSettings
from holdfast.theory.averaging_study import AveragingStudy, run_averaging


@pytest.fixture(scope="module")
def study() -> AveragingStudy:
    return run_averaging(AveragingSettings(dimension=8, steps=60, seeds=3, p=(0.5, 0.1), lambdas=(0.1, 1.0)))


@pytest.fixture(scope="module")
def page(study) -> str:
    return render(averaging_page(study))


def test_figures_are_those_of_the_record(study) -> None:
    drawn = curves(frontier(study))
    for name, curve in {"SFA along p, β 0.5": "p", "L2 along λ": "l2", "p = 0.1 along β": "often"}.items():
        assert drawn[name]["x"] == pytest.approx([p.new.value for p in study.curves[curve]], rel=1e-5)
        assert drawn[name]["y"] == pytest.approx([p.old.value for p in study.curves[curve]], rel=1e-5)
    learnt = curves(learnt_by_direction(study))
    assert learnt["p = 1 (once)"]["y"] == pytest.approx(study.learnt["p = 1"], rel=1e-5)
    assert learnt["L2"]["x"] == pytest.approx(study.curvatures, rel=1e-5)
    assert "p = 0.0166667 (every step)" in learnt
    lines = curves(along_p(study))
    for g in study.geometries[3:]:
        assert lines[f"alignment {g.alignment:g}"]["y"] == pytest.approx([r.value for r in g.along_p], rel=1e-5)
        assert lines[f"alignment {g.alignment:g}"]["x"] == pytest.approx(study.fractions, rel=1e-5)


def test_tables_are_those_of_the_record(page, study) -> None:
    rows = {r["Statement"]: r for r in Cells(page).rows if "Verdict" in r}
    assert {name: r["Verdict"] for name, r in rows.items()} == {s.name: s.verdict for s in study.statements}
    assert all(rows[s.name]["Ratio"].startswith(f"{s.ratio.value:.3f} [") for s in study.statements)
    checks = {r["Identity"]: r["Holds"] for r in Cells(page).rows if "Allowed" in r}
    assert checks == {c.name: "holds" for c in study.checks}
    geometries = [r for r in Cells(page).rows if "Best p / L2" in r]
    assert [r["EWC / L2"].split()[0] for r in geometries] == [f"{g.ewc.value:.3f}" for g in study.geometries]
    assert len(figures_of(page)) == 3


def test_the_page_comes_again_from_the_json(page, study, tmp_path) -> None:
    assert "u = β / (1 − (1 − β)(1 − αh)ᵏ)" in words_of(page) and "F/(1 − ηF)" in words_of(page)
    again = AveragingStudy.from_json(read_json(write_json(tmp_path / "a.json", study)))
    assert write_page(averaging_page(again), tmp_path / "a.html").read_text(encoding="utf-8") == page


def test_words_follow_the_verdicts(study) -> None:
    verdicts = ["holds"] * 2 + ["does not hold"] * 4 + ["cannot tell"]
    told = [dataclasses.replace(s, verdict=v) for s, v in zip(study.statements, verdicts, strict=True)]
    found = lead(dataclasses.replace(study, statements=told))
    assert found.startswith("All 10 identities hold. Of 7 statements of the paper")
    assert "2 hold, 4 do not, 1 cannot be told" in found
    least = min(study.equal["p = 1"].value, study.equal["p = 0.5"].value, study.equal["p = 0.1"].value)
    least = min(least, study.equal[f"p = {1 / 60:g}"].value)
    assert f"{least:.3f} of what direct" in found and f"L2 {study.equal['l2'].value:.3f}" in found


def test_a_failed_identity_cannot_be_overlooked(study) -> None:
    broken = [dataclasses.replace(study.checks[0], passed=False, note="why"), *study.checks[1:]]
    failed = dataclasses.replace(study, checks=broken, notes=["a note"])
    assert lead(failed).startswith("9 of 10 identities hold. ")
    shown = words_of(render(averaging_page(failed)))
    assert "1 of the identities failed" in shown and ">fails<" in shown
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    print_averaging(failed, console)
    printed = console.file.getvalue()
    assert "fails" in printed and "why" in printed and "note: a note" in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_the_smallest_study_has_a_page() -> None:
    """One seed, two parameters, curvatures all alike: nothing is told, and every p is the same."""
    tiny = run_averaging(AveragingSettings(dimension=2, decay=0.0, steps=20, seeds=1, p=(0.5,), lambdas=(1.0,)))
    page = render(averaging_page(tiny))
    assert "One seed" in words_of(page) and len(figures_of(page)) == 3
    assert all("nan" not in cell.lower() for row in Cells(page).rows for cell in row.values())
