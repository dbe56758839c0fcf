"""What was measured of one model: figures with intervals, per-sample rows beside them, and the
folder that holds both."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import DataError
from holdfast.support.files import (
    read_as,
    read_jsonl,
    read_object,
    record_from,
    to_jsonable,
    write_json,
    write_jsonl,
)

SCHEMA = 1
UNIGRAM, CHANCE = "unigram", "chance"
"""Names of levels, see `Evaluation.references`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metric:
    """One figure of one evaluation.

    `interval` is the two-sided interval at `confidence` (bootstrap over samples); None if there is
    none.
    """

    value: float
    n: int
    """Number of samples behind the figure: documents for text, questions for tasks."""
    unit: str
    """For example "nats/token", "bits/byte", "accuracy", "exact_match"."""
    higher_is_better: bool
    interval: tuple[float, float] | None = None
    confidence: float = 0.95


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One model on one entry of a suite. Per-sample rows lie beside it in
    `<suite>.<name>.samples.jsonl`.

    Every row has `doc`, the hash that comparisons join on; one that repeats another question under
    another hash names that one's as `copy_of`. Probabilities are natural, log-likelihoods and
    entropies are in nats.

    - "perplexity": `{"doc", "nats": float, "tokens": int, "bytes": int}`; "memorisation" has
      `"exact"`, the tokens of them that were the most likely one, and `"entropy"`, summed over
      them, too.
    - "task": `{"doc", "prompt": hash, "<metric>": float, ..., "question": str}`, "task" for a
      group's subtask, and "<metric>#" where a question has several parts, of which "<metric>" were
      right. Multiple choice: `"choices": [str]`, `"loglikelihoods": [float]` a choice,
      `"gold": int or [int]`, `"answer": int`. Generation: `"gold": str`, `"output": str`.
    - "answer_distribution":
      `{"doc", "prompt", "question", "mass", "entropy", "option_entropy", "probabilities": [float],
      "gold", "answer", "acc": 0 or 1}`, the probabilities over the options alone, so that their sum is 1.
    - "classification":
      `{"doc", "nats": -log p(gold), "acc": 0 or 1, "probabilities": [float], "gold": int, "answer":
      int}`.
    - "multiple_choice":
      `{"doc", "prompt": hash, "question", "choices": [str], "loglikelihoods": [float] a choice,
      "probabilities": [float], "gold": int, "answer": int, "acc": 0 or 1, "nats": -log p(gold),
      "tokens":
      int}`, nats and tokens of the right option as a text, probabilities over the options alone,
      "task" where questions are grouped. Where several questions are one sample:
      `{"doc", "prompt", "question": what they are about, "questions": int, "chance": what guessing gives, "acc":
      their mean, "nats", "tokens": sums}`.
    - "multiple_choice_letters": as "answer_distribution", with "choices", "task" and units as of
      "multiple_choice", `"nats": -log p(gold's letter)` and `"tokens": 1`.
    - "instructions":
      `{"doc", "prompt": hash, "question", "gold": the instructions as text, "output": str,
      "instructions": [id], "followed_strict": [bool], "prompt_level_strict_acc": 0 or 1,
      "inst_level_strict_acc": instructions followed, "inst_level_strict_acc#": their number,
      ...}`, and the same with "loose" for "strict".
    - "behaviour":
      `{"doc", "prompt": hash, "question", "category", "output": str, "turn_ended": 0 or 1,
      "thoughts_closed": 0 or 1, "json_valid": 0 or 1, "json_valid#": 1 where JSON was asked for,
      else 0, and the same of "tool_call_valid", "language_kept", "harmful_refused" and
      "harmless_answered"; "has_thought", "has_list", "has_heading", "refusal": 0 or 1,
      "reply_characters": int, "reply_tokens": int}`.
    - "win_rate":
      `{"doc", "prompt": hash, "question", "output": str, "win_rate": P(the judge prefers it) over
      both orders, "length_controlled_win_rate": a value whose mean is that figure, "status": as of
      `judge.judge.PairResult`, "length", "length_reference": characters}`.
    - "code":
      `{"doc", "prompt", "question", "pass@1": float, ..., "n": int, "correct": int, "outputs":
      [str], "reasons": [str]}`.
    - "average": no rows; `settings["members"]` is a list of `{"suite", "name", "metric"}` whose
      mean it is.
    """

    suite: str
    """The suite: "keep" (what must be kept), "learn" (what is learnt), or a name that the user
    chose."""
    name: str
    kind: str
    """A kind of `evaluation.kinds`, or "average"."""
    primary: str
    """The primary metric, which comparisons and plots show first; a key of `metrics`."""
    metrics: dict[str, Metric]
    settings: dict[str, Any]
    model: dict[str, Any]
    """`{"name": ..., "hash": ...}`, and "origin" if readers should know where the weights come
    from. "weights" is the hash of the weights alone, if `hash` covers more (how they are served);
    None if it is unknown (behind a server). Further keys affect the figures, see
    `holdfast.evaluation.circumstances`."""
    key: str
    """Fingerprint of (model hash, data hash, settings). An evaluation with an equal key need not be
    computed again."""
    seconds: float = 0.0
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    references: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    """Reference levels by metric, in its unit. "unigram" (text) is the level of a model that knows
    only the frequencies of the scored tokens (with one added to each count of the vocabulary),
    without any context. "chance" (multiple choice) is the level of guessing."""
    failed: str | None = None
    """Why the figures mean nothing: a sample or a figure is NaN or infinite. None if all are
    finite. If a sample is not finite, no metric has a value (NaN), because an accuracy would be a
    number even over NaN log-likelihoods."""
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        if self.primary not in self.metrics:
            names = ", ".join(self.metrics) or "none"
            raise DataError(f"expected a metric named {self.primary!r} at 'metrics', got {names}.")
        if self.failed is None:
            object.__setattr__(self, "failed", why_not_finite(self.metrics))

    @property
    def leading(self) -> Metric:
        """The primary metric, which comparisons and plots show first."""
        return self.metrics[self.primary]

    @property
    def notes(self) -> list[str]:
        """Notes about the samples and prompts, one sentence each. Each begins with the entry's
        name."""
        return [f"{self.suite}/{self.name}: {note}" for note in self.settings.get("notes") or ()]

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Evaluation:
        return record_from(Evaluation, value)


@dataclasses.dataclass(kw_only=True)
class EvaluationRecord:
    """The content of evaluate.json: what `holdfast evaluate` measured. The figures of each model
    are in the folder of its label (`EvaluationFolder`)."""

    models: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """`{"label", "name", "hash", "architecture", "parameters"}` in the order of the request; for a
    local model also "folder", its path from here. The others are compared with the first."""
    suites: list[str] = dataclasses.field(default_factory=list)
    """Names of shipped suites, and file names of the user's own."""
    plan: dict[str, Any] = dataclasses.field(default_factory=dict)
    """The resolved evaluation plan."""
    status: str = "running"
    """"running", "interrupted", "failed" or "finished"."""
    created: str = ""
    """ISO 8601, UTC."""
    finished: str | None = None
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    hardware: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if any(not isinstance(model.get("label"), str) for model in self.models):
            raise DataError("models: expected a label for each model.")

    schema: int = SCHEMA

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> EvaluationRecord:
        return record_from(EvaluationRecord, value)


