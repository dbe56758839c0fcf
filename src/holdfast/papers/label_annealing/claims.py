"""What "Memory Retaining Finetuning" claims, held against studies: holds, does not hold, or cannot
tell.

Each claim is a value of `STATEMENTS`: the paper's sentence, the recipe, the rule and the bounds
that it is judged by, and the preconditions without which the rule may not speak (`preconditions`).
What the engine does with all of them, family-wise level and warnings among it, stands in
`holdfast.papers.claims.claim`. The rules were written before any outcome under them was looked at:

- A figure is a gain against the start (`holdfast.statistics.gains.mean_gain`: mean over entries and
  seeds, more is better), or a share of what direct fine-tuning did: *kept* = gain / direct's gain
  on the target, *avoided* = 1 - loss / direct's loss on the source. *Direct* is direct fine-tuning
  at the rate that learns the target best, where a study has several; best by its validation, where
  it has one.
- Intervals are at 95 % and cover seeds and evaluated samples; shares have Fieller's.
- "Lowers", "improves", "better" hold only beyond a least effect: `LEAST` in the metric's unit,
  `BETTER` as a share of what direct fine-tuning loses. Above zero and below it is too little, which
  is not what the paper claims.
- "Keeps the start's level", "alike": an equivalence with a margin of `MARGIN` (20 %) of what direct
  fine-tuning lost or gained; the whole interval has to lie within.
- A method is judged *at equal target*: what its grid, interpolated, keeps of the source where it
  has learnt the share of direct's gain that the claim speaks of
  (`holdfast.statistics.equal_target`). Going on with the grid beyond that does not move it. The
  trial that the paper's rule takes (drop those whose target does not improve on the start, then the
  best source) moves with every stronger weight that joins the grid; what it would say stands
  beside, and a warning where it says otherwise.
  Where the paper takes no trial but shows all of them (figures 2 and 3: "with some choice ..."),
  nothing stands beside.
- A claim that some trial or some temperature does a thing is judged on all of them, with the
  intervals widened to 1 - 0.05 / looks (Bonferroni).
- A claim is judged on the benchmarks that its sentence names (`NAMED`), where the study measures
  them; else on the side as a whole, which stands in for them in the twins. So the mean of the
  source holds no benchmark that the paper says direct fine-tuning raises: table 1 lists HumanEval
  among the source benchmarks, section 3.2 says that it rises.
- While trials of a study are still to come, claims that they may change cannot be told.

The tables of the paper did not survive in the text that this project works from, so its figures are
those that its sentences state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

from holdfast.papers.claims.claim import Claim, Evidence, Statement, judge_records
from holdfast.papers.claims.requirements import Precondition
from holdfast.papers.claims.rules import MARGIN, Rule
from holdfast.papers.label_annealing.curves import ANNEALING, BOTH, L2, REPLAY, Method, why_no_trial
from holdfast.papers.label_annealing.paper import PAPER
from holdfast.papers.label_annealing.preconditions import (
    above_chance,
    converged,
    forgetting_is_moderate,
    format_is_lost,
    grid_brackets_target,
    judged_by_win_rate,
    of_entries,
    related_skill_rises,
)
from holdfast.papers.label_annealing.verdicts import (
    MOST,
    NO_LOSS,
    beats_direct,
    better_than_l2,
    curve,
    directions_alike,
    helps_little,
    keeps,
    keeps_most,
    keeps_the_related_skill,
    learns_and_forgets,
    masking_keeps_more,
    on_entries,
    on_win_rate,
    replay_alike,
    restores_format,
    some_weight,
    temperature_matters,
)
from holdfast.records.study import StudyRecord
from holdfast.statistics.gains import incomplete

RECIPES = tuple(PAPER.recipes)
NICHE_KEPT = 0.8
"""The paper's "more than 80 % of the improvement"."""
HALF = 0.5
""" "About half of improvement" (section 3.3, figures 2a and 2c)."""
NAMED: dict[str, dict[str, tuple[str, ...]]] = {
    # "hurting pretraining metrics", "the forgetting in pretraining metrics (MMLU and TriviaQA)";
    # table 3: "in pretraining metrics (MMLU, TriviaQA)"
    "math": {"keep": ("mmlu", "triviaqa")},
    # "degradation in mathematics metrics (MATH and GSM8K)"; table 2: "resolves the forgetting in
    # mathematics benchmarks"
    "code": {"keep": ("minerva_math", "hendrycks_math", "gsm8k")},
    "4a": {"learn": ("ifeval",)},  # figures 2c and 2d; 4e has the judge's
    "4b": {"learn": ("ifeval",), "keep": ("mmlu",)},  # "without loosing MMLU knowledge", figure 2c
    "4c": {"keep": ("ifeval",)},  # figure 3b; 4g has the judge's
    "4d": {"keep": ("ifeval",)},  # "with a small reduction in IFEval metrics", figure 3b
    "4f": {"keep": ("mmlu",)},  # figure 2a
}
"""By recipe or number: the benchmarks that a claim's sentence speaks of, a side; the others' sides
are the study's own."""


