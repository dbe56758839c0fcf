"""A quantised teacher: which modules change, how far its states and its KL move, and how much memory it saves."""

from __future__ import annotations

import importlib.util
import sys

import pytest
import torch
from torch import Tensor, nn

from holdfast.errors import ModelError
from holdfast.ops.annealing import annealed_loss
from holdfast.ops.heads import describe_head, run_backbone
from holdfast.retention.quantize import quantize_linears
from holdfast.retention.teacher import OnlineTeacher, freeze_copy
from tiny import build_model

CPU = torch.device("cpu")
GPU = pytest.param("cuda", marks=pytest.mark.gpu)
IDS = torch.randint(0, 320, (4, 32), generator=torch.Generator().manual_seed(0))


def bitsandbytes_works_on(device: str) -> bool:
    """Whether this bitsandbytes has kernels for the device (for CPUs since 0.49)."""
    if importlib.util.find_spec("bitsandbytes") is None or (device == "cuda" and not torch.cuda.is_available()):
        return False
    import bitsandbytes as library

    try:
        library.nn.Int8Params(torch.ones(2, 4), requires_grad=False).to(device)
    except (RuntimeError, NotImplementedError, AttributeError):
        return False
    return True


needs_library = pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="needs bitsandbytes")


@pytest.fixture
def device(request):
    if not bitsandbytes_works_on(request.param):
        pytest.skip(f"needs a bitsandbytes that works on {request.param}")
    return torch.device(request.param)


def model_of(dtype: torch.dtype = torch.float32) -> nn.Module:
    """Wide enough that rounding averages out, with logits about as spread as a trained model's (an untrained one's KL
    is nearly nothing)."""
    model = build_model(320, seed=0, tie=False, width=128, layers=4).to(dtype).eval().requires_grad_(False)
    with torch.no_grad():
        model.lm_head.weight.mul_(10.0)
    return model


def weight_bytes(module: nn.Module) -> int:
    """Bytes of all storages a module's weights and their scales lie in."""
    seen: dict[int, int] = {}

    def add(tensor: object) -> None:
        if isinstance(tensor, Tensor):
            seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()

    for parameter in module.parameters():
        state = getattr(parameter, "quant_state", None)
        parts = [state, getattr(state, "state2", None), parameter]
        for tensor in [
            parameter,
            *(getattr(part, name, None) for part in parts for name in ("absmax", "code", "offset", "CB", "SCB")),
        ]:
            add(tensor)
    for part in module.modules():
        add(getattr(getattr(part, "state", None), "CB", None))
        add(getattr(getattr(part, "state", None), "SCB", None))
    return sum(seen.values())


def kl_to(teacher: OnlineTeacher, model: nn.Module, device: torch.device) -> float:
    """KL(teacher || model), nats a token."""
    with torch.no_grad():
        hidden, head = teacher.hidden({"input_ids": IDS.to(device)})
        own = run_backbone(model, input_ids=IDS.to(device)).flatten(0, 1)
    result = annealed_loss(
        own,
        describe_head(model).detached(),
        IDS.to(device).flatten(),
        teacher_hidden_NK=hidden.flatten(0, 1),
        teacher_head=head,
        kl_scale=1.0,
    )
    return float(result.kl_sum / result.kl_count)


BOUNDS = {8: (0.05, 0.30, 2e-2), 4: (0.30, 0.16, 0.5)}
"""bits: (relative error of the states, bytes against float32, KL to the start model in nats a token)."""


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("device", ["cpu", GPU], indirect=True)
def test_states_memory_and_kl_of_a_quantised_teacher(bits, dtype, device):
    model = model_of(dtype)
    teacher = OnlineTeacher(freeze_copy(model), bits=bits).to(device)
    model.to(device)
    exact = run_backbone(model, input_ids=IDS.to(device))
    hidden, head = teacher.hidden({"input_ids": IDS.to(device)})
    states_error, memory, kl_bound = BOUNDS[bits]
    assert hidden.dtype == dtype and not hidden.requires_grad
    assert head.weight_VH.dtype == dtype
    error = float((hidden.double() - exact.double()).norm() / exact.double().norm())
    assert 0 < error < states_error, f"relative error of the states {error:.3f}"
    size = weight_bytes(teacher.model.model.layers) / (4 * sum(p.numel() for p in model.model.layers.parameters()))
    assert size < memory, f"{size:.3f} of float32's bytes"
    # The quantised teacher is not the start model: its KL is small, and it is not 0, which that of a plain copy is.
    kl = kl_to(teacher, model, device)
    assert 1e-5 < kl < kl_bound, f"KL {kl:.3g} nats a token"
    assert kl_to(OnlineTeacher(freeze_copy(model)).to(device), model, device) < 1e-9
    assert torch.equal(hidden, teacher.hidden({"input_ids": IDS.to(device)})[0])


