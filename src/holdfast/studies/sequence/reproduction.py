"""Paper 002 in small: its study on the small base, and its claims held against what came out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from holdfast.errors import ConfigError
from holdfast.records.sequence import SequenceRecord, read_sequence
from holdfast.studies.engine import reproduction
from holdfast.studies.engine.claims import Claim
from holdfast.studies.engine.papers import LOOK
from holdfast.studies.sequence.claims import READING, RECIPE, check_claims
from holdfast.studies.sequence.paper import PAPER

_LOOK_ARMS: list[Any] = [
    "sequential",
    "single",
    "multitask",
    {"replay": {"fraction": 0.1}},
    {"sfa": {"p": [1, 0.5, 0.25, 0.1]}},
    {"l2": {"coefficient": [0.01, 0.1]}},
    {"ewc": {"coefficient": [100, 1000], "samples": 64}},
    {"merge": {"method": "task_arithmetic", "weights": [[0.25, 0.75], [0.5, 0.5]]}},
    {"merge": {"method": "ties", "density": 0.2}},
]
CHANGES: dict[str, dict[str, Any]] = {
    "quick": {
        "train": {"max_steps": 4, "warmup_steps": 1},
        "orders": [["problems", "functions"]],
        "arms": ["single", {"sfa": {"p": [1, 0.5]}}],
        "seeds": [0],
        "curve": 2,
    },
    "look": {"orders": [["problems", "functions"]], "arms": _LOOK_ARMS, "seeds": [0, 1], "train": {"max_steps": 200}},
    "thorough": {},
}
"""By size: what differs from the study file; chosen for the time it takes, before any arm was run."""


def reproduce(
    *,
    size: str = LOOK,
    workers: int | None = None,
    output_dir: str | os.PathLike[str] = "reproduce-sfa",
    console: Any = None,
) -> list[Claim]:
    """Runs the small study, or continues it, and checks the claims about it.

    Args:
        size: one of `papers.SIZES` but "full".
        workers: models at a time; None: as the machine says.
        output_dir: gets the study, claims.json and claims.html.
        console: a `rich.console.Console`; None: a new one on standard output.

    Returns:
        The claims, as in claims.json.

    Raises:
        ConfigError: no such size here, or the folder holds another study (what differs).
        Interrupted: Ctrl-C; the same call continues. The claims are written as far as they can be told.
        HoldfastError: models failed, after the others were made and the claims were written.
    """
    import yaml

    from holdfast.studies.engine.small import fill
    from holdfast.studies.sequence.plan import sequence_config
    from holdfast.studies.sequence.study import run_sequence
    from holdfast.worlds.small_settings import make_setting

    if reproduction.known_size(size) not in CHANGES:
        raise ConfigError(f"size: expected one of {', '.join(CHANGES)}, got {size!r}: {PAPER.full}.")
    path = Path(__file__).resolve().parents[1] / "recipes" / "sequence" / "tasks-tiny.yaml"
    folder = Path(output_dir) / RECIPE
    values = reproduction.changed(yaml.safe_load(path.read_text(encoding="utf-8")), CHANGES[size])
    if size == "quick":  # with a base of seconds
        names = make_setting(values.pop("small"), folder / "data", quick=True, console=console)
        values = fill(values, names)
    values |= {"name": RECIPE, "output_dir": str(folder)}
    config = sequence_config(values, source=path.name)
    return reproduction.reproduce(
        PAPER,
        [reproduction.Recipe(name=RECIPE, settings=config, run=run_sequence, read=read_sequence, summary=_summary)],
        lambda records: check_claims(records[RECIPE]),
        size=size,
        output_dir=output_dir,
        workers=workers,
        console=console,
        reading=READING,
    )


def _summary(record: SequenceRecord | None) -> dict[str, Any]:
    return {
        "seeds": [] if record is None else record.seeds,
        "trials": 0 if record is None else sum(m.state == "complete" for m in record.models),
        "target": "the last task",
        "source": "the tasks before",
    }
