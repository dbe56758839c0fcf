"""LoRA that begins by CorDA or LoRA-Null: against PEFT, float64 and the authors' subtraction from the base."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import CASES, largest_difference, make_trainer, spec, weights
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor, nn

from holdfast.errors import ConfigError, DataError, ModelError
from holdfast.records.run import RunFolder
from holdfast.runs.config import train_config
from holdfast.runs.run import train
from holdfast.training.adapters import AdapterArguments, adapter_config
from holdfast.training.lora_init import FILE, InputMoments, LoraStart, corda_factors, lora_null_factors
from tiny import SENTENCES, build_model, build_tokenizer

TARGETS = ["q_proj", "k_proj", "down_proj"]
RANK, ALPHA = 4, 12
HOW = ("corda", "lora_null")


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text that the model is to keep."""
    path = tmp_path_factory.mktemp("old") / "old.jsonl"
    lines = [f"{n}: {sentence} So it was, and so it stays." for n in range(3) for sentence in SENTENCES]
    path.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    return path


def begun(folder: Path, old: Path, how: str, methods: Any = (), *, freeze_a: bool = False, **settings: Any) -> Any:
    """A trainer that begins so. `lora_*` and `use_*` among the settings are TRL's for the adapter."""
    from trl import ModelConfig

    named = {k: settings.pop(k) for k in list(settings) if k.startswith(("lora_", "use_"))}
    adapter = AdapterArguments(lora_init=how, lora_init_data=str(old), lora_init_freeze_a=freeze_a)  # type: ignore[arg-type]
    asked = {"lora_r": RANK, "lora_alpha": ALPHA, "lora_dropout": 0.0, "lora_target_modules": TARGETS, **named}
    peft = adapter_config(ModelConfig(use_peft=True, **asked), adapter)
    return make_trainer(folder, methods, peft=peft, adapter=adapter, **{"max_steps": 4, **settings})


def layers(model: nn.Module) -> dict[str, Any]:
    return {n.removeprefix("base_model.model."): m for n, m in model.named_modules() if hasattr(m, "lora_A")}


def factors(model: nn.Module) -> dict[str, tuple[Tensor, Tensor]]:
    """The adapter's B and A, copied."""
    return {
        n: (m.lora_B["default"].weight.detach().clone(), m.lora_A["default"].weight.detach().clone())
        for n, m in layers(model).items()
    }


def second_halves(model: nn.Module) -> dict[str, Tensor]:
    found = {f"{n} B": b[:, RANK:] for n, (b, _) in factors(model).items()}
    return found | {f"{n} A": a[RANK:] for n, (_, a) in factors(model).items()}


def merged(model: Any) -> dict[str, Tensor]:
    return {n: p.detach().clone() for n, p in model.merge_and_unload().named_parameters()}


def ids_of(*texts: str) -> list[Tensor]:
    return [torch.tensor([build_tokenizer()(text)["input_ids"]]) for text in texts]


def moments_of(model: nn.Module, texts: list[Tensor], sum_: Any = lambda tensors: None) -> dict[str, Tensor]:
    linears = {n: m for n, m in model.named_modules() if n.endswith(tuple(TARGETS))}
    moments = InputMoments(linears)
    for number, ids in enumerate(texts):
        with moments.watching(learning=number == 0), torch.no_grad():
            model(input_ids=ids)
    means = moments.means(sum_, label="the text")
    assert [len(names) for names, _ in means] == [2, 1] * 2, "queries and keys share their inputs"
    return {name: mean for names, mean in means for name in names}


# ------------------------------------------------------------------------------------------------------------- factors


def test_corda_is_pefts() -> None:
    """B0 A0, by PEFT's own preprocessing in its knowledge-preserved mode; one text, whose scale there drops out."""
    from peft import LoraConfig, get_peft_model
    from peft.tuners.lora.config import CordaConfig
    from peft.tuners.lora.corda import preprocess_corda

    (ids,) = ids_of(" ".join(SENTENCES))
    config = LoraConfig(
        r=RANK,
        lora_alpha=ALPHA,
        target_modules=TARGETS,
        init_lora_weights="corda",
        corda_config=CordaConfig(corda_method="kpm"),
    )
    theirs = build_model()
    preprocess_corda(theirs, config, run_model=lambda: theirs(input_ids=ids))
    adapted = get_peft_model(theirs, config)
    model = build_model().eval()
    moments = moments_of(model, [ids])
    assert len(moments) == 6
    for name, (b, a) in factors(adapted).items():
        mine = corda_factors(moments[name], rank=RANK, scaling=ALPHA / RANK)(model.get_submodule(name).weight.detach())
        wanted = (b @ a).double()
        assert float((mine[0] @ mine[1] - wanted).abs().max()) < 1e-3 * float(wanted.abs().max()), name


