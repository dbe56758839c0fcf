"""`holdfast evaluate`: what one or several models know, by suites, tasks and files."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from holdfast.cli.checkpoint_options import print_json, stderr_console, stdout_console
from holdfast.config.command_line import Command
from holdfast.config.declare import Meta
from holdfast.config.values import Mistake, Refused
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.evaluation.entries import EvaluationPlan
    from holdfast.evaluation.session import ModelRequest
    from holdfast.records.comparison import Comparison
    from holdfast.records.evaluation import Evaluation, EvaluationRecord

DESCRIPTION = """\
Measures models on suites of benchmarks, on held-out text, on what they say at the answer position. lm-evaluation-harness
runs the benchmarks; options of a question share its prefix, so that it is several times faster at the same numbers.
Every model's answers are kept question by question: 'holdfast compare' reads them. Nothing is measured twice, and an
interrupted evaluation continues in the middle. The first model is the one that the others are compared with.
"""
EPILOG = """\
examples
  holdfast evaluate base tuned --suite knowledge --output_dir measured
  holdfast evaluate base tuned --tasks mmlu gsm8k --limit 200 --perplexity prose.jsonl
  holdfast evaluate before=runs/a/checkpoint-100 after=runs/a --suite my_suite.yaml

  # without a network: local files in place of the hub's, columns as published
  holdfast evaluate base --tasks mmlu arc_easy --data mmlu=mmlu_test.jsonl arc_easy=ARC-Easy.jsonl --fewshot_data mmlu=mmlu_dev.jsonl

  # programs that the model writes, in the sandbox
  holdfast evaluate base --tasks humaneval --data humaneval=HumanEval.jsonl.gz --allow_code_execution

MODEL      a folder (of a model or a PEFT adapter), a hub id, or LABEL=MODEL
--suite    a shipped suite, or a YAML file with what 'holdfast train' has below 'evaluation:'. Shipped:
{suites}
"""


def _pair(word: str) -> tuple[str, str]:
    task, equals, file = word.partition("=")
    if not equals or not task or not file:
        raise ValueError("expected TASK=FILE, as in arc_easy=ARC-Easy.jsonl.")
    return task, file


def _files(value: Any) -> dict[str, str]:
    """A file by task, out of a YAML's mapping or the pairs of a command line."""
    pairs = list(value.items()) if isinstance(value, Mapping) else value
    if not isinstance(pairs, list) or not all(isinstance(p, tuple) and isinstance(p[1], str) for p in pairs):
        raise ValueError("a file for each task, as in {arc_easy: ARC-Easy.jsonl}")
    found: dict[str, str] = {}
    for task, file in pairs:
        if str(task) in found:
            raise Refused(Mistake(path=(), text=f"two files for {task}: {found[task]} and {file}."))
        found[str(task)] = file
    return found


_FILES = Meta(
    repeatable=True,
    parse=_files,
    parse_word=_pair,
    metavar="TASK=FILE ...",
    json_schema=lambda: {"type": "object", "additionalProperties": {"type": "string"}},
)


@dataclass(frozen=True, kw_only=True)
class _What:
    settings_group: ClassVar[str] = "what to measure"

    suite: Annotated[tuple[str, ...], Meta(repeatable=True, metavar="NAME")] = ()
    """Shipped suites or YAML files, see below."""
    tasks: Annotated[tuple[str, ...], Meta(repeatable=True, metavar="TASK")] = ()
    """Tasks and groups of lm-evaluation-harness, or task YAMLs."""
    answers: Annotated[tuple[str, ...], Meta(repeatable=True, metavar="TASK")] = ()
    """Tasks of which the distribution at the answer position is measured: mass on the options, entropy, calibration."""
    perplexity: Annotated[tuple[str, ...], Meta(repeatable=True, metavar="FILE")] = ()
    """Held-out text, in any format that 'holdfast train' reads."""
    memorisation: Annotated[tuple[str, ...], Meta(repeatable=True, metavar="FILE")] = ()
    """Text whose share of tokens that are the model's most likely ones is counted."""
    skip: Annotated[tuple[str, ...], Meta(repeatable=True, metavar="ENTRY")] = ()
    """Entries of the suites that are left out."""


