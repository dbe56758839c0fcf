"""Residuals: back on their base they give the instruct model bit for bit, one pass is two, and the record tells when
it is not so."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoint_folders import (
    Model,
    Stored,
    assert_rounded,
    llama_shapes,
    random_model,
    read_folder,
    stored,
    weights,
    write_folder,
)
from holdfast.checkpoints.element_types import DTYPES
from holdfast.checkpoints.policies import Policies
from holdfast.checkpoints.residual import (
    apply_residual,
    extract_residual,
    prepare_apply,
    prepare_extract,
    prepare_transfer,
    transfer_residual,
)
from holdfast.checkpoints.writer import CheckpointWriter
from holdfast.errors import ConfigError, ModelError, ShapeError, StorageError

EMBEDDING = "model.embed_tokens.weight"


def pair(folder: Path, dtype: str, *, spread: float = 0.05, shards: int = 1) -> tuple[Path, Path, Model, Model]:
    """A base and its fine-tune."""
    base = random_model(0, dtype)
    instruct = random_model(1, dtype, near=base, spread=spread)
    # some weights have not moved, of both signs of zero too
    for model in (base, instruct):
        model["model.norm.weight"] = stored(
            np.array([0.0, -0.0, 1.0, -1.0, 0.5, 3.0, -0.0, 0.0, 2.0, 1.5, -2.0, -0.25]), dtype
        )
    return (
        *(write_folder(folder / n, m, shards=shards) for n, m in (("base", base), ("instruct", instruct))),
        base,
        instruct,
    )  # type: ignore[return-value]


def bits(tensor: Stored) -> np.ndarray:
    return np.frombuffer(tensor.content, f"u{len(tensor.content) // max(1, int(np.prod(tensor.shape)))}")


def differences(one: Model, other: Model) -> int:
    return sum(int((bits(one[n]) != bits(other[n])).sum()) for n in one)


# ------------------------------------------------------------------------------------------------------- there and back


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize(("dtype", "residual"), [("BF16", "float32"), ("F32", "float32"), ("F16", "float64")])
def test_extract_and_apply_give_the_instruct_model_back(
    dtype: str, residual: str, shards: int, small_units: int, tmp_path: Path
) -> None:
    base, instruct, _, wanted = pair(tmp_path, dtype, shards=shards)
    extracted = extract_residual(instruct, base, tmp_path / "residual", dtype=residual, sync=False)
    assert extracted.record["audit"]["inexact"] == 0
    apply_residual(tmp_path / "residual", base, tmp_path / "back", sync=False)
    assert read_folder(tmp_path / "back") == wanted
    assert weights(tmp_path / "back").keys() == weights(base).keys()


FLOATS = ("F32", "BF16", "F16", "F8_E5M2")


@pytest.mark.parametrize("base_dtype", FLOATS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_back_on_its_base_in_every_dtype_that_holds_the_instruct_model(
    dtype: str, base_dtype: str, small_units: int, tmp_path: Path
) -> None:
    """Weights that changed by up to half of their size and beyond, in all pairs of dtypes; a note says where the base's
    dtype does not hold them."""
    old = random_model(0, base_dtype)
    draw = np.random.default_rng(3)
    wanted = {}
    for name, tensor in old.items():
        factor = draw.choice([1.0, 1.3, 0.4], size=tensor.shape)
        wanted[name] = stored(tensor.values * factor + 0.0, dtype)
    base = write_folder(tmp_path / "base", old)
    instruct = write_folder(tmp_path / "instruct", wanted)
    built = extract_residual(instruct, base, tmp_path / "residual", sync=False)
    for out in FLOATS:
        if DTYPES[out].holds(DTYPES[dtype]):
            apply_residual(tmp_path / "residual", base, tmp_path / out, dtype=out, sync=False)
            back = read_folder(tmp_path / out)
            assert all(np.array_equal(back[n].values, wanted[n].values) for n in wanted)
    noted = any("--dtype" in note for note in built.record["plan"]["notes"])
    assert noted is not DTYPES[base_dtype].holds(DTYPES[dtype])


def test_one_pass_loses_nothing_of_weights_that_vanished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """bfloat16 weights that became 2^26 times smaller: no float32 number leads there from the base; one pass and two
    know it, streamed (from 512 elements on: the digest of a stream takes no block of under 241 bytes) or not."""
    from holdfast.checkpoints import execute

    old = {"w": stored(np.ones(3000), "BF16"), "v": stored(np.ones(30), "BF16")}
    wanted = {n: stored(np.where(np.arange(t.values.size) % 7 == 3, 2.0**-26, 1.0), "BF16") for n, t in old.items()}
    base, instruct = (write_folder(tmp_path / n, m) for n, m in (("base", old), ("instruct", wanted)))
    record = extract_residual(instruct, base, tmp_path / "residual", sync=False).record
    assert record["audit"]["remainders"] == 429 + 4
    for least in (512, 1 << 40):
        monkeypatch.setattr(execute, "STREAMED", least)
        apply_residual(tmp_path / "residual", base, tmp_path / f"two {least}", sync=False)
        transfer_residual(instruct, base, base, tmp_path / f"one {least}", sync=False)
        assert read_folder(tmp_path / f"one {least}") == read_folder(tmp_path / f"two {least}") == wanted


def test_far_apart_float32_models_come_back_through_remainders(small_units: int, tmp_path: Path) -> None:
    """What float32 cannot hold lies beside the residual, shard by shard; without it the result is off in those
    places and nowhere else."""
    models = [random_model(i, "F32") for i in range(2)]
    base = write_folder(tmp_path / "base", models[0], shards=3)
    instruct = write_folder(tmp_path / "instruct", models[1], shards=3)
    residual = tmp_path / "residual"
    record = extract_residual(instruct, base, residual, sync=False).record
    files = sorted(residual.glob("*.remainder.safetensors"))
    assert record["audit"]["remainders"] > 100 and record["audit"]["inexact"] == 0 and len(files) == 3
    apply_residual(residual, base, tmp_path / "back", sync=False)
    transfer_residual(instruct, base, base, tmp_path / "one pass", sync=False)
    assert read_folder(tmp_path / "back") == read_folder(tmp_path / "one pass") == models[1]
    for file in files:
        file.unlink()
    with pytest.raises(ModelError, match=r"was written with [\d,]+ remainders .* and has 0: files are missing"):
        prepare_apply(residual, base)
    (residual / "provenance.json").unlink()
    apply_residual(residual, base, tmp_path / "without", sync=False)
    assert differences(models[1], read_folder(tmp_path / "without")) == record["audit"]["remainders"]


def test_a_killed_extraction_keeps_its_remainders(
    small_units: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file counts as finished only with its remainders; the residual is the same as without the interruption."""
    models = [random_model(i, "F32") for i in range(2)]
    base = write_folder(tmp_path / "base", models[0], shards=3)
    instruct = write_folder(tmp_path / "instruct", models[1], shards=3)
    extract_residual(instruct, base, tmp_path / "whole")
    write, blocks = CheckpointWriter.write, itertools.count()
    stop = sum(t.values.size for t in models[0].values()) * 3 // 4 // 64

    def failing(self: CheckpointWriter, *arguments: Any) -> None:
        if next(blocks) >= stop:
            raise StorageError("the disk is gone")
        write(self, *arguments)

    monkeypatch.setattr(CheckpointWriter, "write", failing)
    with pytest.raises(StorageError):
        prepare_extract(instruct, base).write(tmp_path / "residual", workers=1)
    monkeypatch.undo()
    extract_residual(instruct, base, tmp_path / "residual")
    assert weights(tmp_path / "residual") == weights(tmp_path / "whole")


