"""Classification by likelihood: mean log-probabilities against whole float64 logits, and labels as files have them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from evaluation.conftest import SENTENCES, make_model, make_tokenizer
from evaluation.evaluation_models import architecture
from holdfast.errors import DataError
from holdfast.evaluation.entries import ClassesEntry, EvaluationPlan
from holdfast.evaluation.measures import measure
from holdfast.evaluation.partial import Partial
from holdfast.evaluation.text.classes import read_classes, score_classes

OPTIONS = (" negative", " fine", " rather more than fine, all in all")
"""Of different lengths, so that it matters what is divided by what."""


def mean_nats(model, tokenizer, prompt: str, option: str) -> float:
    """log p(option | prompt) / tokens, one text, float64."""
    begin = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    given, whole = (
        begin + tokenizer(text, add_special_tokens=False)["input_ids"] for text in (prompt, prompt + option)
    )
    start = next(i for i in range(len(whole)) if i == len(given) or given[i] != whole[i])
    with torch.no_grad():
        logp = model(torch.tensor([whole])).logits[0].double().log_softmax(-1)
    return sum(float(logp[t - 1, whole[t]]) for t in range(start, len(whole))) / (len(whole) - start)


@pytest.fixture(scope="module")
def roomy():
    """A model whose context takes every text of this file whole."""
    return make_model(positions=128)


@pytest.mark.parametrize("bos", [True, False])
def test_scores_are_means_over_the_tokens_of_a_name(roomy, bos: bool) -> None:
    tokenizer = make_tokenizer(bos=bos)
    prompts, golds = [f"{text} This is" for text in SENTENCES], [0, 1, 2, 0, 1]
    rows = score_classes(roomy, tokenizer, prompts, golds, OPTIONS)
    for prompt, gold, row in zip(prompts, golds, rows, strict=True):
        scores = [mean_nats(roomy, tokenizer, prompt, option) for option in OPTIONS]
        total = math.log(sum(math.exp(score) for score in scores))
        assert row["nats"] == pytest.approx(total - scores[gold], abs=1e-5)
        assert row["probabilities"] == pytest.approx([math.exp(score - total) for score in scores], abs=1e-5)
        assert sum(row["probabilities"]) == pytest.approx(1.0)
        assert row["answer"] == scores.index(max(scores))
        assert row["acc"] == float(row["answer"] == gold)
        assert (row["gold"], row["question"], row["choices"]) == (gold, prompt, list(OPTIONS))


def test_a_border_inside_a_token(roomy, tiny_tokenizer) -> None:
    """The prompt's last token and the name's first become one token of the whole: it is the name's."""
    text = "Question: what colour is the sky?"
    pieces = {n: tiny_tokenizer(text[:n], add_special_tokens=False)["input_ids"] for n in range(1, len(text) + 1)}
    split = next(n for n in range(8, len(text)) if pieces[len(text)][: len(pieces[n])] != pieces[n])
    prompts, options = [text[:split]], (text[split:], " or not")
    [row] = score_classes(roomy, tiny_tokenizer, prompts, [0], options)
    scores = [mean_nats(roomy, tiny_tokenizer, prompts[0], option) for option in options]
    assert row["nats"] == pytest.approx(math.log(sum(map(math.exp, scores))) - scores[0], abs=1e-5)


def test_a_model_that_cannot_share_beginnings(tiny_tokenizer) -> None:
    model = architecture("bloom", vocabulary=300)
    prompts = [f"{text} This is" for text in SENTENCES]
    rows = score_classes(model, tiny_tokenizer, prompts, [0] * len(prompts), OPTIONS)
    for prompt, row in zip(prompts, rows, strict=True):
        scores = [mean_nats(model, tiny_tokenizer, prompt, option) for option in OPTIONS]
        total = math.log(sum(map(math.exp, scores)))
        assert row["probabilities"] == pytest.approx([math.exp(score - total) for score in scores], abs=1e-5)


def test_a_text_longer_than_the_context_loses_its_beginning(tiny_model, tiny_tokenizer) -> None:
    """The 64 tokens that end with the name's last but one are what the model reads, the same for prompts that differ before them."""
    end = "Seven ships sailed south; none came back before winter. "
    one, two = (
        score_classes(tiny_model, tiny_tokenizer, [begin * 20 + end * 3], [0], (" it", " so"))[0]
        for begin in ("zzz ", "vvv ")
    )
    assert one["probabilities"] == pytest.approx(two["probabilities"], abs=1e-5)
    assert one["doc"] != two["doc"]


