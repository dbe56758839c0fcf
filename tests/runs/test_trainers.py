"""`holdfast train` with `trainer:`: TRL's preference optimisation and reinforcement learning from a YAML, equal to
TRL's own without methods, resumed, and held to their rows and keys before anything is loaded."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from checkpoint_folders import read_folder
from commandline import in_process
from data_files import jsonl, text_rows
from holdfast.cli.main import main
from holdfast.errors import ConfigError
from holdfast.records.run import RunFolder
from holdfast.runs.rewards import refuse_changed_rewards
from small_runs import stop_at
from tiny import SENTENCES, build_model, build_tokenizer

PAIRS = [
    {"prompt": f"{n}. {s[:12]}", "chosen": s[12:], "rejected": " No, never.", "source": "x"}
    for n in range(3)
    for s in SENTENCES
]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a model, pairs and text to measure."""
    monkeypatch.chdir(tmp_path)
    build_model(seed=0).save_pretrained("start")
    build_tokenizer().save_pretrained("start")
    jsonl("pairs.jsonl", PAIRS)
    text_rows("prose.jsonl", [f"{s} So it is said." for s in SENTENCES])
    Path("run.yaml").write_text(
        "model_name_or_path: start\ndataset_name: pairs.jsonl\ntrainer: dpo\nbeta: 0.2\nmax_length: 64\n"
        "max_steps: 6\nsave_steps: 2\nlogging_steps: 1\nper_device_train_batch_size: 4\nlearning_rate: 1.0e-2\n"
        "use_cpu: true\n"
    )
    return tmp_path


def run(*more: str) -> int:
    return main(["train", "--config", "run.yaml", *more])


def refused(capfd: pytest.CaptureFixture[str], *more: str) -> str:
    assert run(*more) != 0
    return " ".join(capfd.readouterr().err.split())


def test_trainers_dpo_is_trls_without_methods():
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import DPOConfig, DPOTrainer

    assert run("--output_dir", "out") == 0
    record = RunFolder("out").read()
    assert record.status == "finished" and record.data["format"] == "pairs" and record.data["examples"] == len(PAIRS)
    assert record.config["trainer"] == "dpo" and record.config["beta"] == 0.2
    args = DPOConfig(
        output_dir="theirs",
        beta=0.2,
        max_length=64,
        max_steps=6,
        save_strategy="no",
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        use_cpu=True,
        bf16=False,
        report_to="none",
    )
    model = AutoModelForCausalLM.from_pretrained("start", dtype=torch.float32)
    rows = Dataset.from_list(PAIRS).remove_columns("source")
    theirs = DPOTrainer(
        model=model, args=args, train_dataset=rows, processing_class=AutoTokenizer.from_pretrained("start")
    )
    theirs.train()
    ours, start = load_file("out/model.safetensors"), load_file("start/model.safetensors")
    trained = theirs.model.state_dict()
    assert max(float((ours[name] - trained[name]).abs().max()) for name in ours) < 1e-6
    assert max(float((ours[name] - start[name]).abs().max()) for name in ours) > 1e-3


def test_trainers_dpo_stopped_and_killed_goes_on_to_the_same_weights(place, monkeypatch):
    """A signal after step 3, kill -9 while it trains, and the same command each time."""
    from holdfast.training.mixin import RetentionMixin

    method = ("--retention", "label_annealing:weight=0.5")
    assert run("--output_dir", "whole", *method) == 0
    logged = [row["kl"] for row in RunFolder("whole").metrics() if "kl" in row]
    assert len(logged) == 6 and logged[0] == 0 and logged[-1] > 0
    with monkeypatch.context() as patched:
        stop_at(3, patched)
        assert run("--output_dir", "cut", *method) == 130
    assert Path("cut/checkpoint-3").is_dir()
    step = RetentionMixin.training_step

    def slowly(*args, **kwargs):  # so that the signal finds it at work on any machine
        time.sleep(0.1)
        return step(*args, **kwargs)

    def work() -> int:
        RetentionMixin.training_step = slowly
        return run("--output_dir", "cut", *method)

    there = Path("cut/checkpoint-4").is_dir
    killed = in_process(work, place, stop_when=there, stop_with=signal.SIGKILL, may_die=True)
    assert killed.signal == signal.SIGKILL and RunFolder("cut").read().status == "running"
    assert run("--output_dir", "cut", *method) == 0
    assert RunFolder("cut").read().training["sessions"] == 3
    assert read_folder(place / "cut") == read_folder(place / "whole")


def test_trainers_dpo_says_what_it_reads(capsys):
    assert run("--dry_run", "--quick") == 0
    said = capsys.readouterr().out
    assert "pairs.jsonl (pairs of a chosen and a rejected completion)" in said
    assert "18 pairs" in said and "Not read: source (18 rows)." in said


