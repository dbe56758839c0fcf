"""`holdfast compare --prompts`: own prompts answered by both models, side by side, whatever names the models."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data_files import jsonl
from holdfast.cli.main import main
from holdfast.support.files import read_json
from tiny import build_model

CHAT = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
HOSTILE = "<script>alert('base')</script> & **what**?"
PROMPTS = [
    {"prompt": HOSTILE},
    {
        "messages": [
            {"role": "user", "content": "Say A."},
            {"role": "assistant", "content": "A"},
            {"role": "user", "content": "Say B."},
        ]
    },
    {"prompt": "What is four and four?"},
]


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    """Two models with chat templates, one without, and what was measured of the first two."""
    import copy

    folder = tmp_path_factory.mktemp("prompts")
    chat, bare = copy.deepcopy(tokenizer), copy.deepcopy(tokenizer)
    chat.chat_template, bare.chat_template = CHAT, None
    for name, seed, reads in (("base", 0, chat), ("tuned", 3, chat), ("bare", 3, bare)):
        build_model(seed=seed).save_pretrained(folder / name)
        reads.save_pretrained(folder / name)
    jsonl(folder / "prose.jsonl", [{"text": f"The quick brown fox {i} jumps over the lazy dog."} for i in range(6)])
    jsonl(folder / "mine.jsonl", PROMPTS)
    words = ["evaluate", "base", "tuned", "--perplexity", "prose.jsonl", "--output_dir", "out"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(words) == 0
    return folder


@pytest.fixture
def desk(material: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(material, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_DEBUG", "")
    return tmp_path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Which models were loaded."""
    from holdfast import models

    seen = SimpleNamespace(loaded=[])
    load = models.load

    def spy(name: str, **rest: Any) -> Any:
        seen.loaded.append(Path(name).name)
        return load(name, **rest)

    monkeypatch.setattr(models, "load", spy)
    return seen


def compare(*words: str, code: int = 0) -> None:
    assert main(["compare", *words, "--max_new_tokens", "8", "--output_dir", "compared"]) == code


