"""Rules by which the claims of "Memory Retaining Finetuning" are judged on a sweep; `claims` says
which claim has which, and what the words mean.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

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
    Method,
    at_equal_target,
    avoided_at,
    by_win_rate,
    complete_trials,
    default_of,
    difference_share,
    follows_format,
    formats,
    gain,
    lines,
    paper_choice,
    point_of,
    related_skill,
    share_of_direct,
    with_entries,
)
from holdfast.records.figure import Figure
from holdfast.records.metrics import is_share
from holdfast.records.study import Objective, StudyRecord, TrialRecord
from holdfast.reports.format import join_and
from holdfast.statistics.equal_target import source_at
from holdfast.statistics.shares import Share, kept_share

NO_LOSS = 0.9
"""Of direct's target gain: learnt with "no loss"; also the target at which methods are compared."""
MOST = 0.5
"""What "most of" and "little" are held against: more than half is most, less than half is
little."""
SHARES_OF_GAIN = (MOST, 0.75, NO_LOSS)
"""Of direct's target gain: where "most of" is looked at, from its easiest reading on."""
BETTER = 0.1
"""Of what direct fine-tuning loses: the least by which one method is better than another."""
STEP = 0.1
"""Of what direct fine-tuning gains or loses: what a monotone curve may go back between two of its
points."""
PLAIN = {"mask_target": False, "direction": "forward", "temperature": 1.0}
"""Label annealing as the paper implements it."""
_SHARES = {
    "keep": ("share of forgetting avoided", "share of direct fine-tuning's loss"),
    "learn": ("share of gain kept", "share of direct fine-tuning's gain"),
}
"""By side: what a share of it is called, and its unit."""


# -------------------------------------------------------------------------------------------- rules


def learns_and_forgets(study: StudyRecord, level: float) -> list[Part]:
    """Direct fine-tuning gains on the target and loses on the source."""
    learn = _gain_of_direct(study, "learn", "learn", level)
    keep = _gain_of_direct(study, "keep", "keep", level)
    learns = above(
        learn,
        _least(study, "learn"),
        yes="direct fine-tuning improves the learn entries",
        no="direct fine-tuning improves the learn entries too little to count",
    )
    no = "direct fine-tuning forgets too little to count"
    forgets = below(keep, -_least(study, "keep"), yes="direct fine-tuning forgets", no=no)
    beside = []
    for strict_and_flexible in formats(study):
        beside += [
            _gain_of_direct(study, entry, entry.label, level) for entry in strict_and_flexible
        ]
    return [learns, _with_figures(forgets, beside)]


def keeps(method: Method, *, kept: float, avoided: float) -> Rule[StudyRecord]:
    """Where the method has learnt `kept` of direct's gain, it avoids at least `avoided` of its
    loss. What would be said of the trial that the paper's rule takes stands beside."""

    def judge(study: StudyRecord, level: float) -> list[Part]:
        def by_trial(trial: TrialRecord) -> str:
            verdicts = []
            for side, least in (("keep", avoided), ("learn", kept)):
                interval = share_of_direct(trial, study, side, level).interval
                verdicts.append(side_of_bound(interval, least, inclusive=True))
            return joint(verdicts)

        avoids = _avoids(study, method, kept, avoided, level)
        return [_beside_the_papers(avoids, study, method, by_trial, level)]

    return Rule(_says_avoids(method, kept, avoided), judge)


def keeps_most(study: StudyRecord, level: float) -> list[Part]:
    """Label annealing avoids 1 - MARGIN of direct's loss at `MOST` of its gain; beside it what it
    and L2 avoid at each of `SHARES_OF_GAIN`, and a warning where L2 does as well."""
    parts = keeps(ANNEALING, kept=MOST, avoided=1 - MARGIN)(study, level)
    figures = []
    for share in SHARES_OF_GAIN:
        for method in (ANNEALING, L2):
            if complete_trials(study, method) and (method, share) != (ANNEALING, MOST):
                figures.append(_avoided_figure(study, method, share, level))
    rival = avoided_at(study, L2, MOST, level).interval
    [claim_part] = parts
    if side_of_bound(rival, 1 - MARGIN, inclusive=True) == HOLDS:
        claim_part = _with_warning(
            claim_part, f"L2 also avoids {_percent(1 - MARGIN)} of the forgetting at that gain"
        )
    return [_with_figures(claim_part, figures)]


