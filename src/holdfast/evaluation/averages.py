"""Averages of figures of several entries: the mean in which every figure counts once, as papers
print it.

The interval comes from joint draws (`joint_scores`): figures of one entry share its draws (the four
of IFEval belong to the same answers), different entries are drawn independently. Where a figure is
no mean over samples (BLEU), nothing is known of its spread: the average has a value and no
interval, and `compare` refuses it. Where a member is not finite the average is not. Source of the
shipped ones: "Balancing Continuous Pre-Training" (table 2), whose sub-averages are over the first 8
and the next 7 of 16 numbers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from holdfast.errors import ConfigError, did_you_mean
from holdfast.evaluation.compare.joint_scores import JointScores, Key
from holdfast.evaluation.entries import Average, EvaluationPlan
from holdfast.records.evaluation import Evaluation, EvaluationFolder, Metric
from holdfast.records.metrics import called, is_share
from holdfast.statistics.intervals import expanded_interval, known_interval
from holdfast.support.files import fingerprint

SUITE = "average"
"""The suite that averages are kept under."""
RESAMPLES = 2000
"""Bootstrap draws, as many as an entry's own interval has."""


def averages_of(
    folder: EvaluationFolder, plan: EvaluationPlan, model_identity: Mapping[str, Any]
) -> list[Evaluation]:
    """The plan's averages, from the entries in the folder.

    Args:
        folder: with every entry of the plan.
        plan: what was measured.
        model_identity: as for `runner.evaluate`.

    Raises:
        ConfigError: an average of a metric that an entry does not have, or of figures of which some
            are better higher and some lower.
        DataError: rows that cannot be read.
    """
    entries: dict[Key, list[Evaluation]] = {}
    for average in plan.averages:
        for suite, name, _ in average.members:
            if (suite, name) not in entries:
                evaluation = folder.find(suite, name)
                assert evaluation is not None, "members of an average must be measured before it"
                entries[suite, name] = [evaluation]
    joint = JointScores([folder], entries, resamples=RESAMPLES, seed=plan.seed)
    return [_average(average, joint, plan, model_identity) for average in plan.averages]


def _average(
    average: Average, joint: JointScores, plan: EvaluationPlan, model_identity: Mapping[str, Any]
) -> Evaluation:
    members, metrics, keys = [], [], []
    failures: dict[str, str] = {}
    for suite, name, word in average.members:
        [evaluation] = joint.entries[suite, name]
        if evaluation.failed is not None:
            failures[f"{suite}/{name}"] = evaluation.failed
        metric = evaluation.primary if word is None else _whole_name(evaluation, word, average)
        members.append({"suite": suite, "name": name, "metric": metric})
        metrics.append(evaluation.metrics[metric])
        keys.append(evaluation.key)
    directions = {metric.higher_is_better for metric in metrics}
    if len(directions) > 1:
        raise ConfigError(
            f"averages.{average.name}: expected metrics that are all better when higher, or all "
            "better when lower; got both. Split the average."
        )
    value, interval = math.nan, None
    if not failures:
        value = float(np.mean([metric.value for metric in metrics]))
        interval = _interval(joint, members, confidence=plan.confidence)
    mean = Metric(
        value=value,
        n=len(metrics),
        unit=_unit(metrics),
        higher_is_better=directions.pop(),
        interval=interval,
        confidence=plan.confidence,
    )
    settings = {"confidence": plan.confidence, "seed": plan.seed}
    sentences = [f"its member {member}: {reason}" for member, reason in failures.items()]
    return Evaluation(
        suite=SUITE,
        name=average.name,
        kind="average",
        primary="average",
        metrics={"average": mean},
        settings={"members": members, **settings},
        model=dict(model_identity),
        failed=" ".join(sentences) or None,
        key=fingerprint({"average": dataclasses.asdict(average), "of": keys, **settings}),
    )


def _interval(
    joint: JointScores, members: Sequence[Mapping[str, str]], *, confidence: float
) -> tuple[float, float] | None:
    """None where a member is no mean over samples, or has one sample."""
    draws, sizes = [], []
    for member in members:
        key, metric = (member["suite"], member["name"]), member["metric"]
        if metric not in joint.sheet(key).figures:
            return None
        draws.append(joint.draws(key, metric)[:, 0])
        sizes.append(joint.sheet(key).n)
    return known_interval(
        expanded_interval(np.mean(draws, axis=0), n=min(sizes), confidence=confidence)
    )


def _unit(metrics: Sequence[Metric]) -> str:
    """The members' unit; "share" where they are all shares (accuracies and exact matches), so that
    differences are in points."""
    units = {m.unit for m in metrics}
    if len(units) == 1:
        return units.pop()
    return (
        "share"
        if all(is_share(m.unit, values=[m.value], unknown=True) for m in metrics)
        else "average"
    )


def _whole_name(evaluation: Evaluation, word: str, average: Average) -> str:
    """The metric's whole name: "exact_match" stands for "exact_match,strict-match" where there is
    no other."""
    names = called(word, evaluation.metrics)
    if len(names) == 1:
        return names[0]
    near = did_you_mean(word, evaluation.metrics)
    raise ConfigError(
        f"averages.{average.name}: '{evaluation.name}' has no metric '{word}'.{near} It has: "
        f"{', '.join(evaluation.metrics)}."
    )
