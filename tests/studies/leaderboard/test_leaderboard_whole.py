"""The shipped leaderboard of minutes, run for real on a base of seconds."""

from __future__ import annotations

import functools
import io
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from holdfast.studies.engine import small
from holdfast.studies.leaderboard.board import run_leaderboard
from holdfast.studies.leaderboard.settings import leaderboard_config
from holdfast.studies.tradeoff.session import Tradeoff
from holdfast.worlds import small_settings

TINY = Path(__file__).parents[3] / "configs" / "leaderboard" / "tiny.yaml"


@pytest.mark.slow
def test_the_tiny_leaderboard(tmp_path, monkeypatch):
    """Every way has a row, a place for its settings and what a step costs; direct fine-tuning learns in sixty steps."""
    quick = functools.partial(small_settings.make_setting, quick=True)
    monkeypatch.setattr(small_settings, "make_setting", quick)
    monkeypatch.setattr(Tradeoff, "one_in_process", True)
    values = yaml.safe_load(TINY.read_text()) | {"output_dir": str(tmp_path / "board"), "workers": 1}
    assert small.recorded("code"), "the record's version does not depend on the size"
    record = run_leaderboard(leaderboard_config(values), console=Console(file=io.StringIO(), width=200))
    [track] = record.tracks
    assert track.status == "finished" and track.runs == 15 and track.gained.value > 0
    assert {row.way for row in track.rows} == {"direct fine-tuning", "label annealing", "L2"}
    assert all(row.complete == row.trials and row.curves and row.seconds_a_step > 0 for row in track.rows)
    assert track.reason or all(len(row.levels) == 3 for row in track.rows)
    assert "functions against prose" in (tmp_path / "board" / "README.md").read_text()
