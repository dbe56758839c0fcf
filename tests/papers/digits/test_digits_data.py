"""Images by name, some of their classes, and IDX files whole and broken."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from holdfast.errors import DataError
from holdfast.papers.digits.data import read_images


def idx(values: np.ndarray) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + b"".join(n.to_bytes(4, "big") for n in values.shape) + values.tobytes()


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for part, count in (("train", 12), ("t10k", 6)):
        pixels = rng.integers(0, 256, (count, 4, 3), np.uint8)
        (tmp_path / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(pixels)))
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(idx((np.arange(count) % 3).astype(np.uint8)))
    return tmp_path


def test_digits():
    images = read_images("digits")
    assert images.train.shape == (1198, 64) and images.test.shape == (599, 64)
    assert images.train.min() == 0 and images.train.max() == 1 and images.train.dtype == np.float32
    again, other = read_images("digits"), read_images("digits", seed=1)
    assert (again.train == images.train).all() and not (other.train == images.train).all()
    shown = {row.tobytes() for row in images.train}
    assert sum(row.tobytes() in shown for row in images.test) == 0, "no scan is in both"


def test_idx_files(folder):
    images = read_images(folder)
    assert images.train.shape == (12, 12) and images.test.shape == (6, 12)
    assert images.train_labels.tolist() == [0, 1, 2] * 4
    first = np.frombuffer(gzip.decompress((folder / "train-images-idx3-ubyte.gz").read_bytes())[16:28], np.uint8)
    np.testing.assert_allclose(images.train[0], first / 255, rtol=1e-6)


def test_some_of_the_classes(folder):
    images = read_images(folder)
    some = images.of_classes((0, 2))
    assert set(some.train_labels.tolist()) == {0, 2} and len(some.test) == 4
    with pytest.raises(DataError, match=r"no image of \[7\]"):
        images.of_classes((1, 7))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda f: (f / "t10k-labels-idx1-ubyte").unlink(), "lacks t10k-labels-idx1-ubyte"),
        (lambda f: (f / "train-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01\0\0"), "no IDX file"),
        (lambda f: (f / "train-labels-idx1-ubyte").write_bytes(idx(np.zeros(12, np.uint8))[:-1]), "expected 12 bytes"),
        (lambda f: (f / "train-labels-idx1-ubyte").write_bytes(idx(np.zeros(11, np.uint8))), "train: expected images"),
    ],
)
def test_what_is_broken_is_named(folder, damage, words):
    damage(folder)
    with pytest.raises(DataError, match=words):
        read_images(folder)


def test_no_such_folder():
    with pytest.raises(DataError, match="MNIST's four IDX files"):
        read_images("nowhere")
