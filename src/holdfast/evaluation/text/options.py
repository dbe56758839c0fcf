"""Options of a question by their likelihood: scores, the probabilities among the options, and the likeliest one.

score(o) = log p(o | x) / |o|  (or the sum)      p(o) = softmax_o score(o)      answer = argmax_o score(o)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.evaluation.measures import Subject
from holdfast.evaluation.modes import evaluation_mode
from holdfast.evaluation.text.perplexity import resolve_window
from holdfast.evaluation.text.shared_prefix import Request, paths_of, scorer_for


@dataclass(frozen=True, kw_only=True)
class Scored:
    """The options of one question, in order."""

    loglikelihoods: list[float]
    """Nats."""
    tokens: list[int]
    scores: list[float]
    probabilities: list[float]
    """Of the scores, among the options; their sum is 1."""
    total: float
    """The logarithm of the scores' sum of exponentials."""

    @property
    def answer(self) -> int:
        """The option with the largest score."""
        return self.scores.index(max(self.scores))


def score_options(
    on: Subject, questions: Sequence[Sequence[Request]], *, name: str, length_normalised: bool = True
) -> list[Scored]:
    """Scores every question's options; what an interrupted call had scored is not scored again.

    Args:
        on: the model.
        questions: of each question the options as (context, continuation) token ids.
        name: what an option is called where finished ones are kept.
        length_normalised: divides by the tokens of an option; False takes the sum.

    Raises:
        DataError: an option that adds no token, or more tokens than the model takes.
    """
    length, _ = resolve_window(on.model)
    paths = paths_of([request for question in questions for request in question], length=length)
    with evaluation_mode(on.model):
        scorer = scorer_for(on.model, paths)
        found = scorer.answers(paths, name=name, partial=on.partial, report=on.report)
    scored, answers = [], zip(found, paths, strict=True)
    for question in questions:
        here = [(float(answer[0]), len(path.targets)) for _, (answer, path) in zip(question, answers, strict=False)]
        logs, tokens = [log for log, _ in here], [count for _, count in here]
        scores = [log / count for log, count in here] if length_normalised else logs
        top = max(scores)
        total = top + math.log(sum(math.exp(score - top) for score in scores))
        probabilities = [math.exp(score - total) for score in scores]
        scored.append(
            Scored(loglikelihoods=logs, tokens=tokens, scores=scores, probabilities=probabilities, total=total)
        )
    return scored
