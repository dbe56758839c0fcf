"""What a checkpoint folder holds, and whether it is sound: a model, an adapter or a residual.

Without `verify` only headers and small JSON files are read, which takes milliseconds whatever the model's size. With it
every byte is: NaN and infinities are counted, and the content is compared with the fingerprints in provenance.json,
tensor by tensor.

A folder with damage is described as far as it can be read; what is wrong is in `checks`. The weights are never loaded
as a model and no code of the folder is run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.checkpoints.adapters import FILE as ADAPTER
from holdfast.checkpoints.adapters import adapter_config, lacking
from holdfast.checkpoints.companions import config_value
from holdfast.checkpoints.distance import layer_of
from holdfast.checkpoints.dtypes import count_nonfinite
from holdfast.checkpoints.engine import Job, Scratch, job_of, map_blocks
from holdfast.checkpoints.fit import fit_of, suspicions
from holdfast.checkpoints.locate import local_folder
from holdfast.checkpoints.manifest import FILE as MANIFEST
from holdfast.checkpoints.manifest import damage, read_manifest
from holdfast.checkpoints.named import located
from holdfast.checkpoints.provenance import FILE, Digests, fingerprint_of
from holdfast.checkpoints.reader import STEMS, CheckpointReader, index_file, read_headers, read_index
from holdfast.checkpoints.sources import Entry, listing, read_config
from holdfast.checkpoints.vocabulary import vocabulary, vocabulary_tensors
from holdfast.errors import DataError, ModelError
from holdfast.support.files import read_object
from holdfast.support.paths import expanded
from holdfast.support.progress import progress

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_NAMED = 6
"""Names that a message lists at most."""


@dataclass(frozen=True, kw_only=True)
class DtypeShare:
    """What is stored in one dtype."""

    dtype: str
    tensors: int
    parameters: int
    bytes: int


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
    dtypes: tuple[DtypeShare, ...]
    """Most bytes first."""
    files: tuple[str, ...]
    """Names of the weight files."""
    provenance: dict[str, Any]
    """provenance.json without its list of tensors; empty: there is none."""
    fingerprint: str | None
    """Of the content as read; None without `verify`."""
    checks: tuple[Check, ...]
    verified: bool
    seconds: float

    @property
    def sound(self) -> bool:
        """No check failed."""
        return all(check.passed is not False for check in self.checks)


def inspect_checkpoint(name: str | os.PathLike[str], *, verify: bool = False, workers: int | None = None) -> Inspection:
    """Looks into a checkpoint folder.

    Args:
        name: folder or hub id.
        verify: read all bytes.
        workers: threads that read; None: all cores.

    Raises:
        ModelError: no such folder, or no safetensors in it (where checkpoints lie in folders inside it, they are
            named).
    """
    began = time.perf_counter()
    folder = local_folder(name)
    look = _Look(folder)
    record = look.provenance
    checks = [look.files_check(), look.headers_check(), look.index_check(), *look.configuration_checks()]
    checks += [*look.names_check(), *look.fit_check(verify=verify)]
    reader = None
    try:
        reader = CheckpointReader(folder)
    except ModelError as error:
        if all(check.passed for check in checks):
            checks.append(_check("it can be opened", [str(error)]))
    checks += _manifest_check(folder, verify=verify)
    fingerprint = None
    if verify and reader is not None:
        fingerprint, content_checks = _read_all(reader, record, workers)
        checks += content_checks
    else:
        unread = "not looked at: the folder is damaged" if verify else "not looked at; --verify reads all bytes"
        checks.append(Check(name="values are finite", passed=None, detail=unread))
        if record.get("tensors"):
            checks.append(Check(name="content is as recorded", passed=None, detail=unread))
    entries = list(look.entries.values())
    layers = {layer_of(entry.name) for entry in entries}
    return Inspection(
        folder=str(name),
        kind=look.kind,
        architecture=look.architecture(),
        tensors=len(entries),
        parameters=sum(e.size for e in entries),
        layers=sum(layer.isdigit() for layer in layers),
        bytes=sum(e.nbytes for e in entries),
        dtypes=_by_dtype(entries),
        files=tuple(file.name for file in look.files),
        provenance={key: value for key, value in record.items() if key != "tensors"},
        fingerprint=fingerprint,
        checks=tuple(checks),
        verified=verify,
        seconds=time.perf_counter() - began,
    )


class _Look:
    """A folder's headers and small files, read as far as they can be."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        present = sorted(path.name for path in folder.glob("*.safetensors"))
        index = index_file(folder)
        if not present and index is None:
            raise ModelError(_nothing_here(folder))
        self.index_problem = ""
        self.listed: dict[str, str] = {}
        if index is not None:
            try:
                self.listed = read_index(index)
            except ModelError as error:
                self.index_problem = str(error)
        stem = _stem([*present, *([index.name] if index is not None else [])])
        single = f"{stem}.safetensors"
        names = sorted(set(self.listed.values())) if self.listed else [single] if single in present else present
        self.missing = [name for name in names if name not in present]
        self.files = [folder / name for name in names if name in present]
        self.headers = read_headers(self.files, self.listed)
        self.entries = self.headers.entries
        self.kind = {"adapter_model": "adapter"}.get(stem, stem)
        self.config: dict[str, Any] = {}
        self.provenance: dict[str, Any] = {}
        self.record_problem = ""
        try:
            self.provenance = read_object(folder / FILE) if (folder / FILE).is_file() else {}
        except DataError as error:
            self.record_problem = str(error)

    def files_check(self) -> Check:
        """All shards that the index lists are there; without an index there is one file."""
        count, missing = len(self.files), self.missing
        problems = [self.index_problem] if self.index_problem else []
        if missing:
            problems.append(f"{len(missing)} of {len(missing) + count} shards are missing: {listing(missing, _NAMED)}")
        elif not self.listed and not problems and count > 1:
            problems.append(f"{count} shards without the index that says what is in them")
        return _check("files are complete", problems, f"{count} file{'s' if count > 1 else ''}")

    def headers_check(self) -> Check:
        """Every header fits its file."""
        damaged = "\n".join(map(str, self.headers.damaged.values()))
        fine = f"{len(self.entries)} tensors, no gaps, no bytes missing"
        return _check("headers are sound", [damaged] if damaged else [], fine)

    def index_check(self) -> Check:
        """Every tensor is where the index says, once, and none is left out."""
        unlisted = [n for n in self.entries if n not in self.listed] if self.listed else []
        twice = [name for name, _, _ in self.headers.twice] if not self.listed and not self.index_problem else []
        wrong = (
            (twice, "tensors are in more than one file"),
            (self.headers.misplaced, f"of {len(self.listed)} tensors are not where the index says"),
            (unlisted, "tensors are in the shards and not in the index"),
        )
        problems = [f"{len(names)} {what}: {listing(names, _NAMED)}" for names, what in wrong if names]
        problems += [self.index_problem] if self.index_problem else []
        fine = f"{len(self.listed)} tensors in {len(self.files)} shards" if self.listed else "no index, and none needed"
        return _check("index fits the shards", problems, fine)

    def configuration_checks(self) -> list[Check]:
        """config.json can be read, and has as many tokens as the embeddings have rows."""
        title = "configuration can be read"
        try:
            adapter = self.kind == "adapter"
            self.config = adapter_config(self.folder) if adapter else read_config(self.folder)
        except ModelError as error:
            return [_check(title, [str(error)])]
        if self.kind == "adapter":
            return [_check(title, [], ADAPTER)]
        if not self.config:
            absent = [_check(title, ["there is no config.json: nothing can load this as a model"])]
            return absent if self.kind == "model" else []
        return [_check(title, [], "config.json"), *self._vocabulary_check()]

    def _vocabulary_check(self) -> list[Check]:
        names = vocabulary_tensors(self.config, self.entries)
        if not names:
            return []
        rows = self.entries[names[0]].shape[0]
        stated = config_value(self.config, "vocab_size")
        problems, tokens = [], None
        if isinstance(stated, int) and stated != rows:
            problems.append(f"config.json says {stated:,} rows, the embeddings have {rows:,}")
        try:
            tokens = vocabulary(self.folder)
        except ModelError as error:
            problems.append(str(error))
        beyond = [token for token, number in (tokens or {}).items() if number >= rows]
        if beyond:
            count = f"{len(beyond):,} tokens beyond the {rows:,} rows"
            problems.append(f"the tokenizer has {count}: {listing(beyond, _NAMED)}")
        fine = f"{rows:,} rows" + (f", {len(tokens):,} tokens" if tokens else "")
        return [_check("vocabulary fits", problems, fine)]

    def names_check(self) -> list[Check]:
        """The tensors are those that the record lists."""
        title = "tensors are as recorded"
        if self.record_problem:
            return [Check(name=title, passed=None, detail=self.record_problem)]
        listed = self.provenance.get("tensors")
        if not isinstance(listed, dict) or self.missing or self.headers.damaged:
            return []
        lost, new = [n for n in listed if n not in self.entries], [n for n in self.entries if n not in listed]
        wrong = (("lost", lost), ("new", new))
        problems = [f"{len(names)} {what}: {listing(names, _NAMED)}" for what, names in wrong if names]
        return [_check(title, problems, f"{len(listed)} tensors")]

    def fit_check(self, *, verify: bool) -> list[Check]:
        """The tensors are those that the model of config.json takes. Without `verify` transformers is asked only where
        names and shapes are suspicious."""
        if not self.config or self.headers.damaged or self.headers.misplaced or not self.files_check().passed:
            return []
        if self.kind == "adapter":
            return self._adapter_check()
        if self.kind != "model":
            return []
        title, unlike = "weights fit config.json", suspicions(self.config, self.entries)
        if not verify and not unlike:
            return [_check(title, [], "names and shapes agree; --verify builds the model and compares all")]
        try:
            fit = fit_of(self.folder)
        except ModelError as error:
            return [_check(title, [str(error)])]
        if fit.unknown:
            seen = f"; what names and shapes say: {'; '.join(unlike[:_NAMED])}" if unlike else ""
            return [Check(name=title, passed=None, detail=f"cannot tell: {fit.unknown}{seen}")]
        return [_check(title, [fit.problem] if fit.problem else [], f"{len(self.entries)} tensors, as the model takes")]

    def _adapter_check(self) -> list[Check]:
        title = "modules are those of adapter_config.json"
        try:
            base = expanded(located(str(self.config.get("base_model_name_or_path") or "")))
        except ModelError as error:
            return [Check(name=title, passed=None, detail=f"not looked at: {error}")]
        if not (base / "config.json").is_file():
            return [Check(name=title, passed=None, detail=f"not looked at: its base, {base}, is no folder here")]
        try:
            problems = lacking(self.config, list(self.entries), CheckpointReader(base).entries)
        except ModelError as error:
            problems = [str(error)]
        return [_check(title, [listing(problems, _NAMED)] if problems else [], f"on {base}")]

    def architecture(self) -> str | None:
        """What the configuration calls it."""
        config = self.config
        if self.kind == "adapter":
            alpha, base = config.get("lora_alpha"), config.get("base_model_name_or_path")
            words = [
                str(config.get("peft_type") or "adapter"),
                f"r={config['r']}" if config.get("r") else "",
                f"alpha={alpha:g}" if isinstance(alpha, (int, float)) else "",
                f"of {base}" if base else "",
            ]
            return " ".join(filter(None, words))
        named = config.get("architectures")
        return str(named[0]) if isinstance(named, list) and named else config.get("model_type") or None


