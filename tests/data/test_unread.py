"""What is not read of rows is counted; what the field has a convention for is read."""

import json

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_files import CHAT, PLAIN, jsonl, text
from holdfast.data.formats import Templates, rows_by_name, standardise
from holdfast.data.sources import load_rows
from holdfast.data.unread import sentence
from holdfast.errors import DataError

ASKED, SAYS = {"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}
SYSTEM = {"role": "system", "content": "Be a bard."}


def written(path, *rows):
    return jsonl(path, rows)


def read(path, tokenizer=CHAT, **options):
    """(rows, what is not read)."""
    counts = {}
    out, _ = standardise(load_rows(path), tokenizer, not_read=counts, **options)
    return out.to_list(), counts


# -------------------------------------------------------------------------------------------------------------- counted


@pytest.mark.parametrize(
    ("tokenizer", "first", "second", "expected"),
    [
        (PLAIN, {"text": "a", "id": 1, "url": ""}, {"text": "a", "id": None, "url": "u"}, {"id": 1, "url": 1}),
        (PLAIN, {"text": "a", "tags": []}, {"text": "a", "tags": ["b"]}, {"tags": 1}),
        (PLAIN, {"text": "a", "meta": {"k": 1}}, {"text": "a", "meta": {"l": 2}}, {"meta": 2}),
        (PLAIN, {"prompt": "a", "completion": "b", "weight": 0}, {"prompt": "a", "completion": "b"}, {"weight": 1}),
        (
            PLAIN,
            {"instruction": "a", "output": "b", "system": "s", "history": [["c", "d"]]},
            {"instruction": "a", "output": "b", "system": "", "history": []},
            {"system": 1, "history": 1},
        ),
        (PLAIN, {"input_ids": [1, 2], "length": 2}, {"input_ids": [1, 2], "length": 2}, {"length": 2}),
        (
            CHAT,
            {"messages": [ASKED, {**SAYS, "weight": 1, "score": 0}]},
            {"messages": [ASKED, {**SAYS, "reasoning": "z"}], "chosen": "a"},
            {"chosen": 1, "weight of messages": 1, "score of messages": 1, "reasoning of messages": 1},
        ),
        (CHAT, {"messages": [ASKED, {**SAYS, "loss": 0.3}]}, {"messages": [ASKED, SAYS]}, {"loss of messages": 1}),
        (CHAT, {"messages": [ASKED, {**SAYS, "refusal": None}]}, {"messages": [ASKED, SAYS]}, {}),
        (CHAT, {"messages": [SYSTEM, ASKED, SAYS], "system": "Else."}, {"messages": [ASKED, SAYS]}, {"system": 1}),
    ],
)
def test_what_has_a_value_and_is_not_read_is_counted(tmp_path, tokenizer, first, second, expected):
    assert read(written(tmp_path / "a.jsonl", first, second), tokenizer)[1] == expected


def test_templates_read_what_they_name(tmp_path):
    path = written(tmp_path / "a.jsonl", {"q": "a", "passage": "b", "n": 1})
    assert read(path, PLAIN, templates=Templates(prompt="{q}", completion="{n}"))[1] == {"passage": 1}


def test_streamed_rows_are_not_counted_but_named(tmp_path):
    path, counts = written(tmp_path / "a.jsonl", {"text": "a", "id": 1}), {}
    standardise(load_rows(path, streaming=True), PLAIN, not_read=counts)
    assert counts == {"id": None} and sentence(counts) == "Not read: id."
    later = written(tmp_path / "b.jsonl", {"messages": [ASKED, SAYS]}, {"messages": [ASKED, {**SAYS, "weight": 0}]})
    standardise(load_rows(later, streaming=True), CHAT, not_read=(counts := {}))
    assert counts == {"weight of messages": None}


def test_the_sentence():
    counts = {"context": 1, "history": 1_200, "weight of messages": 3}
    assert sentence(counts, "a.jsonl") == (
        "Not read of a.jsonl: context (1 row), history (1,200 rows), weight of messages (3)."
    )
    assert sentence({"a\n\x1b[2J": 1, "b" * 100: 1}) == f"Not read: a\\n\\x1b[2J (1 row), {'b' * 80} (1 row)."
    assert sentence(dict.fromkeys(map(str, range(20)), 1)).endswith("and 8 more.")


def test_data_that_methods_name_are_told_about_too(tmp_path):
    said = []
    rows_by_name(PLAIN, say=said.append)(str(written(tmp_path / "old.jsonl", {"text": "a", "id": 1})))
    assert said == [f"Not read of {tmp_path / 'old.jsonl'}: id (1 row)."]


# ------------------------------------------------------------------------------------------------------------ questions


def test_the_passage_before_a_question_is_read(tmp_path):
    path = written(
        tmp_path / "a.jsonl",
        {"context": "A long text.", "question": "q?", "answer": "a"},
        {"context": None, "question": "q?", "answer": "a"},
    )
    rows, counts = read(path)
    assert [row["prompt"][0]["content"] for row in rows] == ["A long text.\n\nq?", "q?"] and not counts
    rows, _ = read(path, PLAIN)
    assert [row["prompt"] for row in rows] == ["A long text.\n\nQuestion: q?\nAnswer:", "Question: q?\nAnswer:"]


@pytest.mark.parametrize("more", [{"A": "cat", "B": "log"}, {"options": ["cat"]}, {"option_1": "cat"}])
def test_answers_among_options_need_a_template(tmp_path, more):
    with pytest.raises(DataError, match="match no known layout"):
        read(written(tmp_path / "a.jsonl", {"question": "q", **more, "answer": "A"}))


@pytest.mark.parametrize("passage", ["a long passage", {"title": ["t"], "sentences": [["a long", "passage"]]}])
def test_most_of_the_text_of_questions_has_to_be_read(tmp_path, passage):
    path = written(tmp_path / "a.jsonl", {"question": "q?", "answer": "a", "passage": passage})
    with pytest.raises(DataError, match=r"% of the text of these rows .* passage") as caught:
        read(path)
    assert 'prompt: "{passage}\\n\\nQuestion: {question}\\nAnswer:"' in str(caught.value)
    assert read(written(path, {"question": "q?", "answer": "a" * 20, "passage": "short"}))[1] == {"passage": 1}


# ------------------------------------------------------------------------------------------ system prompts and history


def test_system_prompts_and_earlier_turns_become_messages(tmp_path):
    path = written(
        tmp_path / "a.jsonl",
        {"instruction": "And?", "output": "End.", "system": "Be a bard.", "history": [["Once?", "Upon."]]},
        {"instruction": "And?", "output": "End.", "system": "", "history": None},
    )
    rows, counts = read(path)
    earlier = [{"role": "user", "content": "Once?"}, {"role": "assistant", "content": "Upon."}]
    asked = {"role": "user", "content": "And?"}
    assert [row["prompt"] for row in rows] == [[SYSTEM, *earlier, asked], [asked]] and not counts
    with pytest.raises(DataError, match="row 1: 'history' holds a list, expected pairs"):
        read(written(path, {"instruction": "a", "output": "b", "history": [["a"]]}))


@pytest.mark.parametrize(
    "row",
    [
        {"system": "Be a bard.", "conversations": [{"from": "human", "value": "x"}, {"from": "gpt", "value": "y"}]},
        {"system_prompt": "Be a bard.", "messages": [ASKED, SAYS]},
        {"system": "Be a bard.", "prompt": [ASKED], "completion": [SAYS]},
        {"system": "Be a bard.", "question": "x", "answer": "y"},
        {"system": "Be another.", "messages": [SYSTEM, ASKED, SAYS]},
    ],
)
def test_a_system_prompt_beside_any_conversation(tmp_path, row):
    out = read(written(tmp_path / "a.jsonl", row))[0][0]
    assert [*out.get("messages", ()), *out.get("prompt", ()), *out.get("completion", ())] == [SYSTEM, ASKED, SAYS]


# ------------------------------------------------------------------------------------------ objects as they are written


def called(arguments, **more):
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call], **more}


