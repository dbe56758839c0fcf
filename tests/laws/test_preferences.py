"""The laws of the methods beside losses of their own: DPO's pairs, KTO's judged answers, GRPO's samples (see
`test_laws`)."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from cases import TRAINED
from datasets import Dataset
from trl import DistillationTrainer, DPOTrainer, GRPOTrainer, KTOTrainer
from trl.experimental.sdft import SDFTTrainer

from holdfast.errors import ConfigError, DataError, ModelError
from holdfast.ops.heads import describe_head, run_backbone
from holdfast.retention.registry import METHODS, retention
from holdfast.training import method_laws as laws
from preference_trainers import dpo, grpo, kto, on_policy, pairs, self_distilling
from tiny import build_model, random_fisher

KL = {"label_annealing": {"weight": 1.0}}
BESIDE_PAIRS = {
    "label_annealing": [{"label_annealing": {"weight": 2.0}}],
    "label_annealing, reverse": [{"label_annealing": {"weight": 2.0, "direction": "reverse", "temperature": 2.0}}],
    "label_annealing, all tokens": [{"label_annealing": {"weight": 2.0, "tokens": "all"}}],
    "l2": [{"l2": {"coefficient": 0.5}}],
    "sfa": [{"sfa": {"p": 0.4, "beta": 0.3}}],
    "wise_ft": [{"wise_ft": {"alpha": 0.7}}],
    "ema": [{"ema": {"decay": 0.5, "every": 2}}],
    "mofo": [{"mofo": {"fraction": 0.3}}],
    "budget": [KL, {"budget": {"kl": 0.01}}],
}
BESIDE_SAMPLES = {
    name: methods for name, methods in BESIDE_PAIRS.items() if name in ("l2", "sfa", "wise_ft", "ema", "mofo")
}
BESIDE_DISTILLATION = {
    "label_annealing": [KL],
    "label_annealing, jsd": [{"label_annealing": {"weight": 3.0, "direction": "jsd", "beta": 0.3}}],
    "l2": [KL, {"l2": {"coefficient": 0.5}}],
    "sfa": [KL, {"sfa": {"p": 0.4}}],
}
CASES = [(dpo, name, m) for name, m in BESIDE_PAIRS.items()] + [(grpo, name, m) for name, m in BESIDE_SAMPLES.items()]
CASES += [(kto, name, m) for name, m in BESIDE_PAIRS.items()]
QUICK = ("label_annealing", "sfa")
"""Of each kind one, for what costs much."""
MARKED = [
    pytest.param(*case, marks=[] if case[1] in (QUICK if case[0] is grpo else QUICK[:1]) else pytest.mark.slow)
    for case in CASES
]
NAMES = [f"{host.__name__}: {name}" for host, name, _ in CASES]
OFF = [
    {"label_annealing": {"weight": 0.0}},
    {"l2": {"coefficient": 0.0}},
    {"sfa": {"beta": 0.0, "p": 0.5}},
    {"wise_ft": {"alpha": 1.0}},
    {"ema": {"decay": 0.0}},
]


def maker(host, folder: Path, **more) -> laws.Make:
    return lambda methods, **settings: host(folder, methods, **more, **settings)


@pytest.mark.parametrize(("host", "trl"), [(dpo, DPOTrainer), (kto, KTOTrainer), (grpo, GRPOTrainer)])
def test_all_off_together_is_trls_own_trainer_bit_for_bit(host, trl, tmp_path):
    model = build_model()
    reference = {} if host is grpo else {"ref_model": copy.deepcopy(model)}
    plain = host(tmp_path, host=trl, model=model, **reference)
    plain.train()
    direct = (laws.weights(plain), [row.get("loss") for row in plain.state.log_history])
    laws.off_is_direct(maker(host, tmp_path), retention(OFF), direct=direct)


@pytest.mark.parametrize(("host", "name", "methods"), MARKED, ids=NAMES)
def test_an_active_method_changes_the_run_and_is_resumed(host, name, methods, tmp_path):
    make = maker(host, tmp_path)
    without = laws.trained(make, retention([KL] if name == "budget" else []))[0]
    active = laws.resumes(make, retention(methods))
    laws.active_changes_the_run(make, retention(methods), without=without, active=active)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in BESIDE_PAIRS],
)
def test_gradient_accumulation_changes_nothing_but_rounding(name, tmp_path):
    trained = {**TRAINED.get(name, {})}
    double = trained.pop("double", False)

    def make(methods, **settings):
        model = build_model().double() if double else build_model()
        return dpo(tmp_path, methods, model=model, **{**settings, **trained})

    laws.accumulates(make, retention(BESIDE_PAIRS[name]))


def test_accumulation_of_judged_answers_changes_nothing_but_rounding(tmp_path):
    """But for the KL that TRL's own loss `kto` estimates over each micro-batch."""
    laws.accumulates(maker(kto, tmp_path, loss_type="apo_zero_unpaired"), retention([KL]))


