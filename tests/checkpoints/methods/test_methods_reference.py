"""Every merge method against ten lines of float64, on ragged models in every float dtype."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from merge_driver import Model, joined, merge, models, numbers, operand

from holdfast.checkpoints.counter import stream_key, uniform
from holdfast.checkpoints.methods.breadcrumbs import breadcrumbs, thresholds
from holdfast.checkpoints.methods.fisher import fisher
from holdfast.checkpoints.methods.linear import linear, task_arithmetic, wise_ft
from holdfast.checkpoints.methods.registry import merge_method
from holdfast.checkpoints.methods.slerp import slerp, slerp_weights
from holdfast.checkpoints.methods.ties import elect, threshold, ties

Vectors = dict[str, np.ndarray]
Reference = Callable[[Vectors, list[Vectors]], Vectors]

WEIGHTS = (0.5, 1.5, 1.0)
HALF_ULP = {"F64": 0.0, "F32": 2.0**-24, "F16": 2.0**-11, "BF16": 2.0**-8}
"""Relative error of one rounding into the dtype, beside that of the arithmetic."""


def by_tensor(function: Callable[[str, np.ndarray, list[np.ndarray]], np.ndarray]) -> Reference:
    return lambda base, tuned: {n: function(n, base[n], [m[n] for m in tuned]) for n in base}


def trimmed(delta: np.ndarray, density: float) -> np.ndarray:
    if not delta.size:
        return delta
    k = max(1, int(density * delta.size))
    return np.where(np.abs(delta) >= np.sort(np.abs(delta))[-k], delta, 0)


def voted(
    deltas: list[np.ndarray], weights: tuple[float, ...] | None, *, original: bool, normalize: bool
) -> np.ndarray:
    w = np.ones(len(deltas)) if weights is None else np.array(weights)
    weighted = np.stack(deltas) * w[:, None]
    total = weighted.sum(0)
    sign = np.sign(total) if original else np.where(total >= 0, 1, -1)
    agrees = (np.sign(weighted) == sign) & (weighted != 0)
    divisor = (agrees if original else agrees * w[:, None]).sum(0)
    return (weighted * agrees).sum(0) / np.where((divisor == 0) | (not normalize), 1, divisor)


def reference_ties_original(
    density: float, weights: tuple[float, ...] | None, scale: float, normalize: bool = True
) -> Reference:
    def run(base: Vectors, tuned: list[Vectors]) -> Vectors:
        sizes = [v.size for v in base.values()]
        flat = [np.concatenate([m[n] - base[n] for n in base]) for m in tuned]
        change = scale * voted([trimmed(d, density) for d in flat], weights, original=True, normalize=normalize)
        parts = np.split(change, np.cumsum(sizes)[:-1])
        return {n: base[n] + part for n, part in zip(base, parts, strict=True)}

    return run


def reference_ties_mergekit(
    density: float, weights: tuple[float, ...] | None, scale: float, normalize: bool = True
) -> Reference:
    return by_tensor(
        lambda _, b, ms: b + scale * voted([trimmed(m - b, density) for m in ms], weights, original=False, normalize=normalize)
    )  # fmt: skip


def reference_slerp(t: float) -> Reference:
    def run(_: str, b: np.ndarray, ms: list[np.ndarray]) -> np.ndarray:
        x, y = ms
        norms = np.linalg.norm(x) * np.linalg.norm(y)
        cos = x @ y / norms if norms else 1.0
        if abs(cos) > 0.9995:
            return (1 - t) * x + t * y
        omega = np.arccos(cos)
        return (np.sin((1 - t) * omega) * x + np.sin(t * omega) * y) / np.sin(omega)

    return by_tensor(run)


def masks(name: str, size: int, count: int, p: float, seed: int) -> list[np.ndarray]:
    return [uniform(stream_key(seed, name, "dare", str(i)), 0, size) >= p for i in range(count)]


def reference_dare(p: float, factor: str, *, elected: bool = False) -> Reference:
    def run(name: str, b: np.ndarray, ms: list[np.ndarray]) -> np.ndarray:
        kept = []
        for m, mask in zip(ms, masks(name, b.size, len(ms), p, 3), strict=True):
            delta = (m - b) * mask
            before, after = (np.abs(d).astype(np.float32).astype(np.float64).sum() for d in (m - b, delta))
            l1 = before / after if after > 1e-7 else 1.0
            kept.append(delta * {"original": 1 / (1 - p), "l1": l1, "none": 1.0}[factor])
        if elected:
            return b + 0.7 * voted(kept, WEIGHTS, original=factor == "original", normalize=factor == "original")
        return b + 0.7 * sum(w * d for w, d in zip(WEIGHTS, kept, strict=True))

    return by_tensor(run)


def reference_breadcrumbs(density: float, gamma: float) -> Reference:
    def run(_: str, b: np.ndarray, ms: list[np.ndarray]) -> np.ndarray:
        total = b.copy()
        for m, w in zip(ms, WEIGHTS, strict=True):
            delta, stay = m - b, int(density * b.size)
            top = np.sort(np.abs(delta))[max(0, b.size - stay - int(gamma * b.size)) :][:stay]
            total += 0.7 * w * delta * ((np.abs(delta) >= top.min()) & (np.abs(delta) <= top.max()) if stay else 0)
        return total

    return by_tensor(run)


def reference_linear(normalize: bool) -> Reference:
    return by_tensor(
        lambda _, b, ms: sum(w * m for w, m in zip(WEIGHTS, ms, strict=True)) / (sum(WEIGHTS) if normalize else 1)
    )


CASES: dict[str, tuple[str, dict, int, Reference]] = {
    "linear": ("linear", {"weights": WEIGHTS}, 3, reference_linear(True)),
    "sum": ("linear", {"weights": WEIGHTS, "normalize": False}, 3, reference_linear(False)),
    "soup": ("soup", {}, 3, by_tensor(lambda _, b, ms: sum(ms) / 3)),
    "wise_ft": ("wise-ft", {"alpha": 0.3}, 1, by_tensor(lambda _, b, ms: 0.7 * b + 0.3 * ms[0])),
    "wise_ft_far": ("wise-ft", {"alpha": 0.9}, 1, by_tensor(lambda _, b, ms: 0.1 * b + 0.9 * ms[0])),
    "slerp": ("slerp", {"t": 0.3}, 2, reference_slerp(0.3)),
    "task_arithmetic": (
        "task_arithmetic", {"weights": WEIGHTS, "scale": 0.7}, 3,
        by_tensor(lambda _, b, ms: b + 0.7 * sum(w * (m - b) for w, m in zip(WEIGHTS, ms, strict=True))),
    ),
    "negation": ("task_arithmetic", {"scale": -1.0}, 1, by_tensor(lambda _, b, ms: 2 * b - ms[0])),
    "ties": ("ties", {"density": 0.3, "scale": 0.7}, 3, reference_ties_original(0.3, None, 0.7)),
    "ties_weighted": ("ties", {"density": 0.3, "weights": WEIGHTS}, 3, reference_ties_original(0.3, WEIGHTS, 1.0)),
    "ties_dense": ("ties", {"density": 1.0}, 3, reference_ties_original(1.0, None, 1.0)),
    "ties_sum": ("ties", {"density": 0.3, "normalize": False}, 3, reference_ties_original(0.3, None, 1.0, False)),
    "ties_mergekit": ("ties", {"density": 0.3, "semantics": "mergekit", "weights": WEIGHTS}, 3, reference_ties_mergekit(0.3, WEIGHTS, 1.0)),
    "ties_mergekit_sum": (
        "ties", {"density": 0.3, "semantics": "mergekit", "scale": 0.7, "normalize": False}, 3, reference_ties_mergekit(0.3, None, 0.7, False),
    ),
    "dare": ("dare", {"p": 0.6, "scale": 0.7, "weights": WEIGHTS, "seed": 3}, 3, reference_dare(0.6, "original")),
    "dare_mergekit": ("dare", {"p": 0.6, "scale": 0.7, "weights": WEIGHTS, "seed": 3, "semantics": "mergekit"}, 3, reference_dare(0.6, "l1")),
    "dare_plain": ("dare", {"p": 0.6, "scale": 0.7, "weights": WEIGHTS, "seed": 3, "rescale": False}, 3, reference_dare(0.6, "none")),
    "dare_ties": ("dare_ties", {"p": 0.6, "scale": 0.7, "weights": WEIGHTS, "seed": 3}, 3, reference_dare(0.6, "original", elected=True)),
    "dare_ties_mergekit": (
        "dare_ties", {"p": 0.6, "scale": 0.7, "weights": WEIGHTS, "seed": 3, "semantics": "mergekit"}, 3, reference_dare(0.6, "l1", elected=True),
    ),
    "breadcrumbs": ("breadcrumbs", {"density": 0.5, "gamma": 0.1, "scale": 0.7, "weights": WEIGHTS}, 3, reference_breadcrumbs(0.5, 0.1)),
}  # fmt: skip


@pytest.mark.parametrize(
    ("stored", "out"),
    [
        ("F64", "F64"),
        ("F64", "BF16"),
        ("F32", "F32"),
        ("F32", "F64"),
        ("F32", "F16"),
        ("BF16", "BF16"),
        ("BF16", "F32"),
        ("F16", "F16"),
    ],
)
@pytest.mark.parametrize("case", CASES)
def test_against_float64(case: str, stored: str, out: str) -> None:
    name, parameters, count, reference = CASES[case]
    base, *tuned = models(count, stored, seed=len(case))
    method = merge_method(name, **parameters)
    result, flags = merge(method, base if method.needs_base else None, tuned, out=out, block=100)
    expected = reference(
        {n: numbers(v) for n, v in base.items()}, [{n: numbers(v) for n, v in m.items()} for m in tuned]
    )
    exact = "F64" in (stored, out)
    # float32 arithmetic on magnitudes up to 0.5; subnormal float16 numbers are 2^-24 apart
    tolerance = (1e-15 if exact else 4e-7) + (2.0**-25 if out == "F16" else 0)
    for tensor, values in expected.items():
        np.testing.assert_allclose(
            numbers(result[tensor]),
            values,
            rtol=HALF_ULP[out] + (1e-13 if exact else 0),
            atol=tolerance,
            err_msg=tensor,
        )
        assert flags[tensor] == (0, 0)
        assert np.any(values != numbers(base[tensor])) == bool(values.size) or values.size < 10, (
            "a test that changes nothing tests nothing"
        )


@pytest.mark.parametrize("stored", ["F64", "F32", "BF16"])
def test_fisher_against_float64(stored: str) -> None:
    _, *tuned = models(3, stored)
    diagonals = fisher_of(tuned, scale=1e-12)
    result, flags = merge(merge_method("fisher", weights=WEIGHTS), None, tuned, extras=diagonals)
    for tensor, values in result.items():
        f = [numbers(d[tensor]) * w for d, w in zip(diagonals, WEIGHTS, strict=True)]
        unknown = sum(f) == 0
        theta = [numbers(m[tensor]) for m in tuned]
        expected = sum(a * b for a, b in zip(f, theta, strict=True)) / np.where(unknown, 1, sum(f))
        mean = sum(w * b for w, b in zip(WEIGHTS, theta, strict=True)) / sum(WEIGHTS)
        np.testing.assert_allclose(
            numbers(values), np.where(unknown, mean, expected), rtol=0, atol=1e-7, err_msg=tensor
        )
        assert flags[tensor] == (0, 0)
        assert values.raw.size < 10 or 0 < unknown.sum() < values.raw.size


def test_fisher_floor_lifts_small_values() -> None:
    _, *tuned = models(2, "F32")
    diagonals = fisher_of(tuned, scale=1e-12)
    floored, _ = merge(merge_method("fisher", floor=1.0), None, tuned, extras=diagonals)
    mean, _ = merge(merge_method("linear"), None, tuned)
    np.testing.assert_allclose(joined(floored), joined(mean), atol=1e-8)


def fisher_of(tuned: list[Model], *, scale: float) -> list[Model]:
    """Squared gradients over many orders of magnitude, a tenth of them 0 in all models."""
    rng = np.random.default_rng(5)
    zero = {n: rng.random(v.raw.size) < 0.1 for n, v in tuned[0].items()}
    return [
        {n: operand(np.where(zero[n], 0, scale * 10 ** rng.uniform(-20, 0, v.raw.size)), "F32") for n, v in m.items()}
        for m in tuned
    ]


def test_the_functions_give_what_the_blocks_give() -> None:
    """The plain functions on arrays are the kernels' reference, in float32 and bit for bit where both do the same operations."""
    base, *tuned = models(2, "F32", shapes={"w": (400,)})
    b, ms = base["w"].raw, [m["w"].raw for m in tuned]

    def run(name: str, **parameters: object) -> np.ndarray:
        method = merge_method(name, **parameters)
        few = tuned[: method.models[1]] if method.models[1] else tuned
        return merge(method, base if method.needs_base else None, few)[0]["w"].raw

    np.testing.assert_array_equal(linear(ms, [1, 3]), run("linear", weights=(1, 3)))
    np.testing.assert_array_equal(linear(ms, [1, 3], normalize=False), run("linear", weights=(1, 3), normalize=False))
    np.testing.assert_array_equal(wise_ft(b, ms[0], 0.3), run("wise_ft", alpha=0.3))
    np.testing.assert_array_equal(
        task_arithmetic(b, ms, [1, 3], 0.2), run("task_arithmetic", weights=(1, 3), scale=0.2)
    )
    np.testing.assert_allclose(slerp(*ms, 0.3), run("slerp", t=0.3), rtol=0, atol=1e-8)
    for semantics in ("original", "mergekit"):
        cut = [threshold(m - b, 0.3) for m in ms]
        np.testing.assert_array_equal(
            ties(b, ms, cut, [1, 3], 0.2, semantics=semantics),
            run("ties", density=0.3, weights=(1, 3), scale=0.2, semantics=semantics),
        )
    bounds = [thresholds(m - b, 0.5, 0.1) for m in ms]
    np.testing.assert_array_equal(
        breadcrumbs(b, ms, bounds, [1, 3], 0.2), run("breadcrumbs", density=0.5, gamma=0.1, weights=(1, 3), scale=0.2)
    )
    assert fisher([ms[0]], [np.zeros_like(b)]).tobytes() == ms[0].tobytes()


