"""The checkpoint engine beside `cp` and mergekit in one run: time, memory, and whether the numbers agree.

    python benchmarks/merge.py                    # three bf16 checkpoints of 1.3 GB, 3 shards each; half an hour or so,
                                                  much of it mergekit
    python benchmarks/merge.py --check            # exit 1, naming each bar that falls short
    python benchmarks/merge.py --quick            # under a minute: small checkpoints, one round, nobody waits for the
                                                  disk; no bars on speed
    python benchmarks/merge.py --folder DIR       # work there; keeps the checkpoints, and an interrupted one continues;
                                                  default: a temporary one
    python benchmarks/merge.py --only linear      # repeatable: these operations only
    python benchmarks/merge.py --save FILE        # the figures as JSON

Each contestant is a whole process: starting, importing, planning, merging, closing. mergekit is `mergekit-yaml` with
the options that were fastest for it: asynchronous writing, shards of the inputs' size, neither tokenizer nor model
card. It computes in the storage dtype (as its examples do) and in float32 (as ours does); bars take the faster of the
two. One that is not installed or fails is shown with the reason. `PyTorch` is ours without C kernels, without waiting
for the disk.

Time. The contestants take turns within a round, in an order drawn anew each time, so that a machine's drift hits all of
them alike; figures are medians over rounds with their ranges, ratios are taken within a round. A round before is not
counted: there the page cache fills and C is compiled. The inputs come from the page cache from then on, so no disk's
reading is in the figures. Outputs are deleted and the disk brought to rest between the runs, untimed. Neither `cp` nor
mergekit waits until its output is on the disk, ours does unless asked otherwise (--no_sync). Both are measured: without
the wait beside `cp`, with it beside `cp` followed by `sync`; beside mergekit ours waits and mergekit does not.

`measure`, `merge` and `close` are phases of ours, as `--json` tells them: passes for statistics; reading, computing and
writing; waiting for the disk and renaming. The merge is what is compared with `cp`, since `cp` starts in a millisecond.
A residual in float32 is twice the size of its parents; it is compared with `cp` of a residual.

Memory. Largest resident size of the process as the system counts it (`wait4`), interpreter and libraries included.
Whether it grows with the model is seen with one of four times the bytes and layers, merged from two folders (the tuned
one twice), where the disk has room for it.

Numbers. Elements of ours and mergekit's output: the share that is equal, and the largest difference in units of the
last place. In the storage dtype mergekit rounds every intermediate result to bfloat16, so it differs there.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.metadata
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from machine import MB, hardware
from merge_peers import (
    HOLDFAST,
    LINEAR,
    MERGEKIT,
    NO_SYNC,
    RESIDUAL,
    TASK_ARITHMETIC,
    Contestant,
    Size,
    checkpoint,
    compare,
    contestants,
    is_made,
    missing,
    stored_bytes,
)

SIZES = {
    "full": Size(width=2048, inner=5632, layers=10, vocabulary=32000),
    "quick": Size(width=384, inner=1024, layers=6, vocabulary=4096),
}
ROLES = ("base", "a", "b")
RUNS = "runs.jsonl"
"""Each run as it ends, in the work folder, so that a benchmark that is stopped has not been for nothing."""
LARGER = 4
"""Times the bytes, where memory is looked at."""

# ---------------------------------------------------------------------------------------------------------------- a run


class Failed(Exception):
    """A command that did not do what it is timed for."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one run took."""

    seconds: float
    processor_seconds: float
    """Of all threads, in the program and in the system."""
    peak: int
    """Bytes: the largest resident size."""
    phases: dict[str, float]
    """Seconds; empty where the contestant tells none."""


