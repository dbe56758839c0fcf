"""Checkpoint folders as data: one safetensors file or a sharded set.

Opening a folder reads headers only, and checks them against the files: truncated, mismatched and
missing shards are named before any work begins. Tensors are then read in stretches by position
(`read`, what the engine uses: no page is mapped, so memory stays flat and a file that shrinks
meanwhile is an error instead of a crash), or memory-mapped (`mapped`, and `tensor` for PyTorch).
Pickle files are refused.

Four kinds of folder are known: models (`model.safetensors`), adapters
(`adapter_model.safetensors`), residuals (`residual.safetensors`) and diagonals of the Fisher
information (`fisher.safetensors`); models and residuals may be sharded, with an index.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.checkpoints.sources import Entry, listing, read_object
from holdfast.errors import ModelError
from holdfast.support.inputs import file_hash

if TYPE_CHECKING:
    import numpy as np
    import torch

    from holdfast.checkpoints.element_types import Operand

STEMS = ("model", "adapter_model", "residual", "fisher")
"""Names that weight files begin with: `<stem>.safetensors`, or `<stem>-00001-of-00003.safetensors`
with `<stem>.safetensors.index.json`."""
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "adapter_model.bin")
_SHARD = re.compile(r".+-\d+-of-(\d+)\.safetensors")
_LARGEST_HEADER = 100_000_000
"""Bytes; the limit of the safetensors format."""


class CheckpointReader:
    """Reads the tensors of one checkpoint folder by name; a `Source`. Several threads may read at
    once.

    Args:
        folder: a folder with `model.safetensors`, or `model.safetensors.index.json` and shards, or
            the same files of an adapter, a residual or a Fisher diagonal.

    Raises:
        ModelError: the folder does not exist or has no safetensors file (pickle only), a shard is
            missing or damaged, or the index does not fit the shards.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.label = str(folder)
        self.files, listed = _located(self.folder)
        self._stats = {file: _stat(file) for file in self.files}
        self._descriptors: dict[Path, int] = {}
        self._torch: dict[Path, Any] = {}
        self._lock = threading.Lock()
        self.metadata, entries = _read_headers(self.folder, self.files, listed)
        """The files' free text (`{"format": "pt"}`), of all files together."""
        self.entries: Mapping[str, Entry] = entries

    def names(self) -> list[str]:
        """Tensor names, sorted."""
        return sorted(self.entries)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, without reading its data."""
        return self.entries[name].shape

    def read(self, name: str, start: int, stop: int, buffer: np.ndarray) -> Operand:
        """See `Source.read`."""
        from holdfast.checkpoints.element_types import Operand

        entry = self.entries[name]
        itemsize = entry.dtype.itemsize
        length = (stop - start) * itemsize
        target = buffer[:length]
        view, position = target.data, entry.offset + start * itemsize
        descriptor = self._descriptor(entry.file)
        while view:
            try:
                got = os.preadv(descriptor, [view], position)
            except OSError as error:
                raise ModelError(
                    f"{entry.file} cannot be read at {name}: {error.strerror or error}."
                ) from error
            if got == 0:
                raise ModelError(
                    f"{entry.file} ends within {name}, because it became shorter after it was "
                    "opened. Copy or download it again."
                )
            view, position = view[got:], position + got
        return Operand(target.view(entry.dtype.storage), entry.dtype)

    def place(self, name: str, element: int) -> tuple[int, int]:
        """The position of one element of a flattened tensor: an open file descriptor and the byte
        offset.

        Raises:
            ModelError: the file cannot be opened.
        """
        entry = self.entries[name]
        return self._descriptor(entry.file), entry.offset + element * entry.dtype.itemsize

    def mapped(self, name: str) -> np.ndarray:
        """The raw elements of the whole tensor as a read-only, memory-mapped 1-D array, in the
        storage type of its dtype (bfloat16 as uint16)."""
        import numpy as np

        entry = self.entries[name]
        if entry.size == 0:
            return np.empty(0, entry.dtype.storage)
        return np.memmap(
            entry.file, entry.dtype.storage, mode="r", offset=entry.offset, shape=(entry.size,)
        )

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor for PyTorch, memory-mapped, on the CPU, in its stored dtype.

        Raises:
            KeyError: there is no tensor of that name.
        """
        from safetensors import safe_open

        file = self.entries[name].file
        if file not in self._torch:
            self._torch[file] = safe_open(str(file), framework="pt")
        return self._torch[file].get_tensor(name)

    def check_unchanged(self) -> None:
        """Checks that the files have not changed since the folder was opened.

        Raises:
            ModelError: a file has been written, replaced or removed since then.
        """
        for file, before in self._stats.items():
            if _stat(file) != before:
                raise ModelError(
                    f"{file} was changed after it was opened, so the data read may mix two "
                    "versions. Start again."
                )

    def close(self) -> None:
        """Closes the files. The next read opens them again."""
        with self._lock:
            for descriptor in self._descriptors.values():
                os.close(descriptor)
            self._descriptors = {}
            self._torch = {}

    def __enter__(self) -> CheckpointReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    def _descriptor(self, file: Path) -> int:
        descriptor = self._descriptors.get(file)
        if descriptor is not None:
            return descriptor
        with self._lock:
            if file not in self._descriptors:
                try:
                    self._descriptors[file] = os.open(file, os.O_RDONLY)
                except OSError as error:
                    raise ModelError(
                        f"{file} cannot be opened: {error.strerror or error}."
                    ) from error
            return self._descriptors[file]


