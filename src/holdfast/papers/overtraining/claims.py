"""What "Overtrained Language Models" claims of language models, held against an overtraining study:
holds, does not hold, or cannot tell.

The rules stand here and were committed before any outcome under them was computed. Of the studies
only a trial of three small budgets with one seed had been looked at:

- A study is one ladder. Figures are means over the seeds of what is modified (draws of noise,
  fine-tunings), and their intervals (95 %) cover them and the samples. They say nothing of another
  pre-training.
- *Kept*: the first entry under `keep`, text such as the checkpoints were pre-trained on, nats a
  token. *The task*: the first entry of its test. *Cost*: what a modification takes from a figure of
  the checkpoint; more is worse.
- *Direct*: fine-tuning without a method. *At a rate*: the same at all budgets. *Tuned*: at each
  budget the rate that the validation data chose.
- *Rises monotonically*: from the smallest to the largest budget by more than `LEAST`, and between
  no two budgets does it go back by more than `BACK`, all pairs at once.
- *Turns*: the budget at which the modified model is at its best is not the largest, and the largest
  is shown to be worse (`statistics.inflection`). Of two turning points one comes *earlier* where
  all budgets that may be its best lie before all of the other's, each at half the error.
- In proportion to the rate: an exponent within `EXPONENT` of 1. Independent of the budget:
  distances at one rate differ by no more than `ALIKE` between the smallest and the largest budget.
- A rate at which a model diverged is as bad as can be, and is no rate that a rule is judged on.
- *VLM score*, of a study whose task has images: the first entry of its test, a share of questions
  about pictures. *Rises, grows with the budget*: from the smallest budget to the largest by more
  than `SCORE` of the questions (the score), by more than `LEAST` (the cost).
- *At equal VLM score*: where a way to fine-tune, along its rates, reaches the score of direct
  fine-tuning at its tuned rate but for `SCORE` of the questions (`statistics.equal_target`), direct
  fine-tuning by the same measure.

What has to be so before a rule may speak: the checkpoints get better along the ladder; where rates
are tuned, the tuned one is no end of what was tried, and direct fine-tuning learns the task at
every budget. Of a task with images: direct fine-tuning at its tuned rates is above guessing at the
smallest and at the largest budget with the whole interval.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

from holdfast.papers.claims.claim import Claim, Evidence, Statement, judge_records
from holdfast.papers.claims.requirements import Requirement
from holdfast.papers.claims.rules import (
    FAILS,
    HOLDS,
    Check,
    ClaimFigure,
    Part,
    Rule,
    above,
    below,
    rising,
    rule,
    unknown,
    widened,
    within,
)
from holdfast.papers.overtraining.costs import change_cost, tuned_score, tuning_cost
from holdfast.papers.overtraining.record import (
    OvertrainingRecord,
    Shift,
    TunedModel,
    TunedRate,
    TunedTurn,
    alike,
)
from holdfast.records.figure import CONFIDENCE, Figure, NotMeasured
from holdfast.records.probe import AS_IT_IS, NOISE, TurningPoint
from holdfast.statistics.equal_target import Point, source_at
from holdfast.statistics.inflection import FALLS, TURNS, places_at, verdict_of

LEAST, BACK = 0.02, 0.02
"""Nats a token."""
EXPONENT, ALIKE = 0.2, math.log(1.2)
IMPROVES = 0.1
"""Nats a token that the checkpoints' own loss falls along the ladder, at least."""
LEARNS = 0.1
"""Nats a token (or of the class) that direct fine-tuning at the tuned rate brings at every budget,
at least."""
SCORE = 0.02
"""Share of the questions about pictures: what a VLM score rises by at least, and what equal scores
may differ by."""
NEAR, FAR = 0.1, 0.1
"""Claim 7: deviation from the quadratic as a share of what it predicts, at the smallest and at the
largest noise."""
NATS = "nats/token"
READING = (
    "A study is one ladder of checkpoints: intervals cover draws of noise, seeds of fine-tuning "
    "and samples, and say nothing of another pre-training.",
    "Turns: the modified model is at its best before the largest budget, and the largest is shown "
    "to be worse.",
    "Claims 9 are ours: the paper expects regularised fine-tuning to delay the inflection point, "
    "and does not try it.",
    "Claims 10 are of models that see. The paper's VLM score is the mean of MME, GQA, AI2D, POPE "
    "and TextVQA, which are not run here; ours is the mean of five families of questions about "
    "pictures of digits. 10e to 10g are ours.",
)
LANGUAGE, PICTURES = "budgets", "pictures"
"""Recipes: a study of text, and one whose checkpoints get a vision tower."""


