"""Multitask training: all tasks' data at once, as far as it can be had. It is the upper line that
sequential methods are compared with (Soup to Go).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from holdfast.config.declare import Meta
from holdfast.errors import Problem
from holdfast.retention.paths import data_problems
from holdfast.retention.protocol import OLD_DATA, Earlier, RetentionMethod
from holdfast.retention.services import DataServices

if TYPE_CHECKING:
    from datasets import Dataset


@dataclass(frozen=True, kw_only=True)
class Multitask(RetentionMethod):
    """Trains on another task's data too, by default on all of it. This method works on the data.

    References: Soup to Go, section 5 (multitask, the upper line); Caruana 1997, Multitask learning.
    """

    name: ClassVar[str] = "multitask"
    title: ClassVar[str] = "multitask mixing"
    strength: ClassVar[tuple[str, ...]] = ("share",)
    place: ClassVar[str] = "data"
    needs: ClassVar[frozenset[str]] = frozenset({OLD_DATA})
    summary: ClassVar[str] = "trains on the data of all tasks at once (an upper bound)"
    source: ClassVar[str] = (
        "Soup to Go, section 5 (multitask model); Caruana 1997, Multitask learning"
    )
    repeatable: ClassVar[bool] = True

    data: str = ""
    """File, folder or hub id of another task's data (required)."""
    share: Annotated[float, Meta(ge=0, le=1)] = 1.0
    """Share of the other task's examples to use; 0 is direct fine-tuning."""

    @property
    def off(self) -> bool:
        return self.share == 0

    @classmethod
    def after_tasks(cls, parameters: Mapping[str, Any], earlier: Earlier) -> list[dict[str, Any]]:
        """Returns the parameters for the next task: the data of all earlier tasks."""
        if parameters.get("data"):
            return [dict(parameters)]
        return [{**parameters, "data": data} for data in earlier.data]

    def problems(self) -> list[Problem]:
        if not self.data:
            return [
                Problem(
                    "data", "expected a file, folder or hub id of another task's data, got nothing"
                )
            ]
        return data_problems("data", self.data)

    def training_data(
        self, rows: Dataset, services: DataServices
    ) -> tuple[Dataset, dict[str, Any]]:
        from holdfast.data.mixing import mix_tasks

        other = services.prepare(self.data)
        mixed, info = mix_tasks(
            rows, other, share=self.share, seed=services.seed, longest=services.cut
        )
        return mixed, dataclasses.asdict(info)