def generated(model: str, prompt: str) -> str:
    """What transformers' own greedy search makes of a prompt, as the reference."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    with torch.no_grad():
        out = AutoModelForCausalLM.from_pretrained(model).generate(ids, max_new_tokens=8, do_sample=False)
    return tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)


def test_two_models_answer_and_nothing_is_judged(
    desk: Path, asked: SimpleNamespace, capsys: pytest.CaptureFixture
) -> None:
    compare("base", "tuned", "--prompts", "mine.jsonl")
    found = read_json("compared/comparison.json")
    assert found["labels"] == ["base", "tuned"] and found["comparisons"] == [] and found["verdict"] is None
    answers = found["answers"]
    assert (answers["file"], answers["max_new_tokens"], answers["chat_template"]) == ("mine.jsonl", 8, True)
    assert [p["messages"][-1]["content"] for p in answers["prompts"]] == [HOSTILE, "Say B.", "What is four and four?"]
    for side, model in (("before", "base"), ("after", "tuned")):
        expected = generated(model, "user: What is four and four?\nassistant: ")
        assert answers["prompts"][2][side]["text"] == expected, "greedy, in the chat template"
    said = " ".join(capsys.readouterr().out.split())
    assert "3 prompts of mine.jsonl, answered by both models" in said and "The answers are not judged." in said
    assert "base and tuned were not measured, so only answers are shown" in said
    page = (desk / "compared" / "comparison.html").read_text()
    assert "<h2>Your prompts</h2>" in page and "<h2>Before and after</h2>" not in page
    assert "&lt;script&gt;alert(&#x27;base&#x27;)&lt;/script&gt;" in page and "<script>alert" not in page
    assert re.search(r"assistant</strong>: A", page), "earlier turns are shown"
    assert asked.loaded == ["base", "tuned"]
    asked.loaded.clear()
    compare("base", "tuned", "--prompts", "mine.jsonl")
    assert asked.loaded == [], "what was answered is not asked again"


def test_measured_folders_are_compared_and_their_models_asked(desk: Path, asked: SimpleNamespace) -> None:
    compare("out", "--prompts", "mine.jsonl")
    found = read_json("compared/comparison.json")
    assert [c["name"] for c in found["comparisons"]] == ["prose"] and found["labels"] == ["base", "tuned"]
    assert len(found["answers"]["prompts"]) == 3 and asked.loaded == ["base", "tuned"]
    page = (desk / "compared" / "comparison.html").read_text()
    assert "<h2>Your prompts</h2>" in page and "<h2>Before and after</h2>" in page
    assert not list((desk / "out").rglob("prompts.*")), "what was measured stays as it is"


def test_a_measured_model_beside_one_that_was_not(desk: Path) -> None:
    compare("tuned", "out:base", "--prompts", "mine.jsonl")
    found = read_json("compared/comparison.json")
    assert found["labels"] == ["tuned", "base"] and found["comparisons"] == []
    assert found["notes"][0].startswith("tuned was not measured, so only answers are shown")


def test_a_suite_is_measured_and_prompts_are_answered_in_one_command(desk: Path) -> None:
    (desk / "suite.yaml").write_text("keep: [prose.jsonl]\n")
    compare("base", "tuned", "--suite", "suite.yaml", "--prompts", "mine.jsonl", "--fail_if", "prose drop > 900%")
    found = read_json("compared/comparison.json")
    assert [(c["suite"], c["name"]) for c in found["comparisons"]] == [("keep", "prose")]
    assert found["verdict"]["word"] == "SHIP" and len(found["answers"]["prompts"]) == 3


def test_without_a_template_on_one_side_both_read_the_bare_prompts(desk: Path) -> None:
    jsonl(desk / "mine.jsonl", [{"prompt": "What is four and four?"}])
    compare("base", "bare", "--prompts", "mine.jsonl")
    found = read_json("compared/comparison.json")
    assert found["answers"]["chat_template"] is False
    assert found["answers"]["prompts"][0]["before"]["text"] == generated("base", "What is four and four?")
    assert "Prompts: bare has no chat template, so both models read the prompts as they are." in found["notes"]


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["compare", *words]) == 2
    return " ".join(capsys.readouterr().err.split())


def test_what_cannot_be_asked_is_refused_before_the_work(desk: Path, asked: SimpleNamespace, capsys) -> None:
    for name in ("a.csv", "b.csv"):
        (desk / name).write_text("id,score\n" + "".join(f"q{i},{i % 2}\n" for i in range(12)))
    said = refused(capsys, "a.csv", "b.csv", "--prompts", "mine.jsonl")
    assert "a.csv is a log of another tool, without a model, so it cannot answer prompts." in said
    assert "b.csv is a log" in said
    assert "expected a file of prompts, but mien.jsonl is not a file" in refused(
        capsys, "out", "--prompts", "mien.jsonl"
    )
    jsonl(desk / "bad.jsonl", [{"prompt": "a"}, {"prompt": ""}])
    assert "expected a prompt that is a non-empty text" in refused(capsys, "base", "tuned", "--prompts", "bad.jsonl")
    said = refused(capsys, "base", "tuned", "--prompts", "mine.jsonl", "--fail_if", "any drop > 1%", "--strict")
    assert "--fail_if: needs measured models, and some are not measured yet. Add --suite NAME." in said
    assert asked.loaded == []


def test_another_model_in_the_place_of_the_measured_one_is_not_asked(
    desk: Path, asked: SimpleNamespace, capsys
) -> None:
    shutil.copy(desk / "tuned" / "model.safetensors", desk / "base" / "model.safetensors")
    said = refused(capsys, "out", "--prompts", "mine.jsonl")
    assert "out/base was measured on other weights than base has now" in said
    shutil.rmtree(desk / "base")
    said = refused(capsys, "out", "--prompts", "mine.jsonl")
    assert "out/base does not name the folder of its model, or the folder no longer exists" in said
    record = read_json("out/evaluate.json")
    for model in record["models"]:
        del model["folder"]
    import json

    (desk / "out" / "evaluate.json").write_text(json.dumps(record))
    assert "out/base does not name the folder of its model" in refused(capsys, "out", "--prompts", "mine.jsonl")
    assert asked.loaded == []
