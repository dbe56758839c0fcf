"""The language model inside a vision-language model as a folder of its own: the same tensors, the same words on text,
and a model like any other to what works on checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from holdfast.checkpoints.language import extract_language
from holdfast.cli.main import main
from holdfast.errors import ModelError
from vision_models import ARCHITECTURES, build_vision_model, write_vision_model


def logits(folder: Path) -> torch.Tensor:
    from transformers import AutoConfig

    from holdfast.checkpoints.fit import auto_class

    kind = AutoConfig.from_pretrained(folder).model_type
    model = auto_class(kind).from_pretrained(folder).eval()
    ids = torch.randint(2, 290, (2, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return model(input_ids=ids).logits


def inside(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of a vision-language model's language part, by what follows the part's name."""
    found = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        part = next((p for p in ("language_model.", "text_model.") if p in name), None)
        if part is not None or name.startswith("lm_head."):
            rest = name.rpartition(part)[2] if part else name
            found[rest.removeprefix("model.")] = tensor
    return found


@pytest.mark.parametrize("tie", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_same_tensors_and_the_same_words(architecture: str, tie: bool, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    whole = write_vision_model(tmp_path / "whole", architecture, tie=tie)
    built = extract_language(whole, tmp_path / "language")
    expected, found = inside(whole), load_file(tmp_path / "language" / "model.safetensors")
    assert {name.removeprefix("model.") for name in found} == expected.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name.removeprefix("model.")]), name
    assert ("lm_head.weight" in found) is not tie
    assert torch.equal(logits(tmp_path / "language"), logits(whole))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "language")
    assert type(model).__name__ == "LlamaForCausalLM"
    config = json.loads((tmp_path / "language" / "config.json").read_text())
    assert config["tie_word_embeddings"] is tie and config["dtype"] == "float32"
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "language")
    assert len(tokenizer) == len(AutoTokenizer.from_pretrained(whole))
    names = {path.name for path in (tmp_path / "language").iterdir()}
    assert "tokenizer.json" in names and not names & {"processor_config.json", "preprocessor_config.json"}
    assert "processor_class" not in json.loads((tmp_path / "language" / "tokenizer_config.json").read_text())
    assert built.record["command"] == "models extract-language"
    assert [parent["name"] for parent in built.record["parents"]] == [str(whole)]


def test_positions_in_three_dimensions_are_those_of_a_text_model(tmp_path: Path) -> None:
    build_vision_model("qwen2_vl").save_pretrained(tmp_path / "whole")
    extract_language(tmp_path / "whole", tmp_path / "language")
    config = json.loads((tmp_path / "language" / "config.json").read_text())
    assert config["architectures"] == ["Qwen2ForCausalLM"] and "mrope_section" not in config["rope_parameters"]
    assert torch.equal(logits(tmp_path / "language"), logits(tmp_path / "whole"))


def test_the_command_and_a_template_for_plain_messages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import AutoTokenizer

    whole, out = write_vision_model(tmp_path / "whole"), str(tmp_path / "language")
    asked = [{"role": "user", "content": "Which colour?"}]
    assert "Which" not in AutoTokenizer.from_pretrained(whole).apply_chat_template(asked, tokenize=False)
    words = ["models", "extract-language", str(whole), "--output_dir", out]
    assert main([*words, "--dry_run"]) == 0
    assert not Path(out).exists()
    assert main(words) == 0
    assert "language" in capsys.readouterr().out
    assert "Which" in AutoTokenizer.from_pretrained(out).apply_chat_template(asked, tokenize=False)
    assert main(words) != 0  # it is there
    assert main([*words, "--overwrite", "--json"]) == 0


def test_a_text_model_is_refused(model_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="text-only model needs no extraction: use its folder"):
        extract_language(model_folder, tmp_path / "language")


def test_a_tensor_of_neither_part_is_named(tmp_path: Path) -> None:
    whole = write_vision_model(tmp_path / "whole")
    tensors = load_file(whole / "model.safetensors")
    tensors["ears.weight"] = torch.zeros(2)
    save_file(tensors, whole / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"ears\.weight"):
        extract_language(whole, tmp_path / "language")
    assert not (tmp_path / "language").exists()
