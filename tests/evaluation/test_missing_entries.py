"""What was asked for and is not there at the end is an error: of a comparison of a run, and of an evaluation."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_files import text_rows
from evaluated_folders import write
from holdfast.errors import RunFolderError
from holdfast.evaluation.entries import EvaluationPlan
from holdfast.evaluation.kinds.perplexity import PerplexityEntry
from holdfast.evaluation.loading import ModelLoading
from holdfast.evaluation.runner import compare_runs
from holdfast.evaluation.session import ModelRequest, evaluate_models
from holdfast.evaluation.suite import parse_evaluation
from holdfast.records.run import RunFolder
from holdfast.support.progress import ProgressDisplay
from tiny import SENTENCES, build_model, build_tokenizer

ROWS = [{"doc": str(i), "acc": float(i % 2)} for i in range(4)]


def _plan() -> EvaluationPlan:
    names = ("kept", "other")
    return EvaluationPlan(entries=tuple(PerplexityEntry(suite="keep", name=n, data=f"{n}.jsonl") for n in names))


@pytest.mark.parametrize("side", ["start", "result"])
def test_a_run_is_not_compared_without_one_of_its_entries(side: str, tmp_path: Path) -> None:
    folder, plan = RunFolder(tmp_path / "run"), _plan()
    for which in ("start", "result"):
        for name in ("kept", "other"):
            write(folder.evaluated(which).path, "keep", name, ROWS, model=which)
    compare_runs(folder, plan)
    (folder.evaluated(side).path / "keep.other.json").unlink()
    with pytest.raises(RunFolderError, match=rf"the results of keep/other in .*{side}, found none"):
        compare_runs(folder, plan)


def test_an_evaluation_ends_with_everything_that_was_asked_for(tmp_path: Path) -> None:
    """Files that are deleted while a later model is measured."""
    build_model().save_pretrained(tmp_path / "base")
    build_tokenizer().save_pretrained(tmp_path / "base")
    text_rows(tmp_path / "prose.jsonl", SENTENCES)
    plan, problems = parse_evaluation({"keep": [str(tmp_path / "prose.jsonl")]})
    out, models = tmp_path / "out", [ModelRequest(name=str(tmp_path / "base"), label=label) for label in ("a", "b")]

    def say(line: str) -> None:
        if line.startswith("a: 1 entries"):
            (out / "a" / "keep.prose.json").unlink()

    assert not problems
    with pytest.raises(RunFolderError, match=r"keep/prose in .*a, found none"):
        evaluate_models(models, plan, out, loading=ModelLoading(device="cpu"), display=ProgressDisplay(say=say))
    evaluate_models(models, plan, out, loading=ModelLoading(device="cpu"))
    assert (out / "a" / "keep.prose.json").is_file()