@pytest.mark.parametrize("name", ["direct", "l2", pytest.param("sfa", marks=pytest.mark.slow)])
def test_accumulation_over_samples_changes_nothing_but_rounding(name, tmp_path):
    """TRL draws the answers of an optimiser step together, so that they are the same ones."""
    laws.accumulates(maker(grpo, tmp_path), retention(BESIDE_SAMPLES.get(name, [])))


@pytest.mark.parametrize("host", [dpo, grpo])
def test_ewc_takes_fisher_information_that_is_there(host, tmp_path):
    """Hosts of pairs and samples cannot read old data before the first step, but a folder that holds what was read."""
    fisher, _ = random_fisher(tmp_path / "fisher", build_model())
    methods = retention([{"ewc": {"coefficient": 30.0, "fisher": fisher}}])
    make = maker(host, tmp_path)
    laws.active_changes_the_run(make, methods, active=laws.resumes(make, methods))


def test_every_method_is_hosted_or_refused():
    """A new method shows here what it does beside pairs."""
    hosted = {name.partition(",")[0] for name in BESIDE_PAIRS}
    read_other_data = {"ewc", "replay", "multitask", "self_replay"}
    assert set(METHODS) == hosted | read_other_data | {"token_weighting"}


# ------------------------------------------------------------------------------------------- on-policy distillation


@pytest.fixture
def old(tmp_path):
    """The model of before."""
    model = build_model(seed=5)
    model.save_pretrained(tmp_path / "old")
    return model


def from_old(methods, tmp_path):
    """The methods, with label annealing's teacher the model of before."""
    teacher = {"teacher": "online", "reference": str(tmp_path / "old")}
    return retention([{n: {**v, **(teacher if n == "label_annealing" else {})} for n, v in m.items()} for m in methods])


@pytest.mark.parametrize("direction", ["forward", "reverse", "jsd"])
def test_on_policy_distillation_is_trls_but_for_rounding(direction, old, tmp_path):
    settings = dict(optim="sgd", learning_rate=0.1)
    methods = from_old([{"label_annealing": {"weight": 1.0, "direction": direction}}], tmp_path)
    ours, losses = laws.trained(maker(on_policy, tmp_path), methods, **settings)
    beta = {"forward": 0.0, "reverse": 1.0, "jsd": 0.5}[direction]
    plain = on_policy(tmp_path, host=DistillationTrainer, teacher_model=old, beta=beta, **settings)
    before = laws.weights(plain)
    plain.train()
    assert laws.largest_difference(ours, laws.weights(plain)) < 2e-6
    assert laws.largest_difference(ours, before) > 1e-4
    wanted = [row.get("loss") for row in plain.state.log_history]
    assert [a for a in losses if a is not None] == pytest.approx([b for b in wanted if b is not None], rel=1e-4)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n == "label_annealing" else pytest.mark.slow) for n in BESIDE_DISTILLATION]
)
def test_on_policy_distillation_keeps_the_laws(name, old, tmp_path):
    methods = from_old(BESIDE_DISTILLATION[name], tmp_path)
    make = maker(on_policy, tmp_path)
    active = laws.resumes(make, methods)
    laws.accumulates(make, methods)
    if name != "label_annealing":
        without = laws.trained(make, from_old([KL], tmp_path))[0]
        laws.active_changes_the_run(make, methods, without=without, active=active)


