"""Operations a second: the count agrees with PyTorch's own, and a peak is what a product reaches."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from holdfast.runs.cost.achieved import model_flops, peak_rate, throughput
from holdfast.runs.cost.architecture import describe
from holdfast.training.tiny import build_model

WINDOW = 64


@pytest.mark.parametrize("tie", [True, False])
def test_the_count_is_that_of_pytorch(tie: bool) -> None:
    model = build_model(tie=tie, layers=3, width=64)
    model.set_attn_implementation("eager")
    ids = torch.zeros(2, WINDOW, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids, labels=ids).loss.backward()
    per_token = counter.get_total_flops() / ids.numel()
    # PyTorch counts whole squares of attention, here a token sees half of its window on average
    heads = 2 * 2 * 32 * WINDOW * 2 * 3
    ours = model_flops(describe(model, name=""), WINDOW) + 3 * heads / 2
    assert ours == pytest.approx(per_token, rel=0.02)


def test_adapters_need_no_gradients_of_the_base() -> None:
    from peft import LoraConfig, get_peft_model

    whole = model_flops(describe(build_model(), name=""), WINDOW)
    adapted = get_peft_model(build_model(), LoraConfig(r=2, target_modules=["q_proj"]))
    assert model_flops(describe(adapted, name=""), WINDOW) < 0.75 * whole


def test_a_share_of_what_these_cores_can_do() -> None:
    peak, source = peak_rate("cpu", half=False)
    assert peak is not None and peak > 1e9 and "measured" in source
    reached = throughput(build_model(), 1000.0, WINDOW)
    assert reached is not None and reached.utilisation is not None
    assert reached.utilisation == pytest.approx(reached.flops_per_second / peak)
    assert peak_rate("mps") == (None, "")
