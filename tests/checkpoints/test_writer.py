"""Writing a folder: the bytes, the order, what is resumed and what never is, and that nothing foreign is touched."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint_folders import Model, contents, random_model, read_folder, stored
from holdfast.checkpoints import writer as writer_module
from holdfast.checkpoints.dtypes import dtype
from holdfast.checkpoints.provenance import FILE
from holdfast.checkpoints.reader import CheckpointReader
from holdfast.checkpoints.writer import CheckpointWriter, Slot, check_destination, shard_names
from holdfast.errors import RunFolderError, StorageError

KEY = "0123456789abcdef" * 4


def shards_of(tensors: Model, count: int = 1) -> list[tuple[str, list[Slot]]]:
    names = list(tensors)
    each = -(-len(names) // count)
    slots = {n: Slot(n, dtype(t.dtype), t.shape, len(t.content)) for n, t in tensors.items()}
    return [
        (file, [slots[n] for n in names[i * each : (i + 1) * each]])
        for i, file in enumerate(shard_names("model", count))
    ]


def pieces(tensors: Model, unit: int = 50) -> list[tuple[str, int, np.ndarray]]:
    found = []
    for name, tensor in tensors.items():
        raw = np.frombuffer(tensor.content, dtype(tensor.dtype).storage)
        found += [(name, start, raw[start : start + unit]) for start in range(0, max(1, len(raw)), unit)]
    return found


def record(folder: Path) -> None:
    (folder / FILE).write_text("{}")


def write(folder: Path, tensors: Model, *, shards: int = 1, shuffle: int | None = None, **settings) -> CheckpointWriter:
    made = CheckpointWriter(folder, shards_of(tensors, shards), **{"key": KEY, "sync": False, **settings})
    work = pieces(tensors)
    if shuffle is not None:
        random.Random(shuffle).shuffle(work)
    for name, start, raw in work:
        if not made.done(name):
            made.write(name, start, raw)
    made.close(record)
    return made


MIXED = {
    "odd": stored(np.arange(3.0), "F8_E4M3"),
    "half": stored(np.arange(5.0), "BF16"),
    "scalar": stored(np.array(7.0), "F32"),
    "flag": stored(np.array([True, False, True]), "BOOL"),
    "empty": stored(np.zeros((2, 0, 3)), "F16"),
    "wide": stored(np.arange(4.0), "F64"),
    "count": stored(np.arange(6), "I64"),
    "grid": stored(np.arange(99.0).reshape(9, 11), "F32"),
}


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("shards", [1, 3])
def test_the_bytes_come_back_in_whatever_order_they_are_written(shards: int, sync: bool, tmp_path: Path) -> None:
    write(tmp_path / "model", MIXED, shards=shards, shuffle=shards, sync=sync)
    assert read_folder(tmp_path / "model") == MIXED
    reader = CheckpointReader(tmp_path / "model")
    assert set(reader.entries) == set(MIXED) and reader.metadata == {"format": "pt"}
    assert all(
        e.offset % e.dtype.itemsize == 0 for e in reader.entries.values()
    )  # a memory map of any of them is aligned
    names = [FILE, *([f.name for f in reader.files]), *(["model.safetensors.index.json"] if shards > 1 else [])]
    assert sorted(p.name for p in (tmp_path / "model").iterdir()) == sorted(names)
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    if shards > 1:
        index = json.loads((tmp_path / "model" / "model.safetensors.index.json").read_text())
        assert index["metadata"]["total_size"] == sum(len(t.content) for t in MIXED.values())
        assert set(index["weight_map"]) == set(MIXED)


def test_safetensors_and_transformers_take_it_for_theirs(tmp_path: Path) -> None:
    from safetensors import safe_open

    write(tmp_path / "model", MIXED)
    with safe_open(str(tmp_path / "model" / "model.safetensors"), framework="pt") as held:
        assert held.metadata() == {"format": "pt"}
        for name, tensor in MIXED.items():
            assert np.array_equal(held.get_tensor(name).double().numpy(), tensor.values)


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


def test_threads_write_at_once(tmp_path: Path) -> None:
    tensors = random_model(0)
    made = CheckpointWriter(tmp_path / "model", shards_of(tensors, 3), key=KEY)
    work = pieces(tensors, 7)
    random.Random(0).shuffle(work)
    threads = [threading.Thread(target=lambda i=i: [made.write(*w) for w in work[i::5]]) for i in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made.close(record)
    assert read_folder(tmp_path / "model") == tensors


def test_a_folder_that_lacks_a_byte_does_not_get_its_name(tmp_path: Path) -> None:
    made = CheckpointWriter(tmp_path / "model", shards_of(MIXED), key=KEY)
    for name, start, raw in pieces(MIXED)[:-1]:
        made.write(name, start, raw)
    with pytest.raises(AssertionError, match="not all tensors were written"):
        made.close(record)
    made.abandon(keep_finished=False)
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------------------------------------- resuming


def begun(folder: Path, tensors: Model, *, shards: int = 3, finish: int = 1, **settings) -> CheckpointWriter:
    """A writer that has written so many shards and one piece more."""
    made = CheckpointWriter(folder, shards_of(tensors, shards), **{"key": KEY, **settings})
    full = {slot.name for _, slots in shards_of(tensors, shards)[:finish] for slot in slots}
    rest = [w for w in pieces(tensors) if w[0] not in full]
    for work in [*[w for w in pieces(tensors) if w[0] in full], rest[0]]:
        made.write(*work)
    return made


def killed(made: CheckpointWriter) -> Path:
    """What a kill leaves: the lock is gone, the files are there."""
    made._syncer.shutdown(wait=True)
    for shard in made._shards:
        if shard.descriptor >= 0:
            os.close(shard.descriptor)
    os.close(made._lock)
    made._lock = -1
    return made.staging


def test_finished_shards_of_the_same_request_are_used_again(tmp_path: Path) -> None:
    model = random_model(0)
    staging = killed(begun(tmp_path / "model", model, finish=2))
    (staging / "model-00001-of-00003.safetensors").touch()
    before = (staging / "model-00001-of-00003.safetensors").stat().st_ino
    made = write(tmp_path / "model", model, shards=3, sync=True)
    assert made.finished == {"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors"}
    assert read_folder(tmp_path / "model") == model and [p.name for p in tmp_path.iterdir()] == ["model"]
    assert (tmp_path / "model" / "model-00001-of-00003.safetensors").stat().st_ino == before


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"sync": False}, {}),  # after a power cut a file that was never synced can have its length and be empty
        ({}, {"key": "f" * 64}),
        ({}, {"key": KEY[:16] + "f" * 48}),
        ({"truncate": 100}, {}),
    ],
    ids=str,
)
def test_shards_that_may_be_others_are_written_again(before: dict, after: dict, tmp_path: Path) -> None:
    one, other = random_model(0), random_model(1)
    size = before.pop("truncate", None)
    staging = killed(begun(tmp_path / "model", one, finish=2, **before))
    for file in sorted(staging.glob("*.safetensors")) if size else []:
        os.truncate(file, size)
    made = write(tmp_path / "model", other, shards=3, **after)
    assert made.finished == set() and not staging.exists()
    assert read_folder(tmp_path / "model") == other and [p.name for p in tmp_path.iterdir()] == ["model"]


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


@pytest.mark.parametrize(("finish", "keep"), [(0, True), (1, True), (1, False)])
def test_giving_up(finish: int, keep: bool, tmp_path: Path) -> None:
    made = begun(tmp_path / "model", random_model(0), finish=finish)
    assert made.abandon(keep_finished=keep) is (finish == 1 and keep)
    assert not (tmp_path / "model").exists()
    left = [p.name for p in made.staging.iterdir()] if made.staging.exists() else []
    assert sorted(left) == ([".lock", "model-00001-of-00003.safetensors"] if finish and keep else [])


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


# --------------------------------------------------------------------------------------------------------- destinations


def test_an_existing_folder_is_replaced_only_when_asked_to(tmp_path: Path) -> None:
    old, new = random_model(0), random_model(1)
    write(tmp_path / "model", old)
    (tmp_path / "model" / "notes.txt").write_text("of the old one")
    with pytest.raises(
        RunFolderError, match=r"model exists and is not empty\. Choose another folder, or add --overwrite"
    ):
        write(tmp_path / "model", new)
    assert read_folder(tmp_path / "model") == old
    write(tmp_path / "model", new, overwrite=True)
    assert read_folder(tmp_path / "model") == new and not (tmp_path / "model" / "notes.txt").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("place", ["model", "a/b/model"])
def test_an_empty_folder_is_as_good_as_none_and_parents_are_made(place: str, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    write(tmp_path / place, MIXED)
    assert read_folder(tmp_path / place) == MIXED


def test_what_this_engine_did_not_write_is_never_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "checkpoint-500").mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("{}")
    before = contents(folder)
    with pytest.raises(
        RunFolderError,
        match=r"run was not written by this engine \(no provenance\.json in it\) and is not replaced: checkpoint-500, ",
    ):
        write(folder, MIXED, overwrite=True)
    assert contents(folder) == before


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("something")
    with pytest.raises(RunFolderError, match=r"Expected a folder to write at .*model, found a file"):
        write(tmp_path / "model", MIXED, overwrite=True)


def test_a_link_is_followed_and_kept(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "model").symlink_to(tmp_path / "disk" / "model")
    write(tmp_path / "model", random_model(0))
    write(tmp_path / "model", MIXED, overwrite=True)
    assert (tmp_path / "model").is_symlink() and read_folder(tmp_path / "disk" / "model") == MIXED
    assert sorted(p.name for p in tmp_path.iterdir()) == ["disk", "model"] and [
        p.name for p in (tmp_path / "disk").iterdir()
    ] == ["model"]


def test_a_mount_point_is_refused_before_any_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Path, "is_mount", lambda self: True)
    with pytest.raises(RunFolderError, match=r"where a disk is mounted.*Name a folder inside it"):
        check_destination(tmp_path, overwrite=False)


def test_a_folder_that_comes_into_being_meanwhile_is_left_as_it_is(tmp_path: Path) -> None:
    made = begun(tmp_path / "model", MIXED, shards=1, finish=0)
    for work in pieces(MIXED)[1:]:
        made.write(*work)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "thesis.txt").write_text("of somebody else")
    with pytest.raises(RunFolderError, match="exists and is not empty"):
        made.close(record)
    made.abandon(keep_finished=False)
    assert contents(tmp_path).keys() == {"model/thesis.txt"}


def test_a_folder_that_comes_into_being_in_the_last_moment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(writer_module, "check_destination", lambda folder, overwrite: None)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "thesis.txt").write_text("of somebody else")
    with pytest.raises(RunFolderError, match=r"model has come into being meanwhile and is left as it is"):
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


def test_hidden_folders_of_other_outputs_are_left_alone(tmp_path: Path) -> None:
    other = killed(begun(tmp_path / "model.v2", random_model(0)))
    for name in (".model.partial", ".model.notes.partial", ".model.0123.partial.txt", "model.0123456789abcdef.partial"):
        (tmp_path / name).mkdir()
    write(tmp_path / "model", MIXED, key="a" * 64)
    assert len(list(tmp_path.iterdir())) == 6 and (other / "model-00001-of-00003.safetensors").is_file()


# ---------------------------------------------------------------------------------------------------------- two at once


@pytest.mark.parametrize("key", [KEY, "f" * 64])
def test_a_destination_has_one_writer_at_a_time(key: str, tmp_path: Path) -> None:
    model = random_model(0)
    made = begun(tmp_path / "model", model, finish=0)
    before = contents(tmp_path)
    with pytest.raises(RunFolderError, match=r"Another process is writing .*model at this moment"):
        CheckpointWriter(tmp_path / "model", shards_of(MIXED), key=key)
    assert contents(tmp_path) == before
    for work in pieces(model)[1:]:
        made.write(*work)
    made.close(record)
    assert read_folder(tmp_path / "model") == model


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


# ------------------------------------------------------------------------------------------------------------ bad disks


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


def test_too_little_room_is_said_before_anything_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=900))
    with pytest.raises(StorageError, match=r"model needs [0-9,]+ bytes and the disk has 900 left"):
        write(tmp_path / "model", random_model(0))
    assert not list(tmp_path.iterdir())
