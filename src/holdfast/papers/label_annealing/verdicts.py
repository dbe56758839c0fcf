"""Rules by which the claims of "Memory Retaining Finetuning" are judged on a sweep; `claims` says
which claim has which, and what the words mean.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from holdfast.papers.claims.rules import (
    FAILS,
    HOLDS,
    MARGIN,
    NO_INTERVAL,
    ClaimFigure,
    Part,
    Rule,
    Trend,
    above,
    below,
    joint,
    monotone,
    side_of_bound,
    unknown,
    widened,
    within,
)
from holdfast.papers.label_annealing.curves import (
    ANNEALING,
    BOTH,
    DIRECT,
    L2,
    LEAST,
    NAMES,
    REPLAY,
    Method,
    at_equal_target,
    avoided_at,
    by_win_rate,
    complete_trials,
    difference_share,
    follows_format,
    formats,
    gain,
    lines,
    paper_choice,
    related_skill,
    share_of_direct,
)
from holdfast.records.figure import Figure
from holdfast.records.metrics import is_share
from holdfast.records.study import Objective, StudyRecord, TrialRecord
from holdfast.statistics.shares import Share, kept_share

NO_LOSS = 0.9
"""Of direct's target gain: learnt with "no loss"; also the target at which methods are compared."""
MOST = 0.5
"""What "most of" and "little" are held against: more than half is most, less than half is
little."""
BETTER = 0.1
"""Of what direct fine-tuning loses: the least by which one method is better than another."""
STEP = 0.1
"""Of what direct fine-tuning gains or loses: what a monotone curve may go back between two of its
points."""
IN_THE_PAPER = {"keep": "source", "learn": "target"}
"""What the paper calls the two sides."""
_SHARES = {
    "keep": ("source loss avoided", "share of direct's loss"),
    "learn": ("target gain kept", "share of direct's gain"),
}
"""By side: what a share of it is called, and its unit."""


# -------------------------------------------------------------------------------------------- rules


def learns_and_forgets(study: StudyRecord, level: float) -> list[Part]:
    """Direct fine-tuning gains on the target and loses on the source."""
    learn = _gain_of_direct(study, "learn", IN_THE_PAPER["learn"], level)
    keep = _gain_of_direct(study, "keep", IN_THE_PAPER["keep"], level)
    learns = above(
        learn,
        _least(study, "learn"),
        yes="it learns the target",
        no="it learns too little of the target",
    )
    no = "it forgets too little to count"
    forgets = below(keep, -_least(study, "keep"), yes="direct fine-tuning forgets", no=no)
    beside = []
    for strict_and_flexible in formats(study):
        beside += [
            _gain_of_direct(study, entry, entry.label, level) for entry in strict_and_flexible
        ]
    return [learns, _with_figures(forgets, beside)]


def keeps(method: Method, *, kept: float, avoided: float) -> Rule[StudyRecord]:
    """Where the method has learnt `kept` of direct's gain, it avoids at least `avoided` of its
    loss."""

    def judge(study: StudyRecord, level: float) -> list[Part]:
        much = (
            f"{_percent(avoided)} of direct fine-tuning's loss where it has {_percent(kept)} of "
            "its gain"
        )
        share = avoided_at(study, method, kept, level)
        avoids = above(
            _share_figure(
                f"{NAMES[method]} at {_percent(kept)} of the gain: {_SHARES['keep'][0]}",
                share,
                study,
            ),
            avoided,
            yes=f"{NAMES[method]} avoids at least {much}",
            no=f"{NAMES[method]} avoids less than {much}",
            between=f"whether {NAMES[method]} avoids {much} cannot be told",
            inclusive=True,
        )
        avoids = _or_reason(avoids, share)
        rival = avoided_at(study, DIRECT, kept, level)
        if (
            len(complete_trials(study, DIRECT)) > 1
            and side_of_bound(rival.interval, avoided, inclusive=True) == HOLDS
        ):
            warning = f"direct fine-tuning at another rate avoids {_percent(avoided)} there too"
            avoids = dataclasses.replace(avoids, warning=warning)

        def by_trial(trial: TrialRecord) -> str:
            verdicts = []
            for side, least in (("keep", avoided), ("learn", kept)):
                interval = share_of_direct(trial, study, side, level).interval
                verdicts.append(side_of_bound(interval, least, inclusive=True))
            return joint(verdicts)

        return [_beside_the_papers(avoids, study, method, by_trial, level)]

    says = (
        f"Where it has learnt {_percent(kept)} of direct's gain, {NAMES[method]} avoids at least "
        f"{_percent(avoided)}"
    )
    return Rule(f"{says} of direct's loss.", judge)


