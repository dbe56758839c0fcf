"""`holdfast update` from new text to page, on models of a few thousand parameters."""

from __future__ import annotations

import io
import json
import shutil

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from data_files import jsonl
from holdfast.cli.main import main
from holdfast.errors import ConfigError, DataError, Interrupted, ModelError, RunFolderError
from holdfast.records.evaluation import EvaluationFolder
from holdfast.records.residual import read_update
from holdfast.records.run import RunFolder
from holdfast.studies.engine.session import execute_study, open_existing
from holdfast.studies.update import study
from holdfast.studies.update.plan import UpdateConfig
from holdfast.support.files import read_jsonl

SAID = (("user", "Say"), ("assistant", "I say"))


def run(keys, console=None):
    console = console or Console(file=io.StringIO(), width=120)
    return execute_study(study.UpdateStudy(UpdateConfig.read(keys)), console=console)


@pytest.fixture(scope="module")
def finished(request, tmp_path_factory):
    """An update with every arm, made once."""
    pair, news = request.getfixturevalue("pair"), request.getfixturevalue("news")
    out = tmp_path_factory.mktemp("update") / "out"
    prompts = out.parent / "prompts.jsonl"
    turns = [[{"role": role, "content": f"{say} {n}."}] for n in range(9) for role, say in SAID]
    rows = [{"prompt": asked, "completion": answer} for asked, answer in zip(turns[::2], turns[1::2], strict=True)]
    jsonl(prompts, rows)
    keys = {
        "base": str(pair[0]),
        "instruct": str(pair[1]),
        "corpus": str(news),
        "held_out": 0.2,
        "window": 64,
        "tokens": 600,
        "epochs": 3,
        "continued_instruct": True,
        "restore": {"prompts": str(prompts), "steps": 12, "max_completion_length": 8},
        "output_dir": str(out),
        "train": request.getfixturevalue("training"),
    }
    return keys, out, run(keys)


def test_the_result_is_the_continued_base_with_the_residual(finished, pair):
    _, out, record = finished
    result = load_file(out / record.model(record.result).path / "model.safetensors")
    continued = load_file(out / "runs" / "base-600" / "model.safetensors")
    base, instruct = (load_file(folder / "model.safetensors") for folder in pair)
    for name, weight in result.items():
        expected = continued[name].double() + instruct[name].double() - base[name].double()
        torch.testing.assert_close(weight.double(), expected, atol=1e-6, rtol=0)
    moved = sum(float((continued[n] - base[n]).norm()) for n in base)
    assert moved > 0


def test_the_instruct_models_template_travels(finished):
    _, out, record = finished
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(out / record.model(record.result).path)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "<user>hi"


def test_all_models_are_measured_and_compared(finished):
    _, out, record = finished
    assert record.status == "finished" and record.result == "base-600-residual"
    names = {"base", "instruct", "base-600", "instruct-600", "base-600-residual"}
    names |= {"instruct-600-distilled"}
    assert {m.name for m in record.models} == names and len(record.models) == len(names)
    for model in record.models:
        entry = EvaluationFolder(out / model.evaluations).find("new_text", "held_out")
        assert entry is not None and entry.model["hash"] == model.hash
    pairs = {(p.before, p.after) for p in record.pairs}
    assert pairs == {
        ("base", "instruct"),
        ("base", "base-600"),
        ("instruct", "instruct-600"),
        ("instruct", "base-600-residual"),
        ("instruct-600", "base-600-residual"),
        ("instruct", "instruct-600-distilled"),
        ("instruct-600", "instruct-600-distilled"),
        ("base-600-residual", "instruct-600-distilled"),
        ("base-600", "base-600-residual"),
        ("base", "base-600-residual"),
    }
    learnt = next(p for p in record.pairs if (p.before, p.after) == ("base", "base-600")).comparisons[0]
    assert learnt.gain > 0, "it was trained on text like the held-out one"


