"""How fast a model trained, in operations a second, and which share of the machine's peak that is.

Model FLOPs utilisation (MFU; Chowdhery et al. 2022, PaLM, appendix B): the products that forward and backward of the
model need, over the time that they took, over what the machine could do. Recomputed forward passes, teachers and
everything that is no product do not count. With N multiplications a token, of which N' have weights that are trained,
and a window of T tokens that each token sees half of:

    per token      2 N + 2 N + 2 N'  +  3 * 2 h (d_k + d_v) T / 2 a layer

A GPU's peak is what its maker states; of CPU cores nobody states one, so a large product of the same dtype is timed.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast.errors import UserError
from holdfast.records.run import Throughput

if TYPE_CHECKING:
    from holdfast.runs.config import TrainConfig
    from holdfast.runs.cost.architecture import Architecture

_MEMORY = re.compile(r"\b\d+ ?GB\b|\bHBM\w*|\bSXM\d*\b", re.IGNORECASE)
"""What drivers write of a board beside its name."""
_SIDE = 1024
_ROUNDS = 5


def model_flops(architecture: Architecture, window: float) -> float:
    """Operations of one token's forward and backward pass.

    Args:
        architecture: the model's.
        window: tokens of a row, the mean where they differ; a layer with a shorter attention window sees that.
    """
    a = architecture
    attention = 0.0
    for layer in a.layers:
        if layer.attends:
            seen = min(layer.window or window, window) / 2
            attention += layer.count * 2.0 * a.heads * (a.key_width + a.value_width) * seen
    trained = sum(layer.active_trained * layer.count for layer in a.layers)
    head = (6.0 if a.head_trained else 4.0) * a.head
    return 4 * a.active + 2 * trained + head + 3 * attention


def throughput(
    architecture: Architecture,
    tokens_per_second: float,
    window: float,
    *,
    device: str,
    half: bool = False,
    processes: int = 1,
) -> Throughput:
    """What a training reached.

    Args:
        architecture: of the model that was trained, with its adapter where it has one.
        tokens_per_second: of all processes together.
        window: tokens of a row, the mean where they differ.
        device: "cuda" or "cpu".
        half: whether products are in bfloat16 or float16.
        processes: devices that trained.
    """
    peak, source = peak_rate(device, half=half)
    return Throughput(
        tokens_per_second=tokens_per_second,
        flops_per_second=tokens_per_second * model_flops(architecture, window),
        peak=peak * processes if peak is not None else None,
        peak_of=source,
    )


def throughput_of_run(
    config: TrainConfig, data: Mapping[str, Any], tokens_per_second: float, *, device: str
) -> Throughput | None:
    """What a run reached; None where its model's shapes or the lengths of its rows are not known, so that nothing can
    be said.

    Args:
        config: the run's. The model is read from its config.json: weights in memory may be sharded or quantised.
        data: of the run's record: `examples`, `tokens`.
        tokens_per_second: of all processes together.
        device: "cuda" or "cpu".
    """
    from holdfast.runs.cost.estimate import architecture_of

    args, examples = config.training, data.get("examples")
    whole = args.packing and args.packing_strategy == "wrapped"  # attention then crosses documents
    row = args.max_length if whole else int(data.get("tokens") or 0) / examples if examples else None
    if not row:
        return None
    try:
        architecture = architecture_of(config, str(config.model.model_name_or_path))
    except UserError:
        return None
    row = min(row, args.max_length) if args.max_length else row
    half = bool(args.bf16 or args.fp16)
    return throughput(
        architecture, tokens_per_second, row, device=device, half=half, processes=max(1, config.processes)
    )


@functools.cache
def peak_rate(device: str, *, half: bool = False) -> tuple[float | None, str]:
    """Operations a second that one device could do, and where that is known from; None where it is not.

    Args:
        device: "cuda" or "cpu".
        half: in bfloat16.
    """
    import torch

    from holdfast.runs.cost.hardware import find_gpu

    if device == "cuda":
        name = torch.cuda.get_device_name()
        tf32 = torch.backends.cuda.matmul.allow_tf32
        try:
            gpu = find_gpu(_MEMORY.sub(" ", name))
        except UserError:  # a board that only sounds like a known one (H100 NVL, RTX 4090 Laptop) has another peak
            return None, ""
        return gpu.rate("half" if half else "tf32" if tf32 else "single"), f"{gpu.name}, as its maker states it"
    if device != "cpu":
        return None, ""
    a = torch.ones(_SIDE, _SIDE, dtype=torch.bfloat16 if half else torch.float32)
    times = []
    for _ in range(_ROUNDS + 1):
        began = time.perf_counter()
        a @ a
        times.append(time.perf_counter() - began)
    threads = torch.get_num_threads()
    return 2.0 * _SIDE**3 / min(times), f"a product of {_SIDE} x {_SIDE} matrices on {threads} thread(s), measured"
