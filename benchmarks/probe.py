"""What a cell of `holdfast probe` costs: one change and its measurement beside the measurement alone.

    python benchmarks/probe.py                 # 1M and 17M parameters; the table
    python benchmarks/probe.py --check         # exit 1 where a stated bar falls short
    python benchmarks/probe.py --quick         # under a minute: 1M parameters only, fewer rounds
    python benchmarks/probe.py --save FILE     # the figures as JSON

Time. A cell changes the model, measures 20,000 tokens of held-out text, and takes the change back; its peer is the same
evaluation of the model as it is. Arms take turns within a round; the ratio is the median over rounds of the ratio
within a round. The bar is on noise, whose cost does not depend on the text: the more text, the less it weighs.

Memory. The largest resident size of a process that measures once, and of one that measures under noise, in shares of
the weights in float32. A second model would be 1. Beside it what `undo` keeps.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from machine import device_name, hardware

from evaluation import SIZES, make_model, take_turns

SLOWER = 1.1
MEMORY = 0.25
TOKENS = 20_000
NOISE = 0.01


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 where a bar falls short")
    parser.add_argument("--quick", action="store_true", help="under a minute: a small model, 3 rounds")
    parser.add_argument("--rounds", type=int, default=None, help="timed rounds (5; 3 with --quick)")
    parser.add_argument("--threads", type=int, default=None, help="threads on a CPU (PyTorch's choice)")
    parser.add_argument("--save", type=Path, default=None, metavar="FILE", help="write the figures as JSON")
    parser.add_argument("--peak", choices=("plain", "noise"), default=None, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    device = device_name()
    if options.peak:
        print(json.dumps(peak(noise=options.peak == "noise", device=device)))
        return 0
    rounds = options.rounds or (3 if options.quick else 5)
    tokens = TOKENS // 4 if options.quick else TOKENS
    figures = []
    for name in ("small",) if options.quick else ("small", "default"):
        figures += cells(name, tokens, rounds, device)
    machine = hardware(device)
    print(f"{rounds} rounds, {tokens:,} tokens of text\n{machine}; torch {torch.__version__}\n")
    print(f"{'cell':<28}{'seconds':>10}{'plain':>10}{'ratio':>8}{'range':>16}{'bar':>6}")
    short = []
    for f in figures:
        judged = f["change"].startswith("noise")
        spread, bar = f"{f['low']:.2f} - {f['high']:.2f}", f"{SLOWER:.2f}" if judged else ""
        print(f"{f['arm']:<28}{f['ours']:>10.2f}{f['peer']:>10.2f}{f['ratio']:>8.3f}{spread:>16}{bar:>6}")
        if judged and f["ratio"] > SLOWER:
            short.append(f"{f['arm']}: {f['ratio']:.3f} of an evaluation's time, the bar is {SLOWER}")
    memory = None if options.quick else memory_of_noise(options.threads)
    if memory is not None:
        print(
            f"\nmemory beyond an evaluation's, of {memory['weights']:,} bytes of weights: {memory['share']:.3f} (bar "
            f"{MEMORY}); kept until the noise is off: {memory['kept']:.3f}"
        )
        if memory["share"] > MEMORY:
            short.append(f"noise takes {memory['share']:.2f} of the weights' memory more, the bar is {MEMORY}")
    if options.save:
        from holdfast.support.files import write_json

        record = {"benchmark": "probe", "hardware": machine, "torch": torch.__version__, "rounds": rounds}
        write_json(options.save, {**record, "tokens": tokens, "cells": figures, "memory": memory, "short": short})
    if options.check and short:
        print("\nShort of the bars:\n" + "\n".join(f"  {line}" for line in short), file=sys.stderr)
        return 1
    return 0


def text_of(tokenizer: Any, tokens: int) -> list[str]:
    """Documents of held-out prose with so many tokens in all."""
    from holdfast.papers.worlds.embedded import embedded_corpus

    found: list[str] = []
    held = 0
    while held < tokens:
        for text in embedded_corpus().prose_heldout:
            found.append(text)
            held += len(tokenizer(text)["input_ids"])
            if held >= tokens:
                break
    return found


def measuring(model: Any, tokenizer: Any, tokens: int, place: Path) -> Any:
    """A function that measures a plan anew, as a probe's cell does, under a change or under none."""
    import contextlib
    import itertools

    from holdfast.evaluation.probe.changes import Change, Material
    from holdfast.evaluation.runner import evaluate
    from holdfast.evaluation.suite import decode_evaluation
    from holdfast.models import Loaded
    from holdfast.records.evaluation import EvaluationFolder
    from holdfast.support.files import write_jsonl
    from holdfast.training.fresh_init import init_stds

    write_jsonl(place / "prose.jsonl", [{"text": text} for text in text_of(tokenizer, tokens)])
    plan, problems = decode_evaluation({"keep": [{"perplexity": str(place / "prose.jsonl"), "window": 512}]})
    assert not problems, problems
    numbers = itertools.count()
    material = Material(stds=init_stds(model))

    def measure(change: Change | None) -> None:
        number = next(numbers)
        folder, identity = EvaluationFolder(place / str(number)), {"name": "a benchmark", "hash": str(number)}
        with contextlib.nullcontext() if change is None else change.on(model, material):
            evaluate(Loaded(model=model, tokenizer=tokenizer, identity=identity), plan, folder=folder)

    return measure


