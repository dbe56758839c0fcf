"""Code that a model wrote, scored by running it: HumanEval and MBPP as pass@k.

Of n completions of a problem, c pass its tests. pass@k is the probability that at least one of k
completions, drawn from the n without replacement, passes; the mean over problems is reported.
Estimated without bias by (Chen et al. 2021, "Evaluating Large Language Models Trained on Code", eq.
1)

    pass@k = 1 - C(n - c, k) / C(n, k) = 1 - prod over i = n - c + 1 .. n of (1 - k / i)

the product being the form that does not overflow (figure 3 there). `1 - (1 - c / n)^k` would be too
low.

Programs are put together as the authors do: HumanEval's `human_eval/execution.py`, and for MBPP
(Austin et al. 2021, "Program Synthesis with Large Language Models", section 2) the code followed by
its assertions. They run in `sandbox` and nowhere else, within limits that have to be the same in a
comparison.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.evaluation.code.sandbox import Limits, run_all

DEFAULT_LIMITS = {"humaneval": Limits(), "mbpp": Limits(cpu_seconds=15, wall_seconds=40.0)}
"""HumanEval's release allows 3 seconds. MBPP names no limit, and its slowest reference solution
(task 123) takes five to six."""


def pass_at_k(n: int, c: int, k: int) -> float:
    """The unbiased estimate of pass@k of one problem.

    Args:
        n: completions that were run, at least k.
        c: those that passed.
        k: completions that a user of the model would try, at least 1.
    """
    assert 1 <= k <= n and 0 <= c <= n, "pass@k needs at least k completions"
    none_passes = 1.0
    for i in range(n - c + 1, n + 1):
        # 0 at i = k, from where on every draw of k holds one that passes
        none_passes *= max(0.0, 1.0 - k / i)
    return 1.0 - none_passes


# ----------------------------------------------------------------------------------------- programs


def humaneval_program(doc: Mapping[str, Any], completion: str) -> str:
    """Prompt, completion, tests and the call of `check`, as in the HumanEval release.

    A completion that repeats the whole function works as well: the prompt by itself is a function
    with a docstring, which the second then replaces.
    """
    return f"{doc['prompt']}{completion}\n{doc['test']}\ncheck({doc['entry_point']})"


def mbpp_program(doc: Mapping[str, Any], completion: str) -> str:
    """Completion, set-up and the assertions of `test_list`, for rows of both files: the full
    (`test_setup_code`) and the sanitized (`test_imports`).

    The set-up comes second as it uses classes that the completion defines. `challenge_test_list` is
    not part of the benchmark.
    """
    setup = doc.get("test_setup_code") or "\n".join(doc.get("test_imports") or ())
    return "\n".join([completion, setup, *doc["test_list"]])


_PROGRAMS: dict[str, Callable[[Mapping[str, Any], str], str]] = {
    "humaneval": humaneval_program,
    "mbpp": mbpp_program,
}


# ------------------------------------------------------------------------------------------- scores


def score_completions(
    docs: Sequence[Mapping[str, Any]],
    completions_per_doc: Sequence[Sequence[str]],
    *,
    family: str,
    ks: Sequence[int] = (1,),
    progress: Callable[[int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """Runs completions against their problems' tests. Equal programs run once.

    Args:
        docs: problems, as rows of the benchmark's file.
        completions_per_doc: n completions of each, cut and extracted already; at least as many as
            the largest k.
        family: "humaneval" or "mbpp".
        ks: for every k a column "pass@k".
        progress: called with (programs done, programs in all).

    Returns:
        A row a problem: `task_id`, `n`, `correct`, "pass@k" for every k, and in the order of the
            completions `reasons` (see `sandbox.REASONS`) and
        `details`.

    Raises:
        ConfigError: a machine without the sandbox.
    """
    programs = []
    for doc, completions in zip(docs, completions_per_doc, strict=True):
        programs.append([_PROGRAMS[family](doc, completion) for completion in completions])
    distinct = list(dict.fromkeys(itertools.chain(*programs)))
    outcomes = dict(
        zip(
            distinct,
            run_all(distinct, limits=DEFAULT_LIMITS[family], progress=progress),
            strict=True,
        )
    )
    rows = []
    for doc, of_doc in zip(docs, programs, strict=True):
        ends = [outcomes[program] for program in of_doc]
        n, correct = len(ends), sum(end.passed for end in ends)
        row = {"task_id": doc["task_id"], "n": n, "correct": correct}
        for k in ks:
            row[f"pass@{k}"] = pass_at_k(n, correct, k)
        rows.append(
            {
                **row,
                "reasons": [end.reason for end in ends],
                "details": [end.detail for end in ends],
            }
        )
    return rows
