"""Every entry point of the library against the NumPy forms, on a thousand elements, before anything uses it. The tests
compare much more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from holdfast.checkpoints.dtypes import Operand
    from holdfast.checkpoints.native import Kernels

_N = 1061
"""A block and an odd rest."""


def first_difference(kernels: Kernels) -> str | None:
    """The name of the first function whose result differs from NumPy's in a bit (sums: in 1e-12); None where all
    agree."""
    return next((name for name, same in _comparisons(kernels) if not same), None)


def _comparisons(c: Kernels) -> Iterator[tuple[str, bool]]:
    from holdfast.checkpoints import conversions, counter, kernels_numpy
    from holdfast.checkpoints.dtypes import DTYPES, Operand
    from holdfast.checkpoints.kernels import Term

    def stored(values: Any, name: str) -> Operand:
        raw = np.empty(_N, DTYPES[name].storage)
        conversions.encode(values, DTYPES[name], raw)
        return Operand(raw, DTYPES[name])

    def empty(name: str) -> Operand:
        return Operand(np.zeros(_N, DTYPES[name].storage), DTYPES[name])

    # Of three numbers one has any bits, one lies in the middle of two bfloat16 numbers or is one, one has a size that
    # all types hold. (To import numpy.random would take longer than all of this.)
    anything = counter.words_numpy(1, 0, _N).view(np.float32)
    anything.view(np.uint32)[1::3] &= np.uint32(0xFFFF8000)
    anything[::3] = (counter.normal_numpy(2, 0, _N) * 2.0 ** (counter.words_numpy(3, 0, _N) % 48 - 30.0))[::3]
    plain = [counter.normal_numpy(4, i * _N, _N) * np.float32(0.02) for i in range(4)]
    plain[3][1::7] = plain[2][1::7]

    for name in ("F32", "BF16", "F16", "F8_E4M3", "F8_E5M2"):
        x, y, dtype = empty(name), empty(name), DTYPES[name]
        yield (
            "encode",
            c.encode(anything, name, x.raw) == conversions.encode(anything, dtype, y.raw) and _same(x.raw, y.raw),
        )
        wide = np.empty(_N, np.float32)
        c.decode(y.raw, name, wide)
        yield "decode", np.array_equal(wide, conversions.decode(y.raw, dtype, np.empty(_N, np.float32)), equal_nan=True)
        yield "count_nonfinite", c.count_nonfinite(y.raw, name) == conversions.count_nonfinite(y.raw, dtype)

    key, start = 0x0123456789ABCDEF, (1 << 34) + 3
    for names, values in (
        (["BF16"] * 4, plain),
        (["BF16"] * 4, [anything, *plain[1:]]),
        (["F16", "F32", "F8_E5M2", "F8_E4M3"], [*plain[:3], anything]),
    ):
        a, b, m, o = (stored(v, name) for v, name in zip(values, names, strict=True))
        x, y = empty(names[3]), empty(names[3])
        sums = [
            (a, [Term(0.5, b, a), Term(-0.3, m, a)]),
            (None, [Term(1.0, m, b)]),
            (None, [Term(0.5, a), Term(0.25, b), Term(0.0, o)]),
            (o, [Term(2.0, m)] * 4),
        ]
        for anchor, terms in sums:
            flags = c.combine([anchor, *(p for t in terms for p in t[1:])], [t.weight for t in terms], x)
            yield "combine", flags == kernels_numpy.combine(anchor, terms, y) and _same(x.raw, y.raw)
        for original, weights in ((True, None), (False, [0.5, -2.0, 1.0])):
            limits = [0.01, 0.0, 0.002]
            flags = c.ties([a, b, m, o], limits, weights, 0.7, original, True, x)
            expected = kernels_numpy.ties(a, [b, m, o], limits, weights, 0.7, by_count=original, normalize=True, out=y)
            yield "ties", flags == expected and _same(x.raw, y.raw)
        yield (
            "perturb",
            c.perturb(b, key, start, 0.1, x) == kernels_numpy.perturb(b, key, start, 0.1, y) and _same(x.raw, y.raw),
        )
        prefix = 0
        for level, size in ((0, 65536), (1, 32768)):
            counts = np.zeros((2, size), np.int64)
            flags = c.delta_histogram(a, o, counts[0], level, prefix)
            used, prefix = prefix, int(counts[0].argmax())
            yield (
                "delta_histogram",
                flags == kernels_numpy.delta_histogram(a, o, counts[1], level=level, prefix=used) and _same(*counts),
            )
        yield "moments", np.allclose(c.moments(a, o), kernels_numpy.moments(a, o), rtol=1e-12, atol=0, equal_nan=True)

    yield "words", _same(c.words(key, start, np.empty(_N, np.uint32)), counter.words_numpy(key, start, _N))
    yield "uniform", _same(c.uniform(key, start, np.empty(_N)), counter.uniform_numpy(key, start, _N))
    yield "normal", _same(c.normal(key, start, np.empty(_N, np.float32)), counter.normal_numpy(key, start, _N))
    yield "stream", _streams(c)


def _streams(c: Kernels) -> bool:
    """A stream from a file into a file, in two pieces: the bytes, and the digests."""
    import os
    import tempfile

    import xxhash

    from holdfast.checkpoints import conversions, counter, kernels_numpy
    from holdfast.checkpoints.dtypes import DTYPES, Operand
    from holdfast.checkpoints.kernels import Term
    from holdfast.checkpoints.native import Place

    count, bfloat16 = 2 * 1024 + 37, DTYPES["BF16"]
    *inputs, expected = [Operand(np.empty(count, np.uint16), bfloat16) for _ in range(4)]
    for i, operand in enumerate(inputs):
        conversions.encode(counter.normal_numpy(5 + i, 0, count), bfloat16, operand.raw)
    kernels_numpy.combine(inputs[0], [Term(0.5, *inputs[1:])], expected)
    stored = b"".join(operand.raw.tobytes() for operand in inputs)
    with (
        os.fdopen(os.memfd_create("check"), "w+b") if hasattr(os, "memfd_create") else tempfile.TemporaryFile() as file
    ):
        file.write(stored)
        file.flush()
        places = [Place(file.fileno(), i * 2 * count, "BF16", np.empty(4096, np.uint8)) for i in range(4)]
        done = c.stream(count, places[:3], [0, 1, 2], [0.5], places[3], piece=1024)
        file.seek(len(stored))
        written = file.read()
    digests = [xxhash.xxh3_128_digest(operand.raw.tobytes()) for operand in (*inputs, expected)]
    return done == (0, 0, 0, 0, 0, digests) and written == expected.raw.tobytes()


def _same(x: Any, y: Any) -> bool:
    return x.tobytes() == y.tobytes()
