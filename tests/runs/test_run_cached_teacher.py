"""Training with the cached teacher: the online teacher's run without its forward passes; caches are shared, resumed,
checked and rebuilt."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import cases
import pytest
import torch
from cases import history, largest_difference, lora, rows, weights
from datasets import Dataset

from data_files import jsonl
from holdfast.cli.main import main
from holdfast.errors import ConfigError, DataError, ModelError
from holdfast.records.run import RunFolder
from holdfast.retention.methods.label_annealing import LabelAnnealing
from holdfast.retention.teacher.teacher_states import StartModel
from holdfast.training import teacher_cache
from small_runs import train_words
from tiny import SENTENCES, build_tokenizer


def make_trainer(folder: Path, *, teacher="cached", annealing=None, **settings):
    """Plain SGD, so that rounding stays rounding."""
    place = {"cache_dir": str(folder / "cache")} if teacher == "cached" else {}
    method = LabelAnnealing(weight=2.0, teacher=teacher, **place, **(annealing or {}))
    defaults = dict(max_steps=4, optim="sgd", learning_rate=0.1, logging_steps=1)
    return cases.make_trainer(folder, [method], **{**defaults, **settings})


@pytest.fixture
def forwards(monkeypatch):
    """Shapes of all passes through start models as their own teachers."""
    from holdfast.retention.teacher.teacher import AdapterOffTeacher

    seen: list[tuple[int, ...]] = []
    for cls in (StartModel, AdapterOffTeacher):
        whole = cls.hidden

        def counted(self, inputs, whole=whole):
            seen.append(tuple(inputs["input_ids"].shape))
            return whole(self, inputs)

        monkeypatch.setattr(cls, "hidden", counted)
    return seen


def shards(folder: Path) -> list[Path]:
    return sorted((folder / "cache").glob("*/*.safetensors"))


# ------------------------------------------------------------------------------------------------- the same training


LAYOUTS = {
    "padded right": {},
    "padding free": {"padding_free": True, "max_length": None},
    "packed": {"packing": True, "packing_strategy": "bfd", "max_length": 64},
    "packed, split documents, target masked": {
        "packing": True,
        "packing_strategy": "bfd_split",
        "max_length": 24,
        "annealing": {"mask_target": True},
    },
    "packed, wrapped": {"packing": True, "packing_strategy": "wrapped", "max_length": 32},
    "all tokens, accumulation, gradient checkpointing": {
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "gradient_checkpointing": True,
        "annealing": {"tokens": "all"},
    },
}


@pytest.mark.parametrize(
    ("layout", "adapters"),
    [*((name, name == "packed") for name in LAYOUTS), pytest.param("padded right", True, marks=pytest.mark.slow)],
)
def test_training_is_the_online_teachers_but_for_rounding(layout, adapters, tmp_path):
    found = []
    for teacher in ("cached", "adapter_off" if adapters else "online"):
        trainer = make_trainer(tmp_path, teacher=teacher, peft=lora() if adapters else None, **LAYOUTS[layout])
        trainer.train()
        found.append(trainer)
    cached, online = found
    assert largest_difference(weights(cached), weights(online)) < 2e-6
    assert history(cached, "kl") == pytest.approx(history(online, "kl"), rel=1e-3, abs=2e-6)
    assert history(cached, "kl")[-1] > 0 and history(cached, "kl")[0] < 2e-6  # the first step's student is the teacher
    assert history(cached, "entropy") == pytest.approx(history(online, "entropy"), rel=1e-5)
    assert {"name": "cached"}.items() <= cached.teacher_info.items() and online.teacher_info["name"] != "cached"


def test_batches_of_the_same_composition_train_to_the_same_bits(tmp_path):
    """Documents of one length, built in the shape they are trained in."""
    tokenizer = build_tokenizer()
    ids = [t for s in SENTENCES * 8 for t in tokenizer(s)["input_ids"]]
    data = Dataset.from_list([{"input_ids": ids[i : i + 16]} for i in range(0, 16 * 24, 7)])
    found = []
    for teacher in ("cached", "online"):
        trainer = make_trainer(tmp_path, teacher=teacher, data=data)
        if trainer._cache is not None:
            trainer._cache.tokens_per_batch = 4 * 16
        trainer.train()
        found.append(trainer)
    cached, online = found
    assert largest_difference(weights(cached), weights(online)) == 0.0
    assert history(cached, "loss") == history(online, "loss") and history(cached, "kl") == history(online, "kl")
    assert history(cached, "kl")[0] == 0.0  # exactly: the student has not moved


# ------------------------------------------------------------------------------------------------------ computed once


def test_the_second_run_of_a_sweep_computes_nothing(tmp_path, forwards, caplog):
    caplog.set_level(logging.INFO, logger="holdfast")
    first = make_trainer(tmp_path)
    first.train()
    assert len(forwards) > 1 and first.teacher_info["computed"] == len(rows())
    files = [(p.name, p.stat().st_mtime_ns) for p in shards(tmp_path)]
    caplog.clear()
    forwards.clear()
    for settings in (
        {"learning_rate": 0.02, "seed": 5, "packing": True, "packing_strategy": "bfd"},
        {"annealing": {"temperature": 3.0}, "peft": lora()},
    ):
        again = make_trainer(tmp_path, **settings)
        again.train()
        assert again.teacher_info["computed"] == 0 and again.teacher_info["key"] == first.teacher_info["key"]
        assert len(forwards) == 1 and forwards.pop()[0] <= 2  # the proof that what is stored fits, on two rows
    assert [(p.name, p.stat().st_mtime_ns) for p in shards(tmp_path)] == files
    assert "found in" in caplog.text and "computing" not in caplog.text


def test_more_data_computes_only_what_is_new(tmp_path):
    make_trainer(tmp_path, data=Dataset.from_list(rows()[:20])).prepare_teacher()
    more = make_trainer(tmp_path, data=Dataset.from_list([*rows()[10:30], *rows()[10:30]]))
    more.prepare_teacher()
    assert more.teacher_info["computed"] == 10 and more.teacher_info["documents"] == 20


def test_a_run_that_waits_for_another_says_so_and_finds_the_work_done(tmp_path):
    from holdfast.retention.teacher.state_store import StateStore

    trainer, other = make_trainer(tmp_path), make_trainer(tmp_path)
    store = trainer._cache.store
    held = StateStore(store.folder, teacher=store.teacher)
    handle, said = held.try_lock(), []

    def say(text: str) -> None:
        said.append(text)
        if "waiting" in text:  # the other run ends its build now
            os.close(handle)
            other.prepare_teacher()

    trainer.prepare_teacher(say)
    assert sum("waiting" in text for text in said) == 1 and "found in" in said[-1]


def test_an_error_on_one_process_is_an_error_on_all():
    from holdfast.errors import HoldfastError
    from holdfast.training.processes import Processes

    processes = Processes(1, 3)
    processes.gather = lambda value: ["no space left", value, None]
    with pytest.raises(HoldfastError, match="Process 0 failed: no space left"):
        processes.together(lambda: 7)
    processes.gather = lambda value: [None, value, None]
    assert processes.together(lambda: 7) == 7
    with pytest.raises(ConfigError, match="mine"):
        processes.together(lambda: (_ for _ in ()).throw(ConfigError("mine")))


def test_stale_states_are_refused_until_their_folder_is_deleted(tmp_path, monkeypatch):
    """The model's code changed under the same weights and configuration: nothing in the key tells."""
    from transformers import LlamaModel

    whole, old = LlamaModel.forward, make_trainer(tmp_path)

    def forward(self, *args, **kwargs):
        outputs = whole(self, *args, **kwargs)
        outputs.last_hidden_state = outputs.last_hidden_state * 1.5
        return outputs

    with monkeypatch.context() as patch:
        patch.setattr(LlamaModel, "forward", forward)
        old.prepare_teacher()
    folder = tmp_path / "cache" / old.teacher_info["key"]
    with pytest.raises(ModelError, match=f"delete {folder}"):
        make_trainer(tmp_path).prepare_teacher()
    shutil.rmtree(folder)
    new = make_trainer(tmp_path)
    new.prepare_teacher()
    assert new.teacher_info["computed"] == len(rows()) and new.teacher_info["key"] == old.teacher_info["key"]


