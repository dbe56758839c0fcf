"""One trial: a fine-tuning a seed, what each learnt and forgot, and when to stop in the middle.

A run's folder is named by what decides it, so a trial that was taken over, tried again or drawn twice finds what is
there and goes on. Start and teacher are shared through the caches of `runs.run`: the start is measured once in a
study, and label annealing's teacher is computed once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.evaluation.averages import SUITE
from holdfast.evaluation.entries import Along, EvaluationPlan
from holdfast.records.evaluation import Evaluation
from holdfast.records.run import RunFolder
from holdfast.records.study import Rung, SeedRun
from holdfast.runs.launched import train_in_processes
from holdfast.runs.measuring import MeasureAt, Point
from holdfast.studies.engine.study import CannotJudge, Stopped
from holdfast.studies.engine.watching import CheckEveryStep
from holdfast.studies.tradeoff.names import run_folder_name
from holdfast.studies.tradeoff.record import gain, metric_problems, select_problems, validation_problems
from holdfast.studies.tradeoff.study import Pruning, StudyConfig


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What other trials were at a rung."""

    seed: int
    share: float
    gains: list[tuple[float, float]]
    """(what the target is chosen by, source) of every other trial that passed it."""


Others = Callable[[int, float], Standing]
"""What other trials were at (seed, share), read when it is called."""


def behind(mine: tuple[float, float], others: Standing, pruning: Pruning) -> str | None:
    """Why a trial is stopped at a rung; None where it goes on.

    Args:
        mine: its gains on target and source.
        others: those of the other trials.
        pruning: the rule, see `Pruning`.
    """
    if not all(math.isfinite(g) for g in mine):
        return f"seed {others.seed}, {100 * others.share:.0f} % of the steps: a figure that is not finite"
    if len(others.gains) < pruning.wait_for:
        return None
    spans = []
    for side in (0, 1):
        values = [g[side] for g in (*others.gains, mine) if math.isfinite(g[side])]
        spans.append(max(values) - min(values))
    better = [g for g in others.gains if all(g[side] > mine[side] + pruning.margin * spans[side] for side in (0, 1))]
    if not better:
        return None
    count = f"{len(better)} other trial{'s were' if len(better) > 1 else ' was'}"
    where = f"seed {others.seed}, {100 * others.share:.0f} % of the steps"
    return f"{where}: {count} better on both sides, by more than {100 * pruning.margin:g} % of the range"


def run_seed(
    config: StudyConfig,
    settings: Mapping[str, Any],
    seed: int,
    *,
    kind: str,
    out: Path,
    console: Any,
    check: Callable[[], None],
    rungs: Sequence[Rung] = (),
    others: Others | None = None,
    passed: Callable[[Rung], None] | None = None,
) -> SeedRun:
    """One fine-tuning, from start to comparison; or what is left of it.

    Args:
        config: the study.
        settings: the trial's training configuration, complete.
        seed: of this repetition.
        kind: the trial's methods.
        out: the study's folder on this machine.
        console: where the run reports to.
        check: raises where the worker has to stop; called at every step.
        rungs: of this trial that were measured before.
        others: what to hold a rung against; None: there are no rungs inside the run.
        passed: called with every rung when it is measured.

    Raises:
        Stopped: the trial fell behind.
        LeaseLost, Interrupted: from `check` or a signal.
        HoldfastError: the run failed.
    """
    from holdfast.runs.config import train_config
    from holdfast.runs.run import train

    folder = out / "runs" / run_folder_name(settings, kind) / f"seed-{seed}"
    began = time.monotonic()
    wanted = train_config({**settings, "output_dir": str(folder), "seed": seed})
    run = RunFolder(folder)
    rung = _Rungs(config, wanted.evaluation, run, seed, rungs=rungs, others=others, passed=passed)
    shares = config.pruning.at if config.pruning and others is not None and seed == config.seeds[0] else ()
    watch = [
        _Check(config, run, check),
        MeasureAt(
            along=Along(shares=tuple(shares)),
            plan=rung.plan,
            folder=run.path / "rungs",
            key=f"{wanted.key}-{seed}",
            reached=rung.reached,
            start=run.evaluated("start"),
        ),
    ]
    if wanted.processes > 1:
        train_in_processes(wanted, folder, evaluations=out / "evaluations")
    else:
        train(wanted, console=console, evaluation_cache=out / "evaluations", callbacks=watch, alone=False)
    record = run.read()
    with contextlib.suppress(ValueError):
        folder = folder.relative_to(out)
    return SeedRun(
        seed=seed,
        folder=folder.as_posix(),
        host=socket.gethostname(),
        seconds=round(time.monotonic() - began, 3),
        training_seconds=float(record.training.get("seconds", 0.0)),
        comparisons=run.comparisons(),
        references=references_of(run.evaluated("start").all()),
        steps=record.training.get("steps"),
    )


def references_of(found: Sequence[Evaluation]) -> dict[str, dict[str, float]]:
    """`SeedRun.references` of the start's evaluations."""
    return {f"{e.suite}/{e.name}/{metric}": dict(levels) for e in found for metric, levels in e.references.items()}


class _Check(CheckEveryStep):
    """Before the first step also: are the objectives what was measured?"""

    def __init__(self, config: StudyConfig, run: RunFolder, check: Callable[[], None]) -> None:
        super().__init__(check)
        self.config, self.run = config, run

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_train_begin(args, state, control)
        measured = [(e.suite, e.name, e.metrics, e.primary) for e in self.run.evaluated("start").all()]
        config = self.config
        problems = [p for side, wanted in config.objectives.items() for p in metric_problems(wanted, side, measured)]
        if config.validation is not None and not problems:
            problems += validation_problems(config.validation, config.target, measured)
        problems += select_problems(config.select, config.source, measured)
        if problems:
            raise CannotJudge(problems)


