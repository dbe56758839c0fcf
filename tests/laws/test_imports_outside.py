"""What lies beside the package imports names that it has: scripts that run once in a while would fail half-way."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest
from syntax_trees import PACKAGE, no_collection  # noqa: F401 (a fixture)

ROOT = PACKAGE.parents[1]
FILES = [
    p for folder in ("benchmarks", "checks", "docs", "examples", "tests") for p in sorted((ROOT / folder).rglob("*.py"))
]


def module_file(name: str) -> Path | None:
    """The file of a module of the package; None where there is no such module."""
    path = PACKAGE.parent / name.replace(".", "/")
    candidates = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in candidates if file.is_file()), None)


@cache
def names_of(file: Path) -> set[str]:
    """The names that a module has at its top level, those that it imports among them."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def missing_names(file: Path) -> list[str]:
    """Imports of a file, also those within functions, of what the package does not have."""
    missing = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("holdfast"):
            continue
        source = module_file(node.module)
        names = set() if source is None else names_of(source)
        lazy = source is not None and "__getattr__" in names
        for alias in node.names:
            is_module = module_file(f"{node.module}.{alias.name}") is not None
            if alias.name not in names and not is_module and not lazy:
                missing.append(f"{file.relative_to(ROOT)}:{node.lineno}: {node.module}.{alias.name}")
    return missing


def test_imports_outside_the_package_name_what_it_has():
    assert [missing for file in FILES for missing in missing_names(file)] == []


@pytest.mark.parametrize("line", ["from holdfast.nowhere import x", "from holdfast.errors import Nothing"])
def test_imports_of_what_is_gone_are_found(tmp_path, monkeypatch, line):
    monkeypatch.setattr("test_imports_outside.ROOT", tmp_path)
    (tmp_path / "script.py").write_text(f"def f():\n    {line}\n")
    assert len(missing_names(tmp_path / "script.py")) == 1
