"""A tiny ViT that reads digits: trained once on pictures of scattered digits, cached, and frozen by
whoever uses it.

It is CLIP's vision model with one patch a place. From each patch's last state a linear map tells
which digit stands there, or none; the map is thrown away, so that what is left has to be joined to
a language model by a projector. The states are those of the last layer, before the final norm, as
LLaVA takes them.

What it is not: trained with text. It knows what a language model of this size cannot learn from
captions alone.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from holdfast.papers.digits.data import Images, read_digits
from holdfast.papers.worlds.pictures.scenes import CELL, ROWS, SIZE, Digits, scene
from holdfast.papers.worlds.tuned import deciding_libraries, exclusive_lock, tuning_cache
from holdfast.support.environment import quiet_libraries
from holdfast.support.files import fingerprint, write_json
from holdfast.support.progress import counted

_VERSION = 2
"""Raised when the same recipe gives other weights or files."""
_BLANK = 10
"""Class of an empty place."""
RECORD = "tower.json"
MEAN, STD = 0.5, 0.5
"""Of pixels in [0, 1], as the processor takes them off."""


@dataclass(frozen=True, kw_only=True)
class TowerRecipe:
    """What decides a tower's weights, beside its digits."""

    width: int = 64
    """Hidden size, a multiple of the heads."""
    layers: int = 2
    """Layers."""
    heads: int = 4
    """Attention heads."""
    steps: int = 400
    """Steps of training, of `batch_size` pictures."""
    batch_size: int = 64
    """Pictures a step."""
    learning_rate: float = 2e-3
    """AdamW's, falling to zero."""
    seed: int = 0
    """Of weights and pictures, and of which digits are held out."""


def digits_of(images: Images, *, held_out: bool) -> Digits:
    """Single digits of 8 x 8 pixels for pictures.

    Args:
        images: the digits.
        held_out: those that are held out in place of the others.
    """
    import numpy as np

    pixels, labels = (
        (images.test, images.test_labels) if held_out else (images.train, images.train_labels)
    )
    grey = np.rint(pixels.reshape(-1, CELL, CELL) * 255).astype(np.uint8)
    return Digits(pixels=grey, labels=labels)


def cached_tower(recipe: TowerRecipe, *, cache: Path | None = None, console: Any = None) -> Path:
    """The folder of a tower, from the cache or trained now: a `CLIPVisionModel`, its image
    processor, and `tower.json` with the share of held-out digits that it reads.

    Args:
        recipe: architecture and schedule.
        cache: None: the cache of small bases.
        console: a `rich.console.Console` for the progress bar.
    """
    images = read_digits(seed=recipe.seed)
    digits = digits_of(images, held_out=False)
    content = [
        hashlib.sha256(values.tobytes()).hexdigest() for values in (digits.pixels, digits.labels)
    ]
    key = fingerprint([_VERSION, asdict(recipe), content, deciding_libraries()], length=16)
    folder = (cache or tuning_cache()) / f"tower-{key}"
    if (folder / RECORD).is_file():
        return folder
    with exclusive_lock(folder):
        if not (folder / RECORD).is_file():
            work = folder.with_name(f"{folder.name}.training")
            shutil.rmtree(work, ignore_errors=True)
            _train_tower(recipe, digits, digits_of(images, held_out=True), work, console)
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(work, folder)
    return folder


def _train_tower(
    recipe: TowerRecipe, digits: Digits, held_out: Digits, folder: Path, console: Any
) -> None:
    """Trains a tower on digits; at the end it is asked about others, each in a picture of one to
    nine."""
    import torch
    from transformers import CLIPVisionConfig, CLIPVisionModel
    from transformers.models.clip.image_processing_pil_clip import (
        CLIPImageProcessorPil,
    )  # needs no torchvision

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        config = CLIPVisionConfig(
            hidden_size=recipe.width,
            intermediate_size=4 * recipe.width,
            num_hidden_layers=recipe.layers,
            num_attention_heads=recipe.heads,
            image_size=SIZE,
            patch_size=CELL,
            projection_dim=recipe.width,
        )
        model = CLIPVisionModel(config).train()
        head = torch.nn.Linear(recipe.width, _BLANK + 1)
    parameters = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=recipe.learning_rate, weight_decay=0.01)
    rng = random.Random(f"{recipe.seed} tower")

    def read(pixels: torch.Tensor) -> torch.Tensor:
        """Logits `[pictures, places, 11]`."""
        return head(model(pixel_values=pixels).last_hidden_state[:, 1:])

    with counted("Training the vision tower", console=console) as report:
        for step in range(recipe.steps):
            for group in optimizer.param_groups:
                group["lr"] = (
                    recipe.learning_rate * min(1.0, (step + 1) / 20) * (1 - step / recipe.steps)
                )
            pixels, labels = _batch(digits, recipe.batch_size, rng)
            loss = torch.nn.functional.cross_entropy(read(pixels).flatten(0, 1), labels.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            report(step + 1, recipe.steps)
    model.eval()
    with torch.no_grad():
        pixels, labels = _batch(held_out, 512, random.Random(f"{recipe.seed} tower held out"))
        right = read(pixels).argmax(-1) == labels
    accuracy = float(right[labels != _BLANK].double().mean())
    with quiet_libraries():
        model.save_pretrained(folder)
        CLIPImageProcessorPil(
            do_resize=False,
            do_center_crop=False,
            do_convert_rgb=True,
            image_mean=[MEAN] * 3,
            image_std=[STD] * 3,
        ).save_pretrained(folder)
    write_json(
        folder / RECORD,
        {"recipe": asdict(recipe), "accuracy": accuracy, "versions": deciding_libraries()},
    )


def _batch(digits: Digits, count: int, rng: random.Random) -> tuple[Any, Any]:
    """Pixels `[count, 3, 24, 24]` as the processor gives them, and the class of each place
    `[count, 9]`."""
    import numpy as np
    import torch

    pixels = np.empty((count, SIZE, SIZE), np.uint8)
    labels = np.full((count, ROWS * ROWS), _BLANK)
    for number in range(count):
        picture = scene([rng.randrange(10) for _ in range(rng.randint(1, ROWS * ROWS))], rng)
        pixels[number] = picture.drawn(digits, rng)
        for square, digit in picture.digits:
            labels[number, square] = digit
    values = (torch.from_numpy(pixels).float() / 255 - MEAN) / STD
    return values[:, None].expand(-1, 3, -1, -1).contiguous(), torch.from_numpy(labels)
