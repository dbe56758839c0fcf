"""What `holdfast train` says to wrong requests and to bad luck: exit code, file, line, what was expected and what came;
never a traceback."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save

from data_files import text_rows
from holdfast.cli.main import main
from holdfast.records.run import RunFolder
from small_runs import train_words
from tiny import SENTENCES, build_tokenizer

Say = Callable[..., tuple[int, str]]


@pytest.fixture
def say(place: Path, capsys: pytest.CaptureFixture[str]) -> Say:
    """Runs the command and gives its exit code and what it wrote on standard error, after a look for tracebacks."""

    def run(*more: str, **changes: str) -> tuple[int, str]:
        capsys.readouterr()
        options = [
            f"--{name}={value}" for name, value in {"max_steps": "6", "learning_rate": "1e-3", **changes}.items()
        ]
        code = main(train_words(*options, *more))
        out, err = capsys.readouterr()
        assert "Traceback" not in err and "Traceback" not in out
        assert code != 0 or err == ""
        return code, err

    return run


# ----------------------------------------------------------------------------------------------------------------- data


def test_rows_that_fill_no_batch_are_refused_before_the_model_is_loaded(
    say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.runs import loading

    monkeypatch.setattr(loading, "load_model", lambda config: pytest.fail("the model was loaded"))
    code, err = say("--dataloader_drop_last", per_device_train_batch_size="640")
    assert code == 2 and "expected at least 640 training rows (one batch)" in " ".join(err.split())


def test_a_run_that_takes_no_step_fails(say: Say, place: Path) -> None:
    """Packed rows are counted only once they are packed."""
    code, err = say("--dataloader_drop_last", "--packing", per_device_train_batch_size="640")
    assert code == 2 and "No optimiser step was taken" in " ".join(err.split())
    assert RunFolder(place / "out").read().status == "failed"


def test_bad_data_shows_before_anything_slow(say: Say, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken row, also of replay data, is found before the start model is evaluated; once mended, the same command
    works in the same folder."""
    from holdfast.runs import run

    (place / "prose.jsonl").write_text('{"text": "Held out."}\n')
    (place / "old.jsonl").write_text('{"text": "good"}\n{"text": 3\n')
    more = ("--keep", "prose.jsonl", "--retention", "replay:data=old.jsonl")
    with monkeypatch.context() as patch:
        patch.setattr(run._Run, "evaluate", lambda *_: pytest.fail("evaluated before the data was read"))
        code, err = say(*more)
    assert code == 2 and "old.jsonl, line 2" in err
    assert not Path("out").exists()
    (place / "old.jsonl").write_text('{"text": "good"}\n{"text": "too"}\n')
    assert say(*more)[0] == 0
    assert RunFolder("out").read().error is None


def test_a_mistake_that_stopped_a_run_before_its_first_step_does_not_block_the_folder(say: Say, place: Path) -> None:
    (place / "data.jsonl").write_text('{"q": "a", "a": "b"}\n' * 8)
    Path("out").mkdir()  # a folder of the user's stays
    assert say(dataset_name="data.jsonl")[0] == 2
    assert RunFolder("out").read().status == "failed"
    assert say("--data", '{prompt: "{q}", completion: "{a}"}', dataset_name="data.jsonl")[0] == 0
    assert RunFolder("out").read().data["format"] == "prompt_completion"


# ----------------------------------------------------------------------------------------------------------- the folder


def test_a_refused_run_leaves_no_folder(say: Say, place: Path) -> None:
    """Whenever it is found out: before the folder is made, at the data, at the model, at a method that does not fit."""
    (place / "bad.jsonl").write_text('{"text": 3\n')
    for more, changes in (
        (("--learning_rate", "many"), {}),
        ((), {"dataset_name": "bad.jsonl"}),
        (("--retention", "sfa:every=25"), {"max_steps": "-1", "num_train_epochs": "2"}),
    ):
        before = sorted(p.name for p in place.iterdir())
        assert say(*more, output_dir="runs/new/out", **changes)[0] == 2
        assert sorted(p.name for p in place.iterdir()) == before
    (place / "runs").mkdir()
    assert say(output_dir="runs/new/out", dataset_name="bad.jsonl")[0] == 2
    assert list((place / "runs").iterdir()) == []


@pytest.mark.parametrize("content", ["[]", "{}", "{"])
def test_a_record_that_is_none(content: str, say: Say) -> None:
    Path("out").mkdir()
    Path("out/run.json").write_text(content)
    code, err = say()
    assert code == 2
    assert "Expected the record of a run in out/run.json, but it cannot be read" in err
    assert Path("out/run.json").read_text() == content
    assert [p.name for p in Path("out").iterdir() if not p.name.startswith(".")] == ["run.json"]


# -------------------------------------------------------------------------------------------------- model and tokenizer


def save_tokenizer(place: Path, **special: Any) -> None:
    for file in (place / "tiny").glob("*token*"):
        file.unlink()
    build_tokenizer(**special).save_pretrained(place / "tiny")