def check_claims(records: Mapping[str, OvertrainingRecord | None]) -> list[Claim]:
    """Every claim, held against the study of each ladder that was asked for.

    Args:
        records: by recipe, finished or not; None: not run.
    """
    return judge_records(STATEMENTS, records, _evidence)


def _evidence(record: OvertrainingRecord) -> Evidence[OvertrainingRecord]:
    seeds = max((len(model.seeds) for model in record.models), default=2)
    return Evidence.of(record, record.models, seeds=seeds, noun="fine-tuning")


# ----------------------------------------------------------------------------------------- measures


def task_of(record: OvertrainingRecord) -> str:
    """The task that the claims are judged on: the first."""
    return record.tasks[0] if record.tasks else ""


def leading_key(record: OvertrainingRecord, suite: str) -> str:
    """The entry that leads a suite; "" before anything was measured."""
    scored = record.leading(task_of(record), suite)
    return scored.key if scored is not None else ""


def kept_entry(record: OvertrainingRecord) -> str:
    """The entry that leads what should be kept; of a study without tasks the first that was
    probed."""
    return leading_key(record, "keep") or (
        record.sensitivities[0].entry if record.sensitivities else ""
    )


def kept_unit(record: OvertrainingRecord) -> str:
    """Of what should be kept."""
    scored = record.leading(task_of(record), "keep")
    return NATS if scored is None else scored.unit or NATS


def rates_of(record: OvertrainingRecord) -> list[float]:
    """Direct fine-tuning's, the smallest first; raises `NotMeasured` where a model diverged at
    each."""
    rates, diverged = set(), set()
    for model in record.models:
        if (model.task, model.arm) == (task_of(record), record.direct):
            rates.add(model.rate)
            if model.diverged:
                diverged.add(model.rate)
    if not rates - diverged:
        raise NotMeasured("a rate at which no model diverged")
    return sorted(rates - diverged)


def models_at(record: OvertrainingRecord, rate: float) -> list[TunedModel]:
    """Direct fine-tuning at a rate, the smallest budget first."""
    task, models = task_of(record), []
    for checkpoint in record.checkpoints:
        model = record.model(task, record.direct, rate, checkpoint.label)
        if model is not None:
            models.append(model)
    return models


def tuned_rates(record: OvertrainingRecord) -> list[TunedRate]:
    """Direct fine-tuning's of each budget."""
    return alike(record.rates, task=task_of(record), arm=record.direct)


def tuned_models(record: OvertrainingRecord) -> list[TunedModel]:
    """Direct fine-tuning at each budget's tuned rate, the smallest budget first."""
    rates = {rate.checkpoint: rate for rate in tuned_rates(record)}
    models = []
    for checkpoint in record.checkpoints:
        rate = rates.get(checkpoint.label)
        model = (
            None if rate is None else record.model(rate.task, rate.arm, rate.rate, rate.checkpoint)
        )
        if model is not None:
            models.append(model)
    return models


def score_of(record: OvertrainingRecord, model: TunedModel) -> Figure | None:
    """The VLM score of a model; None where a seed has diverged."""
    return tuned_score(record, model, leading_key(record, "learn"))


def cost_of(record: OvertrainingRecord, model: TunedModel) -> Figure | None:
    """What fine-tuning costs a model of what should be kept; None where a seed has diverged."""
    return tuning_cost(record, model, kept_entry(record))


def shown(what: str, figure: Figure, level: float, n: str, unit: str) -> ClaimFigure:
    """A figure at a level."""
    return ClaimFigure(
        what=what, value=figure.value, interval=figure.interval_at(level), n=n, unit=unit
    )


# -------------------------------------------------------------------------------------------- cases


@dataclasses.dataclass(frozen=True)
class Noise:
    """One size of noise, on every checkpoint."""

    record: OvertrainingRecord
    size: float
    where = ""

    @property
    def unit(self) -> str:
        """Of what should be kept."""
        return kept_unit(self.record)

    def behind(self, figure: Figure) -> str:
        """The draws."""
        return f"{len(figure.by_seed)} draws or seeds"

    def costs(self) -> list[tuple[str, Figure]]:
        """Of each checkpoint, the smallest budget first."""
        changes = {}
        for change in alike(
            self.record.sensitivities, kind=NOISE, size=self.size, entry=kept_entry(self.record)
        ):
            changes[change.model] = change
        if any(change.failed for change in changes.values()):
            raise NotMeasured(f"noise {self.size:g}, which overflows,")
        costs = []
        for checkpoint in self.record.checkpoints:
            if checkpoint.label in changes:
                costs.append(
                    (checkpoint.label, change_cost(self.record, changes[checkpoint.label]))
                )
        return costs


