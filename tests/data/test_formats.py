"""Every layout with and without a chat template; every row that cannot be used is named; nothing is repaired or skipped
in silence."""

import json

import datasets
import pytest

from data_files import CHAT, PLAIN
from holdfast.data.formats import Templates, detect, standardise
from holdfast.data.sources import data_files, load_rows
from holdfast.errors import ConfigError, DataError


def rows(*values):
    return datasets.Dataset.from_list(list(values))


def run(dataset, tokenizer=PLAIN, **options):
    out, layout = standardise(dataset, tokenizer, **options)
    return out.to_list(), layout


def turn(user, assistant):
    return {"prompt": [{"role": "user", "content": user}], "completion": [{"role": "assistant", "content": assistant}]}


def refused(dataset, *parts, tokenizer=PLAIN, **options):
    with pytest.raises(DataError) as caught:
        standardise(dataset, tokenizer, **options)
    message = str(caught.value)
    for part in parts:
        assert part in message, f"{part!r} is not in: {message}"
    return message


# ------------------------------------------------------------------------------------------------------------ detecting


@pytest.mark.parametrize(
    ("columns", "layout"),
    [
        (["text", "label"], "text"),
        (["messages", "prompt", "prompt_id"], "chat"),
        (["conversations", "id"], "chat"),
        (["prompt", "response", "text"], "prompt_completion"),
        (["instruction", "input", "output", "text"], "instruction"),
        (["Question", "Answer"], "question_answer"),
        (["input_ids", "labels", "text"], "tokenised"),
    ],
)
def test_detect(columns, layout):
    assert detect(columns) == layout
    assert detect(list(reversed(columns))) == layout


def test_unknown_columns_are_explained():
    with pytest.raises(DataError) as caught:
        detect(["promt", "reply", "id"])
    message = str(caught.value)
    for part in (
        "promt, reply, id",
        "Did you mean 'prompt'",
        "messages",
        "instruction [+ input] + output",
        'prompt: "{promt}"',
        'completion: " {reply}"',
    ):
        assert part in message
    with pytest.raises(DataError, match="no known layout"):
        detect(["instruction", "instances"])
    with pytest.raises(DataError, match="no known layout"):  # the answer would be an index into the choices
        detect(["question", "choices", "answer"])


# ---------------------------------------------------------------------------------------------------------- each layout


QUESTION = {"question": "Why?", "answer": "So.", "source": "x"}
MESSAGES = [{"role": "system", "content": ""}, *turn("x", "y")["prompt"], *turn("x", "y")["completion"]]
SHAREGPT = [{"from": "human", "value": "x"}, {"from": "gpt", "value": "y"}]
NUMBERED = {"q": "Why?", "a b": "So.", "n": 3}
SAME_NAMES = {"prompt": "a", "completion": "b", "text": "t"}


@pytest.mark.parametrize(
    ("row", "tokenizer", "templates", "layout", "expected"),
    [
        ({"id": 1, "body": " a\n"}, PLAIN, None, "text", {"text": " a\n"}),
        (
            {"response": " b", "prompt": "a", "id": 1},
            CHAT,
            None,
            "prompt_completion",
            {"prompt": "a", "completion": " b"},
        ),
        ({"prompt": "2+2=", "answer": 4}, PLAIN, None, "prompt_completion", {"prompt": "2+2=", "completion": "4"}),
        (QUESTION, CHAT, None, "question_answer", turn("Why?", "So.")),
        ({"messages": MESSAGES, "id": 3}, CHAT, None, "chat", {"messages": MESSAGES}),
        ({"id": "1", "conversations": SHAREGPT}, CHAT, None, "chat", {"messages": MESSAGES[1:]}),
        (
            {"input_ids": [1, 2], "labels": [-100, 2], "x": "y"},
            PLAIN,
            None,
            "tokenised",
            {"input_ids": [1, 2], "labels": [-100, 2]},
        ),
        (
            NUMBERED,
            CHAT,
            {"prompt": "Q{{}} {q}\nA ({n}):", "completion": " {a b}"},
            "prompt_completion",
            {"prompt": "Q{} Why?\nA (3):", "completion": " So."},
        ),
        (
            SAME_NAMES,
            PLAIN,
            {"prompt": "<{prompt}>", "completion": "{completion}{completion}"},
            "prompt_completion",
            {"prompt": "<a>", "completion": "bb"},
        ),
    ],
)
def test_a_row_of_each_layout(row, tokenizer, templates, layout, expected):
    given = Templates(**templates) if templates is not None else None
    assert run(rows(row, row), tokenizer, templates=given) == ([expected, expected], layout)