@pytest.mark.parametrize("shape", [(12, 24), (24, 12)])
def test_lora_null_is_its_formula(shape: tuple[int, int]) -> None:
    """The best approximation of rank r of W N N', whole and in float64; which the text's inputs hardly meet."""
    import numpy as np

    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(shape, generator=generator, dtype=torch.float64)
    inputs = torch.randn(500, shape[1], generator=generator, dtype=torch.float64) * torch.logspace(0, -3, shape[1])
    moment = inputs.T @ inputs / len(inputs)
    b, a = lora_null_factors(moment, rank=RANK, scaling=3.0)(weight)
    null = np.linalg.svd(moment.numpy())[0][:, -RANK:]
    u, s, vt = np.linalg.svd(weight.numpy() @ null @ null.T, full_matrices=False)
    wanted = torch.from_numpy(u[:, :RANK] * s[:RANK] @ vt[:RANK])
    torch.testing.assert_close(3.0 * b @ a, wanted, rtol=0, atol=1e-9)
    assert b.shape == (shape[0], RANK) and a.shape == (RANK, shape[1])
    torch.testing.assert_close(b.norm(dim=0), a.norm(dim=1))  # shared out evenly
    assert (inputs @ wanted.T).norm() < 0.05 * (inputs @ weight.T).norm()


