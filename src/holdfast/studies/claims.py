"""What paper 000 claims, held against studies: holds, does not hold, or not enough data.

Each claim is a function of one study record that returns a `Claim`: the paper's figure, ours with their intervals, a
verdict and why. The rules stand here and were written before any outcome was looked at:

- A figure is a trial's gain against the start (`holdfast.statistics.gains.mean_gain`: mean over entries and seeds,
  more is better), or a share of what direct fine-tuning did: *kept* = gain / direct's gain on the target, *avoided* = 1
  - loss / direct's loss on the source.
- Intervals are at 95 % and cover seeds and evaluated samples; shares have Fieller's (see
  `holdfast.statistics.selection`). One seed leaves the samples alone, and the reason says so.
- "Lowers", "improves": the whole interval on that side of zero. On the other side the claim does not hold; across zero
  there is not enough data.
- "Keeps the start's level", "no loss", "alike": an equivalence with a margin of `MARGIN` (20 %) of what direct
  fine-tuning lost or gained. The whole interval has to lie within the margin (two one-sided tests; Schuirmann 1987, at
  2.5 % each where 5 % is usual). An interval that lies wholly beyond means that the claim does not hold. One that
  contains the margin's end is not enough data: finding no difference is no equivalence.
- A claim about "label annealing" or "L2" is judged on the trial that the paper's rule takes among that method's own
  trials (drop those whose target does not improve on the start, then the best source), for that is what the paper's
  tables print. Where another trial would meet the claim, the reason names it.
- A claim that some weight does a thing ("with some choice ...") is judged on all of them, with the intervals widened to
  1 - 0.05 / weights (Bonferroni).
- While trials of a study are still to come, claims that they may change are not enough data.
- A claim with several parts holds if all do, and does not hold if one does not.

One rule was made stricter after an outcome was seen: a curve is looked at between any two weights, where at first only
neighbours were. The small twin of the niche recipe had shown a target that rises over four weights, by less than noise
from each to the next.

The tables of the paper did not survive in the text that this project works from, so its figures are those that its
sentences state.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.records.study import StudyRecord, TrialRecord
from holdfast.statistics.gains import Gain, OverSeeds, incomplete, mean_gain
from holdfast.statistics.intervals import CONFIDENCE
from holdfast.statistics.shares import Share, avoided_share, kept_share, share_over_seeds
from holdfast.studies.engine import claims as engine
from holdfast.studies.engine.claims import (
    FAILS,
    HOLDS,
    MARGIN,
    NO_INTERVAL,
    UNKNOWN,
    Claim,
    Figure,
    Part,
    Statement,
    above,
    against,
    below,
    joint,
    unknown,
)
from holdfast.studies.tradeoff.paper import PAPER

RECIPES = tuple(PAPER.recipes)
MOST = 0.5
"""What "most of" and "little" are held against: more than half is most, less than half is little."""
NICHE_KEPT = 0.8
"""The paper's "more than 80 % of the improvement"."""
HALF = 0.4
""" "About half": at least this share."""

_ANNEALING, _L2, _REPLAY = frozenset({"label_annealing"}), frozenset({"l2"}), frozenset({"replay"})
_BOTH = _REPLAY | _ANNEALING
_NAMES = {_ANNEALING: "label annealing", _L2: "L2", _REPLAY: "replay", _BOTH: "replay with label annealing"}
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
    found = []
    for statement in _STATEMENTS:
        if statement.recipe in studies:
            study = studies[statement.recipe]
            waiting = 0 if study is None else sum(t.state in ("waiting", "running") for t in study.trials)
            seeds = 0 if study is None else len(study.seeds)
            found += engine.check_claims([statement], study, waiting=waiting, seeds=seeds)
    return found


