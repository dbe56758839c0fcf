"""What a checkpoint folder holds, and whether it is sound: a model, an adapter or a residual.

Without `verify` only headers and small JSON files are read, which takes milliseconds whatever the model's size. With it
every byte is: NaN and infinities are counted, and the content is compared with the fingerprints in provenance.json,
tensor by tensor.

A folder with damage is described as far as it can be read; what is wrong is in `checks`. The weights are never loaded
as a model and no code is run.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.checkpoints.distance import layer_of
from holdfast.checkpoints.locate import local_folder
from holdfast.checkpoints.provenance import FILE, Digests, fingerprint_of
from holdfast.checkpoints.reader import STEMS, CheckpointReader, index_file, read_header
from holdfast.checkpoints.sources import Entry, read_config
from holdfast.errors import DataError, ModelError

if TYPE_CHECKING:
    from holdfast.checkpoints.engine import Job, Scratch

KINDS = ("embed", "attention", "mlp", "norm", "head", "other")
"""What `Inspection.parameters_by_kind` counts by."""
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_ATTENTION = re.compile(r"attn|attention|\.mixer\.|linear_attn")
_MLP = re.compile(r"mlp|ffn|feed_forward|expert|moe|\.fc[12]\b|dense_h_to_4h|dense_4h_to_h")
_NORM = re.compile(r"norm|ln_|layernorm")
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
class FileShare:
    """One weight file."""

    name: str
    tensors: int
    bytes: int
    """Of the file, header included."""


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
    parameters_by_kind: dict[str, int]
    """By `KINDS`; those of layers by what they do in the layer."""
    layers: int
    bytes: int
    """Of tensors."""
    dtypes: tuple[DtypeShare, ...]
    """Most bytes first."""
    files: tuple[FileShare, ...]
    vocabulary: dict[str, int]
    """"rows" of the embeddings, "config" (vocab_size), "tokens" of the tokenizer; what cannot be told is not there."""
    tied_head: bool | None
    """Whether the head is the embeddings; None: no model, or it does not say."""
    provenance: dict[str, Any]
    """provenance.json without its list of tensors; empty: there is none."""
    run: dict[str, Any]
    """What run.json says of the holdfast run that wrote the folder; empty: there is none."""
    fingerprint: str | None
    """Of the content as read; None without `verify`."""
    checks: tuple[Check, ...]
    notes: tuple[str, ...]
    """What is worth knowing and no fault."""
    verified: bool
    seconds: float

    @property
    def sound(self) -> bool:
        """No check failed."""
        return all(check.passed is not False for check in self.checks)


def inspect(name: str | os.PathLike[str], *, verify: bool = False, workers: int | None = None) -> Inspection:
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
    checks = [look.files_check(), look.headers_check(), look.index_check(), *look.configuration_checks()]
    record = look.provenance()
    checks += look.names_check(record)
    reader = None
    try:
        reader = CheckpointReader(folder)
    except ModelError as error:
        if all(check.passed for check in checks):
            checks.append(Check(name="it can be opened", passed=False, detail=str(error)))
    fingerprint = None
    if verify and reader is not None:
        fingerprint, found = _read_all(reader, record, workers)
        checks += found
    else:
        unread = "not looked at: the folder is damaged" if verify else "not looked at; --verify reads all bytes"
        checks.append(Check(name="values are finite", passed=None, detail=unread))
        if record.get("tensors"):
            checks.append(Check(name="content is as recorded", passed=None, detail=unread))
    entries = look.entries.values()
    return Inspection(
        folder=str(name),
        kind=look.kind,
        architecture=look.architecture(),
        tensors=len(entries),
        parameters=sum(e.size for e in entries),
        parameters_by_kind={k: n for k in KINDS if (n := sum(e.size for e in entries if kind_of(e.name) == k))},
        layers=len({layer for e in entries if (layer := layer_of(e.name)).isdigit()}),
        bytes=sum(e.nbytes for e in entries),
        dtypes=_by_dtype(list(entries)),
        files=tuple(
            FileShare(name=f.name, tensors=sum(e.file == f for e in entries), bytes=f.stat().st_size)
            for f in look.files
        ),
        vocabulary=look.vocabulary,
        tied_head=look.tied_head(),
        provenance={key: value for key, value in record.items() if key != "tensors"},
        run=look.run(),
        fingerprint=fingerprint,
        checks=tuple(checks),
        notes=tuple(look.notes()),
        verified=verify,
        seconds=time.perf_counter() - began,
    )


def kind_of(name: str) -> str:
    """What a tensor is part of, one of `KINDS`, from its name."""
    layer, lowered = layer_of(name), name.lower()
    if not layer.isdigit():
        return layer
    inner = lowered.split(f".{layer}.", 1)[1]
    if _NORM.search((["", *inner.split(".")])[-2]):  # the module that holds the tensor
        return "norm"
    return "attention" if _ATTENTION.search(f".{inner}") else "mlp" if _MLP.search(f".{inner}") else "other"


class _Look:
    """A folder's headers and small files, read as far as they can be."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        present = sorted(path.name for path in folder.glob("*.safetensors"))
        index = index_file(folder)
        if not present and index is None:
            raise ModelError(_nothing_here(folder))
        self.kind = self._kind(present, index)
        self.index_problem, self.listed, self.index_size = _index(index) if index is not None else ("", {}, None)
        single = f"{self.kind}.safetensors"
        names = sorted(set(self.listed.values())) if self.listed else [single] if single in present else present
        self.missing = [name for name in names if name not in present]
        self.files = [folder / name for name in names if name in present]
        self.stray = [name for name in present if name not in names]
        self.entries: dict[str, Entry] = {}
        self.damaged: dict[str, str] = {}
        """File: what is wrong with its header."""
        self.twice: list[str] = []
        for file in self.files:
            try:
                entries = read_header(file)[1]
            except ModelError as error:
                self.damaged[file.name] = str(error)
                continue
            for entry in entries:
                if entry.name in self.entries:
                    self.twice.append(entry.name)
                if entry.name not in self.entries or self.listed.get(entry.name) == file.name:
                    self.entries[entry.name] = entry
        readable = {n: file for n, file in self.listed.items() if file not in (*self.missing, *self.damaged)}
        self.misplaced = [
            n for n, file in readable.items() if n not in self.entries or self.entries[n].file.name != file
        ]
        self.vocabulary: dict[str, int] = {}
        self.config: dict[str, Any] = {}
        self.kind = {"model": "model", "adapter_model": "adapter", "residual": "residual"}[self.kind]

    def _kind(self, present: Sequence[str], index: Path | None) -> str:
        """The stem that the folder's files begin with; an adapter's comes last, since a model may lie beside the
        adapter it was merged from."""
        names = [*present, *([index.name] if index is not None else [])]
        for stem in ("model", "residual", "adapter_model"):
            if any(name.startswith((f"{stem}.", f"{stem}-")) for name in names):
                return stem
        return "model"

    def files_check(self) -> Check:
        """All shards that the index lists are there; without an index there is one file."""
        title = "files are complete"
        if self.index_problem:
            return Check(name=title, passed=False, detail=self.index_problem)
        if self.missing:
            total = len(self.missing) + len(self.files)
            return Check(
                name=title,
                passed=False,
                detail=f"{len(self.missing)} of {total} shards are missing: {_listed(self.missing)}",
            )
        if not self.listed and len(self.files) > 1:
            return Check(
                name=title, passed=False, detail=f"{len(self.files)} shards without the index that says what is in them"
            )
        return Check(name=title, passed=True, detail=f"{len(self.files)} file{'s' if len(self.files) > 1 else ''}")

    def headers_check(self) -> Check:
        """Every header fits its file."""
        title = "headers are sound"
        if self.damaged:
            return Check(name=title, passed=False, detail="\n".join(self.damaged.values()))
        return Check(name=title, passed=True, detail=f"{len(self.entries)} tensors, no gaps, no bytes missing")

    def index_check(self) -> Check:
        """Every tensor is where the index says, once, and none is left out."""
        title = "index fits the shards"
        if not self.listed and not self.index_problem:
            repeated = f"{len(self.twice)} tensors are in more than one file: {_listed(self.twice)}"
            return Check(
                name=title, passed=not self.twice, detail=repeated if self.twice else "no index, and none needed"
            )
        problems = []
        if self.misplaced:
            problems.append(
                f"{len(self.misplaced)} of {len(self.listed)} tensors are not where the index says: "
                f"{_listed(self.misplaced)}"
            )
        unlisted = [n for n in self.entries if n not in self.listed] if self.listed else []
        if unlisted:
            problems.append(f"{len(unlisted)} tensors are in the shards and not in the index: {_listed(unlisted)}")
        if self.index_problem:
            problems.append(self.index_problem)
        return Check(
            name=title,
            passed=not problems,
            detail="; ".join(problems) or f"{len(self.listed)} tensors in {len(self.files)} shards",
        )

    def configuration_checks(self) -> list[Check]:
        """config.json can be read, and says of vocabulary and head what the tensors say."""
        try:
            self.config = read_config(self.folder)
        except ModelError as error:
            return [Check(name="configuration can be read", passed=False, detail=str(error))]
        if self.kind == "adapter":
            return [self._adapter_check()]
        found = [Check(name="configuration can be read", passed=True, detail="config.json")] if self.config else []
        if self.kind == "model" and not self.config:
            found.append(
                Check(
                    name="configuration can be read",
                    passed=False,
                    detail="there is no config.json: nothing can load this as a model",
                )
            )
        return [*found, *self._vocabulary_check(), *self._head_check()]

    def _adapter_check(self) -> Check:
        path, title = self.folder / "adapter_config.json", "configuration can be read"
        try:
            self.config = _json_of(path)
        except DataError as error:
            return Check(name=title, passed=False, detail=str(error))
        return Check(name=title, passed=True, detail="adapter_config.json")

    def _vocabulary_check(self) -> list[Check]:
        from holdfast.checkpoints.companions import config_value
        from holdfast.checkpoints.vocabulary import vocabulary, vocabulary_tensors

        names = vocabulary_tensors(self.config, self.entries)
        rows = sorted({self.entries[n].shape[0] for n in names})
        said = config_value(self.config, "vocab_size")
        problems = []
        if rows:
            self.vocabulary["rows"] = rows[-1]
        if isinstance(said, int):
            self.vocabulary["config"] = said
            if rows and said not in rows:
                problems.append(f"config.json says {said:,} rows, the embeddings have {rows[-1]:,}")
        if len(rows) > 1:
            problems.append(
                f"embeddings and head differ: {', '.join(f'{self.entries[n].shape[0]:,} rows in {n}' for n in names)}"
            )
        try:
            tokens = vocabulary(self.folder)
        except ModelError as error:
            tokens = None
            problems.append(str(error))
        if tokens:
            self.vocabulary["tokens"] = len(tokens)
            beyond = [token for token, number in tokens.items() if rows and number >= rows[0]]
            if beyond:
                problems.append(
                    f"the tokenizer has {len(beyond):,} tokens beyond the {rows[0]:,} rows: {_listed(beyond)}"
                )
        if not self.vocabulary and not problems:
            return []
        shown = ", ".join(
            f"{n:,} {what}"
            for what, n in (("rows", self.vocabulary.get("rows")), ("tokens", self.vocabulary.get("tokens")))
            if n
        )
        return [Check(name="vocabulary fits", passed=not problems, detail="; ".join(problems) or shown)]

    def _head_check(self) -> list[Check]:
        tied, head = self._says_tied(), self._head()
        if self.kind != "model" or tied is None or not self.entries:
            return []
        if (
            not tied
            and head is None
            and "embed" in {kind_of(n) for n in self.entries}
            and "CausalLM" in str(self.architecture())
        ):
            return [
                Check(
                    name="head is there",
                    passed=False,
                    detail="config.json says that the head is not tied, and none is stored",
                )
            ]
        detail = "tied to the embeddings" if tied else str(head)
        return [Check(name="head is there", passed=True, detail=detail)] if tied or head is not None else []

    def names_check(self, record: Mapping[str, Any]) -> list[Check]:
        """The tensors are those that the record lists."""
        listed = record.get("tensors")
        if not isinstance(listed, dict) or self.missing or self.damaged:
            return []
        lost, new = [n for n in listed if n not in self.entries], [n for n in self.entries if n not in listed]
        problems = [
            f"{len(names)} {title}: {_listed(names)}" for title, names in (("lost", lost), ("new", new)) if names
        ]
        detail = "; ".join(problems) or f"{len(listed)} tensors"
        return [Check(name="tensors are as recorded", passed=not problems, detail=detail)]

    def architecture(self) -> str | None:
        """What the configuration calls it."""
        if self.kind == "adapter":
            said = [str(self.config.get("peft_type") or "adapter")]
            said += [f"r={self.config['r']}"] if self.config.get("r") else []
            said += (
                [f"alpha={self.config['lora_alpha']:g}"]
                if isinstance(self.config.get("lora_alpha"), (int, float))
                else []
            )
            base = self.config.get("base_model_name_or_path")
            return " ".join(said) + (f" of {base}" if base else "")
        named = self.config.get("architectures")
        if isinstance(named, list) and named:
            return str(named[0])
        return str(self.config["model_type"]) if self.config.get("model_type") else None

    def tied_head(self) -> bool | None:
        """Whether the head is the embeddings."""
        tied = self._says_tied()
        if self.kind != "model":
            return None
        return False if tied is None and self._head() is not None else tied

    def provenance(self) -> dict[str, Any]:
        """provenance.json; empty where there is none or it cannot be read, which `notes` then says."""
        try:
            return _json_of(self.folder / FILE) if (self.folder / FILE).is_file() else {}
        except DataError:
            return {}

    def run(self) -> dict[str, Any]:
        """What a run record says that matters here."""
        path = self.folder / "run.json"
        try:
            found = _json_of(path) if path.is_file() else {}
        except DataError:
            return {}
        kept = ("name", "status", "stage", "retention", "seed", "created", "finished", "versions")
        result = {key: found[key] for key in kept if key in found}
        for key in ("model", "data"):
            if isinstance(found.get(key), dict):
                result[key] = {k: v for k, v in found[key].items() if k in ("name", "hash")}
        if isinstance(found.get("training"), dict):
            result["training"] = {k: v for k, v in found["training"].items() if k in ("steps", "tokens", "seconds")}
        return result

    def notes(self) -> list[str]:
        """Stray files, a head that is stored and not used, an unreadable record, leftovers of an interrupted writer."""
        found = []
        if self.stray:
            found.append(f"not part of the checkpoint, and not looked at: {_listed(self.stray)}")
        pickles = sorted(p.name for p in self.folder.iterdir() if p.suffix in _PICKLES)
        if pickles:
            found.append(
                f"pickle files, which can run code when loaded, lie beside the weights: {_listed(pickles)}. holdfast "
                f"never reads them as weights."
            )
        head = self._head()
        if self._says_tied() and head is not None:
            found.append(f"{head} is stored although the head is tied to the embeddings: loading ignores it")
        if (
            self.index_size is not None
            and not self.damaged
            and not self.missing
            and self.index_size != sum(e.nbytes for e in self.entries.values())
        ):
            found.append(
                f"the index gives {self.index_size:,} bytes in total, the tensors take "
                f"{sum(e.nbytes for e in self.entries.values()):,}"
            )
        for name in (FILE, "run.json"):
            if (self.folder / name).is_file():
                try:
                    _json_of(self.folder / name)
                except DataError as error:
                    found.append(str(error))
        folder = self.folder.absolute()
        left = [
            path.name
            for path in folder.parent.iterdir()
            if path.name.startswith(f".{folder.name}.") and path.name.endswith(".partial")
        ]
        if left:
            found.append(
                f"an interrupted command left {_listed(left)} beside it; the same command goes on from there, or "
                f"remove it"
            )
        return found

    def _says_tied(self) -> bool | None:
        for holder in (self.config, self.config.get("text_config")):
            if isinstance(holder, dict) and isinstance(holder.get("tie_word_embeddings"), bool):
                return bool(holder["tie_word_embeddings"])
        return None

    def _head(self) -> str | None:
        return next((n for n in self.entries if layer_of(n) == "head" and n.endswith(".weight")), None)


