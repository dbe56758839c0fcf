"""Where things that can be made again are kept between runs. No torch."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """`$HOLDFAST_CACHE`, else `$XDG_CACHE_HOME/holdfast`, else `~/.cache/holdfast`."""
    folder = os.environ.get("HOLDFAST_CACHE")
    return (
        Path(folder)
        if folder
        else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "holdfast"
    )