def _lacking(study: StudyRecord, *methods: frozenset[str]) -> str | None:
    """Why a rule about trials of these methods cannot be applied: what everything is held against has to be finished,
    and each method needs a trial to judge."""
    if study.direct is None:
        return "direct fine-tuning, which everything is held against, is not finished"
    lacking = incomplete(study.direct, study)
    if lacking is not None:
        return f"direct fine-tuning: {lacking}"
    return "; ".join(_none_of(study, m) for m in methods if paper_choice(study, m) is None) or None


# -------------------------------------------------------------------------------------------------------------- claims


def _direct_learns_and_forgets(study: StudyRecord) -> list[Part]:
    """Direct fine-tuning's target gain lies above zero with its whole interval, its source gain below."""
    target, source = (_gain_figure(f"direct fine-tuning, {side}", study, side) for side in ("target", "source"))
    return [
        above(target, 0.0, yes="it learns the target", no="it does not learn the target"),
        below(source, 0.0, yes="direct fine-tuning forgets", no="direct fine-tuning does not forget"),
    ]


def _annealing_keeps_all(study: StudyRecord) -> list[Part]:
    """Of label annealing's trial: avoided and kept both at least 1 - MARGIN."""
    return _keeps(study, _ANNEALING, kept_least=1 - MARGIN)


def _annealing_keeps_most(study: StudyRecord) -> list[Part]:
    """Of label annealing's trial: avoided at least 1 - MARGIN, kept at least MOST."""
    return _keeps(study, _ANNEALING, kept_least=MOST)


def _l2_helps_little(study: StudyRecord) -> list[Part]:
    """Of L2's trial: less than MOST of direct's loss avoided."""
    trial = _choice(study, _L2)
    figure = _share_figure(study, trial, "source")
    judged = below(
        figure,
        MOST,
        yes=f"{trial.label} avoids less than half of the loss",
        no=f"{trial.label} avoids more than half of the loss",
        between=f"whether {trial.label} avoids half of the loss cannot be told",
        inclusive=True,
    )
    annealing = paper_choice(study, _ANNEALING)
    beside = [_share_figure(study, trial, "target"), *(_both_shares(study, annealing) if annealing else [])]
    return [_beside(_or_reason(judged, share_of_direct(trial, study, "source")), beside)]


def _annealing_better_than_l2(study: StudyRecord) -> list[Part]:
    """Label annealing's trial has a better source than L2's, beyond noise."""
    annealing, l2 = _choice(study, _ANNEALING), _choice(study, _L2)
    figure = _difference_figure(f"source of {annealing.label} - {l2.label}", annealing, l2, study, "source")
    part = above(
        figure,
        0.0,
        yes=f"{annealing.label} keeps more of the source than {l2.label}",
        no=f"{l2.label} keeps more of the source than {annealing.label}",
        between=f"{annealing.label} and {l2.label} cannot be told apart on the source",
    )
    beside = [*_both_shares(study, annealing), *_both_shares(study, l2)]
    return [part if figure.interval is None else _beside(part, beside)]


def _smooth(study: StudyRecord) -> list[Part]:
    """Along label annealing's weights, at one temperature, at least three: from the weakest to the strongest the source
    rises and the target falls, both beyond noise, and no two weights between which either goes the other way.

    Two weights go the other way where their difference's interval says so: at 95 % the claim cannot be told any more,
    at 1 - 0.05 / pairs it does not hold.
    """
    line = weights_line(study)
    if len(line) < 3:
        return [
            unknown(f"a curve needs at least three finished weights of label annealing alone, there are {len(line)}")
        ]
    return [_monotone(study, line, side, sign) for side, sign in (("source", 1), ("target", -1))]