def some_weight(kept: float) -> Rule[StudyRecord]:
    """Label annealing at some weight keeps `kept` of the gain and avoids 1 - MARGIN of the loss: of
    its grid at equal target, as all methods are judged. The paper takes no trial here."""
    avoided = 1 - MARGIN

    def judge(study: StudyRecord, level: float) -> list[Part]:
        return [_avoids(study, ANNEALING, kept, avoided, level)]

    return Rule(_says_avoids(ANNEALING, kept, avoided), judge)


def _says_avoids(method: Method, kept: float, avoided: float) -> str:
    says = (
        f"When {NAMES[method]} learns {_percent(kept)} as much as direct fine-tuning, it avoids at "
        f"least {_percent(avoided)}"
    )
    return f"{says} of direct fine-tuning's forgetting."


def _avoids(study: StudyRecord, method: Method, kept: float, avoided: float, level: float) -> Part:
    """Whether a method avoids so much of direct's loss where it has learnt so much of its gain."""
    much = (
        f"{_percent(avoided)} of direct fine-tuning's forgetting when it learns {_percent(kept)} "
        "as much"
    )
    avoids = above(
        _avoided_figure(study, method, kept, level),
        avoided,
        yes=f"{NAMES[method]} avoids at least {much}",
        no=f"{NAMES[method]} avoids less than {much}",
        between=f"it is undecided whether {NAMES[method]} avoids {much}",
        inclusive=True,
    )
    avoids = _or_reason(avoids, avoided_at(study, method, kept, level))
    rival = avoided_at(study, DIRECT, kept, level).interval
    has_rates = len(complete_trials(study, DIRECT)) > 1
    if has_rates and side_of_bound(rival, avoided, inclusive=True) == HOLDS:
        warning = (
            f"direct fine-tuning at another learning rate also avoids {_percent(avoided)} of the "
            "forgetting at that gain"
        )
        avoids = _with_warning(avoids, warning)
    return avoids


def _avoided_figure(study: StudyRecord, method: Method, kept: float, level: float) -> ClaimFigure:
    what = f"{NAMES[method]} at {_percent(kept)} of direct fine-tuning's gain: {_SHARES['keep'][0]}"
    return _share_figure(what, avoided_at(study, method, kept, level), study)


