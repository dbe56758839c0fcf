"""What "Soup to Go" claims, held against a sequence study: holds, does not hold, or cannot tell.

The rules stand here and were written before any outcome of the study was looked at:

- *Old* is each task before the last of an order, *new* the last one. A claim has to hold for every order and every old
  task of the study.
- *Learnt*: what training a task alone gains on it over the base. *Forgotten*: how much better the old task's score is
  with that model than after sequential fine-tuning. Both are signed so that more is better, mean over seeds, with
  intervals over seeds and samples (`holdfast.statistics.gains`); arms are differences to sequential fine-tuning, paired
  by seed and sample.
- *Rises*, *better*: by at least `BETTER` of what is forgotten, with the whole interval. *As good*, *matches*, *drops to
  the base's level*: not off by more than `MARGIN` (20 %) of what is forgotten, or learnt. *Little*: less than `LITTLE`
  of what is learnt.
- Of curves over a parameter (figure 1) the best mean of old and new task is held against the other's: which arm of a
  method is its best is chosen for each seed by the others.
- An arm *beats* another where it is better on the old task and as good on the new one. A method beats another where for
  every arm of the other one of its own does. That some arm does a thing is judged on all of them, with intervals
  widened to 1 - (1 - level) / arms (Bonferroni).

What has to be so before a rule may speak: each task is learnt, and sequential fine-tuning forgets the old one.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

from holdfast.papers.claims import rules as engine
from holdfast.papers.claims.rules import (
    HOLDS,
    MARGIN,
    UNKNOWN,
    Claim,
    ClaimFigure,
    Evidence,
    Part,
    Precondition,
    Statement,
    above,
    at_least,
    below,
    monotone,
    unknown,
)
from holdfast.records.figure import Figure
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
    "Old: a task before the last one; new: the last one. Learnt: the gain of training a task alone over the base. "
    "Forgotten: what sequential fine-tuning loses of that.",
    "Arms are held against sequential fine-tuning seed by seed and sample by sample; intervals are at 95 % and cover "
    "both.",
    "Better: by at least a tenth of what is forgotten. As good: not off by more than a fifth of what is forgotten, or "
    "learnt. One arm beats another where it is better on the old task and as good on the new one.",
)


def check_claims(records: Mapping[str, SequenceRecord | None]) -> list[Claim]:
    """Every claim of the paper, held against its studies.

    Args:
        records: by study (`RECIPE`, `DIGITS`), finished or not; None: not run. Claims about others are left out.
    """
    return engine.check_claims(STATEMENTS, {name: _evidence(record) for name, record in records.items()})


def _evidence(record: SequenceRecord | None) -> Evidence[SequenceRecord]:
    models = record.models if record is not None else []
    return Evidence(
        record=record,
        waiting=sum(m.state in ("waiting", "running") for m in models),
        seeds=len(record.seeds) if record is not None else 0,
        noun="model",
        without={} if record is None else dict(_without(record)),
    )


def _without(record: SequenceRecord) -> Iterator[tuple[str, SequenceRecord]]:
    """The record with one seed left out, by name; nothing where there are not two others."""
    for seed in record.seeds if len(record.seeds) > 2 else ():

        def rest(estimate: Figure, seed: int = seed) -> Figure:
            kept = {s: v for s, v in estimate.by_seed.items() if s != seed}
            return dataclasses.replace(estimate, by_seed=kept, value=statistics.fmean(kept.values() or [math.nan]))

        arms = [
            dataclasses.replace(
                arm,
                scores={t: rest(e) for t, e in arm.scores.items()},
                against={t: rest(e) for t, e in arm.against.items()},
                distance=arm.distance and rest(arm.distance),
            )
            for arm in record.arms
        ]
        yield f"seed {seed}", dataclasses.replace(record, seeds=[s for s in record.seeds if s != seed], arms=arms)


# ------------------------------------------------------------------------------------------------------------- measures


@dataclasses.dataclass(frozen=True)
class _Pair:
    """An order with one of its old tasks."""

    record: SequenceRecord
    order: list[str]
    old: str

    @property
    def new(self) -> str:
        """The last task."""
        return self.order[-1]

    @property
    def where(self) -> str:
        """For people."""
        return " → ".join(self.order) + (f", {self.old}" if len(self.order) > 2 else "")

    @property
    def n(self) -> str:
        """What is behind a figure."""
        return f"{len(self.record.seeds)} seeds" if len(self.record.seeds) > 1 else "one seed"

    def arms(self, *kinds: str) -> list[ArmResult]:
        """Those of some kinds that were measured."""
        return [a for a in self.record.of(self.order) if a.kind in kinds and a.scores]

    def one(self, kind: str) -> ArmResult | None:
        """The arm of a kind that has one."""
        return next(iter(self.arms(kind)), None)

    def gained(self, arm: ArmResult, task: str) -> Figure | None:
        """Over the base, more is better."""
        about, score = self.record.tasks[task], arm.scores.get(task)
        if score is None:
            return None
        sign = 1.0 if about.higher_is_better else -1.0
        return _over_seeds(score, lambda value: sign * (value - about.before))

    def against(self, arm: ArmResult, task: str) -> Figure | None:
        """Over sequential fine-tuning."""
        sequential = self.one(SEQUENTIAL)
        if sequential is not None and arm.arm == sequential.arm:
            return arm.scores[task] * 0.0 if task in arm.scores and arm.scores[task].by_seed else None
        return arm.against.get(task)

    @property
    def forgotten(self) -> Figure | None:
        """Of the old task by sequential fine-tuning."""
        single = self.one(SINGLE)
        return None if single is None else self.against(single, self.old)

    def learnt(self, task: str) -> Figure | None:
        """What training it alone gains."""
        single = self.one(SINGLE)
        return None if single is None else self.gained(single, task)

    def least(self, task: str) -> float:
        """What counts, in the task's unit."""
        return LEAST_NATS if "nat" in self.record.tasks[task].unit else LEAST_SHARE

    def figure(self, what: str, value: Figure, level: float, task: str) -> ClaimFigure:
        """A figure at a level."""
        return ClaimFigure(
            what=f"{self.where}: {what}",
            value=value.value,
            interval=value.interval_at(level),
            n=self.n,
            unit=self.record.tasks[task].unit,
        )


