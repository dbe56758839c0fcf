"""Models of updates and sequences that no training holds in memory are measured by as many processes as train."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data_files import jsonl
from holdfast.evaluation.suite import parse_evaluation
from holdfast.studies.engine.models import measure_model, measuring_processes
from tiny import SENTENCES


@pytest.fixture
def plan(tmp_path: Path) -> Any:
    rows = [{"text": f"{number}. {text}"} for number in range(8) for text in SENTENCES]
    jsonl(tmp_path / "prose.jsonl", rows)
    found, problems = parse_evaluation({"keep": [str(tmp_path / "prose.jsonl")]})
    assert problems == []
    return found


def test_a_sequence_measures_in_as_many_processes_as_it_trains(
    tmp_path: Path, plan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(
        "holdfast.evaluation.session.evaluate_models", lambda *_, processes, **how: asked.append(processes)
    )
    task: Any = SimpleNamespace(console=None)
    for train in ({"num_processes": 4}, {}):
        processes = measuring_processes(train)
        measure_model(Path("merge"), plan, tmp_path, cache=tmp_path, task=task, processes=processes)
    assert asked == [4, 1]
