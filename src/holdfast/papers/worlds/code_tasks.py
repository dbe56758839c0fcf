"""Instructions to write a function, with the function: made of the standard library's documented
ones.

Where no code instructions are to be had, a docstring's first sentence is the instruction and the
function without its docstring the answer, in the shape of HumanEval turned round:

    # Task: Return the base name of a path.
    # Write the function basename.
    def basename(p):
        ...

Whether an answer runs is not looked at; a small base's never would.
"""

from __future__ import annotations

import ast
import itertools
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from holdfast.papers.worlds.drawing import by_hash

SHORTEST, LONGEST = 60, 480
"""Characters of a function without its docstring; others are left out, not cut."""
LONGEST_TASK = 160

_FUNCTION = re.compile(r"^(?P<indent>[ ]*)def[ ](?P<name>[A-Za-z]\w*)\(", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class CodeTask:
    """One instruction with its answer."""

    prompt: str
    """Ends with a line break."""
    code: str
    """The function, without its docstring."""

    @property
    def row(self) -> dict[str, str]:
        """As perplexity entries with `prompt` and `completion` read it."""
        return {"prompt": self.prompt, "completion": self.code}


def code_tasks(pieces: Sequence[str]) -> list[CodeTask]:
    """A task for every documented function of a fitting length in pieces of Python source.

    Args:
        pieces: source, such as a split of `EmbeddedCorpus`; they need not be whole modules.

    Returns:
        In the order of their hash, which has nothing to do with the modules; no two with the same
        prompt or code.
    """
    tasks: dict[str, CodeTask] = {}
    codes: set[str] = set()
    for task in itertools.chain.from_iterable(map(_in_piece, pieces)):
        if task.prompt not in tasks and task.code not in codes:
            tasks[task.prompt] = task
            codes.add(task.code)
    return by_hash(tasks)


def _in_piece(piece: str) -> Iterator[CodeTask]:
    for match in _FUNCTION.finditer(piece):
        block = _block(piece[match.start() :], len(match["indent"]))
        try:
            parsed = ast.parse(block).body
        except (SyntaxError, ValueError):  # a function that the piece cuts off
            continue
        node = parsed[0] if parsed else None
        if not isinstance(node, ast.FunctionDef) or len(node.body) < 2:
            continue
        summary = " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())
        if not 12 <= len(summary) <= LONGEST_TASK:
            continue
        first, last = node.body[0].lineno, node.body[0].end_lineno
        lines = block.rstrip("\n").split("\n")
        code = "\n".join(lines[: first - 1] + lines[last:])
        code = re.sub(r"\n\s*\n", "\n", code)
        if SHORTEST <= len(code) <= LONGEST:
            yield CodeTask(
                prompt=f"# Task: {summary}\n# Write the function {node.name}.\n", code=code
            )


def _block(text: str, indent: int) -> str:
    """The first definition of a text, without what follows it, its indentation taken away."""
    lines = text.split("\n")
    end = 1 + next((i for i, line in enumerate(lines) if line.rstrip().endswith(":")), 0)
    inside = re.compile(rf"\s*$|\s{{{indent + 1}}}")
    while end < len(lines) and inside.match(lines[end]):
        end += 1
    return textwrap.dedent("\n".join(lines[:end]))
