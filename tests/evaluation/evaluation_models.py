"""Small models of several architectures, and whether they can share prefixes."""

from __future__ import annotations

ARCHITECTURES = {
    "llama": True,
    "llama eager": True,
    "qwen2": True,
    "qwen3": True,
    "gemma2": True,
    "gpt2": True,
    "gpt_neox": True,
    "mistral": True,
    "mixtral": True,
    "olmo": True,
    "phi3": True,
    "mamba": False,
    "bloom": False,
}


def architecture(name: str, *, vocabulary: int = 97, seed: int = 0):
    """A random model with weights large enough that what it should not see shows."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    kind, *more = name.split()
    common = dict(vocab_size=vocabulary, initializer_range=0.3, bos_token_id=0, eos_token_id=1, pad_token_id=0)
    wide = dict(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    settings = {
        "gpt2": dict(n_embd=32, n_layer=2, n_head=4, n_positions=64),
        "bloom": dict(hidden_size=32, n_layer=2, n_head=4),
        "mamba": dict(hidden_size=32, num_hidden_layers=2, state_size=4),
        "gemma2": {**wide, "head_dim": 8, "sliding_window": 64},
        "gpt_neox": {k: v for k, v in wide.items() if k != "num_key_value_heads"},
        "mixtral": {**wide, "num_local_experts": 2},
        "mistral": {**wide, "sliding_window": int(more[1]) if more[:1] == ["sliding"] else None},
    }.get(kind, wide)
    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, **common, **settings)
    attention = "eager" if more == ["eager"] else None
    return AutoModelForCausalLM.from_config(config, **({"attn_implementation": attention} if attention else {})).eval()
