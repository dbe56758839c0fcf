"""The scanned digits, and some of their classes."""

from __future__ import annotations

import numpy as np

from holdfast.papers.digits.data import read_digits


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