def _over_seeds(estimate: Figure, of: Callable[[float], float]) -> Figure:
    by_seed = {s: of(v) for s, v in estimate.by_seed.items()}
    return Figure(
        value=statistics.fmean(by_seed.values() or [math.nan]), by_seed=by_seed, samples_half=estimate.samples_half
    )


def _pairs(record: SequenceRecord) -> list[_Pair]:
    return [_Pair(record, order, old) for order in record.orders for old in order[:-1]]


def _missing(pair: _Pair, what: str) -> list[Part]:
    return [unknown(f"{pair.where}: {what} was not measured")]


def _some(parts: Sequence[Part], nothing: str) -> Part:
    """Of several arms: holds if one does, does not hold if none does."""
    if not parts:
        return unknown(nothing)
    for verdict in (HOLDS, UNKNOWN):
        held = [p for p in parts if p.verdict == verdict]
        if held:
            return held[0]
    return dataclasses.replace(parts[0], reason="; ".join(p.reason for p in parts[:3]))


def _both(first: Part, second: Part) -> Part:
    verdict = engine.joint([first.verdict, second.verdict])
    reasons = [p.reason for p in (first, second) if p.verdict == verdict] or [first.reason]
    return Part(verdict=verdict, reason="; ".join(reasons), figures=[*first.figures, *second.figures])


# ---------------------------------------------------------------------------------------------------------------- rules


def _to_the_base(record: SequenceRecord, level: float) -> list[Part]:
    """After sequential fine-tuning the old task's gain over the base is less than `MARGIN` of what was learnt."""
    parts = []
    for pair in _pairs(record):
        sequential, learnt = pair.one(SEQUENTIAL), pair.learnt(pair.old)
        left = None if sequential is None else pair.gained(sequential, pair.old)
        if left is None or learnt is None:
            parts += _missing(pair, "sequential fine-tuning or the single task")
            continue
        figure = pair.figure(f"{pair.old} left, less {MARGIN:g} x learnt", left - learnt * MARGIN, level, pair.old)
        parts.append(
            below(figure, 0.0, yes=f"{pair.old} is at the base's level", no=f"{pair.old} is above the base's level")
        )
    return parts