@dataclass(frozen=True, kw_only=True)
class _How:
    settings_group: ClassVar[str] = "how"

    data: Annotated[dict[str, str], _FILES] = field(default_factory=dict)
    """A local file in place of a task's data set."""
    fewshot_data: Annotated[dict[str, str], _FILES] = field(default_factory=dict)
    """A local file with a task's examples (else they come from the file of the questions)."""
    limit: Annotated[int | None, Meta(ge=1)] = None
    """Only the first N questions of each task (and subtask), the first N documents of texts."""
    num_fewshot: Annotated[int | None, Meta(ge=0)] = None
    """Examples before each question, for all tasks (what suite and task say)."""
    apply_chat_template: bool = False
    """Puts the questions in the tokenizer's chat template."""
    allow_code_execution: bool = False
    """Runs programs that the model writes, in the sandbox."""
    batch_size: Annotated[int | None, Meta(ge=1)] = None
    """Texts generated at once; comparisons need the same (what the suite says, else 8)."""
    confidence: Annotated[float | None, Meta(gt=0, lt=1)] = None
    """Level of the intervals (what the suite says, else 0.95)."""
    seed: Annotated[int | None, Meta(ge=0)] = None
    """Of examples, sampling and resampling (what the suite says, else 0)."""


@dataclass(frozen=True, kw_only=True)
class _Where:
    settings_group: ClassVar[str] = "where"

    output_dir: Annotated[Path, Meta(metavar="FOLDER")] = Path("evaluated")
    """Evaluations, one folder a model, and report.html; may be one of before."""
    cache: Annotated[Path | None, Meta(metavar="FOLDER")] = None
    """Evaluations that several output folders share."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of the weights; auto: as they were saved."""
    device: str | None = None
    """Such as cpu or cuda:1 (the first accelerator, else the CPU)."""
    trust_remote_code: bool = False
    """Runs Python code that comes with a model."""
    json: bool = False
    """Prints the results as JSON."""
    dry_run: bool = False
    """Checks the request and prints the plan."""


@dataclass(frozen=True, kw_only=True)
class EvaluateRequest(_Where, _How, _What):
    """`holdfast evaluate`."""

    model: Annotated[tuple[str, ...], Meta(positional=True, metavar="MODEL ...")] = ()
    """Folder, hub id, or LABEL=MODEL; the first is what the others are compared with."""

    def problems(self) -> list[Mistake]:
        """Models that are not there, suites and entries that cannot be measured."""
        found: list[Mistake] = []
        if not self.model:
            text = "expected at least one model, as in 'holdfast evaluate base tuned --suite knowledge'."
            found.append(Mistake(path=(), text=text))
        try:
            requests = self.requests
        except ConfigError as error:
            found += [Mistake(path=("model",), text=problem) for problem in error.problems]
            requests = []
        for one in requests:
            looks_like_path = one.name.startswith((".", "~", "/")) or one.name.endswith("/") or one.name.count("/") > 1
            if not Path(one.name).is_dir() and (looks_like_path or "/" not in one.name):
                text = f"no such model folder: {one.name} (a hub id is written owner/name)"
                found.append(Mistake(path=("model",), text=text))
        return [*found, *self._planned[1]]

    @functools.cached_property
    def requests(self) -> list[ModelRequest]:
        """The models with their labels.

        Raises:
            ConfigError: labels that cannot be.
        """
        from holdfast.evaluation.session import requests_of

        return requests_of(self.model)

    @property
    def plan(self) -> EvaluationPlan:
        """What to measure."""
        return self._planned[0]

    @functools.cached_property
    def _planned(self) -> tuple[EvaluationPlan, list[Mistake]]:
        from holdfast.evaluation.shipped import changed, read_suites
        from holdfast.evaluation.suite import decode_evaluation

        mapping, problems = read_suites(self.suite)
        mistakes = [Mistake(path=("suite",), text=text) for text in problems]
        named = [
            (option, {key: word})
            for option, key in _ENTRIES.items()
            for text in getattr(self, option)
            for word in _split(text)
        ]
        if named:
            mapping["measured"] = [*mapping.get("measured", []), *(entry for _, entry in named)]
        if not any(isinstance(v, list) and v for v in mapping.values()) and not problems:
            text = "nothing to measure: expected --suite NAME, --tasks TASK ... or --perplexity FILE ..."
            mistakes.append(Mistake(path=(), text=text))
        mapping |= {key: value for key in _PLAN if (value := getattr(self, key)) is not None}
        allowed = bool(mapping.get("allow_code_execution")) or self.allow_code_execution
        # entries that are skipped need no permission, so that one is asked for below
        plan, wrong = decode_evaluation({**mapping, "allow_code_execution": True})
        before = len(mapping.get("measured", [])) - len(named)
        mistakes += [_of_option(mistake, named, before) for mistake in wrong]
        plan, wrong = changed(
            plan,
            data=self.data,
            fewshot_data=self.fewshot_data,
            skip=self.skip,
            limit=self.limit,
            num_fewshot=self.num_fewshot,
            apply_chat_template=self.apply_chat_template or None,
        )
        mistakes += wrong
        if self.skip and not plan.entries and not mistakes:
            text = f"nothing is left to measure without {', '.join(self.skip)}."
            mistakes.append(Mistake(path=("skip",), text=text))
        plan = dataclasses.replace(plan, allow_code_execution=allowed)
        for option in ("suite", "tasks") if not allowed else ():
            asked = [e for e in plan.entries if e.kind == "code" and (e.suite == "measured") == (option == "tasks")]
            if asked:
                names = [e.name for e in asked]
                text = (
                    f"{', '.join(names)}: runs programs that the model writes. Add --allow_code_execution to run them "
                    f"in the sandbox, or --skip {' '.join(names)}"
                )
                mistakes.append(Mistake(path=(option,), text=text))
        return plan, mistakes


