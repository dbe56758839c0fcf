"""What a trade-off study costs: all of it, its bookkeeping, and label annealing beside direct fine-tuning.

    python benchmarks/sweep.py                     # configs/label_annealing/code-tiny.yaml, 12 trials x 3 seeds on the
                                                   embedded corpus, two workers
    python benchmarks/sweep.py --check             # exit 1, naming what falls short
    python benchmarks/sweep.py --quick             # under a minute: 4 trials of few steps; its figures mean little
    python benchmarks/sweep.py --rounds 5          # pairs of trials for the ratio
    python benchmarks/sweep.py --bases DIR         # keep the pre-trained base there, and find it there the next time
    python benchmarks/sweep.py --save FILE         # the figures as JSON

study      seconds from the command to the page, the shared base pre-trained before (its time is stated apart, and
           is as long again); bar: 12 minutes on two cores
overhead   seconds of a worker on a trial that are not in its runs (taking it, drawing, writing results, handing it
           back), over the whole trial;
           the mean over trials; bar: 2 %
annealing  a label annealing trial that finds the teacher's states in the shared cache, over a direct one: whole runs
           (load, train, measure, write)
           and the training on its own, one process, in turns, median over rounds with the range; bar: 1.1 for the whole
           trial
"""

from __future__ import annotations

import argparse
import copy
import io
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from machine import hardware

from holdfast.support.files import write_json

STUDY = Path(__file__).resolve().parents[1] / "configs" / "label_annealing" / "code-tiny.yaml"
ARMS = [
    {"label_annealing": {"weight": [0.1, 0.3, 1, 3, 10]}},
    {"l2": {"coefficient": [0.0001, 0.001, 0.01, 0.1]}},
    [{"replay": {"data": "${replay}", "fraction": 0.1}}, {"label": "the base's own text"}],
    [{"train": {"learning_rate": 2.0e-4}}, {"label": "rate 2.0e-4"}],
]
"""Eleven trials beside direct fine-tuning, of the study's."""
QUICK_ARMS = [{"label_annealing": {"weight": [1]}}, {"l2": {"coefficient": [0.01, 0.1]}}]
MINUTES, OVERHEAD, RATIO = 12.0, 0.02, 1.1


def whole_study(place: Path, *, quick: bool, workers: int) -> dict[str, Any]:
    """Runs the study from its command to its page.

    Returns:
        Seconds, trials, runs, and the bookkeeping's share of every trial.
    """
    from rich.console import Console

    from holdfast.papers.worlds.toy_settings import make_setting
    from holdfast.studies.sweep.session import run_study
    from holdfast.studies.sweep.study import load_study

    began = time.monotonic()
    make_setting("code", place / "study" / "data", seed=0, console=Console(stderr=True))
    base_seconds = time.monotonic() - began
    changes: dict[str, Any] = {"output_dir": str(place / "study"), "workers": workers}
    changes |= {"seeds": [0], "arms": QUICK_ARMS} if quick else {"seeds": [0, 1, 2], "arms": ARMS}
    config = load_study(STUDY, changes)
    if quick:
        config.train["max_steps"] = 4
    began = time.monotonic()
    record = run_study(config, console=Console(stderr=True))
    seconds = time.monotonic() - began
    shares = [t.overhead / (t.overhead + sum(r.seconds for r in t.runs)) for t in record.trials]
    return {
        "seconds": seconds,
        "base_seconds": base_seconds,
        "workers": workers,
        "trials": len(record.trials),
        "runs": sum(len(t.runs) for t in record.trials),
        "overhead": {
            "mean": statistics.mean(shares),
            "largest": max(shares),
            "seconds_per_trial": statistics.mean(t.overhead for t in record.trials),
        },
    }