def test_prompt_completion_messages():
    value = turn("x", "y")
    assert run(rows(value, value), CHAT) == ([value, value], "prompt_completion")
    refused(rows(value), "chat_template_path", tokenizer=PLAIN)
    empty = {"prompt": value["prompt"], "completion": [{"role": "assistant", "content": " "}]}
    refused(rows(value, empty), "row 2: 'completion' has no assistant message with content", tokenizer=CHAT)


def test_instruction():
    braces = run(rows({"instruction": "Print {x} and {", "output": "}"}))[0][0]
    assert "Print {x} and {" in braces["prompt"], "no format string"
    data = rows(
        {"instruction": "Add.", "input": "1 2", "output": "3"},
        {"instruction": "Go.", "input": "", "output": "ok"},
        {"instruction": "Go.", "output": "ok"},
    )
    out, layout = run(data, CHAT)
    assert layout == "instruction"
    assert out == [turn("Add.\n\n1 2", "3"), turn("Go.", "ok"), turn("Go.", "ok")]
    plain, _ = run(data, PLAIN)
    assert plain[0]["prompt"].endswith("### Instruction:\nAdd.\n\n### Input:\n1 2\n\n### Response:\n")
    assert "paired with an input" in plain[0]["prompt"]
    assert plain[1]["prompt"] == plain[2]["prompt"]
    assert "Input" not in plain[1]["prompt"]
    assert [r["completion"] for r in plain] == ["3", "ok", "ok"]


def test_chat_keeps_what_templates_read_and_drops_the_rest():
    call = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}],
        "weight": 1,
    }
    reply = {"role": "tool", "content": "3", "name": "f", "weight": 0}
    out, _ = run(rows({"messages": [{"role": "user", "content": "x", "weight": 0}, call, reply], "tools": "[]"}), CHAT)
    assert out[0]["tools"] == "[]"
    user, call_out, reply_out = out[0]["messages"]
    assert user == {"role": "user", "content": "x"}
    assert reply_out == {"role": "tool", "content": "3", "name": "f"}
    assert call_out["content"] == ""
    assert call_out["tool_calls"] == call["tool_calls"]


TOOLS = [{"type": "function", "function": {"name": "f"}}]
ASKED, SAYS = {"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("row", [{"messages": [ASKED, SAYS]}, {"prompt": [ASKED], "completion": [SAYS]}])
def test_tools_stay_beside_messages(tmp_path, row, streaming):
    path = tmp_path / "a.jsonl"
    beside = {"tools": TOOLS, "chat_template_kwargs": {"thinking": True}}
    path.write_text(json.dumps({**row, **beside, "n": 1}) + "\n")
    out, _ = standardise(load_rows(path, streaming=streaming), CHAT)
    assert next(iter(out)) == {**row, **beside}
    path.write_text(json.dumps({"prompt": "x", "completion": "y", "tools": "[]"}) + "\n")
    out, _ = standardise(load_rows(path, streaming=streaming), CHAT)
    assert next(iter(out)) == {"prompt": "x", "completion": "y"}


# ------------------------------------------------------------------------------------------------------------ templates


def test_template_values_are_checked():
    data = rows({"q": "a", "o": ["x"]}, {"q": None, "o": ["x"]})
    refused(data, "1 of 2", "row 2: 'q' is missing or null", templates=Templates(text="{q}"))
    refused(data, "2 of 2", "row 1: 'o' holds a list", templates=Templates(text="{o}"))
    refused(rows({"q": " "}), "row 1: 'completion' is empty", templates=Templates(prompt="x{q}", completion="{q}"))


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({}, "got none of them"),
        ({"text": "{a}", "prompt": "{a}", "completion": "{b}"}, "got text and prompt and completion"),
        ({"text": "{a.__class__}"}, "plain column names"),
        ({"text": "no column"}, "expected a column name in braces"),
    ],
)
def test_bad_templates(fields, part):
    with pytest.raises(ConfigError) as caught:
        Templates(**fields)
    assert part in str(caught.value)


