"""The grid of a study, and what is refused before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import ConfigError
from holdfast.papers.residual.plan import StudyConfig
from holdfast.papers.residual.study import ResidualStudy
from holdfast.papers.residual.toy_recipe import recipe_of
from holdfast.papers.worlds.world import WorldRecipe, quick_recipe


def study(pair, news, **changes):
    base, instruct = map(str, pair)
    given = {
        "families": {"a": {"base": base, "instruct": instruct}},
        "corpus": str(news),
        "budgets": [100, 200],
        "output_dir": "never",
    }
    return StudyConfig.read({**given, **changes})


def test_table_2_budgets_times_base_instruct_and_residual(pair, news):
    config = study(pair, news, budgets=["1k", "2k", "3k"])
    assert [m.label for m in config.models()] == [
        "a base",
        "a instruct",
        *(
            label
            for n in (1, 2, 3)
            for label in (f"a base + {n}k tokens", f"a instruct + {n}k tokens", f"a base + {n}k tokens + residual")
        ),
    ]
    assert len({m.name for m in config.models()}) == 11


def test_tables_3_and_4_siblings_and_derived_models_without_training(pair, news):
    base, instruct = map(str, pair)
    families = {"a": {"base": base, "instruct": instruct}, "b": {"base": base, "instruct": instruct}}
    config = StudyConfig.read({"families": families, "derived": {"docs": instruct}, "output_dir": "never"})
    assert [m.name for m in config.models()] == [
        "a-base",
        "a-instruct",
        "b-base",
        "b-instruct",
        "a-base-b-residual",
        "b-base-a-residual",
        "docs",
        "docs-a-residual",
        "docs-b-residual",
    ]
    assert all(m.tokens == 0 for m in config.models())


def test_scales_and_seeds_multiply(pair, news):
    config = study(pair, news, budgets=[100], scales=[0.5, 1], seeds=[0, 1], starts=["base"])
    names = [m.name for m in config.models()]
    assert names[2:] == [f"a-base-100-seed{s}{r}" for s in (0, 1) for r in ("", "-residual-x0.5", "-residual-x1")]


WORLD = {"toy": "world", "world": {"quick": True}, "budgets": [300, 600], "output_dir": "never"}


def test_each_seed_is_a_world_and_every_world_has_each_width():
    world = {"quick": True, "sibling": True, "derived": True, "seed": 5}
    grid = {"seeds": [0, 1], "widths": [32, 16], "scales": [0.5, 1], "retuned": True}
    config = StudyConfig.read({**WORLD, **grid, "world": world})
    parts = {(p.request.widths[0], p.request.seeds[0]): p for p in config.parts()}
    assert list(parts) == [(32, 0), (32, 1), (16, 0), (16, 1)]
    assert [p.request.world["seed"] for p in parts.values()] == [5, 6, 5, 6]
    assert [p.request.world["mlp"] for p in parts.values()] == [64, 64, 32, 32], "the MLP grows with the width"
    assert len({p.folder for p in parts.values()}) == 4
    models = config.models()
    assert len({m.name for m in models}) == len(models) == 2 * 22 + 2 * 5
    assert {m.place for m in models} == set(parts)
    narrow = [m.label for m in models if m.place == (16, 0)]
    assert narrow == [
        f"first {what}"
        for what in (
            "base, width 16, world 0",
            "instruct, width 16, world 0",
            "base + 600 tokens, width 16, world 0",
            "instruct + 600 tokens, width 16, world 0",
            "base + 600 tokens, width 16, world 0 + residual",
        )
    ]
    tuned = [m for m in models if m.tuned]
    assert [(m.name, m.budget, m.repeated) for m in tuned] == [
        (f"first-base-600-32-world{seed}-tuned", 600, "first base + 600 tokens + tuning") for seed in (0, 1)
    ]


def test_given_models_are_tuned_once_more_on_conversations_of_the_user(pair, news):
    """Setting S2: as the continuation in hardware and precision, with the instruct model's template."""
    tuning = {"dataset_name": "o/talk", "num_train_epochs": 2, "learning_rate": 2e-5}
    config = study(pair, news, budgets=[100, 200], retuned=tuning, train={"weight_decay": 0.1}, epochs=5)
    made = [m for m in config.models() if m.tuned]
    assert [(m.name, m.budget, m.restored) for m in made] == [("a-base-200-tuned", 200, "tuning")]
    settings = config.retuning("continued", "a", Path("out"), seed=3)
    assert settings["chat_template_path"] == str(pair[1]) and settings["weight_decay"] == 0.1
    assert settings["num_train_epochs"] == 2 and settings["learning_rate"] == 2e-5 and settings["seed"] == 3
    assert settings["model_name_or_path"] == "continued" and "packing" not in settings
    template = study(pair, news, retuned={**tuning, "chat_template": "{{ messages }}"})
    assert "chat_template_path" not in template.retuning("continued", "a", Path("out"), seed=0)
    assert StudyConfig.read(config.resolved).differences(config.resolved) == []


def test_what_is_restored_stands_behind_the_continued_instruct_model():
    models = StudyConfig.read({**WORLD, "restore": {}, "widths": [32, 16]}).models()
    made = [m for m in models if m.distilled]
    assert [m.label for m in made] == [f"first instruct + {budget} tokens + distillation" for budget in (300, 600)]
    assert {m.restored for m in made} == {"distillation"}