FIRST = {"city": "Oslo", "unit": None}
SECOND = {"hour": 7, "alarm": {"z": 1, "a": 2.5}}
TOOLS = [
    [{"function": {"name": "f", "parameters": {"properties": {key: {"type": "string"}}}}}] for key in ("city", "hour")
]


@pytest.mark.parametrize("ending", ["jsonl", "json"])
def test_objects_keep_their_keys_their_order_and_their_numbers(tmp_path, ending):
    rows = [
        {"messages": [ASKED, called(arguments)], "tools": tools, "chat_template_kwargs": variables}
        for arguments, tools, variables in zip((FIRST, SECOND), TOOLS, ({"a": 1, "b": False}, {"b": True}), strict=True)
    ]
    path = tmp_path / f"a.{ending}"
    text(path, json.dumps(rows)) if ending == "json" else jsonl(path, rows)
    out, _ = read(path)
    assert [[json.dumps(row[column]) for column in rows[0]] for row in out] == [
        [json.dumps(value) for value in row.values()] for row in rows
    ]


def test_objects_of_several_files_keep_their_keys(tmp_path):
    one = written(tmp_path / "a.jsonl", {"messages": [ASKED, SAYS], "chat_template_kwargs": {"a": 1}})
    two = written(tmp_path / "b.jsonl", {"messages": [ASKED, SAYS], "chat_template_kwargs": {"b": 1}})
    assert [row["chat_template_kwargs"] for row in read([one, two])[0]] == [{"a": 1}, {"b": 1}]


