"""A study's YAML: what is understood, and everything wrong at once."""

from __future__ import annotations

import pytest
import yaml

from holdfast.errors import ConfigError
from holdfast.studies.sweep import session
from holdfast.studies.sweep.study import StudyConfig, load_study
from holdfast.support.files import write_json


def problems_of(values) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        StudyConfig.read(values)
    return caught.value.problems


def test_a_study(asked):
    config = StudyConfig.read({**asked, "train": {**asked["train"], "seed": 3, "output_dir": "x"}})
    assert [config.space.label(p) for p in config.trials()] == [
        "label annealing, weight 0.5",
        "label annealing, weight 2",
        "L2, coefficient 0.01",
        "L2, coefficient 0.1",
    ]
    assert config.learn.entries == (("learn", "code", None),)
    assert config.keep.label == "prose"
    assert config.reference()["retention"] == []
    assert config.notes == [
        "train.output_dir has no effect: every trial has its own folder.",
        "train.seed has no effect: 'seeds:' of the study repeats every trial.",
    ]
    assert config.storage == f"sqlite:///{asked['output_dir']}/study.db"


def test_the_training_configuration_may_be_a_file(asked, tmp_path):
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(asked["train"]))
    (tmp_path / "knee.yaml").write_text(
        yaml.safe_dump({"train": "run.yaml", "arms": asked["arms"], "select": {"rule": "knee"}})
    )
    config = load_study(tmp_path / "knee.yaml", {"output_dir": "elsewhere", "workers": None})
    assert (config.name, str(config.output_dir), config.select) == ("knee", "elsewhere", {"rule": "knee"})
    assert config.train == asked["train"]


def test_the_knee_is_taken_where_nothing_is_asked_for_and_nothing_is_recorded(asked, tmp_path):
    out = tmp_path / "study"
    plain = {k: v for k, v in asked.items() if k != "select"} | {"output_dir": str(out)}
    assert StudyConfig.read(plain).select == {"rule": "knee"}
    write_json(out / "study.json", {"selection": {"rule": "paper", "points": None, "strict": True}})
    assert StudyConfig.read(plain).select == {"rule": "paper", "strict": True}, (
        "a study keeps the rule that it was begun with"
    )
    assert StudyConfig.read({**plain, "select": {"rule": "keep_within"}}).select == {"rule": "keep_within"}
    (out / "study.json").write_text("{")
    assert StudyConfig.read(plain).resolved["select"] == {"rule": "knee"}


def test_sweep_study_keys_belong_to_the_trainer(asked, tmp_path):
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}\n')
    asked["train"] |= {"trainer": "dpo", "dataset_name": str(pairs)}
    asked["arms"], asked["vary"] = ["none"], {"beta": [0.1, 0.3]}
    assert [params["beta"] for params in StudyConfig.read(asked).trials()] == [0.3]
    asked["train"]["trainer"] = "sft"
    assert any("beta: is a key of trainer: dpo" in problem for problem in problems_of(asked))


def test_direct_fine_tuning_has_rates_of_its_own(asked):
    """They are its own: the methods stay at the base's; one that is the base's is the reference."""
    rate = asked["train"]["learning_rate"]
    rates = {"train": {"learning_rate": [rate, 1e-4, 1e-3]}}
    config = StudyConfig.read({**asked, "arms": [rates, {"l2": {"coefficient": [0.1, 1.0]}}]})
    trials = config.trials()
    assert [config.space.label(p) for p in trials] == [
        "direct fine-tuning, learning rate 0.0001",
        "direct fine-tuning, learning rate 0.001",
        "L2, coefficient 0.1",
        "L2, coefficient 1",
    ]
    assert [config.settings(p)["learning_rate"] for p in trials] == [1e-4, 1e-3, rate, rate]
    assert [config.settings(p)["retention"] for p in trials[:2]] == [[], []]
    assert config.space.arm(trials[0]).kind == "direct"
    one = StudyConfig.read(
        {**asked, "arms": [{"train": {"learning_rate": 1e-4}}], "vary": {"learning_rate": [1.0, 2.0]}}
    )
    assert [one.settings(p)["learning_rate"] for p in one.trials()] == [1e-4], "its own wins over the shared one"


def test_what_the_base_leaves_open_has_its_first_value_in_the_reference(asked):
    train = {k: v for k, v in asked["train"].items() if k != "learning_rate"}
    config = StudyConfig.read({**asked, "train": train, "arms": [], "vary": {"learning_rate": [2e-3, 1e-3]}})
    assert config.reference()["learning_rate"] == 2e-3
    assert len(config.trials()) == 1  # the other rate