_ENTRIES = {"tasks": "task", "answers": "answers", "perplexity": "perplexity", "memorisation": "memorisation"}
"""Option: kind of the entries that it adds."""
_PLAN = ("batch_size", "confidence", "seed")


def _of_option(mistake: Mistake, named: Sequence[tuple[str, dict[str, str]]], before: int) -> Mistake:
    """A mistake of a plan as one of the option that it came from."""
    if mistake.path[:1] == ("measured",) and len(mistake.path) > 1 and int(mistake.path[1]) >= before:
        return Mistake(path=(named[int(mistake.path[1]) - before][0],), text=mistake.text)
    return (
        mistake if mistake.path[:1] in [(key,) for key in _PLAN] else Mistake(path=("suite",), text=mistake.sentence())
    )


def _split(text: str) -> list[str]:
    """Tasks may be separated by commas, as the harness has them; file names with commas stay whole where such a file
    exists."""
    return [text] if Path(text).exists() else [part for part in text.split(",") if part]


class _Command(Command[EvaluateRequest]):
    """Its help lists the shipped suites."""

    def help(self) -> str:
        from holdfast.evaluation.shipped import description_of, shipped_suites

        shown = "\n".join(f"  {name:<32} {description_of(path)}" for name, path in shipped_suites().items())
        return super().help().replace("{suites}", shown)


