"""What a merge method is: the arithmetic on one block of one tensor, and what it has to know of
whole tensors before.

A method is a frozen dataclass of plain parameters. It computes in one of two ways:

    as_sum(models, statistics)   a weighted sum of the tensors: goes from file to file at the speed of a copy
    merge(values, statistics)    anything else, elementwise, on NumPy arrays

Most methods need no more. One that has to look at whole tensors first says how often it reads them
(`passes`) and has a generator `statistics`, which yields what to measure of a block, gets the sum
over all blocks, and returns what the arithmetic has to know:

    def passes(self):
        return 1

    def statistics(self):
        sums = yield lambda block: moments(block.models[0], block.models[1])
        return weights_from(sums)

Statistics are of each tensor by itself, or of the whole model (`per_tensor`). A model is cut into
blocks, stretches of flattened tensors; a tensor without elements is one block of count 0. Sums run
in block order and are integers or float64, so that block sizes and threads change no bit of the
result (for float64 sums: none that rounding to the output's dtype leaves).

The fields are declared as settings (`config.declare`): type, bounds and the docstring under each
are what commands, YAML and help texts know of them. Values are computed in float32 and rounded
once, into the output; in float64 as soon as an operand or the output is float64. Integer and
boolean tensors are not merged; the engine copies them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from holdfast.checkpoints.dtypes import compute_dtype, count_nonfinite, decode, encode
from holdfast.checkpoints.element_types import Array, DType, Operand
from holdfast.checkpoints.kernels import Flags, Term, combine
from holdfast.config.decode import field_problems
from holdfast.errors import Problem
from holdfast.support.own_code import origin

PIECE = 32768
"""Elements that NumPy works on at a time, so that temporaries stay in the cache."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """One stretch of one tensor, as it lies in all models."""

    name: str
    """The tensor's name."""
    start: int
    """Offset of the first element in the flattened (row-major) tensor."""
    count: int
    """Elements in this block."""
    size: int
    """Elements in the whole tensor."""
    base: Operand | None
    """`[count]`; None where the merge has no base."""
    models: Sequence[Operand]
    """`[count]` each, in the order of the weights."""
    extras: Sequence[Operand] = ()
    """`[count]` each, one a model: what `MergeMethod.extras` names."""
    has: tuple[bool, ...] = ()
    """Whether model i has this tensor itself; where not, its operand is the base's. Empty: all have
    it."""

    def operands(self) -> list[Operand | None]:
        """Base, models, extras: the order that `Recipe.combine` reports non-finite values in."""
        return [self.base, *self.models, *self.extras]

    def has_own(self, model: int) -> bool:
        """Whether model `model` (from 0) has this tensor itself."""
        return not self.has or self.has[model]


class Values(NamedTuple):
    """A stretch of a block as numbers: `[n]` arrays of float32, or float64 where an operand or the
    output is."""

    block: Block
    start: int
    """Offset of the first element in the flattened tensor."""
    base: Array
    """Without elements where the merge has no base."""
    models: list[Array]
    extras: list[Array]


class Sum(NamedTuple):
    """`anchor + sum_i weight_i * (plus_i - minus_i)` of a block's operands, which are meant by
    their index into `Block.operands()`: 0 is the base, 1 the first model."""

    anchor: int | None
    """None: a sum without one."""
    terms: Sequence[tuple[float, int, int | None]]
    """Weight, plus and minus; minus may be None."""


Measure = Callable[[Block], Any]
"""What is measured of a block: an array, summed over the blocks with `+`."""
Statistics = Generator[Measure, Any, Any]
"""Yields what to measure, gets the sum over all blocks; returns what the arithmetic has to know."""


