"""Keys that somebody means: names of other tools, slips of them, and keys that belong below `train:`."""

from __future__ import annotations

import pytest

from holdfast.config.declare import settings_of
from holdfast.config.synonyms import OTHERS, TRAINING, did_you_mean_key
from holdfast.retention.registry import METHODS
from holdfast.runs.settings import OWN, known_settings

EVALUATE = ("model", "tasks", "data", "limit", "num_fewshot", "batch_size", "device", "context_length", "output_dir")


@pytest.fixture(scope="module")
def train_keys() -> list[str]:
    return [*OWN, *known_settings()]


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("lora_rank", "lora_r"),
        ("rank", "lora_r"),
        ("r", "lora_r"),
        ("loraRank", "lora_r"),
        ("lora_ranks", "lora_r"),
        ("target_modules", "lora_target_modules"),
        ("lora_target", "lora_target_modules"),
        ("modules_to_save", "lora_modules_to_save"),
        ("max_tokens", "max_length"),
        ("cutoff_len", "max_length"),
        ("sequence-len", "max_length"),
        ("lr", "learning_rate"),
        ("micro_batch_size", "per_device_train_batch_size"),
        ("batch_size", "per_device_train_batch_size"),
        ("epochs", "num_train_epochs"),
        ("grad_clip", "max_grad_norm"),
        ("optimizer", "optim"),
        ("sample_packing", "packing"),
        ("flash_attn", "attn_implementation"),
        ("val_set_size", "test_split_size"),
        ("model", "model_name_or_path"),
        ("dataset", "dataset_name"),
        ("learning_rat", "learning_rate"),
        ("local_rang", "local_rank"),
    ],
)
def test_a_training_key_is_found_by_meaning(name: str, key: str, train_keys: list[str]) -> None:
    assert did_you_mean_key(name, train_keys) == f" Did you mean '{key}'?"


@pytest.mark.parametrize(
    ("name", "known", "key"),
    [
        ("fewshot", EVALUATE, "num_fewshot"),
        ("max_samples", EVALUATE, "limit"),
        ("max_seq_length", EVALUATE, "context_length"),
        ("use_cpu", EVALUATE, "device"),
        ("per_device_eval_batch_size", EVALUATE, "batch_size"),
        ("max_tokens", ["task", "max_new_tokens"], "max_new_tokens"),
        ("max_new_tokens", ["model", "max_tokens"], "max_tokens"),
        ("lambda", [s.name for s in settings_of(METHODS["ewc"])], "coefficient"),
        ("coefficient", [s.name for s in settings_of(METHODS["label_annealing"])], "weight"),
        ("ratio", [s.name for s in settings_of(METHODS["replay"])], "fraction"),
        ("hidden_size", ["n_embd", "n_layer", "n_head"], "n_embd"),
    ],
)
def test_other_commands_have_their_own_names_of_it(name: str, known: list[str], key: str) -> None:
    assert did_you_mean_key(name, known) == f" Did you mean '{key}'?"


def test_what_is_meant_nowhere_gets_no_advice() -> None:
    assert did_you_mean_key("rank", EVALUATE) == did_you_mean_key("frobnicate", EVALUATE) == ""


def test_a_training_key_belongs_below_train() -> None:
    known = ["base", "train", "epochs", "window", "tokens"]
    assert did_you_mean_key("rank", known) == " It goes below 'train:', as 'lora_r'."
    assert did_you_mean_key("learning_rate", known) == " It goes below 'train:', as 'learning_rate'."
    assert did_you_mean_key("max_seq_length", known) == " Did you mean 'window'?"
    assert did_you_mean_key("trian", known) == " Did you mean 'train'?"


def test_the_first_key_of_every_training_row_is_one_of_holdfast_train(train_keys: list[str]) -> None:
    assert not {row.split()[0] for row in TRAINING} - set(train_keys)
    assert not {row.split()[0] for row in OTHERS} & set(train_keys) - {"temperature"}
