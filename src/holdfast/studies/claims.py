"""What paper 000 claims, held against studies: holds, does not hold, or cannot tell.

Each claim is a value of `STATEMENTS`: the paper's sentence, the recipe, the rule and the bounds that it is judged by,
and the preconditions without which the rule may not speak (`holdfast.studies.tradeoff.preconditions`). What the engine
does with all of them, family-wise level and warnings among it, stands in `holdfast.studies.engine.claims`. The rules
were written before any outcome under them was looked at:

- A figure is a gain against the start (`holdfast.statistics.gains.mean_gain`: mean over entries and seeds, more is
  better), or a share of what direct fine-tuning did: *kept* = gain / direct's gain on the target, *avoided* = 1 - loss
  / direct's loss on the source. *Direct* is direct fine-tuning at the rate that learns the target best, where a study
  has several.
- Intervals are at 95 % and cover seeds and evaluated samples; shares have Fieller's.
- "Lowers", "improves", "better" hold only beyond a least effect: `LEAST` in the metric's unit, `BETTER` as a share of
  what direct fine-tuning loses. Above zero and below it is too little, which is not what the paper claims.
- "Keeps the start's level", "alike": an equivalence with a margin of `MARGIN` (20 %) of what direct fine-tuning lost or
  gained; the whole interval has to lie within.
- A method is judged *at equal target*: what its grid, interpolated, keeps of the source where it has learnt the share
  of direct's gain that the claim speaks of (`holdfast.statistics.equal_target`). Going on with the grid beyond that
  does not move it. The trial that the paper's rule takes (drop those whose target does not improve on the start, then
  the best source) moves with every stronger weight that joins the grid; what it would say stands beside, and a warning
  where it says otherwise.
- A claim that some weight does a thing ("with some choice ...") is judged on all of them, with the intervals widened to
  1 - 0.05 / weights (Bonferroni).
- While trials of a study are still to come, claims that they may change cannot be told.

The tables of the paper did not survive in the text that this project works from, so its figures are those that its
sentences state.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from holdfast.records.metrics import is_share
from holdfast.records.study import Objective, StudyRecord, TrialRecord
from holdfast.statistics.gains import OverSeeds, incomplete
from holdfast.statistics.shares import Share
from holdfast.studies.engine import claims as engine
from holdfast.studies.engine.claims import (
    FAILS,
    HOLDS,
    MARGIN,
    NO_INTERVAL,
    Claim,
    Evidence,
    Figure,
    Part,
    Precondition,
    Statement,
    above,
    against,
    below,
    joint,
    monotone,
    unknown,
    within,
)
from holdfast.studies.tradeoff.curves import (
    ANNEALING,
    BOTH,
    DIRECT,
    L2,
    NAMES,
    REPLAY,
    Line,
    Method,
    at_equal_target,
    avoided_at,
    complete_trials,
    difference_share,
    gain,
    lines,
    none_of,
    paper_choice,
    share_of_direct,
)
from holdfast.studies.tradeoff.paper import PAPER
from holdfast.studies.tradeoff.preconditions import above_chance, bites, converged, moderate

RECIPES = tuple(PAPER.recipes)
NO_LOSS = 0.9
"""Of direct's target gain: learnt with "no loss"; also the target at which methods are compared."""
MOST = 0.5
"""What "most of" and "little" are held against: more than half is most, less than half is little."""
NICHE_KEPT = 0.8
"""The paper's "more than 80 % of the improvement"."""
HALF = 0.4
""" "About half": at least this share."""
BETTER = 0.1
"""Of what direct fine-tuning loses: the least by which one method is better than another."""
STEP = 0.1
"""Of what direct fine-tuning gains or loses: what a monotone curve may go back between two of its points."""
LEAST = {True: 0.02, False: 0.05}
"""The least change that counts, by whether the metric is a share: 2 points, or 0.05 nats a token (5 % of the
perplexity)."""

_SHARES = {
    "source": ("source loss avoided", "share of direct's loss"),
    "target": ("target gain kept", "share of direct's gain"),
}
"""By side: what a share of it is called, and its unit."""


def check_claims(studies: Mapping[str, StudyRecord | None]) -> list[Claim]:
    """Every claim about the recipes that were asked for.

    Args:
        studies: recipe -> its study, finished or not; None or a missing recipe among `RECIPES` that is a key: not run.

    Returns:
        In the order of their numbers. Recipes that are no key are left out.
    """
    return engine.check_claims(STATEMENTS, {recipe: _evidence(study) for recipe, study in studies.items()})


