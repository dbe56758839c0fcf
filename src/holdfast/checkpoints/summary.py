"""What a checkpoint folder holds, and whether it is sound: a model, an adapter or a residual.

Without `verify` only headers and small JSON files are read, which takes milliseconds whatever the
model's size. With it every byte is: NaN and infinities are counted, and the content is compared
with the fingerprints in provenance.json, tensor by tensor.

What is wrong with a folder is in `checks`. The weights are never loaded as a model and no code of
the folder is run.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.checkpoints.adapter_settings import adapter_config, base_of, lacking
from holdfast.checkpoints.companions import config_value
from holdfast.checkpoints.dtypes import count_nonfinite
from holdfast.checkpoints.engine import Job, Scratch, job_of, map_blocks
from holdfast.checkpoints.fit import fit_of, looks_whole
from holdfast.checkpoints.layers import layer_of
from holdfast.checkpoints.locate import local_folder
from holdfast.checkpoints.manifest import FILE as MANIFEST
from holdfast.checkpoints.manifest import damage, read_manifest
from holdfast.checkpoints.named import located
from holdfast.checkpoints.provenance import FILE, Digests, fingerprint_of
from holdfast.checkpoints.reader import STEMS, CheckpointReader, index_file
from holdfast.checkpoints.sources import Entry, listing, read_config
from holdfast.checkpoints.vocabulary import vocabulary, vocabulary_tensors
from holdfast.errors import DataError, ModelError
from holdfast.support.files import read_object
from holdfast.support.paths import expanded
from holdfast.support.progress import progress

_NAMED = 6
"""Names that a message lists at most."""
_UNREAD = "not checked; --verify reads all bytes"


@dataclass(frozen=True, kw_only=True)
class Check:
    """One question to the folder."""

    name: str
    passed: bool | None
    """None: not looked at, see `detail`."""
    detail: str
    """What was found; where it failed, what and where."""


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """A folder's contents and the answers to all checks."""

    folder: str
    kind: str
    """"model", "adapter" or "residual"."""
    architecture: str | None
    """From the configuration; for an adapter its type, rank and base."""
    tensors: int
    parameters: int
    layers: int
    bytes: int
    """Of tensors."""
    dtypes: dict[str, int]
    """Parameters stored in each dtype, most first."""
    files: tuple[str, ...]
    """Names of the weight files."""
    provenance: dict[str, Any]
    """provenance.json without its list of tensors; empty: there is none."""
    fingerprint: str | None
    """Of the content as read; None without `verify`."""
    checks: tuple[Check, ...]
    verified: bool

    @property
    def sound(self) -> bool:
        """No check failed."""
        return all(check.passed is not False for check in self.checks)


def inspect_checkpoint(
    name: str | os.PathLike[str], *, verify: bool = False, workers: int | None = None
) -> Inspection:
    """Reports the contents of a checkpoint folder and checks it.

    Args:
        name: folder or hub id.
        verify: read all bytes.
        workers: number of threads that read; None: all cores.

    Returns:
        Architecture, sizes, dtypes and files, and the result of every check.

    Raises:
        ModelError: the folder does not exist, or has no safetensors file. If there are checkpoints
            in its subfolders, the message names them.
    """
    folder = local_folder(name)
    reader, checks = _opened(folder)
    record: dict[str, Any] = {}
    try:
        if (folder / FILE).is_file():
            record = read_object(folder / FILE)
    except DataError as error:
        checks.append(_check(f"{FILE} can be read", [f"{error}"]))
    entries = reader.entries if reader is not None else {}
    files = [file.name for file in reader.files] if reader is not None else []
    kind = _kind(files or sorted(path.name for path in folder.glob("*.safetensors")))
    config, problem = _configuration(folder, kind)
    checks.append(_check("configuration can be read", [problem] if problem else []))
    if kind == "model" and config and reader is not None:
        checks += _vocabulary_check(folder, config, entries)
        checks.append(_fit_check(folder, config, entries, verify=verify))
    if kind == "adapter" and config and reader is not None:
        checks.append(_adapter_check(folder, config, entries))
    checks += _manifest_check(folder, verify=verify)
    fingerprint = None
    if reader is not None and verify:
        fingerprint, content_checks = _read_all(reader, record, workers)
        checks += content_checks
    else:
        checks.append(Check(name="values are finite", passed=None, detail=_UNREAD))
        if record.get("tensors"):
            checks.append(Check(name="content matches the record", passed=None, detail=_UNREAD))
    parameters: Counter[str] = Counter()
    for entry in entries.values():
        parameters[entry.dtype.name] += entry.size
    layers = {layer_of(name) for name in entries}
    return Inspection(
        folder=str(name),
        kind=kind,
        architecture=_architecture(kind, config),
        tensors=len(entries),
        parameters=parameters.total(),
        layers=sum(layer.isdigit() for layer in layers),
        bytes=sum(entry.nbytes for entry in entries.values()),
        dtypes=dict(parameters.most_common()),
        files=tuple(files),
        provenance={key: value for key, value in record.items() if key != "tensors"},
        fingerprint=fingerprint,
        checks=tuple(checks),
        verified=verify,
    )


