"""Making one model: continue a given one on new text, add a residual, or both; then measure it.

Everything lies under its name in the folder, so whoever comes later finds it: a run that is finished is not trained
again, a model that is whole is not built again, an entry that was measured is not measured again. Workers that need the
same continued model wait for each other at its folder.
"""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.records.residual import StudiedModel
from holdfast.records.run import LayerDistance, RunFolder, RunRecord
from holdfast.runs.launched import train_in_processes
from holdfast.studies.engine.models import measuring_processes
from holdfast.studies.update.plan import ResidualConfig, restoring_settings, training_settings
from holdfast.support.environment import EVALUATION_CACHE, say, wait_for_lock
from holdfast.support.files import read_object, write_json
from holdfast.support.resources import release_memory

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
        started = self.continued(model) if model.continued else model
        if model.distilled or model.self_distilled:
            return self._distilled(model, started)
        return started if model.residual is None else self._with_residual(model, started)

    def measure(self, model: StudiedModel) -> StudiedModel:
        """The model with everything measured that the plan asks for."""
        from holdfast.evaluation.session import ModelRequest, evaluate_models

        folder, path = self.out / "evaluations" / model.name, model.path
        if path and not model.given and (self.out / path).is_dir():
            path = str(self.out / path)
        record = evaluate_models(
            [ModelRequest(name=path, label=model.name)],
            self.plan,
            folder,
            cache=os.environ.get(EVALUATION_CACHE),
            num_processes=measuring_processes(self.config.train, self.plan),
            console=self.console,
            say=lambda line: None,
        )
        release_memory()
        facts = record.models[0]
        return dataclasses.replace(
            model,
            hash=str(facts["hash"]),
            parameters=int(facts.get("parameters") or 0),
            evaluations=(folder / model.name).relative_to(self.out).as_posix(),
            state="complete",
        )

    # --------------------------------------------------------------------------------------------------------- making

    def continued(self, model: StudiedModel) -> StudiedModel:
        """The model that was trained on the new text, before anything is done to restore it."""
        name, data, config = self.config.run_name(model), self.texts[model.budget], self.config
        run = RunFolder(self.out / "runs" / name)
        settings = training_settings(config, config.given(model), run.path, data, seed=model.seed)
        record = self._trained(run, settings, f"{model.label}: training on {data.name}")
        tokens = int(record.training.get("tokens") or 0)
        parameters = int(record.model.get("parameters") or 0)
        return dataclasses.replace(
            model,
            path=run.path.relative_to(self.out).as_posix(),
            tokens=tokens,
            seconds=float(record.training.get("seconds") or 0.0),
            flops=6.0 * parameters * tokens,
            parameters=parameters,
        )

    def _distilled(self, model: StudiedModel, started: StudiedModel) -> StudiedModel:
        """The continued instruct model, held to the one of before on its own answers, or to itself with the
        conversations' answers in the prompt."""
        run = RunFolder(self.out / "runs" / model.name)
        onto, teacher = str(self.out / started.path), self.config.given(model) if model.distilled else None
        settings = restoring_settings(self.config, onto, teacher, run.path, seed=model.seed)
        record = self._trained(run, settings, f"{model.label}: answering prompts")
        seconds = started.seconds + float(record.training.get("seconds") or 0.0)
        return dataclasses.replace(started, path=run.path.relative_to(self.out).as_posix(), seconds=seconds)

    def _trained(self, run: RunFolder, settings: Mapping[str, Any], text: str) -> RunRecord:
        """The record of a run that ended; `text` is said where it has not ended before."""
        from holdfast.runs.config import train_config
        from holdfast.runs.run import train

        training = train_config(settings)
        with wait_for_lock(run.path.with_name(f".{run.path.name}")):
            if not (run.exists() and run.read().status == "finished"):
                say(self.console, text)
            if training.processes > 1:
                train_in_processes(training, run.path)
            else:
                train(training, console=self.console, alone=False)
            release_memory()
        return run.read()

    def _with_residual(self, model: StudiedModel, started: StudiedModel) -> StudiedModel:
        from holdfast.checkpoints.residual import prepare_transfer

        folder, pair, start = self.out / "models" / model.name, str(model.residual), self.config.given(model)
        family, onto = self.config.families[pair], str(self.out / started.path) if model.continued else start
        instruct, base = str(family.instruct), str(family.base)
        scale = 1.0 if model.scale is None else model.scale
        recipe = {"scale": scale, "instruct": instruct, "old_base": base, "onto": onto, "hash": _hash(onto)}
        with wait_for_lock(self.out / "models" / f".{model.name}"):
            known = read_object(folder / MADE) if (folder / MADE).is_file() else {}
            if known.get("of") != recipe:
                say(self.console, f"{model.label}: adding {'the' if scale == 1 else f'{scale:g} times the'} residual")
                began = time.monotonic()
                adapter_base = start if (Path(onto) / "adapter_config.json").is_file() else None
                prepared = prepare_transfer(instruct, base, onto, scale=scale, adapter_base=adapter_base)
                prepared.write(folder, overwrite=True)
                known = {
                    "of": recipe,
                    "seconds": time.monotonic() - began,
                    "notes": list(prepared.plan.notes),
                    "added": scale * relative_norm(prepared.plan.ancestry),
                }
                write_json(folder / MADE, known)
        spent = {f: getattr(started, f) for f in ("tokens", "flops", "parameters")}
        seconds = started.seconds + float(known.get("seconds", 0.0))
        path, added = folder.relative_to(self.out).as_posix(), known.get("added")
        return dataclasses.replace(model, path=path, seconds=seconds, added=added, **spent)


def relative_norm(ancestry: Sequence[LayerDistance]) -> float:
    """The norm of a residual over that of its base, over all weights, from `holdfast.checkpoints.ancestry`; NaN where
    nothing was looked at."""
    return next((d.relative for d in ancestry if d.layer == "total"), math.nan)


def drop_weights(out: Path, model: StudiedModel) -> None:
    """Deletes the weights of a model that was made here; everything else of it stays."""
    from holdfast.studies.engine.worker import remove_weights

    folder = out / model.path
    if not model.path or not folder.is_dir() or out.resolve() not in folder.resolve().parents:
        return
    remove_weights(folder)
    (folder / MADE).unlink(missing_ok=True)


def _hash(name: str) -> str:
    from holdfast.models import weights_hash

    try:
        return weights_hash(name)
    except HoldfastError:
        return ""
