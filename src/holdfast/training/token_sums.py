"""Sums over tokens between two logged steps: added up on the device without waiting for it, reduced
over ranks when they are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from holdfast.ops.annealing import AnnealedLoss


class TokenTotals(NamedTuple):
    """Over micro-batches and ranks; sums of nats over tokens, and numbers of tokens."""

    ce_sum: float
    kl_sum: float
    ce_count: float
    kl_count: float
    correct: float
    tokens: float
    """Prompts included, padding left out."""
    entropy_sum: float
    weight_sum: float

    def per_token(self, name: str) -> float:
        """The mean of a sum over the trained tokens, of `kl_sum` over the KL's; 0 without any."""
        count = self.kl_count if name == "kl_sum" else self.ce_count
        return float(getattr(self, name)) / max(count, 1)


class TokenSums:
    """The sums of a run.

    Args:
        reduce: sums a tensor over all ranks; all ranks have to call it.
        by_step: also sum up each optimizer step by itself.
    """

    def __init__(self, reduce: Callable[[Tensor], Tensor], *, by_step: bool) -> None:
        self._reduce, self._by_step = reduce, by_step
        self.since_log: dict[str, Tensor] = {}
        """This rank's sums by mode ("train", "eval"), `[8]` in the order of `TokenTotals`, float64
        where the device has it."""
        self._step: Tensor | None = None

    def add(self, mode: str, result: AnnealedLoss | None, tokens: Tensor) -> None:
        """Adds a micro-batch.

        Args:
            mode: "train" or "eval".
            result: its figures; None where a host's own loss is all that was computed.
            tokens: `[]` of them, prompts included, without padding.
        """
        row = _row(result, tokens)
        self.since_log[mode] = self.since_log[mode] + row if mode in self.since_log else row
        if mode == "train" and self._by_step:
            self._step = row if self._step is None else self._step + row

    def totals(self, row: Tensor) -> TokenTotals:
        """A rank's `[8]` sums over all ranks."""
        return TokenTotals(*self._reduce(row).tolist())

    def take(self, mode: str) -> TokenTotals | None:
        """Over all ranks since the last call; None where there was no micro-batch."""
        return self.totals(self.since_log.pop(mode)) if mode in self.since_log else None

    def take_step(self) -> TokenTotals | None:
        """As `take`, of the optimizer step."""
        row, self._step = self._step, None
        return None if row is None else self.totals(row)

    def pending(self) -> list[float] | None:
        """What `take("train")` would give, which stays: a checkpoint keeps it, so that figures
        logged after a resume cover the steps before it."""
        row = self.since_log.get("train")
        return None if row is None else list(self.totals(row.clone()))

    def restore(
        self, pending: Sequence[float] | None, *, device: torch.device, holds: bool
    ) -> None:
        """Takes `pending` back.

        Args:
            pending: as it was saved.
            device: of the run.
            holds: whether this rank counts it; one rank does.
        """
        self.since_log.pop("train", None)
        if pending:
            row = torch.tensor(pending, dtype=_dtype(device), device=device)
            self.since_log["train"] = row if holds else torch.zeros_like(row)


def _dtype(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64


def _row(result: AnnealedLoss | None, tokens: Tensor) -> Tensor:
    none = tokens.new_zeros(())
    if result is None:
        values = [none, none, none, none, none, tokens, none, none]
        device = tokens.device
    else:
        device = result.loss.device
        counts = [result.ce_count, result.kl_count, result.correct]
        values = [
            result.ce_sum,
            result.kl_sum,
            *counts,
            tokens.to(device),
            result.entropy_sum,
            result.weight_sum,
        ]
    return torch.stack([value.detach().to(_dtype(device)) for value in values])
