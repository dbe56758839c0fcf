"""The tables of keys and commands in the documentation, written from the declarations: `python docs/key_tables.py`.

A table, of keys, of suites, or of merge methods and their parameters, stands between `<!-- keys: NAME -->` and
`<!-- /keys -->`, those of the commands between `<!-- commands -->` and `<!-- /commands -->`; what is between them is
replaced. A test compares.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path

from holdfast.config.declare import Setting, settings_of
from holdfast.config.decode import expected
from holdfast.config.help import default_text

DOCS = Path(__file__).parent
_TABLE = re.compile(r"(<!-- keys: ([^>]+?) -->\n).*?(<!-- /keys -->)", re.DOTALL)
ENTRY = "entry "
"""Before a kind of evaluation entry, in the name of its table."""
SHARED = ("name", "split", "config", "max_documents", "chat_template_kwargs")
"""Keys that most kinds of evaluation entries share; a kind's table has one row for them."""
_COMMANDS = re.compile(r"(<!-- commands -->\n).*?(<!-- /commands -->)", re.DOTALL)


def declared(name: str) -> Sequence[Setting]:
    """The settings that a table's name stands for: a retention method or preset, a section such as "train",
    "entry KIND" for a kind of evaluation entry, or "every entry" for the keys that these share.

    Raises:
        KeyError: no such name.
    """
    from holdfast.cli.check import flags
    from holdfast.cli.train import Flags
    from holdfast.data.layouts import Templates
    from holdfast.evaluation.compare.policy import EntryPolicy, Policy
    from holdfast.evaluation.entries import Along
    from holdfast.evaluation.suite import SuiteSettings, settings_of_kind
    from holdfast.papers.ladder.settings import LadderSettings
    from holdfast.papers.overtraining.settings import OvertrainingSettings
    from holdfast.papers.residual.settings import StudySettings
    from holdfast.papers.worlds.world import WorldRecipe
    from holdfast.retention.presets import PRESETS
    from holdfast.retention.registry import METHODS
    from holdfast.runs.on_policy import OnPolicySettings
    from holdfast.runs.settings import OwnSettings
    from holdfast.studies.sequence.settings import SequenceSettings
    from holdfast.studies.sweep.settings import Objectives, Search, SweepSettings
    from holdfast.studies.update.settings import RestoreSettings, UpdateSettings

    if name == "train options":
        return flags(Flags)
    if name == "every entry":
        return [setting for name, setting in settings_of_kind("perplexity").items() if name in SHARED]
    if name.startswith(ENTRY):
        return list(settings_of_kind(name.removeprefix(ENTRY)).values())
    sections = {"train": OwnSettings, "data": Templates, "on_policy": OnPolicySettings, "world": WorldRecipe}
    sections |= {"evaluation": SuiteSettings, "along": Along, "policy": Policy, "policy entry": EntryPolicy}
    sections |= {"sweep": SweepSettings, "objectives": Objectives, "search": Search, "sequence": SequenceSettings}
    sections |= {"update": UpdateSettings, "restore": RestoreSettings}
    sections |= {"ladder": LadderSettings, "overtraining": OvertrainingSettings, "residual study": StudySettings}
    return settings_of({**METHODS, **PRESETS, **sections}[name])


def keys_table(settings: Iterable[Setting]) -> str:
    """A Markdown table of keys: name, value, default, what it is; hidden settings are left out."""
    rows = ["| key | value | default | |", "|---|---|---|---|"]
    for setting in settings:
        if setting.meta.hidden:
            continue
        default = ""
        if setting.required:
            default = "required"
        elif setting.default is not None and not is_dataclass(setting.default):
            text = default_text(setting.default)
            default = f"`{text}`".replace("\n", "\\n") if text not in ("", "{}") else ""
        cells = (f"`{setting.name}`", expected(setting), default, setting.help)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


def merge_methods_table() -> str:
    """The merge methods: name, what comes out, source."""
    from holdfast.checkpoints.methods.registry import METHODS

    rows = ["| method | result | source |", "|---|---|---|"]
    for name, method in METHODS.items():
        source = re.sub(r"arXiv:(\d+\.\d+)", r"[arXiv \1](https://arxiv.org/abs/\1)", method.source)
        rows.append(f"| `{name}` | {method.summary} | {source} |")
    return "\n".join(rows) + "\n"


