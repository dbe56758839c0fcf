"""Plain records of runs, evaluations and comparisons: JSON on disk, no torch.

A run is a folder:

```
run.json                              RunRecord: what was asked, what it ran on, how it ended
metrics.jsonl                         one line a logged step
evaluations/start/<suite>.<name>.json           Evaluation of the bare starting model
evaluations/start/<suite>.<name>.samples.jsonl  its per-sample rows
evaluations/result/...                          the same of the tuned model
evaluations/comparisons.json          list of Comparison, start against result
checkpoint-<step>/                    resumable training state
report.html  README.md                what people read
```

Every write is atomic: a temporary file in the same folder, fsync, rename. A reader therefore sees the old content or the new, never half.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import DataError, StorageError

SCHEMA = 1


# ---------------------------------------------------------------------------------------------- writing and reading


def write_bytes_atomic(path: str | os.PathLike[str], content: bytes) -> Path:
    """Writes `content` so that `path` holds either its old content or all of the new.

    Raises:
        StorageError: the disk is full or the folder cannot be written; an earlier file at `path` is intact.
    """
    path = Path(path)
    name = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp", delete=False) as file:
            name = file.name
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except OSError as error:
        if name is not None and os.path.exists(name):
            os.unlink(name)
        raise StorageError(
            f"Could not write {path} ({error.strerror or error}). Free some space or choose another folder; nothing was lost."
        ) from error
    return path


def write_json(path: str | os.PathLike[str], value: Any) -> Path:
    """Writes a dataclass, mapping or list as indented JSON, atomically. NaN and infinities become strings that `read_json` gives back."""
    text = json.dumps(to_jsonable(value), indent=2, ensure_ascii=False, allow_nan=False)
    return write_bytes_atomic(path, (text + "\n").encode())


def write_jsonl(path: str | os.PathLike[str], rows: Iterable[Mapping[str, Any]]) -> Path:
    """Writes one JSON object a line, atomically."""
    lines = [json.dumps(to_jsonable(row), ensure_ascii=False, allow_nan=False) for row in rows]
    return write_bytes_atomic(path, "".join(line + "\n" for line in lines).encode())


def read_json(path: str | os.PathLike[str]) -> Any:
    """Reads what `write_json` wrote.

    Raises:
        DataError: no such file, or not JSON.
    """
    try:
        return _DECODER.decode(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"Expected a file at {path}, found none.") from None
    except ValueError as error:
        raise DataError(f"Expected JSON in {path}, but it cannot be parsed: {error}. Delete the file to have it made again.") from error


def read_jsonl(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Reads one object a line; a last line cut short by a crash is skipped, any other bad line raises `DataError`."""
    with open(path, encoding="utf-8") as file:
        lines = file.read().split("\n")
    with _collector_paused():
        rows = _parsed(lines, path)
    yield from rows


