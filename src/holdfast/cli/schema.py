"""`holdfast schema`: JSON Schema of the YAML files that commands take, for editors that complete and check them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from holdfast.cli.console import write
from holdfast.config.command_line import Command
from holdfast.config.declare import Meta
from holdfast.config.schema import json_schema

DESCRIPTION = """\
Writes the JSON Schema of a kind of YAML file: every key with its explanation, its type, its bounds and its default.
An editor with a YAML language server then completes keys and marks mistakes while you write.
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
  suite     'holdfast evaluate --suite', and what stands under evaluation: of a run
  merge     'holdfast merge --config'

examples
  holdfast schema train --output train.schema.json

  # then, as the first line of a YAML file beside it
  # yaml-language-server: $schema=train.schema.json
"""


def _train() -> dict[str, Any]:
    from holdfast.evaluation.suite import suite_schema
    from holdfast.runs.settings import OWN, known_settings

    schema = json_schema([*OWN.values(), *known_settings().values()], title="holdfast train")
    section = {"anyOf": [{"$ref": "#/$defs/section"}, {"type": "null"}]}
    schema["properties"]["evaluation"] = {"description": OWN["evaluation"].help, **section}
    text = "The file of 'holdfast train --config'."
    return {**schema, "description": text, "$defs": suite_schema()["$defs"]}


def _sweep() -> dict[str, Any]:
    from holdfast.runs.settings import known_settings
    from holdfast.studies.tradeoff.study import sweep_schema

    return sweep_schema(_train(), known_settings())


def _update() -> dict[str, Any]:
    from holdfast.studies.update.settings import UpdateSettings

    return json_schema(UpdateSettings, title="holdfast update", description="The file of 'holdfast update --config'.")


def _study() -> dict[str, Any]:
    from holdfast.papers.residual.settings import StudySettings

    text = "The file of 'holdfast study run' of the residual."
    return json_schema(StudySettings, title="holdfast study run", description=text)


def _sequence() -> dict[str, Any]:
    from holdfast.studies.sequence.settings import SequenceSettings

    text = "The file of 'holdfast sequence --config'."
    return json_schema(SequenceSettings, title="holdfast sequence", description=text)


def _stages() -> dict[str, Any]:
    from holdfast.studies.stages.settings import StagesSettings

    text = "The file of 'holdfast diagnose --config'."
    return json_schema(StagesSettings, title="holdfast diagnose", description=text)


def _ladder() -> dict[str, Any]:
    from holdfast.papers.ladder.settings import LadderSettings

    text = "The file of 'holdfast study run', a ladder."
    return json_schema(LadderSettings, title="holdfast study run: a ladder", description=text)


def _overtraining() -> dict[str, Any]:
    from holdfast.papers.overtraining.settings import OvertrainingSettings

    text = "The file of 'holdfast study run', overtraining."
    return json_schema(OvertrainingSettings, title="holdfast study run: overtraining", description=text)


def _suite() -> dict[str, Any]:
    from holdfast.evaluation.suite import suite_schema

    return suite_schema()


def _merge() -> dict[str, Any]:
    from holdfast.cli.merge import merge_schema

    return merge_schema()


SCHEMAS: dict[str, Callable[[], dict[str, Any]]] = {
    "train": _train,
    "sweep": _sweep,
    "update": _update,
    "study": _study,
    "sequence": _sequence,
    "stages": _stages,
    "ladder": _ladder,
    "overtraining": _overtraining,
    "suite": _suite,
    "merge": _merge,
}
"""Kind of file: its schema."""


@dataclass(frozen=True, kw_only=True)
class SchemaRequest:
    """`holdfast schema`."""

    kind: Annotated[str, Meta(positional=True, metavar="KIND", choices=tuple(SCHEMAS))]
    """Which kind of file."""
    output: Annotated[Path | None, Meta(metavar="FILE")] = None
    """Where to write (standard output)."""


COMMAND = Command(
    name="holdfast schema",
    request=SchemaRequest,
    description=DESCRIPTION,
    epilog=EPILOG,
    usage=f"{'|'.join(SCHEMAS)} [--output FILE]",
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
    return json.dumps(SCHEMAS[kind](), ensure_ascii=False, separators=(",", ":")) + "\n"
