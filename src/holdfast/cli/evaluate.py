"""`holdfast evaluate`: what one or several models know, by suites, tasks and files."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from holdfast.checkpoints.named import is_no_model, near_model
from holdfast.cli.console import (
    print_json,
    print_line,
    quiet_console,
    stderr_console,
    stdout_console,
)
from holdfast.config.command_line import Command
from holdfast.config.declare import Meta, part_of
from holdfast.config.help import Section
from holdfast.errors import ConfigError, ModelError, NotFinite, Problem
from holdfast.evaluation.loading import LoadSettings, ModelLoading, ServerSettings
from holdfast.evaluation.request import PlanRequest, plan_of
from holdfast.support.environment import quiet_libraries, terminated_is_interrupted
from holdfast.support.progress import ProgressDisplay

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.evaluation.entries import EvaluationPlan
    from holdfast.evaluation.output import Output
    from holdfast.evaluation.session import ModelRequest
    from holdfast.models import Loaded

DESCRIPTION = """\
Measures models on benchmark suites, on held-out text, and by their next-token probabilities where an answer is
expected. lm-evaluation-harness runs the benchmarks. Text that the options of a question share is computed once. This
gives the same numbers several times faster. The answers of every model are stored question by question, for 'holdfast
compare'. Nothing is measured twice, and an interrupted evaluation continues where it stopped. All other models are
compared with the first one.
"""
EXAMPLES = """\
  # without a network: local files in place of the hub's, columns as published
  holdfast evaluate base --tasks mmlu arc_easy \\
      --data mmlu=test.jsonl arc_easy=easy.jsonl --fewshot_data mmlu=dev.jsonl

  # a model as it is served (vllm serve tuned), beside its base in memory
  holdfast evaluate base http://localhost:8000/v1 --suite knowledge

  # programs that the model writes, in the sandbox
  holdfast evaluate base --tasks humaneval --data humaneval=HumanEval.jsonl.gz \\
      --allow_code_execution
"""
EPILOG = """\
examples
  holdfast evaluate base tuned --suite knowledge --output_dir measured
  holdfast evaluate base tuned --tasks mmlu gsm8k --limit 200 \\
      --perplexity prose.jsonl
  holdfast evaluate before=runs/a/checkpoint-100 after=runs/a \\
      --suite my_suite.yaml

