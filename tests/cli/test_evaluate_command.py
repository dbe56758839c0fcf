"""`holdfast evaluate`: what it writes, what it never does twice, and what it refuses."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data_files import jsonl
from holdfast.cli.main import main
from holdfast.records.evaluation import EvaluationFolder
from holdfast.statistics.power import smallest_loss
from holdfast.support.files import read_json
from tiny import build_model

SUITE = """\
description: everything that can be measured
keep:
  - prose.jsonl
  - task: colours.yaml
  - answer_distribution: letters.yaml
learn:
  - {classification: reviews.jsonl, prompt: "{text} is", options: [" the", " a list"]}
  - {memorisation: prose.jsonl}
averages:
  both: [colours/acc, colours/acc_norm, letters-answers/acc]
"""
ENTRIES = ["keep/prose", "keep/colours", "keep/letters-answers", "learn/reviews", "learn/prose-memorisation"]
TASK = """\
task: colours
dataset_path: json
dataset_kwargs: {data_files: {test: colours.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "Question: {{q}}\\nAnswer:"
doc_to_choice: options
doc_to_target: right
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
  - {metric: acc_norm, aggregation: mean, higher_is_better: true}
"""


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    jsonl(path, rows)


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory, tokenizer) -> Path:
    """Models base and tuned, a suite with an entry of every kind, and its files."""
    folder = tmp_path_factory.mktemp("material")
    for name, seed in (("base", 0), ("tuned", 3)):
        build_model(seed=seed).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    write_rows(
        folder / "prose.jsonl", [{"text": f"The quick brown fox {i} jumps over the lazy dog."} for i in range(6)]
    )
    write_rows(folder / "reviews.jsonl", [{"text": f"Answer {i}: four", "label": i % 2} for i in range(6)])
    rows = [
        {"q": f"Is item {i} red or a context manager?", "options": ["red", "a context manager"], "right": i % 2}
        for i in range(6)
    ]
    write_rows(folder / "colours.jsonl", rows)
    (folder / "colours.yaml").write_text(TASK)
    letters = TASK.replace("task: colours", "task: letters").replace(
        "doc_to_choice: options", 'doc_to_choice: ["A", "B"]'
    )
    (folder / "letters.yaml").write_text(letters)
    (folder / "suite.yaml").write_text(SUITE)
    return folder


@pytest.fixture
def desk(material: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory of one's own with all of it."""
    shutil.copytree(material, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_DEBUG", "")
    return tmp_path


@pytest.fixture
def worked(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What was really loaded and measured."""
    from holdfast import models
    from holdfast.evaluation import runner

    seen = SimpleNamespace(loaded=[], measured=[])
    load, measure = models.load, runner.measure

    def spy_load(name: str, **rest: Any) -> Any:
        seen.loaded.append(Path(name).name)
        return load(name, **rest)

    def spy_measure(entry: Any, on: Any) -> Any:
        seen.measured.append(f"{entry.suite}/{entry.name}")
        return measure(entry, on)

    monkeypatch.setattr(models, "load", spy_load)
    monkeypatch.setattr(runner, "measure", spy_measure)
    return seen


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command that must not work; gives what it says."""

    def run(*words: str, code: int = 2) -> str:
        assert main(["evaluate", *words]) == code
        shown = capsys.readouterr()
        assert "Traceback" not in shown.err
        assert shown.out == ""
        return shown.err

    return run


def evaluate(*words: str) -> None:
    assert main(["evaluate", *words]) == 0


# ------------------------------------------------------------------------------------------------------------- it works


def test_two_models_on_a_suite_of_everything(
    desk: Path, capsys: pytest.CaptureFixture[str], worked: SimpleNamespace
) -> None:
    command = ("base", "tuned", "--suite", "suite.yaml", "--output_dir", "out")
    evaluate(*command)
    capsys.readouterr()
    assert worked.loaded == ["base", "tuned"] and worked.measured == ENTRIES * 2
    record = read_json("out/evaluate.json")
    assert record["status"] == "finished" and record["suites"] == ["suite.yaml"]
    models = [(m["label"], m["name"], m["architecture"]) for m in record["models"]]
    assert models == [(n, n, "LlamaForCausalLM") for n in ("base", "tuned")]
    for label in ("base", "tuned"):
        found = EvaluationFolder(desk / "out" / label)
        assert sorted(f"{e.suite}/{e.name}" for e in found.all()) == sorted([*ENTRIES, "average/both"])
        colours, letters = (found.find("keep", name).metrics for name in ("colours", "letters-answers"))
        members = [colours["acc"].value, colours["acc_norm"].value, letters["acc"].value]
        assert found.find("average", "both").metrics["average"].value == pytest.approx(sum(members) / 3)
    assert not list((desk / "out").rglob("*.partial.jsonl"))

    worked.loaded.clear(), worked.measured.clear()
    evaluate(*command)
    assert (worked.loaded, worked.measured) == ([], []), "the second call computes nothing and loads no model"
    assert "base: measured before, nothing to do" in capsys.readouterr().out
    (desk / "prose.jsonl").write_text((desk / "prose.jsonl").read_text().replace("dog", "cat"))
    evaluate(*command, "--skip", "letters-answers", "reviews")
    assert worked.measured == ["keep/prose", "learn/prose-memorisation"] * 2, "what was changed is measured again"


def test_ctrl_c_and_the_same_command_again(
    desk: Path, worked: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, refused
) -> None:
    from holdfast.evaluation import runner

    command = ["base", "tuned", "--suite", "suite.yaml", "--output_dir", "out"]
    measure = runner.measure

    def stops(*args: Any, **rest: Any) -> Any:
        if len(worked.measured) == 2:
            raise KeyboardInterrupt
        return measure(*args, **rest)

    with monkeypatch.context() as patch:
        patch.setattr(runner, "measure", stops)
        assert main(["evaluate", *command]) == 130
    record = read_json("out/evaluate.json")
    assert record["status"] == "interrupted" and record["finished"] is None
    worked.measured.clear()
    evaluate(*command)
    assert worked.measured == [*ENTRIES[2:], *ENTRIES], "what was finished is not measured again"
    assert read_json("out/evaluate.json")["status"] == "finished"


def test_a_label_holds_one_model(
    desk: Path, worked: SimpleNamespace, refused, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was measured of other weights is made anew as a whole, or stays where it is."""
    write_rows(desk / "more.jsonl", [{"text": f"Another text, number {i}."} for i in range(3)])
    evaluate("a=base", "--perplexity", "prose.jsonl", "more.jsonl", "--output_dir", "out")
    worked.loaded.clear(), capsys.readouterr()
    for words in (["a=tuned"], ["b=tuned", "a=tuned"], ["a=tuned", "--cache", "shared"]):
        said = refused(*words, "--perplexity", "prose.jsonl", "--output_dir", "out")
        assert (
            "a: out/a has evaluations of other weights" in said
            and "would stay beside the new ones: measured/more. Give" in said
        )
        assert "another label, as in NEW=MODEL, or use another --output_dir" in said
    assert worked.loaded == [] and not (desk / "out" / "b").exists()
    evaluate("a=tuned", "--perplexity", "prose.jsonl", "more.jsonl", "--output_dir", "out")
    assert len({e.model["hash"] for e in EvaluationFolder("out/a").all()}) == 1


def test_labels_are_folders_and_names(
    desk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(desk))
    evaluate("before=base", "after=~/tuned", "--perplexity", "prose.jsonl", "--output_dir", "out", "--json")
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert list(found["evaluations"]) == ["before", "after"] and list(found["comparisons"]) == ["after"]
    assert "before: loading base (1 of 2)" in shown.err
    assert [m["name"] for m in read_json("out/evaluate.json")["models"]] == ["base", "tuned"]


def test_a_dry_run_checks_everything_and_writes_nothing(
    desk: Path, capsys: pytest.CaptureFixture[str], worked: SimpleNamespace, refused
) -> None:
    before = sorted(desk.rglob("*"))
    evaluate("base", "tuned", "--suite", "suite.yaml", "--skip", "reviews", "--limit", "4", "--dry_run")
    shown = capsys.readouterr().out
    for part in (
        "nothing was measured",
        "tuned: tuned",
        "colours (task, limit 4)",
        "prose (perplexity, max_documents 4",
        "both of 3 figures",
        "evaluated",
    ):
        assert part in shown
    assert "reviews" not in shown
    (desk / "bad.jsonl").write_text('{"a": 1}\n')
    assert "lacks" in refused("base", "--tasks", "arc_easy", "--data", "arc_easy=bad.jsonl", "--dry_run")
    (desk / "bad.jsonl").unlink()
    assert worked.loaded == [] and sorted(desk.rglob("*")) == before


def test_a_plan_says_what_each_entry_can_show_and_how_long_it_takes(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(desk.rglob("*"))
    evaluate("base", "tuned", "--suite", "suite.yaml", "--plan", "--flips", "0.2")
    shown = " ".join(capsys.readouterr().out.split())
    assert f"for {len(ENTRIES)} entries together" in shown and "20 % of the answers differ" in shown
    rows = dict(re.findall(r"((?:keep|learn)/\S+) \S+ (\d+ [\d.]+ pt|\d+ -) [\d.]+", shown))
    assert list(rows) == ENTRIES, shown
    level = 0.025 / len(ENTRIES)
    assert rows["keep/colours"] == f"6 {100 * smallest_loss(6, 0.2, level):.3g} pt"
    assert rows["keep/prose"] == "6 -", "text: known once two models are measured"
    assert sorted(desk.rglob("*")) == before, "nothing is written"


def test_repeating_says_how_far_figures_move_by_themselves(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("base", "tuned", "--suite", "suite.yaml", "--skip", "reviews", "prose-memorisation", "--repeat", "3")
    evaluate(*words)
    assert "base: measured again (2 of 2)" in capsys.readouterr().out
    found = read_json("evaluated/base/repeats.json")
    assert found["times"] == 3 and list(found["figures"]) == ENTRIES[:3]
    assert [len(values) for values in found["figures"]["keep/prose"].values()] == [3, 3, 3]
    assert not list(Path("evaluated").rglob(".repeat-*"))
    found["figures"]["keep/prose"]["nats_per_token"] = [1.0, 9.0, 2.0]
    (desk / "evaluated/base/repeats.json").write_text(json.dumps(found))
    evaluate(*words)
    assert "measured again" not in capsys.readouterr().out, "it was repeated as often before"
    assert main(["compare", "evaluated", "--json", "out.json"]) == 0
    [note] = [note for note in read_json("out.json")["notes"] if "repeated measurements" in note]
    assert note.startswith("keep/prose: the difference in nats_per_token (") and note.endswith("of one model (8).")
    found["keys"]["keep/prose"] = "of other data"
    (desk / "evaluated/base/repeats.json").write_text(json.dumps(found))
    assert main(["compare", "evaluated", "--json", "out.json"]) == 0
    assert not [note for note in read_json("out.json")["notes"] if "repeated measurements" in note]
    evaluate(*words)
    assert "base: measured again" in capsys.readouterr().out, "what was repeated is another evaluation"


def test_compare_measures_models_that_were_not_and_measures_nothing_twice(
    desk: Path, capsys: pytest.CaptureFixture[str], worked: SimpleNamespace
) -> None:
    words = ["compare", "base", "tuned", "--suite", "suite.yaml", "--json", "out.json"]
    assert main(words) == 0
    assert "base" in capsys.readouterr().out
    names = [comparison["name"] for comparison in read_json("out.json")["comparisons"]]
    assert sorted(names) == sorted([*(entry.partition("/")[2] for entry in ENTRIES), "both"])
    loaded = list(worked.loaded)
    assert len(loaded) == 2
    assert main(words) == 0 and worked.loaded == loaded, "both were measured before"
    assert main(["compare", "evaluated:base", "evaluated:tuned", "--suite", "suite.yaml"]) == 2
    assert "all models here have results already. Leave --suite out." in capsys.readouterr().err
    Path("gate.yaml").write_text("entries: {prose: {teir: critical}}")
    assert main(["compare", "base", "other", "--suite", "suite.yaml", "--policy", "gate.yaml"]) == 2
    assert "Did you mean 'tier'?" in capsys.readouterr().err and worked.loaded == loaded, "before anything is measured"
    assert main(["compare", "base", "tuned", "--suite", "knowlege"]) == 2
    assert "Did you mean 'knowledge'?" in capsys.readouterr().err


# --------------------------------------------------------------------------------------------- requests that cannot be


WRONG = [
    (
        [
            "basee",
            "tuned",
            "--suite",
            "knowlege",
            "--tasks",
            "humaneval",
            "--data",
            "piqa=nowhere.jsonl",
            "--limit",
            "0",
        ],
        [
            "6 problems",
            "model: no such model folder: basee",
            "--suite: unknown suite 'knowlege'. Did you mean 'knowledge'?",
            "--tasks: 'humaneval' runs programs that the model writes. Set `allow_code_execution: true` (--allow_code",
            "--data: no entry or task 'piqa' in the plan",
            "--limit: expected a whole number of at least 1, got '0'",
        ],
    ),
    (
        ["a=base", "a=tuned", "b=", "--perplexity", "prose.jsonl"],
        [
            "two models have the label 'a'. Give them different labels, as in before=base after=tuned",
            "expected a model after 'b=', as in b=FOLDER",
        ],
    ),
    (["base", "--data", "arc_easy"], ["--data: 'arc_easy': expected TASK=FILE, as in arc_easy=ARC-Easy.jsonl"]),
    (["base", "--tasks", "colours.yaml", "--skip", "colours"], ["--skip: nothing is left to measure without colours"]),
    (
        ["base", "--tasks", "colours.yaml", "--apply_chat_template"],
        ["'colours' needs a chat template, but the tokenizer has none"],
    ),
    (
        ["base", "--perplexity", "prose.jsonl", "--output_dir", "prose.jsonl"],
        ["Could not write in the output folder prose.jsonl"],
    ),
]


@pytest.mark.parametrize(("words", "parts"), WRONG, ids=lambda v: " ".join(v)[:40])
def test_requests_that_are_refused(desk: Path, refused, words: list[str], parts: list[str]) -> None:
    text = refused(*words)
    assert all(part in text for part in parts), text


def test_models_tasks_and_data_that_do_not_fit_are_one_message(desk: Path, refused, worked: SimpleNamespace) -> None:
    """What takes a look into files: found out before anything is measured, all of it."""
    import torch
    from transformers import BertConfig, BertForMaskedLM

    small = BertConfig(vocab_size=320, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    BertForMaskedLM(small).save_pretrained("bert")
    for file in Path("base").glob("tokenizer*"):
        shutil.copy(file, "bert")
    shutil.copytree("base", "mute")
    for file in Path("mute").glob("tokenizer*"):
        file.unlink()
    shutil.copytree("base", "pickled")
    Path("pickled/model.safetensors").unlink()
    torch.save({}, "pickled/pytorch_model.bin")
    (desk / "columns.jsonl").write_text('{"a": 1}\n')
    write_rows(desk / "empty.jsonl", [{"text": ""}, {"text": "x y"}])
    text = refused(
        *(
            "base",
            "bert",
            "mute",
            "pickled",
            "--tasks",
            "arc_easy",
            "--data",
            "arc_easy=columns.jsonl",
            "--perplexity",
            "empty.jsonl",
        ),
        *("--answer_distribution", "colours.yaml", "--device", "gpu", "--output_dir", "out"),
    )
    text = text[text.index("error: ") :]  # behind the bars of saving above
    assert text.startswith("error: 7 problems in the evaluation:\n")
    for part in (
        "or Qwen2ForCausalLM), got BertForMaskedLM at bert",
        "mute: Expected a tokenizer beside the model at mute, but none can be loaded",
        "pickled: pickled holds only pickled weights (pytorch_model.bin), which can run code when loaded",
        "device: expected one that torch can use here",
        "measured/arc_easy: The task 'arc_easy' reads the columns question, answerKey, choices, but ",
        "columns.jsonl lacks question, answerKey, choices (it has a). Rename or add them",
        "measured/empty: 1 of 2 rows cannot be used as text",
        "empty.jsonl, line 1: 'text' is empty",
        "`answer_distribution` needs options that are one token each, but the tokenizer splits 'red' into 3 tokens",
    ):
        assert part in text


def test_a_folder_with_other_files(desk: Path, refused) -> None:
    (desk / "thesis").mkdir()
    (desk / "thesis" / "chapter.txt").write_text("mine")
    text = refused("base", "--perplexity", "prose.jsonl", "--output_dir", "thesis")
    assert (
        text == "error: Expected a new or empty --output_dir, or the folder of an earlier evaluation; thesis has "
        "other files. Choose another folder.\n"
    )


def test_a_folder_in_use_and_files_that_cannot_be_read(desk: Path, refused) -> None:
    from holdfast.support.environment import lock_folder

    words = ("base", "--perplexity", "prose.jsonl", "--output_dir", "out")
    with lock_folder(desk / "out"):
        assert "Another holdfast process is using out" in refused(*words)
    evaluate(*words)
    for name in ("base/measured.prose.json", "evaluate.json"):
        (desk / "out" / name).write_text("{")
        assert main(["evaluate", *words]) == 2


def nats(out: str, label: str) -> list[float]:
    return [row["nats"] for row in EvaluationFolder(Path(out) / label).samples("measured", "prose")]


@pytest.mark.parametrize("bits", [4, 8])
def test_a_checkpoint_in_few_bits_is_measured_as_it_ships(bits: int, desk: Path, capsys) -> None:
    bitsandbytes = pytest.importorskip("bitsandbytes")
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    asked = {4: {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, 8: {"load_in_8bit": True}}[bits]
    model = AutoModelForCausalLM.from_pretrained(
        desk / "base", quantization_config=BitsAndBytesConfig(**asked), device_map={"": "cpu"}
    )
    model.save_pretrained(desk / "small")
    shutil.copy(desk / "base" / "tokenizer.json", desk / "small")
    shutil.copy(desk / "base" / "tokenizer_config.json", desk / "small")
    kinds = (bitsandbytes.nn.Linear4bit, bitsandbytes.nn.Linear8bitLt)
    assert any(isinstance(module, kinds) for module in model.modules())
    command = ["evaluate", "base", "small", "--perplexity", "prose.jsonl", "--output_dir", "out"]
    assert main(command) == 0
    assert f"quantised to {bits} bits (bitsandbytes" in capsys.readouterr().out
    whole, small = nats("out", "base"), nats("out", "small")
    assert whole != small
    assert small == pytest.approx(whole, rel=0.02)


def test_a_model_over_several_devices(desk: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """As far as one device shows it: the same bytes, and nothing that no device holds."""
    from holdfast.errors import ConfigError, ModelError
    from holdfast.models import load

    command = ["evaluate", "base", "--perplexity", "prose.jsonl"]
    assert main([*command, "--output_dir", "one"]) == 0
    assert main([*command, "--output_dir", "spread", "--device_map", "auto"]) == 0
    assert nats("one", "base") == nats("spread", "base")
    for more in (["--num_processes", "2"], ["--device", "cpu"]):
        capsys.readouterr()
        assert main([*command, "--output_dir", "no", "--device_map", "auto", *more]) == 2
        assert "device_map" in capsys.readouterr().err
    places = {"model.embed_tokens": "cpu", "model.layers": "disk", "model.norm": "cpu", "model.rotary_emb": "cpu"}
    with pytest.raises(ModelError, match="devices with room for all of base"):
        load("base", device_map={**places, "lm_head": "cpu"})
    with pytest.raises(ConfigError, match="cannot be combined with device"):
        load("base", device="cpu", device_map="auto")
