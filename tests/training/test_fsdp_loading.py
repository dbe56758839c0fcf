"""FSDP's loading of weights on one process only, and the methods that need them on each."""

from __future__ import annotations

import os

import pytest
from cases import make_trainer

from holdfast import train_config
from holdfast.errors import ConfigError
from holdfast.runs.loading import load_model
from holdfast.support.environment import EFFICIENT_LOADING, loads_on_one_process_only
from holdfast.training import method_checks
from holdfast.training.method_checks import refuse_unsupported
from tiny import build_model, build_tokenizer


@pytest.fixture
def one_process_only(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv(EFFICIENT_LOADING, "true")
    assert loads_on_one_process_only()


@pytest.fixture
def start(tmp_path):
    build_model().save_pretrained(tmp_path / "start")
    build_tokenizer().save_pretrained(tmp_path / "start")
    (tmp_path / "train.jsonl").write_text('{"text": "one"}\n')
    return dict(
        model_name_or_path=str(tmp_path / "start"),
        dataset_name=str(tmp_path / "train.jsonl"),
        output_dir=str(tmp_path / "run"),
    )


@pytest.mark.parametrize(("retention", "left"), [([], "true"), (["l2"], "false"), (["label_annealing"], "false")])
def test_every_process_loads_the_start_where_a_method_needs_it(start, retention, left, one_process_only):
    load_model(train_config(start, retention=retention, use_cpu=True, bf16=False))
    assert os.environ[EFFICIENT_LOADING] == left


@pytest.mark.parametrize(
    ("spec", "refused"),
    [
        ({"label_annealing": {"teacher": "online"}}, True),
        ({"label_annealing": {"teacher": "cached"}}, True),
        ({"l2": {"coefficient": 0.1}}, True),
        ({"sfa": {}}, True),
        ({}, False),
    ],
)
def test_a_trainer_whose_weights_are_on_one_process_only_is_refused(tmp_path, monkeypatch, spec, refused):
    trainer = make_trainer(tmp_path, spec)
    trainer.is_fsdp_enabled = True
    refuse_unsupported(trainer)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv(EFFICIENT_LOADING, "true")
    if not refused:
        refuse_unsupported(trainer)
        return
    with pytest.raises(ConfigError, match="fsdp_cpu_ram_efficient_loading: expected false"):
        refuse_unsupported(trainer)


def test_every_method_is_asked_whether_it_needs_the_initial_weights(tmp_path):
    """A teacher that is the model without its adapter needs no copy, and a pull beside it does, whichever is first."""
    annealing, pull = {"label_annealing": {"teacher": "adapter_off"}}, {"l2": {"coefficient": 0.1}}
    for spec, needs in ((annealing, False), (annealing | pull, True), (pull | annealing, True)):
        assert method_checks._needs_initial_weights(make_trainer(tmp_path, spec, peft=True)) is needs, spec
