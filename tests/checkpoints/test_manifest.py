"""A manifest names every file of a folder as it was written, and finds each that is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import xxhash

from holdfast.checkpoints import manifest
from holdfast.checkpoints.manifest import damage, files_in, measured, read_manifest, write_manifest
from holdfast.errors import DataError

CONTENT = {
    "a.bin": os.urandom(3 * manifest.PIECE + 17),
    "empty": b"",
    "inside/.hidden": b"h",
    "inside/further/b.bin": os.urandom(1000),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in CONTENT.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    write_manifest(tmp_path, measured(tmp_path, files_in(tmp_path), sync=True))
    return tmp_path


def found(folder: Path) -> list[str]:
    files = read_manifest(folder)
    assert files is not None
    return damage(folder, files)


def test_every_file_is_in_it_with_its_digest(folder: Path) -> None:
    files = read_manifest(folder)
    assert files is not None
    assert {n: (w.nbytes, w.digest) for n, w in files.items()} == {
        name: (len(content), xxhash.xxh3_128_hexdigest(content)) for name, content in CONTENT.items()
    }
    assert found(folder) == []


@pytest.mark.parametrize("byte", [0, manifest.PIECE - 1, manifest.PIECE, 3 * manifest.PIECE + 16])
def test_one_bit(folder: Path, byte: int) -> None:
    with open(folder / "a.bin", "r+b") as file:
        file.seek(byte)
        value = file.read(1)[0]
        file.seek(byte)
        file.write(bytes([value ^ 128]))
    assert found(folder) == ["a.bin was changed after it was written"]


def test_sizes_and_files_that_are_gone_are_told_before_anything_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "inside" / ".hidden").unlink()
    (folder / "empty").write_bytes(b"1")
    monkeypatch.setattr(manifest, "measured", lambda *_, **__: pytest.fail("read"))
    assert found(folder) == ["empty has 1 bytes instead of 0", "inside/.hidden is missing"]


def test_each_process_may_read_a_part(folder: Path) -> None:
    (folder / "inside" / "further" / "b.bin").write_bytes(os.urandom(1000))
    files = read_manifest(folder)
    assert files is not None
    assert damage(folder, files, read=lambda name: name == "a.bin") == []
    assert damage(folder, files, read=lambda name: name != "a.bin") == [
        "inside/further/b.bin was changed after it was written"
    ]


def test_no_manifest_and_none_that_is_one(folder: Path) -> None:
    (folder / manifest.FILE).write_text('{"format": "another", "files": {}}')
    with pytest.raises(DataError, match=r"Expected a manifest in .*manifest\.json \(holdfast\.manifest/1\)"):
        read_manifest(folder)
    (folder / manifest.FILE).unlink()
    assert read_manifest(folder) is None
