"""What "Overtrained Language Models" claims of language models, held against an overtraining study: holds, does not
hold, or cannot tell.

The rules stand here and were committed before any outcome under them was computed. Of the studies only a trial of three
small budgets with one seed had been looked at:

- A study is one ladder. Figures are means over the seeds of what is modified (draws of noise, fine-tunings), and their
  intervals (95 %) cover them and the samples. They say nothing of another pre-training.
- *Kept*: the first entry under `generalist`, text such as the checkpoints were pre-trained on, nats a token. *The
  task*: the first entry of its test. *Cost*: what a modification takes from a figure of the checkpoint; more is worse.
- *Direct*: fine-tuning without a method. *At a rate*: the same at all budgets. *Tuned*: at each budget the rate that
  the validation data chose.
- *Rises monotonically*: from the smallest to the largest budget by more than `LEAST`, and between no two budgets does
  it go back by more than `BACK`, all pairs at once.
- *Turns*: the budget at which the modified model is at its best is not the largest, and the largest is shown to be
  worse (`statistics.inflection`). Of two turning points one comes *earlier* where all budgets that may be its best lie
  before all of the other's, each at half the error.
- In proportion to the rate: an exponent within `EXPONENT` of 1. Independent of the budget: distances at one rate differ
  by no more than `ALIKE` between the smallest and the largest budget.
- A rate at which a model diverged is as bad as can be, and is no rate that a rule is judged on.
- *VLM score*, of a study whose task has images: the first entry of its test, a share of questions about pictures.
  *Rises, grows with the budget*: from the smallest budget to the largest by more than `SCORE` of the questions (the
  score), by more than `LEAST` (the cost).
- *At equal VLM score*: where a way to fine-tune, along its rates, reaches the score of direct fine-tuning at its tuned
  rate but for `SCORE` of the questions (`statistics.equal_target`), direct fine-tuning by the same measure.

What has to be so before a rule may speak: the checkpoints get better along the ladder; where rates are tuned, the tuned
one is no end of what was tried, and direct fine-tuning learns the task at every budget. Of a task with images: direct
fine-tuning at its tuned rates is above guessing at the smallest and at the largest budget with the whole interval.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

from holdfast.papers.claims import rules as engine
from holdfast.papers.claims.rules import (
    FAILS,
    HOLDS,
    UNKNOWN,
    Claim,
    ClaimFigure,
    Evidence,
    Part,
    Requirement,
    Statement,
    above,
    below,
    monotone,
    unknown,
    within,
)
from holdfast.papers.overtraining.costs import change_cost, tuned_score, tuning_cost
from holdfast.papers.overtraining.record import OvertrainingRecord, Shift, TunedModel, TunedTurn
from holdfast.records.figure import CONFIDENCE, Figure
from holdfast.records.probe import AS_IT_IS, NOISE, Inflection
from holdfast.statistics.equal_target import Point, source_at
from holdfast.statistics.inflection import FALLS, TURNS, places_at, verdict_of

LEAST, BACK = 0.02, 0.02
"""Nats a token."""
EXPONENT, ALIKE = 0.2, math.log(1.2)
IMPROVES = 0.1
"""Nats a token that the checkpoints' own loss falls along the ladder, at least."""
LEARNS = 0.1
"""Nats a token (or of the class) that direct fine-tuning at the tuned rate brings at every budget, at least."""
SCORE = 0.02
"""Share of the questions about pictures: what a VLM score rises by at least, and what equal scores may differ by."""
NEAR, FAR = 0.1, 0.1
"""Claim 7: deviation from the quadratic as a share of what it predicts, at the smallest and at the largest noise."""
NATS = "nats/token"
READING = (
    "A study is one ladder of checkpoints: intervals cover draws of noise, seeds of fine-tuning and samples, and say "
    "nothing of another pre-training.",
    "Turns: the modified model is at its best before the largest budget, and the largest is shown to be worse.",
    "Claims 9 are ours: the paper expects regularised fine-tuning to delay the inflection point, and does not try it.",
    "Claims 10 are of models that see. The paper's VLM score is the mean of MME, GQA, AI2D, POPE and TextVQA, which "
    "are not run here; ours is the mean of five families of questions about pictures of digits. 10e to 10g are ours.",
)
LANGUAGE, PICTURES = "budgets", "pictures"
"""Recipes: a study of text, and one whose checkpoints get a vision tower."""


def check_claims(records: Mapping[str, OvertrainingRecord | None]) -> list[Claim]:
    """Every claim, held against the study of each ladder that was asked for.

    Args:
        records: by recipe, finished or not; None: not run.
    """
    return engine.check_claims(STATEMENTS, {recipe: _evidence(record) for recipe, record in records.items()})


