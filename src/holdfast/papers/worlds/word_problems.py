"""Arithmetic word problems with worked solutions, and textbook-like articles of them: a domain made
by rule where no mathematics data is to be had.

A problem is one step: two numbers, one of four operations, told as a little story in one of several
wordings. Its solution names the operation, writes the equation and says the answer in a sentence:

    Mia has 7 pears and buys another 5. How many pears are there in all?
    We add. 7 + 5 = 12. Mia has 12 pears now.

An article explains an operation and works several problems, as the synthetic textbooks do that
"Memory Retaining Finetuning" (section 3.2) tunes on. Everything is drawn from one seed: equal seeds
give equal texts on every machine.

What it does not do: real mathematics. The wordings are few, so held-out problems differ from the
others in names, things and numbers alone.
"""

from __future__ import annotations

import functools
import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.papers.worlds.drawing import phrases, words
from holdfast.papers.worlds.people.chat import conversation

SIGNS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}
"""Of each operation that a problem may ask for, as solutions name it: "We add."."""
OPERATIONS = tuple(SIGNS)
HELD_OUT = 8
"""One question in so many is not trained on."""
KNOWN_PROBLEMS, KNOWN_SEED = 9600, 10_000
"""Problems that a base reads, and what is added to the seed of their drawing."""


_PHRASES = phrases(__file__)
_NAMES, _THINGS, _HOLDERS = (words(_PHRASES[key]) for key in ("names", "things", "holders"))


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One word problem."""

    question: str
    solution: str
    """From the operation to the sentence with the answer."""
    operation: str
    """One of `OPERATIONS`, or several with spaces in between."""
    answer: int

    @property
    def row(self) -> dict[str, str]:
        """In GSM8K's layout: the worked solution, and the answer behind "####"."""
        return {"question": self.question, "answer": f"{self.solution} #### {self.answer}"}

    @property
    def conversation(self) -> dict[str, Any]:
        """As `holdfast train` reads it."""
        return conversation(f"Problem: {self.question}", self.row["answer"])


def word_problems(
    count: int, *, steps: int = 1, held_out: bool | None = None, seed: int = 0
) -> list[Problem]:
    """`count` problems, all with different questions.

    Of one step, each is of a random operation. Of several, each takes as many operations, each of
    them once:

        Mia has 7 pears. Mia buys another 5. Then 4 are lost. How many pears are there in the end?
        We add. 7 + 5 = 12. We subtract. 12 - 4 = 8. Mia ends with 8 pears.

    Args:
        count: at least 0.
        steps: operations, 1 to 3.
        held_out: False: only to train on. True: only to ask, not to train on. A question's hash
            decides which of the two it is for. None: both.
        seed: of the drawing; the first problems of a longer list are those of a shorter one.
    """
    return list(_word_problems(count, steps, held_out, seed))


@functools.lru_cache(maxsize=16)
def _word_problems(count: int, steps: int, held_out: bool | None, seed: int) -> tuple[Problem, ...]:
    """Kept, since a base's text and every setting beside it draw the same ones, a second of work
    each time."""
    if steps == 1:
        rng = random.Random(f"word problems {seed}")
        return _different(count, held_out, lambda: _problem(rng.choice(OPERATIONS), rng))
    rng = random.Random(f"problems of {({2: 'two', 3: 'three'})[steps]} steps {seed}")
    return _different(count, held_out, lambda: _longer(steps, rng))


def _different(
    count: int, held_out: bool | None, draw: Callable[[], Problem]
) -> tuple[Problem, ...]:
    problems: dict[str, Problem] = {}
    while len(problems) < count:
        problem = draw()
        if held_out in (None, zlib.crc32(problem.question.encode()) % HELD_OUT == 0):
            problems.setdefault(problem.question, problem)
    return tuple(problems.values())


def easy_problems(count: int, *, held_out: bool, seed: int = 0) -> list[Problem]:
    """`count` problems for conversations, or others to ask: sums and products of two digits, which
    a small model can copy out of the question and knows by heart. Arguments as of
    `word_problems`."""
    rng = random.Random(f"easy problems {seed}")
    return list(
        _different(count, held_out, lambda: _problem(rng.choice(("add", "multiply")), rng, most=9))
    )


