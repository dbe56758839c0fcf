"""How often the gate is wrong: models that are equal, intervals that miss, losses that are there.

    python benchmarks/gate.py                  # under a minute
    python benchmarks/gate.py --check          # exit 1, naming what falls short
    python benchmarks/gate.py --quick          # fewer repetitions; its figures are rough
    python benchmarks/gate.py --save FILE      # the figures as JSON
    python benchmarks/gate.py --tests          # what chose the test of a mean, a minute; --quick: seconds

alarms    two equally noisy copies of a model on 12 entries of 200 questions, under the one rule 'any drop > 0': the
          share of repetitions in which the gate fails. Once all entries are right / wrong, once a third each are right
          / wrong, scores between 0 and 1, and text in nats per token. By `family_wise`; `none` is what there was
          before. The level is 2.5 % one-sided; bar, for holm and max_t: 5 %
copies    16 copies of one model, each against each on the same 12 benchmarks of 200 questions: pairs of 120 whose gate
          fails; before the tests were one decision, 30 did. Bar: 12, four times the level, since pairs share models
parted    comparisons in which interval, p and verdict do not say the same; bar: none
missed    the share of intervals, one side of them at 2.5 %, that leave out the true difference, on the worse side:
          differences that are skewed, rare, or weighted by the length of documents. Beside Student's t. Bars: not above
          Student's by more than three standard errors, and 5 % from 200 samples on
power     a true loss of what a comparison calls detectable, on one of 12 entries: the share of repetitions in which it
          is shown. Bar: 70 to 90 %, 80 % being what is said
policies  a policy with 12 critical entries of 200 questions of which 15 % flip, margins of 0 and 2 points: equal models
          that hold, and models that lost exactly the margin on one entry and ship. Bar: 5 %
decided   how often as many samples as an undecided entry is told would decide, do. Bar: 77 to 83 %

`--tests` holds candidates against each other: false alarms on their worse side, 2.5 % asked, where nothing changed.
ours        Student's t, also with skewness removed; the larger p, degrees of freedom of the spread
t           Student's t, n - 1 degrees of freedom
Hall        skewness removed (Hall 1992), n - 1 degrees of freedom
percentile  the bootstrap's distribution of the difference, against 0
bootstrap-t that of (difference - ours) / its error, against ours (Efron and Tibshirani 1993, section 12.5)
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import platform
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.evaluation.compare.decision import Adjustment, with_decision
from holdfast.evaluation.compare.folders import Compared
from holdfast.evaluation.compare.gate import Aim, Rule, judge, parse_rules, verdict_of
from holdfast.evaluation.compare.samples import ComparisonOptions, compare_columns, sheet_of
from holdfast.evaluation.compare.samples import compared as paired
from holdfast.records.comparison import GAINED, HOLD, LOST, SHIP, Comparison, FamilyWise
from holdfast.records.evaluation import Evaluation, Metric
from holdfast.records.margins import Margins, parse_margins
from holdfast.statistics.paired import Flips, moments
from holdfast.support.files import write_json

ENTRIES, QUESTIONS, COPIES = 12, 200, 16
LEVEL, ALARMS, FAILED_PAIRS, POWER, ENOUGH = 0.025, 0.05, 12, (0.7, 0.9), 200
KINDS = {"acc": ("accuracy", True), "f1": ("f1", True), "nats_per_token": ("nats/token", False)}
Rows = list[dict[str, Any]]
Draw = Callable[[np.random.Generator, int, int], tuple[np.ndarray, np.ndarray | None]]


# --------------------------------------------------------------------------------------------------------- equal models


def answers(metric: str, skill: np.ndarray, sizes: np.ndarray, rng: np.random.Generator, loss: float = 0.0) -> Rows:
    """One copy of a model: what it knows of each question, and noise of its own; `loss` is taken from what it knows."""
    score = skill + rng.normal(size=len(skill)) - loss
    if metric == "acc":
        return [{"doc": str(i), "acc": float(s > 0)} for i, s in enumerate(score)]
    if metric == "f1":
        return [{"doc": str(i), "f1": float(1 / (1 + math.exp(-2 * s)))} for i, s in enumerate(score)]
    nats = (3.0 - 0.2 * score) * sizes
    return [
        {"doc": str(i), "nats": float(a), "tokens": int(t)} for i, (a, t) in enumerate(zip(nats, sizes, strict=True))
    ]


def benchmark(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """What a model knows of each question, and the tokens of each document."""
    return rng.normal(size=QUESTIONS), np.ceil(np.exp(rng.normal(4, 1, QUESTIONS)))


def compared(name: str, metric: str, before: Rows, after: Rows, influences: dict[Any, Any]) -> Comparison:
    """One entry, without margins; what each question contributes goes to `influences`."""
    unit, higher = KINDS[metric]
    known = {metric: Metric(value=0.0, n=len(before), unit=unit, higher_is_better=higher)}
    entry = Evaluation(suite="s", name=name, kind="task", primary=metric, metrics=known, settings={}, model={}, key="k")
    sheet = sheet_of([before, after], [entry, entry])
    influences["s", name, metric] = {("s", name): sheet.influence(metric)}
    [found] = compare_columns(sheet, entry, ComparisonOptions(margins=parse_margins(["0"])))
    return found


def fails(comparisons: Sequence[Comparison], adjustment: Adjustment) -> bool:
    """Whether the gate 'any drop > 0' is closed."""
    [rule] = parse_rules(["any drop > 0"])
    aim = Aim(rule=rule, metrics={(c.suite, c.name): c.metric for c in comparisons}, missing=[])
    compared_ = Compared(comparisons=list(comparisons), unmatched=[], notes=[], adjustment=adjustment)
    return any(outcome.outcome == "failed" for outcome in judge([aim], compared_)[0])


def parts(c: Comparison) -> bool:
    """Whether interval, p and verdict say different things."""
    excluded = c.interval[0] > 0 or c.interval[1] < 0
    return not excluded == (c.p_value < 1 - c.confidence) == (c.verdict in (LOST, GAINED))


def alarms(repetitions: int, metrics: Sequence[str], resamples: int) -> dict[str, Any]:
    """Share of comparisons of equal models that fail, by method; and how many comparisons contradict themselves."""
    rng = np.random.default_rng(0)
    failed: dict[FamilyWise, int] = {"none": 0, "holm": 0, "max_t": 0}
    parted = 0
    for _ in range(repetitions):
        influences: dict[Any, Any] = {}
        found = []
        for place in range(ENTRIES):
            metric = metrics[place % len(metrics)]
            known = benchmark(rng)
            sides = [answers(metric, *known, rng) for _ in range(2)]
            found.append(compared(f"e{place}", metric, *sides, influences))
        parted += sum(map(parts, found))
        for method in failed:
            adjustment = Adjustment(family_wise=method, influences=influences, resamples=resamples)
            failed[method] += fails(found, adjustment)
    shares = {method: count / repetitions for method, count in failed.items()}
    return {"repetitions": repetitions, "shares": shares, "parted": parted, "comparisons": repetitions * ENTRIES}


def copies() -> dict[str, int]:
    """Pairs of equal models whose gate fails, with and without the adjustment."""
    rng = np.random.default_rng(1)
    tests = [benchmark(rng) for _ in range(ENTRIES)]
    models = [[answers("acc", *known, rng) for known in tests] for _ in range(COPIES)]
    found = {"pairs": 0, "none": 0, "holm": 0}
    for before, after in itertools.combinations(models, 2):
        comparisons = [compared(f"e{i}", "acc", a, b, {}) for i, (a, b) in enumerate(zip(before, after, strict=True))]
        found["pairs"] += 1
        found["none"] += fails(comparisons, Adjustment(family_wise="none"))
        found["holm"] += fails(comparisons, Adjustment())
    return found


# ------------------------------------------------------------------------------------------------------------- coverage


def exponential(rng: np.random.Generator, trials: int, n: int) -> tuple[np.ndarray, None]:
    return rng.exponential(size=(trials, n)) - 1.0, None


def log_normal(rng: np.random.Generator, trials: int, n: int) -> tuple[np.ndarray, None]:
    return np.exp(rng.normal(size=(trials, n))) - math.exp(0.5), None


def rare(rng: np.random.Generator, trials: int, n: int) -> tuple[np.ndarray, None]:
    return (rng.random((trials, n)) < 0.02) * rng.choice([-1.0, 1.0], (trials, n)), None


def scores(rng: np.random.Generator, trials: int, n: int) -> tuple[np.ndarray, None]:
    return 0.15 - rng.beta(0.3, 0.3, (trials, n)) * (rng.random((trials, n)) < 0.3), None


def by_length(rng: np.random.Generator, trials: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    tokens = np.exp(rng.normal(4, 1, (trials, n)))
    return tokens * 0.3 * (rng.exponential(size=(trials, n)) - 1) / np.sqrt(tokens / 50), tokens


DRAWS: dict[str, Draw] = {
    "exponential": exponential,
    "log-normal": log_normal,
    "2 % of samples +-1": rare,
    "scores, 30 % fell": scores,
    "nats, long documents": by_length,
}
"""Differences of n samples with the true value 0, and the tokens that they are divided by."""


def heavy_tails(rng: np.random.Generator, trials: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Nats per token that change by Student's t of three degrees of freedom: no third moment."""
    tokens = np.exp(rng.normal(4, 1, (trials, n)))
    return tokens * rng.standard_t(3, (trials, n)), tokens


