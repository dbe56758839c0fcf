"""The paper Soup to Go in small: its studies on the small base, figure 1's on a small network, and
its claims held against what came out."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from holdfast.papers.claims.reproduction import Script, Twin, Twins
from holdfast.papers.digits.study import DigitsSettings, run_digits
from holdfast.papers.sfa.claims import CLASSES, FIGURE_1, IN_A_ROW, READING, RECIPE, check_claims
from holdfast.papers.sfa.paper import PAPER
from holdfast.records.sequence import read_sequence
from holdfast.studies.engine.session import execute_study
from holdfast.studies.sequence.plan import SequenceConfig
from holdfast.studies.sequence.study import SequenceStudy


@functools.cache
def sizes() -> dict[str, dict[str, Any]]:
    """What each size changes of the studies: `sizes.yaml`."""
    import yaml

    content: dict[str, dict[str, Any]] = yaml.safe_load(
        Path(__file__).with_name("sizes.yaml").read_text(encoding="utf-8")
    )
    return content


TWINS = Twins(
    paper=PAPER,
    studies={
        RECIPE: Twin(file="sequence/tasks-tiny.yaml", sizes=sizes()[RECIPE]),
        IN_A_ROW: Twin(file="sequence/three-tasks-tiny.yaml", sizes=sizes()[IN_A_ROW]),
        FIGURE_1: Script(settings=DigitsSettings, run=run_digits, sizes=sizes()[FIGURE_1]),
        CLASSES: Script(
            settings=DigitsSettings.class_incremental, run=run_digits, sizes=sizes()[CLASSES]
        ),
    },
    config=SequenceConfig.read,
    run=lambda config, **session: execute_study(SequenceStudy(config), **session),
    read=read_sequence,
    check=check_claims,
    reading=READING,
)
reproduce, judge = TWINS.reproduce, TWINS.judge
