"""Changes of a model in place: what they do, element by element, and that nothing of them is left."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from holdfast.errors import ModelError
from holdfast.evaluation.probe.changes import (
    INT4_GROUP,
    NF4,
    NF4_BLOCK,
    Change,
    Material,
    Noise,
    Prune,
    Quantize,
    Toward,
    pruned,
    quantized,
)
from holdfast.ops.weights import hidden_matrices
from holdfast.training.fresh_init import init_stds
from tiny import build_model


def weight(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


# ------------------------------------------------------------------------------------------------------------- rounding


@given(rows=st.integers(1, 5), columns=st.integers(1, 300), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_int8_is_the_nearest_of_255_levels_a_row(rows: int, columns: int, seed: int) -> None:
    w = weight(rows, columns, seed)
    exact = w.double().numpy()
    step = np.abs(exact).max(1, keepdims=True) / 127
    expected = np.rint(exact / step) * step
    assert (
        np.allclose(quantized(w, "int8").double().numpy(), expected, rtol=2e-6, atol=1e-9)
        or (np.abs(quantized(w, "int8").double().numpy() - exact) <= step / 2 * (1 + 1e-5)).all()
    ), "a tie may fall to either side"


@given(rows=st.integers(1, 4), columns=st.integers(1, 300), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_int4_is_the_nearest_of_16_levels_a_group(rows: int, columns: int, seed: int) -> None:
    w = weight(rows, columns, seed)
    found = quantized(w, "int4").double().numpy()
    exact = w.double().numpy()
    size = min(INT4_GROUP, columns)
    for row in range(rows):
        for start in range(0, columns, size):
            group = exact[row, start : start + size]
            low, step = group.min(), (group.max() - group.min()) / 15
            got = found[row, start : start + size]
            assert (np.abs(got - group) <= step / 2 * (1 + 1e-4) + 1e-6).all()
            if step > 0:
                levels = (got - low) / step
                assert np.allclose(levels, np.rint(levels), atol=1e-4)
                assert levels.min() > -1e-4 and levels.max() < 15 + 1e-4


@given(rows=st.integers(1, 4), columns=st.integers(1, 200), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_nf4_is_the_nearest_level_of_a_block(rows: int, columns: int, seed: int) -> None:
    w = weight(rows, columns, seed)
    found, exact = quantized(w, "nf4").double().numpy(), w.double().numpy()
    levels, size = np.array(NF4), min(NF4_BLOCK, columns)
    for row in range(rows):
        for start in range(0, columns, size):
            group, got = exact[row, start : start + size], found[row, start : start + size]
            scale = np.abs(group).max()
            least = np.abs(group[:, None] / scale - levels).min(1)
            assert np.allclose(np.abs(got - group) / scale, least, atol=1e-6)


@pytest.mark.parametrize("scheme", ["int8", "int4", "nf4"])
def test_rows_of_one_value_stay_as_they_are(scheme: str) -> None:
    w = torch.stack([torch.zeros(70), torch.full((70,), -0.25)])
    assert torch.allclose(quantized(w, scheme), w, atol=1e-7)  # type: ignore[arg-type]


@given(share=st.floats(0.01, 0.99), seed=st.integers(0, 99), levels=st.sampled_from([3, 1000]))
@settings(max_examples=40, deadline=None)
def test_pruning_takes_exactly_the_smallest(share: float, seed: int, levels: int) -> None:
    w = torch.randint(1, levels + 1, (7, 11), generator=torch.Generator().manual_seed(seed)).float()
    w[::2] *= -1
    found = pruned(w, share)
    gone = found == 0
    assert int(gone.sum()) == round(share * w.numel()), "of equal magnitudes, too"
    assert torch.equal(found[~gone], w[~gone])
    if gone.any() and not gone.all():
        assert w[gone].abs().max() <= w[~gone].abs().min()


# ------------------------------------------------------------------------------------------------------------- in place


def material(model: nn.Module) -> Material:
    return Material(stds=init_stds(model), others={"other": dict(build_model(seed=5).named_parameters())})


CHANGES: list[Change] = [
    Noise(size=0.05, seed=1),
    Quantize(label="int8"),
    Quantize(label="int4"),
    Quantize(label="nf4"),
    Prune(size=0.3),
    Toward(size=1.5, label="other"),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda c: c.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_change_is_there_and_then_gone(change: Change, dtype: torch.dtype) -> None:
    model = build_model().to(dtype)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    with change.on(model, material(model)):
        changed = [n for n, p in model.named_parameters() if not torch.equal(p, before[n])]
        assert all(torch.isfinite(p).all() for p in model.parameters())
    assert changed
    if change.kind in ("quantize", "prune"):
        assert all(".layers." in n and "norm" not in n for n in changed), "embeddings, head and norms stay"
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    with pytest.raises(KeyboardInterrupt), change.on(model, material(model)):
        raise KeyboardInterrupt
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())


def test_a_step_goes_towards_the_other_model() -> None:
    model, other = build_model(), dict(build_model(seed=5).named_parameters())
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    with Toward(size=0.25, label="other").on(model, material(model)):
        for name, p in model.named_parameters():
            assert torch.allclose(p, 0.75 * before[name] + 0.25 * other[name], atol=1e-6)


def test_rows_of_conv1d_lie_along_its_first_dimension() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=40, n_positions=8))
    found = {id(p): turned for p, turned in hidden_matrices(model)}
    inner = model.transformer.h[0].mlp.c_fc.weight
    assert found[id(inner)], "[in, out]"
    assert not {id(model.transformer.wte.weight), id(model.transformer.wpe.weight)} & found.keys()
    before = inner.detach().clone()
    with Quantize(label="int8").on(model, Material()):
        assert torch.equal(inner, quantized(before.T.contiguous(), "int8").T)


def test_a_model_without_matrices() -> None:
    change = Prune(size=0.5).on(nn.Embedding(4, 4), Material())
    with pytest.raises(ModelError, match="Expected a Embedding with weight matrices"), change:
        pass
