"""What every retention method costs: time of an optimiser step and resident memory, as a ratio to direct fine-tuning in
the same run.

    python benchmarks/methods.py                  # 120M parameters; the table
    python benchmarks/methods.py --check          # exit 1 where a stated bar falls short
    python benchmarks/methods.py --quick          # under a minute, smaller model, fewer rounds
    python benchmarks/methods.py --only l2 sfa    # methods whose name begins so, with direct
    python benchmarks/methods.py --save FILE      # the figures as JSON

Time. A step is what training does: forward, loss, backward, added gradients, clipping, AdamW, the methods' work after
it. All arms take turns on ONE model and one optimiser, one step each a round in random order, so that a machine's
drift, its caches and the layout of memory are the same for all; the ratio is the median over rounds of the ratio within
a round. `direct, again` is direct fine-tuning under another name: what its row shows is the noise, and a bar falls
short only where the whole 95 % interval of the median (bootstrap over rounds) lies above it. `own work` is the time
inside the methods' own hooks in those same steps, which noise of the step does not touch, as a share of direct's step;
1 and it have to be within the bar as they are. Work that a method does at a few steps only (SFA's averages, the last
step of WiSE-FT and EMA) is timed on its own and spread over a run of RUN steps. What happens once, before the first
step (mixing data, estimating a Fisher matrix), is not in it; it is in the `before` column. Ctrl-C ends the rounds and
sums up those that are complete.

The model's width makes matrix products the bulk of a step, as in models that people train; a step has 1024 tokens,
fewer than real ones, which is against the methods: their work is per step, not per token. Data methods change what is
trained on, not how; their step is one on the mixed rows.

Memory. Each arm trains in a process of its own, on rows so short that the weights are nearly all there is; the figure
is the process's largest resident size (on CUDA the largest allocation) less direct's, in the size of the weights. Files
that are streamed lie in the system's page cache, which it gives to others when they need it, and count for nothing.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from machine import _kilobytes, device_name, hardware, synchronize
from tqdm import tqdm
from train_step import BATCH, LENGTH, build, parameters

SIZES = {
    "quick": {"width": 256, "layers": 4, "vocabulary": 4096},
    "short": {"width": 1024, "layers": 2, "vocabulary": 8192},
    "default": {"width": 1024, "layers": 8, "vocabulary": 8192},
}
"""`short` is as wide as the default, so that its ratios are nearly the same, and takes a quarter of the time."""
RUN = 100
"""Optimiser steps of the run that rare work is spread over. Real runs are longer, so its share is smaller."""
SHORT = 32
"""Tokens of a row in the memory measurement."""

AGAIN = "direct, again"
TIME_BARS = {
    "sfa, device": 1.01,
    "sfa, disk": 1.01,
    "sfa, folder": 1.01,
    "l2, device": 1.05,
    "l2, disk": 1.05,
    "l2, decoupled": 1.05,
    "ewc, device": 1.05,
    "ewc, disk": 1.05,
    "replay": 1.01,
}
"""Largest allowed ratio to direct; the quick size has no bars. Replay's is 1.0 a token; the hundredth is this
benchmark's noise."""
MEMORY_BARS = {"sfa, disk": 0.02, "sfa, folder": 0.02}
"""Largest allowed memory beyond direct's, in the size of the weights: none but buffers and the allocator's noise."""
QUICK_MEMORY = ("direct", "sfa, device", "sfa, disk")
"""The arms whose memory --quick measures: a process each takes seconds to start."""


@dataclass(frozen=True)
class Arm:
    """One way of training."""

    name: str
    retention: list[dict[str, Any]] = field(default_factory=list)
    """As in a config; {folder}: a checkpoint of the start, {rows}: other data."""
    rare: int = 0
    """Steps of a run that do the rare work, at the last step at the latest."""
    data: bool = False
    """Whether the methods change the data."""


