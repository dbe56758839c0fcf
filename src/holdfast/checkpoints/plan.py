"""The planner: matches the tensors of several checkpoints before anything is written, applies
stated policies, and says what it found.

Nothing is dropped in silence: what differs is an error that lists all of it, unless a policy
(`policies`) says what to do. Tensors of another shape, integer tensors that differ and quantised
weights are always errors. The *layout* is the parent whose names, dtypes, shards, configuration and
tokenizer the output takes.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast.checkpoints.architecture import config_differences, difference_texts
from holdfast.checkpoints.companions import config_value
from holdfast.checkpoints.dtypes import dtype as dtype_named
from holdfast.checkpoints.element_types import DType, Operand
from holdfast.checkpoints.engine import Job
from holdfast.checkpoints.parents import Findings, Parents
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
from holdfast.checkpoints.vocabulary import (
    EMBEDDINGS,
    HEADS,
    align_vocabularies,
    first_matrix,
    vocabulary_tensors,
)
from holdfast.errors import ConfigError, ShapeError
from holdfast.records.run import LayerDistance


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What will be done, tensor by tensor."""

    parents: Parents
    """As the engine reads them: tied heads and vocabularies already brought in line."""
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
    def sources(self) -> tuple[Source, ...]:
        """The parents' tensors."""
        return self.parents.sources

    @property
    def roles(self) -> tuple[str, ...]:
        """What each parent is: "base", "model 1", ..."""
        return self.parents.roles

    @property
    def layout(self) -> int:
        """Index of the parent that the output looks like."""
        return self.parents.layout

    @property
    def bytes_written(self) -> int:
        """Bytes of tensors in the output."""
        return sum(job.size * job.dtype.itemsize for job in self.jobs)

    @property
    def bytes_read(self) -> int:
        """Bytes of tensors to be read, all passes together."""
        once = 0
        for job in self.jobs:
            readers = (
                [job.origin]
                if job.action == "copy"
                else [i for i, has in enumerate(job.has) if has]
            )
            once += sum(self.sources[index].entries[job.name].nbytes for index in readers)
        return once * self.passes

    def summary(self) -> dict[str, Any]:
        """Counts and bytes for people and for JSON."""
        actions = Counter(job.action for job in self.jobs)
        parameters: Counter[str] = Counter()
        for job in self.jobs:
            parameters[job.dtype.name] += job.size
        return {
            "tensors": len(self.jobs),
            "parameters": parameters.total(),
            "combined": actions["combine"] + actions["mean"],
            "copied": actions["copy"] + actions["same"],
            "bytes_read": self.bytes_read,
            "bytes_written": self.bytes_written,
            "files": list(self.files),
            "dtypes": dict(sorted(parameters.items())),
            "passes": self.passes,
            "notes": list(self.notes),
        }


class Alias:
    """A source with one more name for a tensor, or with some left out: how tied heads are brought
    in line."""

    def __init__(
        self, source: Source, *, names: Mapping[str, str] | None = None, without: Sequence[str] = ()
    ) -> None:
        self.source, self._names = source, dict(names or {})
        self.label, self.folder = source.label, source.folder
        entries = {name: entry for name, entry in source.entries.items() if name not in without}
        for alias, name in self._names.items():
            entries[alias] = source.entries[name]._replace(name=alias)
        self.entries: Mapping[str, Entry] = entries

    def read(self, name: str, start: int, stop: int, buffer: np.ndarray) -> Operand:
        """See `Source.read`."""
        return self.source.read(self._names.get(name, name), start, stop, buffer)


def quantised(source: Source) -> str:
    """How the configuration says that the stored weights are quantised; empty where it does not.
    (Plain fp8 numbers need no such entry.)"""
    stated = config_value(config_of(source), "quantization_config")
    return str(stated.get("quant_method", "unknown method")) if isinstance(stated, dict) else ""


