"""What came of an overtraining study: figures of every fine-tuned model, the rate that validation chooses at each
budget, where longer pre-training turns from help to harm, and what retention does to that.

A fine-tuned model is held against its own checkpoint, sample by sample (`evaluation.compare`); figures are means over
the seeds, and intervals cover seeds and samples. A model of which one seed diverged is as bad as can be: it is not left
out of a mean.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import DataError
from holdfast.evaluation.compare.contributions import Measured, independent, sample_correlation
from holdfast.evaluation.probe.outcome import (
    Columns,
    columns_of,
    comparable_over_rungs,
    inflections,
    sample_correlations,
    sensitivities,
    trends,
    turn_of,
)
from holdfast.papers.overtraining.costs import tuning_cost
from holdfast.papers.overtraining.plan import (
    ALIGN,
    CHECKPOINT,
    KIND,
    LINE,
    MODEL,
    PROBE,
    TEST,
    TEXTS,
    OvertrainingConfig,
)
from holdfast.papers.overtraining.record import (
    CANNOT_TELL,
    CONSTANT,
    EARLIER,
    FALLS,
    LATER,
    QUICK,
    RISES,
    SLOW,
    Arm,
    Checkpoint,
    DistanceTrend,
    Growth,
    OvertrainingRecord,
    RateTrend,
    Scored,
    Shift,
    TunedFigure,
    TunedModel,
    TunedRate,
    TunedTurn,
)
from holdfast.papers.overtraining.seen import seen_examples, seen_groups
from holdfast.records.evaluation import Evaluation, EvaluationFolder
from holdfast.records.figure import CONFIDENCE, Figure, rescaled
from holdfast.records.probe import ProbedModel, Sharpness
from holdfast.records.run import RunFolder
from holdfast.records.study import SampleCorrelation
from holdfast.statistics.gains import Gain, gain_over_seeds
from holdfast.statistics.inflection import CANNOT_TELL as NO_TURN
from holdfast.statistics.inflection import FALLS as NEVER_TURNS
from holdfast.statistics.inflection import TURNS, Turn, places_at
from holdfast.statistics.powers import exponent, exponent_over_seeds
from holdfast.studies.engine import storage as stored
from holdfast.studies.engine.study import COMPLETE, StudyState
from holdfast.support.environment import shown_name
from holdfast.support.files import record_from

LEAST_BUDGETS = 3
"""For a curve to turn, and for a rate to have a trend."""


def overtraining_record(
    state: StudyState, config: OvertrainingConfig, results: Mapping[int, Sequence[Mapping[str, Any]]]
) -> OvertrainingRecord:
    """The study at this moment, without figures.

    Args:
        state: its jobs.
        config: what was asked for.
        results: what was made, by the job's number.
    """
    notes, probed, models = list(state.attributes.get("notes", [])), dict[str, ProbedModel](), []
    sharpness: list[Sharpness] = []
    for job in state.latest:
        made, kind = list(results.get(job.number, ())), job.attributes[KIND]
        reason = job.attributes.get(stored.REASON)
        notes += [n for one in made for n in one.get("notes", ()) if n not in notes]
        if kind in (TEXTS, PROBE, ALIGN, LINE):
            if reason is not None:
                notes.append(f"{job.label} failed: {reason}")
            if made and kind == LINE and made[0].get("sharpness"):
                followed = record_from(Sharpness, made[0]["sharpness"])
                sharpness = [_with_lines(s, followed) for s in sharpness]  # a checkpoint's probe is made before
            if made and kind == PROBE:
                probed[job.attributes[CHECKPOINT]] = record_from(ProbedModel, made[0]["model"])
                sharpness += [record_from(Sharpness, made[0]["sharpness"])] if made[0].get("sharpness") else []
            continue
        tuning = config.tunings[job.attributes[MODEL]]
        away = {str(one["seed"]): one["distance"] for one in made if one.get("distance") is not None}
        models.append(
            TunedModel(
                task=tuning.task,
                arm=tuning.arm,
                rate=tuning.rate,
                checkpoint=job.attributes[CHECKPOINT],
                state=job.state,
                reason=reason,
                seeds=[int(one["seed"]) for one in made],
                diverged={str(one["seed"]): one["diverged"] for one in made if one.get("diverged")},
                distance=statistics.fmean(away.values()) if away else None,
                distance_by_seed=away,
                stopped={str(one["seed"]): float(one["epochs"]) for one in made if one.get("epochs")},
                tokens=max((int(one.get("tokens", 0)) for one in made), default=0),
                seconds=sum(float(one.get("seconds", 0.0)) for one in made),
            )
        )
    tunings = list(config.tunings.values())
    if config.asked.early_stopping and (whole := list(dict.fromkeys(t.arm for t in tunings if t.to_the_end))):
        notes.append(
            f"{', '.join(whole)}: all epochs, without early stopping. The weights change after the last step, so that "
            f"no earlier epoch is the result."
        )
    kinds = {t.arm: t.kind for t in reversed(tunings)}
    rates = {arm: sorted({t.rate for t in tunings if t.arm == arm}) for arm in kinds}
    return OvertrainingRecord(
        name=config.name,
        status=state.status,
        created=state.created,
        finished=state.finished,
        config=config.resolved,
        checkpoints=[
            Checkpoint(
                label=label, name=shown_name(config.model(label)), tokens=r.budget or 0.0, probed=probed.get(label)
            )
            for label, r in config.rungs.items()
        ],
        tasks=list(config.asked.tasks),
        arms=[Arm(label=arm, kind=kinds[arm], rates=rates[arm]) for arm in dict.fromkeys(t.arm for t in tunings)],
        direct=config.direct,
        models=models,
        sharpness=sharpness,
        notes=notes,
        versions=dict(state.attributes.get("versions", {})),
        hardware=dict(state.attributes.get("hardware", {})),
    )


def _with_lines(one: Sharpness, other: Sharpness) -> Sharpness:
    """One checkpoint's curvature with the lines of another measurement of it."""
    return dataclasses.replace(one, lines=[*one.lines, *other.lines]) if one.model == other.model else one