def test_what_did_not_change_stays_whatever_it_is_put_on(tmp_path: Path) -> None:
    """A residual of 0 keeps the other base's bits, the signs of its zeros too."""
    base, instruct, held, _ = pair(tmp_path, "BF16")
    other = random_model(5, "BF16") | {"model.norm.weight": stored(np.array([-0.0, 0.0] * 6), "BF16")}
    new = write_folder(tmp_path / "new", other)
    extract_residual(instruct, base, tmp_path / "residual", sync=False)
    apply_residual(tmp_path / "residual", new, tmp_path / "applied", sync=False)
    transfer_residual(instruct, base, new, tmp_path / "transferred", sync=False)
    for out in ("applied", "transferred"):
        assert read_folder(tmp_path / out)["model.norm.weight"] == other["model.norm.weight"]
    assert held["model.norm.weight"] != other["model.norm.weight"]


# ------------------------------------------------------------------------------------------------------ one pass or two


@pytest.mark.parametrize("scale", [1.0, -0.7, 0.0])
@pytest.mark.parametrize("dtypes", [("BF16", "BF16", "BF16"), ("F16", "BF16", "F32"), ("BF16", "F32", "F16")])
def test_transfer_is_extract_then_apply(
    dtypes: tuple[str, str, str], scale: float, small_units: int, tmp_path: Path
) -> None:
    old = random_model(0, dtypes[0])
    instruct = random_model(1, dtypes[1], near=old, spread=0.1)
    new = random_model(2, dtypes[2], near=old, spread=0.1)
    folders = [write_folder(tmp_path / f"m{i}", m, shards=1 + i) for i, m in enumerate((instruct, old, new))]
    extract_residual(*folders[:2], tmp_path / "residual", sync=False)
    apply_residual(tmp_path / "residual", folders[2], tmp_path / "two", scale=scale, sync=False)
    built = transfer_residual(*folders, tmp_path / "one", scale=scale, sync=False)
    one = read_folder(tmp_path / "one")
    assert one == read_folder(tmp_path / "two") and weights(tmp_path / "one") == weights(tmp_path / "two")
    for name, tensor in one.items():
        a, b, c = (model[name].values for model in (new, instruct, old))
        assert_rounded(tensor, a + scale * (b - c), terms=np.abs(a) + 2 * np.abs(b) + 2 * np.abs(c), steps=3)
        assert tensor.dtype == dtypes[2]
    assert (one == new) is (scale == 0.0)
    assert [p["role"] for p in built.record["parents"]] == ["base", "instruct", "old base"]


