"""Training configurations to be planned with: read and checked as `holdfast train` does, less what a plan can do
without.

A plan is made before the weights are here, before the data is, and on a machine that need not have a GPU. So

- a folder with config.json and no weights is a model;
- with the tokens stated (or `max_steps`) the training data need not exist;
- `bf16`, `fp16` and `tf32` say what the run will do where it runs, not what this machine can.

Everything else that is wrong with a configuration is reported, all at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.runs.config import TrainConfig

_ELSEWHERE = ("bf16", "fp16", "tf32")
"""Keys about the machine that runs."""
_ANY_MODEL, _ANY_DATA = "planned/model", "planned/data"
"""Names in the place of what is not looked at."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A checked configuration and what was taken out of it."""

    config: TrainConfig
    model: str
    """Folder or hub id."""
    autocast: str | None
    """As `run_plan` takes it."""
    tf32: bool = False


def planned_settings(words: Sequence[str], file: Path | None) -> tuple[dict[str, Any], list[str]]:
    """The settings of a YAML and of options over it, and the mistakes in their form.

    Args:
        words: options as `holdfast train` takes them.
        file: the YAML; None without one.

    Raises:
        ConfigError: no such file, or no YAML.
    """
    from holdfast.runs.settings import known_settings
    from holdfast.runs.settings_source import Given, read_command_line, read_yaml

    from_file = read_yaml(file) if file is not None else Given()
    from_line = read_command_line(words, known_settings())
    return {**from_file.values, **from_line.values}, [*from_file.problems, *from_line.problems]


def planned_config(
    settings: Mapping[str, Any], *, data_needed: bool, problems: Sequence[str] = (), source: str | None = None
) -> Planned:
    """Checks settings to be planned with.

    Args:
        settings: keys as in a training YAML.
        data_needed: whether the training data is going to be read, so that it has to be there.
        problems: what is known to be wrong already.
        source: where the settings came from, for the message.

    Raises:
        ConfigError: with every mistake at once.
    """
    from holdfast.runs.config import train_config

    given, found = dict(settings), list(problems)
    machine = {key: _switch(key, given.pop(key), found) for key in _ELSEWHERE if key in given}
    if machine.get("bf16") and machine.get("fp16"):
        found.append("bf16 and fp16: choose one of the two.")
    model = given.get("model_name_or_path")
    if isinstance(model, str) and (Path(model).expanduser() / "config.json").is_file():
        model = str(Path(model).expanduser())
        given["model_name_or_path"] = _ANY_MODEL
    if not data_needed or not _data_is_here(given, found):
        given.pop("datasets", None)
        given["dataset_name"] = _ANY_DATA
    config = None
    try:
        config = train_config(given)
    except ConfigError as error:
        found += error.problems
    if found or config is None:
        raise ConfigError(list(dict.fromkeys(found)), source=source)
    config.model.model_name_or_path = str(model)
    off = machine.get("bf16") is False
    autocast = (
        "bfloat16" if machine.get("bf16") else "float16" if machine.get("fp16") else None if off else "as planned"
    )
    return Planned(config=config, model=str(model), autocast=autocast, tf32=bool(machine.get("tf32")))


def _data_is_here(given: Mapping[str, Any], problems: list[str]) -> bool:
    """Whether there is training data on this machine to read. Without it the run's steps have to say how much is
    trained on."""
    from holdfast.data.sources import is_path
    from holdfast.runs.cost.estimate import NO_TOKENS

    name, steps = given.get("dataset_name"), str(given.get("max_steps") or "")
    known = steps.isdigit() and int(steps) > 0
    if isinstance(name, str) and is_path(name):
        return not known or Path(name).expanduser().exists()  # what is missing and needed is reported with the rest
    if not known:
        problems.append(NO_TOKENS)
    return False


def _switch(key: str, value: Any, problems: list[str]) -> bool | None:
    from holdfast.runs.settings import SettingError, coerce, known_settings

    try:
        return None if value is None else bool(coerce(known_settings()[key], value))
    except SettingError as error:
        problems += error.problems
        return None
