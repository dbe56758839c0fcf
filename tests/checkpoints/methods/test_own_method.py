"""A merge method is one small file: the median of the models, from its definition to a merged folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from checkpoint_folders import random_model, read_folder, write_folder
from holdfast.checkpoints.merge import merge
from holdfast.checkpoints.methods.protocol import MergeMethod


@dataclass(frozen=True, kw_only=True)
class Median(MergeMethod):
    """The median of each weight."""

    name: ClassVar[str] = "median"
    needs_base: ClassVar[bool] = False
    models: ClassVar[tuple[int, int | None]] = (2, None)

    def merge(self, values, statistics):
        return np.median(values.models, axis=0)


def test_the_median_of_three_models(tmp_path):
    models = [random_model(seed, "F32") for seed in range(3)]
    folders = [write_folder(tmp_path / f"m{seed}", model) for seed, model in enumerate(models)]
    merge(folders, tmp_path / "merged", method=f"{__file__}:Median", sync=False)
    for name, tensor in read_folder(tmp_path / "merged").items():
        assert np.array_equal(tensor.values, np.median([model[name].values for model in models], axis=0))
