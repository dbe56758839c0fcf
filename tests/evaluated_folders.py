"""Builders of evaluation folders, for tests of what compares them: rows are plain values, and no model is involved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.records.evaluation import Evaluation, EvaluationFolder, Metric

SHAPES = {
    "acc": ("accuracy", True),
    "acc_norm": ("accuracy", True),
    "exact_match": ("exact_match", True),
    "nats_per_token": ("nats/token", False),
    "bits_per_byte": ("bits/byte", False),
    "perplexity": ("perplexity", False),
    "brier": ("brier", False),
    "bleu": ("bleu", True),
}
TEXT = ("nats_per_token", "bits_per_byte", "perplexity")


def write(
    folder: Path,
    suite: str,
    name: str,
    rows: Sequence[Mapping[str, Any]],
    *,
    metrics: Iterable[str] = ("acc",),
    kind: str = "task",
    model: str = "",
    versions: Mapping[str, str] | None = None,
    values: Mapping[str, float] | None = None,
    **settings: Any,
) -> EvaluationFolder:
    """One evaluation with its rows; figures in the record are means, or what `values` says."""
    found = EvaluationFolder(folder)
    made = {}
    for metric in metrics:
        column = [float(r[metric]) for r in rows if metric in r]
        value = (values or {}).get(metric, sum(column) / len(column) if column else 1.0)
        unit, higher = SHAPES.get(metric.split(",")[0], (metric, True))
        made[metric] = Metric(value=value, n=len(rows), unit=unit, higher_is_better=higher)
    evaluation = Evaluation(
        suite=suite,
        name=name,
        kind=kind,
        primary=next(iter(made)),
        metrics=made,
        settings=settings,
        model={"name": model, "hash": model or str(folder)},
        key="k",
        versions=dict(versions or {}),
    )
    found.write(evaluation, rows)
    return found


def answers(values: Iterable[float], **more: Any) -> list[dict[str, Any]]:
    """Rows with `acc`; `more` names further columns, each a function of it."""
    return [
        {"doc": f"d{i}", "prompt": f"p{i}", "acc": float(v), **{k: f(v) for k, f in more.items()}}
        for i, v in enumerate(values)
    ]


def texts(nats: Iterable[float], tokens: int = 10, size: int = 40) -> list[dict[str, Any]]:
    """Rows of documents, all equally long."""
    return [{"doc": f"d{i}", "nats": float(v), "tokens": tokens, "bytes": size} for i, v in enumerate(nats)]


def write_average(
    folder: Path, members: Sequence[tuple[str, str, str]], *, name: str = "mean", metric: str = "acc"
) -> EvaluationFolder:
    """An average of `(suite, name, metric)` members in the suite "source"."""
    listed = [{"suite": s, "name": n, "metric": m} for s, n, m in members]
    return write(folder, "keep", name, [], metrics=[metric], kind="average", members=listed)


def both(tmp_path: Path) -> tuple[EvaluationFolder, EvaluationFolder]:
    """The folders "before" and "after"."""
    return EvaluationFolder(tmp_path / "before"), EvaluationFolder(tmp_path / "after")


def right_or_wrong(seed: int, n: int = 60, share: float = 0.6) -> np.ndarray:
    """`[n]` answers, 1.0 with probability `share`."""
    return (np.random.default_rng(seed).random(n) < share).astype(float)
