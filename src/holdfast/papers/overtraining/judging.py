"""The rules that the claims are judged by: does a curve turn, does one turn before another, what
does a method of retention change, does the loss follow its quadratic. What they read of a study is
in `readings`; which claim takes which rule, and why, in `claims`."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Sequence

from holdfast.papers.claims.rules import (
    FAILS,
    HOLDS,
    ClaimFigure,
    Part,
    Rule,
    above,
    below,
    one_of,
    unknown,
    widened,
    within,
)
from holdfast.papers.overtraining.readings import (
    SHARE,
    Curve,
    arm_of,
    as_they_are,
    cost_of,
    gain_of,
    growing_settings,
    growth_of,
    kept_entry,
    kept_unit,
    leading_key,
    models_at,
    places_of,
    rate_text,
    rates_read,
    score_of,
    shift_of,
    shown,
    tuned_benchmarks,
    tuned_models,
    tuned_rates,
    turn_of,
    turning_settings,
    where_of,
)
from holdfast.papers.overtraining.record import OvertrainingRecord, TunedModel, alike
from holdfast.records.figure import CONFIDENCE, Figure, NotMeasured
from holdfast.records.probe import Line, TurningPoint
from holdfast.statistics.equal_target import Point, source_at
from holdfast.statistics.inflection import FALLS, TURNS, verdict_of

EXPONENT, ALIKE = 0.2, math.log(1.2)
"""Claim 6: of the exponent of the distance in the rate, and of the distances' ratio."""
NEAR, FAR = 0.1, 0.1
"""Claims 7a and 7b: deviation from the quadratic as a share of what it predicts."""
SCORE = 0.02
"""Share of the questions about pictures: what a VLM score rises by at least, and what equal scores
may differ by."""
TARGET = 0.9
"""Of what direct fine-tuning gains of a task at its tuned rate: where methods are compared."""
OvertrainingRule = Rule[OvertrainingRecord]
Curves = Callable[[OvertrainingRecord], Sequence[Curve]]

# ----------------------------------------------------------------------------------- turning points


def tokens_text(budgets: Sequence[float]) -> str:
    """Budgets for people."""
    from holdfast.support.token_counts import shown_tokens

    texts = []
    for value in budgets:
        texts.append(shown_tokens(round(float(f"{value:.2g}"))))  # whole steps, near round numbers
    return " to ".join(dict.fromkeys(texts))


def turned(what: str, turn: TurningPoint, level: float) -> Part:
    """Whether a curve turns, as a part of a claim."""
    low, high = places_of(turn, level)
    verdict = verdict_of((low, high), len(turn.budgets))
    may_be = tokens_text((turn.budgets[low], turn.budgets[high]))
    at = f"it is best at {tokens_text((turn.tokens, turn.tokens))} tokens (possibly {may_be})"
    lost = f"{what}: loss from the best budget to the largest budget"
    figures = [
        ClaimFigure(what=lost, value=turn.after, interval=None, n="the ladder", unit=turn.unit)
    ]
    if verdict == TURNS:
        return Part(verdict=HOLDS, reason=f"{what} has an inflection point: {at}", figures=figures)
    if verdict == FALLS:
        return Part(
            verdict=FAILS, reason=f"{what} gets better up to the largest budget", figures=figures
        )
    return unknown(f"it is undecided whether {what} has an inflection point: {at}", figures)


def improves(what: str, turn: TurningPoint, level: float) -> Part:
    """The opposite of turning."""
    turning = turned(what, turn, level)
    opposite = {HOLDS: FAILS, FAILS: HOLDS}.get(turning.verdict, turning.verdict)
    return dataclasses.replace(turning, verdict=opposite)


def earlier(
    one: TurningPoint, other: TurningPoint, name: str, than: str, level: float
) -> list[Part]:
    """Whether all budgets that may be best lie before all of another's; each has half of the
    error."""
    each = widened(level, 2)
    best, other_best = (
        [turn.budgets[index] for index in places_of(turn, each)] for turn in (one, other)
    )
    reason = (
        f"with {name}, the model is best at {tokens_text(best)} tokens, and with {than} it is "
        f"best at {tokens_text(other_best)} tokens"
    )
    if best[1] < other_best[0]:
        return [Part(verdict=HOLDS, reason=reason)]
    return [Part(verdict=FAILS, reason=reason) if best[0] > other_best[1] else unknown(reason)]


