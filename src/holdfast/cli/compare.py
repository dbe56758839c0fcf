"""`holdfast compare`: two evaluated models side by side, as a table, a page, a pull request's
comment, and as a gate that a build can fail on."""

from __future__ import annotations

import contextlib
import functools
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from holdfast.cli.console import (
    print_json,
    print_line,
    stderr_console,
    stdout_console,
    stoppable,
    write,
)
from holdfast.config.command_line import Command
from holdfast.config.declare import Meta
from holdfast.config.help import Section
from holdfast.errors import ConfigError, NotFinite, Problem
from holdfast.evaluation.compare.request import (
    CompareSettings,
    Side,
    find_sides,
    unmeasured_models,
)
from holdfast.printable import Lines
from holdfast.records.comparison import CANNOT_TELL, HOLD, SHIP

if TYPE_CHECKING:
    from holdfast.evaluation.compare.gate import Rule
    from holdfast.evaluation.compare.policy import Policy
    from holdfast.evaluation.compare.result import Result
    from holdfast.evaluation.entries import EvaluationPlan
    from holdfast.records.comparison import Answers
    from holdfast.support.progress import ProgressDisplay

DESCRIPTION = """\
What changed between two models, and is it too much? Pairs both models' answers question by question, and prints the
differences with intervals and one decision over all of them. Entries that were not measured in the same way are
named, and are never compared.

A and B are each
  a run folder            its result; RUN:start is the model before training. A single run: start and result
  OUT:label, OUT/label    a model of 'holdfast evaluate ... --output_dir OUT'. A single OUT: its two models
  a model                 --suite measures it first; --prompts shows its answers
  a log of another tool   lm-evaluation-harness, Inspect, lighteval, a table: --help logs

Exit code 0: done, or SHIP; 3: HOLD; 5: CANNOT TELL; 4: NaN or infinity, without a policy; 2: the request has to change.
"""
LOGS = """\
logs of other tools, in place of a folder of holdfast's
  lm-evaluation-harness  results_*.json with samples_*.jsonl, or their folder
  Inspect                .eval or .json logs, or their folder
  lighteval              details_*.parquet with results_*.json, or the folder of a run
  a table                CSV or JSON Lines with the columns id and score
"""
RULES = """\
rules, as in --fail_if 'mmlu drop > 1pt'
  SUBJECT   an entry, a suite, suite/name, or any; a metric may follow ('prose perplexity rise > 3%'). Default: the
            entry's first metric
  CHANGE    drop: the metric gets worse; gain: it gets better; rise and fall: the number goes up or down
  > < >= <=  NUMBER, in pt (hundredths of a share such as accuracy), % (of the value before), or the metric's own unit

A rule is judged on the interval of the change. It fails if the whole interval is beyond the threshold, also after the
correction for all rules on all entries (--family_wise). It passes if no part of the interval is beyond the threshold.
Otherwise it is undecided. An undecided rule counts as passed. With --strict it counts as failed: to pass then means
that the change is shown to be no worse than the threshold.
"""
POLICY = """\
a policy, as in --policy gate.yaml ('holdfast schema policy' has every key)
  entries:
    keep/mmlu: {tier: critical, margin: 1pt}       # one entry, as suite/entry
    keep: {tier: supporting, margin: 2%}           # the other entries of a suite
    any: {tier: advisory}                          # all others
  fail_if: ['learn gain < 2pt']
  supporting_losses: 2

HOLD means one of these: a critical entry lost more than its margin; at least supporting_losses (here 2) of the
supporting entries lost more than their margins; a required entry was not measured or is not finite; or a rule failed.
CANNOT TELL means that the samples do not show whether a critical entry stayed within its margin. SHIP means: none of
these. Critical and supporting entries are required, unless they have required: false. --accept ENTRY, with --by and
--because, records a loss as accepted in accepted.json beside the policy. Later comparisons read that file.
"""
EPILOG = """\
examples
  holdfast compare runs/direct
  holdfast compare base tuned --suite knowledge --prompts mine.jsonl
  holdfast compare evaluated:base evaluated:tuned --html comparison.html
  # two logs of lm_eval --log_samples
  holdfast compare logs/base logs/tuned
  holdfast compare evaluated --policy gate.yaml
  holdfast compare runs/tuned --fail_if 'any drop > 2%' \\
      --fail_if 'learn gain < 2pt' --markdown comment.md
"""
FILES = {
    "html": "comparison.html",
    "markdown": "comparison.md",
    "junit": "comparison.xml",
    "json": "comparison.json",
}
"""Option: its file in --output_dir."""
CODES = {SHIP: 0, HOLD: 3, CANNOT_TELL: 5}
"""Exit codes of verdicts."""