def test_slerp_is_linear_where_the_angle_is_small_or_unknown() -> None:
    for cosine in (0.9994, 0.0, -0.9994):
        first, second = slerp_weights(0.5, 6 * cosine, 2, 3) or (0, 0)
        assert first == second == pytest.approx(0.5 / np.cos(np.arccos(cosine) / 2), rel=1e-9)
    for dot, norm in ((0.9996, 1), (-0.9996, 1), (0, 0), (np.nan, 1), (np.inf, np.inf)):
        assert slerp_weights(0.5, dot, 1, norm) is None


def test_elections_that_cancel() -> None:
    """The sum of the two changes is 0: nobody is elected in the original, the positive side in mergekit's."""
    deltas = [np.array([1.0, 2.0], np.float32), np.array([-1.0, 2.0], np.float32)]
    np.testing.assert_array_equal(elect(deltas), [0, 2])
    np.testing.assert_array_equal(elect(deltas, semantics="mergekit"), [1, 2])
    base = {"w": operand(np.zeros(2), "F32")}
    tuned = [{"w": operand(d, "F32")} for d in deltas]
    for semantics, expected in (("original", [0, 2]), ("mergekit", [1, 2])):
        result, _ = merge(merge_method("ties", density=1.0, semantics=semantics), base, tuned)
        np.testing.assert_array_equal(result["w"].raw, expected)


