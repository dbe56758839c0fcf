"""Is 1 % of old data enough to keep a format, where a skill takes 10 %? configs/sequence/replay-shares.yaml, judged.

    python benchmarks/replay_shares.py                 # runs the study, or goes on with it, and judges it
    python benchmarks/replay_shares.py --table         # judges what is there

*Given back*: of what sequential fine-tuning forgets of the first task, the share that a replay keeps, by seed: how much
better than sequential fine-tuning it is, over how much better training the first task alone is.

Rules, written before any run:

precondition   sequential fine-tuning forgets at least 0.05 nats per token of both the format and the skill, with the
               whole 95 % interval; otherwise nothing is told
format cheap   at 1 % of replay the share given back of the format is above that of the skill by at least 0.2, with the
               whole 95 % interval over the seeds (t); `the reverse` where it is below by as much; `alike` where the
               whole interval lies within 0.2 of 0; `cannot tell` otherwise
enough         of each: the smallest share of replay that gives back at least 0.8, with the whole interval
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.records.figure import Figure
    from holdfast.records.sequence import SequenceRecord

ROOT = Path(__file__).resolve().parents[1]
STUDY = ROOT / "configs" / "sequence" / "replay-shares.yaml"
FOLDER = Path("runs/sequence/replay-shares")
KINDS = ("format", "skill")
LEAST, APART, ENOUGH = 0.05, 0.2, 0.8
SMALLEST = 0.01


def given_back(record: SequenceRecord, kind: str) -> dict[float, Figure]:
    """By share of replay, what it gives back of the first task."""
    from holdfast.papers.sfa.cases import Pair
    from holdfast.records.figure import Figure

    pair = Pair(record, [kind, "functions"], kind)
    shares = {}
    for arm in pair.arms("replay"):
        better, forgotten = pair.against(arm, kind).by_seed, pair.forgotten.by_seed
        by_seed = {seed: better[seed] / forgotten[seed] for seed in better}
        shares[float(arm.strength or 0.0)] = Figure.over_seeds(by_seed)
    return dict(sorted(shares.items()))


def forgets(record: SequenceRecord, kind: str) -> bool:
    """Whether the precondition holds of a kind."""
    from holdfast.papers.sfa.cases import Pair

    interval = Pair(record, [kind, "functions"], kind).forgotten.interval
    return interval is not None and interval[0] >= LEAST


def verdict(shares: Mapping[str, Mapping[float, Figure]]) -> str:
    """`format cheap`, `the reverse`, `alike` or `cannot tell` (module docstring)."""
    interval = (shares["format"][SMALLEST] - shares["skill"][SMALLEST]).interval
    if interval is None:
        return "cannot tell"
    low, high = interval
    if low >= APART:
        return "format cheap"
    if high <= -APART:
        return "the reverse"
    return "alike" if low >= -APART and high <= APART else "cannot tell"


def enough(shares: Mapping[float, Figure]) -> float | None:
    """The smallest share of replay that gives back `ENOUGH` with its whole interval."""
    for fraction, figure in shares.items():
        if figure.interval is not None and figure.interval[0] >= ENOUGH:
            return fraction
    return None


def table(record: SequenceRecord) -> str:
    """Figures and verdict as Markdown."""
    from holdfast.papers.sfa.cases import Pair

    lines = [
        "| first task | forgotten, nats per token | " + " | ".join(f"{f:.0%} of replay" for f in (0.01, 0.03, 0.1))
    ]
    lines[0] += " | enough |"
    lines.append("|---|---|---|---|---|---|")
    shares = {kind: given_back(record, kind) for kind in KINDS}
    for kind in KINDS:
        forgotten = Pair(record, [kind, "functions"], kind).forgotten
        cells = [kind, shown(forgotten), *map(shown, shares[kind].values())]
        smallest = enough(shares[kind])
        lines.append("| " + " | ".join([*cells, "none" if smallest is None else f"{smallest:.0%}"]) + " |")
    lacking = [kind for kind in KINDS if not forgets(record, kind)]
    said = f"cannot tell: {' and '.join(lacking)} not forgotten by {LEAST} nats" if lacking else verdict(shares)
    return "\n".join([*lines, "", f"{len(record.seeds)} seeds: {said}"])


def shown(figure: Figure) -> str:
    """A figure with its interval."""
    low, high = figure.interval or (figure.value, figure.value)
    return f"{figure.value:.3f} [{low:.3f}, {high:.3f}]"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="judges what is there, and runs nothing")
    options = parser.parse_args(arguments)
    from holdfast.cli.main import main as holdfast
    from holdfast.records.sequence import read_sequence

    if not options.table:
        code = holdfast(["sequence", "--config", str(STUDY), "--workers", "1"])
        if code:
            return code
    print(table(read_sequence(FOLDER)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
