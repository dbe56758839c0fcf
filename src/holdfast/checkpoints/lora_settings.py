"""What can be asked of an adapter out of two checkpoints (`extract_lora`). Loads without NumPy, for help texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from holdfast.config.declare import Meta

Svd = Literal["exact", "randomized"]
"""How the factors of a matrix are found; see `low_rank`."""
RANK = 32
"""Where neither a rank nor a share is asked for."""


@dataclass(frozen=True, kw_only=True)
class LoraSettings:
    """How a difference becomes an adapter."""

    rank: Annotated[int | None, Meta(ge=1, metavar="R")] = None
    """Rank of the factors, at most that of each matrix (32)."""
    energy: Annotated[float | None, Meta(gt=0, le=1, metavar="SHARE")] = None
    """In place of a rank: each matrix gets the smallest rank that keeps this share of its squared difference."""
    svd: Svd = "exact"
    """exact: the best factors; randomized: a little worse and many times faster."""
    seed: int = 0
    """Of the randomized search."""
    embeddings: Literal["lora", "save", "leave"] | None = None
    """Embeddings and head: factors like the others, saved whole, or left as they are in the base (lora; save where the
    two are tied, whose factors PEFT's merge_and_unload would add twice)."""
    others: Literal["report", "save"] = "report"
    """Changed tensors that LoRA has no factors for (norms, biases): named only, or saved whole with the adapter."""

    def problems(self) -> list[str]:
        """Settings that exclude each other."""
        found = []
        if self.rank is not None and self.energy is not None:
            found.append(f"energy: expected one of rank and energy, got rank={self.rank} and energy={self.energy:g}")
        if self.energy is not None and self.svd == "randomized":
            found.append("svd: energy needs all singular values, which only exact computes; give a rank, or svd: exact")
        return found
