"""The tokens that are trained are the assistant's words and the token that ends its turn, whatever the template."""

import re

import pytest
from transformers.utils import logging
from trl import chat_template_utils as trl_templates

from data_files import jsonl
from holdfast.data.formats import standardise
from holdfast.data.sources import load_rows
from holdfast.data.trained_turns import TrainedTurns
from holdfast.errors import DataError
from holdfast.support.rendering import guard_models
from tiny import build_tokenizer

SPECIAL = re.compile(r"<\|[\w ]+\|>|<｜[^｜]+｜>|</?(?:start_of_turn|end_of_turn|think|tool_call)>|\[/?INST\]|</?s>")

LLAMA_3 = (
    "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n'"
    " + m.content | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
CHATML = (  # with a system prompt of its own, as Qwen 2.5
    "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
QWEN_3 = (  # thoughts of turns before the last question are left out, the last turn has at least an empty one
    "{% set ns = namespace(last=0) %}{% for m in messages if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endfor %}{% set ns2 = namespace(users=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns2.users = ns2.users + 1 %}{% endif %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.role == 'assistant' and ns2.users == ns.last %}"
    "{{ '<think>\n' + (m.reasoning_content or '') + '\n</think>\n\n' }}{% endif %}"
    "{{ m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n'"
    " + m.content | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
MISTRAL = (  # the system prompt stands in the LAST question
    "{{ bos_token }}{% set system = messages[0].content if messages[0].role == 'system' else '' %}"
    "{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' }}"
    "{% if loop.last and system %}{{ system + '\n\n' }}{% endif %}{{ m.content + ' [/INST]' }}"
    "{% elif m.role == 'assistant' %}{{ ' ' + m.content + '</s>' }}{% endif %}{% endfor %}"
)
PHI_3 = (  # ends a conversation with a token that ends no turn
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)
ZEPHYR = (  # takes no notice of add_generation_prompt
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + eos_token + '\n' }}{% endfor %}"
)
R1 = (  # asks with the beginning of a thought, and drops what stands before its end
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '<｜User｜>' + m.content }}{% else %}"
    "{{ '<｜Assistant｜>' + m.content.split('</think>')[-1] + '<｜end▁of▁sentence｜>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<｜Assistant｜><think>\n' }}{% endif %}"
)
GRANITE = (  # words alone tell the roles apart
    "{% for m in messages %}{{ m.role | upper + ': ' + m.content + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
SYSTEM = {"role": "system", "content": "Be brief."}
CHAT = [
    {"role": "user", "content": "Where is Rome?"},
    {"role": "assistant", "content": "In Italy, I think."},
    {"role": "user", "content": "And Bern?"},
    {"role": "assistant", "content": "In Switzerland."},
]


def tokenizer(template, more=""):
    """One whose special tokens are those that the template names."""
    words = build_tokenizer(additional_special_tokens=sorted(set(SPECIAL.findall(template + more))), bos_token="<s>")
    words.chat_template = template
    return words


def loaded(*conversations, **columns):
    return load_rows(jsonl("a.jsonl", [{"messages": messages, **columns} for messages in conversations]))


def trained(template, *conversations, more="", **turns):
    """What is trained of each row, stretch by stretch, as text."""
    words = tokenizer(template, more)
    rows = standardise(loaded(*conversations), words, turns=TrainedTurns(**turns))[0]
    return [stretches(words, row) for row in rows]


def stretches(words, row):
    given, texts, before = row["input_ids"], [], False
    assert given == words.apply_chat_template(row["messages"], tokenize=True)["input_ids"]
    for token, label in zip(given, row["labels"], strict=True):
        assert label in (token, -100)
        if label != -100:
            texts = [*texts[:-1], [*texts[-1], token]] if before else [*texts, [token]]
        before = label != -100
    return [words.decode(ids) for ids in texts]


ENDS = {
    "llama 3": (LLAMA_3, "<|eot_id|>"),
    "chatml, qwen 2.5": (CHATML, "<|im_end|>"),
    "gemma": (GEMMA, "<end_of_turn>"),
    "phi 3": (PHI_3, "<|end|>"),
    "zephyr": (ZEPHYR, "<|endoftext|>"),
}


@pytest.mark.parametrize(("template", "end"), ENDS.values(), ids=ENDS)
def test_the_assistants_words_and_the_token_that_ends_its_turn(template, end):
    rows = [CHAT] if template is GEMMA else [[SYSTEM, *CHAT], CHAT, CHAT[:2]]
    words = [f"In Italy, I think.{end}", f"In Switzerland.{end}"]
    assert trained(template, *rows, more="<|user|><|assistant|><|system|>") == [
        words[: sum(message["role"] == "assistant" for message in row)] for row in rows
    ]
    assert trained(template, CHAT, which="last", more="<|user|><|assistant|>") == [words[1:]]


def test_white_space_before_the_words_and_no_token_behind_them():
    assert trained(MISTRAL, CHAT) == [[" In Italy, I think.</s>", " In Switzerland.</s>"]]
    assert trained(GRANITE, CHAT) == [[" In Italy, I think.\n", " In Switzerland.\n"]]
    spaced = GRANITE.replace(
        "'ASSISTANT:'", "'ASSISTANT: '"
    )  # " I" is one token: across the border of prompt and reply
    assert trained(spaced, [CHAT[0], {"role": "assistant", "content": "is"}]) == [[" is\n"]]


@pytest.mark.parametrize("loaded_as_models_are", [False, True])
def test_a_row_that_the_template_refuses_is_named(loaded_as_models_are):
    if loaded_as_models_are:
        guard_models()
    with pytest.raises(DataError, match=r"row 2: the chat template refuses it: System role not supported"):
        trained(GEMMA, CHAT, [SYSTEM, *CHAT])


THOUGHTS = [{**m, "reasoning_content": "Hm."} if m["role"] == "assistant" else m for m in CHAT]
LAST = "<think>\nHm.\n</think>\n\nIn Switzerland.<|im_end|>"


def test_turns_that_the_template_rewrites_are_named(tmp_path):
    path = tmp_path / "thoughts.jsonl"
    load = load_rows(jsonl("thoughts.jsonl", [{"messages": CHAT[:2]}, {"messages": THOUGHTS}]))
    with pytest.raises(DataError) as refused:
        standardise(load, tokenizer(QWEN_3), turns=TrainedTurns(), files=[path.parent / "thoughts.jsonl"])
    said = str(refused.value)
    assert "1 of 2 rows cannot be used" in said and "thoughts.jsonl, line 2: message 2 (assistant)" in said
    assert "writes '<think>\\nHm.\\n</think>" in said and "and 'In Italy, I think." in said
    assert "rewritten_turns: as_written" in said


def test_what_becomes_of_rewritten_turns():
    assert trained(QWEN_3, THOUGHTS, which="last") == [[LAST]], "it is written as the model is asked for it"
    assert trained(QWEN_3, THOUGHTS, rewritten="as_written") == [["In Italy, I think.<|im_end|>", LAST]]
    words, counts = tokenizer(QWEN_3), {}
    rows = loaded(CHAT, THOUGHTS[:2])
    out, _ = standardise(rows, words, turns=TrainedTurns(rewritten="whole"), not_read=counts)
    assert out[0]["labels"] == out[0]["input_ids"] and out[1]["labels"] != out[1]["input_ids"]
    assert counts == {"the bounds of the assistant's turns, so the whole row is trained": 1}
    with pytest.raises(DataError, match="the chat template writes '<think>"):
        trained(R1, CHAT[:2])
    end = "<｜end▁of▁sentence｜>"
    thought = [CHAT[0], {"role": "assistant", "content": "<think>Hm.</think>In Italy."}]
    assert trained(R1, CHAT[:2], thought, rewritten="as_written") == [[f"In Italy, I think.{end}"], [f"In Italy.{end}"]]
    with pytest.raises(DataError, match="writes 'Be brief"):  # the system prompt moves on with the conversation
        trained(MISTRAL, [SYSTEM, *CHAT])


def test_thoughts_are_left_out():
    tagged = [*CHAT[:1], {"role": "assistant", "content": "<think>Hm.</think>In Italy."}]
    assert trained(CHATML, tagged) == [["<think>Hm.</think>In Italy.<|im_end|>"]]
    assert trained(CHATML, tagged, more="<think></think>", thoughts=False) == [["In Italy.<|im_end|>"]]
    assert trained(QWEN_3, THOUGHTS, which="last", thoughts=False) == [["\n\nIn Switzerland.<|im_end|>"]]
    opened = CHATML.replace("assistant\n'", "assistant\n<think>\n'")  # the prompt begins the thought
    answer = [*CHAT[:1], {"role": "assistant", "content": "<think>\nHm.</think>In Italy."}]
    assert trained(opened, answer) == [["Hm.</think>In Italy.<|im_end|>"]]
    assert trained(opened, answer, thoughts=False) == [["In Italy.<|im_end|>"]]
    channels = CHATML.replace("m.content + '<", "(m.reasoning_content or '') + '|' + m.content + '<")
    assert trained(channels, THOUGHTS[:2]) == [["Hm.|In Italy, I think.<|im_end|>"]]
    assert trained(channels, THOUGHTS[:2], thoughts=False) == [["|In Italy, I think.<|im_end|>"]]
    with pytest.raises(DataError, match="row 1: the row has no trained tokens"):
        trained(CHATML, [CHAT[0], {"role": "assistant", "content": "<think>Hm. And"}], thoughts=False)


def test_messages_say_which_of_them_are_trained():
    row = [CHAT[0], {**CHAT[1], "train": False}, *CHAT[2:]]
    words = ["In Italy, I think.<|im_end|>", "In Switzerland.<|im_end|>"]
    assert trained(CHATML, row, CHAT, which="per_message") == [words[1:], words]
    assert trained(CHATML, row) == [words[1:]], "of their own accord, too"
    asked = [{**CHAT[0], "weight": 1}, {**CHAT[1], "weight": 0}]
    assert trained(CHATML, asked, which="per_message") == [["Where is Rome?<|im_end|>"]]
    counts = {}
    standardise(loaded(row), tokenizer(CHATML), turns=TrainedTurns(which="all"), not_read=counts)
    assert counts == {"train of messages": 1} and trained(CHATML, row, which="all") == [words]
    with pytest.raises(DataError, match="in which some messages have a train or weight key"):
        trained(CHATML, CHAT, which="per_message")


def test_prompts_and_completions():
    words = tokenizer(CHATML)
    row = {"prompt": CHAT[:3], "completion": CHAT[3:]}
    for turns, count in ((TrainedTurns(), 1), (TrainedTurns(in_prompts=True), 2)):
        out, _ = standardise(load_rows(jsonl("p.jsonl", [row])), words, turns=turns)
        texts = stretches(words, {**out[0], "messages": CHAT})
        assert texts == ["In Italy, I think.<|im_end|>", "In Switzerland.<|im_end|>"][-count:]


# ------------------------------------------------------------------------------------------------- beside TRL's marks

MARKED = {
    name.removesuffix("_training_chat_template"): (
        getattr(trl_templates, name.replace("_training", "")),
        getattr(trl_templates, name),
    )
    for name in vars(trl_templates)
    if name.endswith("_training_chat_template") and not re.search("vl|idefics|llava|smolvlm|get_|diffusion", name)
}

REWRITES = {"deepseek_r1_distill", "deepseekv3", "gptoss", "qwen3", "qwen3_5_nothink", "qwen3_5_think", "qwen3_6"}
REWRITES |= {name for name in MARKED if name.startswith("nemotron_3")}
"""Families whose own templates write earlier turns otherwise than they are asked for; TRL's do not."""


@pytest.mark.parametrize("name", MARKED)
def test_beside_the_marks_of_trl(name):
    """Given TRL's marked template, labels are TRL's to the bit. Without its marks, the same but for white space behind
    the end of a turn and what a prompt ends with."""
    plain, marked = MARKED[name]
    words = tokenizer(plain, marked)
    logging.set_verbosity_error()
    theirs = words.apply_chat_template(
        CHAT, chat_template=marked, return_dict=True, return_assistant_tokens_mask=True, tokenize=True
    )
    expected = [t if m else -100 for t, m in zip(theirs["input_ids"], theirs["assistant_masks"], strict=True)]
    turns = TrainedTurns(which="all", marked_template=marked)
    row = standardise(loaded(CHAT), words, turns=turns)[0][0]
    assert row["input_ids"] == theirs["input_ids"] and row["labels"] == expected
    last = standardise(loaded(CHAT), words, turns=TrainedTurns(which="last", marked_template=marked))[0][0]["labels"]
    assert "Italy" not in words.decode([t for t in last if t != -100])
    assert "In Switzerland." in words.decode([t for t in last if t != -100])
    if name in REWRITES:
        with pytest.raises(DataError, match=r"message 2 \(assistant\): the chat template writes"):
            standardise(loaded(CHAT), words, turns=TrainedTurns())
        return
    own = standardise(loaded(CHAT), words, turns=TrainedTurns())[0][0]
    if name == "glm4moe":  # TRL's has other ids: with a token that ends the last turn
        return
    assert own["input_ids"] == row["input_ids"]
    assert all(label in (-100, theirs) for label, theirs in zip(own["labels"], expected, strict=True))
    more = [theirs for label, theirs in zip(own["labels"], expected, strict=True) if label != theirs]
    assert re.fullmatch(r"(\s|<[^>]*>|assistant)*", words.decode(more))
    if name in ("llama3", "cohere"):
        assert own["labels"] == expected
