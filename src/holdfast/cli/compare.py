"""`holdfast compare`: two evaluated models side by side, as a table, a page, a pull request's comment, and as a gate
that a build can fail on."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.cli.checkpoint_options import print_json, stderr_console, stdout_console, stoppable
from holdfast.cli.options import nearest
from holdfast.cli.request import Request, RequestParser
from holdfast.errors import ConfigError, DataError, HoldfastError
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


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast compare --help`."""
    import time

    began = time.monotonic()
    request = Request(build_parser(), argv)
    asked = _read_request(request)
    sides = [] if request.unknown else _sides(request, staged=bool(asked.stages))
    rules = _rules(request)
    request.check()

    from holdfast.evaluation.compare.gate import is_failed, judge, many_tests

    matching, aims, tasks = _prepare(request, sides, rules, asked)
    with stoppable():
        compared = _compare(sides, matching, asked)
        gates = judge(aims, compared)
        matrix = _matrix(sides, tasks, asked)
    if not compared.comparisons and matrix is None:
        raise DataError("\n".join(["Nothing can be compared:", *(f"  - {u}" for u in compared.unmatched)]))
    judged = {(g.suite, g.name, g.metric) for g in gates}
    found = _Found(
        sides=sides,
        comparisons=[
            c
            for c in compared.comparisons
            if c.primary or asked.metrics == "all" or (c.suite, c.name, c.metric) in judged
        ],
        gates=gates,
        matrix=matrix,
        unmatched=[str(u) for u in compared.unmatched],
        notes=[
            *(n for s in sides for n in s.notes),
            *compared.notes,
            *filter(None, [many_tests(gates, confidence=asked.confidence)]),
        ],
        failed=is_failed(gates, strict=asked.strict),
    )
    _write(found, asked, seconds=time.monotonic() - began)
    return GATE_FAILED if found.failed else 0


def build_parser() -> RequestParser:
    """The options."""
    parser = RequestParser(prog="holdfast compare", description=DESCRIPTION, epilog=EPILOG, usage="A B [options]")
    parser.words("models", "A B", "run folders, or models of 'holdfast evaluate'; see above")
    parser.values["fail_if"] = "many"
    parser.add_argument(
        "--fail_if",
        metavar="RULE",
        action="append",
        default=argparse.SUPPRESS,
        help="exit with 3 where the rule holds; repeatable",
    )
    parser.switch("strict", "rules that the interval leaves undecided fail too")
    parser.one("metrics", "primary|all", "the metric that leads each entry, or all (primary)")
    parser.one("confidence", "LEVEL", "of all intervals, between 0 and 1 (0.95)")
    parser.one("resamples", "N", "bootstrap draws (4000)")
    parser.one("seed", "N", "of the draws (0)")
    parser.many(
        "stages",
        "LABEL=TASK",
        "the task that each model after the first was trained on, in order: forgetting and transfer",
    )
    group = parser.add_argument_group("output", "in place of a file, - writes Markdown or JSON to stdout")
    parser.one("output_dir", "FOLDER", f"all of it: {', '.join(FILES.values())}", group=group)
    parser.one("html", "FILE.html", "a page with plots and the questions that flipped", group=group)
    parser.one("markdown", "FILE.md|-", "a table that fits a pull request's comment", group=group)
    parser.one("junit", "FILE.xml", "rules as test cases, for a build server", group=group)
    parser.one("json", "FILE|-", "everything, for programs", group=group)
    return parser


# ------------------------------------------------------------------------------------------------------- what is asked


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """The options, checked."""

    metrics: str
    confidence: float
    resamples: int
    seed: int
    strict: bool
    stages: list[tuple[str, str]]
    """(label, task) of every stage."""
    files: dict[str, str]
    """Where "html", "markdown", "junit" and "json" go; "-" is stdout."""


