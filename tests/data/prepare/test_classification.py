"""The overtraining study's classification data, in every published form."""

from __future__ import annotations

import io
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from data_files import jsonl, prepared, rows_of, text
from holdfast.data.prepare import classification
from holdfast.errors import DataError

FILES = {
    "quote.tok.gt9.5000": b"smart and alert , a gem .\ncaf\xe9 society , with charm .\n",  # latin-1
    "plot.tok.gt9.5000": "sam attempts to save celebi .\n",
    "rt-polarity.pos": "a line\u2028that is one sentence .\n",
    "rt-polarity.neg": "silly and tedious .\r\n\r\ndull .\r\n",
    "Canon.txt": "* Annotated by: Hu and Liu\n[t]a title\nsize[+2][u], weight[-1]##it is small .\n"
    "lens[-3]##it broke .\n"
    "##i bought it .\nflash[+1],zoom[-1]##so so .\nmenu[+]##clear .\n",
    "train_5500.label": "LOC:city What is the capital of Peru ?\nDESC:manner How do clouds form ?\n",
    "TREC_10.txt": "NUM:dist How far is it ?\n",
}
EXPECTED = {
    ("subj", "smart and alert , a gem ."): " subjective",
    ("subj", "caf\xe9 society , with charm ."): " subjective",
    ("subj", "sam attempts to save celebi ."): " objective",
    ("mr", "a line\u2028that is one sentence ."): " positive",
    ("mr", "silly and tedious ."): " negative",
    ("mr", "dull ."): " negative",
    ("cr", "it is small ."): " positive",
    ("cr", "it broke ."): " negative",
    ("cr", "clear ."): " positive",
    ("trec", "What is the capital of Peru ?"): " a place",
    ("trec", "How do clouds form ?"): " a description",
    ("trec", "How far is it ?"): " a number",
}


def found() -> dict[tuple[str, str], str]:
    rows = rows_of()
    assert all(r["completion"] == r["options"][r["answer"]] and r["prompt"].endswith("\nAnswer:") for r in rows)
    return {(r["task"], r["prompt"].split("\n")[0]): r["completion"] for r in rows}


def test_text_files() -> None:
    for name, content in FILES.items():
        text(name, content)
    record = prepared("classification", *FILES)
    assert found() == EXPECTED
    assert record["counts"]["records"] == 14 and record["counts"]["rows"] == 12
    assert record["counts"]["skipped"] == {"a sentence without an opinion": 1, "a sentence whose opinions cancel": 1}


def test_archives_of_them() -> None:
    with zipfile.ZipFile("all.zip", "w") as archive:
        archive.writestr("data/README.txt", "about")
        archive.writestr("__MACOSX/data/._x.pos", "no")
        for name, content in FILES.items():
            archive.writestr(f"data/{name}", content)
    prepared("classification", "all.zip")
    assert found() == EXPECTED


def test_tables() -> None:
    boolq = {"question": "is it red", "passage": "It is blue.", "answer": False}
    rows = [
        boolq,
        {**{k: v for k, v in boolq.items() if k != "answer"}, "passage": "It is red.", "label": 1, "idx": 3},
        {"premise": "A dog barks.", "hypothesis": "A dog.", "label": 0, "idx": 1},
        {"sentence1": "A cat sleeps.", "sentence2": "A dog.", "label": "not_entailment"},
        {"context": "She left.", "question": "Why?", "answerA": "a", "answerB": "b", "answerC": "c", "label": "3"},
        {"text": "Who was Galileo ?", "coarse_label": 3, "fine_label": 8},
        {"text": "What is NASA ?", "coarse_label": "ABBR"},
        {"text": "good day", "label": 2},
    ]
    prepared("classification", jsonl("a.jsonl", rows), task="tweets")
    assert found() == {
        ("boolq", "It is blue."): " No",
        ("boolq", "It is red."): " Yes",
        ("rte", "A dog barks."): " True",
        ("rte", "A cat sleeps."): " False",
        ("siqa", "She left."): " c",
        ("trec", "Who was Galileo ?"): " a person",
        ("trec", "What is NASA ?"): " an abbreviation",
        ("tweets", "good day"): " positive",
    }
    prompts = [r["prompt"] for r in rows_of()]
    assert "It is blue.\n\nQuestion: Is it red?\nAnswer:" in prompts
    assert "A dog barks.\n\nQuestion: A dog. True or False?\nAnswer:" in prompts


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"question": "a", "passage": "b", "answer": "yes"}, "'answer' is 'yes', expected true or false"),
        ({"premise": "a", "hypothesis": "b", "label": -1}, "'label' is -1, expected a number from 0 to 1"),
        ({"context": "a", "question": "b", "answerA": "x", "answerB": "y", "label": 1}, "no 'answerC'"),
        ({"context": "a", "question": "b", "answerA": "x", "answerB": "y", "answerC": "z", "label": 0}, "1, 2 or 3"),
        ({"text": "a", "coarse_label": "PLACE"}, "'label' is 'PLACE', expected a number from 0 to 5"),
        ({"text": "a", "label": 1}, "do not say which data set it is; add --task subj, mr, cr or tweets"),
        ({"sentence": "a"}, r"none of the known forms \(keys: sentence\)"),
    ],
)
def test_records_that_are_not_as_published(record: dict, words: str) -> None:
    with pytest.raises(DataError, match=words):
        prepared("classification", jsonl("a.jsonl", [record]))


