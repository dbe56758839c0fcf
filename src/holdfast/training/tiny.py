"""A model and a tokenizer small enough to build and train in a second, with random weights: what
methods are checked on."""

from __future__ import annotations

from typing import Any

SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "A list is a mutable sequence of objects in Python.",
    "Question: what is two plus two? Answer: four.",
    "The with statement wraps the execution of a block with a context manager.",
    "Names refer to objects; assignment binds a name to an object.",
    "def add(a, b):\n    return a + b\n",
]


def build_tokenizer(vocab_size: int = 320, **special: Any) -> Any:
    """A byte-level BPE trained on a few sentences, with an end-of-sequence and a padding token
    unless others are given."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(
        SENTENCES * 4,
        vocab_size=vocab_size,
        special_tokens=["<|endoftext|>", "<|pad|>"],
        show_progress=False,
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe._tokenizer,
        **{"eos_token": "<|endoftext|>", "pad_token": "<|pad|>", **special},
    )


def build_model(
    vocab_size: int = 320,
    *,
    seed: int = 0,
    tie: bool = True,
    layers: int = 2,
    width: int = 32,
    **changes: Any,
) -> Any:
    """A Llama with random weights, float32, sdpa attention."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=tie,
        eos_token_id=0,
        pad_token_id=1,
        bos_token_id=None,
        **changes,
    )
    return LlamaForCausalLM(config)