def check_claims(studies: Mapping[str, StudyRecord | None]) -> list[Claim]:
    """Every claim about the recipes that were asked for.

    Args:
        studies: recipe -> its study, finished or not; None or a missing recipe among `RECIPES` that
            is a key: not run.

    Returns:
        In the order of their numbers. Recipes that are no key are left out.
    """
    return judge_records(STATEMENTS, studies, _evidence)


def _evidence(study: StudyRecord) -> Evidence[StudyRecord]:
    without = {}
    for seed in study.seeds if len(study.seeds) > 1 else ():
        trials = []
        for trial in study.trials:
            trials.append(
                dataclasses.replace(trial, runs=[run for run in trial.runs if run.seed != seed])
            )
        seeds = [other for other in study.seeds if other != seed]
        without[f"seed {seed}"] = dataclasses.replace(study, seeds=seeds, trials=trials)
    return Evidence.of(study, study.trials, seeds=len(study.seeds), without=without)


def _lacking(study: StudyRecord, methods: Iterable[Method]) -> str | None:
    """Why a rule about trials of these methods cannot be applied: what everything is held against
    has to be finished, and each method needs a trial to judge."""
    if study.direct is None:
        return "direct fine-tuning, the baseline of every comparison, is not finished"
    lacking = incomplete(study.direct, study)
    if lacking is not None:
        return f"direct fine-tuning: {lacking}"
    return "; ".join(why for m in methods if (why := why_no_trial(study, m)) is not None) or None


# --------------------------------------------------------------------------------------- statements

Preconditions = tuple[Callable[[StudyRecord], Sequence[Precondition]], ...]
_SOUND: Preconditions = (forgetting_is_moderate, converged, above_chance)


def _claim(
    number: str,
    recipe: str,
    text: str,
    paper: str,
    rule: Rule[StudyRecord],
    *methods: Method,
    grids: Iterable[tuple[Method, float]] = (),
    sound: Preconditions = _SOUND,
    resumable_changes: bool = True,
) -> Statement[StudyRecord]:
    """A statement about these methods, of which some have a grid that has to bite at a share of
    direct's gain."""
    return Statement(
        number=number,
        recipe=recipe,
        text=text,
        paper=paper,
        rule=rule,
        lacking=lambda study: _lacking(study, methods),
        preconditions=[*sound, *(grid_brackets_target(method, share) for method, share in grids)],
        resumable_changes=resumable_changes,
    )


def _as_named(statement: Statement[StudyRecord]) -> Statement[StudyRecord]:
    """The same on nothing but the benchmarks that its sentence names."""
    benchmarks = NAMED.get(statement.number, NAMED.get(statement.recipe, {}))
    for side, names in benchmarks.items():
        statement = dataclasses.replace(
            statement,
            rule=on_entries(side, names, statement.rule),
            preconditions=of_entries(side, names, statement.preconditions),
        )
    return statement


