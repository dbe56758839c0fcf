"""A layout of one's own: one value in one list, and every reader of rows knows it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

import pytest
from datasets import Dataset

from data_files import CHAT, PLAIN
from holdfast.data import layouts
from holdfast.data.formats import detect, standardise
from holdfast.errors import DataError
from tiny import build_tokenizer

TICKETS = layouts.chat_layout(
    "dialog", role="speaker", content="utterance", roles={"customer": "user", "agent": "assistant"}
)
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
TURNS = [{"speaker": "customer", "utterance": "It leaks."}, {"speaker": "agent", "utterance": "I send someone."}]


def _convert_review(row, fields, as_messages):
    question, answer = f"How many stars?\n{row[fields['review']]}", str(row[fields["stars"]])
    if not as_messages:
        return {"prompt": question, "completion": answer}
    user, assistant = {"role": "user", "content": question}, {"role": "assistant", "content": answer}
    return {"prompt": [user], "completion": [assistant]}


REVIEWS = layouts.Layout(
    name="review",
    example="review + stars",
    columns={"review": layouts.Column(("review", "opinion"), str), "stars": layouts.Column(("stars",), int)},
    result=("prompt", "completion"),
    convert=_convert_review,
    messages=layouts.Messages.WITH_TEMPLATE,
)


@pytest.fixture(autouse=True)
def own_layouts() -> Iterator[None]:
    layouts.LAYOUTS[:0] = [TICKETS, REVIEWS]
    yield
    del layouts.LAYOUTS[:2]


def test_layouts_a_new_one_is_recognised_and_becomes_messages():
    tokenizer = build_tokenizer()
    tokenizer.chat_template = TEMPLATE
    not_read: dict[str, int | None] = {}
    rows = Dataset.from_list([{"dialog": [{**turn, "mood": "calm"} for turn in TURNS]}] * 2)
    found, name = standardise(rows, tokenizer, not_read=not_read)
    assert (name, detect(rows.column_names, rows[0])) == ("chat", "chat")
    assert [(m["role"], m["content"]) for m in found[0]["messages"]] == [
        ("user", "It leaks."),
        ("assistant", "I send someone."),
    ]
    assert not_read == {"mood of messages": 4}, "what it does not read is named"


def test_layouts_a_new_ones_mistakes_are_those_of_conversations():
    tokenizer = build_tokenizer()
    tokenizer.chat_template = TEMPLATE
    rows = Dataset.from_list([{"dialog": [{"speaker": "custmer", "utterance": "Hm."}]}])
    with pytest.raises(DataError, match=r"message 1 has the unknown role 'custmer'.* did you mean 'customer'"):
        standardise(rows, tokenizer)


def test_layouts_rows_are_converted_anew_where_its_roles_change():
    tokenizer = build_tokenizer()
    tokenizer.chat_template = TEMPLATE
    rows = Dataset.from_list([{"dialog": [*TURNS, TURNS[0]]}])
    first = [m["role"] for m in standardise(rows, tokenizer)[0][0]["messages"]]
    swapped = {"customer": "assistant", "agent": "user"}
    layouts.LAYOUTS[0] = dataclasses.replace(TICKETS, keys=dataclasses.replace(TICKETS.keys, roles=swapped))
    second = [m["role"] for m in standardise(rows, tokenizer)[0][0]["messages"]]
    assert first == ["user", "assistant", "user"] and second == ["assistant", "user", "assistant"]


@pytest.mark.parametrize("tokenizer", [PLAIN, CHAT])
def test_layouts_one_that_is_no_conversation(tokenizer):
    not_read: dict[str, int | None] = {}
    rows = Dataset.from_list([{"Opinion": "Fine.", "stars": 4, "shop": "x"}] * 2)
    converted, name = standardise(rows, tokenizer, not_read=not_read)
    assert (name, not_read) == ("review", {"shop": 2})
    prompt, completion = converted[0]["prompt"], converted[0]["completion"]
    if tokenizer is CHAT:
        prompt, completion = prompt[0]["content"], completion[0]["content"]
    assert (prompt, completion) == ("How many stars?\nFine.", "4")


def test_layouts_columns_of_another_kind_make_another_layout():
    assert detect(["text", "review", "stars"], {"text": "a", "review": "b", "stars": 4}) == "review"
    assert detect(["text", "review", "stars"], {"text": "a", "review": "b", "stars": "four"}) == "text"
    with pytest.raises(DataError, match=r"review \+ stars\n"):
        detect(["review", "rating"])


def test_layouts_a_role_whose_content_is_a_call_may_stand_in_any_column_of_conversations():
    call = {"name": "f", "arguments": {"a": 1}}
    turns = [("human", "x"), ("function_call", json.dumps(call)), ("observation", "3"), ("gpt", "y")]
    rows = Dataset.from_list([{"conversations": [{"from": role, "value": text} for role, text in turns]}] * 2)
    messages = standardise(rows, CHAT)[0][1]["messages"]
    assert messages[1] == {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": call}],
    }
