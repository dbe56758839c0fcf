"""The ranks of a run before and beside its training: everybody's values, and errors that are
everybody's."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from holdfast.errors import HoldfastError


def shards(settings: Mapping[str, Any]) -> bool:
    """Whether the launcher or the settings of a training ask for FSDP or DeepSpeed, which shard the
    model."""
    names = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED")
    launched = any(os.environ.get(name, "").lower() in ("1", "true") for name in names)
    return launched or bool(settings.get("fsdp") or settings.get("deepspeed"))


class Processes:
    """The ranks of a run; every call is made by all of them.

    Args:
        rank: this one's number.
        world: how many there are.
    """

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = int(rank), int(world)

    def gather(self, value: Any) -> list[Any]:
        """Everybody's value, in the order of ranks."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        torch.distributed.all_gather_object(values, value)
        return values

    def together(self, work: Callable[[], Any]) -> Any:
        """Does the work; an error on any rank is an error on all, so that none waits for one that
        is gone."""
        if self.world == 1:
            return work()
        result, error = None, None
        try:
            result = work()
        except Exception as raised:
            error = raised
        texts = self.gather(str(error) if error is not None else None)
        if error is not None:
            raise error
        for rank, text in enumerate(texts):
            if text is not None:
                raise HoldfastError(f"Process {rank} failed: {text}")
        return result

    def first(self, work: Callable[[], Any]) -> Any:
        """What the first process's work gives; the others do nothing, and an error is
        everybody's."""
        result = self.together(work if self.rank == 0 else lambda: None)
        return self.gather(result)[0]