def test_a_damaged_file_is_removed_and_computed_again(tmp_path):
    whole = make_trainer(tmp_path)
    whole.train()
    files = shards(tmp_path)
    path = files[0]
    content = path.read_bytes()
    path.write_bytes(content[:-200] + b"\xff" + content[-199:])
    said, again = [], make_trainer(tmp_path)
    again.prepare_teacher(said.append)
    assert any(f"removed the damaged shard {path.name}" in text for text in said)
    assert again.teacher_info["computed"] > 0
    again.train()
    assert largest_difference(weights(whole), weights(again)) == 0.0
    assert shards(tmp_path) == files  # named by their digests, checksums included


@pytest.mark.parametrize("adapters", [False, True])
def test_resuming_goes_back_to_the_start_models_states(adapters, tmp_path):
    """Also where the cache was deleted between: the states are those of the start, not of the checkpoint."""
    settings = dict(save_strategy="steps", save_steps=2, peft=lora() if adapters else None)
    whole = make_trainer(tmp_path, **settings)
    whole.train()
    kept = [p.name for p in shards(tmp_path)]  # a shard is named by the digest of its tables, checksums included
    for path in shards(tmp_path):
        path.unlink()
    again = make_trainer(tmp_path, **settings)
    again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    assert largest_difference(weights(whole), weights(again)) == 0.0
    assert [p.name for p in shards(tmp_path)] == kept