def test_trainers_dpo_measures_held_out_pairs():
    held_out = ("--eval_strategy", "steps", "--eval_steps", "3", "--eval_dataset_name", "pairs.jsonl")
    assert run("--output_dir", "out", *held_out) == 0
    assert len([row for row in RunFolder("out").metrics() if "eval_loss" in row]) == 2


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--packing", "true"], "packing: is a key of trainer: sft or on_policy; this run has trainer: dpo."),
        (["--trainer", "sft"], "line 4: beta: is a key of trainer: dpo or kto or grpo; this run has trainer: sft."),
        (
            ["--trainer", "dop"],
            "trainer: expected one of sft, dpo, kto, grpo, on_policy, got 'dop' (text). Did you mean 'dpo'?",
        ),
        (
            ["--dataset_name", "prose.jsonl"],
            "expected pairs in the columns chosen and rejected (and prompt), got text; chosen and rejected is missing.",
        ),
        (["--retention", "token_weighting"], "token_weighting: acts on the cross-entropy of tokens"),
        (
            ["--retention", "replay:data=prose.jsonl"],
            "replay: mixes rows of text into the data, but trainer: dpo",
        ),
        (["--retention", "label_annealing:teacher=cached"], "expected 'online' or 'adapter_off' with preference data"),
        (["--data", "{text: '{prompt}'}"], "data: has no effect with trainer: dpo"),
        (["--on_policy", "{}"], "on_policy: selects the trainer on_policy, but trainer is dpo."),
        (["--dataset_streaming", "true"], "dataset_streaming: expected false with trainer: dpo"),
    ],
)
def test_trainers_dpo_what_does_not_go_with_it_is_refused_before_anything_is_loaded(more, said, capfd, monkeypatch):
    from holdfast.runs import loading

    monkeypatch.setattr(loading, "load_model", lambda *_: pytest.fail("the model was loaded"))
    assert said in refused(capfd, "--output_dir", "out", *more)


# ---------------------------------------------------------------------------------------------------------------- KTO


@pytest.fixture
def answers() -> list[str]:
    """Answers that were judged one by one, and the arguments that train on them."""
    rows = []
    for number, row in enumerate(PAIRS):
        for label in (True, False) if number % 2 else (False, True):
            completion = row["chosen" if label else "rejected"]
            rows.append({"prompt": row["prompt"], "completion": completion, "label": label, "rater": 3})
    jsonl("answers.jsonl", rows)
    return ["--trainer", "kto", "--dataset_name", "answers.jsonl"]


def test_trainers_kto_is_trls_without_methods(answers):
    from datasets import Dataset, load_dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import KTOConfig, KTOTrainer

    assert run("--output_dir", "out", *answers) == 0
    record = RunFolder("out").read()
    assert record.status == "finished" and record.data["format"] == "judged answers"
    settings = {"beta": 0.2, "max_length": 64, "max_steps": 6, "per_device_train_batch_size": 4, "learning_rate": 1e-2}
    args = KTOConfig(output_dir="theirs", save_strategy="no", use_cpu=True, bf16=False, report_to="none", **settings)
    rows: Dataset = load_dataset("json", data_files="answers.jsonl", split="train", cache_dir="cache")
    theirs = KTOTrainer(
        model=AutoModelForCausalLM.from_pretrained("start", dtype=torch.float32),
        args=args,
        train_dataset=rows.remove_columns("rater"),
        processing_class=AutoTokenizer.from_pretrained("start"),
    )
    theirs.train()
    ours, start, trained = load_file("out/model.safetensors"), load_file("start/model.safetensors"), theirs.model
    assert max(float((ours[name] - trained.state_dict()[name]).abs().max()) for name in ours) < 1e-6
    assert max(float((ours[name] - start[name]).abs().max()) for name in ours) > 1e-3


def test_trainers_kto_says_what_it_reads(answers, capsys):
    assert run("--dry_run", "--quick", *answers) == 0
    said = capsys.readouterr().out
    assert "answers.jsonl (answers that were judged good or bad)" in said
    assert "36 judged answers, 18 of them good" in said and "Not read: rater (36 rows)." in said


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--dataset_name", "pairs.jsonl"], "For pairs of chosen and rejected use trainer: dpo."),
        (["--per_device_train_batch_size", "1"], "expected at least 2 with trainer: kto"),
        (["--train_sampling_strategy", "random"], "train_sampling_strategy: expected 'sequential' with `trainer: kto`"),
        (["--retention", "token_weighting"], "token_weighting: acts on the cross-entropy of tokens"),
    ],
)
def test_trainers_kto_what_does_not_go_with_it_is_refused_before_anything_is_loaded(
    answers, more, said, capfd, monkeypatch
):
    from holdfast.runs import loading

    monkeypatch.setattr(loading, "load_model", lambda *_: pytest.fail("the model was loaded"))
    assert said in refused(capfd, "--output_dir", "out", *answers, *more)


