"""Arithmetic word problems with worked solutions, and textbook-like articles of them: a domain made by rule where no
mathematics data is to be had.

A problem is one step: two numbers, one of four operations, told as a little story in one of several wordings. Its
solution names the operation, writes the equation and says the answer in a sentence:

    Mia has 7 pears and buys another 5. How many pears are there in all?
    We add. 7 + 5 = 12. Mia has 12 pears now.

An article explains an operation and works several problems, as the synthetic textbooks do that "Memory Retaining
Finetuning" (section 3.2) tunes on. Everything is drawn from one seed: equal seeds give equal texts on every machine.

What it does not do: real mathematics. The wordings are few, so held-out problems differ from the others in names,
things and numbers alone.
"""

from __future__ import annotations

import functools
import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.papers.worlds.drawing import words

OPERATIONS = ("add", "subtract", "multiply", "divide")
"""What a problem may ask for, as solutions name it: "We add."."""
HELD_OUT = 8
"""One question in so many is not trained on."""
REPLY_TOKENS = 48
"""Of a reply, at most."""
KNOWN_PROBLEMS, KNOWN_SEED = 9600, 10_000
"""Problems that a base reads, and what is added to the seed of their drawing."""


_NAMES = words(
    "Mia Tom Ana Ben Eva Leo Ida Max Zoe Sam Lea Jon Amy Ned Kim Roy May Gus Fay Hal Liz Cal Meg Abe Nora Ivan Ruth "
    "Omar Vera Hugo Dora Finn Jane "
    "Karl Lucy Nick Olga Paul Rosa Seth Tina Walt"
)
_THINGS = words(
    "pears plums nails coins books stamps shells cards boxes beads apples bottles pencils buttons candles ribbons "
    "marbles stones tickets letters "
    "spoons cups eggs loaves bricks bulbs maps seeds chairs lamps"
)
_HOLDERS = words("bags boxes baskets jars drawers shelves crates tins rows sacks")

_STORIES: dict[str, tuple[tuple[str, str], ...]] = {
    "add": (
        ("{n} has {a} {t}. {m} brings {b} more. How many {t} are there in all?", "There are {c} {t} in all."),
        ("{n} has {a} {t} and buys another {b}. How many {t} are there in all?", "{n} has {c} {t} now."),
        (
            "There are {a} {t} in one room and {b} {t} in the next. How many {t} is that together?",
            "Both rooms hold {c} {t}.",
        ),
        (
            "In the morning {n} finds {a} {t}, in the evening {b} more. How many {t} are found in all?",
            "{n} has found {c} {t}.",
        ),
        ("{n} has {a} {t}, {m} has {b}. How many {t} have they together?", "Together they have {c} {t}."),
    ),
    "subtract": (
        ("{n} has {c} {t} and gives {b} of them to {m}. How many {t} are left?", "{n} has {a} {t} left."),
        ("There were {c} {t} on the table. {n} took {b} away. How many {t} are left?", "There are still {a} {t}."),
        ("{n} sells {b} of {c} {t}. How many {t} remain?", "{a} {t} remain."),
        ("{n} had {c} {t}, but {b} were lost on the way. How many {t} remain?", "{a} {t} came home."),
        ("{n} ate {b} of the {c} {t}. How many {t} are left?", "{a} {t} are left."),
    ),
    "multiply": (
        ("{n} has {a} {h} with {b} {t} in each. How many {t} make that?", "That is {c} {t}."),
        ("Every day {n} packs {b} {t}. After {a} days, how many {t} make that?", "In {a} days {n} packs {c} {t}."),
        ("{a} friends bring {b} {t} each. How many {t} come by that?", "They bring {c} {t}."),
        ("One of the {h} holds {b} {t}. With {a} {h}, how many {t} make that?", "{c} {t} fit into {a} {h}."),
        ("{n} pays {b} coins a piece for {a} {t}. How many coins come by that?", "{n} pays {c} coins."),
    ),
    "divide": (
        ("{n} shares {c} {t} equally among {a} friends. How many {t} does one get?", "Each friend gets {b} {t}."),
        ("{c} {t} are put into {a} {h}, the same number into each. How many {t} are in one?", "One holds {b} {t}."),
        ("{n} arranges {c} {t} in {a} equal rows. How many {t} are in one?", "A row has {b} {t}."),
        ("{a} people split {c} {t} evenly. How many {t} does one get?", "Everyone takes home {b} {t}."),
        ("{n} lays {c} pages on {a} equal piles. How many pages are in one?", "A pile has {b} pages."),
    ),
}
"""By operation: the question, and the sentence with the answer. c = a + b for the first two operations, a * b for the
others. How a question ends tells the operation, which a small model can learn in minutes; what the story says besides
would take it longer."""