def turns(says: str, what: str, curves: Curves) -> OvertrainingRule:
    """Every curve turns; `{}` in `what` stands for what the model went through."""

    def judge(record: OvertrainingRecord, level: float) -> list[Part]:
        return [turned(what.format(name), turn, level) for name, turn in curves(record)]

    return Rule(says, judge)


def turns_somewhere(says: str, what: str, curves: Curves) -> OvertrainingRule:
    """One of the curves turns, with the level divided among them."""

    def judge(record: OvertrainingRecord, level: float) -> list[Part]:
        looks = curves(record)
        each = widened(level, len(looks))
        parts = [turned(what.format(name), turn, each) for name, turn in looks]
        return [one_of(parts)] if parts else []

    return Rule(says, judge)


def first_improves(record: OvertrainingRecord, level: float) -> list[Part]:
    """The checkpoints as they are, on the text that leads."""
    return [improves("the unmodified checkpoint", as_they_are(record)[0], level)]


def others_improve(record: OvertrainingRecord, level: float) -> list[Part]:
    """The checkpoints as they are, on all else that should be kept."""
    parts = []
    for turn in as_they_are(record)[1:]:
        name = turn.entry.rpartition("/")[2]
        parts.append(improves(f"the score of the unmodified checkpoint on {name}", turn, level))
    if not parts:
        raise NotMeasured("a second entry of keep")
    return parts


def nothing_turns(record: OvertrainingRecord, level: float) -> list[Part]:
    """At tuned rates neither the task nor anything that should be kept turns."""
    parts = []
    for task in record.tasks:
        turn = turn_of(record, task, None, leading_key(record, task, "learn"))
        parts.append(improves(f"{task} at each budget's tuned learning rate", turn, level))
        for name, turn_of_entry in tuned_benchmarks(record, task):
            parts.append(improves(name, turn_of_entry, level))
    return parts


def a_benchmark_turns(record: OvertrainingRecord, level: float) -> list[Part]:
    """On every data set, something that should be kept turns, with the level divided among the
    entries."""
    parts = []
    for task in record.tasks:
        curves = tuned_benchmarks(record, task)
        each = widened(level, len(curves))
        parts.append(one_of([turned(name, turn, each) for name, turn in curves]))
    return parts


def turns_earlier(says: str, one: Curves, other: Curves, second: str) -> OvertrainingRule:
    """Curve by curve, the one turns earlier than the other; `second` says what is missing where
    both are the same."""

    def judge(record: OvertrainingRecord, level: float) -> list[Part]:
        parts = []
        for (name, sooner), (than, later) in zip(one(record), other(record), strict=True):
            if name == than:
                raise NotMeasured(second)
            parts += earlier(sooner, later, name, than, level)
        return parts

    return Rule(says, judge)


def smallest_rate_turns_later(record: OvertrainingRecord, level: float) -> list[Part]:
    """Of every task that turns at tuned rates: later at the smallest rate."""
    parts = []
    for task, _ in turning_settings(record, at_fixed_rates=False):
        rate = rates_read(record, task)[0]
        at_smallest = turn_of(record, task, rate, kept_entry(record))
        at_tuned = turn_of(record, task, None, kept_entry(record))
        parts += earlier(at_tuned, at_smallest, rate_text(None), rate_text(rate), level)
    if not parts:
        raise NotMeasured("an inflection point at the tuned learning rates")
    return parts


# ---------------------------------------------------------------------- how the tuned rate develops


def constant_rate_harms_both(record: OvertrainingRecord, level: float) -> list[Part]:
    """Of every task with one tuned rate at all budgets: the task and what should be kept turn."""
    parts = []
    for task in record.tasks:
        rates = tuned_rates(record, task)
        if len(rates) < len(record.checkpoints) or len({rate.rate for rate in rates}) > 1:
            continue
        for suite, what in (("keep", "the score on keep data"), ("learn", "the task score")):
            turn = turn_of(record, task, None, leading_key(record, task, suite))
            where = where_of(record, task)
            parts.append(turned(f"{where}: {what}" if where else what, turn, level))
    if not parts:
        raise NotMeasured("a task whose tuned learning rate is the same at every budget")
    return parts


