"""One manifest of inputs: which files a command's result depends on, and what was in them.

Every setting that names a file or a folder names an input, in whatever part of the request it
stands: a model, its tokenizer and configuration, training data, a mixture, replay data, an anchor,
a teacher, a template, questions, a corpus, a user's own code. `inputs_of` finds them by looking at
every text of the settings, so that a setting that comes later is covered without a line here. A
folder of a command keeps the manifest in `inputs.json`; whoever continues in the folder, or finds
everything done there, is held to it (`hold_to`).

A model's folder counts by what a loader reads: configuration, generation configuration, tokenizer,
templates, weights and code, not the page or the checkpoints beside them. An adapter brings its
base, a YAML file the files that it names, JSON rows their pictures. Of what lies on the hub the
revision decides, which is not looked at here.
"""

from __future__ import annotations

import functools
import glob
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from holdfast.errors import RunFolderError
from holdfast.support.environment import now, versions
from holdfast.support.files import fingerprint, read_json, write_json
from holdfast.support.paths import expanded, real

FILE = "inputs.json"
NO_INPUT = re.compile(
    r"output_dir|logging_dir|cache_dir|run_name|name|names|label|labels|arms|method|methods|storage|report_to|optim|env"
)
"""Keys whose values are places of results, or names that are no paths."""
OF_A_MODEL = re.compile(
    r"(adapter_|generation_)?config\.json|tokenizer.*|vocab.*|merges\.txt|special_tokens_map\.json|added_tokens\.json"
    r"|chat_template.*|(pre|video_pre)?processor_config\.json|.*\.(safetensors|safetensors\.index\.json|model|gguf|py)"
)
"""Files of a model's folder that a loader reads."""
AS_SAVED = ("use_cache", "transformers_version", "dtype", "torch_dtype", "_name_or_path")
"""Of a model's configuration, what saving it again changes."""
_PICTURE = re.compile(rb'"([^"\\]{1,512}\.(?:png|jpe?g|webp|gif|bmp|tiff?))"', re.IGNORECASE)
SHOWN = 8


Contents = dict[str, str]
"""SHA-256 by name inside a folder; under "" of what is a file itself."""


def inputs_of(
    settings: Any, *, within: str | os.PathLike[str] | None = None
) -> dict[str, Contents]:
    """The files that settings name, with what is in them.

    Args:
        settings: mappings, sequences and texts, as in YAML.
        within: a folder whose files the command makes itself, which are left out.

    Returns:
        Contents by path, as the settings have it; of a `config.json` without what saving a model
        again changes.
    """
    output_folder = None if within is None else real(within)
    contents: dict[str, Contents] = {}
    for path in _named(settings):
        if output_folder is None or not real(path).is_relative_to(output_folder):
            contents |= _content(path)
    return contents


def hold_to(
    folder: str | os.PathLike[str], inputs: Mapping[str, Contents], *, begun: bool, what: str
) -> list[str]:
    """Keeps the manifest of a folder; once work has begun there, inputs have to be those that it
    began with.

    Args:
        folder: where the manifest is written.
        inputs: as they are now (`inputs_of`); those that are new are added.
        begun: whether there is anything in the folder that was computed from them.
        what: names the work, as in "the run in runs/a".

    Returns:
        What else is new, a sentence for people: versions of packages other than those that the work
        began with.

    Raises:
        RunFolderError: inputs are others (which).
    """
    file, packages = Path(folder) / FILE, versions()
    known: dict[str, Any] = read_json(file) if begun and file.is_file() else {}
    if changed := changed_inputs(known.get("inputs", {}), inputs):
        more = [f"  and {len(changed) - SHOWN} more"] if len(changed) > SHOWN else []
        raise RunFolderError(
            f"Inputs changed since {what} began:",
            *(f"  - {line}" for line in changed[:SHOWN]),
            *more,
            "Restore the old inputs, or choose a new output_dir.",
        )
    manifest = {
        "inputs": {**known.get("inputs", {}), **inputs},
        "versions": known.get("versions", packages),
        "created": known.get("created", now()),
    }
    if manifest != known:
        write_json(file, manifest)
    others = [
        f"{name} {packages[name]} (was {before})"
        for name, before in manifest["versions"].items()
        if packages.get(name, before) != before
    ]
    return (
        [f"Package versions have changed since {what} began: {', '.join(others)}."]
        if others
        else []
    )


def changed_inputs(before: Mapping[str, Contents], now: Mapping[str, Contents]) -> list[str]:
    """Which inputs are others: a line each, as `base/config.json: another content`.

    What is new in the settings, and what is gone, is none of them: other settings are refused by
    those who compare them, and work that needs a file that is gone says so. Files that came into a
    folder, or went from it, are.
    """
    lines = []
    for path in sorted(before.keys() & now.keys()):
        for name in sorted({*before[path], *now[path]}):
            old, new = before[path].get(name), now[path].get(name)
            if old != new:
                change = "new" if old is None else "gone" if new is None else "other contents"
                lines.append(f"{os.path.join(path, name) if name else path}: {change}")
    return lines


