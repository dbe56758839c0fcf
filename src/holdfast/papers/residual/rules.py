"""The rules by which the claims of "Balancing Continuous Pre-Training" are judged (`claims`)."""

from __future__ import annotations

import dataclasses

from holdfast.papers.claims.rules import (
    MARGIN,
    ClaimFigure,
    Part,
    Rule,
    Trend,
    above,
    below,
    monotone,
)
from holdfast.papers.residual.changes import (
    NEW_BASE,
    OLD_BASE,
    OLD_DERIVED,
    OLD_INSTRUCT,
    RESIDUAL,
    Kind,
    Measure,
    Study,
    data_set,
    entries_of,
    flexible,
    following,
    paired,
    strict,
    title,
)
from holdfast.records.figure import Figure, NotMeasured
from holdfast.records.residual import BASE, DERIVED
from holdfast.statistics.gains import Gain, gain_over_seeds
from holdfast.support.token_counts import shown_tokens

LEAST = 0.02
"""The least change that counts: of shares, and of nats a token."""
LITTLE, MOST = 0.25, 0.5
"""Of what a claim names: what may be lost and still is little, and what has to be kept to be most
of it."""
LEAST_SHARE = 0.1
"""The least difference that counts of the share of tuning's gain that a residual brings."""
NO_ROOM = 0.9
"""A base that is above this on a data set has no room to gain by more than `LEAST` there."""
FEWEST_WORLDS = 3
"""Worlds that a claim about sizes needs at every width: models of one world share its people, its
texts and its luck."""


def behind(figure: Figure, samples: int) -> str:
    """What is behind a figure, as `ClaimFigure.n`."""
    seeds = len(figure.by_seed)
    return f"{seeds} seed{'s' if seeds != 1 else ''}, {samples} samples"


def figure_of(figure: Figure, what: str, level: float, like: Gain) -> ClaimFigure:
    """A change as claims show it, in the unit and of the samples of `like`."""
    return ClaimFigure.of(
        figure, what=what, level=level, n=behind(figure, like.samples), unit=like.unit
    )


def with_beside(part: Part, *beside: ClaimFigure) -> Part:
    """A part with figures beside it that it is not judged by."""
    return dataclasses.replace(part, figures=[*part.figures, *beside])


def changes(
    says: str,
    after: Kind,
    before: Kind,
    *,
    measure: Measure = following,
    bound: float = LEAST,
    falls: bool = False,
    yes: str,
    no: str,
) -> Rule[Study]:
    """At every budget a change lies above `bound`, or below -`bound` where it `falls`; `{tokens}`
    stands for the budget in `yes` and `no`."""

    def judge(study: Study, level: float) -> list[Part]:
        parts = []
        for budget in study.budgets:
            gain = study.change(after, before, measure, budget=budget)
            figure = figure_of(gain, title(after, before, measure, budget), level, gain)
            tokens = f"{shown_tokens(budget)} tokens"
            judge_figure = below if falls else above
            bound_of = -bound if falls else bound
            holds, fails = yes.format(tokens=tokens), no.format(tokens=tokens)
            parts.append(judge_figure(figure, bound_of, yes=holds, no=fails))
        return parts

    return Rule(says, judge)


def exceeds(
    says: str,
    change: tuple[Kind, Kind],
    *,
    share: float,
    of: tuple[Kind, Kind],
    measure: Measure = following,
    largest: bool = True,
    yes: str,
    no: str,
) -> Rule[Study]:
    """A change lies above a share of another change, each written as (after, before); at the
    largest budget, or at every one."""

    def judge(study: Study, level: float) -> list[Part]:
        parts = []
        for budget in study.budgets[-1:] if largest else study.budgets:
            what, than = title(*change, measure, budget), title(*of, measure, budget)
            gain, other = (
                study.change(*change, measure, budget=budget),
                study.change(*of, measure, budget=budget),
            )
            paired(gain, other, than)
            rest = figure_of(
                gain - other * share, f"{what}, minus {share:g} x ({than})", level, gain
            )
            tokens = f"{shown_tokens(budget)} tokens"
            judged = above(rest, 0.0, yes=yes.format(tokens=tokens), no=no.format(tokens=tokens))
            beside = figure_of(gain, what, level, gain), figure_of(other, than, level, gain)
            parts.append(with_beside(judged, *beside))
        return parts

    return Rule(says, judge)