def harmless_rate_falls(record: OvertrainingRecord, level: float) -> list[Part]:
    """Of every task of which neither figure turns: the tuned rate falls with the budget. Rates have
    their intervals at `CONFIDENCE` alone."""
    parts = []
    for task in record.tasks:
        harmless = []
        for suite in ("keep", "learn"):
            turn = turn_of(record, task, None, leading_key(record, task, suite))
            places = places_of(turn, CONFIDENCE)
            harmless.append(verdict_of(places, len(turn.budgets)) == FALLS)
        rates = tuned_rates(record, task)
        if not all(harmless) or len(rates) < len(record.checkpoints):
            continue
        first, last = rates[0], rates[-1]
        reason = f"the tuned learning rate of {task} goes from {first.rate:g} to {last.rate:g}"
        if level > CONFIDENCE:
            parts.append(unknown(f"{reason}; its interval at this confidence level is unknown"))
        elif last.interval[1] < first.interval[0]:
            parts.append(Part(verdict=HOLDS, reason=reason))
        elif last.interval[0] > first.interval[1]:
            parts.append(Part(verdict=FAILS, reason=reason))
        else:
            parts.append(
                unknown(
                    f"{reason}; it is undecided whether the learning rate falls with the budget"
                )
            )
    if not parts:
        raise NotMeasured(
            "a task on which both the task score and the score on keep data get better up to "
            "the largest budget"
        )
    return parts


# ----------------------------------------------------------------------------- what a method changes


def moves(kind: str, *, at_fixed_rates: bool) -> OvertrainingRule:
    """A method delays the turning point wherever direct fine-tuning turns."""

    def judge(record: OvertrainingRecord, level: float) -> list[Part]:
        parts = []
        for task, rate in turning_settings(record, at_fixed_rates=at_fixed_rates):
            arm, entry = arm_of(record, kind), kept_entry(record)
            direct = turn_of(record, task, rate, entry)
            by_method = turn_of(record, task, rate, entry, arm)
            at = f"at {rate_text(rate)}"
            parts += earlier(direct, by_method, f"direct fine-tuning {at}", arm, level)
        if not parts:
            raise NotMeasured("an inflection point of direct fine-tuning")
        return parts

    which = (
        "At every included learning rate at which direct fine-tuning has an inflection point"
        if at_fixed_rates
        else (
            "On every task on which direct fine-tuning has an inflection point at the tuned "
            "learning rates"
        )
    )
    return Rule(
        f"{which}, the inflection point of the score on keep data comes later with the method.",
        judge,
    )


def costs_grow_less(kind: str, *, at_fixed_rates: bool) -> OvertrainingRule:
    """With a method the cost grows less along the ladder wherever that of direct fine-tuning
    grows."""

    def judge(record: OvertrainingRecord, level: float) -> list[Part]:
        parts = []
        for task, rate in growing_settings(record, at_fixed_rates=at_fixed_rates):
            shift = shift_of(record, kind, task, rate)
            least = SHARE * growth_of(record, task, rate).value
            at = rate_text(rate)
            what = f"growth of forgetting with the budget at {at}, minus that of direct fine-tuning"
            figure = shown(what, shift.growth, level, "seeds paired", shift.unit)
            yes, no = (
                (f"at {at}, forgetting with the method grows less than with direct fine-tuning"),
                f"at {at}, forgetting with the method does not grow less than with direct "
                "fine-tuning",
            )
            parts.append(below(figure, -least, yes=yes, no=no))
        if not parts:
            raise NotMeasured("forgetting by direct fine-tuning that grows with the budget")
        return parts

    which = (
        "At every included learning rate at which forgetting by direct fine-tuning grows"
        if at_fixed_rates
        else (
            "On every task on which forgetting by direct fine-tuning at the tuned learning "
            "rates grows"
        )
    )
    says = (
        f"{which} from the smallest to the largest budget, forgetting grows less with the method. "
        "The difference is more than a tenth of direct fine-tuning's growth."
    )
    return Rule(says, judge)


def _reach(
    record: OvertrainingRecord,
    task: str,
    arm: str,
    target: Figure,
    of: Callable[..., Figure | None],
) -> Figure | None:
    """What a way to fine-tune the largest budget keeps where, along its rates, it reaches a target;
    None where it does not. Rates at which it diverged are left out."""
    largest = record.checkpoints[-1].label
    models = alike(record.models, task=task, arm=arm, checkpoint=largest)
    points = []
    for model in sorted(models, key=lambda model: model.rate):
        reached, cost = of(record, model), cost_of(record, model)
        if reached is None or cost is None:
            continue
        if reached.by_seed.keys() != target.by_seed.keys():
            raise NotMeasured(f"{arm} with every seed")
        points.append(Point(target=reached, source=cost * -1.0))
    return source_at([points], target)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EqualTarget:
    """Where ways to fine-tune the largest budget are compared."""

    of: Callable[[OvertrainingRecord, TunedModel], Figure | None]
    """The figure that has to be equal."""
    wanted: Callable[[Figure], Figure]
    """Of it, what is asked for where direct fine-tuning at its tuned rate has this."""
    name: str
    """What the figure is called."""
    text: str
    """What is asked for, in words."""


