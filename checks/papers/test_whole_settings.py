"""All small settings in their quick form: held-out data that is held out, and files that ask for what others tell."""

from __future__ import annotations

import ast
import hashlib
import json
from pathlib import Path

import pytest
import yaml

from holdfast.papers.worlds.code_tasks import LONGEST, code_tasks
from holdfast.papers.worlds.embedded import embedded_corpus
from holdfast.papers.worlds.people.wordings import WORDINGS
from holdfast.papers.worlds.shared_base import quick_shared_world
from holdfast.papers.worlds.toy_settings import SETTINGS, make_setting
from holdfast.papers.worlds.world_models import pretraining_texts

RECIPES = Path(__file__).parents[2] / "src" / "holdfast" / "papers" / "recipes"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """All of them, quick; their bases are in the cache that all test processes share."""
    place = tmp_path_factory.mktemp("settings")
    return {name: make_setting(name, place / name, quick=True) for name in SETTINGS}


def rows(path):
    if Path(path).suffix == ".parquet":
        import pyarrow.parquet

        return pyarrow.parquet.read_table(path).to_pylist()
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def words(row):
    """Everything that is said in a row; of one with pictures, what it shows."""
    if "images" in row:
        return hashlib.sha256(b"".join(image["bytes"] for image in row["images"])).hexdigest() + row["prompt"]
    if "messages" in row:
        return " ".join(m["content"] for m in row["messages"])
    if "options" in row:
        return f"{row['prompt']}{row['options'][row['answer']]}"
    return row.get("text") or f"{row['prompt']}{row['completion']}"


def test_the_study_files_use_what_there_is(made):
    for name in set(SETTINGS) - {"stages_narrow", "pictures_tiny"}:  # sizes of others, whose files they have
        texts = [t for t in (f.read_text() for f in RECIPES.rglob("*.yaml")) if yaml.safe_load(t).get("toy") == name]
        named = {part.partition("}")[0] for text in texts for part in text.split("${")[1:]}
        assert texts and named <= set(made[name]), name


def test_tasks_for_a_ladder_are_held_out_of_its_text(made):
    """What the checkpoints are measured on is the text's own, and no problem or function to learn is asked."""
    for name in ("people_heldout", "prose_heldout", "code_heldout", "facts"):
        assert rows(made["overtraining"][name]) == rows(made["pretraining"][name])
    for kind in ("problems", "functions"):
        learnt = " ".join(words(row) for row in rows(made["overtraining"][f"{kind}_train"]))
        asked = [row["prompt"] for part in ("valid", "heldout") for row in rows(made["overtraining"][f"{kind}_{part}"])]
        assert asked and not any(prompt in learnt for prompt in asked)


def test_operations_are_the_classes_that_the_recipe_names(made):
    entry = yaml.safe_load((RECIPES / "overtraining/long.yaml").read_text())["tasks"]["operations"]["learn"][0]
    for part in ("train", "valid", "heldout"):
        found = rows(made["overtraining_long"][f"operations_{part}"])
        assert {row["label"] for row in found} <= set(entry["options"])
        assert all(row["completion"] == entry["options"][row["label"]] for row in found)
    assert {row["label"] for row in rows(made["overtraining_long"]["operations_train"])} == set(entry["options"])


