"""What the names of lm-evaluation-harness's metrics say: for entries that it runs here, and for
logs of runs elsewhere."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.statistics.estimates import TEXT_FIGURES

ROLLING = {"word_perplexity": "words", "byte_perplexity": "bytes", "bits_per_byte": "bytes"}
"""Metrics of rolling log-likelihood: the harness gives (log-likelihood, weight) a document."""
_USUAL = ("acc", "exact_match", "bits_per_byte")


def label_of(metric: str, filtered_by: str) -> str:
    """A metric's name with its filter; the filter "none" is left out."""
    return metric if filtered_by == "none" else f"{metric},{filtered_by}"


def unit_of(label: str) -> str:
    """The unit of a figure."""
    metric = label.split(",")[0]
    if metric in TEXT_FIGURES:
        return TEXT_FIGURES[metric].unit
    return "accuracy" if metric.startswith("acc") else metric


def leading(labels: Iterable[str], *wanted: str) -> str | None:
    """The figure that leads: the one that is wanted; without a wish the first of those that are
    usual, else the first.

    Returns:
        None where nothing is of that name.
    """
    labels = list(labels)
    for name in wanted or _USUAL:
        for label in labels:
            if name in (label, label.split(",")[0]):
                return label
    return None if wanted else labels[0]
