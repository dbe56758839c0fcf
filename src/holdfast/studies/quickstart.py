"""The quickstart: see forgetting, and what keeps it small, on any machine in about three minutes.

No network, no GPU, no files of the user's. A base of about one million parameters is pre-trained on the English prose
inside every CPython and a little of the standard library's source (cached for the next time), then fine-tuned on more
of that source in seven ways. Source: held-out prose, what the base knows and should keep. Target: held-out code, what
is learnt. Each way is an ordinary run folder with its own report; together they are the trade-off between new skill and
old knowledge.

One seed, a tiny model: the picture is real, its figures are this model's. Intervals are over held-out documents.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.errors import ConfigError, HoldfastError, Interrupted, did_you_mean
from holdfast.records.run import RunFolder
from holdfast.support.files import read_json, write_json, write_jsonl
from holdfast.worlds.pretrain import cached_base
from holdfast.worlds.small_settings import base_recipe, base_texts

SOURCE = ("source", "prose")
TARGET = ("target", "code")


@dataclass(frozen=True, kw_only=True)
class QuickArm:
    """One way of fine-tuning."""

    name: str
    """The run's folder."""
    label: str
    """What tables and plots call it."""
    kind: str
    retention: list[dict[str, Any]]


def arms(replay_file: str) -> list[QuickArm]:
    """The seven ways, the slower ones first so that two workers end together."""
    annealing = [
        QuickArm(
            name=f"label-annealing-{weight:g}",
            label=f"label annealing, weight {weight:g}",
            kind="label_annealing",
            retention=[{"label_annealing": {"weight": weight}}],
        )
        for weight in (0.3, 1.0, 3.0)
    ]
    others = [
        QuickArm(name="direct", label="direct fine-tuning", kind="direct", retention=[]),
        QuickArm(name="l2", label="L2 to the start, 0.01", kind="l2", retention=[{"l2": {"coefficient": 0.01}}]),
        QuickArm(name="sfa", label="SFA, p = 0.25", kind="sfa", retention=[{"sfa": {"p": 0.25}}]),
        QuickArm(
            name="replay",
            label="replay, 10 % prose",
            kind="replay",
            retention=[{"replay": {"data": replay_file, "fraction": 0.1}}],
        ),
    ]
    return annealing + others


def quickstart(
    *,
    output_dir: str | os.PathLike[str] = "holdfast-quickstart",
    seed: int = 0,
    workers: int = 2,
    quick: bool = False,
    only: Sequence[str] = (),
    console: Any = None,
) -> Path:
    """Runs the quickstart, or continues it where it was interrupted.

    Args:
        output_dir: gets `data/`, one run folder a method, and `report.html`.
        seed: of the base and of every fine-tuning.
        workers: processes that fine-tune side by side, each with its share of the cores.
        quick: a run of seconds that only shows that everything works; its figures mean little.
        only: names of the arms that are wanted; empty: all seven.
        console: a `rich.console.Console`.

    Returns:
        The path of the report.

    Raises:
        ConfigError: `only` names an arm that there is not.
        Interrupted: Ctrl-C; the same command continues.
        HoldfastError: a fine-tuning failed; the message of the first one.
    """
    from rich.console import Console

    from holdfast.reports.arms import Arm, print_tradeoff, write_tradeoff_report
    from holdfast.worlds.embedded import embedded_corpus

    known = [arm.name for arm in arms("")]
    unknown = [name for name in only if name not in known]
    if unknown:
        raise ConfigError(
            f"--only: expected names of arms ({', '.join(known)}), got "
            f"{', '.join(unknown)}.{did_you_mean(unknown[0], known)}"
        )
    console = console or Console()
    began = time.monotonic()
    root = Path(output_dir)
    corpus = embedded_corpus()
    recipe = base_recipe(seed=seed, quick=quick)
    files = write_data(corpus, root / "data")
    console.print(
        f"1. A small base learns English prose ({sum(map(len, corpus.prose_train)) / 1000:.0f} kB of Python's "
        f"reference) and a little code.",
        highlight=False,
    )
    base = cached_base(base_texts(corpus), recipe, console=console)

    chosen = [arm for arm in arms(str(files["prose_train"])) if not only or arm.name in only]
    jobs = [_settings(arm, root, base, files, seed, quick) for arm in chosen]
    console.print(f"2. It is fine-tuned on Python source in {len(jobs)} ways, {workers} at a time.", highlight=False)
    _run_all(jobs, chosen, root, workers, console)

    shown = sorted(chosen, key=lambda arm: (arm.kind != "direct", arm.kind == "label_annealing"))
    compared = [Arm(label=arm.label, folder=RunFolder(root / arm.name), kind=arm.kind) for arm in shown]
    report = write_tradeoff_report(
        root / "report.html",
        compared,
        title="What fine-tuning on code does to prose",
        intro=(
            f"A base of {_parameters(root / chosen[0].name):,} parameters, pre-trained on English reference prose, "
            f"was fine-tuned on Python source "
            f"in {len(chosen)} ways. Source: held-out prose, what it knew. Target: held-out code, what it learns. "
            "One seed; the intervals are over documents."
        ),
        source=SOURCE,
        target=TARGET,
        next_steps=NEXT_STEPS,
    )
    print_tradeoff(compared, console, source=SOURCE, target=TARGET)
    console.print(f"\nDone in {time.monotonic() - began:.0f} s. Plot and tables: {report}", highlight=False)
    console.print(f"\n[bold]On your own model[/bold]\n{NEXT_STEPS}", highlight=False)
    return report


