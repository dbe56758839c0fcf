"""The chat template of a merged checkpoint: of one's own, by name, or the one that most parents have."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from holdfast.checkpoints.merge import merge
from holdfast.errors import ConfigError
from tiny import build_model, build_tokenizer


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders a, b, c of one architecture with a tokenizer each."""
    folder = tmp_path_factory.mktemp("models")
    for seed, name in enumerate("abc"):
        build_model(tie=False, seed=seed).save_pretrained(folder / name)
        build_tokenizer(320).save_pretrained(folder / name)
    return folder


@pytest.fixture
def desk(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(models, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_chat_template_takes_the_place_of_the_parents(desk: Path) -> None:
    for name, text in (("a", "A{{ messages }}"), ("b", "B{{ messages }}"), ("c", "B{{ messages }}")):
        tokenizer = AutoTokenizer.from_pretrained(name)
        tokenizer.chat_template = text
        tokenizer.save_pretrained(name)
    Path("own.jinja").write_text("own {{ messages }}")
    cases = {"auto": "B{{ messages }}", "own.jinja": "own {{ messages }}", "{{ messages }}!": "{{ messages }}!"}
    for number, (given, expected) in enumerate(cases.items()):
        merge(["a", "b", "c"], f"out{number}", chat_template=given)
        assert AutoTokenizer.from_pretrained(f"out{number}").chat_template == expected
    merge(["a"], "chatml", chat_template="chatml")
    said = AutoTokenizer.from_pretrained("chatml").apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert said == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    with pytest.raises(ConfigError, match=r"chat_template: expected auto, chatml, a \.jinja file"):
        merge(["a"], "out", chat_template="llama3")
    with pytest.raises(ConfigError, match=r"no\.jinja cannot be read"):
        merge(["a"], "out", chat_template="no.jinja")


def test_a_template_in_the_settings_of_the_tokenizer_gives_way(desk: Path) -> None:
    settings = json.loads(Path("a/tokenizer_config.json").read_text())
    Path("a/tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": "old {{ messages }}"}))
    merge(["a"], "out", chat_template="new {{ messages }}")
    assert AutoTokenizer.from_pretrained("out").chat_template == "new {{ messages }}"
    for file in Path("a").glob("*template*"):
        file.unlink()
    merge(["a", "b"], "most", chat_template="auto")
    assert AutoTokenizer.from_pretrained("most").chat_template == "old {{ messages }}"
    with pytest.raises(ConfigError, match="no model has one"):
        merge(["c"], "none", chat_template="auto")
