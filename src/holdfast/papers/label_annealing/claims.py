"""What "Memory Retaining Finetuning" claims, held against studies: holds, does not hold, or cannot tell.

Each claim is a value of `STATEMENTS`: the paper's sentence, the recipe, the rule and the bounds that it is judged by,
and the preconditions without which the rule may not speak (`preconditions`). What the engine
does with all of them, family-wise level and warnings among it, stands in `holdfast.papers.claims.rules`. The rules
were written before any outcome under them was looked at:

- A figure is a gain against the start (`holdfast.statistics.gains.mean_gain`: mean over entries and seeds, more is
  better), or a share of what direct fine-tuning did: *kept* = gain / direct's gain on the target, *avoided* = 1 - loss
  / direct's loss on the source. *Direct* is direct fine-tuning at the rate that learns the target best, where a study
  has several; best by its validation, where it has one.
- Intervals are at 95 % and cover seeds and evaluated samples; shares have Fieller's.
- "Lowers", "improves", "better" hold only beyond a least effect: `LEAST` in the metric's unit, `BETTER` as a share of
  what direct fine-tuning loses. Above zero and below it is too little, which is not what the paper claims.
- "Keeps the start's level", "alike": an equivalence with a margin of `MARGIN` (20 %) of what direct fine-tuning lost or
  gained; the whole interval has to lie within.
- A method is judged *at equal target*: what its grid, interpolated, keeps of the source where it has learnt the share
  of direct's gain that the claim speaks of (`holdfast.statistics.equal_target`). Going on with the grid beyond that
  does not move it. The trial that the paper's rule takes (drop those whose target does not improve on the start, then
  the best source) moves with every stronger weight that joins the grid; what it would say stands beside, and a warning
  where it says otherwise.
- A claim that some weight does a thing ("with some choice ...") is judged on all of them, with the intervals widened to
  1 - 0.05 / weights (Bonferroni).
- While trials of a study are still to come, claims that they may change cannot be told.

The tables of the paper did not survive in the text that this project works from, so its figures are those that its
sentences state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

from holdfast.papers.claims import rules as engine
from holdfast.papers.claims.rules import MARGIN, Claim, Evidence, Precondition, Statement
from holdfast.papers.label_annealing.paper import PAPER
from holdfast.papers.label_annealing.preconditions import (
    above_chance,
    bites,
    converged,
    format_is_lost,
    judged_by_win_rate,
    moderate,
    related_skill_rises,
)
from holdfast.papers.label_annealing.verdicts import (
    MOST,
    NO_LOSS,
    Rule,
    beats_direct,
    better_than_l2,
    curve,
    helps_little,
    keeps,
    keeps_the_related_skill,
    learns_and_forgets,
    on_win_rate,
    replay_alike,
    restores_format,
    some_weight,
    temperature_matters,
)
from holdfast.records.study import StudyRecord
from holdfast.statistics.gains import incomplete
from holdfast.studies.tradeoff.curves import ANNEALING, BOTH, L2, REPLAY, Method, none_of

RECIPES = tuple(PAPER.recipes)
NICHE_KEPT = 0.8
"""The paper's "more than 80 % of the improvement"."""
HALF = 0.4
""" "About half": at least this share."""


def check_claims(studies: Mapping[str, StudyRecord | None]) -> list[Claim]:
    """Every claim about the recipes that were asked for.

    Args:
        studies: recipe -> its study, finished or not; None or a missing recipe among `RECIPES` that is a key: not run.

    Returns:
        In the order of their numbers. Recipes that are no key are left out.
    """
    return engine.check_claims(STATEMENTS, {recipe: _evidence(study) for recipe, study in studies.items()})


def _evidence(study: StudyRecord | None) -> Evidence[StudyRecord]:
    if study is None:
        return Evidence(record=None)
    without = {}
    for seed in study.seeds if len(study.seeds) > 1 else ():
        trials = [dataclasses.replace(t, runs=[r for r in t.runs if r.seed != seed]) for t in study.trials]
        rest = [s for s in study.seeds if s != seed]
        without[f"seed {seed}"] = dataclasses.replace(study, seeds=rest, trials=trials)
    waiting = sum(t.state in ("waiting", "running") for t in study.trials)
    return Evidence(record=study, waiting=waiting, seeds=len(study.seeds), without=without)


