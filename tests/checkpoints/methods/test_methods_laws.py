"""What every merge method must satisfy: blocks and threads change no bit, weights 0 and 1 are copies, special cases
meet, faults are flagged."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from merge_driver import Model, joined, merge, models, numbers, operand, raw_bytes

from holdfast.checkpoints.methods.dare import keep_mask, magnitude_sums, total_magnitude
from holdfast.checkpoints.methods.protocol import MergeMethod
from holdfast.checkpoints.methods.registry import METHODS, merge_method
from holdfast.errors import ModelError

VARIANTS: dict[str, MergeMethod] = {
    "linear": merge_method("linear", weights=(1, 2)),
    "wise_ft": merge_method("wise_ft", alpha=0.4),
    "slerp": merge_method("slerp", t=0.4),
    "task_arithmetic": merge_method("task_arithmetic", scale=0.6),
    "ties": merge_method("ties", density=0.35),
    "ties_mergekit": merge_method("ties", density=0.35, semantics="mergekit", weights=(1, 2)),
    "dare": merge_method("dare", p=0.4),
    "dare_mergekit": merge_method("dare", p=0.4, semantics="mergekit"),
    "dare_ties": merge_method("dare_ties", p=0.4),
    "dare_ties_mergekit": merge_method("dare_ties", p=0.4, semantics="mergekit"),
    "fisher": merge_method("fisher", weights=(1, 2)),
    "model_stock": merge_method("model_stock"),
    "model_stock_rows": merge_method("model_stock", filter_wise=True),
}


def run(method: MergeMethod, base: Model, tuned: list[Model], **changes: Any) -> Model:
    return run_with_flags(method, base, tuned, **changes)[0]


def run_with_flags(method: MergeMethod, base: Model, tuned: list[Model], **changes: Any) -> tuple[Model, dict]:
    used = tuned[: method.models[1]] if method.models[1] else tuned
    extras = [{n: operand(np.abs(numbers(v)), "F32") for n, v in m.items()} for m in used] if method.extras else None
    return merge(method, base if method.needs_base else None, used, **{"extras": extras, **changes})


def test_every_method_is_here() -> None:
    assert {m.name for m in VARIANTS.values()} == set(METHODS)


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F64"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_block_sizes_change_no_bit(variant: str, dtype: str) -> None:
    base, *tuned = models(2, dtype)
    out = "F32" if dtype == "F64" else dtype
    whole = raw_bytes(run(VARIANTS[variant], base, tuned, out=out))
    for block in (1000, 128, 37):
        assert raw_bytes(run(VARIANTS[variant], base, tuned, out=out, block=block)) == whole, block


@pytest.mark.parametrize("variant", VARIANTS)
def test_pieces_change_no_bit(variant: str) -> None:
    """Tensors beyond the pieces in which NumPy and the kernels work."""
    base, *tuned = models(2, "BF16", shapes={"w": (90_001,)})
    whole = raw_bytes(run(VARIANTS[variant], base, tuned, out="BF16"))
    assert raw_bytes(run(VARIANTS[variant], base, tuned, out="BF16", block=40_000)) == whole


@pytest.mark.parametrize(
    "variant",
    [v for v, m in VARIANTS.items() if m.models[1] is None and "dare" not in v and hasattr(m, "weights")],
)
def test_models_in_another_order_with_their_weights(variant: str) -> None:
    """Of all methods in which models have no roles and no masks of their own."""
    base, *tuned = models(3, "F32")
    method = VARIANTS[variant]
    weights = {"weights": (1.0, 2.0, 0.5)}
    kept = {k: v for k, v in method.identity().items() if k not in ("method", "weights")}
    one = run(merge_method(method.name, **kept, **weights), base, tuned)
    other = run(merge_method(method.name, **kept, weights=(0.5, 1.0, 2.0)), base, [tuned[2], tuned[0], tuned[1]])
    np.testing.assert_allclose(joined(one), joined(other), rtol=0, atol=1e-7)


@pytest.mark.parametrize("stored", ["F32", "BF16"])
def test_special_cases_are_task_arithmetic(stored: str) -> None:
    base, *tuned = models(2, stored)
    one = run(merge_method("task_arithmetic"), base, tuned[:1])
    for semantics in ("original", "mergekit"):
        assert raw_bytes(run(merge_method("ties", density=1, semantics=semantics), base, tuned[:1])) == raw_bytes(
            one
        ), semantics
    parameters: dict[str, Any] = {"weights": (0.5, 2), "scale": 0.3}
    both = raw_bytes(run(merge_method("task_arithmetic", **parameters), base, tuned))
    for name, dense in [
        ("dare", {"p": 0}),
        ("dare", {"density": 1, "semantics": "mergekit"}),
    ]:
        assert raw_bytes(run(merge_method(name, **dense, **parameters), base, tuned)) == both, name
    elected = run(merge_method("ties", density=1, weights=(0.5, 2), scale=0.3), base, tuned)
    np.testing.assert_array_equal(
        joined(run(merge_method("dare_ties", p=0, weights=(0.5, 2), scale=0.3), base, tuned)), joined(elected)
    )


def test_fisher_of_equal_information_is_the_mean() -> None:
    base, *tuned = models(3, "F32")
    for value in (1.0, 1e-30, 0.0):
        extras = [{n: operand(np.full(v.raw.size, value), "F32") for n, v in base.items()}] * 3
        np.testing.assert_allclose(
            joined(run(merge_method("fisher"), base, tuned, extras=extras)),
            joined(run(merge_method("linear"), base, tuned)),
            atol=3e-8,
        )


def test_seeds() -> None:
    base, *tuned = models(2, "F32")
    for name in ("dare", "dare_ties"):
        zero, again, other = (raw_bytes(run(merge_method(name, p=0.5, seed=s), base, tuned)) for s in (0, 0, 1))
        assert zero == again
        assert zero["embed"] != other["embed"]
    masks = [
        keep_mask(seed, name, model, 0, 400, 0.5)
        for seed, name, model in [(0, "a", 0), (0, "a", 1), (0, "b", 0), (1, "a", 0)]
    ]
    for i, mask in enumerate(masks):
        assert 150 < mask.sum() < 250
        assert all(150 < (mask == other).sum() < 250 for other in masks[i + 1 :]), (
            "masks of other seeds, tensors and models are independent"
        )
    np.testing.assert_array_equal(keep_mask(0, "a", 0, 13, 50, 0.5), masks[0][13:63])
    assert keep_mask(0, "a", 0, 0, 1000, 0.0).all()


@pytest.mark.parametrize("p", [0.1, 0.9])
def test_expected_value_of_dare(p: float) -> None:
    base, tuned = models(1, "F32", shapes={"w": (2000,)})
    delta = numbers(tuned["w"]) - numbers(base["w"])
    seeds = 200
    mean = (
        sum(
            numbers(run(merge_method("dare", p=p, seed=s), base, [tuned])["w"]) - numbers(base["w"])
            for s in range(seeds)
        )
        / seeds
    )
    error = np.abs(delta) * np.sqrt(p / (1 - p) / seeds)  # of the mean of Bernoulli(1 - p) / (1 - p)
    moved = delta != 0
    z = (mean - delta)[moved] / error[moved]
    assert abs(z.mean()) < 4 / np.sqrt(z.size)
    assert abs(z.std() - 1) < 0.1


def test_magnitude_sums_are_exact() -> None:
    """Over 80 orders of magnitude, subnormal numbers included, in any grouping."""
    from fractions import Fraction

    rng = np.random.default_rng(0)
    values = (rng.normal(size=3000) * 10.0 ** rng.uniform(-45, 35, 3000)).astype(np.float32)
    mask = rng.random(3000) < 0.3
    whole = magnitude_sums(values, mask)
    np.testing.assert_array_equal(magnitude_sums(values[:7], mask[:7]) + magnitude_sums(values[7:], mask[7:]), whole)
    for row, chosen in zip(whole, (~mask, mask), strict=True):
        assert total_magnitude(row) == sum((Fraction(float(abs(v))) for v in values[chosen]), Fraction(0))
    assert total_magnitude(magnitude_sums(values[:0], mask[:0])[0]) == 0


def base_like(base: Model) -> Model:
    return {n: operand(np.ones(v.raw.size), "F32") for n, v in base.items()}


def test_overflow_is_counted() -> None:
    base, model = {"w": operand(np.array([6e4, 0.0]), "F16")}, {"w": operand(np.array([-6e4, 1.0]), "F16")}
    for name, parameters in [
        ("task_arithmetic", {}),
        ("dare", {"p": 0}),
        ("ties", {"density": 1}),
    ]:
        _, flags = merge(merge_method(name, scale=-1, **parameters), base, [model], out="F16")
        assert flags["w"] == (0, 1), name
    wide = {"w": operand(np.array([3e38]), "F32")}
    _, flags = merge(merge_method("dare", p=0, scale=-3), {"w": operand(np.array([-3e38]), "F32")}, [wide])
    assert flags["w"] == (0, 1)


def test_negative_fisher_values_are_refused_by_place() -> None:
    base, *tuned = models(2, "F32")
    diagonals = [base_like(base), base_like(base)]
    diagonals[1]["up"].raw[70] = -1
    with pytest.raises(ModelError, match=r"up: .*got -1 for model 2 \(first negative at element 70\)"):
        run(merge_method("fisher"), base, tuned, extras=diagonals, block=64)


@pytest.mark.parametrize("variant", VARIANTS)
def test_identities_name_the_method_again(variant: str) -> None:
    identity = json.loads(json.dumps(VARIANTS[variant].identity()))
    assert merge_method(identity.pop("method"), **identity) == VARIANTS[variant]