@dataclasses.dataclass(frozen=True)
class Direct:
    """Direct fine-tuning of every checkpoint, at one rate or at the tuned ones."""

    record: OvertrainingRecord
    at: str
    """The rate for people."""
    models: Sequence[TunedModel]
    noise: str = "seeds, paired"
    """What seeds are called."""
    where = ""

    @property
    def unit(self) -> str:
        """Of what should be kept."""
        return kept_unit(self.record)

    @property
    def ends(self) -> str:
        """The largest budget minus the smallest."""
        return f"{self.record.checkpoints[-1].label} - {self.record.checkpoints[0].label}"

    def behind(self, figure: Figure) -> str:
        """The seeds."""
        return f"{len(figure.by_seed)} {self.noise}"

    def costs(self) -> list[tuple[str, Figure]]:
        """Of each checkpoint, the smallest budget first."""
        known = []
        for model in self.models:
            cost = cost_of(self.record, model)
            if cost is not None:
                known.append((model.checkpoint, cost))
        if len(known) < len(self.record.checkpoints):
            raise NotMeasured(f"{self.at} at every budget")
        return known

    def grows(
        self, of: Callable[[OvertrainingRecord, TunedModel], Figure | None], what: str
    ) -> Figure:
        """A figure at the largest budget minus that at the smallest."""
        if 1 < len(self.models) == len(self.record.checkpoints):
            first, last = of(self.record, self.models[0]), of(self.record, self.models[-1])
            if first is not None and last is not None:
                return last - first
        raise NotMeasured(f"the {what} at {self.at} at both ends of the ladder")


def noises(record: OvertrainingRecord) -> list[Noise]:
    """Every size of noise."""
    sizes = sorted({change.size for change in alike(record.sensitivities, kind=NOISE)})
    if not sizes:
        raise NotMeasured("noise")
    return [Noise(record, size) for size in sizes]


def every_rate(record: OvertrainingRecord, noise: str = "seeds, paired") -> list[Direct]:
    """Direct fine-tuning at every rate at which no model diverged."""
    cases = []
    for rate in rates_of(record):
        cases.append(Direct(record, f"learning rate {rate:g}", models_at(record, rate), noise))
    return cases


def at_tuned_rates(record: OvertrainingRecord) -> list[Direct]:
    """Direct fine-tuning at the tuned rates."""
    return [Direct(record, "tuned rates", tuned_models(record))]


# ----------------------------------------------------------------------------------- turning points


def places_of(turn: TurningPoint, level: float) -> tuple[int, int]:
    """The smallest and the largest budget that may be the best, by place."""
    if not turn.chances:
        raise NotMeasured("at which level the curve turns (run the study's command again): it")
    return places_at(turn.chances, level)


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
    at = f"best at {tokens_text((turn.tokens, turn.tokens))} tokens (may be {may_be})"
    lost = f"{what}: lost from its best budget to the largest"
    figures = [
        ClaimFigure(what=lost, value=turn.after, interval=None, n="the ladder", unit=turn.unit)
    ]
    if verdict == TURNS:
        return Part(verdict=HOLDS, reason=f"{what} turns, {at}", figures=figures)
    if verdict == FALLS:
        return Part(
            verdict=FAILS, reason=f"{what} gets better up to the largest budget", figures=figures
        )
    return unknown(f"whether {what} turns cannot be told, {at}", figures)


def earlier(
    one: TurningPoint, other: TurningPoint, name: str, than: str, level: float
) -> list[Part]:
    """Whether all budgets that may be best lie before all of another's; each has half of the
    error."""
    each = widened(level, 2)
    best, other_best = (
        [turn.budgets[place] for place in places_of(turn, each)] for turn in (one, other)
    )
    reason = (
        f"with {name} the model is best at {tokens_text(best)} tokens, with {than} at "
        f"{tokens_text(other_best)}"
    )
    if best[1] < other_best[0]:
        return [Part(verdict=HOLDS, reason=reason)]
    return [Part(verdict=FAILS, reason=reason) if best[0] > other_best[1] else unknown(reason)]


Curve = tuple[str, TurningPoint]
"""What a model went through, for people, and where it turns along the budgets."""


def noisy(record: OvertrainingRecord, place: int) -> Curve:
    """Under one of the sizes of noise, the smallest first."""
    turns = sorted(
        alike(record.inflections, kind=NOISE, entry=kept_entry(record)), key=lambda turn: turn.size
    )
    if not turns:
        raise NotMeasured("noise at three budgets")
    return f"noise {turns[place].size:g}", turns[place]


