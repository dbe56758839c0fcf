"""The protocol of a merge method: arithmetic on one block of one tensor, with what it needs to know about whole tensors
gathered before.

A model is cut into blocks (stretches of a flattened tensor). For each of its `rounds` a method measures every block,
the sums over the blocks are settled into a state, and the last pass combines every block into the output:

    state = None
    for r in range(method.rounds()):
        state = method.settle(r, sum of method.measure(r, block, state) over the blocks, state)
    for each block: method.combine(block, state, out)

Which blocks share a state is the method's `scope`: "none" (no rounds), "tensor" (the blocks of one tensor) or "model"
(all blocks of all tensors). A tensor without elements is one block of count 0. Sums run in block order, and statistics
are integers or float64, so that block sizes and threads change no bit of the result (for float64 sums: none that
rounding to the output's dtype leaves).

A method is a frozen dataclass of plain parameters and keeps no state of its own: one value serves any number of merges
and threads. Its fields are declared as settings (`config.declare`): type, bounds and the docstring under each are what
commands, YAML and help texts know of them. Values are computed in float32 and rounded once, into the output; in
float64 as soon as an operand or the output is float64.

Integer and boolean tensors are not merged; the engine copies them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np

from holdfast.checkpoints.dtypes import compute_dtype, count_nonfinite, decode, encode
from holdfast.checkpoints.element_types import DType, Operand
from holdfast.checkpoints.kernels import Flags, Term, combine
from holdfast.config.declare import Meta
from holdfast.config.decode import field_problems
from holdfast.errors import Problem
from holdfast.support.own_code import origin

Semantics = Literal["original", "mergekit"]
"""As the paper's authors do it, or as mergekit 0.1.5 does."""

PIECE = 32768
"""Elements that NumPy works on at a time."""


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
    shape: tuple[int, ...]
    """The whole tensor's shape."""
    base: Operand | None
    """`[count]`; None where the merge has no base."""
    models: Sequence[Operand]
    """`[count]` each, in the order of the weights."""
    extras: Sequence[Operand] = ()
    """`[count]` each, one a model: what `MergeMethod.extras` names."""
    has: tuple[bool, ...] = ()
    """Whether model i has this tensor itself; where not, its operand is the base's. Empty: all have it."""

    def operands(self) -> list[Operand | None]:
        """Base, models, extras: the order that `MergeMethod.combine` reports non-finite values in."""
        return [self.base, *self.models, *self.extras]

    def has_own(self, model: int) -> bool:
        """Whether model `model` (from 0) has this tensor itself."""
        return not self.has or self.has[model]


class Sum(NamedTuple):
    """`anchor + sum_i weight_i * (plus_i - minus_i)` of a block's operands, which are meant by their index into
    `Block.operands()`."""

    anchor: int | None
    """None: a sum without one."""
    terms: Sequence[tuple[float, int, int | None]]
    """Weight, plus and minus; minus may be None."""


