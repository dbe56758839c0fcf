"""From a plan to a folder: the driver that merging, residuals and perturbation share.

What differs between them is a *recipe*: statistic passes, if any, and a function from blocks of the inputs to a block
of the output (see `methods.protocol`). The driver runs the passes, writes the tensors, checks every value on the way,
and leaves a folder that loads like any other checkpoint, with a record of where it comes from.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from holdfast.checkpoints.chat_template import write_template
from holdfast.checkpoints.companions import copy_companions, write_config
from holdfast.checkpoints.dtypes import count_nonfinite
from holdfast.checkpoints.element_types import DType, Operand
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
from holdfast.checkpoints.kernels import Flags, Term, combine
from holdfast.checkpoints.methods.linear import method_among
from holdfast.checkpoints.methods.protocol import Block, Sum
from holdfast.checkpoints.named import origin
from holdfast.checkpoints.native import Streamed
from holdfast.checkpoints.plan import Plan
from holdfast.checkpoints.provenance import FILE, UNIT, Digests, content_fingerprint, parent_record, versions
from holdfast.checkpoints.reader import CheckpointReader
from holdfast.checkpoints.remainders import RemainderFiles, compared_in, remainder_name
from holdfast.checkpoints.sources import Source, config_of, folders_of, inner_source, stretches
from holdfast.checkpoints.writer import CheckpointWriter, Slot, check_destination
from holdfast.errors import ConfigError, Interrupted, ModelError, RunFolderError, ShapeError, StorageError
from holdfast.support.environment import now
from holdfast.support.files import fingerprint, write_json
from holdfast.support.paths import expanded
from holdfast.support.progress import progress

STREAMED = 4096
"""Elements from which on a block goes from file to file in one call (see `_Work._stream`); for fewer it saves
nothing, and under 241 the digest's kernel reads in front of them."""
BATCH = 134_217_728
"""Elements of tensors that go through all passes together, where statistics are per tensor: few enough to stay in the
page cache."""


class Recipe(Protocol):
    """What `build` needs of a method; `methods.protocol.MergeMethod` is one."""

    @property
    def scope(self) -> str: ...
    def rounds(self) -> int: ...
    def measure(self, round: int, block: Block, state: Any) -> Any: ...
    def settle(self, round: int, total: Any, state: Any) -> Any: ...
    def combine(self, block: Block, state: Any, out: Operand) -> Flags: ...
    def as_sum(self, models: Sequence[DType], state: Any) -> Sum | None: ...
    def identity(self) -> dict[str, Any]: ...

    # optional: among(owners, models) -> Recipe, for tensors that only those models have (see `MergeMethod.among`).
    # optional: remainder(block, out) -> (places, values, left), where base + out is not model 1, and what is missing
    # there; see `remainders`. optional: difference(models) -> (base, tuned model) as operands of a block, where the
    # recipe takes their difference, of which float32 may lose something, or None


@dataclass(frozen=True, kw_only=True)
class Built:
    """A folder that was written."""

    folder: Path
    record: dict[str, Any] = field(repr=False)
    """What `provenance.json` holds."""
    seconds: dict[str, float]
    """"measure" (statistic passes), "merge" (reading, computing, writing), "close" (waiting for the disk, renaming),
    "total"."""
    resumed: tuple[str, ...] = field(default=())
    """Files that an earlier, killed run had finished."""


@dataclass(frozen=True, kw_only=True)
class Slots:
    """Which source is what to the recipe: indices into the plan's sources."""

    base: int | None
    models: tuple[int, ...]
    extras: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A request that has been checked: everything is known, nothing is written."""

    command: str
    """"merge", "residual extract", ...; for the record."""
    plan: Plan
    recipe: Recipe
    """The arithmetic."""
    slots: Slots
    request: dict[str, Any] = field(default_factory=dict)
    """Further settings for the record."""
    companions: tuple[Source, ...] = ()
    """Sources whose tokenizer, chat template, generation configuration and code travel along, the most important last;
    their configuration is the layout's. Without any: the layout."""
    chat_template: str | None = None
    """In place of the companions'."""
    finish: Callable[[Path], None] | None = None
    """Called with the folder, which has another name yet, when everything but its record is in it."""

    def write(
        self,
        output_dir: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        sync: bool = True,
        workers: int | None = None,
    ) -> Built:
        """Does it; see `build` for arguments and errors."""
        return build(self, output_dir, overwrite=overwrite, sync=sync, workers=workers)


