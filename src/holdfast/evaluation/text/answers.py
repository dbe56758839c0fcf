"""What a model says at the answer position of a multiple-choice question, before any option is read to it.

With p the next-token distribution after the prompt ("...\\nAnswer:") over the whole vocabulary and O_i the tokens that
say option i ("A" and " A", as the tokenizer has them):

- mass = sum_i p(O_i): how much of p falls on the options at all. The answer's format is learnt when it stays at 0.95 or
  more.
- entropy = -sum_v p_v log p_v in nats, over the vocabulary, and option_entropy of p(O_i) / mass over the options. A
  steady decline after the format is learnt is over-confidence.
- the answer is the option with the largest p(O_i); probabilities are p(O_i) / mass, from which calibration is read.

Questions come from a harness task, with its prompts and few-shot examples. Every option must be one token: letters, yes
/ no. One forward a question, shared beginnings computed once (`shared_prefix`).

Source: the format and knowledge alignment of the stages of forgetting (paper 001, section 5).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.errors import ConfigError, DataError, ModelError
from holdfast.evaluation.entries import TaskEntry
from holdfast.evaluation.measures import Outcome, Subject
from holdfast.statistics.estimates import Ratio

_FIGURES = {
    "mass": Ratio(numerator="mass", unit="probability", higher_is_better=True),
    "aligned": Ratio(numerator="aligned", unit="share of questions", higher_is_better=True),
    "entropy": Ratio(numerator="entropy", unit="nats"),
    "option_entropy": Ratio(numerator="option_entropy", unit="nats"),
    "acc": Ratio(numerator="acc", unit="accuracy", higher_is_better=True),
}


ALIGNED = 0.95
"""The mass from which on the answer's format counts as learnt."""


def measure(entry: TaskEntry, on: Subject) -> Outcome:
    """The distribution at the answer position of every question, see `holdfast.evaluation.measures.measure`.

    Raises:
        ConfigError: the task is no multiple choice, or no such task. DataError: its data does not fit, or an option is
            empty.
        ModelError: an option that is not one token.
    """
    from holdfast.evaluation.tasks import harness

    with harness.harness_model(entry, on) as lm:
        tasks = harness.load(entry, on)
        questions = [
            question
            for name, task in tasks.items()
            for question in _questions(name, task, entry, lm, several=len(tasks) > 1)
        ]
        tokens = _OptionTokens(on.tokenizer, entry)
        options = [[tokens.of(text) for text in question["choices"]] for question in questions]
        contexts = [context for _, context, _ in lm.encode_pairs([(q.pop("context"), " ") for q in questions])]
        found = _distributions(on, contexts, options, length=lm.max_length)
    rows = []
    for question, distribution in zip(questions, found, strict=True):
        shares, gold = distribution["shares"], question["gold"]
        mass = sum(shares)
        probabilities = [share / mass if mass > 0 else 1 / len(shares) for share in shares]
        answer = max(range(len(shares)), key=shares.__getitem__)
        rows.append(
            {
                **question,
                "entropy": distribution["entropy"],
                "mass": mass,
                "aligned": float(mass >= ALIGNED),
                "option_entropy": -sum(p * math.log(p) for p in probabilities if p > 0),
                "probabilities": probabilities,
                "answer": answer,
                "acc": float(answer in gold if isinstance(gold, list) else answer == gold),
            }
        )
    return Outcome(rows=rows, figures=_FIGURES, settings=harness.settled(tasks))


def check(entry: TaskEntry, tokenizer: Any) -> None:
    """Finds out without a model whether the options are single tokens.

    Raises:
        as `measure`.
    """
    from holdfast.evaluation.tasks import harness

    tokens = _OptionTokens(tokenizer, entry)
    for task in harness.check_task(entry, tokenizer).values():
        _refuse_no_choice(task, entry)
        for doc in itertools.islice(task.eval_docs, 8):
            for text in task.doc_to_choice(doc):
                tokens.of(str(text))


