"""What a checkpoint has to hold so that a run can go on from it, by the names that transformers,
accelerate and DeepSpeed give their files.

transformers passes over most of what is missing: without `optimizer.pt` or `scheduler.pt` it goes
on with new ones.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import TrainerState

from holdfast.checkpoints import manifest
from holdfast.checkpoints.reader import index_file, read_header, read_index
from holdfast.errors import ModelError
from holdfast.training.checkpoint_folders import step_of

TRAINER_STATE = "trainer_state.json"
STATE_FILE = "retention_state.json"
TENSOR_FILE = "retention_state.safetensors"
SEALED = "manifest"
"""Key of `STATE_FILE`: the checkpoint was given a manifest."""
_WEIGHTS = (
    "model*.safetensors",
    "adapter_model*.safetensors",
    "*/adapter_model.safetensors",
    "pytorch_model*.bin",
)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A run, as far as it decides what its checkpoints hold."""

    methods: bool
    """It has retention methods, whose state is in `STATE_FILE`."""
    sharded: str
    """"fsdp" or "deepspeed", which write weights and optimiser in folders of their own; empty:
    neither."""
    processes: int
    scaler: bool
    """It scales the loss (fp16)."""


def lacking(folder: Path, parts: Parts, *, strict: bool) -> list[str]:
    """What a checkpoint lacks, half a sentence a file; empty where a run can go on from it.

    Args:
        folder: the checkpoint's.
        parts: the run that is to go on.
        strict: it has to be this run's own; else a plain trainer's will do where there are no
            methods, and one of another number of processes.
    """
    problems = _state_problems(folder)
    if not problems and (strict or parts.methods or (folder / STATE_FILE).exists()):
        problems = _method_problems(folder)
    rng = {path.name for path in folder.glob("rng_state*.pth")}
    expected = {"rng_state.pth"}
    if parts.processes > 1:
        expected = {f"rng_state_{rank}.pth" for rank in range(parts.processes)}
    optimizer, weights = _sharded(folder, parts) if parts.sharded else _plain(folder, parts)
    if optimizer and not rng:
        return [*problems, "it has only the model, because of save_only_model: true"]
    if strict or not rng:
        optimizer += [f"{name} is missing" for name in sorted(expected - rng)]
    return [*problems, *weights, *optimizer]


def unreadable(folder: Path) -> list[str]:
    """Files of a checkpoint without a manifest that cannot be what they were: cut off, or changed
    where the format has a checksum."""
    problems = []
    for path in sorted(folder.iterdir()):
        try:
            if path.suffix == ".json":
                json.loads(path.read_text(encoding="utf-8"))
            elif path.suffix == ".safetensors":
                read_header(path)
            elif path.suffix in (".pt", ".pth"):
                with zipfile.ZipFile(path) as archive:
                    if archive.testzip() is not None:
                        raise zipfile.BadZipFile
        except (
            OSError,
            ValueError,
            RecursionError,
            ModelError,
            zipfile.BadZipFile,
            NotImplementedError,
        ):
            problems.append(f"{path.name} cannot be read")
    index = index_file(folder)
    if index is not None and f"{index.name} cannot be read" not in problems:
        try:
            shards = sorted(set(read_index(index).values()))
        except ModelError:
            return [*problems, f"{index.name} cannot be read"]
        problems += _missing_files(folder, shards)
    return problems


def _missing_files(folder: Path, names: Sequence[str]) -> list[str]:
    return [f"{name} is missing" for name in names if not (folder / name).is_file()]


def best_of(folder: Path) -> Path | None:
    """The best checkpoint so far, as a checkpoint's state names it; looked for beside it, where a
    run's folder was moved."""
    best = TrainerState.load_from_json(str(folder / TRAINER_STATE)).best_model_checkpoint
    return folder.parent / Path(best).name if best else None


def _state_problems(folder: Path) -> list[str]:
    """The trainer's state is there, and of the step that the folder is named after."""
    if not (folder / TRAINER_STATE).is_file():
        return [f"{TRAINER_STATE} is missing"]
    try:
        state = TrainerState.load_from_json(str(folder / TRAINER_STATE))
    except (OSError, TypeError, ValueError, AttributeError, RecursionError):
        return [f"{TRAINER_STATE} cannot be read"]
    step, last = state.global_step, state.max_steps
    is_step = (
        type(step) is int and step > 0 and (type(last) is not int or last <= 0 or step <= last)
    )
    if not is_step or step_of(folder) not in (step, None):
        return [f"{TRAINER_STATE} says step {step!r}"]
    return []


def _method_problems(folder: Path) -> list[str]:
    """The methods' state is there and can be read, and with it the manifest, where there was
    one."""
    if not (folder / STATE_FILE).is_file():
        return [f"{STATE_FILE} is missing"]
    try:
        state: Any = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
        tensors: set[str] = set()
        for number, entry in enumerate(state["methods"]):
            if not isinstance(entry["state"], dict) or "method" not in entry:
                raise ValueError
            for key in entry["tensors"]:
                tensors.add(f"{number}.{key}")
        sealed = bool(state.get(SEALED))
    except (OSError, AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return [f"{STATE_FILE} cannot be read"]
    if sealed and not (folder / manifest.FILE).exists():
        return [f"{manifest.FILE} is missing"]
    if not tensors:
        return []
    if not (folder / TENSOR_FILE).is_file():
        return [f"{TENSOR_FILE} is missing"]
    try:
        stored = {entry.name for entry in read_header(folder / TENSOR_FILE)[1]}
    except ModelError:
        return [f"{TENSOR_FILE} cannot be read"]
    return [f"{TENSOR_FILE} lacks {name}" for name in sorted(tensors - stored)]


def _plain(folder: Path, parts: Parts) -> tuple[list[str], list[str]]:
    """(what is missing of the optimiser, of the weights) where one process writes them."""
    names = ["optimizer.pt", "scheduler.pt", *(["scaler.pt"] if parts.scaler else [])]
    missing = _missing_files(folder, names)
    if any(any(folder.glob(pattern)) for pattern in _WEIGHTS):
        return missing, []
    adapter = (folder / "adapter_config.json").is_file()
    return missing, [f"{'adapter_model' if adapter else 'model'}.safetensors is missing"]


def _sharded(folder: Path, parts: Parts) -> tuple[list[str], list[str]]:
    """The same where every process writes its own."""
    if parts.sharded == "deepspeed":
        engine = (folder / "latest").is_file() and any(folder.glob("global_step*/*"))
        return (
            ([], [])
            if engine
            else (["DeepSpeed's own checkpoint (global_step*, latest) is missing"], [])
        )
    optimizer = []
    for pattern in ("optimizer*", "scheduler.pt"):
        if not any(folder.glob(pattern)):
            optimizer.append(f"{pattern} is missing")
    weights = any(folder.glob("pytorch_model_fsdp*"))
    return optimizer, [] if weights else ["pytorch_model_fsdp* is missing"]
