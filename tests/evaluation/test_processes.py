"""Several processes that measure one model: every kind of entry gives the bytes of one process, whoever started them;
what was begun by two goes on in one; what goes wrong in one is said once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from data_files import jsonl
from holdfast.cli.main import main
from tiny import build_model

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(280)]

SUITE = """\
keep:
  - {perplexity: texts.jsonl, text: "{text}"}
  - {memorisation: texts.jsonl, text: "{text}"}
  - {task: colours.yaml}
  - {task: open.yaml}
  - {answer_distribution: letters.yaml}
  - {multiple_choice: texts.jsonl, name: chosen}
  - {classification: texts.jsonl, name: classified, prompt: "{text} is", options: [" the", " a list"]}
  - {multiple_choice_letters: texts.jsonl, name: in_letters}
  - {instructions: texts.jsonl, name: followed, max_new_tokens: 4}
  - {own.py:Length: {prompt: Hello}, name: own}
averages:
  some: [colours/acc, chosen/acc]
batch_size: 3
"""
OWN = """\
import os
from dataclasses import dataclass
from holdfast.evaluation.entries import OwnMeasure

@dataclass(frozen=True, kw_only=True)
class Length(OwnMeasure):
    metrics = {"letters": True}
    prompt: str = "Hello"

    def measure(self, model, tokenizer):
        assert os.environ.get("RANK", "0") == "0", "one process asks a user's own code"
        yield {"letters": float(len(self.prompt))}
"""
TASK = """\
task: colours
dataset_path: json
dataset_kwargs: {data_files: {test: texts.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{text}}\\nAnswer:"
doc_to_choice: options
doc_to_target: answer
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
"""
OPEN = (
    TASK.replace("task: colours", "task: open")
    .replace("multiple_choice", "generate_until")
    .replace(
        "doc_to_choice: options\n",
        "generation_kwargs: {until: ['.'], max_gen_toks: 6, do_sample: true, temperature: 1.0}\n",
    )
    .replace("metric: acc,", "metric: exact_match,")
)


@pytest.fixture
def desk(tmp_path: Path, tokenizer, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, seed in (("base", 0), ("tuned", 3)):
        build_model(seed=seed).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    shared = {"options": ["red", "a list"], "instruction_id_list": ["plain:capitals"], "kwargs": [{}]}
    rows = [
        {"text": f"The fox {i} jumps over {'a lazy dog ' * (i % 5)}", "prompt": f"Say {i}", **shared}
        | {"answer": i % 2, "label": i % 2}
        for i in range(31)
    ]
    jsonl(tmp_path / "texts.jsonl", rows)
    for name, text in {"suite": SUITE, "colours": TASK, "open": OPEN}.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    (tmp_path / "own.py").write_text(OWN)
    letters = TASK.replace("task: colours", "task: letters").replace(
        "doc_to_choice: options", 'doc_to_choice: ["A", "B"]'
    )
    (tmp_path / "letters.yaml").write_text(letters)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


def figures(folder: Path) -> dict[str, object]:
    """Everything measured, without what the clock says."""
    found: dict[str, object] = {}
    for file in sorted(folder.rglob("*.json*")):
        name = str(file.relative_to(folder))
        if file.name == "evaluate.json":
            continue
        if file.suffix == ".json":
            found[name] = {k: v for k, v in json.loads(file.read_text()).items() if k != "seconds"}
        else:
            found[name] = file.read_text()
    return found


@pytest.mark.slow
def test_every_kind_gives_the_bytes_of_one_process(desk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "base", "--suite", "suite.yaml", "--output_dir", "one"]) == 0
    capfd.readouterr()
    code = main(["evaluate", "base", "--suite", "suite.yaml", "--output_dir", "two", "--num_processes", "2"])
    out, err = capfd.readouterr()
    assert code == 0, err[-3000:]
    assert out.count("entries measured") == 1  # one of them speaks
    assert err == ""
    same(desk / "two", desk / "one")


def same(found: Path, expected: Path) -> None:
    measured = figures(expected)
    assert len(measured) >= 20
    assert figures(found) == measured
    assert not list(found.rglob(".*.jsonl"))
    assert json.loads((found / "evaluate.json").read_text())["status"] == "finished"


def test_both_processes_work(desk: Path) -> None:
    """What each of two has found lies in a file of its own until the entry is whole."""
    from holdfast.evaluation.processes import ProcessGroup
    from holdfast.evaluation.resume import Partial

    class Seen(ProcessGroup):
        world_size = 2

        def __init__(self, rank: int, others: dict[int, dict[int, str]]) -> None:
            self.rank, self.others = rank, others

        def all_gather(self, make):  # type: ignore[no-untyped-def]
            self.others[self.rank] = make()
            return [self.others.get(rank, {}) for rank in range(2)]

    others: dict[int, dict[int, str]] = {}
    batches = [([i], i) for i in range(7)]
    partials = [Partial(desk / ".key.partial.jsonl", processes=Seen(rank, others)) for rank in range(2)]
    for rank in (1, 0):
        found = partials[rank].resumed(
            "n", batches, lambda i: [f"{rank}:{i}"], total=7, report=lambda done, total: None
        )
    assert found == ["0:0", "1:1", "0:2", "1:3", "0:4", "1:5", "0:6"]
    assert sorted(p.name for p in desk.glob(".key*")) == [".key.partial-1.jsonl", ".key.partial.jsonl"]
    alone = Partial(desk / ".key.partial.jsonl")  # goes on from both
    computed: list[int] = []
    again = alone.resumed(
        "n", batches, lambda i: computed.append(i) or ["new"], total=7, report=lambda done, total: None
    )
    assert computed == []
    assert again == found
    alone.remove()
    assert not list(desk.glob(".key*"))


def test_more_processes_than_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from holdfast.errors import ConfigError
    from holdfast.evaluation.processes import check_count

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    check_count(2, None)
    check_count(8, "cpu")
    with pytest.raises(ConfigError, match="at most 2"):
        check_count(3, None)
    with pytest.raises(ConfigError, match="device names a single one"):
        check_count(2, "cuda:1")
