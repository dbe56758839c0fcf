"""Names, help and mistakes of merge requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.checkpoints.methods.registry import GROUP, METHODS, find_method, merge_method, parse_merge_method
from holdfast.errors import ConfigError


@pytest.mark.parametrize("name", METHODS)
def test_every_method_says_what_it_is(name: str) -> None:
    cls = METHODS[name]
    assert cls.name == name and cls.summary and cls.source
    assert merge_method(name).problems() == [], "the defaults are a method"


def test_other_ways_to_write_a_name() -> None:
    assert find_method("soup") is METHODS["linear"]
    assert find_method("Wise-FT") is METHODS["wise_ft"]
    assert find_method("dare_linear") is METHODS["dare"]
    with pytest.raises(ConfigError, match="expected one of linear"):
        find_method("mean")


def test_parameters_as_text() -> None:
    text = {"density": "5e-1", "weights": "0.5, 1", "normalize": "false", "semantics": "mergekit"}
    method, problems = parse_merge_method("ties", text, models=2)
    assert problems == []
    assert method == merge_method("ties", density=0.5, weights=(0.5, 1.0), normalize=False, semantics="mergekit")


@pytest.mark.parametrize(
    ("name", "parameters", "models", "expected"),
    [
        ("task-aritmetic", {}, 2, "Did you mean 'task_arithmetic'?"),
        ("ties", {"densty": 0.5}, 2, "ties: unknown key 'densty'. Did you mean 'density'?"),
        ("slerp", {"t": 1.5}, 2, "t: expected a number of at least 0 and at most 1, got 1.5"),
        ("slerp", {}, 3, "slerp: expected 2 models, got 3"),
        ("wise_ft", {}, 2, "wise_ft: expected 1 model in addition to the base, got 2"),
        ("linear", {"weights": (1, -1)}, 2, "weights: expected 0 or more for a mean, got 1, -1"),
        ("linear", {"weights": (0, 0)}, 2, "weights: expected a sum above 0, got 0, 0"),
        ("linear", {"weights": (1, float("nan"))}, 2, "weights: expected finite numbers, got 1, nan"),
        ("linear", {"weights": (1, 2, 3)}, 2, "expected one weight for each of the 2 models, got 3 (1, 2, 3)"),
        ("task_arithmetic", {"scale": float("inf")}, 2, "scale: expected a number, got inf"),
        ("ties", {"density": 0}, 2, "density: expected a number or a list of numbers above 0 and at most 1, got 0"),
        ("dare", {"p": 1}, 2, "p: expected a number of at least 0 and below 1, got 1"),
        ("dare", {"p": 0.5, "density": 0.5}, 2, "dare: expected one of p and density, got p=0.5 and density=0.5"),
        ("fisher", {"floor": -1}, 2, "floor: expected a number of at least 0, got -1"),
    ],
)
def test_mistakes(name: str, parameters: dict, models: int, expected: str) -> None:
    method, problems = parse_merge_method(name, parameters, models=models)
    assert method is None
    assert len(problems) == 1
    assert expected in problems[0]


def test_all_mistakes_at_once() -> None:
    _, problems = parse_merge_method(
        "ties", {"densty": 0.5, "density": 2, "scale": "big", "weights": (1, 2), "semantics": "x"}, models=3
    )
    assert len(problems) == 5
    with pytest.raises(ConfigError) as caught:
        merge_method("dare", density=0, seed=0.5, bogus=1)
    assert len(caught.value.problems) == 3


def test_a_record_says_the_same_whether_a_number_is_written_with_a_point() -> None:
    assert repr(merge_method("ties", density=1, scale=2).identity()) == repr(
        merge_method("ties", density="1.0", scale=2.0).identity()
    )


# ------------------------------------------------------------------------------------------------------------- own code

OWN = """
from dataclasses import dataclass
from typing import Annotated, ClassVar

from holdfast.checkpoints.methods.protocol import MergeMethod, Sum
from holdfast.config.declare import Meta


@dataclass(frozen=True, kw_only=True)
class First(MergeMethod):
    name: ClassVar[str] = "first"
    needs_base: ClassVar[bool] = False
    models: ClassVar[tuple[int, int | None]] = (1, None)

    share: Annotated[float, Meta(gt=0, le=1)] = 1.0
    \"\"\"Of the first model.\"\"\"

    def as_sum(self, models, state):
        return Sum(None, [(self.share, 1, None)])


class Bare(MergeMethod):
    pass
"""


def test_a_method_in_a_file_of_the_users_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(OWN)
    method = merge_method(f"{file}:First", share="0.5")
    identity = method.identity()
    assert (identity["method"], identity["share"], identity["code"]) == ("first", 0.5, "mine.py:First")
    assert len(identity["code_sha256"]) == 16
    assert type(method) is find_method(f"{file}:First"), "a file is run once"
    with pytest.raises(ConfigError, match="share: expected a number above 0 and at most 1"):
        merge_method(f"{file}:First", share=2)
    with pytest.raises(ConfigError, match="class variables name, needs_base and models"):
        find_method(f"{file}:Bare")


def test_a_method_behind_an_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_package.py").write_text(OWN)
    info = tmp_path / "their_package-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\nfirst = their_package:First\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_method("first").name == "first"
    assert find_method("their_package:First") is find_method("first")