def with_figures(record: OvertrainingRecord, config: OvertrainingConfig) -> OvertrainingRecord:
    """The record with figures and verdicts, as far as models are there.

    Raises:
        DataError: evaluations that cannot be read.
    """
    record = _with_probed(record, config)
    figures = _Figures(record, config)
    more = figures.correlations()
    record = dataclasses.replace(record, scored=figures.scored, notes=[*record.notes, *figures.notes])
    if not figures.scored:
        return record
    models = [figures.scored_model(m) for m in record.models]
    record = dataclasses.replace(record, models=models, **more)
    if (most := config.asked.most_perplexity) is not None:
        left_out, told = _left_out(record, most)
        record = dataclasses.replace(record, left_out=left_out, notes=[*record.notes, *told])
    record = _Judged(record, config, figures).record()
    groups = seen_groups(record, config, figures.folder)
    return dataclasses.replace(record, groups=groups, examples=seen_examples(record, config, figures.folder))


def _with_probed(record: OvertrainingRecord, config: OvertrainingConfig) -> OvertrainingRecord:
    """What changes without training cost the checkpoints that were probed."""
    plan = config.plan(None)
    budgets = {c.label: c.tokens for c in record.checkpoints if c.probed is not None}
    found = [
        s
        for label in budgets
        for s in sensitivities(config.probed, label, config.changes, confidence=plan.confidence, seed=plan.seed)
    ]
    place = {f"{e.suite}/{e.name}": n for n, e in enumerate(plan.entries)}
    found.sort(key=lambda s: (list(budgets).index(s.model), place.get(s.entry, len(place))))  # the first one leads
    more: dict[str, Any] = {"sensitivities": found}
    ends, models = list(budgets), [c.probed for c in record.checkpoints if c.probed is not None]
    if len(budgets) > 1:
        pairs = sample_correlations(config.probed, found, config.changes)
        more["probed_correlations"] = pairs
        moved = trends(found, ends[0], ends[-1], confidence=plan.confidence, correlations=pairs)
        more["trends"], notes = comparable_over_rungs(moved, models)
        more["notes"] = [*record.notes, *notes]
    if len(budgets) >= LEAST_BUDGETS:
        turned = inflections(config.probed, budgets, config.changes, confidence=plan.confidence)
        more["inflections"] = comparable_over_rungs(turned, models)[0]
    return dataclasses.replace(record, **more)


