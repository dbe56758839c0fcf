"""The embedded world with its models: built once, the same every time, resumed where it was; the real size knows what
it was taught (slow)."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import threading
import time
from pathlib import Path

import pytest
import yaml

from holdfast.cli import world as command
from holdfast.errors import ConfigError
from holdfast.papers.worlds import world_models as models
from holdfast.papers.worlds.world import (
    WorldRecipe,
    build_world,
    quick_recipe,
)
from holdfast.support.files import write_json

RECIPE = quick_recipe(sibling=True, derived=True, changed_facts=2, word_problems=20, lettered=20)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("world")


@pytest.fixture(scope="module")
def made(place):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOLDFAST_CACHE", str(place / "cache"))
        yield build_world(RECIPE, place / "world")


def rows(path) -> list[dict]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def weights(folder) -> bytes:
    return (Path(folder) / "model.safetensors").read_bytes()


def test_another_folder_takes_the_models_from_the_cache(made, place, monkeypatch):
    monkeypatch.setattr("holdfast.runs.run.train", lambda *a, **k: pytest.fail("trained again"))
    monkeypatch.setattr("holdfast.papers.worlds.pretrain.pretrain", lambda *a, **k: pytest.fail("trained again"))
    again = build_world(RECIPE, place / "again")
    assert again["instruct"] == made["instruct"]
    for name in ("pretraining", "tuning", "articles", "old_knowledge", "instructions", "facts"):
        assert Path(again[name]).read_bytes() == Path(made[name]).read_bytes()


def test_an_interrupted_tuning_ends_with_the_same_weights(place, made, monkeypatch, tmp_path):
    from holdfast.errors import Interrupted
    from holdfast.training.mixin import RetentionMixin

    recipe = dataclasses.replace(RECIPE, sibling=False, derived=False)
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    original, steps = RetentionMixin.training_step, []

    def dies(self, *args, **kwargs):
        steps.append(1)
        if len(steps) == recipe.steps + 3:
            raise KeyboardInterrupt
        return original(self, *args, **kwargs)

    monkeypatch.setattr(RetentionMixin, "training_step", dies)
    with pytest.raises((KeyboardInterrupt, Interrupted)):
        build_world(recipe, tmp_path / "cut")
    monkeypatch.setattr(RetentionMixin, "training_step", original)
    again = build_world(recipe, tmp_path / "cut")
    assert weights(again["base"]) == weights(made["base"]) and weights(again["instruct"]) == weights(made["instruct"])


def test_the_suite_asks_all_of_it(made):
    from holdfast.evaluation.runner import check_plan
    from holdfast.evaluation.suite import parse_evaluation
    from holdfast.models import load_tokenizer

    plan, problems = parse_evaluation({"suites": [made["suite"]]})
    assert problems == [] and check_plan(plan, load_tokenizer(made["base"])) == []
    assert plan.suites == ("keep", "learn", "following")
    names = {e.name for e in plan.entries}
    assert names == {
        "old_knowledge",
        "old_chat",
        "old_lettered",
        "prose_heldout",
        "new_knowledge",
        "new_chat",
        "new_lettered",
        "changed_knowledge",
        "instructions",
        "word_problems",
    }


def test_worked_problems_stand_among_the_conversations_and_others_are_asked(made):
    told = {row["messages"][0]["content"]: row["messages"][1]["content"] for row in rows(made["tuning"])}
    worked = {asked: reply for asked, reply in told.items() if asked.startswith("Problem: ")}
    asked = rows(Path(made["word_problems"]).with_suffix(".jsonl"))
    assert len(worked) == 20 and all(re.search(r"We \w+\. .* #### \d+$", reply) for reply in worked.values())
    assert len(asked) == 200 and not {f"Problem: {row['question']}" for row in asked} & worked.keys()


def test_lettered_questions_stand_among_the_conversations_and_others_are_asked(made):
    told = [row["messages"][0]["content"] for row in rows(made["tuning"])]
    lettered = [asked for asked in told if asked.endswith("\nAnswer:")]
    world = RECIPE.world()
    assert len(lettered) == 20 and len(told) == RECIPE.conversations + 20 + RECIPE.word_problems
    assert {row["name"] for row in rows(made["old_lettered"])} == {p.name for p in world.half_b}
    assert {row["name"] for row in rows(made["new_lettered"])} == {p.name for p in world.new_people}


def test_without_letters_a_world_is_what_it_was():
    """Neither keys nor conversations know of the option where it is off, so that bases and outcomes are found again."""
    from holdfast.papers.worlds.pretrain import base_folder
    from holdfast.papers.worlds.tuned import deciding_libraries
    from holdfast.support.files import fingerprint

    off, on = quick_recipe(), quick_recipe(lettered=5)
    assert "lettered" not in off.record() and on.record()["lettered"] == 5
    assert WorldRecipe(**off.record()) == off
    assert models.conversations(on, 0)[:-5] == models.conversations(off, 0)
    words = models._vocabulary(off)
    assert words.letters == () and models._vocabulary(on).letters == (" A", " B", " C", " D")
    texts, recipe = models.pretraining_texts(off), models.base_recipe(off)
    digest = hashlib.sha256(b"".join(hashlib.sha256(text.encode()).digest() for text in texts)).hexdigest()
    before = {
        "texts": digest,
        "recipe": dataclasses.asdict(recipe),
        "libraries": deciding_libraries(),
        "vocabulary": {
            "words": words.words,
            "special_tokens": words.special_tokens,
            "chat_template": words.chat_template,
        },
    }
    place = base_folder(texts, recipe, vocabulary=words, cache=Path())
    assert place == Path("bases") / fingerprint(before, length=16) / "small-base"
    assert models._base_place(on) != models._base_place(off) == place


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps": 0}, "steps: expected a whole number of at least 1"),
        ({"learning_rate": 3.0}, "learning_rate: expected a number above 0 and below 1"),
        ({"width": 31}, "width: expected a multiple of the heads"),
        ({"people": 1}, "people: expected at least 2"),
        ({"prose_share": 1.5}, "prose_share"),
        ({"new_people": 0}, "expected new_people or changed_facts above 0"),
        ({"steps": 0, "people": 1, "context": 3}, "3 problems"),
    ],
)
def test_recipes_that_cannot_be(changes, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        build_world(quick_recipe(**changes), tmp_path / "world")
    assert not (tmp_path / "world").exists(), "nothing is written for a request that has to change"


# --------------------------------------------------------------------------------------------------------- side by side


def test_a_worker_makes_what_nobody_else_makes(tmp_path, monkeypatch):
    from holdfast.support.environment import lock_folder

    recipes, asked = [RECIPE, dataclasses.replace(RECIPE, seed=1)], []
    jobs = [[1, "base"], [0, "sibling"], [0, "instruct"], [0, "derived"], [1, "instruct"]]
    write_json(tmp_path / models.REQUEST, {"recipes": [dataclasses.asdict(r) for r in recipes], "jobs": jobs})
    monkeypatch.setattr(models, "_base_made", lambda recipe: Path("base") if recipe.seed == 0 else None)

    def base_of(recipe: WorldRecipe, **_: object) -> Path:
        asked.append((recipe.seed, None, "base"))
        return Path("new")

    monkeypatch.setattr(models, "make_base", base_of)
    monkeypatch.setattr(models, "make_part", lambda r, base, part, **k: asked.append((r.seed, str(base), part)) or {})
    with lock_folder(tmp_path / "0-instruct"):
        models.run_worker(tmp_path)
    assert asked == [(1, None, "base"), (0, "base", "sibling"), (0, "base", "derived"), (1, "new", "instruct")]


def test_what_is_tuned_of_a_base_waits_for_it(tmp_path, monkeypatch):
    """Another worker makes the base: this one neither gives up nor makes it a second time."""
    from holdfast.support.environment import lock_folder

    ready = threading.Event()
    write_json(
        tmp_path / models.REQUEST, {"recipes": [dataclasses.asdict(RECIPE)], "jobs": [[0, "base"], [0, "instruct"]]}
    )
    monkeypatch.setattr(models, "_base_made", lambda recipe: None)
    asked = []
    monkeypatch.setattr(models, "make_base", lambda *a, **k: asked.append(ready.is_set()) or Path("base"))
    monkeypatch.setattr(models, "make_part", lambda recipe, base, part, **k: asked.append(part) or {})
    worker = threading.Thread(target=models.run_worker, args=(tmp_path,))
    with lock_folder(tmp_path / "0-base"):
        worker.start()
        time.sleep(1.0)
        assert worker.is_alive() and not asked
        ready.set()
    worker.join(20)
    assert asked == [True, "instruct"], "it finds the base made, and goes on"


# -------------------------------------------------------------------------------------------------------------- command


def test_the_command_makes_a_world(tmp_path, place, made, capsys):
    words = ["--output_dir", str(place / "world"), "--quick", "--sibling", "--derived", "--changed_facts", "2"]
    words += ["--word_problems", "20", "--lettered", "20"]
    assert command.run(words) == 0
    shown = capsys.readouterr().out
    assert made["base"] in shown and "holdfast evaluate" in shown
    assert command.run([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["paths"] == made
    config = {"output_dir": str(place / "world"), "quick": True, "sibling": True, "derived": True, "changed_facts": 2}
    config |= {"word_problems": 20, "lettered": 20}
    (tmp_path / "world.yaml").write_text(yaml.safe_dump(config))
    assert command.run(["--config", str(tmp_path / "world.yaml")]) == 0
    assert made["instruct"] in capsys.readouterr().out


# ----------------------------------------------------------------------------------------------------------------- slow


def test_a_base_of_the_real_size_knows_what_it_was_taught_and_the_instruct_model_follows(tmp_path):
    """The issue's bar: 90 % and more, 4-way, in wordings that never stood in the text about these people."""
    from holdfast.evaluation.session import evaluate_models, requests_of
    from holdfast.evaluation.suite import parse_evaluation

    made = build_world(WorldRecipe(), tmp_path / "world")
    plan, _ = parse_evaluation({"suites": [made["suite"]]})
    evaluate_models(requests_of([f"base={made['base']}", f"instruct={made['instruct']}"]), plan, tmp_path / "measured")

    def figure(model: str, entry: str, metric: str) -> float:
        return json.loads((tmp_path / "measured" / model / f"{entry}.json").read_text())["metrics"][metric]["value"]

    assert figure("base", "keep.old_knowledge", "acc") >= 0.9
    assert figure("base", "learn.new_knowledge", "acc") <= 0.4, "nobody knows what was not told"
    assert figure("instruct", "following.instructions", "inst_level_strict_acc") >= 0.7
    assert figure("base", "following.instructions", "inst_level_strict_acc") <= 0.15
