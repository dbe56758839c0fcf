"""A run as a folder of plain files; JSON on disk, no torch.

```
run.json                              RunRecord: what was asked, what it ran on, how it ended
inputs.json                           what the settings name, with hashes (see `support.inputs`)
metrics.jsonl                         one line a logged step
evaluations/start/<suite>.<name>.json           Evaluation of the bare starting model
evaluations/start/<suite>.<name>.samples.jsonl  its per-sample rows
evaluations/result/...                          the same of the tuned model
evaluations/comparisons.json          list of Comparison, start against result
along/step-<n>/...                    Evaluations after n steps, where the plan asks for them
checkpoint-<step>/                    resumable training state
report.html  README.md                what people read
```
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from holdfast.records.comparison import Comparison
from holdfast.records.evaluation import SCHEMA, EvaluationFolder
from holdfast.support.display import Displayed
from holdfast.support.files import read_as, read_jsonl, record_from, write_json


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerDistance:
    """How far one layer moved from the start. L2 norms over all its parameters, in float32."""

    layer: str
    """"embed", "0", "1", ..., "head", "norm" or "other"."""
    parameters: int
    l2: float
    relative: float
    """`l2` over the L2 norm of the start's layer (infinite where that is 0 and the layer moved)."""
    cosine: float = math.nan
    """Cosine between the start's and the result's parameters of the layer."""
    sign_agreement: float = math.nan
    """Share of parameters whose sign (-1, 0 or 1) is the same in both."""


@dataclasses.dataclass(kw_only=True)
class RunRecord:
    """run.json: everything needed to say what a run was, to repeat it and to continue it."""

    name: str
    command: str = "train"
    status: str = "running"
    """"running", "interrupted", "failed" or "finished"."""
    stage: str = "prepare"
    """The last stage entered: prepare, evaluate start, train, save, evaluate along, evaluate
    result, report, done."""
    error: str | None = None
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    """As resolved: defaults, YAML and command line together, secrets left out."""
    config_key: str = ""
    """Fingerprint of what decides the trained weights; another key in the same folder is another
    run."""
    retention: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """One `{"method": name, **parameters}` a method; empty for direct fine-tuning."""
    model: dict[str, Any] = dataclasses.field(default_factory=dict)
    """`{"name", "hash", "architecture", "parameters", "trainable", "vocabulary"}`, and "origin"
    where something has to be said of the weights, such as "dequantised from 4 bits (Q4_1)"."""
    data: dict[str, Any] = dataclasses.field(default_factory=dict)
    """`{"name", "hash", "examples", "tokens", "trained_tokens", "untrained_examples", "packed",
    "format",
    "not_read"}`: examples and tokens are those that are trained on, a pass over the data;
    "untrained_examples" are left out, as nothing that is to be learnt is left of them; "not_read"
    has the columns and keys of messages that have values and are not read, with the number of rows
    or messages (null where rows are streamed)."""
    parents: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    seed: int = 0
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    hardware: dict[str, Any] = dataclasses.field(default_factory=dict)
    created: str = ""
    """ISO 8601, UTC."""
    finished: str | None = None
    training: dict[str, Any] = dataclasses.field(default_factory=dict)
    """`{"steps", "tokens", "seconds", "tokens_per_second", "sessions", "final": {last logged
    metrics}, "stages": {name: seconds}, "result_step", "saved",
    "evaluated"}`: `result_step` is the step whose checkpoint is the result, where one was chosen,
    `saved` says that the final weights are on disk, `evaluated` is the fingerprint of the
    evaluation plan that was run."""
    distance: list[LayerDistance] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    """What the run wants its reader to know: fallbacks taken, samples truncated, figures that could
    not be had. Those on what is measured begin with suite/name of the entry."""
    schema: int = SCHEMA

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> RunRecord:
        return record_from(RunRecord, value)


class RunFolder(Displayed):
    """Reads and writes the files of one run (see the module docstring). Cheap to create; holds no
    state but the path."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    @property
    def run_file(self) -> Path:
        return self.path / "run.json"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def evaluations(self) -> Path:
        return self.path / "evaluations"

    @property
    def report_file(self) -> Path:
        return self.path / "report.html"

    def exists(self) -> bool:
        """True when a run was started here."""
        return self.run_file.is_file()

    def read(self) -> RunRecord:
        """The record.

        Raises:
            DataError: it is not there, or cannot be read.
        """
        return read_as(self.run_file, RunRecord)

    def write(self, record: RunRecord) -> None:
        write_json(self.run_file, record)

    def metrics(self) -> list[dict[str, Any]]:
        """Logged steps in order; empty when nothing was logged yet."""
        return list(read_jsonl(self.metrics_file)) if self.metrics_file.is_file() else []

    def evaluated(self, which: str) -> EvaluationFolder:
        """What was measured of one of the run's two models: "start" or "result"."""
        return EvaluationFolder(self.evaluations / which)

    @property
    def along(self) -> Path:
        """Folder of what was measured while the model was trained; not there where nothing was."""
        return self.path / "along"

    def trajectory(self) -> list[tuple[int, EvaluationFolder]]:
        """(optimiser steps, what was measured then): the start, the steps on the way, and the end
        where it is known; entries may be missing of each.

        Raises:
            DataError: `run.json` is not there, or cannot be read.
        """
        points = {0: self.evaluated("start")}
        for folder in self.along.glob("step-*"):
            points[int(folder.name.removeprefix("step-"))] = EvaluationFolder(folder)
        training = self.read().training
        end = int(training.get("result_step") or training.get("steps") or 0)
        result = self.evaluated("result")
        if end and (end not in points or result.files()):
            points[end] = result
        return sorted(points.items(), key=lambda point: point[0])

    def write_comparisons(self, comparisons: Iterable[Comparison]) -> Path:
        return write_json(self.evaluations / "comparisons.json", list(comparisons))

    def comparisons(self) -> list[Comparison]:
        """Start against result, metric by metric; empty where nothing was compared.

        Raises:
            DataError: they cannot be read.
        """
        path = self.evaluations / "comparisons.json"
        return read_as(path, list[Comparison]) if path.is_file() else []


def planned_steps(settings: Mapping[str, Any], logged: Mapping[str, Any] | None) -> float | None:
    """Optimiser steps that a run means to take; None where neither its settings nor its log say.

    Args:
        settings: its training configuration.
        logged: a row of its log, which tells how many steps an epoch has.
    """
    steps = float(settings.get("max_steps") or 0)
    if steps > 0:
        return steps
    step, epoch = ((logged or {}).get(key) for key in ("step", "epoch"))
    return float(settings.get("num_train_epochs") or 3) * step / epoch if step and epoch else None
