"""`holdfast compare`: two evaluated models side by side, as a table, a page, a pull request's comment, and as a gate
that a build can fail on."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from holdfast.cli.checkpoint_options import print_json, stderr_console, stdout_console, stoppable
from holdfast.config.command_line import Command
from holdfast.config.declare import Meta
from holdfast.config.values import Mistake
from holdfast.config.yaml_file import nearest_sibling
from holdfast.errors import ConfigError, DataError, HoldfastError, did_you_mean
from holdfast.records.evaluation import EvaluationFolder, EvaluationRecord
from holdfast.records.run import RunFolder
from holdfast.support.files import read_json

if TYPE_CHECKING:
    from holdfast.evaluation.compare.folders import Compared, Matching
    from holdfast.evaluation.compare.gate import Aim, Rule
    from holdfast.records.comparison import Comparison, GateOutcome, StageMatrix
    from holdfast.records.evaluation import Evaluation

DESCRIPTION = """\
What changed between two models, paired question by question, and is it too much? Joins what both were measured on, and
prints differences with intervals and tests. Entries that were not measured alike are named and never compared.

A and B are each
  a run folder                its result; RUN:start is the model before training. One run folder alone: start against result
  OUT:label, OUT/label        a model of 'holdfast evaluate ... --output_dir OUT'. OUT alone, with two models: both

Exit code 0: done; 3: a rule of --fail_if failed; 2: the request has to change.
"""
EPILOG = """\
rules, as in --fail_if 'mmlu drop > 1pt'
  SUBJECT   an entry, a suite, suite/name, or any; a metric may follow, else the one that leads: 'prose perplexity rise > 3%'
  CHANGE    drop and gain are worse and better, whatever the metric's direction; rise and fall are the number itself
  > < >= <= NUMBER, in pt (hundredths of a share such as accuracy), % (of the value before), or the metric's own unit
A rule is judged on the interval of the change: it fails only where the whole interval is beyond the threshold, passes
where none of it is, and is undecided otherwise. Undecided passes; under --strict it fails, so that passing means shown
to be no worse than the threshold. With 'any' many tests are made, and nothing corrects for their number.

examples
  holdfast compare runs/direct                                              # start against result
  holdfast compare runs/direct runs/label-annealing --metrics all
  holdfast compare evaluated:base evaluated:tuned --html comparison.html
  holdfast compare runs/tuned --fail_if 'any drop > 2%' --fail_if 'target gain < 2pt' --markdown comment.md --junit gate.xml
  holdfast compare base-run:start runs/math runs/law --stages math=gsm8k law=casehold    # sequential training