def _evidence(record: OvertrainingRecord | None) -> Evidence[OvertrainingRecord]:
    if record is None:
        return Evidence(record=None)
    waiting = sum(m.state in ("waiting", "running") for m in record.models)
    seeds = max((len(m.seeds) for m in record.models), default=2)
    return Evidence(record=record, waiting=waiting, seeds=seeds, noun="fine-tuning")


# ------------------------------------------------------------------------------------------------------------- measures


def _task(record: OvertrainingRecord) -> str:
    """The task that the claims are judged on: the first."""
    return record.tasks[0] if record.tasks else ""


def _lead(record: OvertrainingRecord, suite: str) -> str:
    scored = record.leading(_task(record), suite)
    return scored.key if scored is not None else ""


def _unit(record: OvertrainingRecord, suite: str) -> str:
    scored = record.leading(_task(record), suite)
    return scored.unit if scored is not None else ""


def _rates(record: OvertrainingRecord) -> list[float]:
    """Direct fine-tuning's, at which no model diverged."""
    own = [m for m in record.models if (m.task, m.arm) == (_task(record), record.direct)]
    lost = {m.rate for m in own if m.diverged}
    return sorted({m.rate for m in own} - lost)


def _models(record: OvertrainingRecord, rate: float) -> list[TunedModel]:
    """Direct fine-tuning at a rate, the smallest budget first."""
    found = [record.model(_task(record), record.direct, rate, c.label) for c in record.checkpoints]
    return [m for m in found if m is not None]


def _tuned(record: OvertrainingRecord) -> list[TunedModel]:
    """Direct fine-tuning at each budget's tuned rate, the smallest budget first."""
    own = {r.checkpoint: r for r in record.rates if (r.task, r.arm) == (_task(record), record.direct)}
    rates = [own[c.label] for c in record.checkpoints if c.label in own]
    found = [record.model(r.task, r.arm, r.rate, r.checkpoint) for r in rates]
    return [m for m in found if m is not None]


def _score(record: OvertrainingRecord, model: TunedModel) -> Figure | None:
    """The VLM score of a model; None where a seed has diverged."""
    return tuned_score(record, model, _lead(record, "target"))


def _gammas(record: OvertrainingRecord) -> list[float]:
    return sorted({s.size for s in record.sensitivities if s.kind == NOISE})


def _noise_costs(record: OvertrainingRecord, gamma: float) -> list[tuple[str, Figure]]:
    """What noise costs each checkpoint, the smallest budget first; empty where it overflows."""
    own = {s.model: s for s in record.sensitivities if (s.kind, s.size, s.entry) == (NOISE, gamma, _kept(record))}
    if any(s.failed for s in own.values()):
        return []
    return [
        (
            c.label,
            change_cost(record, own[c.label]),
        )
        for c in record.checkpoints
        if c.label in own
    ]


def _kept(record: OvertrainingRecord) -> str:
    """The entry that leads what should be kept; of a study without tasks the first that was probed."""
    return _lead(record, "source") or (record.sensitivities[0].entry if record.sensitivities else "")


def _budgets(interval: tuple[float, float]) -> str:
    from holdfast.support.token_counts import shown_tokens

    low, high = (shown_tokens(round(float(f"{v:.2g}"))) for v in interval)  # whole steps, near round numbers
    return low if low == high else f"{low} to {high}"


def _places(turn: Inflection | TunedTurn, level: float) -> tuple[int, int] | None:
    """The smallest and the largest budget that may be the best, by place; None where the record is of before there were
    levels."""
    return places_at(turn.chances, level) if turn.chances else None


def _turned(what: str, turn: Inflection | TunedTurn, level: float) -> Part:
    """Whether a curve turns, as a part of a claim."""
    places = _places(turn, level)
    if places is None:
        return unknown(f"the record does not say at which levels {what} turns; run the study's command again")
    interval, verdict = (turn.budgets[places[0]], turn.budgets[places[1]]), verdict_of(places, len(turn.budgets))
    at = f"best at {_budgets((turn.tokens, turn.tokens))} tokens (may be {_budgets(interval)})"
    figure = ClaimFigure(
        what=f"{what}: lost from its best budget to the largest",
        value=turn.after,
        interval=None,
        n="the ladder",
        unit=turn.unit,
    )
    if verdict == TURNS:
        return Part(verdict=HOLDS, reason=f"{what} turns, {at}", figures=[figure])
    if verdict == FALLS:
        return Part(verdict=FAILS, reason=f"{what} gets better up to the largest budget", figures=[figure])
    return unknown(f"whether {what} turns cannot be told, {at}", [figure])


