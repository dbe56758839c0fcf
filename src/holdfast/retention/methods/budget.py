"""A budget for forgetting: the user states how much is acceptable, and the strength of label
annealing (or L2, or EWC) is found during the run.

    minimise CE  subject to  c <= b at the END of the run
                 c: KL to the start, or the rise of a held-out text's cross-entropy

The multiplier of the constraint is the method's own coefficient s: label annealing's loss CE + s KL
is the Lagrangian of `kl` itself. Plain dual ascent, log s <- log s + rate (c - b) / b, does not
work here. At the start c is 0, far below b, so s would fall by orders of magnitude, and c would
overshoot before s came back; and what was learnt while s was wrong has to be paid for, because the
best that can be had at a budget is had with one s from beginning to end. So the constraint is held
to what it does by itself in a run whose s is right (`_Controller`):

1. It rises within a short time, the shorter the larger s, and then stays, about at its end value where s is small, and
above it where s is large,
   sinking as the learning rate sinks (at s = 4 by a fifth, at s = 10 by half). Between a floor that
   rises so and a ceiling that sinks so nothing is done; outside, log s gets an integral and a
   proportional term (Stooke et al., section 4) of log(c / what it should be), clipped.
2. A run begins strong, and for its first twentieth s is only raised: with too large a strength little is lost in that
time, while what was
   forgotten too early never quite comes back.
3. s keeps within bounds in which it does something, so that the way back is short.

The shape of rise and sinking, and all gains, were read off runs with fixed s on tiny models (60 and
100 steps). They go by share of the run.

What is measured: with only `kl`, the mean over the step's own trained tokens before the step, which
costs nothing; it is noisy, so a short average is taken. With `data`, held-out rows every `every`
steps. KL is label annealing's own (its direction, temperature and tokens); with its defaults it is
KL(start || current) in nats per token. `perplexity_increase` x is CE(now) - CE(start) <= log(1 + x)
on the rows of `data`.

What it does not do: make the run spend a budget that direct fine-tuning stays below (the strength
then falls to its lower bound), or look ahead at averages (`sfa`, `wise_ft`) that act after the last
step.

Cost: none with the training tokens; one forward pass over the held-out rows (and the teacher's)
every `every` steps otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from holdfast.config.declare import Meta
from holdfast.errors import ConfigError, Problem, TrainingDiverged
from holdfast.retention.paths import data_problems
from holdfast.retention.protocol import (
    STEP_FIGURES,
    ActiveMethod,
    NamedParams,
    Passive,
    RetentionMethod,
    StepInfo,
)
from holdfast.retention.services import Services, StepFigures

if TYPE_CHECKING:
    from datasets import Dataset

    from holdfast.retention.anchor import Anchors

ADAPTABLE = ("label_annealing", "l2", "ewc")
"""Methods with a strength; label annealing goes first, and of the others exactly one has to be
there."""

FIRST = 7.0
"""The least strength that label annealing begins with."""
GRACE = 0.05
"""Share of the run in which the strength is only raised."""
DELAY = 0.17
"""Share of the run in which the constraint comes to 63 % of its end value at strength 0; 1 + s
times less at strength s."""
HEADROOM, HEADROOM_UP_TO, SUNK = 0.12, 10.0, 0.85
"""The ceiling begins at 1 + HEADROOM s times the budget, s up to the second number, and is the
budget itself after the third's share of the run."""
PROPORTIONAL, INTEGRAL = 1.0, 15.0
"""e-folds of the strength at an error of 1: at once, and over a whole run. The constraint is nearly
s to the power of -1.2, so the first corrects most of an error by itself."""
WINDOW = 0.02
"""Share of the run over which the training tokens' KL is averaged (the time constant of an
exponential mean)."""
LOWEST, HIGHEST = -1.0, 2.0
"""Of the error. Far below the floor there is time; far above the ceiling there is none."""
BOUNDS = {"label_annealing": (0.05, 100.0)}
"""Of the strength, inclusive: below the first direct fine-tuning is hardly changed, above the
second hardly anything is learnt, and the way back from further out would take too long."""
RANGE = 1e3
"""Of a strength in other units (L2, EWC): the factor within which it stays of where it began."""


