"""How fast the start model's own samples are drawn, against transformers' bare `generate`.

    python benchmarks/self_replay.py              # 23M parameters; the table
    python benchmarks/self_replay.py --check      # exit 1 where a bar falls short
    python benchmarks/self_replay.py --quick      # under a minute: a smaller model
    python benchmarks/self_replay.py --save FILE  # the figures as JSON

bare     `model.generate`, sampling at temperature 1 in batches of the same size, nothing kept
drawn    `self_replay` from beginning to end: the weights' hash, sampling, filters, the file, the mixture; bar: 0.9 of
         the bare rate
found    the same samples again, as a second run of a sweep finds them; bar: a tenth of the time of drawing them

Rates are tokens that were written a second; on a CPU a second of the process's own time, which neighbours on the
machine do not lengthen. Arms take turns within a round; ratios are medians over rounds of the ratio within a round.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from machine import device_name, hardware, synchronize
from train_step import SIZES, build

RATE, FOUND = 0.9, 0.1


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 where a bar falls short")
    parser.add_argument("--quick", action="store_true", help="under a minute: a smaller model, shorter samples")
    parser.add_argument("--rounds", type=int, default=None, metavar="N", help="timed rounds (5; 3 with --quick)")
    parser.add_argument("--save", type=Path, default=None, metavar="FILE", help="write the figures as JSON")
    options = parser.parse_args(arguments)
    device = device_name()
    size = SIZES["small" if options.quick else "default"]
    batches, length = (2, 32) if options.quick else (3, 128)
    at_once, rounds = 32 if device == "cpu" else 256, options.rounds or (3 if options.quick else 5)

    rows = measured(size, device, batches=batches, length=length, at_once=at_once, rounds=rounds)
    machine = hardware(device)
    print(
        f"Llama-architecture model {size}, {batches} batches of {at_once} samples of {length} tokens, {rounds} rounds\n"
        f"{machine}; torch {torch.__version__}\n"
    )
    print(f"{'arm':<10}{'tokens / s':>12}{'of bare':>10}{'range':>18}{'bar':>8}")
    for row in rows:
        bar = f"{row['bar']:.2f}" if row["bar"] else ""
        spread = f"{row['low']:.2f} - {row['high']:.2f}"
        print(f"{row['arm']:<10}{row['tokens_per_second']:>12,.0f}{row['ratio']:>10.3f}{spread:>18}{bar:>8}")
    short = [
        f"{row['arm']}: {row['ratio']:.3f} of the bare rate; bar {row['bar']:g}"
        for row in rows
        if row["bar"] and row["ratio"] < row["bar"]
    ]
    if options.save:
        from holdfast.support.files import write_json

        found = {"benchmark": "self_replay", "hardware": machine, "torch": torch.__version__, "size": size}
        asked = {"batches": batches, "at_once": at_once, "length": length, "rounds": rounds}
        write_json(options.save, {**found, **asked, "rates": rows})
    for line in short:
        print(f"falls short: {line}")
    return int(options.check and bool(short))


def measured(
    size: dict[str, int], device: str, *, batches: int, length: int, at_once: int, rounds: int
) -> list[dict[str, Any]]:
    """Tokens a second of each arm, and ratios to the bare one.

    Args:
        size: of the model.
        device: where it is.
        batches, at_once, length: how much is drawn.
        rounds: those that count; one more comes before.
    """
    from holdfast.retention.methods.self_replay import SelfReplay

    model = build(size, device).eval()
    model.generation_config.eos_token_id = None  # samples of one length, in all arms
    samples = batches * at_once
    seconds: dict[str, list[float]] = {"bare": [], "drawn": [], "found": []}
    with tempfile.TemporaryDirectory() as folder:
        rows = new_rows(samples * (length + 1))
        for number in range(rounds + 1):
            ways = {"max_new_tokens": length, "batch_size": at_once, "samples": samples, "fraction": 0.5}
            plain = SelfReplay(**ways, seed=number, cache_dir=f"{folder}/{number}")
            arms = {
                "bare": lambda: bare(model, batches, at_once, length),
                "drawn": lambda m=plain: m.training_data(rows, host_of(model, folder)),
                "found": lambda m=plain: m.training_data(rows, host_of(model, folder)),  # after it was drawn
            }
            turn = number % 2
            first = ["bare", "drawn"]
            for name in [*first[turn:], *first[:turn], "found"]:
                clock = time.process_time if device == "cpu" else time.perf_counter
                began = clock()
                arms[name]()
                synchronize(device)
                if number:
                    seconds[name].append(clock() - began)
    tokens = samples * length
    bars = {"drawn": RATE, "found": RATE / FOUND}
    found = []
    for name, taken in seconds.items():
        ratios = [b / s for b, s in zip(seconds["bare"], taken, strict=True)]
        found.append(
            {
                "arm": name,
                "tokens_per_second": statistics.median(tokens / s for s in taken),
                "ratio": statistics.median(ratios),
                "low": min(ratios),
                "high": max(ratios),
                "bar": bars.get(name),
            }
        )
    return found


def bare(model: Any, batches: int, at_once: int, length: int) -> None:
    """What one would write without holdfast."""
    ids = torch.ones(at_once, 1, dtype=torch.long, device=model.device)
    for _ in range(batches):
        made = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0, max_new_tokens=length, pad_token_id=0
        )
        assert made.shape == (at_once, length + 1)


class Words:
    """As much of a tokenizer as drawing asks for; nothing ends a sample."""

    bos_token_id, eos_token_id, pad_token_id = 1, None, 0

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        """Any text that is not blank."""
        return "text"


def host_of(model: Any, folder: str) -> Any:
    """A run's host, made as a run makes it, with the hash of the weights."""
    from transformers import TrainingArguments

    from holdfast.training.data_services import StartModel, TrainerDataServices

    args = TrainingArguments(output_dir=folder, report_to="none", use_cpu=model.device.type == "cpu", bf16=False)
    start = StartModel(model, adapter=None, first=True)

    def never(name: str) -> Any:
        raise AssertionError(name)

    own: dict[str, Any] = {"prepare": never, "new_rows": (), "say": lambda text: None}
    return TrainerDataServices(start, processing_class=Words(), args=args, **own)


def new_rows(tokens: int) -> Any:
    """New data of about so many tokens."""
    from holdfast.data.mixing import tokenised_rows

    count = math.ceil(tokens / 256)
    return tokenised_rows([[5] * 256] * count, [0] * count)


if __name__ == "__main__":
    sys.exit(main())
