"""What has to be so before a claim of "Memory Retaining Finetuning" may be judged on a sweep.

- *Moderate*: direct fine-tuning loses less than a quarter of what there is to lose of a text,
  unigram - start in nats. A model that ends near the frequencies of tokens was destroyed, and what
  a method saves of it says nothing of forgetting.
- *Converged*: no trial learns more of the target than direct fine-tuning, beyond noise for as many
  looks. Else what a method "keeps" is partly what direct was not given the steps or the rate to
  learn.
- *Above chance*: the start answers better than guessing, where a measure knows what guessing gives.
  Nothing can be lost otherwise.
- *The grid bites*: along each line of a method's grid the strongest setting clearly learns less
  than the target level that the claim is judged at, and the weakest is not clearly different from
  direct fine-tuning (with replay beside it, from replay alone). Else another value in the grid
  might turn the verdict.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from holdfast.papers.claims.requirements import Precondition, at_least, at_most
from holdfast.papers.claims.rules import MARGIN
from holdfast.papers.label_annealing.curves import (
    DIRECT,
    LEAST,
    NAMES,
    Line,
    Method,
    by_win_rate,
    complete_trials,
    default_of,
    difference_share,
    follows_format,
    formats,
    gain,
    lines,
    method_of,
    method_settings,
    related_skill,
    share_of_direct,
    with_entries,
)
from holdfast.records.evaluation import CHANCE, UNIGRAM
from holdfast.records.figure import CONFIDENCE
from holdfast.records.metrics import is_share
from holdfast.records.study import Objective, StudyRecord, TrialRecord

MODERATE = 0.25
"""Of unigram - start, what direct fine-tuning may lose."""
LEVEL = 0.05
"""Of what direct fine-tuning loses: what the last step of a grid that levels off may still save;
half of the least by which one method is better than another."""
TEXT_UNITS = ("nats/token", "bits/byte", "perplexity")
RETRAIN = (
    "lower the learning rate or the number of steps of direct fine-tuning, or begin with a model "
    "that knows more"
)
REMEASURE = "measure the initial model again: this version of holdfast records its unigram loss"


def forgetting_is_moderate(study: StudyRecord) -> list[Precondition]:
    """Of every text of the source: direct's loss / (unigram - start); of perplexities their
    logarithms'."""
    preconditions = []
    for entry in study.keep.entries:
        measured = study.direct.runs[0].comparisons if study.direct is not None else []
        unit = next((c.unit for c in measured if (c.suite, c.name, c.metric) == tuple(entry)), "")
        if unit not in TEXT_UNITS:
            continue
        direct = gain(study.direct, study, _single(study.keep, entry))
        unigram = study.references.get("/".join(entry), {}).get(UNIGRAM)
        share = None
        if unigram is not None:
            levels = (direct.before, direct.before - direct.value, unigram)
            start, end, chance = map(math.log, levels) if unit == "perplexity" else levels
            share = (end - start) / (chance - start) if chance > start else math.inf
        preconditions.append(
            at_most(
                "direct fine-tuning forgets moderately",
                share,
                MODERATE,
                figure=f"loss increase on {entry[1]} / (unigram loss - initial loss)",
                advice=REMEASURE if share is None else RETRAIN,
            )
        )
    return preconditions


def above_chance(study: StudyRecord) -> list[Precondition]:
    """Of every entry of the source that knows its chance level: the start's lead over it, with the
    interval of chance itself: two standard errors of a guess."""
    preconditions = []
    for entry in study.keep.entries:
        chance = study.references.get("/".join(entry), {}).get(CHANCE)
        if chance is None:
            continue
        start = gain(study.direct, study, _single(study.keep, entry))
        noise = 2 * math.sqrt(max(chance * (1 - chance), 0.0) / max(start.samples, 1))
        preconditions.append(
            at_least(
                "the initial model scores above chance",
                start.before,
                chance + noise,
                figure=f"the initial model's score on {entry[1]}",
                advice="use another initial model or another entry, with a score above chance",
            )
        )
    return preconditions