def _share(value: str | float | None) -> float | None:
    """ "2%" and 0.02 as 0.02; None where that is no number."""
    if not isinstance(value, str):
        return value if isinstance(value, (int, float)) else None
    text = value.strip()
    try:
        return float(text.removesuffix("%")) / 100 if text.endswith("%") else float(text)
    except ValueError:
        return None


def _rise(value: Any) -> str | float:
    """A value of `perplexity_increase`, checked."""
    share = None if isinstance(value, bool) else _share(value)
    if share is None or not share > 0:
        raise ValueError
    return value if isinstance(value, str) else float(value)


_RISE = Meta(
    parse=_rise,
    expected="a share above 0, such as 2% or 0.02 (noise alone would exceed a limit of 0)",
)


@dataclass(frozen=True, kw_only=True)
class Budget(RetentionMethod):
    """Adapts the strength of another method so that the run ends within a budget for forgetting. It
    works where that other method works.

    References: Stooke, Achiam and Abbeel 2020, Responsive safety in reinforcement learning by PID
    Lagrangian methods (arXiv:2007.03964), section 4; Platt and Barr 1988, Constrained differential
    optimization.
    """

    name: ClassVar[str] = "budget"
    title: ClassVar[str] = "budget for forgetting"
    place: ClassVar[str] = "loss"
    hook_order: ClassVar[int] = 4
    summary: ClassVar[str] = "adapts a method's strength to keep forgetting below a limit"
    source: ClassVar[str] = (
        "Stooke et al. 2020, PID Lagrangian methods, section 4; Platt and Barr 1988, Constrained "
        "differential optimization"
    )

    kl: Annotated[float | None, Meta(gt=0, finite=False)] = None
    """Largest allowed KL to the initial model at the end of training, in nats per token; inf: no
    constraint."""
    perplexity_increase: Annotated[str | float | None, _RISE] = None
    """Largest allowed increase of the perplexity on `data`, such as 2% or 0.02; inf: no
    constraint."""
    data: str = ""
    """Held-out text on which forgetting is measured: file, folder or hub id. With kl, the default
    is the training tokens of each step."""
    every: Annotated[int | None, Meta(ge=1)] = None
    """Optimiser steps between measurements of `data`; default: 10."""
    rate: Annotated[float, Meta(gt=0)] = 1.0
    """Factor for the speed at which the strength is adapted."""

    @property
    def off(self) -> bool:
        return math.inf in (self.kl, _share(self.perplexity_increase))

    def problems(self) -> list[Problem]:
        problems = []
        if self.kl is None and self.perplexity_increase is None:
            problems.append(
                Problem(
                    (),
                    "expected kl or perplexity_increase, got none. Write for example budget: "
                    "{kl: 0.02}",
                )
            )
        if self.kl is not None and self.perplexity_increase is not None:
            problems.append(
                Problem(
                    (),
                    f"expected either kl or perplexity_increase, got both (kl={self.kl}, "
                    f"perplexity_increase={self.perplexity_increase})",
                )
            )
        if self.perplexity_increase is not None and not self.data:
            problems.append(
                Problem(
                    "data",
                    "expected held-out text for perplexity_increase, got nothing. Give a file, "
                    "folder or hub id",
                )
            )
        return problems + data_problems("data", self.data)

    def check_run(self, *, total_steps: int | None) -> list[Problem]:
        if (
            self.data
            and total_steps is not None
            and self.every is not None
            and self.every > total_steps
        ):
            return [
                Problem(
                    "every", f"expected at most the run's {total_steps} steps, got {self.every}"
                )
            ]
        return []

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({STEP_FIGURES}) if self.kl is not None and not self.data else frozenset()

    @property
    def limit(self) -> float:
        """The budget in nats per token, for the KL or for the held-out cross-entropy."""
        return (
            self.kl if self.kl is not None else math.log1p(_share(self.perplexity_increase) or 0.0)
        )

    @property
    def period(self) -> int:
        """Optimiser steps between measurements of `data`."""
        return self.every or 10

    def start(self, anchors: Anchors) -> ActiveMethod:
        return _Active(self)