COMMAND = _Command(
    name="holdfast evaluate",
    request=EvaluateRequest,
    description=DESCRIPTION,
    epilog=EPILOG,
    usage="MODEL [MODEL ...] --suite NAME [options]",
)


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast evaluate --help`."""
    request = COMMAND.read(argv)
    plan, requests, out = request.plan, request.requests, request.output_dir

    from holdfast.evaluation.session import check_request, evaluate_models, refuse_foreign

    refuse_foreign(out)
    if request.dry_run:
        check_request(requests, plan, device=request.device, trust_remote_code=request.trust_remote_code)
        for line in plan_lines(plan, [(r.label, r.name) for r in requests], out):
            print(line)
        return 0
    target = stderr_console() if request.json else stdout_console()
    record = evaluate_models(
        requests,
        plan,
        out,
        suites=request.suite,
        cache=request.cache,
        dtype=request.dtype,
        device=request.device,
        trust_remote_code=request.trust_remote_code,
        console=stderr_console(),
        say=lambda line: target.print(line, soft_wrap=True, markup=False, highlight=False),
    )
    labels = [r.label for r in requests]
    compare = comparer(out, plan)
    found, comparisons = gather(out, plan, labels, compare)
    report = write_report(out, record, compare)
    if request.json:
        print_json({"output_dir": str(out), "evaluations": found, "comparisons": comparisons})
    else:
        print_results(found, comparisons, target)
        target.print(f"Report    {report}", soft_wrap=True, markup=False, highlight=False)
    return 0


def plan_lines(plan: EvaluationPlan, models: Sequence[tuple[str, str]], out: Path) -> list[str]:
    """What would be measured, as text."""
    lines = ["Dry run: the request is sound; nothing was measured.", ""]
    lines += [f"  {'model' if i == 0 else '':<11} {label}: {name}" for i, (label, name) in enumerate(models)]
    for suite in plan.suites:
        for i, entry in enumerate(e for e in plan.entries if e.suite == suite):
            shown = ("num_fewshot", "limit", "max_documents", "window", "samples", "data")
            settings = [f"{key} {value}" for key in shown if (value := getattr(entry, key, None)) is not None]
            lines.append(f"  {suite if i == 0 else '':<11} {entry.name} ({', '.join([entry.kind, *settings])})")
    lines += [
        f"  {'average' if i == 0 else '':<11} {a.name} of {len(a.members)} figures" for i, a in enumerate(plan.averages)
    ]
    return [*lines, f"  {'output':<11} {out}"]


Compare = Callable[[str, str], "list[Comparison]"]


def comparer(out: Path, plan: EvaluationPlan) -> Compare:
    """A function that compares two models of OUT by their labels, each pair once: terminal and page say the same."""
    from holdfast.evaluation.compare.folders import compare_folders
    from holdfast.records.evaluation import EvaluationFolder

    @functools.cache
    def compare(first: str, label: str) -> list[Comparison]:
        return compare_folders(
            EvaluationFolder(out / first), EvaluationFolder(out / label), confidence=plan.confidence, seed=plan.seed
        )[0]

    return compare


def gather(
    out: Path, plan: EvaluationPlan, labels: Sequence[str], compare: Compare
) -> tuple[dict[str, list[Evaluation]], dict[str, list[Comparison]]]:
    """The plan's evaluations by label, and every other model's comparison with the first."""
    from holdfast.evaluation.averages import SUITE
    from holdfast.records.evaluation import EvaluationFolder

    wanted = [(e.suite, e.name) for e in plan.entries] + [(SUITE, a.name) for a in plan.averages]
    found = {
        label: [e for suite, name in wanted if (e := EvaluationFolder(out / label).find(suite, name)) is not None]
        for label in labels
    }
    return found, {label: [c for c in compare(labels[0], label) if (c.suite, c.name) in wanted] for label in labels[1:]}


def write_report(out: Path, record: EvaluationRecord, compare: Compare) -> Path:
    """Writes OUT/report.html with every model of the folder."""
    from holdfast.evaluation.session import PAGE
    from holdfast.records.evaluation import EvaluationFolder
    from holdfast.reports.evaluation_report import write_evaluation_report

    first, *others = labels = [m["label"] for m in record.models]
    folders = [EvaluationFolder(out / label) for label in labels]
    return write_evaluation_report(
        out / PAGE, record, folders, comparisons={label: compare(first, label) for label in others}
    )


def print_results(found: dict[str, list[Evaluation]], comparisons: dict[str, list[Comparison]], target: Any) -> None:
    """Prints one table a model: figure, interval, questions, and the paired difference to the first model."""
    from holdfast.reports.format import decimals_for, interval_text, number, p_value
    from holdfast.reports.terminal import Printer

    out = Printer(target)
    for label, evaluations in found.items():
        differences = {(c.suite, c.name): c for c in comparisons.get(label, []) if c.primary}
        rows = []
        for evaluation in evaluations:
            metric = evaluation.metrics[evaluation.primary]
            digits = decimals_for(metric.interval)
            name = (
                f"{evaluation.suite}/{evaluation.name}\n{evaluation.primary}, "
                f"{'higher' if metric.higher_is_better else 'lower'} is better"
            )
            cells = [
                (name, ""),
                (number(metric.value, digits), "bold"),
                (interval_text(metric.interval, digits), "dim"),
                (f"{metric.n:,}", "dim"),
            ]
            if comparisons and differences:
                c = differences.get((evaluation.suite, evaluation.name))
                tone = {"gained": "green", "lost": "red"}.get(c.verdict, "dim") if c else "dim"
                shown = (
                    f"{number(c.difference, digits, sign=True)} {interval_text(c.interval, digits, sign=True)}\n"
                    if c
                    else ""
                )
                cells.append((f"{shown}{c.verdict}, p {p_value(c.p_value)}" if c else "", tone))
            rows.append(cells)
        columns = [("Measure", False), ("Value", True), ("Interval", True), ("n", True)]
        if comparisons and differences:
            columns.append((f"Against {next(iter(found))}", False))
        out.table(label, columns, rows)
        if any(math.isnan(e.metrics[e.primary].value) for e in evaluations):
            out.line("A figure of NaN: the model's output is not finite for some of the text.", "yellow")
