"""Laws that every retention method satisfies (see STYLE: one table, common laws). A new method gets them by being
registered."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import pytest
import torch
from cases import (
    ALL,
    BESIDE,
    CASES,
    FIRST,
    KINDS,
    OFF,
    REPLAY,
    RESUMED,
    SEEING,
    SEEING_ALL,
    SEEING_TOO,
    TRAINED,
    largest_difference,
    make_trainer,
    methods,
    seeing,
    spec,
    weights,
)

from holdfast.retention.registry import METHODS
from holdfast.testing import check_method
from holdfast.training import method_laws as laws
from vision_models import ARCHITECTURES, WITH_VIDEOS


@functools.cache
def direct(*, peft: bool = False, images: str | None = None):
    """Weights and losses of direct fine-tuning, which many laws compare with; one run is as good as another (seeds are
    fixed)."""
    with tempfile.TemporaryDirectory() as folder:
        return laws.trained(maker(Path(folder), peft=peft, images=images), [])


def maker(folder: Path, *, peft: bool = False, images: str | None = None) -> laws.Make:
    """What builds the laws' trainers: over the tests' model and data, in a test's own folder."""
    return lambda methods, **settings: make_trainer(folder, methods, peft=peft, images=images, **settings)


def test_every_method_has_a_case():
    assert set(CASES) == set(METHODS)
    assert set(OFF) == set(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_coefficient_zero_is_direct_bit_for_bit(name, tmp_path):
    laws.off_is_direct(maker(tmp_path), methods({name: OFF[name]}, tmp_path), direct=direct())


@pytest.mark.parametrize("images", [*ARCHITECTURES, *WITH_VIDEOS])
def test_all_off_together_is_direct_bit_for_bit_on_images(images, tmp_path):
    laws.off_is_direct(maker(tmp_path, images=images), methods(OFF, tmp_path), direct=direct(images=images))


def test_all_off_together_is_direct_bit_for_bit_under_lora(tmp_path):
    off = make_trainer(tmp_path, OFF, peft=True)
    off.train()
    assert largest_difference(direct(peft=True)[0], weights(off)) == 0.0


@pytest.mark.parametrize(
    ("name", "label"), [pytest.param(*case, marks=[] if case in FIRST else pytest.mark.slow) for case in ALL]
)
def test_an_active_method_changes_the_run_keeps_what_it_declares_and_leaks_no_state(name, label, tmp_path):
    make, active = maker(tmp_path), methods(spec(name, label), tmp_path)
    without = laws.trained(make, methods(BESIDE[name], tmp_path))[0] if name in BESIDE else direct()[0]
    trainer = make(active)
    trainer.train()
    laws.active_changes_the_run(make, active, without=without, active=weights(trainer))
    laws.keeps_what_it_declares(trainer, active)
    laws.no_state_leaks(make, active, first=weights(trainer))


@pytest.mark.parametrize(
    ("name", "images"),
    [
        pytest.param(*case, marks=[] if case[0] in RESUMED else pytest.mark.slow)
        for case in (*SEEING[1:], *SEEING_TOO)
        if case[0] != "direct"
    ],
)
def test_an_active_method_changes_the_run_on_images(name, images, tmp_path):
    make = maker(tmp_path, images=images)
    without = laws.trained(make, methods(BESIDE[name], tmp_path))[0] if name in BESIDE else direct(images=images)[0]
    laws.active_changes_the_run(make, methods(seeing(name), tmp_path), without=without)


@pytest.mark.parametrize(
    ("name", "images", "peft"),
    [
        pytest.param(
            *case,
            peft,
            marks=[] if case[0] in RESUMED and case in (*SEEING, *SEEING_TOO) and not peft else pytest.mark.slow,
        )
        for peft in (False, True)
        for case in (*SEEING_ALL, *SEEING_TOO)
        if not (peft and case in SEEING_TOO)
    ],
)
def test_save_and_resume_gives_the_weights_of_no_interruption_on_images(name, images, peft, tmp_path):
    laws.resumes(maker(tmp_path, peft=peft, images=images), methods(seeing(name), tmp_path))


@pytest.mark.parametrize(
    ("name", "label", "peft"),
    [
        pytest.param(
            *case,
            peft,
            marks=[] if case in FIRST and case[0] in RESUMED and not (peft and case != FIRST[0]) else pytest.mark.slow,
        )
        for peft in (False, True)
        for case in ALL
    ],
)
def test_save_and_resume_gives_the_weights_of_no_interruption(name, label, peft, tmp_path):
    """As if it had died after its checkpoint at step 4: continued by a new process's objects."""
    laws.resumes(maker(tmp_path, peft=peft), methods(spec(name, label), tmp_path))


@pytest.mark.parametrize(
    ("name", "label"),
    [pytest.param(*case, marks=[] if case in FIRST and case[0] in KINDS else pytest.mark.slow) for case in ALL],
)
def test_gradient_accumulation_changes_nothing_but_rounding(name, label, tmp_path):
    laws.accumulates(maker(tmp_path), methods(spec(name, label), tmp_path), **TRAINED.get(name, {}))


@pytest.mark.parametrize(("name", "label"), ALL)
def test_serialises(name, label, tmp_path):
    laws.serialises(methods(spec(name, label), tmp_path))


@pytest.mark.parametrize("name", METHODS)
def test_documents_itself(name):
    laws.documents_itself(METHODS[name])


@pytest.mark.parametrize(
    "together",
    [
        {"mofo": {"fraction": 0.15}, "wise_ft": {"alpha": 0.3}},
        {"mofo": {"fraction": 0.15}, "sfa": {"p": 0.5}},
        {"sfa": {"p": 0.5}, "l2": {"coefficient": 1.0, "decoupled": True}},
    ],
    ids="+".join,
)
def test_the_order_in_which_methods_are_listed_says_nothing(together, tmp_path):
    ends = []
    for listed in (together, dict(reversed(together.items()))):
        trainer = make_trainer(tmp_path, listed)
        trainer.train()
        ends.append(weights(trainer))
    assert largest_difference(*ends) == 0.0
    alone = make_trainer(tmp_path, dict([next(iter(together.items()))]))
    alone.train()
    assert largest_difference(ends[0], weights(alone)) > 1e-6


def test_an_average_of_the_whole_way_back_is_the_start_beside_methods_that_filter(tmp_path):
    """mofo takes back parts of the optimiser's update, and nothing of what an average has done."""
    before = weights(make_trainer(tmp_path, {}))
    back = {"wise_ft": {"alpha": 0.0}}
    for listed in ({**back, "mofo": {"fraction": 0.15}}, {**back, "ema": {"decay": 0.5}}):
        trainer = make_trainer(tmp_path, listed)
        trainer.train()
        assert largest_difference(before, weights(trainer)) == 0.0


def test_a_method_with_a_second_forward_pass_keeps_every_law():
    """Those that need several processes: `test_ddp.py`, and FSDP2 in `checks/test_fsdp.py`."""
    assert len(check_method(f"{Path(__file__).with_name('second_pass.py')}:SecondPass")) == 8


@pytest.mark.parametrize("accumulation", [1, 4])
def test_a_methods_own_term_is_a_mean_over_the_steps_trained_tokens(accumulation, tmp_path):
    """A term of 1 at every trained token adds 1 to the loss, however the step is divided, and to no other figure."""
    losses = []
    for own in ([], [lambda batch: (batch.labels_BT[:, 1:] != -100).sum().float()]):
        trainer = make_trainer(
            tmp_path, {}, max_steps=1, logging_steps=1, learning_rate=0.0,
            per_device_train_batch_size=8 // accumulation, gradient_accumulation_steps=accumulation,
        )  # fmt: skip
        trainer._losses = own
        trainer.train()
        losses.append(next(r for r in trainer.state.log_history if "loss" in r))
    assert losses[1]["loss"] - losses[0]["loss"] == pytest.approx(1.0, abs=1e-5)
    assert losses[1]["ce"] == pytest.approx(losses[0]["ce"], abs=1e-6)


# ------------------------------------------------------------------------------------------------ averaging and L2


def test_weight_one_gives_the_anchor_bit_for_bit(tmp_path):
    start = make_trainer(tmp_path, {})
    before = weights(start)
    trainer = make_trainer(tmp_path, {"sfa": {"p": 1.0, "beta": 1.0}})
    trainer.train()
    assert largest_difference(before, weights(trainer)) == 0.0


def test_sfa_every_step_is_l2_under_sgd(tmp_path):
    """Soup to Go, section 4: SFA each step with weight beta and rate alpha is SGD on loss + lambda/2 ||theta -
    theta_o||^2 with rate eta, when beta = eta * lambda and alpha = eta / (1 - eta * lambda)."""
    eta, strength = 0.05, 4.0
    common = dict(optim="sgd", max_grad_norm=0.0, max_steps=8)
    l2 = make_trainer(tmp_path, {"l2": {"coefficient": strength}}, learning_rate=eta, **common)
    l2.train()
    sfa = make_trainer(
        tmp_path, {"sfa": {"every": 1, "beta": eta * strength}}, learning_rate=eta / (1 - eta * strength), **common
    )
    sfa.train()
    assert largest_difference(weights(l2), weights(sfa)) < 1e-6
    direct = make_trainer(tmp_path, {}, learning_rate=eta, **common)
    direct.train()
    assert largest_difference(weights(l2), weights(direct)) > 1e-3


@pytest.mark.parametrize(
    ("p", "total", "expected"), [(0.25, 8, [2, 4, 6, 8]), (0.3, 10, [3, 6, 9, 10]), (1.0, 5, [5]), (0.01, 3, [1, 2, 3])]
)
def test_sfa_averages_at_the_papers_steps_once_each(p, total, expected):
    from holdfast.retention.methods.sfa import SequentialAveraging

    method = SequentialAveraging(p=p)
    assert [t for t in range(1, total + 1) if method.averages_at(t, total)] == expected


# ---------------------------------------------------------------------------------------------------- label annealing


ASKED = [{"prompt": f"What is {n} and {n}?", "completion": f" It is {2 * n}."} for n in range(8)]


def moved_trainer(folder, **settings):
    """A student that is away from its teacher, and one step that leaves it where it is."""
    from datasets import Dataset

    method = {"label_annealing": {"weight": 2.0, "tokens": "all"}}
    once = {"max_steps": 1, "logging_steps": 1, "learning_rate": 0.0, "data": Dataset.from_list(ASKED)}
    trainer = make_trainer(folder, method, **{**once, **settings})
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return trainer


@pytest.mark.parametrize("accumulation", [1, 4])
def test_each_term_is_divided_by_its_own_tokens(accumulation, tmp_path):
    """Only the answers are trained on, the KL is over all tokens: the loss is the one mean plus the other."""
    trainer = moved_trainer(
        tmp_path, per_device_train_batch_size=8 // accumulation, gradient_accumulation_steps=accumulation
    )
    trainer.train()
    row = next(r for r in trainer.state.log_history if "kl" in r)
    assert row["kl"] > 0.01
    assert row["loss"] == pytest.approx(row["ce"] + 2.0 * row["kl"], rel=1e-4)


def test_padding_on_the_left_counts_the_same_tokens(tmp_path):
    rows = []
    for side in ("right", "left"):
        trainer = moved_trainer(tmp_path)
        if side == "left":
            trainer.data_collator = padded_left(trainer.data_collator)
        trainer.train()
        rows.append(next(r for r in trainer.state.log_history if "kl" in r))
    for name in ("ce", "kl", "loss", "tokens"):
        assert rows[0][name] == pytest.approx(rows[1][name], rel=1e-4), name


def padded_left(collate):
    """A collator with the rows' padding on the other side."""

    def collated(samples):
        batch = collate(samples)
        shifts = (batch["attention_mask"] == 0).sum(1)
        assert len(set(shifts.tolist())) > 1, "expected rows of several lengths"
        return {
            name: torch.stack([row.roll(int(shift)) for row, shift in zip(value, shifts, strict=True)])
            for name, value in batch.items()
        }

    return collated


def test_figures_after_a_resume_cover_the_steps_before_it(tmp_path):
    """A checkpoint between two logged steps holds the sums since the last of them."""
    method, settings = {"label_annealing": {"weight": 1.0}}, {"save_strategy": "steps", "save_steps": 3}
    whole = make_trainer(tmp_path, method, **settings)
    whole.train()
    again = make_trainer(tmp_path, method, **settings)
    again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-3"))
    for name in ("ce", "kl", "entropy", "token_accuracy", "tokens"):
        wanted, found = ({r["step"]: r[name] for r in t.state.log_history if name in r} for t in (whole, again))
        assert set(wanted) == {2, 4, 6} and found == wanted, name


def test_packed_and_unpacked_rows_have_the_same_loss(tmp_path):
    """The same documents, padded or packed: same tokens, same sums, same loss (no attention crosses documents)."""
    sums = []
    for packing in (False, True):
        trainer = make_trainer(
            tmp_path,
            {"label_annealing": {"weight": 1.0}},
            packing=packing,
            max_length=128,
            per_device_train_batch_size=48 if not packing else 100,
            max_steps=1,
            logging_steps=1,
            learning_rate=0.0,
        )
        trainer.train()
        sums.append([r for r in trainer.state.log_history if "ce" in r][0])
    assert sums[0]["ce"] == pytest.approx(sums[1]["ce"], abs=1e-5)
    assert sums[0]["tokens"] == sums[1]["tokens"]


def test_direct_agrees_with_trl(tmp_path):
    """Without methods the host trains as SFTTrainer does."""
    from datasets import Dataset
    from trl import SFTTrainer

    ours = make_trainer(tmp_path, {}, optim="sgd")
    from cases import rows

    from tiny import build_model, build_tokenizer

    theirs = SFTTrainer(
        model=build_model(), args=ours.args, train_dataset=Dataset.from_list(rows()), processing_class=build_tokenizer()
    )
    ours.train()
    theirs.train()
    assert largest_difference(weights(ours), weights(theirs)) < 1e-6


def test_mixture_of_experts_agrees_with_trl(tmp_path):
    """The experts' load-balancing loss is part of the loss, with TRL's weight, also under gradient accumulation."""
    from cases import rows
    from datasets import Dataset
    from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM
    from trl import SFTTrainer

    from tiny import build_tokenizer

    def build():
        torch.manual_seed(0)
        config = Qwen2MoeConfig(
            vocab_size=320,
            hidden_size=32,
            intermediate_size=64,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            num_experts=4,
            num_experts_per_tok=2,
            max_position_embeddings=128,
            router_aux_loss_coef=0.5,
            output_router_logits=True,
        )
        return Qwen2MoeForCausalLM(config)

    settings = {"optim": "sgd", "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "logging_steps": 1}
    host = make_trainer(tmp_path, {}, **settings)
    common = {"args": host.args, "train_dataset": Dataset.from_list(rows()), "processing_class": build_tokenizer()}
    ours = type(host)(model=build(), **common, retain=[])
    theirs = SFTTrainer(model=build(), **common)
    ours.train()
    theirs.train()
    first = [next(r["loss"] for r in t.state.log_history if "loss" in r) for t in (ours, theirs)]
    assert first[0] == pytest.approx(first[1], abs=1e-5)
    assert first[0] > next(r["ce"] for r in ours.state.log_history if "ce" in r) + 0.3  # the extra term is there
    assert largest_difference(weights(ours), weights(theirs)) < 2e-6


@pytest.mark.parametrize("peft", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_gradient_checkpointing_changes_nothing(peft, tmp_path):
    results = []
    for checkpointing in (False, True):
        trainer = make_trainer(
            tmp_path, {"label_annealing": {"weight": 1.0}}, peft=peft, gradient_checkpointing=checkpointing
        )
        trainer.train()
        results.append(weights(trainer))
    assert largest_difference(*results) < 1e-6


@pytest.mark.parametrize("peft", [False, True])
def test_bf16_autocast_reaches_the_teacher_too(peft, tmp_path):
    """Student and teacher run under the same autocast, so the KL of a student that has not moved is still zero."""
    trainer = make_trainer(
        tmp_path, {"label_annealing": {"weight": 1.0}, "sfa": {"p": 0.5}}, peft=peft, bf16=True, logging_steps=1
    )
    trainer.train()
    logged = [r for r in trainer.state.log_history if "kl" in r]
    assert logged[0]["kl"] == 0.0
    assert 0 < logged[-1]["kl"] < 1
    assert all(p.dtype == torch.float32 for p in weights(trainer).values())


@pytest.mark.parametrize(
    ("name", "label"), [case if case[0] == "sfa" else pytest.param(*case, marks=pytest.mark.slow) for case in FIRST]
)
def test_a_bf16_model_is_trained_as_a_float32_one(name, label, tmp_path):
    """Weights, gradients and optimiser in bfloat16: every method goes where it goes in float32, as far as bfloat16 can
    say."""

    moved = {}
    for dtype in (torch.float32, torch.bfloat16):
        trainer = make_trainer(tmp_path, spec(name, label))
        again = type(trainer)(
            model=trainer.model.to(dtype),
            args=trainer.args,
            train_dataset=trainer.train_dataset,
            processing_class=trainer.processing_class,
            retain=[m for m in trainer.retain if m.place != "data"],
            load_rows=trainer._load_rows,
        )
        start = weights(again)
        again.train()
        assert all(p.dtype == dtype for p in weights(again).values())
        moved[dtype] = torch.cat([(p.float() - start[n].float()).flatten() for n, p in weights(again).items()])
    assert torch.cosine_similarity(moved[torch.float32], moved[torch.bfloat16], dim=0) > 0.95
    assert float(moved[torch.bfloat16].norm()) == pytest.approx(float(moved[torch.float32].norm()), rel=0.1)


def test_a_float32_anchor_is_not_rounded_to_a_bf16_run(tmp_path):
    from holdfast.retention.anchor import Anchors
    from holdfast.retention.methods.l2 import L2
    from holdfast.retention.protocol import StepInfo
    from tiny import build_model

    start = build_model()
    start.save_pretrained(tmp_path / "start")
    named = dict(build_model().to(torch.bfloat16).named_parameters())
    l2 = L2(coefficient=1.0, reference=str(tmp_path / "start")).start(Anchors(named))
    for p in named.values():
        p.grad = torch.zeros_like(p)
    l2.gradient(named, StepInfo(step=1, total_steps=2))
    exact = {n: p.detach() for n, p in start.named_parameters()}
    rounding = torch.cat(
        [(named[n].float() - p).flatten() for n, p in exact.items()]
    )  # all that differs is the rounding of the weights
    found = torch.cat([named[n].grad.float().flatten() for n in exact])
    assert rounding.abs().max() > 0
    torch.testing.assert_close(found, rounding, rtol=2**-8, atol=0)


COMPILED = {"label_annealing": {"weight": 1.0}, "l2": {"coefficient": 0.5}, "sfa": {"every": 2}, "ema": {"decay": 0.5}}


@pytest.mark.parametrize(
    ("peft", "backend", "bound"),
    [
        (False, "eager", 0.0),
        pytest.param(True, "eager", 0.0, marks=pytest.mark.slow),
        # Under LoRA inductor draws another dropout, so that nothing can be compared.
        pytest.param(False, "inductor", 1e-4, marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
    ],
)
@pytest.mark.slow
def test_a_compiled_model_trains_the_same(peft, backend, bound, tmp_path):
    results = []
    for settings in ({}, {"torch_compile": True, "torch_compile_backend": backend}):
        torch._dynamo.reset()
        trainer = make_trainer(tmp_path, COMPILED, peft=peft, **settings)
        trainer.train()
        results.append(weights(trainer))
    assert largest_difference(*results) <= bound


@pytest.mark.parametrize("bits", [4, pytest.param(8, marks=pytest.mark.slow)])
def test_every_method_on_a_quantised_base(bits, tmp_path):
    """QLoRA: the base in 4 or 8 bits, adapters in float32; all methods that act on weights and gradients at once, and
    the base as the teacher."""
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    from tiny import build_model

    pytest.importorskip("bitsandbytes")
    build_model(width=64).save_pretrained(tmp_path / "model")
    trainer = make_trainer(tmp_path, {})
    together = {
        "label_annealing": {"weight": 1.0},
        "l2": {"coefficient": 0.5},
        "ewc": {"data": REPLAY, "samples": 4},
        "sfa": {"p": 0.5},
        "ema": {"decay": 0.5},
    }
    quantised = AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", quantization_config=BitsAndBytesConfig(load_in_4bit=bits == 4, load_in_8bit=bits == 8)
    )
    again = type(trainer)(
        model=quantised,
        args=trainer.args,
        train_dataset=trainer.train_dataset,
        processing_class=trainer.processing_class,
        peft_config=LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"),
        retain=methods(together, tmp_path),
        load_rows=trainer._load_rows,
    )
    start = weights(again)
    base = {n: p.detach().clone() for n, p in again.model.named_parameters() if not p.requires_grad}
    again.train()
    logged = [r for r in again.state.log_history if "kl" in r]
    assert logged[0]["kl"] < logged[-1]["kl"] < 1 and logged[-1]["sfa_averages"] == 2
    assert largest_difference(start, weights(again)) > 1e-3
    assert all(torch.equal(p, base[n]) for n, p in again.model.named_parameters() if n in base)


def test_several_replays_each_reach_their_share(tmp_path):
    from cases import rows
    from datasets import Dataset

    from holdfast.retention.protocol import stacked
    from holdfast.retention.registry import retention

    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text(
            "".join(f'{{"text": "{name} {i} is an old sentence about {name}."}}\n' for i in range(400))
        )
    replays = retention(
        [
            {"replay": {"data": str(tmp_path / f"{n}.jsonl"), "fraction": f, "unit": "examples"}}
            for n, f in (("a", 0.2), ("b", 0.3))
        ]
    )
    trainer = make_trainer(tmp_path, {})
    host = type(trainer)
    mixed = host(
        model=trainer.model,
        args=trainer.args,
        train_dataset=Dataset.from_list(rows() * 5),
        processing_class=trainer.processing_class,
        retain=replays,
    ).train_dataset
    texts = [trainer.processing_class.decode(ids) for ids in mixed["input_ids"]]
    assert sum(t.startswith("a ") for t in texts) / len(texts) == pytest.approx(0.2, abs=0.01)
    assert sum(t.startswith("b ") for t in texts) / len(texts) == pytest.approx(0.3, abs=0.01)
    assert [m.fraction for m in stacked(replays)] == pytest.approx([0.2 / 0.7, 0.3])


def test_methods_follow_parameters_that_become_sharded(tmp_path):
    """FSDP2 turns parameters into DTensors after the anchors were taken."""
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor, init_device_mesh

    from holdfast.retention.anchor import Anchors
    from holdfast.retention.protocol import StepInfo
    from holdfast.retention.registry import retention

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        start = torch.randn(6, 4)
        l2, sfa = (
            m.start(Anchors({"w": torch.nn.Parameter(start.clone())}))
            for m in retention([{"l2": {"coefficient": 0.5}}, {"sfa": {"every": 1}}])
        )
        moved = start + 1.0
        parameter = torch.nn.Parameter(distribute_tensor(moved, mesh, [Shard(0)]))
        parameter.grad = distribute_tensor(torch.zeros(6, 4), mesh, [Shard(0)])
        step = StepInfo(step=1, total_steps=2)
        l2.gradient({"w": parameter}, step)
        assert isinstance(parameter.grad, DTensor)
        torch.testing.assert_close(parameter.grad.full_tensor(), torch.full((6, 4), 0.5))
        sfa.weights({"w": parameter}, step)
        torch.testing.assert_close(parameter.full_tensor().detach(), start + 0.5)
    finally:
        dist.destroy_process_group()


def test_weights_that_are_not_finite_break_a_law():
    sound = {"a": torch.zeros(2), "b": torch.zeros(3)}
    with pytest.raises(laws.LawBroken, match="finite weights, got NaN or infinity in b"):
        laws.largest_difference(sound, {**sound, "b": torch.tensor([0.0, torch.nan, 0.0])})
