"""Classes of the user's own: `my_method.py:Dropback` (a file), `package.module:Dropback`, or the
name of an entry point that an installed package declares.

    load_class("methods/dropback.py:Dropback", base=MergeMethod, group="holdfast.merge_methods")

Naming one runs its code, as importing it would; nothing else does. A file is run once a process for
each of its contents, under a module name made of path and content, and nothing is put on
`sys.path`. Every process (launched ranks, a sweep's workers) resolves a name by itself. `origin`
says whose code a class is, so that finished work is not taken for the work of an edited file; what
the file imports in turn is not in that.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.abc
import importlib.util
import inspect
import re
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from holdfast.errors import ConfigError, did_you_mean
from holdfast.support.paths import expanded, real

T = TypeVar("T")

_REFERENCE = re.compile(r"(?P<place>.+\.py|[A-Za-z_][\w.]*):(?P<name>[A-Za-z_]\w*)")


@dataclass(frozen=True, kw_only=True)
class OwnCode:
    """What a reference names."""

    value: Any
    file: Path | None
    """The Python file; None for a module without one."""
    sha256: str
    """Of the file (hex); of nothing where there is none."""


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
    source, name = match["place"], match["name"]
    module, code = _run_file(source, base) if source.endswith(".py") else _import(source)
    if not hasattr(module, name):
        classes = [
            n
            for n, v in vars(module).items()
            if isinstance(v, type) and v.__module__ == module.__name__
        ]
        listed = f"it has {', '.join(classes)}" if classes else "it has no classes"
        names = [n for n in vars(module) if not n.startswith("_")]
        raise ConfigError(
            f"{reference}: {source} has no '{name}'; {listed}.{did_you_mean(name, names)}"
        )
    file = inspect.getsourcefile(module) if getattr(module, "__file__", None) else None
    path = Path(file).resolve() if file else None
    return OwnCode(value=getattr(module, name), file=path, sha256=hashlib.sha256(code).hexdigest())


def load_class(reference: str, *, base: type[T], group: str) -> type[T] | None:
    """The class that a reference means.

    Args:
        reference: `FILE.py:Name`, `package.module:Name`, or, without a colon, the name of an entry
            point.
        base: what it has to be a subclass of.
        group: of the entry points.

    Returns:
        The class; None where the reference has no colon and no entry point has that name.

    Raises:
        ConfigError: no such file, module or name, code that fails when it is loaded, or another
            kind of class.
    """
    target: str | None = reference
    if ":" not in reference:
        from importlib.metadata import entry_points

        target = next((point.value for point in entry_points(group=group, name=reference)), None)
        if target is None:
            return None
    cls = load_own(str(target)).value
    if not (isinstance(cls, type) and issubclass(cls, base) and cls is not base):
        kind = (
            f"the class {cls.__name__}"
            if isinstance(cls, type)
            else f"a value of type {type(cls).__name__}"
        )
        raise ConfigError(
            f"{reference}: expected a subclass of {base.__module__}.{base.__qualname__}, got "
            f"{kind}. See docs/extending.md."
        )
    return cls


def is_ours(cls: type) -> bool:
    """Whether a class is one of this package's."""
    return cls.__module__.partition(".")[0] == "holdfast"


def origin(cls: type) -> dict[str, Any]:
    """What says whose code a class is, for records: nothing for holdfast's own, else its module and
    the SHA-256 of the file, so that finished work is not taken for the work of other code."""
    if is_ours(cls):
        return {}
    try:
        file = Path(inspect.getfile(cls))
        code = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    except (OSError, TypeError):
        return {"code": f"{cls.__module__}:{cls.__qualname__}"}
    return {"code": f"{file.name}:{cls.__qualname__}", "code_sha256": code}


class _Contents(importlib.abc.SourceLoader):
    """Loads the very bytes that were hashed; no bytecode is kept, so an edit within the clock's
    resolution counts."""

    def __init__(self, path: str, code: bytes) -> None:
        self.path, self.code = path, code

    def get_filename(self, fullname: str) -> str:
        return self.path

    def get_data(self, path: Any) -> bytes:
        return self.code


def _run_file(place: str, base: Path | None) -> tuple[ModuleType, bytes]:
    path = expanded(place)
    candidates = [path] if path.is_absolute() or base is None else [base / path, path]
    file_path = next((real(file) for file in candidates if file.is_file()), None)
    if file_path is None:
        folder = candidates[0].parent
        names = [p.name for p in folder.glob("*.py")] if folder.is_dir() else []
        looked = " and ".join(str(file.absolute()) for file in candidates)
        raise ConfigError(
            f"{place}: no such file (looked for {looked}).{did_you_mean(path.name, names)}"
        )
    code = file_path.read_bytes()
    name = f"holdfast_own_{file_path.stem}_{hashlib.sha256(str(file_path).encode() + code).hexdigest()[:16]}"
    if name not in sys.modules:
        loader = _Contents(str(file_path), code)
        spec = importlib.util.spec_from_loader(name, loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses look their module up there while it runs
        try:
            loader.exec_module(module)
        except Exception as error:
            del sys.modules[name]
            raise ConfigError(
                f"{place}: the code cannot be loaded: {_raised(error, str(file_path))}"
            ) from error
    return sys.modules[name], code


def _import(place: str) -> tuple[ModuleType, bytes]:
    try:
        module = importlib.import_module(place)
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError) and place.startswith(str(error.name))
        advice = " Write a file with its extension, as in 'my_method.py:Class'." if missing else ""
        raise ConfigError(
            f"{place}: the code cannot be loaded: {_raised(error, place)}{advice}"
        ) from error
    file = inspect.getsourcefile(module) if getattr(module, "__file__", None) else None
    return module, Path(file).read_bytes() if file else b""


def _raised(error: Exception, file: str) -> str:
    """The error of the user's code with the last place in it."""
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg} ({error.filename}, line {error.lineno})"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"