# ---------------------------------------------------------------------------------------------------------------- rules


def base_improves(record: OvertrainingRecord, level: float) -> list[Part]:
    """The checkpoint as it is is at its best at the largest budget, and every smaller one is shown to be worse."""
    found = next((i for i in record.inflections if (i.kind, i.entry) == (AS_IT_IS, _kept(record))), None)
    if found is None:
        return [unknown("the checkpoints were not probed, or are fewer than three")]
    part = _turned("the checkpoint as it is", found, level)
    swapped = {HOLDS: FAILS, FAILS: HOLDS, UNKNOWN: UNKNOWN}[part.verdict]
    return [dataclasses.replace(part, verdict=swapped)]


def noise_costs_more(record: OvertrainingRecord, level: float) -> list[Part]:
    """At every gamma the cost of noise rises monotonically with the budget."""
    parts = []
    for gamma in _gammas(record):
        line = _noise_costs(record, gamma)
        parts.append(
            _rising(line, f"cost of noise {gamma:g}", level, record)
            if len(line) > 1
            else unknown(f"noise {gamma:g} overflows")
        )
    return parts or [unknown("no noise was probed")]


def tuning_costs_more(record: OvertrainingRecord, level: float) -> list[Part]:
    """At every rate the cost of direct fine-tuning rises monotonically with the budget."""
    parts = []
    for rate in _rates(record):
        costs = [(m.checkpoint, tuning_cost(record, m, _kept(record))) for m in _models(record, rate)]
        line = [(label, cost) for label, cost in costs if cost is not None]
        parts.append(
            _rising(line, f"cost at learning rate {rate:g}", level, record)
            if len(line) == len(record.checkpoints)
            else unknown(f"learning rate {rate:g} was not measured at every budget")
        )
    return parts or [unknown("there is no rate at which no model diverged")]


def _rising(line: Sequence[tuple[str, Figure]], what: str, level: float, record: OvertrainingRecord) -> Part:
    seeds = len(line[0][1].by_seed)
    unit = _unit(record, "source") or NATS
    return monotone(
        line,
        what=what,
        rises=True,
        least=LEAST,
        margin=BACK,
        level=level,
        n=f"{seeds} draws or seeds",
        unit=unit,
        along="budget",
    )


def noise_turns(record: OvertrainingRecord, level: float) -> list[Part]:
    """Under the largest noise the model turns."""
    own = [i for i in record.inflections if (i.kind, i.entry) == (NOISE, _kept(record))]
    if not own:
        return [unknown("no noise was probed, or the checkpoints are fewer than three")]
    last = max(own, key=lambda i: i.size)
    what = f"the model under noise {last.size:g}"
    return [_turned(what, last, level)]


def tuning_turns(record: OvertrainingRecord, level: float) -> list[Part]:
    """Fine-tuned directly at the largest rate that no model diverged at, what should be kept turns."""
    rates = _rates(record)
    if not rates:
        return [unknown("there is no rate at which no model diverged")]
    return [_turn(record, rates[-1], "source", level)]


def _turn_of(record: OvertrainingRecord, rate: float | None, entry: str, arm: str = "") -> TunedTurn | None:
    """Where a way to fine-tune turns, direct fine-tuning where none is named; None: it has no such figure."""
    wanted = (_task(record), arm or record.direct, rate, entry)
    return next((t for t in record.turns if (t.task, t.arm, t.rate, t.entry) == wanted), None)


def _turn(record: OvertrainingRecord, rate: float | None, suite: str, level: float) -> Part:
    found = _turn_of(record, rate, _kept(record) if suite == "source" else _lead(record, suite))
    what = f"{'what should be kept' if suite == 'source' else 'the task'} at " + (
        "tuned rates" if rate is None else f"learning rate {rate:g}"
    )
    if found is None:
        return unknown(f"{what} has no turning point to speak of")
    return _turned(what, found, level)


def stronger_noise_turns_earlier(record: OvertrainingRecord, level: float) -> list[Part]:
    """The turning point under the largest noise comes earlier than that under the smallest."""
    own = sorted((i for i in record.inflections if (i.kind, i.entry) == (NOISE, _kept(record))), key=lambda i: i.size)
    if len(own) < 2:
        return [unknown("fewer than two sizes of noise")]
    return [_earlier(own[-1], own[0], f"noise {own[-1].size:g}", f"noise {own[0].size:g}", level)]


def higher_rates_turn_earlier(record: OvertrainingRecord, level: float) -> list[Part]:
    """Fine-tuned directly at the largest rate, what should be kept turns earlier than at the smallest."""
    rates = _rates(record)
    high, low = (_turn_of(record, rate, _kept(record)) for rate in (rates[-1], rates[0])) if rates else (None, None)
    if len(rates) < 2 or high is None or low is None:
        return [unknown("there are no two rates at which no model diverged")]
    return [_earlier(high, low, f"learning rate {rates[-1]:g}", f"learning rate {rates[0]:g}", level)]


