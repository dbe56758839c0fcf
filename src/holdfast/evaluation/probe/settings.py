"""What `holdfast probe` is asked to do to a model, declared once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from holdfast.config.declare import Meta, Seed
from holdfast.evaluation.probe.stds import EXPECTED, INIT, read_std

if TYPE_CHECKING:
    from holdfast.evaluation.probe.changes import Change

Sizes = Annotated[tuple[float, ...], Meta(gt=0, repeatable=True, metavar="X")]
Shares = Annotated[tuple[float, ...], Meta(gt=0, lt=1, repeatable=True, metavar="X")]
NOISE, QUANTIZE, PRUNE = (0.01, 0.03, 0.1, 0.3, 1.0), ("int8", "int4", "nf4"), (0.1, 0.3, 0.5)
"""What is done where nothing is asked for."""


@dataclass(frozen=True, kw_only=True)
class ChangeSettings:
    """Changes of the weights."""

    settings_group: ClassVar[str] = (
        "changes to measure (default: noise, quantize and prune at several sizes)"
    )

    noise: Sizes = ()
    """Gaussian noise: each gamma is multiplied by the standard deviation that --std selects."""
    noise_seeds: Annotated[int, Meta(ge=1, section="noise_draws")] = 3
    """Number of noise seeds; each is measured at all gammas. Intervals include the
    variation between seeds."""
    std: Annotated[
        str | dict[str, float],
        Meta(
            section="noise_draws",
            metavar="init|tensor|MODEL|FILE",
            parse=read_std,
            expected=EXPECTED,
            json_schema=lambda: {"type": ["string", "object"]},
        ),
    ] = INIT
    """Standard deviation (std) that gamma multiplies. init: the tensor's std at initialisation,
    from the configuration; tensor: its current std; MODEL: its std in MODEL, the model before
    training. You can also give a std for each pattern of tensor names, here or as `std:` in a YAML
    file. Some models, such as OLMo-1B, were not initialised as their configuration says."""
    quantize: Annotated[tuple[Literal["int8", "int4", "nf4"], ...], Meta(repeatable=True)] = ()
    """Quantisation: 8 bits per row, 4 bits in groups of 128, or QLoRA's 4-bit floats in blocks of
    64."""
    prune: Shares = ()
    """Share of each matrix's elements to set to 0, smallest first."""
    toward: Annotated[tuple[str, ...], Meta(repeatable=True, metavar="MODEL")] = ()
    """Models to step towards, such as fine-tuned ones: the weights theta become
    theta + share * (MODEL - theta)."""
    steps: Sizes = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
    """Shares of the distance to MODEL for --toward; a share above 1 goes beyond MODEL."""
    noise_seed: Seed = 0
    """First noise seed; further seeds count up from it."""

    def changes(self) -> list[Change]:
        """One value a change, in the order in which they are made."""
        from holdfast.evaluation.probe.changes import Noise, Prune, Quantize, Toward

        is_default = not (self.noise or self.quantize or self.prune or self.toward)
        changes: list[Change] = []
        seeds = range(self.noise_seed, self.noise_seed + self.noise_seeds)
        for gamma, seed in itertools.product(NOISE if is_default else self.noise, seeds):
            changes.append(Noise(size=gamma, seed=seed))
        for scheme in QUANTIZE if is_default else self.quantize:
            changes.append(Quantize(label=scheme))  # type: ignore[arg-type]
        changes += [Prune(size=share) for share in (PRUNE if is_default else self.prune)]
        for label, share in itertools.product(named_models(self.toward), self.steps):
            changes.append(Toward(size=share, label=label))
        return changes


@dataclass(frozen=True, kw_only=True)
class CurvatureSettings:
    """The second derivative of the loss."""

    settings_group: ClassVar[str] = "curvature of the loss (float32 only)"
    settings_section: ClassVar[str] = "loss_curvature"

    curvature: Annotated[int, Meta(ge=0)] = 0
    """Number of documents to measure curvature on, from the first corpus; 0: none."""
    probes: Annotated[int, Meta(ge=2)] = 16
    """Number of random vectors from which each trace is estimated."""


def named_models(names: Sequence[str]) -> dict[str, str]:
    """Models by label, as 'holdfast evaluate' calls them: MODEL, or LABEL=MODEL.

    Raises:
        ConfigError: labels that cannot be.
    """
    from holdfast.evaluation.session import requests_of

    return {request.label: request.name for request in requests_of(names)}
