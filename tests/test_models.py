"""Models by name: what is loaded, what identifies it, and what is said of a folder that cannot be used, before a loader
is asked."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from holdfast.checkpoints.locate import open_source
from holdfast.checkpoints.named import name_base
from holdfast.checkpoints.reader import checkpoint_hash
from holdfast.errors import ConfigError, ModelError
from holdfast.models import adapter_base, check_model, load, load_tokenizer, model_folder, usable_device, weights_hash
from holdfast.support.inputs import configuration_hash
from tiny import build_model

IDS = torch.arange(2, 22)[None]


@pytest.fixture
def copied(model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the model in `model`."""
    shutil.copytree(model_folder, tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "model"


@pytest.fixture
def adapter(copied: Path) -> Path:
    """A LoRA adapter on `model` whose matrices are far from zero."""
    return save_adapter(copied, copied.with_name("adapter"), seed=1)


def save_adapter(base: Path, folder: Path, *, seed: int) -> Path:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.2)
    model.save_pretrained(folder)
    return folder


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits


def test_a_folder_is_loaded_as_it_was_saved(copied: Path) -> None:
    loaded = load("model")
    assert torch.equal(logits(loaded.model), logits(build_model().eval()))
    assert not loaded.model.training
    assert loaded.tokenizer("The fox")["input_ids"] == load_tokenizer("model")("The fox")["input_ids"]
    parameters = sum(p.numel() for p in build_model().parameters())
    assert loaded.identity == {
        "name": "model",
        "hash": checkpoint_hash(copied),
        "configuration": configuration_hash(copied),
        "architecture": "LlamaForCausalLM",
        "parameters": parameters,
        "dtype": "float32",
    }


def test_the_hash_says_which_figures_are_the_same(copied: Path) -> None:
    before = weights_hash("model")
    shutil.copytree(copied, "elsewhere")
    assert weights_hash("elsewhere") == before, "the place does not matter"
    assert load("model", dtype="float16").identity["hash"] == weights_hash("model", dtype="float16") != before
    assert weights_hash("model", dtype="bfloat16") != weights_hash("model", dtype="float16")
    changed = build_model()
    with torch.no_grad():
        changed.model.norm.weight[0] += 1e-6
    changed.save_pretrained("elsewhere")
    assert weights_hash("elsewhere") != before


def test_the_dtype_asked_for_is_used(copied: Path) -> None:
    loaded = load("model", dtype="bfloat16", device="cpu")
    assert loaded.identity["dtype"] == "bfloat16"
    assert {p.dtype for p in loaded.model.parameters()} == {torch.bfloat16}


def test_an_adapter_is_its_base_with_the_change_merged_in(copied: Path, adapter: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    loaded = load("adapter")
    merged = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("model"), adapter).merge_and_unload().eval()
    assert torch.allclose(logits(loaded.model), logits(merged), atol=1e-5)
    assert not torch.allclose(logits(loaded.model), logits(load("model").model), atol=1e-2)
    assert adapter_base("adapter") == str(copied)
    assert adapter_base("model") is None
    assert loaded.tokenizer.get_vocab() == load_tokenizer("model").get_vocab(), (
        "an adapter without a tokenizer has its base's"
    )


def test_an_adapters_hash_is_its_own(copied: Path, adapter: Path) -> None:
    first = weights_hash("adapter")
    assert first not in (weights_hash("model"), checkpoint_hash(adapter))
    assert load("adapter").identity["hash"] == first
    save_adapter(copied, copied.with_name("other"), seed=2)
    assert weights_hash("other") != first
    text = (adapter / "adapter_config.json").read_text()
    (adapter / "adapter_config.json").write_text(json.dumps({**json.loads(text), "lora_alpha": 16}))
    assert weights_hash("adapter") != first, "a scale is as good as a weight"
    (adapter / "adapter_config.json").write_text(text)
    assert weights_hash("adapter") == first
    build_model(seed=7).save_pretrained("model")
    assert weights_hash("adapter") != first, "its base became another"