def at_rate(record: OvertrainingRecord, place: int) -> Curve:
    """What should be kept, fine-tuned directly at one of the rates, the smallest first."""
    rate = rates_of(record)[place]
    return f"learning rate {rate:g}", turn_of(record, rate, kept_entry(record))


def tuned(record: OvertrainingRecord, suite: str = "keep") -> Curve:
    """The same at tuned rates, or the task itself."""
    return "tuned rates", turn_of(
        record, None, kept_entry(record) if suite == "keep" else leading_key(record, suite)
    )


def turn_of(record: OvertrainingRecord, rate: float | None, entry: str, arm: str = "") -> TunedTurn:
    """Where a way to fine-tune turns, direct fine-tuning where none is named."""
    key = (task_of(record), arm or record.direct, rate, entry)
    for turn in record.turns:
        if (turn.task, turn.arm, turn.rate, turn.entry) == key:
            return turn
    raise NotMeasured(
        f"the turning point at {'tuned rates' if rate is None else f'learning rate {rate:g}'}"
    )


def base_improves(record: OvertrainingRecord, level: float) -> list[Part]:
    """The opposite of turning."""
    turns = alike(record.inflections, kind=AS_IT_IS, entry=kept_entry(record))
    if not turns:
        raise NotMeasured("the checkpoint as it is at three budgets")
    turning = turned("the checkpoint as it is", turns[0], level)
    opposite = {HOLDS: FAILS, FAILS: HOLDS}.get(turning.verdict, turning.verdict)
    return [dataclasses.replace(turning, verdict=opposite)]


def turns(
    says: str, what: str, curve: Callable[[OvertrainingRecord], Curve]
) -> Rule[OvertrainingRecord]:
    """A curve turns; `{}` in `what` stands for what the model went through."""

    def judge(record: OvertrainingRecord, level: float) -> list[Part]:
        name, turn = curve(record)
        return [turned(what.format(name), turn, level)]

    return Rule(says, judge)


def turns_earlier(
    says: str,
    one: Callable[[OvertrainingRecord], Curve],
    other: Callable[[OvertrainingRecord], Curve],
    second: str,
) -> Rule[OvertrainingRecord]:
    """A curve turns earlier than another; `second` says what is missing where both are the same."""

    def judge(record: OvertrainingRecord, level: float) -> list[Part]:
        (than, later), (name, sooner) = other(record), one(record)
        if name == than:
            raise NotMeasured(second)
        return earlier(sooner, later, name, than, level)

    return Rule(says, judge)


def shift_of(record: OvertrainingRecord, kind: str) -> Shift:
    """What a method does at tuned rates, against direct fine-tuning."""
    arms = [arm.label for arm in alike(record.arms, kind=kind)]
    for shift in alike(record.shifts, task=task_of(record), rate=None, entry=kept_entry(record)):
        if shift.arm in arms:
            return shift
    raise NotMeasured(f"fine-tuning with {kind} at tuned rates")


def moves(kind: str) -> Rule[OvertrainingRecord]:
    """A method delays the turning point."""

    def judge(record: OvertrainingRecord, level: float) -> list[Part]:
        shift = shift_of(record, kind)
        by_method, direct = (
            turn_of(record, None, shift.entry, shift.arm),
            turn_of(record, None, shift.entry),
        )
        return earlier(direct, by_method, "direct fine-tuning", shift.arm, level)

    return Rule(
        "Each at its tuned rates, what should be kept turns later than with direct fine-tuning.",
        judge,
    )


def costs_grow_less(kind: str) -> Rule[OvertrainingRecord]:
    """With a method the cost grows less along the ladder."""

    def judge(record: OvertrainingRecord, level: float) -> list[Part]:
        shift = shift_of(record, kind)
        what = "growth of the cost along the ladder, less direct fine-tuning's"
        figure = shown(what, shift.growth, level, "seeds paired", shift.unit)
        return [below(figure, -LEAST, yes="its cost grows less", no="its cost does not grow less")]

    says = (
        "Each at its tuned rates, the cost in what should be kept grows less from the smallest to "
        "the largest budget than with direct fine-tuning, by more than 0.02 nats a token."
    )
    return Rule(says, judge)


# --------------------------------------------------------------------------- distance and curvature


