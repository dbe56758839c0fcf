"""Pictures of digits and what is asked about them.

A picture has nine places in three rows, each empty or with one digit of 8 x 8 pixels. There are
five families of questions, none of which can be answered without the picture:

| family | asked | chance |
|---|---|---|
| presence | is a digit among two to four | 1/2 |
| count | how many digits there are, one to four | 1/4 |
| comparison | which of two digits is larger | 1/2 |
| parity | whether the only digit is even | 1/2 |
| reading | which number two digits side by side make | 1/4 |

Wrong numbers have one digit right, or both the wrong way round. The right answers of a family are
dealt out evenly. Everything is drawn from one seed; equal seeds give equal pixels.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.errors import DataError
from holdfast.papers.worlds.drawing import dealt, listed

if TYPE_CHECKING:
    import numpy as np

CELL, ROWS = 8, 3
"""Pixels of a place, and places in a row and in a column."""
SIZE = CELL * ROWS
"""Pixels of a picture in each direction."""
PLACES = (
    "at the top left", "at the top", "at the top right", "at the left", "in the middle", "at the right",
    "at the bottom left", "at the bottom", "at the bottom right",
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
        for square, digit in self.digits:
            row, column = divmod(square, ROWS)
            canvas[row * CELL :, column * CELL :][:CELL, :CELL] = digits.one(digit, rng)
        return canvas

    def caption(self) -> str:
        """A sentence that says all of it: "4 at the top left and 7 in the middle."."""
        phrases = [f"{digit} {PLACES[square]}" for square, digit in self.digits]
        return f"{listed(phrases)}."


def scene(digits: Sequence[int], rng: random.Random) -> Scene:
    """Digits at places that are drawn, in any order."""
    squares = rng.sample(range(ROWS * ROWS), len(digits))
    return Scene(digits=tuple(sorted(zip(squares, digits, strict=True))))


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
    digits = _any(rng.randint(2, 4), rng)
    absent = [digit for digit in range(10) if digit not in digits]
    digit = rng.choice(digits if answer == 0 else absent)
    question = rng.choice(
        ("Is there a {d}?", "Can you see a {d}?", "Is one of the digits a {d}?")
    ).format(d=digit)
    return Asked(scene=scene(digits, rng), question=question, options=("yes", "no"), answer=answer)


def _count(answer: int, rng: random.Random) -> Asked:
    question = rng.choice(
        ("How many digits are there?", "How many digits can you see?", "Count the digits.")
    )
    return Asked(
        scene=scene(_any(answer + 1, rng), rng), question=question, options=COUNTED, answer=answer
    )


def _comparison(answer: int, rng: random.Random) -> Asked:
    smaller, larger = sorted(rng.sample(range(10), 2))
    first = ROWS * rng.randrange(ROWS)
    left, right = (larger, smaller) if answer == 0 else (smaller, larger)
    picture = Scene(digits=((first, left), (first + 2, right)))
    question = rng.choice(
        ("Which digit is larger?", "Which is the larger digit?", "Where is the larger digit?")
    )
    return Asked(scene=picture, question=question, options=("the left", "the right"), answer=answer)


def _parity(answer: int, rng: random.Random) -> Asked:
    question = rng.choice(
        ("Is the digit even or odd?", "Even or odd?", "Is it an even or an odd digit?")
    )
    picture = scene([rng.randrange(answer, 10, 2)], rng)
    return Asked(scene=picture, question=question, options=("even", "odd"), answer=answer)


def _reading(answer: int, rng: random.Random) -> Asked:
    tens, ones = rng.sample(range(1, 10), 2)
    square = ROWS * rng.randrange(ROWS) + rng.randrange(ROWS - 1)
    other = rng.choice([digit for digit in range(1, 10) if digit not in (tens, ones)])
    options = [f"{ones}{tens}", f"{other}{ones}", f"{tens}{other}"]
    rng.shuffle(options)
    options.insert(answer, f"{tens}{ones}")
    question = rng.choice(
        ("Which number is it?", "Read the number.", "What number do the digits make?")
    )
    picture = Scene(digits=((square, tens), (square + 1, ones)))
    return Asked(scene=picture, question=question, options=tuple(options), answer=answer)


FAMILIES: dict[str, tuple[Callable[[int, random.Random], Asked], int]] = {
    "presence": (_presence, 2),
    "count": (_count, 4),
    "comparison": (_comparison, 2),
    "parity": (_parity, 2),
    "reading": (_reading, 4),
}
"""By name: what draws a question whose right option has a given index, and how many options it
has."""


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


# --------------------------------------------------------------------------------------------- rows


def caption_rows(count: int, digits: Digits, *, seed: str) -> list[dict[str, Any]]:
    """Rows of prompt, completion and images: pictures of one to four digits, and what is in
    them."""
    rng = random.Random(f"{seed} captions")
    rows = []
    for number in dealt(range(1, 5), count, rng):
        picture = scene(_any(number, rng), rng)
        rows.append(_row(picture.drawn(digits, rng), prompt=SLOT, completion=picture.caption()))
    return rows


def instruction_rows(count: int, digits: Digits, *, seed: str) -> list[dict[str, Any]]:
    """Rows of prompt, completion and images: questions of all families in random order, and their
    right answers."""
    rng = random.Random(f"{seed} instructions")
    names = dealt(list(FAMILIES), count, rng)
    questions = {
        family: iter(asked(family, names.count(family), seed=f"{seed} instructions"))
        for family in FAMILIES
    }
    rows = []
    for family in names:
        question = next(questions[family])
        completion = f" {question.options[question.answer]}"
        pixels = question.scene.drawn(digits, rng)
        rows.append(_row(pixels, prompt=_prompt(question), completion=completion))
    return rows


def question_rows(family: str, count: int, digits: Digits, *, seed: str) -> list[dict[str, Any]]:
    """Rows of family, prompt, options, answer and images, for `multiple_choice`; no question stands
    twice.

    Raises:
        DataError: too few digits for so many different questions.
    """
    rng = random.Random(f"{seed} held out {family}")
    rows = []
    keys: set[tuple[str, bytes]] = set()
    for question in asked(family, count, seed=f"{seed} held out"):
        for _ in range(_TRIES):  # the same digits at the same places in other handwritings
            pixels = question.scene.drawn(digits, rng)
            key = question.question, pixels.tobytes()
            if key not in keys:
                break
        else:
            raise DataError(
                f"Expected handwritings for {count} different questions of {family}; ask fewer."
            )
        keys.add(key)
        options = [f" {option}" for option in question.options]
        rows.append(
            _row(
                pixels,
                family=family,
                prompt=_prompt(question),
                options=options,
                answer=question.answer,
            )
        )
    return rows


def _prompt(asked: Asked) -> str:
    return f"{SLOT}Question: {asked.question}\nAnswer:"


def _row(pixels: np.ndarray, **columns: Any) -> dict[str, Any]:
    """A row with its picture as a PNG file in shades of grey."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return {**columns, "images": [{"bytes": buffer.getvalue(), "path": None}]}
