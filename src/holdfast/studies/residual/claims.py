"""What paper 004 claims, held against a study of the residual: holds, does not hold, or cannot tell.

The rules stand here and were written before any outcome was looked at:

- A figure is a paired change between two models, `after - before` signed so that more is better, as the mean over
  seeds. Its interval is at 95 % and covers training seeds and evaluated samples
  (`holdfast.statistics.gains.gain_over_seeds`); one seed leaves the samples alone, and the reason says so.
- "Following" is what leads the entries of the suite `following` of the small study (instructions that a program
  checks); at the paper's size IFEval's `inst_level_strict_acc`. "Kept" is the suite `source` (old knowledge, prose):
  several entries of one unit are averaged, others are told apart.
- "Loses", "regains", "improves": the whole interval on that side of zero. On the other side the claim does not hold;
  across zero it cannot be told.
- "More with more tokens": the change at the largest budget against the change at the smallest, seed by seed; the two
  are of the same start.
- "Loses little" (of the base): less than a quarter of what the instruct model loses of following at the same budget,
  both in shares.
- "At or above": the whole interval above minus a margin of `MARGIN` (20 %) of what continuing the instruct model cost.
  Wholly below it does not hold.
- While models are still to come, claims that they belong to cannot be told.

The paper says of its own figures that they hold at 8B parameters and shrink at 1.5B; a model of a million parameters
can show the mechanism, not the size.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

from holdfast.records.comparison import Comparison
from holdfast.records.residual import BASE, DERIVED, INSTRUCT, ResidualRecord, StudiedModel
from holdfast.statistics.gains import gain_over_seeds
from holdfast.statistics.intervals import seeds_and_samples
from holdfast.studies.engine import claims as engine
from holdfast.studies.engine.claims import (
    MARGIN,
    Claim,
    Evidence,
    Figure,
    Part,
    Precondition,
    Statement,
    above,
    below,
    unknown,
)
from holdfast.support.token_counts import shown_tokens

RECIPE = "residual"
LITTLE = 0.25
"""Of what the instruct model loses: what the base may lose and still lose "little"."""
FOLLOWING, KEPT, NEW = "following", "source", "new_text"
READING = (
    "A change is taken between two models on the same questions, pair by pair, signed so that more is better; the "
    "mean over seeds.",
    "Intervals are at 95 % and cover training seeds and evaluated samples; with one seed the samples alone.",
    "At or above means: not below by more than 20 % of what continuing the instruct model cost, with the whole "
    "interval. Little means: less than a quarter of that.",
    "Following: instructions that a program checks. Kept: what the base knew before. New text: documents held out of "
    "what was trained on.",
)
Compared = Mapping[int, Sequence[Comparison]]
"""Comparisons of one pair of models, by the training seed of the later one."""


def check_claims(record: ResidualRecord | None) -> list[Claim]:
    """Every claim of the paper, held against a study.

    Args:
        record: a study's, finished or not; None: not run.
    """
    models = record.models if record is not None else []
    seeds = sorted({m.seed for m in models})
    evidence = Evidence(
        record=None if record is None else _Study(record),
        waiting=sum(m.state in ("waiting", "running") for m in models),
        seeds=len(seeds),
        noun="model",
        without={} if record is None else {name: _Study(rest) for name, rest in _without(record)},
    )
    return engine.check_claims(STATEMENTS, {RECIPE: evidence})


def _without(record: ResidualRecord) -> Iterator[tuple[str, ResidualRecord]]:
    """The record with one training seed left out, by name; nothing where there is one."""
    made = [m for m in record.models if not m.given]
    seeds = sorted({m.seed for m in made if m.continued})
    for seed in seeds if len(seeds) > 1 else ():
        left = {m.name for m in made if m.seed == seed and m.continued}
        models = [m for m in record.models if m.name not in left]
        pairs = [p for p in record.pairs if not {p.before, p.after} & left]
        yield f"seed {seed}", dataclasses.replace(record, models=models, pairs=pairs)


class _Study:
    """A record, asked for changes."""

    def __init__(self, record: ResidualRecord) -> None:
        self.record = record
        self.family = next((m.family for m in record.models if m.budget is not None), "".join(record.families[:1]))
        self.budgets = sorted({m.budget for m in record.models if m.budget is not None and m.family == self.family})

    def compared(self, after: str, before: str, budget: int) -> Compared:
        """Comparisons of two of `MODELS`, by seed; one that is continued is so on this budget."""
        later, earlier = (
            {m.name: m.seed for m in self.record.models if self._is(m, k, budget)} for k in (after, before)
        )
        return {later[p.after]: p.comparisons for p in self.record.pairs if p.after in later and p.before in earlier}

    def _is(self, model: StudiedModel, kind: str, budget: int) -> bool:
        start, continued, residual = MODELS[kind]
        made = (model.family, model.start, model.budget, model.residual, model.scale if residual else None)
        own = (self.family, 1.0) if residual else (None, None)
        return made == (self.family, start, budget if continued else None, *own) and (continued or model.tokens == 0)

    def carried(self, start: str, before: str, level: float) -> list[Part]:
        """Given models with a residual that is not their own pair's, against the same models without, by following."""
        given = [m for m in self.record.models if m.start == start and not m.continued]
        parts = []
        for model in given:
            bare = {m.name for m in given if m.family == model.family and m.residual is None}
            if model.residual is None or (start == BASE and model.residual == model.family):
                continue
            pairs = [p for p in self.record.pairs if p.after == model.name and p.before in bare]
            found = {seed: p.comparisons for seed, p in enumerate(pairs[:1])}
            figure = change(found, FOLLOWING, f"{model.label} against {before}", level)
            if figure is not None:
                words = (f"{model.label} follows instructions better", f"{model.label} follows instructions worse")
                parts.append(above(figure, 0.0, yes=words[0], no=words[1], between=CROSSES))
        return parts