def _stat(file: Path) -> tuple[int, int, int] | None:
    """What tells a file from a later version of it; None where it is gone."""
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns, stat.st_ino


def read_header(file: Path) -> tuple[dict[str, str], list[Entry]]:
    """The header of one safetensors file, checked against the file: its free text and its tensors
    in file order.

    Raises:
        ModelError: the file is truncated, its header is no safetensors header, or a tensor's dtype,
            shape and place contradict each other.
    """
    content, length = _header_of(file)
    try:
        header = json.loads(content)
        if not isinstance(header, dict):
            raise ValueError(f"expected a JSON object, got {type(header).__name__}")
        metadata = header.pop("__metadata__", None)
        metadata = {} if metadata is None else metadata
        if not isinstance(metadata, dict) or not all(
            isinstance(value, str) for value in metadata.values()
        ):
            raise ValueError(
                f"expected __metadata__ to be a JSON object of texts, got {str(metadata)[:60]}"
            )
    except (ValueError, RecursionError) as error:
        raise _damaged(file, f"its header cannot be read ({error})") from None
    first = 8 + len(content)
    entries = [_entry(file, name, described, first) for name, described in header.items()]
    entries.sort(key=lambda entry: (entry.offset, entry.nbytes))
    position = first
    for entry in entries:
        if entry.offset != position:
            raise _damaged(
                file,
                f"{entry.name} begins at byte {entry.offset:,} where byte {position:,} was "
                "expected",
            )
        position += entry.nbytes
    if position != length:
        cut = [entry.name for entry in entries if entry.offset + entry.nbytes > length]
        where = f"; cut off: {listing(cut)}" if cut else ""
        sizes = f"its tensors take {position:,} bytes, but the file has {length:,}"
        raise _damaged(file, f"it cannot be read: {sizes}{where}")
    return metadata, entries


def _damaged(file: Path, reason: str) -> ModelError:
    return ModelError(
        f"Expected a whole safetensors file at {file}, but {reason}. Copy or download it again."
    )


def _header_of(file: Path) -> tuple[bytes, int]:
    """The bytes of a file's header, and how many the whole file has."""
    try:
        length = file.stat().st_size
        with open(file, "rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            if length >= 8 and size <= min(length - 8, _LARGEST_HEADER):
                return stream.read(size), length
    except OSError as error:
        raise _damaged(file, f"it cannot be read: {error.strerror or error}") from error
    sizes = f"its header should take {size:,} bytes, but the whole file has {length:,}"
    raise _damaged(file, f"it cannot be read: {sizes}")


def _entry(file: Path, name: str, described: Any, first: int) -> Entry:
    """What a header says of one tensor; `first` is the byte at which the tensors begin."""
    from holdfast.checkpoints.element_types import DTYPES

    try:
        kind, shape, (begin, end) = (
            described["dtype"],
            tuple(described["shape"]),
            described["data_offsets"],
        )
        if not isinstance(kind, str) or not all(
            type(number) is int for number in (*shape, begin, end)
        ):
            raise ValueError
    except (TypeError, KeyError, ValueError):
        raise _damaged(
            file, f"its header has an invalid entry for {name}: {str(described)[:100]}"
        ) from None
    if kind not in DTYPES:
        raise ModelError(
            f"{file}: {name} has dtype {kind}, which is not supported. Known: {', '.join(DTYPES)}."
        )
    entry = Entry(name, DTYPES[kind], shape, file, first + begin)
    if min(shape, default=0) < 0 or begin < 0 or entry.nbytes != end - begin:
        needed = f"needs {entry.nbytes:,} bytes, but the header gives {end - begin:,}"
        raise _damaged(file, f"{name} ({kind} {list(shape)}) {needed}")
    return entry


def _read_headers(
    folder: Path, files: Sequence[Path], listed: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, Entry]]:
    """The free text and the tensors of all weight files of a folder.

    Args:
        folder: for messages.
        files: the safetensors files, in order.
        listed: tensor name: file name, of the index; empty where there is none.

    Raises:
        ModelError: a header is damaged, or the index does not fit the files.
    """
    text: dict[str, str] = {}
    tensors: dict[str, Entry] = {}
    for file in files:
        metadata, entries = read_header(file)
        text.update(metadata)
        for entry in entries:
            other = tensors.get(entry.name)
            if other is not None and entry.name not in listed:
                raise ModelError(
                    f"{folder}: {entry.name} is in {other.file.name} and in {file.name}. Expected "
                    "it once."
                )
            if other is None or listed.get(entry.name) == file.name:
                tensors[entry.name] = entry
    absent = []
    for name, listed_file in listed.items():
        if name not in tensors or tensors[name].file.name != listed_file:
            absent.append(f"{name} (in {listed_file})")
    if absent:
        raise ModelError(
            f"{folder}: its index does not fit its shards. {len(absent)} of {len(listed)} tensors "
            f"are not in the shard that the index names: {listing(absent)}. Copy or download the "
            "folder again."
        )
    return text, tensors


