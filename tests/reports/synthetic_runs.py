"""Run folders as training and evaluation would leave them, written through the record classes."""

from __future__ import annotations

import dataclasses
import io
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console

from holdfast.records.comparison import Comparison
from holdfast.records.evaluation import Evaluation, Metric
from holdfast.records.run import RunFolder, RunRecord
from holdfast.support.files import write_jsonl
from recorded import recorded


def comparison(**changes: Any) -> Comparison:
    """A target perplexity that got better; every field can be changed."""
    fields: dict[str, Any] = {
        "suite": "learn",
        "name": "answers",
        "metric": "nats_per_token",
        "unit": "nats/token",
        "higher_is_better": False,
        "n": 400,
        "before": 3.2145,
        "after": 2.8021,
        "difference": -0.4124,
        "interval": (-0.4391, -0.3857),
        "p_value": 0.0002,
        "test": "paired bootstrap",
    }
    return Comparison(**{**fields, **changes})


SOURCE_LOST = {
    "suite": "keep",
    "name": "prose",
    "n": 500,
    "before": 2.9013,
    "after": 2.9876,
    "difference": 0.0863,
    "interval": (0.0791, 0.0935),
    "p_value": 0.0004,
}
SOURCE_NOISE = {
    "suite": "keep",
    "name": "arc_easy",
    "metric": "acc",
    "unit": "accuracy",
    "higher_is_better": True,
    "n": 570,
    "before": 0.4912,
    "after": 0.4860,
    "difference": -0.0052,
    "interval": (-0.021, 0.0105),
    "p_value": 0.61,
    "test": "McNemar (exact)",
    "flips_lost": 21,
    "flips_gained": 18,
}


def metric_lines(steps: int = 240, *, kl: bool = True, seed: int = 0) -> list[dict[str, Any]]:
    """A plausible log: a loss that falls, a learning rate that warms up and decays."""
    rng = random.Random(seed)
    lines = []
    for i in range(1, steps + 1):
        at = i / steps
        ce = 2.75 + 1.6 * math.exp(-6 * at) + rng.gauss(0, 0.07)
        line = {
            "step": i * 5,
            "epoch": 2 * at,
            "ce": ce,
            "token_accuracy": 0.55 - 0.2 * math.exp(-5 * at) + rng.gauss(0, 0.01),
        }
        line |= {
            "learning_rate": 1e-5 * min(1, i / 20) * 0.5 * (1 + math.cos(math.pi * at)),
            "grad_norm": 1 + 3 * math.exp(-8 * at) + abs(rng.gauss(0, 0.1)),
        }
        line |= {"tokens": i * 5 * 4096, "seconds": i * 3.1, "loss": ce}
        if kl:
            line["kl"] = 0.001 + 0.11 * (1 - math.exp(-5 * at)) + abs(rng.gauss(0, 0.004))
            line["loss"] = ce + line["kl"]
        lines.append(line)
        if i % 48 == 0:
            lines.append({"step": i * 5, "epoch": 2 * at, "eval_loss": 2.85 + 1.4 * math.exp(-6 * at)})
    return lines


def record(**changes: Any) -> RunRecord:
    return dataclasses.replace(recorded("run", RunRecord), **changes)


def perplexity(suite: str, name: str, value: float, n: int) -> Evaluation:
    metric = Metric(value=value, n=n, unit="nats/token", higher_is_better=False, interval=(value - 0.05, value + 0.05))
    return Evaluation(
        suite=suite,
        name=name,
        kind="perplexity",
        primary="nats_per_token",
        metrics={"nats_per_token": metric},
        settings={},
        model={"name": "m"},
        key="k",
    )


def write_run(
    path: Path,
    *,
    comparisons: Sequence[Comparison] | None = None,
    metrics: Sequence[dict[str, Any]] | None = None,
    **changes: Any,
) -> RunFolder:
    """A run's folder at `path`; `changes` are fields of its record."""
    folder = RunFolder(path)
    folder.write(record(**changes))
    lines = metric_lines() if metrics is None else metrics
    if lines:
        write_jsonl(folder.metrics_file, lines)
    if comparisons is None:
        comparisons = [comparison(), comparison(**SOURCE_LOST), comparison(**SOURCE_NOISE)]
    if comparisons:
        folder.write_comparisons(comparisons)
    return folder


class Buffer(io.StringIO):
    """What a terminal writes into."""

    encoding: ClassVar[str] = "utf-8"


class AsciiBuffer(Buffer):
    encoding = "ascii"


def shown(show: Callable[[Console], None], width: int = 80, *, ascii_only: bool = False, terminal: bool = True) -> str:
    """What `show` prints on a terminal of this width, or into a pipe."""
    file = AsciiBuffer() if ascii_only else Buffer()
    show(Console(file=file, width=width, force_terminal=terminal, color_system=None))
    return file.getvalue()
