"""Updates and studies of the instruction residual as the commands would leave them: records with evaluation folders,
without models.

The paper's suite has the paper's printed figures a little moved, so that tables and plots look as a real study's would.
"""

from __future__ import annotations

import dataclasses
import json
import random
import re
from collections.abc import Mapping, Sequence
from html import unescape
from pathlib import Path
from typing import Any

from holdfast.papers.residual import printed_figures
from holdfast.records.comparison import Comparison
from holdfast.records.evaluation import Evaluation, Metric
from holdfast.records.residual import ModelPair, ResidualRecord, StudiedModel
from holdfast.support.files import to_jsonable
from recorded import FOLDER, recorded

SIZES = {
    "ifeval": 541,
    "mmlu": 14042,
    "mmlu_pro": 12032,
    "gsm8k": 1319,
    "winogrande": 1267,
    "hellaswag": 10042,
    "arc_easy": 2376,
    "piqa": 1838,
    "truthfulqa_mc2": 817,
}
SUITES = {"ifeval": "learn", "mmlu": "learn", "mmlu_pro": "learn", "gsm8k": "learn"}


def share(value: float, n: int, unit: str = "accuracy") -> Metric:
    half = 1.96 * (max(value * (1 - value), 0.01) / n) ** 0.5
    return Metric(value=value, n=n, unit=unit, higher_is_better=True, interval=(value - half, value + half))


def nats(value: float, n: int = 400, half: float = 0.02) -> Metric:
    return Metric(value=value, n=n, unit="nats/token", higher_is_better=False, interval=(value - half, value + half))


def evaluation(
    suite: str, name: str, metrics: Mapping[str, Metric], *, model: str = "m", kind: str = "task", **more: Any
) -> Evaluation:
    primary = next(iter(metrics))
    settings = {"num_fewshot": 0}
    return Evaluation(
        suite=suite,
        name=name,
        kind=kind,
        primary=primary,
        metrics=dict(metrics),
        settings=settings,
        model={"name": model},
        key=name,
        **more,
    )


def write_evaluation(folder: Path, found: Evaluation) -> None:
    """As `EvaluationFolder.write` would, without rows and without waiting for the disk."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{found.suite}.{found.name}.json").write_text(json.dumps(to_jsonable(found)))


def write_paper_suite(folder: Path, values: Sequence[float], *, model: str = "m") -> None:
    """The nine entries of the suite with sixteen figures in percent, and their averages."""
    by_entry: dict[str, dict[str, Metric]] = {}
    for row, value in zip(printed_figures.rows(), values, strict=True):
        by_entry.setdefault(row.entry, {})[row.key] = share(
            value / 100, SIZES[row.entry], "exact_match" if "exact" in row.key else "accuracy"
        )
    for entry, metrics in by_entry.items():
        write_evaluation(folder, evaluation(SUITES.get(entry, "keep"), entry, metrics, model=model))
    for name, part in (("sub_average_1", values[:8]), ("sub_average_2", values[8:15]), ("average", values)):
        mean = sum(part) / len(part) / 100
        metric = Metric(
            value=mean, n=len(part), unit="share", higher_is_better=True, interval=(mean - 0.008, mean + 0.008)
        )
        write_evaluation(folder, evaluation("average", name, {"average": metric}, model=model, kind="average"))


def write_world(folder: Path, *, old: float, new: float, following: float, prose: float, news: float) -> None:
    """What the embedded world measures: knowledge old and new, instruction following, text old and new."""
    write_evaluation(
        folder,
        evaluation(
            "keep", "old_knowledge", {"acc": share(old, 400), "nats_per_token": nats(1.4)}, kind="multiple_choice"
        ),
    )
    write_evaluation(folder, evaluation("learn", "new_knowledge", {"acc": share(new, 200)}, kind="multiple_choice"))
    following_of = {
        "prompt_level_strict_acc": share(following, 300),
        "inst_level_strict_acc": share(min(1, following + 0.04), 300),
    }
    write_evaluation(folder, evaluation("keep", "instructions", following_of, kind="instructions"))
    write_evaluation(folder, evaluation("keep", "prose", {"nats_per_token": nats(prose)}, kind="perplexity"))
    write_evaluation(folder, evaluation("learn", "new_text", {"nats_per_token": nats(news)}, kind="perplexity"))


def compared(
    name: str,
    before: float,
    after: float,
    *,
    half: float = 0.02,
    suite: str = "keep",
    metric: str = "acc",
    unit: str = "accuracy",
    higher: bool = True,
    primary: bool = True,
) -> Comparison:
    difference = after - before
    return Comparison(
        suite=suite,
        name=name,
        metric=metric,
        unit=unit,
        higher_is_better=higher,
        n=300,
        before=before,
        after=after,
        difference=difference,
        interval=(difference - half, difference + half),
        p_value=0.5 if abs(difference) < half else 0.001,
        test="paired bootstrap",
        primary=primary,
        flips_lost=12 if unit == "accuracy" else None,
        flips_gained=20 if unit == "accuracy" else None,
    )


WORLD = {"old": 0.98, "new": 0.27, "following": 0.02, "prose": 2.10, "news": 3.05}


def update(folder: Path, **changes: Any) -> ResidualRecord:
    """A finished update of the embedded world's models, with the optional arm."""
    for path, content in json.loads((FOLDER / "update_evaluations.json").read_text()).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(json.dumps(content))
    (folder / "runs" / "base-new").mkdir(parents=True, exist_ok=True)
    (folder / "runs" / "base-new" / "report.html").write_text("<!doctype html>")
    return dataclasses.replace(recorded("update", ResidualRecord), **changes)