"""
FILES = {"html": "comparison.html", "markdown": "comparison.md", "junit": "comparison.xml", "json": "comparison.json"}
"""Option: its file in --output_dir."""
GATE_FAILED = 3


def _stage(word: str) -> tuple[str, str]:
    label, equals, task = (part.strip() for part in word.partition("="))
    if not label or (equals and not task):
        raise ValueError("expected LABEL=TASK, as in math=gsm8k.")
    return label, task or label


def _stages(value: Any) -> tuple[tuple[str, str], ...]:
    """(label, task) of each word, where a YAML gives words and a command line pairs."""
    words = value if isinstance(value, (list, tuple)) else [value]
    if not all(isinstance(word, (str, tuple)) for word in words):
        raise ValueError("a list of tasks, or LABEL=TASK")
    try:
        return tuple(_stage(word) if isinstance(word, str) else word for word in words)
    except ValueError as error:
        raise ValueError(f"tasks, each as TASK or LABEL=TASK ({error})") from None


@dataclass(frozen=True, kw_only=True)
class _Compared:
    models: Annotated[tuple[str, ...], Meta(positional=True, metavar="A B")] = ()
    """Run folders, or models of 'holdfast evaluate'; see above."""
    fail_if: Annotated[tuple[str, ...], Meta(repeatable=True, one_word=True, metavar="RULE")] = ()
    """Exits with 3 where the rule holds; may be given several times."""
    strict: bool = False
    """Rules that the interval leaves undecided fail too."""
    metrics: Literal["primary", "all"] = "primary"
    """The metric that leads each entry, or all."""
    confidence: Annotated[float, Meta(gt=0, lt=1, metavar="LEVEL")] = 0.95
    """Level of all intervals."""
    resamples: Annotated[int, Meta(ge=100)] = 4000
    """Bootstrap draws."""
    seed: Annotated[int, Meta(ge=0)] = 0
    """Of the draws."""
    stages: Annotated[
        tuple[tuple[str, str], ...],
        Meta(
            repeatable=True,
            metavar="LABEL=TASK",
            parse_word=_stage,
            parse=_stages,
            json_schema=lambda: {"type": "array", "items": {"type": "string"}},
        ),
    ] = ()
    """The task that each model after the first was trained on, in order: forgetting and transfer."""


@dataclass(frozen=True, kw_only=True)
class CompareRequest(_Compared):
    """`holdfast compare`."""

    settings_group: ClassVar[str] = "output; in place of a file, - writes Markdown or JSON to stdout"

    output_dir: Annotated[Path | None, Meta(metavar="FOLDER")] = None
    """All of it: comparison.html, comparison.md, comparison.xml, comparison.json."""
    html: Annotated[str | None, Meta(metavar="FILE.html")] = None
    """A page with plots and the questions that flipped."""
    markdown: Annotated[str | None, Meta(metavar="FILE.md|-")] = None
    """A table that fits a pull request's comment."""
    junit: Annotated[str | None, Meta(metavar="FILE.xml")] = None
    """Rules as test cases, for a build server."""
    json: Annotated[str | None, Meta(metavar="FILE|-")] = None
    """Everything, for programs."""

    @property
    def files(self) -> dict[str, str]:
        """Where "html", "markdown", "junit" and "json" go; "-" is stdout."""
        whole = {kind: str(self.output_dir / name) for kind, name in FILES.items()} if self.output_dir else {}
        return whole | {kind: target for kind in FILES if (target := getattr(self, kind)) is not None}

    def problems(self) -> list[Mistake]:
        """Files that cannot be, rules that cannot be read, and words that name no models."""
        found = []
        files = self.files
        if files.get("html", ".html").rpartition(".")[2] not in ("html", "htm"):
            text = f"expected a file that ends with .html, got {files['html']}."
            found.append(Mistake(path=("html",), text=text))
        if files.get("junit") == "-":
            found.append(Mistake(path=("junit",), text="expected a file, got -."))
        if files.get("json") == files.get("markdown") == "-":
            found.append(Mistake(path=("json",), text="only one of --json and --markdown can go to stdout."))
        if self.strict and not self.fail_if:
            text = "says how undecided rules count, but there is no rule: add --fail_if 'any drop > 2%' or the like."
            found.append(Mistake(path=("strict",), text=text))
        return [*found, *self._rules[1], *self._sides[1]]

    @property
    def sides(self) -> list[Side]:
        """The models that the words name."""
        return self._sides[0]

    @functools.cached_property
    def _sides(self) -> tuple[list[Side], list[Mistake]]:
        found: list[Side] = []
        problems: list[str] = []
        for word in self.models:
            try:
                found += find_models(word, alone=len(self.models) == 1)
            except HoldfastError as error:
                problems.append(str(error))
        wanted = len(self.stages) + 1 if self.stages else 2
        if len(found) != wanted and not problems:
            got = f"got {len(found)}{': ' + ', '.join(s.label for s in found) if found else ''}"
            if self.stages:
                problems.append(
                    f"--stages names {len(self.stages)} tasks, so expected {wanted} models (the start, and one after "
                    f"each stage), {got}"
                )
            else:
                many = len(found) > 2
                more = ". For a sequence of trainings add --stages; else name two" if many else _EXAMPLE
                listed = ", ".join(f"{self.models[0]}:{s.label}" for s in found) if self.models else ""
                listed = f": {listed}" if many and len(self.models) == 1 else ""
                problems.append(f"expected two models, {got}{more}{listed}")
        return _distinct(found, self.models), [Mistake(path=("models",), text=text) for text in problems]

    @property
    def rules(self) -> list[Rule]:
        """The rules of `--fail_if`."""
        return self._rules[0]

    @functools.cached_property
    def _rules(self) -> tuple[list[Rule], list[Mistake]]:
        from holdfast.evaluation.compare.gate import parse_rules

        try:
            return parse_rules(self.fail_if), []
        except ConfigError as error:
            return [], [Mistake(path=("fail_if",), text=problem) for problem in error.problems]


