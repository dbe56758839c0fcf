"""What can be said of DeepSpeed without it: parts of flattened weights, and what is refused. Whole runs are in
`checks/test_zero_ranks.py`."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from holdfast.checkpoints.live import Pieces, lerp_
from holdfast.checkpoints.live_tensors import LiveTensor, gathered, part_in
from holdfast.retention.anchor import Anchors
from holdfast.retention.methods.ema import ExponentialAverage
from holdfast.retention.methods.ewc import EWC
from holdfast.retention.methods.l2 import L2
from holdfast.retention.methods.label_annealing import LabelAnnealing
from holdfast.retention.methods.mofo import MoFO
from holdfast.retention.methods.sfa import SequentialAveraging
from holdfast.retention.protocol import StepInfo
from holdfast.training.zero import ZeroParts, problems


class Optimizer:
    """As much of DeepSpeed's as `ZeroParts` asks for."""

    def __init__(self, flat: torch.Tensor) -> None:
        self.param_groups, self.loss_scale, self.published = [{"lr": 0.5, "params": [flat]}], 4.0, 0
        self.optimizer = SimpleNamespace(
            state={flat: {"step": torch.tensor(3.0), "exp_avg": torch.ones(5), "name": "kept"}}
        )

    def update_lp_params(self) -> None:
        self.published += 1


class Mapping:
    """As a parameter's `_hp_mapping`."""

    def __init__(self, flat: torch.Tensor, begin: int, count: int, start: int, gradient: torch.Tensor) -> None:
        self.hp_fragment, self.lp_fragment_address = (
            flat[begin : begin + count],
            SimpleNamespace(start=start, numel=count),
        )
        self.param_group_index, self.gradient = 0, gradient

    def get_lp_grad_fragment(self, index: int) -> torch.Tensor:
        return self.gradient


@pytest.fixture
def group(tmp_path):
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.fixture
def engine(group):
    """The second rank of two, of `a [2, 3]` and `b [4]`, dealt out as `a[:3] | a[3:], b[:2] | b[2:]` in stretches of
    five: it has the last two of `a`'s six and the first three of `b`'s four, and nothing of `c`."""
    model = torch.nn.Module()
    for name, shape in (("a", (2, 3)), ("b", (4,)), ("c", (2,))):
        model.register_parameter(name, torch.nn.Parameter(torch.zeros(shape)))
    flat = torch.arange(5.0)
    model.a._hp_mapping = Mapping(flat, 0, 2, 4, torch.tensor([10.0, 20.0]))
    model.b._hp_mapping = Mapping(
        flat, 2, 3, 0, torch.tensor([1.0, 2.0, 3.0, 99.0], dtype=torch.bfloat16)
    )  # the bfloat16 optimiser's, whole
    model.c._hp_mapping = None
    for p in model.parameters():
        p._dp_group, p._index_in_param_group = group, 0
    calls = []
    made = SimpleNamespace(
        module=model, optimizer=Optimizer(flat), is_gradient_accumulation_boundary=lambda: True, calls=calls
    )
    made.step = lambda *a, **k: calls.append("step")
    return made


def test_parts_are_views_of_the_flat_weights(engine):
    parts = ZeroParts(engine)
    assert parts.dealt_out
    assert {n: p.tolist() for n, p in parts.named.items()} == {"a": [0.0, 1.0], "b": [2.0, 3.0, 4.0], "c": []}
    assert part_in(parts.named["a"])[:2] == ((2, 3), 4)
    lerp_(parts.named, {"a": torch.full((2, 3), 100.0), "b": torch.full((4,), 50.0), "c": torch.zeros(2)}, 0.5)
    assert engine.optimizer.param_groups[0]["params"][0].tolist() == [50.0, 50.5, 26.0, 26.5, 27.0]


