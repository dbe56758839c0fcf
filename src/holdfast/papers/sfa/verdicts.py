"""The rules by which the claims of "Soup to Go" hold, do not hold, or cannot be told.

They were written before any outcome under them was looked at, from the sentences of the paper that
stand with each:

- A claim has to hold for every order of the study and every old task of it. A task's score is its
  first entry, as in the paper's figures (CaseHOLD for Law); `LITTLE_LOST` looks at the others, too.
- *Rises*, *better*: by at least `BETTER` of what is forgotten, with the whole interval. *As good*,
  *matches*, *at the base's level*: not off by more than `MARGIN` (20 %) of what is forgotten, or
  learnt. *Little*: less than `LITTLE` of what is learnt. *Most*, *drops*: more than half.
- An arm *beats* another where it is better on the old task and as good on the new one. A method
  beats another where for every arm of the other one of its own does.
- Trade-offs (`cases.Pair.trade_off`) weigh all tasks alike. Of curves over a parameter (figure 1)
  the best trade-off is held against the other's: which arm of a method is its best is chosen for
  each seed by the others.
- That some arm does a thing is judged on all of them, with intervals widened to
  1 - (1 - level) / arms (Bonferroni).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.papers.claims.rules import MARGIN, Check, Rule, rising, rule, some
from holdfast.papers.sfa.cases import (
    LEAST_NATS,
    NAMES,
    Curve,
    Pair,
    averaging_of,
    best_of_other_seeds,
    correlation,
    curves,
    new_entries,
    orders,
    pairs,
)
from holdfast.records.figure import Figure, NotMeasured
from holdfast.records.sequence import SEQUENTIAL, ArmResult, SequenceRecord

BETTER = 0.1
"""Of what is forgotten: the least by which an arm is better."""
LITTLE = 0.25
HALF = 0.5
CORRELATED = -0.3
BETA = 0.5
"""Weight on the old model at which p is varied."""

Options = list[tuple[ArmResult, Sequence[ArmResult]]]
"""Each rival with the arms that may do as well."""

# ------------------------------------------------------------------------------ one arm and another


KEEPS_MORE = Check(
    what="{case.old}: {arm.arm} - {other.arm}, minus the smallest difference that counts",
    of=lambda pair, arm, other: (
        pair.against(arm, pair.old) - pair.against(other, pair.old) - pair.forgotten * BETTER
    ),
    above=0.0,
    yes="{arm.arm} keeps more of {case.old} than {other.arm}",
    no="{arm.arm} does not keep more of {case.old} than {other.arm}",
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
AS_GOOD_A_TRADE_OFF = Check(
    what="trade-off: {arm.arm} - {other.arm}, plus the margin",
    of=lambda pair, arm, other: (
        pair.trade_off(arm) - pair.trade_off(other) + pair.forgotten_share * MARGIN
    ),
    above=0.0,
    yes="{arm.arm} is as good as {other.arm}",
    no="{arm.arm} is worse than {other.arm}",
    unit="share of what is learnt",
)
A_BETTER_TRADE_OFF = Check(
    what="trade-off: {arm.arm} - {other.arm}, minus the smallest difference that counts",
    of=lambda pair, arm, other: (
        pair.trade_off(arm) - pair.trade_off(other) - pair.forgotten_share * BETTER
    ),
    above=0.0,
    yes="{arm.arm} is better than {other.arm}",
    no="{arm.arm} is not better than {other.arm}",
    unit="share of what is learnt",
)


def beats(mine: str, theirs: str) -> Rule[SequenceRecord]:
    """One method beats another."""
    says = (
        f"For every arm of {NAMES[theirs]}, at least one arm of {NAMES[mine]} is better on the old "
        "task and as good on the new task. An arm is better if its lead is at least a tenth of "
        "what sequential fine-tuning forgets."
    )

    def options(pair: Pair) -> Options:
        return [(other, pair.alone(mine)) for other in pair.alone(theirs)]

    return some(says, pairs, options, KEEPS_MORE, AS_GOOD_ON_NEW)


def best_beats(mine: str, theirs: str) -> Rule[SequenceRecord]:
    """One method's best arm is above another's."""

    def rest(pair: Pair) -> Figure:
        difference = best_of_other_seeds(pair, mine) - best_of_other_seeds(pair, theirs)
        return difference - pair.forgotten_share * BETTER

    check = Check(
        what=f"trade-off: {NAMES[mine]} - {NAMES[theirs]}, minus the smallest difference that "
        "counts",
        of=rest,
        above=0.0,
        yes=f"the best arm of {NAMES[mine]} beats the best arm of {NAMES[theirs]}",
        no=f"the best arm of {NAMES[mine]} does not beat the best arm of {NAMES[theirs]}",
        unit="share of what is learnt",
    )
    says = (
        f"The best arm of {NAMES[mine]} has a better trade-off than the best arm of "
        f"{NAMES[theirs]}. The lead is at least a tenth of what forgetting costs sequential "
        "fine-tuning in the trade-off. The trade-off is the mean of the scores on the old and the "
        "new task, each as a share of the gain from training that task alone. The best arm for a "
        "seed is the one that is best on the other seeds."
    )
    return rule(says, pairs, check)


# ------------------------------------------------------------- sequential fine-tuning, SFA by itself


TO_THE_BASE = rule(
    "After sequential fine-tuning, the old task's gain over the base is less than a fifth of the "
    "gain from training that task alone.",
    pairs,
    Check(
        what=f"gain left on {{case.old}} - {MARGIN:g} x gain from training it alone",
        of=lambda pair: pair.gained(pair.old, SEQUENTIAL) - pair.gained(pair.old) * MARGIN,
        below=0.0,
        yes="the score on {case.old} is at the base's level",
        no="the score on {case.old} is above the base's level",
    ),
)
DROPS = rule(
    "After sequential fine-tuning, less than half of the gain from training the old task alone is "
    "left.",
    pairs,
    Check(
        what=f"gain left on {{case.old}} - {HALF:g} x gain from training it alone",
        of=lambda pair: pair.gained(pair.old, SEQUENTIAL) - pair.gained(pair.old) * HALF,
        below=0.0,
        yes="sequential fine-tuning loses more than half of the gain on {case.old}",
        no="sequential fine-tuning keeps half or more of the gain on {case.old}",
    ),
)


def along_p(pair: Pair) -> list[tuple[str, Figure]]:
    """The old task's score at `BETA`, the rarest averages first."""
    points = []
    for arm in pair.averaging(beta=BETA):
        points.append((f"p {averaging_of(arm)['p']:g}", pair.against(arm, pair.old)))
    return points


