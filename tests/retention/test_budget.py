"""The budget: its controller on a plant with lag, what it refuses, and runs that end where they should."""

from __future__ import annotations

import dataclasses
import math

import cases
import pytest
import torch
from cases import history, largest_difference, weights
from datasets import Dataset

from data_files import text_rows
from holdfast.errors import TrainingDiverged
from holdfast.retention.anchor import Anchors
from holdfast.retention.methods.budget import (
    FIRST,
    HEADROOM,
    HEADROOM_UP_TO,
    RANGE,
    Budget,
    _Controller,
    adapted,
    combination_problems,
)
from holdfast.retention.methods.l2 import L2
from holdfast.retention.methods.label_annealing import LabelAnnealing
from holdfast.retention.protocol import StepInfo
from holdfast.retention.registry import parse_retention
from holdfast.retention.services import StepFigures
from tiny import SENTENCES

# ------------------------------------------------------------------------------------------------------- the controller


def shape(name: str, x: float) -> float:
    return {"constant": 1.0, "linear": 1 - x, "cosine": 0.5 + 0.5 * math.cos(math.pi * x)}[name]


def plant(
    limit: float,
    start: float,
    schedule: str,
    *,
    unit: float = 1.0,
    relative: bool = True,
    total: int = 300,
    noise: float = 0.0,
) -> tuple[float, list[float]]:
    """KL that relaxes towards 0.5 / (1 + s)^1.4, about as runs of fixed strength end, by the learning rate's share, and
    the faster the larger s is.

    Args:
        unit: of s.
    """
    bounds = (0.05, 100.0) if relative else (start / RANGE, start * RANGE)
    controller = _Controller(limit=limit, start=start, bounds=bounds, relative=relative)
    generator = torch.Generator().manual_seed(0)
    kl, s, path = 0.0, start, []
    for step in range(1, total + 1):
        rate = shape(schedule, (step - 1) / total)
        kl += (1 + s / unit) / (0.17 * total) * rate * (0.5 / (1 + s / unit) ** 1.4 - kl)
        measured = kl * math.exp(noise * float(torch.randn((), generator=generator)))
        s = controller.strength(measured, step=step, total=total)
        path.append(kl)
    return kl, path


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
@pytest.mark.parametrize(("limit", "start", "noise"), [(0.01, FIRST, 0.1), (0.05, 30.0, 0.0), (0.2, 10.0, 0.1)])
def test_controller_lands_on_the_budget(limit, start, schedule, noise):
    reached, path = plant(limit, start, schedule, noise=noise)
    assert reached == pytest.approx(limit, rel=0.1)
    assert max(path) < (1 + HEADROOM * HEADROOM_UP_TO) * limit
    assert max(path[3 * len(path) // 4 :]) < 1.4 * limit


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
@pytest.mark.parametrize(("limit", "start", "unit"), [(0.05, 0.3, 1e-3), (0.2, 3.0, 1.0), (0.05, 30.0, 1e3)])
def test_controller_finds_strengths_of_any_unit(limit, start, unit, schedule):
    """L2 and EWC: what is large is not known beforehand, so it may begin with too little and has to come back."""
    reached, _ = plant(limit, start * unit, schedule, unit=unit, relative=False)
    assert reached == pytest.approx(limit, rel=0.1)


def test_controller_lets_go_where_the_budget_is_not_needed():
    """Direct fine-tuning of this plant ends at 1: a budget of 3 asks for nothing, and the strength falls."""
    controller = _Controller(limit=3.0, start=1.0, bounds=(0.05, 100.0))
    strengths = [controller.strength(0.5, step=t, total=100) for t in range(1, 101)]
    assert strengths[-1] == 0.05


def test_the_way_back_from_a_bound_is_short():
    """However long the constraint was far away, the integral is no further out than the bound."""
    controller = _Controller(limit=0.1, start=1.0, bounds=(0.05, 100.0))
    for step in range(1, 91):
        controller.strength(1e-6, step=step, total=100)
    assert controller.start * math.exp(controller.integral) == pytest.approx(0.05)
    for step in range(91, 96):
        held = controller.strength(0.15, step=step, total=100)
    assert held > 0.09


class FewQuestions:
    """What a budget on the training tokens asks of its host."""

    def __init__(self) -> None:
        self.adapted = L2(coefficient=1.0).start(Anchors({}))

    def method(self, name):
        return self.adapted if name == "label_annealing" else None

    def say(self, text):
        pass


def test_the_mean_of_the_kl_has_no_bias_towards_its_beginning():
    """One step's KL is its own mean, and a constant KL is every step's, from the first on."""
    active = Budget(kl=0.1).start(Anchors({}))
    active.prepare(FewQuestions())
    found = []
    for step, kl in enumerate([0.04, 0.04, 0.04, 0.08], 1):
        active.weights({}, StepInfo(step=step, total_steps=100, figures=StepFigures(ce=1.0, kl=kl)))
        found.append(active.metrics({})["budget_constraint"])
    assert found[:3] == pytest.approx([0.04] * 3)
    assert 0.04 < found[3] < 0.08


# ----------------------------------------------------------------------------------------------------------- parameters


@pytest.mark.parametrize(("given", "share"), [("2%", 0.02), ("2 %", 0.02), ("0.02", 0.02), (0.02, 0.02)])
def test_perplexity_is_a_share(given, share, tmp_path):
    (tmp_path / "h.jsonl").write_text('{"text": "x"}\n')
    method = Budget(perplexity_increase=given, data=str(tmp_path / "h.jsonl"))
    assert method.problems() == []
    assert method.limit == pytest.approx(math.log(1 + share))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({}, "expected kl or perplexity_increase, got none"),
        ({"kl": 0.1, "perplexity_increase": "2%"}, "got both (kl=0.1, perplexity_increase=2%)"),
        ({"perplexity_increase": "two"}, "expected a share above 0, such as 2% or 0.02"),
        ({"perplexity_increase": "2%"}, "budget.data: expected held-out text"),
    ],
)
def test_bad_parameters_are_named(parameters, message):
    assert any(message in problem for problem in parse_retention({"budget": parameters})[1])


