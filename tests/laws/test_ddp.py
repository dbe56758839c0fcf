"""DDP over two ranks equals one rank with the same global batch, for every method, with and without gradient accumulation."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cases import ALL, CASES, largest_difference, make_trainer, weights
from ddp_worker import ACCUMULATION, BATCH, SETTINGS

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(420)]


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    out = tmp_path_factory.mktemp("ddp")
    worker = Path(__file__).parent / "ddp_worker.py"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(worker), str(out)],
        capture_output=True, text=True, timeout=400, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return out


@pytest.mark.parametrize(("name", "label"), [("direct", ""), *ALL])
def test_two_ranks_equal_one(name, label, two_ranks, tmp_path):
    from safetensors.torch import load_file

    spec = {} if name == "direct" else {name: CASES[name][label]}
    one = make_trainer(tmp_path, spec, per_device_train_batch_size=BATCH, **SETTINGS)
    one.train()
    for accumulation in ACCUMULATION:
        two = load_file(str(two_ranks / f"{name}.{label}.{accumulation}.safetensors"))
        assert largest_difference(weights(one), two) < 2e-6, f"{accumulation} micro-batches a step"
