"""A checkpoint is whole or passed over: every file of it x every damage x every kind of run, and what a run goes on
from."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import make_trainer

from holdfast.checkpoints import manifest
from holdfast.errors import RunFolderError, StorageError
from holdfast.support.files import fingerprint
from holdfast.training.checkpoint_parts import Parts, lacking

METHODS: dict[str, tuple[dict[str, dict[str, Any]], bool, bool]] = {
    "direct": ({}, False, False),
    "lora": ({}, True, False),
    "ema": ({"ema": {"decay": 0.5}}, False, True),
}
"""Kind of run: its methods, whether it trains an adapter, and whether its methods keep tensors."""
EVERY = (
    "manifest.json",
    "optimizer.pt",
    "scheduler.pt",
    "rng_state.pth",
    "trainer_state.json",
    "retention_state.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "training_args.bin",
)
WHOLE, ADAPTER = (
    ("config.json", "generation_config.json", "model.safetensors"),
    ("README.md", "adapter_config.json", "adapter_model.safetensors"),
)
TENSORS = ("retention_state.safetensors",)


def files_of(method: str) -> tuple[str, ...]:
    _, adapter, tensors = METHODS[method]
    return EVERY + (ADAPTER if adapter else WHOLE) + (TENSORS if tensors else ())


def missing(path: Path) -> None:
    path.unlink()


def changed(path: Path) -> None:
    """One bit in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    replace(path, bytes(content))


