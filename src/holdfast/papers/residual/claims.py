"""What "Balancing Continuous Pre-Training" claims, held against a study of the residual: holds,
does not hold, or cannot tell.

The rules stand here and were written before any outcome of the study was looked at:

- Changes and measures are those of `changes`. *Following*: what leads the entries of the suite
  `following` (instructions that a program checks); at the paper's size IFEval's
  `inst_level_strict_acc`. *Overall*: the mean of all that is a share and no new text, following
  among it, the same entries for every model; at the paper's size its average of sixteen.
  *Reasoning*: the paper's second sub-average, in a small world old knowledge. *New text*: documents
  held out of what was trained on. *Strict*, *flexible*: the two figures of GSM8K, or of word
  problems judged as it judges.
- *Loses*, *improves*: by more than `LEAST` (2 points, or 0.02 nats a token) with the whole
  interval. *More with more tokens*: the ends differ by more than that, and between no two budgets
  is there a way back beyond it.
- *Little*: less than a quarter, *most*: more than half, *at or above*, *as good as*: not below by
  more than a fifth, of what the claim names. The bound is a change itself: its part is taken off
  seed by seed, and the rest has to lie above 0 with its whole interval.
- Claims are about the residual at scale 1, as the paper's, and about the first width of the study,
  but for claim 4: that is over worlds, each of which has every width, and about the share of what
  instruction tuning brings.

What has to be so before a rule may speak: instruction tuning worked, continuing taught the new text
and was in the paper's regime, the base knew what it may lose, the siblings differ, the instruct
model solves problems. `OURS` are not the paper's.

*The regime.* In table 2 the continued instruct model keeps 84, 81 and 74 % of its following. A
study is of that experiment where it keeps 60 to 90 % at every budget. Where it keeps less it was
destroyed, and what more tokens cost, or what a residual brings to a base that moved as far, says
nothing of the paper's. Where it keeps more there is little to bring back; the claim that it loses
(1a, 1b) is judged there all the same, since it is what would be refuted.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from holdfast.papers.claims.claim import Claim, Evidence, Statement, judge_records
from holdfast.papers.claims.requirements import Requirement
from holdfast.papers.claims.rules import MARGIN, Rule
from holdfast.papers.residual.changes import (
    NEW_BASE,
    NEW_INSTRUCT,
    OLD_BASE,
    OLD_DERIVED,
    OLD_INSTRUCT,
    RESIDUAL,
    TUNED,
    WORDS,
    Measure,
    Study,
    flexible,
    following,
    kept,
    new_text,
    overall,
    reasoning,
    strict,
    truthfulness,
)
from holdfast.papers.residual.rules import (
    LEAST,
    LITTLE,
    MOST,
    better_for_derived,
    better_on_every_data_set,
    better_sibling,
    carries,
    changes,
    exceeds,
    grows,
    small_models,
    strict_falls,
)
from holdfast.records.figure import NotMeasured
from holdfast.records.residual import BASE, DERIVED, ResidualRecord
from holdfast.statistics.gains import Gain
from holdfast.support.token_counts import shown_tokens

RECIPE = "residual"
LEAST_TUNING_GAIN = 0.2
"""By so much an instruct model follows better than its base, else it was not tuned (the paper's:
0.30)."""
LEAST_GAIN_OF_A_WORLD = 0.1
"""The same in the worst world, where a share of it is taken in every world."""
LEAST_KEPT, MOST_KEPT = 0.6, 0.9
"""Share of its following that the continued instruct model keeps in the paper's regime (the
paper's: 0.84, 0.81 and 0.74, table 2)."""
LEAST_LEARNT = 0.05
"""Nats a token by which continuing betters the held-out new text, else nothing was learnt."""
LEAST_KNOWN = 0.4
"""Share of what is to be kept that the base answers: guessing among four is right in 0.25."""
LEAST_SOLVED = 0.3
"""Share of word problems that the instruct model solves, judged flexibly."""
READING = (
    "A change compares two models on the same questions, pair by pair. A positive change is an "
    "improvement. Changes are means over seeds. Each seed makes its own synthetic data and models.",
    "95 % intervals cover seeds and evaluated samples, or only the samples if there is one seed.",
    '"Following" is the share of instructions that are followed, as a program checks. "Overall" '
    "is the mean of following, old knowledge and word problems, measured on the same entries "
    'for every model. "New text" is documents held out of the training text.',
    '"Little" is less than a quarter of the amount that the claim compares with, and "most" is '
    'more than half of it. "At least as well as" and "as good as" allow up to a fifth less. A '
    "change of less than 2 points counts as no change.",
    "A study is in the paper's regime if the instruct model keeps 60 to 90 % of its "
    "instruction following in continued pre-training (74 to 84 % in the paper). Outside this "
    "range, claims about recovery cannot be judged.",
    "Claim 4 adds a model family's own residual to its base after continued pre-training. The "
    "paper's figures are about a sibling's residual, added to bases without continued "
    "pre-training.",
)


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

    @property
    def tuning(self) -> Gain:
        """What instruction tuning brought."""
        return self.study.change(OLD_INSTRUCT, OLD_BASE, following, width=self.width)


