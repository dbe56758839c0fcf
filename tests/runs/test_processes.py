"""`holdfast train --num_processes 2` on CPUs: distributed for real, and the same weights as one process with the same
global batch, with a method in the user's own file and one that a wrapper script registers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tiny import SENTENCES

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(240)]


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
