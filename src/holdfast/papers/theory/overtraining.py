"""The theory of overtraining, checked and asked of random problems.

Source: Overtrained Language Models, section 4. Findings are what theorems 4.4, 4.6 and 4.7 say of n
= 1, 2, ..., asked of models as they are: pre-trained by gradient flow from e^-tau up to t_n, not
ideal, and fine-tuned by gradient descent for a finite time. The expectation over noise is exact.
What a theorem says of misaligned tasks (definition 4.5) is asked of problems that are.
The first feature that raises the loss is counted from 1; where none of D does it is D + 1, so that
ratios exist.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from holdfast.papers.theory.deep_linear import (
    LinearTasks,
    checkpoint_times,
    descent_factors,
    descent_values,
    finetuned_losses,
    flow_values,
    half_times,
    harmful_in_finetuning,
    harmful_in_noise,
    inflection_point,
    minimiser,
    perturbed_loss,
    perturbed_losses,
    random_tasks,
    squared_loss,
    start_value,
    step_bound,
)
from holdfast.papers.theory.results import (
    EXACT,
    Array,
    Check,
    Comparison,
    Finding,
    Theory,
    check,
    finding,
)

GAMMAS = (0.05, 0.075, 0.1, 0.15, 0.2)
"""Standard deviations of the noise on every entry of both factors."""
LAMBDAS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Weights of the pull to the start in fine-tuning."""
TAU = 200.0
"""Both factors start pre-training at e^-tau: the larger, the more cleanly features are learnt one
after another."""
FINETUNE_TIME = 8.0
"""Steps of fine-tuning times their learning rate. Too short, and what was learnt has not moved to
the new task; too long, and what was not learnt is learnt from the new task."""
RATE = 0.05
"""Learning rate of pre-training by gradient descent, over the first singular value."""
MISALIGNED = 4.0
"""Alpha of theorem A.25, part 1."""
UNORDERED = np.array([1.2, 0.9, 1.25, 0.5, 0.6])
"""Singular values of a fine-tuning task that do not fall."""

EQUATIONS = """\
                 loss on the pre-training task afterwards                 learning feature n raises it where
noise γ          Σ(i>n) sᵢ² + 2Dγ² Σ(i≤n) sᵢ + D³γ⁴                       sₙ < 2Dγ²                  A.4, prop. 4.3
fine-tuning      Σ(i>n) sᵢ² + Σ(i≤n) ((fᵢ − sᵢ)/(1 + λ))²                 |fₙ − sₙ| > (1 + λ) sₙ     theorems 4.6, 4.7
  its end        (fᵢ + λsᵢ)/(1 + λ) for i ≤ n, 0 beyond                                              A.23
  its own loss   Σ(i>n) fᵢ² + Σ(i≤n) (λ(fᵢ − sᵢ)/(1 + λ))²                                           theorem 4.7

s and f are the singular values of the pre-training and the fine-tuning task.
The inflection point is a number of learnt features. After it, learning one more feature raises
the loss for the first time."""


class Trained:
    """One problem: losses by features learnt, 0 to D in the last place."""

    def __init__(self, tasks: LinearTasks) -> None:
        self.tasks = tasks
        self.times = np.append(0.0, checkpoint_times(tasks.pretraining, TAU))
        self.values = flow_values(
            self.times[:, None], start=start_value(TAU), target=tasks.pretraining
        )
        self.base = squared_loss(self.values, tasks.pretraining)
        self.noisy = perturbed_losses(tasks, np.array(GAMMAS), self.values)
        """`[gammas, D + 1]`."""
        tuned = np.array([self._finetuned(weight) for weight in LAMBDAS])
        self.tuned, self.task = (
            squared_loss(tuned, tasks.pretraining),
            squared_loss(tuned, tasks.finetuning),
        )
        """`[lambdas, D + 1]`: on the pre-training task, and on the new one."""

    def _finetuned(self, weight: float) -> Array:
        """By gradient descent, with half of the paper's largest step or a little less."""
        steps = math.ceil(2 * FINETUNE_TIME / step_bound(self.tasks, weight))
        rate = FINETUNE_TIME / steps
        return descent_values(
            self.values, self.tasks.finetuning, rate=rate, steps=steps, weight=weight
        )


