"""The passes over the data of a folder that is written: statistics first, where the recipe wants
some, then every block read, computed, hashed and written.

A block that is a weighted sum of stored tensors goes from file to file in one call of the C
kernels; all others are read, computed by the recipe and written.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.checkpoints.dtypes import count_nonfinite
from holdfast.checkpoints.element_types import Array, DType, Operand
from holdfast.checkpoints.engine import (
    Job,
    Reader,
    Scratch,
    batches,
    map_blocks,
    nonfinite_error,
    overflow_error,
    workers_here,
)
from holdfast.checkpoints.kernels import Term, combine
from holdfast.checkpoints.methods.linear import method_among
from holdfast.checkpoints.methods.protocol import Block, Recipe, Sum
from holdfast.checkpoints.provenance import UNIT, Digests
from holdfast.checkpoints.reader import CheckpointReader
from holdfast.checkpoints.remainders import RemainderFiles, compared_in
from holdfast.checkpoints.sources import stretches
from holdfast.errors import ModelError, ShapeError

if TYPE_CHECKING:
    from holdfast.checkpoints.native import Streamed
    from holdfast.checkpoints.plan import Plan
    from holdfast.checkpoints.writer import CheckpointWriter

STREAMED = 4096
"""Elements from which on a block goes from file to file in one call (see `Execution._stream`); for
fewer it saves nothing, and under 241 the digest's kernel reads in front of them."""
BATCH = 134_217_728
"""Elements of tensors that go through all passes together, where statistics are per tensor: few
enough to stay in the page cache."""

Remainders = tuple[int, Array, Array, int]
"""Of a block: its start, the places within it, the values, and how many elements are left
inexact."""


