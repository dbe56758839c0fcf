"""Averages of figures of several entries: the mean in which every figure counts once, as papers print it.

The interval comes from joint draws: figures of one entry share its draws (the four of IFEval belong to the same answers), different entries are drawn
independently. Source of the shipped ones: the residual paper (004, appendix), whose sub-averages are over the first 8 and the next 7 of 16 numbers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from holdfast.errors import ConfigError, did_you_mean
from holdfast.evaluation.entries import Average, EvaluationPlan
from holdfast.evaluation.estimates import expanded_interval, figure_for, resampled_sums
from holdfast.results import Evaluation, EvaluationFolder, Metric, fingerprint

SUITE = "average"
"""The suite that averages are kept under."""


def averages_of(folder: EvaluationFolder, plan: EvaluationPlan, model_identity: Mapping[str, Any]) -> list[Evaluation]:
    """The plan's averages, from the entries in the folder.

    Args:
        folder: with every entry of the plan.
        plan: what was measured.
        model_identity: as for `runner.evaluate`.

    Raises:
        ConfigError: an average of a metric that an entry does not have, or of figures in different units.
    """
    return [_average(average, folder, plan, model_identity) for average in plan.averages]


def _average(average: Average, folder: EvaluationFolder, plan: EvaluationPlan, model_identity: Mapping[str, Any]) -> Evaluation:
    members, metrics, draws, parts = [], [], [], []
    resamples = 2000
    for suite, name, wanted in average.members:
        evaluation = folder.find(suite, name)
        assert evaluation is not None, "an average is formed after its members"
        metric = evaluation.primary if wanted is None else _named(evaluation, wanted, average)
        value = evaluation.metrics[metric]
        rows = folder.samples(suite, name)
        figure = figure_for(metric, rows, higher_is_better=value.higher_is_better, unit=value.unit)
        if figure is None:
            draws.append(np.full(resamples, value.value))  # no mean over questions, so nothing is known of its spread
        else:
            entry = next(i for i, (s, n, _) in enumerate(average.members) if (s, n) == (suite, name))  # shares the draws of its entry
            draws.append(figure.of_sums(resampled_sums(figure.columns(rows), resamples=resamples, seed=plan.seed + 1000 * entry)))
        members.append({"suite": suite, "name": name, "metric": metric})
        metrics.append(value)
        parts.append(evaluation.key)
    directions = {m.higher_is_better for m in metrics}
    if len(directions) > 1:
        raise ConfigError(f"averages.{average.name}: expected figures of which all are better higher or all lower, got both. Split the average.")
    n = min(m.n for m in metrics)
    low, high = expanded_interval(np.mean(draws, axis=0), n=n, confidence=plan.confidence)
    mean = Metric(
        value=float(np.mean([m.value for m in metrics])),
        n=len(metrics),
        unit="average",
        higher_is_better=directions.pop(),
        interval=None if math.isnan(low) else (low, high),
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
        key=fingerprint({"average": dataclasses.asdict(average), "of": parts, "confidence": plan.confidence, "seed": plan.seed}),
    )


def _named(evaluation: Evaluation, wanted: str, average: Average) -> str:
    """The metric's whole name: "exact_match" stands for "exact_match,strict-match" where there is no other."""
    if wanted in evaluation.metrics:
        return wanted
    found = [name for name in evaluation.metrics if name.split(",")[0] == wanted]
    if len(found) == 1:
        return found[0]
    raise ConfigError(
        f"averages.{average.name}: '{evaluation.name}' has no metric '{wanted}'.{did_you_mean(wanted, evaluation.metrics)} "
        f"It has: {', '.join(evaluation.metrics)}."
    )
