"""`holdfast evaluate`: what one or several models know, by suites, tasks and files."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.cli.checkpoint_options import print_json, stderr_console, stdout_console
from holdfast.cli.request import Request, RequestParser
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.evaluation.entries import EvaluationPlan
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
PLAN_FILE_KEYS = ("batch_size", "confidence", "seed")


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast evaluate --help`."""
    if any(word in ("--help", "-h") for word in argv):
        build_parser(with_suites=True).parse_args(["--help"])
    request = Request(build_parser(), argv)
    plan, suites = read_plan(request)
    models = request.texts("model")
    if not models and not request.unknown:
        request.problems.append("expected at least one model, as in 'holdfast evaluate base tuned --suite knowledge'")
    from holdfast.evaluation.session import check_request, evaluate_models, refuse_foreign, requests_of
    from holdfast.models import DTYPES

    requests = []
    try:
        requests = requests_of(models)
    except ConfigError as error:
        request.problems += error.problems
    for one in requests:
        looks_like_path = one.name.startswith((".", "~", "/")) or one.name.endswith("/") or one.name.count("/") > 1
        if not Path(one.name).is_dir() and (looks_like_path or "/" not in one.name):
            request.problems.append(f"no such model folder: {one.name} (a hub id is written owner/name)")
    dtype, device = request.choice("dtype", DTYPES, "auto"), request.text("device", None)
    out, cache = Path(request.text("output_dir", "evaluated")), request.text("cache", None)
    as_json = request.on("json")
    request.check()
    refuse_foreign(out)
    if request.on("dry_run"):
        check_request(requests, plan, device=device, trust_remote_code=request.on("trust_remote_code"))
        for line in plan_lines(plan, [(r.label, r.name) for r in requests], out):
            print(line)
        return 0
    say = stderr_console() if as_json else stdout_console()
    record = evaluate_models(
        requests,
        plan,
        out,
        suites=suites,
        cache=cache,
        dtype=dtype,
        device=device,
        trust_remote_code=request.on("trust_remote_code"),
        console=stderr_console(),
        say=lambda line: say.print(line, soft_wrap=True, markup=False, highlight=False),
    )
    labels = [r.label for r in requests]
    compare = comparer(out, plan)
    found, comparisons = gather(out, plan, labels, compare)
    report = write_report(out, record, compare)
    if as_json:
        print_json({"output_dir": str(out), "evaluations": found, "comparisons": comparisons})
    else:
        print_results(found, comparisons, say)
        say.print(f"Report    {report}", soft_wrap=True, markup=False, highlight=False)
    return 0


def read_plan(request: Request) -> tuple[EvaluationPlan, list[str]]:
    """What to measure, and the names of its suites; mistakes are added to the request's problems."""
    from holdfast.evaluation.shipped import changed, read_suites
    from holdfast.evaluation.suite import parse_evaluation

    names = request.texts("suite")
    mapping, problems = read_suites(names)
    request.problems += problems
    for option, key in (
        ("tasks", "task"),
        ("answers", "answers"),
        ("perplexity", "perplexity"),
        ("memorisation", "memorisation"),
    ):
        mapping.setdefault("measured", []).extend(
            {key: word} for text in request.texts(option) for word in _split(text)
        )
    if not mapping["measured"]:
        del mapping["measured"]
    if not any(isinstance(v, list) and v for v in mapping.values()) and not request.unknown and not problems:
        request.problems.append("nothing to measure: expected --suite NAME, --tasks TASK ... or --perplexity FILE ...")
    for key in PLAN_FILE_KEYS:
        if request.has(key):
            mapping[key] = request.number(key, None) if key == "confidence" else request.whole(key, None)
    allowed = bool(mapping.get("allow_code_execution")) or request.on("allow_code_execution")
    # entries that are skipped need no permission, so that one is asked for below
    plan, problems = parse_evaluation(
        {**{k: v for k, v in mapping.items() if v is not None}, "allow_code_execution": True}
    )
    request.problems += [p.removeprefix("evaluation.") for p in problems]
    plan, problems = changed(
        plan,
        data=_pairs(request, "data"),
        fewshot_data=_pairs(request, "fewshot_data"),
        skip=request.texts("skip"),
        limit=request.whole("limit", None, least=1),
        num_fewshot=request.whole("num_fewshot", None, least=0),
        apply_chat_template=True if request.on("apply_chat_template") else None,
    )
    request.problems += problems
    skipped = request.texts("skip")
    if skipped and not plan.entries and not request.problems:
        request.problems.append(f"--skip: nothing is left to measure without {', '.join(skipped)}")
    plan = dataclasses.replace(plan, allow_code_execution=allowed)
    programs = [e.name for e in plan.entries if e.kind == "code"]
    if programs and not allowed:
        request.problems.append(
            f"{', '.join(programs)}: runs programs that the model writes. Add --allow_code_execution to run them in "
            f"the sandbox, "
            f"or --skip {' '.join(programs)}"
        )
    return plan, names


