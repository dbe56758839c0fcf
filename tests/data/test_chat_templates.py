"""What a chat template makes of rows is looked at in what it writes."""

import pytest

from data_files import CHAT, jsonl
from holdfast.data.chat_templates import added_bos, argument_form, remark_on_end, remarks
from holdfast.data.formats import standardise
from holdfast.data.prompts import prompts_by_name
from holdfast.data.sources import load_rows
from holdfast.errors import DataError
from tiny import build_tokenizer

LOOP = "{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}BODY<|end|>{% endfor %}"
CALLS = "{% for c in m.tool_calls or [] %}{{ c.function.name }}(ARGUMENTS){% endfor %}"


def tokenizer(body="", end="<|end|>"):
    """One whose template writes messages and `body` behind each."""
    made = build_tokenizer(additional_special_tokens=["<|end|>"])
    made.chat_template = LOOP.replace("BODY", body).replace("<|end|>", end)
    return made


def calling(arguments):
    return tokenizer(CALLS.replace("ARGUMENTS", arguments))


def loaded(*rows, **how):
    return load_rows(jsonl("a.jsonl", rows), **how)


def calls_f(arguments):
    call = {"function": {"name": "f", "arguments": arguments}}
    return {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [call]}]}


ARGUMENTS = "c.function.arguments"
TOJSON = calling("{{ " + ARGUMENTS + " | tojson }}")
TEXT = calling("{{ '' + " + ARGUMENTS + " }}")
BOTH = calling("{{ %s if %s is string else %s | tojson }}" % (ARGUMENTS, ARGUMENTS, ARGUMENTS))
ITEMS = calling("{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}")
PRINTED = calling("{{ " + ARGUMENTS + " }}")


@pytest.mark.parametrize(
    ("words", "form"),
    [(TOJSON, "object"), (ITEMS, "object"), (TEXT, "text"), (PRINTED, "text"), (BOTH, None), (tokenizer(), None)],
)
def test_the_form_of_arguments_that_a_template_takes(words, form):
    assert argument_form(words) == form


@pytest.mark.parametrize(
    ("words", "written", "expected"),
    [
        (TOJSON, '{"city": "Oslo"}', '{"city": "Oslo"}'),
        (TOJSON, "", "{}"),
        (TOJSON, {"city": "Oslo"}, '{"city": "Oslo"}'),
        (ITEMS, '{"city": "Oslo"}', "city=Oslo"),
        (PRINTED, {"city": "Bodø"}, '{"city": "Bodø"}'),
        (TEXT, {"city": "Oslo"}, '{"city": "Oslo"}'),
        (BOTH, '{"city":"Oslo"}', '{"city":"Oslo"}'),
    ],
)
def test_arguments_are_given_in_that_form(words, written, expected):
    row = standardise(loaded(calls_f(written)), words)[0][0]
    assert f"f({expected})" in words.apply_chat_template(row["messages"], tokenize=False)


def test_arguments_that_are_no_json_are_named():
    with pytest.raises(DataError, match=r"row 1: the call of f: expected JSON, got '\{city'"):
        standardise(loaded(calls_f("{city")), TOJSON)


THINKS = tokenizer()
THINKS.chat_template = (
    "{% for m in messages %}<{{ m.role }}>{% if loop.last %}{{ m.content }}"
    "{% else %}{{ m.content.split('</think>')[-1] }}{% endif %}<|end|>{% endfor %}"
)
SILENT = tokenizer()
SILENT.chat_template = "{% for m in messages if m.role != 'tool' %}<{{ m.role }}>{{ m.content }}{% endfor %}"
AS_JSON = tokenizer()
AS_JSON.chat_template = "{% for m in messages %}{{ m.content | tojson }}{% endfor %}"


def turns(*contents, **more):
    roles = ("user", "assistant") * len(contents)
    return {"messages": [{"role": role, "content": c} for role, c in zip(roles, contents, strict=False)], **more}


CALL = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "weather", "arguments": {}}}]}


@pytest.mark.parametrize(
    ("words", "row", "expected"),
    [
        (
            THINKS,
            turns("q", "<think>first</think>one", "q", "<think>second</think>two"),
            "thoughts of the assistant (1",
        ),
        (tokenizer(), turns("q", "<think>first</think>one"), None),
        (tokenizer(), {"messages": [*turns("q")["messages"], CALL]}, "tool calls (1"),
        (tokenizer(), turns("q", "a", tools=[{"function": {"name": "weather"}}]), "tools (1"),
        (tokenizer(), turns("q", "a", tools='[{"name": "weather"}]'), "tools (1"),
        (
            SILENT,
            {"messages": [*turns("q", "a")["messages"], {"role": "tool", "content": "3"}]},
            "contents of role tool (1",
        ),
        (
            tokenizer(),
            {"messages": [*turns("q")["messages"], {"role": "assistant", "content": "a", "reasoning_content": "why"}]},
            "thoughts of the assistant (1",
        ),
        (AS_JSON, turns('a "b"\n\tc', "d\\e \\new é"), None),
        (tokenizer(), {"prompt": turns("q")["messages"], "completion": [CALL]}, "tool calls (1"),
        (tokenizer(), {"prompt": "q", "completion": "a"}, None),
    ],
)
def test_what_a_template_leaves_out_is_counted(words, row, expected):
    found = remarks([row, turns("q", "a"), row], words)
    if expected is None:
        assert found == []
    else:
        count = expected.replace("(1", "(2 in 2 rows)")
        assert found == [f"The chat template leaves out of 3 rows that were checked: {count}."]