def theory(seeds: int) -> Theory:
    """Draws the problems, checks every closed form on the first, asks of all what the theorems
    say."""
    models = [Trained(random_tasks(seed=seed)) for seed in range(seeds)]
    return Theory(
        title="Overtraining in a two-layer linear network",
        source="Overtrained Language Models, section 4 and appendix A",
        equations=EQUATIONS,
        problems=(
            "8 features, each with about 0.65 times the singular value of the one before; f is "
            "drawn around √s (standard deviation of log f: 0.3) and sorted in falling order; τ is "
            "200; the number of fine-tuning steps times the learning rate is 8"
        ),
        seeds=seeds,
        checks=checks(models),
        findings=findings(models),
    )


# ----------------------------------------------------------------------------------------- findings


def findings(models: Sequence[Trained]) -> list[Finding]:
    """What the theorems say."""
    noise = inflection_point(np.diff([model.noisy for model in models]) > 0)
    tuning = inflection_point(np.diff([model.tuned for model in models]) > 0)
    noisy_growth = [growth(model.noisy - model.base) for model in models]
    misaligned = [model for model in models if model.tasks.misaligned_after(1.0) <= 1]
    tuned_growth = [growth(model.tuned - model.base) for model in misaligned]
    task = [floored_ratios(model.task[:-1], model.task[1:])[:, 1:].max() for model in models]
    before = (
        "sensitivity after n - 1 features divided by sensitivity after n features, at the "
        "worst n and strength"
    )
    turn = "number of the first feature that raises the loss, at the"
    by_gamma = (noise[:, -1] + 1) / (noise[:, 0] + 1)
    by_lambda = (tuning[:, 0] + 1) / (tuning[:, -1] + 1)
    on_task = (
        "loss on the new task at one lambda divided by the loss at the next larger lambda, "
        "at the worst pair and n (theorem 4.7)"
    )
    middle = len(GAMMAS) // 2
    noisy = [model.noisy[middle] for model in models]
    tuned = [model.tuned[0] for model in models]
    # a model of no features is no checkpoint
    theorem = np.array([max(1, model.tasks.misaligned_after(MISALIGNED)) for model in models])
    enough = np.array([max(1, model.tasks.misaligned_after(2.0)) for model in models])
    return [
        finding(
            "each learnt feature makes noise more harmful",
            f"{before} (proposition 4.3)",
            noisy_growth,
        ),
        *of_some(
            "each learnt feature makes fine-tuning more harmful",
            f"{before}; {len(misaligned)} problems in which f exceeds s from the second feature "
            "on (theorem 4.6)",
            tuned_growth,
        ),
        finding(
            "with larger noise, the inflection point comes earlier",
            f"{turn} largest gamma divided by that at the smallest (section 4.2)",
            by_gamma,
        ),
        finding(
            "with a larger lambda, the inflection point comes later",
            f"{turn} smallest lambda divided by that at the largest (theorem 4.7)",
            by_lambda,
        ),
        finding("a larger lambda raises the loss on the new task", on_task, task),
        *ever_up(
            "noise",
            "from the inflection point on, at the middle gamma (theorem 4.4)",
            noisy,
            noise[:, middle],
        ),
        *ever_up(
            "fine-tuning",
            "with f > 4s from there on and lambda 0 (theorems 4.7, A.25)",
            tuned,
            theorem,
        ),
        *ever_up(
            "fine-tuning with f > 2s",
            "with f > 2s from there on and lambda 0 (ours)",
            tuned,
            enough,
        ),
    ]


def of_some(name: str, what: str, ratios: Sequence[float]) -> list[Finding]:
    """A finding; nothing where no problem meets the hypothesis."""
    return [finding(name, what, ratios)] if ratios else []


def ever_up(name: str, where: str, losses: Sequence[Array], begins: Array) -> list[Finding]:
    """Whether losses `[D + 1]` only rise from so many features on; D of a problem that says
    nothing."""
    worst = []
    for loss, n in zip(losses, begins, strict=True):
        if n < len(loss) - 1:
            worst.append(floored_ratios(loss[n:-1], loss[n + 1 :]).max())
    what = (
        "loss before a feature divided by the loss after it, at the worst feature; "
        f"{len(worst)} problems, {where}"
    )
    return of_some(f"{name}: after the inflection point, the loss keeps rising", what, worst)


def growth(sensitivity: Array) -> float:
    """Sensitivity `[strengths, D + 1]` before a feature over that after it, the worst."""
    return floored_ratios(sensitivity[:, 1:-1], sensitivity[:, 2:]).max()


