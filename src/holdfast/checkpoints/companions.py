"""What travels beside the weights: tokenizer, chat template, generation and processor settings,
code of the model, licence; and config.json.

Files are copied as they are and code is never run. Weights, optimiser states, logs and model cards
(which describe another model) stay behind.
"""

from __future__ import annotations

import fnmatch
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from holdfast.checkpoints.sources import read_object

TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "tekken.json",
    "tokenizer.model*",
    "spiece.model",
    "sentencepiece.bpe.model",
    "*.tiktoken",
    "tiktoken.model",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/*.jinja",
)
"""Patterns of a tokenizer's files, chat templates included. They belong together: one folder's
replace another's as a whole."""
OTHERS = (
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
    "audio_tokenizer_config.json",
    "*.py",
    "custom_generate/*.py",
    "licen[cs]e*",
    "notice*",
    "use_policy*",
)
"""Patterns of everything else that travels; letters match in either case."""

_IDENTIFYING = (
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
    "tokenizer.model*",
    "spiece.model",
    "*.tiktoken",
    "tekken.json",
)
_TEXT_PARTS = ("text_config", "llm_config", "language_config")
_DTYPE_KEYS = ("dtype", "torch_dtype")


def companions(folder: str | os.PathLike[str]) -> list[Path]:
    """Files of a checkpoint folder that travel with its weights, relative to it, sorted;
    config.json, which `write_config` writes, is not one."""
    return sorted(path for path in _files(Path(folder)) if _matches(path, TOKENIZER + OTHERS))


def copy_companions(
    from_folder: str | os.PathLike[str], to_folder: str | os.PathLike[str]
) -> list[str]:
    """Copies the companions of one folder into another, and gives their names.

    Files of the same name are replaced. A tokenizer that already lies in `to_folder` leaves as a
    whole when `from_folder` has one, so that no file of one tokenizer is read with the files of
    another.
    """
    source, target = Path(from_folder), Path(to_folder)
    names = companions(source)
    target.mkdir(parents=True, exist_ok=True)
    if any(_matches(path, _IDENTIFYING) for path in names):
        for path in [p for p in _files(target) if _matches(p, TOKENIZER)]:
            (target / path).unlink()
    for path in names:
        (target / path).parent.mkdir(exist_ok=True)
        shutil.copyfile(source / path, target / path)
    return [path.as_posix() for path in names]


def config_value(config: Mapping[str, Any], key: str) -> Any:
    """A key of config.json, of its text part where the whole has none (models that also see or
    hear); None where neither has it."""
    if config.get(key) is not None:
        return config[key]
    for name in _TEXT_PARTS:
        inner = config.get(name)
        if isinstance(inner, dict) and inner.get(key) is not None:
            return inner[key]
    return None


def changed_config(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of config.json with keys changed where they live: at the top, in the text part, or in
    both.

    Args:
        config: the file's content.
        changes: key: value. "dtype" (a PyTorch name such as "bfloat16", or a safetensors name) also
            changes `torch_dtype`, which older files have, and the dtype of every part. A key that
            is nowhere yet is added at the top.
    """
    result = json.loads(json.dumps(config))
    for key, value in changes.items():
        if key in _DTYPE_KEYS:
            _change_dtype(result, torch_name(value))
            continue
        holders = [result] if key in result else []
        for name in _TEXT_PARTS:
            inner = result.get(name)
            if isinstance(inner, dict) and key in inner:
                holders.append(inner)
        for holder in holders or [result]:
            holder[key] = value
    return result


def _change_dtype(config: dict[str, Any], dtype: str) -> None:
    changed = False
    for holder in [config, *config.values()]:
        for key in _DTYPE_KEYS if isinstance(holder, dict) else ():
            if key in holder and not isinstance(holder[key], dict):
                holder[key] = dtype
                changed = True
    if not changed:
        config["dtype"] = dtype


def write_config(
    from_folder: str | os.PathLike[str],
    to_folder: str | os.PathLike[str],
    *,
    changes: Mapping[str, Any],
) -> dict[str, Any]:
    """Copies config.json with keys changed, see `changed_config`, and gives the new content.
    Without changes the file is copied byte for byte.

    Raises:
        ModelError: no config.json there, or it cannot be read.
    """
    source = Path(from_folder) / "config.json"
    config = read_object(source, "a model's configuration", again="")
    text = source.read_text(encoding="utf-8")
    result = changed_config(config, changes)
    if result != config:
        text = json.dumps(result, indent=2, ensure_ascii=False) + "\n"
    Path(to_folder).mkdir(parents=True, exist_ok=True)
    (Path(to_folder) / "config.json").write_text(text, encoding="utf-8")
    return result


def torch_name(dtype: str) -> str:
    """The name config.json uses for a dtype: "BF16" and "torch.bfloat16" become "bfloat16"."""
    from holdfast.checkpoints.dtypes import dtype as known

    names = {
        "F64": "float64",
        "F32": "float32",
        "F16": "float16",
        "BF16": "bfloat16",
        "F8_E4M3": "float8_e4m3fn",
        "F8_E5M2": "float8_e5m2",
    }
    return names.get(known(dtype).name, dtype)


def _files(folder: Path) -> Iterator[Path]:
    for directory in (folder, folder / "additional_chat_templates", folder / "custom_generate"):
        if directory.is_dir():
            yield from (path.relative_to(folder) for path in directory.iterdir() if path.is_file())


def _matches(path: Path, patterns: tuple[str, ...]) -> bool:
    name, depth = path.as_posix().lower(), len(path.parts)
    return any(
        fnmatch.fnmatchcase(name, pattern) and depth == pattern.count("/") + 1
        for pattern in patterns
    )