def _evidence(study: StudyRecord | None) -> Evidence[StudyRecord]:
    if study is None:
        return Evidence(record=None)
    without = {}
    for seed in study.seeds if len(study.seeds) > 1 else ():
        trials = [dataclasses.replace(t, runs=[r for r in t.runs if r.seed != seed]) for t in study.trials]
        rest = [s for s in study.seeds if s != seed]
        without[f"seed {seed}"] = dataclasses.replace(study, seeds=rest, trials=trials)
    waiting = sum(t.state in ("waiting", "running") for t in study.trials)
    return Evidence(record=study, waiting=waiting, seeds=len(study.seeds), without=without)


def _lacking(study: StudyRecord, methods: Iterable[Method]) -> str | None:
    """Why a rule about trials of these methods cannot be applied: what everything is held against has to be finished,
    and each method needs a trial to judge."""
    if study.direct is None:
        return "direct fine-tuning, which everything is held against, is not finished"
    lacking = incomplete(study.direct, study)
    if lacking is not None:
        return f"direct fine-tuning: {lacking}"
    return "; ".join(why for m in methods if (why := none_of(study, m)) is not None) or None


# --------------------------------------------------------------------------------------------------------------- rules

Rule = Callable[[StudyRecord, float], list[Part]]


def _learns_and_forgets(study: StudyRecord, level: float) -> list[Part]:
    """Direct fine-tuning's target gain lies above the least change that counts with its whole interval, its source gain
    below."""
    target, source = (
        _figure(f"direct fine-tuning, {side}", gain(study.direct, study, side), study, level, _unit(study, side))
        for side in ("target", "source")
    )
    return [
        above(target, _least(study, "target"), yes="it learns the target", no="it learns too little of the target"),
        below(source, -_least(study, "source"), yes="direct fine-tuning forgets", no="it forgets too little to count"),
    ]


def _keeps(method: Method, *, kept: float, avoided: float) -> Rule:
    """Where the method has learnt `kept` of direct's gain, it avoids at least `avoided` of its loss."""

    def check(study: StudyRecord, level: float) -> list[Part]:
        much = f"{_percent(avoided)} of direct fine-tuning's loss where it has {_percent(kept)} of its gain"
        share = avoided_at(study, method, kept, level)
        part = above(
            _share_figure(f"{NAMES[method]} at {_percent(kept)} of the gain: {_SHARES['source'][0]}", share, study),
            avoided,
            yes=f"{NAMES[method]} avoids at least {much}",
            no=f"{NAMES[method]} avoids less than {much}",
            between=f"whether {NAMES[method]} avoids {much} cannot be told",
            inclusive=True,
        )
        rival = avoided_at(study, DIRECT, kept, level)
        warning = ""
        if len(complete_trials(study, DIRECT)) > 1 and against(rival.interval, avoided, inclusive=True) == HOLDS:
            warning = f"direct fine-tuning at another rate avoids {_percent(avoided)} there too"
        part = dataclasses.replace(_or_reason(part, share), warning=warning)

        def by_trial(trial: TrialRecord) -> str:
            bounds = (("source", avoided), ("target", kept))
            found = ((share_of_direct(trial, study, side, level).interval, least) for side, least in bounds)
            return joint(against(interval, least, inclusive=True) for interval, least in found)

        return [_beside_the_papers(part, study, method, by_trial, level)]

    check.__doc__ = (
        f"Where it has learnt {_percent(kept)} of direct's gain, {NAMES[method]} avoids at least {avoided:g}."
    )
    return check


def _helps_little(study: StudyRecord, level: float) -> list[Part]:
    """Where L2 has learnt `NO_LOSS` of direct's gain, it avoids less than `MOST` of its loss."""
    share = avoided_at(study, L2, NO_LOSS, level)
    part = below(
        _share_figure(f"L2 at {_percent(NO_LOSS)} of the gain: {_SHARES['source'][0]}", share, study),
        MOST,
        yes="L2 avoids less than half of the loss",
        no="L2 avoids more than half of the loss",
        inclusive=True,
    )

    def by_trial(trial: TrialRecord) -> str:
        found = share_of_direct(trial, study, "source", level).interval
        return {HOLDS: FAILS, FAILS: HOLDS}.get(against(found, MOST), against(found, MOST))

    return [_beside_the_papers(_or_reason(part, share), study, L2, by_trial, level)]


