"""Details of lighteval: `details_TASK|SHOTS_DATE.parquet`, a file a task, with the run's
`results_DATE.json` (`--output-dir OUT --save-details`).

    OUT/details/MODEL/DATE/details_*.parquet, OUT/results/MODEL/results_DATE.json

Columns since 0.10: "doc", "metric", "model_response"; before: "example", "full_prompt", "choices",
"gold", "gold_index", "predictions", "metrics". A sample is its question with its options. The
results say versions, which way metrics go, and the figures, each of which is computed again: one
that does not come out as the mean of its samples is left out by name. Without the results file
these are not known, and a note says so.

https://github.com/huggingface/lighteval (lighteval/logging/info_loggers.py, evaluation_tracker.py).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.data.readers import parquet_file
from holdfast.errors import DataError
from holdfast.evaluation.foreign.files import hash_of, read_log_json
from holdfast.evaluation.foreign.log import ForeignEntry, ForeignLog, column_of, score_of
from holdfast.evaluation.tasks.harness_metrics import leading, unit_of
from holdfast.records.metrics import is_lower_better
from holdfast.statistics.estimates import Ratio, figure_for

SUITE = "lighteval"

_FILE = re.compile(r"details_(.+)_(\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d[\d.]*)\.parquet$")
_COLUMNS = ({"doc", "metric", "model_response"}, {"example", "full_prompt", "metrics"})
_FOLDERS = ("", "*/", "*/*/", "details/**/")
"""Of a date, a model, an organisation, and OUT."""
_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "max_new_tokens", "stop_tokens")
"""Parameters of generation that decide answers."""


def recognises(path: Path) -> bool:
    """Whether it is a file of details, or a folder with some: OUT, a model's or a date's."""
    return bool(_files(path))


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path] if _FILE.match(path.name) else []
    files: dict[Path, None] = {}
    for folder in _FOLDERS:
        for file in sorted(path.glob(f"{folder}details_*.parquet")):
            if _FILE.match(file.name):
                files.setdefault(file)
    return list(files)


def read(path: Path) -> list[ForeignLog]:
    """The logs of a file or a folder, one a model.

    Raises:
        DataError: a file that cannot be read, without samples, or with scores that are none.
    """
    by_model: dict[Path, list[Path]] = {}
    for file in _files(path):
        by_model.setdefault(_model_folder(file), []).append(file)
    return [_log(folder, files) for folder, files in by_model.items()]


def _date_of(file: Path) -> str:
    match = _FILE.match(file.name)
    assert match is not None, "not a details file"
    return match[2]


def _task_of(file: Path) -> str:
    match = _FILE.match(file.name)
    assert match is not None, "not a details file"
    return match[1]


def _model_folder(file: Path) -> Path:
    """The folder of a model's runs, above those of their dates."""
    return file.parent.parent if file.parent.name == _date_of(file) else file.parent


def _log(folder: Path, files: Sequence[Path]) -> ForeignLog:
    """All runs of one model; of a task that several have, the latest."""
    latest: dict[str, Path] = {}
    notes = []
    for file in sorted(files, key=_date_of):
        task = _task_of(file)
        if task in latest:
            notes.append(f"{task} was measured several times: {latest[task]} is not read.")
        latest[task] = file
    entries: dict[str, ForeignEntry] = {}
    model = folder.name
    for file in latest.values():
        results = _results(file)
        model = (results.get("config_general") or {}).get("model_name") or model
        entry = _entry(file, results)
        if entry.name in entries:
            raise DataError(
                f"{folder}: expected one file of {entry.name}, got several with different numbers "
                "of examples. Name the file to compare."
            )
        entries[entry.name] = entry
    return ForeignLog(
        model=str(model).rpartition("/")[2],
        path=files[0] if len(files) == 1 else folder,
        entries=list(entries.values()),
        notes=notes,
    )


