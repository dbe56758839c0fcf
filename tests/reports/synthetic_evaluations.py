"""Evaluation folders of two models that answered the same questions, with every kind of row.

A question has a difficulty that both models share, so right answers are correlated. Everything is deterministic.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.evaluation.compare.request import Side
from holdfast.evaluation.compare.result import Result
from holdfast.evaluation.compare.samples import compare_samples
from holdfast.records.comparison import Comparison, GateOutcome
from holdfast.records.evaluation import Evaluation, EvaluationFolder, EvaluationRecord, Metric
from holdfast.statistics.estimates import TEXT_FIGURES, estimate, figure_for

Row = dict[str, Any]
Sides = tuple[list[Row], list[Row]]


def doc_hash(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def outcomes(rng: random.Random, before: float, after: float) -> tuple[bool, bool]:
    """Right or wrong of both models, correlated by the question's difficulty."""
    difficulty, other = rng.random(), rng.random()
    return difficulty < before, (difficulty if rng.random() < 0.9 else other) < after


def question(name: str, i: int) -> Row:
    """What all rows of a question share."""
    about = {"doc": doc_hash(name, i), "prompt": doc_hash("prompt", name, i)}
    return {**about, "question": f"{name}: what is {i} times {i}?"}


def multiple_choice(name: str, n: int, before: float, after: float, *, tasks: Sequence[str] = ()) -> Sides:
    """Rows of a multiple-choice task of both models; with `tasks` a group whose subtasks follow each other."""
    rng = random.Random(name)
    sides: Sides = ([], [])
    for i in range(n):
        gold = i % 4
        shared = {**question(name, i), "choices": [f"{letter}, {i}" for letter in "abcd"], "gold": gold}
        if tasks:
            shared["task"] = tasks[i * len(tasks) // n]
        for rows, right in zip(sides, outcomes(rng, before, after), strict=True):
            scores = [rng.gauss(-9.0, 0.5) for _ in range(4)]
            picked = gold if right else (gold + 1) % 4
            scores[picked] = max(scores) + 0.5
            rows.append({**shared, "loglikelihoods": scores, "answer": picked, "acc": float(right)})
    return sides


def generation(name: str, n: int, before: float, after: float) -> Sides:
    """Rows of a task whose answers are generated text."""
    rng = random.Random(name)
    sides: Sides = ([], [])
    for i in range(n):
        for rows, right in zip(sides, outcomes(rng, before, after), strict=True):
            output = f"Let us see.\n#### {8 if right else 9}"
            rows.append({**question(name, i), "gold": "8", "output": output, "exact_match,strict-match": float(right)})
    return sides


def text(name: str, n: int, level: float, change: float) -> Sides:
    """Rows of held-out text: nats, tokens and bytes a document."""
    rng = random.Random(name)
    sides: Sides = ([], [])
    for i in range(n):
        tokens = rng.randint(60, 900)
        nats = tokens * (level + rng.gauss(0, 0.35))
        shared = {"doc": doc_hash(name, i), "tokens": tokens, "bytes": 4 * tokens}
        sides[0].append({**shared, "nats": nats})
        sides[1].append({**shared, "nats": nats + tokens * rng.gauss(change, 0.09)})
    return sides


def answers(name: str, n: int, before: float, after: float) -> Sides:
    """Rows about the answer's position: mass, entropies and probabilities."""
    rng = random.Random(name)
    sides: Sides = ([], [])
    for i in range(n):
        gold = i % 4
        for rows, right in zip(sides, outcomes(rng, before, after), strict=True):
            picked = gold if right else (gold + 1) % 4
            sure = rng.uniform(0.4, 0.97)
            probabilities = [(1 - sure) / 3] * 4
            probabilities[picked] = sure
            given = {"gold": gold, "answer": picked, "probabilities": probabilities, "acc": int(right)}
            measured = {"mass": rng.uniform(0.6, 0.99), "option_entropy": 1 - sure, "entropy": 2 - sure}
            rows.append({**question(name, i), **given, **measured})
    return sides


def code(name: str, n: int, before: float, after: float) -> Sides:
    """Rows of programs that pass their tests or do not."""
    rng = random.Random(name)
    sides: Sides = ([], [])
    for i in range(n):
        for rows, right in zip(sides, outcomes(rng, before, after), strict=True):
            tried = {"n": 1, "outputs": ["    return 6"], "reasons": ["passed" if right else "AssertionError: 6"]}
            rows.append({**question(name, i), **tried, "pass@1": float(right), "correct": int(right)})
    return sides


def evaluation(
    suite: str,
    name: str,
    kind: str,
    rows: Sequence[Mapping[str, Any]],
    metrics: Mapping[str, tuple[str, bool]],
    **changes: Any,
) -> Evaluation:
    """The evaluation of rows; `metrics` is name -> (unit, higher is better), the first leads."""
    found = {}
    for metric, (unit, higher) in metrics.items():
        figure = figure_for(metric, rows, higher_is_better=higher, unit=unit)
        assert figure is not None, metric
        value, interval = estimate(figure, rows, resamples=200)
        found[metric] = Metric(
            value=value, n=len(rows), unit=figure.unit, higher_is_better=figure.higher_is_better, interval=interval
        )
    fields: dict[str, Any] = {
        "suite": suite,
        "name": name,
        "kind": kind,
        "primary": next(iter(metrics)),
        "metrics": found,
        "settings": {
            "num_fewshot": 0,
            "batch_size": 8,
            "subtasks": sorted({str(r["task"]) for r in rows if "task" in r}),
        },
        "model": {"name": "m", "hash": "4f1d2c" + "0" * 58},
        "key": f"key of {suite}/{name}",
        "seconds": 12.5,
        "versions": {"torch": "2.13.0", "transformers": "5.23.0", "lm_eval": "0.4.13"},
    }
    return Evaluation(**{**fields, **changes})


ACCURACY = {"acc": ("accuracy", True)}
TEXT = {name: (TEXT_FIGURES[name].unit, False) for name in ("nats_per_token", "bits_per_byte")}


class Pair:
    """Two folders that are filled together, and the comparison of what lies in them."""

    def __init__(self, root: Path, labels: tuple[str, str] = ("base", "tuned")) -> None:
        self.root = root
        self.labels = labels
        self.before, self.after = (EvaluationFolder(root / label) for label in labels)
        self.comparisons: list[Comparison] = []

    def result(self, **changes: Any) -> Result:
        """The comparison as it is handed to pages."""
        sides = zip((self.before, self.after), changes.pop("labels", self.labels), strict=True)
        held = [Side(folder=folder, label=label) for folder, label in sides]
        return Result(**{"sides": held, "comparisons": self.comparisons, **changes})

    def add(
        self, suite: str, name: str, kind: str, sides: Sides, metrics: Mapping[str, tuple[str, bool]], **changes: Any
    ) -> Pair:
        """Writes an entry of both models and compares it."""
        held = [evaluation(suite, name, kind, rows, metrics, **changes) for rows in sides]
        for folder, e, rows in zip((self.before, self.after), held, sides, strict=True):
            folder.write(e, rows)
        self.comparisons += compare_samples(sides[0], sides[1], held[0], held[1])
        return self


GATES = [
    GateOutcome(
        rule="knowledge drop > 1pt",
        direction="drop",
        operator=">",
        suite="knowledge",
        name="mmlu",
        metric="acc",
        outcome="undecided",
        value=1.75,
        interval=(-0.1, 3.6),
        threshold=1.0,
        unit="pt",
        why="threshold inside",
    ),
    GateOutcome(
        rule="gsm8k drop > 2pt",
        direction="drop",
        operator=">",
        suite="reasoning",
        name="gsm8k",
        metric="exact_match,strict-match",
        outcome="failed",
        value=6.9,
        interval=(2.7, 11.1),
        threshold=2.0,
        unit="pt",
        why="beyond",
    ),
    GateOutcome(
        rule="prose perplexity rise > 5%",
        direction="rise",
        operator=">",
        suite="keep",
        name="prose",
        metric="perplexity",
        outcome="passed",
        value=3.0,
        interval=(2.1, 3.9),
        threshold=5.0,
        unit="%",
        why="within",
    ),
]


def evaluation_record(labels: Sequence[str], **changes: Any) -> EvaluationRecord:
    fields: dict[str, Any] = {
        "models": [
            {
                "label": label,
                "name": f"Qwen/{label}",
                "hash": doc_hash(label),
                "architecture": "Qwen2ForCausalLM",
                "parameters": 494_032_768,
            }
            for label in labels
        ],
        "suites": ["knowledge", "reasoning", "mine.yaml"],
        "plan": {"batch_size": 8, "confidence": 0.95, "seed": 0},
        "status": "finished",
        "created": "2025-11-20T09:12:44Z",
        "finished": "2025-11-20T10:01:02Z",
        "versions": {"holdfast": "0.1.0", "torch": "2.13.0", "python": "3.11.9"},
        "hardware": {"device": "NVIDIA H200", "devices": 1, "precision": "bfloat16"},
    }
    return EvaluationRecord(**{**fields, **changes})