def helps_little(study: StudyRecord, level: float) -> list[Part]:
    """L2 avoids less than `MOST` of direct's loss."""
    share = avoided_at(study, L2, NO_LOSS, level)
    avoids = below(
        _share_figure(f"L2 at {_percent(NO_LOSS)} of the gain: {_SHARES['keep'][0]}", share, study),
        MOST,
        yes="L2 avoids less than half of the loss",
        no="L2 avoids more than half of the loss",
        inclusive=True,
    )

    def by_trial(trial: TrialRecord) -> str:
        above_half = side_of_bound(share_of_direct(trial, study, "keep", level).interval, MOST)
        return {HOLDS: FAILS, FAILS: HOLDS}.get(above_half, above_half)

    return [_beside_the_papers(_or_reason(avoids, share), study, L2, by_trial, level)]


def better_than_l2(study: StudyRecord, level: float) -> list[Part]:
    """Label annealing keeps more of the source than L2, by `BETTER`."""
    first, at_all = (
        _annealing_against_l2(study, NO_LOSS, level),
        _annealing_against_l2(study, 1.0, level),
    )
    beside = [dataclasses.replace(figure, needs="") for figure in at_all.figures]
    annealed, pulled = paper_choice(study, ANNEALING), paper_choice(study, L2)
    if annealed is None or pulled is None:
        return [_with_figures(first, beside)]
    difference = gain(annealed, study, "keep") - gain(pulled, study, "keep")
    reading = side_of_bound(
        difference.interval_at(level), BETTER * -gain(study.direct, study, "keep").value
    )
    beside += [*_both_shares(study, annealed, level), *_both_shares(study, pulled, level)]
    return [_with_figures(_warned(first, reading, f"{annealed.label} and {pulled.label}"), beside)]


def _annealing_against_l2(study: StudyRecord, learnt: float, level: float) -> Part:
    """Whether label annealing keeps more of the source than L2 at a share of direct's gain."""
    at = f"{_percent(learnt)} of the gain"
    annealed, pulled = at_equal_target(study, ANNEALING, learnt), at_equal_target(study, L2, learnt)
    if annealed is None or pulled is None:
        lacking = NAMES[ANNEALING if annealed is None else L2]
        return unknown(f"{lacking} does not reach {_percent(learnt)} of direct fine-tuning's gain")
    share = difference_share(annealed, pulled, study, level)
    judged = above(
        _share_figure(f"source of label annealing - L2 at {at}", share, study),
        BETTER,
        yes=f"label annealing keeps more of the source than L2 at {at}",
        no=f"label annealing does not keep more than L2 by {_percent(BETTER)} of direct fine-tuning's loss",
    )
    return _or_reason(judged, share)


def curve(study: StudyRecord, level: float) -> list[Part]:
    """The source rises and the target falls along label annealing's weights."""
    line = next(iter(lines(study, ANNEALING)), None)
    if line is None or len(line.members) < 3:
        count = 0 if line is None else len(line.members)
        return [
            unknown(
                "a curve needs at least three finished weights of label annealing alone, there "
                f"are {count}"
            )
        ]
    parts = []
    for side, rises in (("keep", True), ("learn", False)):
        by_direct = abs(gain(study.direct, study, side).value)
        points = []
        for strength, trial in line.members:
            points.append((f"{line.name} {strength:g}", gain(trial, study, side)))
        condition = monotone(
            points,
            Trend(rises=rises, least=BETTER * by_direct, margin=STEP * by_direct),
            what=IN_THE_PAPER[side],
            level=level,
            n=_behind(study),
            unit=_unit(study, side),
        )
        parts.append(condition)
    return parts


