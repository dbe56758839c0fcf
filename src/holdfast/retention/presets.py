"""Combinations of methods that were published or found, by name in a config's `retention:` list.

```yaml
retention: [asft]                    # or  asft: {weight: 0.05}
retention: auto                      # nothing to choose, and no old data
```

A preset stands for its methods: a run has those, records those, and is the same run as one that
names them. Among the alternatives of a study it may have lists of values
(`asft: {weight: [0.05, 0.1]}`), as methods do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from holdfast.config.declare import Meta, settings_of
from holdfast.retention.methods.label_annealing import LabelAnnealing
from holdfast.retention.methods.self_replay import START, SelfReplay
from holdfast.retention.methods.token_weighting import TokenWeighting
from holdfast.retention.methods.wise_ft import WiseFT
from holdfast.retention.protocol import RetentionMethod

_METHODS: dict[str, type[RetentionMethod]] = {
    cls.name: cls for cls in (LabelAnnealing, SelfReplay, TokenWeighting, WiseFT)
}


class Preset(ABC):
    """A name that stands for methods; its fields are what can be set of them."""

    name: ClassVar[str]
    summary: ClassVar[str]
    source: ClassVar[str]
    strength: ClassVar[tuple[str, ...]]
    """As of methods."""

    def problems(self) -> list[str]:
        """None: what it stands for has its own."""
        return []

    def methods(self) -> list[RetentionMethod]:
        """What the name stands for."""
        values = {s.name: getattr(self, s.name) for s in settings_of(type(self))}
        methods = []
        for entry in self.entries(values):
            for name, parameters in entry.items():
                methods.append(_METHODS[name](**parameters))
        return methods

    @classmethod
    @abstractmethod
    def entries(cls, parameters: Mapping[str, Any]) -> list[dict[str, dict[str, Any]]]:
        """The same as a configuration writes it.

        Args:
            parameters: as given, those that are not given at their defaults; in a study a value may
                be a list or a range.
        """


@dataclass(frozen=True, kw_only=True)
class ASFT(Preset):
    """Anchored supervised fine-tuning: DFT, and the KL that keeps it near the start.

    References: ASFT (arXiv:2509.23753).
    """

    name: ClassVar[str] = "asft"
    summary: ClassVar[str] = "preset: token_weighting of kind dft with label_annealing"
    source: ClassVar[str] = "Zhu et al. 2025, Anchored Supervised Fine-Tuning (arXiv:2509.23753)"
    strength: ClassVar[tuple[str, ...]] = ("weight",)

    weight: Annotated[float, Meta(gt=0)] = 0.1
    """Lambda, weight of the forward KL. The published code's default is 0.1; its examples use
    0.05."""

    @classmethod
    def entries(cls, parameters: Mapping[str, Any]) -> list[dict[str, dict[str, Any]]]:
        return [
            {"token_weighting": {"kind": "dft"}},
            {"label_annealing": {"weight": parameters.get("weight", cls.weight)}},
        ]


@dataclass(frozen=True, kw_only=True)
class Auto(Preset):
    """What a search over ways without old data found to keep most at nearly all of the gain: the
    start model's own text with its KL alone, a little of that KL at the new tokens, and an end that
    is stepped back towards the start.

    docs/methods/auto.md has the figures and the models. Its values were found on one small model;
    the learning rate is not among them and stays the user's.
    """

    name: ClassVar[str] = "auto"
    summary: ClassVar[str] = "preset: self_replay, label_annealing, wise_ft (no old data)"
    source: ClassVar[str] = (
        "configs/without_old_data; 2605.26097 (its KL variant), Wortsman et al. 2021 (WiSE-FT)"
    )
    strength: ClassVar[tuple[str, ...]] = ("fraction",)

    fraction: Annotated[float, Meta(gt=0, lt=1)] = 0.68
    """Share of text written by the initial model in the mixture."""
    prompts: str = START
    """Prompts, as in self_replay: start, target, or a file with prompts."""
    samples: Annotated[int | None, Meta(ge=1)] = None
    """Maximum number of samples, as in self_replay. Default: as many as the share needs."""
    max_new_tokens: Annotated[int, Meta(ge=1)] = 512
    """Maximum number of tokens of a sample, as in self_replay."""

    @classmethod
    def entries(cls, parameters: Mapping[str, Any]) -> list[dict[str, dict[str, Any]]]:
        settings = {s.name: parameters.get(s.name, s.default) for s in settings_of(cls)}
        return [
            {"self_replay": {**settings, "ce": False}},
            {"label_annealing": {"weight": 0.053, "weight_generated": 6.5}},
            {"wise_ft": {"alpha": 0.975}},
        ]


PRESETS: dict[str, type[Preset]] = {cls.name: cls for cls in (ASFT, Auto)}
