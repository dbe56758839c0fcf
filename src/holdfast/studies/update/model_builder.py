"""Makes the models of an update: continues a given one on new text, adds a residual, or both; then
measures it.

Everything lies under its name in the folder, so whoever comes later finds it: a run that is
finished is not trained again, a model that is whole is not built again, an entry that was measured
is not measured again. Workers that need the same continued model wait for each other at its folder.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.records.residual import StudiedModel
from holdfast.records.run import RunFolder, RunRecord
from holdfast.studies.engine.models import MadeModel, measuring_processes
from holdfast.studies.engine.recipes import Given, Residual, Trained, build, has_weights, make
from holdfast.studies.update.plan import UpdateConfig
from holdfast.support.environment import EVALUATION_CACHE, say, wait_for_lock
from holdfast.support.resources import release_memory

if TYPE_CHECKING:
    from holdfast.evaluation.entries import EvaluationPlan
    from holdfast.studies.engine.worker import Task


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelBuilder:
    """What making models needs, beside their plan: models that were checked, the new text, what is
    measured."""

    config: UpdateConfig
    texts: Mapping[int | None, Path]
    """New text by budget."""
    plan: EvaluationPlan
    corpus: dict[str, Any]
    """See `ResidualRecord.corpus`."""
    ancestry: list[dict[str, Any]]
    """See `ResidualRecord.ancestry`."""
    notes: list[str]
    """What was noticed about models and text, for people."""

    @property
    def out(self) -> Path:
        """The folder of everything."""
        return self.config.output_dir

    def make(self, model: StudiedModel, task: Task) -> StudiedModel:
        """A model with its folder: given, continued, built.

        Raises:
            HoldfastError: training or building failed.
            Interrupted: Ctrl-C; the same call goes on.
        """
        started = self.continued(model, task) if model.continued else model
        if model.distilled:
            return self._distilled(model, started, task)
        return started if model.residual is None else self._with_residual(model, started, task)

    def measure(self, model: StudiedModel, task: Task) -> StudiedModel:
        """The model with everything measured that the plan asks for."""
        from holdfast.evaluation.session import read_record

        folder = self.out / "evaluations" / model.name
        path = model.path if model.given else str(self.out / model.path)
        measured = self._made(Given(model=path, folder=folder, label=model.name), task).measured
        about = read_record(folder).models[0]
        return dataclasses.replace(
            model,
            hash=str(about["hash"]),
            parameters=int(about.get("parameters") or 0),
            evaluations=self._below(measured.path),
            state="complete",
        )

    def continued(self, model: StudiedModel, task: Task) -> StudiedModel:
        """The model that was trained on the new text, before anything is done to restore it."""
        config, data = self.config, self.texts[model.budget]
        folder = self.out / "runs" / config.run_name(model)
        settings = config.training(config.given(model), folder, data, seed=model.seed)
        record = self.trained(settings, task, f"{model.label}: training on {data.name}")
        tokens = int(record.training.get("tokens") or 0)
        parameters = int(record.model.get("parameters") or 0)
        return dataclasses.replace(
            model,
            path=self._below(folder),
            tokens=tokens,
            seconds=float(record.training.get("seconds") or 0.0),
            flops=6.0 * parameters * tokens,
            parameters=parameters,
        )

    def _distilled(self, model: StudiedModel, started: StudiedModel, task: Task) -> StudiedModel:
        """The continued instruct model, held to the one of before on its own answers."""
        folder = self.out / "runs" / model.name
        onto, teacher = str(self.out / started.path), self.config.given(model)
        settings = self.config.restoring(onto, teacher, folder, seed=model.seed)
        record = self.trained(settings, task, f"{model.label}: answering prompts")
        seconds = started.seconds + float(record.training.get("seconds") or 0.0)
        return dataclasses.replace(started, path=self._below(folder), seconds=seconds)

    def trained(self, settings: Mapping[str, Any], task: Task, text: str) -> RunRecord:
        """The record of a run that ended; `text` is said where it has not ended before."""
        run = RunFolder(settings["output_dir"])
        with wait_for_lock(run.path.with_name(f".{run.path.name}")):
            if not (run.exists() and run.read().status == "finished"):
                say(task.console, text)
            self._made(Trained(settings=settings), task)
        return run.read()

    def _made(self, recipe: Given | Trained, task: Task) -> MadeModel:
        cache, processes = (
            os.environ.get(EVALUATION_CACHE),
            measuring_processes(self.config.request.train),
        )
        result = make(
            recipe, self.plan, cache=Path(cache) if cache else None, task=task, processes=processes
        )
        release_memory()
        return result

    def _with_residual(
        self, model: StudiedModel, started: StudiedModel, task: Task
    ) -> StudiedModel:
        folder, start = self.out / "models" / model.name, self.config.given(model)
        onto = str(self.out / started.path) if model.continued else start
        pair, scale = (
            self.config.request.families[str(model.residual)],
            1.0 if model.scale is None else model.scale,
        )
        recipe = Residual(
            instruct=str(pair.instruct),
            base=str(pair.base),
            onto=onto,
            scale=scale,
            folder=folder,
            adapter_base=start if (Path(onto) / "adapter_config.json").is_file() else None,
        )
        began = time.monotonic()
        if not has_weights(folder):
            say(
                task.console,
                f"{model.label}: adding {'the' if scale == 1 else f'{scale:g} times the'} residual",
            )
            build(recipe)
        return dataclasses.replace(
            started,
            path=self._below(folder),
            seconds=started.seconds + time.monotonic() - began,
            added=scale * self._relative_norm(str(model.residual)),
        )

    def _relative_norm(self, family: str) -> float:
        """The norm of a pair's residual over that of its base, over all weights; NaN where nothing
        was looked at."""
        totals = {evidence["family"]: evidence["total"] for evidence in self.ancestry}
        total = totals.get(family)
        return float("nan") if total is None else float(total["relative"])

    def _below(self, path: Path) -> str:
        return path.relative_to(self.out).as_posix()


def drop_weights(out: Path, model: StudiedModel) -> None:
    """Deletes the weights of a model that was made here; everything else of it stays."""
    from holdfast.studies.engine.worker import remove_weights

    folder = out / model.path
    if model.path and folder.is_dir() and out.resolve() in folder.resolve().parents:
        remove_weights(folder)
