"""The in-place forms on sharded tensors: two processes give what one process gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from live_worker import LAYOUTS, OPERATIONS

from two_processes import launch


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    out = tmp_path_factory.mktemp("live")
    launch(Path(__file__).with_name("live_worker.py"), out, timeout=200)
    return json.loads((out / "report.json").read_text())


@pytest.mark.distributed
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("dtype", ["torch.float32", "torch.bfloat16"])
def test_two_ranks_equal_one(dtype, operation, layout, two_ranks):
    assert [rank["layouts"][dtype][operation][layout] for rank in two_ranks] == [True, True]


@pytest.mark.distributed
@pytest.mark.parametrize("what", ["noise", "logits", "counts add up", "undo", "logits after", "lerp_"])
def test_a_model_under_fsdp2_equals_one_process(what, two_ranks):
    assert [rank["fsdp"][what] for rank in two_ranks] == [True, True]


@pytest.mark.distributed
def test_placements_that_are_no_part_of_the_weights_are_refused(two_ranks):
    assert "w: expected a DTensor placed by Shard and Replicate, got (Partial(sum),)" in two_ranks[0]["refused"]
