"""Classes and choices by likelihood: scores against whole float64 logits, labels as files have them, and all that can
be wrong with a file."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import yaml

from data_files import jsonl
from evaluation.conftest import SENTENCES, make_model, make_tokenizer, measured, parsed
from evaluation.evaluation_models import architecture
from holdfast.errors import DataError, ModelError
from holdfast.evaluation.kinds.classification import ClassificationEntry, read_classes
from holdfast.evaluation.kinds.multiple_choice import MultipleChoiceEntry
from holdfast.evaluation.text.questions import read_questions

NAMES = (" negative", " fine", " rather more than fine, all in all")
"""Of different lengths, so that it matters what is divided by what."""
OPTIONS = [[" red", " blue", " rather more green than one would think"], [" it is", " so"], [" a", " b", " c", " d"]]
ROWS = [
    {"prompt": f"{text} This is", "options": OPTIONS[i % 3], "answer": i % 2, "subject": ("colours", "a", "b")[i % 3]}
    for i, text in enumerate(SENTENCES)
]


def write(folder: Path, rows: list) -> str:
    jsonl(folder / "rows.jsonl", rows)
    return str(folder / "rows.jsonl")


def choices(folder: Path, rows: list = ROWS, **changes) -> MultipleChoiceEntry:
    return MultipleChoiceEntry(suite="learn", name="rows", data=write(folder, rows), **changes)


def classes(folder: Path, rows: list, **changes) -> ClassificationEntry:
    plain = {"prompt": "{text} is", "options": (" dull", " fine")}
    return ClassificationEntry(suite="learn", name="rows", data=write(folder, rows), **{**plain, **changes})


def option_nats(model, tokenizer, prompt: str, option: str, *, chat: bool = False) -> tuple[float, int]:
    """(log p(option | prompt), tokens), one text, float64."""
    begin = [] if chat or tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    given, whole = (
        begin + tokenizer(text, add_special_tokens=False)["input_ids"] for text in (prompt, prompt + option)
    )
    start = next(i for i in range(len(whole)) if i == len(given) or given[i] != whole[i])
    with torch.no_grad():
        logp = model(torch.tensor([whole])).logits[0].double().log_softmax(-1)
    return sum(float(logp[t - 1, whole[t]]) for t in range(start, len(whole))), len(whole) - start


def agrees(row: dict, found: list[tuple[float, int]], gold: int, *, normalised: bool = True) -> float:
    """A row against (log-likelihood, tokens) of each option; the logarithm of the scores' sum."""
    scores = [log / count if normalised else log for log, count in found]
    total = math.log(sum(map(math.exp, scores)))
    assert row["probabilities"] == pytest.approx([math.exp(score - total) for score in scores], abs=1e-5)
    assert (row["gold"], row["answer"]) == (gold, scores.index(max(scores)))
    assert row["acc"] == float(row["answer"] == gold)
    return total - scores[gold]


@pytest.fixture(scope="module")
def roomy():
    """A model whose context takes every text of this file whole."""
    return make_model(positions=128)


# --------------------------------------------------------------------------------------------------------------- scores


@pytest.mark.parametrize("model", ["llama", "bloom"])
@pytest.mark.parametrize("bos", [True, False])
def test_classes_are_scored_by_the_mean_over_the_tokens_of_a_name(roomy, tmp_path, bos, model):
    model, tokenizer = roomy if model == "llama" else architecture(model, vocabulary=300), make_tokenizer(bos=bos)
    rows = [{"text": f"{text} This", "label": i % 3} for i, text in enumerate(SENTENCES)]
    for given, row in zip(rows, measured(model, tokenizer, classes(tmp_path, rows, options=NAMES)).rows, strict=True):
        prompt = f"{given['text']} is"
        nats = agrees(row, [option_nats(model, tokenizer, prompt, name) for name in NAMES], given["label"])
        assert row["nats"] == pytest.approx(nats, abs=1e-5)
        assert (row["question"], row["choices"]) == (prompt, list(NAMES))


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("bos", [True, False])
def test_choices_are_scored_each_in_a_text_of_its_own(roomy, tmp_path, bos, normalised):
    tokenizer = make_tokenizer(bos=bos)
    found = measured(roomy, tokenizer, choices(tmp_path, length_normalised=normalised))
    for given, row in zip(ROWS, found.rows, strict=True):
        scored = [option_nats(roomy, tokenizer, given["prompt"], option) for option in given["options"]]
        agrees(row, scored, given["answer"], normalised=normalised)
        assert row["loglikelihoods"] == pytest.approx([log for log, _ in scored], abs=1e-4)
        nats, tokens = scored[given["answer"]]
        assert (row["nats"], row["tokens"]) == (pytest.approx(-nats, abs=1e-4), tokens)
        assert (row["question"], row["choices"]) == (given["prompt"], given["options"]) and "task" not in row