def _better_than_l2(study: StudyRecord, level: float) -> list[Part]:
    """At `NO_LOSS` of direct's target gain label annealing keeps more of the source than L2, by at least `BETTER` of
    what direct fine-tuning loses; at all of the gain stands beside it."""
    parts = []
    for target in (NO_LOSS, 1.0):
        both = [at_equal_target(study, method, target) for method in (ANNEALING, L2)]
        what = f"source of label annealing - L2 at {_percent(target)} of the gain"
        if both[0] is None or both[1] is None:
            lacking = NAMES[ANNEALING if both[0] is None else L2]
            parts.append(unknown(f"{lacking} does not reach {_percent(target)} of direct fine-tuning's gain"))
            continue
        share = difference_share(both[0], both[1], study, level)
        judged = above(
            _share_figure(what, share, study),
            BETTER,
            yes=f"label annealing keeps more of the source than L2 at {_percent(target)} of the gain",
            no=f"label annealing does not keep more than L2 by {_percent(BETTER)} of direct fine-tuning's loss",
        )
        parts.append(_or_reason(judged, share))
    first, whole = parts
    beside = [dataclasses.replace(f, needs="") for f in whole.figures]
    chosen = [paper_choice(study, m) for m in (ANNEALING, L2)]
    if chosen[0] is None or chosen[1] is None:
        return [_with_figures(first, beside)]
    difference = gain(chosen[0], study, "source").minus(gain(chosen[1], study, "source"))
    reading = against(difference.interval_at(level), BETTER * -gain(study.direct, study, "source").value)
    shares = [f for trial in chosen if trial is not None for f in _both_shares(study, trial, level)]
    named = " and ".join(t.label for t in chosen if t is not None)
    return [_with_figures(_warned(first, reading, named), [*beside, *shares])]


def _curve(study: StudyRecord, level: float) -> list[Part]:
    """Along label annealing's weights, at one temperature, at least three: from the weakest to the strongest the source
    rises and the target falls, by at least `BETTER` of what direct fine-tuning did, and between no two weights does
    either go back by more than `STEP` of that, for all pairs at once."""
    line = next(iter(lines(study, ANNEALING)), None)
    if line is None or len(line.members) < 3:
        count = 0 if line is None else len(line.members)
        return [unknown(f"a curve needs at least three finished weights of label annealing alone, there are {count}")]
    return [_monotone(study, line, side, rises, level) for side, rises in (("source", True), ("target", False))]


def _monotone(study: StudyRecord, line: Line, side: str, rises: bool, level: float) -> Part:
    whole = abs(gain(study.direct, study, side).value)
    points = [(f"{line.name} {strength:g}", gain(trial, study, side)) for strength, trial in line.members]
    return monotone(
        points,
        what=side,
        rises=rises,
        least=BETTER * whole,
        margin=STEP * whole,
        level=level,
        n=_behind(study),
        unit=_unit(study, side),
    )


def _some_weight(kept: float) -> Rule:
    """Some weight keeps `kept` of the gain and avoids 1 - MARGIN of the loss, with intervals widened for the number of
    weights."""

    def check(study: StudyRecord, level: float) -> list[Part]:
        trials, bounds = complete_trials(study, ANNEALING), {"target": kept, "source": 1 - MARGIN}
        each = 1 - (1 - level) / len(trials) if level > 0 else 0.0
        judged: list[Part] = []
        for trial in trials:
            figures = [
                dataclasses.replace(_trial_share(study, trial, side, each), needs=f"at least {least:g}")
                for side, least in bounds.items()
            ]
            verdicts = [against(f.interval, b, inclusive=True) for f, b in zip(figures, bounds.values(), strict=True)]
            judged.append(Part(verdict=joint(verdicts), reason=trial.label, figures=figures))
        named = (
            f"at least {_percent(kept)} of the gain and loses at most {_percent(MARGIN)} of what direct fine-tuning "
            f"loses"
        )
        good = [part for part in judged if part.verdict == HOLDS]
        if good:
            reason = f"{'; '.join(part.reason for part in good)} keeps {named}"
            return [Part(verdict=HOLDS, reason=reason, figures=[f for part in good for f in part.figures])]
        nearest = max(
            judged,
            key=lambda part: min(_or_low(f.value) - b for f, b in zip(part.figures, bounds.values(), strict=True)),
        )
        if all(part.verdict == FAILS for part in judged):
            reason = f"none of {len(trials)} weights keeps {named}; {nearest.reason} comes nearest"
            return [Part(verdict=FAILS, reason=reason, figures=nearest.figures)]
        reason = f"whether {nearest.reason}, the nearest of {len(trials)}, keeps {named} cannot be told"
        return [unknown(reason, nearest.figures)]

    check.__doc__ = f"Some weight keeps at least {kept:g} of the gain and avoids at least {1 - MARGIN:g} of the loss."
    return check


