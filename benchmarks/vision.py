"""What retention costs on a vision-language model, and whether its images are ready in time.

    python benchmarks/vision.py                 # LLaVA architecture, 26M parameters; the table
    python benchmarks/vision.py --check         # exit 1 where a stated bar falls short
    python benchmarks/vision.py --quick         # under a minute, smaller model, fewer rounds
    python benchmarks/vision.py --save FILE     # the figures as JSON

Steps are what training does (see `train_step.py`), on conversations with one photograph each. The arms take turns, one
step each a round; the ratio is the median over rounds of the ratio within a round. An online teacher sees the images,
too, so its floor is 4/3.

`images` is what the data loader does for one batch in the meantime, in one process: reading the bytes, decoding JPEG,
resizing, the chat template, tokens, pixels. A loader with one worker keeps up where that takes less than a step.
"""

from __future__ import annotations

import argparse
import io
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from machine import device_name, hardware
from train_step import Arm, take_turns

SIZES = {
    "small": {"width": 64, "layers": 2, "image": 56, "patch": 14},
    "default": {"width": 512, "layers": 6, "image": 224, "patch": 14},
}
BATCH = 4
PHOTOGRAPH = (640, 480)
"""Pixels of the files, as cameras and data sets have them or more."""
DIRECT, ONLINE, IMAGES = "direct", "label_annealing (online)", "images"
BARS = {ONLINE: 1.45, IMAGES: 0.5}
"""Largest ratio to the direct step; of the default size."""
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' }}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}{% endfor %}"
    "{{ eos_token if message['role'] == 'assistant' else '\n' }}{% endfor %}"
)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 where a bar falls short")
    parser.add_argument("--quick", action="store_true", help="under a minute: a small model, 3 rounds")
    parser.add_argument("--rounds", type=int, default=None, help="timed rounds (11; 3 with --quick)")
    parser.add_argument("--threads", type=int, default=None, help="threads on a CPU (PyTorch's choice)")
    parser.add_argument("--save", type=Path, default=None, metavar="FILE", help="write the figures as JSON")
    options = parser.parse_args(arguments)
    size = SIZES["small" if options.quick else "default"]
    rounds = options.rounds or (3 if options.quick else 11)
    if options.threads:
        torch.set_num_threads(options.threads)
    device = device_name()
    with tempfile.TemporaryDirectory() as folder:
        arms, about = make_arms(Path(folder), size, device)
        seconds = take_turns(arms, rounds, device)
    figures = summarise(seconds, bars={} if options.quick else BARS)
    machine = hardware(device)
    print(f"LLaVA architecture, {size}, {about}; {BATCH} conversations a step; {rounds} rounds")
    print(f"{machine}; torch {torch.__version__}\n")
    print(f"{'arm':<28}{'s / step':>10}{'ratio to direct':>18}{'range':>18}{'bar':>8}")
    for f in figures:
        bar = f"{f['bar']:.2f}" if f["bar"] else ""
        print(f"{f['arm']:<28}{f['seconds']:>10.3f}{f['ratio']:>18.3f}{f['low']:>11.2f} - {f['high']:.2f}{bar:>8}")
    if options.save:
        from holdfast.support.files import write_json

        facts = {"benchmark": "vision", "hardware": machine, "torch": torch.__version__, "size": size, "model": about}
        write_json(options.save, {**facts, "rounds": rounds, "figures": figures})
    short = [f for f in figures if f["bar"] is not None and f["ratio"] > f["bar"]]
    for f in short:
        print(f"SHORT  {f['arm']}: {f['ratio']:.3f} of direct, the bar is {f['bar']}", file=sys.stderr)
    return 1 if options.check and short else 0


def summarise(seconds: dict[str, list[float]], *, bars: dict[str, float]) -> list[dict[str, Any]]:
    """One row an arm: median seconds, and ratio to the direct step with its range."""
    figures = []
    for name, times in seconds.items():
        ratios = [a / b for a, b in zip(times, seconds[DIRECT], strict=True)]
        row = {"arm": name, "seconds": statistics.median(times), "ratio": statistics.median(ratios)}
        figures.append({**row, "low": min(ratios), "high": max(ratios), "bar": bars.get(name)})
    return figures


