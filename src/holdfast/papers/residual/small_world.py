"""The embedded world in the place of models and news that nobody has at hand: what `small: world` of a study stands
for.

The world's base and instruct model are the pair (with `sibling: true` there are two), its dated articles are the new
text, and names such as `${old_knowledge}` in the evaluation are its files. Each seed of a study is another world, with
people, texts and weights of its own; each width another size of its models. See `holdfast.papers.worlds.world` and
docs/embedded_world.md.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.config.decode import decode
from holdfast.config.values import Refused
from holdfast.papers.residual.plan import StudyConfig
from holdfast.papers.worlds.world import WorldRecipe, build_worlds, quick_recipe
from holdfast.records.residual import StudiedModel
from holdfast.studies.update.making import Workshop
from holdfast.studies.update.plan import TRAIN_DEFAULTS
from holdfast.studies.update.settings import FamilySettings
from holdfast.support.environment import say
from holdfast.support.resources import release_memory

FIRST, SIBLING = "first", "sibling"
"""Names of the two pairs where there are two."""
DERIVED_NAME = "derived"
"""Name of the base's other child."""


def recipe_of(settings: Mapping[str, Any]) -> WorldRecipe:
    """The world's recipe from the keys under `world:`; `quick: true` takes sizes of seconds.

    Raises:
        Refused: keys or values do not fit, each of them named.
    """
    wanted, mistakes = decode(_Size, {k: v for k, v in settings.items() if k == "quick"})
    given = {k: v for k, v in settings.items() if k != "quick"}
    start = quick_recipe() if wanted and wanted.quick else None
    recipe, others = decode(WorldRecipe, given, defaults=start, also=("quick",))
    if recipe is None or mistakes:
        raise Refused(*mistakes, *others)
    return recipe


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Size:
    quick: bool = False
    """Sizes of seconds."""


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


def models_of(recipe: WorldRecipe, paths: Mapping[str, str]) -> tuple[dict[str, FamilySettings], dict[str, str]]:
    """The world's pairs, and the base's other children, by name.

    Args:
        recipe: says which there are.
        paths: where they lie; empty where they are still to be made.
    """
    places = {FIRST: "", **({SIBLING: "sibling_"} if recipe.sibling else {})}
    families = {
        name: FamilySettings(base=paths.get(f"{place}base", ""), instruct=paths.get(f"{place}instruct", ""))
        for name, place in places.items()
    }
    return families, {DERIVED_NAME: paths.get("derived", "")} if recipe.derived else {}


def at_width(recipe: WorldRecipe, width: int) -> WorldRecipe:
    """The recipe with models of another hidden size: the MLP grows with it, layers and heads stay."""
    if width == recipe.width:
        return recipe
    return dataclasses.replace(recipe, width=width, mlp=round(recipe.mlp * width / recipe.width))


def part_of(config: StudyConfig, width: int, seed: int) -> StudyConfig:
    """The part of a study that one world of one width is. Widths beside the first show what size does: they have the
    pair alone, continued on the largest budget, and the residual at scale 1."""
    recipe = at_width(recipe_of(config.world), width)
    where = f", world {seed}" if len(config.seeds) > 1 else ""
    whole: dict[str, Any] = {}
    if width != config.widths[0]:
        recipe = dataclasses.replace(recipe, sibling=False, derived=False)
        where = f", width {width}{where}"
        whole = {
            "budgets": config.budgets[-1:],
            "scales": (1.0,),
            "siblings": False,
            "retuned": False,
            "restore": None,
            "derived": {},
        }
    recipe = dataclasses.replace(recipe, seed=recipe.seed + seed)
    families, derived = models_of(recipe, {})
    one = {"families": families, "derived": derived, "world": recipe.record()}
    return dataclasses.replace(config, **{**one, **whole}, widths=(width,), seeds=(seed,), is_part=True, where=where)


def tuned(model: StudiedModel, workshop: Workshop) -> StudiedModel:
    """The continued base, tuned on the conversations that its world's instruct model was tuned on, as that was.

    Args:
        model: what it becomes.
        workshop: of its world.
    """
    from holdfast.papers.worlds.tuned import cached_tuning
    from holdfast.papers.worlds.world_models import instruct_tuning

    assert isinstance(workshop.config, StudyConfig)
    started = workshop.continued(model)
    say(workshop.console, f"{model.label}: tuning on the conversations")
    began = time.monotonic()
    tuning = instruct_tuning(recipe_of(workshop.config.world), workshop.out / started.path)
    path = cached_tuning(tuning, console=workshop.console)
    release_memory()
    return dataclasses.replace(started, path=str(path), seconds=started.seconds + time.monotonic() - began)


def fill_in(parts: Sequence[StudyConfig], *, console: Any = None) -> list[StudyConfig]:
    """The parts of a study with their worlds' models, articles and files, which their folders get. Models of several
    worlds are trained side by side.

    Args:
        parts: with `small: world`, of one world each.
        console: for the progress of what is made.

    Raises:
        ConfigError: unknown names.
    """
    recipes = [recipe_of(part.world) for part in parts]
    wanted = [(recipe, part.folder / "data") for recipe, part in zip(recipes, parts, strict=True)]
    made = build_worlds(wanted, console=console)
    return [_filled(part, recipe, paths) for part, recipe, paths in zip(parts, recipes, made, strict=True)]


def _filled(config: StudyConfig, recipe: WorldRecipe, paths: Mapping[str, str]) -> StudyConfig:
    from holdfast.studies.engine.small import fill

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
    restore = config.restore
    if restore is not None and restore.prompts is None:
        restore = dataclasses.replace(restore, prompts=paths["tuning"])
    return dataclasses.replace(
        config,
        restore=restore,
        families=families,
        derived=derived,
        corpus=(paths["articles"],),
        evaluation=fill(config.evaluation, paths),
        train={k: v for k, v in TRAIN_DEFAULTS.items() if k != "save_steps"} | own | given,
    )
