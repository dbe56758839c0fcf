"""What "Balancing Continuous Pre-Training" claims, held against a study of the residual: holds, does not hold, or
cannot tell.

The rules stand here and were written before any outcome of the study was looked at:

- A *change* is taken between two models on the same questions, pair by pair, `after - before` signed so that more is
  better, as the mean over seeds. Its interval covers seeds and evaluated samples (`holdfast.statistics.gains`). In a
  study of small worlds a seed is a world of its own: people, texts, base, instruct model.
- *Following*: what leads the entries of the suite `following` (instructions that a program checks); at the paper's size
  IFEval's `inst_level_strict_acc`. *Overall*: the mean of all that is a share and no new text, following among it, the
  same entries for every model; at the paper's size its average of sixteen. *New text*: documents held out of what was
  trained on. *Strict*, *flexible*: the two figures of GSM8K, or of word problems judged as it judges.
- *Loses*, *improves*: by more than `LEAST` (2 points, or 0.02 nats a token) with the whole interval.
- *Little*: less than a quarter, *most*: more than half, *at or above*, *as good as*: not below by more than a fifth, of
  what the claim names. The bound is a change itself: its part is taken off seed by seed, and the rest has to lie above
  0 with its whole interval.
- Claims are about the residual at scale 1, as the paper's, and about the first width of the study, but for claim 4.

What has to be so before a rule may speak: instruction tuning took, continuing taught the new text, the base knew what
it may lose, the instruct model lost what is to be brought back, the siblings differ, the instruct model solves
problems. Claims marked as ours are not the paper's.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from holdfast.evaluation.averages import SUITE as AVERAGES
from holdfast.papers.claims import rules as engine
from holdfast.papers.claims.rules import (
    MARGIN,
    Claim,
    ClaimFigure,
    Evidence,
    Part,
    Precondition,
    Requirement,
    Statement,
    above,
    at_least,
    below,
    unknown,
)
from holdfast.records.comparison import Comparison
from holdfast.records.figure import Figure
from holdfast.records.metrics import is_share
from holdfast.records.residual import BASE, DERIVED, INSTRUCT, ResidualRecord, StudiedModel
from holdfast.statistics.gains import Gain, gain_over_seeds
from holdfast.support.token_counts import shown_tokens

RECIPE = "residual"
LEAST = 0.02
"""The least change that counts: of shares, and of nats a token."""
LITTLE, MOST = 0.25, 0.5
"""Of what a claim names: what may be lost and still is little, and what has to be kept to be most of it."""
TOOK = 0.2
"""By so much an instruct model follows better than its base, else it was not tuned (the paper's: 0.30)."""
LEARNT = 0.05
"""Nats a token by which continuing betters the held-out new text, else nothing was learnt."""
KNOWN = 0.4
"""Share of what is to be kept that the base answers: guessing among four is right in 0.25."""
SOLVES = 0.3
"""Share of word problems that the instruct model solves, judged flexibly."""
READING = (
    "A change is taken between two models on the same questions, pair by pair, signed so that more is better; the "
    "mean over seeds, each of them a world with models of its own.",
    "Intervals are at 95 % and cover seeds and evaluated samples; with one seed the samples alone.",
    "Following: instructions that a program checks. Overall: the mean of following, old knowledge and word problems, "
    "the same for every model. New text: documents held out of what was trained on.",
    "Little: less than a quarter of what is named; most: more than half; at or above, as good as: not below by more "
    "than a fifth. A change of less than 2 points counts as none.",
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


def check_claims(record: ResidualRecord | None) -> list[Claim]:
    """Every claim of the paper, held against a study.

    Args:
        record: a study's, finished or not; None: not run.
    """
    models = record.models if record is not None else []
    evidence = Evidence(
        record=None if record is None else _Study(record),
        waiting=sum(m.state in ("waiting", "running") for m in models),
        seeds=len({m.seed for m in models}),
        noun="model",
        without={} if record is None else {name: _Study(rest) for name, rest in _without(record)},
    )
    return engine.check_claims(STATEMENTS, {RECIPE: evidence})


def _without(record: ResidualRecord) -> Iterator[tuple[str, ResidualRecord]]:
    """The record with one seed left out, by name; nothing where there is one."""
    seeds = sorted({m.seed for m in record.models if m.continued})
    for seed in seeds if len(seeds) > 1 else ():
        left = {m.name for m in record.models if m.seed == seed and (m.continued or m.width)}
        models = [m for m in record.models if m.name not in left]
        pairs = [p for p in record.pairs if not {p.before, p.after} & left]
        yield f"seed {seed}", dataclasses.replace(record, models=models, pairs=pairs)


# ------------------------------------------------------------------------------------------------------------- measures


def following(c: Comparison) -> bool:
    """Instructions that a program checks."""
    if c.name.startswith("ifeval"):
        return c.metric.startswith("inst_level_strict_acc")
    return c.suite == "following" and c.primary


def overall(c: Comparison) -> bool:
    """All that is a share, new text and what was learnt aside; the average of sixteen where it was taken."""
    if c.suite == AVERAGES:
        return c.name == "average"
    return c.suite not in ("target", "new_text") and c.primary and is_share(c.unit, c.metric)


def kept(c: Comparison) -> bool:
    """What the base knew before, as shares."""
    return c.suite == "source" and c.primary and is_share(c.unit, c.metric)


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


def gain_of(compared: Compared, measure: Measure) -> Gain | None:
    """The change of a measure over seeds; None where nothing was compared, a seed lacks it or it is not finite."""
    found = [c for held in compared.values() for c in held if measure(c)]
    if any(c.suite == AVERAGES for c in found):
        found = [c for c in found if c.suite == AVERAGES]  # its members are in it
    return gain_over_seeds(compared, list(dict.fromkeys((c.suite, c.name, c.metric) for c in found)))


class _Study:
    """A record, asked for changes."""

    def __init__(self, record: ResidualRecord) -> None:
        self.record = record
        continued = [m for m in record.models if m.budget is not None]
        self.family = continued[0].family if continued else "".join(record.families[:1])
        self.widths = sorted({m.width for m in record.models})
        self.width = record.models[0].width if record.models else 0
        self.budgets = sorted({m.budget for m in continued if m.family == self.family and m.budget is not None})

    def change(
        self, after: Kind, before: Kind, measure: Measure, *, budget: int | None = None, width: int | None = None
    ) -> Gain | None:
        """Of models of the family that is continued.

        Args:
            after, before: what they are.
            measure: what is compared.
            budget: of those that are continued; None: the largest.
            width: None: the first.
        """
        budget = self.budgets[-1] if budget is None and self.budgets else budget
        width = self.width if width is None else width

        def fits(m: StudiedModel, kind: Kind) -> bool:
            own = m.residual is None or (m.residual == m.family and m.scale in (None, 1))
            same = (m.family, m.width, m.budget) == (self.family, width, budget if kind[1] else None)
            return same and own and (m.start, m.continued, m.restored) == kind

        models = self.record.models
        return self._between([m for m in models if fits(m, after)], [m for m in models if fits(m, before)], measure)

    def carried(self, start: str, before: Kind, measure: Measure) -> Iterator[tuple[StudiedModel, Gain]]:
        """Given models with a residual that is not their own pair's, at scale 1, against models of their family: one of
        each family and residual, with the change over seeds."""
        given = [m for m in self.record.models if not m.continued and m.width == self.width]
        held: dict[tuple[str, str], list[StudiedModel]] = {}
        for m in given:
            foreign = m.residual is not None and (start == DERIVED or m.residual != m.family)
            if m.start == start and foreign and m.scale in (None, 1):
                held.setdefault((m.family, str(m.residual)), []).append(m)
        for (family, _), later in held.items():
            bare = [m for m in given if m.family == family and (m.start, m.continued, m.restored) == before]
            gain = self._between(later, bare, measure)
            if gain is not None:
                yield later[0], gain

    def siblings(self) -> tuple[StudiedModel, Gain] | None:
        """How much better an instruct model follows than the first family's; None where there is no other family."""
        given = [m for m in self.record.models if m.start == INSTRUCT and m.given and m.width == self.width]
        families = list(dict.fromkeys(m.family for m in given))
        if len(families) < 2:
            return None
        first, other = ([m for m in given if m.family == f] for f in families[:2])
        gain = self._between(other, first, following)
        return None if gain is None else (other[0], gain)

    def _between(self, later: Sequence[StudiedModel], earlier: Sequence[StudiedModel], measure: Measure) -> Gain | None:
        seeds, before = {m.name: m.seed for m in later}, {m.name for m in earlier}
        pairs = [p for p in self.record.pairs if p.after in seeds and p.before in before]
        return gain_of({seeds[p.after]: p.comparisons for p in pairs}, measure)


# ---------------------------------------------------------------------------------------------------------------- rules


def figure_of(found: Figure, what: str, level: float, like: Gain) -> ClaimFigure:
    """A change as claims show it, in the unit and of the samples of `like`."""
    n = f"{len(found.by_seed)} seed{'s' if len(found.by_seed) != 1 else ''}, {like.samples} samples"
    return ClaimFigure(what=what, value=found.value, interval=found.interval_at(level), n=n, unit=like.unit)


def _missing(what: str) -> list[Part]:
    return [unknown(f"{what} was not measured here, or is not finite")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """One change, held against the least that counts or against a part of another change."""

    after: Kind
    before: Kind
    measure: Measure = following
    words: str = "following"
    """The measure, in words."""
    yes: str
    """Why it holds; `{tokens}` stands for the budget, here and below."""
    no: str
    loses: bool = False
    """It has to lie below -`LEAST` in place of above."""
    part: float = 0.0
    """Of the change from `of[1]` to `of[0]`: it is taken off, and the rest has to lie above 0."""
    of: tuple[Kind, Kind] | None = None
    largest: bool = False
    """At the largest budget alone, not at every one."""

    def __call__(self, study: _Study, level: float) -> list[Part]:
        """See the class."""
        parts: list[Part] = []
        for budget in study.budgets[-1:] if self.largest else study.budgets:
            tokens = f"{shown_tokens(budget)} tokens"
            what = f"{self.words}, {NAMES[self.after]} against {NAMES[self.before]}".format(tokens=tokens)
            yes, no = self.yes.format(tokens=tokens), self.no.format(tokens=tokens)
            found = study.change(self.after, self.before, self.measure, budget=budget)
            if found is None:
                return _missing(what)
            alone = figure_of(found, what, level, found)
            if self.of is None:
                parts.append((below if self.loses else above)(alone, LEAST * (-1) ** self.loses, yes=yes, no=no))
                continue
            named = f"{self.words}, {NAMES[self.of[0]]} against {NAMES[self.of[1]]}".format(tokens=tokens)
            other = study.change(*self.of, self.measure, budget=budget)
            if other is None or other.by_seed.keys() != found.by_seed.keys():
                return _missing(named)
            rest = figure_of(found - other * self.part, f"{what}, less {self.part:g} x ({named})", level, found)
            judged = above(rest, 0.0, yes=yes, no=no)
            parts.append(
                dataclasses.replace(judged, figures=[*judged.figures, alone, figure_of(other, named, level, found)])
            )
        return parts or _missing("a continued model")


def _more_with_tokens(study: _Study, level: float) -> list[Part]:
    """The change at the largest budget minus that at the smallest, seed by seed, lies below -`LEAST`."""
    if len(study.budgets) < 2:
        return [unknown("it needs more than one budget")]
    ends = study.budgets[0], study.budgets[-1]
    small, large = (study.change(NEW_INSTRUCT, OLD_INSTRUCT, following, budget=b) for b in ends)
    if small is None or large is None or small.by_seed.keys() != large.by_seed.keys():
        return _missing("the instruct model continued on two budgets")
    # the same prompts of the same instruct model: what the samples add to the difference is in the seeds
    difference = Figure.over_seeds((large - small).by_seed)
    what = f"following, change after {shown_tokens(ends[1])} tokens - after {shown_tokens(ends[0])} tokens"
    figure = figure_of(difference, what, level, large)
    return [below(figure, -LEAST, yes="it loses more with more tokens", no="it does not lose more with more tokens")]


def _strict_falls(study: _Study, level: float) -> list[Part]:
    """At the largest budget, against the instruct model: strict falls by more than `LEAST`, and flexible loses less
    than a quarter of that."""
    found = {m: study.change(RESIDUAL, OLD_INSTRUCT, m) for m in (strict, flexible)}
    hard, soft = found[strict], found[flexible]
    if hard is None or soft is None:
        return _missing("word problems, strict and flexible,")
    falls = figure_of(hard, "problems solved, strict: base + new text + residual against instruct", level, hard)
    keeps = figure_of(soft - hard * LITTLE, f"flexible, less {LITTLE:g} x strict", level, hard)
    alone = figure_of(soft, "problems solved, flexible", level, hard)
    first = below(falls, -LEAST, yes="strict answers fall", no="strict answers do not fall")
    second = above(keeps, 0.0, yes="the answers themselves fall little", no="the answers themselves fall as well")
    return [first, dataclasses.replace(second, figures=[*second.figures, alone])]


def _carried(start: str, before: Kind, missing: str) -> Callable[[_Study, float], list[Part]]:
    def check(study: _Study, level: float) -> list[Part]:
        """Every one follows better with the residual than without, by more than `LEAST`."""
        parts = []
        for model, gain in study.carried(start, before, following):
            name = model.repeated
            figure = figure_of(gain, f"following, {name} against without", level, gain)
            parts.append(above(figure, LEAST, yes=f"{name} follows better", no=f"{name} does not follow better"))
        return parts or _missing(missing)

    return check


def _better_sibling(study: _Study, level: float) -> list[Part]:
    """The weaker base with the better sibling's residual follows better than its own instruct model, and the better
    base with the weaker sibling's follows worse than its own, each by more than `LEAST`."""
    siblings = study.siblings()
    if siblings is None:
        return _missing("a sibling's instruct model beside the first")
    other, lead = siblings
    parts = []
    for model, gain in study.carried(BASE, OLD_INSTRUCT, following):
        gets_better = (model.residual == other.family) == (lead.value > 0)
        name, judge = model.repeated, above if gets_better else below
        what = f"following, {name} against its own instruct model"
        figure = figure_of(gain, what, level, gain)
        words = (f"{name} is better than its own", f"{name} is worse than its own")
        yes, no = words if gets_better else words[::-1]
        parts.append(judge(figure, LEAST if gets_better else -LEAST, yes=yes, no=no))
    return parts or _missing("a sibling's residual")


def _small_models(study: _Study, level: float) -> list[Part]:
    """What the residual brings to the continued base at the smallest width minus what it brings at the largest, seed by
    seed, lies below -`LEAST`. (The paper's figures are of siblings; every width here has its own pair's residual.)"""
    if len(study.widths) < 2:
        return [unknown("it needs models of several sizes side by side")]
    ends = study.widths[0], study.widths[-1]
    small, large = (study.change(RESIDUAL, NEW_BASE, following, width=w) for w in ends)
    if small is None or large is None or small.by_seed.keys() != large.by_seed.keys():
        return _missing("the residual at the smallest and the largest width")
    what = f"following, what the residual brings at width {ends[0]} - at width {ends[1]}"
    figures = [
        figure_of(g, f"following, what the residual brings at width {w}", level, large)
        for w, g in zip(ends, (small, large), strict=True)
    ]
    figure = figure_of(small - large, what, level, large)
    judged = below(figure, -LEAST, yes="the smaller model gains less", no="the smaller model does not gain less")
    return [dataclasses.replace(judged, figures=[*judged.figures, *figures])]


# -------------------------------------------------------------------------------------------------------- preconditions


def took(study: _Study) -> list[Precondition]:
    """Instruct models follow better than their bases, at the width that is judged."""
    return [_took(study, study.width)]


def took_everywhere(study: _Study) -> list[Precondition]:
    """The same at every width."""
    return [_took(study, width) for width in study.widths]


def _took(study: _Study, width: int) -> Precondition:
    gain = study.change(OLD_INSTRUCT, OLD_BASE, following, width=width)
    return at_least(
        "instruction tuning took",
        None if gain is None else gain.value,
        TOOK,
        figure="following, instruct - base" + (f" at width {width}" if width else ""),
        advice="tune the instruct model longer, or measure what it was tuned to do",
    )


def _value(after: Kind, before: Kind, measure: Measure) -> Callable[[_Study], float | None]:
    def value(study: _Study) -> float | None:
        gain = study.change(after, before, measure)
        return None if gain is None else gain.value

    return value


def lost(measure: Measure, words: str) -> Requirement[_Study]:
    """Continuing cost the instruct model something, after the largest budget."""
    return Requirement(
        name="continuing cost the instruct model something",
        of=_value(NEW_INSTRUCT, OLD_INSTRUCT, measure),
        at_most=-LEAST,
        figure=f"{words}, continued instruct - instruct",
        advice="continue on more text, or at a higher rate",
    )


def _base_before(study: _Study) -> float | None:
    gain = study.change(NEW_BASE, OLD_BASE, kept)
    return None if gain is None else gain.before


learnt = Requirement(
    name="continuing taught the new text",
    of=_value(NEW_BASE, OLD_BASE, new_text),
    at_least=LEARNT,
    figure="nats a token of held-out new text that the continued base is better by",
    advice="continue on more text, or at a higher rate",
)
known = Requirement(
    name="the base is above chance",
    of=_base_before,
    at_least=KNOWN,
    figure="the base on what is to be kept",
    advice="train the base longer, or ask what it knows",
)
tuned_again = Requirement(
    name="tuning the continued base took",
    of=_value(TUNED, NEW_BASE, following),
    at_least=TOOK,
    figure="following, continued base + tuning - continued base",
    advice="give 'retuned: true', or tune longer",
)


def solves(study: _Study) -> list[Precondition]:
    """The instruct model solves problems, and says so in the format."""
    found = {
        words: study.change(RESIDUAL, OLD_INSTRUCT, m) for words, m in (("strict", strict), ("flexible", flexible))
    }
    return [
        at_least(
            "the instruct model solves problems",
            None if gain is None else gain.before,
            SOLVES,
            figure=f"the instruct model's problems solved, {words}",
            advice="tune on more worked problems",
        )
        for words, gain in found.items()
    ]


def differ(study: _Study) -> list[Precondition]:
    """One sibling's instruct model is the better one, with the whole interval."""
    siblings = study.siblings()
    interval = None if siblings is None else siblings[1].interval
    nearest = None if interval is None else 0.0 if interval[0] <= 0 <= interval[1] else min(map(abs, interval))
    return [
        at_least(
            "one sibling is the better one",
            nearest if nearest is None or math.isfinite(nearest) else None,
            LEAST,
            figure="difference in following of the siblings' instruct models (nearer end of its interval)",
            advice="make one of the siblings better, or add seeds",
        )
    ]


QUARTER = f"{100 * LITTLE:.0f} % of what the instruct model loses"
LOST = lost(following, "following")
Check = Callable[[_Study, float], list[Part]]
Look = Callable[[_Study], list[Precondition]]
CLAIMS: tuple[tuple[str, str, str, Check, tuple[Look, ...]], ...] = (
    (
        "1a",
        "Continuing the instruct model on new text loses instruction following.",
        "IFEval inst-level strict 47.84 to 40.41 / 38.61 / 35.25 after 100M / 500M / 1B tokens (table 2)",
        Rule(
            after=NEW_INSTRUCT,
            before=OLD_INSTRUCT,
            loses=True,
            yes="it loses instruction following after {tokens}",
            no="it does not lose instruction following after {tokens}",
        ),
        (took, learnt),
    ),
    (
        "1b",
        "It loses more with more tokens.",
        "-7.43 after 100M, -12.59 after 1B (table 2)",
        _more_with_tokens,
        (took, learnt),
    ),
    (
        "1c",
        "The base loses little, by the same measures.",
        "average of the base 51.64 to 51.41 after 1B, of the instruct model 62.94 to 58.00 (table 2); 'minimal quality "
        "degradation' (section 4.1)",
        Rule(
            after=NEW_BASE,
            before=OLD_BASE,
            measure=overall,
            words="overall",
            part=LITTLE,
            of=(NEW_INSTRUCT, OLD_INSTRUCT),
            largest=True,
            yes=f"the base loses less than {QUARTER}",
            no=f"the base loses more than {QUARTER}",
        ),
        (took, learnt, known, lost(overall, "overall")),
    ),
    (
        "2a",
        "Base + residual follows instructions better than the continued instruct model.",
        "inst-level strict 51.68 against 40.41 / 38.61 / 35.25 (table 2)",
        Rule(
            after=RESIDUAL,
            before=NEW_INSTRUCT,
            yes="better than continuing the instruct model at {tokens}",
            no="not better than continuing the instruct model at {tokens}",
        ),
        (took, learnt, LOST),
    ),
    (
        "2b",
        "Base + residual is at or above the original instruct model.",
        "51.68 / 51.44 / 51.68 against 47.84 (table 2)",
        Rule(
            after=RESIDUAL,
            before=OLD_INSTRUCT,
            part=MARGIN,
            of=(NEW_INSTRUCT, OLD_INSTRUCT),
            yes="at or above the instruct model at {tokens}",
            no="below the instruct model at {tokens}",
        ),
        (took, learnt, LOST),
    ),
    (
        "2c",
        "It keeps most of what the new text taught (ours, not the paper's).",
        "no held-out new text was measured; MMLU 67.69 against 63.83 (table 2)",
        Rule(
            after=RESIDUAL,
            before=OLD_BASE,
            measure=new_text,
            words="new text",
            part=MOST,
            of=(NEW_BASE, OLD_BASE),
            largest=True,
            yes="the result keeps more than half of what continuing taught",
            no="the result keeps less than half of what continuing taught",
        ),
        (took, learnt),
    ),
    (
        "2d",
        "It is as good as tuning the continued base once more.",
        "'no traditional instruction tuning is required' (section 1); no figure of setting S2 is printed",
        Rule(
            after=RESIDUAL,
            before=NEW_BASE,
            part=1 - MARGIN,
            of=(TUNED, NEW_BASE),
            largest=True,
            yes="the residual brings what tuning brings",
            no="the residual brings less than tuning",
        ),
        (took, learnt, tuned_again),
    ),
    (
        "2e",
        "On worked problems it loses the format of the answer, not the answer (ours: the paper's text does not speak "
        "of its figures).",
        "GSM8K strict 74.98 to 46.93, flexible 75.06 to 74.83 at 100M (table 2)",
        _strict_falls,
        (took, solves),
    ),
    (
        "3a",
        "A sibling's residual brings instruction following to the other base.",
        "Llama 3 base + 3.1 residual 51.92 (base 17.87); the other way 43.76 (base 14.63) (table 3)",
        _carried(BASE, OLD_BASE, "a sibling's residual"),
        (took,),
    ),
    (
        "3b",
        "So does it to a model derived from the base.",
        "DocChat inst-level strict 34.65, + 3 residual 46.04, + 3.1 residual 53.12 (table 4)",
        _carried(DERIVED, (DERIVED, False, ""), "a derived model with a residual"),
        (took,),
    ),
    (
        "3c",
        "The better sibling gives the better residual.",
        "Llama 3 base + 3.1 residual 64.25, its own instruct model 62.94; 3.1 base + 3 residual 62.01, its own 64.42 "
        "(averages, table 3, section 4.3)",
        _better_sibling,
        (took, differ),
    ),
    (
        "4",
        "The gain shrinks for smaller models.",
        "8B: 51.64 to 64.25; Qwen 2 1.5B 48.07 to 48.54, Qwen 2.5 1.5B 51.24 to 51.35 (averages, table 3)",
        _small_models,
        (took_everywhere, learnt),
    ),
)
STATEMENTS = [
    Statement(number=n, recipe=RECIPE, text=t, paper=p, check=rule, preconditions=looks)
    for n, t, p, rule, looks in CLAIMS
]
