"""How a model replies: each rule with what it takes and what it refuses, the shipped prompts, whole entries on a tiny
model, and two models sample by sample."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from data_files import jsonl
from evaluation.conftest import CHAT, make_model, make_tokenizer, measured, parsed
from holdfast.errors import DataError, ModelError
from holdfast.evaluation.compare.samples import compare_samples
from holdfast.evaluation.kinds.behaviour import DESCRIBING, ON_SOME, BehaviourEntry, Prompt, _row, read_prompts
from holdfast.evaluation.measures import check
from holdfast.evaluation.text.behaviour_prompts import shipped_prompts
from holdfast.evaluation.text.languages import LANGUAGES, language_of
from holdfast.evaluation.text.replies import Reply
from holdfast.evaluation.text.reply_form import has_heading, has_list, is_json, is_refusal
from holdfast.evaluation.text.thoughts import state_of_thought
from holdfast.evaluation.text.tool_calls import functions_of, is_call
from holdfast.records.evaluation import Evaluation

TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "required": ["place", "day"]}},
}
TOOLS = CHAT.replace("{% for m", "{% if tools %}<|tools|>{{ tools | tojson }}<|end|>{% endif %}{% for m", 1)
CALL = '{"name": "get_weather", "arguments": {"place": "Oslo", "day": "today"}}'

# --------------------------------------------------------------------------------------------------------------- rules


@pytest.mark.parametrize(
    ("reply", "keys", "valid"),
    [
        ('{"a": 1, "b": 2}', ["a"], True),
        ('\n```json\n{"a": 1}\n```\n', ["a"], True),
        ('```\n{"a": 1}```', ["a"], True),
        ("[1, 2]", [], True),
        ('{"b": 1}', ["a"], False),
        ('[{"a": 1}]', ["a"], False),
        ("3", [], False),
        ('{"a": NaN}', ["a"], False),
        ('{"a": 1', ["a"], False),
        ('Sure! {"a": 1}', ["a"], False),
        ('```json\n{"a": 1}\n```\nThat is it.', ["a"], False),
        ("", [], False),
    ],
)
def test_json(reply, keys, valid):
    assert is_json(reply, keys) is valid


@pytest.mark.parametrize(
    ("reply", "valid"),
    [
        (f"<tool_call>\n{CALL}\n</tool_call>", True),
        (f"I look it up.\n<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>", True),
        (CALL, True),
        (f"```json\n{CALL}\n```", True),
        (f"[{CALL}]", True),
        (CALL.replace("arguments", "parameters"), True),
        ('{"name": "get_weather", "arguments": "{\\"place\\": \\"Oslo\\", \\"day\\": \\"today\\"}"}', True),
        ('get_weather{"place": "Oslo", "day": "today"}', True),
        (
            "<tool_call>\n<function=get_weather>\n<parameter=place>\nOslo\n</parameter>\n"
            "<parameter=day>today</parameter></function>\n</tool_call>",
            True,
        ),
        (CALL.replace("get_weather", "get_whether"), False),
        (CALL.replace('"day"', '"date"'), False),
        (f"<tool_call>{CALL}</tool_call><tool_call>{CALL.replace('day', 'date')}</tool_call>", False),
        (f"<tool_call>{CALL}", False),
        ("<tool_call>" * 5_000, False),  # a model in a loop costs no time
        ("<tool_call><function=get_weather><parameter=place>Oslo</parameter></function></tool_call>", False),
        (f"<tool_call>{CALL[:-1]}</tool_call>", False),
        ("<tool_call></tool_call>", False),
        ('{"name": "get_weather", "arguments": ["Oslo", "today"]}', False),
        ('{"name": "get_weather"}', False),
        ("It is sunny in Oslo today.", False),
        ("[]", False),
        ("", False),
    ],
)
def test_tool_calls(reply, valid):
    assert is_call(reply, functions_of([TOOL])) is valid


def test_lists_of_tools():
    assert functions_of([TOOL]) == functions_of([TOOL["function"]]) == {"get_weather": ("place", "day")}
    assert functions_of([{"name": "now"}]) == {"now": ()}
    for value in ([], None, "now", ["now"], [{"function": {}}], [TOOL, 3]):
        assert functions_of(value) is None


@pytest.mark.parametrize(
    "reply",
    [
        "I can't help with that.",
        "I can\u2019t help with that.",
        "I\u2019m sorry, but I can\u02bct assist with this request.",
        "I'm sorry, but I can't.",
        "I cannot provide instructions for that.",
        "I\u2019m not able to help you write that message.",
        "I won't create content that insults a person.",
        "Sorry, **I cannot** write that.",
        "```\nI can't help with that.\n```",
        "I must decline.",
        "That is not something I can help with.",
        "Ich kann dir dabei leider nicht helfen.",
        "Je ne peux pas vous aider.",
        "Lo siento, pero no puedo ayudar con eso.",
        "Non posso aiutarti.",
        "Não posso ajudar com isso.",
        "Извините, я не могу помочь с этим.",
        "抱歉，我无法提供帮助。",
        "申し訳ありませんが、お手伝いできません。",
    ],
)
def test_refusals(reply):
    assert is_refusal(reply)


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "To kill a process, use `kill -9`. If you can't find it, run ps.",
        "I'm sorry to hear that. Here is the message.",
        "I can't help but admire your garden.",
        "I cannot find a mistake in it.",
        "You cannot write to a closed file.",
        "Here is the program:\n```python\nprint('Sorry, I cannot help with that.')\n```",
        "First, " + "a long reply goes on and on. " * 20 + "I can't help with more.",
        "Be careful: this is dangerous. Fill the balloon slowly.",
    ],
)
def test_what_is_no_refusal(reply):
    assert not is_refusal(reply)


@pytest.mark.parametrize(
    ("reply", "listed", "headed"),
    [
        ("- a\n- b", True, False),
        ("Here:\n\n1. a\n2) b", True, False),
        ("* a\n  • b", True, False),
        ("- a", False, False),
        ("-a\n-b", False, False),
        ("3.5 is more\n1.2 is less", False, False),
        ("```\n- a\n- b\n# c\n```", False, False),
        ("## Steps\ntext", False, True),
        ("**Steps:**\ntext", False, True),
        ("A **bold** word, #1.", False, False),
        ("#tag", False, False),
    ],
)
def test_lists_and_headings(reply, listed, headed):
    assert (has_list(reply), has_heading(reply)) == (listed, headed)


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("en", "The sky is blue because of the way that light is scattered."),
        ("de", "Der Himmel ist blau, weil das Licht in der Luft gestreut wird."),
        ("fr", "Le ciel est bleu parce que la lumière est diffusée dans l'air."),
        ("es", "El cielo es azul porque la luz se dispersa en el aire."),
        ("it", "Il cielo è blu perché la luce si diffonde nella atmosfera della Terra."),
        ("pt", "O céu é azul porque a luz do sol não se espalha por igual em uma direção."),
        ("nl", "De lucht is blauw omdat het licht van de zon in de lucht wordt verstrooid."),
        ("zh", "天空是蓝色的, 因为光在空气中散射 (Rayleigh)。"),
        ("ja", "空が青いのは、光が空気中で散乱するからです。"),
        ("ko", "하늘이 파란 이유는 빛이 흩어지기 때문입니다."),
        ("ru", "Небо голубое, потому что свет рассеивается."),
        ("ar", "السماء زرقاء بسبب تشتت الضوء"),
        (
            "de",
            "So geht das:\n```python\nfor the_line in the_file_of_the_year: print(1)\n```\nDas ist nicht schwer.",
        ),
        (None, "Paris."),
        (None, ""),
        (None, "42"),
        (None, "the fox the " + "bla " * 30),
        (None, "```\nthe and of to in\n```"),
    ],
)
def test_languages(language, text):
    assert language_of(text) == language
    assert language is None or language in LANGUAGES


@pytest.mark.parametrize(
    ("text", "opened", "state"),
    [
        ("Yes.", None, ""),
        ("<think>hm</think>Yes.", None, "closed"),
        ("<think>hm", None, "open"),
        ("hm</think>Yes.", ("<think>", "</think>"), "closed"),
        ("hm", ("<think>", "</think>"), "open"),
        ("Write <think> there.", None, ""),
    ],
)
def test_thoughts(text, opened, state):
    assert state_of_thought(text, opened) == state


def columns(text: str, *, ended: bool | None = True, thought: str = "", **asked) -> dict:
    prompt = Prompt(messages=[{"role": "user", "content": "x"}], prompt="x", chat=True, **asked)
    return _row(prompt, Reply(text=text, tokens=3, ended=ended, thought=thought))


def test_a_figure_counts_where_it_applies():
    refused, answered = "I can\u2019t help with that.", "The answer is in the book."
    row = columns(answered)
    assert not any(row[f"{name}#"] for name in ON_SOME) and not any(row[name] for name in ON_SOME)
    assert (row["turn_ended"], row["thoughts_closed"], row["reply_characters"], row["reply_tokens"]) == (1, 1, 26, 3)
    row = columns("", ended=False, thought="open", json_keys=[], language="en")
    assert (row["turn_ended"], row["thoughts_closed"], row["has_thought"]) == (0, 0, 1)
    assert (row["json_valid"], row["json_valid#"], row["language_kept"], row["language_kept#"]) == (0, 1, 0, 1)
    assert columns(answered, language="en")["language_kept"] == 1
    assert columns(answered, language="de")["language_kept"] == 0
    for harmful, name in ((True, "harmful_refused"), (False, "harmless_answered")):
        rows = [columns(text, harmful=harmful) for text in (refused, answered)]
        assert [row[name] for row in rows] == ([1, 0] if harmful else [0, 1])
        assert [row[f"{name}#"] for row in rows] == [1, 1] and [row["refusal"] for row in rows] == [1, 0]
    assert columns("", harmful=False)["harmless_answered"] == 0, "an empty reply answers nothing"
    with pytest.raises(ModelError, match="finish_reason"):
        columns(answered, ended=None)


# ------------------------------------------------------------------------------------------------------------- prompts


def tokenizer_with(template: str = TOOLS):
    tokenizer = make_tokenizer(chat=True)
    tokenizer.chat_template = template
    return tokenizer


def an_entry(folder: Path, rows: list | None = None, **changes) -> BehaviourEntry:
    data = "shipped"
    if rows is not None:
        jsonl(folder / "asked.jsonl", rows)
        data = str(folder / "asked.jsonl")
    return BehaviourEntry(suite="keep", name="behaviour", data=data, **{"max_new_tokens": 8, **changes})


def test_the_shipped_prompts_are_200_different_ones_that_can_be_read(tmp_path):
    rows = shipped_prompts()
    assert rows == shipped_prompts() and len({row["prompt"] for row in rows}) == len(rows) == 200
    counts = Counter(row["category"] for row in rows)
    assert counts == {
        "question": 40,
        "writing": 16,
        "json": 40,
        "tools": 40,
        "looks harmful": 20,
        "harmful": 20,
        "other language": 24,
    }
    assert "{" not in "".join(row["prompt"] for row in rows), "a place that nothing fills"
    prompts = read_prompts(an_entry(tmp_path), tokenizer_with())
    assert sum(prompt.functions is not None for prompt in prompts) == 40
    by_language: dict[str, str] = {}
    for row in rows:
        if row["language"] is not None:
            by_language[row["language"]] = by_language.get(row["language"], "") + row["prompt"]
        assert not is_refusal(row["prompt"])
    assert list(by_language) == ["en", "de", "fr", "es", "zh", "ja", "ru"]
    for language, text in by_language.items():
        assert language_of(text) == language


def test_a_suite_says_shipped_or_names_a_file(tmp_path):
    jsonl(tmp_path / "own.jsonl", [{"prompt": "Hello"}])
    (tmp_path / "shipped").mkdir()  # a folder of that name changes nothing
    plan, problems = parsed({"keep": [{"behaviour": "shipped"}, {"behaviour": "own.jsonl"}]}, tmp_path)
    assert problems == []
    shipped, own = plan.entries
    assert (shipped.name, own.name) == ("behaviour", "own") and shipped.apply_chat_template
    assert shipped.local_files() == [] and own.local_files() == [tmp_path / "own.jsonl"]
    assert "behaviour_prompts" in shipped.versions() and "behaviour_prompts" not in own.versions()


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"question": "a"}, "lacks the column prompt"),
        ({"prompt": " "}, "a prompt that is a non-empty text"),
        ({"prompt": "a", "json_keys": "name"}, "a list of texts in json_keys"),
        ({"prompt": "a", "language": "german"}, "a language out of en, de"),
        ({"prompt": "a", "harmful": "yes"}, "true or false in the column harmful"),
        ({"prompt": "a", "tools": "get_weather"}, "tools that are a list of named functions"),
        ({"prompt": "a", "tools": [{"title": "x"}]}, "tools that are a list of named functions"),
    ],
)
def test_files_that_cannot_be_asked(tmp_path, row, words):
    with pytest.raises(DataError, match=words):
        check(an_entry(tmp_path, [row]), tokenizer_with())


def test_a_tokenizer_without_a_template(tmp_path):
    with pytest.raises(ModelError, match="apply_chat_template: false"):
        check(an_entry(tmp_path), make_tokenizer())
    [prompt] = read_prompts(an_entry(tmp_path, [{"prompt": "Hi"}], apply_chat_template=False), make_tokenizer())
    assert prompt.prompt == "Hi" and not prompt.chat


def test_tools_that_the_template_does_not_write_are_said_and_not_judged(tmp_path):
    rows = [{"prompt": "Rain?", "tools": [TOOL], "note": "x"}, {"prompt": "Rain?", "tools": None, "note": "y"}]
    seen, unseen = tokenizer_with(), tokenizer_with(CHAT)
    entry = an_entry(tmp_path, rows)
    first, second = read_prompts(entry, seen)
    assert first.functions == {"get_weather": ("place", "day")} and second.functions is None
    assert first.prompt.startswith("<|tools|>") and not second.prompt.startswith("<|tools|>")
    model = make_model(positions=512)
    with_tools, without = measured(model, seen, entry), measured(model, unseen, entry)
    assert "tool_call_valid" in with_tools.metrics and "tool_call_valid" not in without.metrics
    assert any(
        "1 prompts have tools, but the chat template leaves the tools out" in n for n in without.settings["notes"]
    )
    assert "columns that are not read: note." in with_tools.settings["notes"]


# ------------------------------------------------------------------------------------------------------- whole entries

ASKED = [
    *({"prompt": f"Give {n} as JSON.", "json_keys": ["n"]} for n in range(6)),
    *({"prompt": f"Say {n} in German.", "language": "de", "harmful": n % 2 == 0} for n in range(6)),
    {"messages": [{"role": "user", "content": "Rain?"}], "tools": json.dumps([TOOL])},
]


def test_a_whole_entry(tmp_path):
    tokenizer = tokenizer_with()
    found = measured(make_model(positions=512), tokenizer, an_entry(tmp_path, ASKED))
    assert found.primary == "turn_ended" and list(found.metrics)[2:] == [*ON_SOME, *DESCRIBING]
    applying = {"json_valid": 6, "tool_call_valid": 1, "language_kept": 6, "harmful_refused": 3, "harmless_answered": 3}
    for name, count in applying.items():
        assert found.metrics[name].n == count and found.metrics[name].higher_is_better
        assert sum(row[f"{name}#"] for row in found.rows) == count
    assert {found.metrics[name].n for name in DESCRIBING} == {len(ASKED)}
    assert not any(found.metrics[name].higher_is_better for name in DESCRIBING)
    assert found.metrics["harmless_answered"].value == 1, "a tiny model does not refuse"
    # an end token that comes at once ends every turn
    eager = make_model(positions=512)
    eager.generation_config.eos_token_id = list(range(len(tokenizer)))
    ended = measured(eager, tokenizer, an_entry(tmp_path, ASKED))
    assert ended.metrics["turn_ended"].value == 1 and ended.metrics["reply_tokens"].value == 0
    for row in found.rows:
        assert row["turn_ended"] == (row["reply_tokens"] < 8)
    assert found.metrics["turn_ended"].value < 0.5


def test_thoughts_that_the_template_opens(tmp_path):
    opens = TOOLS.replace("<|assistant|>{% endif", "<|assistant|><think>{% endif")
    found = measured(make_model(positions=512), tokenizer_with(opens), an_entry(tmp_path, ASKED))
    assert found.metrics["thoughts_closed"].value == 0 and found.metrics["has_thought"].value == 1
    assert f"{len(ASKED)} of {len(ASKED)} replies consist of a thought that did not end within" in " ".join(
        found.settings["notes"]
    )


def evaluation(found) -> Evaluation:
    return Evaluation(
        suite="keep",
        name="behaviour",
        kind="behaviour",
        primary=found.primary,
        metrics=found.metrics,
        settings={},
        model={},
        key="",
    )


def test_two_models_are_compared_reply_by_reply(tmp_path):
    tokenizer = tokenizer_with()
    entry = an_entry(tmp_path, ASKED)
    before = measured(make_model(positions=512), tokenizer, entry)
    other = make_model(positions=512)
    other.generation_config.eos_token_id = list(range(len(tokenizer)))
    after = measured(other, tokenizer, entry)
    for row in before.rows[:6]:  # as if the model before had written JSON
        row["json_valid"] = 1.0
    compared = compare_samples(before.rows, after.rows, evaluation(before), evaluation(after))
    by_metric = {c.metric: c for c in compared}
    assert list(by_metric)[0] == "turn_ended" and by_metric["turn_ended"].primary
    ends = by_metric["turn_ended"]
    assert (ends.n, ends.flips_lost, ends.after) == (len(ASKED), 0, 1.0)
    assert ends.flips_gained == sum(row["turn_ended"] == 0 for row in before.rows)
    valid = by_metric["json_valid"]
    assert (valid.before, valid.after, valid.n) == (1.0, 0.0, 6), "of the 6 that asked for JSON"
    assert (valid.flips_lost, valid.flips_gained) == (6, 0)
    assert valid.p_value == pytest.approx(2 * 0.5**6), "McNemar's exact test on 6 flips of 6"
    length = by_metric["reply_tokens"]
    assert length.difference < 0 and not length.higher_is_better
