"""Half fine-tuning, HFT: in every layer a random half of the tensors is trained, the others are frozen, and every round
draws anew (Hui et al. 2024).

A unit is what is drawn: a weight with its bias, or all factors of a LoRA or OSF module. In each layer the units of one
kind (attention, MLP, norms) are drawn from by themselves: `share` of them, and where that is no whole number the one
above or below at random, so that 2 of 4 attention matrices and 1 or 2 of 3 MLP matrices are trained. What lies outside
of the layers (embeddings, final norm, head) is trained always. A round is an epoch, or `every` optimiser steps.

A frozen tensor has no gradient at the optimiser's step, so nothing moves it: no decay, no old momenta, and its moments
and its step count stay as they are until it is drawn again. The draws depend on the seed, the round and the names, so
they are the same on all ranks and after a resume.

Cost: none. Gradients of frozen tensors are computed and dropped, since which are frozen changes under wrappers (DDP,
FSDP2) that fix it at the start; the authors' saving of time is not had.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Annotated, ClassVar

from holdfast.config.declare import Meta, Seed
from holdfast.retention.method import ActiveMethod, NamedParams, Passive, RetentionMethod, StepInfo

if TYPE_CHECKING:
    from holdfast.retention.anchor import Anchors

_LAYER = re.compile(r"^(.*?\.\d+)\.(.+)$")
"""A parameter of a layer: up to the first number, and what is inside."""
_UNIT = re.compile(r"(?:\.base_layer)?(?:\.(?:weight|bias)|\.(?:lora_\w+|osf_svd_params)(?:\..*)?)$")
_MLP = "mlp"
"""The part of the layer that matrices of no part are taken for, as OPT's `fc1` and `fc2`."""


@dataclass(frozen=True, kw_only=True)
class HalfFineTuning(RetentionMethod):
    """Trains a random half of every layer, another one every round; memory kept in the gradient.

    References: Hui et al. 2024, HFT: Half Fine-Tuning for Large Language Models (arXiv:2404.18466), section 3.
    """

    name: ClassVar[str] = "half"
    title: ClassVar[str] = "half fine-tuning"
    strength: ClassVar[tuple[str, ...]] = ("share",)
    place: ClassVar[str] = "gradient"
    turn: ClassVar[int] = 1  # what others have added is taken away with the rest
    summary: ClassVar[str] = "train a random half of every layer's tensors, another half every round"
    source: ClassVar[str] = "HFT: Half Fine-Tuning for Large Language Models, section 3"
    by_parameter: ClassVar[bool] = True

    share: Annotated[float, Meta(gt=0, le=1)] = 0.5
    """Share of each layer's tensors that is trained in a round; 1 is direct fine-tuning."""
    every: Annotated[int | None, Meta(ge=1)] = None
    """Optimiser steps of a round; empty: a round is an epoch."""
    seed: Seed = 0
    """Of the draws."""

    @property
    def off(self) -> bool:
        return self.share == 1

    def check_run(self, *, total_steps: int | None) -> list[str]:
        if self.every is not None and total_steps is not None and self.every > total_steps:
            return [f"half.every: expected at most the run's {total_steps} steps, got {self.every}"]
        return []

    def check_weights(self, named: NamedParams) -> list[str]:
        if units(named):
            return []
        return [
            "half: expected parameters in numbered layers (such as model.layers.0.mlp.up_proj.weight), found none to "
            "draw from. Leave half out."
        ]

    def round(self, step: StepInfo) -> int:
        """Which round an optimiser step belongs to, from 0."""
        return step.epoch if self.every is None else (step.step - 1) // self.every

    def frozen(self, named: NamedParams, number: int) -> frozenset[str]:
        """The parameters that are not trained in round `number`."""
        result: set[str] = set()
        for (layer, kind), members in units(named).items():
            draw = Random(f"{self.seed} {number} {layer} {kind}")
            wanted = self.share * len(members)
            count = int(wanted) + (draw.random() < wanted - int(wanted))
            trained = draw.sample(sorted(members), count)
            result.update(name for unit, names in members.items() if unit not in trained for name in names)
        return frozenset(result)

    def start(self, anchors: Anchors) -> ActiveMethod:
        return _Half(self)


def units(named: NamedParams) -> Mapping[tuple[str, str], Mapping[str, list[str]]]:
    """What is drawn from: by layer and kind the units, with the parameters of each.

    A kind is the part of the layer that matrices lie in ("self_attn", "mlp"), "mlp" for those that lie in none, and
    "norms" for all that is vectors only.
    """
    from holdfast.checkpoints.live_tensors import LiveTensor

    found: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name in named:
        if match := _LAYER.match(name):
            unit = _UNIT.sub("", match[2])
            part, within, _ = unit.partition(".")
            found[match[1], part if within else _MLP][unit].append(name)
    result: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(dict)
    for (layer, part), members in found.items():
        for unit, names in members.items():
            vectors = all(len(LiveTensor(n, named[n], ()).shape) < 2 for n in names)
            result[layer, "norms" if vectors else part][unit] = names
    return result


class _Half(Passive):
    """Knows the round it is in, which follows from the step: there is nothing to save."""

    def __init__(self, method: HalfFineTuning) -> None:
        self.method = method
        self._round: int | None = None
        self._frozen: frozenset[str] = frozenset()

    def add_gradient(self, named: NamedParams, step: StepInfo) -> None:
        if (number := self.method.round(step)) != self._round:
            self._round, self._frozen = number, self.method.frozen(named, number)
        for name in self._frozen:
            named[name].grad = None

    def metrics(self, named: NamedParams) -> dict[str, float]:
        total = sum(p.numel() for p in named.values())
        frozen = sum(named[name].numel() for name in self._frozen)
        return {"half_trained": 1 - frozen / total if total else 0.0}
