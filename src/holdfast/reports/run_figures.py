"""What a run's folder holds, read as far as it goes, and what a report says of it: facts, the
verdict in a sentence, what is missing."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.errors import DataError
from holdfast.records.evaluation import Evaluation
from holdfast.records.metrics import RESTATED
from holdfast.records.run import LayerDistance, RunFolder, RunRecord
from holdfast.reports.along import Trajectory
from holdfast.reports.blocks import Text, sub
from holdfast.reports.charts import AS_IT_IS, Row
from holdfast.reports.compared import (
    GROUPS,
    PURPOSE,
    ComparisonRow,
    Rows,
    by_suite,
    entry_title,
    headline,
    ordered,
)
from holdfast.reports.format import (
    count,
    duration,
    hardware_text,
    joined,
    percent,
    plural,
    significant,
)
from holdfast.reports.measured import Measured
from holdfast.reports.methods import method_text
from holdfast.reports.training_charts import Log
from holdfast.support.files import read_as

T = TypeVar("T")
NOT_RECORDED = "not recorded"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFigures:
    """Everything a report says about one run."""

    record: RunRecord
    rows: list[ComparisonRow]
    levels: list[dict[str, Text]]
    """Figures of only one of the two models ("start" or "result"), or not compared for another
    reason."""
    metrics: Log
    trajectory: Trajectory
    """What was measured on the way, start and end with it; empty where nothing was."""
    problems: list[str]
    """Files that could not be read; a report says so instead of leaving them out."""

    @property
    def title(self) -> str:
        return self.record.name or "unnamed run"

    @property
    def method(self) -> str:
        return method_text(self.record.retention)

    @property
    def verdict(self) -> str:
        """The run in one sentence of plain words, from its status and its primary comparisons."""
        return verdict_sentence(self.record, self.rows)

    @property
    def trained(self) -> dict[str, Any]:
        """`{"steps", "tokens", "seconds", "tokens_per_second"}` from run.json, or from the log
        where the run did not get to write them."""
        figures: dict[str, Any] = {}
        for key, logged in (
            ("steps", "step"),
            ("tokens", "tokens"),
            ("seconds", "seconds"),
            ("tokens_per_second", ""),
        ):
            values = [
                self.record.training.get(key),
                *(row.get(logged) for row in reversed(self.metrics)),
            ]
            figures[key] = next((value for value in values if value is not None), None)
        if figures["tokens_per_second"] is None and figures["tokens"] and figures["seconds"]:
            figures["tokens_per_second"] = figures["tokens"] / figures["seconds"]
        return figures

    @property
    def largest_move(self) -> LayerDistance | None:
        """The layer with the largest relative distance from the start."""
        layers = [layer for layer in self.record.distance if math.isfinite(layer.relative)]
        return max(layers, key=lambda layer: layer.relative, default=None)

    @property
    def facts(self) -> list[tuple[str, str]]:
        """(label, text): model, data, method, steps, tokens, time, ..."""
        record, trained, model = self.record, self.trained, self.record.model
        steps, seconds = trained["steps"], trained["seconds"]
        facts = [
            (
                "Model",
                joined(
                    model.get("name"),
                    model.get("architecture"),
                    _size_of(model),
                    model.get("origin"),
                ),
            ),
            ("Data", _data(record.data)),
            ("Method", self.method),
            ("Steps", "none logged" if steps is None else significant(steps)),
            ("Tokens trained on", "" if trained["tokens"] is None else count(trained["tokens"])),
            (
                "Training time",
                "" if seconds is None else joined(duration(seconds), *_speed(record, trained)),
            ),
            ("Seed", str(record.seed)),
            ("Hardware", hardware_text(record.hardware)),
        ]
        if record.parents:
            facts.append(("Derived from", "; ".join(map(_parent, record.parents))))
        facts += [
            ("Started", record.created),
            ("Finished", record.finished or f"no ({record.status})"),
        ]
        return [(label, text or NOT_RECORDED) for label, text in facts]

    @property
    def missing(self) -> list[str]:
        """What a complete run would have and this one has not, one sentence each."""
        sentences = list(self.not_compared)
        if not self.metrics:
            sentences.append("No training step was logged.")
        if not self.record.distance:
            sentences.append("The distance from the initial weights was not recorded.")
        return sentences

    @property
    def not_compared(self) -> list[str]:
        """Of these what concerns evaluations."""
        if not self.rows and not self.levels:
            return [
                "This folder has no evaluation, so it is unknown what the model learnt and lost."
            ]
        if not self.rows:
            return [
                "Only one of the two models was evaluated, or the two were not compared. The "
                "figures below are not comparisons."
            ]
        absent = [suite for suite in GROUPS if suite not in by_suite(self.rows)]
        words = "No {} measure was compared, so this report has no result for {}."
        return [words.format(suite, PURPOSE[suite]) for suite in absent]


def _parent(model: Row) -> str:
    return joined(model.get("name"), model.get("role"), str(model.get("hash", ""))[:12])


def _size_of(model: Row) -> str:
    parameters, trainable = model.get("parameters"), model.get("trainable")
    if not parameters:
        return ""
    size = f"{count(parameters)} parameters"
    if trainable and trainable != parameters:
        size += (
            f", {count(trainable)} trained ({percent(100 * trainable / parameters, sign=False)})"
        )
    return size


def _data(data: Row) -> str:
    examples, tokens, replayed = (
        data.get(key) for key in ("examples", "tokens", "replay_examples")
    )
    parts = [data.get("name")]
    if examples is not None:
        parts.append(plural(int(examples), "example"))
    if tokens is not None:
        parts.append(f"{count(tokens)} tokens")
    if replayed:
        parts.append(plural(int(replayed), "replayed example"))
    return joined(*parts, data.get("format"), "packed" if data.get("packed") else "")


def _speed(record: RunRecord, trained: Row) -> tuple[str, str]:
    speed, sessions = trained["tokens_per_second"], record.training.get("sessions")
    several = plural(sessions, "session") if isinstance(sessions, int) and sessions > 1 else ""
    return f"{count(speed)} tokens/s" if speed else "", several


def read_run(folder: RunFolder) -> RunFigures:
    """Reads a run folder as far as it goes: unfinished runs and unreadable files are reported, not
    refused.

    Raises:
        DataError: there is no `run.json`, or it cannot be read, so there is no run to report on.
    """
    if not folder.exists():
        raise DataError(
            f"Expected the folder of a run at {folder.path}, but it has no run.json. Give the "
            "output folder of a holdfast run."
        )
    unread: list[str] = []

    def attempt(read: Callable[[], T], default: T, what: str) -> T:
        try:
            return read()
        except DataError as error:
            unread.append(f"{what} could not be read, so it is left out: {error}")
            return default

    record = folder.read()
    metrics: Log = attempt(folder.metrics, [], "metrics.jsonl")
    rows = ordered(attempt(folder.comparisons, [], "evaluations/comparisons.json"))
    compared = {(row.raw.suite, row.name) for row in rows}
    levels: list[dict[str, Text]] = []
    for which in ("start", "result"):
        for path in sorted((folder.evaluations / which).glob("*.json")):
            read: Callable[[], Evaluation | None] = functools.partial(read_as, path, Evaluation)
            evaluation = attempt(read, None, f"evaluations/{which}/{path.name}")
            if evaluation is not None and (evaluation.suite, evaluation.name) not in compared:
                levels += _levels(which, evaluation)
    trajectory = _trajectory(folder, unread) if folder.along.is_dir() else []
    return RunFigures(
        record=record, rows=rows, levels=levels, metrics=metrics, trajectory=trajectory, problems=unread,
    )  # fmt: skip


def _trajectory(folder: RunFolder, unread: list[str]) -> Trajectory:
    """The points of the run, with the entries that were measured on the way."""
    points, entries = [], set()
    for step, path in folder.trajectory():
        point = Measured(path, f"along/step-{step}")
        points.append((step, point.evaluations))
        if path.path.parent == folder.along:  # the ends are read elsewhere
            unread += point.problems
            entries |= set(point.evaluations)
    for _, evaluations in points:
        for key in set(evaluations) - entries:
            del evaluations[key]
    return points


def _levels(which: str, e: Evaluation) -> list[dict[str, Text]]:
    """A row a figure of one model alone, where there is nothing to compare it with."""
    rows: list[dict[str, Text]] = []
    for name, metric in e.metrics.items():
        if RESTATED.get(name) not in e.metrics:
            what = entry_title(e.suite, e.name), sub(f"{name}, {metric.unit}")
            value, interval = AS_IT_IS.texts(metric)
            rows.append(
                {
                    "measure": what,
                    "which": which,
                    "value": value,
                    "interval": interval,
                    "n": f"{metric.n:,}",
                }
            )
    return rows


def verdict_sentence(record: RunRecord, rows: Rows) -> str:
    """The run in one sentence of plain words, from its status and its primary comparisons."""
    if rows:
        return headline([row.raw for row in rows])
    what = {
        "running": "has not finished",
        "interrupted": "was interrupted",
        "failed": "failed",
    }.get(record.status)
    if what:
        return (
            f"The run {what} (stage: {record.stage}), so there is no comparison with the initial "
            "model yet."
        )
    return (
        "Training finished, but the initial model and the result were not compared. So it is "
        "unknown what was learnt and lost."
    )
