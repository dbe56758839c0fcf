"""What a table of another tool's keys makes of one of its files.

A table is a YAML file beside this one (see `Tool`): keys with our names of them, switches and cases
with the settings that they stand for. Where that does not do, a key has a function of its value and
of the whole file that returns settings, and raises a ValueError where the value has no counterpart.
A key that is not in the table is taken as it is where `holdfast train` has it too. Whatever else
asks for something is refused: all such keys are named at once, and nothing is dropped in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from string import Template
from typing import Any

from holdfast.config.raw_request import plain_key
from holdfast.config.synonyms import did_you_mean_key
from holdfast.data.layouts import BY_ENDING
from holdfast.errors import ConfigError

Values = Mapping[str, Any]
"""Keys of a file, or settings of ours, with their values."""


@dataclass(frozen=True)
class Tool:
    """Whose files they are. Its table, `<name>.yaml`, says:

    title     of the tool
    marks     keys that its files have and `trl sft` does not know; three of them tell a file as one
    of its no_effect keys that change nothing of what is trained, or are read together with another
    key
    nested    keys that hold keys, which the table has as `outer.inner`
    assumed   keys of theirs that stand in every file which does not say otherwise
    renamed   keys with our names of them
    switches  keys with the settings that they stand for where they ask for something
    cases     keys with the settings that each of their values stands for; other values are refused
    defaults  our settings that have another default there
    notes     our settings with what comes out differently where a file has them
    template  their key for a chat template by its name
    """

    name: str
    functions: Mapping[str, Callable[[Any, Values], Values]]
    """By key what makes settings of its value and the whole file; those that are None are not
    set."""
    finish: Callable[[Values, dict[str, Any]], None]
    """What follows from several keys together: changes the settings when every key's rule was
    applied."""

    @cached_property
    def table(self) -> dict[str, Any]:
        """As its file says."""
        import yaml

        return dict(
            yaml.safe_load(Path(__file__).with_name(f"{self.name}.yaml").read_text("utf-8"))
        )


def translate(tool: Tool, values: Values, known: Collection[str], source: str) -> dict[str, Any]:
    """A file of another tool as settings of a run.

    Args:
        tool: whose file it is.
        values: its keys.
        known: keys of `holdfast train` that mean the same under the same name.
        source: the file's name, for the message.

    Raises:
        ConfigError: every key and value that has no counterpart.
    """
    table, flat = tool.table, dict[str, Any]()
    for key, value in values.items():
        inner = value if key in table["nested"] and isinstance(value, Mapping) else {}
        flat |= {f"{key}.{name}": setting_inside for name, setting_inside in inner.items()} or {
            plain_key(key): value
        }
    values = {
        **table["assumed"],
        **{key: value for key, value in flat.items() if value not in (None, "")},
    }
    settings: dict[str, Any] = {}
    problems: list[str] = []
    # what a key says by itself wins over what a function or a case of another key assumes
    for key in sorted(
        values, key=lambda key: (key not in tool.functions, key not in table["cases"])
    ):
        try:
            translated = _settings(tool, key, values, known)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            problems.append(f"{key}: {error}")
            continue
        for name, setting in translated.items():
            settings[name] = _joined(settings.get(name), setting)
    if problems:
        raise ConfigError(problems, source=source)
    tool.finish(values, settings)
    with_adapter = settings.get("use_peft")
    translation = {}
    for key, value in {**table["defaults"], **settings}.items():
        # LoRA's keys do nothing there without an adapter
        has_effect = with_adapter or not key.startswith("lora_")
        if value is not None and has_effect:
            translation[key] = value
    return translation


def _settings(tool: Tool, key: str, values: Values, known: Collection[str]) -> Values:
    """What a key becomes.

    Raises:
        ValueError: it has no counterpart, or its value has none.
    """
    value, table = values[key], tool.table
    if key in tool.functions:
        return tool.functions[key](value, values)
    if key in table["no_effect"].split():
        return {}
    if key in table["renamed"]:
        return {table["renamed"][key]: value}
    if key in table["switches"]:
        return _filled(table["switches"][key], values) if is_on(value) else {}
    cases = table["cases"].get(key)
    if cases is None and key in known:
        return {key: value}
    if cases is None and is_on(value):
        raise ValueError(
            f"has no counterpart in holdfast. Remove it.{did_you_mean_key(key, known)}"
        )
    settings: dict[str, Any] = {}
    for item in value if isinstance(value, list) else [value]:
        if cases and item in cases:
            settings |= _filled(cases[item], values)
        elif is_on(item):
            raise ValueError(f"expected {' or '.join(map(str, cases))}, got {item!r}.")
    return settings


def _filled(template: Any, values: Values) -> Any:
    """A template with what a file says: `$key` is the value of a key, `$,key` a list of names, and
    within a text `$key` is a part of it."""
    if isinstance(template, dict):
        return {key: _filled(inner, values) for key, inner in template.items()}
    if isinstance(template, list):
        return [_filled(inner, values) for inner in template]
    if not isinstance(template, str):
        return template
    if template.startswith("$,"):
        names = values.get(template[2:])
        if isinstance(names, str):
            names = [name.strip() for name in names.split(",")]
        return "all-linear" if names == ["all"] else names  # PEFT's word
    return (
        values.get(template[1:])
        if template.startswith("$")
        else Template(template).safe_substitute(values)
    )


def _joined(before: Any, value: Any) -> Any:
    """Of two keys' settings of one name the later one; lists and mappings of both."""
    if isinstance(before, list) and isinstance(value, list):
        return before + [item for item in value if item not in before]
    return before | value if isinstance(before, dict) and isinstance(value, dict) else value


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
        raise ValueError(f"{where}: {', '.join(others)} has no counterpart.")


