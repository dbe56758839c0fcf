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
    """How far training moved one layer from the initial model. L2 norms are over all parameters of
    the layer, in float32."""

    layer: str
    """"embed", "0", "1", ..., "head", "norm" or "other"."""
    parameters: int
    l2: float
    relative: float
    """`l2` divided by the L2 norm of the initial layer (infinite if that norm is 0 and the layer
    moved)."""
    cosine: float = math.nan
    """Cosine between the initial and the final parameters of the layer."""
    sign_agreement: float = math.nan
    """Share of parameters with the same sign (-1, 0 or 1) before and after."""


@dataclasses.dataclass(kw_only=True)
class RunRecord:
    """The content of run.json: what describes a run, and what is needed to repeat or continue
    it."""

    name: str
    command: str = "train"
    status: str = "running"
    """"running", "interrupted", "failed" or "finished"."""
    stage: str = "prepare"
    """The stage that the run entered last: prepare, evaluate start, train, save, evaluate along,
    evaluate result, report, done."""
    error: str | None = None
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    """The resolved configuration: defaults, YAML and command line together, without secrets."""
    config_key: str = ""
    """Fingerprint of the settings that decide the trained weights. A different key in the same
    folder is a different run."""
    retention: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """One `{"method": name, **parameters}` for each method; empty for direct fine-tuning."""
    model: dict[str, Any] = dataclasses.field(default_factory=dict)
    """`{"name", "hash", "architecture", "parameters", "trainable", "vocabulary"}`, and "origin" if
    readers should know where the weights come from, such as "dequantised from 4 bits (Q4_1)"."""
    data: dict[str, Any] = dataclasses.field(default_factory=dict)
    """`{"name", "hash", "examples", "tokens", "trained_tokens", "untrained_examples", "packed",
    "format", "not_read"}`. "examples" and "tokens" count what one pass over the data trains on.
    "untrained_examples" counts the examples that are left out because they have no token to learn.
    "not_read" has the columns and message keys that have values but are not read, with the number
    of rows or messages (null if rows are streamed)."""
    parents: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    seed: int = 0
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    hardware: dict[str, Any] = dataclasses.field(default_factory=dict)
    created: str = ""
    """ISO 8601, UTC."""
    finished: str | None = None
    training: dict[str, Any] = dataclasses.field(default_factory=dict)
    """`{"steps", "tokens", "seconds", "tokens_per_second", "sessions", "final": {last logged
    metrics}, "stages": {name: seconds}, "result_step", "saved", "evaluated"}`. `result_step` is the
    step whose checkpoint is the result, if one was chosen. `saved` says that the final weights are
    on disk. `evaluated` is the fingerprint of the evaluation plan that was run."""
    distance: list[LayerDistance] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    """Notes for the reader: fallbacks, truncated samples, missing figures. Notes about a
    measurement begin with suite/name of the entry."""
    schema: int = SCHEMA

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> RunRecord:
        return record_from(RunRecord, value)


class RunFolder(Displayed):
    """Reads and writes the files of one run (see the module docstring). It holds only the path."""

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
        """Whether a run was started in this folder."""
        return self.run_file.is_file()

    def read(self) -> RunRecord:
        """The content of run.json.

        Raises:
            DataError: the file is missing or cannot be read.
        """
        return read_as(self.run_file, RunRecord)

    def write(self, record: RunRecord) -> None:
        write_json(self.run_file, record)

    def metrics(self) -> list[dict[str, Any]]:
        """The logged steps in order; empty if nothing was logged yet."""
        return list(read_jsonl(self.metrics_file)) if self.metrics_file.is_file() else []

    def evaluated(self, which: str) -> EvaluationFolder:
        """The evaluations of one of the run's two models: "start" or "result"."""
        return EvaluationFolder(self.evaluations / which)

    @property
    def along(self) -> Path:
        """The folder of evaluations during training. It does not exist if there were none."""
        return self.path / "along"

    def trajectory(self) -> list[tuple[int, EvaluationFolder]]:
        """Pairs of (optimiser steps, evaluations at that step): the initial model, the evaluated
        steps of training, and the end if it is known. Each folder may lack entries.

        Raises:
            DataError: `run.json` is missing or cannot be read.
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
        """The comparisons of the initial model with the result, metric by metric; empty if there
        are none.

        Raises:
            DataError: the file cannot be read.
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
