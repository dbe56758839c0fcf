"""The quickstart: see forgetting, and what keeps it small, on any machine in about three minutes.

No network, no GPU, no files of the user's. A base of about one million parameters is pre-trained on the English prose
inside every CPython and a little of the standard library's source (cached for the next time), then fine-tuned on more
of that source in seven ways. Source: held-out prose, what the base knows and should keep. Target: held-out code, what
is learnt. Each way is an ordinary run folder with its own report; together they are the trade-off between new skill and
old knowledge. The ways are the jobs of a study (`holdfast.studies.engine`), queued anew by each call: what is done lies
in the run folders.

`--real` tells the same on a model that knows things, `REAL_MODEL`: it learns to answer questions about Python in its
documentation's words, in four ways.

One seed, a tiny model: the picture is real, its figures are this model's. Intervals are over held-out documents.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.errors import ConfigError, RunFolderError, did_you_mean
from holdfast.records.run import RunFolder
from holdfast.records.study import STUDY_FILE
from holdfast.studies.engine.progress import share_of_run
from holdfast.studies.engine.session import execute_study
from holdfast.studies.engine.study import (
    LABEL,
    PAGE,
    RUNNING,
    Job,
    JobState,
    Study,
    StudyState,
    Writer,
    refuse_foreign,
)
from holdfast.support.environment import has_fast_bfloat16, say
from holdfast.support.files import to_jsonable, write_jsonl
from holdfast.support.leftovers import NewFolder
from holdfast.worlds.pretrain import cached_base
from holdfast.worlds.small_settings import base_recipe, base_texts

if TYPE_CHECKING:
    from holdfast.reports.arms import Arm
    from holdfast.studies.engine.worker import Task

SOURCE = ("source", "prose")
TARGET = ("target", "code")
REAL_TARGET = ("target", "replies")
REAL_MODEL = "smollm2-135m-instruct"
REAL_MINUTES = 30
"""Of two cores, at most; said beforehand."""
HIGH, LOW = 5e-4, 1e-4
"""Learning rates of the real model's arms."""
QUEUE = ".quickstart.db"
"""Which run is whose; of no use afterwards."""


@dataclass(frozen=True, kw_only=True)
class QuickArm:
    """One way of fine-tuning."""

    name: str
    """The run's folder."""
    label: str
    """What tables and plots call it."""
    kind: str
    retention: list[dict[str, Any]]
    learning_rate: float = 1e-3


def real_arms() -> list[QuickArm]:
    """The four ways of the real model. The learning rate is the first of them: a lower one forgets less."""
    return [
        QuickArm(
            name="label-annealing-1",
            label=f"label annealing, weight 1, at {HIGH:g}",
            kind="label_annealing",
            retention=[{"label_annealing": {"weight": 1.0}}],
            learning_rate=HIGH,
        ),
        QuickArm(
            name="wise-ft",
            label=f"WiSE-FT, alpha 0.5, at {HIGH:g}",
            kind="wise_ft",
            retention=[{"wise_ft": {"alpha": 0.5}}],
            learning_rate=HIGH,
        ),
        QuickArm(name="direct", label=f"direct, at {HIGH:g}", kind="direct", retention=[], learning_rate=HIGH),
        QuickArm(name="direct-low", label=f"direct, at {LOW:g}", kind="direct", retention=[], learning_rate=LOW),
    ]


def arms(replay_file: str) -> list[QuickArm]:
    """The seven ways, the slower ones first so that two workers end together."""
    annealing = [
        QuickArm(
            name=f"label-annealing-{weight:g}",
            label=f"label annealing, weight {weight:g}",
            kind="label_annealing",
            retention=[{"label_annealing": {"weight": weight}}],
        )
        for weight in (0.3, 1.0, 3.0)
    ]
    others = [
        QuickArm(name="direct", label="direct fine-tuning", kind="direct", retention=[]),
        QuickArm(name="l2", label="L2 to the start, 0.01", kind="l2", retention=[{"l2": {"coefficient": 0.01}}]),
        QuickArm(name="sfa", label="SFA, p = 0.25", kind="sfa", retention=[{"sfa": {"p": 0.25}}]),
        QuickArm(
            name="replay",
            label="replay, 10 % prose",
            kind="replay",
            retention=[{"replay": {"data": replay_file, "fraction": 0.1}}],
        ),
    ]
    return annealing + others


