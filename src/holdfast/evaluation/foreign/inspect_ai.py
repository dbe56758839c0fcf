"""Logs of Inspect: `.eval` and `.json` files of finished runs, read by its own `read_eval_log`.

A task is an entry, and each of its scorers a metric of it. Letters count as Inspect counts them: C
is 1, P is 0.5, I and N are 0. The epochs of a sample are a cluster. Samples that ended in an error
have no score; they are left out and counted.

https://inspect.aisi.org.uk/eval-logs.html
"""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import DataError, UserError, first_line
from holdfast.evaluation.foreign.files import hash_of
from holdfast.evaluation.foreign.log import ForeignEntry, ForeignLog, column_of, score_of
from holdfast.evaluation.groups import group_columns
from holdfast.records.evaluation import CHANCE
from holdfast.records.metrics import is_lower_better
from holdfast.statistics.estimates import Ratio, figure_for

SUITE = "inspect"

Sample = Mapping[str, Any]

_HEAD = re.compile(r'\s*\{\s*"version":\s*\d+,\s*"status":\s*"\w+",\s*"eval":')
"""How a log in JSON begins."""
_LETTERS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
_SAMPLE_FIELDS = ("id", "epoch", "input", "choices", "target", "messages", "output", "scores")
_SAMPLING = ("system_message", "max_tokens", "temperature", "top_p", "top_k", "stop_seqs")
"""Settings of generation that decide answers."""


def recognises(path: Path) -> bool:
    """Whether it is a log, or a folder of logs."""
    return bool(_log_files(path)) if path.is_dir() else _is_log(path)


def _log_files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if _is_log(path)]


def _is_log(path: Path) -> bool:
    if not path.is_file() or path.suffix == ".eval":
        return path.is_file()
    if path.suffix != ".json":
        return False
    with open(path, encoding="utf-8", errors="replace") as file:
        return _HEAD.match(file.read(1000)) is not None


def read(path: Path) -> list[ForeignLog]:
    """The logs of a file or a folder, one a model.

    Raises:
        UserError: Inspect is not installed.
        DataError: a run that did not finish, a log without samples, or scores that are none.
    """
    by_model: dict[str, list[tuple[Path, Mapping[str, Any]]]] = {}
    for file in _log_files(path) if path.is_dir() else [path]:
        log = load(file)
        by_model.setdefault(_model(log), []).append((file, log))
    logs = []
    for model, runs in by_model.items():
        logs.append(_of_model(model, runs, runs[-1][0] if len(runs) == 1 else path))
    return logs


def load(path: Path) -> dict[str, Any]:
    """A log as plain values: "eval", "status", "error", "plan", "results", "samples".

    Raises:
        UserError: Inspect is not installed.
        DataError: it cannot be read.
    """
    if importlib.util.find_spec("inspect_ai") is None:
        raise UserError(
            f"{path} is a log of Inspect. To read it, the package inspect_ai is needed, and it is "
            "not installed. Install it with: pip install 'holdfast[inspect]'"
        )
    from inspect_ai.log import read_eval_log

    try:
        log = read_eval_log(str(path))
    except Exception as error:  # whatever a damaged archive raises there
        raise DataError(
            f"{path}: Inspect cannot read this log ({first_line(error)}). It is cut short, damaged "
            "or of a later version. Copy it again, or update inspect_ai."
        ) from error
    values: dict[str, Any] = log.model_dump(exclude={"samples", "stats", "reductions"})
    samples = []
    for sample in log.samples or ():
        samples.append(sample.model_dump(include=set(_SAMPLE_FIELDS)))
    return {**values, "samples": samples}


def _model(log: Mapping[str, Any]) -> str:
    """The model's name, of local weights the last part of their folder."""
    about = log["eval"]
    folder = (about.get("model_args") or {}).get("model_path")
    return str(folder).rstrip("/").rpartition("/")[2] if folder else str(about["model"])


def _of_model(model: str, runs: Sequence[tuple[Path, Mapping[str, Any]]], path: Path) -> ForeignLog:
    """All logs of one model; of a task that several have, the latest finished one."""
    latest: dict[str, tuple[Path, Mapping[str, Any]]] = {}
    notes = []
    for file, log in sorted(runs, key=lambda run: str(run[1]["eval"].get("created"))):
        task = _task(log)
        if task in latest and not (_is_finished(latest[task][1]) and not _is_finished(log)):
            notes.append(f"{task} has several logs: {latest[task][0].name} is not read.")
        elif task in latest:
            notes.append(f"{task} has several logs: {file.name} is not read.")
            continue
        latest[task] = file, log
    entries = [_entry(file, log) for file, log in latest.values()]
    return ForeignLog(model=model, path=path, entries=entries, notes=notes)


