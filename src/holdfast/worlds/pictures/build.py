"""The files of a world of pictures:

```python
paths = build_pictures(PicturesRecipe(), "runs/pictures")
paths["captions"], paths["instructions"], paths["suite"], paths["tower"]
```

Stage 1 of LLaVA's training reads captions, stage 2 questions of five families. The held-out questions are of the same
families and wordings, about pictures of digits in handwritings that neither the tower nor the training data has.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from holdfast.config.declare import Seed
from holdfast.config.decode import mistakes_in
from holdfast.data.images import DIGITS, read_images
from holdfast.errors import ConfigError
from holdfast.support.environment import quiet_datasets
from holdfast.support.files import fingerprint, read_object, to_jsonable, write_bytes_atomic, write_json
from holdfast.support.paths import expanded
from holdfast.worlds.pictures.scenes import FAMILIES, caption_rows, instruction_rows, question_rows
from holdfast.worlds.pictures.tower import RECORD, TowerRecipe, cached_tower, digits_of
from holdfast.worlds.pretrain import Count
from holdfast.worlds.tuned import deciding_libraries

WORLD_VERSION = 1
"""Raised when the files come out differently."""
AVERAGE = "vision"
"""Mean of the five families' accuracies, in the suite."""


@dataclass(frozen=True, kw_only=True)
class PicturesRecipe:
    """What decides a world of pictures."""

    settings_group: ClassVar[str] = "the pictures"

    seed: Seed = 0
    """Of pictures and questions."""
    source: str = DIGITS
    """Images of single digits: "digits" (scikit-learn's), or a folder of MNIST's four files."""
    captions: Count = 2000
    """Pictures with captions."""
    instructions: Count = 4000
    """Pictures with questions and answers."""
    questions: Count = 200
    """Held-out questions of each family."""
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
        Paths: "captions" and "instructions" (rows of prompt, completion and images), one for each of `FAMILIES` (rows
        of prompt, options, answer and images), "suite", "tower".

    Raises:
        ConfigError: a value that cannot be, all of them; a folder that holds another world.
        DataError: no such images.
    """
    if problems := [mistake.sentence() for mistake in mistakes_in(recipe)]:
        raise ConfigError(problems)
    place = expanded(folder)
    names = {name: place / f"{name}.parquet" for name in ("captions", "instructions", *FAMILIES)}
    key = fingerprint([WORLD_VERSION, to_jsonable(dataclasses.asdict(recipe)), deciding_libraries()])
    record = place / "pictures.json"
    tower = cached_tower(recipe.tower, recipe.source, cache=cache, console=console)
    paths = {**names, "suite": place / "suite.yaml", "tower": tower}
    if record.is_file():
        if read_object(record).get("key") != key:
            raise ConfigError(f"{place} holds another world of pictures. Choose a new folder.")
        return paths
    place.mkdir(parents=True, exist_ok=True)
    images = read_images(recipe.source, seed=recipe.tower.seed)  # what the tower has not seen is asked
    known, unknown = (digits_of(images, held_out=held_out) for held_out in (False, True))
    seed = f"pictures {recipe.seed}"
    _write(names["captions"], caption_rows(recipe.captions, known, seed=seed))
    _write(names["instructions"], instruction_rows(recipe.instructions, known, seed=seed))
    for family in FAMILIES:
        _write(names[family], question_rows(family, recipe.questions, unknown, seed=seed))
    write_bytes_atomic(paths["suite"], _suite().encode())
    read = read_object(tower / RECORD)["accuracy"]
    write_json(record, {"key": key, "recipe": dataclasses.asdict(recipe), "tower": str(tower), "tower_accuracy": read})
    return paths


def _suite() -> str:
    import yaml

    entries = [{"choices": f"{family}.parquet"} for family in FAMILIES]
    return str(yaml.safe_dump({"target": entries, "averages": {AVERAGE: list(FAMILIES)}}, sort_keys=False))


def _write(path: Path, rows: list[Mapping[str, Any]] | list[dict[str, Any]]) -> None:
    """Rows as Parquet, images as `datasets` stores them."""
    from datasets import Dataset, Features, Image, List, Value

    kinds: dict[str, Any] = {"options": List(Value("string")), "answer": Value("int64"), "images": List(Image())}
    features = Features({name: kinds.get(name, Value("string")) for name in rows[0]})
    aside = path.with_suffix(".part")
    with quiet_datasets():
        Dataset.from_list(list(rows), features=features).to_parquet(aside)
    os.replace(aside, path)
