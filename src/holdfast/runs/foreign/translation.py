"""What a table of another tool's keys makes of one of its files.

Every key has a rule: it is set under our name, has no effect here, has no counterpart, or is refused because the file
asks for another kind of training. A key without a rule is taken as it is where `trl sft` has it too. Nothing is dropped
in silence: what is not taken over is listed with what to do instead, unless its value means "off" or "as ever".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from holdfast.config.decode import plain_key
from holdfast.config.values import show
from holdfast.data.layouts import BUILDERS, BY_ENDING
from holdfast.errors import ConfigError, did_you_mean


@dataclass(kw_only=True)
class Draft:
    """A configuration in the making."""

    values: dict[str, Any]
    """What the file says, without what is not set; dashes in keys are underscores."""
    settings: dict[str, Any] = field(default_factory=dict)
    """The same for `holdfast train`."""
    notes: list[str] = field(default_factory=list)
    """What was decided, or comes out differently."""
    left_out: list[str] = field(default_factory=list)
    """What has no counterpart: the key and its value, and what to do."""
    refused: list[str] = field(default_factory=list)
    """Why no configuration can be made."""

    def note(self, text: str) -> None:
        """Adds a note once."""
        if text not in self.notes:
            self.notes.append(text)

    def number(self, key: str, default: float) -> float:
        """The number under a key; something else is refused."""
        value = self.values.get(key, default)
        try:
            return float(value) if not isinstance(value, bool) else float(str(value))
        except (TypeError, ValueError):
            self.refused.append(f"{key}: expected a number, got {show(value)}.")
            return default

    def leave_out(self, key: str, advice: str) -> None:
        """Says that a key has no counterpart."""
        value = "not shown" if _SECRET.search(key) else show(self.values.get(key))
        self.left_out.append(f"{key}: {value}. {advice}")


_SECRET = re.compile(r"(?:^|_)(?:key|token|secret|password|credentials?)$", re.IGNORECASE)
"""Keys whose values are not repeated."""
Rule = Callable[[str, Any, Draft], None]
"""Called with the key, its value and the draft."""


@dataclass(frozen=True, kw_only=True)
class Tool:
    """Whose files they are."""

    title: str
    marks: frozenset[str]
    """Keys that its files have and `trl sft` does not know."""
    enough: int
    """So many of them tell a file as one of its."""
    table: Mapping[str, Rule]
    silent: frozenset[str]
    """Keys that need no rule: they change nothing of what is trained, or are read together with another key."""
    defaults: Mapping[str, Any]
    """Our keys that have another default there."""
    finish: Callable[[Draft], None]
    """What follows from several keys together; called when every key's rule was."""
    needs: frozenset[str] = frozenset()
    """Keys without which a file is none of its."""

    def recognised(self, values: Mapping[str, Any]) -> list[str]:
        """The keys that say that a file is this tool's; none where it is not."""
        keys = {plain_key(key) for key in values}
        found = [mark for mark in map(plain_key, values) if mark in self.marks]
        return found if len(found) >= self.enough and self.needs <= keys else []


def translate(tool: Tool, values: Mapping[str, Any], known: Collection[str]) -> Draft:
    """A file of another tool as settings of a run.

    Args:
        tool: whose file it is.
        values: its keys.
        known: keys of `holdfast train` that mean the same under the same name.

    Raises:
        ConfigError: what is asked for is no fine-tuning that holdfast does, with every reason.
    """
    draft = Draft(values={plain_key(k): v for k, v in values.items() if v is not None and v != ""})
    for key, value in draft.values.items():
        rule = tool.table.get(key)
        if rule is not None:
            rule(key, value, draft)
        elif key in tool.silent:
            continue
        elif key in known:
            draft.settings[key] = value
        else:
            draft.leave_out(key, f"holdfast has no such key.{did_you_mean(key, known)}")
    tool.finish(draft)
    for key, value in tool.defaults.items():
        draft.settings.setdefault(key, value)
    draft.settings = {key: value for key, value in draft.settings.items() if value is not None}
    if draft.refused:
        raise ConfigError(list(dict.fromkeys(draft.refused)))
    return draft


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


def every(names: str, rule: Rule) -> dict[str, Rule]:
    """The same rule for several keys, by a text of them."""
    return dict.fromkeys(names.split(), rule)


def is_on(value: Any) -> bool:
    """Whether a value asks for something: not off, zero, empty or unset."""
    return bool(value) and str(value).lower() not in ("false", "no", "none", "disabled")


# --------------------------------------------------------------------------------------------------------------- rules


def to(name: str) -> Rule:
    """Set under another name."""

    def rule(key: str, value: Any, draft: Draft) -> None:
        draft.settings[name] = value

    return rule


def when_on(**settings: Any) -> Rule:
    """A switch that stands for settings."""

    def rule(key: str, value: Any, draft: Draft) -> None:
        if is_on(value):
            draft.settings.update(settings)

    return rule


