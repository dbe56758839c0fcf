"""The paper Balancing Continuous Pre-Training in small: its study on the embedded world, and its
claims held against what came out."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from holdfast.papers.claims.reproduction import Twin, Twins
from holdfast.papers.residual.claims import READING, RECIPE, check_claims
from holdfast.papers.residual.paper import PAPER
from holdfast.papers.residual.plan import StudyConfig
from holdfast.papers.residual.study import ResidualStudy
from holdfast.records.residual import read_update
from holdfast.studies.engine.session import execute_study


@functools.cache
def sizes() -> dict[str, dict[str, Any]]:
    """What each size changes of the study: `sizes.yaml`."""
    import yaml

    content: dict[str, dict[str, Any]] = yaml.safe_load(
        Path(__file__).with_name("sizes.yaml").read_text(encoding="utf-8")
    )
    return content


TWINS = Twins(
    paper=PAPER,
    studies={RECIPE: Twin(file="residual/tiny.yaml", sizes=sizes()[RECIPE])},
    config=StudyConfig.read,
    run=lambda config, **session: execute_study(ResidualStudy(config), **session),
    read=read_update,
    check=check_claims,
    reading=READING,
)
reproduce, judge = TWINS.reproduce, TWINS.judge