def converged(study: StudyRecord) -> list[Precondition]:
    """The largest excess of a trial over direct's target, as its interval's lower end, widened for
    the looks."""
    methods = [method_of(trial) for trial in study.trials if trial is not study.direct]
    others: list[TrialRecord] = []
    for method in dict.fromkeys(filter(None, methods)):
        others += complete_trials(study, method)
    if not others or study.direct is None:
        return []
    level = 1 - (1 - CONFIDENCE) / len(others)
    direct = gain(study.direct, study, "learn")

    def sure(trial: TrialRecord) -> float:
        interval = (gain(trial, study, "learn") - direct).interval_at(level)
        return -math.inf if interval is None or math.isnan(interval[0]) else interval[0]

    best = max(others, key=sure)
    return [
        at_most(
            "direct fine-tuning has converged",
            sure(best),
            0.0,
            figure=f"gain on the learn entries, {best.label} - direct fine-tuning (lower end of "
            f"the interval, {study.learn.unit})",
            advice="train direct fine-tuning longer, or add learning rates for it to the study",
        )
    ]


def grid_brackets_target(
    method: Method, share: float, *, or_levels_off: bool = False
) -> Callable[[StudyRecord], Sequence[Precondition]]:
    """That a method's grid reaches from direct fine-tuning to clearly below a share of its target
    gain; or, on request, to where the strongest setting clearly keeps hardly more of the source
    than the one before it: some forms of a method never stand against the target."""

    def look(study: StudyRecord) -> list[Precondition]:
        name, preconditions = NAMES[method], []
        grids = [
            line for line in lines(study, method) if len(line.members) > 1
        ]  # an arm by itself is no grid
        if not grids:
            return [
                at_least(
                    f"the grid of {name} has several strengths",
                    0,
                    1,
                    figure="the number of grids with several strengths",
                    advice=f"vary the strength of {name}",
                )
            ]
        for line in grids:
            at = _where(line, grids)
            (weak, weakest), (strong, strongest) = line.members[0], line.members[-1]
            gain_kept = share_of_direct(strongest, study, "learn").interval
            begin, beyond = _beginning(line, weakest, study)
            bites = (
                f"the strongest setting of {name} learns clearly less than the share at which the "
                "claim is judged"
            )
            begins = f"the grid of {name} begins close to {begin}"
            figure = (
                f"the share of direct fine-tuning's gain kept with {line.name} {strong:g}{at} "
                "(upper end of the interval)"
            )
            advice = f"extend the grid of {name} beyond {strong:g}"
            bite = at_most(bites, gain_kept and gain_kept[1], share, figure=figure, advice=advice)
            if or_levels_off and not bite.met:
                last = gain(strongest, study, "keep"), gain(line.members[-2][1], study, "keep")
                more = difference_share(*last, study, CONFIDENCE).interval
                figure = (
                    f"how much more of the forgetting {line.name} {strong:g}{at} avoids than the "
                    "next weaker setting, as a share (upper end of the interval)"
                )
                levels = (
                    f"the strongest setting of {name} learns clearly less than the share at which "
                    "the claim is judged, or it avoids hardly more forgetting than the next weaker "
                    "setting"
                )
                bite = at_most(levels, more and more[1], LEVEL, figure=figure, advice=advice)
            preconditions.append(bite)
            figure = (
                f"the share of forgetting avoided with {line.name} {weak:g}{at} (lower end of "
                "the interval)"
            )
            advice = f"extend the grid of {name} below {weak:g}"
            preconditions.append(
                at_most(begins, beyond and beyond[0], MARGIN, figure=figure, advice=advice)
            )
        return preconditions

    return look