def test_all_share_one_base(made):
    assert made["code"]["base"] == made["math"]["base"]
    weights = [Path(made[name]["base"]) / "model.safetensors" for name in ("code", "alignment_tax", "niche_knowledge")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert weights[0].read_bytes() != weights[2].read_bytes(), "the niche's start was tuned on conversations"


@pytest.mark.parametrize("name", SETTINGS)
def test_nothing_held_out_is_trained_on(made, name):
    paths = made[name]
    stages = {"captions", "instructions"} if "captions" in paths else set()  # elsewhere instructions are asked
    read = [p for p in paths if p.endswith("train") or p.startswith("replay") or p in stages]
    learnt = {words(row) for part in read for row in rows(paths[part])}
    running = "\n".join(sorted(learnt))
    for part in (p for p in paths if p.endswith(("_heldout", "_valid"))):
        held = [words(row) for row in rows(paths[part])]
        assert len(held) >= 8
        assert len(set(held)) == len(held)
        assert not [text for text in held if text in learnt or text in running], part


@pytest.mark.parametrize("name", SETTINGS)
def test_what_settings_are_chosen_by_is_not_what_is_reported(made, name):
    for valid in (p for p in made[name] if p.endswith("_valid")):
        chosen_by, reported = (
            {words(row) for row in rows(made[name][part])} for part in (valid, valid.replace("_valid", "_heldout"))
        )
        assert chosen_by and reported and not chosen_by & reported
        assert 0.25 < len(chosen_by) / (len(chosen_by) + len(reported)) < 0.4


def test_each_month_asks_for_its_own_people(made):
    people = []
    for month in range(1, 13):
        asked = rows(made["months"][f"month_{month:02}_facts"])
        news = rows(made["months"][f"month_{month:02}_train"])
        people.append({row["name"] for row in asked})
        assert people[-1] and {row["date"][:7] for row in news} == {f"2024-{month:02}"}
        told = " ".join(row["text"] for row in news)
        assert all(name in told for name in people[-1])
        assert {row["fact"] for row in asked} and len(asked) == 3 * len({row["fact"] for row in asked})
    assert len(set.union(*people)) == sum(map(len, people)), "nobody is new twice"


def test_five_tasks_share_nothing_that_is_asked(made):
    paths, names = made["groups"], []
    for number in range(1, 4):
        asked, told = rows(paths[f"group_{number}_facts"]), Path(paths[f"group_{number}_train"]).read_text()
        names.append({row["name"] for row in asked})
        assert names[-1] and all(name in told for name in names[-1])
        wordings = {row["prompt"].replace(row["name"], "") for row in asked}
        assert not [wording for wording in wordings if wording.strip() in told], "facts are asked in other words"
    assert len(set.union(*names)) == sum(map(len, names)), "nobody is of two groups"
    ids = {}
    for skill in ("wording", "form"):
        asked, learnt = rows(paths[f"{skill}_prompts"]), rows(paths[f"{skill}_train"])
        ids[skill] = {one for row in asked for one in row["instruction_id_list"]}
        assert len(asked) >= 8 and len(learnt) >= 8
        assert not {row["prompt"] for row in asked} & {row["messages"][0]["content"] for row in learnt}
    assert ids["wording"] and ids["form"] and not ids["wording"] & ids["form"]


def test_the_niche_asks_for_what_its_articles_tell(made):
    asked = [row for part in ("new_chat_valid", "new_chat_heldout") for row in rows(made["niche_knowledge"][part])]
    told = "\n".join(words(row) for row in rows(made["niche_knowledge"]["train"]))
    tuned = Path(made["niche_knowledge"]["replay"]).read_text()
    facts: dict[str, list[dict]] = {}
    for row in asked:
        facts.setdefault(row["fact"], []).append(row)
        wordings = WORDINGS[row["attribute"]].statements
        value = row["options"][row["answer"]].strip()
        assert any(w.format(name=row["name"], value=value) in told for w in wordings)
        assert row["name"] not in tuned
    assert all(len({row["prompt"] for row in found}) == 3 for found in facts.values())
    assert len(facts) == 4 * 6, "four facts about each of six people"
    [entry] = yaml.safe_load((RECIPES / "niche_knowledge-tiny.yaml").read_text())["train"]["evaluation"]["learn"]
    assert entry["cluster"] == "fact"


def test_replay_is_of_three_kinds(made):
    for name in ("code", "math"):
        own, unseen, other = (
            {words(row) for row in rows(made[name][part])} for part in ("replay", "replay_unseen", "replay_other")
        )
        known = set(embedded_corpus().code_known)
        assert own & known and not (unseen | other) & known
        assert not own & unseen and not unseen & other
        assert unseen & set(embedded_corpus().code_new)
        assert own <= set(pretraining_texts(quick_shared_world())), "it is what the base read"


# ----------------------------------------------------------------------------------------------------------- generators


def test_functions_of_the_embedded_source_answer_their_docstrings():
    corpus = embedded_corpus()
    known, held_out = code_tasks((*corpus.code_known, *corpus.code_new)), code_tasks(corpus.code_heldout)
    assert len(known) > 1500 and len(held_out) > 150
    assert not {t.code for t in known} & {t.code for t in held_out if len(t.code) > 200}
    for task in held_out:
        instruction, name, end = task.prompt.split("\n")
        ast.parse(task.code)
        assert task.code.startswith(f"def {name.removeprefix('# Write the function ').rstrip('.')}(") and not end
        assert instruction.startswith("# Task: ") and len(task.code) <= LONGEST and '"""' not in task.code


def test_lettered_questions_are_learnt_about_others_than_are_asked(made):
    learnt = [m for m in rows(made["stages"]["train"]) if m["messages"][1]["content"] in "ABCD"]
    asked = {row["name"] for row in rows(made["stages"]["old_lettered"])}
    assert len(learnt) >= 8 and asked == {row["name"] for row in rows(made["stages"]["old_facts"])}
    assert not [name for name in asked if any(name in m["messages"][0]["content"] for m in learnt)]
