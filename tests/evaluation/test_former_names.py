"""Suites, entries, studies and options with names that were given up are read as those of today."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evaluation.conftest import parsed
from holdfast.config.command_line import parse_words
from holdfast.config.declare import settings_of
from holdfast.config.decode import coerce_all, decode
from holdfast.evaluation.former_names import current_section
from holdfast.evaluation.shipped import read_suites
from holdfast.papers.overtraining.settings import OvertrainingSettings
from holdfast.runs.settings import OwnSettings
from holdfast.studies.sequence.settings import SequenceSettings
from holdfast.studies.stages.plan import StagesConfig
from holdfast.studies.sweep.settings import Objectives
from holdfast.studies.sweep.study import StudyConfig

OLD: dict[str, Any] = {
    "source": [{"choices": "q.jsonl", "unit": "fact"}, "q.jsonl"],
    "target": [{"lettered": "q.jsonl", "name": "letters"}],
    "averages": {"both": ["source/q", "target/letters"]},
}
NEW: dict[str, Any] = {
    "keep": [{"multiple_choice": "q.jsonl", "cluster": "fact"}, "q.jsonl"],
    "learn": [{"multiple_choice_letters": "q.jsonl", "name": "letters"}],
    "averages": {"both": ["keep/q", "learn/letters"]},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "q.jsonl").write_text(json.dumps({"prompt": "a", "options": [" b", " c"], "answer": 0}) + "\n")
    return tmp_path


def test_a_section_means_what_it_meant(folder):
    first = {**OLD, "source": OLD["source"][:1]}
    second = {**NEW, "keep": NEW["keep"][:1]}
    assert parsed(first, folder) == parsed(second, folder)
    assert parsed(first, folder)[1] == []
    assert current_section({"source": ["a"], "keep": ["b"]}) == {"source": ["a"], "keep": ["b"]}, "a suite of one's own"
    both = {"source": ["a"], "keep": ["b"], "averages": {"all": ["source/a"]}, "along": {"entries": ["source"]}}
    assert current_section(both) == both, "what names the former suite means it"
    along = current_section({"source": ["a"], "along": {"every": 2, "entries": ["source"]}})
    assert along == {"keep": ["a"], "along": {"every": 2, "entries": ["keep"]}}


def test_a_suite_file_means_what_it_meant(folder):
    (folder / "suite.yaml").write_text("source: [{choices: q.jsonl}]\ntarget: [{classes: q.jsonl}]\n")
    merged, problems = read_suites([str(folder / "suite.yaml")])
    assert problems == [] and [*merged] == ["keep", "learn"]
    assert [next(iter(entry)) for entries in merged.values() for entry in entries] == [
        "multiple_choice",
        "classification",
    ]


def test_options_and_keys_of_settings():
    known = {setting.name: setting for setting in settings_of(OwnSettings)}
    given = parse_words(["--source", "a.jsonl", "--target", "b.jsonl"], known)
    assert coerce_all(known, given.values) == ({"keep": ("a.jsonl",), "learn": ("b.jsonl",)}, [])
    objectives, problems = decode(Objectives, {"target": ["x"], "source": ["y"]})
    assert problems == [] and objectives == Objectives(learn=("x",), keep=("y",))
    for cls, old, new in (
        (SequenceSettings, "hold_first", "from_first_task"),
        (SequenceSettings, "source", "keep"),
        (OvertrainingSettings, "generalist", "keep"),
        (OvertrainingSettings, "most_perplexity", "max_perplexity"),
    ):
        names = {name: setting.name for setting in settings_of(cls) for name in setting.meta.former}
        assert names[old] == new


def test_keys_whose_values_tell():
    current = StudyConfig.current_keys({"keep": "none", "vary": {"retention": ["l2"], "max_steps": [1]}})
    assert current == {"keep_weights": "none", "arms": ["l2"], "vary": {"max_steps": [1]}}
    assert StudyConfig.current_keys({"keep": ["a"]}) == {"keep": ["a"]}
    stages = StagesConfig.current_keys({"evaluation": [{"task": "mmlu"}], "measuring": {"batch_size": 2}})
    assert stages == {"keep": [{"task": "mmlu"}], "evaluation": {"batch_size": 2}}
