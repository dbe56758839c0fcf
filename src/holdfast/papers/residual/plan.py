"""What a study of the residual was asked to do. It names several pairs, budgets and scales; its models are made as
those of an update are:

```yaml
families:
  llama-3: {base: meta-llama/Meta-Llama-3-8B, instruct: meta-llama/Meta-Llama-3-8B-Instruct}
  llama-3.1: {base: meta-llama/Llama-3.1-8B, instruct: meta-llama/Llama-3.1-8B-Instruct}
continued: [llama-3]                  # which are continued on the new text
budgets: [100M, 500M, 1B]
derived: {docchat: cerebras/Llama3-DocChat-1.0-8B}
```

Source: Balancing Continuous Pre-Training, sections 2 to 4: table 2 (budgets), table 3 (siblings), table 4 (derived
models).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from holdfast.config.decode import Given
from holdfast.papers.residual.settings import StudySettings
from holdfast.records.residual import BASE, INSTRUCT, StudiedModel
from holdfast.studies.update.plan import ResidualConfig, read_settings, whole_config
from holdfast.studies.update.settings import CommonSettings


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyConfig(ResidualConfig, StudySettings):
    """A study, checked, with nothing left open. Made by `study_config`."""

    kind: ClassVar[str] = "study"
    settings: ClassVar[type[CommonSettings]] = StudySettings
    is_part: bool = False
    """Whether it is one small world of one width, of a study of small worlds."""
    where: str = ""
    """Which one, behind a label: ", width 64, world 2"."""

    @property
    def chooses(self) -> bool:
        """A study shows all of its scales."""
        return False

    @property
    def folder(self) -> Path:
        """Where the inputs of a part lie."""
        return self.output_dir / f"world{self.seeds[0]}-{self.widths[0]}" if self.is_part else self.output_dir

    def parts(self) -> Sequence[StudyConfig]:
        """The study by small world, each with pairs, new text and questions of its own, and the first world at the
        other widths; itself outside of one."""
        if self.small is None or self.is_part:
            return [self]
        first = [self._part(self.widths[0], seed) for seed in self.seeds]
        return first + [self._part(width, self.seeds[0]) for width in self.widths[1:]]

    def _part(self, width: int, seed: int) -> StudyConfig:
        """The part of a study that is one world of one width. Widths beside the first show what size does: they have
        the pair alone, continued on the largest budget, and the residual at scale 1."""
        from holdfast.papers.residual.small_recipe import at_width, models_of, recipe_of

        recipe = at_width(recipe_of(self.world), width)
        where = f", world {seed}" if len(self.seeds) > 1 else ""
        whole: dict[str, Any] = {}
        if width != self.widths[0]:
            recipe = dataclasses.replace(recipe, sibling=False, derived=False)
            where = f", width {width}{where}"
            whole = {
                "budgets": self.budgets[-1:],
                "scales": (1.0,),
                "siblings": False,
                "retuned": False,
                "restore": None,
                "derived": {},
            }
        recipe = dataclasses.replace(recipe, seed=recipe.seed + seed)
        families, derived = models_of(recipe, {})
        one = {"families": families, "derived": derived, "world": recipe.record()}
        return dataclasses.replace(self, **{**one, **whole}, widths=(width,), seeds=(seed,), is_part=True, where=where)

    def models(self) -> list[StudiedModel]:
        """Every model of the report, none of them made yet."""
        return [model for world in self.parts() for model in world._models()]

    def _tuned(self, continued: StudiedModel) -> Iterator[StudiedModel]:
        """On the conversations of the small world, after the largest budget."""
        if self.retuned and continued.budget == self.budgets[-1]:
            label, name = f"{continued.label} + tuning", f"{continued.name}-tuned"
            yield dataclasses.replace(continued, name=name, label=label, tuned=True)

    def _placed(self, model: StudiedModel) -> StudiedModel:
        """The model with its width and its world, in a part of a study of small worlds."""
        if not self.is_part:
            return model
        [width], [seed] = self.widths, self.seeds
        name, label = f"{model.name}-{width}-world{seed}", f"{model.label}{self.where}"
        return dataclasses.replace(model, name=name, label=label, width=width, seed=seed)


def study_config(values: Mapping[str, Any] | Given, *, source: str | None = None) -> StudyConfig:
    """The configuration of a study; as `update_config`, with keys of `StudySettings`.

    Raises:
        ConfigError: with every mistake at once.
    """
    settings, request = read_settings(StudySettings, values, source)
    families, derived, widths = settings.families, settings.derived, settings.widths
    if settings.small:
        from holdfast.papers.residual.small_recipe import models_of, recipe_of

        recipe = recipe_of(settings.world)
        families, derived = models_of(recipe, {})
        widths = widths or (recipe.width,)
        # in full, so that a study of a world that a later version would make otherwise is not taken for this one
        request.values["world"] = recipe.record()
    budgets: tuple[int | None, ...] = settings.budgets
    if not budgets and (settings.corpus or settings.small):
        budgets = (None,)
    continued = list(families)[:1] if settings.continued is None else settings.continued
    return whole_config(
        StudyConfig,
        settings,
        request,
        settings.folder,
        name=settings.name,
        families=families,
        derived=derived,
        budgets=budgets,
        continued=tuple(name for name in families if budgets and name in continued),
        scales=settings.scales or (1.0,),
        starts=tuple(start for start in (BASE, INSTRUCT) if start in settings.starts),
        widths=widths,
        siblings=len(families) > 1 if settings.siblings is None else settings.siblings,
    )