def test_the_second_stage_holds_the_continued_instruct_model_to_the_one_before(finished, pair):
    _, out, record = finished
    model = record.model("instruct-600-distilled")
    run = RunFolder(out / model.path)
    config = run.read().config
    assert config["max_steps"] == 12 and config["on_policy"]["max_completion_length"] == 8
    assert config["model_name_or_path"].endswith("runs/instruct-600")
    [method] = config["retention"]
    assert method["label_annealing"]["reference"] == str(pair[1])
    assert method["label_annealing"]["direction"] == "reverse"
    before, after = (load_file(out / "runs" / n / "model.safetensors") for n in ("instruct-600", model.name))
    moved = sum(float((after[n] - before[n]).norm()) for n in before)
    assert moved > 0 and model.tokens == record.model("instruct-600").tokens
    assert model.seconds > record.model("instruct-600").seconds
    kl = [row["kl"] for row in run.metrics() if "kl" in row]
    assert kl and all(value > 0 for value in kl)


def test_budget_and_epochs_are_kept(finished):
    _, out, record = finished
    about = json.loads((out / "corpus" / "600.jsonl.json").read_text())
    trained = record.model("base-600")
    assert abs(about["tokens"] - 600) <= 60
    assert trained.tokens == pytest.approx(3 * about["tokens"], rel=0.02)
    assert trained.flops == 6.0 * trained.parameters * trained.tokens
    assert record.model("base").tokens == 0 and record.model("base").flops == 0.0


def test_held_out_documents_are_not_trained_on(finished):
    _, out, record = finished
    held = {row["text"] for row in read_jsonl(out / "corpus" / "all.heldout.jsonl")}
    assert held and len(held) == record.corpus["held_out"]
    assert not held & {row["text"] for row in read_jsonl(out / "corpus" / "600.jsonl")}
    assert record.corpus["first_date"].startswith("2024-01")


def test_the_page_and_the_record_are_there(finished):
    _, out, record = finished
    assert read_update(out).result == record.result
    page = out / "report.html"
    text = page.read_text()
    assert "base-600-residual" in text or "residual" in text
    page.unlink()
    assert main(["report", str(out)]) == 0
    assert page.read_text() == text, "the same page, from what lies in the folder"


def test_the_same_command_does_nothing_twice(finished, monkeypatch):
    keys, out, record = finished
    before = {p: p.stat().st_mtime_ns for p in out.rglob("*.safetensors")}
    monkeypatch.setattr("holdfast.evaluation.runner.evaluate", lambda *a, **k: pytest.fail("measured again"))
    again = run(keys)
    assert {p: p.stat().st_mtime_ns for p in out.rglob("*.safetensors")} == before
    assert again.result == record.result and [m.hash for m in again.models] == [m.hash for m in record.models]


def test_another_process_reads_the_same_record_from_the_storage(finished):
    _, out, record = finished
    with open_existing(out) as opened:
        read = opened.record()
    assert (read.models, read.corpus, read.ancestry) == (record.models, record.corpus, record.ancestry)


def test_another_request_in_the_folder_is_refused(finished):
    keys, _out, _ = finished
    with pytest.raises(RunFolderError, match="epochs: was 3, is 2"):
        run({**keys, "epochs": 2})


def test_an_interruption_while_the_text_is_read_is_continued(request_of, monkeypatch):
    monkeypatch.setattr(study, "new_text", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt))
    for _ in range(2):
        with pytest.raises(Interrupted, match="Run the same command to continue"):
            run(request_of(tokens=400))


# ------------------------------------------------------------------------------------------------------------ bad input


