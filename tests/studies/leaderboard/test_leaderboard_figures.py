"""The leaderboard's figures against ones computed by hand, on made-up studies."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from claim_studies import annealing, comparison, l2, study
from claim_studies import trial as made_up
from holdfast.records.leaderboard import LeaderboardRecord, Track
from holdfast.records.study import StudyRecord, TrialRecord
from holdfast.retention.method import RetentionMethod
from holdfast.statistics.family_wise import adjust
from holdfast.studies.leaderboard.figures import leaderboard_record, track_figures
from holdfast.studies.tradeoff.preconditions import moderate

ALIKE = {"noise": 0.0, "half": 0.001}


def trial(number, retention, target, source, **changes):
    """A trial whose strength was varied."""
    params = {f"{name}.{k}": v for method in retention for name, about in method.items() for k, v in about.items()}
    return made_up(number, retention, target, source, params=params, **changes)


def at_rate(found, rate: float, **changes):
    """A trial at a learning rate."""
    return dataclasses.replace(found, settings={**found.settings, "learning_rate": rate}, **changes)


def made(**changes) -> StudyRecord:
    """Direct fine-tuning gains 1 and loses 1; L2 bends the curve, label annealing does by more."""
    return study(
        [
            trial(0, [], 1.0, -1.0, **ALIKE),
            trial(1, l2(0.01), 0.9, -0.5, **ALIKE),
            trial(2, l2(1.0), 0.3, -0.1, **ALIKE),
            trial(3, annealing(0.1), 0.98, -0.6, **ALIKE),
            trial(4, annealing(3.0), 0.8, -0.1, **ALIKE),
            trial(5, annealing(30.0), 0.4, 0.0, **ALIKE),
        ],
        **changes,
    )


def board(**studies: StudyRecord | None) -> LeaderboardRecord:
    return leaderboard_record({name: (name, s) for name, s in studies.items()}, name="made-up", created="today")


def row(track: Track, way: str):
    return next(r for r in track.rows if r.way == way)


def avoided(track: Track, way: str) -> list[float | None]:
    return [at.avoided.value for at in row(track, way).levels]


def test_what_each_way_avoids_at_equal_target():
    """L2 at 0.8: a sixth of the way from (0.9, -0.5) to (0.3, -0.1); at 0.95 half of the way from direct."""
    track, _ = track_figures("one", "one", made())
    assert track.reason is None and track.ranked
    assert avoided(track, "L2") == pytest.approx([0.5 + 0.4 * 2 / 3, 0.5 + 0.4 / 6, 0.25])
    assert avoided(track, "label annealing") == pytest.approx([0.975, 0.9, 1 - (0.6 - 0.5 * 0.03 / 0.18)])
    assert avoided(track, "direct fine-tuning") == pytest.approx([0.0, 0.0, 0.0])
    assert row(track, "L2").levels[1].setting == "coefficient 0.01 to 1"
    assert row(track, "label annealing").levels[1].setting == "weight 3"
    assert [r.way for r in track.rows] == ["label annealing", "L2", "direct fine-tuning"]
    assert [r.rank for r in track.rows] == [1, 2, 3]
    assert track.best == "label annealing" and track.best_unseen == pytest.approx(0.9)


def test_the_hypervolume_is_the_area_below_the_curve():
    track, _ = track_figures("one", "one", made())
    pieces = 0.3 * 0.9 + 0.6 * (0.9 + 0.5) / 2 + 0.1 * 0.5 / 2
    assert row(track, "L2").hypervolume.value == pytest.approx(pieces)
    assert row(track, "direct fine-tuning").hypervolume.value == pytest.approx(0.0)


def test_the_interval_is_over_seeds_and_pairs_are_by_seed():
    """Every trial is off by the same in a seed, so that shares hardly move, while each gain does."""
    noisy = study([trial(0, [], 1.0, -1.0), trial(1, l2(0.01), 0.9, -0.5), trial(2, l2(1.0), 0.3, -0.1)])
    track, _ = track_figures("one", "one", noisy)
    low, high = row(track, "L2").levels[1].avoided.interval
    assert low < 0.5 + 0.4 / 6 < high and high - low < 0.1


def test_what_is_not_reached_has_no_figure_and_the_last_rank():
    far = made()
    other = at_rate(trial(6, [{"multitask": {"data": "x"}}], 0.6, -0.05, **ALIKE), 1e-6)
    far = dataclasses.replace(far, trials=[*far.trials, other])
    track, _ = track_figures("one", "one", far)
    mixed = row(track, "multitask mixing")
    assert avoided(track, "multitask mixing") == [pytest.approx(0.95), None, None]
    assert mixed.levels[1].avoided.reason == "does not reach 80 % of direct fine-tuning's gain in every seed"
    assert mixed.rank == 4 and track.rows[-1].way == "multitask mixing" and mixed.old_data == "yes, all of it"
    assert mixed.hypervolume.value == pytest.approx(0.6 * 0.95)


@pytest.mark.parametrize(
    ("target", "source", "why"),
    [
        (1.0, 0.1, "loses nothing"),
        (1.0, -0.0001, "cannot be told from zero"),
        (-0.1, -1.0, "does not clearly learn"),
        (1.0, -2.0, "forgets moderately"),
    ],
)
def test_nothing_is_told_where_there_is_nothing_to_tell(target, source, why):
    found = made()
    changed = dataclasses.replace(found, trials=[trial(0, [], target, source, **ALIKE), *found.trials[1:]])
    record = board(one=changed)
    assert why in record.tracks[0].reason
    assert not record.tracks[0].ranked and record.against == []
    assert all(not r.levels and r.hypervolume.value is None and r.rank is None for r in record.tracks[0].rows)
    assert record.tracks[0].rows[1].curves, "what was measured can still be drawn"
    assert all(s.mean_rank is None for s in record.standing)


def in_unit(found: StudyRecord, unit: str, change=lambda nats: nats) -> StudyRecord:
    """A study whose text is in another unit, beside others, so that the source is in none."""

    def of(trial):
        return dataclasses.replace(trial, runs=[run(r) for r in trial.runs])

    def run(r):
        levels = {key: {name: change(v) for name, v in of.items()} for key, of in r.references.items()}
        return dataclasses.replace(r, comparisons=[r.comparisons[0], moved(r.comparisons[1])], references=levels)

    def moved(c):
        before, after = change(c.before), change(c.after)
        return dataclasses.replace(c, unit=unit, before=before, after=after, difference=after - before)

    source = dataclasses.replace(found.source, unit="share")
    return dataclasses.replace(found, trials=[of(t) for t in found.trials], source=source)


@pytest.mark.parametrize(("unit", "change"), [("nats/token", lambda nats: nats), ("perplexity", math.exp)])
@pytest.mark.parametrize(("lost", "told"), [(2.0, True), (1.0, False)])
def test_a_text_that_is_destroyed_is_no_source_whatever_stands_beside_it(unit, change, lost, told):
    """The guard goes by each entry's own unit. A perplexity is judged by its logarithm: of a start at 148, what doubles
    it is the same share of the way to the unigrams as 0.7 nats are."""
    found = made()
    changed = dataclasses.replace(found, trials=[trial(0, [], 1.0, -lost, **ALIKE), *found.trials[1:]])
    (precondition,) = moderate(in_unit(changed, unit, change))
    (in_nats,) = moderate(changed)
    assert precondition.met != told and precondition.value == pytest.approx(in_nats.value)


def test_the_rate_is_tuned_for_each_method_and_chosen_by_the_other_seeds():
    """At the lower rate L2 keeps more in the mean, for one seed's sake: where that seed is left out, the other rate is
    taken, so its luck counts nowhere."""

    def lucky(found, sources):
        runs = [
            dataclasses.replace(r, comparisons=[r.comparisons[0], comparison("source", s, 0.001)])
            for r, s in zip(found.runs, sources, strict=True)
        ]
        return dataclasses.replace(found, runs=runs)

    trials = [
        at_rate(trial(0, [], 1.0, -1.0, **ALIKE), 4e-4),
        at_rate(trial(1, [], 0.9, -0.8, **ALIKE), 1e-4),
        at_rate(trial(2, l2(0.01), 0.8, -0.5, **ALIKE), 4e-4),
        at_rate(trial(3, l2(1.0), 0.2, -0.4, **ALIKE), 4e-4),
        lucky(at_rate(trial(4, l2(0.01), 0.8, -0.3, **ALIKE), 1e-4), (-0.1, -0.6, -0.6)),
        at_rate(trial(5, l2(1.0), 0.2, -0.4, **ALIKE), 1e-4),
    ]
    track, _ = track_figures("one", "one", study(trials))
    assert avoided(track, "L2")[1] == pytest.approx(1 - (0.5 + 0.6 + 0.6) / 3)
    assert row(track, "L2").levels[1].setting == "learning rate 0.0001, coefficient 0.01"
    assert [c.setting for c in row(track, "L2").curves] == ["learning rate 0.0004", "learning rate 0.0001"]
    assert avoided(track, "direct fine-tuning") == pytest.approx([0.2, 0.2, 0.1]), "a low rate is a baseline"


def test_a_rate_beyond_the_best_one_takes_nothing_from_the_lower_ones():
    """Direct fine-tuning's curve goes along its rates: the largest, which learns less and loses more, lies beside the
    best one and not between the two lower ones."""
    trials = [at_rate(trial(n, [], t, s, **ALIKE), r) for n, (r, t, s) in enumerate(RATES)]
    more = at_rate(trial(2, [], 0.7, -2.0, **ALIKE), 1e-4)
    without, beyond = (track_figures("one", "one", study(found))[0] for found in (trials, [*trials, more]))
    assert avoided(beyond, "direct fine-tuning") == avoided(without, "direct fine-tuning")
    assert any("learns most at 3e-05, the largest learning rate tried" in note for note in without.notes)
    assert not any("largest learning rate tried" in note for note in beyond.notes)


RATES = [(3e-5, 1.0, -0.8), (1e-5, 0.4, -0.05)]


def test_a_step_costs_what_it_costs_beside_direct():
    def timed(found, seconds, steps):
        runs = [dataclasses.replace(r, training_seconds=seconds, steps=steps) for r in found.runs]
        return dataclasses.replace(found, runs=runs)

    first, *rest = made().trials
    track, _ = track_figures("one", "one", study([timed(first, 10.0, 100), *(timed(t, 30.0, 200) for t in rest)]))
    assert row(track, "L2").seconds_a_step == pytest.approx(1.5)
    assert row(track_figures("one", "one", made())[0], "L2").seconds_a_step is None


def test_the_rise_of_loss_on_text_stands_beside():
    track, _ = track_figures("one", "one", made())
    assert row(track, "L2").levels[1].text_loss.value == pytest.approx(0.5 - 0.4 / 6)


def test_pairs_are_adjusted_together_and_ranks_are_means():
    record = board(one=made(), two=made())
    assert {(a.track, a.way, a.rival, a.role) for a in record.against} == {
        (track, *pair)
        for track in ("one", "two")
        for pair in (
            ("label annealing", "direct fine-tuning", "direct"),
            ("L2", "direct fine-tuning", "direct"),
            ("L2", "label annealing", "best"),
            ("direct fine-tuning", "label annealing", "best"),
        )
    }
    pair = next(a for a in record.against if (a.way, a.role) == ("L2", "best"))
    assert pair.difference.value == pytest.approx(0.5 + 0.4 / 6 - 0.9)
    assert all(a.p_adjusted >= a.p_value for a in record.against)
    direct = [a for a in record.against if a.role == "direct"]
    assert [a.p_adjusted for a in direct] == pytest.approx(
        [min(1.0, 2 * p) for p in adjust([a.p_value for a in direct], "holm")]
    )
    l2_to_direct = {a.track: a.p_value for a in direct if a.way == "L2"}  # any two may have held the best
    best = [a for a in record.against if a.role == "best"]
    family = adjust([*(a.p_value for a in best), *l2_to_direct.values()], "holm")
    assert [a.p_adjusted for a in best] == pytest.approx([min(1.0, 2 * p) for p in family[: len(best)]])
    first, second, last = record.standing
    assert (first.way, first.mean_rank, first.as_good) == ("label annealing", 1, ["one", "two"])
    assert (second.way, second.better, second.as_good) == ("L2", ["one", "two"], [])
    assert (last.way, last.better, last.as_good) == ("direct fine-tuning", [], [])


def test_the_seed_that_the_best_is_scored_on_has_chosen_nothing():
    """Ways that all avoid half, with noise: the best of them seems to avoid more, and on the seed left out does not."""
    rng = np.random.default_rng(0)

    def noisy(number, retention):
        found = trial(number, retention, 1.0, -1.0, **ALIKE)
        values = -0.5 + 0.2 * rng.standard_normal(3)
        runs = [
            dataclasses.replace(r, comparisons=[r.comparisons[0], comparison("source", v, 0.001)])
            for r, v in zip(found.runs, values, strict=True)
        ]
        return dataclasses.replace(found, runs=runs)

    best, unseen = [], []
    for _ in range(60):
        held = [noisy(n, [{name: {key: v}}]) for n, (name, key, v) in enumerate(WAYS, 1)]
        track, _ = track_figures("one", "one", study([trial(0, [], 1.0, -1.0, **ALIKE), *held]))
        best.append(avoided(track, track.best)[1])
        unseen.append(track.best_unseen)
    assert np.mean(best) > 0.58
    assert np.mean(unseen) == pytest.approx(0.5, abs=0.05)


WAYS = [
    (name, key, v)
    for name, key in (("l2", "coefficient"), ("label_annealing", "weight"), ("ema", "decay"), ("wise_ft", "alpha"))
    for v in (0.1, 0.3, 0.6)
]


def test_noise_makes_ties():
    """Differences of the size of the samples' noise: nobody is better, everybody is as good as the best."""
    vague = [trial(n, m, t, s, half=2.0) for n, m, t, s in ((1, l2(0.01), 0.9, -0.5), (2, l2(1.0), 0.3, -0.1))]
    record = board(one=study([trial(0, [], 1.0, -1.0, half=0.3), *vague]))
    assert record.tracks[0].ranked
    assert all(a.p_adjusted > 0.05 for a in record.against)
    assert [s.as_good for s in record.standing] == [["one"], ["one"]] and not any(s.better for s in record.standing)


