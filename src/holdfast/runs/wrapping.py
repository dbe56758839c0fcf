"""A LLaVA around a language model: a vision tower's states go through a projector of two layers
into the places that the text has for a picture (Liu et al. 2023, "Visual Instruction Tuning";
"Improved Baselines with Visual Instruction Tuning" for the second layer).

Tower and language model keep their weights; the projector is drawn from a seed, and the tokenizer
gets `<image>`. Where that needs a new row of the head, the row gets no share of the probability on
text (`unlikely_row`), so that the whole says on text what the language model said, to rounding. A
row drawn at random has a logit near 0, and the logits of trained tokens sink with the budget: after
60 tokens a parameter such a row took 5 to 8 % of the probability on plain text. LLaVA itself has no
such row. What is not done: any training; towers that are not CLIP's.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast import models
from holdfast.checkpoints.fit import unbuildable
from holdfast.checkpoints.named import at_revision
from holdfast.checkpoints.sources import listing
from holdfast.data.vision import MARKER
from holdfast.errors import ConfigError, ModelError
from holdfast.generation import Sampling, continued
from holdfast.support.environment import quiet_libraries
from holdfast.support.resources import is_out_of_memory

if TYPE_CHECKING:
    from torch import Tensor

PROJECTOR = "multi_modal_projector"
"""Part of the names of the projector's parameters."""
_KINDS = {"clip_vision_model", "clip"}
_TEXTS, _TOKENS = 64, 32
"""What a language model writes to see which row of its head is unlikely."""
_STEPS = (0, 1, 2, 4, 8, 16, 32, 64)
"""Of `unlikely_row`, in nats."""


def check_tower(tower: str | os.PathLike[str], layer: int) -> None:
    """Finds out whether a tower can be put to a language model. Weights that are not on disk are
    not looked at.

    Args:
        tower: folder, or hub id with `@revision`.
        layer: whose states are taken, as of `wrap_language_model`.

    Raises:
        ModelError: no model, one that is no CLIP vision model, weights that are missing, no image
            processor beside them, or no such layer.
    """
    config = _tower_config(os.fspath(tower))
    layers = int(config.num_hidden_layers)
    if not -layers - 1 <= layer <= layers:
        raise ModelError(
            f"Expected a layer of {tower} from 0 (the patch embeddings) to {layers}, or from "
            f"{-layers - 1} to -1 (counted from the end), got {layer}."
        )
    if models.model_folder(os.fspath(tower)) is not None:
        _loaded_tower(os.fspath(tower))
        _image_processor(os.fspath(tower))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wrapped:
    """A vision-language model that was written."""

    folder: Path
    share: float
    """Of the probability on text that the language model writes, what the new token `<image>` takes
    on average; 0 where the head needed no new row."""


