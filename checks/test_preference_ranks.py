"""Pairs and samples over two ranks, by DDP and by FSDP2: the weights of one process with the same global batch."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from holdfast.training import method_laws as laws
from preference_worker import BATCH, OWN_TEXT, SAMPLED, SETTINGS, of_pairs, own_text, write_models
from preference_worker import CASES as RANKS
from two_processes import fork, launch

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(420)]


@pytest.fixture(scope="module")
def two_ranks(once):
    return once("preferences", lambda folder: fork(Path(__file__).with_name("preference_worker.py"), folder))


@pytest.mark.parametrize("name", RANKS)
def test_two_ranks_equal_one(name, two_ranks, tmp_path):
    one = of_pairs(tmp_path, name, per_device_train_batch_size=BATCH)
    one.train()
    two = load_file(str(two_ranks / f"{name}.safetensors"))
    assert laws.largest_difference(laws.weights(one), two) < 2e-6


@pytest.mark.parametrize("name", OWN_TEXT)
def test_two_ranks_equal_one_where_answers_are_the_models_own(name, two_ranks, tmp_path):
    one = own_text(write_models(tmp_path), name, per_device_train_batch_size=BATCH, **SETTINGS)
    before = laws.weights(one)
    one.train()
    two, other = (load_file(str(two_ranks / f"{name}{of}.safetensors")) for of in ("", ".other"))
    assert laws.largest_difference(laws.weights(one), two) < 2e-6
    assert laws.largest_difference(two, other) == 0
    assert laws.largest_difference(before, two) > 1e-4


def test_samples_on_two_ranks(two_ranks):
    """Off is TRL's own trainer to the bit, and both ranks hold the same model."""
    found = {name: load_file(str(two_ranks / f"grpo, {name}.safetensors")) for name in SAMPLED}
    assert laws.largest_difference(found["TRL"], found["off"]) == 0
    assert laws.largest_difference(found["TRL"], found["l2"]) > 1e-6
    for name in SAMPLED:
        other = load_file(str(two_ranks / f"grpo, {name}.other.safetensors"))
        assert laws.largest_difference(found[name], other) == 0


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    return launch(Path(__file__).with_name("preference_worker.py"), tmp_path_factory.mktemp("fsdp-pairs"), "fsdp")


@pytest.mark.parametrize("name", RANKS)
def test_two_ranks_that_share_the_model_out_equal_one(name, sharded, tmp_path):
    one = of_pairs(tmp_path, name, per_device_train_batch_size=BATCH)
    one.train()
    two = load_file(str(sharded / f"{name}.safetensors"))
    assert laws.largest_difference(laws.weights(one), two) < 2e-6
