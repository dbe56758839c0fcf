"""`python -m fuzz`; see the package's docstring."""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from fuzz import kills
from fuzz.case import GOOD, VERDICTS, Case, randomness
from fuzz.folders import caches_case, checkpoints_case, results_case
from fuzz.machine import machine_case
from fuzz.requests import words_case, yaml_case
from fuzz.rows import places_case, rows_case
from fuzz.stage import Stage, preload
from fuzz.tensors import tensors_case

ROOT = Path(__file__).resolve().parents[3]
KNOWN = Path(__file__).with_name("known.yaml")
RESULTS = ROOT / "build" / "fuzz.json"
KINDS: dict[str, tuple[int, Callable[[random.Random], Case]]] = {
    "yaml": (700, yaml_case),
    "words": (150, words_case),
    "rows": (420, rows_case),
    "places": (30, places_case),
    "tensors": (300, tensors_case),
    "results": (180, results_case),
    "checkpoints": (50, checkpoints_case),
    "caches": (50, caches_case),
    "machine": (50, machine_case),
}
"""Cases of each kind in 2,000, and what makes one."""
KILLS, SAME = "kills", "same"
"""Row of the table for kills, and what is said of one that changed nothing."""


def case_of(seed: int, kind: str, number: int) -> Case:
    """A case by its seed, kind and number."""
    return KINDS[kind][1](randomness(seed, kind, number))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs cases and kills; 1 where one ended badly that is not known."""
    parser = argparse.ArgumentParser(prog="fuzz", description="Generated faults in what comes in; see the package.")
    parser.add_argument("--cases", type=int, default=2000, metavar="N", help="cases over all kinds (2,000)")
    parser.add_argument("--kills", type=int, default=40, metavar="N", help="killed commands (40)")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument(
        "--only", nargs="+", default=[*KINDS, KILLS], metavar="KIND", help=f"of {', '.join((*KINDS, KILLS))}"
    )
    parser.add_argument("--case", metavar="KIND:NUMBER", help="one case, in a folder that stays")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="processes (2)")
    parser.add_argument(
        "--minutes", type=float, default=20.0, metavar="M", help="after so many it ends, and has failed (20)"
    )
    parser.add_argument(
        "--stage", type=Path, metavar="FOLDER", help="keeps what the cases are about, for the next time"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE.json")
    asked = parser.parse_args(argv)
    began = time.monotonic()
    place = Path(tempfile.mkdtemp(prefix="holdfast-fuzz-"))
    place.chmod(0o755)  # root becomes nobody where a place must not be writable
    preload()
    stage = Stage(asked.stage.resolve() if asked.stage else place / "stage")
    if not stage.folder.exists():
        stage.make()
        subprocess.run(["chmod", "-R", "a+rX", stage.folder], check=True)
    print(f"the stage is there after {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    if asked.case:
        return _one(stage, asked, place)
    work = _work(asked)
    wholes = {name: kills.whole(stage, name, place) for name in dict.fromkeys(w[2] for w in work if w[0] == KILLS)}
    deadline = began + 60 * asked.minutes
    found = _share_out(
        work, asked.workers, place, lambda w, folder: _do(stage, asked.seed, w, wholes, folder), deadline
    )
    shutil.rmtree(place, ignore_errors=True)
    bad = [one for one in found if one["verdict"] not in (*GOOD, SAME)]
    known = yaml.safe_load(KNOWN.read_text(encoding="utf-8")) or []
    for one in bad:
        one["known"] = next((why["why"] for why in known if _is_known(one, why)), None)
    seconds = time.monotonic() - began
    asked.results.parent.mkdir(parents=True, exist_ok=True)
    asked.results.write_text(json.dumps({"seed": asked.seed, "seconds": round(seconds), "cases": found}, indent=1))
    for one in bad:
        mark = " (known)" if one["known"] else ""
        print(f"{one['kind']}:{one['number']} {one['verdict']}{mark}: {one['what']}\n    {one['said']}")
    print(table(found))
    unknown = sum(one["known"] is None for one in bad)
    left = len(work) - len(found)
    over = f"; {left} were left when the time was up" if left else ""
    print(f"\n{len(found)} in {seconds / 60:.1f} minutes; {len(bad)} ended badly, {unknown} of them unknown{over}.")
    return 1 if unknown or left else 0


def _is_known(one: dict[str, Any], known: dict[str, Any]) -> bool:
    """Whether an entry of `known.yaml` is about a case."""
    alike = known["kind"] == one["kind"] and known["verdict"] == one["verdict"]
    return alike and re.search(known["what"], one["what"]) is not None


Work = tuple[str, int, str]
"""Kind, number, and for a kill the command's name."""