# ---------------------------------------------------------------------------------------------------- what does not fit


def test_a_model_is_no_residual(tmp_path: Path) -> None:
    """Nor is a residual a model to transformers."""
    from transformers import AutoModelForCausalLM

    base, instruct, _, _ = pair(tmp_path, "BF16")
    with pytest.raises(ModelError, match=r"Expected a residual \(residual\.safetensors\) in .*instruct"):
        prepare_apply(instruct, base)
    extract_residual(instruct, base, tmp_path / "residual", sync=False)
    config = json.loads((tmp_path / "residual" / "config.json").read_text())
    (tmp_path / "residual" / "config.json").write_text(json.dumps({**config, "model_type": "llama"}))
    with pytest.raises(OSError, match=r"no file named model\.safetensors"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "residual")


def test_wrong_settings_come_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        prepare_transfer(tmp_path, tmp_path, tmp_path, scale=float("nan"), tokenizer="mine")
    assert len(caught.value.problems) == 2


def case(tmp_path: Path, names: dict[str, set[str]]) -> dict[str, Path]:
    """Folders of which each has some of the tensors x, y, z beside the common ones."""
    draw = np.random.default_rng(0)
    folders = {}
    for name, own in names.items():
        model = random_model(len(folders), "F32") | {n: stored(draw.normal(size=3), "F32") for n in sorted(own)}
        folders[name] = write_folder(tmp_path / name, model)
    return folders


def test_tensors_that_not_all_have_mean_the_same_in_one_pass_and_two(tmp_path: Path) -> None:
    """x: only in the tuned one; y: in it and in the new base; z: not in the tuned one."""
    folders = case(tmp_path, {"old": {"z"}, "instruct": {"x", "y"}, "new": {"y", "z"}})
    with pytest.raises(ShapeError, match=r"x, y(?s:.*)--unmatched keep"):
        extract_residual(folders["instruct"], folders["old"], tmp_path / "residual")
    policies = Policies(unmatched="keep")
    record = extract_residual(
        folders["instruct"], folders["old"], tmp_path / "residual", policies=policies, sync=False
    ).record
    assert record["copied"] == {"instruct": ["x", "y"]}
    apply_residual(tmp_path / "residual", folders["new"], tmp_path / "two", policies=policies, sync=False)
    transfer_residual(
        folders["instruct"], folders["old"], folders["new"], tmp_path / "one", policies=policies, sync=False
    )
    one, two, new = (read_folder(tmp_path / n) for n in ("one", "two", "new"))
    assert one == two
    assert one["y"] == new["y"] and one["z"] == new["z"] and one["x"] == read_folder(folders["instruct"])["x"]


def test_a_difference_of_what_the_base_lacks_has_no_place(tmp_path: Path) -> None:
    """q: in the old models, z: in the old base alone; neither a difference nor an old base's tensor is a weight."""
    folders = case(tmp_path, {"old": {"q", "z"}, "instruct": {"q"}, "new": set()})
    keep, drop = (Policies(unmatched=policy) for policy in ("keep", "drop"))
    old, instruct, new = folders.values()
    extract_residual(instruct, old, tmp_path / "residual", policies=keep, sync=False)
    with pytest.raises(ShapeError, match=r"2 tensors of residual are not in base: q, z\..*--unmatched drop"):
        prepare_apply(tmp_path / "residual", new, policies=keep)
    with pytest.raises(ShapeError, match=r"2 tensors of old base are not in base: [qz], [qz]\."):
        prepare_transfer(instruct, old, new, policies=keep)
    apply_residual(tmp_path / "residual", new, tmp_path / "two", policies=drop, sync=False)
    transfer_residual(instruct, old, new, tmp_path / "one", policies=drop, sync=False)
    assert read_folder(tmp_path / "one") == read_folder(tmp_path / "two")
    assert read_folder(tmp_path / "one").keys() == read_folder(new).keys()


