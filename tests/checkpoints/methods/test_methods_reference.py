"""Every merge method against ten lines of float64, through the whole engine, in every dtype and layout; and its
finer points."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from elements import stored, wide
from merge_driver import Model, joined, merge, models
from merge_references import CASES, Vectors, reference_model_stock

from checkpoint_folders import (
    assert_rounded,
    fisher_diagonal,
    llama_shapes,
    merge_inputs,
    random_model,
    read_folder,
    write_folder,
)
from holdfast.checkpoints.merge import merge as merge_folders
from holdfast.checkpoints.methods.model_stock import stock_ratio
from holdfast.checkpoints.methods.registry import METHODS, find_method, merge_method
from holdfast.checkpoints.methods.slerp import slerp_weights
from holdfast.checkpoints.methods.ties import elect

STORAGE = {
    "bf16": (["BF16"] * 4, None),
    "fp16": (["F16"] * 4, None),
    "fp32": (["F32"] * 4, None),
    "fp64": (["F64"] * 4, None),
    "fp8_e4m3": (["F8_E4M3"] * 4, None),
    "fp8_e5m2": (["F8_E5M2"] * 4, None),
    "mixed": (["BF16", "F32", "F16", "F8_E4M3"], None),
    "mixed_to_fp32": (["F16", "BF16", "F8_E5M2", "F64"], "float32"),
    "fp32_to_bf16": (["F32"] * 4, "bfloat16"),
}
"""Dtypes of base and three models, dtype of the output."""

SHAPES = llama_shapes() | {"model.scalar": (), "model.empty": (0, 7), "model.exact": (64,), "model.over": (13, 5)}


class Parents(NamedTuple):
    """Base, three models and two Fisher diagonals on disk, and their numbers."""

    folders: list[Path]
    fisher: list[Path]
    dtypes: list[str]
    wanted: str | None
    values: list[Vectors]


@pytest.fixture(scope="module", params=STORAGE)
def parents(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Parents:
    dtypes, wanted = STORAGE[request.param]
    folder, shards = tmp_path_factory.mktemp(request.param), 1 + len(request.param) % 3
    base = random_model(1, dtypes[0], SHAPES)
    held = [base, *(random_model(i, d, SHAPES, near=base, spread=0.4) for i, d in enumerate(dtypes[1:], 2))]
    diagonals = [fisher_diagonal(i, SHAPES, floor=0.3) for i in (10, 11)]
    return Parents(
        [write_folder(folder / f"m{i}", m, shards=shards) for i, m in enumerate(held)],
        [write_folder(folder / f"f{i}", m) for i, m in enumerate(diagonals)],
        dtypes,
        wanted,
        [{n: t.values.ravel() for n, t in m.items()} for m in (*held, *diagonals)],
    )


def test_every_method_has_a_case() -> None:
    assert {find_method(name).name for name, *_ in CASES.values()} == set(METHODS)


@pytest.mark.parametrize("case", CASES)
def test_every_method_is_its_reference(case: str, parents: Parents, small_units: int, tmp_path: Path) -> None:
    name, parameters, count, reference = CASES[case]
    inputs, request = merge_inputs(name, count, parents.folders, parents.fisher)
    merge_folders(inputs, tmp_path / "out", method=name, dtype=parents.wanted, sync=False, **parameters, **request)
    values, base = parents.values, find_method(name).needs_base
    expected = reference(values[0], values[1 : 1 + count], values[4:])
    layout = parents.dtypes[0 if base else 1]
    found = read_folder(tmp_path / "out")
    assert found.keys() == SHAPES.keys()
    moved = []
    for tensor, merged in found.items():
        assert merged.dtype == {"float32": "F32", "bfloat16": "BF16", None: layout}[parents.wanted]
        sizes = sum(np.abs(v[tensor]) for v in values[:4]).reshape(SHAPES[tensor])
        assert_rounded(merged, expected[tensor].reshape(SHAPES[tensor]), terms=6 * sizes, steps=4)
        moved += [bool(np.any(expected[tensor] != values[0 if base else 1][tensor]))] if sizes.size >= 10 else []
    # changes that were drawn apart from each other have nothing in common in half of the tensors, which Model Stock
    # leaves as they are
    assert (any if name == "model_stock" else all)(moved), "a test that changes nothing tests nothing"


def test_fisher_floor_lifts_small_values() -> None:
    _, *tuned = models(2, "F32")
    rng = np.random.default_rng(5)
    diagonals = [{n: stored(1e-12 * rng.random(v.raw.size), "F32") for n, v in m.items()} for m in tuned]
    floored, _ = merge(merge_method("fisher", floor=1.0), None, tuned, extras=diagonals)
    mean, _ = merge(merge_method("linear"), None, tuned)
    np.testing.assert_allclose(joined(floored), joined(mean), atol=1e-8)


def test_slerp_is_linear_where_the_angle_is_small_or_unknown() -> None:
    for cosine in (0.9994, 0.0, -0.9994):
        first, second = slerp_weights(0.5, 6 * cosine, 2, 3) or (0, 0)
        assert first == second == pytest.approx(0.5 / np.cos(np.arccos(cosine) / 2), rel=1e-9)
    for dot, norm in ((0.9996, 1), (-0.9996, 1), (0, 0), (np.nan, 1), (np.inf, np.inf)):
        assert slerp_weights(0.5, dot, 1, norm) is None


def related(dtype: str, count: int, *, share: float = 0.8) -> list[Model]:
    """A base and fine-tunes of it whose changes have much in common, as those of other seeds have."""
    rng = np.random.default_rng(3)
    base, common = rng.normal(0, 0.05, (2, 33, 40))
    made = [base, *(base + 0.05 * (share * common + (1 - share) * rng.normal(0, 0.05, (33, 40))) for _ in range(count))]
    return [{"up.weight": stored(values, dtype)} for values in made]


@pytest.mark.parametrize("count", [2, 4])
def test_model_stock_goes_as_far_as_the_changes_agree(count: int) -> None:
    base, *tuned = related("F64", count)
    b, ms = base["up.weight"].raw, [m["up.weight"].raw for m in tuned]
    wanted = reference_model_stock({"w": b}, [{"w": m} for m in ms], [])["w"]
    result, _ = merge(merge_method("model_stock"), base, tuned, out="F64", block=97)
    np.testing.assert_allclose(result["up.weight"].raw, wanted, rtol=0, atol=1e-15)
    mean = sum(ms) / count - b
    assert 0.9 < np.dot(wanted - b, mean) / np.square(mean).sum() < 1


def test_model_stock_of_changes_without_a_common_part_is_the_base() -> None:
    """Opposite changes, right angles, a change of 0: mergekit extrapolates at negative cosines, up to a pole."""
    for second, third in (([-1, 0.1], [1, 1]), ([0, 1], [0, -1]), ([0, 0], [0, 0])):
        offsets = np.array([[1, 0], second, third], float)
        assert stock_ratio(offsets @ offsets.T) == 0
    assert stock_ratio(np.full((3, 3), 4.0)) == 1
    assert stock_ratio(np.full((2, 2), np.nan)) == 0
    assert stock_ratio(1e-30 * np.array([[1, 0.5], [0.5, 1]])) == pytest.approx(2 * 0.5 / 1.5), "size does not matter"


def test_equal_changes_give_the_model_bit_for_bit() -> None:
    base, first, _ = related("F32", 2)
    found, _ = merge(merge_method("model_stock"), base, [first, first])
    assert found["up.weight"].raw.tobytes() == first["up.weight"].raw.tobytes()


def test_elections_that_cancel() -> None:
    """The sum of the two changes is 0: nobody is elected in the original, the positive side in mergekit's."""
    deltas = [np.array([1.0, 2.0], np.float32), np.array([-1.0, 2.0], np.float32)]
    np.testing.assert_array_equal(elect(deltas), [0, 2])
    np.testing.assert_array_equal(elect(deltas, semantics="mergekit"), [1, 2])


