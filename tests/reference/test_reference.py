"""The record of what has to stay: this tree agrees with it, and what it compares with can fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import commandline
import figures
import pytest
import record

HERE = Path(__file__).parent


def check(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(HERE / "record.py"), "--check", *words], text=True, capture_output=True)


def test_names_and_commands_are_as_recorded(tmp_path, monkeypatch, capsys):
    for name, value in commandline.QUIET.items():
        monkeypatch.setenv(name, value)
    assert record.check(["names", "commands"], tmp_path, HERE / "expected", None) == 0, capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_everything_is_as_recorded():
    done = check()
    elsewhere = "The record was made elsewhere" in done.stdout
    assert done.returncode == (2 if elsewhere else 0), done.stdout + done.stderr


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
    assert record.differences(old, old, "part") == []
    assert expected in record.differences(old, new, "part")


def test_rounding_is_no_difference():
    assert record.differences({"a": 0.1 + 0.2}, {"a": 0.3}, "part") == []


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
        found.append(figures.of_page(tmp_path / name))
    assert found[0] == found[1] == {"read": {"1.5": 1, "2%": 1}, "drawn": {"1": 1, "2.5": 1}}
