"""Paper 001 in small: its study in several worlds, with models of two sizes, and its claims held against what came
out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import ConfigError, did_you_mean
from holdfast.records.stages import StagesRecord, read_stages
from holdfast.studies.engine import reproduction
from holdfast.studies.engine.claims import Claim
from holdfast.studies.engine.papers import LOOK
from holdfast.studies.stages.claims import NARROW, READING, WIDE, check_claims
from holdfast.studies.stages.paper import PAPER

SMALL = {WIDE: "stages", NARROW: "stages_narrow"}
"""Small settings by what a study's name begins with."""
CHANGES: dict[str, dict[str, Any]] = {
    "quick": {
        "train": {"num_train_epochs": 2},
        "along": {"steps": [1], "entries": ["old_lettered"]},
        "tokens": 4000,
        "probing_passages": 8,
        "curve": 2,
    },
    "look": {},
    "thorough": {},
}
"""By size: what differs from the study file; a look has fewer studies."""
STUDIES: dict[str, tuple[str, ...]] = {
    "quick": ("world-0", "narrow-0"),
    "look": ("world-0",),
    "thorough": tuple(PAPER.recipes),
}
"""By size: which studies are run."""


def reproduce(
    *,
    recipes: Sequence[str] = tuple(PAPER.recipes),
    size: str = LOOK,
    workers: int | None = None,
    output_dir: str | os.PathLike[str] = "reproduce-stages",
    console: Any = None,
) -> list[Claim]:
    """Runs the small studies, or continues them, and checks the claims about them.

    Args:
        recipes: which of them; a look and a quick check take those of them that they have (`STUDIES`).
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
    if unknown := [r for r in recipes if r not in PAPER.recipes]:
        hint = did_you_mean(unknown[0], PAPER.recipes)
        raise ConfigError(f"recipes: expected some of {', '.join(PAPER.recipes)}, got {unknown[0]!r}.{hint}")
    if reproduction.known_size(size) not in CHANGES:
        raise ConfigError(f"size: expected one of {', '.join(CHANGES)}, got {size!r}: {PAPER.full}.")
    chosen = [name for name in dict.fromkeys(recipes) if name in STUDIES[size]]
    if not chosen:
        raise ConfigError(f"recipes: a {size} has {', '.join(STUDIES[size])}, got none of them. Add --thorough.")
    return reproduction.reproduce(
        PAPER,
        [_recipe(name, size, Path(output_dir) / name, console) for name in chosen],
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
    from holdfast.studies.stages.plan import stages_config
    from holdfast.studies.stages.study import run_stages
    from holdfast.worlds.small_settings import make_setting

    path = Path(__file__).resolve().parents[1] / "recipes" / "stages" / "tiny.yaml"
    values = reproduction.changed(yaml.safe_load(path.read_text(encoding="utf-8")), CHANGES[size])
    kind = next(k for k in SMALL if name.startswith(k))
    values |= {"small": SMALL[kind], "seed": int(name.removeprefix(kind)), "name": name, "output_dir": str(folder)}
    if size == "quick":  # with a base of seconds
        small, seed = values.pop("small"), values["seed"]
        values = fill(values, make_setting(small, folder / "data", seed=seed, quick=True, console=console))
    config = stages_config(values, source=path.name)
    return reproduction.Recipe(name=name, settings=config, run=run_stages, read=read_stages, summary=_summary)


def _summary(record: StagesRecord | None) -> dict[str, Any]:
    return {
        "seeds": [] if record is None else [int(record.config["seed"])],
        "trials": 0 if record is None else sum(m.state == "complete" for m in record.models),
        "target": "new people, letters",
        "source": "people whom the base knew",
    }
