"""Making one model of an update or a study: continue a given one on new text, add a residual, or both; then measure it.

Everything lies under its name in the folder, so whoever comes later finds it: a run that is finished is not trained
again, a model that is whole is not built again, an entry that was measured is not measured again. Workers that need the
same continued model wait for each other at its folder.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.records.evaluation import EvaluationFolder
from holdfast.records.residual import BASE, DERIVED, StudiedModel
from holdfast.records.run import RunFolder
from holdfast.runs.launched import train_in_processes
from holdfast.studies.residual.plan import Family, ResidualConfig, is_continued, run_name, training_settings
from holdfast.support.environment import EVALUATION_CACHE, say, wait_for_lock
from holdfast.support.files import read_json, write_json

MADE = "made.json"
"""Beside a model: what is known of how it was made."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workshop:
    """What making needs, beside the model's plan."""

    config: ResidualConfig
    out: Path
    texts: Mapping[int | None, Path]
    """New text by budget."""
    plan: Any
    """The `EvaluationPlan`."""
    console: Any = None

    def make(self, model: StudiedModel) -> StudiedModel:
        """A model with its folder: given, continued, built.

        Raises:
            HoldfastError: training or building failed.
            Interrupted: Ctrl-C; the same call goes on.
        """
        started = model
        if is_continued(model):
            started = self._continued(model)
        if model.residual is None:
            return started
        return self._with_residual(model, started)

    def measure(self, model: StudiedModel) -> StudiedModel:
        """The model with everything measured that the plan asks for."""
        from holdfast.evaluation.session import ModelRequest, evaluate_models

        place = self.out / "evaluations" / model.name
        record = evaluate_models(
            [ModelRequest(name=self._path(model), label=model.name)],
            self.plan,
            place,
            cache=os.environ.get(EVALUATION_CACHE),
            console=self.console,
            say=lambda line: None,
        )
        gc.collect()
        found = record.models[0]
        evaluations = (place / model.name).relative_to(self.out)
        return dataclasses.replace(
            model,
            hash=str(found["hash"]),
            parameters=int(found.get("parameters") or 0),
            evaluations=evaluations.as_posix(),
            state="complete",
        )

    def measured(self, model: StudiedModel) -> EvaluationFolder:
        """Where a model's evaluations are."""
        return model.measured(self.out)

    # --------------------------------------------------------------------------------------------------------- making

    def _family(self, name: str) -> Family:
        return self.config.family(name)

    def _given(self, model: StudiedModel) -> str:
        """The path of what a model starts from."""
        if model.start == DERIVED:
            return self.config.derived[model.family]
        family = self._family(model.family)
        return family.base if model.start == BASE else family.instruct

    def _continued(self, model: StudiedModel) -> StudiedModel:
        from holdfast.runs.config import train_config
        from holdfast.runs.run import train

        name = run_name(model, self.config)
        folder = self.out / "runs" / name
        settings = training_settings(self.config, self._given(model), folder, self.texts[model.budget], seed=model.seed)
        with wait_for_lock(self.out / "runs" / f".{name}"):
            run = RunFolder(folder)
            if not (run.exists() and run.read().status == "finished"):
                say(self.console, f"{model.label}: training on {self.texts[model.budget].name}")
            wanted = train_config(settings)
            if wanted.processes > 1:
                train_in_processes(wanted, folder)
            else:
                train(wanted, console=self.console)
            gc.collect()
        record = run.read()
        done = record.training
        tokens = int(done.get("tokens") or 0)
        parameters = int(record.model.get("parameters") or 0)
        return dataclasses.replace(
            model,
            path=folder.relative_to(self.out).as_posix(),
            tokens=tokens,
            seconds=float(done.get("seconds") or 0.0),
            flops=6.0 * parameters * tokens,
            parameters=parameters,
            residual=None,
            scale=None,
        )

    def _with_residual(self, model: StudiedModel, started: StudiedModel) -> StudiedModel:
        from holdfast.checkpoints.residual import prepare_transfer

        folder = self.out / "models" / model.name
        family = self._family(str(model.residual))
        onto = str(self.out / started.path) if is_continued(model) else self._given(model)
        scale = 1.0 if model.scale is None else model.scale
        wanted = {
            "scale": scale,
            "instruct": family.instruct,
            "old_base": family.base,
            "onto": onto,
            "hash": _hash(onto),
        }
        seconds = 0.0
        with wait_for_lock(self.out / "models" / f".{model.name}"):
            known = read_json(folder / MADE) if (folder / MADE).is_file() else {}
            if known.get("of") != wanted:
                say(self.console, f"{model.label}: adding {'the' if scale == 1 else f'{scale:g} times the'} residual")
                began = time.monotonic()
                prepared = prepare_transfer(
                    family.instruct, family.base, onto, scale=scale, adapter_base=self._adapter_base(onto, model)
                )
                prepared.write(folder, overwrite=True)
                seconds = time.monotonic() - began
                write_json(folder / MADE, {"of": wanted, "seconds": seconds, "notes": list(prepared.plan.notes)})
            else:
                seconds = float(known.get("seconds", 0.0))
        return dataclasses.replace(
            started,
            name=model.name,
            label=model.label,
            residual=model.residual,
            scale=model.scale,
            path=folder.relative_to(self.out).as_posix(),
            seconds=started.seconds + seconds,
        )

    def _adapter_base(self, onto: str, model: StudiedModel) -> str | None:
        return self._given(model) if (Path(onto) / "adapter_config.json").is_file() else None

    def _path(self, model: StudiedModel) -> str:
        made = model.path and (self.out / model.path).is_dir() and (is_continued(model) or model.residual is not None)
        return str(self.out / model.path) if made else model.path


def drop_weights(out: Path, model: StudiedModel) -> None:
    """Deletes the weights of a model that was made here; everything else of it stays."""
    folder = out / model.path
    if not model.path or not folder.is_dir() or out.resolve() not in folder.resolve().parents:
        return
    for file in folder.glob("*.safetensors"):
        file.unlink(missing_ok=True)
    (folder / MADE).unlink(missing_ok=True)


def _hash(name: str) -> str:
    from holdfast.models import weights_hash

    try:
        return weights_hash(name)
    except HoldfastError:
        return ""
