"""`toy: NAME` in a study's file: a base and data that are made on the spot, and the names such as
`${base}` that stand for them. A module named by the entry point `toy` of the group
`holdfast.worlds` makes them; holdfast's own is `holdfast.papers.worlds.small_settings`.

A study's record keeps `toy` with what the setting was made of (`code@3f2a1c09`): a study of models
and data that this version would not make is another study, and no worker of such a version joins
it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from holdfast.errors import ConfigError, did_you_mean

GROUP = "holdfast.worlds"
"""Of entry points."""
MADE_OF = "@"
"""In a record, between the setting's name and its version."""
_UNMADE = "./made-when-the-study-runs"
"""Folder of files that are not there yet; relative, so that nobody takes its names for those of a
hub."""
_PLACEHOLDER = re.compile(r"\$\{(\w+)\}")


@cache
def settings_module() -> Any:
    """The module that makes toy settings: `SETTINGS`, `setting_version`, `make_setting`.

    Raises:
        ConfigError: no installed package has one.
    """
    from importlib.metadata import entry_points

    points = entry_points(group=GROUP, name="toy")
    if not points:
        raise ConfigError(
            f"toy: expected an installed package with the entry point 'toy' in the group {GROUP}, "
            "found none. holdfast has this entry point only if it is installed. Run "
            "'pip install .' instead of running holdfast from a folder."
        )
    return next(iter(points)).load()


def known_settings(start: str = "model") -> list[str]:
    """Names of the settings that make such a start: a language "model", or "text" to pre-train
    on."""
    settings = settings_module().SETTINGS
    return [name for name, setting in settings.items() if setting.start == start]


def settings_schema(*starts: str) -> dict[str, Any]:
    """JSON Schema of the key, where such starts are taken; none: language models."""
    return {"enum": [name for start in starts or ("model",) for name in known_settings(start)]}


def name_of(toy: str | None) -> str:
    """The setting's name of what a file or a record says; "" for none."""
    return (toy or "").partition(MADE_OF)[0]


def problem_with(toy: str | None, start: str = "model") -> str | None:
    """What is wrong with a name, None where nothing is.

    Args:
        toy: the name.
        start: what it should make, see `known_settings`.
    """
    if toy is None:
        return None
    name, known = name_of(toy), known_settings(start)
    if name in known:
        return None
    return f"expected one of {', '.join(known)}, got {name!r}.{did_you_mean(name, known)}"


def versioned_name(toy: str | None) -> str | None:
    """What a record keeps: as it was begun, else as this version makes it; a setting that is a
    study's own as it is."""
    name, _, begun = (toy or "").partition(MADE_OF)
    if not name or name not in settings_module().SETTINGS:
        return toy or None
    return f"{name}{MADE_OF}{begun or settings_module().setting_version(name)}"


def make_files(
    toy: str, folder: Path, *, source: str, seed: int = 0, console: Any = None
) -> dict[str, str]:
    """Makes a setting's base and files, or finds them made.

    Args:
        toy: as the record keeps it.
        folder: gets the data files.
        source: the study's name, for the message.
        seed: of its base and data: another one, another world.
        console: for progress.

    Returns:
        Placeholder -> path.

    Raises:
        ConfigError: the study was begun with models or data that this version would not make.
    """
    now = versioned_name(name_of(toy))
    if toy != now:
        raise ConfigError(
            f"toy: the study was begun with {toy}, but this version of holdfast makes {now}, "
            "which has another base or other data. Continue with the earlier version, or choose "
            "another output_dir.",
            source=source,
        )
    paths: dict[str, str] = settings_module().make_setting(
        name_of(toy), folder, seed=seed, console=console
    )
    return paths


def existing_files(folder: Path) -> dict[str, str]:
    """What a setting's names stand for where it was made in a folder before; empty where it was
    not."""
    from holdfast.support.files import read_object

    file = folder / "setting.json"
    return dict(read_object(file)["paths"]) if file.is_file() else {}


def fill(value: Any, names: Mapping[str, str]) -> Any:
    """`value` with ${name} replaced, at any depth.

    Raises:
        ConfigError: a name that there is not.
    """
    if isinstance(value, str):
        unknown = [n for n in _PLACEHOLDER.findall(value) if n not in names]
        if unknown:
            raise ConfigError(
                f"${{{unknown[0]}}}: no such name.{did_you_mean(unknown[0], names)} The toy "
                f"setting makes: {', '.join(names)}."
            )
        return _PLACEHOLDER.sub(lambda match: names[match.group(1)], value)
    if isinstance(value, Mapping):
        return {k: fill(v, names) for k, v in value.items()}
    if isinstance(value, list):
        return [fill(v, names) for v in value]
    return value


def placeholder_paths(toy: str | None, folder: str) -> dict[str, str]:
    """Every placeholder with a path that is not there yet, for checks that look at names and kinds
    alone."""
    name, settings = name_of(toy), settings_module().SETTINGS
    return (
        {n: f"{folder}/{n}.jsonl" for n in settings[name].placeholders} if name in settings else {}
    )


def validate_without_files(
    toy: str | None, problems_with: Callable[[Mapping[str, str]], Sequence[str]]
) -> Sequence[str]:
    """What is wrong with a study whatever its toy setting makes, which is made when the study runs.

    Args:
        toy: as the record keeps it.
        problems_with: what is wrong where the placeholders stand for these paths; those that are
            about one of them are left out.
    """
    try:
        return [p for p in problems_with(placeholder_paths(toy, _UNMADE)) if _UNMADE not in p]
    except ConfigError as error:
        return error.problems
