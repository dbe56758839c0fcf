"""What a sequence study asks for: arms, shared models, mistakes named before anything is trained."""

from __future__ import annotations

import pytest

from holdfast.errors import ConfigError
from holdfast.retention.protocol import Earlier
from holdfast.studies.sequence.plan import SequenceConfig, completed
from holdfast.studies.sequence.settings import read_arms

KNOWN = ["learning_rate", "max_steps"]


def arms_of(*items):
    problems: list[str] = []
    return read_arms(items, KNOWN, problems), problems


def test_arms_and_their_labels():
    arms, problems = arms_of(
        "single",
        "multitask",
        {"sfa": {"p": [1, 0.25]}},
        {"replay": {"fraction": 0.1}},
        [{"l2": {"coefficient": 0.1}}, {"train": {"learning_rate": 1e-3}}],
        {"merge": {"method": "task_arithmetic", "weights": [[0.25, 0.75], [0.5, 0.5]]}},
        {"merge": {"method": "ties", "density": [0.2, 0.5]}},
        {"merge": {"method": "fisher", "samples": 8}},
    )
    assert problems == []
    assert [(a.kind, a.label, a.strength) for a in arms] == [
        ("sequential", "sequential fine-tuning", None),
        ("single", "single task", None),
        ("multitask", "multitask training", None),
        ("sfa", "SFA, p 1", 1.0),
        ("sfa", "SFA, p 0.25", 0.25),
        ("replay", "replay, fraction 0.1", 0.1),
        ("l2", "L2, coefficient 0.1, learning rate 0.001", 0.1),
        ("merge", "merge: task arithmetic, weights 0.25/0.75", 0.75),
        ("merge", "merge: task arithmetic, weights 0.5/0.5", 0.5),
        ("merge", "merge: ties, density 0.2", 0.2),
        ("merge", "merge: ties, density 0.5", 0.5),
        ("merge", "merge: fisher", None),
    ]
    assert arms[6].train == {"learning_rate": 1e-3} and arms[8].merge["weights"] == [0.5, 0.5]


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ({"sfaa": {}}, "arms[0]: unknown method 'sfaa'"),
        ({"merge": {"method": "tis"}}, "Did you mean 'ties'?"),
        ({"merge": {"weights": [1]}}, "arms[0].merge: expected a mapping such as"),
        ([{"l2": {}}, {"train": {"learning_rat": 1}}], "arms[0].train.learning_rat: no such key"),
    ],
)
def test_arms_that_cannot_be(item, words):
    assert words in "\n".join(arms_of(item)[1])


def test_who_reads_old_data():
    """EWC computes its Fisher information on it."""
    arms, _ = arms_of(
        "single", {"sfa": {}}, {"replay": {}}, {"ewc": {}}, {"label_annealing": {}}, {"merge": {"method": "linear"}}
    )
    assert [a.old_data for a in arms] == [False, True, False, True, True, False, True]


def test_what_methods_take_from_earlier_tasks():
    earlier = Earlier(data=("a", "b"), base="models/base", fisher="runs/f")
    assert completed([{"label_annealing": {"weight": 1.0, "teacher": "online", "reference": "base"}}], earlier) == [
        {"label_annealing": {"weight": 1.0, "teacher": "online", "reference": "models/base"}}
    ]
    assert completed([{"replay": {"fraction": 0.2}}, {"sfa": {"p": 0.5}}], earlier) == [
        {"replay": {"fraction": 0.1, "data": "a"}},
        {"replay": {"fraction": 0.1, "data": "b"}},
        {"sfa": {"p": 0.5}},
    ]
    assert completed([{"ewc": {"coefficient": 3.0}}], earlier) == [
        {"ewc": {"coefficient": 3.0, "data": "b", "fisher": "runs/f"}}
    ]
    assert completed([{"multitask": None}], Earlier(data=("a", "b"))) == [
        {"multitask": {"data": "a"}},
        {"multitask": {"data": "b"}},
    ]
    with pytest.raises(ConfigError, match="Fisher information of the 1 tasks before that run"):
        completed([{"ewc": {}}], Earlier(data=("a", "b"), fisher=""))
    assert completed([{"ewc": {}}], Earlier(data=("a",), fisher="")) == [{"ewc": {"data": "a"}}]
    assert completed([{"ewc": {}}], Earlier(data=("a", "b"))) == [{"ewc": {"data": "b"}}], "still to come"
    given = [{"replay": {"data": "own", "fraction": 0.5}}, {"ewc": {"fisher": "mine"}}, {"multitask": {"data": "c"}}]
    assert completed(given, earlier) == given