def merge_parameters_table() -> str:
    """The parameters of the merge methods: name, methods that have it, value, default, what it is."""
    from holdfast.checkpoints.methods.registry import METHODS

    methods: dict[tuple[str, str, str, str], list[str]] = {}
    for name, method in METHODS.items():
        for setting in settings_of(method):
            default = "" if setting.default is None else f"`{default_text(setting.default)}`"
            methods.setdefault((setting.name, expected(setting), default, setting.help), []).append(f"`{name}`")
    rows = ["| parameter | methods | value | default | |", "|---|---|---|---|---|"]
    for (parameter, value, default, text), names in sorted(methods.items()):
        cells = (f"`{parameter}`", ", ".join(names), value, default, text)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


MERGE_TABLES = {"merge methods": merge_methods_table, "merge parameters": merge_parameters_table}


def suites_table() -> str:
    """The suites that come with holdfast: name, entries of `learn`, entries of other suites, averages."""
    from holdfast.config.yaml_file import read_yaml
    from holdfast.evaluation.shipped import shipped_suites

    rows = ["| suite | `learn` | `keep`, or a suite of another name | averages |", "|---|---|---|---|"]
    for name, path in shipped_suites().items():
        suites = dict(read_yaml(path, option="--suite", needs="a suite").values)
        averages = ", ".join(f"`{average}`" for average in suites.pop("averages", {}))
        suites.pop("description")
        learn = ", ".join(map(_entry_words, suites.pop("learn", ())))
        kept = ", ".join(map(_entry_words, suites.pop("keep", ())))
        others = [f"{suite}: {', '.join(map(_entry_words, entries))}" for suite, entries in suites.items()]
        rows.append(f"| `{name}` | {learn} | {'; '.join([kept, *others] if kept else others)} | {averages} |")
    return "\n".join(rows) + "\n"


def _entry_words(entry: Mapping[str, object]) -> str:
    """An entry of a suite: its task, and how it is asked."""
    kind = next(iter(entry))
    words = [f"{entry[kind]}" if kind == "task" else f"{kind}: {entry[kind]}"]
    if "num_fewshot" in entry:
        words.append(f"{entry['num_fewshot']}-shot")
    if entry.get("apply_chat_template"):
        words.append("in the chat template")
    return " ".join(words)


def table(name: str) -> str:
    """The table of a name. A kind of entry has its own keys, and one row for those that it shares with others."""
    if name in MERGE_TABLES:
        return MERGE_TABLES[name]()
    if name == "suites":
        return suites_table()
    settings = declared(name)
    if not name.startswith(ENTRY):
        return keys_table(settings)
    own = [setting for setting in settings if setting.name not in SHARED]
    shared = [f"`{setting.name}`" for setting in settings if setting.name in SHARED]
    link = "see [keys of every entry](evaluation_entries.md#keys-of-every-entry)"
    return keys_table(own) + f"| {', '.join(shared)} | | | {link} |\n"


def commands_table() -> str:
    """The commands by what a user does, as `holdfast --help` has them."""
    from holdfast.cli.main import GROUPS

    parts = []
    for group, commands in GROUPS.items():
        rows = [f"| `holdfast {name}` | {line} |" for name, line in commands.items()]
        parts.append("\n".join([f"## {group}", "", "| command | |", "|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def with_tables(page: str) -> str:
    """A page with its tables as the declarations have them."""
    page = _COMMANDS.sub(lambda m: f"{m[1]}\n{commands_table()}\n{m[2]}", page)
    return _TABLE.sub(lambda m: f"{m[1]}\n{table(m[2])}\n{m[3]}", page)


def main() -> None:
    """Rewrites every page that has tables."""
    for path in sorted(DOCS.rglob("*.md")):
        page = path.read_text(encoding="utf-8")
        if (changed := with_tables(page)) != page:
            path.write_text(changed, encoding="utf-8")
            print(path)


if __name__ == "__main__":
    main()
