"""The driver: bits that depend on nothing but the inputs, every tensor there, bad numbers named, and a record that
says where it all comes from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from merge_references import CASES

from checkpoint_folders import (
    Model,
    assert_rounded,
    fisher_diagonal,
    llama_shapes,
    merge_inputs,
    random_model,
    read_folder,
    stored,
    write_folder,
)
from holdfast.checkpoints import engine, kernels
from holdfast.checkpoints.element_types import DTYPES
from holdfast.checkpoints.engine import Job, map_blocks
from holdfast.checkpoints.merge import merge
from holdfast.checkpoints.methods.registry import find_method
from holdfast.checkpoints.policies import Policies
from holdfast.checkpoints.provenance import FILE, content_fingerprint
from holdfast.checkpoints.reader import CheckpointReader
from holdfast.errors import ModelError, ShapeError

SHAPES = llama_shapes(layers=4) | {"model.scalar": (), "model.empty": (0, 7)}


def parents(
    folder: Path, *, shards: int, dtypes: tuple[str, ...] = ("BF16", "BF16", "F32", "F16"), shapes: Any = None
) -> tuple[list[Path], list[Path]]:
    base = random_model(0, dtypes[0], shapes or SHAPES)
    base["ids"] = stored(np.arange(200), "I64")
    models = [
        random_model(i, d, shapes or SHAPES, near=base, spread=0.3) | {"ids": base["ids"]}
        for i, d in enumerate(dtypes[1:], 1)
    ]
    fisher = [fisher_diagonal(i, shapes or SHAPES) for i in (20, 21)]
    return (
        [write_folder(folder / f"m{i}", m, shards=1 if i else shards) for i, m in enumerate([base, *models])],
        [write_folder(folder / f"f{i}", m, shards=shards) for i, m in enumerate(fisher)],
    )


# -------------------------------------------------------------------------------------------------------- the same bits


SORTING = ("ties", "ties_mergekit", "dare_mergekit", "dare_ties_mergekit")
"""As `ties_weighted`, which stands for them: a sort of every block, and so the slowest."""


@pytest.mark.parametrize("case", [pytest.param(c, marks=pytest.mark.slow if c in SORTING else []) for c in CASES])
def test_threads_shards_and_compilers_change_no_bit(
    case: str, small_units: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    method, parameters, count, _ = CASES[case]
    found: list[Model] = []
    fingerprints = set()
    # 7 shards are more than are in work at a time
    for number, (shards, workers, native) in enumerate([(1, 1, "1"), (7, 2, "1"), (3, 5, "0"), (7, 1, "0")]):
        monkeypatch.setenv("HOLDFAST_NATIVE", native)
        assert native == "1" or "PyTorch" in kernels.describe()
        folders, fisher = parents(tmp_path / f"in{number}", shards=shards)
        models, request = merge_inputs(method, count, folders, fisher)
        built = merge(
            models, tmp_path / f"out{number}", method=method, workers=workers, sync=False, **parameters, **request
        )
        found.append(read_folder(built.folder))
        fingerprints.add(built.record["fingerprint"])
        if find_method(method).needs_base:
            assert len(list(built.folder.glob("*.safetensors"))) == shards
    assert all(other == found[0] for other in found[1:])
    assert len(fingerprints) == 1


@pytest.mark.parametrize("method", ["task_arithmetic", "ties"])
def test_tensors_of_several_blocks_of_the_real_size(
    method: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shapes = {"a": (700, 1001), "b": (engine.UNIT,), "c": (engine.UNIT + 1,), "d": (3,)}
    base = random_model(0, "BF16", shapes)
    models = [base, *(random_model(i, "BF16", shapes, near=base, spread=0.3) for i in (1, 2))]
    folders = [write_folder(tmp_path / f"m{i}", m) for i, m in enumerate(models)]
    found = []
    for native in ("1", "0"):
        monkeypatch.setenv("HOLDFAST_NATIVE", native)
        merge(
            folders[1:],
            tmp_path / native,
            method=method,
            base=folders[0],
            workers=3,
            sync=False,
            **({"density": 1.0} if method == "ties" else {}),
        )
        found.append(read_folder(tmp_path / native))
    assert found[0] == found[1]
    values = [{n: m[n].values.ravel() for n in shapes} for m in models]
    wanted = CASES["ties_dense" if method == "ties" else "sum_of_changes"][3](values[0], values[1:], [])
    for name, shape in shapes.items():
        terms = sum(np.abs(v[name]) for v in values).reshape(shape)
        assert_rounded(found[0][name], wanted[name].reshape(shape), terms=terms, steps=4)


def test_results_are_reduced_in_the_order_of_blocks(small_units: int) -> None:
    sizes = [1000, 0, 64, 65, 63, 500, 128, 1]
    jobs = [Job(f"t{i}", DTYPES["F32"], (n,), n, f"file{i % 6}", (True,)) for i, n in enumerate(sizes)]

    def order(workers: int) -> list[tuple[str, int]]:
        seen: list[tuple[str, int]] = []
        map_blocks(
            jobs,
            lambda job, start, stop, scratch: start,
            sources=1,
            workers=workers,
            reduce=lambda job, start: seen.append((job.name, start)),
        )
        return seen

    assert order(1) == order(2) == order(5)
    assert len(order(1)) == sum(max(1, -(-n // 64)) for n in sizes)


def test_the_first_error_of_a_thread_stops_all_and_is_raised(small_units: int) -> None:
    jobs = [Job("t", DTYPES["F32"], (100_000,), 100_000, "file", (True,))]
    calls: list[int] = []

    def work(job: Job, start: int, stop: int, scratch: Any) -> None:
        calls.append(start)
        if start == 640:
            raise ModelError("at 640")

    with pytest.raises(ModelError, match="at 640"):
        map_blocks(jobs, work, sources=1, workers=3)
    assert len(calls) < 100


# ---------------------------------------------------------------------------------------------------------- bad numbers


def spoilt(folder: Path, name: str, place: tuple[int, ...], value: float) -> None:
    """Writes one bad number into a folder."""
    model = read_folder(folder)
    values = np.array(model[name].values)
    values[place] = value
    shutil.rmtree(folder)
    write_folder(folder, model | {name: stored(values, model[name].dtype)}, shards=2)


@pytest.mark.parametrize("case", CASES)
def test_nan_and_infinities_are_named_with_file_tensor_and_place(case: str, small_units: int, tmp_path: Path) -> None:
    method, parameters, count, _ = CASES[case]
    name = "model.layers.1.mlp.up_proj.weight"
    for role, value in (("model", np.nan), ("base", np.inf), ("fisher", np.nan)):
        folders, fisher = parents(tmp_path / role, shards=2)
        models, request = merge_inputs(method, count, folders, fisher)
        if role != "model" and role not in request:
            continue
        bad = {"model": models[-1], "base": folders[0], "fisher": fisher[0]}[role]
        spoilt(bad, name, (20, 3), value)
        with pytest.raises(ModelError) as caught:
            merge(models, tmp_path / "out", method=method, sync=False, **parameters, **request)
        kind = "NaN" if np.isnan(value) else "infinite"
        message = str(caught.value)
        assert message.startswith(f"{name} in {bad}/model-0000")
        assert f"holds 1 {kind} of 300 values, the first at [20, 3]" in message
        assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".out*"))


@pytest.mark.parametrize("copied", [True, False])
def test_what_is_not_finite_is_counted_and_placed(copied: bool, tmp_path: Path) -> None:
    """In a tensor that is only copied, too."""
    bad = stored(np.array([1.0, np.inf, np.nan]), "F16")
    one, two = random_model(0, "F16") | {"extra.weight": bad}, random_model(1, "F16")
    two |= {} if copied else {"extra.weight": bad}
    folders = [write_folder(tmp_path / f"m{i}", m) for i, m in enumerate((one, two))]
    with pytest.raises(ModelError, match=r"holds 1 NaN and 1 infinite of 3 values, the first at \[1\]"):
        merge(folders, tmp_path / "out", policies=Policies(unmatched="keep"), sync=False)


@pytest.mark.parametrize(("dtype", "size"), [("float16", 50_000.0), ("float32", 3e38)])
def test_results_that_do_not_fit_are_named(dtype: str, size: float, tmp_path: Path) -> None:
    model = {"big.weight": stored(np.array([1.0, size, -size]), "F32")}
    folders = [write_folder(tmp_path / f"m{i}", model) for i in range(2)]
    with pytest.raises(ModelError, match=r"big\.weight: 2 results are too large for F"):
        merge(folders, tmp_path / "out", normalize=False, dtype=dtype, sync=False)
    assert not list(tmp_path.glob("*out*"))


def test_integer_tensors_must_be_the_same(small_units: int, tmp_path: Path) -> None:
    folders, _ = parents(tmp_path, shards=1)
    merge(folders[1:3], tmp_path / "same", sync=False)
    assert np.array_equal(read_folder(tmp_path / "same")["ids"].values, np.arange(200))
    changed = read_folder(folders[2]) | {"ids": stored(np.arange(200)[::-1], "I64")}
    other = write_folder(tmp_path / "other", changed)
    with pytest.raises(ShapeError, match=r"ids \(I64\) differs between model 1 and model 2"):
        merge([folders[1], other], tmp_path / "out", sync=False)
    assert not (tmp_path / "out").exists()


# ----------------------------------------------------------------------------------------------------------- the record


def test_the_record_says_where_it_comes_from(tmp_path: Path) -> None:
    folders, _ = parents(tmp_path, shards=2)
    out = tmp_path / "out"
    merge(folders[1:3], out, method="ties", base=folders[0], density=0.25, dtype="bfloat16", sync=False)
    record = json.loads((out / FILE).read_text())
    assert record["command"] == "merge" and record["layout"] == "base"
    assert record["method"]["method"] == "ties" and record["method"]["density"] == 0.25
    assert record["request"]["dtype"] == "bfloat16"
    assert [p["role"] for p in record["parents"]] == ["base", "model 1", "model 2"]
    for parent, folder in zip(record["parents"], folders, strict=False):
        assert parent["name"] == str(folder)
        assert parent["fingerprint"] == content_fingerprint(CheckpointReader(folder))
    assert record["fingerprint"] == content_fingerprint(CheckpointReader(out))
    assert record["tensors"].keys() == read_folder(out).keys()


def test_a_fingerprint_is_of_names_dtypes_shapes_and_values(tmp_path: Path) -> None:
    model = {"a": stored(np.arange(6.0).reshape(2, 3), "F32"), "b": stored(np.zeros((0, 2)), "F32")}
    variants = [
        model,
        {"b": model["b"], "a": model["a"]},
        {"c": model["a"], "b": model["b"]},
        model | {"a": stored(np.arange(6.0).reshape(3, 2), "F32")},
        model | {"a": stored(np.arange(1.0, 7.0).reshape(2, 3), "F32")},
        model | {"a": model["a"]._replace(dtype="I32")},
    ]
    folders = [write_folder(tmp_path / f"v{i}", v, shards=1 + i % 2) for i, v in enumerate(variants)]
    prints = [content_fingerprint(CheckpointReader(folder)) for folder in folders]
    assert prints[0] == prints[1] and len(set(prints)) == len(prints) - 1
