"""What "Overtrained Language Models" claims of language models, held against an overtraining study:
holds, does not hold, or cannot tell.

The rules stand in `judging`, what they read of a study in `readings`, and what has to be so before
they may speak in `preconditions`. They were written anew from the paper's sentences after the first
ones were found to judge where the paper does not: at rates at which everything is lost, on ladders
of two tokens a parameter. They were committed before anything was run that they are to judge;
records of earlier studies were known.

- A study is one ladder. Figures are means over the seeds of what is modified (draws of noise,
  fine-tunings), and their intervals (95 %) cover them and the samples. They say nothing of another
  pre-training.
- *Kept*: the first entry under `keep`, text such as the checkpoints were pre-trained on, nats a
  token. The paper prints "perplexity" and draws logarithms of it: figure 5 ends at 6, where a model
  of 30 million parameters has a perplexity of 24 on C4, which is 3.2 nats. So costs are differences
  of nats here. In perplexity they would be the harder to rise, as the checkpoints' own falls.
- *The task*: the first entry of its test. What the paper says of "all data sets" has to hold on
  every task of the study; what it says of "some cases", on one, with the level divided among them.
- *Cost*: what a modification takes from a figure of the checkpoint; more is worse.
- *Direct*: fine-tuning without a method. *At a rate*: the same at all budgets. *Tuned*: at each
  budget the rate that the validation data chose. *Rates that are read*: see `readings`.
- *Rises monotonically*: from the smallest to the largest budget by more than a tenth of the largest
  cost along the ladder, and between no two budgets does it go back by more than that, all pairs at
  once.
- *Turns*: the budget at which the modified model is at its best is not the largest, and the largest
  is shown to be worse (`statistics.inflection`). Of two turning points one comes *earlier* where
  all budgets that may be its best lie before all of the other's, each at half the error.
- In proportion to the rate: an exponent within 0.2 of 1. Independent of the budget: distances at
  one rate differ by no more than 20 % between the smallest and the largest budget.
- *VLM score*, of a study whose task has images: the first entry of its test, a share of questions
  about pictures. It rises by more than 0.02 of the questions.
- *At equal target*: where a way to fine-tune, along its rates, reaches what direct fine-tuning does
  at its tuned rate (`statistics.equal_target`), direct fine-tuning by the same measure.

No rule: figure 7's middle case (it does not say how slowly a rate has to fall), and the ablations
of table 6 (figures 30 to 64), on which the paper has no sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from holdfast.papers.claims.claim import Claim, Evidence, Statement, judge_records
from holdfast.papers.claims.requirements import Requirement
from holdfast.papers.claims.rules import Rule, rising
from holdfast.papers.overtraining.judging import (
    EQUAL_GAIN,
    EQUAL_SCORE,
    SCORE,
    a_benchmark_turns,
    above_the_quadratic,
    constant_rate_harms_both,
    costs_grow_less,
    distance_follows_the_rate,
    first_improves,
    harmless_rate_falls,
    keeps_more,
    moves,
    nothing_turns,
    others_improve,
    quadratic_near_and_far,
    sharpness_grows,
    smallest_rate_turns_later,
    turns,
    turns_earlier,
    turns_somewhere,
)
from holdfast.papers.overtraining.preconditions import (
    CONTROLLED,
    FIXED,
    NEAR_ENOUGH,
    OVERTRAINED_LADDER,
    PUBLIC,
    RETAINING,
    SEEN_FIXED,
    SEEN_TUNED,
    TUNED,
    fine,
    inside,
    something_to_delay,
    something_to_lessen,
)
from holdfast.papers.overtraining.readings import (
    Direct,
    Noise,
    at_rates,
    at_tuned_rates,
    every_rate,
    first_task,
    noises,
    noisy,
    tuned,
    tuned_benchmarks,
)
from holdfast.papers.overtraining.record import OvertrainingRecord

READING = (
    "A study has the checkpoints of one model at rising pre-training budgets (a ladder). "
    "Intervals cover noise draws, fine-tuning seeds and samples, but not other pre-training "
    "runs.",
    "Forgetting is how much fine-tuning raises the loss on keep data, in nats per token. The "
    "paper speaks of perplexities, but the values in its figures are too small for that. They are "
    "read as logarithms of perplexities, that is, as nats per token.",
    "A score has an inflection point if the modified model is best before the largest budget "
    "and significantly worse at the largest budget.",
    "A fixed learning rate is included if fine-tuning neither diverges nor exceeds "
    "`max_perplexity` at any budget. The paper leaves out losses above 6 nats.",
    "Claims 9a to 9o are ours. The paper expects regularised fine-tuning to delay the "
    "inflection point, but does not test it.",
    "Claims 10a to 10h are about vision-language models. The paper's VLM score is the mean of "
    "MME, GQA, AI2D, POPE and TextVQA, which are not run here. Our VLM score is the mean over "
    "five kinds of questions about pictures of digits. Claims 10e to 10g are ours.",
    "Claims 11a to 11c are about public checkpoints (`configs/overtraining/sft.yaml`). For "
    "OLMo-1B, the paper prints 3 % less on AlpacaEval and 2 % less on ARC after 3T tokens than "
    "after 2.3T tokens.",
)
LANGUAGE, PICTURES, PUBLIC_1B, PUBLIC_7B = "budgets", "pictures", "olmo_1b", "olmo_2_7b"
"""Recipes: a study of text, one whose checkpoints get a vision tower, and two of public
checkpoints that are tuned on instructions."""


def check_claims(records: Mapping[str, OvertrainingRecord | None]) -> list[Claim]:
    """Every claim, held against the study of each ladder that was asked for.

    Args:
        records: by recipe, finished or not; None: not run.
    """
    return judge_records(STATEMENTS, records, _evidence)


def _evidence(record: OvertrainingRecord) -> Evidence[OvertrainingRecord]:
    seeds = max((len(model.seeds) for model in record.models), default=2)
    return Evidence.of(record, record.models, seeds=seeds, noun="fine-tuning")


def _claim(
    number: str,
    text: str,
    paper: str,
    rule: Rule[OvertrainingRecord],
    needs: Sequence[Requirement] = CONTROLLED,
    recipe: str = LANGUAGE,
) -> Statement[OvertrainingRecord]:
    return Statement(
        number=number,
        recipe=recipe,
        text=text,
        paper=paper,
        rule=rule,
        preconditions=needs,
        ours=paper is _OURS,
    )


_OURS = (
    '"we expect that explicit forms of regularization to prevent large parameter updates could '
    'also mitigate or delay catastrophic overtraining" (section 3.4.2; theorem 4.7); the paper '
    "does not test it"
)
_SCORE = (
    '"extended pre-training translates to continuous improvements in the VLM score" (section 2, '
    "figure 2 right)"
)
_LOST = (
    '"models pre-trained on more tokens show greater forgetting and larger drops in performance '
    "across the various OOD "
    'benchmarks" (section 2, figure 2 right)'
)
_ALL_RATES = (
    "figures 24, 26 and 28 show all learning rates (appendix E); the paper's text does not "
    "discuss them"
)
_SHARP = (
    "the loss is quadratic for small steps and lies above the quadratic for large steps "
    "(appendix D, "
)


def _retention(kind: str, name: str, letters: str) -> Iterator[Statement[OvertrainingRecord]]:
    """At tuned rates, at equal rates, and at equal target."""
    later = f"{name} moves the inflection point to a larger pre-training budget"
    less = f"{name} makes forgetting grow less with the pre-training budget"
    tuned_arm = (inside(kind), fine(kind))
    for at_fixed_rates, at in (
        (False, "each budget's tuned learning rate"),
        (True, "equal learning rates"),
    ):
        needs = FIXED if at_fixed_rates else (*TUNED, *tuned_arm)
        first, second = (letters[2], letters[3]) if at_fixed_rates else (letters[0], letters[1])
        delay = something_to_delay(at_fixed_rates=at_fixed_rates)
        rule = moves(kind, at_fixed_rates=at_fixed_rates)
        yield _claim(f"9{first}", f"At {at}, {later}.", _OURS, rule, (*needs, delay))
        lessen = something_to_lessen(at_fixed_rates=at_fixed_rates)
        rule = costs_grow_less(kind, at_fixed_rates=at_fixed_rates)
        yield _claim(f"9{second}", f"At {at}, {less}.", _OURS, rule, (*needs, lessen))
    text = (
        f"At the largest pre-training budget, {name} forgets less than direct fine-tuning that "
        "learns as much."
    )
    yield _claim(f"9{letters[4]}", text, _OURS, keeps_more(kind, EQUAL_GAIN), TUNED)


def _equal_score(kind: str, name: str, letter: str) -> Statement[OvertrainingRecord]:
    text = (
        f"At the largest pre-training budget, {name} forgets less of the text ability than "
        "direct fine-tuning with the same VLM score."
    )
    rule = keeps_more(kind, EQUAL_SCORE)
    return _claim(f"10{letter}", text, _OURS, rule, SEEN_TUNED, PICTURES)


STATEMENTS = (
    _claim(
        "1a",
        "The perplexity of the unmodified checkpoint falls with the pre-training budget.",
        "the perplexity falls with the budget (figures 3 to 6, dashed lines)",
        Rule(
            "On the first entry of keep, the unmodified checkpoint with the largest budget is "
            "best. Every unmodified checkpoint with a smaller budget is significantly worse.",
            first_improves,
        ),
        (OVERTRAINED_LADDER,),
    ),
    _claim(
        "1b",
        "With a larger pre-training budget, the unmodified checkpoint also gets better on "
        "everything else that is measured.",
        '"The performance keeps improving on all the downstream tasks we evaluate" (section 2.2)',
        Rule(
            "On all other keep entries, the unmodified checkpoint with the largest budget "
            "is best. Every unmodified checkpoint with a smaller budget is significantly worse.",
            others_improve,
        ),
    ),
    _claim(
        "2",
        "At every noise size, the loss increase caused by Gaussian noise grows monotonically "
        "with the pre-training budget.",
        '"progressive sensitivity" at every noise size gamma (section 3.3, figure 3)',
        rising(
            "At every noise size, noise raises the loss more at the largest budget than at the "
            "smallest. The difference is more than a tenth of the largest loss increase over the "
            "budgets. From any budget to a larger one, the loss increase falls by at most that "
            "tenth.",
            noises,
            Noise.costs,
            what="loss increase caused by noise {case.size:g}",
            least=Noise.tenth,
            back=Noise.tenth,
            along="the budget",
        ),
    ),
    _claim(
        "3",
        "At a fixed learning rate, forgetting by fine-tuning rises monotonically with the "
        "pre-training budget.",
        '"progressive sensitivity" at fixed learning rates, "across all datasets" (section '
        "3.4.1, figures 4 and 29)",
        rising(
            "On every task and at every included learning rate, forgetting by direct "
            "fine-tuning rises from the smallest to the largest budget. The rise is more than "
            "a tenth of the largest value over the budgets. From any budget to a larger one, "
            "forgetting falls by at most that tenth.",
            every_rate,
            Direct.costs,
            what="forgetting at {case.at}",
            least=Direct.tenth,
            back=Direct.tenth,
            along="the budget",
        ),
        FIXED,
    ),
    _claim(
        "4a",
        "Under noise, the loss is U-shaped: beyond some budget, longer pre-training makes the "
        "loss worse.",
        "an inflection point at each gamma that is large enough (section 3.3, figure 3)",
        turns(
            "Under the largest noise, the model is best before the largest budget and "
            "significantly worse at the largest budget.",
            "the model under {}",
            lambda record: [noisy(record, -1)],
        ),
    ),
    _claim(
        "4b",
        "Larger noise moves the inflection point to a smaller pre-training budget.",
        '"leading to an inflection point at a lower token budget" (section 3.3)',
        turns_earlier(
            "The best budget is smaller under the largest noise than under the smallest. The "
            "intervals of the two best budgets do not overlap.",
            lambda record: [noisy(record, -1)],
            lambda record: [noisy(record, 0)],
            "a second size of noise",
        ),
    ),
    _claim(
        "4c",
        "After fine-tuning at a fixed learning rate, the loss on pre-training text is a "
        "U-shaped function of the pre-training budget.",
        '"At sufficiently large learning rates ... we observe performance degradation" (section '
        "3.4.1, figure 5)",
        turns(
            "On every task, after direct fine-tuning at the largest included learning rate, the "
            "score on keep data is best before the largest budget. At the largest budget, it is "
            "significantly worse.",
            "the score on keep data at {}",
            lambda record: at_rates(record, -1),
        ),
        FIXED,
    ),
    _claim(
        "4d",
        "A larger learning rate moves the inflection point to a smaller pre-training budget.",
        '"models trained with larger learning rates exhibit an inflection point at lower token '
        'budgets" (section 3.4.1, figure 5)',
        turns_earlier(
            "On every task, the score on keep data after direct fine-tuning has an earlier "
            "inflection point with the largest included learning rate than with the smallest.",
            lambda record: at_rates(record, -1),
            lambda record: at_rates(record, 0),
            "a second included learning rate",
        ),
        FIXED,
    ),
    _claim(
        "4e",
        "In some cases, the loss on the task itself is a U-shaped function of the pre-training "
        "budget after fine-tuning at a large fixed learning rate.",
        '"though sometimes also exhibit a U-shaped trend in ID perplexity" (section 3.4.1, figure '
        "5, bottom)",
        turns_somewhere(
            "On at least one task, after direct fine-tuning at the largest included learning "
            "rate, the task score is best before the largest budget. At the largest budget, it is "
            "significantly worse.",
            "the task score at {}",
            lambda record: at_rates(record, -1, "learn"),
        ),
        FIXED,
    ),
    _claim(
        "5a",
        "In some cases, the score on keep data degrades at large pre-training budgets although "
        "the learning rate is tuned for the task.",
        '"C4 perplexity degrades in GSM8k, Starcoder-Python, MR, and RTE", four of six (section '
        "3.4.2, figure 6)",
        turns_somewhere(
            "On at least one task, with each budget at its tuned learning rate, the score on "
            "keep data has an inflection point.",
            "the score on keep data at {}",
            tuned,
        ),
        TUNED,
    ),
    _claim(
        "5b",
        "In some cases, the task score itself degrades at large pre-training budgets although "
        "the learning rate is tuned for the task.",
        '"ID perplexity degrades with extensive overtraining (RTE, TREC)", two of six (section '
        "3.4.2, figure 6)",
        turns_somewhere(
            "On at least one task, with each budget at its tuned learning rate, the task score "
            "has an inflection point.",
            "the task score at {}",
            lambda record: tuned(record, "learn"),
        ),
        TUNED,
    ),
    _claim(
        "5c",
        "If the tuned learning rate is the same at all pre-training budgets, both the task "
        "score and the score on keep data degrade.",
        '"A constant optimal learning rate across token budgets leads to degradation in both" '
        "(section 3.4.2, figure 7 left)",
        Rule(
            "On every task whose tuned learning rate is the same at all budgets, both the task "
            "score and the score on keep data have an inflection point.",
            constant_rate_harms_both,
        ),
        TUNED,
    ),
    _claim(
        "5d",
        "If neither the task score nor the score on keep data degrades, the tuned learning "
        "rate falls with the pre-training budget.",
        '"A quickly decreasing optimal learning rate enables improvements in both" (section 3.4.2, '
        "figure 7 right)",
        Rule(
            "The rule applies to every task on which both the task score and the score on keep "
            "data are best at the largest budget. On these tasks, the whole interval of the tuned "
            "learning rate at the largest budget lies below the interval at the smallest budget. "
            "An interval covers the learning rates that are not significantly worse than the "
            "tuned one.",
            harmless_rate_falls,
        ),
        TUNED,
    ),
    _claim(
        "6",
        "The distance that fine-tuning moves the weights is proportional to the learning "
        "rate and does not depend on the pre-training budget.",
        '"not exactly, but approximately, directly proportional to the learning rate and '
        'independent of the amount of pre-training" (appendix C.1, figure 8)',
        Rule(
            "On every task and over the included learning rates, the weights' distance to the "
            "checkpoint grows as a power of the learning rate, with an exponent within 0.2 of "
            "1. On average over these learning rates, the distances at the smallest and the "
            "largest budget differ by at most 20 %.",
            distance_follows_the_rate,
        ),
        FIXED,
    ),
    _claim(
        "7a",
        "In the direction of noise, the loss follows its quadratic approximation near the "
        "checkpoint and lies above the approximation far away.",
        f"{_SHARP}figure 9)",
        Rule(
            "At the smallest noise, the loss differs from its quadratic approximation by at "
            "most 10 % of the loss change that the approximation predicts. At the largest noise, "
            "the loss lies above the approximation by more than 10 % of the change predicted "
            "there.",
            quadratic_near_and_far,
        ),
        (OVERTRAINED_LADDER, NEAR_ENOUGH),
    ),
    _claim(
        "7b",
        "In the direction of a fine-tuning, the loss also lies above its quadratic approximation.",
        '"the actual loss is substantially higher than the quadratic approximation" (appendix D, '
        "figure 10)",
        Rule(
            "At the fine-tuned model, the loss lies above its quadratic approximation by more "
            "than 10 % of the loss change that the approximation predicts.",
            above_the_quadratic,
        ),
        (OVERTRAINED_LADDER,),
    ),
    _claim(
        "7c",
        "Longer pre-training makes the loss sharper: its curvature grows with the budget.",
        'progressive sensitivity is "a generalization of progressive sharpness"; for the '
        'Hessian, "other norms ... such as the trace norm, also exhibit a similar behavior" '
        "(appendix D)",
        Rule(
            "The trace of the Hessian is larger at the largest budget than at the smallest. "
            "The difference is more than a tenth of the trace at the largest budget.",
            sharpness_grows,
        ),
    ),
    _claim(
        "8",
        "A learning rate below the tuned learning rate delays the inflection point.",
        '"choosing to train with the smallest learning rate would delay the inflection point", at '
        "the task's expense (section 3.4.2, figure 7)",
        Rule(
            "The rule applies to every task on which the score on keep data has an inflection "
            "point at the tuned learning rates. On these tasks, the inflection point comes later "
            "with the smallest included learning rate than with the tuned ones.",
            smallest_rate_turns_later,
        ),
        (*TUNED, RETAINING, something_to_delay(at_fixed_rates=False)),
    ),
    *_retention("label_annealing", "label annealing", "abghm"),
    *_retention("l2", "L2 regularisation toward the initial model", "cdijn"),
    *_retention("sfa", "SFA", "efklo"),
    _claim(
        "10a",
        "With the learning rate tuned for the VLM score, the VLM score rises with the "
        "pre-training budget.",
        _SCORE,
        rising(
            "With each budget at its tuned learning rate, the VLM score rises from the "
            "smallest to the largest budget by more than 0.02. Between any two budgets, the "
            "VLM score falls by at most 0.02.",
            at_tuned_rates,
            Direct.scores,
            what="VLM score at {case.at}",
            least=SCORE,
            back=SCORE,
            along="the budget",
        ),
        SEEN_TUNED,
        PICTURES,
    ),
    _claim(
        "10b",
        "With the learning rate tuned for the VLM score, fine-tuning forgets more of the text "
        "ability after longer pre-training.",
        _LOST,
        rising(
            "With each budget at its tuned learning rate, forgetting on keep data rises from "
            "the smallest to the largest budget. The rise is more than a tenth of the largest "
            "value over the budgets. From any budget to a larger one, forgetting falls by at most "
            "that tenth.",
            at_tuned_rates,
            Direct.costs,
            what="forgetting of text at {case.at}",
            least=Direct.tenth,
            back=Direct.tenth,
            along="the budget",
        ),
        SEEN_TUNED,
        PICTURES,
    ),
    _claim(
        "10c",
        "At every fixed learning rate, the VLM score rises with the pre-training budget.",
        _ALL_RATES,
        rising(
            "At every included learning rate, the VLM score rises from the smallest to the "
            "largest budget by more than 0.02. Between any two budgets, the VLM score falls by "
            "at most 0.02.",
            every_rate,
            Direct.scores,
            what="VLM score at {case.at}",
            least=SCORE,
            back=SCORE,
            along="the budget",
        ),
        SEEN_FIXED,
        PICTURES,
    ),
    _claim(
        "10d",
        "At every fixed learning rate, fine-tuning forgets more of the text ability after "
        "longer pre-training.",
        _ALL_RATES,
        rising(
            "At every included learning rate, forgetting on keep data rises from the smallest "
            "to the largest budget. The rise is more than a tenth of the largest value over the "
            "budgets. From any budget to a larger one, forgetting falls by at most that tenth.",
            every_rate,
            Direct.costs,
            what="forgetting of text at {case.at}",
            least=Direct.tenth,
            back=Direct.tenth,
            along="the budget",
        ),
        SEEN_FIXED,
        PICTURES,
    ),
    _equal_score("label_annealing", "label annealing", "e"),
    _equal_score("sfa", "SFA", "f"),
    _equal_score("LoRA", "LoRA", "g"),
    _claim(
        "10h",
        "On at least one text benchmark, the vision-language model gets worse with longer "
        "pre-training.",
        '"On some datasets such as PIQA, the drop is so severe that extended pre-training actively '
        'hurts performance after post-training" (section 2.2, figure 2 right)',
        turns_somewhere(
            "With each budget at its tuned learning rate, at least one entry of keep has "
            "an inflection point.",
            "{}",
            lambda record: tuned_benchmarks(record, first_task(record)),
        ),
        SEEN_TUNED,
        PICTURES,
    ),
    _claim(
        "11a",
        "After instruction tuning, OLMo-1B follows instructions worse if it was "
        "pre-trained on more than 2.5T tokens.",
        '"a base model pre-trained on 3T tokens shows up to 3% lower response rate (AlpacaEval '
        'score) than one pre-trained on just 2.3T tokens" (section 2.2; 3.1, item 1; figure 2)',
        turns(
            "On every data set, with each budget at its tuned learning rate, the test score "
            "(AlpacaEval) has an inflection point.",
            "the test score at {}",
            lambda record: tuned(record, "learn"),
        ),
        PUBLIC,
        PUBLIC_1B,
    ),
    _claim(
        "11b",
        "After instruction tuning, OLMo-1B also gets worse on general benchmarks with "
        "longer pre-training.",
        '"We see a similar drop on various OOD tasks"; 2 % on ARC (sections 1, 2.2; figure 2)',
        Rule(
            "On every data set, with each budget at its tuned learning rate, at least one "
            "entry of keep has an inflection point.",
            a_benchmark_turns,
        ),
        PUBLIC,
        PUBLIC_1B,
    ),
    _claim(
        "11c",
        "After the same instruction tuning as OLMo-1B, OLMo-2-7B does not get worse up to "
        "3T tokens of pre-training.",
        '"catastrophic overtraining is not observed on OLMo-7B models for pre-training token '
        'budgets up to 3T tokens" (section 3.1, item 3)',
        Rule(
            "On every data set, with each budget up to 3T tokens at its tuned learning rate, "
            "the test score and every entry of keep are best at the largest budget. None has "
            "an inflection point.",
            nothing_turns,
        ),
        PUBLIC,
        PUBLIC_7B,
    ),
)