LAUNCHER = """
import json, os, sys, time
out, log, *command = sys.argv[1:]
flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
actions = [(os.POSIX_SPAWN_OPEN, number, path, flags, 0o644) for number, path in ((1, out), (2, log))]
began = time.perf_counter()
_, status, usage = os.wait4(os.posix_spawnp(command[0], command, os.environ, file_actions=actions), 0)
seconds = time.perf_counter() - began
print(json.dumps([os.waitstatus_to_exitcode(status), seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss]))
"""
"""Starts a command and waits for it. It is a small process of its own, because a child inherits the largest resident
size of the process that starts it, and this one is large."""


class Workplace:
    """The folder in which everything runs.

    Args:
        folder: where checkpoints, outputs and logs lie.
        inputs: what `{base}` and the like stand for.
    """

    def __init__(self, folder: Path, inputs: Mapping[str, Path]) -> None:
        self.folder, self.inputs = folder, dict(inputs)
        folder.mkdir(parents=True, exist_ok=True)

    def run(self, contestant: Contestant, out: str = "out") -> Run:
        """Runs a contestant; its output is in the folder `out` then.

        Raises:
            Failed: it ended with an error, or wrote less than it should have.
        """
        target, stdout, log = self.folder / out, self.folder / "stdout.txt", self.folder / "stderr.txt"
        places = {
            **{name: str(path) for name, path in self.inputs.items()},
            "out": str(target),
            "recipe": str(self.folder / "recipe.yml"),
        }
        if contestant.recipe:
            # JSON is YAML
            Path(places["recipe"]).write_text(json.dumps(filled(contestant.recipe, places)))
        self.clear(out)
        command = filled(list(contestant.words), places)
        started = subprocess.run(
            [sys.executable, "-I", "-S", "-c", LAUNCHER, str(stdout), str(log), *command],
            env=environment(contestant.environment),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if started.returncode:
            raise Failed((started.stderr.strip().splitlines() or ["it could not be started"])[-1][:200])
        code, seconds, processor, peak = json.loads(started.stdout)
        if code:
            lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
            message = next((line for line in reversed(lines) if "rror" in line), (lines or ["no message"])[-1])
            raise Failed(f"ended with {code}: {message.strip()[:200]}")
        if contestant.copy and stored_bytes(target) < 0.98 * stored_bytes(
            self.inputs["residual" if "float32" in contestant.copy else "base"]
        ):
            raise Failed("wrote less than it should have")
        phases = json.loads(stdout.read_text())["seconds"] if "--json" in contestant.words and contestant.copy else {}
        # kilobytes, except on macOS
        return Run(
            seconds=seconds,
            processor_seconds=processor,
            peak=peak * (1 if sys.platform == "darwin" else 1024),
            phases=phases,
        )

    def clear(self, *names: str) -> None:
        """Deletes outputs and waits until the disk is at rest."""
        for name in names:
            shutil.rmtree(self.folder / name, ignore_errors=True)
        os.sync()


def filled(value: Any, places: Mapping[str, str]) -> Any:
    """A command or recipe with `{name}` replaced by what it stands for."""
    if isinstance(value, str):
        return value.format(**places) if value.startswith("{") else value
    if isinstance(value, list):
        return [filled(v, places) for v in value]
    return {k: filled(v, places) for k, v in value.items()} if isinstance(value, dict) else value


def environment(changes: Mapping[str, str]) -> dict[str, str]:
    """This one's without what decides on threads and kernels, and without the hub: a figure must not depend on the
    shell it was taken in."""
    left_out = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "HOLDFAST_NATIVE")
    return (
        {k: v for k, v in os.environ.items() if k not in left_out}
        | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        | dict(changes)
    )


# --------------------------------------------------------------------------------------------------------------- rounds


