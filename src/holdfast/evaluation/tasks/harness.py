"""Benchmarks through lm-evaluation-harness: a model in memory, one entry of the plan, rows and
figures out.

The harness builds the prompts, asks the model and applies filters and metrics; its name for a
figure stays ("exact_match,strict-match"; the filter "none" is left out). What is added: figures
with intervals from per-sample rows, a group as one figure over all its questions, one progress bar
instead of several, and no traces: the model's train / eval flags, the tokenizer's padding token,
the random states and the harness's log level are as before.

A group's figure is the mean over all questions of its subtasks. (The harness averages MMLU in the
same way, by size; some other groups average subtasks, which this does not do.)

Metrics that are no mean over questions (corpus BLEU, Matthews correlation) are reported as the
harness computes them, without interval, and cannot be compared sample by sample.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import math
import os
import random
import socket
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError, ModelError
from holdfast.evaluation.eval_mode import evaluation_mode
from holdfast.evaluation.groups import group_columns
from holdfast.evaluation.measures import Outcome, Report, Subject
from holdfast.evaluation.remarks import remarks_on_examples, remarks_on_part
from holdfast.evaluation.tasks.harness_metrics import ROLLING, label_of, leading, unit_of
from holdfast.evaluation.text.thoughts import refuse_open_thought
from holdfast.records.evaluation import Metric
from holdfast.statistics.estimates import Ratio, figure_for
from holdfast.support.environment import offline, replaced

if TYPE_CHECKING:
    from holdfast.evaluation.kinds.task import TaskEntry
    from holdfast.evaluation.tasks.harness_model import SharedPrefixLM

MOST_EXAMPLES = 20_000
"""Of those to choose from, how many are looked at for copies."""


def scores(entry: TaskEntry, tasks: dict[str, Any], on: Subject) -> Outcome:
    """Runs one task or group, see `Entry.scores`.

    Raises:
        ConfigError: no such metric.
        DataError: an option is empty or longer than the context.
    """
    from lm_eval.evaluator import evaluate

    with harness_model(entry, on) as lm:
        settle_examples(tasks, on)
        results = evaluate(
            lm=lm,
            task_dict={"tasks": tasks},
            limit=entry.limit,
            bootstrap_iters=0,
            log_samples=True,
            apply_chat_template=entry.apply_chat_template,
            fewshot_as_multiturn=True,
        )
    assert results is not None, (
        "lm_eval returns results on rank 0 only, and the model given here always has rank 0"
    )
    rows, figures = _rows_and_figures(results, tasks, entry)
    settings = settled(tasks, entry)
    if entry.data is not None and entry.fewshot_data is None and settings["num_fewshot"]:
        settings["notes"].append(
            "Few-shot examples come from the evaluated file, but never include the question that "
            "is asked."
        )
    settings["notes"] += lm.notes
    leads = _primary(figures, entry)
    return Outcome(rows=rows, figures=figures, settings=settings, leads=leads, broken=lm.broken)


@contextmanager
def harness_model(
    entry: TaskEntry, on: Subject, *, report: Report | None = None
) -> Iterator[SharedPrefixLM]:
    """The model as the harness asks it.

    Args:
        entry: what is asked.
        on: the model.
        report: of the requests; None: the subject's own.
    """
    from holdfast.evaluation.served import ServedModel
    from holdfast.evaluation.tasks.harness_model import ServedLM, SharedPrefixLM
    from holdfast.evaluation.text.perplexity import resolve_window

    _check_tokenizer(on.tokenizer)
    with (
        _hub_where_wanted(entry),
        evaluation_mode(on.model),
    ):
        window, _ = resolve_window(on.model)
        lm = ServedLM if isinstance(on.model, ServedModel) else SharedPrefixLM
        yield lm(
            on.model,
            on.tokenizer,
            batch_size=on.plan.batch_size,
            length=window,
            seed=on.plan.seed,
            progress=report or on.report,
            partial=on.partial,
            chat=entry.apply_chat_template,
        )


def settle_examples(tasks: Mapping[str, Any], on: Subject) -> None:
    """Settles how many examples tasks show, and by which seed they are drawn."""
    for task in tasks.values():
        if task.config.num_fewshot is None:
            task.set_config(key="num_fewshot", value=0)
        task.set_fewshot_seed(seed=on.plan.seed)


@contextmanager
def without_traces(model: Any, tokenizer: Any, *, seed: int) -> Iterator[None]:
    """The harness is quiet, random generators are seeded and put back, the tokenizer has a padding
    token meanwhile."""
    with _quiet_harness(), _own_random_state(model, seed), _padding_token(tokenizer):
        yield


def build_requests(task: Any, entry: TaskEntry, lm: Any) -> None:
    """Makes the task's requests (`task.instances`) as the harness's own evaluator does."""
    questions = len(task.eval_docs)
    chat = entry.apply_chat_template
    task.build_all_requests(
        limit=questions if entry.limit is None else min(entry.limit, questions),
        rank=0,
        world_size=1,
        apply_chat_template=chat,
        fewshot_as_multiturn=True,
        chat_template=lm.apply_chat_template if chat else None,
        tokenizer_name=lm.tokenizer_name if chat else "",
    )


def document_hash(doc: Any) -> str:
    """The hash by which the harness knows a question."""
    from lm_eval.utils import handle_non_serializable, hash_string

    return hash_string(
        json.dumps(doc, indent=2, default=handle_non_serializable, ensure_ascii=False)
    )


def settled(tasks: Mapping[str, Any], entry: TaskEntry) -> dict[str, Any]:
    """What the harness settled on once requests are made: examples shown, task versions, subtasks,
    and notes on the questions."""
    notes = []
    for name, task in tasks.items():
        remarks = remarks_on_part(task.eval_docs, entry.limit, setting="limit")
        if task.config.num_fewshot and not getattr(task, "multiple_input", 0):
            prompts = []
            for request in task.instances:
                if not request.idx:
                    prompts.append((str(request.args[0]), str(task.doc_to_text(request.doc))))
            pool = itertools.islice(task.fewshot_docs() or (), MOST_EXAMPLES)
            remarks += remarks_on_examples(prompts, (str(task.doc_to_text(doc)) for doc in pool))
        notes += [f"{name}: {text}" if len(tasks) > 1 else text for text in remarks]
    return {
        "notes": notes,
        "num_fewshot": _same_or_all(
            {name: task.config.num_fewshot for name, task in tasks.items()}
        ),
        "task_version": _same_or_all({name: task.VERSION for name, task in tasks.items()}),
        "subtasks": sorted(tasks) if len(tasks) > 1 else [],
    }


def load(entry: TaskEntry, tokenizer: Any) -> dict[str, Any]:
    """The entry's tasks by name, with their data.

    Args:
        entry: of a task.
        tokenizer: of the model.

    Raises:
        ConfigError: no such task, or one with images.
        DataError: its data is missing or does not fit.
        ModelError: the tokenizer lacks what the task needs.
    """
    from holdfast.evaluation.tasks.tasks import load_tasks

    _check_tokenizer(tokenizer)
    if entry.apply_chat_template and not getattr(tokenizer, "chat_template", None):
        raise ModelError(
            f"'{entry.name}' needs a chat template, but the tokenizer has none. Set "
            "`apply_chat_template: false` or use another tokenizer."
        )
    with _quiet_harness(), _hub_where_wanted(entry):
        tasks = load_tasks(entry)
    for name, task in tasks.items():
        if entry.apply_chat_template and getattr(task, "OUTPUT_TYPE", "") != "generate_until":
            refuse_open_thought(tokenizer, entry.path)
        if getattr(task, "MULTIMODAL", False) or _holds_images(task.eval_docs):
            raise ConfigError(
                f"The task '{name}' has images or sounds in its rows, but holdfast runs tasks as "
                "text only. For your own questions about images use `multiple_choice`, or run the "
                "harness itself (lm_eval --model hf-multimodal)."
            )
    return tasks


def _holds_images(docs: Any) -> bool:
    import datasets

    from holdfast.data import vision

    return isinstance(docs, datasets.Dataset) and bool(vision.unread_images(docs, ()))


def _check_tokenizer(tokenizer: Any) -> None:
    if tokenizer.bos_token_id is None and tokenizer.eos_token_id is None:
        raise ModelError(
            "The tokenizer has neither a BOS nor an EOS token. Tasks put one of them before a text "
            "without context. Set one of them."
        )


# --------------------------------------------------------------------------------- rows and figures


def _rows_and_figures(
    results: Mapping[str, Any], tasks: Mapping[str, Any], entry: TaskEntry
) -> tuple[list[dict[str, Any]], dict[str, Ratio | Metric]]:
    rows: list[dict[str, Any]] = []
    metrics: dict[str, _TaskMetric] = {}
    for name, task in tasks.items():
        rows += _rows_of_task(name, task, results, metrics, is_subtask=len(tasks) > 1)
    figures: dict[str, Ratio | Metric] = {}
    for label, metric in metrics.items():
        unit, higher = unit_of(label), metric.higher_is_better
        ratio = figure_for(label, rows, higher_is_better=higher, unit=unit)
        if ratio is not None:
            counts = f"{label}#"
            # no question has it, as where a package of the task's is not installed
            if ratio.denominator != counts or any(row[counts] for row in rows):
                figures[label] = ratio
        elif len(tasks) == 1 and metric.value is not None:
            figures[label] = Metric(
                value=metric.value, n=len(rows), unit=unit, higher_is_better=higher
            )
    if not figures:
        raise ConfigError(
            f"The subtasks of '{entry.task}' have no common metric that is a mean over questions. "
            "List the subtasks one by one."
        )
    return rows, figures


@dataclass(kw_only=True)
class _TaskMetric:
    """A metric of the harness."""

    higher_is_better: bool
    value: float | None = None
    """The harness's figure, where that is no mean over questions."""


