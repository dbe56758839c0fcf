"""Benchmarks through lm-evaluation-harness: a model in memory, one entry of the plan, rows and figures out.

The harness builds the prompts, asks the model and applies filters and metrics; its name for a figure stays ("exact_match,strict-match"; the
filter "none" is left out). What is added: figures with intervals from per-sample rows, a group as one figure over all its questions, one progress
bar instead of several, and no traces: the model's train / eval flags, the tokenizer's padding token, the random states and the harness's log level
are as before.

A group's figure is the mean over all questions of its subtasks. (The harness averages MMLU in the same way, by size; some other groups average
subtasks, which this does not do.)

Metrics that are no mean over questions (corpus BLEU, Matthews correlation) are reported as the harness computes them, without interval, and cannot
be compared sample by sample.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import ConfigError, ModelError
from holdfast.evaluation.estimates import TEXT_FIGURES, estimate, figure_for
from holdfast.evaluation.modes import evaluation_mode
from holdfast.evaluation.suite import TaskEntry
from holdfast.results import Metric

_ROLLING = {"word_perplexity": "words", "byte_perplexity": "bytes", "bits_per_byte": "bytes"}
"""Metrics of rolling log-likelihood: the harness gives (log-likelihood, weight) a document."""


@dataclass(frozen=True, kw_only=True)
class TaskScores:
    """What one entry of the plan came to."""

    rows: list[dict[str, Any]]
    """One a question, in order: `{"doc": hash, "prompt": hash, "<metric>": float, ...}`, with "task" for a group."""
    metrics: dict[str, Metric]
    primary: str
    settings: dict[str, Any]
    """What the harness settled on: examples shown, task versions, subtasks."""
    notes: list[str] = field(default_factory=list)


def run_task(
    model: Any,
    tokenizer: Any,
    entry: TaskEntry,
    *,
    batch_size: int = 8,
    confidence: float = 0.95,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> TaskScores:
    """Runs one task or group.

    Args:
        model: a Hugging Face causal LM, PEFT-wrapped or not, on any device.
        tokenizer: its tokenizer, with a BOS or EOS token.
        entry: what to run.
        batch_size: requests a forward pass; results depend on it in the last digits, so keep it over models that are compared.
        confidence: level of the intervals.
        seed: of few-shot examples, sampled generation and resampling.
        progress: called with (requests done, requests in all).

    Raises:
        ConfigError: no such task, or no such metric. DataError: its data is missing or does not fit.
        ModelError: the tokenizer lacks what the task needs.
    """
    from lm_eval.evaluator import evaluate
    from lm_eval.models.huggingface import HFLM

    from holdfast.evaluation.perplexity import resolve_window
    from holdfast.evaluation.tasks import load_tasks, wants_hub

    _check_tokenizer(tokenizer, entry)
    with ExitStack() as stack:
        stack.enter_context(_quiet_harness(progress))
        if not wants_hub(entry):
            stack.enter_context(_offline())
        stack.enter_context(_own_random_state(model, seed))
        tasks = load_tasks(entry)
        for task in tasks.values():
            if task.config.num_fewshot is None:
                task.set_config(key="num_fewshot", value=0)
            task.set_fewshot_seed(seed=seed)
        stack.enter_context(evaluation_mode(model))
        stack.enter_context(_padding_token(tokenizer))
        window, _ = resolve_window(model)
        lm = HFLM(pretrained=model, tokenizer=tokenizer, backend="causal", batch_size=batch_size, max_length=window)
        results = evaluate(
            lm=lm,
            task_dict={"tasks": tasks},
            limit=entry.limit,
            bootstrap_iters=0,
            log_samples=True,
            apply_chat_template=entry.apply_chat_template,
            fewshot_as_multiturn=True,
        )
    assert results is not None, "only rank 0 of a distributed harness run has results, and none is set up here"
    return _scores(results, tasks, entry, confidence=confidence, seed=seed)


def check_task(tokenizer: Any, entry: TaskEntry) -> None:
    """Builds the task and its data without running it.

    Raises:
        ConfigError, DataError, ModelError: as `run_task` would.
    """
    from holdfast.evaluation.tasks import load_tasks, wants_hub

    _check_tokenizer(tokenizer, entry)
    with ExitStack() as stack:
        stack.enter_context(_quiet_harness(None))
        if not wants_hub(entry):
            stack.enter_context(_offline())
        load_tasks(entry)


def _check_tokenizer(tokenizer: Any, entry: TaskEntry) -> None:
    if tokenizer.bos_token_id is None and tokenizer.eos_token_id is None:
        raise ModelError(
            "Expected a tokenizer with a BOS or an EOS token, which tasks put before a text without context; this one has neither. Set one."
        )
    if entry.apply_chat_template and not getattr(tokenizer, "chat_template", None):
        raise ModelError(
            f"'{entry.name}' asks for the chat template, but the tokenizer has none. Set `apply_chat_template: false` or use another tokenizer."
        )


# ------------------------------------------------------------------------------------------------- rows and figures


def _scores(results: Mapping[str, Any], tasks: Mapping[str, Any], entry: TaskEntry, *, confidence: float, seed: int) -> TaskScores:
    rows: list[dict[str, Any]] = []
    better: dict[str, bool] = {}
    whole: dict[str, float] = {}
    for name, task in tasks.items():
        means = {metric for metric, function in task.aggregation().items() if getattr(function, "__name__", "") in ("mean", "nanmean")}
        by_doc: dict[Any, dict[str, Any]] = {}
        for sample in results["samples"][name]:
            row = by_doc.setdefault(sample["doc_id"], {"doc": sample["doc_hash"], "prompt": sample["prompt_hash"]})
            if len(tasks) > 1:
                row["task"] = name
            for metric in sample["metrics"]:
                label = metric if sample["filter"] == "none" else f"{metric},{sample['filter']}"
                better.setdefault(label, bool(task.higher_is_better().get(metric, True)))
                value = sample[metric]
                if metric in _ROLLING and isinstance(value, tuple):
                    row.update({"nats": -float(value[0]), _ROLLING[metric]: int(value[1])})
                elif metric in means and _is_scalar(value):
                    row[label] = float(value)
                else:
                    whole[label] = float(results["results"][name].get(f"{metric},{sample['filter']}", float("nan")))
        rows.extend(by_doc.values())
    metrics: dict[str, Metric] = {}
    for label, higher in better.items():
        figure = figure_for(label, rows, higher_is_better=higher, unit=_unit(label))
        if figure is not None:
            value, interval = estimate(figure, rows, confidence=confidence, seed=seed)
            metrics[label] = Metric(
                value=value, n=len(rows), unit=figure.unit, higher_is_better=figure.higher_is_better, interval=interval, confidence=confidence
            )
        elif len(tasks) == 1 and label in whole:
            metrics[label] = Metric(value=whole[label], n=len(rows), unit=_unit(label), higher_is_better=higher, confidence=confidence)
    if not metrics:
        raise ConfigError(f"The subtasks of '{entry.task}' share no metric that is a mean over questions. List them one by one.")
    settings = {
        "num_fewshot": _same_or_all({name: task.config.num_fewshot for name, task in tasks.items()}),
        "task_version": _same_or_all({name: task.VERSION for name, task in tasks.items()}),
        "subtasks": sorted(tasks) if len(tasks) > 1 else [],
    }
    notes = []
    if entry.data is not None and entry.fewshot_data is None and settings["num_fewshot"]:
        notes.append("Few-shot examples come from the evaluated file itself, without the question asked.")
    return TaskScores(rows=rows, metrics=metrics, primary=_primary(metrics, entry), settings=settings, notes=notes)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, (int, float)) or getattr(value, "shape", None) == ()


def _unit(label: str) -> str:
    metric = label.split(",")[0]
    if metric in TEXT_FIGURES:
        return TEXT_FIGURES[metric].unit
    return "accuracy" if metric.startswith("acc") else metric


def _primary(metrics: Mapping[str, Metric], entry: TaskEntry) -> str:
    if entry.metric is not None:
        chosen = next((m for m in metrics if m == entry.metric or m.split(",")[0] == entry.metric), None)
        if chosen is None:
            raise ConfigError(f"The task '{entry.task}' has no metric '{entry.metric}'. It has: {', '.join(metrics)}.")
        return chosen
    for wanted in ("acc", "exact_match", "bits_per_byte"):
        chosen = next((m for m in metrics if m.split(",")[0] == wanted), None)
        if chosen is not None:
            return chosen
    return next(iter(metrics))


def _same_or_all(values: Mapping[str, Any]) -> Any:
    distinct = list(values.values())
    return distinct[0] if all(v == distinct[0] for v in distinct) else dict(values)


# -------------------------------------------------------------------------------------------------- leaving no traces


class _Bar:
    """Stands in for tqdm inside the harness: counts go to one callback, nothing is printed."""

    report: Callable[[int, int], None] | None = None

    def __init__(self, iterable: Any = None, *_: Any, total: int | None = None, **__: Any) -> None:
        self.iterable = iterable
        self.total = total
        self.n = 0

    def __iter__(self) -> Iterator[Any]:
        return iter(self.iterable)

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def update(self, n: int = 1) -> None:
        self.n += n
        if self.report is not None and self.total:
            self.report(self.n, self.total)

    def close(self) -> None:
        return None

    def set_description(self, *_: Any, **__: Any) -> None:
        return None

    set_postfix = set_description


@contextmanager
def _quiet_harness(progress: Callable[[int, int], None] | None) -> Iterator[None]:
    """The harness's log at errors only, its bars into `progress`, the bars of `datasets` off; all of it restored."""
    import datasets
    import lm_eval.api.model
    import lm_eval.api.task
    import lm_eval.models.huggingface

    bar = type("_ReportingBar", (_Bar,), {"report": staticmethod(progress) if progress is not None else None})
    modules = [m for m in (lm_eval.api.model, lm_eval.api.task, lm_eval.models.huggingface) if hasattr(m, "tqdm")]
    originals = [m.tqdm for m in modules]
    log = logging.getLogger("lm_eval")
    level = log.level
    showed = datasets.are_progress_bars_disabled()
    log.setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    for module in modules:
        module.tqdm = bar
    try:
        yield
    finally:
        for module, original in zip(modules, originals, strict=True):
            module.tqdm = original
        if not showed:
            datasets.enable_progress_bars()
        log.setLevel(level)


