"""How often intervals and tests hold what they say, by simulation: a coverage, a rate of false alarms, a power.

What each is by hand or against scipy is shown in tests/statistics and tests/evaluation.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.special import gammaln, xlogy
from scipy.stats import norm

from evaluation.test_compare import NATS, compared, right_wrong, text_rows
from evaluation.test_decision import entry as benchmark
from holdfast.evaluation.compare.decision import Adjustment, with_decision
from holdfast.records.figure import Figure
from holdfast.statistics.equal_target import Point, source_at
from holdfast.statistics.estimates import TEXT_FIGURES, Ratio
from holdfast.statistics.family_wise import adjust, sign_flips
from holdfast.statistics.inflection import CANNOT_TELL, TURNS, Turn, turn
from holdfast.statistics.paired import Flips, moments
from holdfast.statistics.samples_part import Contributions, part_of
from holdfast.statistics.samples_part import correlation as correlation_of
from holdfast.statistics.shares import Share, kept_share, shares
from reports.synthetic_studies import points_study


@pytest.mark.parametrize("n", [8, 40])
def test_interval_covers_at_its_level(n):
    """Ratio data, 95% asked, few samples included (where the plain percentile interval is too narrow)."""
    rng = np.random.default_rng(n)
    covered, trials = 0, 300
    for _ in range(trials):
        tokens = rng.integers(10, 60, n)
        shift = rng.normal(0.05, 0.2, n)
        before = text_rows(tokens * 3.0, tokens, tokens)
        after = text_rows(tokens * (3.0 + shift), tokens, tokens)
        [c] = compared(before, after, NATS)
        covered += c.interval[0] <= 0.05 <= c.interval[1]
    assert 0.91 <= covered / trials <= 0.985


def test_p_values_of_no_difference_are_uniform_enough():
    rng = np.random.default_rng(3)
    values = []
    for _ in range(300):
        before = right_wrong(rng.normal(0.5, 0.2, 25), "f1")
        after = [{**row, "f1": row["f1"] + rng.normal(0, 0.1)} for row in before]
        [c] = compared(before, after, "f1")
        assert c.test == "paired t, skewness removed"
        values.append(c.p_value)
    assert 0.02 <= np.mean(np.array(values) < 0.05) <= 0.085
    assert 0.4 <= np.mean(values) <= 0.6


LEVEL = 0.025


def missed(n: int, psi: float, share: float, level: float) -> float:
    """The chance, over all outcomes of n samples, that the upper limit is below the true difference."""
    lost, gained = np.indices((n + 1, n + 1))
    rest = n - lost - gained
    with np.errstate(divide="ignore"):
        terms = xlogy(lost, psi * (1 - share) / 2) + xlogy(gained, psi * (1 + share) / 2) + xlogy(rest, 1 - psi)
        log = gammaln(n + 1) - gammaln(lost + 1) - gammaln(gained + 1) - gammaln(np.maximum(rest, 0) + 1) + terms
    weights = np.where(rest >= 0, np.exp(np.where(rest >= 0, log, -np.inf)), 0.0)
    total = 0.0
    for b, c in zip(*np.nonzero(weights > 1e-7), strict=True):
        if Flips(lost=int(b), gained=int(c), n=n).limits(level)[1] < psi * share - 1e-12:
            total += weights[b, c]
    return total


GRID = [(psi, share) for psi in (0.03, 0.1, 0.4, 0.95) for share in (-1.0, -0.6, 0.0, 0.3, 0.55, 0.7, 1.0)]


@pytest.mark.parametrize("n", [10, 30, pytest.param(100, marks=pytest.mark.slow)])
def test_intervals_of_flips_miss_no_more_often_than_they_say(n):
    """Every outcome enumerated; by symmetry the lower limit misses as the upper does for the opposite change."""
    found = {at: missed(n, *at, LEVEL) for at in GRID if n < 100 or at[0] <= 0.1}
    assert max(found.values()) <= LEVEL + 1e-4, max(found.items(), key=lambda item: item[1])
    assert max(found.values()) >= 0.4 * LEVEL, "so cautious that it is no test"


MEANS = {
    "normal": (lambda rng, shape: rng.normal(size=shape), 0.026, 0.026),
    "exponential": (lambda rng, shape: rng.exponential(size=shape) - 1, 0.06, 0.03),
    "few that change": (lambda rng, shape: (rng.random(shape) < 0.05) * rng.choice([-1.0, 1.0], shape), 0.026, 0.026),
}


@pytest.mark.parametrize("name", list(MEANS))
def test_a_side_misses_as_rarely_as_measured(name):
    """Simulated: few samples, and enough; the bars are those of the module's table with three standard errors."""
    draw, few, enough = MEANS[name]
    trials = 1500
    for n, bar in ((10, few), (200, enough)):
        below = above = 0
        for values in draw(np.random.default_rng(n), (trials, n)):
            test = moments(float(values.mean()), {"all": (values - values.mean()) / n}, scale=1.0)
            below += test.p_below(0.0) < LEVEL
            above += test.p_above(0.0) < LEVEL
        noise = 3 * math.sqrt(bar * (1 - bar) / trials)
        assert max(below, above) / trials <= bar + noise, (n, below, above)