def _rows_of_task(
    name: str,
    task: Any,
    results: Mapping[str, Any],
    metrics: dict[str, _TaskMetric],
    *,
    is_subtask: bool,
) -> list[dict[str, Any]]:
    """A task's questions with their figures; its metrics are added to `metrics`."""
    aggregations = {}
    for metric, function in task.aggregation().items():
        aggregations[metric] = getattr(function, "__name__", "")
    rows: dict[Any, dict[str, Any]] = {}
    for sample in results["samples"][name]:
        document, filtered_by = sample["doc_id"], sample["filter"]
        if document not in rows:
            rows[document] = _row(task, sample)
            if is_subtask:
                rows[document]["task"] = name
        for metric in sample["metrics"]:
            label = label_of(metric, filtered_by)
            if label not in metrics:
                metrics[label] = _TaskMetric(
                    higher_is_better=bool(task.higher_is_better().get(metric, True))
                )
            columns = _columns(metric, label, sample[metric], aggregations.get(metric, ""))
            if columns is None:
                metrics[label].value = float(
                    results["results"][name].get(f"{metric},{filtered_by}", math.nan)
                )
            else:
                rows[document].update(columns)
    return list(rows.values())


def _row(task: Any, sample: Mapping[str, Any]) -> dict[str, Any]:
    """A question's row without its metrics."""
    row = {"doc": sample["doc_hash"], "prompt": sample["prompt_hash"]}
    columns = question_and_answer(task, sample)
    if columns:  # the harness's hash is of the whole row, ids and all
        row["content"] = f"{columns.get('choices')}{columns['question']}"
    return {**row, **group_columns(sample.get("doc")), **columns}


