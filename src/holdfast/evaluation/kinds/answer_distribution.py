"""What a model says at the answer position of the questions of a harness task, with the task's
prompts and few-shot examples. What is measured stands in `answer_position`; every option must be
one token: letters, yes / no.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from holdfast.config.declare import Meta
from holdfast.errors import ConfigError
from holdfast.evaluation.kinds.task import TaskEntry
from holdfast.evaluation.measures import Outcome, Subject

if TYPE_CHECKING:
    from holdfast.evaluation.text.answer_position import OptionTokens

_LOOKED_AT = 8
"""Questions of each task whose options are looked at before anything is measured."""


@dataclass(frozen=True, kw_only=True)
class AnswerDistributionEntry(TaskEntry):
    """One lm-evaluation-harness task or group of tasks, measured by the distribution at the answer
    position."""

    kind = "answer_distribution"
    former = "answers"
    name_suffix = "-answers"
    without = ("metric", "samples", "temperature")
    served = False

    answers: Annotated[bool, Meta(yaml=False)] = True
    """As in `TaskEntry`."""

    def requests(self, tokenizer: Any, processor: Any = None) -> dict[str, Any]:
        """As of `TaskEntry`; the options of the first questions are single tokens.

        Raises:
            ConfigError: the task is no multiple choice, or no such task.
            DataError: its data does not fit.
            ModelError: an option that is not one token.
        """
        tasks = super().requests(tokenizer, processor)
        tokens = self._tokens(tokenizer)
        for task in tasks.values():
            self._refuse_no_choice(task)
            for doc in itertools.islice(task.eval_docs, _LOOKED_AT):
                for option in task.doc_to_choice(doc):
                    tokens.of(str(option))
        return tasks

    def scores(self, requests: dict[str, Any], on: Subject) -> Outcome:
        """The distribution at the answer position of every question, see `Entry.scores`.

        Raises:
            DataError: an option is empty.
            ModelError: an option that is not one token.
        """
        from holdfast.evaluation.tasks import harness
        from holdfast.evaluation.text.answer_position import FIGURES, answered, distributions

        with harness.harness_model(self, on) as lm:
            harness.settle_examples(requests, on)
            rows, prompts = [], []
            for name, task in requests.items():
                for row, prompt in self._questions(task, lm):
                    rows.append({**row, "task": name} if len(requests) > 1 else row)
                    prompts.append((prompt, " "))
            tokens = self._tokens(on.tokenizer)
            options = [[tokens.of(text) for text in row["choices"]] for row in rows]
            contexts = [context for _, context, _ in lm.encode_pairs(prompts)]
            answers = distributions(on, contexts, options, length=lm.max_length)
        for row, answer in zip(rows, answers, strict=True):
            row.update(answered(answer, row["gold"]))
        return Outcome(rows=rows, figures=FIGURES, settings=harness.settled(requests, self))

    def _tokens(self, tokenizer: Any) -> OptionTokens:
        from holdfast.evaluation.text.answer_position import OptionTokens

        advice = (
            f"Use a task with lettered options (mmlu, lettered), or `task: {self.task}`, which "
            "scores options of any length."
        )
        return OptionTokens(tokenizer, self, advice=advice)

    def _refuse_no_choice(self, task: Any) -> None:
        if getattr(task, "OUTPUT_TYPE", None) != "multiple_choice" or getattr(
            task, "multiple_input", 0
        ):
            raise ConfigError(
                f"{self.path}: `answer_distribution` needs a task with answer options, and "
                f"{self.task} has none. Use `task`."
            )

    def _questions(self, task: Any, lm: Any) -> Iterator[tuple[dict[str, Any], str]]:
        """The row of each question as far as it is known before asking, and its whole prompt."""
        from lm_eval.utils import hash_string

        from holdfast.evaluation.tasks.harness import build_requests, document_hash

        self._refuse_no_choice(task)
        build_requests(task, self, lm)
        for request in task.instances:
            if request.idx > 0:  # one request an option, all with the same prompt
                continue
            doc, prompt = request.doc, request.args[0]
            question, gold = str(task.doc_to_text(doc)), task.doc_to_target(doc)
            choices = [str(choice) for choice in task.doc_to_choice(doc)]
            row = {
                "doc": document_hash(doc),
                "prompt": hash_string(prompt),
                "question": question,
                "choices": choices,
                "content": f"{choices}{question}",
                "gold": choices.index(gold) if isinstance(gold, str) else gold,
            }
            yield row, prompt
