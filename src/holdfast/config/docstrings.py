"""The docstring under each field of a class, read from its source."""

from __future__ import annotations

import ast
import dataclasses
import functools
import gc
import inspect
import sys
from collections.abc import Iterator


def field_docstrings(cls: type) -> dict[str, str]:
    """The string under each field, those of base classes included; empty where the source is not at
    hand."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            texts |= _docstrings_of_module(base.__module__).get(base.__qualname__, {})
    return texts


def parse_source(source: str) -> ast.Module:
    """The tree of a module's source, while no garbage is collected: CPython 3.11 fails with "AST
    constructor recursion depth mismatch" where a collection runs Python code in the middle of it
    (python/cpython#106905)."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        if collecting:
            gc.enable()


@functools.cache
def _docstrings_of_module(module: str) -> dict[str, dict[str, str]]:
    """By class and field."""
    try:
        tree = parse_source(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError, KeyError, SyntaxError):
        return {}
    return {name: _docstrings_of_class(node) for name, node in _classes(tree.body, "")}


def _classes(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, ast.ClassDef]]:
    """Classes with their qualified names."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            name = prefix + node.name
            yield name, node
            yield from _classes(node.body, f"{name}.")


def _docstrings_of_class(node: ast.ClassDef) -> dict[str, str]:
    texts = {}
    for field, after in zip(node.body, node.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            texts[field.target.id] = inspect.cleandoc(str(after.value.value))
    return texts
