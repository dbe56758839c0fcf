"""The distribution at the answer position against whole float64 logits, for tokenizers with and without tokens that
begin with a space."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from data_files import jsonl
from evaluation.conftest import make_model, make_tokenizer, measured
from holdfast.errors import ConfigError, DataError, ModelError
from holdfast.evaluation.kinds.answer_distribution import AnswerDistributionEntry
from holdfast.evaluation.measures import check
from holdfast.evaluation.text.answer_position import ALIGNED

GOLDS = [0, 1, 1, 0, 2, 1, 0, 2]


@pytest.fixture(scope="module")
def spaced():
    """A tokenizer that has "A", "B" and "C" with a space before them as tokens, and without."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(
        ["say A or B or C A B C A B C"] * 8,
        vocab_size=280,
        special_tokens=["<|begin|>", "<|stop|>"],
        show_progress=False,
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe._tokenizer, bos_token="<|begin|>", eos_token="<|stop|>")
    assert {"A", "ĠA", "B", "ĠB", "C", "ĠC"} <= set(tokenizer.get_vocab())
    return tokenizer


@pytest.fixture(scope="module")
def roomy():
    return make_model(positions=256)


@pytest.fixture
def letters(tmp_path: Path) -> Path:
    return write_task(tmp_path, [{"q": f"Which letter is thing {i}?", "right": gold} for i, gold in enumerate(GOLDS)])


def write_task(
    folder: Path, rows: list[dict], *, name: str = "letters", choices: str = '["A", "B", "C"]', target: str = "right"
) -> Path:
    jsonl(folder / f"{name}.jsonl", rows)
    path = folder / f"{name}.yaml"
    path.write_text(
        f"task: {name}\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {name}.jsonl}}}}\ntest_split: test\n"
        f'output_type: multiple_choice\ndoc_to_text: "Question: {{{{q}}}}\\nAnswer:"\ndoc_to_choice: '
        f"{choices}\ndoc_to_target: {target}\n"
        "fewshot_split: test\nmetric_list:\n  - {metric: acc, aggregation: mean, higher_is_better: true}\n"
    )
    return path


def an_entry(path: Path, **changes) -> AnswerDistributionEntry:
    return AnswerDistributionEntry(suite="keep", name="letters-answers", task=str(path), **changes)


def next_token(model, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0, -1].double().softmax(-1)


def ids_of(tokenizer, letter: str) -> list[int]:
    vocabulary = tokenizer.get_vocab()
    return [vocabulary[form] for form in (letter, f"Ġ{letter}") if form in vocabulary]


def agrees(model, tokenizer, context: list[int], row: dict, gold: int, *, options: int = 3) -> list[float]:
    """One row against the distribution behind `context`, in float64; the probabilities of its letters."""
    p = next_token(model, context)
    shares = [sum(float(p[i]) for i in ids_of(tokenizer, letter)) for letter in "ABC"[:options]]
    mass = sum(shares)
    assert row["mass"] == pytest.approx(mass, rel=1e-4)
    assert row["entropy"] == pytest.approx(-float((p * p.log()).sum()), abs=1e-4)
    assert row["probabilities"] == pytest.approx([share / mass for share in shares], abs=1e-5)
    assert row["option_entropy"] == pytest.approx(-sum(s / mass * math.log(s / mass) for s in shares), abs=1e-5)
    assert row["answer"] == shares.index(max(shares))
    assert (row["gold"], row["acc"], row["aligned"]) == (gold, float(row["answer"] == gold), float(mass >= ALIGNED))
    return shares


