"""Writing a folder on bad disks, and what kills and power cuts leave."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from writing import KEY, MIXED, begun, killed, pieces, record, shards_of, write

from checkpoint_folders import contents, random_model, read_folder, stored
from holdfast.checkpoints import writer as writer_module
from holdfast.checkpoints.writer import CheckpointWriter
from holdfast.errors import RunFolderError, StorageError


def test_what_a_kill_right_after_the_exchange_leaves_is_not_taken_for_finished_shards(tmp_path: Path) -> None:
    """The old output lies under the hidden name then, with files of the same names and sizes."""
    old, new = random_model(0), random_model(1)
    write(tmp_path / "model", old, shards=3)
    made = begun(tmp_path / "model", new, overwrite=True)
    staging = killed(made)
    shutil.rmtree(staging)
    shutil.copytree(tmp_path / "model", staging)
    assert write(tmp_path / "model", new, shards=3, overwrite=True).finished == set()
    assert read_folder(tmp_path / "model") == new and [p.name for p in tmp_path.iterdir()] == ["model"]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs to know what a descriptor is open on")
@pytest.mark.parametrize("overwrite", [False, True])
def test_everything_is_on_the_disk_before_it_gets_its_name(
    overwrite: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if overwrite:
        write(tmp_path / "model", random_model(0), shards=3)
    events: list[tuple[str, str]] = []
    fsync, rename, place = os.fsync, os.rename, writer_module._put_in_place

    def named(path: object) -> str:
        return (
            str(Path(str(path)).relative_to(tmp_path))
            .removesuffix(".part")
            .removeprefix(f".model.{KEY[:16]}.partial")
            .strip("/")
        )

    monkeypatch.setattr(
        os, "fsync", lambda fd: (fsync(fd), events.append(("sync", named(os.readlink(f"/proc/self/fd/{fd}")))))
    )
    monkeypatch.setattr(os, "rename", lambda a, b: (rename(a, b), events.append(("name", named(b)))))
    monkeypatch.setattr(writer_module, "_put_in_place", lambda *a, **k: (events.append(("place", "")), place(*a, **k)))
    write(tmp_path / "model", MIXED, shards=3, sync=True, overwrite=overwrite)
    names = [p.name for p in (tmp_path / "model").iterdir()]
    assert len(names) == 5
    for name in names:
        synced = [i for i, event in enumerate(events) if event == ("sync", name)]
        assert synced and synced[0] < events.index(("place", ""))
        if name.endswith(".safetensors"):
            assert synced[0] < events.index(("name", name))
    assert events.index(("sync", "")) < events.index(("place", "")) and events[-1] == (
        "sync",
        ".",
    )  # the folders themselves


def test_a_replacement_that_was_cut_between_its_renames_is_undone(tmp_path: Path) -> None:
    old = random_model(0)
    write(tmp_path / "model", old)
    os.rename(tmp_path / "model", tmp_path / ".model.replaced")
    with pytest.raises(RunFolderError, match="exists and is not empty"):
        CheckpointWriter(tmp_path / "model", shards_of(MIXED), key=KEY).close(record)
    assert read_folder(tmp_path / "model") == old
    os.rename(tmp_path / "model", tmp_path / ".model.replaced")
    write(tmp_path / "model", MIXED, overwrite=True)
    assert read_folder(tmp_path / "model") == MIXED and [p.name for p in tmp_path.iterdir()] == ["model"]


def test_a_process_that_was_killed_holds_no_lock(tmp_path: Path) -> None:
    program = (
        "import os, sys, signal\nfrom holdfast.checkpoints.dtypes import dtype\nfrom "
        "holdfast.checkpoints.writer import CheckpointWriter, Slot\n"
        "CheckpointWriter(sys.argv[1], [('model.safetensors', [Slot('a', dtype('F32'), (4,), "
        "16)])], key='b' * 64)\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "model")], capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    assert (tmp_path / f".model.{'b' * 16}.partial" / "model.safetensors.part").is_file()
    write(tmp_path / "model", MIXED)
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, StorageError), (errno.EIO, StorageError), (errno.EROFS, RunFolderError)]
)
@pytest.mark.parametrize("call", ["pwrite", "ftruncate", "fsync", "rename"])
def test_every_call_may_fail(
    call: str, number: int, kind: type[Exception], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write(tmp_path / "model", random_model(0))
    before = contents(tmp_path)
    real, calls = getattr(os, call), iter(range(1000))

    def failing(*arguments, **more):
        if next(calls) >= (3 if call == "pwrite" else 0):
            raise OSError(number, os.strerror(number))
        return real(*arguments, **more)

    monkeypatch.setattr(writer_module, "_exchange", lambda one, other: False)
    monkeypatch.setattr(os, call, failing)
    made: list[CheckpointWriter] = []

    def everything() -> None:
        made.append(CheckpointWriter(tmp_path / "model", shards_of(MIXED), key=KEY, overwrite=True))
        for work in pieces(MIXED):
            made[0].write(*work)
        made[0].close(record)

    with pytest.raises(kind, match=r"Could not write .*model|model cannot be written"):
        everything()
    monkeypatch.undo()
    for one in made:
        one.abandon(keep_finished=False)
    assert contents(tmp_path) == before


def test_a_write_that_takes_fewer_bytes_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, view, position: real(descriptor, bytes(view)[:5], position))
    write(tmp_path / "model", MIXED)
    assert read_folder(tmp_path / "model") == MIXED


def test_a_folder_that_comes_into_being_in_the_last_moment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(writer_module, "check_destination", lambda folder, overwrite: None)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "thesis.txt").write_text("of somebody else")
    with pytest.raises(RunFolderError, match=r"model was created in the meantime and is not replaced"):
        write(tmp_path / "model", MIXED)
    assert contents(tmp_path / "model").keys() == {"thesis.txt"}


@pytest.mark.parametrize("exchange", [True, False])
def test_replacing_works_on_systems_without_an_exchange_of_names(
    exchange: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if not exchange:
        monkeypatch.setattr(writer_module, "_exchange", lambda one, other: False)
    write(tmp_path / "model", random_model(0))
    write(tmp_path / "model", MIXED, overwrite=True)
    assert read_folder(tmp_path / "model") == MIXED and [p.name for p in tmp_path.iterdir()] == ["model"]


@given(
    sizes=st.lists(
        st.tuples(st.sampled_from(["F32", "BF16", "F8_E5M2", "BOOL", "F64"]), st.integers(0, 130)),
        min_size=1,
        max_size=8,
    ),
    shards=st.integers(1, 4),
    shuffle=st.integers(0, 5),
    sync=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_shards_of_nothing_but_empty_tensors_and_all_others(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[tuple[str, int]], shards: int, shuffle: int, sync: bool
) -> None:
    tensors = {f"t{i}": stored(np.arange(n) % 7, kind) for i, (kind, n) in enumerate(sizes)}
    used = -(-len(tensors) // -(-len(tensors) // min(shards, len(tensors))))
    folder = tmp_path_factory.mktemp("any") / "model"
    write(folder, tensors, shards=used, shuffle=shuffle, sync=sync)
    assert read_folder(folder) == tensors
