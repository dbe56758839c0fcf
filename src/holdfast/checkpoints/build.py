"""From a plan to a folder: the driver that merging, residuals and perturbation share.

What differs between them is a *recipe* (`methods.protocol`). The driver runs its passes
(`execute`), checks every value on the way, and leaves a folder that loads like any other
checkpoint, with a record of where it comes from.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.checkpoints.chat_template import write_template
from holdfast.checkpoints.companions import copy_companions, write_config
from holdfast.checkpoints.engine import Job, Reader
from holdfast.checkpoints.execute import Execution
from holdfast.checkpoints.methods.protocol import Recipe
from holdfast.checkpoints.named import origin
from holdfast.checkpoints.plan import Plan
from holdfast.checkpoints.provenance import (
    FILE,
    Digests,
    content_fingerprint,
    parent_record,
    versions,
)
from holdfast.checkpoints.reader import CheckpointReader
from holdfast.checkpoints.remainders import remainder_name
from holdfast.checkpoints.sources import Source, config_of, folders_of, inner_source
from holdfast.checkpoints.writer import CheckpointWriter, Slot, check_destination
from holdfast.errors import ConfigError, Interrupted, RunFolderError, StorageError
from holdfast.support.environment import now
from holdfast.support.files import fingerprint, write_json
from holdfast.support.paths import expanded
from holdfast.support.progress import progress


@dataclass(frozen=True, kw_only=True)
class Built:
    """A folder that was written."""

    folder: Path
    record: dict[str, Any] = field(repr=False)
    """What `provenance.json` holds."""
    seconds: dict[str, float]
    """"measure" (statistic passes), "merge" (reading, computing, writing), "close" (waiting for the
    disk, renaming), "total"."""
    resumed: tuple[str, ...] = field(default=())
    """Files that an earlier, killed run had finished."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A request that has been checked: everything is known, nothing is written."""

    command: str
    """"merge", "residual extract", ...; for the record."""
    plan: Plan
    recipe: Recipe
    """The arithmetic."""
    request: dict[str, Any] = field(default_factory=dict)
    """Further settings for the record."""
    chat_template: str | None = None
    """In place of the parents'."""
    finish: Callable[[Path], None] | None = None
    """Called with the folder, which has another name yet, when everything but its record is in
    it."""

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
        ModelError: NaN or infinities in an input, results too large for the dtype, an input that
            changed or is damaged.
        ShapeError: integer tensors that differ between the inputs.
        RunFolderError: the output exists, is (or holds, or lies in) an input, is being written by
            another process, or cannot be written.
        StorageError: the disk is full or failed. Inputs and earlier output are intact in every
            case.
        Interrupted: Ctrl-C; the same request continues with the first unfinished file.
    """
    started = time.perf_counter()
    plan, recipe = prepared.plan, prepared.recipe
    if workers is not None and workers < 1:
        raise ConfigError(f"workers: expected at least 1, got {workers}")
    output = check_output(plan, output, overwrite=overwrite)
    shards = []
    for file in plan.files:
        shards.append((file, [_slot(job) for job in plan.jobs if job.file == file]))
    key = fingerprint(_identity(prepared))
    beside = remainder_name if recipe.keeps_remainders else None
    try:
        writer = CheckpointWriter(
            output, shards, key=key, overwrite=overwrite, sync=sync, beside=beside
        )
    except KeyboardInterrupt:
        raise Interrupted(f"Stopped. {output} was not written.") from None
    resumed = tuple(sorted(writer.finished))
    execution = Execution(plan, recipe, workers)
    try:
        total = plan.bytes_written * (1 + recipe.passes())
        with progress(f"Writing {output.name}", total=total, unit="bytes") as advance:
            execution.run(writer, advance)
        began = time.perf_counter()
        record = _record(prepared, execution)
        writer.close(
            lambda folder: _complete(folder, prepared, execution, record, is_resumed=bool(resumed))
        )
        execution.seconds["close"] = time.perf_counter() - began
    except KeyboardInterrupt:
        if writer.placed:
            writer.abandon(keep_finished=False)
            raise Interrupted(f"Stopped. {output} was written and is complete.") from None
        again = (
            "continues after the finished files"
            if writer.abandon(keep_finished=True)
            else "starts over"
        )
        raise Interrupted(f"Stopped. {output} was not written. The same command {again}.") from None
    except StorageError:
        writer.abandon(keep_finished=True)
        raise
    except BaseException:
        writer.abandon(keep_finished=False)
        raise
    seconds = {**execution.seconds, "total": time.perf_counter() - started}
    return Built(folder=output, record=record, seconds=seconds, resumed=resumed)


def _slot(job: Job) -> Slot:
    return Slot(job.name, job.dtype, job.shape, job.size * job.dtype.itemsize)


def _record(prepared: Prepared, execution: Execution) -> dict[str, Any]:
    """What is known before the folder is complete.

    Raises:
        ModelError: an input has been changed since it was opened.
    """
    plan, workers = prepared.plan, execution.workers
    roots = _roots(plan, execution.reader)
    parents = []
    for _, root, _ in roots:
        root.check_unchanged()
    for role, root, digests in roots:
        parents.append(
            parent_record(role, root, content_fingerprint(root, known=digests, workers=workers))
        )
    record: dict[str, Any] = {
        "command": prepared.command,
        "method": prepared.recipe.identity(),
        "request": prepared.request,
        "parents": parents,
        "layout": plan.roles[plan.layout],
        "plan": plan.summary(),
        "created": now(),
        "versions": versions(),
    }
    copied: dict[str, list[str]] = {}
    averaged: dict[str, list[str]] = {}
    models = plan.parents.models
    for job in plan.jobs:
        if job.action == "copy":
            copied.setdefault(plan.roles[job.origin], []).append(job.name)
        elif job.action == "mean":
            owners = ", ".join(plan.roles[models[number]] for number in job.owners(models))
            averaged.setdefault(owners, []).append(job.name)
    notes = dict.fromkeys(origin(root.folder).get("note") for _, root, _ in roots)
    origins = [note for note in notes if note]
    optional = {
        "copied": copied,
        "averaged": averaged,
        "ancestry": plan.ancestry,
        "origin": {"note": "; ".join(origins)} if origins else None,
    }
    return record | {name: value for name, value in optional.items() if value}


def _complete(
    folder: Path,
    prepared: Prepared,
    execution: Execution,
    record: dict[str, Any],
    *,
    is_resumed: bool,
) -> None:
    """Puts everything but the weights into a folder; the record, completed, comes last."""
    plan = prepared.plan
    layout = plan.sources[plan.layout]
    if config_of(layout):
        holder = next(
            parent for parent in reversed(folders_of(layout)) if (parent / "config.json").is_file()
        )
        write_config(holder, folder, changes=dict(plan.config))
    for source in plan.parents.companions:
        for parent in folders_of(source):
            copy_companions(parent, folder)
    if prepared.chat_template is not None:
        write_template(folder, prepared.chat_template)
    if prepared.finish is not None:
        prepared.finish(folder)
    written = execution.written
    with CheckpointReader(folder) as result:
        record["fingerprint"] = content_fingerprint(
            result, known=written, workers=execution.workers
        )
        digests = {}
        for name, entry in sorted(result.entries.items()):
            digests[name] = written.tensor(name, entry.size)
        record["tensors"] = digests
    record["seconds"] = {phase: round(seconds, 3) for phase, seconds in execution.seconds.items()}
    if execution.remainders is not None:
        record["audit"] = {
            "remainders": execution.remainders.close(),
            "compared_in": execution.comparison_dtypes(),
            **({} if is_resumed else {"inexact": execution.inexact}),
        }
    write_json(folder / FILE, record)


def check_output(plan: Plan, output: str | os.PathLike[str], *, overwrite: bool) -> Path:
    """The folder to write, by its real path, once it is known to be neither taken nor an input.

    Raises:
        RunFolderError: it is (or holds, or lies in) an input, or `check_destination` refuses it.
    """
    output = Path(os.path.realpath(expanded(output)))
    for source in plan.sources:
        folders = folders_of(source)
        # files may be links into another folder, as in the hub's cache: that one must stay, and may
        # hold other things
        linked = [Path(os.path.realpath(entry.file)).parent for entry in source.entries.values()]
        for folder in dict.fromkeys([*folders, *linked]):
            real = Path(os.path.realpath(folder))
            inside = folder in folders and real in output.parents
            if real == output or output in real.parents or inside:
                relation = "is" if real == output else "is inside" if inside else "holds"
                raise RunFolderError(
                    f"{output} {relation} the input {folder}, and inputs are never modified. "
                    "Choose another output folder."
                )
    check_destination(output, overwrite=overwrite)
    return output


def _identity(prepared: Prepared) -> list[Any]:
    """Everything that decides the output's bytes: the request, what it was resolved to, the code,
    the inputs with their tokenizers and settings."""
    plan = prepared.plan
    jobs = []
    for job in plan.jobs:
        shape, has = list(job.shape), list(job.has)
        jobs.append([job.name, job.dtype.name, shape, job.file, has, job.action, job.origin])
    order = []
    for source in plan.sources:
        order.append([os.fspath(folder) for folder in folders_of(source)])
    folders: set[str] = set()
    for parents in order:
        folders |= {os.path.realpath(folder) for folder in parents}
    files = []
    for folder in sorted(folders):
        for path in sorted(os.scandir(folder), key=lambda path: path.name):
            if path.is_file():
                stat = path.stat()
                files.append([path.path, stat.st_size, stat.st_mtime_ns])
    return [
        prepared.command,
        prepared.recipe.identity(),
        prepared.request,
        jobs,
        plan.layout,
        list(plan.notes),
        dict(plan.config),
        [plan.parents.base, plan.parents.models, list(plan.parents.extras)],
        order,
        files,
        versions(),
    ]


def _roots(plan: Plan, reader: Reader) -> list[tuple[str, CheckpointReader, Digests]]:
    """Role, folder and digests of each parent: views are recorded by the folders that they look
    at."""
    roots: list[tuple[str, CheckpointReader, Digests]] = []
    for role, source, digests in zip(plan.roles, plan.sources, reader.digests, strict=True):
        view: Source | None = source
        while view is not None:
            adapter = getattr(view, "adapter", None)
            if isinstance(adapter, CheckpointReader):
                roots.append((f"{role} (adapter)", adapter, Digests()))
            if isinstance(view, CheckpointReader):
                roots.append((role, view, digests if view is source and digests else Digests()))
            view = inner_source(view)
    return roots
