"""Which trial of a sweep to take, why, and how far the choice can be trusted.

A rule (`statistics.rules`) looks at the gains of all complete trials (`statistics.gains`). Only
complete trials that have all of the study's seeds count. Direct fine-tuning is a candidate of every
rule: where it forgets it has the worst keep, so `paper` (which the paper sweeps over the method's
trials alone) passes it over without being told to.

Beside the choice stand its shares of what direct fine-tuning did (`statistics.shares`) and what the
rule earns on seeds that it did not choose by (`statistics.stability`).
"""

from __future__ import annotations

import dataclasses

import numpy as np

from holdfast.records.figure import Figure
from holdfast.records.study import StudyRecord
from holdfast.statistics.gains import Gain, incomplete, mean_gain
from holdfast.statistics.pareto import knee_distances
from holdfast.statistics.rules import (
    ROUNDING,
    RULES,
    Rule,
    Table,
    allowed_loss,
    rule_from_config,
    table_of,
)
from holdfast.statistics.shares import Share, shares
from holdfast.statistics.stability import leave_one_out, stability


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dropped:
    """A trial that was not chosen from, and why."""

    number: int
    label: str
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selection:
    """The trial that a rule chose, its gains and losses, and how stable the choice is."""

    rule: str
    """"paper", "keep_within" or "knee"."""
    text: str
    """The rule in a sentence, with the loss that it allows."""
    points: float | None
    """The loss that `keep_within` allows, in the keep side's unit; None for the other rules."""
    strict: bool
    chosen: int | None
    """Number of the chosen trial; None if no trial meets the rule."""
    label: str | None
    """Label of the chosen trial."""
    reason: str
    """Why the rule chose this trial, or none."""
    learn: Gain | None
    keep: Gain | None
    kept: Share | None
    """Share of direct fine-tuning's gain (learn side) that the chosen trial has; None without a
    chosen trial."""
    avoided: Share | None
    """Share of direct fine-tuning's loss (keep side) that the chosen trial avoids."""
    candidates: list[int]
    """Numbers of the complete trials with all seeds and measurements."""
    dropped: list[Dropped]
    """All other trials, and the candidates that the rule left out."""
    stability: dict[int, float] | None
    """Share of the bootstrap draws over seeds in which each trial is chosen, by trial, largest
    first; None with one seed."""
    stability_none: float | None
    """Share of the draws in which no trial is chosen."""
    draws: int
    """Number of draws behind `stability`."""
    rule_learn: Figure | None
    """The rule's gain on seeds that were left out of the choice; None with one seed."""
    rule_keep: Figure | None
    left_out: dict[int, int | None]
    """The trial that the other seeds choose, by left-out seed."""
    seeds_reason: str | None
    """Why `stability`, `rule_learn` and `rule_keep` are None."""
    validation: str | None
    """Label of the validation objective that chose the trial, which is not part of any figure;
    None: `learn` chose it."""