def _task(log: Mapping[str, Any]) -> str:
    return str(log["eval"]["task"]).rpartition("/")[2]


def _is_finished(log: Mapping[str, Any]) -> bool:
    return bool(log["status"] == "success")


# ------------------------------------------------------------------------------------------ entries


def _entry(path: Path, log: Mapping[str, Any]) -> ForeignEntry:
    """One task of one model.

    Raises:
        DataError: see `read`.
    """
    if not _is_finished(log):
        error = (log.get("error") or {}).get("message") or ""
        raise DataError(
            f"{path}: expected a finished run, got the status "
            f"'{log['status']}'{f' ({error!r:.200})' if error else ''}. Continue it with 'inspect "
            "eval-retry', and compare the new log."
        )
    samples = log["samples"]
    if not samples:
        raise DataError(
            f"{path}: expected samples, got a log without them. Two models are paired sample by "
            "sample. Evaluate without --no-log-samples."
        )
    _check_ids(path, samples)
    notes: list[str] = []
    rows = []
    labels: dict[str, None] = {}
    for sample in sorted(samples, key=lambda sample: sample["epoch"]):
        if sample.get("scores"):
            scores = _scores(path, sample)
            labels |= dict.fromkeys(scores)
            rows.append({**_row(sample), **scores})
    if len(rows) < len(samples):
        notes.append(
            f"{len(samples) - len(rows)} of {len(samples)} samples have no score (they ended in an "
            "error) and are left out."
        )
    figures = _figures(log, rows, list(labels), notes)
    if not figures:
        raise DataError(
            f"{path}: expected a scorer that gives every sample a number, got "
            f"{', '.join(labels) or 'none'}. Score the log with 'inspect score'."
        )
    versions = {name: str(version) for name, version in (log["eval"].get("packages") or {}).items()}
    return ForeignEntry(
        suite=SUITE,
        name=_task(log),
        rows=rows,
        figures=figures,
        primary=_leading(log, figures),
        settings=_settings(log),
        notes=notes,
        versions=versions,
        references=_chance(rows, figures),
    )


def _check_ids(path: Path, samples: Sequence[Sample]) -> None:
    """A sample stands in a log once an epoch."""
    keys: set[tuple[str, int]] = set()
    twice = []
    for sample in samples:
        key = (str(sample["id"]), sample["epoch"])
        if key in keys:
            twice.append(key[0])
        keys.add(key)
    if twice:
        raise DataError(
            f"{path}: expected every id once per epoch, got {len(twice)} ids twice or more: "
            f"{', '.join(twice[:5])}{', ...' if len(twice) > 5 else ''}. Give each sample of the "
            "dataset its own id."
        )


def _row(sample: Sample) -> dict[str, Any]:
    """A sample's row without its scores."""
    target = sample.get("target")
    gold = target if isinstance(target, str) else ", ".join(map(str, target or ()))
    choices = sample.get("choices") or []
    row = {
        "doc": str(sample["id"]),
        "cluster": str(sample["id"]),
        "prompt": hash_of(_prompt(sample)),
        "target": hash_of(f"{gold}{choices}"),
        "question": _text(sample["input"]),
        "gold": gold,
        "output": (sample.get("output") or {}).get("completion") or "",
        **group_columns(sample.get("metadata")),
    }
    if not choices:
        return row
    answer = None
    for score in sample["scores"].values():
        if answer is None:
            answer = _option(score.get("answer"), choices)
    return {**row, "choices": choices, "gold": _option(gold, choices), "answer": answer}


def _option(letter: Any, choices: Sequence[str]) -> int | None:
    """The option that a letter names."""
    if not isinstance(letter, str) or len(letter) != 1:
        return None
    number = ord(letter) - ord("A")
    return number if 0 <= number < len(choices) else None


def _prompt(sample: Sample) -> str:
    """All that the model read before it first answered."""
    texts = []
    for message in sample.get("messages") or ():
        if message["role"] == "assistant" and message.get("source") != "input":
            break
        texts.append(f"{message['role']}: {_text(message['content'])}")
    return "\n".join(texts) or _text(sample["input"])


