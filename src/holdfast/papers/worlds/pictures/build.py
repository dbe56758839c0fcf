"""The files of a world of pictures:

```python
paths = build_pictures(PicturesRecipe(), "runs/pictures")
paths["captions"], paths["instructions"], paths["suite"], paths["tower"]
```

Stage 1 of LLaVA's training reads captions, stage 2 questions of five families. The held-out questions are of the same
families and wordings, about pictures of digits in handwritings that neither the tower nor the training data has: one
half of these for questions that settings are chosen by, the other for those that are reported.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from holdfast.config.declare import Seed
from holdfast.config.decode import mistakes_in
from holdfast.errors import ConfigError, DataError
from holdfast.papers.digits.data import read_digits
from holdfast.papers.worlds.pictures.scenes import FAMILIES, Digits, caption_rows, instruction_rows, question_rows
from holdfast.papers.worlds.pictures.tower import RECORD, TowerRecipe, cached_tower, digits_of
from holdfast.papers.worlds.pretrain import Count
from holdfast.papers.worlds.tuned import deciding_libraries
from holdfast.support.environment import quiet_datasets
from holdfast.support.files import fingerprint, read_object, to_jsonable, write_bytes_atomic, write_json
from holdfast.support.paths import expanded

WORLD_VERSION = 2
"""Raised when the files come out differently."""
AVERAGE = "vision"
"""Mean of the five families' accuracies, in the suite."""
VALID, HELD_OUT = "vision_valid", "vision_heldout"
"""Files with the questions of all families, as many of each, so that the accuracy is the mean of the five."""


@dataclass(frozen=True, kw_only=True)
class PicturesRecipe:
    """What decides a world of pictures."""

    settings_group: ClassVar[str] = "the pictures"

    seed: Seed = 0
    """Of pictures and questions."""
    captions: Count = 2000
    """Pictures with captions."""
    instructions: Count = 4000
    """Pictures with questions and answers."""
    questions: Count = 200
    """Held-out questions of each family, to report."""
    validation: Count = 80
    """The same to choose settings by."""
    tower: TowerRecipe = field(default_factory=TowerRecipe)
    """The vision tower."""


def build_pictures(
    recipe: PicturesRecipe, folder: str | os.PathLike[str], *, cache: Path | None = None, console: Any = None
) -> dict[str, Path]:
    """Writes a world's files; those of the same recipe that are there already are left as they are.

    Args:
        recipe: what is made.
        folder: gets them.
        cache: of towers; None: that of small bases.
        console: a `rich.console.Console` for progress.

    Returns:
        Paths: "captions" and "instructions" (rows of prompt, completion and images); `VALID` and `HELD_OUT` (rows of
        family, prompt, options, answer and images), the latter also with a file for each of `FAMILIES`; "suite",
        "tower".

    Raises:
        ConfigError: a value that cannot be, all of them; a folder that holds another world.
    """
    import yaml

    if problems := [mistake.sentence() for mistake in mistakes_in(recipe)]:
        raise ConfigError(problems)
    folder = expanded(folder)
    key = fingerprint([WORLD_VERSION, to_jsonable(dataclasses.asdict(recipe)), deciding_libraries()])
    record = folder / "pictures.json"
    tower = cached_tower(recipe.tower, cache=cache, console=console)
    names = ("captions", "instructions", VALID, HELD_OUT, *FAMILIES)
    paths = {name: folder / f"{name}.parquet" for name in names} | {"suite": folder / "suite.yaml", "tower": tower}
    if record.is_file():
        if read_object(record).get("key") != key:
            raise ConfigError(f"{folder} holds another world of pictures. Choose a new folder.")
        return paths
    folder.mkdir(parents=True, exist_ok=True)
    images = read_digits(seed=recipe.tower.seed)  # what the tower has not seen is asked
    known, unknown = (digits_of(images, held_out=held_out) for held_out in (False, True))
    for_validation, for_test = halves(unknown)
    seed = f"pictures {recipe.seed}"
    _write(paths["captions"], caption_rows(recipe.captions, known, seed=seed))
    _write(paths["instructions"], instruction_rows(recipe.instructions, known, seed=seed))
    validation, test = [], []
    for family in FAMILIES:
        validation.append(question_rows(family, recipe.validation, for_validation, seed=f"{seed} validation"))
        test.append(question_rows(family, recipe.questions, for_test, seed=seed))
        _write(paths[family], test[-1])
    # in turn, so that the beginning of a file has as many questions of each family, too
    _write(paths[VALID], list(itertools.chain(*zip(*validation, strict=True))))
    _write(paths[HELD_OUT], list(itertools.chain(*zip(*test, strict=True))))
    suite = {
        "learn": [{"multiple_choice": f"{family}.parquet"} for family in FAMILIES],
        "averages": {AVERAGE: list(FAMILIES)},
    }
    write_bytes_atomic(paths["suite"], yaml.safe_dump(suite, sort_keys=False).encode())
    about = {"recipe": dataclasses.asdict(recipe), "tower": str(tower)}
    write_json(record, {"key": key, **about, "tower_accuracy": read_object(tower / RECORD)["accuracy"]})
    return paths


def halves(digits: Digits) -> tuple[Digits, Digits]:
    """Single digits in two parts, each with every second image of each digit.

    Raises:
        DataError: a digit with one image only.
    """
    import numpy as np

    counts = np.bincount(digits.labels, minlength=10)
    if (counts < 2).any():
        few = np.flatnonzero(counts < 2).tolist()
        raise DataError(f"Expected two held-out images and more of each digit, got fewer of {few}.")
    is_second = np.zeros(len(digits.labels), bool)
    for digit in range(10):
        is_second[np.flatnonzero(digits.labels == digit)[1::2]] = True
    first = Digits(pixels=digits.pixels[~is_second], labels=digits.labels[~is_second])
    return first, Digits(pixels=digits.pixels[is_second], labels=digits.labels[is_second])


def _write(path: Path, rows: list[Mapping[str, Any]] | list[dict[str, Any]]) -> None:
    """Rows as Parquet, images as `datasets` stores them."""
    from datasets import Dataset, Features, Image, List, Value

    kinds: dict[str, Any] = {"options": List(Value("string")), "answer": Value("int64"), "images": List(Image())}
    features = Features({name: kinds.get(name, Value("string")) for name in rows[0]})
    aside = path.with_suffix(".part")
    with quiet_datasets():
        Dataset.from_list(list(rows), features=features).to_parquet(aside)
    os.replace(aside, path)
