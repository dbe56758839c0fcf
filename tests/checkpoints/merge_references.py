"""Ten lines of float64 for every merge method: what the engine's results are compared with."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from holdfast.checkpoints.counter import stream_key, uniform

Vectors = dict[str, np.ndarray]
Reference = Callable[[Vectors, list[Vectors], list[Vectors]], Vectors]
"""Of a base, the models and their Fisher diagonals."""

WEIGHTS = (0.5, 1.5, 1.0)
"""Rows of the matrices that the tests merge."""


def by_tensor(function: Callable[[str, np.ndarray, list[np.ndarray]], np.ndarray]) -> Reference:
    return lambda base, tuned, _: {n: function(n, base[n], [m[n] for m in tuned]) for n in base}


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
    def run(base: Vectors, tuned: list[Vectors], _: list[Vectors]) -> Vectors:
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
        lambda _, b, ms: (
            b + scale * voted([trimmed(m - b, density) for m in ms], weights, original=False, normalize=normalize)
        )
    )


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


def reference_linear(normalize: bool) -> Reference:
    return by_tensor(
        lambda _, b, ms: sum(w * m for w, m in zip(WEIGHTS, ms, strict=True)) / (sum(WEIGHTS) if normalize else 1)
    )


def reference_fisher(base: Vectors, tuned: list[Vectors], diagonals: list[Vectors]) -> Vectors:
    found = {}
    for name in base:
        f = [w * d[name] for w, d in zip(WEIGHTS, diagonals, strict=False)]
        theta = [m[name] for m in tuned]
        weighted = sum(a * b for a, b in zip(f, theta, strict=True))
        mean = sum(w * m for w, m in zip(WEIGHTS, theta, strict=False)) / sum(WEIGHTS[: len(theta)])
        found[name] = np.where(sum(f) > 0, weighted / np.where(sum(f) > 0, sum(f), 1), mean)
    return found


@by_tensor
def reference_model_stock(_: str, b: np.ndarray, ms: list[np.ndarray]) -> np.ndarray:
    count, offsets = len(ms), [m - b for m in ms]
    pairs = [(x, y) for i, x in enumerate(offsets) for y in offsets[i + 1 :]]
    cos = np.mean([x @ y / (np.linalg.norm(x) * np.linalg.norm(y) or 1.0) for x, y in pairs])
    t = max(0.0, count * cos / (1 + (count - 1) * cos)) if cos > 0 else 0.0
    return t * sum(ms) / count + (1 - t) * b


CASES: dict[str, tuple[str, dict, int, Reference]] = {
    "linear": ("linear", {"weights": WEIGHTS}, 3, reference_linear(True)),
    "sum": ("linear", {"weights": WEIGHTS, "normalize": False}, 3, reference_linear(False)),
    "wise_ft": ("wise-ft", {"alpha": 0.3}, 1, by_tensor(lambda _, b, ms: 0.7 * b + 0.3 * ms[0])),
    "slerp": ("slerp", {"t": 0.3}, 2, reference_slerp(0.3)),
    "task_arithmetic": (
        "task_arithmetic",
        {"weights": WEIGHTS, "scale": 0.7},
        3,
        by_tensor(lambda _, b, ms: b + 0.7 * sum(w * (m - b) for w, m in zip(WEIGHTS, ms, strict=True))),
    ),
    "sum_of_changes": (
        "task_arithmetic",
        {},
        2,
        by_tensor(lambda _, b, ms: b + sum(m - b for m in ms)),
    ),
    "ties": ("ties", {"density": 0.3, "scale": 0.7}, 3, reference_ties_original(0.3, None, 0.7)),
    "ties_weighted": ("ties", {"density": 0.3, "weights": WEIGHTS}, 3, reference_ties_original(0.3, WEIGHTS, 1.0)),
    "ties_dense": ("ties", {"density": 1.0}, 3, reference_ties_original(1.0, None, 1.0)),
    "ties_mergekit": (
        "ties",
        {"density": 0.3, "semantics": "mergekit", "weights": WEIGHTS},
        3,
        reference_ties_mergekit(0.3, WEIGHTS, 1.0),
    ),
    "dare": ("dare", {"p": 0.6, "scale": 0.7, "weights": WEIGHTS, "seed": 3}, 3, reference_dare(0.6, "original")),
    "dare_mergekit": (
        "dare",
        {"p": 0.6, "scale": 0.7, "weights": WEIGHTS, "seed": 3, "semantics": "mergekit"},
        3,
        reference_dare(0.6, "l1"),
    ),
    "dare_ties": (
        "dare_ties",
        {"p": 0.6, "scale": 0.7, "weights": WEIGHTS, "seed": 3},
        3,
        reference_dare(0.6, "original", elected=True),
    ),
    "dare_ties_mergekit": (
        "dare_ties",
        {"p": 0.6, "scale": 0.7, "weights": WEIGHTS, "seed": 3, "semantics": "mergekit"},
        3,
        reference_dare(0.6, "l1", elected=True),
    ),
    "fisher": ("fisher", {"weights": WEIGHTS[:2]}, 2, reference_fisher),
    "model_stock": ("model_stock", {}, 3, reference_model_stock),
}
"""Case: method, parameters, models beside the base, reference."""
