"""What "Soup to Go" claims, held against a sequence study: holds, does not hold, or cannot tell.

The rules stand here and were written before any outcome of the study was looked at:

- *Old* is each task before the last of an order, *new* the last one. A claim has to hold for every
  order and every old task of the study.
- *Learnt*: what training a task alone gains on it over the base. *Forgotten*: how much better the
  old task's score is with that model than after sequential fine-tuning. Both are signed so that
  more is better, mean over seeds, with intervals over seeds and samples
  (`holdfast.statistics.gains`); arms are differences to sequential fine-tuning, paired by seed and
  sample.
- *Rises*, *better*: by at least `BETTER` of what is forgotten, with the whole interval. *As good*,
  *matches*, *drops to the base's level*: not off by more than `MARGIN` (20 %) of what is forgotten,
  or learnt. *Little*: less than `LITTLE` of what is learnt.
- Of curves over a parameter (figure 1) the best mean of old and new task is held against the
  other's: which arm of a method is its best is chosen for each seed by the others.
- An arm *beats* another where it is better on the old task and as good on the new one. A method
  beats another where for every arm of the other one of its own does. That some arm does a thing is
  judged on all of them, with intervals widened to 1 - (1 - level) / arms (Bonferroni).

What has to be so before a rule may speak: each task is learnt, and sequential fine-tuning forgets
the old one.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.papers.claims.claim import Claim, Evidence, Statement, failed_models, judge_records
from holdfast.papers.claims.requirements import Requirement
from holdfast.papers.claims.rules import MARGIN, Check, Rule, rising, rule, some
from holdfast.records.figure import Figure, NotMeasured
from holdfast.records.sequence import MERGE, SEQUENTIAL, SINGLE, ArmResult, SequenceRecord

RECIPE, DIGITS = "tasks", "digits"
"""The studies: language tasks, and figure 1's small networks."""
BETTER = 0.1
"""Of what is forgotten: the least by which an arm is better."""
LITTLE = 0.25
LEAST_SHARE, LEAST_NATS = 0.02, 0.05
"""What a task has to be learnt by, and forgotten by: of shares and of nats a token."""
CORRELATED = -0.3
READING = (
    "Old: a task before the last one; new: the last one. Learnt: the gain of training a task alone "
    "over the base. Forgotten: what sequential fine-tuning loses of that.",
    "Arms are held against sequential fine-tuning seed by seed and sample by sample; intervals are "
    "at 95 % and cover both.",
    "Better: by at least a tenth of what is forgotten. As good: not off by more than a fifth of "
    "what is forgotten, or learnt. One arm beats another where it is better on the old task and as "
    "good on the new one.",
)
NAMES = {
    SEQUENTIAL: "sequential fine-tuning",
    SINGLE: "the single task",
    "replay": "rehearsal",
    "sfa": "SFA",
    "l2": "L2",
    "ewc": "EWC",
    "ties": "TIES",
    "task_arithmetic": "task arithmetic",
}
"""Of kinds of arms, for people."""


def check_claims(records: Mapping[str, SequenceRecord | None]) -> list[Claim]:
    """Every claim of the paper, held against its studies.

    Args:
        records: by study (`RECIPE`, `DIGITS`), finished or not; None: not run. Claims about others
            are left out.
    """
    return judge_records(STATEMENTS, records, _evidence)


def _evidence(record: SequenceRecord) -> Evidence[SequenceRecord]:
    return Evidence.of(
        record, record.models, seeds=len(record.seeds), noun="model", without=dict(_without(record))
    )


def _without(record: SequenceRecord) -> Iterator[tuple[str, SequenceRecord]]:
    """The record with one seed left out, by name; nothing where there are not two others."""
    for seed in record.seeds if len(record.seeds) > 2 else ():

        def rest(figure: Figure, seed: int = seed) -> Figure:
            by_seed = {s: value for s, value in figure.by_seed.items() if s != seed}
            return dataclasses.replace(
                figure, by_seed=by_seed, value=statistics.fmean(by_seed.values() or [math.nan])
            )

        arms = []
        for arm in record.arms:
            scores = {task: rest(figure) for task, figure in arm.scores.items()}
            against = {task: rest(figure) for task, figure in arm.against.items()}
            distance = arm.distance and rest(arm.distance)
            arms.append(dataclasses.replace(arm, scores=scores, against=against, distance=distance))
        yield (
            f"seed {seed}",
            dataclasses.replace(record, seeds=[s for s in record.seeds if s != seed], arms=arms),
        )


# -------------------------------------------------------------------------------------------- cases