def make_plan(
    parents: Parents,
    policies: Policies | None = None,
    *,
    dtype: str | None = None,
    means: bool = False,
    lacking_rows: str = "layout",
    copies_keep_dtype: bool = False,
    stem: str = "model",
    passes: int = 1,
) -> Plan:
    """Compares checkpoints and says what the output will be.

    Args:
        parents: the checkpoints.
        policies: what to do where they differ. Default: refuse.
        dtype: of all floating-point tensors of the output; None: the layout's, tensor by tensor.
        means: whether a tensor that several have, but not all and not the base, is their mean
            ("mean"); else it is copied from the layout, or the first that has it.
        lacking_rows: what a source's row is where it lacks a token and the policy is "keep":
            "layout", that parent's own row, which is therefore kept, or "zeros".
        copies_keep_dtype: whether `dtype` leaves out tensors that are copied because not all have
            them.
        stem: of the output's file names.
        passes: how often the method reads its inputs.

    Raises:
        ShapeError: what does not fit, all of it, each with the policy that would settle it.
        ConfigError: `dtype` is no floating-point type.
    """
    policies = policies or Policies()
    output_dtype = dtype_named(dtype) if dtype else None
    if output_dtype is not None and output_dtype.kind != "float":
        raise ConfigError(
            "dtype: expected a floating-point type such as bfloat16 or float32, got "
            f"{output_dtype.name}"
        )
    layout = parents.sources[parents.layout]
    findings = Findings(config=changes_of(layout))
    for role, source in zip(parents.roles, parents.sources, strict=True):
        findings.notes += [f"{role}: {note}" for note in notes_of(source)]
    _refuse_quantised(parents, findings)
    _compare_configs(parents, policies, findings)
    parents = _heads_in_line(parents, policies, findings)
    parents = align_vocabularies(parents, policies.vocabulary, findings, lacking=lacking_rows)
    if parents.vocabulary != parents.layout:
        findings.config |= _vocabulary_size(parents.sources[parents.layout])
    matching = _Matching(
        parents, policies, means=means, dtype=output_dtype, copies_keep_dtype=copies_keep_dtype
    )
    jobs = matching.jobs(findings)
    if findings.problems:
        count = len(findings.problems)
        title = (
            f"These checkpoints do not fit together ({count} difference{'s' if count > 1 else ''}):"
        )
        raise ShapeError(title, bullets(findings.problems))
    jobs, files = _files(jobs, parents.sources[parents.layout], stem)
    if output_dtype is not None:
        findings.config["dtype"] = output_dtype.name
    return Plan(
        parents=parents,
        jobs=tuple(jobs),
        files=tuple(files),
        notes=tuple(findings.notes),
        config=findings.config,
        passes=passes,
    )


def _refuse_quantised(parents: Parents, findings: Findings) -> None:
    for index in parents.members:
        if method := quantised(parents.sources[index]):
            findings.problems.append(
                f"{parents.roles[index]} is quantised ({method}): the stored numbers are not its "
                "weights. Use the unquantised checkpoint, or dequantise it"
            )


def _compare_configs(parents: Parents, policies: Policies, findings: Findings) -> None:
    configs, roles = [], []
    for index in parents.members:
        config = config_of(parents.sources[index])
        if config:
            configs.append(config)
            roles.append(parents.roles[index])
    differences = difference_texts(config_differences(configs), roles)
    if not differences:
        return
    what = (
        "the configurations differ in settings that change the meaning of weights: "
        f"{'; '.join(differences)}"
    )
    layout = parents.roles[parents.layout]
    if policies.architecture == "error":
        findings.problems.append(
            f"{what}. An average of such weights is meaningless. Use models of one configuration. "
            f"--architecture keep merges anyway, with the configuration of {layout}"
        )
    else:
        findings.notes.append(
            f"WARNING: {what}. The output has the configuration of {layout} (architecture: keep)."
        )


def _vocabulary_size(layout: Source) -> dict[str, Any]:
    """The key of config.json that says how many rows the output's vocabulary has, where it is not
    the layout's own number."""
    config = config_of(layout)
    names = vocabulary_tensors({}, layout.entries)
    rows = layout.entries[names[0]].shape[0] if names else config_value(config, "vocab_size")
    return {} if rows == config_value(config, "vocab_size") else {"vocab_size": rows}


# --------------------------------------------------------------------------------------- tied heads


def _head_of(source: Source) -> str | None:
    return _vocabulary_matrix(source, HEADS)


def _embedding_of(source: Source) -> str | None:
    return _vocabulary_matrix(source, EMBEDDINGS)


def _vocabulary_matrix(source: Source, modules: Sequence[str]) -> str | None:
    """The first matrix with one row a token that belongs to one of the modules."""
    names = vocabulary_tensors(config_of(source), source.entries)
    return first_matrix(names, modules)


