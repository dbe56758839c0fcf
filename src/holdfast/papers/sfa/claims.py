"""What "Soup to Go" claims, held against a sequence study: holds, does not hold, or cannot tell.

The rules (`verdicts`) and what has to be so before they may speak (`preconditions`) were committed
before any outcome under them was looked at. Which claims are the paper's and which are ours, asked
beside them, is said of each.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterator, Mapping

from holdfast.papers.claims.claim import Claim, Evidence, Statement, failed_models, judge_records
from holdfast.papers.claims.requirements import Requirement
from holdfast.papers.claims.rules import Rule
from holdfast.papers.sfa import verdicts
from holdfast.papers.sfa.preconditions import FORGETS, FORGETS_MOST, LEARNS, brackets
from holdfast.papers.sfa.verdicts import beats, best_beats
from holdfast.records.figure import Figure
from holdfast.records.sequence import SequenceRecord

RECIPE, IN_A_ROW, FIGURE_1, CLASSES = "tasks", "three_tasks", "figure_1", "class_incremental"
"""The studies: pairs of language tasks, three in a row, figure 1's small networks in the paper's
protocol, and the same with an output for every digit."""
READING = (
    "The old task is a task before the last one. The new task is the last one. What is learnt is "
    "the gain over the base from training a task alone. What is forgotten is the part of that gain "
    "that sequential fine-tuning loses.",
    "Every arm is compared with sequential fine-tuning on the same seeds and samples. 95 % "
    "intervals cover seeds and samples.",
    "An arm is better on the old task if its lead is at least a tenth of what is forgotten. An arm "
    "is as good if it is worse by at most a fifth of what is forgotten (old task) or learnt (new "
    "task). An arm beats another if it is better on the old task and as good on the new task.",
    "The trade-off is the mean of the tasks' scores, each as a share of the gain from training "
    "that task alone. All tasks therefore have the same weight, whatever their units.",
    "A task's score is its first entry, as in the paper's figures. Claim 2b uses all entries.",
)


def check_claims(records: Mapping[str, SequenceRecord | None]) -> list[Claim]:
    """Every claim of the paper, held against its studies.

    Args:
        records: by study (`RECIPE`, `IN_A_ROW`, `FIGURE_1`, `CLASSES`), finished or not; None: not
            run. Claims about others are left out.
    """
    return judge_records(STATEMENTS, records, _evidence)


def _evidence(record: SequenceRecord) -> Evidence[SequenceRecord]:
    return Evidence.of(
        record, record.models, seeds=len(record.seeds), noun="model", without=dict(_without(record))
    )


def _without(record: SequenceRecord) -> Iterator[tuple[str, SequenceRecord]]:
    """The record with one seed left out, by name; nothing where there are not two others."""
    for seed in record.seeds if len(record.seeds) > 2 else ():

        def rest(figure: Figure, seed: int = seed) -> Figure:
            by_seed = {s: value for s, value in figure.by_seed.items() if s != seed}
            return dataclasses.replace(
                figure, by_seed=by_seed, value=statistics.fmean(by_seed.values() or [math.nan])
            )

        arms = []
        for arm in record.arms:
            scores = {task: rest(figure) for task, figure in arm.scores.items()}
            against = {task: rest(figure) for task, figure in arm.against.items()}
            distance = arm.distance and rest(arm.distance)
            arms.append(dataclasses.replace(arm, scores=scores, against=against, distance=distance))
        models = [model for model in record.models if model.seed != seed]
        seeds = [s for s in record.seeds if s != seed]
        yield f"seed {seed}", dataclasses.replace(record, seeds=seeds, arms=arms, models=models)


def _lacking(record: SequenceRecord) -> str | None:
    return failed_models(record.models) or (None if record.tasks else "nothing was measured")


def _claim(
    number: str,
    text: str,
    paper: str,
    rule: Rule[SequenceRecord],
    *needs: Requirement,
    recipe: str = RECIPE,
    ours: bool = False,
) -> Statement[SequenceRecord]:
    return Statement(
        number=number,
        recipe=recipe,
        text=text,
        paper=paper,
        rule=rule,
        ours=ours,
        preconditions=(LEARNS, FORGETS, *needs),
        lacking=_lacking,
    )


FIGURE_1_CURVES = "curves of figure 1, without printed figures (section 4.1)"
STATEMENTS = (
    _claim(
        "1",
        "After sequential fine-tuning, the score on the old task is back at the base's level.",
        "GSM8K 0.38 to 0 (Pythia) and 0.42 to 0 (Llama 2) after law (section 6.1, figures 2, 3)",
        verdicts.TO_THE_BASE,
    ),
    _claim(
        "2a",
        "SFA keeps more of the old task with a smaller p, that is, with more frequent averaging.",
        "GSM8K 0.048 / 0.13 / 0.31 at p = 1 / 0.5 / 0.25 (section 6.2; Pythia, Math-Law)",
        verdicts.RISES,
        FORGETS_MOST,
    ),
    _claim(
        "2b",
        "SFA lowers the score on the new task only a little.",
        '"minimal loss to the potential learning of task 2" (section 6.2); printed: CaseHOLD 0.76 '
        "sequential, 0.59 at p = 0.25 (Pythia); Terms of Service 0.86 to 0.13 (Llama 2)",
        verdicts.LITTLE_LOST,
        FORGETS_MOST,
    ),
    _claim(
        "3a",
        "With some p, SFA is as good as rehearsal and uses no old data.",
        "(CaseHOLD, GSM8K) 0.48, 0.48 at p = 0.17 against 0.46, 0.49 (section 6.2; Llama 2)",
        verdicts.MATCHES,
        FORGETS_MOST,
    ),
    _claim(
        "3b",
        "SFA beats task arithmetic.",
        "(CaseHOLD, GSM8K) 0.59, 0.31 at p = 0.25 against 0.68, 0 (section 6.2; Pythia)",
        beats("sfa", "task_arithmetic"),
        FORGETS_MOST,
        brackets("task_arithmetic"),
    ),
    _claim(
        "3c",
        "SFA beats TIES merging.",
        "(CaseHOLD, GSM8K) 0.53, 0.46 at p = 0.25 against 0.37, 0.014 (section 6.2; Llama 2)",
        beats("sfa", "ties"),
        FORGETS_MOST,
        brackets("ties"),
    ),
    _claim(
        "3d",
        "L2 beats EWC on language models (the paper shows this on split MNIST).",
        FIGURE_1_CURVES,
        beats("l2", "ewc"),
        FORGETS_MOST,
        brackets("l2"),
        brackets("ewc"),
        ours=True,
    ),
    _claim(
        "3e",
        "SFA beats L2 on language models.",
        FIGURE_1_CURVES,
        beats("sfa", "l2"),
        FORGETS_MOST,
        brackets("l2"),
        ours=True,
    ),
    _claim(
        "3f",
        "SFA beats EWC on language models.",
        FIGURE_1_CURVES,
        beats("sfa", "ewc"),
        FORGETS_MOST,
        brackets("ewc"),
        ours=True,
    ),
    _claim(
        "4a",
        "Averaging during training (p < 1, beta 0.5) gives at least as good a trade-off as "
        "averaging once at the end with any weight.",
        '"performs the same if not better than a sweep of weighting parameter β for SFA (p = 1)" '
        "(section 6.4, figures 6, 7)",
        verdicts.OFTEN,
        FORGETS_MOST,
    ),
    _claim(
        "4b",
        "Whatever the weight of task arithmetic, averaging once at the end gives a better "
        "trade-off with some weight of its own.",
        'task arithmetic shows "even worse combined performance" (section 6.4, figures 6, 7)',
        verdicts.ONCE_BEATS_MERGING,
        FORGETS_MOST,
        brackets("task_arithmetic"),
    ),
    _claim(
        "4c",
        "Averaging once at the end loses the old task if the new model has half of the weight or "
        "more.",
        '"for SFA (p = 1) with β ≥ 0.50 ... the complete failure to retain math" (section 6.4), '
        "where β is the weight on the new model: GSM8K 0.048 (Pythia), 0.0015 and 0 (Llama 2)",
        verdicts.ONCE_FAILS,
        FORGETS_MOST,
    ),
    _claim(
        "5",
        "The closer the weights stay to the previous model, the more of the old task is kept.",
        "distances 90.99 / 45.50 / 35.38 / 24.16 with GSM8K 0 / 0.048 / 0.13 / 0.31 (section 6.3, "
        "figure 5, Pythia)",
        verdicts.ALONG_SFA,
        FORGETS_MOST,
    ),
    _claim(
        "5b",
        "Across all methods, the closer the weights stay to the previous model, the more of the "
        "old task is kept.",
        "not claimed: in table 2 multitask training (178.96) and rehearsal (82.21) are far from "
        "the previous model and keep GSM8K at 0.40 and 0.33",
        verdicts.OVER_METHODS,
        FORGETS_MOST,
        ours=True,
    ),
    _claim(
        "1s",
        "On a small network, performance on the old task drops while the new one is learnt.",
        '"performance rapidly drops on Task A" (figure 1, section 4.1); in the post with '
        "the protocol, accuracy drops from 0.985 to 0.221",
        verdicts.DROPS,
        recipe=FIGURE_1,
    ),
    _claim(
        "6a",
        "On a small network, L2 gives a better trade-off than EWC.",
        FIGURE_1_CURVES,
        best_beats("l2", "ewc"),
        FORGETS_MOST,
        brackets("l2"),
        brackets("ewc"),
        recipe=FIGURE_1,
    ),
    _claim(
        "6b",
        "On a small network, SFA gives a better trade-off than L2.",
        FIGURE_1_CURVES,
        best_beats("sfa", "l2"),
        FORGETS_MOST,
        brackets("l2"),
        recipe=FIGURE_1,
    ),
    _claim(
        "6c",
        "On a small network, SFA gives a better trade-off than EWC.",
        FIGURE_1_CURVES,
        best_beats("sfa", "ewc"),
        FORGETS_MOST,
        brackets("ewc"),
        recipe=FIGURE_1,
    ),
    _claim(
        "6d",
        "On a small network, a higher beta keeps more of the old task and learns less of the new "
        "one.",
        '"placing a higher β ... results in a model that performs better on Task A, and vice '
        'versa" (section 4.1, figure 1 left)',
        verdicts.TRADES_BY_BETA,
        FORGETS_MOST,
        recipe=FIGURE_1,
    ),
    _claim(
        "6e",
        "On a small network, averaging more often keeps more of the old task and learns less of "
        "the new one.",
        '"lower number of batches before averaging results in a model that performs better on Task '
        'A, and vice versa" (section 4.1, figure 1 right)',
        verdicts.TRADES_BY_P,
        FORGETS_MOST,
        recipe=FIGURE_1,
    ),
    _claim(
        "7a",
        "With one network output for every digit (class-incremental), L2 gives a better trade-off "
        "than EWC.",
        "not the paper's protocol",
        best_beats("l2", "ewc"),
        FORGETS_MOST,
        brackets("l2"),
        brackets("ewc"),
        recipe=CLASSES,
        ours=True,
    ),
    _claim(
        "7b",
        "With one network output for every digit, SFA gives a better trade-off than L2.",
        "not the paper's protocol",
        best_beats("sfa", "l2"),
        FORGETS_MOST,
        brackets("l2"),
        recipe=CLASSES,
        ours=True,
    ),
    _claim(
        "7c",
        "With one network output for every digit, SFA gives a better trade-off than EWC.",
        "not the paper's protocol",
        best_beats("sfa", "ewc"),
        FORGETS_MOST,
        brackets("ewc"),
        recipe=CLASSES,
        ours=True,
    ),
    _claim(
        "8a",
        "In a sequence of three tasks, SFA keeps the first two and learns the third.",
        '"maintain high performance on the previous 2 domains while also learning an additional '
        'domain" (section 6.2, figure 4, table 6)',
        verdicts.KEEPS_TWO,
        FORGETS_MOST,
        recipe=IN_A_ROW,
    ),
    _claim(
        "8b",
        "In a sequence of three tasks, SFA gives a better trade-off than task arithmetic and "
        "sequential fine-tuning.",
        '"outperforms Task Arithmetic, and sequential finetuning" (section 6.2, figure 4)',
        verdicts.BEATS_IN_A_ROW,
        FORGETS_MOST,
        brackets("task_arithmetic"),
        recipe=IN_A_ROW,
    ),
    _claim(
        "9a",
        "The held-out loss on the first task rises with every further task.",
        '"evaluation loss on Simpl continues to increase", "gets worse as more tasks are added" '
        "(appendix A.3, figure 8; T0 of 3 and 11 billion parameters)",
        verdicts.GETS_WORSE,
        recipe=IN_A_ROW,
    ),
    _claim(
        "9b",
        "After the last task, the loss on the first task is as high as that of a model that never "
        "saw it.",
        '"degrades to that of a model that has never seen Simpl" (appendix A.3, figure 9)',
        verdicts.AS_IF_NEVER_SEEN,
        recipe=IN_A_ROW,
    ),
)
