"""The planner: matches the tensors of several checkpoints before anything is written, applies stated policies, and says
what it found.

Nothing is dropped in silence: what differs is an error that lists all of it, unless a policy (`policies`) says what to
do. Tensors of another shape, integer tensors that differ and quantised weights are always errors. The *layout* is the
parent whose names, dtypes, shards, configuration and tokenizer the output takes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast.checkpoints.architecture import config_differences, difference_texts
from holdfast.checkpoints.companions import config_value
from holdfast.checkpoints.dtypes import dtype as dtype_named
from holdfast.checkpoints.element_types import DType, Operand
from holdfast.checkpoints.engine import Job
from holdfast.checkpoints.policies import Policies
from holdfast.checkpoints.reader import CheckpointReader
from holdfast.checkpoints.sources import (
    Entry,
    Source,
    bullets,
    changes_of,
    config_of,
    listing,
    notes_of,
    same_values,
    tied_head,
)
from holdfast.checkpoints.vocabulary import EMBEDDINGS, HEADS, align_vocabularies, vocabulary_tensors
from holdfast.errors import ConfigError, ShapeError
from holdfast.records.run import LayerDistance


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What will be done, tensor by tensor."""

    sources: tuple[Source, ...]
    """As the engine reads them: tied heads and vocabularies already brought in line."""
    roles: tuple[str, ...]
    """What each source is: "base", "model 1", ..."""
    layout: int
    """Index of the parent that the output looks like."""
    jobs: tuple[Job, ...]
    files: tuple[str, ...]
    """Weight files of the output, in order."""
    notes: tuple[str, ...]
    """What a policy decided or what is worth knowing; sentences."""
    config: Mapping[str, Any]
    """Keys of config.json that change."""
    passes: int = 1
    """How often the inputs are read."""
    ancestry: tuple[LayerDistance, ...] = ()
    """Distances between base and tuned model on a sample, where that was asked for."""

    @property
    def bytes_written(self) -> int:
        """Bytes of tensors in the output."""
        return sum(job.size * job.dtype.itemsize for job in self.jobs)

    @property
    def bytes_read(self) -> int:
        """Bytes of tensors to be read, all passes together."""
        once = sum(self.sources[i].entries[job.name].nbytes for job in self.jobs for i in self._read(job))
        return once * self.passes

    def _read(self, job: Job) -> list[int]:
        return [job.origin] if job.action == "copy" else [i for i, has in enumerate(job.has) if has]

    def summary(self) -> dict[str, Any]:
        """Counts and bytes for people and for JSON."""
        kinds = {
            action: sum(job.action == action for job in self.jobs) for action in ("combine", "mean", "copy", "same")
        }
        return {
            "tensors": len(self.jobs),
            "parameters": sum(job.size for job in self.jobs),
            "combined": kinds["combine"] + kinds["mean"],
            "copied": kinds["copy"] + kinds["same"],
            "bytes_read": self.bytes_read,
            "bytes_written": self.bytes_written,
            "files": list(self.files),
            "dtypes": {
                d: sum(j.size for j in self.jobs if j.dtype.name == d)
                for d in sorted({j.dtype.name for j in self.jobs})
            },
            "passes": self.passes,
            "notes": list(self.notes),
        }


class Alias:
    """A source with one more name for a tensor, or with some left out: how tied heads are brought in line."""

    def __init__(self, source: Source, *, names: Mapping[str, str] | None = None, without: Sequence[str] = ()) -> None:
        self.source, self._names = source, dict(names or {})
        self.label, self.folder = source.label, source.folder
        own = {n: e for n, e in source.entries.items() if n not in without}
        self.entries: Mapping[str, Entry] = own | {
            alias: source.entries[name]._replace(name=alias) for alias, name in self._names.items()
        }

    def read(self, name: str, start: int, stop: int, buffer: np.ndarray) -> Operand:
        """See `Source.read`."""
        return self.source.read(self._names.get(name, name), start, stop, buffer)


def quantised(source: Source) -> str:
    """How the configuration says that the stored weights are quantised; empty where it does not. (Plain fp8 numbers
    need no such entry.)"""
    found = config_value(config_of(source), "quantization_config")
    return str(found.get("quant_method", "unknown method")) if isinstance(found, dict) else ""


