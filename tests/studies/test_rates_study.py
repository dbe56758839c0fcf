"""A study of one's own is one file on the engine: `rates_study`, in fewer than 120 lines."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import rates_study
from rates_study import CLAIMS, RatesConfig, RatesStudy
from rich.console import Console

from holdfast.papers.claims.claim import Evidence, judge_claims
from holdfast.studies.engine.session import execute_study

ROWS = ('{"text": "The river runs to the sea, stone %d lies in it."}\n', '{"text": "Play note %d, softly."}\n')


@pytest.fixture
def config(tmp_path: Path, model_folder: Path) -> RatesConfig:
    for name, row in zip(("train", "keep"), ROWS, strict=True):
        (tmp_path / f"{name}.jsonl").write_text("".join(row % number for number in range(24)))
    train = {"model_name_or_path": str(model_folder), "dataset_name": str(tmp_path / "train.jsonl"), "max_steps": 2}
    train |= {"use_cpu": True, "save_strategy": "no", "max_length": 64, "gradient_checkpointing": False}
    keep = [{"perplexity": str(tmp_path / "keep.jsonl"), "window": 64}]
    values = {"train": train, "keep": keep, "seeds": [0, 1], "output_dir": str(tmp_path / "out")}
    return RatesConfig.read({**values, "rates": [1e-4, 3e-2]})


def test_its_models_figures_page_and_claim(config, monkeypatch):
    monkeypatch.setattr(RatesStudy, "one_in_process", True)
    record = execute_study(RatesStudy(config), console=Console(file=io.StringIO()), workers=1)
    assert record.status == "finished" and list(record.costs) == ["rate 0.0001", "rate 0.03"]
    low, high = (cost.value for cost in record.costs.values())
    assert high < low < 0, "a model that knows nothing learns from any text"
    assert all(set(cost.by_seed) == {0, 1} for cost in record.costs.values())
    page = (config.output_dir / "report.html").read_text()
    assert "rate 0.03" in page and "nats/token" in page
    [claim] = judge_claims(CLAIMS, {"rates": Evidence(record=record, waiting=0)})
    assert claim.figures[0].value == pytest.approx(high - low) and claim.verdict != "holds"
    assert len(Path(rates_study.__file__).read_text().splitlines()) < 120