def test_one_seed_stands_for_itself_and_counts_for_no_rank():
    one = study([trial(t.number, t.settings["retention"], 1.0, -1.0, seeds=(0,)) for t in made().trials], seeds=(0,))
    trials = [
        dataclasses.replace(a, runs=[dataclasses.replace(b.runs[0], seed=0)])
        for a, b in zip(one.trials, made().trials, strict=True)
    ]
    record = board(one=dataclasses.replace(one, trials=trials), two=made(), three=None)
    first, _, third = record.tracks
    assert not first.ranked and avoided(first, "L2")[1] == pytest.approx(0.5 + 0.4 / 6)
    assert "1 seed, fewer than 3" in first.notes[-1]
    assert (third.status, third.reason) == ("not begun", "it was not begun")
    assert {s.tracks for s in record.standing} == {1}


def test_notes_say_which_grids_end_too_early_and_what_failed():
    trials = made().trials
    short = [t for t in trials if t.number not in (2, 5)]
    failed = dataclasses.replace(trials[2], state="failed", reason="diverged", runs=[])
    track, _ = track_figures("one", "one", study([*short, failed]))
    assert any("diverged" in note for note in row(track, "L2").notes)
    assert row(track, "L2").complete == 1 and row(track, "L2").trials == 2
    assert any("strong end" in note for note in row(track, "label annealing").notes)
    assert row(track_figures("one", "one", made())[0], "label annealing").notes == []