@contextmanager
def _offline() -> Iterator[None]:
    """Hub libraries refuse the network inside: an entry with local data must not depend on it, and asking costs seconds without one."""
    import datasets.config
    import huggingface_hub.constants

    holders: list[Any] = [datasets.config, huggingface_hub.constants]
    before = [holder.HF_HUB_OFFLINE for holder in holders]
    variable = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = "1"
    for holder in holders:
        holder.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        for holder, value in zip(holders, before, strict=True):
            holder.HF_HUB_OFFLINE = value
        if variable is None:
            del os.environ["HF_HUB_OFFLINE"]
        else:
            os.environ["HF_HUB_OFFLINE"] = variable


@contextmanager
def _own_random_state(model: Any, seed: int) -> Iterator[None]:
    """Seeds every generator that a task may draw from, and puts their states back: training must not notice an evaluation."""
    import numpy as np
    import torch

    devices = [model.device] if model.device.type == "cuda" else []
    python, legacy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=devices):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(legacy)


@contextmanager
def _padding_token(tokenizer: Any) -> Iterator[None]:
    """The harness sets a padding token for good, or adds one to the vocabulary; inside it is EOS or BOS, outside what it was."""
    if tokenizer.pad_token_id is not None:
        yield
        return
    tokenizer.pad_token = tokenizer.eos_token if tokenizer.eos_token is not None else tokenizer.bos_token
    try:
        yield
    finally:
        tokenizer.pad_token = None