def test_new_tokens_of_the_instruct_model_arrive_in_the_result(small_units: int, tmp_path: Path) -> None:
    tokens = [f"t{i}" for i in range(40)]
    vocabularies = {"instruct": [*tokens[:5], "<|im_start|>", *tokens[5:]], "old": tokens, "new": tokens}
    models, folders = {}, []
    for seed, (name, words) in enumerate(vocabularies.items()):
        models[name] = random_model(seed, "F32", llama_shapes(len(words)))
        files = {"chat_template.jinja": name}
        folders.append(write_folder(tmp_path / name, models[name], tokens=words, files=files))
    with pytest.raises(ShapeError, match=r"<\|im_start\|>"):
        prepare_extract(*folders[:2])
    policies = Policies(vocabulary="keep")
    extract_residual(*folders[:2], tmp_path / "residual", policies=policies, sync=False)
    apply_residual(tmp_path / "residual", folders[2], tmp_path / "two", policies=policies, sync=False)
    transfer_residual(*folders, tmp_path / "one", policies=policies, sync=False)
    one = read_folder(tmp_path / "one")
    assert one == read_folder(tmp_path / "two")
    common = np.delete(np.arange(41), 5)
    instruct, old, new = (models[name][EMBEDDING].values for name in ("instruct", "old", "new"))
    moved = new + (instruct[common] - old)
    assert np.array_equal(one[EMBEDDING].values[5], instruct[5])
    assert np.allclose(one[EMBEDDING].values[common], moved, rtol=1e-6, atol=1e-6)
    assert (tmp_path / "one" / "chat_template.jinja").read_text() == "instruct"
    assert json.loads((tmp_path / "one" / "config.json").read_text())["vocab_size"] == 41
    transfer_residual(*folders, tmp_path / "as_base", policies=policies, tokenizer="base", sync=False)
    assert np.allclose(read_folder(tmp_path / "as_base")[EMBEDDING].values, moved, rtol=1e-6, atol=1e-6)
    assert (tmp_path / "as_base" / "chat_template.jinja").read_text() == "new"


def test_nan_in_a_residual_or_its_parents(tmp_path: Path) -> None:
    base, instruct, _, wanted = pair(tmp_path, "F32")
    values = np.array(wanted["model.norm.weight"].values)
    values[7] = np.nan
    bad = wanted | {"model.norm.weight": stored(values, "F32")}
    broken = write_folder(tmp_path / "broken", bad)
    residual = write_folder(tmp_path / "bad-residual", bad, stem="residual")
    for prepared, role in (
        (prepare_extract(broken, base), "instruct"),
        (prepare_transfer(instruct, broken, base), "old base"),
        (prepare_apply(residual, base), "residual"),
    ):
        with pytest.raises(ModelError, match=rf"model\.norm\.weight in .*\({role}\) holds 1 NaN of 12 values"):
            prepared.write(tmp_path / "out")
        assert not (tmp_path / "out").exists()


# ------------------------------------------------------------------------------------------------------------ relatives


def notes(*folders: Path) -> str:
    return " ".join(prepare_extract(folders[1], folders[0]).plan.notes)


def test_a_fine_tune_is_taken_for_one(tmp_path: Path) -> None:
    base, instruct, _, _ = pair(tmp_path, "BF16", spread=0.05)
    plan = prepare_extract(instruct, base).plan
    assert plan.notes == ()
    layers = {d.layer: d for d in plan.ancestry}
    assert layers.keys() == {"embed", "0", "1", "norm", "total"}
    assert 0.02 < layers["total"].relative < 0.08 and layers["total"].cosine > 0.99


def test_strangers_and_twins_are_warned_about(tmp_path: Path) -> None:
    base, instruct, _, _ = pair(tmp_path, "BF16")
    other = write_folder(tmp_path / "other", random_model(7, "BF16"))
    assert "WARNING: instruct does not look like a fine-tune of base everywhere" in notes(base, other)
    assert "have the same weights" in notes(base, base)
    warned = prepare_transfer(instruct, other, base).plan.notes
    assert any("WARNING: instruct does not look like a fine-tune of old base" in n for n in warned)
