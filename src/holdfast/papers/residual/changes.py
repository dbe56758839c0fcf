"""What changed between the models of a study, for its claims: following, overall, reasoning, and
each data set apart.

A change is taken between two models on the same questions, pair by pair, `after - before` signed
so that more is better, as the mean over seeds. Its interval covers seeds and evaluated samples
(`holdfast.statistics.gains`). In a study of small worlds a seed is a world of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

from holdfast.evaluation.averages import SUITE as AVERAGES
from holdfast.papers.residual.printed_figures import rows
from holdfast.records.comparison import Comparison
from holdfast.records.figure import NotMeasured
from holdfast.records.metrics import is_share
from holdfast.records.residual import BASE, DERIVED, INSTRUCT, ResidualRecord, StudiedModel
from holdfast.statistics.gains import Gain, gain_over_seeds
from holdfast.support.token_counts import shown_tokens

Compared = Mapping[int, Sequence[Comparison]]
"""Comparisons of one pair of models, by the seed of the later one."""
Entry = tuple[str, str, str]
"""Suite, name and metric of a measure."""
Kind = tuple[str, bool, str]
"""As in `outcome.QUESTIONS`: start, whether it is continued, what brought following back."""
OLD_BASE, OLD_INSTRUCT = (BASE, False, ""), (INSTRUCT, False, "")
NEW_BASE, NEW_INSTRUCT = (BASE, True, ""), (INSTRUCT, True, "")
RESIDUAL, TUNED = (BASE, True, "residual"), (BASE, True, "tuning")
OLD_DERIVED = (DERIVED, False, "")
NAMES = {
    OLD_BASE: "base",
    OLD_INSTRUCT: "instruct",
    NEW_BASE: "base + {tokens}",
    NEW_INSTRUCT: "instruct + {tokens}",
    RESIDUAL: "base + {tokens} + residual",
    TUNED: "base + {tokens} + tuning",
}


# ----------------------------------------------------------------------------------------- measures


def following(c: Comparison) -> bool:
    """Instructions that a program checks."""
    if c.name == "ifeval":
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


def reasoning(c: Comparison) -> bool:
    """The paper's mean of seven where it was taken (figure 1b), else what the base knew before."""
    return c.name == "sub_average_2" if c.suite == AVERAGES else kept(c)


def truthfulness(c: Comparison) -> bool:
    """TruthfulQA (figure 1c)."""
    return c.name == "truthfulqa_mc2" and c.primary


def data_set(c: Comparison) -> bool:
    """A data set of the paper by the figure it leads with, or one of a small world's; not what only
    the new text tells."""
    of_paper = {row.entry for row in rows()}
    if c.suite in (AVERAGES, "new_text") or (c.suite == "learn" and c.name not in of_paper):
        return False
    return c.primary and is_share(c.unit, c.metric)


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
    following: "instruction following",
    overall: "overall",
    kept: "old knowledge",
    reasoning: "reasoning",
    truthfulness: "truthfulness",
    new_text: "new text",
    strict: "problems solved under the strict match",
    flexible: "problems solved under the flexible match",
}


def entries_of(compared: Compared, measure: Measure) -> list[Entry]:
    """The entries that a measure is over; of averages the averages alone, whose members are in
    them."""
    entries: dict[Entry, None] = {}
    for comparisons in compared.values():
        for c in comparisons:
            if measure(c):
                entries[c.suite, c.name, c.metric] = None
    averages = [entry for entry in entries if entry[0] == AVERAGES]
    return averages or list(entries)


def gain_of(compared: Compared, measure: Measure) -> Gain | None:
    """The change of a measure over seeds; None where nothing was compared, a seed lacks it or it is
    not finite."""
    return gain_over_seeds(compared, entries_of(compared, measure))


def title(after: Kind, before: Kind, measure: Measure, budget: int | None) -> str:
    """What a change is of, for people."""
    tokens = "new text" if budget is None else f"{shown_tokens(budget)} tokens"
    return f"{WORDS[measure]}, {NAMES[after]} against {NAMES[before]}".format(tokens=tokens)


def paired(one: Gain, other: Gain, what: str) -> None:
    """Raises `NotMeasured` where two changes are not of the same seeds."""
    if one.by_seed.keys() != other.by_seed.keys():
        raise NotMeasured(f"{what} with the same seeds")


# ------------------------------------------------------------------------------------------ a study


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
            raise NotMeasured("a model after continued pre-training")
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
        later = self._models(after, budget, width)
        gain = gain_of(self._compared(later, self._models(before, budget, width)), measure)
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

    def carried(self, start: str, before: Kind) -> Iterator[tuple[StudiedModel, Compared]]:
        """Given models with a residual that is not their own pair's, at scale 1, against models of
        their family: one of each family and residual, with what was compared."""
        groups: dict[tuple[str, str], list[StudiedModel]] = {}
        for m in self._given():
            foreign = m.residual is not None and (start == DERIVED or m.residual != m.family)
            if m.start == start and foreign and m.scale in (None, 1):
                groups.setdefault((m.family, str(m.residual)), []).append(m)
        for (family, _), later in groups.items():
            bare = [
                m
                for m in self._given()
                if (m.family, m.start, m.continued, m.restored) == (family, *before)
            ]
            yield later[0], self._compared(later, bare)

    def carried_following(self, start: str, before: Kind) -> list[tuple[StudiedModel, Gain]]:
        """`carried` with the change in following, where it was measured."""
        changes = []
        for model, compared in self.carried(start, before):
            gain = gain_of(compared, following)
            if gain is not None:
                changes.append((model, gain))
        return changes

    def siblings(self) -> tuple[str, str, Gain]:
        """The first family and another, and how much better the other's instruct model follows;
        raises `NotMeasured` where there is no other family."""
        models = [model for model in self._given() if model.start == INSTRUCT and model.given]
        families = list(dict.fromkeys(model.family for model in models))
        if len(families) > 1:
            first = [model for model in models if model.family == families[0]]
            other = [model for model in models if model.family == families[1]]
            gain = gain_of(self._compared(other, first), following)
            if gain is not None:
                return families[0], families[1], gain
        raise NotMeasured("a sibling's instruct model")

    def _compared(self, later: Sequence[StudiedModel], earlier: Sequence[StudiedModel]) -> Compared:
        seeds = {model.name: model.seed for model in later}
        before = {model.name for model in earlier}
        comparisons = {}
        for pair in self.record.pairs:
            if pair.after in seeds and pair.before in before:
                comparisons[seeds[pair.after]] = pair.comparisons
        return comparisons
