"""FSDP2 over two ranks equals one process with the same global batch: every place of the head, every place of the
teacher, every method."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cases import EVERY, FIRST, OWN, SECOND_PASS, TRAINED, largest_difference, make_trainer, spec, weights
from ddp_worker import ACCUMULATION, BATCH, SETTINGS

from fsdp_worker import LAYOUTS, SHARDED, TEACHERS
from two_processes import launch

WORKER = Path(__file__).with_name("fsdp_worker.py")
pytestmark = [pytest.mark.distributed, pytest.mark.timeout(420)]

EXACT = 1e-11
"""Relative, in float64: what is left is the order of additions."""


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return launch(WORKER, tmp_path_factory.mktemp("fsdp"))


@pytest.fixture(scope="module")
def out_all(tmp_path_factory):
    return launch(WORKER, tmp_path_factory.mktemp("fsdp-all"), "all")


@pytest.fixture(scope="module")
def report(out):
    return json.loads((out / "report.json").read_text())


@pytest.mark.parametrize("steps", ["1", "2, one reduction"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_loss_gradients_and_weights_equal_one_process(layout, steps, report):
    assert max(report["layouts"][f"{layout} | {steps}"].values()) < EXACT


def test_gradients_reduced_in_every_micro_batch(report):
    assert max(report["layouts"]["own | 2, reduced each time"].values()) < EXACT


@pytest.mark.parametrize("teacher", TEACHERS)
def test_a_sharded_teacher_is_the_replicated_one(teacher, report):
    assert max(report["teachers"][teacher].values()) < EXACT


def test_a_sharded_base_with_its_adapters_off_is_a_teacher(report):
    assert max(report["adapter_off"].values()) < EXACT


GATHERS = {
    # One gather brings embeddings and head together.
    "root / replicated": dict(teacher=[0, 0, 0], forward=[1, 1, 1], backward=[0, 0, 0]),
    "root, tied / replicated": dict(teacher=[0, 0, 0], forward=[1, 1, 1], backward=[0, 0, 0]),
    "norm, embeddings and head, tied / replicated": dict(teacher=[0, 0, 0], forward=[1, 1, 1], backward=[0, 0, 0]),
    # FSDP's own setting: the root is gathered again for the backward.
    "root, resharded after forward / replicated": dict(teacher=[0, 0, 0], forward=[1, 1, 1], backward=[1, 1, 1]),
    # Embeddings and head, each once; the head not again in the backward, which needs no weight of it.
    "own / replicated": dict(teacher=[0, 0, 0], forward=[2, 2, 2], backward=[0, 0, 0]),
    # Embeddings are a module of their own there, and FSDP gathers them again in the backward.
    "norm and head / replicated": dict(teacher=[0, 0, 0], forward=[2, 2, 2], backward=[1, 1, 1]),
    # Teachers: the head once a run, whichever way it is sharded; embeddings as FSDP does it.
    "root / root": dict(teacher=[1, 0, 0], forward=[1, 1, 1], backward=[0, 0, 0]),
    "root / own": dict(teacher=[2, 0, 0], forward=[1, 1, 1], backward=[0, 0, 0]),
    "root / norm and head": dict(teacher=[2, 1, 1], forward=[1, 1, 1], backward=[0, 0, 0]),
    "root / shard()": dict(teacher=[2, 1, 1], forward=[1, 1, 1], backward=[0, 0, 0]),
    "root / shard(), tied": dict(teacher=[1, 0, 0], forward=[1, 1, 1], backward=[0, 0, 0]),
}
"""(student / teacher): gathers as large as a head, in three micro-batches."""


@pytest.mark.parametrize("layouts", GATHERS)
def test_the_head_is_gathered_once_a_forward_and_a_teachers_once_a_run(layouts, report):
    assert report["gathers"][layouts] == GATHERS[layouts]


def test_evaluation_sees_weights_that_changed_since_the_last(report):
    assert report["evaluation"] < EXACT


@pytest.mark.parametrize("tokens", ["own", "own, replicated", "same"])
def test_a_head_distributed_otherwise_gets_its_average_gradient(tokens, report):
    assert report["hand"][tokens] < EXACT


@pytest.mark.parametrize("layout", ["root", "own"])
def test_under_a_bfloat16_policy_the_head_has_its_dtype_and_its_gradient_the_masters(layout, report):
    found = report["mixed"][layout]
    assert (found["hidden"], found["head"], found["gradient"]) == ("torch.bfloat16", "torch.bfloat16", "torch.float32")
    assert found["error"] < 0.02  # of the head's gradient, against float32 throughout


@pytest.mark.parametrize("layout", ["root", "own"])
def test_a_bfloat16_policy_leaves_request_and_result_alone(layout, report):
    found = report["mixed"][layout]
    assert [found[name] for name in ("teacher_hidden", "teacher_head", "scale", "loss")] == ["torch.float32"] * 4


def compare(name, label, folder, tmp_path, accumulations):
    from safetensors.torch import load_file

    for trace in folder.glob(f"{name}.{label}.*.txt"):
        pytest.fail(trace.read_text()[-3000:])
    wanted = {name: {"teacher": "online"}} if label == SHARDED else spec(name, label)
    one = make_trainer(tmp_path, wanted, per_device_train_batch_size=BATCH, **{**SETTINGS, **TRAINED.get(name, {})})
    one.train()
    for accumulation in accumulations:
        two = load_file(str(folder / f"{name}.{label}.{accumulation}.safetensors"))
        assert largest_difference(weights(one), two) < 2e-6, f"{accumulation} micro-batches a step"


SHORT = [("direct", ""), *FIRST, (OWN, ""), (SECOND_PASS, ""), ("label_annealing", SHARDED)]


@pytest.mark.parametrize(("name", "label"), SHORT)
def test_the_trainer_over_two_sharded_ranks_equals_one(name, label, out, tmp_path):
    compare(name, label, out, tmp_path, ACCUMULATION[-1:])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "label"), [*EVERY, ("label_annealing", SHARDED)])
def test_the_trainer_over_two_sharded_ranks_equals_one_in_every_case(name, label, out_all, tmp_path):
    compare(name, label, out_all, tmp_path, ACCUMULATION)
