"""The files of a world of pictures:

```python
paths = build_pictures(PicturesRecipe(), "runs/pictures")
paths["captions"], paths["instructions"], paths["vision_heldout"], paths["tower"]
```

Stage 1 of LLaVA's training reads captions, stage 2 questions of five families. The held-out
questions are of the same families and wordings, about pictures of digits in handwritings that
neither the tower nor the training data has: one half of these for questions that settings are
chosen by, the other for those that are reported.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.papers.digits.data import read_digits
from holdfast.papers.worlds.pictures.scenes import (
    FAMILIES,
    Digits,
    caption_rows,
    instruction_rows,
    question_rows,
)
from holdfast.papers.worlds.pictures.tower import TowerRecipe, cached_tower, digits_of
from holdfast.support.environment import quiet_datasets
from holdfast.support.paths import expanded

VALID, HELD_OUT = "vision_valid", "vision_heldout"
"""Files with the questions of all families, as many of each, so that the accuracy is the mean of
the five."""


@dataclass(frozen=True, kw_only=True)
class PicturesRecipe:
    """What decides a world of pictures."""

    seed: int = 0
    """Of pictures and questions."""
    captions: int = 2000
    """Pictures with captions."""
    instructions: int = 4000
    """Pictures with questions and answers."""
    questions: int = 200
    """Held-out questions of each family, to report."""
    validation: int = 80
    """The same to choose settings by."""
    tower: TowerRecipe = field(default_factory=TowerRecipe)
    """The vision tower."""


def build_pictures(
    recipe: PicturesRecipe,
    folder: str | os.PathLike[str],
    *,
    cache: Path | None = None,
    console: Any = None,
) -> dict[str, Path]:
    """Writes a world's files.

    Args:
        recipe: what is made.
        folder: gets them.
        cache: of towers; None: that of small bases.
        console: a `rich.console.Console` for progress.

    Returns:
        Paths: "captions" and "instructions" (rows of prompt, completion and images); `VALID` and
            `HELD_OUT` (rows of
        family, prompt, options, answer and images); "tower".
    """
    folder = expanded(folder)
    tower = cached_tower(recipe.tower, cache=cache, console=console)
    paths = {
        name: folder / f"{name}.parquet" for name in ("captions", "instructions", VALID, HELD_OUT)
    }
    folder.mkdir(parents=True, exist_ok=True)
    images = read_digits(seed=recipe.tower.seed)  # what the tower has not seen is asked
    known, unknown = (digits_of(images, held_out=held_out) for held_out in (False, True))
    for_validation, for_test = halves(unknown)
    seed = f"pictures {recipe.seed}"
    _write(paths["captions"], caption_rows(recipe.captions, known, seed=seed))
    _write(paths["instructions"], instruction_rows(recipe.instructions, known, seed=seed))
    validation, test = [], []
    for family in FAMILIES:
        validation.append(
            question_rows(family, recipe.validation, for_validation, seed=f"{seed} validation")
        )
        test.append(question_rows(family, recipe.questions, for_test, seed=seed))
    # in turn, so that the beginning of a file has as many questions of each family, too
    _write(paths[VALID], list(itertools.chain(*zip(*validation, strict=True))))
    _write(paths[HELD_OUT], list(itertools.chain(*zip(*test, strict=True))))
    return {**paths, "tower": tower}


def halves(digits: Digits) -> tuple[Digits, Digits]:
    """Single digits in two parts, each with every second image of each digit."""
    import numpy as np

    is_second = np.zeros(len(digits.labels), bool)
    for digit in range(10):
        is_second[np.flatnonzero(digits.labels == digit)[1::2]] = True
    first = Digits(pixels=digits.pixels[~is_second], labels=digits.labels[~is_second])
    return first, Digits(pixels=digits.pixels[is_second], labels=digits.labels[is_second])


def _write(path: Path, rows: list[Mapping[str, Any]] | list[dict[str, Any]]) -> None:
    """Rows as Parquet, images as `datasets` stores them."""
    from datasets import Dataset, Features, Image, List, Value

    kinds: dict[str, Any] = {
        "options": List(Value("string")),
        "answer": Value("int64"),
        "images": List(Image()),
    }
    features = Features({name: kinds.get(name, Value("string")) for name in rows[0]})
    aside = path.with_suffix(".part")
    with quiet_datasets():
        Dataset.from_list(list(rows), features=features).to_parquet(aside)
    os.replace(aside, path)
