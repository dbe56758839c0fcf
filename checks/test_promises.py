"""The promises of docs/promises.md, and the tests that show them: `promises.yaml` lists both."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/promises.md").read_text(encoding="utf-8")
LIST = yaml.safe_load(Path(__file__).with_name("promises.yaml").read_text(encoding="utf-8"))
TESTS = sorted({test for promise in LIST["promises"] for test in promise["shown_by"]})


def promises_of_the_page() -> list[str]:
    """Its bullets, with links from the root as the list has them."""
    bullets = [line.removeprefix("- ").strip() for line in PAGE.splitlines() if line.startswith("- ")]
    return [bullet.replace("](../", "](") for bullet in bullets]


def test_the_list_has_the_pages_promises_and_no_others() -> None:
    assert [promise["says"] for promise in LIST["promises"]] == promises_of_the_page()
    assert len(promises_of_the_page()) >= 8


def test_a_promise_links_a_test_that_shows_it() -> None:
    for promise in LIST["promises"]:
        linked = set(re.findall(r"\]\((tests/\S+?)\)", promise["says"]))
        files = {test.partition("::")[0] for test in promise["shown_by"]}
        assert linked and linked <= files, promise["says"]


@pytest.mark.parametrize("test", TESTS)
def test_the_test_is_there(test: str) -> None:
    """Its file has a top-level test of that name which every machine runs."""
    file, _, name = test.partition("::")
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    lines: list[str] = []
    for node in tree.body:
        is_function = isinstance(node, ast.FunctionDef) and node.name == name
        is_assigned = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
        if is_function:
            lines = [ast.unparse(decorator) for decorator in node.decorator_list]
        if is_function or is_assigned:
            break
    else:
        pytest.fail(f"{file} has no test {name}")
    assert not re.search(r"\bmark\.(skip|xfail|gpu|network)\b", " ".join(lines))