MODELS = {
    "base": (BASE, False, False),
    "instruct": (INSTRUCT, False, False),
    "base + {tokens}": (BASE, True, False),
    "instruct + {tokens}": (INSTRUCT, True, False),
    "base + {tokens} + residual": (BASE, True, True),
}
"""Name -> start, continued, with its own residual."""
CROSSES = "the interval contains 0"


def change(compared: Compared, suite: str, what: str, level: float) -> Figure | None:
    """The mean change of a suite's leading measures over seeds with its interval at `level`, None where nothing was
    compared; NaN where a comparison failed."""
    entries = leading(compared, suite)
    gain = gain_over_seeds(compared, entries)
    names = ", ".join(f"{name} ({metric})" for _, name, metric in entries)
    if gain is None:
        held = [c for found in compared.values() for c in found if (c.suite, c.name, c.metric) in entries]
        broken = next((c for c in held if c.failed is not None), None)
        if broken is None:
            return None
        nothing = (math.nan, math.nan)
        return Figure(what=f"{what}: {names}", value=math.nan, interval=nothing, n="no figure", unit=broken.unit)
    n = f"{len(compared)} seed{'s' if len(compared) != 1 else ''}, {gain.samples} samples"
    return Figure(what=f"{what}: {names}", value=gain.value, interval=gain.interval_at(level), n=n, unit=gain.unit)


def leading(compared: Compared, suite: str) -> list[tuple[str, str, str]]:
    """The leading measure of every entry of a suite, of the unit that most have; IFEval's where the suite `following`
    is not there."""
    found = [c for comparisons in compared.values() for c in comparisons if _leads(c, suite)]
    units = [c.unit for c in found]
    unit = max(dict.fromkeys(units), key=units.count, default="")
    return list(dict.fromkeys((c.suite, c.name, c.metric) for c in found if c.unit == unit))


def _leads(found: Comparison, suite: str) -> bool:
    if suite == FOLLOWING and found.name.startswith("ifeval"):
        return found.metric.startswith("inst_level_strict_acc")
    return found.suite == suite and found.primary


