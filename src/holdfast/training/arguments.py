"""Settings of one of TRL's trainers where those of another are read."""

from __future__ import annotations

import dataclasses
from typing import Any


def add_defaults(args: Any, cls: type) -> None:
    """Gives `args` the fields of `cls`, a dataclass of TRL's, that it does not have, at their
    defaults, in place."""
    for field in dataclasses.fields(cls):
        if not hasattr(args, field.name) and field.init:
            factory = field.default_factory
            setattr(
                args, field.name, field.default if factory is dataclasses.MISSING else factory()
            )
