"""Retention methods on small networks beside published figures: the protocols of Avalanche's baselines.

    python benchmarks/continual.py --data MNIST           # a folder with MNIST's four IDX files; goes on where it ended
    python benchmarks/continual.py --data MNIST --only split-class split-online
    python benchmarks/continual.py --plan                 # what there is to do
    python benchmarks/continual.py --table                # the rows that are there, as docs/sequence.md has them
    python benchmarks/continual.py --quick                # seconds, on scanned digits: the machinery only
    python benchmarks/continual.py --data MNIST --check   # exit 1 where a method of ours is below the published figure

| protocol | tasks | network and training | published |
|---|---|---|---|
| permuted | 10 orders of the pixels | 512 ReLU, SGD 0.001, batches of 256, 10 epochs | EWC 0.83 |
| permuted-adam | the same | 1000 ReLU, Adam 0.001, batches of 256, 10 epochs | SI 0.83 |
| split-task | 5 pairs of digits, the pair is known at a question | 256 and 256 ReLU, Adam 0.001, batches of 64, 10
epochs | SI 0.97 |
| split-class | 5 pairs of digits, among all met so far | 200 tanh, SGD 0.001, batches of 128, 21 epochs | LwF 0.23 |
| split-online | the same, each sample seen once | 512 ReLU, dropout, SGD 0.1, batches of 10 and 10 old | replay 0.92 |

Figures are mean accuracies over the tasks at the end. Published ones are the targets of the tests of
ContinualAI/continual-learning-baselines, which networks, rates and epochs are from, too.

Rules, written down before the first run:

- What a method's strength is comes from a seed that is not reported and from validation images (a tenth of the training
  images, which nothing is then trained on): the largest mean accuracy over the tasks at the end. If that is the end of
  the grid, it is said. In `permuted-adam`, whose chains are twice as long, over the first five tasks, after these.
- Reported: 5 seeds on the test images, mean and 95 % interval (Student's t over seeds), trained on the rest.
- Learning without forgetting is label annealing whose KL is over the classes met before, at temperature 2, the loss as
  in its protocol: 1/k of the cross-entropy at task k. With plain SGD that is a rate divided by k and a weight times k.
- EWC is online: one anchor, the model after the last task, and the sum of all tasks' Fisher information, of 1,000
  samples of each; the published one keeps an anchor a task. `decoupled`, which is stable at any coefficient.
- Pixels are normalised as there. A first run without that (rows of version 1, not kept) was stopped when its LwF fell
  short of the published one; nothing else was changed.
- Methods without old data see none; replay in `split-online` has 1,000 old images, as many of each class.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "continual"
SEEDS = (0, 1, 2, 3, 4)
CHOOSING = 100
"""The seed that strengths are chosen with."""
VALIDATED = 0.1
MEMORY = 1000
VERSION = 2
"""Of what a row means; raise it where rows that are there should be made again."""
PIXELS = 0.1307, 0.3081
"""Mean and standard deviation of MNIST's pixels, by which the published protocols normalise them."""


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """One way of meeting tasks."""

    name: str
    scenario: str
    """"domain" (the same classes, other inputs), "task" (the task is known at a question) or "class" (it is not)."""
    network: Mapping[str, Any]
    fit: Mapping[str, Any]
    published: Mapping[str, float]
    """By method of ours."""
    named: Mapping[str, str] = field(default_factory=dict)
    """What the published method is called."""
    tasks: int = 5
    fixed: bool = False
    """Whether digits are met in their order; else in one drawn with the seed."""
    replayed: float = 0.1
    """Share of old samples, for replay."""
    memory: int | None = None
    """Old samples that replay may keep; None: all."""
    chosen_on: int | None = None
    """How many of the tasks strengths are chosen on; None: all."""


