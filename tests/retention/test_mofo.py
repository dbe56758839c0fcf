"""MoFO against its algorithm in float64, what it leaves alone, and the optimisers that it cannot look into."""

from __future__ import annotations

import pytest
import torch
from cases import make_trainer
from torch import nn

from holdfast.errors import ConfigError
from holdfast.retention.anchor import Anchors
from holdfast.retention.methods.mofo import MoFO
from holdfast.retention.protocol import StepInfo
from holdfast.training.optimizer_state import state_by_name

SHAPES = {"matrix": (7, 5), "factor": (3, 1), "norm": (5,), "stacked": (2, 3, 4)}
BETAS, EPS = (0.8, 0.9), 1e-8


def draws(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {n: torch.randn(shape, generator=generator, dtype=torch.float64) for n, shape in SHAPES.items()}


def algorithm(fraction: float, rate: float, decay: float, steps: int) -> dict[str, torch.Tensor]:
    """As the paper and the authors' code have it, written out."""
    found = {}
    for name, theta in draws(0).items():
        m = v = torch.zeros_like(theta)
        for t in range(1, steps + 1):
            g = draws(t)[name]
            m, v = BETAS[0] * m + (1 - BETAS[0]) * g, BETAS[1] * v + (1 - BETAS[1]) * g * g
            update = m / (1 - BETAS[0] ** t) / ((v / (1 - BETAS[1] ** t)).sqrt() + EPS)
            if theta.dim() > 1:
                kept = max(1, round(fraction * theta.numel()))
                update = update * (m.abs() >= m.abs().flatten().topk(kept).values.min())
            theta = theta * (1 - rate * decay) - rate * update
        found[name] = theta
    return found


def stepped(optimizer, named, steps, *, fraction=0.3, skip=lambda step: False):
    active = MoFO(fraction=fraction).start(Anchors(named))
    for t in range(1, steps + 1):
        for name, parameter in named.items():
            parameter.grad = draws(t)[name].to(parameter.dtype)
        rates = {
            n: g["lr"] for g in optimizer.param_groups for n, p in named.items() if any(p is q for q in g["params"])
        }
        step = StepInfo(
            step=t, total_steps=steps, learning_rates=rates, optimizer_state=state_by_name(optimizer, named)
        )
        active.gradient(named, step)
        if not skip(t):
            optimizer.step()
        optimizer.zero_grad()
        active.weights(named, step)
    return active


def parameters(dtype: torch.dtype = torch.float64) -> dict[str, nn.Parameter]:
    return {n: nn.Parameter(t.to(dtype)) for n, t in draws(0).items()}


@pytest.mark.parametrize("how", [{"foreach": False}, {"foreach": True}, {"fused": True}])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_it_is_the_algorithm(how, decay):
    named = parameters()
    stepped(torch.optim.AdamW(named.values(), lr=0.05, betas=BETAS, weight_decay=decay, **how), named, 5)
    for name, wanted in algorithm(0.3, 0.05, decay, 5).items():
        torch.testing.assert_close(named[name].detach(), wanted, rtol=1e-12, atol=1e-12)


def test_what_is_not_among_the_largest_does_not_move():
    """Bit for bit, and all vectors do; also where the share is less than one element."""
    for fraction, moved in ((0.3, {"matrix": 10, "factor": 1, "norm": 5, "stacked": 7}), (1e-6, {"matrix": 1})):
        named = parameters(torch.bfloat16)
        before = {n: p.detach().clone() for n, p in named.items()}
        optimizer = torch.optim.AdamW(named.values(), lr=0.5, weight_decay=0.0)
        stepped(optimizer, named, 1, fraction=fraction)
        for name, count in moved.items():
            assert int((named[name] != before[name]).sum()) == count, name
        assert all(bool(optimizer.state[p]["exp_avg"].all()) for p in named.values())


def test_the_decay_of_plain_adam_is_in_its_gradient():
    """So nothing of it is left where the update is taken back."""
    named = parameters()
    before = named["matrix"].detach().clone()
    stepped(torch.optim.Adam(named.values(), lr=0.5, weight_decay=0.5), named, 1)
    assert int((named["matrix"] != before).sum()) == 10


def test_a_step_that_the_optimiser_did_not_take_changes_nothing():
    """Loss scaling leaves steps out, and other methods take gradients away: no decay then, and no old update back."""
    named = parameters()
    optimizer = torch.optim.AdamW(named.values(), lr=0.05, weight_decay=0.5)
    stepped(optimizer, named, 2)
    held = {n: p.detach().clone() for n, p in named.items()}
    stepped(optimizer, named, 1, skip=lambda step: True)
    assert all(torch.equal(p, held[n]) for n, p in named.items())


def test_a_parameter_that_does_not_lie_in_one_piece():
    named = parameters()
    named["matrix"] = nn.Parameter(draws(0)["matrix"].t().contiguous().t())
    assert not named["matrix"].is_contiguous()
    stepped(torch.optim.AdamW(named.values(), lr=0.05, betas=BETAS, weight_decay=0.1), named, 3)
    torch.testing.assert_close(named["matrix"].detach(), algorithm(0.3, 0.05, 0.1, 3)["matrix"], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("optim", ["sgd", "adafactor"])
def test_an_optimiser_without_momenta_is_refused_before_training(optim, tmp_path):
    with pytest.raises(ConfigError, match=f"optim: expected adamw_torch or adamw_torch_fused with mofo, got {optim}"):
        make_trainer(tmp_path, {"mofo": {}}, optim=optim)


def test_an_optimiser_of_the_users_is_looked_at_in_the_first_step():
    named = parameters()
    with pytest.raises(ConfigError, match=r"mofo: expected PyTorch's Adam or AdamW.*got SGD"):
        stepped(torch.optim.SGD(named.values(), lr=0.1, momentum=0.9), named, 1)
    named = parameters()
    active = MoFO().start(Anchors(named))
    with pytest.raises(ConfigError, match="got an unknown optimiser"):
        active.gradient(named, StepInfo(step=1, total_steps=1))