class Rounds:
    """Rounds in which the contestants take turns."""

    def __init__(self, workplace: Workplace, running: Sequence[Contestant]) -> None:
        self.workplace, self.running = workplace, {c.name: c for c in running}
        self.taken: dict[str, dict[int, Run]] = {c.name: {} for c in running}
        """By name and round."""
        self.failures: dict[str, str] = {}
        self.numbers: list[dict[str, Any]] = []

    def run(self, rounds: int, *, warm_up: int, about: Mapping[str, Any] | None = None) -> None:
        """Runs all contestants; one that fails is left out from there on, with the reason in `failures`.

        Args:
            rounds: timed ones.
            warm_up: rounds before them.
            about: what the figures hold for. Runs that an interrupted benchmark of the same has left in the folder are
                taken over.
        """
        names = list(self.running)
        done = self._continued(dict(about or {}))
        for number in range(-warm_up, rounds):
            random.Random(number).shuffle(names)
            for name in names:
                contestant = self.running[name]
                if (
                    name in self.failures
                    or (contestant.rounds is not None and not 0 <= number < contestant.rounds)
                    or (number, name) in done
                ):
                    continue
                progress(f"round {number + 1} of {rounds}: {name}")
                try:
                    run = self.workplace.run(contestant)
                    self._note({"round": number, "name": name, **vars(run)})
                    if number >= 0:
                        self.taken[name][number] = run
                    if number == 0:
                        self.compare(contestant)
                except Failed as error:
                    self.failures[name] = str(error)
                self.workplace.clear("out", "other")
        for contestant in self.running.values():  # an interruption may have come between a run and its comparison
            if (
                contestant.name not in self.failures
                and contestant.compared
                and not any(n["mergekit"] == contestant.name for n in self.numbers)
            ):
                try:
                    self.workplace.run(contestant)
                    self.compare(contestant)
                except Failed as error:
                    self.failures[contestant.name] = str(error)
                self.workplace.clear("out", "other")

    def compare(self, contestant: Contestant) -> None:
        """Compares the output that is there with ours."""
        other = self.running.get(contestant.compared + NO_SYNC) if contestant.compared is not None else None
        if other is not None and other.name not in self.failures:
            self.workplace.run(other, "other")
            try:
                found = compare(self.workplace.folder / "other", self.workplace.folder / "out")
            except ValueError as error:
                raise Failed(str(error)) from None
            self.numbers.append({"ours": contestant.compared, "mergekit": contestant.name, **found})
            self._note({"numbers": self.numbers[-1]})

    def _continued(self, about: dict[str, Any]) -> set[tuple[int, str]]:
        """Takes over what is in the folder if it is of the same benchmark, and says what that is; else begins a new
        file."""
        path = self.workplace.folder / RUNS
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
        if not lines or lines[0] != {"about": about}:
            path.write_text(json.dumps({"about": about}) + "\n")
            return set()
        done = set()
        for line in lines[1:]:
            if "numbers" in line:
                self.numbers.append(line["numbers"])
            elif line["name"] in self.taken:
                number, name = line.pop("round"), line.pop("name")
                done.add((number, name))
                if number >= 0:
                    self.taken[name][number] = Run(**line)
        for place in self.workplace.inputs.values():  # what the warm-up round was for
            for file in sorted(place.glob("*.safetensors")):
                with file.open("rb") as stream:
                    while stream.read(1 << 24):
                        pass
        return done

    def _note(self, line: Mapping[str, Any]) -> None:
        with (self.workplace.folder / RUNS).open("a") as file:
            file.write(json.dumps(line) + "\n")

    def row(self, contestant: Contestant) -> dict[str, Any]:
        """A contestant's figures: medians and ranges over the rounds, ratios within a round."""
        taken = self.taken[contestant.name]
        copied = self.taken.get(contestant.copy or "", {})
        runs = list(taken.values())
        phases = {
            phase: spread([r.phases[phase] for r in runs])
            for phase in (runs[0].phases if runs else ())
            if phase != "total"
        }
        faster = {}
        for peer in contestant.peers:
            theirs = self.taken.get(peer, {})
            if both := [theirs[n].seconds / taken[n].seconds for n in taken if n in theirs]:
                faster[peer] = spread(both)
        # like with like: where the copy waits for the disk, so does what is compared with it
        waits = (contestant.copy or "").endswith(", synced")
        writing = {
            n: r.phases["merge"] + waits * r.phases["close"] if "merge" in r.phases else r.seconds
            for n, r in taken.items()
        }
        compared = [(writing[n], copied[n].seconds) for n in taken if n in copied]
        return {
            "name": contestant.name,
            "family": contestant.family,
            "command": shown(contestant),
            "rounds": len(runs),
            "seconds": spread([r.seconds for r in runs]),
            "processor_seconds": spread([r.processor_seconds for r in runs]),
            "phases": phases,
            "peak_mb": spread([r.peak / MB for r in runs]),
            "times_copy": spread([a / b for a, b in compared]) if compared else None,
            "copy": contestant.copy,
            "times_faster": faster,
        }

    def rows(self, left_out: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Figures of those that ran, the reason for the others."""
        reasons = {**left_out, **{name: f"failed: {why}" for name, why in self.failures.items()}}
        for name, contestant in self.running.items():
            if name not in reasons:
                yield self.row(contestant)
        for name, why in reasons.items():
            yield {"name": name, "absent": why}


def shown(contestant: Contestant) -> str:
    """The command as one would type it, with names for the folders."""
    words = " ".join(contestant.words)
    words = words.replace(" ".join(HOLDFAST), "holdfast").replace(" ".join(MERGEKIT), "mergekit-yaml")
    return " ".join([*(f"{k}={v}" for k, v in contestant.environment.items()), words])


# --------------------------------------------------------------------------------------------------------------- memory

FLAT = ("task_arithmetic", "residual in one pass", "ties (original)", "ties (mergekit)")
"""Whose memory is looked at with a larger model."""


def memory(folder: Path, small: Size, running: Sequence[Contestant], repeats: int) -> list[dict[str, Any]]:
    """Peak memory with a model and one that is `LARGER` times as large, in turns."""
    large = small.times(LARGER)
    wanted = [c for c in running if c.name in {name + NO_SYNC for name in FLAT}]
    lacking = sum(
        large.bytes
        for seed, role in enumerate(ROLES[:2])
        if not is_made(folder / f"{role}-{large.layers}", large, seed)
    )
    needed, free = lacking + large.bytes, shutil.disk_usage(folder).free
    if free < 1.1 * needed:
        why = f"needs {needed / 1e9:.1f} GB on the disk, {free / 1e9:.1f} GB are free"
        return [{"name": c.name.removesuffix(NO_SYNC), "absent": why} for c in wanted]
    places = {}
    for size in (small, large) if wanted else ():
        found = prepared(folder, size, ROLES[:2])
        places[size.bytes] = Workplace(folder, {**found, "b": found["a"]})
    rows: list[dict[str, Any]] = []
    for contestant in wanted:
        name = contestant.name.removesuffix(NO_SYNC)
        peaks: dict[int, list[float]] = {amount: [] for amount in places}
        try:
            for number in range(repeats):
                for amount, place in places.items():
                    progress(f"memory, {number + 1} of {repeats}: {name} of {amount / 1e9:.1f} GB")
                    peaks[amount].append(place.run(contestant).peak / MB)
                    place.clear("out")
        except Failed as error:
            rows.append({"name": name, "absent": f"failed: {error}"})
            continue
        first, last = (spread(found) for found in peaks.values())
        rows.append(
            {"name": name, "bytes": list(peaks), "peak_mb": [first, last], "ratio": last["median"] / first["median"]}
        )
    return rows


# ----------------------------------------------------------------------------------------------------------------- bars


@dataclass(frozen=True)
class Bar:
    """A figure that must be reached."""

    figure: str
    """A key of `judged_figures`."""
    limit: float
    text: str
    at_most: bool = False
    quick: bool = False
    """Whether it holds at any size."""

    def met(self, value: float) -> bool:
        """Whether `value` reaches the bar."""
        return value <= self.limit if self.at_most else value >= self.limit


BARS = (
    *(
        Bar(
            f"times cp: {name}{form}",
            2.0,
            f"{name}{form}: merging phase over cp of the same output, {copy}",
            at_most=True,
        )
        for form, copy in ((NO_SYNC, "neither waits for the disk"), ("", "both wait for the disk"))
        for name in ("task_arithmetic", "residual extract", "residual apply", "residual in one pass")
    ),
    *(
        Bar(f"mergekit: {name}", 4.0, f"{name}: times as fast as mergekit, whole processes")
        for name in ("task_arithmetic", "residual in one pass")
    ),
    *(
        Bar(f"mergekit: {name}", 15.0, f"{name}: times as fast as mergekit, whole processes")
        for name in ("ties (original)", "ties (mergekit)")
    ),
    Bar("peak MB", 350.0, "largest peak of ours, MB", at_most=True),
    *(
        Bar(
            f"growth: {name}",
            1.10,
            f"{name}: peak memory with a model {LARGER} times as large over that with one",
            at_most=True,
        )
        for name in FLAT
    ),
    *(
        Bar(
            f"equal: {name}",
            0.999,
            f"share of elements that are the same in ours and {name}",
            quick=name in LINEAR + TASK_ARITHMETIC,
        )
        for name in (*LINEAR, *RESIDUAL, TASK_ARITHMETIC[1])
    ),
)
"""Phases are compared like with like; whole processes with mergekit: ours waits for the disk, mergekit does not."""


def judged_figures(run: Mapping[str, Any]) -> dict[str, float]:
    """What the bars speak of; a figure that this run could not give is not in it."""
    ran = {c["name"]: c for c in run["contestants"] if "absent" not in c}
    figures: dict[str, float] = {}
    for name, row in ran.items():
        if row["times_copy"]:
            figures[f"times cp: {name}"] = row["times_copy"]["median"]
        if row["times_faster"]:
            figures[f"mergekit: {name}"] = min(ratio["median"] for ratio in row["times_faster"].values())
    peaks = [row["peak_mb"]["high"] for row in ran.values() if row["family"] == "ours"]
    if peaks:
        figures["peak MB"] = max(peaks)
    figures |= {f"growth: {row['name']}": row["ratio"] for row in run["memory"] if "absent" not in row}
    return figures | {
        f"equal: {row['mergekit']}": 0.0 if row["only_in_one"] else row["equal"] for row in run["numbers"]
    }


def judge(run: Mapping[str, Any], bars: Sequence[Bar]) -> list[dict[str, Any]]:
    """Each bar with its figure. One that cannot be judged, because a contestant is absent, is not met: nothing has been
    shown."""
    figures, verdicts = judged_figures(run), []
    for bar in bars:
        value = figures.get(bar.figure)
        words = f"{bar.text}: {'at most' if bar.at_most else 'at least'} {bar.limit:g}"
        met = value is not None and bar.met(value)
        line = f"{words}; " + ("cannot be judged, see what is absent" if value is None else f"found {value:.4g}")
        verdicts.append(
            {"figure": bar.figure, "limit": bar.limit, "at_most": bar.at_most, "value": value, "met": met, "line": line}
        )
    return verdicts


# --------------------------------------------------------------------------------------------------------------- report


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    mode = "quick" if options.quick else "full"
    size, rounds = SIZES[mode], options.rounds or (1 if options.quick else 5)
    # not the threads of this process: it computes nothing
    machine = f"{hardware('cpu').rpartition(', ')[0]}, {os.cpu_count()} core(s)"
    versions = {
        name: version_of(name) for name in ("holdfast", "mergekit", "numpy", "torch", "transformers", "safetensors")
    }
    print(f"{machine}; " + ", ".join(f"{name} {version}" for name, version in versions.items()))
    with contextlib.ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="merge-benchmark-")))
        folder.mkdir(parents=True, exist_ok=True)
        about = {
            "hardware": machine,
            "file_system": file_system(folder),
            "versions": versions,
            "kernels": kernels_in_use(),
        }
        run = measure(
            folder.absolute(),
            size,
            rounds,
            mode=mode,
            only=options.only,
            about={**about, "mode": mode, "code": code_hash()},
        )
    run = {"benchmark": "merge", "mode": mode, **about, "rounds": rounds, **run}
    run["bars"] = judge(run, [bar for bar in BARS if bar.quick or mode == "full"])
    print(report(run))
    if options.save:
        from holdfast.support.files import write_json

        write_json(options.save, run)
    short = [bar["line"] for bar in run["bars"] if not bar["met"]]
    for line in short:
        print(f"SHORT  {line}", file=sys.stderr)
    return 1 if options.check and short else 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    names = [c.name for c in contestants(SIZES["full"]) if not c.name.endswith(NO_SYNC)]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 where a bar falls short or cannot be judged")
    parser.add_argument("--quick", action="store_true", help="under a minute, small checkpoints")
    parser.add_argument("--rounds", type=int, default=None, help="timed rounds (5; 1 with --quick)")
    parser.add_argument(
        "--folder", type=Path, default=None, help="work here and keep the checkpoints (a temporary folder)"
    )
    parser.add_argument(
        "--only", action="append", choices=names, metavar="NAME", help="repeatable: these contestants and cp only"
    )
    parser.add_argument("--save", type=Path, default=None, metavar="FILE", help="write the figures as JSON")
    options = parser.parse_args(arguments)
    if options.rounds is not None and options.rounds < 1:
        parser.error(f"--rounds: expected at least 1, got {options.rounds}")
    return options


def measure(
    folder: Path,
    size: Size,
    rounds: int,
    *,
    mode: str,
    only: Sequence[str] | None = None,
    about: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Everything that is measured, as it goes into the JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < 8 * size.bytes:
        sys.exit(
            f"{folder} needs {8 * size.bytes / 1e9:.0f} GB, {free / 1e9:.0f} GB are free. Choose another one with "
            f"--folder."
        )
    workplace = Workplace(folder, {**prepared(folder, size, ROLES), "residual": folder / "residual"})
    everyone = [
        c for c in contestants(size) if only is None or c.family == "cp" or c.name.removesuffix(NO_SYNC) in only
    ]
    left_out = {c.name: why for c in everyone if (why := missing(c))}
    if mode == "quick":
        left_out |= {c.name: "left out by --quick" for c in everyone if not c.quick and c.name not in left_out}
    running = [c for c in everyone if c.name not in left_out]
    extract = next(c for c in contestants(size) if c.name == "residual extract")
    try:
        workplace.run(replace(extract, copy=None), "residual")
    except Failed as error:
        sys.exit(f"A residual could not be extracted, which others need: {error}")
    taking = Rounds(workplace, running)
    taking.run(rounds, warm_up=0 if mode == "quick" else 1, about=about)
    return {
        "model": {**vars(size), "bytes": size.bytes, "dtype": "bfloat16"},
        "contestants": list(taking.rows(left_out)),
        "numbers": taking.numbers,
        "memory": memory(folder, size, running, min(rounds, 3)),
    }


def prepared(folder: Path, size: Size, roles: Sequence[str]) -> dict[str, Path]:
    """The checkpoints of a size by role, made where they are not there."""
    found = {}
    for seed, role in enumerate(roles):
        progress(f"making {role} of {size.bytes / 1e9:.1f} GB")
        found[role] = checkpoint(folder / f"{role}-{size.layers}", size, seed)
    return found


def code_hash() -> str:
    """Of what is measured: the package's checkpoint engine and this script's contestants."""
    import holdfast

    home, digest = Path(holdfast.__file__).parent, hashlib.sha256()
    for file in [*sorted((home / "checkpoints").rglob("*.[pc]*")), *sorted(Path(__file__).parent.glob("merge*.py"))]:
        if file.suffix in (".py", ".c"):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def kernels_in_use() -> str:
    """What ours computes with."""
    from holdfast.checkpoints import kernels

    return kernels.describe()


def file_system(folder: Path) -> str:
    """The kind of file system a folder lies on; where files can share blocks `cp` copies nothing."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "an unknown file system"
    real = folder.resolve()
    holding = [(point, kind) for point, kind in mounts if real.is_relative_to(point)]
    return max(holding, key=lambda mount: len(mount[0]))[1] if holding else "an unknown file system"


def report(run: Mapping[str, Any]) -> str:
    """The run's tables as text."""
    lines = [
        f"three checkpoints of {run['model']['bytes'] / 1e9:.2f} GB, bfloat16, {run['model']['shards']} shards; "
        f"{run['rounds']} rounds; "
        f"on {run['file_system']}; ours: {run['kernels']}",
        "",
        f"{'':<34}{'seconds':>8}{'range':>15}{'measure':>9}{'merge':>7}{'close':>7}{'x cp':>7}"
        f"{'range':>15}{'peak MB':>9}   faster than mergekit",
    ]
    for c in run["contestants"]:
        if "absent" in c:
            continue
        phases = "".join(
            f"{c['phases'][p]['median']:>{w}.2f}" if c["phases"] else " " * w
            for p, w in (("measure", 9), ("merge", 7), ("close", 7))
        )
        ratio = f"{c['times_copy']['median']:>7.2f}{_range(c['times_copy'], 2):>15}" if c["times_copy"] else " " * 22
        faster = ", ".join(f"{r['median']:.1f} ({_range(r, 1)})" for r in c["times_faster"].values())
        s = c["seconds"]
        lines.append(
            f"{c['name']:<34}{s['median']:>8.2f}{_range(s, 2):>15}{phases}{ratio}{c['peak_mb']['median']:>9.0f}   "
            f"{faster}".rstrip()
        )
    reasons = {
        c["absent"]: [o["name"] for o in run["contestants"] if o.get("absent") == c["absent"]]
        for c in run["contestants"]
        if "absent" in c
    }
    lines += [f"{why}: {'; '.join(names)}" for why, names in reasons.items()]
    if run["memory"]:
        lines += ["", f"{'peak memory, MB':<34}{'one':>8}{f'{LARGER} times':>10}{'ratio':>8}"]
        for row in run["memory"]:
            figures = (
                ""
                if "absent" in row
                else f"{row['peak_mb'][0]['median']:>8.1f}{row['peak_mb'][1]['median']:>10.1f}{row['ratio']:>8.3f}"
            )
            lines.append(f"{row['name']:<34}{figures or '    ' + row['absent']}")
    if run["numbers"]:
        lines += ["", f"{'ours and':<34}{'equal':>12}{'within 1':>12}{'largest, ulps':>15}{'largest':>12}"]
        for n in run["numbers"]:
            apart = f"   {len(n['only_in_one'])} tensors in one only" if n["only_in_one"] else ""
            shares = f"{100 * n['equal']:>11.5f}%{100 * n['within_one']:>11.5f}%"
            lines.append(f"{n['mergekit']:<34}{shares}{n['largest_ulps']:>15}{n['largest_difference']:>12.2g}{apart}")
    if run["bars"]:
        lines += ["", *(f"{'reached' if bar['met'] else 'SHORT':<9}{bar['line']}" for bar in run["bars"])]
    return "\n".join(lines)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and range."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def _range(figure: Mapping[str, float], digits: int) -> str:
    return f"{figure['low']:.{digits}f} - {figure['high']:.{digits}f}"


def version_of(package: str) -> str:
    """The installed version, or "not installed"."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def progress(line: str) -> None:
    """One line on the terminal that the next one replaces; nothing where the output is a file."""
    if sys.stderr.isatty():
        print(f"\r\033[K{line}", end="\r", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