def test_a_border_inside_a_token(roomy, tiny_tokenizer, tmp_path):
    """The prompt's last token and the name's first become one token of the whole: it is the name's."""
    text = "Question: what colour is the sky?"
    pieces = {n: tiny_tokenizer(text[:n], add_special_tokens=False)["input_ids"] for n in range(1, len(text) + 1)}
    split = next(n for n in range(8, len(text)) if pieces[len(text)][: len(pieces[n])] != pieces[n])
    names = (text[split:], " or not")
    entry = classes(tmp_path, [{"text": text[:split], "label": 0}], prompt="{text}", options=names)
    [row] = measured(roomy, tiny_tokenizer, entry).rows
    agrees(row, [option_nats(roomy, tiny_tokenizer, text[:split], name) for name in names], 0)


def test_a_text_longer_than_the_context_loses_its_beginning_and_a_name_cannot(tiny_model, tiny_tokenizer, tmp_path):
    """The 64 tokens that end with the name's last but one are what the model reads."""
    end = "Seven ships sailed south; none came back before winter. " * 3
    rows = [{"text": begin * 20 + end, "label": 0} for begin in ("zzz ", "vvv ")]
    one, two = measured(tiny_model, tiny_tokenizer, classes(tmp_path, rows)).rows
    assert one["probabilities"] == pytest.approx(two["probabilities"], abs=1e-5) and one["doc"] != two["doc"]
    with pytest.raises(DataError, match="more than the model's context of 64"):
        measured(tiny_model, tiny_tokenizer, classes(tmp_path, rows, options=(" fine", " zq" * 80)))


def test_the_chat_template_is_written_once_with_its_own_beginning(roomy, tmp_path):
    tokenizer = make_tokenizer(chat=True)
    [row] = measured(roomy, tokenizer, choices(tmp_path, ROWS[:1], apply_chat_template=True)).rows
    talk = [{"role": "user", "content": ROWS[0]["prompt"]}]
    prompt = tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
    agrees(row, [option_nats(roomy, tokenizer, prompt, option, chat=True) for option in OPTIONS[0]], 0)
    assert row["question"] == ROWS[0]["prompt"]
    with pytest.raises(ModelError, match="chat template"):
        read_questions(choices(tmp_path, apply_chat_template=True), make_tokenizer())


def test_the_figures_and_groups(tiny_model, tiny_tokenizer, tmp_path):
    entries = (
        choices(tmp_path, group="subject"),
        classes(tmp_path, [{**row, "text": f"a {n}"} for n, row in enumerate(ROWS)], label="answer"),
    )
    of_choices, of_classes = (measured(tiny_model, tiny_tokenizer, entry) for entry in entries)
    for found in (of_choices, of_classes):
        assert found.metrics["acc"].value == pytest.approx(sum(row["acc"] for row in found.rows) / len(ROWS))
        assert found.metrics["acc"].higher_is_better and found.metrics["acc"].interval is not None
    nats = sum(row["nats"] for row in of_choices.rows) / sum(row["tokens"] for row in of_choices.rows)
    assert (of_choices.primary, of_choices.metrics["nats_per_token"].value) == ("acc", pytest.approx(nats))
    assert of_choices.settings["subtasks"] == ["a", "b", "colours"]
    perplexity = of_classes.metrics["class_perplexity"]
    assert perplexity.value == pytest.approx(math.exp(sum(row["nats"] for row in of_classes.rows) / len(ROWS)))
    assert of_classes.primary == "class_perplexity" and not perplexity.higher_is_better