@pytest.mark.parametrize("has_spaced", [True, False])
def test_mass_and_entropies_are_those_of_the_whole_vocabulary(roomy, spaced, letters: Path, has_spaced: bool) -> None:
    tokenizer = spaced if has_spaced else make_tokenizer()
    assert [len(ids_of(tokenizer, letter)) for letter in "ABC"] == ([2, 2, 2] if has_spaced else [1, 1, 1])
    found = measured(roomy, tokenizer, an_entry(letters))
    rows = found.rows
    assert len(rows) == len(GOLDS) and found.settings["num_fewshot"] == 0
    for number, (row, gold) in enumerate(zip(rows, GOLDS, strict=True)):
        agrees(
            roomy, tokenizer, tokenizer(f"Question: Which letter is thing {number}?\nAnswer:")["input_ids"], row, gold
        )
        assert row["choices"] == ["A", "B", "C"]
        assert sum(row["probabilities"]) == pytest.approx(1.0)
    assert len({row["doc"] for row in rows}) == len({row["prompt"] for row in rows}) == len(GOLDS)


def test_with_examples_before_each_question(roomy, spaced, letters: Path) -> None:
    from holdfast.evaluation.tasks.tasks import load_tasks

    entry = an_entry(letters, num_fewshot=2)
    found = measured(roomy, spaced, entry, seed=3)
    rows = found.rows
    [task] = load_tasks(entry).values()
    task.set_fewshot_seed(seed=3)
    assert found.settings["num_fewshot"] == 2
    for doc, row in zip(task.eval_docs, rows, strict=True):
        context = task.fewshot_context(doc, num_fewshot=2)
        assert context.count("Answer:") == 3
        agrees(roomy, spaced, spaced(context)["input_ids"], row, doc["right"])
    assert [row["prompt"] for row in measured(roomy, spaced, entry, seed=4).rows] != [row["prompt"] for row in rows]


def test_in_the_chat_template(roomy, letters: Path) -> None:
    tokenizer = make_tokenizer(chat=True)
    rows = measured(roomy, tokenizer, an_entry(letters, apply_chat_template=True, limit=2)).rows
    for number, row in enumerate(rows):
        text = f"<|user|>Question: Which letter is thing {number}?\nAnswer:<|end|><|assistant|>"
        agrees(roomy, tokenizer, tokenizer(text)["input_ids"], row, GOLDS[number])


def test_several_right_answers_and_answers_by_text(roomy, spaced, tmp_path: Path) -> None:
    rows = [{"q": "x?", "right": [0, 2]}, {"q": "y?", "right": [1]}]
    found = measured(roomy, spaced, an_entry(write_task(tmp_path, rows, name="several"))).rows
    assert [row["gold"] for row in found] == [[0, 2], [1]]
    assert [row["acc"] for row in found] == [float(row["answer"] in row["gold"]) for row in found]


def test_options_whose_tokens_are_found_only_without_a_space(tiny_tokenizer, letters: Path) -> None:
    assert (
        "ĠA" not in tiny_tokenizer.get_vocab() and len(tiny_tokenizer(" A", add_special_tokens=False)["input_ids"]) == 2
    )
    check(an_entry(letters), tiny_tokenizer)


GENERATES = (
    ("output_type: multiple_choice", "output_type: generate_until"),
    ('doc_to_choice: ["A", "B"]\n', ""),
    ("metric: acc", "metric: exact_match"),
)


@pytest.mark.parametrize(
    ("choices", "changes", "error", "words"),
    [
        (
            '["yes", "no"]',
            (),
            ModelError,
            r"one token each, but the tokenizer splits 'yes' into \d tokens .*Use a task with lettered",
        ),
        ('["A", " "]', (), DataError, "empty option in question 1"),  # would be counted as the token of a space
        ('["A", "B"]', GENERATES, ConfigError, "`answer_distribution` needs a task with answer options"),
    ],
)
def test_tasks_whose_answers_have_no_position(
    tiny_model, spaced, tmp_path: Path, choices, changes, error, words
) -> None:
    task = write_task(tmp_path, [{"q": "x?", "right": 0}], choices=choices)
    for old, new in changes:
        assert old in task.read_text()
        task.write_text(task.read_text().replace(old, new))
    for ask in (lambda: check(an_entry(task), spaced), lambda: measured(tiny_model, spaced, an_entry(task))):
        with pytest.raises(error, match=words):
            ask()
