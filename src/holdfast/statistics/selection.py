"""Which trial of a trade-off study to take: rules, and how far their choice can be trusted (paper 000, section 3.2 and
figures 2, 3).

A trial changes two sides: the target (what is learnt) and the source (what must be kept). On each side a seed's *gain*
is the mean over the side's entries of `Comparison.gain`: against the start, more is better, in the metric's own unit. A
trial's gain is the mean over its seeds.

Rules
-----
- `paper`: drop the trials whose target does not improve on the start; of the rest take the best source. Ties: the
  better target. The paper improves by the point estimate; `strict` asks for the whole interval above the start.
- `target_within`: the best target among the trials whose source loses no more than `points` against the start. `points`
  is the loss that is allowed, so a number of 0 or more in the metric's unit; "1pt" is 0.01 of a share such as an
  accuracy. `strict` asks for the whole interval of the source within it. Ties: the better source. Without `points`: a
  tenth of what direct fine-tuning loses.
- `knee`: on the Pareto frontier of the trials and the start, the trial farthest beyond the chord between the frontier's
  two ends. Both axes run from 0 to 1 between these ends, so the distance is (source + target - 1) / sqrt(2). The choice
  does not depend on that scaling (it multiplies every distance to one line by the same number), the distance does. The
  start is a point of the frontier where nothing beats it on both sides; it cannot be chosen. One trial alone on the
  frontier is chosen; of two trials, neither of which has a chord to stand out from, the better source. If all lie
  within the chord, its end is chosen: nothing is better than going back and forth between the two. Ties: the better
  source.

Only complete trials that have all of the study's seeds count. Direct fine-tuning is a candidate of every rule: where it
forgets it has the worst source, so `paper` (which the paper sweeps over the method's trials alone) passes it over
without being told to.

Intervals (95 %) of a gain cover training seeds and evaluated samples:

    half^2 = (t_{n-1} * s / sqrt(n))^2 + sum_e(h_e^2) / E^2

with n seeds of standard deviation s, and h_e the half-width of the paired interval of entry e, mean over the seeds.
Seeds share their samples, so more seeds do not shrink the second part. One seed leaves the samples alone; `Gain.covers`
says what an interval holds.

Shares of what direct fine-tuning did are ratios of two such means: kept = target / direct's target, avoided = 1 -
source / direct's source. Their intervals are Fieller's (1954), with the covariance over the seeds that both share, and
the samples' parts as if they were independent (they are the same samples, so this is rather too wide):

    (a - r b)^2 <= (t^2 V_aa + h_a^2) - 2 r t^2 V_ab + r^2 (t^2 V_bb + h_b^2)

There is none where direct's own change cannot be told from zero (b^2 below its own half-width squared): the set is then
unbounded.

A chosen trial's own interval is too good: the noise that made it the winner is in it. `Selection.rule_target` and
`rule_source` score the *rule* instead, leave one seed out: choose on the others, score on the one left out, t-interval
over the seeds (Cawley and Talbot 2010, JMLR 11, on selection bias). `stability` chooses again on bootstrap draws of the
seeds, drawn alike for all trials. With one seed there is neither.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from holdfast.errors import ConfigError, did_you_mean
from holdfast.records.comparison import Comparison
from holdfast.records.study import FINISHED, Objective, SeedRun, StudyRecord, TrialRecord

CONFIDENCE = 0.95
RULES = ("paper", "target_within", "knee")
RULE_KEYS = ("rule", "points", "strict")
MOST_ENUMERATED = 3125
"""Bootstrap draws of the seeds are enumerated up to this many (5 seeds), drawn at random beyond."""
DRAWS = 2000
ALLOWANCE = 0.1
"""The share of direct fine-tuning's loss that `target_within` allows where no `points` are given."""

_ROUNDING = 1e-12
"""Gains that differ by less are equal: a loss of .50 - .49 is one point, whatever the last bit says."""

BOTH, SAMPLES, SEEDS, NOTHING = "seeds and samples", "samples only", "seeds only", "nothing"


