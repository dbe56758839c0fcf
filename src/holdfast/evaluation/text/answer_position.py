"""What a model says at the answer position of a multiple-choice question, before any option is read
to it: for the kinds `answer_distribution` (tasks of the harness) and `multiple_choice_letters`
(files).

With p the next-token distribution after the prompt ("...\\nAnswer:") over the whole vocabulary and
O_i the tokens that say option i ("A" and " A", as the tokenizer has them):

- mass = sum_i p(O_i): how much of p falls on the options at all. The answer's format is learnt when
  it stays at 0.95 or more.
- entropy = -sum_v p_v log p_v in nats, over the vocabulary, and option_entropy of p(O_i) / mass
  over the options. A steady decline after the format is learnt is over-confidence.
- the answer is the option with the largest p(O_i); probabilities are p(O_i) / mass.

Every option must be one token: letters, yes / no. One forward a question, shared beginnings
computed once (`shared_prefix`); logits and their logarithms are float32.

Source: the format and knowledge alignment of the stages of forgetting (Pattern Shifting or
Knowledge Losing, section 5).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.errors import DataError, ModelError
from holdfast.evaluation.entries import Entry
from holdfast.evaluation.images import ImagePrompt, ImageQuestion
from holdfast.evaluation.measures import Subject
from holdfast.evaluation.text.options import ACCURACY, Question, ask
from holdfast.statistics.estimates import Ratio

FIGURES = {
    "mass": Ratio(numerator="mass", unit="probability", higher_is_better=True),
    "aligned": Ratio(numerator="aligned", unit="share of questions", higher_is_better=True),
    "entropy": Ratio(numerator="entropy", unit="nats"),
    "option_entropy": Ratio(numerator="option_entropy", unit="nats"),
    "acc": ACCURACY,
}
"""Means over questions of the columns that `answered` makes."""

ALIGNED = 0.95
"""The mass from which on the answer's format counts as learnt."""


class OptionTokens:
    """Which tokens say an option: with and without a space before it, as far as each is one token.

    Args:
        tokenizer: of the model.
        entry: what asks, for messages.
        advice: what to use where an option is no single token, for the message.
    """

    def __init__(self, tokenizer: Any, entry: Entry, *, advice: str) -> None:
        self.tokenizer = tokenizer
        self.entry = entry
        self.advice = advice
        self.known: dict[str, list[int]] = {}

    def of(self, text: str) -> list[int]:
        """Ids of the tokens that say an option, sorted, at least one.

        Raises:
            DataError: the option is empty.
            ModelError: the tokenizer has it as several tokens, with a space before it and without.
        """
        if text not in self.known:
            bare = text.strip()
            if not bare:
                raise DataError(
                    f"{self.entry.path}: an option is empty ({text!r}), so no token stands for it. "
                    "Check the choices."
                )
            forms = [self._ids(f" {bare}"), self._ids(bare)]
            mark, behind_mark = self._ids(":"), self._ids(f":{bare}")
            # SentencePiece begins every text with a space; behind a mark it does not
            if behind_mark[: len(mark)] == mark:
                forms.append(behind_mark[len(mark) :])
            single = sorted({ids[0] for ids in forms if len(ids) == 1})
            if not single:
                raise ModelError(
                    f"`{self.entry.kind}` needs options that are one token each, but the tokenizer "
                    f"splits {bare!r} into {len(forms[0])} tokens "
                    f"({self.tokenizer.convert_ids_to_tokens(forms[0])}). {self.advice}"
                )
            self.known[text] = single
        return self.known[text]

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])


def distributions(
    on: Subject,
    contexts: Sequence[list[int] | ImagePrompt],
    options: Sequence[Sequence[Sequence[int]]],
    *,
    length: int,
) -> list[dict[str, Any]]:
    """What the model says behind every context.

    Args:
        on: the model.
        contexts: token ids, none empty, or prompts with images; ids of more than `length` lose
            their beginning.
        options: of every context and option the ids that say it.
        length: the most tokens that the model takes.

    Returns:
        In order {"entropy": nats over the vocabulary, "shares": p(O_i), "nats": -log p(O_i)}.
    """
    import torch

    from holdfast.evaluation.text.perplexity import entropies
    from holdfast.evaluation.text.shared_prefix import PackedRow, Scorer
    from holdfast.ops.heads import project

    questions: list[Question] = []
    for context in contexts:  # a path's last state predicts its target, whichever token that is
        if isinstance(context, ImagePrompt):
            questions.append(ImageQuestion(prompt=context, continuations=((0, (0,)),)))
        else:
            questions.append([(context, (0,))])

    def find(scorer: Scorer, numbers: Sequence[int], row: PackedRow) -> Iterator[dict[str, Any]]:
        states = scorer.states(row)[torch.as_tensor([int(places[-1]) for places in row.where])]
        slices = states.to(scorer.head.weight_VH.device).split(64)
        logp_NV = torch.cat([project(slice_NH, scorer.head).log_softmax(-1) for slice_NH in slices])
        for path, logp_V, entropy in zip(
            row.paths, logp_NV, entropies(logp_NV).double().tolist(), strict=True
        ):
            shares, nats = [], []
            for tokens in options[numbers[path.index]]:
                logs = logp_V[list(tokens)].double()
                shares.append(float(logs.exp().sum()))
                # a share is 0 where float64 cannot say how little it is
                nats.append(-float(logs.logsumexp(-1)))
            yield {"entropy": entropy, "shares": shares, "nats": nats}

    return [answer for [answer] in ask(on, questions, name="answer", length=length, find=find)]


def answered(distribution: dict[str, Any], gold: int | list[int]) -> dict[str, Any]:
    """A question's columns, out of one of `distributions`.

    Args:
        distribution: of the question.
        gold: index of the right option, or of all that are right.
    """
    shares = distribution["shares"]
    mass = sum(shares)
    probabilities = (
        [share / mass for share in shares] if mass > 0 else [1 / len(shares)] * len(shares)
    )
    answer = shares.index(max(shares))
    return {
        "entropy": distribution["entropy"],
        "mass": mass,
        "aligned": float(mass >= ALIGNED),
        "option_entropy": -sum(p * math.log(p) for p in probabilities if p > 0),
        "probabilities": probabilities,
        "answer": answer,
        "acc": float(answer in gold if isinstance(gold, list) else answer == gold),
    }
