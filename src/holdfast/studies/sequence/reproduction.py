"""Paper 002 in small: its study on the small base, figure 1's on a small network, and its claims held against what came
out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import ConfigError
from holdfast.records.sequence import SequenceRecord, read_sequence
from holdfast.studies.engine import reproduction
from holdfast.studies.engine.claims import Claim
from holdfast.studies.engine.papers import LOOK
from holdfast.studies.sequence.claims import DIGITS, READING, RECIPE, check_claims
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
CHANGES: dict[str, dict[str, dict[str, Any]]] = {
    RECIPE: {
        "quick": {
            "train": {"max_steps": 4, "warmup_steps": 1},
            "orders": [["problems", "functions"]],
            "arms": ["single", {"sfa": {"p": [1, 0.5]}}],
            "seeds": [0],
            "curve": 2,
        },
        "look": {
            "orders": [["problems", "functions"]],
            "arms": _LOOK_ARMS,
            "seeds": [0, 1],
            "train": {"max_steps": 200},
        },
        "thorough": {},
    },
    DIGITS: {
        "quick": {"train": {"num_train_epochs": 1}, "arms": ["single", {"sfa": {"p": [1, 0.5]}}], "seeds": [0, 1]},
        "look": {},
        "thorough": {"seeds": [0, 1, 2, 3, 4]},
    },
}
"""By study and size: what differs from the study file; chosen for the time it takes, before any arm was run."""
_FILES = {RECIPE: "tasks-tiny.yaml", DIGITS: "digits.yaml"}


def reproduce(
    *,
    recipes: Sequence[str] = tuple(PAPER.recipes),
    size: str = LOOK,
    workers: int | None = None,
    output_dir: str | os.PathLike[str] = "reproduce-sfa",
    console: Any = None,
) -> list[Claim]:
    """Runs the small studies, or continues them, and checks the claims about them.

    Args:
        recipes: which of them; claims about the others are left out.
        size: one of `papers.SIZES` but "full".
        workers: models at a time; None: as the machine says.
        output_dir: gets the studies, claims.json and claims.html.
        console: a `rich.console.Console`; None: a new one on standard output.

    Returns:
        The claims, as in claims.json.

    Raises:
        ConfigError: no such study or size here, or the folder holds another study (what differs).
        Interrupted: Ctrl-C; the same call continues. The claims are written as far as they can be told.
        HoldfastError: models failed, after the others were made and the claims were written.
    """
    if unknown := [r for r in recipes if r not in CHANGES]:
        raise ConfigError(f"recipes: expected some of {', '.join(CHANGES)}, got {unknown[0]!r}.")
    if reproduction.known_size(size) not in CHANGES[RECIPE]:
        raise ConfigError(f"size: expected one of {', '.join(CHANGES[RECIPE])}, got {size!r}: {PAPER.full}.")
    return reproduction.reproduce(
        PAPER,
        [_recipe(name, size, Path(output_dir) / name, console) for name in dict.fromkeys(recipes)],
        check_claims,
        size=size,
        output_dir=output_dir,
        workers=workers,
        console=console,
        reading=READING,
    )


def _recipe(name: str, size: str, folder: Path, console: Any) -> reproduction.Recipe:
    import yaml

    from holdfast.studies.engine.small import fill
    from holdfast.studies.sequence.plan import sequence_config
    from holdfast.studies.sequence.study import run_sequence
    from holdfast.worlds.small_settings import make_setting

    path = Path(__file__).resolve().parents[1] / "recipes" / "sequence" / _FILES[name]
    values = reproduction.changed(yaml.safe_load(path.read_text(encoding="utf-8")), CHANGES[name][size])
    if size == "quick":  # with a base of seconds
        names = make_setting(values.pop("small"), folder / "data", quick=True, console=console)
        values = fill(values, names)
    values |= {"name": name, "output_dir": str(folder)}
    config = sequence_config(values, source=path.name)
    return reproduction.Recipe(name=name, settings=config, run=run_sequence, read=read_sequence, summary=_summary)


def _summary(record: SequenceRecord | None) -> dict[str, Any]:
    return {
        "seeds": [] if record is None else record.seeds,
        "trials": 0 if record is None else sum(m.state == "complete" for m in record.models),
        "target": "the last task",
        "source": "the tasks before",
    }
