"""A small stand-in for the engine: cuts the tensors of models into blocks, runs a method's rounds over them and
combines; and models to run it on."""

from __future__ import annotations

from typing import Any

import numpy as np
from elements import stored, wide

from holdfast.checkpoints.element_types import DTYPES, Operand
from holdfast.checkpoints.kernels import Flags
from holdfast.checkpoints.methods.protocol import Block, MergeMethod

Model = dict[str, Operand]
SHAPES = {"embed": (41, 17), "empty": (0, 3), "norm": (7,), "one": (1,), "scalar": (), "up": (5, 3, 17), "down": (300,)}


def models(count: int, dtype: str, *, seed: int = 0, shapes: dict[str, tuple[int, ...]] = SHAPES) -> list[Model]:
    """A base and `count` models tuned from it: their changes differ in size, a tenth of them is 0."""
    rng = np.random.default_rng(seed)
    base = {name: rng.normal(0, 0.05, int(np.prod(shape))) for name, shape in shapes.items()}
    made = [base]
    for i in range(count):
        made.append(
            {n: v + rng.normal(0, 0.004 * (i + 1), v.size) * (rng.random(v.size) > 0.1) for n, v in base.items()}
        )
    return [{n: stored(v, dtype) for n, v in model.items()} for model in made]


def merge(
    method: MergeMethod,
    base: Model | None,
    merged: list[Model],
    *,
    extras: list[Model] | None = None,
    out: str = "F32",
    block: int = 1 << 18,
    lacking: set[tuple[int, str]] = frozenset(),  # type: ignore[assignment]
    shapes: dict[str, tuple[int, ...]] = SHAPES,
) -> tuple[Model, dict[str, Flags]]:
    """Runs a method as the engine does.

    Args:
        block: elements a block.
        lacking: (model, tensor) that are only there through the base.
        shapes: of tensors that are not flat.
    """
    extras = extras or []
    assert method.problems(len(merged)) == []

    def blocks(name: str) -> list[Block]:
        size = len(merged[0][name].raw)
        made = []
        for start in range(0, max(size, 1), block):
            cut = slice(start, min(start + block, size))
            parts = [Operand(m[name].raw[cut], m[name].dtype) for m in ([base] if base else []) + merged + extras]
            first = 1 if base else 0
            made.append(
                Block(
                    name=name,
                    start=start,
                    count=cut.stop - start,
                    size=size,
                    shape=shapes.get(name, (size,)),
                    base=parts[0] if base else None,
                    models=tuple(parts[first : first + len(merged)]),
                    extras=tuple(parts[first + len(merged) :]),
                    has=tuple((i, name) not in lacking for i in range(len(merged))),
                )
            )
        return made

    names = list(merged[0])
    groups = {"model": [names], "tensor": [[n] for n in names], "none": []}[method.scope]
    states: dict[str, Any] = {}
    for group in groups:
        state = None
        for number in range(method.rounds()):
            total = None
            for name in group:
                for piece in blocks(name):
                    value = method.measure(number, piece, state)
                    total = value if total is None else total + value
            state = method.settle(number, total, state)
        states |= dict.fromkeys(group, state)
    result: Model = {}
    flags: dict[str, Flags] = {}
    for name in names:
        target = Operand(np.empty(len(merged[0][name].raw), DTYPES[out].storage), DTYPES[out])
        nonfinite = overflow = 0
        for piece in blocks(name):
            piece_out = Operand(target.raw[piece.start : piece.start + piece.count], DTYPES[out])
            found = method.combine(piece, states.get(name), piece_out)
            nonfinite, overflow = nonfinite | found.nonfinite, overflow + found.overflow
        result[name], flags[name] = target, Flags(nonfinite, overflow)
    return result, flags


def raw_bytes(model: Model) -> dict[str, bytes]:
    """For comparing bit for bit."""
    return {name: tensor.raw.tobytes() for name, tensor in model.items()}


def joined(model: Model) -> np.ndarray:
    """All numbers of a model in one float64 vector."""
    return np.concatenate([wide(tensor) for tensor in model.values()])
