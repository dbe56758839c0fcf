"""Instruction following from a file: checkers, replies against the model's own generation, resuming, and all that can
be wrong with a file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from data_files import jsonl
from evaluation.conftest import SENTENCES, make_model, make_tokenizer, measured
from holdfast.errors import DataError, ModelError
from holdfast.evaluation.entries import EvaluationPlan
from holdfast.evaluation.kinds.instructions import InstructionsEntry, read_instructions
from holdfast.evaluation.measures import Subject
from holdfast.evaluation.runner import check_plan
from holdfast.evaluation.text.checkers import follow, mistake_in
from holdfast.evaluation.text.replies import generate

ROWS = [
    {"prompt": SENTENCES[i], "instruction_id_list": ids, "kwargs": kwargs}
    for i, (ids, kwargs) in enumerate(
        [
            (["plain:no_comma"], [{}]),
            (["plain:begin", "plain:words"], [{"word": "lamp"}, {"count": 3}]),
            (["plain:no_full_stop", "plain:capitals", "plain:without"], [{}, {}, {"words": ["lamp"]}]),
            (["plain:list"], [{"items": 2}]),
        ]
    )
]


def write(folder: Path, rows: list, name: str = "asked.jsonl") -> str:
    jsonl(folder / name, rows)
    return str(folder / name)


def an_entry(tmp_path: Path, rows: list = ROWS, **changes) -> InstructionsEntry:
    return InstructionsEntry(
        suite="learn", name="asked", data=write(tmp_path, rows), **{"max_new_tokens": 8, **changes}
    )


# ------------------------------------------------------------------------------------------------------------- checkers


@pytest.mark.parametrize(
    ("id_", "given", "good", "bad"),
    [
        ("plain:begin", {"word": "lamp"}, ["lamp it is", "Lamp.", '" lamp x', "LAMP"], ["a lamp", "lamps are", ""]),
        ("plain:end", {"word": "lamp"}, ["the lamp", "the Lamp. ]", "lamp"], ["lamp it", "headlamp", "lamps"]),
        (
            "plain:keywords",
            {"words": ["lamp", "sea"]},
            ["Sea and lamp", "lamp, sea"],
            ["lamp", "lamps seas", "seal lamp"],
        ),
        ("plain:without", {"words": ["lamp", "sea"]}, ["lamps", "seal"], ["the lamp", "Sea", "lamp sea"]),
        ("plain:capitals", {}, ["LAMP 3!", "A"], ["Lamp", "3", "lAMP"]),
        ("plain:lowercase", {}, ["lamp 3!"], ["Lamp", "3"]),
        ("plain:quotes", {}, ['"x"', ' " x " '], ['"x', '""', '"', "x"]),
        ("plain:brackets", {}, ["[x]", " [ x ] "], ["[x", "(x)", "[]"]),
        ("plain:words", {"count": 2}, ["two words", "[ it's ]", "a-b."], ["one", "three words here"]),
        ("plain:list", {"items": 2}, ["- a\n- b", "* a\n\n * b"], ["- a", "a\nb", "- a\nb", "- a\n- b\n- c"]),
        ("plain:repeat", {"times": 2}, ["a b\n a b", "a b\n\na b"], ["a b", "a\nb", "a\na\na"]),
        ("plain:no_full_stop", {}, ["a"], ["a."]),
        ("plain:no_comma", {}, ["a."], ["a, b"]),
    ],
)
def test_each_checker(id_, given, good, bad):
    for text in good:
        assert follow(text, [id_], [given], loose=False) == [True], text
    for text in bad:
        assert follow(text, [id_], [given], loose=False) == [False], text
    assert follow("  \n ", [id_], [given], loose=True) == [False], "an empty reply follows nothing"
    assert mistake_in(id_, given) is None


def test_loose_forgives_a_first_line_a_last_line_and_asterisks():
    for reply in ("Sure!\nLAMP", "LAMP\nBye", "Sure!\nLAMP\nBye", "Sure:\n**LAMP**"):
        assert follow(reply, ["plain:capitals"], [{}], loose=True) == [True]
        assert follow(reply, ["plain:capitals"], [{}], loose=False) == [False]
    assert follow("*[x]*", ["plain:brackets"], [{}], loose=True) == [True]
    assert follow("a\nb", ["plain:capitals"], [{}], loose=True) == [False]


@pytest.mark.parametrize(
    ("id_", "given", "words"),
    [
        ("plain:capitls", {}, "Did you mean 'plain:capitals'"),
        ("keywords:existence", {"keywords": ["lamp"]}, "For IFEval's own instructions use `task: ifeval`"),
        ("plain:begin", {}, "needs `word`"),
        ("plain:words", {"count": 0}, "whole number of at least 1"),
        ("plain:keywords", {"words": []}, "a list of texts"),
        ("plain:words", {"count": 2, "counts": 3}, "takes `count`, not `counts`"),
    ],
)
def test_instructions_that_cannot_be_checked(id_, given, words):
    assert words in str(mistake_in(id_, given))


def test_arguments_that_are_null_are_not_given():
    """Columns of a file are the union of all rows', so most are null."""
    assert mistake_in("plain:words", {"count": 2, "word": None}) is None
    assert follow("a b", ["plain:words"], [{"count": 2, "word": None}], loose=False) == [True]


