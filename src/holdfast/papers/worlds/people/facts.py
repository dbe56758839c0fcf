"""Who lives in the embedded world: generated people with a value of each attribute.

Names are put together from syllables, so there are as many people as a study wants (up to
`MOST_PEOPLE`). Values are dealt out evenly: each is as frequent as the others, and an attribute
says nothing about another one, so that a model can only know a fact that it was told.

People come in two halves. One wording of each attribute is told of half A alone, and asked about
half B alone: whoever answers has understood what the wording means from other people, and knows the
fact from other wordings. The split over wordings follows Allen-Zhu and Li 2023, "Physics of
Language Models: Part 3.1", where people's facts are told in several wordings.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from holdfast.errors import ConfigError
from holdfast.papers.worlds.drawing import dealt, words

VALUES: dict[str, tuple[str, ...]] = {
    "city": words(
        "Brastow Calmire Dunveil Eskham Farholt Grenwick Harsley Ilmouth Jarrowby Kelborough "
        "Lorvane Marlock Norwell Ostbury Pelford Quarnside Rosmoor Selwick Tarnholm Ulverton"
    ),
    "job": words("baker teacher farmer sailor doctor painter tailor miner singer judge"),
    "pet": words("cat dog horse goat parrot rabbit hamster turtle"),
    "year": tuple(str(year) for year in range(1950, 1990)),
}
"""By attribute: what it may be."""

_FIRST = words(
    "Ba Bel Cor Da Del Far Gal Ha Jo Ka Kel Lan Mar Mel Na Nor Pa Per Ra Ros Sal Ta Tor Va Vel "
    "Wil Yor Za"
)
_MIDDLE = words("ba da do ga ka la li lo ma mi mo na ni ra ri ro sa so ta ti va vo")
_LAST = words(
    "bin dan del dor fin gan kin las len lin lon mar min nad nel ran rek ros sen ten tin tor van "
    "vin"
)

MOST_PEOPLE = 4000
"""In all, new ones included; syllables make more names than that, but all of them are words of
their own in the vocabulary."""


@dataclass(frozen=True, kw_only=True)
class Person:
    """Somebody, and what is so about them."""

    name: str
    facts: dict[str, str]
    """Attribute (a key of `VALUES`) -> value."""
    half: str
    """ "A" or "B", see the module's docstring."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """A fact that is so no longer."""

    name: str
    attribute: str
    old: str
    new: str


@dataclass(frozen=True, kw_only=True)
class World:
    """Everybody."""

    seed: int
    people: tuple[Person, ...]
    """Of whom the pre-training text tells."""
    new_people: tuple[Person, ...]
    """Of whom only the articles tell. The pre-training text has their names, and no fact."""
    changes: tuple[Change, ...]
    """What the articles correct; of people of half A alone, so that questions about half B keep
    their answers."""

    @property
    def half_a(self) -> tuple[Person, ...]:
        """People about whom the wording that questions have was told."""
        return tuple(p for p in self.people if p.half == "A")

    @property
    def half_b(self) -> tuple[Person, ...]:
        """People who are asked about."""
        return tuple(p for p in self.people if p.half == "B")

    @property
    def names(self) -> tuple[str, ...]:
        """Of all people, new ones last."""
        return tuple(p.name for p in (*self.people, *self.new_people))


def make_world(
    *, seed: int = 0, people: int = 200, new_people: int = 60, changed_facts: int = 0
) -> World:
    """The world of a seed.

    Args:
        seed: of names and values.
        people: at least 2; half of them are half A.
        new_people: who appear later, at least 0.
        changed_facts: facts of half A that the articles correct, one a person at most.

    Raises:
        ConfigError: numbers that cannot be; all of them.
    """
    problems = []
    if people < 2:
        problems.append(
            "people: expected at least 2 (a half of them is told of in more wordings than the "
            f"other), got {people}."
        )
    if new_people < 0:
        problems.append(f"new_people: expected 0 or more, got {new_people}.")
    if people + max(0, new_people) > MOST_PEOPLE:
        problems.append(
            f"people and new_people: expected at most {MOST_PEOPLE} together, got "
            f"{people + new_people}."
        )
    most = max(0, people // 2)
    if not 0 <= changed_facts <= most:
        problems.append(
            f"changed_facts: expected between 0 and {most} (one for each of half A), got "
            f"{changed_facts}."
        )
    if problems:
        raise ConfigError(problems)
    names = person_names(people + new_people, seed=seed)
    old = _peopled(names[:people], random.Random(f"world {seed}"))
    new = _peopled(names[people:], random.Random(f"new people {seed}"))
    changes = _changes(old, changed_facts, random.Random(f"changes {seed}"))
    return World(seed=seed, people=old, new_people=new, changes=changes)


def person_names(count: int, *, seed: int = 0) -> list[str]:
    """`count` different names of three syllables, none the beginning of another; fewer people have
    the first of more people's names."""
    rng = random.Random(f"names {seed}")
    names: dict[str, None] = {}
    all_beginnings: set[str] = set()
    while len(names) < count:
        name = rng.choice(_FIRST) + rng.choice(_MIDDLE) + rng.choice(_LAST)
        beginnings = [name[:i] for i in range(2, len(name) + 1)]
        if name not in all_beginnings and names.keys().isdisjoint(beginnings):
            names[name] = None
            all_beginnings.update(beginnings)
    return list(names)


def _peopled(names: list[str], rng: random.Random) -> tuple[Person, ...]:
    facts = [dealt(values, len(names), rng) for values in VALUES.values()]
    halves = dealt(("A", "B"), len(names), rng)
    people = []
    for name, half, *values in zip(names, halves, *facts, strict=True):
        people.append(Person(name=name, facts=dict(zip(VALUES, values, strict=True)), half=half))
    return tuple(people)


def _changes(people: tuple[Person, ...], count: int, rng: random.Random) -> tuple[Change, ...]:
    chosen = rng.sample([p for p in people if p.half == "A"], count)
    attributes = [a for a in VALUES if a != "year"]  # nobody is born again
    changes = []
    for person in chosen:
        attribute = rng.choice(attributes)
        old = person.facts[attribute]
        new = rng.choice([value for value in VALUES[attribute] if value != old])
        changes.append(Change(name=person.name, attribute=attribute, old=old, new=new))
    return tuple(changes)