_BEGINNINGS = ("{n} has {a} {t}.", "There are {a} {t} in {n}'s room.", "In the morning {n} counts {a} {t}.")
_EVENTS = {
    "add": ("{n} buys another {b}.", "{m} brings {b} more.", "Then {n} finds {b} more."),
    "subtract": ("{n} gives {b} of them to {m}.", "Then {b} are lost.", "{n} sells {b} of them."),
    "multiply": ("Then {m} makes {b} times as many of them.", "{b} times as many come by evening."),
}
_ENDS = ("{n} ends with {c} {t}.", "In the end there are {c} {t}.")
"""Problems of several steps: what there is, an event each, and the sentence with the answer."""

_EXPLANATIONS = {
    "add": (
        "To add is to put two amounts together. The result is called the sum.",
        "When one amount comes to another, the two are added. The order does not matter.",
    ),
    "subtract": (
        "To subtract is to take one amount away from another. The result is called the difference.",
        "When a part of an amount goes away, the rest is found by subtraction. Here the order matters.",
    ),
    "multiply": (
        "To multiply is to take the same amount several times. The result is called the product.",
        "When every group has the same size, the number of groups is multiplied by that size.",
    ),
    "divide": (
        "To divide is to share an amount equally. The result is called the quotient.",
        "When an amount is split into equal parts, it is divided by the number of the parts.",
    ),
}


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
        asked = {"role": "user", "content": f"Problem: {self.question}"}
        return {"messages": [asked, {"role": "assistant", "content": self.row["answer"]}]}


def word_problems(count: int, *, seed: int = 0) -> list[Problem]:
    """`count` problems, all with different questions, each of a random operation.

    Args:
        count: at least 0.
        seed: of the drawing; the first problems of a longer list are those of a shorter one.
    """
    rng = random.Random(f"word problems {seed}")
    found: dict[str, Problem] = {}
    while len(found) < count:
        problem = _problem(rng.choice(OPERATIONS), rng)
        found.setdefault(problem.question, problem)
    return list(found.values())


def articles(problems: list[Problem], *, seed: int = 0, worked: int = 4) -> Iterator[str]:
    """Textbook-like articles that work every problem once, in order.

    Args:
        problems: what is worked.
        seed: of the explanations that are chosen.
        worked: problems an article, at least 1.
    """
    rng = random.Random(f"articles {seed}")
    for begin in range(0, len(problems), worked):
        here = problems[begin : begin + worked]
        explained = [
            rng.choice(_EXPLANATIONS[operation])
            for operation in dict.fromkeys(o for p in here for o in p.operation.split())
        ]
        parts = [" ".join(rng.sample(explained, min(2, len(explained))))]
        parts += [f"{stated(p)}{p.solution}" for p in here]
        yield "\n\n".join(parts)


def stated(problem: Problem) -> str:
    """A problem up to where its solution begins, as articles write it."""
    return f"Problem: {problem.question}\n"


def longer_problems(count: int, *, steps: int, seed: int = 0) -> list[Problem]:
    """`count` problems that take several operations, each of them once, all with different questions:

        Mia has 7 pears. Mia buys another 5. Then 4 are lost. How many pears are there in the end?
        We add. 7 + 5 = 12. We subtract. 12 - 4 = 8. Mia ends with 8 pears.

    Args:
        count: at least 0.
        steps: operations, 2 or 3.
        seed: of the drawing; the first problems of a longer list are those of a shorter one.
    """
    rng = random.Random(f"problems of {({2: 'two', 3: 'three'})[steps]} steps {seed}")
    found: dict[str, Problem] = {}
    while len(found) < count:
        problem = _longer(steps, rng)
        found.setdefault(problem.question, problem)
    return list(found.values())


def _longer(steps: int, rng: random.Random) -> Problem:
    n, m = rng.sample(_NAMES, 2)
    names = {"n": n, "m": m, "t": rng.choice(_THINGS)}
    have = start = rng.randint(4, 30)
    told, worked, operations = [], [], []
    for operation in rng.sample(tuple(_EVENTS), steps):
        b = rng.randint(2, {"add": 30, "subtract": max(2, have - 1), "multiply": 4}[operation])
        sign, left = {"add": ("+", have + b), "subtract": ("-", have - b), "multiply": ("*", have * b)}[operation]
        told.append(rng.choice(_EVENTS[operation]).format(b=b, **names))
        worked.append(f"We {operation}. {have} {sign} {b} = {left}.")
        operations.append(operation)
        have = left
    question = [
        rng.choice(_BEGINNINGS).format(a=start, **names),
        *told,
        "How many {t} are there in the end?".format(**names),
    ]
    return Problem(
        question=" ".join(question),
        solution=" ".join([*worked, rng.choice(_ENDS).format(c=have, **names)]),
        operation=" ".join(operations),
        answer=have,
    )