def _parsed(lines: Sequence[str], path: str | os.PathLike[str]) -> list[Any]:
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            rows.append(_DECODER.decode(line))
        except ValueError as error:
            if number == len(lines):  # no newline after it: the writer died in the middle of this line
                break
            raise DataError(f"{path}, line {number}: expected a JSON object, got {line[:80]!r} ({error}).") from error
    return rows


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """No search for cycles meanwhile: JSON has none, and looking for them in a million new rows takes a fifth of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def to_jsonable(value: Any) -> Any:
    """Dataclasses, paths, tuples, sets and numpy-like scalars as plain JSON values; non-finite floats as `{"float": "NaN"}`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_jsonable(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): to_jsonable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_jsonable(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted(to_jsonable(v) for v in value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if hasattr(value, "item"):
        return to_jsonable(value.item())
    return str(value)


def _finite_or_not(value: dict[str, Any]) -> Any:
    """`{"float": "NaN"}` and its two kin as the number, any other object as it is. The parser calls it for objects alone: nothing is walked twice."""
    if len(value) == 1 and isinstance(name := value.get("float"), str):
        return _NOT_FINITE.get(name, value)
    return value


_DECODER = json.JSONDecoder(object_hook=_finite_or_not)


def from_jsonable(value: Any) -> Any:
    """Plain JSON values with the numbers that are not finite given back, for what was stored elsewhere than in a file of `write_json`."""
    return _DECODER.decode(json.dumps(value))


def fingerprint(value: Any, *, length: int = 64) -> str:
    """SHA-256 (hex, first `length` characters) of a value's canonical JSON: equal settings, equal fingerprint."""
    text = json.dumps(to_jsonable(value), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:length]


# -------------------------------------------------------------------------------------------------------- records


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metric:
    """One figure of one evaluation.

    `interval` is the two-sided interval at `confidence` (bootstrap over samples), None where it cannot be had.
    """

    value: float
    n: int
    """Samples behind the figure: documents for text, questions for tasks."""
    unit: str
    """For example "nats/token", "bits/byte", "accuracy", "exact_match"."""
    higher_is_better: bool
    interval: tuple[float, float] | None = None
    confidence: float = 0.95


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One model on one entry of a suite. Per-sample rows lie beside it in `<suite>.<name>.samples.jsonl`.

    Every row has `doc`, the hash that comparisons join on. Probabilities are natural, log-likelihoods and entropies are in nats.

    - "perplexity": `{"doc", "nats": float, "tokens": int, "bytes": int}`; "memorisation" has `"exact"`, the tokens of them that were the most likely
      one, and `"entropy"`, summed over them, too.
    - "task": `{"doc", "prompt": hash, "<metric>": float, ..., "question": str}`, "task" for a group's subtask, and "<metric>#" where a question has
      several parts, of which "<metric>" were right. Multiple choice:
      `"choices": [str]`, `"loglikelihoods": [float]` a choice, `"gold": int or [int]`, `"answer": int`. Generation: `"gold": str`, `"output": str`.
    - "answers": `{"doc", "prompt", "question", "mass", "entropy", "option_entropy", "probabilities": [float], "gold", "answer", "acc": 0 or 1}`, the
      probabilities over the options alone, so that their sum is 1.
    - "classes": `{"doc", "nats": -log p(gold), "acc": 0 or 1, "probabilities": [float], "gold": int, "answer": int}`.
    - "choices": `{"doc", "prompt": hash, "question", "choices": [str], "loglikelihoods": [float] a choice, "probabilities": [float], "gold": int,
      "answer": int, "acc": 0 or 1, "nats": -log p(gold), "tokens": int}`, nats and tokens of the right option as a text, probabilities over the
      options alone, "task" where questions are grouped.
    - "instructions": `{"doc", "prompt": hash, "question", "gold": the instructions as text, "output": str, "instructions": [id],
      "followed_strict": [bool], "prompt_level_strict_acc": 0 or 1, "inst_level_strict_acc": instructions followed, "inst_level_strict_acc#": their
      number, ...}`, and the same with "loose" for "strict".
    - "code": `{"doc", "prompt", "question", "pass@1": float, ..., "n": int, "correct": int, "outputs": [str], "reasons": [str]}`.
    - "average": no rows; `settings["members"]` is a list of `{"suite", "name", "metric"}` whose mean it is.
    """

    suite: str
    """"source" (what must be kept) or "target" (what is learnt), or a name of the user's."""
    name: str
    kind: str
    """"perplexity", "memorisation", "task", "answers", "classes", "choices", "instructions", "code" or "average"."""
    primary: str
    """The metric that comparisons and plots lead with; a key of `metrics`."""
    metrics: dict[str, Metric]
    settings: dict[str, Any]
    model: dict[str, Any]
    """`{"name": ..., "hash": ...}`."""
    key: str
    """Fingerprint of (model hash, data hash, settings): equal key, nothing to compute again."""
    seconds: float = 0.0
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    schema: int = SCHEMA

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Evaluation:
        metrics = {k: Metric(**{**m, "interval": _pair(m.get("interval"))}) for k, m in value["metrics"].items()}
        return Evaluation(**{**value, "metrics": metrics})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """One metric of the start model against the result, paired sample by sample.

    `difference` is after - before in the metric's own unit; `gain` has the sign turned so that more is better.
    """

    suite: str
    name: str
    metric: str
    unit: str
    higher_is_better: bool
    n: int
    before: float
    after: float
    difference: float
    interval: tuple[float, float]
    """Paired bootstrap interval of `difference` at `confidence`."""
    p_value: float
    test: str
    """"McNemar (exact)" for right/wrong metrics, "paired bootstrap" otherwise."""
    primary: bool = True
    confidence: float = 0.95
    flips_lost: int | None = None
    """Samples right before and wrong after; None where the metric is not right/wrong."""
    flips_gained: int | None = None

    @property
    def gain(self) -> float:
        """The difference, signed so that positive is better."""
        return self.difference if self.higher_is_better else -self.difference

    @property
    def verdict(self) -> str:
        """ "gained" or "lost" when the interval excludes 0, else "within noise"."""
        low, high = self.interval
        if low <= 0.0 <= high or math.isnan(low):
            return "within noise"
        return "gained" if self.gain > 0 else "lost"

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Comparison:
        pair = _pair(value["interval"])
        assert pair is not None
        return Comparison(**{**value, "interval": pair})


@dataclasses.dataclass(kw_only=True)
class EvaluationRecord:
    """evaluate.json: what `holdfast evaluate` measured; every model's figures lie in the folder of its label (`EvaluationFolder`)."""

    models: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """`{"label", "name", "hash", "architecture", "parameters"}` in the order given; the first is the one that others are compared with."""
    suites: list[str] = dataclasses.field(default_factory=list)
    """Shipped suites by name, and the user's by file name."""
    plan: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What was measured, as resolved."""
    status: str = "running"
    """"running", "interrupted", "failed" or "finished"."""
    created: str = ""
    """ISO 8601, UTC."""
    finished: str | None = None
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    hardware: dict[str, Any] = dataclasses.field(default_factory=dict)
    schema: int = SCHEMA

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> EvaluationRecord:
        known = {f.name for f in dataclasses.fields(EvaluationRecord)}
        return EvaluationRecord(**{k: v for k, v in value.items() if k in known})


@dataclasses.dataclass(frozen=True, kw_only=True)
class GateOutcome:
    """What a rule such as "mmlu drop > 1pt" says of one comparison."""

    rule: str
    """As the user wrote it."""
    suite: str
    name: str
    metric: str
    outcome: str
    """"failed": the whole interval lies beyond the threshold. "passed": the whole interval lies within it. "undecided": the threshold lies inside."""
    value: float
    """The change that the rule speaks of, signed so that the rule's direction is positive, in the rule's unit."""
    interval: tuple[float, float]
    """Of `value`, at the comparison's confidence."""
    threshold: float
    unit: str
    """"pt" (hundredths of a share), "%" of the value before, or the metric's own."""
    reason: str
    """One sentence for people."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageMatrix:
    """Scores of every task after every stage of sequential training, and what they say of forgetting (GEM 2017; Chaudhry et al. 2018)."""

    tasks: list[str]
    """In the order of training, one a stage after the start; a task of None (no stage of its own) is not among them."""
    stages: list[str]
    """Labels of the start and of the model after each stage; `len(tasks) + 1` of them."""
    scores: list[list[float]]
    """`scores[l][i]`: task i after stage l, l = 0 being the start; higher is better."""
    measures: dict[str, Metric]
    """"average_accuracy", "backward_transfer", "forgetting", "forward_transfer", each with its interval."""
    unit: str = ""


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
    """The last stage entered: prepare, evaluate start, train, save, evaluate result, report, done."""
    error: str | None = None
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    """As resolved: defaults, YAML and command line together, secrets left out."""
    config_key: str = ""
    """Fingerprint of what decides the trained weights; another key in the same folder is another run."""
    retention: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """One `{"method": name, **parameters}` a method; empty for direct fine-tuning."""
    model: dict[str, Any] = dataclasses.field(default_factory=dict)
    """`{"name", "hash", "architecture", "parameters", "trainable", "vocabulary"}`."""
    data: dict[str, Any] = dataclasses.field(default_factory=dict)
    """`{"name", "hash", "examples", "tokens", "trained_tokens", "replay_examples", "packed", "format"}`."""
    parents: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    seed: int = 0
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    hardware: dict[str, Any] = dataclasses.field(default_factory=dict)
    created: str = ""
    """ISO 8601, UTC."""
    finished: str | None = None
    training: dict[str, Any] = dataclasses.field(default_factory=dict)
    """`{"steps", "tokens", "seconds", "tokens_per_second", "sessions", "final": {last logged metrics}, "stages": {name: seconds}, "saved",
    "evaluated"}`:
    `saved` says that the final weights are on disk, `evaluated` is the fingerprint of the evaluation plan that was run."""
    distance: list[LayerDistance] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    """What the run wants its reader to know: fallbacks taken, samples truncated, figures that could not be had."""
    schema: int = SCHEMA

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> RunRecord:
        known = {f.name for f in dataclasses.fields(RunRecord)}
        fields = {k: v for k, v in value.items() if k in known}
        fields["distance"] = [LayerDistance(**d) for d in value.get("distance", [])]
        return RunRecord(**fields)


def _pair(value: Any) -> tuple[float, float] | None:
    return None if value is None else (float(value[0]), float(value[1]))


class EvaluationFolder:
    """What was measured of one model: `<suite>.<name>.json`, each with its `<suite>.<name>.samples.jsonl`. Holds no state but the path."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def write(self, evaluation: Evaluation, samples: Iterable[Mapping[str, Any]]) -> Path:
        """Writes samples first and the evaluation last, so that an evaluation file implies its samples."""
        write_jsonl(self._stem(evaluation.suite, evaluation.name, ".samples.jsonl"), samples)
        return write_json(self._stem(evaluation.suite, evaluation.name, ".json"), evaluation)

    def find(self, suite: str, name: str) -> Evaluation | None:
        """The evaluation of one entry, None where it is not there (yet)."""
        path = self._stem(suite, name, ".json")
        return Evaluation.from_json(read_json(path)) if path.is_file() else None

    def samples(self, suite: str, name: str) -> list[dict[str, Any]]:
        """Per-sample rows, see `Evaluation`."""
        return list(read_jsonl(self._stem(suite, name, ".samples.jsonl")))

    def files(self) -> list[Path]:
        """The evaluation files by name; empty for a folder that is not there."""
        return sorted(p for p in self.path.glob("*.*.json") if not p.name.startswith("."))

    def all(self) -> list[Evaluation]:
        """Every evaluation, by file name.

        Raises:
            DataError: a file that cannot be read.
        """
        return [Evaluation.from_json(read_json(path)) for path in self.files()]

    def _stem(self, suite: str, name: str, suffix: str) -> Path:
        return self.path / f"{_safe(suite)}.{_safe(name)}{suffix}"


class RunFolder:
    """Reads and writes the files of one run (see the module docstring). Cheap to create; holds no state but the path."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

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
        return RunRecord.from_json(read_json(self.run_file))

    def write(self, record: RunRecord) -> None:
        write_json(self.run_file, record)

    def metrics(self) -> list[dict[str, Any]]:
        """Logged steps in order; empty when nothing was logged yet."""
        return list(read_jsonl(self.metrics_file)) if self.metrics_file.is_file() else []

    def evaluated(self, which: str) -> EvaluationFolder:
        """What was measured of one of the run's two models: "start" or "result"."""
        return EvaluationFolder(self.evaluations / which)

    def write_comparisons(self, comparisons: Iterable[Comparison]) -> Path:
        return write_json(self.evaluations / "comparisons.json", list(comparisons))

    def comparisons(self) -> list[Comparison]:
        path = self.evaluations / "comparisons.json"
        return [Comparison.from_json(c) for c in read_json(path)] if path.is_file() else []


def _safe(name: str) -> str:
    """A file-name-safe form of a task or text name; distinct names stay distinct."""
    clean = "".join(c if c.isalnum() or c in "-_" else "-" for c in name)
    return clean if clean == name else f"{clean}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
