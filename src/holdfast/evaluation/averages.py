"""Averages of figures of several entries: the mean in which every figure counts once, as papers print it.

The interval comes from joint draws (`joint_scores`): figures of one entry share its draws (the four of IFEval belong to
the same answers), different entries are drawn independently. Where a figure is no mean over samples (BLEU), nothing is
known of its spread: the average has a value and no interval, and `compare` refuses it. Where a member is not finite the
average is not. Source of the shipped ones: "Balancing Continuous Pre-Training" (table 2), whose sub-averages are over
the first 8 and the next 7 of 16 numbers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from holdfast.errors import ConfigError, did_you_mean
from holdfast.evaluation.compare.joint_scores import JointScores, mean_of
from holdfast.evaluation.entries import Average, EvaluationPlan
from holdfast.records.evaluation import Evaluation, EvaluationFolder, Metric
from holdfast.records.metrics import called, is_share
from holdfast.statistics.intervals import expanded_interval, known_interval
from holdfast.support.files import fingerprint

SUITE = "average"
"""The suite that averages are kept under."""
RESAMPLES = 2000
"""Bootstrap draws, as many as an entry's own interval has."""


def averages_of(folder: EvaluationFolder, plan: EvaluationPlan, model_identity: Mapping[str, Any]) -> list[Evaluation]:
    """The plan's averages, from the entries in the folder.

    Args:
        folder: with every entry of the plan.
        plan: what was measured.
        model_identity: as for `runner.evaluate`.

    Raises:
        ConfigError: an average of a metric that an entry does not have, or of figures of which some are better higher
            and some lower.
        DataError: rows that cannot be read.
    """
    keys = dict.fromkeys((suite, name) for average in plan.averages for suite, name, _ in average.members)
    entries = {}
    for suite, name in keys:
        evaluation = folder.find(suite, name)
        assert evaluation is not None, "an average is formed after its members"
        entries[suite, name] = [evaluation]
    joint = JointScores([folder], entries, resamples=RESAMPLES, seed=plan.seed)
    return [_average(average, joint, plan, model_identity) for average in plan.averages]


def _average(
    average: Average, joint: JointScores, plan: EvaluationPlan, model_identity: Mapping[str, Any]
) -> Evaluation:
    members, metrics, parts = [], [], []
    broken: dict[str, str] = {}
    for suite, name, wanted in average.members:
        [evaluation] = joint.entries[suite, name]
        if evaluation.failed is not None:
            broken[f"{suite}/{name}"] = evaluation.failed
        metric = evaluation.primary if wanted is None else _named(evaluation, wanted, average)
        members.append({"suite": suite, "name": name, "metric": metric})
        metrics.append(evaluation.metrics[metric])
        parts.append(evaluation.key)
    directions = {m.higher_is_better for m in metrics}
    if len(directions) > 1:
        raise ConfigError(
            f"averages.{average.name}: expected figures of which all are better higher or all lower, got both. Split "
            f"the average."
        )
    mean = Metric(
        value=math.nan if broken else float(np.mean([m.value for m in metrics])),
        n=len(metrics),
        unit=_unit(metrics),
        higher_is_better=directions.pop(),
        interval=None if broken else _interval(joint, members, confidence=plan.confidence),
        confidence=plan.confidence,
    )
    return Evaluation(
        suite=SUITE,
        name=average.name,
        kind="average",
        primary="average",
        metrics={"average": mean},
        settings={"members": members, "confidence": plan.confidence, "seed": plan.seed},
        model=dict(model_identity),
        failed=" ".join(f"its member {member}: {reason}" for member, reason in broken.items()) or None,
        key=fingerprint(
            {"average": dataclasses.asdict(average), "of": parts, "confidence": plan.confidence, "seed": plan.seed}
        ),
    )


def _interval(
    joint: JointScores, members: Sequence[Mapping[str, str]], *, confidence: float
) -> tuple[float, float] | None:
    """None where a member is no mean over samples, or has one sample."""
    wanted = [((m["suite"], m["name"]), m["metric"]) for m in members]
    if not all(metric in joint.sheet(key).figures for key, metric in wanted):
        return None
    _, draws, smallest = mean_of([joint.scores(key, metric) for key, metric in wanted])
    return known_interval(expanded_interval(draws[:, 0], n=smallest, confidence=confidence))


def _unit(metrics: Sequence[Metric]) -> str:
    """The members' unit; "share" where they are all shares (accuracies and exact matches), so that differences are in
    points."""
    units = {m.unit for m in metrics}
    if len(units) == 1:
        return units.pop()
    return "share" if all(is_share(m.unit, values=[m.value], unknown=True) for m in metrics) else "average"


def _named(evaluation: Evaluation, wanted: str, average: Average) -> str:
    """The metric's whole name: "exact_match" stands for "exact_match,strict-match" where there is no other."""
    found = called(wanted, evaluation.metrics)
    if len(found) == 1:
        return found[0]
    raise ConfigError(
        f"averages.{average.name}: '{evaluation.name}' has no metric "
        f"'{wanted}'.{did_you_mean(wanted, evaluation.metrics)} "
        f"It has: {', '.join(evaluation.metrics)}."
    )
