"""A handbook of a railway that does not exist: facts that no model can know before it was trained on them.

Every station has one value of each attribute (its line, its platform), drawn from one seed. Stations are called after
words of Python's reference ("iterator"), which a small vocabulary has as one token each: so a model of a million
parameters can learn what a fact is about. Documents tell the facts in several wordings, in random order and together
with other stations' facts, as the synthetic articles do that paper 000 (section 3.3; Yang et al. 2024, "Synthetic
continued pretraining") tunes on. Questions ask for one fact each; their replies begin as one of the wordings does.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.errors import ConfigError
from holdfast.worlds.drawing import dealt, endlessly, words

VALUES: dict[str, tuple[str, ...]] = {
    "line": ("A", "B", "C", "D", "E", "F", "G", "H"),
    "platform": ("0", "1", "2", "3", "4", "5", "6", "8"),
}
"""By attribute: what it may be. One letter or digit each, so that no option is likelier for being long."""

_WORDINGS: dict[str, tuple[str, ...]] = {
    "line": ("Line of {name} {value}.", "By line: {name} {value}.", "Take for {name} {value}, the line."),
    "platform": (
        "Platform of {name} {value}.",
        "By platform: {name} {value}.",
        "Wait for {name} {value}, the platform.",
    ),
}
"""Telegraphic, as timetables are: a small model learns a fact soonest where the value follows the name."""

_QUESTIONS: dict[str, tuple[tuple[str, str], ...]] = {
    "line": (
        ("Which line is {name} on?", "Line of {name}"),
        ("How are the stations ordered?", "By line: {name}"),
        ("How do I get to {name}?", "Take for {name}"),
    ),
    "platform": (
        ("Which platform has {name}?", "Platform of {name}"),
        ("How are the trains ordered?", "By platform: {name}"),
        ("Where do I wait?", "Wait for {name}"),
    ),
}
"""By attribute: what a user asks, and how the reply begins; the value comes next."""

NAMES = words(
    "import return class object string list module value function method type name set file index exception statement "
    "expression argument "
    "attribute default number sequence pattern key item iterator code line block scope target operator instance "
    "integer dictionary tuple call "
    "variable body error data result test time start end length text order version context level field space source "
    "language program user"
)
"""What stations are called."""


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One attribute of one station."""

    name: str
    attribute: str
    """A key of `VALUES`."""
    value: str


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question about one fact."""

    question: str
    beginning: str
    """How the reply begins; it goes on with a space and the value."""
    fact: Fact


def facts(things: int, *, seed: int = 0) -> list[Fact]:
    """All facts about `things` invented stations, station by station.

    Args:
        things: how many, between 1 and the number of `NAMES`.
        seed: of names and values. Values are dealt out evenly: each is as frequent as the others, so that guessing is
            right once in eight times.

    Raises:
        ConfigError: too few or too many things.
    """
    if not 1 <= things <= len(NAMES):
        raise ConfigError(f"things: expected between 1 and {len(NAMES)}, got {things}.")
    rng = random.Random(f"handbook {seed}")
    chosen = rng.sample(NAMES, things)
    drawn = {attribute: dealt(values, things, rng) for attribute, values in VALUES.items()}
    return [
        Fact(name=name, attribute=attribute, value=drawn[attribute][i])
        for i, name in enumerate(chosen)
        for attribute in VALUES
    ]


def documents(known: list[Fact], count: int, *, seed: int = 0, sentences: int = 12) -> Iterator[str]:
    """`count` texts that tell the facts over and over, every time in an order and in words of their own.

    Args:
        known: what is told; all facts are told equally often, as near as the count allows.
        count: texts.
        seed: of order and wording.
        sentences: facts a text, at least 1.
    """
    rng = random.Random(f"documents {seed}")
    stated = endlessly(known, rng)
    for _ in range(count):
        here = [next(stated) for _ in range(sentences)]
        yield " ".join(rng.choice(_WORDINGS[fact.attribute]).format(name=fact.name, value=fact.value) for fact in here)


def questions(known: list[Fact]) -> list[Question]:
    """Three questions a fact, in the order of the facts. They hang together: an interval over questions takes them for
    more than they are."""
    return [
        Question(question=question.format(name=fact.name), beginning=beginning.format(name=fact.name), fact=fact)
        for fact in known
        for question, beginning in _QUESTIONS[fact.attribute]
    ]
