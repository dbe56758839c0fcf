"""A conversation in a form of one's own: one value in one list, and every reader of rows knows it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from datasets import Dataset

from holdfast.data import layouts
from holdfast.data.formats import detect, standardise
from holdfast.errors import DataError
from tiny import build_tokenizer

TICKETS = layouts.ChatLayout(
    columns=("dialog",), role="speaker", content="utterance", roles={"customer": "user", "agent": "assistant"}
)
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
TURNS = [{"speaker": "customer", "utterance": "It leaks."}, {"speaker": "agent", "utterance": "I send someone."}]


@pytest.fixture(autouse=True)
def tickets() -> Iterator[None]:
    layouts.CHAT_LAYOUTS.append(TICKETS)
    yield
    del layouts.CHAT_LAYOUTS[2:]


def test_chat_layouts_a_new_one_is_recognised_and_becomes_messages():
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


def test_chat_layouts_a_new_ones_mistakes_are_those_of_conversations():
    tokenizer = build_tokenizer()
    tokenizer.chat_template = TEMPLATE
    rows = Dataset.from_list([{"dialog": [{"speaker": "custmer", "utterance": "Hm."}]}])
    with pytest.raises(DataError, match=r"message 1 has the unknown role 'custmer'.* did you mean 'customer'"):
        standardise(rows, tokenizer)


def test_chat_layouts_rows_are_converted_anew_where_its_roles_change():
    tokenizer = build_tokenizer()
    tokenizer.chat_template = TEMPLATE
    rows = Dataset.from_list([{"dialog": [*TURNS, TURNS[0]]}])
    first = [m["role"] for m in standardise(rows, tokenizer)[0][0]["messages"]]
    swapped = {"customer": "assistant", "agent": "user"}
    layouts.CHAT_LAYOUTS[2] = dataclasses.replace(TICKETS, roles=swapped)
    second = [m["role"] for m in standardise(rows, tokenizer)[0][0]["messages"]]
    assert first == ["user", "assistant", "user"] and second == ["assistant", "user", "assistant"]
