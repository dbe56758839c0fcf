"""Attention within packed documents against one dense mask in float64, forward and backward."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from holdfast.ops.document_attention import document_attention, reference_document_attention


def packed(lengths, *, heads=4, groups=2, width=8, seed=0, dtype=torch.float32, device="cpu"):
    generator = torch.Generator().manual_seed(seed)
    total = sum(lengths)
    query = torch.randn(1, heads, total, width, generator=generator)
    key, value = (torch.randn(1, groups, total, width, generator=generator) for _ in range(2))
    bounds = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32)
    return [t.to(device, dtype).requires_grad_() for t in (query, key, value)], bounds.to(device)


@pytest.mark.parametrize("lengths", [[7], [1, 1, 5], [3, 64, 2, 31], [40, 40]])
@pytest.mark.parametrize("window", [None, 1, 6])
def test_it_is_the_dense_mask_forward_and_backward(lengths, window):
    tensors, bounds = packed(lengths)
    out = document_attention(*tensors, bounds, window=window)
    expected = reference_document_attention(*tensors, bounds, window=window)
    assert out.shape == tensors[0].shape
    torch.testing.assert_close(out.double(), expected, atol=1e-6, rtol=1e-5)
    grad = torch.randn_like(out)
    got = torch.autograd.grad(out, tensors, grad)
    wanted = torch.autograd.grad(expected, tensors, grad.double())
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=2e-6, rtol=1e-5)


def test_another_document_changes_nothing():
    tensors, bounds = packed([10, 20, 5])
    before = document_attention(*tensors, bounds)
    with torch.no_grad():
        for tensor in tensors:
            tensor[:, :, :10] += 3.0
            tensor[:, :, 30:] -= 3.0
    after = document_attention(*tensors, bounds)
    assert torch.equal(before[:, :, 10:30], after[:, :, 10:30])
    assert not torch.equal(before[:, :, :10], after[:, :, :10])


def test_one_document_is_plain_causal_attention():
    tensors, bounds = packed([24], heads=2, groups=2)
    assert torch.equal(
        document_attention(*tensors, bounds, scale=0.3),
        functional.scaled_dot_product_attention(*tensors, is_causal=True, scale=0.3),
    )


def test_what_is_not_packed_is_refused():
    tensors, bounds = packed([4, 4])
    with pytest.raises(ValueError, match="documents of 8 tokens together, got 7"):
        document_attention(*tensors, torch.tensor([0, 4, 7], dtype=torch.int32))
    with pytest.raises(ValueError, match="one row"):
        document_attention(*(t.repeat(2, 1, 1, 1) for t in tensors), bounds)


@pytest.mark.gpu
@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_on_a_gpu(window, dtype):
    tensors, bounds = packed([3, 700, 1, 320], heads=8, groups=2, width=64, dtype=dtype, device="cuda")
    out = document_attention(*tensors, bounds, window=window, longest=700)
    expected = reference_document_attention(*tensors, bounds, window=window)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(out.double(), expected, atol=tolerance, rtol=tolerance)
    grad = torch.randn_like(out)
    for one, other in zip(
        torch.autograd.grad(out, tensors, grad), torch.autograd.grad(expected, tensors, grad.double()), strict=True
    ):
        torch.testing.assert_close(one.double(), other.double(), atol=4 * tolerance, rtol=4 * tolerance)
