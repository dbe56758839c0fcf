"""GPUs by name: peak rates of dense matrix products and memory, as their makers state them.

Rates are TFLOP/s (1e12 floating-point operations a second), an addition and a multiplication being two; without
structured sparsity, which sheets often print in larger type. They are the makers' peaks, not measurements of this
project: no product reaches them, which is what a utilisation is for. Memory is in GB (1e9 bytes) as sold, its bandwidth
in GB/s.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from holdfast.errors import ConfigError, did_you_mean

PRECISIONS = ("half", "tf32", "single")
"""Kinds of products that have a rate of their own: bfloat16 or float16, float32 rounded to TF32, float32."""


@dataclass(frozen=True, kw_only=True)
class GPU:
    """One kind of GPU."""

    name: str
    half: float
    """bfloat16 and float16 products with float32 accumulation, TFLOP/s, dense."""
    tf32: float
    """float32 products rounded to TF32 on tensor cores, TFLOP/s, dense."""
    single: float
    """float32 outside tensor cores, TFLOP/s: what PyTorch does unless TF32 is switched on."""
    memory: float
    """GB."""
    bandwidth: float
    """Of its memory, GB/s."""
    source: str
    """The maker's sheet that the figures are from."""

    def rate(self, precision: str) -> float:
        """Operations a second of products of one of `PRECISIONS`."""
        return 1e12 * float(getattr(self, precision))


_SHEETS = {
    "A100": "NVIDIA A100 Tensor Core GPU data sheet",
    "H100": "NVIDIA H100 Tensor Core GPU data sheet, half of the figures with sparsity",
    "H200": "NVIDIA H200 Tensor Core GPU data sheet, half of the figures with sparsity",
    "B200": "NVIDIA HGX B200 data sheet, an eighth of the board, half of the figures with sparsity",
    "L40S": "NVIDIA L40S data sheet, half of the figures with sparsity",
    "L4": "NVIDIA L4 Tensor Core GPU data sheet, half of the figures with sparsity",
    "A10G": "NVIDIA A10G data sheet (AWS G5)",
    "4090": "NVIDIA Ada GPU architecture white paper, GeForce RTX 4090, float32 accumulation",
    "3090": "NVIDIA Ampere GA102 GPU architecture white paper, GeForce RTX 3090, float32 accumulation",
    "MI300X": "AMD Instinct MI300X data sheet",
    "MI250X": "AMD Instinct MI250X data sheet, both dies",
}

GPUS: dict[str, GPU] = {
    gpu.name: gpu
    for gpu in (
        GPU(name="A100-40GB", half=312, tf32=156, single=19.5, memory=40, bandwidth=1555, source=_SHEETS["A100"]),
        GPU(name="A100-80GB", half=312, tf32=156, single=19.5, memory=80, bandwidth=2039, source=_SHEETS["A100"]),
        GPU(name="H100", half=989, tf32=494, single=67, memory=80, bandwidth=3350, source=f"{_SHEETS['H100']} (SXM)"),
        GPU(
            name="H100-PCIe",
            half=756,
            tf32=378,
            single=51,
            memory=80,
            bandwidth=2000,
            source=f"{_SHEETS['H100']} (PCIe)",
        ),
        GPU(name="H200", half=989, tf32=494, single=67, memory=141, bandwidth=4800, source=f"{_SHEETS['H200']} (SXM)"),
        GPU(name="B200", half=2250, tf32=1100, single=75, memory=180, bandwidth=8000, source=_SHEETS["B200"]),
        GPU(name="L40S", half=362, tf32=183, single=91.6, memory=48, bandwidth=864, source=_SHEETS["L40S"]),
        GPU(name="L4", half=121, tf32=60, single=30.3, memory=24, bandwidth=300, source=_SHEETS["L4"]),
        GPU(name="A10G", half=70, tf32=35, single=31.5, memory=24, bandwidth=600, source=_SHEETS["A10G"]),
        GPU(name="RTX-4090", half=165.2, tf32=82.6, single=82.6, memory=24, bandwidth=1008, source=_SHEETS["4090"]),
        GPU(name="RTX-3090", half=71, tf32=35.6, single=35.6, memory=24, bandwidth=936, source=_SHEETS["3090"]),
        GPU(name="MI300X", half=1307.4, tf32=653.7, single=163.4, memory=192, bandwidth=5300, source=_SHEETS["MI300X"]),
        GPU(
            name="MI250X",
            half=383,
            tf32=95.7,
            single=47.9,
            memory=128,
            bandwidth=3277,
            source=f"{_SHEETS['MI250X']}; no TF32: its float32 matrix rate",
        ),
    )
}
"""By name, in the order they are listed in."""

DEFAULT_GPUS = ("A100-80GB", "H100", "RTX-4090")
"""Shown where none is named."""

_ALSO = {
    "a100": "A100-80GB",
    "a100pcie": "A100-80GB",
    "h100sxm": "H100",
    "h200sxm": "H200",
    "4090": "RTX-4090",
    "3090": "RTX-3090",
}


def find_gpu(name: str) -> GPU:
    """The GPU of a name; capitals, spaces and dashes do not count ("rtx 4090", "a100").

    Raises:
        ConfigError: nobody knows it; names the nearest.
    """
    plain = _plain(name)
    known = {_plain(n): n for n in GPUS}
    found = known.get(plain) or _ALSO.get(plain)
    if found is None:
        near = did_you_mean(plain, known)
        for short, full in known.items():
            near = near.replace(f"'{short}'", f"'{full}'")
        raise ConfigError(f"gpu: expected one of {', '.join(GPUS)}, got '{name}'.{near}")
    return GPUS[found]


def _plain(name: str) -> str:
    return re.sub(r"[\W_]|nvidia|geforce|amd|instinct", "", name.lower())