def _read_all(
    reader: CheckpointReader, record: Mapping[str, Any], workers: int | None
) -> tuple[str | None, list[Check]]:
    """Reads every tensor once: counts what is not finite, and compares with the record."""
    from holdfast.checkpoints.dtypes import count_nonfinite
    from holdfast.checkpoints.engine import Job, map_blocks
    from holdfast.support.progress import progress

    entries = reader.entries
    jobs = [Job(e.name, e.dtype, e.shape, e.size, e.file.name, (True,)) for e in entries.values()]
    digests, bad = Digests(), dict.fromkeys(entries, 0)

    def read(job: Job, start: int, stop: int, scratch: Scratch) -> int:
        operand = reader.read(job.name, start, stop, scratch.buffers[0])
        digests.add(job.name, start, operand.raw)
        return count_nonfinite(operand.raw, operand.dtype) if job.dtype.kind == "float" else 0

    def add(job: Job, count: int) -> None:
        bad[job.name] += count

    try:
        with progress(
            f"Reading {reader.folder.name}", total=sum(e.nbytes for e in entries.values()), unit="bytes"
        ) as advance:
            map_blocks(jobs, read, sources=1, workers=workers, reduce=add, advance=advance)
    except ModelError as error:
        return None, [Check(name="values are finite", passed=False, detail=str(error))]
    finally:
        reader.close()
    named = [f"{name} ({count:,} of {entries[name].size:,})" for name, count in bad.items() if count]
    problem = f"NaN or infinities in {len(named)} tensors: {_listed(named)}"
    checks = [Check(name="values are finite", passed=not named, detail=problem if named else f"{len(jobs)} tensors")]
    found = {name: digests.tensor(name, entry.size) or "" for name, entry in entries.items()}
    fingerprint = fingerprint_of({name: (e.dtype, e.shape, found[name]) for name, e in entries.items()})
    listed = record.get("tensors")
    if isinstance(listed, dict):
        differ = [name for name, digest in listed.items() if name in found and found[name] != digest]
        problem = f"{len(differ)} tensors are not as they were written: {_listed(differ)}"
        if not differ and record.get("fingerprint") not in (None, fingerprint):
            problem = "the tensors hold the recorded bytes under other names, dtypes or shapes"
        passed = not differ and record.get("fingerprint") in (None, fingerprint)
        checks.append(
            Check(
                name="content is as recorded", passed=passed, detail=f"fingerprint {fingerprint}" if passed else problem
            )
        )
    return fingerprint, checks