def grows(
    says: str, change: tuple[Kind, Kind], measure: Measure, *, what: str, rises: bool = True
) -> Rule[Study]:
    """A change rises (or falls) along the budgets: its ends differ by more than `LEAST`, and
    between no two budgets is there a way back beyond it."""

    def judge(study: Study, level: float) -> list[Part]:
        budgets = study.budgets
        if len(budgets) < 2:
            raise NotMeasured("a second budget")
        gains = [study.change(*change, measure, budget=budget) for budget in budgets]
        line = []
        for budget, gain in zip(budgets, gains, strict=True):
            paired(gain, gains[0], title(*change, measure, budget))
            line.append((f"{shown_tokens(budget)} tokens", over_worlds(study, gain)))
        trend = Trend(least=LEAST, margin=LEAST, rises=rises, along="more new tokens")
        n = behind(line[0][1], gains[0].samples)
        return [monotone(line, trend, what=what, level=level, n=n, unit=gains[0].unit)]

    return Rule(says, judge)


def over_worlds(study: Study, gain: Gain) -> Figure:
    """A change that is subtracted from another of the same models on the same prompts. Worlds have
    prompts of their own, so that what samples add is in their spread; outside of them the two are
    taken as independent, which is too wide."""
    if study.width and len(gain.by_seed) > 1:
        return Figure.over_seeds(gain.by_seed)
    return gain.figure


def strict_falls(study: Study, level: float) -> list[Part]:
    """At the largest budget, against the instruct model: strict falls by more than `LEAST`, and
    flexible loses less than a quarter of that."""
    hard, soft = (
        study.change(RESIDUAL, OLD_INSTRUCT, strict),
        study.change(RESIDUAL, OLD_INSTRUCT, flexible),
    )
    falls = figure_of(
        hard,
        "problems solved under the strict match: base + new text + residual against instruct",
        level,
        hard,
    )
    keeps = figure_of(
        soft - hard * LITTLE,
        f"change under the flexible match minus {LITTLE:g} x change under the strict match",
        level,
        hard,
    )
    first = below(
        falls,
        -LEAST,
        yes="problems solved under the strict match fall",
        no="problems solved under the strict match do not fall",
    )
    second = above(
        keeps,
        0.0,
        yes="problems solved under the flexible match fall little",
        no="problems solved under the flexible match fall as well",
    )
    return [
        first,
        with_beside(
            second, figure_of(soft, "problems solved under the flexible match", level, hard)
        ),
    ]


def carries(start: str, before: Kind, missing: str) -> Rule[Study]:
    """A residual brings following to models that it is not of."""

    def judge(study: Study, level: float) -> list[Part]:
        parts = []
        for model, gain in study.carried_following(start, before):
            name = model.repeated
            figure = figure_of(
                gain,
                f"instruction following, {name} against the model without the residual",
                level,
                gain,
            )
            parts.append(
                above(
                    figure,
                    LEAST,
                    yes=f"{name} follows instructions better than without the residual",
                    no=f"{name} does not follow instructions better than without the residual",
                )
            )
        if not parts:
            raise NotMeasured(missing)
        return parts

    return Rule(
        "Every model with a sibling's residual follows instructions better than the same "
        "model without the residual. The difference is more than 2 points.",
        judge,
    )


def better_sibling(study: Study, level: float) -> list[Part]:
    """The weaker base with the better sibling's residual follows better than its own instruct
    model, and the better base with the weaker sibling's follows worse than its own, each by more
    than `LEAST`."""
    _, other, lead = study.siblings()
    parts = []
    for model, gain in study.carried_following(BASE, OLD_INSTRUCT):
        name = model.repeated
        figure = figure_of(
            gain, f"instruction following, {name} against its own instruct model", level, gain
        )
        better = f"{name} follows instructions better than its own instruct model"
        worse = f"{name} follows instructions worse than its own instruct model"
        if (model.residual == other) == (lead.value > 0):
            parts.append(above(figure, LEAST, yes=better, no=worse))
        else:
            parts.append(below(figure, -LEAST, yes=worse, no=better))
    if not parts:
        raise NotMeasured("a base with a sibling's residual")
    return parts