def _opened(folder: Path) -> tuple[CheckpointReader | None, list[Check]]:
    """The folder's tensors, None where it is damaged; whether files, headers and index are sound
    and fit each other.

    Raises:
        ModelError: there are no safetensors in it.
    """
    title = "files, headers and index are valid"
    here = index_file(folder) is not None or any(folder.glob("*.safetensors"))
    inside = sorted(
        {path.parent.name for stem in STEMS for path in folder.glob(f"*/{stem}*.safetensors")}
    )
    if inside and not here:
        raise ModelError(
            f"Expected one checkpoint in {folder}, found {len(inside)} in its subfolders. Choose "
            "one:",
            *(f"  {folder / name}" for name in inside[:10]),
        )
    try:
        reader = CheckpointReader(folder)
    except ModelError as error:
        if not here:
            raise
        return None, [_check(title, [f"{error}"])]
    count = len(reader.files)
    return reader, [
        _check(
            title, [], f"{len(reader.entries)} tensors in {count} file{'s' if count > 1 else ''}"
        )
    ]


def _kind(files: Sequence[str]) -> str:
    """What the names of the weight files say that they are."""
    for kind in ("model", "residual", "adapter"):
        if any(name.startswith(kind) for name in files):
            return kind
    return "model"


def _configuration(folder: Path, kind: str) -> tuple[dict[str, Any], str]:
    """The configuration, and what is wrong with it."""
    try:
        config = adapter_config(folder) if kind == "adapter" else read_config(folder)
    except ModelError as error:
        return {}, f"{error}"
    missing = kind == "model" and not config
    return config, "there is no config.json, so this cannot be loaded as a model" if missing else ""


def _vocabulary_check(
    folder: Path, config: Mapping[str, Any], entries: Mapping[str, Entry]
) -> list[Check]:
    """config.json has as many tokens as the embeddings have rows, and the tokenizer no more."""
    names = vocabulary_tensors(config, entries)
    if not names:
        return []
    rows = entries[names[0]].shape[0]
    stated = config_value(config, "vocab_size")
    problems, tokens = [], None
    if isinstance(stated, int) and stated != rows:
        problems.append(f"config.json says {stated:,} rows, the embeddings have {rows:,}")
    try:
        tokens = vocabulary(folder)
    except ModelError as error:
        problems.append(f"{error}")
    beyond = [token for token, number in (tokens or {}).items() if number >= rows]
    if beyond:
        count = f"{len(beyond):,} tokens beyond the {rows:,} rows"
        problems.append(f"the tokenizer has {count}: {listing(beyond, _NAMED)}")
    fine = f"{rows:,} rows" + (f", {len(tokens):,} tokens" if tokens else "")
    return [_check("vocabulary fits", problems, fine)]


def _fit_check(
    folder: Path, config: Mapping[str, Any], entries: Mapping[str, Entry], *, verify: bool
) -> Check:
    """The tensors are those that the model of config.json takes. Without `verify` transformers is
    asked only where names and shapes are suspicious."""
    title = "weights fit config.json"
    if not verify and looks_whole(config, entries):
        return _check(
            title, [], "names and shapes agree; --verify builds the model and compares everything"
        )
    try:
        fit = fit_of(folder)
    except ModelError as error:
        return _check(title, [f"{error}"])
    if fit.unknown:
        return Check(name=title, passed=None, detail=f"cannot tell: {fit.unknown}")
    return _check(
        title,
        [fit.problem] if fit.problem else [],
        f"{len(entries)} tensors, all that the model has",
    )


