"""Compares pages, claims and jobs with what was recorded of them.

    python checks/oracles/compare.py                  # every difference by file and path; exit code 1 if there is one
    python checks/oracles/compare.py pages claims     # these alone
    python checks/oracles/compare.py --record         # writes expected/

Nothing here depends on the machine: records are committed, settings are read, nothing is trained. A change that is
meant is recorded anew, and its commit says what differs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "src"), str(HERE), str(HERE.parent)]

from claims import claims
from jobs import jobs
from pages import pages

from differences import differences, read_text, write_text

EXPECTED = HERE / "expected"
KINDS: dict[str, Callable[[], dict[str, Any]]] = {"pages": pages, "claims": claims, "jobs": jobs}
DIGITS = 10
"""Of a number that is kept."""
NEAR = 1e-8
"""Relative difference of numbers that are the same."""
SHOWN = 40
"""Differences of a file that are printed."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"some of {', '.join(KINDS)}; default: all")
    parser.add_argument("--record", action="store_true", help="write what the tree gives now")
    options = parser.parse_args()
    if unknown := [kind for kind in options.kinds if kind not in KINDS]:
        parser.error(f"unknown kind {', '.join(unknown)}; known: {', '.join(KINDS)}")
    os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="")
    total = 0
    for kind in options.kinds or KINDS:
        now = {name: plain(value) for name, value in KINDS[kind]().items()}
        if options.record:
            record(EXPECTED / kind, now)
        else:
            total += compare(kind, recorded(EXPECTED / kind), now)
    if not options.record:
        print(f"{total} differences." if total else "No difference.")
    return 1 if total else 0


def plain(value: Any) -> Any:
    """A value as its JSON has it, numbers with as many digits as are kept."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        rounded = float(f"{value:.{DIGITS}g}")
        return rounded if abs(rounded) < float("inf") else str(rounded)
    if isinstance(value, str):
        return "".join(value)  # of a class of its own, a text for people is the same text
    return value if value is None or isinstance(value, (bool, int)) else str(value)


def record(folder: Path, values: dict[str, Any]) -> None:
    """Writes each value as a file of its own; what was there before goes."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, value in values.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, f"{as_text(value)}\n")


def as_text(value: Any, depth: int = 2) -> str:
    """JSON with sorted keys; the upper levels have a line for each entry, so that what differs is a line."""
    if depth and value and isinstance(value, dict):
        entries = [f"{compact(key)}: {as_text(item, depth - 1)}" for key, item in sorted(value.items())]
        return "{\n" + ",\n".join(entries) + "\n}"
    if depth and value and isinstance(value, list):
        return "[\n" + ",\n".join(map(compact, value)) + "\n]"
    return compact(value)


def compact(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def recorded(folder: Path) -> dict[str, Any]:
    """What was recorded, by name of the file."""
    values = {}
    for path in sorted(folder.rglob("*.json*")):
        file = path.with_name(path.name.removesuffix(".xz"))
        values[str(file.relative_to(folder))] = json.loads(read_text(file))
    return values


def compare(kind: str, old: dict[str, Any], new: dict[str, Any]) -> int:
    """Prints the differences of a kind; how many there are."""
    count = 0
    for name in sorted({*old, *new}):
        if name not in new:
            lines = ["is not made any more"]
        elif name not in old:
            lines = ["was not there"]
        else:
            lines = differences(old[name], new[name], "", NEAR)
        if lines:
            print(f"{kind}/{name}: {len(lines)} differences")
        for line in lines[:SHOWN]:
            print(f"  {line.removeprefix(' / ')}")
        if len(lines) > SHOWN:
            print(f"  ... and {len(lines) - SHOWN} more")
        count += len(lines)
    print(f"{kind}: {len(new)} files, {count} differences")
    return count


if __name__ == "__main__":
    sys.exit(main())