# -------------------------------------------------------------------------------------------------------------- replies


def replies(model, tokenizer, encoded, *, longest: int, batch: int) -> list[str]:
    on = Subject(model=model, tokenizer=tokenizer, plan=EvaluationPlan(batch_size=batch))
    return [reply.text for reply in generate(on, encoded, max_new_tokens=longest)]


@pytest.fixture(scope="module")
def roomy():
    return make_model(positions=128)


def test_replies_are_the_models_own_whatever_stands_beside_them(roomy, tiny_tokenizer):
    """Left padding changes nothing: each prompt in a row of its own, token by token from whole float32 logits, gives
    the same."""
    encoded = [tiny_tokenizer(text)["input_ids"] for text in SENTENCES]
    together = replies(roomy, tiny_tokenizer, encoded, longest=12, batch=5)
    for ids, reply in zip(encoded, together, strict=True):
        written = list(ids)
        for _ in range(12):
            with torch.no_grad():
                token = int(roomy(torch.tensor([written])).logits[0, -1].argmax())
            if token == tiny_tokenizer.eos_token_id:
                break
            written.append(token)
        assert reply == tiny_tokenizer.decode(written[len(ids) :], skip_special_tokens=True)
    assert len(set(together)) > 1


def test_a_checkpoint_that_samples_by_default_is_read_greedily(tiny_tokenizer):
    model = make_model(positions=128)
    encoded = [tiny_tokenizer(SENTENCES[0])["input_ids"]]
    greedy = replies(model, tiny_tokenizer, encoded, longest=12, batch=1)
    model.generation_config.do_sample, model.generation_config.temperature, model.generation_config.max_new_tokens = (
        True,
        5.0,
        2,
    )
    assert replies(model, tiny_tokenizer, encoded, longest=12, batch=1) == greedy
    # transformers takes these over where a call leaves them open: released instruct models have a penalty of their own
    model.generation_config.repetition_penalty, model.generation_config.no_repeat_ngram_size = 50.0, 1
    model.generation_config.suppress_tokens = tiny_tokenizer(greedy[0])["input_ids"][:1]
    held = model.generation_config.to_dict()
    assert replies(model, tiny_tokenizer, encoded, longest=12, batch=1) == greedy
    assert model.generation_config.to_dict() == held, "the model is given back as it was"