def _read_request(request: Request) -> _Asked:
    confidence = request.number("confidence", 0.95)
    if not 0 < confidence < 1:
        request.problems.append(f"{request.named('confidence')}: expected a number between 0 and 1, got {confidence:g}")
    folder = request.text("output_dir", None)
    files = {kind: str(Path(folder) / name) for kind, name in FILES.items()} if folder is not None else {}
    for kind in FILES:
        if (target := request.text(kind, None)) is not None:
            files[kind] = target
    if files.get("html", ".html").rpartition(".")[2] not in ("html", "htm"):
        request.problems.append(f"{request.named('html')}: expected a file that ends with .html, got {files['html']}")
    if files.get("junit") == "-":
        request.problems.append(f"{request.named('junit')}: expected a file, got -")
    if files.get("json") == files.get("markdown") == "-":
        request.problems.append("--json and --markdown: only one of them can go to stdout")
    strict = request.on("strict")
    if strict and not request.has("fail_if"):
        request.problems.append(
            "--strict says how undecided rules count, but there is no rule: add --fail_if 'any drop > 2%' or the like"
        )
    return _Asked(
        metrics=request.choice("metrics", ("primary", "all"), "primary"),
        confidence=confidence,
        resamples=request.whole("resamples", 4000, least=100),
        seed=request.whole("seed", 0, least=0),
        strict=strict,
        stages=_stages(request),
        files=files,
    )


def _stages(request: Request) -> list[tuple[str, str]]:
    stages = []
    for word in request.texts("stages"):
        label, equals, task = word.partition("=")
        if not label.strip() or (equals and not task.strip()):
            request.problems.append(f"{request.named('stages')}: expected LABEL=TASK, as in math=gsm8k, got '{word}'")
        else:
            stages.append((label.strip(), task.strip() or label.strip()))
    return stages


def _rules(request: Request) -> list[Rule]:
    from holdfast.evaluation.compare.gate import parse_rules

    try:
        return parse_rules(request.texts("fail_if"))
    except ConfigError as error:
        request.problems += [f"{request.named('fail_if')}: {p}" for p in error.problems]
        return []


# ----------------------------------------------------------------------------------------------------------- the models


@dataclass(frozen=True, kw_only=True)
class Side:
    """One evaluated model."""

    folder: EvaluationFolder
    label: str
    notes: tuple[str, ...] = ()
    """What a reader should know of it, such as an evaluation that was interrupted."""


def _sides(request: Request, *, staged: bool) -> list[Side]:
    """The models that the words name, with all mistakes added to the request's problems."""
    words = request.texts("models")
    stages = len(request.texts("stages"))
    found: list[Side] = []
    mistakes = len(request.problems)
    for word in words:
        try:
            found += find_models(word, alone=len(words) == 1)
        except HoldfastError as error:
            request.problems.append(str(error))
    wanted = stages + 1 if staged else 2
    if len(found) != wanted and len(request.problems) == mistakes:
        got = f"got {len(found)}{': ' + ', '.join(s.label for s in found) if found else ''}"
        if staged:
            request.problems.append(
                f"--stages names {stages} tasks, so expected {wanted} models (the start, and one after each stage), "
                f"{got}"
            )
        else:
            more = (
                ". For a sequence of trainings add --stages; else name two"
                if len(found) > 2
                else ", as in 'holdfast compare A B'"
            )
            listed = (
                f": {', '.join(f'{words[0]}:{s.label}' for s in found)}" if len(words) == 1 and len(found) > 2 else ""
            )
            request.problems.append(f"expected two models, {got}{more}{listed}")
    return _distinct(found, words)


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
    beside = [p.name for p in path.parent.iterdir() if p.is_dir()] if path.parent.is_dir() else []
    near = [str(path.parent / name) for name in nearest(path.name, beside)]
    return f"no such folder: {word}.{' Did you mean ' + ' or '.join(near) + '?' if near else ''}"


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
        near = nearest(label, labels, count=1)
        raise ConfigError(
            f"{path} has no model '{label}'.{f' Did you mean {path}:{near[0]}?' if near else ''} It has: "
            f"{listed or 'none'}"
        )
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