def make_plan(
    sources: Sequence[Source],
    roles: Sequence[str],
    *,
    layout: int,
    base: int | None,
    policies: Policies | None = None,
    optional: Mapping[int, int] | None = None,
    means: bool = False,
    dtype: str | None = None,
    vocabulary_of: int | None = None,
    lacking_rows: str = "layout",
    copies_keep_dtype: bool = False,
    stem: str = "model",
    passes: int = 1,
) -> Plan:
    """Matches the tensors of all sources.

    Args:
        sources: the checkpoints, in the order in which the method takes them.
        roles: what each is, for messages.
        layout: index of the parent that the output looks like.
        base: index of the parent that deltas are taken to; a model that lacks one of its tensors has delta 0 there.
            None: no such parent.
        policies: what to do where they differ. Default: refuse.
        optional: sources that must match but give the output no tensors of their own (Fisher information), and which
            source each belongs to.
        means: whether a tensor that several have, but not all and not the base, is their mean ("mean"); else it is
            copied from the layout, or the first that has it.
        dtype: of all floating-point tensors of the output; None: the layout's, tensor by tensor.
        vocabulary_of: index of the parent whose tokens the output's rows are; None: the layout.
        lacking_rows: what a source's row is where it lacks a token and the policy is "keep": "layout", that parent's
            own row, which is therefore kept, or "zeros".
        copies_keep_dtype: whether `dtype` leaves out tensors that are copied because not all have them.
        stem: of the output's file names.
        passes: how often the method reads its inputs.

    Raises:
        ShapeError: what does not fit, all of it, each with the policy that would settle it.
        ConfigError: `dtype` is no floating-point type.
    """
    policies, wanted, optional = policies or Policies(), dtype_named(dtype) if dtype else None, optional or {}
    if wanted is not None and wanted.kind != "float":
        raise ConfigError(f"dtype: expected a floating-point type such as bfloat16 or float32, got {wanted.name}")
    problems: list[str] = []
    notes = [f"{role}: {note}" for role, source in zip(roles, sources, strict=True) for note in notes_of(source)]
    config = changes_of(sources[layout])
    members = [i for i in range(len(sources)) if i not in optional]
    problems += [
        f"{roles[i]} is quantised ({method}): the numbers it stores are not its weights. Take the checkpoint that was "
        f"quantised, or dequantise it"
        for i in members
        if (method := quantised(sources[i]))
    ]
    _compare_configs(
        [sources[i] for i in members], [roles[i] for i in members], roles[layout], policies, problems, notes
    )
    sources = _heads_in_line(list(sources), roles, members, layout, policies, problems, notes, config)
    target = layout if vocabulary_of is None else vocabulary_of
    sources = align_vocabularies(
        sources,
        roles,
        members=members,
        layout=target,
        base=base,
        policy=policies.vocabulary,
        problems=problems,
        notes=notes,
        lacking=lacking_rows,
    )
    if target != layout:
        config |= _vocabulary_size(sources[layout])
    jobs = _match(sources, roles, members, layout, base, policies, optional, means, wanted, problems, notes)
    if copies_keep_dtype:
        jobs = [_as_stored(job, sources) if job.action == "copy" else job for job in jobs]
    if problems:
        counted = f"{len(problems)} difference{'s' if len(problems) > 1 else ''}"
        raise ShapeError(f"These checkpoints do not fit together ({counted}):", bullets(problems))
    renamed, files = _files(jobs, sources[layout], stem)
    if wanted is not None:
        config["dtype"] = wanted.name
    return Plan(
        sources=tuple(sources),
        roles=tuple(roles),
        layout=layout,
        jobs=tuple(renamed),
        files=tuple(files),
        notes=tuple(notes),
        config=config,
        passes=passes,
    )