@dataclasses.dataclass(frozen=True)
class Continued:
    """The instruct model of a study, continued on one budget."""

    study: Study
    budget: int
    width: int

    @property
    def at(self) -> str:
        """For people."""
        return f"after {shown_tokens(self.budget)} tokens{Width(self.study, self.width).at}"

    @property
    def kept(self) -> float:
        """Share of its following that it keeps; raises `NotMeasured` where it has none."""
        gain = self.study.change(
            NEW_INSTRUCT, OLD_INSTRUCT, following, budget=self.budget, width=self.width
        )
        if gain.before <= 0:
            raise NotMeasured("an instruct model that follows instructions")
        return gain.after / gain.before


def each_budget(study: Study) -> list[Continued]:
    """The instruct model after every budget, at the first width."""
    budgets = study.budgets if study.continued else [0]
    return [Continued(study, budget, study.width) for budget in budgets]


def each_width(study: Study) -> list[Continued]:
    """The instruct model after the largest budget, at every width."""
    budget = study.budgets[-1] if study.continued else 0
    return [Continued(study, budget, width) for width in study.widths or [0]]


def instruction_tuning_worked(widths: Callable[[Study], Sequence[int]]) -> Requirement:
    """Instruct models follow better than their bases, at some widths."""
    return Requirement(
        name="instruction tuning worked",
        cases=lambda study: [Width(study, width) for width in widths(study)],
        of=lambda case: case.tuning.value,
        at_least=LEAST_TUNING_GAIN,
        figure="instruction following, instruct model minus base{case.at}",
        advice="tune the instruct model longer, or measure instructions of the kind that it was "
        "tuned on",
    )


def not_destroyed(cases: Callable[[Study], Sequence[Continued]]) -> Requirement:
    """The continued instruct model keeps most of its following."""
    return Requirement(
        name="continued pre-training does not destroy the instruct model",
        cases=cases,
        of=lambda case: case.kept,
        at_least=LEAST_KEPT,
        figure="share of its instruction following that the instruct model keeps {case.at}",
        advice="continue pre-training at a lower learning rate",
    )


def continuing_cost(measure: Measure) -> Requirement:
    """Continuing cost the instruct model something, after the largest budget."""
    return Requirement(
        name="continued pre-training harms the instruct model",
        of=lambda study: study.change(NEW_INSTRUCT, OLD_INSTRUCT, measure).value,
        at_most=-LEAST,
        figure=f"{WORDS[measure]}, instruct model after continued pre-training minus before",
        advice="continue pre-training on more text or at a higher learning rate",
    )