def _work(asked: argparse.Namespace) -> list[Work]:
    every = sum(share for share, _ in KINDS.values())
    found: list[Work] = [
        (kind, number, "")
        for kind, (share, _) in KINDS.items()
        if kind in asked.only
        for number in range(round(share * asked.cases / every))
    ]
    often = [name for name in kills.KILLED if name in kills.OFTEN]
    seldom = [name for name in kills.KILLED if name not in kills.OFTEN]
    if KILLS in asked.only:
        for number in range(asked.kills):
            names = seldom if number % 4 == 3 else often
            found.append((KILLS, number, names[number // (4 if names is seldom else 1) % len(names)]))
    random.Random(asked.seed).shuffle(found)
    return found


def _do(stage: Stage, seed: int, work: Work, wholes: dict[str, kills.Whole], folder: Path) -> dict[str, Any]:
    kind, number, name = work
    began = time.monotonic()
    if kind == KILLS:
        what, wrong = kills.kill(stage, folder, name, wholes[name], randomness(seed, kind, number))
        verdict, said = (SAME, "") if wrong is None else ("silent", wrong)
    else:
        played = stage.play(case_of(seed, kind, number), folder)
        what, verdict = played.what, played.verdict
        said = played.wrong or played.outcome.err.strip()[-600:]
    return {
        "kind": kind,
        "number": number,
        "what": what,
        "verdict": verdict,
        "said": said,
        "seconds": round(time.monotonic() - began, 2),
    }


def _one(stage: Stage, asked: argparse.Namespace, place: Path) -> int:
    kind, _, number = asked.case.partition(":")
    if kind == KILLS:
        work = next(w for w in _work(asked) if w[:2] == (kind, int(number)))
        print(
            json.dumps(
                _do(stage, asked.seed, work, {work[2]: kills.whole(stage, work[2], place)}, place / "case"), indent=1
            )
        )
    else:
        case = case_of(asked.seed, kind, int(number))
        played = stage.play(case, place / "case")
        print(f"{played.what}\nholdfast {' '.join(case.words)}\n{played.outcome.out}\n{played.outcome.err}")
        print(
            f"exit code {played.outcome.code}, signal {played.outcome.signal}: {played.verdict}. {played.wrong or ''}"
        )
    print(f"The folder is {place / 'case'}")
    return 0


def _share_out(
    work: list[Work], workers: int, place: Path, do: Callable[[Work, Path], dict[str, Any]], deadline: float
) -> list[dict[str, Any]]:
    """Has the work done by forks of this process; what is there when the time is up."""
    children = []
    for worker in range(workers):
        child = os.fork()
        if child:
            children.append(child)
            continue
        code = 1
        try:
            with open(place / f"worker-{worker}.jsonl", "w", buffering=1) as results:
                for number, one in enumerate(work[worker::workers]):
                    if time.monotonic() > deadline:
                        break
                    folder = place / f"case-{worker}-{number}"
                    try:
                        results.write(json.dumps(do(one, folder)) + "\n")
                    except Exception as error:
                        raise RuntimeError(f"the fuzzer itself failed at {one[0]}:{one[1]}") from error
                    shutil.rmtree(folder, ignore_errors=True)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    codes = [os.waitpid(child, 0)[1] for child in children]
    if any(codes):
        raise RuntimeError("a worker of the fuzzer failed")
    return [json.loads(line) for file in sorted(place.glob("worker-*.jsonl")) for line in file.read_text().splitlines()]


def table(found: list[dict[str, Any]]) -> str:
    """Counts by kind and verdict, as Markdown."""
    columns = [*VERDICTS[:2], SAME, *VERDICTS[2:]]
    rows = [["", "cases", *columns]]
    for kind in [kind for kind in (*KINDS, KILLS) if any(one["kind"] == kind for one in found)]:
        counts = Counter(one["verdict"] for one in found if one["kind"] == kind)
        rows.append([kind, f"{sum(counts.values()):,}", *(f"{counts[c]:,}" if counts[c] else "" for c in columns)])
    counts = Counter(one["verdict"] for one in found)
    rows.append(["all", f"{len(found):,}", *(f"{counts[c]:,}" if counts[c] else "" for c in columns)])
    rule = ["---", *["---:"] * (len(columns) + 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (rows[0], rule, *rows[1:]))


if __name__ == "__main__":
    raise SystemExit(main())
