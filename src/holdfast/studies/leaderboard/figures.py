"""The leaderboard's record, from the records of the tracks' trade-off studies and nothing else.

Of every way on a track: what it avoids of direct fine-tuning's source loss where it has learnt 50, 80 and 95 % of its
target gain (`statistics.equal_target`, Fieller's intervals over seeds and samples), each at its own rate and strength;
the hypervolume of its curves; what a step costs. Nothing can be told on a track where direct fine-tuning does not
clearly learn and forget, forgets immoderately, or the start knows no more than chance.

*Ranks and pairs* go by one level, `HEADLINE`. On every track each way is held against direct fine-tuning at its own
rates, and against the best way of the track: two-sided t-tests of differences at equal target, seeds paired. Pairs with
direct fine-tuning are one family over all tracks, pairs of any two ways another, since any of them could have been the
best; each is adjusted (Holm 1979) at half of the level. The best of many is the best on these seeds: beside it stands
what the way that all but one seed choose, at the settings that they choose, avoids on the one left out.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from holdfast.records.leaderboard import (
    Against,
    AtLevel,
    Curve,
    CurvePoint,
    Estimate,
    LeaderboardRecord,
    Row,
    Standing,
    Track,
)
from holdfast.records.study import Objective, StudyRecord, TrialRecord
from holdfast.reports.methods import kind_title
from holdfast.retention.method import RetentionMethod
from holdfast.retention.registry import declared, parse_retention
from holdfast.statistics.equal_target import Tuned, area, source_at
from holdfast.statistics.family_wise import adjust
from holdfast.statistics.gains import Gain, OverSeeds, incomplete
from holdfast.statistics.rules import ROUNDING
from holdfast.statistics.shares import UNTOLD, Share, avoided_share
from holdfast.studies.engine.space import DIRECT_TITLE
from holdfast.studies.leaderboard.settings import LEAST_SEEDS
from holdfast.studies.tradeoff.curves import (
    curves_of,
    difference_share,
    from_direct,
    gain,
    lines,
    method_of,
    point_of,
    with_only,
)
from holdfast.studies.tradeoff.growing import LEVELS, open_for_equal_target
from holdfast.studies.tradeoff.preconditions import above_chance, converged, moderate
from holdfast.support.own_code import is_ours

HEADLINE = 0.8
"""The level that ranks and pairs go by; one of `LEVELS`."""
FALSE_ALARMS = 0.05
"""The chance of any false difference among all pairs."""
NATS = "nats_per_token"
"""The metric of texts: mean loss over all tokens, as in PEFT's comparison of methods."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Way:
    """One way on a track, with what pairs are made of."""

    row: Row
    tuned: Tuned | None
    """At the headline's level; None where it is not reached, or nothing can be told."""

    @property
    def at_headline(self) -> OverSeeds | None:
        """Gain on the source there."""
        return None if self.tuned is None else self.tuned.figure


def leaderboard_record(
    studies: Mapping[str, tuple[str, StudyRecord | None]], *, name: str, created: str, **about: Any
) -> LeaderboardRecord:
    """The leaderboard of what there is.

    Args:
        studies: by track, in order: the study's folder, and its record where it has begun.
        name: of the leaderboard.
        created: now.
        about: other fields of the record.
    """
    tracks, ways = [], {}
    for track, (folder, study) in studies.items():
        found, ways[track] = track_figures(track, folder, study)
        tracks.append(found)
    held = {t.name: studies[t.name][1] for t in tracks if t.ranked}
    against = _adjusted([pair for t in tracks if t.ranked for pair in _pairs(t, held[t.name], ways[t.name])], tracks)
    return LeaderboardRecord(
        name=name,
        created=created,
        levels=list(LEVELS),
        headline=HEADLINE,
        tracks=tracks,
        against=against,
        standing=_standing(tracks, against),
        level=FALSE_ALARMS,
        **about,
    )


# --------------------------------------------------------------------------------------------------------------- tracks