PROTOCOLS = {
    p.name: p
    for p in (
        Protocol(
            name="split-class",
            scenario="class",
            network={"hidden": (200,), "activation": "tanh"},
            fit={"learning_rate": 1e-3, "per_device_train_batch_size": 128, "num_train_epochs": 21},
            published={"lwf": 0.23},
            named={"lwf": "LwF"},
        ),
        Protocol(
            name="split-online",
            scenario="class",
            network={"hidden": (512,), "dropout": 0.5},
            fit={"learning_rate": 0.1, "per_device_train_batch_size": 20, "num_train_epochs": 1},
            published={"replay": 0.92},
            named={"replay": "online replay"},
            fixed=True,
            replayed=0.5,
            memory=MEMORY,
        ),
        Protocol(
            name="split-task",
            scenario="task",
            network={"hidden": (256, 256)},
            fit={"learning_rate": 1e-3, "optim": "adam", "per_device_train_batch_size": 64, "num_train_epochs": 10},
            published={"ewc": 0.97},
            named={"ewc": "SI"},
            fixed=True,
        ),
        Protocol(
            name="permuted",
            scenario="domain",
            network={"hidden": (512,)},
            fit={"learning_rate": 1e-3, "per_device_train_batch_size": 256, "num_train_epochs": 10},
            published={"ewc": 0.83},
            named={"ewc": "EWC"},
            tasks=10,
        ),
        Protocol(
            name="permuted-adam",
            scenario="domain",
            network={"hidden": (1000,)},
            fit={"learning_rate": 1e-3, "optim": "adam", "per_device_train_batch_size": 256, "num_train_epochs": 10},
            published={"ewc": 0.83},
            named={"ewc": "SI"},
            tasks=10,
            chosen_on=5,
        ),
    )
}
GRIDS: dict[str, tuple[float, ...]] = {
    "sequential": (0.0,),
    "l2": (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0),
    "ewc": (1.0, 10.0, 100.0, 1000.0, 10000.0),
    "sfa": (0.1, 0.3, 0.5, 0.7, 0.9),
    "label_annealing": (0.3, 1.0, 3.0, 10.0),
    "lwf": (1.0,),
    "replay": (0.0,),
}
"""By method the strengths that are tried: coefficients, beta of averages at every quarter of a task, weights.
L2 from 100 on and SFA at 0.9 joined after `split-online` had chosen the ends of the grids."""
TITLES = {
    "sequential": "sequential",
    "l2": "L2",
    "ewc": "EWC",
    "sfa": "SFA, p 0.25",
    "label_annealing": "label annealing",
    "lwf": "label annealing as LwF",
    "replay": "replay",
}
LWF_ALPHA = (0.0, 0.5, 1.33333, 2.25, 3.2)
"""Of the published protocol, task by task."""


def methods(protocol: Protocol) -> list[str]:
    """Those that are run in a protocol."""
    return [m for m in GRIDS if m != "lwf" or m in protocol.published]


