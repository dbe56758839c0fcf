"""The keys of a study of the residual beside those of an update, each with its type, bounds and
default."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from holdfast.config.declare import Meta
from holdfast.config.values import Refused, show
from holdfast.errors import Problem, did_you_mean
from holdfast.records.residual import BASE, INSTRUCT
from holdfast.studies.engine.keys import BaseStudySettings
from holdfast.studies.update.settings import GridSettings, Tokens, model_problems, pair_problems

_NAME = re.compile(r"[A-Za-z0-9][\w.]*(-[\w.]+)*")


def _read_world(value: Any) -> dict[str, Any]:
    from holdfast.papers.residual.toy_recipe import read_world

    return read_world(value)


def _world_schema() -> dict[str, Any]:
    from holdfast.config.declare import settings_of
    from holdfast.config.schema import object_schema
    from holdfast.papers.worlds.world import WorldRecipe

    schema = object_schema(settings_of(WorldRecipe))
    schema["properties"]["quick"] = {
        "type": "boolean",
        "default": False,
        "description": "Sizes that take seconds.",
    }
    return schema


@dataclass(frozen=True, kw_only=True)
class StudySettings(GridSettings, BaseStudySettings):
    """`holdfast study run` of the residual."""

    toy_start: ClassVar[str] = ""

    name: str = "residual"
    continued: tuple[str, ...] | None = None
    """Families of models whose pre-training continues on the new text. Default: the first
    family."""
    budgets: tuple[Tokens, ...] = ()
    """Numbers of tokens of new text to train on, such as [100M, 500M, 1B]."""
    retuned: Annotated[bool | dict[str, Any], Meta(metavar="'{dataset_name: FILE}'")] = False
    """Also tunes the base on conversations, after continued pre-training on the largest budget (the
    paper's setting S2). In the paper, the residual replaces this step. Give the keys of
    'holdfast train' that differ from continued pre-training. In a small world, give true: the world
    has its own conversations."""
    widths: Annotated[tuple[int, ...], Meta(ge=1, section="toy_world")] = ()
    """Hidden sizes of the models in the small worlds. Every world has models of all sizes. The
    first size gets the whole grid. The other sizes get only the largest budget and the residual at
    scale 1."""
    toy: Annotated[Literal["world"] | None, Meta(former=("small",))] = None
    """Builds small models and new facts offline. A study then takes minutes. Each seed is a world
    of its own."""
    world: Annotated[
        dict[str, Any], Meta(parse=_read_world, json_schema=_world_schema, section="toy_world")
    ] = field(default_factory=dict)
    """Settings of the small world, as for 'holdfast reproduce --world'. With 'quick: true' the
    study takes seconds."""
    keep_weights: Literal["all", "result", "none"] = "none"
    """Which models keep their weights on disk."""

    def problems(self) -> list[Problem | str]:
        """Models and files that are not there, and keys that do not go together."""
        problems: list[str] = [*super().problems(), *self.evaluation_problems()]
        problems += self.corpus_problems(needed=bool(self.budgets) and not self.toy)
        problems += self.restore_problems(given=not self.toy)
        if self.restore is not None and INSTRUCT not in self.starts:
            text = "needs the continued instruct model. Add `instruct` to `starts`."
            problems.append(Problem("restore", text))
        if self.toy:
            return [*problems, *self._toy_problems()]
        problems += self._retuned_problems()
        for key in ("world", "widths"):
            if getattr(self, key):
                text = f"has no effect without toy: world. Add toy: world, or leave {key} out."
                problems.append(Problem(key, text))
        names = tuple(self.families)
        problems += self._unknown_names(names)
        if not self.families:
            text = (
                "expected pairs by name, as in 'llama-3: {base: MODEL, instruct: MODEL}', got "
                "nothing."
            )
            problems.append(Problem("families", text))
        for name, pair in self.families.items():
            problems += named_problems("families", name, ())
            problems += pair_problems(pair.base, pair.instruct, ("families", name))
        for name, model in self.derived.items():
            problems += named_problems("derived", name, names)
            problems += model_problems(model, ("derived", name))
        return problems

    def _retuned_problems(self) -> list[Problem]:
        """What keeps the continued base of given models from being tuned."""
        tuning = self.retuned
        if tuning is False:
            return []
        if tuning is True or not (tuning.get("dataset_name") or tuning.get("datasets")):
            text = (
                "expected keys of 'holdfast train' with your conversations, as in "
                f"'{{dataset_name: FILE}}', got {show(tuning)}, which names no data."
            )
            return [Problem("retuned", text)]
        problems = []
        for key in ("model_name_or_path", "output_dir", "seed", "evaluation", "keep", "learn"):
            if key in tuning:
                problems.append(Problem(("retuned", key), "is set by the study; leave it out."))
        if BASE not in self.starts or not self.budgets:
            text = "needs the continued base. Add `base` to `starts`, and set `budgets`."
            problems.append(Problem("retuned", text))
        if self.train.get("use_peft"):
            text = (
                "needs a continued model with full weights, but `train` sets `use_peft`. Leave out "
                "`retuned` or `use_peft`."
            )
            problems.append(Problem("retuned", text))
        return problems

    def _toy_problems(self) -> list[Problem]:
        """What is wrong with the small world."""
        from holdfast.papers.residual.toy_recipe import at_width, models_of, recipe_of

        try:
            names = tuple(models_of(recipe_of(self.world), {})[0])
        except Refused as error:
            return [problem.below("world") for problem in error.problems]
        problems = []
        if isinstance(self.retuned, dict):
            text = "expected true or false, because toy: world has its own conversations."
            problems.append(Problem("retuned", text))
        for width in self.widths:
            for problem in at_width(recipe_of(self.world), width).problems():
                problems.append(Problem("widths", problem))
        return problems + self._unknown_names(names)

    def _unknown_names(self, families: tuple[str, ...]) -> list[Problem]:
        """Families and starts that there are not."""
        problems = []
        for key, known in (("continued", families), ("starts", (BASE, INSTRUCT))):
            for name in getattr(self, key) or ():
                if name not in known:
                    text = (
                        f"expected some of {', '.join(known)}, got "
                        f"{name!r}.{did_you_mean(name, known)}"
                    )
                    problems.append(Problem(key, text))
        return problems


def named_problems(key: str, name: str, taken: tuple[str, ...]) -> Sequence[str]:
    """What is wrong with a name that folders are called by."""
    if _NAME.fullmatch(name) and name not in taken:
        return []
    text = f"expected a unique name of letters, digits, '.', '_' and '-', got {name!r}."
    return [Problem(key, text)]
