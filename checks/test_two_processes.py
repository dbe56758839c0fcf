"""`holdfast train --num_processes 2` on CPUs: distributed for real, and the same weights as one process with the same
global batch, with a method in the user's own file, also where a script of the user's calls the command; and of
streamed rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from extending import REFERENCE, write_method
from holdfast.cli.main import main
from holdfast.records.run import RunFolder
from runs import conftest, test_run_streaming
from small_runs import run_of
from tiny import SENTENCES

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(240)]
least, settings = conftest.least, test_run_streaming.settings
WRAPPER = """
import sys
from holdfast.cli.main import main
if __name__ == "__main__":
    sys.exit(main())
"""


def train(place: Path, model: Path, name: str, *options: str) -> Path:
    command = [
        "train",
        "--model_name_or_path",
        str(model),
        "--dataset_name",
        "train.jsonl",
        "--output_dir",
        name,
        "--max_steps",
        "6",
        "--optim",
        "sgd",
        "--learning_rate",
        "0.1",
        "--lr_scheduler_type",
        "constant",
        "--logging_steps",
        "2",
        "--save_steps",
        "3",
        "--max_length",
        "64",
        "--retention",
        "label_annealing:weight=1.0",
        "--retention",
        f"{REFERENCE}:rate=0.2",
        "--keep",
        "held_out.jsonl",
        *options,
    ]
    if "--num_processes" not in options:
        assert main(command) == 0
        return place / name
    done = subprocess.run(
        [sys.executable, "wrapper.py", *command],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return place / name


def test_two_processes_end_with_the_weights_of_one(model_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    rows = [{"text": f"{number}. {sentence}"} for number in range(8) for sentence in SENTENCES]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "held_out.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in SENTENCES))
    write_method(tmp_path)
    (tmp_path / "wrapper.py").write_text(WRAPPER)
    pull = ("--retention", "l2:coefficient=0.1")
    one = train(tmp_path, model_folder, "one", *pull, "--per_device_train_batch_size", "4")
    two = train(tmp_path, model_folder, "two", *pull, "--per_device_train_batch_size", "2", "--num_processes", "2")
    a, b = load_file(one / "model.safetensors"), load_file(two / "model.safetensors")
    assert a.keys() == b.keys()
    assert max(float((a[n] - b[n]).abs().max()) for n in a) < 5e-6
    figures = [[json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] for run in (one, two)]
    assert [row["step"] for row in figures[1]] == [2, 4, 6]
    for single, double in zip(*figures, strict=True):
        assert double["tokens"] == single["tokens"]
        assert double["ce"] == pytest.approx(single["ce"], abs=1e-5)
        assert double["kl"] == pytest.approx(single["kl"], abs=1e-6)
    assert (two / "report.html").is_file()
    starts = [(run / "evaluations" / "start" / "keep.held_out.samples.jsonl").read_bytes() for run in (one, two)]
    assert starts[0] == starts[1]  # two measured what one did
    result = json.loads((two / "evaluations" / "result" / "keep.held_out.json").read_text())
    assert result["metrics"]["nats_per_token"]["n"] == len(SENTENCES)


def test_two_processes_measure_along_what_one_does(settings: dict[str, Any]) -> None:
    """From weights that are kept until the run has ended; they are gone then, and the result is the last step's."""
    asked = {**settings, "optim": "sgd", "learning_rate": 0.1, "gradient_accumulation_steps": 1, "max_steps": 4}
    del asked["dataset_streaming"]
    held_out = [{"text": text} for text in SENTENCES]
    Path("along.jsonl").write_text("".join(json.dumps(row) + "\n" for row in held_out))
    along = {"steps": [1, 3]}
    asked["evaluation"] = {"keep": [{"perplexity": "along.jsonl", "name": "text", "window": 16}], "along": along}
    one = run_of({**asked, "per_device_train_batch_size": 4, "output_dir": "one"})
    Path("run.yaml").write_text(json.dumps({**asked, "num_processes": 2, "output_dir": "two"}))
    words = [sys.executable, "-m", "holdfast", "train", "--config", "run.yaml"]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    two = RunFolder("two")
    points = [[(step, folder.find("keep", "text")) for step, folder in run.trajectory()] for run in (one, two)]
    assert [step for step, _ in points[0]] == [step for step, _ in points[1]] == [0, 1, 3, 4]
    for (_, single), (_, double) in zip(*points, strict=True):
        assert single is not None and double is not None
        assert double.leading.value == pytest.approx(single.leading.value, abs=1e-4)
    assert not Path("two/along-weights").exists() and not any("Not measured" in note for note in two.read().notes)