RISES = rising(
    "From the largest to the smallest p at beta 0.5, SFA's score on the old task rises by at least "
    "a tenth of what sequential fine-tuning forgets. It need not rise at every step, but from any "
    "p to a smaller one it falls by at most a fifth of what is forgotten.",
    pairs,
    along_p,
    what="score on {case.old}",
    points=3,
    least=lambda pair: BETTER * pair.forgotten.value,
    back=lambda pair: MARGIN * pair.forgotten.value,
    along="falling p",
)


def little_lost(pair: Pair) -> Figure:
    """Above 0 where SFA at p = 0.25 loses less than `LITTLE` of the new task."""
    arm = pair.averaging(p=0.25, beta=BETA)[0]
    return pair.against(arm, pair.new) + pair.gained(pair.new) * LITTLE


LITTLE_LOST = rule(
    "On the new task, SFA at p = 0.25 and beta 0.5 may score lower than sequential fine-tuning. "
    "The difference is less than a quarter of the gain from training that task alone. The rule "
    "uses the task's first entry. It also uses every other entry that improves by at least the "
    "smallest change that counts when the task is trained alone.",
    new_entries,
    Check(
        what=f"{{case.new}}: SFA - sequential fine-tuning, plus {LITTLE:g} x gain from training it "
        "alone",
        of=little_lost,
        above=0.0,
        yes="SFA loses little of the gain on {case.new}",
        no="SFA loses more than a quarter of the gain on {case.new}",
        unit=lambda pair: pair.unit_of_new,
    ),
)
MATCHES = some(
    "At least one SFA arm is as good as rehearsal on both the old task and the new one.",
    pairs,
    lambda pair: [(pair.arms("replay")[0], pair.averaging())],
    AS_GOOD_ON_OLD,
    AS_GOOD_ON_NEW,
)

# ------------------------------------------------------------------ section 6.4: once, and on the way


def once(pair: Pair) -> list[ArmResult]:
    """The sweep of beta at p = 1."""
    arms = pair.averaging(p=1.0)
    if len(arms) < 2:
        raise NotMeasured("a sweep of beta at p = 1")
    return arms


def often_beside_once(pair: Pair) -> Options:
    """Each beta at p = 1, and the p below 1 at beta 0.5."""
    often = [arm for arm in pair.averaging(beta=BETA) if averaging_of(arm)["p"] < 1]
    if not often:
        raise NotMeasured("SFA at p < 1 and beta 0.5")
    return [(arm, often) for arm in once(pair)]


def once_beside_merging(pair: Pair) -> Options:
    """Each task arithmetic, and the betas at p = 1."""
    return [(other, once(pair)) for other in pair.alone("task_arithmetic")]


def once_for_the_new(pair: Pair) -> Options:
    """Each beta at p = 1 that gives the new model half of the weight or more."""
    arms = [arm for arm in pair.averaging(p=1.0) if averaging_of(arm)["beta"] <= BETA]
    if not arms:
        raise NotMeasured("SFA at p = 1 with half or more of the weight on the new model")
    return [(arm, [arm]) for arm in arms]


