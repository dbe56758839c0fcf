"""Questions asked with letters: every figure against whole float64 logits, and all that can be wrong with a file, a
template or a tokenizer."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from evaluation.conftest import make_model, make_tokenizer, measured
from evaluation.test_answers import ids_of, next_token
from holdfast.errors import DataError, ModelError
from holdfast.evaluation.compare.folders import compare_folders
from holdfast.evaluation.entries import LetteredEntry
from holdfast.evaluation.runner import evaluate
from holdfast.evaluation.suite import parse_evaluation
from holdfast.evaluation.text.answer_position import ALIGNED, OptionTokens
from holdfast.evaluation.text.lettered import check, lettered_prompt, read_lettered
from holdfast.records.evaluation import EvaluationFolder

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


@pytest.fixture(scope="module")
def spaced():
    """A tokenizer that has the letters with a space before them as tokens, and without."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    bpe = ByteLevelBPETokenizer()
    special = ["<|begin|>", "<|stop|>"]
    bpe.train_from_iterator(["say A B C A B C"] * 8, vocab_size=280, special_tokens=special, show_progress=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe._tokenizer, bos_token="<|begin|>", eos_token="<|stop|>")
    assert {"A", "ĠA", "B", "ĠB", "C", "ĠC"} <= set(tokenizer.get_vocab())
    return tokenizer


@pytest.fixture(scope="module")
def roomy():
    return make_model(positions=256)


def write(folder: Path, rows: list) -> str:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / "rows.jsonl")


def an_entry(folder: Path, rows: list = ROWS, **changes) -> LetteredEntry:
    return LetteredEntry(suite="source", name="rows", data=write(folder, rows), **changes)


def asked(row: dict) -> str:
    lines = [f"{letter}. {option.strip()}\n" for letter, option in zip("ABC", row["options"], strict=False)]
    return f"{row['prompt']}\n{''.join(lines)}Answer:"


def agrees(model, tokenizer, context: list[int], row: dict, gold: int, options: int) -> None:
    """One row against the distribution behind `context`, in float64."""
    p = next_token(model, context)
    shares = [sum(float(p[i]) for i in ids_of(tokenizer, letter)) for letter in "ABC"[:options]]
    mass = sum(shares)
    assert row["mass"] == pytest.approx(mass, rel=1e-4)
    assert row["entropy"] == pytest.approx(-float((p * p.log()).sum()), abs=1e-4)
    assert row["probabilities"] == pytest.approx([share / mass for share in shares], abs=1e-5)
    assert row["option_entropy"] == pytest.approx(-sum(s / mass * math.log(s / mass) for s in shares), abs=1e-5)
    assert row["nats"] == pytest.approx(-math.log(shares[gold]), abs=1e-4) and row["tokens"] == 1
    assert row["answer"] == shares.index(max(shares))
    assert (row["gold"], row["acc"], row["aligned"]) == (gold, float(row["answer"] == gold), float(mass >= ALIGNED))


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
        agrees(roomy, tokenizer, context, row, given["answer"], len(given["options"]))
        assert (row["question"], row["choices"]) == (asked(given), given["options"])
    assert len({row["doc"] for row in found.rows}) == len({row["prompt"] for row in found.rows}) == len(ROWS)
    assert found.primary == "acc"
    assert set(found.metrics) == {"acc", "mass", "aligned", "entropy", "option_entropy", "nats_per_token"}
    for name, metric in found.metrics.items():
        column = "nats" if name == "nats_per_token" else name
        assert metric.value == pytest.approx(sum(row[column] for row in found.rows) / len(ROWS))
        assert metric.interval is not None and metric.n == len(ROWS)


def test_in_the_chat_template(roomy, tmp_path) -> None:
    tokenizer = make_tokenizer(chat=True)
    found = measured(roomy, tokenizer, an_entry(tmp_path, ROWS[:2], apply_chat_template=True))
    for given, row in zip(ROWS, found.rows, strict=False):
        text = f"<|user|>{asked(given)}<|end|><|assistant|>"
        context = tokenizer(text, add_special_tokens=False)["input_ids"]
        agrees(roomy, tokenizer, context, row, given["answer"], len(given["options"]))
        assert row["question"] == asked(given)


