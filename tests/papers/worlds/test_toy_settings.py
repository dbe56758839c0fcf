"""What the small settings are made of: word problems that are right and dealt out, conversations in the documentation's
words."""

from __future__ import annotations

import dataclasses
import re
import string
from importlib.resources import files
from pathlib import Path

import pytest
import yaml

from holdfast.data.overlap import texts_of
from holdfast.data.sources import load_rows
from holdfast.errors import ConfigError
from holdfast.evaluation.suite import parse_evaluation
from holdfast.papers.worlds.reference_chat import conversations
from holdfast.papers.worlds.shared_base import quick_shared_world
from holdfast.papers.worlds.toy_settings import SETTINGS, make_setting, setting_version
from holdfast.papers.worlds.word_problems import (
    OPERATIONS,
    easy_problems,
    known_articles,
    problems_task,
    word_problems,
)
from holdfast.studies.engine.held_out import HeldOut


def test_files_of_another_base_are_not_found_made(monkeypatch, tmp_path):
    """A base that reads longer is another start: what lies in the folder would train from the old one."""

    def base_of(recipe, **_):
        (folder := tmp_path / f"base-{recipe.steps}").mkdir(exist_ok=True)
        return folder

    monkeypatch.setattr("holdfast.papers.worlds.toy_settings.make_base", base_of)
    first = make_setting("math", tmp_path / "math", quick=True)
    longer = quick_shared_world().steps + 1
    monkeypatch.setattr(
        "holdfast.papers.worlds.toy_settings.quick_shared_world",
        lambda **changes: quick_shared_world(steps=longer, **changes),
    )
    again = make_setting("math", tmp_path / "math", quick=True)
    assert Path(again["base"]).name == f"base-{longer}" != Path(first["base"]).name


def test_an_unknown_setting_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"toy: expected one of code, math, .*, got 'maths'\. Did you mean 'math'\?"):
        make_setting("maths", tmp_path / "out")
    assert not (tmp_path / "out").exists()


# ----------------------------------------------------------------------------------------------------------- generators


def test_replies_are_judged_as_gsm8k_judges_them():
    task = yaml.safe_load(problems_task(Path("asked.jsonl")))
    found = {f["name"]: f["filter"][0] for f in task["filter_list"]}
    strict, flexible = (found[n] for n in ("strict-match", "flexible-extract"))
    [problem] = easy_problems(1, held_out=True, seed=3)
    in_format, without = problem.row["answer"], problem.solution
    assert re.findall(strict["regex_pattern"], in_format) == [str(problem.answer)]
    assert re.findall(strict["regex_pattern"], without) == []
    for reply in (in_format, without):
        numbers = [a or b for a, b in re.findall(flexible["regex_pattern"], reply)]
        assert numbers[flexible["group_select"]].strip(".") == str(problem.answer)
    for ignored in task["metric_list"][0]["regexes_to_ignore"]:
        in_format = re.sub(ignored, "", in_format)
    assert in_format == str(problem.answer)


def test_problems_are_dealt_out_by_their_question():
    told, asked = (easy_problems(300, held_out=held_out, seed=1) for held_out in (False, True))
    assert len(told) == len(asked) == 300 and not {p.question for p in told} & {p.question for p in asked}
    others = easy_problems(300, held_out=False, seed=2)
    assert not {p.question for p in others} & {p.question for p in asked}, "whatever the seeds"
    assert easy_problems(0, held_out=True) == []
    assert {p.operation for p in told} == {"add", "multiply"}
    assert all(int(n) <= 9 for p in told for n in re.findall(r"\d+", p.question))


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_problems_are_right_and_all_different(steps):
    found = word_problems(300, steps=steps, seed=1)
    assert found[:10] == word_problems(10, steps=steps, seed=1) != word_problems(10, steps=steps, seed=2)
    assert len({p.question for p in found}) == 300
    for problem in found:
        operations = problem.operation.split()
        assert len(set(operations)) == steps and set(operations) <= set(OPERATIONS)
        *worked, end = problem.solution.split(". ")
        assert worked[::2] == [f"We {operation}" for operation in operations]
        for equation, before in zip(worked[1::2], [None, *worked[1::2]], strict=False):
            left, right = equation.split(" = ")
            assert eval(left) == int(right) > 0, problem
            assert before is None or left.split()[0] == before.split(" = ")[1]
        assert int(worked[-1].split(" = ")[1]) == problem.answer and str(problem.answer) in end


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_problems_that_are_asked_are_not_trained_on(steps):
    learnt, asked = (
        {p.question for p in word_problems(count, held_out=held_out, steps=steps)}
        for count, held_out in ((400, False), (60, True))
    )
    assert (len(learnt), len(asked)) == (400, 60) and not learnt & asked
    read = "\n".join(known_articles())
    assert not [question for question in asked if question in read]


def test_conversations_speak_the_documentations_words():
    code = (
        "import os\n\ndef widen(rope, by=2, *, knots: int = 0):\n"
        '    """Make the rope wider.\n\n    Slowly.\n    """\n\n'
        'class Rope:\n    """A rope of some width."""\n'
    )
    found = {talk.about: talk for talk in conversations([code, code])}
    assert set(found) == {"widen", "Rope"}
    assert "Make the rope wider." in found["widen"].messages[1]["content"]
    for talk in found.values():
        assert [m["role"] for m in talk.messages] in (["user", "assistant"], ["user", "assistant"] * 2)
        assert talk.about in talk.messages[0]["content"]
        assert all(m["content"].strip() for m in talk.messages)
        if len(talk.messages) == 4:
            assert "rope, by and knots" in talk.messages[3]["content"]


def test_problems_are_asked_by_their_operation() -> None:
    from holdfast.papers.worlds.toy_settings import _by_operation

    problems = word_problems(12, held_out=True)
    for row, problem in zip(_by_operation(problems), problems, strict=True):
        assert problem.solution.startswith(row["options"][row["answer"]]) and len(set(row["options"])) == 4
        assert row["prompt"].startswith("Problem: ") and row["prompt"].endswith("\n")


def test_a_setting_may_change_alone() -> None:
    """What the others are known by stays, so that their studies go on."""
    assert SETTINGS["stages"].versions == [1] and SETTINGS["code"].versions == []
    changed = dataclasses.replace(SETTINGS["code"], version=1)
    before = setting_version("code")
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(SETTINGS, "code", changed)
        assert setting_version("code") != before


@pytest.mark.parametrize("recipe", ["tiny", "world", "long"])
def test_an_overtraining_study_measures_nothing_that_it_trains_on(recipe: str, tmp_path: Path) -> None:
    """At full size: the study refuses to begin otherwise, hours after its ladder was begun."""
    text = (files("holdfast.papers") / "recipes" / "overtraining" / f"{recipe}.yaml").read_text()
    settings = yaml.safe_load(text)
    made = make_setting(settings["toy"], tmp_path)
    settings = yaml.safe_load(string.Template(text).safe_substitute(made))
    for task in settings["tasks"].values():
        plan, _ = parse_evaluation({"learn": task["learn"], "keep": settings["keep"]})
        held_out = HeldOut(plan.entries)
        trained = load_rows(task["train"]["dataset_name"], split=task["train"].get("dataset_train_split", "train"))
        assert held_out.stands_in(("\n".join(texts_of(row)) for row in trained), what="the training data") == []
