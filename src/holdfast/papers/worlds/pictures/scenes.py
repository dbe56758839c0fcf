"""Pictures of digits and what is asked about them.

A picture has nine places in three rows, each empty or with one digit of 8 x 8 pixels. There are five families of
questions, none of which can be answered without the picture:

| family | asked | chance |
|---|---|---|
| presence | is a digit among two to four | 1/2 |
| count | how many digits there are, one to four | 1/4 |
| comparison | which of two digits is larger | 1/2 |
| parity | whether the only digit is even | 1/2 |
| reading | which number two digits side by side make | 1/4 |

Wrong numbers have one digit right, or both the wrong way round. The right answers of a family are dealt out evenly.
Everything is drawn from one seed; equal seeds give equal pixels.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.errors import DataError
from holdfast.papers.worlds.drawing import dealt

if TYPE_CHECKING:
    import numpy as np

CELL, ROWS = 8, 3
"""Pixels of a place, and places in a row and in a column."""
SIZE = CELL * ROWS
"""Pixels of a picture in each direction."""
PLACES = (
    "top left", "top", "top right", "left", "middle", "right", "bottom left", "bottom", "bottom right",
)  # fmt: skip
COUNTED = ("one", "two", "three", "four")
_TRIES = 100
SLOT = "<image>\n"
"""How a prompt begins: with its picture."""


@dataclass(frozen=True, kw_only=True)
class Digits:
    """Images of single digits to make pictures of."""

    pixels: np.ndarray
    """`[N, 8, 8]` uint8, white on black."""
    labels: np.ndarray
    """`[N]` int64."""

    def one(self, digit: int, rng: random.Random) -> np.ndarray:
        """An image `[8, 8]` of a digit."""
        import numpy as np

        return self.pixels[rng.choice(np.flatnonzero(self.labels == digit).tolist())]


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What is in a picture: digits by their places, in reading order."""

    digits: tuple[tuple[int, int], ...]
    """(place 0 to 8, digit)."""

    def drawn(self, digits: Digits, rng: random.Random) -> np.ndarray:
        """Its pixels `[24, 24]` uint8, each digit in a handwriting that is drawn."""
        import numpy as np

        canvas = np.zeros((SIZE, SIZE), np.uint8)
        for place, digit in self.digits:
            row, column = divmod(place, ROWS)
            canvas[row * CELL :, column * CELL :][:CELL, :CELL] = digits.one(digit, rng)
        return canvas

    def caption(self) -> str:
        """A sentence that says all of it: "4 at the top left and 7 in the middle."."""
        said = [f"{digit} {'in' if place == 4 else 'at'} the {PLACES[place]}" for place, digit in self.digits]
        return (", ".join(said[:-1]) + " and " if said[:-1] else "") + said[-1] + "."