def annealing_ratio(place: Path, *, rounds: int, quick: bool) -> dict[str, Any]:
    """Direct and label annealing trials in turns, in this process; the first pair, which fills the caches, does not
    count."""
    from rich.console import Console

    from holdfast.papers.worlds.toy_settings import make_setting
    from holdfast.runs.config import train_config
    from holdfast.runs.run import train
    from holdfast.studies.engine.toy import fill
    from holdfast.studies.sweep.study import load_study

    names = make_setting("code", place / "ratio" / "data", seed=0)
    base = fill(load_study(STUDY).train, names)
    if quick:
        base["max_steps"] = 4
    arms = {"direct": [], "annealing": [{"label_annealing": {"weight": 1.0, "teacher": "cached"}}]}
    whole: dict[str, list[float]] = {name: [] for name in arms}
    training_seconds: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(rounds + 1):
        for name in list(arms) if number % 2 else list(arms)[::-1]:
            folder = place / "ratio" / f"{name}-{number}"
            settings = {**copy.deepcopy(base), "retention": arms[name], "seed": number, "output_dir": str(folder)}
            began = time.monotonic()
            run = train(
                train_config(settings),
                console=Console(file=io.StringIO()),
                evaluation_cache=place / "ratio" / "evaluations",
            )
            if number:
                whole[name].append(time.monotonic() - began)
                training_seconds[name].append(float(run.read().training["seconds"]))
    found = {}
    for what, seconds in (("trial", whole), ("training", training_seconds)):
        ratios = [a / d for a, d in zip(seconds["annealing"], seconds["direct"], strict=True)]
        found[what] = {
            "ratio": statistics.median(ratios),
            "range": [min(ratios), max(ratios)],
            "direct_seconds": statistics.median(seconds["direct"]),
        }
    return found


def show_study(study: Mapping[str, Any]) -> None:
    """Prints what the study took, before what may yet fail."""
    overhead = study["overhead"]
    mean, largest = 100 * overhead["mean"], 100 * overhead["largest"]
    print(
        f"study      {study['trials']} trials, {study['runs']} runs, {study['workers']} workers: "
        f"{study['seconds'] / 60:.2f} min (base: {study['base_seconds']:.0f} s before)"
    )
    print(
        f"overhead   {mean:.2f} % of a trial (largest {largest:.2f} %), {overhead['seconds_per_trial']:.2f} s each",
        flush=True,
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--bases", type=Path)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args(argv)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HOLDFAST_CACHE"] = f"{folder}/cache"  # nothing from an earlier run
        if options.bases:
            options.bases.mkdir(parents=True, exist_ok=True)
            (Path(folder) / "cache").mkdir()
            (Path(folder) / "cache" / "bases").symlink_to(options.bases.resolve())
        place = Path(folder)
        study = whole_study(place, quick=options.quick, workers=options.workers)
        show_study(study)
        import torch

        torch.set_num_threads(1)
        ratio = annealing_ratio(place, rounds=1 if options.quick else options.rounds, quick=options.quick)
    figures = {
        "hardware": hardware("cpu"),
        "cores": len(os.sched_getaffinity(0)),
        "quick": options.quick,
        "study": study,
        "annealing": ratio,
    }
    overhead = study["overhead"]
    print(f"{figures['hardware']}, {figures['cores']} cores")
    for what, found in ratio.items():
        low, high = found["range"]
        print(
            f"annealing  {what}: {found['ratio']:.3f} of direct ({low:.3f} to {high:.3f}; direct "
            f"{found['direct_seconds']:.1f} s)"
        )
    if options.save:
        write_json(options.save, figures)
    short = []
    if study["seconds"] / 60 >= MINUTES:
        short.append(f"the study took {study['seconds'] / 60:.1f} minutes; bar {MINUTES:g}")
    if overhead["mean"] >= OVERHEAD:
        short.append(f"bookkeeping took {100 * overhead['mean']:.2f} % of a trial; bar {100 * OVERHEAD:g} %")
    if ratio["trial"]["ratio"] > RATIO:
        short.append(f"a label annealing trial took {ratio['trial']['ratio']:.3f} of a direct one; bar {RATIO:g}")
    for line in short if options.check else []:
        print(f"falls short: {line}")
    return 1 if short and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
