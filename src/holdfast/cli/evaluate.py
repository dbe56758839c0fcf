"""`holdfast evaluate`: what one or several models know, by suites, tasks and files."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from holdfast.checkpoints.named import is_no_model, near_model
from holdfast.cli.console import print_json, print_line, quiet_console, stderr_console, stdout_console
from holdfast.config.command_line import Command
from holdfast.config.declare import Meta, settings_of
from holdfast.config.help import Section
from holdfast.config.values import Mistake
from holdfast.errors import ConfigError, ModelError, NotFinite
from holdfast.evaluation.request import LoadSettings, PlanRequest, ServerSettings, plan_of

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.evaluation.entries import EvaluationPlan
    from holdfast.evaluation.output import Output
    from holdfast.evaluation.session import ModelRequest

DESCRIPTION = """\
Measures models on suites of benchmarks, on held-out text, on their distribution at the answer position.
lm-evaluation-harness runs the benchmarks; options of a question share its prefix, so that it is several times faster at
the same numbers.
Every model's answers are kept question by question: 'holdfast compare' reads them. Nothing is measured twice, and an
interrupted evaluation continues in the middle. The first model is the one that the others are compared with.
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
           (http://localhost:8000/v1, or ...#NAME where it serves several models), or LABEL=MODEL
exit code  0 done; 4 a figure, or a sample behind one, is NaN or infinite (everything else is measured and shown); 2 the
           request has to change
"""


@dataclass(frozen=True, kw_only=True)
class _Where(LoadSettings):
    settings_group: ClassVar[str] = "where"

    output_dir: Annotated[Path, Meta(metavar="FOLDER")] = Path("evaluated")
    """Evaluations, one folder a model, and report.html; may be one of before."""
    device_map: Annotated[Literal["auto", "balanced", "sequential"] | None, Meta(section="loading")] = None
    """Spreads each model over all accelerators, for models that one cannot hold."""
    backend: Annotated[Literal["transformers", "vllm"] | None, Meta(section="loading")] = None
    """Inference engine (what the suite says, else transformers); vllm starts 'vllm serve' for each model, on all
    devices."""
    num_processes: Annotated[int, Meta(ge=1, section="loading")] = 1
    """Processes that share the questions, each holding the whole model; on GPUs one per device."""
    cache: Annotated[Path | None, Meta(metavar="FOLDER")] = None
    """Evaluations that several output folders share."""
    json: bool = False
    """Prints the results as JSON."""
    dry_run: bool = False
    """Checks the request and prints the plan."""


@dataclass(frozen=True, kw_only=True)
class EvaluateRequest(ServerSettings, _Where, PlanRequest):
    """`holdfast evaluate`."""

    model: Annotated[tuple[str, ...], Meta(positional=True, metavar="MODEL ...")] = ()
    """Models, as below; the others are compared with the first."""

    def problems(self) -> list[Mistake]:
        """Models that are not there, suites and entries that cannot be measured."""
        found: list[Mistake] = []
        if not self.model:
            text = "expected at least one model, as in 'holdfast evaluate base tuned --suite knowledge'."
            found.append(Mistake(path=(), text=text))
        if self.num_processes > 1 and self.device_map is not None:
            text = (
                "each process has the whole model, and device_map spreads one over all devices. Leave one of them out."
            )
            found.append(Mistake(path=("num_processes",), text=text))
        return [*found, *model_mistakes(lambda: self.requests, addresses=True), *self._planned[1]]

    @functools.cached_property
    def requests(self) -> list[ModelRequest]:
        """The models with their labels.

        Raises:
            ConfigError: labels that cannot be.
        """
        from holdfast.evaluation.session import requests_of

        return requests_of(self.model)

    @property
    def server(self) -> ServerSettings:
        """How served models are asked."""
        return ServerSettings(**{s.name: getattr(self, s.name) for s in settings_of(ServerSettings)})

    @property
    def plan(self) -> EvaluationPlan:
        """What to measure."""
        return self._planned[0]

    @functools.cached_property
    def _planned(self) -> tuple[EvaluationPlan, list[Mistake]]:
        return plan_of(self)


def model_mistakes(
    requests: Callable[[], list[ModelRequest]], *, key: str = "model", addresses: bool = False
) -> list[Mistake]:
    """What is wrong with the names of models: labels that cannot be, folders that are not there.

    Args:
        requests: makes the requests.
        key: of the setting that names them.
        addresses: whether addresses of servers are taken.
    """
    from holdfast.evaluation.served import is_address

    found = []
    try:
        asked = requests()
    except ConfigError as error:
        return [Mistake(path=(key,), text=problem) for problem in error.problems]
    for one in asked:
        if addresses and is_address(one.name):
            continue
        try:
            if not is_no_model(one.name):
                continue
            text = f"no such model folder: {one.name} (a hub id is written owner/name).{near_model(one.name)}"
        except ModelError as error:
            text = str(error)
        found.append(Mistake(path=(key,), text=text))
    return found


def _suites_text() -> str:
    from holdfast.evaluation.shipped import description_of, shipped_suites

    return "\n".join(f"{name:<32} {description_of(path)}" for name, path in shipped_suites().items())


SUITES = Section(name="suites", summary="the shipped suites", text=_suites_text)
COMMAND = Command(
    name="holdfast evaluate",
    request=EvaluateRequest,
    description=DESCRIPTION,
    epilog=EPILOG,
    sections=(
        Section(name="examples", summary="without a network, a server, programs in the sandbox", text=EXAMPLES),
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
    plan, out = request.plan, request.output_dir
    target = stderr_console() if request.json else stdout_console()
    requests = request.requests

    from holdfast.evaluation.session import check_request, evaluate_models, refuse_foreign

    how: dict[str, Any] = {
        "device": request.device,
        "trust_remote_code": request.trust_remote_code,
        "server": request.server,
    }
    if request.dry_run:
        refuse_foreign(out)
        from holdfast.reports.evaluation_text import plan_blocks
        from holdfast.reports.terminal import Printer

        check_request(requests, plan, **how)
        models = [(r.label, r.name) for r in requests]
        Printer(stdout_console()).show(plan_blocks(plan, models, out))
        return 0
    from holdfast.evaluation.processes import join_launched

    broken, processes = None, join_launched()
    try:
        evaluate_models(
            requests,
            plan,
            out,
            suites=request.suite,
            cache=request.cache,
            dtype=request.dtype,
            device_map=request.device_map,
            **how,
            num_processes=request.num_processes,
            processes=processes,
            console=stderr_console() if processes.is_main else quiet_console(),
            say=lambda line: print_line(target, line) if processes.is_main else None,
        )
    except NotFinite as error:  # what was measured is shown all the same
        broken = error
    if not processes.is_main:
        return 0

    from holdfast.evaluation.averages import SUITE
    from holdfast.evaluation.output import Output

    found, labels = Output(out), [r.label for r in requests]
    keys = [(e.suite, e.name) for e in plan.entries] + [(SUITE, a.name) for a in plan.averages]
    if request.json:
        write_report(found)
        evaluations, comparisons = found.evaluations(labels, keys), found.comparisons(labels, keys)
        print_json({"output_dir": str(out), "evaluations": evaluations, "comparisons": comparisons})
    else:
        show_output(found, labels, keys, target)
    if broken is not None:
        raise broken
    return 0


def show_output(found: Output, labels: list[str], keys: list[tuple[str, str]] | None, target: Console) -> None:
    """Writes the page of an output folder and prints models of it.

    Args:
        found: the folder.
        labels: of the models, the one that the others are compared with first.
        keys: suite and name of the entries; None: all.
        target: where to print.
    """
    from holdfast.reports.evaluation_text import result_blocks
    from holdfast.reports.terminal import Printer

    write_report(found)
    Printer(target).show(result_blocks(found.evaluations(labels, keys), found.comparisons(labels, keys)))
    print_line(target, f"Report    {found.page}")


def write_report(found: Output) -> None:
    """Writes the page with every model of an output folder."""
    from holdfast.reports.evaluation_report import evaluation_page
    from holdfast.reports.html import write_page

    folders = list(found.folders.values())
    page = evaluation_page(found.record, folders, comparisons=found.comparisons(found.labels))
    write_page(page, found.page)
