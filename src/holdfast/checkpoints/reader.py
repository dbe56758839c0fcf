"""Checkpoint folders as data: one safetensors file or a sharded set, read tensor by tensor, memory-mapped.

Nothing is loaded until a tensor is asked for, pickle files are refused, and truncated or mismatched shards are named.
"""

from __future__ import annotations

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import ModelError

if TYPE_CHECKING:
    import torch

_SINGLE = ("model.safetensors", "adapter_model.safetensors")
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "adapter_model.bin")


class CheckpointReader:
    """The tensors of one checkpoint folder by name.

    Args:
        folder: a folder with `model.safetensors`, `model.safetensors.index.json` + shards, or `adapter_model.safetensors`.

    Raises:
        ModelError: no such folder, no safetensors in it (pickle only), a shard missing or damaged.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._file_of: dict[str, Path] = {}
        self._open: dict[Path, Any] = {}
        for file in weight_files(self.folder):
            for name in self._handle(file).keys():  # noqa: SIM118  (a safetensors handle is no mapping)
                self._file_of[name] = file

    def names(self) -> list[str]:
        """Tensor names, sorted."""
        return sorted(self._file_of)

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor, in its stored dtype, on the CPU.

        Raises:
            KeyError: no tensor of that name.
        """
        return self._handle(self._file_of[name]).get_tensor(name)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape without reading the data."""
        return tuple(self._handle(self._file_of[name]).get_slice(name).get_shape())

    def _handle(self, file: Path) -> Any:
        if file not in self._open:
            from safetensors import SafetensorError, safe_open

            try:
                self._open[file] = safe_open(str(file), framework="pt")
            except (SafetensorError, OSError) as error:
                raise ModelError(
                    f"Expected a whole safetensors file at {file}, but it cannot be read: {error}. Copy or download it again."
                ) from error
        return self._open[file]


def weight_files(folder: str | os.PathLike[str]) -> list[Path]:
    """The safetensors files of a checkpoint folder, in index order.

    Raises:
        ModelError: see `CheckpointReader`.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ModelError(f"Expected a checkpoint folder at {folder}, found none.")
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        missing = [n for n in names if not (folder / n).is_file()]
        if missing:
            raise ModelError(f"{folder} is incomplete: its index lists {len(names)} shards, {len(missing)} missing: {', '.join(missing[:5])}.")
        return [folder / n for n in names]
    for name in _SINGLE:
        if (folder / name).is_file():
            return [folder / name]
    pickles = [name for name in _PICKLES if (folder / name).is_file()]
    if pickles:
        raise ModelError(
            f"{folder} holds only pickled weights ({pickles[0]}), which can run code when loaded and are refused. Convert them once with: "
            f"python -c \"from transformers import AutoModelForCausalLM as M; M.from_pretrained('{folder}').save_pretrained('{folder}-safetensors')\""
        )
    raise ModelError(f"Expected model.safetensors (or a sharded set with its index) in {folder}, found neither.")


def checkpoint_hash(folder: str | os.PathLike[str]) -> str:
    """SHA-256 over the names, sizes and contents of the weight files (hex). Reads the files once, several at a time."""
    files = weight_files(folder)

    def digest(file: Path) -> str:
        with open(file, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()

    with ThreadPoolExecutor(max_workers=min(8, len(files))) as pool:
        parts = list(pool.map(digest, files))
    return hashlib.sha256("".join(f"{f.name} {f.stat().st_size} {d}\n" for f, d in zip(files, parts, strict=True)).encode()).hexdigest()
