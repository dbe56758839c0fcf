"""What varies: reading it, its grid, its draws, its training configurations."""

from __future__ import annotations

import pytest

from holdfast.studies.engine.space import read_space

KNOWN = ["learning_rate", "max_steps", "lora_target_modules", "dataset_name"]


def space_of(section, base=None, *, grid=True):
    problems: list[str] = []
    vary = {key: values for key, values in section.items() if key != "arms"}
    found = read_space(section.get("arms"), vary, base, grid=grid, known=KNOWN, problems=problems)
    assert problems == []
    return found


def problems_of(section, base=None, *, grid=True):
    problems: list[str] = []
    vary = {key: values for key, values in section.items() if key != "arms"}
    read_space(section.get("arms"), vary, base, grid=grid, known=KNOWN, problems=problems)
    return problems


def test_parameters_belong_to_their_alternative():
    """2 weights x 2 temperatures + 3 coefficients + one combination of 2, each under 2 learning rates."""
    found = space_of(
        {
            "arms": [
                {"label_annealing": {"weight": [0.3, 1], "temperature": [1, 2]}},
                {"l2": {"coefficient": {"log": [0.001, 0.1], "points": 3}}},
                [{"replay": {"data": "old.jsonl", "fraction": 0.1}}, {"label_annealing": {"weight": [0.3, 1]}}],
                "none",
            ],
            "learning_rate": ["1e-5", 3.0e-5],
        }
    )
    grid = found.grid()
    assert len(grid) == (4 + 3 + 2 + 1) * 2
    settings = [found.settings({"max_steps": 5, "retention": [{"sfa": {}}]}, params) for params in grid]
    assert settings[0] == {
        "max_steps": 5,
        "learning_rate": 1e-5,
        "retention": [{"label_annealing": {"weight": 0.3, "temperature": 1}}],
    }
    assert settings[-1] == {"max_steps": 5, "learning_rate": 3e-5, "retention": []}
    assert [s["retention"][0]["l2"]["coefficient"] for s in settings[8:14:2]] == [0.001, 0.01, 0.1]
    assert settings[14]["retention"] == [
        {"replay": {"data": "old.jsonl", "fraction": 0.1}},
        {"label_annealing": {"weight": 0.3}},
    ]


def test_a_preset_is_its_methods_under_its_name():
    found = space_of({"arms": [{"asft": {"weight": [0.05, 0.1]}}, "asft", [{"asft": None}, {"label": "mine"}]]})
    settings = [found.settings({}, params)["retention"] for params in found.grid()]
    held = [[{"token_weighting": {"kind": "dft"}}, {"label_annealing": {"weight": w}}] for w in (0.05, 0.1, 0.1, 0.1)]
    assert settings == held
    assert [a.text for a in found.arms] == ["asft", "asft #2", "mine"]
    assert space_of({}, ["asft"]).settings({}, {})["retention"] == held[1]


def test_labels_name_what_varies():
    found = space_of(
        {
            "arms": [{"label_annealing": {"weight": [0.3, 1]}}, {"l2": {"coefficient": 0.1}}],
            "learning_rate": [1e-5, 3e-5],
        }
    )
    assert [found.label(p) for p in found.grid()] == [
        "label annealing, weight 0.3, learning rate 1e-05",
        "label annealing, weight 0.3, learning rate 3e-05",
        "label annealing, weight 1, learning rate 1e-05",
        "label annealing, weight 1, learning rate 3e-05",
        "L2, learning rate 1e-05",
        "L2, learning rate 3e-05",
    ]


def test_settings_of_one_alternative():
    """Other rates of direct fine-tuning beside methods that are tried at one rate."""
    found = space_of(
        {"arms": [{"l2": {"coefficient": [0.1, 1]}}, {"train": {"learning_rate": [1e-4, 4e-4], "max_steps": 7}}]}
    )
    base = {"learning_rate": 2e-4, "max_steps": 5, "retention": []}
    settings = [found.settings(base, params) for params in found.grid()]
    assert [(s["learning_rate"], s["max_steps"], len(s["retention"])) for s in settings] == [
        (2e-4, 5, 1),
        (2e-4, 5, 1),
        (1e-4, 7, 0),
        (4e-4, 7, 0),
    ]
    assert [found.label(p) for p in found.grid()][2:] == [
        "direct fine-tuning, learning rate 0.0001",
        "direct fine-tuning, learning rate 0.0004",
    ]
    assert [found.arm(p).kind for p in found.grid()][2:] == ["direct", "direct"]
    assert len(list(found.corners())) == 4 and base["learning_rate"] == 2e-4


