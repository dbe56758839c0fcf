"""The method of docs/extending.md from a file outside of the package: a run, a study's trials, the pages and
`check-method`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from extending import REFERENCE, write_method
from holdfast.cli.main import main
from holdfast.records.run import RunFolder
from holdfast.records.study import read_study


@pytest.fixture
def desk(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_method(tmp_path)
    return tmp_path


def test_trained_reported_and_continued_only_unedited(desk, asked, capsys):
    Path("run.yaml").write_text(
        yaml.safe_dump({**asked["train"], "max_steps": 2, "output_dir": "run", "retention": "none"})
    )
    words = ["train", "--config", "run.yaml", "--retention", f"{REFERENCE}:rate=0.3"]
    assert main(words) == 0
    [method] = RunFolder("run").read().retention
    assert (
        method["method"] == "dropback"
        and method["rate"] == 0.3
        and method["from"] == REFERENCE
        and len(method["sha256"]) == 16
    )
    page = (desk / "run" / "report.html").read_text(encoding="utf-8")
    assert "dropback to the start (rate 0.3" in page
    assert method["sha256"] not in page.split("</title>")[0]
    assert main(["report", "run"]) == 0
    assert main(words) == 0  # found finished
    write_method(desk, more="# another\n")
    capsys.readouterr()
    assert main(words) == 2
    assert "with source" in capsys.readouterr().err


@pytest.mark.slow
def test_a_study_tries_it(desk, asked):
    study = {
        **asked,
        "train": {**asked["train"], "max_steps": 2},
        "vary": {"retention": [{REFERENCE: {"rate": [0.1, 0.5]}}]},
    }
    Path("study.yaml").write_text(yaml.safe_dump(study))
    assert main(["sweep", "--config", "study.yaml", "--workers", "1"]) == 0
    record = read_study(Path(asked["output_dir"]))
    own = [t for t in record.trials if t.kind == "dropback"]
    assert sorted(t.params["dropback.rate"] for t in own) == [0.1, 0.5]
    assert {t.state for t in own} == {"complete"}
    assert [t.titles for t in record.trials if t.kind == "direct"] == [{}]
    assert own[0].titles == {"dropback": "dropback to the start"}, "for pages made where the file is not loaded"
    assert {t.label for t in own} == {"dropback to the start, rate 0.1", "dropback to the start, rate 0.5"}


def test_check_method(desk, capsys):
    assert main(["check-method", REFERENCE, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["sound"] and len(found["laws"]) == 8
    assert [c["what"] for c in found["copies"]] == ["anchor start"]
    broken = (
        Path("my_method.py")
        .read_text()
        .replace("self.method, self.start = method, start", "self.method, self.start, self.n = method, start, 0")
    )
    broken = broken.replace("str(step.step)", "str(self.counted())").replace(
        "    def after_step", "    def counted(self):\n        self.n += 1\n        return self.n\n\n    def after_step"
    )
    Path("broken.py").write_text(broken.replace('(WeightCopy(what="anchor start"),)', "()"))
    assert main(["check-method", "broken.py:Dropback", "--json"]) == 1
    laws = {r["law"]: r["reason"] for r in json.loads(capsys.readouterr().out)["laws"]}
    failed = [law for law, reason in laws.items() if reason]
    assert failed == ["continued from a checkpoint, the same weights", "keeps what it declares"]
    assert "state_dict" in laws[failed[0]] and "WeightCopy" in laws[failed[1]]
