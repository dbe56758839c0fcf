"""The paper Soup to Go in small: its study on the small base, figure 1's on a small network, and
its claims held against what came out."""

from __future__ import annotations

from holdfast.papers.claims.reproduction import Script, Twin, Twins, size_changes
from holdfast.papers.digits.study import DigitsSettings, run_digits
from holdfast.papers.sfa.claims import DIGITS, READING, RECIPE, check_claims
from holdfast.papers.sfa.paper import PAPER
from holdfast.records.sequence import read_sequence
from holdfast.studies.engine.session import execute_study
from holdfast.studies.sequence.plan import SequenceConfig
from holdfast.studies.sequence.study import SequenceStudy

TWINS = Twins(
    paper=PAPER,
    studies={
        RECIPE: Twin(file="sequence/tasks-tiny.yaml", sizes=size_changes()[RECIPE]),
        DIGITS: Script(settings=DigitsSettings, run=run_digits, sizes=size_changes()[DIGITS]),
    },
    config=SequenceConfig.read,
    run=lambda config, **session: execute_study(SequenceStudy(config), **session),
    read=read_sequence,
    check=check_claims,
    reading=READING,
)
reproduce, judge = TWINS.reproduce, TWINS.judge
