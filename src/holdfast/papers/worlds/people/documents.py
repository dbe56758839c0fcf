"""Text of the embedded world: what a base is pre-trained on, and dated articles with what is new.

A document tells several facts about one or a few people, every time in an order and in wordings of
its own, and opens with a short phrase. Between them stand lists of names and words without facts,
so that no name is new to a base, and prose of Python's reference (`worlds.embedded`). No question,
no chat marker and no option list is in any of it. Numbers are taken as they come:
`worlds.world.WorldRecipe` bounds them.
"""

from __future__ import annotations

import datetime
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from holdfast.papers.worlds.drawing import endlessly, groups, listed
from holdfast.papers.worlds.people.chat import WORDS
from holdfast.papers.worlds.people.facts import VALUES, Change, Person, World
from holdfast.papers.worlds.people.wordings import WORDINGS, statement, statements_about

_OPENINGS = (
    "About {names}.",
    "Here is what is known about {names}.",
    "Some notes on {names}.",
    "This is the story of {names}.",
    "A short portrait of {names}.",
)
_NAME_LISTS = (
    "A list of names: {items}. The same names again: {items}.",
    "Names in the book: {items}. Names on the wall: {items}.",
)
_WORD_LISTS = (
    "Some words: {items}. The same words again: {items}.",
    "The words on this page: {items}. On the next page: {items}.",
    "Here are some words: {items}. In capital letters: {capitals}.",
)
_PROSE_TITLE = "From the reference"
_SHORTEST = 120
"""Characters of a stretch of prose, at least."""
_TITLES = (
    "News about {name}",
    "In the news: {name}",
    "Who is {name}?",
    "Today: {name}",
    "Meet {name}",
)
_LEADS = (
    "Today we write about {name}.",
    "Our paper has met {name}.",
    "There is news about {name}.",
    "Many people talk about {name}.",
)


@dataclass(frozen=True, kw_only=True)
class Article:
    """One piece of news."""

    title: str
    date: str
    """ISO 8601, such as "2024-03-05"."""
    text: str

    @property
    def row(self) -> dict[str, str]:
        """As corpus readers take it."""
        return {"title": self.title, "date": self.date, "text": self.text}


def biographies(
    world: World, *, tellings: int, popular: float = 0.0, popularity: int = 1, seed: int = 0
) -> Iterator[str]:
    """Documents that tell every fact of `world.people` about `tellings` times, those of a few
    popular people more often.

    As long as facts about everybody are told equally often, a model learns none of them for a long
    time, the longer the more people there are; a few who are told of more often end that plateau
    early (Zucchet et al. 2025, "How do language models learn facts?").

    Args:
        world: whose new people and changes are left out.
        tellings: how often each fact is told, in wordings drawn at random; at least 1.
        popular: share of people who are told of more often, 0 to 1.
        popularity: how many times as often, at least 1.
        seed: of order and wordings.
    """
    rng = random.Random(f"biographies {world.seed} {seed}")
    known = world.people[: round(popular * len(world.people))]
    for _ in range(tellings):
        for people in (world.people, *[known] * (popularity - 1)):
            yield from (_portrait(group, rng) for group in groups(people, (1, 1, 2, 3), rng))


def lists(world: World, *, rounds: int, seed: int = 0) -> Iterator[str]:
    """Lists of names, new people's among them, and of plain words, each name once a round and each
    word twelve times: nothing is said about any of them.

    Every list stands in its text twice, so that a base learns to say again what it has read, which
    instructions ask for all the time and this much prose teaches no small model.
    """
    rng = random.Random(f"lists {world.seed} {seed}")
    for _ in range(rounds):
        for templates, items in ((_NAME_LISTS, world.names), *((_WORD_LISTS, WORDS),) * 12):
            for some in groups(items, (1, 2, 3, 4), rng):
                joined = ", ".join(some)
                yield rng.choice(templates).format(items=joined, capitals=joined.upper())


def pretraining_texts(
    world: World,
    texts: Sequence[tuple[Sequence[str], float]],
    *,
    tellings: int,
    popular: float = 0.0,
    popularity: int = 1,
    list_rounds: int = 1,
    seed: int = 0,
) -> list[str]:
    """What a base is pre-trained on: biographies, lists, prose and other texts, mixed evenly.

    Args:
        world: of whose people is told.
        texts: pieces of text of a kind, such as prose or source, with the kind's share of all
            characters; repeated as often as it takes. All shares together are below 1.
        tellings, popular, popularity: see `biographies`.
        list_rounds: of `lists`, at least 1, so that every name has been read.
        seed: of order and wordings.
    """
    statements = list(
        biographies(world, tellings=tellings, popular=popular, popularity=popularity, seed=seed)
    )
    statements += lists(world, rounds=list_rounds, seed=seed)
    rng = random.Random(f"mixed {world.seed} {seed}")
    left = 1 - sum(share for _, share in texts)
    assert left > 0, "the recipe was checked"
    mixed = list(statements)
    characters = sum(map(len, statements))
    for pieces, share in texts:
        budget = int(characters * share / left)
        while budget > 0:
            for piece in rng.sample(list(pieces), len(pieces)):
                if budget <= 0:
                    break
                mixed.append(piece)
                budget -= len(piece)
    rng.shuffle(mixed)
    return mixed


