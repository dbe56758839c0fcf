"""Blocks that go from file to file in one call: the same bytes, digests and errors as the ordinary way, whatever the
method, dtypes and pieces."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from checkpoint_folders import Model, contents, random_model, stored, write_folder
from holdfast.checkpoints import execute, native
from holdfast.checkpoints.build import Prepared
from holdfast.checkpoints.merge import prepare_merge
from holdfast.checkpoints.policies import Policies
from holdfast.checkpoints.residual import prepare_apply, prepare_extract, prepare_transfer
from holdfast.errors import ModelError, StorageError

pytestmark = pytest.mark.skipif(native.load() is None, reason=f"no library: {native.why_not()}")

SHAPES = {
    "model.embed_tokens.weight": (90, 131),
    "model.layers.0.w": (70, 131),
    "model.layers.1.w": (9, 131),
    "model.norm.weight": (131,),
}
"""In blocks of 5,000 elements: several with an odd rest, one of 1,179, and one that is too small to be streamed."""
MIXED = dict(zip(SHAPES, ("F16", "F8_E4M3", "BF16", "F32"), strict=True))


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Small blocks and pieces; the sizes of the blocks that were streamed."""
    for module in ("engine", "provenance", "execute"):
        monkeypatch.setattr(f"holdfast.checkpoints.{module}.UNIT", 5000)
    monkeypatch.setattr(execute, "STREAMED", 512)
    real, sizes = native.Kernels.stream, []

    def stream(self: native.Kernels, count: int, *arguments: Any, **keywords: Any) -> native.Streamed:
        sizes.append(count)
        return real(self, count, *arguments, **{"piece": 1024, **keywords})

    monkeypatch.setattr(native.Kernels, "stream", stream)
    return sizes


def both_ways(
    prepare: Callable[[], Prepared], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, str], ...]:
    """Hashes of all files: streamed, and the ordinary way. The records agree but for their times."""
    found = []
    for name, least in (("streamed", 512), ("ordinary", 1 << 60)):
        monkeypatch.setattr(execute, "STREAMED", least)
        built = prepare().write(tmp_path / name, sync=False)
        found.append((built.record | {"created": "", "seconds": {}}, contents(tmp_path / name)))
    (one, streamed), (other, ordinary) = found
    assert one == other
    return tuple(
        {name: digest for name, digest in files.items() if name != "provenance.json"} for files in (streamed, ordinary)
    )


SUMS: list[tuple[str, dict[str, Any]]] = [
    ("linear", {}),
    ("linear", {"weights": (0.25, 2.0, 0.75)}),
    ("linear", {"normalize": False, "weights": (0.5, -1.0, 0.3)}),
    ("task_arithmetic", {}),
    ("task_arithmetic", {"scale": -0.3, "weights": (1.0, 0.0, 2.0)}),
    ("wise_ft", {"alpha": 0.3}),
    ("wise_ft", {"alpha": 1.0}),
    ("slerp", {"t": 0.3}),
    ("model_stock", {}),
]


def three_models(tmp_path: Path, dtype: Any, shards: int = 2) -> tuple[list[Model], list[Path]]:
    base = random_model(0, dtype, SHAPES)
    models = [base, *(random_model(i, dtype, SHAPES, near=base, spread=0.05) for i in (1, 2, 3))]
    return models, [write_folder(tmp_path / f"in{i}", m, shards=shards) for i, m in enumerate(models)]