def test_the_figures_are_ifevals(roomy, tiny_tokenizer, tmp_path):
    found = measured(roomy, tiny_tokenizer, an_entry(tmp_path))
    rows, metrics = found.rows, found.metrics
    assert found.primary == "prompt_level_strict_acc"
    assert list(metrics) == [
        "prompt_level_strict_acc",
        "inst_level_strict_acc",
        "prompt_level_loose_acc",
        "inst_level_loose_acc",
    ]
    followed = [
        follow(r["output"], g["instruction_id_list"], g["kwargs"], loose=False) for r, g in zip(rows, ROWS, strict=True)
    ]
    assert metrics["inst_level_strict_acc"].value == pytest.approx(sum(map(sum, followed)) / sum(map(len, followed)))
    assert metrics["prompt_level_strict_acc"].value == pytest.approx(sum(map(all, followed)) / len(followed))
    assert metrics["inst_level_loose_acc"].value >= metrics["inst_level_strict_acc"].value
    assert all(m.interval is not None and m.n == len(ROWS) for m in metrics.values())
    assert [r["followed_strict"] for r in rows] == followed


def test_messages_and_the_chat_template(roomy, tmp_path):
    tokenizer = make_tokenizer(chat=True)
    asked = {"instruction_id_list": ["plain:capitals"], "kwargs": [{}]}
    talk = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "Speak up."},
    ]
    [one] = read_instructions(an_entry(tmp_path, [{"messages": talk, **asked}]), tokenizer)
    assert one.asked == "Speak up." and one.chat
    assert one.prompt == tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
    [two] = read_instructions(an_entry(tmp_path, [{"prompt": "Hello", **asked}], apply_chat_template=True), tokenizer)
    assert two.prompt.endswith("<|assistant|>")
    with pytest.raises(ModelError, match="chat template"):
        read_instructions(
            an_entry(tmp_path, [{"prompt": "Hello", **asked}], apply_chat_template=True), make_tokenizer()
        )


def test_a_tokenizer_without_an_end(roomy):
    tokenizer = make_tokenizer()
    tokenizer.eos_token = None
    model = make_model(positions=128)
    model.generation_config.eos_token_id = None
    with pytest.raises(ModelError, match="end-of-sequence"):
        replies(model, tokenizer, [[5, 6]], longest=3, batch=1)


# ---------------------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt": "a", "kwargs": [{}]}, "lacks the column instruction_id_list"),
        ({"prompt": "a", "instruction_id_list": [], "kwargs": []}, "at least one id"),
        ({"prompt": "a", "instruction_id_list": ["plain:capitals"], "kwargs": []}, "one mapping for each instruction"),
        (
            {"prompt": "a", "instruction_id_list": ["plain:capitls"], "kwargs": [{"word": None}]},
            "unknown instruction 'plain:capitls'. Did you mean 'plain:capitals'",
        ),
        (
            {"prompt": " ", "instruction_id_list": ["plain:capitals"], "kwargs": [{"word": None}]},
            "a prompt that is a non-empty text",
        ),
        (
            {
                "messages": [{"role": "assistant", "content": "a"}],
                "instruction_id_list": ["plain:capitals"],
                "kwargs": [{"word": None}],
            },
            "end with a user's",
        ),
    ],
)
def test_files_that_cannot_be_asked(tmp_path, row, words):
    tokenizer = make_tokenizer(chat=True)
    with pytest.raises(DataError) as error:
        read_instructions(an_entry(tmp_path, [row]), tokenizer)
    assert words in str(error.value)


def test_all_mistakes_of_a_file_are_found_before_anything_runs(tmp_path, tiny_tokenizer):
    rows = [
        *ROWS,
        {"prompt": "a", "instruction_id_list": ["plain:begn"], "kwargs": [{"word": "x"}]},
        {"prompt": "", "instruction_id_list": ["plain:capitals"], "kwargs": [{}]},
    ]
    [problem] = check_plan(EvaluationPlan(entries=(an_entry(tmp_path, rows),)), tiny_tokenizer)
    assert "plain:begn" in problem and "a prompt that is a non-empty text" in problem and "row 4" in problem