def test_an_adapter_that_cannot_be_used(copied: Path, adapter: Path) -> None:
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": "nowhere/at/all"}))
    with pytest.raises(ModelError, match="Expected a model at nowhere/at/all"):
        load("adapter")
    (adapter / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": None}))
    with pytest.raises(ModelError, match="Expected base_model_name_or_path in"):
        load("adapter")
    (adapter / "adapter_config.json").write_text("{")
    with pytest.raises(ModelError, match="it cannot be read"):
        weights_hash("adapter")
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    (adapter / "adapter_model.safetensors").unlink()
    torch.save({}, adapter / "adapter_model.bin")
    with pytest.raises(ModelError, match=r"only pickled weights \(adapter_model.bin\)"):
        load("adapter")


def test_no_such_model(copied: Path) -> None:
    with pytest.raises(ModelError, match=r"Expected a model at nowhere \(a local folder or, with a network, the hub\)"):
        load("nowhere")
    (copied / "config.json").unlink()
    with pytest.raises(ModelError, match=r"Expected a model at model \(this folder\)"):
        load("model")
    with pytest.raises(ModelError, match="on disk"):
        weights_hash("owner/never-loaded")


@pytest.mark.parametrize("kind", ["BertForMaskedLM", "T5ForConditionalGeneration", "LlamaForSequenceClassification"])
def test_other_kinds_of_models_are_refused(copied: Path, kind: str) -> None:
    config = json.loads((copied / "config.json").read_text())
    types = {"BertForMaskedLM": "bert", "T5ForConditionalGeneration": "t5"}
    (copied / "config.json").write_text(
        json.dumps({**config, "architectures": [kind], "model_type": types.get(kind, "llama")})
    )
    with pytest.raises(
        ModelError, match=f"Expected a causal language model .*, got {kind} at model. Choose a decoder-only model."
    ):
        check_model("model")


def test_a_kind_that_only_its_type_tells_is_refused(copied: Path) -> None:
    (copied / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ModelError, match=r"Expected a causal language model .* bert"):
        check_model("model")


def test_weights_that_are_not_whole(copied: Path) -> None:
    weights = copied / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-100])
    with pytest.raises(ModelError, match="cut off"):
        load("model")
    weights.unlink()
    with pytest.raises(ModelError, match="found neither"):
        load("model")
    torch.save({}, copied / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"holds only pickled weights \(pytorch_model.bin\), which can run code"):
        load("model")


def test_the_check_agrees_with_the_loader(copied: Path, adapter: Path) -> None:
    check_model("model")
    check_model("adapter")


NO_JSON = (b"[]", b"null", b"7", b"", b"{", b"\x00\xff\xfe", b"[" * 100_000)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        *(("tokenizer.json", content) for content in (*NO_JSON, b'{"model": {"type": "BPE", "vocab": 7}}')),
        *(("tokenizer_config.json", content) for content in (*NO_JSON, b'{"tokenizer_class": 7}')),
        ("tokenizer_config.json", b'{"model_max_length": "x"}'),
        ("tokenizer_config.json", b'{"added_tokens_decoder": {"a": []}}'),
    ],
)
def test_a_damaged_tokenizer(copied: Path, file: str, content: bytes) -> None:
    (copied / file).write_bytes(content)
    with pytest.raises(ModelError, match="Expected a tokenizer beside the model at model, but none can be loaded: "):
        load_tokenizer("model")


def test_no_tokenizer(copied: Path) -> None:
    for file in copied.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(
        ModelError,
        match=r"Expected a tokenizer beside the model at model, .*Copy the tokenizer files of the original model",
    ):
        load("model")
    with pytest.raises(ModelError, match=r"Check the name and the network, or give a local folder\.") as caught:
        load_tokenizer("owner/never-loaded")
    assert ".." not in str(caught.value)


@pytest.mark.parametrize("device", ["gpu", "cuda:99"])
def test_no_such_device_is_said_before_anything_is_loaded(
    copied: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    from transformers import AutoModelForCausalLM

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda *a, **k: pytest.fail("the model was loaded"))
    with pytest.raises(ConfigError, match=f"device: expected one that torch can use here, .*got '{device}'"):
        load("model", device=device)
    assert usable_device("cpu") == torch.device("cpu")


def test_a_hub_models_weights_lie_in_the_hub_cache(model_folder_of_the_hub: Path, model_folder: Path) -> None:
    assert weights_hash("owner/tiny") == checkpoint_hash(model_folder)
    check_model("owner/tiny")
    assert load("owner/tiny").identity["name"] == "owner/tiny"