HUB = {
    ("llama-3", "base"): "meta-llama/Meta-Llama-3-8B",
    ("llama-3", "instruct"): "meta-llama/Meta-Llama-3-8B-Instruct",
    ("llama-3.1", "base"): "meta-llama/Llama-3.1-8B",
    ("llama-3.1", "instruct"): "meta-llama/Llama-3.1-8B-Instruct",
}
PAPERS = {
    ("llama-3", "base"): "L3b",
    ("llama-3", "instruct"): "L3i",
    ("llama-3.1", "base"): "L3.1b",
    ("llama-3.1", "instruct"): "L3.1i",
}


def moved_values(start: str, tokens: int, residual: str | None, seed: int = 0) -> list[float]:
    """The paper's figures of a model, each moved by up to a point."""
    column = printed_figures.find_column(start, tokens, residual)
    assert column is not None, (start, tokens, residual)
    rng = random.Random(f"{start} {tokens} {residual} {seed}")
    return [min(99.0, max(1.0, v + rng.uniform(-1, 1))) for v in column.values]


def study(folder: Path, *, seeds: Sequence[int] = (0,), **changes: Any) -> ResidualRecord:
    """Three budgets by base, instruct and base + residual of Llama 3; siblings with Llama 3.1; DocChat with both
    residuals."""
    models: list[StudiedModel] = []

    def add(
        name: str,
        label: str,
        start: str,
        family: str,
        key: str,
        *,
        millions: int = 0,
        residual: str | None = None,
        seed: int = 0,
    ) -> None:
        path = {"derived": "cerebras/Llama3-DocChat-1.0-8B"}.get(start) or HUB[family, start]
        made = bool(millions) or residual is not None
        # The paper's continued columns are of 5 epochs at most; what it says of FLOPs is 6 x parameters x tokens.
        model = StudiedModel(
            name=name,
            label=label,
            start=start,
            family=family,
            tokens=millions * 1_000_000 + (1234 if millions else 0),
            budget=millions * 1_000_000 or None,
            residual=residual,
            scale=1.0 if residual is not None else None,
            seed=seed,
            path=f"models/{name}" if made else path,
            evaluations=f"evaluations/{name}",
            flops=6 * 8.03e9 * millions * 1e6,
            seconds=1100.0 * millions / 10,
            parameters=8_030_000_000,
            state="complete",
        )
        models.append(model)
        donor = None if residual is None else PAPERS[residual, "instruct"]
        write_paper_suite(
            folder / "evaluations" / name,
            moved_values(key, millions * 1_000_000, donor, seed),
            model=path if not made else name,
        )

    add("l3-base", "Llama 3 base", "base", "llama-3", "L3b")
    add("l3-instruct", "Llama 3 instruct", "instruct", "llama-3", "L3i")
    for seed in seeds:
        more = f"-s{seed}" if len(seeds) > 1 else ""
        for millions in (100, 500, 1000):
            add(
                f"l3-base-{millions}M{more}",
                f"Llama 3 base + {millions}M",
                "base",
                "llama-3",
                "L3b",
                millions=millions,
                seed=seed,
            )
            add(
                f"l3-instruct-{millions}M{more}",
                f"Llama 3 instruct + {millions}M",
                "instruct",
                "llama-3",
                "L3i",
                millions=millions,
                seed=seed,
            )
            label = f"Llama 3 base + {millions}M + residual"
            add(
                f"l3-base-{millions}M-residual{more}",
                label,
                "base",
                "llama-3",
                "L3b",
                millions=millions,
                residual="llama-3",
                seed=seed,
            )
    add("l31-base", "Llama 3.1 base", "base", "llama-3.1", "L3.1b")
    add("l31-instruct", "Llama 3.1 instruct", "instruct", "llama-3.1", "L3.1i")
    add("l3-base-31", "Llama 3 base + 3.1 residual", "base", "llama-3", "L3b", residual="llama-3.1")
    add("l31-base-3", "Llama 3.1 base + 3 residual", "base", "llama-3.1", "L3.1b", residual="llama-3")
    add("docchat", "DocChat", "derived", "docchat", "DocChat")
    add("docchat-3", "DocChat + 3 residual", "derived", "docchat", "DocChat", residual="llama-3")
    add("docchat-31", "DocChat + 3.1 residual", "derived", "docchat", "DocChat", residual="llama-3.1")
    pairs = [
        ModelPair(
            before="l3-instruct",
            after="l3-base-1000M-residual",
            question="Does the residual bring instruction following back?",
            comparisons=[
                compared("ifeval", 0.353, 0.3752, suite="learn", metric="prompt_level_strict_acc", half=0.03),
                compared("gsm8k", 0.7506, 0.7316, suite="learn", metric="exact_match,flexible-extract", half=0.015),
                compared("piqa", 0.7856, 0.8041, half=0.01),
            ],
        ),
    ]
    fields: dict[str, Any] = {
        "name": "residual-llama-3",
        "kind": "study",
        "status": "finished",
        "created": "2025-11-20T09:12:44Z",
        "finished": "2025-11-22T01:31:02Z",
        "config": {"suite": "instruction_residual", "budgets": [100_000_000, 500_000_000, 1_000_000_000]},
        "families": ["llama-3", "llama-3.1"],
        "models": models,
        "pairs": pairs,
        "corpus": {"documents": 1_960_000, "tokens": 1_274_000_000, "held_out": 2000, "skipped": {}},
        "versions": {"holdfast": "0.2.0"},
        "hardware": {"device": "NVIDIA H100"},
    }
    return ResidualRecord(**{**fields, **changes})


def text_of(page: Path) -> str:
    """A page's text without scripts, styles and tags."""
    html = re.sub(r"<(script|style).*?</\1>", " ", page.read_text(encoding="utf-8"), flags=re.S)
    html = re.sub(r'<wbr>|<span class="whole">(.*?)</span>', r"\1", html)
    text = unescape(re.sub(r"<[^>]+>", " ", html))
    return re.sub(r"\s+", " ", text.replace("\u200b", ""))


def with_state(record: ResidualRecord, name: str, **changes: Any) -> ResidualRecord:
    """The record with one model changed."""
    models = [dataclasses.replace(m, **changes) if m.name == name else m for m in record.models]
    return dataclasses.replace(record, models=models)
