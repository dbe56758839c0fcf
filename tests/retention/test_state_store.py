"""The store of teacher states: what is written is read back bit for bit; whatever is damaged is found, left out and
replaced."""

from __future__ import annotations

import json
import multiprocessing
import struct
import time
from pathlib import Path

import pytest
import torch

from holdfast.errors import StorageError
from holdfast.retention.teacher.state_store import ShardWriter, StateStore

WIDTH = 24


def key(number: int) -> bytes:
    return number.to_bytes(16, "little")


def states(number: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(3 + number % 5, WIDTH, generator=generator).to(dtype)


def fill(store: StateStore, numbers, dtype: torch.dtype = torch.float32, **settings) -> None:
    with ShardWriter(store, **settings) as writer:
        for number in numbers:
            writer.add(key(number), states(number, dtype), torch.float32)
    store.scan()


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def is_whole(store: StateStore, numbers) -> bool:
    return all(torch.equal(store.read(key(n)), states(n)) for n in numbers)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_states_come_back_bit_for_bit_from_several_shards(dtype, tmp_path):
    fill(StateStore(tmp_path, teacher="t"), range(20), dtype, shard_bytes=1000)
    store = StateStore(tmp_path, teacher="t")
    assert len(shards(tmp_path)) > 3
    assert len(store) == 20 and store.dtype() == dtype and store.forward() == "float32"
    for number in range(20):
        found = store.read(key(number))
        assert found.dtype == dtype and torch.equal(found, states(number, dtype))
    assert store.missing([key(3), key(99), key(21)]) == [key(99), key(21)]
    assert store.documents_bytes([key(0)]) == 3 * WIDTH * dtype.itemsize
    assert not [p for p in tmp_path.iterdir() if p.name.endswith(".tmp")]


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x10
    path.write_bytes(content)


def offset(path: Path, tensor: str) -> int:
    """Where a tensor's bytes begin in a safetensors file."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    return 8 + length + json.loads(raw[8 : 8 + length])[tensor]["data_offsets"][0]


def edit_header(path: Path, **changes: str) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    with safe_open(str(path), "pt") as file:
        header, tensors = file.metadata(), {n: file.get_tensor(n).clone() for n in file.keys()}  # noqa: SIM118
    save_file(tensors, str(path), metadata={**header, **changes})


DAMAGE = {
    "a byte of the states": lambda p: flip(p, offset(p, "hidden") + 5),
    "a byte of the keys": lambda p: flip(p, offset(p, "keys") + 5),
    "a byte of the header": lambda p: flip(p, 20),
    "cut short": lambda p: p.write_bytes(p.read_bytes()[:-100]),
    "not safetensors": lambda p: p.write_bytes(b"something else altogether " * 40),
    "another teacher's": lambda p: edit_header(p, teacher="u"),
    "another note": lambda p: edit_header(p, **{"note.forward": "bfloat16"}),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found_left_out_and_built_again(damage, tmp_path):
    fill(StateStore(tmp_path, teacher="t"), range(12), shard_bytes=1500)
    victim = shards(tmp_path)[1]
    DAMAGE[damage](victim)

    wanted = [key(n) for n in range(12)]
    store = StateStore(tmp_path, teacher="t")
    damaged = [*store.unreadable, *store.damaged(store.shards_of(wanted))]
    assert damaged == [victim.name]
    store.remove(victim.name)
    store.scan()
    missing = store.missing(wanted)
    assert 0 < len(missing) < 12
    assert is_whole(store, [n for n in range(12) if key(n) not in missing])

    fill(store, [n for n in range(12) if key(n) in missing])
    again = StateStore(tmp_path, teacher="t")
    assert again.unreadable == {} and again.damaged(again.shards_of(wanted)) == [] and is_whole(again, range(12))


def fill_and_fail(store: StateStore, numbers, error: type[BaseException], **settings) -> ShardWriter:
    with ShardWriter(store, **settings) as writer:
        for number in numbers:
            writer.add(key(number), states(number), torch.float32)
        raise error


@pytest.mark.parametrize(
    ("error", "settings", "kept"),
    [(RuntimeError, {}, 0), (KeyboardInterrupt, {}, 7), (RuntimeError, {"shard_bytes": 700}, 5)],
)
def test_an_interrupted_build_keeps_its_finished_shards_and_ctrl_c_the_rest(error, settings, kept, tmp_path):
    store = StateStore(tmp_path, teacher="t")
    with pytest.raises(error):
        fill_and_fail(store, range(7), error, **settings)
    assert len(StateStore(tmp_path, teacher="t")) == kept


def test_a_full_disk_is_said_and_leaves_no_stump(tmp_path, monkeypatch):
    import os

    store = StateStore(tmp_path, teacher="t")
    fill(store, range(3))

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left on device"):
        fill(store, range(3, 6))
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".tmp"] == []
    assert is_whole(StateStore(tmp_path, teacher="t"), range(3))


def test_leftovers_of_a_killed_builder_are_cleared_by_the_next(tmp_path):
    store = StateStore(tmp_path, teacher="t")
    (tmp_path / ".0123.77.tmp").write_bytes(b"half a shard")
    store.unlock(store.try_lock())
    assert not (tmp_path / ".0123.77.tmp").exists()


def build(folder: str, barrier, computed) -> None:
    """What a run does: look, take the lock, look again, build what is still missing."""
    store = StateStore(folder, teacher="t")
    wanted = [key(n) for n in range(8)]
    barrier.wait()
    assert len(store.missing(wanted)) == 8
    while (handle := store.try_lock()) is None:
        time.sleep(0.02)
    store.scan()
    missing = store.missing(wanted)
    with ShardWriter(store, shard_bytes=1000) as writer:
        for found in missing:
            writer.add(found, states(int.from_bytes(found, "little")), torch.float32)
    store.unlock(handle)
    store.scan()
    computed.put(len(missing))
    assert is_whole(store, range(8))


def test_two_processes_that_build_at_once_share_the_work(tmp_path):
    context = multiprocessing.get_context("fork")
    barrier, computed = context.Barrier(2), context.Queue()
    workers = [context.Process(target=build, args=(str(tmp_path), barrier, computed)) for _ in range(2)]
    for worker in workers:
        worker.start()
    counts = sorted(computed.get(timeout=60) for _ in workers)
    for worker in workers:
        worker.join(60)
    assert [w.exitcode for w in workers] == [0, 0]
    assert counts == [0, 8]