class Execution:
    """The passes of one build.

    Args:
        plan: what is to be written.
        recipe: the arithmetic.
        workers: threads; None: all cores.
    """

    def __init__(self, plan: Plan, recipe: Recipe, workers: int | None) -> None:
        self.plan, self.recipe = plan, recipe
        self.workers = workers or workers_here()
        self.reader = Reader(plan.sources, [Digests() for _ in plan.sources])
        self.written = Digests()
        """Of the output."""
        self.seconds = {"measure": 0.0, "merge": 0.0, "close": 0.0}
        self.remainders: RemainderFiles | None = None
        self.inexact = 0
        """Elements that the output does not give back, remainders included; of what this run has
        written."""
        self._statistics: dict[str, Any] = {}
        self._partial: dict[tuple[int, ...], Recipe] = {}
        """Recipes for tensors that only some of the models have, by which."""

    def run(self, writer: CheckpointWriter, advance: Callable[[float], None]) -> None:
        """Measures and writes everything that `writer` does not have yet."""
        self.writer = writer
        jobs = [job for job in self.plan.jobs if not writer.done(job.name)]
        by_tensor = self.recipe.passes() > 0 and self.recipe.per_tensor
        for group in batches(jobs, limit=BATCH) if by_tensor else [jobs]:
            if self.recipe.passes():
                # statistics of the whole model are of what is finished, too
                measured = group if by_tensor else self.plan.jobs
                with self._timed("measure"):
                    self._measure([job for job in measured if job.action == "combine"], advance)
            with self._timed("merge"):
                self._write(group, advance)
            self._statistics = {}

    def comparison_dtypes(self) -> list[str]:
        """The dtypes in which base and output together were compared with the first model."""
        names = set()
        for job in self.plan.jobs:
            if job.action == "combine":
                base, tuned = self._dtype(job, 0), self._dtype(job, 1)
                names.add(compared_in(base, tuned, job.dtype).name)
        return sorted(names)

    # ----------------------------------------------------------------------------------- statistics

    def _measure(self, jobs: Sequence[Job], advance: Callable[[float], None]) -> None:
        """Runs the recipe's `statistics`, of each tensor or of the whole model, until all have
        returned."""
        keys = dict.fromkeys(self._key(job) for job in jobs)
        statistics = {key: self.recipe.statistics() for key in keys}
        measures = {key: next(generator) for key, generator in statistics.items()}

        def look(job: Job, start: int, stop: int, scratch: Scratch) -> Any:
            return measures[self._key(job)](self._block(job, start, stop, scratch))

        while measures:
            totals: dict[str, Any] = {}
            left: Counter[str] = Counter()
            remaining = [job for job in jobs if self._key(job) in measures]
            for job in remaining:
                left[self._key(job)] += _block_count(job)

            def add(
                job: Job, value: Any, totals: dict[str, Any] = totals, left: Counter[str] = left
            ) -> None:
                key = self._key(job)
                if key in totals:
                    totals[key] += value
                else:
                    totals[key] = value
                left[key] -= 1
                if left[key]:
                    return
                # the last block: totals may be large, so none is kept for longer than that
                try:
                    measures[key] = statistics[key].send(totals.pop(key))
                except StopIteration as ended:
                    self._statistics[key] = ended.value
                    del measures[key]

            self._map(remaining, look, add, advance)

    def _key(self, job: Job) -> str:
        """What a tensor's statistics belong to: itself, or ("") the whole model."""
        return job.name if self.recipe.per_tensor else ""

    def _map(
        self,
        jobs: Sequence[Job],
        function: Callable[[Job, int, int, Scratch], Any],
        reduce: Callable[[Job, Any], None],
        advance: Callable[[float], None],
    ) -> None:
        map_blocks(
            jobs,
            function,
            sources=len(self.plan.sources),
            workers=self.workers,
            reduce=reduce,
            advance=advance,
        )

    # -------------------------------------------------------------------------------------- writing

    def _write(self, jobs: Sequence[Job], advance: Callable[[float], None]) -> None:
        if self.recipe.keeps_remainders:
            blocks = {file: 0 for file in self.plan.files if file not in self.writer.finished}
            for job in jobs:
                blocks[job.file] += _block_count(job)
            self.remainders = RemainderFiles(self.writer.staging, blocks)

        def add(job: Job, remainders: Remainders) -> None:
            start, places, values, inexact = remainders
            self.inexact += inexact
            if self.remainders is not None:
                self.remainders.add(job, start, places, values)

        self._map(jobs, self._write_block, add, advance)

    def _write_block(self, job: Job, start: int, stop: int, scratch: Scratch) -> Remainders | None:
        """Writes a block; what its rounding loses, where the recipe keeps that."""
        keeps_remainders = self.recipe.keeps_remainders
        nothing_lost = start, np.empty(0, np.int64), np.empty(0, np.float32), 0
        out = scratch.out(job.dtype, stop - start)
        streamed = self._stream(job, start, stop, scratch)
        if streamed is not None:
            if not keeps_remainders:
                return None
            if not streamed.different:
                return nothing_lost
            block = self._block(job, start, stop, scratch)
            self.recipe.combine(block, self._statistics_of(job), out)
            return start, *self.recipe.remainder(block, out)
        if job.action in ("combine", "mean"):
            block = self._block(job, start, stop, scratch)
            flags = self._recipe(job).combine(block, self._statistics_of(job), out)
            self._check(job, flags.nonfinite, flags.overflow)
        else:
            out = self._copied(job, start, stop, scratch, out)
        self.written.add(job.name, start, out.raw)
        self.writer.write(job.name, start, out.raw)
        if not keeps_remainders:
            return None
        return (
            (start, *self.recipe.remainder(block, out)) if job.action == "combine" else nothing_lost
        )

    def _copied(self, job: Job, start: int, stop: int, scratch: Scratch, out: Operand) -> Operand:
        """A block of a tensor that is copied, in the output's dtype."""
        stored = self.reader.read(job.origin, job.name, start, stop, scratch)
        if job.action == "same":
            self._compare(job, start, stop, stored, scratch)
        if stored.dtype == job.dtype and stored.dtype.kind != "float":
            return stored
        flags = combine(None, [Term(1.0, stored, None)], out)
        self._check(job, flags.nonfinite, flags.overflow)
        return out

    def _recipe(self, job: Job) -> Recipe:
        """What a tensor is made with: the recipe, or one for those models that have it."""
        if job.action != "mean":
            return self.recipe
        owners = job.owners(self.plan.parents.models)
        if owners not in self._partial:
            models = len(self.plan.parents.models)
            self._partial[owners] = method_among(self.recipe, owners, models)  # type: ignore[arg-type]
        return self._partial[owners]

    def _statistics_of(self, job: Job) -> Any:
        return self._statistics.get(self._key(job)) if job.action == "combine" else None

    def _check(self, job: Job, nonfinite: int, overflow: int) -> None:
        if nonfinite:
            raise self._nonfinite(job)
        if overflow:
            raise overflow_error(job.name, job.dtype, overflow)

    # --------------------------------------------------------------------- blocks and their sources

    def _models(self, job: Job) -> tuple[int, ...]:
        """The sources that are a tensor's models to its recipe."""
        models = self.plan.parents.models
        return (
            models
            if job.action != "mean"
            else tuple(models[number] for number in job.owners(models))
        )

    def _source(self, job: Job, number: int) -> int:
        """The source of operand `number` of a block: 0 is the base, 1 the first model, which is the
        base's where a model lacks the tensor."""
        base = self.plan.parents.base
        index = base if number == 0 else self._models(job)[number - 1]
        index = index if index is not None and job.has[index] else base
        assert index is not None, "the plan copies tensors without a base"
        return index

    def _block(self, job: Job, start: int, stop: int, scratch: Scratch) -> Block:
        def read(index: int) -> Operand:
            return self.reader.read(index, job.name, start, stop, scratch)

        parents, all_models = self.plan.parents, job.action != "mean"
        base = read(parents.base) if parents.base is not None and all_models else None
        models = []
        for index in self._models(job):
            model = read(index) if job.has[index] else base
            assert model is not None, "the plan copies tensors without a base"
            models.append(model)
        extras = [
            read(extra) for extra, model in parents.extras.items() if all_models or job.has[model]
        ]
        return Block(
            name=job.name,
            start=start,
            count=stop - start,
            size=job.size,
            base=base,
            models=tuple(models),
            extras=tuple(extras),
            has=tuple(job.has[index] for index in self._models(job)),
        )

    # ----------------------------------------------------------------------- from file to file in C

    def _stream(self, job: Job, start: int, stop: int, scratch: Scratch) -> Streamed | None:
        """Takes a block from file to file in one call, where it is a weighted sum of stored
        tensors. None: it is not, or could not be read."""
        from holdfast.checkpoints import native

        library = native.load()
        if library is None or stop - start < STREAMED or job.dtype.name not in native.TYPES:
            return None
        formula = self._sum(job)
        if formula is None:
            return None
        indices = [formula.anchor]
        for _, plus, minus in formula.terms:
            indices += [plus, minus]
        if len(indices) > native.MOST_OPERANDS:
            return None
        used = sorted({index for index in indices if index is not None})
        inputs = []
        for index in used:
            source = self.plan.sources[index]
            dtype = source.entries[job.name].dtype.name
            if not isinstance(source, CheckpointReader) or dtype not in native.TYPES:
                return None
            inputs.append(
                native.Place(*source.place(job.name, start), dtype, scratch.buffers[index])
            )
        target = self.writer.place(job.name, start * job.dtype.itemsize)
        streamed = library.stream(
            stop - start,
            inputs,
            [-1 if index is None else used.index(index) for index in indices],
            [float(np.float32(weight)) for weight, _, _ in formula.terms],
            native.Place(*target, job.dtype.name, scratch.output),
            check=self._difference(job, used),
        )
        if streamed.error and streamed.where < len(used):
            return None  # the ordinary way says which file, and what to do
        if streamed.different and not self.recipe.keeps_remainders:
            return None  # the ordinary way loses nothing of the difference
        self._check(job, streamed.nonfinite, streamed.overflow)
        self.writer.wrote(job.name, (stop - start) * job.dtype.itemsize, error=streamed.error)
        for index, digest in zip(used, streamed.digests, strict=False):
            if (digests := self.reader.digests[index]) is not None:
                digests.put(job.name, start, digest)
        self.written.put(job.name, start, streamed.digests[-1])
        return streamed

    def _difference(self, job: Job, used: Sequence[int]) -> tuple[int, int, bool] | None:
        """The two inputs whose difference `Kernels.stream` is to check, as indices into its inputs,
        and whether it is the output."""
        pair = (
            self.recipe.difference(len(self.plan.parents.models))
            if job.action == "combine"
            else None
        )
        if pair is None:
            return None
        base, tuned = (used.index(self._source(job, number)) for number in pair)
        return base, tuned, self.recipe.keeps_remainders

    def _dtype(self, job: Job, number: int) -> DType:
        """In which a model has a tensor."""
        return self.plan.sources[self._source(job, number)].entries[job.name].dtype

    def _sum(self, job: Job) -> Sum | None:
        """The sum that a tensor is of, with the plan's sources for operands; None where it is
        something else."""
        if job.action == "copy":
            return Sum(None, [(1.0, job.origin, None)]) if job.dtype.kind == "float" else None
        if job.action == "same":
            return None
        numbers = range(1, 1 + len(self._models(job)))
        dtypes = [self._dtype(job, number) for number in numbers]
        formula = self._recipe(job).as_sum(dtypes, self._statistics_of(job))
        if formula is None:
            return None

        def source(number: int | None) -> int | None:
            return None if number is None else self._source(job, number)

        terms = [
            (weight, self._source(job, plus), source(minus))
            for weight, plus, minus in formula.terms
        ]
        return Sum(source(formula.anchor), terms)

    # ------------------------------------------------------------------------------------- refusals

    def _compare(self, job: Job, start: int, stop: int, stored: Operand, scratch: Scratch) -> None:
        roles = self.plan.roles
        for index, has in enumerate(job.has):
            if has and index != job.origin and index not in self.plan.parents.extras:
                other = self.reader.read(index, job.name, start, stop, scratch)
                if other.dtype != stored.dtype or not np.array_equal(other.raw, stored.raw):
                    raise ShapeError(
                        f"{job.name} ({stored.dtype.name}) differs between {roles[job.origin]} "
                        f"and {roles[index]}. Integer tensors cannot be averaged. If these "
                        "checkpoints are quantised, merge the unquantised ones."
                    )

    def _nonfinite(self, job: Job) -> ModelError:
        """Names the source that holds NaN or infinities."""
        buffer = np.empty(8 * UNIT, np.uint8)
        for index, has in enumerate(job.has):
            source = self.plan.sources[index]
            for start, stop in stretches(job.size, UNIT) if has else ():
                operand = source.read(job.name, start, stop, buffer)
                if count_nonfinite(operand.raw, operand.dtype):
                    return nonfinite_error(source, job.name, self.plan.roles[index])
        return ModelError(f"{job.name}: an input changed while it was read.")

    @contextlib.contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[phase] += time.perf_counter() - began


def _block_count(job: Job) -> int:
    return len(list(stretches(job.size, UNIT)))