def _averaging(pair: _Pair, *, beta: float | None = None) -> list[tuple[float, float, ArmResult]]:
    """(p, beta, arm) of SFA, the rarest averages first."""
    found = []
    for arm in pair.arms("sfa"):
        parameters = arm.retention[0]["sfa"] or {}
        if set(parameters) <= {"p", "beta"}:
            found.append((float(parameters.get("p", 0.25)), float(parameters.get("beta", 0.5)), arm))
    return sorted([f for f in found if beta is None or f[1] == beta], key=lambda f: (-f[0], f[1]))


def _rises(record: SequenceRecord, level: float) -> list[Part]:
    """Along falling p, at beta 0.5, the old task's score rises by at least `BETTER` of what is forgotten, and no way
    back is larger than `MARGIN` of it."""
    parts = []
    for pair in _pairs(record):
        forgotten, line = pair.forgotten, []
        for p, _, arm in _averaging(pair, beta=0.5):
            value = pair.against(arm, pair.old)
            line += [(f"p {p:g}", value)] if value is not None else []
        if forgotten is None or len(line) < 3:
            parts += _missing(pair, "SFA at three p or more, or the single task,")
            continue
        part = monotone(
            line,
            what=f"{pair.where}: score of {pair.old}",
            rises=True,
            least=BETTER * forgotten.value,
            margin=MARGIN * forgotten.value,
            level=level,
            n=pair.n,
            unit=pair.record.tasks[pair.old].unit,
        )
        parts.append(part)
    return parts


def _little_lost(record: SequenceRecord, level: float) -> list[Part]:
    """At p = 0.25 and beta 0.5 the new task's score is below sequential fine-tuning's by less than `LITTLE` of what is
    learnt of it."""
    parts = []
    for pair in _pairs(record):
        arm = next((a for p, _, a in _averaging(pair, beta=0.5) if p == 0.25), None)
        value, learnt = None if arm is None else pair.against(arm, pair.new), pair.learnt(pair.new)
        if value is None or learnt is None:
            parts += _missing(pair, "SFA at p = 0.25, or the single task,")
            continue
        rest = value + learnt * LITTLE
        figure = pair.figure(f"{pair.new} beside sequential, plus {LITTLE:g} x learnt", rest, level, pair.new)
        parts.append(
            above(figure, 0.0, yes=f"little of {pair.new} is lost", no=f"more than a quarter of {pair.new} is lost")
        )
    return parts


def _as_good(pair: _Pair, arm: ArmResult, other: ArmResult, task: str, level: float) -> Part:
    """Not worse than another arm by more than `MARGIN` of what is forgotten (old) or learnt (new)."""
    scale = pair.forgotten if task == pair.old else pair.learnt(task)
    mine, theirs = pair.against(arm, task), pair.against(other, task)
    if scale is None or mine is None or theirs is None:
        return _missing(pair, arm.arm)[0]
    rest = mine - theirs + scale * MARGIN
    figure = pair.figure(f"{task}: {arm.arm} - {other.arm}, plus the margin", rest, level, task)
    words = f"{arm.arm} is as good as {other.arm} on {task}", f"{arm.arm} is worse than {other.arm} on {task}"
    return above(figure, 0.0, yes=words[0], no=words[1])


def _better(pair: _Pair, arm: ArmResult, other: ArmResult, level: float) -> Part:
    """Better on the old task by at least `BETTER` of what is forgotten."""
    forgotten, mine, theirs = pair.forgotten, pair.against(arm, pair.old), pair.against(other, pair.old)
    if forgotten is None or mine is None or theirs is None:
        return _missing(pair, arm.arm)[0]
    rest = mine - theirs - forgotten * BETTER
    figure = pair.figure(f"{pair.old}: {arm.arm} - {other.arm}, less the least that counts", rest, level, pair.old)
    words = f"{arm.arm} keeps more of {pair.old} than {other.arm}", f"{arm.arm} keeps no more than {other.arm}"
    return above(figure, 0.0, yes=words[0], no=words[1])