def test_everything_wrong_is_said_at_once(asked):
    values = {
        **asked,
        "train": {**asked["train"], "learning_rat": 1},
        "arms": [{"l2": {"coefficient": []}}],
        "vary": {"max_step": [1]},
        "objectives": {"learn": "code", "keep": ["pros"]},
        "seeds": [0, 0],
        "search": {"sampler": "gird"},
        "select": {"rule": "paper", "points": 1},
        "keep_weights": "some",
        "serch": 1,
    }
    found = problems_of(values)
    print("\n".join(found))
    for expected in (
        "train: unknown key 'learning_rat'. Did you mean 'learning_rate'?",
        "arms[0].l2.coefficient: expected at least one value",
        "vary.max_step: no such key in a training configuration. Did you mean 'max_steps'?",
        "objectives.keep: 'pros' is not among the evaluation entries. Did you mean 'prose'? Entries: prose, code.",
        "seeds: expected different whole numbers",
        "search.sampler: expected one of grid, random, tpe, nsga2, got 'gird' (text). Did you mean 'grid'?",
        "select.points: applies only to the rule 'keep_within'",
        "keep_weights: expected one of all, frontier, none, got 'some'",
        "unknown key 'serch'. Did you mean 'search'?",
    ):
        assert any(expected in p for p in found), expected
    assert len(found) == 9


def test_values_that_a_method_refuses_are_found_before_anything_runs(asked):
    asked |= {"arms": [{"l2": {"coefficient": [-1, 0.1]}}], "vary": {"learning_rate": [1e-3, "fast"]}}
    found = problems_of(asked)
    assert any("l2.coefficient: expected a number of at least 0, got -1" in p for p in found)
    assert any("learning_rate: expected a number" in p and "fast" in p for p in found)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"evaluation": {"keep": ["{prose}"]}},
            "objectives.learn: is missing, and train.evaluation has no entries under learn",
        ),
        (
            {"evaluation": {"keep": ["{prose}", "arc_easy"], "learn": ["{code}"]}},
            "objectives.keep: expected entries of one unit",
        ),
        (
            {"evaluation": {"keep": ["{prose}"], "learn": ["{code}"], "before": False}},
            "train.evaluation.before: expected true, got false",
        ),
    ],
)
def test_objectives_that_are_not_measured(asked, changes, expected):
    plan = asked["train"]["evaluation"]
    files = {"prose": plan["keep"][0], "code": plan["learn"][0]}
    asked["train"] |= yaml.safe_load(fill_in(yaml.safe_dump(changes), files))
    assert any(expected in p for p in problems_of(asked))


def fill_in(text, files) -> str:
    for name, path in files.items():
        text = text.replace(f"'{{{name}}}'", path)
    return text


def test_other_entries_than_the_target_may_choose(asked, material):
    """By default the target is all of its suite but for what chooses; without one nothing is different."""
    two = {**material["evaluation"], "learn": [*material["evaluation"]["learn"], {"name": "dev", **a_text(asked)}]}
    asked["train"] |= {"evaluation": two}
    plain = StudyConfig.read(asked)
    assert (plain.learn.label, plain.validation, plain.measures[0]) == ("mean of code, dev", None, "learn gain")
    assert [*plain.resolved["objectives"]] == ["learn", "keep"] and plain.judged_by == (plain.learn, plain.keep)
    config = StudyConfig.read({**asked, "objectives": {"validation": ["dev"]}})
    assert config.learn.label == "code" and config.validation is not None and config.validation.label == "dev"
    assert config.judged_by == (config.validation, config.keep) and config.measures[0] == "validation gain"
    assert config.resolved["objectives"]["validation"] == [["learn", "dev", None]]
    assert StudyConfig.read(config.resolved, check=False).validation == config.validation, "what other workers read"
    named = StudyConfig.read({**asked, "objectives": {"learn": "code"}})
    assert config.differences(named.resolved) == ["objectives.validation: not set before, [['learn', 'dev', None]] now"]


def a_text(asked) -> dict:
    return {"perplexity": asked["train"]["dataset_name"]}


@pytest.mark.parametrize(
    ("validation", "expected"),
    [
        ("dve", "objectives.validation: 'dve' is not among the evaluation entries. Did you mean 'dev'?"),
        ("code", "objectives.validation: code is also in learn, so the same figures would choose"),
        ("arc_easy", "objectives.validation: expected entries in the unit of learn (code), got arc_easy"),
        (["dev", "arc_easy"], "objectives.validation: expected entries of one unit"),
    ],
)
def test_a_validation_that_cannot_choose(asked, material, validation, expected):
    plan = {**material["evaluation"], "dev": [{"name": "dev", **a_text(asked)}, "arc_easy"]}
    asked["train"] |= {"evaluation": plan}
    found = problems_of({**asked, "objectives": {"learn": "code", "validation": validation}})
    assert any(p.startswith(expected) for p in found), found
    assert all(p.startswith("objectives.validation") for p in found), found


