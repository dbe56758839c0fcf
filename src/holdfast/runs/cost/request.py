"""Training configurations to be planned with: read and checked as `holdfast train` does, less what a plan can do
without.

A plan is made before the weights are here, before the data is, and on a machine that need not have a GPU. So

- a folder with config.json and no weights is a model;
- with the tokens stated (or `max_steps`) the training data need not exist;
- `bf16`, `fp16` and `tf32` say what the run will do where it runs, not what this machine can.

Everything else that is wrong with a configuration is reported, all at once.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from holdfast.checkpoints.named import located
from holdfast.config.declare import Meta
from holdfast.config.decode import Given, coerce_all
from holdfast.config.values import Mistake
from holdfast.errors import ConfigError
from holdfast.runs.cost.hardware import DEFAULT_GPUS, find_gpu
from holdfast.support.paths import expanded
from holdfast.support.token_counts import read_tokens

if TYPE_CHECKING:
    from holdfast.runs.config import TrainConfig

_ELSEWHERE = ("bf16", "fp16", "tf32")
"""Keys about the machine that runs."""
_ANY_MODEL, _ANY_DATA = "planned/model", "planned/data"
"""Names in the place of what is not looked at."""


UTILISATION = 0.4
"""Assumed where none is stated."""


def _tokens(value: Any) -> float:
    count = value if isinstance(value, float) else read_tokens(str(value).replace(",", ""))
    if not 1 <= count < math.inf:
        raise ValueError
    return float(count)


@dataclass(frozen=True, kw_only=True)
class CostSettings:
    """What an estimate takes beside a training configuration."""

    tokens: Annotated[float | None, Meta(metavar="N", parse=_tokens, expected="a number of tokens, such as 100M")] = (
        None
    )
    """Tokens of one epoch of the training data, such as 100M or 250_000."""
    mean_length: Annotated[float | None, Meta(ge=1, metavar="L")] = None
    """Tokens of a document on average (without it, documents fill the window)."""
    gpu: Annotated[tuple[str, ...], Meta(repeatable=True, metavar="NAME")] = DEFAULT_GPUS
    """GPUs to estimate for (A100-80GB, H100, RTX-4090)."""
    utilisation: Annotated[float, Meta(gt=0, le=1, metavar="U")] = UTILISATION
    """Share of a GPU's peak rate that is reached, an assumption."""

    def problems(self) -> list[str]:
        """GPUs that are not known."""
        found = []
        for name in self.gpu:
            try:
                find_gpu(name)
            except ConfigError as error:
                found += error.problems
        return found


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A checked configuration and what was taken out of it."""

    config: TrainConfig
    model: str
    """Folder or hub id."""
    autocast: str | None
    """As `run_plan` takes it."""
    tf32: bool = False


def planned_config(settings: Mapping[str, Any], *, data_needed: bool) -> Planned:
    """Checks settings to be planned with.

    Args:
        settings: keys as in a training YAML.
        data_needed: whether the training data is going to be read, so that it has to be there.

    Raises:
        ConfigError: with every mistake at once.
    """
    return planned(Given(values=dict(settings)), data_needed=data_needed)


def planned(given: Given, *, data_needed: bool) -> Planned:
    """`planned_config` of what a file and a command line say.

    Args:
        given: keys of a training YAML; changed.
        data_needed: as of `planned_config`.

    Raises:
        ConfigError: with every mistake at once.
    """
    from holdfast.runs.config import checked, this_machine
    from holdfast.runs.settings import known_settings

    machine, mistakes = coerce_all({key: known_settings()[key] for key in _ELSEWHERE}, given.take(*_ELSEWHERE))
    given.mistakes += mistakes
    if machine.get("bf16") and machine.get("fp16"):
        given.mistakes.append(Mistake(path=("bf16",), text="expected one of bf16 and fp16, got both."))
    values = given.values
    model = values.get("model_name_or_path")
    if isinstance(model, str) and (expanded(located(model)) / "config.json").is_file():
        model = str(expanded(model))
        values["model_name_or_path"] = _ANY_MODEL
    if not data_needed or not _data_is_here(values, given.mistakes):
        values.pop("datasets", None)
        values["dataset_name"] = _ANY_DATA
    config = checked(given, dataclasses.replace(this_machine(), runs=False))
    config.model.model_name_or_path = str(model)
    off = machine.get("bf16") is False
    autocast = (
        "bfloat16" if machine.get("bf16") else "float16" if machine.get("fp16") else None if off else "as planned"
    )
    return Planned(config=config, model=str(model), autocast=autocast, tf32=bool(machine.get("tf32")))


def _data_is_here(values: Mapping[str, Any], mistakes: list[Mistake]) -> bool:
    """Whether there is training data on this machine to read. Without it the run's steps have to say how much is
    trained on."""
    from holdfast.data.sources import is_path
    from holdfast.runs.cost.estimate import NO_TOKENS

    name, steps = values.get("dataset_name"), str(values.get("max_steps") or "")
    known = steps.isdigit() and int(steps) > 0
    if isinstance(name, str) and is_path(name):
        return not known or expanded(name).exists()  # what is missing and needed is reported with the rest
    if not known:
        mistakes.append(Mistake(path=(), text=NO_TOKENS))
    return False
