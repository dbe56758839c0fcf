"""Gaussian perturbation of a checkpoint (the overtraining paper, Section 3): how sensitive is a
model to noise on its weights?

    theta~ = theta + gamma * std * z,   z ~ N(0, 1)

`std` is each tensor's standard deviation at initialisation (`training.fresh_init.init_stds` finds
it), so that norm weights and biases, which are initialised to constants, stay as they are. The
noise comes from a counter-based generator: element i of tensor `name` gets the same number for the
same seed however the model is sharded, cut into blocks, on disk (here) or in memory
(`live.perturb_`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast.checkpoints import kernels
from holdfast.checkpoints.build import Built, Prepared
from holdfast.checkpoints.counter import stream_key
from holdfast.checkpoints.dtypes import count_nonfinite, decode
from holdfast.checkpoints.element_types import Operand
from holdfast.checkpoints.engine import Job, Scratch, job_of, map_blocks, nonfinite_error
from holdfast.checkpoints.kernels import Flags, Term
from holdfast.checkpoints.locate import open_source
from holdfast.checkpoints.merge import Name
from holdfast.checkpoints.methods.protocol import Block, Recipe
from holdfast.checkpoints.parents import Parents
from holdfast.checkpoints.plan import make_plan
from holdfast.checkpoints.sources import listing
from holdfast.errors import ConfigError
from holdfast.support.files import fingerprint


@dataclass(frozen=True, kw_only=True)
class Perturb(Recipe):
    """`model 1 + scale * stds[name] * normal(seed, name)`."""

    seed: int
    scale: float
    stds: Mapping[str, float]

    def combine(self, block: Block, statistics: Any, out: Operand) -> Flags:
        sigma = self.scale * self.stds.get(block.name, 0.0)
        if sigma == 0:
            return kernels.combine(None, [Term(1.0, block.models[0])], out)
        return kernels.perturb(
            block.models[0], stream_key(self.seed, block.name), block.start, sigma, out
        )

    def identity(self) -> dict[str, Any]:
        return {
            "method": "perturb",
            "seed": self.seed,
            "scale": self.scale,
            "stds": fingerprint(dict(self.stds), length=16),
        }


def prepare_perturb(
    model: Name,
    *,
    scale: float,
    seed: int,
    stds: Mapping[str, float] | str = "tensor",
    dtype: str | None = None,
    adapter_base: Name | None = None,
) -> Prepared:
    """Checks and plans a perturbation.

    Args:
        model: folder, hub id or adapter.
        scale: gamma; 0 copies.
        seed: of the noise, any integer.
        stds: standard deviation by tensor name (tensors not named stay as they are), or "tensor":
            of each tensor's own present values.
        dtype: of floating-point tensors; None: as they are.
        adapter_base: the model that an adapter belongs to; default: the one it names.

    Raises:
        ConfigError: a scale or std that is negative or not finite, no name in `stds` that the model
            has (some may be
            missing: heads that are tied).
        ModelError: the checkpoint cannot be read; NaN or infinities where stds are taken of its
            values.
    """
    source = open_source(model, base=adapter_base)
    given_stds = own_stds(source) if isinstance(stds, str) and stds == "tensor" else stds
    problems = []
    if not (math.isfinite(scale) and scale >= 0):
        problems.append(f"scale: expected a finite number of at least 0, got {scale}")
    if isinstance(given_stds, str):
        problems.append(f'stds: expected numbers by tensor name, or "tensor", got {given_stds!r}')
        given_stds = {}
    unknown, known_stds = [], {}
    for name, std in given_stds.items():
        if not (math.isfinite(std) and std >= 0):
            problems.append(f"stds: expected a finite number of at least 0 for {name}, got {std}")
        if name in source.entries:
            known_stds[name] = float(std)
        else:
            unknown.append(name)
    if unknown and not known_stds:
        problems.append(
            f"stds: none of the {len(given_stds)} names is a tensor of {source.label}: "
            f"{', '.join(unknown[:4])}"
        )
    if problems:
        raise ConfigError(problems)
    plan = make_plan(Parents(sources=(source,), roles=("model",)), dtype=dtype)
    noisy = [job for job in plan.jobs if scale * known_stds.get(job.name, 0.0) > 0]
    notes = [
        f"{len(noisy)} of {len(plan.jobs)} tensors ({sum(j.size for j in noisy):,} parameters) get "
        "noise. The others stay unchanged."
    ]
    if unknown:
        notes.append(f"{len(unknown)} names in stds are not in the checkpoint: {listing(unknown)}.")
    plan = dataclasses.replace(plan, notes=(*plan.notes, *notes))
    return Prepared(
        command="perturb",
        plan=plan,
        recipe=Perturb(seed=seed, scale=scale, stds=known_stds),
        request={"dtype": dtype, "stds": known_stds},
    )


def perturb(
    model: Name,
    output_dir: Name,
    *,
    overwrite: bool = False,
    sync: bool = True,
    workers: int | None = None,
    **request: Any,
) -> Built:
    """Writes a copy of a checkpoint with noise added to its weights. `prepare_perturb` describes
    the other arguments and the errors."""
    return prepare_perturb(model, **request).write(
        output_dir, overwrite=overwrite, sync=sync, workers=workers
    )


def own_stds(source: Any, *, workers: int | None = None) -> dict[str, float]:
    """The standard deviation of each floating-point tensor's values, in float64, in one pass.

    Blocks' means and squared deviations are combined pairwise: Chan, Golub and LeVeque, "Algorithms
    for computing the sample variance", The American Statistician 37 (1983), equation 1.5.

    Args:
        source: an open source.
        workers: threads; None: all cores.

    Raises:
        ModelError: NaN or infinities.
    """
    jobs = [job_of(entry) for entry in source.entries.values() if entry.dtype.kind == "float"]
    sums: dict[str, tuple[int, float, float]] = {}

    def look(job: Job, start: int, stop: int, scratch: Scratch) -> tuple[int, float, float]:
        operand = source.read(job.name, start, stop, scratch.buffers[0])
        if count_nonfinite(operand.raw, operand.dtype):
            raise nonfinite_error(source, job.name)
        values = decode(operand.raw, operand.dtype).astype(np.float64)
        mean = float(values.mean()) if values.size else 0.0
        return values.size, mean, float(np.square(values - mean).sum())

    def add(job: Job, found: tuple[int, float, float]) -> None:
        (n, mean, squares), (more, other, others) = sums.get(job.name, (0, 0.0, 0.0)), found
        count, apart = n + more, other - mean
        share = more / count if count else 0.0
        sums[job.name] = count, mean + apart * share, squares + others + apart**2 * n * share

    map_blocks(jobs, look, sources=1, workers=workers, reduce=add)
    stds = {}
    for name, (count, _, squares) in sums.items():
        stds[name] = math.sqrt(squares / count) if count else 0.0
    return stds
