"""`benchmarks/vision.py` at a tiny size: both arms train, images are decoded, the checker names what falls short. No
speed is judged here."""

from __future__ import annotations

import json

import pytest
import torch


@pytest.mark.skipif(torch.cuda.is_available(), reason="the tiny model's figures are the CPU's")
def test_every_arm_runs_and_what_falls_short_is_named(script, monkeypatch, tmp_path, capsys):
    bench = script("vision")
    tiny = {"width": 64, "layers": 1, "image": 28, "patch": 14}
    monkeypatch.setitem(bench.SIZES, "default", tiny)
    monkeypatch.setattr(bench, "BARS", {bench.IMAGES: 1e-6})
    assert bench.main(["--rounds", "2", "--check", "--save", str(tmp_path / "vision.json")]) == 1
    printed = capsys.readouterr()
    assert "SHORT  images" in printed.err and printed.err.count("SHORT") == 1
    saved = json.loads((tmp_path / "vision.json").read_text())
    assert [f["arm"] for f in saved["figures"]] == [bench.DIRECT, bench.ONLINE, bench.IMAGES]
    assert all(f["seconds"] > 0 for f in saved["figures"])


def test_a_batch_holds_pixels_of_every_photograph(script, tmp_path):
    bench = script("vision")
    size = {"width": 64, "layers": 1, "image": 28, "patch": 14}
    processor, rows = bench.make_processor(size), bench.make_rows()
    trainer = bench.make_trainer(tmp_path, bench.make_model(size, processor), processor, rows, [])
    batch = trainer.data_collator([rows[i] for i in range(bench.BATCH)])
    assert batch["pixel_values"].shape == (bench.BATCH, 3, 28, 28)
    assert len(batch["pixel_values"].flatten(1).unique(dim=0)) == bench.BATCH
    image = processor.tokenizer.convert_tokens_to_ids("<image>")
    assert ((batch["input_ids"] == image).sum(1) == 4).all()