def track_figures(name: str, folder: str, study: StudyRecord | None) -> tuple[Track, list[_Way]]:
    """A track as far as it is, and its ways."""
    if study is None:
        return Track(name=name, folder=folder, status="not begun", reason="it was not begun"), []
    direct = study.direct
    whole = direct is not None and incomplete(direct, study) is None
    reason = _nothing_to_tell(study) if whole else "direct fine-tuning is not finished"
    held = by_way(study)
    ways = [_way(way, trials, study, judged=whole and reason is None) for way, trials in held.items()]
    track = Track(
        name=name,
        folder=folder,
        status=study.status,
        seeds=list(study.seeds),
        runs=sum(len(t.runs) for trials in held.values() for t in trials),
        target=study.target.label,
        source=study.source.label,
        target_unit=study.target.unit,
        source_unit=study.source.unit,
        direct=direct.label if direct is not None else "",
        gained=_of_gain(gain(direct, study, "target")) if whole else None,
        lost=_of_gain(gain(direct, study, "source")) if whole else None,
        reason=reason,
        ranked=reason is None and len(study.seeds) >= LEAST_SEEDS,
        notes=[*study.notes, *(_track_notes(study) if whole else [])],
    )
    if reason is not None or not whole:
        return dataclasses.replace(track, rows=[w.row for w in ways]), ways
    ranks = _ranks([w.at_headline.value if w.at_headline is not None else None for w in ways])
    if track.ranked:
        ways = [
            dataclasses.replace(w, row=dataclasses.replace(w.row, rank=r)) for w, r in zip(ways, ranks, strict=True)
        ]
    order = sorted(range(len(ways)), key=lambda i: (ranks[i], i))
    ways = [ways[i] for i in order]
    unseen = _best_unseen(ways, study)
    best = next((w.row.way for w in ways if w.at_headline is not None), None)
    return dataclasses.replace(track, rows=[w.row for w in ways], best=best, best_unseen=unseen), ways


def by_way(study: StudyRecord) -> dict[str, list[TrialRecord]]:
    """A study's trials by way, direct fine-tuning first; what another trial has taken over is left out."""
    found: dict[str, list[TrialRecord]] = {DIRECT_TITLE: []}
    for trial in study.trials:
        if trial.state != "lost" and trial.continued_by is None:
            way = DIRECT_TITLE if trial.kind == "direct" else trial.way or kind_title(trial)
            found.setdefault(way, []).append(trial)
    return found


def _nothing_to_tell(study: StudyRecord) -> str | None:
    """Why no share of what direct fine-tuning did means anything; None where it does."""
    target, source = (gain(study.direct, study, side) for side in ("target", "source"))
    if target.value <= 0 or target.interval is None or target.interval[0] <= 0:
        return "direct fine-tuning does not clearly learn the target"
    if min(target.by_seed.values()) <= 0:
        return "direct fine-tuning does not learn the target with every seed"
    if source.value >= 0:
        return "direct fine-tuning loses nothing of the source"
    if source.interval is None or source.interval[1] >= 0:
        return f"direct fine-tuning's loss of the source {UNTOLD}"
    missed = [p for look in (moderate, above_chance) for p in look(study) if not p.met]
    worst = max(missed, key=lambda p: math.inf if p.by is None else p.by, default=None)
    return None if worst is None else worst.sentence


def _track_notes(study: StudyRecord) -> list[str]:
    found = [f"{p.sentence}." for p in converged(study) if not p.met]
    rates = sorted({rate for t in study.trials if t.kind == "direct" and (rate := _rate(t)) is not None})
    if study.direct is not None and len(rates) > 1 and _rate(study.direct) == rates[-1]:
        found.append(
            f"Direct fine-tuning learns most at {rates[-1]:g}, the largest learning rate tried; a larger one may learn "
            f"more."
        )
    if len(study.seeds) < LEAST_SEEDS:
        count = len(study.seeds)
        seeds = f"{count} seed{'s' if count > 1 else ''}, fewer than {LEAST_SEEDS}"
        found.append(f"{seeds}: it stands for itself, and counts for no rank.")
    return found


# ----------------------------------------------------------------------------------------------------------------- ways


def _old_data(cls: type[RetentionMethod]) -> str:
    """What a method declares of the old data it needs; one from outside that declares nothing may need some."""
    declares = any("old_data" in vars(base) for base in cls.__mro__ if base is not RetentionMethod)
    return cls.old_data if is_ours(cls) or declares else "not declared"


def _read_beside(trials: Sequence[TrialRecord]) -> Iterator[str]:
    """Old data that settings read although their method by itself needs none."""
    for settings in (trial.settings for trial in trials):
        if settings.get("lora_init_data"):
            yield "once, to begin the adapter"
        named = settings.get("retention") or []
        for entry in [named] if isinstance(named, (str, Mapping)) else named:
            for name, given in entry.items() if isinstance(entry, Mapping) else ():
                cls = declared(name)
                if isinstance(given, Mapping) and given.get("data") and not (cls and cls.old_data):
                    yield "held out, to measure by"
                if isinstance(given, Mapping) and given.get("prompts") not in (None, "start", "target"):
                    yield "prompts, without answers"