@dataclasses.dataclass(frozen=True)
class Pair:
    """An order with one of its old tasks. What is asked for and was not measured raises
    `NotMeasured`."""

    record: SequenceRecord
    order: list[str]
    old: str

    @property
    def new(self) -> str:
        """The last task."""
        return self.order[-1]

    @property
    def path(self) -> str:
        """The order for people."""
        return " → ".join(self.order)

    @property
    def where(self) -> str:
        """For people, with the old task where there are several."""
        return f"{self.path}, {self.old}" if len(self.order) > 2 else self.path

    @property
    def unit(self) -> str:
        """Of the old task."""
        return self.record.tasks[self.old].unit

    @property
    def unit_of_new(self) -> str:
        """Of the last task."""
        return self.record.tasks[self.new].unit

    def behind(self, figure: Figure) -> str:
        """The seeds."""
        return f"{len(self.record.seeds)} seeds" if len(self.record.seeds) > 1 else "one seed"

    def arms(self, kind: str) -> list[ArmResult]:
        """Those of a kind, or of a merge method."""
        arms = []
        for arm in self.record.of(self.order):
            if arm.scores and (
                arm.kind == kind or (arm.kind == MERGE and arm.merge.get("method") == kind)
            ):
                arms.append(arm)
        if not arms:
            raise NotMeasured(NAMES[kind])
        return arms

    def alone(self, kind: str) -> list[ArmResult]:
        """Arms of a method by itself, or of a merge method."""
        arms = []
        for arm in self.arms(kind):
            if arm.kind == MERGE or len(arm.retention) == 1:
                arms.append(arm)
        if not arms:
            raise NotMeasured(f"{NAMES[kind]} by itself")
        return arms

    def averaging(self, **fixed: float) -> list[ArmResult]:
        """SFA by itself, the rarest averages first, at some p or beta."""
        arms = []
        for arm in self.arms("sfa"):
            parameters = averaging_of(arm)
            if set(parameters) == {"p", "beta"} and parameters.items() >= fixed.items():
                arms.append(arm)
        if not arms:
            lacking = ["SFA"]
            for name, value in fixed.items():
                lacking.append(f"at {name} = {value:g}")
            raise NotMeasured(" ".join(lacking))
        return sorted(arms, key=lambda arm: (-averaging_of(arm)["p"], averaging_of(arm)["beta"]))

    def gained(self, task: str, kind: str = SINGLE) -> Figure:
        """Over the base, more is better; by training the task alone."""
        about, score = self.record.tasks[task], self.arms(kind)[0].scores.get(task)
        if score is None or not score.by_seed:
            raise NotMeasured(f"{NAMES[kind]} on {task}")
        sign = 1.0 if about.higher_is_better else -1.0
        gains = {seed: sign * (value - about.before) for seed, value in score.by_seed.items()}
        return Figure.over_seeds(gains, score.samples_half)

    def against(self, arm: ArmResult, task: str) -> Figure:
        """Over sequential fine-tuning."""
        if arm.kind == SEQUENTIAL and arm.arm == self.arms(SEQUENTIAL)[0].arm:
            figure = arm.scores.get(task)
            figure = figure * 0.0 if figure is not None and figure.by_seed else None
        else:
            figure = arm.against.get(task)
        if figure is None:
            raise NotMeasured(f"{arm.arm} on {task}")
        return figure

    def mean(self, arm: ArmResult) -> Figure:
        """Of both tasks, over sequential fine-tuning."""
        return (self.against(arm, self.old) + self.against(arm, self.new)) * 0.5

    @property
    def forgotten(self) -> Figure:
        """Of the old task by sequential fine-tuning."""
        return self.against(self.arms(SINGLE)[0], self.old)


def averaging_of(arm: ArmResult) -> dict[str, Any]:
    """Parameters of SFA."""
    return {"p": 0.25, "beta": 0.5, **(arm.retention[0]["sfa"] or {})}


def pairs(record: SequenceRecord) -> list[Pair]:
    """Every order with each of its old tasks."""
    cases = []
    for order in record.orders:
        cases += [Pair(record, order, old) for old in order[:-1]]
    return cases


# -------------------------------------------------------------------------------------------- rules


KEEPS_MORE = Check(
    what="{case.old}: {arm.arm} - {other.arm}, less the least that counts",
    of=lambda pair, arm, other: (
        pair.against(arm, pair.old) - pair.against(other, pair.old) - pair.forgotten * BETTER
    ),
    above=0.0,
    yes="{arm.arm} keeps more of {case.old} than {other.arm}",
    no="{arm.arm} keeps no more than {other.arm}",
)