def _earlier(one: Inflection | TunedTurn, other: Inflection | TunedTurn, name: str, than: str, level: float) -> Part:
    """Whether all budgets that may be best lie before all of another's; each has half of the error."""
    each = 1 - (1 - level) / 2 if level > 0 else 0.0
    mine, theirs = _places(one, each), _places(other, each)
    if mine is None or theirs is None:
        return unknown("the record does not say at which levels the two turn; run the study's command again")
    own, its = ((turn.budgets[a], turn.budgets[b]) for turn, (a, b) in ((one, mine), (other, theirs)))
    told = f"with {name} the model is best at {_budgets(own)} tokens, with {than} at {_budgets(its)}"
    if own[1] < its[0]:
        return Part(verdict=HOLDS, reason=told)
    return Part(verdict=FAILS, reason=told) if own[0] > its[1] else unknown(told)


def kept_turns_when_tuned(record: OvertrainingRecord, level: float) -> list[Part]:
    """With each budget at its tuned rate, what should be kept turns."""
    return [_turn(record, None, "source", level)]


def task_turns_when_tuned(record: OvertrainingRecord, level: float) -> list[Part]:
    """With each budget at its tuned rate, the task itself turns."""
    return [_turn(record, None, "target", level)]


def distance_follows_the_rate(record: OvertrainingRecord, level: float) -> list[Part]:
    """The weights' distance to the checkpoint is in proportion to the rate, and at one rate independent of the
    budget."""
    rates = _rates(record)
    rows = {rate: _models(record, rate) for rate in rates}
    seeds = sorted({s for models in rows.values() for m in models for s in m.distance_by_seed})
    whole = all(set(m.distance_by_seed) == set(seeds) for models in rows.values() for m in models)
    if len(rates) < 3 or not seeds or not whole or any(len(m) < 2 for m in rows.values()):
        return [unknown("distances of three rates and more are needed, with the same seeds")]
    x = [math.log(rate) for rate in rates]
    exponents, spreads = {}, {}
    for seed in seeds:
        away = [[math.log(m.distance_by_seed[seed]) for m in rows[rate]] for rate in rates]  # rate, budget
        slopes = [statistics.linear_regression(x, line).slope for line in zip(*away, strict=True)]
        exponents[int(seed)] = statistics.fmean(slopes)
        spreads[int(seed)] = statistics.fmean(line[-1] - line[0] for line in away)
    found = []
    for what, by_seed, centre, margin, yes, no in (
        ("exponent of the distance in the rate, less 1", exponents, 1.0, EXPONENT, "it is in proportion", "it is not"),
        ("log of the distance, largest to smallest budget", spreads, 0.0, ALIKE, "it is alike", "it depends on it"),
    ):
        over = Figure(
            value=statistics.fmean(by_seed.values()) - centre,
            by_seed={s: v - centre for s, v in by_seed.items()},
            samples_half=0.0,
        )
        figure = ClaimFigure(
            what=what, value=over.value, interval=over.interval_at(level), n=f"{len(seeds)} seeds", unit=""
        )
        found.append(within(figure, margin, yes=yes, no=no))
    return found


def quadratic_near_and_far(record: OvertrainingRecord, level: float) -> list[Part]:
    """Along noise the loss is the quadratic's at the smallest size, and lies above it at the largest."""
    deviations: dict[str, list[float]] = {"near": [], "far": []}
    for sharpness in record.sharpness:
        line = next((one for one in sharpness.lines if one.label.startswith("noise") and len(one.losses) > 2), None)
        if line is None:
            continue
        start = next(loss for size, loss in line.losses if size == 0)
        sizes = sorted(line.losses)[1:]
        for name, (size, loss) in (("near", sizes[0]), ("far", sizes[-1])):
            predicted = line.quadratic(size, start)
            deviations[name].append((loss - predicted) / max(abs(predicted - start), 1e-4))
    if lost := sum(not math.isfinite(v) for values in deviations.values() for v in values):
        return [unknown(f"the loss along noise is not finite at an end of the line of {lost} checkpoints")]
    if len(deviations["near"]) < 2:
        return [unknown("the curvature of two checkpoints and more is needed, and two sizes of noise")]

    def figure(what: str, values: Sequence[float]) -> ClaimFigure:
        over = Figure(value=statistics.fmean(values), by_seed=dict(enumerate(values)), samples_half=0.0)
        n = f"{len(values)} checkpoints"
        return ClaimFigure(
            what=what, value=over.value, interval=over.interval_at(level), n=n, unit="share of its change"
        )

    near = figure("loss less the quadratic, smallest noise", deviations["near"])
    far = figure("loss less the quadratic, largest noise", deviations["far"])
    return [
        within(near, NEAR, yes="the quadratic holds near the checkpoint", no="it does not hold near the checkpoint"),
        above(far, FAR, yes="the loss lies above it far away", no="the loss does not lie above it far away"),
    ]


