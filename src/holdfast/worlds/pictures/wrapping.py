"""A LLaVA around a language model: the tower's states go through a projector of two layers into the places that the
text has for a picture.

Tower and language model keep their weights; the projector is drawn from a seed, and the tokenizer gets `<image>`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from holdfast import models
from holdfast.data.vision import MARKER
from holdfast.errors import ConfigError, ModelError
from holdfast.support.environment import quiet_libraries
from holdfast.worlds.pictures.scenes import CELL, SIZE
from holdfast.worlds.pictures.tower import MEAN, STD


def wrap_language_model(
    language: str | os.PathLike[str],
    tower: str | os.PathLike[str],
    output_dir: str | os.PathLike[str],
    *,
    seed: int = 0,
) -> Path:
    """Writes a vision-language model: weights, processor, tokenizer.

    Args:
        language: a causal language model, as `models.load` takes it.
        tower: a folder of `tower.cached_tower`.
        output_dir: a new folder.
        seed: of the projector's weights.

    Returns:
        The folder.

    Raises:
        ConfigError: the folder is there already.
        ModelError: no such model, or one that reads images already.
    """
    import torch
    from transformers import CLIPVisionModel, LlavaConfig, LlavaForConditionalGeneration

    out = Path(output_dir)
    if out.exists():
        raise ConfigError(f"output_dir: expected a new folder, got {out}, which is there.")
    if models.takes_images(os.fspath(language)):
        raise ModelError(f"Expected a language model, got {language}, which reads images already.")
    loaded = models.load(os.fspath(language), device="cpu")
    text, tokenizer = loaded.model, loaded.tokenizer
    if MARKER not in tokenizer.get_vocab():
        tokenizer.add_special_tokens({"additional_special_tokens": [MARKER]})
    eyes = CLIPVisionModel.from_pretrained(tower, dtype=text.dtype)
    with quiet_libraries(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if len(tokenizer) > text.get_input_embeddings().weight.shape[0]:
            text.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        config = LlavaConfig(
            vision_config=eyes.config,
            text_config=text.config,
            image_token_id=tokenizer.convert_tokens_to_ids(MARKER),
            image_seq_length=(SIZE // CELL) ** 2,
            projector_hidden_act="gelu",
            vision_feature_select_strategy="default",
            vision_feature_layer=-1,
            tie_word_embeddings=bool(text.config.tie_word_embeddings),
        )
        whole = LlavaForConditionalGeneration(config).to(text.dtype)
    whole.model.language_model.load_state_dict(text.base_model.state_dict())
    whole.get_output_embeddings().load_state_dict(text.get_output_embeddings().state_dict())
    whole.model.vision_tower.load_state_dict(eyes.state_dict())
    whole.generation_config = text.generation_config
    with quiet_libraries():
        whole.save_pretrained(out)
        _processor(tokenizer).save_pretrained(out)
    return out


def _processor(tokenizer: Any) -> Any:
    """The processor of pictures of 24 x 24 pixels; its image operations are Pillow's, which need no torchvision."""
    from transformers import LlavaProcessor
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    images = CLIPImageProcessorPil(
        do_resize=False, do_center_crop=False, do_convert_rgb=True, image_mean=[MEAN] * 3, image_std=[STD] * 3
    )
    return LlavaProcessor(
        images,
        tokenizer,
        patch_size=CELL,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=getattr(tokenizer, "chat_template", None),
    )
