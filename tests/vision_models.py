"""Vision-language models small enough to train in a second, their processors, and rows with images.

Two architectures that merge images differently (LLaVA scatters projected patches of a CLIP tower, Idefics3 shuffles
pixels of its own tower and pads the images of a batch) stand for the others in most tests; beside them SmolVLM, and
Qwen2-VL, whose positions have three dimensions.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tiny import build_tokenizer

ARCHITECTURES = ("llava", "idefics3")
WITH_VIDEOS = ("smolvlm", "qwen2_vl")
"""Those whose processors read videos too, for which transformers asks for torchvision."""
QWEN_SPECIAL = ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"]
SPECIAL = ["<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"]
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' }}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}{% endfor %}"
    "{{ eos_token if message['role'] == 'assistant' else '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
"""Takes messages whose content is parts, and writes nothing of one that is plain text: as LLaVA's own does."""
COLOURS = {"red": (220, 20, 20), "green": (20, 200, 20), "blue": (20, 20, 220), "white": (240, 240, 240)}


def build_vision_tokenizer() -> Any:
    tokenizer = build_tokenizer(400)
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL})
    return tokenizer


def build_processor(architecture: str) -> Any:
    """The processor of an architecture, with PIL's image operations, which need no torchvision; of `WITH_VIDEOS`
    without the part for videos where torchvision is missing."""
    from transformers import Idefics3Processor, LlavaProcessor
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    if architecture in WITH_VIDEOS:
        return _build_processor_with_videos(architecture)
    tokenizer = build_vision_tokenizer()
    if architecture == "llava":
        images = CLIPImageProcessorPil(
            size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}, do_convert_rgb=True
        )
        return LlavaProcessor(
            images,
            tokenizer,
            patch_size=8,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
            chat_template=TEMPLATE,
        )
    images = Idefics3ImageProcessorPil(
        size={"longest_edge": 16}, max_image_size={"longest_edge": 16}, do_image_splitting=False
    )
    return Idefics3Processor(images, tokenizer, image_seq_len=1, chat_template=TEMPLATE)


def _build_processor_with_videos(architecture: str) -> Any:
    from transformers import Qwen2VLProcessor, SmolVLMProcessor
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
    from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

    if architecture == "qwen2_vl":
        tokenizer = build_tokenizer(300)
        tokenizer.add_special_tokens({"additional_special_tokens": QWEN_SPECIAL})
        images = Qwen2VLImageProcessorPil(patch_size=8, merge_size=2, min_pixels=1024, max_pixels=1024)
        template = TEMPLATE.replace("<image>", "<|vision_start|><|image_pad|><|vision_end|>")
        return _or_without_videos(Qwen2VLProcessor)(images, tokenizer, _videos("Qwen2VL"), chat_template=template)
    images = SmolVLMImageProcessorPil(
        size={"longest_edge": 16}, max_image_size={"longest_edge": 16}, do_image_splitting=False
    )
    made = _or_without_videos(SmolVLMProcessor)
    return made(images, build_vision_tokenizer(), _videos("SmolVLM"), image_seq_len=1, chat_template=TEMPLATE)


def _videos(name: str) -> Any:
    import transformers

    if not transformers.utils.is_torchvision_available():
        return SimpleNamespace(num_frames=1, fps=1)
    return getattr(transformers, f"{name}VideoProcessor")()


def _or_without_videos(kind: type) -> type:
    """A processor's class, which takes anything for what reads videos where torchvision is missing. Such a one does
    not load from its folder again; the real one does (tests/runs/test_run_vision.py, where torchvision is there)."""
    from transformers.utils import is_torchvision_available

    if is_torchvision_available():
        return kind

    class WithoutVideos(kind):  # type: ignore[misc, valid-type]
        def check_argument_for_proper_class(self, name: str, value: Any) -> Any:
            return None if name == "video_processor" else super().check_argument_for_proper_class(name, value)

        def save_pretrained(self, folder: Any, **how: Any) -> None:
            self.tokenizer.save_pretrained(folder)
            self.image_processor.save_pretrained(folder)

    return WithoutVideos


