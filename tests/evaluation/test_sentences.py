"""IFEval's sentences without NLTK's data: our own list takes its place, says so, and counts ordinary prose alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.evaluation.kinds.task import TaskEntry
from holdfast.evaluation.text import sentences

TEXT = "Dr. Smith met Mr. Jones at 5 p.m. in Washington. They spoke, e.g. about ships! Did they agree? No."
COUNTED = 4


@pytest.fixture
def without_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No data of NLTK's anywhere, and a cache folder of our own."""
    import nltk.data

    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path / "nothing")])
    return tmp_path


def count(text: str) -> int:
    """As the harness counts: its tokenizer is kept once it is loaded, so that it is loaded anew here."""
    from nltk.tokenize.punkt import PunktTokenizer

    return len(PunktTokenizer("english").tokenize(text))


def test_our_own_list_takes_the_place_of_nltks(without_data: Path) -> None:
    with pytest.raises(LookupError):
        count(TEXT)
    assert sentences.sentence_model() == sentences.OWN
    assert sentences.provide_sentence_model() == sentences.OWN
    assert count(TEXT) == COUNTED
    assert count("One. Two. Three.") == 3
    assert sentences.sentence_model() == sentences.OWN, "what we provide is not taken for NLTK's own"


def test_it_is_provided_once(without_data: Path) -> None:
    import nltk.data

    sentences.provide_sentence_model()
    files = {path: path.stat().st_mtime_ns for path in without_data.rglob("*.t*")}
    assert files and all(path.is_relative_to(without_data / "cache") for path in files)
    sentences.provide_sentence_model()
    assert {path: path.stat().st_mtime_ns for path in files} == files
    assert nltk.data.path.count(str(without_data / "cache" / "nltk_data")) == 1


def test_nltks_own_is_used_where_it_is(without_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nltk.data

    (without_data / "nothing" / "tokenizers" / "punkt_tab" / "english").mkdir(parents=True)
    assert sentences.sentence_model() == "nltk punkt_tab"
    assert sentences.provide_sentence_model() == "nltk punkt_tab"
    assert nltk.data.path == [str(without_data / "nothing")]
    assert not (without_data / "cache").exists()


def test_which_was_used_decides_the_key_of_ifeval_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.evaluation import runner

    ifeval, arc = (TaskEntry(suite="learn", name=task, task=task) for task in ("ifeval", "arc_easy"))
    found = []
    for model in ("nltk punkt_tab", sentences.OWN):
        monkeypatch.setattr(sentences, "sentence_model", lambda model=model: model)
        found.append([runner._versions(entry) for entry in (ifeval, arc)])
    assert found[0][0]["sentences"] == "nltk punkt_tab"
    assert found[0][0] != found[1][0]
    assert found[0][1] == found[1][1]