def _split(text: str) -> list[str]:
    """Tasks may be separated by commas, as the harness has them; file names with commas stay whole where such a file
    exists."""
    return [text] if Path(text).exists() else [part for part in text.split(",") if part]


def _pairs(request: Request, option: str) -> dict[str, str]:
    raw = request.raw(option)
    if isinstance(raw, dict):
        return {str(k): str(v) for k, v in raw.items()}
    found: dict[str, str] = {}
    for text in request.texts(option):
        task, equals, file = text.partition("=")
        if not equals or not task or not file:
            request.problems.append(
                f"--{option}: expected TASK=FILE, as in --{option} arc_easy=ARC-Easy.jsonl, got '{text}'"
            )
        elif task in found:
            request.problems.append(f"--{option}: two files for {task}: {found[task]} and {file}")
        else:
            found[task] = file
    return found


def plan_lines(plan: EvaluationPlan, models: Sequence[tuple[str, str]], out: Path) -> list[str]:
    """What would be measured, as text."""
    lines = ["Dry run: the request is sound; nothing was measured.", ""]
    lines += [f"  {'model' if i == 0 else '':<11} {label}: {name}" for i, (label, name) in enumerate(models)]
    for suite in plan.suites:
        for i, entry in enumerate(e for e in plan.entries if e.suite == suite):
            told = [entry.kind]
            for field in ("num_fewshot", "limit", "max_documents", "window", "samples"):
                if getattr(entry, field, None) is not None:
                    told.append(f"{field} {getattr(entry, field)}")
            if getattr(entry, "data", None):
                told.append(f"data {entry.data}")
            lines.append(f"  {suite if i == 0 else '':<11} {entry.name} ({', '.join(told)})")
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
    from holdfast.reports.figures import decimals_for, interval_text, number, p_value
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


def build_parser(*, with_suites: bool = False) -> RequestParser:
    """The options; with the shipped suites in the help where it is to be shown."""
    shown = ""
    if with_suites:
        from holdfast.evaluation.shipped import description_of, shipped_suites

        shown = "\n".join(f"  {name:<32} {description_of(path)}" for name, path in shipped_suites().items())
    parser = RequestParser(
        prog="holdfast evaluate",
        description=DESCRIPTION,
        epilog=EPILOG.replace("{suites}", shown),
        usage="MODEL [MODEL ...] --suite NAME [options]",
    )
    parser.words("model", "MODEL", "folder, hub id, or LABEL=MODEL; the first is what the others are compared with")
    what = parser.add_argument_group("what to measure")
    parser.many("suite", "NAME", "shipped suites or YAML files, see below", group=what)
    parser.many("tasks", "TASK", "tasks and groups of lm-evaluation-harness, or task YAMLs", group=what)
    parser.many(
        "answers",
        "TASK",
        "the distribution at the answer position: mass on the options, entropy, calibration",
        group=what,
    )
    parser.many("perplexity", "FILE", "held-out text, in any format that 'holdfast train' reads", group=what)
    parser.many(
        "memorisation", "FILE", "text of which it is counted how much the model would have said itself", group=what
    )
    parser.many("skip", "ENTRY", "entries of the suites that are left out", group=what)
    how = parser.add_argument_group("how")
    parser.many("data", "TASK=FILE", "a local file in place of a task's data set", group=how)
    parser.many(
        "fewshot_data",
        "TASK=FILE",
        "a local file with its examples (else they come from the file of the questions)",
        group=how,
    )
    parser.one(
        "limit", "N", "only the first N questions of each task (and subtask), the first N documents of texts", group=how
    )
    parser.one("num_fewshot", "N", "examples before each question, for all tasks (what suite and task say)", group=how)
    parser.switch("apply_chat_template", "put the questions in the tokenizer's chat template", group=how)
    parser.switch("allow_code_execution", "run programs that the model writes, in the sandbox", group=how)
    parser.one("batch_size", "N", "texts generated at once; comparisons need the same (8)", group=how)
    parser.one("confidence", "C", "level of the intervals (0.95)", group=how)
    parser.one("seed", "N", "of examples, sampling and resampling (0)", group=how)
    where = parser.add_argument_group("where")
    parser.one(
        "output_dir",
        "FOLDER",
        "evaluations, one folder a model, and report.html; may be one of before (evaluated)",
        group=where,
    )
    parser.one("cache", "FOLDER", "evaluations that several output folders share", group=where)
    parser.one("dtype", "auto|float32|bfloat16|float16", "of the weights (auto: as they were saved)", group=where)
    parser.one("device", "DEVICE", "such as cpu or cuda:1 (the first accelerator, else the CPU)", group=where)
    parser.switch("trust_remote_code", "run Python code that comes with a model", group=where)
    parser.switch("json", "print the results as JSON", group=where)
    parser.switch("dry_run", "check the request and print the plan", group=where)
    return parser