def not_worse(pair: Pair, arm: ArmResult, other: ArmResult, task: str, scale: Figure) -> Figure:
    """Above 0 where an arm is not worse than another by more than `MARGIN` of a scale."""
    return pair.against(arm, task) - pair.against(other, task) + scale * MARGIN


AS_GOOD_ON_OLD = Check(
    what="{case.old}: {arm.arm} - {other.arm}, plus the margin",
    of=lambda pair, arm, other: not_worse(pair, arm, other, pair.old, pair.forgotten),
    above=0.0,
    yes="{arm.arm} is as good as {other.arm} on {case.old}",
    no="{arm.arm} is worse than {other.arm} on {case.old}",
)
AS_GOOD_ON_NEW = Check(
    what="{case.new}: {arm.arm} - {other.arm}, plus the margin",
    of=lambda pair, arm, other: not_worse(pair, arm, other, pair.new, pair.gained(pair.new)),
    above=0.0,
    yes="{arm.arm} is as good as {other.arm} on {case.new}",
    no="{arm.arm} is worse than {other.arm} on {case.new}",
    unit=lambda pair: pair.unit_of_new,
)


def beats(mine: str, theirs: str) -> Rule[SequenceRecord]:
    """One method beats another."""
    says = (
        f"For every arm of {NAMES[theirs]} one of {NAMES[mine]} is better on the old task by a "
        "tenth of what is forgotten, and as good on the new one."
    )

    def options(pair: Pair) -> list[tuple[ArmResult, Sequence[ArmResult]]]:
        return [(other, pair.alone(mine)) for other in pair.alone(theirs)]

    return some(says, pairs, options, KEEPS_MORE, AS_GOOD_ON_NEW)


def best(pair: Pair, kind: str) -> Figure:
    """The mean of both tasks, of each seed the arm that is best with the other seeds."""
    means = [pair.mean(arm) for arm in pair.alone(kind)]
    seeds = sorted(set.intersection(*(set(mean.by_seed) for mean in means)))
    if len(seeds) < 2:
        raise NotMeasured(f"{NAMES[kind]} with two seeds")
    by_seed = {}
    for seed in seeds:
        others = [s for s in seeds if s != seed]
        chosen = max(means, key=lambda mean: sum(mean.by_seed[s] for s in others))
        by_seed[seed] = chosen.by_seed[seed]
    return Figure.over_seeds(by_seed, max(mean.samples_half for mean in means))


def best_beats(mine: str, theirs: str) -> Rule[SequenceRecord]:
    """One method's best arm is above another's."""

    def rest(pair: Pair) -> Figure:
        return best(pair, mine) - best(pair, theirs) - pair.forgotten * (BETTER / 2)

    check = Check(
        what=f"mean of both: {mine} - {theirs}, less the least that counts",
        of=rest,
        above=0.0,
        yes=f"{mine} at its best is above {theirs}",
        no=f"{mine} at its best is not above {theirs}",
    )
    says = (
        f"The mean of old and new task of {NAMES[mine]}'s best arm is above that of "
        f"{NAMES[theirs]}'s by at least a tenth of half of what is forgotten; the best arms are "
        "chosen for each seed by the others."
    )
    return rule(says, pairs, check)


def once_and_often(pair: Pair) -> list[tuple[ArmResult, Sequence[ArmResult]]]:
    """By beta: the average once at the end, and those on the way."""
    if pair.unit != pair.unit_of_new:
        raise NotMeasured("the mean of tasks in one unit")
    options: list[tuple[ArmResult, Sequence[ArmResult]]] = []
    for once in pair.averaging(p=1.0):
        often = []
        for arm in pair.averaging(beta=averaging_of(once)["beta"]):
            if averaging_of(arm)["p"] < 1:
                often.append(arm)
        if often:
            options.append((once, often))
    if not options:
        raise NotMeasured("SFA at p = 1 beside p < 1 at one beta")
    return options


def correlation(pair: Pair) -> Figure:
    """Of the distance to the model before with the old task's score, over sequential fine-tuning
    and SFA's arms."""
    points = []
    for arm in (*pair.arms(SEQUENTIAL), *pair.averaging()):
        if arm.distance is not None and (arm.against or arm == pair.arms(SEQUENTIAL)[0]):
            points.append((arm.distance.by_seed, pair.against(arm, pair.old).by_seed))
    by_seed = {}
    for seed in pair.record.seeds:
        distances, scores = [], []
        for distance, score in points:
            if seed in distance and seed in score:
                distances.append(distance[seed])
                scores.append(score[seed])
        if len(scores) >= 4 and len(set(distances)) > 1 and len(set(scores)) > 1:
            by_seed[seed] = statistics.correlation(distances, scores)
    if not by_seed:
        raise NotMeasured("the distance of four arms")
    return Figure.over_seeds(by_seed)


