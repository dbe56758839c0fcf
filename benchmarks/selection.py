"""What selecting passages costs: scoring beside the model's bare forward pass, cutting beside scoring.

    python benchmarks/selection.py                 # 17M and 1M parameters; the table
    python benchmarks/selection.py --check         # exit 1 where a stated bar falls short
    python benchmarks/selection.py --quick         # under a minute: 1M parameters only, fewer rounds
    python benchmarks/selection.py --save FILE     # the figures as JSON

Scoring. Tokens a second of `score_passages` (reading ids from the scratch file, batches, scores into the ledger) over
those of `model(input_ids)` on random ids of the same batch shapes. Arms take turns within a round; the ratio is the
median over rounds of the ratio within a round. Padding counts for neither arm's tokens. The bare pass makes logits of
every position, padding too, and takes no log-softmax. At 1M parameters the head costs as much as the backbone, so that
the log-softmax is seen; the bar is on 17M.

Before the first score. Cutting and tokenising the embedded corpus's texts, and setting down their passages, equal ones
once, as a share of the time that the 1M model takes to score as many tokens. There is no bar on it.
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
from machine import device_name, hardware

from evaluation import SIZES, make_model, take_turns

RATE = 0.9
LENGTH = 512


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 where a bar falls short")
    parser.add_argument("--quick", action="store_true", help="under a minute: a small model, 3 rounds")
    parser.add_argument("--rounds", type=int, default=None, help="timed rounds (5; 3 with --quick)")
    parser.add_argument("--threads", type=int, default=None, help="threads on a CPU (PyTorch's choice)")
    parser.add_argument("--save", type=Path, default=None, metavar="FILE", help="write the figures as JSON")
    options = parser.parse_args(arguments)
    rounds = options.rounds or (3 if options.quick else 5)
    if options.threads:
        torch.set_num_threads(options.threads)
    device, figures = device_name(), []
    for name in ("small",) if options.quick else ("small", "default"):
        model, tokenizer = make_model(SIZES[name], device)
        tokens = {"small": 20_000, "default": 12_000}[name]
        figures.append({"size": name, **scoring(model, tokenizer, tokens, rounds, device)})
        if name == "small":
            size = 2_000_000 if options.quick else 6_000_000
            before = before_scoring(tokenizer, figures[0]["ours"], rounds, size=size)
    machine = hardware(device)
    print(f"{rounds} rounds, passages of at most {LENGTH} tokens\n{machine}; torch {torch.__version__}\n")
    print(f"{'scoring, tokens/s':<22}{'ours':>12}{'forward':>12}{'ratio':>8}{'range':>16}{'bar':>6}{'padding':>9}")
    short = []
    for f in figures:
        spread, judged = f"{f['low']:.2f} - {f['high']:.2f}", f["size"] == "default"
        bar = f"{RATE:.2f}" if judged else ""
        print(
            f"{f['arm']:<22}{f['ours']:>12,.0f}{f['peer']:>12,.0f}{f['ratio']:>8.3f}{spread:>16}{bar:>6}"
            f"{f['padding']:>9.1%}"
        )
        if judged and f["ratio"] < RATE:
            short.append(f"scoring, {f['arm']}: {f['ratio']:.3f} of the forward pass's rate, the bar is {RATE}")
    print(f"\n{'before scoring':<34}{'tokens/s':>12}{'share of scoring at 1M':>26}")
    for name, own in before.items():
        print(f"{name:<34}{own['rate']:>12,.0f}{own['share']:>26.3f}")
    if options.save:
        from holdfast.support.files import write_json

        record = {"benchmark": "selection", "hardware": machine, "torch": torch.__version__, "rounds": rounds}
        write_json(options.save, {**record, "scoring": figures, "before": before, "short": short})
    if options.check and short:
        print("\nShort of the bars:\n" + "\n".join(f"  {line}" for line in short), file=sys.stderr)
        return 1
    return 0


def texts() -> list[str]:
    """Documents of the embedded corpus, of some hundred to some thousand tokens."""
    from holdfast.papers.worlds.embedded import embedded_corpus

    prose = "\n".join(embedded_corpus().prose_train)
    lengths = np.random.default_rng(0).lognormal(7.5, 0.8, size=100_000).astype(int)
    ends = np.minimum(np.cumsum(lengths), len(prose))
    return [prose[a:b] for a, b in zip([0, *ends], ends, strict=False) if b - a > 400]


def scoring(model: Any, tokenizer: Any, tokens: int, rounds: int, device: str) -> dict[str, Any]:
    """Tokens a second of ours and of the bare forward pass."""
    from holdfast.data.select.passages import Passages, cut
    from holdfast.data.select.scores import batches, score_passages
    from holdfast.models import Loaded
    from holdfast.runs.selecting import scorer_of

    parameters = sum(p.numel() for p in model.parameters())
    scorer = scorer_of(Loaded(model=model, tokenizer=tokenizer, identity={"name": "a benchmark"}), max_length=LENGTH)
    with tempfile.TemporaryDirectory() as folder, Passages(Path(folder)) as passages:
        for number, text in enumerate(texts()):
            for passage in cut([text], tokenizer, LENGTH - scorer.bos)[0]:
                if len(passage.ids) >= 64:
                    passages.add(passage, source="", document=number)
            if sum(passages.tokens) > tokens:
                break
        planned = list(batches(passages, scorer.batch_tokens - scorer.bos))
        shapes = [(len(b), passages.tokens[b[0]] + scorer.bos) for b in planned]
        ids = torch.randint(2, 500, (scorer.batch_tokens + LENGTH,), device=device)
        count = 0

        def ours() -> None:
            nonlocal count
            count += 1
            score_passages(passages, scorer, Path(folder) / f"{count}.jsonl")

        def bare() -> None:
            with torch.no_grad():
                for rows, width in shapes:
                    model(input_ids=ids[: rows * width].view(rows, width), use_cache=False)

        seconds = take_turns(ours, bare, rounds, device)
        every = sum(passages.tokens)
    ratios = [b / a for a, b in seconds]
    middle = [statistics.median(column) for column in zip(*seconds, strict=True)]
    return {
        "arm": f"{parameters / 1e6:.0f}M parameters",
        "ours": every / middle[0],
        "peer": every / middle[1],
        "ratio": statistics.median(ratios),
        "low": min(ratios),
        "high": max(ratios),
        "padding": sum(rows * width for rows, width in shapes) / (every + scorer.bos * len(passages)) - 1,
        "passages": len(passages),
        "tokens": every,
        "batch_tokens": scorer.batch_tokens,
    }


def before_scoring(tokenizer: Any, scored: float, rounds: int, *, size: int) -> dict[str, dict[str, float]]:
    """`{step: {"rate": tokens/s, "share": of the time that scoring takes}}`.

    Args:
        tokenizer: of the model that scores.
        scored: tokens a second that it scores.
        rounds: timed rounds.
        size: characters of text at least.
    """
    from holdfast.data.select.passages import Passages, cut

    documents = texts()
    while sum(map(len, documents)) < size:
        documents += documents
    starts = range(0, len(documents), 64)
    pieces = [piece for start in starts for own in _cut(documents, start, tokenizer, cut) for piece in own]
    tokens = sum(len(piece.ids) for piece in pieces)

    def cut_all() -> None:
        for start in starts:
            _cut(documents, start, tokenizer, cut)

    def add_all() -> None:
        with tempfile.TemporaryDirectory() as folder, Passages(Path(folder)) as passages:
            for number, piece in enumerate(pieces):
                passages.add(piece, source="", document=number)

    seconds = {}
    for name, step in {"cutting and tokenising": cut_all, "equal passages, scratch files": add_all}.items():
        times = []
        for _ in range(rounds):
            began = time.perf_counter()
            step()
            times.append(time.perf_counter() - began)
        seconds[name] = statistics.median(times)
    return {n: {"rate": tokens / s, "share": s * scored / tokens} for n, s in seconds.items()}


def _cut(found: list[str], start: int, tokenizer: Any, cut: Any) -> Any:
    return cut(found[start : start + 64], tokenizer, LENGTH - 1)


if __name__ == "__main__":
    sys.exit(main())