def _monotone(study: StudyRecord, line: Sequence[tuple[float, TrialRecord]], side: str, sign: int) -> Part:
    """Whether a side rises (sign 1) or falls (-1) along the weights."""
    (weakest, first), (strongest, last) = line[0], line[-1]
    figure = _difference_figure(f"{side}: weight {strongest:g} - weight {weakest:g}", last, first, study, side)
    if figure.interval is None:
        return unknown(f"the {side} has no interval", [figure])
    pairs = list(itertools.combinations(line, 2))
    doubtful, certain = (
        ", from ".join(_backwards(pairs, study, side, sign, level))
        for level in (CONFIDENCE, 1 - (1 - CONFIDENCE) / len(pairs))
    )
    if certain:
        return Part(verdict=FAILS, reason=f"the {side} goes the wrong way from weight {certain}", figures=[figure])
    if doubtful:
        text = (
            f"the {side} seems to go the wrong way from weight {doubtful}: beyond noise, but not for {len(pairs)} looks"
        )
        return unknown(text, [figure])
    return (above if sign > 0 else below)(
        figure,
        0.0,
        yes=f"the {side} {'rises' if sign > 0 else 'falls'} with the weight",
        no=f"the {side} goes the other way",
        between=f"the {side} does not move beyond noise",
    )


def _backwards(
    pairs: Sequence[tuple[tuple[float, TrialRecord], tuple[float, TrialRecord]]],
    study: StudyRecord,
    side: str,
    sign: int,
    confidence: float,
) -> list[str]:
    """The pairs of weights, weaker first, between which a side goes against `sign` with its whole interval."""
    found = []
    for (weaker, a), (stronger, b) in pairs:
        step = _difference(b, a, study, side).interval_at(confidence)
        if step is not None and (step[1] < 0 if sign > 0 else step[0] > 0):
            found.append(f"{weaker:g} to {stronger:g}")
    return found


def _some_weight(kept_least: float) -> Callable[[StudyRecord], list[Part]]:
    """Some weight keeps `kept_least` of the gain and avoids 1 - MARGIN of the loss, with intervals widened for the
    number of weights."""

    def check(study: StudyRecord) -> list[Part]:
        trials = complete_trials(study, _ANNEALING)
        if not trials:
            return [unknown(_none_of(study, _ANNEALING))]
        level = 1 - (1 - CONFIDENCE) / len(trials)
        judged: list[Part] = []
        for trial in trials:
            figures = [_share_figure(study, trial, side, level) for side in ("target", "source")]
            verdicts = (
                against(figure.interval, least, inclusive=True)
                for figure, least in zip(figures, (kept_least, 1 - MARGIN), strict=True)
            )
            judged.append(Part(verdict=joint(verdicts), reason=trial.label, figures=figures))
        named = (
            f"at least {_percent(kept_least)} of the gain and loses at most {_percent(MARGIN)} of what direct "
            f"fine-tuning loses"
        )
        good = [part for part in judged if part.verdict == HOLDS]
        if good:
            reason = f"{'; '.join(part.reason for part in good)} keeps {named}"
            return [Part(verdict=HOLDS, reason=reason, figures=[f for part in good for f in part.figures])]
        nearest = max(
            judged,
            key=lambda part: min(
                _or_low(part.figures[0].value) - kept_least, _or_low(part.figures[1].value) - (1 - MARGIN)
            ),
        )
        if all(part.verdict == FAILS for part in judged):
            reason = f"none of {len(trials)} weights keeps {named}; {nearest.reason} comes nearest"
            return [Part(verdict=FAILS, reason=reason, figures=nearest.figures)]
        reason = f"whether {nearest.reason}, the nearest of {len(trials)}, keeps {named} cannot be told"
        return [unknown(reason, nearest.figures)]

    return check


