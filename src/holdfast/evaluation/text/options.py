"""Options of a question by their likelihood: scores, the probabilities among the options, and the
likeliest one.

score(o) = log p(o | x) / |o|  (or the sum)      p(o) = softmax_o score(o)      answer = argmax_o
score(o)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.evaluation.eval_mode import evaluation_mode
from holdfast.evaluation.images import ImageQuestion, answers_with_images
from holdfast.evaluation.measures import Subject
from holdfast.evaluation.remarks import remarks_on_cut
from holdfast.evaluation.text.perplexity import resolve_window
from holdfast.evaluation.text.shared_prefix import PackedRow, Request, Scorer, paths_of, scorer_for
from holdfast.statistics.estimates import Ratio

ACCURACY = Ratio(numerator="acc", unit="accuracy", higher_is_better=True)


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


Question = Sequence[Request] | ImageQuestion
"""What is scored behind one prompt: (context, continuation) token ids, or continuations of a prompt
with images."""
Find = Callable[[Any, Sequence[int], PackedRow], Iterable[Any]]
"""The answers to a row's paths in order; takes the scorer, and by the `index` of a path the number
of its question."""


def score_options(
    on: Subject, questions: Sequence[Question], *, name: str, length_normalised: bool = True
) -> list[Scored]:
    """Scores every question's options.

    Args:
        on: the model.
        questions: with their options as continuations.
        name: what an option is called where finished ones are kept.
        length_normalised: divides by the tokens of an option; False takes the sum.

    Raises:
        DataError: as `ask`.
    """
    length, _ = resolve_window(on.model)
    scored = []
    for question, answers in zip(
        questions, ask(on, questions, name=name, length=length), strict=True
    ):
        options = question.continuations if isinstance(question, ImageQuestion) else question
        tokens = [len(ids) for _, ids in options]
        scored.append(_scored([float(answer[0]) for answer in answers], tokens, length_normalised))
    return scored


def ask(
    on: Subject, questions: Sequence[Question], *, name: str, length: int, find: Find | None = None
) -> list[list[Any]]:
    """What `find` gives for every continuation of every question; what an interrupted call had is
    not asked again.

    Args:
        on: the model.
        questions: of text, or with images.
        name: what an answer is called where finished ones are kept.
        length: the most tokens that the model takes; longer contexts lose their beginning.
        find: None: the log-likelihood, and whether every token was the most likely one.

    Raises:
        DataError: a continuation without a token, or of more than the model takes; images that the
            model or its processor refuses.
    """
    requests: list[Request] = []
    of_texts: list[int] = []  # the question of each request
    with_images: list[ImageQuestion] = []
    of_images: list[int] = []
    cut = 0
    for number, question in enumerate(questions):
        if isinstance(question, ImageQuestion):
            with_images.append(question)
            of_images += [number] * len(question.continuations)
            continue
        requests += question
        of_texts += [number] * len(question)
        cut += max(len(context) + len(ids) for context, ids in question) > length + 1
    on.notes.extend(remarks_on_cut(cut, len(questions), length))
    paths = paths_of(requests, length=length)
    total = len(paths) + len(of_images)
    with evaluation_mode(on.model):
        scorer = scorer_for(on.model, paths)
        answers = scorer.answers(
            paths,
            name=name,
            find=find and functools.partial(find, scorer, of_texts),
            partial=on.partial,
            report=lambda done, _: on.report(done, total),
        )
        if with_images:
            assert isinstance(scorer, Scorer), "served models take no images"
            answers += answers_with_images(
                on,
                scorer,
                with_images,
                name=f"{name} of an image",
                length=length,
                find=find and functools.partial(find, scorer, of_images),
                report=lambda done, _: on.report(len(paths) + done, total),
            )
    by_question: list[list[Any]] = [[] for _ in questions]
    for number, answer in zip([*of_texts, *of_images], answers, strict=True):
        by_question[number].append(answer)
    return by_question


def _scored(logs: list[float], tokens: list[int], length_normalised: bool) -> Scored:
    scores = logs
    if length_normalised:
        scores = [log / count for log, count in zip(logs, tokens, strict=True)]
    top = max(scores)
    total = top + math.log(sum(math.exp(score - top) for score in scores))
    probabilities = [math.exp(score - total) for score in scores]
    return Scored(
        loglikelihoods=logs, tokens=tokens, scores=scores, probabilities=probabilities, total=total
    )