def better_for_derived(study: Study, level: float) -> list[Part]:
    """The better sibling's residual brings a derived model more following than the weaker one's, by
    more than `LEAST`. (Both are taken against the same derived model on the same prompts, as if
    independent, which is too wide.)"""
    first, other, lead = study.siblings()
    better, weaker = (other, first) if lead.value > 0 else (first, other)
    brought: dict[str, dict[str, Gain]] = {}
    for model, gain in study.carried_following(DERIVED, OLD_DERIVED):
        brought.setdefault(model.family, {})[str(model.residual)] = gain
    parts = []
    for name, gains in brought.items():
        if {better, weaker} <= gains.keys():
            paired(gains[better], gains[weaker], f"{name} with both residuals")
            what = (
                f"instruction following, {name} + {better} residual against {name} + {weaker} "
                "residual"
            )
            difference = over_worlds(study, gains[better]) - over_worlds(study, gains[weaker])
            figure = figure_of(difference, what, level, gains[better])
            yes = f"{better}'s residual adds more instruction following to {name}"
            parts.append(
                above(
                    figure,
                    LEAST,
                    yes=yes,
                    no=f"{better}'s residual does not add more instruction following to {name}",
                )
            )
    if not parts:
        raise NotMeasured("a derived model with both siblings' residuals")
    return parts


def better_on_every_data_set(study: Study, level: float) -> list[Part]:
    """A base with a sibling's residual gains more than `LEAST` on each data set on which it leaves
    room, and falls by more than that on none."""
    parts = []
    for model, compared in study.carried(BASE, OLD_BASE):
        for entry in entries_of(compared, data_set):
            gain = gain_over_seeds(compared, [entry])
            what = f"{entry[1].replace('_', ' ')}, {model.repeated} against the base"
            if gain is None:
                raise NotMeasured(what)
            has_room = gain.before <= NO_ROOM
            good, bad = ("better", "not better") if has_room else ("not worse", "worse")
            figure = figure_of(gain, what, level, gain)
            bound = LEAST if has_room else -LEAST
            parts.append(above(figure, bound, yes=f"{what}: {good}", no=f"{what}: {bad}"))
    if not parts:
        raise NotMeasured("a base with a sibling's residual")
    return parts


def share_brought(study: Study, width: int) -> tuple[Figure, Gain]:
    """Of what instruction tuning brings the base of a width, the share that the residual brings the
    continued base, world by world; and what it brings."""
    brings = study.change(RESIDUAL, NEW_BASE, following, width=width)
    tuning = study.change(OLD_INSTRUCT, OLD_BASE, following, width=width)
    paired(brings, tuning, f"residual and instruction tuning at width {width}")
    shares = {}
    for world, gain in tuning.by_seed.items():
        if gain <= 0:
            raise NotMeasured(f"a gain from instruction tuning at width {width} in world {world}")
        shares[world] = brings.by_seed[world] / gain
    return Figure.over_seeds(shares), brings


def small_models(study: Study, level: float) -> list[Part]:
    """The share of tuning's gain that the residual brings rises with the width: its ends differ by
    more than `LEAST_SHARE`, and between no two widths is there a way back beyond a fifth. (The
    paper's figures are of siblings; every width here has its own pair's residual.)"""
    if len(study.widths) < 2:
        raise NotMeasured("a model of another size")
    line, beside, worlds = [], [], set()
    for width in study.widths:
        share, brings = share_brought(study, width)
        line.append((f"width {width}", share))
        what = f"gain in instruction following by the residual at width {width}"
        beside.append(figure_of(brings, what, level, brings))
        worlds.add(frozenset(share.by_seed))
    if len(worlds) > 1 or len(*worlds) < FEWEST_WORLDS:
        raise NotMeasured(f"every width in the same worlds ({FEWEST_WORLDS} or more)")
    judged = monotone(
        line,
        Trend(least=LEAST_SHARE, margin=MARGIN, along="the width"),
        what="the residual's gain as a share of instruction tuning's gain",
        level=level,
        n=f"{len(*worlds)} worlds",
        unit="share of tuning's gain",
    )
    return [with_beside(judged, *beside)]
