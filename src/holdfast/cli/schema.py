"""`holdfast schema`: JSON Schema of the YAML files that commands take, for editors that complete
and check them."""

from __future__ import annotations

import json
import pkgutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from holdfast.cli.console import write
from holdfast.config.command_line import Command
from holdfast.config.declare import Meta
from holdfast.config.schema import json_schema

RUN = "'holdfast study run'"
DESCRIPTION = """\
Writes the JSON Schema of a kind of YAML file: every key with its explanation, type, bounds and default. With it, an
editor with a YAML language server completes keys and marks mistakes while you write.
"""
EPILOG = """\
kinds
  train     a run: 'holdfast train --config', every key of trl sft and accelerate launch, and the methods' parameters
  sweep     a study of trials: 'holdfast sweep --config'
  update    'holdfast update --config'
  study     'holdfast study run' of the residual
  sequence  'holdfast sequence --config'
  ladder    'holdfast study run', a ladder
  stages    'holdfast diagnose --config'
  overtraining  'holdfast study run', overtraining
  policy    'holdfast compare --policy'
  suite     'holdfast evaluate --suite', and the evaluation: section of a run
  merge     'holdfast merge --config'

examples
  holdfast schema train --output train.schema.json

  # then, as the first line of a YAML file beside it
  # yaml-language-server: $schema=train.schema.json
"""


SETTINGS = {
    "update": (
        "holdfast.studies.update.settings:UpdateSettings",
        "holdfast update",
        "'holdfast update --config'",
    ),
    "study": (
        "holdfast.papers.residual.settings:StudySettings",
        "holdfast study run",
        f"{RUN} of the residual",
    ),
    "sequence": (
        "holdfast.studies.sequence.settings:SequenceSettings",
        "holdfast sequence",
        "'holdfast sequence --config'",
    ),
    "ladder": (
        "holdfast.papers.ladder.settings:LadderSettings",
        "holdfast study run: a ladder",
        f"{RUN}, a ladder",
    ),
    "stages": (
        "holdfast.studies.stages.settings:StagesSettings",
        "holdfast diagnose",
        "'holdfast diagnose --config'",
    ),
    "overtraining": (
        "holdfast.papers.overtraining.settings:OvertrainingSettings",
        "holdfast study run: overtraining",
        f"{RUN}, overtraining",
    ),
}
"""Kind of file that one settings class declares: the class, the title, and whose file it is."""
SCHEMAS = (
    "train",
    "sweep",
    "update",
    "study",
    "sequence",
    "stages",
    "ladder",
    "overtraining",
    "policy",
    "suite",
    "merge",
)
"""Kinds of files."""


def schema_of(kind: str) -> dict[str, Any]:
    """The schema of a kind of file."""
    if kind in SETTINGS:
        settings, title, owner = SETTINGS[kind]
        return json_schema(
            pkgutil.resolve_name(settings), title=title, description=f"The file of {owner}."
        )
    if kind == "merge":
        from holdfast.cli.merge import merge_schema

        return merge_schema()
    if kind == "policy":
        from holdfast.evaluation.compare.policy import policy_schema

        return policy_schema()
    from holdfast.evaluation.suite import suite_schema

    suite = suite_schema()
    if kind == "suite":
        return suite
    from holdfast.runs.settings import OWN, known_settings, libraries, settings_of_all

    train = json_schema([*OWN.values(), *settings_of_all()], title="holdfast train")
    section = {"anyOf": [{"$ref": "#/$defs/section"}, {"type": "null"}]}
    train["properties"]["evaluation"] = {"description": OWN["evaluation"].help, **section}
    about = {"$comment": libraries(), "description": "The file of 'holdfast train --config'."}
    train = {**train, **about, "$defs": suite["$defs"]}
    if kind == "train":
        return train
    from holdfast.studies.sweep.settings import sweep_schema

    return sweep_schema(train, known_settings())


@dataclass(frozen=True, kw_only=True)
class SchemaRequest:
    """`holdfast schema`."""

    kind: Annotated[str, Meta(positional=True, metavar="KIND", choices=SCHEMAS)]
    """Kind of file."""
    output: Annotated[Path | None, Meta(metavar="FILE")] = None
    """File to write (default: standard output)."""


COMMAND = Command(
    name="holdfast schema",
    request=SchemaRequest,
    description=DESCRIPTION,
    epilog=EPILOG,
    usage="KIND [--output FILE]",
    yaml=False,
)


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast schema --help`."""
    request = COMMAND.read(argv)
    text = schema_text(request.kind)
    if request.output is None:
        sys.stdout.write(text)
    else:
        request.output.parent.mkdir(parents=True, exist_ok=True)
        request.output.write_text(text, encoding="utf-8")
        write(f"{request.output}: # yaml-language-server: $schema={request.output.name}")
    return 0


def schema_text(kind: str) -> str:
    """The schema of a kind of file as it is shipped."""
    return json.dumps(schema_of(kind), ensure_ascii=False, separators=(",", ":")) + "\n"