def test_the_p_value_of_a_difference_is_that_of_its_interval():
    from scipy import stats

    from holdfast.statistics.gains import OverSeeds

    values = [0.3, 0.5, 0.1]
    found = OverSeeds(value=0.3, by_seed=dict(enumerate(values)), samples_half=0.0)
    assert found.p_value == pytest.approx(float(stats.ttest_1samp(values, 0.0).pvalue), rel=1e-6)
    assert math.isnan(OverSeeds(value=0.3, by_seed={0: 0.3}, samples_half=0.0).p_value)
    sampled = OverSeeds(value=0.3, by_seed={0: 0.3}, samples_half=0.3)
    assert sampled.p_value == pytest.approx(0.05, rel=1e-6)


@pytest.mark.parametrize(("best", "said"), [(1e-4, "smallest"), (2e-4, ""), (4e-4, "largest")])
def test_a_best_rate_at_an_end_of_what_was_tried_is_said(best, said):
    trials = []
    for rate in (1e-4, 2e-4, 4e-4):
        lost = 0.5 if rate == best else 0.9
        trials += [
            at_rate(trial(len(trials), [], 1.0, -1.0, **ALIKE), rate),
            at_rate(trial(len(trials) + 1, l2(0.01), 0.9, -lost, **ALIKE), rate),
            at_rate(trial(len(trials) + 2, l2(1.0), 0.3, -0.1, **ALIKE), rate),
        ]
    track, _ = track_figures("one", "one", study(trials))
    notes = [note for note in row(track, "L2").notes if "learning rate" in note and "best" in note]
    wanted = f"Its best learning rate at 80 % of the gain, {best:g}, is the {said} that was tried; a better one may"
    assert [note.startswith(wanted) for note in notes] == [True] * bool(said)