CANDIDATES = ("ours", "t", "Hall", "percentile", "bootstrap-t")
RESAMPLES = 999
AT_ONCE = 250
"""Trials that share their draws of samples."""


def candidates(draw: Draw, n: int, trials: int) -> dict[str, float]:
    """The share of trials in which each candidate shows a change that is not there, on its worse side."""
    from scipy.special import stdtr

    rng = np.random.default_rng(n)
    alarms = np.zeros((len(CANDIDATES), 2))
    for _ in range(trials // AT_ONCE):
        values, weights = draw(rng, AT_ONCE, n)
        tokens = np.ones_like(values) if weights is None else weights
        drawn = rng.multinomial(n, np.full(n, 1 / n), RESAMPLES).T.astype(float)
        figure, error, influence = ratio(values, tokens, np.ones((n, 1)))
        again, errors, _ = ratio(values, tokens, drawn)
        with np.errstate(all="ignore"):  # 0 / 0, where no sample differs from any other, shows nothing
            skewness = np.nan_to_num((influence**3).sum(1, keepdims=True) / error**3)
            t = np.nan_to_num(figure / error, posinf=np.inf, neginf=-np.inf)
            straight = t + skewness * t**2 / 3 + skewness**2 * t**3 / 27 + skewness / 6
            moved = np.nan_to_num((again - figure) / errors, posinf=np.inf, neginf=-np.inf)
            rows = [moments(float(f), {"all": w}, scale=1.0) for f, w in zip(figure[:, 0], influence, strict=True)]
            found = [
                ([row.p_below() for row in rows], [row.p_above() for row in rows]),
                *((stdtr(n - 1, x)[:, 0], stdtr(n - 1, -x)[:, 0]) for x in (t, straight)),
                (_share(again >= 0), _share(again <= 0)),
                (_share(moved <= t), _share(moved >= t)),
            ]
        alarms += [[(np.asarray(p) < LEVEL).sum() for p in both] for both in found]
    return dict(zip(CANDIDATES, (alarms.max(1) / (trials // AT_ONCE * AT_ONCE)).tolist(), strict=True))


def _share(hits: np.ndarray) -> np.ndarray:
    """As a p-value of resamples `[trials, resamples]`."""
    return (1 + hits.sum(1)) / (1 + hits.shape[1])


def ratio(values: np.ndarray, tokens: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sum of values over sum of tokens, its standard error, and each sample's influence, of samples taken so often.

    Args:
        values: `[trials, n]`.
        tokens: likewise.
        counts: `[n, resamples]`.

    Returns:
        `[trials, resamples]` twice; the influence `[trials, n]` is that of the first resample.
    """
    n = values.shape[1]
    total = tokens @ counts
    figure = (values @ counts) / total
    squares = values**2 @ counts - 2 * figure * ((values * tokens) @ counts) + figure**2 * (tokens**2 @ counts)
    error = np.sqrt(np.maximum(squares, 0.0) * n / (n - 1)) / total
    return figure, error, (values - figure[:, :1] * tokens) / total[:, :1]


def which_test(*, quick: bool) -> dict[str, Any]:
    """Every candidate on every kind of difference, by its name and the number of samples."""
    draws, sizes = {**DRAWS, "nats, heavy tails": heavy_tails}, (10, 50, 200) if quick else (10, 50, 200, 2000)
    trials = {n: 500 if quick else 10000 if n < 2000 else 4000 for n in sizes}
    return {name: {str(n): candidates(draw, n, trials[n]) for n in sizes} for name, draw in draws.items()}


def show_tests(found: dict[str, Any]) -> None:
    """One line a kind and size."""
    print(f"false alarms on the worse side, {100 * LEVEL:g} % asked")
    print(f"  {'differences':<22} {'n':>5}" + "".join(f"{name:>13}" for name in CANDIDATES))
    for name, sizes in found.items():
        for n, shares in sizes.items():
            print(f"  {name:<22} {n:>5}" + "".join(f"{100 * share:>11.1f} %" for share in shares.values()))


def missed(name: str, n: int, trials: int) -> dict[str, float]:
    """The share of intervals that leave 0 out, on the worse side: of the paired test, and of Student's t."""
    from scipy.special import stdtr

    values, weights = DRAWS[name](np.random.default_rng(n), trials, n)
    counts = np.zeros((2, 2))
    for place, row in enumerate(values):
        tokens = np.ones(n) if weights is None else weights[place]
        figure = row.sum() / tokens.sum()
        influence = (row - figure * tokens) / tokens.sum()
        test = moments(float(figure), {"all": influence}, scale=1.0)
        counts[0] += test.p_below() < LEVEL, test.p_above() < LEVEL
        error = math.sqrt(float(influence @ influence) * n / (n - 1))
        t = figure / error if error > 0 else 0.0
        counts[1] += stdtr(n - 1, t) < LEVEL, stdtr(n - 1, -t) < LEVEL
    ours, students = counts.max(1) / trials
    return {"n": n, "ours": float(ours), "student": float(students), "trials": trials}


# ---------------------------------------------------------------------------------------------------------------- power


def power(repetitions: int) -> float:
    """How often a loss of what twelve entries of flips call detectable is shown on the one entry that has it."""
    rng = np.random.default_rng(2)
    psi, n = 0.15, QUESTIONS
    loss = Flips(lost=15, gained=15, n=n).detectable(LEVEL / ENTRIES)
    seen = 0
    for _ in range(repetitions):
        found = []
        for place in range(ENTRIES):
            down = loss if place == 0 else 0.0
            rate = max(psi, down)
            lost, gained, _ = rng.multinomial(n, [(rate + down) / 2, (rate - down) / 2, 1 - rate])
            before = [{"doc": str(i), "acc": float(i < lost)} for i in range(n)]
            after = [{"doc": str(i), "acc": float(lost <= i < lost + gained)} for i in range(n)]
            found.append(compared(f"e{place}", "acc", before, after, {}))
        _, decision = with_decision(found, Adjustment())
        seen += decision is not None and "e0" in [loss.name for loss in decision.shown]
    return seen / repetitions


def policies(repetitions: int) -> dict[str, Any]:
    """Verdicts of a policy with twelve critical entries: of equal models that hold, and of models that lost exactly
    the margin on one entry and ship."""
    for name in ("p_below", "limits"):  # the same few counts of flips come again and again
        setattr(Flips, name, functools.cache(getattr(Flips, name)))
    rng = np.random.default_rng(3)
    found: dict[str, Any] = {"repetitions": repetitions, "held": {}, "shipped": {}}
    for margin in (0.0, 0.02):
        words = [verdict(flipped(rng, [0.0] * ENTRIES), margin) for _ in range(repetitions)]
        found["held"][f"{100 * margin:g} pt"] = words.count(HOLD) / repetitions
        losses = [margin, *[-0.13] * (ENTRIES - 1)]  # the others are better, so that the one entry decides
        words = [verdict(flipped(rng, losses), margin) for _ in range(repetitions)]
        found["shipped"][f"{100 * margin:g} pt"] = words.count(SHIP) / repetitions
    return found


def flipped(rng: np.random.Generator, losses: Sequence[float], n: int = QUESTIONS) -> list[Flips]:
    """The flips of entries of n questions of which 15 % flip, with true losses."""
    found = []
    for loss in losses:
        rate = max(0.15, abs(loss))
        lost, gained, _ = rng.multinomial(n, [(rate + loss) / 2, (rate - loss) / 2, 1 - rate])
        found.append(Flips(lost=int(lost), gained=int(gained), n=n))
    return found


def verdict(entries: Sequence[Flips], margin: float) -> str:
    """SHIP, HOLD or CANNOT TELL of critical entries with a margin."""
    comparisons = []
    for place, test in enumerate(entries):
        known = {"acc": Metric(value=0.5, n=test.n, unit="accuracy", higher_is_better=True)}
        entry = Evaluation(
            suite="s", name=f"e{place}", kind="task", primary="acc", metrics=known, settings={}, model={}, key="k"
        )
        how = {"n": test.n, "unit": "accuracy", "higher_is_better": True, "options": ComparisonOptions()}
        comparisons.append(paired(test, entry, "acc", values=(0.5, 0.5 + test.estimate), **how))
    rule = Rule(
        text="any", what="any", direction="drop", operator=">", threshold=0.0, unit="", margins=Margins(share=margin)
    )
    aim = Aim(rule=rule, metrics={(c.suite, c.name): "acc" for c in comparisons}, missing=[])
    outcomes, _ = judge([aim], Compared(comparisons=comparisons, unmatched=[], notes=[]))
    return verdict_of(outcomes).word


POWER_CASES = (
    ("a loss beyond the margin", 0.05, 0.01, 0.15),
    ("a gain", -0.03, 0.01, 0.15),
    ("no change", 0.0, 0.02, 0.1),
)
"""A true loss, a margin, and the share of questions that flip."""


def decided(repetitions: int) -> dict[str, dict[str, float]]:
    """How often as many samples as are said to decide do decide, 80 % being what is said."""
    rng = np.random.default_rng(4)
    found = {}
    for name, loss, margin, rate in POWER_CASES:
        measured = Flips(lost=round(1000 * (rate + loss) / 2), gained=round(1000 * (rate - loss) / 2), n=1000)
        times = measured.decides(-margin, LEVEL)
        n = math.ceil(1000 * times)
        hits = 0
        for _ in range(repetitions):
            lost, gained, _ = rng.multinomial(n, [(rate + loss) / 2, (rate - loss) / 2, 1 - rate])
            test = Flips(lost=int(lost), gained=int(gained), n=n)
            hits += (test.p_below(-margin) if loss > margin else test.p_above(-margin)) < LEVEL
        found[name] = {"n": n, "share": hits / repetitions}
    return found


# ----------------------------------------------------------------------------------------------------------------- main


def measure(*, quick: bool) -> dict[str, Any]:
    """Everything."""
    repetitions, trials = (60, 1000) if quick else (300, 8000)
    sizes = (10, 50, 200) if quick else (10, 50, 200, 2000)
    found: dict[str, Any] = {
        "binary": alarms(repetitions, ["acc"], 400 if quick else 2000),
        "mixed": alarms(repetitions, list(KINDS), 400 if quick else 2000),
        "copies": copies(),
    }
    found["missed"] = {name: [missed(name, n, trials if n < 2000 else trials // 4) for n in sizes] for name in DRAWS}
    found["policies"] = policies(100 if quick else 2000)
    found["decided"] = decided(200 if quick else 2000)
    return found | {"power": power(100 if quick else 500)}


def shortfalls(found: dict[str, Any]) -> list[str]:
    """What does not reach its bar, a sentence each."""
    short = []
    for kind in ("binary", "mixed"):
        here = found[kind]
        noise = 2 * math.sqrt(ALARMS * (1 - ALARMS) / here["repetitions"]) if here["repetitions"] < 300 else 0.0
        for method in ("holm", "max_t"):
            share = here["shares"][method]
            if share > ALARMS + noise:
                short.append(f"alarms, {kind}, {method}: {100 * share:.1f} % fail, allowed are {100 * ALARMS:g} %")
        if here["parted"]:
            short.append(f"parted, {kind}: {here['parted']} of {here['comparisons']} comparisons contradict themselves")
    if found["copies"]["holm"] > FAILED_PAIRS:
        short.append(
            f"copies: {found['copies']['holm']} of {found['copies']['pairs']} pairs fail, allowed {FAILED_PAIRS}"
        )
    for name, rows in found["missed"].items():
        for row in rows:
            noise = 3 * math.sqrt(max(row["student"], LEVEL) / row["trials"])
            bar = row["student"] + noise
            bar = min(bar, ALARMS + noise) if row["n"] >= ENOUGH else bar
            if row["ours"] > bar:
                short.append(f"missed, {name}, n {row['n']}: {100 * row['ours']:.1f} %, allowed {100 * bar:.1f} %")
    policy = found["policies"]
    noise = 2 * math.sqrt(ALARMS * (1 - ALARMS) / policy["repetitions"]) if policy["repetitions"] < 300 else 0.0
    for kind in ("held", "shipped"):
        for margin, share in policy[kind].items():
            if share > ALARMS + noise:
                short.append(f"a policy with margins of {margin}: {100 * share:.1f} % wrongly {kind}, allowed 5 %")
    for name, row in found["decided"].items():
        if abs(row["share"] - 0.8) > (0.03 if policy["repetitions"] >= 300 else 0.1):
            short.append(f"{row['n']} samples decide on {name} in {100 * row['share']:.1f} %, said are 80 %")
    if not POWER[0] <= found["power"] <= POWER[1]:
        short.append(f"power: {100 * found['power']:.0f} %, expected {100 * POWER[0]:.0f} to {100 * POWER[1]:.0f} %")
    return short


def show(found: dict[str, Any]) -> None:
    """The tables."""
    print(f"equal models on {ENTRIES} entries of {QUESTIONS} questions: the gate 'any drop > 0' fails in")
    for kind in ("binary", "mixed"):
        shares = "   ".join(f"{method} {100 * share:5.1f} %" for method, share in found[kind]["shares"].items())
        print(f"  {kind:<8} {shares}   of {found[kind]['repetitions']}; {found[kind]['parted']} comparisons parted")
    pairs = found["copies"]
    print(f"{COPIES} copies: {pairs['none']} of {pairs['pairs']} pairs fail on their own, {pairs['holm']} under holm")
    print(f"\nintervals that miss on their worse side, {100 * LEVEL:g} % asked: the paired test / Student's t")
    for name, rows in found["missed"].items():
        cells = "   ".join(f"n {r['n']:>4}: {100 * r['ours']:4.1f} / {100 * r['student']:4.1f} %" for r in rows)
        print(f"  {name:<22} {cells}")
    policy = found["policies"]
    held = ", ".join(f"{margin} {100 * share:.1f} %" for margin, share in policy["held"].items())
    shipped = ", ".join(f"{margin} {100 * share:.1f} %" for margin, share in policy["shipped"].items())
    print(f"\na policy of {ENTRIES} critical entries, {policy['repetitions']} times: equal models held: {held};")
    print(f"  models that lost the margin on one entry shipped: {shipped}")
    for name, row in found["decided"].items():
        print(f"{row['n']:,} samples are said to decide on {name} with 80 %, and do in {100 * row['share']:.1f} %")
    print(f"\na loss that is called detectable, on one of {ENTRIES} entries, is shown in {100 * found['power']:.0f} %")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1, naming what falls short")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions; the figures are rough")
    parser.add_argument("--save", type=Path, default=None, metavar="FILE", help="write the figures as JSON")
    parser.add_argument("--tests", action="store_true", help="candidates for the test of a mean, and nothing else")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    if options.tests:
        show_tests(which_test(quick=options.quick))
        return 0
    found = measure(quick=options.quick)
    show(found)
    short = shortfalls(found)
    if options.save:
        from importlib.metadata import version

        known = {name: version(name) for name in ("numpy", "scipy")}
        record = {"benchmark": "gate", "mode": "quick" if options.quick else "full", "versions": known}
        seconds = round(time.monotonic() - began, 1)
        write_json(
            options.save, record | {"machine": platform.machine(), "seconds": seconds} | found | {"short": short}
        )
    for sentence in short:
        print(f"falls short: {sentence}")
    return 1 if options.check and short else 0


if __name__ == "__main__":
    sys.exit(main())
