"""`holdfast cost`: operations, memory by part and GPU-hours of a run or a study, before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from holdfast.cli.console import stdout_console
from holdfast.config.command_line import Command, find_option
from holdfast.config.declare import Meta, settings_of
from holdfast.config.decode import Given, decode
from holdfast.config.values import Mistake
from holdfast.config.yaml_file import read_yaml
from holdfast.errors import ConfigError
from holdfast.runs.cost.request import CostSettings
from holdfast.support.paths import expanded

if TYPE_CHECKING:
    from holdfast.runs.cost.estimate import CostEstimate
    from holdfast.runs.cost.request import Planned

DESCRIPTION = """\
What a run will cost, before anything runs: floating-point operations, memory by part, hours on named GPUs. Reads the
YAML and the options of 'holdfast train' and the model's config.json; loads no weights and downloads no data.
"""
EPILOG = """\
also every option of 'holdfast train', such as --learning_rate, --use_peft, --retention label_annealing:weight=1.0

tokens
  --tokens, or the run's own max_steps, or training data on this machine, of which a sample is tokenised.

examples
  holdfast cost run.yaml
  holdfast cost run.yaml --gpu H100 --gpu RTX-4090 --utilisation 0.35 --json cost.json
  holdfast cost study.yaml                                    # a study of 'holdfast sweep': its trials together

  # no YAML: a folder with config.json, or a hub id; weights are not needed
  holdfast cost --model meta-llama/Llama-3.1-8B --tokens 100M --epochs 5 --window 4096 --num_processes 8

  # instruction tuning on 204,800M tokens against continued pre-training on 100M, both 5 epochs: 2048 times as much,
  # by 6 x parameters x tokens x epochs (the instruction residual's paper) and by what is counted here
  holdfast cost --model meta-llama/Meta-Llama-3-8B --tokens 204800M --epochs 5 --window 4096
  holdfast cost --model meta-llama/Meta-Llama-3-8B --tokens 100M --epochs 5 --window 4096

figures
  Operations and memory are within 15 % and 10 % of measured steps where they were measured (docs/cost.md). Hours follow
  from a GPU's peak rate and a utilisation that is assumed: measure a few steps to know yours.
"""
TRAIN_KEYS = {"model": "model_name_or_path", "epochs": "num_train_epochs", "window": "max_length"}
"""Short options for keys of 'holdfast train'."""


@dataclass(frozen=True, kw_only=True)
class _Short:
    model: Annotated[str | None, Meta(metavar="NAME")] = None
    """model_name_or_path: a folder with config.json, or a hub id."""
    epochs: Annotated[float | None, Meta(metavar="E")] = None
    """num_train_epochs."""
    window: Annotated[int | None, Meta(metavar="W")] = None
    """max_length: tokens of a row at most."""


@dataclass(frozen=True, kw_only=True)
class CostRequest(CostSettings, _Short):
    """`holdfast cost`, beside the options of `holdfast train`."""

    json: Annotated[str | None, Meta(metavar="FILE")] = None
    """The estimate as JSON; - for standard output, and nothing else there."""


COMMAND = Command(
    name="holdfast cost",
    request=CostRequest,
    description=DESCRIPTION,
    epilog=EPILOG,
    usage="[--config] FILE.yaml [options]",
)


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast cost --help`."""
    if not argv:
        raise ConfigError(
            "nothing to estimate: expected a training configuration or a model, as in 'holdfast cost run.yaml' or\n"
            "  holdfast cost --model MODEL --tokens 100M\n'holdfast cost --help' explains the rest."
        )
    if any(word in ("--help", "-h") for word in argv):
        print(COMMAND.help(), end="")
        return 0
    request, given = read(argv)
    file = find_option(_words(argv), "config")

    from holdfast.runs.config import read_file
    from holdfast.runs.cost.request import planned
    from holdfast.support.environment import quiet_libraries

    if file is not None and "vary" in read_yaml(file).values:
        return _study(expanded(file), given, request)
    with quiet_libraries():
        estimate = _estimated(planned(given.over(read_file(file)), data_needed=request.tokens is None), request)
    if request.json != "-":
        show(estimate, stdout_console())
    _write(request.json, estimate.record())
    return 0


def _words(argv: list[str]) -> list[str]:
    return ["--config", *argv] if not argv[0].startswith("-") else argv


