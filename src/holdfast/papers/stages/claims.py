"""What "Pattern Shifting or Knowledge Losing" claims, held against stages studies: holds, does not hold, or cannot
tell.

The rules stand here and were written before any outcome of the studies was looked at:

- A study is one *world*: people, texts and a base of its own. A figure is the mean over worlds, and its interval (95 %)
  covers them; the questions of a world are its own, so that their noise is in the spread between worlds. With one world
  it covers the questions alone.
- *First*, *middle*, *last*: the checkpoint after the first epoch, after half of them, and after all. *Plain text*: the
  probing passages, nats a token. *Knowledge*: multiple choice about people whom the base knew (`FACTS`). *Letters*:
  lettered questions about them (`LETTERED`), which have the answer position.
- Restored models are held against the base and against the control, the base after the same restoring: *back* is not
  below the lower of the two, *below* is below both. That is `holdfast.statistics.stages` over worlds.
- A change counts from `LEAST` on: 2 points, or 0.05 nats a token, with the whole interval. Plain text is *at the base's
  level* where it costs less than `TOLERANCE` nats more than the dearer of base and control.
- *Within a few steps*: within `FEW` of all steps. *Most of* what was memorised: more than half.
- Claim 5 holds the transition to actual forgetting of the models against that of smaller ones in the same worlds.

The first three worlds were judged by these rules and could not tell eleven of thirteen claims, their intervals being
too wide; worlds 3 to 5 were added then, under the same rules, before anything of them was known. Intervals over six
worlds are not widened for that first look.

What has to be so before a rule may speak: the base knows what is asked, fine-tuning costs it, restoring alone does not,
the pattern is back where knowledge is judged, and there is room above the base where a gain is claimed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from holdfast.papers.claims import rules as engine
from holdfast.papers.claims.rules import (
    FAILS,
    HOLDS,
    Claim,
    Evidence,
    Part,
    Requirement,
    Statement,
    above,
    below,
    unknown,
)
from holdfast.records.figure import Figure
from holdfast.records.stages import BASE, CONTROL, PROBING, RESTORED, TUNED, StagesRecord

RECIPE = "stages"
"""All worlds together."""
WIDE, NARROW = "world-", "narrow-"
"""What the studies' names begin with: the models of the claims, and smaller ones for claim 5."""
FACTS, LETTERED, LEARNT = "knowledge/old_facts", "knowledge/old_lettered", "knowledge/learnt"
PLAIN = f"{PROBING}/{PROBING}"
LEAST, LEAST_NATS = 0.02, 0.05
TOLERANCE = 0.05
FEW = 0.05
"""Of all steps of fine-tuning: half of the first of ten epochs."""
MASS = 0.95
"""From which on the format counts as learnt (section 5)."""
KNOWN = 0.2
"""By so much the base is above guessing, else it has no knowledge to lose."""
COSTS = 0.05
"""By so much fine-tuning lowers the score, and by no more restoring alone may."""
READING = (
    "A study is a world with people, texts and a base of its own; figures are means over worlds, with intervals over "
    "them. With one world they cover its questions alone.",
    "Restored models are held against the base and against the control, the base after the same restoring. Back: not "
    "below the lower of the two. Below: below both.",
    "A change of less than 2 points, or of 0.05 nats a token, counts as none.",
    "Three worlds were judged first and told little; three more were added then under the same rules. Intervals are "
    "not widened for the first look.",
)


