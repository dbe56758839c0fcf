"""Benchmarks of lm-evaluation-harness: one task, a group of tasks, or a task YAML of the user's
own.

The harness is asked by `tasks.harness`; finding a task and giving it local data is in
`tasks.tasks`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from holdfast.config.declare import Meta
from holdfast.errors import Problem
from holdfast.evaluation.entries import (
    TASK_SUFFIXES,
    CountOrNone,
    Entry,
    Processor,
    Word,
    WordOrNone,
)
from holdfast.evaluation.measures import Outcome, Subject

CODE_FAMILIES = {
    "humaneval": "humaneval",
    "humaneval_instruct": "humaneval",
    "mbpp": "mbpp",
    "mbpp_instruct": "mbpp",
}
"""Tasks whose answers are programs (`kinds.code`), by the form of their rows."""


@dataclass(frozen=True, kw_only=True)
class TaskEntry(Entry):
    """One lm-evaluation-harness task or group of tasks."""

    kind = "task"
    source = "task"
    file_settings = ("data", "fewshot_data")
    batched = True
    libraries = ("lm_eval",)

    task: Word
    """Built-in task or group, or the path of a task YAML."""
    data: WordOrNone = None
    """A local file that replaces the task's data set. The task's prompts, choices and metrics stay
    the same."""
    fewshot_data: WordOrNone = None
    """A local file with the few-shot examples. null: other questions of `data`, or without `data`
    the task's own examples."""
    num_fewshot: Annotated[int | None, Meta(ge=0)] = None
    """Number of examples before each question; null: the task's default."""
    limit: CountOrNone = None
    """Only the first N questions (of each subtask of a group); null: all."""
    apply_chat_template: bool = False
    """Put the questions in the tokenizer's chat template."""
    metric: WordOrNone = None
    """First metric; null: accuracy if the task has it, else exact match, else the task's first
    metric."""
    answers: Annotated[bool, Meta(yaml=False)] = False
    """Measure the distribution at the answer position instead of the task's own metrics."""
    samples: CountOrNone = None
    """Programs per problem, for tasks whose answers are programs; null: 1."""
    temperature: Annotated[float | None, Meta(gt=0, lt=100)] = None
    """Sampling temperature if there are several programs per problem; null: 0.8 (Chen et al. 2021
    use 0.8 for pass@100 and 0.2 for pass@1)."""

    @property
    def is_file(self) -> bool:
        """True where `task` is the path of a task YAML."""
        return self.task.endswith(TASK_SUFFIXES)

    def local_files(self) -> list[Path]:
        """Its data and, of a task YAML, all that the YAML reads."""
        from holdfast.evaluation.tasks.tasks import local_files

        return local_files(self)

    def deciding(self) -> dict[str, Any]:
        """As of every entry, a task YAML by its name."""
        return {**super().deciding(), "task": Path(self.task).name if self.is_file else self.task}

    def problems(self) -> list[Problem]:
        """What cannot be, beyond each setting's own bounds; a sentence each."""
        problems = []
        for key in ("samples", "temperature"):
            if getattr(self, key) is not None and self.task not in CODE_FAMILIES:
                problems.append(
                    Problem(
                        key,
                        f"only for tasks whose answers are programs ({', '.join(CODE_FAMILIES)}).",
                    )
                )
        if self.fewshot_data is not None and self.data is None:
            problems.append(
                Problem(
                    "fewshot_data",
                    "needs `data`. Without `data` the task has its own examples.",
                )
            )
        return problems

    def may_read_hub(self) -> bool:
        """Whether measuring may read the hub: a built-in task without `data`, or a YAML that names
        a hub data set."""
        from holdfast.evaluation.tasks.tasks import names_hub_data

        return self.data is None and (not self.is_file or names_hub_data(self))

    def needs_scores(self, tokenizer: Any) -> bool:
        """Where it does more than generate."""
        from holdfast.evaluation.tasks.harness import load

        return any(task.OUTPUT_TYPE != "generate_until" for task in load(self, tokenizer).values())

    def requests(self, tokenizer: Any, processor: Processor | None = None) -> Any:
        """The harness's tasks by name, see `Entry.requests`."""
        from holdfast.evaluation.tasks.harness import load

        return load(self, tokenizer)

    def count(self, requests: Any) -> int:
        """The questions of all tasks, as far as the limit goes."""
        sizes = [len(task.eval_docs) for task in requests.values()]
        return sum(size if self.limit is None else min(size, self.limit) for size in sizes)

    def measure(self, on: Subject) -> Outcome:
        """See `Entry.measure`. Tasks may shuffle while they are read, so that it is done with the
        random generators seeded."""
        from holdfast.evaluation.tasks.harness import without_traces

        with without_traces(on.model, on.tokenizer, seed=on.plan.seed):
            return super().measure(on)

    def scores(self, requests: Any, on: Subject) -> Outcome:
        """See `tasks.harness.scores`."""
        from holdfast.evaluation.tasks.harness import scores

        return scores(self, requests, on)

    def versions(self) -> dict[str, str]:
        """IFEval counts sentences with a model."""
        if self.task != "ifeval":
            return {}
        from holdfast.evaluation.text.sentences import sentence_model

        return {"sentences": sentence_model()}
