"""What other libraries offer against forgetting, beside the methods of this one: same base, same data, same evaluation.

    python benchmarks/rivals.py                   # all arms on the embedded corpus; the table
    python benchmarks/rivals.py --quick           # under a minute: a few steps on a smaller base; its figures mean
                                                  little
    python benchmarks/rivals.py --only osf lora   # arms whose name begins so, and direct
    python benchmarks/rivals.py --seeds 3         # fine-tunings an arm
    python benchmarks/rivals.py --folder DIR      # run folders are kept there; what is finished is not run again
    python benchmarks/rivals.py --save FILE       # the figures as JSON

The set-up is the quickstart's: a base of about one million parameters that knows English prose (the source) learns
Python source (the target) for 100 steps. Each arm is an ordinary `holdfast train`. Rivals are run by their own code:

| arm | whose code | what it does |
|---|---|---|
| `lora` | PEFT `LoraConfig` | trains a low-rank change: "learns less and forgets less" (Biderman et al. 2024) |
| `osf` | PEFT `OSFConfig` | trains each matrix's small singular directions only (Nayak et al. 2025) |
| `dft` | TRL `loss_type: dft` | weighs each token's cross-entropy by its probability (Wu et al. 2025) |

and `+ KL` adds label annealing of weight 1 to them. LoRA appears at the learning rate of all and at five times it,
since adapters take larger ones. Target and source are nats per token of held-out text, lower is better; kept and lost
are shares of what direct fine-tuning gained and lost; time is the median optimiser step's, against direct's; `trained`
the parameters that are. One model of one size on one corpus: an order of magnitude, no ranking.
"""

from __future__ import annotations

import argparse
import io
import itertools
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from machine import device_name, hardware

ANNEALING = {"label_annealing": {"weight": 1.0}}
LORA: dict[str, Any] = {
    "use_peft": True,
    "lora_r": 16,
    "lora_alpha": 32,
    "lora_dropout": 0.0,
    "lora_target_modules": "all-linear",
}
OSF: dict[str, Any] = {"use_peft": True, "peft_method": "osf", "osf_effective_rank": 0.5}
DFT: dict[str, Any] = {"loss_type": "dft"}


@dataclass(frozen=True)
class Rival:
    """One way of fine-tuning."""

    name: str
    retention: list[dict[str, Any]] = field(default_factory=list)
    """As in a config; {prose}: the file of old data."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Keys of the config beside the quickstart's; {prose} as above."""
    rate: float = 1.0
    """Learning rate, in that of the quickstart."""


RIVALS = (
    Rival("direct"),
    Rival("label_annealing", [ANNEALING]),
    Rival("l2", [{"l2": {"coefficient": 0.01}}]),
    Rival("ewc", [{"ewc": {"data": "{prose}", "coefficient": 100.0}}]),
    Rival("sfa", [{"sfa": {"p": 0.25}}]),
    Rival("wise_ft", [{"wise_ft": {"alpha": 0.5}}]),
    Rival("replay", [{"replay": {"data": "{prose}", "fraction": 0.1}}]),
    Rival("lora", settings=LORA),
    Rival("lora, rate x 5", settings=LORA, rate=5.0),
    Rival("lora, rate x 5, + KL", [ANNEALING], LORA, 5.0),
    Rival("osf", settings=OSF),
    Rival("osf, keeps 0.9", settings={**OSF, "osf_effective_rank": 0.9}),
    Rival("osf + KL", [ANNEALING], OSF),
    Rival("dft", settings=DFT),
    Rival("dft + KL", [ANNEALING], DFT),
)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="under a minute: a few steps on a smaller base")
    parser.add_argument("--only", nargs="+", default=None, metavar="NAME", help="arms whose name begins so")
    parser.add_argument("--seeds", type=int, default=1, help="fine-tunings an arm (1)")
    parser.add_argument(
        "--folder", type=Path, default=None, help="keep run folders here, and continue with those that are there"
    )
    parser.add_argument("--save", type=Path, default=None, metavar="FILE", help="write the figures as JSON")
    options = parser.parse_args(arguments)

    chosen = [r for r in RIVALS if r.name == "direct" or options.only is None or r.name.startswith(tuple(options.only))]
    absent = {rival.name: reason for rival in chosen if (reason := not_here(rival))}
    chosen = [rival for rival in chosen if rival.name not in absent]
    with tempfile.TemporaryDirectory() as place:
        root = options.folder or Path(place)
        figures = compare(chosen, root, seeds=options.seeds, quick=options.quick)
    show(figures, absent)
    if options.save:
        from importlib.metadata import version

        from holdfast.support.files import write_json

        write_json(
            options.save,
            {
                "benchmark": "rivals",
                "mode": "quick" if options.quick else "full",
                "hardware": hardware(device_name()),
                "versions": {name: version(name) for name in ("torch", "transformers", "trl", "peft")},
                "seeds": options.seeds,
                "figures": figures,
                "absent": absent,
            },
        )
    return 0


