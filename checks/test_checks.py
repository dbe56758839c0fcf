"""What the checks compare with can fail."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "oracles"), str(HERE.parent / "tests"), str(HERE.parent / "docs")]

import compare

import figures
import records
import what_stays
from differences import differences
from holdfast.reports.charts import Chart


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"a": 1.0}, {"a": 1.0 + 1e-9}, "part / a: 1.0 -> 1.000000001"),
        ({"a": [1, 2]}, {"a": [1, 2, 3]}, "part / a: 2 entries there, 3 now: [1, 2] -> [1, 2, 3]"),
        ({"a": 1}, {"b": 1}, "part: missing a: 1"),
        ({"a": True}, {"a": 1}, "part / a: true -> 1"),
        ({"a": "x"}, {"a": "y"}, 'part / a: "x" -> "y"'),
    ],
)
def test_differences_are_found(old, new, expected):
    assert differences(old, old, "part") == []
    assert expected in differences(old, new, "part")


def test_rounding_is_no_difference():
    assert differences({"a": 0.1 + 0.2}, {"a": 0.3}, "part") == []


def test_figures_of_text():
    text = (
        "On 2026-01-02 loss fell from 1,234.5 to −0.25 (95 % interval), +3.1 pt, 7x in 12.5 s at 300 "
        "tokens/s with torch 2.13.0"
    )
    assert figures.of_text(text) == {"+3.1pt": 1, "-0.25": 1, "1,234.5": 1, "7x": 1, "95%": 1}


def test_figures_of_a_page_whatever_its_layout(tmp_path):
    table = "<table><tr><td>1.5</td><td>2 %</td></tr></table>"
    tiles = "<style>p{margin:9px}</style><p>2 %</p><div title='4'>1.5</div>"
    script = (
        '<script type="application/json">[{"data": [{"x": [1, 2.5], "width": 3}], "layout": {"margin": '
        "[8]}}]</script><script>var a = 7;</script>"
    )
    found = []
    for name, body in (("table", table), ("tiles", tiles)):
        (tmp_path / name).write_text(f"<html><head><title>5</title></head><body>{body}{script}</body></html>")
        found.append(what_stays.of_page(tmp_path / name))
    assert found[0] == found[1] == {"read": {"1.5": 1, "2%": 1}, "drawn": {"1": 1, "2.5": 1}}


def test_a_record_is_compared_file_by_file(tmp_path, capsys):
    values = {"a/b.json": {"claims": {"1": {"verdict": "holds", "value": 0.123456789012345}}}, "c.json": ["x"] * 50_000}
    compare.record(tmp_path, {name: compare.plain(value) for name, value in values.items()})
    there = compare.recorded(tmp_path)
    assert (tmp_path / "c.json.xz").is_file() and set(there) == set(values)
    assert compare.compare("kind", there, values) == 0
    changed = {"a/b.json": {"claims": {"1": {"verdict": "cannot tell", "value": 0.1234567}}}, "d.json": []}
    assert compare.compare("kind", there, changed) == 4
    shown = capsys.readouterr().out
    assert 'claims / 1 / verdict: "holds" -> "cannot tell"' in shown and "kind/c.json: 1 differences" in shown


def test_numbers_that_json_has_no_words_for():
    assert compare.plain({1: (float("nan"), float("-inf"), True)}) == {"1": ["nan", "-inf", True]}


def test_committed_studies_are_small_and_their_tables_are_those_of_their_records():
    for folder, page in records.studies():
        readme = (folder / "README.md").read_text(encoding="utf-8")
        assert readme == records.with_record(readme, page), f"{folder}: run docs/records.py"
        assert (folder / records.PICTURE).read_text(encoding="utf-8") == records.svg(records.first(page, Chart)), folder
        assert max(path.stat().st_size for path in folder.iterdir()) <= records.LARGEST, folder