def lower_rates_turn_later(record: OvertrainingRecord, level: float) -> list[Part]:
    """At the smallest rate that was tried, what should be kept turns later than at the tuned rates."""
    rates = _rates(record)
    low = _turn_of(record, rates[0], _kept(record)) if rates else None
    tuned = _turn_of(record, None, _kept(record))
    if low is None or tuned is None:
        return [unknown("there is no turning point to compare")]
    return [_earlier(tuned, low, "tuned rates", f"learning rate {rates[0]:g}", level)]


def moves(kind: str) -> Callable[[OvertrainingRecord, float], list[Part]]:
    """A rule: with a method, each at its tuned rates, the turning point comes later than with direct fine-tuning."""

    def rule(record: OvertrainingRecord, level: float) -> list[Part]:
        found = _shift(record, kind)
        if isinstance(found, Part):
            return [found]
        mine, direct = (_turn_of(record, None, found.entry, arm) for arm in (found.arm, record.direct))
        if mine is None or direct is None:
            return [unknown("there is no turning point to compare")]
        return [_earlier(direct, mine, "direct fine-tuning", found.arm, level)]

    rule.says = (  # type: ignore[attr-defined]
        "Each at its tuned rates, what should be kept turns later than with direct fine-tuning."
    )
    return rule


def costs_grow_less(kind: str) -> Callable[[OvertrainingRecord, float], list[Part]]:
    """A rule: with a method, each at its tuned rates, the cost grows less along the ladder than with direct
    fine-tuning."""

    def rule(record: OvertrainingRecord, level: float) -> list[Part]:
        found = _shift(record, kind)
        if isinstance(found, Part):
            return [found]
        figure = ClaimFigure(
            what="growth of the cost along the ladder, less direct fine-tuning's",
            value=found.growth.value,
            interval=found.growth.interval_at(level),
            n="seeds paired",
            unit=found.unit,
        )
        return [below(figure, -LEAST, yes="its cost grows less", no="its cost does not grow less")]

    rule.says = (  # type: ignore[attr-defined]
        "Each at its tuned rates, the cost in what should be kept grows less from the smallest to the largest budget "
        "than with direct fine-tuning, by more than 0.02 nats a token."
    )
    return rule


def score_rises_when_tuned(record: OvertrainingRecord, level: float) -> list[Part]:
    """At the tuned rates the VLM score of the largest budget is above that of the smallest by more than 0.02."""
    return [_score_rises(record, _tuned(record), "tuned rates", level)]


def language_costs_more_when_tuned(record: OvertrainingRecord, level: float) -> list[Part]:
    """At the tuned rates the cost in what should be kept at the largest budget is above that at the smallest by more
    than 0.02 nats a token."""
    return [_language_costs(record, _tuned(record), "tuned rates", level)]


def score_rises_at_every_rate(record: OvertrainingRecord, level: float) -> list[Part]:
    """At every rate the VLM score of the largest budget is above that of the smallest by more than 0.02."""
    return _at_every_rate(record, lambda models, at: _score_rises(record, models, at, level))


def language_costs_more_at_every_rate(record: OvertrainingRecord, level: float) -> list[Part]:
    """At every rate the cost in what should be kept at the largest budget is above that at the smallest by more than
    0.02 nats a token."""
    return _at_every_rate(record, lambda models, at: _language_costs(record, models, at, level))


def _at_every_rate(record: OvertrainingRecord, part: Callable[[Sequence[TunedModel], str], Part]) -> list[Part]:
    parts = [part(_models(record, rate), f"learning rate {rate:g}") for rate in _rates(record)]
    return parts or [unknown("there is no rate at which no model diverged")]


def _score_rises(record: OvertrainingRecord, models: Sequence[TunedModel], at: str, level: float) -> Part:
    scores = [_score(record, m) for m in models]
    return _along(
        record, scores, f"VLM score at {at}", SCORE, level, unit="share of the questions",
        yes=f"at {at} the VLM score rises with the budget", no=f"at {at} the VLM score does not rise with the budget",
    )  # fmt: skip