def not_here(rival: Rival) -> str | None:
    """Why an arm cannot be run, None if it can."""
    from holdfast.retention.registry import METHODS
    from holdfast.training.mixin import RetentionMixin

    unknown = [name for entry in rival.retention for name in entry if name not in METHODS]
    if unknown:
        return f"no method {', '.join(unknown)} in this version"
    if "loss_type" in rival.settings and not hasattr(RetentionMixin, "token_ce"):
        return "loss_type: dft is not supported in this version"
    return None


STEPS = 100


def compare(chosen: list[Rival], root: Path, *, seeds: int, quick: bool) -> list[dict[str, Any]]:
    """Runs the arms, or finds them finished, and reads their figures: means over seeds, with each seed's values."""
    from rich.console import Console

    from holdfast.cli.quickstart import prepare

    names = prepare(root / "data", real=False, console=Console(file=sys.stderr))
    rows = []
    for rival in chosen:
        measured = []
        for seed in range(seeds):
            print(f"{rival.name}, seed {seed}", file=sys.stderr, flush=True)
            measured.append(run(rival, root, names, seed=seed, quick=quick))
        rows.append(
            {
                "arm": rival.name,
                "retention": rival.retention,
                "settings": rival.settings,
                "rate": rival.rate,
                "seeds": measured,
            }
        )
    for row in rows:
        row |= {key: statistics.fmean(m[key] for m in row["seeds"]) for key in row["seeds"][0]}
    direct = rows[0]
    for row in rows:
        gained, lost = (direct[f"{which}_after"] - direct[f"{which}_before"] for which in ("target", "source"))
        row["kept"] = (row["target_after"] - row["target_before"]) / gained if gained < 0 else None
        row["lost"] = (row["source_after"] - row["source_before"]) / lost if lost > 0 else None
        row["time_ratio"] = row["step_seconds"] / direct["step_seconds"]
    return rows


def run(rival: Rival, root: Path, names: dict[str, str], *, seed: int, quick: bool) -> dict[str, float]:
    """One fine-tuning with its evaluations: nats per token before and after, seconds of the median step, trained
    parameters."""
    from rich.console import Console

    from holdfast.cli.quickstart import sweep_of
    from holdfast.runs.config import train_config
    from holdfast.runs.run import train

    def filled(values: dict[str, Any]) -> dict[str, Any]:
        return {k: v.format(prose=names["prose_train"]) if isinstance(v, str) else v for k, v in values.items()}

    spec = [{n: filled(g) for n, g in e.items()} for e in rival.retention]
    words = "".join(c if c.isalnum() else "-" for c in rival.name)
    place = {"output_dir": str(root / f"{words}.{seed}"), "seed": seed, "retention": spec}
    settings = {**sweep_of(names, quick=quick)["train"], **place, **filled(rival.settings)}
    settings["learning_rate"] *= rival.rate
    if not quick:
        settings["max_steps"] = STEPS
    folder = train(train_config(settings), console=Console(file=io.StringIO()), evaluation_cache=root / "evaluations")
    found: dict[str, float] = {}
    for comparison in folder.comparisons():
        if comparison.metric == "nats_per_token":
            found |= {f"{comparison.suite}_before": comparison.before, f"{comparison.suite}_after": comparison.after}
    logged = [(row["step"], row["seconds"]) for row in folder.metrics() if "loss" in row]
    found["step_seconds"] = statistics.median(
        (t2 - t1) / (s2 - s1) for (s1, t1), (s2, t2) in itertools.pairwise(logged) if s2 > s1
    )
    record = folder.read()
    found |= {"trained": record.model["trainable"], "prepared_seconds": record.training["stages"]["prepare"]}
    return found


def show(figures: list[dict[str, Any]], absent: dict[str, str]) -> None:
    """The table."""
    print(
        f"{'arm':<24}{'target':>9}{'source':>9}{'kept':>8}{'lost':>8}{'time':>8}{'trained':>12}   (nats/token; time "
        f"against direct)"
    )
    first = figures[0]
    print(f"{'start':<24}{first['target_before']:>9.3f}{first['source_before']:>9.3f}")
    for f in figures:
        kept, lost = ("" if f[key] is None else f"{100 * f[key]:.0f} %" for key in ("kept", "lost"))
        print(
            f"{f['arm']:<24}{f['target_after']:>9.3f}{f['source_after']:>9.3f}{kept:>8}{lost:>8}{f['time_ratio']:>8.2f}{int(f['trained']):>12,}"
        )
        if len(f["seeds"]) > 1:
            spans = [
                f"{min(s[k] for s in f['seeds']):.3f} - {max(s[k] for s in f['seeds']):.3f}"
                for k in ("target_after", "source_after")
            ]
            print(f"{'':<24}   seeds: target {spans[0]}, source {spans[1]}")
    for name, reason in absent.items():
        print(f"{name:<24}left out: {reason}")


if __name__ == "__main__":
    sys.exit(main())
