"""Conversations of the embedded world: a prompt asks for something, and says how the reply has to look.

A prompt is a content ("Where does Kamoran live?", "Say lamp and river.") and no, one or two instructions ("Put your
answer in brackets."), each in one of several wordings. Whether a reply follows an instruction is decided by a program,
as in IFEval (Zhou et al. 2023, "Instruction-Following Evaluation for Large Language Models"); the programs are those of
`holdfast.evaluation.text.checkers`, and the ids below are theirs. As there, what a reply says besides is not judged.

What is asked was never seen: pairs of a content (this fact, these words) and a combination of instructions are dealt
out to training and test by their hash, so a test prompt's content stands in training with other instructions, and its
instructions with other contents.

Contents ask about facts of half A alone. At this size knowledge does not carry over from text to questions by itself,
so some questions have to be in the tuning data; half B stays unasked, and measures what does carry over
(`questions.chat_choices`).
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.errors import ConfigError
from holdfast.papers.worlds.drawing import words
from holdfast.papers.worlds.people.chat import WORDS
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
        return {"messages": [{"role": "user", "content": self.prompt}, {"role": "assistant", "content": self.reply}]}

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
    """One instruction as a prompt words it."""

    id: str
    wordings: tuple[str, ...]
    draws: str = ""
    """What is drawn for it: "word" or "words" that the reply does not use otherwise, or "times"."""
    reply: str | Callable[[str, dict[str, Any]], str] = "{text}"
    """The reply with the instruction followed: a template of the text and of what was drawn, or a function of them."""

    def arguments(self, rng: random.Random, spare: Sequence[str]) -> dict[str, Any]:
        """Draws what it is told; `spare`: words that the reply does not use otherwise."""
        if not self.draws:
            return {}
        value: Any = rng.choice((2, 3)) if self.draws == "times" else rng.choice(spare)
        return {self.draws: [value] if self.draws == "words" else value}

    def apply(self, text: str, values: dict[str, Any]) -> str:
        """The reply."""
        return self.reply.format(text=text, **values) if isinstance(self.reply, str) else self.reply(text, values)


_INSTRUCTIONS: dict[str, _Instruction] = {
    "begin": _Instruction(
        id="plain:begin",
        wordings=(
            "Begin your answer with the word {word}.",
            "The first word of your answer must be {word}.",
            "Start with {word}.",
        ),
        draws="word",
        reply="{word} {text}",
    ),
    "end": _Instruction(
        id="plain:end",
        wordings=(
            "End your answer with the word {word}.",
            "The last word of your answer must be {word}.",
            "Finish with {word}.",
        ),
        draws="word",
        reply="{text} {word}",
    ),
    "keyword": _Instruction(
        id="plain:keywords",
        wordings=(
            "Use the word {words} in your answer.",
            "Your answer must have the word {words} in it.",
            "Speak of {words} too.",
        ),
        draws="words",
        reply="{text} I like the {words[0]}.",
    ),
    "capitals": _Instruction(
        id="plain:capitals",
        wordings=(
            "Write in capital letters.",
            "Use capital letters only.",
            "Your whole answer must be in capital letters.",
        ),
        reply=lambda text, values: text.upper(),
    ),
    "quotes": _Instruction(
        id="plain:quotes",
        wordings=(
            "Put your answer in quotation marks.",
            "Use quotation marks around all you say.",
            "Write it between quotation marks.",
        ),
        reply='" {text} "',
    ),
    "brackets": _Instruction(
        id="plain:brackets",
        wordings=("Put your answer in brackets.", "Use brackets around all you say.", "Write it between brackets."),
        reply="[ {text} ]",
    ),
    "repeat": _Instruction(
        id="plain:repeat",
        wordings=(
            "Say it {times} times, each on a line of its own.",
            "Repeat your answer on {times} lines.",
            "Give the same answer on {times} lines.",
        ),
        draws="times",
        reply=lambda text, values: "\n ".join([text] * values["times"]),
    ),
    "list": _Instruction(
        id="plain:list",
        wordings=(
            "Make a list with {items} items.",
            "Write a list of {items} items.",
            "Your answer must be a list with {items} items.",
        ),
        reply=lambda text, values: "\n ".join(f"- {word}" for word in text.split()),
    ),
    "words": _Instruction(
        id="plain:words",
        wordings=(
            "Answer with exactly {count} words.",
            "Your answer must have {count} words.",
            "Use {count} words and no more.",
        ),
    ),
    "one": _Instruction(
        id="plain:words",
        wordings=("Answer with one word.", "Say one word only.", "Your answer must have just one word."),
    ),
}


def _combinations(text: str) -> tuple[tuple[str, ...], ...]:
    return tuple(words(part) for part in text.split(","))


_COMBINATIONS: dict[str, tuple[tuple[str, ...], ...]] = {
    "fact": (
        (),
        *_combinations("begin, end, keyword, quotes, brackets, repeat, one"),
        *_combinations("begin end, begin keyword, begin quotes, begin brackets, end quotes, end brackets"),
        *_combinations("keyword quotes, keyword brackets, one capitals, one quotes, one brackets"),
    ),
    "words": (
        (),
        *_combinations("begin, end, quotes, brackets, repeat, capitals, list"),
        *_combinations("begin end, begin quotes, begin brackets, end quotes, end brackets"),
        *_combinations("capitals quotes, capitals brackets, capitals repeat, begin capitals, end capitals"),
        *_combinations("list capitals"),
    ),
    "again": _combinations("words, words capitals, words quotes, words brackets"),
}
"""By content: which instructions a prompt may have, in the order in which the reply follows them. A pair whose parts
exclude each other ("one word" and "begin with lamp") is not there, as in IFEval's table of conflicts. Only instructions
that a reply seldom follows by accident are used: a base that goes on with any text does not get points for what it
leaves out."""

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


def tasks(world: World, *, count: int, held_out: bool, seed: int = 0, plain: bool = False) -> list[Task]:
    """Prompts with replies, no two alike.

    Args:
        world: whose half A is asked about.
        count: how many, at least 1.
        held_out: False: to train on, some of them without an instruction. True: to test on, all of them with one or two
            instructions.
        seed: of what is drawn. Which pairs of content and instructions belong to the test does not depend on it.
        plain: only prompts without an instruction, for an assistant that answers and was never told how; not with
            `held_out`.

    Raises:
        ConfigError: fewer than 1, more than `MOST_PROMPTS` (of plain ones `MOST_PLAIN`), or plain prompts to test
            instructions on.
    """
    most = MOST_PLAIN if plain else MOST_PROMPTS
    if not 1 <= count <= most:
        raise ConfigError(f"count: expected between 1 and {most} prompts, got {count}.")
    if plain and held_out:
        raise ConfigError("plain: prompts without an instruction do not test instruction following.")
    rng = random.Random(f"instructions {world.seed} {seed} {held_out}" + (" plain" if plain else ""))
    found: dict[str, Task] = {}
    while len(found) < count:
        kind = rng.choices(list(_SHARES), list(_SHARES.values()))[0]
        if plain and kind == "again":
            continue  # says how often only as an instruction
        task = _drawn(world, kind, rng, names=() if plain else None)
        if held_out and not task.instruction_id_list:
            continue
        if _is_held_out(task.key) == held_out:
            found.setdefault(task.prompt, task)
    return list(found.values())


def _is_held_out(key: str) -> bool:
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") % HELD_OUT == 0


def _drawn(world: World, kind: str, rng: random.Random, *, names: tuple[str, ...] | None = None) -> Task:
    if names is None:
        names = rng.choice(_COMBINATIONS[kind])
    chosen: tuple[str, ...] = ()
    if kind == "fact":
        person, attribute = rng.choice(world.half_a), rng.choice(list(VALUES))
        if "capitals" in names and attribute == "year":
            attribute = "city"  # a number has no capitals
        value = person.facts[attribute]
        asked = rng.choice(WORDINGS[attribute].questions).format(name=person.name)
        text = value if "one" in names else statement(WORDINGS[attribute].reply, person.name, value)
        about = f"{person.name} {attribute}"
    else:
        chosen = tuple(
            rng.sample(
                WORDS, rng.choice((2, 3)) if "list" in names else 1 if kind == "again" else rng.choice((1, 2, 2, 3))
            )
        )
        asked = rng.choice(_AGAIN if kind == "again" else _SAYINGS[len(chosen)]).format(*chosen)
        times = rng.choice((2, 3, 4, 5)) if kind == "again" else 1
        text = " ".join(chosen * times)
        about = f"{kind} {' '.join(chosen)}"
    spare = [word for word in WORDS if word not in chosen]
    sentences, ids, kwargs = [], [], []
    for name in names:
        instruction = _INSTRUCTIONS[name]
        values = instruction.arguments(rng, spare)
        spare = [word for word in spare if word != values.get("word") and word not in values.get("words", ())]
        if name == "list":
            values = {"items": len(chosen)}
        elif name in ("words", "one"):
            values = {"count": len(text.split())}
        shown = {key: ", ".join(value) if isinstance(value, list) else value for key, value in values.items()}
        sentences.append(rng.choice(instruction.wordings).format(**shown))
        ids.append(instruction.id)
        kwargs.append(values)
        text = instruction.apply(text, values)
    return Task(
        prompt=" ".join([asked, *sentences]),
        reply=text,
        instruction_id_list=tuple(ids),
        kwargs=tuple(kwargs),
        content=kind,
        key=f"{about} | {' '.join(names)}",
    )
