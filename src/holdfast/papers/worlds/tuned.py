"""Small models tuned of small bases, cached beside them, and what everything that is made on the spot needs: one maker
at a time, a key for what is made already, a quiet run.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.errors import FolderBusy
from holdfast.support.cache import cache_folder
from holdfast.support.files import fingerprint, read_object, write_bytes_atomic, write_json, write_jsonl

_OF_THE_RUN = ("run.json", "report.json", "training_args.json", "trainer_state.json", "base.json", "comparisons.json")
"""What a run leaves beside its model."""


def tuning_cache() -> Path:
    """The cache's folder of small bases and what is tuned of them; nobody writes into a model there."""
    return cache_folder() / "bases"


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """A model that is trained from a base: everything that decides its weights."""

    name: str
    """Of the folder."""
    base: Path
    """Checkpoint with its tokenizer."""
    rows: Sequence[Mapping[str, Any]]
    """Text or messages."""
    settings: Mapping[str, Any]
    """For `holdfast.runs.config.train_config`, without model, data, output and retention."""
    about: str
    """What is printed while it goes on."""
    chat_template: str | None = None
    """Of the result's tokenizer; None: the base's."""
    replayed: Sequence[str] = ()
    """Texts that are mixed in."""
    fraction: float = 0.0
    """Their share of the tokens."""

    @property
    def template(self) -> str:
        """The chat template of the result."""
        return (
            (self.base / "chat_template.jinja").read_text(encoding="utf-8")
            if self.chat_template is None
            else self.chat_template
        )

    @functools.cached_property
    def folder(self) -> Path:
        """Where the model lies once it is made."""
        from holdfast.checkpoints.reader import checkpoint_hash

        libraries = deciding_libraries()
        deciding = [
            checkpoint_hash(self.base),
            self.template,
            list(self.rows),
            dict(self.settings),
            list(self.replayed),
            self.fraction,
            libraries,
        ]
        return tuning_cache() / fingerprint(deciding, length=16) / self.name

    @property
    def made(self) -> bool:
        """Whether it is there."""
        return (self.folder / "base.json").is_file()


def small_run(*, rows: int, tokens: int, seed: int) -> dict[str, Any]:
    """Settings of a run of a small model on packed rows, on a CPU.

    Args:
        rows: a step.
        tokens: of a row.
        seed: of the run.
    """
    return {
        "per_device_train_batch_size": rows,
        "packing": True,
        "packing_strategy": "wrapped",
        "max_length": tokens,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 5,
        "gradient_checkpointing": False,
        "logging_steps": 10,
        "save_strategy": "steps",
        "save_total_limit": 1,
        "use_cpu": True,
        "report_to": "none",
        "seed": seed,
    }


def cached_tuning(tuning: Tuning, *, console: Any = None, callbacks: Sequence[Any] = ()) -> Path:
    """The model of a tuning, made or found made; an interrupted training goes on from its last checkpoint.

    Args:
        tuning: what is trained.
        console: a `rich.console.Console` for progress.
        callbacks: of the trainer, for those who watch from outside.

    Raises:
        Interrupted: Ctrl-C; the same call goes on.
    """
    from holdfast.checkpoints.reader import checkpoint_hash
    from holdfast.runs.config import train_config
    from holdfast.runs.run import train
    from holdfast.training.checkpoint_folders import remove_folder

    folder, template = tuning.folder, tuning.template
    with exclusive_lock(folder.parent):
        if tuning.made:
            return folder
        work = tuning_cache() / f"{folder.parent.name}.training"
        start = tuning.base if tuning.chat_template is None else with_template(tuning.base, work / "start", template)
        data = write_jsonl(work / "rows.jsonl", tuning.rows)
        retention: Any = "none"
        if tuning.fraction > 0:
            old = write_jsonl(work / "replayed.jsonl", [{"text": text} for text in tuning.replayed])
            retention = [{"replay": {"data": str(old), "fraction": tuning.fraction}}]
        place = {
            "retention": retention,
            "model_name_or_path": str(start),
            "dataset_name": str(data),
            "output_dir": str(work / tuning.name),
        }
        if console is not None:
            console.print(tuning.about, highlight=False)
        with quiet_console(console) as quiet:
            run = train(train_config({**tuning.settings, **place}), console=quiet, callbacks=callbacks).path
        finished = with_template(run, work / "finished", template)
        about = {
            "name": tuning.name,
            "rows": len(tuning.rows),
            "start": checkpoint_hash(tuning.base),
            "libraries": deciding_libraries(),
        }
        write_json(finished / "base.json", about)
        remove_folder(folder)
        os.replace(finished, folder)
        remove_folder(work)
    return folder


def with_template(model: Path, folder: Path, chat_template: str) -> Path:
    """A copy of a model's weights, settings and tokenizer, which has the chat template; without what a run left beside
    them."""
    from holdfast.training.checkpoint_folders import remove_folder

    staging = folder.with_name(f".{folder.name}.part")
    remove_folder(staging)
    staging.mkdir(parents=True)
    for path in sorted(model.iterdir()):
        kept = (
            path.suffix in (".json", ".safetensors", ".jinja")
            and path.name not in _OF_THE_RUN
            and not path.name.startswith(".")
        )
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
    found = read_object(place / record)
    paths = found.get("paths")
    if found.get("key") != key or not isinstance(paths, dict):
        return None
    return dict(paths) if all(Path(str(path)).exists() for path in paths.values()) else None


def deciding_libraries() -> dict[str, str]:
    """Versions that decide weights."""
    from importlib.metadata import version

    return {name: version(name) for name in ("torch", "transformers", "tokenizers")}


@contextlib.contextmanager
def exclusive_lock(folder: Path) -> Iterator[None]:
    """One process at a time in the body; the others wait, then find the work done. Reentrant within a process."""
    from holdfast.support.environment import lock_folder

    with contextlib.ExitStack() as stack:
        if str(folder) not in _HELD:
            while True:
                try:
                    stack.enter_context(lock_folder(folder))
                    break
                except FolderBusy:
                    time.sleep(0.5)
            _HELD.add(str(folder))
            stack.callback(_HELD.discard, str(folder))
        yield


_HELD: set[str] = set()
"""Folders that this process has locked already."""


@contextlib.contextmanager
def quiet_console(console: Any) -> Iterator[Any]:
    """A console for a run inside another command: its progress bar shows in a terminal, its report does not."""
    from rich.console import Console

    if console is not None and console.is_terminal:
        yield console
    else:
        yield Console(file=io.StringIO(), width=120)