# ---------------------------------------------------------------------------------------------------------- evaluation


def test_evaluation_data_is_stored_too(tmp_path):
    held = Dataset.from_list([{"text": f"Held out: {s}"} for s in SENTENCES])
    settings = dict(evaluated=held, eval_strategy="steps", eval_steps=2)
    cached, online = (make_trainer(tmp_path, teacher=t, **settings) for t in ("cached", "online"))
    cached.train()
    online.train()
    assert cached.teacher_info["documents"] == len(rows()) + len(SENTENCES)
    assert (
        history(cached, "eval_kl") == pytest.approx(history(online, "eval_kl"), rel=1e-3)
        and len(history(cached, "eval_kl")) == 2
    )
    assert cached.evaluate()["eval_loss"] == pytest.approx(online.evaluate()["eval_loss"], rel=1e-5)


# ------------------------------------------------------------------------------------------------------------- refusals


class Shifting:
    """A collator that changes tokens as it goes."""

    def __call__(self, examples):
        ids = torch.tensor([e["input_ids"][:8] for e in examples]) + 1
        return {"input_ids": ids, "labels": ids}


def test_a_collator_that_changes_tokens_is_refused_before_training(tmp_path):
    trainer = make_trainer(tmp_path, collator=Shifting())
    with pytest.raises(DataError, match="teacher: online"):
        trainer.train()
    assert trainer.state.global_step == 0


def test_states_that_depend_on_padding_are_refused(tmp_path, monkeypatch):
    """A model that looks at how long the batch is, as some position scalings do."""
    from transformers import LlamaModel

    whole = LlamaModel.forward

    def forward(self, *args, **kwargs):
        outputs = whole(self, *args, **kwargs)
        outputs.last_hidden_state = outputs.last_hidden_state * (1 + kwargs["input_ids"].shape[1] / 20)
        return outputs

    monkeypatch.setattr(LlamaModel, "forward", forward)
    trainer = make_trainer(tmp_path)
    trainer._cache.tokens_per_batch = 1
    with pytest.raises(ModelError, match="teacher: online"):
        trainer.train()


def test_adapters_that_change_the_base_are_refused(tmp_path):
    with pytest.raises(ModelError, match="init_lora_weights"):
        make_trainer(tmp_path, peft=lora(init_lora_weights="pissa"))


def test_streaming_is_refused(tmp_path):
    data = Dataset.from_list(rows()).to_iterable_dataset()
    with pytest.raises(ConfigError, match="streaming"):
        make_trainer(tmp_path, data=data).train()


def test_a_disk_too_small_is_refused_before_anything_is_computed(tmp_path, monkeypatch):
    from collections import namedtuple

    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(teacher_cache.shutil, "disk_usage", lambda _: usage(10**6, 10**6 - 1000, 1000))
    with pytest.raises(ConfigError, match=r"48 documents.*do not fit.*1 kB are free"):
        make_trainer(tmp_path).train()
    assert shards(tmp_path) == []


# ------------------------------------------------------------------------------------------------------ a smaller dtype


def test_a_lossy_dtype_halves_the_size_and_moves_the_teacher(tmp_path):
    annealing = {"cache_dtype": "bfloat16"}
    trainer = make_trainer(tmp_path, annealing=annealing)
    trainer.train()
    lossless = make_trainer(tmp_path)
    lossless.train()
    assert trainer.teacher_info["key"] != lossless.teacher_info["key"]
    sizes = [sum(states.nbytes for states in t._cache.store.states.values()) for t in (trainer, lossless)]
    assert sizes[0] * 2 == sizes[1]
    assert 0 < history(trainer, "kl")[0] < 1e-4 and history(lossless, "kl")[0] < 2e-6
    again = make_trainer(tmp_path, annealing=annealing)
    again.prepare_teacher()
    assert again.teacher_info["computed"] == 0


# ----------------------------------------------------------------------------------------------------- the command line


def test_ctrl_c_while_computing_keeps_what_was_computed(tmp_path, model_folder, monkeypatch):
    monkeypatch.chdir(tmp_path)
    jsonl("train.jsonl", rows())
    words = train_words("--retention", "label_annealing:teacher=cached,cache_dir=states", model=str(model_folder))
    monkeypatch.setattr(teacher_cache, "CPU_TOKENS", 1)
    whole, count = StartModel.hidden, 0

    def stopped(self, inputs):
        nonlocal count
        count += 1
        if count == 20:
            raise KeyboardInterrupt
        return whole(self, inputs)

    monkeypatch.setattr(StartModel, "hidden", stopped)
    assert main(words) == 130
    assert RunFolder("out").read().status == "interrupted"
    monkeypatch.setattr(StartModel, "hidden", whole)
    assert main(words) == 0
    assert RunFolder("out").read().training["teacher"]["computed"] == 48 - 19
