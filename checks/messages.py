"""Every text that a user can see, listed from the syntax trees of src/holdfast: `python checks/messages.py` writes
checks/messages.txt, to be read in one sitting.

A text is a string of at least two words, or an f-string with its placeholders as {name}: help, errors, problems,
notes, progress, sentences and labels of pages, statements of claims. Of docstrings only those under fields of
settings and those of kinds of entries are listed, since help and schemas show them. Left out are regular expressions,
style sheets, the generators of toy text, and the synonyms of keys.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "holdfast"
LISTED = Path(__file__).with_name("messages.txt")

SETTINGS_NAME = re.compile(r"(Settings|Request|Entry|Flags|Options|Recipe|Method|Config|Templates|Arguments|Rule)$")
NOT_TEXT = re.compile(r"^\s*[<.:@#*\[(\\]|\\[bdsw(\[]|\(\?|[{;]\s*$|SELECT |UPDATE |INSERT |CREATE ")
NO_TEXTS = (
    *("papers/worlds/people/", "papers/worlds/pictures/", "papers/worlds/reference_chat.py"),
    "config/synonyms.py",
)
PATTERNS = {"compile", "search", "match", "fullmatch", "sub", "findall", "finditer", "split", "TypeVar", "Literal"}
"""Functions whose strings are for machines."""
DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def text_of(node: ast.AST) -> str | None:
    """A string, f-string or sum of them as one text; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) or "" for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return placeholder(node.value)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = text_of(node.left), text_of(node.right)
        if left is None and right is None:
            return None
        return (left or placeholder(node.left)) + (right or placeholder(node.right))
    return None


def placeholder(node: ast.AST) -> str:
    """{name}, where the expression is short; otherwise {...}."""
    code = ast.unparse(node)
    return "{" + code + "}" if len(code) <= 40 and '"' not in code else "{...}"


def is_text(text: str) -> bool:
    words = re.findall(r"[A-Za-z]{2,}", re.sub(r"\{[^}]*\}", "", text))
    return " " in text.strip() and len(words) >= 1 and not NOT_TEXT.search(text)


def texts_below(node: ast.AST, settings: set[str]) -> Iterator[str]:
    """Texts in the order of the source.

    Args:
        settings: classes whose field docstrings users see.
    """
    text = text_of(node)
    if text is not None:
        if is_text(text):
            yield text
        for part in ast.walk(node):
            if isinstance(part, ast.FormattedValue):
                yield from texts_below(part.value, settings)
        return
    if isinstance(node, ast.Call):
        function = node.func
        if getattr(function, "attr", getattr(function, "id", "")) in PATTERNS:
            return
    shows_fields = isinstance(node, ast.ClassDef) and node.name in settings
    if isinstance(node, ast.ClassDef) and node.name.endswith("Entry"):
        yield cleandoc(ast.get_docstring(node) or "")
    previous: ast.AST | None = None
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            if shows_fields and isinstance(previous, ast.AnnAssign):
                yield cleandoc(str(child.value.value))
        else:
            yield from texts_below(child, settings)
        previous = child


def settings_classes(trees: dict[str, ast.Module]) -> set[str]:
    """Names of the classes that declare settings: by their name, by a field with `Meta` or a heading, as a class
    of a command, or by a base class that does."""
    bases: dict[str, list[str]] = {}
    names: set[str] = set()
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                bases[node.name] = [ast.unparse(base).split(".")[-1] for base in node.bases]
                code = ast.unparse(node)
                declares = "Meta(" in code or "settings_group" in code or path.startswith("cli/")
                if declares or SETTINGS_NAME.search(node.name):
                    names.add(node.name)
    for _ in range(4):
        names |= {name for name, above in bases.items() if names & set(above)}
    return names


def listed() -> str:
    """The contents of messages.txt."""
    trees = {}
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if not name.startswith(NO_TEXTS):
            trees[name] = ast.parse(path.read_text(encoding="utf-8"))
    settings = settings_classes(trees)
    lines = []
    for name, tree in trees.items():
        texts = dict.fromkeys(text.replace("\n", "↵") for text in texts_below(tree, settings))
        if texts:
            lines += [f"# {name}", *texts, ""]
    return "\n".join(lines)


if __name__ == "__main__":
    LISTED.write_text(listed(), encoding="utf-8")
