"""The paper Soup to Go in small: its studies on the small base, figure 1's on a small network, and
its claims held against what came out."""

from __future__ import annotations

from holdfast.papers.claims.reproduction import Script, Twin, Twins, size_changes
from holdfast.papers.digits.study import DigitsSettings, run_digits
from holdfast.papers.sfa.claims import CLASSES, FIGURE_1, IN_A_ROW, READING, RECIPE, check_claims
from holdfast.papers.sfa.paper import PAPER
from holdfast.records.sequence import read_sequence
from holdfast.studies.engine.session import execute_study
from holdfast.studies.sequence.plan import SequenceConfig
from holdfast.studies.sequence.study import SequenceStudy

SIZES = size_changes("sfa")
TWINS = Twins(
    paper=PAPER,
    studies={
        RECIPE: Twin(file="sequence/tasks-tiny.yaml", sizes=SIZES[RECIPE]),
        IN_A_ROW: Twin(file="sequence/three-tasks-tiny.yaml", sizes=SIZES[IN_A_ROW]),
        FIGURE_1: Script(settings=DigitsSettings, run=run_digits, sizes=SIZES[FIGURE_1]),
        CLASSES: Script(
            settings=DigitsSettings.class_incremental, run=run_digits, sizes=SIZES[CLASSES]
        ),
    },
    config=SequenceConfig.read,
    run=lambda config, **session: execute_study(SequenceStudy(config), **session),
    read=read_sequence,
    check=check_claims,
    reading=READING,
)
reproduce, judge = TWINS.reproduce, TWINS.judge