@pytest.mark.parametrize("large", [False, True])
def test_nulls_that_arrow_put_into_objects_are_taken_out(tmp_path, large):
    rows = [
        {"messages": [ASKED, called(arguments)], "tools": tools, "chat_template_kwargs": variables}
        for arguments, tools, variables in zip(({"a": 1}, {"b": 2}), TOOLS, ({"c": True}, None), strict=True)
    ]
    table = pa.Table.from_pylist(rows)
    if large:
        table = table.set_column(
            0, "messages", table.column(0).cast(pa.large_list(table.schema.field(0).type.value_type))
        )
    pq.write_table(table, tmp_path / "a.parquet")
    out, _ = read(tmp_path / "a.parquet")
    assert [row["messages"][1]["tool_calls"][0]["function"]["arguments"] for row in out] == [{"a": 1}, {"b": 2}]
    assert [row["tools"] for row in out] == TOOLS
    assert [row["chat_template_kwargs"] for row in out] == [{"c": True}, {}]


def test_variables_of_the_template_in_some_rows(tmp_path):
    path = written(
        tmp_path / "a.jsonl",
        {"messages": [ASKED, SAYS], "chat_template_kwargs": {"enable_thinking": False}},
        {"messages": [ASKED, SAYS]},
    )
    assert [row["chat_template_kwargs"] for row in read(path)[0]] == [{"enable_thinking": False}, {}]
    with pytest.raises(DataError, match="'chat_template_kwargs' holds text, expected an object"):
        read(written(path, {"messages": [ASKED, SAYS], "chat_template_kwargs": "x"}))


def test_tools_beside_instructions_and_as_text(tmp_path):
    path = written(tmp_path / "a.jsonl", {"instruction": "a", "output": "b", "tools": TOOLS[0]})
    rows, counts = read(path)
    assert rows[0]["tools"] == TOOLS[0] and not counts
    assert read(path, PLAIN)[1] == {"tools": 1}
    assert read(written(path, {"messages": [ASKED, SAYS], "tools": ""}))[0][0]["tools"] is None
    with pytest.raises(DataError, match="row 1: 'tools': expected JSON, got 'f'"):
        read(written(path, {"messages": [ASKED, SAYS], "tools": "f"}))


# ---------------------------------------------------------------------------------------------------- contents in parts