def read(argv: list[str]) -> tuple[CostRequest, Given]:
    """The command's own options, and what its words say of 'holdfast train''s keys, with every mistake so far."""
    from holdfast.runs.config import given_words

    own = {s.name: s for s in settings_of(CostRequest)}
    given = given_words(_words(argv), own)
    for name, key in TRAIN_KEYS.items():
        for value in given.take(name).values():
            given.values[key] = value
            given.from_line.add(key)
    request, mistakes = decode(CostRequest, given.take(*own))
    given.mistakes += mistakes
    return request or CostRequest(), given


def _estimated(run: Planned, request: CostRequest) -> CostEstimate:
    from holdfast.runs.cost.estimate import estimate

    return estimate(
        run.config,
        model=run.model,
        autocast=run.autocast,
        tf32=run.tf32,
        tokens=request.tokens,
        mean_length=request.mean_length,
        gpus=request.gpu,
        utilisation=request.utilisation,
    )


def _write(path: str | None, record: Any) -> None:
    if path == "-":
        from holdfast.cli.console import print_json

        print_json(record)
    elif path is not None:
        from holdfast.support.files import write_json

        target = stdout_console()
        target.print(f"JSON      {write_json(path, record)}", soft_wrap=True, markup=False, highlight=False)


# ---------------------------------------------------------------------------------------------------------------- study


def _study(file: Path, given: Given, request: CostRequest) -> int:
    """All trials of a study, each with its own settings, times the seeds."""
    from holdfast.runs.cost.request import planned_config
    from holdfast.studies.tradeoff.study import load_study

    for key in given.values:
        text = "a study's trials have the settings of its file; options of 'holdfast train' go into its train: section."
        given.mistakes.append(Mistake(path=(key,), text=text))
    if small := read_yaml(file).values.get("small"):
        text = f"{small} builds its model and data when the study runs, in minutes on a CPU; nothing is known before."
        given.mistakes.append(Mistake(path=("small",), text=text))
    given.check()
    study = load_study(file, prepared=True)
    params = study.trials()
    drawn = study.search.sampler != "grid"
    tried = [study.settings(p) for p in (study.space.corners() if drawn else params)]
    data_needed = request.tokens is None
    estimates = [
        _estimated(planned_config(settings, data_needed=data_needed), request)
        for settings in [study.reference(), *tried]
    ]
    reference, trials = estimates[0], estimates[1:]
    count = len(params) if drawn else len(trials)
    seeds = len(study.seeds)

    def together(of: Any) -> float:
        mean = sum(map(of, trials)) / len(trials) if trials else 0.0
        return float((of(reference) + mean * count) * seeds)

    largest = max(estimates, key=lambda e: e.memory.needed)
    runs = (count + 1) * seeds
    record: dict[str, Any] = {
        "study": study.name,
        "runs": runs,
        "flops": together(lambda e: e.flops.total),
        "gpu_hours": {
            gpu.gpu.name: together(lambda e, i=i: e.gpus[i].gpu_hours) for i, gpu in enumerate(reference.gpus)
        },
        "largest": largest.record(),
    }
    if request.json != "-":
        target = stdout_console()
        show(largest, target, title="The trial that needs most memory")
        lines = [
            "",
            f"Study '{study.name}': {count} trials and direct fine-tuning, {seeds} seed{'s' if seeds != 1 else ''} "
            f"each: {runs} runs, "
            f"{scaled(record['flops'])}FLOP in all",
            *(f"  {name:<12} {hours:,.1f} GPU-hours" for name, hours in record["gpu_hours"].items()),
        ]
        if drawn:
            lines.append(
                f"  Trials are drawn as the study runs: each counts as the mean of {len(trials)} combinations at the "
                f"ends of what varies."
            )
        lines.append("  Evaluations are not counted; a teacher that trials share (cached) makes the study cheaper.")
        target.print("\n".join(lines), soft_wrap=True, markup=False, highlight=False)
    _write(request.json, record)
    return 0


# ----------------------------------------------------------------------------------------------------------------- text