def instruct_model_solves(measure: Measure, words: str) -> Requirement:
    """The instruct model solves problems, and says so in the format."""
    return Requirement(
        name="the instruct model solves word problems",
        of=lambda study: study.change(RESIDUAL, OLD_INSTRUCT, measure).before,
        at_least=LEAST_SOLVED,
        figure=f"share of word problems that the instruct model solves, {words} match",
        advice="tune the instruct model on more worked problems",
    )


def nearest_end(study: Study) -> float:
    """Of the interval of the siblings' difference, the end that is nearer to 0; 0 where it contains
    0."""
    interval = study.siblings()[2].interval
    if interval is None or not all(map(math.isfinite, interval)):
        raise NotMeasured("the interval of the difference between the siblings")
    low, high = interval
    return 0.0 if low <= 0 <= high else min(abs(low), abs(high))


TUNING_WORKED = instruction_tuning_worked(lambda study: [study.width])
TUNING_WORKED_AT_EVERY_WIDTH = instruction_tuning_worked(lambda study: study.widths)
TUNING_WORKED_IN_EVERY_WORLD = Requirement(
    name="instruction tuning worked in every world",
    cases=lambda study: [Width(study, width) for width in study.widths],
    of=lambda case: min(case.tuning.by_seed.values()),
    at_least=LEAST_GAIN_OF_A_WORLD,
    figure="instruction following, instruct model minus base{case.at}, in the world with the "
    "smallest gain",
    advice="tune the instruct models longer",
)
NOT_DESTROYED = not_destroyed(each_budget)
NOT_DESTROYED_AT_EVERY_WIDTH = not_destroyed(each_width)
SOMETHING_TO_BRING_BACK = Requirement(
    name="continued pre-training harms the instruct model as much as in the paper",
    cases=each_budget,
    of=lambda case: case.kept,
    at_most=MOST_KEPT,
    figure="share of its instruction following that the instruct model keeps {case.at}",
    advice="continue pre-training on more text or at a higher learning rate",
)
REGIME = (NOT_DESTROYED, SOMETHING_TO_BRING_BACK)
"""Of the paper, on both sides."""
NEW_TEXT_LEARNT = Requirement(
    name="continued pre-training taught the new text",
    of=lambda study: study.change(NEW_BASE, OLD_BASE, new_text).value,
    at_least=LEAST_LEARNT,
    figure="gain of the base on held-out new text by continued pre-training, in nats per token",
    advice="continue pre-training on more text or at a higher learning rate",
)
BASE_ABOVE_CHANCE = Requirement(
    name="the base scores above chance",
    of=lambda study: study.change(NEW_BASE, OLD_BASE, kept).before,
    at_least=LEAST_KNOWN,
    figure="the base's score on old knowledge",
    advice="train the base longer, or ask questions that it can answer",
)
TUNING_AGAIN_WORKED = Requirement(
    name="instruction tuning after continued pre-training worked",
    of=lambda study: study.change(TUNED, NEW_BASE, following).value,
    at_least=LEAST_TUNING_GAIN,
    figure="instruction following of the continued base, after tuning minus before",
    advice="set 'retuned: true', or tune longer",
)
SIBLINGS_DIFFER = Requirement(
    name="one sibling is better than the other",
    of=nearest_end,
    at_least=LEAST,
    figure="difference in instruction following between the siblings' instruct models (the end of "
    "its interval nearer to 0)",
    advice="make one of the siblings better, or add seeds",
)
OURS = ("2c", "2e")
"""Claims that are not the paper's."""
QUARTER = f"{100 * LITTLE:.0f} % of what the instruct model loses"


def _claim(
    number: str, text: str, paper: str, rule: Rule[Study], *needs: Requirement
) -> Statement[Study]:
    return Statement(
        number=number,
        recipe=RECIPE,
        text=text,
        paper=paper,
        rule=rule,
        ours=number in OURS,
        preconditions=needs,
    )