# ------------------------------------------------------------------------------------------------------------ records


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gain:
    """What one trial changed on one side: mean over seeds and entries, against the start, more is better."""

    value: float
    """In `unit`."""
    interval: tuple[float, float] | None
    """At `CONFIDENCE`; None where neither seeds nor samples give one."""
    covers: str
    """"seeds and samples", "samples only", "seeds only" or "nothing": the parts of the interval."""
    by_seed: dict[int, float]
    """The gain of each seed."""
    before: float
    """The start's figure, mean over entries, in the metric's own direction."""
    after: float
    """The trial's, mean over entries and seeds."""
    unit: str
    higher_is_better: bool
    samples: int
    """Evaluated samples of all entries together; the same ones for every seed."""
    samples_half: float
    """Half-width of the samples' part, 0 where it could not be had."""

    @property
    def half(self) -> float:
        """Half-width of the interval; NaN without one."""
        return math.nan if self.interval is None else (self.interval[1] - self.interval[0]) / 2

    @property
    def interval_after(self) -> tuple[float, float] | None:
        """The interval around `after`: that of the paired change, so the start counts as known."""
        if self.interval is None:
            return None
        return (self.after - self.half, self.after + self.half)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RuleGain:
    """What a rule earns on seeds that it did not choose by."""

    value: float
    """Mean over the left-out seeds."""
    interval: tuple[float, float]
    """t-interval over the seeds at `CONFIDENCE`; the samples' part is not in it."""
    by_seed: dict[int, float]
    """Left-out seed -> gain on it of the trial chosen by the others; 0 (the start) where they chose none."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Share:
    """A share of what direct fine-tuning gained or lost, 1 is all of it."""

    value: float | None
    """None where there is nothing to take a share of."""
    interval: tuple[float, float] | None
    """Fieller's at `CONFIDENCE`."""
    reason: str | None
    """Why there is no value, or no interval."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dropped:
    """A trial that was not chosen from, and why."""

    number: int
    label: str
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule as configured; `rule_from_config` makes it."""

    name: str
    """One of `RULES`."""
    points: float | str | None = None
    """The source loss that `target_within` allows: a number in the metric's unit, or such as "1pt"."""
    strict: bool = False
    """Ask for the whole interval instead of the point."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selection:
    """What a rule chose, by how much, and how firmly."""

    rule: str
    """"paper", "target_within" or "knee"."""
    text: str
    """The rule in a sentence, with its allowance."""
    points: float | None
    """The allowed loss of `target_within` in the source's unit; None for the other rules."""
    strict: bool
    chosen: int | None
    """Number of the trial, None where the rule finds none."""
    label: str | None
    """The chosen trial's."""
    reason: str
    """Why this one, or why none."""
    target: Gain | None
    source: Gain | None
    kept: Share | None
    """Of direct fine-tuning's gain on the target; None without a chosen trial."""
    avoided: Share | None
    """Of direct fine-tuning's loss on the source."""
    candidates: list[int]
    """Complete trials with all seeds and measures."""
    dropped: list[Dropped]
    """Every other trial, and the candidates that the rule left out."""
    stability: dict[int, float] | None
    """Trial -> share of the bootstrap draws over seeds in which it is chosen, largest first; None with one seed."""
    stability_none: float | None
    """Share of the draws in which no trial is chosen."""
    draws: int
    """Draws behind `stability`."""
    rule_target: RuleGain | None
    """What the rule earns on seeds that it did not see; None with one seed."""
    rule_source: RuleGain | None
    left_out: dict[int, int | None]
    """Left-out seed -> trial chosen by the others."""
    seeds_reason: str | None
    """Why `stability`, `rule_target` and `rule_source` are None."""


# -------------------------------------------------------------------------------------------------------------- gains


@functools.cache
def t_quantile(df: int, p: float) -> float:
    """The p-quantile (0 < p < 1) of Student's t with `df` >= 1 degrees of freedom, by bisection of the closed form for
    whole df.

    Source: Abramowitz and Stegun 26.7.3 and 26.7.4.
    """
    if p < 0.5:
        return -t_quantile(df, 1 - p)
    low, high = 0.0, 1.0
    while _t_between(high, df) < 2 * p - 1:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_between(middle, df) < 2 * p - 1 else (low, middle)
    return (low + high) / 2