def _compare_configs(
    sources: Sequence[Source],
    roles: Sequence[str],
    layout: str,
    policies: Policies,
    problems: list[str],
    notes: list[str],
) -> None:
    known = [(config, role) for source, role in zip(sources, roles, strict=True) if (config := config_of(source))]
    found = difference_texts(config_differences([config for config, _ in known]), [role for _, role in known])
    if not found:
        return
    what = f"the configurations differ in what the weights mean: {'; '.join(found)}"
    if policies.architecture == "error":
        problems.append(
            f"{what}. Weights that do different things have no common average: take models of one configuration. "
            f"--architecture keep goes on with that of {layout}"
        )
    else:
        notes.append(f"WARNING: {what}. The output has that of {layout} (architecture: keep).")


def _as_stored(job: Job, sources: Sequence[Source]) -> Job:
    return dataclasses.replace(job, dtype=sources[job.origin].entries[job.name].dtype)


def _vocabulary_size(layout: Source) -> dict[str, Any]:
    """The key of config.json that says how many rows the output's vocabulary has, where it is not the layout's own
    number."""
    config = config_of(layout)
    names = vocabulary_tensors({}, layout.entries)
    rows = layout.entries[names[0]].shape[0] if names else config_value(config, "vocab_size")
    return {} if rows == config_value(config, "vocab_size") else {"vocab_size": rows}


# ----------------------------------------------------------------------------------------------------------- tied heads


def _head_of(source: Source) -> str | None:
    return _vocabulary_matrix(source, HEADS)


def _embedding_of(source: Source) -> str | None:
    return _vocabulary_matrix(source, EMBEDDINGS)


def _vocabulary_matrix(source: Source, modules: Sequence[str]) -> str | None:
    """The first matrix with one row a token that belongs to one of the modules."""
    names = vocabulary_tensors(config_of(source), source.entries)
    return next((n for n in names if n.endswith(".weight") and n.split(".")[-2] in modules), None)


def _heads_in_line(
    sources: list[Source],
    roles: Sequence[str],
    members: Sequence[int],
    layout: int,
    policies: Policies,
    problems: list[str],
    notes: list[str],
    config: dict[str, Any],
) -> list[Source]:
    for i in members:
        head, embedding = _head_of(sources[i]), _embedding_of(sources[i])
        if head is None or embedding is None or not tied_head(config_of(sources[i])):
            continue
        same_type = sources[i].entries[head].dtype == sources[i].entries[embedding].dtype
        if same_type and same_values(sources[i], head, sources[i], embedding):
            sources[i] = Alias(sources[i], without=[head])
            notes.append(
                f"{roles[i]} stores {head} although its configuration ties the head to the embeddings, which are the "
                f"same."
            )
            continue
        # transformers loads such a checkpoint with a head of its own
        notes.append(
            f"{roles[i]} stores a {head} of its own although its configuration ties the head to the embeddings: both "
            f"count."
        )
        if i == layout:
            config["tie_word_embeddings"] = False
    separate = [i for i in members if _head_of(sources[i]) is not None]
    tied = [
        i
        for i in members
        if i not in separate and tied_head(config_of(sources[i])) is not False and _embedding_of(sources[i]) is not None
    ]
    if not separate or not tied:
        return sources
    head = str(_head_of(sources[separate[0]]))
    who = (
        f"tied to the embeddings in {listing([roles[i] for i in tied], 4)}, separate ({head}) in "
        f"{listing([roles[i] for i in separate], 4)}"
    )
    if policies.tied_heads == "error":
        problems.append(
            f"the head is {who}. --tied_heads untie writes a separate head; --tied_heads tie leaves the separate ones "
            f"out"
        )
        for i in tied:  # once is enough
            sources[i] = Alias(sources[i], names={head: str(_embedding_of(sources[i]))})
    elif policies.tied_heads == "untie":
        for i in tied:
            sources[i] = Alias(sources[i], names={head: str(_embedding_of(sources[i]))})
        config["tie_word_embeddings"] = False
        notes.append(f"The head is {who}. The output has a separate one (tied_heads: untie).")
    else:
        for i in separate:
            sources[i] = Alias(sources[i], without=[str(_head_of(sources[i]))])
        config["tie_word_embeddings"] = True
        notes.append(f"The head is {who}. The output is tied; separate heads are left out (tied_heads: tie).")
    return sources


