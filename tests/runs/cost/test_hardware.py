"""GPUs by name."""

from __future__ import annotations

import pytest

from holdfast.errors import ConfigError
from holdfast.runs.cost.hardware import DEFAULT_GPUS, GPUS, PRECISIONS, find_gpu


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("H100", "H100"),
        ("h100", "H100"),
        ("A100", "A100-80GB"),
        ("a100 40gb", "A100-40GB"),
        ("NVIDIA RTX 4090", "RTX-4090"),
        ("mi300x", "MI300X"),
    ],
)
def test_names_are_found_as_people_write_them(written, found):
    assert find_gpu(written).name == found


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match=r"expected one of A100-40GB.*got 'H10'\. Did you mean 'H100'\?"):
        find_gpu("H10")


def test_every_gpu_is_whole():
    assert set(DEFAULT_GPUS) <= set(GPUS)
    for gpu in GPUS.values():
        rates = [gpu.rate(p) for p in PRECISIONS]
        assert rates == sorted(rates, reverse=True) and min(rates) > 1e13, gpu.name
        assert 16 <= gpu.memory <= 300 and len(gpu.source) > 10
