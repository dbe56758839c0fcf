"""Scanned digits with a label each: scikit-learn's 1,797 images of 8 x 8 pixels, so that nothing is
downloaded, or MNIST's 70,000 of 28 x 28 where a folder holds its four files.

A task of small networks is some of the classes: the even digits, then the odd ones. Pixels are
scaled to [0, 1].
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import DataError

if TYPE_CHECKING:
    import numpy as np

TESTED = 1 / 3
"""Share of scikit-learn's images that is held out."""
IMAGES_MAGIC, LABELS_MAGIC = 2051, 2049
"""First number of an IDX file of bytes in three dimensions, and in one."""


@dataclass(frozen=True, kw_only=True)
class Images:
    """Images to learn and others to be asked about."""

    train: np.ndarray
    """`[N, pixels]` float32 in [0, 1]."""
    train_labels: np.ndarray
    """`[N]` int64."""
    test: np.ndarray
    test_labels: np.ndarray

    def of_classes(self, classes: Sequence[int]) -> Images:
        """Those of some classes."""
        import numpy as np

        train, test = np.isin(self.train_labels, classes), np.isin(self.test_labels, classes)
        return Images(
            train=self.train[train],
            train_labels=self.train_labels[train],
            test=self.test[test],
            test_labels=self.test_labels[test],
        )


def read_digits(*, seed: int = 0) -> Images:
    """scikit-learn's digits, split.

    Args:
        seed: which of them are held out.
    """
    import numpy as np
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels, labels = (digits.data / 16).astype("float32"), digits.target.astype("int64")
    order = np.random.default_rng(seed).permutation(len(labels))
    cut = round(TESTED * len(labels))
    test, train = np.sort(order[:cut]), np.sort(order[cut:])
    return Images(
        train=pixels[train], train_labels=labels[train], test=pixels[test], test_labels=labels[test]
    )


def read_mnist(folder: Path) -> Images:
    """MNIST with its own split, from the four files as they are published: train-images-idx3-ubyte,
    t10k-labels-idx1-ubyte and so on, packed (.gz) or not.

    Raises:
        DataError: a file is missing or holds something else.
    """
    train, test = _pixels(folder, "train"), _pixels(folder, "t10k")
    train_labels, test_labels = _labels(folder, "train"), _labels(folder, "t10k")
    for images, labels in ((train, train_labels), (test, test_labels)):
        if len(images) != len(labels):
            raise DataError(
                f"{folder}: expected a label for each image, got {len(images)} images and "
                f"{len(labels)} labels. Use the four files of one data set."
            )
    return Images(train=train, train_labels=train_labels, test=test, test_labels=test_labels)


def _pixels(folder: Path, part: str) -> np.ndarray:
    import numpy as np

    content = _content(folder / f"{part}-images-idx3-ubyte", IMAGES_MAGIC)
    count, rows, columns = np.frombuffer(content, ">u4", count=3, offset=4).tolist()
    pixels = np.frombuffer(content, np.uint8, offset=16)
    if len(pixels) != count * rows * columns:
        raise DataError(
            f"{folder}: {part}-images: expected {count} images of {rows} x {columns} pixels, got "
            f"{len(pixels)} bytes. Download the file again."
        )
    scaled: np.ndarray = (pixels.reshape(count, rows * columns) / 255).astype("float32")
    return scaled


def _labels(folder: Path, part: str) -> np.ndarray:
    import numpy as np

    content = _content(folder / f"{part}-labels-idx1-ubyte", LABELS_MAGIC)
    return np.frombuffer(content, np.uint8, offset=8).astype("int64")


def _content(path: Path, magic: int) -> bytes:
    """Of an IDX file, packed or not, which begins with its number."""
    packed = path.with_name(f"{path.name}.gz")
    try:
        content = gzip.decompress(packed.read_bytes()) if packed.is_file() else path.read_bytes()
    except (OSError, EOFError) as error:
        raise DataError(
            f"{path}: cannot be read ({error}). Expected MNIST's four IDX files in that folder."
        ) from error
    if len(content) < 16 or int.from_bytes(content[:4], "big") != magic:
        raise DataError(f"{path}: expected an IDX file that begins with {magic}, got another file.")
    return content
