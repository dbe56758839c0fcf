"""Multiple choice from a file: every question brings its own options, and the likeliest one is the
answer.

For a prompt x and options o of |o| tokens:

    score(o) = log p(o | x) / |o|  (or the sum)      answer = argmax_o score(o)      nats = -log p(gold | x)

The options of one question share its forward pass (`holdfast.evaluation.text.shared_prefix`), so
the prompt is computed once, with its images where it has some (`holdfast.evaluation.images`).
Division by the tokens is the choice of the `classification` kind; lm-evaluation-harness's `acc`
takes the sum and its `acc_norm` divides by bytes, so figures of the two are near each other and not
equal.

What is not done: few-shot examples (they can stand in the prompt) and several right answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.evaluation.entries import Processor
from holdfast.evaluation.images import ImageQuestion
from holdfast.evaluation.measures import Outcome, Subject
from holdfast.evaluation.text.documents import border_ids
from holdfast.evaluation.text.questions import (
    Question,
    QuestionsEntry,
    by_cluster,
    groups_of,
    read_questions,
)


@dataclass(frozen=True, kw_only=True)
class MultipleChoiceEntry(QuestionsEntry):
    """Questions, each with its own options, answered by the likelihood of each option. Rows have
    prompt, options and answer (the index of the right option, from 0)."""

    kind = "multiple_choice"
    former = "choices"

    length_normalised: bool = True
    """Divide an option's log-likelihood by its number of tokens; false: use the sum."""

    def needs_scores(self, tokenizer: Any) -> bool:
        """Always."""
        return True

    def requests(self, tokenizer: Any, processor: Processor | None = None) -> list[Question]:
        """See `Entry.requests`."""
        return read_questions(self, tokenizer, processor)

    def scores(self, requests: list[Question], on: Subject) -> Outcome:
        """See `Entry.scores`."""
        from holdfast.evaluation.text.options import ACCURACY, score_options
        from holdfast.statistics.estimates import TEXT_FIGURES

        prompts: list[Any] = []
        for question in requests:
            if question.images is not None:
                prompts.append(ImageQuestion.of(question.images, question.options, on))
                continue
            texts = [
                border_ids(question.prompt, text, on.tokenizer, chat=question.chat)
                for text in question.options
            ]
            prompts.append(texts)
        answers = score_options(
            on, prompts, name="option", length_normalised=self.length_normalised
        )
        rows = []
        for question, scored in zip(requests, answers, strict=True):
            gold = question.gold
            row = {
                "loglikelihoods": scored.loglikelihoods,
                "probabilities": scored.probabilities,
                "gold": gold,
            }
            row |= {"answer": scored.answer, "acc": float(scored.answer == gold)}
            row |= {"nats": -scored.loglikelihoods[gold], "tokens": scored.tokens[gold]}
            rows.append({**question.sample(), **row})
        if self.cluster is not None:
            rows = by_cluster(rows, requests, means=["acc"])
        figures = {"acc": ACCURACY, "nats_per_token": TEXT_FIGURES["nats_per_token"]}
        return Outcome(rows=rows, figures=figures, settings={"subtasks": groups_of(requests)})