def _language_costs(record: OvertrainingRecord, models: Sequence[TunedModel], at: str, level: float) -> Part:
    costs = [tuning_cost(record, m, _kept(record)) for m in models]
    return _along(
        record, costs, f"cost in language at {at}", LEAST, level, unit=_unit(record, "source") or NATS,
        yes=f"at {at} more language is lost after longer pre-training",
        no=f"at {at} no more language is lost after longer pre-training",
    )  # fmt: skip


def _along(
    record: OvertrainingRecord,
    line: Sequence[Figure | None],
    what: str,
    least: float,
    level: float,
    *,
    unit: str,
    yes: str,
    no: str,
) -> Part:
    """Whether a figure grows from the smallest budget to the largest by more than what counts."""
    if len(line) < len(record.checkpoints) or len(line) < 2 or line[0] is None or line[-1] is None:
        return unknown(f"the {what} was not measured at both ends of the ladder")
    over = line[-1] - line[0]
    first, last = (record.checkpoints[place].label for place in (0, -1))
    figure = ClaimFigure(
        what=f"{what}: {last} - {first}",
        value=over.value,
        interval=over.interval_at(level),
        n=f"{len(over.by_seed)} seeds, paired",
        unit=unit,
    )
    return above(figure, least, yes=yes, no=no)


def keeps_more_at_equal_score(kind: str) -> Callable[[OvertrainingRecord, float], list[Part]]:
    """A rule: at the largest budget, a way to fine-tune keeps more language than direct fine-tuning at equal VLM
    score."""

    def rule(record: OvertrainingRecord, level: float) -> list[Part]:
        last = record.checkpoints[-1].label if record.checkpoints else ""
        arm = next((a.label for a in record.arms if a.kind == kind), None)
        tuned = next((s for m in _tuned(record) if m.checkpoint == last and (s := _score(record, m))), None)
        if arm is None or tuned is None:
            return [unknown("there is no such fine-tuning at the largest budget")]
        by_seed = {seed: score - SCORE for seed, score in tuned.by_seed.items()}
        wanted = dataclasses.replace(tuned, value=tuned.value - SCORE, by_seed=by_seed, samples_half=0.0)
        curves = {a: _score_and_language(record, a, last) for a in (arm, record.direct)}
        if short := [a for a, curve in curves.items() if any(p.target.by_seed.keys() != by_seed.keys() for p in curve)]:
            return [unknown(f"{' and '.join(short)}: not every seed is there")]
        kept = {a: source_at([curve], wanted) for a, curve in curves.items()}
        mine, direct = kept[arm], kept[record.direct]
        if mine is None or direct is None:
            missed = arm if mine is None else record.direct
            return [unknown(f"{missed} does not reach the VLM score {wanted.value:.3f} in every seed")]
        over = mine - direct
        figure = ClaimFigure(
            what=f"language kept at VLM score {wanted.value:.3f}: {arm} - {record.direct}",
            value=over.value,
            interval=over.interval_at(level),
            n=f"{len(over.by_seed)} seeds, paired",
            unit=_unit(record, "source") or NATS,
        )
        return [above(figure, LEAST, yes="it keeps more language", no="it does not keep more language")]

    rule.says = (  # type: ignore[attr-defined]
        "At the largest budget and at equal VLM score (that of direct fine-tuning at its tuned rate, less 0.02) the "
        "cost in what should be kept is below that of direct fine-tuning by more than 0.02 nats a token."
    )
    return rule


def _score_and_language(record: OvertrainingRecord, arm: str, checkpoint: str) -> list[Point]:
    """A way to fine-tune a checkpoint along its rates, those at which it diverged left out: VLM score, and language
    kept."""
    own = [m for m in record.models if (m.task, m.arm, m.checkpoint) == (_task(record), arm, checkpoint)]
    found = []
    for m in sorted(own, key=lambda m: m.rate):
        score, cost = _score(record, m), tuning_cost(record, m, _kept(record))
        if score is not None and cost is not None:
            found.append(Point(target=score, source=cost * -1.0))
    return found


def _shift(record: OvertrainingRecord, kind: str) -> Part | Shift:
    arms = [a.label for a in record.arms if a.kind == kind]
    wanted = [(_task(record), arm, None, _kept(record)) for arm in arms]
    found = next((s for s in record.shifts if (s.task, s.arm, s.rate, s.entry) in wanted), None)
    return found if found is not None else unknown("there is no such fine-tuning at tuned rates")


# ------------------------------------------------------------------------------------------------------- preconditions


