"""Records what a restructuring must leave as it is, and compares a tree with the record.

    python checks/reference/record.py --check                 # every part but the slow ones
    python checks/reference/record.py --check names commands  # some parts
    python checks/reference/record.py --check --slow          # `reproduce --quick` too
    python checks/reference/record.py --check --old-src OLD/src  # folders made by an old tree, continued by this one
    python checks/reference/record.py --record                   # writes expected/*.json

With `PYTHONPATH=src`: the tree under test is the `holdfast` that Python finds. Only its command line, its public names
and the files it writes are used. Weights and figures are compared bit for bit, so they hold on the processor and with
the libraries of the record; elsewhere `--old-src` records them anew from the old tree first.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "tests")]

import commandline
from differences import differences, is_recorded, read_text, write_text

SURFACE = ("names", "commands", "requests")
"""Parts that no processor changes."""
MADE = ("printed", "records", "fingerprints", "weights", "pages")
"""Parts that are read from the gallery; it is made once for all of them."""
SLOW = ("reproduce",)
FOLDERS = "folders"
"""The part that needs `--old-src`."""
LIBRARIES = (
    "torch",
    "transformers",
    "trl",
    "peft",
    "accelerate",
    "datasets",
    "lm_eval",
    "tokenizers",
    "safetensors",
    "numpy",
    "optuna",
)
SHOWN = 60
"""Differences of a part that are printed."""


def main() -> int:
    """Runs one command line; 0: no difference, 1: some, 2: the request has to change."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--check", action="store_true", help="compare, print every difference")
    what.add_argument("--record", action="store_true", help="write the record")
    parser.add_argument(
        "parts",
        nargs="*",
        metavar="PART",
        help=f"{', '.join((*SURFACE, *MADE))}; slow: {', '.join(SLOW)}; with --old-src: {FOLDERS}",
    )
    parser.add_argument("--slow", action="store_true", help="the slow parts too")
    parser.add_argument(
        "--old-src", type=Path, metavar="PATH", help="source folder of the tree that the record stands for"
    )
    parser.add_argument(
        "--expected",
        type=Path,
        default=HERE / "expected",
        metavar="FOLDER",
        help="the record (expected/ beside this file)",
    )
    parser.add_argument(
        "--work", type=Path, metavar="FOLDER", help="work here and keep what was made (a temporary folder)"
    )
    words = parser.parse_args()
    known = (*SURFACE, *MADE, *SLOW, FOLDERS)
    if unknown := [part for part in words.parts if part not in known]:
        parser.error(f"unknown part {', '.join(unknown)}; known: {', '.join(known)}")
    if FOLDERS in words.parts and (words.old_src is None or words.record):
        parser.error(f"{FOLDERS} needs --check and --old-src: what an old tree began is continued by this one")
    parts = words.parts or [
        *SURFACE,
        *MADE,
        *(SLOW if words.slow else ()),
        *([FOLDERS] if words.old_src and words.check else ()),
    ]
    os.environ.update(commandline.QUIET)
    with _work(words.work) as work:
        if words.record:
            for part, value in recorded(parts, work).items():
                write(words.expected / f"{part}.json", value)
            if set(parts) - set(SURFACE):
                write(words.expected / "environment.json", environment())
            return 0
        return check(parts, work, words.expected, words.old_src)


@contextlib.contextmanager
def _work(asked: Path | None) -> Iterator[Path]:
    if asked is not None:
        asked.mkdir(parents=True, exist_ok=True)
        yield asked.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-reference-") as folder:
        yield Path(folder).resolve()


# ------------------------------------------------------------------------------------------------------------ recording


def recorded(parts: list[str], work: Path) -> dict[str, Any]:
    """The value of each part, of the tree under test."""
    import surface

    import gallery
    import what_stays

    found: dict[str, Any] = {}
    with _timed("importing libraries"):
        commandline.preload()
    if "names" in parts:
        with _timed("names"):
            outcome = commandline.in_process(lambda: print(json.dumps(surface.names())), work, name="names")
            found["names"] = json.loads(outcome.out.splitlines()[-1])
    if "commands" in parts:
        with _timed("commands"):
            found["commands"] = surface.commands()
    if "requests" in parts:
        gallery.material_in(work / "requests")
        with _timed("requests"):
            gallery.make(work / "requests", [step for step in gallery.STEPS if step[0] == "evaluate"])
            found["requests"] = surface.requests(work / "requests")
    if set(parts) & set(MADE):
        gallery.material_in(work / "gallery")
        with _timed("gallery"):
            made = {"printed": gallery.make(work / "gallery")}
            made |= {part: getattr(what_stays, part)(work / "gallery") for part in MADE[1:]}
            found |= {part: made[part] for part in MADE if part in parts}
    if "reproduce" in parts:
        place = work / "reproduced"
        place.mkdir()
        with _timed("reproduce"):
            printed = gallery.make(place, what_stays.REPRODUCTIONS)
            found["reproduce"] = {"printed": printed, **what_stays.reproductions(place)}
    return found


