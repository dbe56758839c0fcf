"""The bars of `datasets`, which always show, are silenced where holdfast draws its own
(`holdfast.support.progress`)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def quiet_datasets() -> Iterator[None]:
    """Silences the bars of `datasets` inside the block, unless HF_DATASETS_DISABLE_PROGRESS_BARS has decided about
    them."""
    from datasets.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from datasets.utils.tqdm import HF_DATASETS_DISABLE_PROGRESS_BARS

    if are_progress_bars_disabled() or HF_DATASETS_DISABLE_PROGRESS_BARS is not None:
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