def _t_between(t: float, df: int) -> float:
    """P(-t < T < t)."""
    angle = math.atan(t / math.sqrt(df))
    cosine, sine = math.cos(angle), math.sin(angle)
    term = total = cosine if df % 2 else 1.0
    for k in range(3 if df % 2 else 2, df - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    if df % 2 == 0:
        return sine * total
    return 2 / math.pi * (angle + (sine * total if df > 1 else 0.0))


def mean_gain(trial: TrialRecord, objective: Objective, *, seeds: Iterable[int] | None = None) -> Gain | None:
    """A trial's gain on one side with its interval (see the module docstring).

    Args:
        trial: any state.
        objective: a side, or one entry of it.
        seeds: those that must be there; those of the trial's runs by default.

    Returns:
        None where a seed is not finished, or one of its measures is missing or not finite.
    """
    runs = {run.seed: run for run in trial.runs}
    wanted = list(dict.fromkeys(runs if seeds is None else seeds))
    found = [_measures(runs[s], objective) for s in wanted if s in runs]
    measured = [m for m in found if m is not None]
    if not wanted or len(measured) < len(wanted):
        return None
    by_seed = [statistics.fmean(c.gain for c in one) for one in measured]
    count, entries = len(wanted), len(objective.entries)
    halves = [[_half_width(c) for c in one] for one in measured]  # seed, entry
    samples_half = _finite_or_zero(
        math.sqrt(sum(statistics.fmean(column) ** 2 for column in zip(*halves, strict=True))) / entries
    )
    seeds_half = (
        t_quantile(count - 1, 0.5 + CONFIDENCE / 2) * statistics.stdev(by_seed) / math.sqrt(count) if count > 1 else 0.0
    )
    covers = {(True, True): BOTH, (False, True): SAMPLES, (True, False): SEEDS, (False, False): NOTHING}[
        count > 1, samples_half > 0
    ]
    value, half = statistics.fmean(by_seed), math.hypot(seeds_half, samples_half)
    first = measured[0]
    return Gain(
        value=value,
        interval=None if covers == NOTHING else (value - half, value + half),
        covers=covers,
        by_seed=dict(zip(wanted, by_seed, strict=True)),
        before=statistics.fmean(c.before for one in measured for c in one),
        after=statistics.fmean(c.after for one in measured for c in one),
        unit=objective.unit,
        higher_is_better=objective.higher_is_better,
        samples=sum(c.n for c in first),
        samples_half=samples_half,
    )


def gain_over_seeds(comparisons: Mapping[int, Sequence[Comparison]], objective: Objective) -> Gain | None:
    """`mean_gain` of what was compared anyhow: the comparisons of one pair of models by the training seed of the pair.

    Args:
        comparisons: seed -> what was compared.
        objective: the entries that are averaged.
    """
    runs = [
        SeedRun(seed=s, folder="", host="", seconds=0.0, training_seconds=0.0, comparisons=list(found))
        for s, found in comparisons.items()
    ]
    return mean_gain(
        TrialRecord(number=0, state=FINISHED, kind="", label="", params={}, settings={}, runs=runs), objective
    )


def _measures(run: SeedRun, objective: Objective) -> list[Comparison] | None:
    """The comparisons of the objective's entries, in order; None where one is missing or not finite."""
    by_key = {(c.suite, c.name, c.metric): c for c in run.comparisons}
    found = [by_key.get(entry) for entry in objective.entries]
    known = [c for c in found if c is not None and math.isfinite(c.gain)]
    return known if known and len(known) == len(found) else None


def _half_width(comparison: Comparison) -> float:
    """At `CONFIDENCE`, whatever the comparison's own; NaN without an interval."""
    low, high = comparison.interval
    scale = 1.0 if comparison.confidence == CONFIDENCE else _z(CONFIDENCE) / _z(comparison.confidence)
    return scale * (high - low) / 2


def _z(confidence: float) -> float:
    return statistics.NormalDist().inv_cdf(0.5 + confidence / 2)


def _finite_or_zero(value: float) -> float:
    return value if math.isfinite(value) else 0.0


def incomplete(trial: TrialRecord, record: StudyRecord) -> str | None:
    """Why a trial cannot be chosen: not complete, a seed or a measure missing; None where it can."""
    if trial.state == "lost":
        return "its worker died" + (
            f"; trial {trial.continued_by} has it now" if trial.continued_by is not None else ""
        )
    if trial.state != FINISHED:
        words = {"waiting": "has not begun", "running": "is still running"}.get(trial.state, trial.state)
        again = f"; trial {trial.continued_by} has it now" if trial.continued_by is not None else ""
        return (f"{words}: {trial.reason}" if trial.reason else words) + again
    lacking = [s for s in record.seeds if s not in {run.seed for run in trial.runs}]
    if lacking:
        return f"{'seeds' if len(lacking) > 1 else 'seed'} {', '.join(map(str, lacking))} not finished"
    for run in trial.runs:
        by_key = {(c.suite, c.name, c.metric): c for c in run.comparisons}
        for objective in (record.target, record.source):
            for entry in objective.entries if run.seed in record.seeds else ():
                if entry not in by_key:
                    return f"seed {run.seed} has no {'/'.join(entry)}"
                if not math.isfinite(by_key[entry].gain):
                    return f"seed {run.seed}: {'/'.join(entry)} is not finite"
    return None


# ---------------------------------------------------------------------------------------------------- shares of direct


def shares(trial: TrialRecord, record: StudyRecord) -> tuple[Share, Share]:
    """(share of direct fine-tuning's target gain kept, share of its source loss avoided), with Fieller's intervals over
    seeds and samples.

    A share above 1 kept more than direct gained; below 0 it lost. Values are None where direct gained (or lost)
    nothing, or either trial is incomplete.
    """
    direct = record.direct
    if trial is direct:
        reference = Share(value=None, interval=None, reason="direct fine-tuning is what the shares are of")
        return reference, reference
    if direct is None or incomplete(direct, record):
        nothing = Share(value=None, interval=None, reason="direct fine-tuning is not finished")
        return nothing, nothing
    pairs = [(mean_gain(t, o, seeds=record.seeds)) for o in (record.target, record.source) for t in (trial, direct)]
    target, direct_target, source, direct_source = pairs
    if target is None or source is None or direct_target is None or direct_source is None:
        nothing = Share(value=None, interval=None, reason="the trial has not all seeds and measures")
        return nothing, nothing
    kept = _ratio(
        target,
        direct_target,
        "direct fine-tuning gained nothing on the target" if direct_target.value <= 0 else None,
        "gain",
    )
    lost = _ratio(
        source,
        direct_source,
        "direct fine-tuning lost nothing on the source" if direct_source.value >= 0 else None,
        "loss",
    )
    if lost.value is None:
        return kept, lost
    turned = None if lost.interval is None else (1 - lost.interval[1], 1 - lost.interval[0])
    return kept, Share(value=1 - lost.value, interval=turned, reason=lost.reason)


def _ratio(ours: Gain, direct: Gain, nothing: str | None, what: str) -> Share:
    if nothing is not None:
        return Share(value=None, interval=None, reason=nothing)
    a, b, n = ours.value, direct.value, len(ours.by_seed)
    aa, ab, bb = ours.samples_half**2, 0.0, direct.samples_half**2
    if n > 1:
        t = t_quantile(n - 1, 0.5 + CONFIDENCE / 2)
        seeds = np.array([list(ours.by_seed.values()), [direct.by_seed[s] for s in ours.by_seed]])
        spread = t * t * np.cov(seeds) / n
        aa, ab, bb = aa + float(spread[0, 0]), float(spread[0, 1]), bb + float(spread[1, 1])
    if NOTHING in (ours.covers, direct.covers):
        return Share(value=a / b, interval=None, reason="neither seeds nor samples give an interval")
    leading = b * b - bb
    if leading <= 0:
        return Share(value=a / b, interval=None, reason=f"direct fine-tuning's own {what} cannot be told from zero")
    middle = a * b - ab
    root = math.sqrt(max(0.0, middle * middle - leading * (a * a - aa)))
    return Share(value=a / b, interval=((middle - root) / leading, (middle + root) / leading), reason=None)


# --------------------------------------------------------------------------------------------------------- the frontier


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the points that no other point beats: more is better on both axes, and beating is at least as good on
    both and better on one.

    Equal points stay together; points with a NaN are never among them.

    Returns:
        Indices by the first coordinate ascending (so the second descends), then by place.
    """
    values = np.asarray(points, dtype=np.float64).reshape(-1, 2)
    known = np.flatnonzero(~np.isnan(values).any(1))
    order = known[np.lexsort((known, -values[known, 1], -values[known, 0]))]
    kept: list[int] = []
    best = -math.inf
    for i in order:
        if values[i, 1] > best or (kept and np.array_equal(values[i], values[kept[-1]])):
            kept.append(int(i))
            best = float(values[i, 1])
    return sorted(kept, key=lambda i: (values[i, 0], -values[i, 1], i))


def knee_distances(points: Sequence[tuple[float, float]]) -> dict[int, float]:
    """How far each point of the frontier lies beyond the chord between its ends, with both axes scaled to 0..1 between
    these ends.

    Args:
        points: (source, target) gains; more is better on both.

    Returns:
        Index -> distance; 0 for the ends and for a frontier of one point, negative within the chord. Empty without
        points.
    """
    frontier = pareto(points)
    if not frontier:
        return {}
    (low_x, high_y), (high_x, low_y) = points[frontier[0]], points[frontier[-1]]
    if high_x == low_x:
        return dict.fromkeys(frontier, 0.0)
    scaled = {
        i: ((points[i][0] - low_x) / (high_x - low_x), (points[i][1] - low_y) / (high_y - low_y)) for i in frontier
    }
    return {i: (x + y - 1) / math.sqrt(2) for i, (x, y) in scaled.items()}


# --------------------------------------------------------------------------------------------------------------- rules


def rule_from_config(value: Mapping[str, Any]) -> Rule:
    """The rule of a study's `select:` section, such as `{"rule": "target_within", "points": "1pt"}`.

    Raises:
        ConfigError: an unknown key or rule, or options that do not fit, all at once. Whether `points` fits the metric
            is seen by `allowance`.
    """
    known = f" Known: {', '.join(RULE_KEYS)}."
    problems = [f"select: unknown key '{k}'.{did_you_mean(k, RULE_KEYS) or known}" for k in value if k not in RULE_KEYS]
    name, points, strict = value.get("rule", "paper"), value.get("points"), value.get("strict", False)
    if name not in RULES:
        problems.append(
            f"select: expected one of the rules {', '.join(RULES)}, got {name!r}.{did_you_mean(str(name), RULES)}"
        )
    if points is not None:
        if name in ("paper", "knee"):
            problems.append(
                f"select: 'points' belongs to the rule target_within; {name} has no allowance. Leave it out or change "
                f"the rule."
            )
        elif isinstance(_points(points), str):
            problems.append(f"select: {_points(points)}")
    if not isinstance(strict, bool):
        problems.append(f"select: expected true or false for 'strict', got {strict!r}.")
    elif strict and name == "knee":
        problems.append(
            "select: 'strict' belongs to the rules paper and target_within; knee compares no trial with a bound. "
            "Leave it out."
        )
    if problems:
        raise ConfigError(problems)
    return Rule(name=name, points=points, strict=strict)


def _points(value: Any) -> tuple[float, bool] | str:
    """(number, whether in hundredths), or what is wrong with it."""
    expected = (
        f"expected 'points' to be the source loss that is allowed, 0 or more, such as 0.02 or '1pt', got {value!r}."
    )
    number, hundredths = value, False
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([+-]?[\d.]+(?:[eE][-+]?\d+)?)\s*(pt|pts|point|points)?\s*", value)
        if match is None:
            return expected
        hundredths = match[2] is not None
        try:
            number = float(match[1])
        except ValueError:
            return expected
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number):
        return expected
    if number < 0:
        return f"{expected} A loss is written without a minus."
    return (number / 100 if hundredths else float(number)), hundredths


_NOT_SHARES = {
    "nat",
    "nats",
    "bit",
    "bits",
    "perplexity",
    "token",
    "tokens",
    "byte",
    "bytes",
    "word",
    "words",
    "second",
    "seconds",
    "percent",
}


def is_share(unit: str, values: Iterable[float] = ()) -> bool:
    """Whether a metric is a share in [0, 1], of which a point is 1/100: by the words of its unit, and by figures of it
    where some are known."""
    words = re.findall("[a-z]+", unit.lower())
    named = words[:1] == ["share"] or not (_NOT_SHARES.intersection(words) or "%" in unit)
    return named and all(0.0 <= v <= 1.0 for v in values)


def allowance(points: float | str, objective: Objective, values: Iterable[float] = ()) -> float:
    """`points` in the unit of the source.

    Args:
        points: a number in the metric's unit, or hundredths of a share such as "1pt".
        objective: the source.
        values: known figures of it; a metric with figures beyond [0, 1] is not a share.

    Raises:
        ConfigError: not a loss of 0 or more; "pt" of a metric that is no share; a number of 1 or more of one that is,
            which would allow any loss.
    """
    read = _points(points)
    if isinstance(read, str):
        raise ConfigError(f"select: {read}")
    number, hundredths = read
    share = is_share(objective.unit, values)
    if hundredths and not share:
        unit = objective.unit
        raise ConfigError(
            f"select: 'points' of {points!r} are hundredths of a share, but {objective.label} is in {unit}. Give a "
            f"number in that unit."
        )
    if share and number >= 1:
        raise ConfigError(
            f"select: 'points' of {points!r} are in the metric's unit, and {objective.label} ({objective.unit}) is a "
            f"share in [0, 1], so that any"
            f" loss would be allowed. For {number:g} hundredths write '{number:g}pt'."
        )
    return number


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Side:
    """Gains of all candidates on one side: seeds by trials, and the half-widths of the entries' samples: entries by
    seeds by trials."""

    gains: np.ndarray
    halves: np.ndarray

    def of(self, counts: np.ndarray, *, strict: bool) -> tuple[np.ndarray, np.ndarray]:
        """(means, half-widths) `[T]` of the seeds taken `counts[n]` times; the half-widths are 0 where nobody asks (not
        strict)."""
        n = int(counts.sum())
        means = counts @ self.gains / n
        if not strict:
            return means, np.zeros_like(means)
        samples = (counts @ self.halves / n).reshape(len(self.halves), -1)
        samples = np.nan_to_num(np.sqrt((samples**2).sum(0)) / len(self.halves), nan=0.0, posinf=0.0)
        if n == 1:
            return means, np.where(samples > 0, samples, np.nan)
        variance = counts @ (self.gains - means) ** 2 / (n - 1)
        return means, np.hypot(t_quantile(n - 1, 0.5 + CONFIDENCE / 2) * np.sqrt(variance / n), samples)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Table:
    """All that a rule looks at."""

    trials: list[TrialRecord]
    seeds: list[int]
    target: _Side
    source: _Side
    direct: int | None
    """Place of direct fine-tuning."""

    def allowed(self, source: np.ndarray, points: float | None) -> float:
        """The loss that `target_within` allows; without `points` a share of what direct fine-tuning lost on the same
        seeds."""
        if points is not None:
            return points
        return 0.0 if self.direct is None else max(0.0, -ALLOWANCE * float(source[self.direct]))

    def choose(self, counts: np.ndarray, rule: Rule, points: float | None) -> int | None:
        """Place of the trial that the rule takes when seed i was run `counts[i]` times."""
        target, target_half = self.target.of(counts, strict=rule.strict)
        source, source_half = self.source.of(counts, strict=rule.strict)
        if rule.name == "paper":
            return _best(target - target_half > _ROUNDING, source, target)
        if rule.name == "target_within":
            return _best(source - source_half >= -self.allowed(source, points) - _ROUNDING, target, source)
        distances = knee_distances([*zip(source.tolist(), target.tolist(), strict=True), (0.0, 0.0)])
        distances.pop(len(self.trials), None)  # the start
        reach = np.full(len(self.trials), -math.inf)
        reach[list(distances)] = list(distances.values())
        return _best(reach > -math.inf, reach, source)


def _best(allowed: np.ndarray, first: np.ndarray, second: np.ndarray) -> int | None:
    """The allowed place with the largest `first`, then `second`, then the first of them."""
    places = np.flatnonzero(allowed)
    for values in (first, second):
        if places.size:
            places = places[values[places] >= values[places].max() - _ROUNDING]
    return int(places[0]) if places.size else None


def select(
    record: StudyRecord, rule: Rule | str, *, points: float | str | None = None, strict: bool = False
) -> Selection:
    """Applies a rule to a study as far as it is.

    Args:
        record: finished or not.
        rule: a `Rule`, or its name with the two options that follow.
        points: the source loss that `target_within` allows.
        strict: ask for whole intervals.

    Raises:
        ConfigError: no such rule, options that do not fit it, `points` that do not fit the source's metric.
    """
    if isinstance(rule, str):
        given = {"rule": rule, "strict": strict} | ({} if points is None else {"points": points})
        rule = rule_from_config(given)
    lacking = {t.number: incomplete(t, record) for t in record.trials}
    table = _table(record, sorted((t for t in record.trials if lacking[t.number] is None), key=lambda t: t.number))
    configured = _given_points(record, rule)
    dropped = [
        Dropped(number=t.number, label=t.label, reason=str(why))
        for t in record.trials
        if (why := lacking[t.number]) is not None
    ]
    whole = np.ones(len(record.seeds))
    allowed = table.allowed(table.source.of(whole, strict=False)[0], configured) if table.trials else configured or 0.0
    place = table.choose(whole, rule, allowed) if table.trials else None
    trial = None if place is None else table.trials[place]
    left_out, by_rule = _judged(dropped, table, rule, allowed, place, record)
    kept, avoided = (None, None) if trial is None else shares(trial, record)
    seeds_reason = None
    if len(record.seeds) < 2:
        seeds_reason = "the study has one seed, so nothing is known of how far another would change the choice"
    elif not table.trials:
        seeds_reason = "no trial is complete yet"
    stability, none, draws = (None, None, 0) if seeds_reason else _stability(table, rule, configured)
    unseen, choices = ((None, None), {}) if seeds_reason else _leave_one_out(table, rule, configured)
    return Selection(
        rule=rule.name,
        text=_text(rule, allowed, record),
        points=allowed if rule.name == "target_within" else None,
        strict=rule.strict,
        chosen=None if trial is None else trial.number,
        label=None if trial is None else trial.label,
        reason=by_rule,
        target=None if trial is None else mean_gain(trial, record.target, seeds=record.seeds),
        source=None if trial is None else mean_gain(trial, record.source, seeds=record.seeds),
        kept=kept,
        avoided=avoided,
        candidates=[t.number for t in table.trials],
        dropped=sorted(left_out, key=lambda d: d.number),
        stability=stability,
        stability_none=none,
        draws=draws,
        rule_target=unseen[0],
        rule_source=unseen[1],
        left_out=choices,
        seeds_reason=seeds_reason,
    )


def select_all(record: StudyRecord) -> list[Selection]:
    """What the study's own rule chooses first, then what the other rules would have chosen.

    Raises:
        ConfigError: the study's rule cannot be applied, see `select`.
    """
    own = rule_from_config({k: v for k, v in record.selection.items() if v is not None})
    return [select(record, own), *(select(record, name) for name in RULES if name != own.name)]


def _given_points(record: StudyRecord, rule: Rule) -> float | None:
    """`points` in the source's unit; None where the rule has none."""
    if rule.points is None:
        return None
    entries = set(record.source.entries)
    found = (c for t in record.trials for r in t.runs for c in r.comparisons if (c.suite, c.name, c.metric) in entries)
    return allowance(rule.points, record.source, (v for c in found for v in (c.before, c.after) if math.isfinite(v)))


def _table(record: StudyRecord, trials: list[TrialRecord]) -> _Table:
    def side(objective: Objective) -> _Side:
        gains = np.zeros((len(record.seeds), len(trials)))
        halves = np.zeros((len(objective.entries), len(record.seeds), len(trials)))
        for column, trial in enumerate(trials):
            runs = {run.seed: run for run in trial.runs}
            for row, seed in enumerate(record.seeds):
                measures = _measures(runs[seed], objective) or []
                gains[row, column] = statistics.fmean(c.gain for c in measures)
                halves[:, row, column] = [_half_width(c) for c in measures]
        return _Side(gains=gains, halves=halves)

    direct = next((place for place, t in enumerate(trials) if t is record.direct), None)
    return _Table(
        trials=trials, seeds=list(record.seeds), target=side(record.target), source=side(record.source), direct=direct
    )


def _text(rule: Rule, points: float, record: StudyRecord) -> str:
    if rule.name == "paper":
        noise = " beyond noise" if rule.strict else ""
        return f"of the trials whose target improves on the start{noise}, the best source"
    if rule.name == "target_within":
        noise = ", with its whole interval" if rule.strict else ""
        tenth = ", a tenth of what direct fine-tuning loses" if rule.points is None and points > 0 else ""
        bound = (
            f"loses at most {points:.3g} {record.source.unit} against the start{tenth}"
            if points > 0
            else "loses nothing against the start"
        )
        return f"the best target among the trials whose source {bound}{noise}"
    return "the trial of the Pareto frontier farthest beyond the line between its ends"


def _judged(
    dropped: list[Dropped], table: _Table, rule: Rule, points: float, place: int | None, record: StudyRecord
) -> tuple[list[Dropped], str]:
    """(dropped trials with those that the rule left out, why this choice)."""
    if not table.trials:
        return dropped, "no trial is complete with all its seeds yet"
    counts = np.ones(len(table.seeds))
    target, target_half = table.target.of(counts, strict=rule.strict)
    source, source_half = table.source.of(counts, strict=rule.strict)
    out = list(dropped)

    def drop(i: int, why: str) -> None:
        out.append(Dropped(number=table.trials[i].number, label=table.trials[i].label, reason=why))

    count = len(table.trials)
    of = f"of {count} complete trial{'s' if count != 1 else ''}"
    if rule.name == "paper":
        passed = target - target_half > _ROUNDING
        for i in np.flatnonzero(~passed).tolist():
            noise = f" beyond noise (±{target_half[i]:.3g})" if rule.strict and target[i] > 0 else ""
            drop(i, f"the target does not improve on the start{noise}: gain {target[i]:.3g} {record.target.unit}")
        if place is None:
            i = int(target.argmax())
            beyond = " beyond noise" if rule.strict else ""
            best = f"the best, {table.trials[i].label}, changes it by {target[i]:.3g} {record.target.unit}"
            return out, f"no trial improves the target on the start{beyond}: {best}"
        return out, f"{of}, {int(passed.sum())} improve the target on the start; it has the best source of these"
    if rule.name == "target_within":
        passed = source - source_half >= -points - _ROUNDING
        for i in np.flatnonzero(~passed).tolist():
            bound = f", interval ±{source_half[i]:.3g}" if rule.strict else ""
            drop(
                i,
                f"the source loses more than the allowed {points:.3g}: gain {source[i]:.3g} "
                f"{record.source.unit}{bound}",
            )
        if place is None:
            i = int(source.argmax())
            best = f"the best, {table.trials[i].label}, changes it by {source[i]:.3g} {record.source.unit}"
            return out, f"no trial keeps the source within {points:.3g} {record.source.unit}: {best}"
        return (
            out,
            f"{of}, {int(passed.sum())} keep the source within {points:.3g} {record.source.unit}; it has the best "
            f"target of these",
        )
    points_of = [*zip(source.tolist(), target.tolist(), strict=True), (0.0, 0.0)]
    distances = knee_distances(points_of)
    for i in range(count):
        if i not in distances:
            by = next(j for j in distances if points_of[j][0] >= points_of[i][0] and points_of[j][1] >= points_of[i][1])
            drop(i, f"beaten on both sides by {'the start' if by == count else f'trial {table.trials[by].number}'}")
    if place is None:
        return out, "no trial is on the frontier: the start is as good as each of them on both sides"
    trials = len(distances) - (count in distances)
    if trials == 1:
        return out, f"{of}, it alone is on the Pareto frontier"
    if distances[place] <= 0:
        return (
            out,
            f"{of}, {trials} are on the Pareto frontier, none beyond the line between its ends; of what lies on it "
            f"this has the better source",
        )
    return (
        out,
        f"{of}, {trials} are on the Pareto frontier; it lies farthest beyond the line between its ends "
        f"({distances[place]:.2f} of 0.71)",
    )


# ---------------------------------------------------------------------------------------------------- trust in a choice


def _draws(seeds: int) -> tuple[list[tuple[int, ...]], list[float], int]:
    """(how often each seed is drawn, its weight, number of draws). Draws that differ in order alone choose alike, so
    each kind is one."""
    total = seeds**seeds
    if total <= MOST_ENUMERATED:
        kinds, weights = [], []
        for drawn in itertools.combinations_with_replacement(range(seeds), seeds):
            counts = tuple(drawn.count(s) for s in range(seeds))
            kinds.append(counts)
            weights.append(math.factorial(seeds) / math.prod(map(math.factorial, counts)) / total)
        return kinds, weights, total
    drawn_counts = np.random.default_rng(0).multinomial(seeds, np.full(seeds, 1 / seeds), size=DRAWS)
    times = collections.Counter(tuple(int(c) for c in row) for row in drawn_counts)
    return list(times), [n / DRAWS for n in times.values()], DRAWS


def _stability(table: _Table, rule: Rule, points: float | None) -> tuple[dict[int, float], float, int]:
    kinds, weights, draws = _draws(len(table.seeds))
    chosen: dict[int | None, list[float]] = {}
    for counts, weight in zip(kinds, weights, strict=True):
        chosen.setdefault(table.choose(np.array(counts, dtype=np.float64), rule, points), []).append(weight)
    found = {table.trials[place].number: math.fsum(w) for place, w in chosen.items() if place is not None}
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0]))), math.fsum(chosen.get(None, [])), draws


def _leave_one_out(
    table: _Table, rule: Rule, points: float | None
) -> tuple[tuple[RuleGain, RuleGain], dict[int, int | None]]:
    n = len(table.seeds)
    choices: dict[int, int | None] = {}
    scores: list[tuple[float, float]] = []
    for row, seed in enumerate(table.seeds):
        counts = np.ones(n)
        counts[row] = 0
        place = table.choose(counts, rule, points)
        choices[seed] = None if place is None else table.trials[place].number
        scores.append(
            (0.0, 0.0)
            if place is None
            else (float(table.target.gains[row, place]), float(table.source.gains[row, place]))
        )
    return (_over_seeds(table.seeds, [s[0] for s in scores]), _over_seeds(table.seeds, [s[1] for s in scores])), choices


def _over_seeds(seeds: Sequence[int], values: Sequence[float]) -> RuleGain:
    mean, n = statistics.fmean(values), len(values)
    half = t_quantile(n - 1, 0.5 + CONFIDENCE / 2) * statistics.stdev(values) / math.sqrt(n)
    return RuleGain(value=mean, interval=(mean - half, mean + half), by_seed=dict(zip(seeds, values, strict=True)))
