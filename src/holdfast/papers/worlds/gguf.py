"""From the GGUF file of a packaged model, the format of llama.cpp, to a checkpoint folder that
every command takes.

transformers reads the file; quantised weights are dequantised, which gives back what the file holds
and not what the model had before it was quantised, so the folder says of itself how many bits its
weights had.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.checkpoints import manifest
from holdfast.checkpoints.provenance import FILE, Digests, content_fingerprint, versions
from holdfast.checkpoints.reader import CheckpointReader
from holdfast.checkpoints.writer import disk_errors, fsync_path
from holdfast.errors import ModelError
from holdfast.models import check_model, from_pretrained, load_tokenizer
from holdfast.support.environment import now, quiet_libraries, quiet_transformers
from holdfast.support.files import write_json
from holdfast.support.leftovers import NewFolder, scratch_folder

FLOATS = ("F32", "F16", "BF16", "F64")
"""Types of a GGUF file that are numbers, not blocks of quantised ones."""
DIGITS_ALONE = "smollm"
"""The way of splitting text (`tokenizer.ggml.pre`) in which every digit stands alone, which
transformers does not take from GGUF."""


@dataclass(frozen=True, kw_only=True)
class GgufFile:
    """A GGUF file, looked at without its tensors' content."""

    path: Path
    metadata: Mapping[str, Any]
    """Lists of words are their length."""
    types: Mapping[str, int]
    """Numbers in tensors of each type, as ggml names it, such as "Q4_1"; the most frequent
    first."""

    @property
    def note(self) -> str:
        """What is to be said wherever a figure of this model stands."""
        blocks = next((name for name in self.types if name not in FLOATS), None)
        if blocks is None:
            return f"converted from GGUF ({next(iter(self.types))})"
        digits = re.search(r"\d+", blocks)
        bits = f"{digits[0]} bits" if digits else "blocks"
        return f"dequantised from {bits} ({blocks})"


def read_gguf(path: Path) -> GgufFile:
    """Looks into a GGUF file.

    Raises:
        ModelError: the package `gguf` is missing.
    """
    try:
        from gguf import GGUFReader
    except ImportError:
        raise ModelError(
            "Reading a GGUF file needs the package gguf: pip install 'holdfast[real]'."
        ) from None
    from transformers.integrations.gguf import read_gguf_metadata

    metadata, _ = read_gguf_metadata(os.fspath(path))
    types: Counter[str] = Counter()
    for tensor in GGUFReader(path).tensors:
        types[tensor.tensor_type.name] += int(tensor.n_elements)
    return GgufFile(path=path, metadata=metadata, types=dict(types.most_common()))


def import_gguf(
    path: Path,
    folder: Path,
    *,
    name: str,
    dtype: str,
    license_file: Path | None,
    origin: Mapping[str, Any],
) -> dict[str, Any]:
    """Makes a checkpoint folder of a GGUF file: safetensors, tokenizer with chat template,
    generation settings, provenance, manifest. The folder is there when it is whole, and only then.

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
        RunFolderError, StorageError: the folder cannot be made.
    """
    file = read_gguf(path)
    with (
        disk_errors(folder),
        NewFolder(folder.parent, content=False),
        scratch_folder(folder.parent, f".{folder.name}.making-") as work,
    ):
        model = work / "model"
        model.mkdir()
        _save(file, model, work, name=name, dtype=dtype)
        if license_file is not None:
            shutil.copyfile(license_file, model / "LICENSE")
        record = _provenance(file, model, name=name, dtype=dtype)
        source: dict[str, Any] = {"note": file.note, "file": path.name, "sha256": file_sha256(path)}
        for key in ("name", "organization"):
            source[key] = file.metadata.get(f"general.{key}")
        record["origin"] = {**source, **origin}
        write_json(model / FILE, record)
        manifest.write_manifest(
            model, manifest.measured(model, manifest.files_in(model), sync=True)
        )
        fsync_path(model)
        os.rename(model, folder)
        fsync_path(folder.parent)
    return record


def file_sha256(path: Path) -> str:
    """SHA-256 (hex) of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _save(file: GgufFile, folder: Path, work: Path, *, name: str, dtype: str) -> None:
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer, GgufConfig

    alone = work / "file"  # without what lies beside the file, which the loaders would read too
    alone.mkdir()
    (alone / "model.gguf").symlink_to(os.path.realpath(file.path))
    with quiet_libraries(), quiet_transformers():
        with contextlib.redirect_stderr(io.StringIO()):  # a bar that nothing else turns off
            tokenizer = AutoTokenizer.from_pretrained(
                alone, gguf_file="model.gguf", trust_remote_code=False
            )
            model = from_pretrained(
                os.fspath(alone),
                gguf_file="model.gguf",
                dtype=dtype,
                quantization_config=GgufConfig(dequantize=True),
            )
        if file.metadata.get("tokenizer.ggml.pre") == DIGITS_ALONE:
            digits = pre_tokenizers.Digits(individual_digits=True)
            pieces = pre_tokenizers.ByteLevel(add_prefix_space=False)
            tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pieces])
        count = sum(parameter.numel() for parameter in model.parameters())
        stored = sum(file.types.values())
        if count != stored:
            raise ModelError(
                f"{file.path} has {stored:,} numbers, but the model that this version of "
                f"transformers builds from it has {count:,}. Use another version of transformers."
            )
        # the weights are plain ones by now: what says otherwise would keep the model from being
        # saved and loaded
        for holder in (model.config, model):
            for key in (
                "quantization_config",
                "quantization_method",
                "hf_quantizer",
                "_model_name_or_path",
            ):
                vars(holder).pop(key, None)
        model.is_quantized = False
        model.config.name_or_path = tokenizer.name_or_path = name
        tokenizer.model_max_length = model.config.max_position_embeddings
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    shutil.rmtree(alone)
    for path in folder.iterdir():  # safetensors writes its files for their owner alone
        path.chmod(0o644)
    check_model(os.fspath(folder))
    load_tokenizer(os.fspath(folder))


def _provenance(file: GgufFile, folder: Path, *, name: str, dtype: str) -> dict[str, Any]:
    from importlib.metadata import version

    digests = Digests()
    with CheckpointReader(folder) as reader:
        fingerprint = content_fingerprint(reader, known=digests)
        sizes = {tensor: entry.size for tensor, entry in sorted(reader.entries.items())}
    return {
        "command": "models get",
        "method": {"method": "dequantise", "dtype": dtype},
        "request": {"name": name, "dtype": dtype},
        "parents": [{"role": "GGUF file", "name": file.path.name, "fingerprint": None}],
        "stored": file.types,
        "parameters": sum(sizes.values()),
        "created": now(),
        "versions": versions()
        | {package: version(package) for package in ("gguf", "transformers", "torch")},
        "fingerprint": fingerprint,
        "tensors": {tensor: digests.tensor(tensor, size) for tensor, size in sizes.items()},
    }