def _columns(metric: str, label: str, value: Any, aggregation: str) -> dict[str, Any] | None:
    """What a question's figure is in its row; None where the metric is no mean over questions."""
    if metric in ROLLING and isinstance(value, tuple):
        return {"nats": -float(value[0]), ROLLING[metric]: int(value[1])}
    if aggregation == "nanmean" and _is_scalar(value):  # NaN: the question has no such figure
        is_missing = math.isnan(float(value))
        return {label: 0.0 if is_missing else float(value), f"{label}#": int(not is_missing)}
    if aggregation == "mean" and _is_scalar(value):
        return {label: float(value)}
    if isinstance(value, list) and value and set(map(type, value)) == {bool}:
        # several right / wrong parts a question, averaged over all of them (IFEval's)
        return {label: float(sum(value)), f"{label}#": len(value)}
    return None


def question_and_answer(task: Any, sample: Mapping[str, Any]) -> dict[str, Any]:
    """What was asked and what the model made of it, for people: see
    `holdfast.records.evaluation.Evaluation`."""
    doc = sample["doc"]
    text, target = task.doc_to_text(doc), sample["target"]
    kind = getattr(task, "OUTPUT_TYPE", "")
    if kind == "multiple_choice":
        choices = list(map(str, task.doc_to_choice(doc)))
        scores = [float(answer[0]) for answer in sample["filtered_resps"][: len(choices)]]
        if getattr(
            task, "multiple_input", 0
        ):  # the options are beginnings, and the text is what follows
            text, target = str(target).strip(), text
        gold = target
        if not isinstance(target, (int, list)):
            gold = choices.index(target) if target in choices else None
        answer = scores.index(max(scores)) if scores else None
        return {
            "question": str(text),
            "choices": choices,
            "loglikelihoods": scores,
            "gold": gold,
            "answer": answer,
        }
    if kind == "generate_until":
        outputs = sample["resps"][0]
        return {
            "question": str(text),
            "gold": target if isinstance(target, str) else str(target),
            "output": str(outputs[0]) if outputs else "",
        }
    return {}


