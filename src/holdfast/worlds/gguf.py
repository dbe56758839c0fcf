"""From a GGUF file, the format of llama.cpp, to a checkpoint folder that every command takes.

transformers reads the file; quantised weights are dequantised, which gives back what the file holds and not what the
model had before it was quantised, so the folder says of itself how many bits its weights had. What transformers would
leave out without a word (a tensor that it has no place for, a rule by which positions are scaled, a way of splitting
text that it does not know) is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.checkpoints import manifest
from holdfast.checkpoints.named import is_name
from holdfast.checkpoints.provenance import FILE, Digests, content_fingerprint, now, versions
from holdfast.checkpoints.reader import CheckpointReader
from holdfast.checkpoints.writer import fsync_path
from holdfast.errors import ConfigError, ModelError, RunFolderError, StorageError, first_line
from holdfast.models import check_model, from_pretrained, load_tokenizer
from holdfast.support.environment import quiet_libraries, quiet_transformers, shown_bytes
from holdfast.support.files import write_json
from holdfast.support.leftovers import NewFolder, scratch_folder
from holdfast.support.resources import available_memory, is_disk_full, is_out_of_memory

DTYPES = {"bfloat16": 2, "float32": 4}
"""What a model is saved in, and the bytes that a number takes."""
FLOATS = ("F32", "F16", "BF16", "F64")
"""Types of a GGUF file that are numbers, not blocks of quantised ones."""
MUST_BE_ACCEPTED = re.compile(r"llama|gemma|other|deepseek|nvidia|non-?commercial|-nc|research|cohere|openrail", re.I)
"""Licences with conditions that whoever uses the model agrees to."""

_SPELT = {"qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "gpt_oss": "gpt-oss", "minimax_m2": "minimax-m2"}
_NO_DECODER = ("general", "tokenizer", "t5", "umt5")
_GPT2_SPLITS = ("gpt-2", "phi-2", "olmo", "mpt", "jais")
_DIGIT_SPLITS = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
"""Ways of splitting text before the merges (llama.cpp's names, src/llama-vocab.cpp): as GPT-2 does; every digit on its
own and the rest as GPT-2, which transformers does not take from GGUF."""
_KEEP = 256 * 2**20
"""Bytes that the process needs beside the numbers."""


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
    architecture: str
    stored: tuple[Stored, ...]
    """Most parameters first."""
    largest: int
    """Numbers in the largest tensor."""
    tensors: tuple[str, ...]

    @property
    def parameters(self) -> int:
        """Numbers in all tensors."""
        return sum(part.parameters for part in self.stored)

    @property
    def license(self) -> str | None:
        """As the file names it."""
        named = self.metadata.get("general.license")
        return named.strip() or None if isinstance(named, str) else None

    @property
    def note(self) -> str:
        """What is to be said wherever a figure of this model stands."""
        blocks = next((part.type for part in self.stored if part.type not in FLOATS), None)
        if blocks is None:
            return f"converted from GGUF ({self.stored[0].type})"
        bits = re.search(r"\d+", blocks)
        return f"dequantised from {f'{bits[0]} bits' if bits else 'blocks'} ({blocks})"


def read_gguf(path: str | os.PathLike[str]) -> GgufFile:
    """Looks into a GGUF file.

    Raises:
        ModelError: no such file, not GGUF, damaged or cut, of an architecture that transformers does not read, or the
            package `gguf` is missing.
    """
    path = Path(path)
    if not path.is_file():
        kind = "a folder" if path.is_dir() else "nothing"
        raise ModelError(f"Expected a GGUF file at {path}, found {kind}. Name the file, such as model.Q4_K_M.gguf.")
    with open(path, "rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise ModelError(
            f"Expected a GGUF file at {path}, which begins with 'GGUF', got {magic!r}. A folder of safetensors needs "
            f"no import: name it as the model."
        )
    try:
        from gguf import GGUFReader
    except ImportError:
        raise ModelError("Reading a GGUF file needs the package gguf: pip install 'holdfast[real]'.") from None
    from transformers.integrations.gguf import GGUF_ARCHS, read_gguf_metadata
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

    with _damaged(path):
        metadata, names = read_gguf_metadata(os.fspath(path))
        architecture = str(metadata["general.architecture"])
    known = sorted({_SPELT.get(name, name) for name in [*GGUF_SUPPORTED_ARCHITECTURES, *GGUF_ARCHS]} - {*_NO_DECODER})
    if architecture not in known:
        raise ModelError(
            f"Expected a GGUF file of an architecture that transformers reads ({', '.join(known)}), got "
            f"'{architecture}' in {path}. Take the model's safetensors instead."
        )
    with _damaged(path):
        tensors = GGUFReader(path).tensors
        if not tensors:
            raise ValueError("no tensor is in it")
        counted: dict[str, list[int]] = {}
        for tensor in tensors:
            counted.setdefault(tensor.tensor_type.name, []).append(int(tensor.n_elements))
    stored = [Stored(type=name, tensors=len(sizes), parameters=sum(sizes)) for name, sizes in counted.items()]
    return GgufFile(
        path=path,
        metadata=metadata,
        architecture=architecture,
        stored=tuple(sorted(stored, key=lambda part: -part.parameters)),
        largest=max(max(sizes) for sizes in counted.values()),
        tensors=tuple(names),
    )


def import_gguf(
    path: str | os.PathLike[str],
    folder: Path,
    *,
    name: str,
    dtype: str = "bfloat16",
    tokenizer: str | os.PathLike[str] | None = None,
    license: str | None = None,
    license_file: Path | None = None,
    command: str = "models import",
    origin: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Makes a checkpoint folder of a GGUF file: safetensors, tokenizer with chat template, generation settings,
    provenance, manifest. The folder is there when it is whole, and only then.

    Args:
        path: the file.
        folder: to be made; its parents too.
        name: what the model is called in its own configuration.
        dtype: one of `DTYPES`.
        tokenizer: a folder with the model's own tokenizer, in place of the file's.
        license: the model's, where the file does not name it.
        license_file: copied as LICENSE.
        command: for the provenance.
        origin: more that the provenance is to say of the source.

    Returns:
        The provenance, as it lies in the folder.

    Raises:
        ModelError: see `read_gguf`; the model or its tokenizer cannot be taken over whole.
        ConfigError: an unknown dtype, or more memory is needed than there is.
        RunFolderError: the folder is there already, or cannot be made.
        StorageError: the disk has no room.
    """
    if dtype not in DTYPES:
        raise ConfigError(f"dtype: expected one of {', '.join(DTYPES)}, got '{dtype}'.")
    assert is_name(name), name
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunFolderError(f"{folder} exists and is not empty. Choose another folder, or remove it.")
    file = read_gguf(path)
    _check_rules(file, tokenizer is not None)
    check_memory(file, dtype)
    made_parents = None
    try:
        made_parents = NewFolder(folder.parent, content=False)
        with scratch_folder(folder.parent, f".{folder.name}.making-") as work:
            _check_room(file, dtype, work)
            made = work / "model"
            made.mkdir()
            _save(file, made, work, name=name, dtype=dtype, tokenizer=tokenizer)
            if license_file is not None:
                shutil.copyfile(license_file, made / "LICENSE")
            named = file.license or license
            record = _provenance(file, made, name=name, dtype=dtype, command=command)
            record["origin"] = {"note": file.note, "license": named, **_source(file), **(origin or {})}
            write_json(made / FILE, record)
            manifest.write_manifest(made, manifest.measured(made, manifest.files_in(made), sync=True))
            fsync_path(made)
            os.rename(made, folder)
            made_parents.keep()
            fsync_path(folder.parent)
    except OSError as error:
        if is_disk_full(error):
            raise StorageError(
                f"The disk is full: {folder} was not made. Free some space, or choose another folder "
                f"(HOLDFAST_CACHE, --output_dir)."
            ) from error
        raise RunFolderError(
            f"Could not write {folder} ({error.strerror or error}). Choose another folder (HOLDFAST_CACHE, "
            f"--output_dir)."
        ) from error
    finally:
        if made_parents is not None:
            made_parents.remove()
    return record


def needed_memory(file: GgufFile, dtype: str) -> int:
    """Bytes that reading the file takes at its highest: the tensors in `dtype` as they are read and as the model has
    them, and three copies of the largest in float32 while it is dequantised."""
    return 2 * DTYPES[dtype] * file.parameters + 12 * file.largest + _KEEP


def check_memory(file: GgufFile, dtype: str) -> None:
    """Stops where reading the file would not fit into what memory is free.

    Raises:
        ConfigError: what is needed, what there is, what to choose.
    """
    free, needed = available_memory(), needed_memory(file, dtype)
    if free is None or needed <= free:
        return
    narrow = needed_memory(file, "bfloat16")
    advice = (
        f"--dtype bfloat16 needs {shown_bytes(narrow)}."
        if dtype == "float32" and narrow <= free
        else "Close other programs, or take a machine with more memory."
    )
    raise ConfigError(
        f"dtype: {file.path.name} in {dtype} needs about {shown_bytes(needed)} of memory, and {shown_bytes(free)} are "
        f"free. {advice}"
    )


def license_words(license: str | None) -> str:
    """A sentence about a model's licence."""
    if license is None:
        return "Licence: the file names none. Ask whoever published it before you use the model."
    if MUST_BE_ACCEPTED.search(license):
        return f"Licence: {license}. It has conditions: by using the model you accept them, so read them first."
    return f"Licence: {license}."


def file_sha256(path: Path) -> str:
    """SHA-256 (hex) of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _damaged(path: Path) -> Iterator[None]:
    try:
        yield
    except ModelError:
        raise
    except Exception as error:  # what a damaged header makes of a reader has no common base
        if is_out_of_memory(error) and not isinstance(error, MemoryError):
            raise
        raise ModelError(
            f"Expected a whole GGUF file at {path}, but it cannot be read ({type(error).__name__}: "
            f"{first_line(error)}). It is damaged or cut ({os.path.getsize(path):,} bytes): copy or download it again."
        ) from error


def _check_rules(file: GgufFile, own_tokenizer: bool) -> None:
    """Refuses what transformers would leave out of the configuration or of the tokenizer."""
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    scaling = file.metadata.get(f"{file.architecture}.rope.scaling.type")
    if scaling not in (None, "", "none") and file.architecture != "gpt-oss":
        raise ModelError(
            f"{file.path} scales positions ({file.architecture}.rope.scaling.type: {scaling}), which transformers does "
            f"not read from GGUF: the model would be another one. Take the model's safetensors instead."
        )
    if own_tokenizer:
        return
    advice = "Give a folder with the model's own tokenizer files: --tokenizer FOLDER."
    if "tokenizer.ggml.tokens" not in file.metadata:
        raise ModelError(f"Expected a tokenizer in {file.path} (tokenizer.ggml.tokens), found none. {advice}")
    split = file.metadata.get("tokenizer.ggml.pre", "nothing")
    known = (*_GPT2_SPLITS, *_DIGIT_SPLITS, *GGUF_PRE_TOKENIZER_SPLITS)
    if file.metadata.get("tokenizer.ggml.model") == "gpt2" and split not in known:
        raise ModelError(
            f"{file.path} splits text as '{split}' (tokenizer.ggml.pre), which transformers does not know: the tokens "
            f"would not be the model's. {advice}"
        )


def _check_room(file: GgufFile, dtype: str, folder: Path) -> None:
    needed, free = DTYPES[dtype] * file.parameters + 32 * 2**20, shutil.disk_usage(folder).free
    if free < needed:
        raise StorageError(
            f"{folder.parent} needs {shown_bytes(needed)} for {file.path.name} in {dtype}, and the disk has "
            f"{shown_bytes(free)} left. Free some space, or choose another folder (HOLDFAST_CACHE, --output_dir)."
        )


def _save(
    file: GgufFile, made: Path, work: Path, *, name: str, dtype: str, tokenizer: str | os.PathLike[str] | None
) -> None:
    from transformers import AutoTokenizer, GgufConfig

    alone = work / "file"  # without what lies beside the file, which the loaders would read too
    alone.mkdir()
    (alone / "model.gguf").symlink_to(os.path.realpath(file.path))
    with quiet_libraries(), quiet_transformers():
        with _damaged(file.path), contextlib.redirect_stderr(io.StringIO()):  # a bar that nothing else turns off
            if tokenizer is not None:
                words = load_tokenizer(os.fspath(tokenizer))
            else:
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
        longest = getattr(model.config, "max_position_embeddings", None)
        if isinstance(longest, int) and tokenizer is None:
            words.model_max_length = longest
        words.name_or_path = name
        model.save_pretrained(made)
        words.save_pretrained(made)
    shutil.rmtree(alone)
    for path in made.iterdir():  # safetensors writes its files for their owner alone
        path.chmod(0o644)
    check_model(os.fspath(made))
    load_tokenizer(os.fspath(made))


def _check_whole(file: GgufFile, model: Any) -> None:
    """All numbers of the file are in the model, and all of them are numbers."""
    import torch

    held = {id(p): p for p in [*model.parameters()]}.values()
    count = sum(p.numel() for p in held)
    if count != file.parameters:
        extra = [name for name in file.tensors if name.startswith(("rope_", "output.")) or name.endswith(".bias")]
        named = f", among them {', '.join(extra[:4])}" if extra and count < file.parameters else ""
        raise ModelError(
            f"{file.path} holds {file.parameters:,} numbers in {len(file.tensors)} tensors{named}, and the model that "
            f"transformers makes of it has {count:,}: it would be another model. Take the model's safetensors instead."
        )
    bad = [n for n, p in model.named_parameters() if not bool(torch.isfinite(p).all())]
    if bad:
        raise ModelError(
            f"{file.path} holds NaN or infinite values in {len(bad)} tensors, such as {bad[0]}. It is damaged: copy or "
            f"download it again."
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

    if file.metadata.get("tokenizer.ggml.pre") in _DIGIT_SPLITS and file.metadata["tokenizer.ggml.model"] == "gpt2":
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


def _provenance(file: GgufFile, made: Path, *, name: str, dtype: str, command: str) -> dict[str, Any]:
    from importlib.metadata import version

    digests = Digests()
    with CheckpointReader(made) as reader:
        fingerprint = content_fingerprint(reader, known=digests)
        tensors = {n: digests.tensor(n, entry.size) for n, entry in sorted(reader.entries.items())}
        parameters = sum(entry.size for entry in reader.entries.values())
    return {
        "command": command,
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
