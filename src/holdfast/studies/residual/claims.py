"""What paper 004 claims, held against a study of the residual: holds, does not hold, or not enough data.

The rules stand here and were written before any outcome was looked at:

- A figure is a paired change between two models, `after - before` signed so that more is better, as the mean over
  seeds. Its interval is at 95 % and covers training seeds and evaluated samples
  (`holdfast.statistics.gains.gain_over_seeds`); one seed leaves the samples alone, and the reason says so.
- "Following" is what leads the entries of the suite `following` of the small study (instructions that a program
  checks); at the paper's size IFEval's `inst_level_strict_acc`. "Kept" is the suite `source` (old knowledge, prose):
  several entries of one unit are averaged, others are told apart.
- "Loses", "regains", "improves": the whole interval on that side of zero. On the other side the claim does not hold;
  across zero there is not enough data.
- "More with more tokens": the change at the largest budget against the change at the smallest, seed by seed; the two
  are of the same start.
- "Loses little" (of the base): less than a quarter of what the instruct model loses of following at the same budget,
  both in shares.
- "At or above": the whole interval above minus a margin of `MARGIN` (20 %) of what continuing the instruct model cost.
  Wholly below it does not hold.
- While models are still to come, claims that they belong to are not enough data.

The paper says of its own figures that they hold at 8B parameters and shrink at 1.5B; a model of a million parameters
can show the mechanism, not the size.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Sequence

from holdfast.records.comparison import Comparison
from holdfast.records.residual import BASE, DERIVED, INSTRUCT, Pair, ResidualRecord, StudiedModel
from holdfast.records.study import Objective
from holdfast.statistics.gains import gain_over_seeds
from holdfast.statistics.intervals import seeds_and_samples
from holdfast.studies.engine import claims as engine
from holdfast.studies.engine.claims import MARGIN, Claim, Figure, Part, Statement, above, below, unknown

RECIPE = "residual"
CROSSES = "the interval contains 0"
LITTLE = 0.25
"""Of what the instruct model loses: what the base may lose and still lose "little"."""
FOLLOWING, KEPT, NEW = "following", "source", "new_text"
READING = (
    "A change is taken between two models on the same questions, pair by pair, signed so that more is better; the "
    "mean over seeds.",
    "Intervals are at 95 % and cover training seeds and evaluated samples; with one seed the samples alone.",
    "At or above means: not below by more than 20 % of what continuing the instruct model cost, with the whole "
    "interval. Little means: less than a "
    "quarter of that.",
    "Following: instructions that a program checks. Kept: what the base knew before. New text: documents held out of "
    "what was trained on.",
)


def check_claims(record: ResidualRecord | None) -> list[Claim]:
    """Every claim of the paper, held against a study.

    Args:
        record: a study's, finished or not; None: not run.
    """
    study = None if record is None else _Study(record)
    waiting = 0 if record is None else sum(m.state in ("waiting", "running") for m in record.models)
    seeds = 0 if record is None else len({m.seed for m in record.models})
    return engine.check_claims(_STATEMENTS, study, waiting=waiting, seeds=seeds, noun="model")


class _Study:
    """A record, asked for changes."""

    def __init__(self, record: ResidualRecord) -> None:
        self.record = record
        self.family = next(
            (m.family for m in record.models if m.budget is not None), record.families[0] if record.families else ""
        )
        self.budgets = sorted({m.budget for m in record.models if m.budget is not None and m.family == self.family})
        self.parameters = max((m.parameters for m in record.models), default=0)

    def models(self, start: str, budget: int | None, residual: bool, *, scale: float = 1.0) -> list[StudiedModel]:
        """Models of the continued family, one a seed."""
        return [
            m
            for m in self.record.models
            if (m.family, m.start, m.budget) == (self.family, start, budget)
            and (m.residual is not None) == residual
            and (not residual or (m.scale == scale and m.residual == self.family))
            and (budget is not None or m.tokens == 0)
        ]

    def pairs(self, after: Iterable[StudiedModel], before: Iterable[StudiedModel]) -> list[tuple[int, Pair]]:
        """(seed, pair) for every pair that was compared."""
        names = {m.name for m in before}
        seeds = {m.name: m.seed for m in after}
        return [(seeds[p.after], p) for p in self.record.pairs if p.after in seeds and p.before in names]

    def change(self, pairs: Sequence[tuple[int, Pair]], suite: str) -> Figure | None:
        """The mean change of a suite's leading measures over seeds, None where nothing was compared."""
        entries = _entries(pairs, suite)
        if not entries:
            return None
        first = next(c for _, p in pairs for c in p.comparisons if (c.suite, c.name, c.metric) == entries[0])
        objective = Objective(
            side="target", entries=entries, label=suite, unit=first.unit, higher_is_better=first.higher_is_better
        )
        gain = gain_over_seeds({seed: pair.comparisons for seed, pair in pairs}, objective)
        if gain is None:
            return None
        names = ", ".join(f"{name} ({metric})" for _, name, metric in entries)
        seeds = len(pairs)
        n = f"{seeds} seed{'s' if seeds != 1 else ''}, {gain.samples} samples"
        return Figure(what=names, value=gain.value, interval=gain.interval, n=n, unit=first.unit)

    def following(self, start: str, budget: int) -> Figure | None:
        """The change of following that continuing a start on a budget brought."""
        return self.change(self.pairs(self.models(start, budget, False), self.models(start, None, False)), FOLLOWING)

    def with_residual(self, start: str, before: str) -> list[Part]:
        """Given models with a residual against the same models without, by following."""
        given = [m for m in self.record.models if m.start == start and m.budget is None]
        parts = []
        for model in given:
            if model.residual is None or (start == BASE and model.residual == model.family):
                continue
            bare = [m for m in given if m.family == model.family and m.residual is None and m.tokens == 0]
            figure = self.change(self.pairs([model], bare), FOLLOWING)
            if figure is not None:
                words = (f"{model.label} follows instructions better", f"{model.label} follows instructions worse")
                named = _named(figure, f"{model.label} against {before}")
                parts.append(above(named, 0.0, yes=words[0], no=words[1], between=CROSSES))
        return parts

    def by_seed(self, pairs: Sequence[tuple[int, Pair]], suite: str) -> dict[int, float]:
        """The change of each seed."""
        entries = set(_entries(pairs, suite))
        return {
            seed: statistics.fmean(c.gain for c in pair.comparisons if (c.suite, c.name, c.metric) in entries)
            for seed, pair in pairs
            if any((c.suite, c.name, c.metric) in entries for c in pair.comparisons)
        }