def _by_win_rate(side: str, statement: Statement[StudyRecord]) -> Statement[StudyRecord]:
    """The same with nothing but a judge's win rate on one side."""
    return dataclasses.replace(
        statement,
        rule=on_win_rate(side, statement.rule),
        preconditions=judged_by_win_rate(side, statement.preconditions),
    )


LEARNS_AND_FORGETS = Rule(
    "The whole interval of direct fine-tuning's gain on the learn entries lies above the "
    "smallest change that counts (2 points, 0.05 nats). On the keep entries, the whole "
    "interval shows a loss of more than that change. Scores by strict and by flexible matching of "
    "the answers are also shown.",
    learns_and_forgets,
)
CURVE = Rule(
    "At least three weights of label annealing are tried at one temperature. From the weakest to "
    "the strongest weight, the score on the keep entries rises and the score on the learn entries "
    "falls. Each score changes by at least a tenth of direct fine-tuning's change. Between any two "
    "weights, neither score moves in the opposite direction by more than a tenth of that change. "
    "Intervals are widened for the number of pairs.",
    curve,
)


def _ours(statement: Statement[StudyRecord]) -> Statement[StudyRecord]:
    """The same, not as a claim of the paper."""
    return dataclasses.replace(statement, ours=True)


def _masking(number: str, recipe: str) -> Statement[StudyRecord]:
    return _claim(
        number,
        recipe,
        "If the KL leaves out the label (mask_target), label annealing learns as much as with the "
        "label and forgets less.",
        "ours, not the paper's; arXiv 2605.29498 reports that it \"improves the frontier between "
        'new learning and forgetting" under LoRA',
        Rule(
            "When label annealing learns 90 % as much as direct fine-tuning, mask_target gives it "
            "a higher score on the keep entries, by at least a tenth of direct fine-tuning's "
            "forgetting.",
            masking_keeps_more,
        ),
        ANNEALING,
        sound=(*_SOUND, grid_brackets_target(ANNEALING, NO_LOSS, or_levels_off=True)),
    )


def _directions(number: str, recipe: str) -> Statement[StudyRecord]:
    return _claim(
        number,
        recipe,
        "The direction of the KL does not matter: at the same gain on the learn entries, the "
        "reverse KL and the JSD forget as much as the forward KL.",
        "Eq. 2 puts the student first, and appendix A.3 puts the teacher first. The paper does not "
        "compare them",
        Rule(
            "When label annealing learns 90 % as much as direct fine-tuning, the reverse KL and "
            "the JSD each differ from the forward KL on the keep entries by at most a fifth of "
            "direct fine-tuning's forgetting.",
            directions_alike,
        ),
        ANNEALING,
        sound=(*_SOUND, grid_brackets_target(ANNEALING, NO_LOSS, or_levels_off=True)),
    )


def _of_both_variants(
    number: str, statement: Callable[[str, str], Statement[StudyRecord]]
) -> list[Statement[StudyRecord]]:
    """A claim of ours about variants of the KL, on mathematics and on code."""
    both = [statement(f"{number}a", "math_variants"), statement(f"{number}b", "code_variants")]
    return list(map(_ours, both))