def _replay_alike(study: StudyRecord, level: float) -> list[Part]:
    """The source of replay + label annealing differs from that of replay by at most MARGIN of direct's loss, both by
    the trial that the paper's rule takes, for replay has no grid here."""
    chosen = [paper_choice(study, method) for method in (REPLAY, BOTH)]
    if chosen[0] is None or chosen[1] is None:
        lacking = NAMES[REPLAY if chosen[0] is None else BOTH]
        return [unknown(f"no trial of {lacking} improves the target on the start")]
    replay, both = chosen[0], chosen[1]
    share = difference_share(gain(both, study, "source"), gain(replay, study, "source"), study, level)
    least = f"{_percent(MARGIN)} of what direct fine-tuning loses"
    part = within(
        _share_figure("source of replay + label annealing - replay alone", share, study),
        MARGIN,
        yes=f"the two differ by less than {least}",
        no=f"the two differ by more than {least}",
    )
    beside = [*_both_shares(study, replay, level), *_both_shares(study, both, level)]
    return [_with_figures(_or_reason(part, share), beside)]


# ------------------------------------------------------------------------------------------------------------- figures


def _beside_the_papers(
    part: Part, study: StudyRecord, method: Method, judge: Callable[[TrialRecord], str], level: float
) -> Part:
    """A part with the shares of the trial that the paper's rule takes, and a warning where that says otherwise."""
    trial = paper_choice(study, method)
    if trial is None:
        return dataclasses.replace(part, warning=f"no trial of {NAMES[method]} improves the target on the start")
    return _with_figures(_warned(part, judge(trial), trial.label), _both_shares(study, trial, level))


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


def _with_figures(part: Part, figures: Sequence[Figure]) -> Part:
    return dataclasses.replace(part, figures=[*part.figures, *figures])


def _figure(what: str, found: OverSeeds, study: StudyRecord, level: float, unit: str) -> Figure:
    return Figure(what=what, value=found.value, interval=found.interval_at(level), n=_behind(study), unit=unit)


def _share_figure(what: str, share: Share, study: StudyRecord, side: str = "source") -> Figure:
    value = math.nan if share.value is None else share.value
    return Figure(what=what, value=value, interval=share.interval, n=_behind(study, side), unit=_SHARES[side][1])


def _trial_share(study: StudyRecord, trial: TrialRecord, side: str, level: float) -> Figure:
    share = share_of_direct(trial, study, side, level)
    return _share_figure(f"{trial.label}: {_SHARES[side][0]}", share, study, side)


def _both_shares(study: StudyRecord, trial: TrialRecord, level: float) -> list[Figure]:
    return [_trial_share(study, trial, side, level) for side in _SHARES]


def _unit(study: StudyRecord, side: str) -> str:
    return (study.target if side == "target" else study.source).unit


def _least(study: StudyRecord, side: str) -> float:
    return LEAST[is_share(_unit(study, side), unknown=True)]


def _behind(study: StudyRecord, side: str | Objective = "source") -> str:
    seeds, samples = len(study.seeds), gain(study.direct, study, side).samples
    return f"{seeds} seed{'s' if seeds != 1 else ''}, {samples:,} samples"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _or_low(value: float) -> float:
    return -math.inf if math.isnan(value) else value


# ---------------------------------------------------------------------------------------------------------- statements

Preconditions = tuple[Callable[[StudyRecord], Sequence[Precondition]], ...]
_SOUND: Preconditions = (moderate, converged, above_chance)


