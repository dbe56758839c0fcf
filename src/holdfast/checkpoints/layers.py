"""Which layer of a model a parameter belongs to, by its name, and what wrappers add to names."""

from __future__ import annotations

import re

WRAPPERS = re.compile(r"^module\.|_orig_mod\.|_fsdp_wrapped_module\.|_checkpoint_wrapped_module\.")
"""What DistributedDataParallel, torch.compile, FSDP and activation checkpointing add to the names of
the parameters that they wrap."""
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d+)\.")
_VISION = re.compile(
    r"(?:^|\.)(?:vision_tower|vision_model|vision_encoder|visual|multi_modal_projector|connector|image_newline)(?:\.|$)"
)


def layer_of(name: str) -> str:
    """The layer a parameter belongs to: its number, or "embed", "head", "norm", "other"."""
    if _VISION.search(name):  # a tower's layers are none of the language model's
        return "other"
    match = _LAYER.search(name)
    if match:
        return match.group(1)
    lowered = name.lower()
    if "lm_head" in lowered or "embed_out" in lowered:
        return "head"
    if "embed" in lowered or "wte" in lowered or "wpe" in lowered:
        return "embed"
    if "norm" in lowered or "ln_f" in lowered:
        return "norm"
    return "other"
