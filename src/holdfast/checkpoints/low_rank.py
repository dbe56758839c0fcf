"""The low-rank part of a matrix: the nearest matrix of rank r (Eckart and Young 1936), as two factors.

    D = U S V',   left = U_r S_r^(1/2),   right = S_r^(1/2) V_r',   kept = sum_{i <= r} s_i^2 / |D|^2

exact: eigenvectors of the smaller of D D' and D' D, in float64. Squaring costs half the digits of the singular values
but nothing of the product: with U_r orthonormal the other factor is U_r' D, so that at full rank left right = U U' D =
D to rounding. randomized: a range finder with subspace iterations [Halko, Martinsson and Tropp 2011, Algorithm 4.4],
many times faster for small ranks and a little worse.

Balanced factors have the same norm, so neither leaves the range of 16-bit numbers before the other.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.checkpoints.lora_settings import Svd

OVERSAMPLING = 16
"""Directions beyond the rank that a randomized search looks along."""
ITERATIONS = 4
"""Subspace iterations of a randomized search; singular values of a fine-tune's change fall off slowly."""
_ELEMENTS = 4_194_304
"""Elements that are widened to float64 at a time."""


class LowRank(NamedTuple):
    """`left @ right` is near the matrix."""

    left: NDArray[np.float64]
    """`[m, r]`."""
    right: NDArray[np.float64]
    """`[r, n]`."""


def low_rank(
    matrix: NDArray[np.floating],
    *,
    rank: int | None = None,
    energy: float | None = None,
    svd: Svd = "exact",
    seed: int = 0,
) -> LowRank:
    """The best factors of a rank, or of the smallest rank that keeps a share of the squared norm.

    Args:
        matrix: `[m, n]` float32 or float64, finite.
        rank: at least 1; more than min(m, n) counts as that.
        energy: in (0, 1], in place of a rank; exact only.
        svd: "exact" or "randomized".
        seed: of the randomized search.
    """
    assert (rank is None) != (energy is None) and (energy is None or svd == "exact")
    rows, columns = matrix.shape
    if rows > columns:
        left, right = low_rank(matrix.T, rank=rank, energy=energy, svd=svd, seed=seed)
        return LowRank(right.T, left.T)
    if svd == "exact":
        basis_MR = _leading(_gram(matrix), rank, energy)
    else:
        assert rank is not None
        basis_MR = _range(matrix, min(rank, rows), seed)
    projected_RN = np.concatenate(
        [basis_MR.T @ block.astype(np.float64) for block in _blocks(matrix)] or [np.zeros((basis_MR.shape[1], 0))], 1
    )
    sizes_R = np.sqrt(np.linalg.norm(projected_RN, axis=1))
    inverse_R = np.divide(1, sizes_R, out=np.zeros_like(sizes_R), where=sizes_R > 0)
    return LowRank(basis_MR * sizes_R, projected_RN * inverse_R[:, None])


def distance_squared(matrix: NDArray[np.floating], left: NDArray[np.floating], right: NDArray[np.floating]) -> float:
    """`|matrix - left right|^2`, the products and their sum in float64."""
    if len(matrix) > matrix.shape[1]:
        matrix, left, right = matrix.T, right.T, left.T
    wide = left.astype(np.float64)
    width = _width(matrix)
    parts = zip(_blocks(matrix, width), _blocks(right, width), strict=True)
    return float(sum(np.square(block - wide @ other.astype(np.float64)).sum() for block, other in parts))


def _width(matrix: NDArray[np.floating]) -> int:
    return max(64, _ELEMENTS // max(1, len(matrix)))


def _blocks(matrix: NDArray[np.floating], width: int | None = None) -> list[NDArray[np.floating]]:
    width = width or _width(matrix)
    return [matrix[:, start : start + width] for start in range(0, matrix.shape[1], width)]


def _gram(matrix: NDArray[np.floating]) -> NDArray[np.float64]:
    total = np.zeros((len(matrix), len(matrix)))
    for block in _blocks(matrix):
        wide = block.astype(np.float64)
        total += wide @ wide.T
    return total


def _leading(gram: NDArray[np.float64], rank: int | None, energy: float | None) -> NDArray[np.float64]:
    """Eigenvectors of the largest eigenvalues, the largest first."""
    from scipy.linalg import eigh

    count = len(gram)
    if rank is None:
        values = np.maximum(eigh(gram, eigvals_only=True)[::-1], 0)
        wanted = float(energy or 1) * values.sum() * (1 - 1e-12)
        rank = 1 + int(np.searchsorted(np.cumsum(values), wanted))
    rank = min(rank, count)
    _, vectors = eigh(gram, subset_by_index=[count - rank, count - 1])
    return np.ascontiguousarray(vectors[:, ::-1], np.float64)


def _range(matrix: NDArray[np.floating], rank: int, seed: int) -> NDArray[np.float64]:
    """An orthonormal basis `[m, rank]` of what is nearly the space of the leading left singular vectors."""
    rows, columns = matrix.shape
    width = min(rows, rank + OVERSAMPLING)
    drawn = np.random.default_rng(seed).standard_normal((columns, width))
    basis = np.linalg.qr(matrix @ drawn.astype(matrix.dtype))[0]
    for _ in range(ITERATIONS):
        basis = np.linalg.qr(matrix @ np.linalg.qr(matrix.T @ basis)[0])[0]
    inner = np.linalg.svd((basis.T @ matrix).astype(np.float64), full_matrices=False)[0]
    return np.linalg.qr(basis.astype(np.float64) @ inner[:, :rank])[0]
