"""HumanEval and MBPP: the model writes programs, the sandbox runs them against the problems' tests,
pass@k is the unbiased estimate.

Prompts and stop strings are those of lm-evaluation-harness's tasks of the same names; its own
scoring needs a metric from the hub and runs programs without walls, so it is not used. Programs run
in `sandbox` and nowhere else.

| task | prompt | examples | stops at |
|---|---|---|---|
| humaneval | the function's head | `num_fewshot` other problems with their solutions | the next statement at the margin
|
| humaneval_instruct | a request (in the chat template where asked); the reply begins with the head | none | the end of
the code block |
| mbpp | the text and three of its tests | problems 2, 3 and 4 | [DONE] |
| mbpp_instruct | a request | none | the end of the code block |

Sources: HumanEval and pass@k: Chen et al. 2021, section 2.1. MBPP: Austin et al. 2021; its test
problems are numbers 11 to 510.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from holdfast.errors import ConfigError, DataError, Problem
from holdfast.evaluation.kinds.task import CODE_FAMILIES, TaskEntry
from holdfast.evaluation.measures import Outcome, Subject
from holdfast.evaluation.text.documents import chat_prompt
from holdfast.support.files import fingerprint

CodeProblem = Mapping[str, Any]
"""A row of HumanEval's or MBPP's file."""

_HUB = {
    "humaneval": ("openai/openai_humaneval", None, "test"),
    "mbpp": ("google-research-datasets/mbpp", "full", "test"),
}
_COLUMNS = {
    "humaneval": ("task_id", "prompt", "test", "entry_point"),
    "mbpp": ("task_id", "text", "test_list"),
}
_STOPS = {
    "humaneval": ["\nclass", "\ndef", "\n#", "\nif", "\nprint"],
    "mbpp": ["[DONE]"],
    "humaneval_instruct": ["\n```"],
    "mbpp_instruct": ["\n```"],
}
_LONGEST = 1024
"""Tokens of a program, at most."""


_EXAMPLES = (2, 3, 4)
"""Problems of MBPP that are shown before a question."""


@dataclass(frozen=True, kw_only=True)
class CodeEntry(TaskEntry):
    """HumanEval or MBPP. The model's programs run in the sandbox, and only if the user allows
    it."""

    kind = "code"
    written = False
    runs_code = True

    @property
    def family(self) -> str:
        """The form of its rows."""
        return CODE_FAMILIES[self.task]

    @property
    def is_instruct(self) -> bool:
        """Whether problems are requests, without examples."""
        return "instruct" in self.task

    @property
    def unread(self) -> tuple[str, ...]:  # type: ignore[override]
        """What its prompts have no place for: examples or conversations."""
        return ("num_fewshot", "fewshot_data") if self.is_instruct else ("apply_chat_template",)

    def problems(self) -> list[Problem]:
        """What cannot be, beyond each setting's own bounds; a sentence each."""
        problems = []
        for key in self.unread:
            if getattr(self, key):
                problems.append(
                    Problem(key, f"{self.task} does not use this setting. Leave it out.")
                )
        if self.metric not in (None, "pass@1"):
            problems.append(
                Problem(
                    "metric",
                    f"expected pass@1, the first metric of {self.task}, got {self.metric!r}. "
                    "Leave out `metric`.",
                )
            )
        return [*problems, *super().problems()]

    def may_read_hub(self) -> bool:
        """Its rows are read before the harness is asked for anything."""
        return False

    def needs_scores(self, tokenizer: Any) -> bool:
        """Never: it generates."""
        return False

    def versions(self) -> dict[str, str]:
        """None."""
        return {}

    def requests(
        self, tokenizer: Any, processor: Any = None
    ) -> tuple[list[CodeProblem], list[CodeProblem]]:
        """The problems, whatever the entry's limit, and those shown as examples.

        Raises:
            ConfigError: this machine cannot run programs safely. DataError: as `read_problems`.
                ModelError: there is no chat template.
        """
        from holdfast.evaluation.code.sandbox import require_sandbox

        require_sandbox()
        problems, examples = read_problems(self)
        self._prompts(tokenizer, problems[:1], examples, seed=0)
        return problems, examples

    def count(self, requests: tuple[list[CodeProblem], list[CodeProblem]]) -> int:
        """The problems, as far as the limit goes."""
        return len(requests[0][: self.limit])

    def measure(self, on: Subject) -> Outcome:
        """See `Entry.measure`.

        Raises:
            ConfigError: programs may not be run, or this machine cannot run them safely. DataError:
                as `read_problems`.
        """
        if not on.plan.allow_code_execution:
            raise ConfigError(
                f"{self.path} runs programs that the model writes. Set `allow_code_execution: "
                "true` (--allow_code_execution) to run them in the sandbox, or take the entry "
                f"out. ({self.family})"
            )
        return super().measure(on)

    def scores(self, requests: tuple[list[CodeProblem], list[CodeProblem]], on: Subject) -> Outcome:
        """Writes and runs the programs of every problem, see `Entry.scores`. The count of what is
        done goes to twice the number of programs: written, and run."""
        from holdfast.evaluation.remarks import remarks_on_examples, remarks_on_part
        from holdfast.evaluation.tasks.harness import harness_model
        from holdfast.statistics.estimates import Ratio

        all_problems, examples = requests
        problems = all_problems[: self.limit]
        prompts = self._prompts(on.tokenizer, problems, examples, seed=on.plan.seed)
        notes = remarks_on_part(all_problems, self.limit, setting="limit")
        shots = self._shots(examples)
        if shots:
            questions = zip(prompts, map(_question, problems), strict=True)
            notes += remarks_on_examples(questions, map(_question, examples))
        count = self.samples or 1
        total = len(problems) * count

        with harness_model(self, on, report=lambda done, _: on.report(done, 2 * total)) as lm:
            longest = max(1, min(_LONGEST, lm.max_length // 2))
            how: dict[str, Any] = {
                "until": _STOPS[self.task],
                "max_gen_toks": longest,
                "do_sample": False,
            }
            if count > 1 or self.temperature is not None:
                how |= {"do_sample": True, "temperature": self.temperature or 0.8, "top_p": 0.95}
            asked = []
            for prompt in prompts:
                for _ in range(count):
                    asked.append(SimpleNamespace(args=(prompt, dict(how))))
            texts = lm.generate_until(asked)
        completions = [texts[start : start + count] for start in range(0, total, count)]
        ks = [k for k in (1, 10, 100) if k <= count]
        scores = on.processes.broadcast(lambda: self._run(problems, completions, ks, on))
        rows = []
        for problem, prompt, written, score in zip(
            problems, prompts, completions, scores, strict=True
        ):
            columns = {name: str(problem[name]) for name in _COLUMNS[self.family]}
            content = [problem[name] for name in columns if name != "task_id"]
            rows.append(
                {
                    "doc": fingerprint(columns, length=32),
                    "prompt": fingerprint(prompt, length=32),
                    "content": str(content),
                    "question": _question(problem),
                    **score,
                    "outputs": written,
                }
            )
        figures = {}
        for k in ks:
            figures[f"pass@{k}"] = Ratio(
                numerator=f"pass@{k}", unit=f"pass@{k}", higher_is_better=True
            )
        settings = {
            "num_fewshot": shots,
            "samples": count,
            "longest": longest,
            "notes": [*notes, *lm.notes],
        }
        return Outcome(rows=rows, figures=figures, settings=settings, broken=lm.broken)

    def _run(
        self,
        problems: Sequence[CodeProblem],
        completions: Sequence[Sequence[str]],
        ks: Sequence[int],
        on: Subject,
    ) -> list[dict[str, Any]]:
        """Columns of each problem's row, without its name."""
        from holdfast.evaluation.code.code_scores import score_completions

        total = sum(map(len, completions))
        scores = score_completions(
            problems,
            [list(map(self._program, written)) for written in completions],
            family=self.family,
            ks=ks,
            progress=lambda done, programs: on.report(total + done * total // programs, 2 * total),
        )
        for score in scores:
            del score["task_id"]
        return scores

    def _program(self, text: str) -> str:
        """What goes behind the head (HumanEval) or is the program (MBPP)."""
        if self.is_instruct:
            return text.split("```")[0]
        return text if self.task == "humaneval" else text.replace("\r\n", "\n")

    def _shots(self, examples: Sequence[CodeProblem]) -> int:
        if self.is_instruct:
            return 0
        return len(examples) if self.task == "mbpp" else self.num_fewshot or 0

    def _prompts(
        self,
        tokenizer: Any,
        problems: Sequence[CodeProblem],
        examples: Sequence[CodeProblem],
        *,
        seed: int,
    ) -> list[str]:
        if self.is_instruct:
            return [self._request(tokenizer, problem) for problem in problems]
        if self.task == "mbpp":
            solved = [f"{_mbpp_text(example)}{example['code']}\n[DONE]\n\n" for example in examples]
            return ["".join(solved) + _mbpp_text(problem) for problem in problems]
        shots = self.num_fewshot or 0
        if shots and len(examples) <= shots:
            raise DataError(
                f"{self.data} has {len(examples)} problems, too few for {shots} examples before "
                "each. Lower `num_fewshot` or add `fewshot_data`."
            )
        prompts = []
        for index, problem in enumerate(problems):
            others = [example for example in examples if example["task_id"] != problem["task_id"]]
            solved = []
            for example in random.Random(f"{seed} {index}").sample(others, shots) if shots else ():
                solved.append(f"{example['prompt']}{example['canonical_solution']}\n\n")
            prompts.append("".join(solved) + problem["prompt"])
        return prompts

    def _request(self, tokenizer: Any, problem: CodeProblem) -> str:
        if self.task == "humaneval_instruct":
            request = (
                f"Write a solution to the following problem and make sure that it passes the "
                f"tests:\n```python\n{problem['prompt']}\n```\n"
            )
            begun = f"Here is the completed function:\n```python\n{problem['prompt']}"
        else:
            tests = "\n".join(problem["test_list"][:3])
            request = (
                "You are an expert Python programmer, and here is your "
                f"task:\n{problem['text']}\nYour code should "
                f"pass the following tests:\n```python\n{tests}\n```\n"
            )
            begun = "Here is the solution:\n```python\n"
        if self.apply_chat_template:
            request = chat_prompt([{"role": "user", "content": request}], tokenizer)
        return request + begun


def read_problems(entry: CodeEntry) -> tuple[list[CodeProblem], list[CodeProblem]]:
    """(problems to be solved, whatever the entry's limit; problems shown as examples).

    Raises:
        DataError: columns are missing, or too few problems for the examples.
    """
    from holdfast.data.sources import load_rows
    from holdfast.evaluation.tasks.data_forms import require_columns

    hub, config, split = _HUB[entry.family]
    rows = (
        load_rows(hub, split=split, config=config)
        if entry.data is None
        else _rows_of_file(entry, entry.data)
    )
    require_columns(
        f"'{entry.task}'", _COLUMNS[entry.family], rows.column_names, place=entry.data, form=hub
    )
    problems: list[CodeProblem] = [dict(row) for row in rows]
    examples = problems
    if entry.fewshot_data is not None:
        examples = [dict(row) for row in _rows_of_file(entry, entry.fewshot_data)]
    if entry.task == "mbpp":
        count = 3 if entry.num_fewshot is None else entry.num_fewshot
        if entry.fewshot_data is None:
            examples = [problem for problem in examples if problem["task_id"] in _EXAMPLES]
        if len(examples) < count:
            raise DataError(
                f"'{entry.task}' shows {count} solved problems as examples (by default task_id 2, "
                f"3 and 4), but {entry.data or 'the test split'} has {len(examples)} of them. "
                "Give a file with solved problems as `fewshot_data`, or set `num_fewshot: 0`."
            )
        examples = examples[:count]
    if entry.family != "mbpp":
        return problems, [] if entry.is_instruct else examples
    for problem in problems:
        if not isinstance(problem["task_id"], int):
            raise DataError(
                f"'{entry.task}' identifies its test problems by numbers, but {entry.data} has the "
                f"task_id {problem['task_id']!r}. Use the published file."
            )
    test_problems = [problem for problem in problems if 11 <= problem["task_id"] <= 510]
    return test_problems or problems, examples


def _rows_of_file(entry: CodeEntry, file: str) -> Any:
    from holdfast.data.sources import load_rows
    from holdfast.evaluation.tasks.data_forms import convert

    rows, _ = convert(load_rows(file), entry.task, file)
    return rows


def _question(problem: CodeProblem) -> str:
    return str(problem.get("text") or problem["prompt"])


def _mbpp_text(problem: CodeProblem) -> str:
    tests = "\n".join(problem["test_list"][:3])
    return (
        f"You are an expert Python programmer, and here is your task: {problem['text']} Your code "
        f"should pass these tests:\n\n{tests}\n[BEGIN]\n"
    )
