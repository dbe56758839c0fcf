"""Records that a notebook shows like their pages.

How they look is declared in `holdfast.reports.displays`, a layer above the records. Whoever imports
the public names puts it in here; without it a notebook shows a value's `repr`.
"""

from __future__ import annotations

import contextlib
import importlib

_renderer = ""


def show_by(renderer: str) -> None:
    """Sets what renders records from now on.

    Args:
        renderer: `module:function`, imported once a value is looked at.
    """
    global _renderer
    _renderer = renderer


class Displayed:
    """A record that a notebook shows as HTML."""

    def _repr_html_(self) -> str | None:
        if not _renderer:
            return None
        with contextlib.suppress(Exception):  # a half-made value can be looked at too
            module, _, function = _renderer.partition(":")
            html: str = getattr(importlib.import_module(module), function)(self)
            return html
        return None