def along_p(pair: Pair) -> list[tuple[str, Figure]]:
    """The old task's score at beta 0.5, the rarest averages first."""
    points = []
    for arm in pair.averaging(beta=0.5):
        points.append((f"p {averaging_of(arm)['p']:g}", pair.against(arm, pair.old)))
    return points


def little_lost(pair: Pair) -> Figure:
    """Above 0 where SFA at p = 0.25 loses less than `LITTLE` of the new task."""
    return (
        pair.against(pair.averaging(p=0.25, beta=0.5)[0], pair.new) + pair.gained(pair.new) * LITTLE
    )


AT_THE_BASE = Check(
    what=f"{{case.old}} left, less {MARGIN:g} x learnt",
    of=lambda pair: pair.gained(pair.old, SEQUENTIAL) - pair.gained(pair.old) * MARGIN,
    below=0.0,
    yes="{case.old} is at the base's level",
    no="{case.old} is above the base's level",
)
TO_THE_BASE = rule(
    "After sequential fine-tuning the old task's gain over the base is less than a fifth of what "
    "was learnt.",
    pairs,
    AT_THE_BASE,
)
RISES = rising(
    "Along falling p, at beta 0.5, the old task's score rises by at least a tenth of what is "
    "forgotten, and no way back is larger than a fifth of it.",
    pairs,
    along_p,
    what="score of {case.old}",
    points=3,
    least=lambda pair: BETTER * pair.forgotten.value,
    back=lambda pair: MARGIN * pair.forgotten.value,
)
LITTLE_LOST = rule(
    "At p = 0.25 and beta 0.5 the new task's score is below sequential fine-tuning's by less than "
    "a quarter of what is learnt of it.",
    pairs,
    Check(
        what=f"{{case.new}} beside sequential, plus {LITTLE:g} x learnt",
        of=little_lost,
        above=0.0,
        yes="little of {case.new} is lost",
        no="more than a quarter of {case.new} is lost",
        unit=lambda pair: pair.unit_of_new,
    ),
)
MATCHES = some(
    "Some SFA arm is as good as rehearsal on the old task and on the new one.",
    pairs,
    lambda pair: [(pair.arms("replay")[0], pair.averaging())],
    AS_GOOD_ON_OLD,
    AS_GOOD_ON_NEW,
)
AS_GOOD_ON_BOTH = Check(
    what="mean of both: {arm.arm} - {other.arm}, plus the margin",
    of=lambda pair, arm, other: pair.mean(arm) - pair.mean(other) + pair.forgotten * (MARGIN / 2),
    above=0.0,
    yes="{arm.arm} is as good as {other.arm}",
    no="{arm.arm} is worse than {other.arm}",
)
OFTEN = some(
    "At every beta that has both, some p < 1 is as good as p = 1, on the mean of old and new task: "
    "not worse by more than a fifth of half of what is forgotten.",
    pairs,
    once_and_often,
    AS_GOOD_ON_BOTH,
)
NEARER_KEEPS_MORE = rule(
    "Over sequential fine-tuning and SFA's arms, the correlation of the distance to the model "
    "before with the old task's score lies below -0.3 with its whole interval over the seeds.",
    pairs,
    Check(
        what="correlation of distance and {case.old}",
        of=correlation,
        below=CORRELATED,
        yes="what moves less keeps more",
        no="they are not negatively correlated",
        unit="correlation",
    ),
)


# ------------------------------------------------------------------------------------ preconditions


def lower_end(figure: Figure) -> float:
    """The end of the interval that is nearer to 0; the value itself where there is none."""
    if not math.isfinite(figure.value):
        raise NotMeasured("a finite figure")
    return figure.value if figure.interval is None else figure.interval[0]


def least(pair: Pair) -> float:
    """What counts of the old task, in its unit."""
    return LEAST_NATS if "nat" in pair.unit else LEAST_SHARE


def every_task(record: SequenceRecord) -> list[Pair]:
    """Every order with each of its tasks, the last one too; none before anything was measured."""
    cases = []
    for order in record.orders if record.tasks else ():
        cases += [Pair(record, order, task) for task in order]
    return cases