def _is_scalar(value: Any) -> bool:
    return isinstance(value, (int, float)) or getattr(value, "shape", None) == ()


def _primary(figures: Mapping[str, Any], entry: TaskEntry) -> str:
    """The metric asked for, else the usual one."""
    preferred = () if entry.metric is None else (entry.metric,)
    lead = leading(figures, *preferred)
    if lead is None:
        raise ConfigError(
            f"The task '{entry.task}' has no metric '{entry.metric}'. It has: {', '.join(figures)}."
        )
    return lead


def _same_or_all(values: Mapping[str, Any]) -> Any:
    distinct = list(values.values())
    return distinct[0] if all(v == distinct[0] for v in distinct) else dict(values)


# -------------------------------------------------------------------------------- leaving no traces


@contextmanager
def _quiet_harness() -> Iterator[None]:
    """The harness's log at errors only, its bars and those of `datasets` off; all of it
    restored."""
    import lm_eval.api.model
    import lm_eval.api.task
    import lm_eval.models.huggingface
    from tqdm import tqdm

    from holdfast.support.environment import quiet_datasets

    def silent(*args: Any, **how: Any) -> Any:
        return tqdm(*args, **{**how, "disable": True})

    modules = [lm_eval.api.model, lm_eval.api.task, lm_eval.models.huggingface]
    log = logging.getLogger("lm_eval")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with (
            quiet_datasets(),
            replaced([module for module in modules if hasattr(module, "tqdm")], "tqdm", silent),
        ):
            yield
    finally:
        log.setLevel(level)


@functools.cache
def hub_answers(*, seconds: float = 5.0) -> bool:
    """Whether the hub's host can be reached, tried once a process. Without a network its clients
    try for 23 seconds for every data set before they give up; in their offline mode they look into
    their cache at once."""
    import huggingface_hub.constants

    if huggingface_hub.constants.HF_HUB_OFFLINE:
        return False
    if any(
        os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
    ):
        return True  # names are resolved and hosts reached by the proxy, if at all
    address = urllib.parse.urlsplit(huggingface_hub.constants.ENDPOINT)
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        with socket.create_connection((address.hostname or "", port), timeout=seconds):
            return True
    except OSError:
        return False


@contextmanager
def _hub_where_wanted(entry: TaskEntry) -> Iterator[None]:
    """The network as it is for an entry that may read the hub where that answers; none for any
    other entry."""
    with nullcontext() if entry.may_read_hub() and hub_answers() else offline():
        yield


@contextmanager
def _own_random_state(model: Any, seed: int) -> Iterator[None]:
    """Seeds every generator that a task may draw from, and puts their states back: training must
    not notice an evaluation."""
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
    """The harness sets a padding token for good, or adds one to the vocabulary; inside it is EOS or
    BOS, outside what it was."""
    token = tokenizer.eos_token if tokenizer.eos_token is not None else tokenizer.bos_token
    with (
        replaced([tokenizer], "pad_token", token)
        if tokenizer.pad_token_id is None
        else nullcontext()
    ):
        yield
