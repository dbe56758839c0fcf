"""HumanEval and MBPP: the model writes programs, the sandbox runs them against the problems' tests, pass@k is the
unbiased estimate.

Prompts and stop strings are those of lm-evaluation-harness's tasks of the same names; its own scoring needs a metric
from the hub and runs programs without walls, so it is not used. Programs run in `sandbox` and nowhere else.

| task | prompt | examples | stops at |
|---|---|---|---|
| humaneval | the function's head | `num_fewshot` other problems with their solutions | the next statement at the margin
|
| humaneval_instruct | a request (in the chat template where asked); the reply begins with the head | none | the end of
the code block |
| mbpp | the text and three of its tests | problems 2, 3 and 4 | [DONE] |
| mbpp_instruct | a request | none | the end of the code block |

Sources: HumanEval and pass@k: Chen et al. 2021, section 2.1. MBPP: Austin et al. 2021; its test problems are numbers 11
to 510.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from holdfast.errors import ConfigError, DataError
from holdfast.evaluation.entries import CODE_FAMILIES, TaskEntry
from holdfast.evaluation.measures import Outcome, Subject
from holdfast.evaluation.remarks import remarks_on_examples, remarks_on_part
from holdfast.statistics.estimates import Ratio
from holdfast.support.files import fingerprint

_HUB = {
    "humaneval": ("openai/openai_humaneval", None, "test"),
    "mbpp": ("google-research-datasets/mbpp", "full", "test"),
}
_COLUMNS = {"humaneval": ("task_id", "prompt", "test", "entry_point"), "mbpp": ("task_id", "text", "test_list")}
_STOPS = {
    "humaneval": ["\nclass", "\ndef", "\n#", "\nif", "\nprint"],
    "mbpp": ["[DONE]"],
    "humaneval_instruct": ["\n```"],
    "mbpp_instruct": ["\n```"],
}
_LONGEST = 1024
"""Tokens of a program, at most."""


def read_problems(entry: TaskEntry) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(problems to be solved, whatever the entry's limit; problems shown as examples).

    Raises:
        DataError: columns are missing, or too few problems for the examples.
    """
    from holdfast.data.sources import load_rows
    from holdfast.evaluation.tasks.data_forms import convert, require_columns

    family = CODE_FAMILIES[entry.task]
    if entry.data is not None:
        rows, _ = convert(load_rows(entry.data), entry.task, entry.data)
    else:
        name, config, split = _HUB[family]
        rows = load_rows(name, split=split, config=config)
    form = _HUB[family][0]
    require_columns(f"'{entry.task}'", _COLUMNS[family], rows.column_names, place=entry.data, form=form)
    problems = [dict(row) for row in rows]
    pool = (
        problems
        if entry.fewshot_data is None
        else [dict(row) for row in convert(load_rows(entry.fewshot_data), entry.task, entry.fewshot_data)[0]]
    )
    if entry.task == "mbpp":
        count = 3 if entry.num_fewshot is None else entry.num_fewshot
        shown = [p for p in pool if p["task_id"] in (2, 3, 4)] if entry.fewshot_data is None else pool
        if len(shown) < count:
            raise DataError(
                f"'{entry.task}' shows {count} solved problems, by default those with task_id 2, 3 and 4, and "
                f"{entry.data or 'the test split'} has "
                f"{len(shown)} of them. Give a file with solved problems as `fewshot_data`, or set `num_fewshot: 0`."
            )
        pool = shown[:count]
    if family == "mbpp":
        strange = next((p["task_id"] for p in problems if not isinstance(p["task_id"], int)), None)
        if strange is not None:
            raise DataError(
                f"'{entry.task}' tells its test problems by numbers, but {entry.data} has the task_id {strange!r}. "
                f"Give the published file."
            )
        tested = [p for p in problems if 11 <= p["task_id"] <= 510]
        problems = tested or problems
    elif "instruct" in entry.task:
        pool = []
    return problems, pool


def check(entry: TaskEntry, tokenizer: Any) -> None:
    """Finds out without a model whether the entry can run.

    Raises:
        ConfigError: this machine cannot run programs safely, or there is no chat template. DataError: as
            `read_problems`.
    """
    from holdfast.evaluation.code.sandbox import require_sandbox

    require_sandbox()
    problems, pool = read_problems(entry)
    _prompts(tokenizer, entry, problems[:1], pool, seed=0)


