"""What every study is asked for is declared once, and a study's name is a folder's."""

from __future__ import annotations

import dataclasses

import pytest

from holdfast.config.decode import decode
from holdfast.config.raw_request import RawRequest
from holdfast.papers.ladder.settings import LadderSettings
from holdfast.papers.overtraining.settings import OvertrainingSettings
from holdfast.papers.residual.settings import StudySettings
from holdfast.studies.engine.keys import BaseStudySettings
from holdfast.studies.sequence.settings import SequenceSettings
from holdfast.studies.stages.settings import StagesSettings
from holdfast.studies.sweep.settings import SweepSettings

STUDIES = [
    SweepSettings,
    SequenceSettings,
    StagesSettings,
    LadderSettings,
    OvertrainingSettings,
    StudySettings,
]


def names_wrong(cls, name):
    _, problems = decode(cls, RawRequest(values={"name": name}).set_here(cls))
    return [m for m in problems if getattr(m, "path", None) == ("name",)]


@pytest.mark.parametrize("cls", STUDIES, ids=lambda c: c.__name__)
def test_a_name_is_a_folder_of_its_own(cls):
    for name in ("..", ".", ".hidden", "a/b", "-x", "a b", ""):
        [problem] = names_wrong(cls, name)
        assert problem.text == f"expected letters, digits, '.', '_' and '-', got {name!r}."
    for name in ("a", "math-code.2", "2026_01"):
        assert not names_wrong(cls, name)


@pytest.mark.parametrize("cls", STUDIES, ids=lambda c: c.__name__)
def test_keys_of_studies_are_declared_once(cls):
    keys = {f.name for f in dataclasses.fields(BaseStudySettings)} - {"name"}
    assert not keys & set(vars(cls).get("__annotations__", {}))


def test_folder_and_database_follow_from_the_name():
    keys = BaseStudySettings(name="mine")
    assert str(keys.folder) == "runs/mine"
    assert keys.database == "sqlite:///runs/mine/study.db"
    assert BaseStudySettings(storage="postgresql://u@h/d").database == "postgresql://u@h/d"
