"""Does a budget end where it says, and does finding the strength during the run cost anything against knowing it
beforehand?

    python benchmarks/budget.py                    # the embedded corpus, 1M parameters: a sweep of fixed weights, then
                                                   three budgets
    python benchmarks/budget.py --check            # exit 1, naming what falls short
    python benchmarks/budget.py --quick            # under a minute: a smaller base, fewer steps
    python benchmarks/budget.py --data FILE        # repeatable: tune on this text too (jsonl, or jsonl.gz, with a text
                                                   column)
    python benchmarks/budget.py --folder DIR       # keep finished runs there; the same command continues with what is
                                                   missing
    python benchmarks/budget.py --save FILE        # the figures as JSON

A base that knows English prose is fine-tuned by label annealing on other text. The sweep does it with fixed weights;
the curve through its ends, target cross-entropy against KL to the start, is the frontier that one can have by trying. A
budget run states the KL and starts from a weight that is wrong on purpose. Budgets are 10, 25 and 50 % of the KL of
direct fine-tuning, so that they mean the same on every text.

reached   KL of the final model to the start on training tokens, nats per token, each row seen once in the run; `ratio`
          is to the budget
target    cross-entropy of the final model on held-out documents of the text it was tuned on, nats per token
frontier  the sweep's, at the KL that the budget run reached: linear in log KL between the two nearest fixed weights
excess    target minus frontier: above 0 is worse than a fixed weight would have been

Bars: ratio in [0.9, 1.1] in every run; the mean excess over seeds at most two standard errors above 0. The standard
error is pooled over the budgets, whose excesses differ by seed (order of the data) only; with one seed there is none,
and that bar is not applied.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from machine import device_name, hardware

from holdfast.support.files import fingerprint, read_json, write_json

EMBEDDED = "embedded"
RATIO = (0.9, 1.1)
SHARES = (0.1, 0.25, 0.5)
"""Budgets, as shares of the KL that direct fine-tuning ends with."""
STARTS = (0.1, 1.0, 10.0)
"""The weight each budget begins with: none is the one that it should find."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """What every run of the benchmark has in common."""

    steps: int
    batch_size: int
    """Rows a step."""
    learning_rate: float
    weights: tuple[float, ...]
    """Of the sweep, ascending; 0 is direct fine-tuning."""
    base: dict[str, int]
    """Changes of the base's recipe (`studies.pretrain.BaseRecipe`)."""
    measured: int
    """Rows that KL and target are measured on, at most."""
    context: int = 128
    schedule: str = "cosine"