def scene(digits: Sequence[int], rng: random.Random) -> Scene:
    """Digits at places that are drawn, in any order."""
    return Scene(digits=tuple(sorted(zip(rng.sample(range(ROWS * ROWS), len(digits)), digits, strict=True))))


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A scene with a question about it."""

    scene: Scene
    question: str
    options: tuple[str, ...]
    answer: int
    """Index of the right option."""


def _any(count: int, rng: random.Random) -> list[int]:
    return [rng.randrange(10) for _ in range(count)]


def _presence(answer: int, rng: random.Random) -> Asked:
    held = _any(rng.randint(2, 4), rng)
    others = [digit for digit in range(10) if digit not in held]
    digit = rng.choice(held if answer == 0 else others)
    question = rng.choice(("Is there a {d}?", "Can you see a {d}?", "Is one of the digits a {d}?")).format(d=digit)
    return Asked(scene=scene(held, rng), question=question, options=("yes", "no"), answer=answer)


def _count(answer: int, rng: random.Random) -> Asked:
    question = rng.choice(("How many digits are there?", "How many digits can you see?", "Count the digits."))
    return Asked(scene=scene(_any(answer + 1, rng), rng), question=question, options=COUNTED, answer=answer)


def _comparison(answer: int, rng: random.Random) -> Asked:
    small, large = sorted(rng.sample(range(10), 2))
    row = rng.randrange(ROWS)
    left, right = (large, small) if answer == 0 else (small, large)
    held = Scene(digits=((row * ROWS, left), (row * ROWS + 2, right)))
    question = rng.choice(("Which digit is larger?", "Which is the larger digit?", "Where is the larger digit?"))
    return Asked(scene=held, question=question, options=("the left", "the right"), answer=answer)


def _parity(answer: int, rng: random.Random) -> Asked:
    question = rng.choice(("Is the digit even or odd?", "Even or odd?", "Is it an even or an odd digit?"))
    held = scene([rng.randrange(answer, 10, 2)], rng)
    return Asked(scene=held, question=question, options=("even", "odd"), answer=answer)


def _reading(answer: int, rng: random.Random) -> Asked:
    tens, ones = rng.sample(range(1, 10), 2)
    row, column = rng.randrange(ROWS), rng.randrange(ROWS - 1)
    place = row * ROWS + column
    other = rng.choice([digit for digit in range(1, 10) if digit not in (tens, ones)])
    wrong = [f"{ones}{tens}", f"{other}{ones}", f"{tens}{other}"]
    rng.shuffle(wrong)
    options = (*wrong[:answer], f"{tens}{ones}", *wrong[answer:])
    question = rng.choice(("Which number is it?", "Read the number.", "What number do the digits make?"))
    held = Scene(digits=((place, tens), (place + 1, ones)))
    return Asked(scene=held, question=question, options=options, answer=answer)


FAMILIES: dict[str, tuple[Callable[[int, random.Random], Asked], int]] = {
    "presence": (_presence, 2),
    "count": (_count, 4),
    "comparison": (_comparison, 2),
    "parity": (_parity, 2),
    "reading": (_reading, 4),
}
"""By name: what draws a question whose right option has a given index, and how many options it has."""


def asked(family: str, count: int, *, seed: str) -> list[Asked]:
    """Questions of a family, their right answers dealt out evenly.

    Args:
        family: one of `FAMILIES`.
        count: so many.
        seed: what they are drawn from; another one gives others.
    """
    draw, options = FAMILIES[family]
    rng = random.Random(f"{seed} {family}")
    return [draw(answer, rng) for answer in dealt(range(options), count, rng)]


# ----------------------------------------------------------------------------------------------------------------- rows


def caption_rows(count: int, digits: Digits, *, seed: str) -> list[dict[str, Any]]:
    """Rows of prompt, completion and images: pictures of one to four digits, and what is in them."""
    rng = random.Random(f"{seed} captions")
    rows = []
    for number in dealt(range(1, 5), count, rng):
        held = scene(_any(number, rng), rng)
        rows.append(_row(held.drawn(digits, rng), prompt=SLOT, completion=held.caption()))
    return rows


def instruction_rows(count: int, digits: Digits, *, seed: str) -> list[dict[str, Any]]:
    """Rows of prompt, completion and images: questions of all families in random order, and their right answers."""
    rng = random.Random(f"{seed} instructions")
    names = dealt(list(FAMILIES), count, rng)
    drawn = {family: iter(asked(family, names.count(family), seed=f"{seed} instructions")) for family in FAMILIES}
    rows = []
    for family in names:
        one = next(drawn[family])
        completion = f" {one.options[one.answer]}"
        rows.append(_row(one.scene.drawn(digits, rng), prompt=_prompt(one.question), completion=completion))
    return rows


def question_rows(family: str, count: int, digits: Digits, *, seed: str) -> list[dict[str, Any]]:
    """Rows of family, prompt, options, answer and images, for the entry kind `choices`; no question stands twice.

    Raises:
        DataError: too few digits for so many different questions.
    """
    rng, rows, seen = random.Random(f"{seed} held out {family}"), list[dict[str, Any]](), set[tuple[str, bytes]]()
    for one in asked(family, count, seed=f"{seed} held out"):
        pixels = one.scene.drawn(digits, rng)
        for _ in range(_TRIES):
            if (key := (one.question, pixels.tobytes())) not in seen:
                break
            pixels = one.scene.drawn(digits, rng)  # the same digits at the same places in other handwritings
        else:
            raise DataError(f"Expected handwritings for {count} different questions of {family}; ask fewer.")
        seen.add(key)
        options = [f" {option}" for option in one.options]
        rows.append(_row(pixels, family=family, prompt=_prompt(one.question), options=options, answer=one.answer))
    return rows


def png(pixels: np.ndarray) -> bytes:
    """A picture `[rows, columns]` uint8 as a PNG file in shades of grey."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def _prompt(question: str) -> str:
    return f"{SLOT}Question: {question}\nAnswer:"


def _row(pixels: np.ndarray, **columns: Any) -> dict[str, Any]:
    return {**columns, "images": [{"bytes": png(pixels), "path": None}]}