class _OptionTokens:
    """Which tokens say an option: with and without a space before it, as far as each is one token."""

    def __init__(self, tokenizer: Any, entry: TaskEntry) -> None:
        self.tokenizer = tokenizer
        self.entry = entry
        self.known: dict[str, list[int]] = {}

    def of(self, text: str) -> list[int]:
        if text not in self.known:
            bare = text.strip()
            if not bare:
                raise DataError(
                    f"{self.entry.suite}/{self.entry.name}: an option is empty ({text!r}), so no token can say it. "
                    f"Check the choices."
                )
            ids = [self.tokenizer(form, add_special_tokens=False)["input_ids"] for form in (f" {bare}", bare)]
            single = sorted({one[0] for one in ids if len(one) == 1})
            if not single:
                raise ModelError(
                    f"`answers` needs options that are one token each, but the tokenizer has {bare!r} as "
                    f"{len(ids[0])} tokens "
                    f"({self.tokenizer.convert_ids_to_tokens(ids[0])}). Use a task with lettered options (mmlu, "
                    f"lettered), or "
                    f"`task: {self.entry.task}`, which scores options of any length."
                )
            self.known[text] = single
        return self.known[text]


def _refuse_no_choice(task: Any, entry: TaskEntry) -> None:
    if getattr(task, "OUTPUT_TYPE", None) != "multiple_choice" or getattr(task, "multiple_input", 0):
        raise ConfigError(
            f"{entry.suite}/{entry.name}: `answers` needs a task with options to choose from, and {entry.task} has "
            f"none. Use `task`."
        )


def _questions(name: str, task: Any, entry: TaskEntry, lm: Any, *, several: bool) -> list[dict[str, Any]]:
    from lm_eval.utils import hash_string

    from holdfast.evaluation.tasks.harness import build_requests, document_hash

    _refuse_no_choice(task, entry)
    build_requests(task, entry, lm)
    questions = []
    for request in task.instances:
        if request.idx > 0:  # one request an option, all with the same prompt
            continue
        doc, gold = request.doc, task.doc_to_target(request.doc)
        choices = [str(choice) for choice in task.doc_to_choice(doc)]
        questions.append(
            {
                "doc": document_hash(doc),
                "prompt": hash_string(request.args[0]),
                **({"task": name} if several else {}),
                "question": str(task.doc_to_text(doc)),
                "choices": choices,
                "gold": choices.index(gold) if isinstance(gold, str) else gold,
                "context": request.args[0],
            }
        )
    return questions


def _distributions(
    on: Subject, contexts: Sequence[list[int]], options: Sequence[Sequence[Sequence[int]]], *, length: int
) -> list[dict[str, Any]]:
    """{"entropy": nats over the vocabulary, "shares": p(O_i)} of every context."""
    import torch

    from holdfast.evaluation.text.perplexity import entropies
    from holdfast.evaluation.text.shared_prefix import PackedRow, Path, scorer_for
    from holdfast.ops.heads import project

    # a path's last state predicts its target, whichever token that is
    paths = [Path(index=index, ids=tuple(ids[-length:]), targets=(0,)) for index, ids in enumerate(contexts)]
    scorer = scorer_for(on.model, paths)

    def find(row: PackedRow) -> Iterator[dict[str, Any]]:
        states = scorer.states(row)[torch.as_tensor([int(where[-1]) for where in row.where])]
        parts = states.to(scorer.head.weight_VH.device).split(64)
        logp_NV = torch.cat([project(part, scorer.head).log_softmax(-1) for part in parts])
        for path, logp_V, entropy in zip(row.paths, logp_NV, entropies(logp_NV).double().tolist(), strict=True):
            shares = [float(logp_V[list(tokens)].double().exp().sum()) for tokens in options[path.index]]
            yield {"entropy": entropy, "shares": shares}

    return scorer.answers(paths, name="answer", find=find, partial=on.partial, report=on.report)
