"""The teacher that a trainer gives to label annealing: a frozen copy, the model without its
adapter, or stored states."""

from __future__ import annotations

from typing import Any

from torch import nn

from holdfast.errors import ConfigError
from holdfast.retention.anchor import START
from holdfast.retention.protocol import TeacherSettings
from holdfast.retention.teacher.teacher import AdapterOffTeacher, OnlineTeacher
from holdfast.training.zero import is_partitioned


def wants_copy(settings: TeacherSettings, model: Any, peft_config: Any) -> bool:
    """Whether the teacher is a second copy of the model, which has to be made before the trainer
    changes anything.

    Args:
        settings: of the teacher.
        model: as the user gave it.
        peft_config: of an adapter that the trainer will put into it.

    Raises:
        ConfigError: a copy is wanted of what is no bare loaded model.
    """
    if is_partitioned(model):  # refused with all other reasons once the trainer is complete
        return False
    wrapped = hasattr(model, "disable_adapter")
    if settings.kind == "adapter_off" or (
        settings.kind == "auto" and (wrapped or peft_config is not None)
    ):
        return False
    if wrapped and settings.kind != "cached":
        raise ConfigError(
            "label_annealing.teacher: online needs the initial model without an adapter. Pass the "
            "model and peft_config instead of a wrapped PEFT model."
        )
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"label_annealing: expected a loaded model, because the teacher is made from it, got "
            f"{type(model).__name__}."
        )
    return settings.kind != "cached"


def make_teacher(
    model: nn.Module, copied: nn.Module | None, settings: TeacherSettings, device: Any
) -> tuple[OnlineTeacher | AdapterOffTeacher, dict[str, Any]]:
    """A teacher that computes, and what a run records of it.

    Args:
        model: the trainer's.
        copied: the frozen copy; None: the model without its adapter.
        settings: of the teacher.
        device: of the run.
    """
    if copied is None:
        return AdapterOffTeacher(model), {"name": AdapterOffTeacher.name}
    teacher = OnlineTeacher(copied)
    if not settings.sharded:  # it would have to fit whole before it is shared out
        teacher.to(device)
    info = {
        "name": teacher.name,
        "dtype": str(next(copied.parameters()).dtype).removeprefix("torch."),
    }
    if settings.model != START:
        info["model"] = settings.model
    return teacher, info


def shard_teacher(teacher: OnlineTeacher, accelerator: Any, args: Any) -> None:
    """Shares an online teacher out over the mesh that accelerate shards the student over.

    Raises:
        ConfigError: the run is not under FSDP2.
    """
    if not getattr(accelerator, "is_fsdp2", False):
        raise ConfigError(
            "label_annealing.teacher_sharded: expected a run under FSDP2 (--accelerate_config "
            "fsdp2), got one without. Leave it out."
        )
    from torch.distributed.device_mesh import init_device_mesh

    mesh = getattr(accelerator, "torch_device_mesh", None)
    if mesh is not None:
        mesh = mesh[tuple(accelerator.parallelism_config.fsdp_dim_names)]
    else:
        mesh = init_device_mesh(args.device.type, (args.world_size,))
    teacher.shard(mesh)
