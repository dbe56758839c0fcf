"""Figure 1 of "Soup to Go" on MNIST, in the protocol that it cites: even digits, then odd ones, six epochs each, five
outputs that both share (`holdfast.papers.digits.study`).

    python benchmarks/figure_1.py MNIST_FOLDER --output_dir runs/figure_1 --seeds 0 1 2 3 4 5 6 7 8 9
    holdfast reproduce sfa --recipes figure_1 --on runs/figure_1         # holds the paper's claims against it

MNIST_FOLDER holds the four files as they are published (train-images-idx3-ubyte.gz and so on). Several processes may
train seeds of their own into one folder; a last call with all seeds reads them and writes record and page.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from holdfast.papers.claims.reproduction import size_changes
from holdfast.papers.digits.study import DigitsSettings, run_digits
from holdfast.papers.sfa.claims import FIGURE_1


def main(argv: list[str] | None = None) -> None:
    """Trains the seeds that are not there yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mnist", type=Path, help="folder with the four files of MNIST")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/figure_1"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--epochs", type=int, default=DigitsSettings.epochs, help="passes over each task's images")
    parser.add_argument(
        "--threads", type=int, default=1, help="of PyTorch; one is as fast as two on so small a network"
    )
    asked = parser.parse_args(argv)
    torch.set_num_threads(asked.threads)
    settings = DigitsSettings(
        name=FIGURE_1,
        output_dir=asked.output_dir,
        arms=size_changes("sfa")[FIGURE_1]["medium"]["arms"],
        epochs=asked.epochs,
        seeds=asked.seeds,
        mnist=str(asked.mnist),
    )
    run_digits(settings)
    print(f"Page: {asked.output_dir / 'report.html'}")


if __name__ == "__main__":
    main()
