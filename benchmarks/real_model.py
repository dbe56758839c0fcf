"""A real language model, tuned in every way: what each learns and what it keeps. SmolLM2-135M-Instruct on a CPU.

    python benchmarks/real_model.py --data DATA                      # goes on where the rows end
    python benchmarks/real_model.py --data DATA --minutes 120        # a stretch: begins nothing that will not end
    python benchmarks/real_model.py --data DATA --only gsm8k/direct  # runs whose name begins so
    python benchmarks/real_model.py --plan                           # what there is to do, and what is done
    python benchmarks/real_model.py --quick                          # under a minute: a tiny model, no data; the
                                                                     # machinery only

DATA is a folder with the public data sets (see `real_model_data.py`); the model is `holdfast models get
smollm2-135m-instruct`, or `--model FOLDER`. Every finished run is one file of rows in runs/real_model/rows, so the
table grows from session to session and nothing is computed twice; a run whose data, model, settings or plan have
changed since is made again.

Two targets. `gsm8k`: 256 training problems through the chat template, loss on the answers, which is near what the
model knows. `articles`: dated articles about people who do not exist, 3 epochs of plain text, which is far from it.
Sources, the same for both: held-out conversations (OpenAssistant), PEPs and a handbook in nats per token, since
continuous measures show small losses; ARC-Easy, PIQA, HellaSwag (500 questions each) and IFEval (100 prompts).

Rules, written down before the first run:

- The learning rate is the first rival. Direct fine-tuning is run at four rates. *Tuned* direct is the one with the best
  target on validation data, which no other figure uses.
- Methods that hold back are run at a rate at which direct fine-tuning forgets (`RATE`), label annealing and replay also
  at a lower one; what a method is worth is its place beside the whole line of direct rates, at equal target.
- Precondition of everything that is said about keeping: direct fine-tuning at its tuned rate loses more than 0.01 nats
  per token of the source (mean of the three texts, whole interval). Otherwise the table says: at the tuned rate there
  is nothing to keep on this target, and methods at `RATE` are compared with direct at `RATE` only, marked as that.
- The curve of a method is long enough when its strongest run learns less than 80 % of direct's gain at that rate and
  its weakest avoids less than half of direct's loss. Where it is not, it is said.
- Seed 1 repeats the runs after seed 0 is done, in the same order, those at a second rate of their own aside, and
  measures nats alone (target, validation, texts).
- Cut for time when ten hours of processor time were over (`CUT`): the second seed of runs that stand late in the
  plan. They are held against direct runs of seed 0.
- Cut for time, before any row was made: half of GSM8K's problems and two thirds of the people that a first plan had;
  questions and generated replies, which cost four times as much as nats and tell little of small losses, are asked of
  the start and of eight models a target (`asked`), of seed 0.
- The model's weights were quantised to 4 bits once and are dequantised: figures are of that model.
- Results are measured in bfloat16, as they would be shipped; the start is bfloat16 already.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "runs" / "real_model"
"""Rows of runs; `real_model_table.py` makes the committed table and records of them."""
RATE, LOWER = 5e-4, 2e-4
SEEDS = (0, 1)
VERSION = 3
"""Of what a row means; raise it where rows that are there should be made again."""

LORA: dict[str, Any] = {
    "use_peft": True,
    "lora_r": 16,
    "lora_alpha": 32,
    "lora_dropout": 0.0,
    "lora_target_modules": "all-linear",
}


@dataclass(frozen=True, kw_only=True)
class Run:
    """One way of fine-tuning."""

    name: str
    rate: float = RATE
    retention: list[dict[str, Any]] = field(default_factory=list)
    """As in a config; {others}: the file of other conversations."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Keys of the config beside those that all have."""
    halfway: tuple[float, ...] = ()
    """Alphas of WiSE-FT on this run's weights: each is a row of its own, measured in nats alone."""
    asked: bool = False
    """Whether its model answers questions and generates replies, too (seed 0)."""
    seeds: tuple[int, ...] = SEEDS

    def asks(self, seed: int) -> bool:
        """Whether the model of a seed is asked questions."""
        return self.asked and seed == SEEDS[0]


CUT: dict[str, frozenset[str]] = {
    "gsm8k": frozenset({"sfa-0.25", "budget-0.05", "ewc-1000", "ema-0.95", "dft"}),
    "articles": frozenset(
        {"l2-0.01", "label_annealing-10", "sfa-0.25", "budget-0.05", "l2-0.1", "ewc-1000", "ema-0.95", "dft"}
    ),
}
"""Runs whose second seed was left out when the ten hours of computing were over; late ones of the plan."""