def _missing(what: str) -> list[Part]:
    return [unknown(f"{what} was not measured here")]


# --------------------------------------------------------------------------------------------------------------- rules


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """One change, held against a bound, at every budget."""

    after: str
    """Key of `MODELS`; `{tokens}` stands for the budget here and below."""
    before: str
    suite: str = FOLLOWING
    yes: str
    no: str
    between: str = CROSSES
    missing: str
    """What was not measured where there is no such change."""
    judge: Callable[..., Part] = above
    share: float = 0.0
    """The bound: of what continuing the instruct model cost of following."""
    free: str = ""
    """Why it cannot be told where that cost nothing."""
    largest: bool = False
    """At the largest budget alone."""
    shows_cost: bool = False
    """The cost stands beside the figure."""

    def __call__(self, study: _Study, level: float) -> list[Part]:
        """See the class."""
        parts: list[Part] = []
        for budget in study.budgets[-1:] if self.largest else study.budgets:
            tokens = f"{shown_tokens(budget)} tokens"
            words = {k: getattr(self, k).format(tokens=tokens) for k in ("yes", "no", "between", "free", "missing")}
            what = f"{self.after} against {self.before}".format(tokens=tokens)
            figure = change(study.compared(self.after, self.before, budget), self.suite, what, level)
            continued = study.compared("instruct + {tokens}", "instruct", budget)
            against = f"instruct + {tokens} against instruct"
            cost = change(continued, FOLLOWING, against, level) if self.share else None
            if figure is None or (self.share and (cost is None or figure.interval is None)):
                return _missing(words["missing"])
            shown = [figure, cost] if self.shows_cost and cost is not None else [figure]
            if cost is not None and not math.isfinite(cost.value):
                parts.append(unknown(f"{cost.what} is not finite", shown))
                continue
            if cost is not None and cost.value >= 0:
                parts.append(unknown(words["free"], shown))
                continue
            bound = self.share * cost.value if cost is not None else 0.0
            part = self.judge(figure, bound, yes=words["yes"], no=words["no"], between=words["between"])
            parts.append(dataclasses.replace(part, figures=shown))
        return parts or _missing("a continued model")


def _more_with_tokens(study: _Study, level: float) -> list[Part]:
    """The change at the largest budget minus that at the smallest, seed by seed, lies below zero."""
    if len(study.budgets) < 2:
        return _missing("more than one budget")
    ends = study.budgets[0], study.budgets[-1]
    small, large = (_by_seed(study.compared("instruct + {tokens}", "instruct", b)) for b in ends)
    differences = [large[seed] - small[seed] for seed in sorted(small.keys() & large.keys())]
    if not differences:
        return _missing("the instruct model continued on two budgets")
    figure = Figure(
        what=f"change after {shown_tokens(ends[1])} tokens - after {shown_tokens(ends[0])} tokens",
        value=statistics.fmean(differences),
        interval=seeds_and_samples(differences, 0.0, confidence=level),
        n=f"{len(differences)} seeds",
        unit="accuracy",
    )
    words = ("it loses more with more tokens", "it loses less with more tokens")
    return [below(figure, 0.0, yes=words[0], no=words[1], between=CROSSES)]


def _by_seed(compared: Compared) -> dict[int, float]:
    entries = leading(compared, FOLLOWING)
    found = {s: [c.gain for c in held if (c.suite, c.name, c.metric) in entries] for s, held in compared.items()}
    return {seed: statistics.fmean(gains) for seed, gains in found.items() if gains}


def _siblings(study: _Study, level: float) -> list[Part]:
    """Every base with a sibling's residual follows better than without."""
    return study.carried(BASE, "its base", level) or _missing("a sibling's residual")


def _derived(study: _Study, level: float) -> list[Part]:
    """Every derived model with a residual follows better than without."""
    return study.carried(DERIVED, "it", level) or _missing("a derived model")


def _small_models(_: _Study, __: float) -> list[Part]:
    """Needs studies of models of several sizes."""
    return [unknown("it needs studies of models of several sizes side by side; this one has one size")]


