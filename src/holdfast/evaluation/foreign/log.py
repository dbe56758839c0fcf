"""One model's evaluations by another tool, and how they become an `EvaluationFolder`.

What has to agree between two logs goes into an entry's `settings`: comparisons refuse entries whose
settings differ, and name them. What tells one sample from another is in its row: "doc" is the
sample, "prompt" what was asked, "target" the right answer.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.errors import DataError
from holdfast.evaluation.entries import EvaluationPlan
from holdfast.evaluation.groups import COLUMNS
from holdfast.evaluation.measures import Outcome
from holdfast.evaluation.remarks import mark_copies, remarks_on_samples
from holdfast.records.evaluation import Evaluation, EvaluationFolder
from holdfast.records.metrics import is_share
from holdfast.statistics.estimates import Ratio
from holdfast.support.files import fingerprint


@dataclass(frozen=True, kw_only=True)
class ForeignEntry:
    """One task of another tool's log: what the model was asked, and its scores."""

    suite: str
    """Name of the tool, such as "lm_eval"."""
    name: str
    """Name of the task."""
    rows: list[dict[str, Any]]
    """One row per sample, as in a "task" of `holdfast.records.evaluation.Evaluation`. For "content"
    see `remarks.mark_copies`."""
    figures: Mapping[str, Ratio]
    """How each metric is computed from the rows."""
    primary: str
    """The first metric."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings that must be equal in a comparison."""
    notes: Sequence[str] = ()
    """Notes for readers of the figures, one sentence each."""
    versions: Mapping[str, str] = field(default_factory=dict)
    references: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Reference levels of metrics, such as chance, that cannot be computed from the rows. See
    `Evaluation.references`."""


@dataclass(frozen=True, kw_only=True)
class ForeignLog:
    """What another tool measured of one model."""

    model: str
    path: Path
    """Where it was read."""
    entries: list[ForeignEntry]
    circumstances: Mapping[str, Any] = field(default_factory=dict)
    """What is known of the model, as of `holdfast.evaluation.circumstances`."""
    notes: Sequence[str] = ()
    """What a reader should know of the log, a sentence each."""


def as_folder(log: ForeignLog) -> EvaluationFolder:
    """A log as evaluations on disk, in a folder that is removed when the object goes, or at the end
    of the process."""
    folder = EvaluationFolder(tempfile.mkdtemp(prefix="holdfast-log-"))
    weakref.finalize(folder, shutil.rmtree, folder.path, ignore_errors=True)
    for entry in log.entries:
        folder.write(_evaluation(entry, log), entry.rows)
    return folder


def _evaluation(entry: ForeignEntry, log: ForeignLog) -> Evaluation:
    mark_copies(entry.rows)
    notes = [*entry.notes, *remarks_on_samples(entry.rows)]
    outcome = Outcome(rows=entry.rows, figures=entry.figures, references=entry.references)
    return Evaluation(
        suite=entry.suite,
        name=entry.name,
        kind="task",
        primary=entry.primary,
        metrics=outcome.metrics(EvaluationPlan()),
        settings={**entry.settings, "notes": notes},
        model={"name": log.model, "hash": None, **log.circumstances},
        key=fingerprint([log.model, entry.suite, entry.name, entry.settings]),
        versions=dict(entry.versions),
        references=outcome.levels,
        failed=outcome.failed,
    )


_OF_ROWS = frozenset(
    {"doc", "prompt", "target", "cluster", "content", "copy_of", *COLUMNS}
    | {"question", "choices", "loglikelihoods", "gold", "answer", "output"}
)


def column_of(metric: str) -> str:
    """The name of a metric's column, which is none of the others of a row."""
    return f"{metric} score" if metric in _OF_ROWS else metric


def score_of(value: Any, *, metric: str, unit: str, where: str) -> float:
    """A sample's score as a number; NaN and infinities are numbers here.

    Args:
        value: as the log has it.
        metric, unit: its name and unit: of a share, scores lie in [0, 1].
        where: file and sample, for messages.

    Raises:
        DataError: it is no number, or no share where it has to be one.
    """
    if not isinstance(value, (int, float)):
        kind = "nothing (null)" if value is None else f"{value!r:.60} ({type(value).__name__})"
        raise DataError(
            f"{where}: expected a number for {metric}, got {kind}. Score every sample, and log the "
            "numbers."
        )
    score = float(value)
    if math.isfinite(score) and is_share(unit, metric) and not 0 <= score <= 1:
        raise DataError(
            f"{where}: expected {metric} between 0 and 1, because it is a share, got {score:g}. "
            "Divide percentages by 100, or give the metric another name."
        )
    return score
