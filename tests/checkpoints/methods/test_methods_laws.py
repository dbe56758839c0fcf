"""What every merge method must satisfy: blocks and threads change no bit, weights 0 and 1 are copies, special cases
meet, faults are flagged."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
from elements import stored, wide
from merge_driver import SHAPES, Model, merge, models, raw_bytes
from merge_references import CASES

from holdfast.checkpoints.methods.dare import keep_mask, magnitude_sums, total_magnitude
from holdfast.checkpoints.methods.protocol import MergeMethod
from holdfast.checkpoints.methods.registry import merge_method
from holdfast.errors import ModelError


def run(method: MergeMethod, base: Model, tuned: list[Model], **changes: Any) -> Model:
    extras = [{n: stored(np.abs(wide(v)), "F32") for n, v in m.items()} for m in tuned] if method.extras else None
    return merge(method, base if method.needs_base else None, tuned, **{"extras": extras, **changes})[0]


LARGE = {"w": (90_001,)}
"""Beyond the pieces in which NumPy and the kernels work."""


@pytest.mark.parametrize(
    ("dtype", "shapes", "blocks"),
    [
        ("BF16", SHAPES, (1000, 128, 37)),
        ("BF16", LARGE, (40_000,)),
        *(pytest.param(dtype, SHAPES, (1000, 128, 37), marks=pytest.mark.slow) for dtype in ("F32", "F64")),
    ],
)
@pytest.mark.parametrize("case", CASES)
def test_block_sizes_change_no_bit(case: str, dtype: str, shapes: dict, blocks: tuple[int, ...]) -> None:
    name, parameters, count, _ = CASES[case]
    method = merge_method(name, **parameters)
    base, *tuned = models(count, dtype, shapes=shapes)
    out = "F32" if dtype == "F64" else dtype
    whole = raw_bytes(run(method, base, tuned, out=out))
    for block in blocks:
        assert raw_bytes(run(method, base, tuned, out=out, block=block)) == whole, block


@pytest.mark.parametrize("stored", ["F32", "BF16"])
def test_special_cases_are_task_arithmetic(stored: str) -> None:
    base, *tuned = models(2, stored)
    for count, shared, cases in (
        (1, {}, [("ties", {"density": 1}), ("ties", {"density": 1, "semantics": "mergekit"})]),
        (
            2,
            {"weights": (0.5, 2), "scale": 0.3},
            [("dare", {"p": 0}), ("dare", {"density": 1, "semantics": "mergekit"})],
        ),
    ):
        expected = raw_bytes(run(merge_method("task_arithmetic", **shared), base, tuned[:count]))
        for name, parameters in cases:
            method = merge_method(name, **parameters, **shared)
            assert raw_bytes(run(method, base, tuned[:count])) == expected, (name, parameters)


def test_seeds() -> None:
    base, *tuned = models(2, "F32")
    for name in ("dare", "dare_ties"):
        zero, again, other = (raw_bytes(run(merge_method(name, p=0.5, seed=s), base, tuned)) for s in (0, 0, 1))
        assert zero == again
        assert zero["embed"] != other["embed"]
    streams = [(0, "a", 0), (0, "a", 1), (0, "b", 0), (1, "a", 0)]
    masks = [keep_mask(*stream, 0, 400, 0.5) for stream in streams]
    for first, second in itertools.combinations(masks, 2):
        assert 150 < (first == second).sum() < 250, "masks of other seeds, tensors and models are independent"
    np.testing.assert_array_equal(keep_mask(0, "a", 0, 13, 50, 0.5), masks[0][13:63])


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
    return {n: stored(np.ones(v.raw.size), "F32") for n, v in base.items()}


def test_negative_fisher_values_are_refused_by_place() -> None:
    base, *tuned = models(2, "F32")
    diagonals = [base_like(base), base_like(base)]
    diagonals[1]["up"].raw[70] = -1
    with pytest.raises(ModelError, match=r"up: .*got -1 for model 2 \(first negative at element 70\)"):
        run(merge_method("fisher"), base, tuned, extras=diagonals, block=64)


@pytest.mark.parametrize("case", CASES)
def test_identities_name_the_method_again(case: str) -> None:
    name, parameters, _, _ = CASES[case]
    method = merge_method(name, **parameters)
    identity = json.loads(json.dumps(method.identity()))
    assert merge_method(identity.pop("method"), **identity) == method
