"""`holdfast cost`: operations, memory by part and GPU-hours of a run or a study, before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.cli.options import OptionParser, console
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.runs.cost.estimate import CostEstimate

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
_TRAIN_NAMES = {"model": "model_name_or_path", "epochs": "num_train_epochs", "window": "max_length"}


def build_parser() -> OptionParser:
    """The options of `holdfast cost` beside those of `holdfast train`."""
    parser = OptionParser(prog="holdfast cost", description=DESCRIPTION, epilog=EPILOG)
    parser.usage = "holdfast cost [CONFIG] [options]"
    parser.add_argument(
        "--config",
        metavar="FILE.yaml",
        help="a configuration of 'holdfast train', or a study; also without the option's name",
    )
    parser.add_argument("--model", metavar="NAME", help="model_name_or_path: a folder with config.json, or a hub id")
    parser.add_argument(
        "--tokens", metavar="N", help="tokens of one epoch of the training data, such as 100M or 250_000"
    )
    parser.add_argument("--epochs", metavar="E", help="num_train_epochs")
    parser.add_argument("--window", metavar="W", help="max_length: tokens of a row at most")
    parser.add_argument(
        "--mean_length", metavar="L", help="tokens of a document on average (without it, documents fill the window)"
    )
    parser.add_argument(
        "--gpu",
        metavar="NAME",
        nargs="+",
        action="extend",
        help="GPUs to reckon with (A100-80GB, H100, RTX-4090); may be repeated",
    )
    parser.add_argument(
        "--utilisation", metavar="U", help="share of a GPU's peak rate that is reached (0.4, an assumption)"
    )
    parser.add_argument(
        "--json", metavar="FILE", help="the estimate as JSON; - for standard output, and nothing else there"
    )
    return parser


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast cost --help`."""
    if not argv:
        raise ConfigError(
            "nothing to reckon: expected a training configuration or a model, as in 'holdfast cost run.yaml' or\n"
            "  holdfast cost --model MODEL --tokens 100M\n'holdfast cost --help' explains the rest."
        )
    words = ["--config", *argv] if not argv[0].startswith("-") else list(argv)
    from holdfast.cli.options import with_underscores

    if any(word in ("--help", "-h") for word in words):
        print(build_parser().format_help(), end="")
        return 0
    own, rest = build_parser().parse_known_args(with_underscores(words))
    problems: list[str] = []
    numbers = {name: _number(name, getattr(own, name), problems) for name in ("mean_length", "utilisation")}
    numbers["tokens"] = _tokens(own.tokens, problems)
    for name, key in _TRAIN_NAMES.items():
        if getattr(own, name) is not None:
            rest += [f"--{key}", getattr(own, name)]

    from holdfast.runs.cost.estimate import UTILISATION, request_problems
    from holdfast.runs.cost.hardware import DEFAULT_GPUS

    gpus = own.gpu or list(DEFAULT_GPUS)
    utilisation = UTILISATION if numbers["utilisation"] is None else numbers["utilisation"]
    problems += request_problems(
        tokens=numbers["tokens"], mean_length=numbers["mean_length"], gpus=gpus, utilisation=utilisation
    )
    options = {
        "tokens": numbers["tokens"],
        "mean_length": numbers["mean_length"],
        "gpus": gpus,
        "utilisation": utilisation,
    }
    file = Path(own.config).expanduser() if own.config is not None else None
    if file is not None and _is_study(file):
        return _study(file, rest, options, problems, own.json)
    from holdfast.runs.cost.request import planned_settings

    settings, found = planned_settings(rest, file)
    from holdfast.support.environment import quiet_libraries

    with quiet_libraries():
        estimate = _estimated(settings, options, [*problems, *found], source=str(file) if file else None)
    if own.json != "-":
        show(estimate, console())
    _write(own.json, estimate.record())
    return 0


def _tokens(text: str | None, problems: list[str]) -> float | None:
    from holdfast.support.token_counts import read_tokens

    try:
        return None if text is None else float(read_tokens(text.replace(",", "")))
    except ValueError as error:
        problems.append(f"--tokens: {error}")
        return None


def _number(name: str, text: str | None, problems: list[str]) -> float | None:
    try:
        return None if text is None else float(text.replace(",", "").replace("_", ""))
    except ValueError:
        problems.append(f"--{name}: expected a number, got {text!r}")
        return None


def _estimated(
    settings: dict[str, Any], options: dict[str, Any], problems: Sequence[str], *, source: str | None
) -> CostEstimate:
    from holdfast.runs.cost.estimate import estimate
    from holdfast.runs.cost.request import planned_config

    planned = planned_config(settings, data_needed=options["tokens"] is None, problems=problems, source=source)
    return estimate(planned.config, model=planned.model, autocast=planned.autocast, tf32=planned.tf32, **options)


def _write(path: str | None, record: Any) -> None:
    if path == "-":
        from holdfast.cli.checkpoint_options import print_json

        print_json(record)
    elif path is not None:
        from holdfast.support.files import write_json

        target = console()
        target.print(f"JSON      {write_json(path, record)}", soft_wrap=True, markup=False, highlight=False)


# ---------------------------------------------------------------------------------------------------------------- study


def _is_study(file: Path) -> bool:
    from holdfast.runs.settings_source import read_yaml

    return "vary" in read_yaml(file).values


def _study(file: Path, rest: list[str], options: dict[str, Any], problems: list[str], json: str | None) -> int:
    """All trials of a study, each with its own settings, times the seeds."""
    from holdfast.runs.settings_source import read_yaml
    from holdfast.studies.tradeoff.study import load_study

    if rest:
        problems.append(
            f"{rest[0]}: a study's trials have the settings of its file; options of 'holdfast train' go into its "
            f"train: section."
        )
    if small := read_yaml(file).values.get("small"):
        problems.append(
            f"small: {small} builds its model and data when the study runs, in minutes on a CPU; there is nothing to "
            f"reckon before."
        )
    if problems:
        raise ConfigError(problems, source=str(file))
    study = load_study(file, prepared=True)
    params = study.trials()
    drawn = study.search.sampler != "grid"
    tried = [study.settings(p) for p in (study.space.corners() if drawn else params)]
    estimates = [_estimated(settings, options, [], source=str(file)) for settings in [study.reference(), *tried]]
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
    if json != "-":
        target = console()
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
    _write(json, record)
    return 0


# ----------------------------------------------------------------------------------------------------------------- text


def show(estimate: CostEstimate, target: Any, *, title: str = "") -> None:
    """Prints an estimate: what runs, operations, memory, GPUs, and what was assumed.

    Args:
        estimate: of one run.
        target: a `rich.console.Console`.
        title: a line before it.
    """
    from holdfast.reports.figures import count
    from holdfast.reports.terminal import Printer

    e, out = estimate, Printer(target)
    a, plan, work, flops, memory = e.architecture, e.plan, e.work, e.flops, e.memory
    if title:
        out.line(title, "bold")
    precision = f"weights in {plan.weights}" + (f", {plan.autocast} autocast" if plan.autocast else "")
    kind = f"LoRA, {count(a.trainable)} parameters trained" if plan.use_peft else "all weights trained"
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
    from holdfast.reports.figures import duration

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