def build_vision_model(architecture: str, *, seed: int = 0, tie: bool = False) -> Any:
    """A model of that architecture with random weights, float32."""
    import torch
    from transformers import (
        CLIPVisionConfig,
        Idefics3Config,
        Idefics3ForConditionalGeneration,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
        SmolVLMConfig,
        SmolVLMForConditionalGeneration,
    )

    if architecture == "qwen2_vl":
        return _build_qwen(seed)
    tokenizer = build_vision_tokenizer()
    torch.manual_seed(seed)
    text = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=tie,
        eos_token_id=0,
        pad_token_id=1,
        bos_token_id=None,
    )
    token = tokenizer.convert_tokens_to_ids("<image>")
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    if architecture == "llava":
        tower = CLIPVisionConfig(**size, image_size=16, patch_size=8, projection_dim=32)
        return LlavaForConditionalGeneration(
            LlavaConfig(
                vision_config=tower,
                text_config=text,
                image_token_id=token,
                vision_feature_layer=-1,
                tie_word_embeddings=tie,
            )
        )
    tower = {**size, "image_size": 16, "patch_size": 8}
    config, model = Idefics3Config, Idefics3ForConditionalGeneration
    if architecture == "smolvlm":
        config, model = SmolVLMConfig, SmolVLMForConditionalGeneration
    return model(
        config(
            vision_config=tower,
            text_config=text,
            image_token_id=token,
            scale_factor=2,
            tie_word_embeddings=tie,
            pad_token_id=1,
        )
    )


def _build_qwen(seed: int) -> Any:
    """Qwen2-VL, whose positions are three-dimensional."""
    import torch
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    torch.manual_seed(seed)
    text = dict(
        vocab_size=320,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=128,
        eos_token_id=0,
        pad_token_id=1,
        bos_token_id=None,
        rope_scaling={"type": "mrope", "rope_type": "default", "mrope_section": [2, 3, 3]},
    )
    tower = dict(depth=2, embed_dim=32, num_heads=2, hidden_size=32, patch_size=8, spatial_merge_size=2, mlp_ratio=2)
    ids = dict(image_token_id=300, video_token_id=301, vision_start_token_id=302, vision_end_token_id=303)
    return Qwen2VLForConditionalGeneration(Qwen2VLConfig(text_config=text, vision_config=tower, **ids))


def image_batch(architecture: str) -> dict[str, Any]:
    """A model's inputs for two rows, one of them with an image."""
    import torch

    if architecture != "qwen2_vl":
        processor = build_processor(architecture)
        batch = processor(
            images=[[image("red")], []], text=["<image>Which?", "None."], padding=True, return_tensors="pt"
        )
        return dict(batch)
    ids = torch.tensor([[302, 300, 303, 7, 8, 9], [5, 6, 7, 8, 9, 10]])
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "mm_token_type_ids": (ids == 300).long(),
        "pixel_values": torch.randn(4, 3 * 2 * 8 * 8, generator=torch.Generator().manual_seed(0)),
        "image_grid_thw": torch.tensor([[1, 2, 2]]),
    }


def image(colour: str, *, size: tuple[int, int] = (20, 16)) -> Any:
    from PIL import Image

    return Image.new("RGB", size, COLOURS[colour])


def conversations(count: int = 24) -> list[dict[str, Any]]:
    """Rows with an image each, every fourth without."""
    rows = []
    for number in range(count):
        colour = list(COLOURS)[number % len(COLOURS)]
        slot = [] if number % 4 == 3 else [{"type": "image"}]
        asked = f"{number}. Which colour is it?" if slot else f"{number}. Name {colour}."
        rows.append(
            {
                "messages": [
                    {"role": "user", "content": [*slot, {"type": "text", "text": asked}]},
                    {"role": "assistant", "content": [{"type": "text", "text": f"It is {colour}."}]},
                ],
                "images": [image(colour)] if slot else [],
            }
        )
    return rows


def vision_rows(count: int = 24) -> Any:
    """`conversations` as the data layer gives them."""
    from datasets import Dataset, Features, Image, Json, List

    return Dataset.from_list(conversations(count), features=Features({"messages": Json(), "images": List(Image())}))


def write_vision_model(folder: Path, architecture: str = "llava", **how: Any) -> Path:
    """A folder as users have them: weights, processor, tokenizer."""
    build_vision_model(architecture, **how).save_pretrained(folder)
    build_processor(architecture).save_pretrained(folder)
    return folder
