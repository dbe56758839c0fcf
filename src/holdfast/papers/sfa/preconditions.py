"""What has to be so before a rule on "Soup to Go" may speak.

- Each task is learnt, and sequential fine-tuning forgets the old one.
- The regime of the paper, in which sequential fine-tuning forgets "almost everything" (section 6.1):
  it loses at least half of what was learnt. Where it does not, there is little for any method to
  keep, and which of them keeps it says nothing of the paper's claims. Claims that say how much is
  forgotten do not ask for it.
- Where a method is beaten, its grid reaches beyond its best setting on both sides: another setting
  of it might do better otherwise.
"""

from __future__ import annotations

from holdfast.papers.claims.requirements import Requirement
from holdfast.papers.sfa.cases import (
    NAMES,
    Pair,
    every_task,
    least,
    lower_end,
    orders,
    pairs,
    settings_beyond,
)
from holdfast.records.sequence import SequenceRecord

REGIME = 0.5


def measured_pairs(record: SequenceRecord) -> list[Pair]:
    """Every order with each of its old tasks; none before anything was measured."""
    return pairs(record) if record.tasks else []


LEARNS = Requirement(
    name="{case.old} is learnt ({case.path})",
    cases=every_task,
    of=lambda pair: lower_end(pair.gained(pair.old)),
    at_least=lambda pair: least(pair.unit),
    figure="gain over the base from training {case.old} alone (lower end of the interval)",
    advice="train this task longer or at a higher learning rate (the study needs the arm 'single')",
)
FORGETS = Requirement(
    name="{case.old} is forgotten ({case.where})",
    cases=measured_pairs,
    of=lambda pair: lower_end(pair.forgotten),
    at_least=lambda pair: least(pair.unit),
    figure="gain on {case.old} that sequential fine-tuning loses (lower end of the interval)",
    advice="train the later task longer, or choose tasks that are less alike",
)
FORGETS_MOST = Requirement(
    name="most of {case.old} is forgotten ({case.where})",
    cases=measured_pairs,
    of=lambda pair: pair.share(pair.forgotten, pair.old).value,
    at_least=REGIME,
    figure="the share of the gain on {case.old} that sequential fine-tuning loses",
    advice="train the later task longer or at a higher learning rate, or choose tasks that are "
    "less alike",
)


def brackets(kind: str) -> Requirement:
    """The grid of a method reaches beyond its best setting on both sides."""
    return Requirement(
        name=f"the best setting of {NAMES[kind]} is inside its grid ({{case.path}})",
        cases=lambda record: orders(record) if record.tasks else [],
        of=lambda pair: settings_beyond(pair, kind),
        at_least=1,
        figure="the number of settings in the grid below or above the best one, whichever is "
        "smaller",
        advice="extend the grid beyond its best setting",
    )
