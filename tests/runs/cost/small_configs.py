"""Small transformers configurations, a family each."""

from __future__ import annotations

from typing import Any

SMALL = {
    "vocab_size": 1024,
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}


def config_of(family: str, **changes: Any) -> Any:
    """A small configuration of a family; `changes` are its entries."""
    import transformers

    if family == "gpt2":
        own = {"vocab_size": 1024, "n_embd": 64, "n_inner": 256, "n_layer": 3, "n_head": 4, "n_positions": 512}
        dropout = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
        return transformers.GPT2Config(**{**own, **dropout, "architectures": ["GPT2LMHeadModel"], **changes})
    name = {
        "llama": "Llama",
        "qwen2": "Qwen2",
        "qwen3": "Qwen3",
        "mixtral": "Mixtral",
        "gemma2": "Gemma2",
        "mistral": "Mistral",
    }[family]
    more = {"num_local_experts": 4, "num_experts_per_tok": 2} if family == "mixtral" else {}
    more = {"head_dim": 16} if family in ("qwen3", "gemma2") else more
    return getattr(transformers, f"{name}Config")(
        **{**SMALL, **more, "architectures": [f"{name}ForCausalLM"], **changes}
    )
