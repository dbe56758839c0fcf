"""The annealing op beside its peers in one run: time, memory and the gradient's error.

    python benchmarks/annealing_op.py                  # N = 2048, H = 512, V = 32000, float32 and bfloat16 inputs (a
                                                       larger shape on CUDA)
    python benchmarks/annealing_op.py --check          # exit 1, naming each bar that falls short
    python benchmarks/annealing_op.py --quick          # under a minute: a small shape, no bars but that on the gradient
    python benchmarks/annealing_op.py --sweep          # N from 256 to 16384, V from 2k to 152k; no bars, takes long on
                                                       CPUs
    python benchmarks/annealing_op.py --save FILE      # the figures as JSON

What is computed: mean cross-entropy plus mean forward KL at T = 1, and the gradients for hidden states and head; the
teacher is frozen. The contestants, and what each is, are in `peers.py`. One that is not installed, fails or would not
fit is shown with the reason.

Time. The contestants take turns within a round, a different one first each time, so that a machine's drift hits all of
them alike. Ratios are medians over rounds of the ratio within a round, ranges go from the least to the greatest round.
The first rounds are not counted: there compilers run, and `first call` says for how long. `of peak` is 8 N H V
floating-point operations (two logit products, two gradient products: the floor) over the time, over the rate of a
square matrix product of the input dtype (2048 wide, 8192 on CUDA) that is timed at the beginning of each round. `busy`
is processor time over all threads; on CUDA the time between two events on the stream.

Memory. The peak beyond the inputs in the second call of a fresh process, with what the first call left behind (caches
of buffers). Gradients are in it. On CUDA as the allocator counts it, in this process.

Gradient error. Of the KL's part alone, which is what rounding destroys: |g - g64| / |g64| (Frobenius norms) for hidden
states and head, where g64 is computed in float64 from the same rounded inputs, on at most 512 rows, with the student
moved from the teacher until the KL is 0.18, 0.02, 0.0018 and 0.0002 nats. `rounding only` is g64 rounded to the
inputs' dtype, in which PyTorch hands gradients back: nobody can be below it.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from machine import MB, device_name, extra_memory, free_memory, hardware, live_tensor_bytes, synchronize
from peers import CONTESTANTS, Contestant, Problem, Step, Unavailable, make_problem, reference_gradients, relative_error

Shape = tuple[int, int, int]
"""N, H, V."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
BAR_SHAPE: dict[str, Shape] = {"cpu": (2048, 512, 32000), "cuda": (8192, 4096, 128256)}
QUICK_SHAPE: dict[str, Shape] = {"cpu": (512, 256, 8192), "cuda": (2048, 1024, 32000)}
SWEEP: tuple[tuple[int, int], ...] = (
    (256, 32000),
    (1024, 32000),
    (4096, 32000),
    (16384, 32000),
    (2048, 2048),
    (16384, 2048),
    (2048, 128256),
    (256, 152064),
    (2048, 152064),
)
"""N and V; H is the bar shape's."""
KL_TARGETS = (0.18, 0.02, 0.0018, 0.0002)
TIMED_KL = 0.02
"""Nats between student and teacher where time and memory are measured; they do not depend on it."""
ERROR_ROWS = 512
PEAK_WIDTH = {"cpu": 2048, "cuda": 8192}
"""Of the square matrix product whose rate is the peak."""
SEED = 0


@dataclass(frozen=True)
class Bar:
    """A figure that must be reached."""

    figure: str
    """A key of `judged_figures`."""
    limit: float
    text: str
    at_most: bool = False

    def met(self, value: float) -> bool:
        """Whether `value` reaches the bar."""
        return value <= self.limit if self.at_most else value >= self.limit