def test_what_is_kept_in_memory_is_said():
    from holdfast.studies.leaderboard.figures import _keeps

    def of(*retention, **settings):
        about = {"state": "complete", "kind": "direct", "label": "", "params": {}, "runs": []}
        return list(_keeps([TrialRecord(number=0, settings={"retention": list(retention), **settings}, **about)]))

    annealing = {"label_annealing": {"weight": 1}}
    assert of() == of({"token_weighting": {"kind": "eaft"}}) == of({"label_annealing": {"weight": 0}}) == []
    assert of(annealing) == ["teacher"] and of(annealing, use_peft=True) == []
    assert of({"label_annealing": {"teacher": "cached"}}) == ["cached teacher (disk)"]
    assert of({"ema": {"decay": 0.9}}) == ["average"]
    assert of({"ewc": {"coefficient": 1, "data": __file__, "keep": "cpu"}})[-1] == "Fisher information (cpu)"
    assert of({"ewc": {"coefficient": 1, "data": "gone.jsonl"}}) == ["not known here"]


def test_old_data_that_settings_read_is_said():
    from holdfast.studies.leaderboard.figures import _read_beside

    def of(**settings):
        about = {"state": "complete", "kind": "direct", "label": "", "params": {}, "runs": []}
        return list(_read_beside([TrialRecord(number=0, settings=settings, **about)]))

    assert of(lora_init="corda", lora_init_data="old.jsonl") == ["once, to begin the adapter"]
    by = ["held out, to measure by"]
    assert of(retention=[{"wise_ft": {"alpha": "auto", "limit": 0.1, "data": "old.jsonl"}}]) == by
    assert of(retention={"budget": {"perplexity_increase": 0.1, "data": "old.jsonl"}}) == by
    assert of(retention=["sfa", {"l2": {"coefficient": 1}}], learning_rate=1e-3) == of(retention="sfa") == []
    assert of(retention=[{"replay": {"data": "old.jsonl"}}]) == [], "which says so itself"
    for prompts, read in (("start", []), ("target", []), ("asked.jsonl", ["prompts, without answers"])):
        assert of(retention=[{"self_replay": {"prompts": prompts, "fraction": 0.1}}]) == read


def test_a_method_from_outside_that_does_not_state_it_is_not_said_to_need_no_old_data():
    from holdfast.retention.l2 import L2
    from holdfast.retention.replay import Replay
    from holdfast.studies.leaderboard.figures import _old_data

    silent = type("Silent", (RetentionMethod,), {"__module__": "somebody.elses"})
    frank = type("Frank", (RetentionMethod,), {"__module__": "somebody.elses", "old_data": ""})
    assert [_old_data(cls) for cls in (silent, frank, L2, Replay)] == ["not declared", "", "", "yes"]