@pytest.mark.parametrize(
    ("search", "expected"),
    [
        ({"sampler": "grid", "trials": 3}, "a grid tries every combination"),
        ({"sampler": "tpe"}, "search.trials: expected the number of combinations that tpe tries"),
        ({"sampler": "grid", "extend": 1}, "search: unknown key 'extend'"),
    ],
)
def test_searches_that_make_no_sense(asked, search, expected):
    assert any(expected in p for p in problems_of({**asked, "search": search}))


def test_what_must_stay_and_what_may_change(asked):
    config = StudyConfig.read(asked)
    same = StudyConfig.read({**asked, "select": {"rule": "knee"}, "keep_weights": "frontier", "workers": 3})
    assert same.differences(config.resolved) == []
    other = StudyConfig.read({**asked, "seeds": [0, 1], "train": {**asked["train"], "max_steps": 7}})
    assert other.differences(config.resolved) == ["train.max_steps: 6 before, 7 now", "seeds: [0] before, [0, 1] now"]
    more = {**asked, "search": {"sampler": "random", "trials": 4}}
    larger = StudyConfig.read({**more, "search": {"sampler": "random", "trials": 9}})
    assert larger.differences(StudyConfig.read(more).resolved) == []
    assert StudyConfig.read(more).differences(larger.resolved) == [
        "search.trials: 9 before, 4 now; trials can be added, but not removed"
    ]


def test_secrets_are_not_kept(asked, monkeypatch):
    monkeypatch.setattr("os.environ", dict(__import__("os").environ))
    asked["train"] |= {"hub_token": "hf_s3cr3t", "env": {"WANDB_API_KEY": "s3cr3t", "PLACE": "here"}}
    config = StudyConfig.read({**asked, "storage": "postgresql://me:s3cr3t@host/db"}, check=False)
    assert "s3cr3t" not in str(config.resolved)
    assert config.resolved["train"]["env"] == {"PLACE": "here"}


def test_a_small_study_of_what_is_made_no_more_is_another_study(monkeypatch):
    """A finished study of an older base is not taken for one of today's, and no worker of another version joins it."""
    from holdfast.papers.worlds import toy_settings

    asked = {"name": "small", "toy": "code", "arms": [{"label_annealing": {"weight": 1.0}}]}
    asked |= {"train": {"model_name_or_path": "${base}", "dataset_name": "${train}"}}
    asked["train"]["evaluation"] = {
        "learn": [{"perplexity": "${functions_heldout}", "name": "functions"}],
        "keep": [{"perplexity": "${prose_heldout}", "name": "prose"}],
    }
    before = StudyConfig.read(asked)
    assert (
        before.request.toy is not None
        and before.request.toy.startswith("code@")
        and before.differences(StudyConfig.read(asked).resolved) == []
    )
    assert StudyConfig.read(before.resolved, check=False).resolved == before.resolved, "what other workers read"
    version = toy_settings.setting_version("code")
    monkeypatch.setattr(toy_settings, "_VERSION", toy_settings._VERSION + 1)
    now = toy_settings.setting_version("code")
    assert now != version and StudyConfig.read(asked).differences(before.resolved) == [
        f"toy: code@{version} before, code@{now} now"
    ]
    joined = StudyConfig.read(before.resolved, check=False)
    with pytest.raises(ConfigError, match=f"begun with code@{version}, but this version of holdfast makes code@{now}"):
        session.SweepStudy(joined).prepare(None)


@pytest.mark.parametrize(
    ("retention", "words"),
    [
        ([{"self_replay": {}}, {"label_annealing": {"weight_generated": 2.0}}], "expected bfd or bfd_split"),
        ([{"replay": {"data": "${old}"}}], r"\$\{old\}: no such name. The toy setting makes: base, "),
        ([{"l2": {"coefficient": -1}}], "l2.coefficient: expected a number of at least 0"),
    ],
)
def test_what_is_wrong_whatever_a_small_setting_makes_is_named_before_it_is_made(retention, words):
    """A dry run that calls a study sound would cost its user the hour after which every trial fails."""
    asked = {"name": "small", "toy": "code", "arms": [retention]}
    asked["train"] = {
        "model_name_or_path": "${base}",
        "dataset_name": "${train}",
        "packing": True,
        "packing_strategy": "wrapped",
        "evaluation": {
            "learn": [{"perplexity": "${functions_heldout}", "name": "functions"}],
            "keep": [{"perplexity": "${prose_heldout}", "name": "prose"}],
        },
    }
    with pytest.raises(ConfigError, match=words):
        StudyConfig.read(asked)