def _replay_alike(study: StudyRecord) -> list[Part]:
    """The source of replay + label annealing differs from that of replay by at most MARGIN of direct's loss."""
    replay, both = _choice(study, _REPLAY), _choice(study, _BOTH)
    # direct's gain is negative, so the ratio's sign is turned: positive is better with label annealing
    share = share_over_seeds(_difference(both, replay, study, "source"), _gain(study.direct, study, "source"))
    share = share.taken_from(0.0)
    figure = _figure_of(share, "source of replay + label annealing - replay alone", study, "source")
    beside = [*_both_shares(study, replay), *_both_shares(study, both)]
    if share.value is None or share.interval is None:
        return [unknown(share.reason or NO_INTERVAL, [figure, *beside])]
    low, high = share.interval
    least = f"{_percent(MARGIN)} of what direct fine-tuning loses"
    if low >= -MARGIN and high <= MARGIN:
        verdict, reason = HOLDS, f"the two differ by less than {least}"
    elif low > MARGIN or high < -MARGIN:
        better = "with" if low > MARGIN else "without"
        verdict, reason = FAILS, f"replay {better} label annealing keeps more of the source, by more than {least}"
    else:
        verdict, reason = UNKNOWN, f"whether the two differ by less than {least} cannot be told"
    return [Part(verdict=verdict, reason=reason, figures=[figure, *beside])]


def _statement(*methods: frozenset[str], **about: Any) -> Statement[StudyRecord]:
    """A statement about the trials that the paper's rule takes of these methods."""
    return Statement(precondition=lambda study: _lacking(study, *methods), **about)


_STATEMENTS: tuple[Statement[StudyRecord], ...] = (
    _statement(
        number="1a",
        recipe="math",
        text="Direct fine-tuning on mathematics improves the target and lowers source scores.",
        paper="TriviaQA -14.19 points (section 3.2, table 1)",
        check=_direct_learns_and_forgets,
        may_change=False,
    ),
    _statement(
        number="1b",
        recipe="code",
        text="Direct fine-tuning on code improves the target and lowers source scores.",
        paper="HumanEval +25.76 points, MATH -14.73 points (section 3.2, table 2)",
        check=_direct_learns_and_forgets,
        may_change=False,
    ),
    _statement(
        _ANNEALING,
        number="2a",
        recipe="math",
        text="Label annealing keeps the source at the start's level at no loss on the target.",
        paper='"fixes the forgetting in pretraining metrics (MMLU and TriviaQA) and in some cases" improves the '
        "target (section 3.2, table 1)",
        check=_annealing_keeps_all,
    ),
    _statement(
        _ANNEALING,
        number="2b",
        recipe="code",
        text="Label annealing keeps the source at the start's level and most of the target's gain.",
        paper='"able to resolve the forgetting problem, and also preserve most of the improvement in HumanEval" '
        "(section 3.2, table 2)",
        check=_annealing_keeps_most,
    ),
    _statement(
        _L2,
        number="3a",
        recipe="math",
        text="L2 to the start helps little.",
        paper='"L2 regularization provides little help" (section 3.2, table 1)',
        check=_l2_helps_little,
    ),
    _statement(
        _ANNEALING,
        _L2,
        number="3b",
        recipe="code",
        text="Label annealing keeps more of the source than L2 to the start.",
        paper='L2 is "still losing performance in both MATH and GSM8K", label annealing is not (section 3.2, table 2)',
        check=_annealing_better_than_l2,
    ),
    _statement(
        number="4a",
        recipe="alignment_tax",
        text="The weight of label annealing draws a smooth trade-off between instruction following and what the base "
        "knew.",
        paper="a curve (section 3.3, figure 2)",
        check=_smooth,
    ),
    _statement(
        number="4b",
        recipe="alignment_tax",
        text="With some weight about half of the improvement comes without losing what the base knew.",
        paper='"about half of improvement in instruction following ability without" losing MMLU (section 3.3, figures '
        "2a, 2c)",
        check=_some_weight(HALF),
    ),
    _statement(
        number="4c",
        recipe="niche_knowledge",
        text="The weight of label annealing draws a smooth trade-off between the niche's knowledge and instruction "
        "following.",
        paper="a curve (section 3.3, figure 3)",
        check=_smooth,
    ),
    _statement(
        number="4d",
        recipe="niche_knowledge",
        text="With some weight more than 80 % of the gain comes at a small loss of instruction following.",
        paper='more than 80 % of the improvement on QuALITY "with a small reduction in IFEval" (section 3.3, figure '
        "3b)",
        check=_some_weight(NICHE_KEPT),
    ),
    _statement(
        _REPLAY,
        _BOTH,
        number="5",
        recipe="math",
        text="Replay of 10 % alone and replay with label annealing keep the source alike.",
        paper='"performing on par" on MMLU and TriviaQA (section 5, table 3)',
        check=_replay_alike,
    ),
)