@dataclass(frozen=True, kw_only=True)
class MergeMethod:
    """What a merge computes. Subclasses set the class variables and implement `as_sum` or `combine`, and the rest where
    they need statistics."""

    name: ClassVar[str]
    """What configs and commands call it."""
    summary: ClassVar[str] = ""
    """One line for help texts: what it does."""
    source: ClassVar[str] = ""
    """Paper and section."""
    needs_base: ClassVar[bool]
    """Whether it takes a base (theta_0) beside the models."""
    models: ClassVar[tuple[int, int | None]]
    """Fewest and most models beside the base; None: any number."""
    extras: ClassVar[str | None] = None
    """What it needs one of a model beside the weights, as tensors of the same names and shapes; None: nothing."""

    @property
    def scope(self) -> str:
        """Which blocks share a state: "none", "tensor" or "model"."""
        return "none"

    def problems(self, models: int | None = None) -> list[Problem]:
        """Everything wrong with the parameters, and with `models` models beside the base, as one sentence each, which
        begins with the parameter's name where it is about one ("density: ..."); None: not yet known how many."""
        return field_problems(self) + count_problems(self, models)

    def rounds(self) -> int:
        """How many passes of statistics come before `combine`."""
        return 0

    def measure(self, round: int, block: Block, state: Any) -> np.ndarray:
        """A block's statistics in round `round` (from 0), summed over the blocks with `+`. `state` is what the round
        before settled."""
        raise NotImplementedError(f"{self.name} has no rounds")

    def settle(self, round: int, total: np.ndarray, state: Any) -> Any:
        """The state that follows from the sum of all `measure` of this round."""
        raise NotImplementedError(f"{self.name} has no rounds")

    def combine(self, block: Block, state: Any, out: Operand) -> Flags:
        """Merges one block into `out`.

        Args:
            block: operands of any float dtypes.
            state: of the last round; None without rounds.
            out: `[count]`, its dtype is the output's.

        Returns:
            `nonfinite`: bit 0 is the base, bit 1 + i model i, bit 1 + len(models) + i its extra: which hold NaN or
                infinities.
            `overflow`: finite results that did not fit the output's dtype.
        """
        formula = self.as_sum([model.dtype for model in block.models], state)
        if formula is None:
            raise NotImplementedError(f"{self.name} has no combine")
        return weighted_sum(block, formula, out)

    def as_sum(self, models: Sequence[DType], state: Any) -> Sum | None:
        """What `combine` computes, where that is a weighted sum whatever the values: the engine takes such blocks from
        file to file in one call.

        Args:
            models: the tensor's dtype in each model.
            state: as of `combine`.
        """
        return None

    def weights_of(self, models: int) -> tuple[float, ...]:
        """The weight of each of so many models in a mean of some of them; see `among`."""
        return (1.0,) * models

    def among(self, owners: Sequence[int], models: int) -> MergeMethod | None:
        """What becomes of a tensor that only some of the models have, and the base has not: a method without rounds on
        those; None: their mean by weight (`methods.linear.method_among`).

        Args:
            owners: models that have it, from 0.
            models: how many there are.
        """
        return None

    def identity(self) -> dict[str, Any]:
        """Name and parameters as JSON values, for the provenance record."""
        values = dataclasses.asdict(self)
        plain = {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}
        return {"method": self.name, **plain, **origin(type(self))}


Each = float | tuple[float, ...]
"""A number for all models, or one a model."""


def of_each(value: Each, models: int) -> tuple[float, ...]:
    """A parameter's value for each model."""
    return value if isinstance(value, tuple) else (value,) * models


def each_problems(name: str, value: Each | None, models: int | None) -> list[Problem]:
    """A sentence where a parameter has a value for each of another number of models."""
    if models is None or not isinstance(value, tuple) or len(value) == models:
        return []
    return [Problem(name, f"expected one number, or one for each of the {models} models, got {len(value)}")]


def read_weights(value: Any) -> tuple[float, ...]:
    """Weights as a YAML or a command line has them: numbers, one number, or text such as "0.5, 1e-1".

    Raises:
        ValueError: something that is no number, or nothing.
    """
    words: list[Any] = []
    for item in value if isinstance(value, (list, tuple)) else [value]:
        words += item.replace(",", " ").split() if isinstance(item, str) else [item]
    if not words or any(isinstance(word, bool) for word in words):
        raise ValueError
    return tuple(float(word) for word in words)


def weights_schema() -> dict[str, Any]:
    """JSON Schema of weights."""
    return {"type": ["array", "string", "number", "null"], "items": {"type": ["number", "string"]}}


@dataclass(frozen=True, kw_only=True)
class WeightedMethod(MergeMethod):
    """A method with one weight a model."""

    mean: ClassVar[bool] = False
    """Whether the weights are shares of a mean: 0 or more each, not all 0."""

    weights: Annotated[
        tuple[float, ...] | None,
        Meta(
            parse=read_weights,
            expected="numbers, one a model (on a command line after the models' names)",
            metavar="W",
            repeatable=True,
            json_schema=weights_schema,
        ),
    ] = None
    """One weight a model, in the order of the models; equal ones where none are given."""

    def problems(self, models: int | None = None) -> list[Problem]:
        return super().problems(models) + weight_problems(self.weights, models, mean=self.mean)

    def weights_of(self, models: int) -> tuple[float, ...]:
        """The weights as given, or 1 each."""
        return (1.0,) * models if self.weights is None else tuple(self.weights)