def seeds_of(target: str, run: Run) -> tuple[int, ...]:
    """The seeds with which a run is made."""
    return SEEDS[:1] if run.name in CUT[target] else run.seeds


def annealing(weight: float) -> list[dict[str, Any]]:
    return [{"label_annealing": {"weight": weight, "teacher": "cached"}}]


def runs(target: str) -> list[Run]:
    """In the order in which they are done: what a table needs first comes first."""
    rates = {"gsm8k": (1e-4, 2e-4, 5e-5), "articles": (1e-4, 2e-4, 1e-3)}[target]
    replay = [{"replay": {"data": "{others}", "fraction": 0.1}}]
    return [
        Run(name=f"direct-{RATE:g}", halfway=(0.25, 0.5, 0.75), asked=True),
        Run(name=f"direct-{rates[0]:g}", rate=rates[0], asked=True),
        Run(name="label_annealing-1", retention=annealing(1.0), asked=True),
        Run(name=f"direct-{rates[1]:g}", rate=rates[1], asked=True),
        Run(name="label_annealing-3", retention=annealing(3.0)),
        Run(name="label_annealing-0.3", retention=annealing(0.3)),
        Run(name="replay-0.1", retention=replay, asked=True),
        Run(name="lora-1e-3", rate=1e-3, settings=LORA, asked=True),
        Run(name=f"direct-{rates[2]:g}", rate=rates[2], asked=True),
        Run(name="l2-0.01", retention=[{"l2": {"coefficient": 0.01}}]),
        Run(name="label_annealing-10", retention=annealing(10.0)),
        Run(name="sfa-0.25", retention=[{"sfa": {"p": 0.25}}], asked=True),
        Run(
            name="budget-0.05",
            retention=[{"label_annealing": {"teacher": "cached"}}, {"budget": {"kl": 0.05}}],
        ),
        Run(name="l2-0.1", retention=[{"l2": {"coefficient": 0.1}}]),
        Run(name="ewc-1000", retention=[{"ewc": {"data": "{others}", "coefficient": 1000.0, "samples": 64}}]),
        Run(name="ema-0.95", retention=[{"ema": {"decay": 0.95}}]),
        Run(name="dft", settings={"loss_type": "dft"}),
        Run(name=f"label_annealing-1-{LOWER:g}", rate=LOWER, retention=annealing(1.0), seeds=SEEDS[:1]),
        Run(name=f"replay-0.1-{LOWER:g}", rate=LOWER, retention=replay, seeds=SEEDS[:1]),
        Run(name="lora-3e-4", rate=3e-4, settings=LORA, seeds=SEEDS[:1]),
        # added after the table was full: one seed, at `RATE`
        Run(name="auto", retention=[{"auto": {}}], seeds=SEEDS[:1]),
    ]


def training(target: str, files: Mapping[str, str]) -> dict[str, Any]:
    """What all runs on a target have in common, as `holdfast train --config` takes it."""
    return {
        "dataset_name": files[{"gsm8k": "gsm8k_train", "articles": "articles"}[target]],
        "num_train_epochs": {"gsm8k": 1, "articles": 3}[target],
        "packing": True,
        "max_length": 1024,
        "per_device_train_batch_size": 2,
        "dtype": "float32",
        "bf16": True,
        "use_cpu": True,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 3,
        "gradient_checkpointing": False,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
    }


def evaluation(target: str, files: Mapping[str, str], *, asked: bool = True) -> dict[str, Any]:
    """What is measured, as `evaluation:` takes it: nats, and where it is asked for, questions and replies."""
    targets: dict[str, list[Any]] = {
        "gsm8k": [
            {"perplexity": files.get("gsm8k_answers"), "name": "answers"},
            {
                "task": "gsm8k",
                "data": files.get("gsm8k"),
                "num_fewshot": 0,
                "apply_chat_template": True,
            },
        ],
        "articles": [
            {"perplexity": files["articles_test"], "name": "facts", "prompt": "{prompt}", "completion": "{completion}"},
            {"multiple_choice": files["articles_test_choices"], "name": "facts_asked", "group": "attribute"},
            {"multiple_choice": files["articles_test_chat"], "name": "facts_in_chat", "apply_chat_template": True},
        ],
    }
    validation: dict[str, list[Any]] = {
        "gsm8k": [{"perplexity": files.get("gsm8k_validation"), "name": "answers_validation"}],
        "articles": [
            {
                "perplexity": files["articles_validation"],
                "name": "facts_validation",
                "prompt": "{prompt}",
                "completion": "{completion}",
            }
        ],
    }
    texts = [
        {"perplexity": files[name], "name": name, "window": 1024} for name in ("conversations", "peps", "handbook")
    ]
    questions = [
        {"task": "arc_easy", "data": files.get("arc_easy"), "num_fewshot": 0},
        {"task": "piqa", "data": files.get("piqa"), "num_fewshot": 0},
        {"multiple_choice": files.get("hellaswag"), "name": "hellaswag"},
        {"instructions": files.get("ifeval"), "name": "ifeval", "apply_chat_template": True, "max_new_tokens": 256},
    ]
    return {
        "learn": targets[target] if asked else targets[target][:1],
        "validation": validation[target],
        "keep": [*texts, *(questions if asked and "ifeval" in files else ())],
        "batch_size": 100,
    }