QUARTER = f"{100 * LITTLE:.0f} % of what the instruct model loses of following"
CLAIMS: tuple[tuple[str, str, str, Callable[[_Study, float], list[Part]]], ...] = (
    (
        "1a",
        "Continuing the instruct model on new text loses instruction following.",
        "IFEval inst-level strict 47.84 to 40.41 / 38.61 / 35.25 after 100M / 500M / 1B tokens (table 2)",
        Rule(
            after="instruct + {tokens}",
            before="instruct",
            judge=below,
            yes="it loses instruction following after {tokens}",
            no="it follows instructions better after {tokens}",
            missing="the instruct model continued on {tokens}",
        ),
    ),
    ("1b", "It loses more with more tokens.", "-7.43 after 100M, -12.59 after 1B (table 2)", _more_with_tokens),
    (
        "1c",
        "The base loses little.",
        "average 51.64 to 51.41 after 1B, computed from table 2's rows; 'minimal quality degradation' (section 4.1)",
        Rule(
            after="base + {tokens}",
            before="base",
            suite=KEPT,
            share=LITTLE,
            largest=True,
            shows_cost=True,
            yes=f"the base loses less than {QUARTER}",
            no=f"the base loses more than {QUARTER}",
            between=f"the interval contains {QUARTER}",
            free="the instruct model lost nothing that the base could lose little of",
            missing="what the base keeps, or what the instruct model loses,",
        ),
    ),
    (
        "2a",
        "Base + residual follows instructions better than the continued instruct model.",
        "inst-level strict 51.68 against 40.41 / 38.61 / 35.25 (table 2)",
        Rule(
            after="base + {tokens} + residual",
            before="instruct + {tokens}",
            yes="better than continuing the instruct model at {tokens}",
            no="worse than continuing the instruct model at {tokens}",
            missing="base + residual beside the continued instruct model at {tokens}",
        ),
    ),
    (
        "2b",
        "Base + residual is at or above the original instruct model.",
        "51.68 / 51.44 / 51.68 against 47.84 (table 2)",
        Rule(
            after="base + {tokens} + residual",
            before="instruct",
            share=MARGIN,
            yes="at or above the instruct model at {tokens}",
            no="below the instruct model at {tokens}",
            between="the interval contains the margin at {tokens}",
            free="continuing the instruct model cost nothing at {tokens}",
            missing="base + residual beside the instruct model at {tokens}",
        ),
    ),
    (
        "2c",
        "And it keeps what the new text taught.",
        "MMLU 67.69 against 63.83 (table 2); the paper measures no held-out new text",
        Rule(
            after="base + {tokens} + residual",
            before="base",
            suite=NEW,
            largest=True,
            yes="the result knows the new text better than the base",
            no="the result knows the new text worse than the base",
            missing="the held-out new text",
        ),
    ),
    (
        "3a",
        "A sibling's residual brings instruction following to the other base.",
        "Llama 3 base + 3.1 residual 51.92 (base 17.87); the other way 43.76 (base 14.63) (table 3)",
        _siblings,
    ),
    (
        "3b",
        "So does it to a model derived from the base.",
        "DocChat inst-level strict 34.65, + 3 residual 46.04, + 3.1 residual 53.12 (table 4)",
        _derived,
    ),
    (
        "4",
        "The gain shrinks for models of about 1.5B parameters.",
        "Qwen 2 1.5B 48.07 to 48.54, Qwen 2.5 1.5B 51.24 to 51.35 (table 3)",
        _small_models,
    ),
)
PRECONDITIONS: Mapping[str, Sequence[Callable[[_Study], Sequence[Precondition]]]] = {}
"""By a claim's number: what has to be so before its rule may speak."""
STATEMENTS = [
    Statement(number=n, recipe=RECIPE, text=t, paper=p, check=rule, preconditions=PRECONDITIONS.get(n, ()))
    for n, t, p, rule in CLAIMS
]
