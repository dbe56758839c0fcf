"""GGUF files of a tiny Llama, as llama.cpp's converter writes them: permuted rows of q and k, its names, its types."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from tiny import SENTENCES

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def tiny_tokenizer() -> Any:
    """A byte-level BPE with the markers of ChatML and a template."""
    from holdfast.papers.worlds.embedded import train_tokenizer

    tokenizer = train_tokenizer(SENTENCES * 4, vocab_size=352, special_tokens=["<|im_start|>", "<|im_end|>"])
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def tiny_llama(tokenizer: Any, *, tie: bool = True) -> Any:
    """A Llama with grouped heads, whose numbers a GGUF file holds exactly in F32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        rms_norm_eps=float(np.float32(1e-5)),
        rope_parameters={"rope_type": "default", "rope_theta": 50000.0},
        tie_word_embeddings=tie,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.bos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.2,
    )
    return LlamaForCausalLM(config).eval()


def write_gguf(
    path: Path,
    model: Any,
    tokenizer: Any,
    *,
    kind: str = "F32",
    pre: str = "gpt-2",
    change: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
) -> Path:
    """Writes a model as GGUF.

    Args:
        path: the file.
        model: of `tiny_llama`.
        tokenizer: of `tiny_tokenizer`.
        kind: type of the matrices; vectors are F32.
        pre: how the file says that text is split.
        change: called before the tensors are added.
    """
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("Tiny")
    writer.add_license("apache-2.0")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    _add_tokenizer(writer, tokenizer, pre)
    change(writer)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        _add_tensor(writer, name, tensor.float().numpy(), config, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: Any, pre: str) -> None:
    import json

    held = json.loads(tokenizer.backend_tokenizer.to_str())
    words = sorted(held["model"]["vocab"], key=held["model"]["vocab"].get)
    special = {token["content"] for token in held["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(words)
    writer.add_token_types([gguf.TokenType.CONTROL if word in special else gguf.TokenType.NORMAL for word in words])
    writer.add_token_merges([" ".join(merge) for merge in held["model"]["merges"]])
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)
    writer.add_add_bos_token(False)
    writer.add_chat_template(tokenizer.chat_template)


def _add_tensor(writer: gguf.GGUFWriter, name: str, values: np.ndarray, config: Any, kind: str) -> None:
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for part, count in heads.items():
        if part in name:  # pairs of a rotation lie side by side there, half a head apart here
            rows = values.reshape(count, 2, values.shape[0] // count // 2, *values.shape[1:])
            values = rows.swapaxes(1, 2).reshape(values.shape)
    stem, layer = name.removesuffix(".weight"), ""
    if stem.startswith("model.layers."):
        number, stem = stem.removeprefix("model.layers.").split(".", 1)
        layer = f"blk.{number}."
    values = np.ascontiguousarray(values)
    called = f"{layer}{NAMES[stem]}.weight"
    if kind == "F32" or values.ndim == 1:
        writer.add_tensor(called, values.astype(np.float32))
    elif kind == "F16":
        writer.add_tensor(called, values.astype(np.float16))
    else:
        quantised = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(called, gguf.quantize(values, quantised), raw_dtype=quantised)
