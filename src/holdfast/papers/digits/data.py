"""Scanned digits of 8 x 8 pixels with a label each: scikit-learn's 1,797 images, so nothing is
downloaded.

A task of small networks is some of the classes: the even digits, then the odd ones. Pixels are
scaled to [0, 1].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

TESTED = 1 / 3
"""Share of the images that is held out."""


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
    """The digits, split.

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
