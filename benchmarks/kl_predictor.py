"""Does the KL divergence on the new task's data say how much a model forgets, better than the learning rate does?

    python benchmarks/kl_predictor.py                      # both tracks; goes on where it was stopped
    python benchmarks/kl_predictor.py --track code         # one of them
    python benchmarks/kl_predictor.py --table              # the table of what is there
    python benchmarks/kl_predictor.py --quick              # a minute or two: the machinery only
    python benchmarks/kl_predictor.py --save FILE          # the points as JSON

The toy tracks `code` and `math` (docs/embedded_world.md): a base of a million parameters is tuned in RUNS ways at
several learning rates and with two seeds, 400 steps each. After a quarter, half and all of the steps the model is held
against the base. A *point* is one run at one of these moments.

forgetting   the rise of the loss on held-out text that the base knows, nats per token, mean over three kinds
predictors   forward KL(base || tuned) and reverse KL(tuned || base) on the answers of the new task's held-out rows,
             nats per token; the logarithm of the peak learning rate; how far the new task's loss fell; the distance of
             the weights from the base's (L2)

Tracking is Spearman's rank correlation of a predictor with forgetting. Rules, written before any run:

tracks better       the correlation of the forward KL is above that of the logarithm of the rate, with the whole 95 %
                    interval of the difference, on both tracks
does not            the whole interval of the difference lies below 0 on one track, or on both within 0.1 of 0
cannot tell         all else

Two sets of points are judged apart. *Direct*: runs of direct fine-tuning, which differ in rate, seed and moment alone.
*All*: those of retention methods, too, for which the rate says nothing. Intervals are a bootstrap over runs (all
moments of a run stay together), 2,000 draws. The same differences stand beside for every other predictor.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr

RUNS_FOLDER = Path("runs/kl_predictor")
TRACKS = {"code": ("functions", ("prose", "facts", "problems")), "math": ("problems", ("prose", "code", "facts"))}
"""Toy setting -> what is learnt, and what should be kept."""
SEEDS = (0, 1)
MOMENTS = (0.25, 0.5, 1.0)
STEPS = 400
RATES = (1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3)
METHOD_RATES = (2e-4, 8e-4)
METHODS: dict[str, Any] = {
    "label annealing 0.3": {"label_annealing": {"weight": 0.3}},
    "label annealing 3": {"label_annealing": {"weight": 3.0}},
    "L2 0.01": {"l2": {"coefficient": 0.01}},
    "replay 0.1": {"replay": {"data": "${replay}", "fraction": 0.1}},
}
PREDICTORS = ("forward KL", "reverse KL", "log rate", "learnt", "distance")
BASELINE, MAIN = "log rate", "forward KL"
CLOSE = 0.1
DRAWS = 2000


def runs() -> list[dict[str, Any]]:
    """Every run of a track: method, learning rate, seed."""
    listed = []
    for seed in SEEDS:
        for rate in RATES:
            listed.append({"method": "direct", "rate": rate, "seed": seed})
        for method in METHODS:
            for rate in METHOD_RATES:
                listed.append({"method": method, "rate": rate, "seed": seed})
    return listed


# ------------------------------------------------------------------------------------------ measuring


def token_rows(tokenizer: Any, file: str, most: int) -> list[tuple[list[int], int]]:
    """Held-out rows as tokens, each with the number of leading tokens that are not scored: the prompt's, at least 1."""
    from holdfast.support.files import read_jsonl

    rows = []
    for row in itertools.islice(read_jsonl(file), most):
        prompt = tokenizer(row["prompt"])["input_ids"] if "prompt" in row else []
        text = row["completion"] if "prompt" in row else row["text"]
        rows.append((prompt + tokenizer(text)["input_ids"], max(1, len(prompt))))
    return rows


@torch.no_grad()
def log_probabilities(model: Any, rows: Sequence[tuple[list[int], int]]) -> list[torch.Tensor]:
    """Of every row `[scored tokens, vocabulary]` float32, of the tokens that are scored."""
    result = []
    for tokens, skip in rows:
        logits = model(input_ids=torch.tensor([tokens])).logits[0, skip - 1 : -1]
        result.append(logits.float().log_softmax(-1))
    return result


