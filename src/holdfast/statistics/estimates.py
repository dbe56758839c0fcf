"""Figures from per-sample rows, with bootstrap intervals: the one place where rows become numbers.

Two kinds of figure:

- a mean of one value a sample (accuracy, exact match), and
- a ratio of sums, the figure of text: nats per token is `sum(nats) / sum(tokens)`, so that a long
  document weighs what it is; bits per byte and perplexity are functions of such a ratio.

A mean is the ratio with denominator 1, so one bootstrap over samples serves all: draw n samples
with replacement, form the sums, form the figure. Whatever is to be paired (two models on the same
samples, several figures of one entry) goes into one call as columns side by side. Samples that are
equal in all columns are interchangeable, so where few are distinct (right / wrong answers of two
models make four kinds) a draw is one multinomial of how often each kind occurs: the same
distribution, at a cost that does not grow with n.

The interval takes percentiles at expanded levels (`intervals.expanded_interval`). With one sample
there is none (NaN). Of a share whose samples all agree (all answers right, or all wrong) no
resample differs, so it gets the exact limits of Clopper and Pearson instead of a point.

A copy says nothing that the sample it repeats does not say. Copies are one cluster (`clusters_of`):
a figure is that of all rows, its interval draws clusters, and comparisons of models count each
cluster once (`by_cluster`). Rows may name a "cluster" of their own (several tries at one question,
several questions on one passage): it is drawn and tested as a whole, and weighs as many rows as it
has (`cluster_weights`). Other dependence between samples is not modelled: intervals are then too
narrow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast.records.metrics import is_share
from holdfast.statistics.intervals import clopper_pearson, expanded_interval, known_interval
from holdfast.support.files import fingerprint

Rows = Sequence[Mapping[str, Any]]

_LN2 = math.log(2.0)


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """How one figure comes out of rows: `transform(sum(numerator) / sum(denominator))`."""

    numerator: str
    denominator: str | None = None
    """None: 1 a row, so a mean."""
    transform: Callable[[Any], Any] | None = None
    slope: Callable[[Any], Any] | None = None
    """The transform's derivative."""
    unit: str = ""
    higher_is_better: bool = False

    def columns(self, rows: Rows) -> np.ndarray:
        """`[n, 2]` float64: numerator and denominator of every row."""
        columns = np.ones((len(rows), 2))
        columns[:, 0] = [float(row[self.numerator]) for row in rows]
        if self.denominator is not None:
            columns[:, 1] = [float(row[self.denominator]) for row in rows]
        return columns

    def of_sums(self, sums: np.ndarray) -> np.ndarray:
        """Figures `[...]` of sums `[..., 2]`; NaN where the denominator is 0 (a resample of empty
        documents)."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            value = sums[..., 0] / sums[..., 1]
            value = np.where(sums[..., 1] > 0, value, np.nan)
            return value if self.transform is None else self.transform(value)

    def influence(self, columns: np.ndarray) -> np.ndarray:
        """How much each row moves the figure: `[n]` float64 of `columns` `[n, 2]`, with the sum 0
        (the infinitesimal jackknife's, Efron 1982, chapter 6)."""
        numerator, denominator = columns.sum(0)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            value = numerator / denominator
            moved = (columns[:, 0] - value * columns[:, 1]) / denominator
            return np.asarray(moved if self.slope is None else self.slope(value) * moved)


TEXT_FIGURES: dict[str, Ratio] = {
    "nats_per_token": Ratio(numerator="nats", denominator="tokens", unit="nats/token"),
    "bits_per_byte": Ratio(
        numerator="nats",
        denominator="bytes",
        transform=lambda x: x / _LN2,
        slope=lambda x: 1 / _LN2,
        unit="bits/byte",
    ),
    "perplexity": Ratio(
        numerator="nats", denominator="tokens", transform=np.exp, slope=np.exp, unit="perplexity"
    ),
    "exact_memorisation": Ratio(
        numerator="exact", denominator="tokens", unit="share of tokens", higher_is_better=True
    ),
    "entropy_per_token": Ratio(numerator="entropy", denominator="tokens", unit="nats/token"),
    "class_perplexity": Ratio(
        numerator="nats", transform=np.exp, slope=np.exp, unit="perplexity of the class"
    ),
    "word_perplexity": Ratio(
        numerator="nats",
        denominator="words",
        transform=np.exp,
        slope=np.exp,
        unit="perplexity per word",
    ),
    "byte_perplexity": Ratio(
        numerator="nats",
        denominator="bytes",
        transform=np.exp,
        slope=np.exp,
        unit="perplexity per byte",
    ),
}
"""Figures of text by name; `nats`, `tokens`, `bytes`, `words`, `exact` and `entropy` are columns of
the rows."""


def figure_for(
    metric: str, rows: Rows, *, higher_is_better: bool = True, unit: str = ""
) -> Ratio | None:
    """How `metric` comes out of `rows`, or None where one of them has no number for it.

    A text figure where the rows have its columns, else the mean of a column of that name; over the
    parts that the column "<metric>#" counts, where there is one. NaN and infinities are numbers
    here: the figure is then one, too.
    """
    if not rows:
        return None
    known = TEXT_FIGURES.get(metric)
    if (
        known is not None
        and _have_numbers(rows, known.numerator)
        and _have_numbers(rows, known.denominator)
    ):
        return known
    if not _have_numbers(rows, metric):
        return None
    several = _have_numbers(rows, f"{metric}#")  # several parts a question
    return Ratio(
        numerator=metric,
        denominator=f"{metric}#" if several else None,
        higher_is_better=higher_is_better,
        unit=unit,
    )


def sample_of(row: Mapping[str, Any]) -> str:
    """What tells the sample of a row from others: its cluster, or its document, or the one that it
    is a copy of."""
    if "cluster" in row:
        return f"cluster {row['cluster']}"
    return str(row.get("copy_of", row.get("doc")))


def clusters_of(rows: Rows) -> np.ndarray | None:
    """For each row the number of its sample `[n]` int64, in the order in which samples first come;
    None where no row is a copy of another."""
    numbers: dict[str, int] = {}
    clusters = []
    for row in rows:
        if "doc" not in row:
            return None
        clusters.append(numbers.setdefault(sample_of(row), len(numbers)))
    return np.array(clusters) if len(numbers) < len(rows) else None


def cluster_weights(rows: Rows, clusters: np.ndarray | None) -> np.ndarray | float:
    """What each cluster weighs in a figure, `[m, 1]` float64 with the mean 1: as many rows as it has
    where rows name clusters, else 1, as for copies.

    Args:
        rows: with their "cluster", if they have one.
        clusters: as of `clusters_of`.
    """
    if clusters is None or not any("cluster" in row for row in rows):
        return 1.0
    sizes = np.bincount(clusters)[:, None]
    return np.asarray(sizes / sizes.mean())


def by_cluster(columns: np.ndarray, clusters: np.ndarray | None) -> np.ndarray:
    """`[m, C]` means over the rows of each of m clusters, of columns `[n, C]`; the columns
    themselves without any."""
    if clusters is None:
        return columns
    sums = np.zeros((int(clusters.max()) + 1, columns.shape[1]))
    np.add.at(sums, clusters, columns)
    return np.asarray(sums / np.bincount(clusters)[:, None])


def _have_numbers(rows: Rows, column: str | None) -> bool:
    """Whether every row has a number there; types are looked at once each, since rows are many."""
    return column is None or all(
        issubclass(kind, (int, float)) for kind in {type(row.get(column)) for row in rows}
    )


def resampled_sums(columns: np.ndarray, *, resamples: int, seed: int) -> np.ndarray:
    """Sums over bootstrap samples of the rows; all columns share the draws.

    Args:
        columns: `[n, C]` float64, n >= 1.
        resamples: B, draws of n rows with replacement.
        seed: equal seed and columns give equal draws. Two calls with different columns are not
            paired, whatever their
            seeds: what is to be paired goes into one call.

    Returns:
        `[B, C]` float64.
    """
    n = columns.shape[0]
    # equal columns are summed once: they have equal sums to the last bit
    unlike: dict[bytes, int] = {}
    numbers = [unlike.setdefault(column.tobytes(), len(unlike)) for column in columns.T]
    columns = columns[:, [numbers.index(number) for number in range(len(unlike))]]
    rng = np.random.default_rng(seed)
    # a binomial costs about as much as sixteen rows drawn one by one
    kinds = _distinct_rows(columns, most=max(1, n // 16))
    rows, times = kinds if kinds is not None else (columns, None)
    sums = np.empty((resamples, columns.shape[1]))
    block = max(1, _CELLS // len(rows))
    for start in range(0, resamples, block):
        draws = min(block, resamples - start)
        if times is not None:
            counts = rng.multinomial(n, times / n, size=draws)
        else:
            picked = rng.integers(0, n, size=(draws, n))
            picked += np.arange(draws)[:, None] * n
            counts = np.bincount(picked.ravel(), minlength=draws * n).reshape(draws, n)
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite shows in the sums
            sums[start : start + draws] = counts.astype(np.float64) @ rows
    return sums[:, numbers]


_CELLS = 1 << 17
"""Counts held at a time: arrays of this size stay in a processor's cache. The draws are the same
whatever it is."""


def _distinct_rows(columns: np.ndarray, *, most: int) -> tuple[np.ndarray, np.ndarray] | None:
    """The distinct rows `[K, C]`, sorted, and how often each occurs `[K]`; None where K > most."""
    first, codes = np.zeros(1, dtype=np.int64), np.zeros(len(columns), dtype=np.int64)
    counts = np.array([len(columns)])
    for column in (
        columns.T
    ):  # column by column: a few times faster than np.unique over whole rows, and it stops early
        values, inverse = np.unique(column, return_inverse=True)
        if len(values) > most:
            return None
        if len(values) > 1:
            _, first, codes, counts = np.unique(
                codes * len(values) + inverse,
                return_index=True,
                return_inverse=True,
                return_counts=True,
            )
        if len(first) > most:
            return None
    return columns[first], counts


def joint_sums(
    columns: Mapping[str, np.ndarray], *, resamples: int, seed: int
) -> dict[str, np.ndarray]:
    """`resampled_sums` of several figures on the same samples, drawn together.

    Args:
        columns: `[n, C]` float64 a figure; C may differ.
        resamples: B.
        seed: of the draws.

    Returns:
        `[B, C]` float64 a figure.
    """
    drawn = resampled_sums(np.hstack(list(columns.values())), resamples=resamples, seed=seed)
    ends = np.cumsum([matrix.shape[1] for matrix in columns.values()])
    return dict(zip(columns, np.split(drawn, ends[:-1], axis=1), strict=True))


def entry_seed(seed: int, key: tuple[str, str]) -> int:
    """The seed of one entry's draws, from its suite and name: entries with equal columns must not
    be drawn alike, since their questions have nothing in common.
    """
    return int(fingerprint({"seed": seed, "suite": key[0], "name": key[1]}, length=15), 16)


def estimate(
    figure: Ratio, rows: Rows, *, confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[float, tuple[float, float] | None]:
    """A figure and its interval (None where it cannot be had, as for a single sample)."""
    columns, clusters = figure.columns(rows), clusters_of(rows)
    value = float(figure.of_sums(columns.sum(0)))
    if clusters is not None:
        columns = by_cluster(columns, clusters) * np.bincount(clusters)[:, None]
    columns = columns[columns[:, 1] > 0]  # the figure does not apply to the others
    n = len(columns)
    if n == 0:
        return value, None
    if n > 1 and value in (0.0, 1.0) and _unanimous_share(figure, columns):
        return value, clopper_pearson(n * int(value), n, (1 - confidence) / 2)
    draws = figure.of_sums(resampled_sums(columns, resamples=resamples, seed=seed))
    return value, known_interval(expanded_interval(draws, n=n, confidence=confidence))


def _unanimous_share(figure: Ratio, columns: np.ndarray) -> bool:
    """Whether the figure is a share whose samples are all at the same end of [0, 1]."""
    numerators, denominators = columns.T
    share = figure.transform is None and is_share(figure.unit, figure.numerator)
    return share and bool((numerators == 0).all() or (numerators == denominators).all())
