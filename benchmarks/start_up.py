"""How long commands take before they do anything: `holdfast train` to its first step beside `trl sft`, a dry run and a
refusal.

    python benchmarks/start_up.py              # the table
    python benchmarks/start_up.py --check      # exit 1 where a bar falls short
    python benchmarks/start_up.py --quick      # one round
    python benchmarks/start_up.py --save FILE  # the figures as JSON

first step   `holdfast train` and `trl sft` with the same YAML (a model of 31,000 parameters, 200 rows), from the start
             of the command to the line of the first optimizer step; bar: 1.0 of `trl sft`
dry run      `holdfast train --dry_run --quick` with that YAML, beside a Python that imports TRL's SFTConfig alone,
             whose checks a dry run needs
refusal      `holdfast sequence` with a mistyped key, beside the same import; bar: 0.5

Seconds are user seconds of the command and its child processes, which other work on the machine changes less than the
time on the clock. Commands take turns; figures are medians over rounds, ratios are taken within a round.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from machine import device_name, hardware

HOLDFAST = (sys.executable, "-m", "holdfast")
RUN = {
    "model_name_or_path": "model",
    "dataset_name": "rows",
    "max_steps": 1,
    "logging_steps": 1,
    "max_length": 64,
    "per_device_train_batch_size": 2,
    "bf16": False,
    "report_to": "none",
    "save_strategy": "no",
}
STUDY = {
    "train": {"model_name_or_path": "model", "learning_rat": 1e-5},
    "tasks": {name: {"train": {"dataset_name": "rows"}, "evaluation": ["rows/rows.jsonl"]} for name in ("a", "b")},
    "arms": ["single"],
}
ROWS: dict[str, tuple[str, str, float | None]] = {
    "first step": ("holdfast train", "trl sft", 1.0),
    "dry run": ("holdfast train --dry_run", "import of SFTConfig", None),
    "refusal": ("holdfast sequence", "import of SFTConfig", 0.5),
}
"""By row: the command, its peer, and the largest ratio that is allowed."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 where a bar falls short")
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--rounds", type=int, default=None, help="rounds (5; 1 with --quick)")
    parser.add_argument("--save", type=Path, default=None, metavar="FILE", help="write the figures as JSON")
    options = parser.parse_args(arguments)
    rounds = options.rounds or (1 if options.quick else 5)
    seconds = measure(rounds)
    rows, short = [], []
    machine = hardware(device_name())
    print(f"{rounds} rounds, user seconds\n{machine}; torch {torch.__version__}\n")
    print(f"{'':<12}{'command':<26}{'seconds':>8}  {'peer':<20}{'seconds':>8}{'ratio':>7}{'range':>14}{'bar':>6}")
    for name, (command, peer, bar) in ROWS.items():
        ratios = [ours / theirs for ours, theirs in zip(seconds[command], seconds[peer], strict=True)]
        row = {
            "row": name,
            "ours": statistics.median(seconds[command]),
            "peer": statistics.median(seconds[peer]),
            "ratio": statistics.median(ratios),
            "range": [min(ratios), max(ratios)],
            "bar": bar,
        }
        rows.append(row)
        spread, shown = f"{min(ratios):.2f} - {max(ratios):.2f}", "" if bar is None else f"{bar:.2f}"
        figures = f"{row['ours']:>8.2f}  {peer:<20}{row['peer']:>8.2f}{row['ratio']:>7.2f}{spread:>14}{shown:>6}"
        print(f"{name:<12}{command:<26}{figures}")
        if bar is not None and row["ratio"] > bar:
            short.append(f"{name}: {row['ratio']:.2f} of the seconds of {peer}, the bar is {bar:.2f}")
    if options.save:
        from holdfast.support.files import write_json

        record = {"benchmark": "start_up", "hardware": machine, "torch": torch.__version__, "rounds": rounds}
        write_json(options.save, {**record, "rows": rows, "short": short})
    if options.check and short:
        print("\nShort of the bars:\n" + "\n".join(f"  {line}" for line in short), file=sys.stderr)
        return 1
    return 0


def measure(rounds: int) -> dict[str, list[float]]:
    """User seconds of every command by round, each round in another order."""
    trl = shutil.which("trl", path=str(Path(sys.executable).parent)) or "trl"
    quick = ["--dry_run", "--quick"]
    commands: dict[str, tuple[list[str], str]] = {
        "holdfast train": ([*HOLDFAST, "train", "--config", "run.yaml", "--output_dir", "ours"], "step 1/1"),
        "trl sft": ([trl, "sft", "--config", "run.yaml", "--output_dir", "peer"], "'loss':"),
        "holdfast train --dry_run": ([*HOLDFAST, "train", "--config", "run.yaml", *quick], "example 1:"),
        "holdfast sequence": ([*HOLDFAST, "sequence", "--config", "study.yaml"], "Did you mean 'learning_rate'"),
        "import of SFTConfig": ([sys.executable, "-c", "from trl import SFTConfig; print('done')"], "done"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        write_files(place)
        for number in range(rounds):
            for name in list(commands)[:: -1 if number % 2 else 1]:
                words, line = commands[name]
                seconds[name].append(seconds_to_line(words, line, place))
                for output in ("ours", "peer"):
                    shutil.rmtree(place / output, ignore_errors=True)
    return seconds


def write_files(place: Path) -> None:
    """A tiny model, 200 rows, a run and a study."""
    from holdfast.training.tiny import SENTENCES, build_model, build_tokenizer

    build_model().save_pretrained(place / "model")
    build_tokenizer().save_pretrained(place / "model")
    rows = [{"text": f"{number}. {SENTENCES[number % len(SENTENCES)]}"} for number in range(200)]
    (place / "rows").mkdir()
    (place / "rows" / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (place / "run.yaml").write_text(json.dumps(RUN))
    (place / "study.yaml").write_text(json.dumps(STUDY))


def seconds_to_line(command: Sequence[str], text: str, place: Path) -> float:
    """User seconds of a command, with those of its child processes, up to the line that has a text; it is ended there.

    Raises:
        RuntimeError: it ended without such a line.
    """
    process = subprocess.Popen(
        command,
        cwd=place,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    output = []
    with process.stdout:
        for line in process.stdout:
            output.append(line)
            if text in line:
                used = user_seconds(process.pid)
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return used
    process.wait()
    raise RuntimeError(f"{' '.join(command)} ended without {text!r}:\n{''.join(output[-20:])}")


def user_seconds(pid: int) -> float:
    """User seconds of a process and all its children, those that have ended among them."""
    process: Any = psutil.Process(pid)
    times = [one.cpu_times() for one in [process, *process.children(recursive=True)]]
    return float(sum(time.user + time.children_user for time in times))


if __name__ == "__main__":
    raise SystemExit(main())