_EXAMPLE = ", as in 'holdfast compare A B'"

COMMAND = Command(
    name="holdfast compare", request=CompareRequest, description=DESCRIPTION, epilog=EPILOG, usage="A B [options]"
)


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast compare --help`."""
    import time

    began = time.monotonic()
    request = COMMAND.read(argv)
    sides = request.sides

    from holdfast.evaluation.compare.gate import is_failed, judge, many_tests

    matching, aims, tasks = _prepare(request)
    with stoppable():
        compared = _compare(matching, request)
        gates = judge(aims, compared)
        matrix = _matrix(tasks, request)
    if not compared.comparisons and matrix is None:
        raise DataError("\n".join(["Nothing can be compared:", *(f"  - {u}" for u in compared.unmatched)]))
    judged = {(g.suite, g.name, g.metric) for g in gates}
    found = _Found(
        sides=sides,
        comparisons=[
            c
            for c in compared.comparisons
            if c.primary or request.metrics == "all" or (c.suite, c.name, c.metric) in judged
        ],
        gates=gates,
        matrix=matrix,
        unmatched=[str(u) for u in compared.unmatched],
        notes=[
            *(n for s in sides for n in s.notes),
            *compared.notes,
            *filter(None, [many_tests(gates, confidence=request.confidence)]),
        ],
        failed=is_failed(gates, strict=request.strict),
    )
    _write(found, request, seconds=time.monotonic() - began)
    return GATE_FAILED if found.failed else 0


# ----------------------------------------------------------------------------------------------------------- the models


@dataclass(frozen=True, kw_only=True)
class Side:
    """One evaluated model."""

    folder: EvaluationFolder
    label: str
    notes: tuple[str, ...] = ()
    """What a reader should know of it, such as an evaluation that was interrupted."""


def _distinct(sides: list[Side], words: Sequence[str]) -> list[Side]:
    """Labels that tell the models apart: the words of the command where the labels do not."""
    labels = [s.label for s in sides]
    if len(set(labels)) == len(labels) or len(words) != len(sides):
        return sides
    return [Side(folder=s.folder, label=word.rstrip("/"), notes=s.notes) for s, word in zip(sides, words, strict=True)]


def find_models(word: str, *, alone: bool) -> list[Side]:
    """The evaluated models that a word of the command line names.

    Args:
        word: see `holdfast compare --help`.
        alone: whether it is the only word: a run is its start and its result then, and an output folder all its models.

    Raises:
        ConfigError: there is nothing of the kind; says what is there.
        DataError: a record that cannot be read.
    """
    path, label = Path(word).expanduser(), ""
    if not path.exists() and ":" in word:
        before, _, label = word.rpartition(":")
        path = Path(before).expanduser()
    if path.name in ("run.json", "evaluate.json"):
        path = path.parent
    if not path.is_dir():
        raise ConfigError(_no_such(word, path))
    if RunFolder(path).exists():
        return _of_run(path, label, alone=alone)
    if (path / "evaluate.json").is_file():
        return _of_output(path, label, alone=alone)
    folder = EvaluationFolder(path)
    if label or not folder.files():
        inside = sorted(p.name for p in path.iterdir() if p.is_dir() and _is_evaluated(p))
        listed = f" Inside are: {', '.join(str(path / name) for name in inside[:10])}." if inside else ""
        raise ConfigError(
            f"expected a run (run.json), or what 'holdfast evaluate' wrote (evaluate.json), in {path}, found "
            f"neither.{listed}"
        )
    return [Side(folder=folder, label=path.name)]


def _is_evaluated(path: Path) -> bool:
    return RunFolder(path).exists() or (path / "evaluate.json").is_file() or bool(EvaluationFolder(path).files())


def _no_such(word: str, path: Path) -> str:
    if path.exists():
        return f"expected a folder, got the file {path}"
    return f"no such folder: {word}.{nearest_sibling(path, accept=Path.is_dir)}"


def _of_run(path: Path, label: str, *, alone: bool) -> list[Side]:
    run = RunFolder(path)
    if label not in ("", "start", "result"):
        raise ConfigError(f"{path} is a run, which has {path}:start and {path}:result; got ':{label}'")
    record = run.read()
    notes = () if record.status == "finished" else (f"{path}: the run is {record.status}, not finished.",)
    names = ("start", "result") if alone and not label else (label or "result",)
    missing = [name for name in names if not run.evaluated(name).files()]
    if missing:
        advice = "Train with `evaluation:` entries, and without `before: false` for the start."
        raise ConfigError(f"{path}: nothing was measured of the run's {' and '.join(missing)} model. {advice}")
    shown = (
        {"start": f"{record.name}:start", "result": record.name}
        if len(names) == 1
        else {"start": "start", "result": record.name}
    )
    return [
        Side(folder=run.evaluated(name), label=shown[name], notes=notes if i == 0 else ())
        for i, name in enumerate(names)
    ]


def _of_output(path: Path, label: str, *, alone: bool) -> list[Side]:
    value = read_json(path / "evaluate.json")
    record = EvaluationRecord.from_json(value if isinstance(value, dict) else {})
    labels = [str(m.get("label")) for m in record.models]
    listed = ", ".join(f"{path}:{name}" for name in labels)
    if label and label not in labels:
        near = did_you_mean(label, labels)
        raise ConfigError(f"{path} has no model '{label}'.{near} It has: {listed or 'none'}")
    chosen = [label] if label else labels
    if not label and not alone and len(labels) != 1:
        raise ConfigError(
            f"{path} holds {len(labels)} models: name the one to compare, {listed or 'once there is one'}"
        )
    empty = [name for name in chosen if not EvaluationFolder(path / name).files()]
    if empty:
        raise ConfigError(
            f"{path}: nothing was measured of {' and '.join(empty)} (the evaluation is {record.status}). The same "
            f"command continues it."
        )
    notes = () if record.status == "finished" else (f"{path}: the evaluation is {record.status}, not finished.",)
    return [
        Side(folder=EvaluationFolder(path / name), label=name, notes=notes if i == 0 else ())
        for i, name in enumerate(chosen)
    ]


# ------------------------------------------------------------------------------------------------------------- the work


@dataclass(frozen=True, kw_only=True)
class _Found:
    sides: list[Side]
    comparisons: list[Comparison]
    gates: list[GateOutcome]
    matrix: StageMatrix | None
    unmatched: list[str]
    notes: list[str]
    failed: bool

    @property
    def labels(self) -> tuple[str, str]:
        return self.sides[0].label, self.sides[-1].label


def _prepare(request: CompareRequest) -> tuple[Matching, list[Aim], list[tuple[str | None, str]]]:
    """Everything that can be wrong and is known before samples are read, all at once."""
    from holdfast.evaluation.compare.continual import find_tasks
    from holdfast.evaluation.compare.folders import match_entries, read_evaluations
    from holdfast.evaluation.compare.gate import bind_rules

    evaluations: list[list[Evaluation]] = []
    aims: list[Aim] = []
    problems: list[str] = []
    for side in (request.sides[0], request.sides[-1]):
        with _collected(problems):
            evaluations.append(read_evaluations(side.folder))
    if problems:
        raise ConfigError(problems)
    matching = match_entries(*evaluations)
    with _collected(problems, "--fail_if: "):
        aims = bind_rules(request.rules, matching)
    tasks = [_task(task, evaluations[0]) for _, task in request.stages]
    with _collected(problems, "--stages: "):
        find_tasks(evaluations[0], tasks)
    if problems:
        raise ConfigError(problems)
    return matching, aims, tasks


@contextlib.contextmanager
def _collected(problems: list[str], option: str = "") -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        problems += [f"{option}{problem}" for problem in error.problems]
    except DataError as error:
        problems.append(str(error))


def _task(word: str, start: Sequence[Evaluation]) -> tuple[str | None, str]:
    """A task as suite and name; the slash may be a name's own."""
    suite, slash, name = word.partition("/")
    return (suite, name) if slash and not any(e.name == word for e in start) else (None, word)


def _compare(matching: Matching, request: CompareRequest) -> Compared:
    from holdfast.evaluation.compare.folders import compare_entries
    from holdfast.support.progress import progress

    with progress("Comparing", total=len(matching.pairs)) as advance:
        return compare_entries(
            request.sides[0].folder,
            request.sides[-1].folder,
            matching,
            confidence=request.confidence,
            resamples=request.resamples,
            seed=request.seed,
            progress=lambda done, total: advance(1),
        )


def _matrix(tasks: Sequence[tuple[str | None, str]], request: CompareRequest) -> StageMatrix | None:
    if not request.stages:
        return None
    from holdfast.evaluation.compare.continual import stage_matrix

    stages = [request.sides[0].label, *(label for label, _ in request.stages)]
    folders = [s.folder for s in request.sides]
    return stage_matrix(
        folders, tasks, stages, confidence=request.confidence, resamples=request.resamples, seed=request.seed
    )


# ----------------------------------------------------------------------------------------------------------- the output


def _write(found: _Found, request: CompareRequest, *, seconds: float) -> None:
    """Files first, then the terminal: whoever reads the last line can open what it names."""
    from holdfast.reports.comparison_text import comparison_junit, comparison_markdown, print_comparison
    from holdfast.support.files import write_bytes_atomic, write_json

    shared: dict[str, Any] = {"labels": found.labels, "gates": found.gates, "strict": request.strict}
    text = {**shared, "unmatched": found.unmatched, "notes": found.notes, "matrix": found.matrix}
    files = {kind: target for kind, target in request.files.items() if target != "-"}
    if "json" in files:
        write_json(files["json"], _record(found, request, seconds=seconds))
    if "markdown" in files:
        write_bytes_atomic(files["markdown"], comparison_markdown(found.comparisons, **text).encode())
    if "junit" in files:
        write_bytes_atomic(files["junit"], comparison_junit(found.comparisons, **shared, seconds=seconds))
    if "html" in files:
        from holdfast.reports.comparison_report import write_comparison_report

        write_comparison_report(
            Path(files["html"]),
            before=found.sides[0].folder,
            after=found.sides[-1].folder,
            labels=found.labels,
            comparisons=found.comparisons,
            gates=found.gates,
            unmatched=found.unmatched,
            matrix=found.matrix,
        )
    on_stdout = next((kind for kind, target in request.files.items() if target == "-"), None)
    target = stderr_console() if on_stdout else stdout_console()
    if on_stdout == "json":
        print_json(_record(found, request, seconds=seconds))
    elif on_stdout == "markdown":
        print(comparison_markdown(found.comparisons, **text), end="")
    print_comparison(found.comparisons, target, **text)
    for path in files.values():
        target.print(f"Wrote {path}", soft_wrap=True, markup=False, highlight=False)


def _record(found: _Found, request: CompareRequest, *, seconds: float) -> dict[str, Any]:
    """Everything, for programs; `comparisons`, `gates` and `matrix` have the fields of their records."""
    import importlib.metadata
    import platform

    from holdfast import __version__
    from holdfast.evaluation.compare.gate import to_record

    rounded = math.ceil(seconds * 1000) / 1000
    return {
        "labels": [s.label for s in found.sides],
        "folders": [s.folder.path for s in found.sides],
        "failed": found.failed,
        "rules": to_record(found.gates, strict=request.strict),
        "gates": found.gates,
        "comparisons": found.comparisons,
        "matrix": found.matrix,
        "unmatched": found.unmatched,
        "notes": found.notes,
        "settings": {
            "metrics": request.metrics,
            "confidence": request.confidence,
            "resamples": request.resamples,
            "seed": request.seed,
            "strict": request.strict,
        },
        "versions": {
            "holdfast": __version__,
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in ("numpy", "scipy")},
        },
        "seconds": rounded,
    }
