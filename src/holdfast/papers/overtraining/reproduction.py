"""The paper Overtrained Language Models in small: a ladder is pre-trained, its checkpoints are modified, and the claims
are held against what came out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.errors import ConfigError
from holdfast.papers.claims.reproduction import Twin, Twins, changed
from holdfast.papers.ladder.plan import LadderConfig, ladder_config
from holdfast.papers.ladder.study import run_ladder
from holdfast.papers.overtraining.claims import LANGUAGE, PICTURES, READING, check_claims
from holdfast.papers.overtraining.paper import PAPER
from holdfast.papers.overtraining.plan import OvertrainingConfig, overtraining_config
from holdfast.papers.overtraining.record import OvertrainingRecord, read_overtraining
from holdfast.papers.overtraining.study import run_overtraining

PRETRAINING = "pretraining"
"""Key of a twin: which ladder (a file below `papers/recipes`), which of its sizes, and what differs from the file."""
LADDER = f"{LANGUAGE}-ladder"
"""Folder of the one ladder that the studies share, beside theirs."""
_SHORT: dict[str, Any] = {"small": "pretraining_tiny"}
LADDERS: dict[str, dict[str, Any]] = {
    "quick": {**_SHORT, "sizes": {"1M": {"layers": 1, "width": 32, "heads": 1, "budgets": [40_000, 80_000, 160_000]}}},
    "look": {**_SHORT, "sizes": {"1M": {"budgets": [500_000, 1_000_000, 2_000_000, 4_000_000]}}},
    "thorough": {},
}
"""By size, what differs from the file of the ladder."""
_FEW = {"probe": {"noise_seeds": 3}, "direction": None, "seeds": [0, 1]}
SIZES: dict[str, dict[str, Any]] = {
    "quick": {
        "probe": {"noise": [0.1, 0.3], "noise_seeds": 2, "prune": []},
        "curvature": 2,
        "direction": None,
        "tasks": {"problems": {"train": {"dataset_train_split": "train[:40]"}}},
        "train": {"num_train_epochs": 1},
        "vary": {"learning_rate": [1.0e-3, 1.0e-2], "retention": ["direct", {"label_annealing": {"weight": 1}}]},
        "seeds": [0],
    },
    "look": {
        **_FEW,
        "small": "overtraining_tiny",
        "tasks": {"problems": {"train": {"dataset_train_split": "train[:200]"}}},
        "generalist": [
            {"perplexity": "${people_heldout}", "name": "people"},
            {"choices": "${facts}", "name": "facts", "max_documents": 300},
            {"perplexity": "${code_heldout}", "name": "code"},
        ],
        "vary": {
            # validation took 3e-3 or 1e-2 at every budget; at 1e-1 nothing is left to compare
            "learning_rate": [1.0e-3, 3.0e-3, 1.0e-2, 3.0e-2],
            "retention": ["direct", {"label_annealing": {"weight": 1}}],
        },
    },
    "thorough": {},
}
"""By size, what differs from the study's file; chosen for the time it takes."""
SEEING: dict[str, dict[str, Any]] = {
    "quick": {
        "tasks": {"pictures": {"align": {"train": {"warmup_steps": 1}}}},
        "train": {"num_train_epochs": 1},
        "vary": {"learning_rate": [1.0e-3, 1.0e-2], "retention": ["direct", {"label_annealing": {"weight": 1}}]},
        "seeds": [0],
    },
    "look": {
        "small": "pictures_tiny",
        "generalist": [
            {"perplexity": "${people_heldout}", "name": "people"},
            {"choices": "${facts}", "name": "old_knowledge", "max_documents": 200},
            {"perplexity": "${prose_heldout}", "name": "prose"},
        ],
        "train": {"num_train_epochs": 1},
        "vary": {
            # around the rate that validation took at every budget; the others have it, LoRA ten times as much
            "learning_rate": [3.0e-4, 1.0e-3, 3.0e-3],
            "retention": [
                "direct",
                [{"label_annealing": {"weight": 1}}, {"train": {"learning_rate": 1.0e-3}}],
                ["sfa", {"train": {"learning_rate": 1.0e-3}}],
                [{"train": {"use_peft": True, "lora_r": 16, "learning_rate": 1.0e-2}}, {"label": "LoRA"}],
            ],
        },
    },
    "thorough": {},
}
"""The same of the study whose models see."""


@dataclass(frozen=True, kw_only=True)
class TwinConfig(OvertrainingConfig):
    """A study together with the ladder that it needs."""

    ladder: LadderConfig


def twin_config(values: Mapping[str, Any], *, source: str | None = None) -> TwinConfig:
    """The study of a ladder that is pre-trained first, beside its folder.

    Args:
        values: as of `plan.overtraining_config`, with `PRETRAINING` in place of the ladder.
        source: where they came from, for the message.

    Raises:
        ConfigError: with every mistake at once.
    """
    import yaml

    given = dict(values)
    asked = given.pop(PRETRAINING)
    file = Path(__file__).resolve().parents[1] / "recipes" / asked["file"]
    ladder_values = changed(yaml.safe_load(file.read_text(encoding="utf-8")), asked["changes"])
    folder, size = Path(given["output_dir"]).with_name(LADDER), str(asked["size"])
    own = {"name": LADDER, "output_dir": str(folder), "sizes": {size: ladder_values["sizes"][size]}}
    ladder = ladder_config({**ladder_values, **own}, source=file.name)
    rungs = [
        {"model": str(ladder.run_folder(rung, ladder.asked.seeds[0])), "tokens": rung.tokens, "label": rung.name}
        for rung in ladder.rungs.values()
    ]
    # the checkpoints are not there yet; they are looked at when the study begins
    config = overtraining_config({**given, "ladder": rungs}, source=source, check=False)
    if problems := config.key_problems(config.asked):
        raise ConfigError(problems, source=source)
    fields = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    return TwinConfig(**fields, ladder=ladder)


def run_twin(config: TwinConfig, *, console: Any = None, workers: int | None = None) -> OvertrainingRecord:
    """Pre-trains the ladder, or finds it, and runs the study; the arguments of `study.run_overtraining`.

    Raises:
        HoldfastError: see `run_ladder` and `run_overtraining`.
    """
    run_ladder(config.ladder, console=console, workers=workers)
    return run_overtraining(config, console=console, workers=workers)


def _summary(record: OvertrainingRecord | None) -> dict[str, Any]:
    return {
        "seeds": [] if record is None else [int(s) for s in record.config["seeds"]],
        "trials": 0 if record is None else sum(m.state == "complete" for m in record.models),
        "target": "word problems" if record is None else ", ".join(record.tasks),
        "source": "the text that it was pre-trained on",
    }


TWINS = Twins(
    paper=PAPER,
    studies={
        name: Twin(
            file=f"overtraining/{file}",
            sizes={
                size: {**own, PRETRAINING: {"file": "ladder/world.yaml", "size": "1M", "changes": LADDERS[size]}}
                for size, own in sizes.items()
            },
        )
        for name, file, sizes in (
            (LANGUAGE, "world.yaml", SIZES),
            (PICTURES, "pictures.yaml", SEEING),
        )
    },
    config=twin_config,
    run=run_twin,
    read=read_overtraining,
    summary=_summary,
    check=check_claims,
    reading=READING,
)
reproduce = TWINS.reproduce