def adapted(budget: Budget, methods: Sequence[str]) -> tuple[str | None, list[str]]:
    """Which method's strength a budget adapts, and sentences about what stands in the way.

    Args:
        budget: of the run.
        methods: names of the run's methods, those that are off left out.
    """
    adaptable = [name for name in ADAPTABLE if name in methods]
    if budget.kl is not None and "label_annealing" not in adaptable:
        return None, [
            Problem(
                "kl",
                "expected label_annealing as well: budget measures its KL and adapts its "
                "weight. Add label_annealing.",
            )
        ]
    if not adaptable:
        return None, [
            Problem(
                (),
                f"expected a method whose strength can be adapted ({', '.join(ADAPTABLE)}), got "
                "none above 0. Add label_annealing.",
            )
        ]
    if adaptable[0] != "label_annealing" and len(adaptable) > 1:
        return None, [
            Problem(
                (),
                f"expected one method to adapt, got {' and '.join(adaptable)}. Leave one out, or "
                "add label_annealing, which takes precedence.",
            )
        ]
    return adaptable[0], []


def combination_problems(methods: Sequence[RetentionMethod]) -> list[str]:
    """Sentences about a run's methods that leave a budget nothing to adapt; empty without a
    budget."""
    names = [m.name for m in methods if not m.off]
    problems = []
    for method in methods:
        if isinstance(method, Budget) and not method.off:
            problems += adapted(method, names)[1]
    return problems


class _Controller:
    """Strength from measurements: proportional and integral action in log strength on what lies
    outside of a corridor.

        w       = s_0 exp(I), the strength without the proportional term; 0 where strengths have no common unit (L2,
                EWC)
        ceiling = limit (1 + HEADROOM min(w, HEADROOM_UP_TO) max(0, 1 - x / SUNK))          x = t / T
        floor   = ceiling (1 - exp(-x (1 + w) / DELAY))
        e       = log(c / ceiling) above it, log(c / floor) below that, 0 between; within LOWEST and HIGHEST, and not
                below 0 while x < GRACE
        I      <- I + rate INTEGRAL e (steps since the last / T)
        log s   = log s_0 + I + PROPORTIONAL e
                I, and s itself, within the bounds

    All plain floats: equal measurements give equal strengths on every rank and after a resume.

    Args:
        limit: the budget.
        start: s_0, above 0.
        bounds: of s, inclusive; s_0 may lie outside.
        relative: whether s is a number without a unit, as label annealing's.
        rate: factor on the integral's speed.
    """

    def __init__(
        self,
        *,
        limit: float,
        start: float,
        bounds: tuple[float, float],
        relative: bool = True,
        rate: float = 1.0,
    ) -> None:
        self.limit, self.start, self.bounds, self.relative, self.rate = (
            limit,
            start,
            bounds,
            relative,
            rate,
        )
        self.integral = 0.0
        self.last = 0

    def strength(self, constraint: float, *, step: int, total: int) -> float:
        """The strength for the steps to come, after `step` of `total` (from 1) was taken."""
        done = step / total
        weight = self.start * math.exp(self.integral) if self.relative else 0.0
        ceiling = self.limit * (
            1 + HEADROOM * min(weight, HEADROOM_UP_TO) * max(0.0, 1 - done / SUNK)
        )
        floor = ceiling * (1 - math.exp(-done * (1 + weight) / DELAY))
        # A constraint of 0 or less counts as LOWEST: held-out text may get better, and the
        # logarithm must not see that.
        low = max(constraint, floor * math.exp(LOWEST))
        error = (
            min(HIGHEST, math.log(constraint / ceiling))
            if constraint > ceiling
            else math.log(min(low, floor) / floor)
        )
        if done < GRACE:
            error = max(0.0, error)
        moved = self.integral + self.rate * INTEGRAL * error * (step - self.last) / total
        lowest, highest = self.bounds
        self.integral = min(
            math.log(highest / self.start), max(math.log(lowest / self.start), moved)
        )
        self.last = step
        return min(
            highest, max(lowest, self.start * math.exp(self.integral + PROPORTIONAL * error))
        )