@dataclasses.dataclass(frozen=True)
class Worlds:
    """The studies by world, and those of a smaller model."""

    wide: Mapping[int, StagesRecord]
    narrow: Mapping[int, StagesRecord] = dataclasses.field(default_factory=dict)

    @property
    def places(self) -> range:
        """The checkpoints of every world, from 1."""
        return range(1, 1 + min((len(_labels(r)) for r in self.wide.values()), default=0))

    @property
    def last(self) -> int:
        """After all epochs."""
        return len(self.places)

    @property
    def middle(self) -> int:
        """After half of them."""
        return max(1, self.last // 2)

    def over(self, of: Callable[[StagesRecord], Figure | None]) -> Figure | None:
        """A figure over worlds; None where one lacks it."""
        found = {world: of(record) for world, record in self.wide.items()}
        known = {world: value for world, value in found.items() if value is not None}
        if not known or len(known) < len(found):
            return None
        by_world = {world: value.value for world, value in known.items()}
        half = known[next(iter(known))].half_over_samples if len(known) == 1 else 0.0
        return Figure.over_seeds(by_world, half)


def check_claims(records: Mapping[str, StagesRecord | None]) -> list[Claim]:
    """Every claim of the paper, held against its studies.

    Args:
        records: by study (`world-0`, `narrow-0`, ...), finished or not; None: not run.
    """

    def of(kind: str) -> dict[int, StagesRecord]:
        named = {int(n.removeprefix(kind)): r for n, r in records.items() if n.startswith(kind)}
        return {world: record for world, record in named.items() if record is not None}

    wide, narrow = of(WIDE), of(NARROW)
    models = [m for record in (*wide.values(), *narrow.values()) for m in record.models]
    missing = [name for name, record in records.items() if record is None]
    evidence = Evidence(
        record=Worlds(wide, narrow) if wide else None,
        waiting=sum(m.state in ("waiting", "running") for m in models) + len(missing),
        seeds=len(wide),
        noun="model",
        without=dict(_without(wide, narrow)),
    )
    return engine.check_claims(STATEMENTS, {RECIPE: evidence})


def _without(wide: Mapping[int, StagesRecord], narrow: Mapping[int, StagesRecord]) -> Iterator[tuple[str, Worlds]]:
    """The studies with one world left out, by name; nothing where there are not two others."""
    for world in wide if len(wide) > 2 else ():
        left, narrower = ({w: r for w, r in records.items() if w != world} for records in (wide, narrow))
        yield f"world {world}", Worlds(left, narrower)


# ------------------------------------------------------------------------------------------------------------- measures


def _labels(record: StagesRecord) -> list[str]:
    return record.checkpoints[record.arms[0]]


def _of(record: StagesRecord, role: str, place: int, entry: str, metric: str) -> Figure | None:
    """A figure of a model; place 0: base and control."""
    model = record.model(role, record.arms[0] if place else "", place)
    found = None if model is None else model.figures.get(entry, {}).get(metric)
    return None if found is None or not math.isfinite(found.value) else found


Model = tuple[str, int]
"""Role and place."""


def change(after: Model, before: Model, entry: str, metric: str) -> Callable[[StagesRecord], Figure | None]:
    """What changes of a figure between two models of a world."""

    def of(record: StagesRecord) -> Figure | None:
        a, b = _of(record, *after, entry, metric), _of(record, *before, entry, metric)
        return None if a is None or b is None else a - b

    return of


def beside_both(place: int, entry: str, metric: str, *, lower: bool) -> Callable[[StagesRecord], Figure | None]:
    """A restored model's figure minus the lower, or the higher, of base and control."""

    def of(record: StagesRecord) -> Figure | None:
        restored = _of(record, RESTORED, place, entry, metric)
        two = [_of(record, role, 0, entry, metric) for role in (BASE, CONTROL)]
        known = [v for v in two if v is not None]
        if restored is None or len(known) < 2:
            return None
        return restored - (min if lower else max)(known, key=lambda v: v.value)

    return of


def least_along(entry: str, metric: str, share: float) -> Callable[[StagesRecord], Figure | None]:
    """The least value of a figure from a share of the fine-tuning's steps on, of what was measured on the way; None
    where nothing was, or a point is not finite."""

    def of(record: StagesRecord) -> Figure | None:
        points = record.along.get(record.arms[0], [])
        last = max((p.step for p in points), default=0)
        values = [
            Figure(value=e.metrics[metric].value, over_samples=e.metrics[metric].interval)
            for p in points
            if last and p.step >= share * last
            for e in p.evaluations
            if f"{e.suite}/{e.name}" == entry and metric in e.metrics
        ]
        if not all(math.isfinite(v.value) for v in values):
            return None
        return min(values, key=lambda v: v.value, default=None)

    return of


def transition(record: StagesRecord) -> int | None:
    """The checkpoint at which actual forgetting of the knowledge begins; one more than there are where it does not."""
    found = next((t for t in record.transitions if (t.arm, t.task) == (record.arms[0], FACTS)), None)
    return None if found is None else found.place or len(_labels(record)) + 1


# ---------------------------------------------------------------------------------------------------------------- rules


Of = Callable[[StagesRecord], Figure | None]
Places = Callable[[Worlds], Sequence[int]]


def first(worlds: Worlds) -> list[int]:
    """The checkpoint after the first epoch."""
    return [1]


def last(worlds: Worlds) -> list[int]:
    """That after all of them."""
    return [worlds.last]


def three(worlds: Worlds) -> list[int]:
    """The first, the middle and the last one."""
    return list(dict.fromkeys((1, worlds.middle, worlds.last)))


def every(worlds: Worlds) -> list[int]:
    """All of them."""
    return list(worlds.places)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Condition:
    """A figure over worlds that has to lie beyond a bound, at some checkpoints."""

    what: str
    """The figure; `{place}` stands for the checkpoint's number, here and below."""
    of: Callable[[Worlds, int], Of]
    """The figure of a checkpoint."""
    above: float | None = None
    """The bound; the other one is None."""
    below: float | None = None
    yes: str
    no: str
    at: Places = last
    unit: str = "share"

    def parts(self, worlds: Worlds, level: float) -> list[Part]:
        """One a checkpoint."""
        return [self._part(worlds, place, level) for place in self.at(worlds)]

    def _part(self, worlds: Worlds, place: int, level: float) -> Part:
        what, yes, no = (text.format(place=place) for text in (self.what, self.yes, self.no))
        found = worlds.over(self.of(worlds, place))
        if found is None:
            return unknown(f"{what} was not measured")
        figure = _figure(what, found, level, self.unit)
        if self.below is not None:
            return below(figure, self.below, yes=yes, no=no)
        assert self.above is not None, "a condition has a bound"
        return above(figure, self.above, yes=yes, no=no)


class Rule:
    """Conditions that all have to be met.

    Args:
        says: what they say together.
        conditions: each with its figure and bound.
    """

    def __init__(self, says: str, *conditions: Condition) -> None:
        self.says, self.conditions = says, conditions

    def __call__(self, worlds: Worlds, level: float) -> list[Part]:
        """Their parts."""
        return [part for condition in self.conditions for part in condition.parts(worlds, level)]


def _figure(what: str, value: Figure, level: float, unit: str) -> engine.ClaimFigure:
    n = f"{len(value.by_seed)} worlds" if len(value.by_seed) > 1 else "one world"
    return engine.ClaimFigure(what=what, value=value.value, interval=value.interval_at(level), n=n, unit=unit)


NATS = "nats/token"


def _kept(worlds: Worlds, place: int) -> Of:
    """Exact memorisation beyond the base after restoring, less half of that before."""

    def of(record: StagesRecord) -> Figure | None:
        kept = change((RESTORED, place), (BASE, 0), LEARNT, "exact_memorisation")(record)
        learnt = change((TUNED, place), (BASE, 0), LEARNT, "exact_memorisation")(record)
        return None if kept is None or learnt is None else kept - learnt * 0.5

    return of


TUNED_ABOVE = Condition(
    what="knowledge, checkpoint {place} - base",
    of=lambda worlds, k: change((TUNED, k), (BASE, 0), FACTS, "acc"),
    above=LEAST,
    yes="checkpoint {place} is above the base",
    no="checkpoint {place} is not above the base",
    at=lambda worlds: list(worlds.places)[:3],
)


def one_tuned_above(worlds: Worlds, level: float) -> list[Part]:
    """Whether one of the first three checkpoints is, with intervals widened for three chances."""
    chances = max(1, len(TUNED_ABOVE.at(worlds)))
    parts = TUNED_ABOVE.parts(worlds, 1 - (1 - level) / chances if level > 0 else level)
    held = next((p for p in parts if p.verdict == HOLDS), None)
    if held is not None or not parts:
        return [held] if held is not None else [unknown("no checkpoint was measured")]
    told = all(p.verdict == FAILS for p in parts)
    return parts if told else [p for p in parts if p.verdict != FAILS]


def larger_earlier(worlds: Worlds, level: float) -> list[Part]:
    """Whether in the same worlds the transition comes at least one checkpoint earlier than with the smaller model."""
    by_world: dict[int, float] = {}
    for world, record in worlds.wide.items():
        smaller = worlds.narrow.get(world)
        mine, theirs = transition(record), None if smaller is None else transition(smaller)
        if mine is not None and theirs is not None:
            by_world[world] = float(mine - theirs)
    if not by_world:
        return [unknown("it needs models of two sizes in the same worlds: the recipes narrow-0, narrow-1 and narrow-2")]
    found = Figure.over_seeds(by_world)
    figure = _figure("checkpoint of the transition, larger model - smaller", found, level, "checkpoints")
    words = "the larger model turns earlier", "the larger model does not turn earlier"
    return [below(figure, -0.5, yes=words[0], no=words[1])]


# -------------------------------------------------------------------------------------------------------- preconditions


def _mean(of: Of) -> Callable[[Worlds], float | None]:
    def mean(worlds: Worlds) -> float | None:
        found = worlds.over(of)
        return None if found is None else found.value

    return mean


def _at(place: Places, of: Callable[[int], Of]) -> Callable[[Worlds], float | None]:
    return lambda worlds: _mean(of(place(worlds)[0]))(worlds)


def _above_guessing(model: Model, entry: str) -> Of:
    def of(record: StagesRecord) -> Figure | None:
        about = next((t for t in record.tasks if f"{t.suite}/{t.name}" == entry), None)
        value = _of(record, *model, entry, "acc")
        return None if about is None or value is None else Figure(value=value.value - (about.chance or 0.0))

    return of


def lost(name: str, place: Places) -> Requirement[Worlds]:
    """Fine-tuning lowers the score of a checkpoint."""
    return Requirement(
        name=f"the {name} checkpoint lost knowledge",
        of=_at(place, lambda k: change((BASE, 0), (TUNED, k), FACTS, "acc")),
        at_least=COSTS,
        figure="base - checkpoint, share of right answers",
        advice="fine-tune for longer, or at a higher rate",
    )


def back(name: str, place: Places) -> Requirement[Worlds]:
    """The pattern of a checkpoint is back after restoring."""
    return Requirement(
        name=f"the pattern of the {name} checkpoint is back",
        of=_at(place, lambda k: beside_both(k, PLAIN, "nats_per_token", lower=False)),
        at_most=TOLERANCE,
        figure="plain text, restored - the dearer of base and control",
        advice="restore for longer",
    )


FIRST_LOST, LAST_LOST, FIRST_BACK, LAST_BACK = (
    of(name, place) for of in (lost, back) for name, place in (("first", first), ("last", last))
)
KNOWS = Requirement(
    name="the base knows what is asked",
    of=_mean(_above_guessing((BASE, 0), FACTS)),
    at_least=KNOWN,
    figure="its accuracy above guessing",
    advice="train the base for longer",
)
CHEAP = Requirement(
    name="restoring alone costs the base little",
    of=_mean(change((BASE, 0), (CONTROL, 0), FACTS, "acc")),
    at_most=COSTS,
    figure="base - control, share of right answers",
    advice="restore at a lower rate, or on text that is nearer to the base's own",
)
ROOM = Requirement(
    name="there is room above the base",
    of=_mean(lambda record: _of(record, BASE, 0, FACTS, "acc")),
    at_most=0.95,
    figure="its accuracy",
    advice="ask harder questions",
)
LETTERS = Requirement(
    name="the first checkpoint answers lettered questions",
    of=_mean(_above_guessing((TUNED, 1), LETTERED)),
    at_least=COSTS,
    figure="its accuracy above guessing",
    advice="mix more lettered questions about known people into the fine-tuning",
)
SHIFTED = Requirement(
    name="fine-tuning shifts the text pattern",
    of=_at(last, lambda k: change((TUNED, k), (BASE, 0), PLAIN, "nats_per_token")),
    at_least=LEAST_NATS,
    figure="plain text, last checkpoint - base",
    advice="fine-tune for longer, or at a higher rate",
)


def _lacking(worlds: Worlds) -> str | None:
    records = [*worlds.wide.values(), *worlds.narrow.values()]
    failed = sum(m.state == "failed" for record in records for m in record.models)
    if failed:
        return f"{failed} {'model' if failed == 1 else 'models'} failed; the same command tries them again"
    return None if worlds.places and all(r.tasks for r in worlds.wide.values()) else "nothing was measured"


Check = Callable[[Worlds, float], list[Part]]
CLAIMS: tuple[tuple[str, str, str, Check, tuple[Requirement[Worlds], ...]], ...] = (
    (
        "1a",
        "The perplexity of plain text rises through fine-tuning.",
        "'a continuing upward trend' over ten epochs (figure 3b, section 4.1)",
        Rule(
            "Plain text costs the last checkpoint at least 0.05 nats more than the base, and more than the first one.",
            Condition(
                what="plain text, last checkpoint - base",
                of=lambda worlds, k: change((TUNED, k), (BASE, 0), PLAIN, "nats_per_token"),
                above=LEAST_NATS,
                yes="fine-tuning makes plain text dearer",
                no="fine-tuning does not make plain text dearer",
                unit=NATS,
            ),
            Condition(
                what="plain text, last checkpoint - first",
                of=lambda worlds, k: change((TUNED, k), (TUNED, 1), PLAIN, "nats_per_token"),
                above=0.0,
                yes="it goes on rising",
                no="it does not go on rising",
                unit=NATS,
            ),
        ),
        (),
    ),
    (
        "1b",
        "Restoring brings it back to the base's from every epoch.",
        "restored models 'have all returned to convergence with the base' (figures 3a, 3b)",
        Rule(
            "After restoring, plain text costs every checkpoint less than `TOLERANCE` nats more than the "
            "dearer of base and control.",
            Condition(
                what="plain text, restored checkpoint {place} - the dearer of base and control",
                of=lambda worlds, k: beside_both(k, PLAIN, "nats_per_token", lower=False),
                below=TOLERANCE,
                yes="the pattern comes back from every checkpoint",
                no="the pattern of checkpoint {place} does not come back",
                at=every,
                unit=NATS,
            ),
        ),
        (SHIFTED,),
    ),
    (
        "2a",
        "Early on forgetting is pseudo: restored, the model is at the base's score again.",
        "Llama 2 7B on Alpaca, before epoch 4; MMLU and ARC (figures 3c, 3d)",
        Rule(
            "The first checkpoint, restored, is not below the lower of base and control by 2 points or more.",
            Condition(
                what="knowledge, restored first checkpoint - the lower of base and control",
                of=lambda worlds, k: beside_both(k, FACTS, "acc", lower=True),
                above=-LEAST,
                yes="what the first epoch cost comes back",
                no="what the first epoch cost does not come back",
                at=first,
            ),
        ),
        (KNOWS, CHEAP, FIRST_LOST, FIRST_BACK),
    ),
    (
        "2b",
        "Late it is actual: restored, the model is below the base although the pattern is back.",
        "Llama 2 7B from epoch 4 on, 13B from epoch 2 on (figures 3c, 3d, 6c, 6d)",
        Rule(
            "The last checkpoint, restored, is below both base and control by 2 points or more.",
            Condition(
                what="knowledge, restored last checkpoint - the lower of base and control",
                of=lambda worlds, k: beside_both(k, FACTS, "acc", lower=True),
                below=-LEAST,
                yes="a loss is left after the last epoch",
                no="no loss is left after the last epoch",
            ),
        ),
        (KNOWS, CHEAP, LAST_LOST, LAST_BACK),
    ),
    (
        "2c",
        "Restoring raises the score at every stage.",
        "'a marked enhancement in performance after the restoring stage' (section 4.1)",
        Rule(
            "Restoring raises the score of the first, the middle and the last checkpoint by 2 points or more.",
            Condition(
                what="knowledge, checkpoint {place}, restored - before",
                of=lambda worlds, k: change((RESTORED, k), (TUNED, k), FACTS, "acc"),
                above=LEAST,
                yes="restoring raises the score",
                no="restoring does not raise the score of checkpoint {place}",
                at=three,
            ),
        ),
        (KNOWS, FIRST_LOST, LAST_LOST),
    ),
    (
        "2d",
        "Early on the restored model even exceeds the base.",
        "'once the fine-tuned LLMs are restored, their performances exceed' the base's (section 1, figures 3c, 3d)",
        Rule(
            "The first checkpoint, restored, is above the base by 2 points or more.",
            Condition(
                what="knowledge, restored first checkpoint - base",
                of=lambda worlds, k: change((RESTORED, k), (BASE, 0), FACTS, "acc"),
                above=LEAST,
                yes="the restored model exceeds the base",
                no="the restored model does not exceed the base",
                at=first,
            ),
        ),
        (KNOWS, CHEAP, FIRST_BACK, ROOM),
    ),
    (
        "3a",
        "The answer's format is learnt within a few steps and stays.",
        "probability of the options at 0.95 within a few steps (figure 4, section 5.1)",
        Rule(
            "From `FEW` of the steps on, the mean mass on the letters stays at 0.95 or more at every point "
            "that was measured.",
            Condition(
                what=f"least mass on the letters after {FEW:.0%} of the steps",
                of=lambda worlds, k: least_along(LETTERED, "mass", FEW),
                above=MASS,
                yes="the format is learnt within a few steps and stays",
                no="the format is not learnt within a few steps, or does not stay",
            ),
        ),
        (),
    ),
    (
        "3b",
        "The entropy at the answer position declines in the late stage.",
        "entropy fluctuates after the format is learnt, then declines continuously (figure 4)",
        Rule(
            "The entropy at the answer position is lower at the last checkpoint than at the middle one by "
            "0.05 nats or more.",
            Condition(
                what="entropy at the answer position, last checkpoint - middle",
                of=lambda worlds, k: change((TUNED, k), (TUNED, worlds.middle), LETTERED, "entropy"),
                below=-LEAST_NATS,
                yes="the entropy declines in the late stage",
                no="the entropy does not decline in the late stage",
                unit="nats",
            ),
        ),
        (),
    ),
    (
        "3c",
        "Entropy and accuracy fall together: over-confidence.",
        "'models are becoming overconfident, which may cause the actual forgetting' (section 5.1)",
        Rule(
            "From the first checkpoint to the last, the entropy falls by 0.05 nats or more, and accuracy on "
            "the same lettered questions by 2 points or more.",
            Condition(
                what="entropy at the answer position, last checkpoint - first",
                of=lambda worlds, k: change((TUNED, k), (TUNED, 1), LETTERED, "entropy"),
                below=-LEAST_NATS,
                yes="the entropy falls",
                no="the entropy does not fall",
                unit="nats",
            ),
            Condition(
                what="lettered questions, last checkpoint - first",
                of=lambda worlds, k: change((TUNED, k), (TUNED, 1), LETTERED, "acc"),
                below=-LEAST,
                yes="accuracy falls with it",
                no="accuracy does not fall with it",
            ),
        ),
        (LETTERS,),
    ),
    (
        "4a",
        "Exact memorisation of the fine-tuning data rises through the run.",
        "an ascending trend along ten epochs (figure 5)",
        Rule(
            "The last checkpoint has memorised more of the fine-tuning's outputs than the first by 2 points or more.",
            Condition(
                what="exact memorisation, last checkpoint - first",
                of=lambda worlds, k: change((TUNED, k), (TUNED, 1), LEARNT, "exact_memorisation"),
                above=LEAST,
                yes="memorisation rises through the run",
                no="memorisation does not rise through the run",
            ),
        ),
        (),
    ),
    (
        "4b",
        "What was memorised survives restoring.",
        "'these data remain even after restoring the original pattern' (finding 3, figure 5)",
        Rule(
            "Of what the last checkpoint has memorised beyond the base, more than half is there after restoring.",
            Condition(
                what="exact memorisation beyond the base after restoring - half of that before",
                of=_kept,
                above=0.0,
                yes="most of what was memorised stays",
                no="less than half of what was memorised stays",
            ),
        ),
        (SHIFTED, LAST_BACK),
    ),
    (
        "5",
        "A larger model turns to actual forgetting earlier.",
        "13B after 2 epochs, 7B after 4 (section 6, figure 6)",
        larger_earlier,
        (KNOWS, CHEAP, LAST_LOST, LAST_BACK),
    ),
    (
        "6",
        "Early in fine-tuning the tuned model itself is above the base.",
        "'an initial surge, surpassing the baseline, before subsequently diminishing' (section 4.2)",
        one_tuned_above,
        (KNOWS, ROOM),
    ),
)
STATEMENTS = [
    Statement(number=n, recipe=RECIPE, text=t, paper=p, check=rule, preconditions=looks, lacking=_lacking)
    for n, t, p, rule, looks in CLAIMS
]