def distance_follows_the_rate(record: OvertrainingRecord, level: float) -> list[Part]:
    """Exponent and spread of the weights' distance to the checkpoint, seed by seed."""
    rates = rates_of(record)
    rows = [models_at(record, rate) for rate in rates]
    distances = [model.distance_by_seed for row in rows for model in row]
    seeds = sorted(set().union(*distances))
    same_seeds = all(set(by_seed) == set(seeds) for by_seed in distances)
    budgets = {len(row) for row in rows}
    if len(rates) < 3 or not seeds or not same_seeds or len(budgets) > 1 or min(budgets) < 2:
        raise NotMeasured("the distance at three rates, with the same budgets and seeds,")
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
    n = f"{len(seeds)} seeds"
    exponent = shown(
        "exponent of the distance in the rate, less 1", Figure.over_seeds(exponents), level, n, ""
    )
    spread = shown(
        "log of the distance, largest to smallest budget", Figure.over_seeds(spreads), level, n, ""
    )
    return [
        within(exponent, EXPONENT, yes="it is in proportion", no="it is not"),
        within(spread, ALIKE, yes="it is alike", no="it depends on it"),
    ]


def quadratic_near_and_far(record: OvertrainingRecord, level: float) -> list[Part]:
    """The loss along noise, less the quadratic, at the smallest and at the largest size."""
    near: list[float] = []
    far: list[float] = []
    for sharpness in record.sharpness:
        line = next(
            (n for n in sharpness.lines if n.label.startswith("noise") and len(n.losses) > 2), None
        )
        if line is None:
            continue
        start = next(loss for size, loss in line.losses if size == 0)
        sizes = sorted(line.losses)[1:]
        for deviations, (size, loss) in ((near, sizes[0]), (far, sizes[-1])):
            predicted = line.quadratic(size, start)
            deviations.append((loss - predicted) / max(abs(predicted - start), 1e-4))
    if lost := sum(not math.isfinite(value) for value in (*near, *far)):
        return [
            unknown(
                f"the loss along noise is not finite at an end of the line of {lost} checkpoints"
            )
        ]
    if len(near) < 2:
        raise NotMeasured("the curvature of two checkpoints, at two sizes of noise,")
    n, unit = f"{len(near)} checkpoints", "share of its change"
    by_checkpoint = (
        Figure.over_seeds(dict(enumerate(near))),
        Figure.over_seeds(dict(enumerate(far))),
    )
    smallest = shown("loss less the quadratic, smallest noise", by_checkpoint[0], level, n, unit)
    largest = shown("loss less the quadratic, largest noise", by_checkpoint[1], level, n, unit)
    return [
        within(
            smallest,
            NEAR,
            yes="the quadratic holds near the checkpoint",
            no="it does not hold near the checkpoint",
        ),
        above(
            largest,
            FAR,
            yes="the loss lies above it far away",
            no="the loss does not lie above it far away",
        ),
    ]


# ---------------------------------------------------------------------------------- models that see


SCORE_RISES = Check(
    what="VLM score at {case.at}: {case.ends}",
    of=lambda direct: direct.grows(score_of, "VLM score"),
    above=SCORE,
    yes="at {case.at} the VLM score rises with the budget",
    no="at {case.at} the VLM score does not rise with the budget",
    unit="share of the questions",
)
LANGUAGE_COSTS = Check(
    what="cost in language at {case.at}: {case.ends}",
    of=lambda direct: direct.grows(cost_of, "cost in language"),
    above=LEAST,
    yes="at {case.at} more language is lost after longer pre-training",
    no="at {case.at} no more language is lost after longer pre-training",
)


def score_and_language(record: OvertrainingRecord, arm: str, checkpoint: str) -> list[Point]:
    """A way to fine-tune a checkpoint along its rates, those at which it diverged left out: VLM
    score, and language kept."""
    key = (task_of(record), arm, checkpoint)
    points = []
    for model in sorted(record.models, key=lambda model: model.rate):
        if (model.task, model.arm, model.checkpoint) == key:
            score, cost = score_of(record, model), cost_of(record, model)
            if score is not None and cost is not None:
                points.append(Point(target=score, source=cost * -1.0))
    return points


def language_at(
    record: OvertrainingRecord, arm: str, checkpoint: str, score: Figure
) -> Figure | None:
    """Language kept by a way to fine-tune a checkpoint where it reaches a VLM score; None where it
    does not."""
    curve = score_and_language(record, arm, checkpoint)
    if any(point.target.by_seed.keys() != score.by_seed.keys() for point in curve):
        raise NotMeasured(f"{arm} with every seed")
    return source_at([curve], score)


