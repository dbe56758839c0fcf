"""`holdfast train` from the command line to the finished folder, on a model of thirty thousand parameters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from checkpoint_folders import read_folder
from data_files import jsonl, text_rows
from holdfast.cli.main import main
from holdfast.records.run import RunFolder, RunRecord
from small_runs import train_words
from tiny import SENTENCES

CHAT = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}{% if "
    "add_generation_prompt %}<|assistant|>{% endif %}"
)
QUESTIONS = [{"question": f"What is {i} plus one?", "answer": f"It is {i + 1}."} for i in range(24)]


@pytest.fixture(autouse=True)
def held_out(place: Path) -> None:
    """Held-out text of both kinds."""
    text_rows("prose.jsonl", [f"{s} So it is said, {n} times." for n in range(2) for s in SENTENCES])
    text_rows("held_out.jsonl", [f"{n}. {s}" for n in (8, 9) for s in SENTENCES])


def run(*more: str, data: str = "train.jsonl", out: str = "out") -> RunRecord:
    assert main(train_words(*more, data=data, out=out)) == 0
    return RunFolder(out).read()


def weights(folder: str) -> dict[str, torch.Tensor]:
    return load_file(Path(folder, "model.safetensors"))


EVALUATED = ("--keep", "prose.jsonl", "--learn", "held_out.jsonl")


def test_a_whole_run_leaves_everything_it_promises(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    record = run("--retention", "label_annealing:weight=0.5", *EVALUATED)
    shown = capfd.readouterr().out
    folder = RunFolder("out")

    assert (record.status, record.stage, record.error) == ("finished", "done", None)
    assert record.data["name"] == "train.jsonl" and record.data["examples"] == 48 and record.data["format"] == "text"
    assert record.data["trained_tokens"] == record.data["tokens"] > 48
    assert record.model["parameters"] == record.model["trainable"] == sum(t.numel() for t in weights("out").values())
    assert record.retention[0]["method"] == "label_annealing"
    assert record.training["steps"] == record.training["total_steps"] == 4 and record.training["sessions"] == 1

    metrics = folder.metrics()
    assert [row["step"] for row in metrics] == [1, 2, 3, 4]
    assert metrics[0]["kl"] == 0.0 and metrics[-1]["kl"] > 0  # the teacher is the start model
    assert all(row["loss"] == pytest.approx(row["ce"] + 0.5 * row["kl"], rel=1e-5) for row in metrics)
    assert (
        metrics[-1]["tokens"]
        == record.training["tokens"]
        == sum(
            b - a for a, b in zip([0, *(r["tokens"] for r in metrics)], [r["tokens"] for r in metrics], strict=False)
        )
    )

    for side in ("start", "result"):
        for suite, name in (("keep", "prose"), ("learn", "held_out")):
            evaluation = folder.evaluated(side).find(suite, name)
            assert (
                evaluation is not None
                and evaluation.metrics["nats_per_token"].n == len(folder.evaluated(side).samples(suite, name)) == 12
            )
    comparisons = folder.comparisons()
    assert {(c.suite, c.name) for c in comparisons if c.primary} == {("keep", "prose"), ("learn", "held_out")}
    assert next(c for c in comparisons if c.primary and c.suite == "learn").verdict == "gained"

    assert {d.layer for d in record.distance} == {"embed", "0", "1", "norm", "total"}
    tuned, start = weights("out"), weights("tiny")
    expected = torch.sqrt(sum((tuned[name] - start[name]).double().square().sum() for name in tuned))
    assert next(d for d in record.distance if d.layer == "total").l2 == pytest.approx(float(expected), rel=1e-4)

    assert not [p.name for p in (place / "out").iterdir() if p.name.startswith(".") and p.name != ".lock"]
    assert {p.name for p in (place / "out").glob("checkpoint-*")} == {"checkpoint-2", "checkpoint-4"}
    assert read_folder(place / "out") == read_folder(place / "out/checkpoint-4")

    model, tokenizer = AutoModelForCausalLM.from_pretrained("out"), AutoTokenizer.from_pretrained("out")
    assert model(**tokenizer("The quick", return_tensors="pt")).logits.isfinite().all()

    for part in (
        "Evaluating the initial model on 2 entries",
        "Fine-tuning with label_annealing: 4 steps",
        "  step 4/4: CE ",
        "Evaluating the result on 2 entries",
        f"\nLoss: {record.training['loss']}\n",
    ):
        assert shown.count(part) == 1


def test_of_a_finished_run_only_another_evaluation_is_computed(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.runs import loading

    def files() -> dict[Path, int]:
        return {p: p.stat().st_mtime_ns for p in (place / "out").rglob("*") if p.is_file()}

    run("--keep", "prose.jsonl")
    kept = [place / "out" / n for n in ("model.safetensors", "metrics.jsonl", "evaluations/result/keep.prose.json")]
    before = [p.stat().st_mtime_ns for p in kept]
    run(*EVALUATED)
    assert [p.stat().st_mtime_ns for p in kept] == before
    assert {c.suite for c in RunFolder("out").comparisons()} == {"keep", "learn"}
    all_files = files()
    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(loading, "load_model", lambda config: pytest.fail("a finished run loads no model"))
        run(*EVALUATED)
    assert "Nothing to do" in capsys.readouterr().out
    assert files() == all_files
    # The same names with other content are evaluated anew, on the result and on the start.
    text_rows("prose.jsonl", [f"{s} Now it is another." for s in SENTENCES])
    run(*EVALUATED)
    assert [
        RunFolder("out").evaluated(side).find("keep", "prose").metrics["nats_per_token"].n
        for side in ("start", "result")
    ] == [6, 6]
    assert [p.stat().st_mtime_ns for p in kept[:2]] == before[:2]


@pytest.mark.parametrize(
    "more", [pytest.param((), marks=pytest.mark.slow), ("--use_peft", "--lora_r", "4", "--lora_dropout", "0.2")]
)
def test_evaluating_before_changes_nothing_of_the_training(more: tuple[str, ...], place: Path) -> None:
    run(*more, out="bare")
    run(*more, *EVALUATED, out="evaluated")
    assert read_folder(place / "bare") == read_folder(place / "evaluated")


def test_lora_saves_its_adapter_and_measures_the_bare_start(place: Path) -> None:
    from peft import AutoPeftModelForCausalLM, PeftModel
    from transformers import AutoModelForCausalLM

    settings = ("--use_peft", "--lora_r", "4", "--lora_target_modules", "q_proj", "v_proj", "--model_init_kwargs", "{}")
    record = run(*settings, "--retention", "label_annealing", *EVALUATED)
    assert (place / "out" / "adapter_config.json").is_file() and not (place / "out" / "model.safetensors").exists()
    assert 0 < record.model["trainable"] < record.model["parameters"]

    run(*EVALUATED, "--max_steps", "1", out="full")  # the start's evaluation does not depend on how it is trained after
    one, two = (RunFolder(out).evaluated("start").find("keep", "prose") for out in ("out", "full"))
    assert one.metrics == two.metrics and one.key == two.key
    after = RunFolder("out").evaluated("result").find("keep", "prose")
    assert after.metrics["nats_per_token"].value != one.metrics["nats_per_token"].value

    merged = AutoPeftModelForCausalLM.from_pretrained("out").merge_and_unload().state_dict()
    start = AutoModelForCausalLM.from_pretrained("tiny").state_dict()
    squares = {"0": 0.0, "1": 0.0}
    for name in start:
        for layer in squares:
            if f"layers.{layer}." in name:
                squares[layer] += float((merged[name] - start[name]).double().square().sum())
    found = {d.layer: d.l2 for d in record.distance}
    assert found.keys() == {"0", "1", "total"}
    for layer, square in squares.items():
        assert found[layer] == pytest.approx(square**0.5, rel=1e-3) and found[layer] > 0
    assert isinstance(PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("tiny"), "out"), PeftModel)


LAYOUTS: dict[str, tuple[list[dict[str, Any]], list[str]]] = {
    "prompt_completion": ([{"prompt": r["question"], "completion": " " + r["answer"]} for r in QUESTIONS], []),
    "instruction": (
        [{"instruction": r["question"], "input": "", "output": r["answer"]} for r in QUESTIONS],
        ["--max_length", "400"],
    ),
    "text": ([{"text": s} for s in SENTENCES * 4], ["--packing"]),
    "chat": (
        [
            {"messages": [{"role": "user", "content": r["question"]}, {"role": "assistant", "content": r["answer"]}]}
            for r in QUESTIONS
        ],
        [],
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str, place: Path) -> None:
    rows, more = LAYOUTS[layout]
    jsonl("rows.jsonl", rows)
    if layout == "chat":
        (place / "tiny" / "chat_template.jinja").write_text(CHAT)
    if layout == "instruction":  # its preamble alone is longer than the tiny model's context
        config = place / "tiny" / "config.json"
        config.write_text(
            config.read_text().replace('"max_position_embeddings": 128', '"max_position_embeddings": 512')
        )
    record = run(*more, data="rows.jsonl")
    assert record.data["format"] == layout and record.data["examples"] == len(rows)
    assert record.data["packed"] is (layout == "text")
    if layout in ("prompt_completion", "instruction"):
        assert 0 < record.data["trained_tokens"] < record.data["tokens"]  # the prompt is given, not learnt
    else:
        assert record.data["trained_tokens"] == record.data["tokens"]
    first, last = (RunFolder("out").metrics()[i]["ce"] for i in (0, -1))
    assert last < first


def write_colour_task(place: Path) -> None:
    rows = [{"q": f"Is item {i} red or blue?", "options": ["red", "blue"], "right": i % 2} for i in range(8)]
    jsonl("colours.jsonl", rows)
    (place / "colour_task.yaml").write_text(
        "task: colour_task\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: "
        "colours.jsonl\ntest_split: test\noutput_type: multiple_choice\n"
        'doc_to_text: "Question: {{q}}\\nAnswer:"\ndoc_to_choice: options\ndoc_to_target: right\n'
        "metric_list:\n  - metric: acc\n    aggregation: mean\n    higher_is_better: true\n"
    )


def test_a_local_harness_task_before_and_after(place: Path) -> None:
    write_colour_task(place)
    record = run("--keep", "colour_task.yaml", "--learn", "held_out.jsonl")
    (found,) = [c for c in RunFolder("out").comparisons() if c.name == "colour_task" and c.primary]
    assert found.metric == "acc" and found.n == 8 and found.test == "McNemar (exact)"
    assert record.status == "finished"
    stamp = (place / "out" / "run.json").stat().st_mtime_ns
    run("--keep", "colour_task.yaml", "--learn", "held_out.jsonl")
    assert (place / "out" / "run.json").stat().st_mtime_ns == stamp


def test_trained_tokens_are_the_labels_that_count():
    from datasets import Dataset

    from holdfast.training.trainers import trained_tokens

    rows = Dataset.from_dict({"input_ids": [[1, 2, 3], [4], [5, 6]], "labels": [[-100, 2, 3], [-100], [5, 6]]})
    assert trained_tokens(rows) == 4
    assert trained_tokens(rows.select([2, 0])) == 4
    assert trained_tokens(rows.select([1])) == 0


def test_no_secret_of_the_request_is_in_a_file(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and variables of the environment; whatever a run writes, its checkpoints and its log for trackers too."""
    secrets = {
        "hub_token": "hf_CANARY1",
        "env": {"WANDB_API_KEY": "CANARY2", "URL": "http://me:CANARY3@host", "A": "sk-CANARY4"},
    }
    for name in secrets["env"]:
        monkeypatch.setenv(name, "")  # what the run sets is taken back
    (place / "secret.yaml").write_text(json.dumps(secrets))
    assert main([*train_words(), "--config", "secret.yaml", "--report_to", "none", "--keep", "held_out.jsonl"]) == 0
    files = [path for path in (place / "out").rglob("*") if path.is_file()]
    assert {"training_args.bin", "run.json", "report.html", "README.md"} <= {path.name for path in files}
    assert [str(path) for path in files if b"CANARY" in path.read_bytes()] == []


def test_steps_that_bfloat16_rounds_away_are_counted() -> None:
    before, few = (n for n in run("--dtype", "bfloat16", "--learning_rate", "1e-6").notes if "rounds away" in n)
    assert before.startswith("About ") and "% of the weights will not change" in before, "said when it begins"
    assert few.startswith("Only ") and " % of the trained weights differ" in few and "dtype: float32" in few
    for more in (("--dtype", "bfloat16"), ("--dtype", "float32", "--learning_rate", "1e-6")):
        assert not [n for n in run(*more, out=f"out-{more[1]}").notes if "rounds away" in n]
