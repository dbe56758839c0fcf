"""What "Balancing Continuous Pre-Training" claims, held against a study of the residual: holds,
does not hold, or cannot tell.

The rules stand here and were written before any outcome of the study was looked at:

- A *change* is taken between two models on the same questions, pair by pair, `after - before`
  signed so that more is better, as the mean over seeds. Its interval covers seeds and evaluated
  samples (`holdfast.statistics.gains`). In a study of small worlds a seed is a world of its own:
  people, texts, base, instruct model.
- *Following*: what leads the entries of the suite `following` (instructions that a program checks);
  at the paper's size IFEval's `inst_level_strict_acc`. *Overall*: the mean of all that is a share
  and no new text, following among it, the same entries for every model; at the paper's size its
  average of sixteen. *New text*: documents held out of what was trained on. *Strict*, *flexible*:
  the two figures of GSM8K, or of word problems judged as it judges.
- *Loses*, *improves*: by more than `LEAST` (2 points, or 0.02 nats a token) with the whole
  interval.
- *Little*: less than a quarter, *most*: more than half, *at or above*, *as good as*: not below by
  more than a fifth, of what the claim names. The bound is a change itself: its part is taken off
  seed by seed, and the rest has to lie above 0 with its whole interval.
- Claims are about the residual at scale 1, as the paper's, and about the first width of the study,
  but for claim 4.

What has to be so before a rule may speak: instruction tuning took, continuing taught the new text,
the base knew what it may lose, the instruct model lost what is to be brought back, the siblings
differ, the instruct model solves problems. Claims marked as ours are not the paper's.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from holdfast.evaluation.averages import SUITE as AVERAGES
from holdfast.papers.claims.claim import Claim, Evidence, Statement, judge_records
from holdfast.papers.claims.requirements import Requirement
from holdfast.papers.claims.rules import MARGIN, ClaimFigure, Part, Rule, above, below
from holdfast.records.comparison import Comparison
from holdfast.records.figure import Figure, NotMeasured
from holdfast.records.metrics import is_share
from holdfast.records.residual import BASE, DERIVED, INSTRUCT, ResidualRecord, StudiedModel
from holdfast.statistics.gains import Gain, gain_over_seeds
from holdfast.support.token_counts import shown_tokens

RECIPE = "residual"
LEAST = 0.02
"""The least change that counts: of shares, and of nats a token."""
LITTLE, MOST = 0.25, 0.5
"""Of what a claim names: what may be lost and still is little, and what has to be kept to be most
of it."""
LEAST_TUNING_GAIN = 0.2
"""By so much an instruct model follows better than its base, else it was not tuned (the paper's:
0.30)."""
LEAST_LEARNT = 0.05
"""Nats a token by which continuing betters the held-out new text, else nothing was learnt."""
LEAST_KNOWN = 0.4
"""Share of what is to be kept that the base answers: guessing among four is right in 0.25."""
LEAST_SOLVED = 0.3
"""Share of word problems that the instruct model solves, judged flexibly."""
READING = (
    "A change is taken between two models on the same questions, pair by pair, signed so that more "
    "is better; the mean over seeds, each of them a world with models of its own.",
    "Intervals are at 95 % and cover seeds and evaluated samples; with one seed the samples alone.",
    "Following: instructions that a program checks. Overall: the mean of following, old knowledge "
    "and word problems, the same for every model. New text: documents held out of what was trained "
    "on.",
    "Little: less than a quarter of what is named; most: more than half; at or above, as good as: "
    "not below by more than a fifth. A change of less than 2 points counts as none.",
)
Compared = Mapping[int, Sequence[Comparison]]
"""Comparisons of one pair of models, by the seed of the later one."""
Kind = tuple[str, bool, str]
"""As in `outcome.QUESTIONS`: start, whether it is continued, what brought following back."""
OLD_BASE, OLD_INSTRUCT = (BASE, False, ""), (INSTRUCT, False, "")
NEW_BASE, NEW_INSTRUCT = (BASE, True, ""), (INSTRUCT, True, "")
RESIDUAL, TUNED = (BASE, True, "residual"), (BASE, True, "tuning")
NAMES = {
    OLD_BASE: "base",
    OLD_INSTRUCT: "instruct",
    NEW_BASE: "base + {tokens}",
    NEW_INSTRUCT: "instruct + {tokens}",
    RESIDUAL: "base + {tokens} + residual",
    TUNED: "base + {tokens} + tuning",
}


def check_claims(records: Mapping[str, ResidualRecord | None]) -> list[Claim]:
    """Every claim of the paper, held against a study.

    Args:
        records: by study (`RECIPE`), finished or not; None: not run.
    """
    return judge_records(STATEMENTS, records, _evidence)


def _evidence(record: ResidualRecord) -> Evidence[Study]:
    seeds = len({model.seed for model in record.models})
    without = {name: Study(rest) for name, rest in _without(record)}
    return Evidence.of(Study(record), record.models, seeds=seeds, noun="model", without=without)


def _without(record: ResidualRecord) -> Iterator[tuple[str, ResidualRecord]]:
    """The record with one seed left out, by name; nothing where there is one."""
    seeds = sorted({model.seed for model in record.models if model.continued})
    for seed in seeds if len(seeds) > 1 else ():
        left = {m.name for m in record.models if m.seed == seed and (m.continued or m.width)}
        models = [model for model in record.models if model.name not in left]
        pairs = [pair for pair in record.pairs if not {pair.before, pair.after} & left]
        yield f"seed {seed}", dataclasses.replace(record, models=models, pairs=pairs)


# ----------------------------------------------------------------------------------------- measures


def following(c: Comparison) -> bool:
    """Instructions that a program checks."""
    if c.name.startswith("ifeval"):
        return c.metric.startswith("inst_level_strict_acc")
    return c.suite == "following" and c.primary


def overall(c: Comparison) -> bool:
    """All that is a share, new text and what was learnt aside; the average of sixteen where it was
    taken."""
    if c.suite == AVERAGES:
        return c.name == "average"
    return c.suite not in ("learn", "new_text") and c.primary and is_share(c.unit, c.metric)


def kept(c: Comparison) -> bool:
    """What the base knew before, as shares."""
    return c.suite == "keep" and c.primary and is_share(c.unit, c.metric)


def new_text(c: Comparison) -> bool:
    """Held-out new text."""
    return c.suite == "new_text" and c.primary


def strict(c: Comparison) -> bool:
    """Problems solved, the answer in its format."""
    return c.metric == "exact_match,strict-match"


def flexible(c: Comparison) -> bool:
    """Problems solved, the answer anywhere."""
    return c.metric == "exact_match,flexible-extract"


Measure = Callable[[Comparison], bool]
WORDS: dict[Measure, str] = {
    following: "following",
    overall: "overall",
    kept: "old knowledge",
    new_text: "new text",
    strict: "problems solved, strict",
    flexible: "problems solved, flexible",
}


def gain_of(compared: Compared, measure: Measure) -> Gain | None:
    """The change of a measure over seeds; None where nothing was compared, a seed lacks it or it is
    not finite."""
    entries: dict[tuple[str, str, str], None] = {}
    for comparisons in compared.values():
        for c in comparisons:
            if measure(c):
                entries[c.suite, c.name, c.metric] = None
    averages = [entry for entry in entries if entry[0] == AVERAGES]  # its members are in it
    return gain_over_seeds(compared, averages or list(entries))


def title(after: Kind, before: Kind, measure: Measure, budget: int | None) -> str:
    """What a change is of, for people."""
    tokens = "new text" if budget is None else f"{shown_tokens(budget)} tokens"
    return f"{WORDS[measure]}, {NAMES[after]} against {NAMES[before]}".format(tokens=tokens)


@dataclasses.dataclass(frozen=True)
class Study:
    """A record, asked for changes."""

    record: ResidualRecord

    @property
    def continued(self) -> list[StudiedModel]:
        """Models that were trained on new text."""
        return [model for model in self.record.models if model.budget is not None]

    @property
    def family(self) -> str:
        """That which is continued."""
        return self.continued[0].family if self.continued else "".join(self.record.families[:1])

    @property
    def widths(self) -> list[int]:
        """Of the models, the smallest first."""
        return sorted({model.width for model in self.record.models})

    @property
    def width(self) -> int:
        """The first, which the claims are about."""
        return self.record.models[0].width if self.record.models else 0

    @property
    def budgets(self) -> list[int]:
        """Tokens of new text, the smallest first; raises `NotMeasured` where nothing was
        continued."""
        family = self.family
        budgets = sorted({model.budget or 0 for model in self.continued if model.family == family})
        if not budgets:
            raise NotMeasured("a continued model")
        return budgets

    def change(
        self,
        after: Kind,
        before: Kind,
        measure: Measure,
        *,
        budget: int | None = None,
        width: int | None = None,
    ) -> Gain:
        """Of models of the family that is continued.

        Args:
            after, before: what they are.
            measure: what is compared.
            budget: of those that are continued; None: the largest.
            width: None: the first.

        Raises:
            NotMeasured: it was not compared, or is not finite.
        """
        if budget is None and (after[1] or before[1]):
            budget = self.budgets[-1]
        width = self.width if width is None else width
        gain = self._between(
            self._models(after, budget, width), self._models(before, budget, width), measure
        )
        if gain is None:
            raise NotMeasured(title(after, before, measure, budget))
        return gain

    def _models(self, kind: Kind, budget: int | None, width: int) -> list[StudiedModel]:
        """Of the family, of a budget if they are continued; of those with a residual only with its
        own, at scale 1."""
        family, models = self.family, []
        budget = budget if kind[1] else None
        for m in self.record.models:
            own_residual = m.residual is None or (m.residual == m.family and m.scale in (None, 1))
            same = (m.family, m.width, m.budget) == (family, width, budget)
            if same and own_residual and (m.start, m.continued, m.restored) == kind:
                models.append(m)
        return models

    def _given(self) -> list[StudiedModel]:
        return [
            model
            for model in self.record.models
            if not model.continued and model.width == self.width
        ]

    def carried(self, start: str, before: Kind) -> list[tuple[StudiedModel, Gain]]:
        """Given models with a residual that is not their own pair's, at scale 1, against models of
        their family: one of each family and residual, with the change in following over seeds."""
        groups: dict[tuple[str, str], list[StudiedModel]] = {}
        for m in self._given():
            foreign = m.residual is not None and (start == DERIVED or m.residual != m.family)
            if m.start == start and foreign and m.scale in (None, 1):
                groups.setdefault((m.family, str(m.residual)), []).append(m)
        changes = []
        for (family, _), later in groups.items():
            bare = [
                m
                for m in self._given()
                if (m.family, m.start, m.continued, m.restored) == (family, *before)
            ]
            gain = self._between(later, bare, following)
            if gain is not None:
                changes.append((later[0], gain))
        return changes

    def siblings(self) -> tuple[StudiedModel, Gain]:
        """How much better an instruct model follows than the first family's; raises `NotMeasured`
        where there is no other family."""
        models = [model for model in self._given() if model.start == INSTRUCT and model.given]
        families = list(dict.fromkeys(model.family for model in models))
        if len(families) > 1:
            first = [model for model in models if model.family == families[0]]
            other = [model for model in models if model.family == families[1]]
            gain = self._between(other, first, following)
            if gain is not None:
                return other[0], gain
        raise NotMeasured("a sibling's instruct model beside the first")

    def _between(
        self, later: Sequence[StudiedModel], earlier: Sequence[StudiedModel], measure: Measure
    ) -> Gain | None:
        seeds, before = (
            {model.name: model.seed for model in later},
            {model.name for model in earlier},
        )
        comparisons = {}
        for pair in self.record.pairs:
            if pair.after in seeds and pair.before in before:
                comparisons[seeds[pair.after]] = pair.comparisons
        return gain_of(comparisons, measure)


# -------------------------------------------------------------------------------------------- rules


def figure_of(figure: Figure, what: str, level: float, like: Gain) -> ClaimFigure:
    """A change as claims show it, in the unit and of the samples of `like`."""
    n = (
        f"{len(figure.by_seed)} seed{'s' if len(figure.by_seed) != 1 else ''}, {like.samples} "
        "samples"
    )
    return ClaimFigure(
        what=what, value=figure.value, interval=figure.interval_at(level), n=n, unit=like.unit
    )


def paired(one: Gain, other: Gain, what: str) -> None:
    """Raises `NotMeasured` where two changes are not of the same seeds."""
    if one.by_seed.keys() != other.by_seed.keys():
        raise NotMeasured(f"{what} with the same seeds")


def with_beside(part: Part, *beside: ClaimFigure) -> Part:
    """A part with figures beside it that it is not judged by."""
    return dataclasses.replace(part, figures=[*part.figures, *beside])


def changes(
    says: str, after: Kind, before: Kind, *, loses: bool = False, yes: str, no: str
) -> Rule[Study]:
    """At every budget following is better (worse, if it `loses`) by more than `LEAST`; `{tokens}`
    stands for the budget in `yes` and `no`."""

    def judge(study: Study, level: float) -> list[Part]:
        parts = []
        for budget in study.budgets:
            gain = study.change(after, before, following, budget=budget)
            figure = figure_of(gain, title(after, before, following, budget), level, gain)
            tokens = f"{shown_tokens(budget)} tokens"
            judge_figure, bound = (below, -LEAST) if loses else (above, LEAST)
            parts.append(
                judge_figure(
                    figure, bound, yes=yes.format(tokens=tokens), no=no.format(tokens=tokens)
                )
            )
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
                gain - other * share, f"{what}, less {share:g} x ({than})", level, gain
            )
            tokens = f"{shown_tokens(budget)} tokens"
            judged = above(rest, 0.0, yes=yes.format(tokens=tokens), no=no.format(tokens=tokens))
            beside = figure_of(gain, what, level, gain), figure_of(other, than, level, gain)
            parts.append(with_beside(judged, *beside))
        return parts

    return Rule(says, judge)


def more_with_tokens(study: Study, level: float) -> list[Part]:
    """The change at the largest budget minus that at the smallest, seed by seed, lies below
    -`LEAST`."""
    least, most = study.budgets[0], study.budgets[-1]
    if least == most:
        raise NotMeasured("a second budget")
    small = study.change(NEW_INSTRUCT, OLD_INSTRUCT, following, budget=least)
    large = study.change(NEW_INSTRUCT, OLD_INSTRUCT, following, budget=most)
    paired(small, large, "the instruct model continued on two budgets")
    # the same prompts of the same instruct model: what the samples add to the difference is in the
    # seeds
    difference = Figure.over_seeds((large - small).by_seed)
    what = (
        f"following, change after {shown_tokens(most)} tokens - after {shown_tokens(least)} tokens"
    )
    figure = figure_of(difference, what, level, large)
    return [
        below(
            figure,
            -LEAST,
            yes="it loses more with more tokens",
            no="it does not lose more with more tokens",
        )
    ]


def strict_falls(study: Study, level: float) -> list[Part]:
    """At the largest budget, against the instruct model: strict falls by more than `LEAST`, and
    flexible loses less than a quarter of that."""
    hard, soft = (
        study.change(RESIDUAL, OLD_INSTRUCT, strict),
        study.change(RESIDUAL, OLD_INSTRUCT, flexible),
    )
    falls = figure_of(
        hard, "problems solved, strict: base + new text + residual against instruct", level, hard
    )
    keeps = figure_of(soft - hard * LITTLE, f"flexible, less {LITTLE:g} x strict", level, hard)
    first = below(falls, -LEAST, yes="strict answers fall", no="strict answers do not fall")
    second = above(
        keeps,
        0.0,
        yes="the answers themselves fall little",
        no="the answers themselves fall as well",
    )
    return [first, with_beside(second, figure_of(soft, "problems solved, flexible", level, hard))]


def carries(start: str, before: Kind, missing: str) -> Rule[Study]:
    """A residual brings following to models that it is not of."""

    def judge(study: Study, level: float) -> list[Part]:
        parts = []
        for model, gain in study.carried(start, before):
            name = model.repeated
            figure = figure_of(gain, f"following, {name} against without", level, gain)
            parts.append(
                above(
                    figure, LEAST, yes=f"{name} follows better", no=f"{name} does not follow better"
                )
            )
        if not parts:
            raise NotMeasured(missing)
        return parts

    return Rule(
        "Every one follows better with the residual than without, by more than 2 points.", judge
    )


def better_sibling(study: Study, level: float) -> list[Part]:
    """The weaker base with the better sibling's residual follows better than its own instruct
    model, and the better base with the weaker sibling's follows worse than its own, each by more
    than `LEAST`."""
    other, lead = study.siblings()
    parts = []
    for model, gain in study.carried(BASE, OLD_INSTRUCT):
        name = model.repeated
        figure = figure_of(gain, f"following, {name} against its own instruct model", level, gain)
        better, worse = f"{name} is better than its own", f"{name} is worse than its own"
        if (model.residual == other.family) == (lead.value > 0):
            parts.append(above(figure, LEAST, yes=better, no=worse))
        else:
            parts.append(below(figure, -LEAST, yes=worse, no=better))
    if not parts:
        raise NotMeasured("a sibling's residual")
    return parts


def small_models(study: Study, level: float) -> list[Part]:
    """What the residual brings to the continued base at the smallest width minus what it brings at
    the largest, seed by seed, lies below -`LEAST`. (The paper's figures are of siblings; every
    width here has its own pair's residual.)"""
    if len(study.widths) < 2:
        raise NotMeasured("a model of another size beside it")
    least, most = study.widths[0], study.widths[-1]
    small = study.change(RESIDUAL, NEW_BASE, following, width=least)
    large = study.change(RESIDUAL, NEW_BASE, following, width=most)
    paired(small, large, "the residual at the smallest and the largest width")
    brings = "following, what the residual brings at width"
    figure = figure_of(small - large, f"{brings} {least} - at width {most}", level, large)
    judged = below(
        figure,
        -LEAST,
        yes="the smaller model gains less",
        no="the smaller model does not gain less",
    )
    at_least = figure_of(small, f"{brings} {least}", level, large)
    at_most = figure_of(large, f"{brings} {most}", level, large)
    return [with_beside(judged, at_least, at_most)]


# ------------------------------------------------------------------------------------ preconditions


@dataclasses.dataclass(frozen=True)
class Width:
    """A study at one width of its models."""

    study: Study
    width: int

    @property
    def at(self) -> str:
        """For people; empty where models have no width."""
        return f" at width {self.width}" if self.width else ""


def instruction_tuning_worked(widths: Callable[[Study], Sequence[int]]) -> Requirement:
    """Instruct models follow better than their bases, at some widths."""
    return Requirement(
        name="instruction tuning took",
        cases=lambda study: [Width(study, width) for width in widths(study)],
        of=lambda case: (
            case.study.change(OLD_INSTRUCT, OLD_BASE, following, width=case.width).value
        ),
        at_least=LEAST_TUNING_GAIN,
        figure="following, instruct - base{case.at}",
        advice="tune the instruct model longer, or measure what it was tuned to do",
    )


def continuing_cost(measure: Measure) -> Requirement:
    """Continuing cost the instruct model something, after the largest budget."""
    return Requirement(
        name="continuing cost the instruct model something",
        of=lambda study: study.change(NEW_INSTRUCT, OLD_INSTRUCT, measure).value,
        at_most=-LEAST,
        figure=f"{WORDS[measure]}, continued instruct - instruct",
        advice="continue on more text, or at a higher rate",
    )


def instruct_model_solves(measure: Measure, words: str) -> Requirement:
    """The instruct model solves problems, and says so in the format."""
    return Requirement(
        name="the instruct model solves problems",
        of=lambda study: study.change(RESIDUAL, OLD_INSTRUCT, measure).before,
        at_least=LEAST_SOLVED,
        figure=f"the instruct model's problems solved, {words}",
        advice="tune on more worked problems",
    )


def nearest_end(study: Study) -> float:
    """Of the interval of the siblings' difference, the end that is nearer to 0; 0 where it contains
    0."""
    interval = study.siblings()[1].interval
    if interval is None or not all(map(math.isfinite, interval)):
        raise NotMeasured("the siblings' difference with an interval")
    low, high = interval
    return 0.0 if low <= 0 <= high else min(abs(low), abs(high))


TUNING_WORKED = instruction_tuning_worked(lambda study: [study.width])
TUNING_WORKED_AT_EVERY_WIDTH = instruction_tuning_worked(lambda study: study.widths)
NEW_TEXT_LEARNT = Requirement(
    name="continuing taught the new text",
    of=lambda study: study.change(NEW_BASE, OLD_BASE, new_text).value,
    at_least=LEAST_LEARNT,
    figure="nats a token of held-out new text that the continued base is better by",
    advice="continue on more text, or at a higher rate",
)
BASE_ABOVE_CHANCE = Requirement(
    name="the base is above chance",
    of=lambda study: study.change(NEW_BASE, OLD_BASE, kept).before,
    at_least=LEAST_KNOWN,
    figure="the base on what is to be kept",
    advice="train the base longer, or ask what it knows",
)
TUNING_AGAIN_WORKED = Requirement(
    name="tuning the continued base took",
    of=lambda study: study.change(TUNED, NEW_BASE, following).value,
    at_least=LEAST_TUNING_GAIN,
    figure="following, continued base + tuning - continued base",
    advice="give 'retuned: true', or tune longer",
)
SIBLINGS_DIFFER = Requirement(
    name="one sibling is the better one",
    of=nearest_end,
    at_least=LEAST,
    figure="difference in following of the siblings' instruct models (nearer end of its interval)",
    advice="make one of the siblings better, or add seeds",
)
QUARTER = f"{100 * LITTLE:.0f} % of what the instruct model loses"
CONTINUING_COST_FOLLOWING = continuing_cost(following)


def _claim(
    number: str, text: str, paper: str, rule: Rule[Study], *needs: Requirement
) -> Statement[Study]:
    return Statement(
        number=number, recipe=RECIPE, text=text, paper=paper, rule=rule, preconditions=needs
    )


STATEMENTS = (
    _claim(
        "1a",
        "Continuing the instruct model on new text loses instruction following.",
        "IFEval inst-level strict 47.84 to 40.41 / 38.61 / 35.25 after 100M / 500M / 1B tokens "
        "(table 2)",
        changes(
            "At every budget the continued instruct model follows worse than the instruct model "
            "by more than 2 points.",
            NEW_INSTRUCT,
            OLD_INSTRUCT,
            loses=True,
            yes="it loses instruction following after {tokens}",
            no="it does not lose instruction following after {tokens}",
        ),
        TUNING_WORKED,
        NEW_TEXT_LEARNT,
    ),
    _claim(
        "1b",
        "It loses more with more tokens.",
        "-7.43 after 100M, -12.59 after 1B (table 2)",
        Rule(
            "Following changes by more than 2 points less at the largest budget than at the "
            "smallest, seed by seed.",
            more_with_tokens,
        ),
        TUNING_WORKED,
        NEW_TEXT_LEARNT,
    ),
    _claim(
        "1c",
        "The base loses little, by the same measures.",
        "average of the base 51.64 to 51.41 after 1B, of the instruct model 62.94 to 58.00 (table "
        "2); 'minimal quality degradation' (section 4.1)",
        exceeds(
            "At the largest budget the base loses less than a quarter of what the instruct model "
            "loses, overall.",
            (NEW_BASE, OLD_BASE),
            measure=overall,
            share=LITTLE,
            of=(NEW_INSTRUCT, OLD_INSTRUCT),
            yes=f"the base loses less than {QUARTER}",
            no=f"the base loses more than {QUARTER}",
        ),
        TUNING_WORKED,
        NEW_TEXT_LEARNT,
        BASE_ABOVE_CHANCE,
        continuing_cost(overall),
    ),
    _claim(
        "2a",
        "Base + residual follows instructions better than the continued instruct model.",
        "inst-level strict 51.68 against 40.41 / 38.61 / 35.25 (table 2)",
        changes(
            "At every budget base + residual follows better than the continued instruct model by "
            "more than 2 points.",
            RESIDUAL,
            NEW_INSTRUCT,
            yes="better than continuing the instruct model at {tokens}",
            no="not better than continuing the instruct model at {tokens}",
        ),
        TUNING_WORKED,
        NEW_TEXT_LEARNT,
        CONTINUING_COST_FOLLOWING,
    ),
    _claim(
        "2b",
        "Base + residual is at or above the original instruct model.",
        "51.68 / 51.44 / 51.68 against 47.84 (table 2)",
        exceeds(
            "At every budget base + residual follows no worse than the instruct model by more than "
            "a fifth of what that loses by continuing.",
            (RESIDUAL, OLD_INSTRUCT),
            share=MARGIN,
            of=(NEW_INSTRUCT, OLD_INSTRUCT),
            largest=False,
            yes="at or above the instruct model at {tokens}",
            no="below the instruct model at {tokens}",
        ),
        TUNING_WORKED,
        NEW_TEXT_LEARNT,
        CONTINUING_COST_FOLLOWING,
    ),
    _claim(
        "2c",
        "It keeps most of what the new text taught (ours, not the paper's).",
        "no held-out new text was measured; MMLU 67.69 against 63.83 (table 2)",
        exceeds(
            "At the largest budget base + residual keeps more than half of what continuing taught "
            "of held-out text.",
            (RESIDUAL, OLD_BASE),
            measure=new_text,
            share=MOST,
            of=(NEW_BASE, OLD_BASE),
            yes="the result keeps more than half of what continuing taught",
            no="the result keeps less than half of what continuing taught",
        ),
        TUNING_WORKED,
        NEW_TEXT_LEARNT,
    ),
    _claim(
        "2d",
        "It is as good as tuning the continued base once more.",
        "'no traditional instruction tuning is required' (section 1); no figure of setting S2 is "
        "printed",
        exceeds(
            "At the largest budget the residual brings the continued base at least four fifths of "
            "the following that tuning it once more brings.",
            (RESIDUAL, NEW_BASE),
            share=1 - MARGIN,
            of=(TUNED, NEW_BASE),
            yes="the residual brings what tuning brings",
            no="the residual brings less than tuning",
        ),
        TUNING_WORKED,
        NEW_TEXT_LEARNT,
        TUNING_AGAIN_WORKED,
    ),
    _claim(
        "2e",
        "On worked problems it loses the format of the answer, not the answer (ours: the paper's "
        "text does not speak of its figures).",
        "GSM8K strict 74.98 to 46.93, flexible 75.06 to 74.83 at 100M (table 2)",
        Rule(
            "At the largest budget, against the instruct model, problems solved by strict "
            "judgement fall by more than 2 points, and by the flexible one by less than a quarter "
            "of that.",
            strict_falls,
        ),
        TUNING_WORKED,
        instruct_model_solves(strict, "strict"),
        instruct_model_solves(flexible, "flexible"),
    ),
    _claim(
        "3a",
        "A sibling's residual brings instruction following to the other base.",
        "Llama 3 base + 3.1 residual 51.92 (base 17.87); the other way 43.76 (base 14.63) (table "
        "3)",
        carries(BASE, OLD_BASE, "a sibling's residual"),
        TUNING_WORKED,
    ),
    _claim(
        "3b",
        "So does it to a model derived from the base.",
        "DocChat inst-level strict 34.65, + 3 residual 46.04, + 3.1 residual 53.12 (table 4)",
        carries(DERIVED, (DERIVED, False, ""), "a derived model with a residual"),
        TUNING_WORKED,
    ),
    _claim(
        "3c",
        "The better sibling gives the better residual.",
        "Llama 3 base + 3.1 residual 64.25, its own instruct model 62.94; 3.1 base + 3 residual "
        "62.01, its own 64.42 (averages, table 3, section 4.3)",
        Rule(
            "The weaker base with the better sibling's residual follows better than its own "
            "instruct model, and the better base with the weaker sibling's follows worse than its "
            "own, each by more than 2 points.",
            better_sibling,
        ),
        TUNING_WORKED,
        SIBLINGS_DIFFER,
    ),
    _claim(
        "4",
        "The gain shrinks for smaller models.",
        "8B: 51.64 to 64.25; Qwen 2 1.5B 48.07 to 48.54, Qwen 2.5 1.5B 51.24 to 51.35 (averages, "
        "table 3)",
        Rule(
            "The residual brings the continued base more than 2 points less following at the "
            "smallest width than at the largest, seed by seed.",
            small_models,
        ),
        TUNING_WORKED_AT_EVERY_WIDTH,
        NEW_TEXT_LEARNT,
    ),
)
