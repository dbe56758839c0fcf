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
    """"learn" (what is learnt), "keep" (what must be kept) or "validation" (what settings are
    chosen by)."""
    entries: list[Entry]
    label: str
    """For people, such as "gsm8k" or "mean of mmlu, triviaqa"."""
    unit: str
    """As of `Comparison.unit`."""
    higher_is_better: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeedRun:
    """One finished fine-tuning of a trial."""

    seed: int
    folder: str
    """The run's folder, relative to the study's."""
    host: str
    """The machine that has it."""
    seconds: float
    """Of the whole run in the worker: loading, training, measuring, writing."""
    training_seconds: float
    """Of the optimiser's steps."""
    comparisons: list[Comparison]
    """Start against result, for every entry and metric."""
    references: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    """By "suite/name/metric": levels that say what a figure is worth, in its unit, see
    `Evaluation.references`."""
    steps: int | None = None
    """Of the optimiser; None in records of earlier versions."""


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
    """For people: the method and what was varied, such as "label annealing, weight 1"."""
    arm: str = ""
    """For people: the arm that it is a setting of, without what varies, such as "label annealing
    (other text)"; empty in records of earlier versions."""
    titles: dict[str, str] = dataclasses.field(default_factory=dict)
    """Titles of those of its methods that are not holdfast's own, by name."""
    params: dict[str, Any]
    """What was varied, by key."""
    settings: dict[str, Any]
    """The training configuration without seed and output folder; as `holdfast train --config` takes
    it. Empty until the trial began."""
    runs: list[SeedRun]
    """By seed, those that are finished."""
    reason: str | None = None
    """Why it failed."""
    continued_by: int | None = None
    """The number of the trial that took over, for a lost one."""
    worker: str = ""
    """host:process of the worker that has or had it."""
    started: str | None = None
    finished: str | None = None
    overhead: float = 0.0
    """Seconds of the worker on this trial that were spent on the study's bookkeeping, not in a
    run."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleCorrelation:
    """How far trials gain on the same samples of an entry; see `statistics.samples_part`."""

    entry: Entry
    trials: list[int]
    """Numbers, of those whose samples are all there."""
    rows: list[list[float]]
    """For each of `trials` the correlations with those before it, -1 to 1."""

    @functools.cached_property
    def places(self) -> dict[int, int]:
        """Of the trials in `trials`."""
        return {number: place for place, number in enumerate(self.trials)}

    def between(self, one: int, other: int) -> float:
        """Of two trials, by their numbers; 1 of a trial with itself.

        Raises:
            KeyError: one of them is not there.
        """
        low, high = sorted((self.places[one], self.places[other]))
        return 1.0 if low == high else self.rows[high][low]


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class StudyRecord(Displayed, BaseRecord):
    """study.json."""

    file: ClassVar[str] = STUDY_FILE
    seeds: list[int]
    learn: Objective
    keep: Objective
    pairs: list[tuple[Objective, Objective]]
    """Every (learn entry, keep entry) that a plot is drawn of."""
    trials: list[TrialRecord]
    selection: dict[str, Any]
    """`{"rule": ..., "points": ...}` as configured."""
    validation: Objective | None = None
    """What every choice goes by in place of `learn`, with none of its entries; None: `learn`
    itself."""
    correlations: list[SampleCorrelation] = dataclasses.field(default_factory=list)
    """By entry of the objectives, once a session has ended; none in records of earlier versions."""
    sampler: str = "grid"
    storage: str = ""
    """Address without user and password."""

    @property
    def chooses_by(self) -> Objective:
        """What a choice goes by in place of `learn`."""
        return self.learn if self.validation is None else self.validation

    @property
    def direct(self) -> TrialRecord | None:
        """Direct fine-tuning, the reference: of its trials (it may have several rates) the one that
        learns best by `chooses_by`, of those that have all seeds and measures; None where none
        ended yet."""
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
        """By "suite/name/metric": what the runs know of levels such as "unigram" and "chance"."""
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
    """The study in a folder.

    Raises:
        DataError: no study.json, or one that cannot be read.
    """
    return StudyRecord.read(folder)
