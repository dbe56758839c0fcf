"""What a study of the residual was asked to do. It names several pairs, budgets and scales; its
models are made as those of an update are:

```yaml
families:
  llama-3: {base: meta-llama/Meta-Llama-3-8B, instruct: meta-llama/Meta-Llama-3-8B-Instruct}
  llama-3.1: {base: meta-llama/Llama-3.1-8B, instruct: meta-llama/Llama-3.1-8B-Instruct}
continued: [llama-3]                  # which are continued on the new text
budgets: [100M, 500M, 1B]
derived: {docchat: cerebras/Llama3-DocChat-1.0-8B}
```

Source: Balancing Continuous Pre-Training, sections 2 to 4: table 2 (budgets), table 3 (siblings),
table 4 (derived models).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from holdfast.config.decode import with_floats
from holdfast.papers.residual.settings import StudySettings
from holdfast.papers.residual.toy_recipe import at_width, models_of, recipe_of
from holdfast.records.residual import BASE, INSTRUCT, StudiedModel
from holdfast.studies.update.plan import UpdateConfig, completed


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyConfig(UpdateConfig):
    """A study of the residual."""

    settings_class: ClassVar[type[Any]] = StudySettings
    kind: ClassVar[str] = "study"
    is_part: bool = False
    """Whether this is one part of a study of small worlds: a single world at a single width."""
    where: str = ""
    """Appended to labels: ", width 64, world 2"."""

    @staticmethod
    def normalised(request: StudySettings) -> StudySettings:  # type: ignore[override]
        """With the small world in full, and what follows from the families where it was left
        out."""
        families, derived, widths, world = (
            request.families,
            request.derived,
            request.widths,
            request.world,
        )
        if request.toy:
            recipe = recipe_of(world)
            families, derived = models_of(recipe, {})
            widths, world = widths or (recipe.width,), recipe.record()
        budgets: tuple[Any, ...] = request.budgets
        if not budgets and (request.corpus or request.toy):
            budgets = (None,)
        continued = list(families)[:1] if request.continued is None else request.continued
        return completed(
            dataclasses.replace(
                with_floats(request),
                families=families,
                derived=derived,
                widths=widths,
                world=world,
                budgets=budgets,
                continued=tuple(name for name in families if budgets and name in continued),
                scales=request.scales or (1.0,),
                starts=tuple(start for start in (BASE, INSTRUCT) if start in request.starts),
                siblings=len(families) > 1 if request.siblings is None else request.siblings,
            )
        )

    @staticmethod
    def recorded(request: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        """What was given, and the small world in full: a study of a world that a later version
        would make otherwise is another one."""
        resolved = UpdateConfig.recorded(request, given)
        return {**resolved, "world": request.world} if request.toy else resolved

    @property
    def chooses(self) -> bool:
        """A study shows all of its scales."""
        return False

    @property
    def folder(self) -> Path:
        """Where the inputs of a part lie."""
        if not self.is_part:
            return self.output_dir
        return self.output_dir / f"world{self.request.seeds[0]}-{self.request.widths[0]}"

    def parts(self) -> Sequence[StudyConfig]:
        """The study by small world and width, each world with pairs, new text and questions of its
        own; itself outside of one."""
        if self.request.toy is None or self.is_part:
            return [self]
        return [
            self._part(width, seed)
            for width, seed in itertools.product(self.request.widths, self.request.seeds)
        ]

    def _part(self, width: int, seed: int) -> StudyConfig:
        """The part of a study that is one world of one width. Widths beside the first show what
        size does: they have the pair alone, continued on the largest budget, and the residual at
        scale 1."""
        request = self.request
        recipe = at_width(recipe_of(request.world), width)
        where = f", world {seed}" if len(request.seeds) > 1 else ""
        if width != request.widths[0]:
            recipe = dataclasses.replace(recipe, sibling=False, derived=False)
            where = f", width {width}{where}"
            request = dataclasses.replace(
                request,
                budgets=request.budgets[-1:],
                scales=(1.0,),
                siblings=False,
                retuned=False,
                restore=None,
            )
        recipe = dataclasses.replace(recipe, seed=recipe.seed + seed)
        families, derived = models_of(recipe, {})
        request = dataclasses.replace(
            request,
            families=families,
            derived=derived,
            world=recipe.record(),
            widths=(width,),
            seeds=(seed,),
        )
        return dataclasses.replace(self, request=request, is_part=True, where=where)

    def models(self) -> list[StudiedModel]:
        """Every model of the report, none of them made yet."""
        models: list[StudiedModel] = []
        for world in self.parts():
            models += world._models()
        return models

    def runs(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """See `UpdateConfig.runs`; with the tuning of setting S2."""
        yield from super().runs()
        tuning = self.request.retuned
        if isinstance(tuning, dict) and self.request.continued:
            family = self.request.continued[0]
            base = str(self.request.families[family].base)
            yield "retuned", self.retuning(base, family, Path("run"), seed=0)

    def retuning(self, model: str, family: str, out: Path, *, seed: int) -> dict[str, Any]:
        """The configuration that tunes a continued base on the user's conversations, as `holdfast
        train --config` takes it (setting S2, section 2.1.2). The chat template is the instruct
        model's where none is named.

        Args:
            model: the continued base.
            family: whose it is.
            out: the run's folder.
            seed: of the training.
        """
        tuning = dict(self.request.retuned)
        if "chat_template" not in tuning:
            tuning.setdefault("chat_template_path", str(self.request.families[family].instruct))
        run_settings = {"model_name_or_path": model, "output_dir": str(out), "seed": seed}
        return {**self.second_stage(), **tuning, **run_settings}

    def _tuned(self, continued: StudiedModel) -> Iterator[StudiedModel]:
        """On conversations, after the largest budget."""
        if self.request.retuned and continued.budget == self.request.budgets[-1]:
            label, name = f"{continued.label} + tuning", f"{continued.name}-tuned"
            yield dataclasses.replace(continued, name=name, label=label, tuned=True)

    def _placed(self, model: StudiedModel) -> StudiedModel:
        """The model with its width and its world, in a part of a study of small worlds."""
        if not self.is_part:
            return model
        [width], [seed] = self.request.widths, self.request.seeds
        name, label = f"{model.name}-{width}-world{seed}", f"{model.label}{self.where}"
        return dataclasses.replace(model, name=name, label=label, width=width, seed=seed)
