"""Figures from per-sample rows, with bootstrap intervals: the one place where rows become numbers.

Two kinds of figure:

- a mean of one value a sample (accuracy, exact match), and
- a ratio of sums, the figure of text: nats per token is `sum(nats) / sum(tokens)`, so that a long document weighs what it is; bits per byte
  and perplexity are functions of such a ratio.

A mean is the ratio with denominator 1, so one bootstrap over samples serves all: draw n samples with replacement, form the sums, form the figure.
All figures of one call share the same draws. The interval takes percentiles at expanded levels (Hesterberg 2015, "What Teachers Should Know
About the Bootstrap", section 4.3): the plain percentile interval is too narrow by sqrt((n - 1) / n) and by normal against t quantiles, which
matters for a few dozen samples and vanishes for thousands. With one sample there is no interval (NaN).

Does not model dependence between samples (several questions on one passage): intervals are then too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Rows = Sequence[Mapping[str, Any]]

_LN2 = math.log(2.0)


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """How one figure comes out of rows: `transform(sum(numerator) / sum(denominator))`."""

    numerator: str
    denominator: str | None = None
    """None: 1 a row, so a mean."""
    transform: Callable[[Any], Any] | None = None
    unit: str = ""
    higher_is_better: bool = False

    def columns(self, rows: Rows) -> np.ndarray:
        """`[n, 2]` float64: numerator and denominator of every row."""
        top = [float(row[self.numerator]) for row in rows]
        bottom = [1.0 if self.denominator is None else float(row[self.denominator]) for row in rows]
        return np.array([top, bottom], dtype=np.float64).T.reshape(-1, 2)

    def of_sums(self, sums: np.ndarray) -> np.ndarray:
        """Figures `[...]` of sums `[..., 2]`; NaN where the denominator is 0 (a resample of empty documents)."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            value = sums[..., 0] / sums[..., 1]
            value = np.where(sums[..., 1] > 0, value, np.nan)
            return value if self.transform is None else self.transform(value)


TEXT_FIGURES: dict[str, Ratio] = {
    "nats_per_token": Ratio(numerator="nats", denominator="tokens", unit="nats/token"),
    "bits_per_byte": Ratio(numerator="nats", denominator="bytes", transform=lambda x: x / _LN2, unit="bits/byte"),
    "perplexity": Ratio(numerator="nats", denominator="tokens", transform=np.exp, unit="perplexity"),
    "exact_memorisation": Ratio(numerator="exact", denominator="tokens", unit="share of tokens", higher_is_better=True),
    "entropy_per_token": Ratio(numerator="entropy", denominator="tokens", unit="nats/token"),
    "class_perplexity": Ratio(numerator="nats", transform=np.exp, unit="perplexity of the class"),
    "word_perplexity": Ratio(numerator="nats", denominator="words", transform=np.exp, unit="perplexity per word"),
    "byte_perplexity": Ratio(numerator="nats", denominator="bytes", transform=np.exp, unit="perplexity per byte"),
}
"""Figures of text by name; `nats`, `tokens`, `bytes`, `words`, `exact` and `entropy` are columns of the rows."""


def figure_for(metric: str, rows: Rows, *, higher_is_better: bool = True, unit: str = "") -> Ratio | None:
    """How `metric` comes out of `rows`, or None where they do not carry it.

    A text figure where the rows have its columns, else the mean of a column of that name; over the parts that the column "<metric>#" counts, where
    there is one.
    """
    if not rows:
        return None
    known = TEXT_FIGURES.get(metric)
    if known is not None and all(known.numerator in row and (known.denominator is None or known.denominator in row) for row in rows):
        return known
    if all(_is_number(row.get(metric)) and _is_number(row.get(f"{metric}#")) for row in rows):  # several parts a question
        return Ratio(numerator=metric, denominator=f"{metric}#", higher_is_better=higher_is_better, unit=unit)
    if all(_is_number(row.get(metric)) for row in rows):
        return Ratio(numerator=metric, higher_is_better=higher_is_better, unit=unit)
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, bool)) and math.isfinite(value)


def resampled_sums(columns: np.ndarray, *, resamples: int, seed: int) -> np.ndarray:
    """Sums over bootstrap samples of the rows.

    Args:
        columns: `[n, C]` float64, n >= 1.
        resamples: B, draws of n rows with replacement.
        seed: equal seed, n and B draw the same rows whatever C is, so that figures of separate calls stay paired.

    Returns:
        `[B, C]` float64.
    """
    return np.concatenate(list(_sum_blocks(columns, resamples=resamples, seed=seed)))


def _sum_blocks(columns: np.ndarray, *, resamples: int, seed: int, cells: int = 2_000_000) -> Iterator[np.ndarray]:
    """As counts times columns, in blocks of at most `cells` draws: no `[B, n]` array of a large data set."""
    n = columns.shape[0]
    rng = np.random.default_rng(seed)
    block = max(1, cells // n)
    for start in range(0, resamples, block):
        draws = min(block, resamples - start)
        picked = rng.integers(0, n, size=(draws, n))
        picked += np.arange(draws)[:, None] * n
        counts = np.bincount(picked.ravel(), minlength=draws * n).reshape(draws, n)
        yield counts.astype(np.float64) @ columns


def expanded_interval(values: np.ndarray, *, n: int, confidence: float) -> tuple[float, float]:
    """Percentile interval at the expanded levels `Phi(-+ sqrt(n / (n - 1)) t_{n-1})`.

    Args:
        values: `[B]` bootstrap figures; NaNs are left out.
        n: samples behind each of them.

    Returns:
        (low, high); NaNs for n < 2 or nothing finite.
    """
    from scipy.stats import norm, t

    values = values[np.isfinite(values)]
    if n < 2 or values.size == 0:
        return (math.nan, math.nan)
    level = float(norm.cdf(math.sqrt(n / (n - 1)) * t.ppf((1 - confidence) / 2, n - 1)))
    low, high = np.quantile(values, [level, 1 - level])
    return (float(low), float(high))


def estimate(
    figure: Ratio, rows: Rows, *, confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[float, tuple[float, float] | None]:
    """A figure and its interval (None where it cannot be had, as for a single sample)."""
    columns = figure.columns(rows)
    value = float(figure.of_sums(columns.sum(0)))
    low, high = expanded_interval(figure.of_sums(resampled_sums(columns, resamples=resamples, seed=seed)), n=len(rows), confidence=confidence)
    return value, None if math.isnan(low) else (low, high)