def keeps_more_at_equal_score(kind: str) -> Rule[OvertrainingRecord]:
    """A way to fine-tune keeps more language than direct fine-tuning at equal VLM score."""

    def judge(record: OvertrainingRecord, level: float) -> list[Part]:
        largest = record.checkpoints[-1].label if record.checkpoints else ""
        arms, models = (
            alike(record.arms, kind=kind),
            alike(tuned_models(record), checkpoint=largest),
        )
        by_tuned = score_of(record, models[0]) if models else None
        if not arms or by_tuned is None:
            raise NotMeasured(f"{kind} beside direct fine-tuning at the largest budget")
        arm, by_seed = (
            arms[0].label,
            {seed: value - SCORE for seed, value in by_tuned.by_seed.items()},
        )
        score = dataclasses.replace(
            by_tuned, value=by_tuned.value - SCORE, by_seed=by_seed, samples_half=0.0
        )
        language = language_at(record, arm, largest, score)
        by_direct = language_at(record, record.direct, largest, score)
        if language is None or by_direct is None:
            label = arm if language is None else record.direct
            return [
                unknown(f"{label} does not reach the VLM score {score.value:.3f} in every seed")
            ]
        what = f"language kept at VLM score {score.value:.3f}: {arm} - {record.direct}"
        n = f"{len(by_seed)} seeds, paired"
        figure = shown(what, language - by_direct, level, n, kept_unit(record))
        return [
            above(figure, LEAST, yes="it keeps more language", no="it does not keep more language")
        ]

    says = (
        "At the largest budget and at equal VLM score (that of direct fine-tuning at its tuned "
        "rate, less 0.02) the cost in what should be kept is below that of direct fine-tuning by "
        "more than 0.02 nats a token."
    )
    return Rule(says, judge)


# ------------------------------------------------------------------------------------ preconditions


def improvement(record: OvertrainingRecord) -> float:
    """How far the checkpoints' own loss falls along the ladder; where nothing was probed, as the
    fine-tunings have measured their start."""
    entry = kept_entry(record)
    losses = {}
    for change in alike(record.sensitivities, entry=entry, higher_is_better=False):
        losses[change.model] = change.before
    lead = record.leading(task_of(record), "keep")
    if not record.sensitivities and lead is not None and not lead.higher_is_better:
        for model in record.models:
            score = model.scores.get(lead.key)
            if score is not None and math.isfinite(score.value):
                losses[model.checkpoint] = score.value - model.costs[lead.key].value
    first, last = losses.get(record.checkpoints[0].label), losses.get(record.checkpoints[-1].label)
    if first is None or last is None:
        raise NotMeasured("the checkpoints' own loss")
    return first - last


def edges(record: OvertrainingRecord) -> float:
    """Budgets at which direct fine-tuning's tuned rate is an end of what was tried."""
    rates = tuned_rates(record)
    if not rates:
        raise NotMeasured("tuned rates")
    # nothing was chosen
    alone = any(len(arm.rates) < 2 for arm in alike(record.arms, label=record.direct))
    return float(sum(alone or bool(rate.edge) for rate in rates))


def least_learnt(record: OvertrainingRecord) -> float:
    """The least that direct fine-tuning at tuned rates brings to the task."""
    entry = leading_key(record, "learn")
    gains = [-model.costs[entry].value for model in tuned_models(record) if entry in model.costs]
    if not gains or len(gains) < len(record.checkpoints):
        raise NotMeasured("the task at every budget")
    return min(gains)


def above_chance(record: OvertrainingRecord) -> float:
    """By how much direct fine-tuning at its tuned rates is above guessing at the ends of the
    ladder: the least lower end of an interval, less chance."""
    lead, models = record.leading(task_of(record), "learn"), tuned_models(record)
    if lead is None or lead.chance is None or len(models) < len(record.checkpoints):
        raise NotMeasured("the VLM score and chance")
    lows = []
    for end in (0, -1):
        score = score_of(record, models[end])
        interval = None if score is None else score.interval_at(CONFIDENCE)
        if interval is None:
            raise NotMeasured("the VLM score with an interval")
        lows.append(interval[0] - lead.chance)
    return min(lows)


IMPROVING = Requirement(
    name="the checkpoints get better along the ladder",
    of=improvement,
    at_least=IMPROVES,
    figure="loss of the smallest budget less that of the largest, as they are",
    advice="take budgets further apart",
)
INSIDE = Requirement(
    name="the tuned rate is inside what was tried",
    of=edges,
    at_most=0.0,
    figure="budgets at which direct's tuned rate is an end of what was tried",
    advice="try more rates on that side",
)
LEARNING = Requirement(
    name="direct fine-tuning learns the task at every budget",
    of=least_learnt,
    at_least=LEARNS,
    figure="least gain on the task's test at tuned rates",
    advice="train longer, or on more rows",
)
SEEING = Requirement(
    name="direct fine-tuning sees, at the smallest and at the largest budget",
    of=above_chance,
    at_least=0.0,
    figure="lower end of the VLM score's interval at tuned rates, less guessing",
    advice="train longer, or on more pictures",
)
TUNED = (IMPROVING, INSIDE, LEARNING)
SEEN = (IMPROVING, SEEING)
SEEN_TUNED = (IMPROVING, INSIDE, SEEING)


