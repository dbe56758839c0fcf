"""What has to be so before a claim of "Overtrained Language Models" may be judged on a study.

- *Overtrained*: the smallest checkpoint has read 20 tokens a parameter or more, all parameters
  counted. Below that a model is not overtrained but undertrained (Hoffmann et al. 2022, which the
  introduction counts from), and the paper says nothing of it: its own ladders begin at 44 to 267
  tokens a parameter without tables (section 3.2).
- *Getting better*: the checkpoints' own loss falls along the ladder. *Sound*: of models that see
  it rises from no budget to the next, so that no tower has cost a checkpoint its language.
- *Retaining*: the study leaves rates out at which everything is lost (`max_perplexity`), not later
  than the paper does (appendix C.1: 6, in nats).
- *Inside, fine*: where rates are tuned, of every way that the claim compares, the tuned one is no
  end of what was tried, and neighbouring rates are a factor of 2 apart at most, as those of table 4
  are. Else a step of the grid passes for an effect.
- *Learning*: direct fine-tuning learns the task at every budget. Of a task with images it is above
  guessing at the smallest and at the largest budget, with the whole interval.
- *Something to delay, to lessen*: of claims on what a method or a smaller rate changes, that direct
  fine-tuning turns, or that its cost grows.
- *Near*: the smallest noise is a tenth of the initial weights' standard deviations, or less (figure
  9: "extremely close to zero on the left").
"""

from __future__ import annotations

import itertools
import math

from holdfast.papers.claims.requirements import Requirement
from holdfast.papers.overtraining.readings import (
    arm_of,
    gain_of,
    growing_settings,
    kept_entry,
    score_of,
    tuned_models,
    tuned_rates,
    turning_settings,
)
from holdfast.papers.overtraining.record import OvertrainingRecord, alike
from holdfast.records.figure import CONFIDENCE, NotMeasured
from holdfast.records.probe import NOISE
from holdfast.studies.engine.space import DIRECT

IMPROVES = 0.1
"""Nats a token that the checkpoints' own loss falls along the ladder, at least."""
WORSE = 0.02
"""Nats a token by which a model that sees may be worse at a budget than at the one before."""
LEARNS = 0.1
"""What direct fine-tuning at the tuned rate brings at every budget, at least, in the unit of the
test's figure: nats a token, or the perplexity of the right class."""
OVERTRAINED = 20.0
"""Tokens a parameter."""
PAPERS_BOUND = 6.0
"""Nats a token, beyond which figure 5 has no rates."""
STEP = 2.0
"""Table 4: the largest ratio of neighbouring learning rates."""
NEAREST = 0.1
"""Of the initial weights' standard deviations."""


def tokens_per_parameter(record: OvertrainingRecord) -> float:
    """Of the smallest checkpoint."""
    smallest = record.checkpoints[0]
    if not smallest.parameters:
        raise NotMeasured("the number of parameters")
    return smallest.tokens / smallest.parameters


def own_losses(record: OvertrainingRecord) -> list[float]:
    """The checkpoints' own loss, the smallest budget first; where nothing was probed, as the
    fine-tunings have measured their start, which has a tower where the task has images."""
    entry = kept_entry(record)
    losses = {}
    for change in alike(record.sensitivities, entry=entry, higher_is_better=False):
        losses[change.model] = change.before
    leads = [record.leading(task, "keep") for task in record.tasks]
    lead = leads[0] if leads else None
    if not record.sensitivities and lead is not None and not lead.higher_is_better:
        for model in record.models:
            score = model.scores.get(lead.key)
            if score is not None and math.isfinite(score.value):
                losses[model.checkpoint] = score.value - model.costs[lead.key].value
    labels = [checkpoint.label for checkpoint in record.checkpoints]
    if any(label not in losses for label in labels):
        raise NotMeasured("the checkpoints' own loss")
    return [losses[label] for label in labels]


def improvement(record: OvertrainingRecord) -> float:
    """How far the checkpoints' own loss falls along the ladder."""
    losses = own_losses(record)
    return losses[0] - losses[-1]


def least_step(record: OvertrainingRecord) -> float:
    """How far their loss falls from one budget to the next, at least."""
    return min(before - after for before, after in itertools.pairwise(own_losses(record)))


def bound_in_nats(record: OvertrainingRecord) -> float:
    """Loss beyond which the study leaves rates out; infinite where it leaves none out."""
    most = record.config.get("max_perplexity")
    return math.log(most) if most else math.inf


def _label(record: OvertrainingRecord, kind: str) -> str:
    return record.direct if kind == DIRECT else arm_of(record, kind)


def edges(record: OvertrainingRecord, kind: str) -> float:
    """Budgets, over all tasks, at which a way's tuned rate is an end of what was tried."""
    label = _label(record, kind)
    # nothing was chosen
    alone = any(len(arm.rates) < 2 for arm in alike(record.arms, label=label))
    count = 0
    for task in record.tasks:
        rates = tuned_rates(record, task, label)
        if not rates:
            raise NotMeasured("tuned learning rates")
        count += sum(alone or bool(rate.edge) for rate in rates)
    return float(count)


def coarsest_step(record: OvertrainingRecord, kind: str) -> float:
    """The largest ratio of neighbouring rates that were tried of a way."""
    label = _label(record, kind)
    ratios = []
    for arm in alike(record.arms, label=label):
        ratios += [larger / smaller for smaller, larger in itertools.pairwise(arm.rates)]
    if not ratios:
        raise NotMeasured("a second learning rate")
    return max(ratios)


def least_learnt(record: OvertrainingRecord) -> float:
    """The least that direct fine-tuning at tuned rates brings to a task."""
    gains = []
    for task in record.tasks:
        models = tuned_models(record, task)
        known = [gain_of(record, model) for model in models]
        gains += [gain.value for gain in known if gain is not None]
    if not gains or len(gains) < len(record.tasks) * len(record.checkpoints):
        raise NotMeasured("the task score at every budget")
    return min(gains)


