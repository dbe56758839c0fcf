"""Whole stages studies of seconds: judged, killed and continued, a paper's claims."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.errors import ConfigError
from holdfast.records.stages import CONTROL, RESTORED, TUNED, VERDICTS, read_stages
from holdfast.studies.engine.session import execute_study
from holdfast.studies.stages.plan import StagesConfig

LETTERED = "knowledge/old_lettered"


def quick_values(place: Path, **changes: Any) -> dict[str, Any]:
    """A study of seconds, as its YAML has it."""
    from holdfast.papers.worlds.toy_settings import make_setting
    from holdfast.studies.engine.toy import fill

    recipe = Path(__file__).parents[1] / "src/holdfast/papers/recipes/stages/tiny.yaml"
    values = yaml.safe_load(recipe.read_text())
    values.pop("toy")
    values = fill(values, make_setting("stages", place / "data", quick=True))
    values["train"]["num_train_epochs"] = 1
    values |= {"probing_passages": 8, "output_dir": "study", "curve": 2, "tokens": 2000, "even_at_chance": True}
    values["doses"] = [1, 2]
    values["along"] = {"steps": [1, 2], "entries": ["old_lettered"]}
    return {**values, **changes}


def test_a_whole_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fine-tuned, restored, judged; a second call does nothing."""
    from holdfast.studies.stages.study import StagesStudy

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    config = StagesConfig.read(quick_values(tmp_path, with_retention="label_annealing"))
    record = execute_study(StagesStudy(config), workers=1)
    assert record.status == "finished" and record == read_stages("study")
    arms = [v.arm for v in record.verdicts]
    assert arms == ["direct"] * 4 + ["remedy"] * 4, "facts, letters, problems and chat of each"
    assert all(v.verdict in VERDICTS and v.why for v in record.verdicts)
    assert record.doses == [1, 2] and record.epoch_tokens is not None and record.epoch_tokens > 100
    restored_twice = [(RESTORED, "direct", 1, dose) for dose in (1, 2)]
    for role, arm, place, dose in ((CONTROL, "", 0, 1), (TUNED, "direct", 1, 1), *restored_twice):
        model = record.model(role, arm, place, dose)
        entries = {
            "probing/probing",
            "knowledge/old_facts",
            "knowledge/old_lettered",
            "knowledge/old_problems",
            "knowledge/old_chat",
            "knowledge/learnt",
        }
        assert model is not None and entries == set(model.figures)
    restored = record.model(RESTORED, "direct", 1)
    assert restored is not None and len(restored.curve) == 3 and restored.tokens > 1000
    assert (restored.curve[0][0], restored.curve[-1][0]) == (0.0, 1.0)
    assert set(record.along) == {"direct", "remedy"}
    assert [p.step for p in record.along["direct"]][:3] == [0, 1, 2]
    assert all("mass" in e.metrics for p in record.along["direct"][1:3] for e in p.evaluations)
    assert [set(p.changed) for p in record.along["direct"][:3]] == [set(), {LETTERED}, {LETTERED}]
    assert not list(Path("study").rglob("*.safetensors")), "nothing is kept"
    page = Path("study/report.html").read_text()
    assert record.verdicts[0].verdict in page
    assert "Along fine-tuning: direct" in page and "against the text pattern (direct)" in page
    assert "memorised:" in page and "the answer changes on" in page
    before = {p: p.stat().st_mtime_ns for p in Path("study/runs").rglob("*") if p.is_file()}
    assert execute_study(StagesStudy(config), workers=1).verdicts == record.verdicts
    assert {p: p.stat().st_mtime_ns for p in Path("study/runs").rglob("*") if p.is_file()} == before


def test_the_base_writes_its_own_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.studies.stages.study import StagesStudy

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    config = StagesConfig.read(quick_values(tmp_path, corpus=["generated"], along={}, doses=[1]))
    record = execute_study(StagesStudy(config), workers=1)
    assert record.status == "finished" and all(v.verdict in VERDICTS for v in record.verdicts)
    assert record.texts["generated"]["tokens"] >= 2000
    assert any("may have taught these answers again" in note for note in record.notes)
    page = Path("study/report.html").read_text()
    assert "the base itself:" in page and "may have taught these answers again" in page


def test_a_restoring_that_is_killed_ends_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os
    import signal
    import subprocess
    import sys
    import time

    from holdfast.studies.stages.study import StagesStudy

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    values = quick_values(tmp_path, keep_weights="all", curve=0, along={}, doses=[1])
    values["restore"] |= {"save_strategy": "steps", "save_steps": 2, "per_device_train_batch_size": 2}
    execute_study(StagesStudy(StagesConfig.read({**values, "output_dir": "whole"})), workers=1)

    Path("killed.yaml").write_text(yaml.safe_dump({**values, "output_dir": "killed"}))
    command = [sys.executable, "-m", "holdfast", "diagnose", "--config", "killed.yaml", "--workers", "1"]
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    run = Path("killed/runs/direct-1-restored")
    while started.poll() is None and not list(run.glob("checkpoint-*/manifest.json")):
        time.sleep(0.01)
    os.killpg(started.pid, signal.SIGKILL)
    started.wait()
    assert not (run / "model.safetensors").is_file(), "killed in the middle"
    execute_study(StagesStudy(StagesConfig.read({**values, "output_dir": "killed"})), workers=1, grace=0.5)
    for name in ("base-restored", "direct-1-restored"):
        whole, killed = (Path(study, "runs", name, "model.safetensors").read_bytes() for study in ("whole", "killed"))
        assert whole == killed, name


def test_a_quick_reproduction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    from rich.console import Console

    from holdfast.papers.stages.claims import STATEMENTS
    from holdfast.papers.stages.reproduction import reproduce

    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    console = Console(file=io.StringIO(), width=200)
    claims = reproduce(size="quick", workers=1, output_dir=tmp_path / "out", console=console)
    assert [c.number for c in claims] == [s.number for s in STATEMENTS]
    lacking = [c.number for c in claims if any("was not measured" in part for part in c.parts)]
    assert lacking == ["5"], "every rule finds its figures; a base at chance has no transition to forgetting"
    unknown = {p.name for c in claims for p in c.preconditions if p.value is None}
    assert unknown <= {"fine-tuning does not destroy the model"}, "of a base at chance"
    page = (tmp_path / "out" / "claims.html").read_text()
    assert "a quick check" in page and "narrow-0/report.html" in page
    with pytest.raises(ConfigError, match="a size of small has world-6"):
        reproduce(recipes=["world-7"], output_dir=tmp_path / "out", console=console)
    with pytest.raises(ConfigError, match="Did you mean 'world-7'"):
        reproduce(recipes=["world7"], output_dir=tmp_path / "out", console=console)