# -------------------------------------------------------------------------------------------------------------- a chain


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is met at once."""

    train: Any
    test: Any
    classes: tuple[int, ...]


def tasks_of(protocol: Protocol, images: Any, seed: int) -> list[Task]:
    """The tasks in the order in which they are met."""
    import numpy as np
    import torch

    from holdfast.training.classifier import Samples

    def samples(inputs: Any, labels: Any) -> Samples:
        mean, deviation = PIXELS
        rows = torch.as_tensor(inputs).contiguous()  # permuted pixels come column by column
        return Samples(inputs=(rows - mean) / deviation, labels=torch.as_tensor(labels))

    rng = np.random.default_rng(seed)
    parts: list[tuple[Any, tuple[int, ...]]]
    if protocol.scenario == "domain":
        classes = tuple(range(int(images.train_labels.max()) + 1))
        parts = [(images.permuted(1000 * (seed + 1) + i), classes) for i in range(protocol.tasks)]
    else:
        order = list(range(10)) if protocol.fixed else rng.permutation(10).tolist()
        pairs = [tuple(order[2 * i : 2 * i + 2]) for i in range(protocol.tasks)]
        parts = [(images.of_classes(pair), pair) for pair in pairs]
    return [
        Task(
            train=samples(part.train, part.train_labels),
            test=samples(part.test, part.test_labels),
            classes=classes,
        )
        for part, classes in parts
    ]


def held_back(images: Any, seed: int) -> Any:
    """The images with a tenth of those to be trained on in the place of the test images."""
    import numpy as np

    order = np.random.default_rng(seed).permutation(len(images.train_labels))
    cut = round(VALIDATED * len(order))
    return dataclasses.replace(
        images,
        train=images.train[order[cut:]],
        train_labels=images.train_labels[order[cut:]],
        test=images.train[order[:cut]],
        test_labels=images.train_labels[order[:cut]],
    )


def groups_at(protocol: Protocol, tasks: Sequence[Task], stage: int) -> tuple[tuple[int, ...], ...]:
    """What stands against each other once a task is met."""
    if protocol.scenario == "domain":
        return ()
    met = [t.classes for t in tasks[: stage + 1]]
    return tuple(met) if protocol.scenario == "task" else (tuple(c for classes in met for c in classes),)


@functools.lru_cache(maxsize=1)
def begun(protocol_name: str, seed: int, data: str, quick: bool) -> tuple[list[Task], Any]:
    """The tasks of a seed, and the model that has learnt the first: every method's chain begins with these."""
    from holdfast.training.classifier import Classes, FitSettings, Network, fit

    protocol, images = protocol_of(protocol_name, quick), images_of(data)
    tasks = tasks_of(protocol, held_back(images, seed) if seed == CHOOSING else images, seed)
    inputs = math.prod(tasks[0].train.inputs.shape[1:])
    outputs = max(c for t in tasks for c in t.classes) + 1
    model = Network(inputs=inputs, outputs=outputs, seed=seed, **protocol.network)
    settings = FitSettings(**{**protocol.fit, "seed": seed * 1000})
    fit(model, tasks[0].train, settings, classes=Classes(groups=groups_at(protocol, tasks, 0)))
    return tasks, model


def chain(
    protocol: Protocol, method: str, strength: float, tasks: Sequence[Task], first: Any, seed: int, *, work: Path
) -> Any:
    """Trains through all tasks but the first, which `first` has learnt (it stays as it is).

    Returns:
        `[tasks]` accuracy of each at the end.
    """
    import torch

    from holdfast.training.classifier import Classes, FitSettings, fit, masked

    model = copy.deepcopy(first)
    data = {f"task {i}": t.train for i, t in enumerate(tasks)}
    for stage, task in enumerate(tasks[1:], 1):
        retain, changes = method_at(protocol, method, strength, stage, work)
        known: tuple[tuple[int, ...], ...] = ()
        if protocol.scenario != "domain":
            known = groups_at(protocol, tasks, stage - 1)
        kept = remembered(tasks[:stage], protocol.memory, seed) if method == "replay" else {}
        settings = FitSettings(**{**protocol.fit, **changes, "seed": seed * 1000 + stage})
        fit(
            model,
            task.train,
            settings,
            retain=retain,
            classes=Classes(groups=groups_at(protocol, tasks, stage), known=known),
            load=lambda name, kept=kept: (kept | data)[name],
            folder=work / f"task-{stage}",
        )
    groups = groups_at(protocol, tasks, len(tasks) - 1)
    model.eval()
    found = []
    with torch.no_grad():
        for task in tasks:
            logits = masked(model(task.test.inputs), task.test.labels, Classes(groups=groups))
            found.append(float((logits.argmax(1) == task.test.labels).double().mean()))
    return found


def method_at(
    protocol: Protocol, method: str, strength: float, stage: int, work: Path
) -> tuple[list[Any], dict[str, Any]]:
    """The methods of a task, and what differs from the protocol's training."""
    from holdfast.retention.methods.ewc import EWC
    from holdfast.retention.methods.l2 import L2
    from holdfast.retention.methods.label_annealing import LabelAnnealing
    from holdfast.retention.methods.replay import Replay
    from holdfast.retention.methods.sfa import SequentialAveraging

    if method == "sequential":
        return [], {}
    if method == "ewc":
        before = work / f"task-{stage - 1}" / "fisher"
        earlier = {"fisher": str(before)} if stage > 1 else {}
        about = {"data": f"task {stage - 1}", "samples": 1000, "decoupled": True, **earlier}
        return [EWC(coefficient=strength, **about)], {}
    if method == "lwf":
        weight = LWF_ALPHA[stage] * (stage + 1)
        return [LabelAnnealing(weight=weight, temperature=2.0)], {
            "learning_rate": protocol.fit["learning_rate"] / (stage + 1)
        }
    made = {
        "l2": lambda: L2(coefficient=strength, decoupled=True),
        "sfa": lambda: SequentialAveraging(p=0.25, beta=strength),
        "label_annealing": lambda: LabelAnnealing(weight=strength),
        "replay": lambda: Replay(data="old", fraction=protocol.replayed),
    }
    return [made[method]()], {}