def test_values_that_are_lists_come_back_as_lists():
    found = space_of({"lora_target_modules": [["q_proj"], ["q_proj", "v_proj"]]})
    assert [found.settings({}, p)["lora_target_modules"] for p in found.grid()] == [["q_proj"], ["q_proj", "v_proj"]]
    assert all(isinstance(p["lora_target_modules"], str) for p in found.grid())  # what a storage can hold
    assert found.middle() == {"lora_target_modules": ["q_proj"]}


@pytest.mark.parametrize(
    ("value", "points"),
    [
        ({"log": [0.1, 10], "points": 5}, [0.1, 0.316228, 1.0, 3.16228, 10]),
        ({"linear": [1, 2], "points": 3}, [1, 1.5, 2]),
        (7, [7]),
    ],
)
def test_points(value, points):
    found = space_of({"max_steps": value}).shared["max_steps"]
    assert found.tried() == pytest.approx(points)
    assert [type(p) for p in found.tried()] == [type(p) for p in points]


class FixedTrial:
    """Draws the last choice and the lower end, and keeps what was asked."""

    def __init__(self):
        self.asked: dict = {}

    def suggest_categorical(self, name, choices):
        self.asked[name] = choices
        return choices[-1]

    def suggest_float(self, name, low, high, **how):
        self.asked[name] = (low, high, how)
        return low


def test_only_the_chosen_alternative_is_drawn():
    vary = {
        "arms": [{"label_annealing": {"weight": {"log": [0.1, 10]}}}, {"l2": {"coefficient": {"log": [1e-4, 1]}}}],
        "max_steps": {"linear": [10, 50]},
    }
    found = space_of(vary, grid=False)
    trial = FixedTrial()
    assert found.suggest(trial) == {"method": "l2", "l2.coefficient": 1e-4, "max_steps": 10}
    assert trial.asked == {
        "method": ["label_annealing", "l2"],
        "l2.coefficient": (1e-4, 1, {"log": True}),
        "max_steps": (10, 50, {"log": False}),
    }
    everything = FixedTrial()
    assert found.suggest(everything, everything=True) == {"method": "l2", "l2.coefficient": 1e-4, "max_steps": 10}
    assert set(everything.asked) == {"method", "l2.coefficient", "label_annealing.weight", "max_steps"}


@pytest.mark.parametrize(
    ("vary", "expected"),
    [
        ({"arms": []}, "arms: expected a list of ways to train"),
        ({"arms": [{"label_anealing": {}}]}, "unknown method 'label_anealing'; known: none, label_annealing"),
        (
            {"arms": [{"l2": {"coefficient": []}}]},
            "arms[0].l2.coefficient: expected at least one value to try, got an empty list",
        ),
        ({"arms": [{"l2": {"coefficient": {"log": [0.1, 1]}}}]}, "a grid needs the number of points"),
        (
            {"learning_rate": {"log": [0, 1], "points": 3}},
            "vary.learning_rate.log[0]: expected a number above 0, got 0",
        ),
        ({"learning_rate": [1, 1]}, "expected different values"),
        (
            {"learning_rates": [1]},
            "vary.learning_rates: no such key in a training configuration. Did you mean 'learning_rate'?",
        ),
        ({"seed": [0, 1]}, "vary.seed: seeds repeat every trial and cannot vary"),
        ({"l2.coefficient": [1, 2]}, "vary.l2.coefficient: list the values of a method's parameter under arms"),
        ({"learning_rate": {"points": 3}}, "vary.learning_rate: expected a list of values, {log: [low, high]} or"),
        ({"arms": [{"asft": {"weight": [0, 0.1]}}]}, "arms[0].asft.weight: expected a number above 0"),
    ],
)
def test_mistakes(vary, expected):
    found = problems_of(vary)
    assert len(found) == 1
    assert expected in found[0]
