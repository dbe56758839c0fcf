"""DDP over two ranks equals one rank with the same global batch, for every method, with and without gradient accumulation."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cases import ALL, FIRST, largest_difference, make_trainer, spec, weights
from ddp_worker import ACCUMULATION, BATCH, SETTINGS

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(420)]


def launch(out: Path, *words: str) -> Path:
    worker = Path(__file__).parent / "ddp_worker.py"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(worker), str(out), *words],
        capture_output=True, text=True, timeout=400, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return out


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    return launch(tmp_path_factory.mktemp("ddp"))


@pytest.fixture(scope="module")
def two_ranks_all(tmp_path_factory):
    return launch(tmp_path_factory.mktemp("ddp-all"), "all")


def compare(name, label, folder, tmp_path, accumulations):
    from safetensors.torch import load_file

    wanted = {} if name == "direct" else spec(name, label)
    one = make_trainer(tmp_path, wanted, per_device_train_batch_size=BATCH, **SETTINGS)
    one.train()
    for accumulation in accumulations:
        two = load_file(str(folder / f"{name}.{label}.{accumulation}.safetensors"))
        assert largest_difference(weights(one), two) < 2e-6, f"{accumulation} micro-batches a step"


@pytest.mark.parametrize(("name", "label"), [("direct", ""), *FIRST])
def test_two_ranks_equal_one(name, label, two_ranks, tmp_path):
    compare(name, label, two_ranks, tmp_path, ACCUMULATION[-1:])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "label"), [("direct", ""), *ALL])
def test_two_ranks_equal_one_in_every_case(name, label, two_ranks_all, tmp_path):
    compare(name, label, two_ranks_all, tmp_path, ACCUMULATION)