SIZES = {
    "full": Size(
        steps=100,
        batch_size=16,
        learning_rate=1e-3,
        weights=(0.0, 0.1, 0.3, 0.6, 1.0, 2.0, 3.0, 4.0, 6.0, 10.0),
        base={},
        measured=160,
    ),
    "quick": Size(
        steps=60,
        batch_size=8,
        learning_rate=2e-3,
        weights=(0.0, 0.3, 1.0, 3.0, 5.0, 10.0),
        base={"layers": 2, "width": 64, "mlp": 128, "vocab_size": 512, "steps": 150, "context": 64},
        measured=64,
        context=64,
    ),
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 where a bar falls short")
    parser.add_argument("--quick", action="store_true", help="under a minute: a smaller base, fewer steps, one seed")
    parser.add_argument(
        "--data", action="append", default=None, metavar="FILE", help="also tune on this text; repeatable"
    )
    parser.add_argument("--seeds", type=int, default=None, help="orders of the data (2; 1 with --quick)")
    parser.add_argument(
        "--schedule", choices=["constant", "linear", "cosine"], default="cosine", help="of the learning rate (cosine)"
    )
    parser.add_argument(
        "--folder", type=Path, default=None, metavar="DIR", help="keep finished runs there and do not repeat them"
    )
    parser.add_argument("--save", type=Path, default=None, metavar="FILE", help="write the figures as JSON")
    options = parser.parse_args(arguments)
    size = replace(SIZES["quick" if options.quick else "full"], schedule=options.schedule)
    seeds = options.seeds or (1 if options.quick else 2)

    began = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        rows = []
        for text in [EMBEDDED, *(options.data or [])]:
            rows += compare(Workplace(text, size, folder), seeds)
    import torch

    machine = hardware(device_name())
    print(
        f"\n{machine}; torch {torch.__version__}; {size.steps} steps of {size.batch_size} x {size.context} tokens, "
        f"{size.schedule}; {seeds} seed(s)"
    )
    print(f"{time.monotonic() - began:.0f} s with what was not kept from before\n")
    short = show(rows, seeds)
    if options.save:
        write_json(
            options.save,
            {
                "benchmark": "budget",
                "hardware": machine,
                "torch": torch.__version__,
                "size": asdict(size),
                "seeds": seeds,
                "figures": rows,
            },
        )
    for line in short:
        print(f"SHORT  {line}", file=sys.stderr)
    return 1 if options.check and short else 0


# ----------------------------------------------------------------------------------------------------------------- runs


class Workplace:
    """A base, a text to tune on, and runs that are kept by what decides them.

    Args:
        text: `EMBEDDED`, or a file of rows with `text`.
        size: of the runs.
        folder: gets one JSON file a finished run.
    """

    def __init__(self, text: str, size: Size, folder: Path) -> None:
        from transformers import AutoTokenizer

        from holdfast.papers.worlds.embedded import embedded_corpus
        from holdfast.papers.worlds.pretrain import BaseRecipe, cached_base, pack_rows
        from holdfast.papers.worlds.toy_settings import base_texts

        self.text, self.size, self.folder = text, size, folder
        folder.mkdir(parents=True, exist_ok=True)
        corpus = embedded_corpus()
        self.base = cached_base(base_texts(corpus), replace(BaseRecipe(), **size.base))
        tokenizer = AutoTokenizer.from_pretrained(self.base)
        trained, held_out = (
            (corpus.code_train[::4], corpus.code_heldout[::4]) if text == EMBEDDED else split(read_texts(Path(text)))
        )
        self.rows = pack_rows(trained, tokenizer, size.context)
        self.held_out = pack_rows(held_out, tokenizer, size.context)[: size.measured]
        wanted = size.steps * size.batch_size
        if len(self.rows) < wanted or not self.held_out:
            raise SystemExit(
                f"{text}: expected at least {wanted} rows of {size.context} tokens to tune on, got {len(self.rows)}."
            )
        self.key = fingerprint(
            {"base": self.base.parent.name, "rows": self.rows[:wanted], "held_out": self.held_out}, length=16
        )

    def run(self, *, weight: float, seed: int, budget: float | None = None) -> dict[str, Any]:
        """`kl` and `target` of one fine-tuning's end, and its last weight; from the folder where it was done before.

        The key holds the controller's own file, so that a changed one is measured anew.
        """
        import holdfast.retention.methods.budget as module

        controller = (
            None if budget is None else fingerprint(Path(str(module.__file__)).read_text(encoding="utf-8"), length=16)
        )
        size = {k: v for k, v in asdict(self.size).items() if k != "weights"}  # of the other runs
        spec = {
            "workplace": self.key,
            "size": size,
            "weight": weight,
            "seed": seed,
            "budget": budget,
            "controller": controller,
        }
        path = self.folder / f"{fingerprint(spec, length=16)}.json"
        if path.is_file():
            return dict(read_json(path))
        result = self._train(weight=weight, seed=seed, budget=budget)
        write_json(path, result)
        what = f"weight {weight:g}" if budget is None else f"budget {budget:.4f} from weight {weight:g}"
        print(
            f"{Path(self.text).name}, seed {seed}, {what}: KL {result['kl']:.4f}, target {result['target']:.4f} "
            f"({result['seconds']:.0f} s)",
            flush=True,
        )
        return result

    def _train(self, *, weight: float, seed: int, budget: float | None) -> dict[str, Any]:
        import torch
        from datasets import Dataset
        from transformers import AutoModelForCausalLM, TrainingArguments, default_data_collator

        from holdfast.retention.methods.budget import Budget
        from holdfast.retention.methods.label_annealing import LabelAnnealing
        from holdfast.training.method_services import TrainerServices
        from holdfast.training.trainers import RetentionTrainer

        size = self.size
        # A weight of 0 would be left out with its KL; this one is measured and does nothing.
        retain: list[Any] = [LabelAnnealing(weight=weight or 1e-12), *([] if budget is None else [Budget(kl=budget)])]
        order = torch.randperm(len(self.rows), generator=torch.Generator().manual_seed(seed))[
            : size.steps * size.batch_size
        ].tolist()
        rows = [self.rows[i] for i in order]
        with tempfile.TemporaryDirectory() as folder:
            trainer = RetentionTrainer(
                model=AutoModelForCausalLM.from_pretrained(self.base),
                args=TrainingArguments(
                    output_dir=folder,
                    max_steps=size.steps,
                    per_device_train_batch_size=size.batch_size,
                    learning_rate=size.learning_rate,
                    lr_scheduler_type=size.schedule,
                    warmup_steps=size.steps // 20,
                    logging_steps=max(1, size.steps // 50),
                    save_strategy="no",
                    report_to="none",
                    seed=seed,
                    disable_tqdm=True,
                    dataloader_pin_memory=False,
                ),
                train_dataset=Dataset.from_dict({"input_ids": rows, "labels": rows}),
                data_collator=default_data_collator,
                retain=retain,
            )
            from transformers import PrinterCallback

            trainer.remove_callback(PrinterCallback)
            began = time.monotonic()
            trainer.train()
            seconds = time.monotonic() - began
        host = TrainerServices(trainer, print)
        spread = rows[:: max(1, len(rows) // size.measured)][: size.measured]
        log = [r for r in trainer.state.log_history if "kl" in r]
        return {
            "kl": host.mean_loss(Dataset.from_dict({"input_ids": spread, "labels": spread})).kl,
            "learn": host.mean_loss(Dataset.from_dict({"input_ids": self.held_out, "labels": self.held_out})).ce,
            "strength": trainer.active[0].strength,
            "seconds": seconds,
            "path": [[r["step"], r["kl"], r.get("budget_strength", weight)] for r in log],
        }


def read_texts(path: Path) -> list[str]:
    """The `text` column of a jsonl or jsonl.gz file."""
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line)["text"] for line in content.decode("utf-8").split("\n") if line.strip()]


def split(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Nine documents of ten to train on, each tenth held out."""
    return [t for i, t in enumerate(texts) if i % 10 != 9], [t for i, t in enumerate(texts) if i % 10 == 9]


# -------------------------------------------------------------------------------------------------------------- figures


def compare(place: Workplace, seeds: int) -> list[dict[str, Any]]:
    """One row a budget and seed."""
    found = []
    for seed in range(seeds):
        sweep = [place.run(weight=weight, seed=seed) for weight in place.size.weights]
        for share, start in zip(SHARES, STARTS, strict=True):
            # Of the first seed's direct run, rounded: one budget for all seeds, as a user would state one.
            budget = float(f"{share * place.run(weight=place.size.weights[0], seed=0)['kl']:.2g}")
            result = place.run(weight=start, seed=seed, budget=budget)
            frontier = interpolate([(s["kl"], s["learn"]) for s in sweep], result["kl"])
            found.append(
                {
                    "text": Path(place.text).name,
                    "seed": seed,
                    "budget": budget,
                    "start": start,
                    "reached": result["kl"],
                    "ratio": result["kl"] / budget,
                    "strength": result["strength"],
                    "learn": result["learn"],
                    "frontier": frontier,
                    "excess": result["learn"] - frontier,
                    "sweep": [
                        {"weight": w, "kl": s["kl"], "learn": s["learn"]}
                        for w, s in zip(place.size.weights, sweep, strict=True)
                    ],
                }
            )
    return found


def interpolate(points: Sequence[tuple[float, float]], kl: float) -> float:
    """The target at `kl`, linear in log KL between neighbours; nan outside the points."""
    ordered = sorted(points)
    for (low, a), (high, b) in itertools.pairwise(ordered):
        if low <= kl <= high:
            share = (math.log(kl) - math.log(low)) / (math.log(high) - math.log(low))
            return a + share * (b - a)
    return math.nan


def show(rows: Sequence[dict[str, Any]], seeds: int) -> list[str]:
    """Prints the tables; returns what falls short."""
    for text in dict.fromkeys(r["text"] for r in rows):
        print(f"{text}: fixed weights, seed 0")
        print("".join(f"{f'{w}':>12}" for w in ("weight", "KL", "learn")))
        for point in next(r for r in rows if r["text"] == text and r["seed"] == 0)["sweep"]:
            print(f"{point['weight']:>12g}{point['kl']:>12.4f}{point['target']:>12.4f}")
        print()
    titles = ("text", "seed", "budget", "from", "reached", "ratio", "strength", "learn", "frontier", "excess")
    print(f"{titles[0]:<22}" + "".join(f"{t:>10}" for t in titles[1:]))
    short = []
    for r in rows:
        figures = (
            f"{r['reached']:.4f}",
            f"{r['ratio']:.3f}",
            f"{r['strength']:.3g}",
            *(f"{r[k]:.4f}" for k in ("learn", "frontier", "excess")),
        )
        print(
            f"{r['text'][:21]:<22}{r['seed']:>10}{r['budget']:>10.4g}{r['start']:>10g}"
            + "".join(f"{f:>10}" for f in figures)
        )
        if not RATIO[0] <= r["ratio"] <= RATIO[1]:
            short.append(
                f"{r['text']}, seed {r['seed']}, budget {r['budget']:g}: ended at {r['ratio']:.3f} of it, the bar is "
                f"{RATIO[0]} to {RATIO[1]}"
            )
    return short + excesses(rows, seeds)


def excesses(rows: Sequence[dict[str, Any]], seeds: int) -> list[str]:
    """Budgets whose mean excess over the frontier is beyond its noise; says what the noise is."""
    groups: dict[tuple[str, float], list[float]] = {}
    for r in rows:
        groups.setdefault((r["text"], r["budget"]), []).append(r["excess"])
    if seeds < 2:
        print("\nOne seed: no standard error, so the excess has no bar.")
        return []
    error = math.sqrt(statistics.fmean(statistics.variance(g) for g in groups.values()) / seeds)
    print(f"\nstandard error of a mean excess over {seeds} seeds, pooled: {error:.4f} nats per token")
    return [
        f"{text}, budget {budget:g}: {statistics.fmean(group):.4f} nats above the frontier of fixed weights, the "
        f"noise is {2 * error:.4f}"
        for (text, budget), group in groups.items()
        if not statistics.fmean(group) <= 2 * error
    ]


if __name__ == "__main__":
    sys.exit(main())