GRADIENT_BAR = Bar("gradient error", 0.005, "gradient error at KL 0.0002", at_most=True)
BARS: dict[tuple[str, str], tuple[Bar, ...]] = {
    ("cpu", "float32"): (
        Bar("of peak", 0.86, "fraction of the matmul peak"),
        Bar("Liger", 1.15, "times as fast as Liger's chunked, the faster of its two forms"),
        Bar("naive", 1.5, "times as fast as naive"),
        Bar("TRL", 3.0, "times as fast as TRL's divergence + cross-entropy, the faster of two forms"),
        Bar("memory of naive's", 0.2, "extra memory as a part of naive's", at_most=True),
        Bar("eager, Liger", 1.0, "times as fast as Liger, neither compiled"),
    ),
    ("cpu", "bfloat16"): (
        Bar("of peak", 0.84, "fraction of the matmul peak"),
        Bar("Liger", 1.4, "times as fast as Liger's chunked, the faster of its two forms"),
        Bar("naive", 2.8, "times as fast as naive"),
        Bar("TRL", 5.0, "times as fast as TRL's divergence + cross-entropy, the faster of two forms"),
        GRADIENT_BAR,
    ),
    ("cuda", "bfloat16"): (
        Bar("of peak", 0.80, "fraction of the cuBLAS rate (bf16 product, 8192 wide)"),
        Bar("extra GB", 3.5, "extra memory, GB", at_most=True),
        GRADIENT_BAR,
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    device = device_name()
    if device == "cpu":
        torch.set_num_threads(options.threads or min(2, os.cpu_count() or 1))
    if options.memory_of:
        return memory_worker(options.memory_of, tuple(options.shape), options.dtypes[0], device)

    mode = "sweep" if options.sweep else "quick" if options.quick else "full"
    default = QUICK_SHAPE[device] if options.quick else BAR_SHAPE[device]
    shapes = (
        [(n, default[1], v) for n, v in SWEEP]
        if options.sweep
        else [tuple(options.shape) if options.shape else default]
    )
    dtypes = options.dtypes or (["bfloat16"] if device == "cuda" else list(DTYPES))
    rounds = options.rounds or (3 if mode != "full" else 9)
    machine = hardware(device)
    versions = {name: version_of(name) for name in ("torch", "triton", "liger-kernel", "trl", "torchtune")}
    print(f"{machine}; " + ", ".join(f"{name} {version}" for name, version in versions.items()))
    print(f"cross-entropy + forward KL at T = 1, forward and backward; {rounds} rounds\n")

    runs, short = [], []
    for shape in shapes:
        for dtype in dtypes:
            bars = () if mode == "sweep" else BARS.get((device, dtype), ())
            bars = (
                (GRADIENT_BAR,)
                if mode == "quick" and GRADIENT_BAR in bars
                else ()
                if mode == "quick" or shape != default
                else bars
            )
            run = run_shape(shape, dtype, device, rounds=rounds, mode=mode, only=options.only)
            run["bars"] = judge(run, bars)
            print(report(run), flush=True)
            short += [f"{dtype}: {bar['line']}" for bar in run["bars"] if not bar["met"]]
            runs.append(run)
            if options.save:  # after each shape, so that a long sweep that is stopped has not been for nothing
                from holdfast.support.files import write_json

                figures = {
                    "benchmark": "annealing_op",
                    "mode": mode,
                    "hardware": machine,
                    "versions": versions,
                    "seed": SEED,
                    "runs": runs,
                }
                write_json(options.save, figures)
    for line in short:
        print(f"SHORT  {line}", file=sys.stderr)
    return 1 if options.check and short else 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 where a bar falls short or cannot be judged")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="under a minute, small shape")
    size.add_argument("--sweep", action="store_true", help="many shapes, no bars")
    size.add_argument(
        "--shape", type=int, nargs=3, metavar=("N", "H", "V"), default=None, help="one shape of your own, no bars"
    )
    parser.add_argument(
        "--dtype",
        dest="dtypes",
        action="append",
        choices=list(DTYPES),
        help="repeatable; float32 and bfloat16 (CUDA: bfloat16)",
    )
    parser.add_argument("--rounds", type=int, default=None, help="timed rounds (9; 3 with --quick and --sweep)")
    parser.add_argument("--threads", type=int, default=None, help="threads on a CPU (2, or 1 on one core)")
    parser.add_argument(
        "--only", action="append", choices=[c.name for c in CONTESTANTS], help="repeatable: these contestants only"
    )
    parser.add_argument("--save", type=Path, default=None, metavar="FILE", help="write the figures as JSON")
    parser.add_argument("--memory-of", default=None, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.only is not None and "ours" not in options.only:
        parser.error("--only: expected `ours` among the contestants, since everything is compared with it")
    return options


def run_shape(
    shape: Shape, dtype: str, device: str, *, rounds: int, mode: str, only: Sequence[str] | None = None
) -> dict[str, Any]:
    """Everything about one shape and dtype, as it goes into the JSON."""
    steps, reasons = load_contestants(shape, device, mode, only)
    problem, kl = make_problem(*shape, dtype=DTYPES[dtype], device=device, kl=TIMED_KL, seed=SEED)
    times = Times(shape, DTYPES[dtype], device)
    from holdfast.ops.annealing import describe_backend
    from holdfast.ops.heads import Head

    backend = describe_backend(problem.hidden_NH, Head(weight_VH=problem.weight_VH))
    times.run(steps, problem, rounds, warm_up=2 if mode == "full" else 1)
    reasons.update(times.failures)
    del problem
    if device == "cuda":
        torch.cuda.empty_cache()
    contestants: list[dict[str, Any]] = []
    for contestant in CONTESTANTS:
        name = contestant.name
        if name in reasons:
            contestants.append({"name": name, "family": contestant.family, "absent": reasons[name]})
            continue
        progress(f"{dtype} {shape}: memory of {name}")
        memory, how = measure_memory(name, shape, dtype, device, mode)
        extra = None if memory is None else memory / MB
        contestants.append(
            {"name": name, "family": contestant.family, **times.figures(name), "extra_mb": extra, "memory": how}
        )
    running = [c for c in CONTESTANTS if c.name not in reasons]
    errors = gradient_errors(running, shape, dtype, device) if mode != "sweep" else []
    peak = spread(times.peaks)
    return {
        "shape": dict(zip("NHV", shape, strict=True)),
        "dtype": dtype,
        "device": device,
        "threads": torch.get_num_threads(),
        "rounds": rounds,
        "kl": kl,
        "backend": backend,
        "peak_flops": peak,
        "contestants": contestants,
        "gradient_errors": errors,
    }


def load_contestants(
    shape: Shape, device: str, mode: str, only: Sequence[str] | None
) -> tuple[dict[str, Step], dict[str, str]]:
    """Those that take part, and why each of the others does not."""
    steps: dict[str, Step] = {}
    reasons: dict[str, str] = {}
    free = free_memory(device)
    # Whole-logits contestants hold about eight float32 tensors of [N, V] at their peak: two logits, their
    # log-softmaxes, and gradients.
    whole = 8 * 4 * shape[0] * shape[2]
    for contestant in CONTESTANTS:
        name = contestant.name
        if only is not None and name not in only:
            reasons[name] = "left out by --only"
        elif contestant.variant and mode != "full":
            reasons[name] = f"another form of a contestant, left out by --{mode}"
        elif contestant.whole_logits and free is not None and whole > 0.8 * free:
            reasons[name] = f"whole logits need about {whole / 1e9:.0f} GB, {free / 1e9:.0f} GB are free"
        else:
            progress(f"loading {name}")
            try:
                steps[name] = contestant.load()
            except Unavailable as error:
                reasons[name] = str(error)
    return steps, reasons


# ----------------------------------------------------------------------------------------------------------------- time


class Times:
    """Rounds in which the contestants take turns."""

    def __init__(self, shape: Shape, dtype: torch.dtype, device: str) -> None:
        self.work = 8.0 * shape[0] * shape[1] * shape[2]
        self.device = device
        self.peaks: list[float] = []
        """Floating-point operations a second of the square product, each round."""
        self.wall: dict[str, list[float]] = {}
        self.busy: dict[str, list[float]] = {}
        self.first: dict[str, float] = {}
        self.failures: dict[str, str] = {}
        width = PEAK_WIDTH[device]
        self._square = [torch.randn(width, width, device=device).to(dtype) for _ in range(2)]
        self._product = torch.empty(width, width, device=device, dtype=dtype)

    def run(self, steps: Mapping[str, Step], problem: Problem, rounds: int, *, warm_up: int) -> None:
        """Times all contestants; one that fails is left out from there on, with the reason in `failures`."""
        names = list(steps)
        self.wall = {name: [] for name in names}
        self.busy = {name: [] for name in names}
        for number in range(warm_up + rounds):
            progress(f"round {number + 1} of {warm_up + rounds}")
            peak = self._peak()
            if number >= warm_up:
                self.peaks.append(peak)
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                if name in self.failures:
                    continue
                try:
                    wall, busy = self._time(lambda step=steps[name]: whole_step(step, problem))
                except Exception as error:  # out of memory, a compiler that is not there: the others go on
                    self.failures[name] = (
                        f"failed: {type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:160]}"
                    )
                    wall = busy = 0.0
                problem.clear()
                if name in self.failures:
                    gc.collect()
                elif number == 0:
                    self.first[name] = wall
                if number >= warm_up and name not in self.failures:
                    self.wall[name].append(wall)
                    self.busy[name].append(busy)

    def figures(self, name: str) -> dict[str, Any]:
        """Of one contestant: seconds, fraction of the peak, and how many times longer it takes than ours."""
        wall = self.wall[name]
        return {
            "seconds": spread(wall),
            "busy_seconds": spread(self.busy[name]),
            "of_peak": spread([self.work / s / peak for s, peak in zip(wall, self.peaks, strict=True)]),
            "first_call_seconds": self.first[name],
            "times_ours": spread([a / b for a, b in zip(wall, self.wall["ours"], strict=True)])
            if self._ran("ours")
            else None,
            "times_eager": spread([a / b for a, b in zip(wall, self.wall["ours, eager"], strict=True)])
            if self._ran("ours, eager")
            else None,
        }

    def _ran(self, name: str) -> bool:
        return name in self.wall and name not in self.failures

    def _peak(self) -> float:
        a, b = self._square
        seconds = [self._time(lambda: torch.mm(a, b, out=self._product))[0] for _ in range(3)]
        return 2.0 * a.shape[0] ** 3 / statistics.median(seconds)

    def _time(self, call: Any) -> tuple[float, float]:
        """Seconds by the clock, and seconds of processor time (on CUDA: of the device)."""
        if self.device == "cuda":
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            began = time.perf_counter()
            start.record()
            call()
            end.record()
            torch.cuda.synchronize()
            return time.perf_counter() - began, start.elapsed_time(end) / 1e3
        began, used = time.perf_counter(), time.process_time()
        call()
        return time.perf_counter() - began, time.process_time() - used


def whole_step(step: Step, problem: Problem) -> None:
    """Forward and backward."""
    step(problem, 1.0, 1.0).backward()


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and range."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


# --------------------------------------------------------------------------------------------------------------- memory


def measure_memory(name: str, shape: Shape, dtype: str, device: str, mode: str) -> tuple[float | None, str]:
    """Peak extra bytes of a contestant, and how they were found (or why not)."""
    if device == "cuda":
        return memory_of(name, shape, dtype, device)
    if mode == "quick" and (name not in ("ours", "naive") or dtype != "float32"):
        return None, "not measured: --quick"
    # A fresh process: this one's allocator holds freed blocks of all contestants, out of which a step would be served.
    command = [
        sys.executable,
        str(Path(__file__).resolve()),
        "--memory-of",
        name,
        "--dtype",
        dtype,
        "--shape",
        *map(str, shape),
    ]
    command += ["--threads", str(torch.get_num_threads())]
    done = subprocess.run(command, capture_output=True, text=True)
    try:
        answer = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return None, f"not measured: its process ended with {done.returncode}: {last[:160]}"
    return answer["bytes"], answer["how"]


def memory_worker(name: str, shape: Shape, dtype: str, device: str) -> int:
    extra, how = memory_of(name, shape, dtype, device)
    print(json.dumps({"bytes": extra, "how": how}))
    return 0


def memory_of(name: str, shape: Shape, dtype: str, device: str) -> tuple[float | None, str]:
    """Measures in this process: the second step's peak, and the tensors that the first has left alive."""
    step = next(c for c in CONTESTANTS if c.name == name).load()
    problem, _ = make_problem(
        *shape, dtype=DTYPES[dtype], device=device, kl=TIMED_KL, seed=SEED, tolerance=float("inf")
    )

    def held() -> int:
        gc.collect()
        synchronize(device)
        return int(torch.cuda.memory_allocated()) if device == "cuda" else live_tensor_bytes()

    before = held()
    whole_step(step, problem)  # compilers run here, and oneDNN and cuBLAS make their workspaces
    problem.clear()
    left = max(0, held() - before)
    extra, how = extra_memory(lambda: whole_step(step, problem), device)
    problem.clear()
    return None if extra is None else extra + left, how


# ------------------------------------------------------------------------------------------------------- gradient error


def gradient_errors(contestants: Sequence[Contestant], shape: Shape, dtype: str, device: str) -> list[dict[str, Any]]:
    """For each distance of student and teacher, each contestant's relative gradient error of the KL alone."""
    table = []
    for target in KL_TARGETS:
        progress(f"{dtype} {shape}: gradient error at KL {target}")
        rows = min(shape[0], ERROR_ROWS)
        problem, _ = make_problem(
            rows, shape[1], shape[2], dtype=DTYPES[dtype], device=device, kl=target, seed=SEED + 1
        )
        reference = reference_gradients(problem, 0.0, 1.0)

        def errors(hidden: torch.Tensor, weight: torch.Tensor, r: Any = reference) -> dict[str, float]:
            return {
                "hidden": relative_error(hidden, r.grad_hidden_NH),
                "weight": relative_error(weight, r.grad_weight_VH),
            }

        rounded = [g.to(DTYPES[dtype]) for g in (reference.grad_hidden_NH, reference.grad_weight_VH)]
        found: dict[str, dict[str, float] | str] = {"rounding only": errors(*rounded)}
        for contestant in contestants:
            try:
                contestant.load()(problem, 0.0, 1.0).backward()
                assert problem.hidden_NH.grad is not None and problem.weight_VH.grad is not None
                found[contestant.name] = errors(problem.hidden_NH.grad, problem.weight_VH.grad)
            except Exception as error:
                found[contestant.name] = f"failed: {type(error).__name__}"
            problem.clear()
        table.append({"target": target, "kl": reference.kl, "rows": rows, "errors": found})
    return table


# ----------------------------------------------------------------------------------------------------------------- bars


def judged_figures(run: Mapping[str, Any]) -> dict[str, float]:
    """What the bars speak of; a figure that this run could not give is not in it."""
    ran = {c["name"]: c for c in run["contestants"] if "absent" not in c}
    figures: dict[str, float] = {}
    ours = ran.get("ours")
    if ours is None:
        return figures
    figures["of peak"] = ours["of_peak"]["median"]
    for family in ("Liger", "naive", "TRL", "torchtune"):
        ratios = [c["times_ours"]["median"] for c in ran.values() if c["family"] == family and c["times_ours"]]
        if ratios:
            figures[family] = min(ratios)
    if "Liger" in ran and ran["Liger"]["times_eager"]:
        figures["eager, Liger"] = ran["Liger"]["times_eager"]["median"]
    if ours["extra_mb"] is not None:
        figures["extra GB"] = ours["extra_mb"] * MB / 1e9
        if "naive" in ran and ran["naive"]["extra_mb"]:
            figures["memory of naive's"] = ours["extra_mb"] / ran["naive"]["extra_mb"]
    for entry in run["gradient_errors"]:
        error = entry["errors"].get("ours")
        if entry["target"] == min(KL_TARGETS) and isinstance(error, Mapping):
            figures["gradient error"] = max(error["hidden"], error["weight"])
    return figures


def judge(run: Mapping[str, Any], bars: Sequence[Bar]) -> list[dict[str, Any]]:
    """Each bar with its figure. One that cannot be judged, because a peer is absent, is not met: nothing has been
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


def report(run: Mapping[str, Any]) -> str:
    """The run's tables as text."""
    shape, peak = run["shape"], run["peak_flops"]
    rate = "TFLOP/s" if peak["median"] > 1e13 else "GFLOP/s"
    unit = 1e12 if rate == "TFLOP/s" else 1e9
    lines = [
        f"N = {shape['N']}, H = {shape['H']}, V = {shape['V']}, {run['dtype']} inputs; matmul peak "
        f"{peak['median'] / unit:.0f} {rate} "
        f"({peak['low'] / unit:.0f} - {peak['high'] / unit:.0f}); ours: {run['backend']}",
        "",
        f"{'':<18}{'seconds':>9}{'range':>19}{'busy':>9}{'of peak':>9}{'range':>14}"
        f"{'x ours':>8}{'range':>14}{'extra MB':>10}{'first call':>12}",
    ]
    for c in run["contestants"]:
        if "absent" in c:
            lines.append(f"{c['name']:<18}    {c['absent']}")
            continue
        s, f, r = c["seconds"], c["of_peak"], c["times_ours"]
        extra = "-" if c["extra_mb"] is None else f"{c['extra_mb']:.0f}"
        ratio = f"{r['median']:>8.2f}{_range(r, 2):>14}" if r else f"{'-':>8}{'':>14}"
        lines.append(
            f"{c['name']:<18}{s['median']:>9.3f}{_range(s, 3):>19}"
            f"{c['busy_seconds']['median']:>9.3f}{f['median']:>9.3f}{_range(f, 2):>14}"
            f"{ratio}{extra:>10}{c['first_call_seconds']:>11.1f}s"
        )
    unmeasured = sorted({c["memory"] for c in run["contestants"] if c.get("extra_mb", 0) is None})
    lines += [f"  extra MB -: {how}" for how in unmeasured]
    if run["gradient_errors"]:
        table = run["gradient_errors"]
        lines += [
            "",
            f"gradient error of the KL, hidden / head, %{'':<6}"
            + "".join(f"{'KL ' + format(e['target'], 'g'):>20}" for e in table),
        ]
        for name in table[0]["errors"]:
            cells = [e["errors"][name] for e in table]
            lines.append(
                f"{name:<48}"
                + "".join(
                    f"{c:>20}" if isinstance(c, str) else f"{_percent(c['hidden']) + ' / ' + _percent(c['weight']):>20}"
                    for c in cells
                )
            )
    if run["bars"]:
        lines += ["", *(f"{'reached' if bar['met'] else 'SHORT':<9}{bar['line']}" for bar in run["bars"])]
    return "\n".join(lines) + "\n"


def _range(figure: Mapping[str, float], digits: int) -> str:
    return f"{figure['low']:.{digits}f} - {figure['high']:.{digits}f}"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.2g}" if fraction < 0.1 else f"{100 * fraction:.0f}"


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
