"""What "Pattern Shifting or Knowledge Losing" claims, held against stages studies: holds, does not
hold, or cannot tell.

The rules stand here and were written before any outcome of the studies was looked at:

- A study is one *world*: people, texts and a base of its own. A figure is the mean over worlds, and
  its interval (95 %) covers them; the questions of a world are its own, so that their noise is in
  the spread between worlds. With one world it covers the questions alone.
- *First*, *middle*, *last*: the checkpoint after the first epoch, after half of them, and after
  all. *Plain text*: the probing passages, nats a token. *Knowledge*: the first task of the study,
  in small worlds multiple choice about people whom the base knew. *Letters*: lettered questions,
  which have the answer position. *Memorised*: what has exact memorisation of the fine-tuning's
  data. Entries are the record's own, whatever they are called.
- Restored models are held against the base and against the control, the base after the same
  restoring: *back* is not below the lower of the two, *below* is below both. That is
      `holdfast.statistics.stages` over worlds.
- A change counts from `LEAST` on: 2 points, or 0.05 nats a token, with the whole interval. Plain
  text is *at the base's level* where it costs less than `TOLERANCE` nats more than the dearer of
  base and control.
- *Within a few steps*: within `FEW` of all steps. *Most of* what was memorised: more than half.
- Claim 5 holds the transition to actual forgetting of the models against that of smaller ones in
  the same worlds.

The first three worlds were judged by these rules and could not tell eleven of thirteen claims,
their intervals being too wide; worlds 3 to 5 were added then, under the same rules, before anything
of them was known. Intervals over six worlds are not widened for that first look.

What has to be so before a rule may speak: the base knows what is asked, fine-tuning costs it,
restoring alone does not, the pattern is back where knowledge is judged, and there is room above the
base where a gain is claimed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping

from holdfast.papers.claims.claim import Claim, Evidence, Statement, failed_models, judge_claims
from holdfast.papers.claims.requirements import Requirement
from holdfast.papers.claims.rules import FAILS, HOLDS, Check, Part, Rule, rule, widened
from holdfast.records.figure import Figure, NotMeasured
from holdfast.records.stages import BASE, CONTROL, PROBING, RESTORED, TUNED, StagesRecord

RECIPE = "stages"
"""All worlds together."""
WIDE, NARROW = "world-", "narrow-"
"""What the studies' names begin with: the models of the claims, and smaller ones for claim 5."""
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
    "A study is a world with people, texts and a base of its own; figures are means over worlds, "
    "with intervals over them. With one world they cover its questions alone.",
    "Restored models are held against the base and against the control, the base after the same "
    "restoring. Back: not below the lower of the two. Below: below both.",
    "A change of less than 2 points, or of 0.05 nats a token, counts as none.",
    "Three worlds were judged first and told little; three more were added then under the same "
    "rules. Intervals are not widened for the first look.",
)


