"""The next step after a comparison: which case is which, and that a command is one that runs as it is written."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from evaluated_folders import answers, write
from holdfast.cli.main import main
from holdfast.evaluation.compare.next_step import NextStep, entry_mapping, next_step
from holdfast.evaluation.compare.request import CompareSettings, Side
from holdfast.evaluation.suite import parse_evaluation
from holdfast.records.comparison import ACCEPTED, Comparison, GateOutcome
from holdfast.records.evaluation import EvaluationFolder
from holdfast.records.run import RunFolder, RunRecord
from holdfast.support.files import read_json


def compared(name: str, loss: float, **changes: Any) -> Comparison:
    """An entry of which so many points were lost, two points up or down."""
    change = -loss / 100
    fields = {
        "suite": "keep",
        "name": name,
        "metric": "acc",
        "unit": "accuracy",
        "higher_is_better": True,
        "n": 400,
        "before": 0.6,
        "after": 0.6 + change,
        "difference": change,
        "interval": (change - 0.02, change + 0.02),
        "p_value": 0.001 if loss > 2 else 0.5,
        "test": "McNemar (exact)",
        "chance": 0.25,
    }
    return Comparison(**{**fields, **changes})


LOST = compared("quiz", 10)
KEPT = compared("quiz", 0, interval=(-0.005, 0.005))
PROSE = compared("prose", 10, metric="nats_per_token", chance=None)
OPEN = compared("riddles", 0, needed=2345, detectable=0.03)
STRICT, FLEXIBLE = "exact_match,strict-match", "exact_match,flexible-extract"


def step_of(
    comparisons: Sequence[Comparison],
    kinds: dict[str, str] | None = None,
    *,
    gates: Sequence[GateOutcome] = (),
    models: Sequence[str] = ("", ""),
    **settings: Any,
) -> NextStep | None:
    sides = []
    for label, model in zip(("before", "after"), models, strict=True):
        sides.append(Side(folder=EvaluationFolder("none"), label=label, model=model))
    of_entries = {(c.suite, c.name): (kinds or {}).get(c.name, "multiple_choice") for c in comparisons}
    return next_step(sides, CompareSettings(**settings), comparisons, of_entries, gates)


@pytest.mark.parametrize(
    ("comparisons", "kinds", "said"),
    [
        ([LOST, PROSE], {"prose": "perplexity"}, "keep/quiz: this may be pseudo forgetting"),
        (
            [LOST, compared("habits", 10, metric="turn_ended", chance=None)],
            {"habits": "behaviour"},
            "keep/habits: replies end differently than before",
        ),
        (
            [
                compared("gsm8k", 10, metric=STRICT),
                compared("gsm8k", 0, metric=FLEXIBLE, primary=False),
            ],
            {"gsm8k": "task"},
            f"keep/gsm8k: {STRICT} fell, but there is no evidence that {FLEXIBLE} fell. Perhaps only the format",
        ),
        (
            [
                compared("gsm8k", 10, metric=STRICT),
                compared("gsm8k", 10, metric=FLEXIBLE, primary=False),
            ],
            {"gsm8k": "task"},
            "keep/gsm8k: this may be pseudo forgetting",
        ),
        ([dataclasses.replace(LOST, at_chance=("before", "after"))], {}, "there was nothing to forget"),
        ([dataclasses.replace(LOST, at_chance=("after",))], {}, "may be pseudo forgetting"),
        ([PROSE], {"prose": "perplexity"}, "the loss on text does not show whether knowledge was lost"),
        ([PROSE, KEPT], {"prose": "perplexity"}, "Train with a retention method"),
        (
            [PROSE, dataclasses.replace(PROSE, name="mean", suite="average")],
            {"prose": "perplexity", "mean": "average"},
            "the loss on text does not show whether knowledge was lost",
        ),
        ([KEPT, OPEN], {}, "keep/riddles: not decided yet. Measure about 2,400 samples instead of 400"),
        ([dataclasses.replace(OPEN, at_chance=("after",))], {}, "keep/riddles: not decided yet"),
    ],
    ids=[
        "questions",
        "turns",
        "form",
        "both readings",
        "chance",
        "to chance",
        "text",
        "text alone",
        "mean",
        "samples",
        "one guesses",
    ],
)
def test_the_first_case_that_fits(comparisons: list[Comparison], kinds: dict[str, str], said: str) -> None:
    step = step_of(comparisons, kinds)
    assert step is not None and said in step.text
    assert not step.command, "nobody knows the models"


@pytest.mark.parametrize(
    "comparisons",
    [
        [KEPT],
        [LOST, compared("broken", 0, failed="acc is nan")],
        [dataclasses.replace(OPEN, needed=None)],
        [dataclasses.replace(OPEN, at_chance=("before", "after"))],
    ],
    ids=["kept", "not finite", "no number of samples", "chance on both sides"],
)
def test_no_step_where_none_fits(comparisons: list[Comparison]) -> None:
    assert step_of(comparisons) is None


def test_what_was_accepted_is_no_loss_any_more() -> None:
    accepted = GateOutcome(
        rule="quiz",
        direction="drop",
        operator=">",
        suite="keep",
        name="quiz",
        metric="acc",
        outcome=ACCEPTED,
        value=10.0,
        interval=(8.0, 12.0),
        threshold=12.0,
        unit="pt",
        why=ACCEPTED,
    )
    assert step_of([LOST], gates=[accepted]) is None
    other = dataclasses.replace(LOST, name="riddles")
    step = step_of([LOST, other], gates=[accepted])
    assert step is not None and step.text.startswith("keep/riddles:")


def test_the_page_is_made_by_the_same_comparison() -> None:
    form = [compared("gsm8k", 10, metric=STRICT), compared("gsm8k", 0, metric=FLEXIBLE, primary=False)]
    step = step_of(form, {"gsm8k": "task"}, models=("a", "b"), allow_unpaired=0.1)
    assert step is not None and step.on_page and not step.command, "asked in Python: there are no words"
    with_words = CompareSettings(models=("old logs", "new"), allow_unpaired=0.1)
    sides = [Side(folder=EvaluationFolder("none"), label=label) for label in "ab"]
    step = next_step(sides, with_words, form, {("keep", "gsm8k"): "task"})
    assert step is not None
    assert step.command == "holdfast compare 'old logs' new --allow_unpaired 0.1 --html comparison.html"


# ------------------------------------------------------------------------------------------------------------ commands


def model(folder: str, hidden: int = 8) -> None:
    """What is looked at of a model before its weights are."""
    Path(folder).mkdir(parents=True)
    Path(folder, "config.json").write_text(json.dumps({"hidden_size": hidden}))
    Path(folder, "model.safetensors").write_bytes(b"")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run of a base whose answers to a quiz it lost."""
    monkeypatch.chdir(tmp_path)
    question = {"prompt": "a", "options": [" b", " c"], "answer": 0}
    Path("q.jsonl").write_text(json.dumps(question) + "\n")
    model("base")
    model("runs/new one")
    evaluation = {"keep": [{"multiple_choice": "q.jsonl", "name": "quiz", "length_normalised": False}]}
    folder = RunFolder("runs/new one")
    config = {"model_name_or_path": "base", "evaluation": evaluation}
    folder.write(RunRecord(name="new one", status="finished", config=config, data={"tokens": 1234}))
    for which, right in (("start", 190), ("result", 120)):
        rows = answers([1] * right + [0] * (200 - right))
        write(folder.evaluated(which).path, "keep", "quiz", rows, kind="multiple_choice")
    return folder