def _each(level: float, count: int) -> float:
    return 1 - (1 - level) / max(1, count) if level > 0 else level


def _matches_rehearsal(record: SequenceRecord, level: float) -> list[Part]:
    """Some SFA arm is as good as rehearsal on the old task and on the new one."""
    parts = []
    for pair in _pairs(record):
        rehearsal, arms = pair.one("replay"), [a for _, _, a in _averaging(pair)]
        if rehearsal is None or not arms:
            parts += _missing(pair, "SFA or rehearsal")
            continue
        each = _each(level, len(arms))
        tried = [_both(*(_as_good(pair, arm, rehearsal, task, each) for task in (pair.old, pair.new))) for arm in arms]
        parts.append(_some(tried, f"{pair.where}: no arm of SFA"))
    return parts


def _of(kind: str) -> Callable[[_Pair], list[ArmResult]]:
    """The arms of a method, or of a merge method."""

    def arms(pair: _Pair) -> list[ArmResult]:
        merges = [a for a in pair.arms(MERGE) if a.merge.get("method") == kind]
        return merges or [a for a in pair.arms(kind) if len(a.retention) == 1]

    return arms


def _beats(mine: str, theirs: str) -> Callable[[SequenceRecord, float], list[Part]]:
    def rule(record: SequenceRecord, level: float) -> list[Part]:
        parts = []
        for pair in _pairs(record):
            arms, others = _of(mine)(pair), _of(theirs)(pair)
            if not arms or not others:
                parts += _missing(pair, f"{mine} or {theirs}")
                continue
            each = _each(level, len(arms))
            for other in others:
                tried = [
                    _both(_better(pair, arm, other, each), _as_good(pair, arm, other, pair.new, each)) for arm in arms
                ]
                parts.append(_some(tried, f"{pair.where}: no arm"))
        return parts

    rule.__doc__ = (
        f"For every arm of {theirs.replace('_', ' ')} one of {mine} is better on the old task and as good on the new "
        "one."
    )
    return rule


def _best_beats(mine: str, theirs: str) -> Callable[[SequenceRecord, float], list[Part]]:
    def rule(record: SequenceRecord, level: float) -> list[Part]:
        parts = []
        for pair in _pairs(record):
            best, other, forgotten = _best(pair, _of(mine)(pair)), _best(pair, _of(theirs)(pair)), pair.forgotten
            if best is None or other is None or forgotten is None:
                parts += _missing(pair, f"{mine} and {theirs} with two seeds, or the single task,")
                continue
            rest = best - other - forgotten * (BETTER / 2)
            figure = pair.figure(f"mean of both: {mine} - {theirs}, less the least that counts", rest, level, pair.old)
            words = f"{mine} at its best is above {theirs}", f"{mine} at its best is not above {theirs}"
            parts.append(above(figure, 0.0, yes=words[0], no=words[1]))
        return parts

    rule.__doc__ = (
        f"The mean of old and new task of {mine}'s best arm is above that of {theirs}'s by at least `BETTER` of half "
        "of what is forgotten; the best arms are chosen for each seed by the others."
    )
    return rule


def _best(pair: _Pair, arms: Sequence[ArmResult]) -> Figure | None:
    """The mean of both tasks, of each seed the arm that is best with the other seeds."""
    means = [m for m in (_mean(pair, arm) for arm in arms) if m is not None]
    shared = sorted(set[int]().union(*(m.by_seed for m in means)).intersection(*(m.by_seed for m in means)))
    if len(shared) < 2:
        return None
    by_seed = {}
    for seed in shared:
        chosen = max(means, key=lambda m: sum(m.by_seed[s] for s in shared if s != seed))
        by_seed[seed] = chosen.by_seed[seed]
    half = max(m.samples_half for m in means)
    return Figure.over_seeds(by_seed, half)