def _falls(record: OvertrainingRecord) -> float | None:
    """How far the checkpoints' own loss falls along the ladder; where nothing was probed, as the fine-tunings have
    measured their start."""
    own = {s.model: s.before for s in record.sensitivities if s.entry == _kept(record) and not s.higher_is_better}
    lead = record.leading(_task(record), "source")
    if not record.sensitivities and lead is not None and not lead.higher_is_better:
        measured = [m for m in record.models if lead.key in m.scores and math.isfinite(m.scores[lead.key].value)]
        own = {m.checkpoint: m.scores[lead.key].value - m.costs[lead.key].value for m in measured}
    ends = [own.get(record.checkpoints[place].label) for place in (0, -1)]
    return None if None in ends else float(ends[0]) - float(ends[1])  # type: ignore[arg-type]


def _edges(record: OvertrainingRecord) -> float | None:
    own = [r for r in record.rates if (r.task, r.arm) == (_task(record), record.direct)]
    alone = any(a.label == record.direct and len(a.rates) < 2 for a in record.arms)  # nothing was chosen
    return float(sum(alone or bool(r.edge) for r in own)) if own else None


def _learnt(record: OvertrainingRecord) -> float | None:
    """The least that direct fine-tuning at tuned rates brings to the task."""
    entry = _lead(record, "target")
    own = [r for r in record.rates if (r.task, r.arm) == (_task(record), record.direct)]
    models = [record.model(r.task, r.arm, r.rate, r.checkpoint) for r in own]
    gains = [-m.costs[entry].value for m in models if m is not None and entry in m.costs]
    return min(gains) if gains and len(gains) == len(record.checkpoints) else None


def _above_chance(record: OvertrainingRecord) -> float | None:
    """By how much direct fine-tuning at its tuned rates is above guessing at the ends of the ladder: the least lower
    end of an interval, less chance."""
    lead, models = record.leading(_task(record), "target"), _tuned(record)
    if lead is None or lead.chance is None or len(models) < len(record.checkpoints):
        return None
    scores = [_score(record, models[place]) for place in (0, -1)]
    intervals = [s.interval_at(CONFIDENCE) for s in scores if s is not None]
    lows = [interval[0] - lead.chance for interval in intervals if interval is not None]
    return min(lows) if len(lows) == 2 else None


IMPROVING: Requirement[OvertrainingRecord] = Requirement(
    name="the checkpoints get better along the ladder",
    of=_falls,
    at_least=IMPROVES,
    figure="loss of the smallest budget less that of the largest, as they are",
    advice="take budgets further apart",
)
INSIDE: Requirement[OvertrainingRecord] = Requirement(
    name="the tuned rate is inside what was tried",
    of=_edges,
    at_most=0.0,
    figure="budgets at which direct's tuned rate is an end of what was tried",
    advice="try more rates on that side",
)
LEARNING: Requirement[OvertrainingRecord] = Requirement(
    name="direct fine-tuning learns the task at every budget",
    of=_learnt,
    at_least=LEARNS,
    figure="least gain on the task's test at tuned rates",
    advice="train longer, or on more rows",
)
SEEING: Requirement[OvertrainingRecord] = Requirement(
    name="direct fine-tuning sees, at the smallest and at the largest budget",
    of=_above_chance,
    at_least=0.0,
    figure="lower end of the VLM score's interval at tuned rates, less guessing",
    advice="train longer, or on more pictures",
)
TUNED = (IMPROVING, INSIDE, LEARNING)
SEEN = (IMPROVING, SEEING)
SEEN_TUNED = (IMPROVING, INSIDE, SEEING)


# ---------------------------------------------------------------------------------------------------------- statements


def _statement(
    number: str,
    text: str,
    check: Callable[[OvertrainingRecord, float], list[Part]],
    paper: str,
    preconditions: Sequence[Requirement[OvertrainingRecord]] = (IMPROVING,),
    recipe: str = LANGUAGE,
) -> Statement[OvertrainingRecord]:
    return Statement(
        number=number, recipe=recipe, text=text, paper=paper, check=check, preconditions=tuple(preconditions)
    )


_OURS = (
    '"we expect that explicit forms of regularization to prevent large parameter updates could also mitigate or delay '
    'catastrophic overtraining" (section 3.4.2; theorem 4.7); not tried'
)


def _retention() -> Iterator[Statement[OvertrainingRecord]]:
    letters = iter("abcdef")
    for kind, name in {"label_annealing": "Label annealing", "l2": "L2 to the start", "sfa": "SFA"}.items():
        text = f"{name} moves the inflection point to larger budgets."
        yield _statement(f"9{next(letters)}", text, moves(kind), _OURS, TUNED)
        text = f"{name} lets the cost grow less with the budget."
        yield _statement(f"9{next(letters)}", text, costs_grow_less(kind), _OURS, TUNED)


