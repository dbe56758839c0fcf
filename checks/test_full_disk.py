"""A disk that fills up while a run writes a checkpoint: nothing half is left, and the same command continues."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from holdfast.records.run import RunFolder
from runs import conftest, test_run_bad_input
from runs.test_run_bad_input import Say

place, say = conftest.place, test_run_bad_input.say


def no_space_system(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device", "model.safetensors")


def no_space_safetensors(*_: Any, **__: Any) -> None:
    from safetensors import SafetensorError

    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


def no_space_torch(*_: Any, **__: Any) -> None:
    raise RuntimeError(
        "[enforce fail at inline_container.cc:672] . PytorchStreamWriter failed writing file data/3: file write failed"
    )


def no_space_torch_at_the_end(*_: Any, **__: Any) -> None:
    raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598")


@pytest.mark.parametrize("failure", [no_space_system, no_space_safetensors, no_space_torch, no_space_torch_at_the_end])
def test_the_disk_fills_up_while_a_checkpoint_is_written(
    failure: Any, say: Say, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import Trainer

    original = Trainer._save_optimizer_and_scheduler

    def save(self, folder):
        if self.state.global_step == 4:
            failure()
        return original(self, folder)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_save_optimizer_and_scheduler", save)
        code, err = say()
    assert code == 1
    assert "error: No space left on the disk of " in err and "The run was in stage 'train'" in err
    assert "Free some space and run the same command to continue." in err
    assert "Everything written before this error is complete, the last checkpoint is checkpoint-2." in err
    assert [p.name for p in (place / "out").glob("checkpoint-*")] == ["checkpoint-2"]
    assert not (place / "out" / ".saving").exists()  # half a checkpoint would only take the space that is missing
    assert RunFolder("out").read().status == "failed"
    assert say()[0] == 0
    assert say(output_dir="whole")[0] == 0
    one, two = (load_file(place / out / "model.safetensors") for out in ("out", "whole"))
    assert all(torch.equal(one[n], two[n]) for n in one)
