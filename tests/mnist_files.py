"""Four files as MNIST's, of a few small images."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np


def idx(*shape: int, values: np.ndarray) -> bytes:
    magic = 2048 + len(shape)
    return np.array([magic, *shape], ">u4").tobytes() + values.astype(np.uint8).tobytes()


def write_mnist(folder: Path, *, train: int = 40, test: int = 20, labels: int | None = None) -> Path:
    """Four files as MNIST's, packed the one half, of images that are as bright as their label."""
    folder.mkdir(exist_ok=True)
    for part, count in (("train", train), ("t10k", test)):
        digits = np.arange(labels or count) % 10
        pixels = np.repeat(np.arange(count) % 10 * 25, 6)
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(count, 2, 3, values=pixels)))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx(len(digits), values=digits))
    return folder