class _Figures:
    """Reads what was measured of the fine-tuned models; every file once."""

    def __init__(self, record: OvertrainingRecord, config: OvertrainingConfig) -> None:
        self.config = config
        self.names = {(t.task, t.arm, t.rate): name for name, t in config.tunings.items()}
        self.models = record.models
        self._columns: dict[tuple[Path, str, str], Columns | None] = {}
        self.entries: dict[tuple[str, str], Evaluation] = {}
        """By task and "suite/name", as it was measured of one model."""
        self.scored: dict[str, list[Scored]] = {}
        self.notes: list[str] = []
        for model in record.models:
            whole = [s for s in model.seeds if str(s) not in model.diverged]
            if model.state == COMPLETE and whole and model.task not in self.scored:
                self._look(model.task, self.run(model, whole[0]))

    def _look(self, task: str, run: RunFolder) -> None:
        compared = {(c.suite, c.name) for c in run.comparisons()}
        held = {(e.suite, e.name): e for e in run.evaluated("result").all()}
        asked = [(e.suite, e.name) for e in self.config.plan(task).entries]
        wanted = [held[key] for key in asked if key in held and key in compared]
        self.notes += [
            f"{task}: {suite}/{name} has no figures here: it cannot be held against the checkpoint."
            for suite, name in asked
            if (suite, name) not in compared
        ]
        self.entries |= {(task, f"{e.suite}/{e.name}"): e for e in wanted}
        self.scored[task] = [
            Scored(
                suite=e.suite,
                name=e.name,
                metric=e.primary,
                unit=e.metrics[e.primary].unit,
                higher_is_better=e.metrics[e.primary].higher_is_better,
                chance=e.references.get(e.primary, {}).get("chance"),
            )
            for e in wanted
        ]

    def run(self, model: TunedModel, seed: int) -> RunFolder:
        """A fine-tuning's folder."""
        name = self.names[model.task, model.arm, model.rate]
        return RunFolder(self.config.run_folder(model.checkpoint, name, seed))

    def folder(self, model: TunedModel, seed: int) -> EvaluationFolder:
        """What was measured of a fine-tuned model."""
        return self.run(model, seed).evaluated("result")

    def scored_model(self, model: TunedModel) -> TunedModel:
        """With its figures, where all seeds are there."""
        if model.state != COMPLETE:
            return model
        if model.diverged:
            worst = {s.key: _worst(s) for s in self.scored.get(model.task, ())}
            return dataclasses.replace(model, figures=worst)
        compared = {seed: self.run(model, seed).comparisons() for seed in model.seeds}
        found = {}
        for s in self.scored[model.task]:
            key = (s.suite, s.name, s.metric)
            if not all(any((c.suite, c.name, c.metric) == key for c in one) for one in compared.values()):
                raise DataError(f"{s.key} of {model.checkpoint}, {model.arm}, {model.rate:g} was not compared.")
            gain = gain_over_seeds(compared, [key])
            after = {
                seed: next(c.after for c in one if (c.suite, c.name, c.metric) == key) for seed, one in compared.items()
            }
            # without a gain one of them is not finite
            found[s.key] = _worst(s) if gain is None else _figure(gain, after, self._half(model, s))
        return dataclasses.replace(model, figures=found)

    def _half(self, model: TunedModel, scored: Scored) -> float:
        """Half-width at 95 % of the samples' interval of a figure, mean over the seeds; 0 where there is none."""
        halves = []
        for seed in model.seeds:
            evaluation = self.folder(model, seed).find(scored.suite, scored.name)
            metric = None if evaluation is None else evaluation.metrics.get(scored.metric)
            if metric is not None and metric.interval is not None and all(map(math.isfinite, metric.interval)):
                low, high = metric.interval
                halves.append(rescaled(CONFIDENCE, known=metric.confidence) * (high - low) / 2)
        return statistics.fmean(halves) if halves else 0.0

    def columns(self, model: TunedModel | None, seeds: Sequence[int], key: str) -> list[Columns | None]:
        """One entry of a model, seed by seed; None of a seed whose figures are not finite."""
        assert model is not None
        found: list[Columns | None] = []
        for seed in seeds:
            if str(seed) in model.diverged:
                found.append(None)
                continue
            folder = self.folder(model, seed)
            place = (folder.path, model.task, key)
            if place not in self._columns:
                self._columns[place] = columns_of(folder, self.entries[model.task, key])
            found.append(self._columns[place])
        return found

    def correlations(self) -> dict[str, Any]:
        """Fields of the record: how far models go together over the samples of each entry of their task, in what
        fine-tuning costs them and, of what those that see are tested on, in the score itself. Trials are places in the
        record."""
        costs, scores = list[SampleCorrelation](), list[SampleCorrelation]()
        for task, entries in self.scored.items():
            own = {n: m for n, m in enumerate(self.models) if (m.task, m.state) == (task, COMPLETE)}
            runs = {n: [self.run(m, seed) for seed in m.seeds] for n, m in own.items() if not m.diverged}
            changes = {n: [(r.evaluated("start"), r.evaluated("result")) for r in of] for n, of in runs.items()}
            results = {n: [(after,) for _, after in of] for n, of in changes.items()}
            seen = [s for s in entries if s.suite == TEST][:1] if self.config.way_to_see(task) else []
            notes: list[str] = []
            for scored in entries:
                costs += self._together(task, scored, changes, notes)
            for scored in seen:
                scores += self._together(task, scored, results, notes)
            self.notes += dict.fromkeys(notes)
        return {"correlations": costs, "score_correlations": scores}

    @staticmethod
    def _together(
        task: str, scored: Scored, measured: Mapping[int, Sequence[Measured]], notes: list[str]
    ) -> list[SampleCorrelation]:
        entry = (scored.suite, scored.name, scored.metric)
        found, left_out = sample_correlation(entry, measured)
        notes += [f"{task}: {independent(entry, left_out, len(measured), 'models')}"] if left_out else []
        return [] if found is None else [found]


