"""Folders that an old tree finished or left half done, continued by the old tree and by the one under test.

Both continuations start from the same files, in the same place. They must end alike, tensor for tensor, and what the
old tree did not touch because it was finished, the new one must not touch either.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import commandline
import gallery
import material

LONG = [
    "train",
    "--config",
    "train.yaml",
    *gallery.METHODS["label_annealing-cached"],
    "--max_steps",
    "60",
    "--save_steps",
    "5",
]
TEXTS = [
    "--perplexity",
    *(f"{name}.jsonl" for name in ("train", "prose", "code", "old")),
    "--memorisation",
    "train.jsonl",
]

FINISHED: list[tuple[str, list[str]]] = [
    ("whole-run", [*LONG, "--output_dir", "finished/run"]),
    ("evaluation", ["evaluate", "base", "math", "--suite", "suite.yaml", "--output_dir", "finished/measured"]),
    ("sweep", ["sweep", "--config", "finished-sweep.yaml", *gallery.WITHIN]),
    ("update", ["update", "--config", "update.yaml", "--output_dir", "finished/updated"]),
    ("world", ["world", "--output_dir", "finished/world", "--quick", *gallery.WITHIN]),
]
HALF: list[tuple[str, list[str], Callable[[Path], bool]]] = [
    ("half-run", [*LONG, "--output_dir", "half/run"], lambda p: (p / "half/run/checkpoint-10").exists()),
    (
        "half-evaluation",
        ["evaluate", "base", "math", "code", *TEXTS, "--output_dir", "half/measured"],
        lambda p: len(list(p.glob("half/measured/math/**/*.json"))) >= 2,
    ),
    (
        "half-sweep",
        ["sweep", "--config", "half-sweep.yaml", *gallery.WITHIN],
        lambda p: _runs_done(p / "half/study") >= 3,
    ),
    (
        "half-update",
        ["update", "--config", "update.yaml", "--output_dir", "half/updated"],
        lambda p: _runs_done(p / "half/updated") >= 1,
    ),
    (
        "half-residuals",
        ["residual", "study", "--config", "residuals.yaml", "--output_dir", "half/residuals", *gallery.WITHIN],
        lambda p: _runs_done(p / "half/residuals") >= 2,
    ),
]
"""Name, words, and when it is stopped."""
REWRITTEN = {".html", ".md", ".log", ".db", ".lock", ".out", ".err", ".xml"}
"""Endings of files that may be written anew."""


def _runs_done(study: Path) -> int:
    return sum('"status": "finished"' in path.read_text() for path in study.glob("runs/**/run.json"))


def begin(place: Path) -> None:
    """Finishes what is to be finished and stops what is to be stopped, in a new folder with the material.

    Raises:
        RuntimeError: a command failed, or could not be stopped half-way.
    """
    gallery.material_in(place)
    for name in ("finished", "half"):
        material.write_yaml(str(place / f"{name}-sweep.yaml"), {**material.SWEEP, "output_dir": f"{name}/study"})
    gallery.make(place, FINISHED)
    for name, words, stop in HALF:
        outcome = commandline.holdfast(words, place, stop_when=lambda stop=stop: stop(place))
        print(f"  {name}: stopped", file=sys.stderr, flush=True)
        if outcome.code != 130:
            raise RuntimeError(
                f"{name}: expected to be stopped half-way (exit code 130), got {outcome.code}:\n{outcome.err[-2000:]}"
            )


def go_on(place: Path) -> dict[str, Any]:
    """The same commands again; what was left alone, and what is there at the end.

    Raises:
        RuntimeError: a command failed.
    """
    before = _times(place)
    gallery.make(place, [*FINISHED, *((name, words) for name, words, _ in HALF)])
    after = _times(place)
    found = {part: getattr(gallery, part)(place) for part in ("records", "fingerprints", "weights")}
    return {"kept": sorted(path for path, time in before.items() if after.get(path) == time), **found}


def _times(place: Path) -> dict[str, int]:
    """When each file was written, in nanoseconds."""
    files = (p for p in place.rglob("*") if p.is_file() and p.suffix not in REWRITTEN)
    return {str(p.relative_to(place)): p.stat().st_mtime_ns for p in files}


def differences(work: Path, old_src: Path) -> list[str]:
    """What the tree under test does otherwise than the old one in the same folders; a line each."""
    import differences as json_values

    work.mkdir()
    place, copy, found_there = work / "place", work / "copy", work / "old.json"
    _with_tree(old_src, f"import folders; from pathlib import Path; folders.begin(Path({str(place)!r}))")
    shutil.copytree(place, copy, symlinks=True)  # with the times of the files
    _with_tree(
        old_src,
        f"import folders, json; from pathlib import Path; "
        f"Path({str(found_there)!r}).write_text(json.dumps(folders.go_on(Path({str(place)!r}))))",
    )
    shutil.rmtree(place)
    copy.rename(place)
    commandline.preload()
    now, old = json.loads(json.dumps(go_on(place))), json.loads(found_there.read_text())
    kept = set(old.pop("kept"))
    print(f"  {len(kept)} files that the old tree left alone", file=sys.stderr)
    again = kept - set(now.pop("kept"))
    found = [f"folders: written again although it was there: {path}" for path in sorted(again)]
    if now["weights"]["half/run/model.safetensors"] != now["weights"]["finished/run/model.safetensors"]:
        found.append(
            "folders: the run that was stopped and continued ended with other weights than the one that was not"
        )
    return found + json_values.differences(old, now, "folders")


def _with_tree(source: Path, code: str) -> None:
    """Runs Python with another tree's source."""
    here = Path(__file__).resolve().parent
    path = os.pathsep.join([str(source.resolve()), str(here), str(here.parents[1] / "tests")])
    subprocess.run(
        [sys.executable, "-c", f"import commandline; commandline.preload(); {code}"],
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