# -------------------------------------------------------------------------------------------------------------- trials


def complete_trials(study: StudyRecord, methods: frozenset[str]) -> list[TrialRecord]:
    """The trials of exactly these methods that have all seeds and measures, by number."""
    return [
        t
        for t in sorted(study.trials, key=lambda t: t.number)
        if frozenset(t.kind.split("+")) == methods and incomplete(t, study) is None
    ]


def paper_choice(study: StudyRecord, methods: frozenset[str]) -> TrialRecord | None:
    """The trial that the paper's rule takes among those of exactly these methods: of those whose target improves on the
    start the best source, ties by the better target. None where there is none."""
    able = [t for t in complete_trials(study, methods) if _gain(t, study, "target").value > 0]
    if not able:
        return None
    return max(able, key=lambda t: (_gain(t, study, "source").value, _gain(t, study, "target").value, -t.number))


def weights_line(study: StudyRecord) -> list[tuple[float, TrialRecord]]:
    """Label annealing's complete trials that differ only in the weight (the other settings those that most trials
    share), weakest first."""
    groups: dict[str, list[tuple[float, TrialRecord]]] = {}
    for trial in complete_trials(study, _ANNEALING):
        settings = annealing_settings(trial)
        weight = settings.get("weight", 1.0)
        if isinstance(weight, (int, float)) and not isinstance(weight, bool) and weight > 0:
            rest = repr(sorted((k, v) for k, v in settings.items() if k != "weight" and (k, v) not in _DEFAULTS))
            groups.setdefault(rest, []).append((float(weight), trial))
    if not groups:
        return []
    largest = max(groups.items(), key=lambda item: (len(item[1]), item[0] == "[]"))[1]
    return sorted(largest, key=lambda item: item[0])


_DEFAULTS = (("temperature", 1), ("temperature", 1.0))


def annealing_settings(trial: TrialRecord) -> dict[str, object]:
    """What a trial says of label annealing; empty where it has none."""
    retention = trial.settings.get("retention") or []
    for method in retention if isinstance(retention, list) else [retention]:
        if isinstance(method, Mapping) and "label_annealing" in method:
            found = method["label_annealing"] or {}
            return {str(k): v for k, v in found.items() if k != "teacher"} if isinstance(found, Mapping) else {}
        if isinstance(method, Mapping) and method.get("method") == "label_annealing":
            return {str(k): v for k, v in method.items() if k not in ("method", "teacher")}
    return {}


def share_of_direct(trial: TrialRecord, study: StudyRecord, side: str, confidence: float = CONFIDENCE) -> Share:
    """What a trial kept of direct fine-tuning's gain ("target"), or avoided of its loss ("source"), with Fieller's
    interval.

    At `CONFIDENCE` this is what `holdfast.statistics.shares.shares` gives; other levels are for several looks at once.
    """
    ours, direct = _gain(trial, study, side), _gain(study.direct, study, side)
    return (kept_share if side == "target" else avoided_share)(ours, direct, confidence=confidence)


def _gain(trial: TrialRecord | None, study: StudyRecord, side: str) -> Gain:
    """Of a complete trial."""
    assert trial is not None
    found = mean_gain(trial, study.target if side == "target" else study.source, seeds=study.seeds)
    assert found is not None, "only complete trials are asked for their gain"
    return found


def _difference(a: TrialRecord, b: TrialRecord, study: StudyRecord, side: str) -> OverSeeds:
    """a - b on a side, seeds paired."""
    return _gain(a, study, side).minus(_gain(b, study, side))


def _choice(study: StudyRecord, methods: frozenset[str]) -> TrialRecord:
    found = paper_choice(study, methods)
    assert found is not None, "the statement's precondition was checked"
    return found