def test_two_processes_train_on_different_rows(settings: dict[str, Any]) -> None:
    """Together on those of one process with twice the batch."""
    asked = {**settings, "packing": True, "optim": "sgd", "learning_rate": 0.1, "gradient_accumulation_steps": 1}
    one = run_of({**asked, "per_device_train_batch_size": 4, "output_dir": "one"})
    Path("run.yaml").write_text(json.dumps({**asked, "num_processes": 2, "output_dir": "two"}))
    words = [sys.executable, "-m", "holdfast", "train", "--config", "run.yaml"]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    a, b = load_file("one/model.safetensors"), load_file("two/model.safetensors")
    assert max(float((a[n] - b[n]).abs().max()) for n in a) < 5e-6
    for single, double in zip(one.metrics(), RunFolder("two").metrics(), strict=True):
        assert double["tokens"] == single["tokens"] and double["ce"] == pytest.approx(single["ce"], abs=1e-5)


@pytest.mark.parametrize("main", [True, False])
def test_only_the_first_process_clears_the_folder_that_the_model_is_saved_in(main, tmp_path, monkeypatch):
    """A process that comes late used to remove what the first one was writing: a save that failed one time in a
    hundred."""
    from types import SimpleNamespace

    from holdfast.runs.run import _Run

    left, seen = tmp_path / ".final" / "left.txt", []
    left.parent.mkdir()
    left.write_text("of an earlier session")
    accelerator = SimpleNamespace(
        wait_for_everyone=lambda: seen.append(left.exists()), unwrap_model=lambda model, **_: model
    )
    run = _Run.__new__(_Run)
    run.main, run.folder, run.console = main, SimpleNamespace(path=tmp_path), SimpleNamespace(is_terminal=False)
    run.record = SimpleNamespace(training={}, distance=None)
    run.config = SimpleNamespace(model=SimpleNamespace(model_name_or_path="some-model", model_revision="main"))

    def save_model(place, **_):
        Path(place).mkdir(exist_ok=True)
        (Path(place) / "model.safetensors").write_bytes(b"weights")

    run.trainer = SimpleNamespace(accelerator=accelerator, model=None, save_model=save_model)
    monkeypatch.setattr(_Run, "_distances", lambda self, model: [])
    monkeypatch.setattr(_Run, "write", lambda self: None)
    run.save()
    assert (
        seen[0] is not main
    )  # every process waits before the first byte, and only the first has cleared the folder by then
    assert (tmp_path / "model.safetensors").is_file() is main


def test_two_processes_that_diverge_say_so_to_who_launched_them(model_folder, tmp_path, monkeypatch):
    """A launcher ends with its own exit code, and stops the processes that are whole wherever they are."""
    from holdfast.errors import TrainingDiverged
    from holdfast.runs.config import train_config
    from holdfast.runs.launched import train_in_processes
    from holdfast.runs.run_folder import ENDED

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    rows = [{"text": f"{number}. {sentence}"} for number in range(8) for sentence in SENTENCES]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = {"model_name_or_path": str(model_folder), "dataset_name": "train.jsonl", "output_dir": "lost"}
    how = {"max_steps": 8, "learning_rate": 1e30, "optim": "sgd", "max_grad_norm": 0, "warmup_steps": 0}
    wanted = train_config({**asked, **how, "num_processes": 2, "use_cpu": True, "max_length": 64})
    with pytest.raises(TrainingDiverged, match=r"Training stopped at step \d+"):
        train_in_processes(wanted, tmp_path / "lost")
    assert not (tmp_path / "lost" / ENDED).exists()
