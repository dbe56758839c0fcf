"""Small models tuned of small bases, cached beside them, and what everything that is made on the
spot needs: one maker at a time, a key for what is made already, files of rows.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.errors import RunFolderError
from holdfast.support.cache import cache_folder
from holdfast.support.environment import wait_for_lock
from holdfast.support.files import fingerprint, read_object, write_json, write_jsonl

_OF_THE_RUN = (
    "run.json",
    "report.json",
    "training_args.json",
    "trainer_state.json",
    "base.json",
    "comparisons.json",
)
"""What a run leaves beside its model."""
_MODEL_SUFFIXES = (".json", ".safetensors", ".jinja")

Contents = Mapping[str, Path | Sequence[str] | Sequence[Mapping[str, Any]]]
"""Files by name: texts or rows that are still to be written, or where the file lies."""


def tuning_cache() -> Path:
    """The cache's folder of small bases and what is tuned of them; nobody writes into a model
    there."""
    return cache_folder() / "bases"


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """A model that is trained from a base: everything that decides its weights."""

    name: str
    """Of the folder."""
    base: Path
    """Checkpoint with its tokenizer, whose chat template the result has."""
    rows: Sequence[Mapping[str, Any]]
    """Text or messages."""
    settings: Mapping[str, Any]
    """For `holdfast.runs.config.train_config`, without model, data, output and retention."""
    about: str
    """What is printed while it goes on."""
    replayed: Sequence[str] = ()
    """Texts that are mixed in."""
    fraction: float = 0.0
    """Their share of the tokens."""

    @functools.cached_property
    def folder(self) -> Path:
        """Where the model lies once it is made."""
        from holdfast.checkpoints.reader import checkpoint_hash

        template = (self.base / "chat_template.jinja").read_text(encoding="utf-8")
        data = [list(self.rows), dict(self.settings), list(self.replayed), self.fraction]
        deciding = [checkpoint_hash(self.base), template, *data, deciding_libraries()]
        return tuning_cache() / fingerprint(deciding, length=16) / self.name

    @property
    def made(self) -> bool:
        """Whether it is there."""
        return (self.folder / "base.json").is_file()


def cached_tuning(tuning: Tuning, *, console: Any = None, callbacks: Sequence[Any] = ()) -> Path:
    """The model of a tuning, made or found made; an interrupted training goes on from its last
    checkpoint.

    Args:
        tuning: what is trained.
        console: a `rich.console.Console` for progress.
        callbacks: of the trainer, for those who watch from outside.

    Raises:
        Interrupted: Ctrl-C; the same call goes on.
    """
    with exclusive_lock(tuning.folder.parent):
        if not tuning.made:
            _tune(tuning, console, callbacks)
    return tuning.folder


def _tune(tuning: Tuning, console: Any, callbacks: Sequence[Any]) -> None:
    from rich.console import Console

    from holdfast.checkpoints.reader import checkpoint_hash
    from holdfast.runs.config import train_config
    from holdfast.runs.run import train
    from holdfast.training.checkpoint_folders import remove_folder

    work = tuning_cache() / f"{tuning.folder.parent.name}.training"
    retention: Any = "none"
    if tuning.fraction > 0:
        replayed = write_jsonl(
            work / "replayed.jsonl", [{"text": text} for text in tuning.replayed]
        )
        retention = [{"replay": {"data": str(replayed), "fraction": tuning.fraction}}]
    paths = {
        "retention": retention,
        "model_name_or_path": str(tuning.base),
        "dataset_name": str(write_jsonl(work / "rows.jsonl", tuning.rows)),
        "output_dir": str(work / tuning.name),
    }
    if console is not None:
        console.print(tuning.about, highlight=False)
    if console is None or not console.is_terminal:  # a terminal shows the run's progress bar
        console = Console(file=io.StringIO(), width=120)
    run = train(
        train_config({**tuning.settings, **paths}), console=console, callbacks=callbacks
    ).path
    finished = work / "finished"
    remove_folder(finished)
    finished.mkdir()
    for path in sorted(run.iterdir()):
        is_models = (
            path.suffix in _MODEL_SUFFIXES
            and path.name not in _OF_THE_RUN
            and not path.name.startswith(".")
        )
        if path.is_file() and is_models:
            shutil.copyfile(path, finished / path.name)
    shutil.copyfile(tuning.base / "chat_template.jinja", finished / "chat_template.jinja")
    about = {
        "name": tuning.name,
        "rows": len(tuning.rows),
        "start": checkpoint_hash(tuning.base),
        "libraries": deciding_libraries(),
    }
    write_json(finished / "base.json", about)
    remove_folder(tuning.folder)
    tuning.folder.parent.mkdir(exist_ok=True)
    os.replace(finished, tuning.folder)
    remove_folder(work)


def made_once(
    folder: Path, record: str, key: str, make: Callable[[], Mapping[str, Path]], **about: Any
) -> dict[str, str]:
    """The absolute paths of files that are made under a key, or found made.

    Args:
        folder: gets the record; one process at a time makes something there.
        record: name of the JSON file with the key and the paths.
        key: what decides the files.
        make: makes them; the path of each by its name.
        about: for the record besides.
    """
    with exclusive_lock(folder):
        paths = made_already(folder / record, key)
        if paths is None:
            paths = {name: str(path) for name, path in make().items()}
            write_json(folder / record, {"key": key, **about, "paths": paths})
    return paths


def made_already(record: Path, key: str) -> dict[str, str] | None:
    """The paths in a record of `made_once`; None where it has another key, or one of them is
    gone."""
    values = read_object(record) if record.is_file() else {}
    paths = values.get("paths")
    if values.get("key") != key or not isinstance(paths, dict):
        return None
    return dict(paths) if all(Path(str(path)).exists() for path in paths.values()) else None


def write_files(folder: Path, contents: Contents) -> dict[str, Path]:
    """The path of each file, `<name>.jsonl` of those that are written now."""
    paths = {}
    for name, content in contents.items():
        if isinstance(content, Path):
            paths[name] = content
        else:
            rows = ({"text": row} if isinstance(row, str) else row for row in content)
            paths[name] = write_jsonl(folder / f"{name}.jsonl", rows)
    return paths


def deciding_libraries() -> dict[str, str]:
    """Versions that decide weights."""
    from importlib.metadata import version

    return {name: version(name) for name in ("torch", "transformers", "tokenizers")}


@contextlib.contextmanager
def exclusive_lock(folder: Path) -> Iterator[None]:
    """One process at a time in the body; the others wait, then find the work done.

    Raises:
        RunFolderError: the folder's parent cannot be written.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(wait_for_lock(folder))
        except OSError as error:
            raise RunFolderError(
                f"Could not write in {folder.parent} ({error.strerror or error}). Choose another "
                "folder (HOLDFAST_CACHE)."
            ) from error
        yield
