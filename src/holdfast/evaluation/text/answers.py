"""What a model says at the answer position of the questions of a harness task, with the task's prompts and few-shot
examples. What is measured stands in `answer_position`; every option must be one token: letters, yes / no.
"""

from __future__ import annotations

import itertools
from typing import Any

from holdfast.errors import ConfigError
from holdfast.evaluation.entries import TaskEntry
from holdfast.evaluation.measures import Outcome, Subject
from holdfast.evaluation.text.answer_position import FIGURES, OptionTokens, answered, distributions


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
        tokens = _tokens(on.tokenizer, entry)
        options = [[tokens.of(text) for text in question["choices"]] for question in questions]
        contexts = [context for _, context, _ in lm.encode_pairs([(q.pop("context"), " ") for q in questions])]
        found = distributions(on, contexts, options, length=lm.max_length)
    rows = [{**question, **answered(one, question["gold"])} for question, one in zip(questions, found, strict=True)]
    return Outcome(rows=rows, figures=FIGURES, settings=harness.settled(tasks, entry))


def check(entry: TaskEntry, tokenizer: Any) -> None:
    """Finds out without a model whether the options are single tokens.

    Raises:
        as `measure`.
    """
    from holdfast.evaluation.tasks import harness

    tokens = _tokens(tokenizer, entry)
    for task in harness.check_task(entry, tokenizer).values():
        _refuse_no_choice(task, entry)
        for doc in itertools.islice(task.eval_docs, 8):
            for text in task.doc_to_choice(doc):
                tokens.of(str(text))


def _tokens(tokenizer: Any, entry: TaskEntry) -> OptionTokens:
    instead = (
        f"Use a task with lettered options (mmlu, lettered), or `task: {entry.task}`, which scores options of any "
        f"length."
    )
    return OptionTokens(tokenizer, f"{entry.suite}/{entry.name}", kind="answers", instead=instead)


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
                "content": f"{choices}{task.doc_to_text(doc)}",
                "gold": choices.index(gold) if isinstance(gold, str) else gold,
                "context": request.args[0],
            }
        )
    return questions
