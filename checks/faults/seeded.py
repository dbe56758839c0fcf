"""Seeded faults: silent wrongs, put into the code one at a time, and which of them the tests notice.

    python checks/faults/seeded.py                       judge all of `faults.yaml`, or go on where it was interrupted
    python checks/faults/seeded.py --only ops-window     some of them, separated by commas
    python checks/faults/seeded.py --check               exit with 1 where `baseline.json` caught what is missed now

A fault is a snippet that stands exactly once in src/holdfast, whatever its indentation and line breaks, and what takes
its place. A worker applies it to a copy of src/ and runs the fault's tests against that copy. Outcomes:

    caught   a test fails
    missed   all of them pass
    error    the snippet stands nowhere or several times, or the tests fail without the fault, do not run, or do not end

Every result is written as soon as it is there, with a hash of the fault, src/ and tests/: what was judged in this very
tree is not judged again. The exit status is 1 where there is an error; a missed fault is none. A new baseline is made
with `--results checks/faults/baseline.json --again`.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
PACKAGE = "holdfast"
FAULTS, BASELINE = HERE / "faults.yaml", HERE / "baseline.json"
RESULTS = ROOT / "build" / "faults.json"
ORDINARY = "not slow and not gpu and not network"
"""The tests that are run, as a pytest expression over markers."""
LONGEST = 900
"""Seconds that the tests of one fault may take."""
CAUGHT, MISSED, ERROR = "caught", "missed", "error"


class Inapplicable(Exception):
    """A fault's snippet does not stand in the code exactly once."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One silent wrong."""

    id: str
    """Its room, a dash, and what it is about."""
    says: str
    """What goes wrong, in a sentence."""
    find: str
    replace: str
    tests: tuple[str, ...]
    """pytest targets that ought to notice."""

    @property
    def room(self) -> str:
        return self.id.partition("-")[0]


class Tree:
    """The source files of the package under a folder.

    Args:
        src: the folder that holds the package.
    """

    def __init__(self, src: Path) -> None:
        self.src = src
        package = src / PACKAGE
        self.files = sorted(path for path in package.rglob("*") if path.suffix in (".py", ".c"))

    @cached_property
    def squeezed(self) -> dict[Path, str]:
        """The text of every file without white space."""
        return {path: _squeezed(path.read_text(encoding="utf-8")) for path in self.files}

    def place(self, fault: Fault) -> Path:
        """The file in which the fault's snippet stands.

        Raises:
            Inapplicable: it stands nowhere, or several times.
        """
        wanted = _squeezed(fault.find)
        found = {path: n for path, text in self.squeezed.items() if (n := text.count(wanted))}
        if sum(found.values()) == 1:
            return next(iter(found))
        where = ", ".join(f"{path.relative_to(self.src)} ({n})" for path, n in found.items()) or "nowhere"
        raise Inapplicable(f"{fault.id}: expected its snippet once in {PACKAGE}, found it {where}. Port it.")

    def with_fault(self, fault: Fault) -> tuple[Path, str]:
        """The file that a fault changes, and its text with the fault.

        Raises:
            Inapplicable: see `place`.
        """
        path = self.place(fault)
        text = path.read_text(encoding="utf-8")
        found = re.search(r"\s*".join(map(re.escape, _squeezed(fault.find))), text)
        assert found is not None
        line = text[text.rfind("\n", 0, found.start()) + 1 :]
        indent = line[: len(line) - len(line.lstrip())]
        changed = f"\n{indent}".join(fault.replace.split("\n"))
        return path, text[: found.start()] + changed + text[found.end() :]


def _squeezed(text: str) -> str:
    return "".join(text.split())


def read_faults() -> tuple[list[Fault], list[str]]:
    """All faults, and the tests that fail without any."""
    content = yaml.safe_load(FAULTS.read_text(encoding="utf-8"))
    faults = [Fault(**{**entry, "tests": tuple(entry["tests"])}) for entry in content["faults"]]
    return faults, content["known_failures"]


