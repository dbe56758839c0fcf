"""A paper's small studies, declared: what is run at which size, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ConfigError
from holdfast.papers.claims.registry import Paper
from holdfast.papers.claims.reproduction import Twin, Twins


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was run, as (study, settings), in place of running it."""
    found: list[Any] = []
    monkeypatch.setattr(Twins, "run_and_judge", lambda twins, recipes, **about: found.append((recipes, about)))
    return found


def twins(**sizes: dict[str, dict[str, Any]]) -> Twins:
    titles = dict.fromkeys(sizes, "a study")
    paper = Paper(
        name="x",
        title="X",
        short="X",
        about="x",
        recipes=titles,
        durations={},
        function="m:f",
    )
    return Twins(
        paper=paper,
        studies={n: Twin(file="sequence/tasks-tiny.yaml", own={"seeds": [7]}, sizes=s) for n, s in sizes.items()},
        config=lambda values, source: values,
        run=lambda *_, **__: None,
        read=lambda folder: None,
        check=lambda records: [],
    )


def test_a_size_changes_what_the_file_says(asked: list[Any], tmp_path: Path) -> None:
    both = twins(one={"small": {"seeds": [1]}, "medium": {}}, two={"medium": {"train": {"max_steps": 9}}})
    both.reproduce(size="medium", output_dir=tmp_path, workers=3)
    [(recipes, about)] = asked
    assert [r.name for r in recipes] == ["one", "two"] and about["workers"] == 3 and about["size"] == "medium"
    first, second = (r.settings for r in recipes)
    assert first["seeds"] == [7] and first["name"] == "one" and first["output_dir"] == str(tmp_path / "one")
    assert second["train"]["max_steps"] == 9 and second["train"].keys() == first["train"].keys()
    both.reproduce(output_dir=tmp_path)
    assert [r.settings["seeds"] for r in asked[1][0]] == [[1]], "small has the first alone"
    both.reproduce(size="medium", recipes=["two", "two"], output_dir=tmp_path)
    assert [r.name for r in asked[2][0]] == ["two"]


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"size": "mediun"}, "expected one of small, medium, got 'mediun'. Did you mean 'medium'?"),
        ({"recipes": ["tow"]}, "expected some of one, two, got 'tow'. Did you mean 'two'?"),
        ({"recipes": ["two"]}, "the size small has only one. Choose another size or other recipes."),
    ],
)
def test_what_is_not_there_is_refused(request_: Any, said: str, asked: list[Any]) -> None:
    with pytest.raises(ConfigError) as error:
        twins(one={"small": {}, "medium": {}}, two={"medium": {}}).reproduce(**request_)
    assert said in str(error.value) and not asked
