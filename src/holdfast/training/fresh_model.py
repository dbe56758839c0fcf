"""A decoder that has learnt nothing yet, as a folder: the start of pre-training.

Any architecture that transformers builds from a configuration with the usual names (hidden_size,
num_hidden_layers, num_attention_heads, intermediate_size): olmo2, olmo, llama, qwen3, ...
Initialised as transformers does it for that architecture, or as muP has it for the width
(`holdfast.training.mup`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.config.synonyms import did_you_mean_key
from holdfast.errors import ConfigError, did_you_mean
from holdfast.support.files import read_json, write_json
from holdfast.support.leftovers import scratch_folder

MULTIPLIERS_FILE = "learning_rate_multipliers.json"
_DIMENSIONS = {
    "hidden_size": "width",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "intermediate_size": "mlp",
}


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """What a fresh decoder looks like."""

    architecture: str
    """transformers' model type, such as "olmo2"."""
    layers: int
    width: int
    heads: int
    mlp: int
    context: int
    """Tokens that it can read at once."""
    more: Mapping[str, Any]
    """Further keys of its configuration, such as `num_key_value_heads`."""


def decoder_config(
    decoder: Decoder, *, vocabulary: int = 0, tokens: Mapping[str, int | None] | None = None
) -> Any:
    """transformers' configuration of a decoder.

    Args:
        decoder: its sizes.
        vocabulary: entries of its tokenizer; 0: as the architecture has it.
        tokens: `bos_token_id` and the like.

    Raises:
        ConfigError: an architecture that transformers has not, or not as a causal language model,
            or one whose configuration has other names; a key that it does not know.
    """
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    kind = decoder.architecture
    if kind not in CONFIG_MAPPING or kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        near = did_you_mean(kind, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
        raise ConfigError(
            "architecture: expected a causal language model of transformers, such as olmo2 or "
            f"llama, got {kind!r}.{near}"
        )
    known = CONFIG_MAPPING[kind]().to_dict()
    lacking = [name for name in (*_DIMENSIONS, "max_position_embeddings") if name not in known]
    if lacking:
        raise ConfigError(
            f"architecture: the configuration of {kind} lacks {', '.join(lacking)}, so its size "
            "cannot be set with the keys layers, width, heads and mlp. Choose olmo2, llama or a "
            "similar one."
        )
    if unknown := [key for key in decoder.more if key not in known]:
        raise ConfigError(
            f"model.{unknown[0]}: the configuration of {kind} has no such "
            f"key.{did_you_mean_key(unknown[0], known)}"
        )
    keys = {name: getattr(decoder, ours) for name, ours in _DIMENSIONS.items()}
    # some architectures have heads of a fixed size, or share keys, where nothing is said
    heads = {"num_key_value_heads": decoder.heads, "head_dim": decoder.width // decoder.heads}
    heads = {name: value for name, value in heads.items() if name in known}
    size = {"vocab_size": vocabulary} if vocabulary else {}
    context = {
        "max_position_embeddings": decoder.context,
        "use_cache": True,
        "tie_word_embeddings": False,
    }
    ids = {k: v for k, v in (tokens or {}).items() if k in known}
    return CONFIG_MAPPING[kind](**{**heads, **context, **keys, **size, **ids, **decoder.more})


def write_fresh(
    decoder: Decoder, tokenizer: Any, folder: Path, *, seed: int, base_width: int | None = None
) -> dict[str, float]:
    """Writes a fresh model with its tokenizer, or finds it written.

    Args:
        decoder: its sizes.
        tokenizer: of transformers; its length is the vocabulary.
        folder: appears whole.
        seed: of the weights.
        base_width: width that the learning rate is tuned at, for muP; None: initialised as the
            architecture has it.

    Returns:
        Factors for `learning_rate_multipliers`; empty without muP.

    Raises:
        ConfigError: see `decoder_config` and `mup_`.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from holdfast.support.environment import quiet_transformers
    from holdfast.training.mup import BASE_WIDTH, mup_

    if (folder / MULTIPLIERS_FILE).is_file():
        multipliers: dict[str, float] = read_json(folder / MULTIPLIERS_FILE)
        return multipliers
    ids = {}
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        ids[name] = getattr(tokenizer, name, None)
    config = decoder_config(decoder, vocabulary=len(tokenizer), tokens=ids)
    with torch.random.fork_rng(devices=[]), quiet_transformers():
        torch.default_generator.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        multipliers = (
            mup_(model, base_width=base_width, seed=seed) if base_width is not None else {}
        )
        if base_width is not None:
            # goes with the weights, for `fresh_init.init_stds`
            setattr(model.config, BASE_WIDTH, base_width)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder(folder.parent, f".{folder.name}-") as scratch, quiet_transformers():
        new_folder = scratch / folder.name
        model.save_pretrained(new_folder)
        tokenizer.save_pretrained(new_folder)
        write_json(new_folder / MULTIPLIERS_FILE, multipliers)
        if not (
            folder / MULTIPLIERS_FILE
        ).is_file():  # else another worker was faster, with the same weights
            os.replace(new_folder, folder)
    return multipliers