def floored_ratios(before: Array, after: Array) -> Array:
    """Ratios that have a logarithm: what is not positive counts as nothing."""
    floor = EXACT * np.abs(after).max()
    return np.maximum(before, floor) / np.maximum(after, floor)


# ------------------------------------------------------------------------------------------- checks


def checks(models: Sequence[Trained]) -> list[Check]:
    """Every closed form, on the first problem; on all where it says so."""
    tasks = [model.tasks for model in models]
    return [
        matrix_check(tasks[0]),
        sigmoid_check(tasks[0]),
        *order_checks(models[0]),
        *noise_checks(tasks),
        *tuning_checks(tasks),
        *stability_checks(tasks[0]),
    ]


def matrix_check(tasks: LinearTasks) -> Check:
    """The network as D numbers."""
    s, f = tasks.pretraining, tasks.finetuning
    # No deeper: rounding of 1e-16 in rotated matrices starts features that an e^-2tau far below it
    # would hold back.
    tau, weight = 8 - math.log(s[-1]) / 2, 0.5
    start = np.full(tasks.dimension, start_value(tau))
    first, second = tasks.factors(start)
    values = start
    comparisons = []
    pretraining = s, RATE / s[0], math.ceil(checkpoint_times(s, tau)[0] * s[0] / RATE), 0.0
    finetuning = f, step_bound(tasks, weight) / 2, 200, weight
    for target, rate, steps, pull in (pretraining, finetuning):
        first, second = descent_factors(
            first, second, tasks.matrix(target), rate=rate, steps=steps, weight=pull
        )
        values = descent_values(values, target, rate=rate, steps=steps, weight=pull)
        comparisons.append((tasks.matrix(values), first @ second, s[0]))
    return check(
        "the network reduces to its D singular values",
        (
            "gradient descent on matrices with random U and V, against gradient descent on the D "
            "singular values alone; each pre-trains until the first feature is learnt, then "
            "takes 200 steps of fine-tuning (lemma A.7)"
        ),
        *comparisons,
    )


def sigmoid_check(tasks: LinearTasks) -> Check:
    """Gradient descent against gradient flow."""
    s = tasks.pretraining
    tau = 2 - math.log(s[-1]) / 2  # a short way up, on which the steps are what differs
    start, span = np.full(tasks.dimension, start_value(tau)), 1.5 * half_times(s, tau)[0]
    goal = flow_values(np.linspace(0, span, 21)[:, None], start=start, target=s)
    every = math.ceil(span * s[0] / 0.005 / 20)
    paths = [
        descent_values(start, s, rate=span / 20 / n, steps=20 * n, every=n)
        for n in (every, 2 * every)
    ]
    misses = [np.abs(path - goal).max() / s[0] for path in paths]
    order = math.log2(misses[0] / misses[1])
    return check(
        "every feature follows a sigmoid",
        "difference between gradient descent and the sigmoid of gradient flow; half the step "
        "halves this difference, so its order is 1",
        (1, order, 1),
        allowed=0.05,
        note=f"the difference is {misses[0]:.1e} at a step of 0.005 / s_1 and {misses[1]:.1e} at "
        "half that step",
    )


def order_checks(model: Trained) -> list[Check]:
    """When features are learnt, and how near the ideal model is."""
    s, ideal = model.tasks.pretraining, model.tasks.ideal_values()
    rate = RATE / s[0]
    every = max(1, round(half_times(s, TAU)[0] / rate / 200))
    steps = math.ceil(1.25 * model.times[-1] / rate)
    path = descent_values(np.full(len(s), start_value(TAU)), s, rate=rate, steps=steps, every=every)
    crossed = (path >= s / 2).argmax(0) * rate * every
    in_order = "" if (np.diff(crossed) > 0).all() else "not "
    times = check(
        "times at which the features are learnt",
        "steps until gradient descent has learnt half of each feature, against log(s / start) "
        "/ (2 log(1 + 2 eta s))",
        (1, crossed / half_times(s, TAU, rate), 1),
        allowed=0.03,
        note=f"{len(s)} features, learnt {in_order}one after another",
    )
    following = np.append(s[1:], 0.0)
    exponent = ((s - following) / (s + following)).min()
    distances = np.linalg.norm(np.sqrt(model.values) - np.sqrt(ideal), axis=1)
    near = check(
        "the model is near the ideal model",
        "factors at t_n against the ideal factors; allowed is sqrt(D) e^(-C tau), where C is "
        "the smallest (s_n - s_n+1)/(s_n + s_n+1)",
        (0, distances[1:], 1),
        allowed=math.sqrt(len(s)) * math.exp(-exponent * TAU) + EXACT,
        note=f"C is {exponent:.3g} (theorem A.1)",
    )
    return [times, near]