def configuration_hash(folder: str | os.PathLike[str]) -> str:
    """What of a model's folder decides its figures beside weights and tokenizer: its configuration,
    that of generation, an adapter's, and code.

    Returns:
        SHA-256 (hexadecimal).
    """
    names = ("config.json", "generation_config.json", "adapter_config.json")
    here = Path(folder)
    files = [
        *(here / name for name in names if (here / name).is_file()),
        *sorted(here.glob("*.py")),
    ]
    return fingerprint({file.name: file_hash(file) for file in files})


# ------------------------------------------------------------------------------------ what is named


def _named(settings: Any) -> Iterator[str]:
    """Every text in settings that is a path at which something lies."""
    if isinstance(settings, Mapping):
        for key, value in settings.items():
            if not NO_INPUT.fullmatch(str(key)):
                yield from _named(value)
    elif isinstance(settings, os.PathLike):
        yield from _paths_in(os.fspath(settings))
    elif isinstance(settings, str):
        yield from _paths_in(settings)
    elif isinstance(settings, (list, tuple, set, frozenset)):
        for value in settings:
            yield from _named(value)


def _paths_in(text: str) -> Iterator[str]:
    """A text that is a path or a pattern of paths; of `method:key=value,key=value` and
    `file.py:Class` the paths in it."""
    if not text or "\n" in text or "\0" in text or len(text) > 4096:
        return
    if _exists(text):
        yield text
        return
    if any(sign in text for sign in "*?["):
        yield from sorted(glob.glob(str(expanded(text)), recursive=True))
        return
    file, colon, _ = text.rpartition(":")
    if colon and file.endswith(".py") and _exists(file):
        yield file
        return
    for item in re.split(r"[,|]", text):
        _, equals, value = item.partition("=")
        if equals and value and _exists(value):
            yield value


def _exists(path: str) -> bool:
    try:
        return expanded(path).exists()
    except OSError:  # a text that is too long for a name
        return False


def _is_file(path: Path) -> bool:
    return _exists(str(path)) and path.is_file()


# --------------------------------------------------------------------------------- what is in there


def _content(path: str) -> dict[str, Contents]:
    source = expanded(path)
    if source.is_file():
        contents = {path: {"": file_hash(source)}}
        brought = (
            _named_in_yaml(source) if source.suffix in (".yaml", ".yml") else _pictures(source)
        )
        return contents | {str(file): {"": file_hash(file)} for file in brought}
    if (source / "config.json").is_file() or (source / "adapter_config.json").is_file():
        names = [
            file.name
            for file in source.iterdir()
            if file.is_file() and OF_A_MODEL.fullmatch(file.name)
        ]
        base = _base(source)
        return {
            path: {name: file_hash(source / name) for name in sorted(names)},
            **(_content(base) if base else {}),
        }
    return {path: {name: file_hash(source / name) for name in _visible_files(source)}}


def _base(adapter: Path) -> str | None:
    """The base that an adapter's folder names, where it is a folder."""
    if (adapter / "config.json").is_file():
        return None
    base = _json(adapter / "adapter_config.json").get("base_model_name_or_path")
    is_folder = (
        isinstance(base, str) and base and expanded(base).is_dir() and real(base) != real(adapter)
    )
    return str(base) if is_folder else None


def _named_in_yaml(file: Path) -> list[Path]:
    """The files that a YAML names, relative to it or to where the command runs; whatever its tags
    are. Functions are called by `!function module.name`."""
    text = file.read_text(encoding="utf-8", errors="replace")
    words = set(re.findall(r"[^\s'\"\[\]{},]+", text))
    words |= {f"{module}.py" for module in re.findall(r"!function\s+(\w+)\.", text)}
    files = []
    for word in sorted(words):
        for path in (file.parent / word, expanded(word)):
            if _is_file(path) and real(path) != real(file):
                files.append(path)
    return files


def _pictures(rows: Path) -> list[Path]:
    """The files of pictures that JSON rows name, relative to them or to where the command runs;
    known by their ends."""
    if rows.suffix not in (".json", ".jsonl"):
        return []
    with open(rows, "rb") as file:
        if not _PICTURE.search(file.read(2**20)):
            return []
        file.seek(0)
        names: set[str] = set()
        for line in file:
            names.update(match.decode("utf-8", "replace") for match in _PICTURE.findall(line))
    paths: dict[Path, None] = {}
    for name in sorted(names):
        paths |= {rows.parent / name: None, expanded(name): None}
    return [path for path in paths if _is_file(path)]


def _visible_files(folder: Path) -> list[str]:
    """Relative names of all files below a folder but those whose name, or a folder's, begins with a
    dot."""
    names = []
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for file in files:
            if not file.startswith("."):
                names.append(os.path.relpath(os.path.join(parent, file), folder))
    return sorted(names)


def file_hash(file: Path) -> str:
    """SHA-256 (hexadecimal) of a file, read once a process while the file is the same; of a
    `config.json` without what saving a model again changes."""
    stat = file.stat()
    return _hash_of(str(real(file)), stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


@functools.lru_cache(maxsize=4096)
def _hash_of(file: str, *_stat: int) -> str:
    if os.path.basename(file) == "config.json":
        content = _json(Path(file))
        if content:
            return fingerprint(
                {key: value for key, value in content.items() if key not in AS_SAVED}
            )
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _json(file: Path) -> dict[str, Any]:
    """A JSON object; empty where there is none, which those who load the model name."""
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