def test_a_tokenizer_without_end_of_sequence(say: Say, place: Path) -> None:
    save_tokenizer(place, eos_token=None)
    code, err = say()
    assert code == 2
    assert "has no end-of-sequence token" in err and "Set eos_token" in err and "<|pad|>" in err
    code, err = say("--eos_token", "<|endoftxt|>")
    assert code == 2 and "eos_token: expected a token of the vocabulary of tiny, got '<|endoftxt|>'" in err
    assert say("--eos_token", "<|endoftext|>")[0] == 0


# ---------------------------------------------------------------------------------------------------- the output folder


def test_a_folder_with_another_run(say: Say, place: Path) -> None:
    assert say()[0] == 0
    before = (place / "out" / "run.json").read_bytes()
    code, err = say(learning_rate="2e-3")
    assert (
        code == 2
        and "out contains another run (out, finished)" in err
        and "learning_rate: 0.001 before, 0.002 now" in err
    )
    assert (place / "out" / "run.json").read_bytes() == before


def test_a_folder_with_other_files_is_left_alone(say: Say, place: Path) -> None:
    (place / "out").mkdir()
    (place / "out" / "thesis.txt").write_text("ten years of work")
    code, err = say()
    assert code == 2 and "out contains files that do not belong to a holdfast run" in err
    assert [p.name for p in (place / "out").iterdir()] == ["thesis.txt"]


INPUTS = [
    "tiny/model.safetensors",
    "tiny/config.json",
    "tiny/tokenizer.json",
    "train.jsonl",
    "old.jsonl",
    "anchor/model.safetensors",
    "teacher/config.json",
    "chat.jinja",
]
"""What a run is made of, file by file."""


def changed_file(file: Path) -> bytes:
    """What a file could hold instead, so that everything can still be loaded."""
    if file.suffix == ".safetensors":
        return save({name: tensor + 1 for name, tensor in load_file(file).items()}, metadata={"format": "pt"})
    if file.name == "config.json":
        return json.dumps({**json.loads(file.read_text()), "rms_norm_eps": 0.5}).encode()
    if file.name == "tokenizer.json":
        return file.read_bytes() + b" "
    return file.read_bytes() + (b'{"text": "one more"}\n' if file.suffix == ".jsonl" else b"!")