# --------------------------------------------------------------------------------------- statements


def _claim(
    number: str,
    text: str,
    paper: str,
    rule: Rule[OvertrainingRecord],
    needs: Sequence[Requirement] = (IMPROVING,),
    recipe: str = LANGUAGE,
) -> Statement[OvertrainingRecord]:
    return Statement(
        number=number, recipe=recipe, text=text, paper=paper, rule=rule, preconditions=needs
    )


_OURS = (
    '"we expect that explicit forms of regularization to prevent large parameter updates could '
    "also mitigate or delay "
    'catastrophic overtraining" (section 3.4.2; theorem 4.7); not tried'
)
_SCORE = (
    '"extended pre-training translates to continuous improvements in the VLM score" (section 2, '
    "figure 2 right)"
)
_LOST = (
    '"models pre-trained on more tokens show greater forgetting and larger drops in performance '
    "across the various OOD "
    'benchmarks" (section 2, figure 2 right)'
)
_ALL_RATES = (
    "all learning rates: figures 24, 26 and 28 (appendix E); a sentence on them is not there"
)


def _retention(kind: str, name: str, letters: str) -> Iterator[Statement[OvertrainingRecord]]:
    text = f"{name} moves the inflection point to larger budgets."
    yield _claim(f"9{letters[0]}", text, _OURS, moves(kind), TUNED)
    text = f"{name} lets the cost grow less with the budget."
    yield _claim(f"9{letters[1]}", text, _OURS, costs_grow_less(kind), TUNED)


def _equal_score(kind: str, name: str, letter: str) -> Statement[OvertrainingRecord]:
    text = f"At the largest budget, {name} keeps more language at equal VLM score."
    return _claim(f"10{letter}", text, _OURS, keeps_more_at_equal_score(kind), SEEN_TUNED, PICTURES)