def test_models_that_several_arms_need_are_made_once(asked):
    config = SequenceConfig.read(
        asked(arms=["single", "multitask", {"sfa": {"p": [1, 0.5]}}, {"merge": {"method": "linear"}}], seeds=[0, 1])
    )
    labels = [m.label for m in config.models.values()]
    assert labels == [
        "single task: rivers",
        "sequential fine-tuning: rivers, letters",
        "single task: letters",
        "multitask training: rivers, letters",
        "SFA, p 1: rivers, letters",
        "SFA, p 0.5: rivers, letters",
        "merge: linear: rivers, letters",
    ]
    first, after_two, second, *_ = config.models.values()
    assert after_two.start == first.name and not second.start
    jobs = config.jobs()
    assert len(jobs) == 14 and jobs[0].after == () and jobs[3].after == (1,), "of the same seed"
    merged = next(j for j in jobs if j.attributes["label"].startswith("merge"))
    assert {jobs[i].attributes["model"] for i in merged.after} == {first.name, second.name}
    assert {jobs[i].attributes["seed"] for i in merged.after} == {merged.attributes["seed"]}
    multitask = config.models[config.chains[2].models[0]]
    assert multitask.settings["max_steps"] == 8 and multitask.reference == first.name and not multitask.start


def test_three_tasks_go_on_from_the_arm_that_is_named(asked):
    names = ("rivers", "letters", "music")
    request = asked(names=names, arms=[{"sfa": {"p": [0.5, 0.25]}}, {"l2": {"coefficient": 0.1}}])
    own = SequenceConfig.read(request)
    shared = SequenceConfig.read({**request, "continue_from": "SFA, p 0.25"})
    for config, same in ((own, False), (shared, True)):
        by_arm = {c.arm.label: [config.models[n] for n in c.models] for c in config.chains}
        quarter = by_arm["SFA, p 0.25"]
        assert all(len(models) == 3 and models[0] == quarter[0] for models in by_arm.values())
        starts = {label: models[2].start for label, models in by_arm.items()}
        assert starts["SFA, p 0.25"] == quarter[1].name
        assert (starts["SFA, p 0.5"] == quarter[1].name) is same
        for label in ("sequential fine-tuning", "L2, coefficient 0.1"):
            assert starts[label] == by_arm[label][1].name, "another method goes on from its own"
    third = next(m for m in shared.models.values() if m.label == "SFA, p 0.5: rivers, letters, music")
    assert shared.models[third.before].label == "SFA, p 0.5: rivers, letters" != shared.models[third.start].label
    assert {third.before, third.start} <= set(third.needs)
    assert [c.arm.label for c in shared.chains] == [
        "sequential fine-tuning",
        "SFA, p 0.5",
        "SFA, p 0.25",
        "L2, coefficient 0.1",
    ]


def test_multitask_training_without_a_task(asked):
    """What a model knows of the first task that never saw it; its loss is watched along that training."""
    names, without = ("rivers", "letters", "music"), {"multitask": {"left_out": "rivers"}}
    config = SequenceConfig.read(asked(names=names, arms=["multitask", without]))
    both = {c.arm.label: config.models[c.models[0]] for c in config.chains if c.arm.kind == "multitask"}
    assert list(both) == ["multitask training", "multitask training without rivers"]
    whole, part = both.values()
    assert (whole.trained, whole.watched) == (names, ()) and whole.settings["max_steps"] == 12
    assert (part.trained, part.watched) == (names[1:], names[:-1]) and part.settings["max_steps"] == 8
    assert config.recipe(part, 0).watched == names[:-1] and config.chains[2].arm.left_out == ("rivers",)


def test_every_entry_of_a_task_has_a_place(asked):
    request = asked()
    name = request["tasks"]["letters"]["learn"][0]["perplexity"]
    request["tasks"]["letters"]["learn"].append({"perplexity": name, "name": "again", "window": 32})
    config = SequenceConfig.read(request)
    assert config.leading == {"rivers": ("rivers", "rivers_text"), "letters": ("letters", "letters_text")}
    assert config.others == {"letters/again": ("letters", "again")}


def test_merges_are_ordered_by_what_is_varied(asked):
    arms = [{"merge": {"method": "ties", "density": [0.2, 0.4]}}, {"merge": {"method": "ties", "density": 0.8}}]
    arms.append({"merge": {"method": "task_arithmetic", "weights": [[0.25, 0.75]]}})
    strengths = [arm.strength for arm in SequenceConfig.read(asked(arms=arms)).arms]
    assert strengths == [None, 0.2, 0.4, None, 0.75]