# ---------------------------------------------------------------------------------------------------------------- rows


def row_file(results: Path, target: str, name: str, seed: int) -> Path:
    return results / "rows" / target / f"{name}.seed-{seed}.json"


IDENTITY = ("doc", "prompt", "task")
"""Columns of a sample by which comparisons join: the same for all models, so that the start's row alone has them."""


def packed(folder: Any, *, identity: bool) -> list[dict[str, Any]]:
    """A model's evaluations with the numbers of their samples, column by column; texts stay where they were made."""
    from holdfast.support.files import to_jsonable

    found = []
    for one in folder.all():
        rows = folder.samples(one.suite, one.name)
        numbers = [k for k, v in rows[0].items() if isinstance(v, (int, float)) and not isinstance(v, bool)]
        columns = {k: [_short(row[k]) for row in rows] for k in numbers if all(k in row for row in rows)}
        if identity:
            columns |= {k: [row[k] for row in rows] for k in IDENTITY if k in rows[0]}
        found.append({"evaluation": to_jsonable(one), "columns": columns})
    return found


def unpacked(entries: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """The start's evaluations as files again, for whatever reads them (`holdfast compare`, pages)."""
    from holdfast.records.evaluation import Evaluation, EvaluationFolder

    for entry in entries:
        columns = entry["columns"]
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        EvaluationFolder(folder).write(Evaluation.from_json(entry["evaluation"]), rows)


def _short(value: float) -> float:
    """Seven digits, which is more than bfloat16 gives."""
    return int(value) if float(value).is_integer() else float(f"{value:.7g}")


# ------------------------------------------------------------------------------------------------------------- a run


@dataclass(kw_only=True)
class Bench:
    """What all runs share."""

    model: Path
    files: dict[str, str]
    work: Path
    results: Path
    console: Any
    steps: int = -1
    """Optimiser steps of every run; -1: what the epochs take."""

    def key(self, target: str, run: Run | None, seed: int) -> str:
        """What decides a row."""
        from holdfast.checkpoints.reader import checkpoint_hash
        from holdfast.data.sources import content_hash
        from holdfast.support.files import fingerprint, to_jsonable

        def named(value: Any) -> Any:
            if isinstance(value, Mapping):
                return {k: named(v) for k, v in value.items()}
            if isinstance(value, list):
                return [named(v) for v in value]
            known = {path: name for name, path in self.files.items()}
            return f"{known[value]} {content_hash(Path(value))}" if value in known else value

        return fingerprint(
            [
                VERSION,
                checkpoint_hash(self.model),
                named(evaluation(target, self.files, asked=run is None or run.asks(seed))),
                None if run is None else [named(training(target, self.files)), to_jsonable(run), seed],
                None if run is None else named(self.files["other_conversations"]),
            ]
        )

    def done(self, target: str, run: Run, seed: int, name: str) -> bool:
        """Whether the row of a run, or of what is made of its weights, is there."""
        from holdfast.support.files import read_object

        file = row_file(self.results, target, name, seed)
        return file.is_file() and read_object(file)["key"] == self.key(target, run, seed)

    def measure(self, target: str, model: Path, folder: Path, *, asked: bool) -> Any:
        """Evaluates a model's folder, or finds it evaluated."""
        from holdfast.evaluation.runner import evaluate
        from holdfast.evaluation.suite import parse_evaluation
        from holdfast.models import load
        from holdfast.records.evaluation import EvaluationFolder
        from holdfast.support.resources import release_memory

        plan, problems = parse_evaluation(evaluation(target, self.files, asked=asked))
        if problems:
            raise SystemExit("\n".join(problems))
        loaded = load(str(model), dtype="bfloat16")
        found = EvaluationFolder(folder)
        identity = {"name": model.name, "hash": loaded.identity["hash"]}
        evaluate(
            dataclasses.replace(loaded, identity=identity),
            plan,
            folder=found,
            cache=self.work / "evaluations",
            console=self.console,
        )
        del loaded
        release_memory()
        return found

    def start(self, target: str, *, asked: bool = True) -> Any:
        """The start's evaluations: all, or those in nats."""
        from holdfast.records.evaluation import EvaluationFolder
        from holdfast.support.environment import wait_for_lock
        from holdfast.support.files import read_object, write_json

        file, folder = (
            row_file(self.results, target, "start", 0),
            self.work / target / f"start.{'all' if asked else 'nats'}",
        )
        with wait_for_lock(self.work / target / "start"):
            if not (file.is_file() and read_object(file)["key"] == self.key(target, None, 0)):
                whole = self.work / target / "start"
                found, seconds = _timed(lambda: self.measure(target, self.model, whole, asked=True))
                about = {"key": self.key(target, None, 0), "name": "start", "evaluation_seconds": seconds}
                write_json(file, {**about, "entries": packed(found, identity=True)})
            entries = read_object(file)["entries"]
            if not asked:
                entries = [e for e in entries if e["evaluation"]["primary"] == "nats_per_token"]
            unpacked(entries, folder)
        return EvaluationFolder(folder)

    def do(self, target: str, run: Run, seed: int) -> None:
        """Trains, measures, writes the rows, and removes the weights."""
        from holdfast.checkpoints.merge import merge
        from holdfast.runs.config import train_config
        from holdfast.runs.run import train
        from holdfast.support.environment import hardware, versions

        place = self.work / target / f"{run.name}.seed-{seed}"
        settings = {
            **training(target, self.files),
            **run.settings,
            "max_steps": self.steps,
            "model_name_or_path": str(self.model),
            "learning_rate": run.rate,
            "retention": _filled(run.retention, self.files) or "none",
            "seed": seed,
            "output_dir": str(place / "run"),
        }
        folder, seconds = _timed(lambda: train(train_config(settings), console=self.console))
        record = folder.read()
        about = {
            "key": self.key(target, run, seed),
            "learn": target,
            "rate": run.rate,
            "retention": run.retention,
            "settings": run.settings,
            "seed": seed,
            "asked": run.asks(seed),
            "tokens": record.training["tokens"],
            "steps": record.training["steps"],
            "training_seconds": record.training["seconds"],
            "seconds": seconds,
            "hardware": hardware(),
            "versions": versions(),
            "teacher": record.training.get("teacher"),
        }
        for alpha in run.halfway:
            mixed = place / f"wise_ft-{alpha:g}"
            if not self.done(target, run, seed, f"wise_ft-{alpha:g}"):
                merge([folder.path], mixed, method="wise_ft", base=self.model, alpha=alpha, overwrite=True)
                self.write(target, mixed, f"wise_ft-{alpha:g}", seed, {**about, "alpha": alpha, "asked": False})
                shutil.rmtree(mixed)
        self.write(target, folder.path, run.name, seed, about)
        shutil.rmtree(place)

    def write(self, target: str, model: Path, name: str, seed: int, about: Mapping[str, Any]) -> None:
        """Measures a model and writes its row."""
        from holdfast.evaluation.compare.folders import compare_folders
        from holdfast.support.files import to_jsonable, write_json

        place, asked = self.work / target / f"{name}.seed-{seed}.measured", bool(about["asked"])
        start = self.start(target, asked=asked)
        found, seconds = _timed(lambda: self.measure(target, model, place, asked=asked))
        changes, left_out = compare_folders(start, found, metrics="all")
        if left_out:
            raise SystemExit(f"{name}: " + " ".join(map(str, left_out)))
        write_json(
            row_file(self.results, target, name, seed),
            {
                **about,
                "name": name,
                "evaluation_seconds": seconds,
                "comparisons": [to_jsonable(c) for c in changes],
                "entries": packed(found, identity=False),
            },
        )
        shown = {c.name: c for c in changes if c.primary}
        print(
            f"{target}/{name} seed {seed}: " + ", ".join(f"{n} {c.difference:+.4f}" for n, c in shown.items()),
            flush=True,
        )


def _timed(call: Any) -> tuple[Any, dict[str, float]]:
    """A call's value, with its seconds by the clock and of the processor (user and system, all threads)."""
    used, began = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    value = call()
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    return value, {"wall": round(time.monotonic() - began, 1), "cpu": round(cpu, 1)}


def _filled(value: Any, files: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {k: _filled(v, files) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_filled(v, files) for v in value]
    return files["other_conversations"] if value == "{others}" else value


# ------------------------------------------------------------------------------------------------------------- a table


def to_do(bench: Bench, only: Sequence[str]) -> Iterator[tuple[str, Run, int, bool]]:
    """(target, run, seed, whether its row is there)."""
    for seed in SEEDS:
        for target in ("gsm8k", "articles"):
            for run in runs(target):
                if seed not in seeds_of(target, run) or (only and not f"{target}/{run.name}".startswith(tuple(only))):
                    continue
                yield target, run, seed, bench.done(target, run, seed, run.name)


def quick(work: Path) -> int:
    """Two steps of two runs on a tiny model with a chat template: row files as the real ones, of no meaning."""
    import real_model_data
    from rich.console import Console

    from holdfast.papers.worlds.embedded import embedded_corpus
    from holdfast.papers.worlds.people.chat import CHAT_TEMPLATE
    from holdfast.papers.worlds.pretrain import BaseRecipe, Vocabulary, cached_base
    from holdfast.support.files import write_jsonl

    prose = embedded_corpus().prose_heldout[:8]
    made = {name: rows[:8] for name, rows in real_model_data.articles().items()}
    made |= {name: [{"text": text[:300]} for text in prose] for name in ("conversations", "peps", "handbook")}
    made["other_conversations"] = made["articles"]
    console = Console(file=sys.stderr)
    recipe = BaseRecipe(layers=2, width=32, heads=2, mlp=64, vocab_size=384, context=256, batch_size=4, steps=3)
    model = cached_base(prose, recipe, vocabulary=Vocabulary(chat_template=CHAT_TEMPLATE), console=console)
    files = {name: str(write_jsonl(work / "data" / f"{name}.jsonl", rows)) for name, rows in made.items()}
    bench = Bench(model=model, files=files, work=work, results=work / "results", console=console, steps=2)
    for run in runs("articles"):
        if run.name in (f"direct-{RATE:g}", "label_annealing-1"):
            bench.do("articles", run, 0)
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="folder of the data sets")
    parser.add_argument("--model", default="smollm2-135m-instruct", help="name or folder (smollm2-135m-instruct)")
    parser.add_argument("--work", type=Path, default=Path("runs/real_model"), help="where runs are made")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where rows are kept")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin nothing that will not end by then")
    parser.add_argument("--only", nargs="+", default=[], metavar="TARGET/NAME", help="runs whose name begins so")
    parser.add_argument("--plan", action="store_true", help="what there is to do, and what is done")
    parser.add_argument("--quick", action="store_true", help="under a minute: a tiny model, the machinery only")
    options = parser.parse_args(arguments)
    if options.quick:
        with tempfile.TemporaryDirectory() as place:
            return quick(Path(place))
    import real_model_data
    from rich.console import Console

    from holdfast.checkpoints.named import located
    from holdfast.errors import FolderBusy
    from holdfast.support.environment import lock_folder

    files = real_model_data.prepare(options.data, (options.work / "data").absolute())
    bench = Bench(
        model=Path(located(options.model)),
        files=files,
        work=options.work.absolute(),
        results=options.results,
        console=Console(file=sys.stderr),
    )
    plan = list(to_do(bench, options.only))
    left = [(target, run, seed) for target, run, seed, done in plan if not done]
    print(f"{len(plan) - len(left)} of {len(plan)} runs are done.", flush=True)
    if options.plan:
        for target, run, seed, done in plan:
            print(f"{'done' if done else '    '}  {target}/{run.name} seed {seed}")
        return 0
    began, longest = time.monotonic(), 0.0
    for target, run, seed in left:
        spent = time.monotonic() - began
        if spent + longest > 60 * options.minutes:
            print(f"{spent / 60:.0f} minutes are over. Run the same command to continue.")
            return 0
        before = time.monotonic()
        with contextlib.suppress(FolderBusy), lock_folder(bench.work / target / f".{run.name}.seed-{seed}"):
            if not bench.done(target, run, seed, run.name):  # another process may have come first
                bench.do(target, run, seed)
                longest = max(longest, time.monotonic() - before)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.exit(main())
