"""From the GGUF file of a packaged model, the format of llama.cpp, to a checkpoint folder that every command takes.

transformers reads the file; quantised weights are dequantised, which gives back what the file holds and not what the
model had before it was quantised, so the folder says of itself how many bits its weights had.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.checkpoints import manifest
from holdfast.checkpoints.provenance import FILE, Digests, content_fingerprint, versions
from holdfast.checkpoints.reader import CheckpointReader
from holdfast.checkpoints.writer import fsync_path
from holdfast.errors import ModelError, RunFolderError, StorageError
from holdfast.models import check_model, from_pretrained, load_tokenizer
from holdfast.support.environment import now, quiet_libraries, quiet_transformers
from holdfast.support.files import write_json
from holdfast.support.leftovers import NewFolder, scratch_folder
from holdfast.support.resources import is_disk_full

FLOATS = ("F32", "F16", "BF16", "F64")
"""Types of a GGUF file that are numbers, not blocks of quantised ones."""
DIGITS_ALONE = "smollm"
"""The way of splitting text (`tokenizer.ggml.pre`) in which every digit stands alone, which transformers does not take
from GGUF."""


@dataclass(frozen=True, kw_only=True)
class Stored:
    """What a GGUF file holds in one of its types."""

    type: str
    """As ggml names it, such as "Q4_1"."""
    tensors: int
    parameters: int


@dataclass(frozen=True, kw_only=True)
class GgufFile:
    """A GGUF file, looked at without its tensors' content."""

    path: Path
    metadata: Mapping[str, Any]
    """Lists of words are their length."""
    stored: tuple[Stored, ...]
    """Most parameters first."""

    @property
    def parameters(self) -> int:
        """Numbers in all tensors."""
        return sum(part.parameters for part in self.stored)

    @property
    def note(self) -> str:
        """What is to be said wherever a figure of this model stands."""
        blocks = next((part.type for part in self.stored if part.type not in FLOATS), None)
        if blocks is None:
            return f"converted from GGUF ({self.stored[0].type})"
        bits = re.search(r"\d+", blocks)
        return f"dequantised from {f'{bits[0]} bits' if bits else 'blocks'} ({blocks})"


def read_gguf(path: Path) -> GgufFile:
    """Looks into a GGUF file.

    Raises:
        ModelError: the package `gguf` is missing.
    """
    try:
        from gguf import GGUFReader
    except ImportError:
        raise ModelError("Reading a GGUF file needs the package gguf: pip install 'holdfast[real]'.") from None
    from transformers.integrations.gguf import read_gguf_metadata

    metadata, _ = read_gguf_metadata(os.fspath(path))
    sizes: dict[str, list[int]] = {}
    for tensor in GGUFReader(path).tensors:
        sizes.setdefault(tensor.tensor_type.name, []).append(int(tensor.n_elements))
    stored = [Stored(type=name, tensors=len(counts), parameters=sum(counts)) for name, counts in sizes.items()]
    return GgufFile(path=path, metadata=metadata, stored=tuple(sorted(stored, key=lambda part: -part.parameters)))


def import_gguf(
    path: Path,
    folder: Path,
    *,
    name: str,
    dtype: str,
    license_file: Path | None,
    origin: Mapping[str, Any],
) -> dict[str, Any]:
    """Makes a checkpoint folder of a GGUF file: safetensors, tokenizer with chat template, generation settings,
    provenance, manifest. The folder is there when it is whole, and only then.

    Args:
        path: the file.
        folder: to be made; its parents too.
        name: what the model is called in its own configuration.
        dtype: "bfloat16" or "float32".
        license_file: copied as LICENSE.
        origin: what the provenance is to say of the source, besides the file.

    Returns:
        The provenance, as it lies in the folder.

    Raises:
        ModelError: see `read_gguf`; the model cannot be taken over whole.
        RunFolderError: the folder cannot be made.
        StorageError: the disk has no room.
    """
    file = read_gguf(path)
    made_parents = None
    try:
        made_parents = NewFolder(folder.parent, content=False)
        with scratch_folder(folder.parent, f".{folder.name}.making-") as work:
            made = work / "model"
            made.mkdir()
            _save(file, made, work, name=name, dtype=dtype)
            if license_file is not None:
                shutil.copyfile(license_file, made / "LICENSE")
            record = _provenance(file, made, name=name, dtype=dtype)
            record["origin"] = {"note": file.note, **_source(file), **origin}
            write_json(made / FILE, record)
            manifest.write_manifest(made, manifest.measured(made, manifest.files_in(made), sync=True))
            fsync_path(made)
            os.rename(made, folder)
            made_parents.keep()
            fsync_path(folder.parent)
    except OSError as error:
        if is_disk_full(error):
            raise StorageError(
                f"The disk is full: {folder} was not made. Free some space, or choose another folder (HOLDFAST_CACHE)."
            ) from error
        raise RunFolderError(
            f"Could not write {folder} ({error.strerror or error}). Choose another folder (HOLDFAST_CACHE)."
        ) from error
    finally:
        if made_parents is not None:
            made_parents.remove()
    return record


