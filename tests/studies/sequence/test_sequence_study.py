"""The study through the engine: every model once, arms with their figures, failures and continuation."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console

from holdfast.errors import RunFolderError
from holdfast.studies.sequence.plan import sequence_config
from holdfast.studies.sequence.study import run_sequence


def quiet():
    return Console(file=io.StringIO(), width=160)


def test_a_folder_with_something_else_stays_as_it_is(asked, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="not empty"):
        run_sequence(sequence_config(asked()), console=quiet(), workers=1)


def test_another_study_is_not_continued(asked):
    config = sequence_config(asked())
    assert config.differences(config.resolved) == []
    other = dataclasses.replace(config, resolved={**config.resolved, "curve": 3})
    assert other.differences(config.resolved) == ["curve: was 2, is 3"]