OFTEN = some(
    "For every beta tried at p = 1, there is a p < 1 at beta 0.5 with about as good a trade-off. "
    "It may be worse by at most a fifth of what forgetting costs sequential fine-tuning in the "
    "trade-off. The trade-off is the mean of the scores on the old and the new task, each as a "
    "share of the gain from training that task alone.",
    orders,
    often_beside_once,
    AS_GOOD_A_TRADE_OFF,
)
ONCE_BEATS_MERGING = some(
    "For every weight of task arithmetic, SFA at p = 1 with some beta has a better trade-off. The "
    "lead is at least a tenth of what forgetting costs sequential fine-tuning in the trade-off.",
    orders,
    once_beside_merging,
    A_BETTER_TRADE_OFF,
)
ONCE_FAILS = some(
    "At p = 1, the old task's gain over the base is less than a fifth of the gain from training "
    "that task alone. This is so for every beta (the weight on the old model) of 0.5 or less.",
    pairs,
    once_for_the_new,
    Check(
        what=f"gain left on {{case.old}} after {{arm.arm}} - {MARGIN:g} x gain from training it "
        "alone",
        of=lambda pair, arm, other: pair.gained_by(arm, pair.old) - pair.gained(pair.old) * MARGIN,
        below=0.0,
        yes="after {arm.arm}, the score on {case.old} is at the base's level",
        no="after {arm.arm}, the score on {case.old} is above the base's level",
    ),
)

# ----------------------------------------------------------------------- section 6.3: the distance


def nearer_keeps_more(
    arms: Callable[[Pair], Sequence[ArmResult]], says: str
) -> Rule[SequenceRecord]:
    """Over some arms, the distance goes against what is kept."""
    check = Check(
        what="correlation between distance to the previous model and score on {case.old}",
        of=lambda pair: correlation(pair, arms(pair)),
        below=CORRELATED,
        yes="arms that stay closer to the previous model keep more of the old task",
        no="arms that stay closer to the previous model do not keep more of the old task",
        unit="correlation",
    )
    return rule(
        "The arms' distance to the previous model has a correlation below -0.3 with their score on "
        f"the old task. The whole interval over seeds lies below -0.3. The arms are {says}.",
        pairs,
        check,
    )


ALONG_SFA = nearer_keeps_more(
    lambda pair: [*pair.arms(SEQUENTIAL), *pair.averaging()],
    "sequential fine-tuning and all SFA arms",
)
OVER_METHODS = nearer_keeps_more(
    lambda pair: pair.record.of(pair.order),
    "all those with a measured distance, including rehearsal and multitask training",
)

# ------------------------------------------------------------------------------------------ figure 1


def _swept(pair: Pair, key: str) -> list[ArmResult]:
    """SFA's arms along beta or p, the longest line at one value of the other parameter; of equally
    long ones the first, as `averaging` has them."""
    other = "p" if key == "beta" else "beta"
    lines: dict[float, list[ArmResult]] = {}
    for arm in pair.averaging():
        lines.setdefault(averaging_of(arm)[other], []).append(arm)
    return max(lines.values(), key=len)


def sweep(key: str, *, old: bool, says: str) -> Rule[SequenceRecord]:
    """Along beta, or along falling p, the old task's score rises and the new one's falls.

    Args:
        key: "beta" or "p".
        old: the old task; False: the new one, whose negative has to rise.
        says: the rule for people.
    """

    def line(pair: Pair) -> list[tuple[str, Figure]]:
        arms = _swept(pair, key)
        arms.sort(key=lambda arm: averaging_of(arm)[key], reverse=key == "p")
        points = []
        for arm in arms:
            figure = pair.against(arm, pair.old) if old else pair.against(arm, pair.new) * -1.0
            points.append((f"{key} {averaging_of(arm)[key]:g}", figure))
        return points

    def scale(pair: Pair) -> float:
        return pair.forgotten.value if old else pair.gained(pair.new).value

    return rising(
        says,
        pairs,
        line,
        what="score on {case.old}" if old else "score lost on {case.new}",
        points=3,
        least=lambda pair: BETTER * scale(pair),
        back=lambda pair: MARGIN * scale(pair),
        along=f"{'falling' if key == 'p' else 'rising'} {key}",
    )


def both(first: Rule[SequenceRecord], second: Rule[SequenceRecord]) -> Rule[SequenceRecord]:
    """Two rules at once."""
    return Rule(
        f"{first.says} {second.says}",
        lambda record, level: [*first(record, level), *second(record, level)],
    )


