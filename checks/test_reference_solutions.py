"""The published solutions of HumanEval and MBPP run in the sandbox and pass, and empty ones do not."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path

import pytest

from evaluation import test_code_scores
from holdfast.evaluation.code.code_scores import score_completions

needs_sandbox = test_code_scores.needs_sandbox


@pytest.fixture
def human_eval(shared_data: Path) -> list[dict]:
    with gzip.open(shared_data / "human_eval" / "HumanEval.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@pytest.fixture
def mbpp(shared_data: Path) -> list[dict]:
    with gzip.open(shared_data / "mbpp" / "mbpp.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@pytest.fixture
def sanitized(shared_data: Path) -> list[dict]:
    return json.loads((shared_data / "mbpp" / "sanitized-mbpp.json").read_text(encoding="utf-8"))


def spread(rows: list[dict], count: int) -> list[dict]:
    return rows[:: max(1, len(rows) // count)]


@pytest.mark.usefixtures("needs_sandbox")
def test_humaneval_reference_solutions_pass_and_empty_bodies_fail(human_eval):
    assert len(human_eval) == 164
    docs = spread(human_eval, 20)
    rows = score_completions(docs, [[doc["canonical_solution"], "    pass\n"] for doc in docs], family="humaneval")
    assert [(row["task_id"], row["reasons"][0]) for row in rows if row["reasons"][0] != "passed"] == []
    assert [row["task_id"] for row in rows if row["reasons"][1] == "passed"] == []


@pytest.mark.usefixtures("needs_sandbox")
def test_mbpp_reference_solutions_pass(mbpp, sanitized):
    assert (len(mbpp), len(sanitized)) == (974, 427)
    setups = [doc for doc in mbpp if doc["test_setup_code"]]
    imports = [doc for doc in sanitized if doc["test_imports"]]
    docs = [*spread(mbpp, 12), *setups, *spread(sanitized, 12), *imports[:3]]
    assert setups and imports
    rows = score_completions(docs, [[doc["code"]] for doc in docs], family="mbpp")
    assert [(row["task_id"], row["details"]) for row in rows if row["pass@1"] != 1.0] == []


@pytest.mark.slow
@pytest.mark.usefixtures("needs_sandbox")
def test_all_reference_solutions(human_eval, mbpp, sanitized):
    """Every problem of the three files: the reference passes, and an empty body does not."""
    began = time.monotonic()
    human = score_completions(
        human_eval, [[d["canonical_solution"], "    pass\n"] for d in human_eval], family="humaneval", ks=(1, 2)
    )
    assert [row["task_id"] for row in human if row["reasons"][0] != "passed" or row["reasons"][1] == "passed"] == []
    assert {(row["pass@1"], row["pass@2"]) for row in human} == {(0.5, 1.0)}
    for docs in (mbpp, sanitized):
        rows = score_completions(docs, [[d["code"]] for d in docs], family="mbpp")
        assert [(row["task_id"], row["details"]) for row in rows if row["pass@1"] != 1.0] == []
    assert (2 * 164 + 974 + 427) / (time.monotonic() - began) > 5  # programs a second; a machine of two cores does tens