def test_under_lora_on_policy_distillation_takes_any_teacher(old, tmp_path):
    from cases import lora
    from peft import get_peft_model

    wrapped = get_peft_model(build_model(), lora())
    with pytest.raises(ConfigError, match="needs the initial model without an adapter"):
        on_policy(tmp_path, from_old([KL], tmp_path), model=wrapped)
    trainer = on_policy(tmp_path, from_old([KL], tmp_path), peft_config=lora())
    trainer.train()
    assert [row["kl"] for row in trainer.state.log_history if "kl" in row][-1] > 0


def test_on_policy_distillation_without_a_teacher_or_prompts_is_refused(tmp_path):
    from trl import DistillationConfig

    from holdfast.training.preferences import OnPolicyTrainer

    with pytest.raises(ConfigError, match="needs label_annealing"):
        on_policy(tmp_path, retention([{"l2": {"coefficient": 1.0}}]))
    with pytest.raises(ConfigError, match="mask_target: expected false in on-policy distillation"):
        on_policy(tmp_path, retention([{"label_annealing": {"mask_target": True}}]))
    with pytest.raises(ConfigError, match="expected no budget in on-policy distillation"):
        on_policy(tmp_path, retention([KL, {"budget": {"kl": 0.02}}]))
    on_policy(tmp_path, retention([KL, {"budget": {"kl": math.inf}}]))  # off
    with pytest.raises(DataError, match="expected rows with a prompt"):
        OnPolicyTrainer(
            build_model(),
            args=DistillationConfig(str(tmp_path), bf16=False, use_cpu=True),
            train_dataset=Dataset.from_list([{"text": "a"}]),
            retain=retention([KL]),
        )


# ---------------------------------------------------------------------------------------------------- self-distillation


def test_self_distillation_is_trls(tmp_path):
    ours = self_distilling(tmp_path)
    before = laws.weights(ours)
    loss = ours.train().training_loss
    plain = self_distilling(tmp_path, host=SDFTTrainer)
    assert plain.train().training_loss == loss > 0
    assert laws.largest_difference(laws.weights(ours), laws.weights(plain)) == 0
    assert laws.largest_difference(laws.weights(ours), before) > 1e-4


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_the_temperature_of_sampling_is_not_that_of_self_distillation(temperature, tmp_path):
    """Reverse KL at temperature 1, also where samples are used again and weighed by their old probabilities."""
    trainer = self_distilling(tmp_path, temperature=temperature, steps_per_generation=2)
    assert trainer.generation_config.temperature == temperature
    model, teacher = moved(trainer.model).eval(), trainer.teacher_model
    rows = [trainer.train_dataset[n] for n in range(4)]
    batch = trainer._prepare_training_batch(rows)
    ids, mask = batch["completion_ids"], batch["completion_mask"]

    def log_probabilities(of, prompts, attended):
        with torch.no_grad():
            logits = of(input_ids=prompts, attention_mask=attended).logits
        return logits[:, -ids.shape[1] - 1 : -1].log_softmax(-1)

    whole = (torch.cat([batch[f"{part}_{what}"] for part in ("prompt", "completion")], 1) for what in ("ids", "mask"))
    ours = log_probabilities(model, *whole)
    theirs = log_probabilities(teacher, batch["teacher_input_ids"], batch["teacher_attention_mask"])
    torch.testing.assert_close(batch["old_per_token_logps"], ours.gather(-1, ids[..., None])[..., 0])
    kl = ((ours.exp() * (ours - theirs)).sum(-1) * mask).sum(1) / mask.sum(1)
    with torch.no_grad():
        assert float(trainer.compute_loss(model, batch)) == pytest.approx(float(kl.mean()), rel=1e-4)


@pytest.mark.parametrize("name", ["l2", pytest.param("sfa", marks=pytest.mark.slow)])
def test_self_distillation_keeps_the_laws(name, tmp_path):
    make, methods = maker(self_distilling, tmp_path), retention(BESIDE_SAMPLES[name])
    active = laws.resumes(make, methods)
    laws.accumulates(make, methods)
    laws.active_changes_the_run(make, methods, active=active)


def test_self_distillation_without_demonstrations_or_with_a_teacher_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="label_annealing has its own teacher"):
        self_distilling(tmp_path, retention([KL]))
    with pytest.raises(DataError, match="expected rows with prompt and privileged_context, got prompt"):
        self_distilling(tmp_path, train_dataset=pairs().select_columns(["prompt"]))


