"""The kinds of entries, one a file: settings, what is asked of a model, and the figures that come
out. A new kind is a class in a file of its own and one line here."""

from __future__ import annotations

from holdfast.evaluation.entries import Entry
from holdfast.evaluation.kinds.answer_distribution import AnswerDistributionEntry
from holdfast.evaluation.kinds.behaviour import BehaviourEntry
from holdfast.evaluation.kinds.classification import ClassificationEntry
from holdfast.evaluation.kinds.code import CodeEntry
from holdfast.evaluation.kinds.instructions import InstructionsEntry
from holdfast.evaluation.kinds.multiple_choice import MultipleChoiceEntry
from holdfast.evaluation.kinds.multiple_choice_letters import LettersEntry
from holdfast.evaluation.kinds.own import OwnEntry
from holdfast.evaluation.kinds.perplexity import MemorisationEntry, PerplexityEntry
from holdfast.evaluation.kinds.task import TaskEntry
from holdfast.evaluation.kinds.win_rate import WinRateEntry

_CLASSES: tuple[type[Entry], ...] = (
    PerplexityEntry,
    TaskEntry,
    AnswerDistributionEntry,
    MemorisationEntry,
    ClassificationEntry,
    MultipleChoiceEntry,
    LettersEntry,
    InstructionsEntry,
    BehaviourEntry,
    WinRateEntry,
    CodeEntry,
    OwnEntry,
)
KINDS: dict[str, type[Entry]] = {cls.kind: cls for cls in _CLASSES}
"""By name, which is the key that says what an entry of a suite is."""