def _text(content: Any) -> str:
    """A text, the text of a list of messages, or that of the parts of one."""
    if isinstance(content, str):
        return content
    texts = []
    for item in content or ():
        inner = item.get("content", item.get("text"))
        texts.append(str(item) if inner is None else _text(inner))
    return "\n".join(texts)


def _scores(path: Path, sample: Sample) -> dict[str, float]:
    """A sample's scores by scorer, those of several parts by "scorer.part"; lists are none."""
    scores = {}
    for name, score in sample["scores"].items():
        value = score["value"]
        parts = {name: value}
        if isinstance(value, Mapping):
            parts = {f"{name}.{key}": inner for key, inner in value.items()}
        for label, grade in parts.items():
            if isinstance(grade, list):
                continue
            where = f"{path}, sample {sample['id']}, epoch {sample['epoch']}"
            number = _LETTERS.get(grade, grade) if isinstance(grade, str) else grade
            scores[column_of(label)] = score_of(number, metric=label, unit="", where=where)
    return scores


def _figures(
    log: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    labels: Sequence[str],
    notes: list[str],
) -> dict[str, Ratio]:
    """The mean of every scorer; adds to the notes where Inspect's figure is another one."""
    logged = _logged_means(log)
    figures = {}
    for label in labels:
        values = [row.get(label) for row in rows]
        numbers = [value for value in values if isinstance(value, float)]
        is_share = all(0 <= value <= 1 for value in numbers if math.isfinite(value))
        unit = "accuracy" if is_share else label
        higher = not is_lower_better(label)
        ratio = figure_for(label, rows, higher_is_better=higher, unit=unit)
        if ratio is None:
            notes.append(f"{label} is left out, because some samples have no number for it.")
            continue
        figures[label] = ratio
        mean = math.fsum(numbers) / len(numbers)
        if label in logged and not math.isclose(mean, logged[label], rel_tol=1e-6, abs_tol=1e-9):
            notes.append(
                f"{label}: the comparison uses the mean over all samples and epochs, {mean:.4g}. "
                f"Inspect reports {logged[label]:.4g}."
            )
    return figures


def _logged_means(log: Mapping[str, Any]) -> dict[str, float]:
    """Inspect's own means by scorer."""
    means: dict[str, float] = {}
    for score in (log.get("results") or {}).get("scores") or ():
        for name in ("accuracy", "mean"):
            value = ((score.get("metrics") or {}).get(name) or {}).get("value")
            if isinstance(value, (int, float)) and math.isfinite(value):
                means.setdefault(column_of(str(score["name"])), float(value))
    return means


def _leading(log: Mapping[str, Any], figures: Mapping[str, Ratio]) -> str:
    """The headline, where the log names one, else the first scorer."""
    headline = ((log.get("results") or {}).get("headline") or {}).get("score")
    label = column_of(str(headline))
    return label if label in figures else next(iter(figures))


def _chance(
    rows: Sequence[Mapping[str, Any]], figures: Mapping[str, Ratio]
) -> dict[str, dict[str, float]]:
    """What guessing gives, of multiple choice."""
    if "choice" not in figures or not all(row.get("choices") for row in rows):
        return {}
    chances = [1 / len(row["choices"]) for row in rows]
    return {"choice": {CHANCE: math.fsum(chances) / len(chances)}}


def _settings(log: Mapping[str, Any]) -> dict[str, Any]:
    """What must be the same where two logs are compared."""
    about, plan = log["eval"], log.get("plan") or {}
    config = about.get("config") or {}
    generation = dict(about.get("model_generate_config") or {})
    for key, value in (plan.get("config") or {}).items():
        if value is not None:
            generation[key] = value
    steps = []
    for step in plan.get("steps") or ():
        steps.append([step["solver"], step.get("params_passed", step.get("params"))])
    scorers = []
    for scorer in about.get("scorers") or ():
        scorers.append([scorer["name"], scorer.get("options")])
    settings: dict[str, Any] = {"tool": "Inspect", "solvers": steps, "scorers": scorers}
    settings["task_version"] = about.get("task_version")
    settings["task_args"] = about.get("task_args_passed") or about.get("task_args")
    settings["generation"] = {key: generation[key] for key in _SAMPLING if generation.get(key)}
    settings["data"] = (about.get("dataset") or {}).get("name")
    for key in ("epochs", "limit"):
        settings[key] = config.get(key)
    return settings