def make_arms(folder: Path, size: dict[str, int], device: str) -> tuple[dict[str, Arm], str]:
    """All arms by name, and what they are of."""
    from holdfast.retention.registry import retention

    processor, rows = make_processor(size), make_rows()
    arms, about = {}, ""
    for name, spec in ((DIRECT, []), (ONLINE, [{"label_annealing": {"weight": 1.0, "teacher": "online"}}])):
        trainer = make_trainer(folder / name, make_model(size, processor), processor, rows, retention(spec))
        batch = trainer.data_collator([rows[i] for i in range(BATCH)])
        arms[name] = Arm(lambda trainer=trainer, batch=batch: one_step(trainer, batch), lambda watch: None)
        count = sum(p.numel() for p in trainer.model.parameters())
        about = f"{count / 1e6:.0f}M parameters, {batch['input_ids'].shape[1]} tokens a row"
        collate = trainer.data_collator
    arms[IMAGES] = Arm(lambda: collate([rows[i] for i in range(BATCH)]), lambda watch: None)
    return arms, about


def one_step(trainer: Any, batch: dict[str, Any]) -> None:
    """One optimiser step as `Trainer` takes it."""
    items = (batch["labels"][:, 1:] != -100).sum().to(trainer.args.device)
    trainer.training_step(trainer.model, dict(batch), items)
    trainer._clip_grad_norm(trainer.model)
    trainer.optimizer.step()
    trainer.model.zero_grad()
    trainer.state.global_step += 1
    trainer.after_optimizer_step()


def make_trainer(folder: Path, model: Any, processor: Any, rows: Any, retain: Any) -> Any:
    from trl import SFTConfig

    from holdfast.training.trainers import SFTRetentionTrainer

    arguments = SFTConfig(
        output_dir=str(folder),
        report_to="none",
        save_strategy="no",
        max_steps=1000,
        per_device_train_batch_size=BATCH,
        gradient_checkpointing=False,
        max_length=None,
        bf16=False,
        use_cpu=not torch.cuda.is_available(),
        disable_tqdm=True,
    )
    trainer = SFTRetentionTrainer(
        model=model, args=arguments, train_dataset=rows, processing_class=processor, retain=retain
    )
    trainer.create_optimizer_and_scheduler(1000)
    trainer.state.max_steps = 1000
    trainer.prepare_teacher()
    return trainer


def make_processor(size: dict[str, int]) -> Any:
    """LLaVA's, with image operations of Pillow, which need no torchvision."""
    from transformers import LlavaProcessor
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    from holdfast.training.tiny import build_tokenizer

    tokenizer = build_tokenizer(400)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    pixels = size["image"]
    return LlavaProcessor(
        CLIPImageProcessorPil(size={"shortest_edge": pixels}, crop_size={"height": pixels, "width": pixels}),
        tokenizer,
        patch_size=size["patch"],
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=TEMPLATE,
    )


def make_model(size: dict[str, int], processor: Any) -> Any:
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    torch.manual_seed(0)
    tokenizer, width = processor.tokenizer, size["width"]
    text = LlamaConfig(
        vocab_size=8192,
        hidden_size=width,
        intermediate_size=width * 8 // 3,
        num_hidden_layers=size["layers"],
        num_attention_heads=max(1, width // 64),
        num_key_value_heads=max(1, width // 64),
        max_position_embeddings=2048,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    tower = CLIPVisionConfig(
        hidden_size=width // 2,
        intermediate_size=width * 2,
        num_hidden_layers=size["layers"],
        num_attention_heads=max(1, width // 128),
        image_size=size["image"],
        patch_size=size["patch"],
        projection_dim=width // 2,
    )
    image = tokenizer.convert_tokens_to_ids("<image>")
    return LlavaForConditionalGeneration(LlavaConfig(vision_config=tower, text_config=text, image_token_id=image))


def make_rows() -> Any:
    """Conversations with a JPEG each, encoded, as a file or a data set has them."""
    import numpy as np
    from datasets import Dataset, Features, Image, Json, List
    from PIL import Image as Picture

    generator, rows = np.random.default_rng(0), []
    for number in range(2 * BATCH):
        coarse = generator.integers(0, 255, (24, 32, 3), dtype=np.uint8)  # smooth, as photographs are
        encoded = io.BytesIO()
        Picture.fromarray(coarse).resize(PHOTOGRAPH, Picture.Resampling.BICUBIC).save(encoded, "JPEG", quality=90)
        asked = [{"type": "image"}, {"type": "text", "text": f"What is on picture {number}?"}]
        said = [{"type": "text", "text": f"Blurred spots of many colours, number {number}. " * 4}]
        rows.append(
            {
                "messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": said}],
                "images": [{"bytes": encoded.getvalue(), "path": None}],
            }
        )
    return Dataset.from_list(rows, features=Features({"messages": Json(), "images": List(Image())}))


if __name__ == "__main__":
    sys.exit(main())