def noise_checks(problems: Sequence[LinearTasks]) -> list[Check]:
    """Losses under noise: enumerated, by feature, and where they turn."""
    tasks, gammas = problems[0], np.array(GAMMAS)
    s = tasks.pretraining
    rng = np.random.default_rng(0)
    first, second, target = rng.standard_normal((3, 2, 2))
    total = 0.0
    for signs in itertools.product((-1.0, 1.0), repeat=8):
        noise = 0.7 * np.array(signs).reshape(2, 2, 2)
        total += (((first + noise[0]) @ (second + noise[1]) - target) ** 2).sum() / 256
    signs_check = check(
        "loss under noise, averaged over every sign",
        "mean loss over all 256 sign patterns of noise of size gamma on the entries of two 2 x 2 "
        "factors, divided by the formula; the formula is exact, also for noise that is not "
        "normally distributed",
        (1, total / perturbed_loss(first, second, target, 0.7), 1),
    )
    ideal = perturbed_losses(tasks, gammas)
    rise = (2 * tasks.dimension * gammas[:, None] ** 2 - s) * s
    matrices = []
    for values in tasks.ideal_values():
        matrices.append(perturbed_loss(*tasks.factors(values), tasks.matrix(s), gammas))
    ideal_check = check(
        "loss under noise after n features",
        "the loss of the ideal model from its singular values, against the formula on its "
        "matrices (lemma A.4)",
        (ideal, np.array(matrices).T, ideal.max()),
    )
    feature_check = check(
        "loss under noise after one more feature",
        "learning feature n changes the loss by exactly (2 D gamma^2 - s_n) s_n; equations 2 "
        'and 14 print "at least"',
        (rise, np.diff(ideal), ideal.max()),
    )
    losses = [perturbed_losses(t, gammas) for t in problems]
    rules = [harmful_in_noise(t, gammas) for t in problems]
    turn_check = check(
        "inflection point by gamma",
        "two counts of features, which should be 0 in every problem. How far the inflection point "
        "of the loss is from the smallest n with s_n < 2 D gamma^2. By how much a larger gamma "
        "delays the inflection point",
        *turn_comparisons(losses, rules),
        allowed=0.0,
    )
    return [signs_check, ideal_check, feature_check, turn_check]


def turn_comparisons(
    losses: Sequence[Array], rules: Sequence[Array], sign: int = 1
) -> tuple[Comparison, Comparison]:
    """Inflection points of losses against those of a rule, and how far they rise (sign 1) or fall
    along strengths."""
    turns = inflection_point(np.diff(losses) > 0)
    return (inflection_point(np.array(rules)), turns, 1), (
        0,
        np.maximum(sign * np.diff(turns), 0),
        1,
    )