class _Rungs:
    """What happens at a rung: both objectives are measured, and a trial that fell behind is stopped."""

    def __init__(
        self,
        config: StudyConfig,
        plan: EvaluationPlan,
        run: RunFolder,
        seed: int,
        *,
        rungs: Sequence[Rung],
        others: Others | None,
        passed: Callable[[Rung], None] | None,
    ) -> None:
        self.config, self.run, self.seed, self.others, self.passed = config, run, seed, others, passed
        self.known = {r.share: r for r in rungs if r.seed == seed}
        names = {(s, n) for w in config.judged_by for s, n, _ in w.entries}
        averages = tuple(a for a in plan.averages if (SUITE, a.name) in names)
        names |= {(suite, name) for a in averages for suite, name, _ in a.members}
        entries = tuple(e for e in plan.entries if (e.suite, e.name) in names)
        self.plan = dataclasses.replace(plan, entries=entries, averages=averages)

    def reached(self, point: Point) -> None:
        assert self.config.pruning is not None and self.others is not None
        rung = self.known.get(point.share)
        if rung is None:
            target, source = self._gains(point.measure())
            rung = Rung(seed=self.seed, share=point.share, target=target, source=source)
            self.known[point.share] = rung
            if self.passed is not None:
                self.passed(rung)
        reason = behind((rung.target, rung.source), self.others(self.seed, point.share), self.config.pruning)
        if reason is not None:
            raise Stopped(reason)

    def _gains(self, found: Sequence[Evaluation]) -> tuple[float, float]:
        """Over the start, on both objectives."""
        start = self.run.evaluated("start")
        gains: list[float] = []
        for wanted in self.config.judged_by:
            parts = []
            for suite, name, metric in wanted.entries:
                after, before = next(e for e in found if (e.suite, e.name) == (suite, name)), start.find(suite, name)
                assert before is not None, "the start was measured before training began"
                one = after.metrics[metric or after.primary]
                difference = one.value - before.metrics[metric or after.primary].value
                parts.append(difference if one.higher_is_better else -difference)
            gains.append(sum(parts) / len(parts))
        return gains[0], gains[1]


def pruned_after_seed(config: StudyConfig, runs: Sequence[SeedRun], others: Others) -> str | None:
    """Whether the trial fell behind with the seeds it has: the reason, or None.

    Args:
        config: the study.
        runs: of the trial, in the order of the seeds.
        others: what the other trials were after the same seed.
    """
    if config.pruning is None or len(runs) >= len(config.seeds):
        return None
    target, source = (gain(runs[-1].comparisons, w) for w in config.judged_by)
    if target is None or source is None:
        return None
    return behind((target, source), others(runs[-1].seed, 1.0), config.pruning)


# ---------------------------------------------------------------------------------------------------------- one teacher


BYTES_A_TOKEN = 3.0
"""Of text, on the low side, so that the states' size is not guessed too small."""
SHARE_OF_DISK = 0.2
"""Of what is free, that cached states may take without being asked for."""


def with_shared_teacher(settings: Mapping[str, Any], teacher: str) -> tuple[dict[str, Any], str | None]:
    """The settings with label annealing's teacher read from the cache that all trials share, where that is possible and
    the user left it open.

    Args:
        settings: of a trial, complete.
        teacher: "auto", "cached" or "online", as the study says.

    Returns:
        The settings, and what is worth knowing: why each trial runs the teacher itself.
    """
    methods = settings.get("retention") or []
    open_ones = [
        m["label_annealing"] for m in methods if "label_annealing" in m and "teacher" not in m["label_annealing"]
    ]
    if not open_ones or teacher == "online":
        return dict(settings), None
    reason = None if teacher == "cached" else _no_cache(settings)
    if reason is not None:
        return (
            dict(settings),
            f"Label annealing's teacher runs in every trial: {reason}. 'teacher: cached' in the study computes it "
            f"once all the same.",
        )
    import copy

    found = copy.deepcopy(dict(settings))
    for method in found["retention"]:
        if "label_annealing" in method:
            method["label_annealing"].setdefault("teacher", "cached")
    return found, None


def _no_cache(settings: Mapping[str, Any]) -> str | None:
    """Why the teacher's states are not stored unasked; None where they are."""
    import shutil

    from holdfast.models import model_folder
    from holdfast.support.cache import cache_folder
    from holdfast.support.environment import shown_bytes
    from holdfast.support.files import read_object

    data = settings.get("dataset_name")
    if settings.get("streaming"):
        return "the data is streamed"
    if settings.get("num_processes") or settings.get("accelerate_config"):
        return "training goes over several processes"
    if not isinstance(data, str) or not os.path.exists(data):
        return "how much data there is is not known before it is read"
    folder = model_folder(str(settings.get("model_name_or_path")), str(settings.get("model_revision", "main")))
    if folder is None or not (folder / "config.json").is_file():
        return "how large its states are is not known before the model is there"
    about = read_object(folder / "config.json")
    width = (about.get("text_config") or about).get("hidden_size") or about.get("n_embd")
    if not isinstance(width, int):
        return "how large its states are is not known for this model"
    place = Path(data)
    size = sum(f.stat().st_size for f in place.rglob("*") if f.is_file()) if place.is_dir() else place.stat().st_size
    size *= 4 if place.suffix in (".gz", ".zst", ".parquet", ".bz2", ".xz") else 1
    needed = size / BYTES_A_TOKEN * width * 4
    cached = cache_folder()
    while not cached.exists():
        cached = cached.parent
    free = shutil.disk_usage(cached).free
    if needed > SHARE_OF_DISK * free:
        return f"its states would take about {shown_bytes(needed)}, and {shown_bytes(free)} are free"
    return None