_STATEMENTS = (
    _claim(
        "1a",
        "math",
        "Direct fine-tuning on mathematics raises the score on the learn entries and lowers the "
        "score on the keep entries.",
        "TriviaQA -14.19 points (section 3.2, table 1)",
        LEARNS_AND_FORGETS,
        resumable_changes=False,
    ),
    _claim(
        "1b",
        "code",
        "Direct fine-tuning on code raises the score on the learn entries and lowers the score on "
        "the keep entries.",
        "HumanEval +25.76 points, MATH -14.73 points (section 3.2, table 2)",
        LEARNS_AND_FORGETS,
        resumable_changes=False,
    ),
    _claim(
        "2a",
        "math",
        "With label annealing, the model stays at its initial level on the keep entries and learns "
        "as much as with direct fine-tuning.",
        'label annealing "fixes the forgetting in pretraining metrics (MMLU and TriviaQA)" and '
        "improves the target in some cases (section 3.2, table 1)",
        keeps(ANNEALING, kept=NO_LOSS, avoided=1 - MARGIN),
        ANNEALING,
        grids=[(ANNEALING, NO_LOSS)],
    ),
    _claim(
        "2b",
        "code",
        "With label annealing, the model stays at its initial level on the keep entries and has "
        "most of direct fine-tuning's gain on the learn entries.",
        '"able to resolve the forgetting problem, and also preserve most of the improvement in '
        'HumanEval" (section '
        "3.2, table 2)",
        Rule(
            "When label annealing learns 50 % as much as direct fine-tuning, it avoids at least "
            "80 % of direct fine-tuning's forgetting. Also shown are the shares that label "
            "annealing and L2 avoid at 50, 75 and 90 % of direct fine-tuning's gain. If L2 also "
            "avoids 80 % at 50 % of the gain, a warning says so.",
            keeps_most,
        ),
        ANNEALING,
        grids=[(ANNEALING, MOST)],
    ),
    _claim(
        "2c",
        "math",
        "Label annealing keeps most of direct fine-tuning's gain on a related skill.",
        'direct fine-tuning "does improve HumanEval performance, and label annealing can preserve '
        "most of the "
        'improvement" (section 3.2)',
        Rule(
            "When label annealing learns 90 % as much as direct fine-tuning, it has more than half "
            "of direct fine-tuning's gain on a skill that it was not trained for (the suite "
            "`related`, or HumanEval).",
            keeps_the_related_skill,
        ),
        ANNEALING,
        grids=[(ANNEALING, NO_LOSS)],
        sound=(*_SOUND, related_skill_rises),
    ),
    _claim(
        "2d",
        "math",
        "In some cases label annealing learns more than direct fine-tuning.",
        '"in some cases improving performance in target benchmarks" (section 3.2, table 1)',
        Rule(
            "At least one trial of label annealing scores higher on the learn entries than direct "
            "fine-tuning, by at least the smallest change that counts. Intervals are widened for "
            "the number of trials.",
            beats_direct,
        ),
        ANNEALING,
        sound=(forgetting_is_moderate, above_chance),
    ),
    _claim(
        "3a",
        "math",
        "An L2 penalty towards the initial model helps little against forgetting.",
        '"L2 regularization provides little help" (section 3.2, table 1)',
        Rule(
            "When L2 learns 90 % as much as direct fine-tuning, it avoids less than half of direct "
            "fine-tuning's forgetting.",
            helps_little,
        ),
        L2,
        grids=[(L2, NO_LOSS)],
    ),
    _claim(
        "3b",
        "code",
        "Label annealing forgets less than an L2 penalty towards the initial model.",
        'L2 is "still losing performance in both MATH and GSM8K", label annealing is not (section '
        "3.2, table 2)",
        Rule(
            "When both learn 90 % as much as direct fine-tuning, label annealing scores higher "
            "than L2 on the keep entries, by at least a tenth of direct fine-tuning's forgetting. "
            "The same difference is also shown at 100 % of direct fine-tuning's gain.",
            better_than_l2,
        ),
        ANNEALING,
        L2,
        grids=[(ANNEALING, NO_LOSS), (L2, NO_LOSS)],
    ),
    _claim(
        "3c",
        "code",
        "With an L2 penalty towards the initial model, the model follows the format of few-shot "
        "examples again.",
        '"the model sometimes loses its ability to follow few-shot prompts. L2 regularization is '
        "able to resolve this "
        'issue" (section 3.2)',
        Rule(
            "When L2 learns 90 % as much as direct fine-tuning, it avoids at least 80 % of direct "
            "fine-tuning's format loss. The format loss is the loss in strict matches minus the "
            "loss in flexible matches.",
            restores_format,
        ),
        L2,
        grids=[(L2, NO_LOSS)],
        sound=(*_SOUND, format_is_lost),
    ),
    _claim(
        "4a",
        "alignment_tax",
        "The weight of label annealing sets a smooth trade-off between instruction following and "
        "what the base knew.",
        "a curve (section 3.3, figure 2)",
        CURVE,
        grids=[(ANNEALING, 1 - MARGIN)],
    ),
    _claim(
        "4b",
        "alignment_tax",
        "With some weight, label annealing gives about half of the improvement without losing what "
        "the base knew.",
        '"about half of improvement in instruction following ability without" losing MMLU '
        "(section 3.3, figures 2a, "
        "2c)",
        some_weight(HALF),
        ANNEALING,
        grids=[(ANNEALING, HALF)],
    ),
    _claim(
        "4c",
        "niche_knowledge",
        "The weight of label annealing sets a smooth trade-off between niche knowledge and "
        "instruction following.",
        "a curve (section 3.3, figure 3)",
        CURVE,
        grids=[(ANNEALING, 1 - MARGIN)],
    ),
    _claim(
        "4d",
        "niche_knowledge",
        "With some weight, label annealing gives more than 80 % of the gain and loses little "
        "instruction following.",
        'more than 80 % of the improvement on QuALITY "with a small reduction in IFEval" (section '
        "3.3, figure 3b)",
        some_weight(NICHE_KEPT),
        ANNEALING,
        grids=[(ANNEALING, NICHE_KEPT)],
    ),
    _by_win_rate(
        "learn",
        _claim(
            "4e",
            "alignment_tax",
            "The weight of label annealing also sets a smooth trade-off between a judge's win rate "
            "and what the base knew.",
            "a curve with AlpacaEval as the target (section 3.3, figure 2)",
            CURVE,
            grids=[(ANNEALING, 1 - MARGIN)],
        ),
    ),
    _by_win_rate(
        "learn",
        _claim(
            "4f",
            "alignment_tax",
            "With some weight, label annealing gives about half of the improvement in win rate "
            "without losing what the base knew.",
            '"about half of improvement in instruction following ability without" losing MMLU '
            "(section 3.3, "
            "figures 2a, 2c)",
            some_weight(HALF),
            ANNEALING,
            grids=[(ANNEALING, HALF)],
        ),
    ),
    _by_win_rate(
        "keep",
        _claim(
            "4g",
            "niche_knowledge",
            "The weight of label annealing also sets a smooth trade-off between niche knowledge "
            "and a judge's win rate.",
            "a curve with AlpacaEval as the source (section 3.3, figure 3)",
            CURVE,
            grids=[(ANNEALING, 1 - MARGIN)],
        ),
    ),
    _claim(
        "5",
        "math",
        "Replay of 10 % old data forgets as much with label annealing as without it.",
        '"performing on par" on MMLU and TriviaQA (section 5, table 3)',
        Rule(
            "When both learn 90 % as much as direct fine-tuning, replay with label annealing and "
            "replay alone on the same data differ on the keep entries by at most a fifth of direct "
            "fine-tuning's forgetting. Replay alone counts as weight 0 of label annealing and has "
            "only this trial. The trial must learn at least 90 % as much as direct fine-tuning.",
            replay_alike,
        ),
        REPLAY,
        BOTH,
        grids=[(BOTH, NO_LOSS)],
    ),
    _ours(
        _claim(
            "6",
            "code",
            "The temperature of label annealing matters: with some temperature other than 1, it "
            "learns as much as with 1 and forgets less.",
            "the paper sweeps weight and temperature (sections 2, 3.1) but does not print the "
            "effect of the temperature",
            Rule(
                "When label annealing learns 90 % as much as direct fine-tuning, some temperature "
                "other than 1 gives it a higher score on the keep entries than temperature 1, by "
                "at least a tenth of direct fine-tuning's forgetting. Intervals are widened for "
                "the number of temperatures. The study needs a temperature below 1 and one above "
                "1.",
                temperature_matters,
            ),
            ANNEALING,
            grids=[(ANNEALING, NO_LOSS)],
        )
    ),
    *_of_both_variants("7", _masking),
    *_of_both_variants("8", _directions),
)
"""Before `NAMED`."""
STATEMENTS = tuple(map(_as_named, _STATEMENTS))