@pytest.mark.parametrize("device", ["cpu"], indirect=True)
def test_four_bits_are_further_away_than_eight(device):
    model = model_of()
    eight, four = (kl_to(OnlineTeacher(freeze_copy(model), bits=bits).to(device), model, device) for bits in (8, 4))
    assert 5 * eight < four


@needs_library
def test_head_embeddings_and_norms_stay_as_they_are():
    model = model_of()
    before = {n: p.clone() for n, p in model.named_parameters()}
    copied = freeze_copy(model)
    names = quantize_linears(copied, 4)
    projections = {
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "self_attn.o_proj",
        "mlp.gate_proj",
        "mlp.up_proj",
        "mlp.down_proj",
    }
    assert set(names) == {f"layers.{i}.{p}" for i in range(4) for p in projections}
    assert type(copied.lm_head) is nn.Linear
    kept = [n for n, _ in copied.named_parameters() if not any(p in n for p in projections)]
    after = dict(copied.named_parameters())
    assert len(kept) == 2 + 1 + 2 * 4
    assert all(torch.equal(after[n], before[n]) for n in kept)
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters()), "the original was changed"


@pytest.mark.parametrize("device", ["cpu"], indirect=True)
def test_biases_and_a_linear_layer_that_appears_twice(device):
    model = build_model(320, width=64, attention_bias=True).eval().requires_grad_(False)
    for layer in model.model.layers:
        nn.init.normal_(layer.self_attn.q_proj.bias)
    model.model.layers[1].mlp.up_proj = model.model.layers[0].mlp.up_proj
    exact = run_backbone(model, input_ids=IDS)
    teacher = OnlineTeacher(freeze_copy(model), bits=8).to(device)
    layers = teacher.model.model.layers
    assert layers[1].mlp.up_proj is layers[0].mlp.up_proj
    hidden, _ = teacher.hidden({"input_ids": IDS})
    assert float((hidden - exact).norm() / exact.norm()) < 0.05


@pytest.mark.parametrize("device", ["cpu"], indirect=True)
def test_a_quantised_teacher_works_before_it_is_moved(device):
    model = model_of()
    hidden, _ = OnlineTeacher(freeze_copy(model), bits=8).hidden({"input_ids": IDS})
    assert torch.equal(hidden, OnlineTeacher(freeze_copy(model), bits=8).to(device).hidden({"input_ids": IDS})[0])


def test_without_bitsandbytes_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(ModelError, match=r"pip install 'holdfast\[gpu\]'"):
        OnlineTeacher(freeze_copy(model_of()), bits=8)


@pytest.mark.parametrize("bits", [16, 3, 0, "8"])
def test_other_bits_are_refused(bits):
    with pytest.raises(ModelError, match="expected 8 or 4 bits"):
        OnlineTeacher(freeze_copy(model_of()), bits=bits)


@needs_library
def test_nothing_to_quantise_is_an_error():
    from transformers import GPT2Config, GPT2LMHeadModel

    gpt2 = GPT2LMHeadModel(
        GPT2Config(vocab_size=64, n_embd=32, n_layer=1, n_head=2, n_positions=32)
    )  # its linear maps are Conv1D
    with pytest.raises(ModelError, match="got GPT2Model, which has none"):
        quantize_linears(gpt2, 8)
    with pytest.raises(ModelError, match="which has none"):
        quantize_linears(model_of().double(), 4)
