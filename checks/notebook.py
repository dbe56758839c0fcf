"""Runs a notebook's cells in one namespace, as a kernel would: `python checks/notebook.py FILE`. What a cell ends with
is shown. Reads the file as the JSON that it is: a kernel and its two dozen packages would add nothing to that."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any


def code_cells(path: Path) -> list[str]:
    """Sources of the code cells."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def run(path: Path) -> None:
    """Runs all cells; an exception ends it."""
    scope: dict[str, Any] = {"__name__": "__main__"}
    for number, source in enumerate(code_cells(path), 1):
        tree, name = ast.parse(source), f"{path.name}, cell {number}"
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec"), scope)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), scope)
            print(f"[{number}]", repr(value), flush=True)


if __name__ == "__main__":
    run(Path(sys.argv[1]))