def _heads_in_line(parents: Parents, policies: Policies, findings: Findings) -> Parents:
    """The parents with heads that are all tied or all separate."""
    sources = list(parents.sources)
    for index in parents.members:
        sources[index] = _without_needless_head(parents, index, findings)
    separate, tied = [], []
    for index in parents.members:
        if _head_of(sources[index]) is not None:
            separate.append(index)
        elif (
            tied_head(config_of(sources[index])) is not False
            and _embedding_of(sources[index]) is not None
        ):
            tied.append(index)
    if separate and tied:
        head = str(_head_of(sources[separate[0]]))
        who = (
            f"tied to the embeddings in {parents.named(tied)}, separate ({head}) in "
            f"{parents.named(separate)}"
        )
        if policies.tied_heads == "tie":
            for index in separate:
                sources[index] = Alias(sources[index], without=[str(_head_of(sources[index]))])
            findings.config["tie_word_embeddings"] = True
            findings.notes.append(
                f"The output head is {who}. The result is tied, and separate heads are left out "
                "(tied_heads: tie)."
            )
        else:  # also after an error, so that it is said once
            for index in tied:
                sources[index] = Alias(
                    sources[index], names={head: str(_embedding_of(sources[index]))}
                )
        if policies.tied_heads == "untie":
            findings.config["tie_word_embeddings"] = False
            findings.notes.append(
                f"The output head is {who}. The result has a separate head (tied_heads: untie)."
            )
        if policies.tied_heads == "error":
            findings.problems.append(
                f"the head is {who}. Use `--tied_heads untie` to write a separate head, or "
                "`--tied_heads tie` to leave separate heads out"
            )
    return dataclasses.replace(parents, sources=tuple(sources))


def _without_needless_head(parents: Parents, index: int, findings: Findings) -> Source:
    """A parent without its head, where it is stored although it is tied and the same as the
    embeddings."""
    source, role = parents.sources[index], parents.roles[index]
    head, embedding = _head_of(source), _embedding_of(source)
    if head is None or embedding is None or not tied_head(config_of(source)):
        return source
    same_type = source.entries[head].dtype == source.entries[embedding].dtype
    stored = f"{role} stores {{}} although its configuration ties the head to the embeddings"
    if same_type and same_values(source, head, source, embedding):
        findings.notes.append(f"{stored.format(head)}. Both have the same values.")
        return Alias(source, without=[head])
    # transformers loads such a checkpoint with a head of its own
    findings.notes.append(f"{stored.format(f'a separate {head}')}. Both are used.")
    if index == parents.layout:
        findings.config["tie_word_embeddings"] = False
    return source


# ----------------------------------------------------------------------------------------- matching


@dataclass(frozen=True)
class _Unmatched:
    """What becomes of tensors that not all have."""

    lacking: tuple[int, ...]
    action: str
    origin: int


