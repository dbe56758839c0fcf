"""Models and tasks that there are none of: refused by every request that names them, before anything is done, with the
name that is nearest."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.checkpoints.named import check_on_hub, is_no_model, near_model
from holdfast.errors import ConfigError, ModelError
from holdfast.runs.config import train_config


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a folder of a model, and a hub cache with another one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tuned").mkdir()
    cache = tmp_path / "cache"
    (cache / "models--Qwen--Qwen3-0.6B").mkdir(parents=True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return tmp_path


@pytest.mark.parametrize("name", ["tunde", "./no", "a/b/c", "tuned2@main"])
def test_a_name_without_an_owner_is_no_model(name: str) -> None:
    assert is_no_model(name)


@pytest.mark.parametrize("name", ["tuned", "./tuned", "gpt2", "Qwen/Qwen3-0.6B", "owner/name@step10"])
def test_folders_and_ids_of_the_hub_may_be_models(name: str) -> None:
    assert not is_no_model(name)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("tunde", "tuned"),
        ("./tunde", "tuned"),
        ("Qwen/Qwen3-0.6BB", "Qwen/Qwen3-0.6B"),
        ("smollm2-135m", "smollm2-135m-instruct"),
    ],
)
def test_the_nearest_model_is_named(name: str, near: str) -> None:
    assert near_model(name) == f" Did you mean '{near}'?"


def test_what_the_hub_may_not_be_asked_for_is_refused() -> None:
    check_on_hub("Qwen/Qwen3-0.6B")
    check_on_hub("tuned")
    with pytest.raises(ModelError, match=r"HF_HUB_OFFLINE is set.* Did you mean 'Qwen/Qwen3-0\.6B'"):
        check_on_hub("Qwen/Qwen3-0.6BB")


def test_a_hub_that_does_not_answer_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.HfApi.repo_exists", lambda self, name: 1 / 0)
    check_on_hub("owner/name")
    monkeypatch.setattr("huggingface_hub.HfApi.repo_exists", lambda self, name: False)
    with pytest.raises(ModelError, match="no such model on the hub"):
        check_on_hub("owner/name")


def test_an_unknown_model_and_an_unknown_task_are_named_together() -> None:
    with pytest.raises(ConfigError) as error:
        train_config(
            model_name_or_path="tunde",
            dataset_name="owner/rows",
            evaluation={
                "keep": [{"task": "hellaswagg"}, {"task": "mmlu"}],
                "learn": [{"answer_distribution": "arc_esy"}],
            },
        )
    said = error.value.problems
    assert any("model_name_or_path: no such folder: tunde" in s and "Did you mean 'tuned'?" in s for s in said)
    assert any("evaluation.keep: 'hellaswagg' is neither a task" in s and "Nearest: hellaswag," in s for s in said)
    assert any("evaluation.learn: 'arc_esy' is neither a task" in s and "arc_easy" in s for s in said)
    assert len(said) == 3