def why_not_finite(
    metrics: Mapping[str, Metric], rows: Sequence[Mapping[str, Any]] = ()
) -> str | None:
    """In a sentence which figures, or samples behind them, are NaN or infinite; None where all are
    finite.

    Args:
        metrics: by name. No interval is none, an infinite one is.
        rows: per-sample rows; every number in them counts, in lists too.
    """
    broken = [number for number, row in enumerate(rows, 1) if not all_finite(row)]
    if broken:
        return (
            f"{len(broken)} of {len(rows)} samples hold NaN or infinity (the first is row "
            f"{broken[0]})."
        )
    figures = []
    for name, metric in metrics.items():
        if not math.isfinite(metric.value):
            figures.append(f"{name} is {metric.value:g}")
        elif any(map(math.isinf, metric.interval or ())):
            figures.append(f"the interval of {name} is infinite")
    return f"{', '.join(figures)}." if figures else None


def all_finite(value: Any) -> bool:
    """Whether no number in it is NaN or infinite, in lists and mappings too."""
    if isinstance(value, float):
        return math.isfinite(value)
    if not isinstance(value, (dict, list, tuple, Mapping)):
        return True
    items = value.values() if isinstance(value, (dict, Mapping)) else value
    # rows are many: a call for every word and number in them takes longer than to read them
    kinds = set(map(type, items))
    if kinds == {float}:
        return all(map(math.isfinite, items))
    return kinds <= _NEVER_INFINITE or all(
        all_finite(item) for item in items if type(item) not in _NEVER_INFINITE
    )