LEARNS = Requirement(
    name="{case.old} is learnt ({case.path})",
    cases=every_task,
    of=lambda pair: lower_end(pair.gained(pair.old)),
    at_least=least,
    figure="gain of training {case.old} alone over the base (lower end of its interval)",
    advice="train it longer, or at a higher rate; the arm 'single' has to be there",
)
FORGETS = Requirement(
    name="{case.old} is forgotten ({case.where})",
    cases=lambda record: pairs(record) if record.tasks else [],
    of=lambda pair: lower_end(pair.forgotten),
    at_least=least,
    figure="what sequential fine-tuning loses of it (lower end of its interval)",
    advice="train the later task longer, or choose tasks that are less alike",
)


def _lacking(record: SequenceRecord) -> str | None:
    return failed_models(record.models) or (None if record.tasks else "nothing was measured")


def _claim(
    number: str, text: str, paper: str, rule: Rule[SequenceRecord], recipe: str = RECIPE
) -> Statement[SequenceRecord]:
    needs = (LEARNS, FORGETS)
    return Statement(
        number=number,
        recipe=recipe,
        text=text,
        paper=paper,
        rule=rule,
        preconditions=needs,
        lacking=_lacking,
    )


STATEMENTS = (
    _claim(
        "1",
        "Sequential fine-tuning drops the old task to the base's level.",
        "GSM8K 0.38 to 0 (Pythia) and 0.42 to 0 (Llama 2) after law (figures 2, 3)",
        TO_THE_BASE,
    ),
    _claim(
        "2a",
        "SFA keeps more of the old task as p falls.",
        "GSM8K 0.048 / 0.13 / 0.31 at p = 1 / 0.5 / 0.25 (Pythia, Math-Law)",
        RISES,
    ),
    _claim(
        "2b",
        "It costs little of the new task.",
        "CaseHOLD 0.76 sequential, 0.59 at p = 0.25 (Pythia); Terms of Service 0.86 to 0.13 (Llama "
        "2), against 'little loss on the new task' in the text",
        LITTLE_LOST,
    ),
    _claim(
        "3a",
        "SFA at some p matches rehearsal without old data.",
        "(CaseHOLD, GSM8K) 0.48, 0.48 at p = 0.17 against 0.46, 0.49 (Llama 2); on Math-Law-Code "
        "it loses to rehearsal",
        MATCHES,
    ),
    _claim(
        "3b",
        "SFA beats task arithmetic.",
        "(CaseHOLD, GSM8K) 0.59, 0.31 at p = 0.25 against 0.68, 0 (Pythia)",
        beats("sfa", "task_arithmetic"),
    ),
    _claim(
        "3c",
        "SFA beats TIES merging.",
        "0.53, 0.46 at p = 0.25 against 0.37, 0.014 (Llama 2)",
        beats("sfa", "ties"),
    ),
    _claim(
        "3d",
        "L2 beats EWC (ours for language models: the paper shows it on split MNIST).",
        "curves of figure 1, small networks",
        beats("l2", "ewc"),
    ),
    _claim(
        "3e",
        "SFA beats L2 (ours for language models).",
        "curves of figure 1, small networks",
        beats("sfa", "l2"),
    ),
    _claim(
        "3f",
        "SFA beats EWC (ours for language models).",
        "curves of figure 1, small networks",
        beats("sfa", "ewc"),
    ),
    _claim(
        "4",
        "Averaging on the way (p < 1) is at least as good as once at the end, at every beta.",
        "curves over beta for p = 1 and p < 1 (section 6.2 and figure 1)",
        OFTEN,
    ),
    _claim(
        "5",
        "The nearer the weights stay to the model before, the more of the old task is kept.",
        "distances 90.99 / 45.50 / 35.38 / 24.16 with GSM8K 0 / 0.048 / 0.13 / 0.31 (figure 5, "
        "Pythia)",
        NEARER_KEEPS_MORE,
    ),
    _claim(
        "1s",
        "On a small network: sequential training drops the old task to the base's level.",
        "split MNIST, figure 1",
        TO_THE_BASE,
        DIGITS,
    ),
    _claim(
        "6a",
        "On a small network L2 has the better trade-off than EWC.",
        "split MNIST, figure 1",
        best_beats("l2", "ewc"),
        DIGITS,
    ),
    _claim(
        "6b",
        "On a small network SFA has a better one than L2.",
        "split MNIST, figure 1",
        best_beats("sfa", "l2"),
        DIGITS,
    ),
    _claim(
        "6c",
        "On a small network SFA has a better one than EWC.",
        "split MNIST, figure 1",
        best_beats("sfa", "ewc"),
        DIGITS,
    ),
    _claim(
        "6d",
        "On a small network averaging on the way (p < 1) is at least as good as once at the end, "
        "at every beta.",
        "split MNIST, figure 1: curves over beta and over the frequency",
        OFTEN,
        DIGITS,
    ),
)