@pytest.mark.parametrize("factors_of", [corda_factors, lora_null_factors])
def test_a_factor_of_the_moments_changes_nothing(factors_of: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs, weight = torch.randn(99, 16, generator=generator).double(), torch.randn(8, 16, generator=generator)
    moment = inputs.T @ inputs
    (b, a), (other_b, other_a) = (factors_of(m, rank=3, scaling=2.0)(weight) for m in (moment, moment * 1e-6))
    torch.testing.assert_close(b @ a, other_b @ other_a, rtol=0, atol=1e-9)
    torch.testing.assert_close(b.norm(dim=0), other_b.norm(dim=0))  # nor how it is shared out


def test_moments_over_two_ranks_are_those_over_all_texts() -> None:
    """One rank's text is longer: a mean of means would be another."""
    model, texts = build_model().eval(), ids_of(" ".join(SENTENCES), *SENTENCES[:2])
    whole = moments_of(model, texts)
    calls: list[Mapping[str, Tensor]] = []
    moments_of(model, texts[1:], lambda tensors: calls.append({n: t.clone() for n, t in tensors.items()}))

    def add(tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in calls.pop(0).items():
            tensors[name].add_(tensor)

    summed = moments_of(model, texts[:1], add)
    for name in whole:
        torch.testing.assert_close(summed[name], whole[name], rtol=1e-5, atol=1e-7)


def test_a_layer_without_tokens_or_with_broken_inputs_is_named() -> None:
    model = nn.ModuleDict({"used": nn.Linear(4, 4), "idle": nn.Linear(4, 4)})
    moments = InputMoments(dict(model.items()))
    with moments.watching(learning=True):
        model["used"](torch.ones(1, 2, 4))
    with pytest.raises(DataError, match=r"reach every targeted layer, got none of old\.jsonl in idle\."):
        moments.means(lambda tensors: None, label="old.jsonl")
    broken = InputMoments({"used": model["used"]})
    with broken.watching(learning=True):
        model["used"](torch.full((1, 2, 4), float("nan")))
    with pytest.raises(ModelError, match=r"got nan or infinities on old\.jsonl in used\."):
        broken.means(lambda tensors: None, label="old.jsonl")


# ------------------------------------------------------------------------------------------------------------ training


@pytest.mark.parametrize(
    ("how", "more"),
    [
        ("corda", {}),
        pytest.param("lora_null", {"use_rslora": True}, marks=pytest.mark.slow),
        pytest.param("corda", {"use_dora": True}, marks=pytest.mark.slow),
        pytest.param("lora_null", {"lora_dropout": 0.3}, marks=pytest.mark.slow),
    ],
)
def test_the_start_is_the_base(how: str, more: dict[str, Any], old: Path, tmp_path: Path) -> None:
    trainer = begun(tmp_path, old, how, **more)
    base, batch = build_model(), next(iter(trainer.get_train_dataloader()))
    for name, parameter in base.named_parameters():
        kept = name.replace(".weight", ".base_layer.weight") if name.split(".")[-2] in TARGETS else name
        assert torch.equal(parameter, trainer.model.get_parameter(f"base_model.model.{kept}"))
    direct = make_trainer(tmp_path / "direct", model=base)
    trainer.model.train()
    losses = [float(t.compute_loss(t.model, dict(batch)).detach()) for t in (trainer, direct)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    scale = ALPHA / RANK**0.5 if more.get("use_rslora") else ALPHA / RANK
    for layer in layers(trainer.model).values():
        assert layer.scaling["default"] == pytest.approx(scale) and layer.r["default"] == 2 * RANK
    for b, a in factors(trainer.model).values():
        assert torch.equal(b[:, :RANK], -b[:, RANK:]) and torch.equal(a[:RANK], a[RANK:]) and bool(b.any())


@pytest.mark.parametrize("how", HOW)
def test_it_trains_as_factors_taken_off_the_base(how: str, old: Path, tmp_path: Path) -> None:
    """The authors' way: W - s B0 A0 as the base, and an adapter of rank r from B0 and A0; gradients are clipped."""
    from peft import LoraConfig

    settings = {"optim": "sgd", "learning_rate": 0.5, "max_grad_norm": 0.1}
    ours = begun(tmp_path / "ours", old, how, **settings)
    start = factors(ours.model)
    model = build_model()
    with torch.no_grad():
        for name, (b, a) in start.items():
            model.get_submodule(name).weight.sub_(ALPHA / RANK * b[:, :RANK] @ a[:RANK])
    config = LoraConfig(r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, target_modules=TARGETS, task_type="CAUSAL_LM")
    theirs = make_trainer(tmp_path / "theirs", model=model, peft=config, max_steps=4, **settings)
    with torch.no_grad():
        for name, layer in layers(theirs.model).items():
            layer.lora_B["default"].weight.copy_(start[name][0][:, :RANK])
            layer.lora_A["default"].weight.copy_(start[name][1][:RANK])
    for trainer in (ours, theirs):
        trainer.train()
    found, wanted = merged(ours.model), merged(theirs.model)
    moved = largest_difference(found, {n: p.detach() for n, p in build_model().named_parameters()})
    assert largest_difference(found, wanted) < 1e-5 < 3e-4 < moved


@pytest.mark.parametrize("freeze_a", [False, True])
def test_the_other_half_stays_bit_for_bit(freeze_a: bool, old: Path, tmp_path: Path) -> None:
    """Under AdamW with weight decay and methods that move weights, an adapter-off teacher beside them."""
    spec = {"l2": {"coefficient": 5.0, "decoupled": True}, "label_annealing": {"weight": 1.0}, "ema": {"decay": 0.5}}
    trainer = begun(
        tmp_path, old, "corda", spec, freeze_a=freeze_a, optim="adamw_torch", weight_decay=0.5, learning_rate=1e-2,
        logging_steps=1,
    )  # fmt: skip
    start = factors(trainer.model)
    trainer.train()
    end = factors(trainer.model)
    for name, (b, a) in start.items():
        assert torch.equal(end[name][0][:, RANK:], b[:, RANK:]) and torch.equal(end[name][1][RANK:], a[RANK:])
        assert not torch.equal(end[name][0][:, :RANK], b[:, :RANK])
        assert torch.equal(end[name][1][:RANK], a[:RANK]) is freeze_a
    assert all(layer.lora_A["default"].weight.requires_grad is not freeze_a for layer in layers(trainer.model).values())
    first, *_, last = (row["kl"] for row in trainer.state.log_history if "kl" in row)
    assert abs(first) < 1e-8 < 1e-7 < last, "the teacher is the base"
    trained = sum(p.numel() for p in trainer.model.parameters() if p.requires_grad) - trainer.lora_start.frozen
    assert trained == sum(b.numel() // 2 + (0 if freeze_a else a.numel() // 2) for b, a in start.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if name != "mofo"])
def test_every_method_acts_and_leaves_the_other_half(name: str, old: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"freeze_a": name in ("sfa", "wise_ft"), "weight_decay": 0.1, "optim": "adamw_torch"}
    direct, held = (
        begun(tmp_path / str(number), old, "corda", methods, learning_rate=1e-2, **settings)
        for number, methods in enumerate(({}, spec(name, next(iter(CASES[name])))))
    )
    start = second_halves(held.model)
    for trainer in (direct, held):
        trainer.train()
    assert largest_difference(start, second_halves(held.model)) == 0.0
    assert largest_difference(weights(direct), weights(held)) > 1e-6
    assert all(bool(torch.isfinite(t).all()) for t in weights(held).values())


@pytest.mark.slow
def test_without_restoring_weight_decay_would_take_the_other_half(old: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(LoraStart, "restore", lambda self: None)
    trainer = begun(tmp_path, old, "corda", optim="adamw_torch", weight_decay=0.5, learning_rate=1e-2)
    start = second_halves(trainer.model)
    trainer.train()
    assert largest_difference(start, second_halves(trainer.model)) > 1e-3


@pytest.mark.slow
def test_an_average_is_that_of_the_weights_where_a_stays(old: Path, tmp_path: Path) -> None:
    start = dict(build_model().named_parameters())
    plain, held = (
        begun(tmp_path / str(len(spec)), old, "lora_null", spec, freeze_a=True, learning_rate=3e-2)
        for spec in ({}, {"wise_ft": {"alpha": 0.25}})
    )
    for trainer in (plain, held):
        trainer.train()
    direct = merged(plain.model)
    wanted = {n: 0.75 * w + 0.25 * direct[n] for n, w in start.items()}
    assert largest_difference(merged(held.model), wanted) < 1e-6 < 1e-3 < largest_difference(direct, wanted)


def test_a_continued_run_is_the_same_and_computes_no_factors(old: Path, tmp_path: Path, monkeypatch: Any) -> None:
    spec = {"label_annealing": {"weight": 1.0}, "l2": {"coefficient": 0.5}}
    saves = {"save_strategy": "steps", "save_steps": 2, "learning_rate": 3e-2}
    whole = begun(tmp_path, old, "corda", spec, **saves)
    start = second_halves(whole.model)
    whole.train()
    assert (tmp_path / "run" / FILE).is_file()
    with monkeypatch.context() as patched:
        patched.setattr(LoraStart, "_compute", None)
        resumed = begun(tmp_path, old, "corda", spec, **saves)
    assert largest_difference(start, second_halves(resumed.model)) == 0.0
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    assert largest_difference(weights(whole), weights(resumed)) == 0.0


@pytest.mark.slow
def test_a_checkpoints_other_half_is_what_stays(old: Path, tmp_path: Path) -> None:
    """Also where the factors were computed anew, on a processor that gives other signs."""
    saves = {"save_strategy": "steps", "save_steps": 2}
    whole = begun(tmp_path, old, "corda", **saves)
    start = second_halves(whole.model)
    whole.train()
    resumed = begun(tmp_path / "elsewhere", old, "corda", **saves)
    with torch.no_grad():
        for parameter in resumed.model.parameters():
            parameter.mul_(-1 if parameter.requires_grad else 1)
    resumed.lora_start.hold()
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    assert largest_difference(weights(whole), weights(resumed)) == 0.0
    assert largest_difference(start, second_halves(resumed.model)) == 0.0


@pytest.mark.slow
def test_factors_of_other_text_are_made_anew(old: Path, tmp_path: Path) -> None:
    first = second_halves(begun(tmp_path, old, "lora_null").model)
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps({"text": "Something else entirely. " * 8}) + "\n")
    assert largest_difference(first, second_halves(begun(tmp_path, other, "lora_null").model)) > 1e-3
    (tmp_path / "run" / FILE).write_bytes(b"half a file")
    assert largest_difference(first, second_halves(begun(tmp_path, old, "lora_null").model)) == 0.0


def test_a_tuned_adapter_is_no_teacher(old: Path, tmp_path: Path) -> None:
    from holdfast.retention.teacher import AdapterOffTeacher

    trainer = begun(tmp_path, old, "corda")
    AdapterOffTeacher(trainer.model)
    with torch.no_grad():
        next(iter(layers(trainer.model).values())).lora_B["default"].weight[0, 0] += 0.1
    with pytest.raises(ModelError, match="expects an adapter that is the identity at the start, got one that is tuned"):
        AdapterOffTeacher(trainer.model)


@pytest.mark.parametrize(
    ("spec", "more", "said"),
    [
        ({"sfa": {}}, {}, "sfa: with lora_init neither factor begins at 0"),
        ({"wise_ft": {}}, {}, "wise_ft: with lora_init neither factor begins at 0"),
        ({"mofo": {}}, {"optim": "adamw_torch"}, "mofo: counts the largest momenta"),
        ({}, {"lora_r": 33}, r"lora_r: expected at most the smaller side .* got 33 for .*q_proj \(32 x 32\)"),
        ({}, {"lora_target_modules": ["embed_tokens"]}, r"lora_init: expected matrices .* got model\.embed_tokens"),
    ],
)
def test_what_it_cannot_begin_is_said(spec: Any, more: dict[str, Any], said: str, old: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        begun(tmp_path, old, "corda", spec, **more)


# ----------------------------------------------------------------------------------------------------------- whole runs


@pytest.fixture
def place(tmp_path: Path, model_folder: Path, old: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a model, training text and text to keep."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(model_folder, tmp_path / "tiny")
    shutil.copy(old, tmp_path / "old.jsonl")
    (tmp_path / "train.jsonl").write_text("".join(json.dumps({"text": s}) + "\n" for s in SENTENCES * 2))
    return tmp_path


BEGUN: dict[str, Any] = {"use_peft": True, "lora_init": "corda", "lora_init_data": "old.jsonl"}


def configured(**more: Any) -> Any:
    return train_config(model_name_or_path="tiny", dataset_name="train.jsonl", **more)


def test_a_run_its_record_and_its_adapter(place: Path) -> None:
    """What is saved is an ordinary adapter of the published base; PEFT's merge of it is what was measured."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    settings = {
        **BEGUN, "lora_r": 4, "lora_alpha": 12, "lora_target_modules": ["q_proj"], "lora_init_samples": 5,
        "max_steps": 2, "output_dir": "out", "use_cpu": True, "report_to": "none", "learning_rate": 3e-2,
        "evaluation": {"source": ["old.jsonl"]},
    }  # fmt: skip
    record = train(configured(**settings), console=Console(file=io.StringIO())).read()
    assert record.model["trainable"] == 2 * 2 * 4 * 32
    begin = record.model["lora_init"]
    assert (begin["init"], begin["rank"], begin["stored_rank"], begin["samples"]) == ("corda", 4, 8, 5)
    assert record.config["lora_init"] == "corda" and begin["tokens"] > 5 and begin["data"] == "old.jsonl"
    stored = json.loads(Path("out/adapter_config.json").read_text())
    assert (stored["r"], stored["lora_alpha"], stored["init_lora_weights"]) == (8, 24, True)
    assert len(load_file("out/adapter_model.safetensors")) == 4
    base = AutoModelForCausalLM.from_pretrained("tiny")
    adapted = PeftModel.from_pretrained(base, "out").eval()
    ids = torch.arange(3, 40).unsqueeze(0)
    with torch.no_grad():
        told = adapted(ids).logits
        assert torch.allclose(adapted.merge_and_unload()(ids).logits, told, atol=1e-5)
    (distance,) = [d.l2 for d in record.distance if d.layer == "0"]
    before = load_file("tiny/model.safetensors")["model.layers.0.self_attn.q_proj.weight"]
    after = adapted.base_model.model.model.layers[0].self_attn.q_proj.weight.detach()
    assert distance == pytest.approx(float((after - before).norm()), rel=1e-4)
    (kept,) = [c for c in RunFolder("out").comparisons() if c.metric == "nats_per_token"]
    assert kept.before != kept.after


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({**BEGUN, "use_peft": False}, "lora_init: begins LoRA, and takes effect with 'use_peft: true' only"),
        ({**BEGUN, "lora_init_data": None}, "lora_init_data: expected text that the model is to keep"),
        ({**BEGUN, "lora_init_data": "odl.jsonl"}, "lora_init_data: no such file or folder: odl.jsonl"),
        ({**BEGUN, "lora_init_data": ["old.jsonl"]}, "lora_init_data: expected text"),
        ({**BEGUN, "lora_init": "cordaa"}, "lora_init: expected one of corda, lora_null, got 'cordaa' (text)."),
        ({**BEGUN, "use_peft": "maybe"}, "use_peft: expected true or false"),
        ({**BEGUN, "lora_init_samples": 0}, "lora_init_samples: expected"),
        ({"use_peft": True, "lora_init_data": "old.jsonl"}, "lora_init_data: belongs to lora_init"),
        ({"use_peft": True, "lora_init_samples": 8}, "lora_init_samples: belongs to lora_init"),
        ({"use_peft": True, "lora_init_freeze_a": True}, "lora_init_freeze_a: belongs to lora_init"),
        ({"use_peft": True, "peft_method": "osf", "lora_init": "corda"}, "lora_init: is LoRA's, and peft_method"),
        ({**BEGUN, "accelerate_config": "fsdp2"}, "lora_init: takes whole matrices apart"),
        ({**BEGUN, "accelerate_config": "zero3"}, "lora_init: takes whole matrices apart"),
        ({**BEGUN, "retention": ["sfa"]}, "retention.sfa: with lora_init neither factor begins at 0"),
        ({**BEGUN, "retention": ["mofo"], "optim": "adamw_torch"}, "retention.mofo: counts the largest momenta"),
        ({**BEGUN, "retention": [{"l2": {"anchor": "tiny"}}]}, "retention.l2.anchor: expected start with lora_init"),
        ({**BEGUN, "on_policy": {}, "retention": ["label_annealing"]}, "lora_init: is not computed in a run with"),
    ],
)  # fmt: skip
def test_a_mistake_is_said_once(settings: dict[str, Any], said: str, place: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        configured(**settings)
    (problem,) = (problem for problem in caught.value.problems if "needs the package" not in problem)
    assert said in problem


def test_each_setting_decides_a_run(place: Path) -> None:
    keys = {
        configured(**settings).key
        for settings in (
            {"use_peft": True}, BEGUN, {**BEGUN, "lora_init": "lora_null"}, {**BEGUN, "lora_init_samples": 8},
            {**BEGUN, "lora_init_freeze_a": True}, {**BEGUN, "lora_init_data": "train.jsonl"},
        )
    }  # fmt: skip
    assert len(keys) == 6
    configured(**BEGUN, lora_init_freeze_a=True, retention=["sfa", "wise_ft"])


@pytest.mark.slow
def test_the_dry_run_says_both_ranks_and_finds_matrices_that_are_too_small(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from holdfast.cli.main import main

    words = ["train", "--model_name_or_path", "tiny", "--dataset_name", "train.jsonl", "--dry_run"]
    words += [word for key, value in BEGUN.items() for word in (f"--{key}", str(value).lower())]
    assert main([*words, "--lora_r", "4", "--lora_alpha", "8"]) == 0
    assert "LoRA r=4 alpha=8, begun by corda, stored with rank 8" in capsys.readouterr().out
    assert main([*words, "--lora_r", "40"]) != 0
    assert "lora_r: expected at most the smaller side of every matrix with lora_init" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------- quantised, two ranks


@pytest.mark.slow
@pytest.mark.parametrize("how", HOW)
def test_it_begins_a_model_in_4_bits(how: str, old: Path, tmp_path: Path) -> None:
    """The quantised base stays as it is, which taking factors off it would not allow."""
    pytest.importorskip("bitsandbytes")
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    build_model(width=64).save_pretrained(tmp_path / "model")
    quantised = BitsAndBytesConfig(load_in_4bit=True)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", quantization_config=quantised)
    packed = {n: p.detach().clone() for n, p in model.named_parameters()}
    trainer = begun(tmp_path, old, how, {"label_annealing": {"weight": 1.0}}, model=model, logging_steps=1)
    trainer.train()
    for name, parameter in packed.items():
        stem, _, last = name.rpartition(".")
        kept = f"{stem}.base_layer.{last}" if stem.endswith(tuple(TARGETS)) else name
        assert torch.equal(parameter, trainer.model.get_parameter(f"base_model.model.{kept}")), name
    first, *_, last_kl = (row["kl"] for row in trainer.state.log_history if "kl" in row)
    assert abs(first) < 1e-5 < last_kl


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.timeout(420)
def test_two_ranks_begin_and_end_as_one(old: Path, tmp_path: Path) -> None:
    from lora_init_worker import SETTINGS

    from two_processes import launch

    out = launch(Path(__file__).with_name("lora_init_worker.py"), tmp_path / "two", str(old))
    one = begun(tmp_path / "one", old, "corda", per_device_train_batch_size=4, **SETTINGS)
    one.train()
    ranks = [load_file(str(out / f"{rank}.safetensors")) for rank in (0, 1)]
    assert largest_difference(ranks[0], ranks[1]) == 0.0
    assert largest_difference(merged(one.model), ranks[0]) < 1e-5
