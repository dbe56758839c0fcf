"""Layers streamed from host memory give the resident model's results, from two buffers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from holdfast.errors import ModelError
from holdfast.ops.heads import run_backbone
from holdfast.retention.offload import ALIGNMENT, HostLayers, decoder_layers
from tiny import build_model

CPU = torch.device("cpu")
IDS = torch.arange(48).view(2, 24) % 60


def frozen(layers: int = 5, **options) -> nn.Module:
    return build_model(64, layers=layers, **options).eval().requires_grad_(False)


def states(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return run_backbone(model, input_ids=IDS.to(next(model.parameters()).device))


def layer_bytes(layer: nn.Module) -> int:
    return sum(-(-p.numel() * p.element_size() // ALIGNMENT) * ALIGNMENT for p in layer.parameters())


@pytest.mark.parametrize("layers", [1, 2, 3, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_results_are_the_resident_models_to_the_last_bit(layers, dtype):
    model = frozen(layers).to(dtype)
    wanted = states(model)
    before = {n: p.clone() for n, p in model.named_parameters()}
    HostLayers(model, CPU)
    for _ in range(3):
        assert torch.equal(states(model), wanted)
    after = dict(model.named_parameters())
    assert all(torch.equal(after[n], before[n]) for n in before)


def test_every_layer_computes_from_one_of_two_buffers_and_waits_at_home():
    model = frozen()
    stream = HostLayers(model, CPU)
    largest = max(layer_bytes(layer) for layer in stream.layers)
    assert stream.buffer_bytes == 2 * largest
    assert stream.host_bytes == sum(layer_bytes(layer) for layer in stream.layers)
    homes = {p.data_ptr() for layer in stream.layers for p in layer.parameters()}
    seen: dict[int, set[int]] = {}

    def look(number):
        def hook(layer, args):
            weights = list(layer.parameters())
            assert not {p.data_ptr() for p in weights} & homes, "a layer runs from its host weights: nothing was copied"
            seen.setdefault(number, set()).update(p.untyped_storage().data_ptr() for p in weights)
            others = [p.data_ptr() for other in stream.layers if other is not layer for p in other.parameters()]
            assert set(others) <= homes

        return hook

    for number, layer in enumerate(stream.layers):
        layer.register_forward_pre_hook(look(number))
    states(model)
    assert len(set.union(*seen.values())) == 2
    assert all(len(used) == 1 for used in seen.values())
    assert all(seen[i] != seen[i + 1] for i in range(4)), "a layer was copied over the one before it"
    assert {p.data_ptr() for layer in stream.layers for p in layer.parameters()} == homes


def test_the_next_layer_is_fetched_before_the_present_one_runs():
    model = frozen(4)
    stream = HostLayers(model, CPU)
    held = []
    for layer in stream.layers:
        layer.register_forward_pre_hook(lambda *_: held.append({slot.layer for slot in stream._slots}))
    states(model)
    states(model)
    assert held[:4] == [{0, 1}, {1, 2}, {2, 3}, {3, 0}]
    assert held[4:] == held[:4]


def test_each_layer_is_copied_once_a_pass(monkeypatch):
    model = frozen(4)
    stream = HostLayers(model, CPU)
    fetched = []
    fetch = stream._fetch
    monkeypatch.setattr(stream, "_fetch", lambda number: fetched.append(number) or fetch(number))
    for _ in range(3):
        states(model)
    # Layer 0 is there before the second pass, so that pass begins without waiting.
    assert fetched == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0]


def test_weights_shared_between_layers_and_with_the_rest():
    model = frozen(4)
    a, b, c, d = model.model.layers
    c.self_attn.q_proj.weight = a.self_attn.q_proj.weight
    a.post_attention_layernorm.weight = model.model.norm.weight
    model.model.layers = nn.ModuleList([a, b, c, d, b])  # and one layer that runs twice
    wanted = states(model)
    stream = HostLayers(model, CPU)
    assert len(stream.layers) == 4
    for _ in range(2):
        assert torch.equal(states(model), wanted)
    assert c.self_attn.q_proj.weight is a.self_attn.q_proj.weight
    assert a.post_attention_layernorm.weight.data_ptr() == model.model.norm.weight.data_ptr(), (
        "a weight used outside the layers was streamed"
    )


def test_layers_in_another_order_are_right_too():
    model = frozen(4)
    stream = HostLayers(model, CPU)
    order = [stream.layers[i] for i in (2, 0, 3, 1)]
    model.model.layers = nn.ModuleList(order)
    found = [states(model) for _ in range(2)]
    stream.close()
    wanted = states(model)
    assert all(torch.equal(f, wanted) for f in found)


def test_an_exception_in_a_layer_leaves_it_usable():
    model = frozen()
    wanted = states(model)
    stream = HostLayers(model, CPU)
    homes = [p.data_ptr() for layer in stream.layers for p in layer.parameters()]

    def fail(*_):
        raise RuntimeError("interrupted")

    handle = stream.layers[3].mlp.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="interrupted"):
        states(model)
    assert [p.data_ptr() for layer in stream.layers for p in layer.parameters()] == homes
    handle.remove()
    assert torch.equal(states(model), wanted)


def test_close_leaves_an_ordinary_model_on_the_cpu():
    model = frozen()
    wanted = states(model)
    stream = HostLayers(model, CPU)
    states(model)
    stream.close()
    assert stream.buffer_bytes == 0
    assert torch.equal(states(model), wanted)
    again = HostLayers(model, CPU)
    assert torch.equal(states(model), wanted)
    assert again.buffer_bytes > 0


def test_experts_inside_a_layer_are_no_layers():
    model = frozen(2)
    for layer in model.model.layers:
        layer.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(9))
    assert decoder_layers(model) == list(model.model.layers)


def test_errors():
    model = frozen(2)
    model.model.layers = nn.Sequential(*model.model.layers)
    with pytest.raises(ModelError, match=r"nn\.ModuleList, got LlamaModel"):
        HostLayers(model, CPU)
    with pytest.raises(ModelError, match="frozen"):
        HostLayers(build_model(64), CPU)
    model = frozen(2)
    inner = model.model.layers[0].register_forward_pre_hook(lambda *_: model.model.layers[1](torch.zeros(1, 4, 32)))
    stream = HostLayers(frozen(2), CPU)
    inner.remove()
    for slot in stream._slots:
        slot.in_use = True
    with pytest.raises(ModelError, match="inside another"):
        stream._fetch(0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_results_are_equal_and_the_memory_is_two_layers():
    device = torch.device("cuda")
    model = build_model(256, layers=12, width=512).eval().requires_grad_(False)
    wanted = states(model.to(device)).clone()
    model.to("cpu")
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    start = torch.cuda.memory_allocated()
    stream = HostLayers(model, device)
    assert all(p.is_pinned() for layer in stream.layers for p in layer.parameters())
    for _ in range(4):
        with torch.no_grad():
            assert torch.equal(run_backbone(model, input_ids=IDS.to(device)), wanted)
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - start
    one = max(layer_bytes(layer) for layer in stream.layers)
    rest = sum(p.numel() * p.element_size() for p in model.parameters() if p.is_cuda)
    assert stream.buffer_bytes == 2 * one
    assert peak < 2 * one + rest + 16 * 2**20, f"{peak / 2**20:.0f} MB at the peak, {one / 2**20:.0f} MB a layer"
