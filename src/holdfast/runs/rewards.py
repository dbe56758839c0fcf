"""What judges the answers of a run with `trainer: grpo`: `reward_funcs` and
`reward_model_name_or_path`, TRL's own keys.

A reward function is one of `trl.rewards` by its name, `my_rewards.py:brevity` (a file), or
`my_package.rewards:brevity` (TRL's `my_package.rewards.brevity` is the same). It gets prompts,
completions and the other columns of the rows, and returns a number an answer (see TRL's
documentation of GRPO). Naming one of the user's own runs its code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.checkpoints.named import located
from holdfast.errors import ConfigError, did_you_mean
from holdfast.support.own_code import is_reference, load_own

OVERLONG = "get_soft_overlong_punishment"
"""TRL makes this one with the lengths below."""
OVERLONG_LENGTHS = {"max_completion_len": 1280, "soft_punish_cache": 256}


def reward_functions(script: Any) -> tuple[list[Callable[..., Any] | str], list[dict[str, str]]]:
    """The run's rewards as `GRPOTrainer` takes them, and what a run records of each.

    Args:
        script: TRL's `GRPOScriptArguments`.

    Raises:
        ConfigError: a name that is none, or code that fails while it is loaded; all of them.
    """
    rewards: list[Callable[..., Any] | str] = []
    about: list[dict[str, str]] = []
    problems: list[str] = []
    if script.reward_model_name_or_path:
        rewards.append(located(script.reward_model_name_or_path))
        about.append({"name": script.reward_model_name_or_path})
    for name in script.reward_funcs or ():
        try:
            reward, sha256 = _reward(name)
        except ConfigError as error:
            problems += [problem.below("reward_funcs") for problem in error.problems]
            continue
        rewards.append(reward)
        about.append({"name": name, "sha256": sha256} if sha256 else {"name": name})
    if problems:
        raise ConfigError(problems)
    return rewards, about


def refuse_changed_rewards(
    before: Sequence[dict[str, str]] | None, now: Sequence[dict[str, str]]
) -> None:
    """
    Raises:
        ConfigError: a run that is continued was begun with other rewards, or with other code.
    """
    if before is not None and list(before) != list(now):
        raise ConfigError(
            f"reward_funcs: expected the same rewards as when the run began, {_listed(before)}, "
            f"got {_listed(now)}. Restore the old code, or choose a new output_dir."
        )


def _reward(name: str) -> tuple[Callable[..., Any], str]:
    from trl import rewards

    shipped = [word for word in dir(rewards) if word.endswith("_reward")]
    if name in shipped:
        return getattr(rewards, name), ""
    if name == OVERLONG:
        return rewards.get_soft_overlong_punishment(**OVERLONG_LENGTHS), ""
    if ":" not in name and "." in name:
        module, _, function = name.rpartition(".")
        name = f"{module}:{function}"
    if not is_reference(name):
        known = [*shipped, OVERLONG]
        raise ConfigError(
            f"expected one of {', '.join(known)}, or FILE.py:FUNCTION, got "
            f"{name!r}.{did_you_mean(name, known)}"
        )
    reward = load_own(name)
    if not callable(reward.value):
        raise ConfigError(
            f"{name}: expected a function, got a value of type {type(reward.value).__name__}."
        )
    return reward.value, reward.sha256


def _listed(about: Sequence[dict[str, str]]) -> str:
    words = []
    for reward in about:
        words.append(
            f"{reward['name']} ({reward['sha256'][:12]})" if "sha256" in reward else reward["name"]
        )
    return ", ".join(words) or "none"