def _entries(pairs: Sequence[tuple[int, Pair]], suite: str) -> list[tuple[str, str, str]]:
    """The leading measure of every entry of a suite, of the unit that most have; IFEval's where the suite `following`
    is not there."""
    leading = [c for _, pair in pairs for c in pair.comparisons if _leads(c, suite)]
    units = [c.unit for c in leading]
    if not units:
        return []
    unit = max(dict.fromkeys(units), key=units.count)
    return list(dict.fromkeys((c.suite, c.name, c.metric) for c in leading if c.unit == unit))


def _leads(found: Comparison, suite: str) -> bool:
    if suite == FOLLOWING and found.name.startswith("ifeval"):
        return found.metric.startswith("inst_level_strict_acc")
    return found.suite == suite and found.primary


def _named(figure: Figure, what: str) -> Figure:
    return dataclasses.replace(figure, what=f"{what}: {figure.what}")


def _missing(what: str) -> list[Part]:
    return [unknown(f"{what} was not measured here")]


# ---------------------------------------------------------------------------------------------------------- statements


def _amount(budget: int) -> str:
    from holdfast.support.token_counts import shown_tokens

    return f"{shown_tokens(budget)} tokens"


def _instruct_loses(study: _Study) -> list[Part]:
    """The continued instruct model follows worse than the instruct model, at every budget."""
    parts = []
    for budget in study.budgets:
        figure = study.following(INSTRUCT, budget)
        if figure is None:
            return _missing(f"the instruct model continued on {_amount(budget)}")
        parts.append(
            below(
                _named(figure, f"instruct + {_amount(budget)} against instruct"),
                0.0,
                yes=f"it loses instruction following after {_amount(budget)}",
                no=f"it follows instructions better after {_amount(budget)}",
                between=CROSSES,
            )
        )
    return parts or _missing("a continued instruct model")


def _more_with_tokens(study: _Study) -> list[Part]:
    """The change at the largest budget minus that at the smallest, seed by seed, lies below zero."""
    if len(study.budgets) < 2:
        return _missing("more than one budget")
    small, large = (
        study.by_seed(study.pairs(study.models(INSTRUCT, b, False), study.models(INSTRUCT, None, False)), FOLLOWING)
        for b in (study.budgets[0], study.budgets[-1])
    )
    seeds = sorted(set(small) & set(large))
    if not seeds:
        return _missing("the instruct model continued on two budgets")
    what = f"change after {_amount(study.budgets[-1])} - after {_amount(study.budgets[0])}"
    differences = [large[s] - small[s] for s in seeds]
    interval = seeds_and_samples(differences, 0.0)
    figure = Figure(
        what=what, value=statistics.fmean(differences), interval=interval, n=f"{len(seeds)} seeds", unit="accuracy"
    )
    words = ("it loses more with more tokens", "it loses less with more tokens")
    return [below(figure, 0.0, yes=words[0], no=words[1], between=CROSSES)]