# ------------------------------------------------------------------------------------------------------------- the KL


def batch_of(trainer) -> dict[str, torch.Tensor]:
    return next(iter(trainer.get_train_dataloader()))


def moved(model, by=0.05):
    """The model, away from its start, so that there is a KL."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(by * torch.randn(parameter.shape, generator=generator))
    return model


@pytest.mark.parametrize("tokens", ["trained", "all"])
def test_loss_and_gradient_are_those_of_the_formula_in_float64(tokens, tmp_path):
    """Mean over pairs of the DPO loss + weight * mean over tokens of KL(start || model), from whole logits."""
    weight = 3.0
    trainer = dpo(tmp_path, retention([{"label_annealing": {"weight": weight, "tokens": tokens}}]))
    batch, model = batch_of(trainer), moved(trainer.model)
    trainer.compute_loss(model, batch).backward()
    start, own = build_model().double(), copy.deepcopy(model).double()
    own.zero_grad()

    def log_probabilities(of):
        return (
            run_backbone(of, batch["input_ids"], attention_mask=batch["attention_mask"]) @ describe_head(of).weight_VH.T
        ).log_softmax(-1)[:, :-1]

    p, q = log_probabilities(start).detach(), log_probabilities(own)
    labels, completed = batch["input_ids"][:, 1:, None], batch["completion_mask"][:, 1:]
    ratios = ((q - p).gather(-1, labels)[..., 0] * completed).sum(1)
    chosen, rejected = ratios.chunk(2)
    preference = -torch.nn.functional.logsigmoid(trainer.beta * (chosen - rejected)).mean()
    mask = completed if tokens == "trained" else batch["attention_mask"][:, 1:]
    kl = ((p.exp() * (p - q)).sum(-1) * mask).sum() / mask.sum()
    (preference + weight * kl).backward()
    for (name, found), wanted in zip(model.named_parameters(), own.parameters(), strict=True):
        scale = wanted.grad.abs().max()
        assert (found.grad.double() - wanted.grad).abs().max() < 1e-5 * scale, name


def test_loss_of_judged_answers_is_that_of_the_formula_in_float64(tmp_path):
    """Mean over answers of the KTO loss (Ethayarajh et al. 2024, Eq. 7) + weight * mean over tokens of KL(start ||
    model), from whole logits."""
    weight = 3.0
    reference = moved(build_model(), by=0.1)  # worse than the policy, so that the estimated KL is above 0
    trainer = kto(tmp_path, retention([{"label_annealing": {"weight": weight}}]), ref_model=copy.deepcopy(reference))
    batch, model = batch_of(trainer), moved(trainer.model, by=0.01)
    loss = trainer.compute_loss(model, batch)
    start, own, reference = build_model().double(), copy.deepcopy(model).double(), reference.double()

    def log_probabilities(of, ids, mask):
        hidden = run_backbone(of, ids, attention_mask=mask)
        return (hidden @ describe_head(of).weight_VH.T).log_softmax(-1)[:, :-1]

    def ratios(kind):
        ids, mask, completed = (batch[f"{kind}{key}"] for key in ("input_ids", "attention_mask", "completion_mask"))
        difference = log_probabilities(own, ids, mask) - log_probabilities(reference, ids, mask)
        return (difference.gather(-1, ids[:, 1:, None])[..., 0] * completed[:, 1:]).sum(1)

    with torch.no_grad():
        answers, others = ratios(""), ratios("KL_")
        p, q = (log_probabilities(of, batch["input_ids"], batch["attention_mask"]) for of in (start, own))
        baseline = others.mean().clamp(min=0)
        signs = 2.0 * batch["label"].double() - 1.0
        preference = (1 - torch.sigmoid(trainer.beta * signs * (answers - baseline))).mean()
        mask = batch["completion_mask"][:, 1:]
        kl = ((p.exp() * (p - q)).sum(-1) * mask).sum() / mask.sum()
    assert set(batch["label"].tolist()) == {True, False} and baseline > 0 and kl > 0
    assert math.isclose(float(loss), float(preference + weight * kl), rel_tol=1e-5)


def test_reference_and_teacher_are_one_copy_of_the_start(tmp_path):
    trainer = dpo(tmp_path, retention([KL]))
    assert trainer._teacher.model is trainer.ref_model
    other = dpo(tmp_path, retention([{"label_annealing": {"weight": 1.0, "teacher_dtype": "bfloat16"}}]))
    assert other._teacher.model is not other.ref_model
    assert next(other.ref_model.parameters()).dtype == torch.float32


def test_under_lora_the_base_is_reference_and_teacher(tmp_path):
    from cases import lora

    make = maker(dpo, tmp_path, peft_config=lora())
    trainer = make(retention([KL]))
    assert trainer.ref_model is None and trainer.teacher_info == {"name": "adapter_off"}
    trainer.train()
    laws.active_changes_the_run(make, retention([KL]), active=laws.weights(trainer))
    assert [row["kl"] for row in trainer.state.log_history if "kl" in row][-1] > 0


@pytest.mark.parametrize("loss_type", [pytest.param("ipo", marks=pytest.mark.slow), ["sigmoid", "sft"]])
def test_other_losses_and_precomputed_references_are_trls(loss_type, tmp_path):
    """Beside a KL too small to matter, the weights of TRL's trainer."""
    model = build_model()
    plain = dpo(tmp_path / "a", host=DPOTrainer, model=model, ref_model=copy.deepcopy(model), loss_type=loss_type)
    plain.train()
    tiny_weight = retention([{"label_annealing": {"weight": 1e-12}}])
    ours = dpo(tmp_path / "b", tiny_weight, loss_type=loss_type, precompute_ref_log_probs=True)
    ours.train()
    assert laws.largest_difference(laws.weights(plain), laws.weights(ours)) < 1e-5


