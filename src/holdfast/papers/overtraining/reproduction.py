"""The paper Overtrained Language Models in small: a ladder is pre-trained, its checkpoints are
modified, and the claims are held against what came out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.errors import ConfigError
from holdfast.papers.claims.claim import Claim
from holdfast.papers.claims.reproduction import Twin, Twins, changed, size_changes
from holdfast.papers.ladder.plan import LadderConfig
from holdfast.papers.ladder.study import LadderStudy
from holdfast.papers.overtraining.claims import (
    LANGUAGE,
    PICTURES,
    PUBLIC_1B,
    PUBLIC_7B,
    READING,
    check_claims,
)
from holdfast.papers.overtraining.paper import PAPER
from holdfast.papers.overtraining.plan import OvertrainingConfig
from holdfast.papers.overtraining.record import OvertrainingRecord, read_overtraining
from holdfast.papers.overtraining.study import OvertrainingStudy
from holdfast.studies.engine.session import execute_study

PRETRAINING = "pretraining"
"""Key of a twin: which ladder (a file below `papers/recipes`), which of its sizes, and what differs
from the file."""
LADDER = f"{LANGUAGE}-ladder"
"""Folder of the one ladder that the studies share, beside theirs."""


@dataclass(frozen=True, kw_only=True)
class TwinConfig(OvertrainingConfig):
    """A study together with the ladder that it needs."""

    ladder: LadderConfig


def twin_config(values: Mapping[str, Any], *, source: str | None = None) -> TwinConfig:
    """The study of a ladder that is pre-trained first, beside its folder.

    Args:
        values: as of `OvertrainingConfig.read`, with `PRETRAINING` in place of the ladder.
        source: where they came from, for the message.

    Raises:
        ConfigError: with every mistake at once.
    """
    import yaml

    settings = dict(values)
    pretraining = settings.pop(PRETRAINING)
    file = Path(__file__).resolve().parents[1] / "recipes" / pretraining["file"]
    recipe = changed(yaml.safe_load(file.read_text(encoding="utf-8")), pretraining["changes"])
    size = str(pretraining["size"])
    recipe["sizes"] = {size: recipe["sizes"][size]}
    folder = Path(settings["output_dir"]).with_name(LADDER)
    ladder = LadderConfig.read(
        {**recipe, "name": LADDER, "output_dir": str(folder)}, source=file.name
    )
    settings["ladder"] = []
    for rung in ladder.rungs.values():
        model = str(ladder.run_folder(rung, ladder.request.seeds[0]))
        settings["ladder"].append({"model": model, "tokens": rung.tokens, "label": rung.name})
    # the checkpoints are not there yet; they are looked at when the study begins
    config = OvertrainingConfig.read(settings, source=source, check=False)
    if problems := config.key_problems(config.request):
        raise ConfigError(problems, source=source)
    fields = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    return TwinConfig(**fields, ladder=ladder)


def run_twin(
    config: TwinConfig, *, console: Any = None, workers: int | None = None
) -> OvertrainingRecord:
    """Pre-trains the ladder, or finds it, and runs the study; the arguments of
    `session.execute_study`.

    Raises:
        HoldfastError: see `session.execute_study`.
    """
    execute_study(LadderStudy(config.ladder), console=console, workers=workers)
    return execute_study(OvertrainingStudy(config), console=console, workers=workers)


def _twin(name: str, file: str) -> Twin:
    changes_of = size_changes("overtraining")
    sizes = {}
    for size, changes in changes_of[name].items():
        ladder = {"file": "ladder/long.yaml", "size": "170k", "changes": changes_of["ladder"][size]}
        sizes[size] = {**changes, PRETRAINING: ladder}
    return Twin(file=f"overtraining/{file}", sizes=sizes)


TWINS = Twins(
    paper=PAPER,
    studies={LANGUAGE: _twin(LANGUAGE, "long.yaml"), PICTURES: _twin(PICTURES, "pictures.yaml")},
    config=twin_config,
    run=run_twin,
    read=read_overtraining,
    check=check_claims,
    reading=READING,
)
judge = TWINS.judge


def reproduce(*, recipes: Sequence[str] = (), **about: Any) -> list[Claim]:
    """`Twins.reproduce`. Studies of public checkpoints have no twin: all recipes are those that do.

    Raises:
        ConfigError: only recipes without a twin; see `Twins.reproduce`, too.
    """
    with_twins = [name for name in recipes if name not in (PUBLIC_1B, PUBLIC_7B)]
    if recipes and not with_twins:
        raise ConfigError(
            f"recipes: {', '.join(recipes)} needs public checkpoints and a GPU. Run its file in "
            "configs/overtraining ('holdfast study run'), then 'holdfast reproduce overtraining "
            f"--recipes {recipes[0]} --on FOLDER'."
        )
    return TWINS.reproduce(recipes=with_twins, **about)
