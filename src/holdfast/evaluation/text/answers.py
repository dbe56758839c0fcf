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

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from holdfast.errors import ConfigError, DataError, ModelError
from holdfast.evaluation.entries import EvaluationPlan, TaskEntry
from holdfast.evaluation.measures import Outcome, Report, figures
from holdfast.evaluation.modes import evaluation_mode
from holdfast.evaluation.partial import Partial
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


def score_answers(
    model: Any,
    tokenizer: Any,
    entry: TaskEntry,
    *,
    batch_size: int = 8,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    partial: Partial | None = None,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The distribution at the answer position of every question of a task.

    Args:
        model: a Hugging Face causal LM.
        tokenizer: its tokenizer.
        entry: the task.
        batch_size: questions a forward pass where a model cannot share beginnings.
        seed: of the few-shot examples.
        progress: called with (questions done, questions in all).
        partial: where finished questions are kept.

    Returns:
        Rows of the kind "answers" (see `holdfast.records.evaluation.Evaluation`), and what was settled on (examples
        shown, subtasks).

    Raises:
        ConfigError: the task is no multiple choice, or no such task. DataError: its data does not fit, or an option is
            empty.
        ModelError: an option that is not one token.
    """
    from holdfast.evaluation.tasks import harness
    from holdfast.evaluation.tasks.harness_model import SharedPrefixLM
    from holdfast.evaluation.text.perplexity import resolve_window

    partial = partial or Partial(None)
    with ExitStack() as stack:
        tasks = stack.enter_context(harness.tasks_in_use(model, tokenizer, entry, seed=seed))
        stack.enter_context(evaluation_mode(model))
        window, _ = resolve_window(model)
        lm = SharedPrefixLM(model, tokenizer, batch_size=batch_size, length=window)
        questions = [
            question
            for name, task in tasks.items()
            for question in _questions(name, task, entry, lm, several=len(tasks) > 1)
        ]
        tokens = _OptionTokens(tokenizer, entry)
        for question in questions:
            question["tokens"] = [tokens.of(text) for text in question.pop("texts")]
        contexts = [context for _, context, _ in lm.encode_pairs([(q.pop("context"), " ") for q in questions])]
        for index, found in _distributions(
            lm, contexts, [q["tokens"] for q in questions], partial, progress or (lambda done, total: None)
        ):
            questions[index].update(found)
    rows = []
    for question in questions:
        del question["tokens"]
        shares = question.pop("shares")
        mass = sum(shares)
        probabilities = [share / mass if mass > 0 else 1 / len(shares) for share in shares]
        answer = max(range(len(shares)), key=shares.__getitem__)
        gold = question["gold"]
        rows.append(
            {
                **question,
                "mass": mass,
                "aligned": float(mass >= ALIGNED),
                "option_entropy": -sum(p * math.log(p) for p in probabilities if p > 0),
                "probabilities": probabilities,
                "answer": answer,
                "acc": float(answer in gold if isinstance(gold, list) else answer == gold),
            }
        )
    return rows, harness.settled(tasks)


def check(entry: TaskEntry, tokenizer: Any) -> None:
    """Finds out without a model whether the options are single tokens.

    Raises:
        as `score_answers`.
    """
    from holdfast.evaluation.tasks import harness

    tokens = _OptionTokens(tokenizer, entry)
    for task in harness.check_task(tokenizer, entry).values():
        _refuse_no_choice(task, entry)
        for index, doc in enumerate(task.eval_docs):
            if index >= 8:
                break
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
        doc, choices, gold = (
            request.doc,
            [str(c) for c in task.doc_to_choice(request.doc)],
            task.doc_to_target(request.doc),
        )
        questions.append(
            {
                "doc": document_hash(doc),
                "prompt": hash_string(request.args[0]),
                **({"task": name} if several else {}),
                "question": str(task.doc_to_text(doc)),
                "choices": choices,
                "gold": choices.index(gold) if isinstance(gold, str) else gold,
                "context": request.args[0],
                "texts": choices,
            }
        )
    return questions


def _distributions(
    lm: Any,
    contexts: Sequence[list[int]],
    options: Sequence[Sequence[Sequence[int]]],
    partial: Partial,
    progress: Callable[[int, int], None],
) -> list[tuple[int, Mapping[str, Any]]]:
    """(index, {"entropy", "shares"}) of every context: nats over the vocabulary, and p(O_i)."""
    import torch

    from holdfast.evaluation.text.shared_prefix import Path, rows_alone, scorer_for
    from holdfast.ops.heads import project

    # a path's last state predicts its target, whichever token that is
    paths = [Path(index=index, ids=tuple(ids[-lm.max_length :]), targets=(0,)) for index, ids in enumerate(contexts)]
    scorer = scorer_for(lm.model, length=lm.max_length, paths=paths)
    found: dict[int, Mapping[str, Any]] = {
        i: partial.found[f"answer {i}"] for i in range(len(paths)) if f"answer {i}" in partial.found
    }
    rows, scorer = (scorer.rows(paths), scorer) if scorer is not None else rows_alone(lm.model, paths)
    done = 0
    for row in rows:
        if any(path.index not in found for path in row.paths):
            states = scorer.states(row)[torch.as_tensor([int(where[-1]) for where in row.where])]
            logp_NV = torch.cat(
                [
                    project(part, scorer.head).log_softmax(-1)
                    for part in states.to(scorer.head.weight_VH.device).split(64)
                ]
            )
            entropies = -(logp_NV.exp() * logp_NV).nan_to_num(0.0).sum(-1).double()
            for path, logp_V, entropy in zip(row.paths, logp_NV, entropies.tolist(), strict=True):
                shares = [float(logp_V[list(tokens)].double().exp().sum()) for tokens in options[path.index]]
                found[path.index] = {"entropy": entropy, "shares": shares}
            partial.add({f"answer {path.index}": found[path.index] for path in row.paths})
        done += len(row.paths)
        progress(done, len(paths))
    return sorted(found.items())


def measure(
    model: Any, tokenizer: Any, entry: TaskEntry, plan: EvaluationPlan, *, report: Report, partial: Partial
) -> Outcome:
    """See `holdfast.evaluation.measures.measure`."""
    rows, found = score_answers(
        model, tokenizer, entry, batch_size=plan.batch_size, seed=plan.seed, progress=report, partial=partial
    )
    return rows, figures(rows, _FIGURES, plan), "mass", found
