"""Generated tensors, headers and residuals through the checkpoint engine."""

from __future__ import annotations

import json
import shutil
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkpoint_folders import Model, Stored, assert_rounded, read_folder, stored, write_file, write_folder
from holdfast.checkpoints.merge import merge
from holdfast.checkpoints.reader import CheckpointReader
from holdfast.checkpoints.residual import apply_residual, extract_residual
from holdfast.errors import ModelError


@pytest.fixture
def small_units(monkeypatch: pytest.MonkeyPatch) -> int:
    """Blocks of a few elements, so that small tensors are cut as large ones are."""
    for module in ("engine", "provenance", "execute"):
        monkeypatch.setattr(f"holdfast.checkpoints.{module}.UNIT", 64)
    return 64


FLOATS = ["F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"]


@st.composite
def tensor_tables(draw: st.DrawFn) -> dict[str, tuple[tuple[str, str, str], tuple[int, ...]]]:
    """Name: dtypes of base and two models, shape; sizes around the block size of 64."""
    shape = st.one_of(
        st.sampled_from(
            [(), (0,), (0, 5), (3, 0, 2), (1,), (63,), (64,), (65,), (128,), (2, 64), (13, 10), (1, 1, 129)]
        ),
        st.lists(st.integers(0, 9), max_size=4).map(tuple),
    )
    dtypes = st.one_of(
        st.tuples(*[st.sampled_from(FLOATS)] * 3),
        st.sampled_from(["I64", "I32", "U8", "BOOL"]).map(lambda d: (d, d, d)),
    )
    return {f"t{i}.weight": draw(st.tuples(dtypes, shape)) for i in range(draw(st.integers(1, 6)))}


@given(
    table=tensor_tables(),
    shards=st.integers(1, 3),
    workers=st.integers(1, 4),
    wanted=st.sampled_from([None, "float32", "bfloat16"]),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_tensors_of_any_shape_and_dtype(
    small_units: int,
    tmp_path_factory: pytest.TempPathFactory,
    table: dict[str, Any],
    shards: int,
    workers: int,
    wanted: str | None,
) -> None:
    folder = tmp_path_factory.mktemp("any")
    draw = np.random.default_rng(len(table))
    models: list[Model] = [{}, {}, {}]
    for name, (dtypes, shape) in table.items():
        whole = draw.integers(0, 2, size=shape)
        for model, dtype in zip(models, dtypes, strict=True):
            model[name] = stored(draw.normal(size=shape) if dtype in FLOATS else np.asarray(whole), dtype)
    folders = [
        write_folder(folder / f"m{i}", m, shards=min(shards, len(table)) if i == 0 else 1) for i, m in enumerate(models)
    ]
    merge(
        folders[1:],
        folder / "out",
        method="task_arithmetic",
        base=folders[0],
        weights=[0.5, 0.25],
        workers=workers,
        dtype=wanted,
        sync=False,
    )
    found = read_folder(folder / "out")
    assert found.keys() == table.keys()
    for name, (dtypes, shape) in table.items():
        base, one, two = (m[name].values for m in models)
        if dtypes[0] not in FLOATS:
            assert found[name] == models[0][name]
            continue
        assert found[name].shape == shape
        assert found[name].dtype == ({"float32": "F32", "bfloat16": "BF16"}[wanted] if wanted else dtypes[0])
        assert_rounded(
            found[name],
            base + 0.5 * (one - base) + 0.25 * (two - base),
            terms=np.abs(base) + np.abs(one) + np.abs(two),
            steps=4,
        )
    shutil.rmtree(folder)


@given(content=st.binary(max_size=120), size=st.integers(0, 130))
@settings(max_examples=80, deadline=None)
def test_no_file_makes_another_error(tmp_path_factory: pytest.TempPathFactory, content: bytes, size: int) -> None:
    folder = tmp_path_factory.getbasetemp() / "any"
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(size.to_bytes(8, "little") + content)
    try:
        CheckpointReader(folder)
    except ModelError:
        return
    assert json.loads(content[:size]) in ({}, {"__metadata__": {}})


@given(at=st.integers(0, 400), byte=st.integers(0, 255))
@settings(max_examples=80, deadline=None)
def test_a_header_with_one_wrong_byte_is_refused_or_means_something_else(
    tmp_path_factory: pytest.TempPathFactory, at: int, byte: int
) -> None:
    folder = tmp_path_factory.getbasetemp() / "flipped"
    folder.mkdir(exist_ok=True)
    file = folder / "model.safetensors"
    write_file(
        file,
        {
            "a": stored(np.arange(4.0), "F32"),
            "b": stored(np.zeros((0, 3)), "F16"),
            "c": stored(np.ones((2, 3)), "BF16"),
        },
    )
    content = bytearray(file.read_bytes())
    at %= len(content) - 28  # the header
    content[at] = byte
    file.write_bytes(content)
    try:
        entries = CheckpointReader(folder).entries
    except ModelError:
        return
    assert sum(e.nbytes for e in entries.values()) == 28  # every byte still belongs to one tensor


def bits(tensor: Stored) -> np.ndarray:
    return np.frombuffer(tensor.content, f"u{len(tensor.content) // max(1, int(np.prod(tensor.shape)))}")


def differences(one: Model, other: Model) -> int:
    return sum(int((bits(one[n]) != bits(other[n])).sum()) for n in one)


@given(
    numbers=st.lists(
        st.tuples(
            st.floats(-1e4, 1e4, width=32), st.floats(-1e4, 1e4, width=32), st.sampled_from([1.0, 1.0, 1e-6, 1e-12])
        ),
        min_size=1,
        max_size=80,
    ),
    dtype=st.sampled_from(["F32", "BF16", "F16"]),
    residual=st.sampled_from(["float32", "float64", "bfloat16"]),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_audit_counts_what_does_not_come_back(
    small_units: int,
    tmp_path_factory: pytest.TempPathFactory,
    numbers: list[tuple[float, float, float]],
    dtype: str,
    residual: str,
) -> None:
    folder = tmp_path_factory.mktemp("audit")
    models = [{"w": stored(np.array([n[i] * (n[2] if i else 1.0) for n in numbers]), dtype)} for i in range(2)]
    base, instruct = (write_folder(folder / n, m) for n, m in zip(("base", "instruct"), models, strict=True))
    record = extract_residual(instruct, base, folder / "residual", dtype=residual, sync=False).record
    apply_residual(folder / "residual", base, folder / "back", sync=False)
    assert record["audit"]["inexact"] == differences(models[1], read_folder(folder / "back"))
    if residual != "bfloat16" and all(
        abs(float(a)) < 2**29 * abs(float(b)) or float(a) == 0 for (a,), (b,) in _pairs(models)
    ):
        lost = [
            1
            for (a,), (b,) in _pairs(models)
            if float(b) == 0 and np.signbit(b) and not (float(a) == 0 and np.signbit(a))
        ]
        assert record["audit"]["inexact"] == len(lost)


def _pairs(models: list[Model]) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(a.reshape(1), b.reshape(1)) for a, b in zip(models[0]["w"].values, models[1]["w"].values, strict=True)]