def _keeps(trials: Sequence[TrialRecord]) -> Iterator[str]:
    """What its runs keep in memory that direct fine-tuning does not, as `holdfast cost` counts it."""
    for settings in (trial.settings for trial in trials):
        adapter = bool(settings.get("use_peft"))
        methods, mistakes = parse_retention(settings.get("retention"))
        if mistakes:  # files of it are elsewhere
            yield "not known here"
        for method in (m for m in methods if not m.off):
            for copy in method.copies():
                yield copy.what if copy.place == "device" else f"{copy.what} ({copy.place})"
            term = method.token_loss()
            if term is not None and not (adapter and term.teacher.kind in ("auto", "adapter_off")):
                yield "cached teacher (disk)" if term.teacher.kind == "cached" else "teacher"


def _way(way: str, trials: Sequence[TrialRecord], study: StudyRecord, *, judged: bool) -> _Way:
    whole = [t for t in trials if incomplete(t, study) is None]
    classes = [cls for n in dict.fromkeys(n for t in trials for n in t.kind.split("+")) if (cls := declared(n))]
    row = Row(
        way=way,
        old_data="; ".join(dict.fromkeys([*filter(None, map(_old_data, classes)), *_read_beside(trials)])),
        keeps=", ".join(dict.fromkeys(_keeps(trials))),
        trials=len(trials),
        complete=len(whole),
        levels=[],
        hypervolume=Estimate(value=None, reason="nothing can be told on this track"),
        seconds_a_step=_seconds_a_step(whole, study),
        notes=list(_row_notes(trials, study)),
    )
    if not whole:
        return _Way(row=row, tuned=None)
    alone = with_only(trials, study)
    curves = [curve for m in dict.fromkeys(map(method_of, whole)) for curve in curves_of(alone, m)]
    row = dataclasses.replace(row, curves=[_curve(curve, study) for curve in curves])
    if not judged:
        return _Way(row=row, tuned=None)
    direct = gain(study.direct, study, "target"), gain(study.direct, study, "source")
    places = {level: _tuned(curves, alone, direct[0].times(level)) for level in LEVELS}
    grids = [line for m in dict.fromkeys(map(method_of, whole)) for line in lines(alone, m)]
    open_ends = [
        f"{_setting([t for _, t in from_direct(line, study)])}: the grid ends too early at its {end} end ({why})"
        for line in grids
        for end, why in open_for_equal_target(line, study).items()
    ]
    row = dataclasses.replace(
        row,
        levels=[_at_level(level, tuned, curves, alone, direct) for level, tuned in places.items()],
        hypervolume=_of_seeds(area([[point_of(t, study) for t in c] for c in curves], direct[0], -direct[1].value)),
        notes=[
            *row.notes,
            *(f"{text}." for text in open_ends),
            *_rate_at_an_end(curves, places[HEADLINE], alone, direct[0].value * HEADLINE),
        ],
    )
    return _Way(row=row, tuned=places[HEADLINE])


def _rate_at_an_end(
    curves: Sequence[Sequence[TrialRecord]], tuned: Tuned | None, study: StudyRecord, wanted: float
) -> Iterator[str]:
    """Grids of strengths grow, those of learning rates do not: a note where the best one has none beyond it."""
    rates = sorted({rate for curve in curves for trial in curve if (rate := _rate(trial)) is not None})
    place = None if tuned is None else _between(curves[tuned.curve], study, wanted)
    chosen = {_rate(trial) for trial in place or ()}
    if len(rates) > 1 and len(chosen) == 1 and (rate := chosen.pop()) in (rates[0], rates[-1]):
        end = "smallest" if rate == rates[0] else "largest"
        yield (
            f"Its best learning rate at {100 * HEADLINE:.0f} % of the gain, {rate:g}, is the {end} that was tried; a "
            f"better one may lie beyond."
        )


def _rate(trial: TrialRecord) -> float | None:
    rate = trial.settings.get("learning_rate")
    return None if rate is None else float(rate)


def _tuned(
    curves: Sequence[Sequence[TrialRecord]],
    study: StudyRecord,
    wanted: OverSeeds,
    of: Callable[[TrialRecord], OverSeeds] | None = None,
) -> Tuned | None:
    return source_at([[point_of(t, study, of) for t in curve] for curve in curves], wanted)


def _at_level(
    level: float,
    tuned: Tuned | None,
    curves: Sequence[Sequence[TrialRecord]],
    study: StudyRecord,
    direct: tuple[Gain, Gain],
) -> AtLevel:
    if tuned is None:
        why = f"does not reach {100 * level:.0f} % of direct fine-tuning's gain in every seed"
        return AtLevel(level=level, avoided=Estimate(value=None, reason=why))
    wanted = direct[0].times(level)
    texts = _texts(study)
    rise = None
    if texts is not None:
        found = _tuned(curves, study, wanted, of=lambda trial: gain(trial, study, texts).times(-1.0))
        rise = None if found is None else _of_seeds(found.figure)
    return AtLevel(
        level=level,
        avoided=_of_share(avoided_share(tuned.figure, direct[1])),
        setting=_place(curves[tuned.curve], study, wanted.value),
        text_loss=rise,
    )