def _statement(
    number: str,
    recipe: str,
    text: str,
    check: Rule,
    *methods: Method,
    paper: str,
    grids: Iterable[tuple[Method, float]] = (),
    sound: Preconditions = _SOUND,
    may_change: bool = True,
) -> Statement[StudyRecord]:
    """A statement about these methods, of which some have a grid that has to bite at a share of direct's gain."""
    return Statement(
        number=number,
        recipe=recipe,
        text=text,
        paper=paper,
        check=check,
        lacking=lambda study: _lacking(study, methods),
        preconditions=(*sound, *(bites(method, share) for method, share in grids)),
        may_change=may_change,
    )


STATEMENTS: tuple[Statement[StudyRecord], ...] = (
    _statement(
        "1a",
        "math",
        "Direct fine-tuning on mathematics improves the target and lowers source scores.",
        _learns_and_forgets,
        paper="TriviaQA -14.19 points (section 3.2, table 1)",
        may_change=False,
    ),
    _statement(
        "1b",
        "code",
        "Direct fine-tuning on code improves the target and lowers source scores.",
        _learns_and_forgets,
        paper="HumanEval +25.76 points, MATH -14.73 points (section 3.2, table 2)",
        may_change=False,
    ),
    _statement(
        "2a",
        "math",
        "Label annealing keeps the source at the start's level at no loss on the target.",
        _keeps(ANNEALING, kept=NO_LOSS, avoided=1 - MARGIN),
        ANNEALING,
        paper='"fixes the forgetting in pretraining metrics (MMLU and TriviaQA) and in some cases" improves the '
        "target (section 3.2, table 1)",
        grids=[(ANNEALING, NO_LOSS)],
    ),
    _statement(
        "2b",
        "code",
        "Label annealing keeps the source at the start's level and most of the target's gain.",
        _keeps(ANNEALING, kept=MOST, avoided=1 - MARGIN),
        ANNEALING,
        paper='"able to resolve the forgetting problem, and also preserve most of the improvement in HumanEval" '
        "(section 3.2, table 2)",
        grids=[(ANNEALING, MOST)],
    ),
    _statement(
        "3a",
        "math",
        "L2 to the start helps little.",
        _helps_little,
        L2,
        paper='"L2 regularization provides little help" (section 3.2, table 1)',
        grids=[(L2, NO_LOSS)],
    ),
    _statement(
        "3b",
        "code",
        "Label annealing keeps more of the source than L2 to the start.",
        _better_than_l2,
        ANNEALING,
        L2,
        paper='L2 is "still losing performance in both MATH and GSM8K", label annealing is not (section 3.2, table 2)',
        grids=[(ANNEALING, NO_LOSS), (L2, NO_LOSS)],
    ),
    _statement(
        "4a",
        "alignment_tax",
        "The weight of label annealing draws a smooth trade-off between instruction following and what the base knew.",
        _curve,
        paper="a curve (section 3.3, figure 2)",
        grids=[(ANNEALING, 1 - MARGIN)],
    ),
    _statement(
        "4b",
        "alignment_tax",
        "With some weight about half of the improvement comes without losing what the base knew.",
        _some_weight(HALF),
        ANNEALING,
        paper='"about half of improvement in instruction following ability without" losing MMLU (section 3.3, figures '
        "2a, 2c)",
        grids=[(ANNEALING, HALF)],
    ),
    _statement(
        "4c",
        "niche_knowledge",
        "The weight of label annealing draws a smooth trade-off between the niche's knowledge and instruction "
        "following.",
        _curve,
        paper="a curve (section 3.3, figure 3)",
        grids=[(ANNEALING, 1 - MARGIN)],
    ),
    _statement(
        "4d",
        "niche_knowledge",
        "With some weight more than 80 % of the gain comes at a small loss of instruction following.",
        _some_weight(NICHE_KEPT),
        ANNEALING,
        paper='more than 80 % of the improvement on QuALITY "with a small reduction in IFEval" (section 3.3, figure '
        "3b)",
        grids=[(ANNEALING, NICHE_KEPT)],
    ),
    _statement(
        "5",
        "math",
        "Replay of 10 % alone and replay with label annealing keep the source alike.",
        _replay_alike,
        REPLAY,
        BOTH,
        paper='"performing on par" on MMLU and TriviaQA (section 5, table 3)',
    ),
)
