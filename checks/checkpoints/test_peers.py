"""What transformers and PEFT make of checkpoints that were merged, and of models in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from checkpoint_folders import read_folder
from holdfast.checkpoints import live
from holdfast.checkpoints.live_tensors import checkpoint_names
from holdfast.checkpoints.merge import merge
from holdfast.checkpoints.policies import Policies
from holdfast.checkpoints.residual import extract_residual
from tiny import build_model

EMBEDDING = "model.embed_tokens.weight"


@pytest.fixture
def small_units(monkeypatch: pytest.MonkeyPatch) -> int:
    """Blocks of a few elements, so that small tensors are cut as large ones are."""
    for module in ("engine", "provenance", "execute"):
        monkeypatch.setattr(f"holdfast.checkpoints.{module}.UNIT", 64)
    return 64


def test_adapters_are_models_too(small_units: int, tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    build_model().save_pretrained(tmp_path / "base")
    tuned, merged = [], []
    for i in range(2):
        model = get_peft_model(
            build_model(), LoraConfig(r=3, lora_alpha=6, target_modules=["q_proj", "down_proj"], use_rslora=i == 1)
        )
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora" in name:
                    parameter.copy_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(i)))
        model.peft_config["default"].base_model_name_or_path = str(tmp_path / "base")
        model.save_pretrained(tmp_path / f"adapter{i}")
        tuned.append(tmp_path / f"adapter{i}")
        model.merge_and_unload().save_pretrained(tmp_path / f"merged{i}")
        merged.append(tmp_path / f"merged{i}")
    for method, request in (
        ("ties", {"density": 0.4, "base": tmp_path / "base"}),
        ("linear", {}),
        ("slerp", {"t": 0.4}),
    ):
        merge(tuned, tmp_path / f"{method}-a", method=method, sync=False, **request)
        merge(merged, tmp_path / f"{method}-m", method=method, sync=False, **request)
        ours, theirs = read_folder(tmp_path / f"{method}-a"), read_folder(tmp_path / f"{method}-m")
        assert ours.keys() == theirs.keys()
        far = sum(int((np.abs(ours[n].values - theirs[n].values) > 1e-6).sum()) for n in ours)
        assert far <= 2, method  # an element at a threshold may fall on either side of it
        assert (tmp_path / f"{method}-a" / "config.json").is_file() and not list(
            (tmp_path / f"{method}-a").glob("adapter*")
        )


@pytest.mark.parametrize("policy", ["untie", "tie"])
def test_transformers_loads_models_whose_heads_were_brought_in_line(policy: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    build_model(seed=0, tie=True).save_pretrained(tmp_path / "tied")
    build_model(seed=1, tie=False).save_pretrained(tmp_path / "separate")
    for first, second in (("tied", "separate"), ("separate", "tied")):
        out = tmp_path / f"{first}-out"
        merge([tmp_path / first, tmp_path / second], out, policies=Policies(tied_heads=policy), sync=False)
        loaded, stated = AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
        assert not any(stated.values()) and loaded.config.tie_word_embeddings is (policy == "tie")
        head, embedding = (read_folder(out).get(n) for n in ("lm_head.weight", EMBEDDING))
        assert (head is None) is (policy == "tie")
        assert head is None or np.array_equal(loaded.lm_head.weight.detach().numpy(), head.values)
        assert embedding is not None and np.array_equal(
            loaded.model.embed_tokens.weight.detach().numpy(), embedding.values
        )


def test_transformers_loads_a_merge_with_a_larger_vocabulary(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from tiny import build_tokenizer

    plain, chat = build_tokenizer(), build_tokenizer()
    chat.add_tokens(["<|im_start|>", "<|im_end|>"], special_tokens=True)
    chat.chat_template = "{{ messages }}"
    build_model(320, seed=0).save_pretrained(tmp_path / "base")
    plain.save_pretrained(tmp_path / "base")
    model = build_model(320, seed=1)
    model.resize_token_embeddings(len(chat) + 6)
    model.save_pretrained(tmp_path / "chat")
    chat.save_pretrained(tmp_path / "chat")
    merge(
        [tmp_path / "chat"],
        tmp_path / "out",
        method="wise_ft",
        base=tmp_path / "base",
        tokenizer="model 1",
        policies=Policies(vocabulary="keep"),
        sync=False,
    )
    loaded, stated = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert (
        not any(stated.values())
        and loaded.config.vocab_size == len(chat) + 6 == loaded.model.embed_tokens.weight.shape[0]
    )
    again = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert again.chat_template == "{{ messages }}" and again.convert_tokens_to_ids(
        "<|im_end|>"
    ) == chat.convert_tokens_to_ids("<|im_end|>")
    row = chat.convert_tokens_to_ids("<|im_end|>")
    assert torch.equal(loaded.model.embed_tokens.weight[row], model.model.embed_tokens.weight[row])


def test_a_residual_of_an_adapter(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    build_model().save_pretrained(tmp_path / "base")
    model = get_peft_model(build_model(), LoraConfig(r=2, target_modules=["v_proj"]))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.01)
    model.save_pretrained(tmp_path / "adapter")
    extract_residual(tmp_path / "adapter", tmp_path / "base", tmp_path / "residual", sync=False)
    moved = {n for n, t in read_folder(tmp_path / "residual").items() if np.any(t.values != 0)}
    assert moved == {f"model.layers.{i}.self_attn.v_proj.weight" for i in range(2)}


def test_adapters_and_their_base_are_found_on_disk(tmp_path):
    """A model under LoRA takes its adapter's weights from an adapter folder, and its base's from a model folder."""
    from peft import LoraConfig, get_peft_model

    def adapted(seed: int):
        torch.manual_seed(seed)
        config = LoraConfig(
            r=2,
            target_modules=["q_proj", "embed_tokens"],
            modules_to_save=["norm"],
            use_dora=False,
            init_lora_weights=False,
        )
        return get_peft_model(build_model(seed=seed), config, adapter_name="mine" if seed else "default")

    model, other = adapted(0), adapted(1)
    build_model(seed=1).save_pretrained(tmp_path / "base")
    other.save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    theirs = {checkpoint_names(n)[0]: p for n, p in other.named_parameters()}
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    live.lerp_(trained, tmp_path / "adapter" / "mine", 1.0)
    assert all(torch.equal(p, theirs[checkpoint_names(n)[0]]) for n, p in trained.items())
    frozen = {n: p for n, p in model.named_parameters() if not p.requires_grad}
    live.lerp_(frozen, tmp_path / "base", 1.0)
    assert all(torch.equal(p, theirs[checkpoint_names(n)[0]]) for n, p in frozen.items())