def _texts(study: StudyRecord) -> Objective | None:
    """The source's texts, in nats a token; None without any."""
    entries = [e for e in study.source.entries if e[2] == NATS]
    if not entries:
        return None
    label = ", ".join(name for _, name, _ in entries)
    return Objective(side="source", entries=entries, label=label, unit="nats/token", higher_is_better=False)


def _curve(trials: Sequence[TrialRecord], study: StudyRecord) -> Curve:
    points = [
        CurvePoint(
            label=t.label,
            target=_of_gain(gain(t, study, "target")),
            source=_of_gain(gain(t, study, "source")),
        )
        for t in trials
    ]
    return Curve(setting=_setting(trials), points=points)


def _params(trial: TrialRecord) -> dict[str, Any]:
    """What was varied, by its last word; the rate whether it was varied or not."""
    rate = trial.settings.get("learning_rate")
    own = {k.rpartition(".")[2].replace("_", " "): v for k, v in trial.params.items() if k != "method"}
    return {**({} if rate is None else {"learning rate": rate}), **own}


def _shown(name: str, value: Any) -> str:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f"{name} {value:g}" if number else f"{name} {value}"


def _setting(trials: Sequence[TrialRecord]) -> str:
    """What trials have in common: "learning rate 0.0002, temperature 2"; of one alone all of it."""
    tuned = [t for t in trials if t.kind != "direct"] or list(trials)
    first, *rest = map(_params, tuned)
    return ", ".join(_shown(k, v) for k, v in first.items() if all(other.get(k) == v for other in rest))


def _between(curve: Sequence[TrialRecord], study: StudyRecord, wanted: float) -> tuple[TrialRecord, TrialRecord] | None:
    """The trials between which a curve's mean over the seeds has learnt so much and kept most; the same one twice where
    it is that."""
    points = [(gain(t, study, "target").value, gain(t, study, "source").value, t) for t in curve]
    found = [(source, (trial, trial)) for target, source, trial in points if target >= wanted - ROUNDING]
    for (t_a, s_a, a), (t_b, s_b, b) in itertools.pairwise(points):
        if (t_a - wanted) * (t_b - wanted) < -ROUNDING:
            share = (t_a - wanted) / (t_a - t_b)
            found.append(((1 - share) * s_a + share * s_b, (a, b)))
    return max(found, key=lambda place: place[0])[1] if found else None


def _place(curve: Sequence[TrialRecord], study: StudyRecord, wanted: float) -> str:
    """The settings of a curve, and those of the place that `_between` finds."""
    common = _setting(curve)
    place = _between(curve, study, wanted)
    if place is None:
        return common
    a, b = place
    between = [
        _shown(k, v) + (f" to {_params(b).get(k, 0):g}" if b is not a and isinstance(v, (int, float)) else "")
        for k, v in _params(a).items()
        if len({repr(_params(t).get(k)) for t in curve}) > 1
    ]
    return ", ".join(dict.fromkeys([*filter(None, [common]), *between]))


def _seconds_a_step(trials: Sequence[TrialRecord], study: StudyRecord) -> float | None:
    def median(of: Sequence[TrialRecord]) -> float:
        found = [r.training_seconds / r.steps for t in of for r in t.runs if r.steps and r.training_seconds > 0]
        return statistics.median(found) if found else math.nan

    direct = median([t for t in study.trials if t.kind == "direct"])
    ours = median(trials)
    return ours / direct if math.isfinite(ours) and direct > 0 else None


def _row_notes(trials: Sequence[TrialRecord], study: StudyRecord) -> Iterator[str]:
    for trial in trials:
        if (why := incomplete(trial, study)) is not None and trial.state not in ("waiting", "running"):
            yield f"{trial.label}: {why}."
    left = sum(t.state in ("waiting", "running") for t in trials)
    if left:
        yield f"{left} of {len(trials)} trials are still to come."


def _of_gain(found: Gain) -> Estimate:
    return Estimate(value=found.value, interval=found.interval)


def _of_share(share: Share) -> Estimate:
    return Estimate(value=share.value, interval=share.interval, reason=share.reason)


def _of_seeds(found: OverSeeds) -> Estimate:
    return Estimate(value=found.value, interval=found.interval_at(0.95))