def loss(rows: Sequence[tuple[list[int], int]], logs: Sequence[torch.Tensor]) -> float:
    """Mean over the scored tokens, nats."""
    total, count = 0.0, 0
    for (tokens, skip), log in zip(rows, logs, strict=True):
        targets = torch.tensor(tokens[skip:])
        total -= float(log.gather(1, targets[:, None]).double().sum())
        count += len(targets)
    return total / count


def divergence(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> float:
    """KL(first || second), mean over the scored tokens, nats."""
    total, count = 0.0, 0
    for mine, theirs in zip(first, second, strict=True):
        total += float((mine.exp() * (mine - theirs)).double().sum())
        count += len(mine)
    return total / count


class Meter:
    """Holds models against the base of a track."""

    def __init__(self, track: str, names: Mapping[str, str], most: int) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        learn, keep = TRACKS[track]
        self.load: Callable[[str], Any] = AutoModelForCausalLM.from_pretrained
        self.base = self.load(names["base"]).eval()
        tokenizer = AutoTokenizer.from_pretrained(names["base"])
        self.new = token_rows(tokenizer, names[f"{learn}_heldout"], most)
        self.known = [token_rows(tokenizer, names[f"{kind}_heldout"], most) for kind in keep]
        self.base_new = log_probabilities(self.base, self.new)
        self.base_known = [loss(rows, log_probabilities(self.base, rows)) for rows in self.known]

    def measure(self, folder: str) -> dict[str, float]:
        """Forgetting and what may predict it, of the model in a folder."""
        model = self.load(folder).eval()
        logs = log_probabilities(model, self.new)
        rises = []
        for rows, before in zip(self.known, self.base_known, strict=True):
            rises.append(loss(rows, log_probabilities(model, rows)) - before)
        squares = 0.0
        for mine, theirs in zip(model.parameters(), self.base.parameters(), strict=True):
            squares += float((mine - theirs).double().square().sum())
        return {
            "forgetting": sum(rises) / len(rises),
            "forward KL": divergence(self.base_new, logs),
            "reverse KL": divergence(logs, self.base_new),
            "learnt": loss(self.new, self.base_new) - loss(self.new, logs),
            "distance": math.sqrt(squares),
        }


def points_of_run(
    run: Mapping[str, Any], names: Mapping[str, str], meter: Meter, steps: int, folder: Path
) -> list[dict[str, Any]]:
    """Trains a run and holds its checkpoints against the base."""
    from rich.console import Console

    from holdfast.runs.config import train_config
    from holdfast.runs.run import train
    from holdfast.training.checkpoint_folders import checkpoints_in

    shutil.rmtree(folder, ignore_errors=True)
    method = json.loads(json.dumps(METHODS.get(run["method"])).replace("${replay}", names["replay"]))
    config = train_config(
        model_name_or_path=names["base"],
        dataset_name=names["train"],
        retention=None if method is None else [method],
        max_steps=steps,
        learning_rate=run["rate"],
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=min(20, steps // 4),
        per_device_train_batch_size=4,
        packing=True,
        packing_strategy="wrapped",
        max_length=96,
        gradient_checkpointing=False,
        save_steps=steps // 4,
        save_total_limit=None,
        seed=run["seed"],
        use_cpu=True,
        output_dir=str(folder),
    )
    train(config, console=Console(quiet=True))
    points = []
    for checkpoint in checkpoints_in(folder):
        moment = int(str(checkpoint).rpartition("-")[2]) / steps
        if moment in MOMENTS:
            figures = meter.measure(str(checkpoint))
            points.append({**run, "moment": moment, "log rate": math.log(run["rate"]), **figures})
    if len(points) != len(MOMENTS):
        raise SystemExit(f"{folder}: expected checkpoints at {MOMENTS} of the run, got {len(points)} of them")
    shutil.rmtree(folder)
    return points


def measure_track(track: str, *, quick: bool) -> None:
    """Makes the points of a track that are not there yet."""
    from rich.console import Console

    from holdfast.papers.worlds.toy_settings import make_setting

    folder = RUNS_FOLDER / track
    names = make_setting(track, folder / "data", quick=quick, console=Console(file=sys.stderr))
    wanted = runs()[:3] if quick else runs()
    steps = 8 if quick else STEPS
    meter = None
    for number, run in enumerate(wanted):
        file = folder / f"points-{run['method'].replace(' ', '_')}-{run['rate']:g}-{run['seed']}.json"
        if file.is_file():
            continue
        if meter is None:
            meter = Meter(track, names, 8 if quick else 120)
        points = points_of_run(run, names, meter, steps, folder / "run")
        file.write_text(json.dumps(points, indent=1) + "\n", encoding="utf-8")
        print(f"{track}: {number + 1} of {len(wanted)} runs", file=sys.stderr, flush=True)


def read_points(track: str) -> list[dict[str, Any]]:
    """All points of a track that are there."""
    points = []
    for file in sorted((RUNS_FOLDER / track).glob("points-*.json")):
        points += json.loads(file.read_text(encoding="utf-8"))
    return points


# -------------------------------------------------------------------------------------------- judging


def tracking(points: Sequence[Mapping[str, Any]], predictor: str) -> float:
    """Spearman's correlation of a predictor with forgetting."""
    value = spearmanr([p[predictor] for p in points], [p["forgetting"] for p in points]).statistic
    return float(value)


def differences(points: Sequence[Mapping[str, Any]], seed: int = 0) -> dict[str, tuple[float, float, float]]:
    """By predictor: its correlation less the baseline's, with the ends of its 95 % interval (bootstrap over runs)."""
    by_run: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for point in points:
        by_run.setdefault((point["method"], point["rate"], point["seed"]), []).append(point)
    groups = list(by_run.values())
    generator = np.random.default_rng(seed)
    drawn: dict[str, list[float]] = {predictor: [] for predictor in PREDICTORS}
    for _ in range(DRAWS):
        sample: list[Mapping[str, Any]] = []
        for place in generator.integers(len(groups), size=len(groups)):
            sample += groups[place]
        baseline = tracking(sample, BASELINE)
        for predictor in PREDICTORS:
            drawn[predictor].append(tracking(sample, predictor) - baseline)
    result = {}
    for predictor in PREDICTORS:
        low, high = np.nanquantile(drawn[predictor], [0.025, 0.975])
        value = tracking(points, predictor) - tracking(points, BASELINE)
        result[predictor] = (value, float(low), float(high))
    return result


def verdict(intervals: Sequence[tuple[float, float, float]]) -> str:
    """`tracks better`, `does not` or `cannot tell` of a predictor's differences, one a track (module docstring)."""
    if all(low > 0 for _, low, _ in intervals):
        return "tracks better"
    below = any(high < 0 for _, _, high in intervals)
    close = all(low >= -CLOSE and high <= CLOSE for _, low, high in intervals)
    return "does not" if below or close else "cannot tell"


def table(points: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Correlations, differences and verdicts as Markdown.

    Args:
        points: by track.
    """
    lines = []
    for name in ("direct", "all"):
        chosen = {track: [p for p in own if name == "all" or p["method"] == "direct"] for track, own in points.items()}
        compared = {track: differences(own) for track, own in chosen.items()}
        counts = ", ".join(f"{track} {len(own)} points" for track, own in chosen.items())
        lines += [
            f"\n{name}: {counts}\n",
            "| predictor | " + " | ".join(f"{t} | less {BASELINE}" for t in points) + " | |",
        ]
        lines.append("|---" * (2 + 2 * len(points)) + "|")
        for predictor in PREDICTORS:
            cells = [predictor]
            for track, own in chosen.items():
                value, low, high = compared[track][predictor]
                cells += [f"{tracking(own, predictor):+.3f}", f"{value:+.3f} [{low:+.3f}, {high:+.3f}]"]
            whole = len(points) == len(TRACKS) and predictor != BASELINE
            cells.append(verdict([compared[track][predictor] for track in points]) if whole else "")
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--track", choices=list(TRACKS), help="one of them alone")
    parser.add_argument("--table", action="store_true", help="the table of what is there, and nothing else")
    parser.add_argument("--quick", action="store_true", help="a minute or two: the machinery only")
    parser.add_argument("--save", type=Path, metavar="FILE", help="writes the points as JSON")
    options = parser.parse_args(arguments)
    chosen = [options.track] if options.track else list(TRACKS)
    for track in [] if options.table else chosen:
        measure_track(track, quick=options.quick)
    points = {track: own for track in chosen if (own := read_points(track))}
    if not points:
        print("No run is there.")
        return 1
    print(table(points))
    if options.save is not None:
        options.save.write_text(json.dumps(points, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.exit(main())
