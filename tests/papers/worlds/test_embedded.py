"""The embedded corpus: the same each time, disjoint splits, enough held-out pieces; and a tokenizer that can write
anything."""

import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import ConfigError, DataError
from holdfast.papers.worlds import embedded
from holdfast.papers.worlds.embedded import cut, embedded_corpus, train_tokenizer


@pytest.fixture(scope="module")
def corpus():
    return embedded_corpus()


@pytest.fixture(scope="module")
def splits(corpus):
    return {name: getattr(corpus, name) for name in (*embedded.PROSE_SHARES, *embedded.CODE_SHARES)}


def test_sizes(splits):
    sizes = {name: sum(map(len, pieces)) for name, pieces in splits.items()}
    assert sizes["prose_train"] > 200_000
    assert sizes["code_train"] > 2_000_000
    for kind in (embedded.PROSE_SHARES, embedded.CODE_SHARES):
        total = sum(sizes[name] for name in kind)
        for name, share in kind.items():
            assert sizes[name] / total == pytest.approx(share, abs=0.02), name
    for name, pieces in splits.items():
        assert len(pieces) >= 100, f"{name}: a paired bootstrap needs a hundred documents"
        assert all(piece.strip() and len(piece) <= embedded.PIECE_CHARACTERS for piece in pieces)
        assert len(set(pieces)) == len(pieces)


def test_splits_share_no_text(splits):
    def long_paragraphs(pieces):
        plain = (" ".join(p.split()) for piece in pieces for p in piece.split("\n\n"))
        return {p for p in plain if len(p) >= 2 * embedded.SHORT_TEXT}

    for held_out in ("prose_heldout", "code_heldout"):
        held = long_paragraphs(splits[held_out])
        assert len(held) > 100
        for name, pieces in splits.items():
            if name != held_out:
                assert not set(pieces) & set(splits[held_out])
                assert len(held & long_paragraphs(pieces)) <= 0.002 * len(held), name


def test_the_same_in_another_process(corpus, tmp_path):
    program = "from holdfast.papers.worlds.embedded import embedded_corpus as e; print(e().sha256, e().python)"
    out = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "7"},
        cwd=tmp_path,
    )
    assert out.stdout.split() == [corpus.sha256, corpus.python]


def test_repeated_sections_are_kept_once():
    shared = "A long paragraph that the reference repeats, with other indentation, in another topic of its own."
    documents = {"a": f"Title\n\n{shared}\n\nOnly a.\n", "b": f"Title\n\n   {shared}\n\n\nOnly b.\n"}
    assert embedded._without_repeats(documents) == {"a": documents["a"], "b": "Title\n\nOnly b.\n"}


def test_missing_parts_are_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pydoc_data", None)
    with pytest.raises(DataError, match="pydoc_data"):
        embedded._prose_documents()
    monkeypatch.setattr(embedded.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    with pytest.raises(DataError, match="found 0 modules"):
        embedded._code_documents()


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="ab \n.def@:", max_size=300), st.integers(1, 60))
def test_cut_loses_nothing(text, limit):
    pieces = cut(text, embedded._CODE_BORDERS, limit)
    assert "".join(pieces) == text
    assert all(0 < len(piece) <= limit for piece in pieces)


# ------------------------------------------------------------------------------------------------------------ tokenizer


def test_tokenizer_round_trip(corpus, tmp_path):
    from transformers import AutoTokenizer

    tokenizer = train_tokenizer(corpus.prose_train[:60], vocab_size=600, special_tokens=["<|user|>"])
    text = "Naïve  “text”\n\twith 日本, emoji 🦉 , and odd  spaces ."
    ids = tokenizer(text).input_ids
    assert tokenizer.decode(ids) == text
    assert len(tokenizer) == 600
    assert (tokenizer.eos_token, tokenizer.eos_token_id, tokenizer.pad_token_id) == ("<|endoftext|>", 0, 1)
    assert tokenizer("<|user|>a").input_ids[0] == 2
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded(text).input_ids == ids
    assert loaded.decode(ids) == text
    assert loaded.pad_token_id == 1


def test_tokenizer_errors():
    with pytest.raises(ConfigError, match="expected at least 258"):
        train_tokenizer(["a"], vocab_size=100)
    with pytest.raises(DataError, match="none"):
        train_tokenizer(["", ""], vocab_size=300)
    assert len(train_tokenizer(["aaaa"], vocab_size=10_000)) < 300
