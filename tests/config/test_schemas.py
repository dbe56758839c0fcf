"""JSON Schemas: shipped as the command writes them, and every YAML file of this repository keeps to its own."""

from __future__ import annotations

import functools
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.cli import schema as command
from holdfast.cli.main import main

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "src" / "holdfast" / "schemas"
FILES = {
    "train": [path for place in ("configs", "configs/data", "examples/*") for path in ROOT.glob(f"{place}/*.yaml")],
    "sweep": [*ROOT.glob("configs/label_annealing/*.yaml"), *ROOT.glob("configs/without_old_data/*.yaml")],
    "study": [*ROOT.glob("configs/residual/*.yaml")],
    "sequence": [*ROOT.glob("configs/sequence/*.yaml")],
    "stages": [*ROOT.glob("configs/stages/*.yaml")],
    "ladder": [*ROOT.glob("configs/ladder/*.yaml")],
    "overtraining": [*ROOT.glob("configs/overtraining/*.yaml")],
    "suite": [*ROOT.glob("src/holdfast/evaluation/suites/*.yaml")],
}
"""Kind of file: those that are shipped."""
EACH = [pytest.param(kind, path, id=str(path.relative_to(ROOT))) for kind, paths in FILES.items() for path in paths]


class _Loader(yaml.SafeLoader):
    """YAML 1.2 as editors read it: 1e-5 is a number, 2024-01-01 is text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if not tag.endswith(("timestamp", "float"))]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][-+]?\d+)?$"),
    list("-+0123456789."),
)


def schema(kind: str) -> dict[str, Any]:
    return json.loads((SHIPPED / f"{kind}.schema.json").read_text(encoding="utf-8"))


@functools.cache
def validator(kind: str) -> Any:
    """Of a schema that another test finds sound: `jsonschema.validate` would look through it at every call."""
    return pytest.importorskip("jsonschema").Draft202012Validator(schema(kind))


@pytest.mark.parametrize("kind", command.SCHEMAS)
def test_the_shipped_schema_is_that_of_the_command(kind: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator.check_schema(schema(kind))
    advice = f"stale: holdfast schema {kind} --output src/holdfast/schemas/{kind}.schema.json"
    assert (SHIPPED / f"{kind}.schema.json").read_text(encoding="utf-8") == command.schema_text(kind), advice


@pytest.mark.parametrize(("kind", "path"), EACH)
def test_a_shipped_file_keeps_to_its_schema_and_names_it(kind: str, path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    validator(kind).validate(yaml.load(text, _Loader))
    (named,) = re.findall(r"^# yaml-language-server: \$schema=(.*)$", text, re.MULTILINE)
    assert Path(os.path.normpath(path.parent / named)) == SHIPPED / f"{kind}.schema.json"


@pytest.mark.parametrize(
    "wrong",
    [
        {"lerning_rate": 1},
        {"learning_rate": -1},
        {"retention": [{"label_annealing": {"weigth": 1}}]},
        {"retention": [{"sfa": {"p": 2}}]},
        {"retention": "label_anealing"},
        {"evaluation": {"confidence": 2}},
        {"data": {"promt": "a"}},
    ],
    ids=str,
)
def test_mistakes_in_a_run_are_marked(wrong: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    with pytest.raises(jsonschema.ValidationError):
        validator("train").validate(wrong)


def test_the_command_writes_to_a_file_and_to_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "new" / "merge.schema.json"
    assert main(["schema", "merge", "--output", str(target)]) == 0
    assert "$schema=merge.schema.json" in capsys.readouterr().out
    assert main(["schema", "merge"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(target.read_text()) == schema("merge")
    assert main(["schema", "trian"]) == 2
    assert "Did you mean 'train'?" in capsys.readouterr().err