class Worker:
    """A copy of src/ in which faults are judged one after the other.

    Args:
        folder: gets the copy, and what the tests write.
        known_failures: tests that are left out.
    """

    def __init__(self, folder: Path, known_failures: Sequence[str]) -> None:
        self.folder, self.known_failures = folder, known_failures
        self.src, self.cache = folder / "src", folder / "cache"
        shutil.copytree(ROOT / "src", self.src, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        self.tree = Tree(self.src)
        self.changes = 0
        self.environment = {
            "OMP_NUM_THREADS": "1",
            **os.environ,
            "PYTHONPATH": str(self.src),
            "HOLDFAST_CACHE": str(self.cache),
            "TOKENIZERS_PARALLELISM": "false",
        }

    def judge(self, fault: Fault) -> dict[str, Any]:
        """The result of one fault."""
        began = time.monotonic()
        try:
            path, changed = self.tree.with_fault(fault)
        except Inapplicable as error:
            return {"outcome": ERROR, "reason": str(error), "first_test": None, "seconds": 0.0}
        original, status = path.read_bytes(), path.stat()
        try:
            path.write_text(changed, encoding="utf-8")
            # Compiled files are told from others by whole seconds and size, and a fault may change neither.
            self.changes += 1
            os.utime(path, (status.st_atime, status.st_mtime + 10 * self.changes))
            outcome, first, reason = self.run(fault.tests)
        finally:
            path.write_bytes(original)
            os.utime(path, (status.st_atime, status.st_mtime))
        seconds = round(time.monotonic() - began, 1)
        return {"outcome": outcome, "reason": reason, "first_test": first, "seconds": seconds}

    def run(self, tests: Sequence[str]) -> tuple[str, str | None, str | None]:
        """(outcome, first failing test, why there is no outcome) of tests against the copy as it is."""
        asked = [sys.executable, "-c", f"import {PACKAGE}; print({PACKAGE}.__file__)"]
        answer = subprocess.run(asked, cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False)
        if not answer.stdout.startswith(str(self.src)):
            return ERROR, None, f"expected {PACKAGE} from {self.src}, got it from {answer.stdout.strip() or 'nowhere'}"
        left_out = [word for name in self.known_failures for word in ("--deselect", name)]
        options = [
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "-m",
            ORDINARY,
            "--tb=no",
            "-rfE",
            f"--basetemp={self.folder / 'pytest'}",
        ]
        command = [sys.executable, "-m", "pytest", *options, *left_out, *tests]
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=LONGEST)
        except subprocess.TimeoutExpired:
            return ERROR, None, f"expected the tests to end within {LONGEST} s, got no end"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self._clear()
        if process.returncode == 0:
            return MISSED, None, None
        found = re.search(r"^(?:FAILED|ERROR) (\S+::.*?)(?: - .*)?$", output, re.MULTILINE)
        if process.returncode == 1 and found is not None:
            return CAUGHT, found[1], None
        last = output.strip().splitlines()[-1:] or ["nothing"]
        return ERROR, None, f"expected tests that run, pytest ended with {process.returncode} and {last[0]!r}"

    def _clear(self) -> None:
        """Removes what a fault may have left for the next one; compiled C libraries go by the hash of their source."""
        shutil.rmtree(self.folder / "pytest", ignore_errors=True)
        for path in self.cache.glob("*"):
            if path.name != "native":
                shutil.rmtree(path, ignore_errors=True)


def keys_of(faults: Sequence[Fault]) -> dict[str, str]:
    """A hash of each fault and of the tree that it is judged in, by its id."""
    digest = hashlib.sha256()
    tests = sorted(path for path in (ROOT / "tests").rglob("*.py") if path.parent != HERE)
    for path in [*Tree(ROOT / "src").files, *tests]:
        digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    tree = digest.hexdigest()
    return {fault.id: hashlib.sha256(f"{tree}\0{fault!r}".encode()).hexdigest()[:16] for fault in faults}


class Results:
    """The results of a run on disk.

    Args:
        path: the file.
        again: forget what is there.
    """

    def __init__(self, path: Path, *, again: bool) -> None:
        self.path = path
        self._lock = threading.Lock()
        self.held: dict[str, dict[str, Any]] = {} if again else read_results(path)

    def add(self, name: str, result: Mapping[str, Any]) -> None:
        """Keeps one result, and writes all."""
        with self._lock:
            self.held[name] = dict(result)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part = self.path.with_name(f".{self.path.name}.part")
            part.write_text(json.dumps(self.held, indent=1, sort_keys=True) + "\n", encoding="utf-8")
            os.replace(part, self.path)