def remembered(earlier: Sequence[Task], memory: int | None, seed: int) -> dict[str, Any]:
    """Old samples: all, or as many of each class as go into a memory."""
    import torch

    from holdfast.training.classifier import Samples

    inputs = torch.cat([t.train.inputs for t in earlier])
    labels = torch.cat([t.train.labels for t in earlier])
    if memory is not None:
        generator = torch.Generator().manual_seed(seed)
        classes = labels.unique().tolist()
        chosen = []
        for number in classes:
            there = (labels == number).nonzero()[:, 0]
            order = torch.randperm(len(there), generator=generator)[: memory // len(classes)]
            chosen.append(there[order])
        kept = torch.cat(chosen)
        inputs, labels = inputs[kept], labels[kept]
    return {"old": Samples(inputs=inputs, labels=labels)}


# ----------------------------------------------------------------------------------------------------------------- rows


@functools.cache
def images_of(name: str) -> Any:
    """Read once a process."""
    from holdfast.data.images import read_images

    return read_images(name)


def row_file(results: Path, protocol: str, method: str, strength: float, seed: int) -> Path:
    return results / protocol / f"{method}-{strength:g}.seed-{seed}.json"


def key_of(protocol: Protocol, method: str, strength: float, seed: int, data: str) -> str:
    """What decides a row."""
    from holdfast.support.files import fingerprint, to_jsonable

    plan = {k: v for k, v in to_jsonable(protocol).items() if k not in ("published", "named", "chosen_on")}
    if seed == CHOOSING and protocol.chosen_on is not None:
        plan["tasks"] = protocol.chosen_on
    images = images_of(data)
    return fingerprint([VERSION, plan, method, strength, seed, [int(images.train_labels.sum()), images.train.shape]])


def do(protocol_name: str, method: str, strength: float, seed: int, data: str, results: Path, quick: bool) -> float:
    """One chain, its row written; returns the mean accuracy."""
    import torch

    from holdfast.support.files import read_object, write_json

    torch.set_num_threads(1)
    protocol = protocol_of(protocol_name, quick)
    file, key = row_file(results, protocol.name, method, strength, seed), key_of(protocol, method, strength, seed, data)
    if file.is_file() and (row := read_object(file))["key"] == key:
        return float(row["mean"])
    tasks, first = begun(protocol_name, seed, data, quick)
    if seed == CHOOSING:
        tasks = tasks[: protocol.chosen_on]
    began = time.monotonic()  # of the stages after the first
    with tempfile.TemporaryDirectory() as place:
        found = chain(protocol, method, strength, tasks, first, seed, work=Path(place))
    row = {"key": key, "protocol": protocol.name, "method": method, "strength": strength, "seed": seed}
    row |= {"accuracies": found, "mean": statistics.fmean(found), "seconds": time.monotonic() - began}
    write_json(file, row)
    return float(row["mean"])


def protocol_of(name: str, quick: bool) -> Protocol:
    """As it was published, or with a smaller network and one epoch."""
    protocol = PROTOCOLS[name]
    if not quick:
        return protocol
    network = {**protocol.network, "hidden": tuple(32 for _ in protocol.network["hidden"])}
    return dataclasses.replace(
        protocol,
        network=network,
        fit={**protocol.fit, "num_train_epochs": 1},
        tasks=min(3, protocol.tasks),
        chosen_on=protocol.chosen_on and 2,
    )


def chosen(protocol: Protocol, method: str, means: Mapping[float, float]) -> tuple[float, bool]:
    """The strength with the largest mean accuracy, and whether it is the end of a grid; the grid's first value where
    there was nothing to choose."""
    if not means:
        return GRIDS[method][0], False
    best = max(means, key=lambda s: means[s])
    ends = (min(GRIDS[method]), max(GRIDS[method]))
    return best, len(GRIDS[method]) > 1 and best in ends


def run(
    names: Sequence[str], *, data: str, results: Path, workers: int, seeds: Sequence[int], quick: bool
) -> list[dict[str, Any]]:
    """Runs protocols, or finds them done."""
    found: list[dict[str, Any]] = []
    with ProcessPoolExecutor(workers) as pool:
        for name in names:
            protocol = PROTOCOLS[name]
            grids = {m: GRIDS[m][:2] if quick else GRIDS[m] for m in methods(protocol)}
            asked = [(m, s, CHOOSING) for m, grid in grids.items() if len(grid) > 1 for s in grid]
            means = dict(_each(pool, name, asked, data, results, quick))
            strengths, at_end = {}, {}
            for method, grid in grids.items():
                tried = {s: means[method, s, CHOOSING] for s in grid if (method, s, CHOOSING) in means}
                strengths[method], at_end[method] = chosen(protocol, method, tried)
            wanted = [(m, s, seed) for seed in seeds for m, s in strengths.items()]  # a seed's tasks are made once
            reported = dict(_each(pool, name, wanted, data, results, quick))
            for method, strength in strengths.items():
                values = [reported[method, strength, seed] for seed in seeds]
                found.append(figure(protocol, method, strength, at_end[method], values))
            show(found[-len(strengths) :], protocol)
    return found


def _each(
    pool: Any, name: str, asked: Sequence[tuple[str, float, int]], data: str, results: Path, quick: bool
) -> Iterator[Any]:
    began = time.monotonic()
    running = {pool.submit(do, name, *one, data, results, quick): one for one in asked}
    for number, future in enumerate(as_completed(running), 1):
        yield running[future], future.result()
        left = (time.monotonic() - began) / number * (len(running) - number)
        print(f"{name}: {number} of {len(running)}, {left / 60:.0f} min left", file=sys.stderr, flush=True)


def figure(protocol: Protocol, method: str, strength: float, at_end: bool, values: Sequence[float]) -> dict[str, Any]:
    """A method's mean over seeds with its interval, beside the published figure."""
    from holdfast.statistics.intervals import seeds_and_samples

    interval = seeds_and_samples(values, 0.0) if len(values) > 1 else None
    return {
        "protocol": protocol.name,
        "method": method,
        "strength": strength,
        "end_of_grid": at_end,
        "mean": statistics.fmean(values),
        "interval": None if interval is None else list(interval),
        "seeds": list(values),
        "published": protocol.published.get(method),
        "published_method": protocol.named.get(method),
    }


def recorded(results: Path) -> list[dict[str, Any]]:
    """Figures of the protocols whose rows are all there; nothing is run."""
    from holdfast.support.files import read_object

    means: dict[tuple[str, str], dict[tuple[int, float], float]] = {}
    for file in sorted(results.glob("*/*.json")):
        row = read_object(file)
        means.setdefault((row["protocol"], row["method"]), {})[row["seed"], row["strength"]] = row["mean"]
    found = []
    for name, protocol in PROTOCOLS.items():
        figures = []
        for method in methods(protocol):
            known = means.get((name, method), {})
            tried = {s: known[CHOOSING, s] for s in GRIDS[method] if (CHOOSING, s) in known}
            if len(GRIDS[method]) > 1 and len(tried) < len(GRIDS[method]):
                break
            strength, at_end = chosen(protocol, method, tried)
            values = [known[seed, strength] for seed in SEEDS if (seed, strength) in known]
            if len(values) < len(SEEDS):
                break
            figures.append(figure(protocol, method, strength, at_end, values))
        else:
            found += figures
    return found


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Methods by protocols, in Markdown; an asterisk where the strength is the end of its grid."""
    names = list(dict.fromkeys(r["protocol"] for r in rows))
    at = {(r["protocol"], r["method"]): r for r in rows}
    lines = [f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for method, title in TITLES.items():
        cells = []
        for name in names:
            row = at.get((name, method))
            if row is None:
                cells.append("")
                continue
            low, high = row["interval"]
            cells.append(f"{row['mean']:.3f} [{low:.3f}, {high:.3f}]{'*' * row['end_of_grid']}")
        if any(cells):
            lines.append(f"| {title} | {' | '.join(cells)} |")
    published = (PROTOCOLS[n] for n in names)
    beside = [", ".join(f"{p.named[m]} {v:.2f}" for m, v in p.published.items()) for p in published]
    return "\n".join([*lines, f"| published | {' | '.join(beside)} |"])


def show(rows: Sequence[Mapping[str, Any]], protocol: Protocol) -> None:
    """The table of a protocol."""
    print(f"\n{protocol.name}: mean accuracy over {protocol.tasks} tasks at the end")
    for row in rows:
        strength = (
            f"{row['strength']:g}" + (" (end of the grid)" if row["end_of_grid"] else "") if row["strength"] else ""
        )
        low, high = row["interval"] or (math.nan, math.nan)
        beside = f"   {row['published_method']} {row['published']:.2f} published" if row["published"] else ""
        print(f"  {TITLES[row['method']]:<26}{strength:<26}{row['mean']:.3f} [{low:.3f}, {high:.3f}]{beside}")


def shortfalls(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What of ours is below a published figure, whole interval, half a point for its rounding."""
    return [
        f"{row['protocol']}: {TITLES[row['method']]} {row['mean']:.3f}, published {row['published_method']} "
        f"{row['published']:.2f}"
        for row in rows
        if row["published"] and (row["interval"] or (0, row["mean"]))[1] < row["published"] - 0.005
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits", metavar="FOLDER", help="MNIST's four IDX files (scanned digits)")
    parser.add_argument("--only", nargs="+", default=list(PROTOCOLS), choices=list(PROTOCOLS), metavar="PROTOCOL")
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--results", type=Path, default=RESULTS, help="where rows are kept")
    parser.add_argument("--save", type=Path, default=None, metavar="FILE", help="write the figures as JSON")
    parser.add_argument("--plan", action="store_true", help="what there is to do")
    parser.add_argument("--table", action="store_true", help="the figures of the rows that are there, in Markdown")
    parser.add_argument("--quick", action="store_true", help="seconds, on scanned digits; the machinery only")
    parser.add_argument("--check", action="store_true", help="exit 1 where ours is below the published figure")
    options = parser.parse_args(arguments)
    if options.plan:
        for name in options.only:
            tried = sum(len(GRIDS[m]) for m in methods(PROTOCOLS[name]) if len(GRIDS[m]) > 1)
            print(
                f"{name}: {tried} chains to choose strengths by, {len(SEEDS) * len(methods(PROTOCOLS[name]))} reported"
            )
        return 0
    if options.table:
        print(table(recorded(options.results)))
        return 0
    if options.data == "digits" and not options.quick:
        parser.error("--data: expected a folder with MNIST's four IDX files; --quick takes scanned digits.")
    with tempfile.TemporaryDirectory() as place:
        rows = run(
            options.only,
            data="digits" if options.quick else options.data,
            results=Path(place) if options.quick else options.results,
            workers=options.workers,
            seeds=SEEDS[:2] if options.quick else SEEDS,
            quick=options.quick,
        )
    if options.save:
        from importlib.metadata import version

        from machine import hardware

        from holdfast.support.files import write_json

        about = {"benchmark": "continual", "mode": "quick" if options.quick else "full", "hardware": hardware("cpu")}
        write_json(options.save, {**about, "versions": {"torch": version("torch")}, "figures": rows})
    short = shortfalls(rows)
    for line in short:
        print(f"falls short: {line}")
    return 1 if options.check and short else 0


if __name__ == "__main__":
    sys.exit(main())