def build(
    prepared: Prepared,
    output: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    sync: bool = True,
    workers: int | None = None,
) -> Built:
    """Carries out a request.

    Args:
        prepared: the request.
        output: the folder to write; neither one of the inputs nor around or inside one.
        overwrite: replace a folder that is there.
        sync: put everything on the disk before the folder gets its name.
        workers: threads; None: all cores.

    Raises:
        ConfigError: fewer than one worker.
        ModelError: NaN or infinities in an input, results too large for the dtype, an input that changed or is damaged.
        ShapeError: integer tensors that differ between the inputs.
        RunFolderError: the output exists, is (or holds, or lies in) an input, is being written by another process, or
            cannot be written.
        StorageError: the disk is full or failed. Inputs and earlier output are intact in every case.
        Interrupted: Ctrl-C; the same request continues with the first unfinished file.
    """
    started = time.perf_counter()
    plan, recipe = prepared.plan, prepared.recipe
    if workers is not None and workers < 1:
        raise ConfigError(f"workers: expected at least 1, got {workers}")
    output = check_output(plan, output, overwrite=overwrite)
    workers = workers or workers_here()
    shards = [
        (file, [Slot(j.name, j.dtype, j.shape, j.size * j.dtype.itemsize) for j in plan.jobs if j.file == file])
        for file in plan.files
    ]
    key = fingerprint(_identity(prepared))
    reader = Reader(plan.sources, [Digests() for _ in plan.sources])
    written = Digests()
    seconds = {"measure": 0.0, "merge": 0.0, "close": 0.0}
    keeps = remainder_name if hasattr(recipe, "remainder") else None
    try:
        writer = CheckpointWriter(output, shards, key=key, overwrite=overwrite, sync=sync, beside=keeps)
    except KeyboardInterrupt:
        raise Interrupted(f"Stopped. {output} was not written.") from None
    resumed = tuple(sorted(writer.finished))
    work = _Work(prepared, reader, workers)
    try:
        with progress(
            f"Writing {output.name}", total=plan.bytes_written * (1 + recipe.rounds()), unit="bytes"
        ) as advance:
            work.run(writer, written, seconds, advance)
        began = time.perf_counter()
        roots = _roots(plan, reader)
        for _, root, _ in roots:
            root.check_unchanged()
        parents = [
            parent_record(role, root, content_fingerprint(root, known=digests, workers=workers))
            for role, root, digests in roots
        ]
        copied, averaged = _not_merged(prepared)
        record: dict[str, Any] = {
            "command": prepared.command,
            "method": recipe.identity(),
            "request": prepared.request,
            "parents": parents,
            "layout": plan.roles[plan.layout],
            "plan": plan.summary(),
            "created": now(),
            "versions": versions(),
            **({"copied": copied} if copied else {}),
            **({"averaged": averaged} if averaged else {}),
            **({"ancestry": plan.ancestry} if plan.ancestry else {}),
            **({"origin": {"note": "; ".join(notes)}} if (notes := _origins(root for _, root, _ in roots)) else {}),
        }

        def add(folder: Path) -> None:
            _add_files(folder, plan, prepared.companions or [plan.sources[plan.layout]])
            if prepared.chat_template is not None:
                write_template(folder, prepared.chat_template)
            if prepared.finish is not None:
                prepared.finish(folder)
            result = CheckpointReader(folder)
            record["fingerprint"] = content_fingerprint(result, known=written, workers=workers)
            record["tensors"] = {
                name: written.tensor(name, entry.size) for name, entry in sorted(result.entries.items())
            }
            result.close()
            record["seconds"] = {k: round(v, 3) for k, v in seconds.items()}
            if work.remainders is not None:
                record["audit"] = {
                    "remainders": work.remainders.close(),
                    "compared_in": work.comparison_dtypes(),
                    **({} if resumed else {"inexact": work.inexact}),
                }
            write_json(folder / FILE, record)

        writer.close(add)
        seconds["close"] = time.perf_counter() - began
    except KeyboardInterrupt:
        if writer.placed:
            writer.abandon(keep_finished=False)
            raise Interrupted(f"Stopped. {output} was written and is complete.") from None
        again = "continues with the files that are finished" if writer.abandon(keep_finished=True) else "begins anew"
        raise Interrupted(f"Stopped. {output} was not written. The same command {again}.") from None
    except StorageError:
        writer.abandon(keep_finished=True)
        raise
    except BaseException:
        writer.abandon(keep_finished=False)
        raise
    seconds["total"] = time.perf_counter() - started
    return Built(folder=output, record=record, seconds=seconds, resumed=resumed)