def read_results(path: Path) -> dict[str, dict[str, Any]]:
    """Results by fault; empty where there is no file."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def judge_all(faults: Sequence[Fault], known_failures: Sequence[str], results: Results, *, workers: int) -> None:
    """Judges what is not judged yet, each target first without a fault."""
    keys = keys_of(faults)
    groups: dict[tuple[str, ...], list[Fault]] = {}
    for fault in faults:
        if results.held.get(fault.id, {}).get("key") != keys[fault.id]:
            groups.setdefault(fault.tests, []).append(fault)
    waiting: queue.SimpleQueue[list[Fault]] = queue.SimpleQueue()
    for group in groups.values():
        waiting.put(group)
    failures: list[BaseException] = []

    def work(folder: Path) -> None:
        try:
            worker = Worker(folder, known_failures)
            while not failures:
                group = waiting.get_nowait()
                outcome, first, reason = worker.run(group[0].tests)
                reason = reason or (f"without the fault {first} fails too" if outcome != MISSED else None)
                for fault in group:
                    broken = {"outcome": ERROR, "reason": reason, "first_test": None, "seconds": 0.0}
                    result = worker.judge(fault) if reason is None else broken
                    results.add(fault.id, {**result, "key": keys[fault.id]})
                    print(_line(fault, result), flush=True)
        except queue.Empty:
            return
        except BaseException as error:
            failures.append(error)

    with tempfile.TemporaryDirectory(prefix="faults-") as place:
        threads = [threading.Thread(target=work, args=(Path(place) / str(n),), daemon=True) for n in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]


def summary(faults: Sequence[Fault], results: Mapping[str, Mapping[str, Any]]) -> str:
    """Counts by room, and every fault that was not caught."""
    rooms = list(dict.fromkeys(fault.room for fault in faults))
    lines = [f"{'room':<14}{'faults':>8}{CAUGHT:>8}{MISSED:>8}{ERROR:>8}"]
    for room in [*rooms, "all"]:
        mine = [results[fault.id]["outcome"] for fault in faults if room in (fault.room, "all")]
        counts = (len(mine), *(mine.count(outcome) for outcome in (CAUGHT, MISSED, ERROR)))
        lines.append(f"{room:<14}" + "".join(f"{count:>8}" for count in counts))
    for fault in faults:
        result = results[fault.id]
        if result["outcome"] != CAUGHT:
            lines.append(f"\n{result['outcome']}: {fault.id}. {fault.says}")
            lines += [f"  {_detail(result)}"] if result["reason"] else []
    return "\n".join(lines)


def lost(faults: Sequence[Fault], results: Mapping[str, Mapping[str, Any]], *, every: bool) -> list[str]:
    """A sentence for every fault that the baseline caught and these results do not.

    Args:
        faults: what was judged.
        results: by fault.
        every: all faults were judged, so that one that is not among them is lost too.
    """
    known = {fault.id for fault in faults}
    found = []
    for name, before in read_results(BASELINE).items():
        if before["outcome"] != CAUGHT or (name not in known and not every):
            continue
        now = results[name]["outcome"] if name in known else "no longer among the faults"
        if now != CAUGHT:
            found.append(f"{name}: was caught by {before['first_test']}, is now: {now}.")
    return found


def _line(fault: Fault, result: Mapping[str, Any]) -> str:
    return f"{result['outcome']:<7} {result['seconds']:>6.1f} s  {fault.id}  {_detail(result)}"


def _detail(result: Mapping[str, Any]) -> str:
    return str(result["first_test"] or result["reason"] or "")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; see the module's docstring."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", help="ids of faults, separated by commas")
    parser.add_argument("--workers", type=int, default=1, help="faults judged at a time")
    parser.add_argument("--results", type=Path, default=RESULTS, help="file that results go to")
    parser.add_argument("--again", action="store_true", help="judge what was judged before, too")
    parser.add_argument("--check", action="store_true", help="compare with the baseline")
    asked = parser.parse_args(argv)
    faults, known_failures = read_faults()
    if asked.only:
        wanted = asked.only.split(",")
        if unknown := sorted(set(wanted) - {fault.id for fault in faults}):
            parser.error(f"no such fault: {', '.join(unknown)}")
        faults = [fault for fault in faults if fault.id in wanted]
    results = Results(asked.results, again=asked.again)
    judge_all(faults, known_failures, results, workers=max(1, asked.workers))
    print(f"\n{summary(faults, results.held)}")
    worse = lost(faults, results.held, every=not asked.only) if asked.check else []
    if asked.check:
        print("\n" + ("\n".join(worse) or "Everything that the baseline caught is caught."))
    broken = any(results.held[fault.id]["outcome"] == ERROR for fault in faults)
    return 1 if broken or worse else 0


if __name__ == "__main__":
    sys.exit(main())
