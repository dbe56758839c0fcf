"""`holdfast probe`: every model as it is and under every change, measured on one plan, into one
folder.

A model is loaded once and changed in place. What a change gives is an ordinary evaluation in a
folder of its own, keyed by the weights, the change and the data: nothing is measured twice, and
what was interrupted goes on in the middle. `records.probe` has the layout.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import ConfigError, Interrupted, NotFinite, RunFolderError, UserError
from holdfast.evaluation.entries import EvaluationPlan
from holdfast.evaluation.loading import ModelLoading
from holdfast.evaluation.probe.outcome import (
    comparable_over_rungs,
    inflections,
    sample_correlations,
    sensitivities,
    trends,
)
from holdfast.evaluation.probe.settings import named_models
from holdfast.evaluation.probe.stds import INIT, TENSOR, std_problems
from holdfast.evaluation.session import ModelRequest, check_request
from holdfast.records.evaluation import Evaluation
from holdfast.records.probe import NOISE, RECORD_FILE, ProbeRecord, read_probe
from holdfast.runs.probed_checkpoint import Probe, ProbedCheckpoint, is_text
from holdfast.support.environment import (
    hardware,
    now,
    quiet_libraries,
    result_folder,
    terminated_is_interrupted,
    versions,
)
from holdfast.support.files import write_json
from holdfast.support.progress import ProgressDisplay
from holdfast.support.resources import release_memory


def probe_models(
    models: Sequence[ModelRequest],
    plan: EvaluationPlan,
    probe: Probe,
    output_dir: str | Path,
    *,
    tokens: Mapping[str, float] | None = None,
    settings: Mapping[str, Any] | None = None,
    loading: ModelLoading = ModelLoading(),
    display: ProgressDisplay = ProgressDisplay(),
) -> ProbeRecord:
    """Measures every model under every change.

    Args:
        models: in the order of the report; of a ladder the smallest budget first.
        plan: what to measure.
        probe: the changes.
        output_dir: new, empty or of an earlier call.
        tokens: pre-training budgets by label; given, the models are a ladder.
        settings: for the record.
        loading: dtype and device of the models; a probe changes weights in place, so none is behind
            a server.
        display: where progress is shown.

    Returns:
        The record, which is in the folder too. A change under which a figure is not finite is part
        of it.

    Raises:
        ConfigError: a model, a task or its data does not fit; all mistakes in one message, before
            anything is measured.
        RunFolderError: the folder holds something else, or another process is at work in it.
        NotFinite: a model as it is has figures that are not finite.
        Interrupted: Ctrl-C or SIGTERM; calling again continues.
    """
    from holdfast.support.dates import dates_of

    out = Path(output_dir)
    if (
        out.is_dir()
        and not (out / RECORD_FILE).is_file()
        and any(not f.name.startswith(".") for f in out.iterdir())
    ):
        raise RunFolderError(
            f"Expected a new or empty --output_dir, or the folder of an earlier probe; {out} has "
            "other files. Choose another folder."
        )
    created = read_probe(out).created if (out / RECORD_FILE).is_file() else now()
    with (
        result_folder(out) as new_folder,
        quiet_libraries(),
        terminated_is_interrupted(),
        dates_of(created),
    ):
        check_probe(models, plan, probe, loading)
        new_folder.keep()
        before = read_probe(out).models if (out / RECORD_FILE).is_file() else []
        record = ProbeRecord(
            models=[],
            settings=dict(settings or {}),
            ladder=bool(tokens),
            confidence=plan.confidence,
            created=created,
            versions=versions(),
            hardware=hardware(),
        )
        write_json(out / RECORD_FILE, record)
        ended = "failed"
        try:
            for model in models:
                checkpoint = ProbedCheckpoint(
                    model, plan=plan, probe=probe, out=out, loading=loading, display=display
                )
                start = checkpoint.measured(None)
                for evaluation in start:
                    if evaluation.failed is not None:
                        raise NotFinite(
                            f"{model.label}: expected finite figures of the unchanged model, got "
                            f"{evaluation.suite}/{evaluation.name}: {evaluation.failed}"
                        )
                for number, change in enumerate(probe.changes, 1):
                    figures = _leading_figures(start, checkpoint.measured(change))
                    display.say(
                        f"{model.label}: {change.name} ({number} of {len(probe.changes)}): "
                        f"{figures}"
                    )
                if probe.curvature.curvature:
                    record.sharpness.append(checkpoint.sharpness())
                record.models.append(checkpoint.described((tokens or {}).get(model.label), before))
                record.notes.extend(n for n in checkpoint.notes if n not in record.notes)
                del checkpoint
                release_memory()
            for model in models:
                record.sensitivities.extend(
                    sensitivities(
                        out, model.label, probe.changes, confidence=plan.confidence, seed=plan.seed
                    )
                )
            if tokens and len(models) > 1:
                ends = models[0].label, models[-1].label
                pairs = sample_correlations(out, record.sensitivities, probe.changes)
                moved = trends(
                    record.sensitivities, *ends, confidence=plan.confidence, correlations=pairs
                )
                alike, notes = comparable_over_rungs(moved, record.models)
                record.trends.extend(alike)
                record.notes.extend(notes)
            if tokens and len(models) > 2:
                budgets = {model.label: tokens[model.label] for model in models}
                turned = inflections(out, budgets, probe.changes, confidence=plan.confidence)
                record.inflections.extend(comparable_over_rungs(turned, record.models)[0])
            ended = "finished"
        except KeyboardInterrupt:
            ended = "interrupted"
            raise Interrupted(
                f"Interrupted; finished work is in {out}. Run the same command to continue."
            ) from None
        finally:
            record = dataclasses.replace(record, status=ended)
            write_json(out / RECORD_FILE, record)
    return record


def check_probe(
    models: Sequence[ModelRequest],
    plan: EvaluationPlan,
    probe: Probe,
    loading: ModelLoading = ModelLoading(),
) -> None:
    """Finds out before anything is measured whether all of it can be.

    Raises:
        ConfigError: all mistakes in one message.
    """
    from holdfast.checkpoints.locate import open_source
    from holdfast.models import check_causal_lm

    problems: list[str] = []
    try:
        check_request(models, plan, loading=loading)
    except ConfigError as error:
        problems += error.problems
    problems += _scaling_problems(models, probe)
    if probe.curvature.curvature:
        if not any(is_text(entry) for entry in plan.entries):
            problems.append("curvature: expected text to measure it on. Add --corpus FILE.")
        if loading.dtype not in ("auto", "float32"):
            problems.append(
                f"curvature: expected --dtype float32, got {loading.dtype}, whose gradients are "
                "too imprecise."
            )
        for model in models if loading.dtype == "auto" and not problems else ():
            shape = check_causal_lm(model.name, trust_remote_code=loading.trust_remote_code)
            stored = getattr(shape, "dtype", None)
            if stored is not None and "float32" not in str(stored):
                problems.append(
                    f"curvature: {model.label} is stored in {str(stored).removeprefix('torch.')}, "
                    "and second derivatives need float32. Add --dtype float32."
                )
    for name in named_models(probe.toward).values() if not problems else ():
        try:
            shapes = {n: e.shape for n, e in open_source(name).entries.items()}
            for model in models:
                expected = {n: e.shape for n, e in open_source(model.name).entries.items()}
                differ = sorted(n for n in expected if shapes.get(n) != expected[n])
                if differ:
                    problems.append(
                        f"toward: expected a model of {model.label}'s shapes, but {len(differ)} "
                        f"tensors of {name} are missing or differ ({', '.join(differ[:3])}). Name "
                        "a fine-tuned version of this model."
                    )
        except UserError as error:
            problems.append(f"toward: {error}")
    if problems:
        raise ConfigError(problems, source="the probe")


def _scaling_problems(models: Sequence[ModelRequest], probe: Probe) -> list[str]:
    """Why noise on the models cannot be scaled as asked."""
    from holdfast.checkpoints.locate import open_source

    problems: list[str] = []
    is_noise = any(change.kind == NOISE for change in probe.changes)
    for model in models if is_noise and probe.std not in (INIT, TENSOR) else ():
        try:
            problems += std_problems(probe.std, open_source(model.name))
        except UserError as error:
            problems.append(f"std: {error}")
    return problems


def _leading_figures(start: Sequence[Evaluation], measured: Sequence[Evaluation]) -> str:
    """The figures that lead, with their change."""
    figures = []
    before = {(e.suite, e.name): e.metrics[e.primary].value for e in start}
    for e in measured[:4]:
        text = "not finite"
        if e.failed is None:
            value = e.metrics[e.primary].value
            text = f"{value:.4g} ({value - before[e.suite, e.name]:+.3g})"
        figures.append(f"{e.name} {text}")
    return ", ".join(figures)
