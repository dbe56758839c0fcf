"""Text that a model writes itself: as much of it as a selection needs, the same each time, and what is refused."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ConfigError, ModelError
from holdfast.models import Loaded, load
from holdfast.runs.generated_text import write_generated
from holdfast.runs.selecting import Selection, select
from holdfast.support.files import read_jsonl


@pytest.fixture(scope="module")
def loaded(model_folder: Path) -> Loaded:
    return load(str(model_folder), device="cpu")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    return tmp_path


def selection(place: Path, **changes: Any) -> Selection:
    corpus = place / "generated.jsonl"
    corpus.touch()
    settings: dict[str, Any] = {
        "model": "base",
        "input": (corpus,),
        "output": place / "texts",
        "tokens": 1500,
        "probing": 10,
        "max_length": 32,
        "minimum_tokens": 8,
    }
    return Selection(**{**settings, **changes})


def test_a_selection_has_enough_of_it_and_takes_nearly_all(loaded: Loaded, place: Path) -> None:
    request = selection(place, batch_tokens=64)
    record = write_generated(request, loaded, place / "generated.jsonl")
    texts = [row["text"] for row in read_jsonl(place / "generated.jsonl")]
    assert len(texts) == record["texts"] and len(set(texts)) == len(texts)
    assert (record["temperature"], record["seed"], record["begins_after"]) == (1.0, 0, loaded.tokenizer.eos_token)
    counts = select(request, loaded=loaded).record["counts"]
    assert counts["probing"]["passages"] == 10
    assert 1500 - 32 < counts["restoring"]["tokens"] <= 1500
    used = counts["restoring"]["tokens"] + counts["probing"]["tokens"]
    assert record["batch_size"] == 2
    assert record["tokens"] - used <= 0.01 * 1500 + 10 * 32 + 3 * 32 * 2, "little more is drawn, a batch at most"


def test_it_is_drawn_once_and_another_seed_draws_anew(
    loaded: Loaded, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.runs import generated_text

    first = write_generated(selection(place), loaded, place / "one.jsonl")
    other = write_generated(selection(place, seed=1), loaded, place / "other.jsonl")
    assert other["samples"] != first["samples"]
    assert (place / "other.jsonl").read_text() != (place / "one.jsonl").read_text()

    def never(*words: Any, **more: Any) -> Any:
        raise AssertionError("it is in the cache")

    monkeypatch.setattr(generated_text, "continued", never)
    assert write_generated(selection(place), loaded, place / "again.jsonl") == first
    assert (place / "again.jsonl").read_text() == (place / "one.jsonl").read_text()


def test_self_replay_with_the_same_settings_finds_the_same_samples(loaded: Loaded, place: Path) -> None:
    """The key of the cache is that of `retention.methods.self_replay`."""
    from holdfast.training.data_services import StartModel

    record = write_generated(selection(place), loaded, place / "one.jsonl")
    assert record["start"] == StartModel(loaded.model, adapter=None, first=True).key
    assert (place / "cache" / "self_replay" / record["samples"] / "samples.jsonl").is_file()


def test_texts_that_hold_a_question_are_not_counted_where_they_are_dropped(
    loaded: Loaded, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of what the model writes holds the question: twice as much has to be drawn."""
    from holdfast.generation import Continued
    from holdfast.runs import generated_text

    question = "one two three four five six seven eight nine ten eleven twelve thirteen"
    written = itertools.count()

    def sentences(model: Any, tokenizer: Any, prompts: Any, **more: Any) -> list[Continued]:
        numbers = [next(written) for _ in prompts]
        texts = [f"{question if number % 2 else 'no question'} {number}" for number in numbers]
        return [Continued(ids=tokenizer(text)["input_ids"], ended=False) for text in texts]

    monkeypatch.setattr(generated_text, "continued", sentences)
    (place / "questions.txt").write_text(f"{question}\n")
    asked = {"questions": (place / "questions.txt",), "max_length": 96, "minimum_tokens": 2, "probing": 2}
    kept = write_generated(selection(place, **asked, tokens=300), loaded, place / "generated.jsonl")
    request = selection(place, **asked, tokens=300, seed=1, overlap="drop")
    dropped = write_generated(request, loaded, place / "generated.jsonl")
    assert dropped["drawn"] > kept["drawn"]
    texts = [row["text"] for row in read_jsonl(place / "generated.jsonl")]
    assert texts and not any("thirteen" in text for text in texts)
    assert select(request, loaded=loaded).record["counts"]["restoring"]["tokens"] > 0


def test_a_model_that_says_the_same_again_and_again_is_refused(
    loaded: Loaded, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.generation import Continued
    from holdfast.runs import generated_text

    def same(model: Any, tokenizer: Any, prompts: Any, **more: Any) -> list[Continued]:
        return [Continued(ids=[*range(70, 86)], ended=False) for _ in prompts]

    monkeypatch.setattr(generated_text, "continued", same)
    with pytest.raises(ModelError, match=r"only 1 of 2\d\d texts are usable"):
        write_generated(selection(place), loaded, place / "generated.jsonl")


def test_a_tokenizer_without_a_beginning_or_an_end_is_refused(
    loaded: Loaded, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.runs import generated_text

    monkeypatch.setattr(generated_text, "beginning_token", lambda *words: None)
    with pytest.raises(ConfigError, match="Give files of text like the base's pre-training"):
        write_generated(dataclasses.replace(selection(place)), loaded, place / "generated.jsonl")