@pytest.mark.parametrize("dtype", ["BF16", "F32", "F16", "F8_E4M3", "F8_E5M2", "mixed"])
@pytest.mark.parametrize(
    ("method", "parameters"),
    SUMS,
    ids=lambda value: value if isinstance(value, str) else ",".join(map(str, value.values())),
)
def test_a_merge_is_the_same_both_ways(
    method: str,
    parameters: dict[str, Any],
    dtype: str,
    streams: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from holdfast.checkpoints.methods.registry import METHODS

    _, folders = three_models(tmp_path, MIXED if dtype == "mixed" else dtype)
    count = {"wise_ft": 1, "slerp": 2}.get(method, 3)
    base = folders[0] if METHODS[method].needs_base else None
    streamed, ordinary = both_ways(
        lambda: prepare_merge(method, folders[1 : 1 + count], base=base, **parameters), tmp_path, monkeypatch
    )
    assert streamed == ordinary
    assert sorted(streams) == sorted([5000, 5000, 1790, 5000, 4170, 1179])


def test_models_of_different_dtypes(streams: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = [random_model(i, dtype, SHAPES) for i, dtype in enumerate(("F32", "BF16", "F8_E5M2"))]
    base, *others = [write_folder(tmp_path / f"in{i}", m) for i, m in enumerate(models)]
    for dtype in ("float16", "float32"):
        streamed, ordinary = both_ways(
            lambda d=dtype: prepare_merge("task_arithmetic", others, base=base, dtype=d), tmp_path / dtype, monkeypatch
        )
        assert streamed == ordinary and len(streams) == 6
        streams.clear()
    monkeypatch.setattr(execute, "STREAMED", 512)
    wide = write_folder(tmp_path / "wide", random_model(9, "F64", SHAPES))
    prepare_merge("task_arithmetic", [wide], base=base).write(tmp_path / "out", sync=False)
    assert not streams  # float64 is PyTorch's


def test_tensors_that_a_model_lacks_and_those_that_are_copied(
    streams: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models, _ = three_models(tmp_path, "BF16")
    models[0]["extra.weight"] = stored(np.random.default_rng(3).normal(size=(60, 100)), "BF16")
    models[0]["counts"] = stored(np.arange(6000), "I64")
    for model in models[1:]:
        model["counts"] = models[0]["counts"]
    del models[2]["model.layers.0.w"]
    base, *others = [write_folder(tmp_path / f"held{i}", m) for i, m in enumerate(models)]
    for dtype in (None, "float32"):
        place = tmp_path / str(dtype)
        request: dict[str, Any] = {"base": base, "dtype": dtype, "policies": Policies(unmatched="keep")}
        streamed, ordinary = both_ways(
            lambda r=request: prepare_merge("task_arithmetic", others, **r), place, monkeypatch
        )
        assert streamed == ordinary and sorted(streams) == sorted([5000, 5000, 1790, 5000, 4170, 1179, 5000, 1000])
        streams.clear()


@pytest.mark.parametrize("count", [32, 33, 40])
def test_more_models_than_one_call_takes(
    count: int, streams: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A soup of 32 models has 63 operands, which is what a call takes; larger ones go the ordinary way."""
    models = [random_model(i, "BF16", {"w": (70, 131)}) for i in range(count)]
    folders = [write_folder(tmp_path / f"in{i}", m) for i, m in enumerate(models)]
    streamed, ordinary = both_ways(lambda: prepare_merge("linear", folders), tmp_path, monkeypatch)
    assert streamed == ordinary and len(streams) == (2 if count == 32 else 0)


@pytest.mark.parametrize("storage", ["BF16", "F16"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_residuals_are_the_same_both_ways(
    dtype: str, storage: str, streams: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With remainders in two blocks, one a tensor's last: only those are read again."""
    models, _ = three_models(tmp_path, storage)
    values = [m["model.layers.0.w"].values.copy() for m in models[:2]]
    for place in (7, 9169):
        values[0].flat[place], values[1].flat[place] = 3.0, 2.0 ** (-24 if storage == "F16" else -40)
    for model, changed in zip(models, values, strict=False):
        model["model.layers.0.w"] = stored(changed, storage)
    base, instruct, other, _ = [write_folder(tmp_path / f"held{i}", m) for i, m in enumerate(models)]
    streamed, ordinary = both_ways(lambda: prepare_extract(instruct, base, dtype=dtype), tmp_path, monkeypatch)
    assert streamed == ordinary and len(streams) == 6
    assert any(name.endswith("remainder.safetensors") for name in streamed) is (dtype == "float32")
    for scale in (1.0, -0.4):
        place = tmp_path / str(scale)
        streams.clear()
        streamed, ordinary = both_ways(
            lambda s=scale: prepare_transfer(instruct, base, other, scale=s), place, monkeypatch
        )
        assert streamed == ordinary and len(streams) == 6
        streams.clear()
        streamed, ordinary = both_ways(
            lambda s=scale: prepare_apply(tmp_path / "streamed", other, scale=s), place / "apply", monkeypatch
        )
        assert streamed == ordinary and len(streams) == (
            0 if dtype == "float32" else 6
        )  # a residual with remainders is no plain folder


@pytest.mark.parametrize("dtype", ["BF16", "F8_E5M2", "F32"])
def test_digests_are_xxh3_128(dtype: str) -> None:
    """Any length from where the library's short forms end, around the rounds of 1024 bytes and the stripes of 64, in
    one piece or many."""
    library = native.load()
    assert library is not None
    size = {"BF16": 2, "F8_E5M2": 1, "F32": 4}[dtype]
    draw = np.random.default_rng(0)
    edges = [
        n + d for n in (256, 512, 1024, 2048, 3072, 4096, 9216) for d in (-65, -64, -63, -33, -1, 0, 1, 31, 64, 65)
    ]
    for length in [241, *(n for n in edges if n > 240), *draw.integers(241, 40_000, 60)]:
        count = int(length) // size + (int(length) // size * size <= 240)
        content = draw.integers(0, 0x38, count * size, dtype=np.uint8).tobytes()  # no NaN in any of the types
        for piece in (1024, 2048, native.PIECE):
            with tempfile.TemporaryFile() as file:
                file.write(b"12345" + content)
                file.flush()
                memory = [np.empty(8 * piece, np.uint8) for _ in range(2)]
                places = [native.Place(file.fileno(), 5 + i * len(content), dtype, memory[i]) for i in range(2)]
                done = library.stream(count, places[:1], [-1, 0, -1], [1.0], places[1], piece=piece)
                file.seek(5 + len(content))
                assert file.read() == content
            assert done == (0, 0, 0, 0, 0, [xxhash.xxh3_128_digest(content)] * 2), (length, piece)


# --------------------------------------------------------------------------------------------------------------- faults


def merged(tmp_path: Path, models: list[Model]) -> Prepared:
    base, *others = [write_folder(tmp_path / f"in{i}", m) for i, m in enumerate(models)]
    return prepare_merge("task_arithmetic", others, base=base, dtype="float16")


@pytest.mark.parametrize("place", [0, 1023, 5003, 9169])
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_nan_names_file_and_tensor(value: str, place: int, streams: list[int], tmp_path: Path) -> None:
    models = [random_model(i, "BF16", SHAPES) for i in range(2)]
    values = models[1]["model.layers.0.w"].values.copy()
    values.flat[place] = float(value)
    models[1]["model.layers.0.w"] = stored(values, "BF16")
    where = rf"\[{place // 131}, {place % 131}\]"
    with pytest.raises(
        ModelError, match=rf"model\.layers\.0\.w in .*in1.*holds 1 {'NaN' if value == 'nan' else 'infinite'} .* {where}"
    ):
        merged(tmp_path, models).write(tmp_path / "out", workers=1, sync=False)
    assert streams and not (tmp_path / "out").exists()


def test_results_too_large_for_the_dtype(streams: list[int], tmp_path: Path) -> None:
    models = [random_model(0, "BF16", SHAPES)]
    models.append(models[0] | {"model.layers.1.w": stored(np.full((9, 131), 1e5), "BF16")})
    with pytest.raises(ModelError, match=r"model\.layers\.1\.w: 1,179 results are too large for F16"):
        merged(tmp_path, models).write(tmp_path / "out", sync=False)
    assert 1179 in streams


def test_a_file_that_became_shorter(streams: list[int], tmp_path: Path) -> None:
    prepared = merged(tmp_path, [random_model(i, "BF16", SHAPES) for i in range(2)])
    file = tmp_path / "in1" / "model.safetensors"
    os.truncate(file, file.stat().st_size - 4000)
    with pytest.raises(
        ModelError, match=r"in1/model\.safetensors ends within model\.layers\.[01]\.w, because it became shorter"
    ):
        prepared.write(tmp_path / "out", workers=1, sync=False)
    assert streams and not (tmp_path / "out").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is Linux's")
def test_a_disk_that_fills_up(streams: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.checkpoints.writer import CheckpointWriter

    prepared = merged(tmp_path, [random_model(i, "BF16", SHAPES) for i in range(2)])
    before, real, calls = contents(tmp_path), CheckpointWriter.place, itertools.count()
    with open("/dev/full", "wb", buffering=0) as full:
        monkeypatch.setattr(
            CheckpointWriter,
            "place",
            lambda self, name, byte: (full.fileno(), 0) if next(calls) == 3 else real(self, name, byte),
        )
        with pytest.raises(StorageError, match=r"Could not write .*out \(No space left on device\)"):
            prepared.write(tmp_path / "out", workers=1, sync=False)
    assert contents(tmp_path) == before


def test_without_the_library_everything_goes_the_ordinary_way(
    streams: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folders = three_models(tmp_path, "BF16")
    with_it = prepare_merge("task_arithmetic", folders[1:], base=folders[0]).write(tmp_path / "with", sync=False)
    count = len(streams)
    monkeypatch.setenv("HOLDFAST_NATIVE", "0")
    without = prepare_merge("task_arithmetic", folders[1:], base=folders[0]).write(tmp_path / "without", sync=False)
    assert count and len(streams) == count and with_it.record["fingerprint"] == without.record["fingerprint"]
