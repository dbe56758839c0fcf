"""Every command that reads finished work, and every one that finds its work finished, on the gallery that real commands
made."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

import figures
import gallery as examples
from gallery import MADE
from holdfast.cli.main import main
from what_stays import normalised

STEPS = dict(examples.STEPS)
READING = {
    "report-run": 0,
    "report-evaluation": 0,
    "compare-one": 0,
    "compare-two": 0,
    "compare-measured": 0,
    "compare-failed": 3,
    "sweep-status": 0,
    "sweep-knee": 0,
    "sweep-within": 0,
    "sweep-report": 0,
    "inspect": 0,
    "inspect-two": 0,
}
"""Step: its exit code."""
PAGES = ("report.html", "README.md")
"""What reading commands write anew beside the records."""


def contents(folder: Path) -> dict[str, Any]:
    """What `MADE` left, but pages and logs: JSON without times and speeds, of other files a hash."""
    made = ("runs", "measured", "study", "updated", "residuals", "merged")
    files = (p for name in made for p in (folder / name).rglob("*") if p.is_file())
    kept = [p for p in files if p.name not in PAGES and not p.name.startswith(".") and p.suffix != ".log"]
    return {str(p.relative_to(folder)): content(p, folder) for p in kept}


def content(path: Path, root: Path) -> Any:
    if path.suffix == ".json":
        return normalised(json.loads(path.read_text()), str(root))
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("step", READING)
def test_reading_changes_nothing_that_was_made(step: str, gallery: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(gallery)
    shown = []
    for _ in range(2):
        assert main(STEPS[step]) == READING[step]
        shown.append(capsys.readouterr())
    after = contents(gallery)
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert changed <= ({"study/study.json", "study/chosen.yaml"} if "--rule" in STEPS[step] else set())
    assert shown[0].out and figures.of_text(shown[0].out) == figures.of_text(shown[1].out)
    assert "Traceback" not in shown[0].err and "nan" not in shown[0].out.lower().split()
    words = STEPS[step]
    if "--json" in words:
        assert json.loads((gallery / words[words.index("--json") + 1]).read_text())
    if changed:
        assert main(STEPS["sweep-report"]) == 0  # the rule of the study's file again
        assert contents(gallery) == before


def test_every_page_is_whole(gallery: Path) -> None:
    pages = list(gallery.rglob("*.html"))
    assert len(pages) >= 5
    for page in pages:
        assert page.read_text(encoding="utf-8").rstrip().endswith("</html>"), page


@pytest.mark.parametrize("step", MADE)
def test_finished_work_is_not_done_again(
    step: str, gallery: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    import transformers

    def fail(*args: Any, **kwargs: Any) -> None:
        pytest.fail("finished work needs neither a model nor a step")

    real = transformers.PreTrainedModel.from_pretrained

    def shapes_only(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return real.__func__(cls, *args, **kwargs) if kwargs.get("device_map") == {"": "meta"} else fail()

    monkeypatch.setattr(transformers.PreTrainedModel, "from_pretrained", classmethod(shapes_only))
    monkeypatch.setattr(torch.optim.Optimizer, "step", fail)
    before = contents(gallery)
    refused = step.startswith("merge")  # it would replace a folder, which takes --overwrite
    assert main(STEPS[step]) == (2 if refused else 0)
    assert "Traceback" not in capsys.readouterr().err
    assert contents(gallery) == before