def test_a_small_world_is_kept_in_full():
    """A study of a world that another version made by other defaults is another study."""
    begun = StudyConfig.read(WORLD).resolved
    assert begun["world"]["people"] == quick_recipe().people and StudyConfig.read(begun).differences(begun) == []
    older = {**begun, "world": {**begun["world"], "conversations": 59}}
    assert [d.split(":")[0] for d in StudyConfig.read(WORLD).differences(older)] == ["world"]
    assert recipe_of({"quick": "no"}) == WorldRecipe(), "text that reads as false, as for every switch"


def test_one_small_world_needs_no_words_for_it():
    models = StudyConfig.read(WORLD).models()
    assert [m.label for m in models][:3] == ["first base", "first instruct", "first base + 300 tokens"]
    assert {m.place for m in models} == {(32, 0)}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"families": None}, "families: expected pairs by name"),
        ({"families": {"a": {"base": "x"}}}, "families.a.instruct: is missing"),
        ({"families": {"a b": {"base": "o/x", "instruct": "o/y"}}}, "a unique name of letters"),
        ({"families": {"a": {"base": "o/x", "instruct": "o/x"}}}, "is the base itself"),
        ({"budgets": ["1k", "many"]}, "budgets[1]: expected a number of tokens such as 100M, got 'many'"),
        ({"starts": ["bas"]}, "starts: expected some of base, instruct, got 'bas'. Did you mean 'base'"),
        ({"seeds": [-1]}, "seeds[0]: expected a whole number of at least 0 and at most 4,294,967,295, got -1"),
        ({"derived": {"a": "o/x"}}, "derived: expected a unique name"),
        ({"toy": "word"}, "toy: expected one of world, got 'word' (text). Did you mean 'world'?"),
        ({"toy": "world", "world": {"silbing": True}}, "world: unknown key 'silbing'. Did you mean 'sibling'"),
        ({"toy": "world", "world": {"people": "many"}}, "world.people: expected a whole number, got 'many' (text)"),
        ({"toy": "world", "world": {"quick": 3}}, "world.quick: expected true or false, got 3"),
        ({"toy": "world", "world": {"quick": "maybe"}}, "world.quick: expected true or false, got 'maybe' (text)"),
        ({"world": {"people": 40}}, "world: has no effect without toy: world"),
        ({"toy": "world", "world": {"people": 1}}, "people: expected at least 2"),
        ({"toy": "world", "widths": [30]}, "widths: width: expected a multiple of the heads (4), got 30"),
        ({"widths": [64]}, "widths: has no effect without toy: world"),
        ({"retuned": True}, "retuned: expected keys of 'holdfast train' with your conversations"),
        ({"retuned": {"max_steps": 3}}, "retuned: expected keys of 'holdfast train' with your conversations"),
        ({"retuned": {"dataset_name": "o/talk", "seed": 1}}, "retuned.seed: is set by the study"),
        ({"retuned": {"dataset_name": "o/talk", "max_stesp": 1}}, "Did you mean 'max_steps'"),
        ({"retuned": {"dataset_name": "o/talk"}, "starts": ["instruct"]}, "retuned: needs the continued base"),
        (
            {"retuned": {"dataset_name": "o/talk"}, "train": {"use_peft": True}},
            "retuned: needs a continued model with full weights",
        ),
        (
            {"toy": "world", "retuned": {"dataset_name": "o/talk"}},
            "retuned: expected true or false, because toy: world",
        ),
        ({"retuned": 3}, "retuned: expected true or false"),
        ({"restore": {"steps": 3}}, "restore.prompts: is missing: a file with prompts"),
        ({"restore": {"prompts": "none.jsonl"}}, "restore.prompts: no such file or folder: none.jsonl"),
        ({"restore": {"prompts": "o/prompts", "train": {"packing": True}}}, "restore: packing: has no effect"),
        ({"restore": {"stesp": 3}}, "restore: unknown key 'stesp'. Did you mean 'steps'"),
        ({"toy": "world", "restore": {}, "starts": ["base"]}, "restore: needs the continued instruct model"),
        ({"toy": "world", "restore": {}, "train": {"use_peft": True}}, "restore: expected full training"),
        ({"toy": "world", "world": ["sibling"]}, "world: expected a mapping, got ['sibling'] (list)"),
        ({"bugdets": [1]}, "unknown key 'bugdets'. Did you mean 'budgets'"),
        ({"corpus": None}, "corpus: is missing"),
    ],
)
def test_mistakes_in_a_study(pair, news, changes, said):
    base, instruct = map(str, pair)
    given = {
        "families": {"a": {"base": base, "instruct": instruct}},
        "corpus": str(news),
        "budgets": [100],
        "output_dir": "never",
    }
    with pytest.raises(ConfigError) as caught:
        StudyConfig.read({k: v for k, v in {**given, **changes}.items() if v is not None})
    assert said in str(caught.value)


def test_a_study_that_was_begun_under_former_names_goes_on(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    config = StudyConfig.read(WORLD)
    names = {"toy": "small", "keep_weights": "keep"}
    old = {names.get(key, key): value for key, value in config.resolved.items()}
    assert config.differences(old) == []
    assert config.differences({**old, "budgets": [1]})[0].startswith("budgets: was [1]")


def test_a_config_with_former_names_is_the_study_in_every_process(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    former = {**{key: value for key, value in WORLD.items() if key != "toy"}, "small": "world"}
    config = StudyConfig.read(former)
    loaded = ResidualStudy.load(config.resolved, storage="sqlite:///r.db", output_dir=Path("out"))
    assert loaded.settings.request == config.request
    assert config.request.toy == "world"
    with pytest.raises(ConfigError, match="small"):
        StudyConfig.read({**WORLD, "small": "world"})
