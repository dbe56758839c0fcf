"""Commands that are killed at any moment, and the same command again: the result is bit for bit that of one that was
never killed, and nothing else lies beside it."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gallery
import what_stays
from fuzz.stage import Stage, run

BASE = ["train", "--config", "train.yaml", "--save_steps", "2", "--output_dir", "out"]
KILLED: dict[str, list[str]] = {
    "train": [*BASE, "--retention", "none"],
    "train, annealed": [*BASE, "--retention", "label_annealing:weight=1.0,teacher=cached"],
    "train, averaged": [*BASE, "--retention", "sfa:every=2"],
    "train, replayed": [*BASE, "--retention", "replay:data=old.jsonl,fraction=0.3", "--retention", "ema:decay=0.9"],
    "train, EWC": [*BASE, "--retention", "ewc:data=old.jsonl,samples=8"],
    "train, LoRA": [*BASE, *gallery.METHODS["lora"]],
    "evaluate": ["evaluate", "base", "math", "code", "--suite", "suite.yaml", "--output_dir", "out"],
    "merge": [
        "merge",
        "math",
        "code",
        "--base",
        "base",
        "--method",
        "dare",
        "--p",
        "0.5",
        "--seed",
        "3",
        "--output_dir",
        "out",
    ],
    "apply": [
        "residual",
        "apply",
        "--instruct",
        "instruct",
        "--old_base",
        "base",
        "--base",
        "math",
        "--output_dir",
        "out",
    ],
    "update": ["update", "--config", "update.yaml", "--output_dir", "out"],
    "sweep": ["sweep", "--config", "sweep.yaml", "--output_dir", "out", "--workers", "1"],
}
OFTEN = (
    "train",
    "train, annealed",
    "train, averaged",
    "train, replayed",
    "train, EWC",
    "train, LoRA",
    "evaluate",
    "merge",
    "apply",
)
_COUNTED = {"sessions", "stages", "notes", "attempt", "deaths", "resumed", "reused", "cached", "status_text"}
"""Keys that tell how often a command was begun."""


@dataclass(frozen=True, kw_only=True)
class Whole:
    """A command that was not killed."""

    seconds: float
    result: dict[str, Any]
    names: list[str]


def result_of(folder: Path) -> dict[str, Any]:
    """Everything in `out` that is a result: tensors, figures, rows."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(part) for key, part in value.items() if key not in _COUNTED}
        return [plain(part) for part in value] if isinstance(value, list) else value

    out = folder / "out"
    found: dict[str, Any] = {}
    for path in sorted(
        p for p in out.rglob("*") if p.is_file() and not any(part.startswith(".") for part in p.relative_to(out).parts)
    ):
        name = what_stays.HEX.sub("HEX", str(path.relative_to(out)))
        if path.suffix == ".safetensors":
            found[name] = what_stays.tensors_hash(path)
        elif path.suffix == ".json" and not what_stays.ASIDE.fullmatch(path.name):
            found[name] = plain(
                what_stays.without_hashes(what_stays.normalised(json.loads(path.read_text()), str(folder)))
            )
        elif path.suffix == ".jsonl":
            rows = [
                plain(what_stays.normalised(json.loads(line), str(folder))) for line in path.read_text().splitlines()
            ]
            found[name] = hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()
    return found


def names_of(folder: Path) -> list[str]:
    """Every file in `out`, hidden ones too; logs of workers aside."""
    found = (p.relative_to(folder / "out") for p in (folder / "out").rglob("*") if p.is_file())
    return sorted(what_stays.HEX.sub("HEX", str(p)) for p in found if "logs" not in p.parts)


def whole(stage: Stage, name: str, place: Path) -> Whole:
    """Runs a command to its end; what it leaves.

    Raises:
        RuntimeError: it failed.
    """
    folder = place / f"whole-{list(KILLED).index(name)}"
    stage.offer(folder, ("cache",))
    began = time.monotonic()
    outcome = run(KILLED[name], folder, limit=300)
    if outcome.code != 0:
        raise RuntimeError(f"{name}: {outcome.err[-2000:]}")
    found = Whole(seconds=time.monotonic() - began, result=result_of(folder), names=names_of(folder))
    shutil.rmtree(folder)
    return found


def kill(stage: Stage, folder: Path, name: str, before: Whole, rng: random.Random) -> tuple[str, str | None]:
    """Kills a command once or twice, runs it to its end, and looks at what it left.

    Returns:
        When it was killed, and what is wrong; None: nothing.
    """
    stage.offer(folder, ("cache",))
    moments = []
    for _ in range(rng.choice((1, 1, 2))):
        moment = rng.uniform(0.0, before.seconds)
        deadline = time.monotonic() + moment
        outcome = run(
            KILLED[name],
            folder,
            stop_when=lambda end=deadline: time.monotonic() > end,
            stop_with=signal.SIGKILL,
            may_die=True,
            limit=300,
        )  # type: ignore[misc]
        moments.append(f"{moment:.2f} s" if outcome.signal else "not")
        if not outcome.signal:  # it was quicker than the signal
            break
    what = f"{name}: killed after {', '.join(moments)} of {before.seconds:.2f} s"
    if outcome.signal:
        outcome = run(KILLED[name], folder, may_die=True, limit=300)
    if outcome.code != 0:
        return what, f"the same command again ended with {outcome.code or outcome.signal}: {outcome.err[-600:]}"
    found = result_of(folder)
    for path in sorted({*found, *before.result}):
        if found.get(path) != before.result.get(path):
            return what, f"{path} differs: {_difference(before.result.get(path), found.get(path))}"
    left = sorted(set(names_of(folder)) - set(before.names))
    return what, f"left behind: {', '.join(left)}" if left else None


def _difference(one: Any, other: Any, place: str = "") -> str:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}):
            if one.get(key) != other.get(key):
                return _difference(one.get(key), other.get(key), f"{place}.{key}")
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, (left, right) in enumerate(zip(one, other, strict=True)):
            if left != right:
                return _difference(left, right, f"{place}[{number}]")
    return f"{place}: {str(one)[:80]} and {str(other)[:80]}"