def test_ties_trims_over_the_whole_model_or_each_tensor() -> None:
    base = {"small": stored(np.zeros(4), "F32"), "large": stored(np.zeros(4), "F32")}
    tuned = [{"small": stored(np.array([1.0, 2, 3, 4]), "F32"), "large": stored(np.array([10.0, 20, 30, 40]), "F32")}]
    whole, _ = merge(merge_method("ties", density=0.5), base, tuned)
    each, _ = merge(merge_method("ties", density=0.5, semantics="mergekit"), base, tuned)
    np.testing.assert_array_equal(joined(whole), [0, 0, 0, 0, 10, 20, 30, 40])
    np.testing.assert_array_equal(joined(each), [0, 0, 3, 4, 0, 0, 30, 40])


def test_a_model_that_lacks_a_tensor_changes_nothing_there() -> None:
    base, *tuned = models(2, "F32")
    tuned[1]["embed"] = base["embed"]
    lacking = {(1, "embed")}
    for method in (
        merge_method("task_arithmetic"),
        merge_method("dare", semantics="mergekit"),
        merge_method("dare_ties", semantics="mergekit"),
    ):
        result, _ = merge(method, base, tuned, lacking=lacking)
        single, _ = merge(method, base, tuned[:1])
        np.testing.assert_array_equal(wide(result["embed"]), wide(single["embed"]))
    # a trim's share is of the elements that a model has
    rest = [{n: v for n, v in m.items() if n != "embed"} for m in (base, tuned[1])]
    single, _ = merge(merge_method("ties", density=0.4), rest[0], rest[1:])
    beside, _ = merge(merge_method("ties", density=0.4), base, [base, tuned[1]], lacking={*lacking, (0, "embed")})
    for name in rest[0]:
        np.testing.assert_array_equal(beside[name].raw, single[name].raw)
    diagonals = [{n: stored(np.ones(v.raw.size), "F32") for n, v in base.items()}] * 2
    averaged, _ = merge(merge_method("fisher"), None, tuned, extras=diagonals, lacking=lacking)
    np.testing.assert_array_equal(averaged["embed"].raw, tuned[0]["embed"].raw)
