"""SFA against a named folder: read at each average instead of kept, with the same numbers."""

from __future__ import annotations

import shutil

import pytest
import torch
from cases import largest_difference, make_trainer, weights
from safetensors.torch import save_file

from holdfast.errors import ModelError
from holdfast.retention.anchor import Anchors, load_anchor
from holdfast.retention.averaging import SequentialAveraging
from holdfast.retention.method import StepInfo

STEP = StepInfo(step=1, total_steps=1)


def draw(seed: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(40, 30, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize(
    ("held", "stored", "kept"),
    [
        (torch.float32, torch.float32, False),
        (torch.float32, torch.bfloat16, False),
        (torch.float32, torch.float16, False),
        (torch.bfloat16, torch.bfloat16, False),
        (torch.bfloat16, torch.float32, True),
        (torch.float16, torch.bfloat16, True),
        (torch.float32, torch.float64, True),
    ],
)
def test_averages_are_those_with_a_copy(held, stored, kept, tmp_path):
    save_file({"w": draw(1, stored), "more": torch.ones(2)}, str(tmp_path / "model.safetensors"))
    parameter = torch.nn.Parameter(draw(0, held))
    named = {"w": parameter}
    wanted = parameter.detach().clone()
    torch._foreach_lerp_([wanted], [load_anchor(tmp_path, named)["w"]], 0.3)
    active = SequentialAveraging(p=1.0, beta=0.3, previous=str(tmp_path)).start(Anchors(named))
    assert isinstance(active.anchor, dict) == kept
    shutil.rmtree(tmp_path)  # the previous run's checkpoint may be cleaned away
    active.after_step(named, STEP)
    assert torch.equal(parameter.detach().view(torch.uint8), wanted.view(torch.uint8))


def test_a_folder_that_does_not_fit_is_named_at_the_start(tmp_path):
    save_file({"w": torch.ones(3)}, str(tmp_path / "model.safetensors"))
    named = {"w": torch.nn.Parameter(torch.ones(2)), "v": torch.nn.Parameter(torch.ones(2))}
    with pytest.raises(ModelError) as caught:
        SequentialAveraging(previous=str(tmp_path)).start(Anchors(named))
    said = str(caught.value)
    assert f"The anchor {tmp_path} does not fit the model being trained (2 of 2 parameters)" in said
    assert "w: expected (2,), the checkpoint has (3,)" in said and "v: not in the checkpoint" in said


@pytest.mark.parametrize("peft", [False, True])
def test_a_run_against_the_folder_of_its_start_is_the_run_against_its_start(peft, tmp_path):
    folder = tmp_path / "start"
    trainer = make_trainer(tmp_path, {"sfa": {"every": 2, "beta": 0.4}}, peft=peft)
    trainer.model.save_pretrained(folder)
    trainer.train()
    again = make_trainer(tmp_path, {"sfa": {"every": 2, "beta": 0.4, "previous": str(folder)}}, peft=peft)
    assert not isinstance(again.active[0].anchor, dict)
    again.train()
    assert largest_difference(weights(trainer), weights(again)) == 0
    direct = make_trainer(tmp_path, {}, peft=peft)
    direct.train()
    assert largest_difference(weights(again), weights(direct)) > 1e-3
