"""The embedded world in the place of models and news that nobody has at hand: what `toy: world` of
a study stands for.

The world's base and instruct model are the pair (with `sibling: true` there are two), its dated
articles are the new text, and names such as `${old_knowledge}` in the evaluation are its files.
Each seed of a study is another world, with people, texts and weights of its own; each width another
size of its models. See `holdfast.papers.worlds.world` and docs/embedded_world.md.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.papers.residual.plan import StudyConfig
from holdfast.papers.residual.toy_recipe import models_of, recipe_of
from holdfast.papers.worlds.world import WorldRecipe, build_worlds
from holdfast.records.residual import StudiedModel
from holdfast.studies.update.model_builder import ModelBuilder
from holdfast.studies.update.plan import TRAIN_DEFAULTS
from holdfast.support.environment import say
from holdfast.support.resources import release_memory

if TYPE_CHECKING:
    from holdfast.studies.engine.worker import Task


def tuned(model: StudiedModel, builder: ModelBuilder, task: Task) -> StudiedModel:
    """The continued base, tuned on the conversations that its world's instruct model was tuned on,
    as that was.

    Args:
        model: what it becomes.
        builder: of its world.
        task: what the worker does.
    """
    from holdfast.papers.worlds.tuned import cached_tuning
    from holdfast.papers.worlds.world_models import instruct_tuning

    assert isinstance(builder.config, StudyConfig)
    started = builder.continued(model, task)
    say(task.console, f"{model.label}: tuning on the conversations")
    began = time.monotonic()
    tuning = instruct_tuning(recipe_of(builder.config.request.world), builder.out / started.path)
    path = cached_tuning(tuning, console=task.console)
    release_memory()
    return dataclasses.replace(
        started, path=str(path.absolute()), seconds=started.seconds + time.monotonic() - began
    )


def fill_in(parts: Sequence[StudyConfig], *, console: Any = None) -> list[StudyConfig]:
    """The parts of a study with their worlds' models, articles and files, which their folders get.
    Models of several worlds are trained side by side.

    Args:
        parts: with `toy: world`, of one world each.
        console: for the progress of what is made.

    Raises:
        ConfigError: unknown names.
    """
    recipes = [recipe_of(config.request.world) for config in parts]
    folders = [config.folder / "data" for config in parts]
    files = build_worlds(list(zip(recipes, folders, strict=True)), console=console)
    return [_filled(*world) for world in zip(parts, recipes, files, strict=True)]


def _filled(config: StudyConfig, recipe: WorldRecipe, paths: Mapping[str, str]) -> StudyConfig:
    from holdfast.studies.engine.toy import fill

    families, derived = models_of(recipe, paths)
    of_world = {
        "learning_rate": recipe.continuing_learning_rate,
        "per_device_train_batch_size": recipe.batch_size,
        "gradient_accumulation_steps": 1,
        "gradient_checkpointing": False,
        "warmup_steps": 5,
        "save_strategy": "no",
        "use_cpu": True,
    }
    request, restore = config.request, config.request.restore
    of_user = {k: v for k, v in request.train.items() if TRAIN_DEFAULTS.get(k) != v}
    if restore is not None and restore.prompts is None:
        restore = dataclasses.replace(restore, prompts=paths["tuning"])
    request = dataclasses.replace(
        request,
        restore=restore,
        families=families,
        derived=derived,
        corpus=(paths["articles"],),
        evaluation=fill(request.evaluation, paths),
        train={k: v for k, v in TRAIN_DEFAULTS.items() if k != "save_steps"} | of_world | of_user,
    )
    return dataclasses.replace(config, request=request)
