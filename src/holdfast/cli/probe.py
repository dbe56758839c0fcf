"""`holdfast probe`: how fragile is this checkpoint, or each of a ladder?"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from holdfast.cli.checkpoint_options import Output, carry_out
from holdfast.cli.console import print_json, print_line, stderr_console, stdout_console, stoppable
from holdfast.cli.evaluate import SUITES, model_problems
from holdfast.config.command_line import Command
from holdfast.config.declare import Meta, part_of, settings_of
from holdfast.config.help import Section
from holdfast.errors import ConfigError, Problem
from holdfast.evaluation.ladder import Rung, order_problems, parse_ladder
from holdfast.evaluation.loading import LoadSettings, ModelLoading
from holdfast.evaluation.probe.settings import ChangeSettings, CurvatureSettings
from holdfast.evaluation.probe.stds import INIT, noise_stds
from holdfast.evaluation.request import PlanRequest, WhatSettings, plan_of
from holdfast.support.progress import ProgressDisplay

if TYPE_CHECKING:
    from holdfast.evaluation.entries import EvaluationPlan
    from holdfast.evaluation.session import ModelRequest
    from holdfast.runs.probed_checkpoint import Probe

PAGE = "report.html"
DESCRIPTION = """\
Changes a model's weights in many ways and measures what each change costs: Gaussian noise, rounding to 8 and 4 bits,
pruning, steps towards a fine-tuned model and beyond. For a ladder (one model at rising pre-training budgets) it shows
whether longer training made the model more fragile, as the overtraining paper finds. The model is loaded once and
changed in place. Each change is undone bit for bit. Interrupted? Run the same command to continue.
"""
EXAMPLES = """\
  holdfast probe base --corpus prose.jsonl --noise 0.01 0.03 --noise_seeds 5 \\
      --quantize int4
  holdfast probe base --corpus prose.jsonl --tasks arc_easy --limit 200 \\
      --quantize int8 nf4
  holdfast probe base --corpus prose.jsonl --curvature 32 --dtype float32
  # write a checkpoint with this noise, without measuring
  holdfast probe base --noise 0.01 --noise_seed 1 --write noisy

  # a ladder: one model at rising budgets
  holdfast probe allenai/OLMo-1B-hf \\
      --revisions step117850-tokens494B step738000-tokens3094B \\
      --corpus c4.jsonl
  # ladder: [{model: FOLDER, tokens: 4.1e6}, ...]
  holdfast probe --ladder ladder.yaml --corpus prose.jsonl

exit code  0 done (even if a changed model has figures that are NaN or infinite);
           4 figures of an unchanged model are NaN or infinite; 2 the request has to change
"""
EPILOG = """\
examples
  # all changes, at several sizes
  holdfast probe base --corpus prose.jsonl
  # from the base to the fine-tuned model, and beyond
  holdfast probe base --corpus prose.jsonl --toward tuned
