"""Thresholds on magnitudes against sorting, in every dtype, and over shards."""

from __future__ import annotations

import pytest
import torch

from holdfast.checkpoints.live_thresholds import thresholds

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def draw(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64) ** 3).to(dtype)


def by_sorting(value: torch.Tensor, fraction: float) -> torch.Tensor:
    ordered = value.abs().flatten().sort(descending=True).values
    return ordered[max(1, round(fraction * len(ordered))) - 1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fraction", [1e-9, 0.15, 0.5, 1.0])
def test_it_is_the_element_that_sorting_finds(dtype, fraction):
    values = [draw(dtype, 37, 11), draw(dtype, 3, 2), torch.zeros(4, 4, dtype=dtype), draw(dtype, 64, 1)[::2]]
    wanted = [by_sorting(v, fraction) for v in values]
    assert thresholds(values, fraction) == wanted


def test_shards_count_together(tmp_path):
    """Over a process group of one: a DTensor is gathered, and comes to the same."""
    import torch.distributed as dist
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        whole = draw(torch.float32, 40, 5)
        values = [whole.clone(), distribute_tensor(whole, mesh, [Shard(0)])]
        assert thresholds(values, 0.3) == [by_sorting(whole, 0.3)] * 2
    finally:
        dist.destroy_process_group()
