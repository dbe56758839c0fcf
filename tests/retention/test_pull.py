"""The pull back to an anchor: its gradient is the penalty's, its decoupled form the proximal step's, wherever anchor
and importance lie."""

from __future__ import annotations

import math

import pytest
import torch
from cases import make_trainer

from holdfast.errors import ModelError
from holdfast.retention.anchor import unnamed_file
from holdfast.retention.protocol import StepInfo
from holdfast.retention.pull import Pull

SHAPES = {"a.weight": (700, 600), "b.weight": (37, 11), "c.bias": (5,), "d.empty": (0, 3)}
"""One of two pieces, one of an odd number, a small and an empty one."""


def tensors(seed: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for name, shape in SHAPES.items()
    }


def parameters(dtype: torch.dtype) -> dict[str, torch.nn.Parameter]:
    named = {name: torch.nn.Parameter(value) for name, value in tensors(0, dtype).items()}
    for parameter, gradient in zip(named.values(), tensors(1, dtype).values(), strict=True):
        parameter.grad = gradient
    return named


def step(**values) -> StepInfo:
    return StepInfo(step=1, total_steps=4, **values)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("where", ["memory", "file"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_gradient_and_figures_are_the_penaltys(dtype, where, weighted):
    named, anchor = parameters(dtype), tensors(2, dtype)
    importance = {n: t.abs() for n, t in tensors(3).items()} if weighted else None
    before = {n: p.grad.double().clone() for n, p in named.items()}
    leaves = {n: p.detach().double().requires_grad_() for n, p in named.items()}
    penalty = sum(
        0.7 / 2 * ((importance[n].double() if weighted else 1.0) * (p - anchor[n].double()).square()).sum()
        for n, p in leaves.items()
    )
    wanted = torch.autograd.grad(penalty, list(leaves.values()))
    held = [t if t is None or where == "memory" else unnamed_file(t) for t in (anchor, importance)]
    pull = Pull(held[0], importance=held[1], strength=0.7, prefix="l2")
    pull.gradient(named, step(grad_scale=8.0))
    for (name, parameter), gradient in zip(named.items(), wanted, strict=True):
        torch.testing.assert_close(
            parameter.grad.double(),
            before[name] + 8 * gradient.double(),
            rtol=2**-8 if dtype == torch.bfloat16 else 1e-5,
            atol=1e-5,
        )
    found = pull.metrics(named)
    assert found["l2_penalty"] == pytest.approx(float(penalty.detach()), rel=1e-5)
    distance = math.sqrt(
        sum(float((p.detach().double() - anchor[n].double()).square().sum()) for n, p in named.items())
    )
    assert found["l2_distance"] == pytest.approx(distance, rel=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
def test_decoupled_moves_the_weights_by_rate_times_strength(weighted):
    named, anchor = parameters(torch.float32), tensors(2)
    importance = {n: t.abs() for n, t in tensors(3).items()} if weighted else None
    # from the second tensor on more than the whole way, which ends at the anchor
    rates = {name: 0.2 * (1 + number) for number, name in enumerate(named)}
    before, gradients = (
        {n: t.detach().clone() for n, t in x.items()} for x in (named, {n: p.grad for n, p in named.items()})
    )
    pull = Pull(anchor, importance=importance, strength=3.0, decoupled=True, prefix="l2")
    pull.gradient(named, step(learning_rates=rates))
    assert all(torch.equal(p.grad, gradients[n]) and torch.equal(p.detach(), before[n]) for n, p in named.items())
    pull.weights(named, step(learning_rates=rates))
    for name, parameter in named.items():
        share = (rates[name] * 3.0 * (importance[name] if weighted else torch.ones(()))).clamp(max=1.0)
        torch.testing.assert_close(
            parameter.detach(), before[name] - share * (before[name] - anchor[name]), rtol=1e-5, atol=1e-6
        )
        if not weighted:
            assert torch.equal(parameter.detach(), anchor[name]) == (name != "a.weight")


def test_a_gradient_that_is_not_there_stays_away():
    named, anchor = parameters(torch.float32), tensors(2)
    named["b.weight"].grad = None
    Pull(anchor, strength=1.0, prefix="l2").gradient(named, step())
    assert named["b.weight"].grad is None and named["a.weight"].grad is not None


def test_a_transposed_parameter_gets_its_gradient():
    """A parameter or gradient whose memory is in another order than its elements is worked on through a copy that is
    put back."""
    weight = torch.nn.Parameter(torch.randn(30, 20).t())
    weight.grad = torch.zeros(30, 20).t()
    anchor = {"w": torch.zeros(20, 30)}
    Pull(anchor, strength=2.0, prefix="l2").gradient({"w": weight}, step())
    torch.testing.assert_close(weight.grad, 2 * weight.detach())
    held = weight.detach().clone()
    Pull(anchor, strength=2.0, decoupled=True, prefix="l2").weights({"w": weight}, step(learning_rates={"w": 0.1}))
    torch.testing.assert_close(weight.detach(), 0.8 * held)


def test_importance_of_another_shape_is_refused():
    named = parameters(torch.float32)
    with pytest.raises(
        ModelError,
        match=r"The Fisher information of ewc does not fit .*\n.*b\.weight: expected \(37, 11\), the "
        r"checkpoint has \(11, 37\)",
    ):
        Pull(tensors(2), importance=tensors(3) | {"b.weight": torch.ones(11, 37)}, strength=1.0, prefix="ewc").gradient(
            named, step()
        )


def test_the_rate_is_that_of_the_step_just_taken(tmp_path):
    """Under a schedule the optimiser has moved on to the next rate when the step ends; the last step's is not 0."""
    from holdfast.training.mixin import RetentionMixin

    seen: list[dict[str, float]] = []
    real = RetentionMixin.after_optimizer_step

    def spy(self):
        seen.append(dict(self._rates))
        real(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RetentionMixin, "after_optimizer_step", spy)
        make_trainer(tmp_path, {"l2": {"decoupled": True}}, lr_scheduler_type="linear", learning_rate=0.6).train()
    assert [round(next(iter(rates.values())), 6) for rates in seen] == [0.6, 0.5, 0.4, 0.3, 0.2, 0.1]