def cells(size: str, tokens: int, rounds: int, device: str) -> list[dict[str, Any]]:
    """Seconds of each kind of cell, and of the evaluation alone."""
    from holdfast.evaluation.probe.changes import Noise, Prune, Quantize

    model, tokenizer = make_model(SIZES[size], device)
    parameters = sum(p.numel() for p in model.parameters())
    found = []
    with tempfile.TemporaryDirectory() as folder:
        measure = measuring(model, tokenizer, tokens, Path(folder))
        for change in (Noise(size=NOISE, seed=0), Quantize(label="int4"), Prune(size=0.3)):
            seconds = take_turns(lambda c=change: measure(c), lambda: measure(None), rounds, device)
            ratios = [a / b for a, b in seconds]
            ours, peer = (statistics.median(column) for column in zip(*seconds, strict=True))
            found.append(
                {
                    "arm": f"{change.name.partition('.seed')[0]}, {parameters / 1e6:.0f}M",
                    "change": change.name,
                    "parameters": parameters,
                    "ours": ours,
                    "peer": peer,
                    "ratio": statistics.median(ratios),
                    "low": min(ratios),
                    "high": max(ratios),
                }
            )
    return found


def peak(*, noise: bool, device: str) -> dict[str, float]:
    """Bytes: the largest resident size of this process after one measurement, of the weights, kept for undoing."""
    from holdfast.checkpoints.live import perturb_
    from holdfast.evaluation.probe.changes import Noise
    from holdfast.training.fresh_init import init_stds

    size = {**SIZES["default"], "width": 768, "layers": 8}
    model, tokenizer = make_model(size, device)
    kept = 0
    with tempfile.TemporaryDirectory() as folder:
        measure = measuring(model, tokenizer, 2_000, Path(folder))
        measure(None)
        if noise:
            measure(Noise(size=NOISE, seed=0))
        largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if noise:
        handle = perturb_(model, seed=0, scale=NOISE, stds=init_stds(model))
        kept = handle.bytes_kept
        handle.undo()
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    return {"largest": float(largest), "weights": float(weights), "kept": float(kept)}


def memory_of_noise(threads: int | None) -> dict[str, float]:
    """What noise takes beyond an evaluation, each in a process of its own."""
    found = {}
    for arm in ("plain", "noise"):
        command = [sys.executable, __file__, "--peak", arm, *(["--threads", str(threads)] if threads else [])]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found[arm] = json.loads(done.stdout.strip().splitlines()[-1])
    weights = found["noise"]["weights"]
    more = found["noise"]["largest"] - found["plain"]["largest"]
    return {"weights": int(weights), "share": more / weights, "kept": found["noise"]["kept"] / weights}


if __name__ == "__main__":
    sys.exit(main())
