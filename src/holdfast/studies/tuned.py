"""Small models tuned of small bases, cached beside them, and what everything that is made on the spot needs: one maker at a time, a key for what is
made already, a quiet run.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.cache import cache_folder
from holdfast.errors import RunFolderError
from holdfast.results import fingerprint, read_json, write_bytes_atomic, write_json, write_jsonl

_OF_THE_RUN = ("run.json", "report.json", "training_args.json", "trainer_state.json", "base.json", "comparisons.json")
"""What a run leaves beside its model."""


def shelf() -> Path:
    """The cache's folder of small bases and what is tuned of them; nobody writes into a model there."""
    return cache_folder() / "bases"


def cached_tuning(
    name: str,
    base: Path,
    rows: Sequence[Mapping[str, Any]],
    settings: Mapping[str, Any],
    *,
    said: str,
    console: Any = None,
    chat_template: str | None = None,
    replayed: Sequence[str] = (),
    fraction: float = 0.0,
) -> Path:
    """A model trained from `base` on rows, in the cache under what decides its weights; an interrupted training goes on from its last checkpoint.

    Args:
        name: the folder's.
        base: checkpoint with its tokenizer.
        rows: text or messages.
        settings: for `holdfast.training.config.train_config`, without model, data, output and retention.
        said: what is said while it goes on.
        console: a `rich.console.Console` for progress.
        chat_template: of the result's tokenizer; None: the base's.
        replayed: texts that are mixed in.
        fraction: their share of the tokens.

    Raises:
        Interrupted: Ctrl-C; the same call goes on.
    """
    from holdfast.checkpoints.reader import checkpoint_hash
    from holdfast.training.checkpoint_folders import remove_folder
    from holdfast.training.config import train_config
    from holdfast.training.run import train

    template = (base / "chat_template.jinja").read_text(encoding="utf-8") if chat_template is None else chat_template
    deciding = [checkpoint_hash(base), template, list(rows), dict(settings), list(replayed), fraction, deciding_libraries()]
    key = fingerprint(deciding, length=16)
    folder = shelf() / key / name
    with alone(shelf()):
        if (folder / "base.json").is_file():
            return folder
        work = shelf() / f"{key}.training"
        start = base if chat_template is None else with_template(base, work / "start", template)
        data = write_jsonl(work / "rows.jsonl", rows)
        retention: Any = "none"
        if fraction > 0:
            old = write_jsonl(work / "replayed.jsonl", [{"text": text} for text in replayed])
            retention = [{"replay": {"data": str(old), "fraction": fraction}}]
        place = {"retention": retention, "model_name_or_path": str(start), "dataset_name": str(data), "output_dir": str(work / name)}
        if console is not None:
            console.print(said, highlight=False)
        with folded(console) as quiet:
            run = train(train_config({**settings, **place}), console=quiet).path
        finished = with_template(run, work / "finished", template)
        write_json(finished / "base.json", {"name": name, "rows": len(rows), "start": checkpoint_hash(base), "libraries": deciding_libraries()})
        folder.parent.mkdir(parents=True, exist_ok=True)
        remove_folder(folder)
        os.replace(finished, folder)
        remove_folder(work)
    return folder


def with_template(model: Path, folder: Path, chat_template: str) -> Path:
    """A copy of a model's weights, settings and tokenizer, which has the chat template; without what a run left beside them."""
    from holdfast.training.checkpoint_folders import remove_folder

    staging = folder.with_name(f".{folder.name}.part")
    remove_folder(staging)
    staging.mkdir(parents=True)
    for path in sorted(model.iterdir()):
        kept = path.suffix in (".json", ".safetensors", ".jinja") and path.name not in _OF_THE_RUN and not path.name.startswith(".")
        if path.is_file() and kept:
            shutil.copyfile(path, staging / path.name)
    write_bytes_atomic(staging / "chat_template.jinja", chat_template.encode())
    remove_folder(folder)
    os.replace(staging, folder)
    return folder


def made_already(place: Path, record: str, key: str) -> dict[str, str] | None:
    """The paths of what lies in `place` whole under this key, None where it does not.

    Args:
        place: the folder.
        record: name of the JSON file in it, with "key" and "paths".
        key: what decided the files.
    """
    if not (place / record).is_file():
        return None
    found = read_json(place / record)
    whole = found.get("key") == key and all(Path(path).exists() for path in found["paths"].values())
    return dict(found["paths"]) if whole else None


def deciding_libraries() -> dict[str, str]:
    """Versions that decide weights."""
    from importlib.metadata import version

    return {name: version(name) for name in ("torch", "transformers", "tokenizers")}


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One process at a time, here: the others wait, and then find the work done. Within itself it does nothing."""
    from holdfast.environment import lock_folder

    with contextlib.ExitStack() as stack:
        if str(folder) not in _HELD:
            while True:
                try:
                    stack.enter_context(lock_folder(folder))
                    break
                except RunFolderError as error:
                    if "Another holdfast process" not in str(error):
                        raise
                    time.sleep(0.5)
            _HELD.add(str(folder))
            stack.callback(_HELD.discard, str(folder))
        yield


_HELD: set[str] = set()
"""Folders that this process has locked already."""


@contextlib.contextmanager
def folded(console: Any) -> Iterator[Any]:
    """A console for a run whose own story is nobody's business: its progress bar shows, its report does not."""
    from rich.console import Console

    if console is not None and console.is_terminal:
        yield console
    else:
        yield Console(file=io.StringIO(), width=120)