@pytest.mark.parametrize(
    "parameters",
    [
        {"kl": math.inf},
        {"perplexity_increase": "inf", "data": "x"},
        {"perplexity_increase": math.inf},
    ],
)
def test_no_constraint_is_off(parameters):
    assert Budget(**parameters).off
    assert not Budget(kl=0.1).off


def test_a_period_longer_than_the_run_is_refused():
    assert Budget(kl=0.1, data="x", every=7).check_run(total_steps=6) == [
        "every: expected at most the run's 6 steps, got 7"
    ]
    assert Budget(kl=0.1, every=7).check_run(total_steps=6) == []  # nothing held out, no period


def test_what_is_adapted():
    kl, perplexity = Budget(kl=0.1), Budget(perplexity_increase="2%", data="x")
    assert adapted(kl, ["l2", "label_annealing"]) == ("label_annealing", [])
    assert adapted(perplexity, ["l2"]) == ("l2", [])
    assert "Add label_annealing" in adapted(kl, ["l2"])[1][0]  # no teacher, no KL
    assert "Add label_annealing" in adapted(perplexity, ["sfa"])[1][0]
    assert "got l2 and ewc" in adapted(perplexity, ["ewc", "l2"])[1][0]
    assert combination_problems([kl, LabelAnnealing(weight=0.0)])
    assert combination_problems([kl, LabelAnnealing()]) == []
    assert combination_problems([Budget(kl=math.inf), L2()]) == []


# ----------------------------------------------------------------------------------------------------------------- runs


def make_trainer(folder, retain, **settings):
    defaults = dict(per_device_train_batch_size=8, learning_rate=3e-3, lr_scheduler_type="cosine", logging_steps=1)
    data = Dataset.from_list([{"text": f"{number}. {sentence}"} for number in range(16) for sentence in SENTENCES])
    return cases.make_trainer(folder, retain, data=data, **{**defaults, **settings})


def held_out(folder):
    texts = [f"Old knowledge number {i} is a list of names." for i in range(12)]
    return str(text_rows(folder / "held out.jsonl", texts))


@pytest.mark.parametrize("start", [0.1, pytest.param(10.0, marks=pytest.mark.slow)])
def test_run_ends_at_the_budget_wherever_the_strength_began(start, tmp_path):
    from holdfast.training.method_services import TrainerServices

    trainer = make_trainer(tmp_path, [LabelAnnealing(weight=start), Budget(kl=0.05)], max_steps=100)
    trainer.train()
    reached = TrainerServices(trainer, print).mean_loss(trainer.train_dataset).kl
    assert reached == pytest.approx(0.05, rel=0.15)
    assert history(trainer, "budget_limit")[-1] == 0.05
    assert history(trainer, "budget_constraint")[-1] == pytest.approx(0.05, rel=0.15)
    assert history(trainer, "budget_strength")[-1] == trainer.active[0].strength != start


def test_a_measurement_that_is_no_number_ends_the_run(tmp_path, monkeypatch):
    """It would be taken for a drop of nothing: every comparison with a NaN is false."""
    from holdfast.training.method_services import TrainerServices

    measured, mean_loss = [], TrainerServices.mean_loss

    def spoilt(self, rows):
        measured.append(mean_loss(self, rows))
        return measured[-1] if len(measured) < 3 else dataclasses.replace(measured[-1], ce=math.nan)

    monkeypatch.setattr(TrainerServices, "mean_loss", spoilt)
    budget = Budget(perplexity_increase="5%", data=held_out(tmp_path), every=2)
    trainer = make_trainer(tmp_path, [L2(coefficient=0.1), budget], max_steps=8)
    with pytest.raises(TrainingDiverged, match="forgetting measured after step 4 is nan nats per token"):
        trainer.train()


@pytest.mark.parametrize(
    "kind", ["kl", *(pytest.param(k, marks=pytest.mark.slow) for k in ("kl, held out", "perplexity"))]
)
def test_resumed_run_is_the_uninterrupted_one(kind, tmp_path):
    budget = {
        "kl": Budget(kl=0.01),
        "kl, held out": Budget(kl=0.01, data=held_out(tmp_path), every=2),
        "perplexity": Budget(perplexity_increase="1%", data=held_out(tmp_path), every=2),
    }[kind]
    settings = {"save_strategy": "steps", "save_steps": 3}
    whole = make_trainer(tmp_path, [LabelAnnealing(weight=3.0), budget], **settings)
    whole.train()
    again = make_trainer(tmp_path, [LabelAnnealing(weight=3.0), budget], **settings)
    again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-3"))
    assert again.active[0].strength == whole.active[0].strength != 3.0
    assert again.active[1].state_dict() == whole.active[1].state_dict()
    assert largest_difference(weights(whole), weights(again)) == 0.0