def _prepare(
    request: Request, sides: Sequence[Side], rules: Sequence[Rule], asked: _Asked
) -> tuple[Matching, list[Aim], list[tuple[str | None, str]]]:
    """Everything that can be wrong and is known before samples are read, all at once."""
    from holdfast.evaluation.compare.continual import find_tasks
    from holdfast.evaluation.compare.folders import match_entries, read_evaluations
    from holdfast.evaluation.compare.gate import bind_rules

    evaluations = []
    for side in (sides[0], sides[-1]):
        try:
            evaluations.append(read_evaluations(side.folder))
        except DataError as error:
            request.problems.append(str(error))
    request.check()
    matching = match_entries(*evaluations)
    aims: list[Aim] = []
    try:
        aims = bind_rules(rules, matching)
    except ConfigError as error:
        request.problems += [f"{request.named('fail_if')}: {p}" for p in error.problems]
    tasks = [_task(task, evaluations[0]) for _, task in asked.stages]
    try:
        find_tasks(evaluations[0], tasks)
    except ConfigError as error:
        request.problems += [f"{request.named('stages')}: {p}" for p in error.problems]
    request.check()
    return matching, aims, tasks


def _task(word: str, start: Sequence[Evaluation]) -> tuple[str | None, str]:
    """A task as suite and name; the slash may be a name's own."""
    suite, slash, name = word.partition("/")
    return (suite, name) if slash and not any(e.name == word for e in start) else (None, word)


def _compare(sides: Sequence[Side], matching: Matching, asked: _Asked) -> Compared:
    from holdfast.evaluation.compare.folders import compare_entries
    from holdfast.support.progress import progress

    with progress("Comparing", total=len(matching.pairs)) as advance:
        return compare_entries(
            sides[0].folder,
            sides[-1].folder,
            matching,
            confidence=asked.confidence,
            resamples=asked.resamples,
            seed=asked.seed,
            progress=lambda done, total: advance(1),
        )


def _matrix(sides: Sequence[Side], tasks: Sequence[tuple[str | None, str]], asked: _Asked) -> StageMatrix | None:
    if not asked.stages:
        return None
    from holdfast.evaluation.compare.continual import stage_matrix

    stages = [sides[0].label, *(label for label, _ in asked.stages)]
    folders = [s.folder for s in sides]
    return stage_matrix(folders, tasks, stages, confidence=asked.confidence, resamples=asked.resamples, seed=asked.seed)


# ----------------------------------------------------------------------------------------------------------- the output


def _write(found: _Found, asked: _Asked, *, seconds: float) -> None:
    """Files first, then the terminal: whoever reads the last line can open what it names."""
    from holdfast.reports.comparison_text import comparison_junit, comparison_markdown, print_comparison
    from holdfast.support.files import write_bytes_atomic, write_json

    shared: dict[str, Any] = {"labels": found.labels, "gates": found.gates, "strict": asked.strict}
    text = {**shared, "unmatched": found.unmatched, "notes": found.notes, "matrix": found.matrix}
    files = {kind: target for kind, target in asked.files.items() if target != "-"}
    if "json" in files:
        write_json(files["json"], _record(found, asked, seconds=seconds))
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
    on_stdout = next((kind for kind, target in asked.files.items() if target == "-"), None)
    target = stderr_console() if on_stdout else stdout_console()
    if on_stdout == "json":
        print_json(_record(found, asked, seconds=seconds))
    elif on_stdout == "markdown":
        print(comparison_markdown(found.comparisons, **text), end="")
    print_comparison(found.comparisons, target, **text)
    for path in files.values():
        target.print(f"Wrote {path}", soft_wrap=True, markup=False, highlight=False)


def _record(found: _Found, asked: _Asked, *, seconds: float) -> dict[str, Any]:
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
        "rules": to_record(found.gates, strict=asked.strict),
        "gates": found.gates,
        "comparisons": found.comparisons,
        "matrix": found.matrix,
        "unmatched": found.unmatched,
        "notes": found.notes,
        "settings": {
            "metrics": asked.metrics,
            "confidence": asked.confidence,
            "resamples": asked.resamples,
            "seed": asked.seed,
            "strict": asked.strict,
        },
        "versions": {
            "holdfast": __version__,
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in ("numpy", "scipy")},
        },
        "seconds": rounded,
    }