_NEVER_INFINITE = {str, int, bool, type(None)}


def write_evaluation(
    evaluation: Evaluation, samples: Iterable[Mapping[str, Any]], file: Path, rows: Path
) -> Path:
    """Writes per-sample rows, and then the evaluation with their digest; returns the evaluation's
    file."""
    write_jsonl(rows, samples)
    return write_json(file, {**to_jsonable(evaluation), _ROWS: _digest(rows)})


def read_samples(file: Path, rows: Path) -> list[dict[str, Any]]:
    """The per-sample rows of an evaluation that `write_evaluation` wrote.

    Raises:
        DataError: they are not there, cannot be read, or are not those that were written with it.
    """
    if not rows.is_file():
        raise DataError(
            f"the per-sample rows {rows.name} are missing in {rows.parent}. Delete the evaluation "
            "there, and run the command again."
        )
    samples = list(read_jsonl(rows))
    written = read_object(file).get(_ROWS) if file.is_file() else None
    if written is not None and written != _digest(rows):
        raise DataError(
            f"{rows} holds other rows than were written with {file.name}. Delete both, and run the "
            "command again."
        )
    return samples


_ROWS = "samples_sha256"
"""Key of an evaluation's file: the digest of its rows."""


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


class EvaluationFolder:
    """The folder with the evaluations of one model: `<suite>.<name>.json`, each with its
    `<suite>.<name>.samples.jsonl`. The object holds only the path."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"EvaluationFolder({str(self.path)!r})"

    def write(self, evaluation: Evaluation, samples: Iterable[Mapping[str, Any]]) -> Path:
        """Writes the samples first and the evaluation last. If an evaluation file exists, its
        samples exist, too."""
        stem = self._stem(evaluation.suite, evaluation.name, "")
        return write_evaluation(
            evaluation, samples, Path(f"{stem}.json"), Path(f"{stem}.samples.jsonl")
        )

    def find(self, suite: str, name: str) -> Evaluation | None:
        """The evaluation of one entry; None if it does not exist (yet).

        Raises:
            DataError: the file cannot be read.
        """
        path = self._stem(suite, name, ".json")
        return read_as(path, Evaluation) if path.is_file() else None

    def samples(self, suite: str, name: str) -> list[dict[str, Any]]:
        """The per-sample rows of one entry, see `Evaluation`.

        Raises:
            DataError: the rows are missing, cannot be read, or belong to another evaluation.
        """
        stem = self._stem(suite, name, "")
        return read_samples(Path(f"{stem}.json"), Path(f"{stem}.samples.jsonl"))

    def digest(self, suite: str, name: str) -> str | None:
        """SHA-256 of the per-sample rows that were written with the evaluation; None if the file
        does not have it.

        Raises:
            DataError: the evaluation is missing or cannot be read.
        """
        digest = read_object(self._stem(suite, name, ".json")).get(_ROWS)
        return digest if isinstance(digest, str) else None

    def files(self) -> list[Path]:
        """The evaluation files, sorted by name; empty if the folder does not exist."""
        return sorted(p for p in self.path.glob("*.*.json") if not p.name.startswith("."))

    def all(self) -> list[Evaluation]:
        """All evaluations, sorted by file name.

        Raises:
            DataError: a file cannot be read.
        """
        return [read_as(path, Evaluation) for path in self.files()]

    def _stem(self, suite: str, name: str, suffix: str) -> Path:
        return self.path / f"{_safe(suite)}.{_safe(name)}{suffix}"


def _safe(name: str) -> str:
    """A file-name-safe form of a task or text name; distinct names stay distinct."""
    clean = "".join(c if c.isalnum() or c in "-_" else "-" for c in name)
    return clean if clean == name else f"{clean}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
