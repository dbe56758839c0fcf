"""Retention methods in a plain training loop: what they do there, and what is refused."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from holdfast import attach_retention
from holdfast.errors import ConfigError
from holdfast.retention.fisher import fingerprints, save_fisher
from holdfast.retention.methods.ema import ExponentialAverage
from holdfast.retention.methods.ewc import EWC
from holdfast.retention.methods.l2 import L2
from holdfast.retention.methods.label_annealing import LabelAnnealing
from holdfast.retention.methods.mofo import MoFO
from holdfast.retention.methods.replay import Replay
from holdfast.retention.methods.sfa import SequentialAveraging
from holdfast.retention.methods.wise_ft import WiseFT

RATE, STEPS = 0.1, 4


@pytest.fixture
def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def loss_at(model: nn.Module, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(8, 5, generator=generator, dtype=torch.float64)
    labels = torch.randint(3, (8,), generator=generator)
    return nn.functional.cross_entropy(model(inputs), labels)


def trained(start: nn.Module, *methods: Any) -> dict[str, torch.Tensor]:
    """Weights after `STEPS` steps with methods."""
    model = copy.deepcopy(start)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    retention = attach_retention(methods, model, optimizer, total_steps=STEPS)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_at(model, step).backward()
        retention.add_gradients()
        optimizer.step()
        retention.after_step()
    return {name: p.detach() for name, p in model.named_parameters()}


def penalised(start: nn.Module, importance: dict[str, torch.Tensor], coefficient: float) -> dict[str, torch.Tensor]:
    """The same with the penalty in the loss, by autograd."""
    model = copy.deepcopy(start)
    anchor = {name: p.detach().clone() for name, p in start.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_at(model, step)
        for name, p in model.named_parameters():
            loss = loss + coefficient / 2 * (importance[name] * (p - anchor[name]) ** 2).sum()
        loss.backward()
        optimizer.step()
    return {name: p.detach() for name, p in model.named_parameters()}


def test_l2_is_its_penalty(network: nn.Module) -> None:
    ones = {name: torch.ones_like(p) for name, p in network.named_parameters()}
    torch.testing.assert_close(trained(network, L2(coefficient=0.5)), penalised(network, ones, 0.5))


def test_ewc_is_its_penalty(network: nn.Module, tmp_path: Path) -> None:
    named = dict(network.named_parameters())
    values = {name: torch.rand_like(p) for name, p in named.items()}
    save_fisher(tmp_path / "fisher", values, {"model": {"weights": fingerprints(named)}})
    method = EWC(coefficient=2.0, fisher=str(tmp_path / "fisher"))
    torch.testing.assert_close(trained(network, method), penalised(network, values, 2.0), rtol=1e-6, atol=1e-6)


def test_decoupled_l2_moves_by_the_learning_rate(network: nn.Module) -> None:
    plain, pulled = trained(network), trained(network, L2(coefficient=1 / RATE, decoupled=True))
    for name, p in network.named_parameters():
        assert not torch.equal(plain[name], p)
        torch.testing.assert_close(pulled[name], p.detach())


@pytest.mark.parametrize("method", [SequentialAveraging(p=1, beta=0.25), WiseFT(alpha=0.75)])
def test_an_average_at_the_end(network: nn.Module, method: Any) -> None:
    plain, averaged = trained(network), trained(network, method)
    for name, p in network.named_parameters():
        torch.testing.assert_close(averaged[name], 0.75 * plain[name] + 0.25 * p.detach())


def test_averages_on_the_way(network: nn.Module) -> None:
    once, often = (trained(network, SequentialAveraging(p=p)) for p in (1, 0.25))
    start = dict(network.named_parameters())

    def distance(weights: dict[str, torch.Tensor]) -> float:
        return sum(float((weights[name] - p.detach()).square().sum()) for name, p in start.items())

    assert distance(often) < distance(once)


def test_a_method_that_is_off_changes_nothing_and_an_average_something(network: nn.Module) -> None:
    plain = trained(network)
    off = trained(network, L2(coefficient=0), SequentialAveraging(beta=0))
    assert all(torch.equal(plain[name], off[name]) for name in plain)
    averaged = trained(network, ExponentialAverage())
    assert any(not torch.equal(plain[name], averaged[name]) for name in plain)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (LabelAnnealing(), "label_annealing: expected a method that acts on gradients or weights only"),
        (Replay(data="old.jsonl"), "replay: expected a method that acts on gradients or weights only"),
        (MoFO(), "mofo: expected a method that acts on gradients or weights only"),
        (SequentialAveraging(every=9), "sfa.every: expected at most the run's 4 steps"),
        (L2(reference="nowhere"), "l2.reference: no such folder: nowhere"),
        (EWC(), "ewc: expected fisher"),
        (EWC(data=__file__), "For ewc give Fisher information (fisher: FOLDER) instead of data"),
    ],
)
def test_what_does_not_fit_is_refused(network: nn.Module, method: Any, words: str) -> None:
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE)
    with pytest.raises(ConfigError, match=re.escape(words)):
        attach_retention([method], network, optimizer, total_steps=STEPS)


def test_the_example_of_the_page_runs() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")
    block = next(part for part in page.split("```python\n") if "attach_retention(" in part).partition("```")[0]
    names: dict[str, Any] = {}
    exec(block, names)
    assert all(bool(torch.isfinite(p).all()) for p in names["network"].parameters())