def measure(entry: TaskEntry, on: Subject) -> Outcome:
    """Writes and runs the programs of every problem, see `holdfast.evaluation.measures.measure`. The count of what is
    done goes to twice the number of programs: written, and run.

    Raises:
        ConfigError: programs may not be run, or this machine cannot run them safely. DataError: as `read_problems`.
    """
    from holdfast.evaluation.code.code_scores import score_completions
    from holdfast.evaluation.code.sandbox import require_sandbox
    from holdfast.evaluation.tasks.harness import harness_model

    if not on.plan.allow_code_execution:
        raise ConfigError(
            f"{entry.suite}/{entry.name} runs programs that the model writes. Say `allow_code_execution: true` "
            f"(--allow_code_execution) to run them "
            f"in the sandbox, or take it out. ({CODE_FAMILIES[entry.task]})"
        )
    require_sandbox()
    family = CODE_FAMILIES[entry.task]
    whole, pool = read_problems(entry)
    problems = whole[: entry.limit]
    prompts = _prompts(on.tokenizer, entry, problems, pool, seed=on.plan.seed)
    notes = remarks_on_part(whole, entry.limit, setting="limit")
    if shots := 0 if "instruct" in entry.task else _shots(entry, pool):
        notes += remarks_on_examples(zip(prompts, map(_question, problems), strict=True), map(_question, pool))
    count = entry.samples or 1
    total = len(problems) * count
    with harness_model(entry, on, report=lambda done, _: on.report(done, 2 * total)) as lm:
        longest = max(1, min(_LONGEST, lm.max_length // 2))
        how: dict[str, Any] = {"until": _STOPS[entry.task], "max_gen_toks": longest}
        sampled = {"do_sample": True, "temperature": entry.temperature or 0.8, "top_p": 0.95}
        how.update({"do_sample": False} if count == 1 and entry.temperature is None else sampled)
        texts = lm.generate_until(
            [SimpleNamespace(args=(prompt, dict(how))) for prompt in prompts for _ in range(count)]
        )
    completions = [texts[i * count : (i + 1) * count] for i in range(len(problems))]
    passes = [k for k in (1, 10, 100) if k <= count]
    programs = [
        [_program(entry.task, problem, text) for text in group]
        for problem, group in zip(problems, completions, strict=True)
    ]
    scored = on.processes.broadcast(
        lambda: score_completions(
            problems,
            programs,
            family=family,
            ks=passes,
            progress=lambda done, all_: on.report(total + done * total // all_, 2 * total),
        )
    )
    rows = [
        {
            "doc": fingerprint({k: str(problem[k]) for k in _COLUMNS[family]}, length=32),
            "prompt": fingerprint(prompt, length=32),
            "content": str([problem[k] for k in _COLUMNS[family] if k != "task_id"]),
            "question": _question(problem),
            **{k: v for k, v in score.items() if k != "task_id"},
            "outputs": list(group),
        }
        for problem, prompt, group, score in zip(problems, prompts, completions, scored, strict=True)
    ]
    names = [f"pass@{k}" for k in passes]
    return Outcome(
        rows=rows,
        figures={name: Ratio(numerator=name, unit=name, higher_is_better=True) for name in names},
        settings={
            "num_fewshot": shots,
            "samples": count,
            "longest": longest,
            "notes": [*notes, *lm.notes],
        },
        broken=lm.broken,
    )


def _question(problem: Mapping[str, Any]) -> str:
    return str(problem.get("text") or problem["prompt"])


def _program(task: str, problem: Mapping[str, Any], text: str) -> str:
    """What goes behind the head (HumanEval) or is the program (MBPP)."""
    return text if task == "humaneval" else text.split("```")[0] if "instruct" in task else text.replace("\r\n", "\n")


def _shots(entry: TaskEntry, pool: Sequence[Any]) -> int:
    return len(pool) if entry.task == "mbpp" else entry.num_fewshot or 0


def _prompts(
    tokenizer: Any,
    entry: TaskEntry,
    problems: Sequence[Mapping[str, Any]],
    pool: Sequence[Mapping[str, Any]],
    *,
    seed: int,
) -> list[str]:
    if "instruct" in entry.task:
        if entry.apply_chat_template and not getattr(tokenizer, "chat_template", None):
            raise ConfigError(
                f"'{entry.name}' asks for the chat template, but the tokenizer has none. Set `apply_chat_template: "
                f"false`."
            )
        return [_request(tokenizer, entry, problem) for problem in problems]
    if entry.task == "mbpp":
        shown = "".join(f"{_mbpp_text(example)}{example['code']}\n[DONE]\n\n" for example in pool)
        return [shown + _mbpp_text(problem) for problem in problems]
    shots = entry.num_fewshot or 0
    if shots and len(pool) <= shots:
        raise DataError(
            f"{entry.data} has {len(pool)} problems, too few for {shots} examples before each. Lower `num_fewshot` or "
            f"add `fewshot_data`."
        )
    prompts = []
    for index, problem in enumerate(problems):
        others = [p for p in pool if p["task_id"] != problem["task_id"]]
        examples = random.Random(f"{seed} {index}").sample(others, shots) if shots else []
        prompts.append("".join(f"{e['prompt']}{e['canonical_solution']}\n\n" for e in examples) + problem["prompt"])
    return prompts


def _mbpp_text(problem: Mapping[str, Any]) -> str:
    tests = "\n".join(problem["test_list"][:3])
    return (
        f"You are an expert Python programmer, and here is your task: {problem['text']} Your code should pass "
        f"these tests:\n\n{tests}\n[BEGIN]\n"
    )


def _request(tokenizer: Any, entry: TaskEntry, problem: Mapping[str, Any]) -> str:
    if entry.task == "humaneval_instruct":
        asked = (
            f"Write a solution to the following problem and make sure that it passes the "
            f"tests:\n```python\n{problem['prompt']}\n```\n"
        )
        begun = f"Here is the completed function:\n```python\n{problem['prompt']}"
    else:
        tests = "\n".join(problem["test_list"][:3])
        asked = (
            f"You are an expert Python programmer, and here is your task:\n{problem['text']}\nYour code should pass "
            f"the following tests:\n"
            f"```python\n{tests}\n```\n"
        )
        begun = "Here is the solution:\n```python\n"
    if not entry.apply_chat_template:
        return asked + begun
    return (
        str(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": asked}], tokenize=False, add_generation_prompt=True
            )
        )
        + begun
    )
