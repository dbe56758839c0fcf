"""From what a user names to a source: a local folder, a model that `holdfast models` made, a model
of the hub, an adapter (merged into its base on the fly)."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.checkpoints.fit import refuse_suspicious
from holdfast.checkpoints.named import at_revision, located, near_model
from holdfast.checkpoints.reader import CheckpointReader
from holdfast.errors import ModelError
from holdfast.support.paths import expanded

if TYPE_CHECKING:
    from holdfast.checkpoints.sources import Source

_HUB_ID = re.compile(r"[\w][\w.-]*(/[\w.-]+)?(@[\w./-]+)?")
_WANTED = ["*.safetensors", "*.json", "*.model", "*.txt", "*.jinja", "*.py", "LICENSE*"]


def open_source(
    name: str | os.PathLike[str], *, base: str | os.PathLike[str] | None = None
) -> Source:
    """Opens a checkpoint: headers are read and checked, no tensor yet.

    Args:
        name: a folder, a name of `holdfast models get`, or a hub id (`owner/name`, optionally
            `@revision`), which is downloaded where the cache does not have it. `BASE+ADAPTER` is an
            adapter on that base.
        base: for adapters, the model they belong to; None: the one that the adapter names.

    Raises:
        ModelError: nothing there, pickled weights only, damaged files, weights that are not those
            of config.json, an adapter whose base is not to be found.
    """
    from holdfast.checkpoints.adapter_settings import base_of, is_adapter
    from holdfast.checkpoints.adapters import AdaptedSource

    parts = base_and_adapter(name)
    if parts is not None:
        base, name = parts
    folder = local_folder(name)
    if not is_adapter(folder):
        if parts is not None:
            raise ModelError(
                f"Expected an adapter after the + of {base}+{name}, got the folder {folder} "
                "without adapter_config.json."
            )
        reader = CheckpointReader(folder)
        if (
            expanded(name) != folder
        ):  # a record says the name in the cache or on the hub, and no machine's path
            reader.label = os.fspath(name)
        refuse_suspicious(reader)
        return reader
    return AdaptedSource(
        open_source(base if base is not None else _existing(base_of(folder), folder)), folder
    )


def is_hub_id(name: str) -> bool:
    """Whether a name could be that of a model on the hub: `owner/name`."""
    return name.count("/") == 1 and not name.startswith(".") and _HUB_ID.fullmatch(name) is not None


def base_and_adapter(name: str | os.PathLike[str]) -> tuple[str, str] | None:
    """Base and adapter of `BASE+ADAPTER`, as mergekit writes it; None for what is no such name, or
    is a folder."""
    base, _, adapter = os.fspath(name).rpartition("+")
    return (base, adapter) if base and adapter and not expanded(name).exists() else None


def local_folder(name: str | os.PathLike[str]) -> Path:
    """The folder that a name means, downloaded from the hub if it is a hub id.

    Raises:
        ModelError: no such folder, and no such model on the hub or in its cache; or one that
            `holdfast models get` can make, and has not.
    """
    path = expanded(located(name))
    if path.is_dir():
        return path
    if path.is_file():
        raise ModelError(
            f"Expected a checkpoint folder at {name}, found a file. Give the folder that "
            "contains it."
        )
    text = os.fspath(name)
    near = near_model(text)
    if not _HUB_ID.fullmatch(text) or text.startswith("."):
        raise ModelError(f"Expected a checkpoint folder at {name}, found none.{near}")
    return _from_hub(text, near)


def _from_hub(text: str, near: str) -> Path:
    from huggingface_hub import snapshot_download

    name, revision = at_revision(text)
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=_WANTED))
    except Exception as error:  # its errors have no common base: no network, no such model, a gated one, a bad name
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(
            f"Expected a checkpoint folder at {text}, found none.{near} It could not be loaded "
            f"from the hub either: {reason}"
        ) from error


def _existing(named: str, adapter: Path) -> str:
    """The base an adapter names; relative names are looked for beside the adapter too."""
    for candidate in (expanded(named), adapter / named, adapter.parent / named):
        if candidate.is_dir():
            return os.fspath(candidate)
    if os.path.isabs(os.path.expanduser(named)) or named.startswith("."):
        raise ModelError(
            f"The adapter {adapter} names {named} as its base, which does not exist. Give the "
            "base with --base (or --adapter_base)."
        )
    return named
