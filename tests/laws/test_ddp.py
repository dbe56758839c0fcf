"""DDP over two ranks equals one rank with the same global batch, for every method, with and without gradient
accumulation."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import EVERY, QUICK, SEEING, TRAINED, largest_difference, make_trainer, seeing, spec, weights
from ddp_worker import ACCUMULATION, BATCH, BY_ORIGIN, IMAGES, SETTINGS, adapted

from two_processes import fork, launch

WORKER = Path(__file__).with_name("ddp_worker.py")
pytestmark = [pytest.mark.distributed, pytest.mark.timeout(420)]


@pytest.fixture(scope="module")
def two_ranks(once):
    return once("ddp", lambda folder: fork(WORKER, folder))


@pytest.fixture(scope="module")
def two_ranks_all(tmp_path_factory):
    return launch(WORKER, tmp_path_factory.mktemp("ddp-all"), "all")


def compare(name, label, folder, tmp_path, accumulations, method=None, **how):
    from safetensors.torch import load_file

    method = spec(name, label) if method is None else method
    one = make_trainer(
        tmp_path, method, per_device_train_batch_size=BATCH, **how, **{**SETTINGS, **TRAINED.get(name, {})}
    )
    one.train()
    for accumulation in accumulations:
        two = load_file(str(folder / f"{name}.{label}.{accumulation}.safetensors"))
        assert largest_difference(weights(one), two) < 2e-6, f"{accumulation} micro-batches a step"


@pytest.mark.parametrize(("name", "label"), QUICK)
def test_two_ranks_equal_one(name, label, two_ranks, tmp_path):
    compare(name, label, two_ranks, tmp_path, ACCUMULATION[-1:])


@pytest.mark.parametrize(("name", "images"), IMAGES)
def test_two_ranks_equal_one_on_images(name, images, two_ranks, tmp_path):
    """Some micro-batches hold no image, on one rank and not on the other."""
    compare(name, images, two_ranks, tmp_path, ACCUMULATION[-1:], seeing(name), images=images)


@pytest.mark.parametrize("name", adapted())
def test_two_ranks_equal_one_with_an_adapter(name, two_ranks, tmp_path):
    method, how = adapted()[name]
    compare(name, "adapter", two_ranks, tmp_path, ACCUMULATION[-1:], method, **how)


def test_two_ranks_equal_one_where_terms_weigh_by_origin(two_ranks, tmp_path):
    """Some micro-batches hold no token with a cross-entropy, on one rank and not on the other."""
    compare("self_replay", "by origin", two_ranks, tmp_path, ACCUMULATION[-1:], BY_ORIGIN)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "images"), SEEING)
def test_two_ranks_equal_one_on_images_with_every_method(name, images, two_ranks_all, tmp_path):
    compare(name, images, two_ranks_all, tmp_path, ACCUMULATION, seeing(name), images=images)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "label"), EVERY)
def test_two_ranks_equal_one_in_every_case(name, label, two_ranks_all, tmp_path):
    compare(name, label, two_ranks_all, tmp_path, ACCUMULATION)
