"""Classes of the user's own: `my_method.py:Name` (a file), `package.module:Name`, or the name of an entry point that an
installed package declares.

    load_class("methods/dropback.py:Dropback", base=MergeMethod, group="holdfast.merge_methods")

A file is run once a process, under a module name made of its path, so that the class it gives is the same everywhere.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from holdfast.errors import ConfigError, did_you_mean

T = TypeVar("T")


def load_class(reference: str, *, base: type[T], group: str) -> type[T] | None:
    """The class that a reference means.

    Args:
        reference: `FILE.py:Name`, `package.module:Name`, or, without a colon, the name of an entry point.
        base: what it has to be a subclass of.
        group: of the entry points.

    Returns:
        The class; None where the reference has no colon and no entry point has that name.

    Raises:
        ConfigError: no such file, module or name, code that fails when it is loaded, or another kind of class.
    """
    if ":" in reference:
        place, _, name = reference.rpartition(":")
        module = _run_file(Path(place).expanduser(), reference) if place.endswith(".py") else _import(place, reference)
        found = getattr(module, name, None)
        if found is None:
            near = did_you_mean(name, [n for n, v in vars(module).items() if _is_kind(v, base)])
            raise ConfigError(f"{reference}: {place} has no '{name}'.{near}")
    else:
        from importlib.metadata import entry_points

        point = next(iter(entry_points(group=group, name=reference)), None)
        if point is None:
            return None
        try:
            found = point.load()
        except Exception as error:
            raise ConfigError(f"{reference} ({point.value}): {_failed(error)}") from error
    if not _is_kind(found, base):
        raise ConfigError(f"{reference}: expected a subclass of {base.__module__}.{base.__qualname__}, got {found!r}")
    return found  # type: ignore[no-any-return]


def origin(cls: type) -> dict[str, Any]:
    """What says whose code a class is, for records: nothing for holdfast's own, else its module and the SHA-256 of the
    file, so that finished work is not taken for the work of other code."""
    if cls.__module__.partition(".")[0] == "holdfast":
        return {}
    try:
        file = Path(inspect.getfile(cls))
        code = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    except (OSError, TypeError):
        return {"code": f"{cls.__module__}:{cls.__qualname__}"}
    return {"code": f"{file.name}:{cls.__qualname__}", "code_sha256": code}


def _is_kind(value: Any, base: type) -> bool:
    return isinstance(value, type) and issubclass(value, base) and value is not base


def _run_file(path: Path, reference: str) -> ModuleType:
    if not path.is_file():
        beside = [p.name for p in path.parent.glob("*.py")] if path.parent.is_dir() else []
        raise ConfigError(f"{reference}: no such file: {path}.{did_you_mean(path.name, beside)}")
    path = path.resolve()
    name = f"holdfast_own_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ConfigError(f"{reference}: {_failed(error)}") from error
    return module


def _import(place: str, reference: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except Exception as error:
        raise ConfigError(f"{reference}: {_failed(error)}") from error


def _failed(error: Exception) -> str:
    return f"the code cannot be loaded ({type(error).__name__}: {error})."
