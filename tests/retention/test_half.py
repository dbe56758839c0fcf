"""Half fine-tuning: which half is drawn, that the other does not move by anything, and rounds."""

from __future__ import annotations

import collections

import pytest
import torch
from cases import make_trainer
from torch import nn
from transformers import TrainerCallback

from holdfast.errors import ConfigError
from holdfast.retention.half import HalfFineTuning, units
from tiny import build_model


def named_of(model: nn.Module) -> dict[str, nn.Parameter]:
    return dict(model.named_parameters())


def test_half_of_every_kind_in_every_layer():
    """2 of 4 attention matrices, 1 or 2 of 3 of the MLP, 1 of 2 norms; what is outside of the layers is trained."""
    named, seen = named_of(build_model()), collections.Counter()
    for number in range(40):
        frozen = HalfFineTuning().frozen(named, number)
        for layer in range(2):
            mine = {n.removeprefix(f"model.layers.{layer}.") for n in frozen if n.startswith(f"model.layers.{layer}.")}
            parts = collections.Counter("norms" if "norm" in n else n.split(".")[0] for n in mine)
            assert parts["self_attn"] == 2 and parts["norms"] == 1 and parts["mlp"] in (1, 2)
            seen[parts["mlp"]] += 1
            seen.update(mine)
        assert not any(n.startswith(("model.embed", "model.norm", "lm_head")) for n in frozen)
    assert min(seen[1], seen[2]) > 20
    assert all(15 < seen[n] < 65 for n in seen if isinstance(n, str)), seen


@pytest.mark.parametrize(("share", "counts"), [(0.25, {3}), (0.75, {1}), (0.9, {0, 1}), (0.01, {3, 4})])
def test_another_share(share, counts):
    named = named_of(build_model())
    found = {
        sum(".0.self_attn." in n for n in HalfFineTuning(share=share).frozen(named, number)) for number in range(300)
    }
    assert found == counts


def test_draws_are_of_seed_round_and_name():
    named = named_of(build_model())
    first = HalfFineTuning(seed=1).frozen(named, 3)
    assert first == HalfFineTuning(seed=1).frozen(dict(reversed(named.items())), 3)
    assert first != HalfFineTuning(seed=2).frozen(named, 3) and first != HalfFineTuning(seed=1).frozen(named, 4)


def test_a_weight_goes_with_its_bias_and_a_factor_with_the_other():
    def parameter(*shape: int) -> nn.Parameter:
        return nn.Parameter(torch.zeros(*shape))

    names = {
        "transformer.h.0.attn.c_attn.weight": parameter(2, 2),
        "transformer.h.0.attn.c_attn.bias": parameter(2),
        "transformer.h.0.ln_1.weight": parameter(2),
        "transformer.h.0.ln_1.bias": parameter(2),
        "base.layers.1.self_attn.q_proj.lora_A.default.weight": parameter(1, 2),
        "base.layers.1.self_attn.q_proj.lora_B.default.weight": parameter(2, 1),
        "base.layers.1.self_attn.q_norm.weight": parameter(2),
        "base.layers.1.mlp.experts.down_proj": parameter(3, 2, 2),
        "base.layers.2.self_attn.q_proj.osf_svd_params.default.U_low": parameter(2, 1),
        "base.layers.2.self_attn.q_proj.osf_svd_params.default.S_low": parameter(1),
        "base.layers.2.self_attn.q_proj.osf_svd_params.default.V_low": parameter(1, 2),
        "decoder.layers.0.self_attn.q_proj.weight": parameter(2, 2),
        "decoder.layers.0.fc1.weight": parameter(2, 2),
        "decoder.layers.0.fc1.bias": parameter(2),
        "decoder.layers.0.fc2.weight": parameter(2, 2),
        "decoder.layers.0.final_layer_norm.weight": parameter(2),
        "wte.weight": parameter(4, 2),
    }
    found = {group: {u: len(n) for u, n in members.items()} for group, members in units(names).items()}
    assert found == {
        ("transformer.h.0", "attn"): {"attn.c_attn": 2},
        ("transformer.h.0", "norms"): {"ln_1": 2},
        ("base.layers.1", "self_attn"): {"self_attn.q_proj": 2},
        ("base.layers.1", "norms"): {"self_attn.q_norm": 1},
        ("base.layers.1", "mlp"): {"mlp.experts.down_proj": 1},
        ("base.layers.2", "self_attn"): {"self_attn.q_proj": 3},
        ("decoder.layers.0", "self_attn"): {"self_attn.q_proj": 1},
        ("decoder.layers.0", "mlp"): {"fc1": 2, "fc2": 1},
        ("decoder.layers.0", "norms"): {"final_layer_norm": 1},
    }


