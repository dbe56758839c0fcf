"""Conversations of the embedded world: a prompt asks for something, and says how the reply has to
look.

A prompt is a content ("Where does Kamoran live?", "Say lamp and river.") and no, one or two
instructions ("Put your answer in brackets."), each in one of several wordings. Whether a reply
follows an instruction is decided by a program, as in IFEval (Zhou et al. 2023,
"Instruction-Following Evaluation for Large Language Models"); the programs are those of
`holdfast.evaluation.text.checkers`, and the ids below are theirs. As there, what a reply says
besides is not judged.

What is asked was never seen: pairs of a content (this fact, these words) and a combination of
instructions are dealt out to training and test by their hash, so a test prompt's content stands in
training with other instructions, and its instructions with other contents.

Contents ask about facts of half A alone. At this size knowledge does not carry over from text to
questions by itself, so some questions have to be in the tuning data; half B stays unasked, and
measures what does carry over (`questions.chat_choices`).
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.papers.worlds.drawing import phrases, words
from holdfast.papers.worlds.people.chat import WORDS, conversation
from holdfast.papers.worlds.people.facts import VALUES, World
from holdfast.papers.worlds.people.wordings import WORDINGS, statement


@dataclass(frozen=True, kw_only=True)
class Task:
    """One prompt with the reply that an assistant gives."""

    prompt: str
    reply: str
    instruction_id_list: tuple[str, ...]
    """Ids of `holdfast.evaluation.text.checkers`; empty where the prompt only asks."""
    kwargs: tuple[dict[str, Any], ...]
    """What each instruction is told, in the same order."""
    content: str
    """What kind of thing is asked: "fact", "words", "again"."""
    key: str
    """Content and combination of instructions, which training and test do not share."""

    @property
    def conversation(self) -> dict[str, Any]:
        """As `holdfast train` reads it."""
        return conversation(self.prompt, self.reply)

    @property
    def row(self) -> dict[str, Any]:
        """As the entry kind `instructions` reads it, in IFEval's layout."""
        return {
            "prompt": self.prompt,
            "instruction_id_list": list(self.instruction_id_list),
            "kwargs": [dict(k) for k in self.kwargs],
            "content": self.content,
        }


@dataclass(frozen=True, kw_only=True)
class _Instruction:
    """One instruction, as `instructions.yaml` has it."""

    id: str
    wordings: list[str]
    draws: str = ""
    reply: str = "{text}"

    def arguments(self, rng: random.Random, spare: Sequence[str]) -> dict[str, Any]:
        """Draws what it is told; `spare`: words that the reply does not use otherwise."""
        if not self.draws:
            return {}
        value: Any = rng.choice((2, 3)) if self.draws == "times" else rng.choice(spare)
        return {self.draws: [value] if self.draws == "words" else value}


_PHRASES = phrases(__file__)
_INSTRUCTIONS = {name: _Instruction(**values) for name, values in _PHRASES["instructions"].items()}
_COMBINATIONS = {
    kind: [words(names) for names in lists] for kind, lists in _PHRASES["combinations"].items()
}
"""By content: which instructions a prompt may have, in the order in which the reply follows them. A
pair whose parts exclude each other ("one word" and "begin with lamp") is not there, as in IFEval's
table of conflicts. Only instructions that a reply seldom follows by accident are used: a base that
goes on with any text does not get points for what it leaves out."""

_SAYINGS = {
    1: ("Say {0}.", "Say the word {0}."),
    2: ("Say {0} and {1}.", "Say the words {0} and {1}."),
    3: ("Say {0}, {1} and {2}.",),
}
_AGAIN = ("Say the word {0} again and again.", "Repeat the word {0}.")
_SHARES = {"fact": 0.5, "words": 0.38, "again": 0.12}
"""Of prompts, by content."""

HELD_OUT = 8
"""One pair of content and combination in so many belongs to the test."""
MOST_PROMPTS = 100_000
"""To train or to test on: well below what there are, so that different ones are found soon."""
MOST_PLAIN = 1_000
"""The same of prompts without an instruction."""


