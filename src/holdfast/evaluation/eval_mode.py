"""Borrowing a model for measurement and giving it back as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@contextmanager
def evaluation_mode(model: torch.nn.Module) -> Iterator[None]:
    """`model.eval()` without gradients inside; afterwards every submodule has the train / eval flag
    that it had.

    Flags are kept one by one, because a frozen part in eval mode inside a training model must stay
    in eval mode.
    """
    import torch

    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True
