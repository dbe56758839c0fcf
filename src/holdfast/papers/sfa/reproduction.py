"""The paper Soup to Go in small: its study on the small base, figure 1's on a small network, and its claims held
against what came out."""

from __future__ import annotations

from typing import Any

from holdfast.papers.claims.reproduction import Script, Twin, Twins
from holdfast.papers.digits.study import DigitsSettings, run_digits
from holdfast.papers.sfa.claims import DIGITS, READING, RECIPE, check_claims
from holdfast.papers.sfa.paper import PAPER
from holdfast.records.sequence import SequenceRecord, read_sequence
from holdfast.studies.sequence.plan import sequence_config
from holdfast.studies.sequence.study import run_sequence

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
SIZES: dict[str, dict[str, dict[str, Any]]] = {
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
        "quick": {"epochs": 1, "arms": ["single", {"sfa": {"p": [1, 0.5]}}], "seeds": [0, 1]},
        "look": {},
        "thorough": {"seeds": [0, 1, 2, 3, 4]},
    },
}
"""By study and size: what differs from the study file, or from the script's settings; chosen for the time it takes,
before any arm was run."""


def _summary(record: SequenceRecord | None) -> dict[str, Any]:
    return {
        "seeds": [] if record is None else record.seeds,
        "trials": 0 if record is None else sum(m.state == "complete" for m in record.models),
        "target": "the last task",
        "source": "the tasks before",
    }


TWINS = Twins(
    paper=PAPER,
    studies={
        RECIPE: Twin(file="sequence/tasks-tiny.yaml", sizes=SIZES[RECIPE]),
        DIGITS: Script(settings=DigitsSettings, run=run_digits, sizes=SIZES[DIGITS]),
    },
    config=sequence_config,
    run=run_sequence,
    read=read_sequence,
    summary=_summary,
    check=check_claims,
    reading=READING,
)
reproduce = TWINS.reproduce
