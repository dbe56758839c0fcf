"""Rules that choose a trial of a sweep (Memory Retaining Finetuning, section 3.2 and figures 2, 3),
on tables of gains.

- `paper`: drop the trials that learn nothing beyond the start; of the rest take the one that keeps
  most. Ties: the one that learns more. The paper improves by the point estimate; `strict` asks for
  the whole interval above the start.
- `keep_within`: of the trials that lose no more of what is kept than `points` against the start,
  the one that learns most. `points` is a number of 0 or more in the metric's unit; "1pt" is 0.01 of
  a share such as an accuracy. `strict` asks for the whole interval of keep within it. Ties: the one
  that keeps more. Without `points`: a tenth of what direct fine-tuning loses.
- `knee`: on the Pareto frontier of the trials and the start, the trial farthest beyond the chord
  between the frontier's two ends. Both axes run from 0 to 1 between these ends, so the distance is
  (keep + learn - 1) / sqrt(2). The choice does not depend on that scaling (it multiplies every
  distance to one line by the same number), the distance does. The start is a point of the frontier
  where nothing beats it on both sides; it cannot be chosen. One trial alone on the frontier is
  chosen; of two trials, neither of which has a chord to stand out from, the one that keeps more. If
  all lie within the chord, its end is chosen: nothing is better than going back and forth between
  the two. Ties: the one that keeps more.

A rule sees a `Table`: gains of all candidates, seeds by trials, so that it can choose again with
other seeds. Where the study has a validation, that is the learn side of the table, and the figures
of `learn` itself choose nothing.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np

from holdfast.config.decode import decode
from holdfast.errors import ConfigError, Problem
from holdfast.records.figure import CONFIDENCE
from holdfast.records.study import Objective, StudyRecord, TrialRecord
from holdfast.statistics.gains import half_width, measures
from holdfast.statistics.pareto import knee_distances
from holdfast.statistics.percentage_points import allowance, parse_points
from holdfast.support.quantiles import t_quantile

RuleName = Literal["paper", "keep_within", "knee"]
RULES: tuple[RuleName, ...] = get_args(RuleName)
DEFAULT_RULE: RuleName = "knee"
"""`paper` takes the strongest pull that still learns something, however little: on a small study 46
% of what direct fine-tuning gained, where another trial had all of it and avoided three quarters of
the loss."""
ALLOWANCE = 0.1
"""The share of direct fine-tuning's loss that `keep_within` allows where no `points` are given."""

ROUNDING = 1e-12
"""Gains that differ by less are equal: a loss of .50 - .49 is one point, whatever the last bit
says."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule as a study's `select:` section asks for it."""

    rule: RuleName = DEFAULT_RULE
    """Rule that chooses the trial."""
    points: float | str | None = None
    """Largest loss on keep that `keep_within` allows: a number in the metric's unit, or points
    such as "1pt"."""
    strict: bool = False
    """Require the whole interval, not only the point estimate, to satisfy the rule."""

    @property
    def name(self) -> str:
        """Of the rule."""
        return self.rule

    def problems(self) -> list[Problem]:
        """Options that do not fit the rule."""
        problems = []
        if self.points is not None:
            wrong = parse_points(self.points)
            if self.rule != "keep_within":
                text = (
                    f"applies only to the rule 'keep_within'. The rule '{self.rule}' has no allowed "
                    "loss. Leave out points, or change the rule."
                )
                problems.append(Problem("points", text))
            elif isinstance(wrong, str):
                problems.append(Problem("points", wrong))
        if self.strict and self.rule == "knee":
            text = (
                "applies only to the rules 'paper' and 'keep_within'. The rule 'knee' compares no "
                "trial with a bound. Leave out strict."
            )
            problems.append(Problem("strict", text))
        return problems


def rule_from_config(value: Mapping[str, Any]) -> Rule:
    """The rule of a study's `select:` section, such as `{"rule": "keep_within", "points": "1pt"}`.

    Raises:
        ConfigError: an unknown key or rule, or options that do not fit, all at once. Whether
            `points` fits the metric is seen by `allowance`.
    """
    rule, problems = decode(Rule, value)
    if rule is None:
        raise ConfigError([problem.below("select") for problem in problems])
    return rule