def _lacking(study: StudyRecord, methods: Iterable[Method]) -> str | None:
    """Why a rule about trials of these methods cannot be applied: what everything is held against has to be finished,
    and each method needs a trial to judge."""
    if study.direct is None:
        return "direct fine-tuning, which everything is held against, is not finished"
    lacking = incomplete(study.direct, study)
    if lacking is not None:
        return f"direct fine-tuning: {lacking}"
    return "; ".join(why for m in methods if (why := none_of(study, m)) is not None) or None


# ---------------------------------------------------------------------------------------------------------- statements

Preconditions = tuple[Callable[[StudyRecord], Sequence[Precondition]], ...]
_SOUND: Preconditions = (moderate, converged, above_chance)


def _statement(
    number: str,
    recipe: str,
    text: str,
    check: Rule,
    *methods: Method,
    paper: str,
    grids: Iterable[tuple[Method, float]] = (),
    sound: Preconditions = _SOUND,
    may_change: bool = True,
    win_rate: str = "",
) -> Statement[StudyRecord]:
    """A statement about these methods, of which some have a grid that has to bite at a share of direct's gain; with
    nothing but the win rate on the side `win_rate`, where one is named."""
    looks = [*sound, *(bites(method, share) for method, share in grids)]
    return Statement(
        number=number,
        recipe=recipe,
        text=text,
        paper=paper,
        check=on_win_rate(win_rate, check) if win_rate else check,
        lacking=lambda study: _lacking(study, methods),
        preconditions=judged_by_win_rate(win_rate, looks) if win_rate else looks,
        may_change=may_change,
    )