def _base_loses_little(study: _Study) -> list[Part]:
    """At the largest budget the base loses less than `LITTLE` of what the instruct model loses."""
    if not study.budgets:
        return _missing("a continued base")
    budget = study.budgets[-1]
    base = study.change(study.pairs(study.models(BASE, budget, False), study.models(BASE, None, False)), KEPT)
    instruct = study.following(INSTRUCT, budget)
    if base is None or instruct is None or base.interval is None:
        return _missing("what the base keeps, or what the instruct model loses,")
    base = _named(base, f"base + {_amount(budget)} against base")
    instruct = _named(instruct, f"instruct + {_amount(budget)} against instruct")
    if instruct.value >= 0:
        return [unknown("the instruct model lost nothing that the base could lose little of", [base, instruct])]
    words = f"{100 * LITTLE:.0f} % of what the instruct model loses of following"
    part = above(
        base,
        LITTLE * instruct.value,
        yes=f"the base loses less than {words}",
        no=f"the base loses more than {words}",
        between=f"the interval contains {words}",
    )
    return [dataclasses.replace(part, figures=[base, instruct])]


def _regains(study: _Study) -> list[Part]:
    """Base + residual follows better than the continued instruct model, at every budget."""
    parts = []
    for budget in study.budgets:
        figure = study.change(
            study.pairs(study.models(BASE, budget, True), study.models(INSTRUCT, budget, False)), FOLLOWING
        )
        if figure is None:
            return _missing(f"base + residual beside the continued instruct model at {_amount(budget)}")
        parts.append(
            above(
                _named(figure, f"base + {_amount(budget)} + residual against instruct + {_amount(budget)}"),
                0.0,
                yes=f"better than continuing the instruct model at {_amount(budget)}",
                no=f"worse than continuing the instruct model at {_amount(budget)}",
                between=CROSSES,
            )
        )
    return parts or _missing("base + residual")


def _at_or_above(study: _Study) -> list[Part]:
    """Base + residual is not below the instruct model by more than `MARGIN` of what continuing that cost."""
    parts: list[Part] = []
    for budget in study.budgets:
        figure = study.change(
            study.pairs(study.models(BASE, budget, True), study.models(INSTRUCT, None, False)), FOLLOWING
        )
        cost = study.following(INSTRUCT, budget)
        if figure is None or cost is None or figure.interval is None:
            return _missing(f"base + residual beside the instruct model at {_amount(budget)}")
        named = _named(figure, f"base + {_amount(budget)} + residual against instruct")
        if cost.value >= 0:
            parts.append(unknown(f"continuing the instruct model cost nothing at {_amount(budget)}", [named]))
            continue
        parts.append(
            above(
                named,
                MARGIN * cost.value,
                yes=f"at or above the instruct model at {_amount(budget)}",
                no=f"below the instruct model at {_amount(budget)}",
                between=f"the interval contains the margin at {_amount(budget)}",
            )
        )
    return parts or _missing("base + residual")


def _keeps_new_text(study: _Study) -> list[Part]:
    """Base + residual knows the held-out new text better than the base, at the largest budget."""
    if not study.budgets:
        return _missing("a continued base")
    budget = study.budgets[-1]
    gained = study.change(study.pairs(study.models(BASE, budget, True), study.models(BASE, None, False)), NEW)
    if gained is None:
        return _missing("the held-out new text")
    return [
        above(
            _named(gained, f"base + {_amount(budget)} + residual against base"),
            0.0,
            yes="the result knows the new text better than the base",
            no="the result knows the new text worse than the base",
            between=CROSSES,
        )
    ]


def _siblings(study: _Study) -> list[Part]:
    """Every base with a sibling's residual follows better than without."""
    return study.with_residual(BASE, "its base") or _missing("a sibling's residual")


def _derived(study: _Study) -> list[Part]:
    """Every derived model with a residual follows better than without."""
    return study.with_residual(DERIVED, "it") or _missing("a derived model")


def _small_models(_: _Study) -> list[Part]:
    """Needs studies of models of several sizes."""
    return [unknown("it needs studies of models of several sizes side by side; this one has one size")]


_STATEMENTS = [
    Statement(number=number, recipe=RECIPE, text=text, paper=paper, check=check)
    for number, text, paper, check in (
        (
            "1a",
            "Continuing the instruct model on new text loses instruction following.",
            "IFEval inst-level strict 47.84 to 40.41 / 38.61 / 35.25 after 100M / 500M / 1B tokens (table 2)",
            _instruct_loses,
        ),
        ("1b", "It loses more with more tokens.", "-7.43 after 100M, -12.59 after 1B (table 2)", _more_with_tokens),
        (
            "1c",
            "The base loses little.",
            "average 51.64 to 51.35 after 1B, computed from table 2's rows; 'minimal quality degradation' (section 4.1)",
            _base_loses_little,
        ),
        (
            "2a",
            "Base + residual follows instructions better than the continued instruct model.",
            "inst-level strict 51.68 against 40.41 / 38.61 / 35.25 (table 2)",
            _regains,
        ),
        (
            "2b",
            "Base + residual is at or above the original instruct model.",
            "51.68 / 51.44 / 51.68 against 47.84 (table 2)",
            _at_or_above,
        ),
        (
            "2c",
            "And it keeps what the new text taught.",
            "MMLU 67.69 against 63.83 (table 2); the paper measures no held-out new text",
            _keeps_new_text,
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
]