def _adapter_check(folder: Path, config: Mapping[str, Any], entries: Mapping[str, Entry]) -> Check:
    """Every module that the configuration names has its factors."""
    title = "modules are those of adapter_config.json"
    try:
        base = CheckpointReader(expanded(located(base_of(folder))))
    except ModelError as error:
        return Check(name=title, passed=None, detail=f"not checked: {error}")
    return _check(title, lacking(config, list(entries), base.entries), f"on {base.folder}")


def _architecture(kind: str, config: Mapping[str, Any]) -> str | None:
    """What the configuration calls it."""
    if kind == "adapter":
        facts = {"r": config.get("r"), "alpha": config.get("lora_alpha")}
        words = [str(config.get("peft_type") or "adapter")]
        for name, value in facts.items():
            if value:
                words.append(f"{name}={value:g}")
        if base := config.get("base_model_name_or_path"):
            words.append(f"of {base}")
        return " ".join(words)
    architectures = config.get("architectures")
    if isinstance(architectures, list) and architectures:
        return str(architectures[0])
    return config.get("model_type") or None


def _check(name: str, problems: Sequence[str], fine: str = "") -> Check:
    """A check that failed if there are problems; `fine` is its detail where there are none."""
    return Check(name=name, passed=not problems, detail="; ".join(problems) or fine)


def _read_all(
    reader: CheckpointReader, record: Mapping[str, Any], workers: int | None
) -> tuple[str | None, list[Check]]:
    """Reads every tensor once: counts what is not finite, and compares with the record."""
    entries = reader.entries
    jobs = [job_of(entry) for entry in entries.values()]
    digests, bad = Digests(), dict.fromkeys(entries, 0)

    def read(job: Job, start: int, stop: int, scratch: Scratch) -> int:
        operand = reader.read(job.name, start, stop, scratch.buffers[0])
        digests.add(job.name, start, operand.raw)
        return count_nonfinite(operand.raw, operand.dtype) if job.dtype.kind == "float" else 0

    def add(job: Job, count: int) -> None:
        bad[job.name] += count

    total = sum(entry.nbytes for entry in entries.values())
    try:
        with progress(f"Reading {reader.folder.name}", total=total, unit="bytes") as advance:
            map_blocks(jobs, read, sources=1, workers=workers, reduce=add, advance=advance)
    except ModelError as error:
        return None, [_check("values are finite", [f"{error}"])]
    finally:
        reader.close()
    content, not_finite = {}, []
    for name, entry in entries.items():
        content[name] = (entry.dtype, entry.shape, digests.tensor(name, entry.size) or "")
        if bad[name]:
            not_finite.append(f"{name} ({bad[name]:,} of {entry.size:,})")
    problems = []
    if not_finite:
        problems = [
            f"NaN or infinities in {len(not_finite)} tensors: {listing(not_finite, _NAMED)}"
        ]
    checks = [_check("values are finite", problems, f"{len(jobs)} tensors")]
    fingerprint = fingerprint_of(content)
    listed = record.get("tensors")
    if isinstance(listed, dict):
        differ = [
            name
            for name, digest in listed.items()
            if name in content and content[name][2] != digest
        ]
        problems = []
        if differ:
            problems = [
                (
                    f"{len(differ)} tensors were changed after they were written: "
                    f"{listing(differ, _NAMED)}"
                )
            ]
        elif record.get("fingerprint") not in (None, fingerprint):
            problems = ["the tensors have the recorded bytes, but other names, dtypes or shapes"]
        checks.append(_check("content matches the record", problems, f"fingerprint {fingerprint}"))
    return fingerprint, checks


def _manifest_check(folder: Path, *, verify: bool) -> list[Check]:
    """The files of a training checkpoint are as they were written; nothing where there is no
    manifest."""
    name = "files match the manifest"
    try:
        files = read_manifest(folder)
    except DataError as error:
        return [_check(name, [f"{error}"])]
    if files is None:
        return []
    if not verify:
        return [Check(name=name, passed=None, detail=_UNREAD)]
    return [_check(name, damage(folder, files), f"{len(files)} files of {MANIFEST}")]