_SCORE = '"extended pre-training translates to continuous improvements in the VLM score" (section 2, figure 2 right)'
_LOST = (
    '"models pre-trained on more tokens show greater forgetting and larger drops in performance across the various OOD '
    'benchmarks" (section 2, figure 2 right)'
)
_OF_SEEING = {"label_annealing": "label annealing", "sfa": "SFA", "LoRA": "LoRA"}
"""By the kind of a way to fine-tune."""


def _seeing() -> Iterator[Statement[OvertrainingRecord]]:
    for number, text, check, paper, needs in (
        (
            "10a",
            "With the learning rate tuned for it, the VLM score rises with the budget.",
            score_rises_when_tuned,
            _SCORE,
            SEEN_TUNED,
        ),
        (
            "10b",
            "With the learning rate tuned for the VLM score, more language is lost after longer pre-training.",
            language_costs_more_when_tuned,
            _LOST,
            SEEN_TUNED,
        ),
        (
            "10c",
            "At every fixed learning rate, the VLM score rises with the budget.",
            score_rises_at_every_rate,
            "all learning rates: figures 24, 26 and 28 (appendix E); a sentence on them is not there",
            SEEN,
        ),
        (
            "10d",
            "At every fixed learning rate, more language is lost after longer pre-training.",
            language_costs_more_at_every_rate,
            "all learning rates: figures 24, 26 and 28 (appendix E); a sentence on them is not there",
            SEEN,
        ),
    ):
        yield _statement(number, text, check, paper, needs, PICTURES)
    for letter, (kind, name) in zip("efg", _OF_SEEING.items(), strict=True):
        text = f"At the largest budget, {name} keeps more language at equal VLM score."
        yield _statement(f"10{letter}", text, keeps_more_at_equal_score(kind), _OURS, SEEN_TUNED, PICTURES)


STATEMENTS: tuple[Statement[OvertrainingRecord], ...] = (
    _statement(
        "1",
        "The checkpoint's own perplexity falls with the pre-training budget.",
        base_improves,
        "falls with the budget (figures 3 to 6, dashed lines)",
        (),
    ),
    _statement(
        "2",
        "The cost of Gaussian noise rises monotonically with the budget, at every size of the noise.",
        noise_costs_more,
        '"progressive sensitivity": at every gamma (section 3.3, figure 3)',
    ),
    _statement(
        "3",
        "The cost of fine-tuning at a fixed learning rate rises monotonically with the budget.",
        tuning_costs_more,
        '"progressive sensitivity" at fixed rates, on all data sets (section 3.4.1, figure 4)',
    ),
    _statement(
        "4a",
        "Under noise the loss is U-shaped: beyond some budget longer pre-training makes it worse.",
        noise_turns,
        "an inflection point at each gamma that is large enough (section 3.3, figure 3)",
    ),
    _statement(
        "4b",
        "Larger noise moves the inflection point to smaller budgets.",
        stronger_noise_turns_earlier,
        '"leading to an inflection point at a lower token budget" (section 3.3)',
    ),
    _statement(
        "4c",
        "Fine-tuned at a fixed learning rate, the loss on pre-training text is U-shaped in the budget.",
        tuning_turns,
        "U-shaped for larger rates (section 3.4.1, figure 5)",
    ),
    _statement(
        "4d",
        "A larger learning rate moves the inflection point to smaller budgets.",
        higher_rates_turn_earlier,
        "larger rates degrade at smaller budgets (section 3.4.1, figure 5)",
    ),
    _statement(
        "5a",
        "With the learning rate tuned for the task, what should be kept still degrades at large budgets.",
        kept_turns_when_tuned,
        "C4 perplexity degrades (section 3.4.2, figure 6)",
        TUNED,
    ),
    _statement(
        "5b",
        "With the learning rate tuned for the task, the task itself degrades at large budgets.",
        task_turns_when_tuned,
        "in some cases the in-domain perplexity degrades, too (section 3.4.2, figure 6)",
        TUNED,
    ),
    _statement(
        "6",
        "The weights move in proportion to the learning rate, independently of the budget.",
        distance_follows_the_rate,
        "distance in proportion to the rate, alike at all budgets (figure 8)",
    ),
    _statement(
        "7",
        "The loss along noise is its quadratic approximation near the checkpoint, and lies above it far away.",
        quadratic_near_and_far,
        "holds for small steps, and the loss lies above it for large ones (appendix D, figure 9)",
        (),
    ),
    _statement(
        "8",
        "A learning rate below the tuned one delays the inflection point.",
        lower_rates_turn_later,
        "a rate that is not optimal can delay it, at the task's expense (section 3.4.2, figure 7)",
        TUNED,
    ),
    *_retention(),
    *_seeing(),
)