MODEL      a folder (of a model or a PEFT adapter), a hub id, the address of an OpenAI-compatible server
           (http://localhost:8000/v1, or ...#NAME if it serves several models), or LABEL=MODEL
exit code  0 done; 4 a figure, or a sample behind one, is NaN or infinite (everything else is measured and shown); 2 the
           request has to change
"""


@dataclass(frozen=True, kw_only=True)
class _Where(LoadSettings):
    settings_group: ClassVar[str] = "where"

    output_dir: Annotated[Path, Meta(metavar="FOLDER")] = Path("evaluated")
    """Folder for report.html and the evaluations, one folder per model. The folder may already
    have results."""
    device_map: Annotated[
        Literal["auto", "balanced", "sequential"] | None, Meta(section="loading")
    ] = None
    """Spread each model over all accelerators, if it is too large for one."""
    num_processes: Annotated[int, Meta(ge=1, section="loading")] = 1
    """Number of processes that share the questions; each process loads the whole model. On GPUs,
    use one process per device."""
    cache: Annotated[Path | None, Meta(metavar="FOLDER")] = None
    """Folder for evaluations, shared by several output folders."""
    json: bool = False
    """Print the results as JSON."""
    dry_run: bool = False
    """Check the request and print the plan."""
    repeat: Annotated[int, Meta(ge=1, metavar="TIMES")] = 1
    """Measure each model N times, with different batch sizes and sampling seeds, to show
    measurement noise."""
    plan: bool = False
    """Measure a few samples on the first model. Then print the smallest loss that each entry can
    detect, and the time that each entry takes."""
    flips: Annotated[float, Meta(gt=0, le=1, metavar="SHARE", section="plan")] = 0.1
    """For --plan: the assumed share of questions that two models answer differently (one right, one
    wrong)."""


@dataclass(frozen=True, kw_only=True)
class EvaluateRequest(ServerSettings, _Where, PlanRequest):
    """`holdfast evaluate`."""

    model: Annotated[tuple[str, ...], Meta(positional=True, metavar="MODEL ...")] = ()
    """Models to measure, see below. All other models are compared with the first one."""

    def problems(self) -> list[str | Problem]:
        """Models that are not there, suites and entries that cannot be measured."""
        problems: list[str] = []
        if not self.model:
            problems.append(
                "expected at least one model, as in 'holdfast evaluate base tuned --suite "
                "knowledge'."
            )
        if self.num_processes > 1 and self.repeat > 1:
            text = "needs a single process. Leave num_processes out."
            problems.append(Problem("repeat", text))
        if self.num_processes > 1 and self.device_map is not None:
            text = (
                "each process loads the whole model, but device_map spreads one model over all "
                "devices"
            )
            problems.append(Problem("num_processes", f"{text}. Leave one of them out."))
        return [
            *problems,
            *model_problems(lambda: self.requests, addresses=True),
            *self._planned[1],
        ]

    @functools.cached_property
    def requests(self) -> list[ModelRequest]:
        """The models with their labels.

        Raises:
            ConfigError: labels that cannot be.
        """
        from holdfast.evaluation.session import requests_of

        return requests_of(self.model)

    @property
    def to_measure(self) -> EvaluationPlan:
        """What to measure."""
        return self._planned[0]

    @functools.cached_property
    def _planned(self) -> tuple[EvaluationPlan, list[Problem]]:
        return plan_of(self)


def model_problems(
    requests: Callable[[], list[ModelRequest]], *, key: str = "model", addresses: bool = False
) -> list[str]:
    """What is wrong with the names of models: labels that cannot be, folders that are not there.

    Args:
        requests: makes the requests.
        key: of the setting that names them.
        addresses: whether addresses of servers are taken.
    """
    from holdfast.evaluation.served import is_address

    texts: list[str] = []
    try:
        names = [request.name for request in requests()]
    except ConfigError as error:
        names, texts = [], [*error.problems]
    for name in names:
        if addresses and is_address(name):
            continue
        try:
            if is_no_model(name):
                texts.append(
                    f"no such model folder: {name} (a hub id has the form "
                    f"owner/name).{near_model(name)}"
                )
        except ModelError as error:
            texts.append(str(error))
    return [Problem(key, text) for text in texts]


def _suites_text() -> str:
    from holdfast.evaluation.shipped import description_of, shipped_suites

    return "\n".join(
        f"{name:<32} {description_of(path)}" for name, path in shipped_suites().items()
    )


SUITES = Section(name="suites", summary="the shipped suites", text=_suites_text)
COMMAND = Command(
    name="holdfast evaluate",
    request=EvaluateRequest,
    description=DESCRIPTION,
    epilog=EPILOG,
    sections=(
        Section(
            name="examples",
            summary="without a network, a server, programs in the sandbox",
            text=EXAMPLES,
        ),
        SUITES,
    ),
    usage="MODEL [MODEL ...] --suite NAME [options]",
)


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast evaluate --help`.

    Raises:
        NotFinite: figures are NaN or infinite; tables and the page are written.
    """
    request = COMMAND.read(argv)
    models, plan, folder = request.requests, request.to_measure, request.output_dir
    loading = ModelLoading(
        dtype=request.dtype,
        device=request.device,
        device_map=request.device_map,
        trust_remote_code=request.trust_remote_code,
        server=part_of(request, ServerSettings),
    )

    from holdfast.evaluation.output import Output
    from holdfast.evaluation.session import (
        check_request,
        evaluate_models,
        load_model,
        refuse_foreign,
    )

    if request.dry_run:
        refuse_foreign(folder)
        check_request(models, plan, loading=loading)

        from holdfast.reports.evaluation_text import plan_blocks
        from holdfast.reports.terminal import Printer

        Printer(stdout_console()).show(
            plan_blocks(plan, [(model.label, model.name) for model in models], folder)
        )
        return 0
    if request.plan:
        check_request(models, plan, loading=loading)
        with quiet_libraries(), terminated_is_interrupted():
            print_forecasts(plan, load_model(models[0], loading), request.flips)
        return 0
    from holdfast.evaluation.processes import join_launched
    from holdfast.evaluation.repeats import repeat_models

    console = stderr_console() if request.json else stdout_console()
    processes = join_launched()
    not_finite: NotFinite | None = None
    try:
        evaluate_models(
            models,
            plan,
            folder,
            suites=request.suite,
            cache=request.cache,
            loading=loading,
            processes=processes if processes.world_size > 1 else request.num_processes,
            display=ProgressDisplay(
                console=stderr_console() if processes.is_main else quiet_console(),
                say=lambda line: print_line(console, line) if processes.is_main else None,
            ),
        )
        if request.repeat > 1:
            say = functools.partial(print_line, console)
            display = ProgressDisplay(console=stderr_console(), say=say)
            with quiet_libraries(), terminated_is_interrupted():
                repeat_models(
                    models, plan, folder, times=request.repeat, loading=loading, display=display
                )
    except NotFinite as error:  # what was measured is shown all the same
        not_finite = error
    if not processes.is_main:
        return 0

    from holdfast.evaluation.averages import SUITE

    output, labels = Output(folder), [model.label for model in models]
    keys = [(entry.suite, entry.name) for entry in plan.entries]
    keys += [(SUITE, average.name) for average in plan.averages]
    if request.json:
        write_report(output)
        evaluations, comparisons = (
            output.evaluations(labels, keys),
            output.comparisons(labels, keys),
        )
        print_json(
            {"output_dir": str(folder), "evaluations": evaluations, "comparisons": comparisons}
        )
    else:
        show_output(output, labels, keys, console)
    if not_finite is not None:
        raise not_finite
    return 0


def print_forecasts(plan: EvaluationPlan, loaded: Loaded, flips: float) -> None:
    """Prints what a plan can show, a row an entry."""
    from holdfast.evaluation.forecast import forecasts
    from holdfast.reports.evaluation_text import forecast_blocks
    from holdfast.reports.terminal import Printer
    from holdfast.support.progress import progress

    costs = []
    with progress("Measuring a few samples", total=len(plan.entries)) as advance:
        for forecast in forecasts(plan, loaded, flips=flips):
            costs.append(forecast)
            advance(1)
    Printer(stdout_console()).show(forecast_blocks(costs, flips=flips, confidence=plan.confidence))


def report(folder: Path) -> None:
    """Writes the page of an output folder and prints all of its models."""
    from holdfast.evaluation.output import Output

    output = Output(folder)
    show_output(output, output.labels, None, stdout_console())


def show_output(
    output: Output, labels: list[str], keys: list[tuple[str, str]] | None, console: Console
) -> None:
    """Writes the page of an output folder and prints models of it.

    Args:
        output: the folder.
        labels: of the models, the one that the others are compared with first.
        keys: suite and name of the entries; None: all.
        console: where to print.
    """
    from holdfast.reports.evaluation_text import result_blocks
    from holdfast.reports.terminal import Printer

    write_report(output)
    Printer(console).show(
        result_blocks(output.evaluations(labels, keys), output.comparisons(labels, keys))
    )
    print_line(console, f"Report    {output.page}")


def write_report(output: Output) -> None:
    """Writes the page with every model of an output folder."""
    from holdfast.reports.evaluation_report import evaluation_page
    from holdfast.reports.html import write_page

    folders = list(output.folders.values())
    page = evaluation_page(output.record, folders, comparisons=output.comparisons(output.labels))
    write_page(page, output.page)