def _figure(gain: Gain, after: Mapping[int, float], half: float) -> TunedFigure:
    return TunedFigure(
        value=gain.after,
        interval=gain.interval_after,
        cost=-gain.value,
        cost_interval=None if gain.interval is None else (-gain.interval[1], -gain.interval[0]),
        cost_by_seed={str(seed): -v for seed, v in gain.by_seed.items()},
        samples_half=gain.samples_half,
        value_by_seed={str(seed): v for seed, v in after.items()},
        value_half=half,
    )


def _worst(scored: Scored) -> TunedFigure:
    bad = -math.inf if scored.higher_is_better else math.inf
    return TunedFigure(value=bad, interval=None, cost=math.inf, cost_interval=None)


def _left_out(record: OvertrainingRecord, most: float) -> tuple[list[float], list[str]]:
    """Rates at which the first text gets beyond a perplexity at any budget, and where that cannot be told."""
    found, notes = set[float](), []
    for task in record.scored:
        lead = record.leading(task, "source")
        unit = lead.unit if lead is not None else "nothing"
        if lead is None or unit not in ("nats/token", "perplexity"):
            notes.append(f"{task}: most_perplexity leaves nothing out, for what should be kept is measured in {unit}.")
            continue
        bound = math.log(most) if unit == "nats/token" else most
        own = [(m.rate, m.figures[lead.key].value) for m in record.models if m.task == task and lead.key in m.figures]
        found |= {rate for rate, value in own if value > bound}
    return sorted(found), notes


