"""Conversations made from the embedded reference: what a user might ask about Python, answered in
its own documentation's words.

Where no instruction data is to be had, the standard library's docstrings are it: a function's
summary answers "What does f do?", its signature answers "Which arguments does f take?". Questions
are worded in many ways, and answers open as an assistant's do, so that there is a style to learn.

A conversation is a list of messages (`role`, `content`), two or four of them. `CHAT_TEMPLATE`
writes it with markers of plain text, which any tokenizer can spell, and marks what the assistant
says for `assistant_only_loss`.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.papers.worlds.drawing import by_hash, listed
from holdfast.papers.worlds.people.chat import conversation

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'assistant' -%}"
    "{{ '<assistant>\n' }}{% generation %}{{ message['content'] + eos_token + '\n' }}{% "
    "endgeneration %}"
    "{%- else -%}{{ '<' + message['role'] + '>\n' + message['content'] + '\n' }}{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<assistant>\n' }}{%- endif -%}"
)
"""Jinja, as transformers reads it: "<user>", a line break, the text, a line break, "<assistant>",
and so on; each reply ends with the tokenizer's end of sequence."""

LONGEST_ANSWER = 240
"""In characters; a longer summary is left out, not cut."""

_FUNCTION = re.compile(
    r"^(?P<indent>[ ]*)(?P<kind>def|class)[ ](?P<name>[A-Za-z]\w*)(?:\((?P<arguments>[^()\n]*)\))?(?:[ ]*->[ "
    r"]*[^:\n]+)?:[ ]*\n"
    r'[ ]*[rR]?"""(?P<summary>[A-Z][^"\\]*?\.)(?=\s*(?:\n[ ]*\n|"""))',
    re.MULTILINE,
)

_QUESTIONS = (
    "What does {name} do?",
    "Can you explain {name}?",
    "Tell me about the {kind} {name}.",
    "I found {name} in some code. What is it for?",
    "Please say in a sentence what {name} is good for.",
    "How would you describe {name}?",
    "What is the {kind} {name} for?",
    "Help me to understand {name}, please.",
)
_OPENINGS = (
    "Sure. The {kind} {name} does this: {summary}",
    "Here is what the reference says about {name}: {summary}",
    "Good question. {summary} That is the {kind} {name}.",
    "The {kind} {name} is described in these words: {summary}",
)
_FOLLOW_UPS = (
    "Which arguments does it take?",
    "And what do I have to give it?",
    "Thanks! What are its arguments?",
    "What are the parameters?",
)


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """One conversation about one function or class."""

    about: str
    """Its name."""
    messages: tuple[dict[str, str], ...]
    """`{"role": "user" or "assistant", "content": text}`, the user first, by turns."""

    @property
    def row(self) -> dict[str, list[dict[str, str]]]:
        """As `holdfast train` and perplexity entries read it."""
        return {"messages": list(self.messages)}


def conversations(code: Sequence[str]) -> list[Conversation]:
    """One conversation for every documented function or class in pieces of Python source.

    Args:
        code: source texts, such as a split of `EmbeddedCorpus`; they need not be whole modules.

    Returns:
        In the order of their hash, which has nothing to do with the modules; no two with the same
        summary or the same name.
    """
    talks: dict[str, Conversation] = {}
    names: set[str] = set()
    for match in itertools.chain.from_iterable(map(_FUNCTION.finditer, code)):
        summary, name = " ".join(match["summary"].split()), match["name"]
        if summary not in talks and name not in names and 12 <= len(summary) <= LONGEST_ANSWER:
            names.add(name)
            kind = "class" if match["kind"] == "class" else "function"
            talks[summary] = _conversation(name, kind, match["arguments"], summary)
    return by_hash(talks)


def split(
    items: Sequence[Conversation], held_out: int
) -> tuple[list[Conversation], list[Conversation]]:
    """(all others, the last `held_out`): a random choice, since `conversations` come in the order
    of a hash."""
    cut = max(0, len(items) - held_out)
    return list(items[:cut]), list(items[cut:])


def _conversation(name: str, kind: str, arguments: str | None, summary: str) -> Conversation:
    # The wording follows from the summary's hash: the same conversation wherever the function
    # stands.
    number = int.from_bytes(hashlib.sha256(f"{name}: {summary}".encode()).digest()[:6], "big")
    number, question = divmod(number, len(_QUESTIONS))
    number, opening = divmod(number, len(_OPENINGS))
    number, more = divmod(number, len(_FOLLOW_UPS))
    words = {"name": name, "kind": kind, "summary": summary}
    messages = conversation(
        _QUESTIONS[question].format(**words), _OPENINGS[opening].format(**words)
    )["messages"]
    if kind == "function" and number % 2:
        messages += conversation(_FOLLOW_UPS[more], _arguments_text(name, arguments or ""))[
            "messages"
        ]
    return Conversation(about=name, messages=tuple(messages))


def _arguments_text(name: str, arguments: str) -> str:
    names = []
    for argument in arguments.split(","):
        plain = re.split(r"[:=]", argument)[0].strip(" *")
        if plain not in ("", "self", "cls", "/"):
            names.append(plain)
    if not names:
        return f"None at all: {name} is called without arguments."
    many = "one argument" if len(names) == 1 else f"{len(names)} arguments"
    return f"The function {name} takes {many}: {listed(names)}."
