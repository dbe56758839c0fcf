"""The scanned digits, MNIST's files, and some of the classes."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from holdfast.errors import DataError
from holdfast.papers.digits.data import read_digits, read_mnist
from mnist_files import write_mnist


def test_digits():
    images = read_digits()
    assert images.train.shape == (1198, 64) and images.test.shape == (599, 64)
    assert images.train.min() == 0 and images.train.max() == 1 and images.train.dtype == np.float32
    again, other = read_digits(), read_digits(seed=1)
    assert (again.train == images.train).all() and not (other.train == images.train).all()
    trained = {row.tobytes() for row in images.train}
    assert sum(row.tobytes() in trained for row in images.test) == 0, "no scan is in both"


def test_some_of_the_classes():
    images = read_digits()
    some = images.of_classes((0, 2))
    assert set(some.train_labels.tolist()) == {0, 2}
    assert len(some.test) == np.isin(images.test_labels, (0, 2)).sum()


def test_mnist(tmp_path):
    images = read_mnist(write_mnist(tmp_path))
    assert images.train.shape == (40, 6) and images.test.shape == (20, 6) and images.train.dtype == np.float32
    assert images.train_labels.tolist() == list(range(10)) * 4
    assert images.train[9].tolist() == pytest.approx([225 / 255] * 6)


def test_files_that_are_not_mnists_are_refused(tmp_path):
    with pytest.raises(DataError, match="Expected MNIST's four IDX files"):
        read_mnist(tmp_path)
    with pytest.raises(DataError, match="expected a label for each image, got 40 images and 30 labels"):
        read_mnist(write_mnist(tmp_path / "labels", labels=30))
    folder = write_mnist(tmp_path / "short")
    file = folder / "train-images-idx3-ubyte.gz"
    file.write_bytes(gzip.compress(gzip.decompress(file.read_bytes())[:-6]))
    with pytest.raises(DataError, match="expected 40 images of 2 x 3 pixels, got 234 bytes"):
        read_mnist(folder)
    file.write_bytes(gzip.compress(b"text" * 9))
    with pytest.raises(DataError, match="an IDX file that begins with 2051"):
        read_mnist(folder)
