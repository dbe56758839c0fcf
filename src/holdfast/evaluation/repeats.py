"""The noise of the instrument: how far the figures of one model move when it is measured again, with
another batch size, and with another seed where replies are sampled.

`holdfast evaluate --repeat N` leaves `repeats.json` beside a model's evaluations; a comparison says
where a difference is no larger than what the figure of one model alone moved.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path

from holdfast.evaluation.compare.noise import FILE, Repeats
from holdfast.evaluation.entries import Entry, EvaluationPlan
from holdfast.evaluation.loading import ModelLoading
from holdfast.evaluation.runner import evaluate
from holdfast.evaluation.session import ModelRequest, load_model
from holdfast.records.evaluation import EvaluationFolder
from holdfast.support.files import read_as, write_json
from holdfast.support.progress import ProgressDisplay


def repeat_models(
    models: Sequence[ModelRequest],
    plan: EvaluationPlan,
    out: Path,
    *,
    times: int,
    loading: ModelLoading = ModelLoading(),
    display: ProgressDisplay = ProgressDisplay(),
) -> None:
    """Measures models again and writes `repeats.json`; what an interrupted call had is kept.

    Args:
        models: measured once already.
        plan: what was measured.
        out: the output folder.
        times: in all, at least 2.
        loading: as for the first time.
        display: where progress is shown.

    Raises:
        NotFinite: figures are not finite.
    """
    for model in models:
        folder = out / model.label
        keys = _keys(folder, plan)
        if (folder / FILE).is_file():
            before = read_as(folder / FILE, Repeats)
            if before.times >= times and keys.items() <= before.keys.items():
                continue
        loaded = load_model(model, loading)
        figures: dict[str, dict[str, list[float]]] = {}
        for number in range(1, times):
            display.say(f"{model.label}: measured again ({number} of {times - 1})")
            again = EvaluationFolder(folder / f".repeat-{number}")
            for entry in plan.entries:
                evaluate(
                    dataclasses.replace(loaded, identity={**loaded.identity, "name": model.label}),
                    _another(plan, entry, number),
                    folder=again,
                    console=display.console,
                    start=EvaluationFolder(out / models[0].label),
                )
        for entry in plan.entries:
            figures[entry.path] = _figures(folder, entry, times)
        write_json(folder / FILE, Repeats(times=times, figures=figures, keys=keys))
        for number in range(1, times):
            shutil.rmtree(folder / f".repeat-{number}")


def _keys(place: Path, plan: EvaluationPlan) -> dict[str, str]:
    """By suite/name what tells a model's evaluations from those of other data or settings."""
    keys = {}
    for entry in plan.entries:
        evaluation = EvaluationFolder(place).find(entry.suite, entry.name)
        assert evaluation is not None, "it was measured a moment ago"
        keys[entry.path] = evaluation.key
    return keys


def _another(plan: EvaluationPlan, entry: Entry, number: int) -> EvaluationPlan:
    """The plan of one entry with another batch size: 1, 2, 4, ... without the one of before."""
    sizes = [size for size in (2**power for power in range(number + 1)) if size != plan.batch_size]
    is_sampled = bool(getattr(entry, "samples", None) or getattr(entry, "temperature", None))
    seed = plan.seed + number if is_sampled else plan.seed
    return dataclasses.replace(
        plan, entries=(entry,), averages=(), along=None, batch_size=sizes[number - 1], seed=seed
    )


def _figures(place: Path, entry: Entry, times: int) -> dict[str, list[float]]:
    folders = [place, *(place / f".repeat-{number}" for number in range(1, times))]
    figures: dict[str, list[float]] = {}
    for folder in folders:
        evaluation = EvaluationFolder(folder).find(entry.suite, entry.name)
        assert evaluation is not None, "it was measured a moment ago"
        for name, metric in evaluation.metrics.items():
            figures.setdefault(name, []).append(metric.value)
    return figures
