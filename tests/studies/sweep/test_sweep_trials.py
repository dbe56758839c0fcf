"""What a worker does with failures, and how records are made of what the storage holds. Runs
are stood in for."""

from __future__ import annotations

import dataclasses

import optuna
import pytest

from holdfast.errors import ConfigError, Interrupted, TrainingDiverged
from holdfast.records.evaluation import Metric
from holdfast.records.study import StudyRecord
from holdfast.studies.engine import storage as stored
from holdfast.studies.engine.storage import Storage
from holdfast.studies.engine.worker import MOST_DEATHS
from holdfast.studies.sweep.record import gain, metric_problems, objective
from holdfast.studies.sweep.study import ObjectiveSettings, StudyConfig
from holdfast.studies.sweep.trial import with_shared_teacher
from holdfast.support.dates import dates_in
from holdfast.support.files import record_from, to_jsonable
from studies.sweep.stand_in_runs import Ran, a_run, comparison, weight_of

# ------------------------------------------------------------------------------------------------------------ workers


def test_every_trial_runs_every_seed_once(study_of):
    found = study_of(lambda settings, seed: a_run(seed, 1 - 0.1 * weight_of(settings), -0.5), seeds=[0, 1])
    assert found.work() == 5
    assert len(found.calls) == len(set(found.calls)) == 10
    record = found.record
    assert record.status == "finished"
    assert [t.label for t in record.trials] == [
        "direct fine-tuning",
        "label annealing, weight 0.5",
        "label annealing, weight 2",
        "L2, coefficient 0.01",
        "L2, coefficient 0.1",
    ]
    assert found.study.get_trials()[2].values == pytest.approx([0.8, -0.5])
    assert record.direct is not None
    assert record.trials[2].settings["retention"] == [{"label_annealing": {"weight": 2, "teacher": "cached"}}]
    assert (record.learn.entries, record.learn.unit) == ([("learn", "code", "nats_per_token")], "nats/token")
    assert "Trial 4: L2, coefficient 0.1" in found.text
    assert found.work() == 0


def test_templates_write_the_day_on_which_the_study_was_begun(study_of):
    """However late a worker joins, all of its models see the same text."""
    days = []

    def run(settings, seed):
        days.extend(dates_in("{{ strftime_now('%d %b %Y') }}"))
        return a_run(seed, 1.0, -0.5)

    found = study_of(run, seeds=[0])
    found.study.set_user_attr(stored.CREATED, "2001-02-03T00:00:00+00:00")
    found.work()
    assert set(days) == {"03 Feb 2001"}


def test_an_error_fails_its_trial_and_no_other(ran):
    def run(settings, seed):
        if weight_of(settings) == 2:
            raise TrainingDiverged("loss is not finite at step 3")
        return a_run(seed, 1.0, -0.5)

    found = ran(run)
    assert found.states == ["complete", "complete", "failed", "complete", "complete"]
    assert found.record.trials[2].reason == "loss is not finite at step 3"
    assert found.record.status == "failed"
    found.storage.open_study(found.config)
    assert found.states[2:] == ["failed", "complete", "complete", "waiting"]
    assert found.record.trials[2].continued_by == 5


def test_ctrl_c_gives_the_trial_back(study_of):
    def run(settings, seed):
        if weight_of(settings) == 0.5 and seed == 1:
            raise Interrupted("stopped at step 4")
        return a_run(seed, 1.0, -0.5)

    found = study_of(run, seeds=[0, 1])
    with pytest.raises(Interrupted):
        found.work()
    assert found.states == ["complete", "waiting", "waiting", "waiting", "waiting"]
    assert [r.seed for r in found.record.trials[1].runs] == [0]
    assert found.record.status == "interrupted"
    found.calls.clear()
    with pytest.raises(Interrupted):
        found.work()
    assert [seed for _, seed in found.calls] == [1]  # the first seed is not run again


def test_a_trial_that_kills_its_workers_is_given_up(study_of):
    found = study_of(lambda settings, seed: a_run(seed, 1.0, -0.5))
    lease = found.storage.take(found.study, "x|1:1:1")
    found.storage.set(lease, {"deaths": MOST_DEATHS - 1})
    found.storage.grace = -1.0
    found.storage.take(found.study, "x|1:2:1")
    found.work()
    assert found.states[0] == "failed"
    assert "3 workers were killed during this job" in found.record.trials[0].reason


def with_dev(asked):
    """The evaluation of a study whose target is chosen by the entry `dev`."""
    texts = {"code": asked["train"]["evaluation"]["learn"][0], "dev": asked["train"]["dataset_name"]}
    target = [{"perplexity": file, "name": name} for name, file in texts.items()]
    evaluation = {**asked["train"]["evaluation"], "learn": target}
    return {"train": {**asked["train"], "evaluation": evaluation}, "objectives": {"validation": "dev"}}


def test_validation_decides_all_that_is_chosen_while_trials_run(ran, asked):
    """What a sampler is told; the target, which says the opposite, is recorded."""

    def run(settings, seed):
        found, weight = a_run(seed, weight_of(settings), -weight_of(settings)), weight_of(settings)
        return dataclasses.replace(found, comparisons=[*found.comparisons, comparison("learn", "dev", weight)])

    arms = [{"label_annealing": {"weight": [0.5, 2]}}, {"l2": {"coefficient": [0.01, 5]}}]
    found = ran(run, seeds=[0, 1], arms=arms, **with_dev(asked))
    record = found.record
    assert found.study.metric_names == ["validation gain", "keep gain"]
    assert found.study.get_trials()[1].values == pytest.approx([-0.5, -0.5])
    assert found.states == ["complete"] * 5
    assert record.validation is not None and record.validation.entries == [("learn", "dev", "nats_per_token")]
    assert (record.learn.label, record.validation.unit) == ("code", "nats/token")
    assert record_from(StudyRecord, to_jsonable(record)) == record