def _often(record: SequenceRecord, level: float) -> list[Part]:
    """At every beta that has both, some p < 1 is as good as p = 1, on the mean of old and new task: not worse by more
    than `MARGIN` of half of what is forgotten."""
    parts = []
    for pair in _pairs(record):
        found = _averaging(pair)
        betas = sorted({beta for p, beta, _ in found if p == 1} & {beta for p, beta, _ in found if p < 1})
        if not betas or pair.record.tasks[pair.old].unit != pair.record.tasks[pair.new].unit:
            parts += _missing(pair, "p = 1 beside p < 1 at one beta, in one unit,")
            continue
        for beta in betas:
            once = next(a for p, b, a in found if (p, b) == (1, beta))
            often = [a for p, b, a in found if p < 1 and b == beta]
            tried = []
            for arm in often:
                mine, theirs, forgotten = _mean(pair, arm), _mean(pair, once), pair.forgotten
                if mine is None or theirs is None or forgotten is None:
                    tried += _missing(pair, arm.arm)
                    continue
                rest = mine - theirs + forgotten * (MARGIN / 2)
                what = f"mean of both: {arm.arm} - {once.arm}, plus the margin"
                figure = pair.figure(what, rest, _each(level, len(often)), pair.old)
                words = f"{arm.arm} is as good as {once.arm}", f"{arm.arm} is worse than {once.arm}"
                tried.append(above(figure, 0.0, yes=words[0], no=words[1]))
            parts.append(_some(tried, f"{pair.where}: no p below 1 at beta {beta:g}"))
    return parts


def _mean(pair: _Pair, arm: ArmResult) -> Figure | None:
    old, new = pair.against(arm, pair.old), pair.against(arm, pair.new)
    return None if old is None or new is None else (old + new) * 0.5


def _nearer_keeps_more(record: SequenceRecord, level: float) -> list[Part]:
    """Over sequential fine-tuning and SFA's arms, the correlation of the distance to the model before with the old
    task's score lies below `CORRELATED` with its whole interval over the seeds."""
    parts = []
    for pair in _pairs(record):
        arms = [a for a in (*pair.arms(SEQUENTIAL), *(a for _, _, a in _averaging(pair))) if a.distance is not None]
        by_seed = {}
        for seed in record.seeds:
            points = [
                (a.distance.by_seed[seed], kept.by_seed[seed])
                for a in arms
                if a.distance is not None and seed in a.distance.by_seed
                for kept in [pair.against(a, pair.old)]
                if kept is not None and seed in kept.by_seed
            ]
            if len(points) >= 4 and all(len(set(axis)) > 1 for axis in zip(*points, strict=True)):
                by_seed[seed] = statistics.correlation(*zip(*points, strict=True))
        if not by_seed:
            parts += _missing(pair, "the distance of four arms")
            continue
        value = Figure.over_seeds(by_seed)
        figure = dataclasses.replace(
            pair.figure(f"correlation of distance and {pair.old}", value, level, pair.old), unit="correlation"
        )
        parts.append(
            below(figure, CORRELATED, yes="what moves less keeps more", no="they are not negatively correlated")
        )
    return parts


# -------------------------------------------------------------------------------------------------------- preconditions


def _nearest(value: Figure | None) -> float | None:
    """The end of the interval that is nearer to 0; the value itself where there is none."""
    if value is None or not math.isfinite(value.value):
        return None
    interval = value.interval_at(0.95)
    return value.value if interval is None else interval[0]


def learns(record: SequenceRecord) -> list[Precondition]:
    """Every task is learnt where it is trained alone."""
    return [
        at_least(
            f"{task} is learnt ({' → '.join(order)})",
            _nearest(_Pair(record, order, order[0]).learnt(task)),
            _Pair(record, order, order[0]).least(task),
            figure=f"gain of training {task} alone over the base (lower end of its interval)",
            advice="train it longer, or at a higher rate; the arm 'single' has to be there",
        )
        for order in record.orders
        for task in order
        if record.tasks
    ]


def forgets(record: SequenceRecord) -> list[Precondition]:
    """Sequential fine-tuning forgets every old task."""
    return [
        at_least(
            f"{pair.old} is forgotten ({pair.where})",
            _nearest(pair.forgotten),
            pair.least(pair.old),
            figure="what sequential fine-tuning loses of it (lower end of its interval)",
            advice="train the later task longer, or choose tasks that are less alike",
        )
        for pair in _pairs(record)
        if record.tasks
    ]


