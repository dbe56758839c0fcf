"""Where our semantics are mergekit's: the same tensors through its methods, in float32. Skips when it is not
installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from elements import stored, wide
from merge_driver import SHAPES, Model, merge, models

from holdfast.checkpoints.methods.registry import merge_method

pytest.importorskip("mergekit", reason="the peer that these numbers are compared with")

WEIGHTS = (0.5, 1.5, 1.0)
NAMES = [name for name, shape in SHAPES.items() if int(np.prod(shape))]


def peer(
    name: str,
    base: Model | None,
    tuned: list[Model],
    tensor: str,
    *,
    weights: tuple[float, ...] | None = WEIGHTS,
    **parameters: Any,
) -> np.ndarray:
    from mergekit.merge_methods import registry
    from mergekit.merge_methods.base import PerInputValues, TensorGroup

    given = [torch.from_numpy(m[tensor].raw.reshape(SHAPES[tensor])) for m in ([base] if base else []) + tuned]
    first = 1 if base else 0
    group = TensorGroup.from_tensors(given, ids=list(range(len(given))), base_index=0 if base else None, name=tensor)
    if weights is not None:
        parameters["weight"] = PerInputValues([(first + i, w) for i, w in enumerate(weights)])
    return registry.get(name)([group], parameters=parameters)[0].numpy().ravel()


@pytest.mark.parametrize(
    ("ours", "theirs", "parameters", "extra"),
    [
        ("linear", "linear", {"normalize": True}, {}),
        ("linear", "linear", {"normalize": False}, {}),
        ("task_arithmetic", "task_arithmetic", {}, {"lambda": 1.0}),
        ("task_arithmetic", "task_arithmetic", {"scale": 0.7}, {"lambda": 0.7}),
        ("ties", "ties", {"density": 0.3, "semantics": "mergekit"}, {"density": 0.3}),
        ("ties", "ties", {"density": 1.0, "semantics": "mergekit", "scale": 0.7}, {"density": 1.0, "lambda": 0.7}),
        (
            "ties",
            "ties",
            {"density": 0.71, "semantics": "mergekit", "normalize": False},
            {"density": 0.71, "normalize": False},
        ),
    ],
)
def test_weighted_methods(ours: str, theirs: str, parameters: dict, extra: dict) -> None:
    base, *tuned = models(3, "F32")
    method = merge_method(ours, weights=WEIGHTS, **parameters)
    shared = {} if ours != "linear" else parameters
    given = base if method.needs_base else None
    result, _ = merge(method, given, tuned, block=100)
    for tensor in NAMES:
        expected = peer(theirs, given, tuned, tensor, **shared, **extra)
        np.testing.assert_allclose(wide(result[tensor]), expected, rtol=0, atol=1.5e-7, err_msg=tensor)


@pytest.mark.parametrize("t", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("related", [True, False])
def test_slerp(t: float, related: bool) -> None:
    _, first, second = models(2, "F32")
    if not related:
        second = models(0, "F32", seed=9)[0]
    result, _ = merge(merge_method("slerp", t=t), None, [first, second], block=100)
    from mergekit.merge_methods.slerp import slerp

    for tensor in NAMES:
        a, b = (torch.from_numpy(m[tensor].raw.reshape(1, -1)) for m in (first, second))
        np.testing.assert_allclose(
            wide(result[tensor]), slerp(torch.tensor([t]), a, b)[0].numpy(), rtol=0, atol=3e-7, err_msg=tensor
        )


def test_slerp_where_a_model_is_zero_is_linear() -> None:
    """A zero tensor has no angle; mergekit takes a right one."""
    _, first, _ = models(2, "F32")
    zero = {n: v._replace(raw=np.zeros_like(v.raw)) for n, v in first.items()}
    result, _ = merge(merge_method("slerp", t=0.25), None, [zero, first])
    for tensor, values in result.items():
        np.testing.assert_array_equal(values.raw, np.float32(0.25) * first[tensor].raw)


def test_model_stock_is_nearer_to_float64() -> None:
    """The formula in float64 is the measure: ours in float32 comes at least as near as theirs in float32."""
    rng = np.random.default_rng(7)
    base, *tuned = models(3, "F64")
    common = {n: rng.normal(0, 0.02, v.raw.size) for n, v in base.items()}  # no negative cosines
    tuned = [{n: v._replace(raw=v.raw + common[n]) for n, v in m.items()} for m in tuned]
    narrow = [{n: stored(v.raw, "F32") for n, v in m.items()} for m in (base, *tuned)]
    doubles = [{n: stored(wide(v), "F64") for n, v in m.items()} for m in narrow]
    result, _ = merge(merge_method("model_stock"), narrow[0], narrow[1:], block=100)
    errors = []
    for tensor in NAMES:
        lower = peer("model_stock", narrow[0], narrow[1:], tensor, weights=None)
        truth = peer("model_stock", doubles[0], doubles[1:], tensor, weights=None)
        own = np.abs(wide(result[tensor]) - truth)
        np.testing.assert_allclose(own, 0, atol=1.5e-8, err_msg=tensor)
        errors.append((own.sum(), np.abs(lower - truth).sum()))
    assert sum(one for one, _ in errors) <= 1.05 * sum(other for _, other in errors)