def test_text_in_parts_is_text(tmp_path):
    parts = [{"type": "text", "text": "x "}, {"type": "input_text", "text": "y"}, "z"]
    path = written(tmp_path / "a.jsonl", {"messages": [{"role": "user", "content": parts}, SAYS]})
    assert read(path)[0][0]["messages"][0]["content"] == "x yz"
    for part, got in (({"type": "thinking", "thinking": "x"}, "a part of type 'thinking'"), (3, "a number")):
        with pytest.raises(DataError, match=rf"message 1 \(user\): expected parts of type text, got {got}"):
            read(written(path, {"messages": [{"role": "user", "content": [part]}, SAYS]}))


def test_calls_in_older_forms(tmp_path):
    call = {"name": "f", "arguments": "{}"}
    rows = [
        {"messages": [ASKED, {"role": "assistant", "content": None, "function_call": call}]},
        {"messages": [ASKED, {"role": "assistant", "content": None, "tool_calls": json.dumps([{"function": call}])}]},
        {"conversations": [ASKED, {"from": "function_call", "value": json.dumps(call)}]},
        {"conversations": [ASKED, {"from": "function_call", "value": json.dumps([call])}]},
    ]
    for row in rows:
        out, counts = read(written(tmp_path / "a.jsonl", row))
        assert out[0]["messages"][1]["tool_calls"][0]["function"] == call and not counts
        assert out[0]["messages"][1]["content"] == ""


# ------------------------------------------------------------------------------------------------- masks beside tokens


@pytest.mark.parametrize(
    ("beside", "ids", "labels"),
    [
        ({"completion_mask": [0, 1, 1]}, [1, 2, 3], [-100, 2, 3]),
        ({"assistant_masks": [0, 0, 1]}, [1, 2, 3], [-100, -100, 3]),
        ({"loss_mask": [False, True, True]}, [1, 2, 3], [-100, 2, 3]),
        ({"attention_mask": [1, 1, 0]}, [1, 2], [1, 2]),
        ({"attention_mask": [0, 1, 1], "loss_mask": [1, 0, 1]}, [2, 3], [-100, 3]),
        ({"labels": [-100, 2, 3], "loss_mask": [1, 1, 0]}, [1, 2, 3], [-100, 2, -100]),
        ({"labels": [-100, 2, -100], "attention_mask": [1, 1, 0]}, [1, 2], [-100, 2]),
    ],
)
def test_masks_go_into_the_labels(tmp_path, beside, ids, labels):
    rows, counts = read(written(tmp_path / "a.jsonl", *[{"input_ids": [1, 2, 3], **beside}] * 2))
    assert rows == [{"input_ids": ids, "labels": labels}] * 2 and not counts


def test_full_masks_leave_the_rows_where_they_are(tmp_path):
    data = load_rows(written(tmp_path / "a.jsonl", {"input_ids": [1, 2], "attention_mask": [1, 1]}))
    out, _ = standardise(data, PLAIN, not_read=(counts := {}))
    assert not counts
    assert out.to_list() == [{"input_ids": [1, 2]}] and out.cache_files == data.cache_files


@pytest.mark.parametrize(
    ("mask", "reason"),
    [
        ([1], "2 input_ids but 1 attention_mask"),
        ([0, 0], "its attention_mask masks every token"),
        (None, "'attention_mask' is missing or null"),
        (["1", "1"], "'attention_mask' should be a list of whole numbers"),
    ],
)
def test_masks_that_do_not_fit(tmp_path, mask, reason):
    with pytest.raises(DataError, match=f"row 1: {reason}"):
        read(written(tmp_path / "a.jsonl", {"input_ids": [1, 2], "attention_mask": mask}, {"input_ids": [1]}))


def test_rows_from_a_saved_data_set_count_the_same(tmp_path):
    datasets.Dataset.from_list([{"text": "a", "id": 1}]).save_to_disk(str(tmp_path / "saved"))
    assert read(tmp_path / "saved", PLAIN)[1] == {"id": 1}