class _Active(Passive):
    """What a budget holds during a run.

    Raises:
        ConfigError: on `prepare`, when the run has nothing that could be adapted.
    """

    def __init__(self, method: Budget) -> None:
        self.method = method
        self._services: Services | None = None
        self._rows: Dataset | None = None
        self._adapted: ActiveMethod | None = None
        self._controller: _Controller | None = None
        self._start_ce = 0.0
        self._mean = self._weight = 0.0
        self._constraint: float | None = None

    def prepare(self, services: Services) -> None:
        name, problems = adapted(
            self.method, [n for n in ADAPTABLE if _strength(services.method(n)) > 0]
        )
        if name is None:
            raise ConfigError(problems)
        self._services, self._adapted = services, services.method(name)
        start, relative = _strength(self._adapted), name == "label_annealing"
        if relative:
            start = self._adapted.strength = max(start, FIRST)  # type: ignore[union-attr]  # a strength above 0 is a method's
        bounds = BOUNDS.get(name, (start / RANGE, start * RANGE))
        self._controller = _Controller(
            limit=self.method.limit,
            start=start,
            bounds=bounds,
            relative=relative,
            rate=self.method.rate,
        )
        if self.method.data:
            self._rows = services.rows(self.method.data)
            # Of the start, and with a cached teacher the pass that computes its states of these
            # rows.
            self._start_ce = services.mean_loss(self._rows).ce
        where = self.method.data or "the training tokens"
        if self.method.kl is not None:
            what = f"KL to the initial model {self.method.limit:g} nats per token"
        else:
            what = f"perplexity +{self.method.perplexity_increase}"
        services.say(
            f"budget: {what}, on {where}. The strength of {name} is adapted during training and "
            f"starts at {self._controller.start:g}."
        )

    def weights(self, named: NamedParams, step: StepInfo) -> None:
        assert (
            self._controller is not None
            and self._adapted is not None
            and self._services is not None
        )  # prepared
        last = step.step == step.total_steps
        if self._rows is None:
            if step.figures is None or step.figures.kl is None:
                return
            self._average(step.figures.kl, 1 / max(1.0, WINDOW * step.total_steps))
        elif last or step.step % self.method.period == 0:
            self._constraint = self._of_rows(self._services.mean_loss(self._rows))
        else:
            return
        assert self._constraint is not None
        if not math.isfinite(self._constraint):
            # every comparison with a NaN is false: the strength would go down to its least without
            # a word
            raise TrainingDiverged(
                f"budget: the forgetting measured after step {step.step} is "
                f"{self._constraint:g} nats per token, so the strength cannot be adapted. Lower "
                "the learning rate, or check the data that the budget is measured on."
            )
        if last:
            where = "held out" if self._rows is not None else "on the training tokens"
            ended = f"{self._constraint:.4g} of {self.method.limit:.4g} nats per token ({where})"
            self._services.say(
                f"budget: ended at {ended}, strength {_strength(self._adapted):.4g}."
            )
            return
        self._adapted.strength = self._controller.strength(
            self._constraint, step=step.step, total=step.total_steps
        )

    def metrics(self, named: NamedParams) -> dict[str, float]:
        figures = {"budget_limit": self.method.limit, "budget_strength": _strength(self._adapted)}
        return (
            figures
            if self._constraint is None
            else {"budget_constraint": self._constraint, **figures}
        )

    def state_dict(self) -> dict[str, Any]:
        c = self._controller
        controller = {} if c is None else {"start": c.start, "integral": c.integral, "last": c.last}
        return {
            **controller,
            "start_ce": self._start_ce,
            "mean": self._mean,
            "weight": self._weight,
            "constraint": self._constraint,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert self._controller is not None  # prepared before a checkpoint is loaded
        c = self._controller
        c.start, c.integral, c.last = state["start"], state["integral"], state["last"]
        self._start_ce, self._mean, self._weight, self._constraint = (
            state[k] for k in ("start_ce", "mean", "weight", "constraint")
        )

    def _of_rows(self, figures: StepFigures) -> float:
        if self.method.kl is None:
            return figures.ce - self._start_ce
        assert figures.kl is not None  # label annealing is there
        return figures.kl

    def _average(self, value: float, share: float) -> None:
        """An exponential mean without the bias towards its beginning at 0."""
        self._mean += share * (value - self._mean)
        self._weight += share * (1 - self._weight)
        self._constraint = self._mean / self._weight


def _strength(active: ActiveMethod | None) -> float:
    return 0.0 if active is None or active.strength is None else active.strength