@dataclasses.dataclass(frozen=True)
class Worlds:
    """The studies by world, and those of a smaller model."""

    wide: Mapping[int, StagesRecord]
    narrow: Mapping[int, StagesRecord] = dataclasses.field(default_factory=dict)

    @property
    def last(self) -> int:
        """The checkpoint after all epochs, counted from 1; 0 where there is none."""
        return min((len(labels(record)) for record in self.wide.values()), default=0)

    @property
    def middle(self) -> int:
        """After half of them."""
        return max(1, self.last // 2)


def check_claims(records: Mapping[str, StagesRecord | None]) -> list[Claim]:
    """Every claim of the paper, held against its studies.

    Args:
        records: by study (`world-0`, `narrow-0`, ...), finished or not; None: not run.
    """
    worlds: dict[str, dict[int, StagesRecord]] = {WIDE: {}, NARROW: {}}
    models = []
    for name, record in records.items():
        size = WIDE if name.startswith(WIDE) else NARROW
        if record is not None:
            worlds[size][int(name.removeprefix(size))] = record
            models += record.models
    wide, narrow = worlds[WIDE], worlds[NARROW]
    missing = list(records.values()).count(None)
    without = dict(_without(wide, narrow))
    begun = Worlds(wide, narrow) if wide else None
    evidence: Evidence[Worlds] = Evidence.of(
        begun, models, seeds=len(wide), noun="model", without=without
    )
    evidence = dataclasses.replace(evidence, waiting=evidence.waiting + missing)
    return judge_claims(STATEMENTS, {RECIPE: evidence})


def _without(
    wide: Mapping[int, StagesRecord], narrow: Mapping[int, StagesRecord]
) -> Iterator[tuple[str, Worlds]]:
    """The studies with one world left out, by name; nothing where there are not two others."""
    for world in wide if len(wide) > 2 else ():
        others, smaller = dict(wide), dict(narrow)
        del others[world]
        smaller.pop(world, None)
        yield f"world {world}", Worlds(others, smaller)


# ----------------------------------------------------------------------------------------- measures


Measure = Callable[[StagesRecord], tuple[str, str]]
"""Of a record, the entry ("suite/name") and the metric; raises `NotMeasured`."""
Model = tuple[str, int]
"""Role and checkpoint, 0 of base and control."""
BASE_MODEL: Model = (BASE, 0)
FIRST: Model = (TUNED, 1)


def labels(record: StagesRecord) -> list[str]:
    """Of the checkpoints that are diagnosed."""
    return record.checkpoints[record.arms[0]]


def plain(record: StagesRecord) -> tuple[str, str]:
    """Plain text."""
    return f"{PROBING}/{PROBING}", "nats_per_token"


def knowledge(record: StagesRecord) -> tuple[str, str]:
    """The first task."""
    if not record.tasks:
        raise NotMeasured("a task")
    task = record.tasks[0]
    return f"{task.suite}/{task.name}", task.metric


def entropy(record: StagesRecord) -> tuple[str, str]:
    """At the answer position of lettered questions."""
    return entry_with("entropy", record), "entropy"


def letters(record: StagesRecord) -> tuple[str, str]:
    """Lettered questions that are answered right."""
    return entry_with("entropy", record), "acc"


def memorised(record: StagesRecord) -> tuple[str, str]:
    """What fine-tuning's data is memorised of."""
    return entry_with("exact_memorisation", record), "exact_memorisation"


def entry_with(metric: str, record: StagesRecord) -> str:
    """The first entry that has a metric."""
    for model in record.models:
        for entry, figures in model.figures.items():
            if metric in figures:
                return entry
    raise NotMeasured(metric.replace("_", " "))


def figure_of(record: StagesRecord, model: Model, measure: Measure) -> Figure:
    """A figure of a model of a world."""
    (role, number), (entry, metric) = model, measure(record)
    measured = record.model(role, record.arms[0] if number else "", number)
    figure = None if measured is None else measured.figures.get(entry, {}).get(metric)
    if figure is None or not math.isfinite(figure.value):
        raise NotMeasured(
            f"{entry} ({metric}) of the {role} {f'checkpoint {number}' if number else 'model'}"
        )
    return figure


def above_guessing(record: StagesRecord, model: Model, measure: Measure) -> Figure:
    """What a model answers beyond chance."""
    for task in record.tasks:
        if f"{task.suite}/{task.name}" == measure(record)[0]:
            return Figure(value=figure_of(record, model, measure).value - (task.chance or 0.0))
    raise NotMeasured("chance")


def least_mass(record: StagesRecord) -> Figure:
    """The least mass on the letters from `FEW` of the fine-tuning's steps on, of what was measured
    on the way."""
    entry, points = entropy(record)[0], record.along.get(record.arms[0], [])
    last = max((point.step for point in points), default=0)
    figures = []
    for point in points:
        for evaluation in point.evaluations if last and point.step >= FEW * last else ():
            mass = evaluation.metrics.get("mass")
            if f"{evaluation.suite}/{evaluation.name}" == entry and mass is not None:
                figures.append(Figure(value=mass.value, over_samples=mass.interval))
    if not figures or not all(math.isfinite(figure.value) for figure in figures):
        raise NotMeasured("the mass on the letters along fine-tuning, as finite figures,")
    return min(figures, key=lambda figure: figure.value)


def transition(record: StagesRecord) -> int:
    """The checkpoint at which actual forgetting of the knowledge begins; one more than there are
    where it does not."""
    for begin in record.transitions:
        if (begin.arm, begin.task) == (record.arms[0], knowledge(record)[0]):
            return begin.place or len(labels(record)) + 1
    raise NotMeasured("the transition to actual forgetting")


# -------------------------------------------------------------------------------------------- cases


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """One checkpoint of every world. What is asked for and was not measured raises
    `NotMeasured`."""

    worlds: Worlds
    place: int
    """From 1."""
    where = ""
    unit = "share"

    def behind(self, figure: Figure) -> str:
        """The worlds."""
        return f"{len(figure.by_seed)} worlds" if len(figure.by_seed) > 1 else "one world"

    @property
    def tuned(self) -> Model:
        """Before restoring."""
        return TUNED, self.place

    @property
    def restored(self) -> Model:
        """After restoring."""
        return RESTORED, self.place

    def over(self, of: Callable[[StagesRecord], Figure]) -> Figure:
        """A figure over worlds: their spread is its noise, of one world that of the samples."""
        by_world, half = {}, 0.0
        for world, record in self.worlds.wide.items():
            figure = of(record)
            by_world[world] = figure.value
            if len(self.worlds.wide) == 1:
                half = figure.half_over_samples
        return Figure.over_seeds(by_world, half)

    def figure(self, model: Model, measure: Measure) -> Figure:
        """Of a model."""
        return self.over(lambda record: figure_of(record, model, measure))

    def change(self, after: Model, before: Model, measure: Measure) -> Figure:
        """Between two models."""
        return self.figure(after, measure) - self.figure(before, measure)

    def beside_both(self, measure: Measure, nearest: Callable[..., Figure]) -> Figure:
        """The restored model's figure minus the lower (`min`), or the higher (`max`), of base and
        control."""

        def beside(record: StagesRecord) -> Figure:
            others = (
                figure_of(record, BASE_MODEL, measure),
                figure_of(record, (CONTROL, 0), measure),
            )
            return figure_of(record, self.restored, measure) - nearest(
                others, key=lambda figure: figure.value
            )

        return self.over(beside)

    def earlier_than_smaller(self) -> Figure:
        """The checkpoint of the transition minus that of the smaller model, over the worlds that
        have both."""
        by_world = {}
        for world, record in self.worlds.wide.items():
            try:
                by_world[world] = float(transition(record) - transition(self.worlds.narrow[world]))
            except (KeyError, NotMeasured):
                continue
        if not by_world and self.worlds.narrow:
            raise NotMeasured("the transition to actual forgetting, of both models in one world,")
        if not by_world:
            raise NotMeasured(
                f"a smaller model in the same world (the recipes {NARROW}0, {NARROW}1 and "
                f"{NARROW}2)"
            )
        return Figure.over_seeds(by_world)


def first(worlds: Worlds) -> list[Checkpoint]:
    """The checkpoint after the first epoch."""
    return [Checkpoint(worlds, 1)]


def last(worlds: Worlds) -> list[Checkpoint]:
    """That after all of them."""
    return [Checkpoint(worlds, worlds.last)]


def three(worlds: Worlds) -> list[Checkpoint]:
    """The first, the middle and the last one."""
    numbers = dict.fromkeys((1, worlds.middle, worlds.last))
    return [Checkpoint(worlds, number) for number in numbers]


def every(worlds: Worlds) -> list[Checkpoint]:
    """All of them."""
    return [Checkpoint(worlds, number) for number in range(1, 1 + worlds.last)]


# -------------------------------------------------------------------------------------------- rules

NATS = "nats/token"
TUNED_ABOVE = Check(
    what="knowledge, checkpoint {case.place} - base",
    of=lambda at: at.change(at.tuned, BASE_MODEL, knowledge),
    above=LEAST,
    yes="checkpoint {case.place} is above the base",
    no="checkpoint {case.place} is not above the base",
)


def one_tuned_above(worlds: Worlds, level: float) -> list[Part]:
    """That which holds; else those that cannot be told."""
    cases = every(worlds)[:3]
    parts = [TUNED_ABOVE.part(at, widened(level, len(cases))) for at in cases]
    for condition in parts:
        if condition.verdict == HOLDS:
            return [condition]
    return [condition for condition in parts if condition.verdict != FAILS] or parts


# ------------------------------------------------------------------------------------ preconditions


def lost(name: str, cases: Callable[[Worlds], list[Checkpoint]]) -> Requirement:
    """Fine-tuning lowers the score of a checkpoint."""
    return Requirement(
        name=f"the {name} checkpoint lost knowledge",
        cases=cases,
        of=lambda at: at.change(BASE_MODEL, at.tuned, knowledge).value,
        at_least=COSTS,
        figure="base - checkpoint, share of right answers",
        advice="fine-tune for longer, or at a higher rate",
    )


def back(name: str, cases: Callable[[Worlds], list[Checkpoint]]) -> Requirement:
    """The pattern of a checkpoint is back after restoring."""
    return Requirement(
        name=f"the pattern of the {name} checkpoint is back",
        cases=cases,
        of=lambda at: at.beside_both(plain, max).value,
        at_most=TOLERANCE,
        figure="plain text, restored - the dearer of base and control",
        advice="restore for longer",
    )


FIRST_LOST, LAST_LOST = lost("first", first), lost("last", last)
FIRST_BACK, LAST_BACK = back("first", first), back("last", last)
KNOWS = Requirement(
    name="the base knows what is asked",
    cases=first,
    of=lambda at: at.over(lambda record: above_guessing(record, BASE_MODEL, knowledge)).value,
    at_least=KNOWN,
    figure="its accuracy above guessing",
    advice="train the base for longer",
)
CHEAP = Requirement(
    name="restoring alone costs the base little",
    cases=first,
    of=lambda at: at.change(BASE_MODEL, (CONTROL, 0), knowledge).value,
    at_most=COSTS,
    figure="base - control, share of right answers",
    advice="restore at a lower rate, or on text that is nearer to the base's own",
)
ROOM = Requirement(
    name="there is room above the base",
    cases=first,
    of=lambda at: at.figure(BASE_MODEL, knowledge).value,
    at_most=0.95,
    figure="its accuracy",
    advice="ask harder questions",
)
LETTERS = Requirement(
    name="the first checkpoint answers lettered questions",
    cases=first,
    of=lambda at: at.over(lambda record: above_guessing(record, FIRST, letters)).value,
    at_least=COSTS,
    figure="its accuracy above guessing",
    advice="mix more lettered questions about known people into the fine-tuning",
)
SHIFTED = Requirement(
    name="fine-tuning shifts the text pattern",
    cases=last,
    of=lambda at: at.change(at.tuned, BASE_MODEL, plain).value,
    at_least=LEAST_NATS,
    figure="plain text, last checkpoint - base",
    advice="fine-tune for longer, or at a higher rate",
)


def _lacking(worlds: Worlds) -> str | None:
    records = [*worlds.wide.values(), *worlds.narrow.values()]
    failed = failed_models(model for record in records for model in record.models)
    measured = worlds.last > 0 and all(record.tasks for record in worlds.wide.values())
    return failed or (None if measured else "nothing was measured")


def _claim(
    number: str, text: str, paper: str, rule: Rule[Worlds], *needs: Requirement
) -> Statement[Worlds]:
    return Statement(
        number=number,
        recipe=RECIPE,
        text=text,
        paper=paper,
        rule=rule,
        preconditions=needs,
        lacking=_lacking,
    )


STATEMENTS = (
    _claim(
        "1a",
        "The perplexity of plain text rises through fine-tuning.",
        "'a continuing upward trend' over ten epochs (figure 3b, section 4.1)",
        rule(
            "Plain text costs the last checkpoint at least 0.05 nats more than the base, and more "
            "than the first one.",
            last,
            Check(
                what="plain text, last checkpoint - base",
                of=lambda at: at.change(at.tuned, BASE_MODEL, plain),
                above=LEAST_NATS,
                yes="fine-tuning makes plain text dearer",
                no="fine-tuning does not make plain text dearer",
                unit=NATS,
            ),
            Check(
                what="plain text, last checkpoint - first",
                of=lambda at: at.change(at.tuned, FIRST, plain),
                above=0.0,
                yes="it goes on rising",
                no="it does not go on rising",
                unit=NATS,
            ),
        ),
    ),
    _claim(
        "1b",
        "Restoring brings it back to the base's from every epoch.",
        "restored models 'have all returned to convergence with the base' (figures 3a, 3b)",
        rule(
            f"After restoring, plain text costs every checkpoint less than {TOLERANCE:g} nats more "
            "than the dearer of base and control.",
            every,
            Check(
                what="plain text, restored checkpoint {case.place} - the dearer of base and control",
                of=lambda at: at.beside_both(plain, max),
                below=TOLERANCE,
                yes="the pattern comes back from every checkpoint",
                no="the pattern of checkpoint {case.place} does not come back",
                unit=NATS,
            ),
        ),
        SHIFTED,
    ),
    _claim(
        "2a",
        "Early on forgetting is pseudo: restored, the model is at the base's score again.",
        "Llama 2 7B on Alpaca, before epoch 4; MMLU and ARC (figures 3c, 3d)",
        rule(
            "The first checkpoint, restored, is not below the lower of base and control by 2 "
            "points or more.",
            first,
            Check(
                what="knowledge, restored first checkpoint - the lower of base and control",
                of=lambda at: at.beside_both(knowledge, min),
                above=-LEAST,
                yes="what the first epoch cost comes back",
                no="what the first epoch cost does not come back",
            ),
        ),
        KNOWS,
        CHEAP,
        FIRST_LOST,
        FIRST_BACK,
    ),
    _claim(
        "2b",
        "Late it is actual: restored, the model is below the base although the pattern is back.",
        "Llama 2 7B from epoch 4 on, 13B from epoch 2 on (figures 3c, 3d, 6c, 6d)",
        rule(
            "The last checkpoint, restored, is below both base and control by 2 points or more.",
            last,
            Check(
                what="knowledge, restored last checkpoint - the lower of base and control",
                of=lambda at: at.beside_both(knowledge, min),
                below=-LEAST,
                yes="a loss is left after the last epoch",
                no="no loss is left after the last epoch",
            ),
        ),
        KNOWS,
        CHEAP,
        LAST_LOST,
        LAST_BACK,
    ),
    _claim(
        "2c",
        "Restoring raises the score at every stage.",
        "'a marked enhancement in performance after the restoring stage' (section 4.1)",
        rule(
            "Restoring raises the score of the first, the middle and the last checkpoint by 2 "
            "points or more.",
            three,
            Check(
                what="knowledge, checkpoint {case.place}, restored - before",
                of=lambda at: at.change(at.restored, at.tuned, knowledge),
                above=LEAST,
                yes="restoring raises the score",
                no="restoring does not raise the score of checkpoint {case.place}",
            ),
        ),
        KNOWS,
        FIRST_LOST,
        LAST_LOST,
    ),
    _claim(
        "2d",
        "Early on the restored model even exceeds the base.",
        "'once the fine-tuned LLMs are restored, their performances exceed' the base's (section "
        "1, figures 3c, 3d)",
        rule(
            "The first checkpoint, restored, is above the base by 2 points or more.",
            first,
            Check(
                what="knowledge, restored first checkpoint - base",
                of=lambda at: at.change(at.restored, BASE_MODEL, knowledge),
                above=LEAST,
                yes="the restored model exceeds the base",
                no="the restored model does not exceed the base",
            ),
        ),
        KNOWS,
        CHEAP,
        FIRST_BACK,
        ROOM,
    ),
    _claim(
        "3a",
        "The answer's format is learnt within a few steps and stays.",
        "probability of the options at 0.95 within a few steps (figure 4, section 5.1)",
        rule(
            f"From {FEW:.0%} of the steps on, the mean mass on the letters stays at {MASS:g} or "
            "more at every point that was measured.",
            last,
            Check(
                what=f"least mass on the letters after {FEW:.0%} of the steps",
                of=lambda at: at.over(least_mass),
                above=MASS,
                yes="the format is learnt within a few steps and stays",
                no="the format is not learnt within a few steps, or does not stay",
            ),
        ),
    ),
    _claim(
        "3b",
        "The entropy at the answer position declines in the late stage.",
        "entropy fluctuates after the format is learnt, then declines continuously (figure 4)",
        rule(
            "The entropy at the answer position is lower at the last checkpoint than at the middle "
            "one by 0.05 nats or more.",
            last,
            Check(
                what="entropy at the answer position, last checkpoint - middle",
                of=lambda at: at.change(at.tuned, (TUNED, at.worlds.middle), entropy),
                below=-LEAST_NATS,
                yes="the entropy declines in the late stage",
                no="the entropy does not decline in the late stage",
                unit="nats",
            ),
        ),
    ),
    _claim(
        "3c",
        "Entropy and accuracy fall together: over-confidence.",
        "'models are becoming overconfident, which may cause the actual forgetting' (section 5.1)",
        rule(
            "From the first checkpoint to the last, the entropy falls by 0.05 nats or more, and "
            "accuracy on the same lettered questions by 2 points or more.",
            last,
            Check(
                what="entropy at the answer position, last checkpoint - first",
                of=lambda at: at.change(at.tuned, FIRST, entropy),
                below=-LEAST_NATS,
                yes="the entropy falls",
                no="the entropy does not fall",
                unit="nats",
            ),
            Check(
                what="lettered questions, last checkpoint - first",
                of=lambda at: at.change(at.tuned, FIRST, letters),
                below=-LEAST,
                yes="accuracy falls with it",
                no="accuracy does not fall with it",
            ),
        ),
        LETTERS,
    ),
    _claim(
        "4a",
        "Exact memorisation of the fine-tuning data rises through the run.",
        "an ascending trend along ten epochs (figure 5)",
        rule(
            "The last checkpoint has memorised more of the fine-tuning's outputs than the first "
            "by 2 points or more.",
            last,
            Check(
                what="exact memorisation, last checkpoint - first",
                of=lambda at: at.change(at.tuned, FIRST, memorised),
                above=LEAST,
                yes="memorisation rises through the run",
                no="memorisation does not rise through the run",
            ),
        ),
    ),
    _claim(
        "4b",
        "What was memorised survives restoring.",
        "'these data remain even after restoring the original pattern' (finding 3, figure 5)",
        rule(
            "Of what the last checkpoint has memorised beyond the base, more than half is there "
            "after restoring.",
            last,
            Check(
                what="exact memorisation beyond the base after restoring - half of that before",
                of=lambda at: (
                    at.change(at.restored, BASE_MODEL, memorised)
                    - at.change(at.tuned, BASE_MODEL, memorised) * 0.5
                ),
                above=0.0,
                yes="most of what was memorised stays",
                no="less than half of what was memorised stays",
            ),
        ),
        SHIFTED,
        LAST_BACK,
    ),
    _claim(
        "5",
        "A larger model turns to actual forgetting earlier.",
        "13B after 2 epochs, 7B after 4 (section 6, figure 6)",
        rule(
            "In the same worlds the transition to actual forgetting comes at least one checkpoint "
            "earlier than with the smaller model.",
            first,
            Check(
                what="checkpoint of the transition, larger model - smaller",
                of=Checkpoint.earlier_than_smaller,
                below=-0.5,
                yes="the larger model turns earlier",
                no="the larger model does not turn earlier",
                unit="checkpoints",
            ),
        ),
        KNOWS,
        CHEAP,
        LAST_LOST,
        LAST_BACK,
    ),
    _claim(
        "6",
        "Early in fine-tuning the tuned model itself is above the base.",
        "'an initial surge, surpassing the baseline, before subsequently diminishing' (section "
        "4.2)",
        Rule(
            "One of the first three checkpoints is above the base by 2 points or more, with "
            "intervals widened for three chances.",
            one_tuned_above,
        ),
        KNOWS,
        ROOM,
    ),
)