@pytest.mark.parametrize(("psi", "n"), [(0.1, 300), (0.3, 1000), (0.02, 200)])
def test_the_detectable_loss_is_seen_with_80_percent(psi, n):
    """Of flips: a model whose true loss is what is called detectable is seen to lose in about 80 % of measurements."""
    rng = np.random.default_rng(0)
    flips = round(psi * n)
    loss = Flips(lost=flips // 2, gained=flips - flips // 2, n=n).detectable(LEVEL)
    rate = max(psi, loss)
    draws = rng.multinomial(n, [(rate + loss) / 2, (rate - loss) / 2, 1 - rate], size=2000)
    seen = np.mean([Flips(lost=int(b), gained=int(c), n=n).p_below() < LEVEL for b, c, _ in draws])
    assert 0.7 <= seen <= 0.87


def test_the_samples_needed_see_a_change_with_80_percent():
    test = Flips(lost=10, gained=10, n=200)
    n = math.ceil(200 * test.needed(0.02, LEVEL))
    assert n == pytest.approx(2000, rel=0.1)  # (1.96 + 0.84)^2 * 0.1 / 0.02^2
    rng = np.random.default_rng(1)
    draws = rng.multinomial(n, [0.06, 0.04, 0.9], size=1000)
    seen = np.mean([Flips(lost=int(b), gained=int(c), n=n).p_below() < LEVEL for b, c, _ in draws])
    assert 0.74 <= seen <= 0.86


def flips(columns: np.ndarray, resamples: int = 4000) -> np.ndarray:
    """Tests that share all samples, one a column."""
    return sign_flips(
        [{"one": c} for c in columns.T], [1.0] * columns.shape[1], resamples=resamples, seed_of=lambda _: 0
    )


@pytest.mark.parametrize("method", ["holm", "max_t"])
def test_false_alarms_over_ten_tests_that_go_together(method):
    rng = np.random.default_rng(0)
    alarms, trials = 0, 400
    for _ in range(trials):
        values = rng.normal(size=(60, 1)) + rng.normal(size=(60, 10))
        z = values.mean(0) / (values.std(0, ddof=1) / 60**0.5)
        centred = values - values.mean(0)
        alarms += min(adjust(norm.sf(z).tolist(), method, lambda c=centred: flips(c, 300))) < 0.05
    assert alarms / trials <= 0.05 + 3 * (0.05 * 0.95 / trials) ** 0.5
    if method == "max_t":
        assert alarms / trials >= 0.02


def alarms(trials: int, *, mixed: bool, **options: Any) -> float:
    rng = np.random.default_rng(mixed)
    shown = 0
    for _ in range(trials):
        _, decision = with_decision([benchmark(i, rng, mixed=mixed) for i in range(12)], Adjustment(**options))
        shown += bool(decision and decision.shown)
    return shown / trials


@pytest.mark.parametrize("mixed", [False, True])
def test_equal_models_are_let_through(mixed):
    """At most 2.5 % of such comparisons may say that something was lost; without adjustment it is one in seven."""
    trials = 120
    assert alarms(trials, mixed=mixed) <= 0.025 + 2.5 * (0.025 * 0.975 / trials) ** 0.5
    assert alarms(trials, mixed=mixed, family_wise="none") >= 0.06


def test_fieller_covers_the_true_share():
    """Coverage of the kept share with four seeds of normal noise: about 95 %."""
    rng = np.random.default_rng(5)
    hits, rounds = 0, 400
    for _ in range(rounds):
        common = rng.normal(0, 0.02, 4)
        direct, ours = 0.5 + common + rng.normal(0, 0.02, 4), 0.4 + common + rng.normal(0, 0.02, 4)
        study = points_study([[(g, -0.1) for g in direct], [(g, -0.1) for g in ours]], direct=0)
        interval = shares(study.trials[1], study)[0].interval
        hits += interval is not None and interval[0] <= 0.8 <= interval[1]
    assert 0.92 < hits / rounds < 0.98


TARGET, SOURCE = ("learn", "functions", "nats_per_token"), ("keep", "prose", "nats_per_token")


Z = 1.959963984540054


def correlation(entry, influences):
    """Of arrays that are of the same samples."""
    made = {n: Contributions(samples=tuple(map(str, range(len(w)))), values=w) for n, w in influences.items()}
    found = correlation_of(entry, made)
    assert found is not None
    return found


def figure(trial, by_seed, halves, found) -> Figure:
    return Figure(
        value=sum(by_seed) / len(by_seed),
        by_seed=dict(enumerate(by_seed)),
        samples_half=math.hypot(*halves.values()),
        samples_part=part_of(trial, halves, found),
    )


def without(one: Figure) -> Figure:
    return Figure(value=one.value, by_seed=one.by_seed, samples_half=one.samples_half)


def test_a_place_at_equal_target_covers_the_truth():
    """Between two points of a curve, at 80 % of what direct fine-tuning learns: all trials share their samples."""
    rng, rounds, held, widths = np.random.default_rng(3), 400, 0, []
    true = {0: (1.0, -1.0), 1: (0.9, -0.5), 2: (0.6, -0.1)}
    for _ in range(rounds):
        gains = {}
        for entry, n, side in ((TARGET, 150, 0), (SOURCE, 140, 1)):
            easy = rng.normal(0, 1, n)
            for t, at in true.items():
                values = at[side] * (1 + 0.5 * easy + 0.15 * rng.normal(0, 1, n))
                gains[t, entry] = values + rng.normal(0, 0.01, 5)[:, None]
        found = [correlation(e, {t: gains[t, e].mean(0) for t in true}) for e in (TARGET, SOURCE)]

        def of(t, entry, found=found, gains=gains):
            w = gains[t, entry]
            return figure(t, tuple(w.mean(1)), {entry: Z * w.mean(0).std(ddof=1) / math.sqrt(w.shape[1])}, found)

        points = [Point(target=of(t, TARGET), source=of(t, SOURCE)) for t in true]
        at = source_at([points], points[0].target * 0.8)
        apart = source_at(
            [[Point(target=without(p.target), source=without(p.source)) for p in points]],
            without(points[0].target * 0.8),
        )
        assert at is not None and apart is not None
        low, high = at.interval_at(0.95)
        held += low <= -0.5 + 0.4 * (0.1 / 0.3) <= high
        widths.append(apart.samples_half / at.samples_half)
    assert 0.93 <= held / rounds <= 0.985
    assert np.median(widths) > 1.5


def rungs(
    means: list[float], *, seeds: int = 3, documents: int = 60, noise: float = 0.05, rng: int = 0, apart: float = 0.0
) -> list:
    """Documents whose nats lie about a budget's mean; what makes a document hard is the same at all budgets. `apart`:
    how far a seed's noise moves a whole budget."""
    draws = np.random.default_rng(rng)
    tokens = draws.integers(20, 60, documents).astype(float)
    hard = draws.normal(0, 0.5, documents)
    found = []
    for mean in means:
        one = []
        for _ in range(seeds):
            level = mean + draws.normal(0, apart) + hard + draws.normal(0, noise, documents)
            one.append(np.stack([tokens * level, tokens], axis=1))
        found.append(one)
    return found


NATS_COUNTS = TEXT_FIGURES["nats_per_token"]


def turning(figure: Ratio, ladders: list) -> Turn:
    result = turn(figure, ladders)
    assert result is not None
    return result


def test_the_interval_covers_the_true_place_and_equal_budgets_seldom_turn() -> None:
    """Of 300 ladders of three noisy seeds: the interval holds the true best budget, and of equal budgets none is called
    worse, in 95 % and more."""
    true = [2.00, 1.97, 1.965, 1.99]
    held = [turning(NATS_COUNTS, rungs(true, noise=0.02, apart=0.01, rng=n)).interval for n in range(300)]
    assert sum(low <= 2 <= high for low, high in held) / 300 >= 0.94
    equal = [turning(NATS_COUNTS, rungs([2.0] * 4, noise=0.02, apart=0.01, rng=n)).verdict for n in range(300)]
    assert sum(verdict != CANNOT_TELL for verdict in equal) / 300 <= 0.06
    clear = [turning(NATS_COUNTS, rungs([2.2, 2.0, 2.1], noise=0.02, apart=0.005, rng=n)).verdict for n in range(50)]
    assert clear.count(TURNS) >= 45, "and it can tell"


def seeds(*values, half=0.0):
    return Figure(value=sum(values) / len(values), by_seed=dict(enumerate(values)), samples_half=half)


def curve(*points, half=0.0):
    return [Point(target=seeds(*t, half=half), source=seeds(*s, half=half)) for t, s in points]


@pytest.mark.parametrize("by_curve", [False, True])
def test_a_grid_of_many_values_has_no_advantage(by_curve):
    """Settings that all lose half of what direct fine-tuning does, noise a fifth of that: each seed's best of nine
    would keep two thirds."""
    rng = np.random.default_rng(0)
    one, found = seeds(1.0, 1.0, 1.0), {"at target": [], "own best": []}
    for _ in range(150):
        points = curve(*(((1.0,) * 3, tuple(-0.5 + 0.2 * rng.standard_normal(3))) for _ in range(9)))
        curves = [[point] for point in points] if by_curve else [points]
        tuned = source_at(curves, one)
        assert tuned is not None
        found["at target"].append(tuned.value)
        found["own best"].append(np.mean([max(p.source.by_seed[s] for p in points) for s in range(3)]))
    means = {name: np.mean(values) for name, values in found.items()}
    assert means["at target"] == pytest.approx(-0.5, abs=0.03)
    assert means["own best"] > -0.25


def draw(rng: np.random.Generator, *, n: int, seeds: int, share: float, gain: float, along: float):
    """The gains of direct fine-tuning and of an arm with a share of its gain, on n samples of which most is alike."""
    easy = rng.normal(0, 1, n)
    columns = {}
    for trial, mean in ((0, gain), (1, share * gain)):
        own = math.sqrt(1 - along) * rng.normal(0, 1, n)
        at = mean * (1 + 0.9 * (math.sqrt(along) * easy + own))
        columns[trial] = at + rng.normal(0, 0.005, seeds)[:, None]
    found = [correlation(TARGET, {t: c.mean(0) for t, c in columns.items()})]
    return [
        figure(t, tuple(c.mean(1)), {TARGET: Z * c.mean(0).std(ddof=1) / math.sqrt(n)}, found)
        for t, c in columns.items()
    ]


def holds(share: Share, truth: float) -> bool:
    return share.interval is None or share.interval[0] <= truth <= share.interval[1]


@pytest.mark.parametrize("along", [0.0, 0.5, 0.95])
def test_a_share_of_pairs_covers_the_truth_and_is_no_wider_than_it_has_to_be(along):
    """145 samples, five seeds, a gain of 0.2 with a spread of 0.18 over samples: like the searches without old data."""
    rng, rounds, held, before, ratios = np.random.default_rng(2), 600, 0, 0, []
    for _ in range(rounds):
        direct, ours = draw(rng, n=145, seeds=5, share=0.9, gain=0.2, along=along)
        share, apart = kept_share(ours, direct), kept_share(without(ours), without(direct))
        held, before = held + holds(share, 0.9), before + holds(apart, 0.9)
        assert share.interval is not None and apart.interval is not None
        ratios.append(np.ptp(apart.interval) / np.ptp(share.interval))
    assert 0.93 <= held / rounds <= 0.985
    assert before / rounds >= held / rounds - 0.01
    expected = {0.0: (0.95, 1.05), 0.5: (1.25, 1.5), 0.95: (2.0, 4.5)}[along]
    assert expected[0] <= np.median(ratios) <= expected[1]
