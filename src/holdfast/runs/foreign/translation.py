"""What a table of another tool's keys makes of one of its files.

A key of the table is a name of ours, or a function of its value and of the whole file that returns settings, and raises
a ValueError where the value has no counterpart. A key that is not in the table is taken as it is where `holdfast train`
has it too. Whatever else asks for something is refused: all such keys are named at once, and nothing is dropped in
silence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.config.decode import plain_key
from holdfast.config.synonyms import did_you_mean_key
from holdfast.data.layouts import BY_ENDING
from holdfast.errors import ConfigError

Values = Mapping[str, Any]
"""Keys of a file, or settings of ours, with their values."""
Rule = str | Callable[[Any, Values], Values]
"""Our name of a key, or a function of its value and the file's keys. Settings that are None are not set."""


@dataclass(frozen=True, kw_only=True)
class Tool:
    """Whose files they are."""

    title: str
    marks: str
    """Keys that its files have and `trl sft` does not know; three of them tell a file as one of its."""
    table: Mapping[str, Rule]
    no_effect: str
    """Keys that change nothing of what is trained, or are read together with another key."""
    defaults: Values
    """Our settings that have another default there."""
    finish: Callable[[Values, dict[str, Any]], None]
    """What follows from several keys together: changes the settings when every key's rule was applied."""
    notes: Sequence[str]
    """What comes out differently, in every file."""


def translate(tool: Tool, values: Values, known: Collection[str]) -> dict[str, Any]:
    """A file of another tool as settings of a run.

    Args:
        tool: whose file it is.
        values: its keys.
        known: keys of `holdfast train` that mean the same under the same name.

    Raises:
        ConfigError: every key and value that has no counterpart.
    """
    values = {plain_key(key): value for key, value in values.items() if value is not None and value != ""}
    settings: dict[str, Any] = {}
    problems, no_effect = [], tool.no_effect.split()
    for key, value in values.items():
        rule = tool.table.get(key)
        try:
            if callable(rule):
                settings.update(rule(value, values))
            elif rule is not None:
                settings[rule] = value
            elif key in known and key not in no_effect:
                settings[key] = value
            elif is_on(value) and key not in no_effect:
                problems.append(f"{key}: has no counterpart; take it out of the file.{did_you_mean_key(key, known)}")
        except (AttributeError, TypeError, ValueError) as error:
            problems.append(f"{key}: {error}")
    if problems:
        raise ConfigError(problems)
    tool.finish(values, settings)
    return {key: value for key, value in {**tool.defaults, **settings}.items() if value is not None}


def is_on(value: Any) -> bool:
    """Whether a value asks for something: not off, zero, empty or unset."""
    return bool(value) and str(value).lower() not in ("false", "no", "none", "disabled")


def only(values: Values, keys: str, where: str) -> None:
    """Refuses other keys than these in a part of a file.

    Raises:
        ValueError: which they are.
    """
    others = [key for key, value in values.items() if key not in keys.split() and is_on(value)]
    if others:
        raise ValueError(f"{where}: there is nothing like {', '.join(others)}.")


# --------------------------------------------------------------------------------------------------------------- rules


def switch(**settings: Any) -> Rule:
    """A switch that stands for settings."""
    return lambda value, values: settings if is_on(value) else {}


def expect(*accepted: Any) -> Rule:
    """Only these values mean what is done here."""

    def rule(value: Any, values: Values) -> Values:
        if is_on(value) and value not in accepted:
            raise ValueError(f"expected {' or '.join(map(str, accepted))}, got {value!r}.")
        return {}

    return rule


def warmup(value: Any, values: Values) -> Values:
    """`warmup_steps` counts where it is above 0, else `warmup_ratio`; ours takes both in one key."""
    return {"warmup_steps": values.get("warmup_steps") or values.get("warmup_ratio", 0)}


def lora_plus(value: Any, values: Values) -> Values:
    """LoRA+ (Hayou et al. 2024, arXiv:2402.12354): the second matrix of each pair at another rate."""
    return {"learning_rate_multipliers": {"lora_B": float(value)}}


def eaft(value: Any, values: Values) -> Values:
    """EAFT is our token weighting of that kind."""
    weighting = {"kind": "eaft", "alpha": values.get("eaft_alpha", 1.0)}
    return {"retention": [{"token_weighting": weighting}]} if is_on(value) else {}


def data_settings(data_sets: Sequence[Values]) -> Values:
    """The settings that name what is trained on.

    Args:
        data_sets: `path`, and where they are given `name`, `data_files` and `split`, as `datasets:` takes them;
            `data`, the templates that make text of a row; `chat`, whether its rows are conversations.

    Raises:
        ValueError: they become text in several ways.
    """
    templates = [data_set.get("data") for data_set in data_sets]
    if any(other != templates[0] for other in templates):
        raise ValueError("expected data sets that become text in one way, for a run has one 'data:'.")
    chat = any(data_set.get("chat") for data_set in data_sets)
    settings = {"data": templates[0], "assistant_only_loss": chat or None}
    first = data_sets[0]
    if len(data_sets) == 1 and not first.get("data_files"):
        named = {"dataset_name": "path", "dataset_config": "name", "dataset_train_split": "split"}
        return settings | {ours: first.get(key) for ours, key in named.items()}
    entries = []
    for data_set in data_sets:
        entry = {key: data_set[key] for key in ("path", "name", "data_files", "split") if data_set.get(key)}
        builder = next((BY_ENDING[end] for end in Path(entry["path"]).suffixes if end in BY_ENDING), None)
        if builder is not None:  # a local file's own name would be one of the hub
            entry |= {"path": builder, "data_files": data_set["path"]}
        entries.append(entry)
    return settings | {"datasets": entries}
