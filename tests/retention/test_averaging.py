"""SFA against a named folder: read at each average instead of kept, with the same numbers."""

from __future__ import annotations

import shutil

import pytest
import torch
from cases import largest_difference, make_trainer, weights
from safetensors.torch import save_file

from holdfast.retention.anchor import Anchors
from holdfast.retention.methods.ema import ExponentialAverage
from holdfast.retention.methods.sfa import SequentialAveraging
from holdfast.retention.protocol import StepInfo

STEP = StepInfo(step=1, total_steps=1)


def draw(seed: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(40, 30, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("keep", ["auto", "device", "cpu", "disk"])
@pytest.mark.parametrize(
    ("held", "stored"),
    [
        (torch.float32, torch.float32),
        (torch.float32, torch.bfloat16),
        (torch.float32, torch.float16),
        (torch.bfloat16, torch.bfloat16),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.bfloat16),
        (torch.float32, torch.float64),
    ],
)
def test_averages_are_computed_from_the_files_own_digits(held, stored, keep, tmp_path):
    """Wherever the anchor is kept: in the wider of the two dtypes, with one rounding into the parameter."""
    save_file({"w": draw(1, stored), "more": torch.ones(2)}, str(tmp_path / "model.safetensors"))
    parameter = torch.nn.Parameter(draw(0, held))
    named = {"w": parameter}
    compute = torch.float64 if stored == torch.float64 else torch.float32
    wanted = torch.lerp(draw(0, held).to(compute), draw(1, stored).to(compute), 0.3).to(held)
    active = SequentialAveraging(p=1.0, beta=0.3, reference=str(tmp_path), reference_device=keep).start(Anchors(named))
    assert isinstance(active.anchor, dict) == (keep in ("device", "cpu"))
    shutil.rmtree(tmp_path)  # the previous run's checkpoint may be cleaned away
    active.weights(named, STEP)
    assert torch.equal(parameter.detach().view(torch.uint8), wanted.view(torch.uint8))


def test_the_start_on_disk_leaves_no_file_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path))
    results = []
    for keep in ("device", "cpu", "disk"):
        named = {
            "a.weight": torch.nn.Parameter(draw(0, torch.bfloat16)),
            "b": torch.nn.Parameter(draw(1, torch.float32)),
        }
        active = SequentialAveraging(p=1.0, beta=0.3, reference_device=keep).start(Anchors(named))
        assert not list(tmp_path.iterdir())
        with torch.no_grad():
            for number, parameter in enumerate(named.values()):
                parameter.copy_(draw(2 + number, parameter.dtype))
        active.weights(named, STEP)
        results.append([p.detach().clone() for p in named.values()])
    assert all(torch.equal(x, y) for other in results[1:] for x, y in zip(results[0], other, strict=True))


# ------------------------------------------------------------------------------------------------------ WiSE-FT and EMA


def test_wise_ft_interpolates_once_at_the_end(tmp_path):
    start = weights(make_trainer(tmp_path, {}))
    direct = make_trainer(tmp_path, {}, logging_steps=1)
    direct.train()
    trainer = make_trainer(tmp_path, {"wise_ft": {"alpha": 0.3}}, logging_steps=1)
    trainer.train()
    expected = {n: 0.7 * start[n] + 0.3 * w for n, w in weights(direct).items()}
    assert largest_difference(expected, weights(trainer)) < 1e-6
    assert [r["wise_ft_averages"] for r in trainer.state.log_history if "wise_ft_averages" in r] == [0, 0, 0, 0, 0, 1]
    losses = [[r["loss"] for r in t.state.log_history if "loss" in r] for t in (direct, trainer)]
    assert losses[0] == losses[1]  # training itself is not changed


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ema_is_the_recurrence(dtype, every):
    parameter = torch.nn.Parameter(draw(0, dtype))
    active = ExponentialAverage(decay=0.9, every=every).start(Anchors({"w": parameter}))
    average = parameter.detach().double()
    for step in range(1, 6):
        with torch.no_grad():
            parameter.copy_(draw(step, dtype))
        if step % every == 0 or step == 5:
            average = 0.9 * average + 0.1 * parameter.detach().double()
        held = parameter.detach().clone()
        active.weights({"w": parameter}, StepInfo(step=step, total_steps=5))
        assert torch.equal(parameter.detach(), held) == (step < 5)
    torch.testing.assert_close(
        parameter.detach().double(), average, rtol=2e-7 if dtype == torch.float32 else 2**-8, atol=1e-6
    )


def test_ema_follows_small_moves_of_half_precision_weights():
    """At decay 0.999 a step of one unit in the last place is lost in a bfloat16 average, and not in a float32 one."""
    parameter = torch.nn.Parameter(torch.ones(10, dtype=torch.bfloat16))
    active = ExponentialAverage(decay=0.999).start(Anchors({"w": parameter}))
    for step in range(1, 3000):
        if step == 1:
            with torch.no_grad():
                parameter.fill_(1 + 2**-7)
        active.weights({"w": parameter}, StepInfo(step=step, total_steps=3000))
    assert active.metrics({"w": parameter})["ema_distance"] < 0.1 * 2**-7 * 10**0.5


def products(trainer):
    """The merged change of every adapted matrix."""
    named = {n: p.detach() for n, p in trainer.model.named_parameters() if "lora_" in n}
    return {n: named[n.replace("lora_A", "lora_B")] @ a for n, a in named.items() if "lora_A" in n}


def test_under_lora_the_merged_weights_are_averaged(tmp_path):
    """One average after the last step: the product is 0.7 of direct fine-tuning's, not 0.7 of one factor times a
    mixture of the other."""
    found = []
    for retention in ({}, {"sfa": {"p": 1.0, "beta": 0.3, "reference_device": "disk"}}):
        trainer = make_trainer(tmp_path, retention, peft=True)
        trainer.train()  # at once: dropout goes on where making the trainer left the generator
        found.append(products(trainer))
    wanted, averaged = found
    assert max(float(p.abs().max()) for p in wanted.values()) > 1e-3
    for name, product in averaged.items():
        torch.testing.assert_close(product, 0.7 * wanted[name], rtol=1e-5, atol=1e-8)