def warmup(value: Any, values: Values) -> Values:
    """`warmup_steps` counts where it is above 0, else `warmup_ratio`; ours takes both in one
    key."""
    return {"warmup_steps": values.get("warmup_steps") or values.get("warmup_ratio", 0)}


def lora_plus(value: Any, values: Values) -> Values:
    """LoRA+ (Hayou et al. 2024, arXiv:2402.12354): the second matrix of each pair at another
    rate."""
    return {"learning_rate_multipliers": {"lora_B": float(value)}}


def accumulation(value: Any, values: Values) -> Values:
    """Steps to accumulate, of the rows that all of them have."""
    steps = int(value) // int(values.get("micro_batch_size", 1))
    return {"gradient_accumulation_steps": max(1, steps)}


def held_out_file(value: Any, values: Values) -> Values:
    """Data to evaluate on along training."""
    if is_on(value):
        raise ValueError("is not converted. Remove it, and set eval_dataset_name in the new file.")
    return {}


def hold_out(values: Values, settings: dict[str, Any]) -> None:
    """Evaluates along training where a part of the rows is held out, and not at all elsewhere."""
    if settings.get("test_split_size"):
        settings.setdefault(
            "eval_strategy", "steps" if is_on(values.get("eval_steps")) else "epoch"
        )
        return
    for key in ("eval_strategy", "eval_steps", "eval_packing", "per_device_eval_batch_size"):
        settings.pop(key, None)


def data_settings(data_sets: Sequence[Values]) -> Values:
    """The settings that name what is trained on.

    Args:
        data_sets: `path`, and where they are given `name`, `data_files` and `split`, as `datasets:`
            takes them; `data`, the templates that make text of a row; `chat`, the column of
            conversations.

    Raises:
        ValueError: they become text in several ways, or conversations are in another column.
    """
    templates = [data_set.get("data") for data_set in data_sets]
    if templates.count(templates[0]) < len(templates):
        raise ValueError(
            "expected the same templates for all data sets, because a run has only one 'data:'."
        )
    chats = {data_set.get("chat") for data_set in data_sets} - {None}
    if not chats <= {"messages", "conversations"}:
        raise ValueError(
            "expected conversations in a column named messages or conversations. Rename it."
        )
    settings = {"data": templates[0], "assistant_only_loss": bool(chats) or None}
    first = data_sets[0]
    if len(data_sets) == 1 and not first.get("data_files"):
        return settings | {
            "dataset_name": first["path"],
            "dataset_config": first.get("name"),
            "dataset_train_split": first.get("split"),
        }
    entries = []
    for data_set in data_sets:
        entry = {
            key: data_set[key]
            for key in ("path", "name", "data_files", "split")
            if data_set.get(key)
        }
        builder = next(
            (BY_ENDING[end] for end in Path(entry["path"]).suffixes if end in BY_ENDING), None
        )
        if builder is not None:  # a local file's own name would be one of the hub
            entry |= {"path": builder, "data_files": data_set["path"]}
        entries.append(entry)
    return settings | {"datasets": entries}
