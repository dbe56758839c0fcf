"""Plain records of a study: what was varied, every trial, what each seed measured. JSON on disk, no
torch, no Optuna.

A study is a folder:

```
study.json                  StudyRecord, written anew whenever a trial ends, from the storage
study.db                    Optuna's storage, where no other was named
runs/<key>/seed-<n>/        one ordinary run folder a trial and seed; <key> is a hash of the trial's settings
evaluations/                measurements shared by all runs: the start is measured once
logs/                       what the workers print
report.html                 the page
```

Every measurement is a `Comparison` of the start with the run's result, paired sample by sample;
figures and plots need nothing else.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Mapping
from typing import Any, ClassVar

from holdfast.records.base import BaseRecord
from holdfast.records.comparison import Comparison
from holdfast.support.display import Displayed
from holdfast.support.files import record_from

STUDY_FILE = "study.json"
FINISHED = "complete"


Entry = tuple[str, str, str]
"""(suite, name, metric)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective:
    """One side of the trade-off: a metric of one entry, or the mean over several entries of the
    same unit."""

    side: str
    """The side: "learn" (what is learnt), "keep" (what must be kept) or "validation" (what settings
    are chosen by)."""
    entries: list[Entry]
    label: str
    """A label for people, such as "gsm8k" or "mean of mmlu, triviaqa"."""
    unit: str
    """The unit, as in `Comparison.unit`."""
    higher_is_better: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeedRun:
    """One finished fine-tuning run of a trial."""

    seed: int
    folder: str
    """The run's folder, relative to the study's folder."""
    host: str
    """The machine that has the folder."""
    seconds: float
    """Seconds of the whole run in the worker: loading, training, measuring, writing."""
    training_seconds: float
    """Seconds of the optimiser steps."""
    comparisons: list[Comparison]
    """The initial model compared with the result, for every entry and metric."""
    references: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    """Reference levels by "suite/name/metric", in the metric's unit, see
    `Evaluation.references`."""
    steps: int | None = None
    """Number of optimiser steps; None in records of earlier versions."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """One combination of the varied settings."""

    number: int
    state: str
    """"waiting", "running", "complete", "pruned", "failed" or "lost" (its worker died;
    `continued_by` has it now)."""
    kind: str
    """"direct", or the names of its methods joined by "+"."""
    label: str
    """A label for people: the method and the varied settings, such as "label annealing, weight
    1"."""
    arm: str = ""
    """A label for people: the arm of the trial, without the varied settings, such as "label
    annealing (other text)"; empty in records of earlier versions."""
    titles: dict[str, str] = dataclasses.field(default_factory=dict)
    """Titles, by name, of methods that are not holdfast's own."""
    params: dict[str, Any]
    """The varied settings, by key."""
    settings: dict[str, Any]
    """The training configuration without seed and output folder, in the form that `holdfast train
    --config` takes. Empty until the trial begins."""
    runs: list[SeedRun]
    """The finished runs, by seed."""
    reason: str | None = None
    """Why the trial failed."""
    continued_by: int | None = None
    """For a lost trial, the number of the trial that took over."""
    worker: str = ""
    """host:process of the worker that runs or ran the trial."""
    started: str | None = None
    finished: str | None = None
    overhead: float = 0.0
    """Seconds that the worker spent on bookkeeping of the study for this trial, not in a run."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleCorrelation:
    """How strongly trials gain on the same samples of an entry; see `statistics.samples_part`."""

    entry: Entry
    trials: list[int]
    """Numbers of the trials whose samples are all available."""
    rows: list[list[float]]
    """For each trial in `trials`, the correlations with the trials before it, -1 to 1."""

    @functools.cached_property
    def places(self) -> dict[int, int]:
        """Position of each trial in `trials`, by its number."""
        return {number: position for position, number in enumerate(self.trials)}

    def between(self, one: int, other: int) -> float:
        """The correlation of two trials, given by number; 1 for a trial with itself.

        Raises:
            KeyError: one of the trials is not in `trials`.
        """
        low, high = sorted((self.places[one], self.places[other]))
        return 1.0 if low == high else self.rows[high][low]


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class StudyRecord(Displayed, BaseRecord):
    """The content of study.json: objectives, trials and how trials are chosen."""

    file: ClassVar[str] = STUDY_FILE
    seeds: list[int]
    learn: Objective
    keep: Objective
    pairs: list[tuple[Objective, Objective]]
    """Every (learn entry, keep entry) that has a plot."""
    trials: list[TrialRecord]
    selection: dict[str, Any]
    """`{"rule": ..., "points": ...}` as configured."""
    validation: Objective | None = None
    """The objective that every choice uses in place of `learn`; the two share no entry. None:
    choices use `learn`."""
    correlations: list[SampleCorrelation] = dataclasses.field(default_factory=list)
    """Correlations for each entry of the objectives, once a session has ended; empty in records of
    earlier versions."""
    sampler: str = "grid"
    storage: str = ""
    """Address of the storage, without user and password."""

    @property
    def chooses_by(self) -> Objective:
        """The objective that choices use: `validation`, or `learn` without one."""
        return self.learn if self.validation is None else self.validation

    @property
    def direct(self) -> TrialRecord | None:
        """The trial of direct fine-tuning, the reference. If there are several (at several learning
        rates), it is the one that learns best by `chooses_by` among those with all seeds and
        measurements. None if none has ended yet."""
        ended = [t for t in self.trials if t.kind == "direct" and t.state == FINISHED]
        best, most = next(iter(ended), None), -math.inf
        for trial in ended:
            gain = self._learnt(trial)
            if gain is not None and gain > most:
                best, most = trial, gain
        return best

    def _learnt(self, trial: TrialRecord) -> float | None:
        """A trial's mean gain by `chooses_by`; None where a seed or a measure is missing, or is not
        finite."""
        gains = {}
        for run in trial.runs:
            for c in run.comparisons:
                gains[run.seed, (c.suite, c.name, c.metric)] = c.gain
        chosen_by = [
            gains.get((seed, entry), math.nan)
            for seed in self.seeds
            for entry in self.chooses_by.entries
        ]
        return (
            sum(chosen_by) / len(chosen_by)
            if chosen_by and all(map(math.isfinite, chosen_by))
            else None
        )

    @property
    def references(self) -> dict[str, dict[str, float]]:
        """Reference levels of all runs, such as "unigram" and "chance", by "suite/name/metric"."""
        return {
            key: levels
            for t in self.trials
            for run in t.runs
            for key, levels in run.references.items()
        }


def seed_run_from_json(value: Mapping[str, Any]) -> SeedRun:
    """A seed's run as `to_jsonable` wrote it."""
    return record_from(SeedRun, value)


def read_study(folder: str | os.PathLike[str]) -> StudyRecord:
    """Reads the study in a folder.

    Raises:
        DataError: study.json is missing or cannot be read.
    """
    return StudyRecord.read(folder)