STATEMENTS = (
    _claim(
        "1",
        "The checkpoint's own perplexity falls with the pre-training budget.",
        "falls with the budget (figures 3 to 6, dashed lines)",
        Rule(
            "The checkpoint as it is is at its best at the largest budget, and every smaller one "
            "is shown to be worse.",
            base_improves,
        ),
        (),
    ),
    _claim(
        "2",
        "The cost of Gaussian noise rises monotonically with the budget, at every size of the "
        "noise.",
        '"progressive sensitivity": at every gamma (section 3.3, figure 3)',
        rising(
            "At every gamma the cost of noise rises by more than 0.02 nats from the smallest to "
            "the largest budget, and between no two goes back by more than that.",
            noises,
            Noise.costs,
            what="cost of noise {case.size:g}",
            least=LEAST,
            back=BACK,
            along="budget",
        ),
    ),
    _claim(
        "3",
        "The cost of fine-tuning at a fixed learning rate rises monotonically with the budget.",
        '"progressive sensitivity" at fixed rates, on all data sets (section 3.4.1, figure 4)',
        rising(
            "At every rate the cost of direct fine-tuning rises by more than 0.02 nats from the "
            "smallest to the largest budget, and between no two goes back by more than that.",
            lambda record: every_rate(record, "draws or seeds"),
            Direct.costs,
            what="cost at {case.at}",
            least=LEAST,
            back=BACK,
            along="budget",
        ),
    ),
    _claim(
        "4a",
        "Under noise the loss is U-shaped: beyond some budget longer pre-training makes it worse.",
        "an inflection point at each gamma that is large enough (section 3.3, figure 3)",
        turns(
            "Under the largest noise the best budget is not the largest, which is shown to be "
            "worse.",
            "the model under {}",
            lambda record: noisy(record, -1),
        ),
    ),
    _claim(
        "4b",
        "Larger noise moves the inflection point to smaller budgets.",
        '"leading to an inflection point at a lower token budget" (section 3.3)',
        turns_earlier(
            "All budgets that may be best under the largest noise lie before all of those under "
            "the smallest.",
            lambda record: noisy(record, -1),
            lambda record: noisy(record, 0),
            "a second size of noise",
        ),
    ),
    _claim(
        "4c",
        "Fine-tuned at a fixed learning rate, the loss on pre-training text is U-shaped in the "
        "budget.",
        "U-shaped for larger rates (section 3.4.1, figure 5)",
        turns(
            "Fine-tuned directly at the largest rate that no model diverged at, what should be "
            "kept is at its best before the largest budget, which is shown to be worse.",
            "what should be kept at {}",
            lambda record: at_rate(record, -1),
        ),
    ),
    _claim(
        "4d",
        "A larger learning rate moves the inflection point to smaller budgets.",
        "larger rates degrade at smaller budgets (section 3.4.1, figure 5)",
        turns_earlier(
            "Fine-tuned directly at the largest rate, what should be kept turns earlier than at "
            "the smallest.",
            lambda record: at_rate(record, -1),
            lambda record: at_rate(record, 0),
            "a second rate at which no model diverged",
        ),
    ),
    _claim(
        "5a",
        "With the learning rate tuned for the task, what should be kept still degrades at large "
        "budgets.",
        "C4 perplexity degrades (section 3.4.2, figure 6)",
        turns(
            "With each budget at its tuned rate, what should be kept turns.",
            "what should be kept at {}",
            tuned,
        ),
        TUNED,
    ),
    _claim(
        "5b",
        "With the learning rate tuned for the task, the task itself degrades at large budgets.",
        "in some cases the in-domain perplexity degrades, too (section 3.4.2, figure 6)",
        turns(
            "With each budget at its tuned rate, the task itself turns.",
            "the task at {}",
            lambda record: tuned(record, "learn"),
        ),
        TUNED,
    ),
    _claim(
        "6",
        "The weights move in proportion to the learning rate, independently of the budget.",
        "distance in proportion to the rate, alike at all budgets (figure 8)",
        Rule(
            "The weights' distance to the checkpoint grows with the rate to an exponent within 0.2 "
            "of 1, and at one rate is alike within 20 % at the smallest and the largest budget.",
            distance_follows_the_rate,
        ),
    ),
    _claim(
        "7",
        "The loss along noise is its quadratic approximation near the checkpoint, and lies above "
        "it far away.",
        "holds for small steps, and the loss lies above it for large ones (appendix D, figure 9)",
        Rule(
            "Along noise the loss is within 10 % of the quadratic's change at the smallest size, "
            "and more than 10 % above it at the largest.",
            quadratic_near_and_far,
        ),
        (),
    ),
    _claim(
        "8",
        "A learning rate below the tuned one delays the inflection point.",
        "a rate that is not optimal can delay it, at the task's expense (section 3.4.2, figure 7)",
        turns_earlier(
            "At the smallest rate that was tried, what should be kept turns later than at the "
            "tuned rates.",
            tuned,
            lambda record: at_rate(record, 0),
            "a rate",
        ),
        TUNED,
    ),
    *_retention("label_annealing", "Label annealing", "ab"),
    *_retention("l2", "L2 to the start", "cd"),
    *_retention("sfa", "SFA", "ef"),
    _claim(
        "10a",
        "With the learning rate tuned for it, the VLM score rises with the budget.",
        _SCORE,
        rule(
            "At the tuned rates the VLM score of the largest budget is above that of the smallest "
            "by more than 0.02.",
            at_tuned_rates,
            SCORE_RISES,
        ),
        SEEN_TUNED,
        PICTURES,
    ),
    _claim(
        "10b",
        "With the learning rate tuned for the VLM score, more language is lost after longer "
        "pre-training.",
        _LOST,
        rule(
            "At the tuned rates the cost in what should be kept at the largest budget is above "
            "that at the smallest by more than 0.02 nats a token.",
            at_tuned_rates,
            LANGUAGE_COSTS,
        ),
        SEEN_TUNED,
        PICTURES,
    ),
    _claim(
        "10c",
        "At every fixed learning rate, the VLM score rises with the budget.",
        _ALL_RATES,
        rule(
            "At every rate the VLM score of the largest budget is above that of the smallest by "
            "more than 0.02.",
            every_rate,
            SCORE_RISES,
        ),
        SEEN,
        PICTURES,
    ),
    _claim(
        "10d",
        "At every fixed learning rate, more language is lost after longer pre-training.",
        _ALL_RATES,
        rule(
            "At every rate the cost in what should be kept at the largest budget is above that at "
            "the smallest by more than 0.02 nats a token.",
            every_rate,
            LANGUAGE_COSTS,
        ),
        SEEN,
        PICTURES,
    ),
    _equal_score("label_annealing", "label annealing", "e"),
    _equal_score("sfa", "SFA", "f"),
    _equal_score("LoRA", "LoRA", "g"),
)