def _none_of(study: StudyRecord, methods: frozenset[str]) -> str:
    name = _NAMES[methods]
    if not any(frozenset(t.kind.split("+")) == methods for t in study.trials):
        return f"the study has no trial of {name}"
    if not complete_trials(study, methods):
        return f"no trial of {name} is complete"
    return f"no trial of {name} improves the target on the start"


# ------------------------------------------------------------------------------------------------------------ verdicts


def _keeps(study: StudyRecord, methods: frozenset[str], *, kept_least: float) -> list[Part]:
    """Whether the methods' trial keeps enough on both sides; others that would are named."""
    trial, parts = _choice(study, methods), []
    for side, least, verb, of in (
        ("source", 1 - MARGIN, "avoids", "loss on the source"),
        ("target", kept_least, "keeps", "gain on the target"),
    ):
        much = f"{_percent(least)} of direct fine-tuning's {of}"
        judged = above(
            _share_figure(study, trial, side),
            least,
            yes=f"{trial.label} {verb} at least {much}",
            no=f"{trial.label} {verb} less than {much}",
            between=f"whether {trial.label} {verb} {much} cannot be told",
            inclusive=True,
        )
        parts.append(_or_reason(judged, share_of_direct(trial, study, side)))
    if any(part.verdict != HOLDS for part in parts):
        others = {t.label: _both_shares(study, t) for t in complete_trials(study, methods) if t is not trial}
        good = {
            label: figures
            for label, figures in others.items()
            if joint(
                against(figure.interval, least, inclusive=True)
                for figure, least in zip(figures, (1 - MARGIN, kept_least), strict=True)
            )
            == HOLDS
        }
        if good:
            text = f"the paper's rule took the best source; {', '.join(good)} would have met both"
            parts.append(Part(verdict=HOLDS, reason=text, figures=[f for figures in good.values() for f in figures]))
    return parts


def _or_reason(judged: Part, share: Share) -> Part:
    """A part that rests on a share, which may not exist."""
    return judged if share.interval is not None else unknown(share.reason or NO_INTERVAL, judged.figures)


def _beside(part: Part, figures: Sequence[Figure]) -> Part:
    return dataclasses.replace(part, figures=[*part.figures, *figures])


# ------------------------------------------------------------------------------------------------------------- figures


def _gain_figure(what: str, study: StudyRecord, side: str) -> Figure:
    gain = _gain(study.direct, study, side)
    return Figure(what=what, value=gain.value, interval=gain.interval, n=_behind(study, side), unit=gain.unit)


def _difference_figure(what: str, a: TrialRecord, b: TrialRecord, study: StudyRecord, side: str) -> Figure:
    found = _difference(a, b, study, side)
    unit = (study.source if side == "source" else study.target).unit
    return Figure(
        what=what, value=found.value, interval=found.interval_at(CONFIDENCE), n=_behind(study, side), unit=unit
    )


def _share_figure(study: StudyRecord, trial: TrialRecord, side: str, confidence: float = CONFIDENCE) -> Figure:
    share = share_of_direct(trial, study, side, confidence)
    return _figure_of(share, f"{trial.label}: {_SHARES[side][0]}", study, side)


def _figure_of(share: Share, what: str, study: StudyRecord, side: str) -> Figure:
    value = math.nan if share.value is None else share.value
    return Figure(what=what, value=value, interval=share.interval, n=_behind(study, side), unit=_SHARES[side][1])


def _both_shares(study: StudyRecord, trial: TrialRecord) -> list[Figure]:
    return [_share_figure(study, trial, side) for side in _SHARES]


def _behind(study: StudyRecord, side: str) -> str:
    seeds, samples = len(study.seeds), _gain(study.direct, study, side).samples
    return f"{seeds} seed{'s' if seeds != 1 else ''}, {samples:,} samples"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _or_low(value: float) -> float:
    return -math.inf if math.isnan(value) else value