def some_weight(kept: float) -> Rule[StudyRecord]:
    """Some weight keeps `kept` of the gain and avoids 1 - MARGIN of the loss, with intervals
    widened for the number of weights."""

    def judge(study: StudyRecord, level: float) -> list[Part]:
        trials, bounds = complete_trials(study, ANNEALING), {"learn": kept, "keep": 1 - MARGIN}
        each = widened(level, len(trials))
        judged: list[Part] = []
        for trial in trials:
            figures, verdicts = [], []
            for side, least in bounds.items():
                figure = _trial_share(study, trial, side, each)
                figures.append(dataclasses.replace(figure, needs=f"at least {least:g}"))
                verdicts.append(side_of_bound(figure.interval, least, inclusive=True))
            judged.append(Part(verdict=joint(verdicts), reason=trial.label, figures=figures))
        enough = (
            f"at least {_percent(kept)} of the gain and loses at most {_percent(MARGIN)} of what "
            "direct fine-tuning loses"
        )
        good = [condition for condition in judged if condition.verdict == HOLDS]
        if good:
            reason = f"{'; '.join(condition.reason for condition in good)} keeps {enough}"
            return [
                Part(
                    verdict=HOLDS,
                    reason=reason,
                    figures=[f for condition in good for f in condition.figures],
                )
            ]

        def shortfall(condition: Part) -> float:
            margins = []
            for figure, least in zip(condition.figures, bounds.values(), strict=True):
                margins.append(_or_low(figure.value) - least)
            return min(margins)

        nearest = max(judged, key=shortfall)
        if all(condition.verdict == FAILS for condition in judged):
            reason = f"none of {len(trials)} weights keeps {enough}; {nearest.reason} comes nearest"
            return [Part(verdict=FAILS, reason=reason, figures=nearest.figures)]
        reason = (
            f"whether {nearest.reason}, the nearest of {len(trials)}, keeps {enough} cannot be told"
        )
        return [unknown(reason, nearest.figures)]

    says = (
        f"Some weight keeps at least {_percent(kept)} of direct's gain and avoids at least "
        f"{_percent(1 - MARGIN)}"
    )
    return Rule(f"{says} of its loss.", judge)


def on_win_rate(side: str, rule: Rule[StudyRecord]) -> Rule[StudyRecord]:
    """A rule that looks at nothing but the win rate on a side."""

    def judge(study: StudyRecord, level: float) -> list[Part]:
        alone = by_win_rate(study, side)
        if alone is None:
            return [unknown(f"no judge compared replies: the {side} has no win_rate entry")]
        return rule(alone, level)

    return Rule(f"{rule.says} The {side} is the win rate alone.", judge)


def replay_alike(study: StudyRecord, level: float) -> list[Part]:
    """Replay with label annealing and without keep the source alike."""
    replay, both = paper_choice(study, REPLAY), paper_choice(study, BOTH)
    if replay is None or both is None:
        lacking = NAMES[REPLAY if replay is None else BOTH]
        return [unknown(f"no trial of {lacking} improves the target on the start")]
    share = difference_share(gain(both, study, "keep"), gain(replay, study, "keep"), study, level)
    least = f"{_percent(MARGIN)} of what direct fine-tuning loses"
    figure = _share_figure("source of replay + label annealing - replay alone", share, study)
    yes, no = f"the two differ by less than {least}", f"the two differ by more than {least}"
    beside = [*_both_shares(study, replay, level), *_both_shares(study, both, level)]
    return [_with_figures(_or_reason(within(figure, MARGIN, yes=yes, no=no), share), beside)]