def _results(file: Path) -> Mapping[str, Any]:
    """What was written with a file of details; empty where it is not there."""
    name = f"results_{_date_of(file)}.json"
    folders = [file.parent, _model_folder(file)]
    parts = list(folders[1].parts)
    if "details" in parts:
        last = len(parts) - 1 - parts[::-1].index("details")
        folders.append(Path(*parts[:last], "results", *parts[last + 1 :]))
    for folder in folders:
        if (folder / name).is_file():
            content: Mapping[str, Any] = read_log_json(folder / name)
            return content
    return {}


# ------------------------------------------------------------------------------------------ entries


def _entry(file: Path, results: Mapping[str, Any]) -> ForeignEntry:
    task = _task_of(file)
    name, _, shots = task.rpartition("|")
    num_fewshot = int(shots) if shots.isdigit() else None
    config = (results.get("config_tasks") or {}).get(task) or {}
    rows: list[dict[str, Any]] = []
    labels: dict[str, None] = {}
    for number, sample in enumerate(_samples(file), 1):
        scores = _scores(f"{file}, row {number}", sample["metric"])
        labels |= dict.fromkeys(scores)
        rows.append({**_row(sample), **scores})
    _tell_apart(rows)
    notes: list[str] = []
    if not results:
        notes.append(
            f"{file.name} has no results file beside it, so two things are unknown: the task "
            "version, and whether a higher value of a metric is better."
        )
    figures = _figures(rows, list(labels), config, (results.get("results") or {}).get(task), notes)
    lead = leading(figures) if figures else None
    if lead is None:
        raise DataError(
            f"{file}: expected a metric that is a mean over samples, got {', '.join(labels)}. "
            f"{' '.join(notes)} Keep each results file with the details of the same run."
        )
    general = results.get("config_general") or {}
    generation = (general.get("model_config") or {}).get("generation_parameters") or {}
    settings = {
        "tool": "lighteval",
        "task_version": config.get("version"),
        "num_fewshot": config.get("num_fewshots", num_fewshot),
        "generation": {key: generation[key] for key in _SAMPLING if key in generation},
        "limit": general.get("max_samples"),
    }
    for key in ("generation_size", "stop_sequence"):
        settings[key] = config.get(key)
    return ForeignEntry(
        suite=SUITE,
        name=task if num_fewshot is None else name,
        rows=rows,
        figures=figures,
        primary=lead,
        settings=settings,
        notes=notes,
    )


def _samples(file: Path) -> list[dict[str, Any]]:
    """The rows of a file, in the form of 0.10.

    Raises:
        DataError: it cannot be read, is of another form, or has no rows.
    """
    with parquet_file(file) as table:
        names = set(table.schema_arrow.names)
        known = [columns for columns in _COLUMNS if columns <= names]
        if not known:
            raise DataError(
                f"{file}: expected the columns doc, metric and model_response, or example, "
                f"full_prompt and metrics, got {', '.join(sorted(names))}. Save details with "
                "lighteval itself."
            )
        rows: list[dict[str, Any]] = table.read().to_pylist()
    if not rows:
        raise DataError(f"{file}: expected one row per sample, got none.")
    if known[0] is _COLUMNS[0]:
        return rows
    samples = []
    for row in rows:
        doc = {"query": row["example"], "choices": row.get("choices") or row.get("gold") or []}
        doc["gold_index"] = row.get("gold_index") or list(range(len(row.get("gold") or ())))
        predictions = row.get("predictions") or []
        response = {"input": row["full_prompt"], "logprobs": [], "text": predictions}
        if row.get("choices"):
            response |= {"logprobs": _first_numbers(predictions), "text": []}
        samples.append({"doc": doc, "metric": row["metrics"], "model_response": response})
    return samples