@dataclasses.dataclass(frozen=True, kw_only=True)
class Side:
    """Gains of all candidates on one side: seeds by trials, and the half-widths of the entries'
    samples: entries by seeds by trials."""

    gains: np.ndarray
    halves: np.ndarray

    def of(self, counts: np.ndarray, *, strict: bool) -> tuple[np.ndarray, np.ndarray]:
        """(means, half-widths) `[T]` of the seeds taken `counts[n]` times; the half-widths are 0
        where nobody asks (not strict)."""
        n = int(counts.sum())
        means = counts @ self.gains / n
        if not strict:
            return means, np.zeros_like(means)
        samples = (counts @ self.halves / n).reshape(len(self.halves), -1)
        samples = np.sqrt((samples**2).sum(0)) / len(self.halves)
        samples[np.isnan(samples)] = (
            0.0  # without an interval, as of a single sample, seeds alone are known
        )
        if n == 1:
            return means, np.where(samples > 0, samples, np.nan)
        variance = counts @ (self.gains - means) ** 2 / (n - 1)
        return means, np.hypot(
            t_quantile(n - 1, 0.5 + CONFIDENCE / 2) * np.sqrt(variance / n), samples
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """All that a rule looks at."""

    trials: list[TrialRecord]
    seeds: list[int]
    learn: Side
    """What learning is judged by: the validation where the study has one."""
    keep: Side
    learnt: Side
    """The learn side's own figures, by which a choice is scored."""
    direct: int | None
    """Place of direct fine-tuning."""

    def allowed(self, keep: np.ndarray, points: float | None) -> float:
        """The loss that `keep_within` allows; without `points` a share of what direct fine-tuning
        lost on the same seeds."""
        if points is not None:
            return points
        return 0.0 if self.direct is None else max(0.0, -ALLOWANCE * float(keep[self.direct]))

    def choose(self, counts: np.ndarray, rule: Rule, points: float | None) -> int | None:
        """Place of the trial that the rule takes when seed i was run `counts[i]` times."""
        learn, learn_half = self.learn.of(counts, strict=rule.strict)
        keep, keep_half = self.keep.of(counts, strict=rule.strict)
        if rule.name == "paper":
            return best_place(learn - learn_half > ROUNDING, keep, learn)
        if rule.name == "keep_within":
            return best_place(
                keep - keep_half >= -self.allowed(keep, points) - ROUNDING, learn, keep
            )
        distances = knee_distances([*zip(keep.tolist(), learn.tolist(), strict=True), (0.0, 0.0)])
        distances.pop(len(self.trials), None)  # the start
        reach = np.full(len(self.trials), -math.inf)
        reach[list(distances)] = list(distances.values())
        return best_place(reach > -math.inf, reach, keep)


def best_place(allowed: np.ndarray, first: np.ndarray, second: np.ndarray) -> int | None:
    """The allowed place with the largest `first`, then `second`, then the first of them."""
    places = np.flatnonzero(allowed)
    for values in (first, second):
        if places.size:
            places = places[values[places] >= values[places].max() - ROUNDING]
    return int(places[0]) if places.size else None


def allowed_loss(record: StudyRecord, rule: Rule) -> float | None:
    """`points` in the keep side's unit; None where the rule has none."""
    if rule.points is None:
        return None
    entries = set(record.keep.entries)
    values: list[float] = []
    for trial in record.trials:
        for run in trial.runs:
            for c in run.comparisons:
                if (c.suite, c.name, c.metric) in entries:
                    values += (c.before, c.after)
    return allowance(rule.points, record.keep, filter(math.isfinite, values))


def table_of(record: StudyRecord, trials: list[TrialRecord]) -> Table:
    """The gains of complete trials on both sides of a study."""

    def side(objective: Objective) -> Side:
        gains = np.zeros((len(record.seeds), len(trials)))
        halves = np.zeros((len(objective.entries), len(record.seeds), len(trials)))
        for column, trial in enumerate(trials):
            runs = {run.seed: run for run in trial.runs}
            for row, seed in enumerate(record.seeds):
                measured = measures(runs[seed].comparisons, objective.entries) or []
                gains[row, column] = statistics.fmean(c.gain for c in measured)
                halves[:, row, column] = [half_width(c) for c in measured]
        return Side(gains=gains, halves=halves)

    direct = next((number for number, trial in enumerate(trials) if trial is record.direct), None)
    learnt = side(record.learn)
    return Table(
        trials=trials,
        seeds=list(record.seeds),
        learn=learnt if record.validation is None else side(record.validation),
        keep=side(record.keep),
        learnt=learnt,
        direct=direct,
    )
