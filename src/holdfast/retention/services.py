"""What a run offers to its retention methods: while they make data (`DataServices`), in every
micro-batch (`LossBatch`), and wherever they look at the model or at other data (`Services`).

This module imports no torch, so that a command line can list the methods quickly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from datasets import Dataset

    from holdfast.ops.annealing import Weighting
    from holdfast.ops.heads import Head
    from holdfast.retention.protocol import ActiveMethod, NamedParams

PrepareData = Callable[[str], "Dataset"]
"""Loads a data file or hub id and tokenises it exactly as the training data is: columns
`input_ids`, `labels`. Rows with images, which are tokenised batch by batch, come as they are:
`images`, and messages or text."""


def trainable_parameters(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The parameters of a model that require gradients, by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def rates_by_name(
    groups: Iterable[Mapping[str, Any]], named: Mapping[str, Any]
) -> dict[str, float]:
    """The learning rate of each parameter; 0 of those that an optimiser does not hold.

    Args:
        groups: of the optimiser.
        named: parameters by name.
    """
    rates: dict[int, float] = {}
    for group in groups:
        rates |= dict.fromkeys(map(id, group["params"]), float(group["lr"]))
    return {name: rates.get(id(parameter), 0.0) for name, parameter in named.items()}


@dataclass(frozen=True, kw_only=True)
class StepFigures:
    """Means over the trained tokens of one optimiser step, before the step was taken, in nats per
    token."""

    ce: float
    """Cross-entropy."""
    kl: float | None
    """KL to the start by the token loss's own terms (direction, temperature, tokens); None without
    a token loss."""


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
    """What the start model has to write before the first step, at most; less where samples are in
    the cache."""

    tokens: float
    samples: int
    """Where each is as long as it may be."""
    passes: int
    """Forward passes of one process, a token of each sample of a batch."""
    batch: int
    """Samples at once."""


class DataServices(Protocol):
    """What a run of one or several ranks offers to methods that make training data out of the start
    model. All ranks call `training_data`, and all have to end with the same rows."""

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
        """Tokens that prompt and answer have together at most: the model's context, or `max_length`
        where it is less."""

    @property
    def cut(self) -> int | None:
        """Tokens that rows are cut to once they are mixed; None: they are trained on whole."""

    def batch_size(self) -> int:
        """Prompts that are continued at once on this device, where nobody says."""

    def continued(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        temperature: float,
        top_p: float,
        seed: int,
    ) -> list[Sample]:
        """What the start model writes after prompts (token ids), in one batch, on this rank alone;
        temperature 0 is greedy.

        Raises:
            ModelError: what it chooses tokens by is NaN or infinite.
            HoldfastError: memory does not suffice.
        """

    def gather(self, value: Any) -> list[Any]:
        """Everybody's value, in the order of ranks; all ranks have to call it."""

    def together(self, work: Callable[[], Any]) -> Any:
        """Does the work on every rank; an error on any is an error on all."""

    def start_key(self) -> str:
        """What tells the start model from all others: a hash of its weights as they are in memory,
        and of the shape of its forward."""

    def beginning(self) -> int | None:
        """The token that texts begin with (else the one that ends them); None where there is
        neither."""

    def prompts(self, data: str) -> tuple[list[list[int]], int]:
        """Token ids of the prompts in a file, folder or hub data set, up to where an answer begins;
        and how many of its rows hold none."""

    def say(self, text: str) -> None:
        """One line for the user, on the first process."""


class LossBatch(Protocol):
    """A micro-batch inside the model's own forward, where parallel wrappers see what is computed.

    Shapes: B rows, T positions, S = T - 1 predictions (at s that of the token at s + 1), H hidden
    width.
    """

    inputs: Mapping[str, Any]
    """The model's own: `input_ids [B, T]`, `attention_mask` or `position_ids`, images."""
    labels_BT: torch.Tensor
    """int64, -100 where a token is not trained."""
    hidden_BTH: torch.Tensor
    """Hidden states of the pass whose loss is computed."""
    head: Head
    """The output head, which maps hidden states to logits."""
    step: int
    """The optimizer step that is being taken, from 1."""

    def second_pass(
        self, change: Callable[[torch.Tensor], torch.Tensor] | None = None
    ) -> torch.Tensor:
        """Hidden states `[B, T, H]` of another pass of the backbone over the same inputs, with a
        gradient.

        Args:
            change: of the input embeddings `[B, T, H]`; None: they stay, and only the model's own
                dropout differs.
        """

    def kl(self, hidden_BTH: torch.Tensor, reference_BTH: torch.Tensor) -> torch.Tensor:
        """`[]`, float32: KL(reference || model) summed over the trained tokens, nats, over the
        whole vocabulary, without logits in memory. Gradients reach `hidden_BTH` and the head; the
        reference gets none."""

    def weigh(
        self, weights_BS: torch.Tensor | None = None, weighting: Weighting | None = None
    ) -> None:
        """Factors of the tokens' cross-entropies, at least 0: given ones `[B, S]`, ones that the
        loss op computes, or both. The divisor stays the number of trained tokens.

        Raises:
            ConfigError: the micro-batch is weighed a second time.
        """

    def uniform(self, width: int, *, seed: int, name: str) -> torch.Tensor:
        """`[B, T, width]` float32 in (0, 1), decided by seed, name, step, and the row's tokens: the
        same however rows are dealt out over ranks and micro-batches, and after a resume. 0 at
        padding. Rows of the same tokens get the same numbers."""


class Services(Protocol):
    """What a run offers to methods that have to look at the model or at other data; the trainer is
    one."""

    def method(self, name: str) -> ActiveMethod | None:
        """The active form of the run's method of that name, None where the run has none."""

    def rows(self, data: str) -> Dataset:
        """A data file or hub id, loaded and tokenised as held-out or replay data is: `input_ids`
        and `labels`, not packed, cut to the window."""

    def mean_loss(self, rows: Dataset) -> StepFigures:
        """Means over the trained tokens of rows, without dropout, over all ranks; all ranks have to
        call it."""

    def sample_gradients(
        self, rows: Dataset, *, sampled: bool, seed: int
    ) -> Iterator[tuple[int, NamedParams]]:
        """One row after the other: its number of trained tokens, and the gradients of the SUM of
        its tokens' negative log-likelihoods by parameter, float32 or the parameter's dtype, valid
        until the next row. Rows are dealt out over the ranks. Nothing is left in `p.grad`.

        Args:
            rows: as of `rows`.
            sampled: labels drawn from the model's own distribution at each trained place, instead
                of the rows'.
            seed: of the draws, which depend on it and on the row's place in `rows`, not on the
                ranks.
        """

    def sum_(self, tensors: NamedParams) -> None:
        """Sums tensors over all ranks, in place; all ranks have to call it."""

    def gathered(self, values: torch.Tensor) -> torch.Tensor:
        """`[M]` values of all ranks after one another, M of each its own; all ranks have to call
        it."""

    def say(self, text: str) -> None:
        """One line for the user, on the first process."""

    def folder(self) -> Path | None:
        """The run's folder, where a method may keep what it computed under a name that begins with
        its own; None where there is none."""

    def first(self) -> bool:
        """Whether this is the process that writes files; the others wait for it by what they do
        together (`sum_`, `mean_loss`)."""