def temperature_matters(study: StudyRecord, level: float) -> list[Part]:
    """A temperature other than 1 keeps more of the source."""
    known = sorted({line.temperature for line in lines(study, ANNEALING)})
    if 1.0 not in known or known[0] >= 1 or known[-1] <= 1:
        temperatures = ", ".join(f"{t:g}" for t in known) or "none"
        return [
            unknown(f"it needs temperatures below 1, of 1 and above 1, there are {temperatures}")
        ]
    plain, others = (
        at_equal_target(study, ANNEALING, NO_LOSS, temperature=1.0),
        [t for t in known if t != 1],
    )
    parts = []
    for temperature in others:
        other = at_equal_target(study, ANNEALING, NO_LOSS, temperature=temperature)
        if plain is None or other is None:
            parts.append(
                unknown(
                    f"temperature {temperature:g} or 1 does not reach {_percent(NO_LOSS)} of the "
                    "gain"
                )
            )
            continue
        share = difference_share(other, plain, study, widened(level, len(others)))
        what = f"source at temperature {temperature:g} - 1 at {_percent(NO_LOSS)} of the gain"
        judged = above(
            _share_figure(what, share, study),
            BETTER,
            yes=f"temperature {temperature:g} keeps more of the source than 1",
            no=f"temperature {temperature:g} does not keep {_percent(BETTER)} more than 1",
        )
        parts.append(_or_reason(judged, share))
    return _some(parts)


def keeps_the_related_skill(study: StudyRecord, level: float) -> list[Part]:
    """Label annealing keeps `MOST` of what direct fine-tuning brings to a related skill."""
    skill = related_skill(study)
    if skill is None:
        return [unknown("no related skill was measured: give it as the suite 'related'")]
    ours = at_equal_target(study, ANNEALING, NO_LOSS, of=lambda trial: gain(trial, study, skill))
    if ours is None:
        return [
            unknown(
                f"label annealing does not reach {_percent(NO_LOSS)} of direct fine-tuning's gain"
            )
        ]
    share = kept_share(ours, gain(study.direct, study, skill), confidence=level)
    what = f"{skill.label}: gain kept by label annealing at {_percent(NO_LOSS)} of the target's"
    judged = above(
        _share_figure(what, share, study, "learn"),
        MOST,
        yes=f"label annealing keeps most of the rise of {skill.label}",
        no=f"label annealing loses most of the rise of {skill.label}",
    )
    return [_or_reason(judged, share)]


def beats_direct(study: StudyRecord, level: float) -> list[Part]:
    """A trial of label annealing learns more of the target than direct fine-tuning."""
    trials, direct = complete_trials(study, ANNEALING), gain(study.direct, study, "learn")
    parts = []
    for trial in trials:
        more, what = (
            gain(trial, study, "learn") - direct,
            f"target of {trial.label} - direct fine-tuning",
        )
        figure = _figure(what, more, study, widened(level, len(trials)), _unit(study, "learn"))
        words = (
            f"{trial.label} learns more of the target than direct fine-tuning",
            f"{trial.label} does not",
        )
        parts.append(above(figure, _least(study, "learn"), yes=words[0], no=words[1]))
    return _some(parts)


def restores_format(study: StudyRecord, level: float) -> list[Part]:
    """L2 avoids 1 - MARGIN of what direct fine-tuning loses of the answers' form."""
    if not formats(study):
        return [unknown("no entry was scored both strictly and flexibly")]
    direct = follows_format(study.direct, study)
    ours = at_equal_target(study, L2, NO_LOSS, of=lambda trial: follows_format(trial, study))
    if ours is None:
        return [unknown(f"L2 does not reach {_percent(NO_LOSS)} of direct fine-tuning's gain")]
    share = kept_share(ours - direct, direct * -1.0, confidence=level)
    judged = above(
        _share_figure(
            f"form of the answers: loss avoided by L2 at {_percent(NO_LOSS)} of the gain",
            share,
            study,
        ),
        1 - MARGIN,
        yes="L2 follows the form of the examples again",
        no="L2 does not follow the form of the examples again",
        inclusive=True,
    )
    return [_or_reason(judged, share)]


