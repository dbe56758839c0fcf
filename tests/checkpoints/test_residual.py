"""Residuals: back on their base they give the instruct model bit for bit, one pass is two, and the record tells when
it is not so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

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
from holdfast.checkpoints.dtypes import DTYPES
from holdfast.checkpoints.merge import merge
from holdfast.checkpoints.policies import Policies
from holdfast.checkpoints.reader import CheckpointReader
from holdfast.checkpoints.residual import (
    apply_residual,
    extract_residual,
    prepare_apply,
    prepare_extract,
    prepare_transfer,
    transfer_residual,
)
from holdfast.errors import ConfigError, ModelError, ShapeError

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
@pytest.mark.parametrize(
    ("dtype", "residual"),
    [("BF16", "float32"), ("F16", "float32"), ("F32", "float32"), ("F32", "float64"), ("F16", "float64")],
)
def test_extract_and_apply_give_the_instruct_model_back(
    dtype: str, residual: str, shards: int, small_units: int, tmp_path: Path
) -> None:
    base, instruct, _, wanted = pair(tmp_path, dtype, shards=shards)
    extracted = extract_residual(instruct, base, tmp_path / "residual", dtype=residual, sync=False)
    assert extracted.record["audit"]["inexact"] == 0
    assert sorted(p.name for p in (tmp_path / "residual").glob("*.safetensors"))[0].startswith("residual")
    apply_residual(tmp_path / "residual", base, tmp_path / "back", sync=False)
    assert read_folder(tmp_path / "back") == wanted
    assert weights(tmp_path / "back").keys() == weights(base).keys()


FLOATS = ("F32", "BF16", "F16", "F8_E5M2")


@pytest.mark.parametrize("base_dtype", FLOATS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_back_on_its_base_in_every_dtype_that_holds_the_instruct_model(
    dtype: str, base_dtype: str, small_units: int, tmp_path: Path
) -> None:
    """Weights that changed by up to half of their size and beyond, in all pairs of dtypes; what the base's dtype cannot
    hold is rounded to it once."""
    old = random_model(0, base_dtype)
    draw = np.random.default_rng(3)
    wanted = {
        n: stored(t.values * draw.choice([1.0, 1.3, 0.4, 1e-3], size=t.shape) + 0.0, dtype) for n, t in old.items()
    }
    base, instruct = (write_folder(tmp_path / n, m) for n, m in (("base", old), ("instruct", wanted)))
    built = extract_residual(instruct, base, tmp_path / "residual", sync=False)
    lost = sum(
        int(((t.values == 0) & np.signbit(t.values) & ~((b.values == 0) & np.signbit(b.values))).sum())
        for t, b in zip(wanted.values(), old.values(), strict=True)
    )
    assert built.record["audit"]["inexact"] == lost and built.record["audit"]["compared_in"] == ["F32"]
    for out in (None, *FLOATS):
        back = tmp_path / f"back {out}"
        apply_residual(tmp_path / "residual", base, back, dtype=out, sync=False)
        found, written = read_folder(back), out or base_dtype
        in_that = {n: stored(t.values, written) for n, t in wanted.items()}
        if DTYPES[written].holds(DTYPES[dtype]):
            assert all(np.array_equal(found[n].values, wanted[n].values) for n in wanted)
            assert differences(found, in_that) == lost
        elif out is None:
            assert all(np.allclose(found[n].values, in_that[n].values, rtol=2.0**-6, atol=1e-7) for n in wanted)
            assert any("--dtype" in note for note in built.record["plan"]["notes"])
    assert DTYPES[base_dtype].holds(DTYPES[dtype]) is not any("--dtype" in n for n in built.record["plan"]["notes"])


def test_one_pass_loses_nothing_of_weights_that_vanished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """bfloat16 weights that became 2^26 times smaller: no float32 number leads there from the base; one pass and two
    know it, streamed (from 512 elements on: the digest of a stream takes no block of under 241 bytes) or not."""
    from holdfast.checkpoints import build

    old = {"w": stored(np.ones(3000), "BF16"), "v": stored(np.ones(30), "BF16")}
    wanted = {n: stored(np.where(np.arange(t.values.size) % 7 == 3, 2.0**-26, 1.0), "BF16") for n, t in old.items()}
    base, instruct = (write_folder(tmp_path / n, m) for n, m in (("base", old), ("instruct", wanted)))
    record = extract_residual(instruct, base, tmp_path / "residual", sync=False).record
    assert record["audit"]["remainders"] == 429 + 4
    for least in (512, 1 << 40):
        monkeypatch.setattr(build, "STREAMED", least)
        apply_residual(tmp_path / "residual", base, tmp_path / f"two {least}", sync=False)
        transfer_residual(instruct, base, base, tmp_path / f"one {least}", sync=False)
        assert read_folder(tmp_path / f"one {least}") == read_folder(tmp_path / f"two {least}") == wanted


def test_only_a_negative_zero_that_was_none_is_lost(tmp_path: Path) -> None:
    """Small fp8 numbers round to zeros of both signs."""
    base, instruct, held, wanted = pair(tmp_path, "F8_E4M3")
    record = extract_residual(instruct, base, tmp_path / "residual", sync=False).record
    apply_residual(tmp_path / "residual", base, tmp_path / "back", sync=False)
    back = read_folder(tmp_path / "back")
    assert all(np.array_equal(back[n].values, wanted[n].values) for n in wanted)
    negative_zeros = sum(int(((bits(wanted[n]) == 0x80) & (bits(held[n]) != 0x80)).sum()) for n in wanted)
    assert record["audit"]["inexact"] == negative_zeros and differences(back, wanted) == negative_zeros > 0


def test_float32_models_within_a_factor_of_two_come_back_from_float32(small_units: int, tmp_path: Path) -> None:
    base = random_model(0, "F32")
    draw = np.random.default_rng(4)
    instruct = {n: stored(t.values * draw.uniform(0.500001, 1.999999, size=t.shape), "F32") for n, t in base.items()}
    folders = [write_folder(tmp_path / n, m) for n, m in (("base", base), ("instruct", instruct))]
    assert extract_residual(folders[1], folders[0], tmp_path / "residual", sync=False).record["audit"] == {
        "remainders": 0,
        "compared_in": ["F32"],
        "inexact": 0,
    }
    apply_residual(tmp_path / "residual", folders[0], tmp_path / "back", sync=False)
    assert read_folder(tmp_path / "back") == instruct


def test_far_apart_float32_models_come_back_through_remainders(small_units: int, tmp_path: Path) -> None:
    """What float32 cannot hold lies beside the residual, shard by shard; without it the result is off in those
    places and nowhere else."""
    models = [random_model(i, "F32") for i in range(2)]
    base, instruct = (
        write_folder(tmp_path / n, m, shards=3) for n, m in zip(("base", "instruct"), models, strict=True)
    )
    record = extract_residual(instruct, base, tmp_path / "residual", sync=False).record
    files = sorted((tmp_path / "residual").glob("*.remainder.safetensors"))
    assert record["audit"]["remainders"] > 100 and record["audit"]["inexact"] == 0 and len(files) == 3
    assert json.loads((tmp_path / "residual" / "provenance.json").read_text())["audit"] == record["audit"]
    assert not list((tmp_path / "residual").glob("*.part"))
    apply_residual(tmp_path / "residual", base, tmp_path / "back", sync=False)
    transfer_residual(instruct, base, base, tmp_path / "one pass", sync=False)
    assert read_folder(tmp_path / "back") == read_folder(tmp_path / "one pass") == models[1]
    for file in files:
        file.unlink()
    with pytest.raises(ModelError, match=r"was written with [\d,]+ remainders .* and has 0: files are missing"):
        prepare_apply(tmp_path / "residual", base)
    (tmp_path / "residual" / "provenance.json").unlink()
    apply_residual(tmp_path / "residual", base, tmp_path / "without", sync=False)
    assert differences(models[1], read_folder(tmp_path / "without")) == record["audit"]["remainders"]


def test_a_killed_extraction_keeps_its_remainders(
    small_units: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file counts as finished only with its remainders; the residual is the same as without the interruption."""
    from holdfast.checkpoints.writer import CheckpointWriter
    from holdfast.errors import StorageError

    models = [random_model(i, "F32") for i in range(2)]
    base, instruct = (
        write_folder(tmp_path / n, m, shards=3) for n, m in zip(("base", "instruct"), models, strict=True)
    )
    extract_residual(instruct, base, tmp_path / "whole")
    plain, left = CheckpointWriter.write, [sum(t.values.size for t in models[0].values()) * 3 // 4 // 64]

    def write(self: CheckpointWriter, *arguments: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise StorageError("the disk is gone")
        plain(self, *arguments)

    monkeypatch.setattr(CheckpointWriter, "write", write)
    prepared = prepare_extract(instruct, base)
    with pytest.raises(StorageError):
        prepared.write(tmp_path / "residual", workers=1)
    monkeypatch.undo()
    built = extract_residual(instruct, base, tmp_path / "residual")
    for file in (tmp_path / "whole").glob("*.safetensors"):
        assert (tmp_path / "residual" / file.name).read_bytes() == file.read_bytes()
    assert "inexact" not in built.record["audit"] or not built.resumed


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


@pytest.mark.parametrize("scale", [1.0, 0.5, -0.7, 0.0])
@pytest.mark.parametrize(
    "dtypes", [("BF16", "BF16", "BF16"), ("F32", "F32", "F32"), ("F16", "BF16", "F32"), ("BF16", "F32", "F16")]
)
def test_transfer_is_extract_then_apply(
    dtypes: tuple[str, str, str], scale: float, small_units: int, tmp_path: Path
) -> None:
    old = random_model(0, dtypes[0])
    models = {
        "old": old,
        "instruct": random_model(1, dtypes[1], near=old, spread=0.1),
        "new": random_model(2, dtypes[2], near=old, spread=0.1),
    }
    folders = {n: write_folder(tmp_path / n, m, shards=1 + i) for i, (n, m) in enumerate(models.items())}
    extract_residual(folders["instruct"], folders["old"], tmp_path / "residual", sync=False)
    apply_residual(tmp_path / "residual", folders["new"], tmp_path / "two", scale=scale, sync=False)
    built = transfer_residual(
        folders["instruct"], folders["old"], folders["new"], tmp_path / "one", scale=scale, sync=False
    )
    one = read_folder(tmp_path / "one")
    assert one == read_folder(tmp_path / "two") and weights(tmp_path / "one") == weights(tmp_path / "two")
    for name, tensor in one.items():
        a, b, c = (models[n][name].values for n in ("new", "instruct", "old"))
        assert_rounded(tensor, a + scale * (b - c), terms=np.abs(a) + 2 * np.abs(b) + 2 * np.abs(c), steps=3)
        assert tensor.dtype == dtypes[2]
    if scale == 0.0:
        assert one == models["new"]
    assert [p["role"] for p in built.record["parents"]] == ["base", "instruct", "old base"] and built.record["method"][
        "scale"
    ] == scale


def test_a_residual_of_an_adapter(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    from tiny import build_model

    build_model().save_pretrained(tmp_path / "base")
    model = get_peft_model(build_model(), LoraConfig(r=2, target_modules=["v_proj"]))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.01)
    model.save_pretrained(tmp_path / "adapter")
    extract_residual(tmp_path / "adapter", tmp_path / "base", tmp_path / "residual", sync=False)
    found = read_folder(tmp_path / "residual")
    moved = {n for n, t in found.items() if np.any(t.values != 0)}
    assert moved == {f"model.layers.{i}.self_attn.v_proj.weight" for i in range(2)}
    merge([tmp_path / "adapter"], tmp_path / "merged", sync=False, adapter_base=tmp_path / "base")
    apply_residual(tmp_path / "residual", tmp_path / "base", tmp_path / "back", sync=False)
    ours, theirs = read_folder(tmp_path / "back"), read_folder(tmp_path / "merged")
    assert all(np.allclose(ours[n].values, theirs[n].values, rtol=0, atol=1e-8) for n in ours)


# ---------------------------------------------------------------------------------------------------- what does not fit


def test_a_model_is_no_residual(tmp_path: Path) -> None:
    base, instruct, _, _ = pair(tmp_path, "BF16")
    with pytest.raises(
        ModelError,
        match=r"Expected a residual \(residual\.safetensors\) in .*instruct, found another kind of checkpoint",
    ):
        prepare_apply(instruct, base)
    extract_residual(instruct, base, tmp_path / "residual", sync=False)
    config = json.loads((tmp_path / "residual" / "config.json").read_text())
    (tmp_path / "residual" / "config.json").write_text(json.dumps({**config, "model_type": "llama"}))
    from transformers import AutoModelForCausalLM

    with pytest.raises(OSError, match=r"no file named model\.safetensors"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "residual")


@pytest.mark.parametrize("scale", [float("nan"), float("inf")])
def test_wrong_settings_come_together(scale: float, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        prepare_transfer(tmp_path, tmp_path, tmp_path, scale=scale, tokenizer="mine")
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


def test_what_the_base_lacks_is_copied_as_it_is_whatever_the_residual_s_dtype(tmp_path: Path) -> None:
    """It is no difference, so there is nothing to round, and what comes out has the instruct model's dtype."""
    extra = stored(np.random.default_rng(0).normal(size=30), "BF16")
    old, policies = random_model(0, "F32"), Policies(unmatched="keep")
    wanted = random_model(1, "F32", near=old, spread=0.01) | {"extra": extra, "wide": stored(np.full(3, 1 / 3), "F32")}
    base, instruct = (write_folder(tmp_path / n, m) for n, m in (("base", old), ("instruct", wanted)))
    for dtype in ("float32", "bfloat16"):
        extract_residual(instruct, base, tmp_path / dtype, dtype=dtype, policies=policies, sync=False)
        apply_residual(tmp_path / dtype, base, tmp_path / f"{dtype} back", policies=policies, sync=False)
        back = read_folder(tmp_path / f"{dtype} back")
        assert back["extra"] == extra and back["wide"] == wanted["wide"]
        assert (back == wanted) is (dtype == "float32")


@pytest.mark.parametrize("policy", ["keep"])
def test_new_tokens_of_the_instruct_model_arrive_in_the_result(policy: str, small_units: int, tmp_path: Path) -> None:
    tokens = [f"t{i}" for i in range(40)]
    models = {
        "old": (0, 40, tokens),
        "instruct": (1, 41, [*tokens[:5], "<|im_start|>", *tokens[5:]]),
        "new": (2, 40, tokens),
    }
    held = {n: random_model(seed, "F32", llama_shapes(rows)) for n, (seed, rows, _) in models.items()}
    folders = {
        n: write_folder(tmp_path / n, held[n], tokens=models[n][2], files={"chat_template.jinja": n}) for n in models
    }
    with pytest.raises(ShapeError, match=r"<\|im_start\|>"):
        prepare_extract(folders["instruct"], folders["old"])
    policies = Policies(vocabulary=policy)
    extract_residual(folders["instruct"], folders["old"], tmp_path / "residual", policies=policies, sync=False)
    apply_residual(tmp_path / "residual", folders["new"], tmp_path / "two", policies=policies, sync=False)
    transfer_residual(
        folders["instruct"], folders["old"], folders["new"], tmp_path / "one", policies=policies, sync=False
    )
    one = read_folder(tmp_path / "one")
    assert one == read_folder(tmp_path / "two")
    rows = np.delete(np.arange(41), 5)
    old, instruct, new = (held[n][EMBEDDING].values.astype(np.float32) for n in ("old", "instruct", "new"))
    assert np.array_equal(one[EMBEDDING].values[5], instruct[5])
    assert np.allclose(one[EMBEDDING].values[rows], new + (instruct[rows].astype(float) - old), rtol=1e-6, atol=1e-6)
    for out in ("one", "two"):
        assert (tmp_path / out / "chat_template.jinja").read_text() == "instruct"
        assert json.loads((tmp_path / out / "config.json").read_text())["vocab_size"] == 41
    transfer_residual(
        folders["instruct"],
        folders["old"],
        folders["new"],
        tmp_path / "as_base",
        policies=policies,
        tokenizer="base",
        sync=False,
    )
    found = read_folder(tmp_path / "as_base")[EMBEDDING].values
    assert np.allclose(found, new + (instruct[rows].astype(float) - old), rtol=1e-6, atol=1e-6)
    assert (tmp_path / "as_base" / "chat_template.jinja").read_text() == "new"


def test_nan_in_a_residual_or_its_parents(tmp_path: Path) -> None:
    base, instruct, _, wanted = pair(tmp_path, "F32")
    extract_residual(instruct, base, tmp_path / "residual", sync=False)
    bad = np.array(wanted["model.norm.weight"].values)
    bad[7] = np.nan
    broken = write_folder(tmp_path / "broken", wanted | {"model.norm.weight": stored(bad, "F32")})
    residual = write_folder(tmp_path / "bad-residual", read_folder(broken), stem="residual")
    for call, role in (
        (lambda out: extract_residual(broken, base, out), "instruct"),
        (lambda out: extract_residual(instruct, broken, out), "base"),
        (lambda out: transfer_residual(instruct, broken, base, out), "old base"),
        (lambda out: apply_residual(residual, base, out), "residual"),
    ):
        with pytest.raises(
            ModelError, match=rf"model\.norm\.weight in .*\({role}\) holds 1 NaN of 12 values, the first at \[7\]"
        ):
            call(tmp_path / "out")
        assert not (tmp_path / "out").exists()


# ------------------------------------------------------------------------------------------------------------ relatives


def notes(*folders: Path) -> str:
    return " ".join(prepare_extract(folders[1], folders[0]).plan.notes)


def test_a_fine_tune_is_taken_for_one(tmp_path: Path) -> None:
    base, instruct, _, _ = pair(tmp_path, "BF16", spread=0.05)
    prepared = prepare_extract(instruct, base)
    assert prepared.plan.notes == ()
    found = {d.layer: d for d in prepared.plan.ancestry}
    assert (
        found.keys() == {"embed", "0", "1", "norm", "total"}
        and 0.02 < found["total"].relative < 0.08
        and found["total"].cosine > 0.99
    )
    record = extract_residual(instruct, base, tmp_path / "residual", sync=False).record
    assert (
        len(json.loads((tmp_path / "residual" / "provenance.json").read_text())["ancestry"]) == 5 and record["ancestry"]
    )


def test_strangers_and_twins_are_warned_about(tmp_path: Path) -> None:
    base, instruct, _, _ = pair(tmp_path, "BF16")
    other = write_folder(tmp_path / "other", random_model(7, "BF16"))
    assert "WARNING: instruct does not look like a fine-tune of base everywhere" in notes(base, other)
    assert "hold the same weights" in notes(base, base)
    warned = prepare_transfer(instruct, other, base).plan.notes
    assert any("WARNING: instruct does not look like a fine-tune of old base" in n for n in warned)


def test_one_strange_layer_is_named(tmp_path: Path) -> None:
    base, _, _, tuned = pair(tmp_path, "BF16")
    strange = {n: t for n, t in random_model(8, "BF16").items() if ".layers.1." in n}
    assert "in layers 1:" in notes(base, write_folder(tmp_path / "mixed", tuned | strange))


# --------------------------------------------------------------------------------------------------------- transformers


def test_transformers_loads_what_a_residual_was_put_on(tokenizer: Any, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from tiny import build_model

    def save(seed: int, name: str, **more: Any) -> dict[str, torch.Tensor]:
        model = build_model(seed=seed).to(torch.bfloat16)
        model.generation_config.max_new_tokens = 10 + seed
        model.save_pretrained(tmp_path / name, **more)
        tokenizer.chat_template = f"{{# {name} #}}"
        tokenizer.save_pretrained(tmp_path / name)
        return model.state_dict()

    states = [
        save(i, n, max_shard_size=s) for i, (n, s) in enumerate([("old", "5GB"), ("instruct", "20KB"), ("new", "20KB")])
    ]
    tokenizer.chat_template = None
    transfer_residual(tmp_path / "instruct", tmp_path / "old", tmp_path / "new", tmp_path / "out", sync=False)
    loaded, stated = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(stated.values()) and loaded.dtype == torch.bfloat16 and loaded.generation_config.max_new_tokens == 11
    for name, value in loaded.state_dict().items():
        assert torch.equal(
            value, (states[2][name].float() + (states[1][name].float() - states[0][name].float())).to(torch.bfloat16)
        )
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template == "{# instruct #}"
    extract_residual(tmp_path / "instruct", tmp_path / "old", tmp_path / "residual", sync=False)
    assert len(CheckpointReader(tmp_path / "residual").files) == len(CheckpointReader(tmp_path / "instruct").files) > 1
    apply_residual(tmp_path / "residual", tmp_path / "old", tmp_path / "back", sync=False)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "back")
    assert all(torch.equal(value, states[1][name]) for name, value in again.state_dict().items())
