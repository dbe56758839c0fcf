"""Methods of the user's own, handed on to processes that this one starts.

A script that adds its class to `METHODS` and then calls holdfast knows the method; the workers of a sweep and the ranks
that `train --num_processes` launches are processes of their own and would not. An environment variable names the
classes that they have to load, and their files.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from holdfast.errors import ConfigError
from holdfast.support.own_code import is_ours, load_own

VARIABLE = "HOLDFAST_METHODS"
"""Environment variable: JSON, `{name: [file, class]}`."""
_loaded: set[str] = set()


def registered_environment() -> dict[str, str]:
    """The variable for a process that is to know the methods that were registered in this one; empty without any.

    Raises:
        ConfigError: a method whose class stands in no file, so that no other process can load it.
    """
    from holdfast.retention.registry import METHODS

    found = {}
    for name, cls in METHODS.items():
        if is_ours(cls):
            continue
        file = getattr(sys.modules.get(cls.__module__), "__file__", None)
        if file is None or "<locals>" in cls.__qualname__:
            raise ConfigError(
                f"retention: the method '{name}' is registered in this process only. Workers and launched ranks are "
                f"processes of their own: expected its class at the top level of a file, got "
                f"{cls.__module__}.{cls.__qualname__}."
            )
        found[name] = [str(Path(file).resolve()), cls.__qualname__]
    return {VARIABLE: json.dumps(found)} if found else {}


def load_registered() -> None:
    """Registers what the variable names; once a process, and nothing without it.

    A file is loaded as a module of another name than `__main__`, as multiprocessing does, so that what stands under
    `if __name__ == "__main__"` is not run.

    Raises:
        ConfigError: a file or a class is not there.
    """
    text = os.environ.get(VARIABLE, "")
    if not text or text in _loaded:
        return
    _loaded.add(text)
    from holdfast.retention.registry import METHODS

    for name, (file, attribute) in json.loads(text).items():
        if str(Path(file).parent) not in sys.path:
            sys.path.insert(0, str(Path(file).parent))  # as for a script: modules beside it are found
        METHODS[name] = load_own(f"{file}:{attribute}").value
