"""Writing a folder: the bytes, the order, what is resumed and what never is, and that nothing foreign is touched."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from writing import KEY, MIXED, begun, killed, pieces, record, shards_of, write

from checkpoint_folders import contents, random_model, read_folder
from holdfast.checkpoints.reader import CheckpointReader
from holdfast.checkpoints.writer import CheckpointWriter
from holdfast.errors import RunFolderError, StorageError


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("shards", [1, 3])
def test_the_bytes_come_back_in_whatever_order_they_are_written(shards: int, sync: bool, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write(folder, MIXED, shards=shards, shuffle=shards, sync=sync)
    assert read_folder(folder) == MIXED
    reader = CheckpointReader(folder)
    assert set(reader.entries) == set(MIXED) and reader.metadata == {"format": "pt"}
    for entry in reader.entries.values():
        assert entry.offset % entry.dtype.itemsize == 0, "a memory map of any of them is aligned"
    assert len(list(folder.iterdir())) == shards + (1 if shards == 1 else 2)
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


# ------------------------------------------------------------------------------------------------------------- resuming


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


@pytest.mark.parametrize(("finish", "keep"), [(0, True), (1, True), (1, False)])
def test_giving_up(finish: int, keep: bool, tmp_path: Path) -> None:
    made = begun(tmp_path / "model", random_model(0), finish=finish)
    assert made.abandon(keep_finished=keep) is (finish == 1 and keep)
    assert not (tmp_path / "model").exists()
    left = [p.name for p in made.staging.iterdir()] if made.staging.exists() else []
    assert sorted(left) == ([".lock", "model-00001-of-00003.safetensors"] if finish and keep else [])


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


def test_what_this_engine_did_not_write_is_never_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "checkpoint-500").mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("{}")
    before = contents(folder)
    with pytest.raises(
        RunFolderError,
        match=r"run has no provenance\.json, so holdfast did not write it and does not replace it. .* checkpoint-500, ",
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


# ------------------------------------------------------------------------------------------------------------ bad disks


def test_too_little_room_is_said_before_anything_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=900))
    with pytest.raises(StorageError, match=r"model needs [0-9,]+ bytes and the disk has 900 left"):
        write(tmp_path / "model", random_model(0))
    assert not list(tmp_path.iterdir())