class Recipe:
    """What is computed for every block of a folder that is written (`build`)."""

    per_tensor: bool = True
    """Whether statistics are computed for each tensor; False: for the whole model."""
    keeps_remainders: ClassVar[bool] = False
    """Whether `remainder` returns what base + output misses of model 1, because the output is
    rounded."""

    def passes(self) -> int:
        """How often the inputs are read for `statistics`, at most."""
        return 0

    def statistics(self) -> Statistics:
        """See the module; only asked where `passes` is not 0."""
        raise NotImplementedError

    def as_sum(self, models: Sequence[DType], statistics: Any) -> Sum | None:
        """The weighted sum that is computed; None: `merge` computes.

        Args:
            models: the tensor's dtype in each model.
            statistics: what `statistics` returned; None without passes.
        """
        return None

    def merge(self, values: Values, statistics: Any) -> Array:
        """The result for some elements, `[n]`, of the dtype of the values."""
        raise NotImplementedError(f"{type(self).__name__} has neither as_sum nor merge")

    def combine(self, block: Block, statistics: Any, out: Operand) -> Flags:
        """Computes one block. Overridden by methods with a kernel of their own.

        Args:
            block: operands of any float dtypes.
            statistics: as of `as_sum`.
            out: `[count]`, its dtype is the output's.

        Returns:
            `nonfinite`: bit 0 is the base, bit 1 + i model i, bit 1 + len(models) + i its extra:
                which hold NaN or infinities.
            `overflow`: finite results that did not fit the output's dtype.
        """
        formula = self.as_sum([model.dtype for model in block.models], statistics)
        if formula is not None:
            return weighted_sum(block, formula, out)
        nonfinite = 0
        for bit, operand in enumerate(block.operands()):
            if operand is not None and count_nonfinite(*operand):
                nonfinite |= 1 << bit
        overflow = unusual = done = 0
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            for values in pieces(block, out):
                result = self.merge(values, statistics)
                unusual += int(np.count_nonzero(~np.isfinite(result)))
                overflow += encode(result, out.dtype, out.raw[done : done + len(result)])
                done += len(result)
        return Flags(nonfinite, overflow + (0 if nonfinite else unusual))

    def difference(self, models: int) -> tuple[int, int] | None:
        """The two operands (subtrahend, minuend) whose difference is computed and may lose
        something in float32."""
        return None

    def remainder(self, block: Block, out: Operand) -> tuple[Array, Array, int]:
        """Where base + out is not model 1: places, what is missing there, and how many elements it
        does not mend; see `remainders`."""
        raise NotImplementedError

    def identity(self) -> dict[str, Any]:
        """Name and parameters as JSON values, for the provenance record."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class MergeMethod(Recipe):
    """A recipe that a user can name. Subclasses set the class variables and have `as_sum` or
    `merge`."""

    name: ClassVar[str]
    """Name of the method in configurations and commands."""
    summary: ClassVar[str] = ""
    """One line on the method, for help texts."""
    source: ClassVar[str] = ""
    """Paper and section."""
    needs_base: ClassVar[bool]
    """Whether the method uses a base (theta_0) in addition to the models."""
    models: ClassVar[tuple[int, int | None]]
    """Minimum and maximum number of models, not counting the base; None: no limit."""
    extras: ClassVar[str | None] = None
    """Additional input for each model: tensors of the same names and shapes; None: not needed."""

    def problems(self, models: int | None = None) -> list[Problem]:
        """Everything wrong with the parameters, and with `models` models in addition to the base,
        as one sentence each, which begins with the parameter's name where it is about one
        ("density: ..."); None: not yet known how many."""
        problems = field_problems(self)
        fewest, most = self.models
        if models is None or (fewest <= models and (most is None or models <= most)):
            return problems
        expected = (
            f"{fewest} or more"
            if most is None
            else str(fewest)
            if fewest == most
            else f"{fewest} to {most}"
        )
        noun = "model" if expected == "1" else "models"
        beside = " in addition to the base" if self.needs_base else ""
        return [
            *problems,
            Problem((), f"{self.name}: expected {expected} {noun}{beside}, got {models}"),
        ]

    def weights_of(self, models: int) -> tuple[float, ...]:
        """The weight of each of so many models in a mean of some of them; see `among`."""
        return (1.0,) * models

    def among(self, owners: Sequence[int], models: int) -> MergeMethod | None:
        """What becomes of a tensor that only some of the models have, and the base has not: a
        method without passes on those; None: their mean by weight (`methods.linear.method_among`).

        Args:
            owners: models that have it, from 0.
            models: how many there are.
        """
        return None

    def identity(self) -> dict[str, Any]:
        values = dataclasses.asdict(self)
        plain = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
        }
        return {"method": self.name, **plain, **origin(type(self))}


def weighted_sum(block: Block, formula: Sum, out: Operand) -> Flags:
    """A sum of a block's operands, through the kernel.

    Args:
        block: where the operands come from.
        formula: the sum.
        out: `[count]`.

    Returns:
        Flags with the bits of `Recipe.combine`.
    """
    operands = block.operands()

    def operand(index: int) -> Operand:
        present = operands[index]
        assert present is not None, "a method that needs a base was given a block without one"
        return present

    anchor = None if formula.anchor is None else operand(formula.anchor)
    indices, terms = [formula.anchor], []
    for weight, plus, minus in formula.terms:
        indices += [plus, minus]
        terms.append(Term(weight, operand(plus), None if minus is None else operand(minus)))
    flags = combine(anchor, terms, out)
    nonfinite = 0
    for bit, index in enumerate(indices):
        if index is not None and flags.nonfinite >> bit & 1:
            nonfinite |= 1 << index
    return Flags(nonfinite, flags.overflow)


def pieces(block: Block, out: Operand | None = None) -> Iterator[Values]:
    """A block's operands as numbers, piece by piece.

    Args:
        block: where the operands come from.
        out: what the results are for, if anything; float64 where it is.
    """
    present = [operand for operand in (*block.operands(), out) if operand is not None]
    dtype = compute_dtype(*(operand.dtype for operand in present))

    def numbers(operand: Operand, piece: slice) -> Array:
        return decode(operand.raw[piece], operand.dtype, np.empty(piece.stop - piece.start, dtype))

    for start in range(0, block.count, PIECE):
        piece = slice(start, min(start + PIECE, block.count))
        yield Values(
            block,
            block.start + start,
            np.empty(0, dtype) if block.base is None else numbers(block.base, piece),
            [numbers(model, piece) for model in block.models],
            [numbers(extra, piece) for extra in block.extras],
        )