@dataclass(frozen=True, kw_only=True)
class QuickSettings:
    """A quickstart as the engine runs it."""

    output_dir: Path
    arms: tuple[QuickArm, ...]
    base: str
    """The base's folder."""
    files: dict[str, str]
    """What the runs read, by name: see `write_data`."""
    seed: int
    quick: bool
    workers: int | None
    real: bool = False
    """The story of the real model."""
    storage: str = ""
    """Address of the queue."""
    name: ClassVar[str] = "quickstart"
    measures: ClassVar[tuple[str, ...]] = ("steps",)
    small: ClassVar[bool] = True
    """Nothing needs the hub."""

    @property
    def resolved(self) -> dict[str, Any]:
        """As plain JSON."""
        found: dict[str, Any] = to_jsonable(self)
        return found

    def differences(self, old: Mapping[str, Any]) -> list[str]:
        """None: each run's folder refuses another configuration itself."""
        return []

    def jobs(self) -> list[Job]:
        """One for each arm."""
        return [Job(attributes={LABEL: arm.label, "arm": number}) for number, arm in enumerate(self.arms)]

    @property
    def measures_shown(self) -> tuple[tuple[str, str], tuple[str, str]]:
        """(suite, name) of the source and of the target."""
        return SOURCE, REAL_TARGET if self.real else TARGET

    def run(self, arm: QuickArm) -> dict[str, Any]:
        """One run's configuration: exactly what `holdfast train --config` would take."""
        small = {
            "max_steps": 10 if self.quick else 100,
            "per_device_train_batch_size": 16,
            "packing": True,
            "packing_strategy": "wrapped",
            "max_length": 128,
        }
        real = {
            "max_steps": 4 if self.quick else 60,
            "per_device_train_batch_size": 8,
            "max_length": 256,
            "dtype": "float32",
            "bf16": has_fast_bfloat16(),
        }
        window, most = (256, 4 if self.quick else 60) if self.real else (128, 20 if self.quick else 1000)
        return {
            "model_name_or_path": self.base,
            "dataset_name": self.files["replies_train" if self.real else "code_train"],
            "output_dir": str(self.output_dir / arm.name),
            **(real if self.real else small),
            "learning_rate": arm.learning_rate,
            "lr_scheduler_type": "cosine",
            "warmup_steps": 5,
            "gradient_checkpointing": False,
            "logging_steps": 2,
            "save_strategy": "steps",
            "save_steps": 50,
            "save_total_limit": 1,
            "use_cpu": True,
            "seed": self.seed,
            "retention": arm.retention,
            "evaluation": {
                name: [
                    {
                        "perplexity": self.files[f"{text}_heldout"],
                        "name": text,
                        "window": window,
                        "stride": window * 3 // 4,
                        "max_documents": most,
                    }
                ]
                for name, text in self.measures_shown
            },
        }


