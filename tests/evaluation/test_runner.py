"""A plan on a run folder: what is written, what is kept, and what makes an evaluation another one."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from data_files import jsonl, text_rows
from evaluation.conftest import SENTENCES, make_model, make_tokenizer, parsed
from holdfast.evaluation import runner
from holdfast.evaluation.text import perplexity
from holdfast.models import Loaded
from holdfast.records.evaluation import Evaluation
from holdfast.records.run import RunFolder

START, RESULT = {"name": "tiny", "hash": "aaa"}, {"name": "tuned", "hash": "bbb"}


@pytest.fixture
def plan(tmp_path: Path, colour_task: Path):
    text_rows(tmp_path / "prose.jsonl", SENTENCES)
    answers = [{"question": f"How many ships, {s}?", "answer": s.split()[0]} for s in SENTENCES]
    jsonl(tmp_path / "answers.jsonl", answers)
    config = {
        "learn": [
            {"perplexity": "answers.jsonl", "prompt": "Question: {question}\nAnswer:", "completion": " {answer}"}
        ],
        "keep": ["prose.jsonl", {"task": str(colour_task), "limit": 6}],
        "batch_size": 4,
    }
    plan, problems = parsed(config, tmp_path)
    assert problems == []
    return plan


@pytest.fixture
def counted(monkeypatch):
    """Counts what is really computed."""
    calls: list[str] = []
    original = runner.measure

    def spy(entry, on):
        calls.append(f"{entry.suite}/{entry.name}")
        return original(entry, on)

    monkeypatch.setattr(runner, "measure", spy)
    return calls


def quiet() -> Console:
    return Console(file=io.StringIO())


def run(plan, folder: RunFolder, tokenizer, *, which="start", seed=0, identity=None, cache=None) -> list[Evaluation]:
    identity = identity or (START if which == "start" else RESULT)
    return runner.evaluate(
        Loaded(model=make_model(seed=seed), tokenizer=tokenizer, identity=identity),
        plan,
        folder=folder.evaluated(which),
        cache=cache,
        console=quiet(),
    )


def test_interrupted_evaluation_continues_with_the_next_entry(plan, tmp_path, tiny_tokenizer, counted, monkeypatch):
    folder = RunFolder(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(
            "holdfast.evaluation.tasks.harness.scores", lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            run(plan, folder, tiny_tokenizer)
    assert counted == ["keep/prose", "keep/colour_task"]
    counted.clear()
    assert len(run(plan, folder, tiny_tokenizer)) == 3
    assert counted == ["keep/colour_task", "learn/answers"]


@pytest.mark.parametrize("change", ["model", "data", "setting", "tokenizer", "task data"])
def test_what_decides_a_figure_decides_its_key(plan, tmp_path, tiny_tokenizer, counted, change):
    folder = RunFolder(tmp_path / "run")
    run(plan, folder, tiny_tokenizer)
    counted.clear()
    identity, tokenizer = START, tiny_tokenizer
    expected = {"keep/prose", "keep/colour_task", "learn/answers"}
    if change == "model":
        identity = {"name": "tiny", "hash": "ccc"}
    elif change == "data":
        (tmp_path / "prose.jsonl").write_text(json.dumps({"text": "Something else."}) + "\n")
        expected = {"keep/prose"}
    elif change == "setting":
        plan = dataclasses.replace(plan, batch_size=5)
        expected = {"keep/colour_task"}
    elif change == "tokenizer":
        tokenizer = make_tokenizer(chat=True)
    else:
        data = tmp_path / "colours.jsonl"
        data.write_text(data.read_text().replace("red", "green"))
        expected = {"keep/colour_task"}
    run(plan, folder, tokenizer, identity=identity)
    assert set(counted) == expected


def test_another_level_is_another_evaluation(plan, tmp_path, tiny_tokenizer, counted):
    """Intervals are part of what is kept: asked for at another level, they are formed anew."""
    folder = RunFolder(tmp_path / "run")
    wide, narrow = (run(dataclasses.replace(plan, confidence=c), folder, tiny_tokenizer) for c in (0.99, 0.5))
    assert len(counted) == 6
    for one, other in zip(wide, narrow, strict=True):
        for name, metric in one.metrics.items():
            again = other.metrics[name]
            assert (metric.confidence, again.confidence, again.value) == (0.99, 0.5, metric.value)
            low, high = metric.interval
            assert low <= again.interval[0] <= again.interval[1] <= high
        low, high = other.metrics[other.primary].interval
        assert high - low < one.metrics[one.primary].interval[1] - one.metrics[one.primary].interval[0]


def test_names_places_and_padding_do_not_decide(plan, tmp_path, counted):
    folder, tokenizer = RunFolder(tmp_path / "run"), make_tokenizer()
    run(plan, folder, tokenizer)
    (tmp_path / "moved").mkdir()
    (tmp_path / "prose.jsonl").rename(tmp_path / "moved" / "prose.jsonl")
    entries = [
        dataclasses.replace(e, data=str(tmp_path / "moved" / "prose.jsonl")) if e.name == "prose" else e
        for e in plan.entries
    ]
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer(SENTENCES, padding=True, truncation=True, max_length=5)
    counted.clear()
    run(dataclasses.replace(plan, entries=tuple(entries)), folder, tokenizer)
    assert counted == []


def test_cache_is_shared_between_runs_and_names(plan, tmp_path, tiny_tokenizer, counted):
    first = run(plan, RunFolder(tmp_path / "one"), tiny_tokenizer, cache=tmp_path / "cache")
    counted.clear()
    entries = (dataclasses.replace(plan.entries[0], suite="style", name="tone"), *plan.entries[1:])
    folder = RunFolder(tmp_path / "two")
    second = run(
        dataclasses.replace(plan, entries=entries),
        folder,
        tiny_tokenizer,
        cache=tmp_path / "cache",
        identity={**START, "name": "same"},
    )
    assert counted == []
    assert [e.metrics for e in second] == [e.metrics for e in first]
    assert (second[0].suite, second[0].name, second[0].model["name"]) == ("style", "tone", "same")
    assert folder.evaluated("start").samples("style", "tone") == RunFolder(tmp_path / "one").evaluated("start").samples(
        "keep", "prose"
    )
    assert folder.evaluated("start").find("style", "tone") == second[0]


def test_check_plan_finds_out_without_a_model(plan, tmp_path, tiny_tokenizer):
    assert runner.check_plan(plan, tiny_tokenizer) == []
    (tmp_path / "answers.jsonl").write_text(json.dumps({"frage": "a", "antwort": "b"}) + "\n")
    (tmp_path / "colours.jsonl").write_text(json.dumps({"q": "a", "options": ["x"]}) + "\n")
    problems = runner.check_plan(plan, tiny_tokenizer)
    assert len(problems) == 2
    assert problems[0].startswith("keep/colour_task: ")
    assert problems[1].startswith("learn/answers: ")
    assert "question" in problems[1]


def computed_tokens(monkeypatch, module, name) -> list[int]:
    counts: list[int] = []
    original = getattr(module, name)

    def spy(self_or_model, *args, **kwargs):
        counts.append(1)
        return original(self_or_model, *args, **kwargs)

    monkeypatch.setattr(module, name, spy)
    return counts


ALIKE = ("classes", "answers", "memorisation", "instructions")
"""Kinds that go on in their middle as one of the others does."""


@pytest.mark.parametrize(
    "kind", ["perplexity", "task", "choices", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ALIKE)]
)
def test_an_entry_goes_on_in_its_middle(kind, tmp_path, tiny_tokenizer, monkeypatch, colour_task):
    """Interrupted after some rows, the second run computes the others only, and comes to the same last digit."""
    from transformers import LlamaForCausalLM

    from holdfast.evaluation import resume
    from holdfast.evaluation.text import shared_prefix

    columns = {"options": [" a", " b"], "instruction_id_list": ["plain:capitals"], "kwargs": [{}]}
    texts = [
        {"text": f"{s} {i}", "prompt": f"{i} {s} {i}", "label": i % 2, "answer": i % 2, **columns}
        for i, s in enumerate(SENTENCES * 30)
    ]
    jsonl(tmp_path / "texts.jsonl", texts)
    letters = colour_task.with_name("letters.yaml")
    letters.write_text(
        colour_task.read_text()
        .replace("colour_task", "letters")
        .replace("doc_to_choice: options", 'doc_to_choice: ["A", "B"]')
    )
    rows = [
        {"q": f"Is thing number {i} with a rather long name red or blue?", "options": ["red", "blue"], "right": i % 2}
        for i in range(60)
    ]
    jsonl(tmp_path / "colours.jsonl", rows)
    entry = {
        "perplexity": {"perplexity": "texts.jsonl", "text": "{text}"},
        "memorisation": {"memorisation": "texts.jsonl", "text": "{text}"},
        "task": {"task": str(colour_task)},
        "answers": {"answer_distribution": str(letters)},
        "classes": {"classification": "texts.jsonl", "prompt": "{text} is", "options": [" dull", " fine"]},
        "choices": {"multiple_choice": "texts.jsonl"},
        "instructions": {"instructions": "texts.jsonl", "max_new_tokens": 2},
    }[kind]
    plan, problems = parsed({"keep": [entry]}, tmp_path)
    assert problems == []
    monkeypatch.setattr(resume.Partial.__init__, "__kwdefaults__", {"seconds": 0.0})
    places = {"perplexity": (perplexity, "score_row"), "memorisation": (perplexity, "score_row")}
    places["instructions"] = (LlamaForCausalLM, "generate")
    module, name = places.get(kind, (shared_prefix.Scorer, "states"))
    whole = computed_tokens(monkeypatch, module, name)
    expected = run(plan, RunFolder(tmp_path / "whole"), tiny_tokenizer)[0]
    count, folder, seen = len(whole), RunFolder(tmp_path / "cut"), 0
    assert count > 5
    original = getattr(module, name)

    def breaks(*args, **kwargs):
        nonlocal seen
        seen += 1
        if seen == count - 2:
            raise KeyboardInterrupt
        return original(*args, **kwargs)

    monkeypatch.setattr(module, name, breaks)
    with pytest.raises(KeyboardInterrupt):
        run(plan, folder, tiny_tokenizer)
    assert folder.evaluated("start").all() == []
    monkeypatch.setattr(module, name, original)
    whole.clear()
    again = run(plan, folder, tiny_tokenizer)[0]
    assert len(whole) <= 3 + 3, (
        "what was there is not computed again (up to three passes try whether rows can be shared)"
    )
    assert again.metrics == expected.metrics
    assert folder.evaluated("start").samples("keep", again.name) == RunFolder(tmp_path / "whole").evaluated(
        "start"
    ).samples("keep", again.name)
    assert not list(folder.evaluated("start").path.glob(".*"))
