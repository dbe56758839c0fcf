"""Sequential training in a matrix: the score R[l, i] of every task i = 1..T after every stage l =
0..T, l = 0 being the start, and four measures.

    average accuracy   mean over all i   of  R[T, i]
    backward transfer  mean over i < T   of  R[T, i] - R[i, i]
                       (Lopez-Paz and Ranzato 2017, GEM, section 2)
    forgetting         mean over i < T   of  max over l < T of R[l, i]  -  R[T, i]  (Chaudhry et al. 2018, section 3.2)
    forward transfer   mean over i > 1   of  R[i-1, i] - R[0, i]                  (GEM, section 2)

Forgetting's maximum leaves the last stage out, so it can be negative: gained, not lost. It includes
the start (Chaudhry et al. begin after the first stage, from networks that know nothing before it; a
language model may know a task best before any training). With one task there is nothing to transfer
or to forget: those three measures are NaN. So are the scores of a task of which a sample or a
figure is not finite after some stage, and all that they go into.

Intervals are a bootstrap over questions: each task's questions are drawn once for all stages, so
that what is hard for all of them cancels; different tasks are drawn independently. A maximum over
resampled scores is pulled upwards by noise, and so is forgetting, by about a standard error of one
score where several stages are equally good. Training seeds are not among what varies.

Scores are turned so that higher is better: of a metric such as nats per token the matrix holds the
negative, and its unit says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from holdfast.errors import ConfigError, DataError
from holdfast.evaluation.compare.folders import match_entries, read_evaluations
from holdfast.evaluation.compare.joint_scores import JointScores, Key, Scores
from holdfast.records.comparison import StageMatrix
from holdfast.records.evaluation import Evaluation, EvaluationFolder, Metric
from holdfast.records.metrics import is_share
from holdfast.statistics.intervals import expanded_interval, known_interval


def average_accuracy(scores: np.ndarray) -> np.ndarray:
    """Mean score over all tasks at the end, `[...]` from scores `[..., T + 1, T]`."""
    return scores[..., -1, :].mean(-1)


def backward_transfer(scores: np.ndarray) -> np.ndarray:
    """What later stages did to earlier tasks, `[...]` from scores `[..., T + 1, T]`; NaN for T =
    1."""
    changes = []
    for task in range(scores.shape[-1] - 1):
        changes.append(scores[..., -1, task] - scores[..., task + 1, task])
    return _mean(changes, scores)


def forgetting(scores: np.ndarray) -> np.ndarray:
    """How far earlier tasks are below their best before the last stage, `[...]` from scores
    `[..., T + 1, T]`; NaN for T = 1."""
    losses = []
    for task in range(scores.shape[-1] - 1):
        losses.append(scores[..., :-1, task].max(-1) - scores[..., -1, task])
    return _mean(losses, scores)


def forward_transfer(scores: np.ndarray) -> np.ndarray:
    """What earlier stages did to tasks not trained yet, `[...]` from scores `[..., T + 1, T]`; NaN
    for T = 1."""
    changes = []
    for task in range(1, scores.shape[-1]):
        changes.append(scores[..., task, task] - scores[..., 0, task])
    return _mean(changes, scores)


def _mean(changes: Sequence[np.ndarray], scores: np.ndarray) -> np.ndarray:
    return np.mean(changes, axis=0) if changes else np.full(scores.shape[:-2], math.nan)


MEASURES: dict[str, tuple[Callable[[np.ndarray], np.ndarray], bool]] = {
    "average_accuracy": (average_accuracy, True),
    "backward_transfer": (backward_transfer, True),
    "forgetting": (forgetting, False),
    "forward_transfer": (forward_transfer, True),
}
"""Name: the measure, and whether more of it is better."""


def stage_matrix(
    folders: Sequence[EvaluationFolder],
    tasks: Sequence[Key],
    stages: Sequence[str],
    *,
    confidence: float = 0.95,
    resamples: int = 4000,
    seed: int = 0,
) -> StageMatrix:
    """Computes the score of every task after every stage of sequential training, in the primary
    metric of the task. It also computes the four measures (see `StageMatrix`) with their intervals.

    Args:
        folders: evaluations of the initial model and of the model after each stage, in the order of
            training.
        tasks: (suite, name) of the task that each stage trained, in the same order; one fewer than
            folders.
        stages: labels of the models, as many as folders.
        confidence: level of the intervals, in (0, 1).
        resamples: number of bootstrap draws.
        seed: random seed of the draws.

    Raises:
        ConfigError: the numbers of folders, tasks and stages do not fit, or the units of the tasks
            cannot be averaged.
        DataError: evaluations cannot be read, or were not made in the same way at all stages; the
            message names all of them.
    """
    if not tasks or len(folders) != len(tasks) + 1 or len(stages) != len(folders):
        raise ConfigError(
            "expected at least one task, one label per model, and one more model than tasks (the "
            "initial model, then the model after each stage); got "
            f"{len(tasks)} tasks, {len(folders)} models and {len(stages)} labels"
        )
    entries, problems = _measured_at_all_stages(folders, tasks, stages)
    joint = JointScores(folders, entries, resamples=resamples, seed=seed)
    scores_of_tasks: list[Scores] = []
    draws_of_tasks: list[np.ndarray] = []
    broken = []
    for key in filter(entries.__contains__, tasks):
        name = entries[key][0].primary
        try:
            failed = joint.failed(key)
            scores = None if failed else joint.scores(key, name)
        except DataError as error:
            problems.append(str(error))
            continue
        if scores is not None and np.isfinite(scores.values).all():
            scores_of_tasks.append(scores)
            draws_of_tasks.append(joint.draws(key, name))
            continue
        broken.append(f"{'/'.join(key)}: {failed or f'{name} is not finite.'}")
        metric = entries[key][0].metrics[name]
        no_scores = Scores(
            values=np.full(len(folders), math.nan),
            influence={},
            n=metric.n,
            smallest=metric.n,
            unit=metric.unit,
            higher_is_better=metric.higher_is_better,
        )
        scores_of_tasks.append(no_scores)
        draws_of_tasks.append(np.full((resamples, len(folders)), math.nan))
    if problems:
        raise DataError(*problems)
    return replace(
        _matrix(scores_of_tasks, draws_of_tasks, tasks, stages, confidence), failed=broken
    )


def _measured_at_all_stages(
    folders: Sequence[EvaluationFolder], tasks: Sequence[Key], stages: Sequence[str]
) -> tuple[dict[Key, list[Evaluation]], list[str]]:
    """(by entry its evaluation at every stage, what is wrong with those of the tasks)."""
    start, *later = map(read_evaluations, folders)
    entries: dict[Key, list[Evaluation]] = {(e.suite, e.name): [e] for e in start}
    problems = [
        f"{'/'.join(key)}: the initial model was not measured on this task."
        for key in tasks
        if key not in entries
    ]
    for number, evaluations in enumerate(later, 1):
        matching = match_entries(start, evaluations)
        for pair in matching.pairs:
            if len(entries[pair.key]) == number:
                entries[pair.key].append(pair.after)
        for entry in matching.unmatched:
            if (entry.suite, entry.name) in tasks and entry.why != "only after":
                problems.append(
                    f"{entry.suite}/{entry.name}, {stages[number]} against {stages[0]}: "
                    f"{entry.reason}"
                )
    complete = {}
    for key, evaluations in entries.items():
        if len(evaluations) == len(folders):
            complete[key] = evaluations
    return complete, problems


def _matrix(
    scores_of_tasks: Sequence[Scores],
    draws_of_tasks: Sequence[np.ndarray],
    keys: Sequence[Key],
    stages: Sequence[str],
    confidence: float,
) -> StageMatrix:
    unit = _common_unit(scores_of_tasks, keys)
    columns, columns_of_draws = [], []
    for of_task, draws_of_task in zip(scores_of_tasks, draws_of_tasks, strict=True):
        sign = 1.0 if of_task.higher_is_better else -1.0
        columns.append(sign * of_task.values)
        columns_of_draws.append(sign * draws_of_task)
    scores, draws = np.stack(columns, axis=-1), np.stack(columns_of_draws, axis=-1)
    smallest = min(of_task.smallest for of_task in scores_of_tasks)
    n = sum(of_task.n for of_task in scores_of_tasks)
    measures = {}
    for name, (measure, higher) in MEASURES.items():
        value = float(measure(scores))
        measures[name] = Metric(
            value=value,
            n=0 if math.isnan(value) else n,
            unit=unit,
            higher_is_better=higher,
            interval=known_interval(
                expanded_interval(measure(draws), n=smallest, confidence=confidence)
            ),
            confidence=confidence,
        )
    names = [name for _, name in keys]
    tasks = []
    for suite, name in keys:
        tasks.append(f"{suite}/{name}" if names.count(name) > 1 else name)
    return StageMatrix(
        tasks=tasks, stages=list(stages), scores=scores.tolist(), measures=measures, unit=unit
    )


def _common_unit(scores: Sequence[Scores], keys: Sequence[Key]) -> str:
    first = scores[0]
    if len({of_task.unit for of_task in scores}) == 1:
        return first.unit if first.higher_is_better else f"{first.unit}, negated"
    if all(s.higher_is_better and is_share(s.unit, values=s.values, unknown=True) for s in scores):
        return "share"
    units = []
    for key, of_task in zip(keys, scores, strict=True):
        units.append(f"{'/'.join(key)} in {of_task.unit}")
    raise ConfigError(
        "expected the same unit for all tasks, because their scores are averaged, got "
        f"{', '.join(units)}. Choose a metric that all tasks have."
    )
