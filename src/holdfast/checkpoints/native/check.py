"""Every entry point of the library against the NumPy forms, on a few thousand elements, before anything uses it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from holdfast.checkpoints.dtypes import Operand
    from holdfast.checkpoints.native import Kernels


def first_difference(kernels: Kernels) -> str | None:
    """The name of the first function whose result differs from NumPy's in a bit (sums: in 1e-12); None where all agree."""
    return next((name for name, same in _comparisons(kernels) if not same), None)


def _comparisons(c: Kernels) -> Iterator[tuple[str, bool]]:
    from holdfast.checkpoints import conversions, counter, kernels_numpy
    from holdfast.checkpoints.dtypes import DTYPES, Array, Operand
    from holdfast.checkpoints.kernels import Term

    rng = np.random.default_rng(0)
    types = [DTYPES[name] for name in ("F32", "BF16", "F16", "F8_E4M3", "F8_E5M2")]
    n = 2603  # more than two blocks, odd
    patterns = rng.integers(0, 1 << 32, n, dtype=np.uint32).view(np.float32)
    near = (rng.standard_normal(n) * 2.0 ** rng.integers(-30, 18, n)).astype(np.float32)

    def stored(values: Array, name: str) -> Operand:
        raw = np.empty(len(values), DTYPES[name].storage)
        conversions.encode(values, DTYPES[name], raw)
        return Operand(raw, DTYPES[name])

    def empty(name: str) -> Operand:
        return Operand(np.zeros(n, DTYPES[name].storage), DTYPES[name])

    def same(x: Array, y: Array) -> bool:
        return x.tobytes() == y.tobytes()

    for dtype in types:
        for values in (patterns, near, near * np.float32(1e-7)):
            x, y = empty(dtype.name), empty(dtype.name)
            yield "encode", c.encode(values, dtype.name, x.raw) == conversions.encode(values, dtype, y.raw) and same(x.raw, y.raw)
            wide = np.empty(n, np.float32)
            c.decode(y.raw, dtype.name, wide)
            yield "decode", np.array_equal(wide, conversions.decode(y.raw, dtype, np.empty(n, np.float32)), equal_nan=True)
            yield "count_nonfinite", c.count_nonfinite(y.raw, dtype.name) == conversions.count_nonfinite(y.raw, dtype)

    small = [(rng.standard_normal(n) * 0.02).astype(np.float32) for _ in range(4)]
    small[3][1::7] = small[2][1::7]
    key, start = 0x0123456789ABCDEF, (1 << 34) + 3
    for names in (["BF16"] * 4, ["F32"] * 4, ["F16", "BF16", "F8_E5M2", "F32"]):
        for source in (small, [near, *small[:2], patterns]):
            a, b, m, o = (stored(v, name) for v, name in zip(source, names, strict=True))
            for out in (names[0], names[3], "F8_E4M3"):
                for anchor, terms in (
                    (a, [Term(0.5, b, a), Term(-0.3, m, a)]), (None, [Term(1.0, a), Term(0.25, b), Term(0.0, o)]), (o, [Term(1.0, m, b)] * 4), (a, [])
                ):  # fmt: skip
                    x, y = empty(out), empty(out)
                    flags = c.combine([anchor, *(p for t in terms for p in t[1:])], [t.weight for t in terms], x)
                    yield "combine", flags == kernels_numpy.combine(anchor, terms, y) and same(x.raw, y.raw)
                for by_count, weights in ((True, None), (True, [0.5, 2.0, 1.0]), (False, [0.5, -2.0, 1.0]), (False, None)):
                    x, y = empty(out), empty(out)
                    limits = [0.01, 0.0, 0.002]
                    flags = c.ties([a, b, m, o], limits, weights, 0.7, by_count, weights is None, x)
                    expected = kernels_numpy.ties(a, [b, m, o], limits, weights, 0.7, by_count=by_count, normalize=weights is None, out=y)
                    yield "ties", flags == expected and same(x.raw, y.raw)
                x, y = empty(out), empty(out)
                yield "perturb", c.perturb(b, key, start, 0.1, x) == kernels_numpy.perturb(b, key, start, 0.1, y) and same(x.raw, y.raw)
            counts = np.zeros((2, 65536), np.int64)
            flags = c.delta_histogram(a, o, counts[0], 0, 0)
            yield "delta_histogram", flags == kernels_numpy.delta_histogram(a, o, counts[1], level=0, prefix=0) and same(*counts)
            fine, prefix = np.zeros((2, 32768), np.int64), int(counts[1].argmax())
            c.delta_histogram(a, o, fine[0], 1, prefix)
            kernels_numpy.delta_histogram(a, o, fine[1], level=1, prefix=prefix)
            yield "delta_histogram", same(*fine)
            with np.errstate(invalid="ignore"):
                yield "moments", np.allclose(c.moments(a, o), kernels_numpy.moments(a, o), rtol=1e-12, atol=0, equal_nan=True)

    yield "words", same(c.words(key, start, np.empty(n, np.uint32)), counter.words_numpy(key, start, n))
    yield "uniform", same(c.uniform(key, start, np.empty(n)), counter.uniform_numpy(key, start, n))
    yield "normal", same(c.normal(key, start, np.empty(n, np.float32)), counter.normal_numpy(key, start, n))
