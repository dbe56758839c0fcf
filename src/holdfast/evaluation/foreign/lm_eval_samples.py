"""The samples of one task of lm-evaluation-harness as rows, and its figures out of them.

Every figure of `results_*.json` is computed again from the samples. One that comes out the same is
a mean over samples (or a ratio of sums, of texts) and can be paired. One that does not is no mean
(corpus BLEU) and is left out by name, unless its aggregation is said to be the mean: then the
samples are not those of the results, which is an error.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.errors import DataError
from holdfast.evaluation.foreign.files import hash_of
from holdfast.evaluation.foreign.log import score_of
from holdfast.evaluation.groups import group_columns
from holdfast.evaluation.tasks.harness_metrics import ROLLING, label_of, unit_of
from holdfast.records.metrics import is_lower_better
from holdfast.statistics.estimates import Ratio, figure_for

Sample = Mapping[str, Any]

_MEANS = ("acc", "acc_norm", "exact_match")
"""Metrics that are means wherever nothing else is said."""
_NO_SCORES = "bypass"
"""The harness's metric of runs without scores (--predict_only)."""


@dataclass(frozen=True, kw_only=True)
class LoggedTask:
    """A task as the harness's results have it."""

    name: str
    file: Path
    """With the samples, for messages."""
    values: Mapping[str, Any]
    """Of `results`: "metric,filter" and its figure."""
    config: Mapping[str, Any]
    """Of `configs`."""
    higher_is_better: Mapping[str, bool | None]
    """By metric, as far as it is said."""
    n: int | None = None
    """Samples that were evaluated, where it is said."""

    @property
    def filters(self) -> list[str]:
        """Names of the filters that answers went through, in the order of the samples."""
        return [f["name"] for f in self.config.get("filter_list") or ()] or ["none"]

    def metrics(self) -> dict[str, tuple[str, str]]:
        """By label the metrics that have a figure, with their filters.

        Raises:
            DataError: there are no scores.
        """
        metrics = {}
        for key in self.values:
            metric, comma, filtered_by = key.partition(",")
            if comma and not metric.endswith("_stderr"):
                metrics[label_of(metric, filtered_by)] = (metric, filtered_by)
        if not metrics.keys() - {_NO_SCORES}:
            raise DataError(
                f"{self.name}: expected a metric in the results of {self.file.parent}, got "
                f"{', '.join(metrics) or 'none'}. Evaluate without --predict_only."
            )
        return metrics

    def aggregation(self, metric: str) -> str | None:
        """How a metric is formed of samples, where the task says so."""
        for about in self.config.get("metric_list") or ():
            if about.get("metric") == metric and isinstance(about.get("aggregation"), str):
                return str(about["aggregation"])
        return "mean" if metric in _MEANS else None

    def is_better_when_higher(self, metric: str) -> bool:
        """The metric's direction."""
        directions = [self.higher_is_better.get(metric)]
        for about in self.config.get("metric_list") or ():
            if about.get("metric") == metric:
                directions.append(about.get("higher_is_better"))
        for direction in directions:
            if isinstance(direction, bool):
                return direction
        return not is_lower_better(metric)