# ---------------------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("labels", "rows", "golds"),
    [
        ((), [0, 1, 1], [0, 1, 1]),
        ((), ["0", "1", "1"], [0, 1, 1]),
        (("neg", "pos"), ["pos", "neg", "neg"], [1, 0, 0]),
        (("1", "2"), [2, 1, 1], [1, 0, 0]),
    ],
)
def test_labels_as_files_have_them(tmp_path, labels, rows, golds):
    rows = [{"text": f"thing {i}", "label": label} for i, label in enumerate(rows)]
    texts = read_classes(classes(tmp_path, rows, labels=labels))
    assert [(text.prompt, text.gold) for text in texts] == [(f"thing {i} is", gold) for i, gold in enumerate(golds)]
    first = read_classes(classes(tmp_path, rows, labels=labels, max_documents=2))
    assert [text.gold for text in first] == golds[:2]


def test_each_row_has_classes_of_its_own(roomy, tmp_path):
    """SIQA's answers differ from question to question; the mean log-likelihood a token decides all the same."""
    write(tmp_path, ROWS)
    entry = '{classification: rows.jsonl, prompt: "{prompt}", label: answer, options: options}'
    plan, problems = parsed(yaml.safe_load(f"learn: [{entry}]"), tmp_path)
    assert problems == []
    tokenizer = make_tokenizer()
    found = measured(roomy, tokenizer, plan.entries[0])
    assert found.primary == "class_perplexity" and found.settings["options"] == "options"
    for row, asked in zip(found.rows, ROWS, strict=True):
        each = [option_nats(roomy, tokenizer, asked["prompt"], option) for option in asked["options"]]
        assert row["choices"] == asked["options"]
        assert row["nats"] == pytest.approx(agrees(row, each, asked["answer"]), abs=1e-5)


@pytest.mark.parametrize(
    ("rows", "changes", "words"),
    [
        (
            [{"text": "a", "stars": 1}],
            {},
            "has no column 'label' with the right class (it has text, stars). Name it with `label`.",
        ),
        ([{"body": "a", "label": 1}], {}, "names the column 'text', but "),
        ([{"text": "a", "label": 0}, {"text": "b", "label": 5}], {}, "expected one of the classes as label (0, 1; "),
        (
            [{"text": "a", "label": "pos"}],
            {"labels": ("neg", "good")},
            "(neg, good; `options` may be a mapping from label to text), got 'pos' in row 0",
        ),
        ([{"text": "a", "label": 0}], {"prompt": "{text:d} is"}, "cannot be filled from row 0 of "),
    ],
)
def test_files_without_classes(tmp_path, rows, changes, words):
    with pytest.raises(DataError) as caught:
        read_classes(classes(tmp_path, rows, **changes))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"answer": None}, "index of one of the options, from 0, got None"),
        ({"answer": 2}, "an answer that is the index of one of the options, from 0, got 2 of 2 options in row 0"),
        ({"answer": True}, "got True"),
        ({"options": [" a"]}, "at least two different texts"),
        ({"options": [" a", ""]}, "none empty"),
        ({"prompt": ""}, "a prompt that is a non-empty text"),
    ],
)
def test_rows_that_are_no_questions(tmp_path, tiny_tokenizer, changes, words):
    with pytest.raises(DataError) as caught:
        read_questions(
            choices(tmp_path, [{"prompt": "a", "options": [" a", " b"], "answer": 0, **changes}]), tiny_tokenizer
        )
    assert words in str(caught.value)


def test_columns_that_are_missing_and_files_that_are_empty(tmp_path, tiny_tokenizer):
    for rows, changes, words in (
        ([{"prompt": "a", "options": [" a", " b"]}], {}, "lacks the column answer"),
        ([{"text": "a", "choices": ["x", "y"], "answer": 0}], {}, "lacks the columns prompt, options"),
        (ROWS, {"group": "subjekt"}, r"lacks the column subjekt .*Did you mean 'subject'"),
        ([], {}, "rows"),
    ):
        with pytest.raises(DataError, match=words):
            read_questions(choices(tmp_path, rows, **changes), tiny_tokenizer)