NEXT_STEPS = """\
$ holdfast train --model_name_or_path MODEL --dataset_name train.jsonl \
    --retention label_annealing:weight=1.0 --output_dir my-run \
    --source what_it_knows.jsonl --target what_it_learns.jsonl

MODEL is a folder or a hub id. train.jsonl has text, messages, prompt and completion, or instruction and output columns. --source and --target take \
held-out files (perplexity) or lm-evaluation-harness tasks such as arc_easy. The run folder then holds the tuned model and a report like this one.

$ holdfast train --help"""
"""What to do next, for the terminal and the page: lines that begin with `$ ` are commands."""


def write_data(corpus: Any, folder: Path) -> dict[str, Path]:
    """The files the runs read, by name: what is learnt, what is replayed, and the two held-out sets, short enough to
    measure in seconds.

    Held-out code is the beginning of evenly spaced pieces: many documents for the paired intervals, few tokens.
    """
    every = max(1, len(corpus.code_heldout) // 160)
    splits = {
        "code_train": corpus.code_train[::4],
        "prose_train": corpus.prose_train,
        "prose_heldout": corpus.prose_heldout,
        "code_heldout": [piece[:900].rsplit("\n", 1)[0] for piece in corpus.code_heldout[::every]],
    }
    return {
        name: write_jsonl(folder / f"{name}.jsonl", ({"text": text} for text in texts))
        for name, texts in splits.items()
    }


def _settings(arm: QuickArm, root: Path, base: Path, files: dict[str, Path], seed: int, quick: bool) -> dict[str, Any]:
    """One run's configuration: exactly what `holdfast train --config` would take."""
    return {
        "model_name_or_path": str(base),
        "dataset_name": str(files["code_train"]),
        "output_dir": str(root / arm.name),
        "max_steps": 10 if quick else 100,
        "per_device_train_batch_size": 16,
        "packing": True,
        "packing_strategy": "wrapped",
        "max_length": 128,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 5,
        "gradient_checkpointing": False,
        "logging_steps": 2,
        "save_strategy": "steps",
        "save_steps": 50,
        "save_total_limit": 1,
        "use_cpu": True,
        "seed": seed,
        "retention": arm.retention,
        "evaluation": {
            name: [
                {
                    "perplexity": str(files[f"{text}_heldout"]),
                    "name": text,
                    "window": 128,
                    "stride": 96,
                    "max_documents": 20 if quick else 1000,
                }
            ]
            for name, text in (SOURCE, TARGET)
        },
    }


# ------------------------------------------------------------------------------------------------------------ workers


def _run_all(jobs: list[dict[str, Any]], chosen: list[QuickArm], root: Path, workers: int, console: Any) -> None:
    """All runs over `workers` processes, with one bar each drawn from the metrics files they write."""
    context = multiprocessing.get_context("spawn")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    threads = max(1, cores // workers)
    queue = context.Queue()
    for job in jobs:
        queue.put(job)
    for _ in range(workers):
        queue.put(None)
    log = root / "logs"
    log.mkdir(parents=True, exist_ok=True)
    # Read by the children when their libraries start: two threads a core would be many times slower, and nothing here
    # needs the hub.
    wanted = {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    held = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    processes = [
        context.Process(target=_worker, args=(queue, str(root), str(log / f"worker-{n}.log")), daemon=False)
        for n in range(workers)
    ]
    try:
        for process in processes:
            process.start()
    finally:
        for name, value in held.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
    try:
        _watch(processes, jobs, chosen, console)
    except KeyboardInterrupt:
        for process in processes:
            if process.is_alive() and process.pid:
                os.kill(process.pid, signal.SIGINT)  # a step's end and a checkpoint, then out
        for process in processes:
            process.join(timeout=30)
        raise Interrupted(f"Interrupted; what is done stays in {root}. The same command continues.") from None
    finally:
        for process in processes:
            if process.is_alive():
                process.terminate()
    failed = [read_json(path) for path in sorted(root.glob("*/failure.json"))]
    if failed:
        raise HoldfastError(f"{failed[0]['run']} failed: {failed[0]['error']}\nMore in {log}.")
    bad = [p.exitcode for p in processes if p.exitcode]
    if bad:
        raise HoldfastError(
            f"A worker ended with exit code {bad[0]}; its output is in {log}. The same command continues with what is "
            f"missing."
        )


def _worker(queue: Any, root: str, log: str) -> None:
    """Takes runs from the queue until it is empty. Output goes to the log file; a failure is written where the parent
    looks."""
    import sys

    stream = open(log, "a", encoding="utf-8", buffering=1)  # noqa: SIM115  (open until the process ends)
    sys.stdout = sys.stderr = stream
    from rich.console import Console

    from holdfast.runs.config import train_config
    from holdfast.runs.run import train

    while (job := queue.get()) is not None:
        folder = Path(job["output_dir"])
        (folder / "failure.json").unlink(missing_ok=True)
        try:
            train(
                train_config(job), console=Console(file=stream, width=120), evaluation_cache=Path(root) / "evaluations"
            )
        except (Interrupted, KeyboardInterrupt):
            return
        except Exception as error:
            import traceback

            traceback.print_exc()
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / "failure.json", {"run": folder.name, "error": str(error)})


def _watch(processes: list[Any], jobs: list[dict[str, Any]], chosen: list[QuickArm], console: Any) -> None:
    """Draws progress until all workers have ended."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    folders = [RunFolder(job["output_dir"]) for job in jobs]
    weight = [1.3 if arm.kind == "label_annealing" else 1.0 for arm in chosen]  # the teacher's forward pass
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    shown = -1
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("Fine-tuning", total=sum(weight))
        while any(p.is_alive() for p in processes):
            done, active = 0.0, []
            for folder, job, arm, w in zip(folders, jobs, chosen, weight, strict=True):
                share, running = _share_done(folder, job["max_steps"])
                done += w * share
                if running:
                    active.append(arm.label)
            bar.update(task, completed=done, description=", ".join(active[:2]) or "Fine-tuning")
            if not console.is_terminal and int(4 * done / sum(weight)) != shown:
                shown = int(4 * done / sum(weight))
                console.print(
                    f"   {100 * done / sum(weight):.0f} % ({', '.join(active) or 'starting'})", highlight=False
                )
            time.sleep(0.5)
        bar.update(task, completed=sum(weight))


def _share_done(folder: RunFolder, steps: int) -> tuple[float, bool]:
    """How much of a run is done (training is nine tenths of it), and whether it is going on."""
    try:
        if not folder.exists():
            return 0.0, False
        record = folder.read()
        if record.status == "finished":
            return 1.0, False
        rows = folder.metrics()
    except (HoldfastError, OSError):
        return 0.0, True
    return 0.9 * max((row.get("step", 0) for row in rows), default=0) / steps, record.status == "running"


def _parameters(path: Path) -> int:
    return int(RunFolder(path).read().model.get("parameters", 0))
