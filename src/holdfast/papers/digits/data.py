"""Images with a label each.

| name | what | where from |
|---|---|---|
| `digits` | 1,797 images of 8 x 8, scanned digits | scikit-learn's, nothing is downloaded |
| a folder | MNIST's four IDX files, or others in that format, gzipped or not | `train-images-idx3-ubyte.gz`, ... |

A task of small networks is some of the classes: the even digits, then the odd ones. Pixels are scaled to [0, 1].

Reference: LeCun et al. 1998 (the IDX format: two zero bytes, a type, the number of axes, their sizes, the data).
"""

from __future__ import annotations

import gzip
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import DataError
from holdfast.support.paths import expanded

if TYPE_CHECKING:
    import numpy as np

DIGITS = "digits"
TESTED = 1 / 3
"""Share of `digits` that is held out; the others come split."""
_UNSIGNED_BYTE = 8


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
        """Those of some classes.

        Raises:
            DataError: a class of which there is none.
        """
        import numpy as np

        absent = sorted(set(classes) - set(np.unique(self.train_labels).tolist()))
        if absent:
            raise DataError(f"classes: there is no image of {absent}.")
        train, test = np.isin(self.train_labels, classes), np.isin(self.test_labels, classes)
        return Images(
            train=self.train[train],
            train_labels=self.train_labels[train],
            test=self.test[test],
            test_labels=self.test_labels[test],
        )


def read_images(name: str | os.PathLike[str], *, seed: int = 0) -> Images:
    """Images by name.

    Args:
        name: "digits", or a folder of IDX files.
        seed: which digits are held out.

    Raises:
        DataError: no such folder, files that are missing, cut or of another format.
    """
    if name == DIGITS:
        return _digits(seed)
    folder = expanded(name)
    if not folder.is_dir():
        raise DataError(f"no such folder: {name}. Expected '{DIGITS}', or a folder with MNIST's four IDX files.")
    images = {part: _idx(folder, f"{part}-images-idx3-ubyte") for part in ("train", "t10k")}
    labels = {part: _idx(folder, f"{part}-labels-idx1-ubyte") for part in ("train", "t10k")}
    for part in images:
        if images[part].ndim != 3 or labels[part].shape != images[part].shape[:1]:
            shapes = images[part].shape, labels[part].shape
            raise DataError(f"{folder}: {part}: expected images [N, rows, columns] and labels [N], got {shapes}.")
    flat = {part: (values.reshape(len(values), -1) / 255).astype("float32") for part, values in images.items()}
    return Images(
        train=flat["train"],
        train_labels=labels["train"].astype("int64"),
        test=flat["t10k"],
        test_labels=labels["t10k"].astype("int64"),
    )


def _digits(seed: int) -> Images:
    import numpy as np
    from sklearn.datasets import load_digits

    found = load_digits()
    pixels, labels = (found.data / 16).astype("float32"), found.target.astype("int64")
    order = np.random.default_rng(seed).permutation(len(labels))
    cut = round(TESTED * len(labels))
    test, train = np.sort(order[:cut]), np.sort(order[cut:])
    return Images(train=pixels[train], train_labels=labels[train], test=pixels[test], test_labels=labels[test])


def _idx(folder: Path, name: str) -> np.ndarray:
    import numpy as np

    path = next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)
    if path is None:
        raise DataError(f"{folder} lacks {name} (or {name}.gz). Expected MNIST's four IDX files.")
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, gzip.BadGzipFile, OSError) as error:
        raise DataError(f"{path} cannot be read: {error}.") from error
    axes = raw[3] if len(raw) > 3 else 0
    if raw[:2] != b"\0\0" or len(raw) < 4 + 4 * axes or raw[2] != _UNSIGNED_BYTE:
        raise DataError(f"{path} is no IDX file of unsigned bytes; its first bytes are {raw[:4].hex(' ')}.")
    sizes = [int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(axes)]
    if len(raw) != 4 + 4 * axes + math.prod(sizes):
        raise DataError(f"{path}: expected {math.prod(sizes)} bytes after the head, got {len(raw) - 4 - 4 * axes}.")
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * axes).reshape(sizes)