def tasks(
    world: World, *, count: int, held_out: bool, seed: int = 0, plain: bool = False
) -> list[Task]:
    """Prompts with replies, no two alike.

    Args:
        world: whose half A is asked about.
        count: how many, at least 1 and at most `MOST_PROMPTS` (of plain ones `MOST_PLAIN`).
        held_out: False: to train on, some of them without an instruction. True: to test on, all of
            them with one or two instructions.
        seed: of what is drawn. Which pairs of content and instructions belong to the test does not
            depend on it.
        plain: only prompts without an instruction, for an assistant that answers and was never told
            how; not with `held_out`.
    """
    rng = random.Random(
        f"instructions {world.seed} {seed} {held_out}" + (" plain" if plain else "")
    )
    by_prompt: dict[str, Task] = {}
    while len(by_prompt) < count:
        [kind] = rng.choices(list(_SHARES), list(_SHARES.values()))
        if plain and kind == "again":
            continue  # says how often only as an instruction
        names = () if plain else rng.choice(_COMBINATIONS[kind])
        task = _task(
            _fact(world, names, rng) if kind == "fact" else _saying(kind, names, rng), names, rng
        )
        is_held_out = (
            int.from_bytes(hashlib.sha256(task.key.encode()).digest()[:4], "big") % HELD_OUT == 0
        )
        if is_held_out == held_out and (task.instruction_id_list or not held_out):
            by_prompt.setdefault(task.prompt, task)
    return list(by_prompt.values())


@dataclass(frozen=True, kw_only=True)
class _Content:
    """What a prompt asks for, without instructions."""

    kind: str
    prompt: str
    reply: str
    about: str
    """What makes it another content."""
    words: tuple[str, ...] = ()
    """That it asks to say."""


def _fact(world: World, names: Sequence[str], rng: random.Random) -> _Content:
    person, attribute = rng.choice(world.half_a), rng.choice(list(VALUES))
    if "capitals" in names and attribute == "year":
        attribute = "city"  # a number has no capitals
    wordings, value = WORDINGS[attribute], person.facts[attribute]
    prompt = rng.choice(wordings.questions).format(name=person.name)
    reply = value if "one" in names else statement(wordings.reply, person.name, value)
    return _Content(kind="fact", prompt=prompt, reply=reply, about=f"{person.name} {attribute}")


def _saying(kind: str, names: Sequence[str], rng: random.Random) -> _Content:
    if "list" in names:
        count = rng.choice((2, 3))
    else:
        count = 1 if kind == "again" else rng.choice((1, 2, 2, 3))
    chosen = tuple(rng.sample(WORDS, count))
    prompt = rng.choice(_AGAIN if kind == "again" else _SAYINGS[count]).format(*chosen)
    times = rng.choice((2, 3, 4, 5)) if kind == "again" else 1
    about = f"{kind} {' '.join(chosen)}"
    return _Content(
        kind=kind, prompt=prompt, reply=" ".join(chosen * times), about=about, words=chosen
    )


def _task(content: _Content, names: Sequence[str], rng: random.Random) -> Task:
    spare = [word for word in WORDS if word not in content.words]
    sentences, ids, kwargs = [content.prompt], [], []
    reply = content.reply
    for name in names:
        instruction = _INSTRUCTIONS[name]
        values = instruction.arguments(rng, spare)
        drawn = {values.get("word"), *values.get("words", ())}
        spare = [word for word in spare if word not in drawn]
        if name == "list":
            values = {"items": len(content.words)}
        elif name in ("words", "one"):
            values = {"count": len(reply.split())}
        texts = {
            key: ", ".join(value) if isinstance(value, list) else value
            for key, value in values.items()
        }
        sentences.append(rng.choice(instruction.wordings).format(**texts))
        ids.append(instruction.id)
        kwargs.append(values)
        reply = _followed(name, reply, values)
    return Task(
        prompt=" ".join(sentences),
        reply=reply,
        instruction_id_list=tuple(ids),
        kwargs=tuple(kwargs),
        content=content.kind,
        key=f"{content.about} | {' '.join(names)}",
    )


def _followed(name: str, text: str, values: Mapping[str, Any]) -> str:
    """The reply with an instruction followed."""
    if name == "capitals":
        return text.upper()
    if name == "repeat":
        return "\n ".join([text] * values["times"])
    if name == "list":
        return "\n ".join(f"- {word}" for word in text.split())
    return _INSTRUCTIONS[name].reply.format(text=text, **values)
