"""What a run offers to its retention methods: to those that make data (`DataHost`), and to those that look at the model
or at other data (`Host`).

This module imports no torch, so that a command line can list the methods quickly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from datasets import Dataset

    from holdfast.retention.protocol import ActiveMethod, NamedParams

PrepareData = Callable[[str], "Dataset"]
"""Loads a data file or hub id and tokenises it exactly as the training data is: columns `input_ids`, `labels`. Rows
with images, which are tokenised batch by batch, come as they are: `images`, and messages or text."""


@dataclass(frozen=True, kw_only=True)
class StepFigures:
    """Means over the trained tokens of one optimiser step, before the step was taken, in nats per token."""

    ce: float
    """Cross-entropy."""
    kl: float | None
    """KL to the start by the token loss's own terms (direction, temperature, tokens); None without a token loss."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What the start model wrote after a prompt."""

    ids: tuple[int, ...]
    """Tokens, with the end token where it ended."""
    ended: bool
    """Whether it ended by itself, not because it had written as much as it was allowed to."""

    @property
    def said(self) -> tuple[int, ...]:
        """The tokens without the one that ends them."""
        return self.ids[:-1] if self.ended else self.ids


@dataclass(frozen=True, kw_only=True)
class Draws:
    """What the start model has to write before the first step, at most; less where samples are in the cache."""

    tokens: float
    samples: int
    """Where each is as long as it may be."""
    passes: int
    """Forward passes of one process, a token of each sample of a batch."""
    batch: int
    """Samples at once."""


class DataHost(Protocol):
    """What a run of one or several ranks offers to methods that make training data out of the start model. All ranks
    call `make_data`, and all have to end with the same rows."""

    rank: int
    world: int
    """Ranks of the run; 1 without others."""
    prepare: PrepareData
    seed: int
    """The run's."""
    tokenizer: Any
    new_rows: Dataset
    """The run's own rows, tokenised, before any method has mixed others in."""

    @property
    def window(self) -> int:
        """Tokens that prompt and answer have together at most: the model's context, or `max_length` where it is
        less."""

    @property
    def cut(self) -> int | None:
        """Tokens that rows are cut to once they are mixed; None: they are trained on whole."""

    def batch_size(self) -> int:
        """Prompts that are continued at once on this device, where nobody says."""

    def continued(
        self, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, temperature: float, top_p: float, seed: int
    ) -> list[Sample]:
        """What the start model writes after prompts (token ids), in one batch, on this rank alone; temperature 0 is
        greedy.

        Raises:
            ModelError: what it chooses tokens by is NaN or infinite.
            HoldfastError: memory does not suffice.
        """

    def gather(self, value: Any) -> list[Any]:
        """Everybody's value, in the order of ranks; all ranks have to call it."""

    def together(self, work: Callable[[], Any]) -> Any:
        """Does the work on every rank; an error on any is an error on all."""

    def start_key(self) -> str:
        """What tells the start model from all others: a hash of its weights as they are in memory, and of the shape of
        its forward."""

    def beginning(self) -> int | None:
        """The token that texts begin with (else the one that ends them); None where there is neither."""

    def prompts(self, data: str) -> tuple[list[list[int]], int]:
        """Token ids of the prompts in a file, folder or hub data set, up to where an answer begins; and how many of its
        rows hold none."""

    def say(self, text: str) -> None:
        """One line for the user, on the first process."""


class Host(Protocol):
    """What a run offers to methods that have to look at the model or at other data; the trainer is one."""

    def method(self, name: str) -> ActiveMethod | None:
        """The active form of the run's method of that name, None where the run has none."""

    def rows(self, data: str) -> Dataset:
        """A data file or hub id, loaded and tokenised as held-out or replay data is: `input_ids` and `labels`, not
        packed, cut to the window."""

    def mean_loss(self, rows: Dataset) -> StepFigures:
        """Means over the trained tokens of rows, without dropout, over all ranks; all ranks have to call it."""

    def sample_gradients(self, rows: Dataset, *, sampled: bool, seed: int) -> Iterator[tuple[int, NamedParams]]:
        """One row after the other: its number of trained tokens, and the gradients of the SUM of its tokens' negative
        log-likelihoods by parameter, float32 or the parameter's dtype, valid until the next row. Rows are dealt out
        over the ranks. Nothing is left in `p.grad`.

        Args:
            rows: as of `rows`.
            sampled: labels drawn from the model's own distribution at each trained place, instead of the rows'.
            seed: of the draws, which depend on it and on the row's place in `rows`, not on the ranks.
        """

    def sum_(self, tensors: NamedParams) -> None:
        """Sums tensors over all ranks, in place; all ranks have to call it."""

    def gathered(self, values: torch.Tensor) -> torch.Tensor:
        """`[M]` values of all ranks after one another, M of each its own; all ranks have to call it."""

    def say(self, text: str) -> None:
        """One line for the user, on the first process."""

    def folder(self) -> Path | None:
        """The run's folder, where a method may keep what it computed under a name that begins with its own; None where
        there is none."""

    def first(self) -> bool:
        """Whether this is the process that writes files; the others wait for it by what they do together (`sum_`,
        `mean_loss`)."""
