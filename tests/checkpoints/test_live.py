"""The in-place forms on live models: values, what is refused, noise that is the engine's, and an undo that is exact."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from holdfast.checkpoints import corrections, counter, counter_torch, kernels, live
from holdfast.checkpoints.element_types import DTYPES, Operand
from holdfast.checkpoints.live_tensors import checkpoint_names
from holdfast.checkpoints.reader import CheckpointReader
from holdfast.errors import ConfigError, ModelError
from tiny import build_model

FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn]
NAMES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float64: "F64",
    torch.float8_e4m3fn: "F8_E4M3",
}
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().contiguous().view(INTEGERS[tensor.itemsize])


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(bits(a), bits(b))


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def operand(tensor: torch.Tensor) -> Operand:
    dtype = DTYPES[NAMES[tensor.dtype]]
    return Operand(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().view(dtype.storage), dtype)


# ----------------------------------------------------------------------------------------------- lerp_


@pytest.mark.parametrize("source", ["mapping", "folder", "reader"])
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("held", FLOATS)
def test_lerp_is_the_weighted_mean_with_one_rounding(held, stored, source, tmp_path):
    start = {"a": draw(5, 7, dtype=held), "b": draw(3, seed=1, dtype=held), "none": draw(0, 4, dtype=held)}
    other = {n: draw(*t.shape, seed=9, dtype=stored) for n, t in start.items()} | {"more": torch.ones(2)}
    save_file(other, str(tmp_path / "model.safetensors"))
    given = {"mapping": other, "folder": tmp_path, "reader": CheckpointReader(tmp_path)}[source]
    compute = torch.float64 if torch.float64 in (held, stored) else torch.float32
    for weight in (0.0, 0.3, 0.8, 1.0):
        named = {n: t.clone() for n, t in start.items()}
        live.lerp_(named, given, weight)
        for name, result in named.items():
            mean = torch.lerp(start[name].to(compute), other[name].to(compute), weight)
            assert same_bits(result, mean.to(held)), (name, weight)


def test_weights_0_and_1_keep_every_bit():
    odd = torch.tensor([-0.0, 0.0, math.nan, math.inf, -math.inf, 1e-45, 3.0])
    named, other = {"w": torch.full((7,), -2.0)}, {"w": odd}
    live.lerp_(named, other, 1.0)
    assert same_bits(named["w"], odd)
    live.lerp_(named, {"w": torch.full((7,), math.nan)}, 0.0)
    assert same_bits(named["w"], odd)


def test_parameters_that_are_no_plain_row_of_memory():
    """Transposed, strided, trainable and tied."""
    base = draw(6, 4)
    other = {"t": draw(4, 6, seed=1), "s": draw(6, 2, seed=2), "p": draw(3, seed=3), "q": draw(3, seed=4)}
    named = {"t": base.clone().t(), "s": base.clone()[:, ::2], "p": torch.nn.Parameter(torch.zeros(3))}
    named["q"] = named["p"]
    wanted = {n: named[n].detach().lerp(other[n], 0.25) for n in ("t", "s", "p")}
    live.lerp_(named, other, 0.25)
    for name, value in wanted.items():
        assert same_bits(named[name], value)
    assert named["p"].requires_grad and named["p"].grad_fn is None


def test_everything_that_does_not_fit_is_in_one_error_and_nothing_changes():
    square = torch.ones(4, 4)
    named = {
        "a": torch.ones(2),
        "b": torch.ones(3),
        "c": torch.ones(2),
        "i": torch.ones(2, dtype=torch.int32),
        "m": torch.ones(2, device="meta"),
        "x": square,
        "y": square.t(),
    }
    other = {
        "a": torch.zeros(2),
        "b": torch.zeros(4),
        "i": torch.zeros(2),
        "m": torch.zeros(2),
        "x": torch.zeros(4, 4),
    }
    with pytest.raises(ModelError) as caught:
        live.lerp_(named, other, 0.5)
    for words in (
        "b: expected (3,), the checkpoint has (4,)",
        "c: not in the checkpoint",
        "i: expected floating-point",
        "m: has no values",
        "y: shares memory with x",
    ):
        assert words in str(caught.value)
    assert torch.equal(named["a"], torch.ones(2))
    with pytest.raises(ConfigError, match="weight"):
        live.lerp_({"a": torch.ones(2)}, other, math.nan)


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("module._orig_mod.a._checkpoint_wrapped_module.b", ["a.b"]),
        ("base_model.model.q.lora_A.mine.weight", ["base_model.model.q.lora_A.weight"]),
        ("base_model.model.e.lora_embedding_A.default", ["base_model.model.e.lora_embedding_A"]),
        ("base_model.model.q.base_layer.weight", ["base_model.model.q.base_layer.weight", "q.weight"]),
    ],
)
def test_names_as_checkpoints_write_them(name, stored):
    assert list(checkpoint_names(name)) == stored


# ---------------------------------------------------------------------------------------------------------------- noise


@pytest.mark.parametrize(("start", "n"), [(0, 10_001), (2**40 + 3, 5001)])
def test_noise_in_torch_is_the_counters(start, n):
    key = counter.stream_key(1, "w")
    wanted = torch.from_numpy(counter.normal(key, start, n))
    assert same_bits(counter_torch.normal(key, start, n, torch.device("cpu")), wanted)
    positions = torch.arange(start, start + n).flip(0)
    assert same_bits(counter_torch.normal_at(key, positions).flip(0), wanted)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_noise_and_undo_on_cuda_are_the_cpus():
    for dtype in FLOATS[:4]:
        start = draw(1000, 333, dtype=dtype)
        named, there = {"w": start.clone()}, {"w": start.cuda()}
        for weights in (named, there):
            handle = live.perturb_(weights, seed=1, scale=0.3, stds={"w": 1.0})
        assert same_bits(there["w"].cpu(), named["w"])
        handle.undo()
        assert same_bits(there["w"].cpu(), start)


@pytest.mark.parametrize("dtype", FLOATS)
def test_perturbed_weights_are_those_of_the_engine(dtype):
    start = draw(37, 11, dtype=dtype)
    wanted = torch.empty_like(start)
    kernels.perturb(operand(start), counter.stream_key(5, "w"), 0, 0.3 * 0.02, operand(wanted))
    named = {"w": start.clone()}
    live.perturb_(named, seed=5, scale=0.3, stds={"w": 0.02})
    assert same_bits(named["w"], wanted) and not same_bits(named["w"], start)


def test_noise_does_not_depend_on_blocks_device_path_or_company(monkeypatch):
    start = {"a": draw(50, 20), "b": draw(77)}

    def noisy(names=("a", "b")) -> dict[str, torch.Tensor]:
        named = {n: start[n].clone() for n in names}
        live.perturb_(named, seed=2, scale=1.0, stds={"a": 0.02, "b": 0.5, "unknown": 1.0})
        return named

    expected = noisy()
    assert same_bits(noisy(["b"])["b"], expected["b"])
    monkeypatch.setattr(live, "_block_elements", lambda device: 13)
    assert all(same_bits(t, expected[n]) for n, t in noisy().items())
    there = live._noise_on_device
    monkeypatch.setattr(live, "_noise", lambda target, key, *part: there(key, list(target.spans(*part[:2])), part[2]))
    assert all(same_bits(t, expected[n]) for n, t in noisy().items())


def test_noise_is_normal_and_scaled_by_each_std():
    named = {"a": torch.zeros(400, 500), "b": torch.zeros(200_000), "constant": torch.ones(10)}
    state = torch.get_rng_state()
    live.perturb_(named, seed=0, scale=0.5, stds={"a": 0.02, "b": 3.0, "constant": 0.0})
    assert torch.equal(torch.get_rng_state(), state)
    for name, std in (("a", 0.01), ("b", 1.5)):
        z = named[name].double().flatten() / std
        assert abs(float(z.mean())) < 4 / math.sqrt(len(z))
        assert float(z.std()) == pytest.approx(1, abs=4 / math.sqrt(2 * len(z)))
    assert abs(float((named["a"].flatten() * named["b"]).mean()) / 0.015) < 4 / math.sqrt(200_000)
    assert torch.equal(named["constant"], torch.ones(10))


# ----------------------------------------------------------------------------------------------------------------- undo


@pytest.mark.parametrize("scale", [1e-6, 0.1, 1e30])
@pytest.mark.parametrize("dtype", [*FLOATS, torch.float8_e5m2])
def test_undo_gives_the_same_bits(dtype, scale, monkeypatch):
    """Of ordinary weights and of arbitrary patterns (NaN, infinities, subnormals), transposed and in small blocks."""
    rng = np.random.default_rng(0)
    wild = torch.from_numpy(np.frombuffer(rng.bytes(60 * dtype.itemsize), np.uint8).copy()).view(dtype)
    named = {"plain": draw(9, 7, dtype=dtype), "transposed": draw(4, 6, dtype=dtype).t(), "wild": wild.reshape(6, 10)}
    before = {n: bits(t) for n, t in named.items()}
    monkeypatch.setattr(live, "_block_elements", lambda device: 5)
    handle = live.perturb_(named, seed=0, scale=scale, stds=dict.fromkeys(named, 0.02))
    handle.undo()
    assert all(torch.equal(bits(t), before[n]) for n, t in named.items())
    assert handle.undone and handle.bytes_kept == 0


@pytest.mark.parametrize("size", [1, 256, 3000, 70_000])
@pytest.mark.parametrize("share", [0.0005, 0.3, 1.0])
def test_corrections_come_back_as_they_were(share, size):
    rng = np.random.default_rng(size)
    places = np.flatnonzero(rng.random(size) < share)
    steps = rng.integers(1, 200, len(places)) * rng.choice([-1, 1], len(places))
    kept = rng.integers(-(2**31), 2**31, len(places)).astype(np.int32)
    record = corrections.pack(places, steps, kept, size)
    unpacked, jumps = corrections.unpack(record, size)
    assert np.array_equal(unpacked[jumps != 0], places)
    far = np.abs(steps) > 127
    assert np.array_equal(jumps[jumps != 0], np.where(far, corrections.ESCAPE, steps))
    assert np.array_equal(record.escapes, kept[far])


@pytest.mark.parametrize(
    ("dtype", "scale", "share"),
    [(torch.float32, 0.001, 0.003), (torch.float32, 1.0, 0.121), (torch.bfloat16, 0.1, 0.078)],
)
def test_little_is_kept(dtype, scale, share):
    """Bytes, as a share of a copy."""
    named = {"w": (draw(200_000) * 0.02).to(dtype)}
    handle = live.perturb_(named, seed=1, scale=scale, stds={"w": 0.02})
    assert handle.bytes_kept / named["w"].nbytes == pytest.approx(share, rel=0.05)


def test_models_are_perturbed_independently_of_each_other_and_of_the_order_of_undoing():
    one, two = build_model(seed=1), build_model(seed=2)
    before = [{n: p.detach().clone() for n, p in m.named_parameters()} for m in (one, two)]
    stds = dict.fromkeys(before[0], 0.02)
    first = live.perturb_(one, seed=1, scale=0.1, stds=stds)
    second = live.perturb_(two, seed=1, scale=1.0, stds=stds)
    third = live.perturb_(one, seed=2, scale=0.1, stds=stds)
    with pytest.raises(ModelError, match="because weights were changed after it"):
        first.undo()  # the later noise has to go first
    third.undo()
    first.undo()
    second.undo()
    for model, weights in zip((one, two), before, strict=True):
        assert all(same_bits(p, weights[n]) for n, p in model.named_parameters())


def test_tied_weights_get_noise_once_under_their_first_name():
    model = build_model(tie=True)
    named = dict(model.named_parameters(remove_duplicate=False))
    assert named["lm_head.weight"] is named["model.embed_tokens.weight"]
    single = {"model.embed_tokens.weight": named["model.embed_tokens.weight"].detach().clone()}
    stds = dict.fromkeys(named, 0.02)
    before = single["model.embed_tokens.weight"].clone()
    live.perturb_(single, seed=0, scale=1.0, stds=stds)
    with live.perturbed(named, seed=0, scale=1.0, stds=stds):
        assert same_bits(named["lm_head.weight"], single["model.embed_tokens.weight"])
    assert same_bits(named["lm_head.weight"], before)


CHANGES = {
    "an optimiser step": lambda w: torch.optim.SGD([w], lr=0.1).step(),
    "through NumPy": lambda w: np.add(w.detach().numpy(), 1e-3, out=w.detach().numpy()),
    "one bit": lambda w: bits_of(w).__setitem__(-1, bits_of(w)[-1] ^ 1),
    "another dtype": lambda w: setattr(w, "data", w.data.double()),
}


def bits_of(weight: torch.Tensor) -> torch.Tensor:
    return weight.detach().view(-1).view(torch.int32)


@pytest.mark.parametrize("change", CHANGES)
def test_undo_after_a_change_is_refused_and_does_nothing(change):
    weight = torch.nn.Parameter(draw(9, 7))
    weight.grad = torch.ones_like(weight)
    other = torch.nn.Parameter(draw(5))
    handle = live.perturb_({"other": other, "w": weight}, seed=0, scale=0.1, stds={"w": 1.0, "other": 1.0})
    noisy = other.detach().clone()
    CHANGES[change](weight)
    with pytest.raises(ModelError, match=r"because weights were changed after it \(1 of 2 tensors: w\)"):
        handle.undo()
    assert same_bits(other, noisy) and not handle.undone


def test_the_weights_are_back_after_an_error_inside_the_block():
    weight = draw(8)
    before = weight.clone()

    def fail() -> None:
        with live.perturbed({"w": weight}, seed=0, scale=1.0, stds={"w": 1.0}):
            assert not same_bits(weight, before)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert same_bits(weight, before)


@pytest.mark.parametrize("stop_at", [0, 1, 4, 7])
def test_an_interrupted_perturbation_takes_itself_back(stop_at, monkeypatch):
    """Ctrl-C inside a block's arithmetic, after its record was made and before it was written."""
    monkeypatch.setattr(live, "_block_elements", lambda device: 10)
    named = {"a": draw(7, 6), "b": draw(5, 7).t()}
    before = {n: bits(t) for n, t in named.items()}
    sum_of_bits = live._sum_of_bits
    calls = itertools.count()

    def interrupted(flat):
        if next(calls) == stop_at:
            raise KeyboardInterrupt
        return sum_of_bits(flat)

    monkeypatch.setattr(live, "_sum_of_bits", interrupted)
    with pytest.raises(KeyboardInterrupt):
        live.perturb_(named, seed=0, scale=1.0, stds={"a": 1.0, "b": 1.0})
    assert all(torch.equal(bits(t), before[n]) for n, t in named.items())


def test_all_that_cannot_be_perturbed_is_in_one_error():
    named = {"a": torch.ones(2), "i": torch.ones(2, dtype=torch.int8)}
    with pytest.raises(ModelError, match=r"(?s)i: expected floating-point.*a: no std is given"):
        live.perturb_(named, seed=0, scale=1.0, stds={"i": 1.0})
    with pytest.raises(ConfigError) as wrong:
        live.perturb_(named, seed=0, scale=-1.0, stds={"a": -1.0, "b": math.nan})
    assert len(wrong.value.problems) == 3
    assert torch.equal(named["a"], torch.ones(2))
