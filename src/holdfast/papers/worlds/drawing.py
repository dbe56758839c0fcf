"""Drawing from lists, as everything that is generated does: evenly, and the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def words(text: str) -> tuple[str, ...]:
    """The words of a text."""
    return tuple(text.split())


def dealt(values: Sequence[T], count: int, rng: random.Random) -> list[T]:
    """`count` values, each as frequent as the others, in random order."""
    found = [values[i % len(values)] for i in range(count)]
    rng.shuffle(found)
    return found


def endlessly(items: Sequence[T], rng: random.Random) -> Iterator[T]:
    """The items over and over, each time in another order."""
    assert items, "nothing to draw from"
    while True:
        yield from rng.sample(items, len(items))


def groups(items: Sequence[T], sizes: Sequence[int], rng: random.Random) -> Iterator[list[T]]:
    """All items once, in random order, in groups of sizes drawn from `sizes`."""
    order = rng.sample(items, len(items))
    while order:
        size = rng.choice(sizes)
        yield order[:size]
        del order[:size]


def listed(items: Sequence[str]) -> str:
    """Words as a sentence has them: "a", "a and b", "a, b and c"."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
