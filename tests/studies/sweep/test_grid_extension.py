"""Grids that grow at their ends; runs are stood in for (`study_of`), all else is real."""

from __future__ import annotations

import dataclasses

import pytest

from holdfast.errors import ConfigError, TrainingDiverged
from holdfast.studies.engine.session import Opened
from holdfast.studies.engine.storage import Storage
from holdfast.studies.sweep.grid_extension import extended_grid
from holdfast.studies.sweep.session import SweepStudy
from holdfast.studies.sweep.study import PARAMS
from studies.sweep.stand_in_runs import a_run, weight_of

ANNEALED = [{"label_annealing": {"weight": [0.5, 2]}}]


def fading(settings, seed):
    """The stronger the pull, the less is learnt and forgotten; beyond 10 nothing is learnt."""
    weight = weight_of(settings)
    return a_run(seed, 1 - 0.1 * weight, -1 / (1 + weight))


def weights(found):
    return [t.params["label_annealing.weight"] for t in found.record.trials if t.kind == "label_annealing"]


def asked_for(rule, extend, **more):
    return {"arms": ANNEALED, "select": {"rule": rule}, "search": {"sampler": "grid", "extend": extend}, **more}


def test_it_grows_until_the_rule_drops_a_value(ran):
    """0.5 and 2 improve the target, so 8 follows, which does too, and 32, which does not; a third is not needed."""
    found = ran(fading, **asked_for("paper", 3))
    assert weights(found) == [0.5, 2, 8.0, 32.0]
    record = found.record
    assert record.status == "finished" and [t.state for t in record.trials] == ["complete"] * 5
    assert [t.label for t in record.trials[3:]] == ["label annealing, weight 8", "label annealing, weight 32"]
    assert record.trials[3].settings["retention"] == [{"label_annealing": {"weight": 8.0, "teacher": "cached"}}]
    last = "label annealing, weight 32 was added beyond 8: the rule paper takes the last value of the grid there"
    assert f"{last}." in record.notes and len(record.notes) == 2
    assert f"The study grows: {last}." in found.text
    assert found.work() == 0


@pytest.mark.slow
def test_it_grows_at_the_weak_end_where_nothing_is_learnt(ran):
    """All of 16 and 64 is dropped, 4 improves the learn: the rule sees both sides of its choice's edge, but 4 is the
    last value, so 1 follows; then the choice lies inside."""
    strong = [{"label_annealing": {"weight": [16, 64]}}]
    found = ran(fading, **asked_for("paper", 5, arms=strong))
    assert weights(found) == [16, 64, 4.0, 1.0]
    assert "drops all of its values" in found.record.notes[0]


@pytest.mark.slow
def test_lines_grow_each_by_itself_and_not_beyond_what_a_method_takes(ran):
    """Each temperature has its line. After the decays 0.9 and 0.99 comes 1.089, which is none: the grid grows at its
    other end alone."""
    two = [{"label_annealing": {"weight": [0.5, 2], "temperature": [1, 2]}}, {"l2": {"coefficient": 1}}]
    found = ran(fading, **asked_for("paper", 1, arms=two))
    grown = [t.params for t in found.record.trials[6:]]
    assert [(p["label_annealing.weight"], p["label_annealing.temperature"]) for p in grown] == [
        (8.0, 1),
        (8.0, 2),
    ]
    decays = [{"ema": {"decay": [0.9, 0.99]}}]
    bounded = ran(lambda settings, seed: a_run(seed, 1.0, -0.1), **asked_for("paper", 2, arms=decays, name="bounded"))
    assert [t.params["ema.decay"] for t in bounded.record.trials[1:]] == [0.9, 0.99, 0.818182, 0.743802]


def test_an_interrupted_study_grows_to_the_same_grid(study_of):
    """Ctrl-C in the first value that was added; the next worker takes it up, and nothing is added twice."""
    stops = [True]

    def run(settings, seed):
        if weight_of(settings) == 8.0 and stops:
            stops.pop()
            raise KeyboardInterrupt
        return fading(settings, seed)

    found = study_of(run, **asked_for("paper", 3))
    with pytest.raises(KeyboardInterrupt):
        found.work()
    assert weights(found)[:2] == [0.5, 2] and len(found.record.trials) == 4
    other = Storage(found.config.storage)  # somebody else asks meanwhile
    assert other.extend(other.load("tiny"), SweepStudy(found.config)) == (True, [])
    other.close()
    found.work()
    assert weights(found) == [0.5, 2, 8.0, 32.0]


def test_what_still_has_to_grow_is_not_finished(study_of, monkeypatch):
    """Stopped between the last trial and the growth; another rule than the study's asks for nothing."""
    found = study_of(fading, **asked_for("paper", 1))
    with monkeypatch.context() as stopped:
        stopped.setattr(Storage, "extend", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            found.work()
    opened = Opened(storage=found.storage, queue=found.study, study=SweepStudy(found.config))
    assert (opened.record().status, opened.record().finished, weights(found)) == ("interrupted", None, [0.5, 2])
    found.work()
    assert opened.record().status == "finished" and opened.record().finished and weights(found) == [0.5, 2, 8.0]
    other = dataclasses.replace(found.config, select={"rule": "keep_within", "points": 10.0})
    assert extended_grid(opened.study.outcome(opened.state()), other) == []
    opened.study = SweepStudy(other)  # as `sweep report --rule` does; by this rule 0.125 would follow
    assert len(extended_grid(opened.record(), other)) == 1 and opened.record().status == "finished"


def test_a_value_that_failed_is_tried_again_and_nothing_follows_before(study_of):
    fails = [True]

    def run(settings, seed):
        if weight_of(settings) == 8.0 and fails:
            fails.pop()
            raise TrainingDiverged("the loss became NaN")
        return fading(settings, seed)

    found = study_of(run, **asked_for("paper", 3))
    found.work()
    assert [t.state for t in found.record.trials] == ["complete"] * 3 + ["failed"]
    found.study = found.storage.open_study(found.config)  # as the same command does
    assert found.study.get_trials()[-1].user_attrs[PARAMS] == {"label_annealing.weight": 8.0}
    found.work()
    assert [t.state for t in found.record.trials] == ["complete"] * 3 + ["failed", "complete", "complete"]
    assert found.record.status == "finished"


# ------------------------------------------------------------------------------------------------- more alternatives


def test_alternatives_are_added_behind_a_grid_that_grew(study_of):
    """What is there keeps its slots, also what the grid has grown by; the new alternative's trials follow."""
    first = study_of(fading, **asked_for("paper", 1))
    first.work()
    before = [(t.number, t.label, t.arm) for t in first.record.trials]
    assert before[-1][1:] == ("label annealing, weight 8", "label annealing")
    more = [*ANNEALED, {"l2": {"coefficient": [0.5, 2.0]}}]
    second = study_of(fading, **asked_for("paper", 1, arms=more))
    second.work()
    record = second.record
    assert [(t.number, t.label, t.arm) for t in record.trials][: len(before)] == before
    assert len(second.calls) == 3 and [t.arm for t in record.trials[len(before) :]] == ["L2"] * 3
    assert record.status == "finished"
    third = study_of(fading, **asked_for("paper", 1, arms=more))
    assert third.work() == 0
    with pytest.raises(ConfigError, match=r"arms"):
        study_of(fading, **asked_for("paper", 1))