def _check(name: str, problems: Sequence[str], fine: str = "") -> Check:
    """A check that failed if there are problems; `fine` is its detail where there are none."""
    return Check(name=name, passed=not problems, detail="; ".join(problems) or fine)


def _stem(names: Sequence[str]) -> str:
    """What the names of the weight files begin with; an adapter's comes last, since a model may lie beside the adapter
    it was merged from."""
    return next(
        (s for s in ("model", "residual", "adapter_model") if any(n.startswith((f"{s}.", f"{s}-")) for n in names)),
        "model",
    )


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
        return None, [_check("values are finite", [str(error)])]
    finally:
        reader.close()
    names = [f"{name} ({count:,} of {entries[name].size:,})" for name, count in bad.items() if count]
    problems = [f"NaN or infinities in {len(names)} tensors: {listing(names, _NAMED)}"] if names else []
    checks = [_check("values are finite", problems, f"{len(jobs)} tensors")]
    content = {name: digests.tensor(name, entry.size) or "" for name, entry in entries.items()}
    fingerprint = fingerprint_of({name: (e.dtype, e.shape, content[name]) for name, e in entries.items()})
    listed = record.get("tensors")
    if isinstance(listed, dict):
        differ = [name for name, digest in listed.items() if name in content and content[name] != digest]
        problems = [f"{len(differ)} tensors are not as they were written: {listing(differ, _NAMED)}"] if differ else []
        if not differ and record.get("fingerprint") not in (None, fingerprint):
            problems = ["the tensors hold the recorded bytes under other names, dtypes or shapes"]
        checks.append(_check("content is as recorded", problems, f"fingerprint {fingerprint}"))
    return fingerprint, checks


