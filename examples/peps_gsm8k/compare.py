"""Writes the trade-off page of the worked example from its two finished runs.

python examples/peps_gsm8k/compare.py --runs runs/peps_gsm8k --out runs/peps_gsm8k/tradeoff.html
"""

from __future__ import annotations

import argparse
from pathlib import Path

from holdfast.records.run import RunFolder
from holdfast.reports import Arm, print_tradeoff, write_tradeoff_report

SOURCE, TARGET = ("source", "PEPs"), ("target", "GSM8K answers")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/peps_gsm8k"))
    parser.add_argument("--out", type=Path, default=Path("runs/peps_gsm8k/tradeoff.html"))
    options = parser.parse_args()
    arms = [
        Arm(label="direct fine-tuning", folder=RunFolder(options.runs / "direct"), kind="direct"),
        Arm(
            label="label annealing, weight 1",
            folder=RunFolder(options.runs / "label_annealing"),
            kind="label_annealing",
        ),
    ]
    write_tradeoff_report(
        options.out,
        arms,
        title="What learning GSM8K does to the PEPs",
        intro=(
            "A base of 3.4 million parameters, pre-trained on Python's PEPs, was fine-tuned on GSM8K's training "
            "questions and answers. "
            "Source: held-out PEPs. Target: GSM8K's test answers, given the questions. One seed; the intervals are "
            "over documents."
        ),
        source=SOURCE,
        target=TARGET,
    )
    print_tradeoff(arms, source=SOURCE, target=TARGET)


if __name__ == "__main__":
    main()
