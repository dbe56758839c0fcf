"""No module of the package imports, by whatever way round, one that imports it, not even within a function. Imports for
type checkers are no imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from syntax_trees import parsed_package

OPEN = {
    "evaluation": "entries, runner and harness",
    "studies": "the engine",
    "papers": "small settings and their world; the residual study",
    "config": "values, decode and the YAML reader: one module of pydantic takes their place",
}
"""Rooms that still have a circle, and why."""


def imported_modules(node: ast.AST, modules: set[str]) -> Iterator[str]:
    """Modules of the package that a tree imports, type checkers' imports aside."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ImportFrom) and (child.module or "").startswith("holdfast"):
            for alias in child.names:
                submodule = f"{child.module}.{alias.name}"
                yield submodule if submodule in modules else str(child.module)
        elif isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            yield from imported_modules(ast.Module(child.orelse, []), modules)
        else:
            yield from imported_modules(child, modules)


def circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that reach each other (Tarjan's strongly connected components of more than one)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(module: str) -> None:
        order[module] = low[module] = len(order)
        stack.append(module)
        for target in sorted(imports[module]):
            if target not in order:
                visit(target)
            if target in stack:
                low[module] = min(low[module], low[target])
        if low[module] == order[module]:
            start = stack.index(module)
            group = sorted(stack[start:])
            del stack[start:]
            if len(group) > 1:
                groups.append(group)

    for module in sorted(imports):
        if module not in order:
            visit(module)
    return groups


def package_imports() -> dict[str, set[str]]:
    """What each module of the package imports of the package."""
    trees = {}
    for file, tree in parsed_package().items():
        name = "holdfast." + file.removesuffix(".py").replace("/", ".")
        trees[name.removesuffix(".__init__")] = tree
    modules = set(trees)
    return {name: set(imported_modules(tree, modules)) & modules - {name} for name, tree in trees.items()}


def test_import_circles_are_none_but_the_open_ones():
    rooms = {group[0].split(".")[1] for group in circles(package_imports())}
    assert rooms <= set(OPEN)


def test_import_circles_are_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a", "d"}}) == [["b", "c"]]
    tree = ast.parse("if TYPE_CHECKING:\n    from holdfast.a import x\ndef f():\n    from holdfast import b\n")
    assert set(imported_modules(tree, {"holdfast.a", "holdfast.b"})) == {"holdfast.b"}