def count_problems(method: MergeMethod, models: int | None) -> list[Problem]:
    """A sentence where a method gets a number of models that it does not take."""
    if models is None:
        return []
    fewest, most = method.models
    if fewest <= models and (most is None or models <= most):
        return []
    expected = f"{fewest} or more" if most is None else str(fewest) if fewest == most else f"{fewest} to {most}"
    beside = " beside the base" if method.needs_base else ""
    return [
        Problem((), f"{method.name}: expected {expected} model{'s' if expected != '1' else ''}{beside}, got {models}")
    ]


def weight_problems(weights: Sequence[float] | None, models: int | None, *, mean: bool) -> list[Problem]:
    """Sentences on weights: one a model, finite, and for a `mean` 0 or more with a sum above 0."""
    if weights is None:
        return []
    shown = ", ".join(f"{w:g}" for w in weights)
    found = []
    if models is not None and len(weights) != models:
        found.append(
            Problem("weights", f"expected one weight for each of the {models} models, got {len(weights)} ({shown})")
        )
    if not all(math.isfinite(w) for w in weights):
        return [*found, Problem("weights", f"expected finite numbers, got {shown}")]
    if mean and any(w < 0 for w in weights):
        found.append(
            Problem(
                "weights",
                f"expected 0 or more for a mean, got {shown}; differences between models are task_arithmetic's",
            )
        )
    elif mean and not sum(weights) > 0:
        found.append(Problem("weights", f"expected a sum above 0, got {shown}"))
    return found


def weighted_sum(block: Block, formula: Sum, out: Operand) -> Flags:
    """A sum of a block's operands, through the kernel.

    Args:
        block: where the operands come from.
        formula: the sum.
        out: `[count]`.

    Returns:
        Flags with the bits of `MergeMethod.combine`.
    """
    operands, (anchor, terms) = block.operands(), formula
    indices = [anchor]
    for _, plus, minus in terms:
        indices += [plus, minus]
    flags = combine(
        None if anchor is None else _given(operands[anchor]),
        [
            Term(weight, _given(operands[plus]), None if minus is None else _given(operands[minus]))
            for weight, plus, minus in terms
        ],
        out,
    )
    nonfinite = 0
    for bit, index in enumerate(indices):
        if index is not None and flags.nonfinite >> bit & 1:
            nonfinite |= 1 << index
    return Flags(nonfinite, flags.overflow)


def computed(block: Block, out: Operand, function: Callable[[slice, list[np.ndarray]], np.ndarray]) -> Flags:
    """`out = function(...)` in NumPy, for methods without a kernel: in pieces whose temporaries stay in the cache.

    Args:
        block: where the operands come from.
        out: `[count]`.
        function: gets a piece (a slice of the block) and its values, and gives the result. The values are `[piece]`
            arrays in the compute dtype (float32, or float64 where an operand or `out` is float64), in the order of
            `block.operands()`; without a base the first is empty.
    """
    operands = block.operands()
    nonfinite = sum(1 << bit for bit, o in enumerate(operands) if o is not None and count_nonfinite(*o))
    overflow = unusual = 0
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for piece, values in pieces(block, out):
            result = function(piece, values)
            unusual += int(np.count_nonzero(~np.isfinite(result)))
            overflow += encode(result, out.dtype, out.raw[piece])
    return Flags(nonfinite, overflow + (0 if nonfinite else unusual))


def pieces(block: Block, out: Operand | None = None) -> Iterator[tuple[slice, list[np.ndarray]]]:
    """A block's operands as numbers, piece by piece, as `computed` hands them out."""
    operands = block.operands()
    dtype = compute_dtype(*(o.dtype for o in (*operands, out) if o is not None))
    for start in range(0, block.count, PIECE):
        piece = slice(start, min(start + PIECE, block.count))
        yield piece, [_numbers(operand, piece, dtype) for operand in operands]


def _numbers(operand: Operand | None, piece: slice, dtype: np.dtype) -> np.ndarray:
    if operand is None:
        return np.empty(0, dtype)
    return decode(operand.raw[piece], operand.dtype, np.empty(piece.stop - piece.start, dtype))


def _given(operand: Operand | None) -> Operand:
    assert operand is not None, "a method that needs a base was given a block without one"
    return operand
