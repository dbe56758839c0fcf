"""Records of probes as pages get them: a ladder of three checkpoints, and one checkpoint alone."""

from __future__ import annotations

import math

from holdfast.records.figure import Figure
from holdfast.records.probe import (
    AS_IT_IS,
    NOISE,
    PRUNE,
    QUANTIZE,
    TOWARD,
    Inflection,
    Line,
    ProbedModel,
    ProbeRecord,
    Sensitivity,
    Sharpness,
    Trend,
)


def probe(name: str = "step", note: str = "", *, ladder: bool = True) -> ProbeRecord:
    """Costs grow with the budget; noise of 1 overflows in the last checkpoint.

    Args:
        name: in front of every checkpoint's label.
        note: for the page's notes, and of the settings.
        ladder: three checkpoints with budgets, else one without.
    """
    budgets = [1e6, 4e6, 16e6] if ladder else [None]
    models = [
        ProbedModel(
            label=f"{name}{place}",
            name=f"runs/{name}{place}",
            hash=str(place),
            architecture="LlamaForCausalLM",
            parameters=1_000_000,
            dtype="float32",
            tokens=budget,
            stds="init",
            origin=note,
        )
        for place, budget in enumerate(budgets)
    ]
    sensitivities = []
    for place, model in enumerate(models):
        changes = [(NOISE, "", 0.01), (NOISE, "", 0.1), (NOISE, "", 1.0), (QUANTIZE, "int4", 4.0), (PRUNE, "", 0.3)]
        changes += [(TOWARD, name, 1.0)]
        for entry, unit, up in (("measured/prose", "nats/token", False), ("measured/arc", "accuracy", True)):
            for kind, label, size in changes:
                broken = size == 1.0 and kind == NOISE and place == len(models) - 1
                cost = math.inf if broken else 0.1 * size * (1 + place)
                difference = -cost if up else cost
                sensitivities.append(
                    Sensitivity(
                        model=model.label,
                        kind=kind,
                        label=label,
                        size=size,
                        entry=entry,
                        metric="acc" if up else "nats_per_token",
                        unit=unit,
                        higher_is_better=up,
                        before=3.0 - place,
                        after=3.0 - place + difference,
                        difference=difference,
                        interval=None if broken else (difference - 0.02, difference + 0.02),
                        covers="seeds and samples",
                        by_seed=[difference] * 3,
                        failed="not finite with 1 of 3 seeds" if broken else "",
                    )
                )
    trends = [
        Trend(
            kind=kind,
            label=label,
            size=size,
            entry="measured/prose",
            unit="nats/token",
            first=0.01,
            last=0.03,
            difference=Figure(value=0.02, over_samples=interval),
        )
        for kind, label, size, interval in (
            (NOISE, "", 0.1, (0.01, 0.03)),
            (QUANTIZE, "int4", 4.0, (-0.01, 0.05)),
            (PRUNE, "", 0.3, None),
        )
    ]
    turns = [
        Inflection(
            kind=kind,
            label=label,
            size=size,
            entry="measured/prose",
            unit="nats/token",
            tokens=tokens,
            interval=(1e6, tokens),
            after=after,
            verdict=verdict,
        )
        for kind, label, size, tokens, after, verdict in (
            (AS_IT_IS, "", 0.0, 16e6, 0.0, "does not turn"),
            (NOISE, "", 0.1, 4e6, 0.25, "turns"),
            (NOISE, "", 1.0, 4e6, math.inf, "turns"),
            (QUANTIZE, "int4", 4.0, 16e6, 0.0, "cannot tell"),
        )
    ]
    losses = [(0.0, 3.0), (0.5, 3.2), (1.0, 4.0)]
    sharpness = [
        Sharpness(
            model=m.label,
            documents=4,
            tokens=900,
            loss=3.0,
            gradient_norm=0.5,
            trace=-12.5,
            trace_interval=(-20.0, -5.0),
            noise_trace=0.25,
            noise_trace_interval=(0.2, 0.3),
            probes=16,
            eigenvalues=[20.0, 3.5],
            lines=[
                Line(label="noise, seed 0", slope=0.1, curvature=0.5, norm=3.0, losses=losses),
                Line(label=name, slope=-0.1, curvature=0.5, norm=3.0, losses=losses),
            ],
        )
        for m in models
    ]
    return ProbeRecord(
        models=models,
        sensitivities=sensitivities,
        trends=trends if ladder else [],
        inflections=turns if ladder else [],
        sharpness=sharpness,
        settings={"std": "init", "corpus": [note]},
        ladder=ladder,
        status="finished",
        notes=[note] if note else [],
        hardware={"cpu": note},
    )