def tuning_checks(problems: Sequence[LinearTasks]) -> list[Check]:
    """Where fine-tuning ends, what it costs, and where that turns."""
    tasks, weights = problems[0], np.array(LAMBDAS)
    s, f, ideal = tasks.pretraining, tasks.finetuning, tasks.ideal_values()
    ends = []
    for weight in weights:
        rate = step_bound(tasks, weight)
        # A step divides what is left by 1 - 4 eta (1 + lambda) c, at the slowest feature's end c.
        pace = 4 * rate * (f + weight * s).min()
        ends.append(descent_values(ideal, f, rate=rate, steps=math.ceil(30 / pace), weight=weight))
    goal = minimiser(tasks, weights)
    reached = goal[:, None] * (ideal > 0)
    swapped = np.abs((s + weights[:, None] * f) / (1 + weights[:, None]) - goal).max() / f.max()
    results = [
        check(
            "where fine-tuning ends",
            "gradient descent from each ideal model at each lambda, against (f + lambda s) / "
            "(1 + lambda) for learnt features and 0 for the others",
            (reached, np.array(ends), f.max()),
            note="lemma A.23 prints this formula; lemmas A.11 and A.28 print it with s and f "
            f"exchanged, and theirs deviates by {swapped:.2g}",
        )
    ]

    old, new = finetuned_losses(tasks, weights)
    matrices = tasks.matrix(reached)
    losses = []
    for closed, target in ((old, s), (new, f)):
        numbers = ((matrices - tasks.matrix(target)) ** 2).sum((-2, -1))
        losses.append((closed, numbers, closed.max()))
    results.append(
        check(
            "losses after fine-tuning",
            "both closed forms against |theta - A|_F^2 computed from the matrices",
            *losses,
        )
    )

    apart = np.append(0.0, np.cumsum((f - s) ** 2))
    segment = np.sqrt(apart)
    forgotten = old - squared_loss(ideal, s)
    left = new - (squared_loss(ideal, f) - apart)
    line = np.sqrt(np.maximum(forgotten, 0)) + np.sqrt(np.maximum(left, 0))
    results.append(
        check(
            "fine-tuning ends on a straight line between the tasks",
            "sqrt(forgotten) + sqrt(left to learn) equals |f - s| over the learnt features at "
            "every lambda (ours)",
            (segment, line, segment.max()),
            allowed=1e-6,
        )
    )

    forgetting = [finetuned_losses(t, weights)[0] for t in problems]
    rules = [harmful_in_finetuning(t, weights) for t in problems]
    results.append(
        check(
            "inflection point by lambda",
            (
                "two counts of features, which should be 0 in every problem. How far the inflection "
                "point of the loss is from the smallest n with |f_n - s_n| > (1 + lambda) s_n. By "
                "how much earlier a larger lambda makes the inflection point come"
            ),
            *turn_comparisons(forgetting, rules, sign=-1),
            allowed=0.0,
            note="theorem A.25 prints the opposite inequality",
        )
    )

    start = np.full(tasks.dimension, 1e-3 * min(s.min(), f.min()))
    rate = step_bound(tasks, 1.0)
    steps = math.ceil(80 / (4 * rate * (f + start).min()))
    arrived = descent_values(start, f, rate=rate, steps=steps, weight=1.0)
    return [
        *results,
        check(
            "a feature that starts near 0 does not stay there in long fine-tuning",
            (
                "from a small start x above 0, long fine-tuning takes every feature to (f + "
                "lambda x)/(1 + lambda)"
            ),
            ((f + start) / 2, arrived, f.max()),
        ),
    ]


def stability_checks(tasks: LinearTasks) -> list[Check]:
    """Why the features of the fine-tuning task have to fall: matrices of two features, a little off
    the singular vectors, fine-tuned for long."""
    ordered, unordered = _ends(tasks, tasks.finetuning), _ends(tasks, UNORDERED)
    largest = np.sort(UNORDERED)[::-1][:2]
    return [
        check(
            "if the singular values f are in falling order, the end point is stable",
            "singular values after long fine-tuning of two features, from a start that is off "
            "by 1e-6, against f_1 and f_2",
            (tasks.finetuning[:2], ordered, tasks.finetuning[0]),
            allowed=1e-6,
        ),
        check(
            "if f is in another order, the end point is a saddle point",
            "for f = 1.2, 0.9, 1.25, 0.5, 0.6 and two features, long fine-tuning ends at the two "
            "largest values of f, not at f_1 and f_2 (ours)",
            (largest, unordered, largest[0]),
            allowed=1e-6,
            note=f"f_2 is {100 * (1 - UNORDERED[1] / largest[1]):.0f} % below the value reached",
        ),
    ]


def _ends(tasks: LinearTasks, finetuning: Array) -> Array:
    """The two singular values, the larger first, that two features come to."""
    size = len(finetuning)
    rng = np.random.default_rng(0)
    left, right = np.linalg.qr(rng.standard_normal((2, size, size)))[0]
    roots = np.zeros(size)
    roots[:2] = np.sqrt(tasks.pretraining[:2])
    off = 1e-6 * rng.standard_normal((2, size, size))
    first, second = (left + off[0]) * roots, roots[:, None] * (right + off[1]).T
    rate = 1 / (8 * float(finetuning.max()))
    target = (left * finetuning) @ right.T
    first, second = descent_factors(first, second, target, rate=rate, steps=round(200 / rate))
    values: Array = np.linalg.svd(first @ second, compute_uv=False)[:2]
    return values
