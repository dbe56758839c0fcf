"""Fixtures that write run folders as training and evaluation would leave them (see `synthetic_runs`)."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import SOURCE_LOST, SOURCE_NOISE, comparison, distances, metric_lines, perplexity, record

from holdfast.records.comparison import Comparison
from holdfast.records.run import RunFolder
from holdfast.support.files import write_jsonl

MakeRun = Callable[..., RunFolder]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """`make_run(name, comparisons=..., metrics=..., **record fields)` writes a folder and returns it."""

    def make(
        name: str = "run",
        /,
        *,
        comparisons: Sequence[Comparison] | None = None,
        metrics: Sequence[dict[str, Any]] | None = None,
        **changes: Any,
    ) -> RunFolder:
        folder = RunFolder(tmp_path / name)
        folder.write(record(**changes))
        if metrics is None:
            metrics = metric_lines()
        if metrics:
            write_jsonl(folder.metrics_file, metrics)
        if comparisons is None:
            comparisons = [comparison(), comparison(**SOURCE_LOST), comparison(**SOURCE_NOISE)]
        if comparisons:
            folder.write_comparisons(comparisons)
        return folder

    return make


@pytest.fixture
def make_arm(make_run: MakeRun) -> MakeRun:
    """An arm with per-document rows whose corpus figures are exactly those of its comparisons.

    Every document changes by the arm's mean plus its own noise, so a bootstrap has something to resample.
    """

    def make(
        name: str,
        *,
        source: float,
        target: float,
        retention: list[dict[str, Any]],
        documents: int = 200,
        scale: float = 1.0,
        **changes: Any,
    ) -> RunFolder:
        rng = random.Random(f"noise of {name}")
        base = random.Random(5)
        comparisons, evaluations = [], []
        for suite, text, level, change in (("source", "prose", 2.9, source), ("target", "answers", 3.2, target)):
            start, result = [], []
            for i in range(documents):
                tokens = base.randint(50, 400)
                nats = tokens * (level + base.gauss(0, 0.4))
                moved = nats + tokens * (change + rng.gauss(0, 0.15))
                row = {"doc": f"{suite}-{i}", "tokens": tokens, "bytes": 4 * tokens}
                start.append({**row, "nats": nats})
                result.append({**row, "nats": moved})
            before, after = (sum(r["nats"] for r in rows) / sum(r["tokens"] for r in rows) for rows in (start, result))
            half = 1.96 * 0.15 / math.sqrt(documents)
            difference = after - before
            comparisons.append(
                comparison(
                    suite=suite,
                    name=text,
                    n=documents,
                    before=before,
                    after=after,
                    difference=difference,
                    interval=(difference - half, difference + half),
                )
            )
            evaluations += [
                ("start", perplexity(suite, text, before, documents), start),
                ("result", perplexity(suite, text, after, documents), result),
            ]
        folder = make_run(
            name, name=name, comparisons=comparisons, retention=retention, distance=distances(scale=scale), **changes
        )
        for which, evaluation, rows in evaluations:
            folder.evaluated(which).write(evaluation, rows)
        return folder

    return make
