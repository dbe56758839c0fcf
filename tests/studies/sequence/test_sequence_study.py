"""The study through the engine: every model once, arms with their figures, failures and continuation."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console

from holdfast.errors import RunFolderError
from holdfast.studies.engine.session import execute_study
from holdfast.studies.sequence.plan import SequenceConfig
from holdfast.studies.sequence.study import SequenceStudy


def quiet():
    return Console(file=io.StringIO(), width=160)


def test_a_folder_with_something_else_stays_as_it_is(asked, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="not empty"):
        execute_study(SequenceStudy(SequenceConfig.read(asked())), console=quiet(), workers=1)


def test_another_study_is_not_continued(asked):
    config = SequenceConfig.read(asked())
    assert config.differences(config.resolved) == []
    other = dataclasses.replace(config, resolved={**config.resolved, "curve": 3})
    assert other.differences(config.resolved) == ["curve: was 2, is 3"]


@pytest.mark.slow
def test_an_arm_that_comes_later_gets_models_whose_weights_were_not_kept(asked, monkeypatch):
    monkeypatch.setattr(SequenceStudy, "one_in_process", True)
    first = SequenceConfig.read(asked(names=("rivers", "letters", "music")))
    execute_study(SequenceStudy(first), console=quiet(), workers=1)
    made = [first.folder(name, 0) for name in first.chains[0].models]
    assert [any(folder.glob("*.safetensors")) for folder in made] == [False, False, True]

    later = SequenceConfig.read(
        asked(names=("rivers", "letters", "music"), arms=["sequential", "single", {"l2": {"coefficient": 0.1}}])
    )
    console = quiet()
    record = execute_study(SequenceStudy(later), console=console, workers=1)
    assert len(record.arms) == 3 and "made again" in console.file.getvalue()
    left = [name for name in later.models if any(later.folder(name, 0).glob("*.safetensors"))]
    assert set(left) == {chain.models[-1] for chain in later.chains}