def select(
    record: StudyRecord,
    rule: Rule | str,
    *,
    points: float | str | None = None,
    strict: bool = False,
) -> Selection:
    """Chooses a trial of a study by a rule. The study may still be running.

    Args:
        record: the study, finished or not.
        rule: a `Rule`, or the name of one. `points` and `strict` are options of a named rule.
        points: the keep loss that `keep_within` allows.
        strict: require that whole intervals meet the rule.

    Returns:
        The chosen trial, the reason, and how stable the choice is over seeds.

    Raises:
        ConfigError: the rule does not exist, its options do not fit it, or `points` does not fit
            the keep side's metric.
    """
    if isinstance(rule, str):
        options = {"rule": rule, "strict": strict} | ({} if points is None else {"points": points})
        rule = rule_from_config(options)
    lacking = {t.number: incomplete(t, record) for t in record.trials}
    table = table_of(
        record,
        sorted((t for t in record.trials if lacking[t.number] is None), key=lambda t: t.number),
    )
    configured = allowed_loss(record, rule)
    dropped = []
    for t in record.trials:
        reason = lacking[t.number]
        if reason is not None:
            dropped.append(Dropped(number=t.number, label=t.label, reason=reason))
    counts = np.ones(len(record.seeds))
    allowed = (
        table.allowed(table.keep.of(counts, strict=False)[0], configured)
        if table.trials
        else configured or 0.0
    )
    chosen_index = table.choose(counts, rule, allowed) if table.trials else None
    trial = None if chosen_index is None else table.trials[chosen_index]
    left_out, by_rule = _judged(dropped, table, rule, allowed, chosen_index, record)
    kept_share, avoided = (None, None) if trial is None else shares(trial, record)
    seeds_reason = None
    if len(record.seeds) < 2:
        seeds_reason = (
            "the study has one seed, so the effect of another seed on the choice is unknown"
        )
    elif not table.trials:
        seeds_reason = "no trial is complete yet"
    again, none, draws = (None, None, 0) if seeds_reason else stability(table, rule, configured)
    unseen, choices = ((None, None), {}) if seeds_reason else leave_one_out(table, rule, configured)
    return Selection(
        rule=rule.name,
        text=_text(rule, allowed, record),
        points=allowed if rule.name == "keep_within" else None,
        strict=rule.strict,
        chosen=None if trial is None else trial.number,
        label=None if trial is None else trial.label,
        reason=by_rule,
        learn=None if trial is None else mean_gain(trial, record.learn, seeds=record.seeds),
        keep=None if trial is None else mean_gain(trial, record.keep, seeds=record.seeds),
        kept=kept_share,
        avoided=avoided,
        candidates=[t.number for t in table.trials],
        dropped=sorted(left_out, key=lambda d: d.number),
        stability=again,
        stability_none=none,
        draws=draws,
        rule_learn=unseen[0],
        rule_keep=unseen[1],
        left_out=choices,
        seeds_reason=seeds_reason,
        validation=None if record.validation is None else record.validation.label,
    )


def select_all(record: StudyRecord) -> list[Selection]:
    """What the study's own rule chooses first, then what the other rules would have chosen.

    Raises:
        ConfigError: the study's rule cannot be applied, see `select`.
    """
    rule = rule_from_config({k: v for k, v in record.selection.items() if v is not None})
    return [select(record, rule), *(select(record, name) for name in RULES if name != rule.name)]


def _text(rule: Rule, points: float, record: StudyRecord) -> str:
    if rule.name == "paper":
        noise = " beyond noise" if rule.strict else ""
        return (
            f"the best score on the keep entries among the trials that improve "
            f"{record.chooses_by.side} over the initial model{noise}"
        )
    if rule.name == "keep_within":
        noise = ", judged by the whole interval" if rule.strict else ""
        tenth = (
            " (a tenth of direct fine-tuning's loss)" if rule.points is None and points > 0 else ""
        )
        bound = (
            f"lose at most {points:.3g} {record.keep.unit} on the keep score, compared with the "
            f"initial model{tenth}"
            if points > 0
            else "lose nothing on the keep score, compared with the initial model"
        )
        return f"the best {record.chooses_by.side} score among the trials that {bound}{noise}"
    return (
        "the knee: the trial on the Pareto frontier that lies farthest above the line between the "
        "frontier's end points"
    )


def _judged(
    dropped: list[Dropped],
    table: Table,
    rule: Rule,
    points: float,
    place: int | None,
    record: StudyRecord,
) -> tuple[list[Dropped], str]:
    """(dropped trials with those that the rule left out, why this choice)."""
    if not table.trials:
        return dropped, "no trial has completed all its seeds yet"
    if rule.name == "paper":
        reasons, why = _judged_by_gain(table, rule, place, record)
    elif rule.name == "keep_within":
        reasons, why = _judged_by_loss(table, rule, points, place, record)
    else:
        reasons, why = _judged_by_frontier(table, rule, place)
    if place is not None:
        count = len(table.trials)
        why = f"of {count} complete trial{'s' if count != 1 else ''}, {why}"
    for index, reason in reasons.items():
        trial = table.trials[index]
        dropped = [*dropped, Dropped(number=trial.number, label=trial.label, reason=reason)]
    return dropped, why