def trades(key: str, words: str) -> Rule[SequenceRecord]:
    """A parameter of SFA goes from the new task to the old one."""
    keeps = (
        f"{words}, SFA's score on the old task rises by at least a tenth of what sequential "
        "fine-tuning forgets. It need not rise at every step, but from any value to a later one it "
        "falls by at most a fifth of what is forgotten."
    )
    costs = (
        "The score on the new task falls by at least a tenth of the gain from training that task "
        "alone. It need not fall at every step, but from any value to a later one it rises by at "
        "most a fifth of that gain."
    )
    return both(sweep(key, old=True, says=keeps), sweep(key, old=False, says=costs))


TRADES_BY_BETA = trades(
    "beta",
    "The rule uses the p that was tried with the most values of beta (if several p tie, the "
    "largest p). From the smallest to the largest beta",
)
TRADES_BY_P = trades(
    "p",
    "The rule uses the beta that was tried with the most values of p (if several betas tie, the "
    "smallest beta). From the largest to the smallest p",
)

# -------------------------------------------------------------------- figure 4: three tasks in a row


def _has_most_of(number: int) -> Check:
    """Of the task of that number in the order."""

    def rest(pair: Pair, arm: ArmResult, other: ArmResult) -> Figure:
        task = pair.order[number]
        return pair.share(pair.gained_by(arm, task) - pair.gained(task) * HALF, task)

    name = f"{{case.order[{number}]}}"
    return Check(
        what=f"gain on {name} with {{arm.arm}} - {HALF:g} x gain from training it alone",
        of=rest,
        above=0.0,
        yes=f"{{arm.arm}} has more than half of the gain from training {name} alone",
        no=f"{{arm.arm}} has less than half of the gain from training {name} alone",
        unit="share of what is learnt",
    )


def of_three(record: SequenceRecord) -> list[Pair]:
    """Every order of three tasks."""
    return [pair for pair in orders(record) if len(pair.order) == 3]


def averaged(pair: Pair) -> Options:
    """SFA's arms, beside sequential fine-tuning."""
    return [(pair.arms(SEQUENTIAL)[0], pair.averaging())]


def averaged_beside_others(pair: Pair) -> Options:
    """SFA's arms, beside sequential fine-tuning and each task arithmetic."""
    others = [pair.arms(SEQUENTIAL)[0], *pair.alone("task_arithmetic")]
    return [(other, pair.averaging()) for other in others]


KEEPS_TWO = some(
    "At least one SFA arm has more than half of the gain from training a task alone, on each of "
    "the three tasks.",
    of_three,
    averaged,
    _has_most_of(0),
    _has_most_of(1),
    _has_most_of(2),
)
BEATS_IN_A_ROW = some(
    "The rivals of SFA are sequential fine-tuning and task arithmetic with each weight. For every "
    "rival, at least one SFA arm has a better trade-off over the three tasks. The lead is at least "
    "a tenth of what forgetting costs sequential fine-tuning in the trade-off. The trade-off is "
    "the mean of the tasks' scores, each as a share of the gain from training that task alone.",
    of_three,
    averaged_beside_others,
    A_BETTER_TRADE_OFF,
)

# ------------------------------------------------------- figures 8 and 9: the first task along others


GETS_WORSE = rising(
    "During the later tasks of sequential fine-tuning, the first task's held-out loss rises by at "
    "least 0.05 nats a token above its level after the first task. Between any two tasks, the loss "
    "falls by at most a fifth of that rise.",
    curves,
    Curve.losses,
    what="held-out loss of {case.old}",
    points=3,
    least=LEAST_NATS,
    back=lambda curve: MARGIN * abs((curve.losses()[-1][1] - curve.losses()[0][1]).value),
    along="the number of later tasks",
)


def beyond_never_saw(curve: Curve) -> Figure:
    """Below 0 where sequential fine-tuning is better than a model that never saw the task by less
    than `MARGIN` of what is learnt."""
    sequential = curve.gained(curve.old, SEQUENTIAL)
    left = sequential - curve.gained_by(curve.never_saw(), curve.old)
    return left - curve.gained(curve.old) * MARGIN


AS_IF_NEVER_SEEN = rule(
    "The rule compares two models on the first task: sequential fine-tuning after all tasks, and "
    "multitask training on all tasks but the first. Sequential fine-tuning is better by less than "
    "a fifth of the gain from training the first task alone.",
    lambda record: [curve for curve in curves(record) if len(curve.order) > 2],
    Check(
        what=f"{{case.old}}: sequential fine-tuning - model that never saw it, minus {MARGIN:g} x "
        "gain from training it alone",
        of=beyond_never_saw,
        below=0.0,
        yes="sequential fine-tuning knows {case.old} no better than a model that never saw it",
        no="sequential fine-tuning knows {case.old} better than a model that never saw it",
        unit=lambda curve: curve.record.score_of(curve.old).unit,
    ),
)