def wrap_language_model(
    language: str | os.PathLike[str],
    tower: str | os.PathLike[str],
    output_dir: str | os.PathLike[str],
    *,
    layer: int,
    seed: int = 0,
    trust_remote_code: bool = False,
) -> Wrapped:
    """Writes a vision-language model: weights, processor, tokenizer; nothing where it fails.

    Args:
        language: a causal language model, as `models.load` takes it.
        tower: a CLIP vision model with its image processor, folder or hub id.
        output_dir: a new folder.
        layer: of the tower whose states are taken: 0 the patches, -1 the last layer (before the
            final norm), -2 the one before it (LLaVA).
        seed: of the projector's weights.
        trust_remote_code: runs Python code that comes with the language model.

    Returns:
        The folder, and the share of the probability on text that its new token takes.

    Raises:
        ConfigError: the folder is there already.
        ModelError: no such language model, one that reads images already or that LLaVA's head does
            not stand for, or a tower that `check_tower` refuses.
    """
    import torch
    from transformers import LlavaConfig, LlavaForConditionalGeneration

    out = Path(output_dir)
    if out.exists():
        raise ConfigError(f"output_dir: expected a new folder, but {out} exists.")
    if models.takes_images(os.fspath(language), trust_remote_code=trust_remote_code):
        raise ModelError(f"Expected a language model, got {language}, which reads images already.")
    check_tower(tower, layer)
    loaded = models.load(os.fspath(language), device="cpu", trust_remote_code=trust_remote_code)
    text, tokenizer = loaded.model, loaded.tokenizer
    written = _written_texts(text, tokenizer)
    with torch.no_grad():
        expected = text(input_ids=written[0]).logits
    if MARKER not in tokenizer.get_vocab():
        tokenizer.add_special_tokens({"additional_special_tokens": [MARKER]})
    eyes = _loaded_tower(os.fspath(tower)).to(text.dtype)
    side, patch = int(eyes.config.image_size), int(eyes.config.patch_size)
    rows, share = int(text.get_input_embeddings().weight.shape[0]), 0.0
    with quiet_libraries(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if len(tokenizer) > rows:
            row_D, share = unlikely_row(text, written)
            text.resize_token_embeddings(len(tokenizer), mean_resizing=False)
            text.get_output_embeddings().weight.data[rows:] = row_D.to(text.dtype)
        config = LlavaConfig(
            vision_config=eyes.config,
            text_config=text.config,
            image_token_id=tokenizer.convert_tokens_to_ids(MARKER),
            image_seq_length=(side // patch) ** 2,
            projector_hidden_act="gelu",
            vision_feature_select_strategy="default",
            vision_feature_layer=layer,
            tie_word_embeddings=bool(text.config.tie_word_embeddings),
        )
        wrapped = LlavaForConditionalGeneration(config).to(text.dtype).eval()
    wrapped.model.language_model.load_state_dict(text.base_model.state_dict())
    head = text.get_output_embeddings().state_dict()
    wrapped.get_output_embeddings().load_state_dict(head, strict=False)  # a bias is refused below
    wrapped.model.vision_tower.load_state_dict(eyes.state_dict())
    wrapped.generation_config = text.generation_config
    with torch.no_grad():
        logits = wrapped(input_ids=written[0]).logits[..., : expected.shape[-1]]
    if not torch.allclose(logits, expected, rtol=1e-2, atol=1e-2):
        raise ModelError(
            "Expected a language model that computes logits with a plain output head, got "
            f"{type(text).__name__}. LLaVA would change its output on text. Use another "
            "architecture, such as Llama or OLMo."
        )
    aside = out.with_name(f"{out.name}.part")
    shutil.rmtree(aside, ignore_errors=True)
    with quiet_libraries():
        wrapped.save_pretrained(aside)
        _processor(tokenizer, _image_processor(os.fspath(tower)), patch).save_pretrained(aside)
    os.replace(aside, out)
    return Wrapped(folder=out, share=share)


def _written_texts(model: Any, tokenizer: Any) -> list[Tensor]:
    """Texts that a language model writes, `[1, tokens]` int64, each behind a token of its own."""
    import torch

    generator = torch.Generator().manual_seed(0)
    first = torch.randint(len(tokenizer), (_TEXTS, 1), generator=generator).tolist()
    sampling = Sampling(temperature=1.0, top_p=1.0, seed=0)
    texts = continued(model, tokenizer, first, max_new_tokens=_TOKENS, sampling=sampling)
    return [torch.tensor([[*a, *b.ids]]) for a, b in zip(first, texts, strict=True)]


def unlikely_row(model: Any, texts: Sequence[Tensor]) -> tuple[Tensor, float]:
    """A row for the head of a language model whose token takes no share of the probability on text.

    It begins with the mean of all rows, which takes at most 1 / V of it at every place, for the
    exponential is convex, or with the row of the least likely token. From there it is moved along
    `u`, where `h u = -1` as nearly as may be for the states `h` of half of the texts. Taken is the
    row whose largest share on the other half is the smallest.

    Args:
        model: a causal language model with a vocabulary of V.
        texts: that the model writes, `[1, tokens]` int64 each; two or more.

    Returns:
        The row `[D]` float32, and its mean share on the half that chose it.
    """
    import torch

    with torch.no_grad():
        head_VD = model.get_output_embeddings().weight.float()
        halves = []
        for half in (texts[::2], texts[1::2]):
            states = [model.base_model(input_ids=ids).last_hidden_state[0].float() for ids in half]
            halves.append(torch.cat(states))
        fitted_ND, other_ND = halves
        away_D = torch.linalg.lstsq(fitted_ND, -torch.ones(len(fitted_ND), 1)).solution[:, 0]
        logits_NV = other_ND @ head_VD.T
        all_N = logits_NV.logsumexp(-1)
        least_likely = (logits_NV - all_N[:, None]).amax(0).argmin()
        best_D, least_N = head_VD.mean(0), torch.full_like(all_N, torch.inf)
        for start_D in (head_VD.mean(0), head_VD[least_likely]):
            for step in _STEPS:
                row_D = start_D + step * away_D
                shares_N = (other_ND @ row_D - all_N).exp()
                if shares_N.amax() < least_N.amax():
                    best_D, least_N = row_D, shares_N
    return best_D, float(least_N.mean())


def _tower_config(tower: str) -> Any:
    """The configuration of a tower's vision part."""
    from transformers import AutoConfig

    source, revision = at_revision(tower)
    local = os.path.isdir(source)
    try:
        config = AutoConfig.from_pretrained(source, revision=revision, trust_remote_code=False)
    except Exception as error:  # what absurd values raise has no common base
        if is_out_of_memory(error):
            raise
        where = "this folder" if local else "a local folder or, with a network, the hub"
        raise ModelError(
            f"Expected a vision model at {tower} ({where}), but its config cannot be read: "
            f"{unbuildable(error)}"
        ) from error
    if config.model_type not in _KINDS:
        raise ModelError(
            "Expected a CLIP vision model, such as openai/clip-vit-large-patch14-336, got "
            f"{tower}, which is of type {config.model_type!r}."
        )
    return getattr(config, "vision_config", config)


def _loaded_tower(tower: str) -> Any:
    """The vision model, none of its weights drawn at random."""
    from transformers import CLIPVisionModel

    source, revision = at_revision(tower)
    try:
        with quiet_libraries():
            model, info = CLIPVisionModel.from_pretrained(
                source, revision=revision, output_loading_info=True, use_safetensors=True
            )
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise ModelError(
            f"Could not load the vision model {tower}: {unbuildable(error)}"
        ) from error
    if missing := sorted(info["missing_keys"]):
        raise ModelError(
            f"Expected all weights of a CLIP vision model in {tower}, but it lacks "
            f"{listing(missing)}, which would be random. Copy or download the model again."
        )
    return model.eval()


def _image_processor(tower: str) -> Any:
    """What makes pixels of pictures for a tower."""
    from transformers import AutoImageProcessor

    source, revision = at_revision(tower)
    try:
        return AutoImageProcessor.from_pretrained(
            source, revision=revision, trust_remote_code=False
        )
    except Exception as error:  # transformers raises whatever the file makes it stumble over
        raise ModelError(
            "Expected an image processor (preprocessor_config.json) beside the vision model "
            f"{tower}: {unbuildable(error)}"
        ) from error


def _processor(tokenizer: Any, images: Any, patch: int) -> Any:
    from transformers import LlavaProcessor

    return LlavaProcessor(
        images,
        tokenizer,
        patch_size=patch,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=getattr(tokenizer, "chat_template", None),
    )