@pytest.fixture
def model_folder_of_the_hub(copied: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's cache after `owner/tiny` was downloaded."""
    cache = copied.with_name("hub")
    snapshot = cache / "models--owner--tiny" / "snapshots" / ("0" * 40)
    shutil.copytree(copied, snapshot)
    (cache / "models--owner--tiny" / "refs").mkdir()
    (cache / "models--owner--tiny" / "refs" / "main").write_text("0" * 40)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("transformers.utils.hub.constants.HF_HUB_CACHE", str(cache), raising=False)
    assert model_folder("owner/tiny") == snapshot
    assert model_folder("owner/another") is None
    assert model_folder("not an id/at all") is None
    return snapshot


def test_a_revision_in_a_models_name(model_folder_of_the_hub: Path) -> None:
    other = with_revision(model_folder_of_the_hub, "step1000-tokens4B")
    assert model_folder("owner/tiny@step1000-tokens4B") == other
    assert model_folder("owner/tiny@main") == model_folder("owner/tiny") == model_folder_of_the_hub
    check_model("owner/tiny@step1000-tokens4B")
    found = load("owner/tiny@step1000-tokens4B")
    assert found.identity["name"] == "owner/tiny@step1000-tokens4B"
    assert found.identity["hash"] == checkpoint_hash(other) == weights_hash("owner/tiny", revision="step1000-tokens4B")
    assert_same_weights(found.model, load(str(other)).model)
    source = open_source("owner/tiny@step1000-tokens4B")
    assert (source.folder, source.label) == (other, "owner/tiny@step1000-tokens4B")
    with pytest.raises(ModelError, match=r"one revision of owner/tiny, got step1000.* and main2"):
        load("owner/tiny@step1000-tokens4B", revision="main2")


def test_a_revision_that_is_not_there(model_folder_of_the_hub: Path) -> None:
    with_revision(model_folder_of_the_hub, "step1000-tokens4B")
    for look in (load, check_model, open_source):
        with pytest.raises(ModelError, match="owner/tiny@step1000-token4B"):
            look("owner/tiny@step1000-token4B")


def test_a_folder_has_no_revisions(copied: Path) -> None:
    Path("runs").mkdir()
    os.rename("model", "runs/model")
    for look in (load, check_model, open_source):
        with pytest.raises(
            ModelError, match="a local folder, and local folders have no revisions: leave out @step1000"
        ):
            look("runs/model@step1000")
    for look in (load, check_model):
        with pytest.raises(ModelError, match=r"no revision for runs/model, which is a local folder, got step1000"):
            look("runs/model", revision="step1000")


def test_a_folder_with_an_at_sign_in_its_name(copied: Path) -> None:
    os.rename("model", "model@2")
    assert load("model@2").identity["hash"] == checkpoint_hash(copied.with_name("model@2"))


def test_an_adapter_on_a_revision(model_folder_of_the_hub: Path, adapter: Path) -> None:
    other = with_revision(model_folder_of_the_hub, "step2")
    write_adapter_config(adapter, base_model_name_or_path="owner/tiny")
    on_main = load("adapter").model
    assert_same_weights(base_of_adapter(on_main), load(str(model_folder_of_the_hub)).model)
    write_adapter_config(adapter, base_model_name_or_path="owner/tiny", revision="step2")
    on_it = load("adapter").model
    assert_same_weights(base_of_adapter(on_it), load(str(other)).model)
    assert load_tokenizer("adapter")("a")


def with_revision(snapshot: Path, name: str) -> Path:
    """Another revision of the hub's model in its cache, with other weights."""
    folder = snapshot.with_name("1" * 40)
    shutil.copytree(snapshot, folder)
    build_model(seed=7).save_pretrained(folder)
    (snapshot.parents[1] / "refs" / name).write_text("1" * 40)
    return folder


def write_adapter_config(adapter: Path, **values: object) -> None:
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def base_of_adapter(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The base's tensors of a model with an adapter, by their own names."""
    state = {k: v for k, v in model.state_dict().items() if "lora_" not in k}
    return {k.replace(".base_layer", ""): v for k, v in state.items()}


def assert_same_weights(one: torch.nn.Module | dict[str, torch.Tensor], other: torch.nn.Module) -> None:
    state = one if isinstance(one, dict) else one.state_dict()
    expected = other.state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], value) for name, value in expected.items())


def test_a_trained_adapter_says_the_revision_of_its_base(model_folder_of_the_hub: Path, adapter: Path) -> None:
    write_adapter_config(adapter, base_model_name_or_path="owner/tiny")
    name_base(adapter, "owner/tiny")
    assert json.loads((adapter / "adapter_config.json").read_text())["revision"] is None
    name_base(adapter, "owner/tiny", "step2")
    assert adapter_base("adapter") == "owner/tiny@step2"
    write_adapter_config(adapter, base_model_name_or_path="model", revision=None)
    name_base(adapter, "model", "step2")
    assert adapter_base("adapter") == "model", "a folder has no revisions"
