"""Classes and functions in a user's own Python: `my_entry.py:Toxicity`, `package.module:Toxicity`.

A file is run as a module of its own, once a process and content; nothing is put on `sys.path`. Naming one is asking for
it to be run: whoever passes a reference on to here has it from the user.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from holdfast.errors import ConfigError, did_you_mean

T = TypeVar("T")

_REFERENCE = re.compile(r"(?P<place>.+\.py|[A-Za-z_][\w.]*):(?P<name>[A-Za-z_]\w*)")


@dataclass(frozen=True, kw_only=True)
class OwnCode:
    """What a reference names."""

    value: Any
    file: Path | None
    """The Python file; None for a module without one."""


def is_reference(text: object) -> bool:
    """Whether a text has the form FILE.py:NAME or MODULE:NAME."""
    return isinstance(text, str) and _REFERENCE.fullmatch(text) is not None


def load_own(reference: str, *, base: Path | None = None) -> OwnCode:
    """Runs the file, or imports the module, and takes the name out of it.

    Args:
        reference: FILE.py:NAME or MODULE:NAME.
        base: folder that a relative file starts from; the working directory is tried second.

    Raises:
        ConfigError: no such file, module or name, or the code fails while it is loaded.
    """
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        raise ConfigError(f"expected FILE.py:NAME or MODULE:NAME, got {reference!r}")
    place, name = match["place"], match["name"]
    try:
        module = _run(place, base) if place.endswith(".py") else importlib.import_module(place)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{place} cannot be loaded: {type(error).__name__}: {error}") from error
    if not hasattr(module, name):
        names = [n for n in vars(module) if not n.startswith("_")]
        raise ConfigError(f"{place} has no '{name}'.{did_you_mean(name, names)}")
    file = getattr(module, "__file__", None)
    return OwnCode(value=getattr(module, name), file=Path(file).resolve() if file else None)


def load_class(name: str, *, kind: type[T], group: str) -> type[T] | None:
    """The class that a reference means, or that an installed package declares under a name.

    Args:
        name: FILE.py:NAME, MODULE:NAME, or the name of an entry point.
        kind: what it has to be a subclass of.
        group: of the entry points.

    Returns:
        The class; None where the text is no reference and no entry point has that name.

    Raises:
        ConfigError: see `load_own`; something else than such a class.
    """
    if not is_reference(name):
        from importlib.metadata import entry_points

        point = next(iter(entry_points(group=group, name=name)), None)
        if point is None:
            return None
        name = point.value
    found = load_own(name).value
    if not (isinstance(found, type) and issubclass(found, kind) and found is not kind):
        raise ConfigError(f"{name}: expected a subclass of {kind.__module__}.{kind.__qualname__}, got {found!r}")
    return found


def origin(cls: type) -> dict[str, Any]:
    """What says whose code a class is, for records: nothing for holdfast's own, else its file and that file's SHA-256,
    so that finished work is not taken for the work of other code."""
    if cls.__module__.partition(".")[0] == "holdfast":
        return {}
    try:
        file = Path(inspect.getfile(cls))
        digest = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    except (OSError, TypeError):
        return {"code": f"{cls.__module__}:{cls.__qualname__}"}
    return {"code": f"{file.name}:{cls.__qualname__}", "code_sha256": digest}


def _run(place: str, base: Path | None) -> Any:
    path = Path(place).expanduser()
    candidates = [path] if path.is_absolute() or base is None else [base / path, path]
    found = next((file.resolve() for file in candidates if file.is_file()), None)
    if found is None:
        folder = candidates[0].parent
        names = [p.name for p in folder.glob("*.py")] if folder.is_dir() else []
        looked = " and ".join(str(file.absolute()) for file in candidates)
        raise ConfigError(f"no such file '{place}' (looked for {looked}).{did_you_mean(path.name, names)}")
    key = hashlib.sha256(str(found).encode() + found.read_bytes()).hexdigest()[:16]
    title = f"holdfast_own_{found.stem}_{key}"
    if title in sys.modules:
        return sys.modules[title]
    spec = importlib.util.spec_from_file_location(title, found)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[title] = module  # dataclasses look their module up while it runs
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[title]
        raise
    return module
