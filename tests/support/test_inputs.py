"""What settings name is found whatever the key, and held to by content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import RunFolderError
from holdfast.support.inputs import changed_inputs, configuration_hash, hold_to, inputs_of


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, an adapter, data in a file and in a folder, a template, a task and code of the user's."""
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "base/config.json": '{"rope_theta": 1.0, "transformers_version": "5"}',
        "base/tokenizer.json": "{}",
        "base/model.safetensors": "weights",
        "base/README.md": "a page",
        "base/checkpoint-1/model.safetensors": "an earlier step",
        "lora/adapter_config.json": '{"base_model_name_or_path": "base"}',
        "rows.jsonl": "{}",
        "corpus/a.jsonl": "{}",
        "corpus/deep/b.jsonl": "{}",
        "corpus/.hidden": "",
        "chat.jinja": "{{ messages }}",
        "task.yaml": "dataset_kwargs: {data_files: questions.jsonl}\nfilter: !function utils.clean\n",
        "questions.jsonl": "{}",
        "utils.py": "def clean(): ...",
        "own.py": "class Own: ...",
        "seen/rows.jsonl": '{"images": ["a.png"], "text": "b.png"}\n',
        "seen/a.png": "a picture",
        "out/made.jsonl": "{}",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


SETTINGS: list[tuple[Any, dict[str, list[str]]]] = [
    ({"dataset_name": "rows.jsonl"}, {"rows.jsonl": [""]}),
    (
        {"model_name_or_path": "base"},
        {"base": ["config.json", "model.safetensors", "tokenizer.json"]},
    ),
    (
        {"tuned": ["lora"]},
        {"base": ["config.json", "model.safetensors", "tokenizer.json"], "lora": ["adapter_config.json"]},
    ),
    ({"corpus": ["corpus"]}, {"corpus": ["a.jsonl", "deep/b.jsonl"]}),
    ({"retention": ["replay:data=rows.jsonl,fraction=0.5"]}, {"rows.jsonl": [""]}),
    ({"retention": [{"l2": {"reference": "corpus"}}]}, {"corpus": ["a.jsonl", "deep/b.jsonl"]}),
    ({"retention": ["own.py:Own"]}, {"own.py": [""]}),
    ({"datasets": [{"path": "json", "data_files": "rows.jsonl"}]}, {"rows.jsonl": [""]}),
    ({"data_files": "corpus/**/*.jsonl"}, {"corpus/a.jsonl": [""], "corpus/deep/b.jsonl": [""]}),
    ({"dataset_name": "seen/rows.jsonl"}, {"seen/rows.jsonl": [""], "seen/a.png": [""]}),
    ({"chat_template_path": Path("chat.jinja")}, {"chat.jinja": [""]}),
    ({"task": "task.yaml"}, {"task.yaml": [""], "questions.jsonl": [""], "utils.py": [""]}),
    ({"output_dir": "corpus", "name": "corpus", "arms": ["corpus"], "max_steps": 3, "loss": "nll"}, {}),
    ({"dataset_name": "out/made.jsonl", "text": "two\nlines", "prompt": "x" * 5000}, {}),
]


@pytest.mark.parametrize(("settings", "expected"), SETTINGS, ids=lambda value: str(value)[:40])
def test_what_settings_name_is_found(settings: Any, expected: dict[str, list[str]]) -> None:
    found = inputs_of(settings, within="out")
    assert {path: sorted(contents) for path, contents in found.items()} == expected


def test_a_model_that_was_saved_again_is_the_same_and_another_configuration_is_not(here: Path) -> None:
    before, hashed = inputs_of({"base": "base"}), configuration_hash("base")
    (here / "base/config.json").write_text('{"transformers_version": "6", "rope_theta": 1.0, "use_cache": false}')
    assert not changed_inputs(before, inputs_of({"base": "base"}))
    assert configuration_hash("base") == hashed
    (here / "base/config.json").write_text('{"rope_theta": 2.0}')
    assert changed_inputs(before, inputs_of({"base": "base"})) == ["base/config.json: other contents"]
    assert configuration_hash("base") != hashed


def test_files_of_a_folder_that_come_and_go_are_changes(here: Path) -> None:
    before = inputs_of({"corpus": "corpus"})
    (here / "corpus/c.jsonl").write_text("{}")
    (here / "corpus/a.jsonl").unlink()
    assert changed_inputs(before, inputs_of({"corpus": "corpus"})) == ["corpus/a.jsonl: gone", "corpus/c.jsonl: new"]


def test_settings_that_come_and_files_that_are_gone_are_none(here: Path) -> None:
    """A study gets one more arm, and the data of a finished run may be thrown away."""
    before = inputs_of({"corpus": "corpus", "data": "rows.jsonl"})
    (here / "rows.jsonl").unlink()
    assert not changed_inputs(before, inputs_of({"corpus": "corpus", "data": "rows.jsonl", "more": "questions.jsonl"}))


def test_work_that_began_is_held_to_its_inputs_and_to_those_that_came_later(here: Path) -> None:
    def hold(settings: dict[str, str], *, begun: bool = True) -> list[str]:
        return hold_to("out", inputs_of(settings), begun=begun, what="the run in out")

    assert not hold({"data": "rows.jsonl"}, begun=False)
    (here / "rows.jsonl").write_text("[]")
    assert not hold({"data": "rows.jsonl"}, begun=False)
    assert not hold({"data": "rows.jsonl", "more": "questions.jsonl"})
    (here / "rows.jsonl").write_text("{}")
    (here / "questions.jsonl").write_text("[]")
    with pytest.raises(RunFolderError) as refused:
        hold({"data": "rows.jsonl", "more": "questions.jsonl"})
    assert [line.strip() for line in str(refused.value).split("\n")[:3]] == [
        "Inputs changed since the run in out began:",
        "- questions.jsonl: other contents",
        "- rows.jsonl: other contents",
    ]


def test_other_versions_are_said_and_not_refused(here: Path) -> None:
    hold_to("out", {}, begun=False, what="the run in out")
    kept = json.loads((here / "out/inputs.json").read_text())
    kept["versions"]["torch"] = "1.0"
    (here / "out/inputs.json").write_text(json.dumps(kept))
    [note] = hold_to("out", {}, begun=True, what="the run in out")
    assert note.startswith("Package versions have changed since the run in out began: torch ")
    assert note.endswith("(was 1.0).")


def test_a_folder_from_before_the_manifest_is_held_to_nothing() -> None:
    assert not hold_to("out", inputs_of({"data": "rows.jsonl"}), begun=True, what="the run in out")