class Quickstart(Study[QuickSettings]):
    """The quickstart as a study whose jobs are ordinary runs."""

    noun: ClassVar[str] = "run"

    @classmethod
    def load(cls, resolved: Mapping[str, Any], *, storage: str, output_dir: Path) -> Quickstart:
        """See `Study.load`."""
        known = {f.name for f in dataclasses.fields(QuickSettings)}
        values = {name: value for name, value in resolved.items() if name in known}
        values |= {"arms": tuple(QuickArm(**arm) for arm in resolved["arms"]), "storage": storage}
        return cls(QuickSettings(**{**values, "output_dir": output_dir}))

    def open_folder(self, console: Any) -> None:
        """Empties the queue: the run folders say what is done.

        Raises:
            RunFolderError: the folder is a study's, whose record and page would be lost.
        """
        _refuse_study(self.settings.output_dir)
        (self.settings.output_dir / QUEUE).unlink(missing_ok=True)

    def make(self, task: Task) -> dict[str, Any]:
        """One fine-tuning, or what is left of it."""
        from holdfast.runs.config import train_config
        from holdfast.runs.run import train
        from holdfast.studies.engine.watching import CheckEveryStep

        config = train_config(self.settings.run(self._arm(task.attributes)))
        evaluations = self.settings.output_dir / "evaluations"
        run = train(config, console=task.console, evaluation_cache=evaluations, callbacks=[CheckEveryStep(task.check)])
        return {"steps": run.read().training["steps"]}

    def values(self, task: Task) -> list[float]:
        """The steps of the run."""
        return [float(task.results[0]["steps"])]

    def share(self, job: JobState) -> float:
        """How much of a run is done, read from its metrics."""
        return share_of_run(self.settings.run(self._arm(job.attributes))) if job.state == RUNNING else 0.0

    def _arm(self, attributes: Mapping[str, Any]) -> QuickArm:
        return self.settings.arms[attributes["arm"]]

    def outcome(self, state: StudyState) -> StudyState:
        """The queue; the figures are those of the run folders."""
        return state

    def write(self, record: Any) -> None:
        """Nothing: the run folders are the record, and `holdfast report` finds them."""

    def compared(self) -> list[Arm]:
        """The runs as tables and the page have them, direct fine-tuning first."""
        from holdfast.reports.arms import Arm

        shown = sorted(
            self.settings.arms,
            key=lambda arm: (arm.kind != "direct", -arm.learning_rate, arm.kind == "label_annealing"),
        )
        root = self.settings.output_dir
        return [Arm(label=arm.label, folder=RunFolder(root / arm.name), kind=arm.kind) for arm in shown]

    def page(self, record: Any) -> Writer:
        """The trade-off of all runs."""
        from holdfast.reports.arms import write_tradeoff_report

        compared = self.compared()
        model = compared[0].folder.read().model
        parameters, (source, target) = int(model.get("parameters", 0)), self.settings.measures_shown
        title = "What fine-tuning on code does to prose"
        intro = (
            f"A base of {parameters:,} parameters, pre-trained on English reference prose, was fine-tuned on Python "
            f"source in {len(compared)} ways. Source: held-out prose, what it knew. Target: held-out code, what it "
            "learns. One seed; the intervals are over documents."
        )
        if self.settings.real:
            title = "What fine-tuning on answers about Python does to prose"
            intro = (
                f"{model.get('name')} ({parameters:,} parameters, {model.get('origin')}) was fine-tuned on answers in "
                f"the words of Python's documentation in {len(compared)} ways. Source: held-out prose of Python's "
                "reference, what it knew. Target: answers to held-out questions, what it learns. The same steps for "
                "all; one seed; the intervals are over documents."
            )
        about = {"title": title, "intro": intro, "next_steps": NEXT_STEPS}
        return lambda path: write_tradeoff_report(path, compared, source=source, target=target, **about)


def quickstart(
    *,
    output_dir: str | os.PathLike[str] = "holdfast-quickstart",
    seed: int = 0,
    workers: int = 2,
    quick: bool = False,
    only: Sequence[str] = (),
    real: bool = False,
    console: Any = None,
) -> Path:
    """Runs the quickstart, or continues it where it was interrupted.

    Args:
        output_dir: gets `data/`, one run folder a method, and `report.html`.
        seed: of the base and of every fine-tuning.
        workers: processes that fine-tune side by side, each with its share of the cores.
        quick: a run of seconds that only shows that everything works; its figures mean little.
        only: names of the arms that are wanted; empty: all.
        real: with `REAL_MODEL` in place of the small base, made where it is not there yet.
        console: a `rich.console.Console`.

    Returns:
        The path of the report.

    Raises:
        ConfigError: `only` names an arm that there is not.
        ModelError: `real`, and the package that carries the model is not installed.
        RunFolderError: the folder is a study's.
        Interrupted: Ctrl-C; the same command continues.
        HoldfastError: fine-tunings failed; which, and why.
    """
    from rich.console import Console

    from holdfast.reports.arms import print_tradeoff
    from holdfast.worlds.embedded import embedded_corpus

    known = [arm.name for arm in (real_arms() if real else arms(""))]
    unknown = [name for name in only if name not in known]
    if unknown:
        raise ConfigError(
            f"--only: expected names of arms ({', '.join(known)}), got "
            f"{', '.join(unknown)}.{did_you_mean(unknown[0], known)}"
        )
    console = console or Console()
    began = time.monotonic()
    root = Path(output_dir)
    refuse_foreign(root, Quickstart.markers)
    _refuse_study(root)
    corpus = embedded_corpus()
    with NewFolder(root):
        if real:
            from holdfast.worlds.real_model import get_model

            say(console, f"1. {REAL_MODEL}, a language model that knows things, out of an installed package.")
            get_model(REAL_MODEL, console=console)
            base: Path | str = REAL_MODEL
        files = (write_real_data if real else write_data)(corpus, root / "data")
        if not real:
            console.print(
                f"1. A small base learns English prose ({sum(map(len, corpus.prose_train)) / 1000:.0f} kB of Python's "
                f"reference) and a little code.",
                highlight=False,
            )
            base = cached_base(base_texts(corpus), base_recipe(seed=seed, quick=quick), console=console)
    wanted = real_arms() if real else arms(str(files["prose_train"]))
    settings = QuickSettings(
        output_dir=root,
        arms=tuple(arm for arm in wanted if not only or arm.name in only),
        base=str(base),
        real=real,
        files={name: str(path) for name, path in files.items()},
        seed=seed,
        quick=quick,
        workers=workers,
        storage=f"sqlite:///{root}/{QUEUE}",
    )
    count = len(settings.arms)
    what = "on answers about Python" if real else "on Python source"
    minutes = f" Up to {REAL_MINUTES} minutes on two cores; Ctrl-C and the same command continue it."
    say(console, f"2. It is fine-tuned {what} in {count} ways, {workers} at a time.{minutes if real else ''}")
    study = Quickstart(settings)
    execute_study(study, console=console)
    source, target = settings.measures_shown
    print_tradeoff(study.compared(), console, source=source, target=target)
    seconds = time.monotonic() - began
    console.print(f"\nDone in {seconds:.0f} s. Plot and tables: {root / PAGE}", highlight=False, soft_wrap=True)
    console.print(f"\n[bold]On your own model[/bold]\n{NEXT_STEPS}", highlight=False, soft_wrap=not console.is_terminal)
    return root / PAGE


