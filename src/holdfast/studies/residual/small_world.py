"""The embedded world in the place of models and news that nobody has at hand: what `small: world` of a study stands
for.

The world's base and instruct model are the pair (with `sibling: true` there are two), its dated articles are the new
text, and names such as `${old_knowledge}` in the evaluation are its files. See `holdfast.worlds.world` and
docs/embedded_world.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.config.decode import mistakes_in
from holdfast.errors import ConfigError, did_you_mean
from holdfast.studies.residual.plan import TRAIN_DEFAULTS, Family, ResidualConfig
from holdfast.worlds.world import WorldRecipe, build_world, quick_recipe

FIRST, SIBLING = "world", "sibling"
"""Names of the two pairs where there are two."""
DERIVED_NAME = "derived"
"""Name of the base's other child."""


def recipe_of(settings: Mapping[str, Any]) -> WorldRecipe:
    """The world's recipe from the keys under `world:`; `quick: true` takes sizes of seconds.

    Raises:
        ConfigError: unknown keys, with the nearest known one.
    """
    known = [f.name for f in dataclasses.fields(WorldRecipe)]
    given = {k: v for k, v in settings.items() if k != "quick"}
    wrong = [
        f"world.{k}: unknown key.{did_you_mean(str(k), known) or ' Known: quick, ' + ', '.join(known) + '.'}"
        for k in given
        if k not in known
    ]
    if wrong:
        raise ConfigError(wrong)
    recipe = quick_recipe(**given) if settings.get("quick") else WorldRecipe(**given)
    problems = [f"world.{m.sentence()}" for m in mistakes_in(recipe)]
    if problems:
        raise ConfigError(problems)
    return recipe


def models_of(recipe: WorldRecipe, paths: Mapping[str, str]) -> tuple[tuple[Family, ...], dict[str, str]]:
    """The world's pairs, and the base's other children by name.

    Args:
        recipe: says which there are.
        paths: where they lie; empty where they are still to be made.
    """
    families: tuple[Family, ...] = (
        Family(name=FIRST if recipe.sibling else "", base=paths.get("base", ""), instruct=paths.get("instruct", "")),
    )
    if recipe.sibling:
        families += (
            Family(name=SIBLING, base=paths.get("sibling_base", ""), instruct=paths.get("sibling_instruct", "")),
        )
    return families, {DERIVED_NAME: paths.get("derived", "")} if recipe.derived else {}


def fill_in(config: ResidualConfig, folder: Path, *, console: Any = None) -> ResidualConfig:
    """The study with the world's models, articles and files.

    Args:
        config: with `small: world`.
        folder: gets the files.
        console: for the progress of what is made.

    Raises:
        ConfigError: unknown names.
    """
    from holdfast.studies.tradeoff.study import fill

    recipe = recipe_of(config.world)
    paths = build_world(recipe, folder, console=console)
    families, derived = models_of(recipe, paths)
    own = {
        "learning_rate": recipe.continuing_learning_rate,
        "per_device_train_batch_size": recipe.batch_size,
        "gradient_accumulation_steps": 1,
        "gradient_checkpointing": False,
        "warmup_steps": 5,
        "save_strategy": "no",
        "use_cpu": True,
    }
    given = {k: v for k, v in config.train.items() if TRAIN_DEFAULTS.get(k) != v}
    return dataclasses.replace(
        config,
        families=families,
        derived={**config.derived, **derived},
        corpus=(paths["articles"],),
        evaluation=fill(config.evaluation, paths),
        train={**{k: v for k, v in TRAIN_DEFAULTS.items() if k != "save_steps"}, **own, **given},
    )