def missing(advice: str, *, unless: Any = None) -> Rule:
    """Has no counterpart; `unless` is a value that changes nothing."""

    def rule(key: str, value: Any, draft: Draft) -> None:
        if is_on(value) and value != unless:
            draft.leave_out(key, advice)

    return rule


def refuse(reason: str, *, unless: Collection[Any] = ()) -> Rule:
    """Asks for something that holdfast does not do; `unless` are values that ask for what it does."""

    def rule(key: str, value: Any, draft: Draft) -> None:
        if is_on(value) and value not in unless:
            draft.refused.append(f"{key}: {show(value)}. {reason}")

    return rule


def one_of(name: str, values: Mapping[Any, Any], advice: str) -> Rule:
    """Set under another name with another word for it; other values have no counterpart."""

    def rule(key: str, value: Any, draft: Draft) -> None:
        word = value.lower() if isinstance(value, str) else value
        if word in values:
            draft.settings[name] = values[word]
        elif is_on(value):
            draft.leave_out(key, advice)

    return rule


# ---------------------------------------------------------------------------------------------------------------- parts


def warmup(draft: Draft) -> None:
    """`warmup_steps` counts where it is above 0, else `warmup_ratio`; ours takes both in one key."""
    steps, ratio = draft.values.get("warmup_steps"), draft.values.get("warmup_ratio")
    if is_on(steps):
        draft.settings["warmup_steps"] = steps
    elif ratio is not None or steps is not None:
        draft.settings["warmup_steps"] = steps if ratio is None else ratio


def lora_targets(value: Any) -> Any:
    """Names of layers: all linear ones where the tool says all, a list out of text with commas."""
    if isinstance(value, str):
        names = [name.strip() for name in value.split(",") if name.strip()]
        return "all-linear" if names == ["all"] else names
    return value


def lora_plus(key: str, value: Any, draft: Draft) -> None:
    """LoRA+ (Hayou et al. 2024, arXiv:2402.12354): the second matrix of each pair at another rate."""
    if is_on(value):
        draft.settings["learning_rate_multipliers"] = {"lora_B": draft.number(key, 1.0)}
        draft.note("LoRA+ became a factor of the learning rate (learning_rate_multipliers) on the lora_B matrices.")


def held_out(key: str, draft: Draft) -> None:
    """A share of the rows, or their number, that is held out of the training data."""
    size = draft.number(key, 0.1)
    draft.settings["test_split_size"] = size if size < 1 else int(size)


@dataclass(frozen=True, kw_only=True)
class Rows:
    """A data set of a file, as it is to be read."""

    path: str
    config: str | None = None
    split: str = "train"
    files: Any = None
    templates: Mapping[str, str] | None = None
    """As `data:` takes them; None: its columns say what they are."""
    chat: bool = False
    """Whether its rows are conversations."""


def read_rows(draft: Draft, rows: list[Rows], *, key: str) -> None:
    """Writes what is trained on.

    Args:
        draft: gets it.
        rows: the data sets, in order.
        key: of the file, for messages.
    """
    templates = list({repr(sorted((r.templates or {}).items())): r.templates for r in rows}.values())
    if len(templates) > 1:
        draft.refused.append(
            f"{key}: expected data sets that become text in one way, for a run has one 'data:', got {len(templates)}. "
            f"Bring the rows into one layout (messages, prompt and completion, or text), or train on one after the "
            f"other."
        )
    elif templates and templates[0]:
        draft.settings["data"] = dict(templates[0])
    rows = [_one_file(one) if len(rows) == 1 else _by_reader(one) for one in rows]
    one = rows[0] if len(rows) == 1 else None
    if one is not None and one.files is None:
        draft.settings["dataset_name"] = one.path
        draft.settings["dataset_config"] = one.config
        draft.settings["dataset_train_split"] = one.split if one.split != "train" else None
    elif rows:
        draft.settings["datasets"] = [
            {
                "path": each.path,
                **({"name": each.config} if each.config else {}),
                **({"data_files": each.files} if each.files is not None else {}),
                **({"split": each.split} if each.split != "train" else {}),
            }
            for each in rows
        ]
    if any(r.chat for r in rows):
        draft.settings.setdefault("assistant_only_loss", True)


def _by_reader(rows: Rows) -> Rows:
    """A local file among several data sets, through the reader for its kind: by its own name it would be a hub id."""
    ending = next((part for part in reversed(Path(rows.path).suffixes) if part in BY_ENDING), None)  # rows.v2.jsonl.gz
    if rows.files is None and ending is not None:
        return replace(rows, path=BY_ENDING[ending], files=rows.path)
    return rows


def _one_file(rows: Rows) -> Rows:
    """A single file that a reader of the datasets library is named for, by its own name."""
    files = [rows.files] if isinstance(rows.files, str) else rows.files
    if rows.path in BUILDERS and isinstance(files, list) and len(files) == 1:
        return Rows(path=str(files[0]), split=rows.split, templates=rows.templates, chat=rows.chat)
    return rows
