"""A selection with a made-up score: what is cut, dropped, chosen and written, what resumes, and every bad input."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest

from data_files import jsonl, rows_of, text
from holdfast.data.select.overlap import Questions
from holdfast.data.select.passages import Passages, cut
from holdfast.data.select.request import LEDGER, PROBING, RESTORING, Choice, CorpusFiles
from holdfast.data.select.run import DUPLICATE, OVERLAPPING, select_from_files
from holdfast.data.select.scores import Scorer, batches
from holdfast.errors import ConfigError, DataError, NotFinite
from holdfast.support.files import read_json
from holdfast.support.ledger import stream_ledger

WORDS = "the quick brown fox jumps over lazy dogs while names refer to objects and lists hold values of many kinds"


def document(seed: int, words: int = 60) -> str:
    rng = random.Random(seed)
    return " ".join(f"{rng.choice(WORDS.split())}{rng.randrange(99)}" for _ in range(words))


def nats_of(ids: Any) -> float:
    return round(1 + (sum(ids) % 1000) / 250, 6)


class Counted:
    """A score that counts the passages it has seen, and may fail at one of them."""

    def __init__(self, *, fail_at: int | None = None) -> None:
        self.seen: list[tuple[int, ...]] = []
        self.calls: list[int] = []
        self.fail_at = fail_at

    def __call__(self, rows: Any) -> list[float]:
        if self.fail_at is not None and len(self.seen) >= self.fail_at:
            raise KeyboardInterrupt
        self.seen += [tuple(row) for row in rows]
        self.calls.append(len(rows))
        return [nats_of(row) for row in rows]


@pytest.fixture
def scorer(tokenizer) -> Scorer:
    return Scorer(tokenizer=tokenizer, score=Counted(), identity={"name": "made up", "hash": "1"}, batch_tokens=512)


def choice(**more: Any) -> Choice:
    return Choice(**{"tokens": 1000, "probing": 5, "max_length": 128, "minimum_tokens": 16, **more})


def selected(scorer: Scorer, documents: Any = None, output: str = "out", **more: Any) -> dict[str, Any]:
    return select(scorer, documents, output, **more).record


def select(scorer: Scorer, documents: Any = None, output: str = "out", scores: Path | None = None, **more: Any) -> Any:
    documents = [(document(n), f"d{n}") for n in range(60)] if documents is None else documents
    jsonl("documents.jsonl", [{"text": text, "source": source} for text, source in documents])
    files = CorpusFiles(input=(Path("documents.jsonl"),), output=Path(output))
    return select_from_files(files, choice(**more), scorer, scores=scores)


# -------------------------------------------------------------------------------------------------------------- cutting


def test_passages_are_parts_of_one_document_that_fit(tokenizer):
    texts = [
        "",
        "One.",
        document(1, 30),
        "\n".join(document(n, 40) for n in range(9)),
        "x" * 3000,
        "字" * 900,
        "🙂" * 300,
    ]
    for own, found in zip(texts, cut(texts, tokenizer, 100), strict=True):
        assert all(0 < len(p.ids) <= 100 or not own for p in found)
        assert all(list(p.ids) == tokenizer(p.text, add_special_tokens=False)["input_ids"] for p in found)
        assert "".join("".join(p.text.split()) for p in found) == "".join(own.split()), "nothing is lost"
    lines = [document(n, 5) for n in range(40)]
    found = cut(["\n".join(lines)], tokenizer, 120)[0]
    assert [line for p in found for line in p.text.split("\n")] == lines, "cut at line breaks"
    assert cut([], tokenizer, 100) == []


def test_batches_hardly_pad_and_do_not_depend_on_the_order_of_reading(tokenizer, tmp_path):
    own = [p for n in range(80) for p in cut([document(n, 5 + n % 50)], tokenizer, 128)[0]]

    def planned(order: list[int]) -> list[list[tuple[int, ...]]]:
        folder = tmp_path / str(order[0])
        folder.mkdir()
        with Passages(folder) as passages:
            assert all(passages.add(own[n], source="s", document=n) for n in order)
            return [[tuple(passages.ids(i)) for i in b] for b in batches(passages, 512)]

    found = planned(list(range(len(own))))
    assert found == planned(list(reversed(range(len(own)))))
    assert sorted(p for b in found for p in b) == sorted(tuple(p.ids) for p in own)
    assert all(len(b) == 1 or len(b) * len(b[0]) <= 512 for b in found)
    padded, real = sum(len(b) * len(b[0]) for b in found), sum(len(p) for b in found for p in b)
    assert padded < 1.12 * real


# ------------------------------------------------------------------------------------------------------------- choosing


def test_the_lowest_fill_the_budget_and_the_sample_shares_no_document(scorer):
    documents = [(document(n, 200), f"d{n}") for n in range(40)]
    record = selected(scorer, documents, tokens=2000, probing=10)
    restoring, probing = rows_of("out/restoring.jsonl"), rows_of("out/probing.jsonl")
    assert all(list(row) == ["text", "nats_per_token", "tokens", "source"] for row in restoring + probing)
    assert len(probing) == 10 and not {r["source"] for r in restoring} & {r["source"] for r in probing}
    nats = [row["nats_per_token"] for row in restoring]
    assert nats == sorted(nats) and 2000 - 128 < sum(row["tokens"] for row in restoring) <= 2000
    for row in restoring + probing:
        ids = scorer.tokenizer(row["text"], add_special_tokens=False)["input_ids"]
        assert row["tokens"] == len(ids) and row["nats_per_token"] == nats_of(ids)
    others = [
        p
        for d, name in documents
        for p in cut([d], scorer.tokenizer, 128)[0]
        if name not in {r["source"] for r in probing}
    ]
    left = sorted(nats_of(p.ids) for p in others if len(p.ids) >= 16)
    assert nats == left[: len(nats)], "nothing lower was left behind"
    counts = record["counts"]
    assert counts["restoring"]["tokens"] == sum(row["tokens"] for row in restoring)
    predicted = [row["tokens"] - 1 for row in probing]
    mean = sum(r["nats_per_token"] * n for r, n in zip(probing, predicted, strict=True)) / sum(predicted)
    assert counts["probing"]["nats_per_token"] == pytest.approx(mean, abs=1e-6)


def test_the_sample_is_random_by_the_seed_and_may_share_documents(scorer):
    documents = [(document(n, 300), f"d{n}") for n in range(8)]
    with pytest.raises(
        DataError,
        match=r"are missing \([\d,]+ are in the probing set, [\d,]+ are from the same documents\).*disjoint: passages",
    ):
        selected(scorer, documents, tokens=4000, probing=12)
    selected(scorer, documents, tokens=4000, probing=12, disjoint="passages")
    first = {row["text"] for row in rows_of("out/probing.jsonl")}
    assert not first & {row["text"] for row in rows_of("out/restoring.jsonl")}
    selected(scorer, documents, "two", tokens=4000, probing=12, disjoint="passages", seed=1)
    selected(scorer, documents[::-1], "three", tokens=4000, probing=12, disjoint="passages")
    assert first != {row["text"] for row in rows_of("two/probing.jsonl")}
    assert Path("three/probing.jsonl").read_bytes() == Path("out/probing.jsonl").read_bytes(), "whatever the order"
    assert Path("three/restoring.jsonl").read_bytes() == Path("out/restoring.jsonl").read_bytes()


# -------------------------------------------------------------------------------------------------------------- overlap


def test_passages_with_questions_are_said_and_dropped_on_request(scorer):
    asked = document(900, 20)
    options = [document(901, 7), document(902, 7)]
    jsonl("q.jsonl", [{"question": asked, "choices": {"text": options}}, {"question": "Too short?"}])
    documents = [(document(n), f"d{n}") for n in range(60)]
    documents[3] = (f"{document(3, 10)} {asked.title().replace(' ', ',  ')} {document(4, 10)}", "has it")
    documents[7] = (f"{document(7, 30)} {options[0]} {options[1]} more", "has the options")
    kept = selected(scorer, documents, questions=(Path("q.jsonl"),), max_length=1000, tokens=3000)
    assert kept["counts"]["overlapping"] == kept["counts"]["all"]["overlapping"] == 2
    assert kept["questions"] == {"files": ["q.jsonl"], "count": 1, "short": 1}
    dropped = selected(
        scorer, documents, "two", questions=(Path("q.jsonl"),), max_length=1000, overlap="drop", tokens=3000
    )
    assert (
        dropped["counts"]["skipped"][OVERLAPPING] == kept["counts"]["overlapping"] == dropped["counts"]["overlapping"]
    )


def test_thirteen_words_in_a_row_and_not_twelve():
    words = [f"w{n}" for n in range(13)]
    text("q.txt", " ".join(words) + "\n\nshort one\n")
    found = Questions([Path("q.txt")])
    assert (found.count, found.short) == (1, 1)
    assert found.overlap("before " + ", ".join(words).upper() + " after") and not found.overlap(" ".join(words[:12]))
    assert not Questions([]).overlap(" ".join(words))
    text("bad.jsonl", '{"a": 1}\nnot json\n')
    with pytest.raises(DataError, match=r"1 of 2 questions are malformed(.|\n)*line 2"):
        Questions([Path("bad.jsonl")])


# ----------------------------------------------------------------------------------------------------------- resumption


def test_what_was_scored_is_not_scored_again_and_the_bytes_are_the_same(scorer):
    selected(scorer)
    whole = {p.name: p.read_bytes() for p in Path("out").iterdir() if p.name in (RESTORING, PROBING, "README.md")}
    first = Counted(fail_at=20)
    with pytest.raises(KeyboardInterrupt):
        selected(dataclasses.replace(scorer, score=first), output="two")
    assert read_json("two/selection.json")["status"] == "scoring" and not Path("two", RESTORING).exists()
    with open(Path("two", LEDGER), "ab") as file:
        file.write(b'{"key": "torn')
    second = Counted()
    selected(dataclasses.replace(scorer, score=second), output="two")
    assert {name: Path("two", name).read_bytes() for name in whole} == whole
    assert len(first.seen) >= 20 and not set(first.seen) & set(second.seen)
    assert sorted(first.seen + second.seen) == sorted(scorer.score.seen)
    assert not [p for p in Path("two").iterdir() if p.name.startswith(".")]
    third = Counted()
    assert select(dataclasses.replace(scorer, score=third), output="two").done_before and not third.seen


def test_scores_are_shared_by_requests_but_not_by_models(scorer):
    documents = [(document(n), f"d{n}") for n in range(60)]

    def count(output: str, identity: str, own: Any, **more: Any) -> int:
        score = Counted()
        other = dataclasses.replace(scorer, score=score, identity={"hash": identity})
        select(other, own, output, Path("scores.jsonl"), **more)
        return len(score.seen)

    every = count("a", "1", documents)
    assert every >= 60 and count("b", "1", documents, tokens=2000) == 0
    assert 0 < count("c", "1", [*documents, (document(1000, 30), "new")]) <= 2
    assert count("d", "2", documents) == every
    keys = [name for row in stream_ledger("scores.jsonl") for name in row["passages"]]
    assert len(keys) == len(set(keys))


# ------------------------------------------------------------------------------------------------------------ bad input


def test_a_corpus_that_is_too_small_says_how_much_is_missing_before_anything_is_scored(scorer):
    with pytest.raises(
        DataError,
        match=r"Expected 10,000,000 tokens .*, but the corpus has only [\d,]+ in \d+ passages: 9,9[\d,]+ are missing",
    ):
        selected(scorer, tokens=10_000_000)
    with pytest.raises(
        DataError, match=r"Expected 10,000 probing passages, but the corpus has only \d+: 9,\d+ are missing"
    ):
        selected(scorer, probing=10_000)
    with pytest.raises(DataError, match=r"No passage fits into 5 tokens: the shortest has \d+"):
        selected(scorer, tokens=5)
    assert scorer.score.seen == [] and not Path("out").exists()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_score_that_is_no_number_names_the_passage(scorer, value):
    def score(rows):
        return [value if nats_of(r) > 4.5 else nats_of(r) for r in rows]

    with pytest.raises(
        NotFinite, match=rf"a passage of d\d+ \(\d+ tokens, beginning with '.*'\) a log-likelihood of {value}.*float32"
    ):
        selected(dataclasses.replace(scorer, score=score))
    assert not Path("out", RESTORING).exists()


@pytest.mark.parametrize(
    ("more", "explained"),
    [
        ({"tokens": 0}, "tokens: expected a whole number of at least 1"),
        ({"minimum_tokens": 200}, r"minimum_tokens: expected at most max_length \(128\), got 200"),
        ({"overlap": "drop"}, "no file of questions is given"),
        ({"questions": (Path("q.jsonl"),)}, r"questions: expected a file at q\.jsonl, found nothing"),
    ],
)
def test_mistakes_of_a_request(scorer, more, explained):
    with pytest.raises(ConfigError, match=explained):
        selected(scorer, **more)


# ---------------------------------------------------------------------------------------------------------------- files


def corpus(*inputs: str, **more: Any) -> CorpusFiles:
    return CorpusFiles(input=tuple(Path(i) for i in inputs), output=Path("out"), **more)


def test_every_kind_of_file_and_broken_records_are_counted(scorer):
    import pyarrow as pa
    import pyarrow.parquet as pq

    jsonl("in/a.jsonl", [{"text": document(n), "url": f"u{n}"} for n in range(20)])
    pq.write_table(pa.Table.from_pylist([{"text": document(n)} for n in range(20, 40)]), "in/b.parquet")
    text("in/c.txt", document(40))
    pages = [json.dumps({"text": document(n)}) for n in range(41, 60)]
    text("in/d.jsonl", "\n".join([*pages, '{"text": 3}', "no JSON", pages[0]]) + "\n")
    text("in/e.txt", b"caf\xe9 " * 30)
    found = select_from_files(corpus("in"), choice(), scorer)
    counts = found.record["counts"]
    assert counts["records"] == 64 and counts["malformed"] == 3 and counts["skipped"][DUPLICATE] >= 1
    assert counts["kinds"] == {"rows": 3, "text": 2}
    assert any("got byte 0xe9" in place for place in found.record["malformed_places"])
    with pytest.raises(DataError, match="3 of 64 records are malformed, more than --most_malformed"):
        select_from_files(dataclasses.replace(corpus("in", most_malformed=0.01), output=Path("two")), choice(), scorer)
