"""Options of a question by their likelihood: scores, the probabilities among the options, and the likeliest one.

score(o) = log p(o | x) / |o|  (or the sum)      p(o) = softmax_o score(o)      answer = argmax_o score(o)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.errors import DataError
from holdfast.evaluation.eval_mode import evaluation_mode
from holdfast.evaluation.images import Continuation, ImagePrompt, answers_with_images, continuation
from holdfast.evaluation.measures import Subject
from holdfast.evaluation.remarks import remarks_on_cut
from holdfast.evaluation.text.perplexity import resolve_window
from holdfast.evaluation.text.shared_prefix import Request, Scorer, paths_of, scorer_for
from holdfast.statistics.estimates import Ratio

if TYPE_CHECKING:
    from holdfast.evaluation.served import ServedScorer


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


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """The options of one question with images."""

    prompt: ImagePrompt
    options: tuple[Continuation, ...]

    @classmethod
    def of(cls, prompt: ImagePrompt, options: Sequence[str], on: Subject) -> ImageOptions:
        """Options by their texts.

        Raises:
            DataError: an option that adds no token.
        """
        assert on.processor is not None, "rows with images are refused where there is none"
        tokenizer = on.processor().tokenizer
        continuations = []
        for option in options:
            taken, ids = continuation(prompt, option, tokenizer)
            if not ids:
                raise DataError(f"{prompt.place}: the option {option!r} adds no token to the prompt. Write it out.")
            continuations.append((taken, ids))
        return cls(prompt=prompt, options=tuple(continuations))


def score_options(
    on: Subject,
    questions: Sequence[Sequence[Request] | ImageOptions],
    *,
    name: str,
    length_normalised: bool = True,
) -> list[Scored]:
    """Scores every question's options; what an interrupted call had scored is not scored again.

    Args:
        on: the model.
        questions: of each question the options as (context, continuation) token ids, or with images.
        name: what an option is called where finished ones are kept.
        length_normalised: divides by the tokens of an option; False takes the sum.

    Raises:
        DataError: an option that adds no token, or more tokens than the model takes; images that the model or its
            processor refuses.
    """
    length, _ = resolve_window(on.model)
    texts = [question for question in questions if not isinstance(question, ImageOptions)]
    with_images = [question for question in questions if isinstance(question, ImageOptions)]
    paths = paths_of(list(itertools.chain(*texts)), length=length)
    total = len(paths) + sum(len(question.options) for question in with_images)
    cut = 0
    for requests in texts:
        cut += max(len(context) + len(ids) for context, ids in requests) > length + 1
    on.notes.extend(remarks_on_cut(cut, len(questions), length))

    def report(done: int, _: int) -> None:
        on.report(done, total)

    with evaluation_mode(on.model):
        scorer = scorer_for(on.model, paths)
        of_texts = iter(scorer.answers(paths, name=name, partial=on.partial, report=report))
        of_images = iter(_with_images(on, scorer, with_images, name=name, length=length, done=len(paths), total=total))
    scored = []
    for question in questions:
        if isinstance(question, ImageOptions):
            answers, tokens = next(of_images), [len(ids) for _, ids in question.options]
        else:
            answers, tokens = list(itertools.islice(of_texts, len(question))), [len(ids) for _, ids in question]
        scored.append(_scored([float(answer[0]) for answer in answers], tokens, length_normalised))
    return scored


def _with_images(
    on: Subject,
    scorer: Scorer | ServedScorer,
    questions: Sequence[ImageOptions],
    *,
    name: str,
    length: int,
    done: int,
    total: int,
) -> list[list[Any]]:
    if not questions:
        return []
    assert isinstance(scorer, Scorer), "served models take no images"
    return answers_with_images(
        on,
        scorer,
        [question.prompt for question in questions],
        [question.options for question in questions],
        name=f"{name} of an image",
        length=length,
        report=lambda more, _: on.report(done + more, total),
    )


def _scored(logs: list[float], tokens: list[int], length_normalised: bool) -> Scored:
    scores = logs
    if length_normalised:
        scores = [log / count for log, count in zip(logs, tokens, strict=True)]
    top = max(scores)
    total = top + math.log(sum(math.exp(score - top) for score in scores))
    probabilities = [math.exp(score - total) for score in scores]
    return Scored(loglikelihoods=logs, tokens=tokens, scores=scores, probabilities=probabilities, total=total)