"""


@dataclass(frozen=True, kw_only=True)
class _Where(LoadSettings):
    settings_group: ClassVar[str] = "where"

    output_dir: Annotated[Path, Meta(metavar="FOLDER")] = Path("probed")
    """Folder for probe.json, report.html and the evaluations, one folder per model and change.
    The folder may already have results."""
    json: bool = False
    """Print the record as JSON."""
    dry_run: Annotated[bool, Meta(yaml=False)] = False
    """Check the request and list what would be measured."""
    write: Annotated[Path | None, Meta(metavar="FOLDER", section="noise_draws")] = None
    """Checkpoint folder to write: the model with one size of --noise, drawn with --noise_seed.
    Nothing is measured."""


@dataclass(frozen=True, kw_only=True)
class _Models:
    settings_group: ClassVar[str] = "which models"

    model: Annotated[tuple[str, ...], Meta(positional=True, metavar="MODEL ...")] = ()
    """Folder, adapter, hub id (also owner/name@revision), or LABEL=MODEL."""
    revisions: Annotated[
        tuple[str, ...], Meta(repeatable=True, metavar="NAME", section="ladders")
    ] = ()
    """Revisions of the model that form a ladder. Each name contains the number of tokens
    (step1000-tokens4B)."""
    ladder: Annotated[
        tuple[Rung, ...],
        Meta(
            section="ladders",
            parse=parse_ladder,
            metavar="FILE",
            json_schema=lambda: {"type": ["array", "string"]},
        ),
    ] = ()
    """A YAML file with 'ladder:': models with their numbers of pre-training tokens, the smallest
    first."""


@dataclass(frozen=True, kw_only=True)
class ProbeRequest(_Where, CurvatureSettings, ChangeSettings, PlanRequest, _Models):
    """`holdfast probe`."""

    corpus: Annotated[
        tuple[str, ...], Meta(repeatable=True, metavar="FILE", group=WhatSettings.settings_group)
    ] = ()
    """Held-out text like the model's pre-training data, in any format that 'holdfast train'
    reads."""
    perplexity: Annotated[tuple[str, ...], Meta(repeatable=True, metavar="FILE", hidden=True)] = ()
    """The same option as --corpus, under its name in 'holdfast evaluate'."""

    def problems(self) -> list[str | Problem]:
        """Models that are not there or form no ladder, and what cannot be measured."""
        if self.write is not None:
            return [*self._write_problems(), *model_problems(lambda: self.requests)]
        problems = self._ladder_problems()
        if not problems:
            problems += [
                Problem("revisions", f"{text}")
                for text in (order_problems(self.rungs) if self.revisions else ())
            ]
            problems += model_problems(lambda: self.requests)
            problems += model_problems(lambda: _requests(self.toward), key="toward")
        return [*problems, *self._planned[1]]

    def _ladder_problems(self) -> list[str]:
        if self.ladder and (self.model or self.revisions):
            return [
                "expected either --ladder or models on the command line, got both. Leave one of "
                "them out."
            ]
        if self.revisions and len(self.model) != 1:
            return [f"--revisions: expected one model with these revisions, got {len(self.model)}."]
        if not (self.ladder or self.model):
            return [
                "expected a model, as in 'holdfast probe base --corpus prose.jsonl', or --ladder "
                "FILE."
            ]
        return []

    def _write_problems(self) -> list[Problem]:
        """What keeps a checkpoint with noise from being written."""
        problems = []
        if len(self.model) != 1 or self.revisions or self.ladder:
            problems.append(
                Problem("write", "expected one model, of which a changed copy is written.")
            )
        if len(self.noise) != 1 or self.quantize or self.prune or self.toward:
            problems.append(
                Problem(
                    "write", "expected exactly one size of --noise, and no other kind of change."
                )
            )
        return problems

    @functools.cached_property
    def rungs(self) -> list[Rung]:
        """The models, smallest budget first where they are a ladder."""
        if self.ladder:
            return list(self.ladder)
        if self.revisions:
            # a label of the whole ladder says nothing of its rungs
            label, equals, name = self.model[0].partition("=")
            model = name if equals else label
            return [
                Rung(model=f"{model}@{revision}", label=revision) for revision in self.revisions
            ]
        return [Rung(model=name) for name in self.model]

    @functools.cached_property
    def requests(self) -> list[ModelRequest]:
        """The models with their labels.

        Raises:
            ConfigError: labels that cannot be.
        """
        return _requests([f"{r.label}={r.model}" if r.label else r.model for r in self.rungs])

    @property
    def tokens(self) -> dict[str, float]:
        """Budgets by label; empty where the models are no ladder."""
        if not (self.ladder or self.revisions):
            return {}
        budgets = [rung.budget or 0.0 for rung in self.rungs]
        return dict(zip([request.label for request in self.requests], budgets, strict=True))

    @property
    def plan(self) -> EvaluationPlan:
        """What to measure."""
        return self._planned[0]

    @functools.cached_property
    def _planned(self) -> tuple[EvaluationPlan, list[Problem]]:
        files = (*self.corpus, *self.perplexity)
        nothing = (
            "expected --corpus FILE with held-out text, or --tasks TASK ..., on which the changes "
            "are measured."
        )
        return plan_of(
            dataclasses.replace(part_of(self, PlanRequest), perplexity=files), nothing=nothing
        )

    @property
    def probe(self) -> Probe:
        """What is done to every model."""
        from holdfast.runs.probed_checkpoint import Probe

        curvature = part_of(self, CurvatureSettings)
        return Probe(changes=self.changes(), std=self.std, toward=self.toward, curvature=curvature)

    @property
    def recorded(self) -> dict[str, Any]:
        """The settings as a record has them."""
        names = [setting.name for setting in settings_of(type(self)) if setting.name not in _ASIDE]
        return {name: _recorded(getattr(self, name)) for name in names}


_ASIDE = ("output_dir", "json", "dry_run", "device", "write")
"""Settings that decide no figure."""


def _recorded(value: Any) -> Any:
    """A setting as a record has it: files and folders by their names, no machine's paths."""
    from holdfast.support.environment import shown_name
    from holdfast.support.files import to_jsonable

    if isinstance(value, str):
        return shown_name(value)
    return [_recorded(item) for item in value] if isinstance(value, tuple) else to_jsonable(value)