def _not_merged(prepared: Prepared) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Tensors that are copied, by whose they are, and those that are averaged, by the models that have them."""
    plan, models = prepared.plan, prepared.slots.models
    copied: dict[str, list[str]] = {}
    averaged: dict[str, list[str]] = {}
    for job in plan.jobs:
        if job.action == "copy":
            copied.setdefault(plan.roles[job.origin], []).append(job.name)
        elif job.action == "mean":
            owners = ", ".join(plan.roles[models[number]] for number in job.owners(models))
            averaged.setdefault(owners, []).append(job.name)
    return copied, averaged


class _Work:
    """The passes over the data of one build."""

    def __init__(self, prepared: Prepared, reader: Reader, workers: int) -> None:
        self.plan, self.recipe, self.slots = prepared.plan, prepared.recipe, prepared.slots
        self.reader, self.workers = reader, workers
        self.states: dict[str, Any] = {}
        self.partial: dict[tuple[int, ...], Recipe] = {}
        """Recipes for tensors that only some of the models have, by which."""
        self.remainders: RemainderFiles | None = None
        self.inexact = 0
        """Elements that the output does not give back, remainders included; of what this run has written."""

    def comparison_dtypes(self) -> list[str]:
        """The dtypes in which base and output together were compared with the first model."""

        def stored(job: Job, number: int) -> DType:
            return self.plan.sources[self._place(job, number)].entries[job.name].dtype

        combined = [job for job in self.plan.jobs if job.action == "combine"]
        return sorted({compared_in(stored(job, 0), stored(job, 1), job.dtype).name for job in combined})

    def run(
        self, writer: CheckpointWriter, written: Digests, seconds: dict[str, float], advance: Callable[[float], None]
    ) -> None:
        self.writer, self.written = writer, written
        jobs = [job for job in self.plan.jobs if not self.writer.done(job.name)]
        by_tensor = self.recipe.scope == "tensor"
        for group in batches(jobs, limit=BATCH) if by_tensor else [jobs]:
            # statistics of the whole model are of what is finished, too
            measured = [job for job in (group if by_tensor else self.plan.jobs) if job.action == "combine"]
            for number in range(self.recipe.rounds()):
                with _timed(seconds, "measure"):
                    self._measure(number, measured, advance)
            with _timed(seconds, "merge"):
                self._write(group, advance)
            self.states = {}

    def _measure(self, number: int, jobs: Sequence[Job], advance: Callable[[float], None]) -> None:
        """One pass of statistics: sums over the blocks of each tensor or of the whole model, then settled."""
        totals: dict[str, Any] = {}
        left: Counter[str] = Counter()
        jobs = [job for job in jobs if self.recipe.rounds() > number]
        for job in jobs:
            left[self._key(job)] += _blocks(job)

        def look(job: Job, start: int, stop: int, scratch: Scratch) -> Any:
            return self.recipe.measure(number, self._block(job, start, stop, scratch), self._state(job))

        def add(job: Job, value: Any) -> None:
            key = self._key(job)
            totals[key] = _sum(totals[key], value) if key in totals else value
            left[key] -= 1
            if not left[key]:  # the last block: totals may be large, so none is kept for longer than that
                self.states[key] = self.recipe.settle(number, totals.pop(key), self.states.get(key))

        map_blocks(jobs, look, sources=len(self.plan.sources), workers=self.workers, reduce=add, advance=advance)

    def _write(self, jobs: Sequence[Job], advance: Callable[[float], None]) -> None:
        if hasattr(self.recipe, "remainder"):
            blocks = {file: 0 for file in self.plan.files if file not in self.writer.finished}
            for job in jobs:
                blocks[job.file] += _blocks(job)
            self.remainders = RemainderFiles(self.writer.staging, blocks)

        def add(job: Job, found: tuple[int, np.ndarray, np.ndarray, int]) -> None:
            start, places, values, left = found
            self.inexact += left
            if self.remainders is not None:
                self.remainders.add(job, start, places, values)

        map_blocks(
            jobs, self._write_block, sources=len(self.plan.sources), workers=self.workers, reduce=add, advance=advance
        )

    def _write_block(
        self, job: Job, start: int, stop: int, scratch: Scratch
    ) -> tuple[int, np.ndarray, np.ndarray, int] | None:
        keep = getattr(self.recipe, "remainder", None)
        out = scratch.out(job.dtype, stop - start)
        streamed = self._stream(job, start, stop, scratch)
        if streamed is not None:
            if keep is None:
                return None
            if not streamed.different:
                return start, np.empty(0, np.int64), np.empty(0, np.float32), 0
            again = self._block(job, start, stop, scratch)
            self.recipe.combine(again, self._state(job), out)
            return (start, *keep(again, out))
        block: Block | None = None
        if job.action == "combine":
            block = self._block(job, start, stop, scratch)
            flags = self.recipe.combine(block, self._state(job), out)
        elif job.action == "mean":
            flags = self._recipe(job).combine(self._block(job, start, stop, scratch), None, out)
        else:
            read = self.reader.read(job.origin, job.name, start, stop, scratch)
            if job.action == "same":
                self._compare(job, start, stop, read, scratch)
            if read.dtype == job.dtype and read.dtype.kind != "float":
                out, flags = read, None
            else:
                flags = combine(None, [Term(1.0, read, None)], out)
        if flags is not None:
            self._check(job, flags.nonfinite, flags.overflow)
        self.written.add(job.name, start, out.raw)
        self.writer.write(job.name, start, out.raw)
        if keep is None:
            return None
        return (
            (start, *keep(block, out))
            if block is not None
            else (start, np.empty(0, np.int64), np.empty(0, np.float32), 0)
        )

    def _recipe(self, job: Job) -> Recipe:
        """What a tensor is made with: the recipe, or one for those models that have it."""
        if job.action != "mean":
            return self.recipe
        owners = job.owners(self.slots.models)
        if owners not in self.partial:
            self.partial[owners] = method_among(self.recipe, owners, len(self.slots.models))  # type: ignore[arg-type]
        return self.partial[owners]

    def _models(self, job: Job) -> tuple[int, ...]:
        """The sources that are a tensor's models to its recipe."""
        held = self.slots.models
        return held if job.action != "mean" else tuple(held[i] for i in job.owners(held))

    def _key(self, job: Job) -> str:
        """What a tensor's statistics belong to: itself, or ("") the whole model."""
        return job.name if self.recipe.scope == "tensor" else ""

    def _state(self, job: Job) -> Any:
        return self.states.get(self._key(job))

    def _check(self, job: Job, nonfinite: int, overflow: int) -> None:
        if nonfinite:
            self._name_nonfinite(job)
        if overflow:
            raise overflow_error(job.name, job.dtype, overflow)

    def _stream(self, job: Job, start: int, stop: int, scratch: Scratch) -> Streamed | None:
        """Takes a block from file to file in one call, where it is a weighted sum of stored tensors. None: it is not,
        or could not be read."""
        from holdfast.checkpoints import native

        library = native.load()
        formula = (
            self._sum(job)
            if library is not None and stop - start >= STREAMED and job.dtype.name in native.TYPES
            else None
        )
        if library is None or formula is None:
            return None
        indices = [formula.anchor, *(index for _, plus, minus in formula.terms for index in (plus, minus))]
        if len(indices) > native.MOST_OPERANDS:
            return None
        held = sorted({index for index in indices if index is not None})
        inputs = []
        for index in held:
            source = self.plan.sources[index]
            dtype = source.entries[job.name].dtype.name
            if not isinstance(source, CheckpointReader) or dtype not in native.TYPES:
                return None
            inputs.append(native.Place(*source.place(job.name, start), dtype, scratch.buffers[index]))
        check = self._difference(job, held)
        done = library.stream(
            stop - start,
            inputs,
            [-1 if index is None else held.index(index) for index in indices],
            [float(np.float32(weight)) for weight, _, _ in formula.terms],
            native.Place(*self.writer.place(job.name, start * job.dtype.itemsize), job.dtype.name, scratch.output),
            check=check,
        )
        if done.error and done.where < len(held):
            return None  # the ordinary way says which file, and what to do
        if done.different and not hasattr(self.recipe, "remainder"):
            return None  # the ordinary way loses nothing of the difference
        self._check(job, done.nonfinite, done.overflow)
        self.writer.wrote(job.name, (stop - start) * job.dtype.itemsize, error=done.error)
        for index, digest in zip(held, done.digests, strict=False):
            if (digests := self.reader.digests[index]) is not None:
                digests.put(job.name, start, digest)
        self.written.put(job.name, start, done.digests[-1])
        return done

    def _difference(self, job: Job, held: Sequence[int]) -> tuple[int, int, bool] | None:
        """The two models whose difference `Kernels.stream` is to check, as indices into its inputs, and whether it is
        the output."""
        between = getattr(self.recipe, "difference", None)
        pair = between(len(self.slots.models)) if between is not None and job.action == "combine" else None
        if pair is None:
            return None
        base, tuned = (held.index(self._place(job, number)) for number in pair)
        return base, tuned, hasattr(self.recipe, "remainder")

    def _sum(self, job: Job) -> Sum | None:
        """The sum that a tensor is of, with the plan's sources for operands; None where it is something else."""
        if job.action == "copy":
            return Sum(None, [(1.0, job.origin, None)]) if job.dtype.kind == "float" else None
        if job.action == "same":
            return None
        operands = range(1, 1 + len(self._models(job)))
        dtypes = [self.plan.sources[self._place(job, number)].entries[job.name].dtype for number in operands]
        formula = self._recipe(job).as_sum(dtypes, self._state(job))
        if formula is None:
            return None
        anchor, terms = formula

        def place(number: int | None) -> int | None:
            return None if number is None else self._place(job, number)

        return Sum(place(anchor), [(weight, self._place(job, plus), place(minus)) for weight, plus, minus in terms])

    def _place(self, job: Job, number: int) -> int:
        """The source of operand `number` of a block: 0 is the base, 1 the first model, which is the base's where a
        model lacks the tensor."""
        index = self.slots.base if number == 0 else self._models(job)[number - 1]
        found = index if index is not None and job.has[index] else self.slots.base
        assert found is not None, "the plan copies what has no base"
        return found

    def _block(self, job: Job, start: int, stop: int, scratch: Scratch) -> Block:
        def read(index: int) -> Operand:
            return self.reader.read(index, job.name, start, stop, scratch)

        whole = job.action != "mean"
        base = read(self.slots.base) if self.slots.base is not None and whole else None
        models = [read(index) if job.has[index] else base for index in self._models(job)]
        assert None not in models, "the plan copies what has no base"
        return Block(
            name=job.name,
            start=start,
            count=stop - start,
            size=job.size,
            shape=job.shape,
            base=base,
            models=tuple(models),  # type: ignore[arg-type]
            extras=tuple(
                read(extra)
                for extra, model in zip(self.slots.extras, self.slots.models, strict=False)
                if whole or job.has[model]
            ),
            has=tuple(job.has[i] for i in self._models(job)),
        )

    def _compare(self, job: Job, start: int, stop: int, read: Operand, scratch: Scratch) -> None:
        for index, has in enumerate(job.has):
            if has and index != job.origin and index not in self.slots.extras:
                other = self.reader.read(index, job.name, start, stop, scratch)
                if other.dtype != read.dtype or not np.array_equal(other.raw, read.raw):
                    raise ShapeError(
                        f"{job.name} ({read.dtype.name}) is not the same in {self.plan.roles[job.origin]} and "
                        f"{self.plan.roles[index]}. Integer "
                        "tensors cannot be averaged: expected equal ones. Are these checkpoints quantised? Merge the "
                        "unquantised ones."
                    )

    def _name_nonfinite(self, job: Job) -> None:
        buffer = np.empty(8 * UNIT, np.uint8)
        for index, has in enumerate(job.has):
            if not has:
                continue
            source = self.plan.sources[index]
            for start, stop in stretches(job.size, UNIT):
                operand = source.read(job.name, start, stop, buffer)
                if count_nonfinite(operand.raw, operand.dtype):
                    raise nonfinite_error(source, job.name, self.plan.roles[index])
        raise ModelError(f"{job.name}: an input changed while it was read.")