def weight_files(folder: str | os.PathLike[str]) -> list[Path]:
    """The safetensors files of a checkpoint folder, in index order.

    Raises:
        ModelError: see `CheckpointReader`.
    """
    return _located(Path(folder))[0]


def _located(folder: Path) -> tuple[list[Path], dict[str, str]]:
    """A folder's weight files, and the file of each tensor where there is an index."""
    if not folder.is_dir():
        raise ModelError(f"Expected a checkpoint folder at {folder}, found none.")
    index = index_file(folder)
    if index is not None:
        listed = read_index(index)
        names = sorted(set(listed.values()))
        missing = [n for n in names if not (folder / n).is_file()]
        if missing:
            raise ModelError(
                f"{folder} is incomplete: its index lists {len(names)} shards, {len(missing)} "
                f"missing: {listing(missing)}."
            )
        _refuse_unlisted(index, names)
        return [folder / n for n in names], listed
    for stem in STEMS:
        if (folder / f"{stem}.safetensors").is_file():
            return [folder / f"{stem}.safetensors"], {}
    shards = sorted(p.name for p in folder.glob("*.safetensors") if _SHARD.fullmatch(p.name))
    if shards:
        stem = shards[0].rsplit("-", 3)[0]
        raise ModelError(
            f"{folder} holds {len(shards)} shards ({shards[0]} ...) but no "
            f"{stem}.safetensors.index.json, which lists their tensors. Copy or download it too."
        )
    pickles = [name for name in _PICKLES if (folder / name).is_file()]
    if pickles:
        raise only_pickles(folder, pickles[0], "transformers import AutoModelForCausalLM")
    raise ModelError(
        f"Expected model.safetensors (or a sharded set with its index) in {folder}, found neither."
    )


def only_pickles(folder: Path, file: str, loader: str) -> ModelError:
    """Refuses a folder with nothing but pickled weights; `loader` is the import that can convert
    them."""
    return ModelError(
        f"{folder} holds only pickled weights ({file}), which can run code when loaded and are "
        "refused. Convert them "
        f'once with: python -c "from {loader} as M; '
        f"M.from_pretrained('{folder}').save_pretrained('{folder}-safetensors')\""
    )


def _refuse_unlisted(index: Path, listed: list[str]) -> None:
    """Refuses a folder with weight files beside those of its index: one of the two is of another
    version, or the index is not whole."""
    folder, stem = index.parent, index.name.removesuffix(".safetensors.index.json")
    names = {f"{stem}.safetensors"}
    for total in {match[1] for match in map(_SHARD.fullmatch, listed) if match}:
        names |= {path.name for path in folder.glob(f"{stem}-*-of-{total}.safetensors")}
    unlisted = sorted(name for name in names - set(listed) if (folder / name).is_file())
    if unlisted:
        raise ModelError(
            f"{folder} has {listing(unlisted)}, but {index.name} does not list them. The folder "
            "mixes two saves, or the index is incomplete. Remove the files that do not belong "
            "there, or copy the folder again."
        )


def index_file(folder: Path) -> Path | None:
    """The index of a sharded checkpoint, or None."""
    for stem in STEMS:
        index = folder / f"{stem}.safetensors.index.json"
        if index.is_file():
            return index
    return None


def read_index(index: Path) -> dict[str, str]:
    """The file of each tensor, of an index of shards.

    Raises:
        ModelError: it cannot be read, or names no files.
    """
    listed = read_object(index, "an index of shards").get("weight_map")
    names = listed.values() if isinstance(listed, dict) else ()
    if not names or not all(isinstance(v, str) and v == os.path.basename(v) for v in names):
        raise ModelError(
            f"Expected an index of shards in {index}, but it cannot be read (no file names in "
            "weight_map). Copy or download it again."
        )
    return dict(listed or {})


def checkpoint_hash(folder: str | os.PathLike[str]) -> str:
    """SHA-256 over the names, sizes and contents of the weight files (hex). Reads each file once a
    process while it is the same, several at a time."""
    files = weight_files(folder)
    with ThreadPoolExecutor(max_workers=min(8, len(files))) as pool:
        digests = list(pool.map(file_hash, files))
    lines = []
    for file, digest in zip(files, digests, strict=True):
        lines.append(f"{file.name} {file.stat().st_size} {digest}\n")
    return hashlib.sha256("".join(lines).encode()).hexdigest()