def test_trainers_on_policy_is_a_trainer(capfd):
    jsonl("prompts.jsonl", [{"prompt": row["prompt"]} for row in PAIRS])
    asked = ["--model_name_or_path", "start", "--dataset_name", "prompts.jsonl", "--trainer", "on_policy"]
    assert main(["train", *asked, "--retention", "label_annealing", "--output_dir", "out"]) != 0
    assert "on_policy: the prompt of row" in capfd.readouterr().err


# --------------------------------------------------------------------------------------------------------------- GRPO


@pytest.fixture
def judged() -> list[str]:
    """Prompts, and a reward that counts letters."""
    jsonl("prompts.jsonl", [{"prompt": row["prompt"], "answer": row["chosen"]} for row in PAIRS])
    write_reward("-float(len(text))")
    Path("grpo.yaml").write_text(
        "model_name_or_path: start\ndataset_name: prompts.jsonl\ntrainer: grpo\nreward_funcs: [judge.py:brevity]\n"
        "max_completion_length: 8\nnum_generations: 4\nretention: [{l2: {coefficient: 0.1}}]\n"
        "max_steps: 4\nsave_steps: 2\nlogging_steps: 1\nper_device_train_batch_size: 4\nlearning_rate: 1.0e-2\n"
        "use_cpu: true\n"
    )
    return ["train", "--config", "grpo.yaml"]


def write_reward(value: str) -> None:
    lines = ["def brevity(completions, answer, **columns):", f"    return [{value} for text in completions]", ""]
    Path("judge.py").write_text("\n".join(lines))


def test_trainers_grpo_trains_by_the_users_reward_and_records_whose(judged):
    assert main([*judged, "--output_dir", "out"]) == 0
    record = RunFolder("out").read()
    assert record.status == "finished" and record.config["trainer"] == "grpo"
    [reward] = record.data["rewards"]
    assert reward["name"] == "judge.py:brevity" and len(reward["sha256"]) == 64
    logged = [row for row in RunFolder("out").metrics() if "reward" in row]
    assert len(logged) == 4 and all(row["reward"] < 0 for row in logged)
    start, out = load_file("start/model.safetensors"), load_file("out/model.safetensors")
    assert max(float((start[name] - out[name]).abs().max()) for name in out) > 1e-3


def test_trainers_grpo_does_not_go_on_with_another_reward(judged, monkeypatch, capfd):
    with monkeypatch.context() as patched:
        stop_at(2, patched)
        assert main([*judged, "--output_dir", "cut"]) == 130
    write_reward("float(len(text))")
    assert main([*judged, "--output_dir", "cut"]) != 0
    assert "judge.py: other contents" in capfd.readouterr().err
    write_reward("-float(len(text))")
    assert main([*judged, "--output_dir", "cut"]) == 0


def test_trainers_grpo_rewards_of_a_package_are_held_to_their_code():
    before, now = [{"name": "a.b", "sha256": "1" * 64}], [{"name": "a.b", "sha256": "2" * 64}]
    refuse_changed_rewards(None, now)
    refuse_changed_rewards(before, list(before))
    with pytest.raises(ConfigError, match=r"began, a\.b \(1{12}\), got a\.b \(2{12}\)"):
        refuse_changed_rewards(before, now)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--reward_funcs", "think_format_rewrd"], "Did you mean 'think_format_reward'?"),
        (["--reward_funcs", "judge.py:brevty"], "judge.py has no 'brevty'"),
        (["--reward_funcs", "nowhere.rewards.brevity"], "nowhere.rewards: the code cannot be loaded"),
        (["--dataset_name", "prose.jsonl"], "expects prompts of text or messages in the column prompt, got text."),
        (["--retention", "label_annealing"], "is not computed on sampled answers. GRPO has its own KL"),
        (["--max_completion_length", "125"], "grpo: the prompt of row"),
        (["--beta", "-"], "beta"),
    ],
)
def test_trainers_grpo_what_does_not_go_with_it_is_refused(judged, more, said, capfd):
    assert main([*judged, "--output_dir", "out", *more]) != 0
    assert said in " ".join(capfd.readouterr().err.split())


def test_trainers_grpo_without_a_reward_is_refused(judged, capfd):
    Path("grpo.yaml").write_text(Path("grpo.yaml").read_text().replace("reward_funcs: [judge.py:brevity]\n", ""))
    assert main([*judged, "--output_dir", "out"]) != 0
    assert "reward_funcs: expected a reward function" in capfd.readouterr().err
