"""Pictures of digits, what is asked about them, the tower that reads them, and a LLaVA around a language model that is
trained on them."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from holdfast.errors import ConfigError, DataError, ModelError
from holdfast.papers.digits.data import read_digits
from holdfast.papers.worlds.pictures import scenes, tower
from holdfast.papers.worlds.pictures.build import HELD_OUT, VALID, PicturesRecipe, build_pictures
from holdfast.runs.wrapping import check_tower, wrap_language_model
from tiny import build_model, build_tokenizer

TOWER = tower.TowerRecipe(width=32, layers=1, heads=2, steps=60, batch_size=32, learning_rate=5e-3)
RECIPE = PicturesRecipe(captions=24, instructions=40, questions=8, validation=4, tower=TOWER)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("pictures")
    return build_pictures(RECIPE, place / "world", cache=place / "cache")


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("language")
    build_model(vocab_size=len(build_tokenizer())).save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("family", scenes.FAMILIES)
def test_right_answers_are_right_and_dealt_out_evenly(family: str) -> None:
    options = scenes.FAMILIES[family][1]
    asked = scenes.asked(family, 80, seed="0")
    assert Counter(one.answer for one in asked) == dict.fromkeys(range(options), 80 // options)
    assert asked == scenes.asked(family, 80, seed="0") != scenes.asked(family, 80, seed="1")
    for one in asked:
        held = [digit for _, digit in one.scene.digits]
        assert len(set(one.options)) == options
        said = one.options[one.answer]
        right = {
            "presence": lambda: "yes" if int("".join(filter(str.isdigit, one.question))) in held else "no",
            "count": lambda: scenes.COUNTED[len(held) - 1],
            "comparison": lambda: "the left" if held[0] > held[1] else "the right",
            "parity": lambda: "odd" if held[0] % 2 else "even",
            "reading": lambda: f"{held[0]}{held[1]}",
        }
        assert said == right[family]()


def test_a_picture_has_its_digits_at_their_places() -> None:
    digits = tower.digits_of(read_digits(), held_out=False)
    held = scenes.Scene(digits=((0, 4), (4, 7), (8, 1)))
    assert held.caption() == "4 at the top left, 7 in the middle and 1 at the bottom right."
    import random

    pixels = held.drawn(digits, random.Random(0))
    cells = pixels.reshape(3, 8, 3, 8).swapaxes(1, 2).reshape(9, 8, 8)
    for place in range(9):
        digit = dict(held.digits).get(place)
        known = digits.pixels[digits.labels == digit]
        assert (cells[place] == 0).all() if digit is None else (known == cells[place]).all((1, 2)).any()


def test_the_files_of_a_world(world: dict[str, Path]) -> None:
    from datasets import load_dataset

    assert json.loads((world["tower"] / "tower.json").read_text())["accuracy"] > 0.5  # of eleven, after a moment
    rows = load_dataset("parquet", data_files=str(world["instructions"]), split="train")
    assert len(rows) == 40 and rows[0]["images"][0].size == (24, 24)
    assert all(row["prompt"].startswith("<image>\nQuestion: ") and row["completion"][0] == " " for row in rows)
    seen = {image.tobytes() for row in rows for image in row["images"]}
    held, valid = (load_dataset("parquet", data_files=str(world[name]), split="train") for name in (HELD_OUT, VALID))
    assert Counter(held["family"]) == dict.fromkeys(scenes.FAMILIES, 8)
    assert Counter(valid["family"]) == dict.fromkeys(scenes.FAMILIES, 4)
    assert not seen & {row["images"][0].tobytes() for row in [*held, *valid]}


def test_what_is_asked_is_asked_once_and_in_handwritings_of_its_own() -> None:
    """Digits that differ by a pixel in the corner tell whose they are: training, validation and test share none."""
    from holdfast.papers.worlds.pictures.build import halves

    pixels = np.zeros((60, 8, 8), np.uint8)
    pixels[:, 0, 0], labels = np.arange(60), np.arange(60) % 10
    parts = halves(scenes.Digits(pixels=pixels, labels=labels))
    own = [set(part.pixels[:, 0, 0].tolist()) for part in parts]
    assert not own[0] & own[1] and own[0] | own[1] == set(range(60))
    assert all(Counter(part.labels.tolist()) == dict.fromkeys(range(10), 3) for part in parts)
    rows = scenes.question_rows("parity", 100, parts[0], seed="0")
    keys = [(row["prompt"], row["images"][0]["bytes"]) for row in rows]
    assert len(set(keys)) == 100
    few = scenes.Digits(pixels=pixels[:10], labels=labels[:10])
    with pytest.raises(DataError, match="400 different questions of parity"):
        scenes.question_rows("parity", 400, few, seed="0")  # 10 digits, 9 places, 3 wordings


def test_a_tower_has_to_be_one(world: dict[str, Path], language: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    check_tower(world["tower"], -2)
    with pytest.raises(ModelError, match=r"Expected a layer of .* got 2"):
        check_tower(world["tower"], 2)
    with pytest.raises(ModelError, match=r"Expected a vision model at .*nowhere"):
        check_tower(tmp_path / "nowhere", -1)
    with pytest.raises(ModelError, match=r"Expected a CLIP vision model.* of type 'llama'"):
        check_tower(language, -1)
    broken = shutil.copytree(world["tower"], tmp_path / "broken")
    weights = load_file(broken / "model.safetensors")
    save_file({n: w for n, w in weights.items() if "embeddings" in n}, broken / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks .* which would be random"):
        wrap_language_model(language, broken, tmp_path / "never", layer=-1)
    shutil.copy(world["tower"] / "model.safetensors", broken)
    (broken / "preprocessor_config.json").unlink()
    with pytest.raises(ModelError, match="Expected an image processor"):
        check_tower(broken, -1)
    assert not list(tmp_path.glob("never*"))


def test_a_wrapped_language_model_says_what_it_said(world: dict[str, Path], language: Path, tmp_path: Path) -> None:
    from holdfast.checkpoints.language import extract_language
    from holdfast.models import load

    whole = wrap_language_model(language, world["tower"], tmp_path / "whole", layer=-1, seed=3).folder
    own, wrapped = load(str(language)), load(str(whole))
    ids = torch.randint(2, 200, (1, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = own.model(input_ids=ids).logits
        assert torch.equal(wrapped.model(input_ids=ids).logits[..., : expected.shape[-1]], expected)
    eyes = wrapped.model.model.vision_tower.state_dict()
    from transformers import CLIPVisionModel

    assert all(torch.equal(v, eyes[n]) for n, v in CLIPVisionModel.from_pretrained(world["tower"]).state_dict().items())
    extract_language(whole, tmp_path / "language")
    inside = load(str(tmp_path / "language"))
    assert len(inside.tokenizer) == len(own.tokenizer) + 1
    with pytest.raises(ConfigError, match="expected a new folder"):
        wrap_language_model(language, world["tower"], whole, layer=-1)
    with pytest.raises(ModelError, match="reads images already"):
        wrap_language_model(whole, world["tower"], tmp_path / "twice", layer=-1)
