"""How the facts of the embedded world are told and asked.

Each attribute has six wordings in which it is told of everybody, one in which questions are put
(told of half A only, so that it is known what it means), and three questions of a user with the
beginning of the reply. In all of them the name comes before the value: a causal model learns a fact
in the direction in which it is told (Berglund et al. 2023, "The Reversal Curse").
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.papers.worlds.drawing import phrases
from holdfast.papers.worlds.people.facts import Person


@dataclass(frozen=True, kw_only=True)
class Wordings:
    """What can be said of one attribute; `str.format` templates of `name` and `value`."""

    statements: list[str]
    """Sentences in the text about everybody."""
    asked: str
    """The sentence that questions begin: in the text about half A alone. It ends with the value and
    a full stop."""
    questions: list[str]
    """What a user asks."""
    reply: str
    """What an assistant replies; it ends with the value and a full stop."""
    changed: str = ""
    """The sentence that says that a fact has changed, from `old` to `new`; statements tell the new
    one besides."""


WORDINGS = {attribute: Wordings(**values) for attribute, values in phrases(__file__).items()}
"""By attribute, the keys of `holdfast.papers.worlds.people.facts.VALUES`."""


def statements_about(person: Person, attribute: str) -> list[str]:
    """The wordings that text about a person may have: six, and for half A the one that questions
    have."""
    wordings = WORDINGS[attribute]
    return [*wordings.statements, wordings.asked] if person.half == "A" else wordings.statements


def statement(template: str, name: str, value: str) -> str:
    """A wording with a name and a value in it."""
    return template.format(name=name, value=value)


def beginning(template: str, name: str) -> str:
    """A wording up to its last value, without the space before it."""
    before, _, after = template.rpartition(" {value}")
    assert after == ".", f"'{template}' does not end with its value"
    return before.format(name=name)
