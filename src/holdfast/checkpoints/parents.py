"""The checkpoints that an output is made of, which is what to it, and what comparing them brings to
light."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.checkpoints.sources import Source, listing


@dataclass(frozen=True, kw_only=True)
class Parents:
    """The checkpoints, in the order in which the arithmetic takes them."""

    sources: tuple[Source, ...]
    roles: tuple[str, ...]
    """What messages call each: "base", "model 1", ..."""
    layout: int = 0
    """Index of the one that the output looks like: its names, dtypes, shards and configuration."""
    base: int | None = None
    """Index of the one that changes are counted from; a model that lacks one of its tensors has
    changed nothing there. None: no such parent."""
    extras: Mapping[int, int] = field(default_factory=dict)
    """Those that must match but give the output no tensors of their own (Fisher information), each
    with the one it belongs to."""
    tokenizer: int | None = None
    """Index of the one whose tokens the output's rows are; None: the layout."""

    @property
    def vocabulary(self) -> int:
        """Index of the one whose rows the output's embeddings have."""
        return self.layout if self.tokenizer is None else self.tokenizer

    @property
    def companions(self) -> list[Source]:
        """Those whose tokenizer, chat template, generation configuration and code travel along, the
        most important last."""
        return [self.sources[index] for index in dict.fromkeys([self.layout, self.vocabulary])]

    @property
    def members(self) -> list[int]:
        """Those that the output is made of."""
        return [index for index in range(len(self.sources)) if index not in self.extras]

    @property
    def models(self) -> tuple[int, ...]:
        """The members beside the base."""
        return tuple(index for index in self.members if index != self.base)

    def named(self, indices: Sequence[int]) -> str:
        """What messages call several of them."""
        return listing([self.roles[index] for index in indices], 4)


@dataclass(kw_only=True)
class Findings:
    """What comparing checkpoints brings to light."""

    problems: list[str] = field(default_factory=list)
    """What stands in the way; sentences."""
    notes: list[str] = field(default_factory=list)
    """What a policy decided, or what is worth knowing; sentences."""
    config: dict[str, Any] = field(default_factory=dict)
    """Keys of config.json that change."""