def proposed(*words: str) -> dict[str, Any]:
    assert main(["compare", *words, "--json", "found.json"]) == 0
    return dict(read_json("found.json")["next_step"])


def test_the_diagnosis_of_a_run_can_be_run_as_it_is_written(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    step = proposed("runs/new one", "--html", "page.html", "--markdown", "comment.md")
    words = shlex.split(step["command"])
    assert words[:6] == ["holdfast", "diagnose", "--base", "base", "--tuned", "runs/new one"]
    assert words[6:10] == ["--corpus", "generated", "--tokens", "1234"], "an epoch of the fine-tuning's data"
    [entry] = words[words.index("--keep") + 1 :]
    assert json.loads(entry) == {
        "multiple_choice": "q.jsonl",
        "name": "quiz",
        "length_normalised": False,
    }
    last = capsys.readouterr().out.split("Next step: ")[1].splitlines()
    assert last[1] == f"  {step['command']}", "in one line, however long, so that it can be copied"
    assert step["command"].replace("'", "&#x27;").replace('"', "&quot;") in Path("page.html").read_text()
    assert f"```bash\n{step['command']}\n```" in Path("comment.md").read_text()
    assert main([*words[1:], "--dry_run"]) == 0


def test_what_was_not_tuned_from_the_one_before_forgot_nothing(run: RunFolder) -> None:
    model("runs/other")
    other = RunFolder("runs/other")
    other.write(RunRecord(name="other", status="finished", config={"model_name_or_path": "base"}))
    rows = answers([1] * 190 + [0] * 10)
    write(other.evaluated("result").path, "keep", "quiz", rows, kind="multiple_choice")
    step = proposed("runs/other", "runs/new one")
    assert "runs/new one was not tuned from runs/other" in step["text"]
    assert step["command"] == "holdfast compare runs/other 'runs/new one' --html comparison.html"


def test_a_start_forgot_nothing_of_what_was_tuned_from_it(run: RunFolder) -> None:
    sides = [
        Side(folder=run.evaluated("result"), label="new one", model="runs/new one", run=run),
        Side(folder=run.evaluated("start"), label="base", model="base"),
    ]
    step = next_step(sides, CompareSettings(), [LOST], {("keep", "quiz"): "multiple_choice"})
    assert step is not None and "base was not tuned from runs/new one" in step.text


@pytest.mark.parametrize("gone", ["base/config.json", "q.jsonl"])
def test_no_command_where_a_part_of_it_is_gone(run: RunFolder, gone: str) -> None:
    Path(gone).unlink()
    step = proposed("runs/new one")
    assert "may be pseudo forgetting" in step["text"] and not step["command"]


def test_two_models_of_other_sizes_are_not_tuned_from_each_other(run: RunFolder) -> None:
    model("large", hidden=16)
    step = step_of([LOST], models=("base", "large"))
    assert step is not None and "large was not tuned from base" in step.text


def test_an_entry_is_written_as_it_was_read() -> None:
    given = {
        "keep": [
            {"task": "arc_easy", "num_fewshot": 0, "metric": "acc_norm"},
            {"behaviour": "shipped", "name": "habits", "chat_template_kwargs": {"enable_thinking": False}},
        ]
    }
    plan, problems = parse_evaluation(given)
    assert not problems
    written = [json.loads(json.dumps(entry_mapping(entry))) for entry in plan.entries]
    again, problems = parse_evaluation({"keep": written})
    assert not problems and again.entries == plan.entries
