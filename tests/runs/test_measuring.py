"""Measuring in the middle of a run: at the shares that were asked for, without a trace in the run, and with a stop."""

from __future__ import annotations

import io
import json

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from holdfast.errors import Interrupted
from holdfast.evaluation.entries import Along
from holdfast.records.run import RunFolder
from holdfast.runs.config import train_config
from holdfast.runs.measuring import MeasureAt, Point, untouched
from holdfast.runs.run import train
from tiny import SENTENCES, build_model, build_tokenizer


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    place = tmp_path_factory.mktemp("measuring")
    build_model().save_pretrained(place / "base")
    build_tokenizer().save_pretrained(place / "base")
    (place / "rows.jsonl").write_text("".join(json.dumps({"text": s}) + "\n" for s in SENTENCES * 3))
    return {
        "model_name_or_path": str(place / "base"),
        "dataset_name": str(place / "rows.jsonl"),
        "max_steps": 6,
        "per_device_train_batch_size": 4,
        "max_length": 64,
        "learning_rate": 3e-3,
        "use_cpu": True,
        "save_steps": 2,
        "evaluation": {"source": [str(place / "rows.jsonl")]},
    }


def run(asked, folder, reached=None, shares=(0.34, 0.5, 1.0)):
    config = train_config({**asked, "output_dir": str(folder)})
    callbacks = [
        MeasureAt(
            along=Along(shares=shares), plan=config.evaluation, folder=folder / "rungs", key=config.key, reached=reached
        )
    ]
    return train(config, console=Console(file=io.StringIO()), callbacks=callbacks if reached else [])


def test_points_are_reached_and_the_run_is_as_without_them(asked, tmp_path):
    points: list[tuple[float, int, float]] = []

    def reached(point: Point) -> None:
        found = point.measure()
        points.append((point.share, point.step, found[0].metrics[found[0].primary].value))

    run(asked, tmp_path / "with", reached)
    run(asked, tmp_path / "without")
    assert [p[:2] for p in points] == [(0.34, 2), (0.5, 3)], "the end is measured by the run itself"
    start = RunFolder(tmp_path / "with").evaluated("start").all()[0]
    assert points[1][2] < points[0][2] < start.metrics[start.primary].value, "it learns"
    assert {p.name for p in (tmp_path / "with" / "rungs").iterdir()} == {"step-2", "step-3"}
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("with", "without"))
    assert all(torch.equal(one[name], two[name]) for name in two)


def test_what_sees_the_figures_may_stop_the_run(asked, tmp_path):
    def stop(point: Point) -> None:
        raise Interrupted(f"enough at {point.share:.0%}")

    with pytest.raises(Interrupted, match="enough at 34%"):
        run(asked, tmp_path / "run", stop)
    assert RunFolder(tmp_path / "run").read().status == "interrupted"
    assert run(asked, tmp_path / "run").read().status == "finished"


def test_mode_and_random_states_are_put_back():
    model = build_model().train()
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    with untouched(model):
        assert not model.training
        torch.rand(100)
    assert model.training and torch.equal(torch.rand(4), expected)