class Watch(TrainerCallback):
    """The weights, and what the optimiser keeps of them, after each step."""

    def __init__(self, trainer):
        self.trainer, self.seen, self.rounds = trainer, [self.look(trainer)], []

    @staticmethod
    def look(trainer):
        optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
        states = {} if optimizer is None else optimizer.state
        return {
            n: {"weight": p.detach().clone(), **{k: v.clone() for k, v in states.get(p, {}).items()}}
            for n, p in trainer.model.named_parameters()
        }

    def on_step_end(self, *args, **kwargs):
        self.seen.append(self.look(self.trainer))
        self.rounds.append(self.trainer.active[0]._round)


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "optim", ["adamw_torch", pytest.param("adamw_torch_fused", marks=SLOW), pytest.param("sgd", marks=SLOW)]
)
def test_what_is_frozen_does_not_move(optim, tmp_path):
    """Neither by decay nor by momenta of the round before, which stay what they are; what is trained moves."""
    trainer = make_trainer(tmp_path, {"half": {"every": 2}}, optim=optim, weight_decay=0.5)
    watch = Watch(trainer)
    trainer.add_callback(watch)
    trainer.train()
    named, method = named_of(trainer.model), trainer.retain[0]
    thawed = 0
    for step in range(1, 7):
        frozen = method.frozen(named, (step - 1) // 2)
        before, after = watch.seen[step - 1], watch.seen[step]
        for name in named:
            same = {k: torch.equal(v, before[name][k]) for k, v in after[name].items() if k in before[name]}
            if name in frozen:
                assert all(same.values()) and after[name].keys() == before[name].keys(), (step, name)
                thawed += "exp_avg" in before[name]
            else:
                assert not same["weight"], (step, name)
    assert thawed > 0 or optim == "sgd"  # some were frozen that had momenta


def test_frozen_factors_of_osf_do_not_move(tmp_path):
    """All three of a matrix, though the others are projected after every step."""
    from peft import OSFConfig

    peft = OSFConfig(task_type="CAUSAL_LM", effective_rank=0.5)
    trainer = make_trainer(tmp_path, {"half": {"every": 1}}, peft=peft, optim="adamw_torch", max_steps=2)
    watch = Watch(trainer)
    trainer.add_callback(watch)
    trainer.train()
    named = trainer.named_trainable()
    for step in (1, 2):
        frozen = trainer.retain[0].frozen(named, step - 1)
        still = {n for n in named if torch.equal(watch.seen[step][n]["weight"], watch.seen[step - 1][n]["weight"])}
        assert still == frozen
        for layer in ("layers.0.self_attn", "layers.1.self_attn"):
            of = collections.Counter(n.rpartition(".")[0] for n in frozen if layer in n)
            assert len(of) == 2 and set(of.values()) == {3}


def test_a_round_is_an_epoch_and_goes_on_after_a_resume(tmp_path):
    """12 steps an epoch."""
    settings = {"max_steps": 30, "save_strategy": "steps", "save_steps": 15}
    whole, again = (make_trainer(tmp_path, {"half": {}}, **settings) for _ in range(2))
    for trainer, resumed in ((whole, None), (again, str(tmp_path / "run" / "checkpoint-15"))):
        watch = Watch(trainer)
        trainer.add_callback(watch)
        trainer.train(resume_from_checkpoint=resumed)
        assert watch.rounds == ([0] * 12 + [1] * 12 + [2] * 6)[15 if resumed else 0 :]
    assert all(torch.equal(p, named_of(again.model)[n]) for n, p in named_of(whole.model).items())


def test_a_model_without_layers_is_refused(tmp_path):
    assert "found none to draw from" in HalfFineTuning().check_weights({"embed.weight": nn.Parameter(torch.ones(2))})[0]
    with pytest.raises(ConfigError, match=r"half.every: expected at most the run's 6 steps, got 7"):
        make_trainer(tmp_path, {"half": {"every": 7}})


def test_the_share_that_is_trained_is_logged(tmp_path):
    trainer = make_trainer(tmp_path, {"half": {"share": 0.5}})
    trainer.train()
    logged = [row["half_trained"] for row in trainer.state.log_history if "half_trained" in row]
    assert len(logged) == 3 and all(0.5 < share < 1 for share in logged)  # embeddings and head are trained, too
