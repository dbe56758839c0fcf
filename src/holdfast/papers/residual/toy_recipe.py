"""The recipe of a small world from the keys under `world:`, and the models that a study has of
it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from holdfast.config.declare import Setting
from holdfast.config.decode import coerce_all, decode
from holdfast.config.values import Refused
from holdfast.papers.worlds.world import WorldRecipe, quick_recipe
from holdfast.studies.update.settings import FamilySettings

FIRST, SIBLING = "first", "sibling"
"""Names of the two pairs where there are two."""
DERIVED_NAME = "derived"
"""Name of the base's other child."""
_QUICK = Setting(name="quick", types=(bool,), default=False)


def recipe_of(settings: Mapping[str, Any]) -> WorldRecipe:
    """The world's recipe from the keys under `world:`; `quick: true` takes sizes of seconds.

    Raises:
        Refused: keys or values do not fit, each of them named.
    """
    keys = dict(settings)
    quick, problems = coerce_all({"quick": _QUICK}, {"quick": keys.pop("quick", False)})
    start = quick_recipe() if quick.get("quick") else None
    recipe, others = decode(WorldRecipe, keys, defaults=start, also=("quick",))
    if recipe is None or problems:
        raise Refused(*problems, *others)
    return recipe


def read_world(value: Any) -> dict[str, Any]:
    """The keys under `world:`, checked; as the record keeps them.

    Raises:
        ValueError: no mapping.
        Refused: as `recipe_of`.
    """
    if not isinstance(value, Mapping):
        raise ValueError("a mapping")
    recipe_of(value)
    return dict(value)


def models_of(
    recipe: WorldRecipe, paths: Mapping[str, str]
) -> tuple[dict[str, FamilySettings], dict[str, str]]:
    """The world's pairs, and the base's other children, by name.

    Args:
        recipe: says which there are.
        paths: where they lie; empty where they are still to be made.
    """
    families: dict[str, FamilySettings] = {}
    for name, prefix in {FIRST: "", SIBLING: "sibling_"}.items():
        if name == FIRST or recipe.sibling:
            base, instruct = paths.get(f"{prefix}base", ""), paths.get(f"{prefix}instruct", "")
            families[name] = FamilySettings(base=base, instruct=instruct)
    return families, {DERIVED_NAME: paths.get("derived", "")} if recipe.derived else {}


def at_width(recipe: WorldRecipe, width: int) -> WorldRecipe:
    """The recipe with models of another hidden size: the MLP grows with it, layers and heads
    stay."""
    if width == recipe.width:
        return recipe
    return dataclasses.replace(recipe, width=width, mlp=round(recipe.mlp * width / recipe.width))