def test_the_end_of_a_turn_has_to_end_a_reply():
    words = tokenizer()
    end = words.convert_tokens_to_ids("<|end|>")
    assert remark_on_end(words, {end}) is None
    assert "ends the assistant's turns with <|end|>" in remark_on_end(words, {words.eos_token_id})
    assert remark_on_end(words, {words.eos_token_id}).endswith("Set eos_token: <|end|>.")
    assert "writes no end-of-turn token" in remark_on_end(tokenizer(end=" "), {words.eos_token_id})


def test_text_that_begins_with_the_token_that_the_tokenizer_adds(tmp_path):
    from tokenizers.processors import TemplateProcessing

    words = build_tokenizer(bos_token="<|bos|>")
    assert added_bos(words) is None
    bos = ("<|bos|>", words.bos_token_id)
    words.backend_tokenizer.post_processor = TemplateProcessing(single="<|bos|> $A", special_tokens=[bos])
    assert added_bos(words) == "<|bos|>"
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "<|bos|>one"}\n{"text": "two"}\n')
    out, _ = standardise(load_rows(path), words, not_read=(counts := {}))
    assert out["text"] == ["one", "two"] and counts == {"a second <|bos|> at the beginning": 1}
    assert [ids.count(words.bos_token_id) for ids in prompts_by_name(str(path), words)[0]] == [1, 1]
    assert standardise(load_rows(path), words, one_bos=False)[0]["text"][0] == "<|bos|>one"
    path.write_text('{"prompt": "<|bos|>one", "completion": "two"}\n')
    assert standardise(load_rows(path), words)[0].to_list() == [{"prompt": "one", "completion": "two"}]
    path.write_text('{"prompt": "<|bos|>one"}\n')
    assert prompts_by_name(str(path), words)[0][0].count(words.bos_token_id) == 1


def test_a_prompt_that_ends_otherwise_once_an_answer_follows():
    words = tokenizer()
    words.chat_template += "{% if add_generation_prompt %}<assistant><think>\n{% endif %}"
    row = {"prompt": turns("q")["messages"], "completion": [{"role": "assistant", "content": "a"}]}
    assert remarks([row, row], words) == [
        "In 2 of 2 rows that were checked, the chat template ends the prompt with '<think>\\n' "
        "when the model generates, but not in training, where an answer follows."
    ]


# ------------------------------------------------------------------------------------- which messages are to be trained


def trained(words, *rows):
    """What is trained of each row, as text."""
    counts = {}
    out, layout = standardise(loaded(*rows), words, not_read=counts)
    assert layout == "chat" and not counts and "messages" in out.column_names
    return [words.decode([label for label in row["labels"] if label != -100]) for row in out]


def weighted(*turns, **more):
    return {"messages": [{"role": role, "content": text, **flags} for role, text, flags in turns], **more}


FORGET = ("assistant", "one", {"weight": 0})
ASK, REPLY = ("user", "q", {}), ("assistant", "two", {})


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (weighted(ASK, FORGET, ASK, REPLY), "two<|end|>"),
        (
            weighted(ASK, ("assistant", "one", {"train": False}), ASK, ("assistant", "two", {"train": True})),
            "two<|end|>",
        ),
        (weighted(ASK, ("assistant", "one", {"weight": 1}), ASK, FORGET), "one<|end|>"),
        (weighted(ASK, ("assistant", "one", {"loss": False}), ASK, REPLY), "two<|end|>"),
        (weighted(("user", "q", {"train": True}), FORGET), "q<|end|>"),
        (weighted(ASK, FORGET, ASK, REPLY, system="Be a bard."), "two<|end|>"),
        (weighted(ASK, REPLY, ASK, ("assistant", "one", {})), "two<|end|>one<|end|>"),
        (weighted(ASK, FORGET, ASK, ("assistant", "one", {})), "one<|end|>"),
    ],
)
def test_messages_say_whether_they_are_trained(row, expected):
    assert trained(tokenizer(), row, weighted(ASK, FORGET, REPLY)) == [expected, "two<|end|>"]


def test_only_the_thought_that_is_written_is_trained():
    row = weighted(ASK, ("assistant", "<think>a</think>one", {}), ASK, FORGET)
    last = weighted(ASK, FORGET, ASK, ("assistant", "<think>b</think>two", {}))
    assert trained(THINKS, row, last) == ["one<|end|>", "<think>b</think>two<|end|>"]


def test_calls_of_tools_are_trained_with_their_message():
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]}
    messages = [*weighted(ASK, FORGET, ASK)["messages"], call]
    assert trained(TOJSON, {"messages": messages}) == ['f({"a": 1})<|end|>']


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (weighted(ASK, ("assistant", "one", {"weight": 0.5})), "message 2 has the weight 0.5, expected 0 or 1"),
        (weighted(ASK, FORGET), "all of its messages are excluded from training"),
    ],
)
def test_weights_that_cannot_be_kept(row, reason):
    with pytest.raises(DataError, match=f"row 1: {reason}"):
        standardise(loaded(row), tokenizer())


def test_a_template_that_mixes_messages_up_is_named():
    words = tokenizer()
    words.chat_template = "{{ messages | length }}{% for m in messages %}{{ messages[-1].content }}{% endfor %}"
    with pytest.raises(DataError, match="row 1: if message 4"):
        standardise(loaded(weighted(ASK, FORGET, ASK, REPLY)), words)


def test_without_a_fast_tokenizer_weights_are_named():
    row, counts, streamed = weighted(ASK, FORGET, REPLY), {}, {}
    standardise(loaded(row), CHAT, not_read=counts)
    standardise(loaded(row, streaming=True), tokenizer(), not_read=streamed)
    assert counts == {"weight of messages": 1} and streamed == {"weight of messages": None}
