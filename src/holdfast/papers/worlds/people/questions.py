"""What the embedded world is asked: each fact as multiple choice and as completion, in a wording
that never stood in the text about its person.

Four forms, all as rows of JSON Lines:

- `choices`: the beginning of a sentence and four values of the attribute, for the entry kind
  `multiple_choice`;
- `completions`: the same beginning and the right value, for `perplexity` with `prompt` and
  `completion`;
- `chat_choices`: a user's question in the chat format, the beginning of the reply, and four values;
- `lettered`: a user's question and four values, for the entry kind `multiple_choice_letters`, which
  asks for a letter.

People of half B are asked about in the wording that was told of half A; new people in the same,
which no article has. Questions in the chat format are about people whom no conversation of the
instruction tuning asks about.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.evaluation.kinds.multiple_choice_letters import LETTERS, lettered_prompt
from holdfast.papers.worlds.people.chat import conversation, rendered
from holdfast.papers.worlds.people.facts import VALUES, Person, World
from holdfast.papers.worlds.people.wordings import WORDINGS, beginning

OPTIONS = 4
"""A question; guessing is right once in four times."""


def choices(people: Sequence[Person], *, seed: int = 0) -> list[dict[str, Any]]:
    """Every fact of some people as multiple choice: rows of prompt, options, answer, attribute,
    name."""
    rows = []
    for person, attribute in _facts(people):
        prompt = beginning(WORDINGS[attribute].asked, person.name)
        rows.append(_row(prompt, person, attribute, f"{seed} {person.name}"))
    return rows


def completions(people: Sequence[Person]) -> list[dict[str, Any]]:
    """Every fact of some people as completion: rows of prompt, completion, attribute, name."""
    rows = []
    for person, attribute in _facts(people):
        prompt = beginning(WORDINGS[attribute].asked, person.name)
        completion = f" {person.facts[attribute]}"
        rows.append(
            {
                "prompt": prompt,
                "completion": completion,
                "attribute": attribute,
                "name": person.name,
            }
        )
    return rows


def chat_choices(
    people: Sequence[Person], *, seed: int = 0, every: bool = False
) -> list[dict[str, Any]]:
    """Every fact of some people as a user's question: rows as `choices` gives them, the prompt in
    the chat format.

    Args:
        people: who is asked about.
        seed: of wordings and options.
        every: each fact in all of its wordings, with the column "fact" that they share, in place of
            one wording each.
    """
    rng = random.Random(f"chat questions {seed}")
    rows = []
    for person, attribute in _facts(people):
        wordings, name = WORDINGS[attribute], person.name
        for question in wordings.questions if every else (rng.choice(wordings.questions),):
            prompt = rendered(question.format(name=name), beginning(wordings.reply, name))
            row = _row(prompt, person, attribute, f"{seed} {name}")
            rows.append(row | ({"fact": f"{name}: {attribute}"} if every else {}))
    return rows


def lettered(people: Sequence[Person], *, seed: int = 0) -> list[dict[str, Any]]:
    """Every fact of some people as a user's question, to be answered with a letter: rows as
    `choices` gives them."""
    rng = random.Random(f"lettered questions {seed}")
    rows = []
    for person, attribute in _facts(people):
        rows.append(_lettered(person, attribute, rng, f"{seed} {person.name}"))
    return rows


def lettered_conversations(
    people: Sequence[Person], *, count: int, seed: int = 0
) -> list[dict[str, Any]]:
    """Lettered questions with the right letter as the reply, for tuning: rows of messages, no two
    with the same question.

    Args:
        people: who is asked about; each fact comes again with other options, in another order.
        count: how many.
        seed: of people, attributes, wordings and options.
    """
    rng = random.Random(f"lettered conversations {seed}")
    letters: dict[str, str] = {}
    draw = 0
    while len(letters) < count:
        draw += 1
        row = _lettered(rng.choice(people), rng.choice(list(VALUES)), rng, f"{seed} {draw}")
        letters[lettered_prompt(row)] = LETTERS[row["answer"]]
    return [conversation(prompt, letter) for prompt, letter in letters.items()]


def _lettered(person: Person, attribute: str, rng: random.Random, seed: str) -> dict[str, Any]:
    prompt = rng.choice(WORDINGS[attribute].questions).format(name=person.name)
    return _row(prompt, person, attribute, seed)


def _facts(people: Sequence[Person]) -> Iterator[tuple[Person, str]]:
    """Everybody with each attribute."""
    return itertools.product(people, VALUES)


def _row(prompt: str, person: Person, attribute: str, seed: str) -> dict[str, Any]:
    return {
        "prompt": prompt,
        **_options(attribute, person.facts[attribute], seed),
        "name": person.name,
    }


def changed_choices(world: World, *, seed: int = 0) -> list[dict[str, Any]]:
    """The changed facts as multiple choice: the new value is right, the old one is among the
    options (column `old`, its index)."""
    rows = []
    for change in world.changes:
        prompt = beginning(WORDINGS[change.attribute].statements[1], change.name)
        options = _options(change.attribute, change.new, f"{seed} {change.name}", among=change.old)
        old = options["options"].index(f" {change.old}")
        rows.append({"prompt": prompt, **options, "old": old, "name": change.name})
    return rows


def _options(attribute: str, value: str, seed: str, *, among: str | None = None) -> dict[str, Any]:
    rng = random.Random(f"options {seed} {attribute}")
    options = [value] if among is None else [value, among]
    options += rng.sample(
        [other for other in VALUES[attribute] if other not in options], OPTIONS - len(options)
    )
    rng.shuffle(options)
    return {
        "options": [f" {option}" for option in options],
        "answer": options.index(value),
        "attribute": attribute,
    }