def test_all_mistakes_at_once(request_of, tmp_path):
    with pytest.raises(ConfigError) as caught:
        UpdateConfig.read(
            request_of(
                instrct="x",
                corpus=str(tmp_path / "nwes.jsonl"),
                tokens="lots",
                epochs=0,
                keep_weights="everything",
                train={"learning_rat": 1e-3, "seed": 3},
                scale="x",
                held_out=1.5,
            )
        )
    text = str(caught.value)
    for said in (
        "unknown key 'instrct'. Did you mean 'instruct'?",
        "no such file or folder",
        "tokens: expected a number",
        "epochs: expected a number above 0",
        "keep_weights: expected one of",
        "train.seed: is set by the key 'seed'",
        "scale: expected a number",
        "held_out: expected",
    ):
        assert said in text, said
    with pytest.raises(ConfigError) as caught:
        UpdateConfig.read(request_of(base=None, corpus=None))
    text = str(caught.value)
    for said in ("base: is missing", "corpus: is missing"):
        assert said in text, said


def test_a_corpus_smaller_than_the_budget(request_of):
    with pytest.raises(ConfigError, match=r"the corpus has [\d,]+ tokens in \d+ documents.*less than the budget of 1M"):
        run(request_of(tokens="1M"))


def test_other_vocabularies_are_refused(request_of, pair, tmp_path):
    from tiny import build_model, build_tokenizer

    other = tmp_path / "other"
    build_model(vocab_size=300).save_pretrained(other)
    build_tokenizer(vocab_size=300).save_pretrained(other)
    with pytest.raises(ModelError, match=r"vocabulary|rows|tokens"):
        run(request_of(instruct=str(other)))
    assert not list((tmp_path / "out").glob("runs/*")), "before anything is trained"


def test_what_the_models_are_warned_about_is_said_although_the_corpus_fails(request_of, tmp_path, monkeypatch):
    monkeypatch.setattr(study, "check_models", lambda config: (["WARNING: no child of the base"], []))
    console = Console(file=io.StringIO(), width=300)
    with pytest.raises(ConfigError, match="less than the budget"):
        run(request_of(tokens="1M"), console)
    assert console.file.getvalue().count("WARNING: no child of the base") == 1
    assert not (tmp_path / "out").exists(), "a refused request leaves nothing"


@pytest.mark.parametrize(("dtype", "told"), [("bfloat16", True), ("float32", False)])
def test_steps_that_would_be_rounded_away_are_told_of_before_anything_is_trained(request_of, training, dtype, told):
    keys = request_of(train={**training, "dtype": dtype, "learning_rate": 1e-6})
    lines = study.UpdateStudy(UpdateConfig.read(keys)).dry_run()
    notes = [line for line in lines if line.startswith("Note: train: About ")]
    assert bool(notes) == told and all("Train with dtype: float32" in note for note in notes)


@pytest.mark.slow
def test_only_documents_that_are_new(request_of):
    record = run(request_of(after="2024-07-01"))
    assert record.corpus["first_date"] >= "2024-07-01" and sum(record.corpus["skipped"].values()) > 0


def test_a_corpus_too_small_for_the_share_that_is_held_out(request_of, news, tmp_path, monkeypatch):
    """The default share gives way; a share that was asked for is refused by its own name, and may be corrected."""
    from holdfast.studies.update.model_builder import ModelBuilder

    few = tmp_path / "few.jsonl"
    few.write_text("".join(news.read_text().splitlines(keepends=True)[:30]))
    with pytest.raises(DataError, match=r"held_out: 0.001 of 30 documents is less than one document. Give"):
        run(request_of(corpus=str(few), held_out=0.001))
    monkeypatch.setattr(ModelBuilder, "make", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(Interrupted):
        run(request_of(corpus=str(few), held_out=None))
    record = read_update(tmp_path / "out")
    assert record.corpus["held_out"] > 0 and record.corpus["documents"] + record.corpus["held_out"] == 30
    assert any("20% are held out" in note for note in record.notes)


def test_a_folder_of_others_is_not_touched(request_of, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="files that do not belong to a study"):
        run(request_of())
    shutil.rmtree(tmp_path / "out")
