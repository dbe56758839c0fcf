"""pass@k against enumeration, programs of the real benchmarks, and how completions become programs."""

from __future__ import annotations

from itertools import combinations

import pytest

from holdfast.evaluation.code.code_scores import (
    humaneval_program,
    mbpp_program,
    pass_at_k,
    score_completions,
)
from holdfast.evaluation.code.sandbox import capabilities

DOC = {
    "task_id": "Test/0",
    "prompt": 'def add(a, b):\n    """The sum."""\n',
    "entry_point": "add",
    "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(-1, 1) == 0\n",
}


@pytest.fixture
def needs_sandbox() -> None:
    if not all(there for name, there in capabilities().items() if name != "namespaces"):
        pytest.skip("this machine has no sandbox")


# --------------------------------------------------------------------------------------------------------------- pass@k


def test_pass_at_k_is_the_share_of_subsets_with_a_pass():
    for n in range(1, 9):
        for c in range(n + 1):
            for k in range(1, n + 1):
                subsets = list(combinations([i < c for i in range(n)], k))
                assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-14)


# ---------------------------------------------------------------------------------------------- completions to programs


def test_the_humaneval_program_is_that_of_the_release():
    assert (
        humaneval_program(DOC, "    return a + b\n")
        == DOC["prompt"] + "    return a + b\n" + "\n" + DOC["test"] + "\n" + "check(add)"
    )


def test_the_mbpp_program_of_both_files():
    full = {
        "task_id": 1,
        "text": "t",
        "code": "",
        "test_list": ["assert f(1)", "assert f(2)"],
        "test_setup_code": "root = Node(1)",
        "challenge_test_list": ["no"],
    }
    assert mbpp_program(full, "class Node: ...") == "class Node: ...\nroot = Node(1)\nassert f(1)\nassert f(2)"
    clean = {
        "task_id": 2,
        "prompt": "p",
        "code": "",
        "test_imports": ["import math", "import re"],
        "test_list": ["assert f(1)"],
    }
    assert (
        mbpp_program(clean, "from __future__ import annotations")
        == "from __future__ import annotations\nimport math\nimport re\nassert f(1)"
    )


# --------------------------------------------------------------------------------------------------------------- scores


@pytest.mark.usefixtures("needs_sandbox")
def test_rows_of_scores():
    good, bad, full = "    return a + b\n", "    return a - b\n", "def add(a, b):\n    return a + b\n"
    other = {**DOC, "task_id": "Test/1"}
    seen = []
    rows = score_completions(
        [DOC, other],
        [[good, bad, full, good], [bad, "    return (", "    import os\n    os._exit(0)\n", bad]],
        family="humaneval",
        ks=(1, 2),
        progress=lambda done, total: seen.append((done, total)),
    )
    assert [list(row) for row in rows] == [["task_id", "n", "correct", "pass@1", "pass@2", "reasons", "details"]] * 2
    assert [(r["task_id"], r["n"], r["correct"], r["pass@1"], r["pass@2"]) for r in rows] == [
        ("Test/0", 4, 3, 0.75, 1.0),
        ("Test/1", 4, 0, 0.0, 0.0),
    ]
    assert [r["reasons"] for r in rows] == [
        ["passed", "failed", "passed", "passed"],
        ["failed", "error", "exited early", "failed"],
    ]
    assert "assert candidate(1, 2) == 3" in rows[0]["details"][1]
    assert seen[-1] == (5, 5)  # of eight, five are different