STATEMENTS = (
    _claim(
        "1a",
        "Continued pre-training on new text makes the instruct model follow instructions worse.",
        "IFEval inst-level strict falls from 47.84 to 40.41 / 38.61 / 35.25 after 100M / 500M "
        "/ 1B tokens (table 2)",
        changes(
            "At every budget of new text, the instruct model follows instructions worse after "
            "continued pre-training than before. The difference is more than 2 points.",
            NEW_INSTRUCT,
            OLD_INSTRUCT,
            falls=True,
            yes="the instruct model follows instructions worse after {tokens} of new text than "
            "before",
            no="the instruct model does not follow instructions worse after {tokens} of new text "
            "than before",
        ),
        TUNING_WORKED,
        NEW_TEXT_LEARNT,
        NOT_DESTROYED,
    ),
    _claim(
        "1b",
        "With more new text, the instruct model loses more of its instruction following.",
        "inst-level strict changes by -7.43 / -9.23 / -12.59 points after 100M / 500M / 1B "
        "tokens (table 2)",
        grows(
            "Instruction following falls by more than 2 points from the smallest to the "
            "largest budget of new text. Between any two budgets, instruction following rises "
            "by at most 2 points.",
            (NEW_INSTRUCT, OLD_INSTRUCT),
            following,
            what="change in the instruction following of the instruct model",
            rises=False,
        ),
        TUNING_WORKED,
        NEW_TEXT_LEARNT,
        NOT_DESTROYED,
    ),
    _claim(
        "1c",
        "In the overall score, continued pre-training makes the base only a little worse.",
        "the base's average falls from 51.64 to 51.41 after 1B tokens, and the instruct "
        "model's from 62.94 to 58.00 (table 2; the base's GSM8K strict falls from 49.20 to "
        "39.04); 'minimal quality degradation' (section 4.1)",
        exceeds(
            "At the largest budget of new text, the overall score of the base falls less than "
            "a quarter as much as that of the instruct model.",
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
        NOT_DESTROYED,
        continuing_cost(overall),
    ),
    _claim(
        "2a",
        "After continued pre-training on the same text, base + residual follows instructions "
        "better than the instruct model.",
        "inst-level strict is 51.68 against 40.41 / 38.61 / 35.25 (table 2)",
        changes(
            "At every budget of new text, base + residual follows instructions better than the "
            "instruct model trained on the same text. The difference is more than 2 points.",
            RESIDUAL,
            NEW_INSTRUCT,
            yes="base + residual follows instructions better than the instruct model trained on "
            "the same {tokens}",
            no="base + residual does not follow instructions better than the instruct model "
            "trained on the same {tokens}",
        ),
        TUNING_WORKED,
        NEW_TEXT_LEARNT,
        *REGIME,
    ),
    _claim(
        "2b",
        "After continued pre-training, base + residual follows instructions at least as well "
        "as the original instruct model.",
        "inst-level strict is 51.68 / 51.44 / 51.68 against 47.84 (table 2)",
        exceeds(
            "At every budget of new text, base + residual may follow instructions a little "
            "worse than the original instruct model. The difference is at most a fifth of what "
            "the instruct model loses by continued pre-training.",
            (RESIDUAL, OLD_INSTRUCT),
            share=MARGIN,
            of=(NEW_INSTRUCT, OLD_INSTRUCT),
            largest=False,
            yes="base + residual follows instructions at least as well as the original instruct "
            "model at {tokens}",
            no="base + residual follows instructions worse than the original instruct model at "
            "{tokens}",
        ),
        TUNING_WORKED,
        NEW_TEXT_LEARNT,
        *REGIME,
    ),
    _claim(
        "2c",
        "After continued pre-training, base + residual keeps most of what the new text taught.",
        "the paper measures no held-out new text; MMLU is 67.69 against 63.83 (table 2)",
        exceeds(
            "Continued pre-training improves the base on held-out new text. At the largest "
            "budget, base + residual keeps more than half of this gain.",
            (RESIDUAL, OLD_BASE),
            measure=new_text,
            share=MOST,
            of=(NEW_BASE, OLD_BASE),
            yes="base + residual keeps more than half of what continued pre-training taught the "
            "base",
            no="base + residual keeps less than half of what continued pre-training taught the "
            "base",
        ),
        TUNING_WORKED,
        NEW_TEXT_LEARNT,
    ),
    _claim(
        "2d",
        "After continued pre-training, adding the residual is as good as tuning the base "
        "on instructions once more.",
        "'no traditional instruction tuning is required' (section 1); the paper prints no "
        "numbers for setting S2",
        exceeds(
            "At the largest budget of new text, adding the residual to the base raises "
            "instruction following by at least four fifths of what tuning the same base on "
            "instructions adds.",
            (RESIDUAL, NEW_BASE),
            share=1 - MARGIN,
            of=(TUNED, NEW_BASE),
            yes="the residual adds at least four fifths of the instruction following that tuning "
            "the same base on instructions adds",
            no="the residual adds less than four fifths of the instruction following that tuning "
            "the same base on instructions adds",
        ),
        TUNING_WORKED,
        NEW_TEXT_LEARNT,
        *REGIME,
        TUNING_AGAIN_WORKED,
    ),
    _claim(
        "2e",
        "On worked problems, base + residual loses the format of the answers, but not the "
        "answers themselves.",
        "GSM8K strict falls from 74.98 to 46.93 and flexible from 75.06 to 74.83 at 100M "
        "tokens (table 2); the paper's text does not discuss them",
        Rule(
            "At the largest budget of new text, base + residual solves fewer problems under "
            "the strict match than the original instruct model does, by more than 2 points. "
            "Under the flexible match, the difference is less than a quarter of that under the "
            "strict match.",
            strict_falls,
        ),
        TUNING_WORKED,
        NOT_DESTROYED,
        instruct_model_solves(strict, "strict"),
        instruct_model_solves(flexible, "flexible"),
    ),
    _claim(
        "2f",
        "The lead of base + residual over the instruct model trained on the same text grows "
        "with the tokens.",
        "the averages are 2.79 / 3.98 / 5.12 points apart after 100M / 500M / 1B tokens (table "
        "2); 'increases with the number of new tokens' (section 4.2)",
        grows(
            "From the smallest to the largest budget of new text, the lead in the overall "
            "score rises by more than 2 points. Between any two budgets, the lead falls by at "
            "most 2 points.",
            (RESIDUAL, NEW_INSTRUCT),
            overall,
            what="overall lead of base + residual over the instruct model trained on the same text",
        ),
        TUNING_WORKED,
        NEW_TEXT_LEARNT,
        *REGIME,
    ),
    _claim(
        "2g",
        "After continued pre-training, base + residual reasons as well as the original "
        "instruct model.",
        "sub-average 2 is 75.97 / 76.12 / 76.00 against 74.79 (table 2, figure 1b)",
        changes(
            "At every budget of new text, the reasoning score of base + residual is at most 2 "
            "points below that of the original instruct model. In a small world, old knowledge "
            "is measured in place of reasoning.",
            RESIDUAL,
            OLD_INSTRUCT,
            measure=reasoning,
            bound=-LEAST,
            yes="base + residual reasons as well as the original instruct model at {tokens}",
            no="base + residual reasons worse than the original instruct model at {tokens}",
        ),
        TUNING_WORKED,
        NEW_TEXT_LEARNT,
        BASE_ABOVE_CHANCE,
        NOT_DESTROYED,
    ),
    _claim(
        "2h",
        "After continued pre-training, base + residual is more truthful than the original "
        "instruct model.",
        "TruthfulQA mc2 is 56.13 / 55.73 / 56.17 against 51.67 (table 2, figure 1c)",
        changes(
            "At every budget of new text, the TruthfulQA score of base + residual is more than "
            "2 points above that of the original instruct model. A small world has no such "
            "test.",
            RESIDUAL,
            OLD_INSTRUCT,
            measure=truthfulness,
            yes="base + residual is more truthful than the original instruct model at {tokens}",
            no="base + residual is not more truthful than the original instruct model at {tokens}",
        ),
        TUNING_WORKED,
        NEW_TEXT_LEARNT,
        NOT_DESTROYED,
    ),
    _claim(
        "3a",
        "The residual of a sibling model (such as Llama 3.1 for Llama 3) brings "
        "instruction following to the other base.",
        "inst-level strict is 51.92 for Llama 3 base with Llama 3.1's residual (base 17.87), and "
        "43.76 for Llama 3.1 base with Llama 3's residual (base 14.63) (table 3)",
        carries(BASE, OLD_BASE, "a base with a sibling's residual"),
        TUNING_WORKED,
    ),
    _claim(
        "3b",
        "A sibling's residual also brings instruction following to a model that is derived "
        "from the base.",
        "inst-level strict is 34.65 for DocChat, 46.04 with Llama 3's residual, and 53.12 with "
        "Llama 3.1's residual (table 4)",
        carries(DERIVED, OLD_DERIVED, "a derived model with a residual"),
        TUNING_WORKED,
    ),
    _claim(
        "3c",
        "The sibling with the better instruct model gives the better residual.",
        "Llama 3 base with Llama 3.1's residual has 64.25, its own instruct model 62.94; Llama "
        "3.1 base with Llama 3's residual has 62.01, its own instruct model 64.42 (averages, "
        "table 3, section 4.3)",
        Rule(
            "The weaker base with the better sibling's residual follows instructions better "
            "than its own instruct model. The better base with the weaker sibling's residual "
            "follows instructions worse than its own instruct model. Each difference is more "
            "than 2 points.",
            better_sibling,
        ),
        TUNING_WORKED,
        SIBLINGS_DIFFER,
    ),
    _claim(
        "3d",
        "The residual of the better sibling also adds more to a derived model than the "
        "residual of the weaker sibling.",
        "DocChat has 53.12 with Llama 3.1's residual and 46.04 with Llama 3's (averages 63.80 "
        "and 62.14); 'more pronounced with the LLaMa 3.1 residuals' (table 4, section 4.4)",
        Rule(
            "The derived model follows instructions better with the better sibling's residual "
            "than with the weaker sibling's. The difference is more than 2 points.",
            better_for_derived,
        ),
        TUNING_WORKED,
        SIBLINGS_DIFFER,
    ),
    _claim(
        "3e",
        "With a sibling's residual, a base scores better on every data set.",
        "'a consistent gain over the base model for all the datasets' of Llama 3 and 3.1 "
        "(section 4.3); but in table 3 both score below their base: on HellaSwag by 1.12 and 1.77 "
        "points, on PIQA by 0.54 and 0.93",
        Rule(
            "Every base with a sibling's residual gains more than 2 points on each data set on "
            "which the base scores at most 90 %. On no data set does the score fall by more "
            "than 2 points.",
            better_on_every_data_set,
        ),
        TUNING_WORKED,
    ),
    _claim(
        "4",
        "Smaller models gain less from the residual.",
        "from base to base + residual, the average rises from 51.64 to 64.25 (8B), from 48.07 to "
        "48.54 (Qwen 2 1.5B) and from 51.24 to 51.35 (Qwen 2.5 1.5B) (table 3); in inst-level "
        "strict, the residual adds 114 %, 8 % and -7 % of what instruction tuning adds",
        Rule(
            "The rule measures how much instruction following the residual adds after continued "
            "pre-training, as a share of what instruction tuning adds. From the smallest to the "
            "largest width, this share rises by more than a tenth. From any width to a larger "
            "one, it falls by at most a fifth. Every width must have been run in the same worlds, "
            "at least three.",
            small_models,
        ),
        TUNING_WORKED_AT_EVERY_WIDTH,
        TUNING_WORKED_IN_EVERY_WORLD,
        NEW_TEXT_LEARNT,
        NOT_DESTROYED_AT_EVERY_WIDTH,
    ),
)
