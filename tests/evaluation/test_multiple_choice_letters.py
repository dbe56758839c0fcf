"""Questions asked with letters: every figure against whole float64 logits, and all that can be wrong with a file, a
template or a tokenizer."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from data_files import jsonl
from evaluation import test_answer_distribution
from evaluation.conftest import make_model, make_tokenizer, measured
from evaluation.test_answer_distribution import agrees, ids_of
from holdfast.errors import DataError, ModelError
from holdfast.evaluation.kinds.multiple_choice_letters import LettersEntry, lettered_prompt
from holdfast.evaluation.measures import check
from holdfast.evaluation.suite import parse_evaluation
from holdfast.evaluation.text.answer_position import OptionTokens
from holdfast.evaluation.text.questions import read_questions

ROWS = [
    {
        "prompt": f"Which thing is number {i}?",
        "options": [" red", " blue", "green"][: 2 + i % 2],
        "answer": i % 2,
        "subject": "ab"[i % 2],
        "fact": f"fact {i // 2}",
    }
    for i in range(6)
]


spaced = test_answer_distribution.spaced


@pytest.fixture(scope="module")
def roomy():
    return make_model(positions=256)


def write(folder: Path, rows: list) -> str:
    jsonl(folder / "rows.jsonl", rows)
    return str(folder / "rows.jsonl")


def an_entry(folder: Path, rows: list = ROWS, **changes) -> LettersEntry:
    return LettersEntry(suite="keep", name="rows", data=write(folder, rows), **changes)


def asked(row: dict) -> str:
    lines = [f"{letter}. {option.strip()}\n" for letter, option in zip("ABC", row["options"], strict=False)]
    return f"{row['prompt']}\n{''.join(lines)}Answer:"


# ------------------------------------------------------------------------------------------------------------- figures


@pytest.mark.parametrize("has_spaced", [True, False])
@pytest.mark.parametrize("bos", [True, False])
def test_figures_are_those_of_the_whole_vocabulary(roomy, spaced, tmp_path, has_spaced, bos) -> None:
    tokenizer = spaced if has_spaced else make_tokenizer(bos=bos)
    assert [len(ids_of(tokenizer, letter)) for letter in "ABC"] == ([2, 2, 2] if has_spaced else [1, 1, 1])
    found = measured(roomy, tokenizer, an_entry(tmp_path))
    for given, row in zip(ROWS, found.rows, strict=True):
        begin = [tokenizer.bos_token_id] if tokenizer.bos_token_id is not None else []
        context = begin + tokenizer(asked(given), add_special_tokens=False)["input_ids"]
        shares = agrees(roomy, tokenizer, context, row, given["answer"], options=len(given["options"]))
        assert row["nats"] == pytest.approx(-math.log(shares[given["answer"]]), abs=1e-4) and row["tokens"] == 1
        assert (row["question"], row["choices"]) == (asked(given), given["options"])
    assert len({row["doc"] for row in found.rows}) == len({row["prompt"] for row in found.rows}) == len(ROWS)
    assert found.primary == "acc"
    assert set(found.metrics) == {"acc", "mass", "aligned", "entropy", "option_entropy", "nats_per_token"}
    for name, metric in found.metrics.items():
        column = "nats" if name == "nats_per_token" else name
        assert metric.value == pytest.approx(sum(row[column] for row in found.rows) / len(ROWS))
        assert metric.interval is not None and metric.n == len(ROWS)


def test_a_template_of_ones_own(roomy, spaced, tmp_path) -> None:
    template = "[{subject}] {prompt} {{pick}}\n{options}\nLetter:"
    [row] = measured(roomy, spaced, an_entry(tmp_path, ROWS[:1], prompt=template)).rows
    assert row["question"] == "[a] Which thing is number 0? {pick}\nA. red\nB. blue\nLetter:"
    assert lettered_prompt(ROWS[0]) == asked(ROWS[0])


def test_groups_and_units(roomy, spaced, tmp_path) -> None:
    found = measured(roomy, spaced, an_entry(tmp_path, group="subject"))
    assert found.settings["subtasks"] == ["a", "b"] and [row["task"] for row in found.rows] == list("ababab")
    together = measured(roomy, spaced, an_entry(tmp_path, cluster="fact"))
    assert [row["question"] for row in together.rows] == ["fact 0", "fact 1", "fact 2"]
    for name in ("acc", "mass", "entropy", "option_entropy", "aligned"):
        assert together.rows[1][name] == pytest.approx((found.rows[2][name] + found.rows[3][name]) / 2)
        assert together.metrics[name].n == 3
    assert together.metrics["nats_per_token"].value == pytest.approx(found.metrics["nats_per_token"].value)


def test_an_option_that_is_less_likely_than_a_float_can_say_has_finite_nats(spaced, tmp_path) -> None:
    model = make_model(positions=256)
    with torch.no_grad():
        model.lm_head.weight *= 2000
    found = measured(model, spaced, an_entry(tmp_path))
    assert max(row["nats"] for row in found.rows) > 750 and all(math.isfinite(row["nats"]) for row in found.rows)
    assert all(math.isfinite(metric.value) for metric in found.metrics.values())


# --------------------------------------------------------------------------------------------------------------- tokens


class SentencePieceLike:
    """Puts a space before every text, as Llama 2's tokenizer does: "A" and " A" are one token, "A" behind a mark is
    another."""

    def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
        words = {"A": ["▁A"], " A": ["▁A"], ":": ["▁:"], ":A": ["▁:", "A"]}[text]
        return {"input_ids": [{"▁A": 5, "A": 6, "▁:": 7}[word] for word in words]}


def test_a_letter_behind_a_mark_counts_too() -> None:
    assert OptionTokens(SentencePieceLike(), LettersEntry(suite="keep", name="rows", data="rows"), advice="").of(
        "A"
    ) == [5, 6]


def test_letters_of_several_tokens_are_refused(tiny_model, tmp_path) -> None:
    class Spelled:
        """A tokenizer that has no letters."""

        chat_template, bos_token_id = None, None

        def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
            return {"input_ids": [i for byte in text.encode() for i in (byte // 16, byte % 16)]}

        def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
            return [str(i) for i in ids]

    expected = r"needs options that are one token each, but the tokenizer splits 'A' into 4 tokens .*`multiple_choice: "
    with pytest.raises(ModelError, match=expected):
        check(an_entry(tmp_path), Spelled())


# ------------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"options": [f" {i}" for i in range(27)]}, "expected at most 26 options, one letter each, got 27 options"),
        ({"options": [" one"]}, "at least two different texts"),
        ({"answer": 2}, "the index of one of the options"),
    ],
)
def test_rows_that_are_no_questions(tiny_tokenizer, tmp_path, row, words) -> None:
    with pytest.raises(DataError, match=words):
        read_questions(an_entry(tmp_path, [{**ROWS[0], **row}]), tiny_tokenizer)


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("{question}\n{options}", "names the column 'question', but"),
        ("{prompt.text}\n{options}", "cannot be filled"),
    ],
)
def test_templates_that_the_rows_cannot_fill(tiny_tokenizer, tmp_path, prompt, words) -> None:
    with pytest.raises(DataError, match=words):
        check(an_entry(tmp_path, prompt=prompt), tiny_tokenizer)


def test_a_template_without_options_is_refused(tmp_path) -> None:
    wanted = {"multiple_choice_letters": write(tmp_path, ROWS), "prompt": "{prompt} Answer:"}
    _, problems = parse_evaluation({"keep": [wanted]})
    assert len(problems) == 1 and "expected a template with {options}" in problems[0]