ARMS = (
    Arm("direct"),
    Arm(AGAIN),
    Arm("sfa, device", [{"sfa": {"p": 0.25, "reference_device": "device"}}], rare=4),
    Arm("sfa, disk", [{"sfa": {"p": 0.25, "reference_device": "disk"}}], rare=4),
    Arm("sfa, folder", [{"sfa": {"p": 0.25, "reference": "{folder}"}}], rare=4),
    Arm("l2, device", [{"l2": {"coefficient": 0.01}}]),
    Arm("l2, disk", [{"l2": {"coefficient": 0.01, "reference_device": "disk"}}]),
    Arm("l2, decoupled", [{"l2": {"coefficient": 0.01, "decoupled": True}}]),
    Arm("ewc, device", [{"ewc": {"data": "{rows}", "samples": 8}}]),
    Arm("ewc, disk", [{"ewc": {"data": "{rows}", "samples": 8, "reference_device": "disk"}}]),
    Arm("wise_ft", [{"wise_ft": {"alpha": 0.5}}], rare=1),
    Arm("mofo", [{"mofo": {}}]),
    Arm("ema", [{"ema": {"decay": 0.999}}], rare=1),
    Arm("ema, every 10", [{"ema": {"decay": 0.99, "every": 10}}], rare=RUN // 10),
    Arm("label_annealing, online", [{"label_annealing": {"weight": 1.0, "teacher": "online"}}]),
    Arm("token_weighting, eaft", [{"token_weighting": {"kind": "eaft"}}]),
    Arm("replay", [{"replay": {"data": "{rows}", "fraction": 0.1}}], data=True),
    Arm("multitask", [{"multitask": {"data": "{rows}"}}], data=True),
)


class Absent(Exception):
    """An arm that cannot be run here, with the reason."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 where a bar falls short")
    parser.add_argument(
        "--quick", action="store_true", help="under a minute: a small model, 3 rounds, memory of three arms"
    )
    parser.add_argument("--size", choices=list(SIZES), default=None, help="model (default; quick with --quick)")
    parser.add_argument("--only", nargs="+", default=None, metavar="NAME", help="arms whose name begins so")
    parser.add_argument("--rounds", type=int, default=None, help="timed rounds (15; 3 with --quick)")
    parser.add_argument("--threads", type=int, default=None, help="threads on a CPU (PyTorch's choice)")
    parser.add_argument("--skip_memory", action="store_true", help="time only")
    parser.add_argument("--skip_time", action="store_true", help="memory only")
    parser.add_argument("--save", type=Path, default=None, metavar="FILE", help="write the figures as JSON")
    parser.add_argument("--memory_of", default=None, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    size_name = options.size or ("quick" if options.quick else "default")
    size, rounds = SIZES[size_name], options.rounds or (3 if options.quick else 15)
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.memory_of:
        print(json.dumps({"peak": peak_of(next(arm for arm in ARMS if arm.name == options.memory_of), size)}))
        return 0

    device = device_name()
    chosen = [a for a in ARMS if a.name == "direct" or options.only is None or a.name.startswith(tuple(options.only))]
    absent = {arm.name: reason for arm in chosen if (reason := not_here(arm))}
    chosen = [arm for arm in chosen if arm.name not in absent]
    machine = hardware(device)
    print(
        f"Llama-architecture model, {size}, about {parameters(size) / 1e6:.0f}M parameters; {BATCH} x {LENGTH} tokens "
        f"a step; {rounds} rounds"
    )
    print(f"{machine}; torch {torch.__version__}\n", flush=True)
    timed = {} if options.skip_time else time_arms(chosen, size, rounds, device)
    weighed = (
        []
        if options.skip_memory
        else [arm for arm in chosen if arm.name != AGAIN and (not options.quick or arm.name in QUICK_MEMORY)]
    )
    peaks = {arm.name: memory_of(arm, size_name, options.threads) for arm in weighed}
    figures = summarise(chosen, timed, peaks, size, bars=size_name != "quick")
    show(figures, absent)
    if options.save:
        from holdfast.support.files import write_json

        write_json(
            options.save,
            {
                "benchmark": "methods",
                "hardware": machine,
                "torch": torch.__version__,
                "size": size,
                "rounds": rounds,
                "run": RUN,
                "figures": figures,
                "absent": absent,
            },
        )
    short = falling_short(figures)
    for line in short:
        print(f"SHORT  {line}", file=sys.stderr)
    return 1 if options.check and short else 0


def not_here(arm: Arm) -> str | None:
    """Why an arm cannot be run, None if it can."""
    from holdfast.retention.registry import METHODS

    unknown = [name for entry in arm.retention for name in entry if name not in METHODS]
    return f"no method {', '.join(unknown)} in this version" if unknown else None


# -------------------------------------------------------------------------------------------------------------- one arm


class Bench:
    """The model, the optimiser and the files that arms share."""

    def __init__(self, folder: Path, size: dict[str, int], device: str, length: int) -> None:
        self.folder, self.size, self.device, self.length = folder, size, device, length
        self.model = build(size, device)
        self.optimizer: Any = None
        self.files = {"folder": str(folder / "start"), "rows": str(folder / "rows.jsonl")}
        Path(self.files["rows"]).write_text('{"text": "stands for rows that are tokenised already"}\n')

    def rows(self, count: int, seed: int) -> Any:
        """Random tokens as tokenised data: `input_ids`, `labels`, all of one length."""
        from datasets import Dataset

        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(5, self.size["vocabulary"], (count, self.length), generator=generator).tolist()
        return Dataset.from_dict({"input_ids": ids, "labels": ids})

    def start_folder(self) -> None:
        """Saves the model as the start, once."""
        if not Path(self.files["folder"]).is_dir():
            self.model.save_pretrained(self.files["folder"])


class Contestant:
    """An arm that can take steps.

    Args:
        bench: shared with others or not.
        arm: which.
    """

    def __init__(self, bench: Bench, arm: Arm) -> None:
        from holdfast.retention.registry import retention

        spec = [
            {name: {k: _filled(v, bench.files) for k, v in given.items()} for name, given in entry.items()}
            for entry in arm.retention
        ]
        if any(
            value == bench.files["folder"] for entry in spec for given in entry.values() for value in given.values()
        ):
            bench.start_folder()
        methods = retention(spec)
        began = time.perf_counter()
        data = bench.rows(64, seed=1)
        if arm.data:
            for method in methods:
                services = SimpleNamespace(prepare=lambda name: bench.rows(64, seed=2), seed=0, cut=None)
                data, _ = method.training_data(data, services)
            methods = []
        self.device = bench.device
        ids = torch.tensor(data[: max(BATCH * (len(data) // BATCH), BATCH)]["input_ids"])
        self.batches = [
            {"input_ids": b, "labels": b.clone(), "attention_mask": torch.ones_like(b)}
            for b in ids.split(BATCH)
            if len(b) == BATCH
        ]
        self.trainer = make_trainer(bench, methods)
        self.before = time.perf_counter() - began
        self.items = torch.tensor(BATCH * (bench.length - 1), device=self.trainer.args.device)
        self.taken, self.own = 0, 0.0
        for active in self.trainer.active:
            for hook in ("gradient", "weights"):
                setattr(active, hook, self._timed(getattr(active, hook)))

    def _timed(self, hook: Callable[..., None]) -> Callable[..., None]:
        """The hook, its seconds added to `own`."""

        def timed(*given: Any) -> None:
            self.own += seconds_of(lambda: hook(*given), self.device)

        return timed

    def step(self) -> None:
        """One optimiser step as `Trainer` takes it, without the rare work."""
        trainer, inputs = self.trainer, self.batches[self.taken % len(self.batches)]
        self.taken, self.own = self.taken + 1, 0.0
        trainer.state.global_step = 0  # step 1 of the run: none with rare work
        trainer.training_step(trainer.model, dict(inputs), self.items)
        trainer._clip_grad_norm(trainer.model)
        trainer.optimizer.step()
        trainer.model.zero_grad()
        trainer.state.global_step = 1
        trainer.after_optimizer_step()

    def rare(self) -> None:
        """What is done after the last step of a run."""
        self.trainer.state.global_step = RUN
        self.trainer.after_optimizer_step()


def _filled(value: Any, files: dict[str, str]) -> Any:
    return value.format(**files) if isinstance(value, str) else value


def make_trainer(bench: Bench, methods: list[Any]) -> Any:
    """A trainer of the shared model and optimiser, ready for its first step."""
    from transformers import Trainer, TrainingArguments

    from holdfast.training.mixin import RetentionMixin

    class BenchTrainer(RetentionMixin, Trainer):
        """Reads random rows whatever data a method names."""

        def _prepare_other(self, name: str, processing_class: Any, args: Any) -> Any:
            return bench.rows(16, seed=3)

    arguments = TrainingArguments(
        output_dir=str(bench.folder / "runs"),
        report_to="none",
        save_strategy="no",
        learning_rate=1e-4,
        max_steps=RUN,
        per_device_train_batch_size=BATCH,
        dataloader_pin_memory=torch.cuda.is_available(),
        disable_tqdm=True,
    )
    trainer = BenchTrainer(model=bench.model, args=arguments, retain=methods, train_dataset=bench.rows(BATCH, seed=0))
    if bench.optimizer is None:
        trainer.create_optimizer_and_scheduler(RUN)
        bench.optimizer = trainer.optimizer
    trainer.optimizer = bench.optimizer
    trainer.state.max_steps = RUN
    trainer.prepare_teacher()
    trainer.prepare_methods()
    return trainer


# ----------------------------------------------------------------------------------------------------------------- time


@dataclass
class Times:
    """Seconds of one arm."""

    steps: list[float] = field(default_factory=list)
    """Of each round."""
    own: list[float] = field(default_factory=list)
    """In the methods' hooks, of each round."""
    rare: list[float] = field(default_factory=list)
    """Of the rare work, each time."""
    before: float = 0.0
    """Until the first step could be taken."""


def time_arms(arms: list[Arm], size: dict[str, int], rounds: int, device: str) -> dict[str, Times]:
    """All arms on one model, in turns."""
    with tempfile.TemporaryDirectory() as place:
        bench = Bench(Path(place), size, device, LENGTH)
        contestants = {arm.name: Contestant(bench, arm) for arm in arms}
        times = {name: Times(before=c.before) for name, c in contestants.items()}
        order, dice = list(contestants), random.Random(0)
        with interruptible(), tqdm(total=(rounds + 1) * len(order), unit="step", disable=None) as bar:
            for number in range(rounds + 1):
                dice.shuffle(order)
                taken = {}
                for name in order:
                    bar.set_postfix_str(f"round {number} of {rounds}, {name}")
                    taken[name] = seconds_of(contestants[name].step, device), contestants[name].own
                    bar.update()
                if number:  # the round before warms up
                    for name, (spent, own) in taken.items():
                        times[name].steps.append(spent)
                        times[name].own.append(own)
        if not times["direct"].steps:
            raise SystemExit("Interrupted before a round was complete; nothing was measured.")
        for arm in arms:
            if arm.rare:
                times[arm.name].rare = [seconds_of(contestants[arm.name].rare, device) for _ in range(4)][1:]
        del contestants
    return times


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C ends the rounds; those that are complete are summed up."""
    try:
        yield
    except KeyboardInterrupt:
        print("\nInterrupted: the figures are of the rounds that were complete.", file=sys.stderr)


def seconds_of(call: Callable[[], None], device: str) -> float:
    synchronize(device)
    began = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - began


# --------------------------------------------------------------------------------------------------------------- memory


def memory_of(arm: Arm, size_name: str, threads: int | None) -> int | None:
    """Bytes at the peak of a process that trains with the arm."""
    words = [sys.executable, str(Path(__file__).resolve()), "--memory_of", arm.name, "--size", size_name]
    words += ["--threads", str(threads)] if threads else []
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        print(f"memory of {arm.name}: the process ended with {done.returncode}: {last}", file=sys.stderr)
        return None
    return json.loads(done.stdout.strip().splitlines()[-1])["peak"]


def peak_of(arm: Arm, size: dict[str, int]) -> int | None:
    """In the process of its own: builds, trains three steps, does the rare work, trains on."""
    device = device_name()
    with tempfile.TemporaryDirectory() as place:
        contestant = Contestant(Bench(Path(place), size, device, SHORT), arm)
        for _ in range(3):
            contestant.step()
        if arm.rare:
            contestant.rare()
        contestant.step()
    if device == "cuda":
        return int(torch.cuda.max_memory_allocated())
    return _kilobytes("/proc/self/status", "VmHWM")


# -------------------------------------------------------------------------------------------------------------- results


def summarise(
    arms: list[Arm], timed: dict[str, Times], peaks: dict[str, int | None], size: dict[str, int], *, bars: bool
) -> list[dict[str, Any]]:
    """One row an arm; figures that were not measured are None."""
    weights = 4 * (parameters(size) + size["vocabulary"] * size["width"])  # float32, with the embedding
    rows = []
    for arm in arms:
        row: dict[str, Any] = {"arm": arm.name, "retention": arm.retention, "rare_steps": arm.rare}
        row |= dict.fromkeys(
            (
                "seconds",
                "ratio",
                "low",
                "high",
                "own",
                "rare_seconds",
                "before_seconds",
                "peak_mb",
                "extra_mb",
                "extra_of_weights",
            )
        )
        if arm.name in timed:
            times, base = timed[arm.name], timed["direct"]
            rare = statistics.median(times.rare) if times.rare else 0.0
            spread = arm.rare * rare / RUN
            ratios = [(a + spread) / b for a, b in zip(times.steps, base.steps, strict=True)]
            low, high = interval(ratios)
            row |= {
                "seconds": statistics.median(times.steps) + spread,
                "ratio": statistics.median(ratios),
                "low": low,
                "high": high,
            }
            row["own"] = (statistics.median(times.own) + spread) / statistics.median(base.steps)
            row |= {"rare_seconds": rare if times.rare else None, "before_seconds": times.before}
        peak, direct = peaks.get(arm.name), peaks.get("direct")
        if peak is not None:
            row["peak_mb"] = peak / 1e6
        if peak is not None and direct is not None:
            row |= {"extra_mb": (peak - direct) / 1e6, "extra_of_weights": (peak - direct) / weights}
        row["time_bar"] = TIME_BARS.get(arm.name) if bars else None
        row["memory_bar"] = MEMORY_BARS.get(arm.name) if bars else None
        rows.append(row)
    return rows


def interval(ratios: list[float], draws: int = 2000) -> tuple[float, float]:
    """95 % interval of the median, by the bootstrap over rounds."""
    dice = random.Random(0)
    medians = sorted(statistics.median(dice.choices(ratios, k=len(ratios))) for _ in range(draws))
    return medians[int(0.025 * draws)], medians[int(0.975 * draws)]


def falling_short(figures: list[dict[str, Any]]) -> list[str]:
    """A sentence for each bar that is not reached."""
    found = []
    for f in figures:
        if f["time_bar"] is not None and f["low"] is not None and f["low"] > f["time_bar"]:
            found.append(
                f"{f['arm']}: {f['ratio']:.3f} ({f['low']:.3f} to {f['high']:.3f}) of direct's time, the bar is "
                f"{f['time_bar']}"
            )
        if f["time_bar"] is not None and f["own"] is not None and 1 + f["own"] > f["time_bar"]:
            found.append(
                f"{f['arm']}: its own work takes {f['own']:.3f} of direct's step, the bar is {f['time_bar'] - 1:.2f}"
            )
        if (
            f["memory_bar"] is not None
            and f["extra_of_weights"] is not None
            and f["extra_of_weights"] > f["memory_bar"]
        ):
            found.append(
                f"{f['arm']}: {f['extra_of_weights']:.3f} of the weights beyond direct's memory, the bar is "
                f"{f['memory_bar']}"
            )
    return found


def show(figures: list[dict[str, Any]], absent: dict[str, str]) -> None:
    """The table."""
    times = f"{'s / step':>10}{'of direct':>11}{'95 %':>15}{'own work':>10}{'bar':>6}{'rare, s':>9}{'before, s':>11}"
    print(f"{'arm':<26}{times}{'memory beyond direct':>26}{'bar':>6}")
    for f in figures:
        text = f"{f['arm']:<26}"
        text += f"{_or_blank(f['seconds'], '.3f'):>10}{_or_blank(f['ratio'], '.3f'):>11}"
        spread = "" if f["low"] is None else f"{f['low']:.3f} - {f['high']:.3f}"
        text += f"{spread:>15}{_or_blank(f['own'], '.4f'):>10}{_or_blank(f['time_bar'], '.2f'):>6}"
        text += f"{_or_blank(f['rare_seconds'], '.3f'):>9}{_or_blank(f['before_seconds'], '.1f'):>11}"
        extra = "" if f["extra_mb"] is None else f"{f['extra_mb']:.0f} MB = {f['extra_of_weights']:.2f} weights"
        print(text + f"{extra:>26}{_or_blank(f['memory_bar'], '.2f'):>6}")
    for name, reason in absent.items():
        print(f"{name:<26}left out: {reason}")


def _or_blank(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


if __name__ == "__main__":
    sys.exit(main())