def _lacking(record: SequenceRecord) -> str | None:
    failed = sum(m.state == "failed" for m in record.models)
    if failed:
        return f"{failed} {'model' if failed == 1 else 'models'} failed; the same command tries them again"
    return None if record.tasks else "nothing was measured"


Rule = Callable[[SequenceRecord, float], list[Part]]
CLAIMS: tuple[tuple[str, str, str, Rule], ...] = (
    (
        "1",
        "Sequential fine-tuning drops the old task to the base's level.",
        "GSM8K 0.38 to 0 (Pythia) and 0.42 to 0 (Llama 2) after law (figures 2, 3)",
        _to_the_base,
    ),
    (
        "2a",
        "SFA keeps more of the old task as p falls.",
        "GSM8K 0.048 / 0.13 / 0.31 at p = 1 / 0.5 / 0.25 (Pythia, Math-Law)",
        _rises,
    ),
    (
        "2b",
        "It costs little of the new task.",
        "CaseHOLD 0.76 sequential, 0.59 at p = 0.25 (Pythia); Terms of Service 0.86 to 0.13 (Llama 2), against 'little "
        "loss on the new task' in the text",
        _little_lost,
    ),
    (
        "3a",
        "SFA at some p matches rehearsal without old data.",
        "(CaseHOLD, GSM8K) 0.48, 0.48 at p = 0.17 against 0.46, 0.49 (Llama 2); on Math-Law-Code it loses to rehearsal",
        _matches_rehearsal,
    ),
    (
        "3b",
        "SFA beats task arithmetic.",
        "(CaseHOLD, GSM8K) 0.59, 0.31 at p = 0.25 against 0.68, 0 (Pythia)",
        _beats("sfa", "task_arithmetic"),
    ),
    ("3c", "SFA beats TIES merging.", "0.53, 0.46 at p = 0.25 against 0.37, 0.014 (Llama 2)", _beats("sfa", "ties")),
    (
        "3d",
        "L2 beats EWC (ours for language models: the paper shows it on split MNIST).",
        "curves of figure 1, small networks",
        _beats("l2", "ewc"),
    ),
    ("3e", "SFA beats L2 (ours for language models).", "curves of figure 1, small networks", _beats("sfa", "l2")),
    ("3f", "SFA beats EWC (ours for language models).", "curves of figure 1, small networks", _beats("sfa", "ewc")),
    (
        "4",
        "Averaging on the way (p < 1) is at least as good as once at the end, at every beta.",
        "curves over beta for p = 1 and p < 1 (section 6.2 and figure 1)",
        _often,
    ),
    (
        "5",
        "The nearer the weights stay to the model before, the more of the old task is kept.",
        "distances 90.99 / 45.50 / 35.38 / 24.16 with GSM8K 0 / 0.048 / 0.13 / 0.31 (figure 5, Pythia)",
        _nearer_keeps_more,
    ),
)
SMALL_NETWORKS: tuple[tuple[str, str, str, Rule], ...] = (
    (
        "1s",
        "On a small network: sequential training drops the old task to the base's level.",
        "split MNIST, figure 1",
        _to_the_base,
    ),
    (
        "6a",
        "On a small network L2 has the better trade-off than EWC.",
        "split MNIST, figure 1",
        _best_beats("l2", "ewc"),
    ),
    ("6b", "On a small network SFA has a better one than L2.", "split MNIST, figure 1", _best_beats("sfa", "l2")),
    ("6c", "On a small network SFA has a better one than EWC.", "split MNIST, figure 1", _best_beats("sfa", "ewc")),
    (
        "6d",
        "On a small network averaging on the way (p < 1) is at least as good as once at the end, at every beta.",
        "split MNIST, figure 1: curves over beta and over the frequency",
        _often,
    ),
)
STATEMENTS = [
    Statement(number=n, recipe=recipe, text=t, paper=p, check=rule, preconditions=(learns, forgets), lacking=_lacking)
    for recipe, claims in ((RECIPE, CLAIMS), (DIGITS, SMALL_NETWORKS))
    for n, t, p, rule in claims
]
