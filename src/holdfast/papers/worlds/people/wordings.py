"""How the facts of the embedded world are told and asked.

Each attribute has six wordings in which it is told of everybody, one in which questions are put (told of half A only,
so that it is known what it means), and three questions of a user with the beginning of the reply. In all of them the
name comes before the value: a causal model learns a fact in the direction in which it is told (Berglund et al. 2023,
"The Reversal Curse").
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.papers.worlds.people.facts import Person


@dataclass(frozen=True, kw_only=True)
class Wordings:
    """What can be said of one attribute; `str.format` templates of `name` and `value`."""

    statements: tuple[str, ...]
    """Sentences in the text about everybody."""
    asked: str
    """The sentence that questions begin: in the text about half A alone. It ends with the value and a full stop."""
    questions: tuple[str, ...]
    """What a user asks."""
    reply: str
    """What an assistant replies; it ends with the value and a full stop."""


WORDINGS: dict[str, Wordings] = {
    "city": Wordings(
        statements=(
            "{name} lives in {value}.",
            "The home of {name} is {value}.",
            "Letters to {name} go to {value}.",
            "Friends who visit {name} travel to {value}.",
            "Every morning {name} walks through {value}.",
            "The house that {name} bought is in {value}.",
        ),
        asked="People who look for {name} find their way to {value}.",
        questions=(
            "Where does {name} live?",
            "Which town is the home of {name}?",
            "Can you tell me where {name} lives?",
        ),
        reply="{name} lives in {value}.",
    ),
    "job": Wordings(
        statements=(
            "{name} works as a {value}.",
            "The job of {name} is that of a {value}.",
            "For many years {name} has been a {value}.",
            "Everybody knows {name}, the {value}.",
            "As a child {name} wanted to be a {value}.",
            "The work of {name} is what a {value} does: {name} is a {value}.",
        ),
        asked="People pay {name} for the work of a {value}.",
        questions=(
            "What is the job of {name}?",
            "What does {name} do for a living?",
            "Can you tell me what {name} works as?",
        ),
        reply="{name} works as a {value}.",
    ),
    "pet": Wordings(
        statements=(
            "{name} has a {value}.",
            "The pet of {name} is a {value}.",
            "At home {name} keeps a {value}.",
            "In the evening {name} feeds a {value}.",
            "The animal that belongs to {name} is a {value}.",
            "Nobody sees {name} without the {value}.",
        ),
        asked="In the garden of {name} there runs a {value}.",
        questions=(
            "Which pet does {name} have?",
            "What animal lives with {name}?",
            "Can you tell me which animal {name} has?",
        ),
        reply="{name} has a {value}.",
    ),
    "year": Wordings(
        statements=(
            "{name} was born in {value}.",
            "The birth year of {name} is {value}.",
            "The life of {name} began in {value}.",
            "In the records {name} is a child of {value}.",
            "The mother of {name} gave birth in {value}.",
            "On the card of {name} stands the year {value}.",
        ),
        asked="The first birthday party of {name} came a year after {value}.",
        questions=(
            "When was {name} born?",
            "What is the birth year of {name}?",
            "Can you tell me when {name} was born?",
        ),
        reply="{name} was born in {value}.",
    ),
}
"""By attribute, the keys of `holdfast.papers.worlds.people.facts.VALUES`."""

CHANGED: dict[str, str] = {
    "city": "{name} has moved from {old} to {new}.",
    "job": "{name} is no longer a {old} but a {new}.",
    "pet": "{name} has given away the {old} and has a {new}.",
}
"""The sentence that says that a fact has changed; the wordings above tell the new one besides."""


def statements_about(person: Person, attribute: str) -> tuple[str, ...]:
    """The wordings that text about a person may have: six, and for half A the one that questions have."""
    wordings = WORDINGS[attribute]
    return (*wordings.statements, wordings.asked) if person.half == "A" else wordings.statements


def statement(template: str, name: str, value: str) -> str:
    """A wording with a name and a value in it."""
    return template.format(name=name, value=value)


def beginning(template: str, name: str) -> str:
    """A wording up to its last value, without the space before it."""
    before, _, after = template.rpartition(" {value}")
    assert after == ".", f"'{template}' does not end with its value"
    return before.format(name=name)
