"""Several processes from one command: `holdfast train --num_processes 4` starts itself again
through a launcher.

With an accelerator that is `accelerate launch` (with TRL's presets: `--accelerate_config fsdp2`).
Without one it is torchrun: accelerate's CPU path (seen in 1.15) starts ONE process without a word.
Each child gets the number that it must find, and `check_world` refuses to train with fewer. This
module builds the command and replaces the current process; it distributes nothing itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from holdfast.config.declare import Meta, settings_of
from holdfast.config.decode import decode
from holdfast.config.yaml_file import read_yaml
from holdfast.errors import ConfigError, HoldfastError
from holdfast.support.paths import expanded

LAUNCHED = "HOLDFAST_LAUNCHED"
"""Environment variable of a child: the number of processes it belongs to, 0 where only the launcher
knows."""
_FOR_TORCHRUN = {
    "num_machines": "--nnodes",
    "machine_rank": "--node_rank",
    "main_process_ip": "--master_addr",
    "main_process_port": "--master_port",
}


@dataclass(frozen=True, kw_only=True)
class AccelerateFile:
    """What holdfast looks at in an accelerate configuration."""

    num_processes: Annotated[int | None, Meta(ge=1)] = None
    distributed_type: bool | str = ""
    fsdp_config: dict[str, Any] = field(default_factory=dict)
    deepspeed_config: dict[str, Any] = field(default_factory=dict)


def accelerate_file(launch: Mapping[str, Any]) -> AccelerateFile:
    """The accelerate configuration that a run names; empty without one.

    Raises:
        ConfigError: it is not there, cannot be read, or says what cannot be.
    """
    if not (launch.get("accelerate_config") or launch.get("config_file")):
        return AccelerateFile()
    content = read_yaml(_config_file(launch), option="--accelerate_config")
    known = {setting.name for setting in settings_of(AccelerateFile)}
    file, problems = decode(
        AccelerateFile, {key: value for key, value in content.values.items() if key in known}
    )
    content.check(problems)
    assert file is not None
    return file


def processes(launch: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> int:
    """Processes over all machines: as started (`WORLD_SIZE`), else as asked for, else as the
    accelerate configuration says, else 1.

    Raises:
        ConfigError: see `accelerate_file`.
    """
    if environ.get("WORLD_SIZE"):
        return int(environ["WORLD_SIZE"])
    if launch.get("num_processes"):
        return int(launch["num_processes"])
    return accelerate_file(launch).num_processes or 1


def is_needed(
    launch: Mapping[str, Any], *, has_accelerator: bool, environ: Mapping[str, str] = os.environ
) -> bool:
    """Whether this process must start others: asked for, and not started by a launcher already."""
    if LAUNCHED in environ or "LOCAL_RANK" in environ:
        return False
    if not has_accelerator:
        return int(launch.get("num_processes") or 1) > 1
    return bool(launch) and dict(launch) != {"num_processes": 1}


def ignored(launch: Mapping[str, Any], *, has_accelerator: bool) -> list[str]:
    """Launch keys that have no effect on this machine."""
    if has_accelerator:
        return []
    return [k for k in launch if k not in ("num_processes", *_FOR_TORCHRUN)]


def command(launch: Mapping[str, Any], argv: Sequence[str], *, has_accelerator: bool) -> list[str]:
    """The command that runs `holdfast train argv` in several processes.

    Args:
        launch: the launch keys as `TrainConfig.launch` has them.
        argv: the words after `holdfast train`, unchanged: a child recognises itself and skips the
            launching.
        has_accelerator: chooses accelerate or torchrun.
    """
    if not has_accelerator:
        machines = int(launch.get("num_machines") or 1)
        words = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc_per_node",
            str(int(launch.get("num_processes") or 1) // machines),
        ]
        if machines == 1:
            words.append("--standalone")
        else:
            for key, option in _FOR_TORCHRUN.items():
                if launch.get(key) is not None:
                    words += [option, str(launch[key])]
        return [*words, "-m", "holdfast", "train", *argv]
    words = [sys.executable, "-m", "accelerate.commands.launch"]
    for key, value in launch.items():
        if key == "accelerate_config":
            words += ["--config_file", str(_config_file(launch))]
        elif value is True:
            words.append(f"--{key}")
        elif value is not False and value is not None:
            words += [f"--{key}", str(value)]
    return [*words, "-m", "holdfast", "train", *argv]


def _config_file(launch: Mapping[str, Any]) -> Path:
    name = str(launch.get("accelerate_config") or launch.get("config_file"))
    if expanded(name).is_file():
        return expanded(name)
    from importlib import resources

    return Path(str(resources.files("trl.accelerate_configs").joinpath(f"{name}.yaml")))


def start(launch: Mapping[str, Any], argv: Sequence[str], *, has_accelerator: bool) -> None:
    """Replaces this process by the launcher; does not return."""
    os.environ[LAUNCHED] = str(processes(launch))
    words = command(launch, argv, has_accelerator=has_accelerator)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(words[0], words)


def check_started(
    launch: Mapping[str, Any], *, has_accelerator: bool, environ: Mapping[str, str] = os.environ
) -> None:
    """This process is one of as many as a configuration asks for.

    Args:
        launch: the launch keys as `TrainConfig.launch` has them.
        has_accelerator: whether the machine has one.
        environ: the environment.

    Raises:
        ConfigError: it asks for several, and no launcher started this one.
    """
    count = processes(launch, environ)
    needed = is_needed(launch, has_accelerator=has_accelerator, environ=environ)
    if needed and count > int(environ.get("WORLD_SIZE") or 1):
        raise ConfigError(
            f"num_processes: expected {count} processes, got one. There are three ways out. Write "
            "the settings to a file and run 'holdfast train --config FILE', which starts all "
            f"processes; start this program with torchrun --nproc_per_node {count}; or leave "
            "num_processes and accelerate_config out."
        )


def check_world(environ: Mapping[str, str] = os.environ) -> None:
    """There are as many processes as were asked for, and they know of each other.

    Raises:
        HoldfastError: the launcher started fewer (or did not distribute at all).
        ConfigError: Slurm started several, each of which would train alone.
    """
    tasks = int(environ.get("SLURM_STEP_NUM_TASKS") or 1)
    if tasks > 1 and "WORLD_SIZE" not in environ:
        raise ConfigError(
            f"srun started {tasks} independent tasks, and each would train alone. Start one task "
            "per node (--ntasks-per-node 1), and run torchrun in it, as configs/cluster/slurm.sh "
            "does."
        )
    expected, started = int(environ.get(LAUNCHED) or 0), int(environ.get("WORLD_SIZE") or 1)
    if expected > 1 and started != expected:
        raise HoldfastError(
            f"Expected {expected} processes, but the launcher started {started}. Start them "
            "yourself: "
            f"torchrun --nproc_per_node {expected} -m holdfast train ..."
        )