def _most_of(gain: Figure) -> Figure:
    return gain * TARGET


def _but_for_noise(score: Figure) -> Figure:
    by_seed = {seed: value - SCORE for seed, value in score.by_seed.items()}
    return dataclasses.replace(score, value=score.value - SCORE, by_seed=by_seed, samples_half=0.0)


EQUAL_GAIN = EqualTarget(
    of=gain_of,
    wanted=_most_of,
    name="task gain",
    text="90 % of the task gain of direct fine-tuning at its tuned learning rate",
)
EQUAL_SCORE = EqualTarget(
    of=score_of,
    wanted=_but_for_noise,
    name="VLM score",
    text="the VLM score of direct fine-tuning at its tuned learning rate, minus 0.02",
)


def keeps_more(kind: str, equal: EqualTarget) -> OvertrainingRule:
    """At the largest budget and at an equal target, a method costs less than direct fine-tuning
    does by the same measure."""

    def judge(record: OvertrainingRecord, level: float) -> list[Part]:
        parts = []
        for task in record.tasks:
            parts.append(_keeps_more(record, level, task, arm_of(record, kind), equal))
        return parts

    says = (
        "At the largest budget, the method and direct fine-tuning are compared at learning rates "
        f"with which each reaches {equal.text}. At these learning rates, the method forgets less "
        "on keep data. The difference is more than a tenth of what direct fine-tuning forgets."
    )
    return Rule(says, judge)


def _keeps_more(
    record: OvertrainingRecord, level: float, task: str, arm: str, equal: EqualTarget
) -> Part:
    largest = record.checkpoints[-1].label if record.checkpoints else ""
    models = alike(tuned_models(record, task), checkpoint=largest)
    by_tuned = equal.of(record, models[0]) if models else None
    if by_tuned is None:
        raise NotMeasured(f"the {equal.name} of direct fine-tuning at the largest budget")
    target = equal.wanted(by_tuned)
    by_method = _reach(record, task, arm, target, equal.of)
    by_direct = _reach(record, task, record.direct, target, equal.of)
    reached = f"a {equal.name} of {target.value:.3f}"
    if by_method is None or by_direct is None:
        label = arm if by_method is None else record.direct
        return unknown(f"{label} does not reach {reached} in every seed")
    what = f"score on keep data at {reached}: {arm} minus {record.direct}"
    where, n = where_of(record, task), f"{len(target.by_seed)} seeds, paired"
    difference = by_method - by_direct
    figure = shown(f"{where}: {what}" if where else what, difference, level, n, kept_unit(record))
    least = SHARE * abs(by_direct.value)
    return above(
        figure,
        least,
        yes="the method forgets less than direct fine-tuning",
        no="the method does not forget less than direct fine-tuning",
    )


# --------------------------------------------------------------------------- distance and curvature


def distance_follows_the_rate(record: OvertrainingRecord, level: float) -> list[Part]:
    """Exponent and spread of the weights' distance to the checkpoint, seed by seed, on every
    task."""
    parts = []
    for task in record.tasks:
        parts += _distance_of(record, level, task)
    return parts


def _distance_of(record: OvertrainingRecord, level: float, task: str) -> list[Part]:
    rates = rates_read(record, task)
    rows = [models_at(record, task, rate) for rate in rates]
    distances = [model.distance_by_seed for row in rows for model in row]
    seeds = sorted(set().union(*distances))
    same_seeds = all(set(by_seed) == set(seeds) for by_seed in distances)
    budgets = {len(row) for row in rows}
    if len(rates) < 3 or not seeds or not same_seeds or len(budgets) > 1 or min(budgets) < 2:
        raise NotMeasured(
            "the distance of the weights at three learning rates with the same budgets and seeds"
        )
    log_rates = [math.log(rate) for rate in rates]
    exponents, spreads = {}, {}
    for seed in seeds:
        away = [
            [math.log(model.distance_by_seed[seed]) for model in row] for row in rows
        ]  # rate, budget
        slopes = [
            statistics.linear_regression(log_rates, line).slope for line in zip(*away, strict=True)
        ]
        exponents[int(seed)] = statistics.fmean(slopes) - 1.0
        spreads[int(seed)] = statistics.fmean(line[-1] - line[0] for line in away)
    n, where = f"{len(seeds)} seeds", where_of(record, task)
    at = f"{where}: " if where else ""
    what = (
        f"{at}exponent with which the distance of the weights grows with the learning rate, minus 1"
    )
    exponent = shown(what, Figure.over_seeds(exponents), level, n, "")
    what = f"{at}log of the weights' distance at the largest budget divided by that at the smallest"
    spread = shown(what, Figure.over_seeds(spreads), level, n, "")
    return [
        within(
            exponent,
            EXPONENT,
            yes="the distance of the weights is proportional to the learning rate",
            no="the distance of the weights is not proportional to the learning rate",
        ),
        within(
            spread,
            ALIKE,
            yes="the distance of the weights does not depend on the budget",
            no="the distance of the weights depends on the budget",
        ),
    ]


