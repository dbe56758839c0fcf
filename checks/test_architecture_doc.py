"""docs/architecture.md says what the house is: every room and its layer, and walks past functions that are there."""

from __future__ import annotations

import re

from syntax_trees import PACKAGE
from test_house import LAYERS, ROOT

TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_the_table_has_every_room_in_its_layer():
    rows = re.findall(r"^\| (\d+) +\| `([\w/.]+)` +\|", TEXT, re.MULTILINE)
    drawn = {name.rstrip("/").removesuffix(".py"): int(layer) for layer, name in rows}
    assert drawn == {room: n for n, rooms in enumerate(LAYERS) for room in rooms - {"__main__"}}
    assert [int(layer) for layer, _ in rows] == sorted(int(layer) for layer, _ in rows)


def test_every_room_is_there():
    here = {p.name.removesuffix(".py") for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").is_file()}
    assert here == {room for rooms in LAYERS for room in rooms} | {"__init__"}


def test_the_walks_go_past_what_is_there():
    named = re.findall(r"`([\w/]+\.py)(?::(\w+))?`", TEXT)
    assert len(named) > 20
    for file, name in named:
        path = ROOT / file if file.startswith("tests/") else PACKAGE / file
        assert path.is_file(), f"docs/architecture.md names {file}, which is not there"
        if name:
            defined = re.compile(rf"^(?:(?:async )?def |class )?{name}\b", re.MULTILINE)
            assert defined.search(path.read_text(encoding="utf-8")), (
                f"docs/architecture.md names {file}:{name}, which is not there"
            )