def above_chance(record: OvertrainingRecord) -> float:
    """By how much direct fine-tuning at its tuned rates is above guessing at the ends of the
    ladder: the least lower end of an interval, less chance."""
    lows = []
    for task in record.tasks:
        lead, models = record.leading(task, "learn"), tuned_models(record, task)
        if lead is None or lead.chance is None or len(models) < len(record.checkpoints):
            raise NotMeasured("the VLM score and the score of guessing")
        for end in (0, -1):
            score = score_of(record, models[end])
            interval = None if score is None else score.interval_at(CONFIDENCE)
            if interval is None:
                raise NotMeasured("the VLM score with its interval")
            lows.append(interval[0] - lead.chance)
    if not lows:
        raise NotMeasured("the VLM score and the score of guessing")
    return min(lows)


def smallest_noise(record: OvertrainingRecord) -> float:
    """Gamma."""
    sizes = [change.size for change in alike(record.sensitivities, kind=NOISE)]
    if not sizes:
        raise NotMeasured("noise")
    return min(sizes)


OVERTRAINED_LADDER = Requirement(
    name="the ladder is overtrained",
    of=tokens_per_parameter,
    at_least=OVERTRAINED,
    figure="tokens per parameter at the smallest budget",
    advice="leave out the smallest budgets, or use a smaller model",
)
IMPROVING = Requirement(
    name="the checkpoints get better with longer pre-training",
    of=improvement,
    at_least=IMPROVES,
    figure="loss of the unmodified checkpoint at the smallest budget, minus its loss at the "
    "largest",
    advice="use budgets that are further apart",
)
SOUND = Requirement(
    name="adding a vision tower does not make the checkpoints worse on text",
    of=least_step,
    at_least=-WORSE,
    figure="smallest decrease of the loss on text from one budget to the next, before the task is "
    "trained (stage 2)",
    advice="check the vision tower: if it makes a checkpoint worse on text, this would count as "
    "forgetting by fine-tuning",
)
RETAINING = Requirement(
    name="learning rates at which the model forgets everything are left out",
    of=bound_in_nats,
    at_most=PAPERS_BOUND,
    figure="loss in nats above which a learning rate is left out",
    advice="set max_perplexity: 403, or less if the vocabulary is smaller than 50,304",
)
LEARNING = Requirement(
    name="direct fine-tuning learns the task at every budget",
    of=least_learnt,
    at_least=LEARNS,
    figure="smallest gain on a task's test data at the tuned learning rates",
    advice="train longer or on more rows",
)
SEEING = Requirement(
    name="direct fine-tuning scores better than guessing at the smallest and the largest budget",
    of=above_chance,
    at_least=0.0,
    figure="lower end of the VLM score's interval at the tuned learning rates, minus the score of "
    "guessing",
    advice="train longer or on more pictures",
)
NEAR_ENOUGH = Requirement(
    name="the smallest noise is small enough to stay near the checkpoint",
    of=smallest_noise,
    at_most=NEAREST,
    figure="smallest noise",
    advice="probe with smaller noise",
)


def inside(kind: str = DIRECT) -> Requirement:
    """Of a way to fine-tune: its tuned rate is no end of the grid."""
    return Requirement(
        name=f"the tuned learning rate of {kind} is not at an end of the grid",
        of=lambda record: edges(record, kind),
        at_most=0.0,
        figure=f"number of budgets at which the tuned learning rate of {kind} is at an end of "
        "the grid",
        advice="try more learning rates beyond that end of the grid",
    )


def fine(kind: str = DIRECT) -> Requirement:
    """Of a way to fine-tune: its rates are as close together as the paper's."""
    return Requirement(
        name=f"the learning rates of {kind} are as close together as in the paper's table 4",
        of=lambda record: coarsest_step(record, kind),
        at_most=STEP,
        figure="largest ratio of neighbouring learning rates",
        advice="try learning rates between the neighbouring ones",
    )


def something_to_delay(*, at_fixed_rates: bool) -> Requirement:
    """Direct fine-tuning turns."""
    at = "an included learning rate" if at_fixed_rates else "its tuned learning rates"
    return Requirement(
        name=f"at {at}, direct fine-tuning has an inflection point that a method could delay",
        of=lambda record: len(turning_settings(record, at_fixed_rates=at_fixed_rates)),
        at_least=1.0,
        figure="number of tasks and learning rates with an inflection point",
        advice="use larger budgets or more seeds",
    )


def something_to_lessen(*, at_fixed_rates: bool) -> Requirement:
    """The cost of direct fine-tuning grows."""
    at = "an included learning rate" if at_fixed_rates else "its tuned learning rates"
    return Requirement(
        name=f"forgetting by direct fine-tuning grows with the budget at {at}",
        of=lambda record: len(growing_settings(record, at_fixed_rates=at_fixed_rates)),
        at_least=1.0,
        figure="number of tasks and learning rates at which forgetting grows",
        advice="use larger budgets or more seeds",
    )


CONTROLLED = (OVERTRAINED_LADDER, IMPROVING)
"""Of the claims of section 3."""
FIXED = (*CONTROLLED, RETAINING)
TUNED = (*CONTROLLED, inside(), fine(), LEARNING)
PUBLIC = (IMPROVING, inside(), LEARNING)
"""Of ladders that others have trained: the paper's own begin at 11 tokens a parameter (table 1),
and table 2 has seven rates."""
SEEN_FIXED = (*FIXED, SOUND, SEEING)
SEEN_TUNED = (*CONTROLLED, SOUND, inside(), SEEING)
