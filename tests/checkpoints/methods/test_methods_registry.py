"""Names, help and mistakes of merge requests."""

from __future__ import annotations

import pytest

from holdfast.checkpoints.methods.registry import METHODS, find_method, merge_method, parameters_of, parse_merge_method
from holdfast.errors import ConfigError


@pytest.mark.parametrize("name", METHODS)
def test_every_method_says_what_it_is(name: str) -> None:
    cls = METHODS[name]
    assert cls.name == name
    assert cls.summary and cls.summary[0].islower()
    assert cls.source and cls.__doc__
    assert cls.models[0] >= 1
    assert merge_method(name).problems() == [], "the defaults are a method"
    assert merge_method(name).scope in ("none", "tensor", "model")
    for parameter in parameters_of(cls):
        assert parameter.help, f"{name}.{parameter.name} needs a help text"
        assert not parameter.choices or parameter.default in parameter.choices


def test_other_ways_to_write_a_name() -> None:
    assert find_method("soup") is METHODS["linear"]
    assert find_method("Wise-FT") is METHODS["wise_ft"]
    assert find_method("dare_linear") is METHODS["dare"]
    assert find_method("mean") is None


def test_parameters_as_text() -> None:
    method, problems = parse_merge_method(
        "ties", {"density": "5e-1", "weights": "0.5, 1", "normalize": "false", "semantics": "mergekit"}, models=2
    )
    assert problems == []
    assert method == merge_method("ties", density=0.5, weights=(0.5, 1.0), normalize=False, semantics="mergekit")
    assert merge_method("linear", weights=[1, 2]).weights == (1.0, 2.0)  # type: ignore[attr-defined]
    assert merge_method("linear", weights=2).weights == (2.0,)  # type: ignore[attr-defined]
    assert merge_method("dare", seed="7").seed == 7  # type: ignore[attr-defined]
    assert merge_method("dare_ties", normalize=None, p=None).identity()["normalize"] is None


@pytest.mark.parametrize(
    ("name", "parameters", "models", "expected"),
    [
        ("tie", {}, 2, "Did you mean 'ties'?"),
        ("task-aritmetic", {}, 2, "Did you mean 'task_arithmetic'?"),
        ("ties", {"densty": 0.5}, 2, "Did you mean 'density'?"),
        ("slerp", {"weights": (1, 2)}, 2, "slerp: unknown parameter 'weights'; known: t"),
        ("slerp", {"t": 1.5}, 2, "slerp.t: expected a number in [0, 1], got 1.5"),
        ("slerp", {"t": float("nan")}, 2, "slerp.t: expected a number in [0, 1], got nan"),
        ("slerp", {}, 3, "slerp: expected 2 models, got 3"),
        ("wise_ft", {"alpha": -0.1}, 1, "wise_ft.alpha: expected a number in [0, 1], got -0.1"),
        ("wise_ft", {}, 2, "wise_ft: expected 1 model beside the base, got 2"),
        ("linear", {}, 0, "linear: expected 1 or more models, got 0"),
        ("linear", {"weights": (1, -1)}, 2, "linear.weights: expected 0 or more for a mean, got 1, -1"),
        ("linear", {"weights": (0, 0)}, 2, "linear.weights: expected a sum above 0, got 0, 0"),
        ("linear", {"weights": (1, float("nan"))}, 2, "linear.weights: expected finite numbers, got 1, nan"),
        (
            "linear",
            {"weights": (1, float("inf")), "normalize": False},
            2,
            "linear.weights: expected finite numbers, got 1, inf",
        ),
        ("linear", {"weights": (1, 2, 3)}, 2, "expected one weight for each of the 2 models, got 3 (1, 2, 3)"),
        ("linear", {"weights": "a b"}, 2, "linear.weights: expected numbers, one a model, got 'a b'"),
        ("linear", {"normalize": "maybe"}, 2, "linear.normalize: expected true or false, got 'maybe'"),
        ("task_arithmetic", {"scale": float("nan")}, 2, "task_arithmetic.scale: expected a finite number, got nan"),
        ("ties", {"density": 0}, 2, "ties.density: expected a number in (0, 1], got 0"),
        ("ties", {"density": 1.2}, 2, "ties.density: expected a number in (0, 1], got 1.2"),
        ("ties", {"density": True}, 2, "ties.density: expected a number, got True"),
        (
            "ties",
            {"semantics": "merge-kit"},
            2,
            "ties.semantics: expected one of original, mergekit, got 'merge-kit'. Did you mean 'mergekit'?",
        ),
        ("dare", {"p": 1}, 2, "dare.p: expected a number in [0, 1), got 1"),
        ("dare_ties", {"density": 0}, 2, "dare_ties.density: expected a number in (0, 1], got 0"),
        ("dare", {"p": 0.5, "density": 0.5}, 2, "dare: expected one of p and density, got p=0.5 and density=0.5"),
        ("dare", {"seed": 1.5}, 2, "dare.seed: expected a whole number, got 1.5"),
        ("breadcrumbs", {"gamma": 1}, 2, "breadcrumbs.gamma: expected a number in [0, 1), got 1"),
        (
            "breadcrumbs",
            {"density": 0.9, "gamma": 0.2},
            2,
            "breadcrumbs: expected density + gamma of at most 1, got 0.9 + 0.2",
        ),
        ("fisher", {"weights": (1, -2)}, 2, "fisher.weights: expected 0 or more for a mean, got 1, -2"),
        ("fisher", {"floor": -1}, 2, "fisher.floor: expected 0 or more, got -1"),
    ],
)
def test_mistakes(name: str, parameters: dict, models: int, expected: str) -> None:
    method, problems = parse_merge_method(name, parameters, models=models)
    assert method is None
    assert len(problems) == 1
    assert expected in problems[0]


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("linear", {"weights": (2, -1), "normalize": False}),
        ("task_arithmetic", {"weights": (2, -1), "scale": -1}),
        ("breadcrumbs", {"density": 0.9, "gamma": 0.1}),
        ("dare", {"p": 0}),
        ("ties", {"density": 1}),
    ],
)
def test_unusual_but_sound(name: str, parameters: dict) -> None:
    assert parse_merge_method(name, parameters, models=2)[1] == []


def test_all_mistakes_at_once() -> None:
    _, problems = parse_merge_method(
        "ties", {"densty": 0.5, "density": 2, "scale": "big", "weights": (1, 2), "semantics": "x"}, models=3
    )
    assert len(problems) == 5
    with pytest.raises(ConfigError) as caught:
        merge_method("breadcrumbs", density=0, gamma=-1, bogus=1)
    assert len(caught.value.problems) == 3