@pytest.mark.parametrize(
    ("task", "names"), [("subj", classification.CLASSES["subj"]), ("mr", ("negative", "positive"))]
)
def test_a_text_and_a_label_are_what_is_said(task: str, names: tuple[str, str]) -> None:
    rows = [{"text": f"text {n}", "label": n, "label_text": "x"} for n in (0, 1)]
    prepared("classification", jsonl("a.jsonl", rows), task=task)
    assert found() == {(task, f"text {n}"): f" {names[n]}" for n in (0, 1)}
    with pytest.raises(DataError, match="expected a number from 0 to 1"):
        prepared("classification", jsonl("b.jsonl", [{"text": "a", "label": 2}]), task=task, output="b.out.jsonl")


def test_truth_as_csv_has_it() -> None:
    prepared("classification", text("a.csv", "question,passage,answer\nis it,Red.,True\nis it,Blue.,False\n"))
    assert found() == {("boolq", "Red."): " Yes", ("boolq", "Blue."): " No"}


def test_text_that_is_none_of_these_data_sets() -> None:
    with pytest.raises(DataError, match=r"notes.txt: expected quote\.\*, plot\.\*, .*SUBJ, MR, CR or TREC"):
        prepared("classification", text("notes.txt", "Dear diary,\n"))
    with pytest.raises(DataError, match="the class is 'PLACE', expected one of ABBR"):
        prepared("classification", text("a.label", "PLACE:city Where ?\n"))


def test_archives_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.pos", "good . " * 300 + "\n")
    with pytest.raises(DataError, match=r"expected a \.zip archive that can be read"):
        prepared("classification", text("cut.zip", held.getvalue()[:-40]))
    monkeypatch.setattr(classification, "MOST_BYTES", 1000)
    with pytest.raises(DataError, match="at most 0 MiB of text in an archive"):
        prepared("classification", text("bomb.zip", held.getvalue()))


def test_the_rows_are_the_papers_measure() -> None:
    """`classes` reads them: each class's name by its mean log-likelihood."""
    from holdfast.evaluation.suite import parse_evaluation
    from holdfast.evaluation.text.choices import read_choices
    from holdfast.evaluation.text.classes import read_classes
    from tiny import build_tokenizer

    for name in ("quote.tok.gt9.5000", "plot.tok.gt9.5000"):
        text(name, FILES[name])
    prepared("classification", "quote.tok.gt9.5000", "plot.tok.gt9.5000", output="subj.jsonl")
    classes = {
        "classes": "subj.jsonl",
        "prompt": "{prompt}",
        "options": [" objective", " subjective"],
        "label": "answer",
    }
    plan, problems = parse_evaluation({"target": [classes, {"choices": "subj.jsonl", "name": "asked"}]})
    assert not problems
    prompts, golds = read_classes(plan.entries[0])
    assert Counter(golds) == {0: 1, 1: 2} and all(p.endswith("\nAnswer:") for p in prompts)
    assert len(read_choices(plan.entries[1], build_tokenizer())) == 3


@pytest.mark.shared_data
def test_the_real_files(shared_data: Path) -> None:
    counts = {}
    for name in ("subjectivity", "sentence_polarity", "product_reviews_1"):
        prepared("classification", shared_data / "classification" / f"{name}.zip", output=f"{name}.jsonl")
        counts[name] = Counter(r["completion"].strip() for r in rows_of(f"{name}.jsonl"))
    assert counts["subjectivity"] == {"objective": 5000, "subjective": 5000}
    assert counts["sentence_polarity"] == {"negative": 5331, "positive": 5331}
    assert sum(counts["product_reviews_1"].values()) == 1718 and counts["product_reviews_1"]["positive"] > 1000
    for name, rows in (("hf_boolq_validation", 3270), ("hf_social_i_qa_validation", 1935)):
        prepared("classification", shared_data / "eval_sets" / f"{name}.jsonl.gz", output=f"{name}.jsonl")
        assert len(rows_of(f"{name}.jsonl")) == rows