@dataclass(kw_only=True)
class TaskRows:
    """What came of the samples of one task."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    figures: dict[str, Ratio] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read_task(task: LoggedTask, samples: Sequence[Sample]) -> TaskRows:
    """A task's rows, and the figures that are formed of them.

    Raises:
        DataError: samples without documents, two of one id, scores that are none, or samples that
            the task's results were not made of.
    """
    by_filter = _by_filter(task, samples)
    documents = {sample["doc_id"] for sample in itertools.chain(*by_filter.values())}
    if task.n is not None and task.n != len(documents):
        raise DataError(
            f"{task.file}: expected {task.n:,} samples of {task.name}, as in the results, got "
            f"{len(documents):,}. The file is cut short or belongs to another run. Copy it again."
        )
    by_document: dict[Any, dict[str, Any]] = {}
    read = TaskRows()
    for label, (metric, filtered_by) in task.metrics().items():
        for sample in by_filter.get(filtered_by, ()):
            document = sample["doc_id"]
            if document not in by_document:
                by_document[document] = _row(task, sample)
            if metric in sample:
                by_document[document].update(_columns(task, label, metric, sample))
        rows = list(by_document.values())
        higher_is_better = task.is_better_when_higher(metric)
        ratio = figure_for(label, rows, higher_is_better=higher_is_better, unit=unit_of(label))
        figure = task.values[f"{metric},{filtered_by}"]
        value = math.nan
        if ratio is not None:
            value = float(ratio.of_sums(ratio.columns(rows).sum(0)))
        if ratio is not None and _agree(value, figure):
            read.figures[label] = ratio
        elif task.aggregation(metric) in ("mean", "nanmean"):
            raise DataError(
                f"{task.file}: expected samples of {task.name} whose mean {label} is {figure}, got "
                f"{len(rows)} {_mean_in_words(label, rows, value)}. The samples belong to another "
                "run, or were changed. Keep each results file beside its own samples."
            )
        else:
            read.notes.append(
                f"{label} ({figure}) is left out. It is not the mean of the samples' values, so "
                "it cannot be paired."
            )
    read.rows = list(by_document.values())
    return read


def _mean_in_words(label: str, rows: Sequence[dict[str, Any]], mean: float) -> str:
    missing = sum(not isinstance(row.get(label), float) for row in rows)
    return f"of which {missing} have no value" if missing else f"whose mean is {mean:g}"


def _agree(value: float, figure: Any) -> bool:
    """Whether a figure that follows from the rows is the harness's. What is not finite agrees with
    everything: the entry has failed."""
    if not isinstance(figure, (int, float)) or not math.isfinite(figure) or math.isnan(value):
        return True
    return math.isclose(value, figure, rel_tol=1e-6, abs_tol=1e-9)


def _by_filter(task: LoggedTask, samples: Sequence[Sample]) -> dict[str, list[Sample]]:
    """The samples by the filter that their answers went through, a sample once each. (Before 0.4.8
    samples do not name it; they stand there once a filter, in the order of filters.)"""
    by_filter: dict[str, list[Sample]] = {}
    times: dict[tuple[Any, str], int] = {}
    for number, sample in enumerate(samples, 1):
        document = sample.get("doc_id")
        if document is None or not (sample.get("doc") or sample.get("doc_hash")):
            raise DataError(
                f"{task.file}, sample {number}: expected 'doc_id' and 'doc', because samples "
                f"are paired by both, got {', '.join(sample) or 'nothing'}. Keep the files as "
                "--log_samples writes them."
            )
        filtered_by = sample.get("filter", "")
        before = times.get((document, filtered_by), 0)
        times[document, filtered_by] = before + 1
        possible = [filtered_by] if filtered_by else task.filters
        if before < len(possible):
            by_filter.setdefault(possible[before], []).append(sample)
    twice = []
    for (document, filtered_by), count in times.items():
        if count > (1 if filtered_by else len(task.filters)):
            twice.append(str(document))
    if twice:
        raise DataError(
            f"{task.file}: expected every doc_id once per filter, got {len(twice)} of them twice "
            f"or more: {', '.join(twice[:5])}{', ...' if len(twice) > 5 else ''}. Keep the samples "
            "of one run."
        )
    return by_filter


def _columns(task: LoggedTask, label: str, metric: str, sample: Sample) -> dict[str, Any]:
    """What a sample's figure is in its row; nothing where it is no number."""
    value = sample[metric]
    if metric in ROLLING and isinstance(value, list):
        return {"nats": -float(value[0]), ROLLING[metric]: int(value[1])}
    if isinstance(value, list):
        parts = value if value and set(map(type, value)) == {bool} else []
        # several right / wrong parts a question, averaged over all of them (IFEval's)
        return {label: float(sum(parts)), f"{label}#": len(parts)} if parts else {}
    if isinstance(value, dict):
        return {}
    where = f"{task.file}, doc_id {sample['doc_id']}"
    score = score_of(value, metric=metric, unit=unit_of(label), where=where)
    if task.aggregation(metric) == "nanmean":  # NaN: the question has no such figure
        is_missing = math.isnan(score)
        return {label: 0.0 if is_missing else score, f"{label}#": int(not is_missing)}
    return {label: score}