def an_entry(tmp_path: Path, rows: list[dict], **changes) -> ClassesEntry:
    (tmp_path / "reviews.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    plain = {"prompt": "{text} is", "options": (" dull", " fine")}
    return ClassesEntry(suite="target", name="reviews", data=str(tmp_path / "reviews.jsonl"), **{**plain, **changes})


def test_the_figures(tiny_model, tiny_tokenizer, tmp_path: Path) -> None:
    entry = an_entry(tmp_path, [{"text": text, "label": i % 2} for i, text in enumerate(SENTENCES)])
    rows, metrics, primary, found = measure(
        tiny_model, tiny_tokenizer, entry, EvaluationPlan(), report=lambda done, total: None, partial=Partial(None)
    )
    assert primary == "class_perplexity"
    assert metrics["class_perplexity"].value == pytest.approx(math.exp(sum(row["nats"] for row in rows) / len(rows)))
    assert metrics["acc"].value == pytest.approx(sum(row["acc"] for row in rows) / len(rows))
    assert not metrics["class_perplexity"].higher_is_better and metrics["acc"].higher_is_better
    assert found["options"] == [" dull", " fine"]


@pytest.mark.parametrize(
    ("labels", "rows", "golds"),
    [
        ((), [0, 1, 1], [0, 1, 1]),
        ((), [0.0, 1.0, 1.0], [0, 1, 1]),
        ((), [False, True, True], [0, 1, 1]),
        ((), ["0", "1", "1"], [0, 1, 1]),
        (("neg", "pos"), ["pos", "neg", "neg"], [1, 0, 0]),
        (("1", "2"), [2, 1, 1], [1, 0, 0]),
        (("True", "False"), [True, False, False], [0, 1, 1]),
    ],
)
def test_labels_as_files_have_them(tmp_path: Path, labels, rows, golds) -> None:
    entry = an_entry(tmp_path, [{"text": f"thing {i}", "label": label} for i, label in enumerate(rows)], labels=labels)
    assert read_classes(entry) == ([f"thing {i} is" for i in range(3)], golds)


def test_labels_of_a_yaml_mapping(tmp_path: Path) -> None:
    import yaml

    from holdfast.evaluation.suite import parse_evaluation

    an_entry(tmp_path, [{"text": "thing", "wrong": flag} for flag in (True, False)])
    suite = 'target:\n  - {classes: reviews.jsonl, prompt: "{text} is", label: wrong, options: {true: " wrong", false: " right"}}\n'
    plan, problems = parse_evaluation(yaml.safe_load(suite), base_dir=tmp_path)
    assert problems == []
    assert read_classes(plan.entries[0])[1] == [0, 1]


def test_only_the_first_documents(tmp_path: Path) -> None:
    entry = an_entry(
        tmp_path,
        [{"text": f"thing {i}", "label": 0} for i in range(5)] + [{"text": "bad", "label": 9}],
        max_documents=2,
    )
    assert read_classes(entry) == (["thing 0 is", "thing 1 is"], [0, 0])


@pytest.mark.parametrize(
    ("rows", "changes", "says"),
    [
        (
            [{"text": "a", "stars": 1}],
            {},
            "has no column 'label' with the right class (it has text, stars). Name it with `label`.",
        ),
        ([{"body": "a", "label": 1}], {}, "names the column 'text', but "),
        ([{"text": "a", "label": 0}, {"text": "b", "label": 5}], {}, "1 of 2 rows of "),
        ([{"text": "a", "label": 0}, {"text": "b", "label": 5}], {}, "(row 1: '5'; expected 0, 1)"),
        ([{"text": "a", "label": None}, {"text": "a", "label": 0}], {}, "(row 0: 'None'; expected 0, 1)"),
        ([{"text": "a", "label": 0.5}], {}, "(row 0: '0.5'; expected 0, 1)"),
        ([{"text": "a", "label": "pos"}], {"labels": ("neg", "good")}, "(row 0: 'pos'; expected neg, good)"),
        ([{"text": "a", "label": 0}], {"prompt": "{text:d} is"}, "cannot be filled from row 0 of "),
        ([{"text": "a", "label": 0}], {"prompt": "{text.title} {text.nothing} is"}, "cannot be filled from row 0 of "),
    ],
)
def test_files_that_do_not_fit(tmp_path: Path, rows, changes, says: str) -> None:
    with pytest.raises(DataError) as caught:
        read_classes(an_entry(tmp_path, rows, **changes))
    assert says in str(caught.value)
    assert "reviews" in str(caught.value)


def test_a_name_longer_than_the_context(tiny_model, tiny_tokenizer) -> None:
    with pytest.raises(DataError, match="more than the model's context of 64"):
        score_classes(tiny_model, tiny_tokenizer, ["It is"], [0], (" fine", " zq" * 80))