def show(estimate: CostEstimate, target: Any, *, title: str = "") -> None:
    """Prints an estimate: what runs, operations, memory, GPUs, and what was assumed.

    Args:
        estimate: of one run.
        target: a `rich.console.Console`.
        title: a line before it.
    """
    from holdfast.reports.format import count
    from holdfast.reports.terminal import Printer

    e, out = estimate, Printer(target)
    a, plan, work, flops, memory = e.architecture, e.plan, e.work, e.flops, e.memory
    if title:
        out.line(title, "bold")
    precision = f"weights in {plan.weights}" + (f", {plan.autocast} autocast" if plan.autocast else "")
    kind = f"LoRA, {count(a.trainable)} parameters trained" if plan.use_peft else "all weights trained"
    if plan.half_frozen:
        kind = f"LoRA, at most {count(a.trainable // 2)} parameters trained, as many kept beside them"
    out.line(f"{e.model}: {count(a.parameters)} parameters ({kind}, {precision})", "bold")
    experts = f", of {a.experts} experts {a.experts_used:g} a token" if a.experts else ""
    out.line(
        f"          {count(a.multiplied)} of them multiply a token (layers and head{experts}), {count(a.embedding)} "
        f"are looked up"
    )
    packing = {
        "bfd": "packed",
        "bfd_split": "packed, split",
        "wrapped": "packed, cut anywhere",
        "padding_free": "without padding",
    }
    batch = (
        f"{plan.rows} x {plan.accumulation} accumulated x {plan.processes} process{'es' if plan.processes != 1 else ''}"
    )
    rows = f"{packing.get(plan.packing or '', 'padded')}, window {plan.window}"
    out.line(f"Data      {e.data}")
    out.line(f"Training  {count(work.tokens)} tokens, {work.steps:,} steps of {batch} ({rows})")
    if plan.methods:
        out.line(f"Methods   {', '.join(plan.methods)}" + (f" (teacher: {plan.teacher.kind})" if plan.teacher else ""))
    out.line()
    parts = [
        ("layers, forward", flops.forward),
        ("layers, backward", flops.backward),
        ("output head", flops.head),
        ("attention", flops.attention),
        ("computed again (gradient checkpointing)", flops.recomputed),
        ("adapters", flops.adapters),
        ("teacher", flops.teacher),
        ("before the first step", flops.prepared),
    ]
    cells = [[(name, ""), (f"{scaled(v)}FLOP", ""), (f"{v / flops.total:.1%}", "dim")] for name, v in parts if v]
    cells.append([("total", "bold"), (f"{scaled(flops.total)}FLOP", "bold"), ("", "")])
    cells.append(
        [
            ("6 x parameters x tokens x epochs", "dim"),
            (f"{scaled(flops.paper)}FLOP", "dim"),
            (f"{flops.paper / flops.total:.1%}", "dim"),
        ]
    )
    out.table("Operations", [("Part", False), ("Whole run", True), ("Share", True)], cells)
    cells = [
        [(p.name, ""), (size(p.bytes), ""), (f"{p.where}: {p.note}" if p.where != "device" else p.note, "dim")]
        for p in memory.parts
    ]
    held = {
        "loss": "while the loss is computed",
        "backward": "as the backward begins",
        "end": "when all gradients are there",
    }
    cells.append(
        [
            ("largest sum", "bold"),
            (size(memory.peak), "bold"),
            (f"{held[memory.phase]}; with context and gaps {size(memory.needed)}", ""),
        ]
    )
    where = "Memory of one process" + (f" of {plan.processes} ({plan.sharding})" if plan.processes > 1 else "")
    out.table(where, [("Part", False), ("Size", True), ("What", False)], cells)
    cells = []
    for on in e.gpus:
        verdict = ("fits", "green") if on.fits else ("does not fit", "red")
        cells.append(
            [
                (on.gpu.name, ""),
                (f"{on.gpu.memory:g} GB", ""),
                verdict,
                (f"{on.gpu_hours:,.3g}", ""),
                (_wall(on.hours), ""),
            ]
        )
    columns = [("GPU", False), ("Memory", True), ("", False), ("GPU-hours", True), ("Time", True)]
    out.table(f"At {e.utilisation:.0%} of the peak rate", columns, cells)
    for on in e.gpus:
        for number, line in enumerate(on.advice):
            out.line(
                f"{on.gpu.name if number == 0 else '':<12}{'would fit with ' if 'nothing' not in line else ''}{line}"
            )
    out.line()
    out.line("Assumed")
    for text in e.assumptions:
        out.line(f"- {text}", "dim")


def _wall(hours: float) -> str:
    from holdfast.reports.format import duration

    return duration(hours * 3600)


def scaled(value: float) -> str:
    """`1.23 P`, `45.6 T`: a number of operations before its unit."""
    for limit, letter in ((1e24, "Y"), (1e21, "Z"), (1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= limit:
            return f"{value / limit:,.4g} {letter}"
    return f"{value:,.0f} "


def size(count: float) -> str:
    """Bytes in GB, or MB where they are few."""
    return f"{count / 1e9:,.2f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"
