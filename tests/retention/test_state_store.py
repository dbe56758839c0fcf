"""The store of teacher states: what is written is read back bit for bit; whatever is damaged is found, left out and
replaced."""

from __future__ import annotations

import json
import multiprocessing
import os
import struct
import time
from pathlib import Path

import pytest
import torch

from holdfast.errors import StorageError
from holdfast.retention.teacher.state_store import FORMAT, StateStore

WIDTH = 24


def key(number: int) -> bytes:
    return number.to_bytes(16, "little")


def states(number: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(3 + number % 5, WIDTH, generator=generator).to(dtype)


def fill(store: StateStore, numbers, dtype: torch.dtype = torch.float32) -> None:
    """Shards of three documents."""
    for first in range(0, len(numbers), 3):
        store.write({key(n): states(n, dtype) for n in numbers[first : first + 3]}, torch.float32)
    store.scan()


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def is_whole(store: StateStore, numbers) -> bool:
    return all(torch.equal(store.states[key(n)], states(n)) for n in numbers)


def missing(store: StateStore, keys: list[bytes]) -> list[bytes]:
    return [k for k in keys if k not in store.states]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_states_come_back_bit_for_bit_from_several_shards(dtype, tmp_path):
    fill(StateStore(tmp_path, teacher="t"), range(20), dtype)
    store = StateStore(tmp_path, teacher="t")
    assert len(shards(tmp_path)) == len(store.shards) == 7 and len(store.states) == 20
    assert store.forward == torch.float32
    for number in range(20):
        found = store.states[key(number)]
        assert found.dtype == dtype and torch.equal(found, states(number, dtype))
    assert missing(store, [key(3), key(99), key(21)]) == [key(99), key(21)]
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
    "another teacher's": lambda p: edit_header(p, **{FORMAT: "u"}),
    "another format": lambda p: edit_header(p, **{"holdfast.states/1": "t"}),
    "a renamed file": lambda p: p.rename(p.with_name("0" * 16 + ".safetensors")),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found_left_out_and_built_again(damage, tmp_path):
    fill(StateStore(tmp_path, teacher="t"), range(12))
    whole = shards(tmp_path)
    sizes = [path.stat().st_size for path in whole]
    DAMAGE[damage](whole[1])
    [victim] = [p for p in shards(tmp_path) if p not in whole or p == whole[1]]

    wanted = [key(n) for n in range(12)]
    store = StateStore(tmp_path, teacher="t")
    damaged = [*store.unreadable, *(name for name in store.shards_of(wanted) if not store.is_sound(name))]
    assert damaged == [victim.name]
    victim.unlink()
    store.scan()
    lost = missing(store, wanted)
    assert len(lost) == 3
    assert is_whole(store, [n for n in range(12) if key(n) not in lost])

    fill(store, [n for n in range(12) if key(n) in lost])
    again = StateStore(tmp_path, teacher="t")
    assert again.unreadable == [] and all(map(again.is_sound, again.shards_of(wanted))) and is_whole(again, range(12))
    assert shards(tmp_path) == whole and [path.stat().st_size for path in whole] == sizes  # named by their content


def test_a_shard_of_another_teacher_is_not_used(tmp_path):
    fill(StateStore(tmp_path, teacher="u"), range(3))
    fill(StateStore(tmp_path, teacher="t"), range(3, 6))
    store = StateStore(tmp_path, teacher="t")
    assert set(store.states) == {key(n) for n in range(3, 6)}
    assert len(store.shards) == len(store.unreadable) == 1 and store.is_sound(*store.unreadable)


def test_every_shard_with_a_document_is_named_so_that_all_of_them_are_checked(tmp_path):
    """Two runs on a file system without locks may both have stored a document."""
    store = StateStore(tmp_path, teacher="t")
    store.write({key(0): states(0), key(1): states(1)}, torch.float32)
    store.write({key(1): states(1), key(2): states(2)}, torch.float32)
    store.scan()
    assert store.shards_of([key(1)]) == sorted(store.shards) and len(store.shards) == 2
    assert len(store.shards_of([key(0)])) == len(store.shards_of([key(2)])) == 1


def test_a_full_disk_is_said_and_leaves_no_stump(tmp_path, monkeypatch):
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
    store.write({key(0): states(0)}, torch.float32)
    assert not (tmp_path / ".0123.77.tmp").exists()


def build(folder: Path, barrier, computed) -> None:
    """What a run does: look, take the lock, look again, build what is still missing."""
    store = StateStore(folder, teacher="t")
    wanted = [key(n) for n in range(8)]
    barrier.wait()
    assert len(missing(store, wanted)) == 8
    while (handle := store.try_lock()) is None:
        time.sleep(0.02)
    store.scan()
    numbers = [n for n in range(8) if key(n) not in store.states]
    fill(store, numbers)
    os.close(handle)
    computed.put(len(numbers))
    assert is_whole(store, range(8))


def test_two_processes_that_build_at_once_share_the_work(tmp_path):
    context = multiprocessing.get_context("fork")
    barrier, computed = context.Barrier(2), context.Queue()
    workers = [context.Process(target=build, args=(tmp_path, barrier, computed)) for _ in range(2)]
    for worker in workers:
        worker.start()
    counts = sorted(computed.get(timeout=60) for _ in workers)
    for worker in workers:
        worker.join(60)
    assert [w.exitcode for w in workers] == [0, 0]
    assert counts == [0, 8]