def noise_line(lines: Iterable[Line]) -> Line | None:
    """That of noise, where it was followed at two sizes."""
    for line in lines:
        if line.label.startswith("noise") and len(line.losses) > 2:
            return line
    return None


def _excess(line: Line, size: float, loss: float) -> float:
    """How far a loss along a line lies above the quadratic, as a share of the quadratic's
    change."""
    start = dict(line.losses)[0.0]
    predicted = line.quadratic(size, start)
    return (loss - predicted) / max(abs(predicted - start), 1e-4)


def quadratic_near_and_far(record: OvertrainingRecord, level: float) -> list[Part]:
    """The loss along noise, less the quadratic, at the smallest and at the largest size."""
    near, far = [], []
    for sharpness in record.sharpness:
        line = noise_line(sharpness.lines)
        if line is not None:
            sizes = sorted(line.losses)[1:]
            near.append(_excess(line, *sizes[0]))
            far.append(_excess(line, *sizes[-1]))
    smallest = _over_checkpoints(
        "loss minus its quadratic approximation, smallest noise", near, level
    )
    largest = _over_checkpoints("loss minus its quadratic approximation, largest noise", far, level)
    return [
        within(
            smallest,
            NEAR,
            yes="the quadratic approximation holds near the checkpoint",
            no="the quadratic approximation does not hold near the checkpoint",
        ),
        above(
            largest,
            FAR,
            yes="the loss lies above the quadratic approximation far from the checkpoint",
            no="the loss does not lie above the quadratic approximation far from the checkpoint",
        ),
    ]


def above_the_quadratic(record: OvertrainingRecord, level: float) -> list[Part]:
    """The loss of the fine-tuned model, less the quadratic along the way to it."""
    excess = []
    for sharpness in record.sharpness:
        for line in sharpness.lines:
            losses = dict(line.losses)
            if not line.label.startswith("noise") and {0.0, 1.0} <= losses.keys():
                excess.append(_excess(line, 1.0, losses[1.0]))
    figure = _over_checkpoints(
        "loss minus its quadratic approximation, at the fine-tuned model", excess, level
    )
    return [
        above(
            figure,
            FAR,
            yes="the loss of the fine-tuned model lies above the quadratic approximation",
            no="the loss of the fine-tuned model does not lie above the quadratic approximation",
        )
    ]


def _over_checkpoints(what: str, values: Sequence[float], level: float) -> ClaimFigure:
    """A figure that each checkpoint has one of."""
    if len(values) < 2:
        raise NotMeasured("the curvature of two checkpoints along this direction")
    figure = Figure.over_seeds(dict(enumerate(values)))
    return shown(what, figure, level, f"{len(values)} checkpoints", "share of the predicted change")


def sharpness_grows(record: OvertrainingRecord, level: float) -> list[Part]:
    """The trace of the Hessian at the largest budget over that at the smallest."""
    known = {sharpness.model: sharpness for sharpness in record.sharpness}
    ends = [known.get(record.checkpoints[end].label) for end in (0, -1)]
    figures = []
    for end in ends:
        if end is None or end.trace_interval is None:
            raise NotMeasured("the curvature at the smallest and at the largest budget")
        figures.append(Figure(value=end.trace, over_samples=end.trace_interval))
    what = "trace of the Hessian, largest budget minus smallest budget"
    figure = shown(what, figures[1] - figures[0], level, "random vectors", "nats/token")
    least = SHARE * abs(figures[1].value)
    return [
        above(
            figure,
            least,
            yes="the trace of the Hessian grows with the budget",
            no="the trace of the Hessian does not grow with the budget",
        )
    ]
