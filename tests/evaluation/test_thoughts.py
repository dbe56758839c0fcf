"""Templates that open a thought: letters are refused, replies judged without it, variables given to an entry."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_files import jsonl
from evaluation.conftest import CHAT, make_model, make_tokenizer, measured
from holdfast.errors import ModelError
from holdfast.evaluation.kinds.instructions import InstructionsEntry
from holdfast.evaluation.kinds.multiple_choice import MultipleChoiceEntry
from holdfast.evaluation.kinds.multiple_choice_letters import LettersEntry
from holdfast.evaluation.kinds.task import TaskEntry
from holdfast.evaluation.measures import check
from holdfast.evaluation.suite import parse_evaluation
from holdfast.evaluation.text.thoughts import (
    open_thought,
    remarks_on_thoughts,
    reply_text,
    with_variables,
    without_thought,
)

CLOSING = "{% if enable_thinking is defined and not enable_thinking %}</think>{% endif %}"
OPENS = CHAT.replace("<|assistant|>{% endif", "<|assistant|><think>" + CLOSING + "{% endif")
THINKS = CHAT.replace(
    "<|assistant|>{% endif",
    "<|assistant|>{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif",
)
ROWS = [{"prompt": f"Is {n} odd?", "options": [" yes", " no"], "answer": n % 2} for n in range(12)]
MARKS = ("<think>", "</think>")


def tokenizer_with(template: str):
    tokenizer = make_tokenizer(chat=True)
    tokenizer.chat_template = template
    return tokenizer


def data(tmp_path: Path, rows=ROWS) -> str:
    path = tmp_path / "q.jsonl"
    jsonl(path, rows)
    return str(path)


@pytest.mark.parametrize("kind", [MultipleChoiceEntry, LettersEntry])
def test_options_are_not_scored_inside_an_open_thought(kind, tmp_path):
    how = {"suite": "s", "name": "n", "data": data(tmp_path), "apply_chat_template": True}
    with pytest.raises(ModelError, match=r"s/n: .*inside a thought \(<think>\).*enable_thinking: false"):
        check(kind(**how), tokenizer_with(OPENS))
    with pytest.raises(ModelError, match="no setting that turns thinking off"):
        check(kind(**how), tokenizer_with(OPENS.replace(CLOSING, "")))
    closed = kind(**how, chat_template_kwargs={"enable_thinking": False})
    check(closed, tokenizer_with(OPENS))
    assert measured(make_model(positions=128), tokenizer_with(OPENS), closed).settings["notes"] == []


def test_a_task_of_options_is_refused_too(tmp_path, colour_task):
    with pytest.raises(ModelError, match="inside a thought"):
        check(TaskEntry(suite="s", name="n", task=str(colour_task), apply_chat_template=True), tokenizer_with(OPENS))
    check(TaskEntry(suite="s", name="n", task=str(colour_task)), tokenizer_with(OPENS))


def test_what_a_template_does_is_said():
    assert open_thought(tokenizer_with(OPENS)) == MARKS
    assert "only the text after </think> is judged" in remarks_on_thoughts(tokenizer_with(OPENS))[0]
    assert "leaves thinking on" in remarks_on_thoughts(tokenizer_with(THINKS))[0]
    for quiet in (
        tokenizer_with(CHAT),
        with_variables(tokenizer_with(THINKS), {"enable_thinking": False}),
        make_tokenizer(),
    ):
        assert open_thought(quiet) is None and remarks_on_thoughts(quiet) == []


@pytest.mark.parametrize(
    ("text", "opened", "reply"),
    [
        ("a b", None, "a b"),
        ("hm</think>\n\nYes.", MARKS, "Yes."),
        ("hm, hm", MARKS, ""),
        ("\n<think>hm</think> Yes.", None, "Yes."),
        ("<think>hm", None, ""),
        ("[THINK]hm[/THINK]Yes.", None, "Yes."),
        ("It writes <think> tags.", None, "It writes <think> tags."),
    ],
)
def test_replies_lose_their_thoughts(text, opened, reply):
    assert without_thought(text, opened) == reply
    tokenizer = make_tokenizer()
    assert reply_text(tokenizer, tokenizer(text, add_special_tokens=False)["input_ids"], opened) == reply


def test_marks_that_are_special_tokens_are_found():
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": list(MARKS)})
    ids = tokenizer("hm</think>\n\nYes.<|stop|>", add_special_tokens=False)["input_ids"]
    assert reply_text(tokenizer, ids, MARKS) == "Yes."
    assert reply_text(tokenizer, tokenizer("hm, hm", add_special_tokens=False)["input_ids"], MARKS) == ""


def test_replies_that_never_end_their_thought_are_counted(tmp_path):
    rows = [{"prompt": f"Say {n}.", "instruction_id_list": ["plain:quotes"], "kwargs": [{}]} for n in range(10)]
    entry = InstructionsEntry(
        suite="s", name="n", data=data(tmp_path, rows), apply_chat_template=True, max_new_tokens=3
    )
    found = measured(make_model(positions=128), tokenizer_with(OPENS), entry)
    assert {row["output"] for row in found.rows} == {""}
    assert "10 of 10 replies consist of a thought that did not end within 3 tokens." in found.settings["notes"]


def test_a_suite_gives_an_entry_variables(tmp_path):
    entry = {"multiple_choice": data(tmp_path), "chat_template_kwargs": {"enable_thinking": False}}
    plan, problems = parse_evaluation({"keep": [entry, {"multiple_choice": data(tmp_path), "name": "b"}]})
    assert problems == []
    one, other = plan.entries
    assert one.deciding()["chat_template_kwargs"] == {"enable_thinking": False}
    assert "chat_template_kwargs" not in other.deciding()
    assert ["chat_template_kwargs" in fields for fields in plan.record()["entries"]] == [True, False]