class _Judged:
    """Rates, turns and growth of all tasks and ways."""

    def __init__(self, record: OvertrainingRecord, config: OvertrainingConfig, figures: _Figures) -> None:
        self.start, self.config, self.figures = record, config, figures
        self.tokens = {c.label: c.tokens for c in record.checkpoints}
        self.rates: list[TunedRate] = []
        self.by_seed: dict[tuple[str, str], list[list[float]]] = {}
        """By task and arm, the rates that each seed would have chosen: seed, budget."""
        self.turned: dict[tuple[str, str, float | None, str], Turn] = {}
        self.notes = list(record.notes)
        self._models = {(m.task, m.arm, m.rate, m.checkpoint): m for m in record.models if m.state == COMPLETE}

    def record(self) -> OvertrainingRecord:
        """The study with all verdicts."""
        ways = [(task, arm) for task in self.start.tasks for arm in self.start.arms if task in self.figures.scored]
        for task, arm in ways:
            self._choose(task, arm)
        turns, growth, held = [], [], dict[tuple[str, str, float | None, str], Figure]()
        for task, arm in ways:
            for rate in (None, *arm.rates):
                for scored in self.figures.scored[task]:
                    models = self._along(task, arm.label, rate)
                    if len(models) < max(2, len(self.tokens)):
                        continue
                    if len(models) >= LEAST_BUDGETS and (found := self._turn(task, arm.label, rate, scored, models)):
                        turns.append(found)
                    grown, over = self._growth(task, arm.label, rate, scored, models)
                    growth.append(grown)
                    if over is not None:
                        held[task, arm.label, rate, scored.key] = over
        return dataclasses.replace(
            self.start,
            rates=self.rates,
            rate_trends=[t for task, arm in ways if (t := self._rate_trend(task, arm)) is not None],
            turns=turns,
            growth=growth,
            shifts=self._shifts(held),
            distances=[d for task, arm in ways for c in self.tokens if (d := self._distance(task, arm, c)) is not None],
            notes=self.notes,
        )

    def _along(self, task: str, arm: str, rate: float | None) -> list[TunedModel]:
        """A way's model at each budget where it is there, at one rate or at the tuned ones."""
        tuned = {(r.task, r.arm, r.checkpoint): r.rate for r in self.rates}
        wanted = [(task, arm, tuned.get((task, arm, c)) if rate is None else rate, c) for c in self.tokens]
        return [self._models[key] for key in wanted if key in self._models]  # type: ignore[index]

    # -------------------------------------------------------------------------------------------------- the tuned rate

    def _choose(self, task: str, arm: Arm) -> None:
        """At each budget the rate whose validation figure is the best, and what each seed alone would have chosen."""
        lead = next((s for s in self.figures.scored[task] if s.suite == "validation"), None)
        if lead is None:
            return
        alone: list[list[float]] = []
        for checkpoint, tokens in self.tokens.items():
            models = [self._models.get((task, arm.label, rate, checkpoint)) for rate in arm.rates]
            if any(m is None for m in models):
                return
            seeds = self.config.asked.seeds
            held = [self.figures.columns(m, seeds, lead.key) for m in models]
            if len(models) == 1:
                best, interval = 0, (0, 0)
            elif (found := turn_of(held, confidence=self.config.plan(task).confidence)) is not None:
                best, interval = found.place, found.interval
            else:  # every rate diverged, or it is no ratio of sums
                best, interval = self._by_value(models, lead), (0, len(models) - 1)
            if all(m is not None and m.diverged for m in models):
                self.notes.append(f"{task}, {arm.label}: every rate diverged at {checkpoint}; try lower ones.")
                continue
            edge = "" if len(models) == 1 else {0: "smallest", len(models) - 1: "largest"}.get(best, "")
            self.rates.append(
                TunedRate(
                    task=task,
                    arm=arm.label,
                    checkpoint=checkpoint,
                    tokens=tokens,
                    rate=arm.rates[best],
                    interval=(arm.rates[interval[0]], arm.rates[interval[1]]),
                    edge=edge,
                )
            )
            alone.append([arm.rates[self._best_of_seed(models, lead, seed)] for seed in seeds])
        self.by_seed[task, arm.label] = [list(one) for one in zip(*alone, strict=True)]
        if edges := sorted({r.edge for r in self.rates if (r.task, r.arm) == (task, arm.label) and r.edge}):
            self.notes.append(
                f"{task}, {arm.label}: the tuned rate is the {' and the '.join(edges)} that was tried at some budget, "
                f"so a better one may lie beyond it. Try more rates there."
            )

    def _by_value(self, models: Sequence[TunedModel | None], lead: Scored) -> int:
        costs = [m.figures[lead.key].cost if m is not None and lead.key in m.figures else math.inf for m in models]
        return costs.index(min(costs))

    def _best_of_seed(self, models: Sequence[TunedModel | None], lead: Scored, seed: int) -> int:
        costs = [
            m.figures[lead.key].cost_by_seed.get(str(seed), math.inf) if m is not None else math.inf for m in models
        ]
        return costs.index(min(costs))

    def _rate_trend(self, task: str, arm: Arm) -> RateTrend | None:
        own = [r for r in self.rates if (r.task, r.arm) == (task, arm.label)]
        if len(own) < 2 or len(arm.rates) < 2:
            return None
        x = [r.tokens for r in own]
        slope = exponent(x, [r.rate for r in own])
        alone = self.by_seed.get((task, arm.label), [])
        interval = exponent_over_seeds(x, alone)[1] if alone else None
        verdict, why = self._class(task, arm, own, interval)
        return RateTrend(task=task, arm=arm.label, exponent=slope, interval=interval, verdict=verdict, why=why)

    def _class(
        self, task: str, arm: Arm, own: Sequence[TunedRate], interval: tuple[float, float] | None
    ) -> tuple[str, str]:
        """The class of figure 7. Slow and quick are told apart by what they bring: whether what should be kept turns
        nevertheless."""
        if len(own) < LEAST_BUDGETS:
            return CANNOT_TELL, f"{len(own)} budgets"
        if any(r.edge for r in own):
            return CANNOT_TELL, "a tuned rate is at an end of what was tried"
        if interval is None:
            return CANNOT_TELL, "one seed"
        if interval[0] * interval[1] > 0 and max(r.interval[0] for r in own) <= min(r.interval[1] for r in own):
            # seeds that all choose one place of a coarse grid have an interval of no width
            return CANNOT_TELL, "one rate lies in the interval of every budget"
        if interval[0] > 0:
            return RISES, ""
        if interval[1] < 0:
            lead = next((s for s in self.figures.scored[task] if s.suite == "source"), None)
            kept = self.turned.get((task, arm.label, None, lead.key)) if lead is not None else None
            found = {TURNS: SLOW, NEVER_TURNS: QUICK}.get(kept.verdict if kept is not None else NO_TURN, FALLS)
            return found, ""
        step = min(b / a for a, b in zip(arm.rates, arm.rates[1:], strict=False))
        span = own[-1].tokens / own[0].tokens
        if max(map(abs, interval)) * math.log(span) < math.log(step):
            return CONSTANT, ""
        return CANNOT_TELL, "seeds disagree"

    # --------------------------------------------------------------------------------------------------- along budgets

    def _turn(
        self, task: str, arm: str, rate: float | None, scored: Scored, models: Sequence[TunedModel]
    ) -> TunedTurn | None:
        held = [self.figures.columns(m, self.config.asked.seeds, scored.key) for m in models]
        found = turn_of(held, confidence=self.config.plan(task).confidence)
        if found is None:
            return None
        self.turned[task, arm, rate, scored.key] = found
        tokens = list(self.tokens.values())
        return TunedTurn(
            task=task,
            arm=arm,
            rate=rate,
            entry=scored.key,
            unit=scored.unit,
            tokens=tokens[found.place],
            interval=(tokens[found.interval[0]], tokens[found.interval[1]]),
            after=found.losses[-1] - found.losses[found.place],
            verdict=found.verdict,
            budgets=tokens,
            chances=list(found.chances),
        )

    def _growth(
        self, task: str, arm: str, rate: float | None, scored: Scored, models: Sequence[TunedModel]
    ) -> tuple[Growth, Figure | None]:
        """From the smallest to the largest budget; None where an end has diverged."""
        first, last = (models[place].figures[scored.key] for place in (0, -1))
        about: dict[str, Any] = {"task": task, "arm": arm, "rate": rate, "entry": scored.key, "unit": scored.unit}
        ends: dict[str, Any] = {"first": first.cost, "last": last.cost}
        if not first.cost_by_seed or not last.cost_by_seed:
            difference = math.inf if first.cost_by_seed else -math.inf if last.cost_by_seed else math.nan
            verdict = "grows" if difference > 0 else "shrinks" if difference < 0 else CANNOT_TELL
            return Growth(**about, **ends, difference=difference, interval=None, verdict=verdict), None
        one, other = (tuning_cost(self.start, model, scored.key) for model in (models[-1], models[0]))
        assert one is not None and other is not None
        over = one - other
        interval = over.interval_at(self.config.plan(task).confidence)
        clear = interval is not None and not interval[0] <= 0 <= interval[1]
        verdict = CANNOT_TELL if not clear else "grows" if over.value > 0 else "shrinks"
        return Growth(**about, **ends, difference=over.value, interval=interval, verdict=verdict), over

    def _shifts(self, held: Mapping[tuple[str, str, float | None, str], Figure]) -> list[Shift]:
        found = []
        for (task, arm, rate, key), over in held.items():
            other = held.get((task, self.start.direct, rate, key))
            if arm == self.start.direct or other is None:
                continue
            mine, theirs = (self.turned.get((task, a, rate, key)) for a in (arm, self.start.direct))
            verdict, confidence = CANNOT_TELL, self.config.plan(task).confidence
            if mine is not None and theirs is not None:
                one, its = (places_at(t.chances, 1 - (1 - confidence) / 2) for t in (mine, theirs))
                verdict = LATER if one[0] > its[1] else EARLIER if one[1] < its[0] else CANNOT_TELL
            more = over - other
            scored = next(s for s in self.figures.scored[task] if s.key == key)
            found.append(
                Shift(
                    task=task,
                    arm=arm,
                    against=self.start.direct,
                    rate=rate,
                    entry=key,
                    unit=scored.unit,
                    verdict=verdict,
                    growth=more.value,
                    interval=more.interval_at(confidence),
                    by_seed={str(seed): v for seed, v in more.by_seed.items()},
                    samples_half=more.samples_half,
                )
            )
        return found

    def _distance(self, task: str, arm: Arm, checkpoint: str) -> DistanceTrend | None:
        models = [self._models.get((task, arm.label, rate, checkpoint)) for rate in arm.rates]
        known = [(m.rate, m.distance) for m in models if m is not None and m.distance and not m.diverged]
        if len(known) < LEAST_BUDGETS:
            return None
        slope = exponent([rate for rate, _ in known], [away for _, away in known])
        ends = known[0][0], known[-1][0]
        return DistanceTrend(task=task, arm=arm.label, checkpoint=checkpoint, exponent=slope, rates=ends)