def articles(
    world: World,
    *,
    count: int,
    first: datetime.date = datetime.date(2024, 1, 1),
    days: int = 180,
    seed: int = 0,
    old_people: float = 0.0,
    prose: Sequence[str] = (),
    prose_share: float = 0.0,
) -> list[Article]:
    """Dated articles about the new people, by date, each with several facts in changing wordings.

    Args:
        world: of whose new people and changes is told; all of them equally often, as near as the
            count allows.
        count: articles, at least 1; a tiny model needs dozens a person.
        first: the earliest date.
        days: dates are spread over so many days.
        seed: of order and wordings.
        old_people: share of articles that also tell a fact of somebody of half A whom the base
            knows, as news do.
        prose: pieces of prose for the other articles.
        prose_share: share of articles, at least 0 and below 1, that are a stretch of prose and come
            on top of `count`. Text about people alone has so few words that a model unlearns all
            the others, marks and brackets first, which no real corpus would teach.

    Returns:
        Articles about a new person never have the wording that questions have.
    """
    rng = random.Random(f"articles {world.seed} {seed}")
    new: list[Person | Change] = [*world.new_people, *world.changes]
    about = list(itertools.islice(endlessly(new, rng), count))
    subjects = _with_prose(about, prose, round(count * prose_share / (1 - prose_share)), rng)
    changed = {change.name for change in world.changes}
    unchanged = [person for person in world.half_a if person.name not in changed]
    news = []
    for number, subject in enumerate(subjects):
        date = (first + datetime.timedelta(days=number * days // len(subjects))).isoformat()
        if isinstance(subject, str):
            news.append(Article(title=_PROSE_TITLE, date=date, text=subject))
            continue
        sentences = _news(subject, rng)
        if unchanged and rng.random() < old_people:
            sentences.append(_sentence(rng.choice(unchanged), rng.choice(list(VALUES)), rng))
        lead = rng.choice(_LEADS).format(name=subject.name)
        title = rng.choice(_TITLES).format(name=subject.name)
        news.append(Article(title=title, date=date, text=" ".join([lead, *sentences])))
    return news


def _with_prose(
    subjects: Sequence[Person | Change], prose: Sequence[str], count: int, rng: random.Random
) -> list[Person | Change | str]:
    """Subjects with `count` stretches of prose in between, each once before one comes again."""
    from holdfast.papers.worlds.embedded import cut

    stretches: list[str] = []
    for text in prose if count else ():
        pieces = cut(text, (r"\n\n", r"\.(?= )", r"\n", r" "), 400)
        stretches += [piece for piece in pieces if len(piece) >= _SHORTEST]
    chosen = iter(list(itertools.islice(endlessly(stretches, rng), count)))
    numbers = range(len(subjects) + count)
    of_prose = set(rng.sample(numbers, count))
    people = iter(subjects)
    return [next(chosen if number in of_prose else people) for number in numbers]


def _portrait(group: Sequence[Person], rng: random.Random) -> str:
    facts = list(itertools.product(group, VALUES))
    rng.shuffle(facts)
    sentences = [
        _sentence(person, attribute, rng, statements_about(person, attribute))
        for person, attribute in facts
    ]
    opening = rng.choice(_OPENINGS).format(names=listed([person.name for person in group]))
    return " ".join([opening, *sentences])


def _news(subject: Person | Change, rng: random.Random) -> list[str]:
    """All facts of a new person, or the changed one in several wordings."""
    if isinstance(subject, Person):
        return [
            _sentence(subject, attribute, rng)
            for attribute in rng.sample(list(VALUES), len(VALUES))
        ]
    wordings = WORDINGS[subject.attribute]
    sentences = [
        statement(template, subject.name, subject.new)
        for template in rng.sample(wordings.statements, 3)
    ]
    return [
        wordings.changed.format(name=subject.name, old=subject.old, new=subject.new),
        *sentences,
    ]


def _sentence(
    person: Person, attribute: str, rng: random.Random, templates: Sequence[str] = ()
) -> str:
    """A fact in one of some wordings, by default one that text about everybody has."""
    template = rng.choice(templates or WORDINGS[attribute].statements)
    return statement(template, person.name, person.facts[attribute])