def test_ties_trims_over_the_whole_model_or_each_tensor() -> None:
    base = {"small": operand(np.zeros(4), "F32"), "large": operand(np.zeros(4), "F32")}
    tuned = [{"small": operand(np.array([1.0, 2, 3, 4]), "F32"), "large": operand(np.array([10.0, 20, 30, 40]), "F32")}]
    whole, _ = merge(merge_method("ties", density=0.5), base, tuned)
    each, _ = merge(merge_method("ties", density=0.5, semantics="mergekit"), base, tuned)
    np.testing.assert_array_equal(joined(whole), [0, 0, 0, 0, 10, 20, 30, 40])
    np.testing.assert_array_equal(joined(each), [0, 0, 3, 4, 0, 0, 30, 40])


def test_a_model_that_lacks_a_tensor_changes_nothing_there() -> None:
    base, *tuned = models(2, "F32")
    tuned[1]["embed"] = base["embed"]
    lacking = {(1, "embed")}
    dense, _ = merge(merge_method("task_arithmetic"), base, tuned, lacking=lacking)
    np.testing.assert_array_equal(
        dense["embed"].raw, merge(merge_method("task_arithmetic"), base, tuned[:1])[0]["embed"].raw
    )
    for semantics in ("original", "mergekit"):
        result, _ = merge(merge_method("ties", density=0.4, semantics=semantics), base, tuned, lacking=lacking)
        rest = [{n: v for n, v in m.items() if n != "embed"} for m in (base, *tuned)]
        own = [numbers(t["embed"]) - numbers(base["embed"]) for t in tuned[:1]]
        assert np.all((numbers(result["embed"]) == numbers(base["embed"])) | (own[0] != 0))
        if semantics == "original":
            # its share is of the elements that it has
            alone, _ = merge(merge_method("ties", density=0.4), rest[0], rest[2:])
            beside, _ = merge(
                merge_method("ties", density=0.4), base, [base, tuned[1]], lacking={*lacking, (0, "embed")}
            )
            for n in rest[0]:
                np.testing.assert_array_equal(beside[n].raw, alone[n].raw)
    averaged, _ = merge(
        merge_method("fisher"),
        None,
        tuned,
        extras=[{n: operand(np.ones(v.raw.size), "F32") for n, v in base.items()}] * 2,
        lacking=lacking,
    )
    np.testing.assert_array_equal(averaged["embed"].raw, tuned[0]["embed"].raw)
    for name in ("breadcrumbs", "dare", "dare_ties"):
        result, _ = merge(
            merge_method(name, semantics="mergekit") if "dare" in name else merge_method(name),
            base,
            tuned,
            lacking=lacking,
        )
        alone, _ = merge(
            merge_method(name, semantics="mergekit") if "dare" in name else merge_method(name), base, tuned[:1]
        )
        np.testing.assert_array_equal(numbers(result["embed"]), numbers(alone["embed"]))