def _judged_by_gain(
    table: Table, rule: Rule, place: int | None, record: StudyRecord
) -> tuple[dict[int, str], str]:
    """The paper's rule: (by index of a trial that does not improve: why, why this choice)."""
    gains, half_widths = table.learn.of(np.ones(len(table.seeds)), strict=rule.strict)
    side, unit = record.chooses_by.side, record.learn.unit
    improves = gains - half_widths > ROUNDING
    reasons = {}
    for i in np.flatnonzero(~improves).tolist():
        noise = f" beyond noise (±{half_widths[i]:.3g})" if rule.strict and gains[i] > 0 else ""
        reasons[i] = (
            f"{side} does not improve over the initial model{noise}: gain {gains[i]:.3g} {unit}"
        )
    if place is None:
        i = int(gains.argmax())
        beyond = " beyond noise" if rule.strict else ""
        best = f"{table.trials[i].label} comes closest, with a {side} gain of {gains[i]:.3g} {unit}"
        return reasons, f"no trial improves {side} over the initial model{beyond}: {best}"
    return (
        reasons,
        (
            f"{int(improves.sum())} improve {side} over the initial model, and the chosen trial "
            "has the best score on the keep entries among them"
        ),
    )


def _judged_by_loss(
    table: Table, rule: Rule, points: float, place: int | None, record: StudyRecord
) -> tuple[dict[int, str], str]:
    """A bound on the loss of keep: (by index of a trial beyond it: why, why this choice)."""
    gains, half_widths = table.keep.of(np.ones(len(table.seeds)), strict=rule.strict)
    unit = record.keep.unit
    passes = gains - half_widths >= -points - ROUNDING
    reasons = {}
    for i in np.flatnonzero(~passes).tolist():
        bound = f", interval ±{half_widths[i]:.3g}" if rule.strict else ""
        reasons[i] = (
            f"the keep score may lose at most {points:.3g}, but its gain is {gains[i]:.3g} {unit}"
            f"{bound}"
        )
    if place is None:
        i = int(gains.argmax())
        best = f"{table.trials[i].label} comes closest, with a keep gain of {gains[i]:.3g} {unit}"
        return reasons, (
            f"no trial is within the allowed loss of {points:.3g} {unit} on the keep score: {best}"
        )
    passing = (
        f"{int(passes.sum())} are within the allowed loss of {points:.3g} {unit} on the keep score"
    )
    return (
        reasons,
        f"{passing}, and the chosen trial has the best {record.chooses_by.side} score among them",
    )


def _judged_by_frontier(table: Table, rule: Rule, place: int | None) -> tuple[dict[int, str], str]:
    """The knee of the Pareto frontier: (by index of a trial that is not on it: why, why this
    choice)."""
    counts = np.ones(len(table.seeds))
    learn, _ = table.learn.of(counts, strict=rule.strict)
    keep, _ = table.keep.of(counts, strict=rule.strict)
    start = len(table.trials)
    points = [*zip(keep.tolist(), learn.tolist(), strict=True), (0.0, 0.0)]
    distances = knee_distances(points)
    reasons = {}
    for i in range(start):
        if i not in distances:
            x, y = points[i]
            better = next(j for j in distances if points[j][0] >= x and points[j][1] >= y)
            name = (
                "the initial model" if better == start else f"trial {table.trials[better].number}"
            )
            reasons[i] = f"{name} is at least as good on both learn and keep"
    if place is None:
        return (
            reasons,
            "no trial is on the Pareto frontier: the initial model is at least as good as each "
            "trial on both learn and keep",
        )
    on_frontier = len(distances) - (start in distances)
    if on_frontier == 1:
        return reasons, "only the chosen trial is on the Pareto frontier"
    if distances[place] <= 0:
        return reasons, (
            f"{on_frontier} are on the Pareto frontier, but none lies above the line between the "
            "frontier's end points. The chosen trial has the best score on the keep entries of "
            "the trials on this line"
        )
    return reasons, (
        f"{on_frontier} are on the Pareto frontier, and the chosen trial lies farthest above the "
        f"line between the frontier's end points (distance {distances[place]:.2f}; the "
        "largest possible is 0.71)"
    )
