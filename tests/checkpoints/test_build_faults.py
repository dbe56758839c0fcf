"""Faults on the way: inputs and earlier outputs stay what they are, nothing half-written gets a name, and the error
says which file and tensor."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from merge_case import Case

from checkpoint_folders import contents, random_model, read_folder, stored, write_folder
from holdfast.checkpoints.merge import prepare_merge
from holdfast.checkpoints.perturb import perturb
from holdfast.checkpoints.residual import prepare_extract
from holdfast.errors import Interrupted, ModelError, RunFolderError, StorageError


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


# -------------------------------------------------------------------------------------------------------------- outputs


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_input_is_never_written_into_replaced_or_removed(overwrite: bool, case: Case, tmp_path: Path) -> None:
    tuned = case.parents[1]
    (tuned / "provenance.json").write_text("{}")  # as if it were an output of ours, too
    (tmp_path / "provenance.json").write_text("{}")
    (tmp_path / "link").symlink_to(tuned)
    for output, relation in (
        (tuned, "is"),
        (tuned / ".", "is"),
        (tmp_path / "link", "is"),
        (tuned / "inside" / "deep", "is inside"),
        (tmp_path / "link" / "inside", "is inside"),
        (tmp_path, "holds"),
        (tmp_path / "new" / "..", "holds"),
        (tmp_path.parent, "holds"),
    ):
        before = contents(tmp_path)
        with pytest.raises(RunFolderError, match=rf"{relation} the input .*, and inputs are never modified"):
            case.prepared().write(output, overwrite=overwrite)
        assert contents(tmp_path) == before


def test_a_folder_that_an_input_links_into_is_an_input_too(case: Case, tmp_path: Path) -> None:
    (tmp_path / "view").mkdir()
    for file in case.output.iterdir():
        (tmp_path / "view" / file.name).symlink_to(file)
    with pytest.raises(RunFolderError, match=r"out is the input"):
        prepare_merge("linear", [tmp_path / "view", case.parents[0]]).write(case.output, overwrite=True)
    case.check()


def test_adapters_and_fisher_information_are_inputs(tmp_path: Path) -> None:
    model = random_model(0, "F32")
    folders = [write_folder(tmp_path / n, model) for n in ("a", "b", "f")]
    for folder in folders:
        (folder / "provenance.json").write_text("{}")
    for folder in folders:
        with pytest.raises(RunFolderError, match="and inputs are never modified"):
            prepare_merge("fisher", folders[:1], fisher=folders[2:], layout=folders[0]).write(
                folder if folder != folders[1] else tmp_path, overwrite=True
            )


# --------------------------------------------------------------------------------------------------------------- inputs


@pytest.mark.parametrize("workers", [1, 3])
def test_a_shard_that_is_cut_between_planning_and_reading(workers: int, case: Case) -> None:
    prepared = case.prepared()
    file = case.parents[1] / "model-00002-of-00003.safetensors"
    os.truncate(file, file.stat().st_size - 10)
    with pytest.raises(
        ModelError,
        match=r"tuned/model-00002-of-00003\.safetensors ends within .*weight, because it became shorter",
    ):
        prepared.write(case.output, overwrite=True, workers=workers)
    case.check(changed=case.parents[1])


@pytest.mark.parametrize("what", ["touched", "replaced"])
def test_a_shard_that_is_written_meanwhile(what: str, case: Case) -> None:
    """Sizes and headers are the same: without a look at the end the output would be a mixture of two versions."""
    prepared = case.prepared()
    file = case.parents[1] / "model-00003-of-00003.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    if what == "replaced":
        file.with_suffix(".new").write_bytes(content)
        os.replace(file.with_suffix(".new"), file)
    else:
        os.utime(file, ns=(0, 0))
    with pytest.raises(ModelError, match=r"tuned/model-00003-of-00003\.safetensors was changed after it was opened"):
        prepared.write(case.output, overwrite=True)
    case.check(changed=case.parents[1])


def test_nan_found_in_the_last_tensor_leaves_the_earlier_output(case: Case) -> None:
    model = read_folder(case.parents[1])
    values = np.array(model["model.norm.weight"].values)
    values[-1] = np.nan
    bad = write_folder(case.folder / "bad", model | {"model.norm.weight": stored(values, "BF16")})
    for write in (
        lambda: prepare_merge("wise_ft", [bad], base=case.parents[0]).write(case.output, overwrite=True),
        lambda: perturb(bad, case.output, scale=1.0, seed=0, stds={"model.norm.weight": 1.0}, overwrite=True),
        lambda: prepare_extract(bad, case.parents[0]).write(case.output, overwrite=True),
    ):
        with pytest.raises(
            ModelError,
            match=r"model\.norm\.weight in .*bad/model\.safetensors .*holds 1 NaN of 12 values, the first at \[11\]",
        ):
            write()
        case.check()


# ----------------------------------------------------------------------------------------------------------- full disks


@pytest.mark.parametrize("after", [0, 4, 12])
def test_a_disk_that_fills_up(after: int, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = os.pwrite, iter(range(1000))

    def failing(descriptor: int, view: Any, position: int) -> int:
        if next(calls) >= after:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, view, position)

    monkeypatch.setattr(os, "pwrite", failing)
    with pytest.raises(
        StorageError, match=r"Could not write .*out \(No space left on device\).*Inputs and earlier output are intact"
    ):
        case.prepared().write(case.output, overwrite=True, workers=1, sync=False)
    case.check()


# --------------------------------------------------------------------------------------------------------------- Ctrl-C


@pytest.mark.parametrize("times", [1, 3])
def test_control_c(times: int, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    import signal

    real, calls = os.pwrite, iter(range(1000))

    def interrupting(descriptor: int, view: Any, position: int) -> int:
        if next(calls) == 8:
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)
        return real(descriptor, view, position)

    monkeypatch.setattr(os, "pwrite", interrupting)
    with pytest.raises(Interrupted, match=r"Stopped\. .*out was not written\. The same command starts over"):
        case.prepared().write(case.output, overwrite=True, workers=2, sync=False)
    assert case.now() == case.before
