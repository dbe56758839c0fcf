"""The package does not grow by accident: every room stays within its budget of syntax-tree nodes in `sizes.toml`.

A room that has to grow gets a larger budget, in a commit that says what for. One that shrank gets a smaller one, so
that the room is not filled again unnoticed.
"""

from __future__ import annotations

import ast
import functools
import tomllib
from collections import Counter
from pathlib import Path

from syntax_trees import no_collection, parsed_package  # noqa: F401 (a fixture)

BUDGETS: dict[str, int] = tomllib.loads(Path(__file__).with_name("sizes.toml").read_text(encoding="utf-8"))["nodes"]
SLACK = 0.03
"""Share of a budget that may lie unused."""
UNCOUNTED = (ast.expr_context, ast.operator, ast.cmpop, ast.boolop, ast.unaryop)


def count_nodes(tree: ast.Module) -> int:
    """Syntax-tree nodes without docstrings: layout, comments and prose cost nothing."""
    docstrings: set[ast.AST] = set()
    for node in ast.walk(tree):
        for statement in getattr(node, "body", None) or [] if not isinstance(node, ast.Lambda | ast.IfExp) else []:
            is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if is_text and isinstance(statement.value.value, str):
                docstrings |= {statement, statement.value}
    return sum(node not in docstrings and not isinstance(node, UNCOUNTED) for node in ast.walk(tree))


@functools.cache
def nodes_by_room() -> dict[str, int]:
    """Nodes of every package below `holdfast`; modules beside them are the room "(top)"."""
    sizes: Counter[str] = Counter()
    for file, tree in parsed_package().items():
        folder, _, rest = file.partition("/")
        sizes[folder if rest else "(top)"] += count_nodes(tree)
    return dict(sizes)


def test_every_room_stays_within_its_budget() -> None:
    sizes = nodes_by_room()
    assert set(sizes) == set(BUDGETS)
    too_large = {room: (nodes, BUDGETS[room]) for room, nodes in sizes.items() if nodes > BUDGETS[room]}
    assert not too_large, f"room: (nodes, budget): {too_large}; take something away, or raise the budget in sizes.toml"


def test_no_budget_is_much_larger_than_its_room() -> None:
    sizes = nodes_by_room()
    too_small = {room: (nodes, BUDGETS[room]) for room, nodes in sizes.items() if nodes < BUDGETS[room] * (1 - SLACK)}
    assert not too_small, f"room: (nodes, budget): {too_small}; lower the budget in sizes.toml"


def test_docstrings_and_layout_are_not_counted() -> None:
    bare = nodes_of("def f(x):\n    return x + 1\n")
    assert bare == nodes_of('"""Module."""\ndef f(x):\n    """Function."""\n\n    return (x + 1)  # one\n')
    assert bare < nodes_of("def f(x):\n    y = x\n    return y + 1\n")


def nodes_of(source: str) -> int:
    return count_nodes(ast.parse(source))