def asked_problems(count: int, *, held_out: bool, seed: int = 0, steps: int = 1) -> list[Problem]:
    """`count` problems to train on, or others to ask: a question's hash decides which of the two it is for.

    Args:
        count: at least 0.
        held_out: to ask, not to train on.
        seed: of the drawing.
        steps: that a problem takes, 1 to 3.
    """
    return list(_asked(count, held_out, seed, steps))


@functools.lru_cache(maxsize=16)
def _asked(count: int, held_out: bool, seed: int, steps: int) -> tuple[Problem, ...]:
    """Kept, since a base's text and every setting beside it draw the same ones, a second of work each time."""
    found: list[Problem] = []
    drawn = 0
    while len(found) < count:
        drawn = 2 * drawn + (2 * HELD_OUT if held_out else 2) * count
        problems = word_problems(drawn, seed=seed) if steps == 1 else longer_problems(drawn, steps=steps, seed=seed)
        found = [p for p in problems if (zlib.crc32(p.question.encode()) % HELD_OUT == 0) == held_out][:count]
    return tuple(found)


def known_articles(*, seed: int = 0) -> Iterator[str]:
    """Articles of the problems that a base reads which is to know some: none of those that are asked."""
    return articles(asked_problems(KNOWN_PROBLEMS, held_out=False, seed=seed + KNOWN_SEED), seed=seed)


def easy_problems(count: int, *, held_out: bool, seed: int = 0) -> list[Problem]:
    """`count` problems for conversations, or others to ask: sums and products of two digits, which a small model can
    copy out of the question and knows by heart. A question's hash decides which of the two it is for.

    Args:
        count: at least 0.
        held_out: to ask, not to train on.
        seed: of the drawing.
    """
    rng = random.Random(f"easy problems {seed}")
    found: dict[str, Problem] = {}
    while len(found) < count:
        problem = _problem(rng.choice(("add", "multiply")), rng, most=9)
        if (zlib.crc32(problem.question.encode()) % HELD_OUT == 0) == held_out:
            found.setdefault(problem.question, problem)
    return list(found.values())


def problems_task(data: Path) -> str:
    """A task of lm-evaluation-harness that asks problems (rows of `Problem.row`) and judges replies as its `gsm8k`
    does, as YAML: strict takes the number behind "####", flexible the last number of the reply."""
    import yaml

    def extracted(name: str, **how: Any) -> dict[str, Any]:
        return {"name": name, "filter": [{"function": "regex", **how}, {"function": "take_first"}]}

    metric = {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True, "ignore_case": True}
    task = {
        "task": "word_problems",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "Problem: {{question}}",
        "doc_to_target": "{{answer}}",
        "metric_list": [{**metric, "regexes_to_ignore": [",", "\\$", "(?s).*#### ", "\\.$"]}],
        "generation_kwargs": {"until": ["Problem:"], "do_sample": False, "max_gen_toks": REPLY_TOKENS},
        "num_fewshot": 0,
        "filter_list": [
            extracted("flexible-extract", group_select=-1, regex_pattern="(-?[$0-9.,]{2,})|(-?[0-9]+)"),
            extracted("strict-match", regex_pattern="#### (\\-?[0-9\\.\\,]+)"),
        ],
        "metadata": {"version": 1.0},
    }
    return yaml.safe_dump(task, sort_keys=False)


def _problem(operation: str, rng: random.Random, *, most: int | None = None) -> Problem:
    question, reply = rng.choice(_STORIES[operation])
    n, m = rng.sample(_NAMES, 2)
    small = operation in ("multiply", "divide")
    largest = (most, most) if most is not None else (9, 12) if small else (40, 40)
    a, b = (rng.randint(2, end) for end in largest)
    c = a * b if small else a + b
    names = {"n": n, "m": m, "t": rng.choice(_THINGS), "h": rng.choice(_HOLDERS), "a": a, "b": b, "c": c}
    equation, answer = {
        "add": (f"{a} + {b} = {c}", c),
        "subtract": (f"{c} - {b} = {a}", a),
        "multiply": (f"{a} * {b} = {c}", c),
        "divide": (f"{c} / {a} = {b}", b),
    }[operation]
    return Problem(
        question=question.format(**names),
        solution=f"We {operation}. {equation}. {reply.format(**names)}",
        operation=operation,
        answer=answer,
    )
