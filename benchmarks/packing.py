"""Packed continual pre-training with documents kept apart: token rate against packing that ignores borders, and what
the windows waste.

    python benchmarks/packing.py              # windows of 4096 tokens; the table
    python benchmarks/packing.py --check      # exit 1 where a bar falls short
    python benchmarks/packing.py --quick      # under a minute: windows of 1024
    python benchmarks/packing.py --save FILE  # the figures as JSON

Documents have the lengths of Balancing Continuous Pre-Training (section 3.1.1: 156 to 6981 tokens, 650 on average). A
step is forward, loss, backward, clipping and AdamW through the project's trainer; the arms take turns, one step each a
round, and ratios are medians over rounds of the ratio within a round.

unmasked    windows cut from the stream of all documents, every token sees the whole window before it: the rate to hold
            against
documents   whole documents packed, attention and positions confined to each (ours); bar: 0.97 of the unmasked rate
mask        the same windows with transformers' own dense mask, which is what `sdpa` gets without ours: the peer

Waste is the share of the windows without a token, ours and TRL's packing (a thousand documents at a time) on the same
lengths; bar: 1 %. The rate counts tokens that are there, so waste is in it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import device_name, hardware, synchronize

RATE, WASTE = 0.97, 0.01
SIZE = {"width": 512, "layers": 2, "vocabulary": 4096}
SHOWN = ("unmasked", "documents", "mask")


def lengths_of_news(count: int, seed: int = 0) -> np.ndarray:
    """Document lengths as the paper describes them; the shape between its figures (log-normal) is ours."""
    rng = np.random.default_rng(seed)
    return np.clip(rng.lognormal(np.log(650) - 0.55**2 / 2, 0.55, count), 156, 6981).astype(int)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 where a bar falls short")
    parser.add_argument(
        "--quick", action="store_true", help="under a minute: windows of 1024 tokens, a smaller model, 3 rounds"
    )
    parser.add_argument("--rounds", type=int, default=None, help="timed rounds (7; 3 with --quick)")
    parser.add_argument("--save", type=Path, default=None, metavar="FILE", help="write the figures as JSON")
    options = parser.parse_args(arguments)
    window, rounds = (1024, options.rounds or 3) if options.quick else (4096, options.rounds or 7)
    size = {"width": 256, "layers": 3, "vocabulary": 4096} if options.quick else SIZE
    device = device_name()

    rates = token_rates(size, window, rounds, device)
    waste = wasted(window)
    machine = hardware(device)
    print(
        f"Llama-architecture model {size}, windows of {window} tokens, {rounds} rounds\n{machine}; torch "
        f"{torch.__version__}\n"
    )
    print(f"{'arm':<12}{'tokens / s':>12}{'of unmasked':>14}{'range':>18}{'bar':>8}")
    for row in rates:
        bar = f"{row['bar']:.2f}" if row["bar"] else ""
        print(
            f"{row['arm']:<12}{row['tokens_per_second']:>12,.0f}{row['ratio']:>14.3f}{row['low']:>11.2f} - "
            f"{row['high']:.2f}{bar:>8}"
        )
    print(
        f"\nempty places of {waste['documents']:,} documents' windows: ours {waste['ours']:.3%}, TRL's "
        f"{waste['trl']:.3%} (bar {WASTE:.0%})"
    )
    short = [
        f"{row['arm']}: {row['ratio']:.3f} of the unmasked rate; bar {row['bar']}"
        for row in rates
        if row["bar"] and row["ratio"] < row["bar"]
    ]
    if waste["ours"] > WASTE:
        short.append(f"packing leaves {waste['ours']:.2%} empty; bar {WASTE:.0%}")
    if options.save:
        from holdfast.support.files import write_json

        found = {
            "benchmark": "packing",
            "hardware": machine,
            "torch": torch.__version__,
            "size": size,
            "window": window,
            "rounds": rounds,
        }
        write_json(options.save, {**found, "rates": rates, "waste": waste})
    for line in short:
        print(f"falls short: {line}")
    return int(options.check and bool(short))


def token_rates(size: dict[str, int], window: int, rounds: int, device: str) -> list[dict[str, Any]]:
    """Tokens a second of each arm, and ratios to the unmasked one."""
    batches = make_batches(window, size["vocabulary"])
    with tempfile.TemporaryDirectory() as folder:
        steps = {name: make_step(Path(folder) / name, name, size, batch, device) for name, batch in batches.items()}
        tokens = {name: batch["input_ids"].numel() for name, batch in batches.items()}
        seconds: dict[str, list[float]] = {name: [] for name in steps}
        names = list(steps)
        for number in range(rounds + 1):
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                began = time.perf_counter()
                steps[name]()
                synchronize(device)
                if number:
                    seconds[name].append(time.perf_counter() - began)
    rows = []
    for name in names:
        rates = [tokens[name] / s for s in seconds[name]]
        ratios = [r / (tokens["unmasked"] / s) for r, s in zip(rates, seconds["unmasked"], strict=True)]
        rows.append(
            {
                "arm": name,
                "tokens_per_second": statistics.median(rates),
                "ratio": statistics.median(ratios),
                "low": min(ratios),
                "high": max(ratios),
                "bar": RATE if name == "documents" else None,
            }
        )
    return rows


def make_batches(window: int, vocabulary: int) -> dict[str, dict[str, torch.Tensor]]:
    """One window each; the packed ones as TRL's collator hands them to a model."""
    from holdfast.data.packing import pack

    packing = pack(
        lengths_of_news(2000) if window >= 4096 else np.minimum(lengths_of_news(2000), window), window, seed=0
    )
    sizes = np.add.reduceat(packing.length, packing.bounds[:-1])
    at = int(np.argsort(sizes)[len(sizes) // 2])  # a window of the middle kind
    lengths = packing.length[packing.bounds[at] : packing.bounds[at + 1]]
    ids = torch.randint(5, vocabulary, (window,), generator=torch.Generator().manual_seed(0))
    places = torch.cat([torch.arange(int(n)) for n in lengths])
    bounds = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)
    packed_ids = ids[: int(bounds[-1])][None]
    labels = packed_ids.masked_fill(places[None] == 0, -100)
    packed = {"input_ids": packed_ids, "labels": labels, "position_ids": places[None]}
    longest = int(lengths.max())
    return {
        "unmasked": {"input_ids": ids[None], "labels": ids[None].clone()},
        "documents": {
            **packed,
            "cu_seq_lens_q": bounds,
            "cu_seq_lens_k": bounds,
            "max_length_q": longest,
            "max_length_k": longest,
        },
        "mask": packed,
    }


def make_step(folder: Path, name: str, size: dict[str, int], batch: dict[str, Any], device: str) -> Any:
    """One optimiser step as the trainer takes it."""
    from train_step import build
    from transformers import Trainer, TrainingArguments

    from holdfast.training.document_attention import use_document_attention
    from holdfast.training.mixin import RetentionMixin

    class BenchTrainer(RetentionMixin, Trainer):
        """The mixin over plain Trainer, so that the benchmark runs where neither TRL nor datasets is installed."""

    model = build(size, device)
    model.config.max_position_embeddings = batch["input_ids"].shape[1]
    if name == "documents" and not use_document_attention(model):
        raise SystemExit("attention within documents was refused for this model")
    arguments = TrainingArguments(
        output_dir=str(folder),
        report_to="none",
        save_strategy="no",
        max_steps=1000,
        dataloader_pin_memory=False,
        disable_tqdm=True,
        bf16=device == "cuda",
    )
    rows = [{"input_ids": batch["input_ids"][0].tolist(), "labels": batch["labels"][0].tolist()}]
    trainer = BenchTrainer(model=model, args=arguments, train_dataset=rows)
    trainer.create_optimizer_and_scheduler(1000)
    trainer.state.max_steps = 1000
    items = (batch["labels"][:, 1:] != -100).sum().to(trainer.args.device)

    def step() -> None:
        trainer.training_step(trainer.model, dict(batch), items)
        trainer._clip_grad_norm(trainer.model)
        trainer.optimizer.step()
        trainer.model.zero_grad()
        trainer.state.global_step += 1

    return step


def wasted(window: int, documents: int = 20_000) -> dict[str, Any]:
    """Empty share of the windows, ours and TRL's, on the same lengths."""
    from holdfast.data.packing import pack

    lengths = lengths_of_news(documents)
    found: dict[str, Any] = {"documents": documents, "ours": pack(lengths, window).info.wasted, "trl": float("nan")}
    try:
        from datasets import Dataset, disable_progress_bars
        from trl import pack_dataset
    except ImportError:
        return found  # a machine without them
    disable_progress_bars()
    rows = Dataset.from_dict({"input_ids": [[0] * int(n) for n in lengths]})
    packed = pack_dataset(rows, window, "bfd_split")
    found["trl"] = 1 - int(lengths.sum()) / (len(packed) * window)
    return found


if __name__ == "__main__":
    sys.exit(main())
