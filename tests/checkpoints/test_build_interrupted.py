"""Builds that were killed: the same request goes on to the same bits, another one begins anew."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from killed_builds import TOKENS, Parents, half_done, hidden

from checkpoint_folders import (
    read_folder,
    stored,
    weights,
    write_folder,
    write_tokenizer,
)


@pytest.fixture
def parents(tmp_path: Path) -> Parents:
    return Parents(tmp_path)


# -------------------------------------------------------------------------------------------------------------- kill -9


def test_what_was_finished_is_used_and_not_written_again(parents: Parents, tmp_path: Path) -> None:
    wanted = parents.merge(tmp_path / "uninterrupted")
    half_done(parents)
    (staging,) = hidden(tmp_path)
    times = {file.name: file.stat().st_mtime_ns for file in staging.glob("*.safetensors")}
    built = parents.merge(workers=5)
    assert set(built.resumed) == set(times)
    assert {name: (parents.output / name).stat().st_mtime_ns for name in times} == times
    assert weights(parents.output) == weights(wanted.folder)
    for name in ("fingerprint", "tensors"):
        assert built.record[name] == wanted.record[name]


# ------------------------------------------------------------------------------------------------------ another request


def touch(parents: Parents) -> None:
    file = parents.parents[1] / "model-00001-of-00006.safetensors"
    os.utime(file, ns=(0, file.stat().st_mtime_ns + 1))


def retrain(parents: Parents) -> None:
    model = read_folder(parents.parents[2])
    shutil.rmtree(parents.parents[2])
    write_folder(
        parents.parents[2], model | {"model.norm.weight": stored(np.ones(12), "BF16")}, shards=6, tokens=TOKENS
    )


def renumber(parents: Parents) -> None:
    """The same tokens in another order: other rows belong together."""
    write_tokenizer(parents.parents[1], TOKENS[::-1])


@pytest.mark.parametrize(
    "change",
    [
        touch,
        retrain,
        renumber,
        {"density": 0.5},
        {"scale": 0.9},
        {"layout": "model 2"},
        {"weights": [1.0, 2.0]},
        {"semantics": "mergekit"},
    ],
    ids=lambda change: getattr(change, "__name__", str(change)),
)
def test_what_is_no_longer_the_same_request_begins_anew(change: Any, parents: Parents, tmp_path: Path) -> None:
    half_done(parents)
    more = change if isinstance(change, dict) else (change(parents) or {})
    built = parents.merge(**more)
    assert built.resumed == () and not hidden(tmp_path)
    assert read_folder(built.folder) == read_folder(parents.merge(tmp_path / "fresh", **more).folder)
