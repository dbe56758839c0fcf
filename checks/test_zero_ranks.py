"""DeepSpeed ZeRO over two ranks equals one process with the same global batch, for every method that a stage allows.
Where DeepSpeed is installed."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import largest_difference, make_trainer, spec, weights
from ddp_worker import BATCH, SETTINGS

from two_processes import launch
from zero_worker import ACCUMULATION, STAGES, cases

pytest.importorskip("deepspeed", reason="DeepSpeed is not installed (pip install --no-build-isolation deepspeed)")
pytestmark = [pytest.mark.distributed, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    return launch(Path(__file__).with_name("zero_worker.py"), tmp_path_factory.mktemp("zero"), timeout=880)


@pytest.mark.parametrize(("stage", "name", "label"), [(s, n, label) for s in STAGES for n, label in cases(s)])
def test_two_ranks_equal_one(stage, name, label, two_ranks, tmp_path):
    from safetensors.torch import load_file

    one = make_trainer(
        tmp_path, {} if name == "direct" else spec(name, label), per_device_train_batch_size=BATCH, **SETTINGS
    )
    one.train()
    for accumulation in ACCUMULATION[stage]:
        stem = f"{stage}.{name}.{label}.{accumulation}"
        for problem in two_ranks.glob(f"{stem}.*.txt"):
            pytest.fail(problem.read_text())
        two = load_file(str(two_ranks / f"{stem}.safetensors"))
        assert largest_difference(weights(one), {n: two[n] for n in weights(one)}) < 2e-6, (
            f"{accumulation} micro-batches a step"
        )


@pytest.mark.parametrize("stage", [1, 2])
def test_a_resumed_run_is_the_uninterrupted_one(stage, two_ranks):
    from safetensors.torch import load_file

    whole, resumed = (load_file(str(two_ranks / f"{stage}.{name}.safetensors")) for name in ("whole", "resumed"))
    assert largest_difference(whole, resumed) == 0.0