def _manifest_check(folder: Path, *, verify: bool) -> list[Check]:
    """The files of a training checkpoint are as they were written; nothing where there is no manifest."""
    name = "files are as written"
    try:
        files = read_manifest(folder)
    except DataError as error:
        return [_check(name, [str(error)])]
    if files is None:
        return []
    if not verify:
        return [Check(name=name, passed=None, detail="not looked at; --verify reads all bytes")]
    return [_check(name, damage(folder, files), f"{len(files)} files of {MANIFEST}")]


def _nothing_here(folder: Path) -> str:
    inside = sorted({path.parent.name for stem in STEMS for path in folder.glob(f"*/{stem}*.safetensors")})
    if inside:
        listed = "\n".join(f"  {folder / name}" for name in inside[:10])
        return f"Expected a checkpoint in {folder}, found {len(inside)} in folders inside it. Choose one:\n{listed}"
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in _PICKLES)
    if pickles:
        return (
            f"{folder} holds no safetensors, only pickle files ({listing(pickles, _NAMED)}), which can run code when "
            f"loaded and are not read. Convert them with transformers' save_pretrained, in a place that you trust them "
            f"in."
        )
    return (
        f"Expected a checkpoint in {folder} (model.safetensors, adapter_model.safetensors or "
        f"residual.safetensors), found none."
    )


def _by_dtype(entries: Sequence[Entry]) -> tuple[DtypeShare, ...]:
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.dtype.name, []).append(entry)
    shares = [
        DtypeShare(dtype=n, tensors=len(es), parameters=sum(e.size for e in es), bytes=sum(e.nbytes for e in es))
        for n, es in groups.items()
    ]
    return tuple(sorted(shares, key=lambda s: (-s.bytes, s.dtype)))