def _refuse_study(folder: Path) -> None:
    if (folder / STUDY_FILE).is_file():
        raise RunFolderError(f"{folder} holds a study. Choose another output_dir, so that it is not overwritten.")


NEXT_STEPS = """\
$ holdfast train --model_name_or_path MODEL --dataset_name train.jsonl \\
    --retention label_annealing:weight=1.0 --output_dir my-run \\
    --source what_it_knows.jsonl --target what_it_learns.jsonl

MODEL is a folder or a hub id. train.jsonl has text, messages, prompt and completion, or instruction and output \
columns. --source and --target take \
held-out files (perplexity) or lm-evaluation-harness tasks such as arc_easy. The run folder then holds the tuned model \
and a report like this one.

$ holdfast train --help"""
"""What to do next, for the terminal and the page: lines that begin with `$ ` are commands."""


def write_data(corpus: Any, folder: Path) -> dict[str, Path]:
    """The files the runs read, by name: what is learnt, what is replayed, and the two held-out sets, short enough to
    measure in seconds.

    Held-out code is the beginning of evenly spaced pieces: many documents for the paired intervals, few tokens.
    """
    every = max(1, len(corpus.code_heldout) // 160)
    splits = {
        "code_train": corpus.code_train[::4],
        "prose_train": corpus.prose_train,
        "prose_heldout": corpus.prose_heldout,
        "code_heldout": [piece[:900].rsplit("\n", 1)[0] for piece in corpus.code_heldout[::every]],
    }
    return {
        name: write_jsonl(folder / f"{name}.jsonl", ({"text": text} for text in texts))
        for name, texts in splits.items()
    }


def write_real_data(corpus: Any, folder: Path) -> dict[str, Path]:
    """The files of the real model's runs: questions about functions of the standard library with answers in their
    docstrings' words, of which the answers are trained; held out, answers about other functions, and the beginning of
    evenly spaced pieces of prose."""
    from holdfast.worlds.reference_chat import conversations, split

    train, heldout = split(conversations(corpus.code_train), 60)
    every = max(1, len(corpus.prose_heldout) // 60)
    rows: dict[str, list[dict[str, Any]]] = {
        "replies_train": [_turn(one.messages) for one in train],
        "replies_heldout": [_turn(one.messages) for one in heldout],
        "prose_heldout": [{"text": piece[:900].rsplit(" ", 1)[0]} for piece in corpus.prose_heldout[::every]],
    }
    return {name: write_jsonl(folder / f"{name}.jsonl", rows[name]) for name in rows}


def _turn(messages: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    return {"prompt": [dict(messages[0])], "completion": [dict(messages[1])]}