@pytest.mark.slow
def test_the_reference_is_no_parent_of_a_genetic_search(ran):
    """It has no parameters: were it complete, Optuna would find that all trials have none in common, and draw at
    random."""
    weights = [
        {"label_annealing": {"weight": {"log": [0.1, 10]}}},
        {"l2": {"coefficient": {"log": [1e-3, 1]}}},
    ]
    search = {"sampler": "nsga2", "trials": 6, "seed": 1}
    found = ran(
        lambda settings, seed: a_run(seed, weight_of(settings), -weight_of(settings)),
        arms=weights,
        search=search,
    )
    assert found.states[0] == "complete"
    assert found.record.direct is not None
    assert found.study.get_trials()[0].state.name == "PRUNED"
    names = {"method", "label_annealing.weight", "l2.coefficient"}
    assert set(optuna.search_space.intersection_search_space(found.study.get_trials())) == names
    assert found.record.trials[1].params.keys() <= names
    assert len(found.record.trials[1].params) == 2


@pytest.mark.parametrize("sampler", ["tpe", pytest.param("random", marks=pytest.mark.slow)])
def test_samplers_draw_as_many_trials_as_asked_for(ran, sampler):
    found = ran(
        lambda settings, seed: a_run(seed, settings["learning_rate"], -1.0),
        arms=["none", {"sfa": {"p": [0.25, 0.5]}}],
        vary={"learning_rate": {"log": [1e-4, 1e-2]}},
        search={"sampler": sampler, "trials": 7},
    )
    assert len(found.record.trials) == len(found.calls) == len({t.label for t in found.record.trials}) == 8


# ------------------------------------------------------------------------------------------------------------ records


def test_a_mean_over_entries_is_of_gains():
    pairs = [
        comparison("s", "a", -0.2),
        comparison("s", "b", 0.4),
        comparison("s", "a", 9.0, metric="other", primary=False),
    ]
    both = ObjectiveSettings(entries=(("s", "a", None), ("s", "b", "nats_per_token")))
    assert gain(pairs, both) == pytest.approx(-0.1)
    assert gain(pairs, ObjectiveSettings(entries=(("s", "c", None),))) is None
    found = objective("keep", both, pairs)
    assert found.entries == [("s", "a", "nats_per_token"), ("s", "b", "nats_per_token")]
    assert (found.label, found.unit, found.higher_is_better) == ("mean of a, b (nats_per_token)", "nats/token", False)


def test_metrics_that_are_not_there_or_have_no_mean():
    def metric(unit, higher):
        return Metric(value=1.0, n=3, unit=unit, higher_is_better=higher)

    measured = {
        ("s", "a"): ({"acc": metric("accuracy", True)}, "acc"),
        ("s", "b"): ({"nats_per_token": metric("nats/token", False)}, "nats_per_token"),
    }
    assert metric_problems(ObjectiveSettings(entries=(("s", "a", "ac"),)), "keep", measured) == [
        "objectives.keep: a has no metric 'ac'. Did you mean 'acc'? It has: acc."
    ]
    mixed = metric_problems(ObjectiveSettings(entries=(("s", "a", None), ("s", "b", None))), "keep", measured)
    assert len(mixed) == 1
    assert "they cannot be averaged" in mixed[0]


def test_a_wrong_metric_ends_the_study_at_its_first_run(asked):
    """Which metrics there are is known once the start was measured, before anything is trained."""
    config = StudyConfig.read({**asked, "objectives": {"learn": "code/nats_per_tokn", "keep": "prose"}})
    storage = Storage(config.storage)
    found = Ran(storage, storage.open_study(config), config, [])
    with pytest.raises(
        ConfigError, match=r"objectives.learn: code has no metric 'nats_per_tokn'. Did you mean 'nats_per_token'"
    ):
        found.work()
    assert found.states.count("waiting") == 5
    assert [p.read_text() for p in config.output_dir.glob("runs/*/*/metrics.jsonl")] == [""]
    storage.close()


# ------------------------------------------------------------------------------------------------------------ teacher


def test_the_teacher_is_shared_unless_the_user_says_otherwise(asked):
    settings = {**asked["train"], "retention": [{"label_annealing": {"weight": 1}}, {"l2": {}}]}
    shared, note = with_shared_teacher(settings, "auto")
    assert (shared["retention"][0], note) == ({"label_annealing": {"weight": 1, "teacher": "cached"}}, None)
    assert settings["retention"][0] == {"label_annealing": {"weight": 1}}
    assert with_shared_teacher(settings, "online") == (settings, None)
    own = {**settings, "retention": [{"label_annealing": {"teacher": "online"}}]}
    assert with_shared_teacher(own, "auto") == (own, None)
    unknown, note = with_shared_teacher({**settings, "dataset_name": "some/hub-set"}, "auto")
    assert unknown["retention"][0] == {"label_annealing": {"weight": 1}}
    assert "the amount of data is unknown" in note
    assert with_shared_teacher(settings, "cached")[0]["retention"][0]["label_annealing"]["teacher"] == "cached"
