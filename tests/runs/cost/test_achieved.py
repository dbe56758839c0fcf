"""Operations a second: the count agrees with PyTorch's own, and a peak is what a product reaches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from holdfast.runs.cost.achieved import model_flops, peak_rate, throughput, throughput_of_run
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
    reached = throughput(describe(build_model(), name=""), 1000.0, WINDOW, device="cpu", processes=2)
    assert reached.utilisation == pytest.approx(reached.flops_per_second / (2 * peak))
    assert peak_rate("mps") == (None, "")


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100 80GB PCIe", "A100-80GB"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("Tesla T4", None),
    ],
)
def test_a_board_that_only_sounds_like_a_known_one_has_no_peak(
    name: str, known: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: name)
    peak, source = peak_rate.__wrapped__("cuda", half=True)
    assert source == (f"{known}, as its maker states it" if known else "") and (peak is None) == (known is None)


def test_a_run_is_counted_by_its_rows(tmp_path: Path) -> None:
    from holdfast.runs.config import train_config

    build_model().save_pretrained(tmp_path / "m")
    (tmp_path / "t.jsonl").write_text('{"text": "a"}\n')
    asked = {"model_name_or_path": str(tmp_path / "m"), "dataset_name": str(tmp_path / "t.jsonl"), "use_cpu": True}
    config = train_config({**asked, "max_length": 64, "output_dir": str(tmp_path / "out")})
    flops = {
        length: throughput_of_run(config, {"examples": 10, "tokens": 10 * length}, 1.0, device="cpu")
        for length in (8, 64, 500)
    }
    architecture = describe(build_model(), name="")
    for length, window in ((8, 8), (64, 64), (500, 64)):
        found = flops[length]
        assert found is not None and found.flops_per_second == pytest.approx(model_flops(architecture, window))
    assert throughput_of_run(config, {}, 1.0, device="cpu") is None, "of a stream nothing is known beforehand"
