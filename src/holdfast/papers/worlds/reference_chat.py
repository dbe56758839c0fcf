"""Conversations made from the embedded reference: what a user might ask about Python, answered in its own
documentation's words.

Where no instruction data is to be had, the standard library's docstrings are it: a function's summary answers "What
does f do?", its signature answers "Which arguments does f take?". Questions are worded in many ways, and answers open
as an assistant's do, so that there is a style to learn.

A conversation is a list of messages (`role`, `content`), two or four of them. `CHAT_TEMPLATE` writes it with markers of
plain text, which any tokenizer can spell, and marks what the assistant says for `assistant_only_loss`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.papers.worlds.drawing import listed

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'assistant' -%}"
    "{{ '<assistant>\n' }}{% generation %}{{ message['content'] + eos_token + '\n' }}{% endgeneration %}"
    "{%- else -%}{{ '<' + message['role'] + '>\n' + message['content'] + '\n' }}{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<assistant>\n' }}{%- endif -%}"
)
"""Jinja, as transformers reads it: "<user>", a line break, the text, a line break, "<assistant>", and so on; each reply
ends with the tokenizer's end of sequence."""

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
        In the order of their hash, which has nothing to do with the modules; no two with the same summary or the same
        name.
    """
    found: dict[str, Conversation] = {}
    names: set[str] = set()
    for piece in code:
        for match in _FUNCTION.finditer(piece):
            summary = " ".join(match["summary"].split())
            name = match["name"]
            if summary in found or name in names or len(summary) > LONGEST_ANSWER or len(summary) < 12:
                continue
            names.add(name)
            found[summary] = _conversation(
                name, "class" if match["kind"] == "class" else "function", match["arguments"], summary
            )
    return [found[summary] for summary in sorted(found, key=lambda s: hashlib.sha256(s.encode()).digest())]


def split(items: Sequence[Conversation], held_out: int) -> tuple[list[Conversation], list[Conversation]]:
    """(all others, the last `held_out`): a random choice, since `conversations` come in the order of a hash."""
    cut = max(0, len(items) - held_out)
    return list(items[:cut]), list(items[cut:])


def _conversation(name: str, kind: str, arguments: str | None, summary: str) -> Conversation:
    # The wording follows from the summary's hash: the same conversation wherever the function stands.
    number = int.from_bytes(hashlib.sha256(f"{name}: {summary}".encode()).digest()[:6], "big")
    number, question = divmod(number, len(_QUESTIONS))
    number, opening = divmod(number, len(_OPENINGS))
    number, more = divmod(number, len(_FOLLOW_UPS))
    words = {"name": name, "kind": kind, "summary": summary}
    turns = [_QUESTIONS[question].format(**words), _OPENINGS[opening].format(**words)]
    if kind == "function" and number % 2:
        turns += [_FOLLOW_UPS[more], _arguments_text(name, arguments or "")]
    roles = ("user", "assistant")
    return Conversation(
        about=name, messages=tuple({"role": roles[i % 2], "content": text} for i, text in enumerate(turns))
    )


def _arguments_text(name: str, arguments: str) -> str:
    plain = [re.split(r"[:=]", part)[0].strip(" *") for part in arguments.split(",")]
    names = [part for part in plain if part and part not in ("self", "cls", "/")]
    if not names:
        return f"None at all: {name} is called without arguments."
    many = "one argument" if len(names) == 1 else f"{len(names)} arguments"
    return f"The function {name} takes {many}: {listed(names)}."
