"""WiSE-FT whose alpha is found: the search, what it keeps within, what it says, and what interrupts it."""

from __future__ import annotations

import math

import pytest
import torch
from cases import history, largest_difference, make_trainer, weights, words, write_unlike

from holdfast.errors import ConfigError, TrainingDiverged
from holdfast.retention.registry import parse_retention
from holdfast.retention.rewinding import Try, step_back
from holdfast.retention.services import StepFigures
from tiny import build_model

LIMIT = 0.1
TASK = {"alpha": "auto", "metric_drop": "1 point", "task": "words"}


def auto(tmp_path, **changes):
    return {"wise_ft": {"alpha": "auto", "limit": LIMIT, "data": str(write_unlike(tmp_path)), **changes}}


def worse(factor):
    """A task that training makes the model worse at."""
    return {"words": lambda model: [-factor * v for v in words(model)]}


@pytest.mark.parametrize(
    ("limit", "tries", "alpha", "tried"),
    [
        (1.0, 8, 1.0, [1.0]),  # the end is within the limit: nothing to step back from
        (0.25, 5, 0.5, [1.0, 0.5, 0.75, 0.625, 0.5625]),
        (0.0, 3, 0.0, [1.0, 0.5, 0.25]),
        (0.5, 1, 0.0, [1.0]),
    ],
)
def test_the_search_halves_and_returns_what_was_measured_within(limit, tries, alpha, tried):
    found, way = step_back(lambda a: a * a, limit=limit, tries=tries)
    assert found == alpha
    assert [t.alpha for t in way] == tried
    assert way == [Try(a, a * a) for a in tried]


def test_a_loss_that_does_not_rise_with_alpha_is_still_kept_within():
    def lost(a):
        return {1.0: 2.0, 0.5: 0.01, 0.75: 0.3, 0.625: 0.02}[a]

    assert step_back(lost, limit=0.05, tries=4)[0] == 0.625


def test_the_result_is_that_of_the_alpha_given_as_a_number(tmp_path):
    """Bit for bit, and its held-out loss is within the limit, as the run's record says."""
    trainer = make_trainer(tmp_path, auto(tmp_path), logging_steps=1)
    trainer.train()
    outcome = trainer.outcomes()["wise_ft"]
    alpha, tries = outcome["alpha"], {t["alpha"]: t["lost"] for t in outcome["tries"]}
    assert 0 < alpha < 1 and tries[1.0] > LIMIT >= tries[alpha] > 0 and len(tries) == 8
    assert alpha + 1 / 128 in tries or min(a for a in tries if a > alpha) - alpha == 1 / 128
    assert outcome["unit"] == "nats per token" and "note" not in outcome
    assert history(trainer, "wise_ft_alpha") == [alpha]
    assert history(trainer, "wise_ft_lost") == [tries[alpha]]
    given = make_trainer(tmp_path, {"wise_ft": {"alpha": alpha}})
    given.train()
    assert largest_difference(weights(trainer), weights(given)) == 0.0


def test_a_limit_that_leaves_nothing_of_the_training_is_said(tmp_path):
    start = weights(make_trainer(tmp_path, {}))
    said = []
    trainer = make_trainer(tmp_path, auto(tmp_path, limit=0.0, tries=1))
    trainer.prepare_methods(said.append)
    trainer.train()
    assert largest_difference(start, weights(trainer)) == 0.0
    assert "none of 1 try was within the limit" in said[-1]
    assert trainer.outcomes()["wise_ft"]["note"].endswith("such as label_annealing.")