@dataclass(frozen=True, kw_only=True)
class CompareRequest(CompareSettings):
    """`holdfast compare`."""

    settings_group: ClassVar[str] = (
        "output; in place of a file, - writes Markdown or JSON to stdout"
    )

    output_dir: Annotated[Path | None, Meta(metavar="FOLDER")] = None
    """Folder for all four files: comparison.html, comparison.md, comparison.xml,
    comparison.json."""
    html: Annotated[str | None, Meta(metavar="FILE.html")] = None
    """A page with plots and the questions that flipped."""
    markdown: Annotated[str | None, Meta(metavar="FILE.md|-")] = None
    """A table for the comment on a pull request."""
    junit: Annotated[str | None, Meta(metavar="FILE.xml")] = None
    """The rules as JUnit test cases, for a CI server."""
    json: Annotated[str | None, Meta(metavar="FILE|-")] = None
    """All results, for programs."""
    accept: Annotated[
        tuple[str, ...], Meta(repeatable=True, one_word=True, metavar="ENTRY", section="policy")
    ] = ()
    """Record the loss of this entry in the policy's file of accepted losses."""
    by: Annotated[str, Meta(metavar="WHO", section="policy")] = ""
    """Who accepts it."""
    because: Annotated[str, Meta(metavar="WHY", section="policy")] = ""
    """Why it is accepted."""

    @property
    def files(self) -> dict[str, str]:
        """Where "html", "markdown", "junit" and "json" go; "-" is stdout."""
        files: dict[str, str] = {}
        for kind, name in FILES.items():
            if getattr(self, kind) is not None:
                files[kind] = getattr(self, kind)
            elif self.output_dir is not None:
                files[kind] = str(self.output_dir / name)
        return files

    def problems(self) -> list[str]:
        """Files that cannot be, rules that cannot be read, and words that name no models."""
        files = self.files
        problems: list[str] = []
        page = files.get("html", ".html")
        if not page.endswith((".html", ".htm")):
            problems.append(Problem("html", f"expected a file that ends with .html, got {page}."))
        if files.get("junit") == "-":
            problems.append(Problem("junit", "expected a file, got -."))
        if files.get("json") == files.get("markdown") == "-":
            problems.append(Problem("json", "only one of --json and --markdown can go to stdout."))
        problems += self._acceptance_problems()
        problems += [Problem("policy", text) for text in self.judged_by[1]]
        problems += self._prompts_problems()
        if self.strict and not self.fail_if and self.policy is None:
            example = "add one, such as --fail_if 'any drop > 2%'."
            problems.append(
                Problem(
                    "strict",
                    f"decides how undecided rules count, so it needs a rule: {example}",
                )
            )
        problems += [Problem("fail_if", text) for text in self._rules[1]]
        if self.suite:
            problems += self.planned[1]
            if not self.unmeasured:
                text = (
                    "measures models, but all models here have results already. Leave --suite out."
                )
                problems.append(Problem("suite", text))
        return problems + [Problem("models", text) for text in self._sides[1]]

    def _acceptance_problems(self) -> list[Problem]:
        """What `--accept` lacks."""
        if not self.accept:
            unused = [name for name in ("by", "because") if getattr(self, name)]
            return [Problem(name, "is only used with --accept.") for name in unused]
        problems = []
        if self.policy is None:
            text = "needs --policy: the policy names the file that records accepted losses."
            problems.append(Problem("accept", text))
        for name, what in (("by", "who accepts the loss"), ("because", "why it is accepted")):
            if not getattr(self, name).strip():
                problems.append(Problem("accept", f"needs --{name} as well: {what}."))
        return problems

    def _prompts_problems(self) -> list[Problem]:
        """Why nothing can be asked, and what an answer cannot be judged by."""
        if self.prompts is None:
            return []
        from holdfast.evaluation.side_by_side import problems_of_prompts, problems_of_sides

        problems = [*problems_of_prompts(self.prompts), *problems_of_sides(self.sides)]
        if self.asks_only:
            for name in ("fail_if", "policy", "strict", "accept"):
                if getattr(self, name):
                    text = "needs measured models, and some are not measured yet. Add --suite NAME."
                    problems.append(Problem(name, text))
        return problems

    @property
    def asks_only(self) -> bool:
        """Whether the two models are only asked: one of them was not measured, and will not be."""
        return bool(self.unmeasured) and not self.suite

    @property
    def asked(self) -> list[str]:
        """The two models that prompts are put to, by what loads them."""
        measured = [side.model for side in self.sides]
        if not self.unmeasured:
            return measured
        return [word if word in self.unmeasured else measured.pop(0) for word in self.models]

    @property
    def sides(self) -> list[Side]:
        """The models that the words name."""
        return self._sides[0]

    @functools.cached_property
    def _sides(self) -> tuple[list[Side], list[str]]:
        return find_sides(self.models, measures=self._loads)

    @functools.cached_property
    def unmeasured(self) -> list[str]:
        """The words that name models which are measured first, or only asked."""
        return unmeasured_models(self.models, measures=True) if self._loads else []

    @property
    def _loads(self) -> bool:
        """Whether models are loaded, so that words may name some."""
        return bool(self.suite) or self.prompts is not None

    @functools.cached_property
    def planned(self) -> tuple[EvaluationPlan, list[Problem]]:
        """What they are measured on, and what is wrong with it."""
        from holdfast.evaluation.request import PlanRequest, plan_of

        return plan_of(PlanRequest(suite=self.suite, confidence=self.confidence, seed=self.seed))

    @functools.cached_property
    def judged_by(self) -> tuple[Policy | None, list[str]]:
        """The policy, and what is wrong with its file: known before anything is measured."""
        from holdfast.evaluation.compare.policy import read_policy

        if self.policy is None:
            return None, []
        try:
            return read_policy(self.policy), []
        except ConfigError as error:
            return None, [f"{self.policy}: {problem}" for problem in error.problems]

    @property
    def rules(self) -> list[Rule]:
        """The rules of `--fail_if`."""
        return self._rules[0]

    @functools.cached_property
    def _rules(self) -> tuple[list[Rule], list[Problem]]:
        from holdfast.evaluation.compare.gate import parse_rules

        try:
            return parse_rules(self.fail_if), []
        except ConfigError as error:
            return [], error.problems


