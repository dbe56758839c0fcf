"""Logs that Inspect itself writes, with its own mock model; where inspect_ai is installed (holdfast[inspect])."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace

import pytest
from scipy.stats import binomtest

pytest.importorskip("inspect_ai", reason="reading Inspect's logs needs the extra 'inspect'")

from inspect_ai import Task, eval, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.log import read_eval_log, write_eval_log
from inspect_ai.model import ModelOutput, get_model
from inspect_ai.scorer import choice, includes, match
from inspect_ai.solver import generate, multiple_choice

from holdfast.errors import DataError
from holdfast.evaluation.compare.request import CompareSettings, find_sides
from holdfast.evaluation.compare.result import Result, compare_sides
from holdfast.evaluation.foreign.inspect_ai import read


@task
def sums() -> Task:
    samples = [Sample(id=f"s{number}", input=f"{number} + 2 =", target=str(number % 2)) for number in range(30)]
    return Task(dataset=MemoryDataset(samples, name="sums"), solver=generate(), scorer=[match(), includes()], version=2)


@task
def letters() -> Task:
    samples = []
    for number in range(16):
        samples.append(Sample(input=f"Question {number}?", choices=["red", "blue"], target="AB"[number % 2]))
    return Task(dataset=MemoryDataset(samples, name="letters"), solver=multiple_choice(), scorer=choice())


def run(request: Task, folder: Path, words: list[str], seed: int, **how: object) -> None:
    """One evaluation of the mock model, which answers with random words."""
    rng = random.Random(seed)
    outputs = [ModelOutput.from_content("mockllm/model", rng.choice(words)) for _ in range(200)]
    model = get_model("mockllm/model", custom_outputs=outputs)
    eval(request, model=model, log_dir=str(folder), display="none", **how)


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of two models, each with a task of two epochs and one of multiple choice, in both formats."""
    with pytest.MonkeyPatch.context() as patch:
        try:
            import tiktoken
        except ImportError:  # older versions count no tokens of the mock model
            pass
        else:  # its table of tokens is on the network
            counter = SimpleNamespace(encode=lambda text, **how: list(text.encode()))
            patch.setattr(tiktoken, "get_encoding", lambda name: counter)
        folder = tmp_path_factory.mktemp("inspect")
        for seed, name in enumerate(("before", "after")):
            run(sums(), folder / name, ["0", "1"], seed, epochs=2, log_format="eval")
            run(letters(), folder / name, ["ANSWER: A", "ANSWER: B"], seed + 5, log_format="json")
        return folder


def compare(*words: Path, **settings: object) -> Result:
    sides, problems = find_sides(list(map(str, words)))
    assert not problems, problems
    return compare_sides(sides, (), CompareSettings(metrics="all", **settings))


def test_every_figure_is_inspects_own(logged: Path) -> None:
    result = compare(logged / "before", logged / "after")
    own: dict[tuple[str, str], list[float]] = {}
    for name in ("before", "after"):
        for path in sorted((logged / name).iterdir()):
            log = read_eval_log(str(path))
            for score in log.results.scores:
                own.setdefault((log.eval.task, score.name), []).append(score.metrics["accuracy"].value)
    found = {(c.name, c.metric): [c.before, c.after] for c in result.comparisons}
    assert found == {key: pytest.approx(values) for key, values in own.items()}
    assert {c.name: c.n for c in result.comparisons} == {"sums": 30, "letters": 16}
    assert not result.unmatched


def test_p_is_that_of_exact_mcnemar(logged: Path) -> None:
    scores = []
    for name in ("before", "after"):
        [path] = (logged / name).glob("*.json")
        log = read_eval_log(str(path))
        scores.append({sample.id: sample.scores["choice"].value == "C" for sample in log.samples})
    lost = sum(scores[0][key] and not scores[1][key] for key in scores[0])
    gained = sum(scores[1][key] and not scores[0][key] for key in scores[0])
    [c] = [c for c in compare(logged / "before", logged / "after").comparisons if c.name == "letters"]
    assert lost and gained
    assert (c.flips_lost, c.flips_gained) == (lost, gained)
    assert c.p_value == pytest.approx(binomtest(lost, lost + gained).pvalue)


def test_an_aborted_run_is_refused(logged: Path, tmp_path: Path) -> None:
    [path] = (logged / "before").glob("*.eval")
    log = read_eval_log(str(path))
    log.status = "cancelled"
    write_eval_log(log, str(tmp_path / "aborted.eval"))
    with pytest.raises(DataError, match="expected a finished run, got the status 'cancelled'"):
        read(tmp_path / "aborted.eval")


def test_a_damaged_log_is_named(logged: Path, tmp_path: Path) -> None:
    [path] = (logged / "before").glob("*.eval")
    (tmp_path / "half.eval").write_bytes(path.read_bytes()[:500])
    with pytest.raises(DataError, match=r"half.eval: Inspect cannot read this log"):
        read(tmp_path / "half.eval")
