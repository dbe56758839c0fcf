"""One small example of everything that holdfast makes, by its commands."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import commandline
import figures
import material

METHODS: dict[str, list[str]] = {
    "direct": ["--retention", "none"],
    "label_annealing": ["--retention", "label_annealing:weight=1.0,temperature=2"],
    "label_annealing-reverse": ["--retention", "label_annealing:weight=1.0,direction=reverse"],
    "label_annealing-cached": ["--retention", "label_annealing:weight=1.0,teacher=cached"],
    "l2": ["--retention", "l2:coefficient=0.1"],
    "l2-decoupled": ["--retention", "l2:coefficient=0.1,decoupled=true"],
    "ewc": ["--retention", "ewc:data=old.jsonl,samples=8"],
    "sfa": ["--retention", "sfa:p=0.5"],
    "wise_ft": ["--retention", "wise_ft:alpha=0.5"],
    "ema": ["--retention", "ema:decay=0.9"],
    "replay": ["--retention", "replay:data=old.jsonl,fraction=0.3"],
    "multitask": ["--retention", "multitask:data=old.jsonl"],
    "budget": ["--retention", "budget:kl=0.01", "--retention", "label_annealing"],
    "two-methods": ["--retention", "label_annealing:weight=0.5", "--retention", "sfa:every=3"],
    "lora": [
        "--retention",
        "label_annealing:weight=1.0",
        "--use_peft",
        "--lora_r",
        "4",
        "--lora_target_modules",
        "q_proj",
        "v_proj",
    ],
    "packed": ["--retention", "label_annealing:weight=1.0", "--packing", "--packing_strategy", "wrapped"],
    "chat": ["--model_name_or_path", "instruct", "--dataset_name", "chat.jsonl", "--assistant_only_loss", "false"],
}
"""Run: its options over train.yaml."""

MERGES: dict[str, list[str]] = {
    "linear": ["math", "code", "--weights", "0.6", "0.4"],
    "wise_ft": ["math", "--base", "base", "--alpha", "0.3"],
    "slerp": ["math", "code", "--t", "0.4"],
    "task_arithmetic": ["math", "code", "--base", "base", "--scale", "0.7"],
    "ties": ["math", "code", "--base", "base", "--density", "0.3"],
    "dare": ["math", "code", "--base", "base", "--p", "0.5", "--seed", "3"],
    "dare_ties": ["math", "code", "--base", "base", "--p", "0.5"],
    "fisher": ["math", "code", "--fisher", "math-fisher", "code-fisher"],
}
"""Method: its words."""

MEASURED = ["measured:base", "measured:math"]
WITHIN = ["--workers", "1"]
STEPS: list[tuple[str, list[str]]] = [
    *(
        (f"train-{name}", ["train", "--config", "train.yaml", "--output_dir", f"runs/{name}", *words])
        for name, words in METHODS.items()
    ),
    ("report-run", ["report", "runs/label_annealing"]),
    ("evaluate", ["evaluate", "base", "math", "code", "--suite", "suite.yaml", "--output_dir", "measured"]),
    ("report-evaluation", ["report", "measured"]),
    ("compare-one", ["compare", "runs/direct"]),
    (
        "compare-two",
        ["compare", "runs/direct", "runs/label_annealing", "--metrics", "all", "--output_dir", "compared/runs"],
    ),
    (
        "compare-measured",
        [
            "compare",
            *MEASURED,
            "--output_dir",
            "compared/measured",
            "--fail_if",
            "colours drop > 90pt",
            "--confidence",
            "0.9",
        ],
    ),
    ("compare-failed", ["compare", *MEASURED, "--fail_if", "prose nats_per_token rise > -1000%", "--strict"]),
    ("sweep", ["sweep", "--config", "sweep.yaml", *WITHIN]),
    ("sweep-status", ["sweep", "status", "study"]),
    ("sweep-knee", ["sweep", "report", "study", "--rule", "knee"]),
    ("sweep-within", ["sweep", "report", "study", "--rule", "keep_within", "--points", "0.5"]),
    ("sweep-report", ["sweep", "report", "study"]),
    ("update", ["update", "--config", "update.yaml"]),
    ("update-again", ["update", "--config", "update.yaml"]),
    ("residual-study", ["study", "run", "residuals.yaml", *WITHIN]),
    ("residual-study-again", ["study", "run", "residuals.yaml", *WITHIN]),
    (
        "residual-extract",
        ["residual", "extract", "--instruct", "instruct", "--base", "base", "--output_dir", "residual", *WITHIN],
    ),
    (
        "residual-apply",
        [
            "residual",
            "apply",
            "--residual",
            "residual",
            "--base",
            "math",
            "--scale",
            "0.5",
            "--output_dir",
            "applied",
            *WITHIN,
        ],
    ),
    *((f"fisher-{name}", ["fisher", name, "--data", "old.jsonl", "--samples", "8"]) for name in ("math", "code")),
    *(
        (f"merge-{n}", ["merge", *words, "--method", n, "--output_dir", f"merged/{n}", "--json", *WITHIN])
        for n, words in MERGES.items()
    ),
    ("merge-yaml", ["merge", "--config", "merge.yaml", *WITHIN]),
    (
        "merge-adapter",
        [
            "merge",
            "adapter",
            "code",
            "--base",
            "base",
            "--method",
            "task_arithmetic",
            "--output_dir",
            "merged/adapter",
            "--dtype",
            "bfloat16",
            *WITHIN,
        ],
    ),
    ("probe-write", ["probe", "base", "--noise", "0.5", "--noise_seed", "1", "--write", "perturbed"]),
    ("inspect", ["inspect", "merged/ties", "--verify"]),
    ("inspect-two", ["inspect", "base", "math", "--per", "tensor", "--plot", "distances/page.html", *WITHIN]),
    ("theory", ["reproduce", "label-annealing", "--theory", "--quick"]),
    (
        "corpus",
        [
            "data",
            "prepare",
            "--input",
            "news.jsonl",
            "--after",
            "2024-03-01",
            "--output",
            "prepared/news.jsonl",
        ],
    ),
    ("world", ["reproduce", "--world", "--output_dir", "world", "--quick", *WITHIN]),
]
"""Name: the command's words. In this order, in one working directory."""
MADE = ("train-direct", "train-label_annealing", "evaluate", "sweep", "update", "residual-study", "merge-ties")
"""Steps whose finished work the tests' fixture `gallery` offers."""
SHOW = re.compile(r"report.*|compare.*|sweep-.*|.*-again|inspect.*|cost.*|theory")
"""Steps whose printed figures are recorded; the others print progress, which depends on the machine."""


def make(folder: Path, steps: Iterable[tuple[str, list[str]]] = STEPS) -> dict[str, Any]:
    """Runs the steps in a folder that has the material; for each the exit code, and of those in `SHOW` the figures that
    they printed.

    Raises:
        RuntimeError: a step ended with another code than 0 or 3 (a rule failed). Of `reproduce` the code is recorded,
        whatever it is.
    """
    printed = {}
    for name, words in steps:
        began = time.monotonic()
        outcome = commandline.holdfast(words, folder)
        print(f"  {name}: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
        if outcome.code not in (0, 3) and not name.startswith("reproduce-"):
            raise RuntimeError(f"holdfast {' '.join(words)} ended with {outcome.code}:\n{outcome.err[-3000:]}")
        printed[name] = {"code": outcome.code, "figures": figures.of_text(outcome.out) if SHOW.fullmatch(name) else {}}
    return printed


def material_in(folder: Path) -> None:
    """Puts models, data and requests into a new folder."""
    folder.mkdir(parents=True)
    write: Callable[[], None] = material.write_all
    outcome = commandline.in_process(write, folder, name="material")
    if outcome.code:
        raise RuntimeError(outcome.err)
