"""The method of docs/extending.md from a file outside of the package: a run, a study's trials, the pages and
`check_method`."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from extending import REFERENCE, write_method
from holdfast.cli.main import main
from holdfast.errors import ConfigError
from holdfast.records.run import RunFolder
from holdfast.testing import check_method
from holdfast.training.method_laws import LawBroken


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


def test_check_method(desk):
    assert len(check_method(REFERENCE)) == 8
    assert len(check_method({REFERENCE: {"rate": 0.3}})) == 8
    with pytest.raises(ConfigError, match="rate: expected a number of at least 0 and below 1, got 3"):
        check_method({REFERENCE: {"rate": 3}})
    with pytest.raises(ConfigError, match="expected one method, got 0"):
        check_method("none")
    broken = (
        Path("my_method.py")
        .read_text()
        .replace("self.method, self.start = method, start", "self.method, self.start, self.n = method, start, 0")
    )
    broken = broken.replace("str(step.step)", "str(self.counted())").replace(
        "    def weights", "    def counted(self):\n        self.n += 1\n        return self.n\n\n    def weights"
    )
    Path("broken.py").write_text(broken.replace('(WeightCopy(what="anchor start"),)', "()"))
    with pytest.raises(LawBroken) as caught:
        check_method("broken.py:Dropback")
    first, *reasons = str(caught.value).splitlines()
    assert first.endswith(" breaks 2 of 8 laws:")
    laws = [reason.strip().partition(": ") for reason in reasons]
    assert [law for law, _, _ in laws] == [
        "gives the same weights when it is resumed",
        "holds no more memory than it declares",
    ]
    assert "state_dict" in laws[0][2]
    assert "WeightCopy" in laws[1][2]