# ------------------------------------------------------------------------------------------ figures


def _beside_the_papers(
    part: Part,
    study: StudyRecord,
    method: Method,
    judge: Callable[[TrialRecord], str],
    level: float,
) -> Part:
    """A part with the shares of the trial that the paper's rule takes, and a warning where that
    says otherwise."""
    trial = paper_choice(study, method)
    if trial is None:
        return dataclasses.replace(
            part, warning=f"no trial of {NAMES[method]} improves the target on the start"
        )
    return _with_figures(
        _warned(part, judge(trial), trial.label), _both_shares(study, trial, level)
    )


def _warned(part: Part, reading: str, named: str) -> Part:
    if reading == part.verdict:
        return part
    text = f"the paper's rule takes {named}, by which the claim would be: {reading}"
    return dataclasses.replace(part, warning=f"{part.warning}; {text}" if part.warning else text)


def _or_reason(judged: Part, share: Share) -> Part:
    """A part that rests on a share, which may not exist."""
    if share.interval is not None:
        return judged
    return dataclasses.replace(judged, reason=share.reason or NO_INTERVAL)


def _with_figures(part: Part, figures: Sequence[ClaimFigure]) -> Part:
    return dataclasses.replace(part, figures=[*part.figures, *figures])


def _figure(what: str, found: Figure, study: StudyRecord, level: float, unit: str) -> ClaimFigure:
    return ClaimFigure(
        what=what, value=found.value, interval=found.interval_at(level), n=_behind(study), unit=unit
    )


def _gain_of_direct(
    study: StudyRecord, side: str | Objective, label: str, level: float
) -> ClaimFigure:
    direct = gain(study.direct, study, side)
    unit = _unit(study, side) if isinstance(side, str) else side.unit
    return _figure(f"direct fine-tuning, {label}", direct, study, level, unit)


def _share_figure(what: str, share: Share, study: StudyRecord, side: str = "keep") -> ClaimFigure:
    value = math.nan if share.value is None else share.value
    return ClaimFigure(
        what=what,
        value=value,
        interval=share.interval,
        n=_behind(study, side),
        unit=_SHARES[side][1],
    )


def _trial_share(study: StudyRecord, trial: TrialRecord, side: str, level: float) -> ClaimFigure:
    share = share_of_direct(trial, study, side, level)
    return _share_figure(f"{trial.label}: {_SHARES[side][0]}", share, study, side)


def _both_shares(study: StudyRecord, trial: TrialRecord, level: float) -> list[ClaimFigure]:
    return [_trial_share(study, trial, side, level) for side in _SHARES]


def _unit(study: StudyRecord, side: str) -> str:
    return (study.learn if side == "learn" else study.keep).unit


def _least(study: StudyRecord, side: str) -> float:
    return LEAST[is_share(_unit(study, side), unknown=True)]


def _behind(study: StudyRecord, side: str | Objective = "keep") -> str:
    seeds, samples = len(study.seeds), gain(study.direct, study, side).samples
    return f"{seeds} seed{'s' if seeds != 1 else ''}, {samples:,} samples"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _or_low(value: float) -> float:
    return -math.inf if math.isnan(value) else value


def _some(parts: Sequence[Part]) -> list[Part]:
    """Of several looks one has to hold: those that do; else the one nearest to it, which decides
    only if all fail."""
    good = [condition for condition in parts if condition.verdict == HOLDS]
    if good or not parts:
        return good
    undecided = [condition for condition in parts if condition.verdict != FAILS]

    def nearness(condition: Part) -> float:
        return _or_low(condition.figures[0].value) if condition.figures else -math.inf

    return [max(undecided or parts, key=nearness)]