@contextlib.contextmanager
def _timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    seconds[phase] += time.perf_counter() - began


def _blocks(job: Job) -> int:
    return len(list(stretches(job.size, UNIT)))


def _sum(a: Any, b: Any) -> Any:
    if isinstance(a, tuple):
        return tuple(_sum(x, y) for x, y in zip(a, b, strict=True))
    a += b
    return a


def check_output(plan: Plan, output: str | os.PathLike[str], *, overwrite: bool) -> Path:
    """The folder to write, by its real path, once it is known to be neither taken nor an input.

    Raises:
        RunFolderError: it is (or holds, or lies in) an input, or `check_destination` refuses it.
    """
    output = Path(os.path.realpath(expanded(output)))
    for source in plan.sources:
        own = folders_of(source)
        # files may be links into another folder, as in the hub's cache: that one must stay, and may hold other things
        for folder in dict.fromkeys(
            [*own, *(Path(os.path.realpath(entry.file)).parent for entry in source.entries.values())]
        ):
            real = Path(os.path.realpath(folder))
            inside = folder in own and real in output.parents
            if real == output or output in real.parents or inside:
                relation = "is" if real == output else "lies in" if inside else "holds"
                raise RunFolderError(
                    f"{output} {relation} the input {folder}, which is never modified. Choose another output folder."
                )
    check_destination(output, overwrite=overwrite)
    return output