def test_a_template_of_ones_own(roomy, spaced, tmp_path) -> None:
    template = "[{subject}] {prompt} {{pick}}\n{options}\nLetter:"
    [row] = measured(roomy, spaced, an_entry(tmp_path, ROWS[:1], prompt=template)).rows
    assert row["question"] == "[a] Which thing is number 0? {pick}\nA. red\nB. blue\nLetter:"
    assert lettered_prompt(ROWS[0]) == asked(ROWS[0])


def test_groups_and_units(roomy, spaced, tmp_path) -> None:
    found = measured(roomy, spaced, an_entry(tmp_path, group="subject"))
    assert found.settings["subtasks"] == ["a", "b"] and [row["task"] for row in found.rows] == list("ababab")
    together = measured(roomy, spaced, an_entry(tmp_path, unit="fact"))
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
    assert OptionTokens(SentencePieceLike(), "source/rows", kind="lettered", instead="").of("A") == [5, 6]


def test_letters_of_several_tokens_are_refused(tiny_model, tmp_path) -> None:
    class Spelled:
        """A tokenizer that has no letters."""

        chat_template, bos_token_id = None, None

        def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
            return {"input_ids": [i for byte in text.encode() for i in (byte // 16, byte % 16)]}

        def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
            return [str(i) for i in ids]

    expected = r"`lettered` needs options that are one token each, but the tokenizer has 'A' as 4 tokens .*`choices: "
    with pytest.raises(ModelError, match=expected):
        check(an_entry(tmp_path), Spelled())


# ------------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"options": [f" {i}" for i in range(27)]}, "expected at most 26 options, a letter each, got 27 options"),
        ({"options": [" one"]}, "at least two different texts"),
        ({"answer": 2}, "the index of one of the options"),
    ],
)
def test_rows_that_are_no_questions(tiny_tokenizer, tmp_path, row, words) -> None:
    with pytest.raises(DataError, match=words):
        read_lettered(an_entry(tmp_path, [{**ROWS[0], **row}]), tiny_tokenizer)


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("{question}\n{options}", "names the column 'question', which"),
        ("{prompt.text}\n{options}", "cannot be filled"),
    ],
)
def test_templates_that_the_rows_cannot_fill(tiny_tokenizer, tmp_path, prompt, words) -> None:
    with pytest.raises(DataError, match=words):
        check(an_entry(tmp_path, prompt=prompt), tiny_tokenizer)


def test_a_template_without_options_is_refused(tmp_path) -> None:
    wanted = {"lettered": write(tmp_path, ROWS), "prompt": "{prompt} Answer:"}
    _, problems = parse_evaluation({"source": [wanted]})
    assert len(problems) == 1 and "expected a template with {options}" in problems[0]


# ----------------------------------------------------------------------------------------------------------- comparison


def test_two_models_are_compared_question_by_question(spaced, tmp_path) -> None:
    file = write(tmp_path, ROWS)
    plan, problems = parse_evaluation({"source": [{"choices": file}, {"lettered": file, "name": "letters"}]})
    assert problems == [] and [e.kind for e in plan.entries] == ["choices", "lettered"]
    folders = [EvaluationFolder(tmp_path / name) for name in ("before", "after")]
    for seed, folder in enumerate(folders):
        identity = {"name": folder.path.name, "hash": str(seed)}
        found = evaluate(make_model(seed=seed, positions=256), spaced, plan, folder=folder, model_identity=identity)
        assert found[1].references["acc"]["chance"] == pytest.approx((1 / 2 + 1 / 3) / 2)
    compared, left_out = compare_folders(*folders, metrics="all")
    assert left_out == []
    letters = {c.metric: c for c in compared if c.name == "letters"}
    assert set(letters) == {"acc", "mass", "aligned", "entropy", "option_entropy", "nats_per_token"}
    assert letters["acc"].n == len(ROWS) and letters["mass"].interval is not None