def helps_little(study: StudyRecord, level: float) -> list[Part]:
    """L2 avoids less than `MOST` of direct's loss."""
    share = avoided_at(study, L2, NO_LOSS, level)
    avoids = below(
        _share_figure(
            f"L2 at {_percent(NO_LOSS)} of direct fine-tuning's gain: {_SHARES['keep'][0]}",
            share,
            study,
        ),
        MOST,
        yes="L2 avoids less than half of direct fine-tuning's forgetting",
        no="L2 avoids more than half of direct fine-tuning's forgetting",
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
    at = f"{_percent(learnt)} of direct fine-tuning's gain"
    annealed, pulled = at_equal_target(study, ANNEALING, learnt), at_equal_target(study, L2, learnt)
    if annealed is None or pulled is None:
        lacking = NAMES[ANNEALING if annealed is None else L2]
        return unknown(
            f"{lacking} learns less than {_percent(learnt)} as much as direct fine-tuning"
        )
    share = difference_share(annealed, pulled, study, level)
    judged = above(
        _share_figure(f"score on keep entries, label annealing - L2, at {at}", share, study),
        BETTER,
        yes=f"label annealing scores higher than L2 on the keep entries at {at}",
        no="on the keep entries, label annealing's lead over L2 is less than "
        f"{_percent(BETTER)} of direct fine-tuning's forgetting",
    )
    return _or_reason(judged, share)


def curve(study: StudyRecord, level: float) -> list[Part]:
    """The source rises and the target falls along label annealing's weights."""
    line = next(iter(lines(study, ANNEALING)), None)
    if line is None or len(line.members) < 3:
        count = 0 if line is None else len(line.members)
        return [
            unknown(
                f"expected at least three finished weights of label annealing alone, got {count}"
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
            what=f"the score on the {side} entries",
            level=level,
            n=_behind(study),
            unit=_unit(study, side),
        )
        parts.append(condition)
    return parts


def on_win_rate(side: str, rule: Rule[StudyRecord]) -> Rule[StudyRecord]:
    """A rule that looks at nothing but the win rate on a side."""

    def judge(study: StudyRecord, level: float) -> list[Part]:
        alone = by_win_rate(study, side)
        if alone is None:
            return [unknown(f"no judge compared replies: {side} has no win_rate entry")]
        return rule(alone, level)

    return Rule(f"{rule.says} Of the {side} entries, the rule uses only the win rate.", judge)


def on_entries(side: str, names: tuple[str, ...], rule: Rule[StudyRecord]) -> Rule[StudyRecord]:
    """A rule that looks, of a side, at the entries of these names alone, where the study measures
    any of them."""

    def judge(study: StudyRecord, level: float) -> list[Part]:
        return rule(with_entries(study, side, names), level)

    alone = f"Of the {side} entries, the rule uses only {join_and(names)}"
    return Rule(f"{rule.says} {alone}, if the study measures any of them.", judge)


def replay_alike(study: StudyRecord, level: float) -> list[Part]:
    """Replay with label annealing, its weight varied from 0, which is replay alone, keeps the
    source as that does, where either has learnt `NO_LOSS` of direct's gain."""
    line = next((line for line in lines(study, BOTH) if line.start is not None), None)
    alone = None if line is None else line.start
    if line is None or alone is None:
        reason = "the study has no trial of replay alone with the same data and settings"
        return [unknown(reason)]
    least = gain(study.direct, study, "learn") * NO_LOSS
    replayed = source_at([[point_of(alone, study)]], least)
    curve = [point_of(trial, study) for trial in (alone, *(t for _, t in line.members))]
    both = source_at([curve], least)
    if replayed is None or both is None:
        reason = f"replay alone learns less than {_percent(NO_LOSS)} as much as direct fine-tuning"
        return [unknown(reason, _both_shares(study, alone, level))]
    share = difference_share(both, replayed, study, level)
    much = f"{_percent(MARGIN)} of direct fine-tuning's forgetting"
    what = (
        f"score on keep entries, {NAMES[BOTH]} - replay alone, at {_percent(NO_LOSS)} of direct "
        "fine-tuning's gain"
    )
    yes = f"label annealing changes replay's score on the keep entries by less than {much}"
    no = f"label annealing changes replay's score on the keep entries by more than {much}"
    claim_part = _or_reason(
        within(_share_figure(what, share, study), MARGIN, yes=yes, no=no), share
    )
    claim_part = _with_figures(claim_part, _both_shares(study, alone, level))
    trial = paper_choice(study, BOTH)
    if trial is None:
        return [claim_part]
    apart = difference_share(gain(trial, study, "keep"), gain(alone, study, "keep"), study, level)
    chosen = within(_share_figure(trial.label, apart, study), MARGIN, yes=yes, no=no)
    claim_part = _warned(claim_part, chosen.verdict, trial.label)
    return [_with_figures(claim_part, _both_shares(study, trial, level))]


def temperature_matters(study: StudyRecord, level: float) -> list[Part]:
    """A temperature other than 1 keeps more of the source."""
    usual = default_of("temperature")
    temperatures = {line.settings.get("temperature", usual) for line in lines(study, ANNEALING)}
    known = sorted(temperatures)
    if 1.0 not in known or known[0] >= 1 or known[-1] <= 1:
        listed = ", ".join(f"{t:g}" for t in known) or "none"
        return [unknown(f"expected temperatures below 1, equal to 1 and above 1, got {listed}")]
    others = [t for t in known if t != 1]
    parts = []
    for temperature in others:
        variant = Variant(
            name=f"temperature {temperature:g}",
            having={"temperature": temperature},
            plain="temperature 1",
            against={"temperature": 1.0},
        )
        parts.append(_keeps_more(study, variant, widened(level, len(others))))
    return _some(parts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variant:
    """A form of label annealing that is held against another."""

    name: str
    """For people, as `plain`."""
    having: Mapping[str, Any]
    """Its settings."""
    plain: str = "the plain KL"
    against: Mapping[str, Any]
    """Those of the other."""


def _difference_at(study: StudyRecord, variant: Variant, level: float) -> Share | str:
    """What a variant keeps of the source beyond the other where both have learnt `NO_LOSS` of
    direct's gain, as a share of direct's loss; or why not."""
    ours = at_equal_target(study, ANNEALING, NO_LOSS, having=variant.having)
    plain = at_equal_target(study, ANNEALING, NO_LOSS, having=variant.against)
    if ours is None or plain is None:
        lacking = variant.name if ours is None else variant.plain
        return f"{lacking} learns less than {_percent(NO_LOSS)} as much as direct fine-tuning"
    return difference_share(ours, plain, study, level)


def _keeps_more(study: StudyRecord, variant: Variant, level: float) -> Part:
    """Whether a variant keeps more of the source than the other, by `BETTER`."""
    return _judged_at_equal_target(
        study,
        variant,
        level,
        lambda figure: above(
            figure,
            BETTER,
            yes=f"{variant.name} scores higher on the keep entries than {variant.plain}",
            no=f"on the keep entries, the lead of {variant.name} over {variant.plain} is less than "
            f"{_percent(BETTER)} of direct fine-tuning's forgetting",
        ),
    )


def masking_keeps_more(study: StudyRecord, level: float) -> list[Part]:
    """With the label left out of the KL label annealing keeps more of the source, by `BETTER`."""
    masked = Variant(name="mask_target", having={**PLAIN, "mask_target": True}, against=PLAIN)
    return [_keeps_more(study, masked, level)]


def directions_alike(study: StudyRecord, level: float) -> list[Part]:
    """The reverse KL and the JSD each keep the source as the forward KL does, within `MARGIN`."""
    parts = []
    for direction in ("reverse", "jsd"):
        having = {**PLAIN, "direction": direction}
        variant = Variant(name=direction, having=having, plain="forward", against=PLAIN)
        parts.append(_keeps_alike(study, variant, level))
    return parts


def _keeps_alike(study: StudyRecord, variant: Variant, level: float) -> Part:
    """Whether a variant keeps as much of the source as the other, within `MARGIN`."""
    return _judged_at_equal_target(
        study,
        variant,
        level,
        lambda figure: within(
            figure,
            MARGIN,
            yes=f"{variant.name} and {variant.plain} differ on the keep entries by less than "
            f"{_percent(MARGIN)} of direct fine-tuning's forgetting",
            no=f"{variant.name} and {variant.plain} differ on the keep entries by more than "
            f"{_percent(MARGIN)} of direct fine-tuning's forgetting",
        ),
    )


def _judged_at_equal_target(
    study: StudyRecord, variant: Variant, level: float, judge: Callable[[ClaimFigure], Part]
) -> Part:
    """What a variant keeps of the source beyond the other at equal target, as a part of a claim."""
    share = _difference_at(study, variant, level)
    if isinstance(share, str):
        return unknown(share)
    what = (
        f"score on keep entries, {variant.name} - {variant.plain}, at {_percent(NO_LOSS)} of "
        "direct fine-tuning's gain"
    )
    return _or_reason(judge(_share_figure(what, share, study)), share)


def keeps_the_related_skill(study: StudyRecord, level: float) -> list[Part]:
    """Label annealing keeps `MOST` of what direct fine-tuning brings to a related skill."""
    skill = related_skill(study)
    if skill is None:
        return [unknown("no related skill was measured: add the suite 'related'")]
    ours = at_equal_target(study, ANNEALING, NO_LOSS, of=lambda trial: gain(trial, study, skill))
    if ours is None:
        return [
            unknown(
                f"label annealing learns less than {_percent(NO_LOSS)} as much as direct fine-tuning"
            )
        ]
    share = kept_share(ours, gain(study.direct, study, skill), confidence=level)
    what = (
        f"{skill.label}: share of gain kept by label annealing at {_percent(NO_LOSS)} of direct "
        "fine-tuning's gain on the learn entries"
    )
    judged = above(
        _share_figure(what, share, study, "learn"),
        MOST,
        yes=f"label annealing keeps most of the gain on {skill.label}",
        no=f"label annealing loses most of the gain on {skill.label}",
    )
    return [_or_reason(judged, share)]


def beats_direct(study: StudyRecord, level: float) -> list[Part]:
    """A trial of label annealing learns more of the target than direct fine-tuning."""
    trials, direct = complete_trials(study, ANNEALING), gain(study.direct, study, "learn")
    parts = []
    for trial in trials:
        more, what = (
            gain(trial, study, "learn") - direct,
            f"score on learn entries, {trial.label} - direct fine-tuning",
        )
        figure = _figure(what, more, study, widened(level, len(trials)), _unit(study, "learn"))
        words = (
            f"{trial.label} learns more than direct fine-tuning",
            f"{trial.label} does not learn more than direct fine-tuning",
        )
        parts.append(above(figure, _least(study, "learn"), yes=words[0], no=words[1]))
    return _some(parts)


def restores_format(study: StudyRecord, level: float) -> list[Part]:
    """L2 avoids 1 - MARGIN of what direct fine-tuning loses of the answers' form."""
    if not formats(study):
        return [unknown("no entry has both a strict and a flexible score")]
    direct = follows_format(study.direct, study)
    ours = at_equal_target(study, L2, NO_LOSS, of=lambda trial: follows_format(trial, study))
    if ours is None:
        return [unknown(f"L2 learns less than {_percent(NO_LOSS)} as much as direct fine-tuning")]
    share = kept_share(ours - direct, direct * -1.0, confidence=level)
    judged = above(
        _share_figure(
            f"answer format: share of loss avoided by L2 at {_percent(NO_LOSS)} of direct "
            "fine-tuning's gain",
            share,
            study,
        ),
        1 - MARGIN,
        yes="with L2, the model follows the format of the examples",
        no="with L2, the model does not follow the format of the examples",
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
            part, warning=f"no trial of {NAMES[method]} improves the learn entries"
        )
    return _with_figures(
        _warned(part, judge(trial), trial.label), _both_shares(study, trial, level)
    )


def _warned(part: Part, reading: str, named: str) -> Part:
    if reading == part.verdict:
        return part
    text = f"the paper's rule chooses {named}, which would give the verdict: {reading}"
    return _with_warning(part, text)


def _with_warning(part: Part, text: str) -> Part:
    return dataclasses.replace(part, warning=f"{part.warning}; {text}" if part.warning else text)


def _or_reason(judged: Part, share: Share) -> Part:
    """A part that rests on a share, which may not exist."""
    if share.interval is not None:
        return judged
    return dataclasses.replace(judged, reason=share.reason or NO_INTERVAL)


def _with_figures(part: Part, figures: Sequence[ClaimFigure]) -> Part:
    return dataclasses.replace(part, figures=[*part.figures, *figures])


def _figure(what: str, found: Figure, study: StudyRecord, level: float, unit: str) -> ClaimFigure:
    return ClaimFigure.of(found, what=what, level=level, n=_behind(study), unit=unit)


def _gain_of_direct(
    study: StudyRecord, side: str | Objective, label: str, level: float
) -> ClaimFigure:
    direct = gain(study.direct, study, side)
    unit = _unit(study, side) if isinstance(side, str) else side.unit
    return _figure(f"direct fine-tuning, {label}", direct, study, level, unit)


def _share_figure(what: str, share: Share, study: StudyRecord, side: str = "keep") -> ClaimFigure:
    # of a loss that may be none at all there is no share, whatever the division gives
    value = None if share.interval is None else share.value
    return ClaimFigure(
        what=what,
        value=math.nan if value is None else value,
        interval=share.interval,
        n=_behind(study, side),
        unit=_SHARES[side][1],
        seeds=len(study.seeds),
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