def test_held_out_pairs_are_measured_with_their_kl(tmp_path):
    trainer = dpo(tmp_path, retention([KL]), eval_dataset=pairs().select(range(4)))
    trainer.train()
    measured = trainer.evaluate()
    assert measured["eval_loss"] > 0
    assert trainer.state.log_history[-1]["eval_kl"] > 0


# ---------------------------------------------------------------------------------------------------------- bad input


def test_data_without_pairs_is_refused(tmp_path):
    for data, said in {
        "answers": (Dataset.from_list([{"prompt": "a", "completion": "b"}]), "is missing"),
        "none": (Dataset.from_dict({"prompt": [], "chosen": [], "rejected": []}), "at least one pair"),
        "empty": (Dataset.from_list([{"prompt": "a", "chosen": "b", "rejected": ""}]), "row 1: 'rejected' is empty"),
        "same": (Dataset.from_list([{"prompt": "a", "chosen": "b", "rejected": "b"}] * 2), "the same"),
    }.values():
        with pytest.raises(DataError, match=said):
            dpo(tmp_path, data=data)


def test_methods_that_do_not_fit_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="cached"):
        dpo(tmp_path, retention([{"label_annealing": {"teacher": "cached"}}]))
    with pytest.raises(ConfigError, match="beta in GRPOConfig"):
        grpo(tmp_path, retention([KL]))
    for host in (dpo, kto, grpo):
        with pytest.raises(ConfigError, match="acts on the cross-entropy of tokens"):
            host(tmp_path, retention([{"token_weighting": {"kind": "eaft"}}]))
    (tmp_path / "old.jsonl").write_text('{"text": "old"}\n')
    for host in (dpo, grpo):
        with pytest.raises(ConfigError, match="changes the training data"):
            host(tmp_path, retention([{"replay": {"data": str(tmp_path / "old.jsonl")}}]))


def test_a_start_with_an_adapter_of_its_own_is_no_teacher(tmp_path):
    from cases import lora
    from peft import get_peft_model

    tuned = get_peft_model(build_model(), lora())
    with torch.no_grad():
        next(p for n, p in tuned.named_parameters() if "lora_B" in n).fill_(0.1)
    with pytest.raises(ModelError, match="Merge the adapter"):
        dpo(tmp_path, retention([KL]), model=copy.deepcopy(tuned))
    trainer = dpo(tmp_path, retention([{"l2": {"coefficient": 1.0}}]), model=tuned)
    assert not [name for name in trainer.named_trainable() if ".ref." in name]
    trainer.train()
