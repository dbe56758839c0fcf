"""The win rate of one model against another from a judge's probabilities, raw and with the length of the answers taken
out.

A pair's preference is the mean over the two orders of P(the candidate wins), so that a judge's liking for what it reads
first cancels. The win rate is the mean preference over prompts; the reference against itself has 0.5 by definition. A
pair counts only with a verdict in both orders: a single order would bring the position back in. Pairs with equal
answers are ties and need no judge.

The length-controlled win rate is that of `holdfast.statistics.length_controlled`.

Intervals: bootstrap over prompts, at the expanded levels of `holdfast.statistics.intervals`. They say how the figure
would vary with other prompts, not with another judge.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from holdfast.errors import DataError
from holdfast.statistics.estimates import Ratio, estimate
from holdfast.statistics.length_controlled import LengthControlled, length_controlled


@dataclass(frozen=True, kw_only=True)
class PairResult:
    """One prompt with the judgements of both orders."""

    doc: str
    """Hash of the prompt, the key that comparisons join on."""
    status: str
    """"judged", "identical" (equal answers: a tie, not asked), "refused" or "failed" (in at least one order)."""
    length_candidate: int
    """Characters of the candidate's answer."""
    length_reference: int
    """Characters of the reference's answer."""
    candidate_first: float | None = None
    """P(candidate wins) where it was shown first; None where there is no verdict."""
    candidate_second: float | None = None
    """P(candidate wins) where it was shown second."""

    @property
    def preference(self) -> float | None:
        """Mean P(candidate wins) over the orders; None for a pair that does not count."""
        if self.status == "identical":
            return 0.5
        if self.status != "judged" or self.candidate_first is None or self.candidate_second is None:
            return None
        return (self.candidate_first + self.candidate_second) / 2


@dataclass(frozen=True, kw_only=True)
class WinRate:
    """The candidate against the reference."""

    value: float
    """Mean preference, in [0, 1]."""
    interval: tuple[float, float] | None
    """At `confidence`; None for a single pair."""
    standard_error: float
    """Standard deviation of the preferences over sqrt(n); NaN for a single pair."""
    n: int
    """Pairs that count."""
    confidence: float
    length_controlled: LengthControlled
    wins: int
    """Pairs with a preference above 0.5."""
    ties: int
    """Pairs with a preference of exactly 0.5, equal answers among them."""
    losses: int
    identical: int
    """Pairs whose answers are equal."""
    refused: int
    """Pairs left out because the judge gave no verdict in an order."""
    failed: int
    """Pairs left out because a request failed for good."""
    first_preferred: float | None
    """Mean P(the output shown first wins): 0.5 for a judge that does not mind the position. None where no pair was
    judged."""
    order_changes: float | None
    """Share of the judged pairs whose two orders name different winners."""
    mean_length_candidate: float
    """Characters an answer, over the pairs that count."""
    mean_length_reference: float
    notes: list[str] = field(default_factory=list)


def win_rate(pairs: Sequence[PairResult], *, confidence: float = 0.95, resamples: int = 2000, seed: int = 0) -> WinRate:
    """The figures of all pairs.

    Args:
        pairs: one a prompt, in any order.
        confidence: level of the intervals, in (0, 1).
        resamples: bootstrap draws.
        seed: of the draws.

    Raises:
        DataError: no pair has a verdict in both orders.
    """
    counted = [(pair, p) for pair in pairs if (p := pair.preference) is not None]
    statuses = [pair.status for pair in pairs]
    refused, failed = statuses.count("refused"), statuses.count("failed")
    if not counted:
        raise DataError(
            f"Expected at least one pair that the judge decided in both orders, got none of {len(pairs)} ({refused} "
            f"refused, {failed} failed). "
            "See judgements.jsonl for the judge's replies."
        )
    rows = [{"preference": p} for _, p in counted]
    y = np.array([p for _, p in counted])
    value, interval = estimate(
        Ratio(numerator="preference", unit="share"), rows, confidence=confidence, resamples=resamples, seed=seed
    )
    judged = [
        (pair.candidate_first, pair.candidate_second)
        for pair, _ in counted
        if pair.candidate_first is not None and pair.candidate_second is not None
    ]
    shown_first = [p for first, second in judged for p in (first, 1 - second)]
    changes = [(first - 0.5) * (second - 0.5) < 0 for first, second in judged]
    lengths = np.array([[pair.length_candidate, pair.length_reference] for pair, _ in counted], dtype=np.float64)
    n = len(counted)
    return WinRate(
        value=value,
        interval=interval,
        standard_error=float(y.std(ddof=1) / math.sqrt(n)) if n > 1 else math.nan,
        n=n,
        confidence=confidence,
        length_controlled=length_controlled(
            y, lengths[:, 0] - lengths[:, 1], confidence=confidence, resamples=resamples, seed=seed
        ),
        wins=int((y > 0.5).sum()),
        ties=int((y == 0.5).sum()),
        losses=int((y < 0.5).sum()),
        identical=statuses.count("identical"),
        refused=refused,
        failed=failed,
        first_preferred=float(np.mean(shown_first)) if shown_first else None,
        order_changes=float(np.mean(changes)) if changes else None,
        mean_length_candidate=float(lengths[:, 0].mean()),
        mean_length_reference=float(lengths[:, 1].mean()),
        notes=_notes(pairs, refused, shown_first),
    )


def pair_rows(pairs: Sequence[PairResult]) -> list[dict[str, Any]]:
    """Per-sample rows of the pairs that count: `{"doc": hash, "preference": float, ...}`, as
    `holdfast.records.evaluation.Evaluation` has them."""
    return [
        {
            "doc": pair.doc,
            "preference": preference,
            "candidate_first": pair.candidate_first,
            "candidate_second": pair.candidate_second,
            "status": pair.status,
            "length_candidate": pair.length_candidate,
            "length_reference": pair.length_reference,
        }
        for pair in pairs
        if (preference := pair.preference) is not None
    ]


def pair_result(
    *,
    doc: str,
    candidate: str,
    reference: str,
    candidate_first: Mapping[str, Any] | None,
    reference_first: Mapping[str, Any] | None,
) -> PairResult:
    """One prompt's result from its two judgements.

    Args:
        doc: hash of the prompt.
        candidate: the candidate's answer.
        reference: the reference's.
        candidate_first: the judgement (`{"outcome": ..., "p_first": ...}`) of the order with the candidate first; None:
            not asked.
        reference_first: that of the other order.
    """
    sizes = {"length_candidate": len(candidate), "length_reference": len(reference)}
    if candidate == reference:
        return PairResult(doc=doc, status="identical", **sizes)
    outcomes = [
        judgement["outcome"] if judgement is not None else "failed" for judgement in (candidate_first, reference_first)
    ]
    status = "failed" if "failed" in outcomes else "refused" if "refused" in outcomes else "judged"
    first = candidate_first.get("p_first") if candidate_first is not None else None
    second = reference_first.get("p_first") if reference_first is not None else None
    return PairResult(
        doc=doc, status=status, candidate_first=first, candidate_second=None if second is None else 1 - second, **sizes
    )


def _notes(pairs: Sequence[PairResult], refused: int, shown_first: Sequence[float]) -> list[str]:
    notes = []
    if refused > 0.2 * len(pairs):
        notes.append(
            f"The judge gave no verdict for {refused} of {len(pairs)} pairs; the figures are of the rest, which may "
            f"differ."
        )
    if shown_first and abs(float(np.mean(shown_first)) - 0.5) > 0.25:
        notes.append(
            "The judge mostly goes by the position: weigh the win rate, which averages both orders, accordingly."
        )
    return notes
