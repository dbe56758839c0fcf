"""Products with the Hessian against the Hessian itself, in float64."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch.func import functional_call

from evaluation.conftest import SENTENCES, make_tokenizer
from holdfast.errors import ModelError, NotFinite
from holdfast.evaluation.probe.curvature import Curvature
from holdfast.evaluation.text.documents import encode_document
from tiny import build_model


@pytest.fixture(scope="module")
def small():
    """A model of a few hundred parameters that was trained a little, its documents, loss, gradient and Hessian."""
    tokenizer = make_tokenizer(bos=True)
    torch.manual_seed(0)
    model = build_model(len(tokenizer), layers=1, width=4)
    documents = [encode_document(" ".join(s.split()[:4]), tokenizer) for s in SENTENCES[:3]]
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(5):
        optimiser.zero_grad()
        loss_of(model, dict(model.named_parameters()), documents).backward()
        optimiser.step()
    return model, documents, *derivatives(model, documents)


def loss_of(model, parameters, documents) -> torch.Tensor:
    """Nats a token from the model's own logits, one document at a time."""
    total, tokens = torch.zeros((), dtype=next(iter(parameters.values())).dtype), 0
    for document in documents:
        ids = torch.tensor([document.ids])
        logits = functional_call(model, parameters, kwargs={"input_ids": ids}).logits[0]
        for start, end in document.spans:
            at = torch.arange(start, end)
            total = total + torch.nn.functional.cross_entropy(logits[at - 1], ids[0, at], reduction="sum")
            tokens += end - start
    return total / tokens


def derivatives(model, documents) -> tuple[float, torch.Tensor, torch.Tensor]:
    """Loss, gradient `[P]` and Hessian `[P, P]` in float64."""
    exact = build_model(model.config.vocab_size, layers=1, width=4).double().eval()
    exact.config._attn_implementation = "eager"
    names, shapes = zip(*((n, p.shape) for n, p in model.named_parameters()), strict=True)
    flat = torch.cat([p.detach().double().flatten() for p in model.parameters()])

    def loss(theta: torch.Tensor) -> torch.Tensor:
        parts = theta.split([math.prod(s) for s in shapes])
        return loss_of(exact, {n: t.view(s) for n, t, s in zip(names, parts, shapes, strict=True)}, documents)

    return (
        float(loss(flat)),
        torch.autograd.functional.jacobian(loss, flat),
        torch.autograd.functional.hessian(loss, flat, vectorize=True),
    )


def flat(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([p.flatten() for p in parts]).double()


@pytest.mark.parametrize("batch_tokens", [8, 512])
def test_products_are_those_of_the_hessian(small, batch_tokens: int) -> None:
    model, documents, loss, gradient, hessian = small
    curvature = Curvature(model, documents, batch_tokens=batch_tokens)
    assert curvature.tokens == sum(d.tokens for d in documents)
    vector = curvature.signs(3)
    found, g, products = curvature.product(vector)
    assert found == pytest.approx(loss, abs=1e-6)
    assert torch.allclose(flat(g), gradient, atol=1e-5)
    expected = hessian @ flat(vector)
    assert torch.allclose(flat(products), expected, atol=1e-4 * float(expected.abs().max()))
    along = curvature.along(vector)
    assert along.slope == pytest.approx(float(gradient @ flat(vector)), rel=1e-3)
    assert along.curvature == pytest.approx(float(flat(vector) @ expected), rel=1e-4)
    assert along.norm == pytest.approx(math.sqrt(curvature.size))


def test_hutchinsons_trace_and_that_of_noise(small) -> None:
    model, documents, _, _, hessian = small
    curvature = Curvature(model, documents)
    stds = {n: 0.1 * (k + 1) for k, (n, _) in enumerate(model.named_parameters())}
    variances = torch.cat([torch.full((p.numel(),), stds[n] ** 2) for n, p in model.named_parameters()]).double()
    for scaled, exact in ((None, hessian.trace()), (stds, (variances * hessian.diagonal()).sum())):
        draws = [curvature.along(curvature.signs(seed, scaled)).curvature for seed in range(60)]
        error = np.std(draws, ddof=1) / math.sqrt(len(draws))
        assert abs(np.mean(draws) - float(exact)) < 4 * error
        assert error < 0.5 * abs(float(exact)), "the test would see another trace"


def test_the_model_is_left_as_it_came(small) -> None:
    model, documents, *_ = small
    model.train()
    model.model.norm.eval()
    first = next(model.parameters())
    first.requires_grad_(False)
    before = [p.detach().clone() for p in model.parameters()]
    Curvature(model, documents).along(Curvature(model, documents).signs(0))
    assert model.training and not model.model.norm.training and not first.requires_grad
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    first.requires_grad_(True)
    model.eval()


def test_half_precision_is_refused(small) -> None:
    model, documents, *_ = small

    with pytest.raises(ModelError, match=r"a model in float32.*got bfloat16.*--dtype float32"):
        Curvature(copy.deepcopy(model).bfloat16(), documents)


def test_attention_without_a_second_derivative_is_refused(small) -> None:
    model, documents, *_ = small

    other = copy.deepcopy(model)
    other.config._attn_implementation_internal = "flash_attention_2"
    with pytest.raises(ModelError, match=r"\(eager, sdpa\), got flash_attention_2"):
        Curvature(other, documents)


def test_derivatives_that_are_not_finite_are_an_error(small) -> None:
    model, documents, *_ = small
    broken = copy.deepcopy(model)
    with torch.no_grad():
        broken.lm_head.weight[0, 0] = math.nan
    curvature = Curvature(broken, documents[:1], batch_tokens=8)
    with pytest.raises(NotFinite, match="finite loss with finite derivatives"):
        curvature.along(curvature.signs(0))
