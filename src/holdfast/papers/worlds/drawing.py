"""Drawing from lists, as everything that is generated does: evenly, and the same for the same seed.
The phrases that are drawn from stand in YAML files beside the modules."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
HELD_OUT_CHARACTERS = 280
"""A held-out text is the beginning of a piece, cut at a line's end: intervals want many documents,
not long ones, and a row of the base has 96 tokens."""


def phrases(module: str) -> Any:
    """What the YAML file beside a module holds. `module`: its `__file__`."""
    import yaml

    return yaml.safe_load(Path(module).with_suffix(".yaml").read_text(encoding="utf-8"))


def words(text: str) -> tuple[str, ...]:
    """The words of a text."""
    return tuple(text.split())


def dealt(values: Sequence[T], count: int, rng: random.Random) -> list[T]:
    """`count` values, each as frequent as the others, in random order."""
    hands = [values[i % len(values)] for i in range(count)]
    rng.shuffle(hands)
    return hands


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


def by_hash(items: Mapping[str, T]) -> list[T]:
    """The items in the order of their keys' hashes, which has nothing to do with where they come
    from."""
    return [
        items[key] for key in sorted(items, key=lambda key: hashlib.sha256(key.encode()).digest())
    ]


def listed(items: Sequence[str]) -> str:
    """Words as a sentence has them: "a", "a and b", "a, b and c"."""
    beginning = ", ".join(items[:-1])
    return f"{beginning} and {items[-1]}" if beginning else items[0]


def beginnings(
    texts: Sequence[str], count: int, *, characters: int = HELD_OUT_CHARACTERS
) -> list[str]:
    """The beginnings of about `count` evenly spaced texts, each cut at a line's end; no two alike.

    Args:
        texts: held-out pieces.
        count: at least 1; all texts where there are not as many.
        characters: longest beginning.
    """
    step = max(1.0, len(texts) / count)
    cut: dict[str, None] = {}
    for number in range(min(count, len(texts))):
        text = texts[int(number * step)]
        if len(text) > characters:
            text = text[:characters].rsplit("\n", 1)[0]
        if text.strip():
            cut[text] = None
    return list(cut)
