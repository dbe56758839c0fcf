"""The embedded world with its models: a base that knows generated people, an instruct model that
follows instructions, new facts, and what to ask.

```python
paths = build_world(WorldRecipe(seed=0), "runs/world")
paths["base"], paths["instruct"], paths["articles"], paths["suite"]
```

The base is pre-trained on text about the world's people and on prose, the instruct model is the
base tuned on conversations. Both lie in the cache (`holdfast.support.cache`) under what decides
their weights, so that every study pays for them once; an interrupted building goes on where it was.
Data files are written into a folder of the user's: what the models were trained on, dated articles
with what is new, questions, and a suite that asks all.

What the world is, and what a model of this size cannot show: docs/embedded_world.md.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.config.decode import problems_in
from holdfast.errors import ConfigError
from holdfast.papers.worlds.drawing import beginnings, phrases
from holdfast.papers.worlds.tuned import deciding_libraries, made_already, made_once, write_files
from holdfast.papers.worlds.world_models import (
    common_settings,
    conversations,
    make_models,
    pretraining_texts,
)
from holdfast.papers.worlds.world_recipe import WorldRecipe
from holdfast.support.files import (
    fingerprint,
    to_jsonable,
    write_bytes_atomic,
    write_json,
    write_jsonl,
)
from holdfast.support.paths import expanded, real

if TYPE_CHECKING:
    from holdfast.papers.worlds.embedded import EmbeddedCorpus

WORLD_VERSION = 1
"""Part of what says whether a folder holds a world already; raise it when the files come out
differently."""

RECORD = "world.json"
HELD_OUT_PROBLEMS = 200
"""Word problems that are asked."""

_DECLARED = phrases(__file__)
FILES: dict[str, str] = _DECLARED["files"]
"""What `build_world` returns a path for, and what lies there."""
SHARED: dict[str, Any] = _DECLARED["shared"]
"""What the shared base's world has in place of `WorldRecipe`'s defaults, see
`holdfast.papers.worlds.shared_base`."""


def quick_recipe(**changes: Any) -> WorldRecipe:
    """A world of seconds, which shows that everything works and knows next to nothing. `changes`:
    of its fields."""
    return WorldRecipe(**{**_DECLARED["quick"], **changes})


def build_world(
    recipe: WorldRecipe,
    folder: str | os.PathLike[str],
    *,
    workers: int | None = None,
    console: Any = None,
) -> dict[str, str]:
    """Makes a world's files and models, or finds them made.

    Args:
        recipe: sizes, seeds and budgets.
        folder: gets the data files; models go to the cache (`holdfast.support.cache.cache_folder`)
            and must not be written into.
        workers: processes at a time for what is tuned of the base; None: two on two and more cores.
        console: a `rich.console.Console` for progress.

    Returns:
        Name -> absolute path, see `FILES`; those of options that are off are missing.

    Raises:
        ConfigError: the recipe holds what cannot be; all of it.
        DataError: this Python came without its reference, or the texts are too short for a batch.
        StorageError: the folder cannot be written.
        Interrupted: Ctrl-C; the same call goes on where it was.
    """
    return build_worlds([(recipe, folder)], workers=workers, console=console)[0]


def build_worlds(
    wanted: Sequence[tuple[WorldRecipe, str | os.PathLike[str]]],
    *,
    workers: int | None = None,
    console: Any = None,
) -> list[dict[str, str]]:
    """Several worlds, whose models are trained side by side. Arguments and errors as of
    `build_world`, with a folder for each."""
    from holdfast.papers.worlds.embedded import embedded_corpus

    problems: list[str] = []
    for recipe, _ in wanted:
        problems += problems_in(recipe)
    if problems:
        raise ConfigError(problems)
    corpus = embedded_corpus()
    worlds, unmade = [], []
    for recipe, path in wanted:
        folder = real(expanded(path))
        key = fingerprint([recipe.record(), corpus.sha256, WORLD_VERSION, deciding_libraries()])
        worlds.append((recipe, folder, key))
        if made_already(folder / RECORD, key) is None:
            unmade.append(recipe)
    models = {}
    if unmade:
        models = dict(
            zip(unmade, make_models(unmade, workers=workers, console=console), strict=True)
        )
    paths = []
    for recipe, folder, key in worlds:
        make = functools.partial(_make_world, recipe, folder, corpus, models)
        paths.append(
            made_once(folder, RECORD, key, make, recipe=recipe.record(), python=corpus.python)
        )
    return paths


def continuing_settings(recipe: WorldRecipe, **changes: Any) -> dict[str, Any]:
    """Settings for `holdfast.runs.config.train_config`: continued pre-training on the articles, as
    any text is trained on.

    Add `model_name_or_path`, `dataset_name` (the articles) and `output_dir`. `changes`: of single
    settings.
    """
    settings = {
        **common_settings(recipe),
        "max_steps": recipe.continuing_steps,
        "learning_rate": recipe.continuing_learning_rate,
        "save_steps": max(1, recipe.continuing_steps),
        "retention": "none",
    }
    return {**settings, **changes}


# -------------------------------------------------------------------------------------------- files


def _make_world(
    recipe: WorldRecipe,
    folder: Path,
    corpus: EmbeddedCorpus,
    models: Mapping[WorldRecipe, Mapping[str, Path]],
) -> dict[str, Path]:
    from holdfast.papers.worlds.people import documents, questions
    from holdfast.papers.worlds.people.instructions import tasks
    from holdfast.papers.worlds.word_problems import easy_problems, problems_task

    world, seed = recipe.world(), recipe.seed
    news = documents.articles(
        world,
        count=recipe.articles,
        old_people=recipe.old_people,
        prose=corpus.prose_train,
        prose_share=recipe.articles_prose,
        seed=seed,
    )
    instructions = tasks(world, count=recipe.instructions, held_out=True, seed=seed)
    contents: dict[str, Any] = {
        "pretraining": pretraining_texts(recipe),
        "tuning": conversations(recipe, seed),
        "articles": [article.row for article in news],
        "instructions": [task.row for task in instructions],
        "prose_heldout": beginnings(corpus.prose_heldout, recipe.held_out_prose),
        "facts": write_json(folder / "facts.json", to_jsonable(world)),
    }
    for age, people in (("old", world.half_b), ("new", world.new_people)):
        if people:
            contents[f"{age}_knowledge"] = questions.choices(people, seed=seed)
            contents[f"{age}_completion"] = questions.completions(people)
            contents[f"{age}_chat"] = questions.chat_choices(people, seed=seed)
        if people and recipe.lettered:
            contents[f"{age}_lettered"] = questions.lettered(people, seed=seed)
    if world.changes:
        contents["changed_knowledge"] = questions.changed_choices(world, seed=seed)
    if recipe.word_problems:
        problems = easy_problems(HELD_OUT_PROBLEMS, held_out=True, seed=seed)
        data = write_jsonl(folder / "word_problems.jsonl", [problem.row for problem in problems])
        contents["word_problems"] = write_bytes_atomic(
            folder / "word_problems.yaml", problems_task(data).encode()
        )
    files = write_files(folder, contents)
    files["suite"] = _write_suite(folder, files)
    files |= models[recipe]
    return {name: files[name] for name in FILES if name in files}


def _write_suite(folder: Path, files: Mapping[str, Path]) -> Path:
    """The suite beside the files that it names."""
    import yaml

    names = {path.name for path in files.values()}
    suite = dict(_DECLARED["suite"])
    for role in ("keep", "learn"):
        suite[role] = [entry for entry in suite[role] if not names.isdisjoint(entry.values())]
    return write_bytes_atomic(
        folder / "suite.yaml", yaml.safe_dump(suite, sort_keys=False).encode()
    )