def _requests(names: Iterable[str]) -> list[ModelRequest]:
    from holdfast.evaluation.session import requests_of

    return requests_of(list(names))


COMMAND = Command(
    name="holdfast probe",
    request=ProbeRequest,
    description=DESCRIPTION,
    epilog=EPILOG,
    sections=(
        Section(name="examples", summary="tasks, curvature, a ladder", text=EXAMPLES),
        SUITES,
    ),
    usage="MODEL [MODEL ...] --corpus FILE [options]",
    yaml_needs="'model:' or 'ladder:', and 'corpus:'",
)


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast probe --help`.

    Raises:
        NotFinite: figures of a model as it is are NaN or infinite.
    """
    request = COMMAND.read(argv)
    if request.write is not None:
        return write_noisy(request, request.write)
    plan, probe, models, folder = request.plan, request.probe, request.requests, request.output_dir
    loading = ModelLoading(
        dtype=request.dtype, device=request.device, trust_remote_code=request.trust_remote_code
    )

    from holdfast.evaluation.ladder import unlike
    from holdfast.runs.probing import check_probe, probe_models

    names = [model.name for model in models]
    if request.tokens and (differ := unlike(names, trust_remote_code=request.trust_remote_code)):
        raise ConfigError(differ, source="the ladder")
    console = stderr_console() if request.json else stdout_console()
    if request.dry_run:
        check_probe(models, plan, probe, loading)
        labels, changes = (
            ", ".join(model.label for model in models),
            ", ".join(c.name for c in probe.changes),
        )
        count = len(models) * (1 + len(probe.changes))
        print_line(stdout_console(), f"{labels}: {changes}")
        print_line(
            stdout_console(),
            f"{count} times {', '.join(entry.name for entry in plan.entries)}; sound.",
        )
        return 0
    record = probe_models(
        models,
        plan,
        probe,
        folder,
        tokens=request.tokens,
        settings=request.recorded,
        loading=loading,
        display=ProgressDisplay(
            console=stderr_console(), say=lambda line: print_line(console, line)
        ),
    )
    if request.json:
        from holdfast.reports.html import write_page
        from holdfast.reports.probe_report import probe_page

        write_page(probe_page(record), folder / PAGE)
        print_json(record)
    else:
        report(folder)
    return 0


def write_noisy(request: ProbeRequest, folder: Path) -> int:
    """Writes the model with noise on its weights: the bits that a probe measures with that size and
    seed.

    Raises:
        HoldfastError: see `holdfast.checkpoints.perturb.prepare_perturb` and `Prepared.write`.
    """
    from holdfast.checkpoints.locate import open_source
    from holdfast.checkpoints.perturb import prepare_perturb
    from holdfast.checkpoints.sources import folders_of

    name = request.requests[0].name
    source = open_source(name)
    if request.std == INIT:
        from holdfast.training.fresh_init import init_stds

        folders = [path for path in folders_of(source) if (path / "config.json").is_file()]
        stds = init_stds(folders[-1], stored=True)
    else:
        stds = noise_stds(request.std, source)
    dtype = None if request.dtype == "auto" else request.dtype
    output = Output(output_dir=folder, dry_run=request.dry_run, json=request.json)
    with stoppable():
        prepared = prepare_perturb(
            name, scale=float(request.noise[0]), seed=request.noise_seed, stds=stds, dtype=dtype
        )
        return carry_out(prepared, output)


def report(folder: Path) -> None:
    """Writes the page of a probe's folder and prints its tables.

    Raises:
        DataError: the record cannot be read.
    """
    from holdfast.records.probe import read_probe
    from holdfast.reports.html import write_page
    from holdfast.reports.probe_report import probe_blocks, probe_page
    from holdfast.reports.terminal import Printer

    record, console = read_probe(folder), stdout_console()
    page = write_page(probe_page(record), folder / PAGE)
    Printer(console).show(probe_blocks(record))
    print_line(console, f"Report    {page}")