def test_gradients_are_what_the_engine_steps_with(engine):
    parts = ZeroParts(engine)
    l2 = L2(coefficient=0.5).start(Anchors({n: torch.zeros_like(p) for n, p in engine.module.named_parameters()}))
    parts.before_step(lambda: l2.gradient(parts.named, StepInfo(step=1, total_steps=2, grad_scale=parts.loss_scale())))
    engine.step()
    assert engine.module.a._hp_mapping.gradient.tolist() == [10.0, 22.0]  # + 0.5 * 4 * weight
    assert engine.module.b._hp_mapping.gradient.tolist() == [5.0, 8.0, 11.0, 99.0]  # only this rank's share of it
    assert engine.calls == ["step"] and parts.named["a"].grad is None
    engine.is_gradient_accumulation_boundary = lambda: False
    engine.step()
    assert engine.module.a._hp_mapping.gradient.tolist() == [10.0, 22.0]


def test_only_changed_weights_are_published(engine):
    parts = ZeroParts(engine)
    before = parts.versions()
    parts.publish(before)
    assert engine.optimizer.published == 0
    parts.named["b"].add_(1)
    parts.publish(before)
    assert engine.optimizer.published == 1


def test_rates_and_reset(engine):
    parts = ZeroParts(engine)
    assert parts.learning_rates() == {"a": 0.5, "b": 0.5, "c": 0.0}
    parts.reset_optimizer()
    (state,) = engine.optimizer.optimizer.state.values()
    assert state["step"] == 0 and state["exp_avg"].sum() == 0 and state["name"] == "kept"


def test_a_part_of_a_file_is_read_where_it_lies(engine, tmp_path):
    from safetensors.torch import save_file

    from holdfast.retention.anchor import streamed

    whole = {"a": torch.arange(6.0).view(2, 3) + 10, "b": torch.arange(4.0) + 20, "c": torch.zeros(2)}
    save_file(whole, str(tmp_path / "model.safetensors"))
    parts = ZeroParts(engine)
    found = {
        p.name: p.others[0].tolist()
        for p in Pieces(parts.named, [streamed(str(tmp_path), parts.named)], ["The anchor"])
    }
    assert found == {"a": [14.0, 15.0], "b": [20.0, 21.0, 22.0]}
    assert list(LiveTensor("a", parts.named["a"], ()).spans(1, 2)) == [(5, 1)]


def test_an_average_follows_the_parts_and_is_gathered(engine):
    named = {n: torch.full_like(p, 2.0) for n, p in engine.module.named_parameters()}
    parts = ZeroParts(engine)
    ema = ExponentialAverage(decay=0.5).start(Anchors(named))
    ema.weights(parts.named, StepInfo(step=1, total_steps=2))
    state = ema.state_dict()
    assert state["a"].tolist() == [1.0, 1.5] and gathered(state["a"]).tolist() == [
        [0.0, 0.0, 0.0],
        [0.0, 1.0, 1.5],
    ]  # alone, the rest is nobody's
    ema.load_state_dict({n: torch.full_like(p, 7.0) for n, p in engine.module.named_parameters()})
    assert {n: t.tolist() for n, t in ema.state_dict().items()} == {"a": [7.0, 7.0], "b": [7.0] * 3, "c": []}
    assert ema.metrics(parts.named)["ema_distance"] == pytest.approx(((7 - 0) ** 2 + 6**2 + 5**2 + 4**2 + 3**2) ** 0.5)


def test_what_a_stage_cannot_do_is_said():
    model = torch.nn.Linear(2, 2)
    whole = [LabelAnnealing(), L2(), SequentialAveraging()]
    assert problems(2, whole, model, torch.bfloat16) == problems(0, whole, model, None) == []
    assert problems(3, [LabelAnnealing()], model, None) == []
    (refused,) = problems(3, whole, model, None)
    assert "l2, sfa changes gradients or weights" in refused and "zero2" in refused
    (refused,) = problems(0, [EWC(data="x")], model, torch.bfloat16)
    assert "exposes only the bfloat16 weights, not the float32 ones. Use ZeRO 1 or 2" in refused
    for stage in (0, 2, 3):
        (refused,) = problems(stage, [MoFO()], model, None)
        assert "mofo needs an optimiser with separate parameters" in refused and "fsdp2" in refused
    model.weight.ds_id = 0
    (refused,) = problems(3, [LabelAnnealing()], model, None)
    assert "a copy of the initial model" in refused