# ------------------------------------------------------------------------------------------------------------- matching


def _match(
    sources: Sequence[Source],
    roles: Sequence[str],
    members: Sequence[int],
    layout: int,
    base: int | None,
    policies: Policies,
    optional: Mapping[int, int],
    means: bool,
    dtype: DType | None,
    problems: list[str],
    notes: list[str],
) -> list[Job]:
    order = list(dict.fromkeys([*sources[layout].entries, *(n for i in members for n in sources[i].entries)]))
    jobs: list[Job] = []
    unmatched: dict[tuple[tuple[int, ...], str, int], list[str]] = {}
    for name in order:
        has = tuple(name in source.entries for source in sources)
        holders = [i for i in members if has[i]]
        origin = layout if has[layout] else holders[0]
        entry = sources[origin].entries[name]
        shapes = {i: sources[i].entries[name].shape for i in range(len(sources)) if has[i]}
        if len(set(shapes.values())) > 1:
            problems.append(f"{name}: " + ", ".join(f"{roles[i]} has {list(shape)}" for i, shape in shapes.items()))
            continue
        kinds = {sources[i].entries[name].dtype.kind == "float" for i in holders}
        types = {sources[i].entries[name].dtype.name for i in holders}
        if len(kinds) > 1 or (kinds == {False} and len(types) > 1):
            problems.append(
                f"{name}: {', '.join(f'{roles[i]} has {sources[i].entries[name].dtype.name}' for i in holders)}"
            )
            continue
        action, in_base = "combine" if kinds == {True} else "same", base is not None and has[base]
        lacking = tuple(i for i in members if not has[i])
        lacking += tuple(
            i for i, own in optional.items() if not has[i] and (has[own] or in_base) and action == "combine"
        )
        if lacking:
            if action == "combine" and not in_base:  # there is nothing that "no change" could mean
                action = "mean" if means and len(holders) > 1 else "copy"
            action = "drop" if policies.unmatched == "drop" and not has[layout] else action
            unmatched.setdefault((lacking, action, origin), []).append(name)
            if action == "drop":
                continue
        out = dtype if dtype is not None and entry.dtype.kind == "float" else entry.dtype
        jobs.append(Job(name, out, entry.shape, entry.size, "", has, action, origin))
    for (lacking, action, origin), names in unmatched.items():
        sentence = f"{len(names)} tensors are not in {listing([roles[i] for i in lacking], 4)}: {listing(names, 4)}"
        apart = [i for i in lacking if i in optional]
        if apart:
            problems.append(f"{sentence}. {roles[apart[0]]} has to hold every tensor that is combined: compute it anew")
        elif policies.unmatched == "error":
            problems.append(
                f"{sentence}. --unmatched keep takes them from who has them, as their mean where several do; "
                f"--unmatched drop leaves out those that {roles[layout]} lacks"
            )
        else:
            done = {
                "drop": "left out",
                "mean": f"the mean of {listing([roles[i] for i in members if i not in lacking], 4)} by weight",
                "combine": "counted as unchanged there",
            }.get(action, f"copied from {roles[origin]}")
            notes.append(f"{sentence}: {done} (unmatched: {policies.unmatched}).")
    return jobs


def _files(jobs: Sequence[Job], layout: Source, stem: str) -> tuple[list[Job], list[str]]:
    """Jobs with their output files: the layout's sharding; what the layout lacks goes into the last shard."""
    from holdfast.checkpoints.writer import shard_names

    order = list(dict.fromkeys(entry.file.name for entry in layout.entries.values() if entry.offset >= 0)) or [
        "model.safetensors"
    ]
    if isinstance(layout, CheckpointReader):
        order = [file.name for file in layout.files]
    of = {name: entry.file.name for name, entry in layout.entries.items()}
    used = [file for file in order if any(of.get(job.name) == file for job in jobs)] or order[-1:]
    new = dict(zip(used, shard_names(stem, len(used)), strict=True))
    last = new[used[-1]]
    return [dataclasses.replace(job, file=new.get(of.get(job.name, ""), last)) for job in jobs], list(new.values())