# -------------------------------------------------------------------------------------------------------- ranks, pairs


def _ranks(values: Sequence[float | None]) -> list[float]:
    """1 for the highest; equal ones, and those without a value behind all others, share the mean of their ranks."""
    keys = [-math.inf if v is None else v for v in values]
    return [1 + sum(k > key for k in keys) + (sum(k == key for k in keys) - 1) / 2 for key in keys]


def _best_unseen(ways: Sequence[_Way], study: StudyRecord) -> float | None:
    """What the best of all but one seed avoids on the seed left out, mean over the seeds; None without a choice. The
    seed left out has chosen neither the way nor its settings."""
    able = [w.tuned for w in ways if w.tuned is not None]
    if len(able) < 2 or len(study.seeds) < 2:
        return None
    lost = gain(study.direct, study, "source").value
    best = {seed: max(able, key=lambda tuned: tuned.others_mean[seed]) for seed in study.seeds}
    return statistics.fmean(1 - tuned.figure.by_seed[seed] / lost for seed, tuned in best.items())


def _pairs(track: Track, study: StudyRecord | None, ways: Sequence[_Way]) -> Iterator[Against]:
    """Every way against direct fine-tuning, and every pair of ways, of which those with the best are shown."""
    assert study is not None, "a ranked track has a record"
    able = {w.row.way: w.at_headline for w in ways if w.at_headline is not None}
    direct = [(way, DIRECT_TITLE) for way in able if way != DIRECT_TITLE and DIRECT_TITLE in able]
    others = [(b, a) if a == track.best else (a, b) for a, b in itertools.combinations(able, 2)]
    for role, pairs in (("direct", direct), ("best", others)):
        for way, rival in pairs:
            ours, theirs = able[way], able[rival]
            p = ours.minus(theirs).p_value
            yield Against(
                track=track.name,
                way=way,
                rival=rival,
                role=role,
                difference=_of_share(difference_share(ours, theirs, study, 0.95)),
                p_value=p,
                p_adjusted=math.nan,
            )


def _adjusted(pairs: Sequence[Against], tracks: Sequence[Track]) -> list[Against]:
    """The pairs that are shown, with p-values for all of their role at once, doubled, since there are two roles."""
    best = {t.name: t.best for t in tracks}
    shown = []
    for role in ("direct", "best"):
        known = [pair for pair in pairs if pair.role == role and not math.isnan(pair.p_value)]
        found = adjust([pair.p_value for pair in known], "holm")
        p_of = {(p.track, p.way, p.rival): min(1.0, 2 * value) for p, value in zip(known, found, strict=True)}
        shown += [
            dataclasses.replace(pair, p_adjusted=p_of.get((pair.track, pair.way, pair.rival), math.nan))
            for pair in pairs
            # where direct fine-tuning is the best, the first role has its pairs
            if pair.role == role and (role == "direct" or DIRECT_TITLE != pair.rival == best[pair.track])
        ]
    return shown


def _standing(tracks: Sequence[Track], against: Sequence[Against]) -> list[Standing]:
    rows = [(t, r) for t in tracks if t.ranked for r in t.rows]
    found = []
    for way in dict.fromkeys(r.way for t in tracks for r in t.rows):
        mine = [(t, r) for t, r in rows if r.way == way]
        ranks = [r.rank for _, r in mine if r.rank is not None]
        shown = [a for a in against if a.way == way and a.role == "direct" and a.p_adjusted < FALSE_ALARMS]
        told = {a.track for a in against if a.role == "best" and a.way == way and a.p_adjusted < FALSE_ALARMS}
        told |= {a.track for a in shown if _sign(a) < 0 and _best(tracks, a.track) == DIRECT_TITLE}
        reached = {t.name for t, r in mine if _reaches(r)}
        found.append(
            Standing(
                way=way,
                old_data=next(r.old_data for t in tracks for r in t.rows if r.way == way),
                mean_rank=statistics.fmean(ranks) if ranks else None,
                tracks=len(ranks),
                better=[a.track for a in shown if _sign(a) > 0],
                worse=[a.track for a in shown if _sign(a) < 0],
                as_good=[t.name for t, _ in mine if t.name in reached - told],
            )
        )
    return sorted(found, key=lambda s: (s.mean_rank is None, s.mean_rank or 0.0, s.way))


def _best(tracks: Sequence[Track], name: str) -> str | None:
    return next(t.best for t in tracks if t.name == name)


def _sign(pair: Against) -> float:
    return pair.difference.value or 0.0


def _reaches(row: Row) -> bool:
    return any(at.level == HEADLINE and at.avoided.value is not None for at in row.levels)