# ------------------------------------------------------------------------------------------------------------- bad rows


GOOD = {
    "prompt_completion": {"prompt": "a", "completion": "b"},
    "chat": {"messages": MESSAGES[1:]},
    "tokenised": {"input_ids": [1], "labels": [1]},
}


@pytest.mark.parametrize(
    ("layout", "bad", "reason"),
    [
        ("prompt_completion", {"prompt": " \n", "completion": "b"}, "'prompt' is empty"),
        ("prompt_completion", {"prompt": "a", "completion": ""}, "'completion' is empty"),
        ("chat", None, "'messages' is missing or null"),
        ("chat", [{"role": "user", "content": "x"}], "'messages' has no assistant message"),
        ("chat", [{"role": "asistant", "content": "x"}], "message 1 has the unknown role 'asistant'"),
        ("chat", [{"role": "user", "content": None}, MESSAGES[-1]], "message 1 (user): content is null, expected text"),
        ("chat", [MESSAGES[-1], {"role": None, "content": "x"}], "message 2 has no role"),
        ("tokenised", {"input_ids": [1, 2], "labels": [1]}, "2 input_ids but 1 labels"),
        ("tokenised", {"input_ids": [1, None], "labels": [1, 2]}, "'input_ids' should be a list of whole numbers"),
    ],
)
def test_bad_rows(layout, bad, reason):
    bad = {"messages": bad} if layout == "chat" else bad
    reasons = (f"1 of 3 rows cannot be used as {layout}", f"row 2: {reason}")
    message = refused(rows(GOOD[layout], bad, GOOD[layout]), *reasons, tokenizer=CHAT)
    assert "more" not in message


def test_the_first_five_of_many_bad_rows_are_named():
    values = [{"text": "" if i % 3 == 0 else "x"} for i in range(30)]
    message = refused(rows(*values), "10 of 30 rows", "row 1:", "row 4:", "row 13:", "and 5 more")
    assert "row 16:" not in message


def test_bad_rows_name_file_and_line(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n\n{"text": ""}\n{"other": 1}\n')
    refused(
        load_rows(path),
        f"{path}, line 3: 'text' is empty",
        f"{path}, line 4: 'text' is missing or null",
        files=data_files(path),
    )


# -------------------------------------------------------------------------------------------------- caching and streams


def test_a_failed_conversion_is_not_cached_and_a_good_one_is(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"question": "a", "answer": "b"}\n{"question": "a", "answer": ""}\n')
    for _ in range(2):
        refused(load_rows(path), "row 2: 'answer' is empty", tokenizer=CHAT)
    path.write_text('{"question": "a", "answer": "b"}\n')
    first, again = (standardise(load_rows(path), CHAT)[0] for _ in range(2))
    assert first._fingerprint == again._fingerprint
    assert first.cache_files == again.cache_files != []
    assert standardise(load_rows(path), PLAIN)[0].to_list() != first.to_list()
    other = [
        standardise(load_rows(path), PLAIN, templates=Templates(text=t))[0].to_list()
        for t in ("{question}", "{answer}")
    ]
    assert other == [[{"text": "a"}], [{"text": "b"}]]


def test_streams_are_converted_and_checked_on_the_way(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"question": "a", "answer": "b", "n": 1}\n{"question": "a", "answer": ""}\n')
    out, layout = standardise(load_rows(path, streaming=True), CHAT)
    assert layout == "question_answer"
    found = iter(out)
    assert next(found) == turn("a", "b")
    with pytest.raises(DataError, match="Row 2 cannot be used: 'answer' is empty"):
        next(found)


def test_trl_takes_what_comes_out():
    from trl.data_utils import is_conversational

    data = rows({"instruction": "Add.", "output": "3"})
    assert is_conversational(standardise(data, CHAT)[0][0])
    assert not is_conversational(standardise(data, PLAIN)[0][0])
    named = rows(
        {
            "messages": [
                {"role": "user", "content": "x", "name": "n"},
                {"role": "assistant", "content": "y", "name": None},
            ]
        }
    )
    assert is_conversational(standardise(named, CHAT)[0][0])
