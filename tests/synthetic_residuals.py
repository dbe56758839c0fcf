"""Updates and studies of the instruction residual as the commands would leave them: records with evaluation folders,
without models.

The paper's suite has the paper's printed figures a little moved, so that tables and plots look as a real study's would.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from html import unescape
from pathlib import Path
from typing import Any

from holdfast.papers.residual import printed_figures
from holdfast.records.comparison import Comparison
from holdfast.records.evaluation import Evaluation, Metric
from holdfast.records.residual import ResidualRecord
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


def study(folder: Path, *, seeds: Sequence[int] = (0,), **changes: Any) -> ResidualRecord:
    """Three budgets by base, instruct and base + residual of Llama 3; siblings with Llama 3.1; DocChat with both
    residuals. Where there are several seeds, each has every trained model, with figures of its own."""
    record = recorded("residual_study", ResidualRecord)
    figures = json.loads((FOLDER / "residual_study_figures.json").read_text())
    models = []
    for model in record.models:
        for seed in seeds if model.budget else (0,):
            name = f"{model.name}-s{seed}" if model.budget and len(seeds) > 1 else model.name
            models.append(dataclasses.replace(model, name=name, seed=seed, evaluations=f"evaluations/{name}"))
            values = [value + 0.3 * seed for value in figures[model.name]]
            write_paper_suite(folder / "evaluations" / name, values, model=model.path)
    return dataclasses.replace(record, **{"models": models, **changes})


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