def _first_numbers(predictions: Sequence[Any]) -> list[float]:
    """Log-likelihoods, which stand alone or before whether they are greedy."""
    numbers = []
    for prediction in predictions:
        value = prediction[0] if isinstance(prediction, list) and prediction else prediction
        if isinstance(value, (int, float)):
            numbers.append(float(value))
    return numbers


def _scores(where: str, metrics: Mapping[str, Any]) -> dict[str, float]:
    """A sample's scores; lists and objects are none."""
    scores = {}
    for metric, value in metrics.items():
        if isinstance(value, (list, dict)):
            continue
        label = column_of(metric)
        scores[label] = score_of(value, metric=metric, unit=unit_of(metric), where=where)
    return scores


def _row(sample: Mapping[str, Any]) -> dict[str, Any]:
    """A sample's row without its scores."""
    doc, response = sample["doc"], sample["model_response"]
    choices = [str(choice).strip() for choice in doc.get("choices") or ()]
    index = doc.get("gold_index")
    gold = list(index) if isinstance(index, list) else [] if index is None else [index]
    question = str(doc["query"])
    content = f"{question}{choices}"
    if doc.get("images"):
        content += f"{doc['images']}{doc.get('id')}"
    row: dict[str, Any] = {
        "doc": hash_of(content),
        "prompt": hash_of(_prompt(doc, response)),
        "target": hash_of(f"{gold}{choices}"),
        "question": question.strip(),
    }
    likelihoods = response.get("logprobs") or []
    if len(choices) > 1 and len(likelihoods) == len(choices):
        answer = likelihoods.index(max(likelihoods))
        options = {"choices": choices, "loglikelihoods": likelihoods, "gold": gold}
        return {**row, **options, "answer": answer}
    row["gold"] = ", ".join([choices[number] for number in gold if number < len(choices)])
    outputs = response.get("text") or [""]
    return {**row, "output": str(outputs[0])}


def _tell_apart(rows: Sequence[dict[str, Any]]) -> None:
    """Makes samples of their own of those that ask the same and have different right answers."""
    targets: dict[str, set[str]] = {}
    for row in rows:
        targets.setdefault(row["doc"], set()).add(row["target"])
    for row in rows:
        if len(targets[row["doc"]]) > 1:
            row["doc"] = hash_of(row["doc"] + row["target"])


def _prompt(doc: Mapping[str, Any], response: Mapping[str, Any]) -> str:
    """What the model read; where that is not logged, what it is made of."""
    if response.get("input") is not None:
        return str(response["input"])
    texts = [str(doc.get("instruction") or "")]
    for example in doc.get("fewshot_samples") or ():
        texts.append(f"{example['query']}{example.get('choices')}{example.get('gold_index')}")
    return "\n".join([*texts, str(doc["query"])])


def _figures(
    rows: Sequence[Mapping[str, Any]],
    labels: Sequence[str],
    config: Mapping[str, Any],
    logged: Mapping[str, Any] | None,
    notes: list[str],
) -> dict[str, Ratio]:
    """The metrics that are means over samples; adds to the notes which are not."""
    directions = {}
    for about in config.get("metrics") or ():
        directions[str(about.get("metric_name"))] = about.get("higher_is_better")
    figures = {}
    for label in labels:
        higher = directions.get(label)
        if not isinstance(higher, bool):
            higher = not is_lower_better(label)
        ratio = figure_for(label, rows, higher_is_better=higher, unit=unit_of(label))
        if ratio is None:
            notes.append(f"{label} is left out, because some samples have no number for it.")
            continue
        mean = float(ratio.of_sums(ratio.columns(rows).sum(0)))
        value = (logged or {}).get(label, mean)
        agrees = math.isclose(mean, value, rel_tol=1e-6, abs_tol=1e-9)
        if agrees or not math.isfinite(mean):
            figures[label] = ratio
        else:
            notes.append(
                f"{label} is {value:.4g} in the results, but the samples' mean is {mean:.4g}. The "
                "metric is left out, because it is not a mean over samples."
            )
    return figures
