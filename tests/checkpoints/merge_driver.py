"""A small stand-in for the engine: cuts the tensors of models into blocks, runs a method's statistics over them and
combines; and models to run it on."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from elements import stored, wide

from holdfast.checkpoints.element_types import DTYPES, Operand
from holdfast.checkpoints.kernels import Flags
from holdfast.checkpoints.methods.protocol import Block, MergeMethod, Statistics

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


def blocks_of(
    name: str,
    base: Model | None,
    merged: list[Model],
    extras: list[Model],
    *,
    block: int,
    lacking: Collection[tuple[int, str]] = (),
) -> list[Block]:
    """A tensor cut as the engine does."""
    size = len(merged[0][name].raw)

    def operands(models: list[Model], cut: slice) -> tuple[Operand, ...]:
        return tuple(Operand(model[name].raw[cut], model[name].dtype) for model in models)

    blocks = []
    for start in range(0, max(size, 1), block):
        cut = slice(start, min(start + block, size))
        blocks.append(
            Block(
                name=name,
                start=start,
                count=cut.stop - start,
                size=size,
                base=operands([base], cut)[0] if base else None,
                models=operands(merged, cut),
                extras=operands(extras, cut),
                has=tuple((number, name) not in lacking for number in range(len(merged))),
            )
        )
    return blocks


def measured(statistics: Statistics, blocks: list[Block]) -> Any:
    """What a generator of statistics returns for some blocks."""
    measure = next(statistics)
    while True:
        total = None
        for piece in blocks:
            value = measure(piece)
            total = value if total is None else total + value
        try:
            measure = statistics.send(total)
        except StopIteration as ended:
            return ended.value


def merge(
    method: MergeMethod,
    base: Model | None,
    merged: list[Model],
    *,
    extras: list[Model] | None = None,
    out: str = "F32",
    block: int = 1 << 18,
    lacking: Collection[tuple[int, str]] = (),
) -> tuple[Model, dict[str, Flags]]:
    """Runs a method as the engine does.

    Args:
        block: elements a block.
        lacking: (model, tensor) that are only there through the base.
    """
    assert method.problems(len(merged)) == []
    cut = {name: blocks_of(name, base, merged, extras or [], block=block, lacking=lacking) for name in merged[0]}
    statistics: dict[str, Any] = dict.fromkeys(cut)
    if method.passes() and method.per_tensor:
        statistics = {name: measured(method.statistics(), blocks) for name, blocks in cut.items()}
    elif method.passes():
        of_model = measured(method.statistics(), [piece for blocks in cut.values() for piece in blocks])
        statistics = dict.fromkeys(cut, of_model)
    result: Model = {}
    flags: dict[str, Flags] = {}
    for name, blocks in cut.items():
        target = Operand(np.empty(len(merged[0][name].raw), DTYPES[out].storage), DTYPES[out])
        nonfinite = overflow = 0
        for piece in blocks:
            part = Operand(target.raw[piece.start : piece.start + piece.count], DTYPES[out])
            raised = method.combine(piece, statistics[name], part)
            nonfinite, overflow = nonfinite | raised.nonfinite, overflow + raised.overflow
        result[name], flags[name] = target, Flags(nonfinite, overflow)
    return result, flags


def raw_bytes(model: Model) -> dict[str, bytes]:
    """For comparing bit for bit."""
    return {name: tensor.raw.tobytes() for name, tensor in model.items()}


def joined(model: Model) -> np.ndarray:
    """All numbers of a model in one float64 vector."""
    return np.concatenate([wide(tensor) for tensor in model.values()])