COMMAND = Command(
    name="holdfast compare",
    request=CompareRequest,
    description=DESCRIPTION,
    epilog=EPILOG,
    sections=(
        Section(name="logs", summary="which logs of other tools are read", text=LOGS),
        Section(name="rules", summary="what --fail_if takes, and how it is judged", text=RULES),
        Section(name="policy", summary="what --policy takes", text=POLICY),
    ),
    usage="A B [options]",
)


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast compare --help`.

    Raises:
        NotFinite: a figure or a sample is NaN or infinite; tables and files are written.
    """
    began = time.monotonic()
    request = COMMAND.read(argv)

    from holdfast.reports.comparison_text import not_finite_text

    with stoppable():
        if request.asks_only:
            result = asked_only(request)
        else:
            result = compared(request)
    write_and_print(result, request.files, seconds=time.monotonic() - began)
    if result.broken and (
        result.policy is None or result.verdict is None or result.verdict.word != HOLD
    ):
        raise NotFinite(not_finite_text(result.broken))
    return 0 if result.verdict is None else CODES[result.verdict.word]


def compared(request: CompareRequest) -> Result:
    """The comparison, with the models' answers where prompts are put to them.

    Raises:
        ConfigError: a model, a file or a rule does not fit.
        DataError: nothing can be compared.
    """
    from holdfast.evaluation.compare.result import compare_sides

    sides = measured_sides(request) if request.unmeasured else request.sides
    policy, _ = request.judged_by
    result = compare_sides(sides, request.rules, request, policy)
    if request.accept:
        result.accept(request.accept, by=request.by, why=request.because)
        result = compare_sides(sides, request.rules, request, policy)
    if request.prompts is None:
        return result
    answers, _ = ask(request)
    return replace(result, answers=answers, notes=[*result.notes, *answers.notes])


def asked_only(request: CompareRequest) -> Result:
    """The models' answers, of which nothing is compared."""
    from holdfast.evaluation.compare.result import Result

    answers, sides = ask(request)
    names = " and ".join(request.unmeasured)
    verb = "was" if len(request.unmeasured) == 1 else "were"
    note = (
        f"{names} {verb} not measured, so only answers are shown. To measure as well, add --suite "
        "NAME."
    )
    notes = [note, *answers.notes]
    return Result(sides=sides, comparisons=[], notes=notes, settings=request, answers=answers)


def ask(request: CompareRequest) -> tuple[Answers, list[Side]]:
    """The answers of both models to the prompts, and the models with the folders that hold them.

    Raises:
        ConfigError: a model is not the one that was measured, or the file does not fit.
    """
    from holdfast.evaluation.side_by_side import answers_of, check_weights

    assert request.prompts is not None
    check_weights(request.sides)
    return answers_of(
        request.prompts,
        request.asked,
        Path(f"{request.measured_dir}_prompts"),
        max_new_tokens=request.max_new_tokens,
        display=_display(),
    )


def _display() -> ProgressDisplay:
    from holdfast.support.progress import ProgressDisplay

    console = stderr_console()
    return ProgressDisplay(console=console, say=lambda line: print_line(console, line))


def measured_sides(request: CompareRequest) -> list[Side]:
    """The two models, once those that were not measured are.

    Raises:
        ConfigError: a model, a task or its data does not fit; nothing is measured then.
        Interrupted: Ctrl-C or SIGTERM; the same command continues.
    """
    from holdfast.evaluation.session import evaluate_models, requests_of

    models = requests_of(request.unmeasured)
    with contextlib.suppress(NotFinite):  # the comparison says so
        evaluate_models(
            models,
            request.planned[0],
            request.measured_dir,
            suites=request.suite,
            display=_display(),
        )
    places = {}
    for word, model in zip(request.unmeasured, models, strict=True):
        places[word] = f"{request.measured_dir}:{model.label}"
    sides, problems = find_sides([places.get(word, word) for word in request.models])
    if problems:
        raise ConfigError(problems)
    return [
        replace(side, model=word) if word in places else side
        for word, side in zip(request.models, sides, strict=True)
    ]


def write_and_print(result: Result, files: dict[str, str], *, seconds: float) -> None:
    """Files first, then the terminal: whoever reads the last line can open what it names."""
    from holdfast.reports.comparison_report import comparison_page
    from holdfast.reports.comparison_text import (
        comparison_junit,
        comparison_markdown,
        print_comparison,
    )
    from holdfast.reports.html import write_page
    from holdfast.support.files import write_bytes_atomic, write_json

    paths = {kind: Path(target) for kind, target in files.items() if target != "-"}
    if "json" in paths:
        write_json(paths["json"], result.record(seconds))
    if "markdown" in paths:
        write_bytes_atomic(paths["markdown"], comparison_markdown(result).encode())
    if "junit" in paths:
        write_bytes_atomic(paths["junit"], comparison_junit(result, seconds=seconds))
    if "html" in paths:
        write_page(comparison_page(result), paths["html"])
    if files.get("json") == "-":
        print_json(result.record(seconds))
    elif files.get("markdown") == "-":
        write(Lines(comparison_markdown(result).removesuffix("\n")))
    console = stdout_console() if len(paths) == len(files) else stderr_console()
    print_comparison(result, console)
    for path in paths.values():
        print_line(console, f"Wrote {path}")