def cut(path: Path) -> None:
    content = path.read_bytes()
    replace(path, content[: len(content) // 2])


def emptied(path: Path) -> None:
    replace(path, b"")


def folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES = (missing, changed, cut, emptied, folder_instead)


def replace(path: Path, content: bytes) -> None:
    """Files of copies are links to those of the run."""
    path.unlink()
    path.write_bytes(content)


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """A finished run of a kind, six steps with a checkpoint every second one; once for all tests here."""
    made: dict[str, Any] = {}

    def make(method: str) -> Any:
        if method not in made:
            made[method] = trainer_of(method, tmp_path_factory.mktemp(method))
            made[method].train()
        return made[method]

    return make


def trainer_of(method: str, folder: Path, **settings: Any) -> Any:
    methods, adapter, _ = METHODS[method]
    return make_trainer(
        folder, methods, peft=adapter or None, **{"save_strategy": "steps", "save_steps": 2, **settings}
    )


@pytest.fixture
def copy_of(run_of: Callable[[str], Any], tmp_path: Path) -> Callable[[str], tuple[Any, Path]]:
    """(trainer of a run, a copy of its folder)."""

    def copy(method: str) -> tuple[Any, Path]:
        trainer = run_of(method)
        shutil.copytree(trainer.args.output_dir, tmp_path / "run", copy_function=os.link)
        return trainer, tmp_path / "run"

    return copy


def chosen(trainer: Any, folder: Path) -> tuple[str | None, str]:
    """(name of the checkpoint that a run goes on from, what is said about it)."""
    said: list[str] = []
    found = trainer.whole_checkpoint(folder, say=said.append)
    return None if found is None else found.name, "\n".join(said)


def old(checkpoint: Path) -> None:
    """As it was written before there were manifests."""
    (checkpoint / "manifest.json").unlink(missing_ok=True)
    state = json.loads((checkpoint / "retention_state.json").read_text())
    state.pop("manifest")
    replace(checkpoint / "retention_state.json", json.dumps(state).encode())


# ----------------------------------------------------------------------------------------------- file x damage x method


METHOD = pytest.mark.parametrize("method", METHODS)


@METHOD
def test_whole_checkpoints_are_taken_without_a_word(method: str, copy_of: Any) -> None:
    trainer, folder = copy_of(method)
    assert chosen(trainer, folder) == ("checkpoint-6", "")
    assert sorted(p.name for p in folder.glob("*-*")) == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]
    assert not [p.name for p in folder.iterdir() if p.name.startswith(".")]
    assert sorted(files_of(method)) == sorted(p.name for p in (folder / "checkpoint-6").iterdir())


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize(
    ("method", "file"),
    [("direct", f) for f in EVERY + WHOLE] + [("lora", f) for f in ADAPTER] + [("ema", f) for f in TENSORS],
)
def test_a_damaged_file_is_named_and_its_checkpoint_passed_over(
    method: str, file: str, damage: Callable[[Path], None], copy_of: Any
) -> None:
    trainer, folder = copy_of(method)
    damage(folder / "checkpoint-6" / file)
    name, said = chosen(trainer, folder)
    assert name == "checkpoint-4"
    assert said.startswith(f"Skipped: checkpoint-6 ({file} ")
    assert said.endswith("Training continues from checkpoint-4.")


@METHOD
def test_the_newest_whole_one_is_taken_and_else_none(method: str, copy_of: Any) -> None:
    trainer, folder = copy_of(method)
    missing(folder / "checkpoint-6" / "optimizer.pt")
    changed(folder / "checkpoint-4" / "scheduler.pt")
    assert chosen(trainer, folder) == (
        "checkpoint-2",
        "Skipped: checkpoint-6 (optimizer.pt is missing), checkpoint-4 (scheduler.pt was changed after it was "
        "written). Training continues from checkpoint-2.",
    )
    cut(folder / "checkpoint-2" / "rng_state.pth")
    name, said = chosen(trainer, folder)
    assert name is None and said.endswith(". Training starts over.") and "checkpoint-2 (rng_state.pth has" in said


@pytest.mark.parametrize("step", [-3, 0, 10**9, "6", None, 6.0, True])
@pytest.mark.parametrize("sealed", [True, False], ids=["manifest", "no manifest"])
def test_an_absurd_step(step: Any, sealed: bool, copy_of: Any) -> None:
    trainer, folder = copy_of("direct")
    place = folder / "checkpoint-6"
    state = json.loads((place / "trainer_state.json").read_text())
    replace(place / "trainer_state.json", json.dumps({**state, "global_step": step}).encode())
    if sealed:
        manifest.write_manifest(place, manifest.measured(place, manifest.files_in(place)))
    else:
        old(place)
    name, said = chosen(trainer, folder)
    assert name == "checkpoint-4"
    assert f"checkpoint-6 (trainer_state.json says step {step!r})" in said


def test_a_renamed_checkpoint(copy_of: Any) -> None:
    trainer, folder = copy_of("direct")
    (folder / "checkpoint-6").rename(folder / "checkpoint-60")
    name, said = chosen(trainer, folder)
    assert name == "checkpoint-4" and "checkpoint-60 (trainer_state.json says step 6)" in said


@pytest.mark.parametrize("file", ["scaler.pt", "pytorch_model.bin", "more/adapter_model.safetensors"])
def test_a_file_that_would_be_loaded_too(file: str, copy_of: Any) -> None:
    trainer, folder = copy_of("direct")
    place = folder / "checkpoint-6" / file
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(b"x")
    name, said = chosen(trainer, folder)
    assert name == "checkpoint-4" and f"checkpoint-6 ({file} was added later)" in said


def manifest_of(files: Any) -> str:
    found = {"format": manifest.FORMAT, "files": files, "fingerprint": fingerprint(files)}
    return json.dumps(found)


@pytest.mark.parametrize(
    "content",
    ["[]", "null", '{"format": "holdfast.manifest/2", "files": {}}', manifest_of([]), manifest_of({"x": None})],
)
def test_a_manifest_that_is_none(content: str, copy_of: Any) -> None:
    trainer, folder = copy_of("direct")
    replace(folder / "checkpoint-6" / "manifest.json", content.encode())
    assert chosen(trainer, folder) == (
        "checkpoint-4",
        "Skipped: checkpoint-6 (manifest.json cannot be read). Training continues from checkpoint-4.",
    )


# ------------------------------------------------------------------------------------------------- without a manifest


@METHOD
def test_checkpoints_of_earlier_versions_are_continued_and_it_is_said(method: str, copy_of: Any) -> None:
    trainer, folder = copy_of(method)
    old(folder / "checkpoint-6")
    name, said = chosen(trainer, folder)
    assert name == "checkpoint-6"
    assert said == (
        "checkpoint-6 has no manifest.json because an earlier version wrote it. Its files can be read, but not "
        "checked for changes."
    )


NEEDED = ("optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", "retention_state.json")


@pytest.mark.parametrize(
    ("method", "file"),
    [("direct", f) for f in (*NEEDED, "model.safetensors")]
    + [("lora", "adapter_model.safetensors"), ("ema", "retention_state.safetensors")],
)
@pytest.mark.parametrize("damage", [missing, cut, emptied], ids=lambda damage: damage.__name__)
def test_of_those_the_parts_have_to_be_there(
    method: str, file: str, damage: Callable[[Path], None], copy_of: Any
) -> None:
    trainer, folder = copy_of(method)
    old(folder / "checkpoint-6")
    damage(folder / "checkpoint-6" / file)
    name, said = chosen(trainer, folder)
    assert name == "checkpoint-4"
    how = "is missing" if damage is missing else "cannot be read"
    assert f"checkpoint-6 ({file} {how})" in said


# ---------------------------------------------------------------------------------------------------- bit for bit again


def same_weights(one: Any, other: Any) -> bool:
    weights, expected = (dict(t.model.named_parameters()) for t in (one, other))
    return all(torch.equal(weights[n], expected[n]) for n in expected)


@pytest.mark.parametrize(
    ("method", "file", "damage", "all_of_them"),
    [
        ("direct", "optimizer.pt", missing, False),
        ("lora", "rng_state.pth", changed, False),
        ("ema", "retention_state.safetensors", missing, False),
        ("direct", "trainer_state.json", emptied, True),
    ],
)
def test_the_run_ends_as_if_nothing_had_happened(
    method: str, file: str, damage: Callable[[Path], None], all_of_them: bool, run_of: Any, tmp_path: Path
) -> None:
    """The run goes on from step 4, or begins anew, and ends with the weights of the undisturbed one."""
    whole = run_of(method)
    shutil.copytree(whole.args.output_dir, tmp_path / "run")
    for name in ("checkpoint-6", "checkpoint-4", "checkpoint-2") if all_of_them else ("checkpoint-6",):
        damage(tmp_path / "run" / name / file)
    again = trainer_of(method, tmp_path)
    found = again.whole_checkpoint(tmp_path / "run")
    assert (found is None) if all_of_them else (found == tmp_path / "run" / "checkpoint-4")
    again.train(resume_from_checkpoint=str(found) if found else None)
    assert again.state.global_step == 6
    assert same_weights(again, whole)
    assert chosen(again, tmp_path / "run") == ("checkpoint-6", "")  # written anew where the damaged one lay


def test_a_named_checkpoint_that_is_not_whole_is_refused(run_of: Any, tmp_path: Path) -> None:
    shutil.copytree(run_of("direct").args.output_dir, tmp_path / "run")
    changed(tmp_path / "run" / "checkpoint-6" / "optimizer.pt")
    again = trainer_of("direct", tmp_path)
    with pytest.raises(
        RunFolderError, match=r"checkpoint-6 to continue from, but optimizer\.pt was changed after it was written"
    ):
        again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-6"))
    with pytest.raises(RunFolderError, match=r"checkpoint-8 to continue from, but there is no such folder"):
        again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-8"))
    again.train(resume_from_checkpoint=True)  # the newest whole one
    assert same_weights(again, run_of("direct"))
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(RunFolderError, match=r"Expected a complete checkpoint in .*run to continue from, found none"):
        trainer_of("direct", tmp_path).train(resume_from_checkpoint=True)


# --------------------------------------------------------------------------------------------------------------- saving


def test_the_manifest_is_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the moment at which a save is cut off, the folder has not got the name of a checkpoint."""
    trainer = trainer_of("ema", tmp_path, max_steps=2)
    seen = {}
    original = manifest.write_manifest

    def write(folder: Path, files: Any) -> None:
        seen["named"] = (tmp_path / "run" / "checkpoint-2").exists()
        seen["files"] = sorted(manifest.files_in(folder)) == sorted(files)
        original(folder, files)

    monkeypatch.setattr(manifest, "write_manifest", write)
    trainer.train()
    assert seen == {"named": False, "files": True}
    assert not (tmp_path / "run" / ".saving").exists()


def test_a_save_that_fails_leaves_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise StorageError("No space left on device")

    trainer = trainer_of("direct", tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(manifest, "write_manifest", full)
        with pytest.raises(StorageError):
            trainer.train()
    assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.parametrize("limit", [1, 2])
def test_rotation_keeps_what_was_just_written(limit: int, run_of: Any, tmp_path: Path) -> None:
    """A damaged checkpoint ahead of the run must not push the whole ones out."""
    shutil.copytree(run_of("direct").args.output_dir, tmp_path / "run")
    missing(tmp_path / "run" / "checkpoint-6" / "optimizer.pt")
    missing(tmp_path / "run" / "checkpoint-4" / "optimizer.pt")
    again = trainer_of("direct", tmp_path, save_total_limit=limit)
    kept = []
    rotate = again._rotate

    def look(newest: Path) -> None:
        rotate(newest)
        kept.append(sorted(p.name for p in newest.parent.glob("checkpoint-*")))

    again._rotate = look
    again.train(resume_from_checkpoint=True)
    assert kept == (
        [["checkpoint-4"], ["checkpoint-6"]]
        if limit == 1
        else [["checkpoint-2", "checkpoint-4"], ["checkpoint-4", "checkpoint-6"]]
    )
    assert same_weights(again, run_of("direct"))


# -------------------------------------------------------------------------------------------------- the best checkpoint


def best_trainer(folder: Path) -> Any:
    """A run that ends with its best checkpoint, which is that of step 2."""
    from datasets import Dataset

    return trainer_of(
        "direct",
        folder,
        evaluated=Dataset.from_list([{"text": "Old knowledge number 3 stays where it is."}] * 4),
        eval_strategy="steps",
        eval_steps=2,
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
        greater_is_better=True,
        learning_rate=1e-4,
    )


def test_a_damaged_best_checkpoint(tmp_path: Path) -> None:
    """The run would end with its weights: later checkpoints are passed over with it, and one that is damaged after the
    last look stops the run."""
    whole = best_trainer(tmp_path / "whole")
    whole.train()
    assert Path(whole.state.best_model_checkpoint).name == "checkpoint-2"
    shutil.copytree(whole.args.output_dir, tmp_path / "cut" / "run")
    again = best_trainer(tmp_path / "cut")
    changed(tmp_path / "cut" / "run" / "checkpoint-2" / "model.safetensors")
    name, said = chosen(again, tmp_path / "cut" / "run")
    assert name is None
    assert (
        "checkpoint-6 (its best checkpoint, checkpoint-2: model.safetensors was changed after it was written)" in said
    )
    again.train()
    assert same_weights(again, whole)
    changed(tmp_path / "cut" / "run" / "checkpoint-2" / "model.safetensors")
    with pytest.raises(StorageError, match=r"checkpoint-2, was expected to be unchanged, but model\.safetensors was"):
        again._load_best_model()


# --------------------------------------------------------------------------------------------------- several processes


def parts(sharded: str = "", processes: int = 2) -> Parts:
    return Parts(methods=False, sharded=sharded, processes=processes, scaler=False)


def put(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")
    state = {"global_step": 4, "max_steps": 8}
    (folder / "trainer_state.json").write_text(json.dumps(state))
    (folder / "retention_state.json").write_text(json.dumps({"methods": []}))
    return folder


RNG = ("rng_state_0.pth", "rng_state_1.pth")
SHARDED = {
    "fsdp": (
        "pytorch_model_fsdp_0/.metadata",
        "pytorch_model_fsdp_0/__0_0.distcp",
        "optimizer_0/.metadata",
        "scheduler.pt",
    ),
    "deepspeed": ("latest", "global_step4/mp_rank_00_model_states.pt"),
}


@pytest.mark.parametrize("kind", SHARDED)
def test_what_sharded_runs_write(kind: str, tmp_path: Path) -> None:
    folder = put(tmp_path / "checkpoint-4", *RNG, *SHARDED[kind])
    assert lacking(folder, parts(kind), strict=True) == []
    (folder / "rng_state_1.pth").unlink()
    assert lacking(folder, parts(kind), strict=True) == ["rng_state_1.pth is missing"]
    assert lacking(folder, parts(kind), strict=False) == []  # written by another number of processes
    shutil.rmtree(folder / SHARDED[kind][-1].partition("/")[0], ignore_errors=True)
    (folder / "scheduler.pt").unlink(missing_ok=True)
    expected = {
        "fsdp": "scheduler.pt is missing",
        "deepspeed": "DeepSpeed's own checkpoint (global_step*, latest) is missing",
    }
    assert expected[kind] in lacking(folder, parts(kind), strict=False)


def test_the_model_alone_is_nothing_to_go_on_from(tmp_path: Path) -> None:
    trainer = trainer_of("direct", tmp_path, save_only_model=True)
    trainer.train()
    name, said = chosen(trainer, tmp_path / "run")
    assert name is None
    assert "checkpoint-6 (it has only the model, because of save_only_model: true)" in said


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rng_state_1.pth", 1),
        ("rng_state.pth", 0),
        ("pytorch_model_fsdp_0/__1_0.distcp", 1),
        ("global_step4/zero_pp_rank_1_mp_rank_00_optim_states.pt", 1),
        ("model-00001-of-00002.safetensors", 0),
    ],
)
def test_every_file_has_one_process_that_answers_for_it(name: str, rank: int, run_of: Any) -> None:
    trainer = run_of("direct")
    held = trainer.args

    class Rank:
        def __init__(self, index: int) -> None:
            self.process_index, self.world_size = index, 2

    try:
        found = []
        for index in range(2):
            trainer.args = Rank(index)
            found.append(trainer._is_mine(name))
    finally:
        trainer.args = held
    assert found == [rank == 0, rank == 1]
