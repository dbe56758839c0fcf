"""The benchmark of cost estimates at a tiny size: every case trains what it estimates, and the checker names what falls
short.

How good the estimates are is the benchmark's to say, at its own sizes.
"""

from __future__ import annotations

import pytest
import torch

TINY = {"width": 64, "inner": 96, "layers": 1, "vocabulary": 128, "window": 32, "rows": 2}


@pytest.fixture
def bench(script):
    return script("cost")


def test_cases_cover_what_is_asked_for(bench):
    names = [case.name for case in bench.CASES]
    assert len(set(names)) == len(names) >= 6
    for word in ("llama", "qwen2", "mixtral", "checkpointing", "label annealing (online)", "lora", "packed"):
        assert any(word in name for name in names), word


@pytest.mark.parametrize("number", [0, 1, 3, 6, 7, 12, 15])
def test_a_case_trains_what_it_estimates(bench, number, tmp_path, monkeypatch):
    case = bench.CASES[number]
    torch.manual_seed(0)
    config = bench.model_config(case, TINY)
    config.save_pretrained(tmp_path)
    expected = bench.estimated(case, TINY, str(tmp_path), "cpu")
    step = bench.stepper(case, TINY, config, tmp_path, "cpu")
    trainer = next(c.cell_contents for c in step.__closure__ if hasattr(c.cell_contents, "training_step"))
    assert expected.architecture.trainable == sum(p.numel() for p in trainer.model.parameters() if p.requires_grad)
    assert (
        expected.work.steps == 1 and expected.work.tokens == TINY["rows"] * TINY["window"] * expected.plan.accumulation
    )
    assert [m.name for m in trainer.retain] == list(expected.plan.methods)
    before = {n: p.detach().clone() for n, p in trainer.model.named_parameters() if p.requires_grad}
    step()
    step()
    assert any(not torch.equal(p, before[n]) for n, p in trainer.model.named_parameters() if p.requires_grad)


def test_documents_fill_a_window(bench):
    for size in (*bench.SIZES.values(), TINY):
        assert sum(bench.document_lengths(size)) == size["window"]
    case = next(case for case in bench.CASES if case.settings.get("packing"))
    batch = bench.batch_of(case, TINY, "cpu")
    assert batch["cu_seq_lens_q"][-1] == batch["input_ids"].numel() == TINY["rows"] * TINY["window"]


def test_the_checker_names_what_falls_short(bench):
    good, bad = {"error": 0.149}, {"error": -0.101}
    assert bench.falling_short([{"case": "a", "flops": good, "memory": {"error": 0.09}}]) == []
    assert bench.falling_short([{"case": "a", "flops": good, "memory": bad}]) == [
        "a: memory -10.1% of what was measured, the bar is 10%"
    ]


def test_the_counter_knows_every_product_of_the_loss(bench):
    """8 N H V with a teacher, all of it seen."""
    from torch.utils.flop_counter import FlopCounterMode

    from holdfast.ops.annealing import annealed_loss
    from holdfast.ops.heads import Head

    hidden, weight = torch.randn(48, 32, requires_grad=True), torch.randn(160, 32, requires_grad=True)
    labels = torch.randint(0, 160, (48,))
    with FlopCounterMode(display=False, custom_mapping=bench.missing_products()) as counter:
        teacher = {
            "teacher_hidden_NK": torch.randn(48, 32),
            "teacher_head": Head(weight_VH=weight.detach()),
            "kl_scale": 1.0,
        }
        annealed_loss(hidden, Head(weight_VH=weight), labels, **teacher).loss.backward()
    assert counter.get_total_flops() == 8 * 48 * 32 * 160
