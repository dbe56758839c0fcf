"""Replay (rehearsal): a share of old-task or pre-training-like examples mixed into the new data.

All of the new data is kept and replay examples are added until they make up `fraction` of the
mixture, counted in tokens (the honest unit where lengths differ; rows longer than `max_length`
count up to where they are cut) or in examples. "Memory Retaining Finetuning" (10 %
pre-training-like data) and "Soup to Go" (10 % of the old task's data) use it as the baseline that
needs what users seldom have: old data.

Replay data is loaded and tokenised like the training data, but by its own format: plain text
replayed next to prompt-completion pairs is trained on every token, whatever the first training
sample looks like.

Cost: none per token; the run is longer by the replayed tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from holdfast.config.declare import Meta
from holdfast.errors import Problem
from holdfast.retention.paths import data_problems
from holdfast.retention.protocol import OLD_DATA, Earlier, RetentionMethod
from holdfast.retention.services import DataServices

if TYPE_CHECKING:
    from datasets import Dataset


@dataclass(frozen=True, kw_only=True)
class Replay(RetentionMethod):
    """Mixes old data into the new data. This method works on the data.

    References: Memory Retaining Finetuning, section 5 (Table 3); Soup to Go, section 5 (rehearsal).
    """

    name: ClassVar[str] = "replay"
    title: ClassVar[str] = "replay"
    strength: ClassVar[tuple[str, ...]] = ("fraction",)
    place: ClassVar[str] = "data"
    needs: ClassVar[frozenset[str]] = frozenset({OLD_DATA})
    summary: ClassVar[str] = "mixes a share of old data into the new data"
    source: ClassVar[str] = (
        "Memory Retaining Finetuning via Distillation, section 5; Soup to Go, section 5"
    )
    repeatable: ClassVar[bool] = True
    shares_mixture: ClassVar[bool] = True
    row_source: ClassVar[str] = "replayed"

    data: str = ""
    """File, folder or hub id of the data to replay (required)."""
    fraction: Annotated[float, Meta(ge=0, lt=1)] = 0.1
    """Share of replayed data in the mixture; 0 is direct fine-tuning."""
    unit: Literal["tokens", "examples"] = "tokens"
    """Unit of the share."""

    @property
    def off(self) -> bool:
        return self.fraction == 0

    def replayed(self) -> float:
        return self.fraction

    @classmethod
    def after_tasks(cls, parameters: Mapping[str, Any], earlier: Earlier) -> list[dict[str, Any]]:
        """Returns the parameters for the next task: the data of all earlier tasks, in equal parts
        of the fraction."""
        if parameters.get("data"):
            return [dict(parameters)]
        fraction = float(parameters.get("fraction", cls.fraction)) / len(earlier.data)
        return [{**parameters, "data": data, "fraction": fraction} for data in earlier.data]

    def problems(self) -> list[Problem]:
        if not self.data:
            return [
                Problem(
                    "data", "expected a file, folder or hub id of the data to replay, got nothing"
                )
            ]
        return data_problems("data", self.data)

    def named_data(self) -> tuple[str, ...]:
        return (self.data,)

    def check_data(self, tokenizer: Any) -> None:
        from holdfast.data.formats import rows_by_name

        rows_by_name(tokenizer)(self.data)  # read again from the cache when it is mixed in

    def training_data(
        self, rows: Dataset, services: DataServices
    ) -> tuple[Dataset, dict[str, Any]]:
        from holdfast.data.mixing import mix_replay

        mixed, info = mix_replay(
            rows,
            services.prepare(self.data),
            fraction=self.fraction,
            seed=services.seed,
            unit=self.unit,
            longest=services.cut,
        )
        return mixed, dataclasses.asdict(info)