def articles(problems: list[Problem], *, seed: int = 0, worked: int = 4) -> Iterator[str]:
    """Textbook-like articles that work every problem once, in order.

    Args:
        problems: what is worked.
        seed: of the explanations that are chosen.
        worked: problems an article, at least 1.
    """
    rng = random.Random(f"articles {seed}")
    for begin in range(0, len(problems), worked):
        group = problems[begin : begin + worked]
        operations = " ".join(problem.operation for problem in group).split()
        explanations = [
            rng.choice(_PHRASES["explanations"][operation])
            for operation in dict.fromkeys(operations)
        ]
        paragraphs = [" ".join(rng.sample(explanations, min(2, len(explanations))))]
        paragraphs += [f"{stated(problem)}{problem.solution}" for problem in group]
        yield "\n\n".join(paragraphs)


def stated(problem: Problem) -> str:
    """A problem up to where its solution begins, as articles write it."""
    return f"Problem: {problem.question}\n"


def _longer(steps: int, rng: random.Random) -> Problem:
    n, m = rng.sample(_NAMES, 2)
    names = {"n": n, "m": m, "t": rng.choice(_THINGS)}
    amount = start = rng.randint(4, 30)
    events, worked = [], []
    operations = rng.sample(tuple(_PHRASES["events"]), steps)
    for operation in operations:
        largest = {"add": 30, "subtract": max(2, amount - 1), "multiply": 4}
        b = rng.randint(2, largest[operation])
        result = {"add": amount + b, "subtract": amount - b, "multiply": amount * b}[operation]
        events.append(rng.choice(_PHRASES["events"][operation]).format(b=b, **names))
        worked.append(f"We {operation}. {amount} {SIGNS[operation]} {b} = {result}.")
        amount = result
    first = rng.choice(_PHRASES["beginnings"]).format(a=start, **names)
    end = rng.choice(_PHRASES["ends"]).format(c=amount, **names)
    return Problem(
        question=" ".join([first, *events, f"How many {names['t']} are there in the end?"]),
        solution=" ".join([*worked, end]),
        operation=" ".join(operations),
        answer=amount,
    )


def known_articles(*, seed: int = 0) -> Iterator[str]:
    """Articles of the problems that a base reads which is to know some: none of those that are
    asked."""
    return articles(
        word_problems(KNOWN_PROBLEMS, held_out=False, seed=seed + KNOWN_SEED), seed=seed
    )


def problems_task(data: Path) -> str:
    """A task of lm-evaluation-harness that asks problems (rows of `Problem.row`) and judges replies
    as its `gsm8k` does, as YAML: strict takes the number behind "####", flexible the last number of
    the reply."""
    import yaml

    task = {**_PHRASES["task"], "dataset_kwargs": {"data_files": {"test": str(data)}}}
    return yaml.safe_dump(task, sort_keys=False)


def _problem(operation: str, rng: random.Random, *, most: int | None = None) -> Problem:
    story = rng.choice(_PHRASES["stories"][operation])
    n, m = rng.sample(_NAMES, 2)
    is_product = operation in ("multiply", "divide")
    largest = (most, most) if most is not None else (9, 12) if is_product else (40, 40)
    a, b = rng.randint(2, largest[0]), rng.randint(2, largest[1])
    c = a * b if is_product else a + b
    names = {
        "n": n,
        "m": m,
        "t": rng.choice(_THINGS),
        "h": rng.choice(_HOLDERS),
        "a": a,
        "b": b,
        "c": c,
    }
    operands = {"add": (a, b, c), "subtract": (c, b, a), "multiply": (a, b, c), "divide": (c, a, b)}
    left, right, answer = operands[operation]
    return Problem(
        question=story["question"].format(**names),
        solution=f"We {operation}. {left} {SIGNS[operation]} {right} = {answer}. {story['answer'].format(**names)}",
        operation=operation,
        answer=answer,
    )