STATEMENTS: tuple[Statement[StudyRecord], ...] = (
    _statement(
        "1a",
        "math",
        "Direct fine-tuning on mathematics improves the target and lowers source scores.",
        learns_and_forgets,
        paper="TriviaQA -14.19 points (section 3.2, table 1)",
        may_change=False,
    ),
    _statement(
        "1b",
        "code",
        "Direct fine-tuning on code improves the target and lowers source scores.",
        learns_and_forgets,
        paper="HumanEval +25.76 points, MATH -14.73 points (section 3.2, table 2)",
        may_change=False,
    ),
    _statement(
        "2a",
        "math",
        "Label annealing keeps the source at the start's level at no loss on the target.",
        keeps(ANNEALING, kept=NO_LOSS, avoided=1 - MARGIN),
        ANNEALING,
        paper='"fixes the forgetting in pretraining metrics (MMLU and TriviaQA) and in some cases" improves the '
        "target (section 3.2, table 1)",
        grids=[(ANNEALING, NO_LOSS)],
    ),
    _statement(
        "2b",
        "code",
        "Label annealing keeps the source at the start's level and most of the target's gain.",
        keeps(ANNEALING, kept=MOST, avoided=1 - MARGIN),
        ANNEALING,
        paper='"able to resolve the forgetting problem, and also preserve most of the improvement in HumanEval" '
        "(section 3.2, table 2)",
        grids=[(ANNEALING, MOST)],
    ),
    _statement(
        "2c",
        "math",
        "Label annealing keeps most of what fine-tuning brings to a related skill.",
        keeps_the_related_skill,
        ANNEALING,
        paper='direct fine-tuning "does improve HumanEval performance, and label annealing can preserve most of the '
        'improvement" (section 3.2)',
        grids=[(ANNEALING, NO_LOSS)],
        sound=(*_SOUND, related_skill_rises),
    ),
    _statement(
        "2d",
        "math",
        "In places label annealing learns more of the target than direct fine-tuning.",
        beats_direct,
        ANNEALING,
        paper='"in some cases improving performance in target benchmarks" (section 3.2, table 1)',
        sound=(moderate, above_chance),
    ),
    _statement(
        "3a",
        "math",
        "L2 to the start helps little.",
        helps_little,
        L2,
        paper='"L2 regularization provides little help" (section 3.2, table 1)',
        grids=[(L2, NO_LOSS)],
    ),
    _statement(
        "3b",
        "code",
        "Label annealing keeps more of the source than L2 to the start.",
        better_than_l2,
        ANNEALING,
        L2,
        paper='L2 is "still losing performance in both MATH and GSM8K", label annealing is not (section 3.2, table 2)',
        grids=[(ANNEALING, NO_LOSS), (L2, NO_LOSS)],
    ),
    _statement(
        "3c",
        "code",
        "L2 to the start restores the following of few-shot examples.",
        restores_format,
        L2,
        paper='"the model sometimes loses its ability to follow few-shot prompts. L2 regularization is able to resolve '
        'this issue" (section 3.2)',
        grids=[(L2, NO_LOSS)],
        sound=(*_SOUND, format_is_lost),
    ),
    _statement(
        "4a",
        "alignment_tax",
        "The weight of label annealing draws a smooth trade-off between instruction following and what the base knew.",
        curve,
        paper="a curve (section 3.3, figure 2)",
        grids=[(ANNEALING, 1 - MARGIN)],
    ),
    _statement(
        "4b",
        "alignment_tax",
        "With some weight about half of the improvement comes without losing what the base knew.",
        some_weight(HALF),
        ANNEALING,
        paper='"about half of improvement in instruction following ability without" losing MMLU (section 3.3, figures '
        "2a, 2c)",
        grids=[(ANNEALING, HALF)],
    ),
    _statement(
        "4c",
        "niche_knowledge",
        "The weight of label annealing draws a smooth trade-off between the niche's knowledge and instruction "
        "following.",
        curve,
        paper="a curve (section 3.3, figure 3)",
        grids=[(ANNEALING, 1 - MARGIN)],
    ),
    _statement(
        "4d",
        "niche_knowledge",
        "With some weight more than 80 % of the gain comes at a small loss of instruction following.",
        some_weight(NICHE_KEPT),
        ANNEALING,
        paper='more than 80 % of the improvement on QuALITY "with a small reduction in IFEval" (section 3.3, figure '
        "3b)",
        grids=[(ANNEALING, NICHE_KEPT)],
    ),
    _statement(
        "4e",
        "alignment_tax",
        "By a judge's win rate, too, the weight draws a smooth trade-off with what the base knew.",
        curve,
        paper="a curve with AlpacaEval as the target (section 3.3, figure 2)",
        grids=[(ANNEALING, 1 - MARGIN)],
        win_rate="target",
    ),
    _statement(
        "4f",
        "alignment_tax",
        "With some weight about half of the win rate's improvement comes without losing what the base knew.",
        some_weight(HALF),
        ANNEALING,
        paper='"about half of improvement in instruction following ability without" losing MMLU (section 3.3, figures '
        "2a, 2c)",
        grids=[(ANNEALING, HALF)],
        win_rate="target",
    ),
    _statement(
        "4g",
        "niche_knowledge",
        "By a judge's win rate, too, the weight draws a smooth trade-off with the niche's knowledge.",
        curve,
        paper="a curve with AlpacaEval as the source (section 3.3, figure 3)",
        grids=[(ANNEALING, 1 - MARGIN)],
        win_rate="source",
    ),
    _statement(
        "5",
        "math",
        "Replay of 10 % alone and replay with label annealing keep the source alike.",
        replay_alike,
        REPLAY,
        BOTH,
        paper='"performing on par" on MMLU and TriviaQA (section 5, table 3)',
    ),
    _statement(
        "6",
        "code",
        "The temperature of label annealing matters: at equal target another than 1 keeps more of the source.",
        temperature_matters,
        ANNEALING,
        paper="weight and temperature are both swept (sections 2, 3.1); what the temperature brings is not printed",
        grids=[(ANNEALING, NO_LOSS)],
    ),
)