def file_sha256(path: Path) -> str:
    """SHA-256 (hex) of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _save(file: GgufFile, made: Path, work: Path, *, name: str, dtype: str) -> None:
    from transformers import AutoTokenizer, GgufConfig

    alone = work / "file"  # without what lies beside the file, which the loaders would read too
    alone.mkdir()
    (alone / "model.gguf").symlink_to(os.path.realpath(file.path))
    with quiet_libraries(), quiet_transformers():
        with contextlib.redirect_stderr(io.StringIO()):  # a bar that nothing else turns off
            words = AutoTokenizer.from_pretrained(alone, gguf_file="model.gguf", trust_remote_code=False)
            _split_as_trained(words, file)
            model = from_pretrained(
                os.fspath(alone),
                gguf_file="model.gguf",
                dtype=dtype,
                quantization_config=GgufConfig(dequantize=True),
            )
        _check_whole(file, model)
        _no_longer_quantised(model, name)
        words.model_max_length = model.config.max_position_embeddings
        words.name_or_path = name
        model.save_pretrained(made)
        words.save_pretrained(made)
    shutil.rmtree(alone)
    for path in made.iterdir():  # safetensors writes its files for their owner alone
        path.chmod(0o644)
    check_model(os.fspath(made))
    load_tokenizer(os.fspath(made))


def _check_whole(file: GgufFile, model: Any) -> None:
    """All numbers of the file are in the model."""
    parameters = {id(p): p for p in model.parameters()}.values()
    count = sum(p.numel() for p in parameters)
    if count != file.parameters:
        raise ModelError(
            f"{file.path} holds {file.parameters:,} numbers, and the model that this version of transformers makes of "
            f"it has {count:,}: it would be another model."
        )


def _no_longer_quantised(model: Any, name: str) -> None:
    """The weights are plain ones by now: what says otherwise would keep the model from being saved, and from being
    loaded by the folder."""
    for holder in (model.config, model):
        for key in ("quantization_config", "quantization_method", "hf_quantizer", "_model_name_or_path"):
            if key in vars(holder):
                delattr(holder, key)
    model.is_quantized = False
    model.config.name_or_path = name


def _split_as_trained(tokenizer: Any, file: GgufFile) -> None:
    from tokenizers import pre_tokenizers

    if file.metadata.get("tokenizer.ggml.pre") == DIGITS_ALONE:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )


def _source(file: GgufFile) -> dict[str, Any]:
    return {
        "file": file.path.name,
        "sha256": file_sha256(file.path),
        "name": file.metadata.get("general.name"),
        "organization": file.metadata.get("general.organization"),
    }


def _provenance(file: GgufFile, made: Path, *, name: str, dtype: str) -> dict[str, Any]:
    from importlib.metadata import version

    digests = Digests()
    with CheckpointReader(made) as reader:
        fingerprint = content_fingerprint(reader, known=digests)
        tensors = {n: digests.tensor(n, entry.size) for n, entry in sorted(reader.entries.items())}
        parameters = sum(entry.size for entry in reader.entries.values())
    return {
        "command": "models get",
        "method": {"method": "dequantise", "dtype": dtype},
        "request": {"name": name, "dtype": dtype},
        "parents": [{"role": "GGUF file", "name": file.path.name, "fingerprint": None}],
        "stored": [{"type": p.type, "tensors": p.tensors, "parameters": p.parameters} for p in file.stored],
        "parameters": parameters,
        "created": now(),
        "versions": versions() | {package: version(package) for package in ("gguf", "transformers", "torch")},
        "fingerprint": fingerprint,
        "tensors": tensors,
    }