def test_a_run_is_held_to_every_input(say: Say, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.runs import run

    for copy in ("anchor", "teacher"):
        shutil.copytree(place / "tiny", place / copy)
    shutil.copy("train.jsonl", "old.jsonl")
    (place / "chat.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    options = ["--chat_template_path", "chat.jinja", "--retention", "replay:data=old.jsonl,fraction=0.3"]
    options += ["--retention", "l2:coefficient=0.1,reference=anchor"]
    options += ["--retention", "label_annealing:teacher=online,reference=teacher"]
    with monkeypatch.context() as patch:
        patch.setattr(run._Run, "save", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        assert say(*options)[0] == 130
    for finished in (False, True):  # in the middle and at the end alike
        for file in INPUTS:
            path = place / file
            old = path.read_bytes()
            path.write_bytes(changed_file(path))
            code, err = say(*options)
            assert code == 2 and "changed since the run in out began" in err, file
            assert "choose a new output_dir" in err.lower()
            assert file.split("/")[0] in err
            path.write_bytes(old)
        if not finished:
            assert say(*options)[0] == 0
    assert RunFolder("out").read().status == "finished"


def test_a_model_and_data_that_were_moved_are_the_same(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.runs import run

    with monkeypatch.context() as patch:
        patch.setattr(run._Run, "save", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        assert say()[0] == 130
    shutil.move("tiny", "moved")
    shutil.move("train.jsonl", "moved.jsonl")
    moved = {"model_name_or_path": "moved", "dataset_name": "moved.jsonl"}
    code, err = say(**moved, learning_rate="2e-3")
    assert code == 2 and "dataset_name: train.jsonl before, moved.jsonl now" in err and "0.001 before, 0.002 now" in err
    for finished in (False, True):
        assert say(**moved)[0] == 0, finished
    record = RunFolder("out").read()
    assert (record.status, record.config["dataset_name"]) == ("finished", "moved.jsonl")


# -------------------------------------------------------------------------------------------------------------- methods


def test_files_of_other_models_are_all_named_before_the_start_is_evaluated(
    say: Say, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An anchor of another vocabulary, one of another architecture, and Fisher information of another model, in one
    message."""
    from holdfast.runs import run
    from tiny import build_model

    build_model(vocab_size=300).save_pretrained(place / "words")
    build_model(layers=1).save_pretrained(place / "short")
    build_model(seed=5).save_pretrained(place / "other")
    build_tokenizer().save_pretrained(place / "other")
    assert main(["fisher", "other", "--data", "train.jsonl", "--samples", "2", "--output_dir", "fisher"]) == 0
    monkeypatch.setattr(run._Run, "evaluate", lambda *_: pytest.fail("evaluated"))
    methods = "--retention l2:reference=words --retention sfa:reference=short --retention ewc:fisher=fisher"
    code, err = say(*methods.split(), "--keep", "train.jsonl")
    said = " ".join(err.split())
    assert code == 2
    assert "l2.reference: The reference words does not fit the model being trained" in said
    assert "sfa.reference: The reference short does not fit the model being trained" in said
    assert "ewc.fisher: The Fisher information fisher was computed on another model" in said
    assert not list(Path("out").glob("checkpoint-*"))


# ------------------------------------------------------------------------------------------------------------- bad luck


@pytest.mark.parametrize("more", [(), ("--use_peft",)])
def test_no_space_from_the_start(more: tuple[str, ...], say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil._ntuple_diskusage(10**9, 10**9 - 20_000, 20_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    code, err = say(*more)
    assert code == 2 and "No room in out" in err and "save_strategy: 'no'" in err
    assert "0.00 GB" not in err  # sizes in a unit that shows them


def test_a_sample_that_gives_nan_stops_the_run(say: Say, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token whose embedding is not a number: the run stops at its step, names the sample, and keeps the last good
    checkpoint."""
    from holdfast.training.mixin import RetentionMixin

    original = RetentionMixin.training_step

    def poisoned(self, model, inputs, *args, **kwargs):
        if self.state.global_step == 4:
            with torch.no_grad():
                self.model.get_input_embeddings().weight[int(inputs["input_ids"][2, 3])] = torch.nan
        return original(self, model, inputs, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(RetentionMixin, "training_step", poisoned)
        code, err = say()
    assert code == 1
    assert "Training stopped at step 5: the model's logits are not finite" in err
    assert "Samples of this step:" in err and "of the prepared training data: '" in err
    assert "The last good checkpoint is out/checkpoint-4" in err and "use the previous checkpoint, checkpoint-2" in err
    for checkpoint in ("checkpoint-2", "checkpoint-4"):
        assert all(t.isfinite().all() for t in load_file(place / "out" / checkpoint / "model.safetensors").values())
    assert not (place / "out" / "model.safetensors").exists()
    record = RunFolder("out").read()
    assert record.status == "failed" and record.error.startswith("Training stopped at step 5")
    assert (place / "out" / "report.html").is_file()
    assert say()[0] == 0  # nothing on disk was spoilt


def test_weights_that_are_not_finite_are_never_saved(say: Say, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.training.mixin import RetentionMixin

    original = RetentionMixin.after_optimizer_step

    def spoil(self):
        original(self)
        if self.state.global_step == 4:
            with torch.no_grad():
                self.model.model.norm.weight[0] = torch.inf

    monkeypatch.setattr(RetentionMixin, "after_optimizer_step", spoil)
    code, err = say()
    assert code == 1
    assert (
        "Training stopped at step 4: 1 parameters are no longer finite (model.norm.weight). "
        "The weights were not saved." in err
    )
    assert "Samples of this step:" in err and "of the prepared training data" in err
    assert "The last good checkpoint is out/checkpoint-2" in err
    assert [p.name for p in (place / "out").glob("checkpoint-*")] == ["checkpoint-2"]


def test_an_evaluation_loss_of_nan_is_nobodys_best(say: Say, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compared with it no loss is better: with load_best_model_at_end its checkpoint would be the result."""
    from holdfast.training.mixin import RetentionMixin

    original = RetentionMixin.prediction_step

    def spoil(self, *args, **kwargs):
        loss, *rest = original(self, *args, **kwargs)
        return (loss * torch.nan if self.state.global_step == 2 else loss, *rest)

    monkeypatch.setattr(RetentionMixin, "prediction_step", spoil)
    on = ("--eval_strategy", "steps", "--eval_steps", "2", "--dataset_test_split", "train")
    code, err = say(*on, "--load_best_model_at_end", "true", max_steps="4")
    assert code == 1 and "Training stopped at step 2: eval_loss is nan" in err
    assert not (place / "out" / "model.safetensors").exists()
    assert not any("eval_loss" in row for row in RunFolder("out").metrics())


@pytest.mark.parametrize("which", ["start", "result"])
def test_a_model_that_says_nan_is_no_finished_run(
    which, say: Say, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before training it is known at once; after it the comparison says so, and the run has failed."""
    from holdfast.runs import run

    original = run._Run.evaluate

    def spoil(self, measured, model, identity):
        weight = model.get_input_embeddings().weight
        held = weight.detach().clone()
        if measured == which:
            with torch.no_grad():
                weight.fill_(torch.nan)
        try:
            original(self, measured, model, identity)
        finally:
            with torch.no_grad():
                weight.copy_(held)

    text_rows("prose.jsonl", SENTENCES)
    with monkeypatch.context() as patch:
        patch.setattr(run._Run, "evaluate", spoil)
        code, err = say("--keep", "prose.jsonl", max_steps="2")
    assert code == 4 and "keep/prose: " in err and "samples hold NaN or infinity" in err
    folder = RunFolder("out")
    record = folder.read()
    assert record.status == "failed" and record.stage == f"evaluate {which}" and "keep/prose" in str(record.error)
    if which == "start":
        assert not (place / "out" / "metrics.jsonl").exists(), "nothing is trained that cannot be compared"
        return
    found = folder.comparisons()
    assert [c.verdict for c in found] == ["not finite"] * len(found) and found
    assert "NaN or infinity: these comparisons are invalid." in (place / "out" / "report.html").read_text()