def _where(line: Line, grids: Sequence[Line]) -> str:
    """What sets a line apart from the others: " at temperature 2"; empty for one alone."""
    words = []
    for name in sorted({name for grid in grids for name in grid.settings}):
        value = line.settings.get(name, default_of(name))
        if any(grid.settings.get(name, default_of(name)) != value for grid in grids):
            words.append(f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}")
    return f" at {', '.join(words)}" if words else ""


def _beginning(
    line: Line, weakest: TrialRecord, study: StudyRecord
) -> tuple[str, tuple[float, float] | None]:
    """Where a grid has to begin, and the interval of what its weakest setting avoids beyond that:
    direct fine-tuning, or the method that stands beside the one whose strength varies."""
    start = line.start
    if start is None or not method_settings(start):
        return NAMES[DIRECT], share_of_direct(weakest, study, "keep").interval
    ours, theirs = gain(weakest, study, "keep"), gain(start, study, "keep")
    beyond = difference_share(ours, theirs, study, CONFIDENCE)
    return NAMES[method_of(start)], beyond.interval


Looks = Sequence[Callable[[StudyRecord], Sequence[Precondition]]]


def judged_by_win_rate(side: str, looks: Looks) -> Looks:
    """That a judge gave a win rate on a side, and what else has to be so with that as the side."""

    def alone(
        look: Callable[[StudyRecord], Sequence[Precondition]],
    ) -> Callable[[StudyRecord], Sequence[Precondition]]:
        def by_judge(study: StudyRecord) -> Sequence[Precondition]:
            rated = by_win_rate(study, side)
            return [] if rated is None else look(rated)

        return by_judge

    def judged(study: StudyRecord) -> list[Precondition]:
        rated = by_win_rate(study, side)
        return [
            at_least(
                f"a judge compares replies of a {side} entry",
                0 if rated is None else len(getattr(rated, side).entries),
                1,
                figure="the number of win_rate entries",
                advice=f"add a win_rate entry with a judge to evaluation.{side}",
            )
        ]

    return [judged, *map(alone, looks)]


def of_entries(side: str, names: tuple[str, ...], looks: Looks) -> Looks:
    """What has to be so with the entries of these names as the side."""

    def narrowed(
        look: Callable[[StudyRecord], Sequence[Precondition]],
    ) -> Callable[[StudyRecord], Sequence[Precondition]]:
        return lambda study: look(with_entries(study, side, names))

    return list(map(narrowed, looks))


def related_skill_rises(study: StudyRecord) -> list[Precondition]:
    """That direct fine-tuning raises the related skill beyond the least that counts."""
    skill = related_skill(study)
    interval = None if skill is None else gain(study.direct, study, skill).interval
    unit, label = ("", "the related skill") if skill is None else (skill.unit, skill.label)
    return [
        at_least(
            "direct fine-tuning raises the related skill",
            None if interval is None else interval[0],
            LEAST[is_share(unit, unknown=True)],
            figure=f"direct fine-tuning's gain on {label} (lower end of the interval)",
            advice="add a suite 'related' with a skill that direct fine-tuning improves",
        )
    ]


def format_is_lost(study: StudyRecord) -> list[Precondition]:
    """That direct fine-tuning loses the form of the few-shot examples beyond the least that
    counts."""
    interval = None
    if formats(study):
        interval = follows_format(study.direct, study).interval_at(CONFIDENCE)
    return [
        at_most(
            "direct fine-tuning loses the format of the examples",
            None if interval is None else interval[1],
            -LEAST[True],
            figure="direct fine-tuning's gain in strict matches - its gain in flexible matches "
            "(upper end of the interval)",
            advice="direct fine-tuning does not lose the answer format: use an initial model that "
            "follows few-shot examples",
        )
    ]


def _single(objective: Objective, entry: tuple[str, str, str]) -> Objective:
    return Objective(
        side=objective.side,
        entries=[entry],
        label=entry[1],
        unit=objective.unit,
        higher_is_better=objective.higher_is_better,
    )