@contextlib.contextmanager
def _timed(name: str) -> Iterator[None]:
    began = time.monotonic()
    print(f"{name} ...", file=sys.stderr, flush=True)
    yield
    print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def environment() -> dict[str, str]:
    """What figures and weights depend on beside the keep: the processor with its instructions, and the libraries."""
    facts = dict(
        line.split(":", 1) for line in Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines() if ":" in line
    )
    by_name = {name.strip(): value.strip() for name, value in facts.items()}
    flags = hashlib.sha256(" ".join(sorted(by_name.get("flags", "").split())).encode()).hexdigest()[:8]
    found = {
        "python": platform.python_version(),
        "processor": f"{by_name.get('model name', platform.machine())}, instructions {flags}",
    }
    return found | {name: version(name) for name in LIBRARIES}


def write(path: Path, value: Any) -> None:
    """JSON with one line an entry, so that a difference in the record is a difference of lines; compressed where it is
    large."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{json.dumps(k)}: {json.dumps(v, sort_keys=True, separators=(',', ':'))}" for k, v in value.items()]
    write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")


# ------------------------------------------------------------------------------------------------------------ comparing


def check(parts: list[str], work: Path, expected: Path, old_src: Path | None) -> int:
    """Prints every difference of the tree under test from the record; see `main` for the exit code."""
    plain = [part for part in parts if part != FOLDERS]
    exact = [part for part in plain if part not in SURFACE]
    moved = (
        [
            f"{name}: {old} there, {environment().get(name)} here"
            for name, old in _read(expected / "environment.json").items()
        ]
        if exact
        else []
    )
    moved = [
        line
        for line in moved
        if line.split(": ", 1)[1].split(" there, ")[0] != line.rsplit(" there, ", 1)[1].removesuffix(" here")
    ]
    if exact and moved and old_src is not None:
        print(f"The record of {', '.join(exact)} was made elsewhere; recording {old_src} anew.", file=sys.stderr)
        _record_old(old_src, exact, work)
    elif exact and moved:
        print(
            f"Not compared: {', '.join(exact)}. The record was made elsewhere; name the old tree with --old-src PATH.",
            *moved,
            sep="\n  ",
        )
        plain = [part for part in plain if part in SURFACE]
    now = recorded(plain, work) if plain else {}
    total = 0
    for part in plain:
        of_old_tree = work / "old-record" / f"{part}.json"
        found = differences(
            _read(of_old_tree if is_recorded(of_old_tree) else expected / f"{part}.json"),
            json.loads(json.dumps(now[part])),
            part,
        )
        total += _print(part, found)
    if FOLDERS in parts:
        import folders

        assert old_src is not None
        with _timed(FOLDERS):
            found = folders.differences(work / "folders", old_src)
        total += _print(FOLDERS, found)
    print(f"{total} differences." if total else "No difference.")
    return 1 if total else 2 if len(plain) + (FOLDERS in parts) < len(parts) else 0


def _record_old(source: Path, parts: list[str], work: Path) -> None:
    """The record of another tree on this machine, into `old-record`."""
    words = ["--record", *parts, "--expected", str(work / "old-record"), "--work", str(work / "old")]
    subprocess.run(
        [sys.executable, __file__, *words], check=True, env={**os.environ, "PYTHONPATH": str(source.resolve())}
    )


def _read(path: Path) -> Any:
    return json.loads(read_text(path))


def _print(part: str, found: list[str]) -> int:
    print(f"{part}: {len(found)} differences" if found else f"{part}: as recorded")
    for line in found[:SHOWN]:
        print(f"  {line}")
    if len(found) > SHOWN:
        print(f"  ... and {len(found) - SHOWN} more")
    return len(found)


if __name__ == "__main__":
    sys.exit(main())