def _index(path: Path) -> tuple[str, dict[str, str], int | None]:
    """What is wrong with an index, its tensors' files, and the bytes it gives in total."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        listed = found["weight_map"]
        if (
            not isinstance(listed, dict)
            or not listed
            or not all(isinstance(v, str) and v == os.path.basename(v) for v in listed.values())
        ):
            raise ValueError("no file names in weight_map")
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{path.name} cannot be read ({error})", {}, None
    total = (found.get("metadata") or {}).get("total_size") if isinstance(found.get("metadata"), dict) else None
    return "", listed, int(total) if isinstance(total, (int, float)) else None


def _json_of(path: Path) -> dict[str, Any]:
    from holdfast.support.files import read_json

    found = read_json(path)
    if not isinstance(found, dict):
        raise DataError(f"Expected a JSON object in {path}, got {type(found).__name__}.")
    return found


def _nothing_here(folder: Path) -> str:
    inside = sorted({path.parent.name for stem in STEMS for path in folder.glob(f"*/{stem}*.safetensors")})
    if inside:
        listed = "\n".join(f"  {folder / name}" for name in inside[:10])
        return f"Expected a checkpoint in {folder}, found {len(inside)} in folders inside it. Choose one:\n{listed}"
    pickles = sorted(p.name for p in folder.iterdir() if p.suffix in _PICKLES)
    if pickles:
        return (
            f"{folder} holds no safetensors, only pickle files ({_listed(pickles)}), which can run code when loaded "
            f"and are not read. Convert them "
            "with transformers' save_pretrained, in a place that you trust them in."
        )
    return (
        f"Expected a checkpoint in {folder} (model.safetensors, adapter_model.safetensors or "
        f"residual.safetensors), found none."
    )


def _by_dtype(entries: Sequence[Entry]) -> tuple[DtypeShare, ...]:
    shares = []
    for name in {e.dtype.name for e in entries}:
        mine = [e for e in entries if e.dtype.name == name]
        shares.append(
            DtypeShare(
                dtype=name, tensors=len(mine), parameters=sum(e.size for e in mine), bytes=sum(e.nbytes for e in mine)
            )
        )
    return tuple(sorted(shares, key=lambda s: (-s.bytes, s.dtype)))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
