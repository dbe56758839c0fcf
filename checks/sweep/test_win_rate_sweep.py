"""A sweep whose target is a win rate: real runs of a tiny model, a judge that the test scripts."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from evaluation.fake_endpoint import FakeEndpoint, completion
from holdfast.reports.html import render
from holdfast.reports.sweep_report import sweep_page
from holdfast.statistics.selection import select_all
from holdfast.studies.engine.storage import Storage
from holdfast.studies.engine.worker import work
from holdfast.studies.sweep.record import study_record
from holdfast.studies.sweep.session import SweepStudy
from holdfast.studies.sweep.study import StudyConfig
from tiny import SENTENCES

pytest.importorskip("openai", reason="judging needs the extra 'judge'")


def by_letters(instruction: str, first: str, second: str):
    """The output with more different letters is better."""
    p = 0.5 + 0.4 * ((len({*first}) > len({*second})) - (len({*first}) < len({*second})))
    return completion("m" if p >= 0.5 else "M", p)


def test_the_target_is_what_a_judge_prefers_to_the_start(asked, tmp_path):
    """Rules, page and claims read it as any other share; the start is measured once, and nothing is asked twice."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"instruction": s[:30]}) + "\n" for s in SENTENCES))
    with FakeEndpoint(rule=by_letters) as server:
        entry = {"win_rate": str(prompts), "judge_model": "judge", "base_url": server.url, "max_new_tokens": 12}
        asked["train"]["evaluation"] = {**asked["train"]["evaluation"], "learn": [entry]}
        asked |= {"arms": [{"label_annealing": {"weight": [0.5]}}], "objectives": {"learn": "prompts"}}
        asked["train"] |= {"max_steps": 4, "save_strategy": "no"}
        config = StudyConfig.read(asked)
        storage = Storage(config.storage)
        queue = storage.open_study(config)
        work(storage, queue, SweepStudy(config), console=Console(file=io.StringIO()))
        record = study_record(storage.state(queue), config)
        storage.close()
        requests = [r.message for r in server.asked]
    assert [t.state for t in record.trials] == ["complete", "complete"]
    assert (record.learn.label, record.learn.unit, record.learn.higher_is_better) == ("prompts", "win_rate", True)
    for trial in record.trials:
        (run,) = trial.runs
        compared = {c.metric: c for c in run.comparisons if c.suite == "learn"}
        assert {*compared} == {"win_rate", "length_controlled_win_rate"}
        assert compared["win_rate"].before == 0.5
        rows = config.output_dir / run.folder / "evaluations" / "result" / "learn.prompts.samples.jsonl"
        found = [json.loads(line)["win_rate"] for line in rows.read_text().splitlines()]
        assert compared["win_rate"].after == pytest.approx(sum(found) / len(found))
    assert requests and len(requests) == len({*requests})
    starts = config.output_dir.glob("evaluations/*/evaluation.json")
    assert sum(json.loads(p.read_text())["model"]["name"].endswith("base") for p in starts) == 2  # prose, prompts
    selections = select_all(record)
    assert all(s.candidates == [0, 1] for s in selections)
    page = render(sweep_page(record, Path(), selections=selections))
    assert "learn prompts (win_rate, higher is better" in page
