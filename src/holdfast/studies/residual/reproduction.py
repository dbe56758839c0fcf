"""Paper 004 in small: its study on the embedded world, and its claims held against what came out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from holdfast.errors import ConfigError
from holdfast.records.residual import ResidualRecord, read_update
from holdfast.studies.engine import reproduction
from holdfast.studies.engine.claims import Claim
from holdfast.studies.engine.papers import LOOK
from holdfast.studies.residual.claims import READING, RECIPE, check_claims
from holdfast.studies.residual.paper import PAPER

QUICK: dict[str, Any] = {
    "world": {
        "quick": True,
        "word_problems": 20,
        "new_people": 4,
        "articles": 24,
        "tellings": 10,
        "list_rounds": 1,
        "vocab_size": 384,
        "steps": 10,
        "tuning_steps": 5,
    },
    "budgets": [300, 600],
    "seeds": [0, 1],
    "widths": [32, 16],
    "scales": [1],
    "held_out": 0.2,
    "window": 64,
    "epochs": 1,
}
"""A study of a minute that only shows that everything works."""
CHANGES: dict[str, dict[str, Any]] = {
    "quick": QUICK,
    "look": {"seeds": [0], "widths": [128], "scales": [1]},
    "thorough": {},
}
"""By size: what differs from the study file."""


def reproduce(
    *,
    size: str = LOOK,
    workers: int | None = None,
    output_dir: str | os.PathLike[str] = "reproduce-residual",
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

    from holdfast.studies.residual.grid import run_residual_study
    from holdfast.studies.residual.plan import study_config

    if reproduction.known_size(size) not in CHANGES:
        raise ConfigError(f"size: expected one of {', '.join(CHANGES)}, got {size!r}: {PAPER.full}.")
    path = Path(__file__).resolve().parents[1] / "recipes" / "residual" / "tiny.yaml"
    values = {
        **reproduction.changed(yaml.safe_load(path.read_text(encoding="utf-8")), CHANGES[size]),
        "name": RECIPE,
        "output_dir": str(Path(output_dir) / RECIPE),
    }
    config = study_config(values, source=path.name)
    return reproduction.reproduce(
        PAPER,
        [reproduction.Recipe(name=RECIPE, settings=config, run=run_residual_study, read=read_update, summary=_summary)],
        lambda records: check_claims(records[RECIPE]),
        size=size,
        output_dir=output_dir,
        workers=workers,
        console=console,
        reading=READING,
    )


def _summary(record: ResidualRecord | None) -> dict[str, Any]:
    return {
        "seeds": [] if record is None else sorted({m.seed for m in record.models}),
        "trials": 0 if record is None else sum(m.state == "complete" for m in record.models),
        "target": "instructions followed, held-out new text",
        "source": "old knowledge, prose",
    }