class _Matching:
    """Tensors of one name in all parents.

    Args:
        parents, policies: the request.
        means, dtype, copies_keep_dtype: as of `make_plan`.
    """

    def __init__(
        self,
        parents: Parents,
        policies: Policies,
        *,
        means: bool,
        dtype: DType | None,
        copies_keep_dtype: bool,
    ) -> None:
        self.parents, self.policies = parents, policies
        self.means, self.dtype, self.copies_keep_dtype = means, dtype, copies_keep_dtype
        self._unmatched: dict[_Unmatched, list[str]] = {}

    def jobs(self, findings: Findings) -> list[Job]:
        """A job for each tensor of the output, in the layout's order."""
        parents = self.parents
        names = dict.fromkeys(parents.sources[parents.layout].entries)
        for index in parents.members:
            names |= dict.fromkeys(parents.sources[index].entries)
        jobs = []
        for name in names:
            problem = self._misfit(name)
            if problem:
                findings.problems.append(problem)
                continue
            job = self._job(name)
            if job is not None:
                jobs.append(job)
        for unmatched, tensors in self._unmatched.items():
            self._report(unmatched, tensors, findings)
        return jobs

    def _misfit(self, name: str) -> str:
        """Where a tensor is of different shapes or kinds."""
        shapes: dict[tuple[int, ...], None] = {}
        dtypes: dict[str, str] = {}
        with_shapes, with_dtypes = [], []
        for index, (role, source) in enumerate(
            zip(self.parents.roles, self.parents.sources, strict=True)
        ):
            entry = source.entries.get(name)
            if entry is None:
                continue
            shapes[entry.shape] = None
            with_shapes.append(f"{role} has {list(entry.shape)}")
            if index not in self.parents.extras:
                dtypes[entry.dtype.name] = entry.dtype.kind
                with_dtypes.append(f"{role} has {entry.dtype.name}")
        if len(shapes) > 1:
            return f"{name}: {', '.join(with_shapes)}"
        if len(dtypes) > 1 and set(dtypes.values()) != {"float"}:
            return f"{name}: {', '.join(with_dtypes)}"
        return ""

    def _job(self, name: str) -> Job | None:
        """What is done with a tensor; None: it is left out."""
        parents, layout = self.parents, self.parents.layout
        has = tuple(name in source.entries for source in parents.sources)
        holders = [index for index in parents.members if has[index]]
        origin = layout if has[layout] else holders[0]
        entry = parents.sources[origin].entries[name]
        is_float = entry.dtype.kind == "float"
        in_base = parents.base is not None and has[parents.base]
        lacking = [index for index in parents.members if not has[index]]
        if is_float:
            needed = [extra for extra, model in parents.extras.items() if has[model] or in_base]
            lacking += [extra for extra in needed if not has[extra]]
        action = "combine" if is_float else "same"
        if lacking:
            if is_float and not in_base:  # there is nothing that "no change" could mean
                action = "mean" if self.means and len(holders) > 1 else "copy"
            if self.policies.unmatched == "drop" and not has[layout]:
                action = "drop"
            self._unmatched.setdefault(_Unmatched(tuple(lacking), action, origin), []).append(name)
        if action == "drop":
            return None
        keeps_dtype = (
            self.dtype is None or not is_float or (action == "copy" and self.copies_keep_dtype)
        )
        dtype = entry.dtype if keeps_dtype or self.dtype is None else self.dtype
        return Job(name, dtype, entry.shape, entry.size, "", has, action, origin)

    def _report(self, unmatched: _Unmatched, names: Sequence[str], findings: Findings) -> None:
        parents, policy = self.parents, self.policies.unmatched
        sentence = (
            f"{len(names)} tensors are not in {parents.named(unmatched.lacking)}: "
            f"{listing(names, 4)}"
        )
        extras = [index for index in unmatched.lacking if index in parents.extras]
        if extras:
            findings.problems.append(
                f"{sentence}. {parents.roles[extras[0]]} must have values for every merged "
                "tensor. Compute this Fisher information again"
            )
        elif policy == "error":
            findings.problems.append(
                f"{sentence}. --unmatched keep takes them from the models that have them (their "
                "mean if several do). --unmatched drop leaves out the tensors that "
                f"{parents.roles[parents.layout]} lacks"
            )
        else:
            holders = [index for index in parents.members if index not in unmatched.lacking]
            outcomes = {
                "drop": "left out",
                "mean": f"the weighted mean of {parents.named(holders)}",
                "combine": "treated as unchanged there",
            }
            outcome = outcomes.get(
                unmatched.action, f"copied from {parents.roles[unmatched.origin]}"
            )
            findings.notes.append(f"{sentence}: {outcome} (unmatched: {policy}).")


def _files(jobs: Sequence[Job], layout: Source, stem: str) -> tuple[list[Job], list[str]]:
    """Jobs with their output files: the layout's sharding; what the layout lacks goes into the last
    shard."""
    from holdfast.checkpoints.writer import shard_names

    if isinstance(layout, CheckpointReader):
        order = [file.name for file in layout.files]
    else:
        stored = [entry.file.name for entry in layout.entries.values() if entry.offset >= 0]
        order = list(dict.fromkeys(stored)) or ["model.safetensors"]
    files = [
        layout.entries[job.name].file.name if job.name in layout.entries else "" for job in jobs
    ]
    used = [file for file in order if file in files] or order[-1:]
    renamed = dict(zip(used, shard_names(stem, len(used)), strict=True))
    last = renamed[used[-1]]
    with_files = []
    for job, file in zip(jobs, files, strict=True):
        with_files.append(dataclasses.replace(job, file=renamed.get(file, last)))
    return with_files, list(renamed.values())
