"""The instruction residual (Balancing Continuous Pre-Training, section 2.2): what instruction tuning
changed, taken out and put on another base.

    residual = theta_instruct - theta_base            extract
    theta_new_instruct = theta_new_base + scale * residual         apply
    theta_new_instruct = theta_new_base + scale * (theta_instruct - theta_base)      transfer, the two in one pass

A residual is a checkpoint of its own (`residual.safetensors`, so that nothing loads it as a model),
float32 by default. It carries the instruct model's tokenizer, chat template and generation
configuration, which belong to the result.

Rounding the difference to float32 loses something where a weight became more than twice smaller
than the base's (a base in float32) or more than 2^16 times (bfloat16; 2^13 for float16). What is
lost there is kept beside the residual (`remainders`), so that put back on its base it gives the
instruct model bit for bit, but for the sign of a zero: in float32, and so in every narrower dtype
that holds the instruct model's numbers, which the base's may not be (a note says so). Extraction
counts the elements that would not come back even so (`audit`), so the record says whether it is
exact. A weight that did not change is stored as -0.0, which changes nothing: not even the sign of a
zero.

Before anything is written, a sample of every layer is compared: a residual between models that are
no relatives is noise, and is warned about with the evidence (`ancestry`).
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from holdfast.checkpoints.ancestry import ancestry, warnings_of
from holdfast.checkpoints.build import Built, Prepared
from holdfast.checkpoints.element_types import DTYPES, Array, DType, Operand
from holdfast.checkpoints.kernels import Flags, Term, combine
from holdfast.checkpoints.locate import local_folder, open_source
from holdfast.checkpoints.merge import Name
from holdfast.checkpoints.methods.protocol import Block, Recipe, Sum, weighted_sum
from holdfast.checkpoints.parents import Parents
from holdfast.checkpoints.plan import Alias, Plan, make_plan
from holdfast.checkpoints.policies import Policies
from holdfast.checkpoints.provenance import FILE
from holdfast.checkpoints.reader import CheckpointReader
from holdfast.checkpoints.remainders import SUFFIX, Remaindered, remainder
from holdfast.checkpoints.sources import Source, listing
from holdfast.errors import ConfigError, ModelError, ShapeError

STEM = "residual"


@dataclass(frozen=True, kw_only=True)
class Extract(Recipe):
    """`model 1 - base`, as `-(base - model 1)`, which is -0.0 where nothing changed."""

    keeps_remainders: ClassVar[bool] = True

    def as_sum(self, models: Sequence[DType], statistics: Any) -> Sum | None:
        # of float32 weights most blocks have remainders, for which the operands are needed once
        # more
        return None if models[0].itemsize >= 4 else Sum(None, [(-1.0, 0, 1)])

    def combine(self, block: Block, statistics: Any, out: Operand) -> Flags:
        return weighted_sum(block, Sum(None, [(-1.0, 0, 1)]), out)

    def difference(self, models: int) -> tuple[int, int]:
        """Base and tuned model, as operands of a block."""
        return 0, 1

    def remainder(self, block: Block, out: Operand) -> tuple[Array, Array, int]:
        return remainder(block, out)

    def identity(self) -> dict[str, Any]:
        return {"method": "residual", "step": "extract"}


@dataclass(frozen=True, kw_only=True)
class Apply(Recipe):
    """`model 1 + scale * model 2`, or with a third model
    `model 1 + scale * (model 2 - model 3)`."""

    scale: float = 1.0

    def as_sum(self, models: Sequence[DType], statistics: Any) -> Sum | None:
        if len(models) == 2:
            return Sum(1, [(self.scale, 2, None)])
        # with the signs of `Extract`, so that one pass gives the bits of two; what rounding loses
        # of a difference is no sum, and of float32 weights most blocks have some
        return (
            None
            if any(dtype.itemsize >= 4 for dtype in models[1:])
            else Sum(1, [(-self.scale, 3, 2)])
        )

    def difference(self, models: int) -> tuple[int, int] | None:
        """The third model and the second, as operands of a block."""
        return (3, 2) if models == 3 else None

    def combine(self, block: Block, statistics: Any, out: Operand) -> Flags:
        if len(block.models) == 2:
            return weighted_sum(block, Sum(1, [(self.scale, 2, None)]), out)
        target, plus, minus = block.models
        return combine(target, [Term(self.scale, _difference(block, plus, minus))], out)

    def identity(self) -> dict[str, Any]:
        return {"method": "residual", "step": "apply", "scale": self.scale}


def _difference(block: Block, instruct: Operand, base: Operand) -> Operand:
    """`instruct - base` as it would be stored and read again: float32, or float64 where a remainder
    belongs to it."""
    pair = dataclasses.replace(block, base=base, models=(instruct,), has=(True,))
    hi = Operand(np.empty(block.count, np.float32), DTYPES["F32"])
    combine(None, [Term(-1.0, base, instruct)], hi)
    places, low, _ = remainder(pair, hi)
    if not len(places):
        return hi
    wide = hi.raw.astype(np.float64)
    wide[places] += low
    return Operand(wide, DTYPES["F64"])


def prepare_extract(
    instruct: Name,
    base: Name,
    *,
    dtype: str = "float32",
    policies: Policies | None = None,
    adapter_base: Name | None = None,
) -> Prepared:
    """Checks and plans `instruct - base`. Either may be an adapter.

    Args:
        instruct: the tuned model.
        base: what it was tuned from.
        dtype: of the residual; "float32" is exact (see above), "bfloat16" takes half the space.
        policies: what to do where the two differ. With `vocabulary: keep` a row that the base lacks
            is the instruct model's own.
        adapter_base: the model that adapters belong to; default: the base.

    Raises:
        ConfigError, ModelError, ShapeError: see `prepare_merge`.
    """
    tuned = open_source(instruct, base=adapter_base if adapter_base is not None else base)
    parents = Parents(
        sources=(open_source(base), tuned), roles=("base", "instruct"), layout=1, base=0
    )
    plan = make_plan(
        parents, policies, dtype=dtype, copies_keep_dtype=True, stem=STEM, lacking_rows="zeros"
    )
    return Prepared(
        command="residual extract",
        plan=_narrower(_warned(plan, 0, 1)),
        recipe=Extract(),
        request={"dtype": dtype, "policies": policies or Policies()},
    )


def prepare_apply(
    residual: Name,
    base: Name,
    *,
    scale: float = 1.0,
    dtype: str | None = None,
    policies: Policies | None = None,
    tokenizer: str = "residual",
) -> Prepared:
    """Checks and plans `base + scale * residual`.

    Args:
        residual: what `extract_residual` wrote.
        base: the model to put it on. The output has its names, dtypes, shards and configuration.
        scale: factor on the residual; 1 in the paper.
        dtype: of floating-point tensors; None: the base's.
        policies: what to do where the two differ.
        tokenizer: whose vocabulary, tokenizer, chat template and generation configuration the
            output takes: "residual" (the instruct parent's) or "base".

    Raises:
        ConfigError, ModelError, ShapeError: see `prepare_merge`.
    """
    _check(scale=scale, tokenizer=tokenizer, known=("residual", "base"))
    if not any(local_folder(residual).glob(f"{STEM}*.safetensors")):
        raise ModelError(
            f"Expected a residual (residual.safetensors) in {residual}, found another kind of "
            "checkpoint. Make a residual with 'holdfast residual extract', or give --instruct and "
            "--old_base to compute it in the same pass."
        )
    target = open_source(base)
    parents = Parents(
        sources=(target, _partial(_opened(residual), target)),
        roles=("base", "residual"),
        tokenizer=1 if tokenizer == "residual" else 0,
    )
    return _applied(parents, scale=scale, dtype=dtype, policies=policies, tokenizer=tokenizer)


def _opened(residual: Name) -> Source:
    source = CheckpointReader(local_folder(residual))
    with_remainders = Remaindered(source)
    stated = _record(source.folder).get("audit", {}).get("remainders")
    count = with_remainders.elements
    if stated is not None and stated != count:
        raise ModelError(
            f"{residual} was written with {stated:,} remainders (*{SUFFIX}) and has {count:,}: "
            "files are missing. Copy the whole folder again."
        )
    return with_remainders if count else source


def _record(folder: Path) -> dict[str, Any]:
    """What the residual's folder says of itself; empty where it says nothing."""
    try:
        record = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def prepare_transfer(
    instruct: Name,
    old_base: Name,
    base: Name,
    *,
    scale: float = 1.0,
    dtype: str | None = None,
    policies: Policies | None = None,
    tokenizer: str = "instruct",
    adapter_base: Name | None = None,
) -> Prepared:
    """Checks and plans `base + scale * (instruct - old_base)` in one pass over the three.

    Args:
        instruct, old_base: the tuned model and what it was tuned from.
        base: the model to put the difference on. The output has its names, dtypes, shards and
            configuration.
        scale, dtype, policies: as of `prepare_apply`.
        tokenizer: "instruct" or "base".
        adapter_base: the model that adapters belong to; default: for `instruct` the old base.

    Raises:
        ConfigError, ModelError, ShapeError: see `prepare_merge`.
    """
    _check(scale=scale, tokenizer=tokenizer, known=("instruct", "base"))
    parents = Parents(
        sources=(
            open_source(base, base=adapter_base),
            open_source(instruct, base=adapter_base if adapter_base is not None else old_base),
            open_source(old_base),
        ),
        roles=("base", "instruct", "old base"),
        tokenizer=1 if tokenizer == "instruct" else 0,
    )
    return _applied(parents, scale=scale, dtype=dtype, policies=policies, tokenizer=tokenizer)


def extract_residual(
    instruct: Name,
    base: Name,
    output_dir: Name,
    *,
    overwrite: bool = False,
    sync: bool = True,
    **request: Any,
) -> Built:
    """Writes the residual `instruct - base` to a folder. `prepare_extract` describes the other
    arguments and the errors."""
    return prepare_extract(instruct, base, **request).write(
        output_dir, overwrite=overwrite, sync=sync
    )


def apply_residual(
    residual: Name,
    base: Name,
    output_dir: Name,
    *,
    overwrite: bool = False,
    sync: bool = True,
    **request: Any,
) -> Built:
    """Writes the model `base + scale * residual` to a folder. `prepare_apply` describes the other
    arguments and the errors."""
    return prepare_apply(residual, base, **request).write(
        output_dir, overwrite=overwrite, sync=sync
    )


def transfer_residual(
    instruct: Name,
    old_base: Name,
    base: Name,
    output_dir: Name,
    *,
    overwrite: bool = False,
    sync: bool = True,
    **request: Any,
) -> Built:
    """Writes the model `base + scale * (instruct - old_base)` to a folder. `prepare_transfer`
    describes the other arguments and the errors."""
    return prepare_transfer(instruct, old_base, base, **request).write(
        output_dir, overwrite=overwrite, sync=sync
    )


def _applied(
    parents: Parents, *, scale: float, dtype: str | None, policies: Policies | None, tokenizer: str
) -> Prepared:
    plan = make_plan(parents, policies, dtype=dtype, lacking_rows="zeros")
    _check_places(plan)
    if len(parents.sources) == 3:
        plan = _warned(plan if dtype is not None else _narrower(plan), 2, 1)
    return Prepared(
        command="residual apply",
        plan=plan,
        recipe=Apply(scale=scale),
        request={"dtype": dtype, "policies": policies or Policies(), "tokenizer": tokenizer},
    )


def _partial(residual: Source, base: Source) -> Source:
    """The residual without what it holds whole where this base has it: there is no difference to
    add there."""
    copied = [name for name in _copied(residual) if name in base.entries]
    return Alias(residual, without=copied) if copied else residual


def _copied(residual: Source) -> list[str]:
    """Names of the tensors that a residual holds whole, because its own base lacked them."""
    copied = _record(residual.folder).get("copied")
    names = copied.get("instruct") if isinstance(copied, dict) else None
    return [name for name in names if name in residual.entries] if isinstance(names, list) else []


def _check_places(plan: Plan) -> None:
    """Refuses differences of tensors that the base lacks: there is nothing to add them to, and they
    are no weights.

    Raises:
        ShapeError: naming them.
    """
    last = len(plan.sources) - 1  # the residual, or the old base
    copied = _copied(plan.sources[last]) if last == 1 else ()
    names = [
        job.name for job in plan.jobs if job.has[last] and not job.has[0] and job.name not in copied
    ]
    if names:
        raise ShapeError(
            f"{len(names)} tensors of {plan.roles[last]} are not in base: {listing(names, 4)}. So "
            "the base has no place for their residual. --unmatched drop leaves them out."
        )


def _warned(plan: Plan, base: int, tuned: int) -> Plan:
    """The plan with the evidence on whether the two are base and fine-tune, and a note where they
    do not look like it."""
    distances = ancestry(plan.sources[base], plan.sources[tuned])
    return dataclasses.replace(
        plan,
        notes=(*plan.notes, *warnings_of(distances, plan.roles[tuned], plan.roles[base])),
        ancestry=distances,
    )


def _narrower(plan: Plan) -> Plan:
    """The plan with a note where the first source's dtypes, which a result has, do not hold the
    second's numbers."""
    base, tuned = (source.entries for source in plan.sources[:2])
    pairs: Counter[tuple[str, str]] = Counter()
    for name, entry in tuned.items():
        if name in base and entry.dtype.kind == "float" and not base[name].dtype.holds(entry.dtype):
            pairs[entry.dtype.name, base[name].dtype.name] += 1
    notes = list(plan.notes)
    for (theirs, ours), count in pairs.items():
        notes.append(
            f"{count} tensors are {theirs} in {plan.roles[1]} but {ours} in {plan.roles[0]}. "
            f"'residual apply' writes the base's dtypes, so it rounds the sum to {ours}. To avoid "
            f"this rounding, add --dtype {theirs}."
        )
    return dataclasses.replace(plan, notes=tuple(notes))


def _check(*, scale: float, tokenizer: str, known: Sequence[str]) -> None:
    problems = []
    if not (abs(scale) < float("inf")):
        problems.append(f"scale: expected a finite number, got {scale}")
    if tokenizer not in known:
        problems.append(f"tokenizer: expected one of {', '.join(known)}, got {tokenizer!r}")
    if problems:
        raise ConfigError(problems)