def test_a_metric_is_the_limit(tmp_path):
    """Its drop in points over the same questions; a drop smaller than one of them is refused."""
    trainer = make_trainer(tmp_path, {"wise_ft": TASK}, scorers=worse(5))
    trainer.train()
    outcome = trainer.outcomes()["wise_ft"]
    tries = {t["alpha"]: t["lost"] for t in outcome["tries"]}
    assert outcome["unit"] == "points" and 0 < outcome["alpha"] < 1
    assert tries[1.0] > 1.0 >= tries[outcome["alpha"]] > 0
    few = make_trainer(tmp_path, {"wise_ft": TASK}, scorers={"words": lambda model: [0.5, 0.5]})
    with pytest.raises(ConfigError, match="at least 50 points, one of the 2 questions"):
        few.train()


class Stop(Exception):
    pass


def test_interrupted_between_two_tries_it_ends_the_same(tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 2}
    whole = make_trainer(tmp_path, auto(tmp_path), **settings)
    whole.train()
    again = make_trainer(tmp_path / "again", auto(tmp_path), **settings)
    again.prepare_methods()
    host, calls = again.active[0]._host, []

    class Dying:
        def mean_loss(self, rows):
            calls.append(None)
            if len(calls) == 3:
                raise Stop
            return host.mean_loss(rows)

        say = staticmethod(host.say)

    again.active[0]._host = Dying()
    with pytest.raises(Stop):
        again.train()
    resumed = make_trainer(tmp_path / "again", auto(tmp_path), **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "again" / "run" / "checkpoint-4"))
    assert largest_difference(weights(whole), weights(resumed)) == 0.0
    assert resumed.outcomes() == whole.outcomes()


def test_an_anchor_beyond_the_limit_is_refused_before_training(tmp_path):
    other = build_model(seed=11)
    with torch.no_grad():
        other.lm_head.weight.mul_(9)
    other.save_pretrained(tmp_path / "other")
    trainer = make_trainer(tmp_path, auto(tmp_path, anchor=str(tmp_path / "other"), limit=1e-6))
    start = weights(trainer)
    with pytest.raises(ConfigError, match=r"wise_ft.limit: expected an anchor that keeps it.*other\), 1e-06 are allow"):
        trainer.train()
    assert largest_difference(start, weights(trainer)) == 0.0


def test_under_lora_the_adapter_is_scaled(tmp_path):
    trainer = make_trainer(tmp_path, {"wise_ft": TASK}, peft=True, scorers=worse(200))
    trainer.train()
    alpha = trainer.outcomes()["wise_ft"]["alpha"]
    assert 0 < alpha < 1
    direct = make_trainer(tmp_path, {}, peft=True)
    direct.train()
    expected = {n: alpha * w if "lora_B" in n else w for n, w in weights(direct).items()}
    assert largest_difference(expected, weights(trainer)) < 1e-6


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path):
    trainer = make_trainer(tmp_path, auto(tmp_path))
    trainer.prepare_methods()

    class Broken:
        def mean_loss(self, rows):
            return StepFigures(ce=math.nan, kl=None)

    trainer.active[0]._host = Broken()
    with pytest.raises(TrainingDiverged, match="expected a finite loss on held-out data, got nan"):
        trainer.train()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"alpha": "auto"}, "alpha: auto expects one of limit and metric_drop, got none"),
        ({"alpha": "auto", "metric_drop": "1 point"}, "wise_ft.task: expected the task of metric_drop, got nothing"),
        (
            {"alpha": "auto", "limit": 0.1, "metric_drop": "1 point", "data": "hub/set", "task": "x"},
            "one of limit and metric_drop, got both",
        ),
        ({"alpha": 0.5, "limit": 0.1}, "wise_ft.limit: belongs to alpha: auto, got alpha=0.5"),
        ({"alpha": "auto", "metric_drop": "0.01", "task": "x"}, "expected points above 0 with their unit"),
        ({"alpha": "some"}, "expected a number from 0 to 1, or auto, got 'some'"),
    ],
)
def test_what_does_not_go_together_is_refused(given, expected):
    _, mistakes = parse_retention({"wise_ft": given})
    assert any(expected in m.sentence() for m in mistakes), [m.sentence() for m in mistakes]