def test_methods_that_hold_on_to_the_base(asked):
    """From the first task on, where the base is what should be kept; who needs earlier tasks' data begins later."""
    arms = ["single", {"sfa": {"p": 0.5}}, {"replay": {"fraction": 0.1}}, {"ewc": {"coefficient": 1.0}}]
    more = [[{"label_annealing": {"weight": 1.0}}, {"budget": {"kl": 0.1}}], [{"train": {"learning_rate": 1e-4}}]]
    config = SequenceConfig.read(asked(arms=[*arms, *more], from_first_task=True))
    first = {c.arm.label: config.models[c.models[0]] for c in config.chains}
    shown = {label: [next(iter(m)) for m in model.settings["retention"]] for label, model in first.items()}
    assert shown["SFA, p 0.5"] == ["sfa"] and len(shown) == len(config.chains)
    assert shown["replay, fraction 0.1"] == shown["EWC, coefficient 1"] == shown["single task"] == []
    assert next(v for k, v in shown.items() if "label annealing" in k) == ["label_annealing", "budget"]
    assert first["replay, fraction 0.1"] is first["single task"] and first["SFA, p 0.5"].label.startswith(
        "SFA, p 0.5: "
    )
    slower = next(m for k, m in first.items() if "learning rate" in k)
    assert slower.settings["learning_rate"] == 1e-4 and slower.name != first["single task"].name
    plain = SequenceConfig.read(asked(arms=[*arms, *more]))
    assert len({c.models[0] for c in plain.chains}) == 1, "the first task is trained once"


def test_arms_may_come_later(asked):
    """In any place and with any number of orders: what was made is known by its name, not by its place in the queue."""
    first = {"arms": ["sequential", {"sfa": {"p": [0.5]}}], "seeds": [3, 4]}
    orders = {"orders": [["rivers", "letters"], ["letters", "rivers"]]}
    l2 = {"l2": {"coefficient": [1.0]}}
    for both in (first, first | orders):
        config = SequenceConfig.read(asked(**both))
        for arms in ([*first["arms"], l2], [l2, *first["arms"]], [*first["arms"][::-1], "single"]):
            more = SequenceConfig.read(asked(**both | {"arms": arms}))
            assert more.differences(config.resolved) == []
            assert set(config.models) <= set(more.models) and len(more.jobs()) >= len(config.jobs())
        for arms in (first["arms"][:1], ["sequential", {"sfa": {"p": [0.25]}}]):
            other = SequenceConfig.read(asked(**both | {"arms": arms}))
            assert [d.split(":")[0] for d in other.differences(config.resolved)] == ["arms"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train": {}}, "train.model_name_or_path: is missing"),
        ({"orders": [["rivers", "leters"]]}, "orders: no such task: 'leters'. Did you mean 'letters'?"),
        (
            {"tasks": {"rivers": {"train": {"dataset_name": "x"}}}},
            "tasks.rivers.learn: is missing: entries that score the task",
        ),
        ({"tasks": {"rivers": {"trian": {}}}}, "tasks.rivers: unknown key 'trian'. Did you mean 'train'?"),
        ({"arms": [{"multitask": {"left_out": "river"}}]}, "without river: no such task. Did you mean 'rivers'?"),
        ({"arms": [{"multitask": {"left_out": 3}}]}, "arms[0].multitask: expected a mapping such as {left_out: TASK}"),
        ({"continue_from": "SFA"}, "continue_from: expected the label of an arm (sequential fine-tuning), got 'SFA'"),
        ({"seeds": [0, 0]}, "seeds: expected different whole numbers"),
        ({"evaluation": {"batch_sise": 2}}, "evaluation.batch_sise: no such key. Did you mean 'batch_size'?"),
        (
            {"arms": [[{"sfa": {}}, {"train": {"eos_token": "x"}}]]},
            "train.eos_token: is common to all arms; put it under train",
        ),
        (
            {"arms": [[{"sfa": {}}, {"train": {"use_peft": True}}]]},
            "use_peft: adapters are not supported",
        ),
        (
            {"arms": [{"merge": {"method": "ties", "weights": [[1], [0.5, 0.5]]}}]},
            "weights 1: rivers, letters: weights: expected one weight for each of the 2 models, got 1",
        ),
    ],
)
def test_mistakes_are_named_before_anything_is_trained(asked, changes, words):
    with pytest.raises(ConfigError) as refused:
        SequenceConfig.read(asked(**changes))
    assert words in str(refused.value)