# --------------------------------------------------------------------------- questions and answers


def _row(task: LoggedTask, sample: Sample) -> dict[str, Any]:
    """A sample's row without its scores."""
    requests = _requests(sample)
    columns = _question_and_answer(task, sample, requests)
    doc, prompt, target = sample.get("doc_hash"), sample.get("prompt_hash"), sample.get("target")
    if doc is None:  # before 0.4.3; the harness's own formulas
        doc = hash_of(json.dumps(sample["doc"], indent=2, ensure_ascii=False))
    if prompt is None and requests:
        prompt = hash_of(str(requests[0][0]))
    right = sample.get("target_hash") or hash_of(str(target))
    row = {
        "doc": str(doc),
        "prompt": str(prompt),
        "target": hash_of(f"{right}{columns.get('choices')}"),
    }
    # the harness's hash is of the whole document, ids and all
    if columns and not _has_media(task, requests):
        row["content"] = f"{right}{columns.get('choices')}{columns['question']}"
    return {**row, **group_columns(sample.get("doc")), **columns}


def _has_media(task: LoggedTask, requests: Sequence[Sequence[Any]]) -> bool:
    """Whether questions are about pictures or sound, which are not logged: their texts may be
    alike."""
    if task.config.get("doc_to_image") or task.config.get("doc_to_audio"):
        return True
    return len(requests[0]) > 2 or "<image" in str(requests[0][0])


def _requests(sample: Sample) -> list[list[Any]]:
    """The arguments of every request that was made for a sample."""
    arguments = sample.get("arguments") or []
    if isinstance(arguments, Mapping):  # since 0.4.3: {"gen_args_0": {"arg_0": ..., "arg_1": ...}}
        arguments = [list(request.values()) for request in arguments.values()]
    return [list(request) for request in arguments if request]


def _question_and_answer(
    task: LoggedTask, sample: Sample, requests: Sequence[Sequence[Any]]
) -> dict[str, Any]:
    """What was asked and what the model made of it, for people."""
    kind, target = task.config.get("output_type"), sample.get("target")
    if kind == "multiple_choice" and requests:
        return _choices(task, sample, requests)
    if kind == "generate_until" and requests:
        outputs = next(iter(sample.get("resps") or ()), None) or [""]
        return {"question": str(requests[0][0]), "gold": str(target), "output": str(outputs[0])}
    return {}


def _choices(task: LoggedTask, sample: Sample, requests: Sequence[Sequence[Any]]) -> dict[str, Any]:
    contexts, continuations = [], []
    for request in requests:
        contexts.append(str(request[0]))
        continuations.append(str(request[1]))
    if "acc_mutual_info" in sample:  # every option again, without the question
        half = len(contexts) // 2
        contexts, continuations = contexts[:half], continuations[:half]
    question, options = contexts[0], continuations
    if len(set(continuations)) == 1 < len(set(contexts)):
        # the options are beginnings, and the text is what follows
        question, options = continuations[0], contexts
    delimiter = str(task.config.get("target_delimiter", " "))
    choices = [option.removeprefix(delimiter) for option in options]
    responses = sample.get("filtered_resps") or ()
    likelihoods = [_first_number(response) for response in responses[: len(choices)]]
    return {
        "question": question.strip(),
        "choices": choices,
        "loglikelihoods": likelihoods,
        "gold": _gold(sample.get("target"), choices),
        "answer": likelihoods.index(max(likelihoods)) if likelihoods else None,
    }


def _first_number(response: Any) -> float:
    """The log-likelihood of [log-likelihood, is greedy]; 0.5 has a list of these for each repeat."""
    while isinstance(response, list):
        response = response[0]
    return float(response)


def _gold(target: Any, choices: Sequence[str]) -> Any:
    """The number of the right option, or those of several; None where the log does not say. Logs
    have it as a text."""
    text = str(target)
    if text in choices:
        return choices.index(text)
    try:
        gold = json.loads(text)
    except ValueError:
        return None
    numbers = gold if isinstance(gold, list) else [gold]
    is_known = all(type(number) is int and 0 <= number < len(choices) for number in numbers)
    return gold if is_known else None