def _identity(prepared: Prepared) -> list[Any]:
    """Everything that decides the output's bytes: the request, what it was resolved to, the code, the inputs with their
    tokenizers and settings."""
    plan = prepared.plan
    jobs = [[j.name, j.dtype.name, list(j.shape), j.file, list(j.has), j.action, j.origin] for j in plan.jobs]
    folders = sorted({os.path.realpath(folder) for source in plan.sources for folder in folders_of(source)})
    files = [
        [path.path, (stat := path.stat()).st_size, stat.st_mtime_ns]
        for folder in folders
        for path in sorted(os.scandir(folder), key=lambda p: p.name)
        if path.is_file()
    ]
    order = [[os.fspath(folder) for folder in folders_of(source)] for source in plan.sources]
    return [
        prepared.command,
        prepared.recipe.identity(),
        prepared.request,
        jobs,
        plan.layout,
        list(plan.notes),
        dict(plan.config),
        prepared.slots,
        order,
        files,
        versions(),
    ]


def _origins(parents: Iterable[CheckpointReader]) -> list[str]:
    """What the parents' folders say of where their weights come from, each once."""
    return list(dict.fromkeys(note for parent in parents if (note := origin(parent.folder).get("note"))))


def _roots(plan: Plan, reader: Reader) -> list[tuple[str, CheckpointReader, Digests]]:
    """Role, folder and digests of each parent: views are recorded by the folders that they look at."""
    found: list[tuple[str, CheckpointReader, Digests]] = []
    for role, source, digests in zip(plan.roles, plan.sources, reader.digests, strict=True):
        view: Source | None = source
        while view is not None:
            adapter = getattr(view, "adapter", None)
            if isinstance(adapter, CheckpointReader):
                found.append((f"{role} (adapter)", adapter, Digests()))
            if isinstance(view, CheckpointReader):
                found.append((role, view, digests if view is source and digests else Digests()))
            view = inner_source(view)
    return found


def _add_files(folder: Path, plan: Plan, companions: Sequence[Source]) -> None:
    layout = plan.sources[plan.layout]
    if config_of(layout):
        holder = next(f for f in reversed(folders_of(layout)) if (f / "config.json").is_file())
        write_config(holder, folder, changes=dict(plan.config))
    for source in companions:
        for parent in folders_of(source):
            copy_companions(parent, folder)
